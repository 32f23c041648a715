//! Who works on what next.
//!
//! | jobs | go to |
//! |---|---|
//! | immediate | a processor, reserved ones first, those of known senders before strangers'; an accelerator only while no processor can do them |
//! | of lost batches | a processor; a reserved one, then an accelerator, only while no other can do them |
//! | others | a processor in slices; an accelerator as the policy says; a reserved one while neither is there |
//!
//! A slice is a time: a job that takes more than one goes alone. While known senders and strangers both have others waiting, three
//! quarters of a processor's time are for the former ([`Shares`](super::lanes::Shares)).
//!
//! A lane that has nothing of these to do and refills makes masks.

use super::super::class::Class;
use super::super::job::{Batch, Dropped, ORDINARY_WORK, Priority, Room};
use super::super::lane::{LaneId, LaneKind};
use super::super::model::Line;
use super::super::policy::{Choice, View};
use super::super::queue::{Head, Share};
use super::super::time::{Span, Time};
use super::lanes::{Slot, State, Wait};
use super::{Core, Decisions, Ending, Start};

/// What a lane can do for a class now.
#[derive(Clone, Copy)]
struct Way {
    /// What it does: the class itself, or plain signing instead of signing with a mask.
    class: Class,
    line: Line,
    /// Jobs at most: those that have masks.
    jobs_max: usize,
}

/// Where jobs are taken from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Immediate(Share),
    Returned,
    Others(Share),
}

impl Origin {
    fn is_others(self) -> bool {
        matches!(self, Self::Others(_))
    }

    fn is_immediate(self) -> bool {
        matches!(self, Self::Immediate(_))
    }
}

impl<J> Core<J> {
    /// Gives idle lanes work.
    pub(super) fn dispatch(&mut self, now: Time, decisions: &mut Decisions<J>) {
        if self.ending == Ending::Stop {
            return;
        }
        for at in 0..self.order.len() {
            let Some(&lane) = self.order.get(at) else { return };
            let Some(slot) = self.lanes.get_mut(lane.0) else {
                return;
            };
            if let State::Idle { wait } = &mut slot.state {
                *wait = None;
                if let Some(start) = self.next_start(lane, now, &mut decisions.dropped) {
                    decisions.start.push((lane, start));
                }
            }
        }
    }

    fn next_start(&mut self, lane: LaneId, now: Time, dropped: &mut Vec<Dropped<J>>) -> Option<Start<J>> {
        let slot = self.lanes.get(lane.0)?;
        let others_first = slot.immediate_in_a_row >= self.config.immediate_in_a_row;
        let others = match (slot.is_accelerator(), slot.shares.next()) {
            (true, _) => [Some(Share::Both), None],
            (false, Share::Strangers) => [Some(Share::Strangers), Some(Share::Known)],
            (false, _) => [Some(Share::Known), Some(Share::Strangers)],
        };
        let [first, second] = others.map(|share| share.map(Origin::Others));
        let [known, strangers] = [Share::Known, Share::Strangers].map(|share| Some(Origin::Immediate(share)));
        let returned = Some(Origin::Returned);
        let order = if others_first {
            [returned, first, second, known, strangers]
        } else {
            [known, strangers, returned, first, second]
        };
        for from in order.into_iter().flatten() {
            if let Some((class, room)) = self.next_jobs(lane, from, now)
                && let Some(batch) = self.batch(lane, from, class, room, now, dropped)
            {
                return Some(Start::Run(batch));
            }
        }
        self.refill(lane, now).map(Start::Refill)
    }

    /// Of which class a lane takes how many jobs from there, if any.
    fn next_jobs(&mut self, lane: LaneId, from: Origin, now: Time) -> Option<(Class, Room)> {
        let slot = self.lanes.get(lane.0)?;
        if from.is_others() && slot.is_accelerator() {
            let (class, count) = self.next_accelerated(lane, now)?;
            return Some((class, Room::of_jobs(count)));
        }
        let class = self.next_class(slot, from, now)?;
        Some((class, self.slice(lane, class)?))
    }

    /// The class of the job that is next from there, for this lane.
    fn next_class(&self, slot: &Slot, from: Origin, now: Time) -> Option<Class> {
        let waits = if from.is_immediate() {
            self.queue.immediate() > 0
        } else {
            self.queue.other() > 0
        };
        if !waits {
            return None;
        }
        let next = Class::all()
            .filter(|class| self.way(slot, *class).is_some() && self.may_take(slot.spec.kind, from, *class))
            .filter_map(|class| Some((self.head(from, class, now)?, class)));
        let (_, class) = next.min()?;
        Some(class)
    }

    fn head(&self, from: Origin, class: Class, now: Time) -> Option<Head> {
        let first = |number| Head {
            level: Priority::IMMEDIATE,
            number,
        };
        match from {
            Origin::Immediate(share) => self.queue.immediate_head(class, share).map(first),
            Origin::Returned => self.queue.returned_head(class, false).map(first),
            Origin::Others(share) => self.queue.head(class, share, now),
        }
    }

    /// The table above.
    fn may_take(&self, kind: LaneKind, from: Origin, class: Class) -> bool {
        let live = |kind| {
            self.lanes
                .iter()
                .any(|slot| slot.spec.kind == kind && slot.is_live() && self.way(slot, class).is_some())
        };
        match (kind, from) {
            (LaneKind::Cpu, _)
            | (LaneKind::Reserved, Origin::Immediate(_))
            | (LaneKind::Accelerator, Origin::Others(_)) => true,
            (LaneKind::Reserved, Origin::Returned) => !live(LaneKind::Cpu),
            (LaneKind::Reserved, Origin::Others(_)) => !live(LaneKind::Cpu) && !live(LaneKind::Accelerator),
            (LaneKind::Accelerator, _) => !live(LaneKind::Cpu) && !live(LaneKind::Reserved),
        }
    }

    /// How a lane would do jobs of a class now.
    fn way(&self, slot: &Slot, class: Class) -> Option<Way> {
        let itself = slot.line(class).map(|line| Way {
            class,
            line,
            jobs_max: usize::MAX,
        });
        let Some(masks) = self.masks.filter(|masks| masks.limits.sign == class) else {
            return itself;
        };
        let stock = masks.stock();
        match itself {
            Some(way) if stock > 0 => Some(Way {
                jobs_max: stock,
                ..way
            }),
            _ => {
                let class = masks.limits.plain;
                slot.line(class).map(|line| Way {
                    class,
                    line,
                    jobs_max: usize::MAX,
                })
            }
        }
    }

    /// What a lane does within a slice: of ordinary jobs whole grains and at least one, of others the same work, and at least a job; for an
    /// accelerator, all.
    fn slice(&self, lane: LaneId, class: Class) -> Option<Room> {
        let slot = self.lanes.get(lane.0)?;
        if slot.is_accelerator() {
            return Some(Room::of_jobs(slot.spec.batch_max));
        }
        let within = self.way(slot, class)?.line.jobs_within(self.config.slice);
        let grain = slot.spec.grain.max(1);
        let jobs = (within - within % grain).max(grain);
        Some(Room {
            jobs: jobs.min(slot.spec.batch_max),
            work: (within.max(jobs) as u64).saturating_mul(ORDINARY_WORK.into()),
        })
    }

    /// Asks the policy class by class, the one first whose next job is most urgent; then about the classes of
    /// which nothing waits, to know when to ask again.
    fn next_accelerated(&mut self, lane: LaneId, now: Time) -> Option<(Class, usize)> {
        let slot = self.lanes.get(lane.0)?;
        let mut heads: [(Option<Head>, Class); Class::COUNT] = [(None, Class::RSA_VERIFY); Class::COUNT];
        for (head, class) in heads.iter_mut().zip(Class::all()) {
            *head = (
                self.way(slot, class)
                    .and_then(|_| self.queue.head(class, Share::Both, now)),
                class,
            );
        }
        heads.sort_unstable_by_key(|(head, class)| (head.is_none(), *head, *class));
        let mut shortest = Wait {
            until: Time::NEVER,
            more: usize::MAX,
        };
        for (head, class) in heads {
            match self.ask(lane, class, now) {
                Some(Choice::Take(count)) if head.is_some() => return Some((class, count)),
                Some(Choice::Wait { until, more }) => {
                    let until = if head.is_some() { until } else { Time::NEVER };
                    shortest = Wait {
                        until: shortest.until.min(until),
                        more: shortest.more.min(more),
                    };
                }
                Some(Choice::Take(_)) => shortest.more = 1,
                None => {}
            }
        }
        if let Some(slot) = self.lanes.get_mut(lane.0)
            && let State::Idle { wait } = &mut slot.state
        {
            *wait = Some(shortest);
        }
        None
    }

    /// None for a class that the lane cannot do, or of which none has come yet.
    fn ask(&mut self, lane: LaneId, class: Class, now: Time) -> Option<Choice> {
        let view = self.view(lane, class, now)?;
        // What processors work on anyway may wait until they would be done later than the accelerator.
        let overheads = Span::from_secs_f64(2.0 * view.line.overhead_s);
        let wait_max = self.config.wait_max;
        let latest = view.oldest
            + if view.cpu_rate > 0.0 {
                wait_max.max(overheads)
            } else {
                wait_max
            };
        if self.ending != Ending::No {
            return Some(Choice::Take(view.batch_max));
        }
        Some(match self.policy.choose(&view) {
            Choice::Take(count) => Choice::Take(count.max(1)),
            Choice::Wait { .. } if view.waiting > 0 && latest <= now => {
                self.counters.waits_ended += 1;
                Choice::Take(view.batch_max)
            }
            Choice::Wait { until, more } => Choice::Wait {
                until: until.min(latest),
                more: more.max(1),
            },
        })
    }

    fn view(&self, lane: LaneId, class: Class, now: Time) -> Option<View> {
        let slot = self.lanes.get(lane.0)?;
        let way = self.way(slot, class)?;
        let arrivals = self.arrivals.of(class).other.per_s(now);
        let fronts = self
            .queue
            .fronts(class)
            .or((arrivals > 0.0).then_some((now, Time::NEVER)));
        let (oldest, deadline) = fronts?;
        let (cpu_rate, load) = self.processors(class, now);
        Some(View {
            now,
            class,
            waiting: self.queue.waiting(class),
            oldest,
            deadline,
            line: way.line,
            batch_max: slot.spec.batch_max.min(way.jobs_max),
            cpu_rate,
            cpu_spare: cpu_rate * (1.0 - load).max(0.0),
            arrivals,
        })
    }

    /// Jobs of a class that the processors do per second, and the part of their time that all arrivals need.
    fn processors(&self, class: Class, now: Time) -> (f64, f64) {
        let (mut rate, mut count, mut needed) = (0.0, 0.0, 0.0);
        let mut first: Option<&Slot> = None;
        for (number, slot) in self.lanes.iter().enumerate() {
            if slot.spec.kind == LaneKind::Cpu
                && slot.is_live()
                && let Some(way) = self.way(slot, class)
                && let Some(room) = self.slice(LaneId(number), class)
            {
                let jobs = room.jobs as f64;
                rate += jobs / way.line.seconds(jobs);
                count += 1.0;
                first = first.or(Some(slot));
            }
        }
        for (class, arrivals) in self.arrivals.iter() {
            let per_s = arrivals.immediate.per_s(now) + arrivals.other.per_s(now);
            if per_s > 0.0
                && let Some(line) = first.and_then(|slot| slot.line(class))
            {
                needed += per_s * line.per_job_s;
            }
        }
        (rate, if count > 0.0 { needed / count } else { 0.0 })
    }

    /// Moves jobs into a batch of this lane, and notes that it runs it. None if all have expired meanwhile.
    fn batch(
        &mut self,
        lane: LaneId,
        from: Origin,
        class: Class,
        room: Room,
        now: Time,
        dropped: &mut Vec<Dropped<J>>,
    ) -> Option<Batch<J>> {
        let slot = self.lanes.get(lane.0)?;
        let way = self.way(slot, class)?;
        let jobs = room.jobs.min(way.jobs_max).min(slot.spec.batch_max);
        let room = Room { jobs, ..room };
        let mut batch = self.spare.pop().unwrap_or_else(|| Batch::new(class));
        batch.class = way.class;
        match from {
            Origin::Immediate(share) => {
                self.queue
                    .take_immediate(class, share, room, now, &mut batch, dropped);
            }
            Origin::Returned => self
                .queue
                .take_returned(class, false, room, now, &mut batch, dropped),
            Origin::Others(share) => self.queue.take(class, share, room, now, &mut batch),
        }
        let jobs = batch.len();
        if jobs == 0 {
            self.spare.push(batch);
            return None;
        }
        self.note_masks(class, way.class, jobs);
        self.in_batches += jobs;
        self.counters.batches += 1;
        let work = batch.work();
        let both_wait = self.queue.both_wait();
        let slot = self.lanes.get_mut(lane.0)?;
        if let Origin::Others(share) = from {
            slot.shares.note(share, way.line.seconds(work), both_wait);
        }
        slot.state = State::Running {
            class: way.class,
            jobs,
            work,
        };
        slot.immediate_in_a_row = if from.is_immediate() {
            slot.immediate_in_a_row + 1
        } else {
            0
        };
        Some(batch)
    }

    fn note_masks(&mut self, asked: Class, done_as: Class, jobs: usize) {
        let Some(masks) = self.masks.as_mut().filter(|masks| masks.limits.sign == asked) else {
            return;
        };
        if done_as == asked {
            masks.use_up(jobs);
        } else {
            self.counters.signed_plainly += jobs as u64;
        }
    }

    /// How many masks an idle lane makes now, if any.
    fn refill(&mut self, lane: LaneId, now: Time) -> Option<usize> {
        let slot = self.lanes.get_mut(lane.0)?;
        let masks = self
            .masks
            .as_mut()
            .filter(|_| slot.spec.refills && slot.refill_after <= now && self.ending == Ending::No)?;
        let class = masks.limits.refill;
        let span = if slot.is_accelerator() {
            masks.limits.slice
        } else {
            self.config.slice
        };
        let within = slot.line(class)?.jobs_within(span).max(slot.spec.grain);
        let count = masks.wanted().min(within).min(slot.spec.batch_max);
        if count == 0 {
            return None;
        }
        masks.begin(count);
        slot.state = State::Refilling { class, count };
        Some(count)
    }
}
