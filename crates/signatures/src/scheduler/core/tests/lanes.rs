//! Every event in every state of a lane, and the jobs of a lost lane.

use super::super::super::job::ShedReason;
use super::super::*;
use super::rig::*;

/// Brings the accelerator into a state; no batch is waiting that is large enough for it.
fn in_state(state: &str) -> Rig {
    let masks = super::work::mask_limits();
    let refilling = gpu()
        .with_class(masks.refill, CostModel::new(Span::ZERO, 1e3))
        .with_refill();
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
            rig.trigger_timer();
        }
        "idle" | "refilling" => {}
        other => panic!("no state {other}"),
    }
    assert_eq!(rig.core.lanes[GPU.0].state.name(), state);
    rig
}

/// Applies an event by name, and returns the state after it. An event that is allowed ends the lane's task.
fn state_after(state: &str, event: &str) -> Result<&'static str, CoreError> {
    let mut rig = in_state(state);
    let batch = match rig.tasks.remove(&GPU) {
        Some(LaneTask::Run(batch)) => batch,
        _ => Batch::new(CLASS),
    };
    let outcomes = vec![Outcome::Accepted; batch.len()];
    let counters = *rig.core.counters();
    let duration = Span::from_micros(10);
    let lane = GPU;
    let result = rig.event(match event {
        "idle" => Event::LaneIdle(lane),
        "done" => Event::BatchDone {
            lane,
            batch,
            outcomes: &outcomes,
            duration,
        },
        "lost with batch" => Event::LaneLost {
            lane,
            batch: Some(batch),
        },
        "lost" => Event::LaneLost { lane, batch: None },
        "refilled" => Event::RefillDone {
            lane,
            made: 1,
            duration,
        },
        "alive" => Event::Probed { lane, alive: true },
        "dead" => Event::Probed { lane, alive: false },
        other => panic!("no event {other}"),
    });
    let new_state = rig.core.lanes[GPU.0].state.name();
    if result.is_err() {
        assert_eq!(
            (new_state, rig.core.counters()),
            (state, &counters),
            "{event} in state {state}"
        );
    }
    result.map(|()| new_state)
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
        // The refill continues at once: the pool is not full.
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
            let result = state_after(state, event);
            match expected {
                Some(expected) => assert_eq!(result, Ok(expected), "{event} in state {state}"),
                None => assert!(
                    matches!(result, Err(CoreError::Unexpected { lane: GPU, state: reported, .. }) if reported == state),
                    "{event} in state {state}: {result:?}"
                ),
            }
        }
    }
}

#[test]
fn events_of_missing_lanes_and_wrong_batches_are_refused() {
    let mut rig = in_state("running");
    let missing_lane = LaneId(2);
    assert_eq!(
        rig.event(Event::LaneIdle(missing_lane)),
        Err(CoreError::NoSuchLane(missing_lane))
    );
    let batch = Batch::new(CLASS);
    let expected = rig.batch_on(GPU).len();
    let wrong_batch = Err(CoreError::WrongBatch {
        lane: GPU,
        expected,
        found: 0,
    });
    assert_eq!(
        rig.event(Event::LaneLost {
            lane: GPU,
            batch: Some(batch)
        }),
        wrong_batch
    );
    let Some(LaneTask::Run(batch)) = rig.tasks.remove(&GPU) else {
        panic!()
    };
    let outcomes = vec![Outcome::Accepted; expected - 1];
    let wrong_batch = Err(CoreError::WrongBatch {
        lane: GPU,
        expected,
        found: expected - 1,
    });
    assert_eq!(
        rig.event(Event::BatchDone {
            lane: GPU,
            batch,
            outcomes: &outcomes,
            duration: Span::ZERO
        }),
        wrong_batch
    );
}

#[test]
fn jobs_of_a_lost_accelerator_are_redone_in_order_on_the_cpu() {
    let mut rig = Rig::pair();
    let first = rig.submit_many(1, 8);
    let second = rig.submit_many(1, 60);
    assert_eq!(
        (rig.batch_on(CPU), rig.batch_on(GPU)),
        (first.clone(), second.clone())
    );
    let third = rig.submit_many(1, 5);
    let immediate = rig.submit_many(0, 1);
    rig.lose(GPU);
    assert_eq!(rig.core.counters().returned, 60);
    rig.finish_all();
    assert_eq!(
        rig.completed,
        [first, immediate, second, third].concat(),
        "immediate ones before all others"
    );
    assert!(
        rig.departures
            .values()
            .all(|departure| *departure == Departure::Done(Outcome::Accepted))
    );
    assert_eq!(rig.core.counters().accepted, u64::from(rig.next_job));
}

#[test]
fn a_lost_accelerator_is_probed_with_backoff() {
    let mut rig = Rig::pair();
    rig.lose(GPU);
    let mut waits = Vec::new();
    for _ in 0..9 {
        let lost_at = rig.now;
        rig.trigger_timer();
        waits.push(rig.now.saturating_since(lost_at).as_nanos() / 1_000_000);
        rig.lose(GPU);
    }
    assert_eq!(waits, [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]);
    rig.trigger_timer();
    rig.finish(GPU, Outcome::Accepted);
    rig.submit_many(1, 30);
    assert_eq!(rig.batch_on(GPU).len(), 22);
    assert_eq!(rig.core.counters().probes, 10);
}

#[test]
fn a_job_that_makes_lanes_fail_is_dropped_eventually() {
    let mut config = Config::default();
    config.queue.attempts_max = 2;
    let mut rig = Rig::new(config, vec![cpu()], tau(10));
    rig.submit_many(0, 1);
    for _ in 0..2 {
        rig.lose(CPU);
        assert!(rig.departures.is_empty());
        rig.trigger_timer();
        rig.finish(CPU, Outcome::Accepted);
        assert_eq!(rig.batch_on(CPU), [0]);
    }
    rig.lose(CPU);
    assert_eq!(rig.departures[&0], Departure::Dropped(ShedReason::LanesFailed));
}

#[test]
fn without_cpu_lanes_the_accelerator_processes_all_jobs() {
    let mut rig = Rig::pair();
    rig.lose(CPU);
    let immediate = rig.submit_many(0, 1);
    assert_eq!(rig.batch_on(GPU), immediate);
    rig.lose(GPU);
    rig.advance_time(Span::from_millis(100));
    rig.event(Event::Timer).unwrap();
    rig.lose(CPU);
    rig.finish(GPU, Outcome::Accepted);
    assert_eq!(rig.batch_on(GPU), immediate, "including jobs of its lost batch");
}

#[test]
fn jobs_that_expire_while_all_lanes_are_lost_are_dropped_in_time() {
    let mut rig = Rig::pair();
    rig.lose(CPU);
    rig.lose(GPU);
    let mut expiring = meta(3, 1);
    expiring.expires = rig.now + Span::from_millis(7);
    rig.submit([expiring]);
    assert_eq!(rig.core.next_timer(), expiring.expires);
    rig.trigger_timer();
    assert_eq!(rig.departures[&0], Departure::Dropped(ShedReason::Expired));
}
