//! Slots of the data plane: devices that wait for a slot, and the eviction of other devices.

use linewarden_protocol::ids::DeviceId;

use super::entry::State;
use super::{DeviceCache, uses};
use crate::audit::AuditEvent;
use crate::node::context::Context;

/// Maximum number of devices that are evicted at once.
const EVICT_BATCH: usize = 64;
/// A wiped slot is free at the second housekeeping after the wipe. While a device waits for a slot, the next
/// housekeeping follows after this time, ns.
const RECLAIM_AFTER_NS: u64 = 20_000_000;
/// If no device could be evicted, for example because every slot has a live session behind a gate, the next attempt
/// follows after this time, ns.
const FULL_RETRY_NS: u64 = 500_000_000;

impl DeviceCache {
    /// When [`DeviceCache::find_slots`] must be called, monotonic clock.
    pub(in crate::node) fn reclaim_due_ns(&self) -> Option<u64> {
        self.slots.reclaim_due_ns
    }

    /// Evicts devices to free slots for waiting devices. A packet in flight may still use a wiped slot, so the slot is
    /// free a little later.
    pub(in crate::node) fn find_slots(&mut self, context: &mut Context) {
        let now_ns = context.now_ns();
        if self.slots.reclaim_due_ns.is_some_and(|due_ns| due_ns <= now_ns) {
            self.slots.reclaim_due_ns = None;
            context.data_plane.housekeep();
            self.retry_slot_queue(context);
        }
        if !self.slots.waiting.is_empty() && self.slots.reclaim_due_ns.is_none() {
            // If no device can be evicted, the next attempt waits longer.
            self.slots.is_full = self.evict(context) == 0;
            let after_ns = match self.slots.is_full {
                true => FULL_RETRY_NS,
                false => RECLAIM_AFTER_NS,
            };
            self.slots.reclaim_due_ns = Some(now_ns.saturating_add(after_ns));
        }
    }

    /// Installs devices for which there was no slot.
    pub(in crate::node) fn retry_slot_queue(&mut self, context: &mut Context) {
        let waiting: Vec<DeviceId> = self.slots.waiting.values().take(EVICT_BATCH).copied().collect();
        waiting
            .into_iter()
            .for_each(|device| self.install_pending(device, context));
    }

    /// Evicts devices to free slots for waiting devices. Returns how many slots become free, including slots of earlier
    /// evictions.
    fn evict(&mut self, context: &mut Context) -> usize {
        let freed_soon = self.slots_freed_soon();
        let slots_needed = self
            .slots
            .waiting
            .len()
            .saturating_sub(freed_soon)
            .min(EVICT_BATCH);
        for evicted in 0..slots_needed {
            let Some(victim) = self.eviction_victim(context) else {
                return freed_soon + evicted;
            };
            self.counts.evicted += 1;
            context.audit.record(AuditEvent::Evicted { device: victim });
            self.remove(victim, true, context);
        }
        freed_soon + slots_needed
    }

    fn eviction_victim(&mut self, context: &Context) -> Option<DeviceId> {
        let spare_live = context.settings.spare_live_sessions;
        let now_s = context.boot_s();
        let entries = &self.entries;
        self.eviction.victim(&|device| {
            let entry = entries
                .get(&device)
                .filter(|entry| entry.state == State::Installed)?;
            let line = context.data_plane.status(device)?;
            let is_live = line.has_session && u64::from(line.session_until_s) > now_s;
            let is_needed = line.commit.is_busy() || spare_live && is_live || entry.is_requesting;
            (!is_needed).then(|| uses(&line))
        })
    }
}
