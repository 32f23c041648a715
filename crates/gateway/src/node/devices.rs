//! The devices of a node, and their states.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use linewarden_dataplane::{LineStatus, StoreError};
use linewarden_protocol::commit;
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, SessionId};
use linewarden_types::{Provision, RefusalReason, RowRefusal, RowRequest};

use super::Node;
use super::eviction::{EvictionHandle, Uses};
use super::removal::EVICT_BATCH;
use crate::audit::AuditEvent;

/// If a device's mark must move again within this time, ns, the distance of the move doubles. Otherwise, the distance
/// halves.
const BUSY_DEVICE_NS: u64 = 60_000_000_000;

/// Minimum interval between two log messages about a device without rows, ns.
const UNSERVED_LOG_NS: u64 = 600_000_000_000;
/// Maximum number of devices without rows that are logged in this interval.
const UNSERVED_DEVICES_MAX: usize = 1024;

/// Devices in recent log messages, with the time until which no further message is due, monotonic, ns.
#[derive(Debug, Default)]
pub(super) struct LogLimiter(HashMap<DeviceId, u64>);

impl LogLimiter {
    /// Whether a log message about the device is due. If so, records that the message is logged now.
    fn is_due(&mut self, device: DeviceId, now_ns: u64) -> bool {
        if self.0.len() >= UNSERVED_DEVICES_MAX {
            self.0.retain(|_, until_ns| *until_ns > now_ns);
        }
        let is_recent = self.0.get(&device).is_some_and(|until_ns| *until_ns > now_ns);
        if is_recent || self.0.len() >= UNSERVED_DEVICES_MAX {
            return false;
        }
        self.0.insert(device, now_ns.saturating_add(UNSERVED_LOG_NS));
        true
    }
}

/// The state of a device; the diagram is in the [parent module](super).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The gateway has rows of the device, but the data plane has had no slot yet.
    Waiting,
    /// In the data plane.
    Installed,
    /// To be wiped, because its slot is needed or its credentials were replaced.
    Leaving {
        /// Whether the unused rows are reported; rows of replaced credentials are void.
        reports_unused_rows: bool,
    },
    /// Revoked in the data plane; the unused rows are not reported yet. A pool device is wiped already, because its
    /// mark protects spent rows. A key-mode device is wiped after the report: if its counter were lost with this
    /// process, its last RESPONSE could open a session again.
    ReportingUnusedRows,
    /// The device may not authenticate: it is revoked or in quarantine, or its record is damaged.
    Revoked {
        /// Time of the revocation, monotonic.
        at_ns: u64,
    },
}

/// A device of the node.
#[derive(Debug)]
pub(super) struct DeviceEntry {
    pub(super) state: State,
    pub(super) mode: Mode,
    /// Epoch of the credentials.
    pub(super) epoch: u32,
    /// Whether the device is in `row_queue`, or in a request in flight.
    pub(super) is_requesting: bool,
    /// Whether the device needed more rows while a request was in flight.
    request_again: bool,
    /// Whether the registry has no row left for this gateway.
    pub(super) is_exhausted: bool,
    /// Position in the slot queue.
    slot_queue_number: Option<u64>,
    /// Number of rows from the current row to the next mark.
    mark_distance: u8,
    /// The mark: only rows below the mark may be spent.
    mark: RowIndex,
    /// The number after the last row that was received.
    received_end: RowIndex,
    /// Whether the response to the last row request moved the mark.
    mark_moved: bool,
    /// Time of the last row request, monotonic clock, ns.
    mark_requested_ns: u64,
    pub(super) eviction_handle: Option<EvictionHandle>,
    /// The last known session and its start, boot-time clock, ns.
    pub(super) last_session: Option<(SessionId, u64)>,
    /// Leased rows that the data plane has no room for yet.
    pub(super) pending: Option<Box<Provision>>,
    /// The next row of a device that was wiped after its revocation; not reported yet.
    pub(super) next_row: Option<RowIndex>,
}

impl DeviceEntry {
    fn new(provision: Provision, mark_distance: u32) -> Self {
        Self {
            mode: provision.mode,
            epoch: provision.epoch,
            mark_distance: u8::try_from(mark_distance).unwrap_or(u8::MAX),
            mark: provision.mark,
            received_end: provision.end(),
            pending: Some(Box::new(provision)),
            ..Self::blank(State::Waiting)
        }
    }

    /// Creates the entry of a device that an earlier process left in the data plane.
    pub(super) fn adopted(
        mode: Mode,
        epoch: u32,
        mark: RowIndex,
        received_end: RowIndex,
        eviction_handle: EvictionHandle,
        mark_distance: u32,
    ) -> Self {
        Self {
            mode,
            epoch,
            mark_distance: u8::try_from(mark_distance).unwrap_or(u8::MAX),
            mark,
            received_end,
            eviction_handle: Some(eviction_handle),
            ..Self::blank(State::Installed)
        }
    }

    /// Creates an entry without credentials, for a device that is revoked or being removed.
    pub(super) fn blank(state: State) -> Self {
        Self {
            state,
            mode: Mode::Key,
            epoch: u32::MAX,
            is_requesting: false,
            request_again: false,
            is_exhausted: false,
            slot_queue_number: None,
            mark_distance: 0,
            mark: RowIndex(0),
            received_end: RowIndex(0),
            mark_moved: false,
            mark_requested_ns: 0,
            eviction_handle: None,
            last_session: None,
            pending: None,
            next_row: None,
        }
    }
}

impl Node {
    /// Adds a new device with leased rows; returns whether the device is in the data plane.
    pub(super) fn admit(&mut self, provision: Provision) -> bool {
        let device = provision.device;
        // The rows were leased before the leases were revoked.
        if !self.may_have_rows() {
            return false;
        }
        // The feed may have reported newer credentials.
        if self
            .epochs_reported_meanwhile
            .get(&device)
            .is_some_and(|epoch| *epoch > provision.epoch)
        {
            return false;
        }
        match self.devices.entry(device) {
            Entry::Occupied(entry) => return entry.get().state == State::Installed,
            Entry::Vacant(vacant) => {
                vacant.insert(DeviceEntry::new(provision, self.settings.mark_block));
            }
        }
        self.install_pending(device);
        self.devices
            .get(&device)
            .is_some_and(|entry| entry.state == State::Installed)
    }

    /// Queues a device for rows, unless the device is queued already, needs no row, or can get no row.
    pub(super) fn request_rows(&mut self, device: DeviceId) {
        let Some(entry) = self.devices.get_mut(&device) else {
            return;
        };
        if entry.pending.is_some() {
            // The pending rows may fit into the data plane now.
            self.install_pending(device);
        }
        let Some(entry) = self.devices.get_mut(&device) else {
            return;
        };
        if entry.state == State::Installed && !entry.is_exhausted {
            entry.request_again = entry.is_requesting;
            if !std::mem::replace(&mut entry.is_requesting, true) {
                self.row_queue.push_back(device);
            }
        }
    }

    /// Returns the row request of a device; `None` if the device needs nothing from the controller. Grants the credit
    /// that the mark allows and the line does not have yet.
    pub(super) fn row_request(&mut self, device: DeviceId, now_ns: u64) -> Option<RowRequest> {
        let low_credit = self.settings.low_credit;
        let entry = self.devices.get_mut(&device)?;
        if entry.state != State::Installed || entry.mode == Mode::Key {
            return None;
        }
        let line = self.data_plane.status(device)?;
        let from = line.commit.idx();
        let is_low = line.rows_left <= self.settings.low_rows;
        let rows_allowed = entry.mark.0.saturating_sub(from.0);
        if !is_low && rows_allowed > low_credit {
            // The line has less credit than the mark allows.
            return self.data_plane.grant(device, entry.mark).err().and(None);
        }
        let block = u8::try_from(self.settings.mark_block).unwrap_or(u8::MAX);
        // After a failed request, the mark has not moved, so `mark_distance` stays.
        if std::mem::take(&mut entry.mark_moved) {
            let max = u8::try_from(commit::CREDIT_MAX).unwrap_or(u8::MAX);
            entry.mark_distance = match now_ns.saturating_sub(entry.mark_requested_ns) < BUSY_DEVICE_NS {
                true => entry.mark_distance.saturating_mul(2).min(max),
                false => (entry.mark_distance / 2).max(block),
            };
        }
        entry.mark_requested_ns = now_ns;
        let capacity = self.settings.ring.saturating_add(1);
        Some(RowRequest {
            device,
            epoch: entry.epoch,
            from,
            received: entry.received_end,
            hold_rows: if is_low { capacity } else { line.rows_left },
            spendable_rows: u32::from(entry.mark_distance),
        })
    }

    /// Adds rows that were leased for a device.
    pub(super) fn accept_rows(&mut self, provision: Provision) {
        let device = provision.device;
        let Some(entry) = self.devices.get_mut(&device) else {
            return;
        };
        if entry.state != State::Installed || entry.epoch != provision.epoch {
            // The device is leaving; its unused rows are reported later.
            return;
        }
        entry.mark_moved = provision.mark > entry.mark;
        entry.mark = entry.mark.max(provision.mark);
        let mark = entry.mark;
        let is_due =
            std::mem::take(&mut entry.request_again) || entry.mark_moved || !provision.rows.is_empty();
        match &mut entry.pending {
            _ if provision.rows.is_empty() => {}
            Some(pending) if pending.end() == provision.first => {
                entry.received_end = provision.end();
                pending.rows.extend(provision.rows);
            }
            // A gap separates the new rows from the pending rows, which are spent first. The new rows are dropped here
            // and leased again later.
            Some(_) => {}
            None => {
                entry.received_end = provision.end();
                entry.pending = Some(Box::new(provision));
            }
        }
        if let Err(error) = self.data_plane.grant(device, mark) {
            tracing::error!(device_id = %device, %error, action = "restart the gateway if the error persists",
                "data plane rejects the new mark of a device; after the rows below the current mark, the device cannot authenticate at this gateway");
        }
        self.install_pending(device);
        // The device may have spent rows during the request, so another request may be necessary. To prevent an endless
        // repetition, another request is sent only if the response has brought rows or moved the mark, or the device
        // needed more rows meanwhile. In other cases, an event of the device's next RESPONSE causes the request.
        let is_stuck = |line: LineStatus| line.rows_left == 0 || !line.commit.has_credit();
        if is_due && self.data_plane.status(device).is_some_and(is_stuck) {
            self.request_rows(device);
        }
    }

    /// Handles a refusal of rows.
    pub(super) fn handle_refusal(&mut self, refusal: &RowRefusal) {
        let Some(entry) = self.devices.get_mut(&refusal.device) else {
            return;
        };
        match &refusal.reason {
            RefusalReason::Exhausted if entry.state != State::Installed => {}
            RefusalReason::Exhausted => {
                if !std::mem::replace(&mut entry.is_exhausted, true) {
                    self.status.exhausted += 1;
                    self.exhausted_devices.push_back(refusal.device);
                    self.audit.record(AuditEvent::Exhausted {
                        device: refusal.device,
                    });
                    tracing::debug!(device_id = %refusal.device, "no row is left for the device");
                }
            }
            // The feed reports the reason.
            RefusalReason::Inactive => {}
            RefusalReason::NotHeld => {
                tracing::warn!(device_id = %refusal.device, "registry has no lease of the device at this gateway; the gateway removes the device, and the device authenticates again");
                self.remove_device(refusal.device, false);
            }
            RefusalReason::Damaged(problem) => {
                self.status.damaged += 1;
                tracing::error!(
                    device_id = %refusal.device,
                    error = problem,
                    action = "run `linewarden registry check`; restore a backup, or revoke the device and enroll the device under another ID",
                    "device record is damaged; the device gets no rows"
                );
            }
        }
    }

    /// Logs a REQUEST that was rejected with a NAK because the registry can lease no row. Any host can send such
    /// a REQUEST.
    pub(super) fn log_unserved(&mut self, device: DeviceId) {
        self.status.unserved += 1;
        if self.unserved_log.is_due(device, self.now_ns) {
            self.audit.record(AuditEvent::Exhausted { device });
            tracing::warn!(
                device_id = %device,
                action = "run `linewarden device show DEVICE`; enroll the device again with --replace",
                "request rejected: no row can be leased for the device"
            );
        }
    }

    /// Logs a REQUEST that was rejected with a NAK because the REQUEST states that the device has used all remaining
    /// rows. The statement can be forged.
    pub(super) fn log_stated_exhausted(&mut self, device: DeviceId) {
        self.status.unserved += 1;
        if self.stated_exhausted_log.is_due(device, self.now_ns) {
            tracing::warn!(
                device_id = %device,
                action = "if the device does not authenticate, enroll the device again with --replace; otherwise ignore the request, which may be forged",
                "request rejected: the request states that the device has already used all of its rows in the registry"
            );
        }
    }

    /// Queues all devices of a failed request again, at the front of the queue.
    pub(super) fn requeue_rows_in_flight(&mut self) {
        for device in std::mem::take(&mut self.rows_in_flight).into_iter().rev() {
            if self.devices.get(&device).is_some_and(|entry| entry.is_requesting) {
                self.row_queue.push_front(device);
            }
        }
    }

    /// Returns the devices of a completed request whose entries still exist, and marks them as not requesting.
    pub(super) fn take_rows_in_flight(&mut self) -> HashSet<DeviceId> {
        for device in &self.rows_in_flight {
            if let Some(entry) = self.devices.get_mut(device) {
                entry.is_requesting = false;
            }
        }
        self.rows_in_flight.drain(..).collect()
    }

    /// Installs the pending rows in the data plane.
    fn install_pending(&mut self, device: DeviceId) {
        let Some(entry) = self.devices.get_mut(&device) else {
            return;
        };
        let installed = match entry.state {
            State::Waiting => false,
            State::Installed => true,
            State::Leaving { .. } | State::ReportingUnusedRows | State::Revoked { .. } => return,
        };
        let Some(provision) = entry.pending.take() else {
            return;
        };
        let result = if installed {
            self.data_plane.refill(device, provision.first, &provision.rows)
        } else {
            let capacity = self.settings.ring.saturating_add(1) as usize;
            let rows = provision.rows.get(..capacity).unwrap_or(&provision.rows);
            let mark = (provision.mode == Mode::Pool).then_some(provision.mark);
            let count = u32::try_from(rows.len()).unwrap_or(u32::MAX);
            self.data_plane
                .install(device, provision.mode, provision.first, rows, mark)
                .map(|()| RowIndex(provision.first.0.saturating_add(count)))
        };
        match result {
            Ok(end) => {
                if !installed {
                    self.data_plane.set_epoch(device, provision.epoch);
                }
                self.rows_installed(device, *provision, end);
            }
            Err(StoreError::Busy(_)) => {
                entry.pending = Some(provision);
                self.busy_devices.push(device);
            }
            Err(error @ (StoreError::NoFreeSlot(_) | StoreError::IndexFull(_))) => {
                entry.pending = Some(provision);
                tracing::debug!(device_id = %device, %error, "no slot for the device");
                self.wait_for_slot(device);
            }
            // The feed reports the revocation, or has reported it.
            Err(StoreError::Revoked(_)) => {}
            Err(error) => {
                self.status.damaged += 1;
                tracing::error!(
                    device_id = %device,
                    %error,
                    action = "run `linewarden registry check`; enroll the device again with --replace",
                    "data plane rejects the rows of a device; the device gets no rows"
                );
                if !installed {
                    self.finish_removal(device, None);
                }
            }
        }
    }

    /// Records that the data plane has accepted the rows before `end`. Other rows stay pending until the line has room.
    fn rows_installed(&mut self, device: DeviceId, provision: Provision, end: RowIndex) {
        self.stop_waiting_for_slot(device);
        let Some(entry) = self.devices.get_mut(&device) else {
            return;
        };
        if entry.state == State::Waiting {
            entry.state = State::Installed;
            self.status.devices += 1;
            let uses = self
                .data_plane
                .status(device)
                .map_or(Uses::NONE, |line| uses(&line));
            entry.eviction_handle = Some(self.eviction.insert(device, uses));
        }
        let rows_pending = provision.end().0.saturating_sub(end.0.max(provision.first.0));
        self.status.rows_installed += (provision.rows.len() as u64).saturating_sub(rows_pending.into());
        if rows_pending > 0 {
            entry.pending = Some(Box::new(last_rows(provision, rows_pending)));
        }
    }

    fn wait_for_slot(&mut self, device: DeviceId) {
        let Some(entry) = self.devices.get_mut(&device) else {
            return;
        };
        if entry.slot_queue_number.is_none() {
            entry.slot_queue_number = Some(self.slot_queue_next);
            self.slot_queue.insert(self.slot_queue_next, device);
            self.slot_queue_next += 1;
        }
    }

    pub(super) fn stop_waiting_for_slot(&mut self, device: DeviceId) {
        let entry = self.devices.get_mut(&device);
        if let Some(number) = entry.and_then(|entry| entry.slot_queue_number.take()) {
            self.slot_queue.remove(&number);
        }
    }

    /// Handles a change of credentials: the old rows and the session end at once, and the device authenticates again.
    /// If the credentials are the same, more rows may be available now, and an exhausted device requests them.
    pub(super) fn replace_credentials(&mut self, device: DeviceId, epoch: u32) {
        match self.devices.get(&device) {
            Some(entry) if entry.epoch < epoch => {
                self.audit
                    .record(AuditEvent::CredentialsReplaced { device, epoch });
                self.remove_device(device, false);
            }
            Some(entry) if entry.is_exhausted => self.retry_exhausted_device(device),
            _ => {}
        }
    }

    pub(super) fn retry_exhausted_device(&mut self, device: DeviceId) {
        let entry = self.devices.get_mut(&device);
        if entry.is_some_and(|entry| std::mem::take(&mut entry.is_exhausted)) {
            self.status.exhausted -= 1;
            self.request_rows(device);
        }
    }

    pub(super) fn retry_busy(&mut self) {
        for device in std::mem::take(&mut self.busy_devices) {
            match self.devices.get(&device).map(|entry| entry.state) {
                Some(State::Leaving { .. }) => self.remove_from_data_plane(device),
                Some(_) => self.install_pending(device),
                None => {}
            }
        }
    }

    /// Installs rows for which there was no slot.
    pub(super) fn retry_slot_queue(&mut self) {
        let waiting: Vec<DeviceId> = self.slot_queue.values().take(EVICT_BATCH).copied().collect();
        waiting
            .into_iter()
            .for_each(|device| self.install_pending(device));
    }

    /// Queues every device that needs rows, independently of events.
    pub(super) fn scan_devices(&mut self) {
        let (low_rows, low_credit) = (self.settings.low_rows, self.settings.low_credit);
        let is_low = |line: LineStatus| {
            let credit = line.commit.credit().unwrap_or(u32::MAX);
            line.rows_left <= low_rows || credit <= low_credit
        };
        let pool_devices = self
            .devices
            .iter()
            .filter(|(_, entry)| entry.state == State::Installed && entry.mode == Mode::Pool);
        let pool_devices: Vec<DeviceId> = pool_devices.map(|(device, _)| *device).collect();
        let lines = self.data_plane.statuses(&pool_devices);
        for (device, line) in pool_devices.into_iter().zip(lines) {
            if line.is_some_and(is_low) {
                self.request_rows(device);
            }
        }
    }
}

pub(super) fn uses(line: &LineStatus) -> Uses {
    Uses {
        count: line.commit.generation(),
        until_s: line.session_until_s,
    }
}

/// Returns the last `count` rows.
fn last_rows(provision: Provision, count: u32) -> Provision {
    let skipped = provision.rows.len().saturating_sub(count as usize);
    Provision {
        first: RowIndex(provision.end().0.saturating_sub(count)),
        rows: provision.rows.into_iter().skip(skipped).collect(),
        ..provision
    }
}
