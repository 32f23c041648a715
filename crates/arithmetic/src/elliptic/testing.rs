//! Shared parts of arithmetic tests: random numbers that make carries propagate, and macros that test each backend of
//! this CPU.

use num_bigint::BigUint;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::{BackendCode, BackendWords, WORD_BITS, WORDS, Words, load, store};
use crate::simd::{LANES, WordVector};

/// Random numbers; prints the seed if the test fails.
pub(crate) struct Random {
    pub(crate) rng: ChaCha8Rng,
    seed: u64,
}

impl Random {
    /// Uses the seed in `LINEWARDEN_SEED`, or a random seed.
    pub(crate) fn new() -> Self {
        let seed = match std::env::var("LINEWARDEN_SEED") {
            Ok(seed) => seed.parse().expect("LINEWARDEN_SEED is a number"),
            Err(_) => getrandom::u64().expect("a source of randomness"),
        };
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
            seed,
        }
    }

    /// A number below the bound: often near 0, near a power of two, near the bound, or with words that are all ones or
    /// all zeros.
    pub(crate) fn number(&mut self, bound: &BigUint) -> BigUint {
        let one = BigUint::from(1u32);
        let number = match self.rng.random_range(0..10) {
            0 => BigUint::from(self.rng.random_range(0..4u32)),
            1 => bound - self.rng.random_range(1..4u32),
            2 => one << self.rng.random_range(0..bound.bits()),
            3 => (one << self.rng.random_range(1..bound.bits())) - 1u32,
            4 => (one << self.rng.random_range(0..bound.bits())) + 1u32,
            5 => (0..WORDS).fold(BigUint::from(0u32), |number, _| {
                let word: u64 = if self.rng.random() {
                    (1 << WORD_BITS) - 1
                } else {
                    0
                };
                (number << WORD_BITS) + word
            }),
            _ => {
                let words: [u64; WORDS] = self.rng.random();
                words
                    .iter()
                    .fold(BigUint::from(0u32), |number, word| (number << 64u32) + *word)
            }
        };
        number % bound
    }

    /// Eight numbers below the bound, and the same numbers as words.
    pub(crate) fn lanes<W: WordVector>(&mut self, bound: &BigUint) -> ([BigUint; LANES], Words<W>) {
        let numbers = std::array::from_fn(|_| self.number(bound));
        let words = load(&std::array::from_fn(|lane| to_words(&numbers[lane])));
        (numbers, words)
    }
}

impl Drop for Random {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("LINEWARDEN_SEED={} reproduces this run", self.seed);
        }
    }
}

/// Reduced words of a number below 2^260.
pub(crate) fn to_words(number: &BigUint) -> [u64; WORDS] {
    std::array::from_fn(|word| {
        let shifted: BigUint = number >> (word * WORD_BITS as usize);
        (shifted % (1u64 << WORD_BITS)).try_into().expect("52 bits")
    })
}

/// The eight numbers with these words, which must be reduced.
pub(crate) fn from_words<W: WordVector>(words: &Words<W>) -> [BigUint; LANES] {
    store(words).map(|words| {
        assert!(
            words.iter().all(|word| word >> WORD_BITS == 0),
            "not reduced: {words:x?}"
        );
        words
            .iter()
            .rev()
            .fold(BigUint::from(0u32), |number, word| (number << WORD_BITS) + *word)
    })
}

/// The number with these limbs of 64 bits, least significant first.
pub(crate) fn from_limbs(limbs: &[u64; 4]) -> BigUint {
    limbs
        .iter()
        .rev()
        .fold(BigUint::from(0u32), |number, limb| (number << 64u32) + *limb)
}

/// Runs a generic test with each backend that this CPU supports.
macro_rules! on_each_backend {
    ($($test:ident),* $(,)?) => {$(
        #[test]
        fn $test() {
            super::$test::<$crate::simd::Portable>();
            #[cfg(target_arch = "x86_64")]
            {
                if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
                    super::$test::<$crate::simd::Fma>();
                }
                if std::is_x86_feature_detected!("avx512f") && std::is_x86_feature_detected!("avx512ifma") {
                    super::$test::<$crate::simd::Ifma>();
                }
            }
        }
    )*};
}
pub(crate) use on_each_backend;

/// Defines functions that are compiled with the backend's instructions, like the code under test. In an ordinary test
/// function, each vector instruction would be a call: a hundred kilobytes of code for one formula. In a closure, each
/// vector instruction is also a call if the compiler does not inline the closure.
macro_rules! with_instructions {
    ($(fn $name:ident<W>($($value:ident: $kind:ty),*) -> $output:ty $work:block)*) => {$(
        #[inline(never)]
        fn $name<W: BackendWords>($($value: $kind),*) -> $output {
            struct Arguments<W> {
                $($value: $kind,)*
                backend: std::marker::PhantomData<W>,
            }

            impl<W: BackendWords> $crate::elliptic::BackendCode for Arguments<W> {
                type Output = $output;

                #[inline(always)]
                fn run(self) -> $output {
                    let Self { $($value,)* backend: _ } = self;
                    $work
                }
            }

            let backend = std::marker::PhantomData;
            W::call(Arguments { $($value,)* backend })
        }
    )*};
}
pub(crate) use with_instructions;

/// Runs a closure, compiled with the backend's instructions if it is inlined. Use the function for short formulas only:
/// in a closure that is not inlined, each instruction is a call.
#[inline(never)]
pub(crate) fn run_with_instructions<W: BackendWords, T>(work: impl FnOnce() -> T) -> T {
    struct ClosureCode<F>(F);

    impl<T, F: FnOnce() -> T> BackendCode for ClosureCode<F> {
        type Output = T;

        #[inline(always)]
        fn run(self) -> T {
            (self.0)()
        }
    }

    W::call(ClosureCode(work))
}
