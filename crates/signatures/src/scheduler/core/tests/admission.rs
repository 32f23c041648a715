//! Admission of jobs, and their levels.

use super::super::super::job::{Fingerprint, Meta, ShedReason};
use super::super::*;
use super::rig::*;

fn copy_of(bits: u128, level: u8, source: u64) -> Meta {
    Meta {
        fingerprint: Some(Fingerprint::new(bits)),
        ..meta(level, source)
    }
}

fn drop_reason(rig: &Rig, job: u32) -> Option<ShedReason> {
    match rig.departures.get(&job) {
        Some(Departure::Dropped(reason)) => Some(*reason),
        _ => None,
    }
}

#[test]
fn unsupported_classes_and_expired_jobs_are_refused() {
    let mut rig = Rig::pair();
    let expired = Meta {
        expires: rig.now,
        ..meta(1, 1)
    };
    rig.submit([
        Meta {
            class: Class::RSA_SIGN,
            ..meta(0, 1)
        },
        expired,
    ]);
    assert_eq!(
        (drop_reason(&rig, 0), drop_reason(&rig, 1)),
        (Some(ShedReason::NoLane), Some(ShedReason::Expired))
    );
    assert_eq!(rig.core.counters().shed.total(), 2);
}

#[test]
fn copies_are_dropped_while_the_original_waits_runs_and_afterwards() {
    let mut rig = Rig::pair();
    rig.submit_many(1, 8);
    rig.submit([copy_of(7, 2, 1), copy_of(7, 2, 2), copy_of(8, 2, 1)]);
    assert_eq!(
        (drop_reason(&rig, 9), drop_reason(&rig, 10)),
        (Some(ShedReason::Duplicate), None)
    );
    rig.finish(CPU, Outcome::Accepted);
    rig.submit([copy_of(7, 2, 33)]);
    assert_eq!(drop_reason(&rig, 11), Some(ShedReason::Duplicate));
    rig.finish_all();
    rig.submit([copy_of(7, 2, 4)]);
    assert_eq!(drop_reason(&rig, 12), Some(ShedReason::Duplicate));
    rig.advance_time(Config::default().recent_lifetime_min.times(2));
    rig.submit([copy_of(7, 2, 4)]);
    assert_eq!(drop_reason(&rig, 13), None, "expired");
}

#[test]
fn a_copy_of_a_dropped_job_is_admitted() {
    let mut config = Config::default();
    config.queue.capacity = 2;
    let mut rig = Rig::new(config, vec![cpu()], tau(10));
    for source in 1..4 {
        rig.submit([meta(2, source)]);
        rig.finish_all();
    }
    rig.submit_many(1, 1);
    let [copy, ..] = rig.submit([copy_of(5, 6, 1), meta(2, 2), meta(2, 3)])[..] else {
        panic!("three were submitted");
    };
    assert_eq!(drop_reason(&rig, copy), Some(ShedReason::QueueFull));
    rig.finish_all();
    let resubmitted = rig.submit([copy_of(5, 6, 1)]);
    assert_eq!(drop_reason(&rig, resubmitted[0]), None);
}

#[test]
fn repeating_an_immediate_message_beyond_the_quota_does_not_delay_the_original() {
    let mut config = Config::default();
    config.quotas.source.burst = 1;
    let mut rig = Rig::new(config, vec![cpu()], tau(10));
    let (attacker, victim) = (66, 1);
    rig.submit([meta(0, attacker)]);
    rig.submit([
        copy_of(9, 0, attacker),
        copy_of(9, 0, victim),
        copy_of(9, 0, victim),
    ]);
    assert_eq!(rig.core.counters().demoted, 1);
    rig.finish(CPU, Outcome::Rejected);
    assert_eq!(rig.batch_on(CPU), [2], "the victim's job stays immediate");
    assert_eq!(
        (drop_reason(&rig, 1), drop_reason(&rig, 3)),
        (None, Some(ShedReason::Duplicate))
    );
    rig.submit([copy_of(9, 0, attacker)]);
    assert_eq!(drop_reason(&rig, 4), Some(ShedReason::Duplicate));
}

#[test]
fn immediate_messages_beyond_the_quota_are_urgent_ones() {
    let mut rig = Rig::pair();
    rig.lose(GPU);
    rig.submit_many(1, 1);
    rig.submit((0..30).map(|_| meta(0, 5)));
    assert_eq!(rig.core.counters().demoted, 20);
    assert_eq!(rig.core.waiting(), (10, 20));
    rig.submit([meta(0, 6)]);
    rig.finish(CPU, Outcome::Accepted);
    rig.finish(CPU, Outcome::Accepted);
    assert_eq!(
        rig.batch_on(CPU),
        [9, 10, 31],
        "the job of another source precedes the demoted ones"
    );
}

#[test]
fn invented_sources_share_a_quota_that_known_sources_do_not_need() {
    let mut config = Config::default();
    config.quotas.unknown_senders.burst = 4;
    let mut rig = Rig::new(config, vec![cpu()], tau(10));
    let known = rig.submit([meta(3, 1)]);
    rig.finish_all();
    assert_eq!(rig.departures[&known[0]], Departure::Done(Outcome::Accepted));
    rig.submit((100..200).map(|source| meta(0, source)));
    assert_eq!(rig.core.counters().demoted, 96);
    rig.submit([meta(0, 1)]);
    assert_eq!(rig.core.counters().demoted, 96);
    rig.submit([meta(3, 300)]);
    while !rig.tasks.is_empty() {
        rig.finish(CPU, Outcome::Rejected);
    }
    rig.submit([meta(0, 300)]);
    assert_eq!(
        rig.core.counters().demoted,
        97,
        "an invalid signature makes no sender known"
    );
}

#[test]
fn discarded_messages_make_no_sender_known() {
    for (outcome, demoted) in [(Outcome::Discarded, 1), (Outcome::Accepted, 0)] {
        let mut config = Config::default();
        config.quotas.unknown_senders.burst = 0;
        let mut rig = Rig::new(config, vec![cpu()], tau(10));
        rig.submit([meta(3, 1)]);
        rig.finish(CPU, outcome);
        rig.submit([meta(0, 1)]);
        assert_eq!(rig.core.counters().demoted, demoted, "{outcome:?}");
        rig.finish_all();
        assert_eq!(rig.core.counters().done(), 2);
    }
}

#[test]
fn a_flood_of_urgent_forgeries_drops_no_job_of_known_sources() {
    let mut config = Config::default();
    (config.queue.capacity, config.queue.share_max) = (64, 16);
    let mut rig = Rig::new(config, vec![cpu()], tau(10));
    rig.submit((1..=7).map(|level| meta(level, 1)));
    rig.finish_all();
    let flood = |rig: &mut Rig| rig.submit((0..1_000).map(|number| meta(1, 100 + number % 4)));
    flood(&mut rig);
    let mut submitted = Vec::new();
    for _ in 0..5 {
        submitted.extend(rig.submit((1..=7).map(|level| meta(level, 1))));
        flood(&mut rig);
    }
    rig.submit((0..1_000).map(|source| meta(1, 1_000 + source)));
    let shares = submitted
        .iter()
        .filter(|job| drop_reason(&rig, **job) == Some(ShedReason::SourceShare));
    let lost = submitted.iter().filter(|job| drop_reason(&rig, **job).is_some());
    // The source may have 16 jobs waiting, and none of these was dropped.
    assert_eq!(
        (lost.count(), shares.count()),
        (submitted.len() - 16, submitted.len() - 16)
    );
}

#[test]
fn an_unknown_senders_copy_does_not_replace_a_known_senders_job() {
    let mut config = Config::default();
    config.queue.capacity = 8;
    let mut rig = Rig::new(config, vec![cpu()], tau(10));
    rig.submit_many(3, 8);
    rig.finish_all();
    rig.submit_many(1, 8);
    let [copy, original] = rig.submit([copy_of(4, 3, 66), copy_of(4, 3, 1)])[..] else {
        panic!("two were submitted");
    };
    assert_eq!(drop_reason(&rig, original), None);
    rig.submit_many(2, 7);
    assert_eq!(
        (drop_reason(&rig, copy), drop_reason(&rig, original)),
        (Some(ShedReason::QueueFull), None)
    );
}

#[test]
fn completed_jobs_admit_no_copy_of_any_sender() {
    let mut rig = Rig::new(Config::default(), vec![cpu()], tau(10));
    rig.submit([copy_of(4, 3, 66), meta(3, 1)]);
    rig.finish_all();
    let [known, unknown, urgent] = rig.submit([copy_of(4, 3, 1), copy_of(4, 3, 67), copy_of(4, 0, 1)])[..]
    else {
        panic!("three were submitted");
    };
    for copy in [known, unknown, urgent] {
        assert_eq!(drop_reason(&rig, copy), Some(ShedReason::Duplicate));
    }
}

#[test]
fn an_arrival_in_the_future_is_now() {
    let mut rig = Rig::pair();
    rig.lose(GPU);
    rig.submit_many(1, 1);
    let mut jobs = vec![Job {
        meta: Meta {
            arrived: Time::NEVER,
            ..meta(7, 1)
        },
        payload: 1,
    }];
    rig.event(Event::Submitted(&mut jobs)).unwrap();
    rig.advance_time(Span::from_millis(200));
    rig.submit_many(1, 8);
    rig.finish(CPU, Outcome::Accepted);
    assert_eq!(rig.batch_on(CPU)[0], 1, "it has aged");
}
