//! The orders' arithmetic against arbitrary numbers.

use num_bigint::BigUint;

use super::*;
use crate::arith::five::store;
use crate::arith::five::testing::{Random, from_limbs, from_words, on_each_backend, with};

const ROUNDS: usize = 300;

/// The orders of P-256 and edwards25519: the greatest and the smallest modulus that there is.
const MODULI: [Modulus; 2] = [
    Modulus::new([
        0xf3b9_cac2_fc63_2551,
        0xbce6_faad_a717_9e84,
        u64::MAX,
        0xffff_ffff_0000_0000,
    ]),
    Modulus::new([0x5812_631a_5cf5_d3ed, 0x14de_f9de_a2f7_9cd6, 0, 1 << 60]),
];

mod each {
    super::on_each_backend!(products, wide_numbers, inverses);
}

fn products<W: Outline>() {
    let mut random = Random::new();
    for modulus in &MODULI {
        let n = from_limbs(&modulus.limbs);
        let r: BigUint = BigUint::from(1u32) << 260u32;
        let inverse = r.modpow(&(&n - 2u32), &n);
        for _ in 0..ROUNDS {
            let (a, a_words) = random.lanes::<W>(&(&n * 2u32));
            let (b, b_words) = random.lanes::<W>(&(BigUint::from(1u32) << 256u32));
            let squares = from_words(&with::<W, _>(|| modulus.square(&a_words)));
            let products = from_words(&with::<W, _>(|| modulus.mul(&a_words, &b_words)));
            for (lane, product) in products.iter().enumerate() {
                assert!(*product < &n * 2u32 && squares[lane] < &n * 2u32);
                assert_eq!(product % &n, &a[lane] * &b[lane] * &inverse % &n, "lane {lane}");
                assert_eq!(
                    &squares[lane] % &n,
                    &a[lane] * &a[lane] * &inverse % &n,
                    "lane {lane}"
                );
            }
            let entered = store(&with::<W, _>(|| modulus.enter(&b_words)));
            for (lane, entered) in entered.iter().enumerate() {
                assert_eq!(
                    from_limbs(&modulus.canonical(entered)),
                    &b[lane] * &r % &n,
                    "lane {lane}"
                );
            }
        }
    }
}

fn wide_numbers<W: Outline>() {
    let mut random = Random::new();
    for modulus in &MODULI {
        let n = from_limbs(&modulus.limbs);
        for _ in 0..ROUNDS {
            let (low, low_words) = random.lanes::<W>(&(BigUint::from(1u32) << 260u32));
            let (high, high_words) = random.lanes::<W>(&(BigUint::from(1u32) << 260u32));
            let reduced = with::<W, _>(|| modulus.reduce_wide(&low_words, &high_words));
            for (lane, number) in store(&reduced).iter().enumerate() {
                let wide = (&high[lane] << 260u32) + &low[lane];
                assert_eq!(from_limbs(&modulus.canonical(number)), wide % &n, "lane {lane}");
            }
        }
    }
}

fn inverses<W: Outline>() {
    let mut random = Random::new();
    for modulus in &MODULI {
        let n = from_limbs(&modulus.limbs);
        let numbers: Vec<_> = (0..3).map(|_| random.lanes::<W>(&(&n - 1u32))).collect();
        let one = crate::arith::five::splat::<W>(&[1, 0, 0, 0, 0]);
        let mut forms: Vec<_> = numbers
            .iter()
            .map(|(_, words)| {
                with::<W, _>(|| modulus.enter(&carry(&crate::arith::five::zip(words, &one, W::add))))
            })
            .collect();
        with::<W, _>(|| modulus.invert_all(&mut forms));
        for ((numbers, _), inverses) in numbers.iter().zip(&forms) {
            for (number, inverse) in numbers.iter().zip(store(&modulus.mul(inverses, &one))) {
                assert_eq!(
                    (number + 1u32) * from_limbs(&modulus.canonical(&inverse)) % &n,
                    BigUint::from(1u32)
                );
            }
        }
    }
}
