//! From a frame to a verdict: frames for the gateway, and frames that pass the gate.

use super::bindings::BindingKey;
use super::gate_exemptions::{self, FrameDirection};
use super::{Gate, Gateway, HandledFrame};
use crate::frame::{self, Frame, Ip, Mac, Network, Transport, Truncated, header};
use crate::time::Now;
use crate::verdict::{Disposition, Verdict};

/// The sender of a frame, as the gate identifies it.
struct Sender {
    ingress: u32,
    vlans: [u16; 2],
    mac: Mac,
}

impl Gateway {
    /// Handles an Ethernet frame received on interface `ingress`.
    ///
    /// If the disposition of the verdict is a reply, the frame has become the reply, of the same length, to be sent
    /// on the same interface. For [`Verdict::PassData`] the frame has become shorter, at [`HandledFrame::frame`] (call
    /// [`Gateway::handle`]). Otherwise the frame is unchanged.
    pub fn handle_frame(&mut self, now: Now, ingress: u32, frame: &mut [u8]) -> Verdict {
        self.handle(now, ingress, frame).verdict
    }

    /// Like [`Gateway::handle_frame`]; also returns the position of the resulting frame.
    pub fn handle(&mut self, now: Now, ingress: u32, frame: &mut [u8]) -> HandledFrame {
        let data = self.handle_sealed_frame(now, frame);
        let result = data.unwrap_or_else(|| HandledFrame {
            verdict: self.decide(now, ingress, frame),
            frame: 0..frame.len(),
        });
        self.count(result.verdict);
        result
    }

    fn decide(&mut self, now: Now, ingress: u32, bytes: &mut [u8]) -> Verdict {
        let parsed = match frame::parse(bytes) {
            Ok(parsed) => parsed,
            Err(Truncated) => {
                return match self.config.gate {
                    Gate::Off => Verdict::PassForeign,
                    Gate::Bound | Gate::Sealed => Verdict::DropTruncated,
                };
            }
        };
        if let Some((ip, udp)) = parsed.datagram().filter(|(ip, _)| self.is_local(&parsed, ip)) {
            if self.is_for_gateway(&parsed, &ip, udp.dst_port) && !parsed.is_answerable(&ip) {
                return Verdict::DropUnanswerable;
            }
            if udp.dst_port == self.config.lap_port {
                return self.handle_lap_frame(now, ingress, bytes, &parsed);
            }
        }
        match self.config.gate {
            Gate::Off => self.pass_gate_off(&parsed),
            Gate::Bound | Gate::Sealed => {
                let verdict = self.check_gate(now, ingress, bytes, &parsed);
                self.count_dropped(&parsed, verdict)
            }
        }
    }

    pub(crate) fn is_local(&self, parsed: &Frame, ip: &Ip) -> bool {
        self.config.local_addresses.contains(&ip.dst) && self.is_addressed_to_gateway(parsed)
    }

    /// Whether the frame is addressed to this station by its MAC address, or to a group. A reply to a frame for
    /// another station would take over that station's address on the link.
    pub(crate) fn is_addressed_to_gateway(&self, parsed: &Frame) -> bool {
        let own_macs = self.config.own_macs.as_ref();
        frame::is_group(&parsed.dst_mac) || own_macs.is_none_or(|own| own.contains(&parsed.dst_mac))
    }

    fn is_for_gateway(&self, parsed: &Frame, ip: &Ip, port: u16) -> bool {
        self.is_local(parsed, ip) && port == self.config.lap_port
    }

    fn handle_lap_frame(&mut self, now: Now, ingress: u32, bytes: &mut [u8], parsed: &Frame) -> Verdict {
        let (Some((_, udp)), Some(meta)) = (parsed.datagram(), parsed.meta(ingress)) else {
            return Verdict::DropTruncated;
        };
        let Some(payload) = bytes.get_mut(udp.payload()) else {
            return Verdict::DropTruncated;
        };
        let verdict = self.handle_lap(now, &meta, payload);
        reverse_if_reply(bytes, parsed, verdict)
    }

    /// The verdict without a gate: everything passes except broken frames for the gateway. Unparsed frames for the
    /// gateway are counted separately.
    fn pass_gate_off(&self, parsed: &Frame) -> Verdict {
        let Network::Ip(ip) = &parsed.network else {
            return Verdict::PassForeign;
        };
        match ip.transport {
            Transport::UdpLength(port) if self.is_for_gateway(parsed, ip, port) => Verdict::DropTruncated,
            Transport::Fragment | Transport::Extension if self.is_local(parsed, ip) => Verdict::PassUnparsed,
            _ => Verdict::PassForeign,
        }
    }

    /// The verdict of a gate: exempt frames pass, and at a bound gate, frames of senders with a live BOUND session.
    /// Frames that devices must not send never pass.
    fn check_gate(&self, now: Now, ingress: u32, bytes: &[u8], parsed: &Frame) -> Verdict {
        match &parsed.network {
            Network::Other(kind) if is_unparsed_tag(*kind) => return Verdict::DropGateVlan,
            Network::Other(_) | Network::Arp => {}
            Network::Ip(ip) => match ip.transport {
                Transport::UdpLength(_) => return Verdict::DropTruncated,
                Transport::Fragment => return Verdict::DropGateFragment,
                Transport::Extension => return Verdict::DropGateExtension,
                _ => {}
            },
        }
        if gate_exemptions::is_exempt(&self.config, FrameDirection::Up, bytes, parsed) {
            return Verdict::PassAlways;
        }
        if gate_exemptions::is_infrastructure_frame(bytes, parsed) {
            return Verdict::DropGateRole;
        }
        let port = parsed.datagram().map(|(_, udp)| udp.dst_port);
        if port == Some(self.config.lap_port) {
            return Verdict::DropGatePort;
        }
        if self.config.gate == Gate::Sealed {
            return Verdict::DropGate;
        }
        let sender = Sender {
            ingress,
            vlans: parsed.vlans,
            mac: parsed.src_mac,
        };
        self.check_sender(now, &sender)
    }

    /// Counts a dropped non-IP frame by its Ethernet type. Returns the verdict, for such a frame
    /// [`Verdict::DropGateType`] in place of [`Verdict::DropGate`].
    fn count_dropped(&mut self, parsed: &Frame, verdict: Verdict) -> Verdict {
        let ether_type = match parsed.network {
            Network::Ip(_) => return verdict,
            Network::Arp => header::ETHER_ARP,
            Network::Other(ether_type) => ether_type,
        };
        if verdict.disposition() == Disposition::Drop {
            self.dropped.count(ether_type);
        }
        match verdict {
            Verdict::DropGate => Verdict::DropGateType,
            other => other,
        }
    }

    /// The verdict on a sender: the frame passes if a live BOUND session covers the sender. If only an expired session
    /// covers the sender, the frame has a drop reason of its own.
    fn check_sender(&self, now: Now, sender: &Sender) -> Verdict {
        let key = BindingKey::Mac(sender.ingress, sender.vlans, sender.mac);
        let sessions = self
            .bindings
            .claimants(key)
            .filter_map(|device| self.lines.get(&device))
            .filter(|line| {
                line.session_id.is_some()
                    && !line.commit.is_revoked()
                    && !line.commit.is_busy()
                    && key.is_held_by(line)
            });
        let mut verdict = Verdict::DropGate;
        for line in sessions {
            if !line.is_session_expired(now.boot()) {
                return Verdict::PassSession;
            }
            verdict = Verdict::DropSessionExpired;
        }
        verdict
    }
}

/// Whether the type is of a tag that is not parsed: a third VLAN tag, or a tag by which a bridge would forward the
/// frame elsewhere.
fn is_unparsed_tag(ether_type: u16) -> bool {
    [header::ETHER_VLAN, header::ETHER_QINQ].contains(&ether_type) || header::ETHER_TAGS.contains(&ether_type)
}

/// Reverses the frame if the verdict is a reply.
pub(crate) fn reverse_if_reply(bytes: &mut [u8], parsed: &Frame, verdict: Verdict) -> Verdict {
    if verdict.disposition() != Disposition::Reply {
        return verdict;
    }
    frame::reverse_frame(bytes, parsed).map_or(Verdict::DropTruncated, |()| verdict)
}
