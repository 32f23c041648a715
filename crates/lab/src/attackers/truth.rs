//! What the gateway really holds.

use std::collections::HashMap;

use linewarden_protocol::commit::CommitWord;
use linewarden_protocol::ids::DeviceId;

/// A device's line at the gateway.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LineState {
    /// The commit word: it changes with every accepted RESPONSE, every revocation and every refill of an empty line.
    pub commit: CommitWord,
    /// A session id is set.
    pub has_session: bool,
    /// The end of its lease, seconds of the boot-time clock.
    pub lease_until_s: u32,
}

/// Looks at the gateway's lines from inside; attackers cannot.
pub trait Truth {
    /// The line of a device, `None` where it has none.
    fn line(&self, device: DeviceId) -> Option<LineState>;
}

impl<F: Fn(DeviceId) -> Option<LineState>> Truth for F {
    fn line(&self, device: DeviceId) -> Option<LineState> {
        self(device)
    }
}

/// Lines as they were at some moment.
#[derive(Debug)]
pub(super) struct Snapshot(HashMap<DeviceId, Option<LineState>>);

impl Snapshot {
    pub(super) fn of(truth: &dyn Truth, devices: impl IntoIterator<Item = DeviceId>) -> Self {
        Self(
            devices
                .into_iter()
                .map(|device| (device, truth.line(device)))
                .collect(),
        )
    }

    /// How many lines are not what they were.
    pub(super) fn changed(&self, truth: &dyn Truth) -> u64 {
        let changed = |(device, before): &(&DeviceId, &Option<LineState>)| truth.line(**device) != **before;
        self.0.iter().filter(changed).count() as u64
    }
}
