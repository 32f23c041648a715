//! State shared by lanes and producers: the scheduler's [`Core`] behind one lock, the submission queue, and parked
//! lanes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread::Thread;
use std::time::Instant;

use super::super::core::{Core, Decisions, Event, LaneTask};
use super::super::job::{Dropped, Job, JobEntry, Outcome};
use super::super::lane::LaneId;
use super::super::time::Time;
use super::stats::LaneStats;
use super::submission_queue::SubmissionQueue;

/// Receives results and dropped jobs. Called from the threads of lanes, and from a producer's thread while it submits; a panic is caught
/// and counted, and the arguments of the call are lost.
pub trait Sink<J>: Send + Sync {
    /// Receives the results of a batch. The sink may take the payloads out. It may mark a message that it refuses for
    /// another reason than the signature as [`Outcome::Discarded`], so that the sender does not become known.
    fn done(&self, result: BatchResult<'_, J>);

    /// Receives dropped jobs.
    fn dropped(&self, dropped: &mut Vec<Dropped<J>>);
}

/// Results of a batch: in each list, a job has the same index.
#[derive(Debug)]
pub struct BatchResult<'a, J> {
    /// The lane.
    pub lane: LaneId,
    /// Time at which the batch ended.
    pub ended_at: Time,
    /// The scheduler's entries of the jobs.
    pub entries: &'a [JobEntry],
    /// The payloads of the jobs.
    pub payloads: &'a mut Vec<J>,
    /// The outcomes of the lane.
    pub outcomes: &'a mut [Outcome],
}

pub(super) struct Shared<J> {
    state: Mutex<State<J>>,
    pub(super) submissions: SubmissionQueue<J>,
    /// Whether submission is closed. A producer holds the read lock while it submits, so after a write no producer is
    /// still submitting. A thread that takes both locks takes this lock before `state`.
    pub(super) submission_closed: RwLock<bool>,
    pub(super) sink: Arc<dyn Sink<J>>,
    pub(super) stats: Vec<Mutex<LaneStats>>,
    pub(super) sink_panics: AtomicU64,
    threads: Vec<OnceLock<Thread>>,
    /// Immediate and other jobs that waited in [`Core`] when the lock was last released.
    waiting: (AtomicUsize, AtomicUsize),
    /// Whether [`Core`] was overloaded when the lock was last released.
    pub(super) is_overloaded: AtomicBool,
    epoch: Instant,
}

pub(super) struct State<J> {
    pub(super) core: Core<J>,
    /// Tasks that lanes have not picked up yet.
    pending_tasks: Vec<Option<LaneTask<J>>>,
    /// Parked lanes, and their wake-up times.
    parked: Vec<Option<Time>>,
    decisions: Decisions<J>,
    /// A list for reuse, empty except during [`Shared::drain_submissions`].
    arrivals: Vec<Job<J>>,
    /// Events that [`Core`] rejected: errors of this engine.
    pub(super) errors: u64,
}

impl<J> Shared<J> {
    pub(super) fn new(core: Core<J>, sink: Arc<dyn Sink<J>>, stats: Vec<LaneStats>) -> Self {
        let lanes = stats.len();
        let state = State {
            core,
            pending_tasks: (0..lanes).map(|_| None).collect(),
            parked: vec![None; lanes],
            decisions: Decisions::default(),
            arrivals: Vec::new(),
            errors: 0,
        };
        Self {
            state: Mutex::new(state),
            submissions: SubmissionQueue::new(),
            submission_closed: RwLock::new(false),
            sink,
            stats: stats.into_iter().map(Mutex::new).collect(),
            sink_panics: AtomicU64::new(0),
            threads: (0..lanes).map(|_| OnceLock::new()).collect(),
            waiting: Default::default(),
            is_overloaded: AtomicBool::new(false),
            epoch: Instant::now(),
        }
    }

    pub(super) fn now(&self) -> Time {
        self.at(Instant::now())
    }

    pub(super) fn at(&self, instant: Instant) -> Time {
        Time::ZERO + instant.saturating_duration_since(self.epoch).into()
    }

    /// Ignores poisoning: no code panics while it holds the lock, and [`Core::is_balanced`] would detect an
    /// inconsistent [`Core`].
    pub(super) fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waiting immediate jobs and waiting other jobs, in the submission queue and in [`Core`]. Jobs that are moving
    /// from the queue to [`Core`] may be missing.
    pub(super) fn waiting(&self) -> (usize, usize) {
        let (immediate, other) = self.submissions.counts();
        let (immediate_in_core, other_in_core) = &self.waiting;
        (
            immediate + immediate_in_core.load(Ordering::Relaxed),
            other + other_in_core.load(Ordering::Relaxed),
        )
    }

    pub(super) fn register(&self, lane: LaneId, thread: Thread) {
        if let Some(cell) = self.threads.get(lane.0) {
            // Each lane has one thread, which registers once.
            drop(cell.set(thread));
        }
    }

    pub(super) fn unpark(&self, lane: LaneId) {
        if let Some(thread) = self.threads.get(lane.0).and_then(OnceLock::get) {
            thread.unpark();
        }
    }

    pub(super) fn unpark_all(&self) {
        (0..self.threads.len()).for_each(|lane| self.unpark(LaneId(lane)));
    }

    pub(super) fn handle_event(&self, state: &mut State<J>, event: Event<'_, J>) {
        let result = state.core.handle(event, self.now(), &mut state.decisions);
        state.errors += u64::from(result.is_err());
        debug_assert!(result.is_ok(), "{result:?}");
    }

    /// Takes in the submissions that are queued at the start of the call, as one event: an urgent job in a later
    /// submission precedes a less urgent job in an earlier submission.
    fn drain_submissions(&self, state: &mut State<J>) {
        let mut arrivals = std::mem::take(&mut state.arrivals);
        // Later arrivals stay in the queue; otherwise a fast producer could keep the lane from its work. A lane checks
        // the queue again before it parks.
        for _ in 0..self.submissions.len() {
            let Some(mut jobs) = self.submissions.pop() else {
                break;
            };
            arrivals.append(&mut jobs);
            self.submissions.recycle(jobs);
        }
        if !arrivals.is_empty() {
            self.handle_event(state, Event::Submitted(&mut arrivals));
        }
        state.arrivals = arrivals;
    }

    /// Takes in queued submissions, handles the timer if it is due, and distributes the decisions.
    fn pump(&self, state: &mut State<J>, own_lane: Option<LaneId>) {
        self.drain_submissions(state);
        if state.core.next_timer() <= self.now() {
            self.handle_event(state, Event::Timer);
        }
        for (lane, task) in state.decisions.start.drain(..) {
            if let Some(pending_task) = state.pending_tasks.get_mut(lane.0) {
                *pending_task = Some(task);
            }
            if own_lane != Some(lane) {
                self.unpark(lane);
            }
        }
    }

    /// Publishes the wake conditions, and releases the lock. If no parked lane would wake up in time for the timer, one
    /// of the parked lanes is woken.
    fn publish_and_unlock(&self, state: MutexGuard<'_, State<J>>) {
        self.submissions.publish(state.core.wake_conditions());
        let (immediate, other) = state.core.waiting();
        self.waiting.0.store(immediate, Ordering::Relaxed);
        self.waiting.1.store(other, Ordering::Relaxed);
        self.is_overloaded
            .store(state.core.is_overloaded(), Ordering::Relaxed);
        let timer = state.core.next_timer();
        let parked = || {
            state
                .parked
                .iter()
                .enumerate()
                .filter_map(|(lane, until)| Some((LaneId(lane), (*until)?)))
        };
        if timer != Time::NEVER
            && parked().all(|(_, until)| until > timer)
            && let Some((lane, _)) = parked().next()
        {
            self.unpark(lane);
        }
    }

    /// Passes dropped jobs to the sink, without the lock.
    fn deliver_dropped(&self, mut dropped: Vec<Dropped<J>>) {
        self.call_sink(|sink| sink.dropped(&mut dropped));
    }

    pub(super) fn call_sink(&self, call: impl FnOnce(&dyn Sink<J>)) {
        if catch_unwind(AssertUnwindSafe(|| call(&*self.sink))).is_err() {
            self.sink_panics.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Passes the queued submissions to [`Core`]. Called from threads other than the lanes' threads, for example from a
    /// producer's thread if the queue is full.
    pub(super) fn drain_for_producer(&self) {
        loop {
            let mut state = self.lock();
            self.pump(&mut state, None);
            let dropped = std::mem::take(&mut state.decisions.dropped);
            self.publish_and_unlock(state);
            if !dropped.is_empty() {
                self.deliver_dropped(dropped);
            }
            // A submission that was pushed before the wake conditions were published wakes no lane, so the loop checks
            // the queue again.
            if self.submissions.is_empty() {
                return;
            }
        }
    }

    /// Reports an event of a lane to [`Core`], and waits for the lane's next task. `None` if the lane is dismissed.
    /// First takes in the queued submissions, so that the next batch is chosen among all jobs.
    pub(super) fn next_task(&self, lane: LaneId, report: Event<'_, J>) -> Option<LaneTask<J>> {
        let mut state = self.lock();
        self.drain_submissions(&mut state);
        self.handle_event(&mut state, report);
        loop {
            self.pump(&mut state, Some(lane));
            let dropped = std::mem::take(&mut state.decisions.dropped);
            if !dropped.is_empty() {
                self.publish_and_unlock(state);
                self.deliver_dropped(dropped);
                state = self.lock();
                continue;
            }
            if let Some(task) = state.pending_tasks.get_mut(lane.0).and_then(Option::take) {
                self.publish_and_unlock(state);
                return Some(task);
            }
            if state.core.can_dismiss_idle() {
                state.core.dismiss(lane);
                self.publish_and_unlock(state);
                self.unpark_all();
                return None;
            }
            state = self.park(state, lane)?;
        }
    }

    /// Parks until this lane is woken, or the timer is due.
    fn park<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<J>>,
        lane: LaneId,
    ) -> Option<MutexGuard<'a, State<J>>> {
        let timer = state.core.next_timer();
        *state.parked.get_mut(lane.0)? = Some(timer);
        self.publish_and_unlock(state);
        if self.submissions.is_empty() {
            match timer {
                Time::NEVER => std::thread::park(),
                timer => std::thread::park_timeout(timer.saturating_since(self.now()).into()),
            }
        }
        let mut state = self.lock();
        *state.parked.get_mut(lane.0)? = None;
        Some(state)
    }
}
