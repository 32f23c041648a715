//! One number at a time compared with num-bigint, with the code for this CPU and with the portable
//! code.

use num_bigint::BigUint;

use super::*;
use crate::testing::{Random, limbs, of_limbs};

#[test]
fn operations_are_right() {
    let mut random = Random::new();
    for length in [8, 9, 16, 17, 24, 31, 32, 48, 64] {
        for _ in 0..40 {
            operations(&mut random, length);
        }
    }
}

fn operations(random: &mut Random, length: usize) {
    let bits = 64 * length;
    let n = random.modulus(bits);
    let modulus = Modulus::new(&limbs(&n, length)).unwrap();
    assert_eq!(of_limbs(modulus.limbs()), n);
    let r = BigUint::from(1u32) << bits;
    let inverse = r.modinv(&n).unwrap();
    let (a, b, any) = (
        random.residue(&n, bits),
        random.residue(&n, bits),
        random.number(bits),
    );
    let [of_a, of_b, of_any] = [&a, &b, &any].map(|number| limbs(number, length));
    let mut out = vec![1; length];

    modulus.mul(&mut out, &of_a, &of_any);
    assert_eq!(of_limbs(&out), &a * &any * &inverse % &n, "{a:x} {any:x} {n:x}");
    modulus.multiply(&mut out, &of_a, &of_any);
    assert_eq!(of_limbs(&out), &a * &any * &inverse % &n, "{a:x} {any:x} {n:x}");
    modulus.square(&mut out, &of_a);
    assert_eq!(of_limbs(&out), &a * &a * &inverse % &n, "{a:x} {n:x}");
    modulus.to_montgomery(&mut out, &of_a);
    assert_eq!(of_limbs(&out), &a * &r % &n);
    modulus.from_montgomery(&mut out, &of_a);
    assert_eq!(of_limbs(&out), &a * &inverse % &n);
    assert_eq!(of_limbs(modulus.one()), &r % &n);
    let mut difference = of_a.clone();
    modulus.sub(&mut difference, &of_b);
    assert_eq!(of_limbs(&difference), (&a + &n - &b) % &n);
    assert!(modulus.is_above(&of_a));
    assert_eq!(modulus.is_above(&of_any), any < n);

    let high = random.number(bits);
    for limbs_of_high in [1, 2, length / 2, length] {
        let high = &high & ((BigUint::from(1u32) << (64 * limbs_of_high)) - 1u32);
        modulus.reduce_wide(&mut out, &of_any, &limbs(&high, limbs_of_high));
        assert_eq!(of_limbs(&out), (&any + (high << bits)) * &r % &n);
    }
    let exponent = bits + random.below(3 * bits);
    assert_eq!(
        of_limbs(&modulus.power_of_two(exponent)),
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
