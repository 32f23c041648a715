//! Jobs: one message to verify or to sign, and its outcome.

use std::fmt;
use std::num::NonZeroU128;

use super::class::Class;
use super::time::{Span, Time};
pub use crate::message::Priority;

/// A value for each priority.
#[derive(Clone, Debug, Default)]
pub struct PerPriority<T>([T; Priority::COUNT]);

impl<T> PerPriority<T> {
    /// Makes the values one by one, most urgent first.
    pub fn from_fn(mut make: impl FnMut(Priority) -> T) -> Self {
        Self(std::array::from_fn(|number| make(Priority::new(number as u8))))
    }

    /// The value of a priority.
    pub fn of(&self, priority: Priority) -> &T {
        #[allow(clippy::indexing_slicing)] // A priority is below COUNT by construction.
        &self.0[priority.index()]
    }

    /// The value of a priority.
    pub fn of_mut(&mut self, priority: Priority) -> &mut T {
        #[allow(clippy::indexing_slicing)] // As above.
        &mut self.0[priority.index()]
    }

    /// All values, most urgent first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Priority, &T)> {
        Priority::all().zip(&self.0)
    }
}

/// The apparent source of a message, as determined by the receiver: a hash of an address or of a certificate. It may be
/// forged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Source(pub u64);

/// A keyed hash of a whole datagram ([`FingerprintKey`](super::FingerprintKey)).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fingerprint(NonZeroU128);

impl Fingerprint {
    /// A fingerprint of 128 bits; 0 is mapped to 1, which adds one collision in 2^128.
    pub fn new(bits: u128) -> Self {
        Self(NonZeroU128::new(bits).unwrap_or(NonZeroU128::MIN))
    }

    /// The bits.
    pub fn bits(self) -> u128 {
        self.0.get()
    }
}

/// The work of an ordinary message of a class: a message for which everything possible is precomputed.
pub const ORDINARY_WORK: u32 = 1_000;

/// The scheduler's view of a job. The scheduler never reads the message itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Meta {
    /// The operation.
    pub class: Class,
    /// The priority that the message claims.
    pub priority: Priority,
    /// The source that the receiver determined.
    pub source: Source,
    /// Source and claimed signer together: an accepted message makes this pair known.
    pub sender: Source,
    /// Lane time in thousandths of the time of an ordinary message of the class ([`ORDINARY_WORK`]).
    pub work: u32,
    /// Time of arrival; a time in the future counts as now.
    pub arrived: Time,
    /// Deadline of the result. A later result counts as a missed deadline, but is still delivered.
    pub deadline: Time,
    /// Time from which on no lane starts work on the job.
    pub expires: Time,
    /// For the recognition of copies; `None` for jobs that cannot be copies, such as messages to sign.
    pub fingerprint: Option<Fingerprint>,
}

impl Meta {
    /// A job with ordinary work, without deadline, expiry and fingerprint. The source also counts as the sender.
    pub const fn new(class: Class, priority: Priority, source: Source, arrived: Time) -> Self {
        Self {
            class,
            priority,
            source,
            sender: source,
            work: ORDINARY_WORK,
            arrived,
            deadline: Time::NEVER,
            expires: Time::NEVER,
            fingerprint: None,
        }
    }
}

/// One message to verify or to sign.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job<J> {
    /// The scheduler's view.
    pub meta: Meta,
    /// The lanes' view.
    pub payload: J,
}

/// The outcome of a completed job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The signature is valid, or was made.
    Accepted,
    /// The signature is invalid, or could not be made.
    Rejected,
    /// The signature is valid, but the message was refused: it is too old, a replay, or its signer was revoked in the
    /// meantime. This outcome does not change the record of the sender. The consumer of results sets this outcome, not
    /// a lane ([`engine::Sink::done`](super::engine::Sink::done)).
    Discarded,
}

/// The scheduler's entry of an admitted job: its level in the queue, and its position in the order of arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JobEntry {
    /// The submitted description.
    pub meta: Meta,
    /// Position in the order of arrival over all classes and levels.
    pub sequence: u64,
    /// The level in the queue: the claimed priority, or [`Priority::URGENT`] if a quota was used up.
    pub level: Priority,
    /// Number of lost batches that contained the job.
    pub attempts: u8,
    /// Whether no valid message of the sender was known at arrival.
    pub is_unknown_sender: bool,
    /// Estimated lane time at arrival.
    pub cost: Span,
}

/// Jobs of one class for one run of one lane: `entries[i]` belongs to `payloads[i]`.
#[derive(Debug)]
pub struct Batch<J> {
    /// The operation. May differ from the class of the entries: without masks, `ra-sign` is executed as `rsa-sign`.
    pub class: Class,
    /// The scheduler's entries.
    pub entries: Vec<JobEntry>,
    /// The lanes' payloads.
    pub payloads: Vec<J>,
    /// The sum of the jobs' work, in thousandths of an ordinary job.
    work: u64,
}

impl<J> Batch<J> {
    /// An empty batch.
    pub fn new(class: Class) -> Self {
        Self {
            class,
            entries: Vec::new(),
            payloads: Vec::new(),
            work: 0,
        }
    }

    /// The work of all jobs, in ordinary jobs.
    pub fn work(&self) -> f64 {
        self.work as f64 / f64::from(ORDINARY_WORK)
    }

    /// Number of jobs.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn push(&mut self, entry: JobEntry, payload: J) {
        self.work += u64::from(entry.meta.work);
        self.entries.push(entry);
        self.payloads.push(payload);
    }

    /// Removes all jobs.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.payloads.clear();
        self.work = 0;
    }
}

/// Limits of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BatchLimit {
    /// Maximum number of jobs.
    pub(super) jobs: usize,
    /// Maximum sum of the jobs' work, in thousandths of an ordinary job. A single job may exceed this maximum.
    pub(super) work: u64,
}

impl BatchLimit {
    /// A limit of jobs with any work.
    pub(super) const fn for_jobs(jobs: usize) -> Self {
        Self { jobs, work: u64::MAX }
    }

    /// Whether a batch may also take the job `next`.
    pub(super) fn has_room<J>(self, batch: &Batch<J>, next: &JobEntry) -> bool {
        let work = batch.work.saturating_add(next.meta.work.into());
        batch.len() < self.jobs && (batch.is_empty() || work <= self.work)
    }
}

/// A job that was dropped without being processed, and the reason.
#[derive(Debug, PartialEq, Eq)]
pub struct Dropped<J> {
    /// The job as submitted.
    pub job: Job<J>,
    /// The reason.
    pub reason: ShedReason,
}

macro_rules! shed_reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $number:literal, $text:literal;)+) => {
        /// Why a job was dropped without being processed. Each reason has a counter of its own; none indicates an invalid
        /// signature.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum ShedReason {
            $($(#[doc = $doc])+ $name = $number,)+
        }

        impl ShedReason {
            /// All reasons, by number.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// Name in counters.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }

            /// Description for people.
            pub const fn description(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_ascii()),+ }
            }
        }
    };
}

shed_reasons! {
    /// The job expired before work on it started.
    Expired = 0, "expired";
    /// A copy of a job that waits, is being processed, or was completed recently.
    Duplicate = 1, "duplicate";
    /// The source has reached its limit of waiting jobs.
    SourceShare = 2, "source_share";
    /// The queue was full, and the job was next in the shedding order.
    QueueFull = 3, "queue_full";
    /// The job reached the limit of lost batches.
    LanesFailed = 4, "lanes_failed";
    /// No lane supports the class.
    NoLane = 5, "no_lane";
    /// Dropped on receipt because too many messages waited, or by the kernel while a flood filter was attached.
    Overload = 6, "overload";
}

impl ShedReason {
    /// Number of reasons.
    pub const COUNT: usize = Self::ALL.len();
}

impl fmt::Display for ShedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_from_the_network_are_never_out_of_range() {
        for number in 0..=255 {
            assert_eq!(Priority::new(number).number(), number.min(7));
        }
        assert!(Priority::IMMEDIATE.is_immediate() && !Priority::URGENT.is_immediate());
        assert_eq!(Priority::all().count(), Priority::COUNT);
    }

    #[test]
    fn reasons_have_consecutive_numbers_and_distinct_names() {
        for (number, reason) in ShedReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, number);
        }
        let mut names: Vec<_> = ShedReason::ALL.iter().map(|reason| reason.name()).collect();
        names.dedup();
        assert_eq!(names.len(), ShedReason::COUNT);
    }

    #[test]
    fn a_fingerprint_of_zero_is_one() {
        assert_eq!(Fingerprint::new(0).bits(), 1);
        assert_eq!(size_of::<Option<Fingerprint>>(), 16);
    }
}
