//! Four groups of blocks at once. Four groups need more registers than the CPU has, but are faster than two groups: with
//! two groups, chains of dependent instructions leave the CPU idle a third of the time.
//!
//! With AVX-512, even the first three rows of four groups need 48 registers. The CPU has 32, and compilers select
//! arbitrary words to spill. Here the last row is always in memory, which reduces spills: the addition that uses a word
//! also loads the word. Cycles per block on Zen 4: 38.5 with two groups, 39.7 with four groups and the compiler's spills,
//! 31.4 with four groups and this layout. The chain of dependent instructions and the execution ports each require at
//! least 21 cycles.

use super::lanes::Compare;
use crate::BLOCK_BYTES;
use crate::inputs::Inputs;
use crate::permute::{Word, permute};
use crate::rounds::Rounds;

/// Four independent groups, whose instructions alternate.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct FourGroups<W>([W; 4]);

impl<W: Word> FourGroups<W> {
    #[inline(always)]
    fn zip(self, other: Self, op: impl Fn(W, W) -> W) -> Self {
        let [a0, a1, a2, a3] = self.0;
        let [b0, b1, b2, b3] = other.0;
        Self([op(a0, b0), op(a1, b1), op(a2, b2), op(a3, b3)])
    }
}

impl<W: Word> Word for FourGroups<W> {
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, W::add)
    }
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        self.zip(other, W::xor)
    }
    #[inline(always)]
    fn rotate<const N: i32>(self) -> Self {
        Self(self.0.map(W::rotate::<N>))
    }

    #[inline(always)]
    fn spill(self, memory: &mut Self) {
        for (memory, word) in memory.0.iter_mut().zip(self.0) {
            // SAFETY: a valid, borrowed location. The access is volatile, so that the value is not kept in a
            // register.
            unsafe { core::ptr::from_mut(memory).write_volatile(word) }
        }
    }
    #[inline(always)]
    fn reload(memory: &Self) -> Self {
        // SAFETY: as above; the location holds a value.
        let load = |memory: &W| unsafe { core::ptr::from_ref(memory).read_volatile() };
        Self(memory.0.each_ref().map(load))
    }
}

/// Like [`super::lanes::matching`], for inputs of four groups.
#[inline(always)]
pub(super) fn matching<R: Rounds, W: Compare>(inputs: &Inputs, expected: &[&[u8; BLOCK_BYTES]]) -> u64 {
    const { assert!(4 * W::LANES == Inputs::BLOCKS_MAX) };
    let load = |row: &[u32; Inputs::BLOCKS_MAX], group: usize| {
        let group_row = row.get(group * W::LANES..).unwrap_or_default();
        W::load(group_row)
    };
    let words = inputs
        .rows
        .each_ref()
        .map(|row| FourGroups([load(row, 0), load(row, 1), load(row, 2), load(row, 3)]));
    let permuted = permute::<R, FourGroups<W>>(words);
    let mut equal = 0;
    for (group, expected) in expected.chunks(W::LANES).take(4).enumerate() {
        let mut words = inputs.rows.each_ref().map(|row| load(row, group));
        for (word, permuted) in words.iter_mut().zip(&permuted) {
            if let Some(permuted) = permuted.0.get(group) {
                *word = word.add(*permuted);
            }
        }
        equal |= W::equal(words, expected) << (group * W::LANES);
    }
    equal
}
