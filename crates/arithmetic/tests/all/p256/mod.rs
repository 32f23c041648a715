//! Compares complete verifications of ECDSA on every backend with AWS-LC.

mod curve;

use crate::testing::{self, Random};
use aws_lc_rs::{digest, signature};
use curve::{Point, n};
use linewarden_arithmetic::Backend;
use linewarden_arithmetic::p256::{PrecomputedPoint, PublicPoint, Request, Signer, verify};
use num_bigint::BigUint;

/// Two chunks of sixteen groups of eight signatures, and a partial chunk with a partial group.
const SIGNATURES: usize = 2 * 8 * 16 + 13;

/// A signature with its key, as bytes.
#[derive(Debug, Clone)]
struct Signed {
    key: [[u8; 32]; 2],
    digest: [u8; 32],
    r: [u8; 32],
    s: [u8; 32],
}

fn to_bytes(number: &BigUint) -> [u8; 32] {
    testing::bytes(number, 32).try_into().unwrap()
}

impl Signed {
    /// A signature by the private key `d`: r is derived from the point `u1 G + u2 Q`, where `Q = d G` is the public
    /// key. The signature is valid unless this point is the point at infinity.
    fn new(d: &BigUint, u1: &BigUint, u2: &BigUint) -> Self {
        let key = Point::base().times(d);
        let (x, y) = key.affine().unwrap_or_default();
        let point = Point::base().times(u1).plus(&key.times(u2));
        // The point at infinity has no x coordinate: r is then 0.
        let r = point.affine().unwrap_or_default().0 % n();
        let s = &r * u2.modpow(&(n() - 2u32), &n()) % n();
        Self {
            key: [to_bytes(&x), to_bytes(&y)],
            digest: to_bytes(&(u1 * &s % n())),
            r: to_bytes(&r),
            s: to_bytes(&s),
        }
    }
}

fn verified_by_aws_lc(signed: &Signed) -> bool {
    let key = [&[4], signed.key.as_flattened()].concat();
    let digest = digest::Digest::import_less_safe(&signed.digest, &digest::SHA256).expect("32 bytes");
    signature::UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, key)
        .verify_digest(&digest, &[signed.r, signed.s].concat())
        .is_ok()
}

/// Compares the results of this crate with the results of AWS-LC; returns the number of valid signatures.
fn count_valid(signed: &[Signed]) -> usize {
    let keys: Vec<_> = signed
        .iter()
        .map(|signed| PublicPoint::from_affine(&signed.key[0], &signed.key[1]).unwrap())
        .collect();
    let expected: Vec<bool> = signed.iter().map(verified_by_aws_lc).collect();
    for backend in Backend::available() {
        let precomputed: Vec<_> = keys
            .iter()
            .map(|key| PrecomputedPoint::new(backend, key))
            .collect();
        // Signers with precomputed points: none; all; alternately nine with and nine without, so that groups are mixed.
        for is_precomputed in [|_| false, |_| true, |index: usize| (index / 9).is_multiple_of(2)] {
            let requests: Vec<_> = (0..)
                .zip(signed)
                .map(|(index, Signed { digest, r, s, .. })| Request {
                    signer: match is_precomputed(index) {
                        true => Signer::Precomputed(&precomputed[index]),
                        false => Signer::Plain(&keys[index]),
                    },
                    digest,
                    r,
                    s,
                })
                .collect();
            let results = verify(backend, &requests);
            assert_eq!(results.len(), signed.len());
            for (signed, (is_valid, expected)) in signed.iter().zip(results.iter().zip(&expected)) {
                assert_eq!(is_valid, expected, "{}: {signed:x?}", backend.name());
            }
        }
    }
    expected.iter().filter(|is_valid| **is_valid).count()
}

#[test]
fn random_and_corrupted_signatures_are_verified_as_by_aws_lc() {
    let mut random = Random::new();
    let mut scalar = || random.residue(&(n() - 1u32), 256) + 1u32;
    let mut signed: Vec<Signed> = (0..SIGNATURES)
        .map(|_| Signed::new(&scalar(), &scalar(), &scalar()))
        .collect();
    let valid_before = count_valid(&signed);
    // A signature is invalid only if r comes from the point at infinity, which is rare.
    assert!(valid_before > SIGNATURES / 2);
    let originals = signed.clone();
    let mut corrupted = 0;
    for signed in &mut signed {
        let bit = random.below(256);
        let flip = |bytes: &mut [u8; 32]| bytes[bit / 8] ^= 1 << (bit % 8);
        match random.below(12) {
            0 => flip(&mut signed.digest),
            1 => flip(&mut signed.r),
            2 => flip(&mut signed.s),
            3 => signed.key = originals[random.below(SIGNATURES)].key,
            4 => (signed.r, signed.s) = (signed.s, signed.r),
            5 => signed.digest = to_bytes(&random.uniform(256)),
            _ => continue,
        }
        corrupted += 1;
    }
    let valid_after = count_valid(&signed);
    assert!(
        valid_after <= valid_before && valid_before - valid_after <= corrupted && valid_after < valid_before
    );
}

/// With these scalars, a partial sum often equals the next summand, the negative of the next summand, or infinity.
#[test]
fn sums_of_equal_or_opposite_points_are_verified_as_by_aws_lc() {
    let mut random = Random::new();
    let mut scalar = || {
        let small = BigUint::from(1 + random.below(39));
        let shifted = &small << (5 * random.below(51));
        match random.below(6) {
            0 => n() - small,
            1 => small.modpow(&(n() - 2u32), &n()),
            2 => shifted % n(),
            3 => n() - shifted % n(),
            _ => small,
        }
    };
    let signed: Vec<Signed> = (0..192)
        .map(|_| Signed::new(&scalar(), &scalar(), &scalar()))
        .collect();
    assert!(count_valid(&signed) > signed.len() / 2);
}
