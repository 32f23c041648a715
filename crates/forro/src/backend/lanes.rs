//! Code shared by all backends: counters, groups of blocks, and the last blocks of a keystream.

use core::marker::PhantomData;

use cipher::array::{Array, ArraySize};
use cipher::consts::U64;
use cipher::typenum::Unsigned as _;
use cipher::{Block, BlockSizeUser, ParBlocks, ParBlocksSizeUser, StreamCipherBackend, StreamCipherCounter};

use crate::BLOCK_BYTES;
use crate::inputs::Inputs;
use crate::matrix::Matrix;
use crate::permute::{Word, block};
use crate::rounds::Rounds;

/// The same word of several matrices, one per lane.
pub(crate) trait Lanes: Word {
    /// Number of lanes, as a type.
    type Count: ArraySize;
    /// Number of lanes.
    const LANES: usize = Self::Count::USIZE;

    /// The same word in each lane.
    fn splat(word: u32) -> Self;
    /// One word per lane.
    fn from_lanes(word: impl Fn(usize) -> u32) -> Self;
    /// The words of up to `LANES` matrices; the content of unused lanes is unspecified.
    fn gather(matrices: &[Matrix]) -> [Self; 16];
    /// Writes the blocks of the first lanes, as many as `out` has room for.
    fn scatter(words: [Self; 16], out: &mut [[u8; BLOCK_BYTES]]);
    /// Keystream of up to `LANES` blocks.
    #[inline(always)]
    fn keystream<R: Rounds, N: BlockCounter>(matrix: &mut Matrix, out: &mut [[u8; BLOCK_BYTES]]) {
        counter_blocks::<R, Self, N>(matrix, out);
    }
}

/// Lanes whose blocks can be compared with given blocks.
pub(crate) trait Compare: Lanes {
    /// The first `LANES` of these words, one per lane; all lanes are 0 if there are fewer words.
    fn load(words: &[u32]) -> Self;
    /// Compares the blocks of the first lanes with `expected`. Returns one bit per lane, 1 if the lane's block equals its
    /// expected block; each comparison covers the whole block.
    fn equal(words: [Self; 16], expected: &[&[u8; BLOCK_BYTES]]) -> u64;
}

/// A block counter and its position in the matrix.
pub(crate) trait BlockCounter: StreamCipherCounter {
    /// Reads the counter from the matrix.
    fn read(matrix: &Matrix) -> Self;
    /// Writes the counter to the matrix.
    fn write(self, matrix: &mut Matrix);
    /// The counter advanced by `blocks`; after the largest number, it continues at 0.
    fn advanced(self, blocks: usize) -> Self;
    /// Words 4 and 5 of the matrix at this counter. With a 32-bit counter, word 5 is `word_5`.
    fn counter_words(self, word_5: u32) -> [u32; 2];
}

impl BlockCounter for u64 {
    #[inline(always)]
    fn read(matrix: &Matrix) -> Self {
        u64::from(matrix.0[4]) | u64::from(matrix.0[5]) << 32
    }
    #[inline(always)]
    fn write(self, matrix: &mut Matrix) {
        [matrix.0[4], matrix.0[5]] = self.counter_words(0);
    }
    #[inline(always)]
    fn advanced(self, blocks: usize) -> Self {
        self.wrapping_add(blocks as u64)
    }
    #[inline(always)]
    fn counter_words(self, _: u32) -> [u32; 2] {
        [self as u32, (self >> 32) as u32]
    }
}

impl BlockCounter for u32 {
    #[inline(always)]
    fn read(matrix: &Matrix) -> Self {
        matrix.0[4]
    }
    #[inline(always)]
    fn write(self, matrix: &mut Matrix) {
        matrix.0[4] = self;
    }
    #[inline(always)]
    fn advanced(self, blocks: usize) -> Self {
        self.wrapping_add(blocks as u32)
    }
    #[inline(always)]
    fn counter_words(self, word_5: u32) -> [u32; 2] {
        [self, word_5]
    }
}

/// Keystream of up to `W::LANES` blocks; advances the counter.
#[inline(always)]
pub(super) fn counter_blocks<R: Rounds, W: Lanes, N: BlockCounter>(
    matrix: &mut Matrix,
    out: &mut [[u8; BLOCK_BYTES]],
) {
    let (first, low, word_5) = (N::read(matrix), matrix.0[4], matrix.0[5]);
    let mut input = matrix.0.map(W::splat);
    if low.checked_add(W::LANES as u32).is_some() {
        input[4] = input[4].add(W::from_lanes(|lane| lane as u32));
    } else {
        // The counter carries in some lanes.
        input[4] = W::from_lanes(|lane| first.advanced(lane).counter_words(word_5)[0]);
        input[5] = W::from_lanes(|lane| first.advanced(lane).counter_words(word_5)[1]);
    }
    W::scatter(block::<R, W>(&input), out);
    first.advanced(out.len()).write(matrix);
}

/// The block of each matrix.
#[inline(always)]
pub(crate) fn matrix_blocks<R: Rounds, W: Lanes>(matrices: &[Matrix], out: &mut [[u8; BLOCK_BYTES]]) {
    for (matrices, out) in matrices.chunks(W::LANES).zip(out.chunks_mut(W::LANES)) {
        W::scatter(block::<R, W>(&W::gather(matrices)), out);
    }
}

/// Compares blocks with `expected`. Returns one bit per block, 1 if the block equals its expected block.
#[inline(always)]
pub(crate) fn matching<R: Rounds, W: Compare>(inputs: &Inputs, expected: &[&[u8; BLOCK_BYTES]]) -> u64 {
    let mut equal = 0;
    for (first, expected) in (0..Inputs::BLOCKS_MAX)
        .step_by(W::LANES)
        .zip(expected.chunks(W::LANES))
    {
        let words = inputs
            .rows
            .each_ref()
            .map(|row| W::load(row.get(first..).unwrap_or_default()));
        equal |= W::equal(block::<R, W>(&words), expected) << first;
    }
    equal
}

/// Compares rows with `expected`. Returns one bit per row, 1 if the row equals its expected row. All bytes of a row are
/// compared before the decision. A library's constant-time comparison, byte by byte, would cost as much as several
/// blocks.
#[inline(always)]
pub(crate) fn equal_rows(rows: &[[u8; BLOCK_BYTES]], expected: &[&[u8; BLOCK_BYTES]]) -> u64 {
    let is_equal = |(row, expected): (&[u8; BLOCK_BYTES], &&[u8; BLOCK_BYTES])| {
        let pairs = row.as_chunks::<8>().0.iter().zip(expected.as_chunks::<8>().0);
        let differs = pairs.fold(0, |differs, (a, b)| {
            differs | (u64::from_ne_bytes(*a) ^ u64::from_ne_bytes(*b))
        });
        u64::from(core::hint::black_box(differs) == 0)
    };
    let equal = rows.iter().zip(expected).map(is_equal);
    equal
        .enumerate()
        .fold(0, |bits, (lane, equal)| bits | equal << lane)
}

/// The backend of the `cipher` crate.
pub(crate) struct Stream<'a, R, W, N> {
    matrix: &'a mut Matrix,
    kind: PhantomData<(R, W, N)>,
}

impl<'a, R, W, N> Stream<'a, R, W, N> {
    pub(crate) fn new(matrix: &'a mut Matrix) -> Self {
        Self {
            matrix,
            kind: PhantomData,
        }
    }
}

impl<R, W, N> BlockSizeUser for Stream<'_, R, W, N> {
    type BlockSize = U64;
}

impl<R, W: Lanes, N> ParBlocksSizeUser for Stream<'_, R, W, N> {
    type ParBlocksSize = W::Count;
}

impl<R: Rounds, W: Lanes, N: BlockCounter> StreamCipherBackend for Stream<'_, R, W, N> {
    #[inline(always)]
    fn gen_ks_block(&mut self, block: &mut Block<Self>) {
        *block = Array(self.matrix.block::<R>());
        N::read(self.matrix).advanced(1).write(self.matrix);
    }

    #[inline(always)]
    fn gen_par_ks_blocks(&mut self, blocks: &mut ParBlocks<Self>) {
        counter_blocks::<R, W, N>(self.matrix, Array::cast_slice_to_core_mut(blocks));
    }

    #[inline(always)]
    fn gen_tail_blocks(&mut self, blocks: &mut [Block<Self>]) {
        match blocks {
            [] => {}
            // A single block is as fast without lanes.
            [block] => self.gen_ks_block(block),
            blocks => W::keystream::<R, N>(self.matrix, Array::cast_slice_to_core_mut(blocks)),
        }
    }
}
