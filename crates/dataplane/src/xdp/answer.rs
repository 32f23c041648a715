//! Answers that user space gives in the program's place, sent out of the interface that the message came in by.

use std::io;
use std::net::UdpSocket;

use linewarden_protocol::wire::MESSAGE_BYTES;

use super::LOOPBACK;
use crate::frames::FrameSender;
use crate::{ask, miss};

/// Sends a frame out of an interface.
pub(super) fn send(sender: &FrameSender, ifindex: u32, frame: &[u8]) -> io::Result<()> {
    match ifindex {
        LOOPBACK => send_by_stack(frame),
        _ => sender.send(ifindex, frame),
    }
}

/// On the loopback interface the kernel takes a frame to 127.0.0.0/8 only from its own output path.
fn send_by_stack(frame: &[u8]) -> io::Result<()> {
    let malformed = || io::Error::from(io::ErrorKind::InvalidInput);
    let (parsed, at) = miss::datagram(frame).ok_or_else(malformed)?;
    let (ip, udp) = parsed.datagram().ok_or_else(malformed)?;
    let payload = frame.get(at..at + MESSAGE_BYTES).ok_or_else(malformed)?;
    // What comes to this port never reaches a socket: the program takes it.
    let socket = UdpSocket::from(ask::exit_only((ip.src, udp.src_port).into())?);
    socket.send_to(payload, (ip.dst, udp.dst_port)).map(drop)
}
