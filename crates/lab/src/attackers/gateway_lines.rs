//! Access to the gateway's lines, and comparison of two snapshots of these lines.

use std::collections::HashMap;
use std::fmt;

use linewarden_protocol::commit::CommitWord;
use linewarden_protocol::ids::DeviceId;

/// A device's line at the gateway.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LineState {
    /// The commit word: it changes with every accepted RESPONSE, every revocation and every refill of an empty line.
    pub commit: CommitWord,
    /// The line has a session id.
    pub has_session: bool,
    /// End of the session lifetime, seconds of the boot-time clock.
    pub session_until_s: u32,
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
            "{:?}, {session}, session lifetime until {} s",
            self.commit, self.session_until_s
        )
    }
}

/// A line that changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LineChange {
    /// The device of the line.
    pub device: DeviceId,
    /// The line before the attack, `None` if there was none.
    pub before: Option<LineState>,
    /// The line after the attack.
    pub after: Option<LineState>,
}

impl fmt::Display for LineChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text =
            |line: Option<LineState>| line.map_or_else(|| "no line".to_owned(), |line| line.to_string());
        let (before, after) = (text(self.before), text(self.after));
        write!(f, "device {}: before {before}; after {after}", self.device)
    }
}

/// Reads the gateway's lines, which attackers cannot see.
pub trait GatewayLines {
    /// The line of a device; `None` if the device has no line.
    fn line(&self, device: DeviceId) -> Option<LineState>;
}

impl<F: Fn(DeviceId) -> Option<LineState>> GatewayLines for F {
    fn line(&self, device: DeviceId) -> Option<LineState> {
        self(device)
    }
}

/// Lines at one moment.
#[derive(Debug)]
pub(super) struct LineSnapshot(HashMap<DeviceId, Option<LineState>>);

impl LineSnapshot {
    pub(super) fn of(lines: &dyn GatewayLines, devices: impl IntoIterator<Item = DeviceId>) -> Self {
        Self(
            devices
                .into_iter()
                .map(|device| (device, lines.line(device)))
                .collect(),
        )
    }

    /// The lines that differ from the snapshot.
    pub(super) fn changes(&self, lines: &dyn GatewayLines) -> Vec<LineChange> {
        let change = |(device, before): (&DeviceId, &Option<LineState>)| LineChange {
            device: *device,
            before: *before,
            after: lines.line(*device),
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
    fn a_changed_line_is_reported_with_its_old_and_new_state() {
        let line = |row, session_until_s| LineState {
            commit: CommitWord::new(RowIndex(row), row, 0),
            has_session: session_until_s != 0,
            session_until_s,
        };
        let before = |device: DeviceId| (device.0 != 3).then(|| line(4, 0));
        let after = |device: DeviceId| match device.0 {
            1 => Some(line(5, 70)),
            2 => Some(line(4, 0)),
            _ => None,
        };
        let snapshot = LineSnapshot::of(&before, [1, 2, 3].map(DeviceId));
        assert_eq!(snapshot.changes(&before), []);
        let changes = snapshot.changes(&after);
        assert_eq!(changes.len(), 1);
        let text = changes.first().map(LineChange::to_string).unwrap_or_default();
        let expected = "device 0000000000000001: before CommitWord(idx 4, gen 4, credit 0), no session, session lifetime until 0 s; \
                        after CommitWord(idx 5, gen 5, credit 0), a session, session lifetime until 70 s";
        assert_eq!(text, expected);
    }
}
