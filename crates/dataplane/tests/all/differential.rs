//! Random operations of user space and random packets (valid, invalid and mutated) on the oracle, `xdp`, `host` and a
//! P4 switch: verdicts, bytes, events and memory agree after every step.
//! `LINEWARDEN_SEEDS` scales the number of seeds (default 90): each test runs a fixed fraction of it.
//! `LINEWARDEN_SEED` sets the first seed. A failure prints the seed of its run.

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

use crate::support::device::{TestDevice, UNKNOWN, gateway_end};
use crate::support::fixture::TestFixture;
use crate::support::number;
use crate::support::test_config::{RING, SESSION_LIFETIME_S, TestConfig, devices_with_one_home};

/// Number of packets in one run.
const PACKETS: usize = 800;
/// Session lifetimes, in seconds. No sum of clock advances is close to one of them, because ticks of the clock would
/// then decide; the packet tests cover these limits. The highest lifetime is longer than the clock can count.
const SESSION_LIFETIMES_S: [u32; 5] = [200, 600, 700, SESSION_LIFETIME_S, u32::MAX];

struct Run<'a> {
    fixture: &'a mut TestFixture,
    rng: ChaCha8Rng,
    devices: Vec<TestDevice>,
    /// Frames and replies of this run that can be sent again.
    history: Vec<Vec<u8>>,
    /// The latest winning RESPONSE.
    winning_response: Vec<u8>,
    /// All sessions of the run.
    sessions: Vec<(DeviceId, SessionId)>,
    /// How many sessions user space has closed in this run.
    closed: u64,
    verdicts: BTreeMap<Verdict, u64>,
    /// How many times the clock was advanced by only 6 s.
    short_advances: u32,
    is_sealed: bool,
    is_forwarding: bool,
    /// Whether a P4 switch takes part. Its clock cannot be moved, and its winners cannot be interrupted.
    has_switch: bool,
}

impl Run<'_> {
    fn one_in(&mut self, n: u32) -> bool {
        self.rng.random_range(0..n) == 0
    }

    fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.rng.random_range(0..values.len())]
    }

    fn device(&mut self) -> TestDevice {
        let devices = self.devices.clone();
        if self.one_in(40) {
            UNKNOWN
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
                self.fixture.refill(device, skip, count);
            }
            100..104 => {
                let device = self.device();
                self.fixture.revoke(device);
            }
            104..114 => {
                let device = self.device();
                self.fixture.wipe(device);
            }
            114..134 => {
                self.fixture.rotate_fresh();
            }
            // No sum of these advances is close to a session lifetime or to the 16 s of a fresh value.
            134..144 | 170..174 if self.has_switch => self.packet(),
            134..140 if self.short_advances < 15 && self.fixture.can_advance(6) => {
                self.short_advances += 1;
                self.fixture.advance(6);
            }
            140..144 if self.fixture.can_advance(400) => {
                self.fixture.advance(400);
                self.fixture.rotate_fresh();
            }
            144..147 => self.fixture.set_stopping(true),
            147..160 => self.fixture.set_stopping(false),
            160..170 => self.fixture.sweep(),
            170..174 => self.interrupted_winner(),
            174..190 => {
                // The other data planes store a credit, which the commit word limits; a switch stores the whole mark.
                let aheads: &[u32] = match self.has_switch {
                    true => &[0, 1, 2, 14],
                    false => &[0, 1, 2, 14, 15, u32::MAX],
                };
                let (device, ahead) = (self.device(), self.pick(aheads));
                self.fixture.grant(device, ahead);
            }
            190..198 => self.reconfigure(),
            198..206 => self.close(),
            _ => self.packet(),
        }
    }

    /// Changes one or two settings. In half of the cases, the latest winning RESPONSE is then repeated.
    fn reconfigure(&mut self) {
        let mut live = self.fixture.live();
        for _ in 0..self.rng.random_range(1..=2) {
            // With other limits, the verdicts would depend on clock ticks.
            let limit = self.pick(&[0, u32::MAX]);
            match self.rng.random_range(0..9) {
                8 => live.sources = self.other_sources(),
                0..3 => live.session_lifetime_s = self.pick(&SESSION_LIFETIMES_S),
                3 => live.low_rows = self.rng.random_range(0..RING),
                4 => live.low_credit = self.rng.random_range(0..commit::CREDIT_MAX),
                5 => live.nak_per_s = limit,
                6 => live.alarm_per_s = limit,
                _ => live.miss_per_s = limit,
            }
        }
        let interfaces = self.fixture.forward_interfaces();
        if !interfaces.is_empty() && self.one_in(2) {
            live.forward_to = interfaces.into_iter().filter(|_| !self.one_in(4)).collect();
            if self.one_in(8) {
                self.fixture.assert_refused(&live);
                return;
            }
        }
        self.fixture.reconfigure(&live);
        if self.one_in(2) {
            let winner = self.winning_response.clone();
            self.check_frame(&winner);
        }
    }

    /// Random prefixes for the devices, which usually contain their addresses.
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
        let index = self.pick(&[0, 0, 0, 0, 1, 1, 2, 2, 3, 4]);
        let prefixes: Vec<Prefix> = sets[index].iter().map(|text| text.parse().unwrap()).collect();
        let subnet = "10.66.128.0/17".parse().unwrap();
        let own = |number: u16| OwnAddress {
            address: TestDevice(number * 5).end(false).ip,
            subnet,
        };
        let own_addresses: Vec<OwnAddress> = (1..20).map(own).collect();
        let own_addresses = if self.one_in(4) { &own_addresses[..] } else { &[] };
        DeviceSources::new(
            &prefixes,
            &[gateway_end(false).ip, gateway_end(true).ip],
            own_addresses,
        )
    }

    fn check_frame(&mut self, frame: &[u8]) -> (Verdict, Vec<u8>) {
        let (verdict, reply) = self.fixture.send_for_reply(frame);
        *self.verdicts.entry(verdict).or_default() += 1;
        (verdict, reply)
    }

    /// Closes the device's current session, one of its earlier sessions, or a session that it never had.
    fn close(&mut self) {
        let device = self.device();
        let device_sessions: Vec<_> = self
            .sessions
            .iter()
            .filter(|(id, _)| *id == device.id())
            .collect();
        let session = match self.rng.random_range(0..4) {
            0..2 => self.fixture.last_device_session(device).map(|session| session.id),
            2 if !device_sessions.is_empty() => {
                Some(device_sessions[self.rng.random_range(0..device_sessions.len())].1)
            }
            _ => SessionId::from_wire(self.rng.random()),
        };
        let Some(session) = session else {
            return;
        };
        if self.fixture.close_session_of(device, session) {
            self.closed += 1;
        }
    }

    fn install(&mut self) {
        let device = self.device();
        if device == UNKNOWN || self.fixture.is_installed(device) {
            return;
        }
        let next = self.pick(&[0, 0, 1, 5, 1_000_000, u32::MAX - 6, u32::MAX - 1, u32::MAX]);
        if self.one_in(4) {
            self.fixture.key(device, next);
        } else {
            let rows = self.rng.random_range(1..=5).min(u32::MAX - next).max(1);
            match self.one_in(2) {
                true => self.fixture.pool(device, next, rows),
                false => {
                    let credit = self.rng.random_range(0..4);
                    self.fixture.pool_on_credit(device, next, rows, credit);
                }
            }
        }
    }

    /// Another CPU wins and is interrupted; a few packets later, user space cleans up the line.
    fn interrupted_winner(&mut self) {
        let device = self.device();
        let commit = self.fixture.commit(device);
        let can_win = commit.with_row_spent().is_some() && self.fixture.is_installed(device);
        let frame = device
            .frame(false)
            .udp(&self.fixture.response(device).bytes(device));
        if can_win && self.fixture.can_check(&frame) {
            self.fixture.interrupted_win(device, &frame);
            self.check_frame(&frame);
            (0..3).for_each(|_| self.packet());
            if self.one_in(3) {
                self.close();
            }
            self.fixture.recover();
        }
    }

    fn packet(&mut self) {
        if self.is_sealed && self.one_in(4) {
            return self.send_towards_device();
        }
        let mut frame = match self.rng.random_range(0..100) {
            0..40 if self.is_sealed => self.sealed(),
            0..25 => self.request(),
            25..65 => self.response(),
            65..80 if !self.history.is_empty() => {
                let index = self.rng.random_range(0..self.history.len());
                self.history[index].clone()
            }
            80..92 => self.other_traffic(),
            _ => self.random_message(),
        };
        if self.one_in(5) {
            self.mutate(&mut frame);
        }
        let (verdict, reply) = self.check_frame(&frame);
        if verdict == Verdict::ReplyAck {
            self.sessions.push(opened_session(&reply));
            self.winning_response.clone_from(&frame);
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
            let index = self.rng.random_range(0..40);
            self.history[index] = frame;
        }
    }

    /// Sends to the gateway the messages that only gateways send: mutations seldom or never produce them.
    fn misdirected(&mut self) {
        let Some(device) = self.devices.first().copied() else {
            return;
        };
        let mut message = self.fixture.request(device);
        for kind in [
            message_type::CHALLENGE,
            message_type::ACK,
            message_type::NAK,
            message_type::ATTEST_REQUEST,
        ] {
            message[3] = kind;
            self.check_frame(&device.frame(false).udp(&message));
        }
    }
}

/// The session that an ACK opens, and its device.
fn opened_session(reply: &[u8]) -> (DeviceId, SessionId) {
    let (_, udp) = parse(reply).unwrap().datagram().unwrap();
    let Ok(Message::Ack(ack)) = wire::parse(&reply[udp.payload()]) else {
        panic!("no ACK");
    };
    (ack.header.device(), SessionId::from_wire(ack.session_id).unwrap())
}

fn run(test_config: TestConfig, runs: u64) -> BTreeMap<Verdict, u64> {
    run_in(&mut TestFixture::new(test_config), test_config, runs)
}

fn run_in(fixture: &mut TestFixture, test_config: TestConfig, runs: u64) -> BTreeMap<Verdict, u64> {
    let first = number("LINEWARDEN_SEED", 1);
    let is_forwarding = !fixture.forward_interfaces().is_empty();
    let has_switch = fixture.has_switch();
    let mut verdicts = BTreeMap::new();
    let mut closed = 0;
    for seed in first..first + runs {
        fixture.reset();
        let before = fixture.sent[0];
        let mut run = Run {
            fixture: &mut *fixture,
            rng: ChaCha8Rng::seed_from_u64(seed),
            devices: devices_with_one_home(9),
            history: Vec::new(),
            winning_response: Vec::new(),
            sessions: Vec::new(),
            closed: 0,
            verdicts: BTreeMap::new(),
            short_advances: 0,
            is_sealed: test_config.gate == Gate::Sealed,
            is_forwarding,
            has_switch,
        };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            run.misdirected();
            while run.fixture.sent[0] < before + PACKETS as u64 {
                run.step();
            }
            run.fixture.compare_lines();
        }));
        if let Err(panic) = outcome {
            eprintln!(
                "seed {seed}, {test_config:?}: LINEWARDEN_SEED={seed} LINEWARDEN_SEEDS=1 repeats the run"
            );
            std::panic::resume_unwind(panic);
        }
        closed += run.closed;
        for (verdict, count) in run.verdicts {
            *verdicts.entry(verdict).or_default() += count;
        }
    }
    let [oracle, xdp, host] = fixture.sent;
    let (shortened, openings) = (fixture.shortened_lifetimes, fixture.session_events);
    println!(
        "{test_config:?}: {runs} runs; frames: {oracle} oracle, {xdp} xdp, {host} host; {openings} sessions reported, \
         {closed} closed, {shortened} shorter session lifetimes reported"
    );
    let is_compared = xdp + host > 0;
    assert!(
        runs < 10 || closed > 0 && (shortened > 0 || !is_compared),
        "no session was closed, or no shorter lifetime was reported: {closed}, {shortened}"
    );
    verdicts
}

/// Checks that the random packets have caused all `expected` verdicts.
fn assert_seen(verdicts: &BTreeMap<Verdict, u64>, expected: &[Verdict]) {
    let missing: Vec<_> = expected
        .iter()
        .filter(|verdict| !verdicts.contains_key(verdict))
        .collect();
    assert!(missing.is_empty(), "never seen: {missing:?}; seen: {verdicts:?}");
}

#[test]
fn all_sides_agree_with_the_gate_off() {
    use Verdict::*;
    let verdicts = run(TestConfig::OFF, number("LINEWARDEN_SEEDS", 90).div_ceil(3));
    assert_seen(
        &verdicts,
        &[
            PassForeign,
            PassUnparsed,
            ReplyChallenge,
            ReplyAck,
            ReplyAckRepeated,
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
fn all_sides_agree_without_naks() {
    let config = TestConfig {
        nak_per_s: 0,
        ..TestConfig::OFF
    };
    let verdicts = run(config, number("LINEWARDEN_SEEDS", 90).div_ceil(3));
    assert_seen(&verdicts, &[Verdict::ReplyAck, Verdict::DropNakLimit]);
}

#[test]
fn all_sides_agree_with_a_slow_path() {
    let verdicts = run(TestConfig::SLOW, number("LINEWARDEN_SEEDS", 90).div_ceil(6));
    assert_seen(&verdicts, &[Verdict::ReplyAck, Verdict::SlowPath]);
}

#[test]
fn all_sides_agree_at_the_bound_gate() {
    use Verdict::*;
    let verdicts = run(TestConfig::BOUND, number("LINEWARDEN_SEEDS", 90).div_ceil(3));
    assert_seen(
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

/// Runs a ninth of the seeds: the registers of a P4 switch are read after each packet, which is slow.
fn run_on_a_switch(test_config: TestConfig) -> BTreeMap<Verdict, u64> {
    let mut fixture = TestFixture::with_switch(test_config);
    let verdicts = run_in(
        &mut fixture,
        test_config,
        number("LINEWARDEN_SEEDS", 90).div_ceil(9),
    );
    let sent = fixture.sent_to_switch();
    println!("{sent} frames went through the switch");
    assert!(sent > PACKETS as u64 / 2, "only {sent}");
    verdicts
}

#[test]
fn the_switch_agrees_with_the_gate_off() {
    use Verdict::*;
    let verdicts = run_on_a_switch(TestConfig::OFF);
    assert_seen(
        &verdicts,
        &[PassForeign, ReplyChallenge, ReplyAck, ReplyAckRepeated, DropTag],
    );
}

#[test]
fn the_switch_agrees_at_the_bound_gate() {
    use Verdict::*;
    let verdicts = run_on_a_switch(TestConfig::BOUND);
    assert_seen(&verdicts, &[ReplyAck, PassAlways, PassSession, DropGate]);
}

#[test]
fn all_sides_agree_at_the_sealed_gate() {
    use Verdict::*;
    let verdicts = run(TestConfig::SEALED, number("LINEWARDEN_SEEDS", 90).div_ceil(3));
    assert_seen(
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
fn all_sides_agree_at_a_sealed_gate_that_forwards() {
    use Verdict::*;
    let mut fixture = TestFixture::forwarding();
    let verdicts = run_in(
        &mut fixture,
        TestConfig::SEALED,
        number("LINEWARDEN_SEEDS", 90).div_ceil(3),
    );
    assert_seen(&verdicts, &[ReplyAck, PassAlways, PassData, PassSealed]);
    let [forwarded, passed] = fixture.forwarded_and_passed();
    println!("{forwarded} datagrams forwarded without the stack, {passed} passed to it");
    assert!(forwarded > 0 && passed > 0, "{forwarded} {passed}");
}
