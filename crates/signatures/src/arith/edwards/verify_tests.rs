//! Whole verifications against AWS-LC, one signature at a time.

use aws_lc_rs::signature::{self, Ed25519KeyPair, KeyPair as _};
use num_bigint::BigUint;
use rand::RngExt as _;

use super::super::{KnownKey, PublicKey, hash};
use super::*;
use crate::arith::edwards::field::P;
use crate::arith::five::outline::run_by;
use crate::arith::five::testing::{Random, from_limbs, on_each_backend, to_words};

/// More than two chunks, the last one not full.
const SIGNATURES: usize = 2 * LANES * GROUPS + 13;

mod each {
    super::on_each_backend!(random_signatures, decompressed_points);
}

#[derive(Debug, Clone)]
struct Signed {
    key: [u8; 32],
    message: Vec<u8>,
    r: [u8; 32],
    s: [u8; 32],
}

fn by_aws_lc(signed: &Signed) -> bool {
    signature::UnparsedPublicKey::new(&signature::ED25519, signed.key)
        .verify(&signed.message, &[signed.r, signed.s].concat())
        .is_ok()
}

/// Verdicts of both, which are the same. How many are valid.
fn compare<W: Outline>(signed: &[Signed]) -> usize {
    let keys: Vec<_> = signed
        .iter()
        .map(|signed| PublicKey::from_bytes(&signed.key).unwrap())
        .collect();
    let hashes: Vec<_> = signed
        .iter()
        .zip(&keys)
        .map(|(signed, key)| hash(&signed.r, key, &signed.message))
        .collect();
    let combs = keys.iter().map(|key| KnownKey {
        key: *key,
        comb: run_by::<W, _>(MakeComb(key)),
    });
    let known: Vec<_> = combs.collect();
    let expected: Vec<bool> = signed.iter().map(by_aws_lc).collect();
    // Whose multiples are there: nobody's, everybody's, those of some groups and, in one group, of some lanes.
    for known_of in [
        |_| false,
        |_| true,
        |at: usize| (at / (LANES + 1)).is_multiple_of(2),
    ] {
        let signer = |at: usize| match known_of(at) {
            true => Signer::Known(&known[at]),
            false => Signer::New(&keys[at]),
        };
        let requests: Vec<_> = (0..)
            .zip(signed.iter().zip(&hashes))
            .map(|(at, (Signed { r, s, .. }, hash))| Request {
                signer: signer(at),
                r,
                s,
                hash,
            })
            .collect();
        let verdicts = run_by::<W, _>(Verify(&requests));
        assert_eq!(verdicts.len(), signed.len());
        for (signed, (verdict, expected)) in signed.iter().zip(verdicts.iter().zip(&expected)) {
            assert_eq!(verdict, expected, "{signed:x?}");
        }
    }
    expected.iter().filter(|verdict| **verdict).count()
}

fn random_signatures<W: Outline>() {
    let mut random = Random::new();
    let mut signed: Vec<Signed> = (0..SIGNATURES)
        .map(|_| {
            let seed: [u8; 32] = random.rng.random();
            let pair = Ed25519KeyPair::from_seed_unchecked(&seed).unwrap();
            let message: [u8; 70] = random.rng.random();
            let message = message[..random.rng.random_range(0..70)].to_vec();
            let signature = pair.sign(&message);
            let ([r, s], []) = signature.as_ref().as_chunks() else {
                panic!("64 bytes")
            };
            let key = pair.public_key().as_ref().try_into().unwrap();
            Signed {
                key,
                message,
                r: *r,
                s: *s,
            }
        })
        .collect();
    assert_eq!(compare::<W>(&signed), SIGNATURES);
    let others = signed.clone();
    let mut corrupted = 0;
    for signed in &mut signed {
        let bit = random.rng.random_range(0..256);
        let flip = |bytes: &mut [u8; 32]| bytes[bit / 8] ^= 1 << (bit % 8);
        match random.rng.random_range(0..12) {
            0 => signed.message.push(0),
            1 => flip(&mut signed.r),
            2 => flip(&mut signed.s),
            3 => signed.key = others[random.rng.random_range(0..SIGNATURES)].key,
            4 => (signed.r, signed.s) = (signed.s, signed.r),
            5 => signed.r[31] ^= 0x80,
            _ => continue,
        }
        corrupted += 1;
    }
    let valid = compare::<W>(&signed);
    // A key may be replaced by itself.
    assert!(valid >= SIGNATURES - corrupted && valid < SIGNATURES);
}

/// The curve's equation holds for what is found, and nothing is found where `(y^2 - 1) / (d y^2 + 1)` is no square (Euler's criterion).
fn decompressed_points<W: Outline>() {
    let mut random = Random::new();
    let (p, one) = (from_limbs(&P), BigUint::from(1u32));
    let mut found = 0;
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
            let limbs = crate::arith::five::limbs(&to_words(&y));
            let point = run_by::<W, _>(Decompress { y: &limbs, x_is_odd });
            assert_eq!(point.is_some(), is_square || square == BigUint::ZERO, "{y}");
            let Some([x, negative]) = point.map(|point| point.map(|x| from_limbs(&x))) else {
                continue;
            };
            found += 1;
            assert_eq!(&x * &x % &p, square);
            assert_eq!((&x + &negative) % &p, BigUint::ZERO);
            assert!(x == BigUint::ZERO || x.bit(0) == x_is_odd);
        }
    }
    assert!(found > 0);
}
