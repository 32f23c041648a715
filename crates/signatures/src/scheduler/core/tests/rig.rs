//! A core with lanes that do nothing, and a ledger that each job leaves exactly once.

use std::collections::HashMap;

use super::super::super::job::{Meta, Priority, ShedReason, Source};
use super::super::super::policy::FixedTau;
use super::super::*;

pub const CLASS: Class = Class::P256_VERIFY;
pub const CPU: LaneId = LaneId(0);
pub const GPU: LaneId = LaneId(1);

/// 100 jobs a millisecond in grains of 8; a slice of 0.1 ms is 8 jobs.
pub fn cpu() -> LaneSpec {
    let line = CostModel::new(Span::ZERO, 100e3);
    LaneSpec::new("cpu", LaneKind::Cpu)
        .with_class(CLASS, line)
        .with_grain(8)
}

pub fn gpu() -> LaneSpec {
    let line = CostModel::new(Span::from_micros(300), 10e6);
    LaneSpec::new("gpu", LaneKind::Accelerator)
        .with_class(CLASS, line)
        .with_batch_max(1_000)
}

pub fn tau(jobs: usize) -> Box<dyn Policy> {
    Box::new(FixedTau::new(PerClass::from_fn(|_| jobs)))
}

pub fn meta(level: u8, source: u64) -> Meta {
    Meta::new(CLASS, Priority::new(level), Source(source), Time::ZERO)
}

/// How a job left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Departure {
    Done(Outcome),
    Dropped(ShedReason),
}

pub struct Rig {
    pub core: Core<u32>,
    pub now: Time,
    pub next: u32,
    /// Unfinished tasks of each lane.
    pub given: HashMap<LaneId, LaneTask<u32>>,
    pub left: HashMap<u32, Departure>,
    /// Jobs in order of completion.
    pub done: Vec<u32>,
}

impl Rig {
    pub fn new(config: Config, lanes: Vec<LaneSpec>, policy: Box<dyn Policy>) -> Self {
        let count = lanes.len();
        let core = Core::new(config, lanes, policy);
        let (given, left) = (HashMap::new(), HashMap::new());
        let mut rig = Self {
            core,
            now: Time::from_nanos(1),
            next: 0,
            given,
            left,
            done: Vec::new(),
        };
        (0..count).for_each(|lane| rig.event(Event::LaneIdle(LaneId(lane))).unwrap());
        rig
    }

    /// One CPU lane and one accelerator that takes more than 10 jobs.
    pub fn pair() -> Self {
        Self::new(Config::default(), vec![cpu(), gpu()], tau(10))
    }

    pub fn pass(&mut self, span: Span) {
        self.now = self.now + span;
    }

    pub fn event(&mut self, event: Event<'_, u32>) -> Result<(), CoreError> {
        let mut decisions = Decisions::default();
        let taken = self.core.handle(event, self.now, &mut decisions);
        for (lane, start) in decisions.start {
            assert!(self.given.insert(lane, start).is_none(), "{lane:?} was busy");
        }
        for Dropped { job, reason } in decisions.dropped {
            self.leave(job.payload, Departure::Dropped(reason));
        }
        taken
    }

    fn leave(&mut self, job: u32, departure: Departure) {
        let before = self.left.insert(job, departure);
        assert_eq!(before, None, "job {job} leaves twice, now {departure:?}");
    }

    /// Submits jobs, and returns their numbers.
    pub fn submit(&mut self, metas: impl IntoIterator<Item = Meta>) -> Vec<u32> {
        let first = self.next;
        let job = |(number, meta)| Job {
            meta,
            payload: first + number as u32,
        };
        let mut jobs: Vec<_> = metas.into_iter().enumerate().map(job).collect();
        jobs.iter_mut().for_each(|job| job.meta.arrived = self.now);
        self.next += jobs.len() as u32;
        self.event(Event::Submitted(&mut jobs)).unwrap();
        (first..self.next).collect()
    }

    pub fn submit_many(&mut self, level: u8, count: usize) -> Vec<u32> {
        self.submit((0..count).map(|source| meta(level, source as u64)))
    }

    /// The jobs in a lane's current batch.
    pub fn on(&self, lane: LaneId) -> Vec<u32> {
        match self.given.get(&lane) {
            Some(LaneTask::Run(batch)) => batch.payloads.clone(),
            _ => Vec::new(),
        }
    }

    /// Completes the lane's task: a batch with this outcome for all jobs, a refill, or a successful
    /// probe.
    pub fn finish(&mut self, lane: LaneId, outcome: Outcome) {
        match self.given.remove(&lane).unwrap() {
            LaneTask::Run(batch) => {
                let jobs = batch.payloads.clone();
                jobs.iter()
                    .for_each(|job| self.leave(*job, Departure::Done(outcome)));
                self.done.extend(&jobs);
                let line = self.core.line(lane, batch.class).unwrap();
                let took = Span::from_secs_f64(line.seconds(batch.work()));
                let outcomes = vec![outcome; jobs.len()];
                self.event(Event::BatchDone {
                    lane,
                    batch,
                    outcomes: &outcomes,
                    took,
                })
                .unwrap();
            }
            LaneTask::Refill(made) => {
                let took = self.core.line(lane, Class::MASK_REFILL).unwrap().time(made);
                self.event(Event::RefillDone { lane, made, took }).unwrap();
            }
            LaneTask::Probe => self.event(Event::Probed { lane, alive: true }).unwrap(),
        }
    }

    /// The lane fails at its current task.
    pub fn lose(&mut self, lane: LaneId) {
        let event = match self.given.remove(&lane) {
            Some(LaneTask::Run(batch)) => Event::LaneLost {
                lane,
                batch: Some(batch),
            },
            Some(LaneTask::Probe) => Event::Probed { lane, alive: false },
            Some(LaneTask::Refill(_)) | None => Event::LaneLost { lane, batch: None },
        };
        self.event(event).unwrap();
    }

    /// Completes tasks until no work is left.
    pub fn finish_all(&mut self) {
        while let Some(lane) = self.given.keys().min().copied() {
            self.finish(lane, Outcome::Accepted);
        }
    }

    /// Advances the time to the timer, and triggers it.
    pub fn ring(&mut self) {
        let due = self.core.next_timer();
        assert_ne!(due, Time::NEVER);
        self.now = self.now.max(due);
        self.event(Event::Timer).unwrap();
        assert!(self.core.next_timer() > self.now, "the timer does not advance");
    }
}
