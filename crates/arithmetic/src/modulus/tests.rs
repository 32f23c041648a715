//! Compares arithmetic on single numbers with num-bigint: the code for this CPU, and the portable code.

use num_bigint::BigUint;

use super::*;
use crate::testing::{Random, from_limbs, limbs};

#[test]
fn operations_match_num_bigint() {
    let mut random = Random::new();
    for length in [8, 9, 16, 17, 24, 31, 32, 48, 64] {
        for _ in 0..40 {
            check_operations(&mut random, length);
        }
    }
}

fn check_operations(random: &mut Random, length: usize) {
    let bits = 64 * length;
    let n = random.modulus(bits);
    let modulus = Modulus::new(&limbs(&n, length)).unwrap();
    assert_eq!(from_limbs(modulus.limbs()), n);
    let r = BigUint::from(1u32) << bits;
    let inverse = r.modinv(&n).unwrap();
    let (a, b, unreduced) = (
        random.residue(&n, bits),
        random.residue(&n, bits),
        random.number(bits),
    );
    let [a_limbs, b_limbs, unreduced_limbs] = [&a, &b, &unreduced].map(|number| limbs(number, length));
    let mut out = vec![1; length];

    modulus.mul(&mut out, &a_limbs, &unreduced_limbs);
    assert_eq!(
        from_limbs(&out),
        &a * &unreduced * &inverse % &n,
        "{a:x} {unreduced:x} {n:x}"
    );
    modulus.multiply(&mut out, &a_limbs, &unreduced_limbs);
    assert_eq!(
        from_limbs(&out),
        &a * &unreduced * &inverse % &n,
        "{a:x} {unreduced:x} {n:x}"
    );
    modulus.square(&mut out, &a_limbs);
    assert_eq!(from_limbs(&out), &a * &a * &inverse % &n, "{a:x} {n:x}");
    modulus.to_montgomery(&mut out, &a_limbs);
    assert_eq!(from_limbs(&out), &a * &r % &n);
    modulus.from_montgomery(&mut out, &a_limbs);
    assert_eq!(from_limbs(&out), &a * &inverse % &n);
    assert_eq!(from_limbs(modulus.one()), &r % &n);
    let mut difference = a_limbs.clone();
    modulus.sub(&mut difference, &b_limbs);
    assert_eq!(from_limbs(&difference), (&a + &n - &b) % &n);
    assert!(modulus.is_above(&a_limbs));
    assert_eq!(modulus.is_above(&unreduced_limbs), unreduced < n);

    let high = random.number(bits);
    for high_len in [1, 2, length / 2, length] {
        let high = &high & ((BigUint::from(1u32) << (64 * high_len)) - 1u32);
        modulus.reduce_wide(&mut out, &unreduced_limbs, &limbs(&high, high_len));
        assert_eq!(from_limbs(&out), (&unreduced + (high << bits)) * &r % &n);
    }
    let exponent = bits + random.below(3 * bits);
    assert_eq!(
        from_limbs(&modulus.power_of_two(exponent)),
        (BigUint::from(1u32) << exponent) % &n
    );
}

#[test]
fn invalid_moduli_are_refused() {
    let size = Err(ModulusError::InvalidSize);
    assert_eq!(Modulus::new(&[]), size);
    assert_eq!(Modulus::new(&[3]), size);
    assert_eq!(Modulus::new(&[u64::MAX; 7]), size);
    assert_eq!(Modulus::new(&[u64::MAX; 65]), size);
    let mut limbs = [u64::MAX; 32];
    assert!(Modulus::new(&limbs).is_ok());
    limbs[0] -= 1;
    assert_eq!(Modulus::new(&limbs), Err(ModulusError::Even));
    limbs[0] += 1;
    limbs[31] >>= 1;
    assert_eq!(Modulus::new(&limbs), size);
}
