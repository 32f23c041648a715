//! Entries that nothing has hit for as long as their time to live says.

use std::collections::BTreeMap;

use linewarden_p4runtime::entity::TableEntry;

use super::book::EntryId;
use super::writing::Running;

/// Who was told of when, on the switch's clock in milliseconds.
#[derive(Debug, Default)]
pub(super) struct Ageing {
    told_ms: BTreeMap<EntryId, u64>,
}

impl Ageing {
    /// The entries that are due. The time of each runs anew from now, though its last hit stays what it was.
    pub(super) fn due(&mut self, running: &Running, now_ms: u64) -> Vec<TableEntry> {
        let told_ms = &mut self.told_ms;
        running.reading(now_ms, |reading| {
            let mut due = Vec::new();
            let mut still_idle = BTreeMap::new();
            for (id, _) in reading.book.timeouts.iter() {
                let table = reading.forwarding.tables().table(id.0);
                let entry = table.and_then(|table| table.get(id.1).ok());
                let Some(state) = entry.and_then(|entry| entry.state()) else {
                    continue;
                };
                if !state.is_idle(now_ms) {
                    continue;
                }
                let told = told_ms
                    .get(id)
                    .copied()
                    .filter(|told| *told >= state.last_hit_ms());
                match told {
                    Some(told) if now_ms.saturating_sub(told) < state.timeout_ms() => {
                        still_idle.insert(*id, told);
                    }
                    _ => {
                        due.extend(reading.idle_entry(*id));
                        still_idle.insert(*id, now_ms);
                    }
                }
            }
            *told_ms = still_idle;
            due
        })
    }

    /// Another program runs.
    pub(super) fn forget(&mut self) {
        self.told_ms.clear();
    }
}
