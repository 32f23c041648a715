//! A gateway with two services behind it, in a network namespace of the calling thread's own, and what becomes there of a
//! datagram whose seal was taken off: it is sent on past the stack, or left to it (`lw_forward.h`).

use std::net::IpAddr;

use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::frame::{Mac, parse};

use super::{INGRESS, World};
use crate::support::device::{gateway_end, service_end};
use crate::support::netns::{ip, leave_namespace};
use crate::support::shape::Shape;

/// The least that IPv6 allows, so that frames that fit a page do not fit it.
const MTU: usize = 1280;

/// An interface of the services' side.
struct Way {
    ifindex: u32,
    mac: Mac,
    neighbour: Mac,
}

pub struct Forwarding {
    /// To [`service_end`], and to [`other_service`].
    ways: [Way; 2],
    /// Datagrams sent on past the stack, and left to it.
    pub sent: u64,
    pub left: u64,
}

/// Somebody behind the gateway's other interface.
pub fn other_service(v6: bool) -> Endpoint {
    at(v6, 78, 9)
}

/// Somebody whom no neighbour table knows; nobody that a route leads to.
pub fn nowhere(v6: bool) -> [Endpoint; 2] {
    [at(v6, 77, 10), at(v6, 79, 9)]
}

fn at(v6: bool, net: u8, host: u8) -> Endpoint {
    let ip = match v6 {
        // fd77:: and what follows it.
        true => IpAddr::from([0xfd77 + u16::from(net - 77), 0, 0, 0, 0, 0, 0, u16::from(host)]),
        false => IpAddr::from([10, net, 0, host]),
    };
    Endpoint {
        ip,
        ..service_end(v6)
    }
}

fn way(number: u8) -> Way {
    let (name, peer) = (format!("lw-way{number}"), format!("lw-peer{number}"));
    let way = Way {
        ifindex: 10 + u32::from(number),
        mac: [2, 0, 0, 0, 0xfe, number],
        neighbour: [2, 0, 0, 0, 0xff, number],
    };
    ip(&format!(
        "link add {name} index {} address {} mtu {MTU} type veth peer name {peer}",
        way.ifindex,
        written(way.mac)
    ));
    ip(&format!("link set {peer} up"));
    ip(&format!("link set {name} up"));
    for v6 in [false, true] {
        let (own, service) = (at(v6, 77 + number, 254).ip, at(v6, 77 + number, 9).ip);
        let (prefix, nodad) = if v6 { (64, "nodad") } else { (24, "") };
        ip(&format!("address add {own}/{prefix} dev {name} {nodad}"));
        let neighbour = written(way.neighbour);
        ip(&format!(
            "neighbour add {service} lladdr {neighbour} dev {name} nud permanent"
        ));
    }
    way
}

fn written(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

impl World {
    /// A sealed gate that forwards, once its settings say where to; `None`, with the reason printed, where that is not
    /// allowed. The calling thread is in a network namespace of its own afterwards.
    pub fn forwarding() -> Option<Self> {
        if !leave_namespace() {
            return None;
        }
        // Test runs come in by the loopback interface.
        ip(&format!(
            "link set lo up address {}",
            written(gateway_end(false).mac)
        ));
        for (family, v6) in [("ipv4", false), ("ipv6", true)] {
            let switch = format!("/proc/sys/net/{family}/conf/lo/forwarding");
            std::fs::write(switch, "1").unwrap();
            ip(&format!("address add {} dev lo", gateway_end(v6).ip));
        }
        let ways = [way(0), way(1)];
        let mut world = Self::new(Shape::SEALED);
        world.xdp.as_mut()?.xdp.attach(INGRESS).unwrap();
        world.forwarding = Some(Forwarding {
            ways,
            sent: 0,
            left: 0,
        });
        Some(world)
    }

    /// The interfaces that may be forwarded to; none where there is no such network.
    pub fn ways(&self) -> Vec<u32> {
        let ways = self.forwarding.iter().flat_map(|forwarding| &forwarding.ways);
        ways.map(|way| way.ifindex).collect()
    }

    /// How many datagrams were sent on past the stack, and how many were left to it.
    pub fn forwarded(&self) -> [u64; 2] {
        self.forwarding
            .as_ref()
            .map_or([0; 2], |forwarding| [forwarding.sent, forwarding.left])
    }
}

impl Forwarding {
    /// The frame that leaves by an interface of `allowed`, of one whose seal was taken off; `None`: it is left to the stack.
    pub fn forwarded(&mut self, allowed: &[u32], opened: &[u8]) -> Option<Vec<u8>> {
        let frame = self.sent_on(allowed, opened);
        match frame {
            Some(_) => self.sent += 1,
            None => self.left += 1,
        }
        frame
    }

    fn sent_on(&self, allowed: &[u32], opened: &[u8]) -> Option<Vec<u8>> {
        let parsed = parse(opened).unwrap();
        let (ip, _) = parsed.datagram().unwrap();
        let services = [service_end, other_service];
        let number = services
            .iter()
            .position(|service| service(ip.dst.is_ipv6()).ip == ip.dst)?;
        let way = &self.ways[number];
        let is_plain = parsed.network_at == 14 && parsed.dst_mac == gateway_end(false).mac;
        let fits = opened.len() - ip.at <= MTU;
        let lives_at = ip.at + if ip.dst.is_ipv6() { 7 } else { 8 };
        let lives = opened[lives_at];
        if !is_plain || !fits || lives <= 1 || !allowed.contains(&way.ifindex) {
            return None;
        }
        let mut out = opened.to_vec();
        out[..6].copy_from_slice(&way.neighbour);
        out[6..12].copy_from_slice(&way.mac);
        out[lives_at] = lives - 1;
        if ip.dst.is_ipv4() {
            let word = |of: &[u8], at: usize| u16::from_be_bytes([of[at], of[at + 1]]);
            let (sum, before, after) = (
                word(opened, ip.at + 10),
                word(opened, lives_at),
                word(&out, lives_at),
            );
            out[ip.at + 10..ip.at + 12].copy_from_slice(&updated(sum, before, after).to_be_bytes());
        }
        Some(out)
    }
}

/// A checksum whose packet has one word changed: RFC 1624, equation 3.
fn updated(sum: u16, before: u16, after: u16) -> u16 {
    let mut wide = u32::from(!sum) + u32::from(!before) + u32::from(after);
    while wide > 0xffff {
        wide = (wide & 0xffff) + (wide >> 16);
    }
    !(wide as u16)
}
