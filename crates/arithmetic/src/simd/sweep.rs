//! Adds the product of a block and a long number to a sum: the primitive of all multiplications.
//!
//! There are two orders of the products. *Tiles* suit CPUs with many registers: the 25 products of two blocks fall into
//! ten columns. A column gets only two halves before the next column, so that additions to different columns overlap.
//! Half of the columns stay in registers for the next tile, so the code loads and stores five columns of the sum per 25
//! products.
//! *Columns* suit CPUs with few registers: the code computes all products of one column, then of the next. It keeps
//! only two sums in registers, but loads a word for each product.
#![allow(clippy::indexing_slicing)] // Constant indices, and blocks of a sum that is a block longer than the number.

use super::Register;
use super::kernel::{BLOCK, Block};

/// Adds the product of `block` and `number` to the sum, which has one block more than the number.
#[inline(always)]
pub(super) fn sweep<W: Register>(
    sum: &mut [Block<W>],
    block: &Block<W::Factor>,
    number: &[Block<W::Factor>],
) {
    let zero = W::splat(0);
    match W::TILES {
        true => tiles::<W, false>(sum, block, number, zero, &mut []),
        false => columns::<W, false>(
            sum.as_flattened_mut(),
            block,
            number.as_flattened(),
            zero,
            &mut [],
        ),
    }
}

/// `out = sum + block number + carry`, as reduced words. `out` and the sum have one block more than the number. The
/// function does not change `sum`.
#[inline(always)]
pub(super) fn sweep_out<W: Register>(
    sum: &mut [Block<W>],
    block: &Block<W::Factor>,
    number: &[Block<W::Factor>],
    carry: W,
    out: &mut [Block<W::Factor>],
) {
    match W::TILES {
        true => tiles::<W, true>(sum, block, number, carry, out),
        false => columns::<W, true>(
            sum.as_flattened_mut(),
            block,
            number.as_flattened(),
            carry,
            out.as_flattened_mut(),
        ),
    }
}

/// The computation in tiles. Writes reduced words to `out` if OUT, otherwise columns to `sum`.
#[inline(always)]
fn tiles<W: Register, const OUT: bool>(
    sum: &mut [Block<W>],
    block: &Block<W::Factor>,
    number: &[Block<W::Factor>],
    mut carry: W,
    out: &mut [Block<W::Factor>],
) {
    let mut upper_block = sum[0];
    for (index, digits) in number.iter().enumerate() {
        let mut tile = join(upper_block, sum[index + 1]);
        for (s, digit) in digits.iter().enumerate() {
            for (r, word) in block.iter().enumerate() {
                madd::<W>(&mut tile, r + s, *word, *digit);
            }
        }
        let complete_block;
        [complete_block, upper_block] = split(tile);
        match OUT {
            true => (out[index], carry) = normalize::<W>(complete_block, carry),
            false => sum[index] = complete_block,
        }
    }
    match OUT {
        true => (out[number.len()], _) = normalize::<W>(upper_block, carry),
        false => sum[number.len()] = upper_block,
    }
}

/// The computation in columns. Writes reduced words to `out` if OUT, otherwise columns to `sum`.
#[inline(always)]
fn columns<W: Register, const OUT: bool>(
    sum: &mut [W],
    block: &Block<W::Factor>,
    number: &[W::Factor],
    mut carry: W,
    out: &mut [W::Factor],
) {
    let words = number.len();
    if words < BLOCK {
        return;
    }
    let mut high = W::splat(0);
    for column in 0..BLOCK - 1 {
        let mut low = sum[column].add(high);
        high = W::splat(0);
        for r in 0..=column {
            W::madd(&mut low, &mut high, block[r], number[column - r]);
        }
        store_column::<W, OUT>(column, low, sum, &mut carry, out);
    }
    for (index, digits) in number.array_windows::<BLOCK>().enumerate() {
        let column = index + BLOCK - 1;
        let mut low = sum[column].add(high);
        high = W::column(&mut low, block, digits);
        store_column::<W, OUT>(column, low, sum, &mut carry, out);
    }
    for above in 0..BLOCK - 1 {
        let column = words + above;
        let mut low = sum[column].add(high);
        high = W::splat(0);
        for r in above + 1..BLOCK {
            W::madd(&mut low, &mut high, block[r], number[column - r]);
        }
        store_column::<W, OUT>(column, low, sum, &mut carry, out);
    }
    let column = words + BLOCK - 1;
    let low = sum[column].add(high);
    store_column::<W, OUT>(column, low, sum, &mut carry, out);
}

/// Stores a complete column at its position: unchanged in `sum`, or, if OUT, as a reduced word in `out` with the rest
/// in `carry`.
#[inline(always)]
fn store_column<W: Register, const OUT: bool>(
    column: usize,
    word: W,
    sum: &mut [W],
    carry: &mut W,
    out: &mut [W::Factor],
) {
    if !OUT {
        sum[column] = word;
        return;
    }
    let word = word.add(*carry);
    out[column] = word.low_factor();
    *carry = word.carry();
}

/// Adds the halves of a product to a column and to the next.
#[inline(always)]
pub(super) fn madd<W: Register>(tile: &mut [W; 2 * BLOCK], column: usize, a: W::Factor, b: W::Factor) {
    let (mut low, mut high) = (tile[column], tile[column + 1]);
    W::madd(&mut low, &mut high, a, b);
    tile[column] = low;
    tile[column + 1] = high;
}

/// The ten columns of a tile.
#[inline(always)]
pub(super) fn join<W: Copy>([a, b, c, d, e]: Block<W>, [f, g, h, i, j]: Block<W>) -> [W; 2 * BLOCK] {
    [a, b, c, d, e, f, g, h, i, j]
}

/// The two blocks of a tile.
#[inline(always)]
pub(super) fn split<W: Copy>([a, b, c, d, e, f, g, h, i, j]: [W; 2 * BLOCK]) -> [Block<W>; 2] {
    [[a, b, c, d, e], [f, g, h, i, j]]
}

/// The reduced words of a block of columns and a carry, and the carry out.
#[inline(always)]
pub(super) fn normalize<W: Register>(columns: Block<W>, mut carry: W) -> (Block<W::Factor>, W) {
    let mut words = [W::splat(0).factor(); BLOCK];
    for (out, column) in words.iter_mut().zip(columns) {
        let word = column.add(carry);
        *out = word.low_factor();
        carry = word.carry();
    }
    (words, carry)
}
