//! What becomes of a lease: no database, no clock, only numbers.

use std::ops::Range;

use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex};
use linewarden_protocol::nonce::Statement;

use super::{Granted, LeaseRequest, Settlement};
use crate::credentials::POOL_ROWS_MAX;
use crate::device::DeviceInfo;
use crate::error::{RegistryError, Result};
use crate::gateway::Fence;

/// How many gateways may still spend rows that the lost registry leased to them. The first lease after a restore leaves room for as many
/// leases above the last row that the device has answered and above all that the restored state knows as leased, for theirs may begin at
/// either: no other gateway is given a row of theirs.
const UNAWARE_GATEWAYS: u32 = 2;
/// No pool has more rows, so no statement lies further above the first row ([`crate::credentials::POOL_ROWS_MAX`]).
const STATED_MAX: u32 = POOL_ROWS_MAX as u32;

/// What a gateway holds of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Whose rows these are.
    pub device: DeviceId,
    /// Who may spend them.
    pub gateway: GatewayId,
    /// The registration that spends the rows below the mark.
    pub fence: u64,
    /// The credentials that they belong to.
    pub epoch: u32,
    /// The rows; empty after they were given back. Its end is the number after the highest row that the gateway may ever
    /// have used. In key mode one number, from which the gateway counts.
    pub rows: Range<u32>,
    /// Rows below it may have been used; the others have not. Within `rows`, or at its end.
    pub mark: RowIndex,
}

/// A device's rows that nobody holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pool {
    pub(super) info: DeviceInfo,
    /// Below the floor, in ascending order, none touching another or the floor.
    pub(super) spare: Vec<Range<u32>>,
    /// Nobody has been leased any of them since the registry was put back to an earlier state.
    pub(super) is_put_back: bool,
}

impl Lease {
    pub(super) fn none(fence: &Fence, info: &DeviceInfo) -> Self {
        let start = info.indices().start;
        Self {
            device: info.device,
            gateway: fence.gateway(),
            fence: fence.number(),
            epoch: info.epoch,
            rows: start..start,
            mark: RowIndex(start),
        }
    }

    /// Whether anything of the device's present credentials is held: not before its first authentication at the gateway, nor
    /// after all was given back.
    pub(super) fn is_of(&self, info: &DeviceInfo) -> bool {
        self.epoch == info.epoch && !self.rows.is_empty()
    }

    /// The lease as the process with that fence finds it. Of credentials that were replaced nothing is held: their rows
    /// are other ones. And what lies below the mark is not the process's to speak of if another one has spent from it.
    pub(super) fn found_by(self, fence: &Fence, info: &DeviceInfo) -> Self {
        if self.epoch != info.epoch {
            return Self::none(fence, info);
        }
        let first = match self.fence == fence.number() {
            true => self.rows.start,
            false => self.mark.0,
        };
        Self {
            fence: fence.number(),
            rows: first..self.rows.end,
            ..self
        }
    }

    /// Adds rows and moves the mark, as far as the pool allows.
    pub(super) fn extend(&mut self, pool: &mut Pool, request: &LeaseRequest) -> Result<Granted> {
        let device = self.device;
        pool.info.admit()?;
        let rows = match pool.info.mode {
            // Nothing is spent, and freshness protects a number that an earlier process has used. What the gateway itself
            // has used since it started lies below the floor once it has settled.
            Mode::Key => {
                let floor = pool.info.idx_floor;
                self.rows = floor.0..floor.0.saturating_add(1);
                self.mark = floor;
                self.rows.clone()
            }
            Mode::Pool => {
                let of_these = u32::from(request.epoch == self.epoch);
                let (from, received) = (request.from.0 * of_these, request.received.0 * of_these);
                let unused = self.begin_above(pool, request);
                self.skip_to(pool, from);
                self.add(pool, from, received, request.hold);
                self.raise_mark(from, request.ahead);
                pool.put_back(unused);
                if self.rows.is_empty() || from >= self.rows.end {
                    return Err(RegistryError::RowsExhausted {
                        device,
                        rows_end: pool.info.indices().end,
                    });
                }
                match received >= self.rows.start && received <= self.rows.end {
                    true => received..self.rows.end,
                    // The lease went on elsewhere.
                    false => self.rows.clone(),
                }
            }
        };
        Ok(Granted {
            device,
            mode: pool.info.mode,
            suite: pool.info.suite,
            epoch: self.epoch,
            held: self.rows.clone(),
            rows,
            mark: self.mark,
        })
    }

    /// The gateway knows of used rows that the registry does not: an old copy of the file was put back.
    fn skip_to(&mut self, pool: &mut Pool, from: u32) {
        let from = from.min(pool.info.indices().end);
        self.mark.0 = self.mark.0.max(from);
        if from > self.rows.end {
            self.rows = from..from;
            pool.raise_floor(from);
            pool.spare.retain(|range| range.start >= from);
        }
    }

    /// The device has answered rows that were leased to nobody, or was offered one that it has answered: its last proof was lost, or an
    /// old copy of the registry was put back. Its lease begins above all that it has answered, and above all that was leased. A lease that
    /// begins there already stays, so that the same proof again gets the same rows. A statement beyond the last row says nothing by
    /// itself; with a refused row, or after a return to an earlier state, no row is left: rows were added since that state. One beyond
    /// any pool's last row is no statement. Rows that the lease leaves behind unused.
    fn begin_above(&mut self, pool: &mut Pool, request: &LeaseRequest) -> Range<u32> {
        let (rows, floor) = (pool.info.indices(), pool.info.idx_floor.0);
        let stated = request.stated.unanswered_from.0;
        let Statement {
            unanswered_from: RowIndex(row),
            has_refused,
        } = match stated.saturating_sub(rows.start) > STATED_MAX {
            true => Statement::default(),
            false => request.stated,
        };
        let is_used = row > 0 || floor > rows.start;
        let is_first = std::mem::take(&mut pool.is_put_back) && is_used;
        // It refuses only what lies below its statement.
        let is_refused = has_refused && self.rows.start < row;
        let is_unknown = row > floor && row <= rows.end;
        if !is_unknown && !is_refused && !is_first {
            return 0..0;
        }
        let mut start = row.min(rows.end).max(floor);
        if is_first {
            let unaware = request.hold.saturating_mul(UNAWARE_GATEWAYS);
            start = start.saturating_add(unaware).min(rows.end);
        }
        let unused = self.mark.0..self.rows.end;
        self.rows = start..start;
        self.mark.0 = start;
        pool.raise_floor(start);
        unused
    }

    fn add(&mut self, pool: &mut Pool, from: u32, received: u32, hold: u32) {
        let count = hold.saturating_sub(self.rows.end - from.clamp(self.rows.start, self.rows.end));
        if count == 0 {
            return;
        }
        // All of it is at the gateway and may be spent already, so nothing that is held back is lost by going on elsewhere.
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

    /// The rows from `unused_from` on were never used and lie in no data plane any more: they are kept for the gateway, or
    /// go back to the pool. How many went back.
    pub(super) fn settle(&mut self, pool: &mut Pool, settlement: &Settlement) -> Result<u32> {
        let unused_from = settlement.unused_from;
        if settlement.epoch != self.epoch {
            return Ok(0);
        }
        if pool.info.mode == Mode::Key {
            // Whoever serves the device next begins above all that was used: no message of that time fits again.
            pool.raise_floor(unused_from.0);
            let floor = pool.info.idx_floor.0;
            self.rows = floor..floor.saturating_add(u32::from(settlement.keep));
            self.mark.0 = floor;
            return Ok(0);
        }
        if unused_from.0 > self.rows.end {
            return Err(RegistryError::NotLeased {
                device: self.device,
                gateway: self.gateway,
                unused_from: unused_from.0,
                rows_start: self.rows.start,
                rows_end: self.rows.end,
            });
        }
        // Lower ones are of a range that was left behind when the lease went on elsewhere: they stay spent.
        let first = unused_from.0.max(self.rows.start);
        self.mark.0 = first;
        if settlement.keep {
            return Ok(0);
        }
        let back = first..self.rows.end;
        self.rows = first..first;
        let count = back.end - back.start;
        pool.put_back(back);
        Ok(count)
    }
}

impl Pool {
    /// Up to `count` rows from `at` on; if there are none just there and `may_jump`, the lowest ones after it.
    fn take(&mut self, at: u32, count: u32, may_jump: bool) -> Option<Range<u32>> {
        let found = self
            .spare
            .iter()
            .position(|range| range.start == at || may_jump && range.start >= at);
        if let Some(found) = found {
            let range = self.spare.get_mut(found)?;
            let taken = range.start..range.end.min(range.start.saturating_add(count));
            range.start = taken.end;
            self.spare.retain(|range| !range.is_empty());
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
        // Numbers that this gateway may use no more are still good for others.
        let passed_over = floor..taken.start;
        if !passed_over.is_empty() {
            self.spare.push(passed_over);
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

    fn put_back(&mut self, rows: Range<u32>) {
        if rows.is_empty() {
            return;
        }
        self.spare.push(rows);
        self.spare.sort_unstable_by_key(|range| range.start);
        self.spare.dedup_by(|next, range| {
            let touches = range.end == next.start;
            if touches {
                range.end = next.end;
            }
            touches
        });
        if let Some(last) = self.spare.pop_if(|last| last.end == self.info.idx_floor.0) {
            self.move_floor(last.start);
        }
    }
}
