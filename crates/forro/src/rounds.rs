//! Numbers of rounds.

/// A number of rounds.
pub trait Rounds: sealed::Sealed + Copy + Default + 'static {
    /// Pairs of a column round and a diagonal round.
    const DOUBLE_ROUNDS: usize;
}

/// 6 rounds: only for measurements.
#[derive(Clone, Copy, Debug, Default)]
pub struct R6;
/// 10 rounds: only for measurements.
#[derive(Clone, Copy, Debug, Default)]
pub struct R10;
/// 14 rounds: the cipher.
#[derive(Clone, Copy, Debug, Default)]
pub struct R14;

impl Rounds for R6 {
    const DOUBLE_ROUNDS: usize = 3;
}
impl Rounds for R10 {
    const DOUBLE_ROUNDS: usize = 5;
}
impl Rounds for R14 {
    const DOUBLE_ROUNDS: usize = 7;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::R6 {}
    impl Sealed for super::R10 {}
    impl Sealed for super::R14 {}
}
