//! The scheduler's [`Core`] with threads: one for each lane, and producers that submit from their own threads.
//!
//! The scheduler has no thread of its own. A lane that has completed its batch takes the core's lock, reports, takes in the queued
//! submissions, and leaves with its next batch. The holder of the lock also stores the tasks of other idle lanes and
//! unparks those lanes. A producer pushes into the submission queue without a lock, and unparks an idle lane if the
//! lane's wake condition is met. A producer takes the lock only if the queue is full; then the shedding order decides
//! which jobs are dropped, not the order of arrival.
//!
//! An idle lane parks until another thread wakes the lane or the core's timer is due. There are three kinds of locks:
//! the core's lock, the lock that closes submission, and one lock for the statistics of each lane. The lock that closes
//! submission is taken before the core's lock, and a thread waits for this lock only at shutdown. A lock for statistics
//! is taken alone. No lock is held while a lane works on a batch or during calls of the sink.

mod lane;
mod shared;
mod stats;
mod submission_queue;
#[cfg(test)]
mod tests;
mod worker;

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

pub use self::lane::{Lane, LaneLost, ThrottledLane, measure};
use self::shared::Shared;
pub use self::shared::{BatchResult, Sink};
use self::stats::LaneStats;
pub use self::stats::{LaneUsage, Snapshot};
use self::submission_queue::LANES_MAX;
use self::worker::Worker;
use super::class::PerClass;
use super::config::Config;
use super::core::{Core, Event};
use super::job::Job;
use super::lane::{LaneId, LaneSpec};
use super::latency::LatencyHistograms;
use super::policy::Policy;
use super::time::Time;

/// Why an engine could not be started or queried.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The engine has no lane, or too many.
    #[error("starting the engine failed: {0} lanes configured; expected 1 to {LANES_MAX}")]
    LaneCount(usize),
    /// A thread could not be started.
    #[error("starting the thread of lane {name:?} failed: {source}")]
    Thread {
        /// Name of the lane.
        name: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// Histograms could not be created.
    #[error("creating the engine's histograms failed: {0}")]
    Histogram(#[from] hdrhistogram::CreationError),
    /// Histograms could not be added.
    #[error("adding the engine's histograms failed: {0}")]
    Addition(#[from] hdrhistogram::AdditionError),
}

/// The engine has been shut down; the jobs are unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("submission failed: the engine has been shut down")]
pub struct EngineClosed;

/// Shutdown mode of an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShutdownMode {
    /// All jobs are processed, unless all lanes are lost.
    CompleteJobs,
    /// Running batches are completed; the other jobs are returned.
    ReturnJobs,
}

/// A running engine.
pub struct Engine<J> {
    shared: Arc<Shared<J>>,
    threads: Vec<JoinHandle<()>>,
}

/// Submits jobs; each producer has its own submitter.
pub struct Submitter<J> {
    shared: Arc<Shared<J>>,
}

impl<J> Clone for Submitter<J> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<J: Send + 'static> Engine<J> {
    /// Starts the lanes' threads.
    ///
    /// # Errors
    /// No lane, too many lanes, or a failure to start a thread.
    pub fn start(
        config: Config,
        policy: Box<dyn Policy>,
        lanes: Vec<(LaneSpec, Box<dyn Lane<J>>)>,
        sink: Arc<dyn Sink<J>>,
    ) -> Result<Self, EngineError> {
        if lanes.is_empty() || lanes.len() > LANES_MAX {
            return Err(EngineError::LaneCount(lanes.len()));
        }
        let (specs, lanes): (Vec<_>, Vec<_>) = lanes.into_iter().unzip();
        let stats = specs
            .iter()
            .map(|spec| LaneStats::new(spec.name.clone(), spec.kind));
        let stats = stats.collect::<Result<_, _>>()?;
        let core = Core::new(config, specs.clone(), policy);
        let mut engine = Self {
            shared: Arc::new(Shared::new(core, sink, stats)),
            threads: Vec::new(),
        };
        for (number, (lane, spec)) in lanes.into_iter().zip(specs).enumerate() {
            engine.spawn(LaneId(number), lane, spec.name)?;
        }
        Ok(engine)
    }

    fn spawn(&mut self, id: LaneId, lane: Box<dyn Lane<J>>, name: String) -> Result<(), EngineError> {
        let worker = Worker {
            shared: Arc::clone(&self.shared),
            id,
            lane,
            outcomes: Vec::new(),
        };
        // Linux shows 15 bytes of a thread's name.
        let thread_name: String = name.chars().take(15).collect();
        let thread = std::thread::Builder::new().name(thread_name).spawn(move || {
            worker.shared.register(id, std::thread::current());
            worker.work();
        });
        self.threads
            .push(thread.map_err(|source| EngineError::Thread { name, source })?);
        Ok(())
    }

    /// A submitter for a producer.
    pub fn submitter(&self) -> Submitter<J> {
        Submitter {
            shared: Arc::clone(&self.shared),
        }
    }

    /// The current time on the engine's clock, on which arrivals, deadlines and expiries are also given.
    pub fn now(&self) -> Time {
        self.shared.now()
    }

    /// Numbers of waiting immediate jobs and of other waiting jobs, read without a lock. The numbers are exact while no
    /// job moves.
    pub fn waiting(&self) -> (usize, usize) {
        self.shared.waiting()
    }

    /// Sets the number of masks in the pool.
    pub fn set_mask_stock(&self, stock: usize) {
        let mut state = self.shared.lock();
        self.shared.handle_event(&mut state, Event::MaskStock(stock));
        drop(state);
        self.shared.drain_for_producer();
    }

    /// The counters and statistics so far.
    ///
    /// # Errors
    /// The latency histograms could not be created or added.
    pub fn snapshot(&self) -> Result<Snapshot, EngineError> {
        let mut latencies = LatencyHistograms::new()?;
        let mut lanes = Vec::new();
        for stats in &self.shared.stats {
            let stats = stats.lock().unwrap_or_else(PoisonError::into_inner);
            latencies.add(&stats.latency_histograms)?;
            lanes.push(stats.usage.clone());
        }
        let state = self.shared.lock();
        let core = &state.core;
        let cost_models =
            (0..lanes.len()).map(|lane| PerClass::from_fn(|class| core.cost_model(LaneId(lane), class)));
        Ok(Snapshot {
            policy: core.policy(),
            counters: *core.counters(),
            waiting: core.waiting(),
            in_batches: core.in_batches(),
            mask_stock: core.mask_stock(),
            latencies,
            lanes,
            estimates: cost_models.collect(),
            sink_panics: self.shared.sink_panics.load(Ordering::Relaxed),
            errors: state.errors,
        })
    }

    /// Shuts the engine down: submission is closed, the lanes' threads end, and unprocessed jobs are returned.
    ///
    /// # Errors
    /// The latency histograms of the last snapshot could not be created or added.
    pub fn shut_down(mut self, mode: ShutdownMode) -> Result<(Vec<Job<J>>, Snapshot), EngineError> {
        self.stop(mode);
        let mut jobs = Vec::new();
        self.shared.lock().core.return_jobs(&mut jobs);
        Ok((jobs, self.snapshot()?))
    }
}

impl<J> Engine<J> {
    fn stop(&mut self, mode: ShutdownMode) {
        *self
            .shared
            .submission_closed
            .write()
            .unwrap_or_else(PoisonError::into_inner) = true;
        let mut state = self.shared.lock();
        match mode {
            ShutdownMode::CompleteJobs => state.core.drain(),
            ShutdownMode::ReturnJobs => state.core.stop(),
        }
        drop(state);
        self.shared.unpark_all();
        for thread in self.threads.drain(..) {
            // A lane's thread catches panics of its lane and of the sink, so the result of the join can be ignored.
            drop(thread.join());
        }
        let mut state = self.shared.lock();
        state.core.stop();
        drop(state);
        self.shared.drain_for_producer();
    }
}

/// Like [`Engine::shut_down`] with [`ShutdownMode::ReturnJobs`], but drops unprocessed jobs.
impl<J> Drop for Engine<J> {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.stop(ShutdownMode::ReturnJobs);
        }
    }
}

impl<J> Submitter<J> {
    /// The current time on the engine's clock.
    pub fn now(&self) -> Time {
        self.shared.now()
    }

    /// Converts an instant to the engine's clock.
    pub fn at(&self, instant: Instant) -> Time {
        self.shared.at(instant)
    }

    /// Whether the core was overloaded by unknown senders at its last update ([`Core::is_overloaded`]), or many jobs are queued that the core
    /// has not seen; read without a lock.
    pub fn is_overloaded(&self) -> bool {
        self.shared.is_overloaded.load(Ordering::Relaxed) || self.shared.submissions.is_overloaded()
    }

    /// Submits all jobs of a list, and empties the list. Most efficient with all datagrams of one receive call.
    ///
    /// # Errors
    /// The engine has been shut down; the list is unchanged.
    pub fn submit(&self, jobs: &mut Vec<Job<J>>) -> Result<(), EngineClosed> {
        let submission_closed = self
            .shared
            .submission_closed
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        if *submission_closed {
            return Err(EngineClosed);
        }
        if jobs.is_empty() {
            return Ok(());
        }
        let mut submission = std::mem::replace(jobs, self.shared.submissions.take_spare_list());
        while let Err(rejected) = self.shared.submissions.push(submission) {
            submission = rejected;
            self.shared.drain_for_producer();
        }
        if let Some(lane) = self.shared.submissions.take_wake_call() {
            self.shared.unpark(lane);
        }
        Ok(())
    }
}
