//! Vectors for Ed25519.

use std::sync::LazyLock;

use aws_lc_rs::signature;
use linewarden_arithmetic::Backend;
use linewarden_arithmetic::edwards::{self, KeyError, PrecomputedKey, PublicKey, Request, Signer};
use num_bigint::BigUint;
use sha2::{Digest as _, Sha512};

use crate::validity::RefusedBy::{self, EveryVerifier, InputCheck, NoVerifier};
use crate::validity::plain::{Group, from_hex, inverse, subtract, to_le};

/// The special property of a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tag {
    Ordinary,
    /// The key has a component of small order, and the equation holds nevertheless.
    MixedKey,
    /// The key's order divides 8: one signature is valid for many messages.
    SmallOrderKey,
    /// The signature's point is of small order.
    SmallOrderR,
    /// The equation holds only after multiplication by 8.
    CofactorOnly,
    /// s is L or more; some of these values are correct modulo L.
    SAboveOrder,
    /// s is L - 1, which no signer makes.
    OrderLess1,
    /// The signature's point is not canonically encoded.
    NonCanonicalR,
    /// The signature's point is not on the curve.
    NoPointR,
    /// The key's point is not canonically encoded.
    NonCanonicalKey,
    /// The key is not on the curve.
    NoPointKey,
    /// The signature is of another message or key, or was changed.
    Changed,
}

impl Tag {
    fn refused_by(self) -> RefusedBy {
        match self {
            Self::Ordinary | Self::MixedKey => NoVerifier,
            Self::SmallOrderKey | Self::SmallOrderR => InputCheck,
            Self::CofactorOnly
            | Self::SAboveOrder
            | Self::OrderLess1
            | Self::NonCanonicalR
            | Self::NoPointR
            | Self::NonCanonicalKey
            | Self::NoPointKey
            | Self::Changed => EveryVerifier,
        }
    }
}

#[derive(Clone)]
struct Vector {
    tags: Vec<Tag>,
    key: [u8; 32],
    message: Vec<u8>,
    r: [u8; 32],
    s: [u8; 32],
}

/// The curve -x^2 + y^2 = 1 + d x^2 y^2 modulo p, with the base point b of order l.
pub struct Curve {
    pub p: BigUint,
    d: BigUint,
    pub l: BigUint,
    pub b: Point,
}

pub type Point = (BigUint, BigUint);

impl Group for Curve {
    type Point = Point;

    fn neutral(&self) -> Point {
        (BigUint::ZERO, BigUint::from(1u32))
    }

    fn add(&self, (x1, y1): &Point, (x2, y2): &Point) -> Point {
        let (p, one) = (&self.p, BigUint::from(1u32));
        let product = &self.d * x1 * x2 % p * y1 * y2 % p;
        let x = (x1 * y2 + x2 * y1) * inverse(&(&one + &product), p) % p;
        let y = (y1 * y2 + x1 * x2) * inverse(&subtract(&one, &product, p), p) % p;
        (x, y)
    }
}

impl Curve {
    pub fn new() -> Self {
        let b = (
            from_hex("216936d3cd6e53fec0a4e231fdd6dc5c692cc7609525a7b2c9562d608f25d51a"),
            from_hex("6666666666666666666666666666666666666666666666666666666666666658"),
        );
        Self {
            p: (BigUint::from(1u32) << 255u32) - 19u32,
            d: from_hex("52036cee2b6ffe738cc740797779e89800700a4d4141d8ab75eb4dca135978a3"),
            l: from_hex("1000000000000000000000000000000014def9dea2f79cd65812631a5cf5d3ed"),
            b,
        }
    }

    /// The multiples of a point of order 8 by 0 to 7.
    pub fn torsion(&self) -> Vec<Point> {
        let y = from_hex("05fc536d880238b13933c6d305acdfd5f098eff289f4c345b027b2c28f95e826");
        // Twice a point of order 8 has y = 0, so the point has x^2 = -y^2.
        let square = subtract(&BigUint::ZERO, &(&y * &y), &self.p);
        let candidate = square.modpow(&((&self.p + 3u32) / 8u32), &self.p);
        let root_of_minus_1 = BigUint::from(2u32).modpow(&((&self.p - 1u32) / 4u32), &self.p);
        let x = if &candidate * &candidate % &self.p == square {
            candidate
        } else {
            candidate * root_of_minus_1 % &self.p
        };
        let generator = (x, y);
        let points: Vec<_> = (0..8u32)
            .map(|factor| self.multiple(&BigUint::from(factor), &generator))
            .collect();
        assert_eq!(self.add(&points[7], &generator), self.neutral());
        points
    }

    pub fn encode(&self, (x, y): &Point) -> [u8; 32] {
        let mut bytes = to_le(y);
        bytes[31] |= u8::from(x.bit(0)) << 7;
        bytes
    }

    pub fn negative(&self, (x, y): &Point) -> Point {
        (subtract(&BigUint::ZERO, x, &self.p), y.clone())
    }
}

/// The challenge h, not reduced modulo L.
pub fn challenge(r: &[u8; 32], key: &[u8; 32], message: &[u8]) -> BigUint {
    BigUint::from_bytes_le(
        &Sha512::new()
            .chain_update(r)
            .chain_update(key)
            .chain_update(message)
            .finalize(),
    )
}

/// Arbitrary numbers, below L.
pub fn scalars() -> [BigUint; 2] {
    [
        from_hex("0a1f5e3c7b294d8866f0e1d2c3b4a5968778695a4b3c2d1e0ffeeddccbbaa998"),
        from_hex("07654321fedcba980123456789abcdef13579bdf2468ace0f0e1d2c3b4a59687"),
    ]
}

/// A signature with a key and a point R to which these components of small order are added. Signs the first message
/// for whose challenge, reduced modulo L and then modulo 8, `matches` returns true.
fn sign_with_torsion(
    curve: &Curve,
    tags: &[Tag],
    [key_component, r_component]: [&Point; 2],
    matches: impl Fn(&BigUint) -> bool,
) -> Vector {
    let [a, nonce] = scalars();
    let key = curve.encode(&curve.add(&curve.multiple(&a, &curve.b), key_component));
    let r = curve.encode(&curve.add(&curve.multiple(&nonce, &curve.b), r_component));
    let message = (0..1000u32)
        .map(|number| number.to_le_bytes().to_vec())
        .find(|message| matches(&(challenge(&r, &key, message) % &curve.l % 8u32)))
        .expect("about one of eight messages matches");
    let s = (nonce + challenge(&r, &key, &message) * a) % &curve.l;
    Vector {
        tags: tags.to_vec(),
        key,
        message,
        r,
        s: to_le(&s),
    }
}

fn changed_signatures(curve: &Curve, ordinary: &Vector) -> Vec<Vector> {
    let changed = |tag: Tag, change: &dyn Fn(&mut Vector)| {
        let mut vector = ordinary.clone();
        vector.tags = vec![tag];
        change(&mut vector);
        vector
    };
    let s = BigUint::from_bytes_le(&ordinary.s);
    let mut vectors = vec![
        ordinary.clone(),
        changed(Tag::Changed, &|vector| vector.message.push(0)),
        changed(Tag::Changed, &|vector| vector.key[31] ^= 0x80),
        changed(Tag::Changed, &|vector| vector.r[31] ^= 0x80),
        changed(Tag::Changed, &|vector| vector.s = [0; 32]),
        changed(Tag::Changed, &|vector| vector.s[0] ^= 1),
        changed(Tag::Changed, &|vector| vector.s = to_le(&(&curve.l - &s))),
        changed(Tag::Changed, &|vector| {
            std::mem::swap(&mut vector.r, &mut vector.key)
        }),
        changed(Tag::SAboveOrder, &|vector| vector.s = to_le(&curve.l)),
        changed(Tag::SAboveOrder, &|vector| vector.s = [0xff; 32]),
        changed(Tag::OrderLess1, &|vector| vector.s = to_le(&(&curve.l - 1u32))),
        // y = 2 belongs to no point; all ones are above p.
        changed(Tag::NoPointR, &|vector| vector.r = to_le(&BigUint::from(2u32))),
        changed(Tag::NoPointR, &|vector| vector.r = [0xff; 32]),
    ];
    for times in [1u32, 2, 7, 15] {
        vectors.push(changed(Tag::SAboveOrder, &|vector| {
            vector.s = to_le(&(&s + &curve.l * times))
        }));
    }
    vectors
}

fn components_of_small_order(curve: &Curve) -> Vec<Vector> {
    let torsion = curve.torsion();
    let neutral = &torsion[0];
    let mut vectors = Vec::new();
    for (index, point) in torsion.iter().enumerate().skip(1) {
        // T is the component of the key: s B - h A = R - h T. This is R if the order of T divides h, and R + T if
        // h T = -T.
        let divides = |h: &BigUint| h * u32::try_from(index).unwrap() % 8u32 == BigUint::ZERO;
        vectors.push(sign_with_torsion(
            curve,
            &[Tag::MixedKey],
            [point, neutral],
            divides,
        ));
        let not = |h: &BigUint| !divides(h);
        let tags = [Tag::MixedKey, Tag::CofactorOnly];
        vectors.push(sign_with_torsion(curve, &tags, [point, neutral], not));
        let minus_1 = |h: &BigUint| *h == BigUint::from(7u32);
        vectors.push(sign_with_torsion(
            curve,
            &[Tag::MixedKey],
            [point, point],
            minus_1,
        ));
        let plus_1 = |h: &BigUint| *h == BigUint::from(1u32);
        let opposite = curve.negative(point);
        vectors.push(sign_with_torsion(
            curve,
            &[Tag::MixedKey],
            [point, &opposite],
            plus_1,
        ));
        vectors.push(sign_with_torsion(
            curve,
            &[Tag::CofactorOnly],
            [neutral, point],
            |_| true,
        ));
    }
    vectors
}

/// Non-canonical encodings of points of small order, including x = 0 with a sign bit.
pub fn non_canonical(curve: &Curve) -> Vec<[u8; 32]> {
    let one = BigUint::from(1u32);
    let mut encodings = Vec::new();
    for y in [curve.p.clone(), &curve.p + 1u32] {
        let mut bytes = to_le(&y);
        encodings.push(bytes);
        bytes[31] |= 0x80;
        encodings.push(bytes);
    }
    for y in [one.clone(), &curve.p - one] {
        let mut bytes = to_le(&y);
        bytes[31] |= 0x80;
        encodings.push(bytes);
    }
    encodings
}

fn small_orders(curve: &Curve) -> Vec<Vector> {
    let (torsion, [a, nonce]) = (curve.torsion(), scalars());
    let key = curve.encode(&curve.multiple(&a, &curve.b));
    let r = curve.encode(&curve.multiple(&nonce, &curve.b));
    let mut vectors = Vec::new();
    for (index, point) in torsion.iter().enumerate() {
        // A key A of small order: s B = R + h A if h A is neutral.
        let key = curve.encode(point);
        let message = (0..1000u32)
            .map(|number| number.to_le_bytes().to_vec())
            .find(|message| {
                challenge(&r, &key, message) % &curve.l * u32::try_from(index).unwrap() % 8u32
                    == BigUint::ZERO
            });
        let message = message.expect("about one of eight messages matches");
        vectors.push(Vector {
            tags: vec![Tag::SmallOrderKey],
            key,
            message,
            r,
            s: to_le(&nonce),
        });
    }
    // R is the neutral point, so s is h a.
    let neutral = curve.encode(&torsion[0]);
    let s = |r: &[u8; 32]| to_le(&(challenge(r, &key, b"") * &a % &curve.l));
    vectors.push(Vector {
        tags: vec![Tag::SmallOrderR],
        key,
        message: vec![],
        r: neutral,
        s: s(&neutral),
    });
    for point in &torsion[1..] {
        let r = curve.encode(point);
        let tags = vec![Tag::SmallOrderR, Tag::CofactorOnly];
        vectors.push(Vector {
            tags,
            key,
            message: vec![],
            r,
            s: s(&r),
        });
    }
    for r in non_canonical(curve) {
        let tags = vec![Tag::SmallOrderR, Tag::NonCanonicalR];
        vectors.push(Vector {
            tags,
            key,
            message: vec![],
            r,
            s: s(&r),
        });
    }
    for key in non_canonical(curve) {
        let tags = vec![Tag::NonCanonicalKey];
        vectors.push(Vector {
            tags,
            key,
            message: vec![],
            r,
            s: to_le(&nonce),
        });
    }
    vectors
}

fn invalid_keys(curve: &Curve, ordinary: &Vector) -> Vec<Vector> {
    let mut vectors = Vec::new();
    let mut add = |tag, y: &BigUint, sign: u8| {
        let mut vector = ordinary.clone();
        vector.key = to_le(y);
        vector.key[31] |= sign;
        vector.tags = vec![tag];
        vectors.push(vector);
    };
    for sign in [0, 0x80] {
        // All values of y from p to 2^255 - 1, which are not reduced modulo p.
        for above in 0..19u32 {
            add(Tag::NonCanonicalKey, &(&curve.p + above), sign);
        }
        for y in [2u32, 7, 8] {
            add(Tag::NoPointKey, &BigUint::from(y), sign);
        }
    }
    vectors
}

static VECTORS: LazyLock<Vec<Vector>> = LazyLock::new(|| {
    let curve = Curve::new();
    let neutral = curve.neutral();
    let ordinary = sign_with_torsion(&curve, &[Tag::Ordinary], [&neutral, &neutral], |_| true);
    let mut vectors = changed_signatures(&curve, &ordinary);
    vectors.extend(components_of_small_order(&curve));
    vectors.extend(small_orders(&curve));
    vectors.extend(invalid_keys(&curve, &ordinary));
    vectors
});

impl Vector {
    fn is_refused_by(&self, party: RefusedBy) -> bool {
        self.tags.iter().any(|tag| tag.refused_by() == party)
    }

    fn is_valid_for_aws_lc(&self) -> bool {
        signature::UnparsedPublicKey::new(&signature::ED25519, self.key)
            .verify(&self.message, &[self.r, self.s].concat())
            .is_ok()
    }
}

#[test]
fn batch_results_equal_single_results() {
    let cases: Vec<_> = VECTORS
        .iter()
        .filter_map(|vector| PublicKey::from_bytes(&vector.key).ok().map(|key| (vector, key)))
        .map(|(vector, key)| (vector, key, edwards::hash(&vector.r, &key, &vector.message)))
        .collect();
    let expected: Vec<_> = cases
        .iter()
        .map(|(vector, ..)| !vector.is_refused_by(EveryVerifier))
        .collect();
    for backend in Backend::available() {
        let precomputed: Vec<_> = cases
            .iter()
            .map(|(_, key, _)| PrecomputedKey::new(backend, key))
            .collect();
        for is_precomputed in [false, true] {
            let requests: Vec<_> = cases
                .iter()
                .zip(&precomputed)
                .map(|((vector, key, hash), precomputed)| Request {
                    signer: match is_precomputed {
                        true => Signer::Precomputed(precomputed),
                        false => Signer::Plain(key),
                    },
                    r: &vector.r,
                    s: &vector.s,
                    hash,
                })
                .collect();
            let results = edwards::verify(backend, &requests);
            for ((request, (vector, ..)), (result, expected)) in requests
                .iter()
                .zip(&cases)
                .zip(results.into_iter().zip(&expected))
            {
                let tags = &vector.tags;
                assert_eq!(vector.is_valid_for_aws_lc(), *expected, "{tags:?}, AWS-LC");
                assert_eq!(
                    result,
                    *expected,
                    "{tags:?}, in a mixed batch, {}",
                    backend.name()
                );
                let single = edwards::verify(backend, &[*request]);
                assert_eq!(single, [*expected], "{tags:?}, alone, {}", backend.name());
            }
            let reversed: Vec<_> = requests.iter().skip(1).rev().copied().collect();
            let reversed_results = edwards::verify(backend, &reversed);
            assert!(
                reversed_results.iter().eq(expected.iter().skip(1).rev()),
                "{}: results differ in other lanes",
                backend.name()
            );
        }
    }
}

#[test]
fn small_orders_are_refused_before_any_lane() {
    let p = Curve::new().p;
    for vector in VECTORS.iter() {
        let key = PublicKey::from_bytes(&vector.key);
        let tags = &vector.tags;
        let expected = if tags.contains(&Tag::SmallOrderKey) {
            Some(KeyError::SmallOrder)
        } else if tags.contains(&Tag::NonCanonicalKey) {
            // A key with x = 0 and a sign bit is of small order, and its y is canonical.
            let is_canonical = p > BigUint::from_bytes_le(&without_sign(&vector.key));
            Some(if is_canonical {
                KeyError::SmallOrder
            } else {
                KeyError::NotCanonical
            })
        } else if tags.contains(&Tag::NoPointKey) {
            Some(KeyError::NotOnCurve)
        } else {
            None
        };
        assert_eq!(key.err(), expected, "{tags:?}");
        if key.is_err() {
            // Of the keys that this crate refuses, AWS-LC accepts only the canonical keys of small order.
            assert_eq!(
                vector.is_valid_for_aws_lc(),
                tags.contains(&Tag::SmallOrderKey),
                "{tags:?}"
            );
        }
        assert_eq!(
            edwards::is_small_order(&vector.r),
            tags.contains(&Tag::SmallOrderR),
            "{tags:?}"
        );
    }
}

fn without_sign(bytes: &[u8; 32]) -> [u8; 32] {
    let mut bytes = *bytes;
    bytes[31] &= 0x7f;
    bytes
}

#[test]
fn all_encodings_of_points_of_small_order_are_recognized() {
    let curve = Curve::new();
    let mut encodings: Vec<_> = curve.torsion().iter().map(|point| curve.encode(point)).collect();
    encodings.extend(non_canonical(&curve));
    encodings.sort_unstable();
    encodings.dedup();
    assert_eq!(encodings.len(), 14);
    for bytes in &encodings {
        assert!(edwards::is_small_order(bytes), "{bytes:x?}");
    }
    // Encodings that differ in one bit, and the base point, are not of small order.
    for bytes in encodings {
        for byte in [1, 15, 31] {
            let mut changed = bytes;
            changed[byte] ^= 1;
            assert!(!edwards::is_small_order(&changed), "{changed:x?}");
        }
    }
    assert!(!edwards::is_small_order(&curve.encode(&curve.b)));
}
