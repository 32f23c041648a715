//! Constants of a modulus for kernels, in limbs of 32 bits, least significant first. They are computed once per key, so
//! their cost does not matter. No branch and no address depends on the value of a number.

use super::error::BatchError;
use super::layouts::{CrtHalf, CrtKey, PREFIX_BYTES_MAX, RsaKey};

/// The prime factors of a key and the derived numbers, named as in RFC 8017, 3.2; each as many bytes as half of the
/// modulus, most significant first. The topmost bit of p and q is set.
#[derive(Clone, Copy)]
pub struct RsaSecret<'a> {
    /// One prime factor.
    pub p: &'a [u8],
    /// The other prime factor.
    pub q: &'a [u8],
    /// The private exponent modulo p - 1.
    pub dp: &'a [u8],
    /// The private exponent modulo q - 1.
    pub dq: &'a [u8],
    /// The inverse of q modulo p.
    pub qinv: &'a [u8],
}

/// The constants of a public key.
pub(crate) fn public_key<const N: usize>(
    modulus: &[u8],
    prefix: &[u8],
    first_row: u32,
) -> Result<RsaKey<N>, BatchError> {
    let n = odd_modulus::<N>(modulus)?;
    let mut padded = [0; PREFIX_BYTES_MAX];
    padded
        .get_mut(..prefix.len())
        .ok_or(BatchError::Malformed("the prefix of a key exceeds 96 bytes"))?
        .copy_from_slice(prefix);
    let one = negate(&n);
    Ok(RsaKey {
        r2: double_repeatedly(one, &n, 32 * N),
        shift: double_repeatedly(one, &n, 128),
        n0: negative_inverse(&n),
        // At most 96.
        prefix_bytes: prefix.len() as u32,
        first_row,
        unused: 0,
        prefix: padded,
        n,
    })
}

/// The constants of a secret key; `modulus` is the modulus of the public key.
pub(crate) fn secret_key<const N: usize, const H: usize>(
    modulus: &[u8],
    secret: &RsaSecret,
) -> Result<CrtKey<H>, BatchError> {
    let n = odd_modulus::<N>(modulus)?;
    let p = crt_half(secret.p, secret.dp)?;
    let q = crt_half(secret.q, secret.dq)?;
    let qinv = double_repeatedly(check_below(limbs(secret.qinv)?, &p.modulus)?, &p.modulus, 32 * H);
    let mut wide_q = [0; N];
    for (wide_limb, limb) in wide_q.iter_mut().zip(&q.modulus) {
        *wide_limb = *limb;
    }
    let shifted_q = double_repeatedly(wide_q, &n, 32 * H);
    let mut q_shift = [[0; H]; 2];
    for (limb, source) in q_shift.iter_mut().flatten().zip(&shifted_q) {
        *limb = *source;
    }
    Ok(CrtKey { p, q, qinv, q_shift })
}

fn crt_half<const H: usize>(prime: &[u8], exponent: &[u8]) -> Result<CrtHalf<H>, BatchError> {
    let modulus = odd_modulus::<H>(prime)?;
    Ok(CrtHalf {
        r2: double_repeatedly(negate(&modulus), &modulus, 32 * H),
        exponent: limbs(exponent)?,
        n0: negative_inverse(&modulus),
        unused: [0; 3],
        modulus,
    })
}

/// Converts a number to exactly N limbs.
fn limbs<const N: usize>(bytes: &[u8]) -> Result<[u32; N], BatchError> {
    if bytes.len() != 4 * N {
        return Err(BatchError::Malformed(
            "the length of a number does not match the size of the key",
        ));
    }
    let mut limbs = [0; N];
    limbs_from_bytes(&mut limbs, bytes);
    Ok(limbs)
}

fn odd_modulus<const N: usize>(bytes: &[u8]) -> Result<[u32; N], BatchError> {
    let n: [u32; N] = limbs(bytes)?;
    let is_odd = n.first().is_some_and(|limb| limb & 1 == 1);
    let has_top_bit = n.last().is_some_and(|limb| limb >> 31 == 1);
    match is_odd && has_top_bit {
        true => Ok(n),
        false => Err(BatchError::Malformed(
            "a modulus or prime is even, or its topmost bit is not set",
        )),
    }
}

fn check_below<const N: usize>(number: [u32; N], n: &[u32; N]) -> Result<[u32; N], BatchError> {
    let mut borrow = false;
    for (limb, n_limb) in number.iter().zip(n) {
        borrow = limb.borrowing_sub(*n_limb, borrow).1;
    }
    match borrow {
        true => Ok(number),
        false => Err(BatchError::Malformed("the inverse of q is not below p")),
    }
}

/// Fills `limbs` with a number of the same length, most significant byte first.
pub(crate) fn limbs_from_bytes(limbs: &mut [u32], bytes: &[u8]) {
    for (limb, bytes_of_limb) in limbs.iter_mut().zip(bytes.rchunks_exact(4)) {
        *limb = bytes_of_limb
            .first_chunk()
            .map_or(0, |bytes_of_limb| u32::from_be_bytes(*bytes_of_limb));
    }
}

/// Converts rows of little-endian limbs, the format of the device, to numbers with the most significant byte first,
/// and back.
pub(crate) fn reverse_rows(rows: &mut [u8], row_bytes: usize) {
    for row in rows.chunks_exact_mut(row_bytes) {
        row.reverse();
    }
}

/// `-n^-1 mod 2^32` for an odd n. Newton: each step doubles the number of correct bits; n is its own inverse modulo 8.
fn negative_inverse<const N: usize>(n: &[u32; N]) -> u32 {
    let first = n.first().copied().unwrap_or(1);
    let mut inverse = first;
    for _ in 0..4 {
        inverse = inverse.wrapping_mul(2u32.wrapping_sub(first.wrapping_mul(inverse)));
    }
    inverse.wrapping_neg()
}

/// `2^(32 N) - n`, which is `2^(32 N) mod n` if n has its topmost bit set.
fn negate<const N: usize>(n: &[u32; N]) -> [u32; N] {
    let mut carry = true;
    n.map(|limb| {
        let sum;
        (sum, carry) = (!limb).overflowing_add(u32::from(carry));
        sum
    })
}

/// `number 2^times mod n`, for a number below n.
fn double_repeatedly<const N: usize>(mut number: [u32; N], n: &[u32; N], times: usize) -> [u32; N] {
    for _ in 0..times {
        let mut carry = 0;
        for limb in &mut number {
            let next = *limb >> 31;
            *limb = *limb << 1 | carry;
            carry = next;
        }
        let mut borrow = false;
        let mut difference = [0; N];
        for ((difference, limb), n_limb) in difference.iter_mut().zip(&number).zip(n) {
            (*difference, borrow) = limb.borrowing_sub(*n_limb, borrow);
        }
        // The number was below n if no bit was shifted out and the difference is negative.
        let keep_mask = u32::from(borrow & (carry == 0)).wrapping_neg();
        for (limb, difference) in number.iter_mut().zip(&difference) {
            *limb = (*limb & keep_mask) | (difference & !keep_mask);
        }
    }
    number
}
