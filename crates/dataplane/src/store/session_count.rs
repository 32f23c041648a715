//! Counts live sessions.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use linewarden_protocol::commit::CommitWord;

use crate::layout::Line;

/// Number of lines that one call counts. One thread takes a few milliseconds, and these lines (8 MiB) fit into the caches.
const LINES_PER_CALL: usize = 1 << 17;

/// Numbers of live sessions, for each part of the lines.
#[derive(Debug, Default)]
pub(super) struct SessionCounter {
    parts: Vec<u64>,
    /// The part that the next call counts.
    next_part: usize,
}

impl SessionCounter {
    /// Counts a part of the lines. Returns the number of live sessions in all lines at `now_s` of the boot-time clock, or
    /// `None` until each line was counted.
    pub(super) fn count(&mut self, lines: &[Line], now_s: u32) -> Option<u64> {
        let start = self.next_part.saturating_mul(LINES_PER_CALL);
        let part = start..lines.len().min(start.saturating_add(LINES_PER_CALL));
        let part = lines.get(part).unwrap_or_default();
        let live_count = part.iter().filter(|line| is_live(line, now_s)).count() as u64;
        match self.parts.get_mut(self.next_part) {
            Some(count) => *count = live_count,
            None => self.parts.push(live_count),
        }
        let parts = lines.len().div_ceil(LINES_PER_CALL).max(1);
        self.next_part = (self.next_part + 1) % parts;
        (self.parts.len() == parts).then(|| self.parts.iter().sum())
    }
}

fn is_live(line: &Line, now_s: u32) -> bool {
    line.session_id.load(Relaxed) != 0
        && line.device_id.load(Relaxed) != 0
        && line.session_until_s.load(Relaxed) > now_s
        && !CommitWord(line.commit.load(Acquire)).is_revoked()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Release;

    use linewarden_protocol::ids::{DeviceId, Mode, RowIndex};
    use linewarden_protocol::keys::AuthKey;

    use super::super::{Geometry, Regions, Row, Store};
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
            line.session_until_s.store(100, Release);
        }
        store
    }

    #[test]
    fn a_session_counts_until_it_expires_is_closed_or_its_device_is_revoked() {
        let mut store = store(64, 10);
        assert_eq!(store.count_sessions(99), Some(10));
        store.revoke(DeviceId(1)).unwrap();
        store.line(DeviceId(2)).unwrap().0.session_id.store(0, Release);
        store
            .line(DeviceId(3))
            .unwrap()
            .0
            .session_until_s
            .store(99, Release);
        assert_eq!(store.count_sessions(99), Some(7));
        assert_eq!(store.count_sessions(100), Some(0));
    }

    #[test]
    fn more_lines_than_one_call_counts_are_counted_in_parts() {
        let mut store = store(100_000, 1000);
        let lines = store.regions.lines.len();
        assert!(lines > LINES_PER_CALL, "{lines}");
        let parts = lines.div_ceil(LINES_PER_CALL);
        for _ in 1..parts {
            assert_eq!(store.count_sessions(99), None, "not all lines were counted yet");
        }
        assert_eq!(store.count_sessions(99), Some(1000));
        for _ in 0..parts {
            assert!(store.count_sessions(100) < Some(1000));
        }
        assert_eq!(store.count_sessions(100), Some(0));
    }
}
