//! Conversion between single numbers and words of several numbers.

use zeroize::Zeroize;

use super::{Register, WORD_BITS};
use crate::limbs;

/// Words in a row.
const ROW: usize = 8;
/// Number of words for which the code reserves space, a multiple of [`ROW`]: at least the words, and at least the
/// 64-bit limbs, of the longest number.
pub(crate) const WORDS_MAX: usize = 64;

/// Eight words of a number, least significant first, which are loaded together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Zeroize)]
#[repr(C, align(64))]
pub(crate) struct Row(pub(crate) [u64; ROW]);

impl Row {
    /// Fills `rows` with the 52-bit words of a number in 64-bit limbs; words beyond the number are zero.
    pub(crate) fn fill(rows: &mut [Self], limbs: &[u64]) {
        let limb = |index: usize| limbs.get(index).copied().unwrap_or_default();
        let words = rows.iter_mut().flat_map(|row| &mut row.0);
        for (word, bit) in words.zip((0..).step_by(WORD_BITS as usize)) {
            let (index, shift) = (bit / 64, (bit % 64) as u32);
            let above = limb(index + 1).checked_shl(64 - shift).unwrap_or_default();
            *word = (limb(index) >> shift | above) & ((1 << WORD_BITS) - 1);
        }
    }

    /// Fills `limbs` with the 64-bit limbs of a number in reduced words; there must be enough limbs.
    pub(crate) fn limbs(limbs: &mut [u64], rows: &[Self]) {
        limbs.fill(0);
        let words = rows.iter().flat_map(|row| &row.0);
        for (word, bit) in words.zip((0..).step_by(WORD_BITS as usize)) {
            let (index, shift) = (bit / 64, (bit % 64) as u32);
            if let Some(limb) = limbs.get_mut(index) {
                *limb |= word << shift;
            }
            if let Some(limb) = limbs.get_mut(index + 1) {
                *limb |= word.checked_shr(64 - shift).unwrap_or_default();
            }
        }
    }

    /// Prefetches the row.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every CPU of this architecture has the instruction, which has no other effect.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.0.as_ptr().cast());
        }
    }
}

/// Converts numbers in rows, one per lane, to vectors of words, and applies `form` to each vector. Words beyond the
/// rows are zero.
#[inline(always)]
pub(crate) fn load<W: Register, T>(words: &mut [T], numbers: &[&[Row]], form: impl Fn(W) -> T) {
    const ZERO: [u64; ROW] = [0; ROW];
    for (index, words) in words.chunks_mut(ROW).enumerate() {
        let mut rows = [&ZERO; ROW];
        for (row, number) in rows.iter_mut().zip(numbers) {
            if let Some(source) = number.get(index) {
                *row = &source.0;
            }
        }
        let columns = W::columns(rows.get(..W::LANES).unwrap_or_default());
        for (word, column) in words.iter_mut().zip(columns) {
            *word = form(column);
        }
    }
}

/// Converts big-endian numbers, one per lane, to reduced words.
#[inline(always)]
pub(crate) fn load_be<W: Register>(words: &mut [W], numbers: &[&[u8]]) {
    let mut rows = [[Row::default(); WORDS_MAX / ROW]; ROW];
    let mut refs: [&[Row]; ROW] = [&[]; ROW];
    for (rows, number) in rows.iter_mut().zip(numbers) {
        let mut limbs = [0; WORDS_MAX];
        limbs::from_be(&mut limbs, number);
        for (row, limbs) in rows.iter_mut().zip(limbs.as_chunks().0) {
            row.0 = *limbs;
        }
    }
    for (number, rows) in refs.iter_mut().zip(&rows) {
        *number = rows;
    }
    let mut limbs = [W::splat(0); WORDS_MAX];
    load(&mut limbs, refs.get(..W::LANES).unwrap_or_default(), |word: W| {
        word
    });
    repack::<W, 64, { WORD_BITS }>(words, &limbs);
    for word in words {
        *word = word.low();
    }
    rows.zeroize();
}

/// Converts numbers in reduced words, one per lane, to big-endian bytes; there must be enough bytes.
#[inline(always)]
pub(crate) fn store_be<W: Register>(numbers: &mut [&mut [u8]], words: &[W]) {
    let mut limbs = [W::splat(0); WORDS_MAX];
    repack::<W, { WORD_BITS }, 64>(&mut limbs, words);
    let mut rows = [[0; WORDS_MAX]; ROW];
    for (index, limbs) in limbs.as_chunks::<ROW>().0.iter().enumerate() {
        let lanes = W::rows(limbs);
        for (row, lane) in rows.iter_mut().zip(lanes) {
            if let Some(chunk) = row.as_chunks_mut::<ROW>().0.get_mut(index) {
                *chunk = lane;
            }
        }
    }
    for (number, row) in numbers.iter_mut().zip(&rows) {
        limbs::to_be(number, row);
    }
    rows.zeroize();
}

/// Stores numbers in reduced words, one per lane, as rows.
#[inline(always)]
pub(crate) fn store_rows<'a, W: Register>(
    numbers: impl Iterator<Item = &'a mut [Row]>,
    words: &[W; WORDS_MAX],
) {
    let mut lanes_by_row = [[[0; ROW]; ROW]; WORDS_MAX / ROW];
    for (lanes, words) in lanes_by_row.iter_mut().zip(words.as_chunks::<ROW>().0) {
        for (lane_words, row) in lanes.iter_mut().zip(W::rows(words)) {
            *lane_words = row;
        }
    }
    for (lane, number) in numbers.enumerate() {
        for (row, lanes) in number.iter_mut().zip(&lanes_by_row) {
            if let Some(words) = lanes.get(lane) {
                row.0 = *words;
            }
        }
    }
}

/// Converts words of FROM bits to words of TO bits.
#[inline(always)]
fn repack<W: Register, const FROM: u32, const TO: u32>(out: &mut [W], words: &[W]) {
    for (out, bit) in out.iter_mut().zip((0..).step_by(TO as usize)) {
        let (index, shift) = (bit / FROM as usize, (bit % FROM as usize) as u32);
        *out = word_at(words, index)
            .shr_by(shift)
            .or(word_at(words, index + 1).shl_by(FROM - shift));
        // The output word may span three input words.
        if 2 * FROM - shift < TO {
            *out = out.or(word_at(words, index + 2).shl_by(2 * FROM - shift));
        }
    }
}

#[inline(always)]
fn word_at<W: Register>(words: &[W], index: usize) -> W {
    match words.get(index) {
        Some(word) => *word,
        None => W::splat(0),
    }
}
