//! Compares field operations with num-bigint, for random and extreme numbers.

use num_bigint::BigUint;
use rand::RngExt as _;

use super::*;
use crate::elliptic::testing::{
    Random, from_limbs, from_words, on_each_backend, run_with_instructions, to_words, with_instructions,
};
use crate::elliptic::{load, store};
use crate::simd::LANES;

const ROUNDS: usize = 300;

mod each {
    super::on_each_backend!(products, linear_operations, powers);
}

with_instructions! {
    fn invert<W>(a: Element<W>) -> Element<W> {
        a.invert()
    }

    fn power_for_roots<W>(a: Element<W>) -> Element<W> {
        a.power_for_roots()
    }

    fn invert_both<W>(a: Element<W>, b: Element<W>) -> [Element<W>; 2] {
        let mut inverses = [a, b];
        invert_all(&mut inverses);
        inverses
    }
}

fn p() -> BigUint {
    from_limbs(&P)
}

/// The smallest number that is not an element.
fn bound() -> BigUint {
    (BigUint::from(1u32) << 256u32) + (BigUint::from(1u32) << 220u32)
}

/// Numbers below the bound, some of them next to a multiple of p.
fn lanes<W: BackendWords>(random: &mut Random) -> ([BigUint; LANES], Element<W>) {
    let numbers = std::array::from_fn(|_| match random.rng.random_range(0..6u32) {
        0 => p() * random.rng.random_range(1..=2u32) + random.rng.random_range(0..3u32) - 1u32,
        _ => random.number(&bound()),
    });
    let words = load(&std::array::from_fn(|lane| to_words(&numbers[lane])));
    (numbers, Element::from_words(words))
}

/// Checks that each lane is an element, and has the expected value.
fn check<W: BackendWords>(actual: &Element<W>, expected: impl Fn(usize) -> BigUint) {
    let canonical = store(actual.words()).map(|words| canonical(&words));
    for (lane, actual) in from_words(actual.words()).iter().enumerate() {
        assert!(*actual < bound(), "lane {lane}: {actual:x}");
        assert_eq!(
            actual % p(),
            expected(lane) % p(),
            "lane {lane} {}",
            std::any::type_name::<W>()
        );
        assert_eq!(from_limbs(&canonical[lane]), actual % p(), "lane {lane}");
    }
}

fn products<W: BackendWords>() {
    let mut random = Random::new();
    for _ in 0..ROUNDS {
        let (a, a_words) = lanes::<W>(&mut random);
        let (b, b_words) = lanes::<W>(&mut random);
        let product = |lane: usize| &a[lane] * &b[lane];
        check(
            &run_with_instructions::<W, _>(|| a_words.mul(&b_words).fold()),
            product,
        );
        check(
            &run_with_instructions::<W, _>(|| a_words.square().fold()),
            |lane| &a[lane] * &a[lane],
        );
        let (difference, sum) = run_with_instructions::<W, _>(|| (a_words.square(), a_words.mul(&b_words)));
        check(
            &run_with_instructions::<W, _>(|| {
                difference
                    .minus::<PRODUCT_BOUND, { 2 * PRODUCT_BOUND + 1 }>(&sum)
                    .fold()
            }),
            |lane| &a[lane] * &a[lane] + p() * (1u32 << 20) * p() - product(lane),
        );
        let larger_sum: Sum<W, { 4 * PRODUCT_BOUND }> = sum
            .twice::<{ 2 * PRODUCT_BOUND }>()
            .plus(&difference.twice::<{ 2 * PRODUCT_BOUND }>());
        check(&run_with_instructions::<W, _>(|| larger_sum.fold()), |lane| {
            (product(lane) + &a[lane] * &a[lane]) * 2u32
        });
    }
}

fn linear_operations<W: BackendWords>() {
    let mut random = Random::new();
    for _ in 0..ROUNDS {
        let (a, a_words) = lanes::<W>(&mut random);
        let (b, b_words) = lanes::<W>(&mut random);
        let (a_sum, b_sum) = (a_words.as_sum(), b_words.as_sum());
        check(
            &run_with_instructions::<W, _>(|| a_sum.plus::<3, 6>(&b_sum).fold()),
            |lane| &a[lane] + &b[lane],
        );
        check(
            &run_with_instructions::<W, _>(|| a_sum.minus::<3, 7>(&b_sum).fold()),
            |lane| &a[lane] + p() * 4u32 - &b[lane],
        );
        check(
            &run_with_instructions::<W, _>(|| a_sum.minus::<3, 7>(&a_sum).fold()),
            |_| BigUint::from(0u32),
        );
        check(
            &run_with_instructions::<W, _>(|| a_sum.negative::<4>().fold()),
            |lane| p() * 4u32 - &a[lane],
        );
        check(
            &run_with_instructions::<W, _>(|| a_sum.twice::<6>().fold()),
            |lane| &a[lane] * 2u32,
        );
        check(&run_with_instructions::<W, _>(|| a_sum.fold()), |lane| {
            a[lane].clone()
        });
    }
}

fn powers<W: BackendWords>() {
    let mut random = Random::new();
    for _ in 0..4 {
        let (a, a_words) = lanes::<W>(&mut random);
        let (b, b_words) = lanes::<W>(&mut random);
        check(&invert(a_words), |lane| a[lane].modpow(&(p() - 2u32), &p()));
        check(&power_for_roots(a_words), |lane| {
            a[lane].modpow(&((p() - 5u32) / 8u32), &p())
        });
        let inverses = invert_both(a_words, b_words);
        for (number, inverse) in [(&a, inverses[0]), (&b, inverses[1])] {
            // If one number of a lane is 0, both inverses of the lane are 0.
            check(&inverse, |lane| {
                let is_any_zero = (&a[lane] * &b[lane]) % p() == BigUint::from(0u32);
                if is_any_zero {
                    BigUint::from(0u32)
                } else {
                    number[lane].modpow(&(p() - 2u32), &p())
                }
            });
        }
    }
}
