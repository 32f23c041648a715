//! Numbers of five words, 260 bits, eight side by side: code for arithmetic modulo the field primes of P-256 and
//! edwards25519 and modulo the orders of their groups.
//!
//! A product has ten *columns*: column k holds the low halves of the products of words i and j with i + j = k, and the
//! high halves of the products with i + j = k - 1. A column holds at most 5 low and 5 high halves per product, so sums
//! of several products are far below 2^63.
#![allow(
    clippy::indexing_slicing,
    reason = "arrays of fixed size, and indices that are constants once the loops are unrolled"
)]

pub(super) mod comb;
pub(super) mod dispatch;
pub(super) mod montgomery;
#[cfg(test)]
pub(super) mod testing;

pub(super) use dispatch::{BackendCode, BackendTask, BackendWords, WordKernel, run};

use super::simd::{LANES, WORD_BITS, WordVector};

/// Words of a number.
pub(super) const WORDS: usize = 5;
/// Words of a product.
pub(super) const COLUMNS: usize = 2 * WORDS;
const WORD_MASK: u64 = (1 << WORD_BITS) - 1;

/// Eight numbers; each word is below 2^52 (reduced) unless stated otherwise. The numbers may exceed the modulus.
pub(super) type Words<W> = [W; WORDS];
/// Eight sums of products.
pub(super) type Columns<W> = [W; COLUMNS];
/// For each column, how many low and how many high halves will be added.
pub(super) type Counts = [(u64, u64); COLUMNS];

/// The halves of `a[i] b[j]` for all `i < j`.
const CROSS: Counts = {
    let mut counts = [(0, 0); COLUMNS];
    let mut i = 0;
    while i < WORDS {
        let mut j = i + 1;
        while j < WORDS {
            counts[i + j].0 += 1;
            counts[i + j + 1].1 += 1;
            j += 1;
        }
        i += 1;
    }
    counts
};

/// The halves of `a[i] b[i]`.
const DIAGONAL: Counts = {
    let mut counts = [(0, 0); COLUMNS];
    let mut i = 0;
    while i < WORDS {
        counts[2 * i].0 += 1;
        counts[2 * i + 1].1 += 1;
        i += 1;
    }
    counts
};

/// The halves of a product of two numbers.
pub(super) const PRODUCT: Counts = sum_counts(&sum_counts(&CROSS, &CROSS), &DIAGONAL);

pub(super) const fn sum_counts(a: &Counts, b: &Counts) -> Counts {
    let mut counts = *a;
    let mut k = 0;
    while k < COLUMNS {
        counts[k].0 += b[k].0;
        counts[k].1 += b[k].1;
        k += 1;
    }
    counts
}

/// Initial values of columns to which these numbers of halves will be added.
#[inline(always)]
pub(super) fn columns<W: WordVector>(counts: &Counts) -> Columns<W> {
    let mut columns = [W::splat(0); COLUMNS];
    for (column, (lows, highs)) in columns.iter_mut().zip(counts) {
        *column = W::accumulator(*lows, *highs);
    }
    columns
}

/// Prepares columns for more halves than they were initialized for.
#[inline(always)]
pub(super) fn reserve<W: WordVector>(columns: &mut Columns<W>, counts: &Counts) {
    for (column, (lows, highs)) in columns.iter_mut().zip(counts) {
        *column = column.add(W::accumulator(*lows, *highs));
    }
}

#[inline(always)]
pub(super) fn factors<W: WordVector>(words: &Words<W>) -> [W::Factor; WORDS] {
    let [a, b, c, d, e] = *words;
    [a.factor(), b.factor(), c.factor(), d.factor(), e.factor()]
}

/// Adds the halves of `a b` to a column and to the next.
#[inline(always)]
pub(super) fn add_at<W: WordVector>(columns: &mut Columns<W>, column: usize, a: W::Factor, b: W::Factor) {
    let (mut low, mut high) = (columns[column], columns[column + 1]);
    W::madd(&mut low, &mut high, a, b);
    (columns[column], columns[column + 1]) = (low, high);
}

/// Adds the product of `digit` and `number`, from a column on.
#[inline(always)]
pub(super) fn add_row<W: WordVector>(
    columns: &mut Columns<W>,
    column: usize,
    digit: W::Factor,
    number: &[W::Factor; WORDS],
) {
    let [a, b, c, d, e] = *number;
    add_at(columns, column, digit, a);
    add_at(columns, column + 1, digit, b);
    add_at(columns, column + 2, digit, c);
    add_at(columns, column + 3, digit, d);
    add_at(columns, column + 4, digit, e);
}

/// Adds `a b`; the columns must be prepared for [`PRODUCT`].
#[inline(always)]
pub(super) fn add_product<W: BackendWords>(columns: &mut Columns<W>, a: &Words<W>, b: &Words<W>) {
    let (a, b) = (factors(a), factors(b));
    if W::INLINE {
        add_row(columns, 0, a[0], &b);
        add_row(columns, 1, a[1], &b);
        add_row(columns, 2, a[2], &b);
        add_row(columns, 3, a[3], &b);
        add_row(columns, 4, a[4], &b);
    } else {
        for (i, digit) in a.into_iter().enumerate() {
            add_row(columns, i, digit, &b);
        }
    }
}

/// `a^2`, in columns that are also prepared for the halves in `reserved`, which the caller adds. Computes 15 products
/// of words instead of 25.
#[inline(always)]
pub(super) fn square<W: BackendWords>(a: &Words<W>, reserved: &Counts) -> Columns<W> {
    let a = factors(a);
    let mut columns = columns::<W>(&CROSS);
    if W::INLINE {
        add_at(&mut columns, 1, a[0], a[1]);
        add_at(&mut columns, 2, a[0], a[2]);
        add_at(&mut columns, 3, a[0], a[3]);
        add_at(&mut columns, 4, a[0], a[4]);
        add_at(&mut columns, 3, a[1], a[2]);
        add_at(&mut columns, 4, a[1], a[3]);
        add_at(&mut columns, 5, a[1], a[4]);
        add_at(&mut columns, 5, a[2], a[3]);
        add_at(&mut columns, 6, a[2], a[4]);
        add_at(&mut columns, 7, a[3], a[4]);
    } else {
        for i in 0..WORDS {
            for j in i + 1..WORDS {
                add_at(&mut columns, i + j, a[i], a[j]);
            }
        }
    }
    for column in &mut columns {
        *column = column.add(*column);
    }
    reserve(&mut columns, &sum_counts(&DIAGONAL, reserved));
    add_at(&mut columns, 0, a[0], a[0]);
    add_at(&mut columns, 2, a[1], a[1]);
    add_at(&mut columns, 4, a[2], a[2]);
    add_at(&mut columns, 6, a[3], a[3]);
    add_at(&mut columns, 8, a[4], a[4]);
    columns
}

/// Reduces words that are arbitrary signed sums; the number itself must be in `0..2^260`.
#[inline(always)]
pub(super) fn carry<W: WordVector>(words: &Words<W>) -> Words<W> {
    let [a, b, c, d, e] = *words;
    let b = b.add(a.carry());
    let c = c.add(b.carry());
    let d = d.add(c.carry());
    let e = e.add(d.carry());
    [a.low(), b.low(), c.low(), d.low(), e]
}

/// Applies `each` to all words.
#[inline(always)]
pub(super) fn map<W: Copy>(words: &Words<W>, each: impl Fn(W) -> W) -> Words<W> {
    let [a, b, c, d, e] = *words;
    [each(a), each(b), each(c), each(d), each(e)]
}

/// Applies `each` to all pairs of words.
#[inline(always)]
pub(super) fn zip<W: Copy>(a: &Words<W>, b: &Words<W>, each: impl Fn(W, W) -> W) -> Words<W> {
    let [a0, a1, a2, a3, a4] = *a;
    let [b0, b1, b2, b3, b4] = *b;
    [
        each(a0, b0),
        each(a1, b1),
        each(a2, b2),
        each(a3, b3),
        each(a4, b4),
    ]
}

/// The words of `a` where `mask` has ones, of `b` elsewhere.
#[inline(always)]
pub(super) fn select<W: WordVector>(a: &Words<W>, b: &Words<W>, mask: W) -> Words<W> {
    zip(a, b, |a, b| a.select(b, mask))
}

/// All ones where all words are equal.
#[inline(always)]
pub(super) fn equal<W: WordVector>(a: &Words<W>, b: &Words<W>) -> W {
    let mut difference = W::splat(0);
    for (a, b) in a.iter().zip(b) {
        difference = difference.or(a.xor(*b));
    }
    difference.equal(W::splat(0))
}

/// Whether a mask has ones in any lane.
#[inline(always)]
pub(super) fn any<W: WordVector>(mask: W) -> bool {
    mask.store().iter().fold(0, |any, lane| any | lane) != 0
}

/// The same number in all lanes.
#[inline(always)]
pub(super) fn splat<W: WordVector>(words: &[u64; WORDS]) -> Words<W> {
    let [a, b, c, d, e] = *words;
    [W::splat(a), W::splat(b), W::splat(c), W::splat(d), W::splat(e)]
}

/// Converts eight numbers, one per lane, to vectors of words.
#[inline(always)]
pub(super) fn load<W: WordVector>(lanes: &[[u64; WORDS]; LANES]) -> Words<W> {
    let mut words = [W::splat(0); WORDS];
    for (index, word) in words.iter_mut().enumerate() {
        *word = W::load(lanes.map(|lane| lane[index]));
    }
    words
}

/// Converts vectors of words to eight numbers, one per lane.
#[inline(always)]
pub(super) fn store<W: WordVector>(words: &Words<W>) -> [[u64; WORDS]; LANES] {
    let mut lanes = [[0; WORDS]; LANES];
    for (index, word) in words.iter().enumerate() {
        for (lane, word) in lanes.iter_mut().zip(word.store()) {
            lane[index] = word;
        }
    }
    lanes
}

/// Converts 64-bit limbs to 52-bit words.
pub(super) const fn words(limbs: &[u64; 4]) -> [u64; WORDS] {
    let [a, b, c, d] = *limbs;
    [
        a & WORD_MASK,
        (a >> 52 | b << 12) & WORD_MASK,
        (b >> 40 | c << 24) & WORD_MASK,
        (c >> 28 | d << 36) & WORD_MASK,
        d >> 16,
    ]
}

/// Converts reduced words of a number below 2^256 to 64-bit limbs.
pub(super) const fn limbs(words: &[u64; WORDS]) -> [u64; 4] {
    let [a, b, c, d, e] = *words;
    [
        a | b << 52,
        b >> 12 | c << 40,
        c >> 24 | d << 28,
        d >> 36 | e << 16,
    ]
}

/// Limbs of a number in 32 bytes, least significant first.
pub(super) fn limbs_of_le(bytes: &[u8; 32]) -> [u64; 4] {
    let mut limbs = [0; 4];
    for (limb, chunk) in limbs.iter_mut().zip(bytes.as_chunks().0) {
        *limb = u64::from_le_bytes(*chunk);
    }
    limbs
}

/// Limbs of a number in 32 bytes, most significant first.
pub(super) fn limbs_of_be(bytes: &[u8; 32]) -> [u64; 4] {
    let mut bytes = *bytes;
    bytes.reverse();
    limbs_of_le(&bytes)
}

/// `a - b mod 2^256`, and whether a < b.
pub(super) const fn subtract(a: &[u64; 4], b: &[u64; 4]) -> ([u64; 4], bool) {
    let mut out = [0; 4];
    let mut borrow = false;
    let mut i = 0;
    while i < 4 {
        let (difference, underflow) = a[i].overflowing_sub(b[i]);
        let (difference, borrow_underflow) = difference.overflowing_sub(borrow as u64);
        (out[i], borrow) = (difference, underflow | borrow_underflow);
        i += 1;
    }
    (out, borrow)
}

/// `a + b mod 2^256`, and whether the sum overflows.
pub(super) const fn add(a: &[u64; 4], b: &[u64; 4]) -> ([u64; 4], bool) {
    let mut out = [0; 4];
    let mut carry = false;
    let mut i = 0;
    while i < 4 {
        let (sum, overflow) = a[i].overflowing_add(b[i]);
        let (sum, carry_overflow) = sum.overflowing_add(carry as u64);
        (out[i], carry) = (sum, overflow | carry_overflow);
        i += 1;
    }
    (out, carry)
}

/// The `width` bits (at most 16) from bit `first` on; bits above 255 are 0.
pub(super) fn bits(limbs: &[u64; 4], first: usize, width: usize) -> usize {
    let limb = |index: usize| limbs.get(index).copied().unwrap_or(0);
    let (index, shift) = (first / 64, first % 64);
    // Shifted in two steps, since a single shift by 64 is invalid.
    let joined = limb(index) >> shift | (limb(index + 1) << 1) << (63 - shift);
    (joined & ((1 << width) - 1)) as usize
}
