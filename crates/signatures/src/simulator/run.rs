//! The event loop in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::lanes::SimLane;
use super::ledger::{Fault, Ledger};
use super::random::Random;
use super::report::{LaneUse, Report};
use super::trace::Record;
use crate::scheduler::policy::Policy;
use crate::scheduler::{
    Batch, Config, Core, CoreError, Decisions, Event, Job, LaneId, LatencyBook, Meta, Outcome, PerPriority,
    Span, Start, Time,
};

/// What a receiver takes from the network at once.
const SUBMISSION_MAX: usize = 64;

/// A run: the scheduler's bounds, its lanes, what is expected of it, and what comes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Of the core.
    pub config: Config,
    /// The lanes.
    pub lanes: Vec<SimLane>,
    /// When results are wanted, and when messages are worthless, after their arrival.
    pub budgets: PerPriority<Budget>,
    /// Of the scatter of service times.
    pub seed: u64,
    /// A fault of whoever drives the core, to show that the ledger notices.
    pub sabotage: Option<Sabotage>,
}

/// How long a message of a priority has.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Until its result is late.
    pub deadline: Span,
    /// Until work on it is not begun any more.
    pub expires: Span,
}

/// What goes wrong with the result of the first batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    /// The first job's is lost.
    Lose,
    /// It is reported twice.
    Double,
}

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The core refused an event: the loop here is wrong.
    #[error("simulator: {0}")]
    Core(#[from] CoreError),
    /// Something was lost or doubled.
    #[error("simulator: {0}")]
    Ledger(Fault),
    /// A lane was given work that it cannot do.
    #[error("simulator: lane {0:?} was given a class that it does not know")]
    NotCapable(LaneId),
    /// Histograms could not be made.
    #[error("simulator: {0}")]
    Histogram(#[from] hdrhistogram::CreationError),
    /// The core would go on for ever without an event.
    #[error("simulator: work waits, and nothing will happen any more")]
    Stuck,
}

impl Plan {
    /// With the usual budgets: 1 ms for immediate messages, 10 ms for priority 1, 100 ms for others; messages
    /// expire after ten times as long.
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
            sabotage: None,
        }
    }

    /// Runs a trace, sorted by arrival, until all messages have left.
    ///
    /// # Errors
    /// See [`SimError`].
    pub fn run(&self, trace: &[Record], policy: Box<dyn Policy>) -> Result<Report, SimError> {
        let mut run = Run::new(self, trace, policy)?;
        run.play()?;
        run.report()
    }
}

/// What happens to a lane at the end of what it does.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Done(Span),
    Lost,
}

struct Run<'a> {
    plan: &'a Plan,
    trace: &'a [Record],
    core: Core<usize>,
    now: Time,
    next: usize,
    /// What ends when, in the order in which it began.
    ends: BinaryHeap<Reverse<(Time, u64, LaneId, End)>>,
    begun: u64,
    /// The lane that has ended what it did, last, and when.
    ended: Option<(LaneId, Time)>,
    work: Vec<Option<Start<usize>>>,
    random: Random,
    ledger: Ledger,
    valid: LatencyBook,
    invalid: LatencyBook,
    in_time: u64,
    lanes: Vec<LaneUse>,
    sabotage: Option<Sabotage>,
    digest: u64,
    last_result: Time,
    submission: Vec<Job<usize>>,
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan, trace: &'a [Record], policy: Box<dyn Policy>) -> Result<Self, SimError> {
        let specs: Vec<_> = plan.lanes.iter().map(|lane| lane.spec.clone()).collect();
        let lanes: Vec<_> = specs.iter().map(|spec| LaneUse::new(spec.name.clone())).collect();
        let work = lanes.iter().map(|_| None).collect();
        Ok(Self {
            plan,
            trace,
            core: Core::new(plan.config, specs, policy),
            now: Time::ZERO,
            next: 0,
            ends: BinaryHeap::new(),
            begun: 0,
            ended: None,
            work,
            random: Random::new(plan.seed),
            ledger: Ledger::new(trace.len()),
            valid: LatencyBook::new()?,
            invalid: LatencyBook::new()?,
            in_time: 0,
            lanes,
            sabotage: plan.sabotage,
            digest: 0xcbf2_9ce4_8422_2325,
            last_result: Time::ZERO,
            submission: Vec::new(),
        })
    }

    fn play(&mut self) -> Result<(), SimError> {
        for lane in 0..self.plan.lanes.len() {
            self.tell(Event::LaneIdle(LaneId(lane)))?;
        }
        loop {
            let arrival = self.trace.get(self.next).map_or(Time::NEVER, arrival);
            let end = self.ends.peek().map_or(Time::NEVER, |Reverse((at, ..))| *at);
            let timer = self.core.next_timer();
            if self.next == self.trace.len() && self.core.is_done() {
                return Ok(());
            }
            let at = arrival.min(end).min(timer);
            if at == Time::NEVER {
                return Err(SimError::Stuck);
            }
            self.now = self.now.max(at);
            if end == at {
                self.end_first()?;
            } else if arrival == at {
                self.arrive()?;
            } else {
                self.tell(Event::Timer)?;
            }
        }
    }

    /// Hands in what arrives now, as a receiver does.
    fn arrive(&mut self) -> Result<(), SimError> {
        let now = self.now;
        let mut jobs = std::mem::take(&mut self.submission);
        while let Some(record) = self.trace.get(self.next)
            && arrival(record) <= now
            && jobs.len() < SUBMISSION_MAX
        {
            let budget = self.plan.budgets.of(record.priority);
            let mut meta = Meta::new(record.class, record.priority, record.source, arrival(record));
            meta.sender = record.sender();
            meta.work = record.work;
            meta.deadline = meta.arrived + budget.deadline;
            meta.expires = meta.arrived + budget.expires;
            jobs.push(Job {
                meta,
                payload: self.next,
            });
            self.next += 1;
        }
        self.tell(Event::Submitted(&mut jobs))?;
        self.submission = jobs;
        Ok(())
    }

    fn tell(&mut self, event: Event<'_, usize>) -> Result<(), SimError> {
        let mut decisions = Decisions::default();
        self.core.handle(event, self.now, &mut decisions)?;
        for dropped in decisions.dropped {
            self.ledger.leave(dropped.job.payload).map_err(SimError::Ledger)?;
            self.note(1, dropped.job.payload as u64, dropped.why as u64);
        }
        for (lane, start) in decisions.start {
            self.begin(lane, start)?;
        }
        Ok(())
    }

    fn begin(&mut self, lane: LaneId, start: Start<usize>) -> Result<(), SimError> {
        let Some(sim) = self.plan.lanes.get(lane.0) else {
            return Err(SimError::NotCapable(lane));
        };
        let refill = self.plan.config.masks.map(|masks| masks.refill);
        let took = match &start {
            Start::Run(batch) => sim.takes(batch.class, batch.work(), &mut self.random),
            Start::Refill(count) => {
                refill.and_then(|class| sim.takes(class, *count as f64, &mut self.random))
            }
            Start::Probe => Some(Span::from_micros(1)),
        };
        let took = took.ok_or(SimError::NotCapable(lane))?;
        if let Start::Run(batch) = &start {
            self.note(2, lane.0 as u64, batch.len() as u64);
        }
        // A lane that has just done something needs not be woken.
        let idle = self.ended != Some((lane, self.now));
        let until = self.now + took + if idle { sim.wake } else { Span::ZERO };
        let (at, end) = match sim.fails(self.now, until) {
            Some(at) => (at, End::Lost),
            None => (until, End::Done(took)),
        };
        self.begun += 1;
        self.ends.push(Reverse((at, self.begun, lane, end)));
        if let Some(work) = self.work.get_mut(lane.0) {
            *work = Some(start);
        }
        Ok(())
    }

    fn end_first(&mut self) -> Result<(), SimError> {
        let Some(Reverse((_, _, lane, end))) = self.ends.pop() else {
            return Ok(());
        };
        let start = self.work.get_mut(lane.0).and_then(Option::take);
        self.ended = Some((lane, self.now));
        let usage = self.lanes.get_mut(lane.0);
        match (start, end) {
            (Some(Start::Run(batch)), End::Done(took)) => {
                usage.into_iter().for_each(|usage| usage.note(batch.len(), took));
                self.deliver(lane, batch, took)
            }
            (Some(Start::Refill(made)), End::Done(took)) => {
                usage.into_iter().for_each(|usage| usage.busy += took);
                self.tell(Event::RefillDone { lane, made, took })
            }
            (Some(Start::Probe), _) => {
                let alive = self
                    .plan
                    .lanes
                    .get(lane.0)
                    .is_some_and(|sim| sim.answers(self.now));
                self.tell(Event::Probed { lane, alive })
            }
            (Some(Start::Run(batch)), End::Lost) => self.tell(Event::LaneLost {
                lane,
                batch: Some(batch),
            }),
            (_, _) => self.tell(Event::LaneLost { lane, batch: None }),
        }
    }

    fn deliver(&mut self, lane: LaneId, batch: Batch<usize>, took: Span) -> Result<(), SimError> {
        let mut outcomes = Vec::with_capacity(batch.len());
        for (ticket, message) in batch.tickets.iter().zip(&batch.payloads) {
            let valid = self.trace.get(*message).is_some_and(|record| record.valid);
            outcomes.push(if valid {
                Outcome::Accepted
            } else {
                Outcome::Rejected
            });
            let late = ticket.meta.deadline < self.now;
            let book = if valid { &mut self.valid } else { &mut self.invalid };
            book.record(ticket.meta.priority, self.now.since(ticket.meta.arrived), late);
            self.in_time += u64::from(valid && !late);
            let times = match self.sabotage.take() {
                None => 1,
                Some(Sabotage::Lose) => 0,
                Some(Sabotage::Double) => 2,
            };
            for _ in 0..times {
                self.ledger.leave(*message).map_err(SimError::Ledger)?;
            }
        }
        self.last_result = self.now;
        self.note(3, lane.0 as u64, batch.len() as u64);
        self.tell(Event::BatchDone {
            lane,
            batch,
            outcomes: &outcomes,
            took,
        })
    }

    /// Goes into the digest of everything that happens (FNV-1a): two runs with the same one went the same
    /// way.
    fn note(&mut self, what: u64, one: u64, other: u64) {
        for word in [self.now.as_nanos(), what, one, other] {
            for byte in word.to_le_bytes() {
                self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
    }

    fn report(self) -> Result<Report, SimError> {
        self.ledger.close().map_err(SimError::Ledger)?;
        Ok(Report {
            policy: self.core.policy(),
            offered: self.trace.len() as u64,
            span: self.last_result.since(Time::ZERO),
            counters: *self.core.counters(),
            valid: self.valid,
            invalid: self.invalid,
            in_time: self.in_time,
            lanes: self.lanes,
            digest: self.digest,
        })
    }
}

fn arrival(record: &Record) -> Time {
    Time::ZERO + Span::from_micros(record.arrival_us)
}
