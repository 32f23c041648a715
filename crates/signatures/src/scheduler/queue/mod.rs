//! The priority queue: FIFO within a priority and class, aging, shares, and a defined shedding order.
//!
//! # Order
//! A job queues in the FIFO of its class and level. Levels 1 to 7 age: a job that has waited k times
//! [`QueueLimits::age_step`] counts as k levels more urgent, but never as immediate. The first job of a FIFO is its
//! front. The next job of a class is the front that counts as most urgent; among equally urgent fronts, the job that
//! arrived first. After 6 steps only jobs that arrived earlier precede a job of level 7, and the capacity bounds the
//! number of these jobs. Every job is therefore processed or shed after a bounded number of other jobs.
//!
//! Jobs of unknown senders ([`JobEntry::is_unknown_sender`]) have FIFOs of their own, selected by [`SenderFilter`].
//!
//! # Shedding
//! A job whose source has [`QueueLimits::share_max`] waiting jobs is dropped. Any other job is admitted; while the
//! queue then exceeds its capacity, jobs are shed in this order:
//! 1. all expired jobs;
//! 2. jobs of unknown senders ([`JobEntry::is_unknown_sender`]) at any level except immediate: the newest job of the
//!    source with the most such jobs; among equal sources, of the source whose count changed most recently;
//! 3. jobs of known senders at the least urgent level (as admitted, not as aged), selected by source like jobs of
//!    unknown senders;
//! 4. immediate jobs, first of unknown senders, selected in the same manner.
//!
//! The shed job may be the new job itself. Forgeries from invented sources that are not immediate therefore drop no job
//! of known senders; quotas bound the immediate forgeries. An immediate job is shed only if the queue contains only
//! immediate jobs. Jobs of lost batches are at the front of their class. Immediate jobs of lost batches precede all
//! other immediate jobs; the other jobs of lost batches precede all other jobs that are not immediate. Jobs of lost
//! batches are never shed for capacity: the queue may exceed its capacity by the number of these jobs.

mod arena;
mod by_source;
mod expiry;
mod node;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use self::arena::{Arena, Links, List};
use self::by_source::JobsBySource;
use self::expiry::Expiries;
use self::node::Node;
use super::class::{Class, PerClass};
use super::job::{Batch, BatchLimit, Dropped, Job, JobEntry, PerPriority, Priority, ShedReason};
use super::rank::Rank;
use super::time::{Span, Time};

/// Maximum capacity of a queue: slots have numbers of 32 bits, with a large margin.
pub const CAPACITY_MAX: usize = 1 << 24;

/// Limits of a queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    /// Maximum number of waiting jobs, 1 to [`CAPACITY_MAX`].
    pub capacity: usize,
    /// Maximum number of waiting jobs of one source.
    pub share_max: usize,
    /// Waiting time after which a job counts as one level more urgent. Zero: jobs do not age.
    pub age_step: Span,
    /// Maximum number of lost batches after which a job is retried.
    pub attempts_max: u8,
}

/// Senders whose jobs are selected.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SenderFilter {
    /// Senders with a recent valid message.
    Known,
    /// All other senders.
    Unknown,
    /// All senders.
    Both,
}

impl SenderFilter {
    const fn for_sender(is_unknown: bool) -> Self {
        if is_unknown { Self::Unknown } else { Self::Known }
    }

    /// The FIFOs of this selection.
    fn fifos(self) -> impl Iterator<Item = Self> {
        [Self::Known, Self::Unknown]
            .into_iter()
            .filter(move |fifo| self == Self::Both || self == *fifo)
    }
}

/// The FIFOs of a class and level.
#[derive(Default)]
struct Fifos {
    known: List,
    unknown: List,
}

impl Fifos {
    fn of(&self, senders: SenderFilter) -> &List {
        if senders == SenderFilter::Unknown {
            &self.unknown
        } else {
            &self.known
        }
    }

    fn of_mut(&mut self, senders: SenderFilter) -> &mut List {
        if senders == SenderFilter::Unknown {
            &mut self.unknown
        } else {
            &mut self.known
        }
    }
}

/// The next job of a class, except immediate jobs and jobs of lost batches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NextJob {
    /// The level, with aging.
    pub level: Priority,
    /// Position in the order of arrival.
    pub number: u64,
}

/// Jobs of lost batches, in the order in which they will be processed.
#[derive(Debug)]
struct ReturnedJobs<J> {
    immediate: VecDeque<(JobEntry, J)>,
    other: VecDeque<(JobEntry, J)>,
}

impl<J> ReturnedJobs<J> {
    fn of(&self, immediate: bool) -> &VecDeque<(JobEntry, J)> {
        if immediate { &self.immediate } else { &self.other }
    }

    fn of_mut(&mut self, immediate: bool) -> &mut VecDeque<(JobEntry, J)> {
        if immediate {
            &mut self.immediate
        } else {
            &mut self.other
        }
    }
}

/// The queue. Every operation on one job is O(1), except for the comparison of levels and the heap of expiries.
pub struct Queue<J> {
    limits: QueueLimits,
    nodes: Arena<Node<J>>,
    fifos: PerClass<PerPriority<Fifos>>,
    by_source: JobsBySource,
    expiries: Expiries,
    returned: PerClass<ReturnedJobs<J>>,
    immediate: usize,
    other: usize,
    /// Numbers of waiting jobs of known senders and of unknown senders, without immediate jobs and jobs of lost
    /// batches.
    normal_counts: [usize; 2],
    /// Lane time of the waiting jobs of unknown senders.
    unknown_cost: Span,
}

impl<J> Queue<J> {
    /// An empty queue. The capacity is clamped to its range.
    pub fn new(limits: QueueLimits) -> Self {
        Self {
            limits: QueueLimits {
                capacity: limits.capacity.clamp(1, CAPACITY_MAX),
                ..limits
            },
            nodes: Arena::new(),
            fifos: PerClass::default(),
            by_source: JobsBySource::new(),
            expiries: Expiries::default(),
            returned: PerClass::from_fn(|_| ReturnedJobs {
                immediate: VecDeque::new(),
                other: VecDeque::new(),
            }),
            immediate: 0,
            other: 0,
            normal_counts: [0; 2],
            unknown_cost: Span::ZERO,
        }
    }

    /// Number of waiting jobs.
    pub fn len(&self) -> usize {
        self.immediate + self.other
    }

    /// Whether no job waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waiting immediate jobs.
    pub fn immediate(&self) -> usize {
        self.immediate
    }

    /// Other waiting jobs.
    pub fn other(&self) -> usize {
        self.other
    }

    /// Number of waiting jobs of a class, without immediate jobs and jobs of lost batches.
    pub fn waiting(&self, class: Class) -> usize {
        let levels = self.fifos.of(class).iter().skip(1);
        levels
            .map(|(_, fifos)| fifos.known.len() + fifos.unknown.len())
            .sum()
    }

    /// Whether normal jobs of both known and unknown senders wait.
    pub fn both_wait(&self) -> bool {
        self.normal_counts.iter().all(|count| *count > 0)
    }

    fn normal_count_mut(&mut self, is_unknown: bool) -> &mut usize {
        let [known, unknown] = &mut self.normal_counts;
        if is_unknown { unknown } else { known }
    }

    /// The lane time of the waiting jobs of unknown senders, without jobs of lost batches.
    pub fn unknown_cost(&self) -> Span {
        self.unknown_cost
    }

    /// Admits a job, and drops the new job or other jobs if a limit is exceeded. Sequence numbers must ascend.
    pub fn push(&mut self, entry: JobEntry, payload: J, now: Time, shed: &mut Vec<Dropped<J>>) {
        if self.by_source.total(entry.meta.source) >= self.limits.share_max {
            shed.push(dropped(entry, payload, ShedReason::SourceShare));
            return;
        }
        self.insert(entry, payload);
        if self.len() > self.limits.capacity {
            self.purge(now, shed);
            while self.len() > self.limits.capacity && self.shed_next(shed) {}
        }
    }

    fn insert(&mut self, entry: JobEntry, payload: J) {
        let JobEntry {
            meta,
            level,
            sequence: number,
            is_unknown_sender: is_unknown,
            ..
        } = entry;
        if is_unknown {
            self.unknown_cost += entry.cost;
        }
        let node = Node {
            entry,
            payload,
            source_number: 0,
            fifo: Links::default(),
            source_link: Links::default(),
        };
        let id = self.nodes.add(node);
        let fifos = self.fifos.of_mut(meta.class).of_mut(level);
        let fifo = fifos.of_mut(SenderFilter::for_sender(is_unknown));
        fifo.push_back(&mut self.nodes, id, |node| &mut node.fifo);
        let source_number = self
            .by_source
            .add(&mut self.nodes, id, meta.source, Rank::of(&entry));
        if let Some(node) = self.nodes.get_mut(id) {
            node.source_number = source_number;
        }
        let nodes = &self.nodes;
        self.expiries
            .add(meta.expires, number, id, nodes.len(), |number, id| {
                waits(nodes, number, id)
            });
        *self.count_mut(level) += 1;
        if !level.is_immediate() {
            *self.normal_count_mut(is_unknown) += 1;
        }
    }

    /// Removes a job from all lists.
    fn remove(&mut self, id: u32) -> Option<(JobEntry, J)> {
        let node = self.nodes.get(id)?;
        let (entry, source_number) = (node.entry, node.source_number);
        let JobEntry {
            meta,
            level,
            is_unknown_sender: is_unknown,
            ..
        } = entry;
        if is_unknown {
            self.unknown_cost = self.unknown_cost.saturating_sub(entry.cost);
        }
        let fifos = self.fifos.of_mut(meta.class).of_mut(level);
        let fifo = fifos.of_mut(SenderFilter::for_sender(is_unknown));
        fifo.remove(&mut self.nodes, id, |node| &mut node.fifo);
        self.by_source
            .remove(&mut self.nodes, id, source_number, Rank::of(&entry));
        *self.count_mut(level) -= 1;
        if !level.is_immediate() {
            *self.normal_count_mut(is_unknown) -= 1;
        }
        let node = self.nodes.remove(id)?;
        Some((node.entry, node.payload))
    }

    fn count_mut(&mut self, level: Priority) -> &mut usize {
        if level.is_immediate() {
            &mut self.immediate
        } else {
            &mut self.other
        }
    }

    /// Drops expired jobs. [`Queue::take`] and [`Queue::next_job`] ignore expiries, so call `purge` first.
    pub fn purge(&mut self, now: Time, shed: &mut Vec<Dropped<J>>) {
        while let Some((number, id)) = self.expiries.pop(now) {
            if waits(&self.nodes, number, id)
                && let Some((entry, payload)) = self.remove(id)
            {
                shed.push(dropped(entry, payload, ShedReason::Expired));
            }
        }
    }

    /// Lower bound of the next expiry.
    pub fn next_expiry(&self) -> Time {
        self.expiries.next()
    }

    fn shed_next(&mut self, shed: &mut Vec<Dropped<J>>) -> bool {
        let victim = Rank::all().find_map(|rank| self.by_source.newest_job_of_largest_source(rank));
        let Some((entry, payload)) = victim.and_then(|id| self.remove(id)) else {
            return false;
        };
        shed.push(dropped(entry, payload, ShedReason::QueueFull));
        true
    }

    /// The level of a job with aging.
    fn aged_level(&self, level: Priority, arrived: Time, now: Time) -> Priority {
        let (waited, step) = (now.saturating_since(arrived), self.limits.age_step);
        if waited < step || step == Span::ZERO || level <= Priority::URGENT {
            return level;
        }
        let steps = waited.as_nanos() / step.as_nanos();
        let steps = steps.min(u64::from(Priority::LEAST.number())) as u8;
        Priority::new(level.number().saturating_sub(steps)).max(Priority::URGENT)
    }

    fn front(&self, class: Class, level: Priority, fifo: SenderFilter) -> Option<&JobEntry> {
        let id = self.fifos.of(class).of(level).of(fifo).first()?;
        Some(&self.nodes.get(id)?.entry)
    }

    fn next_job_of_fifo(
        &self,
        class: Class,
        level: Priority,
        fifo: SenderFilter,
        now: Time,
    ) -> Option<NextJob> {
        let entry = self.front(class, level, fifo)?;
        Some(NextJob {
            level: self.aged_level(level, entry.meta.arrived, now),
            number: entry.sequence,
        })
    }

    /// The first job of each FIFO of a class, in no particular order.
    fn heads(
        &self,
        class: Class,
        senders: SenderFilter,
        now: Time,
    ) -> impl Iterator<Item = (NextJob, Priority, SenderFilter)> {
        let fifos = senders
            .fifos()
            .flat_map(|fifo| Priority::all().skip(1).map(move |level| (level, fifo)));
        fifos.filter_map(move |(level, fifo)| {
            Some((self.next_job_of_fifo(class, level, fifo, now)?, level, fifo))
        })
    }

    /// The next job of a class.
    pub fn next_job(&self, class: Class, senders: SenderFilter, now: Time) -> Option<NextJob> {
        self.heads(class, senders, now).map(|(head, ..)| head).min()
    }

    /// The earliest arrival and the earliest deadline among the fronts of a class's FIFOs. The arrival is the earliest
    /// arrival of all jobs of the class. The deadline is the earliest deadline of all jobs of the class if all jobs of
    /// a level have the same time from arrival to deadline.
    pub fn earliest_times(&self, class: Class) -> Option<(Time, Time)> {
        let first_entries = SenderFilter::Both.fifos().flat_map(|fifo| {
            Priority::all()
                .skip(1)
                .filter_map(move |level| self.front(class, level, fifo))
        });
        let times = first_entries.map(|entry| (entry.meta.arrived, entry.meta.deadline));
        times.reduce(|a, b| (a.0.min(b.0), a.1.min(b.1)))
    }

    /// Moves jobs of a class, except immediate jobs, into a batch up to the limit; the most urgent job first.
    pub fn take(
        &mut self,
        class: Class,
        senders: SenderFilter,
        limit: BatchLimit,
        now: Time,
        batch: &mut Batch<J>,
    ) {
        loop {
            let mut heads: Vec<_> = self.heads(class, senders, now).collect();
            heads.sort_unstable();
            let Some((_, level, fifo)) = heads.first().copied() else {
                return;
            };
            // Drains a FIFO until the front of another FIFO is next.
            let second = heads.get(1).map(|(head, ..)| *head);
            while let Some(head) = self.next_job_of_fifo(class, level, fifo, now)
                && second.is_none_or(|second| head < second)
            {
                if !self.take_front(class, level, fifo, limit, batch) {
                    return;
                }
            }
        }
    }

    /// Moves the first job of a FIFO into a batch, if the batch has room for it.
    fn take_front(
        &mut self,
        class: Class,
        level: Priority,
        fifo: SenderFilter,
        limit: BatchLimit,
        batch: &mut Batch<J>,
    ) -> bool {
        let has_room = self
            .front(class, level, fifo)
            .is_some_and(|front| limit.has_room(batch, front));
        let front = self.fifos.of(class).of(level).of(fifo).first();
        let Some((entry, payload)) = front.filter(|_| has_room).and_then(|id| self.remove(id)) else {
            return false;
        };
        batch.push(entry, payload);
        true
    }

    /// The sequence number of the first immediate job of a class, of known or of unknown senders; 0 if a job of a lost
    /// batch waits, which counts as a job of a known sender.
    pub fn immediate_head(&self, class: Class, senders: SenderFilter) -> Option<u64> {
        if senders == SenderFilter::Known && !self.returned.of(class).immediate.is_empty() {
            return Some(0);
        }
        self.front(class, Priority::IMMEDIATE, senders)
            .map(|entry| entry.sequence)
    }

    /// Moves immediate jobs of a class into a batch, up to the limit of the batch. For unknown senders, moves their
    /// jobs. For known senders, moves jobs of lost batches first, then the jobs of known senders.
    pub fn take_immediate(
        &mut self,
        class: Class,
        senders: SenderFilter,
        limit: BatchLimit,
        now: Time,
        batch: &mut Batch<J>,
        shed: &mut Vec<Dropped<J>>,
    ) {
        if senders == SenderFilter::Known {
            self.take_returned(class, true, limit, now, batch, shed);
        }
        while self.take_front(class, Priority::IMMEDIATE, senders, limit, batch) {}
    }

    /// Puts the jobs of a lost batch back to the front of the queue, in the order of the batch. Drops jobs that were in
    /// too many lost batches.
    pub fn put_back(&mut self, batch: &mut Batch<J>, shed: &mut Vec<Dropped<J>>) {
        let jobs = batch.entries.drain(..).zip(batch.payloads.drain(..));
        for (mut entry, payload) in jobs.rev() {
            entry.attempts = entry.attempts.saturating_add(1);
            if entry.attempts > self.limits.attempts_max {
                shed.push(dropped(entry, payload, ShedReason::LanesFailed));
                continue;
            }
            let immediate = entry.level.is_immediate();
            *if immediate {
                &mut self.immediate
            } else {
                &mut self.other
            } += 1;
            let returned = self.returned.of_mut(entry.meta.class).of_mut(immediate);
            returned.push_front((entry, payload));
        }
    }

    /// The sequence number of the first job of a lost batch of a class.
    pub fn returned_head(&self, class: Class, immediate: bool) -> Option<u64> {
        self.returned
            .of(class)
            .of(immediate)
            .front()
            .map(|(entry, _)| entry.sequence)
    }

    /// Moves jobs of lost batches of a class into a batch up to the limit.
    pub fn take_returned(
        &mut self,
        class: Class,
        immediate: bool,
        limit: BatchLimit,
        now: Time,
        batch: &mut Batch<J>,
        shed: &mut Vec<Dropped<J>>,
    ) {
        let returned = self.returned.of_mut(class).of_mut(immediate);
        let mut removed = 0;
        while batch.len() < limit.jobs
            && returned
                .front()
                .is_some_and(|(entry, _)| entry.meta.expires <= now || limit.has_room(batch, entry))
            && let Some((entry, payload)) = returned.pop_front()
        {
            removed += 1;
            if entry.meta.expires <= now {
                shed.push(dropped(entry, payload, ShedReason::Expired));
            } else {
                batch.push(entry, payload);
            }
        }
        *if immediate {
            &mut self.immediate
        } else {
            &mut self.other
        } -= removed;
    }

    /// Empties the queue: jobs of lost batches first, then class by class and level by level.
    pub fn drain(&mut self, jobs: &mut Vec<Job<J>>) {
        let mut batch = Batch::new(Class::RSA_VERIFY);
        for class in Class::all() {
            for immediate in [true, false] {
                let returned = self.returned.of_mut(class).of_mut(immediate);
                returned
                    .drain(..)
                    .for_each(|(entry, payload)| batch.push(entry, payload));
            }
        }
        for class in Class::all() {
            for level in Priority::all() {
                for fifo in SenderFilter::Both.fifos() {
                    while self.take_front(class, level, fifo, BatchLimit::for_jobs(usize::MAX), &mut batch) {}
                }
            }
        }
        (self.immediate, self.other) = (0, 0);
        let pairs = batch.entries.into_iter().zip(batch.payloads);
        jobs.extend(pairs.map(|(entry, payload)| Job {
            meta: entry.meta,
            payload,
        }));
    }
}

fn waits<J>(nodes: &Arena<Node<J>>, number: u64, id: u32) -> bool {
    nodes.get(id).is_some_and(|node| node.entry.sequence == number)
}

fn dropped<J>(entry: JobEntry, payload: J, reason: ShedReason) -> Dropped<J> {
    Dropped {
        job: Job {
            meta: entry.meta,
            payload,
        },
        reason,
    }
}
