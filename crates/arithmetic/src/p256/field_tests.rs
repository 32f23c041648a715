//! Compares field operations with num-bigint, for random and extreme numbers.

use num_bigint::BigUint;

use super::*;
use crate::elliptic::testing::{Random, from_limbs, from_words, on_each_backend, run_with_instructions};
use crate::simd::LANES;

const ROUNDS: usize = 300;

mod each {
    super::on_each_backend!(products, sums_of_products, linear_operations, zeros);
}

fn p() -> BigUint {
    from_limbs(&P)
}

/// `2^-260 mod p`.
fn inverse_of_r() -> BigUint {
    let r: BigUint = BigUint::from(1u32) << 260u32;
    r.modpow(&(p() - 2u32), &p())
}

/// A number for each lane, below M p.
fn lanes<W: BackendWords, const M: u64>(random: &mut Random) -> ([BigUint; LANES], Element<W, M>) {
    let (numbers, words) = random.lanes(&(p() * M));
    (numbers, Element::from_words(words))
}

/// Checks that each lane has the expected value, and is at most M p.
fn check<W: BackendWords, const M: u64>(actual: &Element<W, M>, expected: impl Fn(usize) -> BigUint) {
    for (lane, actual) in from_words(actual.words()).iter().enumerate() {
        assert!(*actual <= p() * M, "lane {lane}: {actual:x} is more than {M} p");
        assert_eq!(actual % p(), expected(lane) % p(), "lane {lane}");
    }
}

fn products<W: BackendWords>() {
    let mut random = Random::new();
    let inverse = inverse_of_r();
    for _ in 0..ROUNDS {
        let (a, a_words) = lanes::<W, 16>(&mut random);
        let (b, b_words) = lanes::<W, 16>(&mut random);
        let (c, c_words) = lanes::<W, 4>(&mut random);
        check(
            &run_with_instructions::<W, _>(|| a_words.mul::<4, 5>(&c_words).carry()),
            |lane| &a[lane] * &c[lane] * &inverse,
        );
        check(
            &run_with_instructions::<W, _>(|| c_words.square::<2>().carry()),
            |lane| &c[lane] * &c[lane] * &inverse,
        );
        check(
            &run_with_instructions::<W, _>(|| a_words.mul::<16, 17>(&b_words).reduce_partially().carry()),
            |lane| &a[lane] * &b[lane] * &inverse,
        );
        check(
            &run_with_instructions::<W, _>(|| b_words.in_montgomery_form()),
            |lane| &b[lane] << 260u32,
        );
    }
}

fn sums_of_products<W: BackendWords>() {
    let mut random = Random::new();
    let inverse = inverse_of_r();
    for _ in 0..ROUNDS {
        let (a, a_words) = lanes::<W, 4>(&mut random);
        let (b, b_words) = lanes::<W, 10>(&mut random);
        let (c, c_words) = lanes::<W, 2>(&mut random);
        let (d, d_words) = lanes::<W, 4>(&mut random);
        check(
            &run_with_instructions::<W, _>(|| {
                a_words
                    .mul_add::<10, 4, 2, 4>(&b_words, &d_words, &c_words)
                    .carry()
            }),
            |lane| (&a[lane] * &b[lane] + &c[lane] * &d[lane]) * &inverse,
        );
        check(
            &run_with_instructions::<W, _>(|| {
                a_words
                    .mul_less_eight_squares::<10, 6>(&b_words, &c_words)
                    .carry()
            }),
            |lane| {
                let eight_squares: BigUint = &c[lane] * &c[lane] * 8u32;
                (&a[lane] * &b[lane] + (p() * p() * 32u32 - eight_squares)) * &inverse
            },
        );
    }
}

fn linear_operations<W: BackendWords>() {
    let mut random = Random::new();
    for _ in 0..ROUNDS {
        let (a, a_words) = lanes::<W, 2>(&mut random);
        let (b, b_words) = lanes::<W, 4>(&mut random);
        let (a_sum, b_sum) = (a_words.as_sum(), b_words.as_sum());
        check::<W, 6>(&a_sum.plus(&b_sum).carry(), |lane| &a[lane] + &b[lane]);
        check::<W, 6>(&a_sum.minus(&b_sum).carry(), |lane| {
            &a[lane] + p() * 4u32 - &b[lane]
        });
        check(
            &run_with_instructions::<W, _>(|| b_sum.negative().carry()),
            |lane| p() * 4u32 - &b[lane],
        );
        check::<W, 6>(&a_sum.three_times().carry(), |lane| &a[lane] * 3u32);
        check::<W, 16>(&b_sum.shl::<2, 16>().carry(), |lane| &b[lane] * 4u32);
        let large: Sum<W, 64> = b_sum.shl::<3, 32>().plus(&a_sum.shl::<3, 16>());
        check(&large.reduce_partially().carry(), |lane| {
            &b[lane] * 8u32 + &a[lane] * 8u32
        });
        let difference: Sum<W, 48> = a_sum.shl::<3, 16>().minus(&b_sum.shl::<3, 32>());
        check(&difference.reduce_partially().carry(), |lane| {
            p() * 32u32 + &a[lane] * 8u32 - &b[lane] * 8u32
        });
    }
}

fn zeros<W: BackendWords>() {
    let mut random = Random::new();
    for _ in 0..ROUNDS {
        let (a, a_words) = lanes::<W, 16>(&mut random);
        let zero = BigUint::from(0u32);
        for (lane, mask) in a_words.as_sum().is_zero().store().iter().enumerate() {
            assert_eq!(*mask == u64::MAX, &a[lane] % p() == zero);
            assert!(*mask == u64::MAX || *mask == 0);
        }
        let difference: Sum<W, 32> = a_words.as_sum().minus(&a_words.as_sum());
        assert_eq!(difference.is_zero().store(), [u64::MAX; LANES]);
    }
}
