//! From a frame to a verdict: what is for us, what the gate lets through.

use super::always::{self, Way};
use super::bindings::Key;
use super::{Gate, Gateway, Handled};
use crate::frame::{self, Frame, Ip, Mac, Network, Transport, Truncated, header};
use crate::time::Now;
use crate::verdict::{Disposition, Verdict};

/// The sender of a frame, as the gate knows it.
struct Sender {
    ingress: u32,
    vlans: [u16; 2],
    mac: Mac,
}

impl Gateway {
    /// Handles an Ethernet frame that came in on interface `ingress`.
    ///
    /// When the verdict's disposition is a reply, the frame has become the reply, of the same length, to be sent out
    /// on the same interface. When it is [`Verdict::PassData`] the frame has become a shorter one, which lies where
    /// [`Handled::frame`] says, and when it is [`Verdict::ReplyP4draVerified`] the beginning of a longer one, which
    /// [`Handled::behind`] completes (call [`Gateway::handle`] for them). Otherwise it is unchanged.
    pub fn handle_frame(&mut self, now: Now, ingress: u32, frame: &mut [u8]) -> Verdict {
        self.handle(now, ingress, frame).verdict
    }

    /// As [`Gateway::handle_frame`], with the place of what the frame has become.
    pub fn handle(&mut self, now: Now, ingress: u32, frame: &mut [u8]) -> Handled {
        let special = self.sealed_frame(now, frame).or_else(|| self.p4dra_frame(frame));
        let handled = special.unwrap_or_else(|| Handled {
            verdict: self.judge(now, ingress, frame),
            frame: 0..frame.len(),
            behind: None,
        });
        self.count(handled.verdict);
        handled
    }

    fn judge(&mut self, now: Now, ingress: u32, bytes: &mut [u8]) -> Verdict {
        let parsed = match frame::parse(bytes) {
            Ok(parsed) => parsed,
            Err(Truncated) => {
                return match self.config.gate {
                    Gate::Off => Verdict::PassForeign,
                    Gate::Open | Gate::Sealed => Verdict::DropTruncated,
                };
            }
        };
        if let Some((ip, udp)) = parsed.datagram().filter(|(ip, _)| self.is_local(&parsed, ip)) {
            if self.is_ours(&parsed, &ip, udp.dst_port) && !parsed.is_answerable(&ip) {
                return Verdict::DropUnanswerable;
            }
            if udp.dst_port == self.config.lap_port {
                return self.lap_frame(now, ingress, bytes, &parsed);
            }
            if Some(udp.dst_port) == self.classic_port() {
                return self.classic_frame(bytes, &parsed);
            }
        }
        match self.config.gate {
            Gate::Off => self.gate_off(&parsed),
            Gate::Open | Gate::Sealed => {
                let verdict = self.gate(now, ingress, bytes, &parsed);
                self.note_dropped(&parsed, verdict)
            }
        }
    }

    fn is_local(&self, parsed: &Frame, ip: &Ip) -> bool {
        self.config.local.contains(&ip.dst) && self.is_addressed(parsed)
    }

    /// Whether the frame is for this station, by its MAC address, or for a group. A reply to any other would take that
    /// station's address on the link.
    pub(super) fn is_addressed(&self, parsed: &Frame) -> bool {
        let own_macs = self.config.own_macs.as_ref();
        frame::is_group(&parsed.dst_mac) || own_macs.is_none_or(|own| own.contains(&parsed.dst_mac))
    }

    fn classic_port(&self) -> Option<u16> {
        self.classic.as_ref().map(|(port, _)| *port)
    }

    fn is_ours(&self, parsed: &Frame, ip: &Ip, port: u16) -> bool {
        self.is_local(parsed, ip) && (port == self.config.lap_port || Some(port) == self.classic_port())
    }

    fn lap_frame(&mut self, now: Now, ingress: u32, bytes: &mut [u8], parsed: &Frame) -> Verdict {
        let (Some((_, udp)), Some(meta)) = (parsed.datagram(), parsed.meta(ingress)) else {
            return Verdict::DropTruncated;
        };
        let Some(payload) = bytes.get_mut(udp.payload()) else {
            return Verdict::DropTruncated;
        };
        let verdict = self.lap(now, &meta, payload);
        reply(bytes, parsed, verdict)
    }

    fn classic_frame(&mut self, bytes: &mut [u8], parsed: &Frame) -> Verdict {
        let (Some((_, udp)), Some((_, verifier))) = (parsed.datagram(), &mut self.classic) else {
            return Verdict::DropTruncated;
        };
        let Some(payload) = bytes.get_mut(udp.payload()) else {
            return Verdict::DropTruncated;
        };
        let verdict = verifier.handle(payload);
        reply(bytes, parsed, verdict)
    }

    /// Everything passes but what is ours and broken; what is ours and unparsed is counted apart.
    fn gate_off(&self, parsed: &Frame) -> Verdict {
        let Network::Ip(ip) = &parsed.network else {
            return Verdict::PassForeign;
        };
        match ip.transport {
            Transport::UdpLength(port) if self.is_ours(parsed, ip, port) => Verdict::DropTruncated,
            Transport::Fragment | Transport::Extension if self.is_local(parsed, ip) => Verdict::PassUnparsed,
            _ => Verdict::PassForeign,
        }
    }

    /// Nothing passes but the list and, when the gate is open, senders with a live BOUND session. What no device may send never
    /// passes.
    fn gate(&self, now: Now, ingress: u32, bytes: &[u8], parsed: &Frame) -> Verdict {
        match &parsed.network {
            Network::Other(kind) if is_tag(*kind) => return Verdict::DropGateTag,
            Network::Other(_) | Network::Arp => {}
            Network::Ip(ip) => match ip.transport {
                Transport::UdpLength(_) => return Verdict::DropTruncated,
                Transport::Fragment => return Verdict::DropGateFragment,
                Transport::Extension => return Verdict::DropGateExtension,
                _ => {}
            },
        }
        if always::passes(&self.config, Way::Up, bytes, parsed) {
            return Verdict::PassAlways;
        }
        if always::is_no_device_s(bytes, parsed) {
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
        self.sender(now, &sender)
    }

    /// Counts what is not IP and was dropped, and tells it apart from what is.
    fn note_dropped(&mut self, parsed: &Frame, verdict: Verdict) -> Verdict {
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

    /// Whether a live BOUND session covers that sender. A session whose lease is over is told apart for the
    /// counters, unless another one covers the sender.
    fn sender(&self, now: Now, sender: &Sender) -> Verdict {
        let key = Key::Mac(sender.ingress, sender.vlans, sender.mac);
        let sessions = self
            .bindings
            .claimants(key)
            .filter_map(|device| self.lines.get(&device))
            .filter(|line| {
                line.session_id.is_some()
                    && !line.commit.is_revoked()
                    && !line.commit.is_busy()
                    && key.is_carried_by(line)
            });
        let mut verdict = Verdict::DropGate;
        for line in sessions {
            if !line.lease_is_over(now.boot()) {
                return Verdict::PassSession;
            }
            verdict = Verdict::DropGateLease;
        }
        verdict
    }
}

/// A tag that is not parsed: a third one, or of a kind by which some bridge would take the frame elsewhere.
fn is_tag(ether_type: u16) -> bool {
    [header::ETHER_VLAN, header::ETHER_QINQ].contains(&ether_type) || header::ETHER_TAGS.contains(&ether_type)
}

/// Turns the frame round when the verdict says that its payload is a reply now.
fn reply(bytes: &mut [u8], parsed: &Frame, verdict: Verdict) -> Verdict {
    if verdict.disposition() != Disposition::Reply {
        return verdict;
    }
    frame::turn_round(bytes, parsed).map_or(Verdict::DropTruncated, |()| verdict)
}
