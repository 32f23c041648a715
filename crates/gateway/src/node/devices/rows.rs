//! Rows of devices: requests, and the installation in the data plane.

use std::collections::HashSet;

use linewarden_dataplane::{LineStatus, StoreError};
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex};
use linewarden_types::{Provision, RefusalReason, RowRefusal, RowRequest};

use super::entry::State;
use super::{DeviceCache, uses};
use crate::node::context::Context;
use crate::node::eviction::Uses;

impl DeviceCache {
    /// Queues a device for rows, unless the device is queued already, needs no row, or can get no row.
    pub(in crate::node) fn request_rows(&mut self, device: DeviceId, context: &mut Context) {
        if self
            .entries
            .get(&device)
            .is_some_and(|entry| entry.pending.is_some())
        {
            // The pending rows may fit into the data plane now.
            self.install_pending(device, context);
        }
        let Some(entry) = self.entries.get_mut(&device) else {
            return;
        };
        if entry.state == State::Installed && !entry.is_exhausted {
            entry.request_again = entry.is_requesting;
            if !std::mem::replace(&mut entry.is_requesting, true) {
                self.rows.waiting.push_back(device);
            }
        }
    }

    /// Returns requests for rows of at most `max` waiting devices, which are in flight from now on.
    pub(in crate::node) fn next_row_requests(
        &mut self,
        max: usize,
        context: &mut Context,
    ) -> Vec<RowRequest> {
        let mut requests = Vec::new();
        while requests.len() < max
            && let Some(device) = self.rows.waiting.pop_front()
        {
            match self.row_request(device, context) {
                Some(request) => requests.push(request),
                None => {
                    if let Some(entry) = self.entries.get_mut(&device) {
                        entry.is_requesting = false;
                    }
                }
            }
        }
        self.rows.in_flight = requests.iter().map(|request| request.device).collect();
        requests
    }

    /// Returns the row request of a device; `None` if the device needs nothing from the controller. Grants the credit
    /// that the mark allows and the line does not have yet.
    fn row_request(&mut self, device: DeviceId, context: &mut Context) -> Option<RowRequest> {
        let settings = &context.settings;
        let entry = self.entries.get_mut(&device)?;
        if entry.state != State::Installed || entry.mode == Mode::Key {
            return None;
        }
        let line = context.data_plane.status(device)?;
        let from = line.commit.idx();
        let is_low = line.rows_left <= settings.low_rows;
        let rows_allowed = entry.mark.row.0.saturating_sub(from.0);
        if !is_low && rows_allowed > settings.low_credit {
            // The line has less credit than the mark allows.
            return context.data_plane.grant(device, entry.mark.row).err().and(None);
        }
        let capacity = settings.ring.saturating_add(1);
        Some(RowRequest {
            device,
            epoch: entry.epoch,
            from,
            received: entry.received_end,
            hold_rows: if is_low { capacity } else { line.rows_left },
            spendable_rows: entry
                .mark
                .request(settings.mark_block, context.clock.monotonic_ns),
        })
    }

    /// Handles the response to the request in flight.
    pub(in crate::node) fn accept_row_response(
        &mut self,
        provisions: Vec<Provision>,
        refusals: &[RowRefusal],
        context: &mut Context,
    ) {
        let requesting: HashSet<DeviceId> = self.rows.in_flight.drain(..).collect();
        for device in &requesting {
            if let Some(entry) = self.entries.get_mut(device) {
                entry.is_requesting = false;
            }
        }
        for rows in provisions {
            if requesting.contains(&rows.device) {
                self.accept_rows(rows, context);
            }
        }
        for refusal in refusals {
            if requesting.contains(&refusal.device) {
                self.accept_refusal(refusal, context);
            }
        }
    }

    /// Queues all devices of a failed request again, at the front of the queue.
    pub(in crate::node) fn repeat_row_request(&mut self) {
        for device in self.rows.in_flight.drain(..).rev() {
            if self.entries.get(&device).is_some_and(|entry| entry.is_requesting) {
                self.rows.waiting.push_front(device);
            }
        }
    }

    /// Adds rows that were leased for a device.
    fn accept_rows(&mut self, provision: Provision, context: &mut Context) {
        let device = provision.device;
        let Some(entry) = self.entries.get_mut(&device) else {
            return;
        };
        if entry.state != State::Installed || entry.epoch != provision.epoch {
            // The device is leaving; its unused rows are reported later.
            return;
        }
        let has_moved = entry.mark.advance(provision.mark);
        let mark = entry.mark.row;
        let is_due = std::mem::take(&mut entry.request_again) || has_moved || !provision.rows.is_empty();
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
        if let Err(error) = context.data_plane.grant(device, mark) {
            tracing::error!(device_id = %device, %error, action = "restart the gateway if the error persists",
                "data plane rejects the new mark of a device; after the rows below the current mark, the device cannot authenticate at this gateway");
        }
        self.install_pending(device, context);
        // The device may have spent rows during the request, so another request may be necessary. To prevent an endless
        // repetition, another request is sent only if the response has brought rows or moved the mark, or the device
        // needed more rows meanwhile. In other cases, an event of the device's next RESPONSE causes the request.
        let is_stuck = |line: LineStatus| line.rows_left == 0 || !line.commit.has_credit();
        if is_due && context.data_plane.status(device).is_some_and(is_stuck) {
            self.request_rows(device, context);
        }
    }

    fn accept_refusal(&mut self, refusal: &RowRefusal, context: &mut Context) {
        let device = refusal.device;
        let Some(entry) = self.entries.get_mut(&device) else {
            return;
        };
        match &refusal.reason {
            RefusalReason::Exhausted if entry.state != State::Installed => {}
            RefusalReason::Exhausted => {
                if !std::mem::replace(&mut entry.is_exhausted, true) {
                    self.shortages.add_exhausted(device, context);
                }
            }
            // The feed reports the reason.
            RefusalReason::Inactive => {}
            RefusalReason::NotHeld => {
                tracing::warn!(device_id = %device, "registry has no lease of the device at this gateway; the gateway removes the device, and the device authenticates again");
                self.remove(device, false, context);
            }
            RefusalReason::Damaged(problem) => {
                self.counts.damaged += 1;
                tracing::error!(
                    device_id = %device,
                    error = problem,
                    action = "run `linewarden registry check`; restore a backup, or revoke the device and enroll the device under another ID",
                    "device record is damaged; the device gets no rows"
                );
            }
        }
    }

    /// Installs the pending rows in the data plane.
    pub(super) fn install_pending(&mut self, device: DeviceId, context: &mut Context) {
        let Some(entry) = self.entries.get_mut(&device) else {
            return;
        };
        let is_installed = match entry.state {
            State::Waiting => false,
            State::Installed => true,
            State::Leaving { .. } | State::ReportingUnusedRows | State::Revoked { .. } => return,
        };
        let Some(provision) = entry.pending.take() else {
            return;
        };
        let result = match is_installed {
            true => context
                .data_plane
                .refill(device, provision.first, &provision.rows),
            false => install(&provision, context),
        };
        match result {
            Ok(end) => self.rows_installed(*provision, end, context),
            Err(StoreError::Busy(_)) => {
                entry.pending = Some(provision);
                self.busy.push(device);
            }
            Err(error @ (StoreError::NoFreeSlot(_) | StoreError::IndexFull(_))) => {
                entry.pending = Some(provision);
                tracing::debug!(device_id = %device, %error, "no slot for the device");
                self.slots.add(device, entry);
            }
            // The feed reports the revocation, or has reported it.
            Err(StoreError::Revoked(_)) => {}
            Err(error) => {
                self.counts.damaged += 1;
                tracing::error!(
                    device_id = %device,
                    %error,
                    action = "run `linewarden registry check`; enroll the device again with --replace",
                    "data plane rejects the rows of a device; the device gets no rows"
                );
                if !is_installed {
                    self.finish_removal(device, None);
                }
            }
        }
    }

    /// Records that the data plane has accepted the rows before `end`. Other rows stay pending until the line has room.
    fn rows_installed(&mut self, provision: Provision, end: RowIndex, context: &Context) {
        let device = provision.device;
        let Some(entry) = self.entries.get_mut(&device) else {
            return;
        };
        self.slots.remove(entry);
        if entry.state == State::Waiting {
            entry.state = State::Installed;
            self.counts.installed += 1;
            let line = context.data_plane.status(device);
            let uses = line.map_or(Uses::NONE, |line| uses(&line));
            entry.eviction_handle = Some(self.eviction.insert(device, uses));
        }
        let rows_pending = provision.end().0.saturating_sub(end.0.max(provision.first.0));
        self.counts.rows_installed += (provision.rows.len() as u64).saturating_sub(rows_pending.into());
        if rows_pending > 0 {
            entry.pending = Some(Box::new(last_rows(provision, rows_pending)));
        }
    }

    /// Queues every device that needs rows, independently of events.
    pub(in crate::node) fn scan(&mut self, context: &mut Context) {
        let (low_rows, low_credit) = (context.settings.low_rows, context.settings.low_credit);
        let is_low = |line: LineStatus| {
            let credit = line.commit.credit().unwrap_or(u32::MAX);
            line.rows_left <= low_rows || credit <= low_credit
        };
        let pool_devices = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.state == State::Installed && entry.mode == Mode::Pool);
        let pool_devices: Vec<DeviceId> = pool_devices.map(|(device, _)| *device).collect();
        let lines = context.data_plane.statuses(&pool_devices);
        for (device, line) in pool_devices.into_iter().zip(lines) {
            if line.is_some_and(is_low) {
                self.request_rows(device, context);
            }
        }
    }
}

/// Installs a new device with the rows for which its line has room; returns the number after the last installed row.
fn install(provision: &Provision, context: &mut Context) -> Result<RowIndex, StoreError> {
    let capacity = context.settings.ring.saturating_add(1) as usize;
    let rows = provision.rows.get(..capacity).unwrap_or(&provision.rows);
    let mark = (provision.mode == Mode::Pool).then_some(provision.mark);
    let device = provision.device;
    context
        .data_plane
        .install(device, provision.mode, provision.first, rows, mark)?;
    context.data_plane.set_epoch(device, provision.epoch);
    let count = u32::try_from(rows.len()).unwrap_or(u32::MAX);
    Ok(RowIndex(provision.first.0.saturating_add(count)))
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
