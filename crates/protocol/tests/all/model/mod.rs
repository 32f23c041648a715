//! A model-based property test of LAP/1: seeded runs with all kinds of faults and attacks, checked against the ground
//! truth.
//!
//! * `races` interleaves single memory accesses of CPUs and user space on one gateway's lines.
//! * `simulation` has many devices running the real device role, two gateways, an attacker who sees, drops, delays,
//!   repeats, reorders, alters and forges messages, sends from others' addresses and impersonates gateways, and
//!   failures: crashes, suspends, clock jumps, moves, revocations. Each gateway runs the crate's oracle and the step
//!   machine side by side, and their results must be equal byte for byte.
//! * Each rule is removed in turn, and a run must detect that.
//!
//! `LINEWARDEN_SEEDS` sets the number of seeds; `LINEWARDEN_SEED` replays one seed.

mod attacker;
mod cpu;
mod enrollment;
mod invariants;
mod memory;
mod node;
mod races;
mod random;
mod rules;
mod simulated_device;
mod simulation;
mod user_space;

use linewarden_protocol::verdict::Verdict;
use rules::{Rule, Rules};
use simulation::Attack;

/// Number of seeds within which the removal of a rule must be detected.
const MUTATION_SEEDS: u64 = 1_000;

/// Returns the seeds to run: the seed to replay, or as many seeds as requested, or `default` seeds.
fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse::<u64>().expect("a number"))
    };
    match number("LINEWARDEN_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("LINEWARDEN_SEEDS").unwrap_or(default),
    }
}

/// Runs all seeds; a violation ends the test and names the seed that replays it.
fn every_seed<T>(default: u64, run: impl Fn(u64) -> Result<T, String>, mut add: impl FnMut(T)) {
    for seed in seeds(default) {
        match run(seed) {
            Ok(statistics) => add(statistics),
            Err(violation) => panic!("replay with LINEWARDEN_SEED={seed}: {violation}"),
        }
    }
}

fn is_replaying() -> bool {
    std::env::var_os("LINEWARDEN_SEED").is_some()
}

#[test]
fn races_between_cpus_and_user_space_violate_no_invariant() {
    let mut sum = races::Statistics::default();
    every_seed(
        2_000,
        |seed| races::run(seed, Rules::default()),
        |statistics| sum.add(&statistics),
    );
    println!("{sum:?}");
    let covered = [
        sum.accepted,
        sum.repeated_acks,
        sum.data,
        sum.lost_races,
        sum.busy,
        sum.crashes,
    ];
    assert!(
        is_replaying() || covered.iter().all(|count| *count > 0),
        "the runs cover too little: {sum:?}"
    );
}

#[test]
fn attackers_on_the_path_failures_and_moves_violate_no_invariant() {
    let mut sum = simulation::Statistics::default();
    every_seed(
        200,
        |seed| simulation::run(seed, Attack::OnPath, Rules::default()),
        |statistics| sum.add(&statistics),
    );
    println!("{sum:?}");
    let covered = [
        Verdict::ReplyChallenge,
        Verdict::ReplyAck,
        Verdict::ReplyAckRepeated,
        Verdict::ReplyNak,
        Verdict::PassSession,
        Verdict::DropUnknownDevice,
        Verdict::DropRevoked,
        Verdict::DropIndex,
        Verdict::DropGateway,
        Verdict::DropFresh,
        Verdict::DropStopped,
        Verdict::DropTag,
        Verdict::DropAddressOwned,
        Verdict::DropReplay,
        Verdict::DropGate,
        Verdict::DropDirection,
        Verdict::DropReserved,
    ];
    for verdict in covered {
        assert!(
            is_replaying() || sum.verdicts.contains_key(&verdict),
            "the runs cover too little: no {verdict}"
        );
    }
}

#[test]
fn attackers_off_the_path_spend_no_row_and_block_no_device() {
    let mut sum = simulation::Statistics::default();
    every_seed(
        200,
        |seed| simulation::run(seed, Attack::OffPath, Rules::default()),
        |statistics| sum.add(&statistics),
    );
    println!("{sum:?}");
    assert!(is_replaying() || sum.injected > 0 && sum.sessions > 0);
}

/// A test of the tests: a gateway without one of the rules is detected, by races or by attackers.
#[test]
fn the_removal_of_each_rule_is_detected() {
    for rule in Rule::ALL {
        let rules = Rules::without(rule);
        let detected = (0..MUTATION_SEEDS).find_map(|seed| {
            let violation = races::run(seed, rules)
                .err()
                .or_else(|| simulation::run(seed, Attack::OnPath, rules).err())?;
            Some((seed, violation))
        });
        let Some((seed, violation)) = detected else {
            panic!("the removal of {rule:?} was not detected in {MUTATION_SEEDS} seeds");
        };
        println!(
            "{rule:?}: seed {seed}: {}",
            violation.lines().next().unwrap_or_default()
        );
    }
}
