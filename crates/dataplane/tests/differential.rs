//! Random operations of user space and random packets, right, wrong and mutated, on the oracle, `xdp`, `host` and a
//! P4 switch: the same verdicts, bytes, events and memory after every step.
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
#[path = "differential/traffic.rs"]
mod traffic;

use std::collections::BTreeMap;

use linewarden_dataplane::Gate;
use linewarden_protocol::commit;
use linewarden_protocol::frame::parse;
use linewarden_protocol::ids::{DeviceId, SessionId};
use linewarden_protocol::sources::{DeviceSources, OwnAddress, Prefix};
use linewarden_protocol::verdict::{Disposition, Verdict};
use linewarden_protocol::wire::{self, Message, message_type};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use support::device::{Dev, STRANGER, gateway_end};
use support::number;
use support::shape::{LEASE_S, RING, Shape, crowd};
use support::world::World;

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
    /// Whether a P4 switch is beside: nobody moves its clock, and its winners are not held back.
    has_switch: bool,
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
            134..144 | 170..174 if self.has_switch => self.packet(),
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
                // Others count credit down from what fits into the word; a switch knows the mark itself.
                let aheads: &[u32] = match self.has_switch {
                    true => &[0, 1, 2, 14],
                    false => &[0, 1, 2, 14, 15, u32::MAX],
                };
                let (device, ahead) = (self.device(), self.pick(aheads));
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
            match self.rng.random_range(0..9) {
                8 => live.sources = self.other_sources(),
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

    /// Where devices may be; mostly where they are.
    fn other_sources(&mut self) -> DeviceSources {
        let sets: [&[&str]; 5] = [
            &["10.66.0.0/16", "fd66::/64"],
            &["0.0.0.0/0", "::/0"],
            &[
                "10.66.128.0/17",
                "fe80::/10",
                "fd66::/16",
                "127.0.0.0/8",
                "10.66.0.254/32",
                "10.66.0.0/31",
            ],
            &["10.66.128.0/30", "10.66.128.4/32", "fd66::1:0/126"],
            &["192.0.2.0/24"],
        ];
        let at = self.pick(&[0, 0, 0, 0, 1, 1, 2, 2, 3, 4]);
        let prefixes: Vec<Prefix> = sets[at].iter().map(|text| text.parse().unwrap()).collect();
        let subnet = "10.66.128.0/17".parse().unwrap();
        let own = |number: u16| OwnAddress {
            address: Dev(number * 5).end(false).ip,
            subnet,
        };
        let others: Vec<OwnAddress> = (1..20).map(own).collect();
        let others = if self.one_in(4) { &others[..] } else { &[] };
        DeviceSources::new(&prefixes, &[gateway_end(false).ip, gateway_end(true).ip], others)
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
            self.judged(&frame);
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
    let world_has_switch = world.has_switch();
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
            has_switch: world_has_switch,
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
            DropSourceNotDevice,
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
            DropSourceNotDevice,
            PassAlways,
            PassSession,
            DropGate,
            DropGateFragment,
            DropGateExtension,
            DropTruncated,
        ],
    );
}

/// The registers of a P4 switch are read after each packet, which takes its time.
fn run_on_a_switch(shape: Shape) -> BTreeMap<Verdict, u64> {
    let mut world = World::with_switch(shape);
    let verdicts = run_in(&mut world, shape, number("LINEWARDEN_SEEDS", 90).div_ceil(9));
    let through = world.sent_to_switch();
    println!("{through} frames went through the switch");
    assert!(through > PACKETS as u64 / 2, "only {through}");
    verdicts
}

#[test]
fn gate_off_on_a_switch() {
    use Verdict::*;
    let verdicts = run_on_a_switch(Shape::OFF);
    assert_common(
        &verdicts,
        &[PassForeign, ReplyChallenge, ReplyAck, ReplyAckAgain, DropTag],
    );
}

#[test]
fn gate_open_on_a_switch() {
    use Verdict::*;
    let verdicts = run_on_a_switch(Shape::OPEN);
    assert_common(&verdicts, &[ReplyAck, PassAlways, PassSession, DropGate]);
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
