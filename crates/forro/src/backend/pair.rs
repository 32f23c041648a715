//! Two groups at once: where one group's chain of dependent instructions leaves the CPU idle, the other's go on.

use core::ops::Add;

use cipher::array::ArraySize;

use super::lanes::{Counted, Lanes, counted};
use crate::BLOCK_BYTES;
use crate::matrix::Matrix;
use crate::permute::Word;
use crate::rounds::Rounds;

/// Two independent groups, whose instructions alternate: one waits while the other computes.
#[derive(Clone, Copy)]
pub(crate) struct Pair<W>(pub(crate) W, pub(crate) W);

impl<W: Word> Word for Pair<W> {
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

impl<W: Lanes<Count: Add>> Lanes for Pair<W>
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
        let (mut first, second) = (W::gather(first).into_iter(), W::gather(second));
        second.map(|second| Self(first.next().unwrap_or(second), second))
    }

    #[inline(always)]
    fn scatter(words: [Self; 16], out: &mut [[u8; BLOCK_BYTES]]) {
        let (first, second) = out.split_at_mut(out.len().min(W::LANES));
        W::scatter(words.map(|pair| pair.0), first);
        W::scatter(words.map(|pair| pair.1), second);
    }

    #[inline(always)]
    fn keystream<R: Rounds, N: Counted>(matrix: &mut Matrix, out: &mut [[u8; BLOCK_BYTES]]) {
        match out.len() <= W::LANES {
            true => counted::<R, W, N>(matrix, out),
            false => counted::<R, Self, N>(matrix, out),
        }
    }
}
