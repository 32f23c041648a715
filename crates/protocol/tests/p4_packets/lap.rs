//! lap.p4: the gateway's fast path against the oracle.

use std::collections::BTreeMap;

use linewarden_protocol::classic::crc32::Crc32;
use linewarden_protocol::data::{Channel, Direction, Route, Sequence, seal};
use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::ip_bytes;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::gateway::{DeviceInstall, FreshValue, Gate, Gateway, GatewayConfig, Row};
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, SessionId, Suite};
use linewarden_protocol::keys::{AuthKey, RowKey, SessionKey};
use linewarden_protocol::tag;
use linewarden_protocol::verdict::{Disposition, Verdict};
use linewarden_protocol::wire::{FLAG_BOUND, Header, LAP_PORT, Request, Response, message_type};
use zerocopy::IntoBytes as _;
use zerocopy::byteorder::big_endian::U32;

use super::bench::{Bench, GATEWAY, OWN_V6, PORT, SERVICE_PORT, device_end, gateway_end, service_end, v6};
use super::stf::Stf;

const SUITE: Suite = Suite::SipHash128;
const LEASE_S: u32 = 600;
const MTU: u16 = 1500;
const FRESH: u64 = 0x4e5f_0001_0203_0405;
const FRESH_BEFORE: u64 = 0x1e5f_a1a2_a3a4_a5a6;
const LATER_US: u64 = 1 << 46;

/// A device: number, how its credential works, where it is.
#[derive(Clone, Copy)]
struct Device {
    number: u8,
    mode: Mode,
    from: Endpoint,
    vlan: Option<u16>,
}

fn device(number: u8, mode: Mode) -> Device {
    Device {
        number,
        mode,
        from: device_end(number),
        vlan: None,
    }
}

impl Device {
    fn id(&self) -> DeviceId {
        DeviceId(0x0101_0202_0303_0000 + u64::from(self.number))
    }

    fn row(&self, idx: u32) -> Row {
        let mut bytes: [u8; 16] =
            std::array::from_fn(|at| self.number.wrapping_mul(17) ^ u8::try_from(at).unwrap());
        let mut challenge = [0; 8];
        if self.mode == Mode::Pool {
            bytes[8..12].copy_from_slice(&idx.to_le_bytes());
            challenge = [0xc0, 1, 2, 3, 4, 5, 6, idx.to_le_bytes()[0]];
        }
        let auth_key = AuthKey::derive(
            &RowKey::from_bytes(bytes),
            SUITE,
            self.mode,
            RowIndex(idx),
            GATEWAY,
        );
        Row { challenge, auth_key }
    }

    fn frame(&self, to: Endpoint, payload: &[u8]) -> Vec<u8> {
        let to = if self.from.ip.is_ipv6() && to.ip.is_ipv4() {
            v6(to)
        } else {
            to
        };
        let builder = FrameBuilder::new(self.from, to);
        match self.vlan {
            Some(vid) => builder.vlan(vid).udp(payload),
            None => builder.udp(payload),
        }
    }

    fn request(&self, nonce: u8) -> Vec<u8> {
        let request = Request {
            header: Header::new(message_type::REQUEST, SUITE, 0, self.id()),
            nonce: std::array::from_fn(|at| nonce.wrapping_add(u8::try_from(at * 9).unwrap())),
            reserved: [0; 32],
        };
        self.frame(gateway_end(), request.as_bytes())
    }

    fn message(&self, idx: u32, fresh: u64, bound: bool) -> Response {
        let flags = if bound { FLAG_BOUND } else { 0 };
        let mut response = Response {
            header: Header::new(message_type::RESPONSE, SUITE, flags, self.id()),
            nonce: [0x4e; 16],
            idx: U32::new(idx),
            gateway_id: U32::new(GATEWAY.0),
            fresh: fresh.to_be_bytes(),
            tag: [0; 16],
        };
        let loc = tag::loc(bound.then_some(self.from.mac));
        response.tag = tag::response(&self.row(idx).auth_key, &response, &loc);
        response
    }

    fn response(&self, idx: u32, fresh: u64, bound: bool) -> Vec<u8> {
        self.frame(gateway_end(), self.message(idx, fresh, bound).as_bytes())
    }

    /// The keys of the session that the RESPONSE for that row opens.
    fn session(&self, idx: u32, bound: bool) -> (SessionId, SessionKey) {
        let response = self.message(idx, FRESH, bound);
        let key = SessionKey::derive(&self.row(idx).auth_key, SUITE, &response.tag);
        (
            SessionId::from_wire(response.tag[..8].try_into().unwrap()).unwrap(),
            key,
        )
    }

    fn data_up(&self, idx: u32, bound: bool, seq: u32, port: u16, payload: &[u8]) -> Vec<u8> {
        let (session, key) = self.session(idx, bound);
        let to = if self.from.ip.is_ipv6() {
            v6(service_end())
        } else {
            service_end()
        };
        let to = Endpoint { port: LAP_PORT, ..to };
        let route = Route {
            source: ip_bytes(self.from.ip),
            destination: ip_bytes(to.ip),
        };
        let channel = Channel {
            suite: SUITE,
            device: self.id(),
            session,
            addr: ip_bytes(self.from.ip),
            key: &key,
        };
        let mut message = vec![0; 56 + payload.len()];
        let seq = Sequence::from_wire(seq.into()).unwrap();
        seal(&channel, Direction::Up, seq, port, &route, payload, &mut message).unwrap();
        self.frame(to, &message)
    }
}

fn bench(what: &str, gate: Gate) -> Bench {
    bench_with(what, gate, |_| {})
}

fn bench_with(what: &str, gate: Gate, configure: impl FnOnce(&mut GatewayConfig)) -> Bench {
    let mut config = GatewayConfig::new(GATEWAY, &[gateway_end().ip, OWN_V6.into()]);
    config.gate = gate;
    configure(&mut config);
    config.lease_s = LEASE_S;
    let mut bench = Bench::bridging(
        "LapIngress",
        ", devices:0",
        Stf::new("lap", what),
        Gateway::new(config),
    );
    for number in 1..16u8 {
        bench.bridged.insert(device_end(number).mac, PORT);
        bench.stf.line(&format!(
            "add LapIngress.bridge hdr.net.ethernet.dst:0x0200000000{number:02x} to_port(port:{PORT}, devices:1)"
        ));
    }
    bench.stf.line(&format!(
        "add LapIngress.ports standard.ingress_port:{SERVICE_PORT} services()"
    ));
    bench
}

fn set(bench: &mut Bench, gate: Gate, stopping: bool) {
    let gate = match gate {
        Gate::Sealed => 0,
        Gate::Open => 1,
        Gate::Off => 2,
    };
    bench.gateway.set_stopping(stopping);
    bench.stf.line(&format!(
        "setdefault LapIngress.gateway set_gateway(gateway_id:{}, lease_s:{LEASE_S}, gate:{gate}, mtu:{MTU}, stopping:{})",
        GATEWAY.0,
        u8::from(stopping)
    ));
}

/// Draws both freshness values.
fn refresh(bench: &mut Bench) {
    for (index, value) in [(1, FRESH_BEFORE), (0, FRESH)] {
        bench
            .stf
            .line(&format!("register_write LapIngress.fresh {index} {value}"));
        let value = FreshValue::from_wire(value.to_be_bytes()).unwrap();
        bench.gateway.set_fresh(value, bench.now);
    }
    bench
        .stf
        .line(&format!("register_write LapIngress.fresh_until_us 0 {LATER_US}"));
}

fn install(bench: &mut Bench, device: &Device, first: u32, rows: u32, mark: Option<u32>) {
    let number = device.number;
    let key_mode = device.mode == Mode::Key;
    bench.stf.line(&format!(
        "add LapIngress.devices hdr.lap.device_id:{:#x} set_device(device:{number}, key_mode:{})",
        device.id().0,
        u8::from(key_mode)
    ));
    let rows: Vec<Row> = (0..rows).map(|ahead| device.row(first + ahead)).collect();
    for (ahead, row) in (0..).zip(&rows) {
        let idx = first + ahead;
        let [key0, key1] = [0..8, 8..16].map(|half| hex::encode(&row.auth_key.as_bytes()[half]));
        let keys = format!("key0:0x{key0}, key1:0x{key1}");
        if key_mode {
            bench.stf.line(&format!(
                "add LapIngress.keys meta.device:{number} set_key({keys})"
            ));
        } else {
            bench.stf.line(&format!(
                "add LapIngress.rows meta.device:{number} meta.next:{idx} set_row(challenge:0x{}, {keys})",
                hex::encode(row.challenge)
            ));
        }
    }
    bench
        .stf
        .line(&format!("register_write LapIngress.next_idx {number} {first}"));
    bench.stf.line(&format!(
        "register_write LapIngress.marks {number} {}",
        mark.unwrap_or(u32::MAX)
    ));
    bench
        .gateway
        .install(DeviceInstall {
            device: device.id(),
            mode: device.mode,
            next_idx: RowIndex(first),
            rows,
            mark: mark.map(RowIndex),
        })
        .unwrap();
}

fn bent(frame: &[u8], at: usize) -> Vec<u8> {
    let mut bent = frame.to_vec();
    bent[at] ^= 0x10;
    bent
}

/// Where the payload of an untagged IPv4 datagram begins.
const PAYLOAD: usize = 42;

fn handshakes() -> Stf {
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

/// Frames that are no messages: each gate's list.
fn foreign(bench: &mut Bench) {
    let from = device_end(1);
    let to_service = FrameBuilder::new(from, service_end());
    let to_us = FrameBuilder::new(from, gateway_end());
    let far = FrameBuilder::new(v6(from), v6(service_end()));
    let to_lap = FrameBuilder::new(
        from,
        Endpoint {
            port: LAP_PORT,
            ..service_end()
        },
    );
    let mut cut = to_service.udp(b"cut");
    cut.truncate(30);
    let mut long = to_service.udp(b"length");
    long[38] = 1;
    let mut ours = to_us.udp(b"length");
    ours[38] = 1;
    for frame in [
        to_service.udp(b"datagram"),
        to_service.ip(6, b"segment"),
        to_service.arp_request(),
        to_service.ethernet(0x88cc, b"lldp"),
        to_service.clone().vlan(1).vlan(2).vlan(3).udp(b"three tags"),
        to_service.clone().fragment(0, true).udp(b"first"),
        to_service.clone().options(&[1]).udp(b"options"),
        to_us.clone().fragment(2, false).udp(b"last"),
        to_us.clone().options(&[1]).udp(b"options"),
        to_us.udp(b"short"),
        to_us.udp(b""),
        to_service.dhcp(),
        far.dhcp(),
        far.neighbour_solicitation([0xfd; 16]),
        far.icmpv6(134, &[0; 12]),
        far.icmpv6(137, &[0; 12]),
        far.icmpv6(128, &[0; 12]),
        far.clone().extension(0).udp(b"extension"),
        far.clone().extension(44).udp(b"fragment"),
        far.clone().fragment(0, false).udp(b"fragment"),
        to_lap.udp(&[0; 64]),
        to_lap.udp(&[0; 4]),
        far.ip(58, b""),
        cut,
        long,
        ours,
    ] {
        bench.send(&frame);
    }
}

fn gates() -> Vec<Stf> {
    [("off", Gate::Off), ("open", Gate::Open), ("sealed", Gate::Sealed)]
        .into_iter()
        .map(|(name, gate)| {
            let mut bench = bench(&format!("gate_{name}"), gate);
            set(&mut bench, gate, false);
            bench.say("What is no message.");
            foreign(&mut bench);
            bench.say("Messages in the wrong direction, of types that are not served, and malformed ones.");
            let pool = device(1, Mode::Pool);
            install(&mut bench, &pool, 4, 3, None);
            refresh(&mut bench);
            for kind in 0..20 {
                for bytes in [16, 55, 56, 64, 72, 96] {
                    let length = u16::try_from(bytes).unwrap();
                    let header = Header::with_length(kind, SUITE, 0, pool.id(), length);
                    let mut message = header.as_bytes().to_vec();
                    message.resize(bytes, 0);
                    bench.send(&pool.frame(gateway_end(), &message));
                }
            }
            let mut frames = vec![pool.request(0x21), pool.response(4, FRESH ^ 1, true)];
            frames.push(FrameBuilder::new(device_end(1), service_end()).udp(b"datagram"));
            frames.push(FrameBuilder::new(device_end(1), service_end()).arp_request());
            frames.push(FrameBuilder::new(v6(device_end(1)), v6(service_end())).dhcp());
            bench.say("Bent: whatever the oracle makes of them.");
            bench.bend(0x5eed_0005, 150, &frames);
            bench.finish()
        })
        .collect()
}

impl Bench {
    /// A frame that comes in from the service's side.
    fn send_down(&mut self, frame: &[u8]) -> Verdict {
        self.stf.packet(SERVICE_PORT, frame);
        let mut out = frame.to_vec();
        let verdict = self.gateway.seal_frame(self.now, MTU.into(), false, &mut out);
        self.note(verdict);
        if verdict.disposition() == Disposition::Pass {
            self.stf.expect(PORT, &out);
        }
        verdict
    }

    fn expect_down(&mut self, verdict: Verdict, frame: &[u8]) {
        assert_eq!(self.send_down(frame), verdict);
    }
}

/// From the service to a device.
fn down(to: Endpoint) -> FrameBuilder {
    let from = if to.ip.is_ipv6() {
        v6(service_end())
    } else {
        service_end()
    };
    FrameBuilder::new(from, to)
}

fn sealed() -> Stf {
    let mut bench = bench("sealed", Gate::Sealed);
    set(&mut bench, Gate::Sealed, false);
    let near = device(1, Mode::Pool);
    let far = Device {
        from: v6(device_end(2)),
        ..device(2, Mode::Key)
    };
    let absent = device(3, Mode::Pool);
    install(&mut bench, &near, 4, 3, None);
    install(&mut bench, &far, 0, 1, None);
    install(&mut bench, &absent, 1, 1, None);
    refresh(&mut bench);
    let text: Vec<u8> = (0..200).map(|at: u8| at.wrapping_mul(7)).collect();
    bench.say("Without a session nothing passes.");
    bench.expect(Verdict::DropSession, &near.data_up(4, false, 1, 9000, b"early"));
    bench.expect_down(Verdict::DropSession, &down(near.from).udp(b"early"));
    bench.expect(Verdict::ReplyAck, &near.response(4, FRESH, false));
    bench.expect(Verdict::ReplyAck, &far.response(0, FRESH, true));
    bench.expect(Verdict::DropGate, &near.frame(service_end(), b"not sealed"));
    bench.say("Upwards: every size of payload, IPv4 and IPv6.");
    let mut seq = 0;
    for bytes in (0..=24).chain([31, 32, 33, 63, 64, 100, 120, 127, 128]) {
        seq += 1;
        bench.expect(
            Verdict::PassData,
            &near.data_up(4, false, seq, 9000, &text[..bytes]),
        );
        bench.expect(
            Verdict::PassData,
            &far.data_up(0, true, seq, 0x1234, &text[..bytes]),
        );
    }
    bench.say("Downwards, likewise.");
    for bytes in (0..=24).chain([31, 32, 33, 63, 64, 100, 120, 127, 128]) {
        let datagram = &text[..bytes];
        bench.expect_down(Verdict::PassSealed, &down(near.from).udp(datagram));
        bench.expect_down(Verdict::PassSealed, &down(far.from).vlan(9).udp(datagram));
    }
    bench.say("Numbers: a window of 24, each once, in any order.");
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
        bench.expect(verdict, &near.data_up(4, false, seq, 9000, b"window"));
    }
    bench.say("Each byte counts, and so do the ends.");
    let right = far.data_up(0, true, 500, 9000, &text[..29]);
    let payload = PAYLOAD + 20;
    bench.expect(Verdict::DropSession, &bent(&right, payload + 20));
    bench.expect(Verdict::DropSequence, &bent(&right, payload + 25));
    for at in [30, 32, 33].into_iter().chain(40..56).chain(56..85) {
        bench.expect(Verdict::DropTag, &bent(&right, payload + at));
    }
    bench.expect(Verdict::DropSource, &bent(&right, 37));
    bench.expect(Verdict::DropTag, &bent(&right, 53));
    for port in [0, LAP_PORT] {
        bench.expect(Verdict::DropGatePort, &near.data_up(4, false, 7, port, b"port"));
    }
    bench.expect(Verdict::DropSession, &absent.data_up(1, false, 1, 9000, b"none"));
    bench.expect(
        Verdict::DropUnknownDevice,
        &device(9, Mode::Pool).data_up(1, false, 1, 9000, b"none"),
    );
    bench.expect(Verdict::PassData, &right);
    bench.say(
        "Checksums: none over IPv4 stays none, a wrong one stays wrong; what stands behind the packet goes.",
    );
    let mut none = far.data_up(0, true, 501, 9000, b"behind");
    none.extend_from_slice(&[0xee; 9]);
    bench.expect(Verdict::PassData, &none);
    bench.expect(Verdict::ReplyAck, &near.response(5, FRESH, false));
    let mut none = near.data_up(5, false, 1, 9000, b"no checksum");
    none[40..42].fill(0);
    bench.expect(Verdict::PassData, &none);
    let wrong = bent(&near.data_up(5, false, 2, 9000, b"wrong checksum"), 41);
    bench.expect(Verdict::PassData, &wrong);
    let mut none = down(near.from).udp(b"no checksum");
    none[40..42].fill(0);
    none.extend_from_slice(&[0xee; 9]);
    bench.expect_down(Verdict::PassSealed, &none);
    for value in 0..64u8 {
        let seq = 3 + u32::from(value);
        let payload = [value.wrapping_mul(37), value, value.wrapping_mul(101)];
        bench.expect(Verdict::PassData, &near.data_up(5, false, seq, 9000, &payload));
        bench.expect_down(Verdict::PassSealed, &down(near.from).udp(&payload));
    }
    bench.say("Downwards, what is not sealed.");
    let to = FrameBuilder::new(service_end(), near.from);
    let far_to = FrameBuilder::new(v6(service_end()), far.from);
    let mut cut = to.udp(b"cut");
    cut.truncate(36);
    let mut short = to.udp(b"does not fill");
    short[39] -= 1;
    let server = Endpoint {
        port: 67,
        ..service_end()
    };
    let client = Endpoint {
        port: 68,
        ..near.from
    };
    for frame in [
        to.arp_request(),
        to.ethernet(0x88cc, b"lldp"),
        to.ip(6, b"segment"),
        to.clone().fragment(0, true).udp(b"first"),
        to.clone().options(&[1]).udp(b"options"),
        far_to.neighbour_solicitation([0xfd; 16]),
        far_to.icmpv6(136, &[0; 20]),
        far_to.icmpv6(128, &[0; 20]),
        far_to.clone().extension(60).udp(b"extension"),
        FrameBuilder::new(server, client).udp(b"dhcp"),
        FrameBuilder::new(service_end(), absent.from).udp(b"no session"),
        to.udp(&[1; 1500 - 28 - 55]),
        cut,
        short,
    ] {
        bench.send_down(&frame);
    }
    bench.say("Revoked.");
    bench.stf.line("register_write LapIngress.revoked 2 1");
    bench.gateway.revoke(far.id()).unwrap();
    bench.expect(Verdict::DropRevoked, &far.data_up(0, true, 600, 9000, b"revoked"));
    bench.expect_down(Verdict::DropSession, &far_to.udp(b"revoked"));
    bench.say("Bent: whatever the oracle makes of them.");
    let frames = [
        near.data_up(5, false, 200, 9000, &text[..50]),
        near.data_up(5, false, 201, 9000, &text[..8]),
        near.data_up(5, false, 201, 9000, b""),
    ];
    bench.bend(0x5eed_0006, 200, &frames);
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

fn owners() -> Stf {
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

pub fn tests() -> Vec<Stf> {
    let mut tests = vec![handshakes(), owners(), sealed()];
    tests.extend(gates());
    tests
}
