//! Compares arithmetic modulo the group orders with num-bigint, for random and extreme numbers.

use num_bigint::BigUint;

use super::*;
use crate::elliptic::testing::{Random, from_limbs, from_words, on_each_backend, with_instructions};
use crate::elliptic::{store, zip};

const ROUNDS: usize = 300;

/// The orders of P-256 and edwards25519: the largest and the smallest supported modulus.
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

with_instructions! {
    fn square<W>(modulus: &'static Modulus, a: Words<W>) -> Words<W> {
        modulus.square(&a)
    }

    fn mul<W>(modulus: &'static Modulus, a: Words<W>, b: Words<W>) -> Words<W> {
        modulus.mul(&a, &b)
    }

    fn to_montgomery_form<W>(modulus: &'static Modulus, a: Words<W>) -> Words<W> {
        modulus.to_montgomery(&a)
    }

    fn successor_to_montgomery_form<W>(modulus: &'static Modulus, a: Words<W>) -> Words<W> {
        modulus.to_montgomery(&carry(&zip(&a, &splat(&[1, 0, 0, 0, 0]), W::add)))
    }

    fn reduce_wide<W>(modulus: &'static Modulus, low: Words<W>, high: Words<W>) -> Words<W> {
        modulus.reduce_wide(&low, &high)
    }

    fn invert_all<W>(modulus: &'static Modulus, forms: Vec<Words<W>>) -> Vec<Words<W>> {
        let mut inverses = forms;
        modulus.invert_all(&mut inverses);
        inverses
    }
}

fn products<W: BackendWords>() {
    let mut random = Random::new();
    for modulus in &MODULI {
        let n = from_limbs(&modulus.limbs);
        let r: BigUint = BigUint::from(1u32) << 260u32;
        let inverse = r.modpow(&(&n - 2u32), &n);
        for _ in 0..ROUNDS {
            let (a, a_words) = random.lanes::<W>(&(&n * 2u32));
            let (b, b_words) = random.lanes::<W>(&(BigUint::from(1u32) << 256u32));
            let squares = from_words(&square(modulus, a_words));
            let products = from_words(&mul(modulus, a_words, b_words));
            for (lane, product) in products.iter().enumerate() {
                assert!(*product < &n * 2u32 && squares[lane] < &n * 2u32);
                assert_eq!(product % &n, &a[lane] * &b[lane] * &inverse % &n, "lane {lane}");
                assert_eq!(
                    &squares[lane] % &n,
                    &a[lane] * &a[lane] * &inverse % &n,
                    "lane {lane}"
                );
            }
            let forms = store(&to_montgomery_form(modulus, b_words));
            for (lane, form) in forms.iter().enumerate() {
                assert_eq!(
                    from_limbs(&modulus.canonical(form)),
                    &b[lane] * &r % &n,
                    "lane {lane}"
                );
            }
        }
    }
}

fn wide_numbers<W: BackendWords>() {
    let mut random = Random::new();
    for modulus in &MODULI {
        let n = from_limbs(&modulus.limbs);
        for _ in 0..ROUNDS {
            let (low, low_words) = random.lanes::<W>(&(BigUint::from(1u32) << 260u32));
            let (high, high_words) = random.lanes::<W>(&(BigUint::from(1u32) << 260u32));
            let reduced = reduce_wide(modulus, low_words, high_words);
            for (lane, number) in store(&reduced).iter().enumerate() {
                let wide = (&high[lane] << 260u32) + &low[lane];
                assert_eq!(from_limbs(&modulus.canonical(number)), wide % &n, "lane {lane}");
            }
        }
    }
}

fn inverses<W: BackendWords>() {
    let mut random = Random::new();
    for modulus in &MODULI {
        let n = from_limbs(&modulus.limbs);
        let numbers: Vec<_> = (0..3).map(|_| random.lanes::<W>(&(&n - 1u32))).collect();
        let one = splat::<W>(&[1, 0, 0, 0, 0]);
        let forms = numbers
            .iter()
            .map(|(_, words)| successor_to_montgomery_form(modulus, *words));
        let forms = invert_all(modulus, forms.collect());
        for ((numbers, _), inverses) in numbers.iter().zip(&forms) {
            for (number, inverse) in numbers.iter().zip(store(&mul(modulus, *inverses, one))) {
                assert_eq!(
                    (number + 1u32) * from_limbs(&modulus.canonical(&inverse)) % &n,
                    BigUint::from(1u32)
                );
            }
        }
    }
}
