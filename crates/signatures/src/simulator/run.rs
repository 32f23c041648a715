//! The event loop in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::lanes::SimLane;
use super::ledger::{LedgerError, MessageLedger};
use super::random::Random;
use super::report::{LaneUse, Report};
use super::trace::Record;
use crate::scheduler::policy::Policy;
use crate::scheduler::{
    Batch, Config, Core, CoreError, Decisions, Event, Job, LaneId, LaneTask, LatencyHistograms, Meta,
    Outcome, PerPriority, Span, Time,
};

/// Datagrams that a receiver reads at once.
const SUBMISSION_MAX: usize = 64;

/// A simulation: the scheduler's configuration, its lanes, and the time limits of messages.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// Configuration of the scheduler.
    pub config: Config,
    /// The lanes.
    pub lanes: Vec<SimLane>,
    /// Deadline and expiry of messages, relative to their arrival.
    pub budgets: PerPriority<Budget>,
    /// Seed of the scatter of service times.
    pub seed: u64,
    /// A fault of the event loop, to test the ledger.
    pub injected_fault: Option<InjectedFault>,
}

/// Time limits of a message of a priority.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Time after arrival from which on the result is late.
    pub deadline: Span,
    /// Time after arrival from which on no lane starts work on the message.
    pub expires: Span,
}

/// A fault in the results of the first batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InjectedFault {
    /// The first job's result is lost.
    LoseResult,
    /// The first job's result is reported twice.
    DuplicateResult,
}

/// Why a run was aborted.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The scheduler rejected an event: an error in this event loop.
    #[error("simulator: {0}")]
    Core(#[from] CoreError),
    /// A message was lost or duplicated.
    #[error("simulator: {0}")]
    Ledger(LedgerError),
    /// A lane was given an unsupported class.
    #[error("simulation failed: lane {0:?} was given an unsupported class")]
    UnsupportedClass(LaneId),
    /// Creating the histograms failed.
    #[error("simulator: {0}")]
    Histogram(#[from] hdrhistogram::CreationError),
    /// Work is waiting, but no event is scheduled.
    #[error("simulation stalled: work is waiting, but no event is scheduled")]
    Stalled,
}

impl Simulation {
    /// A simulation with the default limits: deadlines of 1 ms for immediate messages, 10 ms for priority 1, 100 ms for
    /// others; messages expire after ten times the deadline.
    pub fn new(config: Config, lanes: Vec<SimLane>, seed: u64) -> Self {
        let budgets = PerPriority::from_fn(|priority| {
            let deadline = Span::from_millis(match priority.number() {
                0 => 1,
                1 => 10,
                _ => 100,
            });
            Budget {
                deadline,
                expires: deadline.times(10),
            }
        });
        Self {
            config,
            lanes,
            budgets,
            seed,
            injected_fault: None,
        }
    }

    /// Runs a trace, sorted by arrival, until all messages have left.
    ///
    /// # Errors
    /// See [`SimError`].
    pub fn run(&self, trace: &[Record], policy: Box<dyn Policy>) -> Result<Report, SimError> {
        let mut run = Run::new(self, trace, policy)?;
        run.process_events()?;
        run.report()
    }
}

/// The end of a lane's task.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum TaskEnd {
    Done(Span),
    Lost,
}

struct Run<'a> {
    simulation: &'a Simulation,
    trace: &'a [Record],
    core: Core<usize>,
    now: Time,
    /// Index of the next arrival in the trace.
    next_message: usize,
    /// Ends of running tasks: the earliest end first. Tasks with the same end are in the order in which they started.
    task_ends: BinaryHeap<Reverse<(Time, u64, LaneId, TaskEnd)>>,
    tasks_started: u64,
    /// The lane whose task ended most recently, and the time of that end.
    last_ended: Option<(LaneId, Time)>,
    tasks: Vec<Option<LaneTask<usize>>>,
    random: Random,
    ledger: MessageLedger,
    valid: LatencyHistograms,
    invalid: LatencyHistograms,
    in_time: u64,
    lanes: Vec<LaneUse>,
    injected_fault: Option<InjectedFault>,
    digest: u64,
    last_result: Time,
    submission: Vec<Job<usize>>,
}

impl<'a> Run<'a> {
    fn new(
        simulation: &'a Simulation,
        trace: &'a [Record],
        policy: Box<dyn Policy>,
    ) -> Result<Self, SimError> {
        let specs: Vec<_> = simulation.lanes.iter().map(|lane| lane.spec.clone()).collect();
        let lanes: Vec<_> = specs.iter().map(|spec| LaneUse::new(spec.name.clone())).collect();
        let tasks = lanes.iter().map(|_| None).collect();
        Ok(Self {
            simulation,
            trace,
            core: Core::new(simulation.config, specs, policy),
            now: Time::ZERO,
            next_message: 0,
            task_ends: BinaryHeap::new(),
            tasks_started: 0,
            last_ended: None,
            tasks,
            random: Random::new(simulation.seed),
            ledger: MessageLedger::new(trace.len()),
            valid: LatencyHistograms::new()?,
            invalid: LatencyHistograms::new()?,
            in_time: 0,
            lanes,
            injected_fault: simulation.injected_fault,
            digest: 0xcbf2_9ce4_8422_2325,
            last_result: Time::ZERO,
            submission: Vec::new(),
        })
    }

    fn process_events(&mut self) -> Result<(), SimError> {
        for lane in 0..self.simulation.lanes.len() {
            self.handle_event(Event::LaneIdle(LaneId(lane)))?;
        }
        loop {
            let arrival = self
                .trace
                .get(self.next_message)
                .map_or(Time::NEVER, arrival_time);
            let end = self
                .task_ends
                .peek()
                .map_or(Time::NEVER, |Reverse((next_time, ..))| *next_time);
            let timer = self.core.next_timer();
            if self.next_message == self.trace.len() && self.core.is_done() {
                return Ok(());
            }
            let next_time = arrival.min(end).min(timer);
            if next_time == Time::NEVER {
                return Err(SimError::Stalled);
            }
            self.now = self.now.max(next_time);
            if end == next_time {
                self.finish_next_task()?;
            } else if arrival == next_time {
                self.submit_arrivals()?;
            } else {
                self.handle_event(Event::Timer)?;
            }
        }
    }

    /// Submits the messages that have arrived by now, up to the number that a receiver reads at once.
    fn submit_arrivals(&mut self) -> Result<(), SimError> {
        let now = self.now;
        let mut jobs = std::mem::take(&mut self.submission);
        while let Some(record) = self.trace.get(self.next_message)
            && arrival_time(record) <= now
            && jobs.len() < SUBMISSION_MAX
        {
            let budget = self.simulation.budgets.of(record.priority);
            let mut meta = Meta::new(record.class, record.priority, record.source, arrival_time(record));
            meta.sender = record.sender();
            meta.work = record.work;
            meta.deadline = meta.arrived + budget.deadline;
            meta.expires = meta.arrived + budget.expires;
            jobs.push(Job {
                meta,
                payload: self.next_message,
            });
            self.next_message += 1;
        }
        self.handle_event(Event::Submitted(&mut jobs))?;
        self.submission = jobs;
        Ok(())
    }

    fn handle_event(&mut self, event: Event<'_, usize>) -> Result<(), SimError> {
        let mut decisions = Decisions::default();
        self.core.handle(event, self.now, &mut decisions)?;
        for dropped in decisions.dropped {
            self.ledger
                .record_departure(dropped.job.payload)
                .map_err(SimError::Ledger)?;
            self.update_digest(1, dropped.job.payload as u64, dropped.reason as u64);
        }
        for (lane, task) in decisions.start {
            self.start_task(lane, task)?;
        }
        Ok(())
    }

    fn start_task(&mut self, lane: LaneId, task: LaneTask<usize>) -> Result<(), SimError> {
        let Some(lane_model) = self.simulation.lanes.get(lane.0) else {
            return Err(SimError::UnsupportedClass(lane));
        };
        let refill = self.simulation.config.masks.map(|masks| masks.refill);
        let service_time = match &task {
            LaneTask::Run(batch) => lane_model.service_time(batch.class, batch.work(), &mut self.random),
            LaneTask::Refill(count) => {
                refill.and_then(|class| lane_model.service_time(class, *count as f64, &mut self.random))
            }
            LaneTask::Probe => Some(Span::from_micros(1)),
        };
        let service_time = service_time.ok_or(SimError::UnsupportedClass(lane))?;
        if let LaneTask::Run(batch) = &task {
            self.update_digest(2, lane.0 as u64, batch.len() as u64);
        }
        // A lane that has just completed a task needs no wake-up.
        let is_idle = self.last_ended != Some((lane, self.now));
        let done_at = self.now + service_time + if is_idle { lane_model.wake } else { Span::ZERO };
        let (ends_at, end) = match lane_model.failure_time(self.now, done_at) {
            Some(ends_at) => (ends_at, TaskEnd::Lost),
            None => (done_at, TaskEnd::Done(service_time)),
        };
        self.tasks_started += 1;
        self.task_ends
            .push(Reverse((ends_at, self.tasks_started, lane, end)));
        if let Some(lane_task) = self.tasks.get_mut(lane.0) {
            *lane_task = Some(task);
        }
        Ok(())
    }

    fn finish_next_task(&mut self) -> Result<(), SimError> {
        let Some(Reverse((_, _, lane, end))) = self.task_ends.pop() else {
            return Ok(());
        };
        let task = self.tasks.get_mut(lane.0).and_then(Option::take);
        self.last_ended = Some((lane, self.now));
        let usage = self.lanes.get_mut(lane.0);
        match (task, end) {
            (Some(LaneTask::Run(batch)), TaskEnd::Done(duration)) => {
                usage
                    .into_iter()
                    .for_each(|usage| usage.record(batch.len(), duration));
                self.deliver(lane, batch, duration)
            }
            (Some(LaneTask::Refill(made)), TaskEnd::Done(duration)) => {
                usage.into_iter().for_each(|usage| usage.busy += duration);
                self.handle_event(Event::RefillDone { lane, made, duration })
            }
            (Some(LaneTask::Probe), _) => {
                let alive = self
                    .simulation
                    .lanes
                    .get(lane.0)
                    .is_some_and(|sim| sim.is_up(self.now));
                self.handle_event(Event::Probed { lane, alive })
            }
            (Some(LaneTask::Run(batch)), TaskEnd::Lost) => self.handle_event(Event::LaneLost {
                lane,
                batch: Some(batch),
            }),
            (_, _) => self.handle_event(Event::LaneLost { lane, batch: None }),
        }
    }

    fn deliver(&mut self, lane: LaneId, batch: Batch<usize>, duration: Span) -> Result<(), SimError> {
        let mut outcomes = Vec::with_capacity(batch.len());
        for (entry, message) in batch.entries.iter().zip(&batch.payloads) {
            let is_valid = self.trace.get(*message).is_some_and(|record| record.valid);
            outcomes.push(if is_valid {
                Outcome::Accepted
            } else {
                Outcome::Rejected
            });
            let is_late = entry.meta.deadline < self.now;
            let latencies = if is_valid {
                &mut self.valid
            } else {
                &mut self.invalid
            };
            latencies.record(
                entry.meta.priority,
                self.now.saturating_since(entry.meta.arrived),
                is_late,
            );
            self.in_time += u64::from(is_valid && !is_late);
            let departures = match self.injected_fault.take() {
                None => 1,
                Some(InjectedFault::LoseResult) => 0,
                Some(InjectedFault::DuplicateResult) => 2,
            };
            for _ in 0..departures {
                self.ledger.record_departure(*message).map_err(SimError::Ledger)?;
            }
        }
        self.last_result = self.now;
        self.update_digest(3, lane.0 as u64, batch.len() as u64);
        self.handle_event(Event::BatchDone {
            lane,
            batch,
            outcomes: &outcomes,
            duration,
        })
    }

    /// Adds an event to the digest (FNV-1a). Two runs with the same events have the same digest.
    fn update_digest(&mut self, event_code: u64, first: u64, second: u64) {
        for word in [self.now.as_nanos(), event_code, first, second] {
            for byte in word.to_le_bytes() {
                self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
    }

    fn report(self) -> Result<Report, SimError> {
        self.ledger.check_complete().map_err(SimError::Ledger)?;
        Ok(Report {
            policy: self.core.policy(),
            offered: self.trace.len() as u64,
            span: self.last_result.saturating_since(Time::ZERO),
            counters: *self.core.counters(),
            valid: self.valid,
            invalid: self.invalid,
            in_time: self.in_time,
            lanes: self.lanes,
            digest: self.digest,
        })
    }
}

fn arrival_time(record: &Record) -> Time {
    Time::ZERO + Span::from_micros(record.arrival_us)
}
