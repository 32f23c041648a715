//! A model-based property test of LAP/1: seeded runs in which everything that can go wrong does, judged by a ledger
//! of what really happened.
//!
//! * `races` interleaves single memory accesses of CPUs and user space on one gateway's lines.
//! * `world` has many devices running the real device role, two gateways, an attacker who sees, drops, delays, repeats,
//!   reorders, alters and invents messages, sends from others' addresses and plays gateway, and misfortunes: crashes,
//!   suspends, clock leaps, moves, revocations. Each gateway is the crate's oracle with the step machine beside it,
//!   and both must do the same to the byte.
//! * Each rule is removed in turn, and a run must notice.
//!
//! `LINEWARDEN_SEEDS` sets how many seeds are run; `LINEWARDEN_SEED` replays one.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod attacker;
mod cpu;
mod dice;
mod enrolment;
mod ledger;
mod memory;
mod node;
mod races;
mod rules;
mod station;
mod user;
mod world;

use linewarden_protocol::verdict::Verdict;
use rules::{Rule, Rules};
use world::Attack;

/// Seeds within which the removal of a rule must be caught.
const MUTATION_SEEDS: u64 = 1_000;

/// The seeds to run: one to replay, or as many as asked for, or so many.
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
            Ok(tally) => add(tally),
            Err(violation) => panic!("replay with LINEWARDEN_SEED={seed}: {violation}"),
        }
    }
}

fn replaying() -> bool {
    std::env::var_os("LINEWARDEN_SEED").is_some()
}

#[test]
fn races_between_cpus_and_user_space_break_nothing() {
    let mut sum = races::Tally::default();
    every_seed(
        2_000,
        |seed| races::run(seed, Rules::default()),
        |tally| sum.add(&tally),
    );
    println!("{sum:?}");
    let tried = [
        sum.accepted,
        sum.again,
        sum.data,
        sum.lost_races,
        sum.busy,
        sum.crashes,
    ];
    assert!(
        replaying() || tried.iter().all(|count| *count > 0),
        "too tame: {sum:?}"
    );
}

#[test]
fn attackers_on_the_path_misfortunes_and_moves_break_nothing() {
    let mut sum = world::Tally::default();
    every_seed(
        200,
        |seed| world::run(seed, Attack::OnPath, Rules::default()),
        |tally| sum.add(&tally),
    );
    println!("{sum:?}");
    let tried = [
        Verdict::ReplyChallenge,
        Verdict::ReplyAck,
        Verdict::ReplyAckAgain,
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
    for verdict in tried {
        assert!(
            replaying() || sum.verdicts.contains_key(&verdict),
            "too tame: never {verdict}"
        );
    }
}

#[test]
fn attackers_off_the_path_spend_no_row_and_hinder_nobody() {
    let mut sum = world::Tally::default();
    every_seed(
        200,
        |seed| world::run(seed, Attack::OffPath, Rules::default()),
        |tally| sum.add(&tally),
    );
    println!("{sum:?}");
    assert!(replaying() || sum.injected > 0 && sum.sessions > 0);
}

/// A test of the tests: a gateway that lacks one rule is caught, by races or by attackers.
#[test]
fn the_removal_of_each_rule_is_caught() {
    for rule in Rule::ALL {
        let rules = Rules::without(rule);
        let caught = (0..MUTATION_SEEDS).find_map(|seed| {
            let violation = races::run(seed, rules)
                .err()
                .or_else(|| world::run(seed, Attack::OnPath, rules).err())?;
            Some((seed, violation))
        });
        let Some((seed, violation)) = caught else {
            panic!("without {rule:?} nothing was found in {MUTATION_SEEDS} seeds");
        };
        println!(
            "{rule:?}: seed {seed}: {}",
            violation.lines().next().unwrap_or_default()
        );
    }
}
