//! Sends REQUESTs to provers: one broadcast per interface, as the switch of the published controller sends it.

use std::io;

use linewarden_protocol::classic::p4dra::{Message, PADDED_BYTES, Round};
use linewarden_protocol::frame::header;
use zerocopy::IntoBytes as _;

use super::settings::P4dra;
use crate::error::DataPlaneError;
use crate::ethtool;
use crate::frames::FrameSender;

/// Size of a REQUEST on the wire: the shortest Ethernet frame.
const FRAME_BYTES: usize = size_of::<header::Ethernet>() + PADDED_BYTES;

/// Sends REQUESTs.
#[derive(Debug)]
pub(crate) struct P4draRequestSender {
    sender: FrameSender,
    ether_type: u16,
}

impl P4draRequestSender {
    /// Opens the socket in the calling thread's network namespace. Needs CAP_NET_RAW.
    pub(crate) fn open(p4dra: &P4dra) -> Result<Self, DataPlaneError> {
        let error =
            |error| DataPlaneError::kernel("opening a packet socket for p4dra-classic requests", error);
        Ok(Self {
            sender: FrameSender::open().map_err(error)?,
            ether_type: p4dra.ether_type,
        })
    }

    /// Sends a REQUEST on each of these interfaces, untagged, from the interface's own MAC address. Replies return to this
    /// MAC address.
    ///
    /// # Errors
    /// The error of the first interface on which sending failed. All interfaces are tried.
    pub(crate) fn send_on_all(&self, interfaces: &[u32], round: &Round) -> Result<(), DataPlaneError> {
        let send = |ifindex: &u32| {
            self.send_on(*ifindex, round).map_err(|error| {
                let name = ethtool::display_name(*ifindex);
                DataPlaneError::kernel(
                    format!("sending a p4dra-classic REQUEST on interface {name}"),
                    error,
                )
            })
        };
        let results: Vec<_> = interfaces.iter().map(send).collect();
        results.into_iter().collect()
    }

    fn send_on(&self, ifindex: u32, round: &Round) -> io::Result<()> {
        // Read each time, because the address may have changed.
        let ethernet = header::Ethernet {
            dst: [0xff; 6],
            src: ethtool::mac_of(ifindex)?,
            ether_type: self.ether_type.into(),
        };
        let mut frame = [0; FRAME_BYTES];
        let (head, payload) = frame.split_at_mut(size_of::<header::Ethernet>());
        head.copy_from_slice(ethernet.as_bytes());
        let result = Message::Request(*round).write(payload);
        result.ok_or(io::ErrorKind::InvalidInput)?;
        self.sender.send(ifindex, &frame)
    }
}
