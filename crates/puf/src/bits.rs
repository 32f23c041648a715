//! Packed bit strings that erase themselves.

use std::fmt;

use zeroize::Zeroize;

/// A string of bits: a readout, a response, an offset.
///
/// Bit `i` of a byte string is bit `i % 8`, counted from the least significant, of byte `i / 8`. Bits after the end
/// are zero. The memory is erased on drop, and `Debug` shows only the length, because most of these strings are
/// secret PUF bits.
#[derive(Clone, PartialEq, Eq)]
pub struct Bits {
    words: Vec<u64>,
    len: usize,
}

impl Bits {
    /// `len` zero bits.
    pub fn zeros(len: usize) -> Self {
        Self {
            words: vec![0; len.div_ceil(64)],
            len,
        }
    }

    /// All bits of `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let words = bytes.chunks(8).map(little_endian).collect();
        Self {
            words,
            len: bytes.len() * 8,
        }
    }

    /// The first `len` bits of the words, least significant bit first; missing words are zero.
    pub fn from_words(mut words: Vec<u64>, len: usize) -> Self {
        words.resize(len.div_ceil(64), 0);
        let mut bits = Self { words, len };
        bits.clear_tail();
        bits
    }

    /// One bit per item.
    pub fn from_bools(items: impl IntoIterator<Item = bool>) -> Self {
        let (mut words, mut len) = (Vec::new(), 0_usize);
        for item in items {
            if len.is_multiple_of(64) {
                words.push(0);
            }
            if let Some(last) = words.last_mut() {
                *last |= u64::from(item) << (len % 64);
            }
            len += 1;
        }
        Self { words, len }
    }

    /// The number of bits.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The packed words; bits after the end are zero.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Changes the words in place. Bits that `change` writes after the end are cleared.
    pub fn change_words(&mut self, change: impl FnOnce(&mut [u64])) {
        change(&mut self.words);
        self.clear_tail();
    }

    /// The bytes, `len / 8` rounded up.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|w| w.to_le_bytes()).collect();
        bytes.truncate(self.len.div_ceil(8));
        bytes
    }

    /// Bit `index`; false after the end.
    #[inline]
    pub fn get(&self, index: usize) -> bool {
        self.words
            .get(index / 64)
            .is_some_and(|w| w >> (index % 64) & 1 == 1)
    }

    /// Sets bit `index`; has no effect after the end.
    #[inline]
    pub fn set(&mut self, index: usize, value: bool) {
        if index >= self.len {
            return;
        }
        if let Some(word) = self.words.get_mut(index / 64) {
            *word = *word & !(1 << (index % 64)) | u64::from(value) << (index % 64);
        }
    }

    /// The 64 bits that begin at `offset`; zeros after the end.
    #[inline]
    pub fn word_at(&self, offset: usize) -> u64 {
        let (index, shift) = (offset / 64, offset % 64);
        let low = self.words.get(index).copied().unwrap_or(0) >> shift;
        let high = self.words.get(index + 1).copied().unwrap_or(0);
        // A shift by 64 is not defined, so the upper part takes two steps.
        low | (high << 1) << (63 - shift)
    }

    /// `len` bits from `offset`; `None` if the range exceeds the end.
    pub fn window(&self, offset: usize, len: usize) -> Option<Self> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        let words = (0..len.div_ceil(64))
            .map(|i| self.word_at(offset + 64 * i))
            .collect();
        Some(Self::from_words(words, len))
    }

    /// The bits at the given positions, in that order; positions after the end read as zero.
    pub fn gather(&self, positions: &[u32]) -> Self {
        Self::from_bools(positions.iter().map(|&p| self.get(p as usize)))
    }

    /// The number of ones.
    pub fn count_ones(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// The number of positions at which `self` and `other` differ, up to the end of the shorter string.
    pub fn distance(&self, other: &Self) -> usize {
        let len = self.len.min(other.len);
        let full_words = len / 64;
        let pairs = self.words.iter().zip(&other.words);
        let mut distance: usize = pairs
            .take(full_words)
            .map(|(a, b)| (a ^ b).count_ones() as usize)
            .sum();
        if !len.is_multiple_of(64) {
            let differing = self.word_at(full_words * 64) ^ other.word_at(full_words * 64);
            distance += (differing & tail_mask(len)).count_ones() as usize;
        }
        distance
    }

    /// The exclusive or of both strings, with the length of `self`; missing bits of `other` count as zero.
    pub fn xor(&self, other: &Self) -> Self {
        let mut result = self.clone();
        for (a, b) in result.words.iter_mut().zip(&other.words) {
            *a ^= b;
        }
        result.clear_tail();
        result
    }

    /// The bits in order.
    pub fn iter(&self) -> impl Iterator<Item = bool> + '_ {
        self.words
            .iter()
            .flat_map(|&w| (0..64).map(move |i| w >> i & 1 == 1))
            .take(self.len)
    }

    /// The bit-wise majority of several strings of equal length; in a tie, the first string decides.
    ///
    /// `None` when there are no strings or their lengths differ.
    pub fn majority(strings: &[Self]) -> Option<Self> {
        let first = strings.first()?;
        if strings.iter().any(|s| s.len != first.len) {
            return None;
        }
        let mut result = first.clone();
        for (index, word) in result.words.iter_mut().enumerate() {
            let column = strings.iter().filter_map(|s| s.words.get(index).copied());
            *word = majority_word(column, strings.len(), *word);
        }
        Some(result)
    }

    /// For strings of equal length: element `n` is the number of positions with a one in exactly `n` strings.
    pub fn ones_histogram(strings: &[Self]) -> Vec<u64> {
        let mut histogram = vec![0_u64; strings.len() + 1];
        let len = strings.first().map_or(0, Self::len);
        let plane_count = usize::BITS - strings.len().leading_zeros();
        for index in 0..len.div_ceil(64) {
            let planes = column_planes(strings.iter().filter_map(|s| s.words.get(index).copied()));
            for (ones, positions) in histogram.iter_mut().enumerate() {
                let select_plane =
                    |(bit, plane): (usize, &u64)| if ones >> bit & 1 == 1 { *plane } else { !plane };
                let equal = planes
                    .iter()
                    .take(plane_count as usize)
                    .enumerate()
                    .map(select_plane);
                *positions += u64::from(equal.fold(u64::MAX, |all, plane| all & plane).count_ones());
            }
        }
        // Bits after the end are zero in all strings.
        if let Some(zero_count) = histogram.first_mut() {
            *zero_count -= (len.next_multiple_of(64) - len) as u64;
        }
        histogram
    }

    fn clear_tail(&mut self) {
        if !self.len.is_multiple_of(64)
            && let Some(last) = self.words.last_mut()
        {
            *last &= tail_mask(self.len);
        }
    }
}

/// The mask of the bits in use in the last word of `len` bits, where `len` is not a multiple of 64.
fn tail_mask(len: usize) -> u64 {
    (1 << (len % 64)) - 1
}

fn little_endian(chunk: &[u8]) -> u64 {
    chunk
        .iter()
        .rev()
        .fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// Counts the ones in each of 64 columns: bit `b` of the count of column `c` is bit `c` of plane `b`.
fn column_planes(column: impl Iterator<Item = u64>) -> [u64; 16] {
    let mut planes = [0_u64; 16];
    for word in column {
        let mut carry = word;
        for plane in &mut planes {
            if carry == 0 {
                break;
            }
            (*plane, carry) = (*plane ^ carry, *plane & carry);
        }
    }
    planes
}

/// The majority of `count` bits in each of 64 columns; in a tie, the bit of `tie`.
fn majority_word(column: impl Iterator<Item = u64>, count: usize, tie: u64) -> u64 {
    let planes = column_planes(column);
    let half = count / 2;
    let (mut above, mut equal) = (0_u64, u64::MAX);
    for (bit, plane) in planes.iter().enumerate().rev() {
        let half_bit = 0_u64.wrapping_sub((half >> bit & 1) as u64);
        above |= equal & plane & !half_bit;
        equal &= !(plane ^ half_bit);
    }
    if count.is_multiple_of(2) {
        above | equal & tie
    } else {
        above
    }
}

impl Drop for Bits {
    fn drop(&mut self) {
        self.words.zeroize();
    }
}

impl fmt::Debug for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bits({} bits)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bools() -> impl Strategy<Value = Vec<bool>> {
        proptest::collection::vec(any::<bool>(), 0..300)
    }

    proptest! {
        #[test]
        fn behaves_like_a_vector_of_bools(items in bools(), offset in 0_usize..320, len in 0_usize..200) {
            let bits = Bits::from_bools(items.iter().copied());
            prop_assert_eq!(bits.len(), items.len());
            prop_assert_eq!(bits.iter().collect::<Vec<_>>(), items.clone());
            prop_assert_eq!(bits.count_ones(), items.iter().filter(|b| **b).count());
            match bits.window(offset, len) {
                Some(window) => {
                    let expected = items[offset..offset + len].to_vec();
                    prop_assert_eq!(window.iter().collect::<Vec<_>>(), expected);
                }
                None => prop_assert!(offset + len > items.len()),
            }
        }

        #[test]
        fn distance_counts_differing_bits(a in bools(), b in bools()) {
            let expected = a.iter().zip(&b).filter(|(x, y)| x != y).count();
            let (a, b) = (Bits::from_bools(a), Bits::from_bools(b));
            prop_assert_eq!(a.distance(&b), expected);
        }

        #[test]
        fn majority_counts_votes(rows in proptest::collection::vec(proptest::collection::vec(any::<bool>(), 70), 1..9)) {
            let strings: Vec<Bits> = rows.iter().map(|r| Bits::from_bools(r.iter().copied())).collect();
            let majority = Bits::majority(&strings).unwrap();
            for column in 0..70 {
                let ones = rows.iter().filter(|r| r[column]).count();
                let expected = if 2 * ones == rows.len() { rows[0][column] } else { 2 * ones > rows.len() };
                prop_assert_eq!(majority.get(column), expected);
            }
            let mut histogram = vec![0; rows.len() + 1];
            for column in 0..70 {
                histogram[rows.iter().filter(|r| r[column]).count()] += 1;
            }
            prop_assert_eq!(Bits::ones_histogram(&strings), histogram);
        }
    }

    #[test]
    fn bytes_round_trip_and_debug_hides_them() {
        let bits = Bits::from_bytes(&[0x01, 0x80, 0xa5]);
        assert!(bits.get(0) && bits.get(15) && !bits.get(1));
        assert_eq!(bits.to_bytes(), [0x01, 0x80, 0xa5]);
        assert_eq!(format!("{bits:?}"), "Bits(24 bits)");
    }
}
