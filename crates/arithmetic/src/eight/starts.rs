//! What the columns of a sum begin with, where [`Register::madd`] adds constants beside the products.
#![allow(clippy::indexing_slicing)] // In constants only, where an index out of bounds does not compile.

use std::marker::PhantomData;

use super::Register;
use super::kernel::BLOCK;

/// Columns of the longest sum, 2 times 60, and room.
const COLUMNS_MAX: usize = 128;

/// By the products that will be added to each column; see the kernels.
pub(super) struct Starts<W, const B: usize>(PhantomData<W>);

impl<W: Register, const B: usize> Starts<W, B> {
    const WORDS: usize = B * BLOCK;
    const EMPTY: [u64; COLUMNS_MAX] = [0; COLUMNS_MAX];

    /// Of two long numbers.
    pub(super) const PRODUCT: [u64; COLUMNS_MAX] = Self::product(Self::EMPTY);
    /// And of the reduction of that.
    pub(super) const PRODUCT_AND_REDUCTION: [u64; COLUMNS_MAX] = Self::product(Self::REDUCTION);

    /// Of two different words of a number.
    pub(super) const MIXED: [u64; COLUMNS_MAX] = {
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
    /// Of a number's words with themselves, and of the reduction of its square.
    pub(super) const SQUARES_AND_REDUCTION: [u64; COLUMNS_MAX] = {
        let mut starts = Self::REDUCTION;
        let mut i = 0;
        while i < Self::WORDS {
            starts = Self::add(starts, 2 * i);
            i += 1;
        }
        starts
    };
    /// Of the quotients and m, for all but the last block, and of the last quotient and n: of this only what is not cleared.
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

    /// Of a block and a long number, from a column on.
    const fn sweep(mut starts: [u64; COLUMNS_MAX], from: usize) -> [u64; COLUMNS_MAX] {
        let mut i = 0;
        while i < BLOCK {
            let mut j = 0;
            while j < Self::WORDS {
                starts = Self::add(starts, from + i + j);
                j += 1;
            }
            i += 1;
        }
        starts
    }

    /// Of two words.
    const fn add(mut starts: [u64; COLUMNS_MAX], column: usize) -> [u64; COLUMNS_MAX] {
        starts[column] = starts[column].wrapping_add(W::START_LOW);
        starts[column + 1] = starts[column + 1].wrapping_add(W::START_HIGH);
        starts
    }
}
