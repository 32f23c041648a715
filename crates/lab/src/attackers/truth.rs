//! What the gateway really holds.

use std::collections::HashMap;
use std::fmt;

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

impl fmt::Display for LineState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let session = if self.has_session {
            "a session"
        } else {
            "no session"
        };
        write!(
            f,
            "{:?}, {session}, lease until {} s",
            self.commit, self.lease_until_s
        )
    }
}

/// A line that is not what it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// Whose it is.
    pub device: DeviceId,
    /// As it was before the attack, `None` where there was none.
    pub before: Option<LineState>,
    /// As it is after it.
    pub after: Option<LineState>,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told =
            |line: Option<LineState>| line.map_or_else(|| "no line".to_owned(), |line| line.to_string());
        let (before, after) = (told(self.before), told(self.after));
        write!(f, "device {} had {before}; it has {after}", self.device)
    }
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

    /// The lines that are not what they were.
    pub(super) fn changes(&self, truth: &dyn Truth) -> Vec<Change> {
        let change = |(device, before): (&DeviceId, &Option<LineState>)| Change {
            device: *device,
            before: *before,
            after: truth.line(*device),
        };
        let changes = self.0.iter().map(change);
        changes.filter(|change| change.before != change.after).collect()
    }
}

#[cfg(test)]
mod tests {
    use linewarden_protocol::ids::RowIndex;

    use super::*;

    #[test]
    fn what_changed_is_told_of_the_line_that_did() {
        let line = |row, lease_until_s| LineState {
            commit: CommitWord::new(RowIndex(row), row, 0),
            has_session: lease_until_s != 0,
            lease_until_s,
        };
        let before = |device: DeviceId| (device.0 != 3).then(|| line(4, 0));
        let after = |device: DeviceId| match device.0 {
            1 => Some(line(5, 70)),
            2 => Some(line(4, 0)),
            _ => None,
        };
        let snapshot = Snapshot::of(&before, [1, 2, 3].map(DeviceId));
        assert_eq!(snapshot.changes(&before), []);
        let changes = snapshot.changes(&after);
        assert_eq!(changes.len(), 1);
        let told = changes.first().map(Change::to_string).unwrap_or_default();
        let expected = "device 0000000000000001 had CommitWord(idx 4, gen 4, credit 0), no session, lease until 0 s; \
                        it has CommitWord(idx 5, gen 5, credit 0), a session, lease until 70 s";
        assert_eq!(told, expected);
    }
}
