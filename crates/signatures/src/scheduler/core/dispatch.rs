//! Assignment of jobs to lanes.
//!
//! | jobs | go to |
//! |---|---|
//! | immediate | a CPU lane, reserved lanes first, known senders before unknown senders; an accelerator only while no CPU lane supports the class |
//! | of lost batches | a CPU lane; a reserved lane while no other CPU lane supports the class; an accelerator while no CPU lane does |
//! | others | a CPU lane in slices; an accelerator as the policy decides; a reserved lane while no other lane supports the class |
//!
//! A slice is a time: a job that takes longer than a slice is processed alone. While normal jobs of both known and unknown senders
//! wait, known senders get three quarters of a CPU lane's time ([`TimeShares`](super::slot::TimeShares)).
//!
//! An idle lane with refill enabled makes masks.

use super::super::class::Class;
use super::super::job::{Batch, BatchLimit, Dropped, ORDINARY_WORK, Priority};
use super::super::lane::{LaneId, LaneKind};
use super::super::model::CostModel;
use super::super::policy::{PolicyDecision, PolicyInput};
use super::super::queue::{NextJob, SenderFilter};
use super::super::time::{Span, Time};
use super::slot::{Slot, State, Wait};
use super::{Core, Decisions, LaneTask, ShutdownState};

/// How a lane can currently process jobs of a class.
#[derive(Clone, Copy)]
struct LaneCapability {
    /// The executed class: the class itself, or signing without masks instead of signing with masks.
    class: Class,
    cost_model: CostModel,
    /// Maximum number of jobs: for signing with masks, the number of available masks.
    jobs_max: usize,
}

/// Origin of the jobs of a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum JobOrigin {
    Immediate(SenderFilter),
    Returned,
    Normal(SenderFilter),
}

impl JobOrigin {
    fn is_normal(self) -> bool {
        matches!(self, Self::Normal(_))
    }

    fn is_immediate(self) -> bool {
        matches!(self, Self::Immediate(_))
    }
}

impl<J> Core<J> {
    /// Assigns work to idle lanes.
    pub(super) fn dispatch(&mut self, now: Time, decisions: &mut Decisions<J>) {
        if self.shutdown == ShutdownState::Stopped {
            return;
        }
        for index in 0..self.lane_order.len() {
            let Some(&lane) = self.lane_order.get(index) else {
                return;
            };
            let Some(slot) = self.lanes.get_mut(lane.0) else {
                return;
            };
            if let State::Idle { wait } = &mut slot.state {
                *wait = None;
                if let Some(task) = self.next_task(lane, now, &mut decisions.dropped) {
                    decisions.start.push((lane, task));
                }
            }
        }
    }

    /// The next task of an idle lane, if there is one.
    fn next_task(&mut self, lane: LaneId, now: Time, dropped: &mut Vec<Dropped<J>>) -> Option<LaneTask<J>> {
        let slot = self.lanes.get(lane.0)?;
        let takes_normal_first = slot.immediate_in_a_row >= self.config.immediate_in_a_row;
        let normal = match (slot.is_accelerator(), slot.shares.next()) {
            (true, _) => [Some(SenderFilter::Both), None],
            (false, SenderFilter::Unknown) => [Some(SenderFilter::Unknown), Some(SenderFilter::Known)],
            (false, _) => [Some(SenderFilter::Known), Some(SenderFilter::Unknown)],
        };
        let [first, second] = normal.map(|senders| senders.map(JobOrigin::Normal));
        let [known, unknown] =
            [SenderFilter::Known, SenderFilter::Unknown].map(|senders| Some(JobOrigin::Immediate(senders)));
        let returned = Some(JobOrigin::Returned);
        let order = if takes_normal_first {
            [returned, first, second, known, unknown]
        } else {
            [known, unknown, returned, first, second]
        };
        for origin in order.into_iter().flatten() {
            if let Some((class, limit)) = self.next_jobs(lane, origin, now)
                && let Some(batch) = self.start_batch(lane, origin, class, limit, now, dropped)
            {
                return Some(LaneTask::Run(batch));
            }
        }
        self.refill(lane, now).map(LaneTask::Refill)
    }

    /// Class and size of the next batch of a lane from this origin, if any.
    fn next_jobs(&mut self, lane: LaneId, origin: JobOrigin, now: Time) -> Option<(Class, BatchLimit)> {
        let slot = self.lanes.get(lane.0)?;
        if origin.is_normal() && slot.is_accelerator() {
            let (class, count) = self.next_accelerated(lane, now)?;
            return Some((class, BatchLimit::for_jobs(count)));
        }
        let class = self.next_class(slot, origin, now)?;
        Some((class, self.slice(lane, class)?))
    }

    /// The class of the next job from this origin, for this lane.
    fn next_class(&self, slot: &Slot, origin: JobOrigin, now: Time) -> Option<Class> {
        let waits = if origin.is_immediate() {
            self.queue.immediate() > 0
        } else {
            self.queue.other() > 0
        };
        if !waits {
            return None;
        }
        let next = Class::all()
            .filter(|class| {
                self.capability(slot, *class).is_some() && self.may_take(slot.spec.kind, origin, *class)
            })
            .filter_map(|class| Some((self.head(origin, class, now)?, class)));
        let (_, class) = next.min()?;
        Some(class)
    }

    /// The first job of a class from this origin.
    fn head(&self, origin: JobOrigin, class: Class, now: Time) -> Option<NextJob> {
        let first = |number| NextJob {
            level: Priority::IMMEDIATE,
            number,
        };
        match origin {
            JobOrigin::Immediate(senders) => self.queue.immediate_head(class, senders).map(first),
            JobOrigin::Returned => self.queue.returned_head(class, false).map(first),
            JobOrigin::Normal(senders) => self.queue.next_job(class, senders, now),
        }
    }

    /// Whether a lane of this kind takes jobs of this origin and class; implements the table of the module
    /// documentation.
    fn may_take(&self, kind: LaneKind, origin: JobOrigin, class: Class) -> bool {
        let is_usable = |kind| {
            self.lanes.iter().any(|slot| {
                slot.spec.kind == kind && slot.is_usable() && self.capability(slot, class).is_some()
            })
        };
        match (kind, origin) {
            (LaneKind::Cpu, _)
            | (LaneKind::Reserved, JobOrigin::Immediate(_))
            | (LaneKind::Accelerator, JobOrigin::Normal(_)) => true,
            (LaneKind::Reserved, JobOrigin::Returned) => !is_usable(LaneKind::Cpu),
            (LaneKind::Reserved, JobOrigin::Normal(_)) => {
                !is_usable(LaneKind::Cpu) && !is_usable(LaneKind::Accelerator)
            }
            (LaneKind::Accelerator, _) => !is_usable(LaneKind::Cpu) && !is_usable(LaneKind::Reserved),
        }
    }

    /// How a lane can currently process jobs of a class; `None` if it cannot.
    fn capability(&self, slot: &Slot, class: Class) -> Option<LaneCapability> {
        let direct = slot.cost_model(class).map(|cost_model| LaneCapability {
            class,
            cost_model,
            jobs_max: usize::MAX,
        });
        let Some(masks) = self.masks.filter(|masks| masks.limits.sign == class) else {
            return direct;
        };
        let stock = masks.stock();
        match direct {
            Some(capability) if stock > 0 => Some(LaneCapability {
                jobs_max: stock,
                ..capability
            }),
            _ => {
                let class = masks.limits.plain;
                slot.cost_model(class).map(|cost_model| LaneCapability {
                    class,
                    cost_model,
                    jobs_max: usize::MAX,
                })
            }
        }
    }

    /// Limit of a batch within a slice. For ordinary jobs: a multiple of the grain, at least one grain. For other jobs:
    /// the same amount of work, at least one job. For an accelerator: only the maximum batch size.
    fn slice(&self, lane: LaneId, class: Class) -> Option<BatchLimit> {
        let slot = self.lanes.get(lane.0)?;
        if slot.is_accelerator() {
            return Some(BatchLimit::for_jobs(slot.spec.batch_max));
        }
        let jobs_in_slice = self
            .capability(slot, class)?
            .cost_model
            .jobs_within(self.config.slice);
        let grain = slot.spec.grain.max(1);
        let jobs = (jobs_in_slice - jobs_in_slice % grain).max(grain);
        Some(BatchLimit {
            jobs: jobs.min(slot.spec.batch_max),
            work: (jobs_in_slice.max(jobs) as u64).saturating_mul(ORDINARY_WORK.into()),
        })
    }

    /// Queries the policy for each class: first for the class with the most urgent next job, last for classes without
    /// waiting jobs. Returns the class and size of a batch, or stores when to query the policy next.
    fn next_accelerated(&mut self, lane: LaneId, now: Time) -> Option<(Class, usize)> {
        let slot = self.lanes.get(lane.0)?;
        let mut heads: [(Option<NextJob>, Class); Class::COUNT] = [(None, Class::RSA_VERIFY); Class::COUNT];
        for (head, class) in heads.iter_mut().zip(Class::all()) {
            *head = (
                self.capability(slot, class)
                    .and_then(|_| self.queue.next_job(class, SenderFilter::Both, now)),
                class,
            );
        }
        heads.sort_unstable_by_key(|(head, class)| (head.is_none(), *head, *class));
        let mut shortest = Wait {
            until: Time::NEVER,
            additional_jobs: usize::MAX,
        };
        for (head, class) in heads {
            match self.query_policy(lane, class, now) {
                Some(PolicyDecision::Take(count)) if head.is_some() => return Some((class, count)),
                Some(PolicyDecision::Wait {
                    until,
                    additional_jobs,
                }) => {
                    let until = if head.is_some() { until } else { Time::NEVER };
                    shortest = Wait {
                        until: shortest.until.min(until),
                        additional_jobs: shortest.additional_jobs.min(additional_jobs),
                    };
                }
                Some(PolicyDecision::Take(_)) => shortest.additional_jobs = 1,
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

    /// The policy's decision for a class; `None` if the lane does not support the class, or no job of the class has
    /// arrived yet.
    fn query_policy(&mut self, lane: LaneId, class: Class, now: Time) -> Option<PolicyDecision> {
        let input = self.policy_input(lane, class, now)?;
        // If CPU lanes also process jobs of the class, a job may wait longer than the usual maximum: up to twice the
        // accelerator's overhead.
        let overheads = Span::from_secs_f64(2.0 * input.cost.overhead_s);
        let wait_max = self.config.wait_max;
        let latest = input.oldest
            + if input.cpu_rate > 0.0 {
                wait_max.max(overheads)
            } else {
                wait_max
            };
        if self.shutdown != ShutdownState::Running {
            return Some(PolicyDecision::Take(input.batch_max));
        }
        Some(match self.policy.choose(&input) {
            PolicyDecision::Take(count) => PolicyDecision::Take(count.max(1)),
            PolicyDecision::Wait { .. } if input.waiting > 0 && latest <= now => {
                self.counters.waits_timed_out += 1;
                PolicyDecision::Take(input.batch_max)
            }
            PolicyDecision::Wait {
                until,
                additional_jobs,
            } => PolicyDecision::Wait {
                until: until.min(latest),
                additional_jobs: additional_jobs.max(1),
            },
        })
    }

    /// The input of the policy for a class; `None` if the lane does not support the class, or no job of the class has
    /// arrived yet.
    fn policy_input(&self, lane: LaneId, class: Class, now: Time) -> Option<PolicyInput> {
        let slot = self.lanes.get(lane.0)?;
        let capability = self.capability(slot, class)?;
        let arrivals = self.arrivals.of(class).other.per_s(now);
        let earliest_times = self
            .queue
            .earliest_times(class)
            .or((arrivals > 0.0).then_some((now, Time::NEVER)));
        let (oldest, deadline) = earliest_times?;
        let (cpu_rate, load) = self.cpu_rate_and_load(class, now);
        Some(PolicyInput {
            now,
            class,
            waiting: self.queue.waiting(class),
            oldest,
            deadline,
            cost: capability.cost_model,
            batch_max: slot.spec.batch_max.min(capability.jobs_max),
            cpu_rate,
            cpu_spare: cpu_rate * (1.0 - load).max(0.0),
            arrivals,
        })
    }

    /// Jobs of a class that the CPU lanes can process per second, and the fraction of the CPU lanes' time that all
    /// arrivals need.
    fn cpu_rate_and_load(&self, class: Class, now: Time) -> (f64, f64) {
        let (mut rate, mut count, mut needed) = (0.0, 0.0, 0.0);
        let mut first: Option<&Slot> = None;
        for (number, slot) in self.lanes.iter().enumerate() {
            if slot.spec.kind == LaneKind::Cpu
                && slot.is_usable()
                && let Some(capability) = self.capability(slot, class)
                && let Some(limit) = self.slice(LaneId(number), class)
            {
                let jobs = limit.jobs as f64;
                rate += jobs / capability.cost_model.seconds(jobs);
                count += 1.0;
                first = first.or(Some(slot));
            }
        }
        for (class, arrivals) in self.arrivals.iter() {
            let per_s = arrivals.immediate.per_s(now) + arrivals.other.per_s(now);
            if per_s > 0.0
                && let Some(cost_model) = first.and_then(|slot| slot.cost_model(class))
            {
                needed += per_s * cost_model.per_job_s;
            }
        }
        (rate, if count > 0.0 { needed / count } else { 0.0 })
    }

    /// Moves jobs into a batch of this lane, and marks the lane as running. `None` if all jobs have expired.
    fn start_batch(
        &mut self,
        lane: LaneId,
        origin: JobOrigin,
        class: Class,
        limit: BatchLimit,
        now: Time,
        dropped: &mut Vec<Dropped<J>>,
    ) -> Option<Batch<J>> {
        let slot = self.lanes.get(lane.0)?;
        let capability = self.capability(slot, class)?;
        let jobs = limit.jobs.min(capability.jobs_max).min(slot.spec.batch_max);
        let limit = BatchLimit { jobs, ..limit };
        let mut batch = self.spare_batches.pop().unwrap_or_else(|| Batch::new(class));
        batch.class = capability.class;
        match origin {
            JobOrigin::Immediate(senders) => {
                self.queue
                    .take_immediate(class, senders, limit, now, &mut batch, dropped);
            }
            JobOrigin::Returned => self
                .queue
                .take_returned(class, false, limit, now, &mut batch, dropped),
            JobOrigin::Normal(senders) => self.queue.take(class, senders, limit, now, &mut batch),
        }
        let jobs = batch.len();
        if jobs == 0 {
            self.spare_batches.push(batch);
            return None;
        }
        self.account_masks(class, capability.class, jobs);
        self.in_batches += jobs;
        self.counters.batches += 1;
        let work = batch.work();
        let both_wait = self.queue.both_wait();
        let slot = self.lanes.get_mut(lane.0)?;
        if let JobOrigin::Normal(senders) = origin {
            slot.shares
                .record(senders, capability.cost_model.seconds(work), both_wait);
        }
        slot.state = State::Running {
            class: capability.class,
            jobs,
            work,
        };
        slot.immediate_in_a_row = if origin.is_immediate() {
            slot.immediate_in_a_row + 1
        } else {
            0
        };
        Some(batch)
    }

    /// Counts the masks that a batch uses, or the jobs that are signed without a mask.
    fn account_masks(&mut self, requested: Class, executed: Class, jobs: usize) {
        let Some(masks) = self.masks.as_mut().filter(|masks| masks.limits.sign == requested) else {
            return;
        };
        if executed == requested {
            masks.consume(jobs);
        } else {
            self.counters.signed_unmasked += jobs as u64;
        }
    }

    /// Number of masks that an idle lane makes now, if any.
    fn refill(&mut self, lane: LaneId, now: Time) -> Option<usize> {
        let slot = self.lanes.get_mut(lane.0)?;
        let masks = self.masks.as_mut().filter(|_| {
            slot.spec.refills && slot.refill_after <= now && self.shutdown == ShutdownState::Running
        })?;
        let class = masks.limits.refill;
        let span = if slot.is_accelerator() {
            masks.limits.slice
        } else {
            self.config.slice
        };
        let jobs_in_span = slot.cost_model(class)?.jobs_within(span).max(slot.spec.grain);
        let count = masks.required().min(jobs_in_span).min(slot.spec.batch_max);
        if count == 0 {
            return None;
        }
        masks.start_refill(count);
        slot.state = State::Refilling { class, count };
        Some(count)
    }
}
