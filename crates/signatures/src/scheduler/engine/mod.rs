//! The core with threads: one for each lane, and producers that submit from their own.
//!
//! There is no thread of the scheduler itself. A lane that has done its batch takes the core's lock, reports,
//! takes in what lies in the inbox, and leaves with its next batch; whoever holds the lock also puts other
//! idle lanes' batches into their slots and unparks them. A producer pushes into the inbox without a
//! lock, and unparks an idle lane if one wants to know. It takes the lock only if the inbox is full; then the
//! queue's order of shedding decides, not who comes late.
//!
//! An idle lane parks until it is woken or the core's timer is due. Locks: the core's; the gate that closes
//! submission, taken before it and only ever waited for at the end; each lane's statistics, alone. A lane's
//! batch is in no lock while it is worked on, nor are calls of the sink.

mod inbox;
mod lane;
mod shared;
mod stats;
#[cfg(test)]
mod tests;
mod worker;

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use self::inbox::LANES_MAX;
pub use self::lane::{Lane, LaneLost, Throttled, measure};
use self::shared::Shared;
pub use self::shared::{Done, Sink};
use self::stats::LaneStats;
pub use self::stats::{LaneUsage, Snapshot};
use self::worker::Worker;
use super::class::PerClass;
use super::config::Config;
use super::core::{Core, Event};
use super::job::Job;
use super::lane::{LaneId, LaneSpec};
use super::latency::LatencyBook;
use super::policy::Policy;
use super::time::Time;

/// Why an engine could not be started, or not asked.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// It has no lane, or too many.
    #[error("engine: {0} lanes, it has 1 to {LANES_MAX}")]
    Lanes(usize),
    /// A thread could not be started.
    #[error("engine: no thread for lane {name:?}: {source}")]
    Thread {
        /// The lane.
        name: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// Histograms could not be made.
    #[error("engine: {0}")]
    Histogram(#[from] hdrhistogram::CreationError),
    /// Histograms could not be added.
    #[error("engine: {0}")]
    Addition(#[from] hdrhistogram::AdditionError),
}

/// The engine has been shut down; the jobs are where they were.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the engine takes nothing in any more")]
pub struct Closed;

/// How an engine ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// All jobs are worked on, unless all lanes are lost.
    Finish,
    /// What is being worked on ends; the rest is given back.
    GiveBack,
}

/// A running engine.
pub struct Engine<J> {
    shared: Arc<Shared<J>>,
    threads: Vec<JoinHandle<()>>,
}

/// Takes jobs in; each producer has its own.
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
    /// No lane or too many; no thread.
    pub fn start(
        config: Config,
        policy: Box<dyn Policy>,
        lanes: Vec<(LaneSpec, Box<dyn Lane<J>>)>,
        sink: Arc<dyn Sink<J>>,
    ) -> Result<Self, EngineError> {
        if lanes.is_empty() || lanes.len() > LANES_MAX {
            return Err(EngineError::Lanes(lanes.len()));
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
        let short: String = name.chars().take(15).collect();
        let thread = std::thread::Builder::new().name(short).spawn(move || {
            worker.shared.register(id, std::thread::current());
            worker.work();
        });
        self.threads
            .push(thread.map_err(|source| EngineError::Thread { name, source })?);
        Ok(())
    }

    /// For a producer.
    pub fn submitter(&self) -> Submitter<J> {
        Submitter {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Now, on the clock that arrivals, deadlines and expiries are of.
    pub fn now(&self) -> Time {
        self.shared.now()
    }

    /// Immediate and other jobs that wait, without a lock; exact while nothing moves.
    pub fn waiting(&self) -> (usize, usize) {
        self.shared.waiting()
    }

    /// Tells the core how many masks the pool holds.
    pub fn set_mask_stock(&self, stock: usize) {
        let mut state = self.shared.lock();
        self.shared.tell(&mut state, Event::MaskStock(stock));
        drop(state);
        self.shared.help();
    }

    /// What has been done and counted so far.
    ///
    /// # Errors
    /// None, but for the histograms' types.
    pub fn snapshot(&self) -> Result<Snapshot, EngineError> {
        let mut latencies = LatencyBook::new()?;
        let mut lanes = Vec::new();
        for stats in &self.shared.stats {
            let stats = stats.lock().unwrap_or_else(PoisonError::into_inner);
            latencies.add(&stats.book)?;
            lanes.push(stats.usage.clone());
        }
        let state = self.shared.lock();
        let core = &state.core;
        let lines = (0..lanes.len()).map(|lane| PerClass::from_fn(|class| core.line(LaneId(lane), class)));
        Ok(Snapshot {
            policy: core.policy(),
            counters: *core.counters(),
            waiting: core.waiting(),
            in_batches: core.in_batches(),
            mask_stock: core.mask_stock(),
            latencies,
            lanes,
            lines: lines.collect(),
            sink_panics: self.shared.sink_panics.load(Ordering::Relaxed),
            errors: state.errors,
        })
    }

    /// Ends the engine: nothing is taken in any more, the lanes' threads end, and what was not worked on is
    /// given back.
    ///
    /// # Errors
    /// None, but for the histograms' types of the last snapshot.
    pub fn shut_down(mut self, ending: Ending) -> Result<(Vec<Job<J>>, Snapshot), EngineError> {
        self.end(ending);
        let mut jobs = Vec::new();
        self.shared.lock().core.give_back(&mut jobs);
        Ok((jobs, self.snapshot()?))
    }
}

impl<J> Engine<J> {
    fn end(&mut self, ending: Ending) {
        *self.shared.closed.write().unwrap_or_else(PoisonError::into_inner) = true;
        let mut state = self.shared.lock();
        match ending {
            Ending::Finish => state.core.drain(),
            Ending::GiveBack => state.core.stop(),
        }
        drop(state);
        self.shared.unpark_all();
        for thread in self.threads.drain(..) {
            // A lane's thread has caught its lane's and the sink's panics; there is nothing left in it that
            // could be lost.
            drop(thread.join());
        }
        let mut state = self.shared.lock();
        state.core.stop();
        drop(state);
        self.shared.help();
    }
}

/// As [`Engine::shut_down`] with [`Ending::GiveBack`], but that what was not worked on is lost.
impl<J> Drop for Engine<J> {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.end(Ending::GiveBack);
        }
    }
}

impl<J> Submitter<J> {
    /// Now, on the engine's clock.
    pub fn now(&self) -> Time {
        self.shared.now()
    }

    /// A time on the engine's clock.
    pub fn at(&self, instant: Instant) -> Time {
        self.shared.at(instant)
    }

    /// Whether strangers' jobs waited too long when the core was last asked ([`Core::is_crowded`]), or many jobs have come that it has not
    /// seen; without a lock.
    pub fn is_crowded(&self) -> bool {
        self.shared.crowded.load(Ordering::Relaxed) || self.shared.inbox.is_crowded()
    }

    /// Takes in all jobs of a list, and leaves it empty. Best with all datagrams that a receiver has at once.
    ///
    /// # Errors
    /// The engine has been shut down; the list is as it was.
    pub fn submit(&self, jobs: &mut Vec<Job<J>>) -> Result<(), Closed> {
        let closed = self.shared.closed.read().unwrap_or_else(PoisonError::into_inner);
        if *closed {
            return Err(Closed);
        }
        if jobs.is_empty() {
            return Ok(());
        }
        let mut submission = std::mem::replace(jobs, self.shared.inbox.spare());
        while let Err(back) = self.shared.inbox.push(submission) {
            submission = back;
            self.shared.help();
        }
        if let Some(lane) = self.shared.inbox.call() {
            self.shared.unpark(lane);
        }
        Ok(())
    }
}
