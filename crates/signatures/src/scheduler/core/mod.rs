//! The scheduler's decisions, without I/O: input is an event and the time, output is decisions.
//!
//! # States of a lane
//! ```text
//!            LaneIdle           start              BatchDone, RefillDone
//!  Absent ------------> Idle ---------> Working ----------------------> Idle
//!    |                   |                 |
//!    +---- LaneLost -----+--- LaneLost ----+----> Lost --- timer ---> Probing --- Probed: alive ---> Idle
//!                                                  ^                     |
//!                                                  +---- Probed: not ----+
//! ```
//! Any other event of a lane is an error of the caller, and changes nothing.
//!
//! # States of a job
//! A submitted job is dropped at once, or waits. A waiting job is dropped, or moves into a batch. A job in a batch is
//! done, or its lane is lost: then the job waits again, at the front, or is dropped after too many lost batches. At every
//! moment `submitted = waiting + in batches + done + dropped + unfinished`, which [`Core::is_balanced`] checks.

mod admit;
mod dispatch;
mod lanes;
mod slot;
#[cfg(test)]
mod tests;

use self::slot::{Slot, State};
use super::class::{Class, PerClass};
use super::config::Config;
use super::counters::Counters;
use super::dedup::RecentMessages;
use super::job::{Batch, Dropped, Job, Outcome};
use super::lane::{LaneId, LaneKind, LaneSpec};
use super::masks::MaskStock;
use super::meter::RateMeter;
use super::model::CostModel;
use super::policy::Policy;
use super::queue::Queue;
use super::quota::Quotas;
use super::time::{Span, Time};

/// Input of [`Core`].
#[derive(Debug)]
pub enum Event<'a, J> {
    /// Jobs have arrived. The list is emptied.
    Submitted(&'a mut Vec<Job<J>>),
    /// A lane is ready.
    LaneIdle(LaneId),
    /// A lane has completed its batch.
    BatchDone {
        /// The lane.
        lane: LaneId,
        /// The batch; its payloads may have been taken out.
        batch: Batch<J>,
        /// The outcome of each job, in order.
        outcomes: &'a [Outcome],
        /// Time that the lane worked.
        duration: Span,
    },
    /// A lane failed. Its batch was not completed.
    LaneLost {
        /// The lane.
        lane: LaneId,
        /// All jobs of the lane's batch, if the lane had a batch.
        batch: Option<Batch<J>>,
    },
    /// A lane has made masks.
    RefillDone {
        /// The lane.
        lane: LaneId,
        /// Number of masks.
        made: usize,
        /// Time that the lane worked.
        duration: Span,
    },
    /// A lost lane was probed.
    Probed {
        /// The lane.
        lane: LaneId,
        /// Whether the lane works again.
        alive: bool,
    },
    /// Number of masks in the pool: at the start, or after a recount by the owner.
    MaskStock(usize),
    /// The time of [`Core::next_timer`] is reached.
    Timer,
}

/// A task for a lane.
#[derive(Debug)]
pub enum LaneTask<J> {
    /// A batch; [`Event::BatchDone`] or [`Event::LaneLost`] ends it.
    Run(Batch<J>),
    /// Make this number of masks; [`Event::RefillDone`] or [`Event::LaneLost`] ends it.
    Refill(usize),
    /// Check whether the lane works again; [`Event::Probed`] ends it.
    Probe,
}

/// Decisions of [`Core`]. The caller executes and empties them.
#[derive(Debug)]
pub struct Decisions<J> {
    /// Tasks for lanes that were idle or lost.
    pub start: Vec<(LaneId, LaneTask<J>)>,
    /// Dropped jobs.
    pub dropped: Vec<Dropped<J>>,
}

impl<J> Default for Decisions<J> {
    fn default() -> Self {
        Self {
            start: Vec::new(),
            dropped: Vec::new(),
        }
    }
}

/// Conditions for waking idle lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WakeConditions {
    /// The lane that takes the first immediate job.
    pub immediate: Option<LaneId>,
    /// The lane that takes other jobs, and the number of arrivals from which to wake it: 1 for a CPU lane, a batch for an accelerator.
    pub other: Option<(LaneId, usize)>,
}

/// Why an event was rejected: it contradicts the state of a lane, which is an error of the caller. Nothing was changed or counted; a
/// batch in the event is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CoreError {
    /// The lane does not exist.
    #[error("scheduler event rejected: lane {0:?} does not exist")]
    NoSuchLane(LaneId),
    /// The event is impossible in this state of the lane.
    #[error("scheduler event rejected: {event} of lane {lane:?} in state {state}")]
    Unexpected {
        /// The lane.
        lane: LaneId,
        /// Name of the event.
        event: &'static str,
        /// State of the lane.
        state: &'static str,
    },
    /// A batch was returned with a different number of jobs or outcomes.
    #[error(
        "scheduler event rejected: lane {lane:?} returned {found} jobs or outcomes for a batch of {expected}"
    )]
    WrongBatch {
        /// The lane.
        lane: LaneId,
        /// Jobs in the batch.
        expected: usize,
        /// Jobs or outcomes returned.
        found: usize,
    },
}

/// The scheduler without I/O, used by one thread at a time.
pub struct Core<J> {
    config: Config,
    policy: Box<dyn Policy>,
    queue: Queue<J>,
    quotas: Quotas,
    recent_messages: RecentMessages,
    masks: Option<MaskStock>,
    lanes: Vec<Slot>,
    /// Lanes in the order of assignment: reserved lanes, CPU lanes, accelerators.
    lane_order: Vec<LaneId>,
    arrivals: PerClass<ArrivalRates>,
    counters: Counters,
    next_sequence: u64,
    in_batches: usize,
    shutdown: ShutdownState,
    /// Jobs of the current event that were not admitted, with the reasons.
    rejected_on_arrival: Vec<Dropped<J>>,
    spare_batches: Vec<Batch<J>>,
}

/// Progress of the shutdown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ShutdownState {
    Running,
    /// Waiting jobs are still processed.
    Draining,
    /// No new tasks are started.
    Stopped,
}

/// Arrival rates of one class.
#[derive(Clone, Copy, Debug, Default)]
struct ArrivalRates {
    immediate: RateMeter,
    other: RateMeter,
}

impl<J> Core<J> {
    /// A scheduler with these lanes, none of which is ready yet.
    pub fn new(config: Config, lanes: Vec<LaneSpec>, policy: Box<dyn Policy>) -> Self {
        let lanes: Vec<_> = lanes.into_iter().map(Slot::new).collect();
        let mut lane_order: Vec<_> = (0..lanes.len()).map(LaneId).collect();
        lane_order.sort_by_key(|id| lanes.get(id.0).map(|slot| slot.spec.kind as u8));
        Self {
            config,
            policy,
            queue: Queue::new(config.queue),
            quotas: Quotas::new(config.quotas),
            recent_messages: RecentMessages::new(config.recent_messages_min, config.recent_lifetime_min),
            masks: config.masks.map(MaskStock::new),
            lanes,
            lane_order,
            arrivals: PerClass::default(),
            counters: Counters::default(),
            next_sequence: 1,
            in_batches: 0,
            shutdown: ShutdownState::Running,
            rejected_on_arrival: Vec::new(),
            spare_batches: Vec::new(),
        }
    }

    /// Processes an event and appends the resulting decisions.
    ///
    /// # Errors
    /// See [`CoreError`].
    pub fn handle(
        &mut self,
        event: Event<'_, J>,
        now: Time,
        decisions: &mut Decisions<J>,
    ) -> Result<(), CoreError> {
        let dropped_before = decisions.dropped.len();
        self.queue.purge(now, &mut decisions.dropped);
        let result = match event {
            Event::Submitted(jobs) => {
                self.submit(jobs, now, decisions);
                Ok(())
            }
            Event::MaskStock(stock) => {
                self.masks.iter_mut().for_each(|masks| masks.set_stock(stock));
                Ok(())
            }
            Event::Timer => {
                self.probe_lost(now, decisions);
                Ok(())
            }
            Event::LaneIdle(lane) => self.lane_idle(lane),
            Event::BatchDone {
                lane,
                batch,
                outcomes,
                duration,
            } => self.batch_done(lane, batch, outcomes, duration, now),
            Event::LaneLost { lane, batch } => self.lane_lost(lane, batch, now, decisions),
            Event::RefillDone { lane, made, duration } => self.refill_done(lane, made, duration, now),
            Event::Probed { lane, alive } => self.probed(lane, alive, now),
        };
        if result.is_ok() {
            self.dispatch(now, decisions);
        }
        self.count_dropped(decisions.dropped.get(dropped_before..).unwrap_or_default());
        for rejected in self.rejected_on_arrival.drain(..) {
            self.counters.shed.count(rejected.reason);
            decisions.dropped.push(rejected);
        }
        debug_assert!(self.is_balanced(), "{:?}", self.counters);
        result
    }

    /// Counts dropped jobs that leave the queue; copies of these jobs are admitted again.
    fn count_dropped(&mut self, dropped: &[Dropped<J>]) {
        for Dropped { job, reason } in dropped {
            self.counters.shed.count(*reason);
            if let Some(fingerprint) = job.meta.fingerprint {
                self.recent_messages.forget(fingerprint);
            }
        }
    }

    /// The time for the next [`Event::Timer`]; [`Time::NEVER`] if no timer is needed. Every event may change this time.
    pub fn next_timer(&self) -> Time {
        if self.shutdown == ShutdownState::Stopped {
            return Time::NEVER;
        }
        let is_refill_needed =
            self.masks.as_ref().is_some_and(MaskStock::is_short) && self.shutdown == ShutdownState::Running;
        let lane_timers = self.lanes.iter().map(|slot| match slot.state {
            State::Idle { wait } => {
                let refill = if is_refill_needed && slot.spec.refills {
                    slot.refill_after
                } else {
                    Time::NEVER
                };
                wait.map_or(Time::NEVER, |wait| wait.until).min(refill)
            }
            State::Lost { probe_at, .. } if self.shutdown == ShutdownState::Running => probe_at,
            _ => Time::NEVER,
        });
        let expiry = if self.lanes.iter().any(Slot::is_usable) {
            Time::NEVER
        } else {
            self.queue.next_expiry()
        };
        lane_timers.min().unwrap_or(Time::NEVER).min(expiry)
    }

    /// Conditions for waking idle lanes when jobs arrive. While no condition is met, the caller need not notify the
    /// core: a busy lane checks for jobs after its batch, and [`Core::next_timer`] covers waiting jobs.
    pub fn wake_conditions(&self) -> WakeConditions {
        let idle_lanes = |kind| {
            let slots = self
                .lane_order
                .iter()
                .filter_map(move |lane| Some((*lane, self.lanes.get(lane.0)?)));
            slots
                .filter(move |(_, slot)| slot.spec.kind == kind)
                .filter_map(|(lane, slot)| match slot.state {
                    State::Idle { wait } => Some((lane, wait)),
                    _ => None,
                })
        };
        let is_usable = |kind| {
            self.lanes
                .iter()
                .any(|slot| slot.spec.kind == kind && slot.is_usable())
        };
        let has_cpu_lane = is_usable(LaneKind::Cpu) || is_usable(LaneKind::Reserved);
        let first = |kind| idle_lanes(kind).next().map(|(lane, _)| lane);
        let accelerators = idle_lanes(LaneKind::Accelerator).map(|(lane, wait)| {
            // For a class without arrivals so far, an accelerator receives jobs when a CPU lane has completed its slice.
            (
                lane,
                wait.filter(|_| has_cpu_lane)
                    .map_or(1, |wait| wait.additional_jobs),
            )
        });
        let immediate = first(LaneKind::Reserved).or_else(|| first(LaneKind::Cpu));
        let reserved = first(LaneKind::Reserved)
            .filter(|_| !is_usable(LaneKind::Cpu) && !is_usable(LaneKind::Accelerator));
        let other = first(LaneKind::Cpu).or(reserved).map(|lane| (lane, 1));
        WakeConditions {
            immediate: immediate.or_else(|| first(LaneKind::Accelerator).filter(|_| !has_cpu_lane)),
            other: other
                .or_else(|| accelerators.min_by_key(|(lane, additional_jobs)| (*additional_jobs, *lane))),
        }
    }

    /// Announces that no more jobs will arrive: lanes process the waiting jobs without waiting for more.
    pub fn drain(&mut self) {
        self.shutdown = ShutdownState::Draining;
    }

    /// Starts no new tasks; running batches may finish.
    pub fn stop(&mut self) {
        self.shutdown = ShutdownState::Stopped;
    }

    /// Whether no job waits and no lane has a batch.
    pub fn is_done(&self) -> bool {
        self.queue.is_empty() && self.in_batches == 0
    }

    /// After [`Core::drain`] or [`Core::stop`]: whether idle lanes get no more tasks and may be dismissed. Jobs that still wait after a
    /// drain need a lane that is not available.
    pub fn can_dismiss_idle(&self) -> bool {
        match self.shutdown {
            ShutdownState::Running => false,
            ShutdownState::Draining => self.in_batches == 0,
            ShutdownState::Stopped => true,
        }
    }

    /// Removes an idle or lost lane permanently.
    pub fn dismiss(&mut self, lane: LaneId) {
        if let Some(slot) = self.lanes.get_mut(lane.0) {
            slot.state = State::Lost {
                probe_at: Time::NEVER,
                delay: Span::ZERO,
            };
        }
    }

    /// Takes all waiting jobs out.
    pub fn return_jobs(&mut self, jobs: &mut Vec<Job<J>>) {
        let count_before = jobs.len();
        self.queue.drain(jobs);
        self.counters.unfinished += (jobs.len() - count_before) as u64;
    }

    /// Numbers of waiting immediate jobs and of other waiting jobs.
    pub fn waiting(&self) -> (usize, usize) {
        (self.queue.immediate(), self.queue.other())
    }

    /// Whether the waiting jobs of unknown senders need at least the lane time [`Config::overload_lane_time`]. A receiver may then drop
    /// messages of unknown senders before submission.
    pub fn is_overloaded(&self) -> bool {
        self.queue.unknown_cost() >= self.config.overload_lane_time
    }

    /// Jobs in batches.
    pub fn in_batches(&self) -> usize {
        self.in_batches
    }

    /// The counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Number of masks in the pool, as counted by the scheduler.
    pub fn mask_stock(&self) -> usize {
        self.masks.as_ref().map_or(0, MaskStock::stock)
    }

    /// The estimated cost of a class on a lane.
    pub fn cost_model(&self, lane: LaneId, class: Class) -> Option<CostModel> {
        self.lanes.get(lane.0)?.cost_model(class)
    }

    /// The policy's name.
    pub fn policy(&self) -> &'static str {
        self.policy.name()
    }

    /// Whether each submitted job is accounted for exactly once.
    pub fn is_balanced(&self) -> bool {
        let Counters {
            submitted,
            unfinished,
            shed,
            ..
        } = self.counters;
        let in_core = (self.queue.len() + self.in_batches) as u64;
        submitted == in_core + self.counters.done() + unfinished + shed.total()
    }
}
