//! The node: all decisions of a gateway, without clock, random numbers, database or threads of its own.
//!
//! A node consists of components. Each component owns its state; other components change that state only through its methods:
//!
//! ```text
//!   data plane ──► DataPlaneMonitor ── events ──┐
//!       ▲   └────── messages ───────────────┐   │
//!       │                                   ▼   ▼        requests
//!       └── Context ◄── all ──              Node  ◄───────────────► controller
//!                                             │          responses
//!      ┌───────────┬───────────┬───────────┬──┴────────┬───────────┬───────────┐
//!  DeviceCache  LeaseClient  ChangeFeed  SessionReports  Attestation  Trust  FreshValues
//! ```
//!
//! | component | state |
//! |---|---|
//! | [`DeviceCache`] | the devices: rows, slots, removal |
//! | [`LeaseClient`] | registration, and requests for leases |
//! | [`ChangeFeed`] | changes of devices, and the blocked devices |
//! | [`SessionReports`] | sessions to report, sessions at other gateways |
//! | [`Attestation`], [`UnattestedProvers`] | provers, their keys and rounds |
//! | [`Trust`] | the trust state of this gateway, and its evidence |
//! | [`FreshValues`] | freshness values |
//! | [`DataPlaneMonitor`] | events, counters and failures of the data plane |
//! | [`Adoption`] | the state that an earlier process left in the data plane, until the registration confirms it |
//! | [`Context`] | shared by all components: data plane, audit records, settings, time, connection |
//!
//! The [`Node`] routes events, messages and responses to the components, and handles those that concern several components. A message
//! of an unknown device is sent to the controller. The leased rows are installed, and the data plane handles the message
//! again.

mod admission_queue;
mod adoption;
mod attest;
mod channel;
mod context;
mod devices;
mod eviction;
mod feed;
mod freshness;
mod leases;
mod monitor;
mod retry;
mod routing;
mod sessions;
mod settings;
mod status;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may")]
mod test_support;
mod trust;

use linewarden_dataplane::{DataPlane, Event, EventKind, LiveSettings};
use linewarden_evidence::statement::Nonce;
use linewarden_types::{ControllerRequest, UnusedRows};

use self::adoption::Adoption;
use self::attest::{Attestation, UnattestedProvers};
use self::context::{Connection, Context, RandomSource};
use self::devices::{DeviceCache, MessageRoute};
pub use self::eviction::Eviction;
use self::feed::ChangeFeed;
use self::freshness::FreshValues;
use self::leases::LeaseClient;
use self::monitor::DataPlaneMonitor;
pub use self::monitor::WRONG_TAGS;
use self::sessions::SessionReports;
pub use self::settings::{ATTEST_PERIOD_S_MAX, ReconfigureError, Settings, SettingsError, WIPE_AFTER_MS};
pub use self::status::{AttestStatus, LinkState, PacketEvidenceStatus, Status, TicketCounts, TrustState};
pub use self::trust::EvidenceRequest;
use self::trust::Trust;
use crate::attester::SignedEvidence;
use crate::audit::{AuditBuffer, AuditEvent, AuditRecord, AuditState};
use crate::time::Clock;

/// Interval of housekeeping, ns.
const HOUSEKEEPING_NS: u64 = 5_000_000_000;
/// Interval of ticks while the line of a device is busy or the controller is not reachable, ns.
const RETRY_NS: u64 = 10_000_000;
/// Maximum interval between two ticks, ns.
const TICK_MAX_NS: u64 = 100_000_000;

/// One data plane, and the state of its devices.
pub struct Node {
    context: Context,
    monitor: DataPlaneMonitor,
    devices: DeviceCache,
    leases: LeaseClient,
    feed: ChangeFeed,
    sessions: SessionReports,
    fresh: FreshValues,
    /// The state adopted from an earlier process, until the registration shows whether a third process has registered in
    /// between.
    adoption: Option<Adoption>,
    /// `None` if the data plane does not attest.
    attestation: Option<Attestation>,
    /// `None` if the data plane attests.
    unattested: Option<UnattestedProvers>,
    trust: Trust,
    housekeeping_due_ns: Option<u64>,
    is_stopping: bool,
    counts: Counts,
}

/// Counts in the [`Status`] that concern the node as a whole.
#[derive(Debug, Default)]
struct Counts {
    admitted: u64,
    replays_failed: u64,
    reloads: u64,
    reloads_refused: u64,
    audit: AuditState,
}

impl Node {
    /// Creates a node over a data plane that is empty or contains the state of an earlier process of this gateway.
    ///
    /// # Errors
    /// The settings are inconsistent.
    pub fn new(data_plane: Box<dyn DataPlane>, settings: Settings) -> Result<Self, SettingsError> {
        settings.check()?;
        let mut context = Context {
            data_plane,
            audit: AuditBuffer::default(),
            settings,
            clock: Clock::default(),
            retry_random: 0,
            connection: Connection::default(),
        };
        let attests = context.data_plane.provers().is_some();
        let mut devices = DeviceCache::new(settings.eviction);
        let mut fresh = FreshValues::default();
        let adoption = Adoption::begin(&mut devices, &mut fresh, &mut context);
        Ok(Self {
            context,
            monitor: DataPlaneMonitor::default(),
            devices,
            leases: LeaseClient::default(),
            feed: ChangeFeed::default(),
            sessions: SessionReports::default(),
            fresh,
            adoption,
            attestation: attests.then(Attestation::default),
            unattested: (!attests).then(UnattestedProvers::default),
            trust: Trust::default(),
            housekeeping_due_ns: None,
            is_stopping: false,
            counts: Counts::default(),
        })
    }

    /// The data plane.
    #[must_use]
    pub fn data_plane(&self) -> &dyn DataPlane {
        &*self.context.data_plane
    }

    /// The data plane. A caller that changes the data plane must keep the node's assumptions.
    pub fn data_plane_mut(&mut self) -> &mut dyn DataPlane {
        &mut *self.context.data_plane
    }

    /// The current counts and states of the node.
    #[must_use]
    pub fn status(&self) -> Status {
        let mut status = Status {
            stopping: self.is_stopping,
            admitted: self.counts.admitted,
            replays_failed: self.counts.replays_failed,
            reloads: self.counts.reloads,
            reloads_refused: self.counts.reloads_refused,
            audit_lost: self.counts.audit.lost,
            audit_failing: self.counts.audit.is_failing,
            draws_failed: self.fresh.draws_failed(),
            ..Status::default()
        };
        self.context.connection.report(&mut status);
        self.monitor.report(&mut status);
        self.devices.report(&mut status);
        self.leases.report(&mut status);
        self.sessions.report(&mut status);
        self.trust.report(&mut status);
        if let Some(attestation) = &self.attestation {
            attestation.report(&mut status);
        }
        if let Some(unattested) = &self.unattested {
            status.attest.not_attested = unattested.present_count();
        }
        status.attest.released = self.feed.released();
        status
    }

    /// Does the work that is due at `clock`, and returns the requests to the controller. `random` returns 8 random
    /// bytes, or `None` if the source fails; `random` is called only when a freshness value or a round is due.
    pub fn tick(
        &mut self,
        clock: Clock,
        random: &mut dyn FnMut() -> Option<[u8; 8]>,
    ) -> Vec<ControllerRequest> {
        self.context.clock = clock;
        self.context.audit.set_time(clock);
        self.refresh(random);
        for event in self.monitor.read_events(&mut self.context) {
            self.handle_event(&event);
        }
        self.handle_messages();
        self.devices.retry_busy(&mut self.context);
        let now_ns = clock.monotonic_ns;
        if self.housekeeping_due_ns.is_none_or(|due_ns| due_ns <= now_ns) {
            self.housekeeping_due_ns = Some(now_ns.saturating_add(HOUSEKEEPING_NS));
            self.housekeep();
        }
        self.devices.find_slots(&mut self.context);
        if !self.has_ended() {
            self.advance_rounds(random);
        }
        self.next_requests()
    }

    /// Returns a request for signed evidence about the data plane, if one is due; at most one is in progress. The caller passes
    /// the result to [`Node::handle_evidence`].
    pub fn evidence_request(&mut self) -> Option<EvidenceRequest> {
        let may_request = !self.has_ended() && self.leases.is_registered();
        may_request.then(|| self.trust.evidence_request(&self.context))?
    }

    /// Handles the evidence for this nonce, or the reason why no evidence could be created. `random` is as in
    /// [`Node::handle_response`].
    pub fn handle_evidence(
        &mut self,
        nonce: Nonce,
        result: Result<SignedEvidence, String>,
        clock: Clock,
        random: u64,
    ) {
        self.context.clock = clock;
        self.context.retry_random = random;
        self.trust.accept_evidence(nonce, result, &self.context);
    }

    /// Returns the time of the next [`Node::tick`] if no event or response arrives before, monotonic clock.
    #[must_use]
    pub fn due_ns(&self, now_ns: u64) -> u64 {
        let is_serving = !self.has_ended();
        let has_read_feed = self.feed.has_been_read();
        let reads_feed = is_serving && self.leases.is_registered();
        let attestation = self.attestation.as_ref().filter(|_| is_serving);
        let must_retry = self.devices.has_busy_lines() || !self.context.connection.is_reachable();
        [
            self.feed.due_ns().filter(|_| reads_feed),
            self.housekeeping_due_ns,
            self.devices.reclaim_due_ns(),
            attestation.and_then(|attestation| attestation.due_ns(has_read_feed)),
            must_retry.then(|| now_ns.saturating_add(RETRY_NS)),
        ]
        .into_iter()
        .flatten()
        .min()
        .unwrap_or(now_ns)
        .clamp(now_ns, now_ns.saturating_add(TICK_MAX_NS))
    }

    /// Whether the node sends no more requests: it is stopping, or its registration is no longer valid.
    fn has_ended(&self) -> bool {
        self.is_stopping || self.context.connection.is_replaced()
    }

    /// Begins to stop: REQUESTs get a NAK, and handshakes in progress may complete.
    pub fn begin_stop(&mut self) {
        self.is_stopping = true;
        self.context.data_plane.set_stopping(true);
    }

    /// Whether the data plane keeps its state when this process ends. Otherwise, the caller must
    /// [close](Node::close) the node before the process ends.
    #[must_use]
    pub fn outlives_process(&self) -> bool {
        self.context.data_plane.outlives_process()
    }

    /// Revokes all devices and returns their unused rows: no row can be spent afterwards.
    pub fn close(&mut self) -> Vec<UnusedRows> {
        self.begin_stop();
        self.devices.revoke_all(&mut self.context)
    }

    /// Whether a [`ReportUnusedRows`](linewarden_types::ReportUnusedRows) is in flight.
    #[must_use]
    pub fn is_reporting_unused_rows(&self) -> bool {
        self.leases.is_reporting_unused_rows()
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
        if fixed_settings(&settings) != fixed_settings(&self.context.settings) {
            return Err(ReconfigureError::Fixed);
        }
        let boot_s = u32::try_from(clock.boot_ns / 1_000_000_000).unwrap_or(u32::MAX);
        self.context.data_plane.reconfigure(live, boot_s)?;
        self.context.settings = settings;
        // The next read of the feed was planned with the old interval, which may be longer.
        self.feed.read_now(clock.monotonic_ns);
        self.counts.reloads += 1;
        self.context.audit.record(AuditEvent::Reloaded);
        Ok(())
    }

    /// Records that a new configuration was rejected.
    pub fn record_refused_config(&mut self, errors: Vec<String>) {
        self.counts.reloads_refused += 1;
        self.context.audit.record(AuditEvent::ReloadRefused { errors });
    }

    /// Records an event from outside the node.
    pub fn record(&mut self, event: AuditEvent) {
        self.context.audit.record(event);
    }

    /// Sets the maximum number of audit records of each kind a second; 0 disables recording.
    pub fn set_audit_rate(&mut self, per_s: u32) {
        self.context.audit.set_rate(per_s);
    }

    /// Takes the audit records since the previous call. If this is the final call (`is_final`), also takes all deferred
    /// records.
    pub fn take_audit_records(&mut self, is_final: bool) -> Vec<AuditRecord> {
        if is_final && let Ok(counters) = self.context.data_plane.counters() {
            self.context.audit.record_counters(&counters, true);
        }
        if is_final {
            self.feed.record_released(None, &mut self.context);
        }
        self.context.audit.take(is_final)
    }

    /// Stores the state of the audit file.
    pub(crate) fn set_audit_state(&mut self, state: AuditState) {
        self.counts.audit = state;
    }

    /// Draws the freshness values that are due. After `offline_limit_s` without a response of the controller, the gateway sends
    /// no replies (LAP/1 1.4.6), because the controller may have revoked devices meanwhile.
    fn refresh(&mut self, random: RandomSource<'_>) {
        let is_reached = self.is_offline_limit_reached() || self.context.connection.is_replaced();
        self.context.set_offline_limit_reached(is_reached);
        self.fresh.refresh(!is_reached, &mut self.context, random);
    }

    fn is_offline_limit_reached(&mut self) -> bool {
        let limit_ns = u64::from(self.context.settings.offline_limit_s).saturating_mul(1_000_000_000);
        let boot_ns = self.context.clock.boot_ns;
        let adopted_ns = self.adoption.as_mut().map(|adoption| adoption.since_ns(boot_ns));
        self.feed
            .complete_at_ns()
            .or(adopted_ns)
            .is_some_and(|ok_ns| boot_ns.saturating_sub(ok_ns) > limit_ns)
    }

    fn handle_event(&mut self, event: &Event) {
        let device = event.device;
        self.monitor.record(event, &mut self.context);
        match event.kind {
            EventKind::Session(opening) => {
                let mode = self.devices.mode(device);
                monitor::audit_session(event, opening.session, mode, &mut self.context);
                self.devices
                    .record_session(device, opening.session, opening.opened_ns);
                self.sessions.push(device, opening);
            }
            EventKind::RowsLow | EventKind::RowsExhausted => {
                self.devices.request_rows(device, &mut self.context);
            }
            EventKind::WrongTag | EventKind::WrongProof(_) => {}
        }
    }

    /// Handles messages of devices that were not in the data plane when the messages arrived.
    fn handle_messages(&mut self) {
        let mut misses = Vec::new();
        let result = self
            .context
            .data_plane
            .drain_misses(&mut |miss| misses.push(miss));
        if let Err(error) = result {
            tracing::debug!(%error, "reading messages of unknown devices failed");
        }
        if self.is_stopping {
            return;
        }
        for miss in misses {
            match self.devices.route_message(miss.device()) {
                MessageRoute::Admit => self.leases.queue_message(miss, &mut self.context),
                MessageRoute::Replay => self.replay(miss),
                MessageRoute::Drop => {}
            }
        }
    }

    fn housekeep(&mut self) {
        let may_receive = self.may_receive_devices();
        let context = &mut self.context;
        context.data_plane.housekeep();
        // This function is not called at each tick, because it reads all interfaces from the kernel.
        context.data_plane.refresh_links();
        self.devices.wipe_revoked(may_receive, context);
        self.devices.retry_slot_queue(context);
        self.devices.retry_exhausted(context);
        self.devices.log_shortages();
        if let Some(unattested) = &mut self.unattested {
            unattested.update(&self.devices, context);
        }
        if self.monitor.check(context) {
            self.devices.scan(context);
        }
    }

    fn advance_rounds(&mut self, random: RandomSource<'_>) {
        let context = &mut self.context;
        if let Some(attestation) = &mut self.attestation {
            attestation.advance(self.feed.revision(), context, random);
        }
    }
}
