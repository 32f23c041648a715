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
        let changed =
            |(device, before): &(&DeviceId, &Option<LineState>)| match (before, truth.line(**device)) {
                (Some(before), Some(now)) => !before.is(&now),
                (None, None) => false,
                _ => true,
            };
        self.0.iter().filter(changed).count() as u64
    }
}

impl LineState {
    /// Whether it is the same as another. The end of a lease may be a second off: a switch has it on its own clock, which the gateway
    /// knows better with each reading, and seconds are cut off. Whoever renews a lease moves its end by more.
    fn is(&self, other: &Self) -> bool {
        self.commit == other.commit
            && self.has_session == other.has_session
            && self.lease_until_s.abs_diff(other.lease_until_s) <= 1
    }
}

#[cfg(test)]
mod tests {
    use linewarden_protocol::commit::{UNLIMITED, VALID};
    use linewarden_protocol::ids::RowIndex;

    use super::*;

    #[test]
    fn a_line_changes_by_more_than_a_reading_of_a_clock() {
        let line = |row: u32, has_session, lease_until_s| {
            let commit = CommitWord::new(RowIndex(row), 0, VALID | UNLIMITED);
            Some(LineState {
                commit,
                has_session,
                lease_until_s,
            })
        };
        let before = Snapshot::of(&|_| line(7, true, 100), [DeviceId(1), DeviceId(2)]);
        for (now, changed) in [
            (line(7, true, 100), 0),
            (line(7, true, 101), 0),
            (line(7, true, 99), 0),
            (line(7, true, 102), 2),
            (line(8, true, 100), 2),
            (line(7, false, 100), 2),
            (None, 2),
        ] {
            assert_eq!(before.changed(&|_| now), changed, "{now:?}");
        }
    }
}
