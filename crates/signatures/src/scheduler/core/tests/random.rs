//! Random events, failing lanes among them: each job leaves once, and the rules of who gets what hold
//! throughout.

use std::cell::RefCell;

use super::super::super::job::{Fingerprint, Meta, Priority, Shed, Source};
use super::super::super::policy::{Adaptive, DelayBounded, FixedBatch};
use super::super::super::testing::{Dice, seeds};
use super::super::*;
use super::rig::*;

const CLASSES: [Class; 3] = [CLASS, Class::RA_SIGN, Class::RSA_VERIFY];

fn lanes(dice: &mut Dice) -> Vec<LaneSpec> {
    let cpu = |kind| {
        let line = Line::new(Span::from_micros(1), 50e3);
        let spec = LaneSpec { kind, ..cpu() }
            .with(Class::RA_SIGN, line)
            .with(Class::RSA_SIGN, line);
        spec.with(Class::RSA_VERIFY, line)
    };
    let line = Line::new(Span::from_micros(200), 1e6);
    let gpu = gpu()
        .with(Class::RSA_VERIFY, line)
        .with(Class::MASK_REFILL, line)
        .refilling()
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

fn policy(dice: &mut Dice) -> Box<dyn Policy> {
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

fn config(dice: &mut Dice) -> Config {
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

fn submit(rig: &mut Rig, dice: &mut Dice) {
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

/// What must hold after every event.
fn check(rig: &Rig) {
    assert!(rig.core.is_balanced());
    let waiting = rig.core.waiting();
    let in_batches: usize = rig
        .given
        .values()
        .map(|start| {
            if let Start::Run(batch) = start {
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
                assert_eq!(waiting, (0, 0), "a processor is idle, and it does every class");
            }
        }
        if let Some(Start::Run(batch)) = rig.given.get(&LaneId(lane)) {
            check_batch(rig, slot, batch);
        }
    }
}

fn check_batch(rig: &Rig, slot: &Slot, batch: &Batch<u32>) {
    assert!(slot.line(batch.class).is_some(), "a lane that cannot do it");
    assert!(batch.len() <= slot.spec.batch_max);
    let first = &batch.tickets[0];
    for ticket in &batch.tickets {
        assert_eq!(ticket.meta.class, first.meta.class, "two classes in one batch");
        assert_eq!(
            ticket.level.is_immediate(),
            first.level.is_immediate(),
            "immediate ones among others"
        );
        assert!(ticket.attempts <= rig.core.config.queue.attempts_max);
    }
    let plain = first.meta.class == Class::RA_SIGN && batch.class == Class::RSA_SIGN;
    assert!(plain || batch.class == first.meta.class);
}

#[derive(Default, Debug)]
struct Seen {
    counters: Counters,
    ends: u32,
}

fn play(dice: &mut Dice, steps: u64, seen: &mut Seen) {
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

/// The lanes come back, and all jobs that wait are done.
fn end(rig: &mut Rig, count: u64) {
    let mut rounds = 0;
    while !rig.core.is_done() {
        rounds += 1;
        assert!(rounds < 10_000, "jobs wait for ever");
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

fn add(seen: &mut Seen, counters: &Counters) {
    seen.ends += 1;
    let sum = &mut seen.counters;
    sum.returned += counters.returned;
    sum.signed_plainly += counters.signed_plainly;
    sum.masks_made += counters.masks_made;
    sum.demoted += counters.demoted;
    sum.waits_ended += counters.waits_ended;
    sum.probes += counters.probes;
    for (why, count) in counters.shed.iter() {
        (0..count).for_each(|_| sum.shed.count(why));
    }
}

#[test]
fn each_job_leaves_once_whatever_happens() {
    let seen = RefCell::new(Seen::default());
    seeds(300, |seed, dice| play(dice, 20 + seed, &mut seen.borrow_mut()));
    let seen = seen.into_inner();
    if seen.ends > 1 {
        let Counters {
            returned,
            signed_plainly,
            masks_made,
            demoted,
            waits_ended,
            probes,
            shed,
            ..
        } = seen.counters;
        for (what, count) in [
            ("returned", returned),
            ("signed plainly", signed_plainly),
            ("masks made", masks_made),
            ("demoted", demoted),
            ("waits ended", waits_ended),
            ("probes", probes),
        ] {
            assert!(count > 20, "{what} hardly happened: {seen:?}");
        }
        // Of classes that no lane does there are none here, and receivers alone drop what comes in crowds.
        let others = [Shed::NoLane, Shed::Crowded];
        for why in Shed::ALL.iter().filter(|why| !others.contains(why)) {
            assert!(shed.of(*why) > 20, "{why} hardly happened: {seen:?}");
        }
    }
}
