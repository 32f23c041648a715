//! Tests the scheme against its definition, and the attacks that it must withstand, each with the mistake that enables
//! the attack.

use std::sync::OnceLock;

use num_bigint::BigUint;
use num_traits::One as _;

use super::*;
use crate::key::PrivateKey;
use crate::message::{MASK_NAME_BYTES, PayloadKind, Priority, Stamp, TimeMs};
use crate::scheme::Scheme;

const KIND: PayloadKind = PayloadKind::Submessages;

fn words(words: &[&str]) -> Domain {
    Domain::Submessages(words.iter().map(ToString::to_string).collect())
}

fn key() -> &'static PrivateKey {
    static KEY: OnceLock<PrivateKey> = OnceLock::new();
    KEY.get_or_init(|| {
        let components = vec![words(&["open", "close"]), words(&["valve 1", "valve 2"])];
        let layout = Layout::new(KIND, components).unwrap();
        PrivateKey::generate(Scheme::RaRsa2048, Some(layout)).unwrap()
    })
}

fn ra() -> &'static RaPrivate {
    key().ra().unwrap()
}

fn stamp() -> Stamp {
    Stamp {
        time: TimeMs::since_2020(0x1_2345_6789),
        priority: Priority::IMMEDIATE,
    }
}

fn digits(payload: &[u8]) -> Digits {
    ra().public().layout().digits(stamp(), KIND, payload).unwrap()
}

fn name(number: u8) -> [u8; MASK_NAME_BYTES] {
    [number; MASK_NAME_BYTES]
}

fn modulus() -> BigUint {
    BigUint::from_bytes_be(ra().public().rsa().as_bytes())
}

fn number(bytes: &[u8]) -> BigUint {
    BigUint::from_bytes_be(bytes)
}

fn verifies(mask: &[u8; MASK_NAME_BYTES], payload: &[u8], signature: &BigUint) -> bool {
    let bytes = signature.to_bytes_be();
    let padded = [vec![0; 256 - bytes.len()], bytes].concat();
    ra().public().verify(mask, &digits(payload), &padded)
}

fn sign(mask: &[u8; MASK_NAME_BYTES], payload: &[u8]) -> BigUint {
    number(&ra().sign(mask, &digits(payload)).unwrap())
}

/// `Π H(1 | P | j | m_j)` and `H(2 | P | r)`, by the definition and a library's arithmetic.
fn hashes(mask: &[u8; MASK_NAME_BYTES], payload: &[u8]) -> (BigUint, BigUint) {
    use sha2::{Digest as _, Sha256};
    let n = modulus();
    let public = ra().public();
    let hash = |input: Vec<u8>| {
        let mut wide = Vec::new();
        for counter in 0u32..9 {
            wide.extend(Sha256::digest(
                [input.as_slice(), &counter.to_be_bytes()].concat(),
            ));
        }
        number(&wide[..272]) % &n
    };
    let part = |bytes: &[u8]| [&(bytes.len() as u32).to_be_bytes(), bytes].concat();
    let pad = part(public.pad());
    let stamp = stamp().bits();
    let texts = [["open", "close"], ["valve 1", "valve 2"]];
    let values = (0..4)
        .map(|digit| {
            ((stamp >> (11 * (3 - digit)) & 0x7ff) as u16)
                .to_be_bytes()
                .to_vec()
        })
        .chain(
            payload
                .iter()
                .zip(texts)
                .map(|(byte, texts)| texts[usize::from(*byte)].into()),
        );
    let components = values
        .enumerate()
        .fold(BigUint::one(), |product, (component, value)| {
            let component = part(&(component as u16).to_be_bytes());
            product * hash([vec![1], pad.clone(), component, part(&value)].concat()) % &n
        });
    (components, hash([vec![2], pad, part(mask)].concat()))
}

#[test]
fn a_signature_is_the_root_of_the_defined_hashes() {
    for payload in [[0, 0], [1, 0], [1, 1]] {
        let (components, mask) = hashes(&name(1), &payload);
        let signature = sign(&name(1), &payload);
        let power = signature.modpow(&BigUint::from(65_537u32), &modulus());
        assert_eq!(power, components * mask % modulus());
        assert!(verifies(&name(1), &payload, &signature));
        assert!(!verifies(&name(2), &payload, &signature));
        assert!(!verifies(&name(1), &[payload[0] ^ 1, payload[1]], &signature));
        assert!(!verifies(&name(1), &payload, &(&signature + 1u32)));
    }
}

#[test]
fn table_and_mask_make_the_same_signature_as_the_key() {
    let table = ra().table(|_| true).unwrap().unwrap();
    let table = Table::from_bytes(ra().public().clone(), &table.to_bytes().unwrap()).unwrap();
    for (index, payload) in [[0, 0], [0, 1], [1, 1]].into_iter().enumerate() {
        let name = name(index as u8);
        let signature = table
            .sign(ra().masks(&[name]).unwrap().remove(0), &digits(&payload))
            .unwrap();
        assert_eq!(number(&signature), sign(&name, &payload));
    }
    // One batch of eight, and three single signatures.
    let payloads: Vec<_> = (0..11)
        .map(|index| digits(&[index & 1, index >> 1 & 1]))
        .collect();
    let names: Vec<_> = (10..21).map(name).collect();
    let masks = ra().masks(&names).unwrap();
    let signatures = table
        .sign_all(masks.into_iter().zip(&payloads).collect())
        .unwrap();
    for ((name, digits), signature) in names.iter().zip(&payloads).zip(signatures) {
        assert_eq!(signature, ra().sign(name, digits).unwrap());
    }
    let bytes = table.to_bytes().unwrap();
    assert!(Table::from_bytes(ra().public().clone(), &bytes[1..]).is_err());
    // Making a table can be interrupted.
    assert!(ra().table(|rows| rows < 30).unwrap().is_none());
}

/// Without masks, three signatures can be combined into a fourth signature. With masks, the combination is invalid for
/// each of the three mask names.
#[test]
fn components_of_signed_messages_cannot_be_exchanged() {
    let n = modulus();
    let exchange = |a: &BigUint, b: &BigUint, c: &BigUint| a * b % &n * c.modinv(&n).unwrap() % &n;
    let [base, first, second, target] = [[0, 0], [1, 0], [0, 1], [1, 1]];

    let unmasked = |payload: &[u8]| {
        let (_, mask) = hashes(&name(9), payload);
        let mask_root = number(ra().masks(&[name(9)]).unwrap()[0].beta());
        assert_eq!(mask_root.modpow(&BigUint::from(65_537u32), &n), mask);
        sign(&name(9), payload) * mask_root.modinv(&n).unwrap() % &n
    };
    let forged = exchange(&unmasked(&first), &unmasked(&second), &unmasked(&base));
    assert_eq!(forged, unmasked(&target), "unmasked signatures are forged");

    let forged = exchange(
        &sign(&name(1), &first),
        &sign(&name(2), &second),
        &sign(&name(3), &base),
    );
    for mask in 1..=3 {
        assert!(!verifies(&name(mask), &target, &forged));
    }
}

/// If a mask is used twice, the quotient of both signatures applies to any other message. Signing therefore takes masks
/// by value, and mask files return each mask once.
#[test]
fn a_mask_used_twice_allows_forgeries() {
    let n = modulus();
    let quotient = sign(&name(1), &[1, 0]) * sign(&name(1), &[0, 0]).modinv(&n).unwrap() % &n;
    let another = sign(&name(2), &[0, 1]);
    assert!(verifies(&name(2), &[1, 1], &(another * quotient % &n)));
}

/// One equation for several signatures (the screening of plain RSA by Bellare, Garay and Rabin) accepts two messages
/// that were never signed. This crate verifies each signature with a separate equation.
#[test]
fn messages_with_exchanged_components_pass_screening_and_fail_verification() {
    let n = modulus();
    let [first, second] = [sign(&name(1), &[0, 0]), sign(&name(2), &[1, 1])];
    let exchanged = [[1, 0], [0, 1]];
    let screen = exchanged
        .iter()
        .zip(1..)
        .fold(BigUint::one(), |product, (payload, mask)| {
            let (components, mask) = hashes(&name(mask), payload);
            product * components % &n * mask % &n
        });
    let product = (&first * &second % &n).modpow(&BigUint::from(65_537u32), &n);
    assert_eq!(product, screen, "screening accepts forgeries");
    assert!(!verifies(&name(1), &exchanged[0], &first));
    assert!(!verifies(&name(2), &exchanged[1], &second));
}

#[test]
fn keys_of_other_layouts_or_pads_have_other_hashes() {
    let rsa = ra().public().rsa().clone();
    let random = *ra().public().random();
    let pad_of = |layout, random| *RaPublic::new(rsa.clone(), layout, random).pad();
    let layouts = [
        Layout::bytes(2).unwrap(),
        Layout::bytes(3).unwrap(),
        Layout::bytes(37).unwrap(),
        Layout::bsm().unwrap(),
        Layout::new(KIND, vec![words(&["a", "bc"])]).unwrap(),
        Layout::new(KIND, vec![words(&["ab", "c"])]).unwrap(),
        Layout::new(KIND, vec![words(&["a", "bc"]), Domain::Byte]).unwrap(),
    ];
    let mut pads: Vec<_> = layouts
        .iter()
        .map(|layout| pad_of(layout.clone(), random))
        .collect();
    pads.push(pad_of(layouts[0].clone(), [0; 32]));
    pads.sort_unstable();
    pads.dedup();
    assert_eq!(pads.len(), layouts.len() + 1);
}

#[test]
fn each_invalid_layout_has_its_own_error() {
    let sub = |texts: &[&str]| vec![words(texts)];
    let error_of = |kind, components| Layout::new(kind, components).unwrap_err();
    assert_eq!(
        error_of(PayloadKind::Opaque, vec![]),
        LayoutError::ComponentCount(0)
    );
    assert_eq!(
        error_of(PayloadKind::Opaque, vec![Domain::Byte; 61]),
        LayoutError::ComponentCount(61)
    );
    assert_eq!(
        error_of(KIND, sub(&["one"])),
        LayoutError::SubmessageCount {
            component: 0,
            count: 1
        }
    );
    assert_eq!(
        error_of(PayloadKind::Bsm, vec![Domain::Byte; 36]),
        LayoutError::InvalidBsm
    );
    assert_eq!(
        error_of(PayloadKind::Opaque, sub(&["a", "b"])),
        LayoutError::KindMismatch("opaque")
    );
    assert_eq!(
        error_of(KIND, vec![Domain::Byte]),
        LayoutError::KindMismatch("submessages")
    );
    let duplicate = LayoutError::DuplicateSubmessage {
        component: 0,
        text: "a".to_owned(),
    };
    assert_eq!(error_of(KIND, sub(&["a", "b", "a"])), duplicate);
    let long = "x".repeat(513);
    assert_eq!(
        error_of(KIND, sub(&["a", &long])),
        LayoutError::SubmessageTooLong {
            component: 0,
            value: 1
        }
    );
    let many: Vec<String> = (0..65_000).map(|number| number.to_string()).collect();
    let components = vec![Domain::Submessages(many.clone()), Domain::Submessages(many)];
    assert!(matches!(error_of(KIND, components), LayoutError::TooManyRows(_)));
    assert_eq!(Layout::bsm().unwrap().components(), 41);
    assert_eq!(Layout::bytes(28).unwrap().components(), 32);
    assert!(Layout::bytes(60).is_ok());
    for count in [0, 61, 65, usize::MAX] {
        assert!(matches!(Layout::bytes(count), Err(LayoutError::ComponentCount(found)) if found == count));
    }
    assert_eq!(Layout::bytes(4).unwrap().components(), 8);
}

/// Each row of a table is one value of one component, and each message's components are rows.
#[test]
fn rows_and_digits_name_the_same_values() {
    let many: Vec<String> = (0..300).map(|number| format!("number {number}")).collect();
    let components = vec![words(&["a", "b", "c"]), Domain::Submessages(many), Domain::Byte];
    let layout = Layout::new(KIND, components).unwrap();
    assert_eq!(layout.rows(), 4 * 2048 + 3 + 300 + 256);
    assert_eq!(layout.payload_bytes(), 4);
    let digits = layout.digits(stamp(), KIND, &[2, 1, 43, 200]).unwrap();
    let rows: Vec<usize> = layout.rows_of(&digits).collect();
    let values: Vec<(u16, Vec<u8>)> = rows
        .iter()
        .map(|row| {
            layout
                .row(*row)
                .map(|(component, value)| (component, value.as_bytes().to_vec()))
                .unwrap()
        })
        .collect();
    assert_eq!(values[4], (4, b"c".to_vec()));
    assert_eq!(values[5], (5, b"number 299".to_vec()));
    assert_eq!(values[6], (6, vec![200]));
    let stamp_digits = values[..4].iter().fold(0u64, |bits, (_, digit)| {
        bits << 11 | u64::from(u16::from_be_bytes([digit[0], digit[1]]))
    });
    assert_eq!(stamp_digits, stamp().bits());
    assert_eq!(
        layout.parts(&[2, 1, 43, 200]).unwrap(),
        [Part::Text("c"), Part::Text("number 299"), Part::Byte(200)]
    );
    assert_eq!(layout.parts(&[2, 1, 44, 200]), None);
    assert!(layout.digits(stamp(), KIND, &[2, 1, 44, 200]).is_err());
    assert!(layout.row(layout.rows()).is_none());
    for row in 0..layout.rows() {
        assert!(layout.row(row).is_some(), "{row}");
    }
}
