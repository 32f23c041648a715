//! A running engine.

use std::sync::Barrier;

use super::super::super::class::Class;
use super::super::super::job::{Outcome, Priority, ShedReason};
use super::super::super::lane::LaneKind;
use super::super::super::masks::MaskLimits;
use super::super::super::model::CostModel;
use super::super::super::time::Span;
use super::super::*;
use super::rig::*;

fn outcome_by_parity(job: u64) -> Outcome {
    if job.is_multiple_of(2) {
        Outcome::Accepted
    } else {
        Outcome::Rejected
    }
}

#[test]
fn many_producers_lose_no_job() {
    const PRODUCERS: u64 = 4;
    const JOBS: u64 = 20_000;
    let cost_models = spec(LaneKind::Accelerator).costs;
    let throttled = ThrottledLane::with_wait(ImmediateLane(outcome_by_parity), cost_models, |_| ());
    let lanes: Vec<(_, Box<dyn Lane<u64>>)> = vec![
        (spec(LaneKind::Cpu), Box::new(ImmediateLane(outcome_by_parity))),
        (throttled.spec().with_batch_max(512), Box::new(throttled)),
        (
            spec(LaneKind::Reserved),
            Box::new(ImmediateLane(outcome_by_parity)),
        ),
    ];
    let mut config = Config::default();
    config.queue.capacity = 1 << 20;
    let rig = Rig::new(config, lanes);
    let barrier = Barrier::new(PRODUCERS as usize);
    std::thread::scope(|scope| {
        for producer in 0..PRODUCERS {
            let (submitter, barrier) = (rig.engine.submitter(), &barrier);
            scope.spawn(move || {
                barrier.wait();
                let mut next = 0;
                while next < JOBS {
                    let size = 1 + (next * 31 + producer) % 64;
                    let numbers = next..(next + size).min(JOBS);
                    let level = |number: u64| {
                        if number.is_multiple_of(50) {
                            0
                        } else {
                            (number % 8) as u8
                        }
                    };
                    let now = submitter.now();
                    let mut jobs = numbers
                        .map(|number| job(producer * JOBS + number, level(number), now))
                        .collect();
                    submitter.submit(&mut jobs).unwrap();
                    next += size;
                }
            });
        }
    });
    let departures = rig.take((PRODUCERS * JOBS) as usize);
    for (job, departure) in departures {
        assert!(
            matches!(departure, Departure::Done(_, outcome) if outcome == outcome_by_parity(job)),
            "{job}: {departure:?}"
        );
    }
    let (returned, later, snapshot) = rig.end(ShutdownMode::CompleteJobs);
    assert_eq!((returned.len(), later.len()), (0, 0));
    assert_eq!(snapshot.counters.submitted, PRODUCERS * JOBS);
    assert_eq!(snapshot.counters.accepted, PRODUCERS * JOBS / 2);
    let recorded: u64 = Priority::all()
        .map(|priority| snapshot.latencies.count(priority))
        .sum();
    assert_eq!(recorded, PRODUCERS * JOBS);
    assert_eq!(
        snapshot.lanes.iter().map(|lane| lane.jobs).sum::<u64>(),
        PRODUCERS * JOBS
    );
}

#[test]
fn one_lane_keeps_the_order_and_takes_immediate_jobs_first() {
    let (lane, batches, orders) = controlled_lane(&[]);
    let rig = Rig::new(Config::default(), vec![(spec(LaneKind::Cpu), Box::new(lane))]);
    rig.submit([1], 3);
    assert_eq!(batches.recv_timeout(TEST_TIMEOUT).unwrap(), [1]);
    rig.submit(10..15, 3);
    rig.submit(20..22, 1);
    rig.submit([30], 0);
    rig.submit(15..17, 3);
    assert_eq!(rig.engine.waiting(), (1, 9));
    orders.send(Order::Do).unwrap();
    assert_eq!(
        batches.recv_timeout(TEST_TIMEOUT).unwrap(),
        [30],
        "alone, and before all others"
    );
    orders.send(Order::Do).unwrap();
    assert_eq!(
        batches.recv_timeout(TEST_TIMEOUT).unwrap(),
        [20, 21, 10, 11, 12, 13, 14, 15, 16]
    );
    orders.send(Order::Do).unwrap();
    assert_eq!(rig.take(11).len(), 11);
}

#[test]
fn an_accelerator_is_woken_when_there_is_enough_for_it() {
    let ((cpu, cpu_batches, cpu_orders), (gpu, gpu_batches, gpu_orders)) =
        (controlled_lane(&[]), controlled_lane(&[]));
    let lanes: Vec<(_, Box<dyn Lane<u64>>)> = vec![
        (spec(LaneKind::Cpu), Box::new(cpu)),
        (spec(LaneKind::Accelerator), Box::new(gpu)),
    ];
    let rig = Rig::new(without_timers(), lanes);
    rig.submit([1], 3);
    assert_eq!(cpu_batches.recv_timeout(TEST_TIMEOUT).unwrap(), [1]);
    // The CPU lane waits for an order: only the accelerator can react.
    rig.submit(100..106, 3);
    rig.submit(200..206, 3);
    let batch = gpu_batches.recv_timeout(TEST_TIMEOUT).unwrap();
    assert_eq!(
        batch,
        [100, 101, 102, 103, 104, 105, 200, 201, 202, 203, 204, 205]
    );
    gpu_orders.send(Order::Do).unwrap();
    assert!(
        rig.take(12)
            .values()
            .all(|departure| *departure == Departure::Done(LaneId(1), Outcome::Accepted))
    );
    cpu_orders.send(Order::Do).unwrap();
    rig.take(1);
}

#[test]
fn a_single_job_for_an_accelerator_is_done_after_the_maximum_wait() {
    let rig = Rig::new(
        Config::default(),
        vec![(
            spec(LaneKind::Accelerator),
            Box::new(ImmediateLane(outcome_by_parity)),
        )],
    );
    rig.submit([4], 5);
    assert_eq!(rig.take(1)[&4], Departure::Done(LaneId(0), Outcome::Accepted));
    assert_eq!(rig.end(ShutdownMode::CompleteJobs).2.counters.waits_timed_out, 1);
}

#[test]
fn when_the_submission_queue_is_full_producers_shed_by_the_queue_order() {
    let (lane, batches, orders) = controlled_lane(&[]);
    let mut config = Config::default();
    config.queue.capacity = 100;
    let rig = Rig::new(config, vec![(spec(LaneKind::Cpu), Box::new(lane))]);
    rig.submit([0], 3);
    batches.recv_timeout(TEST_TIMEOUT).unwrap();
    // The lane waits for an order, so that it does not empty the queue of 1,024 submissions.
    let count = 3_000;
    for number in 1..=count {
        rig.submit([number], if number <= 50 { 1 } else { 6 });
    }
    let dropped = rig.departures.try_iter().collect::<Vec<_>>();
    assert!(dropped.len() > 1_900, "{}", dropped.len());
    assert!(
        dropped
            .iter()
            .all(|(job, departure)| *departure == Departure::Dropped(ShedReason::QueueFull) && *job > 50)
    );
    drop(orders);
    drop(batches);
    let (returned, departures, snapshot) = rig.end(ShutdownMode::ReturnJobs);
    assert_eq!(
        returned.len() + departures.len() + dropped.len(),
        count as usize + 1
    );
    // The lane may have started the next batches in the meantime.
    let counters = snapshot.counters;
    assert_eq!(counters.unfinished + counters.done(), 1 + 100);
    let (done, _): (Vec<_>, Vec<_>) = departures
        .iter()
        .partition(|(_, departure)| matches!(departure, Departure::Done(..)));
    assert!((1..=50).all(|urgent| returned.contains(&urgent) || done.iter().any(|(job, _)| *job == urgent)));
}

/// Makes masks and counts them.
struct MaskMakingLane(std::sync::mpsc::Sender<usize>);

impl Lane<u64> for MaskMakingLane {
    fn run(&mut self, _: Class, jobs: &mut [u64], outcomes: &mut Vec<Outcome>) -> Result<(), LaneLost> {
        outcomes.extend(jobs.iter().map(|_| Outcome::Accepted));
        Ok(())
    }

    fn refill(&mut self, count: usize) -> Result<usize, LaneLost> {
        self.0.send(count).unwrap();
        Ok(count)
    }
}

#[test]
fn an_idle_lane_fills_the_pool_and_then_parks() {
    let (sender, refills) = std::sync::mpsc::channel();
    let limits = MaskLimits {
        sign: Class::RA_SIGN,
        plain: Class::RSA_SIGN,
        refill: Class::MASK_REFILL,
        low: 10,
        high: 100,
        stock: 0,
        slice: Span::from_millis(1),
    };
    let cost_model = CostModel::new(Span::ZERO, 30_000.0);
    let lane = spec(LaneKind::Accelerator)
        .with_class(Class::MASK_REFILL, cost_model)
        .with_refill();
    let config = Config {
        masks: Some(limits),
        ..Config::default()
    };
    let rig = Rig::new(config, vec![(lane, Box::new(MaskMakingLane(sender)))]);
    let mut stock = 0;
    while stock < 100 {
        stock += refills.recv_timeout(TEST_TIMEOUT).unwrap();
    }
    rig.submit(0..20, 1);
    rig.take(20);
    assert_eq!(refills.try_iter().count(), 0);
    rig.engine.set_mask_stock(9);
    let mut stock = 9;
    while stock < 100 {
        stock += refills.recv_timeout(TEST_TIMEOUT).unwrap();
    }
    let (_, _, snapshot) = rig.end(ShutdownMode::CompleteJobs);
    assert_eq!((snapshot.mask_stock, snapshot.counters.masks_made), (100, 191));
}
