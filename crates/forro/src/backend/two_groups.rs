//! Two groups of blocks at once: while one group waits for its chain of dependent instructions, the other group computes.

use core::ops::Add;

use cipher::array::ArraySize;

use super::lanes::{BlockCounter, Lanes, counter_blocks};
use crate::BLOCK_BYTES;
use crate::matrix::Matrix;
use crate::permute::Word;
use crate::rounds::Rounds;

/// Two independent groups with interleaved instructions.
#[derive(Clone, Copy)]
pub(crate) struct TwoGroups<W>(pub(crate) W, pub(crate) W);

impl<W: Word> Word for TwoGroups<W> {
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(self.0.add(other.0), self.1.add(other.1))
    }
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        Self(self.0.xor(other.0), self.1.xor(other.1))
    }
    #[inline(always)]
    fn rotate<const N: i32>(self) -> Self {
        Self(self.0.rotate::<N>(), self.1.rotate::<N>())
    }
}

impl<W: Lanes<Count: Add>> Lanes for TwoGroups<W>
where
    <W::Count as Add>::Output: ArraySize,
{
    type Count = <W::Count as Add>::Output;

    #[inline(always)]
    fn splat(word: u32) -> Self {
        Self(W::splat(word), W::splat(word))
    }

    #[inline(always)]
    fn from_lanes(word: impl Fn(usize) -> u32) -> Self {
        Self(W::from_lanes(&word), W::from_lanes(|lane| word(lane + W::LANES)))
    }

    #[inline(always)]
    fn gather(matrices: &[Matrix]) -> [Self; 16] {
        let (first, second) = matrices.split_at(matrices.len().min(W::LANES));
        // Word by word: an iterator would keep all words in memory.
        let [a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, aa, ab, ac, ad, ae, af] = W::gather(first);
        let [b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, ba, bb, bc, bd, be, bf] = W::gather(second);
        [
            Self(a0, b0),
            Self(a1, b1),
            Self(a2, b2),
            Self(a3, b3),
            Self(a4, b4),
            Self(a5, b5),
            Self(a6, b6),
            Self(a7, b7),
            Self(a8, b8),
            Self(a9, b9),
            Self(aa, ba),
            Self(ab, bb),
            Self(ac, bc),
            Self(ad, bd),
            Self(ae, be),
            Self(af, bf),
        ]
    }

    #[inline(always)]
    fn scatter(words: [Self; 16], out: &mut [[u8; BLOCK_BYTES]]) {
        let (first, second) = out.split_at_mut(out.len().min(W::LANES));
        W::scatter(words.map(|pair| pair.0), first);
        W::scatter(words.map(|pair| pair.1), second);
    }

    #[inline(always)]
    fn keystream<R: Rounds, N: BlockCounter>(matrix: &mut Matrix, out: &mut [[u8; BLOCK_BYTES]]) {
        match out.len() <= W::LANES {
            true => counter_blocks::<R, W, N>(matrix, out),
            false => counter_blocks::<R, Self, N>(matrix, out),
        }
    }
}
