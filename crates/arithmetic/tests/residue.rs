//! Checks that private operations leave no part of the key, or of the residues of a result, on the stack.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod keys;
#[allow(dead_code)]
#[path = "../src/testing.rs"]
mod testing;

use std::collections::HashSet;
use std::hint::black_box;

use keys::{SIZES, parts, primes, private};
use linewarden_arithmetic::Backend;
use linewarden_arithmetic::rsa::{RsaPrivate, Size, Table, product_batch};
use num_bigint::BigUint;
use testing::bytes;

/// Bytes of examined stack, more than any operation uses.
const DEPTH: usize = 2 << 20;
/// Initial value of unused words.
const UNTOUCHED: u64 = 0x5eed_0ff5_7ac4_0001;
/// Bytes of the frames of this file's functions and of the public functions that they call; these frames have no
/// secrets.
const FRAMES: usize = 8 << 10;

/// The words below the frame of this function, lowest address first.
fn below() -> impl Iterator<Item = *mut u64> {
    let local = 0u64;
    let top = (&raw const local).addr() / 8 * 8 - 1024;
    (top - DEPTH..top)
        .step_by(8)
        .map(std::ptr::with_exposed_provenance_mut)
}

#[inline(never)]
fn paint() {
    for word in below() {
        // SAFETY: this part of the thread's stack has no frame.
        unsafe { word.write_volatile(UNTOUCHED) };
    }
}

#[inline(never)]
fn sweep() -> Vec<u64> {
    // SAFETY: as above; the memory was painted.
    below().map(|word| unsafe { word.read_volatile() }).collect()
}

/// The words on the stack after some work.
fn residue_of(work: impl FnOnce() + Send) -> Vec<u64> {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().stack_size(2 * DEPTH);
        let thread = builder.spawn_scoped(scope, || {
            paint();
            work();
            sweep()
        });
        thread.unwrap().join().unwrap()
    })
}

/// The words of a number in the representations of operations: limbs of 64 bits, and words of 52 bits, as
/// integers and as doubles.
fn words(number: &BigUint) -> Vec<u64> {
    let words_of = |bits: u64| {
        let count = number.bits() / bits;
        (0..count).map(move |index| {
            let word = (number >> (bits * index)) % (BigUint::from(1u32) << bits);
            u64::try_from(word).unwrap()
        })
    };
    words_of(64)
        .chain(words_of(52).flat_map(|word| [word, (word as f64).to_bits()]))
        .filter(|word| *word > 1 << 40)
        .collect()
}

/// Words that must not be found after an operation with this result.
fn secrets(size: Size, result: &[u8]) -> HashSet<u64> {
    let result = BigUint::from_bytes_be(result);
    let residues = primes(size).map(|prime| &result % prime);
    let numbers = parts(size).map(|part| BigUint::from_bytes_be(&part));
    numbers.iter().chain(&residues).flat_map(words).collect()
}

fn check(name: &str, residue: &[u64], secrets: &HashSet<u64>) {
    let count = residue.iter().filter(|word| secrets.contains(word)).count();
    assert_eq!(count, 0, "{name}: words of secrets found");
    // The whole range was overwritten: no frame exceeded the bound.
    let frames = residue.len() - FRAMES / 8;
    let touched = residue[..frames]
        .iter()
        .position(|word| *word != 0 && *word != UNTOUCHED);
    assert_eq!(
        touched.map(|position| (frames - position) * 8),
        None,
        "{name}: the stack usage exceeds the overwritten range"
    );
}

#[test]
fn private_operations_leave_no_secret_on_the_stack() {
    for size in SIZES {
        let key = private(&parts(size)).unwrap();
        let input = bytes(&BigUint::from(0x1234_5678u32), size.bytes());
        let mut result = vec![0; size.bytes()];
        let residue = residue_of(|| key.power(&mut result, &input).unwrap());
        check("one", &residue, &secrets(size, &result));
        for backend in Backend::available() {
            let mut out = vec![vec![0; size.bytes()]; 8];
            let residue = residue_of(|| private_batch(&key, backend, &input, &mut out));
            assert_eq!(out[7], result);
            check(backend.name(), &residue, &secrets(size, &result));
        }
        let parts = parts(size);
        let residue = residue_of(|| drop(private(&parts).unwrap()));
        check("a new key", &residue, &secrets(size, &result));
    }
}

/// The factors of a signature.
#[test]
fn products_leave_no_factor_on_the_stack() {
    for size in SIZES {
        let key = private(&parts(size)).unwrap();
        let key = key.public();
        let mut random = testing::Random::new();
        let [mask, factor] = [(); 2].map(|()| random.uniform(8 * size.bytes() - 1));
        // Tables have factors times R, with the R of batches of eight.
        let radix_bits = 8 * size.bytes() / 256 * 260;
        let form = (&factor << radix_bits) % BigUint::from_bytes_be(key.as_bytes());
        let secrets: HashSet<u64> = [&mask, &factor, &form].into_iter().flat_map(words).collect();
        let [mask, factor] = [mask, factor].map(|number| bytes(&number, size.bytes()));
        let mut table = Table::new(size, 1);
        let mut product = vec![0; size.bytes()];
        table.set(0, key, &factor).unwrap();
        let factors = [table.get(0).unwrap(); 2];
        let residue = residue_of(|| key.product(&mut product, &mask, &factors).unwrap());
        check("one product", &residue, &secrets);
        for backend in Backend::available() {
            let mut out = vec![vec![0; size.bytes()]; 8];
            let residue = residue_of(|| {
                let mut out = out.iter_mut();
                let out = std::array::from_fn(|_| &mut out.next().unwrap()[..]);
                product_batch(backend, [key; 8], [&mask; 8], [&factors; 8], out).unwrap();
            });
            assert_eq!(out[7], product);
            check(backend.name(), &residue, &secrets);
        }
    }
}

fn private_batch(key: &RsaPrivate, backend: Backend, input: &[u8], out: &mut [Vec<u8>]) {
    let mut out = out.iter_mut();
    let out = std::array::from_fn(|_| &mut out.next().unwrap()[..]);
    key.power_batch(backend, [input; 8], out).unwrap();
}

/// Shows that the tests above can fail.
#[test]
fn words_left_on_the_stack_are_found() {
    let [p, ..] = parts(Size::Bits2048);
    let residue = residue_of(|| leave_on_stack(&p));
    let secrets = secrets(Size::Bits2048, &p);
    let count = residue.iter().filter(|word| secrets.contains(word)).count();
    assert!(count >= 16, "{count} words of p");
}

#[inline(never)]
fn leave_on_stack(number: &[u8]) {
    let mut limbs = [[0u64; 16]; 64];
    for (limb, bytes) in limbs[0].iter_mut().zip(number.rchunks(8)) {
        *limb = u64::from_be_bytes(bytes.try_into().unwrap());
    }
    let [first, rest @ ..] = &mut limbs;
    rest.fill(*first);
    black_box(&mut limbs);
}
