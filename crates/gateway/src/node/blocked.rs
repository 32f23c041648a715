//! Devices that may not authenticate, according to the feed. Each block is reported once, and its end is recorded
//! after its cause.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;

use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{Change, Revision};

/// Devices that are revoked, in quarantine, or have a damaged record.
#[derive(Debug, Default)]
pub(super) struct BlockedDevices {
    /// The device's block was caused by one of these revisions.
    devices: HashMap<DeviceId, RangeInclusive<u64>>,
    /// Devices that were released, while the controller may still report an earlier decision.
    released: BTreeMap<DeviceId, Revision>,
}

impl BlockedDevices {
    /// Records a block from the feed; returns whether it is new.
    pub(super) fn block(&mut self, change: &Change) -> bool {
        let at = change.revision.0;
        let before = self.devices.insert(change.device, at..=at);
        before.is_none_or(|before| !before.contains(&at))
    }

    /// Whether the feed has reported a release after this revision.
    pub(super) fn is_released_after(&self, device: DeviceId, upto: Revision) -> bool {
        self.released.get(&device).is_some_and(|let_in| *let_in > upto)
    }

    /// Records a quarantine by this revision or an earlier one; returns whether it is new. It is not new if the feed
    /// has reported a block: this one, or an older one whose end it has not reported yet. The next part of the feed
    /// decides.
    pub(super) fn quarantine(&mut self, device: DeviceId, upto: Revision) -> bool {
        match self.devices.entry(device) {
            Entry::Occupied(mut by) => {
                let (from, end) = (*by.get().start(), *by.get().end());
                by.insert(from..=end.max(upto.0));
                false
            }
            Entry::Vacant(place) => {
                place.insert(0..=upto.0);
                true
            }
        }
    }

    /// Records that a device may authenticate; returns whether it was blocked.
    pub(super) fn unblock(&mut self, change: &Change) -> bool {
        self.devices.remove(&change.device).is_some()
    }

    /// Defers the record of a release.
    pub(super) fn defer_release(&mut self, change: &Change) {
        self.released.insert(change.device, change.revision);
    }

    /// Records that the release by this revision has been reported with the decision.
    pub(super) fn confirm_release(&mut self, device: DeviceId, at: Revision) {
        if self.devices.get(&device).is_some_and(|by| *by.end() < at.0) {
            self.devices.remove(&device);
        }
        if self.released.get(&device).is_some_and(|let_in| *let_in <= at) {
            self.released.remove(&device);
        }
    }

    /// Takes the deferred releases: all, or that of one device.
    pub(super) fn take_released(&mut self, device: Option<DeviceId>) -> Vec<DeviceId> {
        match device {
            Some(device) => self
                .released
                .remove(&device)
                .map(|_| device)
                .into_iter()
                .collect(),
            None => std::mem::take(&mut self.released).into_keys().collect(),
        }
    }
}
