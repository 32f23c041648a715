//! What user space does to lines: install, refill, revoke, wipe, and clear up after its own crash.

use alloc::vec::Vec;

use super::line::{Line, LineView, Row};
use super::{BTreeMap, Gateway};
use crate::commit::{self, CommitWord};
use crate::ids::{DeviceId, Mode, Period, RoundNumber, RowIndex, SessionId};
use crate::time::Now;

/// A device as the registry hands it to a gateway.
#[derive(Clone, Debug)]
pub struct DeviceInstall {
    /// The device; not 0.
    pub device: DeviceId,
    /// How its credential works.
    pub mode: Mode,
    /// Number of the first row; in key mode, where counting starts.
    pub next_idx: RowIndex,
    /// Pool mode: consecutive rows from `next_idx`, possibly none. Key mode: exactly one, whose challenge is zero.
    pub rows: Vec<Row>,
    /// Pool mode: only rows below this one may be spent until [`Gateway::grant`] moves it; `None`: all.
    pub mark: Option<RowIndex>,
}

/// Why user space's request was refused; nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProvisionError {
    /// Device id 0 is no device.
    #[error("device id 0 names no device; enrol it under another id")]
    DeviceZero,
    /// Refill, revoke or wipe of a device that is not here.
    #[error("device {0} is not installed here; install it first")]
    UnknownDevice(DeviceId),
    /// Install over a line that holds a row, or that a winner is writing.
    #[error("device {0} has a line in use; wipe it first or refill it")]
    LineInUse(DeviceId),
    /// A revoked device takes no rows.
    #[error("device {0} is revoked; wipe it before it is enrolled again")]
    Revoked(DeviceId),
    /// Key mode has one key and no rows.
    #[error("device {0} is in key mode: it takes exactly one key, with a zero challenge, at install")]
    KeyMode(DeviceId),
    /// A row that is spent or current already.
    #[error("row {0} is spent or held already; rows from {1} that are not held are taken")]
    RowSpent(RowIndex, RowIndex),
    /// More rows than the line holds.
    #[error("row {0} does not fit; the line holds rows up to {1} now")]
    TooFarAhead(RowIndex, RowIndex),
    /// A key whose second half is zero stands for an absent row on shared memory.
    #[error("row {0} has a key whose second half is zero, which stands for no row; enrol another")]
    UnusableKey(RowIndex),
    /// No room for another prover.
    #[error("prover {0} does not fit; raise `provers_max`")]
    ProversFull(DeviceId),
    /// A proof key whose first 8 bytes are zero stands for none in shared memory.
    #[error("prover {0} has a key that begins with zero, which stands for no key; take another salt")]
    UnusableProofKey(DeviceId),
    /// A round of a period that no prover has keys of.
    #[error("no prover has a key of period {0}; install them before its first round")]
    PeriodUnknown(Period),
    /// Round numbers increase, from 1.
    #[error("round {0} is not above round {1}, the last that began; reserve numbers that were never used")]
    RoundNotAbove(RoundNumber, RoundNumber),
}

impl Gateway {
    /// Installs a device, or fills its empty line from `next_idx`, which may not be below the line's own.
    ///
    /// # Errors
    /// [`ProvisionError`]; nothing is changed then.
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
        let known = self.lines.contains_key(&device);
        if !known {
            let commit = CommitWord::new(next_idx, 0, 0);
            let mut line = Line::new(commit, Row::zero());
            line.mark = mark;
            self.lines.insert(device, line);
        }
        let filled = self.refill(device, next_idx, rows);
        if filled.is_err() && !known {
            self.lines.remove(&device);
        }
        filled
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
            .or_insert_with(|| Line::new(empty, Row::zero()));
        let filled = line.commit.filled(next_idx);
        line.commit = filled.ok_or(ProvisionError::RowSpent(next_idx, line.commit.idx()))?;
        line.row = row;
        Ok(())
    }

    /// Adds consecutive rows from `first_idx`. An empty line goes on at the lowest row that it then holds.
    ///
    /// # Errors
    /// [`ProvisionError`]; no row is taken then.
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
        // An empty line takes its current row too, and may go on at a higher number.
        let (lowest, base) = if line.commit.is_empty() {
            let held = line.ahead.keys().next().copied().unwrap_or(first_idx);
            (current, held.min(first_idx).max(current))
        } else {
            (RowIndex(current.0.saturating_add(1)), current)
        };
        let last = RowIndex(base.0.saturating_add(rows_ahead));
        let mut taken = BTreeMap::new();
        for (idx, row) in (first_idx.0..=u32::MAX).map(RowIndex).zip(rows) {
            if idx < lowest || line.ahead.contains_key(&idx) {
                return Err(ProvisionError::RowSpent(idx, lowest));
            }
            if idx > last {
                return Err(ProvisionError::TooFarAhead(idx, last));
            }
            check_key(idx, &row)?;
            taken.insert(idx, row);
        }
        line.ahead.append(&mut taken);
        fill_if_empty(line);
        Ok(())
    }

    /// Lets the rows below `mark` be spent; a lower mark than before changes nothing (LAP/1 1.4.6).
    ///
    /// # Errors
    /// [`ProvisionError::UnknownDevice`].
    pub fn grant(&mut self, device: DeviceId, mark: RowIndex) -> Result<(), ProvisionError> {
        let line = self.line_mut(device)?;
        line.mark = line.mark.map(|before| before.max(mark));
        line.commit = line.commit.granted(line.mark);
        Ok(())
    }

    /// Shuts a device out at once: gate, DATA and repeated ACKs read the flag on each packet (LAP/1 1.4.8).
    ///
    /// # Errors
    /// [`ProvisionError::UnknownDevice`].
    pub fn revoke(&mut self, device: DeviceId) -> Result<(), ProvisionError> {
        let line = self.line_mut(device)?;
        line.commit = line.commit.revoked();
        Ok(())
    }

    /// Closes a session, if it is still the device's (LAP/1 1.4.11); whether it was. Its rows stay.
    ///
    /// # Errors
    /// [`ProvisionError::UnknownDevice`].
    pub fn close_session(&mut self, device: DeviceId, session: SessionId) -> Result<bool, ProvisionError> {
        let line = self.line_mut(device)?;
        let closed = line.session_id.take_if(|id| *id == session);
        Ok(closed.is_some())
    }

    /// Forgets a device: rows, session, and that it was revoked.
    ///
    /// # Errors
    /// [`ProvisionError::UnknownDevice`].
    pub fn wipe(&mut self, device: DeviceId) -> Result<(), ProvisionError> {
        let removed = self.lines.remove(&device);
        removed.map(|_| ()).ok_or(ProvisionError::UnknownDevice(device))
    }

    /// After a crash of user space, with the data plane detached and its memory kept: winners that never finished
    /// lose their session, and their lines are empty until they are refilled (LAP/1 1.4.3).
    pub fn recover(&mut self) {
        for line in self.lines.values_mut().filter(|line| line.commit.is_busy()) {
            line.session_id = None;
            line.row = Row::zero();
            line.commit = line.commit.released(false);
        }
    }

    /// Forgets bindings of closed sessions, and those that sessions have moved away from.
    pub fn sweep_bindings(&mut self) {
        self.bindings.sweep(&self.lines);
    }

    /// A copy of a device's line, with its secrets.
    #[must_use]
    pub fn line(&self, device: DeviceId) -> Option<LineView> {
        self.lines.get(&device).map(Line::view)
    }

    /// The device's live session: not revoked, lease not over.
    #[must_use]
    pub fn session(&self, device: DeviceId, now: Now) -> Option<SessionId> {
        let line = self.lines.get(&device)?;
        let is_live = !line.commit.is_revoked() && !line.lease_is_over(now.boot());
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

/// User space touches only lines with neither VALID nor BUSY.
fn fill_if_empty(line: &mut Line) {
    let Some(&lowest) = line.ahead.keys().next() else {
        return;
    };
    if let Some(filled) = line.commit.filled(lowest) {
        line.commit = filled.granted(line.mark);
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
