//! Shutdown of an engine.

use std::collections::HashSet;
use std::sync::Barrier;

use super::super::super::class::Class;
use super::super::super::job::Outcome;
use super::super::super::lane::{LaneKind, LaneSpec};
use super::super::super::model::CostModel;
use super::super::super::time::Span;
use super::super::*;
use super::rig::*;

fn immediate_lane() -> Box<dyn Lane<u64>> {
    Box::new(ImmediateLane(|_| Outcome::Accepted))
}

#[test]
fn finishing_completes_waiting_jobs() {
    let (lane, batches, orders) = controlled_lane(&[]);
    let lanes: Vec<(_, Box<dyn Lane<u64>>)> = vec![
        (spec(LaneKind::Cpu), Box::new(lane)),
        (spec(LaneKind::Accelerator), immediate_lane()),
    ];
    let rig = Rig::new(without_timers(), lanes);
    rig.submit([0], 3);
    batches.recv_timeout(TEST_TIMEOUT).unwrap();
    rig.submit(1..8, 3);
    rig.submit([8], 0);
    // Without further orders, the controlled lane completes each batch.
    drop((batches, orders));
    let submitter = rig.engine.submitter();
    let (returned, departures, snapshot) = rig.end(ShutdownMode::CompleteJobs);
    assert_eq!(
        (returned.len(), departures.len(), snapshot.counters.accepted),
        (0, 9, 9)
    );
    let mut late = vec![job(9, 1, submitter.now())];
    assert_eq!(submitter.submit(&mut late), Err(EngineClosed));
    assert_eq!(late.len(), 1, "the job stays with the caller");
}

#[test]
fn returning_jobs_completes_running_batches() {
    let (lane, batches, orders) = controlled_lane(&[]);
    let rig = Rig::new(Config::default(), vec![(spec(LaneKind::Cpu), Box::new(lane))]);
    rig.submit([0], 3);
    batches.recv_timeout(TEST_TIMEOUT).unwrap();
    rig.submit([4, 5], 2);
    rig.submit([6], 0);
    drop(orders);
    let (returned, departures, snapshot) = rig.end(ShutdownMode::ReturnJobs);
    // The lane may have started the next batches in the meantime.
    let started: HashSet<u64> = departures.iter().map(|(job, _)| *job).collect();
    assert!(started.contains(&0));
    let mut jobs: Vec<u64> = started.into_iter().chain(returned).collect();
    jobs.sort_unstable();
    assert_eq!(jobs, [0, 4, 5, 6]);
    assert_eq!(snapshot.counters.unfinished + snapshot.counters.accepted, 4);
}

#[test]
fn finishing_without_a_working_lane_returns_jobs() {
    let (lane, batches, orders) = controlled_lane(&[false]);
    let rig = Rig::new(without_timers(), vec![(spec(LaneKind::Cpu), Box::new(lane))]);
    rig.submit([1, 2, 3], 3);
    batches.recv_timeout(TEST_TIMEOUT).unwrap();
    orders.send(Order::Lose).unwrap();
    let (returned, departures, snapshot) = rig.end(ShutdownMode::CompleteJobs);
    assert_eq!((returned, departures.len()), (vec![1, 2, 3], 0));
    assert_eq!(snapshot.counters.lanes_lost, 1);
}

#[test]
fn jobs_for_a_lost_lane_only_are_returned() {
    let (lane, batches, orders) = controlled_lane(&[false]);
    let other_class = Class::RA_VERIFY;
    let cpu = LaneSpec::new("other", LaneKind::Cpu).with_class(other_class, CostModel::new(Span::ZERO, 1e6));
    let lanes: Vec<(_, Box<dyn Lane<u64>>)> = vec![
        (cpu, immediate_lane()),
        (spec(LaneKind::Accelerator), Box::new(lane)),
    ];
    let rig = Rig::new(without_timers(), lanes);
    rig.submit(0..20, 3);
    batches.recv_timeout(TEST_TIMEOUT).unwrap();
    orders.send(Order::Lose).unwrap();
    let (returned, departures, _) = rig.end(ShutdownMode::CompleteJobs);
    assert_eq!((returned.len(), departures.len()), (20, 0));
}

#[test]
fn producers_that_submit_during_shutdown_lose_no_job() {
    for mode in [ShutdownMode::CompleteJobs, ShutdownMode::ReturnJobs] {
        let lanes: Vec<(_, Box<dyn Lane<u64>>)> = vec![
            (spec(LaneKind::Cpu), immediate_lane()),
            (spec(LaneKind::Accelerator), immediate_lane()),
        ];
        let rig = Rig::new(Config::default(), lanes);
        let barrier = Barrier::new(3);
        let (accepted, returned, departures) = std::thread::scope(|scope| {
            let producers: Vec<_> = (0..2u64)
                .map(|producer| {
                    let (submitter, barrier) = (rig.engine.submitter(), &barrier);
                    scope.spawn(move || {
                        let (mut accepted, mut next) = (Vec::new(), producer << 32);
                        loop {
                            let now = submitter.now();
                            let mut jobs: Vec<_> =
                                (next..next + 16).map(|number| job(number, 2, now)).collect();
                            if submitter.submit(&mut jobs).is_err() {
                                return accepted;
                            }
                            accepted.extend(next..next + 16);
                            next += 16;
                            if next & 0xffff_ffff == 160 {
                                barrier.wait();
                            }
                        }
                    })
                })
                .collect();
            barrier.wait();
            let (returned, departures, _) = rig.end(mode);
            let accepted: Vec<u64> = producers
                .into_iter()
                .flat_map(|producer| producer.join().unwrap())
                .collect();
            (accepted, returned, departures)
        });
        let mut jobs_out: Vec<u64> = departures.iter().map(|(job, _)| *job).chain(returned).collect();
        jobs_out.sort_unstable();
        assert_eq!(jobs_out, accepted, "{mode:?}");
        assert!(accepted.len() >= 320);
    }
}

#[test]
fn an_engine_that_is_dropped_ends_its_threads() {
    let rig = Rig::new(Config::default(), vec![(spec(LaneKind::Cpu), immediate_lane())]);
    let submitter = rig.engine.submitter();
    rig.submit(0..10, 3);
    drop(rig.engine);
    assert_eq!(
        submitter.submit(&mut vec![job(1, 1, submitter.now())]),
        Err(EngineClosed)
    );
    assert!(rig.departures.try_iter().count() <= 10);
}
