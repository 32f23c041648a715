//! Simulation of whole gateways, their controller and registry, devices and a network, driven by one seed.
//!
//! Node, line store, verifier, controller, registry, SQLite and devices are the real ones. Time, network, disk, crashes
//! and the link are simulated. Gateway processes are killed, stopped, reloaded or replaced. A replaced process keeps
//! running, and may be restarted on its memory. Hosts are suspended, and the wall clock jumps. Requests and responses
//! on the link are lost. Some requests are processed after their process has abandoned them. Messages are lost, repeated
//! and delayed. An attacker replays recorded messages from the sender's address or from other addresses. Forged copies
//! precede each CHALLENGE, even without other faults. The controller is stopped, or killed in the middle of a system
//! call; its host loses power; its disk is full or fails. The registry is restored to an earlier state, from its own
//! backup or from a copied file, without notice to any gateway or device.
//!
//! Invariants of every run: no row is accepted twice, by any process. The memory of a data plane contains only keys of
//! unspent rows of its devices. A loss of memory costs a device at most a block. No session ends when its gateway is
//! reloaded or its memory adopted, and no session outlives its lifetime. The registry is consistent after every fault,
//! and contains all marks, fencing tokens and revocations that it has confirmed. No session is closed for an older
//! session. After the faults end, every device that has rows and was not revoked authenticates at every gateway, and has
//! a session only at the last of these gateways.
//!
//! In some runs the devices are also provers: devices are changed and remediated, reference values are rolled out,
//! proofs are lost and late, and an attacker sends forged and recorded proofs. An outcome is ok only if the device has
//! proven an allowed configuration in that round. A valid proof in time is never a missed proof. No device is
//! quarantined without enough missed proofs. After the faults end, compliant devices are shown as compliant, changed
//! devices are quarantined, and remediated devices are released.
//!
//! `LINEWARDEN_SEEDS` sets the number of seeds; `LINEWARDEN_SEED` replays one seed. One test per safety mechanism removes
//! the mechanism. The runs must detect the removal within 1,000 seeds, or within 200 seeds in runs with provers. If early
//! seeds do not detect the removal, the test tries a seed first that is known to detect it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod disk;
mod ledger;
mod prover;
mod simulated_data_plane;
mod simulated_device;
mod simulation;

use std::sync::atomic::{AtomicU64, Ordering};

use linewarden_harness::stay_on_one_cpu;
use simulation::{FleetTally, Mechanism, Simulation, Tally};

fn environment_number(variable: &str) -> Option<u64> {
    std::env::var(variable)
        .ok()
        .map(|value| value.parse().expect(variable))
}

/// Prints the seed of a run that panics.
struct SeedReporter(u64);

impl Drop for SeedReporter {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("LINEWARDEN_SEED={} reproduces the failure", self.0);
        }
    }
}

/// The seed of a failed run, and the violated invariant.
type Failure = (u64, String);

/// Runs seeds on two threads until a run fails. Returns the failure with the lowest seed, and the coverage of all runs
/// without a failure.
fn run(
    count: u64,
    make_simulation: impl Fn(u64) -> Simulation + Sync,
) -> (Option<Failure>, (Tally, FleetTally)) {
    let next = AtomicU64::new(0);
    let work = || {
        stay_on_one_cpu();
        let mut tally = (Tally::default(), FleetTally::default());
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= count {
                return (None, tally);
            }
            let _running = SeedReporter(seed);
            match make_simulation(seed).run() {
                Ok(coverage) => add(&mut tally, &coverage),
                Err(problem) => {
                    next.store(count, Ordering::Relaxed);
                    return (Some((seed, problem)), tally);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = [scope.spawn(work), scope.spawn(work)];
        let [(first_failure, mut tally), (second_failure, coverage)] =
            threads.map(|thread| thread.join().unwrap());
        add(&mut tally, &coverage);
        (first_failure.into_iter().chain(second_failure).min(), tally)
    })
}

fn add(tally: &mut (Tally, FleetTally), coverage: &(Tally, FleetTally)) {
    tally.0.add(&coverage.0);
    tally.1.add(&coverage.1);
}

/// Runs `LINEWARDEN_SEEDS` or else `count` seeds, and returns their coverage. If `LINEWARDEN_SEED` is set, runs only this
/// seed, and returns `None`. Panics if a run fails.
fn run_or_panic(
    count: u64,
    make_simulation: impl Fn(u64) -> Simulation + Sync,
) -> Option<(Tally, FleetTally)> {
    if let Some(seed) = environment_number("LINEWARDEN_SEED") {
        let tally = make_simulation(seed)
            .run()
            .unwrap_or_else(|problem| panic!("{problem}"));
        println!("{tally:?}");
        return None;
    }
    let (failure, tally) = run(
        environment_number("LINEWARDEN_SEEDS").unwrap_or(count),
        make_simulation,
    );
    if let Some((seed, problem)) = failure {
        panic!("{problem}\nLINEWARDEN_SEED={seed} reproduces the failure");
    }
    println!("{tally:?}");
    Some(tally)
}

#[test]
fn no_row_is_accepted_twice_and_no_device_is_locked_out() {
    if let Some((tally, _)) = run_or_panic(400, |seed| Simulation::new(seed, None)) {
        tally.assert_all_covered(&[]);
    }
}

#[test]
fn outcomes_are_true_and_changed_devices_are_quarantined() {
    if let Some((tally, fleet_tally)) = run_or_panic(80, |seed| Simulation::with_provers(seed, None)) {
        tally.assert_all_covered(&["backups", "restores", "forged_statements"]);
        fleet_tally.assert_all_covered(&[]);
    }
}

#[test]
fn without_the_controllers_disk_devices_authenticate_below_their_marks() {
    for seed in 0..20 {
        let result = Simulation::new(seed, None).run_with_lost_disk();
        result.unwrap_or_else(|problem| panic!("seed {seed}: {problem}"));
    }
}

fn is_detected(mechanism: Mechanism) {
    is_detected_by(0, mechanism);
}

/// `first` is a seed that is known to detect the removal, or 0 if early seeds detect the removal. If seed `first` no
/// longer detects the removal, another seed must detect it.
fn is_detected_by(first: u64, mechanism: Mechanism) {
    detects(first, 1000, mechanism, |seed| {
        Simulation::new(seed, Some(mechanism))
    });
}

fn is_detected_among_provers(mechanism: Mechanism) {
    detects(0, 200, mechanism, |seed| {
        Simulation::with_provers(seed, Some(mechanism))
    });
}

fn detects(first: u64, count: u64, mechanism: Mechanism, make_simulation: impl Fn(u64) -> Simulation + Sync) {
    let first_failure = {
        let _running = SeedReporter(first);
        make_simulation(first).run().err().map(|problem| (first, problem))
    };
    let (seed, problem) = first_failure
        .or_else(|| run(count, make_simulation).0)
        .unwrap_or_else(|| panic!("no seed detects that {mechanism:?} is removed"));
    println!("without {mechanism:?}: seed {seed}: {problem}");
}

#[test]
fn a_wrong_proof_proves_nothing() {
    is_detected_among_provers(Mechanism::Proof);
}

#[test]
fn a_wrong_proof_is_not_a_missed_proof() {
    is_detected_among_provers(Mechanism::MissedProof);
}

#[test]
fn only_allowed_configurations_are_accepted() {
    is_detected_among_provers(Mechanism::Reference);
}

#[test]
fn rounds_are_appraised() {
    is_detected_among_provers(Mechanism::Decision);
}

#[test]
fn a_device_that_proves_itself_is_released() {
    is_detected_among_provers(Mechanism::Release);
}

#[test]
fn outcomes_expire() {
    is_detected_among_provers(Mechanism::RoundAge);
}

#[test]
fn the_fencing_token_is_needed() {
    is_detected(Mechanism::FencingToken);
}

#[test]
fn a_late_request_must_be_refused() {
    is_detected_by(76, Mechanism::AbandonedCount);
}

#[test]
fn the_mark_is_needed() {
    is_detected(Mechanism::Mark);
}

#[test]
fn wiping_is_needed() {
    is_detected(Mechanism::Wiping);
}

#[test]
fn memory_is_adopted_only_by_the_next_process() {
    is_detected_by(40, Mechanism::Owner);
}

#[test]
fn reports_of_sessions_are_needed() {
    is_detected(Mechanism::Report);
}

#[test]
fn a_devices_memory_is_needed() {
    is_detected_by(29, Mechanism::Memory);
}

#[test]
fn a_devices_statement_is_needed() {
    is_detected_by(13, Mechanism::Statement);
}

#[test]
fn the_age_of_a_report_is_needed() {
    is_detected_by(35, Mechanism::Age);
}

#[test]
fn reports_of_unused_rows_are_needed() {
    is_detected(Mechanism::UnusedRows);
}

#[test]
fn confirmed_writes_must_be_on_disk() {
    is_detected(Mechanism::Sync);
}

#[test]
fn session_lifetimes_continue_during_a_suspend() {
    is_detected(Mechanism::BootClock);
}
