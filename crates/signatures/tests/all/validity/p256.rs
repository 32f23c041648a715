//! Vectors for ECDSA over P-256.

use std::sync::LazyLock;

use aws_lc_rs::{digest, signature};
use linewarden_arithmetic::Backend;
use linewarden_arithmetic::p256::{self, PointError, PrecomputedPoint, PublicPoint, Request, Signer};
use linewarden_signatures::gpu::{Emulation, Goal, Gpu, P256Batch};
use num_bigint::BigUint;

use crate::validity::RefusedBy::{self, EveryVerifier, NoVerifier};
use crate::validity::devices;
use crate::validity::plain::{Group, from_hex, inverse, subtract, to_be};

/// The special property of a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tag {
    Ordinary,
    /// `s > n / 2`: every verifier accepts s like n - s. Only a receiver that requires low s refuses the message.
    HighS,
    /// s is next to n / 2, or the smallest or greatest s.
    ExtremeS,
    /// The x coordinate is n or more, so that r is x minus n.
    XAboveOrder,
    /// r is the greatest or the smallest existing x coordinate below n.
    ExtremeR,
    /// The x coordinate equals r + n modulo p, but does not equal r modulo n.
    XWrapped,
    /// r or s is 0.
    Zero,
    /// r or s is n or more; one of these numbers is correct modulo n.
    AboveOrder,
    /// r or s is n - 1, which no signer makes.
    OrderLess1,
    /// The digest is 0 modulo n.
    DigestZero,
    /// The digest is more than n.
    DigestAboveOrder,
    /// The key is a small multiple of the base point, or of its negative.
    SmallKey,
    /// u1 G and u2 Q are the same point.
    EqualSummands,
    /// u1 G + u2 Q is infinity.
    Infinity,
    /// The signature is of another digest or key, or was changed.
    Changed,
}

impl Tag {
    fn refused_by(self) -> RefusedBy {
        match self {
            Self::Ordinary
            | Self::HighS
            | Self::ExtremeS
            | Self::XAboveOrder
            | Self::ExtremeR
            | Self::DigestZero
            | Self::DigestAboveOrder
            | Self::SmallKey
            | Self::EqualSummands => NoVerifier,
            Self::XWrapped
            | Self::Zero
            | Self::AboveOrder
            | Self::OrderLess1
            | Self::Infinity
            | Self::Changed => EveryVerifier,
        }
    }
}

struct Vector {
    tags: Vec<Tag>,
    key: PublicPoint,
    sec1: [u8; 65],
    digest: [u8; 32],
    r: [u8; 32],
    s: [u8; 32],
}

pub struct Curve {
    p: BigUint,
    pub n: BigUint,
    pub g: Point,
}

/// `None` is infinity.
pub type Point = Option<(BigUint, BigUint)>;

impl Group for Curve {
    type Point = Point;

    fn neutral(&self) -> Point {
        None
    }

    fn add(&self, a: &Point, b: &Point) -> Point {
        let p = &self.p;
        let (Some((x1, y1)), Some((x2, y2))) = (a, b) else {
            return a.clone().or(b.clone());
        };
        let slope = if x1 != x2 {
            subtract(y2, y1, p) * inverse(&subtract(x2, x1, p), p)
        } else if y1 == y2 {
            subtract(&(x1 * x1 * 3u32), &BigUint::from(3u32), p) * inverse(&(y1 * 2u32), p)
        } else {
            return None;
        };
        let x = subtract(&(&slope * &slope), &(x1 + x2), p);
        let y = subtract(&(slope * subtract(x1, &x, p)), y1, p);
        Some((x, y))
    }
}

impl Curve {
    pub fn new() -> Self {
        let g = (
            from_hex("6b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296"),
            from_hex("4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5"),
        );
        Self {
            p: from_hex("ffffffff00000001000000000000000000000000ffffffffffffffffffffffff"),
            n: from_hex("ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551"),
            g: Some(g),
        }
    }

    fn negative(&self, point: &Point) -> Point {
        point.as_ref().map(|(x, y)| (x.clone(), &self.p - y))
    }

    /// A point with this x coordinate; `None` if there is no such point.
    fn with_x(&self, x: &BigUint) -> Point {
        let b = from_hex("5ac635d8aa3a93e7b3ebbd55769886bc651d06b0cc53b0f63bce3c3e27d2604b");
        let square = (subtract(&(x * x * x), &(x * 3u32), &self.p) + b) % &self.p;
        let y = square.modpow(&((&self.p + 1u32) / 4u32), &self.p);
        (&y * &y % &self.p == square).then(|| (x.clone(), y))
    }

    /// The point whose x coordinate is the nearest to `x`: at or above `x` if `up` is true, else at or below `x`.
    fn near_x(&self, mut x: BigUint, up: bool) -> Point {
        loop {
            if let Some(point) = self.with_x(&x) {
                return Some(point);
            }
            x = if up { x + 1u32 } else { x - 1u32 };
        }
    }

    /// The key Q for which `u1 G + u2 Q` is the point R: `r^-1 (s R - e G)`, where e is the digest.
    fn key_for(&self, point: &Point, digest: &BigUint, r: &BigUint, s: &BigUint) -> Point {
        let r_inverse = inverse(r, &self.n);
        let base_factor = subtract(&BigUint::ZERO, &(digest * &r_inverse), &self.n);
        let point_factor = s * r_inverse % &self.n;
        self.add(
            &self.multiple(&point_factor, point),
            &self.multiple(&base_factor, &self.g),
        )
    }

    /// r and s by the private key d and a nonce.
    pub fn sign(&self, d: &BigUint, digest: &BigUint, nonce: &BigUint) -> [BigUint; 2] {
        let r = self.multiple(nonce, &self.g).expect("a point").0 % &self.n;
        let s = inverse(nonce, &self.n) * (digest + &r * d) % &self.n;
        [r, s]
    }

    /// The lower of s and n - s.
    pub fn low(&self, s: &BigUint) -> BigUint {
        s.clone().min(&self.n - s)
    }

    fn vector(&self, tags: &[Tag], key: &Point, digest: &BigUint, [r, s]: [&BigUint; 2]) -> Vector {
        let (x, y) = key.as_ref().expect("a key");
        let sec1 = [&[4][..], &to_be(x), &to_be(y)]
            .concat()
            .try_into()
            .expect("65 bytes");
        Vector {
            tags: tags.to_vec(),
            key: PublicPoint::from_affine(&to_be(x), &to_be(y)).expect("a point of the curve"),
            sec1,
            digest: to_be(digest),
            r: to_be(r),
            s: to_be(s),
        }
    }
}

/// Arbitrary numbers.
pub fn scalars() -> [BigUint; 4] {
    [
        from_hex("c9afa9d845ba75166b5c215767b1d6934e50c3db36e89b127b8a622b120f6721"),
        from_hex("a6e3c57dd01abe90086538398355dd4c3b17aa873382b0f24d6129493d8aad60"),
        from_hex("af2bdbe1aa9b6ec1e2ade1d694f41fc71a831d0268e9891562113d8a62add1bf"),
        from_hex("1eb90d9f4b3c2a7786e95d4c3b2a190817f6e5d4c3b2a19081726354453627ab"),
    ]
}

fn signatures_by_keys(curve: &Curve) -> Vec<Vector> {
    let [d, nonce, digest, other_key] = scalars();
    let (n, g) = (&curve.n, &curve.g);
    let key = curve.multiple(&d, g);
    let [r, s] = curve.sign(&d, &digest, &nonce);
    let (low, high) = (curve.low(&s), n - curve.low(&s));
    let all_ones = (BigUint::from(1u32) << 256u32) - 1u32;
    let zero = BigUint::ZERO;
    let vector = |tags: &[Tag], numbers: [&BigUint; 2]| curve.vector(tags, &key, &digest, numbers);
    let mut vectors = vec![
        vector(&[Tag::Ordinary], [&r, &low]),
        vector(&[Tag::HighS], [&r, &high]),
        vector(&[Tag::Zero], [&zero, &low]),
        vector(&[Tag::Zero], [&r, &zero]),
        vector(&[Tag::Zero], [&zero, &zero]),
        vector(&[Tag::AboveOrder], [n, &low]),
        vector(&[Tag::AboveOrder], [&r, n]),
        vector(&[Tag::AboveOrder], [n, n]),
        vector(&[Tag::AboveOrder], [&r, &all_ones]),
        vector(&[Tag::AboveOrder], [&all_ones, &low]),
        vector(&[Tag::OrderLess1], [&(n - 1u32), &low]),
        vector(&[Tag::OrderLess1, Tag::HighS], [&r, &(n - 1u32)]),
        vector(&[Tag::Changed], [&low, &r]),
        vector(&[Tag::Changed], [&(&r + 1u32), &low]),
        vector(&[Tag::Changed], [&r, &(&low + 1u32)]),
        vector(&[Tag::Changed], [&(n - &r), &low]),
        curve.vector(&[Tag::Changed], &key, &(&digest + 1u32), [&r, &low]),
        curve.vector(&[Tag::Changed], &curve.negative(&key), &digest, [&r, &low]),
        curve.vector(
            &[Tag::Changed],
            &curve.multiple(&other_key, g),
            &digest,
            [&r, &low],
        ),
    ];
    let digests = [
        (zero, Tag::DigestZero),
        (n.clone(), Tag::DigestZero),
        (n + 1u32, Tag::DigestAboveOrder),
        (all_ones, Tag::DigestAboveOrder),
        (n - 1u32, Tag::Ordinary),
    ];
    for (digest, tag) in digests {
        let [r, s] = curve.sign(&d, &digest, &nonce);
        vectors.push(curve.vector(&[tag], &key, &digest, [&r, &curve.low(&s)]));
        vectors.push(curve.vector(&[tag, Tag::Changed], &key, &digest, [&s, &r]));
    }
    vectors
}

fn small_keys(curve: &Curve) -> Vec<Vector> {
    let [_, nonce, digest, _] = scalars();
    let n = &curve.n;
    let mut vectors = Vec::new();
    for d in [1u32, 2, 3, 31]
        .map(BigUint::from)
        .into_iter()
        .flat_map(|d| [n - &d, d])
    {
        let key = curve.multiple(&d, &curve.g);
        let [r, s] = curve.sign(&d, &digest, &nonce);
        vectors.push(curve.vector(&[Tag::SmallKey], &key, &digest, [&r, &curve.low(&s)]));
        // u1 = u2 d: the sum is a doubling.
        let digest = &r * &d % n;
        let [r, s] = curve.sign(&d, &digest, &nonce);
        let tags = [Tag::SmallKey, Tag::EqualSummands];
        vectors.push(curve.vector(&tags, &key, &digest, [&r, &curve.low(&s)]));
        // u1 = - u2 d: the sum is infinity for every s.
        let opposite = subtract(&BigUint::ZERO, &digest, n);
        let s = curve.low(&s);
        vectors.push(curve.vector(&[Tag::SmallKey, Tag::Infinity], &key, &opposite, [&r, &s]));
    }
    vectors
}

fn signatures_by_points(curve: &Curve) -> Vec<Vector> {
    let [_, _, digest, s] = scalars();
    let (p, n) = (&curve.p, &curve.n);
    let half = n / 2u32;
    let (one, zero) = (BigUint::from(1u32), BigUint::ZERO);
    // A search ends immediately if its first number is the x coordinate of a point.
    let below_n = curve.near_x(n - 1u32, false);
    let above_n = curve.near_x(n.clone(), true);
    let below_p = curve.near_x(p - 1u32, false);
    let smallest = curve.near_x(one.clone(), true);
    let mut vectors = Vec::new();
    let mut add = |tags: &[Tag], point: &Point, r: &BigUint, s: &BigUint| {
        let key = curve.key_for(point, &digest, r, s);
        vectors.push(curve.vector(tags, &key, &digest, [r, s]));
    };
    let x = |point: &Point| point.as_ref().expect("a point").0.clone();
    add(&[Tag::ExtremeR], &below_n, &x(&below_n), &s);
    add(&[Tag::ExtremeR], &smallest, &x(&smallest), &s);
    add(&[Tag::XAboveOrder], &above_n, &(x(&above_n) - n), &s);
    add(
        &[Tag::XAboveOrder],
        &curve.negative(&above_n),
        &(x(&above_n) - n),
        &s,
    );
    add(&[Tag::XAboveOrder], &below_p, &(x(&below_p) - n), &s);
    add(
        &[Tag::XAboveOrder, Tag::HighS],
        &above_n,
        &(x(&above_n) - n),
        &(n - &s),
    );
    add(&[Tag::XWrapped], &smallest, &(x(&smallest) + p - n), &s);
    add(&[Tag::ExtremeS], &below_n, &x(&below_n), &half);
    add(
        &[Tag::ExtremeS, Tag::HighS],
        &below_n,
        &x(&below_n),
        &(&half + 1u32),
    );
    add(&[Tag::ExtremeS], &below_n, &x(&below_n), &one);
    add(&[Tag::ExtremeS, Tag::HighS], &below_n, &x(&below_n), &(n - 1u32));
    let key = curve.key_for(&smallest, &digest, &x(&smallest), &s);
    vectors.push(curve.vector(&[Tag::AboveOrder], &key, &digest, [&(x(&smallest) + n), &s]));
    let key = curve.key_for(&above_n, &zero, &(x(&above_n) - n), &s);
    let tags = [Tag::XAboveOrder, Tag::DigestZero];
    vectors.push(curve.vector(&tags, &key, &zero, [&(x(&above_n) - n), &s]));
    vectors
}

static VECTORS: LazyLock<Vec<Vector>> = LazyLock::new(|| {
    let curve = Curve::new();
    let mut vectors = signatures_by_keys(&curve);
    vectors.extend(small_keys(&curve));
    vectors.extend(signatures_by_points(&curve));
    vectors
});

impl Vector {
    fn request<'a>(&'a self, signer: Signer<'a>) -> Request<'a> {
        Request {
            signer,
            digest: &self.digest,
            r: &self.r,
            s: &self.s,
        }
    }

    fn is_refused_by(&self, party: RefusedBy) -> bool {
        self.tags.iter().any(|tag| tag.refused_by() == party)
    }

    fn is_valid_for_aws_lc(&self) -> bool {
        let digest = digest::Digest::import_less_safe(&self.digest, &digest::SHA256).expect("32 bytes");
        signature::UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, self.sec1)
            .verify_digest(&digest, &[self.r, self.s].concat())
            .is_ok()
    }
}

#[test]
fn batch_results_equal_single_results() {
    let vectors = &*VECTORS;
    for backend in Backend::available() {
        let precomputed: Vec<_> = vectors
            .iter()
            .map(|vector| PrecomputedPoint::new(backend, &vector.key))
            .collect();
        let plain: Vec<_> = vectors
            .iter()
            .map(|vector| vector.request(Signer::Plain(&vector.key)))
            .collect();
        let precomputed = vectors
            .iter()
            .zip(&precomputed)
            .map(|(vector, precomputed)| vector.request(Signer::Precomputed(precomputed)));
        for requests in [plain, precomputed.collect()] {
            check_results(backend, vectors, requests);
        }
    }
}

fn check_results(backend: Backend, vectors: &[Vector], requests: Vec<Request<'_>>) {
    let results = p256::verify(backend, &requests);
    for ((vector, request), result) in vectors.iter().zip(&requests).zip(results) {
        let expected = !vector.is_refused_by(EveryVerifier);
        let tags = &vector.tags;
        assert_eq!(vector.is_valid_for_aws_lc(), expected, "{tags:?}, AWS-LC");
        assert_eq!(result, expected, "{tags:?}, in a mixed batch, {}", backend.name());
        let single = p256::verify(backend, &[*request]);
        assert_eq!(single, [expected], "{tags:?}, alone, {}", backend.name());
    }
    let mut reversed: Vec<_> = requests.into_iter().rev().collect();
    reversed.pop();
    let reversed_results = p256::verify(backend, &reversed);
    let expected: Vec<_> = vectors
        .iter()
        .skip(1)
        .rev()
        .map(|vector| !vector.is_refused_by(EveryVerifier))
        .collect();
    assert_eq!(
        reversed_results,
        expected,
        "{}: results differ in other lanes",
        backend.name()
    );
}

#[test]
fn device_results_equal_single_results() {
    let vectors = &*VECTORS;
    let digests: Vec<[u8; 32]> = vectors.iter().map(|vector| vector.digest).collect();
    let numbers = vectors.iter().map(|vector| [vector.r, vector.s].concat());
    let signatures: Vec<[u8; 64]> = numbers.map(|numbers| numbers.try_into().unwrap()).collect();
    let key_of: Vec<u32> = (0..vectors.len() as u32).collect();
    let mut gpus = vec![Gpu::emulated(Emulation::default()).unwrap()];
    gpus.extend(devices::open_all());
    for gpu in &mut gpus {
        let mut device_keys = gpu.p256_keys(vectors.len()).unwrap();
        let points = vectors.iter().map(|vector| &vector.key);
        gpu.put_p256_keys(&mut device_keys, &(0..).zip(points).collect::<Vec<_>>())
            .unwrap();
        let batch = P256Batch {
            keys: &device_keys,
            key_of: &key_of,
            digests: &digests,
            signatures: &signatures,
        };
        for goal in [Goal::Throughput, Goal::Latency] {
            let results = gpu.verify_p256(&batch, goal).unwrap();
            for (vector, result) in vectors.iter().zip(results) {
                let expected = !vector.is_refused_by(EveryVerifier);
                assert_eq!(
                    result,
                    expected,
                    "{:?}, {goal:?}, {}",
                    vector.tags,
                    gpu.info().name
                );
            }
        }
    }
}

#[test]
fn invalid_points_are_refused_as_keys() {
    let curve = Curve::new();
    let (x, y) = curve.g.clone().expect("the base point");
    let zero = [0; 32];
    let sec1 = |first: u8, x: &BigUint, y: &BigUint| [&[first][..], &to_be(x), &to_be(y)].concat();
    let cases = [
        (sec1(4, &x, &y), Ok(())),
        (sec1(4, &x, &(&curve.p - &y)), Ok(())),
        (sec1(4, &x, &(&y + 1u32)), Err(PointError::NotOnCurve)),
        (sec1(4, &y, &x), Err(PointError::NotOnCurve)),
        ([&[4][..], &zero, &zero].concat(), Err(PointError::NotOnCurve)),
        (sec1(4, &curve.p, &y), Err(PointError::Coordinate)),
        (sec1(4, &x, &curve.p), Err(PointError::Coordinate)),
        (sec1(2, &x, &y), Err(PointError::Encoding)),
        (sec1(6, &x, &y), Err(PointError::Encoding)),
        (sec1(3, &x, &y)[..33].to_vec(), Err(PointError::Encoding)),
        (sec1(4, &x, &y)[..64].to_vec(), Err(PointError::Encoding)),
        ([&sec1(4, &x, &y)[..], &[0]].concat(), Err(PointError::Encoding)),
        (vec![0], Err(PointError::Encoding)),
        (vec![], Err(PointError::Encoding)),
    ];
    for (bytes, expected) in cases {
        assert_eq!(PublicPoint::from_sec1(&bytes).map(drop), expected, "{bytes:x?}");
    }
    // For a small x, x + p fits in 32 bytes and equals x modulo p.
    let small = curve.near_x(BigUint::from(1u32), true);
    let (x, y) = small.expect("a point");
    assert_eq!(
        PublicPoint::from_affine(&to_be(&(&x + &curve.p)), &to_be(&y)),
        Err(PointError::Coordinate)
    );
    assert!(PublicPoint::from_affine(&to_be(&x), &to_be(&y)).is_ok());
}
