//! The gateway's record of each device: its registers, and the rows that the switch holds. The record has no keys.

use std::collections::HashMap;
use std::ops::Range;

use linewarden_protocol::ids::{DeviceId, Mode, SessionId};

use crate::event::EventKind;

/// An installed device.
#[derive(Clone, Debug)]
pub(super) struct Device {
    /// Index of the device's cells in the registers.
    pub cell: u32,
    pub mode: Mode,
    /// The mark: rows below it may be spent. `None`: no limit.
    pub mark: Option<u32>,
    /// Rows in the table, by number; always one row in key mode. The type has 64 bits, because the end of the range can be
    /// 2^32.
    pub rows: Range<u64>,
    pub is_revoked: bool,
    /// The latest session of which the switch sent a digest.
    pub last_session: Option<Session>,
    /// The current row at the most recent check for low rows; initially the first installed row.
    pub rows_checked_at: u32,
    /// The session and the serial number of the device's newest ticket request.
    pub ticket: Option<(SessionId, u64)>,
}

/// Origin and end of a session. A renewal from the same origin is not reported again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Session {
    pub address: u128,
    /// Port, ingress, VLANs and MAC address, in the format of the register. `None`: the session had ended when the register
    /// was read.
    pub place: Option<u128>,
    /// End of the session, on the switch's clock.
    pub until_us: u64,
}

impl Device {
    /// The event to report if the device has few rows left at `next` (`low_rows`).
    pub fn lacks_rows(&self, next: u32, low_rows: u32) -> Option<EventKind> {
        match (self.mode, self.rows_left(next)) {
            (Mode::Key, _) => None,
            (Mode::Pool, 0) => Some(EventKind::RowsExhausted),
            (Mode::Pool, remaining) => (remaining <= low_rows).then_some(EventKind::RowsLow),
        }
    }

    /// The event to report if few rows below the mark are left at `next` (`low_credit`).
    pub fn lacks_credit(&self, next: u32, low_credit: u32) -> Option<EventKind> {
        let is_low = |mark: u32| mark.saturating_sub(next) <= low_credit;
        self.mark.is_some_and(is_low).then_some(EventKind::RowsLow)
    }

    /// Rows left, including row `next`; 1 in key mode.
    pub fn rows_left(&self, next: u32) -> u32 {
        match self.mode {
            Mode::Key => 1,
            Mode::Pool if u64::from(next) < self.rows.start => 0,
            Mode::Pool => u32::try_from(self.rows.end.saturating_sub(next.into())).unwrap_or(u32::MAX),
        }
    }
}

/// Installed devices, and the cells that no device uses.
#[derive(Debug)]
pub(super) struct DeviceTable {
    pub devices: HashMap<DeviceId, Device>,
    pub cells: Cells,
}

impl DeviceTable {
    pub fn new(slots: u32) -> Self {
        Self {
            devices: HashMap::new(),
            cells: Cells::new(slots),
        }
    }
}

/// Allocator for cell numbers of the registers.
#[derive(Debug)]
pub(super) struct Cells {
    slots: u32,
    /// Cells from this number on were never used.
    first_unused: u32,
    free_cells: Vec<u32>,
    /// Cells of devices that were wiped since the most recent [`Cells::reclaim`]. A packet in the pipeline may still use
    /// these cells.
    retired: Vec<u32>,
}

impl Cells {
    pub fn new(slots: u32) -> Self {
        Self {
            slots,
            first_unused: 0,
            free_cells: Vec::new(),
            retired: Vec::new(),
        }
    }

    /// Allocates a cell that no device uses. Returns `None` if all cells are used.
    pub fn take(&mut self) -> Option<u32> {
        self.free_cells.pop().or_else(|| {
            let cell = self.first_unused;
            let fits = cell < self.slots;
            self.first_unused += u32::from(fits);
            fits.then_some(cell)
        })
    }

    /// Retires the cell of a wiped device. The cell can be reused after the next [`Cells::reclaim`].
    pub fn retire(&mut self, cell: u32) {
        self.retired.push(cell);
    }

    /// Frees all retired cells.
    pub fn reclaim(&mut self) {
        self.free_cells.append(&mut self.retired);
    }
}
