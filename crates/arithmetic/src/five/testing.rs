//! What the tests of arithmetic have in common: a seed, numbers that make carries ripple, and each backend of this CPU.

use num_bigint::BigUint;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::{Code, Outline, WORD_BITS, WORDS, Words, load, store};
use crate::eight::{LANES, Word8};

/// Random numbers, the seed printed should the test fail.
pub(crate) struct Random {
    pub(crate) rng: ChaCha8Rng,
    seed: u64,
}

impl Random {
    /// From `LINEWARDEN_SEED`, or else anew.
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

    /// A number below the bound: every other one near powers of two, near the bound, or with words of all ones and all zeros.
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

    /// Eight numbers below the bound, and these as words.
    pub(crate) fn lanes<W: Word8>(&mut self, bound: &BigUint) -> ([BigUint; LANES], Words<W>) {
        let numbers = std::array::from_fn(|_| self.number(bound));
        let words = load(&std::array::from_fn(|lane| to_words(&numbers[lane])));
        (numbers, words)
    }
}

impl Drop for Random {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("LINEWARDEN_SEED={} repeats it", self.seed);
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

/// The eight numbers that reduced words are.
pub(crate) fn from_words<W: Word8>(words: &Words<W>) -> [BigUint; LANES] {
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

/// The number in limbs of 64 bits.
pub(crate) fn from_limbs(limbs: &[u64; 4]) -> BigUint {
    limbs
        .iter()
        .rev()
        .fold(BigUint::from(0u32), |number, limb| (number << 64u32) + *limb)
}

/// Runs a generic test with each backend that this CPU has.
macro_rules! on_each_backend {
    ($($test:ident),* $(,)?) => {$(
        #[test]
        fn $test() {
            super::$test::<$crate::eight::Portable>();
            #[cfg(target_arch = "x86_64")]
            {
                if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
                    super::$test::<$crate::eight::Fma>();
                }
                if std::is_x86_feature_detected!("avx512f") && std::is_x86_feature_detected!("avx512ifma") {
                    super::$test::<$crate::eight::Ifma>();
                }
            }
        }
    )*};
}
pub(crate) use on_each_backend;

/// Functions that have the backend's instructions, as the product's have: in a test itself, and in a closure, which is not inlined where
/// little is optimised, each instruction of a formula would be a call, and a formula a hundred kilobytes of them.
macro_rules! with_instructions {
    ($(fn $name:ident<W>($($value:ident: $kind:ty),*) -> $output:ty $work:block)*) => {$(
        #[inline(never)]
        fn $name<W: Outline>($($value: $kind),*) -> $output {
            struct Arguments<W> {
                $($value: $kind,)*
                backend: std::marker::PhantomData<W>,
            }

            impl<W: Outline> $crate::five::Code for Arguments<W> {
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

/// The same for a short formula, whose calls are few.
#[inline(never)]
pub(crate) fn with<W: Outline, T>(work: impl FnOnce() -> T) -> T {
    struct Work<F>(F);

    impl<T, F: FnOnce() -> T> Code for Work<F> {
        type Output = T;

        #[inline(always)]
        fn run(self) -> T {
            (self.0)()
        }
    }

    W::call(Work(work))
}
