//! The statement in the nonce of a pool-mode REQUEST: the rows that the device has already responded to (LAP/1 1.3).
//!
//! The tags of CHALLENGE and RESPONSE cover the nonce. If an attacker modifies the statement, the CHALLENGE does not
//! verify; a RESPONSE that verifies also proves that the device made the statement.

use crate::ids::RowIndex;

/// Flag of [`RowStatement::has_refused_row`], in the statement's first byte.
const HAS_REFUSED: u32 = 1 << 31;

/// A device's statement about its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowStatement {
    /// The lowest row above all rows that the device responded to; 0: no statement. Below 2^31.
    pub first_unanswered_row: RowIndex,
    /// Whether, since the last session, a gateway has offered a row to which the device refuses to respond again.
    pub has_refused_row: bool,
}

impl Default for RowStatement {
    /// The empty statement.
    fn default() -> Self {
        Self {
            first_unanswered_row: RowIndex(0),
            has_refused_row: false,
        }
    }
}

impl RowStatement {
    /// The statement in a nonce.
    #[must_use]
    pub fn from_nonce(nonce: &[u8; 16]) -> Self {
        let [_, _, _, _, _, _, _, _, a, b, c, d, ..] = *nonce;
        let word = u32::from_be_bytes([a, b, c, d]);
        Self {
            first_unanswered_row: RowIndex(word & !HAS_REFUSED),
            has_refused_row: word & HAS_REFUSED != 0,
        }
    }

    /// Returns the nonce with this statement. A row from 2^31 on cannot be stated, and becomes 0.
    #[must_use]
    pub fn write_into(self, nonce: [u8; 16]) -> [u8; 16] {
        let row = match self.first_unanswered_row.0 {
            row @ 0..HAS_REFUSED => row,
            _ => 0,
        };
        let flag = if self.has_refused_row { HAS_REFUSED } else { 0 };
        let [n0, n1, n2, n3, n4, n5, n6, n7, _, _, _, _, n12, n13, n14, n15] = nonce;
        let [a, b, c, d] = (row | flag).to_be_bytes();
        [n0, n1, n2, n3, n4, n5, n6, n7, a, b, c, d, n12, n13, n14, n15]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statement_is_bytes_8_to_12_in_network_order() {
        for (row, has_refused, first) in [(0x0102_0304, false, 1), (0x0102_0304, true, 0x81), (0, false, 0)] {
            let statement = RowStatement {
                first_unanswered_row: RowIndex(row),
                has_refused_row: has_refused,
            };
            let nonce = statement.write_into([0xaa; 16]);
            assert_eq!((&nonce[..8], &nonce[12..]), (&[0xaa; 8][..], &[0xaa; 4][..]));
            assert_eq!(nonce[8], first);
            assert_eq!(RowStatement::from_nonce(&nonce), statement);
        }
        let too_large = RowStatement {
            first_unanswered_row: RowIndex(1 << 31),
            has_refused_row: false,
        };
        assert_eq!(
            RowStatement::from_nonce(&too_large.write_into([0; 16])),
            RowStatement::default()
        );
    }
}
