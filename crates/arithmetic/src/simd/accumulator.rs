//! Initial values of the columns of a sum. They cancel the constants that [`Register::madd`] of some backends adds with
//! each product.
#![allow(clippy::indexing_slicing)] // In constants only, where an index out of bounds does not compile.

use std::marker::PhantomData;

use super::Register;
use super::kernel::BLOCK;

/// Columns of the longest sum, 2 times 60, with a margin.
const COLUMNS_MAX: usize = 128;

/// Initial values of columns, according to the number of products that the kernels add to each column.
pub(super) struct AccumulatorStart<W, const B: usize>(PhantomData<W>);

impl<W: Register, const B: usize> AccumulatorStart<W, B> {
    const WORDS: usize = B * BLOCK;
    const EMPTY: [u64; COLUMNS_MAX] = [0; COLUMNS_MAX];

    /// For the product of two long numbers.
    pub(super) const PRODUCT: [u64; COLUMNS_MAX] = Self::product(Self::EMPTY);
    /// For a product and its reduction.
    pub(super) const PRODUCT_AND_REDUCTION: [u64; COLUMNS_MAX] = Self::product(Self::REDUCTION);

    /// For the products of each two different words of a number.
    pub(super) const CROSS_PRODUCTS: [u64; COLUMNS_MAX] = {
        let mut starts = Self::EMPTY;
        let mut i = 0;
        while i < Self::WORDS {
            let mut j = i + 1;
            while j < Self::WORDS {
                starts = Self::add(starts, i + j);
                j += 1;
            }
            i += 1;
        }
        starts
    };
    /// For the squares of a number's words, and the reduction of its square.
    pub(super) const SQUARES_AND_REDUCTION: [u64; COLUMNS_MAX] = {
        let mut starts = Self::REDUCTION;
        let mut i = 0;
        while i < Self::WORDS {
            starts = Self::add(starts, 2 * i);
            i += 1;
        }
        starts
    };
    /// For a reduction (see the kernels): for the products of m and all quotients except the last, and for the product of
    /// n and the last quotient. The product of n and the last quotient counts only above the columns that the product
    /// clears.
    pub(super) const REDUCTION: [u64; COLUMNS_MAX] = {
        let mut starts = Self::EMPTY;
        starts = Self::sweep(starts, Self::WORDS - BLOCK);
        let mut column = 0;
        while column < Self::WORDS {
            starts[column] = 0;
            column += 1;
        }
        let mut index = 1;
        while index < B {
            starts = Self::sweep(starts, index * BLOCK);
            index += 1;
        }
        starts
    };

    const fn product(mut starts: [u64; COLUMNS_MAX]) -> [u64; COLUMNS_MAX] {
        let mut index = 0;
        while index < B {
            starts = Self::sweep(starts, index * BLOCK);
            index += 1;
        }
        starts
    }

    /// Adds the initial values for the product of a block and a long number, from column `first` on.
    const fn sweep(mut starts: [u64; COLUMNS_MAX], first: usize) -> [u64; COLUMNS_MAX] {
        let mut i = 0;
        while i < BLOCK {
            let mut j = 0;
            while j < Self::WORDS {
                starts = Self::add(starts, first + i + j);
                j += 1;
            }
            i += 1;
        }
        starts
    }

    /// Adds the initial values for the product of two words, with its low half in `column`.
    const fn add(mut starts: [u64; COLUMNS_MAX], column: usize) -> [u64; COLUMNS_MAX] {
        starts[column] = starts[column].wrapping_add(W::START_LOW);
        starts[column + 1] = starts[column + 1].wrapping_add(W::START_HIGH);
        starts
    }
}
