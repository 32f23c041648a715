//! What the machine remembers across handshakes: when it may spend a row, and which rows are spent.

use crate::ids::{GatewayId, Mode, RowIndex};

use super::types::MAX_GATEWAYS;

/// Least time between two unplanned re-authentications in pool mode, ms (LAP/1 1.5).
pub const UNPLANNED_INTERVAL_MS: u64 = 600_000;

/// Readings of the PUF at once, when none was begun for a while (LAP/1 1.5).
pub const READINGS_AT_ONCE: u64 = 4;
/// After so long one more reading may begin, ms (LAP/1 1.5).
pub const READING_INTERVAL_MS: u64 = 1_000;

/// Bounds how often the PUF is read for forged CHALLENGEs: a bucket of [`READINGS_AT_ONCE`] that gains one each
/// [`READING_INTERVAL_MS`], and is full again when a CHALLENGE has verified. An empty bucket ends nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Readings {
    /// When the bucket is full again.
    full_at_ms: u64,
}

impl Readings {
    /// From when on a reading may begin.
    pub(super) fn due_ms(&self) -> u64 {
        self.full_at_ms
            .saturating_sub((READINGS_AT_ONCE - 1) * READING_INTERVAL_MS)
    }

    /// Counts a reading that begins now.
    pub(super) fn spend(&mut self, now_ms: u64) {
        self.full_at_ms = self.full_at_ms.max(now_ms).saturating_add(READING_INTERVAL_MS);
    }

    /// The reading that was counted last was not made.
    pub(super) fn give_back(&mut self) {
        self.full_at_ms = self.full_at_ms.saturating_sub(READING_INTERVAL_MS);
    }
}

/// Bounds how many rows somebody on the path can make a pool-mode device spend.
///
/// A RESPONSE may cost a row, a REQUEST never does, so RESPONSEs are what is counted: the first since start is free,
/// each lease that an ACK granted entitles to one more once its renewal is due (*planned*), and all others are
/// *unplanned*, one per [`UNPLANNED_INTERVAL_MS`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    responded: bool,
    planned_from_ms: Option<u64>,
    unplanned_at_ms: Option<u64>,
}

impl Budget {
    /// The earliest time, from `now_ms` on, at which a handshake may begin.
    pub(super) fn earliest_start_ms(&self, mode: Mode, now_ms: u64) -> u64 {
        if mode == Mode::Key || !self.responded {
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

    /// Counts a RESPONSE that leaves now.
    pub(super) fn spend(&mut self, now_ms: u64) {
        if !self.responded {
            self.responded = true;
        } else if self.planned_from_ms.is_some_and(|from| from <= now_ms) {
            self.planned_from_ms = None;
        } else {
            self.unplanned_at_ms = Some(now_ms);
        }
    }

    /// An ACK granted a lease whose renewal is due at `renew_at_ms`.
    pub(super) fn entitle(&mut self, renew_at_ms: u64) {
        self.planned_from_ms = Some(renew_at_ms);
    }
}

/// The lowest row that each of the last [`MAX_GATEWAYS`] gateways may still ask for.
///
/// A row that was answered but not acknowledged may be asked for again, under a new nonce: its RESPONSE may never
/// have arrived. A row whose ACK verified is spent, and so are all before it. Whoever asks for one again holds an old
/// copy of that gateway's rows, and gets nothing. Gateways have ranges of their own, in any order, so each has its
/// own mark. The marks live in memory only: a registry restored from a backup must not lock devices out for good.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Floors {
    marks: [Option<(GatewayId, u64)>; MAX_GATEWAYS],
}

impl Floors {
    /// Whether that gateway may ask for that row.
    pub(super) fn allows(&self, gateway: GatewayId, idx: RowIndex) -> bool {
        self.of(gateway).is_none_or(|floor| u64::from(idx.0) >= floor)
    }

    /// How far a row lies above the lowest one that its gateway may ask for; `None` of a gateway that is not known.
    pub(super) fn ahead(&self, gateway: GatewayId, idx: RowIndex) -> Option<u64> {
        u64::from(idx.0).checked_sub(self.of(gateway)?)
    }

    fn of(&self, gateway: GatewayId) -> Option<u64> {
        let mut marks = self.marks.iter().flatten();
        marks.find(|(of, _)| *of == gateway).map(|(_, floor)| *floor)
    }

    /// Notes that the gateway accepted that row. The mark longest unused makes room.
    pub(super) fn raise(&mut self, gateway: GatewayId, idx: RowIndex) {
        let above = u64::from(idx.0) + 1;
        let known = self
            .marks
            .iter()
            .position(|mark| matches!(mark, Some((of, _)) if *of == gateway));
        let place = known.unwrap_or(MAX_GATEWAYS - 1);
        let floor = match self.marks.get(place).copied().flatten() {
            Some((of, floor)) if of == gateway => floor.max(above),
            _ => above,
        };
        if let Some(upto) = self.marks.get_mut(..=place) {
            upto.rotate_right(1);
        }
        self.marks[0] = Some((gateway, floor));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floors_rise_per_gateway_and_never_fall() {
        let mut floors = Floors::default();
        floors.raise(GatewayId(1), RowIndex(7));
        floors.raise(GatewayId(2), RowIndex(100));
        floors.raise(GatewayId(1), RowIndex(3));
        assert!(!floors.allows(GatewayId(1), RowIndex(7)));
        assert!(floors.allows(GatewayId(1), RowIndex(8)));
        assert!(!floors.allows(GatewayId(2), RowIndex(100)));
        assert!(floors.allows(GatewayId(3), RowIndex(0)));
    }

    #[test]
    fn the_mark_longest_unused_makes_room() {
        let mut floors = Floors::default();
        for gateway in 1..=4 {
            floors.raise(GatewayId(gateway), RowIndex(9));
        }
        floors.raise(GatewayId(1), RowIndex(10));
        floors.raise(GatewayId(5), RowIndex(9));
        assert!(floors.allows(GatewayId(2), RowIndex(0)), "gateway 2 is forgotten");
        for (gateway, floor) in [(1, 11), (3, 10), (4, 10), (5, 10)] {
            assert!(!floors.allows(GatewayId(gateway), RowIndex(floor - 1)));
            assert!(floors.allows(GatewayId(gateway), RowIndex(floor)));
        }
    }

    #[test]
    fn the_last_row_leaves_nothing_to_ask_for() {
        let mut floors = Floors::default();
        floors.raise(GatewayId(1), RowIndex(u32::MAX));
        assert!(!floors.allows(GatewayId(1), RowIndex(u32::MAX)));
    }

    #[test]
    fn the_first_is_free_a_lease_entitles_to_one_and_others_wait_ten_minutes() {
        let mut budget = Budget::default();
        assert_eq!(budget.earliest_start_ms(Mode::Pool, 5), 5);
        budget.spend(5);
        assert_eq!(budget.earliest_start_ms(Mode::Pool, 6), 6, "the one unplanned");
        budget.spend(6);
        assert_eq!(budget.earliest_start_ms(Mode::Pool, 7), 6 + UNPLANNED_INTERVAL_MS);
        assert_eq!(budget.earliest_start_ms(Mode::Key, 7), 7);
        budget.entitle(1_000);
        assert_eq!(budget.earliest_start_ms(Mode::Pool, 7), 1_000);
        budget.spend(1_000);
        assert_eq!(
            budget.earliest_start_ms(Mode::Pool, 1_001),
            6 + UNPLANNED_INTERVAL_MS
        );
    }
}
