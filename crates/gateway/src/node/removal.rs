//! Removal of devices from the data plane: eviction, new credentials, revocation, and the stop of the gateway.

use std::collections::HashSet;

use linewarden_dataplane::{LineStatus, StoreError};
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex};
use linewarden_types::UnusedRows;

use super::Node;
use super::devices::{DeviceEntry, State, uses};
use super::link::DEVICES_PER_REQUEST;
use crate::audit::AuditEvent;
use crate::time::Clock;

/// Maximum number of devices that are evicted at once.
pub(super) const EVICT_BATCH: usize = 64;

impl Node {
    /// Evicts devices to free slots for waiting devices. Returns how many slots become free, including slots of earlier
    /// evictions.
    pub(super) fn evict(&mut self, clock: Clock) -> usize {
        let spare_live = self.settings.spare_live_sessions;
        let now_s = clock.boot_ns / 1_000_000_000;
        let freed_soon = self.slots_freed_soon();
        let slots_needed = self.slot_queue.len().saturating_sub(freed_soon).min(EVICT_BATCH);
        for evicted in 0..slots_needed {
            let (data_plane, devices) = (&self.data_plane, &self.devices);
            let victim = self.eviction.victim(&|device| {
                let entry = devices
                    .get(&device)
                    .filter(|entry| entry.state == State::Installed)?;
                let line = data_plane.status(device)?;
                let is_live = line.has_session && u64::from(line.session_until_s) > now_s;
                let is_needed = line.commit.is_busy() || spare_live && is_live || entry.is_requesting;
                (!is_needed).then(|| uses(&line))
            });
            let Some(victim) = victim else {
                return freed_soon + evicted;
            };
            self.status.evicted += 1;
            self.audit.record(AuditEvent::Evicted { device: victim });
            self.remove_device(victim, true);
        }
        freed_soon + slots_needed
    }

    /// Begins to remove a device that is installed or waits for a slot. Its unused rows are reported if
    /// `reports_unused_rows`.
    pub(super) fn remove_device(&mut self, device: DeviceId, reports_unused_rows: bool) {
        let Some(entry) = self.devices.get_mut(&device) else {
            return;
        };
        match entry.state {
            State::Installed => {
                entry.state = State::Leaving { reports_unused_rows };
                self.status.devices -= 1;
                self.remove_from_data_plane(device);
            }
            State::Waiting => {
                let first = entry.pending.take().map(|pending| pending.first);
                self.finish_removal(device, first.filter(|_| reports_unused_rows));
            }
            State::Leaving { .. } | State::ReportingUnusedRows | State::Revoked { .. } => {}
        }
    }

    /// Revokes and wipes a device in the state [`State::Leaving`]. If the counter of a key-mode device must be
    /// reported, the device is wiped after the report.
    pub(super) fn remove_from_data_plane(&mut self, device: DeviceId) {
        let Some(entry) = self.devices.get_mut(&device) else {
            return;
        };
        let State::Leaving { reports_unused_rows } = entry.state else {
            return;
        };
        let (mode, next_row) = (entry.mode, entry.next_row.take());
        // Once REVOKED is set in the commit word, no compare-and-swap on an older commit word succeeds, so the row
        // number is final.
        let line = match self.data_plane.revoke(device) {
            Ok(()) => self.data_plane.status(device),
            Err(_) => None,
        };
        let unused_from = line
            .map(|line| line.commit.idx())
            .or(next_row)
            .filter(|_| reports_unused_rows);
        if mode == Mode::Key && unused_from.is_some() {
            return self.finish_removal(device, unused_from);
        }
        match self.data_plane.wipe(device) {
            Err(StoreError::Busy(_)) => self.busy_devices.push(device),
            _ => self.finish_removal(device, unused_from),
        }
    }

    /// Completes the removal of a device from the data plane. With `unused_from`, the entry of the device stays until
    /// the unused rows are reported.
    pub(super) fn finish_removal(&mut self, device: DeviceId, unused_from: Option<RowIndex>) {
        self.unqueue(device);
        let Some(entry) = self.devices.get_mut(&device) else {
            return;
        };
        let Some(unused_from) = unused_from else {
            self.forget(device);
            return;
        };
        entry.state = State::ReportingUnusedRows;
        entry.pending = None;
        self.unused_rows_pending.push(UnusedRows {
            device,
            epoch: entry.epoch,
            unused_from,
            keep_leased: false,
        });
    }

    /// Removes the entry of a device. A response to its request for rows is ignored: the registry may have leased other
    /// rows to a later entry of the device.
    pub(super) fn forget(&mut self, device: DeviceId) {
        self.devices.remove(&device);
        self.rows_in_flight.retain(|requesting| *requesting != device);
    }

    /// Devices whose unused rows the controller has not recorded yet.
    fn unreported_devices(&self) -> impl Iterator<Item = DeviceId> {
        let unused_rows = self.unused_rows_pending.iter().chain(&self.unused_rows_in_flight);
        unused_rows.map(|unused| unused.device)
    }

    /// Removes the device from the slot queue and from the eviction order, and no longer counts it as exhausted.
    fn unqueue(&mut self, device: DeviceId) {
        self.stop_waiting_for_slot(device);
        let Some(entry) = self.devices.get_mut(&device) else {
            return;
        };
        if let Some(handle) = entry.eviction_handle.take() {
            self.eviction.remove(handle);
        }
        if std::mem::take(&mut entry.is_exhausted) {
            self.status.exhausted -= 1;
        }
    }

    /// Handles the controller's confirmation that the unused rows in flight are recorded.
    pub(super) fn unused_rows_recorded(&mut self) {
        for unused in std::mem::take(&mut self.unused_rows_in_flight) {
            let device = unused.device;
            match self.devices.get_mut(&device) {
                Some(entry) if entry.state == State::ReportingUnusedRows && entry.mode == Mode::Key => {
                    entry.state = State::Leaving {
                        reports_unused_rows: false,
                    };
                    self.remove_from_data_plane(device);
                }
                Some(entry) if entry.state == State::ReportingUnusedRows => self.forget(device),
                // The device was revoked meanwhile, and is wiped like other revoked devices.
                _ => {}
            }
        }
    }

    /// Number of devices whose slots become free when the controller has recorded their unused rows.
    fn slots_freed_soon(&self) -> usize {
        let entries = self
            .unreported_devices()
            .filter_map(|device| self.devices.get(&device));
        entries
            .filter(|entry| entry.state == State::ReportingUnusedRows && entry.mode == Mode::Key)
            .count()
    }

    pub(super) fn revoke(&mut self, device: DeviceId, now_ns: u64) {
        self.unqueue(device);
        let Some(entry) = self.devices.get_mut(&device) else {
            // Revocations before the start of the gateway are not counted.
            if self.has_read_feed() {
                self.status.revoked += 1;
                self.record_blocked(device, false);
            }
            if self.may_receive_devices() {
                // A response in flight may still contain rows of the device.
                self.devices
                    .insert(device, DeviceEntry::blank(State::Revoked { at_ns: now_ns }));
            }
            return;
        };
        let was_installed = entry.state == State::Installed;
        match entry.state {
            State::Revoked { .. } => return,
            State::Installed => {
                if let Err(error) = self.data_plane.revoke(device) {
                    tracing::error!(
                        device_id = %device,
                        %error,
                        action = "restart the gateway: the start repeats the revocation",
                        "revoking a device in the data plane failed; the device may keep its session"
                    );
                }
                self.status.devices -= 1;
            }
            State::Waiting | State::Leaving { .. } | State::ReportingUnusedRows => {}
        }
        entry.pending = None;
        entry.state = State::Revoked { at_ns: now_ns };
        self.status.revoked += 1;
        self.record_blocked(device, was_installed);
        tracing::info!(device_id = %device, "device blocked: revoked, quarantined, or its record is damaged");
    }

    /// Releases a device: its unused rows are reported, and the device starts like a new device.
    pub(super) fn release(&mut self, device: DeviceId) {
        let is_unreported = self.unreported_devices().any(|unreported| unreported == device);
        let Some(entry) = self.devices.get_mut(&device) else {
            return;
        };
        if !matches!(entry.state, State::Revoked { .. }) {
            return;
        }
        if is_unreported {
            // The device was removed before its revocation. The device may return when the controller has recorded its
            // unused rows.
            entry.state = State::ReportingUnusedRows;
            return;
        }
        entry.state = State::Leaving {
            reports_unused_rows: true,
        };
        self.remove_from_data_plane(device);
    }

    /// Wipes the keys of devices that were revoked `wipe_after_ms` ago or earlier. The entry of a device is removed
    /// after the reports of its unused rows, and only while no response in flight may contain rows of the device.
    /// Otherwise, a released device could get rows that it has spent, or a late report could return rows of its new lease.
    pub(super) fn wipe_revoked(&mut self, now_ns: u64) {
        let may_receive = self.may_receive_devices();
        let unreported: HashSet<DeviceId> = self.unreported_devices().collect();
        let wipe_after_ns = self.settings.wipe_after_ms.saturating_mul(1_000_000);
        let data_plane = &mut self.data_plane;
        let mut removable = Vec::new();
        for (device, entry) in &mut self.devices {
            let State::Revoked { at_ns } = entry.state else {
                continue;
            };
            if now_ns < at_ns.saturating_add(wipe_after_ns) {
                continue;
            }
            let line = data_plane.status(*device);
            if matches!(data_plane.wipe(*device), Err(StoreError::Busy(_))) {
                continue;
            }
            entry.next_row = line.map(|line| line.commit.idx()).or(entry.next_row);
            if !may_receive && !unreported.contains(device) {
                removable.push((*device, entry.next_row.take()));
            }
        }
        for (device, next_row) in removable {
            self.finish_removal(device, next_row);
        }
    }

    /// Revokes all devices and returns their unused rows, which stay leased to this gateway.
    pub(super) fn revoke_all(&mut self) -> Vec<UnusedRows> {
        let mut unused_rows = std::mem::take(&mut self.unused_rows_pending);
        unused_rows.append(&mut self.unused_rows_in_flight);
        for (device, entry) in &self.devices {
            let first_pending = entry.pending.as_ref().map(|pending| pending.first);
            let unused_from = match entry.state {
                State::Waiting => first_pending,
                // A switch keeps running without its gateway, so key-mode devices are revoked, too.
                State::Installed | State::Leaving { .. } => match self.data_plane.revoke(*device) {
                    Ok(()) if entry.mode == Mode::Pool => self
                        .data_plane
                        .status(*device)
                        .filter(|line| !line.commit.is_busy())
                        .map(|line| line.commit.idx()),
                    _ => None,
                },
                State::ReportingUnusedRows | State::Revoked { .. } => None,
            };
            // The next process draws its own fresh values, so the counters of key-mode devices need not be reported.
            let unused_from = unused_from.filter(|_| entry.mode == Mode::Pool);
            unused_rows.extend(unused_from.map(|unused_from| UnusedRows {
                device: *device,
                epoch: entry.epoch,
                unused_from,
                keep_leased: true,
            }));
        }
        unused_rows
    }

    /// Requests rows again for some exhausted devices: other gateways may have returned rows. An exhausted device
    /// without a row in the data plane and without a live session is removed, so the slow path handles its next
    /// message.
    pub(super) fn retry_exhausted(&mut self, clock: Clock) {
        let now_s = clock.boot_ns / 1_000_000_000;
        let count = self.exhausted_devices.len().min(DEVICES_PER_REQUEST);
        let batch: Vec<DeviceId> = self.exhausted_devices.drain(..count).collect();
        for device in batch {
            if !self.devices.get(&device).is_some_and(|entry| entry.is_exhausted) {
                continue;
            }
            let is_idle = |line: LineStatus| {
                let is_live = line.has_session && u64::from(line.session_until_s) > now_s;
                line.rows_left == 0 && !is_live
            };
            match self.data_plane.status(device).is_some_and(is_idle) {
                true => self.remove_device(device, true),
                false => self.retry_exhausted_device(device),
            }
        }
    }
}
