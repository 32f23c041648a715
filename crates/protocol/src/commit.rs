//! The commit word of a device's line (LAP/1 1.4.3): `idx u32 | gen u24 | flags u8`.
//!
//! Only the commit word decides which CPU spends a row. A CPU loads the word, verifies the RESPONSE, and then
//! compares-and-swaps the *whole* word to [`CommitWord::with_row_spent`]. The CPU that succeeds, the *winner*, owns the
//! line until it clears BUSY with [`CommitWord::with_busy_cleared`]. `idx` never decreases; `gen` only counts up,
//! modulo 2^24.
//!
//! The layout is shared with C: `idx << 32 | gen << 8 | credit << 4 | flags`.
//!
//! The *credit* is the number of rows that may still be spent before user space moves the device's durable mark
//! (LAP/1 1.4.6). The rows of a whole lease are available, but a crash can lose only a few of them.

use core::fmt;

use crate::ids::RowIndex;

/// One device's commit word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CommitWord(pub u64);

/// The current row (or key) is present and unspent.
pub const VALID: u64 = 1;
/// A winner is writing the line.
pub const BUSY: u64 = 2;
/// The device is revoked; read on each packet (LAP/1 1.4.8).
pub const REVOKED: u64 = 4;
/// Key mode: the row is kept after a successful authentication.
pub const KEY: u64 = 8;
/// The credit's bits.
pub const CREDIT: u64 = 0xf0;
/// A credit that is not counted: key mode, and rows without a mark.
pub const UNLIMITED: u64 = CREDIT;
/// The maximum of a counted credit.
pub const CREDIT_MAX: u32 = 14;

const CREDIT_SHIFT: u32 = 4;
const CREDIT_ONE: u64 = 1 << CREDIT_SHIFT;

const IDX_SHIFT: u32 = 32;
const GEN_SHIFT: u32 = 8;
const GEN_MASK: u64 = 0xff_ffff;

impl CommitWord {
    /// A word from its parts; only the low 24 bits of `generation` are kept.
    #[must_use]
    pub fn new(idx: RowIndex, generation: u32, flags: u64) -> Self {
        Self(u64::from(idx.0) << IDX_SHIFT | (u64::from(generation) & GEN_MASK) << GEN_SHIFT | (flags & 0xff))
    }

    /// Number of the current row; offered in a CHALLENGE if VALID.
    #[must_use]
    pub fn idx(self) -> RowIndex {
        RowIndex(u32::try_from(self.0 >> IDX_SHIFT).unwrap_or(u32::MAX))
    }

    /// Number of commits on this line, modulo 2^24. Its low 8 bits are the generation of the window.
    #[must_use]
    pub fn generation(self) -> u32 {
        u32::try_from(self.0 >> GEN_SHIFT & GEN_MASK).unwrap_or_default()
    }

    /// The 8 bits of the generation that the window word carries.
    #[must_use]
    pub fn window_generation(self) -> u8 {
        let [low, ..] = self.generation().to_le_bytes();
        low
    }

    /// Whether [`VALID`] is set.
    #[must_use]
    pub fn is_valid(self) -> bool {
        self.0 & VALID != 0
    }

    /// Whether [`BUSY`] is set.
    #[must_use]
    pub fn is_busy(self) -> bool {
        self.0 & BUSY != 0
    }

    /// Whether [`REVOKED`] is set.
    #[must_use]
    pub fn is_revoked(self) -> bool {
        self.0 & REVOKED != 0
    }

    /// Whether [`KEY`] is set.
    #[must_use]
    pub fn is_key_mode(self) -> bool {
        self.0 & KEY != 0
    }

    /// Whether the mark allows spending a row now.
    #[must_use]
    pub fn has_credit(self) -> bool {
        self.0 & CREDIT != 0
    }

    /// Rows that may be spent before the mark moves; `None` if they are not counted.
    #[must_use]
    pub fn credit(self) -> Option<u32> {
        let credit = self.0 & CREDIT;
        (credit != UNLIMITED).then_some(u32::try_from(credit >> CREDIT_SHIFT).unwrap_or(CREDIT_MAX))
    }

    /// The word with the credit that `mark` allows for its idx, at most [`CREDIT_MAX`]. `None` means no mark.
    #[must_use]
    pub fn with_credit_up_to(self, mark: Option<RowIndex>) -> Self {
        let bits = match mark {
            None => UNLIMITED,
            Some(mark) => u64::from(mark.0.saturating_sub(self.idx().0).min(CREDIT_MAX)) << CREDIT_SHIFT,
        };
        Self(self.0 & !CREDIT | bits)
    }

    /// Whether neither VALID nor BUSY is set. User space may fill the line only in this state.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 & (VALID | BUSY) == 0
    }

    /// The word that the winning CPU swaps in: idx+1, gen+1, credit-1 if the credit is counted, VALID→BUSY. `None` if
    /// the row cannot be spent: not VALID, BUSY, REVOKED, no credit, or idx is the largest number.
    #[must_use]
    pub fn with_row_spent(self) -> Option<Self> {
        if !self.is_valid() || self.is_busy() || self.is_revoked() || !self.has_credit() {
            return None;
        }
        let idx = RowIndex(self.idx().0.checked_add(1)?);
        let credit_spent = self.credit().map_or(0, |_| CREDIT_ONE);
        let flags = ((self.0 & 0xff & !VALID) | BUSY) - credit_spent;
        Some(Self::new(idx, self.generation().wrapping_add(1), flags))
    }

    /// The word that the winning CPU leaves: BUSY cleared, VALID set if a next row is in place (`has_row`). REVOKED may
    /// have been set meanwhile and is kept: on shared memory, the change is one atomic XOR (or AND), never a store.
    #[must_use]
    pub fn with_busy_cleared(self, has_row: bool) -> Self {
        if has_row {
            Self(self.0 ^ (BUSY | VALID))
        } else {
            Self(self.0 & !BUSY)
        }
    }

    /// The word after user space has filled the line at `idx`. `None` unless the line is empty and not revoked, and
    /// `idx` is not below the line's index.
    #[must_use]
    pub fn with_row_filled(self, idx: RowIndex) -> Option<Self> {
        let allowed = self.is_empty() && !self.is_revoked() && idx >= self.idx();
        allowed.then(|| Self::new(idx, self.generation(), (self.0 & 0xff) | VALID))
    }

    /// The word with REVOKED set.
    #[must_use]
    pub fn with_revoked(self) -> Self {
        Self(self.0 | REVOKED)
    }
}

impl fmt::Debug for CommitWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommitWord(idx {}, gen {}", self.idx(), self.generation())?;
        for (bit, name) in [
            (VALID, "VALID"),
            (BUSY, "BUSY"),
            (REVOKED, "REVOKED"),
            (KEY, "KEY"),
        ] {
            if self.0 & bit != 0 {
                write!(f, ", {name}")?;
            }
        }
        if let Some(credit) = self.credit() {
            write!(f, ", credit {credit}")?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_layout_is_idx_gen_flags_from_the_top() {
        let word = CommitWord::new(RowIndex(0x0102_0304), 0x0a0b_0c0d, VALID | KEY | (3 * CREDIT_ONE));
        assert_eq!(word.0, 0x0102_0304_0b0c_0d39);
        assert_eq!(word.window_generation(), 0x0d);
        assert_eq!(
            alloc::format!("{word:?}"),
            "CommitWord(idx 16909060, gen 723981, VALID, KEY, credit 3)"
        );
    }

    proptest! {
        #[test]
        fn spending_a_row_and_clearing_busy_only_move_forward(raw: u64, has_row: bool, is_revoked_in_between: bool) {
            let word = CommitWord(raw);
            let is_spendable =
                raw & (VALID | BUSY | REVOKED) == VALID && raw & CREDIT != 0 && word.idx().0 != u32::MAX;
            prop_assert_eq!(word.with_row_spent().is_some(), is_spendable);
            if let Some(committed) = word.with_row_spent() {
                prop_assert_eq!(committed.idx().0, word.idx().0 + 1);
                prop_assert_eq!(committed.generation(), (word.generation() + 1) & 0xff_ffff);
                prop_assert!(committed.is_busy() && !committed.is_valid() && committed.with_row_spent().is_none());
                prop_assert_eq!(committed.credit(), word.credit().map(|credit| credit - 1));
                let busy_word = if is_revoked_in_between { committed.with_revoked() } else { committed };
                let released = busy_word.with_busy_cleared(has_row);
                prop_assert_eq!(released.is_valid(), has_row);
                prop_assert!(!released.is_busy());
                prop_assert_eq!(released.is_revoked(), is_revoked_in_between);
                prop_assert_eq!(released.is_key_mode(), word.is_key_mode());
                prop_assert_eq!((released.idx(), released.generation()), (committed.idx(), committed.generation()));
            }
        }

        #[test]
        fn a_mark_allows_the_rows_below_it(raw: u64, ahead in 0..40u32) {
            let word = CommitWord(raw);
            let mark = RowIndex(word.idx().0.saturating_add(ahead));
            let granted = word.with_credit_up_to(Some(mark));
            prop_assert_eq!(granted.credit(), Some((mark.0 - word.idx().0).min(CREDIT_MAX)));
            prop_assert_eq!(granted.0 & !CREDIT, raw & !CREDIT);
            prop_assert_eq!(word.with_credit_up_to(Some(RowIndex(0))).has_credit(), false);
            prop_assert_eq!(word.with_credit_up_to(None).credit(), None);
        }

        #[test]
        fn only_an_empty_unrevoked_line_is_filled_and_never_lowered(raw: u64, idx: u32) {
            let word = CommitWord(raw);
            let filled = word.with_row_filled(RowIndex(idx));
            prop_assert_eq!(filled.is_some(), raw & (VALID | BUSY | REVOKED) == 0 && idx >= word.idx().0);
            if let Some(filled) = filled {
                prop_assert_eq!(filled.0 & 0xffff_ffff, (raw & 0xffff_ffff) | VALID);
                prop_assert_eq!(filled.idx().0, idx);
            }
        }
    }
}
