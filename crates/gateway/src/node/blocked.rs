//! Devices that may not authenticate, according to the feed. Each block is reported once. While
//! decisions are pending, the record of a release is deferred, at most until the next block of the device: if a
//! decision caused the release, only the decision is recorded.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;

use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{Change, Revision};

/// Devices that are revoked, in quarantine, or have a damaged record.
#[derive(Debug, Default)]
pub(super) struct BlockedDevices {
    /// Blocked devices; one of the revisions in the range caused the block.
    devices: HashMap<DeviceId, RangeInclusive<u64>>,
    /// Devices that were released, while the controller may still report an earlier decision.
    released: BTreeMap<DeviceId, Revision>,
}

impl BlockedDevices {
    /// Records a block from the feed; returns whether it is new.
    pub(super) fn block(&mut self, change: &Change) -> bool {
        let at = change.revision.0;
        let previous = self.devices.insert(change.device, at..=at);
        previous.is_none_or(|previous| !previous.contains(&at))
    }

    /// Whether the feed has reported a release after this revision.
    pub(super) fn is_released_after(&self, device: DeviceId, upto: Revision) -> bool {
        self.released
            .get(&device)
            .is_some_and(|released_at| *released_at > upto)
    }

    /// Records a quarantine by this revision or an earlier revision; returns whether the quarantine is new. It is not
    /// new if the feed has reported a block of the device: this quarantine, or an older block whose end the feed has
    /// not reported yet. The next part of the feed shows which.
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

    /// Records that a device may authenticate; returns whether it was blocked.
    pub(super) fn unblock(&mut self, change: &Change) -> bool {
        self.devices.remove(&change.device).is_some()
    }

    /// Defers the record of a release.
    pub(super) fn defer_release(&mut self, change: &Change) {
        self.released.insert(change.device, change.revision);
    }

    /// Handles a decision that reports a release up to this revision: the deferred release is not recorded.
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
