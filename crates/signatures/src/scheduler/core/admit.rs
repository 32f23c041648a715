//! Admission of submitted jobs.

use super::super::class::{Class, PerClass};
use super::super::job::{Dropped, Job, JobEntry, Meta, ORDINARY_WORK, Priority, ShedReason};
use super::super::rank::Rank;
use super::super::time::{Span, Time};
use super::{Core, Decisions};

impl<J> Core<J> {
    /// Admits or drops jobs. The checks, in order: whether a lane supports the class; expiry; whether the job is a
    /// copy, with the rank of its claimed level; the quota, which determines the level; if the quota changes the level,
    /// whether the job is a copy, with its new rank; the share of the source and the capacity of the queue.
    pub(super) fn submit(&mut self, jobs: &mut Vec<Job<J>>, now: Time, decisions: &mut Decisions<J>) {
        self.counters.submitted += jobs.len() as u64;
        let mut admitted = PerClass::<(usize, usize)>::default();
        for Job { mut meta, payload } in jobs.drain(..) {
            meta.arrived = meta.arrived.min(now);
            let cost = self.cost(&meta);
            match self.admit(&meta, cost, now) {
                Ok((level, is_unknown)) => {
                    let (immediate, other) = admitted.of_mut(meta.class);
                    *if level.is_immediate() { immediate } else { other } += 1;
                    let number = self.next_sequence;
                    self.next_sequence += 1;
                    let entry = JobEntry {
                        meta,
                        sequence: number,
                        level,
                        attempts: 0,
                        is_unknown_sender: is_unknown,
                        cost,
                    };
                    self.queue.push(entry, payload, now, &mut decisions.dropped);
                }
                Err(reason) => self.rejected_on_arrival.push(Dropped {
                    job: Job { meta, payload },
                    reason,
                }),
            }
        }
        for (class, (immediate, other)) in admitted.iter().filter(|(_, admitted)| **admitted != (0, 0)) {
            let arrivals = self.arrivals.of_mut(class);
            arrivals.immediate.record(*immediate, now);
            arrivals.other.record(*other, now);
        }
    }

    /// The lane time of a job, on the fastest lane.
    fn cost(&self, meta: &Meta) -> Span {
        let usable = self.lanes.iter().filter(|slot| slot.is_usable());
        let per_job_s = usable.filter_map(|slot| Some(slot.cost_model(meta.class)?.per_job_s));
        let ordinary_s = per_job_s.reduce(f64::min).unwrap_or(0.0);
        Span::from_secs_f64(ordinary_s * f64::from(meta.work) / f64::from(ORDINARY_WORK))
    }

    /// The level at which a job of this cost is admitted, and whether its sender is unknown.
    fn admit(&mut self, meta: &Meta, cost: Span, now: Time) -> Result<(Priority, bool), ShedReason> {
        if !self.has_lane(meta.class) {
            return Err(ShedReason::NoLane);
        }
        if meta.expires <= now {
            return Err(ShedReason::Expired);
        }
        let (mut level, is_unknown) = (meta.priority, self.quotas.is_unknown(meta.sender, now));
        self.check_copy(meta, Rank::new(level, is_unknown), now)?;
        if level.is_immediate() && !self.quotas.try_charge(meta, cost, now) {
            self.counters.demoted += 1;
            level = Priority::URGENT;
            self.check_copy(meta, Rank::new(level, is_unknown), now)?;
        }
        if let Some(fingerprint) = meta.fingerprint {
            self.recent_messages
                .record_admitted(fingerprint, Rank::new(level, is_unknown), now);
        }
        Ok((level, is_unknown))
    }

    /// Refuses a copy of a message that was admitted with the same or a better rank.
    fn check_copy(&mut self, meta: &Meta, rank: Rank, now: Time) -> Result<(), ShedReason> {
        let is_copy = meta
            .fingerprint
            .is_some_and(|fingerprint| self.recent_messages.is_copy(fingerprint, rank, now));
        if is_copy {
            Err(ShedReason::Duplicate)
        } else {
            Ok(())
        }
    }

    /// Whether any lane supports a class, or for signing with masks: signing without masks.
    fn has_lane(&self, class: Class) -> bool {
        let plain_class = self
            .masks
            .filter(|masks| masks.limits.sign == class)
            .map(|masks| masks.limits.plain);
        let classes = std::iter::once(class).chain(plain_class);
        classes
            .into_iter()
            .any(|class| self.lanes.iter().any(|slot| slot.cost_model(class).is_some()))
    }
}
