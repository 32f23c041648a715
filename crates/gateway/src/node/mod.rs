//! The node's decisions, without clock, randomness, database or thread of its own.
//!
//! ```text
//!             held when it stopped,           there is room
//!  (unknown) ───────────────────────► Waiting ─────────────► Installed ──┐ rows or credit low: ask, refill, grant
//!      ▲      first RESPONSE verified                         │  │  ▲    │
//!      │                                      place needed,   │  │  └────┘
//!      │           told                   credentials replaced│  │
//!      ├───────────────── Settling ◄──── Leaving ◄────────────┘  │
//!      │  a minute later                                         │
//!      └─────────────────── Revoked ◄────────────────────────────┘ (from any state)
//! ```
//!
//! A message of an unknown device goes to the controller; what that leases is installed, and the message goes through the
//! packet path once more.

mod adoption;
mod backoff;
mod channel;
mod devices;
mod eviction;
mod freshness;
mod records;
mod roaming;
mod settings;
mod status;
mod visitors;

use std::collections::{BTreeMap, HashMap, VecDeque};

use linewarden_controller::{Changes, Chunk, Reception, Want};
use linewarden_dataplane::{DataPlane, DataPlaneError, Event, EventKind, Live, Miss};
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{Change, Revision, Settlement};

use self::adoption::Adoption;
use self::channel::Channel;
use self::devices::{Held, State};
pub use self::eviction::Eviction;
use self::eviction::Policy;
use self::freshness::Freshness;
use self::roaming::Reports;
pub use self::settings::{ReconfigureError, Settings, SettingsError};
pub use self::status::{LinkState, Status};
use self::visitors::Visitors;
use crate::audit::{AuditState, Happening, Record, Trail};
use crate::exchange::{Answer, Ask, LinkError};
use crate::time::Clock;

/// How often housekeeping is done, ns.
const HOUSEKEEPING_NS: u64 = 5_000_000_000;
/// A revoked device stays in the data plane for so long, so that its packets are counted as what they are, ns.
const WIPE_AFTER_NS: u64 = 60_000_000_000;
/// Devices for which rows are asked at once.
const WANTS_PER_ASK: usize = 256;
/// A wiped place is free at the second housekeeping after it; one follows the other after this, ns, while a device
/// waits for a place.
const RECLAIM_AFTER_NS: u64 = 20_000_000;
/// Behind a gate with a session in every place, the next look at who could leave comes after this, ns.
const FULL_NS: u64 = 500_000_000;
/// What could not be done is tried again after this, ns.
const SOON_NS: u64 = 10_000_000;
/// The node looks round at least this often, ns.
const LATEST_NS: u64 = 100_000_000;

/// One data plane and what the node knows about its devices.
pub struct Node {
    plane: Box<dyn DataPlane>,
    settings: Settings,
    devices: HashMap<DeviceId, Held>,
    /// Devices that need rows, in the order in which they began to.
    wants: VecDeque<DeviceId>,
    /// Devices in the question that is out.
    asked: Vec<DeviceId>,
    /// Devices whose line was busy; tried again at each tick.
    busy: Vec<DeviceId>,
    /// Devices that wait for a place, in the order in which they began to.
    no_room: BTreeMap<u64, DeviceId>,
    no_room_next: u64,
    /// Devices for which no row was left, in the order in which that was told; some may have got rows since.
    exhausted: VecDeque<DeviceId>,
    /// Whom to evict.
    order: Box<dyn Policy>,
    /// Where devices stood that have left, to be told; and being told.
    settlements: Vec<Settlement>,
    settling: Vec<Settlement>,
    /// Messages of devices that are not here.
    visitors: Visitors,
    /// Sessions that the controller has not heard of.
    reports: Reports,
    /// What the feed told of devices that are not here while an answer was out that may bring them.
    meanwhile: HashMap<DeviceId, u32>,
    freshness: Freshness,
    fresh: Option<[u8; 8]>,
    /// What an earlier process left, until it is known whether another one has been in between.
    left: Option<Adoption>,
    enter: Channel,
    resume: Channel,
    lease: Channel,
    receive: Channel,
    settle: Channel,
    report: Channel,
    feed: Channel,
    feed_from: Revision,
    feed_due_ns: u64,
    /// When the feed was asked last that told all there was, boot-time clock: no revocation before it is missed.
    link_ok_ns: Option<u64>,
    housekeeping_due_ns: Option<u64>,
    /// Of the last tick.
    now_ns: u64,
    reclaim_due_ns: Option<u64>,
    /// Somebody waits for a place, and nobody could leave when that was last tried.
    is_stuck: bool,
    events_lost: u64,
    /// Devices without rows in the registry, and without room, when the log was told last.
    told: (u64, u64),
    /// What happened, for the audit record.
    trail: Trail,
    stopping: bool,
    status: Status,
}

impl Node {
    /// A node over a data plane that is empty, or holds what an earlier process of this gateway left.
    ///
    /// # Errors
    /// Settings that do not fit together.
    pub fn new(plane: Box<dyn DataPlane>, settings: Settings) -> Result<Self, SettingsError> {
        settings.check()?;
        let mut node = Self {
            plane,
            settings,
            devices: HashMap::new(),
            wants: VecDeque::new(),
            asked: Vec::new(),
            busy: Vec::new(),
            no_room: BTreeMap::new(),
            no_room_next: 0,
            exhausted: VecDeque::new(),
            order: settings.eviction.policy(),
            settlements: Vec::new(),
            settling: Vec::new(),
            visitors: Visitors::default(),
            reports: Reports::default(),
            meanwhile: HashMap::new(),
            freshness: Freshness::default(),
            fresh: None,
            left: None,
            enter: Channel::default(),
            resume: Channel::default(),
            lease: Channel::default(),
            receive: Channel::default(),
            settle: Channel::default(),
            report: Channel::default(),
            feed: Channel::default(),
            feed_from: Revision::ZERO,
            feed_due_ns: 0,
            link_ok_ns: None,
            housekeeping_due_ns: None,
            now_ns: 0,
            reclaim_due_ns: None,
            is_stuck: false,
            events_lost: 0,
            told: (0, 0),
            trail: Trail::default(),
            stopping: false,
            status: Status::default(),
        };
        node.take_up();
        Ok(node)
    }

    /// The data plane.
    #[must_use]
    pub fn plane(&self) -> &dyn DataPlane {
        &*self.plane
    }

    /// The data plane, to be changed by whoever knows what the node expects of it.
    pub fn plane_mut(&mut self) -> &mut dyn DataPlane {
        &mut *self.plane
    }

    /// How things stand.
    #[must_use]
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Does what is due by `clock` and returns what to ask the controller. `random` gives 8 random bytes, or `None`
    /// when the source of randomness fails; it is drawn from only when a freshness value is due.
    pub fn tick(&mut self, clock: Clock, random: &mut dyn FnMut() -> Option<[u8; 8]>) -> Vec<Ask> {
        self.now_ns = clock.monotonic_ns;
        self.trail.at(clock);
        self.refresh(clock, random);
        self.take_events();
        self.take_misses();
        self.retry_busy();
        let now_ns = clock.monotonic_ns;
        if self.housekeeping_due_ns.is_none_or(|due_ns| due_ns <= now_ns) {
            self.housekeeping_due_ns = Some(now_ns.saturating_add(HOUSEKEEPING_NS));
            self.housekeep(clock);
        }
        self.find_room(clock);
        self.asks(clock)
    }

    /// When [`Node::tick`] has something to do even if nothing happens, monotonic clock.
    #[must_use]
    pub fn due_ns(&self, now_ns: u64) -> u64 {
        let follows = self.enter.done && !self.feed.out && !self.stopping && !self.status.replaced;
        let feed = follows.then_some(self.feed.backoff.due_ns(self.feed_due_ns));
        let soon = !self.busy.is_empty() || self.status.link != LinkState::Reachable;
        [feed, self.housekeeping_due_ns, self.reclaim_due_ns]
            .into_iter()
            .flatten()
            .chain(soon.then(|| now_ns.saturating_add(SOON_NS)))
            .min()
            .unwrap_or(now_ns)
            .clamp(now_ns, now_ns.saturating_add(LATEST_NS))
    }

    /// Takes an answer of the controller.
    pub fn answer(&mut self, answer: Answer, clock: Clock) {
        let now_ns = clock.monotonic_ns;
        match answer {
            Answer::Entered(result) => {
                if let Some(number) = self.unwrap_answer(result, now_ns, |node| &mut node.enter) {
                    self.enter.done = true;
                    self.confirm(number);
                }
            }
            Answer::Chunk(result) => {
                if let Some(chunk) = self.unwrap_answer(result, now_ns, |node| &mut node.resume) {
                    self.take_chunk(chunk);
                }
            }
            Answer::Rows(result) => match self.unwrap_answer(result, now_ns, |node| &mut node.lease) {
                Some((provisions, refused)) => {
                    self.clear_asked();
                    provisions.into_iter().for_each(|rows| self.provide(rows));
                    refused.iter().for_each(|refused| self.refuse(refused));
                }
                None => self.ask_again(),
            },
            Answer::Receptions(result) => {
                let asked = self.visitors.asked();
                match self.unwrap_answer(result, now_ns, |node| &mut node.receive) {
                    Some(receptions) => {
                        for (miss, reception) in asked.into_iter().zip(receptions) {
                            self.receive(miss, reception);
                        }
                    }
                    None => asked.iter().for_each(|miss| self.turn_away(miss)),
                }
            }
            Answer::Settled(result) => match self.unwrap_answer(result, now_ns, |node| &mut node.settle) {
                Some(back) => {
                    self.status.rows_given_back += back;
                    self.settled();
                }
                None => self.settlements.append(&mut self.settling),
            },
            Answer::Reported { result, at_ns } => {
                let answers = self.unwrap_answer(result, now_ns, |node| &mut node.report);
                self.take_reported(answers, at_ns);
            }
            Answer::Changes { result, at_ns } => {
                if let Some(changes) = self.unwrap_answer(result, now_ns, |node| &mut node.feed) {
                    self.take_changes(&changes, now_ns, at_ns);
                }
            }
        }
        if !self.is_expecting() {
            self.meanwhile.clear();
        }
        self.status.rows_waited_for = self.wants.len() as u64;
    }

    /// From now on REQUESTs are answered with a NAK; handshakes under way may end.
    pub fn begin_stop(&mut self) {
        self.stopping = true;
        self.status.stopping = true;
        self.plane.set_stopping(true);
    }

    /// Whether the data plane goes on with what it holds when this process ends; else it has to be [closed](Node::close).
    #[must_use]
    pub fn outlives_process(&self) -> bool {
        self.plane.outlives_process()
    }

    /// Shuts every device out and returns where each stood: nothing can use their rows any more.
    pub fn close(&mut self) -> Vec<Settlement> {
        self.begin_stop();
        self.shut_out()
    }

    /// Whether an answer to [`Ask::Settle`] is out.
    #[must_use]
    pub fn is_settling(&self) -> bool {
        self.settle.out
    }

    /// Whether an answer is out that may bring devices. None is asked for before the feed has been read to its end.
    fn is_expecting(&self) -> bool {
        self.receive.out || self.is_following() && !self.resume.done
    }

    /// Whether the feed has been read to its end once.
    fn is_following(&self) -> bool {
        self.link_ok_ns.is_some()
    }

    /// Puts other settings into force, in the data plane as well: all or, after an error, none.
    ///
    /// # Errors
    /// Settings that do not fit together or cannot change; the data plane's.
    pub fn reconfigure(
        &mut self,
        settings: Settings,
        live: &Live,
        clock: Clock,
    ) -> Result<(), ReconfigureError> {
        settings.check()?;
        let fixed = |settings: &Settings| (settings.ring, settings.spare_live_sessions, settings.eviction);
        if fixed(&settings) != fixed(&self.settings) {
            return Err(ReconfigureError::Fixed);
        }
        let boot_s = u32::try_from(clock.boot_ns / 1_000_000_000).unwrap_or(u32::MAX);
        self.plane.reconfigure(live, boot_s)?;
        self.settings = settings;
        // What was put off by the old interval is done by the new one.
        self.feed_due_ns = self.feed_due_ns.min(clock.monotonic_ns);
        self.status.reloads += 1;
        self.trail.note(Happening::Reloaded);
        Ok(())
    }

    /// Another configuration was refused.
    pub fn refuse_reload(&mut self, errors: Vec<String>) {
        self.status.reloads_refused += 1;
        self.trail.note(Happening::ReloadRefused { errors });
    }

    /// Something happened that the node does not know of itself.
    pub fn record(&mut self, what: Happening) {
        self.trail.note(what);
    }

    /// What happened is recorded from now on, at most so much of each kind a second; 0: nothing is.
    pub fn set_audit_rate(&mut self, per_s: u32) {
        self.trail.set_rate(per_s);
    }

    /// What happened since it was asked last; at the `end`, with all that was put off.
    pub fn take_records(&mut self, end: bool) -> Vec<Record> {
        if end && let Ok(counters) = self.plane.counters() {
            self.trail.counters(&counters, true);
        }
        self.trail.take(end)
    }

    /// How the file of the records fares.
    pub(crate) fn note_audit(&mut self, state: AuditState) {
        self.status.audit_lost = state.lost;
        self.status.audit_failing = state.failing;
    }

    fn refresh(&mut self, clock: Clock, random: &mut dyn FnMut() -> Option<[u8; 8]>) {
        // A gateway whose lease ended unrenewed stops (LAP/1 1.4.6): the last value ages, and nothing is answered.
        let lapsed = self.status.replaced || self.is_lapsed(clock);
        if lapsed != std::mem::replace(&mut self.status.lapsed, lapsed) && !self.status.replaced {
            self.trail.note(if lapsed {
                Happening::Lapsed
            } else {
                Happening::Resumed
            });
        }
        if self.status.lapsed {
            // What was drawn before a suspend does not age through it.
            if self.freshness.forget_if_woken(clock) {
                self.fresh = None;
                self.plane.set_fresh([0; 8], clock.monotonic_ns);
                self.plane.set_fresh([0; 8], clock.monotonic_ns);
            }
            return;
        }
        let count = self.freshness.due(clock);
        for _ in 0..count {
            // Without randomness the old value ages, and the data plane stops by itself (LAP/1 1.4.1). Zero, which
            // one draw in 2^64 gives, means none: the next tick draws again.
            let Some(fresh) = random().filter(|fresh| *fresh != [0; 8]) else {
                self.status.draws_failed += 1;
                return;
            };
            self.plane.set_fresh(fresh, clock.monotonic_ns);
            self.fresh = Some(fresh);
        }
        if count > 0 {
            self.freshness.drawn(clock);
        }
    }

    fn is_lapsed(&mut self, clock: Clock) -> bool {
        let lease_ns = u64::from(self.settings.link_lease_s).saturating_mul(1_000_000_000);
        // What was taken up was in order when this process began.
        let taken_up_ns = self
            .left
            .as_mut()
            .map(|left| *left.since_ns.get_or_insert(clock.boot_ns));
        self.link_ok_ns
            .or(taken_up_ns)
            .is_some_and(|ok_ns| clock.boot_ns.saturating_sub(ok_ns) > lease_ns)
    }

    fn take_events(&mut self) {
        let mut events = Vec::new();
        let drained = self.plane.drain_events(&mut |event| events.push(event));
        self.note_draining(drained);
        events.iter().for_each(|event| self.take_event(event));
    }

    fn note_draining(&mut self, drained: Result<(), DataPlaneError>) {
        let failing = drained.is_err();
        if let Err(error) = drained
            && !self.status.events_failing
        {
            tracing::error!(%error, "the data plane's events cannot be read; trying on");
        }
        self.status.events_failing = failing;
    }

    fn take_event(&mut self, event: &Event) {
        match event.kind {
            EventKind::Session(opening) => {
                self.status.sessions_opened += 1;
                self.record_session(event, opening.session);
                self.note_opening(event.device, opening);
                tracing::debug!(device = %event.device, idx = %event.idx, from = %event.from, "session");
            }
            EventKind::RowsLow | EventKind::RowsOut => self.want(event.device),
            EventKind::WrongTag => {
                self.status.wrong_tags += 1;
                self.trail.note(Happening::WrongTag {
                    device: event.device,
                    row: event.idx,
                    address: event.from,
                    ingress: event.ingress,
                });
                tracing::warn!(device = %event.device, idx = %event.idx, from = %event.from, "wrong tag");
            }
        }
    }

    fn take_misses(&mut self) {
        let mut misses = Vec::new();
        let drained = self.plane.drain_misses(&mut |miss| misses.push(miss));
        if let Err(error) = drained {
            tracing::debug!(%error, "messages of unknown devices cannot be read");
        }
        for miss in misses {
            match self.devices.get(&miss.device()).map(|held| held.state) {
                _ if self.stopping => {}
                None => {
                    if let Some(turned_away) = self.visitors.queue(miss) {
                        self.turn_away(&turned_away);
                    }
                }
                // It came while another message of it was on its way.
                Some(State::Installed) => self.replay(miss),
                // The device repeats; it has a place then, or is gone.
                Some(_) => {}
            }
        }
    }

    fn receive(&mut self, miss: Miss, reception: Reception) {
        match reception {
            Reception::Silence => {}
            Reception::Challenge(challenge) => self.plane.send(&miss, &challenge),
            Reception::Admit(provision) => {
                self.status.admitted += 1;
                self.trail.note(Happening::Admitted {
                    device: provision.device,
                    row: provision.first,
                    rows: provision.rows.len() as u64,
                    address: miss.source(),
                });
                if self.admit(provision) {
                    self.replay(miss);
                }
            }
        }
    }

    /// Nobody has time for it; its device repeats it.
    fn turn_away(&mut self, miss: &Miss) {
        self.status.visitors_turned_away += 1;
        if visitors::is_response(miss) {
            self.plane.expect(miss);
        }
    }

    fn replay(&mut self, miss: Miss) {
        if let Err(error) = self.plane.replay(miss) {
            tracing::debug!(%error, "a message could not be handed on; its device repeats it");
        }
    }

    fn housekeep(&mut self, clock: Clock) {
        let now_ns = clock.monotonic_ns;
        self.plane.housekeep();
        self.status.plane_failure = self.plane.failure();
        self.wipe_revoked(now_ns);
        self.retry_no_room();
        self.retry_exhausted(clock);
        self.tell_shortages();
        let counted = self.plane.counters();
        if let Ok(counters) = &counted {
            self.trail.counters(counters, false);
        }
        match counted {
            Ok(counters) if counters.events_lost > self.events_lost => {
                tracing::warn!(
                    lost = counters.events_lost - self.events_lost,
                    "events were lost; looking through all devices"
                );
                self.events_lost = counters.events_lost;
                self.look_through();
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "the counters cannot be read"),
        }
    }

    /// Evicts for those that wait for a place. What is wiped may still be looked at by a packet in flight; a little later
    /// it is free.
    fn find_room(&mut self, clock: Clock) {
        let now_ns = clock.monotonic_ns;
        if self.reclaim_due_ns.is_some_and(|due_ns| due_ns <= now_ns) {
            self.reclaim_due_ns = None;
            self.plane.housekeep();
            self.retry_no_room();
        }
        if !self.no_room.is_empty() && self.reclaim_due_ns.is_none() {
            // With nobody who could leave, there is time until somebody can.
            let left = self.make_room(clock);
            self.is_stuck = left == 0;
            let after_ns = match self.is_stuck {
                true => FULL_NS,
                false => RECLAIM_AFTER_NS,
            };
            self.reclaim_due_ns = Some(now_ns.saturating_add(after_ns));
        }
        self.status.no_room = self.no_room.len() as u64;
    }

    /// Once for all devices: a line for each would drown the log.
    fn tell_shortages(&mut self) {
        let (exhausted, no_room) = (self.status.exhausted, self.status.no_room);
        let (told_exhausted, told_no_room) = self.told;
        if exhausted > told_exhausted {
            tracing::warn!(
                devices = exhausted,
                "the registry has no more rows for these; let their agents renew while they have rows, or enrol them anew"
            );
        }
        if no_room > told_no_room && self.is_stuck {
            tracing::error!(
                devices = no_room,
                "the data plane has no room for these, and nobody who could leave; raise `slots`"
            );
        }
        self.told = (exhausted, no_room);
    }

    fn asks(&mut self, clock: Clock) -> Vec<Ask> {
        let mut asks = Vec::new();
        let now_ns = clock.monotonic_ns;
        if self.stopping || self.status.replaced {
            return asks;
        }
        if self.enter.is_free(now_ns) {
            self.enter.ask(clock);
            asks.push(Ask::Enter);
        }
        if !self.enter.done {
            return asks;
        }
        if self.feed.is_free(now_ns) && self.feed_due_ns <= now_ns {
            self.feed.ask(clock);
            asks.push(Ask::Changes {
                since: self.feed_from,
            });
        }
        if !self.is_following() {
            return asks;
        }
        if self.resume.is_free(now_ns) {
            self.resume.ask(clock);
            asks.push(Ask::Resume);
        }
        // Not while what was held before is on its way, nor while the device is asked about: what was said before a
        // settlement would bring the device back afterwards, with rows that are no longer this gateway's.
        if self.resume.done && self.settle.is_free(now_ns) {
            let visitors = &self.visitors;
            let due = |settlement: &mut Settlement| !visitors.is_asked(settlement.device);
            self.settling = self.settlements.extract_if(.., due).collect();
            if !self.settling.is_empty() {
                self.settle.ask(clock);
                asks.push(Ask::Settle(self.settling.clone()));
            }
        }
        if !self.reports.is_empty() && self.report.is_free(now_ns) {
            self.report.ask(clock);
            asks.push(Ask::Report(self.reports.ask()));
        }
        if !self.wants.is_empty() && self.lease.is_free(now_ns) {
            let wants = self.next_wants(now_ns);
            if !wants.is_empty() {
                self.asked = wants.iter().map(|want| want.device).collect();
                self.lease.ask(clock);
                asks.push(Ask::Lease(wants));
            }
        }
        if let Some(fresh) = self.fresh
            && !self.visitors.is_empty()
            && self.receive.is_free(now_ns)
        {
            let knocks = self.visitors.knocks(|device| self.devices.contains_key(&device));
            if !knocks.is_empty() {
                self.receive.ask(clock);
                asks.push(Ask::Receive { knocks, fresh });
            }
        }
        self.status.rows_waited_for = self.wants.len() as u64;
        asks
    }

    fn next_wants(&mut self, now_ns: u64) -> Vec<Want> {
        let mut wants = Vec::new();
        while wants.len() < WANTS_PER_ASK
            && let Some(device) = self.wants.pop_front()
        {
            match self.want_of(device, now_ns) {
                Some(want) => wants.push(want),
                None => {
                    if let Some(held) = self.devices.get_mut(&device) {
                        held.asking = false;
                    }
                }
            }
        }
        wants
    }

    fn take_chunk(&mut self, chunk: Chunk) {
        for damaged in &chunk.damaged {
            tracing::error!(record = damaged, "left out");
        }
        self.status.damaged += chunk.damaged.len() as u64;
        self.status.resumed = chunk.progress;
        for provision in chunk.provisions {
            self.admit(provision);
        }
        if chunk.last {
            self.resume.done = true;
            self.status.loaded = true;
            tracing::info!(
                devices = self.status.devices,
                "what was held before is here again"
            );
        }
    }

    fn take_changes(&mut self, changes: &Changes, now_ns: u64, at_ns: u64) {
        for change in &changes.changes {
            self.take_change(*change, now_ns);
        }
        for elsewhere in &changes.elsewhere {
            self.take_elsewhere(elsewhere, at_ns);
        }
        self.feed_from = changes.upto;
        if changes.more {
            self.feed_due_ns = now_ns;
            return;
        }
        self.feed_due_ns = now_ns.saturating_add(self.settings.feed_poll_ms.saturating_mul(1_000_000));
        if !self.is_following() {
            self.plane.set_filtering(true);
        }
        self.link_ok_ns = self.link_ok_ns.max(Some(self.feed.asked_ns));
    }

    fn take_change(&mut self, change: Change, now_ns: u64) {
        if self.is_expecting() {
            self.meanwhile.insert(change.device, change.epoch);
        }
        if change.active {
            self.plane.enrol(change.device);
        }
        match change.active {
            true => self.renew(change.device, change.epoch),
            false => self.revoke(change.device, now_ns),
        }
    }

    /// The answer's content, or `None` after a failure; keeps the books and the log about the link's state.
    fn unwrap_answer<T>(
        &mut self,
        result: Result<T, LinkError>,
        now_ns: u64,
        channel: impl Fn(&mut Self) -> &mut Channel,
    ) -> Option<T> {
        channel(self).out = false;
        match result {
            Ok(content) => {
                if channel(self).backoff.succeed() {
                    tracing::info!("the controller answers again");
                }
                self.status.link = LinkState::Reachable;
                Some(content)
            }
            Err(LinkError::Failed(error)) => {
                if channel(self).backoff.fail(now_ns) {
                    tracing::error!(
                        error,
                        "the controller does not answer; going on with what is here"
                    );
                }
                self.status.link = LinkState::Lost { error };
                None
            }
            Err(LinkError::Replaced(error)) => {
                if !std::mem::replace(&mut self.status.replaced, true) {
                    self.trail.note(Happening::Replaced);
                    tracing::error!(
                        error,
                        "this process has been replaced: it answers nothing any more"
                    );
                    self.plane.set_stopping(true);
                }
                self.status.link = LinkState::Lost { error };
                None
            }
        }
    }
}
