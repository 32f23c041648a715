//! Checks that private operations leave on the stack no part of the key and no part of a result modulo p or q.
//!
//! A program of its own, because `scripts/test` also runs this test with the release profile.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

#[path = "all/keys/mod.rs"]
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

/// Size in bytes of the examined part of the stack: more than any operation uses.
const DEPTH: usize = 2 << 20;
/// Value that is written to each word of the examined part before an operation.
const UNTOUCHED: u64 = 0x5eed_0ff5_7ac4_0001;
/// Size in bytes of the top of the examined part, which has the frames of this file's functions and of the public
/// functions that they call. These frames have no secrets.
const FRAMES: usize = 8 << 10;

/// The words of the stack below the frame of this function, lowest address first.
fn words_below() -> impl Iterator<Item = *mut u64> {
    let local = 0u64;
    let top = (&raw const local).addr() / 8 * 8 - 1024;
    (top - DEPTH..top)
        .step_by(8)
        .map(std::ptr::with_exposed_provenance_mut)
}

#[inline(never)]
fn paint() {
    for word in words_below() {
        // SAFETY: this part of the thread's stack has no frame.
        unsafe { word.write_volatile(UNTOUCHED) };
    }
}

#[inline(never)]
fn read_stack() -> Vec<u64> {
    // SAFETY: this part of the thread's stack has no frame, and `paint` has initialized it.
    words_below()
        .map(|word| unsafe { word.read_volatile() })
        .collect()
}

/// The words that `work` leaves on the stack of a new thread.
fn stack_words_after(work: impl FnOnce() + Send) -> Vec<u64> {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().stack_size(2 * DEPTH);
        let thread = builder.spawn_scoped(scope, || {
            paint();
            work();
            read_stack()
        });
        thread.unwrap().join().unwrap()
    })
}

/// The words of a number in each representation that operations use: limbs of 64 bits, and words of 52 bits as
/// integers and as doubles. Without words of at most `1 << 40`, which can occur by chance.
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

/// The words of the key's numbers, and of `result` modulo each prime. No operation with this result may leave them.
fn secrets(size: Size, result: &[u8]) -> HashSet<u64> {
    let result = BigUint::from_bytes_be(result);
    let residues = primes(size).map(|prime| &result % prime);
    let numbers = parts(size).map(|part| BigUint::from_bytes_be(&part));
    numbers.iter().chain(&residues).flat_map(words).collect()
}

fn check(name: &str, stack_words: &[u64], secrets: &HashSet<u64>) {
    let count = stack_words.iter().filter(|word| secrets.contains(word)).count();
    assert_eq!(count, 0, "{name}: words of secrets found");
    // Each word below the top is zero or untouched: no frame exceeded the range that the operation sets to zero.
    let frames = stack_words.len() - FRAMES / 8;
    let touched = stack_words[..frames]
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
        let stack_words = stack_words_after(|| key.power(&mut result, &input).unwrap());
        check("single operation", &stack_words, &secrets(size, &result));
        for backend in Backend::available() {
            let mut out = vec![vec![0; size.bytes()]; 8];
            let stack_words = stack_words_after(|| private_batch(&key, backend, &input, &mut out));
            assert_eq!(out[7], result);
            check(backend.name(), &stack_words, &secrets(size, &result));
        }
        let parts = parts(size);
        let stack_words = stack_words_after(|| drop(private(&parts).unwrap()));
        check("creation of a key", &stack_words, &secrets(size, &result));
    }
}

/// The factors of a signature are secret.
#[test]
fn products_leave_no_factor_on_the_stack() {
    for size in SIZES {
        let key = private(&parts(size)).unwrap();
        let key = key.public();
        let mut random = testing::Random::new();
        let [mask, factor] = [(); 2].map(|()| random.uniform(8 * size.bytes() - 1));
        // A table has each factor times R (Montgomery form), where R is the radix for batches of eight.
        let radix_bits = 8 * size.bytes() / 256 * 260;
        let montgomery_form = (&factor << radix_bits) % BigUint::from_bytes_be(key.as_bytes());
        let secrets: HashSet<u64> = [&mask, &factor, &montgomery_form]
            .into_iter()
            .flat_map(words)
            .collect();
        let [mask, factor] = [mask, factor].map(|number| bytes(&number, size.bytes()));
        let mut table = Table::new(size, 1);
        let mut product = vec![0; size.bytes()];
        table.set(0, key, &factor).unwrap();
        let factors = [table.get(0).unwrap(); 2];
        let stack_words = stack_words_after(|| key.product(&mut product, &mask, &factors).unwrap());
        check("single product", &stack_words, &secrets);
        for backend in Backend::available() {
            let mut out = vec![vec![0; size.bytes()]; 8];
            let stack_words = stack_words_after(|| {
                let mut out = out.iter_mut();
                let out = std::array::from_fn(|_| &mut out.next().unwrap()[..]);
                product_batch(backend, [key; 8], [&mask; 8], [&factors; 8], out).unwrap();
            });
            assert_eq!(out[7], product);
            check(backend.name(), &stack_words, &secrets);
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
    let stack_words = stack_words_after(|| leave_on_stack(&p));
    let secrets = secrets(Size::Bits2048, &p);
    let count = stack_words.iter().filter(|word| secrets.contains(word)).count();
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
