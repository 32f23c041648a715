//! Devices without rows: the devices for which the registry has no row, and the log messages about them.

use linewarden_dataplane::LineStatus;
use linewarden_protocol::ids::DeviceId;

use super::DeviceCache;
use crate::audit::AuditEvent;
use crate::node::context::Context;

/// Maximum number of exhausted devices for which rows are requested at once.
const RETRIES_MAX: usize = 256;

impl DeviceCache {
    /// Logs a REQUEST that was rejected with a NAK because the registry can lease no row. Any host can send such
    /// a REQUEST.
    pub(in crate::node) fn log_unserved(&mut self, device: DeviceId, context: &mut Context) {
        self.shortages.unserved_count += 1;
        if self.shortages.unserved_log.is_due(device, context.now_ns()) {
            context.audit.record(AuditEvent::Exhausted { device });
            tracing::warn!(
                device_id = %device,
                action = "run `linewarden device show DEVICE`; enroll the device again with --replace",
                "request rejected: no row can be leased for the device"
            );
        }
    }

    /// Logs a REQUEST that was rejected with a NAK because the REQUEST states that the device has used all remaining
    /// rows. The statement can be forged.
    pub(in crate::node) fn log_stated_exhausted(&mut self, device: DeviceId, now_ns: u64) {
        self.shortages.unserved_count += 1;
        if self.shortages.stated_exhausted_log.is_due(device, now_ns) {
            tracing::warn!(
                device_id = %device,
                action = "if the device does not authenticate, enroll the device again with --replace; otherwise ignore the request, which may be forged",
                "request rejected: the request states that the device has already used all of its rows in the registry"
            );
        }
    }

    /// Requests rows again for some exhausted devices: other gateways may have returned rows. An exhausted device
    /// without a row in the data plane and without a live session is removed, so the slow path handles its next
    /// message.
    pub(in crate::node) fn retry_exhausted(&mut self, context: &mut Context) {
        let now_s = context.boot_s();
        let count = self.shortages.exhausted.len().min(RETRIES_MAX);
        let batch: Vec<DeviceId> = self.shortages.exhausted.drain(..count).collect();
        for device in batch {
            if !self.entries.get(&device).is_some_and(|entry| entry.is_exhausted) {
                continue;
            }
            let is_idle = |line: LineStatus| {
                let is_live = line.has_session && u64::from(line.session_until_s) > now_s;
                line.rows_left == 0 && !is_live
            };
            match context.data_plane.status(device).is_some_and(is_idle) {
                true => self.remove(device, true, context),
                false => self.retry_exhausted_device(device, context),
            }
        }
    }

    /// Requests rows again for a device, if it is exhausted.
    fn retry_exhausted_device(&mut self, device: DeviceId, context: &mut Context) {
        let entry = self.entries.get_mut(&device);
        if entry.is_some_and(|entry| std::mem::take(&mut entry.is_exhausted)) {
            self.shortages.end_exhausted();
            self.request_rows(device, context);
        }
    }

    /// Handles a change of credentials: the old rows and the session end at once, and the device authenticates again.
    /// If the credentials are the same, more rows may be available now, and an exhausted device requests them.
    pub(in crate::node) fn replace_credentials(
        &mut self,
        device: DeviceId,
        epoch: u32,
        context: &mut Context,
    ) {
        if self.entries.get(&device).is_some_and(|entry| entry.epoch < epoch) {
            context
                .audit
                .record(AuditEvent::CredentialsReplaced { device, epoch });
            self.remove(device, false, context);
        } else {
            self.retry_exhausted_device(device, context);
        }
    }

    /// Logs shortages of rows and slots.
    pub(in crate::node) fn log_shortages(&mut self) {
        self.shortages.log_exhausted();
        self.slots.log_shortage();
    }
}
