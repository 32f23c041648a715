//! Lanes that a test controls, and a sink that forwards all results.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::super::super::class::Class;
use super::super::super::job::{Dropped, Job, Meta, Outcome, Priority, ShedReason, Source};
use super::super::super::lane::{LaneId, LaneKind, LaneSpec};
use super::super::super::model::CostModel;
use super::super::super::policy::FixedTau;
use super::super::super::time::{Span, Time};
use super::super::*;

pub const CLASS: Class = Class::P256_VERIFY;
/// Upper bound of any wait: a test that reaches it has failed.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A lane that completes each batch immediately; a function of the job determines the outcome.
pub struct ImmediateLane(pub fn(u64) -> Outcome);

impl Lane<u64> for ImmediateLane {
    fn run(&mut self, _: Class, jobs: &mut [u64], outcomes: &mut Vec<Outcome>) -> Result<(), LaneLost> {
        outcomes.extend(jobs.iter().map(|job| (self.0)(*job)));
        Ok(())
    }
}

/// The next action of a [`ControlledLane`].
pub enum Order {
    /// Completes the batch.
    Do,
    /// Processes half of the batch, and then the lane is lost.
    Lose,
    /// Processes half of the batch, and then panics.
    Panic,
    /// Returns one outcome too few.
    Short,
}

/// A lane that announces each batch and waits for an order.
pub struct ControlledLane {
    pub batch_sender: Sender<Vec<u64>>,
    pub orders: Receiver<Order>,
    /// Results of probes, the first one last; further probes succeed.
    pub probes: Vec<bool>,
}

/// A controlled lane, and the channels by which a test receives its batches and sends its orders.
pub fn controlled_lane(probes: &[bool]) -> (ControlledLane, Receiver<Vec<u64>>, Sender<Order>) {
    let ((batch_sender, batches), (order_sender, orders)) = (channel(), channel());
    let probes = probes.iter().rev().copied().collect();
    (
        ControlledLane {
            batch_sender,
            orders,
            probes,
        },
        batches,
        order_sender,
    )
}

impl Lane<u64> for ControlledLane {
    fn run(&mut self, _: Class, jobs: &mut [u64], outcomes: &mut Vec<Outcome>) -> Result<(), LaneLost> {
        drop(self.batch_sender.send(jobs.to_vec()));
        let half = jobs.len() / 2;
        // If the test has ended, it sends no more orders.
        let order = self.orders.recv_timeout(TEST_TIMEOUT).unwrap_or(Order::Do);
        let count = match order {
            Order::Do => jobs.len(),
            Order::Short => jobs.len() - 1,
            Order::Lose | Order::Panic => half,
        };
        outcomes.extend((0..count).map(|_| Outcome::Accepted));
        match order {
            Order::Lose => Err(LaneLost("configured by the test".into())),
            Order::Panic => panic!("configured by the test"),
            Order::Do | Order::Short => Ok(()),
        }
    }

    fn probe(&mut self) -> Result<(), LaneLost> {
        if self.probes.pop().unwrap_or(true) {
            Ok(())
        } else {
            Err(LaneLost("still".into()))
        }
    }
}

/// How a job left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Departure {
    Done(LaneId, Outcome),
    Dropped(ShedReason),
}

/// Forwards all results; panics at a payload of `u64::MAX`.
pub struct ForwardingSink(Mutex<Sender<(u64, Departure)>>);

impl Sink<u64> for ForwardingSink {
    fn done(&self, result: BatchResult<'_, u64>) {
        for (job, outcome) in result.payloads.drain(..).zip(result.outcomes) {
            assert_ne!(job, u64::MAX);
            self.0
                .lock()
                .unwrap()
                .send((job, Departure::Done(result.lane, *outcome)))
                .unwrap();
        }
    }

    fn dropped(&self, dropped: &mut Vec<Dropped<u64>>) {
        for Dropped { job, reason } in dropped.drain(..) {
            self.0
                .lock()
                .unwrap()
                .send((job.payload, Departure::Dropped(reason)))
                .unwrap();
        }
    }
}

pub fn spec(kind: LaneKind) -> LaneSpec {
    let cost_model = match kind {
        LaneKind::Accelerator => CostModel::new(Span::from_micros(50), 1e6),
        _ => CostModel::new(Span::from_micros(1), 100e3),
    };
    LaneSpec::new(format!("{kind:?}"), kind)
        .with_class(CLASS, cost_model)
        .with_batch_max(512)
}

/// No timer triggers during a test: an accelerator does not start a batch that is too small, and a lost
/// lane is not probed.
pub fn without_timers() -> Config {
    let never = Span::from_millis(1_000_000_000);
    Config {
        wait_max: never,
        probe_after: never,
        ..Config::default()
    }
}

/// An engine, and all jobs that leave it.
pub struct Rig {
    pub engine: Engine<u64>,
    pub departures: Receiver<(u64, Departure)>,
}

impl Rig {
    /// Accelerators take more than 10 jobs.
    pub fn new(config: Config, lanes: Vec<(LaneSpec, Box<dyn Lane<u64>>)>) -> Self {
        let (sender, departures) = channel();
        let sink = Arc::new(ForwardingSink(Mutex::new(sender)));
        let policy = Box::new(FixedTau::new(PerClass::from_fn(|_| 10)));
        Self {
            engine: Engine::start(config, policy, lanes, sink).unwrap(),
            departures,
        }
    }

    pub fn submit(&self, jobs: impl IntoIterator<Item = u64>, level: u8) {
        let now = self.engine.now();
        let mut jobs = jobs.into_iter().map(|number| job(number, level, now)).collect();
        self.engine.submitter().submit(&mut jobs).unwrap();
        assert!(jobs.is_empty());
    }

    /// Waits until `count` jobs leave, and returns how each job left. A job that leaves twice fails the test.
    pub fn take(&self, count: usize) -> HashMap<u64, Departure> {
        let mut departures = HashMap::new();
        for _ in 0..count {
            let (job, departure) = self
                .departures
                .recv_timeout(TEST_TIMEOUT)
                .expect("jobs are missing");
            assert_eq!(departures.insert(job, departure), None, "job {job} left twice");
        }
        departures
    }

    /// Shuts the engine down. Returns the unprocessed jobs, the jobs that left in the meantime, and the last snapshot.
    pub fn end(self, mode: ShutdownMode) -> (Vec<u64>, Vec<(u64, Departure)>, Snapshot) {
        let (jobs, snapshot) = self.engine.shut_down(mode).unwrap();
        assert_eq!(
            (snapshot.errors, snapshot.in_batches, snapshot.waiting),
            (0, 0, (0, 0))
        );
        let returned = jobs.into_iter().map(|job| job.payload).collect();
        (returned, self.departures.try_iter().collect(), snapshot)
    }
}

/// A job with its own source.
pub fn job(number: u64, level: u8, now: Time) -> Job<u64> {
    Job {
        meta: Meta::new(CLASS, Priority::new(level), Source(number), now),
        payload: number,
    }
}
