//! What this side knows of each device: which registers are its, and which of its rows the switch holds. No keys.

use std::collections::HashMap;
use std::ops::Range;

use linewarden_protocol::ids::{DeviceId, Mode, SessionId};

use crate::event::EventKind;

/// A device that is installed.
#[derive(Clone, Debug)]
pub(super) struct Device {
    /// Of its cells in the registers.
    pub cell: u32,
    pub mode: Mode,
    /// Rows below it may be spent; `None`: all.
    pub mark: Option<u32>,
    /// Rows in the table, by number; of key mode always one. Beyond 32 bits, for there is a last row.
    pub rows: Range<u64>,
    pub is_revoked: bool,
    /// Its last session that was told.
    pub told: Option<Session>,
    /// The row at which it was told last whether it lacks rows; the first one when it is installed.
    pub told_at: u32,
    /// The newest serial number of its ticket requests, and in which session.
    pub ticket: Option<(SessionId, u64)>,
}

/// Where a session was opened from, so that it is not told again when it is renewed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Session {
    pub address: u128,
    /// Port, ingress, VLANs and MAC address, as the register has them.
    pub place: Option<u128>,
    /// End of its lease, on the switch's clock.
    pub until_us: u64,
}

impl Device {
    /// Whether it lacks rows at `next`: as few are left as the watermark says.
    pub fn lacks_rows(&self, next: u32, low_rows: u32) -> Option<EventKind> {
        match (self.mode, self.rows_left(next)) {
            (Mode::Key, _) => None,
            (Mode::Pool, 0) => Some(EventKind::RowsOut),
            (Mode::Pool, left) => (left <= low_rows).then_some(EventKind::RowsLow),
        }
    }

    /// Likewise rows below its mark.
    pub fn lacks_credit(&self, next: u32, low_credit: u32) -> Option<EventKind> {
        let is_low = |mark: u32| mark.saturating_sub(next) <= low_credit;
        self.mark.is_some_and(is_low).then_some(EventKind::RowsLow)
    }

    /// Rows left at `next`, that one included; 1 in key mode.
    pub fn rows_left(&self, next: u32) -> u32 {
        match self.mode {
            Mode::Key => 1,
            Mode::Pool if u64::from(next) < self.rows.start => 0,
            Mode::Pool => u32::try_from(self.rows.end.saturating_sub(next.into())).unwrap_or(u32::MAX),
        }
    }
}

/// Devices, and the cells that no device has.
#[derive(Debug)]
pub(super) struct Book {
    pub devices: HashMap<DeviceId, Device>,
    pub cells: Cells,
}

impl Book {
    pub fn new(slots: u32) -> Self {
        Self {
            devices: HashMap::new(),
            cells: Cells::new(slots),
        }
    }
}

/// Numbers of registers' cells that somebody can have.
#[derive(Debug)]
pub(super) struct Cells {
    slots: u32,
    /// Cells from here on were never used.
    unused: u32,
    free: Vec<u32>,
    /// Of who was wiped a moment ago: a packet may still be on its way with their numbers.
    resting: Vec<u32>,
}

impl Cells {
    pub fn new(slots: u32) -> Self {
        Self {
            slots,
            unused: 0,
            free: Vec::new(),
            resting: Vec::new(),
        }
    }

    /// A cell that nobody has.
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let cell = self.unused;
            let fits = cell < self.slots;
            self.unused += u32::from(fits);
            fits.then_some(cell)
        })
    }

    /// Its owner was wiped; it may be another's after the next [`Cells::reclaim`].
    pub fn rest(&mut self, cell: u32) {
        self.resting.push(cell);
    }

    pub fn reclaim(&mut self) {
        self.free.append(&mut self.resting);
    }
}
