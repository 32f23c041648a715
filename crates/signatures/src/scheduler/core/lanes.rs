//! State of lanes.

use super::super::job::{Batch, JobEntry, Outcome};
use super::super::lane::LaneId;
use super::super::time::{Span, Time};
use super::slot::{Slot, State};
use super::{Core, CoreError, Decisions, LaneTask, ShutdownState};

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
        duration: Span,
        now: Time,
    ) -> Result<(), CoreError> {
        let slot = self.slot(lane)?;
        let State::Running { class, jobs, work } = slot.state else {
            return Err(unexpected(lane, "the end of a batch", slot.state));
        };
        check_size(lane, jobs, batch.len())?;
        check_size(lane, jobs, outcomes.len())?;
        slot.state = State::Idle { wait: None };
        slot.observe(class, work, duration);
        self.in_batches -= jobs;
        for (entry, outcome) in batch.entries.iter().zip(outcomes) {
            match outcome {
                Outcome::Accepted => self.counters.accepted += 1,
                Outcome::Rejected => self.counters.rejected += 1,
                Outcome::Discarded => self.counters.discarded += 1,
            }
            self.apply_outcome(entry, *outcome, now);
        }
        batch.clear();
        self.spare_batches.push(batch);
        Ok(())
    }

    /// Records what an outcome shows about the sender, and about copies.
    fn apply_outcome(&mut self, entry: &JobEntry, outcome: Outcome, now: Time) {
        match outcome {
            Outcome::Accepted => self.quotas.record_valid(&entry.meta, now),
            Outcome::Rejected => self.quotas.record_invalid(&entry.meta, now),
            Outcome::Discarded => {}
        }
        // For a known sender's message, the record of the admission suffices: only copies of a better rank, such as
        // immediate copies, are admitted.
        if let Some(fingerprint) = entry.meta.fingerprint
            && entry.is_unknown_sender
        {
            self.recent_messages.record_verified(fingerprint, now);
        }
    }

    pub(super) fn lane_lost(
        &mut self,
        lane: LaneId,
        batch: Option<Batch<J>>,
        now: Time,
        decisions: &mut Decisions<J>,
    ) -> Result<(), CoreError> {
        let delay = self.config.probe_after;
        let slot = self.slot(lane)?;
        let (jobs, returned) = match (slot.state, &batch) {
            (State::Running { jobs, .. }, Some(batch)) => (jobs, batch.len()),
            (State::Absent | State::Idle { .. } | State::Refilling { .. }, None) => (0, 0),
            (state, _) => return Err(unexpected(lane, "the loss", state)),
        };
        check_size(lane, jobs, returned)?;
        let previous = slot.state;
        slot.state = State::Lost {
            probe_at: now + delay,
            delay,
        };
        self.counters.lanes_lost += 1;
        if let (State::Refilling { count, .. }, Some(masks)) = (previous, &mut self.masks) {
            masks.finish_refill(count, 0);
        }
        if let Some(mut batch) = batch {
            self.in_batches -= jobs;
            self.counters.returned += jobs as u64;
            self.queue.put_back(&mut batch, &mut decisions.dropped);
            batch.clear();
            self.spare_batches.push(batch);
        }
        Ok(())
    }

    pub(super) fn refill_done(
        &mut self,
        lane: LaneId,
        made: usize,
        duration: Span,
        now: Time,
    ) -> Result<(), CoreError> {
        let pause = self.config.probe_after;
        let slot = self.slot(lane)?;
        let State::Refilling { class, count } = slot.state else {
            return Err(unexpected(lane, "the end of a refill", slot.state));
        };
        slot.state = State::Idle { wait: None };
        slot.observe(class, made as f64, duration);
        if made == 0 {
            slot.refill_after = now + pause;
        }
        if let Some(masks) = &mut self.masks {
            masks.finish_refill(count, made);
        }
        self.counters.masks_made += made as u64;
        Ok(())
    }

    pub(super) fn probed(&mut self, lane: LaneId, alive: bool, now: Time) -> Result<(), CoreError> {
        let after_max = self.config.probe_after_max;
        let slot = self.slot(lane)?;
        let State::Probing { delay } = slot.state else {
            return Err(unexpected(lane, "a probe's end", slot.state));
        };
        slot.state = if alive {
            State::Idle { wait: None }
        } else {
            let delay = delay.times(2).min(after_max);
            State::Lost {
                probe_at: now + delay,
                delay,
            }
        };
        Ok(())
    }

    /// Starts the probes of lost lanes whose time has come.
    pub(super) fn probe_lost(&mut self, now: Time, decisions: &mut Decisions<J>) {
        for (number, slot) in self.lanes.iter_mut().enumerate() {
            if let State::Lost { probe_at, delay } = slot.state
                && probe_at <= now
                && self.shutdown == ShutdownState::Running
            {
                slot.state = State::Probing { delay };
                self.counters.probes += 1;
                decisions.start.push((LaneId(number), LaneTask::Probe));
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
