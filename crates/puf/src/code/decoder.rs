//! Constant-time decoding of BCH codes.
//!
//! Syndromes, Berlekamp-Massey and root search all run a number of steps that depends on the code alone,
//! address memory by public indices alone, and choose by masks; the example `decode_trace` shows how to count
//! instructions. The steps:
//!
//! 1. *Syndromes* `S_j = r(α^j)`, `j = 1 … 2t`: each received bit masks a public row of powers.
//! 2. *Locator* by the inversion-free Berlekamp-Massey algorithm (Burton, Inversionless decoding of binary
//!    BCH codes, IEEE Trans. Inf. Theory 17(4), 1971), `t` iterations, because binary codes have no discrepancy
//!    at odd steps.
//! 3. *Roots* by evaluating the locator at all `n` points at once: it is linear in the bits of its
//!    coefficients, so each coefficient bit masks a public row with one byte per position.

use std::hint::black_box;

use super::{
    field::{Field, broadcast, mul_lanes, sum_lanes, zero_lanes},
    word::Word,
};

/// One byte for each of 256 positions.
type PositionRow = [u64; 32];

/// The public tables of one code.
#[derive(Debug)]
pub(super) struct DecoderTables {
    degree: u32,
    n: usize,
    t: usize,
    /// For position `p`, the bytes α^(p j), `j = 1 … 2t`, in `2 * lane_words(t)` words.
    syndrome_rows: Vec<u64>,
    /// For coefficient `j` and bit `b`, the bytes α^(b - p j) over the positions `p`.
    root_rows: Vec<PositionRow>,
}

impl DecoderTables {
    pub(super) fn new(field: &Field, t: usize) -> Self {
        let n = field.order();
        let words = 2 * lane_words(t);
        let power = |exponent| u64::from(field.power(exponent));
        let mut syndrome_rows = vec![0; n * words];
        for (p, row) in syndrome_rows.chunks_exact_mut(words).enumerate() {
            for j in 1..=2 * t {
                put_byte(row, j - 1, power(p * j));
            }
        }
        let mut root_rows = Vec::with_capacity((t + 1) * field.degree() as usize);
        for j in 0..=t {
            for b in 0..field.degree() as usize {
                let mut row = [0; 32];
                for p in 0..n {
                    put_byte(&mut row, p, power(b + (n - p * j % n)));
                }
                root_rows.push(row);
            }
        }
        Self {
            degree: field.degree(),
            n,
            t,
            syndrome_rows,
            root_rows,
        }
    }

    /// The corrected word, and all ones if the correction is consistent, else zero.
    pub(super) fn decode(&self, received: Word) -> (Word, u64) {
        match (self.degree, lane_words(self.t)) {
            (7, 2) => self.decode_with::<7, 2>(received),
            (7, _) => self.decode_with::<7, 4>(received),
            (_, 2) => self.decode_with::<8, 2>(received),
            (_, _) => self.decode_with::<8, 4>(received),
        }
    }

    fn decode_with<const M: u32, const L: usize>(&self, received: Word) -> (Word, u64) {
        let syndromes = self.syndromes::<L>(received);
        let (locator, errors) = self.locator::<M, L>(&syndromes);
        let positions = self.roots::<M, L>(&locator);
        let root_count: u64 = positions.iter().map(|w| u64::from(w.count_ones())).sum();
        // If the word is not correctable, the locator's degree is above t or the locator has too few roots.
        let valid = is_zero(root_count ^ errors) & at_most(errors, self.t as u64);
        let mut corrected = received;
        for (word, flips) in corrected.iter_mut().zip(positions) {
            *word ^= flips & valid;
        }
        (corrected, valid)
    }

    /// `S_1 … S_2t`, one byte each, followed by zeros.
    fn syndromes<const L: usize>(&self, received: Word) -> [u64; 8] {
        let mut sums = [0_u64; 8];
        for (p, row) in self.syndrome_rows.chunks_exact(2 * L).enumerate() {
            let mask = bit_mask(received.get(p / 64).map_or(0, |w| w >> (p % 64)));
            for (sum, power) in sums.iter_mut().zip(row) {
                *sum ^= power & mask;
            }
        }
        sums
    }

    /// The coefficients of the error locator polynomial, scaled by a nonzero factor, and the polynomial's length.
    fn locator<const M: u32, const L: usize>(&self, syndromes: &[u64; 8]) -> ([u64; L], u64) {
        let reversed = self.reversed(syndromes);
        let mut locator = [0; L];
        let mut previous = [0; L];
        if let (Some(l), Some(p)) = (locator.first_mut(), previous.first_mut()) {
            (*l, *p) = (1, 1);
        }
        let (mut scale, mut length) = (1_u64, 0_u64);
        for r in 0..self.t {
            // Lane j holds S_(2r + 1 - j), zero where the index is not positive.
            let window = load_lanes(&reversed, 2 * self.t - (2 * r + 1));
            let discrepancy = sum_lanes(mul_lanes::<M, L>(window, locator));
            let step = shifted_lane(previous);
            let scaled = mul_lanes::<M, L>([broadcast(scale); L], locator);
            let change = mul_lanes::<M, L>([broadcast(discrepancy); L], step);
            let longer = !is_zero(discrepancy) & at_most(length, r as u64);
            previous = std::array::from_fn(|i| {
                let (old, kept) = (lane(&locator, i), lane(&step, i));
                kept ^ (old ^ kept) & longer
            });
            previous = shifted_lane(previous);
            locator = std::array::from_fn(|i| lane(&scaled, i) ^ lane(&change, i));
            scale ^= (scale ^ discrepancy) & longer;
            length ^= (length ^ (2 * r as u64 + 1).wrapping_sub(length)) & longer;
        }
        (locator, length)
    }

    /// `S_2t … S_1`, followed by zeros.
    fn reversed(&self, syndromes: &[u64; 8]) -> [u8; 128] {
        let mut reversed = [0; 128];
        let in_order = syndromes.iter().flat_map(|w| w.to_le_bytes()).take(2 * self.t);
        let targets = reversed.iter_mut().take(2 * self.t).rev();
        for (target, syndrome) in targets.zip(in_order) {
            *target = syndrome;
        }
        reversed
    }

    /// The positions `p` where the locator vanishes at α^-p.
    fn roots<const M: u32, const L: usize>(&self, locator: &[u64; L]) -> Word {
        let mut values: PositionRow = [0; 32];
        let coefficients = locator.iter().flat_map(|w| w.to_le_bytes());
        for (coefficient, rows) in coefficients.zip(self.root_rows.chunks_exact(M as usize)) {
            for (bit, row) in rows.iter().enumerate() {
                let mask = bit_mask(u64::from(coefficient) >> bit);
                for (value, r) in values.iter_mut().zip(row) {
                    *value ^= r & mask;
                }
            }
        }
        let mut positions = [0; 4];
        for (word, byte_values) in positions.iter_mut().zip(values.chunks_exact(8)) {
            for (i, value) in byte_values.iter().enumerate() {
                *word |= zero_lanes(*value) << (8 * i);
            }
        }
        for (i, word) in positions.iter_mut().enumerate() {
            *word &= positions_in_use(self.n, i);
        }
        positions
    }
}

/// The mask of positions below `n` in word `i`.
fn positions_in_use(n: usize, i: usize) -> u64 {
    match n.saturating_sub(64 * i) {
        0 => 0,
        bits if bits < 64 => (1 << bits) - 1,
        _ => u64::MAX,
    }
}

/// Number of words for `t + 1` coefficients, rounded up to 2 or 4: only these two sizes are compiled.
fn lane_words(t: usize) -> usize {
    if t < 16 { 2 } else { 4 }
}

fn put_byte(row: &mut [u64], index: usize, byte: u64) {
    if let Some(word) = row.get_mut(index / 8) {
        *word |= byte << (8 * (index % 8));
    }
}

fn lane<const L: usize>(lanes: &[u64; L], i: usize) -> u64 {
    lanes.get(i).copied().unwrap_or(0)
}

fn load_lanes<const L: usize>(bytes: &[u8; 128], offset: usize) -> [u64; L] {
    let mut words = bytes.get(offset..).unwrap_or_default().chunks_exact(8);
    std::array::from_fn(|_| {
        words
            .next()
            .and_then(|w| w.try_into().ok())
            .map_or(0, u64::from_le_bytes)
    })
}

/// Multiplies a polynomial by x.
fn shifted_lane<const L: usize>(lanes: [u64; L]) -> [u64; L] {
    let mut carry = 0;
    lanes.map(|lane| {
        let shifted = lane << 8 | carry;
        carry = lane >> 56;
        shifted
    })
}

/// All ones if the lowest bit is set, else zero.
///
/// Without the barrier, the compiler could detect that only two values occur, and generate a branch.
#[inline(always)]
fn bit_mask(bit: u64) -> u64 {
    0_u64.wrapping_sub(black_box(bit & 1))
}

/// All ones if `x` is zero.
#[inline(always)]
fn is_zero(x: u64) -> u64 {
    bit_mask(!(x | x.wrapping_neg()) >> 63)
}

/// All ones if `a <= b`, both below 2^63.
#[inline(always)]
fn at_most(a: u64, b: u64) -> u64 {
    bit_mask(!b.wrapping_sub(a) >> 63)
}
