//! lap.p4: frames that pass the gate, and sealed datagrams in both directions.

use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::gateway::Gate;
use linewarden_protocol::ids::Mode;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::{Header, LAP_PORT};
use zerocopy::IntoBytes as _;

use super::lap::{
    Device, FRESH, PAYLOAD, SUITE, altered, device, down, install, new_tester, refresh, set_gate,
};
use super::packet_tester::{PacketTester, device_endpoint, gateway_endpoint, service_endpoint, v6};
use super::stf::Stf;

/// Returns a DHCP client message.
fn dhcp(is_v6: bool) -> Vec<u8> {
    let (from, to) = match is_v6 {
        true => (
            [0xfe80, 0, 0, 0, 0, 0, 0, 1].into(),
            [0xff02, 0, 0, 0, 0, 0, 1, 2].into(),
        ),
        false => ([0; 4].into(), [255; 4].into()),
    };
    let from = Endpoint {
        ip: from,
        ..device_endpoint(1)
    };
    let to = Endpoint {
        ip: to,
        ..service_endpoint()
    };
    FrameBuilder::new(from, to).dhcp()
}

/// Sends frames that are not LAP/1 messages.
fn foreign(tester: &mut PacketTester) {
    let from = device_endpoint(1);
    let to_service = FrameBuilder::new(from, service_endpoint());
    let to_gateway = FrameBuilder::new(from, gateway_endpoint());
    let to_service_v6 = FrameBuilder::new(v6(from), v6(service_endpoint()));
    let to_lap = FrameBuilder::new(
        from,
        Endpoint {
            port: LAP_PORT,
            ..service_endpoint()
        },
    );
    let to_all = |end: Endpoint| {
        FrameBuilder::new(
            from,
            Endpoint {
                mac: [0xff; 6],
                ..end
            },
        )
    };
    let mut cut = to_service.udp(b"cut");
    cut.truncate(30);
    let mut long = to_service.udp(b"length");
    long[38] = 1;
    let mut own_frame = to_gateway.udp(b"length");
    own_frame[38] = 1;
    for frame in [
        to_service.udp(b"datagram"),
        to_service.ip(6, b"segment"),
        to_service.arp_request(),
        to_all(service_endpoint()).arp_request(),
        to_all(service_endpoint()).udp(b"to all"),
        to_all(v6(service_endpoint()))
            .ip_fields(0, 0, 255)
            .neighbor_solicitation([0xfd; 16]),
        // To a destination behind the ingress port, and to an unknown destination.
        FrameBuilder::new(from, device_endpoint(2)).arp_request(),
        FrameBuilder::new(from, device_endpoint(99)).arp_request(),
        to_service.ethernet(0x88cc, b"lldp"),
        to_service.clone().vlan(1).vlan(2).vlan(3).udp(b"three tags"),
        to_service.clone().fragment(0, true).udp(b"first"),
        to_service.clone().options(&[1]).udp(b"options"),
        to_gateway.clone().fragment(2, false).udp(b"last"),
        to_gateway.clone().options(&[1]).udp(b"options"),
        to_gateway.udp(b"short"),
        to_gateway.udp(b""),
        dhcp(false),
        dhcp(true),
        to_service_v6
            .clone()
            .ip_fields(0, 0, 255)
            .neighbor_solicitation([0xfd; 16]),
        to_service_v6.icmpv6(134, &[0; 12]),
        to_service_v6.icmpv6(137, &[0; 12]),
        to_service_v6.icmpv6(128, &[0; 12]),
        to_service_v6.clone().extension(0).udp(b"extension"),
        to_service_v6.clone().extension(44).udp(b"fragment"),
        to_service_v6.clone().fragment(0, false).udp(b"fragment"),
        to_lap.udp(&[0; 64]),
        to_lap.udp(&[0; 4]),
        to_service_v6.ip(58, b""),
        cut,
        long,
        own_frame,
    ] {
        tester.send(&frame);
    }
}

pub fn gates() -> Vec<Stf> {
    [
        ("off", Gate::Off),
        ("bound", Gate::Bound),
        ("sealed", Gate::Sealed),
    ]
    .into_iter()
    .map(|(name, gate)| {
        let mut tester = new_tester(&format!("gate_{name}"), gate);
        set_gate(&mut tester, gate);
        tester.comment("Frames that are not messages.");
        foreign(&mut tester);
        tester.comment("Messages in the wrong direction, of unsupported types, and malformed ones.");
        let pool = device(1, Mode::Pool);
        install(&mut tester, &pool, 4, 3, None);
        refresh(&mut tester);
        for kind in 0..20 {
            for bytes in [16, 55, 56, 64, 72, 96] {
                let length = u16::try_from(bytes).unwrap();
                let header = Header::with_length(kind, SUITE, 0, pool.id(), length);
                let mut message = header.as_bytes().to_vec();
                message.resize(bytes, 0);
                tester.send(&pool.frame(gateway_endpoint(), &message));
            }
        }
        let mut frames = vec![pool.request(0x21), pool.response(4, FRESH ^ 1, true)];
        frames.push(FrameBuilder::new(device_endpoint(1), service_endpoint()).udp(b"datagram"));
        frames.push(FrameBuilder::new(device_endpoint(1), service_endpoint()).arp_request());
        frames.push(dhcp(true));
        tester.comment("Altered frames; the oracle gives the expected result.");
        tester.send_altered(0x5eed_0005, 150, &frames);
        tester.finish()
    })
    .collect()
}

pub fn sealed() -> Stf {
    let mut tester = new_tester("sealed", Gate::Sealed);
    tester.between_devices = false;
    set_gate(&mut tester, Gate::Sealed);
    let ipv4_device = device(1, Mode::Pool);
    let ipv6_device = Device {
        from: v6(device_endpoint(2)),
        ..device(2, Mode::Key)
    };
    let sessionless_device = device(3, Mode::Pool);
    install(&mut tester, &ipv4_device, 4, 3, None);
    install(&mut tester, &ipv6_device, 0, 1, None);
    install(&mut tester, &sessionless_device, 1, 1, None);
    refresh(&mut tester);
    let text: Vec<u8> = (0..200).map(|at: u8| at.wrapping_mul(7)).collect();
    tester.comment("No frame passes without a session.");
    tester.expect(
        Verdict::DropSession,
        &ipv4_device.data_up(4, false, 1, 9000, b"early"),
    );
    tester.expect_down(Verdict::DropSession, &down(ipv4_device.from).udp(b"early"));
    tester.expect(Verdict::ReplyAck, &ipv4_device.response(4, FRESH, false));
    tester.expect(Verdict::ReplyAck, &ipv6_device.response(0, FRESH, true));
    tester.expect(
        Verdict::DropGate,
        &ipv4_device.frame(service_endpoint(), b"not sealed"),
    );
    tester.comment("Upwards: every payload size, IPv4 and IPv6.");
    let mut seq = 0;
    for bytes in (0..=24).chain([31, 32, 33, 63, 64, 100, 120, 127, 128]) {
        seq += 1;
        tester.expect(
            Verdict::PassData,
            &ipv4_device.data_up(4, false, seq, 9000, &text[..bytes]),
        );
        tester.expect(
            Verdict::PassData,
            &ipv6_device.data_up(0, true, seq, 0x1234, &text[..bytes]),
        );
    }
    tester.comment("Downwards, likewise.");
    for bytes in (0..=24).chain([31, 32, 33, 63, 64, 100, 120, 127, 128]) {
        let datagram = &text[..bytes];
        tester.expect_down(Verdict::PassSealed, &down(ipv4_device.from).udp(datagram));
        tester.expect_down(Verdict::PassSealed, &down(ipv6_device.from).vlan(9).udp(datagram));
    }
    tester.comment("Numbers: a window of 24, each once, in any order.");
    for (seq, verdict) in [
        (100, Verdict::PassData),
        (100, Verdict::DropSequence),
        (77, Verdict::PassData),
        (76, Verdict::DropSequence),
        (99, Verdict::PassData),
        (77, Verdict::DropSequence),
        (101, Verdict::PassData),
        (77, Verdict::DropSequence),
        (78, Verdict::PassData),
        (124, Verdict::PassData),
        (100, Verdict::DropSequence),
        (123, Verdict::PassData),
        (1000, Verdict::PassData),
        (124, Verdict::DropSequence),
        (u32::MAX, Verdict::PassData),
        (u32::MAX - 23, Verdict::PassData),
        (u32::MAX - 24, Verdict::DropSequence),
    ] {
        tester.expect(verdict, &ipv4_device.data_up(4, false, seq, 9000, b"window"));
    }
    tester.comment("Each byte is covered, and so are the addresses.");
    let valid = ipv6_device.data_up(0, true, 500, 9000, &text[..29]);
    let payload = PAYLOAD + 20;
    tester.expect(Verdict::DropSession, &altered(&valid, payload + 20));
    tester.expect(Verdict::DropSequence, &altered(&valid, payload + 25));
    for at in [30, 32, 33].into_iter().chain(40..56).chain(56..85) {
        tester.expect(Verdict::DropTag, &altered(&valid, payload + at));
    }
    tester.expect(Verdict::DropSource, &altered(&valid, 37));
    tester.expect(Verdict::DropTag, &altered(&valid, 53));
    for port in [0, LAP_PORT] {
        tester.expect(
            Verdict::DropGatePort,
            &ipv4_device.data_up(4, false, 7, port, b"port"),
        );
    }
    tester.expect(
        Verdict::DropGateRole,
        &ipv4_device.data_up(4, false, 7, 68, b"DHCP"),
    );
    tester.expect(
        Verdict::DropGateRole,
        &ipv6_device.data_up(0, true, 600, 546, b"DHCP"),
    );
    tester.expect(Verdict::PassData, &ipv6_device.data_up(0, true, 490, 68, b"IPv6"));
    tester.expect(
        Verdict::DropSession,
        &sessionless_device.data_up(1, false, 1, 9000, b"none"),
    );
    tester.expect(
        Verdict::DropUnknownDevice,
        &device(9, Mode::Pool).data_up(1, false, 1, 9000, b"none"),
    );
    tester.expect(Verdict::PassData, &valid);
    tester.comment(
        "Checksums: an absent one over IPv4 stays absent, a wrong one stays wrong; bytes after the packet are removed.",
    );
    let mut frame = ipv6_device.data_up(0, true, 501, 9000, b"behind");
    frame.extend_from_slice(&[0xee; 9]);
    tester.expect(Verdict::PassData, &frame);
    tester.expect(Verdict::ReplyAck, &ipv4_device.response(5, FRESH, false));
    let mut frame = ipv4_device.data_up(5, false, 1, 9000, b"no checksum");
    frame[40..42].fill(0);
    tester.expect(Verdict::PassData, &frame);
    let wrong = altered(&ipv4_device.data_up(5, false, 2, 9000, b"wrong checksum"), 41);
    tester.expect(Verdict::PassData, &wrong);
    let mut frame = down(ipv4_device.from).udp(b"no checksum");
    frame[40..42].fill(0);
    frame.extend_from_slice(&[0xee; 9]);
    tester.expect_down(Verdict::PassSealed, &frame);
    for value in 0..64u8 {
        let seq = 3 + u32::from(value);
        let payload = [value.wrapping_mul(37), value, value.wrapping_mul(101)];
        tester.expect(
            Verdict::PassData,
            &ipv4_device.data_up(5, false, seq, 9000, &payload),
        );
        tester.expect_down(Verdict::PassSealed, &down(ipv4_device.from).udp(&payload));
    }
    tester.comment("Downwards, frames that are not sealed.");
    let to_ipv4_device = FrameBuilder::new(service_endpoint(), ipv4_device.from);
    let to_ipv6_device = FrameBuilder::new(v6(service_endpoint()), ipv6_device.from);
    let mut cut = to_ipv4_device.udp(b"cut");
    cut.truncate(36);
    let mut short = to_ipv4_device.udp(b"does not fill");
    short[39] -= 1;
    let server = Endpoint {
        port: 67,
        ..service_endpoint()
    };
    let client = Endpoint {
        port: 68,
        ..ipv4_device.from
    };
    for frame in [
        to_ipv4_device.arp_request(),
        to_ipv4_device.ethernet(0x88cc, b"lldp"),
        to_ipv4_device.ip(6, b"segment"),
        to_ipv4_device.clone().fragment(0, true).udp(b"first"),
        to_ipv4_device.clone().options(&[1]).udp(b"options"),
        to_ipv6_device
            .clone()
            .ip_fields(0, 0, 255)
            .neighbor_solicitation([0xfd; 16]),
        to_ipv6_device.clone().ip_fields(0, 0, 255).icmpv6(136, &[0; 20]),
        to_ipv6_device.icmpv6(128, &[0; 20]),
        to_ipv6_device.clone().extension(60).udp(b"extension"),
        FrameBuilder::new(server, client).udp(b"dhcp"),
        FrameBuilder::new(service_endpoint(), sessionless_device.from).udp(b"no session"),
        to_ipv4_device.udp(&[1; 1500 - 28 - 55]),
        cut,
        short,
    ] {
        tester.send_down(&frame);
    }
    tester.comment("Revoked.");
    tester.stf.line("register_write LapIngress.revoked 2 1");
    tester.gateway.revoke(ipv6_device.id()).unwrap();
    tester.expect(
        Verdict::DropRevoked,
        &ipv6_device.data_up(0, true, 600, 9000, b"revoked"),
    );
    tester.expect_down(Verdict::DropSession, &to_ipv6_device.udp(b"revoked"));
    tester.comment("Altered frames; the oracle gives the expected result.");
    let frames = [
        ipv4_device.data_up(5, false, 200, 9000, &text[..50]),
        ipv4_device.data_up(5, false, 201, 9000, &text[..8]),
        ipv4_device.data_up(5, false, 201, 9000, b""),
    ];
    tester.send_altered(0x5eed_0006, 200, &frames);
    tester.finish()
}
