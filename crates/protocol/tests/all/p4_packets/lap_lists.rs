//! lap.p4: exempt frames, frames that no device may send, group reports, and tags (LAP/1 1.4.17).

use std::net::IpAddr;

use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::gateway::{ControlProtocol, Gate, GatewayConfig};
use linewarden_protocol::ids::Mode;
use linewarden_protocol::verdict::Verdict;

use super::lap::{FRESH, device, install, new_tester_with, refresh, set_gate};
use super::packet_tester::{PacketTester, device_endpoint, gateway_endpoint, is_varied, service_endpoint};
use super::stf::Stf;

const GROUP_MAC: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
const LINK_LOCAL: &str = "fe80::1:1";
const SOLICITED: &str = "ff02::1:ff00:9";
const SERVER: &str = "10.77.0.9";
const SERVER6: &str = "fd77::9";
const ROUTER_ALERT: [u8; 4] = [0x94, 4, 0, 0];
const ROUTER_ALERT6: [u8; 6] = [5, 2, 0, 0, 1, 0];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Builds frames from one MAC address to another. Frames to an IP group have the MAC address of the group instead.
#[derive(Clone, Copy)]
struct MacPair {
    from: [u8; 6],
    to: [u8; 6],
}

impl MacPair {
    fn between(self, from: &str, to: &str) -> FrameBuilder {
        self.ports(from, to, (9, 9))
    }

    fn ports(self, from: &str, to: &str, (source, destination): (u16, u16)) -> FrameBuilder {
        let end = |ip, mac, port| Endpoint { ip, mac, port };
        let mac = match ip(to) {
            IpAddr::V6(to) if to.is_multicast() => GROUP_MAC,
            IpAddr::V4(to) if to.is_broadcast() => [0xff; 6],
            _ => self.to,
        };
        FrameBuilder::new(end(ip(from), self.from, source), end(ip(to), mac, destination))
    }

    fn discovery(self, from: &str, to: &str, kind: u8, body: &[u8]) -> Vec<u8> {
        self.between(from, to).ip_fields(0, 0, 255).icmpv6(kind, body)
    }

    /// Returns messages of each type, from and to each kind of address.
    fn all_address_pairs(self) -> Vec<Vec<u8>> {
        let sources = [LINK_LOCAL, "fd66::1:1", "::", "ff02::1", "fd66::fe", "fd77::1"];
        let destinations = [
            "ff02::1",
            "ff02::2",
            SOLICITED,
            "fe80::9",
            "fd66::99",
            "fd66:9::9",
            "fd77::9",
            "fd66::fe",
        ];
        let mut frames = Vec::new();
        for kind in [133, 134, 135, 136, 137] {
            for (source, destination) in sources
                .iter()
                .flat_map(|source| destinations.map(|destination| (source, destination)))
            {
                frames.push(self.discovery(source, destination, kind, &body(kind, &[])));
            }
        }
        frames
    }

    /// Returns valid and invalid variants of a message of each type.
    fn all_formats(self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        for kind in [133, 134, 135, 136] {
            let to = if kind == 135 { SOLICITED } else { "fe80::9" };
            let with = |options: &[u8]| self.discovery(LINK_LOCAL, to, kind, &body(kind, options));
            // Option lengths are in units of 8 bytes.
            let options_of = |lengths: &[u8]| -> Vec<u8> {
                let option = |length: &u8| {
                    let mut option = vec![0x5a; usize::from(*length).max(1) * 8];
                    option[1] = *length;
                    option
                };
                lengths.iter().flat_map(option).collect()
            };
            for options in [
                &[1][..],
                &[1; 8],
                &[1; 9],
                &[8],
                &[9],
                &[3, 1, 2],
                &[0],
                &[1, 0],
                &[2, 0, 1],
            ] {
                frames.push(with(&options_of(options)));
            }
            let too_long = [options_of(&[1]), vec![14, 2, 0, 0, 0, 0, 0, 0]].concat();
            let valid = with(&options_of(&[1]));
            frames.extend([with(&too_long), with(&[1]), with(&[1; 12])]);
            frames.extend([0, 1, 17, 18, 19, 60].map(|bytes| [&valid[..], &vec![0; bytes]].concat()));
            frames.extend([254, 64].map(|hops| changed(&valid, 21, hops)));
            frames.push(changed(&valid, 55, 1));
            frames.extend(
                [1, 4].map(|removed| self.discovery(LINK_LOCAL, to, kind, &body(kind, &[])[removed..])),
            );
            frames.push(self.discovery(LINK_LOCAL, to, kind, &[body(kind, &[]), vec![0x5a; 900]].concat()));
        }
        let about_a_group = [&[0; 4][..], &[0xff; 16]].concat();
        frames.push(self.discovery(LINK_LOCAL, SOLICITED, 135, &about_a_group));
        frames.push(self.between(LINK_LOCAL, SOLICITED).ip(58, &[135]));
        frames.extend(
            [128, 130, 131, 143, 255].map(|kind| self.discovery(LINK_LOCAL, "ff02::1", kind, &[0; 20])),
        );
        frames
    }

    fn dhcp(self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let ends = [
            ("0.0.0.0", "255.255.255.255"),
            ("10.66.0.1", SERVER),
            ("10.66.0.1", "10.77.0.1"),
            (SERVER, "10.66.0.1"),
            ("10.77.0.1", "255.255.255.255"),
            ("10.66.0.254", "10.66.0.1"),
            (LINK_LOCAL, "ff02::1:2"),
            ("fd66::1:1", "ff02::1:2"),
            (LINK_LOCAL, "ff05::1:3"),
            (LINK_LOCAL, "fe80::9"),
            ("fd66::1:1", SERVER6),
            (SERVER6, "fd66::1:1"),
            ("fd66::fe", "fe80::9"),
            (LINK_LOCAL, "::ffff:10.77.0.9"),
            ("::ffff:10.77.0.9", LINK_LOCAL),
        ];
        for (from, to) in ends {
            for ports in [
                (68, 67),
                (67, 68),
                (546, 547),
                (547, 546),
                (68, 68),
                (9, 68),
                (9, 546),
                (66, 69),
            ] {
                frames.push(self.ports(from, to, ports).udp(&[7; 20]));
            }
        }
        frames.extend([18, 19].map(|bytes| {
            let builder = self.ports("0.0.0.0", "255.255.255.255", (68, 67));
            builder.padding(&vec![0; bytes]).udp(&[7; 20])
        }));
        frames
    }

    fn arp(self) -> Vec<Vec<u8>> {
        let request = self.between("10.66.0.1", "10.66.0.9").arp_request();
        let bare = request[..42].to_vec();
        let mut frames = vec![bare.clone(), bare[..41].to_vec(), bare[..20].to_vec()];
        frames.extend((14..22).map(|at| changed(&bare, at, bare[at] ^ 2)));
        frames.push(changed(&bare, 21, 2));
        frames.extend([18, 19].map(|bytes| [&bare[..], &vec![0; bytes]].concat()));
        frames
    }

    /// Returns messages of IPv4 routers, and other messages of the same protocols.
    fn messages4(self) -> Vec<Vec<u8>> {
        let types = [(1, 5), (1, 9), (1, 8), (1, 0), (2, 0x11), (2, 0x16), (6, 5)];
        let between = || self.between("10.66.0.1", "10.66.0.9");
        let mut frames: Vec<_> = types
            .iter()
            .map(|(protocol, kind)| between().ip(*protocol, &[*kind, 0, 0, 0, 1, 2, 3, 4]))
            .collect();
        frames.extend([1, 2].map(|protocol| between().ip(protocol, &[])));
        frames.extend([1, 2].map(|protocol| between().padding(&[5; 20]).ip(protocol, &[])));
        frames.extend([1, 2].map(|protocol| between().ip(protocol, &[9])));
        frames
    }

    /// Returns frames of each control protocol: to each of its addresses, of another type, and to one host.
    fn control(self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        for (mac, ether_type) in ControlProtocol::ALL
            .iter()
            .flat_map(|protocol| protocol.addresses())
        {
            let ether_type = if *ether_type == 0 { 0x05ff } else { *ether_type };
            let to = MacPair { to: *mac, ..self };
            let frame = to
                .between("10.66.0.1", "10.66.0.9")
                .ethernet(ether_type, &[0x42; 46]);
            frames.extend([changed(&frame, 13, 0x99), changed(&frame, 0, 2)]);
            frames.push(
                to.between("10.66.0.1", "10.66.0.9")
                    .vlan(5)
                    .ethernet(ether_type, &[2; 46]),
            );
            frames.push(frame);
        }
        frames
    }

    fn reports(self) -> Vec<Vec<u8>> {
        let igmp = |options: &[u8], ttl, to: &str, message: &[u8]| {
            let builder = self.between("10.66.0.1", to).options(options);
            builder.ip_fields(0, 0, ttl).ip(2, message)
        };
        let mld = |from: &str, to: &str, hops, options: [u8; 6], message: &[u8]| {
            let body = [&[58, 0][..], &options, message].concat();
            self.between(from, to).ip_fields(0, 0, hops).ip(0, &body)
        };
        let mut frames = Vec::new();
        for kind in [0x11, 0x12, 0x13, 0x16, 0x17, 0x22] {
            frames.push(igmp(
                &ROUTER_ALERT,
                1,
                "239.1.1.1",
                &[kind, 0, 0, 0, 239, 1, 1, 1],
            ));
        }
        let report = [0x16, 0, 0, 0, 239, 1, 1, 1];
        frames.extend([
            igmp(&ROUTER_ALERT, 2, "239.1.1.1", &report),
            igmp(&ROUTER_ALERT, 1, "10.77.0.1", &report),
            igmp(&ROUTER_ALERT, 1, "239.1.1.1", &report[..7]),
            igmp(&[7, 4, 4, 0], 1, "239.1.1.1", &report),
            igmp(&[0x94, 4, 0, 0, 1, 1, 1, 1], 1, "239.1.1.1", &report),
            self.between("10.66.0.1", "239.1.1.1")
                .options(&ROUTER_ALERT)
                .udp(b"x"),
        ]);
        for kind in [130, 131, 132, 135, 143] {
            for bytes in [7, 8, 23, 24, 40] {
                let mut message = vec![0; bytes];
                message[0] = kind;
                frames.push(mld(LINK_LOCAL, "ff02::16", 1, ROUTER_ALERT6, &message));
            }
        }
        let mut message = [0; 24];
        message[0] = 143;
        for options in [
            [5, 2, 0, 0, 0, 0],
            [1, 0, 5, 2, 0, 0],
            [0, 0, 5, 2, 0, 0],
            [5, 2, 0, 1, 1, 0],
            [0x37, 4, 0, 0, 0, 0],
        ] {
            frames.push(mld(LINK_LOCAL, "ff02::16", 1, options, &message));
        }
        frames.extend([
            mld("::", "ff02::16", 1, ROUTER_ALERT6, &message),
            mld("fd66::1:1", "ff02::16", 1, ROUTER_ALERT6, &message),
            mld(LINK_LOCAL, "fe80::9", 1, ROUTER_ALERT6, &message),
            mld(LINK_LOCAL, "ff02::16", 2, ROUTER_ALERT6, &message),
            mld(LINK_LOCAL, "ff02::16", 1, ROUTER_ALERT6, &changed(&message, 1, 1)),
            self.between(LINK_LOCAL, "ff02::16")
                .ip_fields(0, 0, 1)
                .ip(0, &[58, 0, 5, 2]),
        ]);
        frames
    }

    /// Frames whose verdicts depend on the operator's lists.
    fn listed_frames(self) -> Vec<Vec<u8>> {
        [self.dhcp(), self.control()].concat()
    }

    /// Frames whose verdicts depend on a session.
    fn in_session(self) -> Vec<Vec<u8>> {
        let types = (128..=137).map(|kind| self.discovery(LINK_LOCAL, "fe80::9", kind, &[0; 20]));
        [
            types.collect(),
            self.dhcp(),
            self.arp(),
            self.messages4(),
            self.control(),
            self.reports(),
        ]
        .concat()
    }

    fn all(self) -> Vec<Vec<u8>> {
        [self.all_address_pairs(), self.all_formats(), self.in_session()].concat()
    }
}

/// The bytes after the checksum of a message without options, and options.
fn body(kind: u8, options: &[u8]) -> Vec<u8> {
    let fixed = match kind {
        133 => 4,
        134 => 12,
        _ => 20,
    };
    [&vec![0; fixed], options].concat()
}

fn changed(frame: &[u8], at: usize, value: u8) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at] = value;
    frame
}

/// Puts all control protocols and the DHCP servers into the operator's lists.
fn name_all(config: &mut GatewayConfig) {
    config.always_pass = ControlProtocol::ALL.to_vec();
    config.dhcp_servers = [SERVER, SERVER6, "ff05::1:3"].map(ip).to_vec();
}

/// A session is bound to VLANs; a priority tag names no VLAN.
fn tags(tester: &mut PacketTester) {
    tester.comment("Tags: customer and service VLANs, priority tags, and tags that are not parsed.");
    let first_device = device(1, Mode::Pool);
    let to_service = FrameBuilder::new(first_device.from, service_endpoint());
    let tagged = |tags: &[(u16, u16)]| {
        let tag = |frame: FrameBuilder, (kind, tci): &(u16, u16)| frame.tag(*kind, *tci);
        tags.iter().fold(to_service.clone(), tag)
    };
    for (tags, verdict) in [
        (&[(0x8100, 0)][..], Verdict::PassSession),
        (&[(0x88a8, 0xe000)], Verdict::PassSession),
        (&[(0x88a8, 0), (0x8100, 0xa000)], Verdict::PassSession),
        (&[(0x8100, 0), (0x8100, 7)], Verdict::DropGate),
        (&[(0x8100, 7)], Verdict::DropGate),
        (&[(0x9100, 7)], Verdict::DropGateVlan),
        (&[(0x9200, 0)], Verdict::DropGateVlan),
        (&[(0x8100, 0), (0x9300, 0)], Verdict::DropGateVlan),
        (&[(0x88e7, 1)], Verdict::DropGateVlan),
        (&[(0x8926, 1)], Verdict::DropGateVlan),
        (&[(0x8100, 0), (0x8100, 0), (0x893f, 0)], Verdict::DropGateVlan),
        (&[(0x8100, 0), (0x8100, 0), (0x8100, 0)], Verdict::DropGateVlan),
    ] {
        tester.expect(verdict, &tagged(tags).udp(b"through"));
    }
    tester.expect(Verdict::PassSession, &to_service.ethernet(0x8892, &[0x80; 46]));
    tester.expect(
        Verdict::PassSession,
        &tagged(&[(0x8100, 0xc000)]).ethernet(0x8892, &[0x80; 46]),
    );
    let other = FrameBuilder::new(device_endpoint(9), service_endpoint());
    tester.expect(Verdict::DropGateType, &other.ethernet(0x8892, &[0x80; 46]));
    let mut cut = tagged(&[(0x8100, 0), (0x8100, 0)]).udp(b"cut");
    cut.truncate(17);
    tester.expect(Verdict::DropTruncated, &cut);

    tester.comment("A session in a customer VLAN, opened with a priority tag, which the replies keep.");
    let second_device = device(2, Mode::Key);
    install(tester, &second_device, 0, 1, None);
    let in_vlan = |message: &[u8], kind| {
        let frame = FrameBuilder::new(second_device.from, gateway_endpoint());
        frame.tag(0x8100, 0xe000).tag(kind, 7).udp(message)
    };
    let payload = |frame: Vec<u8>| frame[42..].to_vec();
    tester.expect(
        Verdict::ReplyChallenge,
        &in_vlan(&payload(second_device.request(0x33)), 0x8100),
    );
    tester.expect(
        Verdict::ReplyAck,
        &in_vlan(&payload(second_device.response(0, FRESH, true)), 0x8100),
    );
    tester.expect(
        Verdict::ReplyAckRepeated,
        &in_vlan(&payload(second_device.response(0, FRESH, true)), 0x8100),
    );
    tester.expect(
        Verdict::DropReplay,
        &in_vlan(&payload(second_device.response(0, FRESH, true)), 0x88a8),
    );
    let from_second_device = FrameBuilder::new(second_device.from, service_endpoint());
    for (kind, verdict) in [(0x8100, Verdict::PassSession), (0x88a8, Verdict::DropGate)] {
        tester.expect(verdict, &from_second_device.clone().tag(kind, 7).udp(b"through"));
    }
}

/// From a device to the service.
const UP: MacPair = MacPair {
    from: [2, 0, 0, 0, 0, 1],
    to: [2, 0, 0, 0, 0xff, 2],
};
/// From the service to a device.
const DOWN: MacPair = MacPair {
    from: UP.to,
    to: UP.from,
};

fn begin(what: &str, gate: Gate, configure: impl FnOnce(&mut GatewayConfig)) -> PacketTester {
    let mut tester = new_tester_with(what, gate, configure);
    tester.between_devices = gate == Gate::Bound;
    set_gate(&mut tester, gate);
    refresh(&mut tester);
    tester
}

fn send_up(tester: &mut PacketTester, frames: &[Vec<u8>]) {
    for frame in frames {
        tester.send(frame);
    }
}

/// The program's bridge passes frames that are not for the device side; the oracle is not used for them.
fn send_down(tester: &mut PacketTester, frames: Vec<Vec<u8>>) {
    for frame in frames {
        if frame[0] & 1 == 1 || frame[..6] == DOWN.to {
            tester.send_down(&frame);
        }
    }
}

fn finish_altered(mut tester: PacketTester) -> Stf {
    tester.comment("Altered frames; the oracle gives the expected result.");
    tester.send_altered(0x5eed_0007, 150, &UP.all());
    tester.finish()
}

/// Variants contain only the altered frames, because all other frames are the same in each variant.
pub fn lists() -> Vec<Stf> {
    let is_variant = is_varied();
    let mut bound_tester = begin("lists_bound", Gate::Bound, |_| {});
    let mut sealed_tester = begin("lists_sealed", Gate::Sealed, |_| {});
    let mut named_tester = begin("lists_named", Gate::Sealed, name_all);
    if !is_variant {
        bound_tester.comment("Without a session.");
        send_up(&mut bound_tester, &UP.all());
        bound_tester.comment("With a session.");
        let session_device = device(1, Mode::Pool);
        install(&mut bound_tester, &session_device, 4, 3, None);
        bound_tester.expect(Verdict::ReplyAck, &session_device.response(4, FRESH, true));
        send_up(&mut bound_tester, &UP.in_session());
        tags(&mut bound_tester);
        sealed_tester.comment("Down.");
        send_down(&mut sealed_tester, DOWN.all());
        named_tester.comment("Up, and down.");
        send_up(&mut named_tester, &UP.listed_frames());
        send_down(&mut named_tester, DOWN.listed_frames());
    }
    [bound_tester, sealed_tester, named_tester]
        .map(finish_altered)
        .into()
}
