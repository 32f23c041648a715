//! What happens to lanes.

use super::super::class::{Class, PerClass};
use super::super::job::{Batch, Outcome, Ticket};
use super::super::lane::{LaneId, LaneKind, LaneSpec};
use super::super::model::{Estimate, Line};
use super::super::queue::Share;
use super::super::time::{Span, Time};
use super::{Core, CoreError, Decisions, Ending, Start};

/// A lane, as the core knows it.
pub(super) struct Slot {
    pub(super) spec: LaneSpec,
    pub(super) state: State,
    pub(super) estimates: PerClass<Option<Estimate>>,
    /// Batches of immediate jobs since it last had others.
    pub(super) immediate_in_a_row: u32,
    /// Lane time of others' jobs since known senders and strangers both had some.
    pub(super) shares: Shares,
    /// It makes no masks before that: it could not the last time.
    pub(super) refill_after: Time,
}

/// How a lane's time is shared out between senders that are known and strangers while both have jobs waiting that are not immediate.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Shares {
    known_s: f64,
    strangers_s: f64,
}

impl Shares {
    /// The time of known senders for each second of strangers.
    const KNOWN: f64 = 3.0;

    /// Whose turn it is.
    pub(super) fn next(self) -> Share {
        if self.strangers_s * Self::KNOWN < self.known_s {
            Share::Strangers
        } else {
            Share::Known
        }
    }

    /// Notes what one side was given; nothing is owed to a side that has no jobs.
    pub(super) fn note(&mut self, share: Share, seconds: f64, both_wait: bool) {
        if !both_wait {
            *self = Self::default();
        } else if share == Share::Strangers {
            self.strangers_s += seconds;
        } else {
            self.known_s += seconds;
        }
    }
}

/// What a lane does.
#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    Absent,
    Idle { wait: Option<Wait> },
    Running { class: Class, jobs: usize, work: f64 },
    Refilling { class: Class, count: usize },
    Lost { probe_at: Time, after: Span },
    Probing { after: Span },
}

/// What an idle accelerator waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) until: Time,
    pub(super) more: usize,
}

impl State {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Idle { .. } => "idle",
            Self::Running { .. } => "running",
            Self::Refilling { .. } => "refilling",
            Self::Lost { .. } => "lost",
            Self::Probing { .. } => "probing",
        }
    }
}

impl Slot {
    pub(super) fn new(spec: LaneSpec) -> Self {
        let estimates = PerClass::from_fn(|class| spec.lines.of(class).map(Estimate::new));
        Self {
            spec,
            state: State::Absent,
            estimates,
            immediate_in_a_row: 0,
            shares: Shares::default(),
            refill_after: Time::ZERO,
        }
    }

    /// Whether it works, or will when it is asked. A lane that has not come yet is expected.
    pub(super) fn is_live(&self) -> bool {
        !matches!(self.state, State::Lost { .. } | State::Probing { .. })
    }

    pub(super) fn is_accelerator(&self) -> bool {
        self.spec.kind == LaneKind::Accelerator
    }

    pub(super) fn line(&self, class: Class) -> Option<Line> {
        self.estimates.of(class).as_ref().map(Estimate::line)
    }

    fn observe(&mut self, class: Class, work: f64, took: Span) {
        if let Some(estimate) = self.estimates.of_mut(class) {
            estimate.observe(work, took);
        }
    }
}

impl<J> Core<J> {
    fn slot(&mut self, lane: LaneId) -> Result<&mut Slot, CoreError> {
        self.lanes.get_mut(lane.0).ok_or(CoreError::NoSuchLane(lane))
    }

    pub(super) fn lane_idle(&mut self, lane: LaneId) -> Result<(), CoreError> {
        let slot = self.slot(lane)?;
        match slot.state {
            State::Absent | State::Idle { .. } => slot.state = State::Idle { wait: None },
            state => return Err(unexpected(lane, "idleness", state)),
        }
        Ok(())
    }

    pub(super) fn batch_done(
        &mut self,
        lane: LaneId,
        mut batch: Batch<J>,
        outcomes: &[Outcome],
        took: Span,
        now: Time,
    ) -> Result<(), CoreError> {
        let slot = self.slot(lane)?;
        let State::Running { class, jobs, work } = slot.state else {
            return Err(unexpected(lane, "the end of a batch", slot.state));
        };
        check_size(lane, jobs, batch.len())?;
        check_size(lane, jobs, outcomes.len())?;
        slot.state = State::Idle { wait: None };
        slot.observe(class, work, took);
        self.in_batches -= jobs;
        for (ticket, outcome) in batch.tickets.iter().zip(outcomes) {
            match outcome {
                Outcome::Accepted => self.counters.accepted += 1,
                Outcome::Rejected => self.counters.rejected += 1,
                Outcome::Refused => self.counters.refused += 1,
            }
            self.learn(ticket, *outcome, now);
        }
        batch.clear();
        self.spare.push(batch);
        Ok(())
    }

    /// What a result says of the sender, and of copies.
    fn learn(&mut self, ticket: &Ticket, outcome: Outcome, now: Time) {
        match outcome {
            Outcome::Accepted => self.quotas.trust(&ticket.meta, now),
            Outcome::Rejected => self.quotas.distrust(&ticket.meta, now),
            Outcome::Refused => {}
        }
        // Of a known source's message no copy is let in but an immediate one.
        if let Some(fingerprint) = ticket.meta.fingerprint
            && ticket.stranger
        {
            self.recent.done(fingerprint, now);
        }
    }

    pub(super) fn lane_lost(
        &mut self,
        lane: LaneId,
        batch: Option<Batch<J>>,
        now: Time,
        decisions: &mut Decisions<J>,
    ) -> Result<(), CoreError> {
        let after = self.config.probe_after;
        let slot = self.slot(lane)?;
        let (jobs, found) = match (slot.state, &batch) {
            (State::Running { jobs, .. }, Some(batch)) => (jobs, batch.len()),
            (State::Absent | State::Idle { .. } | State::Refilling { .. }, None) => (0, 0),
            (state, _) => return Err(unexpected(lane, "the loss", state)),
        };
        check_size(lane, jobs, found)?;
        let before = slot.state;
        slot.state = State::Lost {
            probe_at: now + after,
            after,
        };
        self.counters.lanes_lost += 1;
        if let (State::Refilling { count, .. }, Some(masks)) = (before, &mut self.masks) {
            masks.end(count, 0);
        }
        if let Some(mut batch) = batch {
            self.in_batches -= jobs;
            self.counters.returned += jobs as u64;
            self.queue.put_back(&mut batch, &mut decisions.dropped);
            batch.clear();
            self.spare.push(batch);
        }
        Ok(())
    }

    pub(super) fn refill_done(
        &mut self,
        lane: LaneId,
        made: usize,
        took: Span,
        now: Time,
    ) -> Result<(), CoreError> {
        let pause = self.config.probe_after;
        let slot = self.slot(lane)?;
        let State::Refilling { class, count } = slot.state else {
            return Err(unexpected(lane, "the end of a refill", slot.state));
        };
        slot.state = State::Idle { wait: None };
        slot.observe(class, made as f64, took);
        if made == 0 {
            slot.refill_after = now + pause;
        }
        if let Some(masks) = &mut self.masks {
            masks.end(count, made);
        }
        self.counters.masks_made += made as u64;
        Ok(())
    }

    pub(super) fn probed(&mut self, lane: LaneId, alive: bool, now: Time) -> Result<(), CoreError> {
        let longest = self.config.probe_after_max;
        let slot = self.slot(lane)?;
        let State::Probing { after } = slot.state else {
            return Err(unexpected(lane, "a probe's end", slot.state));
        };
        slot.state = if alive {
            State::Idle { wait: None }
        } else {
            let after = after.times(2).min(longest);
            State::Lost {
                probe_at: now + after,
                after,
            }
        };
        Ok(())
    }

    /// Has lost lanes tried whose time has come.
    pub(super) fn probe_lost(&mut self, now: Time, decisions: &mut Decisions<J>) {
        for (number, slot) in self.lanes.iter_mut().enumerate() {
            if let State::Lost { probe_at, after } = slot.state
                && probe_at <= now
                && self.ending == Ending::No
            {
                slot.state = State::Probing { after };
                self.counters.probes += 1;
                decisions.start.push((LaneId(number), Start::Probe));
            }
        }
    }
}

fn unexpected(lane: LaneId, event: &'static str, state: State) -> CoreError {
    CoreError::Unexpected {
        lane,
        event,
        state: state.name(),
    }
}

fn check_size(lane: LaneId, expected: usize, found: usize) -> Result<(), CoreError> {
    if expected == found {
        Ok(())
    } else {
        Err(CoreError::WrongBatch {
            lane,
            expected,
            found,
        })
    }
}
