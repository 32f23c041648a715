//! Arithmetic on one number per lane of a register, each with its own modulus.

#![allow(clippy::indexing_slicing)] // Lanes of arrays of eight.

use std::ptr;
use std::sync::atomic::{Ordering, compiler_fence};

use zeroize::{Zeroize, ZeroizeOnDrop};

use super::kernel::{BLOCK, Kernels, Long, Moduli};
use super::row::{Row, WORDS_MAX, load};
use super::{Register, WORD_BITS};
use crate::modulus::accumulate;
use crate::{Modulus, limbs};

/// Bits of a block.
const BLOCK_BITS: usize = BLOCK * WORD_BITS as usize;
/// Rows of the longest number.
const ROWS_MAX: usize = WORDS_MAX / 8;

/// The constants of a modulus n for [`ModulusGroup`], in rows of words. R is `2^(260 blocks)`.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub(crate) struct PreparedModulus {
    /// n, k and m: see [`Moduli`].
    n: [Row; ROWS_MAX],
    k: [Row; 1],
    m: [Row; ROWS_MAX],
    /// `R mod n`.
    one: [Row; ROWS_MAX],
    /// `R^power mod n`.
    conversion: [Row; ROWS_MAX],
}

impl PreparedModulus {
    /// Prepares a modulus for numbers of `blocks` blocks, which must have at least 16 bits more than the modulus. The
    /// exponent `power` of `conversion` is at least 1.
    pub(crate) fn new(modulus: &Modulus, blocks: usize, power: usize) -> Box<Self> {
        let mut prepared = Box::new(Self {
            n: [Row::default(); ROWS_MAX],
            k: [Row::default(); 1],
            m: [Row::default(); ROWS_MAX],
            one: [Row::default(); ROWS_MAX],
            conversion: [Row::default(); ROWS_MAX],
        });
        Row::fill(&mut prepared.n, modulus.limbs());
        Row::fill(&mut prepared.one, &modulus.power_of_two(blocks * BLOCK_BITS));
        Row::fill(
            &mut prepared.conversion,
            &modulus.power_of_two(power * blocks * BLOCK_BITS),
        );
        let mut k = negative_inverse(modulus);
        Row::fill(&mut prepared.k, &k);
        let mut multiple = vec![0; modulus.len() + BLOCK];
        multiple_plus_one(&mut multiple, modulus.limbs(), &k);
        divide_by_block(&mut multiple);
        Row::fill(&mut prepared.m, &multiple);
        multiple.zeroize();
        k.zeroize();
        prepared
    }

    /// R modulo n, the Montgomery form of 1.
    pub(crate) fn one(&self) -> &[Row] {
        &self.one
    }
}

/// `k = -n^-1 mod 2^260`, limb by limb; each limb of k clears the next limb of `k n + 1`.
fn negative_inverse(modulus: &Modulus) -> [u64; BLOCK] {
    let mut k = [0; BLOCK];
    let mut sum = [0; BLOCK + 1];
    sum[0] = 1;
    for (index, digit) in k.iter_mut().enumerate() {
        let (Some(sum), Some(n)) = (sum.get_mut(index..), modulus.limbs().get(..BLOCK - index)) else {
            break;
        };
        *digit = sum
            .first()
            .map_or(0, |limb: &u64| limb.wrapping_mul(modulus.n0()));
        accumulate(sum, n, *digit);
    }
    k[BLOCK - 1] &= (1 << (BLOCK_BITS % 64)) - 1;
    k
}

/// `out = k n + 1`; `out` must be zero.
fn multiple_plus_one(out: &mut [u64], n: &[u64], k: &[u64; BLOCK]) {
    if let Some(lowest) = out.first_mut() {
        *lowest = 1;
    }
    for (index, digit) in k.iter().enumerate() {
        accumulate(out.get_mut(index..).unwrap_or_default(), n, *digit);
    }
}

/// `number = number / 2^260`.
fn divide_by_block(number: &mut [u64]) {
    number.rotate_left(BLOCK_BITS / 64);
    let mut high_bits = 0;
    let len = number.len() - BLOCK_BITS / 64;
    for limb in number.iter_mut().take(len).rev() {
        let shifted = *limb >> (BLOCK_BITS % 64) | high_bits;
        high_bits = *limb << (64 - BLOCK_BITS % 64);
        *limb = shifted;
    }
}

/// One modulus n per lane, in vectors. Numbers are below 3 n unless stated otherwise.
pub(crate) struct ModulusGroup<W: Register, const B: usize> {
    moduli: Moduli<W, B>,
    one: Long<W, B>,
    conversion: Long<W, B>,
}

impl<W: Kernels, const B: usize> ModulusGroup<W, B> {
    /// Loads one modulus per lane.
    #[inline(always)]
    pub(crate) fn load(keys: &[&PreparedModulus]) -> Self {
        let ([mut n, mut k, mut m, mut one, mut conversions], lanes) = ([[&[] as &[Row]; 8]; 5], W::LANES);
        for (lane, key) in keys.iter().enumerate().take(lanes) {
            n[lane] = &key.n;
            k[lane] = &key.k;
            m[lane] = &key.m;
            one[lane] = &key.one;
            conversions[lane] = &key.conversion;
        }
        let is_same = keys.iter().zip(keys.iter().skip(1)).all(|(a, b)| ptr::eq(*a, *b));
        let mut block = [W::splat(0).factor(); BLOCK];
        read_factors::<W>(&mut block, &k[..lanes], is_same);
        Self {
            moduli: Moduli {
                n: read_long::<W, B>(&n[..lanes], is_same),
                k: block,
                m: read_long::<W, B>(&m[..lanes], is_same),
            },
            one: read_long::<W, B>(&one[..lanes], is_same),
            conversion: read_long::<W, B>(&conversions[..lanes], is_same),
        }
    }

    /// `x = x y / R`.
    #[inline(always)]
    pub(crate) fn multiply(&self, x: &mut Long<W, B>, y: &Long<W, B>) {
        W::multiply(x, y, &self.moduli);
    }

    /// `x = x^2 / R`.
    #[inline(always)]
    pub(crate) fn square(&self, x: &mut Long<W, B>) {
        W::square(x, &self.moduli);
    }

    /// `x = x R^(power - 1)`, with the power for which the moduli were prepared, for any x below R.
    #[inline(always)]
    pub(crate) fn to_montgomery(&self, x: &mut Long<W, B>) {
        W::multiply(x, &self.conversion, &self.moduli);
    }

    /// `number / R`, for a number below `n R`. The number has at most 2 B blocks of reduced words.
    #[inline(always)]
    pub(crate) fn reduce(&self, number: &[W]) -> Long<W, B> {
        let mut out = zero::<W, B>();
        W::reduce(&mut out, number, &self.moduli);
        out
    }

    /// `x^65536 y`, for moduli prepared with `R^2` and numbers below R.
    #[inline(always)]
    pub(crate) fn power_65536(&self, x: &Long<W, B>, y: &Long<W, B>) -> Long<W, B> {
        let mut power = *x;
        self.to_montgomery(&mut power);
        for _ in 0..16 {
            self.square(&mut power);
        }
        self.multiply(&mut power, y);
        power
    }

    /// x raised to a secret exponent, which is the same for all lanes; x and the result are in Montgomery form. The
    /// window size is fixed, and each window reads all table entries.
    #[inline(always)]
    pub(crate) fn power_secret(&self, x: &Long<W, B>, exponent: &[u64]) -> Long<W, B> {
        // With larger windows, the table would not fit in the first-level cache.
        let window = if W::LANES == 8 { 4 } else { 5 };
        let mut table = Vec::with_capacity(1 << window);
        let mut power = self.one;
        for _ in 0..1 << window {
            table.push(power);
            self.multiply(&mut power, x);
        }
        let bits = 64 * exponent.len();
        let mut bit = (bits.div_ceil(window) - 1) * window;
        let mut entry = zero::<W, B>();
        W::select_constant_time(&mut power, &table, limbs::digit(exponent, bit, window));
        while let Some(next) = bit.checked_sub(window) {
            bit = next;
            for _ in 0..window {
                self.square(&mut power);
            }
            W::select_constant_time(&mut entry, &table, limbs::digit(exponent, bit, window));
            self.multiply(&mut power, &entry);
        }
        wipe::<W, B>(&mut table);
        wipe::<W, B>(&mut [entry]);
        power
    }

    /// The canonical numbers below n, in reduced words; unused vectors are zero.
    #[inline(always)]
    pub(crate) fn canonical(&self, x: &Long<W, B>) -> [W; WORDS_MAX] {
        let mut words = words::<W, B>(x);
        W::subtract(&mut words, self.moduli.n.as_flattened());
        words
    }
}

impl<W: Kernels, const P: usize> ModulusGroup<W, P> {
    /// `s = sq + q ((sp - sq) / q mod p)` in 2 P blocks (Garner), for the residues sp of s modulo p and sq modulo q,
    /// both in Montgomery form. `qinv` is `q^-1 mod p`, `square_of_r` is `R^2 mod p`.
    #[inline(always)]
    pub(crate) fn combine_crt<const N: usize>(
        &self,
        q: &Self,
        residue_p: &Long<W, P>,
        residue_q: &Long<W, P>,
        qinv: &Long<W, P>,
        square_of_r: &Long<W, P>,
    ) -> Long<W, N> {
        let canonical_q = q.canonical(&q.reduce(&words::<W, P>(residue_q)));
        let mut subtrahend = factors::<W, P>(&canonical_q);
        self.multiply(&mut subtrahend, square_of_r);
        // sp - sq + 3 p, positive and below 6 p.
        let mut difference = [W::splat(0); WORDS_MAX];
        let mut carry = W::splat(0);
        let word_pairs = residue_p
            .as_flattened()
            .iter()
            .zip(subtrahend.as_flattened())
            .zip(self.moduli.n.as_flattened());
        for (out, ((a, b), p)) in difference.iter_mut().zip(word_pairs) {
            let p = W::word(*p);
            let word = W::word(*a).sub(W::word(*b)).add(p.add(p).add(p)).add(carry);
            *out = word.low();
            carry = word.carry();
        }
        let mut quotient = factors::<W, P>(&difference);
        self.multiply(&mut quotient, qinv);
        let quotient = factors::<W, P>(&self.canonical(&quotient));
        let mut out = zero::<W, N>();
        W::multiply_add(&mut out, &quotient, &q.moduli.n, &canonical_q);
        out
    }
}

/// For each lane, whether the numbers in reduced words are equal.
#[inline(always)]
pub(crate) fn lanes_equal<W: Register>(a: &[W; WORDS_MAX], b: &[W; WORDS_MAX]) -> [bool; 8] {
    let mut differences = W::splat(0);
    for (a, b) in a.iter().zip(b) {
        differences = differences.or(a.sub(*b));
    }
    let mut columns = [W::splat(0); 8];
    columns[0] = differences;
    let mut are_equal = [false; 8];
    for (is_equal, [first, ..]) in are_equal.iter_mut().zip(W::rows(&columns)) {
        *is_equal = first == 0;
    }
    are_equal
}

/// Zero, in the form of a factor.
#[inline(always)]
pub(crate) fn zero<W: Register, const B: usize>() -> Long<W, B> {
    [[W::splat(0).factor(); BLOCK]; B]
}

/// Numbers in reduced words, converted to factors.
#[inline(always)]
pub(crate) fn factors<W: Register, const B: usize>(words: &[W]) -> Long<W, B> {
    let mut long = zero::<W, B>();
    for (factor, word) in long.as_flattened_mut().iter_mut().zip(words) {
        *factor = word.factor();
    }
    long
}

/// The reduced words of long numbers; unused vectors are zero.
#[inline(always)]
pub(crate) fn words<W: Register, const B: usize>(long: &Long<W, B>) -> [W; WORDS_MAX] {
    let mut words = [W::splat(0); WORDS_MAX];
    for (word, factor) in words.iter_mut().zip(long.as_flattened()) {
        *word = W::word(*factor);
    }
    words
}

/// Numbers in rows, converted to factors; if `is_same`, all lanes get the first number.
#[inline(always)]
pub(crate) fn read_long<W: Register, const B: usize>(numbers: &[&[Row]], is_same: bool) -> Long<W, B> {
    let mut long = zero::<W, B>();
    read_factors::<W>(long.as_flattened_mut(), numbers, is_same);
    long
}

#[inline(always)]
fn read_factors<W: Register>(factors: &mut [W::Factor], numbers: &[&[Row]], is_same: bool) {
    match (numbers, is_same) {
        ([number, ..], true) => {
            for (factor, word) in factors.iter_mut().zip(number.iter().flat_map(|row| &row.0)) {
                *factor = W::splat(*word).factor();
            }
        }
        _ => load(factors, numbers, W::factor),
    }
}

/// Overwrites numbers that are secret.
#[inline(always)]
pub(crate) fn wipe<W: Register, const B: usize>(numbers: &mut [Long<W, B>]) {
    for word in numbers.as_flattened_mut().as_flattened_mut() {
        // SAFETY: the pointer comes from a valid reference.
        unsafe { ptr::write_volatile(word, W::splat(0).factor()) };
    }
    compiler_fence(Ordering::SeqCst);
}
