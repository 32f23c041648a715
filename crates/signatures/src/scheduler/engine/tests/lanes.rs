//! Failing lanes.

use super::super::super::job::{Dropped, Outcome};
use super::super::super::lane::{LaneId, LaneKind};
use super::super::super::policy::Adaptive;
use super::super::super::time::Span;
use super::super::*;
use super::rig::*;

fn immediate_lane() -> Box<dyn Lane<u64>> {
    Box::new(ImmediateLane(|_| Outcome::Rejected))
}

/// Starts one job on a controlled CPU lane, and jobs 100 to 129 on a controlled accelerator. The accelerator's batch
/// ends as `end` states.
fn lose_an_accelerator(end: Order, reason: &str) {
    let ((cpu, cpu_batches, cpu_orders), (gpu, gpu_batches, gpu_orders)) =
        (controlled_lane(&[]), controlled_lane(&[]));
    let lanes: Vec<(_, Box<dyn Lane<u64>>)> = vec![
        (spec(LaneKind::Cpu), Box::new(cpu)),
        (spec(LaneKind::Accelerator), Box::new(gpu)),
    ];
    let rig = Rig::new(without_timers(), lanes);
    rig.submit([1], 3);
    cpu_batches.recv_timeout(TEST_TIMEOUT).unwrap();
    rig.submit(100..130, 3);
    assert_eq!(gpu_batches.recv_timeout(TEST_TIMEOUT).unwrap().len(), 30);
    gpu_orders.send(end).unwrap();
    cpu_orders.send(Order::Do).unwrap();
    let mut redone = Vec::new();
    while redone.len() < 30 {
        redone.extend(cpu_batches.recv_timeout(TEST_TIMEOUT).unwrap());
        cpu_orders.send(Order::Do).unwrap();
    }
    assert_eq!(
        redone,
        (100..130).collect::<Vec<_>>(),
        "on the CPU lane, in order"
    );
    let departures = rig.take(31);
    assert!(
        departures
            .values()
            .all(|departure| *departure == Departure::Done(LaneId(0), Outcome::Accepted))
    );
    let (returned, later, snapshot) = rig.end(ShutdownMode::CompleteJobs);
    assert_eq!((returned.len(), later.len()), (0, 0));
    assert_eq!(
        (snapshot.counters.returned, snapshot.counters.lanes_lost),
        (30, 1)
    );
    assert!(
        snapshot.lanes[1]
            .last_loss
            .as_ref()
            .is_some_and(|lost| lost.contains(reason)),
        "{:?}",
        snapshot.lanes
    );
}

#[test]
fn work_of_a_lost_accelerator_is_redone() {
    lose_an_accelerator(Order::Lose, "configured by the test");
}

#[test]
fn work_of_an_accelerator_that_panics_is_redone() {
    lose_an_accelerator(Order::Panic, "panic: configured by the test");
}

#[test]
fn work_of_an_accelerator_with_too_few_outcomes_is_redone() {
    lose_an_accelerator(Order::Short, "29 outcomes for 30 jobs");
}

#[test]
fn a_lost_lane_is_used_again_when_a_probe_succeeds() {
    let (lane, batches, orders) = controlled_lane(&[false, false, true]);
    let config = Config {
        probe_after: Span::from_millis(1),
        ..Config::default()
    };
    let rig = Rig::new(config, vec![(spec(LaneKind::Cpu), Box::new(lane))]);
    rig.submit([1, 2], 3);
    assert_eq!(batches.recv_timeout(TEST_TIMEOUT).unwrap(), [1, 2]);
    orders.send(Order::Lose).unwrap();
    assert_eq!(
        batches.recv_timeout(TEST_TIMEOUT).unwrap(),
        [1, 2],
        "working again after three probes"
    );
    orders.send(Order::Do).unwrap();
    rig.take(2);
    let (.., snapshot) = rig.end(ShutdownMode::CompleteJobs);
    assert_eq!(snapshot.counters.probes, 3);
    assert_eq!(snapshot.lanes[0].last_loss.as_deref(), Some("still"));
}

#[test]
fn a_sink_that_panics_stops_no_lane() {
    let rig = Rig::new(Config::default(), vec![(spec(LaneKind::Cpu), immediate_lane())]);
    rig.submit([u64::MAX], 0);
    rig.submit([5], 3);
    assert_eq!(rig.take(1)[&5], Departure::Done(LaneId(0), Outcome::Rejected));
    let (.., snapshot) = rig.end(ShutdownMode::CompleteJobs);
    assert_eq!((snapshot.sink_panics, snapshot.counters.rejected), (1, 2));
}

#[test]
fn an_engine_has_lanes() {
    let start = |count: usize| {
        let lanes = (0..count)
            .map(|_| (spec(LaneKind::Cpu), immediate_lane()))
            .collect();
        let sink = Arc::new(IgnoringSink);
        Engine::start(Config::default(), Box::new(Adaptive::default()), lanes, sink)
    };
    assert!(matches!(start(0), Err(EngineError::LaneCount(0))));
    assert!(matches!(start(65), Err(EngineError::LaneCount(65))));
    assert!(start(3).is_ok());
}

struct IgnoringSink;

impl Sink<u64> for IgnoringSink {
    fn done(&self, _: BatchResult<'_, u64>) {}
    fn dropped(&self, _: &mut Vec<Dropped<u64>>) {}
}
