//! Every event in every state of a lane, and what becomes of the jobs of a lost one.

use super::super::super::job::Shed;
use super::super::*;
use super::rig::*;

/// Brings the accelerator into a state; whatever waits is too little for it.
fn in_state(state: &str) -> Rig {
    let masks = super::work::mask_limits();
    let refilling = gpu().with(masks.refill, Line::new(Span::ZERO, 1e3)).refilling();
    let config = Config {
        masks: (state == "refilling").then_some(masks),
        ..Config::default()
    };
    let lanes = vec![cpu(), refilling];
    if state == "absent" {
        let core = Core::new(config, lanes, tau(10));
        return Rig { core, ..Rig::pair() };
    }
    let mut rig = Rig::new(config, lanes, tau(10));
    match state {
        "running" => drop(rig.submit_many(1, 50)),
        "lost" => rig.lose(GPU),
        "probing" => {
            rig.lose(GPU);
            rig.ring();
        }
        "idle" | "refilling" => {}
        other => panic!("no state {other}"),
    }
    assert_eq!(rig.core.lanes[GPU.0].state.name(), state);
    rig
}

/// The event by name, and the state after it. An event that fits ends what the lane was given.
fn after(state: &str, event: &str) -> Result<&'static str, CoreError> {
    let mut rig = in_state(state);
    let batch = match rig.given.remove(&GPU) {
        Some(Start::Run(batch)) => batch,
        _ => Batch::new(CLASS),
    };
    let outcomes = vec![Outcome::Accepted; batch.len()];
    let counters = *rig.core.counters();
    let took = Span::from_micros(10);
    let lane = GPU;
    let result = rig.event(match event {
        "idle" => Event::LaneIdle(lane),
        "done" => Event::BatchDone {
            lane,
            batch,
            outcomes: &outcomes,
            took,
        },
        "lost with batch" => Event::LaneLost {
            lane,
            batch: Some(batch),
        },
        "lost" => Event::LaneLost { lane, batch: None },
        "refilled" => Event::RefillDone { lane, made: 1, took },
        "alive" => Event::Probed { lane, alive: true },
        "dead" => Event::Probed { lane, alive: false },
        other => panic!("no event {other}"),
    });
    let now = rig.core.lanes[GPU.0].state.name();
    if result.is_err() {
        assert_eq!(
            (now, rig.core.counters()),
            (state, &counters),
            "{event} of a lane that is {state}"
        );
    }
    result.map(|()| now)
}

#[test]
fn every_event_in_every_state() {
    let events = [
        "idle",
        "done",
        "lost with batch",
        "lost",
        "refilled",
        "alive",
        "dead",
    ];
    let allowed: &[(&str, &str, &str)] = &[
        ("absent", "idle", "idle"),
        ("absent", "lost", "lost"),
        ("idle", "idle", "idle"),
        ("idle", "lost", "lost"),
        ("running", "done", "idle"),
        ("running", "lost with batch", "lost"),
        // It begins again at once: the pool is not full.
        ("refilling", "refilled", "refilling"),
        ("refilling", "lost", "lost"),
        ("probing", "alive", "idle"),
        ("probing", "dead", "lost"),
    ];
    for state in ["absent", "idle", "running", "refilling", "lost", "probing"] {
        for event in events {
            let expected = allowed
                .iter()
                .find(|row| (row.0, row.1) == (state, event))
                .map(|row| row.2);
            let found = after(state, event);
            match expected {
                Some(expected) => assert_eq!(found, Ok(expected), "{event} of a lane that is {state}"),
                None => assert!(
                    matches!(found, Err(CoreError::Unexpected { lane: GPU, state: said, .. }) if said == state),
                    "{event} of a lane that is {state}: {found:?}"
                ),
            }
        }
    }
}

#[test]
fn events_of_no_lane_and_wrong_batches_are_refused() {
    let mut rig = in_state("running");
    let nowhere = LaneId(2);
    assert_eq!(
        rig.event(Event::LaneIdle(nowhere)),
        Err(CoreError::NoSuchLane(nowhere))
    );
    let batch = Batch::new(CLASS);
    let expected = rig.on(GPU).len();
    let wrong = Err(CoreError::WrongBatch {
        lane: GPU,
        expected,
        found: 0,
    });
    assert_eq!(
        rig.event(Event::LaneLost {
            lane: GPU,
            batch: Some(batch)
        }),
        wrong
    );
    let Some(Start::Run(batch)) = rig.given.remove(&GPU) else {
        panic!()
    };
    let short = vec![Outcome::Accepted; expected - 1];
    let wrong = Err(CoreError::WrongBatch {
        lane: GPU,
        expected,
        found: expected - 1,
    });
    assert_eq!(
        rig.event(Event::BatchDone {
            lane: GPU,
            batch,
            outcomes: &short,
            took: Span::ZERO
        }),
        wrong
    );
}

#[test]
fn the_work_of_a_lost_accelerator_is_redone_by_the_processor_in_order() {
    let mut rig = Rig::pair();
    let first = rig.submit_many(1, 8);
    let second = rig.submit_many(1, 60);
    assert_eq!((rig.on(CPU), rig.on(GPU)), (first.clone(), second.clone()));
    let third = rig.submit_many(1, 5);
    let immediate = rig.submit_many(0, 1);
    rig.lose(GPU);
    assert_eq!(rig.core.counters().returned, 60);
    rig.finish_all();
    assert_eq!(
        rig.done,
        [first, immediate, second, third].concat(),
        "immediate ones before all others"
    );
    assert!(
        rig.left
            .values()
            .all(|left| *left == Left::Done(Outcome::Accepted))
    );
    assert_eq!(rig.core.counters().accepted, u64::from(rig.next));
}

#[test]
fn a_lost_accelerator_is_tried_again_later_and_later() {
    let mut rig = Rig::pair();
    rig.lose(GPU);
    let mut waits = Vec::new();
    for _ in 0..9 {
        let before = rig.now;
        rig.ring();
        waits.push(rig.now.since(before).as_nanos() / 1_000_000);
        rig.lose(GPU);
    }
    assert_eq!(waits, [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]);
    rig.ring();
    rig.finish(GPU, Outcome::Accepted);
    rig.submit_many(1, 30);
    assert_eq!(rig.on(GPU).len(), 22);
    assert_eq!(rig.core.counters().probes, 10);
}

#[test]
fn a_job_that_kills_lanes_is_not_tried_for_ever() {
    let mut config = Config::default();
    config.queue.attempts_max = 2;
    let mut rig = Rig::new(config, vec![cpu()], tau(10));
    rig.submit_many(0, 1);
    for _ in 0..2 {
        rig.lose(CPU);
        assert!(rig.left.is_empty());
        rig.ring();
        rig.finish(CPU, Outcome::Accepted);
        assert_eq!(rig.on(CPU), [0]);
    }
    rig.lose(CPU);
    assert_eq!(rig.left[&0], Left::Dropped(Shed::LanesFailed));
}

#[test]
fn without_processors_the_accelerator_does_everything() {
    let mut rig = Rig::pair();
    rig.lose(CPU);
    let immediate = rig.submit_many(0, 1);
    assert_eq!(rig.on(GPU), immediate);
    rig.lose(GPU);
    rig.pass(Span::from_millis(100));
    rig.event(Event::Timer).unwrap();
    rig.lose(CPU);
    rig.finish(GPU, Outcome::Accepted);
    assert_eq!(rig.on(GPU), immediate, "even what was lost on it");
}

#[test]
fn what_expires_while_all_lanes_are_lost_is_dropped_in_time() {
    let mut rig = Rig::pair();
    rig.lose(CPU);
    rig.lose(GPU);
    let mut expiring = meta(3, 1);
    expiring.expires = rig.now + Span::from_millis(7);
    rig.submit([expiring]);
    assert_eq!(rig.core.next_timer(), expiring.expires);
    rig.ring();
    assert_eq!(rig.left[&0], Left::Dropped(Shed::Expired));
}
