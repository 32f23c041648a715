//! lap.p4: RESPONSEs that win, and all that do not; who owns an address.

use std::net::{IpAddr, Ipv6Addr};

use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::gateway::Gate;
use linewarden_protocol::ids::{Mode, RowIndex};
use linewarden_protocol::verdict::Verdict;

use super::bench::{Bench, CPU_PORT, device_end, service_end, v6};
use super::lap::{
    Device, FRESH, FRESH_BEFORE, PAYLOAD, bench, bench_with, bent, device, down, install, refresh, set,
    set_stopping, set_with, spread,
};
use super::stf::Stf;

pub fn handshakes() -> Stf {
    let mut bench = bench("handshakes", Gate::Open);
    let pool = device(1, Mode::Pool);
    let weak = device(2, Mode::Key);
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
    let stranger = device(9, Mode::Pool);
    bench.say("The control plane's own frames go where it says, whatever the gate.");
    let frame = pool.frame(service_end(), b"from the control plane");
    bench
        .stf
        .packet(CPU_PORT, &[&[0, 3, 0, 0][..], &frame].concat())
        .expect(3, &frame);
    bench.say("Nothing is set: nothing is answered.");
    bench.expect(Verdict::DropStopped, &pool.request(1));
    set(&mut bench, Gate::Open);
    install(&mut bench, &pool, 4, 6, None);
    install(&mut bench, &weak, 0, 1, None);
    install(&mut bench, &far, 1, 3, None);
    install(&mut bench, &empty, 8, 0, None);
    install(&mut bench, &marked, 3, 3, Some(4));
    install(&mut bench, &revoked, 3, 3, None);
    install(&mut bench, &last, u32::MAX, 1, None);
    install(&mut bench, &last_row, u32::MAX, 1, None);
    bench.stf.line("register_write LapIngress.revoked 6 1");
    bench.gateway.revoke(revoked.id()).unwrap();
    bench.say("No freshness value was drawn yet.");
    bench.expect(Verdict::DropStopped, &pool.request(1));
    bench.expect(Verdict::DropStopped, &pool.response(4, FRESH, true));
    refresh(&mut bench);
    bench.say("A REQUEST is answered from the row, the same again and again; a NAK says why not.");
    for asked in [&pool, &weak, &far, &marked, &last] {
        bench.expect(Verdict::ReplyChallenge, &asked.request(0x33));
        bench.expect(Verdict::ReplyChallenge, &asked.request(0x33));
    }
    bench.expect(Verdict::ReplyNak, &empty.request(0x33));
    bench.expect(Verdict::DropRevoked, &revoked.request(0x33));
    bench.expect(Verdict::DropUnknownDevice, &stranger.request(0x33));
    set_stopping(&mut bench, true);
    bench.expect(Verdict::ReplyNak, &pool.request(0x44));
    bench.expect(Verdict::ReplyNak, &empty.request(0x44));
    set_stopping(&mut bench, false);
    elsewhere(&mut bench, &pool);
    bench.say("What a RESPONSE is refused for; nothing is spent.");
    bench.expect(Verdict::DropUnknownDevice, &stranger.response(4, FRESH, true));
    bench.expect(Verdict::DropRevoked, &revoked.response(3, FRESH, true));
    bench.expect(Verdict::DropIndex, &pool.response(5, FRESH, true));
    bench.expect(Verdict::DropIndex, &pool.response(2, FRESH, true));
    bench.expect(Verdict::DropReplay, &pool.response(3, FRESH, true));
    bench.expect(Verdict::DropNoRows, &empty.response(8, FRESH, true));
    bench.expect(Verdict::DropFresh, &pool.response(4, FRESH ^ 1, true));
    bench.expect(Verdict::DropFresh, &pool.response(4, 0, true));
    bench.expect(Verdict::DropNoRows, &last.response(u32::MAX, FRESH, true));
    bench.expect(Verdict::DropNoRows, &last_row.response(u32::MAX, FRESH, true));
    let right = pool.response(4, FRESH, true);
    bench.expect(Verdict::DropGateway, &bent(&right, PAYLOAD + 39));
    for at in (16..32).chain(48..64) {
        bench.expect(Verdict::DropTag, &bent(&right, PAYLOAD + at));
    }
    let mut unbound = right.clone();
    unbound[PAYLOAD + 5] = 0;
    bench.expect(Verdict::DropTag, &unbound);
    let mut moved = right.clone();
    moved[11] ^= 0x10;
    bench.expect(Verdict::DropTag, &moved);
    bench.say(
        "Sessions: bound and not, the value before this one, IPv6 behind a tag; the first ACK may be lost.",
    );
    bench.expect(Verdict::DropGate, &pool.frame(service_end(), b"before"));
    bench.expect(Verdict::ReplyAck, &right);
    bench.expect(Verdict::ReplyAckAgain, &right);
    bench.expect(Verdict::PassSession, &pool.frame(service_end(), b"after"));
    bench.expect(Verdict::ReplyAck, &weak.response(0, FRESH_BEFORE, false));
    bench.expect(Verdict::ReplyAckAgain, &weak.response(0, FRESH_BEFORE, false));
    bench.expect(Verdict::DropReplay, &weak.response(0, FRESH, false));
    bench.expect(Verdict::DropGate, &weak.frame(service_end(), b"not bound"));
    bench.expect(Verdict::ReplyAck, &far.response(1, FRESH, true));
    bench.expect(Verdict::PassSession, &far.frame(v6(service_end()), b"after"));
    let untagged = Device { vlan: None, ..far };
    bench.expect(
        Verdict::DropGate,
        &untagged.frame(v6(service_end()), b"elsewhere"),
    );
    bench.say("Only the very winner, from where it was, is answered again.");
    let elsewhere = Device {
        from: Endpoint {
            port: 40_001,
            ..pool.from
        },
        ..pool
    };
    bench.expect(Verdict::DropReplay, &elsewhere.response(4, FRESH, true));
    bench.expect(Verdict::DropReplay, &bent(&right, PAYLOAD + 63));
    bench.expect(Verdict::DropReplay, &bent(&right, PAYLOAD + 48));
    bench.say("A port is part of where it is.");
    let (verdict, _) = bench.send_on(3, &right);
    assert_eq!(verdict, Verdict::DropReplay);
    let (verdict, _) = bench.send_on(3, &pool.frame(service_end(), b"elsewhere"));
    assert_eq!(verdict, Verdict::DropGate);
    bench.say("Renewal, with the next row and with the same key.");
    bench.expect(Verdict::ReplyChallenge, &pool.request(0x55));
    bench.expect(Verdict::ReplyAck, &pool.response(5, FRESH, true));
    bench.expect(Verdict::DropIndex, &right);
    for idx in 1..4 {
        bench.expect(Verdict::ReplyChallenge, &weak.request(0x66));
        bench.expect(Verdict::ReplyAck, &weak.response(idx, FRESH, true));
        bench.expect(Verdict::PassSession, &weak.frame(service_end(), b"bound"));
    }
    bench.say("An address is one live session's: nobody else opens one there, until it moves.");
    let thief = Device {
        from: pool.from,
        ..marked
    };
    bench.expect(Verdict::DropAddressOwned, &thief.response(3, FRESH, true));
    let same_mac = Device {
        from: Endpoint {
            mac: pool.from.mac,
            ..marked.from
        },
        ..marked
    };
    bench.expect(Verdict::DropAddressOwned, &same_mac.response(3, FRESH, true));
    let moved = Device {
        from: Endpoint {
            mac: [2, 0, 0, 0, 0, 14],
            ip: [10, 66, 0, 14].into(),
            port: 40_000,
        },
        ..pool
    };
    bench.expect(Verdict::ReplyAck, &moved.response(6, FRESH, true));
    bench.expect(Verdict::DropGate, &pool.frame(service_end(), b"left"));
    bench.expect(Verdict::PassSession, &moved.frame(service_end(), b"there"));
    bench.expect(Verdict::ReplyAck, &thief.response(3, FRESH, true));
    bench.expect(Verdict::PassSession, &pool.frame(service_end(), b"taken"));
    bench.say("Rows are spent up to the mark.");
    bench.expect(Verdict::ReplyChallenge, &thief.request(0x77));
    bench.expect(Verdict::DropMark, &thief.response(4, FRESH, true));
    bench.stf.line("register_write LapIngress.marks 5 6");
    bench.gateway.grant(marked.id(), RowIndex(6)).unwrap();
    bench.expect(Verdict::ReplyAck, &thief.response(4, FRESH, true));
    bench.say("Revocation and the end of the freshness value are seen at once.");
    bench.stf.line("register_write LapIngress.revoked 1 1");
    bench.gateway.revoke(pool.id()).unwrap();
    bench.expect(Verdict::DropGate, &moved.frame(service_end(), b"revoked"));
    bench.expect(Verdict::DropRevoked, &moved.response(6, FRESH, true));
    bench.say("The last rows.");
    bench.expect(Verdict::ReplyAck, &far.response(2, FRESH, true));
    bench.expect(Verdict::ReplyAck, &far.response(3, FRESH, true));
    bench.expect(Verdict::ReplyNak, &far.request(0x88));
    bench.expect(Verdict::DropNoRows, &far.response(4, FRESH, true));
    bench.say("Bent: whatever the oracle makes of them.");
    let frames = [
        weak.request(0x99),
        weak.response(4, FRESH, true),
        weak.response(3, FRESH, true),
        far.request(0x99),
        far.response(3, FRESH, true),
        weak.frame(service_end(), b"passes"),
    ];
    bench.bend(0x5eed_0004, 300, &frames);
    bench.say("The control plane has stopped: nothing is answered any more, sessions live.");
    bench.stf.line("register_write LapIngress.fresh_until_us 0 0");
    bench.now = bench.now.plus_ms(17_000);
    bench.expect(Verdict::DropStopped, &weak.request(0xaa));
    bench.expect(Verdict::DropStopped, &weak.response(4, FRESH, true));
    bench.expect(Verdict::PassSession, &far.frame(v6(service_end()), b"lives"));
    bench.finish()
}

/// From addresses that no device has, and for other stations: nothing is answered or spent.
fn elsewhere(bench: &mut Bench, device: &Device) {
    bench.say("From addresses outside the prefixes, and from the gateway's own; a device's edge addresses.");
    let at = |ip: IpAddr| Device {
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
        let there = at(source.parse().unwrap());
        let verdict = match admits {
            true => Verdict::ReplyChallenge,
            false => Verdict::DropSourceNotDevice,
        };
        bench.expect(verdict, &there.request(0x33));
        if !admits {
            bench.expect(verdict, &there.response(4, FRESH, true));
        }
    }
    bench.say("To another station's MAC address, of devices or unknown; to the address of another service.");
    for (mac, verdict) in [
        (device_end(2).mac, Verdict::DropGatePort),
        ([2, 0, 0, 0, 0xaa, 1], Verdict::DropGatePort),
        (service_end().mac, Verdict::ReplyChallenge),
    ] {
        let mut request = device.request(0x33);
        request[..6].copy_from_slice(&mac);
        bench.expect(verdict, &request);
    }
}

pub fn owners() -> Stf {
    let mut bench = bench_with("owners", Gate::Sealed, |config| config.bindings_max = 2);
    set(&mut bench, Gate::Sealed);
    bench.say("All addresses in one bucket.");
    spread(&mut bench, [0; 5]);
    refresh(&mut bench);
    let [a, b, c] = [1, 2, 3].map(|number| device(number, Mode::Key));
    for device in [&a, &b, &c] {
        install(&mut bench, device, 0, 1, None);
    }
    bench.say("A bucket holds two owners; nothing is spent on a third.");
    bench.expect(Verdict::ReplyAck, &a.response(0, FRESH, false));
    bench.expect(Verdict::ReplyAck, &b.response(0, FRESH, false));
    bench.expect(Verdict::DropTableFull, &c.response(0, FRESH, false));
    bench.expect(Verdict::DropTableFull, &c.response(0, FRESH, false));
    bench.say("Both go on, and each is found.");
    bench.expect(Verdict::ReplyAck, &b.response(1, FRESH, false));
    bench.expect(Verdict::ReplyAck, &a.response(1, FRESH, false));
    for device in [&a, &b] {
        bench.expect(Verdict::PassData, &device.data_up(1, false, 1, 9000, b"found"));
        bench.expect_down(Verdict::PassSealed, &down(device.from).udp(b"found"));
    }
    bench.expect_down(Verdict::DropSession, &down(c.from).udp(b"not found"));
    bench.say("A session that is closed makes room.");
    bench.stf.line("register_write LapIngress.session_ids 1 0");
    bench.gateway.wipe(a.id()).unwrap();
    bench.gateway.sweep_bindings();
    bench.expect_down(Verdict::DropSession, &down(a.from).udp(b"closed"));
    bench.expect(Verdict::ReplyAck, &c.response(0, FRESH, false));
    bench.expect_down(Verdict::PassSealed, &down(c.from).udp(b"found"));
    bench.expect_down(Verdict::PassSealed, &down(b.from).udp(b"still found"));
    bench.finish()
}

/// MAC addresses that meet in both of their buckets.
pub fn places() -> Stf {
    let mut bench = bench_with("places", Gate::Open, |config| config.bindings_max = 4);
    set(&mut bench, Gate::Open);
    bench.say("MAC addresses in buckets 1 and 2, IP addresses in buckets of their own.");
    spread(&mut bench, [0, 0, 0, 1 << 46 | 2 << 28, 1]);
    refresh(&mut bench);
    let all: Vec<Device> = (1..=5)
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
    for device in &all {
        install(&mut bench, device, 0, 1, None);
    }
    let (last, first) = all.split_last().unwrap();
    bench.say("Four have a place, and each is found; nothing is spent on a fifth.");
    for device in first {
        bench.expect(Verdict::ReplyAck, &device.response(0, FRESH, true));
    }
    bench.expect(Verdict::DropTableFull, &last.response(0, FRESH, true));
    for device in first {
        bench.expect(Verdict::PassSession, &device.frame(v6(service_end()), b"found"));
    }
    bench.expect(Verdict::DropGate, &last.frame(v6(service_end()), b"not found"));
    bench.say("They go on in their places; whose session is closed makes room.");
    for device in first {
        bench.expect(Verdict::ReplyAck, &device.response(1, FRESH, true));
    }
    let gone = &first[2];
    bench.stf.line("register_write LapIngress.session_ids 3 0");
    bench.gateway.wipe(gone.id()).unwrap();
    bench.gateway.sweep_bindings();
    bench.expect(Verdict::ReplyAck, &last.response(0, FRESH, true));
    for device in all.iter().filter(|device| device.number != gone.number) {
        bench.expect(Verdict::PassSession, &device.frame(v6(service_end()), b"found"));
    }
    bench.expect(Verdict::DropGate, &gone.frame(v6(service_end()), b"closed"));
    bench.finish()
}

/// Devices that are not here: the slow path takes their messages, and hands them to the program again.
pub fn strangers() -> Stf {
    let mut bench = bench_with("strangers", Gate::Open, |config| config.miss_per_s = u32::MAX);
    set_with(&mut bench, Gate::Open, true);
    refresh(&mut bench);
    let near = device(1, Mode::Pool);
    let far = Device {
        from: v6(device_end(2)),
        ..device(2, Mode::Key)
    };
    bench.say("A REQUEST, and a RESPONSE with an accepted value, go to the control plane as they came.");
    for stranger in [&near, &far] {
        bench.expect(Verdict::SlowPath, &stranger.request(0x33));
        bench.expect(Verdict::SlowPath, &stranger.response(4, FRESH, true));
        bench.expect(Verdict::SlowPath, &stranger.response(4, FRESH_BEFORE, false));
        bench.expect(Verdict::DropUnknownDevice, &stranger.response(4, FRESH ^ 1, true));
    }
    bench.say("Once its device is here, a message goes through the program as if it came by its port.");
    install(&mut bench, &near, 4, 3, None);
    let response = near.response(4, FRESH, true);
    bench.through(&response, Verdict::ReplyAck);
    bench.expect(Verdict::ReplyAckAgain, &response);
    bench.expect(
        Verdict::PassSession,
        &near.frame(service_end(), b"from the port that the session is bound to"),
    );
    bench.say("Of those who are not enrolled nothing is taken.");
    bench.stf.line("register_write LapIngress.filtering 0 1");
    bench.dropped(Verdict::DropUnknownDevice, &far.request(0x44));
    bench.stf.line(&format!(
        "add LapIngress.enrolled hdr.lap.device_id:{:#x} NoAction()",
        far.id().0
    ));
    bench.expect(Verdict::SlowPath, &far.request(0x44));
    bench.finish()
}
