//! Random operations of user space and random packets, right, wrong and mutated, on the oracle, `xdp` and `host`: the
//! same verdicts, bytes, events and memory after every step.
//!
//! `LINEWARDEN_SEEDS` sets how many runs are made (90 without it), `LINEWARDEN_SEED` the first seed; a failure prints
//! the seed of its run.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod support;

use std::collections::BTreeMap;

use linewarden_dataplane::Gate;
use linewarden_protocol::commit;
use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::parse;
use linewarden_protocol::frame::write::{Endpoint, TTL};
use linewarden_protocol::ids::{DeviceId, SessionId};
use linewarden_protocol::verdict::{Disposition, Verdict};
use linewarden_protocol::wire::{self, Message, message_type};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use support::device::{Dev, Response, STRANGER, gateway_end, sealed_frame, service_end};
use support::number;
use support::shape::{LEASE_S, RING, Shape, crowd};
use support::world::World;
use support::world::forward::{nowhere, other_service};

/// Packets of one run.
const PACKETS: usize = 800;
/// No sum of waits comes near one of these: that edge has records. The last is longer than the clock counts.
const LEASES_S: [u32; 5] = [200, 600, 700, LEASE_S, u32::MAX];

struct Run<'a> {
    world: &'a mut World,
    rng: ChaCha8Rng,
    devices: Vec<Dev>,
    /// Frames sent and replies got, to be sent again.
    history: Vec<Vec<u8>>,
    /// The last RESPONSE that won.
    winner: Vec<u8>,
    /// Every session that there was.
    sessions: Vec<(DeviceId, SessionId)>,
    /// How many of them user space has closed.
    closed: u64,
    verdicts: BTreeMap<Verdict, u64>,
    short_waits: u32,
    is_sealed: bool,
    is_forwarding: bool,
}

impl Run<'_> {
    fn one_in(&mut self, n: u32) -> bool {
        self.rng.random_range(0..n) == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.rng.random_range(0..of.len())]
    }

    fn device(&mut self) -> Dev {
        let devices = self.devices.clone();
        if self.one_in(40) {
            STRANGER
        } else {
            self.pick(&devices)
        }
    }

    fn step(&mut self) {
        match self.rng.random_range(0..1000) {
            0..40 => self.install(),
            40..100 => {
                let (device, skip, count) =
                    (self.device(), self.pick(&[0, 0, 1, 7]), self.pick(&[1, 2, 4, 9]));
                self.world.refill(device, skip, count);
            }
            100..104 => {
                let device = self.device();
                self.world.revoke(device);
            }
            104..114 => {
                let device = self.device();
                self.world.wipe(device);
            }
            114..134 => {
                self.world.rotate_fresh();
            }
            // Sums of these never come near the lease or the 16 s of a fresh value: those edges have records.
            134..140 if self.short_waits < 15 && self.world.can_advance(6) => {
                self.short_waits += 1;
                self.world.advance(6);
            }
            140..144 if self.world.can_advance(400) => {
                self.world.advance(400);
                self.world.rotate_fresh();
            }
            144..147 => self.world.stopping(true),
            147..160 => self.world.stopping(false),
            160..170 => self.world.sweep(),
            170..174 => self.interrupted_winner(),
            174..190 => {
                let (device, ahead) = (self.device(), self.pick(&[0, 1, 2, 14, 15, u32::MAX]));
                self.world.grant(device, ahead);
            }
            190..198 => self.reconfigure(),
            198..206 => self.close(),
            _ => self.packet(),
        }
    }

    /// One setting, or two, to something else; perhaps the last ACK was lost.
    fn reconfigure(&mut self) {
        let mut live = self.world.live();
        for _ in 0..self.rng.random_range(1..=2) {
            // Limits between these would depend on the ticks of clocks.
            let limit = self.pick(&[0, u32::MAX]);
            match self.rng.random_range(0..8) {
                0..3 => live.lease_s = self.pick(&LEASES_S),
                3 => live.low_rows = self.rng.random_range(0..RING),
                4 => live.low_credit = self.rng.random_range(0..commit::CREDIT_MAX),
                5 => live.nak_per_s = limit,
                6 => live.alarm_per_s = limit,
                _ => live.miss_per_s = limit,
            }
        }
        let ways = self.world.ways();
        if !ways.is_empty() && self.one_in(2) {
            live.forward_to = ways.into_iter().filter(|_| !self.one_in(4)).collect();
            if self.one_in(8) {
                self.world.refuse(&live);
                return;
            }
        }
        self.world.reconfigure(&live);
        if self.one_in(2) {
            let winner = self.winner.clone();
            self.judged(&winner);
        }
    }

    fn judged(&mut self, frame: &[u8]) -> (Verdict, Vec<u8>) {
        let (verdict, reply) = self.world.send_for_reply(frame);
        *self.verdicts.entry(verdict).or_default() += 1;
        (verdict, reply)
    }

    /// A session ends: the device's own, one that it had before, or one that it never had.
    fn close(&mut self) {
        let device = self.device();
        let had: Vec<_> = self
            .sessions
            .iter()
            .filter(|(of, _)| *of == device.id())
            .collect();
        let named = match self.rng.random_range(0..4) {
            0..2 => self.world.last_held(device).map(|held| held.id),
            2 if !had.is_empty() => Some(had[self.rng.random_range(0..had.len())].1),
            _ => SessionId::from_wire(self.rng.random()),
        };
        let Some(named) = named else {
            return;
        };
        if self.world.close_one(device, named) {
            self.closed += 1;
        }
    }

    fn install(&mut self) {
        let device = self.device();
        if device == STRANGER || self.world.is_installed(device) {
            return;
        }
        let next = self.pick(&[0, 0, 1, 5, 1_000_000, u32::MAX - 6, u32::MAX - 1, u32::MAX]);
        if self.one_in(4) {
            self.world.key(device, next);
        } else {
            let rows = self.rng.random_range(1..=5).min(u32::MAX - next).max(1);
            match self.one_in(2) {
                true => self.world.pool(device, next, rows),
                false => {
                    let credit = self.rng.random_range(0..4);
                    self.world.pool_on_credit(device, next, rows, credit);
                }
            }
        }
    }

    /// Another CPU has won and goes on only after a few packets; or rather never, and is cleared up after.
    fn interrupted_winner(&mut self) {
        let device = self.device();
        let commit = self.world.commit(device);
        let can_win = commit.won().is_some() && self.world.is_installed(device);
        let frame = device
            .frame(false)
            .udp(&self.world.response(device).bytes(device));
        if can_win && self.world.can_check(&frame) {
            self.world.half_win(device, &frame);
            (0..3).for_each(|_| self.packet());
            if self.one_in(3) {
                self.close();
            }
            self.world.recover();
        }
    }

    fn packet(&mut self) {
        if self.is_sealed && self.one_in(4) {
            return self.downwards();
        }
        let mut frame = match self.rng.random_range(0..100) {
            0..40 if self.is_sealed => self.sealed(),
            0..25 => self.request(),
            25..65 => self.response(),
            65..80 if !self.history.is_empty() => {
                let at = self.rng.random_range(0..self.history.len());
                self.history[at].clone()
            }
            80..92 => self.other_traffic(),
            _ => self.garbage(),
        };
        if self.one_in(5) {
            self.mutate(&mut frame);
        }
        let (verdict, reply) = self.judged(&frame);
        if verdict == Verdict::ReplyAck {
            self.sessions.push(opened(&reply));
            self.winner.clone_from(&frame);
        }
        if verdict.disposition() == Disposition::Reply && self.one_in(3) {
            self.remember(reply);
        }
        if self.one_in(2) {
            self.remember(frame);
        }
    }

    fn remember(&mut self, frame: Vec<u8>) {
        if self.history.len() < 40 {
            self.history.push(frame);
        } else {
            let at = self.rng.random_range(0..40);
            self.history[at] = frame;
        }
    }

    /// A frame to the gateway, mostly from the device's own place.
    fn envelope(&mut self, device: Dev) -> FrameBuilder {
        let v6 = self.one_in(3);
        let mut end = device.end(v6);
        if self.one_in(12) {
            let other = self.device();
            end = Endpoint {
                ip: other.end(v6).ip,
                ..end
            };
        }
        if self.one_in(12) {
            let other = self.device();
            end.mac = other.mac();
        }
        if self.one_in(20) {
            end.port = self.rng.random();
        }
        let mut target = gateway_end(v6);
        if self.one_in(40) {
            target.port = self.pick(&[20_551, 53, 0]);
        }
        if self.one_in(40) {
            target.ip = service_end(v6).ip;
        }
        let mut builder = FrameBuilder::new(end, target);
        if self.one_in(6) {
            for _ in 0..self.rng.random_range(1..=3) {
                let (kind, tci) = (self.pick(&[0x8100, 0x88a8]), self.pick(&[0, 7, 0xe007, 0xffff]));
                builder = builder.tag(kind, tci);
            }
        }
        if self.one_in(60) {
            builder = builder.fragment(self.rng.random_range(0..3), self.rng.random());
        }
        if self.one_in(60) {
            builder = if v6 {
                builder.extension(60)
            } else {
                builder.options(&[1, 1, 1, 1])
            };
        }
        if self.one_in(10) {
            builder = builder.ip_fields(self.rng.random(), self.rng.random(), self.rng.random());
        }
        if self.one_in(10) {
            let padding = vec![self.rng.random(); self.rng.random_range(0..40)];
            builder = builder.padding(&padding);
        }
        builder
    }

    fn request(&mut self) -> Vec<u8> {
        let device = self.device();
        let mut message = self.world.request(device);
        message[16] = self.rng.random_range(0..4);
        self.envelope(device).udp(&message)
    }

    /// What only gateways send, to a gateway: chance seldom makes such a message, and sometimes never.
    fn misdirected(&mut self) {
        let Some(device) = self.devices.first().copied() else {
            return;
        };
        let mut message = self.world.request(device);
        for kind in [
            message_type::CHALLENGE,
            message_type::ACK,
            message_type::NAK,
            message_type::ATTEST_REQUEST,
        ] {
            message[3] = kind;
            self.judged(&device.frame(false).udp(&message));
        }
    }

    fn response(&mut self) -> Vec<u8> {
        let device = self.device();
        let mut response: Response = self.world.response(device);
        if self.one_in(2) {
            let sender = if self.one_in(12) { self.device() } else { device };
            response = response.bound(sender.mac());
        }
        if self.one_in(8) {
            response.nonce = [self.rng.random_range(0..3); 16];
        }
        if self.one_in(10) {
            let step = self.pick(&[1, 2, u32::MAX, u32::MAX - 1]);
            response.idx = response.idx.wrapping_add(step);
        }
        if self.one_in(20) {
            response.gateway.0 ^= 1;
        }
        if self.one_in(8) {
            // The previous value, the one before, one to come, none.
            let [.., last] = &mut response.fresh;
            *last = last.wrapping_sub(self.rng.random_range(0..4)).wrapping_add(1);
            if self.one_in(4) {
                response.fresh = [0; 8];
            }
        }
        self.envelope(device).udp(&response.bytes(device))
    }

    /// A DATA_UP, mostly right and mostly with the next number.
    fn sealed(&mut self) -> Vec<u8> {
        let device = self.device();
        let Some(held) = self.world.last_held(device) else {
            return self.request();
        };
        let sender = if self.one_in(20) { self.device() } else { device };
        let v6 = self.one_in(3);
        let mut to = if self.one_in(10) {
            gateway_end(v6)
        } else {
            service_end(v6)
        };
        if self.is_forwarding && self.one_in(3) {
            let [unknown, unrouted] = nowhere(v6);
            to = self.pick(&[other_service(v6), other_service(v6), unknown, unrouted]);
        }
        to.port = self.pick(&[8080, 53, 1, 65_535, 20_550, 0]);
        if !self.one_in(20) {
            to.port = 8080;
        }
        if self.one_in(12) {
            // A frame that is somebody else's to route.
            to.mac[5] ^= 1;
        }
        let top = self.world.top(device);
        let seq = match self.rng.random_range(0..10) {
            0 => top.saturating_sub(self.rng.random_range(0..30)),
            1 => top.saturating_add(self.rng.random_range(0..30)),
            2 if self.one_in(10) => u32::MAX - self.rng.random_range(0..30),
            _ => top.saturating_add(1),
        };
        let mut payload = vec![0u8; self.pick(&[0, 1, 5, 8, 20, 64, 300, 1232, 1233, 1252, 1253])];
        self.rng.fill(&mut payload[..]);
        let mut builder = sealed_frame(sender, &to);
        if self.one_in(6) {
            for _ in 0..self.rng.random_range(1..=3) {
                builder = builder.tag(self.pick(&[0x8100, 0x88a8]), self.pick(&[0, 7, 0xffff]));
            }
        }
        if self.one_in(10) {
            builder = builder.padding(&vec![self.rng.random(); self.rng.random_range(0..40)]);
        }
        if self.one_in(10) {
            let lives = [0, 1, 2, 255, self.rng.random()];
            builder = builder.ip_fields(self.rng.random(), self.rng.random(), self.pick(&lives));
        } else if self.one_in(10) {
            builder = builder.ip_fields(0, carrying(device, &to, payload.len()), TTL);
        }
        builder.udp(&held.seal(seq.max(1), &to, &payload))
    }

    /// Something towards a device.
    fn downwards(&mut self) {
        let (device, v6) = (self.device(), self.one_in(3));
        let mut builder = FrameBuilder::new(service_end(v6), device.end(v6));
        if self.one_in(6) {
            builder = builder.vlan(self.pick(&[0, 7]));
        }
        if self.one_in(10) {
            builder = builder.padding(&vec![self.rng.random(); self.rng.random_range(0..40)]);
        }
        let mut payload = vec![0u8; self.pick(&[0, 1, 5, 8, 20, 64, 300])];
        self.rng.fill(&mut payload[..]);
        let mut frame = match self.rng.random_range(0..12) {
            0 => builder.arp_request(),
            1 => builder.ip(self.rng.random(), &payload),
            2 => builder
                .fragment(self.rng.random_range(0..3), self.rng.random())
                .udp(&payload),
            _ => builder.udp(&payload),
        };
        // The kernel's test run wants whole IP headers.
        if self.one_in(8) {
            let at = self.rng.random_range(14..frame.len());
            frame[at] ^= 1 << self.rng.random_range(0..8);
        }
        let (verdict, _) = self.world.send_down(&frame);
        *self.verdicts.entry(verdict).or_default() += 1;
    }

    /// What devices send to others, and what the gate lets pass or not.
    fn other_traffic(&mut self) -> Vec<u8> {
        let device = self.device();
        let v6 = self.one_in(2);
        let mut through = FrameBuilder::new(device.end(v6), service_end(v6));
        if self.one_in(4) {
            through = through.vlan(self.pick(&[0, 7]));
        }
        match self.rng.random_range(0..6) {
            0 => through.arp_request(),
            1 => through.dhcp(),
            2 => FrameBuilder::new(device.end(true), service_end(true))
                .icmpv6(self.rng.random_range(130..140), &[0; 8]),
            3 => through.ip(self.rng.random(), &[0x11; 30]),
            _ => through.udp(b"a measurement"),
        }
    }

    fn garbage(&mut self) -> Vec<u8> {
        let device = self.device();
        let mut message = vec![0u8; self.rng.random_range(0..140)];
        self.rng.fill(&mut message[..]);
        if self.one_in(2) && message.len() >= 16 {
            let length = u16::try_from(message.len()).unwrap();
            message[..6].copy_from_slice(&[0x4c, 0x57, 1, self.rng.random_range(0..20), 1, 0]);
            message[6..8].copy_from_slice(&length.to_be_bytes());
        }
        self.envelope(device).udp(&message)
    }

    /// Bits flipped, mostly in the message; cut off; made longer.
    fn mutate(&mut self, frame: &mut Vec<u8>) {
        let payload = parse(frame)
            .ok()
            .and_then(|parsed| Some(parsed.datagram()?.1.payload()));
        match self.rng.random_range(0..10) {
            0 => frame.truncate(self.rng.random_range(0..=frame.len())),
            1 => frame.extend_from_slice(&[0xa5; 7]),
            _ if frame.is_empty() => {}
            _ => {
                let range = match payload {
                    Some(payload) if !payload.is_empty() && !self.one_in(4) => payload,
                    _ => 0..frame.len(),
                };
                for _ in 0..self.rng.random_range(1..=2) {
                    let at = self.rng.random_range(range.clone());
                    frame[at] ^= 1 << self.rng.random_range(0..8);
                }
            }
        }
    }
}

/// The IPv4 identification with which the checksum of an opened datagram carries when its TTL is counted down: as it
/// comes about once in 65,536.
fn carrying(device: Dev, to: &Endpoint, payload_bytes: usize) -> u16 {
    let opened = FrameBuilder::new(device.end(to.ip.is_ipv6()), *to).udp(&vec![0; payload_bytes]);
    let sum = u16::from_be_bytes([opened[24], opened[25]]);
    let (id, carry) = sum.overflowing_add(0x0100);
    id + u16::from(carry)
}

/// Which session an ACK opens, and whose.
fn opened(reply: &[u8]) -> (DeviceId, SessionId) {
    let (_, udp) = parse(reply).unwrap().datagram().unwrap();
    let Ok(Message::Ack(ack)) = wire::parse(&reply[udp.payload()]) else {
        panic!("no ACK");
    };
    (ack.header.device(), SessionId::from_wire(ack.session_id).unwrap())
}

fn run(shape: Shape, runs: u64) -> BTreeMap<Verdict, u64> {
    run_in(&mut World::new(shape), shape, runs)
}

fn run_in(world: &mut World, shape: Shape, runs: u64) -> BTreeMap<Verdict, u64> {
    let first = number("LINEWARDEN_SEED", 1);
    let is_forwarding = !world.ways().is_empty();
    let mut verdicts = BTreeMap::new();
    let mut closed = 0;
    for seed in first..first + runs {
        world.reset();
        let before = world.sent[0];
        let mut run = Run {
            world: &mut *world,
            rng: ChaCha8Rng::seed_from_u64(seed),
            devices: crowd(9),
            history: Vec::new(),
            winner: Vec::new(),
            sessions: Vec::new(),
            closed: 0,
            verdicts: BTreeMap::new(),
            short_waits: 0,
            is_sealed: shape.gate == Gate::Sealed,
            is_forwarding,
        };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            run.misdirected();
            while run.world.sent[0] < before + PACKETS as u64 {
                run.step();
            }
            run.world.compare_lines();
        }));
        if let Err(panic) = outcome {
            eprintln!("seed {seed}, {shape:?}: LINEWARDEN_SEED={seed} LINEWARDEN_SEEDS=1 repeats it");
            std::panic::resume_unwind(panic);
        }
        closed += run.closed;
        for (verdict, count) in run.verdicts {
            *verdicts.entry(verdict).or_default() += count;
        }
    }
    let [oracle, xdp, host] = world.sent;
    let (shortened, openings) = (world.shortened, world.openings);
    println!(
        "{shape:?}: {runs} runs; frames: {oracle} oracle, {xdp} xdp, {host} host; {openings} sessions reported, \
         {closed} closed, {shortened} shorter leases told"
    );
    let compared = xdp + host > 0;
    assert!(
        runs < 10 || closed > 0 && (shortened > 0 || !compared),
        "too few to matter"
    );
    verdicts
}

/// That the random packets get far enough to matter.
fn assert_common(verdicts: &BTreeMap<Verdict, u64>, expected: &[Verdict]) {
    let rare: Vec<_> = expected
        .iter()
        .filter(|verdict| !verdicts.contains_key(verdict))
        .collect();
    assert!(rare.is_empty(), "never seen: {rare:?}, of {verdicts:?}");
}

#[test]
fn gate_off() {
    use Verdict::*;
    let verdicts = run(Shape::OFF, number("LINEWARDEN_SEEDS", 90).div_ceil(3));
    assert_common(
        &verdicts,
        &[
            PassForeign,
            PassUnparsed,
            ReplyChallenge,
            ReplyAck,
            ReplyAckAgain,
            ReplyNak,
            DropUnknownDevice,
            DropRevoked,
            DropBusy,
            DropNoRows,
            DropIndex,
            DropGateway,
            DropFresh,
            DropTag,
            DropAddressOwned,
            DropReplay,
            DropDirection,
        ],
    );
}

#[test]
fn gate_off_without_naks() {
    let none = Shape {
        nak_per_s: 0,
        ..Shape::OFF
    };
    let verdicts = run(none, number("LINEWARDEN_SEEDS", 90).div_ceil(3));
    assert_common(&verdicts, &[Verdict::ReplyAck, Verdict::DropNakLimit]);
}

#[test]
fn gate_off_with_a_slow_path() {
    let verdicts = run(Shape::SLOW, number("LINEWARDEN_SEEDS", 90).div_ceil(6));
    assert_common(&verdicts, &[Verdict::ReplyAck, Verdict::SlowPath]);
}

#[test]
fn gate_open() {
    use Verdict::*;
    let verdicts = run(Shape::OPEN, number("LINEWARDEN_SEEDS", 90).div_ceil(3));
    assert_common(
        &verdicts,
        &[
            ReplyAck,
            PassAlways,
            PassSession,
            DropGate,
            DropGateFragment,
            DropGateExtension,
            DropTruncated,
        ],
    );
}

#[test]
fn gate_sealed() {
    use Verdict::*;
    let verdicts = run(Shape::SEALED, number("LINEWARDEN_SEEDS", 90).div_ceil(3));
    assert_common(
        &verdicts,
        &[
            ReplyAck,
            PassAlways,
            PassData,
            PassSealed,
            DropGate,
            DropGatePort,
            DropTag,
            DropSession,
            DropSource,
            DropSequence,
            DropUnsealed,
            DropTruncated,
        ],
    );
}

#[test]
fn gate_sealed_that_forwards() {
    use Verdict::*;
    let Some(mut world) = World::forwarding() else {
        return;
    };
    let verdicts = run_in(
        &mut world,
        Shape::SEALED,
        number("LINEWARDEN_SEEDS", 90).div_ceil(3),
    );
    assert_common(&verdicts, &[ReplyAck, PassAlways, PassData, PassSealed]);
    let [sent, left] = world.forwarded();
    println!("{sent} datagrams sent on past the stack, {left} left to it");
    assert!(sent > 0 && left > 0, "{sent} {left}");
}
