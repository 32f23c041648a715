//! The node: all decisions of a gateway, without clock, random numbers, database or threads of its own.
//!
//! ```text
//!              lease resumed,                  slot available
//!  (unknown) ───────────────────────► Waiting ─────────────► Installed ──┐ rows or credit low: request, refill, grant
//!      ▲      first RESPONSE verified                         │  │  ▲    │
//!      │                                      slot needed,    │  │  └────┘
//!      │         recorded               credentials replaced  │  │
//!      ├────── ReportingUnusedRows ◄──── Leaving ◄────────────┘  │
//!      │  wiped after a minute                                   │
//!      └─────────────────── Revoked ◄────────────────────────────┘ (from any state)
//! ```
//!
//! A message of an unknown device is sent to the controller. The leased rows are installed, and the data plane handles
//! the message again.

mod admission_queue;
mod adoption;
mod attest;
mod blocked;
mod channel;
mod devices;
mod eviction;
mod evidence;
mod freshness;
mod link;
mod p4dra;
mod packets;
mod records;
mod removal;
mod retry;
mod roaming;
mod settings;
mod status;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use linewarden_dataplane::{DataPlane, LiveSettings};
use linewarden_protocol::ids::DeviceId;
use linewarden_types::{Revision, UnusedRows};

use self::admission_queue::AdmissionQueue;
use self::adoption::Adoption;
use self::attest::{Attestation, UnattestedProvers};
use self::blocked::BlockedDevices;
use self::channel::Channel;
use self::devices::DeviceEntry;
pub use self::eviction::Eviction;
use self::eviction::Policy;
use self::evidence::EvidenceExchange;
use self::freshness::Freshness;
use self::p4dra::P4draRounds;
pub use self::packets::WRONG_TAGS;
use self::roaming::SessionReports;
pub use self::settings::{ATTEST_PERIOD_S_MAX, P4DRA_ROUND_S, WIPE_AFTER_MS};
pub use self::settings::{ReconfigureError, Settings, SettingsError};
pub use self::status::{AttestStatus, LinkState, P4draStatus, PacketEvidenceStatus, Status, TrustState};
use crate::audit::{AuditBuffer, AuditEvent, AuditRecord, AuditState};
use crate::requests::ControllerRequest;
use crate::time::Clock;

/// Interval of housekeeping, ns.
const HOUSEKEEPING_NS: u64 = 5_000_000_000;
/// A wiped slot is free at the second housekeeping after the wipe. While a device waits for a slot, the next
/// housekeeping follows after this time, ns.
const RECLAIM_AFTER_NS: u64 = 20_000_000;
/// If no device could be evicted, for example because every slot has a live session behind a gate, the next attempt
/// follows after this time, ns.
const FULL_RETRY_NS: u64 = 500_000_000;
/// Interval of ticks while the line of a device is busy or the controller is not reachable, ns.
const RETRY_NS: u64 = 10_000_000;
/// Maximum interval between two ticks, ns.
const TICK_MAX_NS: u64 = 100_000_000;

/// One data plane, and the state of its devices.
pub struct Node {
    data_plane: Box<dyn DataPlane>,
    settings: Settings,
    devices: HashMap<DeviceId, DeviceEntry>,
    /// Devices that need rows, in order of arrival.
    row_queue: VecDeque<DeviceId>,
    /// Devices in the request for rows that is in flight, except those whose entries were removed since.
    rows_in_flight: Vec<DeviceId>,
    /// Devices whose line was busy; retried at each tick.
    busy_devices: Vec<DeviceId>,
    /// Devices that wait for a slot, by their number in the order of arrival.
    slot_queue: BTreeMap<u64, DeviceId>,
    /// The number of the next device that must wait for a slot.
    slot_queue_next: u64,
    /// Devices for which the controller had no rows, in the order of the refusals. Some devices may have received rows
    /// after their refusal.
    exhausted_devices: VecDeque<DeviceId>,
    /// Recent log messages about devices without rows.
    unserved_log: devices::LogLimiter,
    /// Recent log messages about devices whose REQUESTs stated that the device has used all remaining rows.
    stated_exhausted_log: devices::LogLimiter,
    /// The eviction policy.
    eviction: Box<dyn Policy>,
    /// Unused rows of removed devices, not reported yet.
    unused_rows_pending: Vec<UnusedRows>,
    /// Unused rows in the report that is in flight.
    unused_rows_in_flight: Vec<UnusedRows>,
    /// Messages of devices that are not in the data plane.
    admission_queue: AdmissionQueue,
    /// Sessions that are not reported yet.
    session_reports: SessionReports,
    /// Epochs that the feed has reported while a response that may contain the rows of devices was in flight.
    epochs_reported_meanwhile: HashMap<DeviceId, u32>,
    /// Devices whose RESPONSE was sent to the controller before all leases were resumed. Their number is limited, because
    /// the data plane already drops most messages of devices that are not enrolled.
    responded_while_resuming: HashSet<DeviceId>,
    freshness: Freshness,
    /// The current fresh value; `None` until a value is drawn.
    fresh: Option<[u8; 8]>,
    /// Adoption of an earlier process's state, until the registration shows whether another process has run after that
    /// process.
    inherited: Option<Adoption>,
    register_channel: Channel,
    resume_channel: Channel,
    lease_channel: Channel,
    admission_channel: Channel,
    unused_rows_channel: Channel,
    report_channel: Channel,
    feed_channel: Channel,
    evidence: EvidenceExchange,
    /// Whether the data plane attests provers.
    can_attest: bool,
    attestation: Attestation,
    unattested: UnattestedProvers,
    /// Rounds of `p4dra-classic`; `None` if disabled.
    p4dra: Option<P4draRounds>,
    feed_revision: Revision,
    blocked: BlockedDevices,
    feed_due_ns: u64,
    /// Time of the last complete read of the feed, boot-time clock: all earlier revocations are applied.
    link_ok_ns: Option<u64>,
    housekeeping_due_ns: Option<u64>,
    /// The time of the last tick, monotonic clock.
    now_ns: u64,
    /// The random number for the response that is being handled: selects the delay of a retry.
    retry_random: u64,
    /// When [`Node::find_slots`] must look for free slots again, monotonic clock.
    reclaim_due_ns: Option<u64>,
    /// Whether devices wait for a slot, and no device could be evicted for them at the last attempt.
    is_full: bool,
    events_lost: u64,
    kernel_drops: u64,
    /// Number of exhausted devices, and number of devices that wait for a slot, at the last check for log messages.
    shortages_logged: (u64, u64),
    /// Audit records that the caller has not taken yet.
    audit: AuditBuffer,
    stopping: bool,
    status: Status,
}

impl Node {
    /// Creates a node over a data plane that is empty or contains the state of an earlier process of this gateway.
    ///
    /// # Errors
    /// The settings are inconsistent.
    pub fn new(data_plane: Box<dyn DataPlane>, settings: Settings) -> Result<Self, SettingsError> {
        settings.check()?;
        let mut node = Self {
            data_plane,
            settings,
            devices: HashMap::new(),
            row_queue: VecDeque::new(),
            rows_in_flight: Vec::new(),
            busy_devices: Vec::new(),
            slot_queue: BTreeMap::new(),
            slot_queue_next: 0,
            exhausted_devices: VecDeque::new(),
            unserved_log: devices::LogLimiter::default(),
            stated_exhausted_log: devices::LogLimiter::default(),
            eviction: settings.eviction.policy(),
            unused_rows_pending: Vec::new(),
            unused_rows_in_flight: Vec::new(),
            admission_queue: AdmissionQueue::default(),
            session_reports: SessionReports::default(),
            epochs_reported_meanwhile: HashMap::new(),
            responded_while_resuming: HashSet::new(),
            freshness: Freshness::default(),
            fresh: None,
            inherited: None,
            register_channel: Channel::default(),
            resume_channel: Channel::default(),
            lease_channel: Channel::default(),
            admission_channel: Channel::default(),
            unused_rows_channel: Channel::default(),
            report_channel: Channel::default(),
            feed_channel: Channel::default(),
            evidence: EvidenceExchange::default(),
            can_attest: false,
            attestation: Attestation::default(),
            unattested: UnattestedProvers::default(),
            p4dra: None,
            feed_revision: Revision::ZERO,
            blocked: BlockedDevices::default(),
            feed_due_ns: 0,
            link_ok_ns: None,
            housekeeping_due_ns: None,
            now_ns: 0,
            retry_random: 0,
            reclaim_due_ns: None,
            is_full: false,
            events_lost: 0,
            kernel_drops: 0,
            shortages_logged: (0, 0),
            audit: AuditBuffer::default(),
            stopping: false,
            status: Status::default(),
        };
        node.can_attest = node.data_plane.provers().is_some();
        node.status.p4dra = node.data_plane.p4dra().map(|p4dra| P4draStatus {
            provers: p4dra.provers() as u64,
            ..P4draStatus::default()
        });
        node.p4dra = node.status.p4dra.as_ref().map(|_| P4draRounds::default());
        node.adopt();
        Ok(node)
    }

    /// The data plane.
    #[must_use]
    pub fn data_plane(&self) -> &dyn DataPlane {
        &*self.data_plane
    }

    /// The data plane. A caller that changes the data plane must keep the node's assumptions.
    pub fn data_plane_mut(&mut self) -> &mut dyn DataPlane {
        &mut *self.data_plane
    }

    /// The current counts and states of the node.
    #[must_use]
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Does the work that is due at `clock`, and returns the requests to the controller. `random` returns 8 random
    /// bytes, or `None` if the source fails; `random` is called only when a freshness value or a round is due.
    pub fn tick(
        &mut self,
        clock: Clock,
        random: &mut dyn FnMut() -> Option<[u8; 8]>,
    ) -> Vec<ControllerRequest> {
        self.now_ns = clock.monotonic_ns;
        self.audit.set_time(clock);
        self.refresh(clock, random);
        self.handle_events();
        self.handle_misses();
        self.retry_busy();
        let now_ns = clock.monotonic_ns;
        if self.housekeeping_due_ns.is_none_or(|due_ns| due_ns <= now_ns) {
            self.housekeeping_due_ns = Some(now_ns.saturating_add(HOUSEKEEPING_NS));
            self.housekeep(clock);
        }
        self.find_slots(clock);
        self.attest(clock, random);
        self.advance_p4dra(clock, random);
        self.next_requests(clock)
    }

    /// Returns the time of the next [`Node::tick`] if no event or response arrives before, monotonic clock.
    #[must_use]
    pub fn due_ns(&self, now_ns: u64) -> u64 {
        let reads_feed = self.register_channel.done
            && !self.feed_channel.in_flight
            && !self.stopping
            && !self.status.replaced;
        let feed = reads_feed.then_some(self.feed_channel.retry.due_ns(self.feed_due_ns));
        let must_retry = !self.busy_devices.is_empty() || self.status.link != LinkState::Reachable;
        [
            feed,
            self.housekeeping_due_ns,
            self.reclaim_due_ns,
            self.attest_due_ns(),
            self.p4dra_due_ns(),
        ]
        .into_iter()
        .flatten()
        .chain(must_retry.then(|| now_ns.saturating_add(RETRY_NS)))
        .min()
        .unwrap_or(now_ns)
        .clamp(now_ns, now_ns.saturating_add(TICK_MAX_NS))
    }

    /// Begins to stop: REQUESTs get a NAK, and handshakes in progress may complete.
    pub fn begin_stop(&mut self) {
        self.stopping = true;
        self.status.stopping = true;
        self.data_plane.set_stopping(true);
    }

    /// Whether the data plane keeps its state when this process ends. Otherwise, the caller must
    /// [close](Node::close) the node before the process ends.
    #[must_use]
    pub fn outlives_process(&self) -> bool {
        self.data_plane.outlives_process()
    }

    /// Revokes all devices and returns their unused rows: no row can be spent afterwards.
    pub fn close(&mut self) -> Vec<UnusedRows> {
        self.begin_stop();
        self.revoke_all()
    }

    /// Whether a [`ControllerRequest::ReportUnusedRows`] is in flight.
    #[must_use]
    pub fn is_reporting_unused_rows(&self) -> bool {
        self.unused_rows_channel.in_flight
    }

    /// Applies new settings to the node and the data plane. After an error, no setting has changed.
    ///
    /// # Errors
    /// The settings are inconsistent or cannot change, or the data plane rejects them.
    pub fn reconfigure(
        &mut self,
        settings: Settings,
        live: &LiveSettings,
        clock: Clock,
    ) -> Result<(), ReconfigureError> {
        settings.check()?;
        let fixed_settings = |settings: &Settings| {
            let Settings {
                gateway,
                ring,
                spare_live_sessions,
                eviction,
                ..
            } = *settings;
            (gateway, ring, spare_live_sessions, eviction)
        };
        if fixed_settings(&settings) != fixed_settings(&self.settings) {
            return Err(ReconfigureError::Fixed);
        }
        let boot_s = u32::try_from(clock.boot_ns / 1_000_000_000).unwrap_or(u32::MAX);
        self.data_plane.reconfigure(live, boot_s)?;
        self.settings = settings;
        // The next read of the feed was planned with the old interval, which may be longer.
        self.feed_due_ns = self.feed_due_ns.min(clock.monotonic_ns);
        self.status.reloads += 1;
        self.audit.record(AuditEvent::Reloaded);
        Ok(())
    }

    /// Records that a new configuration was rejected.
    pub fn record_refused_config(&mut self, errors: Vec<String>) {
        self.status.reloads_refused += 1;
        self.audit.record(AuditEvent::ReloadRefused { errors });
    }

    /// Records an event from outside the node.
    pub fn record(&mut self, event: AuditEvent) {
        self.audit.record(event);
    }

    /// Sets the maximum number of audit records of each kind a second; 0 disables recording.
    pub fn set_audit_rate(&mut self, per_s: u32) {
        self.audit.set_rate(per_s);
    }

    /// Takes the audit records since the previous call. If this is the final call (`is_final`), also takes all deferred
    /// records.
    pub fn take_audit_records(&mut self, is_final: bool) -> Vec<AuditRecord> {
        if is_final && let Ok(counters) = self.data_plane.counters() {
            self.audit.record_counters(&counters, true);
        }
        if is_final {
            self.record_released(None);
        }
        self.audit.take(is_final)
    }

    /// Stores the state of the audit file.
    pub(crate) fn set_audit_state(&mut self, state: AuditState) {
        self.status.audit_lost = state.lost;
        self.status.audit_failing = state.is_failing;
    }

    fn refresh(&mut self, clock: Clock, random: &mut dyn FnMut() -> Option<[u8; 8]>) {
        // After `offline_limit_s` without a response of the controller, the gateway sends no replies (LAP/1 1.4.6),
        // because the controller may have revoked devices meanwhile.
        let is_reached = self.status.replaced || self.is_offline_limit_reached(clock);
        if is_reached != std::mem::replace(&mut self.status.offline_limit_reached, is_reached)
            && !self.status.replaced
        {
            self.audit.record(if is_reached {
                AuditEvent::OfflineLimitReached
            } else {
                AuditEvent::Resumed
            });
        }
        if self.status.offline_limit_reached {
            // The fresh values are cleared at once; otherwise, the last value would be accepted for up to 16 s more.
            if self.freshness.forget() {
                self.fresh = None;
                self.data_plane.set_fresh([0; 8], clock.monotonic_ns);
                self.data_plane.set_fresh([0; 8], clock.monotonic_ns);
            }
            return;
        }
        let count = self.freshness.draws_due(clock);
        for _ in 0..count {
            // Without random numbers, the old value expires, and the data plane stops without a command
            // (LAP/1 1.4.1). Zero means no value, so the next tick draws another value.
            let Some(fresh) = random().filter(|fresh| *fresh != [0; 8]) else {
                self.status.draws_failed += 1;
                return;
            };
            self.data_plane.set_fresh(fresh, clock.monotonic_ns);
            self.fresh = Some(fresh);
        }
        if count > 0 {
            self.freshness.record_draw(clock);
        }
    }

    fn is_offline_limit_reached(&mut self, clock: Clock) -> bool {
        let limit_ns = u64::from(self.settings.offline_limit_s).saturating_mul(1_000_000_000);
        // Adopted state was valid when this process started.
        let adopted_ns = self
            .inherited
            .as_mut()
            .map(|adoption| *adoption.since_ns.get_or_insert(clock.boot_ns));
        self.link_ok_ns
            .or(adopted_ns)
            .is_some_and(|ok_ns| clock.boot_ns.saturating_sub(ok_ns) > limit_ns)
    }

    fn housekeep(&mut self, clock: Clock) {
        let now_ns = clock.monotonic_ns;
        self.data_plane.housekeep();
        // This function is not called at each tick, because it reads all interfaces from the kernel.
        self.data_plane.refresh_links();
        self.status.data_plane_failure = self.data_plane.failure();
        self.wipe_revoked(now_ns);
        self.retry_slot_queue();
        self.retry_exhausted(clock);
        self.log_shortages();
        self.update_not_attested();
        self.update_stamp_counts();
        self.update_dropped_types();
        let counters = self.data_plane.counters();
        if let Ok(counters) = &counters {
            self.audit.record_counters(counters, false);
            self.log_kernel_drops(counters.kernel_drops);
        }
        match counters {
            Ok(counters) if counters.events_lost > self.events_lost => {
                tracing::warn!(
                    count = counters.events_lost - self.events_lost,
                    "data plane lost events; checking all devices"
                );
                self.events_lost = counters.events_lost;
                self.scan_devices();
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "reading the counters failed"),
        }
    }

    /// Logs packets that the kernel has dropped since the previous call.
    fn log_kernel_drops(&mut self, kernel_drops: u64) {
        if kernel_drops > self.kernel_drops {
            tracing::warn!(
                count = kernel_drops - self.kernel_drops,
                action = "raise the sysctl net.core.rmem_max, or grant CAP_NET_ADMIN",
                "kernel dropped packets before the data plane received them: receive buffer full"
            );
            self.kernel_drops = kernel_drops;
        }
    }

    fn update_stamp_counts(&mut self) {
        match self.data_plane.stamp_counts() {
            Ok(counts) => {
                self.status.packet_evidence = counts.map(|counts| PacketEvidenceStatus {
                    stamped: counts.stamped,
                    not_ipv6: counts.not_ipv6,
                    stale: counts.stale,
                    unsuitable: counts.unfit,
                });
            }
            Err(error) => tracing::warn!(%error, "reading the counters of packet evidence failed"),
        }
    }

    fn update_dropped_types(&mut self) {
        match self.data_plane.dropped_types() {
            Ok(None) => {}
            Ok(Some(dropped)) => {
                let by_name = dropped.nonzero().map(|(ether_type, name, frames)| {
                    let name = name.map_or_else(|| format!("{ether_type:#06x}"), str::to_owned);
                    (name, frames)
                });
                let unnamed = Some(("other".to_owned(), dropped.other())).filter(|(_, frames)| *frames > 0);
                self.status.dropped_types = by_name.chain(unnamed).collect();
            }
            Err(error) => tracing::warn!(%error, "reading the gate's counters of dropped types failed"),
        }
    }

    /// Evicts devices to free slots for waiting devices. A packet in flight may still use a wiped slot, so the slot is
    /// free a little later.
    fn find_slots(&mut self, clock: Clock) {
        let now_ns = clock.monotonic_ns;
        if self.reclaim_due_ns.is_some_and(|due_ns| due_ns <= now_ns) {
            self.reclaim_due_ns = None;
            self.data_plane.housekeep();
            self.retry_slot_queue();
        }
        if !self.slot_queue.is_empty() && self.reclaim_due_ns.is_none() {
            // If no device can be evicted, the next attempt waits longer.
            let slots_freed = self.evict(clock);
            self.is_full = slots_freed == 0;
            let after_ns = match self.is_full {
                true => FULL_RETRY_NS,
                false => RECLAIM_AFTER_NS,
            };
            self.reclaim_due_ns = Some(now_ns.saturating_add(after_ns));
        }
        self.status.waiting_for_slot = self.slot_queue.len() as u64;
    }

    /// Logs shortages in one message for all devices; a message for each device could flood the log.
    fn log_shortages(&mut self) {
        let (exhausted, no_room) = (self.status.exhausted, self.status.waiting_for_slot);
        let (logged_exhausted, logged_no_room) = self.shortages_logged;
        if exhausted > logged_exhausted {
            tracing::warn!(
                count = exhausted,
                action = "let the agents of the devices renew rows earlier, or enroll the devices again with --replace",
                "registry has no more rows for some devices"
            );
        }
        if no_room > logged_no_room && self.is_full {
            tracing::error!(
                count = no_room,
                action = "raise `slots`, and restart the gateway",
                "data plane has no slot for some devices, and no device can be evicted; these devices cannot authenticate"
            );
        }
        self.shortages_logged = (exhausted, no_room);
    }
}
