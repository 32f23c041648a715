//! Devices that may not authenticate, according to the feed. Each block is reported once. While attestation decisions
//! of the controller are pending, the audit record of a release is deferred, at most until the next block of the
//! device. If a decision caused the release, only the decision is recorded.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;

use linewarden_protocol::ids::DeviceId;
use linewarden_types::{Change, Revision};

/// Devices that are revoked, in quarantine, or have a damaged record.
#[derive(Debug, Default)]
pub(super) struct BlockedDevices {
    /// Blocked devices; one of the revisions in the range caused the block.
    devices: HashMap<DeviceId, RangeInclusive<u64>>,
    /// Devices whose release is not recorded yet, because the controller may report the decision that caused it.
    released: BTreeMap<DeviceId, Revision>,
}

impl BlockedDevices {
    /// Records a block from the feed; returns whether it is new.
    pub(super) fn block(&mut self, change: &Change) -> bool {
        let at = change.revision.0;
        let previous = self.devices.insert(change.device, at..=at);
        previous.is_none_or(|previous| !previous.contains(&at))
    }

    /// Whether the record of a release after this revision is deferred.
    pub(super) fn is_released_after(&self, device: DeviceId, upto: Revision) -> bool {
        self.released
            .get(&device)
            .is_some_and(|released_at| *released_at > upto)
    }

    /// Records a quarantine that the controller decided at revision `upto` or earlier. Returns `false` if the feed has
    /// already reported a block of the device. This block is the same quarantine, or an older block whose end the feed
    /// has not reported yet.
    pub(super) fn quarantine(&mut self, device: DeviceId, upto: Revision) -> bool {
        match self.devices.entry(device) {
            Entry::Occupied(mut revisions) => {
                let (from, end) = (*revisions.get().start(), *revisions.get().end());
                revisions.insert(from..=end.max(upto.0));
                false
            }
            Entry::Vacant(vacant) => {
                vacant.insert(0..=upto.0);
                true
            }
        }
    }

    /// Records that a device may authenticate; returns whether the device was blocked.
    pub(super) fn unblock(&mut self, change: &Change) -> bool {
        self.devices.remove(&change.device).is_some()
    }

    /// Defers the record of a release.
    pub(super) fn defer_release(&mut self, change: &Change) {
        self.released.insert(change.device, change.revision);
    }

    /// Handles a decision of the controller that released the device at revision `at`. Removes a block that ended
    /// before `at`, and discards a deferred release up to `at`, because the decision is recorded instead.
    pub(super) fn confirm_release(&mut self, device: DeviceId, at: Revision) {
        if self
            .devices
            .get(&device)
            .is_some_and(|revisions| *revisions.end() < at.0)
        {
            self.devices.remove(&device);
        }
        if self
            .released
            .get(&device)
            .is_some_and(|released_at| *released_at <= at)
        {
            self.released.remove(&device);
        }
    }

    /// Takes deferred releases: the release of `device`, or all releases if `device` is `None`.
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
