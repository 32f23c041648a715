//! Floods of invalid messages against senders of immediate messages, on one CPU lane and in virtual time.

use super::traffic::{Crossroads, Flood, TrafficParameters, merge};
use super::*;
use crate::scheduler::{Class, Config, LaneKind, ORDINARY_WORK, Priority, Span};

/// Time to wake a thread on a virtual machine.
const WAKE: Span = Span::from_micros(50);
/// Invalid messages per second that one CPU can send.
const FULL_RATE: f64 = 250_000.0;
/// Work for a message of RA with 37 components without cached hashes.
const UNCACHED_WORK: u32 = ORDINARY_WORK + 37 * 200;
const VEHICLES: u64 = 24;
/// A genuine signer whose identity the flood claims.
const IMPERSONATED_SIGNER: u64 = 3;

fn receiver() -> Simulation {
    let lane = SimLane {
        wake: WAKE,
        ..cpu("processor", LaneKind::Cpu)
    };
    Simulation::new(Config::default(), vec![lane], 1)
}

fn parameters(class: Class, seconds: f64, first_source: u64) -> TrafficParameters {
    TrafficParameters {
        duration_s: seconds,
        class,
        first_source,
        seed: 11,
    }
}

/// Ten immediate messages a second from each vehicle.
fn genuine_traffic(class: Class) -> Vec<trace::Record> {
    let vehicles = Crossroads {
        vehicles: VEHICLES,
        immediate: 1.0,
    };
    vehicles.trace(parameters(class, 1.5, 0))
}

/// The flood begins after each vehicle has sent a message.
fn flood(class: Class, flood: Flood, work: u32) -> Vec<trace::Record> {
    let mut trace = flood.trace(parameters(class, 1.0, 1 << 32));
    for record in &mut trace {
        record.arrival_us += 300_000;
        record.signer = IMPERSONATED_SIGNER;
        record.work = work;
    }
    trace
}

/// Checks that no immediate message is lost, and that the 99th percentile of their latency, in microseconds, is at most three times the
/// value without the flood.
fn check(name: &str, class: Class, flood: Vec<trace::Record>) {
    let (plan, genuine) = (receiver(), genuine_traffic(class));
    let run = |trace: &[trace::Record]| plan.run(trace, PolicyKind::Adaptive.policy(&plan.lanes)).unwrap();
    let baseline = run(&genuine);
    let flooded = run(&merge([genuine.clone(), flood]));
    let p99 = |report: &Report| {
        let p99 = report.valid.quantile(Priority::IMMEDIATE, 0.99);
        p99.as_nanos() / 1_000
    };
    let (p99_before, p99_after) = (p99(&baseline), p99(&flooded));
    println!("{name}: {p99_before} us, {p99_after} us\n{}", flooded.text());
    assert!(
        p99_after <= 3 * p99_before,
        "{name}: {p99_before} us without and {p99_after} us with the flood"
    );
    let verified = flooded.valid.count(Priority::IMMEDIATE);
    assert_eq!(
        verified,
        genuine.len() as u64,
        "{name}: verified immediate messages"
    );
    assert!(
        flooded.counters.rejected > 0,
        "{name}: unknown senders are verified too"
    );
}

fn urgent_flood(sources: u64, per_s: f64) -> Flood {
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
        check(name, class, flood(class, urgent_flood(16, FULL_RATE), work));
    }
    let class = Class::RA_VERIFY;
    check(
        "RA",
        class,
        flood(class, urgent_flood(16, FULL_RATE), UNCACHED_WORK),
    );
}

#[test]
fn four_thousand_invalid_messages_of_ra_a_second_delay_no_immediate_message() {
    let class = Class::RA_VERIFY;
    check(
        "RA, 4,000/s",
        class,
        flood(class, urgent_flood(1, 4_000.0), UNCACHED_WORK),
    );
}

#[test]
fn false_immediates_delay_no_immediate_message() {
    for (name, sources) in [
        ("one source", 1),
        ("sixteen sources", 16),
        ("invented sources", 1 << 40),
    ] {
        let flood_parameters = Flood {
            priority: Priority::IMMEDIATE,
            ..urgent_flood(sources, FULL_RATE)
        };
        let class = Class::RA_VERIFY;
        check(name, class, flood(class, flood_parameters, UNCACHED_WORK));
    }
}

/// Messages of known senders that are not immediate get three quarters of the lane, and do not wait behind messages of
/// unknown senders.
#[test]
fn a_flood_leaves_known_senders_their_share_of_the_lane() {
    let class = Class::ED25519_VERIFY;
    let vehicles = Crossroads {
        vehicles: 5_000,
        immediate: 0.0,
    };
    let genuine = vehicles.trace(parameters(class, 1.5, 0));
    let plan = receiver();
    let trace = merge([
        genuine.clone(),
        flood(class, urgent_flood(16, FULL_RATE), ORDINARY_WORK),
    ]);
    let report = plan
        .run(&trace, PolicyKind::Adaptive.policy(&plan.lanes))
        .unwrap();
    println!("{}", report.text());
    // Known senders need half of the lane's capacity; a quarter is for unknown senders.
    let verified = report.valid.count(Priority::URGENT);
    assert!(
        verified as f64 > 0.999 * genuine.len() as f64,
        "{verified} of {}",
        genuine.len()
    );
    assert!(report.valid.quantile(Priority::URGENT, 0.99) < Span::from_millis(1));
    assert!(report.counters.rejected > 20_000, "{}", report.counters.rejected);
}
