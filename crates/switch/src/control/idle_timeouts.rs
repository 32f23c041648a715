//! Idle timeouts of table entries.

use std::collections::BTreeMap;

use linewarden_p4runtime::entity::TableEntry;

use super::controller_state::EntryId;
use super::write::ControlledProgram;

/// Time of the last notification of each idle entry, ms on the switch's clock.
#[derive(Debug, Default)]
pub(super) struct IdleTimeouts {
    notified_ms: BTreeMap<EntryId, u64>,
}

impl IdleTimeouts {
    /// Returns entries whose idle timeout has expired. The timeout of a returned entry restarts; the time of its last hit
    /// stays.
    pub(super) fn take_expired(&mut self, running: &ControlledProgram, now_ms: u64) -> Vec<TableEntry> {
        let notified_ms = &mut self.notified_ms;
        running.with_reader(now_ms, |reader| {
            let mut expired = Vec::new();
            let mut still_idle = BTreeMap::new();
            for (id, _) in reader.controller_state.idle_timeouts_ns.iter() {
                let table = reader.forwarding.tables().table(id.0);
                let entry = table.and_then(|table| table.get(id.1).ok());
                let Some(state) = entry.and_then(|entry| entry.state()) else {
                    continue;
                };
                if !state.is_idle(now_ms) {
                    continue;
                }
                let last_notified_ms = notified_ms
                    .get(id)
                    .copied()
                    .filter(|last_notified_ms| *last_notified_ms >= state.last_hit_ms());
                match last_notified_ms {
                    Some(last_notified_ms)
                        if now_ms.saturating_sub(last_notified_ms) < state.timeout_ms() =>
                    {
                        still_idle.insert(*id, last_notified_ms);
                    }
                    _ => {
                        expired.extend(reader.idle_entry(*id));
                        still_idle.insert(*id, now_ms);
                    }
                }
            }
            *notified_ms = still_idle;
            expired
        })
    }

    /// Discards all state because another program runs.
    pub(super) fn clear(&mut self) {
        self.notified_ms.clear();
    }
}
