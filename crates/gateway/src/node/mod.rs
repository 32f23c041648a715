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
mod attest;
mod backoff;
mod barred;
mod channel;
mod departure;
mod devices;
mod eviction;
mod evidence;
mod freshness;
mod link;
mod p4dra;
mod packets;
mod records;
mod roaming;
mod settings;
mod status;
mod visitors;

use std::collections::{BTreeMap, HashMap, VecDeque};

use linewarden_dataplane::{DataPlane, Live};
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{Revision, Settlement};

use self::adoption::Adoption;
use self::attest::{Attestation, Strays};
use self::barred::Barred;
use self::channel::Channel;
use self::devices::Held;
pub use self::eviction::Eviction;
use self::eviction::Policy;
use self::evidence::Showing;
use self::freshness::Freshness;
use self::p4dra::P4draRounds;
pub use self::packets::WRONG_TAGS;
use self::roaming::Reports;
pub(crate) use self::settings::{ATTEST_PERIOD_S_MAX, P4DRA_ROUND_S, WIPE_AFTER_MS};
pub use self::settings::{ReconfigureError, Settings, SettingsError};
pub use self::status::{AttestStatus, InPacketsStatus, LinkState, P4draStatus, Status, TrustState};
use self::visitors::Visitors;
use crate::audit::{AuditState, Happening, Record, Trail};
use crate::exchange::Ask;
use crate::time::Clock;

/// How often housekeeping is done, ns.
const HOUSEKEEPING_NS: u64 = 5_000_000_000;
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
    /// Devices without a row that the log has named, and until when it does not name them again.
    unserved: devices::Named,
    /// Likewise, whose REQUESTs stated that all rows that are left are answered.
    stated_beyond: devices::Named,
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
    showing: Showing,
    /// Whether the data plane attests provers.
    attests: bool,
    attestation: Attestation,
    strays: Strays,
    /// `None`: it is off.
    p4dra: Option<P4draRounds>,
    feed_from: Revision,
    barred: Barred,
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
    kernel_drops: u64,
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
            unserved: devices::Named::default(),
            stated_beyond: devices::Named::default(),
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
            showing: Showing::default(),
            attests: false,
            attestation: Attestation::default(),
            strays: Strays::default(),
            p4dra: None,
            feed_from: Revision::ZERO,
            barred: Barred::default(),
            feed_due_ns: 0,
            link_ok_ns: None,
            housekeeping_due_ns: None,
            now_ns: 0,
            reclaim_due_ns: None,
            is_stuck: false,
            events_lost: 0,
            kernel_drops: 0,
            told: (0, 0),
            trail: Trail::default(),
            stopping: false,
            status: Status::default(),
        };
        node.attests = node.plane.provers().is_some();
        node.status.p4dra = node.plane.p4dra().map(|p4dra| P4draStatus {
            provers: p4dra.provers() as u64,
            ..P4draStatus::default()
        });
        node.p4dra = node.status.p4dra.as_ref().map(|_| P4draRounds::default());
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
    /// when the source of randomness fails; it is drawn from only when a freshness value or a round is due.
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
        self.attest(clock, random);
        self.follow_p4dra(clock, random);
        self.asks(clock)
    }

    /// When [`Node::tick`] has something to do even if nothing happens, monotonic clock.
    #[must_use]
    pub fn due_ns(&self, now_ns: u64) -> u64 {
        let follows = self.enter.done && !self.feed.out && !self.stopping && !self.status.replaced;
        let feed = follows.then_some(self.feed.backoff.due_ns(self.feed_due_ns));
        let soon = !self.busy.is_empty() || self.status.link != LinkState::Reachable;
        [
            feed,
            self.housekeeping_due_ns,
            self.reclaim_due_ns,
            self.attest_due_ns(),
            self.p4dra_due_ns(),
        ]
        .into_iter()
        .flatten()
        .chain(soon.then(|| now_ns.saturating_add(SOON_NS)))
        .min()
        .unwrap_or(now_ns)
        .clamp(now_ns, now_ns.saturating_add(LATEST_NS))
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
        let fixed = |settings: &Settings| {
            let Settings {
                gateway,
                ring,
                spare_live_sessions,
                eviction,
                ..
            } = *settings;
            (gateway, ring, spare_live_sessions, eviction)
        };
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
        if end {
            self.record_let_in(None);
        }
        self.trail.take(end)
    }

    /// How the file of the records fares.
    pub(crate) fn note_audit(&mut self, state: AuditState) {
        self.status.audit_lost = state.lost;
        self.status.audit_failing = state.failing;
    }

    fn refresh(&mut self, clock: Clock, random: &mut dyn FnMut() -> Option<[u8; 8]>) {
        // A gateway whose lease ended unrenewed stops (LAP/1 1.4.6): who was revoked meanwhile gets nothing from it.
        let lapsed = self.status.replaced || self.is_lapsed(clock);
        if lapsed != std::mem::replace(&mut self.status.lapsed, lapsed) && !self.status.replaced {
            self.trail.note(if lapsed {
                Happening::Lapsed
            } else {
                Happening::Resumed
            });
        }
        if self.status.lapsed {
            // At once: by itself the last value would be answered for up to 16 s more.
            if self.freshness.forget() {
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

    fn housekeep(&mut self, clock: Clock) {
        let now_ns = clock.monotonic_ns;
        self.plane.housekeep();
        // Here alone: it asks the kernel for all interfaces.
        self.plane.follow_links();
        self.status.plane_failure = self.plane.failure();
        self.wipe_revoked(now_ns);
        self.retry_no_room();
        self.retry_exhausted(clock);
        self.tell_shortages();
        self.count_strays();
        self.count_stamps();
        self.count_dropped_types();
        let counted = self.plane.counters();
        if let Ok(counters) = &counted {
            self.trail.counters(counters, false);
            self.tell_kernel_drops(counters.kernel_drops);
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

    /// Says so when the kernel has dropped packets since it was looked at last.
    fn tell_kernel_drops(&mut self, kernel_drops: u64) {
        if kernel_drops > self.kernel_drops {
            tracing::warn!(
                dropped = kernel_drops - self.kernel_drops,
                "kernel dropped packets before the data plane saw them: receive buffer full"
            );
            self.kernel_drops = kernel_drops;
        }
    }

    fn count_stamps(&mut self) {
        match self.plane.stamped() {
            Ok(counts) => {
                self.status.in_packets = counts.map(|counts| InPacketsStatus {
                    stamped: counts.stamped,
                    not_ipv6: counts.not_ipv6,
                    stale: counts.stale,
                    unfit: counts.unfit,
                });
            }
            Err(error) => tracing::warn!(%error, "what packets carry cannot be counted"),
        }
    }

    fn count_dropped_types(&mut self) {
        match self.plane.dropped_types() {
            Ok(None) => {}
            Ok(Some(dropped)) => {
                let named = dropped.nonzero().map(|(ether_type, name, frames)| {
                    let name = name.map_or_else(|| format!("{ether_type:#06x}"), str::to_owned);
                    (name, frames)
                });
                let rest = Some(("other".to_owned(), dropped.other())).filter(|(_, frames)| *frames > 0);
                self.status.dropped_types = named.chain(rest).collect();
            }
            Err(error) => tracing::warn!(%error, "reading what the gate has dropped by type failed"),
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
}
