//! Vectors for ECDSA over P-256 and for Ed25519, as messages of signers with known private keys.

use linewarden_signatures::key::PublicKey;
use linewarden_signatures::message::{Draft, PayloadKind};
use linewarden_signatures::refusal::Refusal::{Malleable, OutOfRange};
use linewarden_signatures::scheme::Scheme;
use num_bigint::BigUint;
use sha2::{Digest as _, Sha256};

use crate::validity::messages::Expected::{self, Refused, Valid};
use crate::validity::messages::{Vector, Vectors, draft, wrong_lengths};
use crate::validity::plain::{Group as _, to_be, to_le};
use crate::validity::{edwards, p256};

/// The property of valid messages that a receiver with `p256_low_s` refuses.
pub const HIGH_S: &str = "s in the upper half";

pub fn vectors() -> [Vectors; 2] {
    [p256_vectors(), ed25519_vectors()]
}

fn vector(scheme: Scheme, property: &str, draft: &Draft, signature: &[u8], expected: Expected) -> Vector {
    Vector {
        property: property.to_owned(),
        scheme,
        bytes: draft.clone().with_signature(signature),
        expected,
    }
}

/// Powers of two and their neighbors, below `2^bits`.
fn powers_of_two_and_neighbors(bits: u32) -> Vec<BigUint> {
    let one = BigUint::from(1u32);
    let powers = [32, 52, 64, 104, 128, 156, 208, 224, bits - 1].map(|bits| &one << bits);
    let near = |power: BigUint| [&power - 1u32, power.clone(), power + 1u32];
    powers.into_iter().flat_map(near).collect()
}

fn p256_vectors() -> Vectors {
    let scheme = Scheme::EcdsaP256;
    let curve = p256::Curve::new();
    let [d, nonce, _, other] = p256::scalars();
    let (n, one) = (&curve.n, BigUint::from(1u32));
    let half = n / 2u32;
    let public = |d: &BigUint| {
        let (x, y) = curve.multiple(d, &curve.g).expect("a key");
        PublicKey::plain(scheme, &[&[4][..], &to_be(&x), &to_be(&y)].concat()).expect("a key")
    };
    let (mut signers, mut vectors) = (Vec::new(), Vec::new());
    // The public keys are an arbitrary point, the base point, its negative, and its double.
    for d in [&d, &one, &(n - 1u32), &BigUint::from(2u32)] {
        let signer = public(d);
        let draft = draft(&signer, PayloadKind::Opaque, b"stop");
        let digest = BigUint::from_bytes_be(&Sha256::digest(draft.to_sign()));
        let sign = |d: &BigUint, digest: &BigUint, nonce: &BigUint| {
            let [r, s] = curve.sign(d, digest, nonce);
            [r, curve.low(&s)]
        };
        let [r, low] = sign(d, &digest, &nonce);
        let mut add = |property: &str, [r, s]: [&BigUint; 2], expected| {
            let signature = [to_be(r), to_be(s)].concat();
            vectors.push(vector(scheme, property, &draft, &signature, expected));
        };
        add("valid", [&r, &low], Valid(true));
        add(HIGH_S, [&r, &(n - &low)], Valid(true));
        for nonce in [one.clone(), BigUint::from(2u32), n - 1u32] {
            let [r, s] = sign(d, &digest, &nonce);
            add("a small or negative nonce", [&r, &s], Valid(true));
        }
        let all_ones = (&one << 256u32) - 1u32;
        for out_of_range in [&BigUint::ZERO, n, &(n + 1u32), &all_ones] {
            add("r out of its range", [out_of_range, &low], Refused(OutOfRange));
            add("s out of its range", [&r, out_of_range], Refused(OutOfRange));
        }
        add("the greatest r", [&(n - 1u32), &low], Valid(false));
        add("the greatest low s", [&r, &half], Valid(false));
        add("the smallest high s", [&r, &(half.clone() + 1u32)], Valid(false));
        add("s of n - 1", [&r, &(n - 1u32)], Valid(false));
        add("another r", [&(&r ^ &one), &low], Valid(false));
        add("another s", [&r, &(&low ^ &one)], Valid(false));
        add("the negative of r", [&(n - &r), &low], Valid(false));
        for number in powers_of_two_and_neighbors(255) {
            add("r near a power of two", [&number, &low], Valid(false));
            add("s near a power of two", [&r, &number], Valid(false));
        }
        let [r, s] = sign(d, &(&digest ^ &one), &nonce);
        add("of another message", [&r, &s], Valid(false));
        let [r, s] = sign(&other, &digest, &nonce);
        add("by another key", [&r, &s], Valid(false));
        signers.push(signer);
    }
    vectors.extend(wrong_lengths(scheme, &vectors[0].bytes));
    (signers, vectors)
}

/// A signer whose public key can have a component of small order.
struct Ed25519<'a> {
    curve: &'a edwards::Curve,
    /// The encoded public key.
    key: [u8; 32],
    public: PublicKey,
    /// The private number.
    a: BigUint,
}

impl<'a> Ed25519<'a> {
    fn new(curve: &'a edwards::Curve, a: &BigUint, component: &edwards::Point) -> Self {
        let key = curve.encode(&curve.add(&curve.multiple(a, &curve.b), component));
        Self {
            curve,
            key,
            public: PublicKey::plain(Scheme::Ed25519, &key).expect("a key"),
            a: a.clone(),
        }
    }

    /// The first message for whose challenge modulo L `matches` returns true, and this challenge.
    fn draft(&self, r: &[u8; 32], matches: impl Fn(&BigUint) -> bool) -> (Draft, BigUint) {
        let candidate = |number: u32| {
            let draft = draft(&self.public, PayloadKind::Opaque, &number.to_le_bytes());
            let challenge = edwards::challenge(r, &self.key, &draft.to_sign()) % &self.curve.l;
            (draft, challenge)
        };
        let mut drafts = (0..1000).map(candidate);
        drafts
            .find(|(_, challenge)| matches(challenge))
            .expect("about one of eight messages matches")
    }

    /// The part S of a signature with this nonce and challenge.
    fn response(&self, nonce: &BigUint, challenge: &BigUint) -> BigUint {
        (nonce + challenge * &self.a) % &self.curve.l
    }
}

fn ed25519_vectors() -> Vectors {
    let curve = edwards::Curve::new();
    let torsion = curve.torsion();
    let [a, _] = edwards::scalars();
    let signers: Vec<_> = torsion
        .iter()
        .map(|component| Ed25519::new(&curve, &a, component))
        .collect();
    let mut vectors = ordinary_signer(&signers[0]);
    for (factor, (component, signer)) in (0u32..).zip(torsion.iter().zip(&signers)).skip(1) {
        vectors.extend(small_components(&signers[0], signer, factor, component));
    }
    vectors.extend(wrong_lengths(Scheme::Ed25519, &vectors[0].bytes));
    let publics = signers.into_iter().map(|signer| signer.public);
    (publics.collect(), vectors)
}

fn ordinary_signer(signer: &Ed25519) -> Vec<Vector> {
    let (curve, [a, nonce]) = (signer.curve, edwards::scalars());
    let (l, one) = (&curve.l, BigUint::from(1u32));
    let r = curve.encode(&curve.multiple(&nonce, &curve.b));
    let (draft, challenge) = signer.draft(&r, |_| true);
    let s = signer.response(&nonce, &challenge);
    let mut vectors = Vec::new();
    let mut add = |property: &str, r: &[u8; 32], s: &BigUint, expected| {
        let signature = [*r, to_le(s)].concat();
        vectors.push(vector(Scheme::Ed25519, property, &draft, &signature, expected));
    };
    add("valid", &r, &s, Valid(true));
    for times in [1u32, 2, 7, 14] {
        add("S + L", &r, &(&s + l * times), Refused(OutOfRange));
    }
    let all_ones = (&one << 256u32) - 1u32;
    for out_of_range in [l, &(l + 1u32), &(&one << 253u32), &(&one << 255u32), &all_ones] {
        add("S out of its range", &r, out_of_range, Refused(OutOfRange));
    }
    for in_range in [BigUint::ZERO, one.clone(), l - 1u32, &s ^ &one, l - &s] {
        add("another S", &r, &in_range, Valid(false));
    }
    for number in powers_of_two_and_neighbors(252) {
        add("S near a power of two", &r, &number, Valid(false));
    }
    for small in edwards::non_canonical(curve)
        .into_iter()
        .chain(curve.torsion().iter().map(|point| curve.encode(point)))
    {
        add("R of small order", &small, &s, Refused(OutOfRange));
    }
    for above in 2..19u32 {
        for sign in [0, 0x80] {
            let mut point = to_le(&(&curve.p + above));
            point[31] |= sign;
            add("R not reduced", &point, &s, Refused(Malleable));
        }
    }
    add("no point", &to_le(&BigUint::from(2u32)), &s, Valid(false));
    let mut negative = r;
    negative[31] ^= 0x80;
    add("the negative of R", &negative, &s, Valid(false));
    add("the key as R", &signer.key, &s, Valid(false));
    let other_response = signer.response(&nonce, &(&challenge + 1u32));
    add("of another challenge", &r, &other_response, Valid(false));
    add(
        "by another key",
        &r,
        &((&nonce + &challenge * (a + 1u32)) % l),
        Valid(false),
    );
    vectors
}

/// Vectors that show that lanes check `S B = R + h A`, and not this equation multiplied by the cofactor 8 (RFC 8032).
/// `component` is the point of order 8 times `factor`.
fn small_components(
    plain: &Ed25519,
    signer: &Ed25519,
    factor: u32,
    component: &edwards::Point,
) -> Vec<Vector> {
    let (curve, [_, nonce]) = (signer.curve, edwards::scalars());
    let point = curve.multiple(&nonce, &curve.b);
    let sum = |component: &edwards::Point| curve.encode(&curve.add(&point, component));
    let modulo_8 = |h: &BigUint, number: u32| h % 8u32 == BigUint::from(number);
    let divides = |h: &BigUint| modulo_8(&(h * factor), 0);
    let signed_vector =
        |property: &str, signer: &Ed25519, r: [u8; 32], matches: &dyn Fn(&BigUint) -> bool, is_valid| {
            let (draft, challenge) = signer.draft(&r, matches);
            let signature = [r, to_le(&signer.response(&nonce, &challenge))].concat();
            vector(Scheme::Ed25519, property, &draft, &signature, Valid(is_valid))
        };
    let neutral = curve.neutral();
    vec![
        signed_vector(
            "a mixed key whose component vanishes",
            signer,
            sum(&neutral),
            &divides,
            true,
        ),
        signed_vector(
            "valid only after multiplication by 8, by a mixed key",
            signer,
            sum(&neutral),
            &|h| !divides(h),
            false,
        ),
        signed_vector(
            "a mixed key and a mixed R",
            signer,
            sum(component),
            &|h| modulo_8(h, 7),
            true,
        ),
        signed_vector(
            "a mixed key and the opposite R",
            signer,
            sum(&curve.negative(component)),
            &|h| modulo_8(h, 1),
            true,
        ),
        signed_vector(
            "valid only after multiplication by 8",
            plain,
            sum(component),
            &|_| true,
            false,
        ),
    ]
}
