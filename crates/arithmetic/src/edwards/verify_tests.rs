//! Tests the decompression of points.

use num_bigint::BigUint;

use super::*;
use crate::edwards::field::P;
use crate::elliptic::dispatch::run_with_words;
use crate::elliptic::testing::{Random, from_limbs, on_each_backend, to_words};

mod each {
    super::on_each_backend!(decompressed_points);
}

/// Every result satisfies the curve's equation, and there is no result if `(y^2 - 1) / (d y^2 + 1)` is not a square
/// (Euler's criterion).
fn decompressed_points<W: BackendWords>() {
    let mut random = Random::new();
    let (p, one) = (from_limbs(&P), BigUint::from(1u32));
    let mut count = 0;
    for round in 0..40 {
        let y = if round < 4 {
            BigUint::from(3u32 + round)
        } else {
            random.number(&p)
        };
        let (u, v) = ((&y * &y + &p - &one) % &p, (&y * &y * from_limbs(&D) + &one) % &p);
        let square = &u * v.modpow(&(&p - 2u32), &p) % &p;
        let is_square = square.modpow(&((&p - &one) / 2u32), &p) == one;
        for x_is_odd in [false, true] {
            let limbs = crate::elliptic::limbs(&to_words(&y));
            let point = run_with_words::<W, _>(Decompress { y: &limbs, x_is_odd });
            assert_eq!(point.is_some(), is_square || square == BigUint::ZERO, "{y}");
            let Some([x, negative]) = point.map(|point| point.map(|x| from_limbs(&x))) else {
                continue;
            };
            count += 1;
            assert_eq!(&x * &x % &p, square);
            assert_eq!((&x + &negative) % &p, BigUint::ZERO);
            assert!(x == BigUint::ZERO || x.bit(0) == x_is_odd);
        }
    }
    assert!(count > 0);
}
