//! Hashes, RSA-PSS and the private operation, compared with big numbers and AWS-LC.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{RSA_PSS_2048_8192_SHA256, RSA_PSS_SHA256, RsaKeyPair, RsaPublicKeyComponents};
use linewarden_arithmetic::rsa::Size;
use linewarden_signatures::gpu::{BatchError, Goal, Gpu, PrivateBatch, PssBatch, RsaKeys};
use num_bigint::BigUint;
use rand::{Rng as _, RngExt as _};
use rand_chacha::ChaCha20Rng;
use sha2::{Digest as _, Sha256};

use super::keys::{Key, keys};
use super::numbers::{powers_and_neighbors, to_bytes};

pub const SIZES: [Size; 2] = [Size::Bits2048, Size::Bits3072];
pub const GOALS: [Goal; 3] = [Goal::Throughput, Goal::Latency, Goal::Automatic];

/// MGF1 with SHA-256, RFC 8017, B.2.1.
fn mgf1(seed: &[u8], length: usize) -> Vec<u8> {
    let blocks = (0u32..).flat_map(|counter| {
        Sha256::new()
            .chain_update(seed)
            .chain_update(counter.to_be_bytes())
            .finalize()
    });
    blocks.take(length).collect()
}

/// The hash H of RA for this message, modulo n.
pub fn full_domain_hash(message: &[u8], n: &BigUint) -> BigUint {
    let length = n.bits().div_ceil(8) as usize + 16;
    BigUint::from_bytes_be(&mgf1(message, length)) % n
}

pub fn put_all(gpu: &mut Gpu, size: Size, test_keys: &[Key]) -> RsaKeys {
    let mut store = gpu.rsa_keys(size, test_keys.len()).unwrap();
    for (number, key) in test_keys.iter().enumerate() {
        gpu.put_rsa_key(&mut store, number, key.modulus()).unwrap();
    }
    store
}

/// Tests messages of 0 to 128 bytes, so that counter and padding start at every position of a hash block.
pub fn full_domain_hashes(gpu: &mut Gpu, rng: &mut ChaCha20Rng) {
    for size in SIZES {
        let test_keys = keys(size);
        let store = put_all(gpu, size, &test_keys);
        let messages: Vec<Vec<u8>> = (0..=128)
            .map(|length| {
                let mut message = vec![0; length];
                rng.fill_bytes(&mut message);
                message
            })
            .collect();
        let key_of: Vec<u32> = messages.iter().map(|_| rng.random_range(0..3)).collect();
        let views: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
        let hashes = gpu.hash_full_domain(&store, &key_of, &views).unwrap();
        for ((hash, message), key) in hashes.chunks(size.bytes()).zip(&messages).zip(&key_of) {
            let expected = full_domain_hash(message, &test_keys[*key as usize].n);
            assert_eq!(
                BigUint::from_bytes_be(hash),
                expected,
                "{size:?}, {} bytes",
                message.len()
            );
        }
        let long = [0; 129];
        assert!(matches!(
            gpu.hash_full_domain(&store, &[0], &[&long]),
            Err(BatchError::Malformed(_))
        ));
    }
}

/// EMSA-PSS-ENCODE of RFC 8017, 9.1.1, with parts that a test can change.
struct Encoded {
    salt: Vec<u8>,
    /// Bytes before the salt.
    padding: Vec<u8>,
    trailer: u8,
    clear_top_bit: bool,
    /// XORed into H after all other parts were derived from H.
    h_flip: u8,
}

impl Encoded {
    fn new(rng: &mut ChaCha20Rng, size: Size) -> Self {
        let mut salt = vec![0; 32];
        rng.fill_bytes(&mut salt);
        let mut padding = vec![0; size.bytes() - 66];
        padding.push(1);
        Self {
            salt,
            padding,
            trailer: 0xbc,
            clear_top_bit: true,
            h_flip: 0,
        }
    }

    fn bytes(&self, digest: &[u8]) -> Vec<u8> {
        let mut h = Sha256::new()
            .chain_update([0; 8])
            .chain_update(digest)
            .chain_update(&self.salt)
            .finalize()
            .to_vec();
        let mut block = [self.padding.as_slice(), &self.salt].concat();
        for (byte, mask) in block
            .iter_mut()
            .zip(mgf1(&h, self.padding.len() + self.salt.len()))
        {
            *byte ^= mask;
        }
        block[0] = if self.clear_top_bit {
            block[0] & 0x7f
        } else {
            block[0] | 0x80
        };
        h[31] ^= self.h_flip;
        [block, h, vec![self.trailer]].concat()
    }

    fn sign(&self, key: &Key, digest: &[u8]) -> BigUint {
        key.private(&BigUint::from_bytes_be(&self.bytes(digest)))
    }
}

/// Digest and signature of a message.
pub fn sign_pss(rng: &mut ChaCha20Rng, key: &Key, message: &[u8]) -> ([u8; 32], Vec<u8>) {
    let digest = Sha256::digest(message);
    let number = Encoded::new(rng, key.size).sign(key, &digest);
    (digest.into(), to_bytes(&number, key.size.bytes()))
}

fn aws_lc_verifies(key: &Key, message: &[u8], signature: &[u8]) -> bool {
    let (n, e) = (key.n.to_bytes_be(), key.e.to_bytes_be());
    RsaPublicKeyComponents { n, e }
        .verify(&RSA_PSS_2048_8192_SHA256, message, signature)
        .is_ok()
}

/// A batch under construction.
#[derive(Default)]
struct BatchBuilder {
    key_of: Vec<u32>,
    messages: Vec<Vec<u8>>,
    digests: Vec<[u8; 32]>,
    signatures: Vec<u8>,
    expected: Vec<bool>,
}

impl BatchBuilder {
    fn push(&mut self, key: usize, message: &[u8], signature: &[u8], expected: bool) {
        self.key_of.push(key as u32);
        self.messages.push(message.to_vec());
        self.digests.push(Sha256::digest(message).into());
        self.signatures.extend_from_slice(signature);
        self.expected.push(expected);
    }

    /// Checks that AWS-LC, and the device for each goal, return the expected results.
    fn check(&self, gpu: &mut Gpu, test_keys: &[Key]) {
        let size = test_keys[0].size;
        for ((key, message), (signature, expected)) in self
            .key_of
            .iter()
            .zip(&self.messages)
            .zip(self.signatures.chunks(size.bytes()).zip(&self.expected))
        {
            assert_eq!(
                aws_lc_verifies(&test_keys[*key as usize], message, signature),
                *expected,
                "AWS-LC disagrees"
            );
        }
        let store = put_all(gpu, size, test_keys);
        for goal in GOALS {
            let batch = PssBatch {
                keys: &store,
                key_of: &self.key_of,
                digests: &self.digests,
                signatures: &self.signatures,
            };
            assert_eq!(
                gpu.verify_pss(&batch, goal).unwrap(),
                self.expected,
                "{size:?} {goal:?}"
            );
        }
    }
}

pub fn pss_valid(gpu: &mut Gpu, rng: &mut ChaCha20Rng) {
    for size in SIZES {
        let test_keys = keys(size);
        let mut batch = BatchBuilder::default();
        for turn in 0..9 {
            let number = turn % 3;
            let key = &test_keys[number];
            let message: Vec<u8> = (0..turn).map(|_| rng.next_u32() as u8).collect();
            let computed_signature = Encoded::new(rng, size).sign(key, &Sha256::digest(&message));
            batch.push(
                number,
                &message,
                &to_bytes(&computed_signature, size.bytes()),
                true,
            );
            // AWS-LC refuses the first two keys, because their prime factors are too close to each other.
            if let Ok(pair) = RsaKeyPair::from_der(&key.der()) {
                let mut signature = vec![0; size.bytes()];
                pair.sign(&RSA_PSS_SHA256, &SystemRandom::new(), &message, &mut signature)
                    .unwrap();
                batch.push(number, &message, &signature, true);
                batch.push((number + 1) % 3, &message, &signature, false);
            }
        }
        assert!(
            batch.expected.len() > 9,
            "AWS-LC must accept at least one of the keys"
        );
        batch.check(gpu, &test_keys);
    }
}

pub fn pss_invalid(gpu: &mut Gpu, rng: &mut ChaCha20Rng) {
    for size in SIZES {
        let test_keys = keys(size);
        let key = &test_keys[0];
        let (length, message) = (size.bytes(), b"stop");
        let digest = Sha256::digest(message);
        let mut batch = BatchBuilder::default();
        let mut push =
            |number: &BigUint, expected| batch.push(0, message, &to_bytes(number, length), expected);

        let valid = Encoded::new(rng, size).sign(key, &digest);
        push(&valid, true);
        for bit in [
            0,
            1,
            31,
            32,
            63,
            64,
            8 * length - 2,
            rng.random_range(0..8 * length - 1),
        ] {
            push(&(&valid ^ (BigUint::from(1u8) << bit)), false);
        }
        // 0, 1 and n - 1 equal their own e-th powers; n is not below n; the last number has the opposite power.
        for number in [
            BigUint::ZERO,
            BigUint::from(1u8),
            &key.n - 1u8,
            key.n.clone(),
            &key.n - &valid,
        ] {
            push(&number, false);
        }
        // Congruent to the valid number modulo n, but not below n; omitted if it does not fit.
        let above = &valid + &key.n;
        if above.bits() as usize <= 8 * length {
            push(&above, false);
        }
        let mut add_invalid = |change: &dyn Fn(&mut Encoded)| {
            let mut encoded = Encoded::new(rng, size);
            change(&mut encoded);
            let number = BigUint::from_bytes_be(&encoded.bytes(&digest));
            // A number above n cannot be signed; with these keys, the probability of such a number is about 2^-1000.
            push(&key.private(&(number % &key.n)), false);
        };
        add_invalid(&|encoded| encoded.trailer = 0xbd);
        add_invalid(&|encoded| encoded.trailer = 0xcc);
        add_invalid(&|encoded| encoded.clear_top_bit = false);
        add_invalid(&|encoded| encoded.h_flip = 1);
        for index in [
            0,
            1,
            3,
            4,
            100,
            length - 72,
            length - 69,
            length - 68,
            length - 67,
        ] {
            add_invalid(&|encoded| encoded.padding[index] = 1);
        }
        for separator in [0, 2, 0x81] {
            add_invalid(&|encoded| encoded.padding[length - 66] = separator);
        }
        // A shorter salt with longer padding, and the reverse.
        add_invalid(&|encoded| {
            encoded.salt.pop();
            encoded.padding.insert(0, 0);
        });
        add_invalid(&|encoded| {
            encoded.salt.push(7);
            encoded.padding.remove(0);
        });
        let other_message = Encoded::new(rng, size).sign(key, &Sha256::digest(b"go"));
        push(&other_message, false);
        batch.check(gpu, &test_keys);
    }
}

fn secrets_of(gpu: &mut Gpu, size: Size, test_keys: &[Key]) -> linewarden_signatures::gpu::RsaSecrets {
    let mut secrets = gpu.rsa_secrets(size, test_keys.len()).unwrap();
    for (number, key) in test_keys.iter().enumerate() {
        gpu.put_rsa_secret(&mut secrets, number, key.modulus(), b"", &key.secret())
            .unwrap();
    }
    secrets
}

pub fn private_operations(gpu: &mut Gpu, rng: &mut ChaCha20Rng) {
    for size in SIZES {
        let (test_keys, length) = (keys(size), size.bytes());
        let secrets = secrets_of(gpu, size, &test_keys);
        let (mut key_of, mut numbers) = (vec![], vec![]);
        for (index, key) in (0u32..).zip(&test_keys) {
            let mut random = vec![0; length];
            rng.fill_bytes(&mut random);
            let random = BigUint::from_bytes_be(&random) % &key.n;
            let ones = (BigUint::from(1u8) << (8 * length)) - 1u8;
            let edges = [
                BigUint::ZERO,
                1u8.into(),
                &key.n - 1u8,
                key.p.clone(),
                &key.q * 3u8,
                key.n.clone(),
                ones,
            ];
            // Only with one key, since an emulated device is slow.
            let powers = powers_and_neighbors(length / 4).filter(|_| index == 0);
            for number in edges.into_iter().chain([random]).chain(powers) {
                key_of.push(index);
                numbers.push(number);
            }
        }
        let bytes: Vec<u8> = numbers
            .iter()
            .flat_map(|number| to_bytes(number, length))
            .collect();
        let batch = PrivateBatch {
            secrets: &secrets,
            key_of: &key_of,
            numbers: &bytes,
        };
        for goal in [Goal::Throughput, Goal::Latency] {
            let (results, checked) = gpu.private(&batch, goal).unwrap();
            for (((key, number), result), checked) in key_of
                .iter()
                .zip(&numbers)
                .zip(results.chunks(length))
                .zip(checked)
            {
                let key = &test_keys[*key as usize];
                let expected = if number < &key.n {
                    key.private(number)
                } else {
                    BigUint::ZERO
                };
                assert_eq!(BigUint::from_bytes_be(result), expected, "{size:?}: {number:x}");
                assert_eq!(checked, number < &key.n, "{size:?}: {number:x}");
            }
        }
    }
}

/// A changed dp, dq or qinv emulates a fault in the computation.
pub fn inconsistent_secrets(gpu: &mut Gpu, rng: &mut ChaCha20Rng) {
    for size in SIZES {
        let test_keys = keys(size);
        let key = &test_keys[2];
        let mut parts = [key.secret().dp, key.secret().dq, key.secret().qinv].map(<[u8]>::to_vec);
        let mut number = vec![0; size.bytes()];
        rng.fill_bytes(&mut number[1..]);
        for wrong_part in 0..3 {
            let index = rng.random_range(1..parts[wrong_part].len());
            parts[wrong_part][index] ^= 1;
            let [dp, dq, qinv] = &parts;
            let secret = linewarden_signatures::gpu::RsaSecret {
                dp,
                dq,
                qinv,
                ..key.secret()
            };
            let mut secrets = gpu.rsa_secrets(size, 1).unwrap();
            gpu.put_rsa_secret(&mut secrets, 0, key.modulus(), b"", &secret)
                .unwrap();
            let batch = PrivateBatch {
                secrets: &secrets,
                key_of: &[0],
                numbers: &number,
            };
            for goal in [Goal::Throughput, Goal::Latency] {
                let (result, checked) = gpu.private(&batch, goal).unwrap();
                assert_eq!(checked, [false]);
                assert!(result.iter().all(|byte| *byte == 0));
            }
            parts[wrong_part][index] ^= 1;
        }
    }
}
