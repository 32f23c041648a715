//! Random events, including failing lanes: each job leaves exactly once, and the rules of assignment hold
//! at all times.

use std::cell::RefCell;

use super::super::super::job::{Fingerprint, Meta, Priority, ShedReason, Source};
use super::super::super::policy::{Adaptive, DelayBounded, FixedBatch};
use super::super::super::testing::{RandomChoices, seeds};
use super::super::*;
use super::rig::*;

const CLASSES: [Class; 3] = [CLASS, Class::RA_SIGN, Class::RSA_VERIFY];

fn lanes(dice: &mut RandomChoices) -> Vec<LaneSpec> {
    let cpu = |kind| {
        let line = CostModel::new(Span::from_micros(1), 50e3);
        let spec = LaneSpec { kind, ..cpu() }
            .with_class(Class::RA_SIGN, line)
            .with_class(Class::RSA_SIGN, line);
        spec.with_class(Class::RSA_VERIFY, line)
    };
    let line = CostModel::new(Span::from_micros(200), 1e6);
    let gpu = gpu()
        .with_class(Class::RSA_VERIFY, line)
        .with_class(Class::MASK_REFILL, line)
        .with_refill()
        .with_batch_max(50);
    let mut lanes = vec![cpu(LaneKind::Cpu), gpu.clone()];
    if dice.one_in(2) {
        lanes.push(cpu(LaneKind::Reserved));
    }
    if dice.one_in(2) {
        lanes.push(cpu(LaneKind::Cpu));
    }
    if dice.one_in(3) {
        lanes.push(gpu);
    }
    lanes
}

fn policy(dice: &mut RandomChoices) -> Box<dyn Policy> {
    match dice.below(4) {
        0 => tau(dice.below(60) as usize),
        1 => Box::new(FixedBatch::new(1 + dice.below(60) as usize)),
        2 => Box::new(DelayBounded::new(
            1 + dice.below(60) as usize,
            Span::from_micros(dice.below(3_000)),
        )),
        _ => Box::new(Adaptive::default()),
    }
}

fn config(dice: &mut RandomChoices) -> Config {
    let mut config = Config {
        masks: Some(super::work::mask_limits()),
        ..Config::default()
    };
    config.queue.capacity = 20 + dice.below(200) as usize;
    config.queue.share_max = 20 + dice.below(100) as usize;
    config.queue.attempts_max = 1 + dice.below(3) as u8;
    config.immediate_in_a_row = 1 + dice.below(10) as u32;
    config
}

fn submit(rig: &mut Rig, dice: &mut RandomChoices) {
    let count = 1 + dice.below(40);
    let now = rig.now;
    let one = |_| {
        let level = if dice.one_in(4) { 0 } else { dice.below(8) as u8 };
        let class = CLASSES[dice.below(3) as usize];
        let mut meta = Meta::new(class, Priority::new(level), Source(dice.below(6)), now);
        if dice.one_in(3) {
            meta.expires = now + Span::from_micros(dice.below(5_000));
        }
        if dice.one_in(3) {
            meta.fingerprint = Some(Fingerprint::new(u128::from(dice.below(500))));
        }
        meta
    };
    let metas: Vec<_> = (0..count).map(one).collect();
    rig.submit(metas);
}

/// Invariants after every event.
fn check(rig: &Rig) {
    assert!(rig.core.is_balanced());
    let waiting = rig.core.waiting();
    let in_batches: usize = rig
        .given
        .values()
        .map(|start| {
            if let LaneTask::Run(batch) = start {
                batch.len()
            } else {
                0
            }
        })
        .sum();
    assert_eq!(in_batches, rig.core.in_batches());
    assert_eq!(
        rig.left.len() + in_batches + waiting.0 + waiting.1,
        rig.next as usize,
        "a job is missing"
    );
    for (lane, slot) in rig.core.lanes.iter().enumerate() {
        if let State::Idle { .. } = slot.state {
            assert!(!rig.given.contains_key(&LaneId(lane)));
            if slot.spec.kind == LaneKind::Cpu {
                assert_eq!(
                    waiting,
                    (0, 0),
                    "jobs wait while a CPU lane that supports every class is idle"
                );
            }
        }
        if let Some(LaneTask::Run(batch)) = rig.given.get(&LaneId(lane)) {
            check_batch(rig, slot, batch);
        }
    }
}

fn check_batch(rig: &Rig, slot: &Slot, batch: &Batch<u32>) {
    assert!(
        slot.line(batch.class).is_some(),
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
    ends: u32,
}

fn run_random_steps(dice: &mut RandomChoices, steps: u64, seen: &mut Coverage) {
    let lanes = lanes(dice);
    let count = lanes.len() as u64;
    let mut rig = Rig::new(config(dice), lanes, policy(dice));
    for _ in 0..steps {
        rig.pass(Span::from_micros(dice.below(200)));
        let lane = LaneId(dice.below(count) as usize);
        match dice.below(10) {
            0..=2 => submit(&mut rig, dice),
            3..=7 if rig.given.contains_key(&lane) => {
                rig.finish(
                    lane,
                    if dice.one_in(4) {
                        Outcome::Rejected
                    } else {
                        Outcome::Accepted
                    },
                );
            }
            8 if dice.one_in(2) && rig.given.contains_key(&lane) => rig.lose(lane),
            9 if rig.core.next_timer() != Time::NEVER => rig.ring(),
            _ => {}
        }
        check(&rig);
    }
    end(&mut rig, count);
    add(seen, rig.core.counters());
}

/// The lanes recover, and all waiting jobs are done.
fn end(rig: &mut Rig, count: u64) {
    let mut rounds = 0;
    while !rig.core.is_done() {
        rounds += 1;
        assert!(rounds < 10_000, "jobs wait forever");
        rig.pass(Span::from_millis(1));
        if rig.core.next_timer() <= rig.now {
            rig.event(Event::Timer).unwrap();
        }
        for lane in (0..count as usize).map(LaneId) {
            if rig.given.contains_key(&lane) {
                rig.finish(lane, Outcome::Accepted);
            }
        }
        check(rig);
    }
    assert_eq!(rig.left.len(), rig.next as usize);
}

fn add(seen: &mut Coverage, counters: &Counters) {
    seen.ends += 1;
    let sum = &mut seen.counters;
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
    let seen = RefCell::new(Coverage::default());
    seeds(300, |seed, dice| {
        run_random_steps(dice, 20 + seed, &mut seen.borrow_mut())
    });
    let seen = seen.into_inner();
    if seen.ends > 1 {
        let Counters {
            returned,
            signed_unmasked: signed_plainly,
            masks_made,
            demoted,
            waits_timed_out: waits_ended,
            probes,
            shed,
            ..
        } = seen.counters;
        for (description, count) in [
            ("returned", returned),
            ("signed plainly", signed_plainly),
            ("masks made", masks_made),
            ("demoted", demoted),
            ("waits ended", waits_ended),
            ("probes", probes),
        ] {
            assert!(count > 20, "{description} occurred too rarely: {seen:?}");
        }
        // Classes without a lane do not occur here, and only receivers drop jobs because of overload.
        let others = [ShedReason::NoLane, ShedReason::Overload];
        for reason in ShedReason::ALL.iter().filter(|reason| !others.contains(reason)) {
            assert!(shed.of(*reason) > 20, "{reason} occurred too rarely: {seen:?}");
        }
    }
}
