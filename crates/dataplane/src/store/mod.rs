//! The line store: devices and their rows in the memory that packet paths work on, seen from user space.
//!
//! Packets flow while this code runs. It therefore changes a commit word only by compare-and-swap, never lowers an
//! idx or a generation, fills a line only when it is neither VALID nor BUSY, and writes a ring row only at a place
//! that a winner has left (LAP/1 1.4.3). Keys are zeroed when they leave.

mod region;
pub mod table;

use std::collections::HashMap;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use linewarden_protocol::commit::{self, CommitWord};
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex};
use linewarden_protocol::keys::AuthKey;

pub use self::region::Region;
use crate::layout::{BOUND, Bucket, Control, Line, RingRow, Session};

/// One row as a gateway holds it: 24 B.
#[derive(Clone, Debug)]
pub struct Row {
    /// Seed that the device expands to its PUF's challenge; zero in key mode.
    pub challenge: [u8; 8],
    /// The row's key at this gateway.
    pub auth_key: AuthKey,
}

/// Why the store refuses a change. Nothing was changed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Every slot holds a device.
    #[error("no free slot for device {0}: raise `slots` or remove devices")]
    Full(DeviceId),
    /// Use `refill`.
    #[error("device {0} is installed already")]
    Installed(DeviceId),
    /// Use `install`.
    #[error("device {0} is not installed")]
    NotInstalled(DeviceId),
    /// 0 is no device.
    #[error("device id 0 is reserved")]
    DeviceZero,
    /// A key-mode device has one row; a pool device at least one and at most one more than the ring holds.
    #[error("device {device}: {given} rows given, {least} to {most} fit")]
    RowCount {
        /// The device.
        device: DeviceId,
        /// How many were given.
        given: usize,
        /// Fewest.
        least: usize,
        /// Most.
        most: usize,
    },
    /// A key whose second half is zero cannot be published.
    #[error("device {0}: a row key's second half is zero; enrol the device anew")]
    ZeroKey(DeviceId),
    /// A winner is at work in the line; try again.
    #[error("device {0}: its line is busy; try again")]
    Busy(DeviceId),
    /// A revoked device takes no rows.
    #[error("device {0} is revoked")]
    Revoked(DeviceId),
    /// Both buckets of the device index are full.
    #[error("device {0}: the device index is full at its place; raise `slots`")]
    IndexFull(DeviceId),
}

/// Sizes of a store and the key of its hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Devices that fit.
    pub slots: u32,
    /// Rows per device beside the one in the line.
    pub ring: u32,
    /// Random; keys the hashes of the index and the binding tables.
    pub hash_seed: [u64; 2],
}

impl Geometry {
    /// Buckets of each table: at most a quarter full, which two choices of four places never overflow in practice.
    #[must_use]
    pub fn buckets(&self) -> u32 {
        self.slots.max(1).checked_next_power_of_two().unwrap_or(1 << 31)
    }

    /// `buckets - 1`.
    #[must_use]
    pub fn bucket_mask(&self) -> u32 {
        self.buckets() - 1
    }

    /// Elements of the rows array; `None` when they cannot be numbered with 32 bits.
    #[must_use]
    pub fn row_count(&self) -> Option<u32> {
        self.slots.checked_mul(self.ring.max(1))
    }
}

/// The arrays that a packet path works on.
#[derive(Debug)]
pub struct Regions {
    /// By slot.
    pub lines: Region<Line>,
    /// By slot.
    pub sessions: Region<Session>,
    /// `slot * ring + idx % ring`.
    pub rows: Region<RingRow>,
    /// Device id to slot.
    pub device_index: Region<Bucket>,
    /// IP address to slot.
    pub by_address: Region<Bucket>,
    /// (ingress, VLANs, MAC) to slot.
    pub by_mac: Region<Bucket>,
    /// One element.
    pub control: Region<Control>,
}

/// What a line holds, for display and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineStatus {
    /// The commit word.
    pub commit: CommitWord,
    /// Rows left, the current one included; 1 for a key-mode device.
    pub rows_left: u32,
    /// Whether a session id is set (its lease may be over).
    pub has_session: bool,
    /// End of the lease, boot-time seconds.
    pub lease_until_s: u32,
}

/// Devices and rows in shared memory. One writer: `&mut self` for what allocates slots.
#[derive(Debug)]
pub struct Store {
    regions: std::sync::Arc<Regions>,
    geometry: Geometry,
    slots: HashMap<DeviceId, u32>,
    /// By slot: the idx after the last row ever given. A row below it is never published again, because a winner
    /// may be wiping its place.
    ends: Vec<u32>,
    free: Vec<u32>,
    next_unused: u32,
}

impl Store {
    /// A store over zeroed regions of that geometry.
    #[must_use]
    pub fn new(regions: std::sync::Arc<Regions>, geometry: Geometry) -> Self {
        Self {
            regions,
            geometry,
            slots: HashMap::new(),
            ends: Vec::new(),
            free: Vec::new(),
            next_unused: 0,
        }
    }

    /// The memory.
    #[must_use]
    pub fn regions(&self) -> &std::sync::Arc<Regions> {
        &self.regions
    }

    /// The sizes.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The slot of a device.
    #[must_use]
    pub fn slot(&self, device: DeviceId) -> Option<u32> {
        self.slots.get(&device).copied()
    }

    /// How many devices are installed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether no device is installed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Draws the next fresh value into the control block: the previous one is written before the current one.
    pub fn set_fresh(&self, fresh: [u8; 8], now_ns: u64) {
        let Some(control) = self.regions.control.first() else {
            return;
        };
        control
            .fresh_previous
            .store(control.fresh_current.load(Acquire), Release);
        control.fresh_current.store(u64::from_ne_bytes(fresh), Release);
        control.fresh_at_ns.store(now_ns, Release);
    }

    /// How far the boot-time clock is ahead of the monotonic one. Leases are granted by it: set it often, and at once
    /// after a resume.
    pub fn set_suspended(&self, suspended_ns: u64) {
        if let Some(control) = self.regions.control.first() {
            control.suspended_ns.store(suspended_ns, Release);
        }
    }

    /// Whether REQUESTs are answered with a NAK from now on.
    pub fn set_stopping(&self, stopping: bool) {
        if let Some(control) = self.regions.control.first() {
            control.stopping.store(u64::from(stopping), Release);
        }
    }

    /// Puts a device into a free slot. `rows[0]` is for `next_idx` and goes into the line, the others follow it.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn install(
        &mut self,
        device: DeviceId,
        mode: Mode,
        next_idx: RowIndex,
        rows: &[Row],
    ) -> Result<(), StoreError> {
        self.check_install(device, mode, rows)?;
        let slot = self.allocate(device)?;
        let Some(line) = self.regions.lines.get(slot as usize) else {
            return Err(StoreError::Full(device));
        };
        line.device_id.store(wire_word(device.0.to_be_bytes()), Relaxed);
        for (ahead, row) in rows.iter().enumerate().skip(1) {
            self.publish(slot, RowIndex(next_idx.0.wrapping_add(ahead as u32)), row);
        }
        if let Some(first) = rows.first() {
            write_line_row(line, first);
        }
        let end = next_idx
            .0
            .saturating_add(u32::try_from(rows.len()).unwrap_or(u32::MAX));
        let key_flag = if mode == Mode::Key { commit::KEY } else { 0 };
        // The generation of a reused slot goes on, so that no window of the device before it fits.
        let generation = CommitWord(line.commit.load(Acquire)).generation().wrapping_add(1);
        line.commit.store(
            CommitWord::new(next_idx, generation, commit::VALID | key_flag).0,
            Release,
        );
        let hash = self.device_hash(device);
        if !table::insert(
            &self.regions.device_index,
            self.geometry.bucket_mask(),
            hash,
            slot,
        ) {
            self.clear_slot(slot);
            self.free.push(slot);
            return Err(StoreError::IndexFull(device));
        }
        self.slots.insert(device, slot);
        self.set_end(slot, end);
        Ok(())
    }

    fn check_install(&self, device: DeviceId, mode: Mode, rows: &[Row]) -> Result<(), StoreError> {
        if device.0 == 0 {
            return Err(StoreError::DeviceZero);
        }
        if self.slots.contains_key(&device) {
            return Err(StoreError::Installed(device));
        }
        let most = if mode == Mode::Key {
            1
        } else {
            self.geometry.ring as usize + 1
        };
        if rows.is_empty() || rows.len() > most {
            return Err(StoreError::RowCount {
                device,
                given: rows.len(),
                least: 1,
                most,
            });
        }
        if rows.iter().any(|row| last_half(row) == 0) {
            return Err(StoreError::ZeroKey(device));
        }
        Ok(())
    }

    fn allocate(&mut self, device: DeviceId) -> Result<u32, StoreError> {
        if let Some(slot) = self.free.pop() {
            return Ok(slot);
        }
        if self.next_unused >= self.geometry.slots {
            return Err(StoreError::Full(device));
        }
        self.next_unused += 1;
        self.ends.push(0);
        Ok(self.next_unused - 1)
    }

    /// Adds rows from `first_idx` on; those that were given before, and those beyond the ring, are left out. Returns
    /// the idx after the last one that was ever given: what to ask for next.
    ///
    /// # Errors
    /// `Busy` while a winner is in the line: call again. Else see [`StoreError`].
    pub fn refill(
        &mut self,
        device: DeviceId,
        first_idx: RowIndex,
        rows: &[Row],
    ) -> Result<RowIndex, StoreError> {
        let slot = self.slot(device).ok_or(StoreError::NotInstalled(device))?;
        if rows.iter().any(|row| last_half(row) == 0) {
            return Err(StoreError::ZeroKey(device));
        }
        let indexed: Vec<(u32, &Row)> = (first_idx.0..).zip(rows).collect();
        self.fill_if_empty(device, slot, &indexed)?;
        let word = self.word(device, slot)?;
        if word.is_busy() {
            return Err(StoreError::Busy(device));
        }
        // Read without BUSY at idx: the winners up to idx have left, so the places of rows up to idx + ring are free.
        let last = word.idx().0.saturating_add(self.geometry.ring);
        for (idx, row) in indexed {
            let end = self.end(slot);
            if idx == end && idx <= last {
                self.publish(slot, RowIndex(idx), row);
                self.set_end(slot, end.saturating_add(1));
            }
        }
        // A winner that found the ring empty may have left just before a row was published: the line is empty then
        // although the ring is not.
        self.fill_if_empty(device, slot, &[])?;
        Ok(RowIndex(self.end(slot)))
    }

    /// Fills a line that is neither VALID nor BUSY: from the ring if a row was published too late for the winner,
    /// else from `indexed`.
    fn fill_if_empty(
        &mut self,
        device: DeviceId,
        slot: u32,
        indexed: &[(u32, &Row)],
    ) -> Result<(), StoreError> {
        let word = self.word(device, slot)?;
        if word.is_revoked() {
            return Err(StoreError::Revoked(device));
        }
        if !word.is_empty() || word.is_key_mode() {
            return Ok(());
        }
        let least = word.idx().0.max(self.end(slot));
        let (idx, row) = if let Some(row) = self.take(slot, word.idx()) {
            (word.idx().0, row)
        } else if let Some((idx, row)) = indexed.iter().find(|(idx, _)| *idx >= least) {
            (*idx, (*row).clone())
        } else {
            return Ok(());
        };
        let (Some(filled), Some(line)) = (word.filled(RowIndex(idx)), self.regions.lines.get(slot as usize))
        else {
            return Err(StoreError::Revoked(device));
        };
        write_line_row(line, &row);
        // Only a revocation can have changed the word of an empty line.
        if line
            .commit
            .compare_exchange(word.0, filled.0, AcqRel, Acquire)
            .is_err()
        {
            zero_line_row(line);
            return Err(StoreError::Revoked(device));
        }
        self.set_end(slot, self.end(slot).max(idx.saturating_add(1)));
        Ok(())
    }

    fn word(&self, device: DeviceId, slot: u32) -> Result<CommitWord, StoreError> {
        let line = self
            .regions
            .lines
            .get(slot as usize)
            .ok_or(StoreError::NotInstalled(device))?;
        Ok(CommitWord(line.commit.load(Acquire)))
    }

    fn end(&self, slot: u32) -> u32 {
        self.ends.get(slot as usize).copied().unwrap_or_default()
    }

    fn set_end(&mut self, slot: u32, end: u32) {
        if let Some(cell) = self.ends.get_mut(slot as usize) {
            *cell = end;
        }
    }

    /// Shuts the device out at once: gate, DATA and repeated ACKs read the flag on each packet (LAP/1 1.4.8).
    ///
    /// # Errors
    /// `NotInstalled`.
    pub fn revoke(&self, device: DeviceId) -> Result<(), StoreError> {
        let slot = self.slot(device).ok_or(StoreError::NotInstalled(device))?;
        let line = self
            .regions
            .lines
            .get(slot as usize)
            .ok_or(StoreError::NotInstalled(device))?;
        line.commit.fetch_or(commit::REVOKED, AcqRel);
        Ok(())
    }

    /// Revokes the device and wipes its rows and session; its slot may be used again after [`Store::reclaim`].
    ///
    /// # Errors
    /// `Busy` while a winner is in the line: call again (the device is shut out already). Else `NotInstalled`.
    pub fn wipe(&mut self, device: DeviceId) -> Result<(), StoreError> {
        self.revoke(device)?;
        let slot = self.slot(device).ok_or(StoreError::NotInstalled(device))?;
        let line = self
            .regions
            .lines
            .get(slot as usize)
            .ok_or(StoreError::NotInstalled(device))?;
        let word = CommitWord(line.commit.load(Acquire));
        if word.is_busy() {
            return Err(StoreError::Busy(device));
        }
        table::remove(
            &self.regions.device_index,
            self.geometry.bucket_mask(),
            self.device_hash(device),
            slot,
        );
        self.clear_slot(slot);
        self.slots.remove(&device);
        Ok(())
    }

    /// Gives slots of wiped devices back. Call it when no packet that was in flight at the wipe can still be: after a
    /// grace period of the packet path (BPF programs run to completion in microseconds; a second is ample).
    pub fn reclaim(&mut self) {
        let used: std::collections::HashSet<u32> = self
            .slots
            .values()
            .copied()
            .chain(self.free.iter().copied())
            .collect();
        self.free
            .extend((0..self.next_unused).filter(|slot| !used.contains(slot)));
    }

    fn clear_slot(&self, slot: u32) {
        let Some(line) = self.regions.lines.get(slot as usize) else {
            return;
        };
        line.commit.fetch_and(!commit::VALID, AcqRel);
        line.session_id.store(0, Release);
        zero_line_row(line);
        line.device_id.store(0, Release);
        if let Some(session) = self.regions.sessions.get(slot as usize) {
            session
                .session_key
                .iter()
                .chain(&session.tag)
                .chain(&session.addr)
                .for_each(|word| word.store(0, Release));
        }
        let ring = self.geometry.ring.max(1) as usize;
        let start = slot as usize * ring;
        for row in self.regions.rows.get(start..start + ring).unwrap_or_default() {
            row.auth_key[1].store(0, Release);
            row.auth_key[0].store(0, Release);
            row.challenge.store(0, Release);
        }
    }

    /// After a crash of the process that fed the packet path, with the path detached: sessions of lines that a winner
    /// left half-written are closed and their BUSY flag cleared, so that they can be filled again. Returns how many.
    #[must_use]
    pub fn recover(&self) -> usize {
        let busy = self
            .regions
            .lines
            .iter()
            .filter(|line| CommitWord(line.commit.load(Acquire)).is_busy());
        busy.map(|line| {
            line.session_id.store(0, Release);
            zero_line_row(line);
            line.commit.fetch_and(!(commit::BUSY | commit::VALID), AcqRel);
        })
        .count()
    }

    /// What the device's line holds.
    #[must_use]
    pub fn status(&self, device: DeviceId) -> Option<LineStatus> {
        let slot = self.slot(device)?;
        let line = self.regions.lines.get(slot as usize)?;
        let commit = CommitWord(line.commit.load(Acquire));
        let current = u32::from(commit.is_valid());
        let ahead = if commit.is_key_mode() {
            0
        } else {
            self.ring_rows(slot, commit.idx().0)
        };
        Some(LineStatus {
            commit,
            rows_left: current + ahead,
            has_session: line.session_id.load(Acquire) != 0,
            lease_until_s: line.lease_until_s.load(Acquire),
        })
    }

    /// Removes binding entries whose session no longer carries the address. Returns how many were removed.
    ///
    /// An entry that is claimed again between the look and the removal is put back, so a live session is without its
    /// entry for an instant at most.
    #[must_use]
    pub fn sweep_bindings(&self) -> usize {
        self.sweep(&self.regions.by_address, |line, session| {
            self.address_hash(line, session)
        }) + self.sweep(&self.regions.by_mac, |line, session| self.mac_hash(line, session))
    }

    fn sweep(&self, table: &[Bucket], hash_of: impl Fn(&Line, &Session) -> Option<u64>) -> usize {
        let mut removed = 0;
        for cell in table.iter().flat_map(|bucket| bucket.entry.iter()) {
            let entry = cell.load(Acquire);
            if entry == 0 || self.is_current(entry, &hash_of) {
                continue;
            }
            if cell.compare_exchange(entry, 0, AcqRel, Acquire).is_ok() {
                fence(AcqRel);
                if self.is_current(entry, &hash_of) {
                    let _ = cell.compare_exchange(0, entry, AcqRel, Acquire);
                } else {
                    removed += 1;
                }
            }
        }
        removed
    }

    fn is_current(&self, entry: u64, hash_of: &impl Fn(&Line, &Session) -> Option<u64>) -> bool {
        let slot = (entry as u32).wrapping_sub(1);
        let (line, session) = match (
            self.regions.lines.get(slot as usize),
            self.regions.sessions.get(slot as usize),
        ) {
            (Some(line), Some(session)) => (line, session),
            _ => return false,
        };
        // A winner claims before it clears BUSY: leave it alone.
        if CommitWord(line.commit.load(Acquire)).is_busy() {
            return true;
        }
        line.session_id.load(Acquire) != 0
            && hash_of(line, session).is_some_and(|hash| table::entry(hash, slot) == entry)
    }

    fn address_hash(&self, _line: &Line, session: &Session) -> Option<u64> {
        Some(table::hash(
            self.geometry.hash_seed,
            session.addr[0].load(Acquire),
            session.addr[1].load(Acquire),
        ))
    }

    fn mac_hash(&self, line: &Line, session: &Session) -> Option<u64> {
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
        Some(table::hash(
            self.geometry.hash_seed,
            mac,
            mac_key_high(line.ingress.load(Acquire), vlans),
        ))
    }

    fn device_hash(&self, device: DeviceId) -> u64 {
        table::hash(self.geometry.hash_seed, wire_word(device.0.to_be_bytes()), 0)
    }

    /// Writes a ring row: its key's second half last, which makes it visible.
    fn publish(&self, slot: u32, idx: RowIndex, row: &Row) {
        let Some(cell) = self.ring_cell(slot, idx.0) else {
            return;
        };
        if cell.auth_key[1].load(Acquire) != 0 {
            return;
        }
        let [first, last] = key_words(row);
        cell.challenge.store(wire_word(row.challenge), Relaxed);
        cell.auth_key[0].store(first, Relaxed);
        cell.auth_key[1].store(last, Release);
    }

    /// Takes a ring row as a winner does.
    fn take(&self, slot: u32, idx: RowIndex) -> Option<Row> {
        let cell = self.ring_cell(slot, idx.0)?;
        let last = cell.auth_key[1].swap(0, AcqRel);
        if last == 0 {
            return None;
        }
        let mut key = [0u8; 16];
        key[..8].copy_from_slice(&cell.auth_key[0].swap(0, AcqRel).to_ne_bytes());
        key[8..].copy_from_slice(&last.to_ne_bytes());
        let challenge = cell.challenge.swap(0, AcqRel).to_ne_bytes();
        Some(Row {
            challenge,
            auth_key: AuthKey::from_bytes(key),
        })
    }

    fn ring_cell(&self, slot: u32, idx: u32) -> Option<&RingRow> {
        let ring = self.geometry.ring;
        let place = slot.checked_mul(ring)?.checked_add(idx.checked_rem(ring)?)?;
        self.regions.rows.get(place as usize)
    }

    /// Contiguous rows in the ring after `idx`.
    fn ring_rows(&self, slot: u32, idx: u32) -> u32 {
        let present = |ahead: &u32| {
            self.ring_cell(slot, idx.wrapping_add(*ahead))
                .is_some_and(|cell| cell.auth_key[1].load(Acquire) != 0)
        };
        (1..=self.geometry.ring).take_while(present).count() as u32
    }
}

/// Bytes of the wire as the word that a native load gives.
#[must_use]
pub fn wire_word(bytes: [u8; 8]) -> u64 {
    u64::from_ne_bytes(bytes)
}

/// The second word under which a MAC address is bound: interface and VLANs.
#[must_use]
pub fn mac_key_high(ingress: u32, vlans: [u16; 2]) -> u64 {
    u64::from(ingress) << 32 | u64::from(vlans[0]) << 16 | u64::from(vlans[1])
}

fn key_words(row: &Row) -> [u64; 2] {
    linewarden_protocol::keys::halves(row.auth_key.as_bytes()).map(wire_word)
}

fn last_half(row: &Row) -> u64 {
    key_words(row)[1]
}

fn write_line_row(line: &Line, row: &Row) {
    let [first, last] = key_words(row);
    line.challenge.store(wire_word(row.challenge), Relaxed);
    line.auth_key[0].store(first, Relaxed);
    line.auth_key[1].store(last, Release);
}

fn zero_line_row(line: &Line) {
    let words: [&AtomicU64; 3] = [&line.challenge, &line.auth_key[0], &line.auth_key[1]];
    words.iter().for_each(|word| word.store(0, Release));
}
