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
    /// Returns entries whose idle timeout has expired. The timeout of each restarts now; the time of the last hit stays.
    pub(super) fn take_expired(&mut self, running: &ControlledProgram, now_ms: u64) -> Vec<TableEntry> {
        let notified_ms = &mut self.notified_ms;
        running.with_reader(now_ms, |reading| {
            let mut due = Vec::new();
            let mut still_idle = BTreeMap::new();
            for (id, _) in reading.controller_state.idle_timeouts_ns.iter() {
                let table = reading.forwarding.tables().table(id.0);
                let entry = table.and_then(|table| table.get(id.1).ok());
                let Some(state) = entry.and_then(|entry| entry.state()) else {
                    continue;
                };
                if !state.is_idle(now_ms) {
                    continue;
                }
                let notified = notified_ms
                    .get(id)
                    .copied()
                    .filter(|notified| *notified >= state.last_hit_ms());
                match notified {
                    Some(notified) if now_ms.saturating_sub(notified) < state.timeout_ms() => {
                        still_idle.insert(*id, notified);
                    }
                    _ => {
                        due.extend(reading.idle_entry(*id));
                        still_idle.insert(*id, now_ms);
                    }
                }
            }
            *notified_ms = still_idle;
            due
        })
    }

    /// Discards all state because another program runs.
    pub(super) fn clear(&mut self) {
        self.notified_ms.clear();
    }
}
