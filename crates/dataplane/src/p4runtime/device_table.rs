//! The gateway's record of each device: its registers, and the rows that the switch holds. The record has no keys.

use std::collections::HashMap;
use std::ops::Range;

use linewarden_protocol::ids::{DeviceId, Mode, SessionId};

use crate::event::EventKind;

/// An installed device.
#[derive(Clone, Debug)]
pub(super) struct Device {
    /// Index of its cells in the registers.
    pub cell: u32,
    pub mode: Mode,
    /// The mark: rows below it may be spent. `None`: no limit.
    pub mark: Option<u32>,
    /// Rows in the table, by number; always one in key mode. Wider than 32 bits because the range ends after the last
    /// row.
    pub rows: Range<u64>,
    pub is_revoked: bool,
    /// Its last session that was reported as an event.
    pub last_session: Option<Session>,
    /// The row at which low rows were last checked; at first the first installed row.
    pub rows_reported_at: u32,
    /// The newest serial number of its ticket requests, and the session.
    pub ticket: Option<(SessionId, u64)>,
}

/// Where a session was opened. A renewal from the same place is not reported again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Session {
    pub address: u128,
    /// Port, ingress, VLANs and MAC address, in the format of the register.
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
    unused: u32,
    free: Vec<u32>,
    /// Cells of devices that were just wiped. A packet in the pipeline may still use them.
    retired: Vec<u32>,
}

impl Cells {
    pub fn new(slots: u32) -> Self {
        Self {
            slots,
            unused: 0,
            free: Vec::new(),
            retired: Vec::new(),
        }
    }

    /// Allocates a cell that no device uses. Returns `None` if all cells are used.
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let cell = self.unused;
            let fits = cell < self.slots;
            self.unused += u32::from(fits);
            fits.then_some(cell)
        })
    }

    /// Retires the cell of a wiped device. The cell can be reused after the next [`Cells::reclaim`].
    pub fn retire(&mut self, cell: u32) {
        self.retired.push(cell);
    }

    pub fn reclaim(&mut self) {
        self.free.append(&mut self.retired);
    }
}
