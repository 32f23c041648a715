//! Keys as machine words, so masking, hashing and comparison need no loop over bytes.

use std::hash::{Hash, Hasher};

/// Bytes in one word.
const WORD_BYTES: usize = 8;

/// Key of at most `8 * N` bytes, big-endian, left-aligned, zero-padded.
///
/// Keys of equal length are equal if and only if their byte strings are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Words<const N: usize>([u64; N]);

impl<const N: usize> Words<N> {
    /// Loads the first `8 * N` bytes of a key; a shorter key is zero-padded.
    #[inline]
    pub(super) fn load(bytes: &[u8]) -> Self {
        let mut words = [0; N];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks(WORD_BYTES)) {
            *word = match chunk.first_chunk::<WORD_BYTES>() {
                Some(eight_bytes) => u64::from_be_bytes(*eight_bytes),
                None => left_aligned(chunk),
            };
        }
        Self(words)
    }

    /// Bitwise AND with `mask`.
    #[inline]
    pub(super) fn and(&self, mask: &Self) -> Self {
        let mut words = self.0;
        for (word, mask) in words.iter_mut().zip(mask.0) {
            *word &= mask;
        }
        Self(words)
    }

    /// Byte with this index, counted from the most significant; zero past the end.
    #[inline]
    pub(super) fn byte(&self, index: usize) -> u8 {
        let shift = 8 * (WORD_BYTES - 1 - index % WORD_BYTES);
        self.0
            .get(index / WORD_BYTES)
            .map_or(0, |word| (word >> shift) as u8)
    }

    /// Number of common leading bits.
    #[inline]
    pub(super) fn common_prefix(&self, other: &Self) -> u32 {
        let mut bits = 0;
        for (a, b) in self.0.iter().zip(other.0) {
            let differing = a ^ b;
            bits += differing.leading_zeros();
            if differing != 0 {
                break;
            }
        }
        bits
    }
}

/// Loads at most seven bytes into the upper end of a word with two overlapping loads instead of a loop.
#[inline]
fn left_aligned(chunk: &[u8]) -> u64 {
    let spare_bits = 8 * (WORD_BYTES - chunk.len().min(WORD_BYTES)) as u32;
    if let (Some(head), Some(tail)) = (chunk.first_chunk::<4>(), chunk.last_chunk::<4>()) {
        let (head, tail) = (u32::from_be_bytes(*head), u32::from_be_bytes(*tail));
        return (u64::from(head) << 32) | (u64::from(tail) << spare_bits);
    }
    if let (Some(head), Some(tail)) = (chunk.first_chunk::<2>(), chunk.last_chunk::<2>()) {
        let (head, tail) = (u16::from_be_bytes(*head), u16::from_be_bytes(*tail));
        return (u64::from(head) << 48) | (u64::from(tail) << spare_bits);
    }
    chunk.first().map_or(0, |byte| u64::from(*byte) << 56)
}

impl<const N: usize> Hash for Words<N> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The words are hashed one by one: the hash of a slice would include the number of words, which is constant.
        for word in self.0 {
            state.write_u64(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_have_the_same_positions_as_in_the_string(bytes in proptest::collection::vec(any::<u8>(), 0..=16)) {
            let words = Words::<2>::load(&bytes);
            for index in 0..20 {
                prop_assert_eq!(words.byte(index), bytes.get(index).copied().unwrap_or(0));
            }
        }

        #[test]
        fn the_common_prefix_is_counted_in_bits(a in any::<u128>(), bit in 0u32..128) {
            let b = a ^ (1 << (127 - bit));
            let words = |x: u128| Words::<2>::load(&x.to_be_bytes());
            prop_assert_eq!(words(a).common_prefix(&words(b)), bit);
            prop_assert_eq!(words(a).common_prefix(&words(a)), 128);
        }
    }
}
