//! Statements: byte-exact, and only the response of the requested data plane is accepted.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use linewarden_evidence::encoding::{Class, Entry, Object};
use linewarden_evidence::keys::{Ed25519Signer, KeyError, PublicKey, Signer};
use linewarden_evidence::state::{
    Digests, DirtyCells, MeasuredState, ObjectDigest, Snapshot, Stability, program_digest,
};
use linewarden_evidence::statement::{
    DataPlaneKind, Inventory, InventoryError, Nonce, Statement, StatementError, VerifiedStatement, verify,
};
use linewarden_evidence::{BootCount, Digest, Sequence, SwitchId};
use proptest::prelude::*;

use crate::common::{config, entry};

/// Seed 00 01 .. 1f: for tests only.
const PRIVATE: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f
-----END PRIVATE KEY-----
";
const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAA6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=
-----END PUBLIC KEY-----
";
/// A statement from a Python program that was written from the documentation, with its own CBOR and Ed25519.
const SIGNED: &str = "d2845818a2012703736170706c69636174696f6e2f6561742b637774a1044856475aa75463474c59017fa70a5820abababababababababababababababababababababababababababababababab19010058210156475aa75463474c0285df5dbf2bcab73da651358839e9b77481b2eab107708c19010978347461673a6769746875622e636f6d2c323032363a6c696e6577617264656e2f6c696e6577617264656e2f65766964656e63652f3119010b0319010e6a6c696e6577617264656e19010f8165302e312e30190111818219fde858d6a801627034020703090458203333333333333333333333333333333333333333333333333333333333333333055820222222222222222222222222222222222222222222222222222222222222222206582011111111111111111111111111111111111111111111111111111111111111110782850065666c6f77735820444444444444444444444444444444444444444444444444444444444444444402f485016469707634582055555555555555555555555555555555555555555555555555555555555555551903e8f40881667175657565735840a262928f2fe8a97af25bb96e078f61f25250cd5491b8237207511656ad692a0cce36a947e4316d47d9277162fc7cfe70676f05186c7690b94eb9753e62abfa01";
const NONCE: Nonce = Nonce([0xab; 32]);

fn signer() -> Ed25519Signer {
    Ed25519Signer::from_pem(PRIVATE).unwrap()
}

fn statement() -> Statement {
    let object = |class, name: &str, digest, entries| ObjectDigest {
        object: Object {
            class,
            name: name.to_owned(),
        },
        digest: Digest([digest; 32]),
        entries,
        is_volatile: false,
    };
    Statement {
        kind: DataPlaneKind::P4,
        snapshot: Snapshot {
            switch: SwitchId(7),
            boot_count: BootCount(3),
            sequence: Sequence(9),
            digests: Digests {
                program: Digest([0x33; 32]),
                tables: Digest([0x22; 32]),
                registers: Digest([0x11; 32]),
            },
        },
        // The objects are sorted when the statement is signed.
        objects: vec![
            object(Class::Table, "ipv4", 0x55, 1000),
            object(Class::Register, "flows", 0x44, 2),
        ],
        exclusions: vec!["queues".to_owned()],
        software_version: "0.1.0".to_owned(),
    }
}

/// A key of the type that a TPM signs with.
struct P256(EcdsaKeyPair);

impl P256 {
    fn new() -> Self {
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &SystemRandom::new()).unwrap();
        Self(EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref()).unwrap())
    }
}

impl Signer for P256 {
    fn public_key(&self) -> PublicKey {
        PublicKey::EcdsaP256(self.0.public_key().as_ref().try_into().unwrap())
    }

    fn sign(&mut self, message: &[u8]) -> Result<[u8; 64], KeyError> {
        let signature = self.0.sign(&SystemRandom::new(), message);
        Ok(signature.unwrap().as_ref().try_into().unwrap())
    }
}

/// A signer that always fails, like a TPM without a connection.
struct FailingSigner;

impl Signer for FailingSigner {
    fn public_key(&self) -> PublicKey {
        signer().public_key()
    }

    fn sign(&mut self, _: &[u8]) -> Result<[u8; 64], KeyError> {
        Err(KeyError::SigningFailed(
            "the connection to the TPM was lost".to_owned(),
        ))
    }
}

#[test]
fn the_bytes_are_those_of_an_independent_program() {
    let key = PublicKey::from_pem(PUBLIC).unwrap();
    assert_eq!(key, signer().public_key());
    assert_eq!(key.to_pem().replace('\r', ""), PUBLIC);
    let signed = statement().sign(NONCE, &mut signer()).unwrap();
    assert_eq!(hex::encode(&signed), SIGNED);
    let evidence = verify(&signed, &key, NONCE).unwrap();
    let expected = statement();
    assert_eq!(evidence.kind(), expected.kind);
    assert_eq!(evidence.snapshot(), &expected.snapshot);
    assert_eq!(evidence.exclusions(), expected.exclusions);
    assert_eq!(evidence.software_version(), "0.1.0");
    assert_eq!(evidence.nonce(), NONCE);
    let names: Vec<_> = evidence
        .objects()
        .iter()
        .map(|object| object.object.to_string())
        .collect();
    assert_eq!(names, ["register array flows", "table ipv4"]);
}

#[test]
fn a_key_in_tpm_format_signs_too() {
    let mut signer = P256::new();
    let key = signer.public_key();
    assert_eq!(PublicKey::from_pem(&key.to_pem()).unwrap(), key);
    let signed = statement().sign(NONCE, &mut signer).unwrap();
    assert_eq!(
        verify(&signed, &key, NONCE).unwrap().snapshot(),
        &statement().snapshot
    );
    let verify_error = |key: &PublicKey| verify(&signed, key, NONCE).unwrap_err();
    assert!(matches!(
        verify_error(&P256::new().public_key()),
        StatementError::InvalidSignature
    ));
    assert!(matches!(
        verify_error(&self::signer().public_key()),
        StatementError::AlgorithmMismatch
    ));
    assert!(matches!(
        statement().sign(NONCE, &mut FailingSigner),
        Err(StatementError::SigningFailed(KeyError::SigningFailed(_)))
    ));
}

#[test]
fn another_nonce_is_refused() {
    let signed = statement().sign(NONCE, &mut signer()).unwrap();
    let result = verify(&signed, &signer().public_key(), Nonce([0xac; 32]));
    assert!(matches!(result, Err(StatementError::NonceMismatch)));
}

/// The signature is valid, but the signed data are not a statement of the profile.
#[test]
fn signed_data_that_are_not_a_statement_are_rejected() {
    use coset::cbor::Value;
    use coset::{CoseSign1Builder, HeaderBuilder, TaggedCborSerializable as _, iana};
    let signed = hex::decode(SIGNED).unwrap();
    let payload = coset::CoseSign1::from_tagged_slice(&signed)
        .unwrap()
        .payload
        .unwrap();
    let claims: Value = coset::cbor::from_reader(&payload[..]).unwrap();
    let Value::Map(claims) = claims else {
        panic!("a map")
    };
    let verify_claims = |claims: Vec<(Value, Value)>, trailing: &[u8]| {
        let mut payload = Vec::new();
        coset::cbor::into_writer(&Value::Map(claims), &mut payload).unwrap();
        payload.extend_from_slice(trailing);
        let header = HeaderBuilder::new().algorithm(iana::Algorithm::EdDSA).build();
        let signed = CoseSign1Builder::new()
            .protected(header)
            .payload(payload)
            .create_signature(&[], |message| signer().sign(message).unwrap().to_vec())
            .build();
        verify(&signed.to_tagged_vec().unwrap(), &signer().public_key(), NONCE)
    };
    assert!(verify_claims(claims.clone(), &[]).is_ok());
    assert!(matches!(
        verify_claims(claims.clone(), &[0]),
        Err(StatementError::InvalidClaims(..))
    ));
    for position in 0..claims.len() {
        let mut missing = claims.clone();
        let (key, _) = missing.remove(position);
        assert!(
            matches!(
                verify_claims(missing, &[]),
                Err(StatementError::InvalidClaims(..))
            ),
            "{key:?}"
        );
        let mut wrong = claims.clone();
        wrong[position].1 = Value::Bool(true);
        assert!(
            matches!(verify_claims(wrong, &[]), Err(StatementError::InvalidClaims(..))),
            "{key:?}"
        );
        let mut twice = claims.clone();
        twice.push(claims[position].clone());
        assert!(
            matches!(verify_claims(twice, &[]), Err(StatementError::InvalidClaims(..))),
            "{key:?}"
        );
    }
    let mut ueid = claims.clone();
    let position = ueid.iter().position(|(key, _)| *key == Value::from(256)).unwrap();
    ueid[position].1 = Value::Bytes(vec![1; 33]);
    assert!(matches!(
        verify_claims(ueid, &[]),
        Err(StatementError::UeidMismatch)
    ));
}

#[test]
fn invalid_keys_are_rejected() {
    let other_label = PUBLIC.replace("PUBLIC KEY", "CERTIFICATE");
    let short = PUBLIC.replace("MCow", "MCoz");
    for text in ["", "x", PRIVATE, &other_label, &short] {
        assert!(PublicKey::from_pem(text).is_err(), "{text}");
    }
    let certificate = PRIVATE.replace("PRIVATE KEY", "CERTIFICATE");
    let broken = PRIVATE.replace("MC4C", "MC4D");
    for text in ["", "x", PUBLIC, &certificate, &broken] {
        assert!(Ed25519Signer::from_pem(text).is_err(), "{text}");
    }
    let generated = Ed25519Signer::from_pem(&Ed25519Signer::generate_pem().unwrap()).unwrap();
    assert_ne!(generated.public_key(), signer().public_key());
}

/// Measures a data plane with these entries and a register array. Returns its verified statement, and the encodings of
/// its inventory.
fn verified_data_plane(entries: &[Entry]) -> (VerifiedStatement, Vec<Vec<u8>>) {
    let mut state = MeasuredState::new(SwitchId(7), BootCount(3), program_digest(b"p"));
    for entry in entries {
        // Register cells are refused here, because they are measured by array.
        let _ = state.put(entry);
    }
    let array = state.declare_array("memory", 16, 8, Stability::Static).unwrap();
    let mut dirty = DirtyCells::new(16, 8);
    dirty.mark_u64(3, 0);
    let read = |index: u32, out: &mut [u8]| out.copy_from_slice(&[0, if index == 3 { 9 } else { 0 }]);
    state.fold(array, &mut dirty, read).unwrap();
    let mut inventory: Vec<_> = state.entries().map(|encoded| encoded.to_bytes()).collect();
    state
        .check_array(array)
        .unwrap()
        .each_cell(read, |cell| inventory.push(cell.to_vec()));
    let statement = Statement {
        snapshot: state.snapshot(),
        objects: state.objects(),
        ..statement()
    };
    let signed = statement.sign(NONCE, &mut signer()).unwrap();
    (verify(&signed, &signer().public_key(), NONCE).unwrap(), inventory)
}

fn inventory(encodings: &[Vec<u8>]) -> Result<Inventory, InventoryError> {
    Inventory::new(encodings.iter().map(Vec::as_slice))
}

proptest! {
    #![proptest_config(config(60))]

    #[test]
    fn exactly_the_signed_entries_are_proven(
        entries in prop::collection::vec(entry(), 1..12),
        entry_index in any::<prop::sample::Index>(),
        byte_index in any::<prop::sample::Index>(),
    ) {
        let (evidence, encodings) = verified_data_plane(&entries);
        let full_inventory = inventory(&encodings).unwrap();
        prop_assert_eq!(&Inventory::read(&full_inventory.to_bytes()).unwrap(), &full_inventory);
        let proven = full_inventory.clone().prove(&evidence).unwrap();
        for signed in evidence.objects() {
            prop_assert_eq!(proven.entries(&signed.object).unwrap().len() as u64, signed.entries);
        }
        // One entry is missing: if its object has other entries, the inventory is refused. Otherwise the object is not proven.
        let mut incomplete = encodings.clone();
        let removed = Entry::decode(&incomplete.remove(entry_index.index(encodings.len()))).unwrap().object();
        match inventory(&incomplete).unwrap().prove(&evidence) {
            Ok(proven) => prop_assert_eq!(proven.entries(&removed), None),
            Err(error) => prop_assert_eq!(error, InventoryError::NotSigned(removed)),
        }
        // One entry is duplicated.
        let mut twice = encodings.clone();
        twice.push(encodings[entry_index.index(encodings.len())].clone());
        let is_refused = matches!(inventory(&twice), Err(InventoryError::DuplicateEntry { .. }));
        prop_assert!(is_refused);
        // Any byte of the file is changed, or the file is truncated at this byte.
        let mut bytes = full_inventory.to_bytes();
        let position = byte_index.index(bytes.len());
        bytes[position] ^= 1;
        let proven = Inventory::read(&bytes).and_then(|changed| changed.prove(&evidence));
        prop_assert!(proven.is_err());
        let cut = &full_inventory.to_bytes()[..byte_index.index(full_inventory.to_bytes().len())];
        if let Ok(cut) = Inventory::read(cut) {
            // The file was truncated between two entries.
            prop_assert_ne!(cut, full_inventory);
        }
    }

    #[test]
    fn altered_and_truncated_statements_are_rejected(at in any::<prop::sample::Index>(), bits in 1u8.., cut in any::<prop::sample::Index>()) {
        let signed = hex::decode(SIGNED).unwrap();
        let key = signer().public_key();
        let mut changed = signed.clone();
        let position = at.index(changed.len());
        changed[position] ^= bits;
        // The kid is an unsigned hint that is never relied on.
        if let Ok(evidence) = verify(&changed, &key, NONCE) {
            let kid = signed.windows(2).position(|bytes| bytes == [4, 0x48]).unwrap();
            prop_assert!((kid..kid + 10).contains(&position), "byte {position}");
            prop_assert_eq!(evidence, verify(&signed, &key, NONCE).unwrap());
        }
        prop_assert!(verify(&signed[..cut.index(signed.len())], &key, NONCE).is_err());
    }

    #[test]
    fn invented_statements_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let key = signer().public_key();
        prop_assert!(verify(&bytes, &key, NONCE).is_err());
        prop_assert!(verify(&[&[0xd2, 0x84][..], &bytes].concat(), &key, NONCE).is_err());
        prop_assert!(Inventory::read(&bytes).is_err());
    }
}

/// Deep nesting does not exhaust the stack.
#[test]
fn nested_bytes_are_refused() {
    let key = signer().public_key();
    for byte in [0x81, 0xa1, 0xd2, 0x9f] {
        assert!(verify(&vec![byte; 1 << 20], &key, NONCE).is_err());
    }
    assert!(matches!(
        verify(&vec![0; (16 << 20) + 1], &key, NONCE),
        Err(StatementError::TooLong(_))
    ));
}
