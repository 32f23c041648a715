//! What lanes and producers share: the core behind one lock, the inbox, and who sleeps.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread::Thread;
use std::time::Instant;

use super::super::core::{Core, Decisions, Event, Start};
use super::super::job::{Dropped, Job, Outcome, Ticket};
use super::super::lane::LaneId;
use super::super::time::Time;
use super::inbox::Inbox;
use super::stats::LaneStats;

/// Where results and dropped jobs go. Called from the lanes' threads, and from a producer's while it submits;
/// a panic is caught and counted, and what it was given is gone.
pub trait Sink<J>: Send + Sync {
    /// A batch is done. The payloads may be taken out, and what is refused for another reason than its
    /// signature may be marked as [`Outcome::Refused`], so that it does not make its source known.
    fn done(&self, done: Done<'_, J>);

    /// Jobs were dropped.
    fn dropped(&self, dropped: &mut Vec<Dropped<J>>);
}

/// Results of a batch: those of one job are at the same place in each list.
#[derive(Debug)]
pub struct Done<'a, J> {
    /// Which lane did it.
    pub lane: LaneId,
    /// When it ended.
    pub at: Time,
    /// What was known of the jobs.
    pub tickets: &'a [Ticket],
    /// The jobs.
    pub payloads: &'a mut Vec<J>,
    /// What the lane says.
    pub outcomes: &'a mut [Outcome],
}

pub(super) struct Shared<J> {
    state: Mutex<State<J>>,
    pub(super) inbox: Inbox<J>,
    /// Whether nothing is taken in any more. A producer holds it for reading while it submits, so when it has
    /// been written, nobody is still submitting. Taken before `state`, never the other way round.
    pub(super) closed: RwLock<bool>,
    pub(super) sink: Arc<dyn Sink<J>>,
    pub(super) stats: Vec<Mutex<LaneStats>>,
    pub(super) sink_panics: AtomicU64,
    threads: Vec<OnceLock<Thread>>,
    /// Jobs that wait in the core, as of when the lock was last released.
    waiting: (AtomicUsize, AtomicUsize),
    /// Whether the core was crowded then.
    pub(super) crowded: AtomicBool,
    epoch: Instant,
}

pub(super) struct State<J> {
    pub(super) core: Core<J>,
    /// What lanes are to do and have not yet picked up.
    slots: Vec<Option<Start<J>>>,
    /// Lanes that are parked, and until when.
    parked: Vec<Option<Time>>,
    decisions: Decisions<J>,
    /// Empty but for a moment.
    arrivals: Vec<Job<J>>,
    /// Events that the core did not take: errors of this engine.
    pub(super) errors: u64,
}

impl<J> Shared<J> {
    pub(super) fn new(core: Core<J>, sink: Arc<dyn Sink<J>>, stats: Vec<LaneStats>) -> Self {
        let lanes = stats.len();
        let state = State {
            core,
            slots: (0..lanes).map(|_| None).collect(),
            parked: vec![None; lanes],
            decisions: Decisions::default(),
            arrivals: Vec::new(),
            errors: 0,
        };
        Self {
            state: Mutex::new(state),
            inbox: Inbox::new(),
            closed: RwLock::new(false),
            sink,
            stats: stats.into_iter().map(Mutex::new).collect(),
            sink_panics: AtomicU64::new(0),
            threads: (0..lanes).map(|_| OnceLock::new()).collect(),
            waiting: Default::default(),
            crowded: AtomicBool::new(false),
            epoch: Instant::now(),
        }
    }

    pub(super) fn now(&self) -> Time {
        self.at(Instant::now())
    }

    pub(super) fn at(&self, instant: Instant) -> Time {
        Time::ZERO + instant.saturating_duration_since(self.epoch).into()
    }

    /// Nothing that runs under the lock panics; if it did, the core would still count right or be out of
    /// balance.
    pub(super) fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Immediate and other jobs that wait, in inbox and core. Jobs on the way from one to the other may be
    /// left out.
    pub(super) fn waiting(&self) -> (usize, usize) {
        let (immediate, other) = self.inbox.counts();
        let (in_core, other_in_core) = &self.waiting;
        (
            immediate + in_core.load(Ordering::Relaxed),
            other + other_in_core.load(Ordering::Relaxed),
        )
    }

    pub(super) fn register(&self, lane: LaneId, thread: Thread) {
        if let Some(place) = self.threads.get(lane.0) {
            // Each lane has one thread, which registers once.
            drop(place.set(thread));
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

    pub(super) fn tell(&self, state: &mut State<J>, event: Event<'_, J>) {
        let taken = state.core.handle(event, self.now(), &mut state.decisions);
        state.errors += u64::from(taken.is_err());
        debug_assert!(taken.is_ok(), "{taken:?}");
    }

    /// Takes in the submissions that are in the inbox when the call begins, as one event: what is urgent in a later submission goes before
    /// what is not in an earlier one.
    fn take_in(&self, state: &mut State<J>) {
        let mut arrivals = std::mem::take(&mut state.arrivals);
        // Jobs that arrive meanwhile stay in the inbox, or a fast producer would keep the lane from its work. Before a lane parks, it looks
        // at the inbox again.
        for _ in 0..self.inbox.len() {
            let Some(mut jobs) = self.inbox.pop() else { break };
            arrivals.append(&mut jobs);
            self.inbox.recycle(jobs);
        }
        if !arrivals.is_empty() {
            self.tell(state, Event::Submitted(&mut arrivals));
        }
        state.arrivals = arrivals;
    }

    /// Takes in what lies in the inbox, rings the timer if it is due, and hands out what was decided.
    fn pump(&self, state: &mut State<J>, me: Option<LaneId>) {
        self.take_in(state);
        if state.core.next_timer() <= self.now() {
            self.tell(state, Event::Timer);
        }
        for (lane, start) in state.decisions.start.drain(..) {
            if let Some(slot) = state.slots.get_mut(lane.0) {
                *slot = Some(start);
            }
            if me != Some(lane) {
                self.unpark(lane);
            }
        }
    }

    /// Says whom to wake, and lets the lock go. Whoever goes to work leaves nobody to ring the timer who
    /// would ring too late.
    fn leave(&self, state: MutexGuard<'_, State<J>>) {
        self.inbox.publish(state.core.attention());
        let (immediate, other) = state.core.waiting();
        self.waiting.0.store(immediate, Ordering::Relaxed);
        self.waiting.1.store(other, Ordering::Relaxed);
        self.crowded.store(state.core.is_crowded(), Ordering::Relaxed);
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

    /// Gives dropped jobs to the sink, without the lock.
    fn deliver_dropped(&self, mut dropped: Vec<Dropped<J>>) {
        self.call_sink(|sink| sink.dropped(&mut dropped));
    }

    pub(super) fn call_sink(&self, call: impl FnOnce(&dyn Sink<J>)) {
        if catch_unwind(AssertUnwindSafe(|| call(&*self.sink))).is_err() {
            self.sink_panics.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A producer's turn at the core: the inbox is full, and no lane has had time for it.
    pub(super) fn help(&self) {
        loop {
            let mut state = self.lock();
            self.pump(&mut state, None);
            let dropped = std::mem::take(&mut state.decisions.dropped);
            self.leave(state);
            if !dropped.is_empty() {
                self.deliver_dropped(dropped);
            }
            // What was pushed before the call was published has no other witness.
            if self.inbox.is_empty() {
                return;
            }
        }
    }

    /// Tells the core what a lane has to report, and waits for what it is to do next. None: the end. What has
    /// come meanwhile is taken in first, so that the lane's next batch is chosen among all.
    pub(super) fn next(&self, lane: LaneId, report: Event<'_, J>) -> Option<Start<J>> {
        let mut state = self.lock();
        self.take_in(&mut state);
        self.tell(&mut state, report);
        loop {
            self.pump(&mut state, Some(lane));
            let dropped = std::mem::take(&mut state.decisions.dropped);
            if !dropped.is_empty() {
                self.leave(state);
                self.deliver_dropped(dropped);
                state = self.lock();
                continue;
            }
            if let Some(start) = state.slots.get_mut(lane.0).and_then(Option::take) {
                self.leave(state);
                return Some(start);
            }
            if state.core.may_end() {
                state.core.dismiss(lane);
                self.leave(state);
                self.unpark_all();
                return None;
            }
            state = self.park(state, lane)?;
        }
    }

    /// Sleeps until somebody wakes this lane, or the timer is due.
    fn park<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<J>>,
        lane: LaneId,
    ) -> Option<MutexGuard<'a, State<J>>> {
        let timer = state.core.next_timer();
        *state.parked.get_mut(lane.0)? = Some(timer);
        self.leave(state);
        if self.inbox.is_empty() {
            match timer {
                Time::NEVER => std::thread::park(),
                timer => std::thread::park_timeout(timer.since(self.now()).into()),
            }
        }
        let mut state = self.lock();
        *state.parked.get_mut(lane.0)? = None;
        Some(state)
    }
}
