//! ECDSA on P-256, compared with AWS-LC and, for signatures that no signer makes, with affine big numbers.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey,
};
use linewarden_arithmetic::p256::PublicPoint;
use linewarden_signatures::gpu::{BatchError, Goal, Gpu, P256Batch};
use num_bigint::BigUint;
use rand::{Rng as _, RngExt as _};
use rand_chacha::ChaCha20Rng;
use sha2::{Digest as _, Sha256};

use super::numbers::{from_limbs, number_near, to_bytes};
use super::points::{Curve, Point};

#[derive(Default)]
struct BatchBuilder {
    keys: Vec<[u8; 64]>,
    key_of: Vec<u32>,
    digests: Vec<[u8; 32]>,
    signatures: Vec<[u8; 64]>,
    expected: Vec<bool>,
}

fn pair_of(x: &BigUint, y: &BigUint) -> [u8; 64] {
    [to_bytes(x, 32), to_bytes(y, 32)].concat().try_into().unwrap()
}

fn point_of(bytes: &[u8; 64]) -> PublicPoint {
    PublicPoint::from_sec1(&[&[4], bytes.as_slice()].concat()).unwrap()
}

impl BatchBuilder {
    fn push(&mut self, key: [u8; 64], digest: [u8; 32], signature: [u8; 64], expected: bool) {
        let number = self
            .keys
            .iter()
            .position(|known| *known == key)
            .unwrap_or(self.keys.len());
        if number == self.keys.len() {
            self.keys.push(key);
        }
        self.key_of.push(number as u32);
        self.digests.push(digest);
        self.signatures.push(signature);
        self.expected.push(expected);
    }

    /// Adds a signature with these numbers. Returns its expected validity, computed with affine big numbers.
    fn push_numbers(
        &mut self,
        curve: &Curve,
        key: &Point,
        digest: &BigUint,
        r: &BigUint,
        s: &BigUint,
    ) -> bool {
        let (x, y) = key.as_ref().unwrap();
        let expected = curve.verifies(key, digest, r, s);
        self.push(
            pair_of(x, y),
            to_bytes(digest, 32).try_into().unwrap(),
            pair_of(r, s),
            expected,
        );
        expected
    }

    fn check(&self, gpu: &mut Gpu) {
        let Self {
            keys,
            key_of,
            digests,
            signatures,
            expected,
        } = self;
        let mut device_keys = gpu.p256_keys(keys.len()).unwrap();
        let points: Vec<PublicPoint> = keys.iter().map(point_of).collect();
        gpu.put_p256_keys(&mut device_keys, &(0..).zip(&points).collect::<Vec<_>>())
            .unwrap();
        let batch = P256Batch {
            keys: &device_keys,
            key_of,
            digests,
            signatures,
        };
        for goal in [Goal::Throughput, Goal::Latency] {
            let results = gpu.verify_p256(&batch, goal).unwrap();
            for (index, (result, expected)) in results.iter().zip(expected).enumerate() {
                let (key, digest) = (
                    hex::encode(keys[key_of[index] as usize]),
                    hex::encode(digests[index]),
                );
                assert_eq!(
                    result,
                    expected,
                    "{goal:?} key {key} digest {digest} signature {}",
                    hex::encode(signatures[index])
                );
            }
        }
    }
}

fn scalar(rng: &mut ChaCha20Rng, curve: &Curve) -> BigUint {
    let number = from_limbs(&number_near(rng, &curve.n, 8)) % &curve.n;
    if number == BigUint::ZERO {
        1u8.into()
    } else {
        number
    }
}

/// Tests signatures made by AWS-LC, which are valid, and the same signatures with a changed bit, which are invalid, as
/// AWS-LC confirms.
pub fn signatures(gpu: &mut Gpu, rng: &mut ChaCha20Rng) {
    let random = SystemRandom::new();
    let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
    let pairs: Vec<EcdsaKeyPair> = (0..5)
        .map(|_| EcdsaKeyPair::generate(algorithm).unwrap())
        .collect();
    let mut batch = BatchBuilder::default();
    for turn in 0..40 {
        let pair = &pairs[turn % pairs.len()];
        let message: Vec<u8> = (0..turn).map(|_| rng.next_u32() as u8).collect();
        let key: [u8; 64] = pair.public_key().as_ref()[1..].try_into().unwrap();
        let mut signature: [u8; 64] = pair.sign(&random, &message).unwrap().as_ref().try_into().unwrap();
        if turn % 3 == 2 {
            signature[rng.random_range(0..64)] ^= 1 << rng.random_range(0..8);
        }
        let verifier = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, pair.public_key().as_ref());
        let expected = verifier.verify(&message, &signature).is_ok();
        assert_eq!(expected, turn % 3 != 2);
        batch.push(key, Sha256::digest(&message).into(), signature, expected);
    }
    batch.check(gpu);
}

/// Keys that are small multiples of the base point, or the opposite points. The scalars make summands equal or opposite
/// points, or make infinity an intermediate result or the sum.
pub fn meeting_points(gpu: &mut Gpu, rng: &mut ChaCha20Rng) {
    let curve = Curve::new();
    let mut batch = BatchBuilder::default();
    let small = |number: u32| BigUint::from(number);
    for multiple in [1u32, 2, 3, 16, 17, 255, 256] {
        let positive = curve.multiply(&curve.g, &small(multiple));
        for key in [curve.negate(&positive), positive] {
            for (g_factor, key_factor) in [
                (1, 1),
                (2, 1),
                (1, 2),
                (16, 16),
                (255, 1),
                (256, 1),
                (257, 1),
                (512, 2),
                (0, 1),
                // With the key G, two of four threads, and two pairs, have the same point.
                (32, 32),
                (1024, 1024),
            ] {
                let multiple_of_g = curve.multiply(&curve.g, &small(g_factor));
                let multiple_of_key = curve.multiply(&key, &small(key_factor));
                for (u1, multiple_of_g) in [
                    (small(g_factor), multiple_of_g.clone()),
                    (&curve.n - g_factor, curve.negate(&multiple_of_g)),
                ] {
                    // r is the x coordinate of the sum modulo n; if the sum is infinity, r is arbitrary.
                    let sum = curve.add(&multiple_of_g, &multiple_of_key);
                    let expected = sum.is_some();
                    let r = sum.map_or_else(|| scalar(rng, &curve), |(x, _)| x % &curve.n);
                    let s = &r * small(key_factor).modinv(&curve.n).unwrap() % &curve.n;
                    let digest = u1 * &s % &curve.n;
                    let (x, y) = key.as_ref().unwrap();
                    batch.push(
                        pair_of(x, y),
                        to_bytes(&digest, 32).try_into().unwrap(),
                        pair_of(&r, &s),
                        expected,
                    );
                }
            }
        }
    }
    let sums = batch.expected.iter().filter(|sum| **sum).count();
    assert!(
        sums > 150 && sums < batch.expected.len(),
        "only {sums} of {} sums are points",
        batch.expected.len()
    );
    batch.check(gpu);
}

/// Points whose x is not below the order n: r is x - n, and a verifier must compare x with both r and r + n. The key is
/// computed from the signature.
pub fn x_above_the_order(gpu: &mut Gpu, rng: &mut ChaCha20Rng) {
    let curve = Curve::new();
    let mut batch = BatchBuilder::default();
    let mut x = curve.n.clone();
    for _ in 0..6 {
        let point = loop {
            x += 1u8;
            if let Some(point) = curve.with_x(&x) {
                break point;
            }
        };
        let r = &x - &curve.n;
        let (s, digest) = (scalar(rng, &curve), scalar(rng, &curve));
        let inverse = s.modinv(&curve.n).unwrap();
        let multiple_of_g = curve.multiply(&curve.g, &(&digest * &inverse % &curve.n));
        let difference = curve.add(&point, &curve.negate(&multiple_of_g));
        let key = curve.multiply(&difference, &(s * r.modinv(&curve.n).unwrap() % &curve.n));
        let s = inverse.modinv(&curve.n).unwrap();
        assert!(batch.push_numbers(&curve, &key, &digest, &r, &s));
        assert!(!batch.push_numbers(&curve, &key, &(digest + 1u8), &r, &s));
    }
    batch.check(gpu);
}

/// Numbers at and beyond the ends of their ranges, digests above the order, the opposite key, a missing key.
pub fn out_of_range(gpu: &mut Gpu, rng: &mut ChaCha20Rng) {
    let curve = Curve::new();
    let mut batch = BatchBuilder::default();
    let secret = scalar(rng, &curve);
    let key = curve.multiply(&curve.g, &secret);
    let sign = |digest: &BigUint, nonce: &BigUint| {
        let (x, _) = curve.multiply(&curve.g, nonce).unwrap();
        let r = x % &curve.n;
        let s = nonce.modinv(&curve.n).unwrap() * (digest + &r * &secret) % &curve.n;
        (r, s)
    };
    let ones = (BigUint::from(1u8) << 256u32) - 1u8;
    for digest in [
        BigUint::ZERO,
        1u8.into(),
        &curve.n - 1u8,
        curve.n.clone(),
        &curve.n + 1u8,
        ones.clone(),
    ] {
        let (r, s) = sign(&digest, &scalar(rng, &curve));
        assert!(batch.push_numbers(&curve, &key, &digest, &r, &s));
        // The standard also accepts the negated s.
        assert!(batch.push_numbers(&curve, &key, &digest, &r, &(&curve.n - &s)));
        for (r, s) in [
            (BigUint::ZERO, s.clone()),
            (r.clone(), BigUint::ZERO),
            (curve.n.clone(), s.clone()),
            (r.clone(), curve.n.clone()),
            (ones.clone(), s.clone()),
            (r.clone(), ones.clone()),
        ] {
            assert!(!batch.push_numbers(&curve, &key, &digest, &r, &s));
        }
    }
    let digest = scalar(rng, &curve);
    let (r, s) = sign(&digest, &scalar(rng, &curve));
    let (x, y) = key.clone().unwrap();
    let digest: [u8; 32] = to_bytes(&digest, 32).try_into().unwrap();
    batch.push(pair_of(&x, &y), digest, pair_of(&r, &s), true);
    batch.push(pair_of(&x, &(&curve.p - &y)), digest, pair_of(&r, &s), false);
    batch.check(gpu);
    unused_and_duplicate_keys(gpu, &pair_of(&x, &y), &digest, &pair_of(&r, &s));
}

/// Verification with an unused key number fails, and duplicate key numbers are refused.
fn unused_and_duplicate_keys(gpu: &mut Gpu, key: &[u8; 64], digest: &[u8; 32], signature: &[u8; 64]) {
    let mut keys = gpu.p256_keys(3).unwrap();
    let point = point_of(key);
    for numbers in [[1, 1], [1, 3]] {
        let result = gpu.put_p256_keys(&mut keys, &numbers.map(|number| (number, &point)));
        assert!(matches!(result, Err(BatchError::Malformed(_))), "{numbers:?}");
    }
    gpu.put_p256_keys(&mut keys, &[]).unwrap();
    gpu.put_p256_keys(&mut keys, &[(1, &point)]).unwrap();
    let batch = P256Batch {
        keys: &keys,
        key_of: &[0, 1, 2],
        digests: &[*digest; 3],
        signatures: &[*signature; 3],
    };
    for goal in [Goal::Throughput, Goal::Latency] {
        assert_eq!(gpu.verify_p256(&batch, goal).unwrap(), [false, true, false]);
    }
}
