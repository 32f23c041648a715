//! `p4dra-classic` at the gateway (LAP/1 3.1): frames of its Ethernet type, with every gate setting.

use core::ops::Range;

use super::{Gateway, HandledFrame};
use crate::classic::p4dra::verifier::Verifier;
use crate::frame::{self, Mac, Network};
use crate::verdict::{Disposition, Verdict};

/// The served profile (insecure; for comparison only).
#[derive(Debug)]
pub struct P4dra {
    /// Ethernet type, untagged or behind one or two VLAN tags.
    pub ether_type: u16,
    /// The destination of replies.
    pub controller: Mac,
    /// Provers and rounds.
    pub verifier: Verifier,
}

impl Gateway {
    /// Serves `p4dra-classic`.
    pub fn serve_p4dra(&mut self, profile: P4dra) {
        self.p4dra = Some(profile);
    }

    /// The profile, if it is served.
    pub fn p4dra(&mut self) -> Option<&mut P4dra> {
        self.p4dra.as_mut()
    }

    /// Handles a frame if it has the Ethernet type of the profile.
    pub(super) fn handle_p4dra_frame(&mut self, bytes: &mut [u8]) -> Option<HandledFrame> {
        let parsed = frame::parse(bytes).ok()?;
        if !self.is_addressed_to_gateway(&parsed) {
            return None;
        }
        let profile = self.p4dra.as_mut()?;
        if parsed.network != Network::Other(profile.ether_type) {
            return None;
        }
        let (verdict, trailer) = match frame::is_group(&parsed.dst_mac) || frame::is_group(&parsed.src_mac) {
            false => profile.verifier.handle(bytes.get_mut(parsed.network_at..)?),
            true => (Verdict::DropUnanswerable, None),
        };
        if verdict.disposition() == Disposition::Reply {
            write_addresses(bytes, profile.controller, parsed.dst_mac)?;
        }
        Some(HandledFrame {
            verdict,
            frame: 0..bytes.len(),
            trailer,
        })
    }
}

/// Positions of the destination and the source MAC address.
const MACS: (Range<usize>, Range<usize>) = (0..6, 6..12);

fn write_addresses(frame: &mut [u8], to: Mac, from: Mac) -> Option<()> {
    frame.get_mut(MACS.0)?.copy_from_slice(&to);
    frame.get_mut(MACS.1)?.copy_from_slice(&from);
    Some(())
}
