//! lap.p4: RESPONSEs that win, and RESPONSEs that do not; address ownership.

use std::net::{IpAddr, Ipv6Addr};

use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::gateway::Gate;
use linewarden_protocol::ids::{Mode, RowIndex};
use linewarden_protocol::verdict::Verdict;

use super::lap::{
    Device, FRESH, PAYLOAD, PREVIOUS_FRESH, altered, device, down, install, new_tester, new_tester_with,
    refresh, set, set_stopping, set_with, spread,
};
use super::packet_tester::{CPU_PORT, PacketTester, device_end, service_end, v6};
use super::stf::Stf;

pub fn handshakes() -> Stf {
    let mut tester = new_tester("handshakes", Gate::Bound);
    let pool = device(1, Mode::Pool);
    let key_device = device(2, Mode::Key);
    let far = Device {
        from: v6(device_end(3)),
        vlan: Some(7),
        ..device(3, Mode::Pool)
    };
    let empty = device(4, Mode::Pool);
    let marked = device(5, Mode::Pool);
    let revoked = device(6, Mode::Pool);
    let last = device(7, Mode::Key);
    let last_row = device(10, Mode::Pool);
    let unknown = device(9, Mode::Pool);
    tester.comment("Frames of the control plane go to their port with every gate setting.");
    let frame = pool.frame(service_end(), b"from the control plane");
    tester
        .stf
        .packet(CPU_PORT, &[&[0, 3, 0, 0][..], &frame].concat())
        .expect(3, &frame);
    tester.comment("Nothing is configured: no replies.");
    tester.expect(Verdict::DropStopped, &pool.request(1));
    set(&mut tester, Gate::Bound);
    install(&mut tester, &pool, 4, 6, None);
    install(&mut tester, &key_device, 0, 1, None);
    install(&mut tester, &far, 1, 3, None);
    install(&mut tester, &empty, 8, 0, None);
    install(&mut tester, &marked, 3, 3, Some(4));
    install(&mut tester, &revoked, 3, 3, None);
    install(&mut tester, &last, u32::MAX, 1, None);
    install(&mut tester, &last_row, u32::MAX, 1, None);
    tester.stf.line("register_write LapIngress.revoked 6 1");
    tester.gateway.revoke(revoked.id()).unwrap();
    tester.comment("No freshness value is set yet.");
    tester.expect(Verdict::DropStopped, &pool.request(1));
    tester.expect(Verdict::DropStopped, &pool.response(4, FRESH, true));
    refresh(&mut tester);
    tester.comment("A REQUEST gets the same CHALLENGE from the row each time; a NAK states the reason.");
    for enrolled in [&pool, &key_device, &far, &marked, &last] {
        tester.expect(Verdict::ReplyChallenge, &enrolled.request(0x33));
        tester.expect(Verdict::ReplyChallenge, &enrolled.request(0x33));
    }
    tester.expect(Verdict::ReplyNak, &empty.request(0x33));
    tester.expect(Verdict::DropRevoked, &revoked.request(0x33));
    tester.expect(Verdict::DropUnknownDevice, &unknown.request(0x33));
    set_stopping(&mut tester, true);
    tester.expect(Verdict::ReplyNak, &pool.request(0x44));
    tester.expect(Verdict::ReplyNak, &empty.request(0x44));
    set_stopping(&mut tester, false);
    from_other_origins(&mut tester, &pool);
    tester.comment("Rejected RESPONSEs; no row is spent.");
    tester.expect(Verdict::DropUnknownDevice, &unknown.response(4, FRESH, true));
    tester.expect(Verdict::DropRevoked, &revoked.response(3, FRESH, true));
    tester.expect(Verdict::DropIndex, &pool.response(5, FRESH, true));
    tester.expect(Verdict::DropIndex, &pool.response(2, FRESH, true));
    tester.expect(Verdict::DropReplay, &pool.response(3, FRESH, true));
    tester.expect(Verdict::DropNoRows, &empty.response(8, FRESH, true));
    tester.expect(Verdict::DropFresh, &pool.response(4, FRESH ^ 1, true));
    tester.expect(Verdict::DropFresh, &pool.response(4, 0, true));
    tester.expect(Verdict::DropNoRows, &last.response(u32::MAX, FRESH, true));
    tester.expect(Verdict::DropNoRows, &last_row.response(u32::MAX, FRESH, true));
    let valid = pool.response(4, FRESH, true);
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
    tester.expect(Verdict::DropGate, &pool.frame(service_end(), b"before"));
    tester.expect(Verdict::ReplyAck, &valid);
    tester.expect(Verdict::ReplyAckRepeated, &valid);
    tester.expect(Verdict::PassSession, &pool.frame(service_end(), b"after"));
    tester.expect(Verdict::ReplyAck, &key_device.response(0, PREVIOUS_FRESH, false));
    tester.expect(
        Verdict::ReplyAckRepeated,
        &key_device.response(0, PREVIOUS_FRESH, false),
    );
    tester.expect(Verdict::DropReplay, &key_device.response(0, FRESH, false));
    tester.expect(Verdict::DropGate, &key_device.frame(service_end(), b"not bound"));
    tester.expect(Verdict::ReplyAck, &far.response(1, FRESH, true));
    tester.expect(Verdict::PassSession, &far.frame(v6(service_end()), b"after"));
    let untagged = Device { vlan: None, ..far };
    tester.expect(
        Verdict::DropGate,
        &untagged.frame(v6(service_end()), b"elsewhere"),
    );
    tester.comment("Only the winning RESPONSE from its origin gets the ACK again.");
    let other_port = Device {
        from: Endpoint {
            port: 40_001,
            ..pool.from
        },
        ..pool
    };
    tester.expect(Verdict::DropReplay, &other_port.response(4, FRESH, true));
    tester.expect(Verdict::DropReplay, &altered(&valid, PAYLOAD + 63));
    tester.expect(Verdict::DropReplay, &altered(&valid, PAYLOAD + 48));
    tester.comment("The port is part of the origin.");
    let (verdict, _) = tester.send_on(3, &valid);
    assert_eq!(verdict, Verdict::DropReplay);
    let (verdict, _) = tester.send_on(3, &pool.frame(service_end(), b"elsewhere"));
    assert_eq!(verdict, Verdict::DropGate);
    tester.comment("Renewal, with the next row and with the same key.");
    tester.expect(Verdict::ReplyChallenge, &pool.request(0x55));
    tester.expect(Verdict::ReplyAck, &pool.response(5, FRESH, true));
    tester.expect(Verdict::DropIndex, &valid);
    for idx in 1..4 {
        tester.expect(Verdict::ReplyChallenge, &key_device.request(0x66));
        tester.expect(Verdict::ReplyAck, &key_device.response(idx, FRESH, true));
        tester.expect(Verdict::PassSession, &key_device.frame(service_end(), b"bound"));
    }
    tester.comment(
        "An address belongs to one active session: no other device opens one there until the session moves.",
    );
    let other = Device {
        from: pool.from,
        ..marked
    };
    tester.expect(Verdict::DropAddressOwned, &other.response(3, FRESH, true));
    let same_mac = Device {
        from: Endpoint {
            mac: pool.from.mac,
            ..marked.from
        },
        ..marked
    };
    tester.expect(Verdict::DropAddressOwned, &same_mac.response(3, FRESH, true));
    let moved = Device {
        from: Endpoint {
            mac: [2, 0, 0, 0, 0, 14],
            ip: [10, 66, 0, 14].into(),
            port: 40_000,
        },
        ..pool
    };
    tester.expect(Verdict::ReplyAck, &moved.response(6, FRESH, true));
    tester.expect(Verdict::DropGate, &pool.frame(service_end(), b"left"));
    tester.expect(Verdict::PassSession, &moved.frame(service_end(), b"there"));
    tester.expect(Verdict::ReplyAck, &other.response(3, FRESH, true));
    tester.expect(Verdict::PassSession, &pool.frame(service_end(), b"taken"));
    tester.comment("Rows are spent up to the mark.");
    tester.expect(Verdict::ReplyChallenge, &other.request(0x77));
    tester.expect(Verdict::DropMark, &other.response(4, FRESH, true));
    tester.stf.line("register_write LapIngress.marks 5 6");
    tester.gateway.raise_mark(marked.id(), RowIndex(6)).unwrap();
    tester.expect(Verdict::ReplyAck, &other.response(4, FRESH, true));
    tester.comment("Revocation and the expiry of the freshness value take effect at once.");
    tester.stf.line("register_write LapIngress.revoked 1 1");
    tester.gateway.revoke(pool.id()).unwrap();
    tester.expect(Verdict::DropGate, &moved.frame(service_end(), b"revoked"));
    tester.expect(Verdict::DropRevoked, &moved.response(6, FRESH, true));
    tester.comment("The last rows.");
    tester.expect(Verdict::ReplyAck, &far.response(2, FRESH, true));
    tester.expect(Verdict::ReplyAck, &far.response(3, FRESH, true));
    tester.expect(Verdict::ReplyNak, &far.request(0x88));
    tester.expect(Verdict::DropNoRows, &far.response(4, FRESH, true));
    tester.comment("Altered frames; the oracle gives the expected result.");
    let frames = [
        key_device.request(0x99),
        key_device.response(4, FRESH, true),
        key_device.response(3, FRESH, true),
        far.request(0x99),
        far.response(3, FRESH, true),
        key_device.frame(service_end(), b"passes"),
    ];
    tester.send_altered(0x5eed_0004, 300, &frames);
    tester.comment("The control plane has stopped: no more replies, but sessions stay active.");
    tester.stf.line("register_write LapIngress.fresh_until_us 0 0");
    tester.now = tester.now.plus_ms(17_000);
    tester.expect(Verdict::DropStopped, &key_device.request(0xaa));
    tester.expect(Verdict::DropStopped, &key_device.response(4, FRESH, true));
    tester.expect(Verdict::PassSession, &far.frame(v6(service_end()), b"lives"));
    tester.finish()
}

/// Sends messages from addresses that no device may have, and to other stations: there is no reply, and no row is
/// spent.
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
        (device_end(2).mac, Verdict::DropGatePort),
        ([2, 0, 0, 0, 0xaa, 1], Verdict::DropGatePort),
        (service_end().mac, Verdict::ReplyChallenge),
    ] {
        let mut request = device.request(0x33);
        request[..6].copy_from_slice(&mac);
        tester.expect(verdict, &request);
    }
}

pub fn owners() -> Stf {
    let mut tester = new_tester_with("owners", Gate::Sealed, |config| config.bindings_max = 2);
    set(&mut tester, Gate::Sealed);
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
    set(&mut tester, Gate::Bound);
    tester.comment("MAC addresses in buckets 1 and 2, IP addresses in separate buckets.");
    spread(&mut tester, [0, 0, 0, 1 << 46 | 2 << 28, 1]);
    refresh(&mut tester);
    let devices: Vec<Device> = (1..=5)
        .map(|number| {
            let from = Endpoint {
                ip: Ipv6Addr::new(0xfd66, number.into(), 0, 0, 0, 0, 0, 1).into(),
                ..device_end(number)
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
        tester.expect(Verdict::PassSession, &device.frame(v6(service_end()), b"found"));
    }
    tester.expect(Verdict::DropGate, &last.frame(v6(service_end()), b"not found"));
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
        tester.expect(Verdict::PassSession, &device.frame(v6(service_end()), b"found"));
    }
    tester.expect(Verdict::DropGate, &wiped.frame(v6(service_end()), b"closed"));
    tester.finish()
}

/// Messages of unknown devices go to the slow path, which passes them to the program again.
pub fn unknown_devices() -> Stf {
    let mut tester = new_tester_with("unknown-devices", Gate::Bound, |config| {
        config.miss_per_s = u32::MAX
    });
    set_with(&mut tester, Gate::Bound, true);
    refresh(&mut tester);
    let near = device(1, Mode::Pool);
    let far = Device {
        from: v6(device_end(2)),
        ..device(2, Mode::Key)
    };
    tester.comment("A REQUEST, and a RESPONSE with an accepted value, go to the control plane as they came.");
    for unknown in [&near, &far] {
        tester.expect(Verdict::SlowPath, &unknown.request(0x33));
        tester.expect(Verdict::SlowPath, &unknown.response(4, FRESH, true));
        tester.expect(Verdict::SlowPath, &unknown.response(4, PREVIOUS_FRESH, false));
        tester.expect(Verdict::DropUnknownDevice, &unknown.response(4, FRESH ^ 1, true));
    }
    tester.comment("After its device is installed, a message passes through the program as if it had arrived on its port.");
    install(&mut tester, &near, 4, 3, None);
    let response = near.response(4, FRESH, true);
    tester.through(&response, Verdict::ReplyAck);
    tester.expect(Verdict::ReplyAckRepeated, &response);
    tester.expect(
        Verdict::PassSession,
        &near.frame(service_end(), b"from the port that the session is bound to"),
    );
    tester.comment("Messages of devices that are not enrolled are dropped.");
    tester.stf.line("register_write LapIngress.filtering 0 1");
    tester.dropped(Verdict::DropUnknownDevice, &far.request(0x44));
    tester.stf.line(&format!(
        "add LapIngress.enrolled hdr.lap.device_id:{:#x} NoAction()",
        far.id().0
    ));
    tester.expect(Verdict::SlowPath, &far.request(0x44));
    tester.finish()
}
