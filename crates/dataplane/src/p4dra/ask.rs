//! Asking provers: a REQUEST to everybody on an interface, as a published controller has its switch send one.

use std::io;

use linewarden_protocol::classic::p4dra::{Message, PADDED_BYTES, Round};
use linewarden_protocol::frame::header;
use zerocopy::IntoBytes as _;

use crate::config::P4dra;
use crate::frames::FrameSender;
use crate::{DataPlaneError, ethtool};

/// Bytes of a REQUEST as it leaves: the shortest Ethernet frame.
const FRAME_BYTES: usize = size_of::<header::Ethernet>() + PADDED_BYTES;

/// Sends REQUESTs.
#[derive(Debug)]
pub(crate) struct P4draAsker {
    sender: FrameSender,
    ether_type: u16,
}

impl P4draAsker {
    /// In the calling thread's network namespace; needs CAP_NET_RAW.
    pub(crate) fn open(p4dra: &P4dra) -> Result<Self, DataPlaneError> {
        let error =
            |error| DataPlaneError::kernel("a packet socket to ask provers of p4dra-classic from", error);
        Ok(Self {
            sender: FrameSender::open().map_err(error)?,
            ether_type: p4dra.ether_type,
        })
    }

    /// Out of each of these interfaces, from its own MAC address, which replies come back to, and untagged.
    ///
    /// # Errors
    /// The first interface that it could not be sent out of; it was tried on all.
    pub(crate) fn ask(&self, interfaces: &[u32], round: &Round) -> Result<(), DataPlaneError> {
        let ask = |ifindex: &u32| {
            self.ask_on(*ifindex, round).map_err(|error| {
                let name = ethtool::told_of(*ifindex);
                DataPlaneError::kernel(
                    format!("asking provers of p4dra-classic on interface {name}"),
                    error,
                )
            })
        };
        let results: Vec<_> = interfaces.iter().map(ask).collect();
        results.into_iter().collect()
    }

    fn ask_on(&self, ifindex: u32, round: &Round) -> io::Result<()> {
        // Looked up each time: it may have been changed.
        let ethernet = header::Ethernet {
            dst: [0xff; 6],
            src: ethtool::mac_of(ifindex)?,
            ether_type: self.ether_type.into(),
        };
        let mut frame = [0; FRAME_BYTES];
        let (head, payload) = frame.split_at_mut(size_of::<header::Ethernet>());
        head.copy_from_slice(ethernet.as_bytes());
        let written = Message::Request(*round).write(payload);
        written.ok_or(io::ErrorKind::InvalidInput)?;
        self.sender.send(ifindex, &frame)
    }
}
