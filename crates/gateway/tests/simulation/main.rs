//! Whole gateways, their controller and registry, devices and a network, driven by one seed.
//!
//! Node, line store, verifier, controller, registry, SQLite and devices are the real ones; time, network, disk, crashes and
//! the link are simulated. Processes of gateways are killed, stopped in good order, reloaded, or replaced while the old one
//! goes on, which may be started again on its memory; hosts are suspended, and the time of day jumps; answers and
//! questions on the link are lost; messages are lost, repeated, held back, and recorded ones are sent again by an
//! attacker from his own address. Ahead of each CHALLENGE come forged ones, also when all else is calm. The controller is stopped
//! or killed in the middle of a system call, its host loses power there, its disk is full or fails. The registry is put back to an
//! earlier state: by a copy that it has made, or by a file that somebody has copied; no gateway and no device is told.
//!
//! What must hold in every run: no row is accepted twice, whoever accepts it; what lies in a data plane's memory are
//! unspent rows of devices that are there; a loss of memory costs a device no more than a block; no session drops when
//! its gateway is reloaded or its memory taken up, and none is alive after its lease; the registry is sound whatever became
//! of it, and knows the marks, fences and revocations that it has confirmed; no session is closed for one that is older;
//! and once the misfortunes end, every device that has rows and was not revoked authenticates at every gateway, and has a
//! session at the last one only.
//!
//! In some runs the devices are provers besides: they are changed and mended, what they are to run is rolled out, their proofs are
//! lost and late, and somebody sends forged and recorded ones. A verdict is ok only if its device has proven in that round what
//! it might run then; a right proof that came in time is never silence; nobody is quarantined without so many silences; once all
//! is calm who is well is shown so, who is changed is shut out, and who is mended comes back.
//!
//! `LINEWARDEN_SEEDS` sets how many seeds are run; `LINEWARDEN_SEED` replays one. Each rule that the safety rests on is
//! removed in turn, and the run must notice within 1,000 seeds: one that did so late is tried first.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod disk;
mod ledger;
mod plane;
mod prover;
mod station;
mod world;

use std::sync::atomic::{AtomicU64, Ordering};

use world::{FleetTally, Rule, Tally, World};

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable)
        .ok()
        .map(|value| value.parse().expect(variable))
}

/// Tells the seed of a run that panics.
struct Running(u64);

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("LINEWARDEN_SEED={} repeats it", self.0);
        }
    }
}

type Failure = (u64, String);

/// Runs seeds on two threads until one fails; the first failure in their order, and what was done.
fn run(count: u64, world: impl Fn(u64) -> World + Sync) -> (Option<Failure>, (Tally, FleetTally)) {
    let next = AtomicU64::new(0);
    let work = || {
        let mut tally = (Tally::default(), FleetTally::default());
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= count {
                return (None, tally);
            }
            let _running = Running(seed);
            match world(seed).play() {
                Ok(done) => add(&mut tally, &done),
                Err(problem) => {
                    next.store(count, Ordering::Relaxed);
                    return (Some((seed, problem)), tally);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(work);
        let (mine, mut tally) = work();
        let (others, done) = other.join().unwrap();
        add(&mut tally, &done);
        (mine.into_iter().chain(others).min(), tally)
    })
}

fn add(tally: &mut (Tally, FleetTally), done: &(Tally, FleetTally)) {
    tally.0.add(&done.0);
    tally.1.add(&done.1);
}

/// Runs so many seeds, or the one that the environment names; what was done, if it was more than one.
fn succeeds(count: u64, world: impl Fn(u64) -> World + Sync) -> Option<(Tally, FleetTally)> {
    if let Some(seed) = number("LINEWARDEN_SEED") {
        let tally = world(seed).play().unwrap_or_else(|problem| panic!("{problem}"));
        println!("{tally:?}");
        return None;
    }
    let (failure, tally) = run(number("LINEWARDEN_SEEDS").unwrap_or(count), world);
    if let Some((seed, problem)) = failure {
        panic!("{problem}\nLINEWARDEN_SEED={seed} repeats it");
    }
    println!("{tally:?}");
    Some(tally)
}

#[test]
fn no_row_is_accepted_twice_and_nobody_is_locked_out() {
    if let Some((tally, _)) = succeeds(400, |seed| World::new(seed, None)) {
        tally.assert_everything_happened(&[]);
    }
}

#[test]
fn verdicts_are_true_and_quarantine_shuts_out_who_is_changed() {
    if let Some((tally, of_fleet)) = succeeds(80, |seed| World::with_provers(seed, None)) {
        tally.assert_everything_happened(&["backups", "restores", "forged_statements"]);
        of_fleet.assert_everything_happened(&[]);
    }
}

#[test]
fn without_the_controllers_disk_devices_authenticate_below_their_marks() {
    for seed in 0..20 {
        let endured = World::new(seed, None).endure_a_lost_disk();
        endured.unwrap_or_else(|problem| panic!("seed {seed}: {problem}"));
    }
}

fn is_noticed(rule: Rule) {
    is_noticed_by(0, rule);
}

/// `first` is one that noticed it when this was written, 0 where the first ones do; should it no longer, another one of them still must.
fn is_noticed_by(first: u64, rule: Rule) {
    notices(first, 1000, rule, |seed| World::new(seed, Some(rule)));
}

fn is_noticed_among_provers(rule: Rule) {
    notices(0, 200, rule, |seed| World::with_provers(seed, Some(rule)));
}

fn notices(first: u64, count: u64, rule: Rule, world: impl Fn(u64) -> World + Sync) {
    let at_once = {
        let _running = Running(first);
        world(first).play().err().map(|problem| (first, problem))
    };
    let (seed, problem) = at_once
        .or_else(|| run(count, world).0)
        .unwrap_or_else(|| panic!("nothing notices that {rule:?} is gone"));
    println!("without {rule:?}: seed {seed}: {problem}");
}

#[test]
fn a_wrong_proof_proves_nothing() {
    is_noticed_among_provers(Rule::Proof);
}

#[test]
fn a_wrong_proof_is_no_silence() {
    is_noticed_among_provers(Rule::Silence);
}

#[test]
fn what_is_proven_must_be_accepted() {
    is_noticed_among_provers(Rule::Reference);
}

#[test]
fn rounds_are_decided_about() {
    is_noticed_among_provers(Rule::Decision);
}

#[test]
fn who_proves_itself_is_let_in() {
    is_noticed_among_provers(Rule::Readmission);
}

#[test]
fn verdicts_grow_old() {
    is_noticed_among_provers(Rule::Ended);
}

#[test]
fn the_fence_is_needed() {
    is_noticed(Rule::Fence);
}

#[test]
fn the_mark_is_needed() {
    is_noticed(Rule::Mark);
}

#[test]
fn wiping_is_needed() {
    is_noticed(Rule::Wiping);
}

#[test]
fn memory_is_taken_up_by_the_next_process_only() {
    is_noticed_by(84, Rule::Owner);
}

#[test]
fn reports_of_sessions_are_needed() {
    is_noticed(Rule::Report);
}

#[test]
fn a_devices_memory_is_needed() {
    is_noticed(Rule::Memory);
}

#[test]
fn a_devices_statement_is_needed() {
    is_noticed(Rule::Statement);
}

#[test]
fn the_age_of_a_report_is_needed() {
    is_noticed_by(140, Rule::Age);
}

#[test]
fn settling_is_needed() {
    is_noticed(Rule::Settling);
}

#[test]
fn what_was_said_must_be_on_the_disk() {
    is_noticed(Rule::Sync);
}

#[test]
fn leases_count_through_suspend() {
    is_noticed(Rule::BootClock);
}
