//! Where producers leave jobs: a bounded queue of submissions that takes no lock, and who is to be woken for
//! them.
//!
//! One queue of whole submissions keeps the order of arrival over all producers, and one atomic exchange is
//! paid for up to 64 jobs. Measured on two processors with one, two and four producers of 64 jobs of 112
//! bytes: 25 to 45 ns a job, a queue for each producer the same, a deque behind a mutex 50 to 80 ns.
//!
//! # Why no submission is left lying
//! A lane that finds nothing to do *publishes* whom to wake ([`Inbox::publish`]), then looks whether the
//! inbox is *empty*, and only then parks. A producer *pushes*, then reads whom to *wake* ([`Inbox::call`]).
//! Between the two steps of each lies a sequentially consistent fence. So of a lane and a producer at least
//! one sees what the other has done: the lane the submission, and it does not park; or the producer the lane,
//! and it unparks it. Unparking is remembered: a lane that has not yet parked does not park.
//!
//! Who wakes a lane takes the call away, so that one producer wakes it and not all. Those that see no call
//! may rely on the woken one: it takes out what lies in the inbox after it was woken, publishes, and looks again.
//!
//! An accelerator that waits for a batch wants to be woken from a number of jobs on. Producers count their
//! jobs before they push them (so the count never falls below zero) and before they read the call, so the one
//! that comes last sees that the number is made up. If it wakes the lane before another, whose jobs it has
//! counted, has pushed, then the lane publishes what is still missing, and that other sees that its jobs make
//! it up. A lane takes in what is in the inbox when the lane has finished a batch.
//!
//! `tests/protocol.rs` goes through all interleavings of these steps, and shows for each rule that work is
//! left lying without it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use crossbeam_queue::ArrayQueue;

use super::super::core::Attention;
use super::super::job::Job;
use super::super::lane::LaneId;

/// Submissions that lie in the inbox at most.
const SUBMISSIONS_MAX: usize = 1_024;
/// Jobs from which on the inbox is crowded: lanes are behind with taking them in, and until they are taken in, the scheduler's bounds do not
/// hold for them.
const CROWDED_JOBS: usize = 256;
/// Lanes that an engine has at most: a call fits a word.
pub(super) const LANES_MAX: usize = 64;

pub(super) struct Inbox<J> {
    submissions: ArrayQueue<Vec<Job<J>>>,
    /// Emptied lists, to be filled again.
    spare: ArrayQueue<Vec<Job<J>>>,
    immediate: AtomicUsize,
    other: AtomicUsize,
    call: AtomicU64,
}

impl<J> Inbox<J> {
    pub(super) fn new() -> Self {
        Self {
            submissions: ArrayQueue::new(SUBMISSIONS_MAX),
            spare: ArrayQueue::new(SUBMISSIONS_MAX),
            immediate: AtomicUsize::new(0),
            other: AtomicUsize::new(0),
            call: AtomicU64::new(0),
        }
    }

    /// Immediate and other jobs that lie here, by what they claim to be.
    pub(super) fn counts(&self) -> (usize, usize) {
        (
            self.immediate.load(Ordering::Relaxed),
            self.other.load(Ordering::Relaxed),
        )
    }

    pub(super) fn is_empty(&self) -> bool {
        self.submissions.is_empty()
    }

    /// Submissions that lie here.
    pub(super) fn len(&self) -> usize {
        self.submissions.len()
    }

    /// Whether lanes are behind with taking jobs in.
    pub(super) fn is_crowded(&self) -> bool {
        let (immediate, other) = self.counts();
        immediate + other >= CROWDED_JOBS
    }

    pub(super) fn spare(&self) -> Vec<Job<J>> {
        self.spare.pop().unwrap_or_default()
    }

    /// Leaves a submission here, if there is room; else gives it back.
    pub(super) fn push(&self, jobs: Vec<Job<J>>) -> Result<(), Vec<Job<J>>> {
        let (immediate, other) = kinds(&jobs);
        self.immediate.fetch_add(immediate, Ordering::Relaxed);
        self.other.fetch_add(other, Ordering::Relaxed);
        self.submissions
            .push(jobs)
            .inspect_err(|_| self.uncount(immediate, other))
    }

    fn uncount(&self, immediate: usize, other: usize) {
        self.immediate.fetch_sub(immediate, Ordering::Relaxed);
        self.other.fetch_sub(other, Ordering::Relaxed);
    }

    /// Takes out the first submission. To be given to [`Inbox::recycle`] when it is empty.
    pub(super) fn pop(&self) -> Option<Vec<Job<J>>> {
        let jobs = self.submissions.pop()?;
        let (immediate, other) = kinds(&jobs);
        self.uncount(immediate, other);
        Some(jobs)
    }

    pub(super) fn recycle(&self, jobs: Vec<Job<J>>) {
        // More lists than the inbox holds are not worth keeping.
        drop(self.spare.push(jobs));
    }

    /// Says who is to be woken for which jobs. The next look at the inbox sees all submissions whose
    /// producers do not see this.
    pub(super) fn publish(&self, attention: Attention) {
        self.call.store(pack(attention), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whom to wake after a push, if anybody: the lane that wants to know, and nobody else was told to wake
    /// it.
    pub(super) fn call(&self) -> Option<LaneId> {
        fence(Ordering::SeqCst);
        let call = self.call.load(Ordering::Relaxed);
        let Attention { immediate, other } = unpack(call);
        let (immediate_jobs, other_jobs) = self.counts();
        let immediate = immediate.filter(|_| immediate_jobs > 0);
        // A job that is immediate by its claim may be another by its quota.
        let other = other.filter(|(_, more)| immediate_jobs + other_jobs >= *more);
        let lane = immediate.or(other.map(|(lane, _)| lane))?;
        let taken = self
            .call
            .compare_exchange(call, 0, Ordering::Relaxed, Ordering::Relaxed);
        taken.is_ok().then_some(lane)
    }
}

fn kinds<J>(jobs: &[Job<J>]) -> (usize, usize) {
    let immediate = jobs.iter().filter(|job| job.meta.priority.is_immediate()).count();
    (immediate, jobs.len() - immediate)
}

/// The lane for immediate jobs and the one for others, each plus one, and how many of those, in 16, 16 and 32
/// bits.
fn pack(attention: Attention) -> u64 {
    let lane = |lane: Option<LaneId>| lane.map_or(0, |lane| (lane.0 + 1) as u64);
    let (other, more) = attention
        .other
        .map_or((None, 0), |(lane, more)| (Some(lane), more));
    let more = u64::from(u32::try_from(more).unwrap_or(u32::MAX));
    lane(attention.immediate) | lane(other) << 16 | more << 32
}

fn unpack(call: u64) -> Attention {
    let lane = |bits: u64| ((bits & 0xffff) as usize).checked_sub(1).map(LaneId);
    Attention {
        immediate: lane(call),
        other: lane(call >> 16).map(|lane| (lane, (call >> 32) as usize)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::class::Class;
    use super::super::super::job::{Meta, Priority, Source};
    use super::super::super::time::Time;
    use super::*;

    fn jobs(immediate: usize, other: usize) -> Vec<Job<u8>> {
        let job = |level| {
            let meta = Meta::new(Class::RA_VERIFY, Priority::new(level), Source(0), Time::ZERO);
            Job { meta, payload: level }
        };
        (0..immediate)
            .map(|_| job(0))
            .chain((0..other).map(|_| job(4)))
            .collect()
    }

    #[test]
    fn a_call_fits_a_word() {
        for attention in [
            Attention::default(),
            Attention {
                immediate: Some(LaneId(0)),
                other: None,
            },
            Attention {
                immediate: Some(LaneId(63)),
                other: Some((LaneId(0), 1)),
            },
            Attention {
                immediate: None,
                other: Some((LaneId(63), u32::MAX as usize)),
            },
        ] {
            assert_eq!(unpack(pack(attention)), attention);
        }
        let never = Attention {
            immediate: None,
            other: Some((LaneId(1), usize::MAX)),
        };
        assert_eq!(unpack(pack(never)).other, Some((LaneId(1), u32::MAX as usize)));
    }

    #[test]
    fn who_is_woken_for_what() {
        let inbox = Inbox::new();
        let attention = Attention {
            immediate: Some(LaneId(2)),
            other: Some((LaneId(1), 5)),
        };
        inbox.publish(attention);
        inbox.push(jobs(0, 4)).unwrap();
        assert_eq!(inbox.call(), None, "too few");
        inbox.push(jobs(0, 1)).unwrap();
        assert_eq!(inbox.call(), Some(LaneId(1)));
        inbox.push(jobs(0, 9)).unwrap();
        assert_eq!(inbox.call(), None, "it was woken already");
        inbox.publish(attention);
        inbox.push(jobs(1, 1)).unwrap();
        assert_eq!(inbox.call(), Some(LaneId(2)));
        assert_eq!(inbox.counts(), (1, 15));
        while let Some(jobs) = inbox.pop() {
            inbox.recycle(jobs);
        }
        assert_eq!((inbox.counts(), inbox.is_empty()), ((0, 0), true));
        assert!(inbox.spare().capacity() > 0);
    }

    #[test]
    fn a_full_inbox_gives_back() {
        let inbox = Inbox::new();
        (0..SUBMISSIONS_MAX).for_each(|_| inbox.push(jobs(1, 0)).unwrap());
        assert_eq!(inbox.push(jobs(2, 3)).unwrap_err(), jobs(2, 3));
        assert_eq!(
            (inbox.counts(), inbox.len()),
            ((SUBMISSIONS_MAX, 0), SUBMISSIONS_MAX)
        );
    }

    #[test]
    fn an_inbox_of_many_jobs_is_crowded() {
        let inbox = Inbox::new();
        inbox.push(jobs(CROWDED_JOBS / 2, CROWDED_JOBS / 2 - 1)).unwrap();
        assert!(!inbox.is_crowded());
        inbox.push(jobs(0, 1)).unwrap();
        assert!(inbox.is_crowded());
        inbox.pop().unwrap();
        assert!(!inbox.is_crowded());
    }
}
