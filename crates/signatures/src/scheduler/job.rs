//! What is scheduled: one message to verify or to sign, and what becomes of it.

use std::fmt;
use std::num::NonZeroU128;

use super::class::Class;
use super::time::{Span, Time};
pub use crate::message::Priority;

/// Something for each priority.
#[derive(Clone, Debug, Default)]
pub struct PerPriority<T>([T; Priority::COUNT]);

impl<T> PerPriority<T> {
    /// Made one by one, most urgent first.
    pub fn from_fn(mut make: impl FnMut(Priority) -> T) -> Self {
        Self(std::array::from_fn(|number| make(Priority::new(number as u8))))
    }

    /// What belongs to a priority.
    pub fn of(&self, priority: Priority) -> &T {
        #[allow(clippy::indexing_slicing)] // A priority is below COUNT: there is no other way to make one.
        &self.0[priority.index()]
    }

    /// What belongs to a priority.
    pub fn of_mut(&mut self, priority: Priority) -> &mut T {
        #[allow(clippy::indexing_slicing)] // As above.
        &mut self.0[priority.index()]
    }

    /// All, most urgent first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Priority, &T)> {
        Priority::all().zip(&self.0)
    }
}

/// Who a message comes from, as far as the receiver can tell: an address, or a hash of a certificate's. It
/// may be forged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Source(pub u64);

/// A keyed hash of a whole datagram ([`FingerprintKey`](super::FingerprintKey)).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fingerprint(NonZeroU128);

impl Fingerprint {
    /// Of 128 bits; 0 counts as 1, which costs half of one chance in 2^128.
    pub fn new(bits: u128) -> Self {
        Self(NonZeroU128::new(bits).unwrap_or(NonZeroU128::MIN))
    }

    /// The bits.
    pub fn bits(self) -> u128 {
        self.0.get()
    }
}

/// The work of an ordinary message of a class: one for which all is computed ahead that can be.
pub const ORDINARY_WORK: u32 = 1_000;

/// What the scheduler knows of a job. It never looks into the message itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Meta {
    /// What is to be done.
    pub class: Class,
    /// As the message says.
    pub priority: Priority,
    /// As the receiver says.
    pub source: Source,
    /// The source and the signer that the message names, together: an accepted message makes this pair known, and no other.
    pub sender: Source,
    /// The lane time that it takes, in thousandths of what an ordinary message of the class takes ([`ORDINARY_WORK`]).
    pub work: u32,
    /// When it was received; one in the future counts as now.
    pub arrived: Time,
    /// When the result is wanted; later is counted as missed, and is still delivered.
    pub deadline: Time,
    /// When work that has not begun is no longer worth beginning.
    pub expires: Time,
    /// For the recognition of copies; none for what cannot be a copy, such as a message to sign.
    pub fingerprint: Option<Fingerprint>,
}

impl Meta {
    /// Of ordinary work, of a source that signs itself, without deadline, expiry and fingerprint.
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
    /// What the scheduler looks at.
    pub meta: Meta,
    /// What the lanes look at.
    pub payload: J,
}

/// What a lane says of a job that it has done, and what was made of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The signature holds; or the signature was made.
    Accepted,
    /// It does not; or none could be made.
    Rejected,
    /// The signature holds and the message was refused all the same: it is too old, a repetition, of a signer
    /// who was revoked meanwhile. It says nothing of its source. No lane says so, but who takes the results
    /// may ([`engine::Sink::done`](super::engine::Sink::done)).
    Refused,
}

/// Where a job stands once the scheduler has taken it: its level in the queue, and its place in the order of
/// arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// What was submitted.
    pub meta: Meta,
    /// Its place in the order of arrival over all classes and levels.
    pub number: u64,
    /// The level that it queues in: its priority, or [`Priority::URGENT`] if its source's quota was spent.
    pub level: Priority,
    /// Batches that it was in and whose lane was lost.
    pub attempts: u8,
    /// Nothing of its sender had been found valid when it came.
    pub stranger: bool,
    /// The lane time that it takes, as it was estimated when it came.
    pub cost: Span,
}

/// Jobs of one class for one run of one lane: `tickets[i]` belongs to `payloads[i]`.
#[derive(Debug)]
pub struct Batch<J> {
    /// What the lane is to do. Not always the class of the tickets: without masks, `ra-sign` is done as
    /// `rsa-sign`.
    pub class: Class,
    /// What the scheduler knows.
    pub tickets: Vec<Ticket>,
    /// What the lane works on.
    pub payloads: Vec<J>,
    /// The sum of the jobs' work.
    work: u64,
}

impl<J> Batch<J> {
    /// Without jobs.
    pub fn new(class: Class) -> Self {
        Self {
            class,
            tickets: Vec::new(),
            payloads: Vec::new(),
            work: 0,
        }
    }

    /// The work of all jobs, in ordinary ones.
    pub fn work(&self) -> f64 {
        self.work as f64 / f64::from(ORDINARY_WORK)
    }

    /// Jobs in it.
    pub fn len(&self) -> usize {
        self.tickets.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tickets.is_empty()
    }

    pub(super) fn push(&mut self, ticket: Ticket, payload: J) {
        self.work += u64::from(ticket.meta.work);
        self.tickets.push(ticket);
        self.payloads.push(payload);
    }

    /// Takes all jobs out.
    pub(super) fn clear(&mut self) {
        self.tickets.clear();
        self.payloads.clear();
        self.work = 0;
    }
}

/// How much a batch may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Room {
    /// Jobs at most.
    pub(super) jobs: usize,
    /// The sum of their work at most, in thousandths; of a single job, any.
    pub(super) work: u64,
}

impl Room {
    /// For so many jobs of any work.
    pub(super) const fn of_jobs(jobs: usize) -> Self {
        Self { jobs, work: u64::MAX }
    }

    /// Whether a batch may take one more job of this work.
    pub(super) fn has_room<J>(self, batch: &Batch<J>, next: &Ticket) -> bool {
        let work = batch.work.saturating_add(next.meta.work.into());
        batch.len() < self.jobs && (batch.is_empty() || work <= self.work)
    }
}

/// A job that leaves without having been worked on, and why.
#[derive(Debug, PartialEq, Eq)]
pub struct Dropped<J> {
    /// As it was submitted.
    pub job: Job<J>,
    /// Why.
    pub why: Shed,
}

macro_rules! sheds {
    ($($(#[doc = $doc:literal])+ $name:ident = $number:literal, $text:literal;)+) => {
        /// Why a job leaves without having been worked on. Each has a counter of its own; none says that a
        /// signature is wrong.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum Shed {
            $($(#[doc = $doc])+ $name = $number,)+
        }

        impl Shed {
            /// All of them, by number.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// As counters name it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }

            /// What it says to a person.
            pub const fn description(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_ascii()),+ }
            }
        }
    };
}

sheds! {
    /// Its expiry passed before work on it had begun.
    Expired = 0, "expired";
    /// A copy of a job that waits, is being worked on, or was lately done.
    Duplicate = 1, "duplicate";
    /// Its source has as many jobs waiting as one source may have.
    SourceShare = 2, "source_share";
    /// The queue was full, and it was next in the order of shedding.
    QueueFull = 3, "queue_full";
    /// It was in as many lost batches as a job may be in.
    LanesFailed = 4, "lanes_failed";
    /// No lane can do its class.
    NoLane = 5, "no_lane";
    /// It was dropped on receipt because too many messages waited, or by the kernel while a flood filter was attached.
    Crowded = 6, "crowded";
}

impl Shed {
    /// Reasons that there are.
    pub const COUNT: usize = Self::ALL.len();
}

impl fmt::Display for Shed {
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
    fn reasons_are_numbered_without_gaps_and_named_apart() {
        for (number, why) in Shed::ALL.iter().enumerate() {
            assert_eq!(*why as usize, number);
        }
        let mut names: Vec<_> = Shed::ALL.iter().map(|why| why.name()).collect();
        names.dedup();
        assert_eq!(names.len(), Shed::COUNT);
    }

    #[test]
    fn a_fingerprint_of_zero_is_one() {
        assert_eq!(Fingerprint::new(0).bits(), 1);
        assert_eq!(size_of::<Option<Fingerprint>>(), 16);
    }
}
