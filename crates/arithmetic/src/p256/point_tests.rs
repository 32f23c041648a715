//! Compares additions and doublings with the affine formulas, including exceptional cases.

use num_bigint::BigUint;
use rand::RngExt as _;

use super::super::field::{P, P_MODULUS};
use super::*;
use crate::elliptic::testing::{
    Random, from_limbs, from_words, on_each_backend, run_with_instructions, to_words, with_instructions,
};
use crate::elliptic::{Words, load, splat};
use crate::p256::multiples::base_point;
use crate::simd::LANES;

const ROUNDS: usize = 40;

mod each {
    super::on_each_backend!(additions, doublings);
}

with_instructions! {
    fn add<W>(a: Point<W>, b: Point<W>) -> Point<W> {
        a.add(&Addend::new(b))
    }

    fn add_affine<W>(a: Point<W>, b: Affine<W>) -> Point<W> {
        a.add_affine(&b)
    }

    fn double<W>(a: Point<W>) -> Point<W> {
        a.double()
    }
}

/// The affine coordinates of a point; `None` is infinity.
type AffineCoordinates = Option<(BigUint, BigUint)>;

fn p() -> BigUint {
    from_limbs(&P)
}

fn inverse(number: &BigUint) -> BigUint {
    number.modpow(&(p() - 2u32), &p())
}

fn add_by_affine_formulas(a: &AffineCoordinates, b: &AffineCoordinates) -> AffineCoordinates {
    let (Some((x1, y1)), Some((x2, y2))) = (a, b) else {
        return a.clone().or(b.clone());
    };
    let slope = if x1 != x2 {
        (y2 + p() - y1) * inverse(&((x2 + p() - x1) % p()))
    } else if y1 == y2 {
        (x1 * x1 * 3u32 + p() * 3u32 - 3u32) * inverse(&(y1 * 2u32 % p()))
    } else {
        return None;
    };
    let x = (&slope * &slope + p() * 2u32 - x1 - x2) % p();
    let y = (slope * (x1 + p() - &x) + p() - y1) % p();
    Some((x, y))
}

/// `factor G`, by the affine formulas.
fn multiple_of_base(factor: u32) -> AffineCoordinates {
    let base = affine_coordinates(&base_point::<crate::simd::Portable>().point())[0].clone();
    (0..32).rev().fold(None, |sum, bit| {
        let double = add_by_affine_formulas(&sum, &sum);
        if factor >> bit & 1 == 1 {
            add_by_affine_formulas(&double, &base)
        } else {
            double
        }
    })
}

fn affine_coordinates<W: BackendWords>(point: &Point<W>) -> [AffineCoordinates; LANES] {
    let from_montgomery = |words: &Words<W>| {
        let numbers = run_with_instructions::<W, _>(|| P_MODULUS.mul(words, &splat(&[1, 0, 0, 0, 0])));
        from_words(&numbers).map(|number| number % p())
    };
    let [x, y, z] = [
        from_montgomery(point.x.words()),
        from_montgomery(point.y.words()),
        from_montgomery(point.z.words()),
    ];
    std::array::from_fn(|lane| {
        let z = inverse(&z[lane]);
        let zz = &z * &z;
        (z != BigUint::from(0u32)).then(|| (&x[lane] * &zz % p(), &y[lane] * &zz * &z % p()))
    })
}

fn montgomery_form<'a, W: BackendWords>(number: impl Fn(usize) -> &'a BigUint) -> Element<W, 2> {
    let words = load(&std::array::from_fn(|lane| to_words(number(lane))));
    run_with_instructions::<W, _>(|| Element::<W, 1>::from_words(words).in_montgomery_form())
}

/// A point in each lane, with a random Z.
fn jacobian<W: BackendWords>(random: &mut Random, points: &[AffineCoordinates; LANES]) -> Point<W> {
    let coordinates: [_; LANES] = std::array::from_fn(|lane| match &points[lane] {
        Some((x, y)) => {
            let z = random.number(&(p() - 1u32)) + 1u32;
            [x * &z * &z, y * &z * &z * &z, z].map(|number| number % p())
        }
        None => [0u32; 3].map(BigUint::from),
    });
    let montgomery_lanes = |coordinate: usize| montgomery_form(|lane| &coordinates[lane][coordinate]);
    Point {
        x: montgomery_lanes(0),
        y: montgomery_lanes(1),
        z: montgomery_lanes(2).widen(),
    }
}

/// Small multiples of the base point, which often coincide, and infinity.
fn points(random: &mut Random) -> [AffineCoordinates; LANES] {
    std::array::from_fn(|_| match random.rng.random_range(0..8) {
        0 => None,
        1..5 => multiple_of_base(random.rng.random_range(1..4)),
        5 => multiple_of_base(random.rng.random_range(1..4)).map(|(x, y)| (x, p() - y)),
        _ => multiple_of_base(random.rng.random()),
    })
}

fn additions<W: BackendWords>() {
    let mut random = Random::new();
    for _ in 0..ROUNDS {
        let a = points(&mut random);
        let b = points(&mut random).map(|point| point.or_else(|| multiple_of_base(5)));
        let sums: [AffineCoordinates; LANES] =
            std::array::from_fn(|lane| add_by_affine_formulas(&a[lane], &b[lane]));
        let (a_words, b_words) = (jacobian::<W>(&mut random, &a), jacobian(&mut random, &b));
        assert_eq!(affine_coordinates(&add(a_words, b_words)), sums);
        let affine = Affine {
            x: montgomery_form(|lane| &b[lane].as_ref().unwrap().0),
            y: montgomery_form(|lane| &b[lane].as_ref().unwrap().1),
        };
        let sum = add_affine(a_words, affine);
        assert_eq!(affine_coordinates(&sum), sums);
        // A second addition, with the sums as operands.
        let expected: [AffineCoordinates; LANES] =
            std::array::from_fn(|lane| add_by_affine_formulas(&sums[lane], &b[lane]));
        assert_eq!(affine_coordinates(&add_affine(sum, affine)), expected);
    }
}

fn doublings<W: BackendWords>() {
    let mut random = Random::new();
    for _ in 0..ROUNDS {
        let mut expected = points(&mut random);
        let mut point = jacobian::<W>(&mut random, &expected);
        for _ in 0..3 {
            expected = expected.map(|point| add_by_affine_formulas(&point, &point));
            point = double(point);
            assert_eq!(affine_coordinates(&point), expected);
        }
    }
}
