//! Vectors for RSA-PSS and Rapid Authentication (RA), as messages.

use linewarden_arithmetic::rsa::RsaPublic;
use linewarden_signatures::key::PublicKey;
use linewarden_signatures::message::{MASK_NAME_BYTES, PayloadKind};
use linewarden_signatures::ra::RaPublic;
use linewarden_signatures::refusal::Refusal;
use linewarden_signatures::scheme::Scheme;
use num_bigint::BigUint;
use sha2::{Digest as _, Sha256};

use crate::common::{NOW, small_layout, stamp};
use crate::validity::messages::{self, Expected, Vectors, draft, wrong_lengths};
use crate::validity::plain::inverse;
use crate::validity::primes::{PRIMES_2048, PRIMES_3072};

/// The special property of a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tag {
    Ordinary,
    /// The signature begins with a zero byte.
    SmallSignature,
    /// The number to sign begins with a zero byte.
    SmallNumberToSign,
    /// All bits of the salt or of the mask name are equal.
    EqualBits,
    /// PSS: the salt has another length.
    Salt,
    /// PSS: the last byte is not bc.
    Trailer,
    /// PSS: the topmost bit is set.
    TopBit,
    /// PSS: a byte before the separator is not zero, or the separator is not 1.
    Padding,
    /// An encoding of PKCS #1 version 1.5, or arbitrary bytes.
    OtherEncoding,
    /// RA: no mask, the mask squared, or a combination of three signatures.
    Combined,
    /// The signature is of another message or key, or has another mask name.
    Other,
    /// `n - s` or the inverse of s modulo n, where s is a valid signature.
    Related,
    /// Numbers that make carries propagate.
    Ripple,
    /// 0, 1 or n - 1, each of which equals its own e-th power.
    FixedPoint,
    /// n or more; one of these numbers is correct modulo n.
    AboveModulus,
    /// A message of another kind, with a wrong number of components, or with a value out of a component's range.
    Layout,
}

impl Tag {
    fn expected(self) -> Expected {
        match self {
            Self::Ordinary | Self::SmallSignature | Self::SmallNumberToSign | Self::EqualBits => {
                Expected::Valid(true)
            }
            Self::FixedPoint | Self::AboveModulus => Expected::Refused(Refusal::OutOfRange),
            Self::Layout => Expected::Refused(Refusal::WrongLayout),
            Self::Salt
            | Self::Trailer
            | Self::TopBit
            | Self::Padding
            | Self::OtherEncoding
            | Self::Combined
            | Self::Other
            | Self::Related
            | Self::Ripple => Expected::Valid(false),
        }
    }
}

fn vector(tag: Tag, scheme: Scheme, bytes: Vec<u8>) -> messages::Vector {
    messages::Vector {
        property: format!("{tag:?}"),
        scheme,
        bytes,
        expected: tag.expected(),
    }
}

/// A key with a simple private operation.
struct Key {
    n: BigUint,
    p: BigUint,
    q: BigUint,
    bytes: usize,
}

impl Key {
    fn new(primes: [&str; 2]) -> Self {
        let [p, q] = primes.map(crate::validity::plain::from_hex);
        let n = &p * &q;
        let bytes = n.to_bytes_be().len();
        Self { n, p, q, bytes }
    }

    fn public(&self) -> RsaPublic {
        RsaPublic::new(&self.n.to_bytes_be()).expect("a modulus")
    }

    /// The e-th root modulo n, by the Chinese remainder theorem.
    fn root(&self, number: &BigUint) -> BigUint {
        let e = BigUint::from(65_537u32);
        let [root_p, root_q] = [&self.p, &self.q].map(|prime| {
            let order = prime - 1u32;
            (number % prime).modpow(&e.modinv(&order).expect("a unit"), prime)
        });
        let quotient = (&root_p + &self.p - &root_q % &self.p) * inverse(&self.q, &self.p) % &self.p;
        root_q + quotient * &self.q
    }

    fn to_bytes(&self, number: &BigUint) -> Vec<u8> {
        let bytes = number.to_bytes_be();
        [vec![0; self.bytes - bytes.len()], bytes].concat()
    }

    /// Numbers that are invalid signatures of a message in every scheme; `valid_signature` is the valid signature.
    fn numbers(&self, valid_signature: &BigUint) -> Vec<(Tag, BigUint)> {
        let (n, one) = (&self.n, BigUint::from(1u32));
        let top = &one << (8 * self.bytes);
        let mut numbers = vec![
            (Tag::Related, n - valid_signature),
            (Tag::Related, inverse(valid_signature, n)),
            (Tag::FixedPoint, BigUint::ZERO),
            (Tag::FixedPoint, one.clone()),
            (Tag::FixedPoint, n - 1u32),
            (Tag::AboveModulus, n.clone()),
            (Tag::AboveModulus, n + 1u32),
            (Tag::AboveModulus, &top - 1u32),
            (Tag::Ripple, n - 2u32),
            (Tag::Ripple, BigUint::from(2u32)),
        ];
        if n + valid_signature < top {
            numbers.push((Tag::AboveModulus, n + valid_signature));
        }
        for bits in [32, 52, 64, 260, 1024, 8 * self.bytes - 1] {
            let power = &one << bits;
            numbers.extend([&power - 1u32, power.clone(), &power + 1u32].map(|number| (Tag::Ripple, number)));
            numbers.push((Tag::Ripple, n - &power));
        }
        numbers
    }
}

/// MGF1 with SHA-256 (RFC 8017, B.2.1).
fn mgf1(input: &[u8], length: usize) -> Vec<u8> {
    let block = |counter: u32| {
        Sha256::new()
            .chain_update(input)
            .chain_update(counter.to_be_bytes())
            .finalize()
    };
    (0u32..).flat_map(block).take(length).collect()
}

/// EMSA-PSS (RFC 8017, 9.1.1), with parts that a test can change.
struct Encoding {
    salt: Vec<u8>,
    /// The last byte of the padding, and the separator.
    before_salt: [u8; 2],
    trailer: u8,
    /// The topmost bit of the first byte: 0 or 0x80.
    top_bit: u8,
}

impl Encoding {
    fn new(salt: &[u8]) -> Self {
        Self {
            salt: salt.to_vec(),
            before_salt: [0, 1],
            trailer: 0xbc,
            top_bit: 0,
        }
    }

    fn encode(&self, signed: &[u8], length: usize) -> BigUint {
        let hash = Sha256::new()
            .chain_update([0; 8])
            .chain_update(Sha256::digest(signed))
            .chain_update(&self.salt);
        let hash = hash.finalize();
        let zeros = length - 32 - 1 - 2 - self.salt.len();
        let block = [&vec![0; zeros][..], &self.before_salt, &self.salt].concat();
        let mut masked: Vec<u8> = block
            .iter()
            .zip(mgf1(&hash, block.len()))
            .map(|(a, b)| a ^ b)
            .collect();
        masked[0] = masked[0] & 0x7f | self.top_bit;
        BigUint::from_bytes_be(&[&masked[..], &hash, &[self.trailer]].concat())
    }
}

/// Distinct salts or mask names.
fn seeds() -> impl Iterator<Item = [u8; 32]> {
    (0u32..).map(|number| Sha256::digest(number.to_be_bytes()).into())
}

fn pss_vectors(scheme: Scheme, [key, other]: [&Key; 2]) -> Vectors {
    let public = PublicKey::plain(scheme, &key.n.to_bytes_be()).expect("a key");
    let draft = draft(&public, PayloadKind::Opaque, b"stop");
    let signed = draft.to_sign();
    let salt: [u8; 32] = Sha256::digest(b"salt").into();
    let encode = |encoding: &Encoding| encoding.encode(&signed, key.bytes);
    let mut numbers = vec![(Tag::Ordinary, key.root(&encode(&Encoding::new(&salt))))];
    let [(_, valid_signature)] = &numbers[..] else {
        panic!("not one vector")
    };
    numbers.extend(key.numbers(&valid_signature.clone()));
    let limit = &BigUint::from(1u32) << (8 * key.bytes - 8);
    let encodings = || seeds().map(|salt| encode(&Encoding::new(&salt)));
    let small = encodings()
        .find(|encoded| *encoded < limit)
        .expect("the iterator is endless");
    numbers.push((Tag::SmallNumberToSign, key.root(&small)));
    let small = encodings()
        .map(|encoded| key.root(&encoded))
        .find(|root| *root < limit)
        .expect("the iterator is endless");
    numbers.push((Tag::SmallSignature, small));
    let mut add_encoding = |tag, encoding: &Encoding| numbers.push((tag, key.root(&encode(encoding))));
    add_encoding(Tag::EqualBits, &Encoding::new(&[0; 32]));
    add_encoding(Tag::EqualBits, &Encoding::new(&[0xff; 32]));
    for length in [0, 1, 20, 31, 33, 64, key.bytes - 35] {
        add_encoding(Tag::Salt, &Encoding::new(&vec![7; length]));
    }
    for trailer in [0, 0xbd, 0xcc, 0x3c] {
        add_encoding(
            Tag::Trailer,
            &Encoding {
                trailer,
                ..Encoding::new(&salt)
            },
        );
    }
    add_encoding(
        Tag::TopBit,
        &Encoding {
            top_bit: 0x80,
            ..Encoding::new(&salt)
        },
    );
    for before_salt in [[1, 1], [0, 0], [0, 2], [0x80, 1]] {
        add_encoding(
            Tag::Padding,
            &Encoding {
                before_salt,
                ..Encoding::new(&salt)
            },
        );
    }
    let digest_info = [
        &hex::decode("3031300d060960864801650304020105000420").expect("hex")[..],
        &Sha256::digest(&signed),
    ]
    .concat();
    let filler = vec![0xff; key.bytes - 3 - digest_info.len()];
    let pkcs1 = [&[0, 1][..], &filler, &[0], &digest_info].concat();
    for encoding in [&pkcs1[..], &Sha256::digest(&signed)] {
        numbers.push((Tag::OtherEncoding, key.root(&BigUint::from_bytes_be(encoding))));
    }
    let other_message = Encoding::new(&salt).encode(b"go", key.bytes);
    numbers.push((Tag::Other, key.root(&other_message)));
    numbers.push((Tag::Other, other.root(&encode(&Encoding::new(&salt))) % &key.n));
    let signed = |(tag, number): &(Tag, BigUint)| {
        let bytes = draft.clone().with_signature(&key.to_bytes(number));
        vector(*tag, scheme, bytes)
    };
    let mut vectors: Vec<_> = numbers.iter().map(signed).collect();
    vectors.extend(wrong_lengths(scheme, &vectors[0].bytes));
    (vec![public], vectors)
}

/// The verification equation of RA, computed from its definition.
struct Equation<'a> {
    key: &'a Key,
    public: &'a RaPublic,
}

impl Equation<'_> {
    /// H of `purpose`, the pad and the parts. The length of the pad and of each part precedes it.
    fn hash(&self, purpose: u8, parts: &[&[u8]]) -> BigUint {
        let mut input = vec![purpose];
        for part in [&self.public.pad()[..]].iter().chain(parts) {
            input.extend_from_slice(&(part.len() as u32).to_be_bytes());
            input.extend_from_slice(part);
        }
        BigUint::from_bytes_be(&mgf1(&input, self.key.bytes + 16)) % &self.key.n
    }

    fn mask(&self, name: &[u8; 32]) -> BigUint {
        self.hash(2, &[name])
    }

    fn components(&self, payload: &[u8]) -> BigUint {
        let layout = self.public.layout();
        let digits = layout
            .digits(stamp(NOW, 3), layout.kind(), payload)
            .expect("digits");
        layout.rows_of(&digits).fold(BigUint::from(1u32), |product, row| {
            let (component, value) = layout.row(row).expect("a row");
            product * self.hash(1, &[&component.to_be_bytes(), value.as_bytes()]) % &self.key.n
        })
    }

    fn sign(&self, name: &[u8; 32], payload: &[u8]) -> BigUint {
        self.key
            .root(&(self.mask(name) * self.components(payload) % &self.key.n))
    }
}

fn ra_vectors(scheme: Scheme, [key, other]: [&Key; 2]) -> Vectors {
    let ra = |key: &Key| RaPublic::new(key.public(), small_layout(), [9; 32]);
    let (public, other_public) = (PublicKey::rapid(ra(key)), ra(other));
    let equation = Equation {
        key,
        public: public.ra().expect("RA"),
    };
    let n = &key.n;
    let kind = PayloadKind::Submessages;
    let name: [u8; 32] = Sha256::digest(b"mask").into();
    let payload = [1, 1, 200];
    let message = |payload: &[u8], name: &[u8; MASK_NAME_BYTES], number: &BigUint| {
        draft(&public, kind, payload).with_mask(name, &key.to_bytes(number))
    };
    let mut vectors = Vec::new();
    let mut add = |tag, bytes| vectors.push(vector(tag, scheme, bytes));
    let valid_signature = equation.sign(&name, &payload);
    for payload in [[0, 0, 0], [2, 1, 255], payload] {
        add(
            Tag::Ordinary,
            message(&payload, &name, &equation.sign(&name, &payload)),
        );
    }
    for (tag, number) in key.numbers(&valid_signature) {
        add(tag, message(&payload, &name, &number));
    }
    for name in [[0; 32], [0xff; 32]] {
        add(
            Tag::EqualBits,
            message(&payload, &name, &equation.sign(&name, &payload)),
        );
    }
    let limit = &BigUint::from(1u32) << (8 * key.bytes - 8);
    let components = equation.components(&payload);
    let product = |name: &[u8; 32]| equation.mask(name) * &components % n;
    let small = seeds()
        .find(|name| product(name) < limit)
        .expect("the iterator is endless");
    add(
        Tag::SmallNumberToSign,
        message(&payload, &small, &equation.sign(&small, &payload)),
    );
    let small = seeds()
        .find(|name| key.root(&product(name)) < limit)
        .expect("the iterator is endless");
    add(
        Tag::SmallSignature,
        message(&payload, &small, &equation.sign(&small, &payload)),
    );
    let mask = equation.mask(&name);
    add(Tag::Combined, message(&payload, &name, &key.root(&components)));
    add(
        Tag::Combined,
        message(&payload, &name, &key.root(&(&mask * &mask * &components % n))),
    );
    let [a, b, c] = [[1, 0, 200], [0, 1, 200], [0, 0, 200]].map(|payload| equation.sign(&name, &payload));
    add(
        Tag::Ordinary,
        message(&payload, &name, &(&a * &b % n * inverse(&c, n) % n)),
    );
    let names: Vec<[u8; 32]> = seeds().take(3).collect();
    let [a, b, c] = [([1, 0, 200], 0), ([0, 1, 200], 1), ([0, 0, 200], 2)]
        .map(|(payload, name)| equation.sign(&names[name], &payload));
    add(
        Tag::Combined,
        message(&payload, &names[0], &(a * b % n * inverse(&c, n) % n)),
    );
    add(Tag::Other, message(&[1, 1, 201], &name, &valid_signature));
    add(Tag::Other, message(&payload, &names[0], &valid_signature));
    let foreign = Equation {
        key: other,
        public: &other_public,
    };
    add(
        Tag::Other,
        message(&payload, &name, &(foreign.sign(&name, &payload) % n)),
    );
    for payload in [&[3, 1, 200][..], &[1, 2, 200], &[1, 1], &[1, 1, 200, 0]] {
        add(Tag::Layout, message(payload, &name, &valid_signature));
    }
    let opaque =
        draft(&public, PayloadKind::Opaque, &payload).with_mask(&name, &key.to_bytes(&valid_signature));
    add(Tag::Layout, opaque);
    let genuine = vectors[2].bytes.clone();
    vectors.extend(wrong_lengths(scheme, &genuine));
    (vec![public], vectors)
}

pub fn vectors() -> [Vectors; 4] {
    let keys = |primes: [[&str; 2]; 2]| primes.map(Key::new);
    let [short, long] = [keys(PRIMES_2048), keys(PRIMES_3072)];
    let vectors_of =
        |[key, other]: &[Key; 2], pss, ra| [pss_vectors(pss, [key, other]), ra_vectors(ra, [key, other])];
    let [pss, ra] = vectors_of(&short, Scheme::RsaPss2048, Scheme::RaRsa2048);
    let [long_pss, long_ra] = vectors_of(&long, Scheme::RsaPss3072, Scheme::RaRsa3072);
    [pss, ra, long_pss, long_ra]
}
