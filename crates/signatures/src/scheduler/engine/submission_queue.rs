//! The queue between producers and lanes: a bounded, lock-free queue of submissions, and the choice of the lane to wake.
//!
//! A single queue of whole submissions keeps the order of arrival across all producers, and a submission of up to 64
//! jobs costs one atomic exchange. The queue takes 25 to 45 ns per job, measured on two CPUs with one, two and four
//! producers that submit 64 jobs of 112 bytes. One queue for each producer takes as long; a deque behind a mutex takes
//! 50 to 80 ns per job.
//!
//! # Why no submission is forgotten
//! A lane without work *publishes* its wake conditions ([`SubmissionQueue::publish`]), then checks whether the queue is
//! *empty*, and only then parks. A producer *pushes*, then reads which lane to *wake*
//! ([`SubmissionQueue::take_wake_call`]). In both threads, a sequentially consistent fence separates the two steps.
//! Therefore at least one of the threads sees the action of the other: the lane sees the submission and does not park,
//! or the producer sees the lane and unparks it. The system remembers the unparking: if the lane has not parked yet,
//! the lane does not park.
//!
//! The producer that wakes a lane clears the published conditions, so that only one producer wakes the lane. Other producers can rely on
//! the woken lane, which takes all submissions out of the queue after waking, publishes, and checks again.
//!
//! An accelerator that waits for a batch is woken when a given number of jobs is queued. Producers count their jobs before they push them
//! (so that the count never falls below zero) and before they read the conditions, so that the last producer sees the full number. Suppose
//! that a producer counts the jobs of a second producer and wakes the lane before the second producer has pushed. The lane then publishes
//! the missing number, and the second producer sees that its own jobs complete this number. A lane also takes in the queued submissions
//! after each batch.
//!
//! `tests/protocol.rs` explores all interleavings of these steps, and shows for each rule that submissions are
//! forgotten without that rule.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use crossbeam_queue::ArrayQueue;

use super::super::core::WakeConditions;
use super::super::job::Job;
use super::super::lane::LaneId;

/// Maximum number of queued submissions.
const SUBMISSIONS_MAX: usize = 1_024;
/// Number of queued jobs from which on the queue is overloaded. Lanes are then slow to take jobs in, and the
/// scheduler's limits apply only to jobs that were taken in.
const OVERLOAD_JOBS: usize = 256;
/// Maximum number of lanes of an engine, so that wake conditions fit a word.
pub(super) const LANES_MAX: usize = 64;

pub(super) struct SubmissionQueue<J> {
    submissions: ArrayQueue<Vec<Job<J>>>,
    /// Emptied lists for reuse.
    spare_lists: ArrayQueue<Vec<Job<J>>>,
    /// Number of queued immediate jobs.
    immediate: AtomicUsize,
    /// Number of other queued jobs.
    other: AtomicUsize,
    /// The published wake conditions, see [`pack`]; 0 if no lane needs to be woken.
    wake_call: AtomicU64,
}

impl<J> SubmissionQueue<J> {
    pub(super) fn new() -> Self {
        Self {
            submissions: ArrayQueue::new(SUBMISSIONS_MAX),
            spare_lists: ArrayQueue::new(SUBMISSIONS_MAX),
            immediate: AtomicUsize::new(0),
            other: AtomicUsize::new(0),
            wake_call: AtomicU64::new(0),
        }
    }

    /// Numbers of queued immediate jobs and of other queued jobs, by claimed priority.
    pub(super) fn counts(&self) -> (usize, usize) {
        (
            self.immediate.load(Ordering::Relaxed),
            self.other.load(Ordering::Relaxed),
        )
    }

    pub(super) fn is_empty(&self) -> bool {
        self.submissions.is_empty()
    }

    /// Queued submissions.
    pub(super) fn len(&self) -> usize {
        self.submissions.len()
    }

    /// Whether lanes are slow to take jobs in.
    pub(super) fn is_overloaded(&self) -> bool {
        let (immediate, other) = self.counts();
        immediate + other >= OVERLOAD_JOBS
    }

    /// An empty list, with memory of an earlier list if possible.
    pub(super) fn take_spare_list(&self) -> Vec<Job<J>> {
        self.spare_lists.pop().unwrap_or_default()
    }

    /// Pushes a submission; returns it if the queue is full.
    pub(super) fn push(&self, jobs: Vec<Job<J>>) -> Result<(), Vec<Job<J>>> {
        let (immediate, other) = count_kinds(&jobs);
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

    /// Takes out the first submission. Pass the emptied list to [`SubmissionQueue::recycle`].
    pub(super) fn pop(&self) -> Option<Vec<Job<J>>> {
        let jobs = self.submissions.pop()?;
        let (immediate, other) = count_kinds(&jobs);
        self.uncount(immediate, other);
        Some(jobs)
    }

    pub(super) fn recycle(&self, jobs: Vec<Job<J>>) {
        // More lists than the queue holds are not worth keeping.
        drop(self.spare_lists.push(jobs));
    }

    /// Publishes the wake conditions. If a producer does not see these conditions, the next check of the queue sees the
    /// submission of that producer.
    pub(super) fn publish(&self, wake_conditions: WakeConditions) {
        self.wake_call.store(pack(wake_conditions), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The lane to wake after a push, if its wake condition is met and no other producer has already taken the call.
    pub(super) fn take_wake_call(&self) -> Option<LaneId> {
        fence(Ordering::SeqCst);
        let call = self.wake_call.load(Ordering::Relaxed);
        let WakeConditions { immediate, other } = unpack(call);
        let (immediate_jobs, other_jobs) = self.counts();
        let immediate = immediate.filter(|_| immediate_jobs > 0);
        // A quota may demote a job that claims to be immediate.
        let other = other.filter(|(_, required)| immediate_jobs + other_jobs >= *required);
        let lane = immediate.or(other.map(|(lane, _)| lane))?;
        let taken = self
            .wake_call
            .compare_exchange(call, 0, Ordering::Relaxed, Ordering::Relaxed);
        taken.is_ok().then_some(lane)
    }
}

fn count_kinds<J>(jobs: &[Job<J>]) -> (usize, usize) {
    let immediate = jobs.iter().filter(|job| job.meta.priority.is_immediate()).count();
    (immediate, jobs.len() - immediate)
}

/// The lane for immediate jobs and the lane for other jobs, each plus one, and the number of other jobs, in 16, 16 and
/// 32 bits.
fn pack(wake_conditions: WakeConditions) -> u64 {
    let lane = |lane: Option<LaneId>| lane.map_or(0, |lane| (lane.0 + 1) as u64);
    let (other, required) = wake_conditions
        .other
        .map_or((None, 0), |(lane, required)| (Some(lane), required));
    let required = u64::from(u32::try_from(required).unwrap_or(u32::MAX));
    lane(wake_conditions.immediate) | lane(other) << 16 | required << 32
}

fn unpack(call: u64) -> WakeConditions {
    let lane = |bits: u64| ((bits & 0xffff) as usize).checked_sub(1).map(LaneId);
    WakeConditions {
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
    fn wake_conditions_fit_a_word() {
        for wake_conditions in [
            WakeConditions::default(),
            WakeConditions {
                immediate: Some(LaneId(0)),
                other: None,
            },
            WakeConditions {
                immediate: Some(LaneId(63)),
                other: Some((LaneId(0), 1)),
            },
            WakeConditions {
                immediate: None,
                other: Some((LaneId(63), u32::MAX as usize)),
            },
        ] {
            assert_eq!(unpack(pack(wake_conditions)), wake_conditions);
        }
        let never = WakeConditions {
            immediate: None,
            other: Some((LaneId(1), usize::MAX)),
        };
        assert_eq!(unpack(pack(never)).other, Some((LaneId(1), u32::MAX as usize)));
    }

    #[test]
    fn the_lane_to_wake_follows_the_conditions() {
        let queue = SubmissionQueue::new();
        let wake_conditions = WakeConditions {
            immediate: Some(LaneId(2)),
            other: Some((LaneId(1), 5)),
        };
        queue.publish(wake_conditions);
        queue.push(jobs(0, 4)).unwrap();
        assert_eq!(queue.take_wake_call(), None, "too few");
        queue.push(jobs(0, 1)).unwrap();
        assert_eq!(queue.take_wake_call(), Some(LaneId(1)));
        queue.push(jobs(0, 9)).unwrap();
        assert_eq!(queue.take_wake_call(), None, "already woken");
        queue.publish(wake_conditions);
        queue.push(jobs(1, 1)).unwrap();
        assert_eq!(queue.take_wake_call(), Some(LaneId(2)));
        assert_eq!(queue.counts(), (1, 15));
        while let Some(jobs) = queue.pop() {
            queue.recycle(jobs);
        }
        assert_eq!((queue.counts(), queue.is_empty()), ((0, 0), true));
        assert!(queue.take_spare_list().capacity() > 0);
    }

    #[test]
    fn a_full_queue_returns_the_submission() {
        let queue = SubmissionQueue::new();
        (0..SUBMISSIONS_MAX).for_each(|_| queue.push(jobs(1, 0)).unwrap());
        assert_eq!(queue.push(jobs(2, 3)).unwrap_err(), jobs(2, 3));
        assert_eq!(
            (queue.counts(), queue.len()),
            ((SUBMISSIONS_MAX, 0), SUBMISSIONS_MAX)
        );
    }

    #[test]
    fn a_queue_of_many_jobs_is_overloaded() {
        let queue = SubmissionQueue::new();
        queue
            .push(jobs(OVERLOAD_JOBS / 2, OVERLOAD_JOBS / 2 - 1))
            .unwrap();
        assert!(!queue.is_overloaded());
        queue.push(jobs(0, 1)).unwrap();
        assert!(queue.is_overloaded());
        queue.pop().unwrap();
        assert!(!queue.is_overloaded());
    }
}
