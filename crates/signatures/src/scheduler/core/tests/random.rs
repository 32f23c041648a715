//! Random events, including failing lanes: each job leaves exactly once, and the rules for assigning jobs hold after
//! every event.

use std::cell::RefCell;

use super::super::super::job::{Fingerprint, Meta, Priority, ShedReason, Source};
use super::super::super::policy::{Adaptive, DelayBounded, FixedBatch};
use super::super::super::testing::{RandomChoices, seeds};
use super::super::*;
use super::rig::*;

const CLASSES: [Class; 3] = [CLASS, Class::RA_SIGN, Class::RSA_VERIFY];

fn lanes(choices: &mut RandomChoices) -> Vec<LaneSpec> {
    let cpu = |kind| {
        let cost_model = CostModel::new(Span::from_micros(1), 50e3);
        let spec = LaneSpec { kind, ..cpu() }
            .with_class(Class::RA_SIGN, cost_model)
            .with_class(Class::RSA_SIGN, cost_model);
        spec.with_class(Class::RSA_VERIFY, cost_model)
    };
    let cost_model = CostModel::new(Span::from_micros(200), 1e6);
    let gpu = gpu()
        .with_class(Class::RSA_VERIFY, cost_model)
        .with_class(Class::MASK_REFILL, cost_model)
        .with_refill()
        .with_batch_max(50);
    let mut lanes = vec![cpu(LaneKind::Cpu), gpu.clone()];
    if choices.one_in(2) {
        lanes.push(cpu(LaneKind::Reserved));
    }
    if choices.one_in(2) {
        lanes.push(cpu(LaneKind::Cpu));
    }
    if choices.one_in(3) {
        lanes.push(gpu);
    }
    lanes
}

fn policy(choices: &mut RandomChoices) -> Box<dyn Policy> {
    match choices.below(4) {
        0 => tau(choices.below(60) as usize),
        1 => Box::new(FixedBatch::new(1 + choices.below(60) as usize)),
        2 => Box::new(DelayBounded::new(
            1 + choices.below(60) as usize,
            Span::from_micros(choices.below(3_000)),
        )),
        _ => Box::new(Adaptive::default()),
    }
}

fn config(choices: &mut RandomChoices) -> Config {
    let mut config = Config {
        masks: Some(super::work::mask_limits()),
        ..Config::default()
    };
    config.queue.capacity = 20 + choices.below(200) as usize;
    config.queue.share_max = 20 + choices.below(100) as usize;
    config.queue.attempts_max = 1 + choices.below(3) as u8;
    config.immediate_in_a_row = 1 + choices.below(10) as u32;
    config
}

fn submit(rig: &mut Rig, choices: &mut RandomChoices) {
    let count = 1 + choices.below(40);
    let now = rig.now;
    let random_meta = |_| {
        let level = if choices.one_in(4) {
            0
        } else {
            choices.below(8) as u8
        };
        let class = CLASSES[choices.below(3) as usize];
        let mut meta = Meta::new(class, Priority::new(level), Source(choices.below(6)), now);
        if choices.one_in(3) {
            meta.expires = now + Span::from_micros(choices.below(5_000));
        }
        if choices.one_in(3) {
            meta.fingerprint = Some(Fingerprint::new(u128::from(choices.below(500))));
        }
        meta
    };
    let metas: Vec<_> = (0..count).map(random_meta).collect();
    rig.submit(metas);
}

/// Checks the invariants after an event.
fn check(rig: &Rig) {
    assert!(rig.core.is_balanced());
    let waiting = rig.core.waiting();
    let in_batches: usize = rig
        .tasks
        .values()
        .map(|task| {
            if let LaneTask::Run(batch) = task {
                batch.len()
            } else {
                0
            }
        })
        .sum();
    assert_eq!(in_batches, rig.core.in_batches());
    assert_eq!(
        rig.departures.len() + in_batches + waiting.0 + waiting.1,
        rig.next_job as usize,
        "a job is missing"
    );
    for (lane, slot) in rig.core.lanes.iter().enumerate() {
        if let State::Idle { .. } = slot.state {
            assert!(!rig.tasks.contains_key(&LaneId(lane)));
            if slot.spec.kind == LaneKind::Cpu {
                assert_eq!(
                    waiting,
                    (0, 0),
                    "jobs wait while a CPU lane that supports every class is idle"
                );
            }
        }
        if let Some(LaneTask::Run(batch)) = rig.tasks.get(&LaneId(lane)) {
            check_batch(rig, slot, batch);
        }
    }
}

fn check_batch(rig: &Rig, slot: &Slot, batch: &Batch<u32>) {
    assert!(
        slot.cost_model(batch.class).is_some(),
        "the lane does not support the class"
    );
    assert!(batch.len() <= slot.spec.batch_max);
    let first = &batch.entries[0];
    for entry in &batch.entries {
        assert_eq!(entry.meta.class, first.meta.class, "two classes in one batch");
        assert_eq!(
            entry.level.is_immediate(),
            first.level.is_immediate(),
            "immediate jobs mixed with others"
        );
        assert!(entry.attempts <= rig.core.config.queue.attempts_max);
    }
    let plain = first.meta.class == Class::RA_SIGN && batch.class == Class::RSA_SIGN;
    assert!(plain || batch.class == first.meta.class);
}

#[derive(Default, Debug)]
struct Coverage {
    counters: Counters,
    completed_runs: u32,
}

fn run_random_steps(choices: &mut RandomChoices, steps: u64, coverage: &mut Coverage) {
    let lanes = lanes(choices);
    let count = lanes.len() as u64;
    let mut rig = Rig::new(config(choices), lanes, policy(choices));
    for _ in 0..steps {
        rig.advance_time(Span::from_micros(choices.below(200)));
        let lane = LaneId(choices.below(count) as usize);
        match choices.below(10) {
            0..=2 => submit(&mut rig, choices),
            3..=7 if rig.tasks.contains_key(&lane) => {
                rig.finish(
                    lane,
                    if choices.one_in(4) {
                        Outcome::Rejected
                    } else {
                        Outcome::Accepted
                    },
                );
            }
            8 if choices.one_in(2) && rig.tasks.contains_key(&lane) => rig.lose(lane),
            9 if rig.core.next_timer() != Time::NEVER => rig.trigger_timer(),
            _ => {}
        }
        check(&rig);
    }
    complete_all_jobs(&mut rig, count);
    add(coverage, rig.core.counters());
}

/// Completes all waiting jobs; lost lanes recover.
fn complete_all_jobs(rig: &mut Rig, count: u64) {
    let mut rounds = 0;
    while !rig.core.is_done() {
        rounds += 1;
        assert!(rounds < 10_000, "jobs wait forever");
        rig.advance_time(Span::from_millis(1));
        if rig.core.next_timer() <= rig.now {
            rig.event(Event::Timer).unwrap();
        }
        for lane in (0..count as usize).map(LaneId) {
            if rig.tasks.contains_key(&lane) {
                rig.finish(lane, Outcome::Accepted);
            }
        }
        check(rig);
    }
    assert_eq!(rig.departures.len(), rig.next_job as usize);
}

fn add(coverage: &mut Coverage, counters: &Counters) {
    coverage.completed_runs += 1;
    let sum = &mut coverage.counters;
    sum.returned += counters.returned;
    sum.signed_unmasked += counters.signed_unmasked;
    sum.masks_made += counters.masks_made;
    sum.demoted += counters.demoted;
    sum.waits_timed_out += counters.waits_timed_out;
    sum.probes += counters.probes;
    for (reason, count) in counters.shed.iter() {
        (0..count).for_each(|_| sum.shed.count(reason));
    }
}

#[test]
fn each_job_leaves_once_after_any_event() {
    let coverage = RefCell::new(Coverage::default());
    seeds(300, |seed, choices| {
        run_random_steps(choices, 20 + seed, &mut coverage.borrow_mut())
    });
    let coverage = coverage.into_inner();
    if coverage.completed_runs > 1 {
        let Counters {
            returned,
            signed_unmasked,
            masks_made,
            demoted,
            waits_timed_out,
            probes,
            shed,
            ..
        } = coverage.counters;
        for (description, count) in [
            ("returned", returned),
            ("signed without a mask", signed_unmasked),
            ("masks made", masks_made),
            ("demoted", demoted),
            ("waits timed out", waits_timed_out),
            ("probes", probes),
        ] {
            assert!(count > 20, "{description} occurred too rarely: {coverage:?}");
        }
        // Classes without a lane do not occur here, and only receivers drop jobs because of overload.
        let excluded = [ShedReason::NoLane, ShedReason::Overload];
        for reason in ShedReason::ALL.iter().filter(|reason| !excluded.contains(reason)) {
            assert!(
                shed.of(*reason) > 20,
                "{reason} occurred too rarely: {coverage:?}"
            );
        }
    }
}
