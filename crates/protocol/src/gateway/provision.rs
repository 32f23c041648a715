//! Operations of user space on lines: install, refill, revoke, wipe, and recovery after a crash of user space.

use alloc::vec::Vec;

use super::line::{Line, LineView, Row};
use super::{BTreeMap, Gateway};
use crate::commit::{self, CommitWord};
use crate::ids::{DeviceId, Mode, Period, RoundNumber, RowIndex, SessionId};
use crate::time::Now;

/// A device as the registry passes it to a gateway.
#[derive(Clone, Debug)]
pub struct DeviceInstall {
    /// The device; not 0.
    pub device: DeviceId,
    /// The kind of its credential.
    pub mode: Mode,
    /// Number of the first row; in key mode the first value of the counter.
    pub next_idx: RowIndex,
    /// Pool mode: consecutive rows from `next_idx`, possibly none. Key mode: exactly one, whose challenge is zero.
    pub rows: Vec<Row>,
    /// Pool mode: only rows below the mark may be spent, until [`Gateway::raise_mark`] moves the mark; `None`: all
    /// rows.
    pub mark: Option<RowIndex>,
}

/// Why an operation of user space failed; nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProvisionError {
    /// Device id 0 is not a device.
    #[error("invalid device id 0; enroll the device with another id")]
    DeviceZero,
    /// Refill, revoke or wipe of a device that is not installed.
    #[error("unknown device {0}: not installed; install it first")]
    UnknownDevice(DeviceId),
    /// Installation over a line that has a row, or that a winner is writing.
    #[error("install of device {0} failed: its line is in use; wipe or refill it")]
    LineInUse(DeviceId),
    /// A revoked device accepts no rows.
    #[error("device {0} is revoked; wipe it before another enrollment")]
    Revoked(DeviceId),
    /// Key mode has one key and no rows.
    #[error("rows of device {0} rejected: key mode; install exactly one key, with a zero challenge")]
    KeyMode(DeviceId),
    /// The row is spent or already installed.
    #[error("row {0} rejected: spent or already held; add rows from {1} that are not held")]
    RowSpent(RowIndex, RowIndex),
    /// The line has no room for the row.
    #[error("row {0} rejected: no room; the line holds rows up to {1} now")]
    TooFarAhead(RowIndex, RowIndex),
    /// A key whose second half is zero represents an absent row in shared memory.
    #[error("row {0} rejected: the second half of its key is zero; enroll another row")]
    UnusableKey(RowIndex),
    /// No room for another prover.
    #[error("prover {0} rejected: no room; raise `provers_max`")]
    ProversFull(DeviceId),
    /// A proof key whose first 8 bytes are zero represents "no key" in shared memory.
    #[error("key of prover {0} rejected: it begins with zero; use another salt")]
    UnusableProofKey(DeviceId),
    /// A round of a period for which no prover has keys.
    #[error("round rejected: no prover has a key of period {0}; install the keys before the first round")]
    PeriodUnknown(Period),
    /// Round numbers increase, from 1.
    #[error("round {0} rejected: not above {1}, the last round; use higher numbers")]
    RoundNotAbove(RoundNumber, RoundNumber),
}

impl Gateway {
    /// Installs a device, or fills its empty line from `next_idx`, which must not be below the index of the line.
    ///
    /// # Errors
    /// [`ProvisionError`]; nothing is changed.
    pub fn install(&mut self, install: DeviceInstall) -> Result<(), ProvisionError> {
        let device = install.device;
        if device.0 == 0 {
            return Err(ProvisionError::DeviceZero);
        }
        if let Some(line) = self.lines.get(&device) {
            if line.commit.is_revoked() {
                return Err(ProvisionError::Revoked(device));
            }
            if !line.commit.is_empty() || line.commit.is_key_mode() != (install.mode == Mode::Key) {
                return Err(ProvisionError::LineInUse(device));
            }
        }
        match install.mode {
            Mode::Pool => self.install_pool(install),
            Mode::Key => self.install_key(device, install.next_idx, install.rows),
        }
    }

    fn install_pool(&mut self, install: DeviceInstall) -> Result<(), ProvisionError> {
        let DeviceInstall {
            device,
            next_idx,
            rows,
            mark,
            ..
        } = install;
        let is_known = self.lines.contains_key(&device);
        if !is_known {
            let commit = CommitWord::new(next_idx, 0, 0);
            let mut line = Line::new(commit, Row::absent());
            line.mark = mark;
            self.lines.insert(device, line);
        }
        let result = self.refill(device, next_idx, rows);
        if result.is_err() && !is_known {
            self.lines.remove(&device);
        }
        result
    }

    fn install_key(
        &mut self,
        device: DeviceId,
        next_idx: RowIndex,
        rows: Vec<Row>,
    ) -> Result<(), ProvisionError> {
        let mut rows = rows.into_iter();
        let (Some(row), None) = (rows.next(), rows.next()) else {
            return Err(ProvisionError::KeyMode(device));
        };
        if row.challenge != [0; 8] {
            return Err(ProvisionError::KeyMode(device));
        }
        check_key(next_idx, &row)?;
        let empty = CommitWord::new(RowIndex(0), 0, commit::KEY | commit::UNLIMITED);
        let line = self
            .lines
            .entry(device)
            .or_insert_with(|| Line::new(empty, Row::absent()));
        let filled_word = line.commit.with_row_filled(next_idx);
        line.commit = filled_word.ok_or(ProvisionError::RowSpent(next_idx, line.commit.idx()))?;
        line.row = row;
        Ok(())
    }

    /// Adds consecutive rows from `first_idx`. An empty line continues at its lowest row after the addition.
    ///
    /// # Errors
    /// [`ProvisionError`]; no row is added.
    pub fn refill(
        &mut self,
        device: DeviceId,
        first_idx: RowIndex,
        rows: Vec<Row>,
    ) -> Result<(), ProvisionError> {
        let rows_ahead = self.config.rows_ahead;
        let line = self.line_mut(device)?;
        if line.commit.is_revoked() {
            return Err(ProvisionError::Revoked(device));
        }
        if line.commit.is_key_mode() {
            return Err(ProvisionError::KeyMode(device));
        }
        let current = line.commit.idx();
        // An empty line also accepts the row of its current index, and may continue at a higher index.
        let (lowest, base) = if line.commit.is_empty() {
            let lowest_ahead = line.rows_ahead.keys().next().copied().unwrap_or(first_idx);
            (current, lowest_ahead.min(first_idx).max(current))
        } else {
            (RowIndex(current.0.saturating_add(1)), current)
        };
        let last = RowIndex(base.0.saturating_add(rows_ahead));
        let mut new_rows = BTreeMap::new();
        for (idx, row) in (first_idx.0..=u32::MAX).map(RowIndex).zip(rows) {
            if idx < lowest || line.rows_ahead.contains_key(&idx) {
                return Err(ProvisionError::RowSpent(idx, lowest));
            }
            if idx > last {
                return Err(ProvisionError::TooFarAhead(idx, last));
            }
            check_key(idx, &row)?;
            new_rows.insert(idx, row);
        }
        line.rows_ahead.append(&mut new_rows);
        fill_if_empty(line);
        Ok(())
    }

    /// Allows spending the rows below `mark`; a lower mark than before changes nothing (LAP/1 1.4.6).
    ///
    /// # Errors
    /// [`ProvisionError::UnknownDevice`].
    pub fn raise_mark(&mut self, device: DeviceId, mark: RowIndex) -> Result<(), ProvisionError> {
        let line = self.line_mut(device)?;
        line.mark = line.mark.map(|current| current.max(mark));
        line.commit = line.commit.with_credit_up_to(line.mark);
        Ok(())
    }

    /// Revokes a device at once: the gate, DATA and repeated ACKs check the flag on each packet (LAP/1 1.4.8).
    ///
    /// # Errors
    /// [`ProvisionError::UnknownDevice`].
    pub fn revoke(&mut self, device: DeviceId) -> Result<(), ProvisionError> {
        let line = self.line_mut(device)?;
        line.commit = line.commit.with_revoked();
        Ok(())
    }

    /// Closes a session if it is the current session of the device (LAP/1 1.4.11); otherwise returns `false`. The rows
    /// of the device stay.
    ///
    /// # Errors
    /// [`ProvisionError::UnknownDevice`].
    pub fn close_session(&mut self, device: DeviceId, session: SessionId) -> Result<bool, ProvisionError> {
        let line = self.line_mut(device)?;
        let closed = line.session_id.take_if(|id| *id == session);
        Ok(closed.is_some())
    }

    /// Removes a device: its rows, its session and its revocation.
    ///
    /// # Errors
    /// [`ProvisionError::UnknownDevice`].
    pub fn wipe(&mut self, device: DeviceId) -> Result<(), ProvisionError> {
        let removed = self.lines.remove(&device);
        removed.map(|_| ()).ok_or(ProvisionError::UnknownDevice(device))
    }

    /// Recovers after a crash of user space, with the data plane detached and its memory kept: unfinished winners
    /// lose their session, and their lines are empty until they are refilled (LAP/1 1.4.3).
    pub fn recover(&mut self) {
        for line in self.lines.values_mut().filter(|line| line.commit.is_busy()) {
            line.session_id = None;
            line.row = Row::absent();
            line.commit = line.commit.with_busy_cleared(false);
        }
    }

    /// Removes bindings of closed sessions and bindings that sessions no longer use.
    pub fn sweep_bindings(&mut self) {
        self.bindings.sweep(&self.lines);
    }

    /// A copy of a device's line, with its secrets.
    #[must_use]
    pub fn line(&self, device: DeviceId) -> Option<LineView> {
        self.lines.get(&device).map(Line::view)
    }

    /// The live session of the device.
    #[must_use]
    pub fn session(&self, device: DeviceId, now: Now) -> Option<SessionId> {
        let line = self.lines.get(&device)?;
        let is_live = !line.commit.is_revoked() && !line.is_session_expired(now.boot());
        line.session_id.filter(|_| is_live)
    }

    /// The devices that have a line, in the order of their ids.
    pub fn devices(&self) -> impl Iterator<Item = DeviceId> {
        self.lines.keys().copied()
    }

    fn line_mut(&mut self, device: DeviceId) -> Result<&mut Line, ProvisionError> {
        self.lines
            .get_mut(&device)
            .ok_or(ProvisionError::UnknownDevice(device))
    }
}

/// Makes the lowest row the current row if the line is empty: user space writes only lines with neither VALID nor BUSY.
fn fill_if_empty(line: &mut Line) {
    let Some(&lowest) = line.rows_ahead.keys().next() else {
        return;
    };
    if let Some(filled) = line.commit.with_row_filled(lowest) {
        line.commit = filled.with_credit_up_to(line.mark);
        line.take_next_row();
    }
}

fn check_key(idx: RowIndex, row: &Row) -> Result<(), ProvisionError> {
    let [_, second] = crate::keys::halves(row.auth_key.as_bytes());
    if second == [0; 8] {
        return Err(ProvisionError::UnusableKey(idx));
    }
    Ok(())
}
