//! Compares RSA operations with num-bigint, on every backend and for single numbers.

use crate::keys::{SIZES, parts, private};
use crate::testing::{Random, bytes};
use linewarden_arithmetic::rsa::{
    Element, KeyError, RsaError, RsaPublic, Size, Table, check_batch, power_batch, product_batch,
};
use linewarden_arithmetic::{Backend, ModulusError};
use num_bigint::BigUint;

fn refs<T: AsRef<[u8]>>(numbers: &[T]) -> [&[u8]; 8] {
    std::array::from_fn(|lane| numbers[lane].as_ref())
}

fn outputs(numbers: &mut [Vec<u8>]) -> [&mut [u8]; 8] {
    let mut numbers = numbers.iter_mut();
    std::array::from_fn(|_| &mut numbers.next().unwrap()[..])
}

fn number(bytes: &[u8]) -> BigUint {
    BigUint::from_bytes_be(bytes)
}

fn e() -> BigUint {
    BigUint::from(65_537u32)
}

/// The keys of eight lanes, with arbitrary odd moduli: the public operations do not need prime factors.
/// `keys` has one key if all lanes use the same key, else eight.
struct Lanes {
    moduli: Vec<BigUint>,
    keys: Vec<RsaPublic>,
}

impl Lanes {
    fn new(random: &mut Random, size: Size, same_key: bool) -> Self {
        let moduli: Vec<BigUint> = (0..8).map(|_| random.modulus(8 * size.bytes())).collect();
        let mut keys: Vec<RsaPublic> = moduli
            .iter()
            .map(|n| RsaPublic::new(&bytes(n, size.bytes())).unwrap())
            .collect();
        let moduli = match same_key {
            true => vec![moduli[0].clone(); 8],
            false => moduli,
        };
        if same_key {
            keys.truncate(1);
        }
        Self { moduli, keys }
    }

    fn refs(&self) -> [&RsaPublic; 8] {
        std::array::from_fn(|lane| &self.keys[lane % self.keys.len()])
    }

    /// For each modulus n a number below n: often n - 1, 0 or 1.
    fn numbers_below_moduli(&self, random: &mut Random) -> Vec<BigUint> {
        let mut number = |n: &BigUint| match random.below(6) {
            0 => n - 1u32,
            1 => BigUint::ZERO,
            2 => BigUint::from(1u32),
            _ => random.number(usize::try_from(n.bits()).unwrap()) % n,
        };
        self.moduli.iter().map(&mut number).collect()
    }
}

#[test]
fn powers_match_num_bigint() {
    let mut random = Random::new();
    for round in 0..4 {
        for size in SIZES {
            let lanes = Lanes::new(&mut random, size, round % 2 == 1);
            let numbers = lanes.numbers_below_moduli(&mut random);
            let inputs: Vec<Vec<u8>> = numbers.iter().map(|number| bytes(number, size.bytes())).collect();
            let expected: Vec<BigUint> = numbers
                .iter()
                .zip(&lanes.moduli)
                .map(|(number, n)| number.modpow(&e(), n))
                .collect();
            for ((key, input), expected) in lanes.refs().iter().zip(&inputs).zip(&expected) {
                let mut out = vec![1; size.bytes()];
                key.power(&mut out, input).unwrap();
                assert_eq!(number(&out), *expected);
            }
            for backend in Backend::available() {
                let mut out = vec![vec![1; size.bytes()]; 8];
                let are_below_n =
                    power_batch(backend, lanes.refs(), refs(&inputs), outputs(&mut out)).unwrap();
                assert_eq!(are_below_n, [true; 8]);
                for (out, expected) in out.iter().zip(&expected) {
                    assert_eq!(number(out), *expected, "{}", backend.name());
                }
            }
        }
    }
}

#[test]
fn numbers_not_below_n_are_refused() {
    let mut random = Random::new();
    for size in SIZES {
        let lanes = Lanes::new(&mut random, size, false);
        let mut inputs: Vec<Vec<u8>> = lanes
            .numbers_below_moduli(&mut random)
            .iter()
            .map(|x| bytes(x, size.bytes()))
            .collect();
        inputs[3] = bytes(&lanes.moduli[3], size.bytes());
        inputs[5] = vec![0xff; size.bytes()];
        let mut valid = [true; 8];
        (valid[3], valid[5]) = (false, false);
        let mut out = vec![1; size.bytes()];
        for (lane, key) in lanes.refs().iter().enumerate() {
            let result = key.power(&mut out, &inputs[lane]);
            assert_eq!(
                result,
                if valid[lane] {
                    Ok(())
                } else {
                    Err(RsaError::OutOfRange)
                }
            );
            assert_eq!(key.product(&mut out, &inputs[lane], &[]), result);
        }
        assert_eq!(
            lanes.keys[0].power(&mut out, &inputs[0][1..]),
            Err(RsaError::Length)
        );
        for backend in Backend::available() {
            let mut out = vec![vec![1; size.bytes()]; 8];
            let are_below_n = power_batch(backend, lanes.refs(), refs(&inputs), outputs(&mut out)).unwrap();
            assert_eq!(are_below_n, valid);
            assert!(out[3].iter().chain(&out[5]).all(|byte| *byte == 0));
            let refused = product_batch(backend, lanes.refs(), refs(&inputs), [&[]; 8], outputs(&mut out));
            assert_eq!(refused, Err(RsaError::OutOfRange));
            let hashes = [&[][..]; 8];
            let checked = check_batch(backend, lanes.refs(), refs(&inputs), hashes, [&[]; 8]).unwrap();
            for lane in [3, 5] {
                assert!(!checked[lane]);
                assert_eq!(lanes.keys[lane].check(&inputs[lane], &[], &[]), Ok(false));
            }
            let mut short = inputs.clone();
            short[7].pop();
            let refused = power_batch(backend, lanes.refs(), refs(&short), outputs(&mut out));
            assert_eq!(refused, Err(RsaError::Length));
        }
    }
}

#[test]
fn set_batch_sets_the_same_table_entries_as_set() {
    let mut random = Random::new();
    for size in SIZES {
        let lanes = Lanes::new(&mut random, size, true);
        let key = &lanes.keys[0];
        let numbers: Vec<Vec<u8>> = (0..8)
            .map(|lane| match lane {
                0 => Vec::new(),
                1 => vec![0xff; size.wide_bytes()],
                2 => key.as_bytes().to_vec(),
                _ => bytes(&random.number(8 * size.wide_bytes()), size.wide_bytes()),
            })
            .collect();
        let mut expected = Table::new(size, 13);
        for (index, number) in (4..).zip(&numbers) {
            expected.set(index, key, number).unwrap();
        }
        let values = |table: &Table| {
            let one = bytes(&BigUint::from(1u32), size.bytes());
            let product = |index| {
                let mut out = vec![0; size.bytes()];
                key.product(&mut out, &one, &[table.get(index).unwrap()]).unwrap();
                out
            };
            (0..13).map(product).collect::<Vec<_>>()
        };
        for backend in Backend::available() {
            let mut table = Table::new(size, 13);
            table.set_batch(backend, 4, key, refs(&numbers)).unwrap();
            assert_eq!(values(&table), values(&expected), "{}", backend.name());
            // Numbers with indices beyond the end of the table are ignored.
            table.set_batch(backend, 11, key, refs(&numbers)).unwrap();
            table.set_batch(backend, 50, key, refs(&numbers)).unwrap();
            assert_eq!(
                values(&table)[11..],
                values(&expected)[4..6],
                "{}",
                backend.name()
            );
            let long = vec![0; size.wide_bytes() + 1];
            assert_eq!(
                table.set_batch(backend, 0, key, [&long; 8]),
                Err(RsaError::Length)
            );
        }
    }
}

/// Products of up to 45 factors, as in signing and verification; each lane has its own number of factors.
#[test]
fn products_match_num_bigint_and_are_compared_with_powers() {
    let mut random = Random::new();
    for round in 0..3 {
        for size in SIZES {
            let lanes = Lanes::new(&mut random, size, round % 2 == 1);
            let first_factors = lanes.numbers_below_moduli(&mut random);
            let mut expected = first_factors.clone();
            let mut tables = Vec::new();
            for lane in 0..8 {
                let length = [0, 1, 2, 45, 33, random.below(46)][random.below(6)];
                let mut table = Table::new(size, length);
                for index in 0..length {
                    let factor = random.number(8 * size.wide_bytes());
                    table
                        .set(index, lanes.refs()[lane], &bytes(&factor, size.wide_bytes()))
                        .unwrap();
                    expected[lane] = &expected[lane] * factor % &lanes.moduli[lane];
                }
                assert_eq!(table.len(), length);
                tables.push(table);
            }
            let elements: Vec<Vec<Element<'_>>> = tables
                .iter()
                .map(|table| (0..table.len()).map(|index| table.get(index).unwrap()).collect())
                .collect();
            let factors: [&[Element<'_>]; 8] = std::array::from_fn(|lane| &elements[lane][..]);
            let inputs: Vec<Vec<u8>> = first_factors
                .iter()
                .map(|number| bytes(number, size.bytes()))
                .collect();
            for lane in 0..8 {
                let mut out = vec![1; size.bytes()];
                lanes.refs()[lane]
                    .product(&mut out, &inputs[lane], factors[lane])
                    .unwrap();
                assert_eq!(number(&out), expected[lane]);
            }
            for backend in Backend::available() {
                let mut out = vec![vec![1; size.bytes()]; 8];
                product_batch(backend, lanes.refs(), refs(&inputs), factors, outputs(&mut out)).unwrap();
                for (out, expected) in out.iter().zip(&expected) {
                    assert_eq!(number(out), *expected, "{}", backend.name());
                }
            }
            check_products_against_powers(&mut random, &lanes, size, factors, &tables);
        }
    }
}

/// Checks the decisions whether `signature^e` equals the product of hash and factors modulo n.
/// The hash is computed from the signature; in half of the cases, one bit of the hash is then flipped.
fn check_products_against_powers(
    random: &mut Random,
    lanes: &Lanes,
    size: Size,
    factors: [&[Element<'_>]; 8],
    tables: &[Table],
) {
    let signatures = lanes.numbers_below_moduli(random);
    let mut is_valid = [true; 8];
    let mut hashes = Vec::new();
    for (lane, signature) in signatures.iter().enumerate() {
        let n = &lanes.moduli[lane];
        let one = bytes(&BigUint::from(1u32), size.bytes());
        let mut product = vec![0; size.bytes()];
        lanes.refs()[lane]
            .product(&mut product, &one, factors[lane])
            .unwrap();
        let power = signature.modpow(&e(), n);
        // A product that shares a factor with n has no inverse; the hash is then random.
        let hash = match number(&product).modinv(n) {
            Some(inverse) => power * inverse % n,
            None => random.number(8 * size.bytes()),
        };
        // A wider number with the same residue modulo n.
        let multiples = (BigUint::from(1u32) << (8 * size.wide_bytes())) / n - 1u32;
        let mut hash = hash + n * (random.number(128) % multiples);
        if random.below(2) == 0 {
            hash ^= BigUint::from(1u32) << random.below(8 * size.bytes());
        }
        is_valid[lane] = &hash * number(&product) % n == signature.modpow(&e(), n);
        hashes.push(bytes(&hash, size.wide_bytes()));
    }
    assert_eq!(tables.len(), 8);
    let signatures: Vec<Vec<u8>> = signatures
        .iter()
        .map(|number| bytes(number, size.bytes()))
        .collect();
    for lane in 0..8 {
        let result = lanes.refs()[lane].check(&signatures[lane], &hashes[lane], factors[lane]);
        assert_eq!(result, Ok(is_valid[lane]));
    }
    for backend in Backend::available() {
        let checked = check_batch(backend, lanes.refs(), refs(&signatures), refs(&hashes), factors);
        assert_eq!(checked, Ok(is_valid), "{}", backend.name());
    }
}

#[test]
fn public_powers_invert_private_powers() {
    let mut random = Random::new();
    for size in SIZES {
        let parts = parts(size);
        let key = private(&parts).unwrap();
        let n = number(&parts[0]) * number(&parts[1]);
        // A second key has p and q swapped. The inputs include multiples of a factor.
        let [p, q, dp, dq, _] = parts.clone();
        let inverse = number(&p).modinv(&number(&q)).unwrap();
        let swapped = private(&[q, p, dq, dp, bytes(&inverse, size.bytes() / 2)]).unwrap();
        for key in [&key, &swapped] {
            let mut numbers: Vec<BigUint> = (0..6).map(|_| random.number(8 * size.wide_bytes())).collect();
            numbers.push(number(&parts[0]) * random.number(1000));
            numbers.push(&n - 1u32);
            let inputs: Vec<Vec<u8>> = numbers.iter().map(|number| number.to_bytes_be()).collect();
            let mut expected = vec![vec![0; size.bytes()]; 8];
            for ((input, out), input_number) in inputs.iter().zip(&mut expected).zip(&numbers) {
                key.power(out, input).unwrap();
                assert!(number(out) < n);
                assert_eq!(number(out).modpow(&e(), &n), input_number % &n);
            }
            for backend in Backend::available() {
                let mut out = vec![vec![0; size.bytes()]; 8];
                key.power_batch(backend, refs(&inputs), outputs(&mut out))
                    .unwrap();
                assert_eq!(out, expected, "{}", backend.name());
            }
        }
    }
}

/// Boneh, DeMillo and Lipton: if the result is wrong modulo only one prime factor of n, the difference to the correct
/// result reveals the other prime factor.
#[test]
fn a_fault_is_detected_before_the_result_is_returned() {
    let mut random = Random::new();
    for size in SIZES {
        let mut key = private(&parts(size)).unwrap();
        let inputs = vec![bytes(&random.uniform(8 * size.bytes() - 1), size.bytes()); 8];
        key.flip_bit_of_dp(random.below(4 * size.bytes()));
        let mut out = vec![1; size.bytes()];
        assert_eq!(key.power(&mut out, &inputs[0]), Err(RsaError::CheckFailed));
        assert!(out.iter().all(|byte| *byte == 0));
        for backend in Backend::available() {
            let mut out = vec![vec![1; size.bytes()]; 8];
            let result = key.power_batch(backend, refs(&inputs), outputs(&mut out));
            assert_eq!(result, Err(RsaError::CheckFailed), "{}", backend.name());
            assert!(out.iter().flatten().all(|byte| *byte == 0));
        }
    }
}

#[test]
fn invalid_keys_are_refused() {
    let mut random = Random::new();
    for size in SIZES {
        let modulus = bytes(&random.modulus(8 * size.bytes()), size.bytes());
        assert!(RsaPublic::new(&modulus).is_ok());
        assert_eq!(RsaPublic::new(&modulus[1..]), Err(KeyError::Length));
        let mut even = modulus.clone();
        *even.last_mut().unwrap() &= 0xfe;
        assert_eq!(RsaPublic::new(&even), Err(KeyError::Modulus(ModulusError::Even)));
        let mut small = modulus.clone();
        small[0] &= 0x7f;
        assert_eq!(
            RsaPublic::new(&small),
            Err(KeyError::Modulus(ModulusError::InvalidSize))
        );

        let parts = parts(size);
        for changed_field in 0..5 {
            let mut changed = parts.clone();
            changed[changed_field][7] ^= 0x10;
            assert_eq!(
                private(&changed).unwrap_err(),
                KeyError::Inconsistent,
                "{changed_field}"
            );
            changed[changed_field].push(1);
            assert_eq!(private(&changed).unwrap_err(), KeyError::Length);
        }
        let [p, _, dp, dq, qinv] = parts;
        assert_eq!(
            private(&[p.clone(), p, dp, dq, qinv]).unwrap_err(),
            KeyError::Inconsistent
        );
    }
    assert_eq!(RsaPublic::new(&[1]), Err(KeyError::Length));
    assert_eq!(RsaPublic::new(&[]), Err(KeyError::Length));
}

#[test]
fn sizes_are_not_mixed() {
    let mut random = Random::new();
    let [short, long] = SIZES.map(|size| Lanes::new(&mut random, size, true));
    let mut keys = short.refs();
    keys[6] = &long.keys[0];
    let numbers = vec![vec![1; 256]; 8];
    let mut out = numbers.clone();
    let mut table = Table::new(Size::Bits3072, 1);
    assert_eq!(table.set(0, &short.keys[0], &[1]), Err(RsaError::MixedSizes));
    assert_eq!(table.set(0, &long.keys[0], &[1; 401]), Err(RsaError::Length));
    table.set(0, &long.keys[0], &[1]).unwrap();
    let factor = [table.get(0).unwrap()];
    assert!(table.get(1).is_none());
    for backend in Backend::available() {
        let result = power_batch(backend, keys, refs(&numbers), outputs(&mut out));
        assert_eq!(result, Err(RsaError::MixedSizes));
        let result = product_batch(
            backend,
            short.refs(),
            refs(&numbers),
            [&factor; 8],
            outputs(&mut out),
        );
        assert_eq!(result, Err(RsaError::MixedSizes));
        let result = check_batch(
            backend,
            short.refs(),
            refs(&numbers),
            refs(&numbers),
            [&factor; 8],
        );
        assert_eq!(result, Err(RsaError::MixedSizes));
    }
    assert_eq!(
        short.keys[0].check(&numbers[0], &numbers[0], &factor),
        Err(RsaError::MixedSizes)
    );
    assert_eq!(
        short.keys[0].product(&mut out[0], &numbers[0], &factor),
        Err(RsaError::MixedSizes)
    );
}

#[test]
fn debug_output_has_no_secrets() {
    let key = private(&parts(Size::Bits2048)).unwrap();
    assert_eq!(format!("{key:?}"), "RsaPrivate(Bits2048)");
    assert_eq!(
        format!("{:?}", Table::new(Size::Bits2048, 3)),
        "Table(3 numbers of Bits2048)"
    );
}
