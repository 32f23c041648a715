//! A core with lanes that do nothing, and a check that each job leaves exactly once.

use std::collections::HashMap;

use super::super::super::job::{Meta, Priority, ShedReason, Source};
use super::super::super::policy::FixedTau;
use super::super::*;

pub const CLASS: Class = Class::P256_VERIFY;
pub const CPU: LaneId = LaneId(0);
pub const GPU: LaneId = LaneId(1);

/// A CPU lane for 100 jobs a millisecond in grains of 8; a slice of 0.1 ms has 8 jobs.
pub fn cpu() -> LaneSpec {
    let cost_model = CostModel::new(Span::ZERO, 100e3);
    LaneSpec::new("cpu", LaneKind::Cpu)
        .with_class(CLASS, cost_model)
        .with_grain(8)
}

pub fn gpu() -> LaneSpec {
    let cost_model = CostModel::new(Span::from_micros(300), 10e6);
    LaneSpec::new("gpu", LaneKind::Accelerator)
        .with_class(CLASS, cost_model)
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
    /// Number of the next job.
    pub next_job: u32,
    /// Unfinished tasks of each lane.
    pub tasks: HashMap<LaneId, LaneTask<u32>>,
    pub departures: HashMap<u32, Departure>,
    /// Jobs in order of completion.
    pub completed: Vec<u32>,
}

impl Rig {
    pub fn new(config: Config, lanes: Vec<LaneSpec>, policy: Box<dyn Policy>) -> Self {
        let count = lanes.len();
        let core = Core::new(config, lanes, policy);
        let mut rig = Self {
            core,
            now: Time::from_nanos(1),
            next_job: 0,
            tasks: HashMap::new(),
            departures: HashMap::new(),
            completed: Vec::new(),
        };
        (0..count).for_each(|lane| rig.event(Event::LaneIdle(LaneId(lane))).unwrap());
        rig
    }

    /// One CPU lane and one accelerator that takes more than 10 jobs.
    pub fn pair() -> Self {
        Self::new(Config::default(), vec![cpu(), gpu()], tau(10))
    }

    pub fn advance_time(&mut self, span: Span) {
        self.now = self.now + span;
    }

    pub fn event(&mut self, event: Event<'_, u32>) -> Result<(), CoreError> {
        let mut decisions = Decisions::default();
        let result = self.core.handle(event, self.now, &mut decisions);
        for (lane, task) in decisions.start {
            assert!(self.tasks.insert(lane, task).is_none(), "{lane:?} was busy");
        }
        for Dropped { job, reason } in decisions.dropped {
            self.leave(job.payload, Departure::Dropped(reason));
        }
        result
    }

    fn leave(&mut self, job: u32, departure: Departure) {
        let previous = self.departures.insert(job, departure);
        assert_eq!(previous, None, "job {job} leaves twice, now {departure:?}");
    }

    /// Submits jobs, and returns their numbers.
    pub fn submit(&mut self, metas: impl IntoIterator<Item = Meta>) -> Vec<u32> {
        let first = self.next_job;
        let job = |(number, meta)| Job {
            meta,
            payload: first + number as u32,
        };
        let mut jobs: Vec<_> = metas.into_iter().enumerate().map(job).collect();
        jobs.iter_mut().for_each(|job| job.meta.arrived = self.now);
        self.next_job += jobs.len() as u32;
        self.event(Event::Submitted(&mut jobs)).unwrap();
        (first..self.next_job).collect()
    }

    pub fn submit_many(&mut self, level: u8, count: usize) -> Vec<u32> {
        self.submit((0..count).map(|source| meta(level, source as u64)))
    }

    /// The jobs in a lane's current batch.
    pub fn batch_on(&self, lane: LaneId) -> Vec<u32> {
        match self.tasks.get(&lane) {
            Some(LaneTask::Run(batch)) => batch.payloads.clone(),
            _ => Vec::new(),
        }
    }

    /// Completes the lane's task: a batch with this outcome for all jobs, a refill, or a successful
    /// probe.
    pub fn finish(&mut self, lane: LaneId, outcome: Outcome) {
        match self.tasks.remove(&lane).unwrap() {
            LaneTask::Run(batch) => {
                let jobs = batch.payloads.clone();
                jobs.iter()
                    .for_each(|job| self.leave(*job, Departure::Done(outcome)));
                self.completed.extend(&jobs);
                let cost_model = self.core.cost_model(lane, batch.class).unwrap();
                let duration = Span::from_secs_f64(cost_model.seconds(batch.work()));
                let outcomes = vec![outcome; jobs.len()];
                self.event(Event::BatchDone {
                    lane,
                    batch,
                    outcomes: &outcomes,
                    duration,
                })
                .unwrap();
            }
            LaneTask::Refill(made) => {
                let duration = self.core.cost_model(lane, Class::MASK_REFILL).unwrap().time(made);
                self.event(Event::RefillDone { lane, made, duration }).unwrap();
            }
            LaneTask::Probe => self.event(Event::Probed { lane, alive: true }).unwrap(),
        }
    }

    /// The lane fails at its current task.
    pub fn lose(&mut self, lane: LaneId) {
        let event = match self.tasks.remove(&lane) {
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
        while let Some(lane) = self.tasks.keys().min().copied() {
            self.finish(lane, Outcome::Accepted);
        }
    }

    /// Advances the time to the timer, and triggers it.
    pub fn trigger_timer(&mut self) {
        let due = self.core.next_timer();
        assert_ne!(due, Time::NEVER);
        self.now = self.now.max(due);
        self.event(Event::Timer).unwrap();
        assert!(self.core.next_timer() > self.now, "the timer does not advance");
    }
}
