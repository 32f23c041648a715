//! Montgomery multiplication of several numbers at once, each with its own odd modulus.
//!
//! # Numbers
//! A number has B blocks of five 52-bit words, so that the Montgomery radix is `R = 2^(260 B)`: 4 blocks for 1,024
//! bits, 6 for 1,536, 8 for 2,048, 12 for 3,072. R is at least 2^16 n for every modulus n. Numbers stay below 3 n
//! (*almost* Montgomery; Gueron, *Efficient software implementations of modular exponentiation*, 2012); only final
//! results are reduced below n.
//!
//! # Reduction
//! The reduction processes one block at a time. With `k = -n^-1 mod 2^260`, the multiple `k n` of the modulus is -1
//! modulo 2^260: adding `q k n`, where q is the sum's lowest block, clears that block and adds `q m` to the higher
//! blocks, with `m = (k n + 1) / 2^260`. The quotient q requires no multiplication. These steps alone would give
//! results of up to about `k n`, which is too large. Therefore a multiple of n itself clears the last block: the
//! quotient is then `q = low k mod 2^260`, where `low` is the last block.
//! For a sum T the result is less than `T / R + k n / 2^260 + n < T / R + 2 n`: below 3 n for the product of two
//! numbers below 3 n, since `9 n^2 / R < n`.
//!
//! # Bounds
//! A column of a sum collects at most 4 L halves of products, with L = 5 B <= 60 words, so its value stays below 2^60
//! (see [`WordVector`](super::WordVector) for the signs of the halves).
#![allow(clippy::indexing_slicing)] // Constants, and indices of blocks: a sum has twice as many as a number.
#![allow(clippy::needless_range_loop)] // The indices r and s of two factors' words are clearer than iterators.

use super::row::{self, WORDS_MAX};
use super::sweep::{join, madd, normalize, split, sweep, sweep_out};
#[cfg(target_arch = "x86_64")]
use super::{Half, Ifma};
use super::{Portable, Register, accumulator::AccumulatorStart};

/// Words in a block.
pub(crate) const BLOCK: usize = 5;
/// The words of a block.
pub(crate) type Block<T> = [T; BLOCK];
/// A long number of each lane, as factors: B blocks, least significant first.
pub(crate) type Long<W, const B: usize> = [Block<<W as Register>::Factor>; B];

/// The modulus of each lane.
#[derive(Clone, Copy)]
pub(crate) struct Moduli<W: Register, const B: usize> {
    /// n, odd.
    pub(crate) n: Long<W, B>,
    /// `k = -n^-1 mod 2^260`.
    pub(crate) k: Block<W::Factor>,
    /// `m = (k n + 1) / 2^260`, at most n.
    pub(crate) m: Long<W, B>,
}

/// Functions that are compiled separately for each backend. They are never inlined, so that consecutive calls reuse the
/// same stack.
pub(crate) trait Kernels: Register {
    /// `a = a b / R mod n`, below 3 n if `a b < n R`.
    fn multiply<const B: usize>(a: &mut Long<Self, B>, b: &Long<Self, B>, moduli: &Moduli<Self, B>);
    /// `a = a^2 / R mod n`, below 3 n if `a^2 < n R`.
    fn square<const B: usize>(a: &mut Long<Self, B>, moduli: &Moduli<Self, B>);
    /// `out = number / R mod n`, below 3 n, for a number below `n R` in at most 2 B blocks of words below 2^52.
    fn reduce<const B: usize>(out: &mut Long<Self, B>, number: &[Self], moduli: &Moduli<Self, B>);
    /// `out = a b + c`, in 2 B blocks; c has at most as many words, and the sum is below R^2.
    fn multiply_add<const B: usize>(
        out: &mut [Block<Self::Factor>],
        a: &Long<Self, B>,
        b: &Long<Self, B>,
        c: &[Self],
    );
    /// `out = table[number]`. Reads all entries, since `number` is secret. All lanes use the same `number`.
    fn select_constant_time<const B: usize>(out: &mut Long<Self, B>, table: &[Long<Self, B>], number: u64);
    /// See [`row::load_be`].
    fn load_be(words: &mut [Self; WORDS_MAX], numbers: &[&[u8]]);
    /// See [`row::store_be`].
    fn store_be(numbers: &mut [&mut [u8]], words: &[Self; WORDS_MAX]);
    /// Subtracts n from numbers below 3 n, in words below 2^52, until the numbers are below n.
    fn subtract(words: &mut [Self; WORDS_MAX], n: &[Self::Factor]);
}

macro_rules! kernels {
    ($word:ty $(, $features:literal)?) => {
        impl Kernels for $word {
            #[inline(always)]
            fn multiply<const B: usize>(a: &mut Long<$word, B>, b: &Long<$word, B>, moduli: &Moduli<$word, B>) {
                $(#[target_feature(enable = $features)])?
                #[inline(never)]
                fn with_instructions<const B: usize>(a: &mut Long<$word, B>, b: &Long<$word, B>, moduli: &Moduli<$word, B>) {
                    multiply::<$word, B>(a, b, moduli);
                }
                #[allow(unused_unsafe)] // One backend needs no unsafe.
                // SAFETY: code uses this type only if the CPU has the instructions.
                unsafe {
                    with_instructions(a, b, moduli);
                }
            }
            #[inline(always)]
            fn square<const B: usize>(a: &mut Long<$word, B>, moduli: &Moduli<$word, B>) {
                $(#[target_feature(enable = $features)])?
                #[inline(never)]
                fn with_instructions<const B: usize>(a: &mut Long<$word, B>, moduli: &Moduli<$word, B>) {
                    square::<$word, B>(a, moduli);
                }
                #[allow(unused_unsafe)] // One backend needs no unsafe.
                // SAFETY: code uses this type only if the CPU has the instructions.
                unsafe {
                    with_instructions(a, moduli);
                }
            }
            #[inline(always)]
            fn reduce<const B: usize>(out: &mut Long<$word, B>, number: &[$word], moduli: &Moduli<$word, B>) {
                $(#[target_feature(enable = $features)])?
                #[inline(never)]
                fn with_instructions<const B: usize>(out: &mut Long<$word, B>, number: &[$word], moduli: &Moduli<$word, B>) {
                    reduce::<$word, B>(out, number, moduli);
                }
                #[allow(unused_unsafe)] // One backend needs no unsafe.
                // SAFETY: code uses this type only if the CPU has the instructions.
                unsafe {
                    with_instructions(out, number, moduli);
                }
            }
            #[inline(always)]
            fn multiply_add<const B: usize>(out: &mut [Block<<$word as Register>::Factor>], a: &Long<$word, B>, b: &Long<$word, B>, c: &[$word]) {
                $(#[target_feature(enable = $features)])?
                #[inline(never)]
                fn with_instructions<const B: usize>(out: &mut [Block<<$word as Register>::Factor>], a: &Long<$word, B>, b: &Long<$word, B>, c: &[$word]) {
                    multiply_add::<$word, B>(out, a, b, c);
                }
                #[allow(unused_unsafe)] // One backend needs no unsafe.
                // SAFETY: code uses this type only if the CPU has the instructions.
                unsafe {
                    with_instructions(out, a, b, c);
                }
            }
            #[inline(always)]
            fn select_constant_time<const B: usize>(out: &mut Long<$word, B>, table: &[Long<$word, B>], number: u64) {
                $(#[target_feature(enable = $features)])?
                #[inline(never)]
                fn with_instructions<const B: usize>(out: &mut Long<$word, B>, table: &[Long<$word, B>], number: u64) {
                    select_constant_time::<$word, B>(out, table, number);
                }
                #[allow(unused_unsafe)] // One backend needs no unsafe.
                // SAFETY: code uses this type only if the CPU has the instructions.
                unsafe {
                    with_instructions(out, table, number);
                }
            }
            #[inline(always)]
            fn load_be(words: &mut [$word; WORDS_MAX], numbers: &[&[u8]]) {
                $(#[target_feature(enable = $features)])?
                #[inline(never)]
                fn with_instructions(words: &mut [$word; WORDS_MAX], numbers: &[&[u8]]) {
                    row::load_be(words, numbers);
                }
                #[allow(unused_unsafe)] // One backend needs no unsafe.
                // SAFETY: code uses this type only if the CPU has the instructions.
                unsafe {
                    with_instructions(words, numbers);
                }
            }
            #[inline(always)]
            fn store_be(numbers: &mut [&mut [u8]], words: &[$word; WORDS_MAX]) {
                $(#[target_feature(enable = $features)])?
                #[inline(never)]
                fn with_instructions(numbers: &mut [&mut [u8]], words: &[$word; WORDS_MAX]) {
                    row::store_be(numbers, words);
                }
                #[allow(unused_unsafe)] // One backend needs no unsafe.
                // SAFETY: code uses this type only if the CPU has the instructions.
                unsafe {
                    with_instructions(numbers, words);
                }
            }
            #[inline(always)]
            fn subtract(words: &mut [$word; WORDS_MAX], n: &[<$word as Register>::Factor]) {
                $(#[target_feature(enable = $features)])?
                #[inline(never)]
                fn with_instructions(words: &mut [$word; WORDS_MAX], n: &[<$word as Register>::Factor]) {
                    subtract::<$word>(words, n);
                }
                #[allow(unused_unsafe)] // One backend needs no unsafe.
                // SAFETY: code uses this type only if the CPU has the instructions.
                unsafe {
                    with_instructions(words, n);
                }
            }
        }
    };
}
kernels!(Portable);
#[cfg(target_arch = "x86_64")]
kernels!(Half, "avx2,fma");
#[cfg(target_arch = "x86_64")]
kernels!(Ifma, "avx512f,avx512ifma");

/// A sum of 2 B blocks.
type Sum<W, const B: usize> = [[Block<W>; B]; 2];

/// Zeros that the compiler does not recognize as such: for known zeros it would call memset, which takes longer.
macro_rules! zeroed_sum {
    () => {
        [[[W::splat(std::hint::black_box(0)); BLOCK]; B]; 2]
    };
}

/// Initializes the columns of a sum with the accumulator constants and a number.
#[inline(always)]
fn start_sum<W: Register, const B: usize>(sum: &mut Sum<W, B>, starts: &[u64], number: &[W]) {
    let columns = sum.as_flattened_mut().as_flattened_mut();
    if W::START_LOW != 0 {
        for (column, start) in columns.iter_mut().zip(starts) {
            *column = W::splat(*start);
        }
    }
    for (column, word) in columns.iter_mut().zip(number) {
        *column = column.add(*word);
    }
}

#[inline(always)]
fn multiply<W: Register, const B: usize>(a: &mut Long<W, B>, b: &Long<W, B>, moduli: &Moduli<W, B>) {
    let mut sum: Sum<W, B> = zeroed_sum!();
    start_sum(&mut sum, &AccumulatorStart::<W, B>::PRODUCT_AND_REDUCTION, &[]);
    let sum = sum.as_flattened_mut();
    for (index, block) in a.iter().enumerate() {
        sweep::<W>(&mut sum[index..], block, b);
    }
    reduce_sum(a, sum, moduli);
}

/// Products of different words are summed once, and the sum is doubled before the squares of the words are added.
#[inline(always)]
fn square<W: Register, const B: usize>(a: &mut Long<W, B>, moduli: &Moduli<W, B>) {
    let mut sum: Sum<W, B> = zeroed_sum!();
    start_sum(&mut sum, &AccumulatorStart::<W, B>::CROSS_PRODUCTS, &[]);
    let sum = sum.as_flattened_mut();
    for (index, block) in a.iter().enumerate() {
        let sum = &mut sum[2 * index..];
        let mut tile = join(sum[0], sum[1]);
        for r in 0..BLOCK {
            for s in r + 1..BLOCK {
                madd::<W>(&mut tile, r + s, block[r], block[s]);
            }
        }
        [sum[0], sum[1]] = split(tile);
        sweep::<W>(&mut sum[1..], block, &a[index + 1..]);
    }
    for (index, words) in a.iter().enumerate() {
        let mut tile = join(sum[2 * index], sum[2 * index + 1]);
        for (column, word) in tile.iter_mut().enumerate() {
            *word = word.add(*word);
            if W::START_LOW != 0 {
                *word = word.add(W::splat(
                    AccumulatorStart::<W, B>::SQUARES_AND_REDUCTION[2 * BLOCK * index + column],
                ));
            }
        }
        for (r, word) in words.iter().enumerate() {
            madd::<W>(&mut tile, 2 * r, *word, *word);
        }
        [sum[2 * index], sum[2 * index + 1]] = split(tile);
    }
    reduce_sum(a, sum, moduli);
}

#[inline(always)]
fn reduce<W: Register, const B: usize>(out: &mut Long<W, B>, number: &[W], moduli: &Moduli<W, B>) {
    let mut sum: Sum<W, B> = zeroed_sum!();
    start_sum(&mut sum, &AccumulatorStart::<W, B>::REDUCTION, number);
    reduce_sum(out, sum.as_flattened_mut(), moduli);
}

#[inline(always)]
fn multiply_add<W: Register, const B: usize>(
    out: &mut [Block<W::Factor>],
    a: &Long<W, B>,
    b: &Long<W, B>,
    c: &[W],
) {
    let mut sum: Sum<W, B> = zeroed_sum!();
    start_sum(&mut sum, &AccumulatorStart::<W, B>::PRODUCT, c);
    let sum = sum.as_flattened_mut();
    for (index, block) in a.iter().enumerate() {
        sweep::<W>(&mut sum[index..], block, b);
    }
    let mut carry = W::splat(0);
    for (out, block) in out.iter_mut().zip(sum) {
        (*out, carry) = normalize::<W>(*block, carry);
    }
}

#[inline(always)]
fn select_constant_time<W: Register, const B: usize>(
    out: &mut Long<W, B>,
    table: &[Long<W, B>],
    number: u64,
) {
    let out = out.as_flattened_mut();
    for out in &mut *out {
        *out = W::splat(0).factor();
    }
    for (index, entry) in (0u64..).zip(table) {
        // All ones if both numbers are equal: both are small, so their XOR minus 1 is negative only for an XOR of 0.
        let mask = ((index ^ number).wrapping_sub(1).cast_signed() >> 63).cast_unsigned();
        let mask = W::splat(std::hint::black_box(mask));
        for (out, word) in out.iter_mut().zip(entry.as_flattened()) {
            *out = W::merge(*out, *word, mask);
        }
    }
}

#[inline(always)]
fn subtract<W: Register>(words: &mut [W; WORDS_MAX], n: &[W::Factor]) {
    for _ in 0..2 {
        let mut reduced = [W::splat(0); WORDS_MAX];
        let mut carry = W::splat(0);
        for ((reduced, word), n) in reduced.iter_mut().zip(&*words).zip(n) {
            let difference = word.sub(W::word(*n)).add(carry);
            *reduced = difference.low();
            carry = difference.carry();
        }
        // `carry` is all ones in lanes with a negative difference, zero elsewhere.
        let not_carry = W::splat(u64::MAX).sub(carry);
        for (word, reduced) in words.iter_mut().zip(reduced) {
            *word = word.and(carry).or(reduced.and(not_carry));
        }
    }
}

/// `out = sum / R mod n`: see the module documentation.
///
/// The loop computes the next quotient as soon as the sum's next block is complete. The carries of that computation
/// then propagate while the remaining products are computed.
#[inline(always)]
fn reduce_sum<W: Register, const B: usize>(
    out: &mut Long<W, B>,
    sum: &mut [Block<W>],
    moduli: &Moduli<W, B>,
) {
    let zero = W::splat(0);
    let (mut quotient, mut carry) = normalize::<W>(sum[0], zero);
    let mut top = zero;
    for index in 1..B {
        let sum = &mut sum[index..];
        sum[0][0] = sum[0][0].add(carry);
        sweep::<W>(sum, &quotient, &moduli.m[..1]);
        let mut next_quotient;
        (next_quotient, carry) = normalize::<W>(sum[0], zero);
        if index + 1 == B {
            top = W::word(next_quotient[BLOCK - 1]);
            next_quotient = last_quotient::<W>(&next_quotient, &moduli.k);
        }
        sweep::<W>(&mut sum[1..], &quotient, &moduli.m[1..]);
        quotient = next_quotient;
    }
    let sum = &mut sum[B - 1..];
    let mut tile = join([zero, zero, zero, zero, top.add(W::accumulator(5, 4))], sum[1]);
    for r in 0..BLOCK {
        for s in BLOCK - 2 - r.min(BLOCK - 2)..BLOCK {
            madd::<W>(&mut tile, r + s, quotient[r], moduli.n[0][s]);
        }
    }
    // The cleared block is a multiple of 2^260, and the carry is this multiple divided by 2^260. The block's uppermost
    // column suffices to find the carry: the lower columns add less than 2^10 to that column.
    let cleared_carry = tile[BLOCK - 1].add(W::splat(1 << 51)).carry();
    [_, sum[1]] = split(tile);
    sweep_out::<W>(
        &mut sum[1..],
        &quotient,
        &moduli.n[1..],
        carry.add(cleared_carry),
        out,
    );
}

/// The quotient of the last block: `low k mod 2^260`.
#[inline(always)]
fn last_quotient<W: Register>(low: &Block<W::Factor>, k: &Block<W::Factor>) -> Block<W::Factor> {
    let zero = W::splat(0);
    let mut product = [zero; 2 * BLOCK];
    for (highs, column) in (0..5).zip(&mut product) {
        *column = W::accumulator(highs + 1, highs);
    }
    for r in 0..BLOCK {
        for s in 0..BLOCK - r {
            madd::<W>(&mut product, r + s, low[r], k[s]);
        }
    }
    let [product, _] = split(product);
    normalize::<W>(product, zero).0
}
