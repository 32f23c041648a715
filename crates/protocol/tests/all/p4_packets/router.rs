//! router.p4: forwarded and dropped frames.

use std::net::IpAddr;

use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;

use super::stf::Stf;

const CPU: u16 = 7;
const SENDER: [u8; 6] = [2, 0, 0, 0, 0, 1];
const ROUTER: [u8; 6] = [2, 0, 0, 0, 0xff, 1];

fn endpoint(mac: [u8; 6], ip: &str) -> Endpoint {
    Endpoint {
        mac,
        ip: ip.parse::<IpAddr>().unwrap(),
        port: 4000,
    }
}

/// A datagram on its way from one address to another.
fn frame(macs: [[u8; 6]; 2], from: &str, to: &str, ttl: u8) -> FrameBuilder {
    FrameBuilder::new(endpoint(macs[0], from), endpoint(macs[1], to)).ip_fields(0x10, 0x1234, ttl)
}

fn hex(mac: [u8; 6]) -> String {
    format!("0x{}", hex::encode(mac))
}

pub fn tests() -> Vec<Stf> {
    let mut stf = Stf::new("router", "forward");
    let port_mac = |port: u8| [2, 0, 0, 0, 0xaa, port];
    let next_hop = |port: u8| [2, 0, 0, 0, 0xbb, port];
    stf.comment("Routes: the longest prefix wins, independent of the order of additions.");
    for (prefix, port) in [("0x0a******", 2u8), ("0x0a01****", 3), ("0x0a010203", 4)] {
        let hop = hex(next_hop(port));
        stf.line(&format!(
            "add routes4 hdr.ipv4.dst:{prefix} forward4(port:{port}, next_hop:{hop})"
        ));
    }
    stf.line(&format!(
        "add routes4 hdr.ipv4.dst:0x0afffffe to_port(port:{CPU})"
    ));
    stf.line("add routes4 hdr.ipv4.dst:0x0a63**** drop()");
    let prefixes6 = [
        ("0xfd66****************************", 2u8),
        ("0xfd660001************************", 3),
        ("0xfd660001000000000000000000000009", 4),
    ];
    for (prefix, port) in prefixes6 {
        let hop = hex(next_hop(port));
        stf.line(&format!(
            "add routes6 hdr.ipv6.dst:{prefix} forward6(port:{port}, next_hop:{hop})"
        ));
    }
    stf.line(&format!(
        "add routes6 hdr.ipv6.dst:0xff02**************************** to_port(port:{CPU})"
    ));
    for port in 1..=4u8 {
        let mac = hex(port_mac(port));
        stf.line(&format!(
            "add ports standard.egress_port:{port} set_source(mac:{mac})"
        ));
    }
    stf.line(&format!(
        "add others hdr.ethernet.ether_type:0x0806 to_port(port:{CPU})"
    ));

    stf.comment("Forwarded: MAC addresses, TTL less one, checksum.");
    let v4 = ["10.2.0.1", "10.1.9.9", "10.1.2.3"];
    let v6 = ["fd66:2::1", "fd66:1::1", "fd66:1::9"];
    for (families, from) in [(v4, "192.0.2.1"), (v6, "fd00::1")] {
        for (to, port) in families.into_iter().zip([2u8, 3, 4]) {
            for (ttl, sent_ttl) in [(64, 63), (2, 1), (255, 254)] {
                let received = frame([SENDER, ROUTER], from, to, ttl);
                let sent = frame([port_mac(port), next_hop(port)], from, to, sent_ttl);
                stf.packet(1, &received.udp(b"payload of 21 bytes.."));
                stf.expect(port.into(), &sent.udp(b"payload of 21 bytes.."));
            }
        }
    }
    stf.comment("A checksum that wraps around, with padding after the packet.");
    for id in 0xb9d0..0xb9e0 {
        let received = frame([SENDER, ROUTER], "192.0.2.1", "10.1.2.3", 64).ip_fields(0, id, 64);
        let sent = frame([port_mac(4), next_hop(4)], "192.0.2.1", "10.1.2.3", 63).ip_fields(0, id, 63);
        stf.packet(1, &received.padding(&[0x55; 9]).udp(b"x"));
        stf.expect(4, &sent.padding(&[0x55; 9]).udp(b"x"));
    }

    stf.comment("To the control plane, untouched: ARP, own addresses, multicast.");
    let arp = frame([SENDER, [0xff; 6]], "192.0.2.1", "192.0.2.254", 64).arp_request();
    let own = frame([SENDER, ROUTER], "192.0.2.1", "10.255.255.254", 64).udp(b"ping");
    let solicited = frame(
        [SENDER, [0x33, 0x33, 0xff, 0, 0, 1]],
        "fd00::1",
        "ff02::1:ff00:1",
        255,
    )
    .neighbor_solicitation([0xfd; 16]);
    for frame in [&arp, &own, &solicited] {
        stf.packet(1, frame).expect(CPU, frame);
    }

    stf.comment("Dropped: no route, a route that drops, TTL 1 and 0, options, a wrong checksum, a truncated header, other types.");
    let valid = frame([SENDER, ROUTER], "192.0.2.1", "10.1.2.3", 64);
    let mut wrong = valid.udp(b"x");
    wrong[24] ^= 1;
    let truncated = &valid.udp(b"")[..30];
    let dropped = [
        frame([SENDER, ROUTER], "192.0.2.1", "11.0.0.1", 64).udp(b""),
        frame([SENDER, ROUTER], "192.0.2.1", "10.99.0.1", 64).udp(b""),
        frame([SENDER, ROUTER], "192.0.2.1", "10.1.2.3", 1).udp(b""),
        frame([SENDER, ROUTER], "192.0.2.1", "10.1.2.3", 0).udp(b""),
        frame([SENDER, ROUTER], "fd00::1", "fd66:1::9", 1).udp(b""),
        frame([SENDER, ROUTER], "fd00::1", "fd77::1", 64).udp(b""),
        valid.clone().options(&[7, 4, 0, 0]).udp(b""),
        wrong,
        truncated.to_vec(),
        valid.ethernet(0x88cc, &[0; 46]),
    ];
    for frame in &dropped {
        stf.packet(1, frame);
    }
    stf.comment("Dropped frames do not block others.");
    stf.packet(2, &valid.udp(b"last"));
    let sent = frame([port_mac(4), next_hop(4)], "192.0.2.1", "10.1.2.3", 63);
    stf.expect(4, &sent.udp(b"last"));
    vec![stf]
}
