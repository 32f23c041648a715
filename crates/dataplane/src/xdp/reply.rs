//! Replies that user space sends in place of the program, on the interface on which the message arrived.

use std::io;
use std::net::UdpSocket;

use linewarden_protocol::wire::MESSAGE_BYTES;

use crate::frames::FrameSender;
use crate::links::LOOPBACK;
use crate::{attest_request_sender, miss};

/// Sends a frame on an interface.
pub(super) fn send(sender: &FrameSender, ifindex: u32, frame: &[u8]) -> io::Result<()> {
    match ifindex {
        LOOPBACK => send_by_stack(frame),
        _ => sender.send(ifindex, frame),
    }
}

/// Sends the message of a frame through the network stack: on the loopback interface, the kernel accepts a frame to
/// 127.0.0.0/8 only from its own output path.
fn send_by_stack(frame: &[u8]) -> io::Result<()> {
    let malformed = || io::Error::from(io::ErrorKind::InvalidInput);
    let (parsed, payload_at) = miss::parse_datagram(frame).ok_or_else(malformed)?;
    let (ip, udp) = parsed.datagram().ok_or_else(malformed)?;
    let payload = frame
        .get(payload_at..payload_at + MESSAGE_BYTES)
        .ok_or_else(malformed)?;
    // Datagrams to this port never reach a socket, because the program consumes them.
    let socket = UdpSocket::from(attest_request_sender::send_only_socket(
        (ip.src, udp.src_port).into(),
    )?);
    socket.send_to(payload, (ip.dst, udp.dst_port)).map(drop)
}
