//! Lanes that do what a test says, and a sink that passes everything on.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::super::super::class::Class;
use super::super::super::job::{Dropped, Job, Meta, Outcome, Priority, Shed, Source};
use super::super::super::lane::{LaneId, LaneKind, LaneSpec};
use super::super::super::model::Line;
use super::super::super::policy::FixedTau;
use super::super::super::time::{Span, Time};
use super::super::*;

pub const CLASS: Class = Class::P256_VERIFY;
/// Nothing here takes that long: a test that waits for it has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A lane that does each batch at once, by a function of the job.
pub struct Quick(pub fn(u64) -> Outcome);

impl Lane<u64> for Quick {
    fn run(&mut self, _: Class, jobs: &mut [u64], outcomes: &mut Vec<Outcome>) -> Result<(), LaneLost> {
        outcomes.extend(jobs.iter().map(|job| (self.0)(*job)));
        Ok(())
    }
}

/// What a [`Held`] lane does next.
pub enum Order {
    /// The batch, well.
    Do,
    /// Half the batch, and then it is lost.
    Lose,
    /// Half the batch, and then it panics.
    Panic,
    /// One outcome too few.
    Short,
}

/// A lane that shows each batch and waits for an order.
pub struct Held {
    pub shows: Sender<Vec<u64>>,
    pub orders: Receiver<Order>,
    /// Answers of probes, in order; then they succeed.
    pub probes: Vec<bool>,
}

/// A held lane, and the test's ends of it.
pub fn held(probes: &[bool]) -> (Held, Receiver<Vec<u64>>, Sender<Order>) {
    let ((shows, seen), (order, orders)) = (channel(), channel());
    let probes = probes.iter().rev().copied().collect();
    (
        Held {
            shows,
            orders,
            probes,
        },
        seen,
        order,
    )
}

impl Lane<u64> for Held {
    fn run(&mut self, _: Class, jobs: &mut [u64], outcomes: &mut Vec<Outcome>) -> Result<(), LaneLost> {
        drop(self.shows.send(jobs.to_vec()));
        let half = jobs.len() / 2;
        // The test has ended and wants no more of this lane.
        let order = self.orders.recv_timeout(PATIENCE).unwrap_or(Order::Do);
        let count = match order {
            Order::Do => jobs.len(),
            Order::Short => jobs.len() - 1,
            Order::Lose | Order::Panic => half,
        };
        outcomes.extend((0..count).map(|_| Outcome::Accepted));
        match order {
            Order::Lose => Err(LaneLost("the test says so".into())),
            Order::Panic => panic!("the test says so"),
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
pub enum Left {
    Done(LaneId, Outcome),
    Dropped(Shed),
}

/// Passes on what it is told; panics at a payload of `u64::MAX`.
pub struct Passing(Mutex<Sender<(u64, Left)>>);

impl Sink<u64> for Passing {
    fn done(&self, done: Done<'_, u64>) {
        for (job, outcome) in done.payloads.drain(..).zip(done.outcomes) {
            assert_ne!(job, u64::MAX);
            self.0
                .lock()
                .unwrap()
                .send((job, Left::Done(done.lane, *outcome)))
                .unwrap();
        }
    }

    fn dropped(&self, dropped: &mut Vec<Dropped<u64>>) {
        for Dropped { job, why } in dropped.drain(..) {
            self.0
                .lock()
                .unwrap()
                .send((job.payload, Left::Dropped(why)))
                .unwrap();
        }
    }
}

pub fn spec(kind: LaneKind) -> LaneSpec {
    let line = match kind {
        LaneKind::Accelerator => Line::new(Span::from_micros(50), 1e6),
        _ => Line::new(Span::from_micros(1), 100e3),
    };
    LaneSpec::new(format!("{kind:?}"), kind)
        .with(CLASS, line)
        .with_batch_max(512)
}

/// No timer rings while a test lasts: neither does an accelerator take what is too little for it, nor is a
/// lost lane tried.
pub fn without_timers() -> Config {
    let never = Span::from_millis(1_000_000_000);
    Config {
        wait_max: never,
        probe_after: never,
        ..Config::default()
    }
}

/// An engine, and all that leaves it.
pub struct Rig {
    pub engine: Engine<u64>,
    pub left: Receiver<(u64, Left)>,
}

impl Rig {
    /// Accelerators take more than 10 jobs.
    pub fn new(config: Config, lanes: Vec<(LaneSpec, Box<dyn Lane<u64>>)>) -> Self {
        let (sender, left) = channel();
        let sink = Arc::new(Passing(Mutex::new(sender)));
        let policy = Box::new(FixedTau::new(PerClass::from_fn(|_| 10)));
        Self {
            engine: Engine::start(config, policy, lanes, sink).unwrap(),
            left,
        }
    }

    pub fn submit(&self, jobs: impl IntoIterator<Item = u64>, level: u8) {
        let now = self.engine.now();
        let mut jobs = jobs.into_iter().map(|number| job(number, level, now)).collect();
        self.engine.submitter().submit(&mut jobs).unwrap();
        assert!(jobs.is_empty());
    }

    /// How the next so many jobs leave. A job that leaves twice fails.
    pub fn take(&self, count: usize) -> HashMap<u64, Left> {
        let mut left = HashMap::new();
        for _ in 0..count {
            let (job, how) = self.left.recv_timeout(PATIENCE).expect("jobs are missing");
            assert_eq!(left.insert(job, how), None, "job {job} left twice");
        }
        left
    }

    /// Ends the engine; what it gives back, and what left meanwhile.
    pub fn end(self, ending: Ending) -> (Vec<u64>, Vec<(u64, Left)>, Snapshot) {
        let (jobs, snapshot) = self.engine.shut_down(ending).unwrap();
        assert_eq!(
            (snapshot.errors, snapshot.in_batches, snapshot.waiting),
            (0, 0, (0, 0))
        );
        let back = jobs.into_iter().map(|job| job.payload).collect();
        (back, self.left.try_iter().collect(), snapshot)
    }
}

/// Each job has a source of its own.
pub fn job(number: u64, level: u8, now: Time) -> Job<u64> {
    Job {
        meta: Meta::new(CLASS, Priority::new(level), Source(number), now),
        payload: number,
    }
}
