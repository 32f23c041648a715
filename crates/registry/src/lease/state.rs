//! State transitions of a lease, without database and clock.

use std::ops::Range;

use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex};
use linewarden_protocol::nonce::RowStatement;

use super::{LeaseGrant, LeaseRequest, UnusedRows};
use crate::credentials::POOL_ROWS_MAX;
use crate::device::DeviceInfo;
use crate::error::{RegistryError, Result};
use crate::gateway::FencingToken;

/// Number of gateways that may still use rows that the lost registry leased to them. The first lease after a restore
/// leaves room for as many leases above the last row that the device has answered and above all rows that the
/// restored state knows as leased, because lost leases may start at either: their rows are not leased to another
/// gateway.
const UNRECORDED_LEASES_MAX: u32 = 2;
/// Maximum distance of a statement from the first row: no pool has more rows ([`crate::credentials::POOL_ROWS_MAX`]).
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
    /// The rows; empty after they were returned. The end is the number after the highest row that the gateway may
    /// ever have used. In key mode one number, the start of the gateway's counter.
    pub rows: Range<u32>,
    /// Rows below the mark may have been used; the others have not. Within `rows`, or at its end.
    pub mark: RowIndex,
}

/// The rows of a device that are not leased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pool {
    pub(super) info: DeviceInfo,
    /// Ranges below the floor, in ascending order; no two ranges are adjacent, and none is adjacent to the floor.
    pub(super) unleased: Vec<Range<u32>>,
    /// No rows were leased since the registry was restored to an earlier state.
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

    /// Whether the gateway holds rows of the current credentials: not before the first authentication of the device
    /// at the gateway, nor after all rows were returned.
    pub(super) fn is_current(&self, info: &DeviceInfo) -> bool {
        self.epoch == info.epoch && !self.rows.is_empty()
    }

    /// The lease as seen by the process with that fencing token. A lease of replaced credentials is empty. Rows below
    /// the mark are excluded if another process has used them.
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
            // Nothing is used up: freshness protects a number that an earlier process has used. Numbers that the
            // gateway itself has used since its start are below the floor once it has reported its unused rows.
            Mode::Key => {
                let floor = pool.info.idx_floor;
                self.rows = floor.0..floor.0.saturating_add(1);
                self.mark = floor;
                self.rows.clone()
            }
            Mode::Pool => {
                let of_these = u32::from(request.epoch == self.epoch);
                let (from, received) = (request.from.0 * of_these, request.received.0 * of_these);
                let unused = self.start_above_statement(pool, request);
                self.skip_to(pool, from);
                self.add_rows(pool, from, received, request.hold_rows);
                self.raise_mark(from, request.spendable_rows);
                pool.return_rows(unused);
                if self.rows.is_empty() || from >= self.rows.end {
                    return Err(RegistryError::RowsExhausted {
                        device,
                        rows_end: pool.info.indices().end,
                    });
                }
                match received >= self.rows.start && received <= self.rows.end {
                    true => received..self.rows.end,
                    // The lease continued at other rows.
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

    /// The gateway has used rows that the registry does not know as used: an older copy of the registry was restored.
    fn skip_to(&mut self, pool: &mut Pool, from: u32) {
        let from = from.min(pool.info.indices().end);
        self.mark.0 = self.mark.0.max(from);
        if from > self.rows.end {
            self.rows = from..from;
            pool.raise_floor(from);
            pool.unleased.retain(|range| range.start >= from);
        }
    }

    /// The device has answered rows that were not leased, or was offered a row that it has answered: its last proof
    /// was lost, or an older copy of the registry was restored. The lease then starts above all rows that the device
    /// has answered and above all rows that were leased. A lease that already starts there is kept, so that a
    /// repeated proof gets the same rows. A statement beyond the last row has no effect by itself; with a refused
    /// row, or after a restore, no row is left, because rows were added since the restored state. A statement beyond
    /// the last row of any possible pool is ignored. Returns the rows that the lease leaves unused.
    fn start_above_statement(&mut self, pool: &mut Pool, request: &LeaseRequest) -> Range<u32> {
        let (rows, floor) = (pool.info.indices(), pool.info.idx_floor.0);
        let stated = request.statement.first_unanswered_row.0;
        let RowStatement {
            first_unanswered_row: RowIndex(row),
            has_refused_row: has_refused,
        } = match stated.saturating_sub(rows.start) > STATEMENT_ROWS_MAX {
            true => RowStatement::default(),
            false => request.statement,
        };
        let is_used = row > 0 || floor > rows.start;
        let is_first = std::mem::take(&mut pool.is_restored) && is_used;
        // The device refuses only rows below its statement.
        let is_refused = has_refused && self.rows.start < row;
        let is_unknown = row > floor && row <= rows.end;
        if !is_unknown && !is_refused && !is_first {
            return 0..0;
        }
        let mut start = row.min(rows.end).max(floor);
        if is_first {
            let unaware = request.hold_rows.saturating_mul(UNRECORDED_LEASES_MAX);
            start = start.saturating_add(unaware).min(rows.end);
        }
        let unused = self.mark.0..self.rows.end;
        self.rows = start..start;
        self.mark.0 = start;
        pool.raise_floor(start);
        unused
    }

    fn add_rows(&mut self, pool: &mut Pool, from: u32, received: u32, hold: u32) {
        let count = hold.saturating_sub(self.rows.end - from.clamp(self.rows.start, self.rows.end));
        if count == 0 {
            return;
        }
        // All rows are at the gateway and may be used, so a jump to other rows loses none.
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

    fn raise_mark(&mut self, from: u32, ahead: u32) {
        let least = from.max(self.rows.start).saturating_add(ahead);
        self.mark.0 = self.mark.0.max(least).min(self.rows.end);
    }

    /// The rows from `unused_from` on are unused and not in the data plane: they are kept for the gateway, or return
    /// to the pool. Returns the number of rows that returned.
    pub(super) fn record_unused_rows(&mut self, pool: &mut Pool, unused_rows: &UnusedRows) -> Result<u32> {
        let unused_from = unused_rows.unused_from;
        if unused_rows.epoch != self.epoch {
            return Ok(0);
        }
        if pool.info.mode == Mode::Key {
            // The next gateway of the device starts above all used numbers: no earlier message is valid again.
            pool.raise_floor(unused_from.0);
            let floor = pool.info.idx_floor.0;
            self.rows = floor..floor.saturating_add(u32::from(unused_rows.keep_leased));
            self.mark.0 = floor;
            return Ok(0);
        }
        if unused_from.0 > self.rows.end {
            return Err(RegistryError::InvalidUnusedRows {
                device: self.device,
                gateway: self.gateway,
                unused_from: unused_from.0,
                rows_start: self.rows.start,
                rows_end: self.rows.end,
            });
        }
        // Lower rows are of a range that the lease left behind: they count as used.
        let first = unused_from.0.max(self.rows.start);
        self.mark.0 = first;
        if unused_rows.keep_leased {
            return Ok(0);
        }
        let back = first..self.rows.end;
        self.rows = first..first;
        let count = back.end - back.start;
        pool.return_rows(back);
        Ok(count)
    }
}

impl Pool {
    /// Up to `count` rows from `at` on; if there are none at that position and `may_jump`, the lowest ones after it.
    fn take(&mut self, at: u32, count: u32, may_jump: bool) -> Option<Range<u32>> {
        let found = self
            .unleased
            .iter()
            .position(|range| range.start == at || may_jump && range.start >= at);
        if let Some(found) = found {
            let range = self.unleased.get_mut(found)?;
            let taken = range.start..range.end.min(range.start.saturating_add(count));
            range.start = taken.end;
            self.unleased.retain(|range| !range.is_empty());
            return Some(taken);
        }
        let indices = self.info.indices();
        let floor = self.info.idx_floor.0.max(indices.start);
        if floor != at && !may_jump {
            return None;
        }
        let taken = floor.max(at)..floor.max(at).saturating_add(count).min(indices.end);
        if taken.is_empty() {
            return None;
        }
        // Other gateways can use the skipped numbers.
        let passed_over = floor..taken.start;
        if !passed_over.is_empty() {
            self.unleased.push(passed_over);
        }
        self.raise_floor(taken.end);
        Some(taken)
    }

    fn raise_floor(&mut self, to: u32) {
        if to > self.info.idx_floor.0 {
            self.move_floor(to);
        }
    }

    fn move_floor(&mut self, to: u32) {
        self.info.idx_floor = RowIndex(to);
        self.info.floor_version = self.info.floor_version.saturating_add(1);
    }

    fn return_rows(&mut self, rows: Range<u32>) {
        if rows.is_empty() {
            return;
        }
        self.unleased.push(rows);
        self.unleased.sort_unstable_by_key(|range| range.start);
        self.unleased.dedup_by(|next, range| {
            let touches = range.end == next.start;
            if touches {
                range.end = next.end;
            }
            touches
        });
        if let Some(last) = self.unleased.pop_if(|last| last.end == self.info.idx_floor.0) {
            self.move_floor(last.start);
        }
    }
}
