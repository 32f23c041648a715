//! How many sessions live.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use linewarden_protocol::commit::CommitWord;

use super::Store;
use crate::layout::Line;

/// Lines that one call looks at: a few milliseconds of one thread, and no more than caches hold.
const LINES_A_CALL: usize = 1 << 17;

/// What was found in each part of the lines.
#[derive(Debug, Default)]
pub(super) struct Census {
    parts: Vec<u64>,
    /// The part that is looked at next.
    at: usize,
}

impl Store {
    /// How many sessions live at `now_s` of the boot-time clock; `None` before all lines were looked at. Of more lines than a call
    /// looks at, the next part is counted with each call: of a million devices the oldest part is as of nine calls ago.
    pub fn count_sessions(&mut self, now_s: u32) -> Option<u64> {
        let lines = self.regions.lines.len();
        let begin = self.census.at.saturating_mul(LINES_A_CALL);
        let part = begin..lines.min(begin.saturating_add(LINES_A_CALL));
        let part = self.regions.lines.get(part).unwrap_or_default();
        let live = part.iter().filter(|line| is_live(line, now_s)).count() as u64;
        match self.census.parts.get_mut(self.census.at) {
            Some(counted) => *counted = live,
            None => self.census.parts.push(live),
        }
        let parts = lines.div_ceil(LINES_A_CALL).max(1);
        self.census.at = (self.census.at + 1) % parts;
        (self.census.parts.len() == parts).then(|| self.census.parts.iter().sum())
    }
}

fn is_live(line: &Line, now_s: u32) -> bool {
    line.session_id.load(Relaxed) != 0
        && line.device_id.load(Relaxed) != 0
        && line.lease_until_s.load(Relaxed) > now_s
        && !CommitWord(line.commit.load(Acquire)).is_revoked()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Release;

    use linewarden_protocol::ids::{DeviceId, Mode, RowIndex};
    use linewarden_protocol::keys::AuthKey;

    use super::super::{Geometry, Regions, Row};
    use super::*;

    fn store(slots: u32, devices: u64) -> Store {
        let geometry = Geometry {
            slots,
            ring: 1,
            hash_seed: [1, 2],
        };
        let mut store = Store::new(Arc::new(Regions::anonymous(&geometry).unwrap()), geometry);
        let row = Row {
            challenge: [0; 8],
            auth_key: AuthKey::from_bytes([3; 16]),
        };
        for device in 1..=devices {
            store
                .install(
                    DeviceId(device),
                    Mode::Key,
                    RowIndex(0),
                    std::slice::from_ref(&row),
                    None,
                )
                .unwrap();
            let (line, _) = store.line(DeviceId(device)).unwrap();
            line.session_id.store(device, Release);
            line.lease_until_s.store(100, Release);
        }
        store
    }

    #[test]
    fn a_session_counts_until_its_lease_ends_it_is_closed_or_its_device_is_revoked() {
        let mut store = store(64, 10);
        assert_eq!(store.count_sessions(99), Some(10));
        store.revoke(DeviceId(1)).unwrap();
        store.line(DeviceId(2)).unwrap().0.session_id.store(0, Release);
        store
            .line(DeviceId(3))
            .unwrap()
            .0
            .lease_until_s
            .store(99, Release);
        assert_eq!(store.count_sessions(99), Some(7));
        assert_eq!(store.count_sessions(100), Some(0));
    }

    #[test]
    fn more_lines_than_a_call_looks_at_are_counted_in_parts() {
        let mut store = store(100_000, 1000);
        let lines = store.regions.lines.len();
        assert!(lines > LINES_A_CALL, "{lines}");
        let parts = lines.div_ceil(LINES_A_CALL);
        for _ in 1..parts {
            assert_eq!(store.count_sessions(99), None, "not all were looked at yet");
        }
        assert_eq!(store.count_sessions(99), Some(1000));
        for _ in 0..parts {
            assert!(store.count_sessions(100) < Some(1000));
        }
        assert_eq!(store.count_sessions(100), Some(0));
    }
}
