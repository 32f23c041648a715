//! lap.p4: RESPONSEs that win, and RESPONSEs that do not; address ownership.

use std::net::{IpAddr, Ipv6Addr};

use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::gateway::Gate;
use linewarden_protocol::ids::{Mode, RowIndex};
use linewarden_protocol::verdict::Verdict;

use super::lap::{
    Device, FRESH, PAYLOAD, PREVIOUS_FRESH, altered, device, down, install, new_tester, new_tester_with,
    refresh, set_gate, set_gate_and_slow_path, set_stopping, spread,
};
use super::packet_tester::{CPU_PORT, PacketTester, device_endpoint, service_endpoint, v6};
use super::stf::Stf;

pub fn handshakes() -> Stf {
    let mut tester = new_tester("handshakes", Gate::Bound);
    let pool_device = device(1, Mode::Pool);
    let key_device = device(2, Mode::Key);
    let ipv6_device = Device {
        from: v6(device_endpoint(3)),
        vlan: Some(7),
        ..device(3, Mode::Pool)
    };
    let rowless_device = device(4, Mode::Pool);
    let marked_device = device(5, Mode::Pool);
    let revoked_device = device(6, Mode::Pool);
    let last_index_key_device = device(7, Mode::Key);
    let last_index_pool_device = device(10, Mode::Pool);
    let unknown_device = device(9, Mode::Pool);
    tester.comment("Frames of the control plane go to their port with every gate setting.");
    let frame = pool_device.frame(service_endpoint(), b"from the control plane");
    tester
        .stf
        .packet(CPU_PORT, &[&[0, 3, 0, 0][..], &frame].concat())
        .expect(3, &frame);
    tester.comment("Nothing is configured: no replies.");
    tester.expect(Verdict::DropStopped, &pool_device.request(1));
    set_gate(&mut tester, Gate::Bound);
    install(&mut tester, &pool_device, 4, 6, None);
    install(&mut tester, &key_device, 0, 1, None);
    install(&mut tester, &ipv6_device, 1, 3, None);
    install(&mut tester, &rowless_device, 8, 0, None);
    install(&mut tester, &marked_device, 3, 3, Some(4));
    install(&mut tester, &revoked_device, 3, 3, None);
    install(&mut tester, &last_index_key_device, u32::MAX, 1, None);
    install(&mut tester, &last_index_pool_device, u32::MAX, 1, None);
    tester.stf.line("register_write LapIngress.revoked 6 1");
    tester.gateway.revoke(revoked_device.id()).unwrap();
    tester.comment("No freshness value is set yet.");
    tester.expect(Verdict::DropStopped, &pool_device.request(1));
    tester.expect(Verdict::DropStopped, &pool_device.response(4, FRESH, true));
    refresh(&mut tester);
    tester.comment("A REQUEST gets the same CHALLENGE from the row each time; a NAK states the reason.");
    for enrolled in [
        &pool_device,
        &key_device,
        &ipv6_device,
        &marked_device,
        &last_index_key_device,
    ] {
        tester.expect(Verdict::ReplyChallenge, &enrolled.request(0x33));
        tester.expect(Verdict::ReplyChallenge, &enrolled.request(0x33));
    }
    tester.expect(Verdict::ReplyNak, &rowless_device.request(0x33));
    tester.expect(Verdict::DropRevoked, &revoked_device.request(0x33));
    tester.expect(Verdict::DropUnknownDevice, &unknown_device.request(0x33));
    set_stopping(&mut tester, true);
    tester.expect(Verdict::ReplyNak, &pool_device.request(0x44));
    tester.expect(Verdict::ReplyNak, &rowless_device.request(0x44));
    set_stopping(&mut tester, false);
    from_other_origins(&mut tester, &pool_device);
    tester.comment("Rejected RESPONSEs; no row is spent.");
    tester.expect(
        Verdict::DropUnknownDevice,
        &unknown_device.response(4, FRESH, true),
    );
    tester.expect(Verdict::DropRevoked, &revoked_device.response(3, FRESH, true));
    tester.expect(Verdict::DropIndex, &pool_device.response(5, FRESH, true));
    tester.expect(Verdict::DropIndex, &pool_device.response(2, FRESH, true));
    tester.expect(Verdict::DropReplay, &pool_device.response(3, FRESH, true));
    tester.expect(Verdict::DropNoRows, &rowless_device.response(8, FRESH, true));
    tester.expect(Verdict::DropFresh, &pool_device.response(4, FRESH ^ 1, true));
    tester.expect(Verdict::DropFresh, &pool_device.response(4, 0, true));
    tester.expect(
        Verdict::DropNoRows,
        &last_index_key_device.response(u32::MAX, FRESH, true),
    );
    tester.expect(
        Verdict::DropNoRows,
        &last_index_pool_device.response(u32::MAX, FRESH, true),
    );
    let valid = pool_device.response(4, FRESH, true);
    tester.expect(Verdict::DropGateway, &altered(&valid, PAYLOAD + 39));
    for at in (16..32).chain(48..64) {
        tester.expect(Verdict::DropTag, &altered(&valid, PAYLOAD + at));
    }
    let mut unbound = valid.clone();
    unbound[PAYLOAD + 5] = 0;
    tester.expect(Verdict::DropTag, &unbound);
    let mut moved = valid.clone();
    moved[11] ^= 0x10;
    tester.expect(Verdict::DropTag, &moved);
    tester.comment(
        "Sessions: bound and unbound, the previous freshness value, IPv6 with a tag; the first ACK may be lost.",
    );
    tester.expect(
        Verdict::DropGate,
        &pool_device.frame(service_endpoint(), b"before"),
    );
    tester.expect(Verdict::ReplyAck, &valid);
    tester.expect(Verdict::ReplyAckRepeated, &valid);
    tester.expect(
        Verdict::PassSession,
        &pool_device.frame(service_endpoint(), b"after"),
    );
    tester.expect(Verdict::ReplyAck, &key_device.response(0, PREVIOUS_FRESH, false));
    tester.expect(
        Verdict::ReplyAckRepeated,
        &key_device.response(0, PREVIOUS_FRESH, false),
    );
    tester.expect(Verdict::DropReplay, &key_device.response(0, FRESH, false));
    tester.expect(
        Verdict::DropGate,
        &key_device.frame(service_endpoint(), b"not bound"),
    );
    tester.expect(Verdict::ReplyAck, &ipv6_device.response(1, FRESH, true));
    tester.expect(
        Verdict::PassSession,
        &ipv6_device.frame(v6(service_endpoint()), b"after"),
    );
    let untagged = Device {
        vlan: None,
        ..ipv6_device
    };
    tester.expect(
        Verdict::DropGate,
        &untagged.frame(v6(service_endpoint()), b"elsewhere"),
    );
    tester.comment("Only the winning RESPONSE from its origin gets the ACK again.");
    let other_port = Device {
        from: Endpoint {
            port: 40_001,
            ..pool_device.from
        },
        ..pool_device
    };
    tester.expect(Verdict::DropReplay, &other_port.response(4, FRESH, true));
    tester.expect(Verdict::DropReplay, &altered(&valid, PAYLOAD + 63));
    tester.expect(Verdict::DropReplay, &altered(&valid, PAYLOAD + 48));
    tester.comment("The port is part of the origin.");
    let (verdict, _) = tester.send_on(3, &valid);
    assert_eq!(verdict, Verdict::DropReplay);
    let (verdict, _) = tester.send_on(3, &pool_device.frame(service_endpoint(), b"elsewhere"));
    assert_eq!(verdict, Verdict::DropGate);
    tester.comment("Renewal, with the next row and with the same key.");
    tester.expect(Verdict::ReplyChallenge, &pool_device.request(0x55));
    tester.expect(Verdict::ReplyAck, &pool_device.response(5, FRESH, true));
    tester.expect(Verdict::DropIndex, &valid);
    for idx in 1..4 {
        tester.expect(Verdict::ReplyChallenge, &key_device.request(0x66));
        tester.expect(Verdict::ReplyAck, &key_device.response(idx, FRESH, true));
        tester.expect(
            Verdict::PassSession,
            &key_device.frame(service_endpoint(), b"bound"),
        );
    }
    tester.comment(
        "An address belongs to one active session: no other device opens one there until the session moves.",
    );
    let other = Device {
        from: pool_device.from,
        ..marked_device
    };
    tester.expect(Verdict::DropAddressOwned, &other.response(3, FRESH, true));
    let same_mac = Device {
        from: Endpoint {
            mac: pool_device.from.mac,
            ..marked_device.from
        },
        ..marked_device
    };
    tester.expect(Verdict::DropAddressOwned, &same_mac.response(3, FRESH, true));
    let moved = Device {
        from: Endpoint {
            mac: [2, 0, 0, 0, 0, 14],
            ip: [10, 66, 0, 14].into(),
            port: 40_000,
        },
        ..pool_device
    };
    tester.expect(Verdict::ReplyAck, &moved.response(6, FRESH, true));
    tester.expect(Verdict::DropGate, &pool_device.frame(service_endpoint(), b"left"));
    tester.expect(Verdict::PassSession, &moved.frame(service_endpoint(), b"there"));
    tester.expect(Verdict::ReplyAck, &other.response(3, FRESH, true));
    tester.expect(
        Verdict::PassSession,
        &pool_device.frame(service_endpoint(), b"taken"),
    );
    tester.comment("Rows are spent up to the mark.");
    tester.expect(Verdict::ReplyChallenge, &other.request(0x77));
    tester.expect(Verdict::DropMark, &other.response(4, FRESH, true));
    tester.stf.line("register_write LapIngress.marks 5 6");
    tester
        .gateway
        .raise_mark(marked_device.id(), RowIndex(6))
        .unwrap();
    tester.expect(Verdict::ReplyAck, &other.response(4, FRESH, true));
    tester.comment("Revocation and the expiry of the freshness value take effect at once.");
    tester.stf.line("register_write LapIngress.revoked 1 1");
    tester.gateway.revoke(pool_device.id()).unwrap();
    tester.expect(Verdict::DropGate, &moved.frame(service_endpoint(), b"revoked"));
    tester.expect(Verdict::DropRevoked, &moved.response(6, FRESH, true));
    tester.comment("The last rows.");
    tester.expect(Verdict::ReplyAck, &ipv6_device.response(2, FRESH, true));
    tester.expect(Verdict::ReplyAck, &ipv6_device.response(3, FRESH, true));
    tester.expect(Verdict::ReplyNak, &ipv6_device.request(0x88));
    tester.expect(Verdict::DropNoRows, &ipv6_device.response(4, FRESH, true));
    tester.comment("Altered frames; the oracle gives the expected result.");
    let frames = [
        key_device.request(0x99),
        key_device.response(4, FRESH, true),
        key_device.response(3, FRESH, true),
        ipv6_device.request(0x99),
        ipv6_device.response(3, FRESH, true),
        key_device.frame(service_endpoint(), b"passes"),
    ];
    tester.send_altered(0x5eed_0004, 300, &frames);
    tester.comment("The control plane has stopped: no more replies, but sessions stay active.");
    tester.stf.line("register_write LapIngress.fresh_until_us 0 0");
    tester.now = tester.now.plus_ms(17_000);
    tester.expect(Verdict::DropStopped, &key_device.request(0xaa));
    tester.expect(Verdict::DropStopped, &key_device.response(4, FRESH, true));
    tester.expect(
        Verdict::PassSession,
        &ipv6_device.frame(v6(service_endpoint()), b"lives"),
    );
    tester.finish()
}

/// Sends messages from addresses that no device may have, and to MAC addresses of other hosts: there is no reply, and no
/// row is spent. REQUESTs from the first and last device addresses get a CHALLENGE.
fn from_other_origins(tester: &mut PacketTester, device: &Device) {
    tester.comment("From addresses outside the prefixes, and from the gateway's own; the first and last device addresses.");
    let device_at = |ip: IpAddr| Device {
        from: Endpoint { ip, ..device.from },
        ..*device
    };
    for (source, admits) in [
        ("10.66.0.254", false),
        ("10.66.255.255", false),
        ("10.65.255.255", false),
        ("10.67.0.0", false),
        ("10.77.0.1", false),
        ("127.0.0.1", false),
        ("8.8.8.8", false),
        ("fd66::fe", false),
        ("fd67::", false),
        ("::1", false),
        ("fe80::1", false),
        ("10.66.0.0", true),
        ("10.66.255.254", true),
        ("fd66:ffff::1", true),
    ] {
        let sender = device_at(source.parse().unwrap());
        let verdict = match admits {
            true => Verdict::ReplyChallenge,
            false => Verdict::DropSourceNotDevice,
        };
        tester.expect(verdict, &sender.request(0x33));
        if !admits {
            tester.expect(verdict, &sender.response(4, FRESH, true));
        }
    }
    tester.comment(
        "To another station's MAC address, of devices or unknown; to the address of another service.",
    );
    for (mac, verdict) in [
        (device_endpoint(2).mac, Verdict::DropGatePort),
        ([2, 0, 0, 0, 0xaa, 1], Verdict::DropGatePort),
        (service_endpoint().mac, Verdict::ReplyChallenge),
    ] {
        let mut request = device.request(0x33);
        request[..6].copy_from_slice(&mac);
        tester.expect(verdict, &request);
    }
}

pub fn owners() -> Stf {
    let mut tester = new_tester_with("owners", Gate::Sealed, |config| config.bindings_max = 2);
    set_gate(&mut tester, Gate::Sealed);
    tester.comment("All addresses in one bucket.");
    spread(&mut tester, [0; 5]);
    refresh(&mut tester);
    let [a, b, c] = [1, 2, 3].map(|number| device(number, Mode::Key));
    for device in [&a, &b, &c] {
        install(&mut tester, device, 0, 1, None);
    }
    tester.comment("A bucket holds two owners; no row is spent for a third.");
    tester.expect(Verdict::ReplyAck, &a.response(0, FRESH, false));
    tester.expect(Verdict::ReplyAck, &b.response(0, FRESH, false));
    tester.expect(Verdict::DropTableFull, &c.response(0, FRESH, false));
    tester.expect(Verdict::DropTableFull, &c.response(0, FRESH, false));
    tester.comment("Both sessions continue, and each is found.");
    tester.expect(Verdict::ReplyAck, &b.response(1, FRESH, false));
    tester.expect(Verdict::ReplyAck, &a.response(1, FRESH, false));
    for device in [&a, &b] {
        tester.expect(Verdict::PassData, &device.data_up(1, false, 1, 9000, b"found"));
        tester.expect_down(Verdict::PassSealed, &down(device.from).udp(b"found"));
    }
    tester.expect_down(Verdict::DropSession, &down(c.from).udp(b"not found"));
    tester.comment("A closed session makes room.");
    tester.stf.line("register_write LapIngress.session_ids 1 0");
    tester.gateway.wipe(a.id()).unwrap();
    tester.gateway.sweep_bindings();
    tester.expect_down(Verdict::DropSession, &down(a.from).udp(b"closed"));
    tester.expect(Verdict::ReplyAck, &c.response(0, FRESH, false));
    tester.expect_down(Verdict::PassSealed, &down(c.from).udp(b"found"));
    tester.expect_down(Verdict::PassSealed, &down(b.from).udp(b"still found"));
    tester.finish()
}

/// MAC addresses that share both of their buckets.
pub fn device_origins() -> Stf {
    let mut tester = new_tester_with("places", Gate::Bound, |config| config.bindings_max = 4);
    set_gate(&mut tester, Gate::Bound);
    tester.comment("MAC addresses in buckets 1 and 2, IP addresses in separate buckets.");
    spread(&mut tester, [0, 0, 0, 1 << 46 | 2 << 28, 1]);
    refresh(&mut tester);
    let devices: Vec<Device> = (1..=5)
        .map(|number| {
            let from = Endpoint {
                ip: Ipv6Addr::new(0xfd66, number.into(), 0, 0, 0, 0, 0, 1).into(),
                ..device_endpoint(number)
            };
            Device {
                from,
                ..device(number, Mode::Key)
            }
        })
        .collect();
    for device in &devices {
        install(&mut tester, device, 0, 1, None);
    }
    let (last, first) = devices.split_last().unwrap();
    tester.comment("Four have a slot, and each is found; no row is spent for a fifth.");
    for device in first {
        tester.expect(Verdict::ReplyAck, &device.response(0, FRESH, true));
    }
    tester.expect(Verdict::DropTableFull, &last.response(0, FRESH, true));
    for device in first {
        tester.expect(
            Verdict::PassSession,
            &device.frame(v6(service_endpoint()), b"found"),
        );
    }
    tester.expect(
        Verdict::DropGate,
        &last.frame(v6(service_endpoint()), b"not found"),
    );
    tester.comment("They keep their slots; a closed session makes room.");
    for device in first {
        tester.expect(Verdict::ReplyAck, &device.response(1, FRESH, true));
    }
    let wiped = &first[2];
    tester.stf.line("register_write LapIngress.session_ids 3 0");
    tester.gateway.wipe(wiped.id()).unwrap();
    tester.gateway.sweep_bindings();
    tester.expect(Verdict::ReplyAck, &last.response(0, FRESH, true));
    for device in devices.iter().filter(|device| device.number != wiped.number) {
        tester.expect(
            Verdict::PassSession,
            &device.frame(v6(service_endpoint()), b"found"),
        );
    }
    tester.expect(Verdict::DropGate, &wiped.frame(v6(service_endpoint()), b"closed"));
    tester.finish()
}

/// Messages of unknown devices go to the slow path, which passes them to the program again.
pub fn unknown_devices() -> Stf {
    let mut tester = new_tester_with("unknown-devices", Gate::Bound, |config| {
        config.miss_per_s = u32::MAX
    });
    set_gate_and_slow_path(&mut tester, Gate::Bound, true);
    refresh(&mut tester);
    let ipv4_device = device(1, Mode::Pool);
    let ipv6_device = Device {
        from: v6(device_endpoint(2)),
        ..device(2, Mode::Key)
    };
    tester.comment("A REQUEST, and a RESPONSE with an accepted value, go to the control plane as they came.");
    for unknown in [&ipv4_device, &ipv6_device] {
        tester.expect(Verdict::SlowPath, &unknown.request(0x33));
        tester.expect(Verdict::SlowPath, &unknown.response(4, FRESH, true));
        tester.expect(Verdict::SlowPath, &unknown.response(4, PREVIOUS_FRESH, false));
        tester.expect(Verdict::DropUnknownDevice, &unknown.response(4, FRESH ^ 1, true));
    }
    tester.comment("After its device is installed, a message passes through the program as if it had arrived on its port.");
    install(&mut tester, &ipv4_device, 4, 3, None);
    let response = ipv4_device.response(4, FRESH, true);
    tester.through(&response, Verdict::ReplyAck);
    tester.expect(Verdict::ReplyAckRepeated, &response);
    tester.expect(
        Verdict::PassSession,
        &ipv4_device.frame(service_endpoint(), b"from the port that the session is bound to"),
    );
    tester.comment("Messages of devices that are not enrolled are dropped.");
    tester.stf.line("register_write LapIngress.filtering 0 1");
    tester.dropped(Verdict::DropUnknownDevice, &ipv6_device.request(0x44));
    tester.stf.line(&format!(
        "add LapIngress.enrolled hdr.lap.device_id:{:#x} NoAction()",
        ipv6_device.id().0
    ));
    tester.expect(Verdict::SlowPath, &ipv6_device.request(0x44));
    tester.finish()
}
