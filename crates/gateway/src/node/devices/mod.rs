//! The device cache: the devices of a gateway, their states, and their requests to the controller.
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
//! The cache drives the data plane, and sends no requests: the [lease client](super::leases) takes the requests for rows and
//! the reports of unused rows, and returns the responses.

mod entry;
mod queues;
mod removal;
mod rows;
mod shortage;
mod slots;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use linewarden_dataplane::{InheritedDevice, LineStatus};
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, SessionId};
use linewarden_types::Provision;

use self::entry::{DeviceEntry, Mark, State};
use self::queues::{RowQueue, Shortages, SlotQueue, UnusedRowsQueue};
use super::context::Context;
use super::eviction::{Eviction, Policy, Uses};
use super::status::Status;

/// All devices of a node.
pub(super) struct DeviceCache {
    entries: HashMap<DeviceId, DeviceEntry>,
    rows: RowQueue,
    unused_rows: UnusedRowsQueue,
    slots: SlotQueue,
    shortages: Shortages,
    /// Devices whose line was busy; retried at each tick.
    busy: Vec<DeviceId>,
    eviction: Box<dyn Policy>,
    counts: Counts,
}

/// Counts in the [`Status`].
#[derive(Debug, Default)]
struct Counts {
    installed: u64,
    revoked: u64,
    evicted: u64,
    damaged: u64,
    rows_installed: u64,
}

/// The route of a message of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageRoute {
    /// To the controller: the device is unknown.
    Admit,
    /// To the data plane, which contains the device by now.
    Replay,
    /// The device repeats the message later; by then, the device has a slot or is removed.
    Drop,
}

impl DeviceCache {
    pub(super) fn new(eviction: Eviction) -> Self {
        Self {
            entries: HashMap::new(),
            rows: RowQueue::default(),
            unused_rows: UnusedRowsQueue::default(),
            slots: SlotQueue::default(),
            shortages: Shortages::default(),
            busy: Vec::new(),
            eviction: eviction.policy(),
            counts: Counts::default(),
        }
    }

    /// Adds a new device with leased rows; returns whether the device is in the data plane.
    pub(super) fn admit(&mut self, provision: Provision, context: &mut Context) -> bool {
        let device = provision.device;
        if let Entry::Vacant(vacant) = self.entries.entry(device) {
            vacant.insert(DeviceEntry::new(provision, context.settings.mark_block));
            self.install_pending(device, context);
        }
        self.is_installed(device)
    }

    /// Adopts a device that an earlier process left in the data plane.
    pub(super) fn adopt(&mut self, inherited: InheritedDevice, epoch: u32, mode: Mode, context: &Context) {
        let device = inherited.device;
        let entry = DeviceEntry {
            mode,
            epoch,
            mark: Mark::new(
                inherited.mark.unwrap_or(RowIndex(u32::MAX)),
                context.settings.mark_block,
            ),
            received_end: inherited.end,
            eviction_handle: Some(self.eviction.insert(device, uses(&inherited.line))),
            ..DeviceEntry::blank(State::Installed)
        };
        self.entries.insert(device, entry);
        self.counts.installed += 1;
    }

    /// Wipes a device that an earlier process left in the data plane.
    pub(super) fn wipe_inherited(&mut self, device: DeviceId, context: &mut Context) {
        let _ = context.data_plane.revoke(device);
        if context.data_plane.wipe(device).is_err() {
            // The data plane is using the line; the wipe is retried, as for a device that leaves.
            let state = State::Leaving {
                reports_unused_rows: false,
            };
            self.entries.insert(device, DeviceEntry::blank(state));
            self.busy.push(device);
        }
    }

    pub(super) fn contains(&self, device: DeviceId) -> bool {
        self.entries.contains_key(&device)
    }

    fn is_installed(&self, device: DeviceId) -> bool {
        self.entries
            .get(&device)
            .is_some_and(|entry| entry.state == State::Installed)
    }

    /// Number of devices in the data plane that may authenticate.
    pub(super) fn installed_count(&self) -> u64 {
        self.counts.installed
    }

    pub(super) fn route_message(&self, device: DeviceId) -> MessageRoute {
        match self.entries.get(&device).map(|entry| entry.state) {
            None => MessageRoute::Admit,
            Some(State::Installed) => MessageRoute::Replay,
            Some(_) => MessageRoute::Drop,
        }
    }

    /// The mode of a device; an unknown device counts as a pool device.
    pub(super) fn mode(&self, device: DeviceId) -> Mode {
        self.entries.get(&device).map_or(Mode::Pool, |entry| entry.mode)
    }

    /// Records a session that was opened at `opened_ns` of the boot-time clock.
    pub(super) fn record_session(&mut self, device: DeviceId, session: SessionId, opened_ns: u64) {
        if let Some(entry) = self.entries.get_mut(&device) {
            entry.last_session = Some((session, opened_ns));
        }
    }

    /// The last recorded session of a device and its start, boot-time clock, ns.
    pub(super) fn last_session(&self, device: DeviceId) -> Option<(SessionId, u64)> {
        self.entries.get(&device).and_then(|entry| entry.last_session)
    }

    /// The devices among `devices` that are in the data plane or wait for a slot.
    pub(super) fn present_of(&self, devices: &HashSet<DeviceId>) -> Vec<DeviceId> {
        let is_present = |state| matches!(state, State::Waiting | State::Installed);
        let entries = self.entries.iter();
        let present = entries.filter(|(device, entry)| is_present(entry.state) && devices.contains(device));
        present.map(|(device, _)| *device).collect()
    }

    /// Continues with devices whose line was busy.
    pub(super) fn retry_busy(&mut self, context: &mut Context) {
        for device in std::mem::take(&mut self.busy) {
            match self.entries.get(&device).map(|entry| entry.state) {
                Some(State::Leaving { .. }) => self.remove_from_data_plane(device, context),
                Some(_) => self.install_pending(device, context),
                None => {}
            }
        }
    }

    /// Whether a device waits for its line, which is checked at each tick.
    pub(super) fn has_busy_lines(&self) -> bool {
        !self.busy.is_empty()
    }

    pub(super) fn report(&self, status: &mut Status) {
        status.devices = self.counts.installed;
        status.revoked = self.counts.revoked;
        status.evicted = self.counts.evicted;
        status.damaged += self.counts.damaged;
        status.rows_installed = self.counts.rows_installed;
        status.waiting_for_rows = self.rows.waiting_count();
        status.waiting_for_slot = self.slots.waiting_count();
        self.shortages.report(status);
    }
}

fn uses(line: &LineStatus) -> Uses {
    Uses {
        count: line.commit.generation(),
        until_s: line.session_until_s,
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "tests may")]
mod tests;
