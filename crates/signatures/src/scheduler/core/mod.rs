//! The scheduler's decisions, without I/O: an event and the time go in, decisions come out.
//!
//! # Life of a lane
//! ```text
//!            LaneIdle           start              BatchDone, RefillDone
//!  Absent ------------> Idle ---------> Working ----------------------> Idle
//!    |                   |                 |
//!    +---- LaneLost -----+--- LaneLost ----+----> Lost --- timer ---> Probing --- Probed: alive ---> Idle
//!                                                  ^                     |
//!                                                  +---- Probed: not ----+
//! ```
//! Any other event of a lane is an error of whoever drives the core, and changes nothing.
//!
//! # Life of a job
//! Submitted, it is dropped at once, or waits. Waiting, it is dropped, or goes into a batch. In a batch, it
//! is done; or its lane is lost and it waits again, at the front, for a processor. So at every moment
//! `submitted = waiting + in batches + done + dropped + given back`, which [`Core::is_balanced`] checks.

mod admit;
mod dispatch;
mod lanes;
#[cfg(test)]
mod tests;

use self::lanes::{Slot, State};
use super::class::{Class, PerClass};
use super::config::Config;
use super::counters::Counters;
use super::dedup::Recent;
use super::job::{Batch, Dropped, Job, Outcome};
use super::lane::{LaneId, LaneKind, LaneSpec};
use super::masks::Masks;
use super::meter::RateMeter;
use super::model::Line;
use super::policy::Policy;
use super::queue::Queue;
use super::quota::Quotas;
use super::time::{Span, Time};

/// What the core is told.
#[derive(Debug)]
pub enum Event<'a, J> {
    /// Jobs have come. The list is emptied.
    Submitted(&'a mut Vec<Job<J>>),
    /// A lane is there.
    LaneIdle(LaneId),
    /// A lane has done its batch.
    BatchDone {
        /// The lane.
        lane: LaneId,
        /// The batch; its payloads need not be in it any more.
        batch: Batch<J>,
        /// For each job, in order.
        outcomes: &'a [Outcome],
        /// How long the lane worked.
        took: Span,
    },
    /// A lane failed. Whatever it was doing was not done.
    LaneLost {
        /// The lane.
        lane: LaneId,
        /// All jobs of its batch, if it had one.
        batch: Option<Batch<J>>,
    },
    /// A lane has made masks.
    RefillDone {
        /// The lane.
        lane: LaneId,
        /// So many.
        made: usize,
        /// How long it worked.
        took: Span,
    },
    /// A lost lane was tried.
    Probed {
        /// The lane.
        lane: LaneId,
        /// Whether it works again.
        alive: bool,
    },
    /// The pool holds so many masks: at the start, or after the owner has counted.
    MaskStock(usize),
    /// It is as late as [`Core::next_timer`] said.
    Timer,
}

/// What a lane is to do.
#[derive(Debug)]
pub enum Start<J> {
    /// A batch; [`Event::BatchDone`] or [`Event::LaneLost`] ends it.
    Run(Batch<J>),
    /// Make so many masks; [`Event::RefillDone`] or [`Event::LaneLost`] ends it.
    Refill(usize),
    /// Try whether it works again; [`Event::Probed`] ends it.
    Probe,
}

/// What the core has decided. Whoever drives it carries it out and empties it.
#[derive(Debug)]
pub struct Decisions<J> {
    /// For lanes that were idle or lost.
    pub start: Vec<(LaneId, Start<J>)>,
    /// Jobs that leave.
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

/// Which idle lanes want to know of what comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attention {
    /// The lane that takes the first immediate job.
    pub immediate: Option<LaneId>,
    /// The lane that wants to know of other jobs, and how many must have come: 1 for a processor, a batch for
    /// an accelerator.
    pub other: Option<(LaneId, usize)>,
}

/// Why an event was not taken: whoever drives the core is wrong about a lane. Nothing was changed or counted;
/// a batch that came with the event is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CoreError {
    /// There is no such lane.
    #[error("lane {0:?} does not exist")]
    NoSuchLane(LaneId),
    /// It cannot happen to a lane in this state.
    #[error("{event} of lane {lane:?}, which is {state}")]
    Unexpected {
        /// The lane.
        lane: LaneId,
        /// What was said of it.
        event: &'static str,
        /// What it is.
        state: &'static str,
    },
    /// A batch came back with other jobs, or other outcomes, than it was sent out with.
    #[error("lane {lane:?} gave back {found} jobs or outcomes of a batch of {expected}")]
    WrongBatch {
        /// The lane.
        lane: LaneId,
        /// Jobs that it was given.
        expected: usize,
        /// What came back.
        found: usize,
    },
}

/// The scheduler's core. One thread at a time drives it.
pub struct Core<J> {
    config: Config,
    policy: Box<dyn Policy>,
    queue: Queue<J>,
    quotas: Quotas,
    recent: Recent,
    masks: Option<Masks>,
    lanes: Vec<Slot>,
    /// Lanes in the order in which they are given work: reserved ones, processors, accelerators.
    order: Vec<LaneId>,
    arrivals: PerClass<Arrivals>,
    counters: Counters,
    next_number: u64,
    in_batches: usize,
    ending: Ending,
    /// Jobs that this event brought and that were not let in.
    refused: Vec<Dropped<J>>,
    spare: Vec<Batch<J>>,
}

/// Whether the end has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    No,
    /// What waits is worked on.
    Drain,
    /// Nothing is begun any more.
    Stop,
}

/// Arrivals of one class.
#[derive(Clone, Copy, Debug, Default)]
struct Arrivals {
    immediate: RateMeter,
    other: RateMeter,
}

impl<J> Core<J> {
    /// With these lanes, of which none is there yet.
    pub fn new(config: Config, lanes: Vec<LaneSpec>, policy: Box<dyn Policy>) -> Self {
        let lanes: Vec<_> = lanes.into_iter().map(Slot::new).collect();
        let mut order: Vec<_> = (0..lanes.len()).map(LaneId).collect();
        order.sort_by_key(|id| lanes.get(id.0).map(|slot| slot.spec.kind as u8));
        Self {
            config,
            policy,
            queue: Queue::new(config.queue),
            quotas: Quotas::new(config.quotas),
            recent: Recent::new(config.recent, config.recent_memory),
            masks: config.masks.map(Masks::new),
            lanes,
            order,
            arrivals: PerClass::default(),
            counters: Counters::default(),
            next_number: 1,
            in_batches: 0,
            ending: Ending::No,
            refused: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Takes an event in and adds what follows from it to `decisions`.
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
        let taken = match event {
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
                took,
            } => self.batch_done(lane, batch, outcomes, took, now),
            Event::LaneLost { lane, batch } => self.lane_lost(lane, batch, now, decisions),
            Event::RefillDone { lane, made, took } => self.refill_done(lane, made, took, now),
            Event::Probed { lane, alive } => self.probed(lane, alive, now),
        };
        if taken.is_ok() {
            self.dispatch(now, decisions);
        }
        self.note_dropped(decisions.dropped.get(dropped_before..).unwrap_or_default());
        for refused in self.refused.drain(..) {
            self.counters.shed.count(refused.why);
            decisions.dropped.push(refused);
        }
        debug_assert!(self.is_balanced(), "{:?}", self.counters);
        taken
    }

    /// Counts jobs that leave the queue; their copies are welcome.
    fn note_dropped(&mut self, dropped: &[Dropped<J>]) {
        for Dropped { job, why } in dropped {
            self.counters.shed.count(*why);
            if let Some(fingerprint) = job.meta.fingerprint {
                self.recent.forget(fingerprint);
            }
        }
    }

    /// When [`Event::Timer`] is due; [`Time::NEVER`] if it need not come. It moves with every event.
    pub fn next_timer(&self) -> Time {
        if self.ending == Ending::Stop {
            return Time::NEVER;
        }
        let refilling = self.masks.as_ref().is_some_and(Masks::is_short) && self.ending == Ending::No;
        let of_lanes = self.lanes.iter().map(|slot| match slot.state {
            State::Idle { wait } => {
                let refill = if refilling && slot.spec.refills {
                    slot.refill_after
                } else {
                    Time::NEVER
                };
                wait.map_or(Time::NEVER, |wait| wait.until).min(refill)
            }
            State::Lost { probe_at, .. } if self.ending == Ending::No => probe_at,
            _ => Time::NEVER,
        });
        let expiry = if self.lanes.iter().any(Slot::is_live) {
            Time::NEVER
        } else {
            self.queue.next_expiry()
        };
        of_lanes.min().unwrap_or(Time::NEVER).min(expiry)
    }

    /// Which idle lane wants to know of jobs that come, and from how many on. Whoever takes jobs in need not
    /// tell the core of fewer: a lane that works looks itself when it is done, and a waiting job's time is up
    /// at [`Core::next_timer`].
    pub fn attention(&self) -> Attention {
        let idle = |kind| {
            let slots = self
                .order
                .iter()
                .filter_map(move |lane| Some((*lane, self.lanes.get(lane.0)?)));
            slots
                .filter(move |(_, slot)| slot.spec.kind == kind)
                .filter_map(|(lane, slot)| match slot.state {
                    State::Idle { wait } => Some((lane, wait)),
                    _ => None,
                })
        };
        let live = |kind| {
            self.lanes
                .iter()
                .any(|slot| slot.spec.kind == kind && slot.is_live())
        };
        let processors = live(LaneKind::Cpu) || live(LaneKind::Reserved);
        let first = |kind| idle(kind).next().map(|(lane, _)| lane);
        let accelerators = idle(LaneKind::Accelerator).map(|(lane, wait)| {
            // Of a class of which none has come yet, an accelerator learns when a processor has done its
            // slice.
            (lane, wait.filter(|_| processors).map_or(1, |wait| wait.more))
        });
        let immediate = first(LaneKind::Reserved).or_else(|| first(LaneKind::Cpu));
        let reserved =
            first(LaneKind::Reserved).filter(|_| !live(LaneKind::Cpu) && !live(LaneKind::Accelerator));
        let other = first(LaneKind::Cpu).or(reserved).map(|lane| (lane, 1));
        Attention {
            immediate: immediate.or_else(|| first(LaneKind::Accelerator).filter(|_| !processors)),
            other: other.or_else(|| accelerators.min_by_key(|(lane, more)| (*more, *lane))),
        }
    }

    /// No more jobs will come: lanes take what there is without waiting for more.
    pub fn drain(&mut self) {
        self.ending = Ending::Drain;
    }

    /// Nothing is begun any more; what is in batches may end.
    pub fn stop(&mut self) {
        self.ending = Ending::Stop;
    }

    /// Whether nothing waits, and no lane has a batch.
    pub fn is_done(&self) -> bool {
        self.queue.is_empty() && self.in_batches == 0
    }

    /// After [`Core::drain`] or [`Core::stop`]: whether a lane that is idle will be given nothing more, and
    /// may be dismissed. What still waits after a drain is what no lane can do that is there.
    pub fn may_end(&self) -> bool {
        match self.ending {
            Ending::No => false,
            Ending::Drain => self.in_batches == 0,
            Ending::Stop => true,
        }
    }

    /// An idle or lost lane leaves for good.
    pub fn dismiss(&mut self, lane: LaneId) {
        if let Some(slot) = self.lanes.get_mut(lane.0) {
            slot.state = State::Lost {
                probe_at: Time::NEVER,
                after: Span::ZERO,
            };
        }
    }

    /// Takes out all jobs that wait.
    pub fn give_back(&mut self, jobs: &mut Vec<Job<J>>) {
        let before = jobs.len();
        self.queue.drain(jobs);
        self.counters.given_back += (jobs.len() - before) as u64;
    }

    /// Immediate and other jobs that wait.
    pub fn waiting(&self) -> (usize, usize) {
        (self.queue.immediate(), self.queue.other())
    }

    /// Whether the waiting jobs of strangers take as much lane time as [`Config::crowded`] says. A receiver may then drop what strangers
    /// send before it comes here.
    pub fn is_crowded(&self) -> bool {
        self.queue.strangers_cost() >= self.config.crowded
    }

    /// Jobs that are in batches.
    pub fn in_batches(&self) -> usize {
        self.in_batches
    }

    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Masks in the pool, as far as the core knows.
    pub fn mask_stock(&self) -> usize {
        self.masks.as_ref().map_or(0, Masks::stock)
    }

    /// What a lane is believed to take for a class.
    pub fn line(&self, lane: LaneId, class: Class) -> Option<Line> {
        self.lanes.get(lane.0)?.line(class)
    }

    /// The policy's name.
    pub fn policy(&self) -> &'static str {
        self.policy.name()
    }

    /// Whether each job that was submitted is in exactly one place.
    pub fn is_balanced(&self) -> bool {
        let Counters {
            submitted,
            given_back,
            shed,
            ..
        } = self.counters;
        let here = (self.queue.len() + self.in_batches) as u64;
        submitted == here + self.counters.done() + given_back + shed.total()
    }
}
