//! Compares every backend that this CPU supports with plain integers, and long numbers with num-bigint.

use num_bigint::BigUint;

use super::group::{ModulusGroup, PreparedModulus, read_long, words};
use super::kernel::{BLOCK, Kernels, Long};
use super::row::{Row, WORDS_MAX, load, load_be, store_be};
use super::*;
use crate::Modulus;
use crate::testing::{Random, bytes, from_limbs, limbs};

const MASK: u64 = (1 << WORD_BITS) - 1;

/// Runs a test on each backend.
macro_rules! on_all {
    ($name:ident, $body:expr) => {
        #[test]
        fn $name() {
            struct Test;
            impl BackendTask for Test {
                type Output = ();
                #[inline(always)]
                fn run<W: WordVector>(self) {
                    $body(std::marker::PhantomData::<W>)
                }
            }
            for backend in Backend::available() {
                println!("{}", backend.name());
                backend.run(Test);
            }
        }
    };
}

/// Words at the limits of doubles and products, and random words.
fn edge_words(random: &mut Random) -> Vec<u64> {
    let mut words = vec![0, 1, MASK, MASK - 1, 0x000a_aaaa_aaaa_aaaa, 0x0005_5555_5555_5555];
    for bit in 0..WORD_BITS {
        words.extend([(1 << bit) - 1, 1 << bit, (1 << bit) + 1].map(|word| word & MASK));
    }
    words.extend((0..40).map(|_| random.next() & MASK));
    words
}

on_all!(products_of_words_are_exact, check_products_of_words::<W>);

fn check_products_of_words<W: WordVector>(_: std::marker::PhantomData<W>) {
    let mut random = Random::new();
    let words = edge_words(&mut random);
    for a in &words {
        for b in words.chunks(LANES) {
            let mut lanes = [0; LANES];
            lanes[..b.len()].copy_from_slice(b);
            let (a_factor, b_factor) = (W::splat(*a).factor(), W::load(lanes).factor());
            assert_eq!(W::word(b_factor).store(), lanes);
            let (mut low, mut high) = (W::accumulator(1, 0), W::accumulator(0, 1));
            W::madd(&mut low, &mut high, a_factor, b_factor);
            let highs = high.add(low.carry()).store();
            let lows = low.low().store();
            for lane in 0..LANES {
                let product = u128::from(*a) * u128::from(lanes[lane]);
                assert_eq!(
                    u128::from(highs[lane]) << WORD_BITS | u128::from(lows[lane]),
                    product,
                    "{a} {}",
                    lanes[lane]
                );
                assert_eq!(
                    W::mul_low(a_factor, b_factor).store()[lane],
                    product as u64 & MASK
                );
            }
        }
    }
}

on_all!(long_sums_do_not_overflow, check_long_sums::<W>);

/// Adds as many products as the longest multiplication adds to a column, with low halves of either sign.
fn check_long_sums<W: WordVector>(_: std::marker::PhantomData<W>) {
    let mut random = Random::new();
    let words = edge_words(&mut random);
    for pair in [
        [MASK, MASK],
        [MASK, 1],
        [1 << 51, 1],
        [1 << 51, 3],
        [words[random.below(words.len())], MASK],
    ] {
        let [a, b] = pair.map(|word| W::splat(word).factor());
        let (mut first, mut second, mut third) = (
            W::accumulator(120, 0),
            W::accumulator(120, 120),
            W::accumulator(0, 120),
        );
        for _ in 0..120 {
            W::madd(&mut first, &mut second, a, b);
            W::madd(&mut second, &mut third, a, b);
        }
        let second = second.add(first.carry());
        let third = third.add(second.carry());
        let words = [first.low(), second.low(), third.low(), third.carry()].map(|word| word.store()[3]);
        let sum = words
            .iter()
            .rev()
            .fold(BigUint::ZERO, |sum, word| (sum << WORD_BITS) + *word);
        let product = BigUint::from(pair[0]) * pair[1];
        assert_eq!(sum, (&product + (&product << WORD_BITS)) * 120u32, "{pair:?}");
    }
}

on_all!(other_operations_match_plain_integers, check_operations::<W>);

fn check_operations<W: WordVector>(_: std::marker::PhantomData<W>) {
    let mut random = Random::new();
    let words = edge_words(&mut random);
    let extremes = [u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1, MASK + 1];
    for round in 0..400 {
        let mut random_word = || match random.below(4) {
            0 => words[random.below(words.len())],
            1 => extremes[random.below(extremes.len())],
            _ => random.next() >> random.below(64),
        };
        let [a, b]: [[u64; LANES]; 2] = std::array::from_fn(|_| std::array::from_fn(|_| random_word()));
        let b = if round % 2 == 0 {
            b
        } else {
            std::array::from_fn(|lane| if lane % 3 == 0 { a[lane] } else { b[lane] })
        };
        let (x, y) = (W::load(a), W::load(b));
        let check = |result: W, expected: fn(u64, u64) -> u64| {
            assert_eq!(
                result.store(),
                std::array::from_fn(|lane| expected(a[lane], b[lane]))
            );
        };
        check(x.add(y), u64::wrapping_add);
        check(x.sub(y), u64::wrapping_sub);
        check(x.and(y), |a, b| a & b);
        check(x.or(y), |a, b| a | b);
        check(x.xor(y), |a, b| a ^ b);
        check(x.shl::<13>(), |a, _| a << 13);
        check(x.shr::<13>(), |a, _| a >> 13);
        check(x.shl_by(13), |a, _| a << 13);
        check(x.shr_by(13), |a, _| a >> 13);
        check(x.shl_by(64), |_, _| 0);
        check(x.shr_by(64), |_, _| 0);
        check(x.low(), |a, _| a & MASK);
        check(x.carry(), |a, _| (a.cast_signed() >> WORD_BITS).cast_unsigned());
        check(x.equal(y), |a, b| if a == b { u64::MAX } else { 0 });
        check(x.select(y, x.equal(y)), |_, b| b);
        check(W::word(x.low_factor()), |a, _| a & MASK);
        let merged = W::merge(x.low().factor(), y.low().factor(), W::splat(0));
        check(W::word(merged), |a, _| a & MASK);
        let zero = W::splat(0).factor();
        check(
            W::word(W::merge(zero, y.low().factor(), W::splat(u64::MAX))),
            |_, b| b & MASK,
        );
    }
}

on_all!(numbers_are_loaded_and_stored, check_loads_and_stores::<W>);

fn check_loads_and_stores<W: WordVector>(_: std::marker::PhantomData<W>) {
    type R<W> = <W as WordVector>::Register;
    let mut random = Random::new();
    for length in [128, 192, 256, 272, 384, 400] {
        let numbers: Vec<BigUint> = (0..LANES).map(|_| random.number(8 * length)).collect();
        let number_bytes: Vec<Vec<u8>> = numbers.iter().map(|number| bytes(number, length)).collect();
        let number_rows: Vec<[Row; 8]> = numbers.iter().map(rows).collect();
        for first in (0..LANES).step_by(<R<W> as Register>::LANES) {
            let lanes = first..first + <R<W> as Register>::LANES;
            let mut words = [<R<W> as Register>::splat(0); WORDS_MAX];
            load_be(
                &mut words,
                &number_bytes[lanes.clone()]
                    .iter()
                    .map(|x| &x[..])
                    .collect::<Vec<_>>(),
            );
            assert_eq!(to_numbers(&words), numbers[lanes.clone()]);
            let mut out = vec![vec![0; length]; LANES];
            store_be(
                &mut out[lanes.clone()]
                    .iter_mut()
                    .map(|x| &mut x[..])
                    .collect::<Vec<_>>(),
                &words,
            );
            assert_eq!(out[lanes.clone()], number_bytes[lanes.clone()]);
            let mut words = [<R<W> as Register>::splat(0); WORDS_MAX];
            load(
                &mut words,
                &number_rows[lanes.clone()]
                    .iter()
                    .map(|x| &x[..])
                    .collect::<Vec<_>>(),
                |word| word,
            );
            assert_eq!(to_numbers(&words), numbers[lanes]);
        }
    }
}

on_all!(long_multiplications_match_num_bigint, check_multiplications::<W>);

fn check_multiplications<W: WordVector>(_: std::marker::PhantomData<W>) {
    let mut random = Random::new();
    for _ in 0..6 {
        check_multiplications_of_size::<W::Register, 4>(&mut random, 1024);
        check_multiplications_of_size::<W::Register, 6>(&mut random, 1536);
        check_multiplications_of_size::<W::Register, 8>(&mut random, 2048);
        check_multiplications_of_size::<W::Register, 12>(&mut random, 3072);
    }
}

fn check_multiplications_of_size<W: Kernels, const B: usize>(random: &mut Random, bits: usize) {
    let moduli: Vec<BigUint> = (0..W::LANES).map(|_| random.modulus(bits)).collect();
    let prepared: Vec<Box<PreparedModulus>> = moduli
        .iter()
        .map(|n| PreparedModulus::new(&Modulus::new(&limbs(n, bits / 64)).unwrap(), B, 2))
        .collect();
    let group = ModulusGroup::<W, B>::load(&prepared.iter().map(|key| &**key).collect::<Vec<_>>());
    let r = BigUint::from(1u32) << (52 * BLOCK * B);
    let mut random_below = |times: u32| -> Vec<BigUint> {
        let mut number = |n: &BigUint| match random.below(8) {
            0 => n * times - 1u32,
            1 => n.clone(),
            2 => n - 1u32,
            _ => random.number(bits + 2) % (n * times),
        };
        moduli.iter().map(&mut number).collect()
    };
    let (a, b) = (random_below(3), random_below(3));
    let canonical = |numbers: &Long<W, B>| to_numbers(&group.canonical(numbers));
    let is_below_3_n = |numbers: &Long<W, B>| {
        to_numbers(&words::<W, B>(numbers))
            .iter()
            .zip(&moduli)
            .all(|(number, n)| *number < n * 3u32)
    };

    let mut product = long_from_numbers::<W, B>(&a);
    group.multiply(&mut product, &long_from_numbers::<W, B>(&b));
    assert!(is_below_3_n(&product));
    let expected = |lane: usize, product: BigUint| product * modinv(&r, &moduli[lane]) % &moduli[lane];
    for (lane, number) in canonical(&product).into_iter().enumerate() {
        assert_eq!(
            number,
            expected(lane, &a[lane] * &b[lane]),
            "{a:x?} {b:x?} {moduli:x?}"
        );
    }
    let mut square = long_from_numbers::<W, B>(&a);
    group.square(&mut square);
    assert!(is_below_3_n(&square));
    for (lane, number) in canonical(&square).into_iter().enumerate() {
        assert_eq!(number, expected(lane, &a[lane] * &a[lane]), "{a:x?} {moduli:x?}");
    }
    let reduced = group.reduce(&words::<W, B>(&long_from_numbers::<W, B>(&a)));
    assert!(is_below_3_n(&reduced));
    for (lane, number) in canonical(&reduced).into_iter().enumerate() {
        assert_eq!(number, expected(lane, a[lane].clone()), "{a:x?} {moduli:x?}");
    }
    let mut form = long_from_numbers::<W, B>(&a);
    group.to_montgomery(&mut form);
    for (lane, number) in canonical(&form).into_iter().enumerate() {
        assert_eq!(number, &a[lane] * &r % &moduli[lane]);
    }
    let mut out = [[W::splat(0).factor(); BLOCK]; 24];
    let sum: Vec<BigUint> = (0..W::LANES).map(|lane| &a[lane] * &b[lane] + &a[lane]).collect();
    W::multiply_add(
        &mut out[..2 * B],
        &long_from_numbers::<W, B>(&a),
        &long_from_numbers::<W, B>(&b),
        &words::<W, B>(&long_from_numbers::<W, B>(&a)),
    );
    assert_eq!(factors_to_numbers::<W>(out.as_flattened()), sum);
    let table = [
        long_from_numbers::<W, B>(&a),
        long_from_numbers::<W, B>(&b),
        long_from_numbers::<W, B>(&a),
    ];
    for (number, expected) in [(0, &a), (1, &b), (2, &a)] {
        let mut selected = long_from_numbers::<W, B>(&b);
        W::select_constant_time(&mut selected, &table, number);
        assert_eq!(to_numbers(&words::<W, B>(&selected)), *expected);
    }
}

fn modinv(number: &BigUint, n: &BigUint) -> BigUint {
    number.modinv(n).unwrap()
}

fn rows(number: &BigUint) -> [Row; 8] {
    let mut rows = [Row::default(); 8];
    Row::fill(&mut rows, &number.iter_u64_digits().collect::<Vec<_>>());
    let mut limbs = [0; 64];
    Row::limbs(&mut limbs, &rows);
    assert_eq!(from_limbs(&limbs), *number);
    rows
}

fn long_from_numbers<W: Register, const B: usize>(numbers: &[BigUint]) -> Long<W, B> {
    let rows: Vec<[Row; 8]> = numbers.iter().map(rows).collect();
    read_long::<W, B>(&rows.iter().map(|rows| &rows[..]).collect::<Vec<_>>(), false)
}

fn factors_to_numbers<W: Register>(factors: &[W::Factor]) -> Vec<BigUint> {
    let words: Vec<W> = factors.iter().map(|factor| W::word(*factor)).collect();
    to_numbers(&words)
}

fn to_numbers<W: Register>(words: &[W]) -> Vec<BigUint> {
    let mut numbers = vec![BigUint::ZERO; W::LANES];
    for (index, chunk) in words.chunks_exact(8).enumerate() {
        let lane_rows = W::rows(chunk.try_into().unwrap());
        for (number, row) in numbers.iter_mut().zip(lane_rows) {
            for (position, word) in row.into_iter().enumerate() {
                assert!(word <= MASK);
                *number += BigUint::from(word) << (52 * (8 * index + position));
            }
        }
    }
    numbers
}
