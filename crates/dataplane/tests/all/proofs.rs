//! Random keys, periods, rounds and PROOFs (valid, invalid and mutated) on the oracle, `xdp` and `host`; batches of
//! PROOFs; several CPUs with the same PROOFs.
//!
//! `LINEWARDEN_SEEDS` sets the number of runs (default 30), `LINEWARDEN_SEED` the first seed; a failure prints the
//! seed of its run.

use std::collections::BTreeMap;
use std::sync::Barrier;

use linewarden_dataplane::host::{Host, Timestamps};
use linewarden_dataplane::layout::PROVED;
use linewarden_dataplane::{DataPlane, ProverError, Provers, Telemetry as _};
use linewarden_forro::Backend;
use linewarden_protocol::attest::Round;
use linewarden_protocol::gateway::{OpenRound, ProverKeys};
use linewarden_protocol::ids::{Period, RoundNumber};
use linewarden_protocol::time::Monotonic;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::PROOF_BYTES;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::support::device::{GATEWAY, TestDevice, UNKNOWN};
use crate::support::fixture::attest::{key, proof, round};
use crate::support::fixture::{TestFixture, load_xdp, real_now};
use crate::support::number;
use crate::support::test_config::{TestConfig, devices_with_one_home};

struct Run<'a> {
    fixture: &'a mut TestFixture,
    rng: ChaCha8Rng,
    devices: Vec<TestDevice>,
    /// Earlier frames, which can be sent again.
    history: Vec<Vec<u8>>,
    period: u64,
    round_number: u32,
    verdicts: BTreeMap<Verdict, u64>,
}

impl Run<'_> {
    fn one_in(&mut self, n: u32) -> bool {
        self.rng.random_range(0..n) == 0
    }

    fn device(&mut self) -> TestDevice {
        if self.one_in(30) {
            return UNKNOWN;
        }
        self.devices[self.rng.random_range(0..self.devices.len())]
    }

    /// The configuration that a device runs, usually 1.
    fn runs(&mut self) -> u8 {
        if self.one_in(4) { 2 } else { 1 }
    }

    fn step(&mut self) {
        match self.rng.random_range(0..100) {
            0..20 => self.install(),
            20..23 => {
                let device = self.device();
                self.fixture.wipe_prover(device);
            }
            23..29 => self.open(),
            29..31 => self.period += 1,
            _ => self.packet(),
        }
    }

    fn install(&mut self) {
        let device = self.device();
        let periods_ahead = u64::from(self.one_in(3));
        let (current, alternate) = (self.runs(), self.runs());
        let alternate = self.one_in(3).then_some(alternate);
        if device != UNKNOWN {
            self.fixture
                .install_prover(device, self.period + periods_ahead, current, alternate);
        }
    }

    fn open(&mut self) {
        self.round_number += if self.one_in(6) { 2 } else { 1 };
        if self.one_in(6) {
            // A result contains only some bits of its round's number. After such a gap, it could be mistaken for a
            // result of another round.
            self.round_number += 1 << self.rng.random_range(10..20);
        }
        let is_late = self.one_in(12);
        let periods_ahead = u64::from(self.one_in(12));
        // Some numbers are not higher than that of the latest round.
        let number = match self.one_in(8) {
            true => self.round_number.saturating_sub(self.rng.random_range(1..4)),
            false => self.round_number,
        };
        let last_number = self.fixture.last_round().map_or(0, |last| last.number.0);
        let is_open = self
            .fixture
            .open_round(round(self.period + periods_ahead, number), is_late);
        assert!(!is_open || number > last_number, "{number} after {last_number}");
    }

    fn packet(&mut self) {
        let device = self.device();
        let Some(last) = self.fixture.last_round() else {
            return self.open();
        };
        let mut requested = last;
        if self.one_in(6) {
            requested = round(
                self.period,
                last.number.0.saturating_sub(self.rng.random_range(0..3)),
            );
        }
        let runs = self.runs();
        let mut message = proof(device, &requested, runs);
        if self.one_in(8) {
            let (index, bit) = (
                self.rng.random_range(0..message.len()),
                self.rng.random_range(0..8),
            );
            message[index] ^= 1 << bit;
        }
        if self.one_in(20) {
            // A round of zeros, like an unused place of a round in memory.
            message[16..32].fill(0);
        }
        if self.one_in(20) {
            message.truncate(self.rng.random_range(0..message.len()));
        }
        let mut frame = device.frame(self.rng.random()).udp(&message);
        if !self.history.is_empty() && self.one_in(6) {
            frame = self.history[self.rng.random_range(0..self.history.len())].clone();
        }
        let verdict = self.fixture.send(&frame);
        *self.verdicts.entry(verdict).or_default() += 1;
        if self.history.len() < 30 {
            self.history.push(frame);
        }
    }
}

#[test]
fn all_data_planes_agree() {
    use Verdict::*;
    let (first, runs) = (number("LINEWARDEN_SEED", 1), number("LINEWARDEN_SEEDS", 30));
    let mut fixture = TestFixture::new(TestConfig::ATTESTING);
    let mut verdicts: BTreeMap<Verdict, u64> = BTreeMap::new();
    for seed in first..first + runs {
        fixture.reset();
        let mut run = Run {
            fixture: &mut fixture,
            rng: ChaCha8Rng::seed_from_u64(seed),
            devices: devices_with_one_home(9),
            history: Vec::new(),
            period: 10,
            round_number: 1,
            verdicts: BTreeMap::new(),
        };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (0..600).for_each(|_| run.step());
        }));
        if let Err(panic) = outcome {
            eprintln!("LINEWARDEN_SEED={seed} LINEWARDEN_SEEDS=1 repeats the run");
            std::panic::resume_unwind(panic);
        }
        for (verdict, count) in run.verdicts {
            *verdicts.entry(verdict).or_default() += count;
        }
    }
    let expected = [
        ProofOk,
        DropRound,
        DropLate,
        DropUnknownProver,
        DropProved,
        DropNoKey,
        DropProof,
        DropLength,
        DropGateway,
    ];
    let missing: Vec<_> = expected
        .iter()
        .filter(|verdict| !verdicts.contains_key(verdict))
        .collect();
    assert!(missing.is_empty(), "never seen: {missing:?}; seen: {verdicts:?}");
}

const PROVERS: u16 = 200;

fn open(round: Round) -> OpenRound {
    let now = real_now().monotonic_ms;
    OpenRound {
        round,
        started: Monotonic(now),
        deadline: Monotonic(now + (1 << 30)),
    }
}

/// Installs provers with configuration 1; every third prover also has the alternate configuration 2. Opens round 1.
fn install(data_plane: &mut dyn DataPlane) {
    let provers = data_plane.provers().unwrap();
    for number in 1..=PROVERS {
        let device = TestDevice(number);
        let alternate = number.is_multiple_of(3).then(|| key(device, GATEWAY, 4, 2));
        let keys = ProverKeys {
            current: key(device, GATEWAY, 4, 1),
            alternate,
        };
        provers.install(device.id(), Period(4), &keys).unwrap();
    }
    provers.open_round(&open(round(4, 1))).unwrap();
}

fn proof_bytes(message: Vec<u8>) -> [u8; PROOF_BYTES] {
    message.try_into().unwrap()
}

/// Processes up to 1,000 PROOFs at once, which is more than one batch: valid, invalid, repeated and malformed PROOFs,
/// for both configurations, of both open rounds and of a round that is not open.
#[test]
fn batches_have_the_same_verdicts_as_single_messages() {
    let seed = number("LINEWARDEN_SEED", 1);
    println!("seed {seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let data_planes = |lanes| {
        let mut host = Host::with_lanes(&TestConfig::ATTESTING.config(), lanes).unwrap();
        install(&mut host);
        let second = open(round(4, 2));
        host.prover_store().unwrap().open_round(&second).unwrap();
        let thread = host.thread_state();
        (host.engine(), thread, host)
    };
    let counts = [0, 1, 31, 32, 33, 63, 64, 65, 127, 129, 1000];
    for (lanes, count) in Backend::available().flat_map(|lanes| counts.map(|count| (lanes, count))) {
        let messages: Vec<[u8; PROOF_BYTES]> = (0..count)
            .map(|_| {
                let device = TestDevice(rng.random_range(1..=PROVERS + 3));
                // Usually round 1, because in a network most PROOFs belong to the same round.
                let number = [1, 1, 1, 1, 2, 3][rng.random_range(0..6)];
                let mut message = proof_bytes(proof(device, &round(4, number), rng.random_range(1..=3)));
                if rng.random_range(0..20) == 0 {
                    message[16..32].fill(0);
                }
                if rng.random_range(0..10) == 0 {
                    message[rng.random_range(0..PROOF_BYTES)] ^= 1 << rng.random_range(0..8);
                }
                message
            })
            .collect();
        let now = Timestamps::from(real_now());
        let (engine, mut thread, batched) = data_planes(lanes);
        engine.process_proofs(&mut thread, now, &messages);
        let (engine, mut thread, one_by_one) = data_planes(Backend::SCALAR);
        for message in &messages {
            engine.process_proofs(&mut thread, now, std::slice::from_ref(message));
        }
        // In a batch, an invalid PROOF is hashed even if the batch contains a valid PROOF of the same prover before it.
        // Without a batch, it is not hashed. Both verdicts are counted together here.
        let counted = |host: &Host| {
            let mut counted: BTreeMap<Verdict, u64> = BTreeMap::new();
            for (verdict, count) in host.counters().unwrap().nonzero() {
                let verdict = match verdict {
                    Verdict::DropProved => Verdict::DropProof,
                    verdict => verdict,
                };
                *counted.entry(verdict).or_default() += count;
            }
            counted
        };
        assert_eq!(counted(&batched), counted(&one_by_one), "{count}");
        let are_ok = |mut host: Host| {
            let provers = host.prover_store().unwrap();
            let proved =
                |(device, number)| provers.proof_record(TestDevice(device).id(), RoundNumber(number));
            // Configurations are not compared: if a device proves both, the order of its PROOFs decides.
            (1..=PROVERS)
                .flat_map(|device| [(device, 1), (device, 2)])
                .map(|device_round| proved(device_round).is_some())
                .collect::<Vec<_>>()
        };
        assert_eq!(are_ok(batched), are_ok(one_by_one), "{count}");
    }
}

/// A prover's PROOF is accepted one time per round, even if several CPUs process it at the same time.
#[test]
fn only_one_of_several_cpus_accepts_a_proof() {
    let rounds = 40;
    let messages = |number| -> Vec<Vec<u8>> {
        (1..=PROVERS)
            .map(|device| proof(TestDevice(device), &round(4, number), 1))
            .collect()
    };
    let mut host = Host::new(&TestConfig::ATTESTING.config()).unwrap();
    install(&mut host);
    for number in 2..=rounds + 1 {
        host.prover_store()
            .unwrap()
            .open_round(&open(round(4, number)))
            .unwrap();
        let proofs: Vec<_> = messages(number).into_iter().map(proof_bytes).collect();
        let engine = host.engine();
        let mut threads = [host.thread_state(), host.thread_state()];
        let start = Barrier::new(threads.len());
        std::thread::scope(|scope| {
            for thread in &mut threads {
                scope.spawn(|| {
                    start.wait();
                    engine.process_proofs(thread, Timestamps::from(real_now()), &proofs);
                });
            }
        });
    }
    let mut xdp = load_xdp(&TestConfig::ATTESTING.config());
    install(&mut xdp);
    for number in 2..=rounds + 1 {
        xdp.prover_store()
            .unwrap()
            .open_round(&open(round(4, number)))
            .unwrap();
        let frames: Vec<_> = messages(number)
            .iter()
            .map(|message| TestDevice(1).frame(false).udp(message))
            .collect();
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    start.wait();
                    frames.iter().for_each(|frame| {
                        xdp.test_run(frame).unwrap();
                    });
                });
            }
        });
    }
    for counters in [host.counters().unwrap(), xdp.counters().unwrap()] {
        let count = u64::from(PROVERS) * u64::from(rounds);
        let by_verdict: Vec<_> = counters.nonzero().collect();
        assert_eq!(
            by_verdict,
            [(Verdict::ProofOk, count), (Verdict::DropProved, count)]
        );
    }
}

/// Writes `word` as the result of all provers, like a packet path that was suspended while the results were cleared.
fn write_results(provers: &Provers, word: u32) {
    let lines = provers.regions().lines.iter();
    lines
        .flat_map(|line| &line.proved)
        .for_each(|proved| proved.store(word, std::sync::atomic::Ordering::Release));
}

/// A result contains only 16 bits of its round's number. The same bits occur again after 2^17 rounds.
#[test]
fn no_proof_counts_in_a_much_later_round() {
    let mut host = Host::new(&TestConfig::ATTESTING.config()).unwrap();
    install(&mut host);
    let (engine, mut thread) = (host.engine(), host.thread_state());
    let device = TestDevice(1);
    let mut prove = |host: &mut Host, number: u32| {
        let provers = host.prover_store().unwrap();
        assert_eq!(
            provers.proof_record(device.id(), RoundNumber(number)),
            None,
            "{number}"
        );
        let message = proof_bytes(proof(device, &round(4, number), 1));
        engine.process_proofs(&mut thread, Timestamps::from(real_now()), &[message]);
        let provers = host.prover_store().unwrap();
        assert!(
            provers.proof_record(device.id(), RoundNumber(number)).is_some(),
            "{number}"
        );
    };
    prove(&mut host, 1);
    for number in [
        2,
        3,
        (1 << 17) - 2,
        (1 << 17) + 3,
        1 << 18,
        (1 << 18) + 4,
        1 << 31,
        u32::MAX - 1,
        u32::MAX,
    ] {
        let provers = host.prover_store().unwrap();
        provers.open_round(&open(round(4, number))).unwrap();
        prove(&mut host, number);
    }
    // Only the newest round of each lane has results.
    let provers = host.prover_store().unwrap();
    assert_eq!(provers.proof_record(device.id(), RoundNumber(1 << 31)), None);
    assert_eq!(provers.verdicts(RoundNumber(1 << 31)).count(), 0);
}

/// A packet path that is suspended while the results are cleared can write the result of an old round afterwards. Such a
/// result must not prevent the device's PROOF from being accepted.
#[test]
fn a_late_result_of_an_old_round_excludes_no_device() {
    let mut host = Host::new(&TestConfig::ATTESTING.config()).unwrap();
    install(&mut host);
    let (engine, mut thread) = (host.engine(), host.thread_state());
    let device = TestDevice(1);
    let mut number = 1;
    let gap = 1 << 14;
    while number < 5 * gap {
        number += gap - 1;
        let provers = host.prover_store().unwrap();
        provers.open_round(&open(round(4, number))).unwrap();
        for age in [1, gap / 2, gap, 2 * gap] {
            let provers = host.prover_store().unwrap();
            let round_bits = number.wrapping_sub(age * 2) >> 1 & 0xffff;
            write_results(provers, round_bits << 16 | PROVED);
            let message = proof_bytes(proof(device, &round(4, number), 1));
            engine.process_proofs(&mut thread, Timestamps::from(real_now()), &[message]);
            assert!(
                provers.proof_record(device.id(), RoundNumber(number)).is_some(),
                "{number}, {age}"
            );
        }
    }
}

/// About a tenth of the provers do not fit into the bucket that the hash of their id selects.
#[test]
fn all_provers_are_found_in_a_full_table() {
    let config = TestConfig {
        provers: 1_000,
        ..TestConfig::ATTESTING
    };
    let mut host = Host::new(&config.config()).unwrap();
    let (engine, mut thread) = (host.engine(), host.thread_state());
    let mut installed: Vec<u16> = Vec::new();
    for number in 1..6_u32 {
        let added: Vec<u16> = (0..)
            .map(|step| number as u16 * 2_000 + step)
            .take(1_000 - installed.len())
            .collect();
        let provers = host.prover_store().unwrap();
        for number in &added {
            let keys = ProverKeys {
                current: key(TestDevice(*number), GATEWAY, 4, 1),
                alternate: number
                    .is_multiple_of(3)
                    .then(|| key(TestDevice(*number), GATEWAY, 4, 2)),
            };
            provers
                .install(TestDevice(*number).id(), Period(4), &keys)
                .unwrap();
        }
        installed.extend(added);
        let other_keys = ProverKeys {
            current: key(TestDevice(1), GATEWAY, 4, 1),
            alternate: None,
        };
        assert_eq!(
            provers.install(TestDevice(1).id(), Period(4), &other_keys),
            Err(ProverError::NoFreeSlot(TestDevice(1).id()))
        );
        provers.open_round(&open(round(4, number))).unwrap();
        let runs = |number: u16| if number.is_multiple_of(6) { 2 } else { 1 };
        let message = |device_number: &u16| {
            proof_bytes(proof(
                TestDevice(*device_number),
                &round(4, number),
                runs(*device_number),
            ))
        };
        let messages: Vec<_> = installed.iter().map(message).collect();
        engine.process_proofs(&mut thread, Timestamps::from(real_now()), &messages);
        let counters: Vec<_> = host.counters().unwrap().nonzero().collect();
        assert_eq!(counters, [(Verdict::ProofOk, u64::from(number) * 1_000)]);
        let provers = host.prover_store().unwrap();
        let ok = provers
            .verdicts(RoundNumber(number))
            .filter(|(_, proved)| proved.is_some());
        assert_eq!(ok.count(), 1_000);
        for (index, device_number) in std::mem::take(&mut installed).into_iter().enumerate() {
            if index.is_multiple_of(2) {
                assert!(provers.wipe(TestDevice(device_number).id()));
            } else {
                installed.push(device_number);
            }
        }
        host.housekeep();
        host.housekeep();
    }
}

/// If a prover is wiped while its PROOF is being checked, the result can be written afterwards. It must not count for
/// the next prover that uses the same place.
#[test]
fn no_prover_inherits_the_result_of_another() {
    let config = TestConfig {
        provers: 1,
        ..TestConfig::ATTESTING
    };
    let mut host = Host::new(&config.config()).unwrap();
    let install = |host: &mut Host, device: TestDevice| {
        let keys = ProverKeys {
            current: key(device, GATEWAY, 4, 1),
            alternate: None,
        };
        let provers = host.prover_store().unwrap();
        provers.install(device.id(), Period(4), &keys).unwrap();
    };
    install(&mut host, TestDevice(1));
    let provers = host.prover_store().unwrap();
    provers.open_round(&open(round(4, 1))).unwrap();
    provers.wipe(TestDevice(1).id());
    write_results(provers, PROVED);
    host.housekeep();
    host.housekeep();
    install(&mut host, TestDevice(2));
    let provers = host.prover_store().unwrap();
    assert_eq!(provers.proof_record(TestDevice(2).id(), RoundNumber(1)), None);
}
