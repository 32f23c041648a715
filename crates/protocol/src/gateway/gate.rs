//! From a frame to a verdict: what is for us, what the gate lets through.

use core::net::IpAddr;

use super::bindings::Key;
use super::{Gate, Gateway, Handled};
use crate::frame::{self, Frame, Ip, Mac, Network, Transport, Truncated, Udp};
use crate::time::Now;
use crate::verdict::{Disposition, Verdict};

/// ICMPv6 types of neighbour discovery that a device sends (RFC 4861): router solicitation, neighbour solicitation,
/// neighbour advertisement. Router advertisements and redirects are not a device's to send.
const NEIGHBOUR_DISCOVERY: [u8; 3] = [133, 135, 136];
/// UDP source and destination port of a DHCP client (RFC 2131).
const DHCP_V4: (u16, u16) = (68, 67);
/// UDP source and destination port of a DHCPv6 client (RFC 8415 7.2).
const DHCP_V6: (u16, u16) = (546, 547);

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
            Gate::Open | Gate::Sealed => self.gate(now, ingress, &parsed),
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

    /// Nothing passes but the list and, when the gate is open, senders with a live BOUND session.
    fn gate(&self, now: Now, ingress: u32, parsed: &Frame) -> Verdict {
        let transport = match &parsed.network {
            Network::Arp => return Verdict::PassAlways,
            Network::Other(_) => None,
            Network::Ip(ip) => Some((ip, ip.transport)),
        };
        match transport {
            Some((_, Transport::UdpLength(_))) => return Verdict::DropTruncated,
            Some((_, Transport::Fragment)) => return Verdict::DropGateFragment,
            Some((_, Transport::Extension)) => return Verdict::DropGateExtension,
            Some((_, Transport::Icmpv6(kind))) if NEIGHBOUR_DISCOVERY.contains(&kind) => {
                return Verdict::PassAlways;
            }
            Some((ip, Transport::Udp(udp))) if is_dhcp(ip, &udp) => return Verdict::PassAlways,
            Some((_, Transport::Udp(udp))) if udp.dst_port == self.config.lap_port => {
                return Verdict::DropGatePort;
            }
            _ if self.config.gate == Gate::Sealed => return Verdict::DropGate,
            _ => {}
        }
        let sender = Sender {
            ingress,
            vlans: parsed.vlans,
            mac: parsed.src_mac,
        };
        self.sender(now, &sender)
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

fn is_dhcp(ip: &Ip, udp: &Udp) -> bool {
    let ports = (udp.src_port, udp.dst_port);
    match ip.src {
        IpAddr::V4(_) => ports == DHCP_V4,
        IpAddr::V6(_) => ports == DHCP_V6,
    }
}

/// Turns the frame round when the verdict says that its payload is a reply now.
fn reply(bytes: &mut [u8], parsed: &Frame, verdict: Verdict) -> Verdict {
    if verdict.disposition() != Disposition::Reply {
        return verdict;
    }
    frame::turn_round(bytes, parsed).map_or(Verdict::DropTruncated, |()| verdict)
}
