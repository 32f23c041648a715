//! Floods of invalid messages against senders of immediate ones, on one processor and in virtual time.

use super::traffic::{Crossroads, Flood, Stretch, merge};
use super::*;
use crate::scheduler::{Class, Config, LaneKind, ORDINARY_WORK, Priority, Span};

/// What waking a thread takes on a virtual machine.
const WAKE: Span = Span::from_micros(50);
/// Invalid messages that one core sends per second.
const FULL_RATE: f64 = 250_000.0;
/// A message of RA of 37 components of which no hash is kept.
const UNKEPT_WORK: u32 = ORDINARY_WORK + 37 * 200;
const VEHICLES: u64 = 24;
/// An honest signer, whom the flood names.
const NAMED: u64 = 3;

fn receiver() -> Plan {
    let lane = SimLane {
        wake: WAKE,
        ..cpu("processor", LaneKind::Cpu)
    };
    Plan::new(Config::default(), vec![lane], 1)
}

fn stretch(class: Class, seconds: f64, first_source: u64) -> Stretch {
    Stretch {
        seconds,
        class,
        first_source,
        seed: 11,
    }
}

/// Ten immediate messages a second of each vehicle.
fn honest(class: Class) -> Vec<trace::Record> {
    let vehicles = Crossroads {
        vehicles: VEHICLES,
        immediate: 1.0,
    };
    vehicles.trace(stretch(class, 1.5, 0))
}

/// It begins when all vehicles have been heard.
fn flood(class: Class, flood: Flood, work: u32) -> Vec<trace::Record> {
    let mut trace = flood.trace(stretch(class, 1.0, 1 << 32));
    for record in &mut trace {
        record.arrival_us += 300_000;
        record.signer = NAMED;
        record.work = work;
    }
    trace
}

/// Within three times what they take without the flood, and none lost: the 99th percentile of immediate messages, in microseconds.
fn check(name: &str, class: Class, flood: Vec<trace::Record>) {
    let (plan, honest) = (receiver(), honest(class));
    let run = |trace: &[trace::Record]| plan.run(trace, Contender::Adaptive.policy(&plan.lanes)).unwrap();
    let quiet = run(&honest);
    let flooded = run(&merge([honest.clone(), flood]));
    let p99 = |report: &Report| {
        let p99 = report.valid.quantile(Priority::IMMEDIATE, 0.99);
        p99.as_nanos() / 1_000
    };
    let (before, after) = (p99(&quiet), p99(&flooded));
    println!("{name}: {before} us, {after} us\n{}", flooded.text());
    assert!(after <= 3 * before, "{name}: {before} us became {after} us");
    let done = flooded.valid.count(Priority::IMMEDIATE);
    assert_eq!(
        done,
        honest.len() as u64,
        "{name}: immediate messages that were verified"
    );
    assert!(
        flooded.counters.rejected > 0,
        "{name}: strangers are verified too"
    );
}

fn urgent(sources: u64, per_s: f64) -> Flood {
    Flood {
        sources,
        per_s,
        priority: Priority::URGENT,
    }
}

#[test]
fn invalid_messages_at_full_rate_delay_no_immediate_message() {
    for class in [Class::ED25519_VERIFY, Class::P256_VERIFY] {
        let work = 5 * ORDINARY_WORK / 2;
        let name = class.name().unwrap();
        check(name, class, flood(class, urgent(16, FULL_RATE), work));
    }
    let class = Class::RA_VERIFY;
    check("RA", class, flood(class, urgent(16, FULL_RATE), UNKEPT_WORK));
}

#[test]
fn four_thousand_invalid_messages_of_ra_a_second_delay_no_immediate_message() {
    let class = Class::RA_VERIFY;
    check(
        "RA, 4,000/s",
        class,
        flood(class, urgent(1, 4_000.0), UNKEPT_WORK),
    );
}

#[test]
fn false_immediates_delay_no_immediate_message() {
    for (name, sources) in [
        ("of one source", 1),
        ("of sixteen", 16),
        ("of invented ones", 1 << 40),
    ] {
        let claims = Flood {
            priority: Priority::IMMEDIATE,
            ..urgent(sources, FULL_RATE)
        };
        let class = Class::RA_VERIFY;
        check(name, class, flood(class, claims, UNKEPT_WORK));
    }
}

/// Known senders' other messages have three quarters of the lane, and need not wait behind a stranger's.
#[test]
fn a_flood_leaves_known_senders_their_share_of_the_lane() {
    let class = Class::ED25519_VERIFY;
    let vehicles = Crossroads {
        vehicles: 5_000,
        immediate: 0.0,
    };
    let honest = vehicles.trace(stretch(class, 1.5, 0));
    let plan = receiver();
    let trace = merge([honest.clone(), flood(class, urgent(16, FULL_RATE), ORDINARY_WORK)]);
    let report = plan.run(&trace, Contender::Adaptive.policy(&plan.lanes)).unwrap();
    println!("{}", report.text());
    // Half of what the lane does is theirs; a quarter is for strangers.
    let done = report.valid.count(Priority::URGENT);
    assert!(
        done as f64 > 0.999 * honest.len() as f64,
        "{done} of {}",
        honest.len()
    );
    assert!(report.valid.quantile(Priority::URGENT, 0.99) < Span::from_millis(1));
    assert!(report.counters.rejected > 20_000, "{}", report.counters.rejected);
}
