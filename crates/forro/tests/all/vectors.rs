//! Test vectors of the designers' reference implementation, of the designers' fork of libsodium, and of P4DRA.

use chacha20poly1305::aead::{AeadInOut as _, KeyInit as _};
use linewarden_forro::cipher::{KeyIvInit as _, StreamCipher as _};
use linewarden_forro::{Forro14, Matrix, R14, XForro14, XForro14Poly1305, hforro};
use serde_json::Value;

fn vectors() -> Value {
    serde_json::from_str(include_str!("../vectors/forro.json")).unwrap()
}

/// Returns the bytes of a field. The vector has hexadecimal digits under `name`, or text under `name` with `_ascii`.
fn bytes(vector: &Value, name: &str) -> Vec<u8> {
    match vector[name].as_str() {
        Some(digits) => hex::decode(digits).unwrap(),
        None => vector[format!("{name}_ascii")].as_str().unwrap().into(),
    }
}

fn array<const N: usize>(vector: &Value, name: &str) -> [u8; N] {
    bytes(vector, name).try_into().unwrap()
}

#[test]
fn stream_matches_the_reference_implementation() {
    let vectors = vectors();
    let cases = vectors["forro14"].as_array().unwrap();
    assert!(cases.len() >= 3);
    for vector in cases {
        assert_eq!(vector["counter"], 0);
        let (key, nonce): ([u8; 32], [u8; 8]) = (array(vector, "key"), array(vector, "nonce"));
        let mut cipher = Forro14::new(&key.into(), &nonce.into());
        for (index, block) in vector["blocks"].as_array().unwrap().iter().enumerate() {
            let expected = hex::decode(block.as_str().unwrap()).unwrap();
            let mut stream = [0; 64];
            cipher.apply_keystream(&mut stream);
            assert_eq!(stream[..], expected[..], "block {index} of {vector}");
            assert_eq!(
                Matrix::new(&key, index as u64, &nonce).block::<R14>()[..],
                expected[..]
            );
            assert_eq!(crate::support::block(&key, index as u64, &nonce, 14), expected);
        }
    }
}

#[test]
fn hforro_matches_libsodium() {
    let vectors = vectors();
    for vector in vectors["hforro14"].as_array().unwrap() {
        let derived = hforro::<R14>(&array(vector, "key"), &array(vector, "input"));
        assert_eq!(derived[..], bytes(vector, "output")[..]);
    }
}

/// `test/default/xforro14.c` of the designers' fork of libsodium.
#[test]
fn xforro_matches_libsodium() {
    let hex = |digits| hex::decode(digits).unwrap();
    let key: [u8; 32] = hex("446a5599971cbbc8c4c5379f012be204d73d977af5cfdf18e1c4f6e52bb2f948")
        .try_into()
        .unwrap();
    let nonce: [u8; 24] = hex("b90ae2af0d3158b0a5625a7330e8d8837a6e3edc294986af")
        .try_into()
        .unwrap();
    let mut stream = [0; 29];
    XForro14::new(&key.into(), &nonce.into()).apply_keystream(&mut stream);
    let expected = hex("99e194672b129f5b9de57406c3e91d65be0c81a1e5b43882a26b128523");
    assert_eq!(stream[..], expected[..]);
}

#[test]
fn aead_matches_libsodium() {
    let vectors = vectors();
    for vector in vectors["xforro14_poly1305"].as_array().unwrap() {
        let (key, nonce): ([u8; 32], [u8; 24]) = (array(vector, "key"), array(vector, "nonce"));
        let aead = XForro14Poly1305::new(&key.into());
        let (mut text, ad) = (bytes(vector, "plaintext"), bytes(vector, "aad"));
        let tag = aead
            .encrypt_inout_detached(&nonce.into(), &ad, text.as_mut_slice().into())
            .unwrap();
        assert_eq!(text, bytes(vector, "ciphertext"));
        assert_eq!(tag[..], bytes(vector, "tag")[..]);
        aead.decrypt_inout_detached(&nonce.into(), &ad, text.as_mut_slice().into(), &tag)
            .unwrap();
        assert_eq!(text, bytes(vector, "plaintext"));
    }
}

/// The tag without associated data is from the same test of the designers' fork of libsodium.
#[test]
fn aead_without_associated_data_matches_libsodium() {
    let vectors = vectors();
    let vector = &vectors["xforro14_poly1305"][0];
    let (key, nonce): ([u8; 32], [u8; 24]) = (array(vector, "key"), array(vector, "nonce"));
    let mut text = bytes(vector, "plaintext");
    let tag = XForro14Poly1305::new(&key.into())
        .encrypt_inout_detached(&nonce.into(), &[], text.as_mut_slice().into())
        .unwrap();
    assert_eq!(hex::encode(tag), "cf1c92b14adbffa77dff2cd8486ff3c8");
}

/// `p4dra-classic` replaces the constants by d and h (LAP/1 3.1). In the second vector, swapped fields change the proof.
#[test]
fn matrix_from_words_reproduces_p4dra_proofs() {
    let vectors = vectors();
    for name in ["p4dra_official", "p4dra_asymmetric"] {
        let vector = &vectors[name];
        let [k, h] = ["k", "h"].map(|field| bytes(vector, field));
        let [d, r, n] = ["d", "r", "n"].map(|field| bytes(vector, field));
        let word = |bytes: &[u8], index: usize| {
            u32::from_le_bytes(bytes[4 * index..4 * index + 4].try_into().unwrap())
        };
        let mut v = [0; 16];
        for index in 0..4 {
            v[index] = word(&k, index);
            v[index + 8] = word(&k, index + 4);
        }
        for index in 0..2 {
            v[index + 4] = word(&r, index) ^ word(&h, index);
            v[index + 6] = word(&d, index) ^ word(&h, index + 2);
            v[index + 12] = word(&n, index) ^ word(&h, index + 4);
            v[index + 14] = word(&d, index + 2) ^ word(&h, index + 6);
        }
        let proof = Matrix::from_words(v).block::<R14>();
        assert_eq!(proof[..], bytes(vector, "proof")[..], "{name}");
    }
}
