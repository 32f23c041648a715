//! The node's decisions, without clock, randomness, database or thread of its own.
//!
//! ```text
//!            chunk of the fleet,            install
//!  (unknown) ─────────────────────► Wanted ─────────► Installed ──┐ RowsLow, RowsOut: ask, refill
//!            enrolled since           ▲  ▲               │  ▲     │
//!                                     │  └───── wiped ───┘  └─────┘
//!                                     │    (credentials replaced)
//!            revoked, in any state ───┴──► Revoked ── a minute later: wiped ──► (unknown)
//! ```

mod backoff;
mod devices;
mod freshness;
mod status;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};

use linewarden_dataplane::{Config, DataPlane, Event, EventKind};
use linewarden_protocol::ids::{DeviceId, RowIndex};
use linewarden_registry::{Change, Changes, Revision};

use self::backoff::Backoff;
use self::devices::{Held, State};
use self::freshness::Freshness;
pub use self::status::{RegistryState, Status};
use crate::exchange::{Answer, Ask, Chunk, Want};
use crate::time::Clock;

/// How often housekeeping is done, ns.
const HOUSEKEEPING_NS: u64 = 5_000_000_000;
/// A revoked device stays in the data plane for so long, so that its packets are counted as what they are, ns.
const WIPE_AFTER_NS: u64 = 60_000_000_000;
/// Devices for which rows are asked at once.
const WANTS_PER_ASK: usize = 256;

/// How the node goes about; fixed while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Rows that are reserved for a device at a time (LAP/1 1.4.6).
    pub reserve_block: u32,
    /// Rows that the data plane holds for a device beside the current one.
    pub ring: u32,
    /// More are asked for when no more than this are left; less than `ring`.
    pub low_rows: u32,
    /// How often the registry is asked for changes, ms; a revocation takes at most this and a tick to arrive.
    pub feed_poll_ms: u64,
}

impl Settings {
    /// Blocks of 4 rows, as LAP/1 1.4.6 has them; changes every 50 ms.
    #[must_use]
    pub fn for_plane(config: &Config) -> Self {
        Self {
            reserve_block: 4.min(config.geometry.ring.saturating_add(1)),
            ring: config.geometry.ring,
            low_rows: config.low_rows,
            feed_poll_ms: 50,
        }
    }

    /// Checks that the numbers fit together.
    ///
    /// # Errors
    /// The field that does not.
    pub fn check(&self) -> Result<(), SettingsError> {
        let most = self.ring.saturating_add(1);
        let refuse = |field, value: u64, allowed: String| {
            Err(SettingsError {
                field,
                value,
                allowed,
            })
        };
        if self.reserve_block == 0 || self.reserve_block > most {
            let allowed = format!("1 to {most}, which is `ring` + 1");
            return refuse("reserve_block", self.reserve_block.into(), allowed);
        }
        // The packet path looks that many places ahead in the ring; further ones are its beginning again.
        if self.low_rows >= self.ring.max(1) {
            let allowed = format!("less than `ring`, which is {}", self.ring);
            return refuse("low_rows", self.low_rows.into(), allowed);
        }
        if !(1..=60_000).contains(&self.feed_poll_ms) {
            return refuse("feed_poll_ms", self.feed_poll_ms, "1 to 60000".to_owned());
        }
        Ok(())
    }
}

/// A setting that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} = {value}: allowed is {allowed}")]
pub struct SettingsError {
    /// Its name.
    pub field: &'static str,
    /// What was given.
    pub value: u64,
    /// What would do.
    pub allowed: String,
}

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
    freshness: Freshness,
    load: Channel,
    rows: Channel,
    feed: Channel,
    feed_from: Option<Revision>,
    feed_due_ns: u64,
    housekeeping_due_ns: Option<u64>,
    events_lost: u64,
    /// Devices without rows in the registry, and without room, when the log was told last.
    told: (u64, u64),
    stopping: bool,
    status: Status,
}

/// One kind of question: whether one is out, and when the next may be asked.
#[derive(Debug, Default)]
struct Channel {
    out: bool,
    done: bool,
    backoff: Backoff,
}

impl Channel {
    fn is_free(&self, now_ns: u64) -> bool {
        !self.out && !self.done && self.backoff.is_due(now_ns)
    }
}

impl Node {
    /// A node over an empty data plane.
    ///
    /// # Errors
    /// Settings that do not fit together.
    pub fn new(plane: Box<dyn DataPlane>, settings: Settings) -> Result<Self, SettingsError> {
        settings.check()?;
        Ok(Self {
            plane,
            settings,
            devices: HashMap::new(),
            wants: VecDeque::new(),
            asked: Vec::new(),
            busy: Vec::new(),
            freshness: Freshness::default(),
            load: Channel::default(),
            rows: Channel::default(),
            feed: Channel::default(),
            feed_from: None,
            feed_due_ns: 0,
            housekeeping_due_ns: None,
            events_lost: 0,
            told: (0, 0),
            stopping: false,
            status: Status::default(),
        })
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

    /// Does what is due by `clock` and returns what to ask the registry. `random` gives 8 random bytes, or `None`
    /// when the source of randomness fails; it is drawn from only when a freshness value is due.
    pub fn tick(&mut self, clock: Clock, random: &mut dyn FnMut() -> Option<[u8; 8]>) -> Vec<Ask> {
        self.refresh(clock, random);
        self.take_events();
        self.retry_busy();
        let now_ns = clock.monotonic_ns;
        if self.housekeeping_due_ns.is_none_or(|due_ns| due_ns <= now_ns) {
            self.housekeeping_due_ns = Some(now_ns.saturating_add(HOUSEKEEPING_NS));
            self.housekeep(now_ns);
        }
        self.asks(now_ns)
    }

    /// Takes an answer of the registry.
    pub fn answer(&mut self, answer: Answer, clock: Clock) {
        let now_ns = clock.monotonic_ns;
        match answer {
            Answer::Chunk(result) => {
                self.load.out = false;
                if let Some(chunk) = self.unwrap_answer(result, now_ns, |node| &mut node.load) {
                    self.take_chunk(chunk);
                }
            }
            Answer::Rows(result) => {
                self.rows.out = false;
                if let Some((provisions, refused)) = self.unwrap_answer(result, now_ns, |node| &mut node.rows)
                {
                    self.clear_asked();
                    provisions.into_iter().for_each(|rows| self.provide(rows));
                    refused.iter().for_each(|refused| self.refuse(refused));
                } else {
                    self.ask_again();
                }
            }
            Answer::Changes(result) => {
                self.feed.out = false;
                if let Some(changes) = self.unwrap_answer(result, now_ns, |node| &mut node.feed) {
                    self.take_changes(&changes, now_ns);
                }
            }
            // Comes after the node's last tick.
            Answer::GivenBack(_) => {}
        }
        self.status.rows_waited_for = self.wants.len() as u64;
    }

    /// From now on REQUESTs are answered with a NAK; handshakes under way may end.
    pub fn begin_stop(&mut self) {
        self.stopping = true;
        self.status.stopping = true;
        self.plane.set_stopping(true);
    }

    /// Shuts every device out and returns which rows were never used: nothing can use them any more.
    pub fn close(&mut self) -> Vec<(DeviceId, RowIndex)> {
        self.begin_stop();
        let mut unused = Vec::new();
        for (device, held) in &self.devices {
            if held.mode.is_none_or(|mode| !devices::spends_rows(mode)) {
                continue;
            }
            if held.state == State::Wanted {
                unused.extend(held.first_unused().map(|first| (*device, first)));
            }
            if held.state != State::Installed {
                continue;
            }
            // Once REVOKED is in the word, no compare-and-swap on an older one succeeds: the number stands still.
            if self.plane.revoke(*device).is_err() {
                continue;
            }
            match self.plane.status(*device) {
                Some(line) if !line.commit.is_busy() => unused.push((*device, line.commit.idx())),
                _ => {}
            }
        }
        unused
    }

    fn refresh(&mut self, clock: Clock, random: &mut dyn FnMut() -> Option<[u8; 8]>) {
        let count = self.freshness.due(clock);
        for _ in 0..count {
            // Without randomness the old value ages, and the data plane stops by itself (LAP/1 1.4.1). Zero, which
            // one draw in 2^64 gives, means none: the next tick draws again.
            let Some(fresh) = random().filter(|fresh| *fresh != [0; 8]) else {
                self.status.draws_failed += 1;
                return;
            };
            self.plane.set_fresh(fresh, clock.monotonic_ns);
        }
        if count > 0 {
            self.freshness.drawn(clock);
        }
    }

    fn take_events(&mut self) {
        let mut events = Vec::new();
        let drained = self.plane.drain_events(&mut |event| events.push(event));
        let failing = drained.is_err();
        if let Err(error) = drained
            && !self.status.events_failing
        {
            tracing::error!(%error, "the data plane's events cannot be read; trying on");
        }
        self.status.events_failing = failing;
        events.iter().for_each(|event| self.take_event(event));
    }

    fn take_event(&mut self, event: &Event) {
        match event.kind {
            EventKind::Session(session) => {
                self.status.sessions_opened += 1;
                tracing::debug!(device = %event.device, idx = %event.idx, from = %event.from, ?session, "session");
            }
            EventKind::RowsLow | EventKind::RowsOut => self.want(event.device),
            EventKind::WrongTag => {
                self.status.wrong_tags += 1;
                tracing::warn!(device = %event.device, idx = %event.idx, from = %event.from, "wrong tag");
            }
        }
    }

    fn housekeep(&mut self, now_ns: u64) {
        self.plane.housekeep();
        self.status.plane_failure = self.plane.failure();
        self.wipe_revoked(now_ns);
        self.retry_pending();
        self.tell_shortages();
        match self.plane.counters() {
            Ok(counters) if counters.events_lost > self.events_lost => {
                tracing::warn!(
                    lost = counters.events_lost - self.events_lost,
                    "events were lost; looking through all devices"
                );
                self.events_lost = counters.events_lost;
                self.want_all_low();
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "the counters cannot be read"),
        }
    }

    /// Once for all devices: a line for each would drown the log.
    fn tell_shortages(&mut self) {
        let (exhausted, no_room) = (self.status.exhausted, self.status.no_room);
        let (told_exhausted, told_no_room) = self.told;
        if exhausted > told_exhausted {
            tracing::warn!(
                devices = exhausted,
                "the registry has no more rows for these; enrol new ones for them"
            );
        }
        if no_room > told_no_room {
            tracing::error!(
                devices = no_room,
                "the data plane has no room for these; raise `slots`"
            );
        }
        self.told = (exhausted, no_room);
    }

    fn asks(&mut self, now_ns: u64) -> Vec<Ask> {
        let mut asks = Vec::new();
        if self.stopping {
            return asks;
        }
        if self.load.is_free(now_ns) {
            self.load.out = true;
            asks.push(Ask::Load);
        }
        if let Some(since) = self.feed_from
            && self.feed.is_free(now_ns)
            && self.feed_due_ns <= now_ns
        {
            self.feed.out = true;
            asks.push(Ask::Changes { since });
        }
        if !self.wants.is_empty() && self.rows.is_free(now_ns) {
            let wants = self.next_wants();
            if !wants.is_empty() {
                self.asked = wants.iter().map(|want| want.device).collect();
                self.rows.out = true;
                asks.push(Ask::Rows(wants));
            }
        }
        self.status.rows_waited_for = self.wants.len() as u64;
        asks
    }

    fn next_wants(&mut self) -> Vec<Want> {
        let mut wants = Vec::new();
        while wants.len() < WANTS_PER_ASK
            && let Some(device) = self.wants.pop_front()
        {
            match self.want_of(device) {
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
        // What changes during the walk is left out of it: the feed is followed from its beginning on.
        self.feed_from.get_or_insert(chunk.feed_from);
        for damaged in &chunk.damaged {
            tracing::error!(record = damaged, "left out");
        }
        self.status.damaged += chunk.damaged.len() as u64;
        for provision in chunk.provisions {
            if self.meet(provision.device, provision.epoch) {
                self.provide(provision);
            }
        }
        for refused in &chunk.refused {
            if self.meet(refused.device, refused.epoch) {
                self.refuse(refused);
            }
        }
        if chunk.last {
            self.load.done = true;
            self.status.loaded = true;
            tracing::info!(devices = self.status.devices, "the fleet is loaded");
        }
    }

    fn take_changes(&mut self, changes: &Changes, now_ns: u64) {
        for change in &changes.changes {
            self.take_change(*change, now_ns);
        }
        self.feed_from = Some(changes.upto);
        self.feed_due_ns = if changes.more {
            now_ns
        } else {
            now_ns.saturating_add(self.settings.feed_poll_ms.saturating_mul(1_000_000))
        };
    }

    fn take_change(&mut self, change: Change, now_ns: u64) {
        if !change.active {
            return self.revoke(change.device, change.epoch, now_ns);
        }
        match self
            .devices
            .get(&change.device)
            .map(|held| (held.state, held.epoch))
        {
            None => {
                self.devices.insert(change.device, Held::wanted(change.epoch));
                self.want(change.device);
            }
            Some((State::Revoked { .. }, _)) => {}
            Some((_, epoch)) if epoch == change.epoch => {}
            Some(_) => self.replace(change.device, change.epoch),
        }
    }

    /// The answer's content, or `None` after a failure; keeps the books and the log about the registry's state.
    fn unwrap_answer<T>(
        &mut self,
        result: Result<T, String>,
        now_ns: u64,
        channel: impl Fn(&mut Self) -> &mut Channel,
    ) -> Option<T> {
        match result {
            Ok(content) => {
                if channel(self).backoff.succeed() {
                    tracing::info!("the registry answers again");
                }
                self.status.registry = RegistryState::Reachable;
                Some(content)
            }
            Err(error) => {
                if channel(self).backoff.fail(now_ns) {
                    tracing::error!(error, "the registry does not answer; going on with what is here");
                }
                self.status.registry = RegistryState::Lost { error };
                None
            }
        }
    }
}
