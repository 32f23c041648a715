//! What a nonce of the pool mode says beside being new: which rows the device has answered already (LAP/1 1.3).
//!
//! The nonce lies under the tags of CHALLENGE and RESPONSE. A statement that somebody changes on the way makes a CHALLENGE
//! that does not verify, and a RESPONSE that verifies proves the statement together with the device.

use crate::ids::RowIndex;

/// Set in the statement's first byte.
const HAS_REFUSED: u32 = 1 << 31;

/// What a device says of its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The lowest row from which on the device has answered nothing; 0 says nothing. Below 2^31.
    pub unanswered_from: RowIndex,
    /// It was offered a row since its last session that it will not answer again.
    pub has_refused: bool,
}

impl Default for Statement {
    /// Of a device that says nothing.
    fn default() -> Self {
        Self {
            unanswered_from: RowIndex(0),
            has_refused: false,
        }
    }
}

impl Statement {
    /// What a nonce states.
    #[must_use]
    pub fn of(nonce: &[u8; 16]) -> Self {
        let [_, _, _, _, _, _, _, _, a, b, c, d, ..] = *nonce;
        let word = u32::from_be_bytes([a, b, c, d]);
        Self {
            unanswered_from: RowIndex(word & !HAS_REFUSED),
            has_refused: word & HAS_REFUSED != 0,
        }
    }

    /// The nonce with this statement in it. Rows from 2^31 on cannot be stated.
    #[must_use]
    pub fn within(self, nonce: [u8; 16]) -> [u8; 16] {
        let row = match self.unanswered_from.0 {
            row @ 0..HAS_REFUSED => row,
            _ => 0,
        };
        let flag = if self.has_refused { HAS_REFUSED } else { 0 };
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
            let statement = Statement {
                unanswered_from: RowIndex(row),
                has_refused,
            };
            let nonce = statement.within([0xaa; 16]);
            assert_eq!((&nonce[..8], &nonce[12..]), (&[0xaa; 8][..], &[0xaa; 4][..]));
            assert_eq!(nonce[8], first);
            assert_eq!(Statement::of(&nonce), statement);
        }
        let beyond = Statement {
            unanswered_from: RowIndex(1 << 31),
            has_refused: false,
        };
        assert_eq!(Statement::of(&beyond.within([0; 16])), Statement::default());
    }
}
