//! PROOFs that wait in `xdp` for the next PROOF on their CPU. They are settled together with that PROOF, or alone by user
//! space when it reads results, also while packets arrive.
//!
//! `LINEWARDEN_SEEDS` sets the number of random runs (default 30), `LINEWARDEN_SEED` the first seed; a failure prints
//! the seed of its run.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use linewarden_dataplane::host::{Host, Timestamps};
use linewarden_dataplane::layout::{PROVED, WAITING_FREE, WAITING_FULL, WAITING_TAKEN, WaitingProof};
use linewarden_dataplane::xdp::Xdp;
use linewarden_dataplane::{Counters, EventKind, Provers, Telemetry as _};
use linewarden_protocol::gateway::{Configuration, OpenRound, ProverKeys};
use linewarden_protocol::ids::{DeviceId, Period, RoundNumber};
use linewarden_protocol::time::Monotonic;
use linewarden_protocol::verdict::Verdict::{self, *};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::support::device::{GATEWAY, TestDevice};
use crate::support::fixture::attest::{key, proof, round};
use crate::support::fixture::{load_xdp, real_now};
use crate::support::test_config::TestConfig;
use crate::support::{cpus, number, pin_to, pin_to_one_cpu};

const PROVERS: u16 = 60;

fn open(period: u64, number: u32) -> OpenRound {
    let now = real_now().monotonic_ms;
    OpenRound {
        round: round(period, number),
        started: Monotonic(now),
        deadline: Monotonic(now + (1 << 30)),
    }
}

/// Installs provers with configuration 1; every third prover also has the alternate configuration 2. Opens rounds 1
/// and 2.
fn install_provers(provers: &mut Provers, period: u64) {
    for number in 1..=PROVERS {
        let device = TestDevice(number);
        let alternate = number.is_multiple_of(3).then_some(2);
        let keys = ProverKeys {
            current: key(device, GATEWAY, period, 1),
            alternate: alternate.map(|runs| key(device, GATEWAY, period, runs)),
        };
        provers.install(device.id(), Period(period), &keys).unwrap();
    }
    provers.open_round(&open(period, 1)).unwrap();
    provers.open_round(&open(period, 2)).unwrap();
}

/// Pins the thread to one CPU, and loads a data plane with provers; returns the data plane and the CPU's number.
fn xdp_with_provers() -> (Xdp, usize) {
    let cpu = pin_to_one_cpu();
    let mut xdp = load_xdp(&TestConfig::ATTESTING.config());
    install_provers(provers(&mut xdp), 4);
    (xdp, cpu)
}

fn provers(xdp: &mut Xdp) -> &mut Provers {
    xdp.prover_store().unwrap()
}

/// A PROOF of a device that runs configuration `runs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Proof {
    device: u16,
    period: u64,
    number: u32,
    runs: u8,
    v6: bool,
}

impl Proof {
    fn message(self) -> Vec<u8> {
        proof(
            TestDevice(self.device),
            &round(self.period, self.number),
            self.runs,
        )
    }

    fn frame(self) -> Vec<u8> {
        TestDevice(self.device).frame(self.v6).udp(&self.message())
    }

    /// The configuration that the PROOF proves; `None` if the PROOF is wrong.
    fn proves(self) -> Option<Configuration> {
        match self.runs {
            1 => Some(Configuration::Current),
            2 if self.device.is_multiple_of(3) => Some(Configuration::Alternate),
            _ => None,
        }
    }

    /// The contents of the event that reports the PROOF if it is wrong.
    fn event(self) -> (DeviceId, RoundNumber, IpAddr) {
        let device = TestDevice(self.device);
        (device.id(), RoundNumber(self.number), device.end(self.v6).ip)
    }
}

fn send(xdp: &Xdp, proof: Proof) {
    xdp.test_run(&proof.frame()).unwrap();
}

/// The state of the place in which a PROOF waits on this CPU.
fn waiting_state(xdp: &Xdp, cpu: usize) -> &AtomicU32 {
    &xdp.waiting()[cpu].state
}

/// How many PROOFs user space has settled.
fn user_space_settled_count(xdp: &Xdp) -> u64 {
    let settled_at = |place: &WaitingProof| {
        place
            .settled_counts
            .iter()
            .map(|count| count.load(Relaxed))
            .sum::<u64>()
    };
    xdp.waiting().iter().map(settled_at).sum()
}

fn counted(counters: &Counters) -> BTreeMap<Verdict, u64> {
    counters.nonzero().collect()
}

fn events(xdp: &mut Xdp) -> Vec<(DeviceId, RoundNumber, IpAddr)> {
    let mut reported = Vec::new();
    let sink = &mut |event: linewarden_dataplane::Event| {
        let EventKind::WrongProof(round) = event.kind else {
            panic!("{event:?}");
        };
        assert_eq!(event.ingress, 1);
        reported.push((event.device, round, event.source));
    };
    xdp.drain_events(sink).unwrap();
    reported
}

/// The expected verdicts on two PROOFs of different provers, or on the same PROOF twice.
fn expected_verdicts(first: Proof, second: Proof) -> BTreeMap<Verdict, u64> {
    let mut verdicts = BTreeMap::new();
    for (index, proof) in [first, second].into_iter().enumerate() {
        let verdict = match proof.proves() {
            None => DropProof,
            Some(_) if index == 1 && first == second => DropProved,
            Some(_) => ProofOk,
        };
        *verdicts.entry(verdict).or_default() += 1;
    }
    verdicts
}

fn proof_of(device: u16, number: u32, runs: u8, v6: bool) -> Proof {
    Proof {
        device,
        period: 4,
        number,
        runs,
        v6,
    }
}

/// PROOFs of the current, the alternate and a wrong configuration, in rounds 1 and 2, over both IP versions.
fn all_kinds(device: u16, period: u64) -> Vec<Proof> {
    let kinds = [1, 2, 3].into_iter().flat_map(|runs| [(runs, 1), (runs, 2)]);
    let proofs = kinds.flat_map(|(runs, number)| [false, true].map(|v6| proof_of(device, number, runs, v6)));
    proofs.map(|proof| Proof { period, ..proof }).collect()
}

/// All kinds of PROOFs, in periods 4 and 5, whose keys are in different lanes.
fn all_kinds_in_both_lanes(device: u16) -> Vec<Proof> {
    [4, 5]
        .into_iter()
        .flat_map(|period| all_kinds(device, period))
        .collect()
}

/// Restores the state before any PROOF, with keys of the given period.
fn restart(xdp: &mut Xdp, period: u64) {
    provers(xdp).reset_rounds();
    install_provers(provers(xdp), period);
}

#[test]
fn the_first_proof_waits_for_the_second() {
    let (mut xdp, cpu) = xdp_with_provers();
    let pairs = all_kinds_in_both_lanes(3)
        .into_iter()
        .flat_map(|first| {
            let seconds = all_kinds(6, first.period).into_iter().chain([first]);
            seconds.map(move |second| (first, second))
        })
        .collect::<Vec<_>>();
    for (first, second) in pairs {
        restart(&mut xdp, first.period);
        let before = xdp.counters().unwrap();
        send(&xdp, first);
        assert_eq!(waiting_state(&xdp, cpu).load(Acquire), WAITING_FULL, "{first:?}");
        send(&xdp, second);
        assert_eq!(waiting_state(&xdp, cpu).load(Acquire), WAITING_FREE, "{second:?}");
        let since = xdp.counters().unwrap().since(&before);
        assert_eq!(
            counted(&since),
            expected_verdicts(first, second),
            "{first:?} {second:?}"
        );
        let wrong: Vec<_> = [first, second]
            .into_iter()
            .filter(|proof| proof.proves().is_none())
            .map(Proof::event)
            .collect();
        assert_eq!(events(&mut xdp), wrong);
        for proof in [first, second] {
            let proved =
                provers(&mut xdp).proof_record(TestDevice(proof.device).id(), RoundNumber(proof.number));
            assert_eq!(
                proved.map(|proved| proved.configuration),
                proof.proves(),
                "{proof:?}"
            );
        }
    }
    assert_eq!(user_space_settled_count(&xdp), 0);
}

#[test]
fn a_read_settles_the_waiting_proof() {
    let (mut xdp, cpu) = xdp_with_provers();
    type Read = fn(&mut Xdp);
    let read_functions: [Read; 3] = [
        |xdp| assert!(xdp.prover_store().is_some()),
        |xdp| assert_ne!(xdp.counters().unwrap(), Counters::default()),
        |xdp| xdp.drain_events(&mut |_| ()).unwrap(),
    ];
    let mut settled = 0;
    for (read, proof) in read_functions.into_iter().flat_map(|read| {
        all_kinds_in_both_lanes(3)
            .into_iter()
            .map(move |proof| (read, proof))
    }) {
        restart(&mut xdp, proof.period);
        let before = xdp.counters().unwrap();
        send(&xdp, proof);
        assert_eq!(waiting_state(&xdp, cpu).load(Acquire), WAITING_FULL);
        read(&mut xdp);
        assert_eq!(waiting_state(&xdp, cpu).load(Acquire), WAITING_FREE);
        settled += 1;
        assert_eq!(user_space_settled_count(&xdp), settled);
        let verdict = proof.proves().map_or(DropProof, |_| ProofOk);
        let since = xdp.counters().unwrap().since(&before);
        assert_eq!(counted(&since), BTreeMap::from([(verdict, 1)]), "{proof:?}");
        let proved = provers(&mut xdp).proof_record(TestDevice(3).id(), RoundNumber(proof.number));
        assert_eq!(
            proved.map(|proved| proved.configuration),
            proof.proves(),
            "{proof:?}"
        );
        // Repeats the PROOF after the read.
        send(&xdp, proof);
        let verdict_again = proof.proves().map_or(DropProof, |_| DropProved);
        let since = xdp.counters().unwrap().since(&before);
        assert_eq!(
            since.get(verdict_again),
            if verdict_again == verdict { 2 } else { 1 }
        );
        settled += u64::from(verdict_again == DropProof);
        xdp.drain_events(&mut |_| ()).unwrap();
    }
}

/// A wrong PROOF is reported to the operator even if no other PROOF follows.
#[test]
fn a_wrong_proof_that_waits_alone_is_reported() {
    let (mut xdp, _) = xdp_with_provers();
    for (v6, tags) in [false, true]
        .into_iter()
        .flat_map(|v6| [(v6, 0), (v6, 1), (v6, 2)])
    {
        let wrong = proof_of(5, 1, 3, v6);
        let frame = (0..tags).fold(TestDevice(wrong.device).frame(v6), |frame, tag| {
            frame.vlan(tag + 4)
        });
        let frame = frame.udp(&wrong.message());
        // The PROOF waits alone, or is settled together with its repetition.
        for times in [1, 2] {
            xdp.test_runs(&frame, times).unwrap();
            assert_eq!(
                events(&mut xdp),
                vec![wrong.event(); times as usize],
                "{tags} tags"
            );
        }
    }
}

#[test]
fn the_state_at_the_end_of_the_wait_decides() {
    let (mut xdp, cpu) = xdp_with_provers();
    // The test accesses the memory directly, because a read through `xdp` would settle the waiting PROOF.
    let regions = Arc::clone(provers(&mut xdp).regions());
    // Round 3 opens while a PROOF of round 1 waits. The PROOF arrived in time, so it is accepted.
    send(&xdp, proof_of(1, 1, 1, false));
    provers(&mut xdp).open_round(&open(4, 3)).unwrap();
    assert_eq!(xdp.counters().unwrap().get(ProofOk), 1);
    assert_eq!(
        provers(&mut xdp).proof_record(TestDevice(1).id(), RoundNumber(3)),
        None
    );
    // While a PROOF of round 3 waits, another CPU writes the prover's result of a later round.
    send(&xdp, proof_of(1, 3, 1, false));
    let line = |xdp: &Xdp| &regions.lines[xdp.waiting()[cpu].line.load(Relaxed) as usize];
    line(&xdp).proved[1].store(7 << 16 | PROVED, Release);
    assert_eq!(xdp.counters().unwrap().get(DropProved), 1);
    // The prover's key is removed while its PROOF waits.
    send(&xdp, proof_of(2, 3, 1, false));
    line(&xdp).key.iter().for_each(|word| word.store(0, Release));
    assert_eq!(xdp.counters().unwrap().get(DropNoKey), 1);
    send(&xdp, proof_of(5, 3, 1, false));
    line(&xdp).key.iter().for_each(|word| word.store(0, Release));
    send(&xdp, proof_of(7, 3, 1, false));
    assert_eq!(xdp.counters().unwrap().get(DropNoKey), 2);
    assert_eq!(events(&mut xdp), [], "no wrong PROOF is reported");
    // The prover is wiped while its PROOF waits: the wipe settles the PROOF first.
    send(&xdp, proof_of(4, 3, 1, false));
    assert!(provers(&mut xdp).wipe(TestDevice(4).id()));
    assert_eq!(xdp.counters().unwrap().get(ProofOk), 3);
}

/// The place for the waiting PROOF is marked as taken, as if user space were settling a PROOF or had been killed while
/// doing so.
#[test]
fn proofs_are_settled_immediately_while_the_waiting_place_is_taken() {
    let (mut xdp, cpu) = xdp_with_provers();
    waiting_state(&xdp, cpu).store(WAITING_TAKEN, Release);
    for proof in all_kinds_in_both_lanes(3) {
        restart(&mut xdp, proof.period);
        let before = xdp.counters().unwrap();
        send(&xdp, proof);
        let since = xdp.counters().unwrap().since(&before);
        let verdict = proof.proves().map_or(DropProof, |_| ProofOk);
        assert_eq!(counted(&since), BTreeMap::from([(verdict, 1)]), "{proof:?}");
        let wrong = (verdict == DropProof).then(|| proof.event());
        assert_eq!(events(&mut xdp), wrong.into_iter().collect::<Vec<_>>());
        assert_eq!(waiting_state(&xdp, cpu).load(Acquire), WAITING_TAKEN);
    }
    assert_eq!(user_space_settled_count(&xdp), 0);
}

/// Any sequence of PROOFs and reads has the same results as PROOFs checked one by one.
#[test]
fn random_sequences_have_the_results_of_single_proofs() {
    let (first, runs) = (number("LINEWARDEN_SEED", 1), number("LINEWARDEN_SEEDS", 30));
    let (mut xdp, _) = xdp_with_provers();
    for seed in first..first + runs {
        println!("LINEWARDEN_SEED={seed} LINEWARDEN_SEEDS=1 repeats the run");
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        restart(&mut xdp, 4);
        let mut host = Host::new(&TestConfig::ATTESTING.config()).unwrap();
        install_provers(host.prover_store().unwrap(), 4);
        let (engine, mut thread) = (host.engine(), host.thread_state());
        let before = xdp.counters().unwrap();
        let read_interval = rng.random_range(2..40);
        for _ in 0..400 {
            let proof = proof_of(
                rng.random_range(1..=PROVERS + 2),
                rng.random_range(1..=3),
                rng.random_range(1..=3),
                rng.random(),
            );
            let mut message = proof.message();
            if rng.random_range(0..10) == 0 {
                let index = rng.random_range(8..message.len());
                message[index] ^= 1 << rng.random_range(0..8);
            }
            xdp.test_run(&TestDevice(proof.device).frame(proof.v6).udp(&message))
                .unwrap();
            let datagram_bytes = message.try_into().unwrap();
            engine.process_proofs(&mut thread, Timestamps::from(real_now()), &[datagram_bytes]);
            if rng.random_range(0..read_interval) == 0 {
                xdp.counters().unwrap();
            }
        }
        let (mut xdp_counts, mut host_counts) = (
            counted(&xdp.counters().unwrap().since(&before)),
            counted(&host.counters().unwrap()),
        );
        // A wrong PROOF is hashed (`DropProof`) if it arrives while the valid PROOF waits. If it arrives later, it is not
        // hashed (`DropProved`). Only the sum of both is the same.
        let take_proved_and_sum = |counts: &mut BTreeMap<Verdict, u64>| {
            let [proved, wrong] = [DropProved, DropProof].map(|verdict| counts.remove(&verdict).unwrap_or(0));
            (proved, proved + wrong)
        };
        let ((xdp_proved, xdp_sum), (host_proved, host_sum)) = (
            take_proved_and_sum(&mut xdp_counts),
            take_proved_and_sum(&mut host_counts),
        );
        assert_eq!((xdp_counts, xdp_sum), (host_counts, host_sum));
        assert!(xdp_proved <= host_proved);
        for (device, number) in (1..=PROVERS).flat_map(|device| [(device, 1), (device, 2)]) {
            let configuration = |provers: &Provers| {
                let proved = provers.proof_record(TestDevice(device).id(), RoundNumber(number));
                proved.map(|proved| proved.configuration)
            };
            let expected = configuration(host.prover_store().unwrap());
            assert_eq!(configuration(provers(&mut xdp)), expected, "{device} in {number}");
        }
    }
}

/// Runs `work` on two CPUs at the same time, or on one CPU if there is only one. Runs `meanwhile` repeatedly until all
/// `work` is finished.
fn on_each_cpu<T: Send>(work: impl Fn(usize) -> T + Sync, meanwhile: impl Fn()) -> Vec<T> {
    let allowed = cpus();
    std::thread::scope(|scope| {
        let work = &work;
        let spawn_on = |(number, cpu): (usize, &usize)| {
            let cpu = *cpu;
            scope.spawn(move || {
                pin_to(cpu);
                work(number)
            })
        };
        let workers: Vec<_> = allowed.iter().take(2).enumerate().map(spawn_on).collect();
        while !workers.iter().all(|worker| worker.is_finished()) {
            meanwhile();
        }
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    })
}

/// Each PROOF is settled exactly one time, although user space reads all the time.
#[test]
fn no_proof_is_lost_during_reads() {
    let mut xdp = load_xdp(&TestConfig::ATTESTING.config());
    install_provers(provers(&mut xdp), 4);
    for number in 3..63 {
        provers(&mut xdp).open_round(&open(4, number)).unwrap();
        let runs = |device: u16| if device.is_multiple_of(5) { 3 } else { 1 };
        let proofs = (1..=PROVERS).map(|device| proof_of(device, number, runs(device), false));
        let frames: Vec<_> = proofs.map(Proof::frame).collect();
        let send_all = |_| frames.iter().for_each(|frame| drop(xdp.test_run(frame).unwrap()));
        let read = || assert!(xdp.counters().is_ok());
        let copies = on_each_cpu(send_all, read).len() as u64;
        let total = u64::from(number - 2) * u64::from(PROVERS);
        let mut expected = BTreeMap::from([
            (ProofOk, total * 4 / 5),
            (DropProved, total * 4 / 5 * (copies - 1)),
            (DropProof, total / 5 * copies),
        ]);
        expected.retain(|_, count| *count > 0);
        assert_eq!(counted(&xdp.counters().unwrap()), expected);
    }
    println!(
        "{} PROOFs were settled by user space",
        user_space_settled_count(&xdp)
    );
}

/// Each wrong PROOF is settled exactly one time each time it arrives, by the CPU or by user space, also at the highest
/// packet rate.
#[test]
fn each_proof_is_settled_exactly_once_at_full_speed() {
    let mut xdp = load_xdp(&TestConfig::ATTESTING.config());
    install_provers(provers(&mut xdp), 4);
    let times = 150_000;
    let wrong = [1, 2].map(|device| proof_of(device, 1, 3, false).frame());
    let send = |number: usize| drop(xdp.test_runs(&wrong[number], times).unwrap());
    let senders = on_each_cpu(send, || assert!(xdp.counters().is_ok())).len() as u64;
    let expected = BTreeMap::from([(DropProof, senders * u64::from(times))]);
    assert_eq!(counted(&xdp.counters().unwrap()), expected);
    println!(
        "{} PROOFs were settled by user space",
        user_space_settled_count(&xdp)
    );
}
