//! Removal of devices from the data plane: eviction, new credentials, revocation, and the stop of the gateway.

use std::collections::HashSet;

use linewarden_dataplane::StoreError;
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex};
use linewarden_types::UnusedRows;

use super::DeviceCache;
use super::entry::{DeviceEntry, State};
use super::queues::UnusedRowsQueue;
use crate::audit::AuditEvent;
use crate::node::context::Context;

impl DeviceCache {
    /// Begins to remove a device that is installed or waits for a slot. Its unused rows are reported if
    /// `reports_unused_rows`.
    pub(in crate::node) fn remove(
        &mut self,
        device: DeviceId,
        reports_unused_rows: bool,
        context: &mut Context,
    ) {
        let Some(entry) = self.entries.get_mut(&device) else {
            return;
        };
        match entry.state {
            State::Installed => {
                entry.state = State::Leaving { reports_unused_rows };
                self.counts.installed -= 1;
                self.remove_from_data_plane(device, context);
            }
            State::Waiting => {
                let first = entry.pending.take().map(|pending| pending.first);
                self.finish_removal(device, first.filter(|_| reports_unused_rows));
            }
            State::Leaving { .. } | State::ReportingUnusedRows | State::Revoked { .. } => {}
        }
    }

    /// Begins to remove all devices; no unused rows are reported.
    pub(in crate::node) fn remove_all(&mut self, context: &mut Context) {
        let devices: Vec<DeviceId> = self.entries.keys().copied().collect();
        devices
            .into_iter()
            .for_each(|device| self.remove(device, false, context));
    }

    /// Revokes and wipes a device in the state [`State::Leaving`]. If the counter of a key-mode device must be
    /// reported, the device is wiped after the report.
    pub(super) fn remove_from_data_plane(&mut self, device: DeviceId, context: &mut Context) {
        let Some(entry) = self.entries.get_mut(&device) else {
            return;
        };
        let State::Leaving { reports_unused_rows } = entry.state else {
            return;
        };
        let (mode, next_row) = (entry.mode, entry.next_row.take());
        // Once REVOKED is set in the commit word, no compare-and-swap on an older commit word succeeds, so the row
        // number is final.
        let line = match context.data_plane.revoke(device) {
            Ok(()) => context.data_plane.status(device),
            Err(_) => None,
        };
        let unused_from = line
            .map(|line| line.commit.idx())
            .or(next_row)
            .filter(|_| reports_unused_rows);
        if mode == Mode::Key && unused_from.is_some() {
            return self.finish_removal(device, unused_from);
        }
        match context.data_plane.wipe(device) {
            Err(StoreError::Busy(_)) => self.busy.push(device),
            _ => self.finish_removal(device, unused_from),
        }
    }

    /// Completes the removal of a device from the data plane. With `unused_from`, the entry of the device stays until
    /// the unused rows are reported.
    pub(super) fn finish_removal(&mut self, device: DeviceId, unused_from: Option<RowIndex>) {
        self.unqueue(device);
        let Some(entry) = self.entries.get_mut(&device) else {
            return;
        };
        let Some(unused_from) = unused_from else {
            self.forget(device);
            return;
        };
        entry.state = State::ReportingUnusedRows;
        entry.pending = None;
        self.unused_rows.waiting.push(UnusedRows {
            device,
            epoch: entry.epoch,
            unused_from,
            keep_leased: false,
        });
    }

    /// Removes the entry of a device.
    fn forget(&mut self, device: DeviceId) {
        self.entries.remove(&device);
        self.rows.ignore_response(device);
    }

    /// Removes the device from the slot queue and from the eviction order, and no longer counts it as exhausted.
    fn unqueue(&mut self, device: DeviceId) {
        let Some(entry) = self.entries.get_mut(&device) else {
            return;
        };
        self.slots.remove(entry);
        if let Some(handle) = entry.eviction_handle.take() {
            self.eviction.remove(handle);
        }
        if std::mem::take(&mut entry.is_exhausted) {
            self.shortages.end_exhausted();
        }
    }

    /// Returns a report of the unused rows of at most `max` devices for which `may_report` returns `true`. The report is in
    /// flight from now on.
    pub(in crate::node) fn next_unused_rows(
        &mut self,
        max: usize,
        may_report: impl Fn(DeviceId) -> bool,
    ) -> Vec<UnusedRows> {
        let UnusedRowsQueue { waiting, in_flight } = &mut self.unused_rows;
        let batch = waiting
            .extract_if(.., |unused| may_report(unused.device))
            .take(max);
        *in_flight = batch.collect();
        in_flight.clone()
    }

    /// Reports the unused rows of a failed report again.
    pub(in crate::node) fn repeat_unused_rows(&mut self) {
        let UnusedRowsQueue { waiting, in_flight } = &mut self.unused_rows;
        waiting.append(in_flight);
    }

    /// Handles the controller's confirmation that the unused rows in flight are recorded.
    pub(in crate::node) fn accept_unused_rows_response(&mut self, context: &mut Context) {
        for unused in std::mem::take(&mut self.unused_rows.in_flight) {
            let device = unused.device;
            match self.entries.get_mut(&device) {
                Some(entry) if entry.state == State::ReportingUnusedRows && entry.mode == Mode::Key => {
                    entry.state = State::Leaving {
                        reports_unused_rows: false,
                    };
                    self.remove_from_data_plane(device, context);
                }
                Some(entry) if entry.state == State::ReportingUnusedRows => self.forget(device),
                // The device was revoked meanwhile, and is wiped like other revoked devices.
                _ => {}
            }
        }
    }

    /// Number of devices whose slots become free when the controller has recorded their unused rows.
    pub(super) fn slots_freed_soon(&self) -> usize {
        let entries = self
            .unused_rows
            .devices()
            .filter_map(|device| self.entries.get(&device));
        entries
            .filter(|entry| entry.state == State::ReportingUnusedRows && entry.mode == Mode::Key)
            .count()
    }

    /// Revokes a device; returns `false` if the device is unknown.
    pub(in crate::node) fn revoke(&mut self, device: DeviceId, context: &mut Context) -> bool {
        self.unqueue(device);
        let Some(entry) = self.entries.get_mut(&device) else {
            return false;
        };
        let was_installed = entry.state == State::Installed;
        match entry.state {
            State::Revoked { .. } => return true,
            State::Installed => {
                if let Err(error) = context.data_plane.revoke(device) {
                    tracing::error!(
                        device_id = %device,
                        %error,
                        action = "restart the gateway: the start repeats the revocation",
                        "revoking a device in the data plane failed; the device may keep its session"
                    );
                }
                self.counts.installed -= 1;
            }
            State::Waiting | State::Leaving { .. } | State::ReportingUnusedRows => {}
        }
        entry.pending = None;
        entry.state = State::Revoked {
            at_ns: context.now_ns(),
        };
        self.record_blocked(device, was_installed, context);
        tracing::info!(device_id = %device, "device blocked: revoked, quarantined, or its record is damaged");
        true
    }

    /// Counts the revocation of a device.
    pub(in crate::node) fn record_blocked(
        &mut self,
        device: DeviceId,
        was_installed: bool,
        context: &mut Context,
    ) {
        self.counts.revoked += 1;
        context.audit.record(AuditEvent::Blocked {
            device,
            was_installed,
        });
    }

    /// Adds the entry of an unknown device that was revoked at `at_ns`: a response in flight may contain rows of the device.
    pub(in crate::node) fn insert_revoked(&mut self, device: DeviceId, at_ns: u64) {
        let entry = DeviceEntry::blank(State::Revoked { at_ns });
        self.entries.insert(device, entry);
    }

    /// Releases a device: its unused rows are reported, and the device starts like a new device.
    pub(in crate::node) fn release(&mut self, device: DeviceId, context: &mut Context) {
        let is_unreported = self.unused_rows.devices().any(|unreported| unreported == device);
        let Some(entry) = self.entries.get_mut(&device) else {
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
        self.remove_from_data_plane(device, context);
    }

    /// Wipes the keys of devices that were revoked `wipe_after_ms` ago or earlier. The entry of a device is removed
    /// after the reports of its unused rows, and only while no response in flight may contain rows of the device
    /// (`may_receive`). Otherwise, a released device could get rows that it has spent, or a late report could return rows
    /// of its new lease.
    pub(in crate::node) fn wipe_revoked(&mut self, may_receive: bool, context: &mut Context) {
        let unreported: HashSet<DeviceId> = self.unused_rows.devices().collect();
        let wipe_after_ns = context.settings.wipe_after_ms.saturating_mul(1_000_000);
        let mut removable = Vec::new();
        for (device, entry) in &mut self.entries {
            let State::Revoked { at_ns } = entry.state else {
                continue;
            };
            if context.now_ns() < at_ns.saturating_add(wipe_after_ns) {
                continue;
            }
            let line = context.data_plane.status(*device);
            if matches!(context.data_plane.wipe(*device), Err(StoreError::Busy(_))) {
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

    /// Drops all leases, for example after the registry was restored: all devices are revoked, and no unused rows are
    /// reported.
    pub(in crate::node) fn drop_leases(&mut self, context: &mut Context) {
        self.unused_rows = UnusedRowsQueue::default();
        let devices: Vec<DeviceId> = self.entries.keys().copied().collect();
        for device in devices {
            self.drop_lease(device, context);
        }
    }

    fn drop_lease(&mut self, device: DeviceId, context: &mut Context) {
        let Some(entry) = self.entries.get_mut(&device) else {
            return;
        };
        match entry.state {
            State::Waiting | State::Installed => self.remove(device, false, context),
            // A pool device is wiped already.
            State::ReportingUnusedRows if entry.mode == Mode::Key => {
                entry.state = State::Leaving {
                    reports_unused_rows: false,
                };
                self.remove_from_data_plane(device, context);
            }
            State::ReportingUnusedRows => self.forget(device),
            // The wipe is retried as soon as the line is not busy.
            State::Leaving { .. } => {
                entry.state = State::Leaving {
                    reports_unused_rows: false,
                }
            }
            State::Revoked { .. } => {}
        }
    }

    /// Revokes all devices and returns their unused rows, which stay leased to this gateway.
    pub(in crate::node) fn revoke_all(&mut self, context: &mut Context) -> Vec<UnusedRows> {
        let UnusedRowsQueue {
            waiting: mut unused_rows,
            mut in_flight,
        } = std::mem::take(&mut self.unused_rows);
        unused_rows.append(&mut in_flight);
        for (device, entry) in &self.entries {
            let first_pending = entry.pending.as_ref().map(|pending| pending.first);
            let unused_from = match entry.state {
                State::Waiting => first_pending,
                // A switch keeps running without its gateway, so key-mode devices are revoked, too.
                State::Installed | State::Leaving { .. } => match context.data_plane.revoke(*device) {
                    Ok(()) if entry.mode == Mode::Pool => context
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
}
