//! The line store: devices and their rows in the memory that packet paths work on, as user space sees it.
//!
//! A *winner* is the CPU or packet thread whose compare-and-swap of the commit word spent the row of a line; the winner
//! owns the line until it clears BUSY (LAP/1 1.4.3). Packets flow while this code runs. The code therefore changes
//! a commit word only by compare-and-swap and never lowers an idx or a generation. It fills a line only when the line is
//! neither VALID nor BUSY, and writes a ring row only at a place that a winner has released (LAP/1 1.4.3). Keys are
//! zeroed when they are removed.

mod active_settings;
pub(crate) mod admission;
pub mod adopt;
mod geometry;
mod live;
pub mod load_shedder;
mod place;
pub mod provers;
mod region;
mod session;
mod session_count;
mod sweep;
pub mod table;
mod words;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use linewarden_protocol::commit::{self, CommitWord};
pub use linewarden_protocol::gateway::Row;
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex};
use linewarden_protocol::keys::AuthKey;
use linewarden_protocol::wire::MESSAGE_BYTES;

pub(crate) use self::active_settings::ActiveSettings;
pub use self::geometry::{Geometry, Regions};
pub use self::place::Place;
use self::place::Places;
pub use self::region::Region;
pub(crate) use self::region::prefetch;
pub use self::session::{ClosedSession, KeyedSession, SessionView};
use self::session_count::SessionCounter;
pub use self::words::{mac_key_high, wire_word};
use crate::layout::{HOME_WAYS, Line, RingRow};

/// A change of the store failed. After `Busy`, `Revoked` and `SwitchFailed`, a part of the change may have been made.
/// After every other error, nothing has changed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No slot, or no line for the device, is free.
    #[error("no free slot for device {0}; raise `slots` or remove devices")]
    NoFreeSlot(DeviceId),
    /// Only `refill` adds rows to an installed device.
    #[error("device {0} is already installed")]
    AlreadyInstalled(DeviceId),
    /// The device must be installed first.
    #[error("device {0} is not installed")]
    NotInstalled(DeviceId),
    /// Device id 0 is not a device.
    #[error("device id 0 is reserved")]
    DeviceZero,
    /// A key-mode device has one row; a pool device at least one and at most one more than the ring holds.
    #[error("invalid number of rows for device {device}: {count} rows given, {min} to {max} allowed")]
    RowCount {
        /// The device.
        device: DeviceId,
        /// Number of rows given.
        count: usize,
        /// Minimum number of rows.
        min: usize,
        /// Maximum number of rows.
        max: usize,
    },
    /// A key whose second half is zero cannot be published.
    #[error("invalid row key of device {0}: its second half is zero; enroll the device again")]
    ZeroKey(DeviceId),
    /// A winner owns the line. Call again.
    #[error("device {0} is busy; try again")]
    Busy(DeviceId),
    /// A revoked device accepts no rows.
    #[error("device {0} is revoked")]
    Revoked(DeviceId),
    /// Neither of the device's two buckets of the index accepts an entry.
    #[error("no room in the device index for device {0}; raise `slots`")]
    IndexFull(DeviceId),
    /// Only with `p4runtime`: the state of the device's rows is unknown. The failure of the data plane gives the
    /// reason.
    #[error("the P4 switch failed to change device {0}")]
    SwitchFailed(DeviceId),
}

/// The content of a line, as far as user space needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineStatus {
    /// The commit word.
    pub commit: CommitWord,
    /// Rows left, including the current one; 1 for a key-mode device.
    pub rows_left: u32,
    /// Whether a session id is set. The session may have expired.
    pub has_session: bool,
    /// End of the session, boot-time seconds.
    pub session_until_s: u32,
}

/// Represents no mark: key mode, and rows without a limit.
const NO_MARK: u32 = u32::MAX;

/// Devices and rows in shared memory. There is one writer: changes to a device's place or rows need `&mut self`.
#[derive(Debug)]
pub struct Store {
    regions: Arc<Regions>,
    geometry: Geometry,
    devices: HashMap<DeviceId, Place>,
    places: Places,
    /// The bucket of the binding tables at which the next sweep starts.
    next_sweep_bucket: usize,
    session_counter: SessionCounter,
}

impl Store {
    /// A store over zeroed regions of that geometry.
    #[must_use]
    pub fn new(regions: Arc<Regions>, geometry: Geometry) -> Self {
        let places = Places::new(geometry.home_layout());
        Self {
            regions,
            geometry,
            devices: HashMap::new(),
            places,
            next_sweep_bucket: 0,
            session_counter: SessionCounter::default(),
        }
    }

    /// The arrays that packet paths work on.
    #[must_use]
    pub fn regions(&self) -> &Arc<Regions> {
        &self.regions
    }

    /// The sizes of the store.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The place of a device. `None`: not installed.
    #[must_use]
    pub fn place(&self, device: DeviceId) -> Option<Place> {
        self.devices.get(&device).copied()
    }

    /// The line of a device, and its place.
    ///
    /// # Errors
    /// `NotInstalled`.
    pub fn line(&self, device: DeviceId) -> Result<(&Line, Place), StoreError> {
        let place = self.place(device).ok_or(StoreError::NotInstalled(device))?;
        let line = self
            .regions
            .lines
            .get(place.line as usize)
            .ok_or(StoreError::NotInstalled(device))?;
        Ok((line, place))
    }

    /// How many devices are installed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.devices.len()
    }

    /// Whether no device is installed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// Writes the next fresh value into the control block. Before that, the current value becomes the previous value.
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

    /// Makes the packet path wake user space at the next event, one time.
    pub fn arm_wake(&self) {
        if let Some(control) = self.regions.control.first() {
            control.listening.store(1, Release);
            // The flag must be visible before user space checks for events, so that each later event wakes user space.
            fence(SeqCst);
        }
    }

    /// Number of live sessions at `now_s` of the boot-time clock. `None` until each line was counted. If there are
    /// more lines than one call counts, each call updates the next part: with a million slots, the oldest of 18
    /// parts was counted 17 calls ago.
    pub fn count_sessions(&mut self, now_s: u32) -> Option<u64> {
        self.session_counter.count(&self.regions.lines, now_s)
    }

    /// Marks the device as enrolled: its messages may take the slow path.
    pub fn enroll(&self, device: DeviceId) {
        let id = wire_word(device.0.to_be_bytes());
        self.regions.enroll(&self.geometry, id);
    }

    /// Sets whether messages of devices that were not passed to [`Store::enroll`] are dropped.
    pub fn set_enrollment_filter(&self, filtering: bool) {
        if let Some(control) = self.regions.control.first() {
            control.filtering.store(u64::from(filtering), Release);
        }
    }

    /// Accepts the RESPONSE with the device and nonce of that message on the slow path, once, regardless of the load.
    pub fn expect_response(&self, message: &[u8; MESSAGE_BYTES]) {
        self.regions.expect_response(&self.geometry, message);
    }

    /// Sets whether REQUESTs are answered with a NAK.
    pub fn set_stopping(&self, stopping: bool) {
        if let Some(control) = self.regions.control.first() {
            control.stopping.store(u64::from(stopping), Release);
        }
    }

    /// Puts a device into a free slot. `rows[0]` is row `next_idx` and goes into the line; the other rows follow in the
    /// ring. Only rows below `mark` may be spent until [`Store::grant`] advances the mark. `None`, and key mode: no
    /// limit.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn install(
        &mut self,
        device: DeviceId,
        mode: Mode,
        next_idx: RowIndex,
        rows: &[Row],
        mark: Option<RowIndex>,
    ) -> Result<(), StoreError> {
        self.check_install(device, mode, rows)?;
        let hash = self.device_hash(device);
        let place = self
            .places
            .allocate(self.geometry.home(hash) * HOME_WAYS as u32)
            .ok_or(StoreError::NoFreeSlot(device))?;
        let mark = mark.filter(|_| mode == Mode::Pool);
        let end = next_idx
            .0
            .saturating_add(u32::try_from(rows.len()).unwrap_or(u32::MAX));
        // Written before the device becomes visible, for a process that adopts the memory if this process ends before
        // the install is complete.
        self.set_mark(place.slot, mark);
        self.set_rows_end(place.slot, end);
        self.clear_note(place.slot);
        let Some(line) = self.regions.lines.get(place.line as usize) else {
            return Err(StoreError::NoFreeSlot(device));
        };
        for (offset, row) in (0u32..).zip(rows).skip(1) {
            self.publish(place.slot, RowIndex(next_idx.0.wrapping_add(offset)), row);
        }
        if let Some(first) = rows.first() {
            write_line_row(line, first);
        }
        line.slot.store(place.slot, Relaxed);
        let key_flag = if mode == Mode::Key { commit::KEY } else { 0 };
        // The generation of a reused line continues, so that no window of the previous device matches.
        let generation = CommitWord(line.commit.load(Acquire)).generation().wrapping_add(1);
        line.commit.store(
            CommitWord::new(next_idx, generation, commit::VALID | key_flag)
                .with_credit_up_to(mark)
                .0,
            Release,
        );
        // From here on the packet path finds the device.
        line.device_id.store(wire_word(device.0.to_be_bytes()), Release);
        let is_indexed = self.geometry.is_at_home(hash, place.line)
            || table::insert(
                &self.regions.device_index,
                self.geometry.index_mask(),
                hash,
                place.line,
            );
        if !is_indexed {
            self.clear(place);
            self.places.retire(place);
            return Err(StoreError::IndexFull(device));
        }
        self.devices.insert(device, place);
        Ok(())
    }

    fn check_install(&self, device: DeviceId, mode: Mode, rows: &[Row]) -> Result<(), StoreError> {
        if device.0 == 0 {
            return Err(StoreError::DeviceZero);
        }
        if self.devices.contains_key(&device) {
            return Err(StoreError::AlreadyInstalled(device));
        }
        let max = if mode == Mode::Key {
            1
        } else {
            self.geometry.ring as usize + 1
        };
        if rows.is_empty() || rows.len() > max {
            return Err(StoreError::RowCount {
                device,
                count: rows.len(),
                min: 1,
                max,
            });
        }
        if rows.iter().any(|row| second_key_half(row) == 0) {
            return Err(StoreError::ZeroKey(device));
        }
        Ok(())
    }

    /// Adds rows from `first_idx` on. Rows that were added before, and rows beyond the ring, are skipped. Returns
    /// one above the highest idx that was ever added: the first row to request next.
    ///
    /// # Errors
    /// `Busy` while a winner owns the line: call again. Otherwise see [`StoreError`].
    pub fn refill(
        &mut self,
        device: DeviceId,
        first_idx: RowIndex,
        rows: &[Row],
    ) -> Result<RowIndex, StoreError> {
        let place = self.place(device).ok_or(StoreError::NotInstalled(device))?;
        let slot = place.slot;
        if rows.iter().any(|row| second_key_half(row) == 0) {
            return Err(StoreError::ZeroKey(device));
        }
        let numbered_rows: Vec<(u32, &Row)> = (first_idx.0..).zip(rows).collect();
        self.fill_if_empty(device, place, &numbered_rows)?;
        let word = self.commit_word(device)?;
        if word.is_busy() {
            return Err(StoreError::Busy(device));
        }
        // The commit word has no BUSY flag: earlier winners have finished, so the ring places of rows up to idx + ring are
        // free.
        let last = word.idx().0.saturating_add(self.geometry.ring);
        for (idx, row) in numbered_rows {
            let end = self.rows_end(slot);
            if idx == end && idx <= last {
                self.publish(slot, RowIndex(idx), row);
                self.set_rows_end(slot, end.saturating_add(1));
            }
        }
        // A winner that found the ring empty may have finished just before a row was published. The line is then empty
        // although the ring is not. If a winner still owns the line, the caller must call again: for the last rows of
        // a pool, no later event would cause another refill.
        self.fill_if_empty(device, place, &[])?;
        match self.commit_word(device)?.is_busy() {
            true => Err(StoreError::Busy(device)),
            false => Ok(RowIndex(self.rows_end(slot))),
        }
    }

    /// Fills a line that is neither VALID nor BUSY: from the ring, if a row was published too late for the winner,
    /// otherwise from `numbered_rows`.
    fn fill_if_empty(
        &mut self,
        device: DeviceId,
        place: Place,
        numbered_rows: &[(u32, &Row)],
    ) -> Result<(), StoreError> {
        let slot = place.slot;
        let word = self.commit_word(device)?;
        if word.is_revoked() {
            return Err(StoreError::Revoked(device));
        }
        if !word.is_empty() || word.is_key_mode() {
            return Ok(());
        }
        let idx_min = word.idx().0.max(self.rows_end(slot));
        let (idx, row) = if let Some(row) = self.take_ring_row(slot, word.idx()) {
            (word.idx().0, row)
        } else if let Some((idx, row)) = numbered_rows.iter().find(|(idx, _)| *idx >= idx_min) {
            (*idx, (*row).clone())
        } else {
            return Ok(());
        };
        let (line, _) = self.line(device)?;
        let Some(filled) = word.with_row_filled(RowIndex(idx)) else {
            return Err(StoreError::Revoked(device));
        };
        let filled = filled.with_credit_up_to(self.mark(slot));
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
        self.set_rows_end(slot, self.rows_end(slot).max(idx.saturating_add(1)));
        Ok(())
    }

    /// Permits rows below `mark` to be spent. A mark that is lower than before has no effect. Call this function again
    /// when the credit is low: the credit holds at most [`commit::CREDIT_MAX`] rows.
    ///
    /// # Errors
    /// `NotInstalled`.
    pub fn grant(&mut self, device: DeviceId, mark: RowIndex) -> Result<(), StoreError> {
        let place = self.place(device).ok_or(StoreError::NotInstalled(device))?;
        if let Some(before) = self.mark(place.slot) {
            self.set_mark(place.slot, Some(before.max(mark)));
        }
        let mark = self.mark(place.slot);
        let (line, _) = self.line(device)?;
        // Allowed while a winner owns the line, because the winner changes other bits.
        let with_mark = |word| Some(CommitWord(word).with_credit_up_to(mark).0);
        let _ = line.commit.fetch_update(AcqRel, Acquire, with_mark);
        Ok(())
    }

    fn mark(&self, slot: u32) -> Option<RowIndex> {
        let note = self.regions.notes.get(slot as usize);
        let mark = note.map_or(0, |note| note.mark.load(Relaxed));
        (mark != NO_MARK).then_some(RowIndex(mark))
    }

    fn set_mark(&mut self, slot: u32, mark: Option<RowIndex>) {
        if let Some(note) = self.regions.notes.get(slot as usize) {
            note.mark.store(mark.map_or(NO_MARK, |mark| mark.0), Relaxed);
        }
    }

    /// Clears all fields of the note except mark and end.
    fn clear_note(&mut self, slot: u32) {
        if let Some(note) = self.regions.notes.get(slot as usize) {
            note.epoch.store(0, Relaxed);
            note.ticket.store(0, Relaxed);
        }
    }

    fn commit_word(&self, device: DeviceId) -> Result<CommitWord, StoreError> {
        self.line(device)
            .map(|(line, _)| CommitWord(line.commit.load(Acquire)))
    }

    /// One above the highest idx that was ever added. A lower row is never published again, because a winner may be wiping
    /// the place of this row.
    fn rows_end(&self, slot: u32) -> u32 {
        let note = self.regions.notes.get(slot as usize);
        note.map_or(0, |note| note.end.load(Relaxed))
    }

    fn set_rows_end(&mut self, slot: u32, end: u32) {
        if let Some(note) = self.regions.notes.get(slot as usize) {
            note.end.store(end, Relaxed);
        }
    }

    /// Blocks the device immediately: for each packet, the gate, the handling of DATA and the repetition of ACKs check the
    /// flag REVOKED (LAP/1 1.4.8).
    ///
    /// # Errors
    /// `NotInstalled`.
    pub fn revoke(&self, device: DeviceId) -> Result<(), StoreError> {
        self.line(device).map(|(line, _)| {
            line.commit.fetch_or(commit::REVOKED, AcqRel);
        })
    }

    /// Revokes the device and wipes its rows and session. The slot may be reused after the second [`Store::reclaim`].
    ///
    /// # Errors
    /// `Busy` while a winner owns the line: call again (the device is already revoked). Otherwise `NotInstalled`.
    pub fn wipe(&mut self, device: DeviceId) -> Result<(), StoreError> {
        self.revoke(device)?;
        let (_, place) = self.line(device)?;
        if self.commit_word(device)?.is_busy() {
            return Err(StoreError::Busy(device));
        }
        let hash = self.device_hash(device);
        table::remove(
            &self.regions.device_index,
            self.geometry.index_mask(),
            hash,
            place.line,
        );
        self.clear(place);
        self.devices.remove(&device);
        self.places.retire(place);
        Ok(())
    }

    /// Frees the places of devices that were wiped before the previous call. No packet that was in flight at the wipe may
    /// still be in flight: the packet path takes microseconds, so milliseconds between two calls are enough.
    pub fn reclaim(&mut self) {
        self.places.reclaim();
    }

    fn clear(&self, place: Place) {
        if let Some(line) = self.regions.lines.get(place.line as usize) {
            line.commit.fetch_and(!commit::VALID, AcqRel);
            line.session_id.store(0, Release);
            zero_line_row(line);
            line.device_id.store(0, Release);
        }
        self.clear_slot(place.slot);
    }

    fn clear_slot(&self, slot: u32) {
        if let Some(session) = self.regions.sessions.get(slot as usize) {
            let words = session
                .session_key
                .iter()
                .chain(&session.tag)
                .chain(&session.addr);
            words.for_each(|word| word.store(0, Release));
        }
        let ring = self.geometry.ring.max(1) as usize;
        let start = slot as usize * ring;
        for row in self.regions.rows.get(start..start + ring).unwrap_or_default() {
            row.auth_key[1].store(0, Release);
            row.auth_key[0].store(0, Release);
            row.challenge.store(0, Release);
        }
    }

    /// Recovers after a crash of the process that fed the packet path, while the packet path is detached: closes the
    /// sessions of lines that a winner left incomplete and clears their BUSY flag, so that they can be filled again.
    /// Returns the number of these lines.
    #[must_use]
    pub fn recover(&self) -> usize {
        let busy_lines = self
            .regions
            .lines
            .iter()
            .filter(|line| CommitWord(line.commit.load(Acquire)).is_busy());
        busy_lines
            .map(|line| {
                line.session_id.store(0, Release);
                zero_line_row(line);
                line.commit.fetch_and(!(commit::BUSY | commit::VALID), AcqRel);
            })
            .count()
    }

    /// The content of the device's line. `None`: not installed.
    #[must_use]
    pub fn status(&self, device: DeviceId) -> Option<LineStatus> {
        let (line, place) = self.line(device).ok()?;
        let commit = CommitWord(line.commit.load(Acquire));
        let current = u32::from(commit.is_valid());
        let in_ring = if commit.is_key_mode() {
            0
        } else {
            self.ring_rows(place.slot, commit.idx().0)
        };
        Some(LineStatus {
            commit,
            rows_left: current + in_ring,
            has_session: line.session_id.load(Acquire) != 0,
            session_until_s: line.session_until_s.load(Acquire),
        })
    }

    fn device_hash(&self, device: DeviceId) -> u64 {
        self.geometry.device_hash(device)
    }

    /// Writes a ring row. The second half of the key is written last and makes the row visible.
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

    /// Takes a ring row in the same way as a winner.
    fn take_ring_row(&self, slot: u32, idx: RowIndex) -> Option<Row> {
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

    /// Number of contiguous rows in the ring after `idx`.
    fn ring_rows(&self, slot: u32, idx: u32) -> u32 {
        let is_present = |offset: &u32| {
            self.ring_cell(slot, idx.wrapping_add(*offset))
                .is_some_and(|cell| cell.auth_key[1].load(Acquire) != 0)
        };
        (1..=self.geometry.ring).take_while(is_present).count() as u32
    }
}

fn key_words(row: &Row) -> [u64; 2] {
    linewarden_protocol::keys::halves(row.auth_key.as_bytes()).map(wire_word)
}

fn second_key_half(row: &Row) -> u64 {
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
