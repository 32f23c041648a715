//! What all backends share: counters, groups of blocks, the rest at the end.

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

/// The same word of several matrices, a lane each.
pub(crate) trait Lanes: Word {
    /// How many.
    type Count: ArraySize;
    /// How many.
    const LANES: usize = Self::Count::USIZE;

    /// The same in each.
    fn splat(word: u32) -> Self;
    /// Lane by lane.
    fn from_lanes(word: impl Fn(usize) -> u32) -> Self;
    /// The words of up to `LANES` matrices; lanes beyond them hold anything.
    fn gather(matrices: &[Matrix]) -> [Self; 16];
    /// The blocks of the first lanes, as many as there is room for.
    fn scatter(words: [Self; 16], out: &mut [[u8; BLOCK_BYTES]]);
    /// Keystream of up to `LANES` blocks.
    #[inline(always)]
    fn keystream<R: Rounds, N: Counted>(matrix: &mut Matrix, out: &mut [[u8; BLOCK_BYTES]]) {
        counted::<R, Self, N>(matrix, out);
    }
}

/// Lanes whose blocks can be compared with what was given.
pub(crate) trait Compare: Lanes {
    /// The first `LANES` of these words, lane by lane; 0 where there are fewer.
    fn load(words: &[u32]) -> Self;
    /// Which of the first lanes' blocks are those, a bit each; of each all is compared.
    fn equal(words: [Self; 16], given: &[&[u8; BLOCK_BYTES]]) -> u64;
}

/// A block counter and its place in the matrix.
pub(crate) trait Counted: StreamCipherCounter {
    /// Where the matrix stands.
    fn read(matrix: &Matrix) -> Self;
    /// Moves it there.
    fn write(self, matrix: &mut Matrix);
    /// So many blocks further, modulo the counter's size.
    fn plus(self, blocks: usize) -> Self;
    /// Words 4 and 5 at this counter, of which the second may be `other`'s.
    fn words(self, other: u32) -> [u32; 2];
}

impl Counted for u64 {
    #[inline(always)]
    fn read(matrix: &Matrix) -> Self {
        u64::from(matrix.0[4]) | u64::from(matrix.0[5]) << 32
    }
    #[inline(always)]
    fn write(self, matrix: &mut Matrix) {
        [matrix.0[4], matrix.0[5]] = self.words(0);
    }
    #[inline(always)]
    fn plus(self, blocks: usize) -> Self {
        self.wrapping_add(blocks as u64)
    }
    #[inline(always)]
    fn words(self, _: u32) -> [u32; 2] {
        [self as u32, (self >> 32) as u32]
    }
}

impl Counted for u32 {
    #[inline(always)]
    fn read(matrix: &Matrix) -> Self {
        matrix.0[4]
    }
    #[inline(always)]
    fn write(self, matrix: &mut Matrix) {
        matrix.0[4] = self;
    }
    #[inline(always)]
    fn plus(self, blocks: usize) -> Self {
        self.wrapping_add(blocks as u32)
    }
    #[inline(always)]
    fn words(self, other: u32) -> [u32; 2] {
        [self, other]
    }
}

/// Keystream of up to `W::LANES` blocks; the counter goes on by as many.
#[inline(always)]
pub(super) fn counted<R: Rounds, W: Lanes, N: Counted>(matrix: &mut Matrix, out: &mut [[u8; BLOCK_BYTES]]) {
    let (first, low, other) = (N::read(matrix), matrix.0[4], matrix.0[5]);
    let mut input = matrix.0.map(W::splat);
    if low.checked_add(W::LANES as u32).is_some() {
        input[4] = input[4].add(W::from_lanes(|lane| lane as u32));
    } else {
        // Some lanes are beyond a carry.
        input[4] = W::from_lanes(|lane| first.plus(lane).words(other)[0]);
        input[5] = W::from_lanes(|lane| first.plus(lane).words(other)[1]);
    }
    W::scatter(block::<R, W>(&input), out);
    first.plus(out.len()).write(matrix);
}

/// The block of each matrix.
#[inline(always)]
pub(crate) fn many<R: Rounds, W: Lanes>(matrices: &[Matrix], out: &mut [[u8; BLOCK_BYTES]]) {
    for (matrices, out) in matrices.chunks(W::LANES).zip(out.chunks_mut(W::LANES)) {
        W::scatter(block::<R, W>(&W::gather(matrices)), out);
    }
}

/// Which blocks are those that were given, a bit each.
#[inline(always)]
pub(crate) fn matching<R: Rounds, W: Compare>(inputs: &Inputs, given: &[&[u8; BLOCK_BYTES]]) -> u64 {
    let mut equal = 0;
    for (first, given) in (0..Inputs::ROOM).step_by(W::LANES).zip(given.chunks(W::LANES)) {
        let words = inputs
            .rows
            .each_ref()
            .map(|row| W::load(row.get(first..).unwrap_or_default()));
        equal |= W::equal(block::<R, W>(&words), given) << first;
    }
    equal
}

/// Rows beside what was given. All of a row before the answer: a comparison byte by byte, as a library makes it to be sure,
/// would cost several blocks.
#[inline(always)]
pub(crate) fn equal_rows(rows: &[[u8; BLOCK_BYTES]], given: &[&[u8; BLOCK_BYTES]]) -> u64 {
    let is_equal = |(row, given): (&[u8; BLOCK_BYTES], &&[u8; BLOCK_BYTES])| {
        let pairs = row.as_chunks::<8>().0.iter().zip(given.as_chunks::<8>().0);
        let differs = pairs.fold(0, |differs, (a, b)| {
            differs | (u64::from_ne_bytes(*a) ^ u64::from_ne_bytes(*b))
        });
        u64::from(core::hint::black_box(differs) == 0)
    };
    let equal = rows.iter().zip(given).map(is_equal);
    equal
        .enumerate()
        .fold(0, |all, (lane, equal)| all | equal << lane)
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

impl<R: Rounds, W: Lanes, N: Counted> StreamCipherBackend for Stream<'_, R, W, N> {
    #[inline(always)]
    fn gen_ks_block(&mut self, block: &mut Block<Self>) {
        *block = Array(self.matrix.block::<R>());
        N::read(self.matrix).plus(1).write(self.matrix);
    }

    #[inline(always)]
    fn gen_par_ks_blocks(&mut self, blocks: &mut ParBlocks<Self>) {
        counted::<R, W, N>(self.matrix, Array::cast_slice_to_core_mut(blocks));
    }

    #[inline(always)]
    fn gen_tail_blocks(&mut self, blocks: &mut [Block<Self>]) {
        match blocks {
            [] => {}
            // Alone it is as fast without lanes.
            [block] => self.gen_ks_block(block),
            blocks => W::keystream::<R, N>(self.matrix, Array::cast_slice_to_core_mut(blocks)),
        }
    }
}
