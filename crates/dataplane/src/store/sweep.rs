//! Removes binding entries of dead sessions.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::fence;

use linewarden_protocol::commit::CommitWord;

use super::{Store, mac_key_high, table};
use crate::layout::{BOUND, Bucket, Session};

/// Number of buckets of each table that one call scans. A call takes a few hundred microseconds.
const BUCKETS_PER_CALL: usize = 1 << 14;

impl Store {
    /// Scans the next part of the binding tables, and removes the entries of sessions that no longer have the address of
    /// the entry. Returns the number of removed entries.
    ///
    /// An entry that is claimed again between the check and the removal is restored, so a live session lacks its
    /// entry only for an instant. If another entry occupies the cell in that instant, the session is closed. The device
    /// then authenticates and claims its address again, whereas a renewal would continue without an entry.
    pub fn sweep_bindings(&mut self) -> usize {
        let buckets = self.geometry.buckets() as usize;
        let start = if self.next_sweep_bucket < buckets {
            self.next_sweep_bucket
        } else {
            0
        };
        let part = start..buckets.min(start + BUCKETS_PER_CALL);
        self.next_sweep_bucket = part.end;
        let by_address = self.regions.by_address.get(part.clone()).unwrap_or_default();
        let by_mac = self.regions.by_mac.get(part).unwrap_or_default();
        self.sweep(by_address, |session| self.address_hash(session))
            + self.sweep(by_mac, |session| self.mac_hash(session))
    }

    fn sweep(&self, part: &[Bucket], hash_of: impl Fn(&Session) -> Option<u64>) -> usize {
        let mut removed = 0;
        for cell in part.iter().flat_map(|bucket| bucket.entry.iter()) {
            let entry = cell.load(Acquire);
            if entry == 0 || self.is_current(entry, &hash_of) {
                continue;
            }
            if cell.compare_exchange(entry, 0, AcqRel, Acquire).is_ok() {
                fence(AcqRel);
                if !self.is_current(entry, &hash_of) {
                    removed += 1;
                } else if cell.compare_exchange(0, entry, AcqRel, Acquire).is_err() {
                    self.end_session_of(entry);
                }
            }
        }
        removed
    }

    fn end_session_of(&self, entry: u64) {
        let place = (entry as u32).wrapping_sub(1);
        if let Some(line) = self.regions.lines.get(place as usize) {
            line.session_id.store(0, Release);
        }
    }

    fn is_current(&self, entry: u64, hash_of: &impl Fn(&Session) -> Option<u64>) -> bool {
        let place = (entry as u32).wrapping_sub(1);
        let Some(line) = self.regions.lines.get(place as usize) else {
            return false;
        };
        let Some(session) = self.regions.sessions.get(line.slot.load(Acquire) as usize) else {
            return false;
        };
        // A winner claims its entries before it clears BUSY, so each entry of a BUSY line counts as current.
        if CommitWord(line.commit.load(Acquire)).is_busy() {
            return true;
        }
        line.session_id.load(Acquire) != 0
            && hash_of(session).is_some_and(|hash| table::entry(hash, place) == entry)
    }

    fn address_hash(&self, session: &Session) -> Option<u64> {
        let [high, low] = &session.addr;
        Some(table::hash(
            self.geometry.hash_seed,
            high.load(Acquire),
            low.load(Acquire),
        ))
    }

    fn mac_hash(&self, session: &Session) -> Option<u64> {
        let first = session.vlan[0].load(Acquire);
        if first & BOUND == 0 {
            return None;
        }
        let mac = session
            .mac
            .iter()
            .rev()
            .fold(0u64, |mac, part| mac << 16 | u64::from(part.load(Acquire)));
        let vlans = [first & !BOUND, session.vlan[1].load(Acquire)];
        let high = mac_key_high(session.ingress.load(Acquire), vlans);
        Some(table::hash(self.geometry.hash_seed, mac, high))
    }
}
