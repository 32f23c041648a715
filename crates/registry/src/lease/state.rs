//! State transitions of a lease, without database and clock.

use std::ops::Range;

use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex};
use linewarden_protocol::nonce::RowStatement;
use linewarden_types::UnusedRows;

use super::{LeaseGrant, LeaseRequest};
use crate::credentials::POOL_ROWS_MAX;
use crate::device::DeviceInfo;
use crate::error::{DeviceError, RegistryError, Result};
use crate::gateway::FencingToken;

/// Number of gateways that may still use rows of leases that a restore has lost. The first lease of a device after a
/// restore skips the rows of this number of leases, so that it does not overlap with lost leases. A lost lease may start
/// after the last row that the device has answered, or after the last row that the restored registry knows as leased;
/// the skipped rows follow the higher of both.
const UNRECORDED_LEASES_MAX: u32 = 2;
/// Maximum distance of a row statement from the first row of the pool: no pool has more rows.
const STATEMENT_ROWS_MAX: u32 = POOL_ROWS_MAX as u32;

/// The rows of a device that a gateway holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The device.
    pub device: DeviceId,
    /// The gateway.
    pub gateway: GatewayId,
    /// The fencing token of the process that uses the rows below the mark.
    pub fencing_token: u64,
    /// The epoch of the rows.
    pub epoch: u32,
    /// The rows; empty after the gateway has returned all rows. The end is the number after the highest row that the
    /// gateway may ever have used. In key mode one number, the start of the gateway's counter.
    pub rows: Range<u32>,
    /// Rows below the mark may have been used; rows from the mark on have not been used. The mark is within `rows`, or at
    /// the end of `rows`.
    pub mark: RowIndex,
}

/// The rows of a device that are not leased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pool {
    pub(super) info: DeviceInfo,
    /// Ranges below the floor, in ascending order; no two ranges are adjacent, and none is adjacent to the floor.
    pub(super) unleased: Vec<Range<u32>>,
    /// Whether the registry was restored to an earlier state, and has leased no rows of the device since.
    pub(super) is_restored: bool,
}

impl Lease {
    pub(super) fn empty(fencing_token: &FencingToken, info: &DeviceInfo) -> Self {
        let start = info.indices().start;
        Self {
            device: info.device,
            gateway: fencing_token.gateway(),
            fencing_token: fencing_token.number(),
            epoch: info.epoch,
            rows: start..start,
            mark: RowIndex(start),
        }
    }

    /// Whether the gateway holds rows of the current credentials. `false` before the first authentication of the device
    /// at the gateway, and after the gateway has returned all rows.
    pub(super) fn is_current(&self, info: &DeviceInfo) -> bool {
        self.epoch == info.epoch && !self.rows.is_empty()
    }

    /// The part of the lease that the process with this fencing token may use. Empty for replaced credentials. If the
    /// lease belongs to an earlier process, which may have used the rows below the mark, these rows are excluded.
    pub(super) fn visible_to(self, fencing_token: &FencingToken, info: &DeviceInfo) -> Self {
        if self.epoch != info.epoch {
            return Self::empty(fencing_token, info);
        }
        let first = match self.fencing_token == fencing_token.number() {
            true => self.rows.start,
            false => self.mark.0,
        };
        Self {
            fencing_token: fencing_token.number(),
            rows: first..self.rows.end,
            ..self
        }
    }

    /// Adds rows and moves the mark, as far as the pool permits.
    pub(super) fn extend(&mut self, pool: &mut Pool, request: &LeaseRequest) -> Result<LeaseGrant> {
        let device = self.device;
        pool.info.check_may_authenticate()?;
        let rows = match pool.info.mode {
            // A number may be leased again although an earlier process has used it: the fresh values of the two
            // processes differ. The numbers that this process has used are below the floor after the process has
            // reported its unused rows.
            Mode::Key => {
                let floor = pool.info.idx_floor;
                self.rows = floor.0..floor.0.saturating_add(1);
                self.mark = floor;
                self.rows.clone()
            }
            Mode::Pool => {
                let (from, received) = match request.epoch == self.epoch {
                    true => (request.from.0, request.received.0),
                    false => (0, 0),
                };
                let unused_rows = self.start_above_statement(pool, request);
                self.skip_to(pool, from);
                self.add_rows(pool, from, received, request.hold_rows);
                self.raise_mark(from, request.spendable_rows);
                pool.return_rows(unused_rows);
                if self.rows.is_empty() || from >= self.rows.end {
                    return Err(RegistryError::Device(DeviceError::RowsExhausted {
                        device,
                        rows_end: pool.info.indices().end,
                    }));
                }
                match received >= self.rows.start && received <= self.rows.end {
                    true => received..self.rows.end,
                    // The lease has moved to other rows, so the gateway has received none of them.
                    false => self.rows.clone(),
                }
            }
        };
        Ok(LeaseGrant {
            device,
            mode: pool.info.mode,
            suite: pool.info.suite,
            epoch: self.epoch,
            held_rows: self.rows.clone(),
            rows,
            mark: self.mark,
        })
    }

    /// Moves the start of the lease to `from` if the gateway has used rows that the registry does not know as used. The
    /// cause is an older copy of the registry that was restored.
    fn skip_to(&mut self, pool: &mut Pool, from: u32) {
        let from = from.min(pool.info.indices().end);
        self.mark.0 = self.mark.0.max(from);
        if from > self.rows.end {
            self.rows = from..from;
            pool.raise_floor(from);
            pool.unleased.retain(|range| range.start >= from);
        }
    }

    /// Moves the lease above all rows that the device has answered and above all rows that were leased. This happens if
    /// the device has answered rows that were not leased, or has refused a row that it had answered: its last proof was
    /// lost, or an older copy of the registry was restored. This also happens with the first lease of the device after
    /// a restore, unless no row was used or leased before. A lease that already starts above these rows does not
    /// change, so that a repeated proof gets the same rows.
    ///
    /// A statement beyond the last row has no effect by itself. With a refused row, or after a restore, no row is left
    /// in this case: the device has rows that were added after the restored state. A statement beyond the last row of
    /// any possible pool is ignored. Returns the rows that the lease leaves unused.
    fn start_above_statement(&mut self, pool: &mut Pool, request: &LeaseRequest) -> Range<u32> {
        let (rows, floor) = (pool.info.indices(), pool.info.idx_floor.0);
        let stated_row = request.statement.first_unanswered_row.0;
        let RowStatement {
            first_unanswered_row: RowIndex(row),
            has_refused_row,
        } = match stated_row.saturating_sub(rows.start) > STATEMENT_ROWS_MAX {
            true => RowStatement::default(),
            false => request.statement,
        };
        let has_used_rows = row > 0 || floor > rows.start;
        let is_first_since_restore = std::mem::take(&mut pool.is_restored) && has_used_rows;
        // A device refuses only rows below its first unanswered row.
        let is_refused = has_refused_row && self.rows.start < row;
        let has_unleased_answer = row > floor && row <= rows.end;
        if !has_unleased_answer && !is_refused && !is_first_since_restore {
            return 0..0;
        }
        let mut start = row.min(rows.end).max(floor);
        if is_first_since_restore {
            let lost_rows = request.hold_rows.saturating_mul(UNRECORDED_LEASES_MAX);
            start = start.saturating_add(lost_rows).min(rows.end);
        }
        let unused = self.mark.0..self.rows.end;
        self.rows = start..start;
        self.mark.0 = start;
        pool.raise_floor(start);
        unused
    }

    /// Adds rows, so that the gateway holds `hold_rows` rows from `from` on, as far as the pool permits.
    fn add_rows(&mut self, pool: &mut Pool, from: u32, received: u32, hold_rows: u32) {
        let count = hold_rows.saturating_sub(self.rows.end - from.clamp(self.rows.start, self.rows.end));
        if count == 0 {
            return;
        }
        // If the gateway has received all rows and may use them, a jump to other rows loses no row.
        let has_all = received >= self.rows.end || self.rows.is_empty();
        let may_jump = has_all && self.mark.0 >= self.rows.end;
        match pool.take(self.rows.end, count, may_jump) {
            Some(added) if added.start == self.rows.end => self.rows.end = added.end,
            Some(added) => {
                self.mark.0 = added.start;
                self.rows = added;
            }
            None => {}
        }
    }

    /// Moves the mark, so that the gateway may use `spendable_rows` rows from `from` on. The mark never decreases.
    fn raise_mark(&mut self, from: u32, spendable_rows: u32) {
        let requested = from.max(self.rows.start).saturating_add(spendable_rows);
        self.mark.0 = self.mark.0.max(requested).min(self.rows.end);
    }

    /// Records that the rows from `unused_from` on are unused and not in the data plane. The rows remain leased to the
    /// gateway, or return to the pool. Returns the number of rows that returned.
    pub(super) fn record_unused_rows(&mut self, pool: &mut Pool, unused_rows: &UnusedRows) -> Result<u32> {
        let unused_from = unused_rows.unused_from;
        if unused_rows.epoch != self.epoch {
            return Ok(0);
        }
        if pool.info.mode == Mode::Key {
            // The next gateway of the device starts above all used numbers, so that no earlier message becomes valid
            // again.
            pool.raise_floor(unused_from.0);
            let floor = pool.info.idx_floor.0;
            self.rows = floor..floor.saturating_add(u32::from(unused_rows.keep_leased));
            self.mark.0 = floor;
            return Ok(0);
        }
        if unused_from.0 > self.rows.end {
            return Err(RegistryError::Device(DeviceError::InvalidUnusedRows {
                device: self.device,
                gateway: self.gateway,
                unused_from: unused_from.0,
                rows_start: self.rows.start,
                rows_end: self.rows.end,
            }));
        }
        // Rows below the lease belong to an earlier range of the lease and count as used.
        let first = unused_from.0.max(self.rows.start);
        self.mark.0 = first;
        if unused_rows.keep_leased {
            return Ok(0);
        }
        let returned = first..self.rows.end;
        self.rows = first..first;
        let count = returned.end - returned.start;
        pool.return_rows(returned);
        Ok(count)
    }
}

impl Pool {
    /// Takes up to `count` consecutive rows, which start at `start`. If no row is available at `start` and `may_jump` is
    /// true, takes the lowest available rows above `start`.
    fn take(&mut self, start: u32, count: u32, may_jump: bool) -> Option<Range<u32>> {
        let index = self
            .unleased
            .iter()
            .position(|range| range.start == start || may_jump && range.start >= start);
        if let Some(index) = index {
            let range = self.unleased.get_mut(index)?;
            let rows = range.start..range.end.min(range.start.saturating_add(count));
            range.start = rows.end;
            self.unleased.retain(|range| !range.is_empty());
            return Some(rows);
        }
        let indices = self.info.indices();
        let floor = self.info.idx_floor.0.max(indices.start);
        if floor != start && !may_jump {
            return None;
        }
        let rows = floor.max(start)..floor.max(start).saturating_add(count).min(indices.end);
        if rows.is_empty() {
            return None;
        }
        // Other gateways can use the skipped rows.
        let skipped = floor..rows.start;
        if !skipped.is_empty() {
            self.unleased.push(skipped);
        }
        self.raise_floor(rows.end);
        Some(rows)
    }

    fn raise_floor(&mut self, floor: u32) {
        if floor > self.info.idx_floor.0 {
            self.move_floor(floor);
        }
    }

    fn move_floor(&mut self, floor: u32) {
        self.info.idx_floor = RowIndex(floor);
        self.info.floor_version = self.info.floor_version.saturating_add(1);
    }

    /// Adds rows to the unleased ranges, merges adjacent ranges, and lowers the floor if the last range ends at the floor.
    fn return_rows(&mut self, rows: Range<u32>) {
        if rows.is_empty() {
            return;
        }
        self.unleased.push(rows);
        self.unleased.sort_unstable_by_key(|range| range.start);
        self.unleased.dedup_by(|next, range| {
            let is_adjacent = range.end == next.start;
            if is_adjacent {
                range.end = next.end;
            }
            is_adjacent
        });
        if let Some(last) = self.unleased.pop_if(|last| last.end == self.info.idx_floor.0) {
            self.move_floor(last.start);
        }
    }
}
