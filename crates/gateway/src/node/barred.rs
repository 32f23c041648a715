//! Who may not authenticate, as the feed tells it: so that nobody is told of it twice, and that its end is recorded, after what led
//! there.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;

use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{Change, Revision};

/// Who is revoked, in quarantine, or has a record that does not authenticate.
#[derive(Debug, Default)]
pub(super) struct Barred {
    /// By which change: it is one of these.
    devices: HashMap<DeviceId, RangeInclusive<u64>>,
    /// Who has been let in since, while the controller may have something to tell that came before.
    let_in: BTreeMap<DeviceId, Revision>,
}

impl Barred {
    /// Takes what the feed tells of a device that may not authenticate; whether that is news.
    pub(super) fn bar(&mut self, change: &Change) -> bool {
        let at = change.revision.0;
        let before = self.devices.insert(change.device, at..=at);
        before.is_none_or(|before| !before.contains(&at))
    }

    /// Whether the feed has told of a change after this one by which the device was let in.
    pub(super) fn is_over(&self, device: DeviceId, upto: Revision) -> bool {
        self.let_in.get(&device).is_some_and(|let_in| *let_in > upto)
    }

    /// Takes a device that was quarantined by this change or one before; whether that is news. It is none where the feed has told of
    /// a bar: of this very one, or of an older one whose end it has not told yet. Which, its next look tells.
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

    /// Takes a device that may; whether it might not before.
    pub(super) fn admit(&mut self, change: &Change) -> bool {
        self.devices.remove(&change.device).is_some()
    }

    /// That it was let in is told later.
    pub(super) fn put_off(&mut self, change: &Change) {
        self.let_in.insert(change.device, change.revision);
    }

    /// It is told by who has let it in, with this change.
    pub(super) fn is_told(&mut self, device: DeviceId, at: Revision) {
        if self.devices.get(&device).is_some_and(|by| *by.end() < at.0) {
            self.devices.remove(&device);
        }
        if self.let_in.get(&device).is_some_and(|let_in| *let_in <= at) {
            self.let_in.remove(&device);
        }
    }

    /// Who was let in and has to be told now: all, or this one.
    pub(super) fn take_let_in(&mut self, device: Option<DeviceId>) -> Vec<DeviceId> {
        match device {
            Some(device) => self.let_in.remove(&device).map(|_| device).into_iter().collect(),
            None => std::mem::take(&mut self.let_in).into_keys().collect(),
        }
    }
}
