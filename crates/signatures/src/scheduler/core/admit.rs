//! What happens to a job that comes.

use super::super::class::{Class, PerClass};
use super::super::job::{Dropped, Job, Meta, ORDINARY_WORK, Priority, Shed, Ticket};
use super::super::rank::Rank;
use super::super::time::{Span, Time};
use super::{Core, Decisions};

impl<J> Core<J> {
    /// Lets jobs in or drops them. The checks, in order: a lane for the class; expiry; a copy of what was let
    /// in as it claims to be; the quota, which decides the level; a copy of what was let in with that rank;
    /// the source's share and the room in the queue.
    pub(super) fn submit(&mut self, jobs: &mut Vec<Job<J>>, now: Time, decisions: &mut Decisions<J>) {
        self.counters.submitted += jobs.len() as u64;
        let mut come = PerClass::<(usize, usize)>::default();
        for Job { mut meta, payload } in jobs.drain(..) {
            meta.arrived = meta.arrived.min(now);
            let cost = self.cost(&meta);
            match self.admit(&meta, cost, now) {
                Ok((level, stranger)) => {
                    let (immediate, other) = come.of_mut(meta.class);
                    *if level.is_immediate() { immediate } else { other } += 1;
                    let number = self.next_number;
                    self.next_number += 1;
                    let ticket = Ticket {
                        meta,
                        number,
                        level,
                        attempts: 0,
                        stranger,
                        cost,
                    };
                    self.queue.push(ticket, payload, now, &mut decisions.dropped);
                }
                Err(why) => self.refused.push(Dropped {
                    job: Job { meta, payload },
                    why,
                }),
            }
        }
        for (class, (immediate, other)) in come.iter().filter(|(_, come)| **come != (0, 0)) {
            let arrivals = self.arrivals.of_mut(class);
            arrivals.immediate.note(*immediate, now);
            arrivals.other.note(*other, now);
        }
    }

    /// The lane time that a job takes, on the lane that takes least.
    fn cost(&self, meta: &Meta) -> Span {
        let lines = self.lanes.iter().filter(|slot| slot.is_live());
        let per_job_s = lines.filter_map(|slot| Some(slot.line(meta.class)?.per_job_s));
        let ordinary_s = per_job_s.reduce(f64::min).unwrap_or(0.0);
        Span::from_secs_f64(ordinary_s * f64::from(meta.work) / f64::from(ORDINARY_WORK))
    }

    /// The level at which a job of this cost is let in, and whether its sender is a stranger.
    fn admit(&mut self, meta: &Meta, cost: Span, now: Time) -> Result<(Priority, bool), Shed> {
        if !self.has_lane(meta.class) {
            return Err(Shed::NoLane);
        }
        if meta.expires <= now {
            return Err(Shed::Expired);
        }
        let (mut level, stranger) = (meta.priority, self.quotas.is_stranger(meta.sender, now));
        self.check_copy(meta, Rank::new(level, stranger), now)?;
        if level.is_immediate() && !self.quotas.allow(meta, cost, now) {
            self.counters.demoted += 1;
            level = Priority::URGENT;
            self.check_copy(meta, Rank::new(level, stranger), now)?;
        }
        if let Some(fingerprint) = meta.fingerprint {
            self.recent.let_in(fingerprint, Rank::new(level, stranger), now);
        }
        Ok((level, stranger))
    }

    fn check_copy(&mut self, meta: &Meta, rank: Rank, now: Time) -> Result<(), Shed> {
        let copy = meta
            .fingerprint
            .is_some_and(|fingerprint| self.recent.is_copy(fingerprint, rank, now));
        if copy { Err(Shed::Duplicate) } else { Ok(()) }
    }

    fn has_lane(&self, class: Class) -> bool {
        let plain = self
            .masks
            .filter(|masks| masks.limits.sign == class)
            .map(|masks| masks.limits.plain);
        let classes = std::iter::once(class).chain(plain);
        classes
            .into_iter()
            .any(|class| self.lanes.iter().any(|slot| slot.line(class).is_some()))
    }
}
