//! The keyed function `F` of suite 1: SipHash-2-4 with 128-bit output over 8-byte words (LAP/1 1.2).
//!
//! A call lists its words. The label `L(x)` and the header word are never equal, which separates keys from tags.

use core::hash::Hasher as _;
use siphasher::sip128::{Hasher128 as _, SipHasher24};

use crate::ids::{GatewayId, RowIndex, Suite};

/// One 8-byte word of input, in wire order.
pub type Word = [u8; 8];

/// `F(k, words)`: 16 bytes, in SipHash's own output order (little-endian halves, low half first).
#[must_use]
pub fn f(key: &[u8; 16], words: &[Word]) -> [u8; 16] {
    let mut hasher = SipHasher24::new_with_key(key);
    for word in words {
        hasher.write(word);
    }
    hasher.finish128().as_bytes()
}

/// `F` over words followed by a payload that is zero-padded to a whole word (DATA.tag).
#[must_use]
pub fn f_padded(key: &[u8; 16], words: &[Word], payload: &[u8]) -> [u8; 16] {
    let mut hasher = SipHasher24::new_with_key(key);
    for word in words {
        hasher.write(word);
    }
    hasher.write(payload);
    let padding = payload.len().wrapping_neg() & 7;
    hasher.write([0u8; 8].get(..padding).unwrap_or_default());
    hasher.finish128().as_bytes()
}

/// `L(x)`: bytes `00 00 01 x suite 00 00 00`. A header never begins like this: its first bytes are the magic.
#[must_use]
pub const fn label(x: u8, suite: Suite) -> Word {
    [0, 0, 1, x, suite as u8, 0, 0, 0]
}

/// `IG`: idx, then gateway_id, big-endian.
#[must_use]
pub fn idx_gateway(idx: RowIndex, gateway: GatewayId) -> Word {
    let mut word = [0u8; 8];
    word[..4].copy_from_slice(&idx.0.to_be_bytes());
    word[4..].copy_from_slice(&gateway.0.to_be_bytes());
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SipHash reference implementation, `vectors_sip128`, message 00 01 .. 06 07 (length 8).
    #[test]
    fn agrees_with_the_reference_vector_of_length_8() {
        let key: [u8; 16] = core::array::from_fn(|i| u8::try_from(i).unwrap());
        let got = f(&key, &[[0, 1, 2, 3, 4, 5, 6, 7]]);
        assert_eq!(hex::encode(got), "3b62a9ba6258f5610f83e264f31497b4");
    }

    #[test]
    fn padding_fills_to_a_word_and_adds_nothing_to_whole_words() {
        let key = [7u8; 16];
        assert_eq!(
            f_padded(&key, &[], &[1, 2, 3]),
            f(&key, &[[1, 2, 3, 0, 0, 0, 0, 0]])
        );
        assert_eq!(f_padded(&key, &[[9; 8]], &[1; 8]), f(&key, &[[9; 8], [1; 8]]));
        assert_eq!(f_padded(&key, &[[9; 8]], &[]), f(&key, &[[9; 8]]));
    }
}
