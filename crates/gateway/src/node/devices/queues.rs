//! The queues of a device cache: devices that wait for rows or slots, reports of unused rows, and devices without rows.

use std::collections::{BTreeMap, HashMap, VecDeque};

use linewarden_protocol::ids::DeviceId;
use linewarden_types::UnusedRows;

use super::entry::DeviceEntry;
use crate::audit::AuditEvent;
use crate::node::context::Context;
use crate::node::status::Status;

/// The devices that need rows.
#[derive(Debug, Default)]
pub(super) struct RowQueue {
    /// Devices that wait for a request, in order of arrival.
    pub(super) waiting: VecDeque<DeviceId>,
    /// Devices in the request in flight, except those whose entries were removed since.
    pub(super) in_flight: Vec<DeviceId>,
}

impl RowQueue {
    pub(super) fn waiting_count(&self) -> u64 {
        self.waiting.len() as u64
    }

    /// Ignores the response to the device's request in flight: the registry may have leased other rows to a later entry of the
    /// device.
    pub(super) fn ignore_response(&mut self, device: DeviceId) {
        self.in_flight.retain(|requesting| *requesting != device);
    }
}

/// Unused rows of removed devices, until the controller has recorded them.
#[derive(Debug, Default)]
pub(super) struct UnusedRowsQueue {
    /// Rows that are not reported yet.
    pub(super) waiting: Vec<UnusedRows>,
    /// Rows in the report in flight.
    pub(super) in_flight: Vec<UnusedRows>,
}

impl UnusedRowsQueue {
    /// The devices whose unused rows the controller has not recorded yet.
    pub(super) fn devices(&self) -> impl Iterator<Item = DeviceId> {
        let unused_rows = self.waiting.iter().chain(&self.in_flight);
        unused_rows.map(|unused| unused.device)
    }
}

/// The devices that wait for a slot.
#[derive(Debug, Default)]
pub(super) struct SlotQueue {
    /// The devices, by their number in the order of arrival.
    pub(super) waiting: BTreeMap<u64, DeviceId>,
    /// The number of the next device.
    next_number: u64,
    /// When free slots must be looked for again, monotonic clock.
    pub(super) reclaim_due_ns: Option<u64>,
    /// Whether devices wait, and no device could be evicted for them at the last attempt.
    pub(super) is_full: bool,
    /// Number of waiting devices at the last check for log messages.
    waiting_logged: u64,
}

impl SlotQueue {
    pub(super) fn add(&mut self, device: DeviceId, entry: &mut DeviceEntry) {
        if entry.slot_queue_number.is_none() {
            entry.slot_queue_number = Some(self.next_number);
            self.waiting.insert(self.next_number, device);
            self.next_number += 1;
        }
    }

    pub(super) fn remove(&mut self, entry: &mut DeviceEntry) {
        if let Some(number) = entry.slot_queue_number.take() {
            self.waiting.remove(&number);
        }
    }

    pub(super) fn waiting_count(&self) -> u64 {
        self.waiting.len() as u64
    }

    pub(super) fn log_shortage(&mut self) {
        let waiting = self.waiting_count();
        if waiting > self.waiting_logged && self.is_full {
            tracing::error!(
                count = waiting,
                action = "raise `slots`, and restart the gateway",
                "data plane has no slot for some devices, and no device can be evicted; these devices cannot authenticate"
            );
        }
        self.waiting_logged = waiting;
    }
}

/// Minimum interval between two log messages about a device without rows, ns.
const UNSERVED_LOG_NS: u64 = 600_000_000_000;
/// Maximum number of devices without rows that are logged in this interval.
const UNSERVED_DEVICES_MAX: usize = 1024;

/// Devices in recent log messages, with the time until which no further message is due, monotonic, ns.
#[derive(Debug, Default)]
pub(super) struct LogLimiter(HashMap<DeviceId, u64>);

impl LogLimiter {
    /// Whether a log message about the device is due. If so, records that the message is logged now.
    pub(super) fn is_due(&mut self, device: DeviceId, now_ns: u64) -> bool {
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

/// Devices without rows.
#[derive(Debug, Default)]
pub(super) struct Shortages {
    /// Devices for which the controller had no rows, in the order of the refusals. Some devices may have received rows
    /// after their refusal.
    pub(super) exhausted: VecDeque<DeviceId>,
    /// Number of devices that are exhausted.
    exhausted_count: u64,
    /// Number of exhausted devices at the last check for log messages.
    exhausted_logged: u64,
    /// REQUESTs that were rejected with a NAK.
    pub(super) unserved_count: u64,
    /// Recent log messages about devices without rows.
    pub(super) unserved_log: LogLimiter,
    /// Recent log messages about devices whose REQUESTs stated that the device has used all remaining rows.
    pub(super) stated_exhausted_log: LogLimiter,
}

impl Shortages {
    /// Records that the controller has no row for an installed device.
    pub(super) fn add_exhausted(&mut self, device: DeviceId, context: &mut Context) {
        self.exhausted_count += 1;
        self.exhausted.push_back(device);
        context.audit.record(AuditEvent::Exhausted { device });
        tracing::debug!(device_id = %device, "no row is left for the device");
    }

    /// Records that an exhausted device was removed, or may get rows again.
    pub(super) fn end_exhausted(&mut self) {
        self.exhausted_count -= 1;
    }

    /// Logs new exhausted devices in one message; a message for each device could flood the log.
    pub(super) fn log_exhausted(&mut self) {
        if self.exhausted_count > self.exhausted_logged {
            tracing::warn!(
                count = self.exhausted_count,
                action = "let the agents of the devices renew rows earlier, or enroll the devices again with --replace",
                "registry has no more rows for some devices"
            );
        }
        self.exhausted_logged = self.exhausted_count;
    }

    pub(super) fn report(&self, status: &mut Status) {
        status.exhausted = self.exhausted_count;
        status.unserved = self.unserved_count;
    }
}
