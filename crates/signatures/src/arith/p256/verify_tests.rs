//! Whole verifications against AWS-LC, one signature at a time.

use aws_lc_rs::{digest, signature};
use num_bigint::BigUint;
use rand::RngExt as _;

use super::super::point::tests::plain;
use super::super::{KnownPoint, PublicPoint, multiples};
use super::*;
use crate::arith::five::montgomery::power_of_two;
use crate::arith::five::outline::run_by;
use crate::arith::five::testing::{Random, from_limbs, on_each_backend, to_words, with_instructions};

/// More than two chunks, the last one not full.
const SIGNATURES: usize = 2 * LANES * GROUPS + 13;

mod each {
    super::on_each_backend!(random_signatures, colliding_multiples);
}

/// A signature with its key, as bytes.
#[derive(Debug, Clone)]
struct Signed {
    key: [[u8; 32]; 2],
    digest: [u8; 32],
    r: [u8; 32],
    s: [u8; 32],
}

fn n() -> BigUint {
    from_limbs(&ORDER.limbs)
}

fn to_bytes(number: &BigUint) -> [u8; 32] {
    let bytes = number.to_bytes_be();
    let mut out = [0; 32];
    out[32 - bytes.len()..].copy_from_slice(&bytes);
    out
}

fn to_lanes<W: Outline>(numbers: &[BigUint; LANES]) -> Words<W> {
    load(&std::array::from_fn(|lane| to_words(&numbers[lane])))
}

with_instructions! {
    fn point<W>(group: Group<W>) -> Point<W> {
        group.point()
    }
}

/// `a G + b Q` in each lane; by what is tested, but it is AWS-LC that says whether that is right.
fn combine<W: Outline>(
    a: &[BigUint; LANES],
    b: &[BigUint; LANES],
    key: Affine<W>,
) -> [(BigUint, BigUint); LANES] {
    let group = Group {
        key,
        digest: to_lanes(a),
        r: to_lanes(b),
        s: splat(&words(&power_of_two(260, &ORDER.limbs))),
        other_r: to_lanes(b),
        in_range: [true; LANES],
    };
    plain(&point(group)).map(|point| point.unwrap_or_default())
}

/// Signatures that hold for keys `d G` because `u1 G + u2 Q` is the point that r was taken from.
fn sign<W: Outline>(d: &[BigUint; LANES], u1: &[BigUint; LANES], u2: &[BigUint; LANES]) -> [Signed; LANES] {
    let none = [0u32; LANES].map(BigUint::from);
    let keys = combine::<W>(d, &none, multiples::base_point());
    let [x, y] = [0, 1].map(|coordinate| {
        let lanes = keys
            .each_ref()
            .map(|(x, y)| if coordinate == 0 { x.clone() } else { y.clone() });
        Element::<W, 1>::from_words(to_lanes(&lanes)).enter()
    });
    let points = combine(u1, u2, Affine { x, y });
    std::array::from_fn(|lane| {
        let r = &points[lane].0 % n();
        let s = &r * u2[lane].modpow(&(n() - 2u32), &n()) % n();
        let (x, y) = &keys[lane];
        Signed {
            key: [to_bytes(x), to_bytes(y)],
            digest: to_bytes(&(&u1[lane] * &s % n())),
            r: to_bytes(&r),
            s: to_bytes(&s),
        }
    })
}

fn by_aws_lc(signed: &Signed) -> bool {
    let key = [&[4], signed.key.as_flattened()].concat();
    let digest = digest::Digest::import_less_safe(&signed.digest, &digest::SHA256).expect("32 bytes");
    signature::UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, key)
        .verify_digest(&digest, &[signed.r, signed.s].concat())
        .is_ok()
}

/// Verdicts of both, which are the same. How many are valid.
fn compare<W: Outline>(signed: &[Signed]) -> usize {
    let keys: Vec<_> = signed
        .iter()
        .map(|signed| PublicPoint::from_affine(&signed.key[0], &signed.key[1]).unwrap())
        .collect();
    let combs = keys.iter().map(|point| KnownPoint {
        point: *point,
        comb: run_by::<W, _>(MakeComb(point)),
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
            .zip(signed)
            .map(|(at, Signed { digest, r, s, .. })| Request {
                signer: signer(at),
                digest,
                r,
                s,
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
    let mut signed = Vec::new();
    while signed.len() < SIGNATURES {
        let mut scalars = || std::array::from_fn(|_| random.number(&(n() - 1u32)) + 1u32);
        let (d, u1, u2) = (scalars(), scalars(), scalars());
        signed.extend(sign::<W>(&d, &u1, &u2));
    }
    signed.truncate(SIGNATURES);
    let before = compare::<W>(&signed);
    // None but the point at infinity, which is rare, makes one invalid.
    assert!(before > SIGNATURES / 2);
    let others = signed.clone();
    let mut corrupted = 0;
    for signed in &mut signed {
        let bit = random.rng.random_range(0..256);
        let flip = |bytes: &mut [u8; 32]| bytes[bit / 8] ^= 1 << (bit % 8);
        match random.rng.random_range(0..12) {
            0 => flip(&mut signed.digest),
            1 => flip(&mut signed.r),
            2 => flip(&mut signed.s),
            3 => signed.key = others[random.rng.random_range(0..SIGNATURES)].key,
            4 => (signed.r, signed.s) = (signed.s, signed.r),
            5 => signed.digest = random.rng.random(),
            _ => continue,
        }
        corrupted += 1;
    }
    let after = compare::<W>(&signed);
    assert!(after <= before && before - after <= corrupted && after < before);
}

/// Small factors of small multiples of the base point: sums that meet the multiple that is added, its negative, or infinity.
fn colliding_multiples<W: Outline>() {
    let mut random = Random::new();
    let mut signed = Vec::new();
    for _ in 0..24 {
        let mut scalars = || {
            std::array::from_fn(|_| {
                let small = BigUint::from(random.rng.random_range(1..40u32));
                let shifted = &small << (5 * random.rng.random_range(0..51u32));
                match random.rng.random_range(0..6) {
                    0 => n() - small,
                    1 => small.modpow(&(n() - 2u32), &n()),
                    2 => shifted % n(),
                    3 => n() - shifted % n(),
                    _ => small,
                }
            })
        };
        let (d, u1, u2) = (scalars(), scalars(), scalars());
        // What has no point: u1 G + u2 Q is infinity.
        signed.extend(sign::<W>(&d, &u1, &u2));
    }
    assert!(compare::<W>(&signed) > signed.len() / 2);
}
