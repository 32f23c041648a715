//! Determines which live session owns an address: the mirror of `xdp/bpf/lw_binding.h` (LAP/1 1.4.15).

use std::sync::atomic::Ordering::{AcqRel, Acquire, SeqCst};
use std::sync::atomic::{AtomicU64, fence};

use linewarden_protocol::commit::CommitWord;
use linewarden_protocol::verdict::Verdict;

use super::origin::Origin;
use crate::layout::{BOUND, Bucket, Line, Session, WAYS};
use crate::store::{Regions, mac_key_high, table};

/// A key of a binding table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BindingKey {
    /// An IP address.
    Address([u64; 2]),
    /// A MAC address on an interface and its VLANs.
    Mac {
        /// In the format of [`mac_word`].
        mac: u64,
        /// [`mac_key_high`].
        ingress_vlans: u64,
    },
}

/// A MAC address in the low 48 bits; in a tag this word is LAP/1's `loc`.
pub(super) fn mac_word(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

/// The MAC address of a stored session.
pub(super) fn session_mac(session: &Session) -> u64 {
    let [low, middle, high] = &session.mac;
    u64::from(low.load(Acquire)) | u64::from(middle.load(Acquire)) << 16 | u64::from(high.load(Acquire)) << 32
}

impl BindingKey {
    /// The keys to which a session is bound: its IP address, and its MAC address if the session is BOUND.
    pub(super) fn of(session: &Session) -> [Option<Self>; 2] {
        let [low, high] = [session.addr[0].load(Acquire), session.addr[1].load(Acquire)];
        let first = session.vlan[0].load(Acquire);
        let vlans = [first & !BOUND, session.vlan[1].load(Acquire)];
        [
            (low | high != 0).then_some(Self::Address([low, high])),
            (first & BOUND != 0).then(|| Self::Mac {
                mac: session_mac(session),
                ingress_vlans: mac_key_high(session.ingress.load(Acquire), vlans),
            }),
        ]
    }

    pub(super) fn mac(mac: u64, from: &Origin) -> Self {
        Self::Mac {
            mac,
            ingress_vlans: mac_key_high(from.ingress, from.vlans),
        }
    }

    fn words(self) -> [u64; 2] {
        match self {
            Self::Address(words) => words,
            Self::Mac { mac, ingress_vlans } => [mac, ingress_vlans],
        }
    }

    fn matches(self, session: &Session) -> bool {
        match self {
            Self::Address([low, high]) => {
                session.addr[0].load(Acquire) == low && session.addr[1].load(Acquire) == high
            }
            Self::Mac { mac, ingress_vlans } => {
                let first = session.vlan[0].load(Acquire);
                let vlans = [first & !BOUND, session.vlan[1].load(Acquire)];
                first & BOUND != 0
                    && session_mac(session) == mac
                    && mac_key_high(session.ingress.load(Acquire), vlans) == ingress_vlans
            }
        }
    }
}

/// A table of bindings with the data needed to evaluate its entries.
#[derive(Clone, Copy)]
pub(super) struct Bindings<'a> {
    pub(super) table: &'a [Bucket],
    pub(super) mask: u32,
    pub(super) seed: [u64; 2],
    pub(super) regions: &'a Regions,
}

/// The result of scanning the two buckets of a key that no other live session owns.
struct Scan<'a> {
    /// A free cell, in the bucket with fewer entries.
    free_cell: Option<&'a AtomicU64>,
    /// Whether the line has an entry for the key.
    has_own_entry: bool,
}

impl<'a> Bindings<'a> {
    /// Checks that no live session except that of the line at `place` owns `key`, and that the table has room for
    /// `key`.
    ///
    /// # Errors
    /// `DropAddressOwned` or `DropTableFull`.
    pub(super) fn check(&self, key: BindingKey, place: u32, boot_s: u32) -> Result<(), Verdict> {
        let scan = self.scan(key, place, boot_s)?;
        match scan.has_own_entry || scan.free_cell.is_some() {
            true => Ok(()),
            false => Err(Verdict::DropTableFull),
        }
    }

    /// Removes the entry that the line at `place`, which the caller owns, has for `key`.
    pub(super) fn release(&self, key: BindingKey, place: u32) {
        let [a, b] = key.words();
        let hash = table::hash(self.seed, a, b);
        let entry = table::entry(hash, place);
        let buckets = table::choices(hash, self.mask).into_iter();
        for cell in buckets
            .filter_map(|number| self.table.get(number))
            .flat_map(|bucket| &bucket.entry)
        {
            let _ = cell.compare_exchange(entry, 0, AcqRel, Acquire);
        }
    }

    /// Claims `key` for the line at `place`. The caller owns the line (BUSY), and its session already contains the
    /// key.
    ///
    /// The table is read after the session was written, and again after an entry was written: if two threads claim one
    /// address at the same time, neither thread keeps the address. Both reads are necessary even if the line already
    /// has an entry: the sweep may have removed this entry since, and another device may have an old entry too.
    ///
    /// # Errors
    /// `DropAddressOwned` or `DropTableFull`.
    pub(super) fn claim(&self, key: BindingKey, place: u32, boot_s: u32) -> Result<(), Verdict> {
        let [a, b] = key.words();
        let entry = table::entry(table::hash(self.seed, a, b), place);
        for _ in 0..2 * WAYS {
            // The stores to the session must precede the loads of other lines, on x86 too.
            fence(SeqCst);
            let scan = self.scan(key, place, boot_s)?;
            if scan.has_own_entry {
                return Ok(());
            }
            let free_cell = scan.free_cell.ok_or(Verdict::DropTableFull)?;
            // If another claim took the cell, the next scan finds another cell.
            let _ = free_cell.compare_exchange(0, entry, AcqRel, Acquire);
        }
        Err(Verdict::DropTableFull)
    }

    fn scan(&self, key: BindingKey, place: u32, boot_s: u32) -> Result<Scan<'a>, Verdict> {
        let [a, b] = key.words();
        let hash = table::hash(self.seed, a, b);
        let fingerprint = table::fingerprint(hash);
        let (mut has_own_entry, mut free_cell, mut fewest_used) = (false, None, WAYS);
        for number in table::choices(hash, self.mask) {
            let bucket = self.table.get(number).ok_or(Verdict::DropTableFull)?;
            let (mut used, mut free_in_bucket) = (0, None);
            for cell in &bucket.entry {
                let entry = cell.load(Acquire);
                if entry == 0 {
                    free_in_bucket = Some(cell);
                    continue;
                }
                used += 1;
                if (entry >> 32) as u32 == fingerprint {
                    let owner = (entry as u32).wrapping_sub(1);
                    if owner == place {
                        has_own_entry = true;
                    } else if self.is_owner(owner, key, boot_s) {
                        return Err(Verdict::DropAddressOwned);
                    }
                }
            }
            if used < fewest_used {
                (fewest_used, free_cell) = (used, free_in_bucket);
            }
        }
        Ok(Scan {
            free_cell,
            has_own_entry,
        })
    }

    fn is_owner(&self, place: u32, key: BindingKey, boot_s: u32) -> bool {
        let Some(line) = self.regions.lines.get(place as usize) else {
            return false;
        };
        let session = self.regions.sessions.get(line.slot.load(Acquire) as usize);
        is_live(line, boot_s) && session.is_some_and(|session| key.matches(session))
    }
}

fn is_live(line: &Line, boot_s: u32) -> bool {
    let commit = CommitWord(line.commit.load(Acquire));
    !commit.is_revoked()
        && (line.session_id.load(Acquire) != 0 || commit.is_busy())
        && line.session_until_s.load(Acquire) > boot_s
}
