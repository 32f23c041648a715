//! lap.p4: RESPONSEs that win, and all that do not; who owns an address.

use std::collections::BTreeMap;

use linewarden_protocol::classic::crc32::Crc32;
use linewarden_protocol::frame::ip_bytes;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::gateway::Gate;
use linewarden_protocol::ids::{Mode, RowIndex};
use linewarden_protocol::verdict::Verdict;

use super::bench::{device_end, service_end, v6};
use super::lap::{
    Device, FRESH, FRESH_BEFORE, PAYLOAD, bench, bench_with, bent, device, down, install, refresh, set,
};
use super::stf::Stf;

const CPU_PORT: u16 = 510;

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
    let stranger = device(9, Mode::Pool);
    bench.say("The control plane's own frames go where it says, whatever the gate.");
    let frame = pool.frame(service_end(), b"from the control plane");
    bench
        .stf
        .packet(CPU_PORT, &[&[0, 3][..], &frame].concat())
        .expect(3, &frame);
    bench.say("Nothing is set: nothing is answered.");
    bench.expect(Verdict::DropStopped, &pool.request(1));
    set(&mut bench, Gate::Open, false);
    install(&mut bench, &pool, 4, 6, None);
    install(&mut bench, &weak, 0, 1, None);
    install(&mut bench, &far, 1, 3, None);
    install(&mut bench, &empty, 8, 0, None);
    install(&mut bench, &marked, 3, 3, Some(4));
    install(&mut bench, &revoked, 3, 3, None);
    install(&mut bench, &last, u32::MAX, 1, None);
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
    set(&mut bench, Gate::Open, true);
    bench.expect(Verdict::ReplyNak, &pool.request(0x44));
    bench.expect(Verdict::ReplyNak, &empty.request(0x44));
    set(&mut bench, Gate::Open, false);
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

/// Three addresses whose owners lie in one bucket of the program's, which holds two.
fn crowded() -> [Endpoint; 3] {
    const BUCKETS: u32 = 1 << 18;
    let mut buckets = BTreeMap::<u32, Vec<[u8; 4]>>::new();
    for last in 1..1u32 << 22 {
        let [_, second, third, fourth] = last.to_be_bytes();
        let address = [10, second, third, fourth];
        let mapped = ip_bytes(address.into());
        let found = buckets
            .entry(Crc32::new().update(&mapped).finish() % BUCKETS)
            .or_default();
        found.push(address);
        if let [a, b, c] = found[..] {
            let mut number = 0;
            return [a, b, c].map(|ip| {
                number += 1;
                Endpoint {
                    ip: ip.into(),
                    ..device_end(number)
                }
            });
        }
    }
    panic!("no bucket has three");
}

pub fn owners() -> Stf {
    let mut bench = bench_with("owners", Gate::Sealed, |config| config.bindings_max = 2);
    set(&mut bench, Gate::Sealed, false);
    refresh(&mut bench);
    let [a, b, c] = crowded().map(|from| Device {
        from,
        ..device(from.mac[5], Mode::Key)
    });
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
