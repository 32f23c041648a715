//! Compares complete verifications of Ed25519 on every backend with AWS-LC.

use crate::testing::{Random, bytes};
use aws_lc_rs::signature::{self, Ed25519KeyPair, KeyPair as _};
use linewarden_arithmetic::Backend;
use linewarden_arithmetic::edwards::{PrecomputedKey, PublicKey, Request, Signer, hash, verify};

/// Two chunks of sixteen groups of eight signatures, and a partial chunk with a partial group.
const SIGNATURES: usize = 2 * 8 * 16 + 13;

/// A signed message with its signature (`r`, `s`) and public key.
#[derive(Debug, Clone)]
struct Signed {
    key: [u8; 32],
    message: Vec<u8>,
    r: [u8; 32],
    s: [u8; 32],
}

impl Signed {
    fn new(random: &mut Random) -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(&bytes(&random.uniform(256), 32)).unwrap();
        let message = bytes(&random.uniform(560), 70)[..random.below(70)].to_vec();
        let signature = pair.sign(&message);
        let ([r, s], []) = signature.as_ref().as_chunks() else {
            panic!("an Ed25519 signature must have 64 bytes")
        };
        Self {
            key: pair.public_key().as_ref().try_into().unwrap(),
            message,
            r: *r,
            s: *s,
        }
    }
}

fn verified_by_aws_lc(signed: &Signed) -> bool {
    signature::UnparsedPublicKey::new(&signature::ED25519, signed.key)
        .verify(&signed.message, &[signed.r, signed.s].concat())
        .is_ok()
}

/// Compares the results of this crate with the results of AWS-LC; returns the number of valid signatures.
fn count_valid(signed: &[Signed]) -> usize {
    let keys: Vec<_> = signed
        .iter()
        .map(|signed| PublicKey::from_bytes(&signed.key).unwrap())
        .collect();
    let hashes: Vec<_> = signed
        .iter()
        .zip(&keys)
        .map(|(signed, key)| hash(&signed.r, key, &signed.message))
        .collect();
    let expected: Vec<bool> = signed.iter().map(verified_by_aws_lc).collect();
    for backend in Backend::available() {
        let precomputed: Vec<_> = keys.iter().map(|key| PrecomputedKey::new(backend, key)).collect();
        // Signers with precomputed keys: none; all; alternately nine with and nine without, so that groups are mixed.
        for is_precomputed in [|_| false, |_| true, |index: usize| (index / 9).is_multiple_of(2)] {
            let requests: Vec<_> = (0..)
                .zip(signed.iter().zip(&hashes))
                .map(|(index, (Signed { r, s, .. }, hash))| Request {
                    signer: match is_precomputed(index) {
                        true => Signer::Precomputed(&precomputed[index]),
                        false => Signer::Plain(&keys[index]),
                    },
                    r,
                    s,
                    hash,
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
    let mut signed: Vec<Signed> = (0..SIGNATURES).map(|_| Signed::new(&mut random)).collect();
    assert_eq!(count_valid(&signed), SIGNATURES);
    let originals = signed.clone();
    let mut corrupted = 0;
    for signed in &mut signed {
        let bit = random.below(256);
        let flip = |bytes: &mut [u8; 32]| bytes[bit / 8] ^= 1 << (bit % 8);
        match random.below(12) {
            0 => signed.message.push(0),
            1 => flip(&mut signed.r),
            2 => flip(&mut signed.s),
            3 => signed.key = originals[random.below(SIGNATURES)].key,
            4 => (signed.r, signed.s) = (signed.s, signed.r),
            5 => signed.r[31] ^= 0x80,
            _ => continue,
        }
        corrupted += 1;
    }
    let valid = count_valid(&signed);
    // A randomly chosen replacement key may be the signer's own key; the signature then remains valid.
    assert!(valid >= SIGNATURES - corrupted && valid < SIGNATURES);
}
