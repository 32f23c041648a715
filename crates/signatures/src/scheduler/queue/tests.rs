use std::collections::HashMap;

use super::super::job::{Meta, Source};
use super::super::testing::{RandomChoices, seeds};
use super::*;

/// Lane time of each job.
const COST: Span = Span::from_nanos(7);
const CLASSES: [Class; 3] = [Class::RSA_VERIFY, Class::P256_VERIFY, Class::RA_SIGN];

fn matches_filter(entry: &JobEntry, filter: SenderFilter) -> bool {
    match filter {
        SenderFilter::Known => !entry.is_unknown_sender,
        SenderFilter::Unknown => entry.is_unknown_sender,
        SenderFilter::Both => true,
    }
}

/// A batch limit for jobs of any work.
fn limit(jobs: usize) -> BatchLimit {
    BatchLimit::for_jobs(jobs)
}

/// Content of the reference batch.
#[derive(Default)]
struct ReferenceBatch {
    numbers: Vec<u64>,
    work: u64,
}

impl ReferenceBatch {
    fn add(&mut self, entry: &JobEntry, limit: BatchLimit) -> bool {
        let work = self.work + u64::from(entry.meta.work);
        let fits = self.numbers.len() < limit.jobs && (self.numbers.is_empty() || work <= limit.work);
        if fits {
            self.numbers.push(entry.sequence);
            self.work = work;
        }
        fits
    }
}

/// A reference implementation of the queue's rules with a plain list.
struct ReferenceQueue {
    limits: QueueLimits,
    waiting: Vec<JobEntry>,
    returned: Vec<JobEntry>,
    /// For each source and rank, the time of the last change of the number of jobs.
    changed: HashMap<(Source, (u8, u8)), u64>,
    clock: u64,
}

/// The rank of a job: immediate jobs precede the other jobs of known senders, which precede the other jobs of unknown
/// senders. Among immediate jobs, known senders precede unknown senders. Among the other jobs of known senders, the
/// level decides.
fn rank(entry: &JobEntry) -> (u8, u8) {
    match (entry.level.number(), entry.is_unknown_sender) {
        (0, is_unknown) => (0, u8::from(is_unknown)),
        (level, false) => (1, level),
        (_, true) => (2, 0),
    }
}

impl ReferenceQueue {
    fn new(limits: QueueLimits) -> Self {
        Self {
            limits,
            waiting: Vec::new(),
            returned: Vec::new(),
            changed: HashMap::new(),
            clock: 0,
        }
    }

    fn record_change(&mut self, entry: &JobEntry) {
        self.clock += 1;
        self.changed.insert((entry.meta.source, rank(entry)), self.clock);
    }

    fn leave(&mut self, number: u64) -> JobEntry {
        let index = self
            .waiting
            .iter()
            .position(|entry| entry.sequence == number)
            .unwrap();
        let entry = self.waiting.remove(index);
        self.record_change(&entry);
        entry
    }

    fn push(&mut self, entry: JobEntry, now: Time) -> Vec<(u64, ShedReason)> {
        let same_source = self
            .waiting
            .iter()
            .filter(|other| other.meta.source == entry.meta.source);
        if same_source.count() >= self.limits.share_max {
            return vec![(entry.sequence, ShedReason::SourceShare)];
        }
        self.waiting.push(entry);
        self.record_change(&entry);
        let mut shed = Vec::new();
        if self.waiting.len() + self.returned.len() > self.limits.capacity {
            shed = self.purge(now);
            while self.waiting.len() + self.returned.len() > self.limits.capacity && !self.waiting.is_empty()
            {
                let victim = self.victim();
                self.leave(victim);
                shed.push((victim, ShedReason::QueueFull));
            }
        }
        shed
    }

    fn victim(&self) -> u64 {
        let last_rank = self.waiting.iter().map(rank).max().unwrap();
        let entries = || self.waiting.iter().filter(move |entry| rank(entry) == last_rank);
        let count = |source| entries().filter(|entry| entry.meta.source == source).count();
        let order = |entry: &&JobEntry| {
            let source = entry.meta.source;
            (count(source), self.changed[&(source, last_rank)], entry.sequence)
        };
        entries().max_by_key(order).unwrap().sequence
    }

    fn purge(&mut self, now: Time) -> Vec<(u64, ShedReason)> {
        let mut expired: Vec<_> = self
            .waiting
            .iter()
            .filter(|entry| entry.meta.expires <= now)
            .copied()
            .collect();
        expired.sort_by_key(|entry| (entry.meta.expires, entry.sequence));
        expired
            .iter()
            .map(|entry| (self.leave(entry.sequence).sequence, ShedReason::Expired))
            .collect()
    }

    fn effective_level(&self, entry: &JobEntry, now: Time) -> u8 {
        let waited = now.saturating_since(entry.meta.arrived).as_nanos() / self.limits.age_step.as_nanos();
        entry.level.number().saturating_sub(waited.min(7) as u8).max(1)
    }

    fn take(&mut self, class: Class, filter: SenderFilter, limit: BatchLimit, now: Time) -> Vec<u64> {
        let next = |model: &Self| {
            let own_entries = model
                .waiting
                .iter()
                .filter(|entry| entry.meta.class == class && matches_filter(entry, filter));
            // Only the first job of each level, of known and of unknown senders, can be next.
            let first_entries = own_entries
                .filter(|entry| !entry.level.is_immediate())
                .filter(|entry| {
                    !model.waiting.iter().any(|earlier| {
                        (earlier.meta.class, earlier.level, earlier.is_unknown_sender)
                            == (class, entry.level, entry.is_unknown_sender)
                            && earlier.sequence < entry.sequence
                    })
                });
            first_entries
                .min_by_key(|entry| (model.effective_level(entry, now), entry.sequence))
                .copied()
        };
        let mut batch = ReferenceBatch::default();
        while let Some(entry) = next(self)
            && batch.add(&entry, limit)
        {
            self.leave(entry.sequence);
        }
        batch.numbers
    }

    fn take_returned(
        &mut self,
        class: Class,
        immediate: bool,
        limit: BatchLimit,
        now: Time,
    ) -> (ReferenceBatch, Vec<(u64, ShedReason)>) {
        let (mut batch, mut shed) = (ReferenceBatch::default(), Vec::new());
        while batch.numbers.len() < limit.jobs
            && let Some(index) = self
                .returned
                .iter()
                .position(|entry| entry.meta.class == class && entry.level.is_immediate() == immediate)
        {
            let entry = self.returned[index];
            if entry.meta.expires <= now {
                shed.push((entry.sequence, ShedReason::Expired));
            } else if !batch.add(&entry, limit) {
                break;
            }
            self.returned.remove(index);
        }
        (batch, shed)
    }

    fn take_immediate(
        &mut self,
        class: Class,
        filter: SenderFilter,
        limit: BatchLimit,
        now: Time,
    ) -> (Vec<u64>, Vec<(u64, ShedReason)>) {
        let (mut batch, shed) = match filter {
            SenderFilter::Known => self.take_returned(class, true, limit, now),
            _ => Default::default(),
        };
        while let Some(first) = self
            .waiting
            .iter()
            .find(|entry| {
                entry.meta.class == class && entry.level.is_immediate() && matches_filter(entry, filter)
            })
            .copied()
            && batch.add(&first, limit)
        {
            self.leave(first.sequence);
        }
        (batch.numbers, shed)
    }

    fn put_back(&mut self, entries: &[JobEntry]) -> Vec<(u64, ShedReason)> {
        let mut shed = Vec::new();
        let mut retried = Vec::new();
        for mut entry in entries.iter().copied() {
            entry.attempts += 1;
            if entry.attempts > self.limits.attempts_max {
                shed.push((entry.sequence, ShedReason::LanesFailed));
            } else {
                retried.push(entry);
            }
        }
        shed.reverse();
        retried.append(&mut self.returned);
        self.returned = retried;
        shed
    }
}

struct QueuePair {
    queue: Queue<u64>,
    model: ReferenceQueue,
    now: Time,
    number: u64,
    batches: Vec<Batch<u64>>,
}

impl QueuePair {
    fn new(limits: QueueLimits) -> Self {
        let now = Time::from_nanos(1_000);
        Self {
            queue: Queue::new(limits),
            model: ReferenceQueue::new(limits),
            now,
            number: 0,
            batches: Vec::new(),
        }
    }

    fn push(
        &mut self,
        class: Class,
        level: u8,
        source: u64,
        expires_in: Option<u64>,
    ) -> Vec<(u64, ShedReason)> {
        let level = Priority::new(level);
        let mut meta = Meta::new(class, level, Source(source), self.now);
        meta.expires = expires_in.map_or(Time::NEVER, |span| self.now + Span::from_nanos(span));
        self.push_as(meta, false)
    }

    fn push_as(&mut self, meta: Meta, is_unknown: bool) -> Vec<(u64, ShedReason)> {
        self.number += 1;
        let entry = JobEntry {
            meta,
            sequence: self.number,
            level: meta.priority,
            attempts: 0,
            is_unknown_sender: is_unknown,
            cost: COST,
        };
        let mut shed = Vec::new();
        self.queue.push(entry, self.number, self.now, &mut shed);
        let shed = reasons(shed);
        assert_eq!(shed, self.model.push(entry, self.now), "pushing {}", self.number);
        self.assert_equal();
        shed
    }

    fn take(&mut self, class: Class, count: usize) -> Vec<u64> {
        self.take_filtered(class, SenderFilter::Both, limit(count))
    }

    fn take_filtered(&mut self, class: Class, filter: SenderFilter, limit: BatchLimit) -> Vec<u64> {
        let mut batch = Batch::new(class);
        self.queue.take(class, filter, limit, self.now, &mut batch);
        assert_eq!(batch.payloads, self.model.take(class, filter, limit, self.now));
        self.record_batch(batch)
    }

    fn take_immediate(&mut self, class: Class, filter: SenderFilter, limit: BatchLimit) -> Vec<u64> {
        let (mut batch, mut shed) = (Batch::new(class), Vec::new());
        self.queue
            .take_immediate(class, filter, limit, self.now, &mut batch, &mut shed);
        let expected = self.model.take_immediate(class, filter, limit, self.now);
        assert_eq!((batch.payloads.clone(), reasons(shed)), expected);
        self.record_batch(batch)
    }

    fn take_returned(&mut self, class: Class, limit: BatchLimit) -> Vec<u64> {
        let (mut batch, mut shed) = (Batch::new(class), Vec::new());
        self.queue
            .take_returned(class, false, limit, self.now, &mut batch, &mut shed);
        let (taken, expected) = self.model.take_returned(class, false, limit, self.now);
        assert_eq!((&batch.payloads, reasons(shed)), (&taken.numbers, expected));
        self.record_batch(batch)
    }

    fn record_batch(&mut self, batch: Batch<u64>) -> Vec<u64> {
        self.assert_equal();
        assert!(
            batch
                .entries
                .iter()
                .map(|entry| entry.sequence)
                .eq(batch.payloads.iter().copied())
        );
        let numbers = batch.payloads.clone();
        self.batches.push(batch);
        numbers
    }

    fn lose(&mut self, index: usize) -> Vec<(u64, ShedReason)> {
        let mut batch = self.batches.swap_remove(index);
        let expected = self.model.put_back(&batch.entries);
        let mut shed = Vec::new();
        self.queue.put_back(&mut batch, &mut shed);
        let shed = reasons(shed);
        assert_eq!(shed, expected);
        self.assert_equal();
        shed
    }

    fn purge(&mut self) {
        let mut shed = Vec::new();
        self.queue.purge(self.now, &mut shed);
        assert_eq!(reasons(shed), self.model.purge(self.now));
        self.assert_equal();
    }

    fn assert_equal(&self) {
        let immediate =
            |entries: &[JobEntry]| entries.iter().filter(|entry| entry.level.is_immediate()).count();
        let (waiting, returned) = (&self.model.waiting, &self.model.returned);
        assert_eq!(self.queue.immediate(), immediate(waiting) + immediate(returned));
        assert_eq!(self.queue.len(), waiting.len() + returned.len());
        for class in CLASSES {
            let own_entries = waiting
                .iter()
                .filter(|entry| entry.meta.class == class && !entry.level.is_immediate());
            assert_eq!(self.queue.waiting(class), own_entries.count());
        }
        let unknown = self
            .model
            .waiting
            .iter()
            .filter(|entry| entry.is_unknown_sender)
            .count() as u64;
        assert_eq!(self.queue.unknown_cost(), COST.times(unknown));
        let is_any_waiting = |is_unknown| {
            let mut waiting = self.model.waiting.iter();
            waiting.any(|entry| !entry.level.is_immediate() && entry.is_unknown_sender == is_unknown)
        };
        assert_eq!(
            self.queue.both_wait(),
            is_any_waiting(false) && is_any_waiting(true)
        );
    }
}

fn reasons(shed: Vec<Dropped<u64>>) -> Vec<(u64, ShedReason)> {
    shed.into_iter()
        .map(|dropped| (dropped.job.payload, dropped.reason))
        .collect()
}

const LIMITS: QueueLimits = QueueLimits {
    capacity: 8,
    share_max: 4,
    age_step: Span::from_nanos(100),
    attempts_max: 2,
};

fn step(pair: &mut QueuePair, choices: &mut RandomChoices, shed_counts: &mut [u32; ShedReason::COUNT]) {
    let class = CLASSES[choices.below(3) as usize];
    let shed = match choices.below(13) {
        0..=6 => {
            let level = if choices.one_in(3) {
                0
            } else {
                choices.below(8) as u8
            };
            let mut meta = Meta::new(class, Priority::new(level), Source(choices.below(4)), pair.now);
            meta.work = choices.below(4_000) as u32;
            if choices.one_in(3) {
                meta.expires = pair.now + Span::from_nanos(choices.below(900));
            }
            pair.push_as(meta, choices.one_in(2))
        }
        7..=9 => {
            let limit = BatchLimit {
                jobs: choices.below(5) as usize,
                work: choices.below(6_000),
            };
            match choices.below(7) {
                0..=2 => pair.take_filtered(
                    class,
                    [SenderFilter::Known, SenderFilter::Unknown, SenderFilter::Both]
                        [choices.below(3) as usize],
                    limit,
                ),
                3 => pair.take_immediate(class, SenderFilter::Known, limit),
                4 => pair.take_immediate(class, SenderFilter::Unknown, limit),
                _ => pair.take_returned(class, limit),
            };
            Vec::new()
        }
        10..=11 if !pair.batches.is_empty() => {
            let last = pair.batches.len() - 1;
            pair.lose(if choices.one_in(4) {
                choices.below(last as u64 + 1) as usize
            } else {
                last
            })
        }
        _ => {
            pair.now = pair.now + Span::from_nanos(choices.below(300));
            if choices.one_in(2) {
                pair.purge();
            }
            Vec::new()
        }
    };
    shed.iter()
        .for_each(|(_, reason)| shed_counts[*reason as usize] += 1);
}

#[test]
fn the_queue_matches_a_plain_list() {
    let shed_counts = std::cell::RefCell::new([0; ShedReason::COUNT]);
    seeds(600, |seed, choices| {
        let limits = QueueLimits {
            capacity: 1 + choices.below(12) as usize,
            share_max: 1 + choices.below(6) as usize,
            ..LIMITS
        };
        let mut pair = QueuePair::new(limits);
        // Short runs first: the first failing seed is easy to read.
        for _ in 0..20 + seed {
            step(&mut pair, choices, &mut shed_counts.borrow_mut());
        }
        let mut jobs = Vec::new();
        let waiting = pair.queue.len();
        pair.queue.drain(&mut jobs);
        assert_eq!((jobs.len(), pair.queue.len()), (waiting, 0));
    });
    if std::env::var_os("LINEWARDEN_SEED").is_none() {
        for reason in [
            ShedReason::Expired,
            ShedReason::SourceShare,
            ShedReason::QueueFull,
            ShedReason::LanesFailed,
        ] {
            assert!(
                shed_counts.borrow()[reason as usize] > 50,
                "{reason} occurred too rarely"
            );
        }
    }
}

#[test]
fn the_order_of_shedding() {
    let mut pair = QueuePair::new(QueueLimits {
        capacity: 6,
        share_max: 4,
        ..LIMITS
    });
    let class = Class::P256_VERIFY;
    for (level, source, expires) in [
        (1, 1, None),
        (0, 1, None),
        (6, 2, None),
        (5, 1, Some(50)),
        (6, 1, None),
        (6, 2, None),
    ] {
        assert_eq!(pair.push(class, level, source, expires), []);
    }
    pair.now = pair.now + Span::from_nanos(60);
    assert_eq!(
        pair.push(class, 3, 3, None),
        [(4, ShedReason::Expired)],
        "expired jobs first"
    );
    assert_eq!(
        pair.push(class, 7, 3, None),
        [(8, ShedReason::QueueFull)],
        "the new job, if it is the least urgent"
    );
    assert_eq!(
        pair.push(class, 0, 3, None),
        [(6, ShedReason::QueueFull)],
        "the newest job of the source with the most"
    );
    assert_eq!(
        pair.push(class, 6, 2, None),
        [(10, ShedReason::QueueFull)],
        "among equal sources, the one whose count changed last"
    );
    assert_eq!(pair.push(class, 2, 3, None), [(3, ShedReason::QueueFull)]);
    assert_eq!(pair.push(class, 0, 4, None), [(5, ShedReason::QueueFull)]);
    for number in [13, 14, 15] {
        assert!(matches!(
            pair.push(class, 0, number, None)[..],
            [(1 | 7 | 11, ShedReason::QueueFull)]
        ));
    }
    assert_eq!(pair.queue.immediate(), 6);
    assert_eq!(
        pair.push(class, 1, 9, None),
        [(16, ShedReason::QueueFull)],
        "no immediate job for a normal one"
    );
    assert_eq!(
        pair.push(class, 0, 9, None),
        [(17, ShedReason::QueueFull)],
        "but for another immediate one"
    );
}

#[test]
fn jobs_of_unknown_senders_are_shed_first_at_any_level() {
    let mut pair = QueuePair::new(LIMITS);
    let class = Class::P256_VERIFY;
    let unknown_meta =
        |pair: &QueuePair, level, source| Meta::new(class, Priority::new(level), Source(source), pair.now);
    for level in [7, 0, 1] {
        assert_eq!(pair.push(class, level, u64::from(level), None), []);
    }
    for (level, source) in [(1, 100), (1, 100), (0, 101), (1, 101), (7, 102)] {
        assert_eq!(pair.push_as(unknown_meta(&pair, level, source), true), []);
    }
    for expected in [5, 4, 8, 7] {
        assert_eq!(
            pair.push(class, 6, 10 + expected, None),
            [(expected, ShedReason::QueueFull)],
            "the source with the most, then the one whose count changed last, at any level"
        );
    }
    assert_eq!(
        pair.push_as(unknown_meta(&pair, 1, 103), true),
        [(13, ShedReason::QueueFull)],
        "the new job, if it is the only one of an unknown sender"
    );
    for expected in [1, 12, 11, 10, 9] {
        assert_eq!(
            pair.push(class, 1, 20 + expected, None),
            [(expected, ShedReason::QueueFull)],
            "then known senders by level"
        );
    }
    for expected in [18, 17, 16, 15, 14, 3, 6] {
        assert_eq!(
            pair.push(class, 0, 40 + expected, None),
            [(expected, ShedReason::QueueFull)],
            "immediate jobs last, those of unknown senders first"
        );
    }
}

#[test]
fn a_job_of_the_lowest_level_does_not_starve() {
    let mut pair = QueuePair::new(LIMITS);
    let class = Class::RSA_VERIFY;
    pair.push(class, 7, 0, None);
    let mut rounds = 0;
    loop {
        rounds += 1;
        pair.push(class, 1, 1 + rounds, None);
        if pair.take(class, 1) == [1] {
            break;
        }
        pair.now = pair.now + Span::from_nanos(30);
    }
    // Six steps of 100 ns, in rounds of 30 ns, while jobs that arrived earlier precede it.
    assert_eq!(rounds, 21);
}

#[test]
fn no_job_becomes_immediate_by_waiting() {
    let mut pair = QueuePair::new(LIMITS);
    pair.push(Class::RSA_VERIFY, 1, 0, None);
    pair.now = pair.now + Span::from_millis(1);
    assert_eq!(
        pair.queue
            .next_job(Class::RSA_VERIFY, SenderFilter::Both, pair.now)
            .map(|head| head.level),
        Some(Priority::URGENT)
    );
    assert!(
        pair.take_immediate(Class::RSA_VERIFY, SenderFilter::Known, limit(9))
            .is_empty()
    );
}

#[test]
fn jobs_do_not_age_without_an_age_step() {
    let mut queue = Queue::new(QueueLimits {
        age_step: Span::ZERO,
        ..LIMITS
    });
    let level = Priority::new(5);
    let meta = Meta::new(Class::RSA_VERIFY, level, Source(0), Time::ZERO);
    queue.push(
        JobEntry {
            meta,
            sequence: 1,
            level,
            attempts: 0,
            is_unknown_sender: false,
            cost: COST,
        },
        0,
        Time::ZERO,
        &mut Vec::new(),
    );
    assert_eq!(
        queue.next_job(Class::RSA_VERIFY, SenderFilter::Both, Time::NEVER),
        Some(NextJob { level, number: 1 })
    );
}

#[test]
fn expiries_of_removed_jobs_are_dropped() {
    let mut pair = QueuePair::new(LIMITS);
    for _ in 0..10_000 {
        pair.push(Class::RSA_VERIFY, 3, 0, Some(u64::from(u32::MAX)));
        pair.take(Class::RSA_VERIFY, 1);
        pair.batches.clear();
    }
    assert!(pair.queue.expiries.len() < 200);
}
