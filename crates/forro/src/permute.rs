//! The permutation, for one block and for many side by side.

use crate::rounds::Rounds;

/// One word of the matrix, or the same word of several matrices.
pub(crate) trait Word: Copy {
    /// Addition modulo 2^32, per lane.
    fn add(self, other: Self) -> Self;
    /// Bitwise xor.
    fn xor(self, other: Self) -> Self;
    /// Rotation to the left, `N` of 1 to 31.
    fn rotate<const N: i32>(self) -> Self;

    /// Stores the word for a round: in memory if the registers do not suffice for all rows.
    #[inline(always)]
    fn spill(self, memory: &mut Self) {
        *memory = self;
    }
    /// Loads the stored word.
    #[inline(always)]
    fn reload(memory: &Self) -> Self {
        *memory
    }
}

impl Word for u32 {
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        self ^ other
    }
    #[inline(always)]
    fn rotate<const N: i32>(self) -> Self {
        self.rotate_left(N.unsigned_abs())
    }
}

/// `QR(a, b, c, d, e)` of *Latin Dances Reloaded*; `e` is the pollen. The words `d` form the last row of the matrix. The
/// last row is the best row to spill: a round uses each of its words one time, for at most six operations.
macro_rules! quarter_round {
    ($m:ident: $a:literal, $b:literal, $c:literal, $d:literal | $e:literal) => {
        let d = W::reload(&$m[$d]).add($m[$e]);
        $m[$c] = $m[$c].xor(d);
        $m[$b] = $m[$b].add($m[$c]).rotate::<10>();
        $m[$a] = $m[$a].add($m[$b]);
        $m[$e] = $m[$e].xor($m[$a]);
        let d = d.add($m[$e]).rotate::<27>();
        d.spill(&mut $m[$d]);
        $m[$c] = $m[$c].add(d);
        $m[$b] = $m[$b].xor($m[$c]);
        $m[$a] = $m[$a].add($m[$b]).rotate::<8>();
    };
}

#[inline(always)]
fn double_round<W: Word>(mut m: [W; 16]) -> [W; 16] {
    quarter_round!(m: 0, 4, 8, 12 | 3);
    quarter_round!(m: 1, 5, 9, 13 | 0);
    quarter_round!(m: 2, 6, 10, 14 | 1);
    quarter_round!(m: 3, 7, 11, 15 | 2);
    quarter_round!(m: 0, 5, 10, 15 | 3);
    quarter_round!(m: 1, 6, 11, 12 | 0);
    quarter_round!(m: 2, 7, 8, 13 | 1);
    quarter_round!(m: 3, 4, 9, 14 | 2);
    m
}

/// The permutation without the final addition of the input.
#[inline(always)]
pub(crate) fn permute<R: Rounds, W: Word>(mut matrix: [W; 16]) -> [W; 16] {
    for _ in 0..R::DOUBLE_ROUNDS {
        matrix = double_round(matrix);
    }
    matrix
}

/// The block function.
#[inline(always)]
pub(crate) fn block<R: Rounds, W: Word>(matrix: &[W; 16]) -> [W; 16] {
    let mut words = permute::<R, W>(*matrix);
    for (word, input) in words.iter_mut().zip(matrix) {
        *word = word.add(*input);
    }
    words
}
