//! The oracle of the published gateways: LAP/1's gateway, which also serves the published protocols.

use core::ops::{Deref, DerefMut, Range};

use super::p4dra::{self, Proof};
use super::verifier::Verifier;
use crate::frame::{self, Frame, Mac, Network, Transport};
use crate::gateway::{Gateway, HandledFrame, reverse_if_reply};
use crate::time::Now;
use crate::verdict::{Disposition, Verdict};

/// `p4dra-classic` as a gateway serves it.
#[derive(Debug)]
pub struct P4dra {
    /// Ethernet type, untagged or behind one or two VLAN tags.
    pub ether_type: u16,
    /// The destination of replies.
    pub controller: Mac,
    /// Provers and rounds.
    pub verifier: p4dra::verifier::Verifier,
}

/// A gateway that serves published protocols (insecure; for measurement only). All other operations are those of the
/// gateway of LAP/1.
#[derive(Debug)]
pub struct PublishedGateway {
    gateway: Gateway,
    classic: Option<(u16, Verifier)>,
    p4dra: Option<P4dra>,
}

/// The result of handling a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublishedFrame {
    /// The verdict.
    pub verdict: Verdict,
    /// As [`HandledFrame::frame`].
    pub frame: Range<usize>,
    /// For [`Verdict::ReplyP4draVerified`]: the bytes that follow the frame.
    pub trailer: Option<Proof>,
}

impl From<Gateway> for PublishedGateway {
    /// A gateway that does not serve a published protocol yet.
    fn from(gateway: Gateway) -> Self {
        Self {
            gateway,
            classic: None,
            p4dra: None,
        }
    }
}

impl Deref for PublishedGateway {
    type Target = Gateway;

    fn deref(&self) -> &Gateway {
        &self.gateway
    }
}

impl DerefMut for PublishedGateway {
    fn deref_mut(&mut self) -> &mut Gateway {
        &mut self.gateway
    }
}

impl PublishedGateway {
    /// Serves `classic-iot` or `classic-uav` on this UDP port.
    pub fn serve_classic(&mut self, port: u16, verifier: Verifier) {
        self.classic = Some((port, verifier));
    }

    /// Serves `p4dra-classic`.
    pub fn serve_p4dra(&mut self, profile: P4dra) {
        self.p4dra = Some(profile);
    }

    /// `p4dra-classic`, if it is served.
    pub fn p4dra(&mut self) -> Option<&mut P4dra> {
        self.p4dra.as_mut()
    }

    /// As [`Gateway::handle`]. For [`Verdict::ReplyP4draVerified`], the frame has become the start of a longer frame,
    /// completed by [`PublishedFrame::trailer`].
    pub fn handle(&mut self, now: Now, ingress: u32, frame: &mut [u8]) -> PublishedFrame {
        let parsed = frame::parse(frame).ok();
        let published = parsed.and_then(|parsed| {
            self.handle_classic_frame(frame, &parsed)
                .map(|verdict| (verdict, None))
                .or_else(|| self.handle_p4dra_frame(frame, &parsed))
        });
        if let Some((verdict, trailer)) = published {
            return PublishedFrame {
                verdict: self.gateway.count(verdict),
                frame: 0..frame.len(),
                trailer,
            };
        }
        let HandledFrame { verdict, frame } = self.gateway.handle(now, ingress, frame);
        PublishedFrame {
            verdict,
            frame,
            trailer: None,
        }
    }

    /// Handles a datagram to the port of the profile.
    fn handle_classic_frame(&mut self, bytes: &mut [u8], parsed: &Frame) -> Option<Verdict> {
        let (port, verifier) = self.classic.as_mut()?;
        let Network::Ip(ip) = &parsed.network else {
            return None;
        };
        if !self.gateway.is_local(parsed, ip) {
            return None;
        }
        match &ip.transport {
            Transport::UdpLength(to) if to == port => Some(Verdict::DropTruncated),
            Transport::Udp(udp) if udp.dst_port == *port => {
                if !parsed.is_answerable(ip) {
                    return Some(Verdict::DropUnanswerable);
                }
                let verdict = verifier.handle(bytes.get_mut(udp.payload())?);
                Some(reverse_if_reply(bytes, parsed, verdict))
            }
            _ => None,
        }
    }

    /// Handles a frame with the Ethernet type of `p4dra-classic`.
    fn handle_p4dra_frame(&mut self, bytes: &mut [u8], parsed: &Frame) -> Option<(Verdict, Option<Proof>)> {
        let profile = self.p4dra.as_mut()?;
        if !self.gateway.is_addressed_to_gateway(parsed)
            || parsed.network != Network::Other(profile.ether_type)
        {
            return None;
        }
        if frame::is_group(&parsed.dst_mac) || frame::is_group(&parsed.src_mac) {
            return Some((Verdict::DropUnanswerable, None));
        }
        let (verdict, trailer) = profile.verifier.handle(bytes.get_mut(parsed.network_at..)?);
        if verdict.disposition() == Disposition::Reply {
            let (to, rest) = bytes.split_first_chunk_mut::<6>()?;
            *to = profile.controller;
            *rest.first_chunk_mut()? = parsed.dst_mac;
        }
        Some((verdict, trailer))
    }
}
