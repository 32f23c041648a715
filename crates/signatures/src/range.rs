//! Checks the ranges of a signature's numbers. Lanes rely on these ranges, and numbers out of range would give one
//! signature several encodings.

use linewarden_arithmetic::rsa::RsaPublic;

use crate::key::{Material, PublicKey};
use crate::refusal::Refusal;

/// The order of P-256 (FIPS 186-5; SP 800-186, 3.2.1.3), big-endian limbs.
const P256_ORDER: [u64; 4] = [
    0xffff_ffff_0000_0000,
    0xffff_ffff_ffff_ffff,
    0xbce6_faad_a717_9e84,
    0xf3b9_cac2_fc63_2551,
];
/// The order of the prime-order group of edwards25519 (RFC 8032, 5.1), big-endian limbs.
const ED25519_ORDER: [u64; 4] = [
    0x1000_0000_0000_0000,
    0,
    0x14de_f9de_a2f7_9cd6,
    0x5812_631a_5cf5_d3ed,
];

/// Checks the numbers of a signature before any computation. For ECDSA, `p256_low_s` also requires s in the lower half.
///
/// # Errors
/// [`Refusal::WrongLength`], [`Refusal::OutOfRange`] or [`Refusal::Malleable`].
pub(crate) fn check(key: &PublicKey, signature: &[u8], p256_low_s: bool) -> Result<(), Refusal> {
    match key.material() {
        Material::Ra(ra) => rsa(ra.rsa(), signature),
        Material::Pss(key, _) => rsa(key, signature),
        Material::EcdsaP256(..) => p256(signature, p256_low_s),
        Material::Ed25519(..) => ed25519(signature),
    }
}

/// Requires `1 < σ < n - 1`: the numbers 0, 1 and n - 1 equal their own e-th powers modulo n.
fn rsa(key: &RsaPublic, signature: &[u8]) -> Result<(), Refusal> {
    let modulus = key.as_bytes();
    if signature.len() != modulus.len() {
        return Err(Refusal::WrongLength);
    }
    // n is odd: n - 1 differs from n in the last bit only.
    let (Some((last, head)), Some((modulus_last, modulus_head))) =
        (signature.split_last(), modulus.split_last())
    else {
        return Err(Refusal::WrongLength);
    };
    let is_0_or_1 = *last <= 1 && head.iter().all(|byte| *byte == 0);
    let is_n_minus_1 = head == modulus_head && *last == *modulus_last - 1;
    match is_0_or_1 || is_n_minus_1 || signature >= modulus {
        true => Err(Refusal::OutOfRange),
        false => Ok(()),
    }
}

/// Requires `0 < r < n` and `0 < s < n`. With `low_s`, requires `0 < s <= n / 2`: if `(r, s)` is valid, `(r, n - s)` is
/// also valid.
fn p256(signature: &[u8], low_s: bool) -> Result<(), Refusal> {
    let (numbers, []) = signature.as_chunks::<32>() else {
        return Err(Refusal::WrongLength);
    };
    let [r, s] = *numbers else {
        return Err(Refusal::WrongLength);
    };
    let [r, s] = [r, s].map(|number| words(&number, u64::from_be_bytes));
    for number in [r, s] {
        if number == [0; 4] || number >= P256_ORDER {
            return Err(Refusal::OutOfRange);
        }
    }
    match low_s && s > P256_HALF {
        true => Err(Refusal::Malleable),
        false => Ok(()),
    }
}

/// `(n - 1) / 2`.
const P256_HALF: [u64; 4] = {
    let [a, b, c, d] = P256_ORDER;
    [a >> 1, a << 63 | b >> 1, b << 63 | c >> 1, c << 63 | d >> 1]
};

/// Converts an ECDSA signature to the form that every receiver accepts: `(r, n - s)` if s is in the upper half,
/// otherwise the unchanged signature. `None` if the signature does not have 64 bytes.
pub(crate) fn lower_half(signature: &[u8]) -> Option<Vec<u8>> {
    let (r, s) = signature.split_first_chunk::<32>()?;
    let mut number = words(s.as_array()?, u64::from_be_bytes);
    if number > P256_HALF {
        let mut borrow = false;
        for (limb, order_limb) in number.iter_mut().zip(P256_ORDER).rev() {
            (*limb, borrow) = order_limb.borrowing_sub(*limb, borrow);
        }
    }
    Some([r.as_slice(), number.map(u64::to_be_bytes).as_flattened()].concat())
}

/// Requires `S < L` (RFC 8032, 5.1.7), and an R that is canonically encoded and does not have small order.
fn ed25519(signature: &[u8]) -> Result<(), Refusal> {
    let (numbers, []) = signature.as_chunks::<32>() else {
        return Err(Refusal::WrongLength);
    };
    let [point, scalar] = *numbers else {
        return Err(Refusal::WrongLength);
    };
    let mut scalar = words(&scalar, u64::from_le_bytes);
    scalar.reverse();
    if scalar >= ED25519_ORDER {
        return Err(Refusal::OutOfRange);
    }
    if linewarden_arithmetic::edwards::is_small_order(&point) {
        return Err(Refusal::OutOfRange);
    }
    let mut y = words(&point, u64::from_le_bytes);
    y.reverse();
    let [top, lower_limbs @ ..] = &mut y;
    *top &= u64::MAX >> 1;
    // p = 2^255 - 19.
    let is_canonical = *top < u64::MAX >> 1 || *lower_limbs < [u64::MAX, u64::MAX, 0u64.wrapping_sub(19)];
    match is_canonical {
        true => Ok(()),
        false => Err(Refusal::Malleable),
    }
}

fn words(bytes: &[u8; 32], word: impl Fn([u8; 8]) -> u64) -> [u64; 4] {
    let mut words = [0; 4];
    let (chunks, _) = bytes.as_chunks::<8>();
    for (out, chunk) in words.iter_mut().zip(chunks) {
        *out = word(*chunk);
    }
    words
}

#[cfg(test)]
mod tests {
    use num_bigint::BigUint;

    use super::*;

    /// `limbs + step`, big-endian. No step here carries.
    fn number(mut limbs: [u64; 4], step: i64) -> [u8; 32] {
        limbs[3] = limbs[3].checked_add_signed(step).unwrap();
        limbs.map(u64::to_be_bytes).as_flattened().try_into().unwrap()
    }

    #[test]
    fn low_s_accepts_one_of_two_forms_of_an_ecdsa_signature() {
        let one = number([0; 4], 1);
        let check_low_s = |r: [u8; 32], s: [u8; 32]| p256(&[r, s].concat(), true);
        let check_any_s = |r: [u8; 32], s: [u8; 32]| p256(&[r, s].concat(), false);
        for s in [one, number(P256_HALF, -1), number(P256_HALF, 0)] {
            assert_eq!(check_low_s(one, s), Ok(()));
            // The form with s in the upper half, which `lower_half` converts to the other form.
            let high = BigUint::from_bytes_be(P256_ORDER.map(u64::to_be_bytes).as_flattened())
                - BigUint::from_bytes_be(&s);
            let high: [u8; 32] = high.to_bytes_be().try_into().unwrap();
            assert_eq!(check_low_s(one, high), Err(Refusal::Malleable));
            assert_eq!((check_any_s(one, s), check_any_s(one, high)), (Ok(()), Ok(())));
            assert_eq!(lower_half(&[one, high].concat()).unwrap(), [one, s].concat());
            assert_eq!(lower_half(&[one, s].concat()).unwrap(), [one, s].concat());
        }
        let highest = number(P256_ORDER, -1);
        assert_eq!(check_low_s(highest, one), Ok(()));
        assert_eq!(check_low_s(one, number(P256_HALF, 1)), Err(Refusal::Malleable));
        for out_of_range in [[0; 32], number(P256_ORDER, 0), number(P256_ORDER, 1), [0xff; 32]] {
            assert_eq!(check_low_s(out_of_range, one), Err(Refusal::OutOfRange));
            assert_eq!(check_low_s(one, out_of_range), Err(Refusal::OutOfRange));
            assert_eq!(check_any_s(one, out_of_range), Err(Refusal::OutOfRange));
        }
        assert_eq!(p256(&[1; 63], false), Err(Refusal::WrongLength));
        assert_eq!(p256(&[1; 96], true), Err(Refusal::WrongLength));
    }
}
