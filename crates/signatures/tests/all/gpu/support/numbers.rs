//! Numbers that make carries propagate, and reference arithmetic for the kernels.

use num_bigint::BigUint;
use rand::{Rng as _, RngExt as _};
use rand_chacha::ChaCha20Rng;

/// A number of `limbs` limbs of 32 bits: random, with long runs of ones and zeros, with extreme words, or next to a
/// power of two.
pub fn number(rng: &mut ChaCha20Rng, limbs: usize) -> Vec<u32> {
    match rng.random_range(0..6) {
        0 => (0..limbs).map(|_| rng.next_u32()).collect(),
        1 => (0..limbs)
            .map(|_| [0, 1, u32::MAX, 1 << 31, (1 << 31) - 1][rng.random_range(0..5)])
            .collect(),
        2 => vec![u32::MAX; limbs],
        3 => neighbor_of_power(rng, limbs),
        4 => {
            let (first, last) = (rng.random_range(0..limbs), rng.random_range(0..limbs));
            (0..limbs)
                .map(|limb| {
                    if (first..=last).contains(&limb) {
                        u32::MAX
                    } else {
                        0
                    }
                })
                .collect()
        }
        _ => {
            let mut ones = vec![u32::MAX; limbs];
            ones[rng.random_range(0..limbs)] = rng.next_u32();
            ones
        }
    }
}

/// Powers of two within a number and at word boundaries, and their neighbors, all below `2^(32 limbs)`.
pub fn powers_and_neighbors(limbs: usize) -> impl Iterator<Item = BigUint> {
    let bits = [1, 31, 32, 63, 64, 16 * limbs, 32 * limbs - 2, 32 * limbs - 1];
    bits.into_iter().flat_map(|bits| {
        let power = BigUint::from(1u8) << bits;
        [&power - 1u8, power.clone(), power + 1u8]
    })
}

/// `2^k - 1`, `2^k` or `2^k + 1`.
fn neighbor_of_power(rng: &mut ChaCha20Rng, limbs: usize) -> Vec<u32> {
    let power = BigUint::from(1u8) << rng.random_range(0..32 * limbs);
    let number = match rng.random_range(0..3) {
        0 => power - 1u8,
        1 => power,
        _ => power + 1u8,
    };
    to_limbs(&number, limbs)
}

/// An odd modulus with its topmost bit set.
pub fn modulus(rng: &mut ChaCha20Rng, limbs: usize) -> Vec<u32> {
    let mut n = number(rng, limbs);
    n[0] |= 1;
    n[limbs - 1] |= 1 << 31;
    n
}

/// A number of `limbs` limbs, sometimes n, n - 1 or n + 1.
pub fn number_near(rng: &mut ChaCha20Rng, n: &BigUint, limbs: usize) -> Vec<u32> {
    let near = match rng.random_range(0..8) {
        0 => n - 1u8,
        1 => n.clone(),
        2 => n + 1u8,
        _ => return number(rng, limbs),
    };
    to_limbs(&(near % (BigUint::from(1u8) << (32 * limbs))), limbs)
}

pub fn to_limbs(number: &BigUint, limbs: usize) -> Vec<u32> {
    let mut digits = number.to_u32_digits();
    assert!(digits.len() <= limbs);
    digits.resize(limbs, 0);
    digits
}

pub fn from_limbs(limbs: &[u32]) -> BigUint {
    BigUint::new(limbs.to_vec())
}

/// The number in this many bytes, most significant first.
pub fn to_bytes(number: &BigUint, length: usize) -> Vec<u8> {
    let bytes = number.to_bytes_be();
    assert!(
        bytes.len() <= length,
        "{} bytes do not fit in {length}",
        bytes.len()
    );
    [vec![0; length - bytes.len()], bytes].concat()
}

/// `-n^-1 mod 2^32`.
pub fn negative_inverse(n: &BigUint) -> u32 {
    let word = BigUint::from(1u8) << 32u32;
    let inverse = (n % &word).modinv(&word).unwrap();
    to_limbs(&(word - inverse), 1)[0]
}
