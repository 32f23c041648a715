//! State of the machine across handshakes: when it may spend a row, and which rows are spent.

use crate::ids::{GatewayId, Mode, RowIndex};

use super::types::MAX_GATEWAYS;

/// Minimum time between two unplanned re-authentications in pool mode, ms (LAP/1 1.5).
pub const UNPLANNED_INTERVAL_MS: u64 = 600_000;

/// Maximum number of PUF readings without a pause (LAP/1 1.5).
pub const READINGS_AT_ONCE: u64 = 4;
/// Interval after which one more reading is allowed, ms (LAP/1 1.5).
pub const READING_INTERVAL_MS: u64 = 1_000;

/// Limits how often forged CHALLENGEs cause a PUF reading: a token bucket of [`READINGS_AT_ONCE`] that gains one
/// token per [`READING_INTERVAL_MS`] and is full again after a CHALLENGE verified. An empty bucket does not end a
/// handshake.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadingLimiter {
    /// When the bucket is full again.
    full_at_ms: u64,
}

impl ReadingLimiter {
    /// The earliest time of the next reading.
    pub(super) fn next_allowed_ms(&self) -> u64 {
        self.full_at_ms
            .saturating_sub((READINGS_AT_ONCE - 1) * READING_INTERVAL_MS)
    }

    /// Counts a reading that begins now.
    pub(super) fn spend(&mut self, now_ms: u64) {
        self.full_at_ms = self.full_at_ms.max(now_ms).saturating_add(READING_INTERVAL_MS);
    }

    /// Refunds the last counted reading, which did not take place.
    pub(super) fn refund(&mut self) {
        self.full_at_ms = self.full_at_ms.saturating_sub(READING_INTERVAL_MS);
    }
}

/// Limits how many rows an attacker on the path can make a pool-mode device spend.
///
/// A RESPONSE may cost a row, a REQUEST never does, so the budget counts RESPONSEs. The first RESPONSE after the start
/// is free. Each session lifetime that an ACK granted allows another RESPONSE once its renewal is due (*planned*). All
/// other RESPONSEs are *unplanned*: one per [`UNPLANNED_INTERVAL_MS`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HandshakeBudget {
    has_responded: bool,
    planned_from_ms: Option<u64>,
    unplanned_at_ms: Option<u64>,
}

impl HandshakeBudget {
    /// The earliest time, from `now_ms` on, at which a handshake may begin.
    pub(super) fn earliest_start_ms(&self, mode: Mode, now_ms: u64) -> u64 {
        if mode == Mode::Key || !self.has_responded {
            return now_ms;
        }
        let unplanned = self
            .unplanned_at_ms
            .map_or(0, |at| at.saturating_add(UNPLANNED_INTERVAL_MS));
        let allowed = self
            .planned_from_ms
            .map_or(unplanned, |planned| planned.min(unplanned));
        allowed.max(now_ms)
    }

    /// Counts a RESPONSE that is sent now.
    pub(super) fn spend(&mut self, now_ms: u64) {
        if !self.has_responded {
            self.has_responded = true;
        } else if self.planned_from_ms.is_some_and(|from| from <= now_ms) {
            self.planned_from_ms = None;
        } else {
            self.unplanned_at_ms = Some(now_ms);
        }
    }

    /// Records that an ACK granted a session whose renewal is due at `renew_at_ms`.
    pub(super) fn plan_renewal(&mut self, renew_at_ms: u64) {
        self.planned_from_ms = Some(renew_at_ms);
    }
}

/// The lowest row that each of the last [`MAX_GATEWAYS`] gateways may still offer.
///
/// A gateway may offer a row again under a new nonce if the device responded and received no ACK: the RESPONSE may be
/// lost. A row whose ACK verified is spent, and so are all rows before it. A gateway that offers such a row has an
/// old copy of its rows and gets no RESPONSE. Gateways have separate ranges in any order, so each has its own floor.
/// The floors are in memory only: a registry restored from a backup must not lock out devices permanently.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RowFloors {
    lowest_rows: [Option<(GatewayId, u64)>; MAX_GATEWAYS],
}

impl RowFloors {
    /// Whether this gateway may offer this row.
    pub(super) fn allows(&self, gateway: GatewayId, idx: RowIndex) -> bool {
        self.floor_of(gateway)
            .is_none_or(|floor| u64::from(idx.0) >= floor)
    }

    /// Distance of a row from the lowest row that its gateway may offer; `None` for an unknown gateway.
    pub(super) fn distance(&self, gateway: GatewayId, idx: RowIndex) -> Option<u64> {
        u64::from(idx.0).checked_sub(self.floor_of(gateway)?)
    }

    fn floor_of(&self, gateway: GatewayId) -> Option<u64> {
        let mut entries = self.lowest_rows.iter().flatten();
        entries
            .find(|(known_gateway, _)| *known_gateway == gateway)
            .map(|(_, floor)| *floor)
    }

    /// Records that the gateway accepted this row. If there is no room, the least recently
    /// used entry is dropped.
    pub(super) fn raise(&mut self, gateway: GatewayId, idx: RowIndex) {
        let next_row = u64::from(idx.0) + 1;
        let known = self
            .lowest_rows
            .iter()
            .position(|entry| matches!(entry, Some((known_gateway, _)) if *known_gateway == gateway));
        let index = known.unwrap_or(MAX_GATEWAYS - 1);
        let floor = match self.lowest_rows.get(index).copied().flatten() {
            Some((known_gateway, floor)) if known_gateway == gateway => floor.max(next_row),
            _ => next_row,
        };
        if let Some(entries) = self.lowest_rows.get_mut(..=index) {
            entries.rotate_right(1);
        }
        self.lowest_rows[0] = Some((gateway, floor));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floors_rise_per_gateway_and_never_fall() {
        let mut floors = RowFloors::default();
        floors.raise(GatewayId(1), RowIndex(7));
        floors.raise(GatewayId(2), RowIndex(100));
        floors.raise(GatewayId(1), RowIndex(3));
        assert!(!floors.allows(GatewayId(1), RowIndex(7)));
        assert!(floors.allows(GatewayId(1), RowIndex(8)));
        assert!(!floors.allows(GatewayId(2), RowIndex(100)));
        assert!(floors.allows(GatewayId(3), RowIndex(0)));
    }

    #[test]
    fn the_least_recently_used_floor_is_dropped() {
        let mut floors = RowFloors::default();
        for gateway in 1..=4 {
            floors.raise(GatewayId(gateway), RowIndex(9));
        }
        floors.raise(GatewayId(1), RowIndex(10));
        floors.raise(GatewayId(5), RowIndex(9));
        assert!(
            floors.allows(GatewayId(2), RowIndex(0)),
            "the entry of gateway 2 was dropped"
        );
        for (gateway, floor) in [(1, 11), (3, 10), (4, 10), (5, 10)] {
            assert!(!floors.allows(GatewayId(gateway), RowIndex(floor - 1)));
            assert!(floors.allows(GatewayId(gateway), RowIndex(floor)));
        }
    }

    #[test]
    fn the_last_row_is_not_allowed_after_its_ack() {
        let mut floors = RowFloors::default();
        floors.raise(GatewayId(1), RowIndex(u32::MAX));
        assert!(!floors.allows(GatewayId(1), RowIndex(u32::MAX)));
    }

    #[test]
    fn the_first_handshake_is_free_a_session_allows_one_renewal_and_others_wait_ten_minutes() {
        let mut budget = HandshakeBudget::default();
        assert_eq!(budget.earliest_start_ms(Mode::Pool, 5), 5);
        budget.spend(5);
        assert_eq!(
            budget.earliest_start_ms(Mode::Pool, 6),
            6,
            "one unplanned handshake is allowed"
        );
        budget.spend(6);
        assert_eq!(budget.earliest_start_ms(Mode::Pool, 7), 6 + UNPLANNED_INTERVAL_MS);
        assert_eq!(budget.earliest_start_ms(Mode::Key, 7), 7);
        budget.plan_renewal(1_000);
        assert_eq!(budget.earliest_start_ms(Mode::Pool, 7), 1_000);
        budget.spend(1_000);
        assert_eq!(
            budget.earliest_start_ms(Mode::Pool, 1_001),
            6 + UNPLANNED_INTERVAL_MS
        );
    }
}
