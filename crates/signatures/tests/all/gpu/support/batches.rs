//! Tests that devices divide batches into slices and combine the results correctly, and refuse malformed batches.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use linewarden_arithmetic::p256::PublicPoint;
use linewarden_arithmetic::rsa::Size;
use linewarden_signatures::gpu::{BatchError, Goal, Gpu, P256Batch, PssBatch};
use num_bigint::BigUint;
use rand::RngExt as _;
use rand_chacha::ChaCha20Rng;
use sha2::{Digest as _, Sha256};

use super::keys::keys;
use super::numbers::to_bytes;
use super::rsa::{full_domain_hash, put_all};

/// Tests batch lengths near the number of items of a block and of a wave, with keys in random order: each result must
/// belong to its own item.
pub fn lengths(gpu: &mut Gpu, rng: &mut ChaCha20Rng) {
    let test_keys = keys(Size::Bits2048);
    let store = put_all(gpu, Size::Bits2048, &test_keys);
    for count in [0, 1, 2, 31, 32, 33, 64, 65, 129, 200] {
        let key_of: Vec<u32> = (0..count).map(|_| rng.random_range(0..3)).collect();
        let messages: Vec<[u8; 4]> = (0u32..).take(count).map(u32::to_be_bytes).collect();
        let views: Vec<&[u8]> = messages.iter().map(<[u8; 4]>::as_slice).collect();
        let hashes = gpu.hash_full_domain(&store, &key_of, &views).unwrap();
        assert_eq!(hashes.len(), 256 * count);
        for ((hash, key), message) in hashes.chunks(256).zip(&key_of).zip(&messages) {
            assert_eq!(
                BigUint::from_bytes_be(hash),
                full_domain_hash(message, &test_keys[*key as usize].n)
            );
        }
    }
    // A device sorts items by key, and returns results in the original order. Valid and invalid items alternate at
    // random, so a wrong order is detected.
    let count = 150;
    let key_of: Vec<u32> = (0..count).map(|_| rng.random_range(0..3)).collect();
    let (signatures, digests, expected) = signed_items(rng, &test_keys, &key_of);
    for goal in [Goal::Throughput, Goal::Latency] {
        let batch = PssBatch {
            keys: &store,
            key_of: &key_of,
            digests: &digests,
            signatures: &signatures,
        };
        assert_eq!(gpu.verify_pss(&batch, goal).unwrap(), expected);
    }
}

/// Tests batch lengths with P-256, whose kernels have other numbers of items per block. A signature is valid only if the
/// item's key has made it.
pub fn p256_lengths(gpu: &mut Gpu, rng: &mut ChaCha20Rng) {
    let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
    let random = SystemRandom::new();
    let pairs: Vec<EcdsaKeyPair> = (0..3)
        .map(|_| EcdsaKeyPair::generate(algorithm).unwrap())
        .collect();
    let points: Vec<PublicPoint> = pairs
        .iter()
        .map(|pair| PublicPoint::from_sec1(pair.public_key().as_ref()).unwrap())
        .collect();
    let mut keys = gpu.p256_keys(3).unwrap();
    gpu.put_p256_keys(&mut keys, &(0..).zip(&points).collect::<Vec<_>>())
        .unwrap();
    let signatures: Vec<[u8; 64]> = pairs
        .iter()
        .map(|pair| pair.sign(&random, b"once").unwrap().as_ref().try_into().unwrap())
        .collect();
    for count in [0, 1, 31, 32, 33, 127, 128, 129, 200] {
        let key_of: Vec<u32> = (0..count).map(|_| rng.random_range(0..3)).collect();
        let signer_of: Vec<u32> = (0..count).map(|_| rng.random_range(0..3)).collect();
        let signatures: Vec<[u8; 64]> = signer_of
            .iter()
            .map(|signer| signatures[*signer as usize])
            .collect();
        let expected: Vec<bool> = key_of
            .iter()
            .zip(&signer_of)
            .map(|(key, signer)| key == signer)
            .collect();
        let batch = P256Batch {
            keys: &keys,
            key_of: &key_of,
            digests: &vec![Sha256::digest(b"once").into(); count],
            signatures: &signatures,
        };
        for goal in [Goal::Throughput, Goal::Latency, Goal::Automatic] {
            assert_eq!(
                gpu.verify_p256(&batch, goal).unwrap(),
                expected,
                "{goal:?}, {count}"
            );
        }
    }
}

/// Items with the signature of a random key on one message; an item is valid if this key is the item's key. Returns
/// signatures, digests and validity.
fn signed_items(
    rng: &mut ChaCha20Rng,
    test_keys: &[super::keys::Key],
    key_of: &[u32],
) -> (Vec<u8>, Vec<[u8; 32]>, Vec<bool>) {
    let signed: Vec<([u8; 32], Vec<u8>)> = test_keys
        .iter()
        .map(|key| super::rsa::sign_pss(rng, key, b"once"))
        .collect();
    let (mut signatures, mut digests, mut expected) = (vec![], vec![], vec![]);
    for key in key_of {
        let signer = if rng.random_bool(0.5) {
            *key
        } else {
            rng.random_range(0..3)
        };
        let (digest, signature) = &signed[signer as usize];
        signatures.extend(signature);
        digests.push(*digest);
        expected.push(signer == *key);
    }
    assert!(expected.contains(&true) && expected.contains(&false));
    (signatures, digests, expected)
}

pub fn malformed(gpu: &mut Gpu, _: &mut ChaCha20Rng) {
    let test_keys = keys(Size::Bits2048);
    let mut store = put_all(gpu, Size::Bits2048, &test_keys);
    let is_malformed =
        |outcome: Result<Vec<bool>, BatchError>| matches!(outcome, Err(BatchError::Malformed(_)));
    let valid_batch = PssBatch {
        keys: &store,
        key_of: &[0],
        digests: &[[0; 32]],
        signatures: &[0; 256],
    };
    assert_eq!(gpu.verify_pss(&valid_batch, Goal::Automatic).unwrap(), [false]);
    for malformed_batch in [
        PssBatch {
            key_of: &[3],
            ..valid_batch
        },
        PssBatch {
            digests: &[],
            ..valid_batch
        },
        PssBatch {
            signatures: &[0; 255],
            ..valid_batch
        },
        PssBatch {
            key_of: &[0, 0],
            ..valid_batch
        },
    ] {
        assert!(is_malformed(gpu.verify_pss(&malformed_batch, Goal::Automatic)));
    }
    let points = gpu.p256_keys(1).unwrap();
    let points = P256Batch {
        keys: &points,
        key_of: &[1],
        digests: &[[0; 32]],
        signatures: &[[0; 64]],
    };
    assert!(is_malformed(gpu.verify_p256(&points, Goal::Automatic)));
    let assert_refused =
        |outcome: Result<(), BatchError>| assert!(matches!(outcome, Err(BatchError::Malformed(_))));
    let even = to_bytes(&(&test_keys[0].n - 1u8), 256);
    let short = to_bytes(&(&test_keys[0].n >> 1), 256);
    assert_refused(gpu.put_rsa_key(&mut store, 0, &even));
    assert_refused(gpu.put_rsa_key(&mut store, 0, &short));
    assert_refused(gpu.put_rsa_key(&mut store, 0, &test_keys[0].modulus()[1..]));
    assert_refused(gpu.put_rsa_key(&mut store, 3, test_keys[0].modulus()));
    for domains in [&[][..], &[0], &[65_537]] {
        assert!(matches!(
            gpu.ra_keys(Size::Bits2048, domains, 1),
            Err(BatchError::Malformed(_))
        ));
    }
}
