//! Rapid Authentication, compared with the formulas of docs/protocols.md in big numbers.

use linewarden_arithmetic::rsa::Size;
use linewarden_signatures::gpu::{BatchError, Goal, Gpu, RaBatch, RaKeys, RaSigner};
use num_bigint::BigUint;
use rand::{Rng as _, RngExt as _};
use rand_chacha::ChaCha20Rng;

use super::keys::{Key, keys};
use super::numbers::{powers_and_neighbors, to_bytes};
use super::rsa::{GOALS, SIZES, full_domain_hash};

const DOMAINS: [u32; 4] = [3, 1, 5, 2];

/// The bytes that the protocol hashes before r: the purpose byte 2, the length of P, P, and the length of r.
fn prefix(key: usize) -> Vec<u8> {
    [
        &[2][..],
        &32u32.to_be_bytes(),
        &[key as u8; 32],
        &32u32.to_be_bytes(),
    ]
    .concat()
}

/// Appends the bytes that the protocol hashes for a value at a position of the layout.
fn component(key: usize, position: usize, value: u32, out: &mut Vec<u8>) {
    out.extend([&[1][..], &32u32.to_be_bytes(), &[key as u8; 32]].concat());
    out.extend((position as u32).to_be_bytes());
    out.extend(value.to_be_bytes());
}

/// The right side of the verification equation: the hash of r times the hashes of all components.
fn product(key: &Key, index: usize, seed: &[u8], digits: &[u16]) -> BigUint {
    let seed_hash = full_domain_hash(&[&prefix(index), seed].concat(), &key.n);
    digits
        .iter()
        .enumerate()
        .fold(seed_hash, |product, (position, digit)| {
            let mut bytes = Vec::new();
            component(index, position, u32::from(*digit), &mut bytes);
            product * full_domain_hash(&bytes, &key.n) % &key.n
        })
}

fn digits(rng: &mut ChaCha20Rng, count: usize) -> Vec<u16> {
    (0..count)
        .flat_map(|_| DOMAINS.map(|domain| rng.random_range(0..domain) as u16))
        .collect()
}

fn seeds(rng: &mut ChaCha20Rng, count: usize) -> Vec<[u8; 32]> {
    let seed = |_| {
        let mut seed = [0; 32];
        rng.fill_bytes(&mut seed);
        seed
    };
    (0..count).map(seed).collect()
}

fn verifier(gpu: &mut Gpu, size: Size, test_keys: &[Key]) -> RaKeys {
    let mut store = gpu.ra_keys(size, &DOMAINS, test_keys.len()).unwrap();
    for (index, key) in test_keys.iter().enumerate() {
        let components = |position, value, out: &mut Vec<u8>| component(index, position, value, out);
        gpu.put_ra_key(&mut store, index, key.modulus(), &prefix(index), &components)
            .unwrap();
    }
    store
}

fn signer(gpu: &mut Gpu, key: &Key, index: usize, masks: usize) -> RaSigner {
    let components = |position, value, out: &mut Vec<u8>| component(index, position, value, out);
    gpu.ra_signer(
        key.modulus(),
        &key.secret(),
        &prefix(index),
        &DOMAINS,
        &components,
        masks,
    )
    .unwrap()
}

/// Tests that a device's signature is the private operation on the product, and that the device accepts its own
/// signatures, with several keys in one batch.
pub fn signatures(gpu: &mut Gpu, rng: &mut ChaCha20Rng) {
    for size in SIZES {
        let (test_keys, length) = (keys(size), size.bytes());
        let (mut key_of, mut all_digits, mut all_seeds, mut numbers) = (vec![], vec![], vec![], vec![]);
        for (index, key) in test_keys.iter().enumerate() {
            let mut signer = signer(gpu, key, index, 6);
            let new_seeds = seeds(rng, 6);
            gpu.fill_masks(&mut signer, &new_seeds).unwrap();
            for goal in GOALS {
                let digits = digits(rng, 2);
                let signed = gpu.sign_ra(&mut signer, &digits, goal).unwrap();
                for ((seed, number), digits) in signed
                    .seeds
                    .iter()
                    .zip(signed.numbers.chunks(length))
                    .zip(digits.chunks(4))
                {
                    let expected = key.private(&product(key, index, seed, digits));
                    assert_eq!(BigUint::from_bytes_be(number), expected, "{size:?} {goal:?}");
                }
                key_of.extend([index as u32; 2]);
                all_digits.extend(digits);
                all_seeds.extend(signed.seeds);
                numbers.extend(signed.numbers);
            }
            assert_eq!(all_seeds[all_seeds.len() - 6..], new_seeds);
        }
        let store = verifier(gpu, size, &test_keys);
        // Not in the order of keys: first and last, second and second-last, and so on.
        let order: Vec<usize> = (0..9).flat_map(|index| [index, 17 - index]).collect();
        let key_of: Vec<u32> = order.iter().map(|index| key_of[*index]).collect();
        let digits: Vec<u16> = order
            .iter()
            .flat_map(|index| all_digits[4 * index..4 * index + 4].to_vec())
            .collect();
        let seeds: Vec<[u8; 32]> = order.iter().map(|index| all_seeds[*index]).collect();
        let numbers: Vec<u8> = order
            .iter()
            .flat_map(|index| numbers[length * index..length * (index + 1)].to_vec())
            .collect();
        for goal in GOALS {
            let batch = RaBatch {
                keys: &store,
                key_of: &key_of,
                digits: &digits,
                seeds: &seeds,
                signatures: &numbers,
            };
            assert_eq!(
                gpu.verify_ra(&batch, goal).unwrap(),
                [true; 18],
                "{size:?} {goal:?}"
            );
        }
    }
}

/// A signature and its validity.
struct Item {
    key: u32,
    digits: [u16; 4],
    seed: [u8; 32],
    number: BigUint,
    expected: bool,
}

/// The product of the hash of r and of the given rows of a key's table, whatever their positions are.
fn product_of_rows(key: &Key, index: usize, seed: &[u8], rows: &[usize]) -> BigUint {
    let components: Vec<(usize, u32)> = DOMAINS
        .iter()
        .enumerate()
        .flat_map(|(position, domain)| (0..*domain).map(move |value| (position, value)))
        .collect();
    let seed_hash = full_domain_hash(&[&prefix(index), seed].concat(), &key.n);
    rows.iter().fold(seed_hash, |product, row| {
        let mut bytes = Vec::new();
        component(index, components[*row].0, components[*row].1, &mut bytes);
        product * full_domain_hash(&bytes, &key.n) % &key.n
    })
}

/// Tests signatures with one changed input, numbers at and beyond the ends of their ranges, and digits outside their
/// domains.
pub fn refused(gpu: &mut Gpu, rng: &mut ChaCha20Rng) {
    for size in SIZES {
        let (test_keys, length) = (keys(size), size.bytes());
        let store = verifier(gpu, size, &test_keys);
        let (key, digits, seed) = (&test_keys[1], [2, 0, 3, 1], seeds(rng, 1)[0]);
        let valid = key.private(&product(key, 1, &seed, &digits));
        let item = |number: &BigUint| Item {
            key: 1,
            digits,
            seed,
            number: number.clone(),
            expected: false,
        };
        let mut items = vec![
            Item {
                expected: true,
                ..item(&valid)
            },
            Item {
                key: 0,
                ..item(&valid)
            },
            Item {
                digits: [1, 0, 3, 1],
                ..item(&valid)
            },
            Item {
                digits: [2, 0, 3, 0],
                ..item(&valid)
            },
            Item {
                seed: seed.map(|byte| byte ^ 1),
                ..item(&valid)
            },
            item(&(&valid ^ BigUint::from(1u8))),
            item(&(&key.n - &valid)),
        ];
        let ends = [
            BigUint::ZERO,
            1u8.into(),
            &key.n - 1u8,
            key.n.clone(),
            &key.n + 1u8,
            &key.n + &valid,
            (BigUint::from(1u8) << (8 * length)) - 1u8,
        ];
        items.extend(
            ends.into_iter()
                .chain(powers_and_neighbors(length / 4))
                .filter(|number| number.bits() as usize <= 8 * length)
                .map(|number| item(&number)),
        );
        // Digits outside their domains, signed with the rows of the following domains that these digits would select.
        for (digits, rows) in [
            ([3, 0, 3, 1], [3, 3, 7, 10]),
            ([2, 1, 3, 1], [2, 4, 7, 10]),
            ([2, 0, 5, 1], [2, 3, 9, 10]),
        ] {
            let number = key.private(&product_of_rows(key, 1, &seed, &rows));
            items.push(Item {
                digits,
                ..item(&number)
            });
        }
        items.push(Item {
            digits: [2, 0, 3, 2],
            ..item(&valid)
        });
        items.push(Item {
            digits: [2, 0, 3, u16::MAX],
            ..item(&valid)
        });

        let key_of: Vec<u32> = items.iter().map(|item| item.key).collect();
        let all_digits: Vec<u16> = items.iter().flat_map(|item| item.digits).collect();
        let all_seeds: Vec<[u8; 32]> = items.iter().map(|item| item.seed).collect();
        let numbers: Vec<u8> = items
            .iter()
            .flat_map(|item| to_bytes(&item.number, length))
            .collect();
        let expected: Vec<bool> = items.iter().map(|item| item.expected).collect();
        for goal in GOALS {
            let batch = RaBatch {
                keys: &store,
                key_of: &key_of,
                digits: &all_digits,
                seeds: &all_seeds,
                signatures: &numbers,
            };
            assert_eq!(
                gpu.verify_ra(&batch, goal).unwrap(),
                expected,
                "{size:?} {goal:?}"
            );
        }
    }
}

/// Masks are used in the order in which they were made, and never twice, even after the ring has wrapped around.
pub fn masks(gpu: &mut Gpu, rng: &mut ChaCha20Rng) {
    let key = &keys(Size::Bits2048)[2];
    let mut signer = signer(gpu, key, 0, 5);
    let (mut filled, mut used) = (Vec::new(), Vec::new());
    assert_eq!((signer.masks(), signer.room()), (0, 5));
    for (fill, sign) in [(5, 3), (3, 4), (2, 0), (2, 5), (1, 1), (5, 2)] {
        let new_seeds = seeds(rng, fill);
        gpu.fill_masks(&mut signer, &new_seeds).unwrap();
        filled.extend(new_seeds);
        assert_eq!(signer.masks(), filled.len() - used.len());
        assert_eq!(signer.room(), 5 - signer.masks());
        let digits = digits(rng, sign);
        let signed = gpu.sign_ra(&mut signer, &digits, Goal::Automatic).unwrap();
        for ((seed, number), digits) in signed
            .seeds
            .iter()
            .zip(signed.numbers.chunks(256))
            .zip(digits.chunks(4))
        {
            let power = BigUint::from_bytes_be(number).modpow(&key.e, &key.n);
            assert_eq!(power, product(key, 0, seed, digits));
        }
        used.extend(signed.seeds);
    }
    assert_eq!(used, filled[..used.len()]);

    let remaining = signer.masks();
    let too_many = digits(rng, remaining + 1);
    let error = gpu.sign_ra(&mut signer, &too_many, Goal::Automatic).unwrap_err();
    assert_eq!(
        error,
        BatchError::TooFewMasks {
            required: remaining + 1,
            available: remaining
        }
    );
    let result = gpu.sign_ra(&mut signer, &[3, 0, 0, 0], Goal::Automatic);
    assert!(matches!(result, Err(BatchError::Malformed(_))), "{result:?}");
    assert_eq!(signer.masks(), remaining, "a refused request consumes no mask");
    let free_slots = signer.room();
    let too_many = seeds(rng, free_slots + 1);
    assert!(matches!(
        gpu.fill_masks(&mut signer, &too_many),
        Err(BatchError::Malformed(_))
    ));
}
