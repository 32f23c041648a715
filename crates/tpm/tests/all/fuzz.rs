//! Untrusted bytes: TPM structures, certificates and messages are parsed or rejected. Each parsed TPM structure has
//! exactly one encoding.

use std::sync::OnceLock;

use linewarden_measurement::pcr::PcrValues;
use linewarden_measurement::{Digest, HashAlgorithm};
use linewarden_tpm::ProtectError;
use linewarden_tpm::attest::Quote;
use linewarden_tpm::endorsement::{EkHash, EndorsementTrust};
use linewarden_tpm::enroll::{
    self, EnrollError, Enrollment, Identity, KeyOffer, OfferResponse, PcrReport, Version, from_json,
};
use linewarden_tpm::policy::PcrPolicy;
use linewarden_tpm::public::Public;
use linewarden_tpm::signature::Signature;
use linewarden_tpm::template::{AttestationSigner, ENDORSEMENT_POLICY, EndorsementKey};
use proptest::collection::vec;
use proptest::prelude::*;
use rand::SeedableRng as _;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, PublicKeyData as _, date_time_ymd};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// TPMT_PUBLIC structures: the templates L-1 and L-2, an ECDSA attestation key, an HMAC key.
fn publics() -> [Vec<u8>; 4] {
    let endorsement = |kind: u8| [&[0, kind, 0, 11, 0, 3, 0, 0xb2, 0, 32][..], &ENDORSEMENT_POLICY].concat();
    let point = [&[0, 32][..], &[7; 32], &[0, 32], &[9; 32]].concat();
    let aes = [0, 6, 0, 128, 0, 0x43];
    [
        [
            &endorsement(1)[..],
            &aes,
            &[0, 16, 8, 0, 0, 0, 0, 0, 1, 0],
            &[0x91; 256],
        ]
        .concat(),
        [&endorsement(0x23)[..], &aes, &[0, 16, 0, 3, 0, 16], &point].concat(),
        [
            &[
                0, 0x23, 0, 11, 0, 5, 4, 0x72, 0, 0, 0, 16, 0, 0x18, 0, 11, 0, 3, 0, 16,
            ][..],
            &point,
        ]
        .concat(),
        [
            &[0, 8, 0, 11, 0, 4, 4, 0x80, 0, 32][..],
            &[5; 32],
            &[0, 5, 0, 11, 0, 32],
            &[6; 32],
        ]
        .concat(),
    ]
}

fn quote() -> Vec<u8> {
    [
        &[0xff, 0x54, 0x43, 0x47, 0x80, 0x18, 0, 34, 0, 11][..],
        &[1; 32],
        &[0, 32],
        &[2; 32],
        &[3; 16],
        &[1],
        &[4; 8],
        &[0, 0, 0, 1, 0, 11, 3, 0xff, 0, 1, 0, 32],
        &[5; 32],
    ]
    .concat()
}

fn signatures() -> [Vec<u8>; 3] {
    let rsa = |scheme: u8| [&[0, scheme, 0, 11, 1, 0][..], &[8; 256]].concat();
    let ecdsa = [&[0, 0x18, 0, 11, 0, 32][..], &[1; 32], &[0, 31], &[2; 31]].concat();
    [rsa(0x14), rsa(0x16), ecdsa]
}

/// A TPM manufacturer's root certificate, an endorsement key with its certificate, and the device's first message.
struct EnrollmentFixture {
    root: Vec<u8>,
    certificate: Vec<u8>,
    key: EndorsementKey,
    identity: Identity,
}

const NOW_S: i64 = 1_800_000_000;

fn enrollment_fixture() -> &'static EnrollmentFixture {
    static FIXTURE: OnceLock<EnrollmentFixture> = OnceLock::new();
    FIXTURE.get_or_init(|| {
        let mut root_params = CertificateParams::default();
        root_params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root_key = KeyPair::generate().unwrap();
        let root = root_params.self_signed(&root_key).unwrap().der().to_vec();
        let endorsement_key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.not_after = date_time_ymd(2100, 1, 1);
        let issuer = Issuer::new(root_params, root_key);
        let certificate = params
            .signed_by(&endorsement_key, &issuer)
            .unwrap()
            .der()
            .to_vec();
        let mut bytes = publics()[1].clone();
        let point = bytes.len() - 68;
        bytes[point + 2..point + 34].copy_from_slice(&endorsement_key.der_bytes()[1..33]);
        bytes[point + 36..].copy_from_slice(&endorsement_key.der_bytes()[33..]);
        let public = Public::from_bytes(&bytes).unwrap();
        let mut pcrs = PcrValues::new(HashAlgorithm::Sha256);
        pcrs.set(7.try_into().unwrap(), Digest::ones(HashAlgorithm::Sha256))
            .unwrap();
        let identity = Identity {
            version: Version,
            endorsement_key: public.to_sized(),
            certificates: vec![certificate.clone()],
            attestation_key: Public::from_bytes(&publics()[2]).unwrap().to_sized(),
            pcrs: PcrReport(pcrs),
            event_log: Some(vec![0; 9]),
        };
        EnrollmentFixture {
            root,
            certificate,
            key: EndorsementKey::new(public).unwrap(),
            identity,
        }
    })
}

fn offer(identity: &Identity, trust: &EndorsementTrust) -> Result<(KeyOffer, Enrollment), EnrollError> {
    let policy = PcrPolicy::new(std::slice::from_ref(&enrollment_fixture().identity.pcrs.0)).unwrap();
    let mut rng = rand_chacha::ChaCha20Rng::seed_from_u64(1);
    enroll::offer(identity, trust, policy, NOW_S, &mut rng)
}

fn manufacturer_trust() -> EndorsementTrust {
    let mut trust = EndorsementTrust::new();
    trust.add_roots("root", &enrollment_fixture().root).unwrap();
    trust
}

/// A list of changes. Each change is a position as a fraction of the length, a byte and the kind of change.
fn edits() -> impl Strategy<Value = Vec<(f64, u8, u8)>> {
    vec((0.0..1.0, any::<u8>(), 0u8..6), 0..5)
}

fn edited(bytes: &[u8], edits: &[(f64, u8, u8)]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (share, value, operation) in edits {
        // The control fields are at the start: half of the changes go there.
        let range = if value & 1 == 0 {
            bytes.len()
        } else {
            bytes.len().min(64)
        };
        let index = (share * range as f64) as usize;
        match operation {
            0 => bytes.truncate(index),
            1 => bytes.insert(index, *value),
            2 if index < bytes.len() => drop(bytes.remove(index)),
            3 => bytes.extend_from_within(index..),
            _ if index < bytes.len() => bytes[index] ^= value | 1,
            _ => {}
        }
    }
    bytes
}

/// Runs all parsers on the same bytes and checks that the offset of an error is within the bytes.
fn parse_all(bytes: &[u8]) -> Result<(), TestCaseError> {
    match Public::from_bytes(bytes) {
        Ok(public) => {
            prop_assert_eq!(public.to_bytes(), bytes);
            prop_assert_eq!(Public::from_sized(&public.to_sized()), Ok(public));
        }
        Err(error) => prop_assert!(error.offset <= bytes.len(), "{}", error),
    }
    match Quote::from_bytes(bytes) {
        Ok(quote) => prop_assert_eq!(quote.to_bytes(), bytes),
        Err(error) => prop_assert!(error.offset <= bytes.len(), "{}", error),
    }
    match Signature::from_bytes(bytes) {
        Ok(signature) => prop_assert_eq!(signature.to_bytes(), bytes),
        Err(error) => prop_assert!(error.offset <= bytes.len(), "{}", error),
    }
    Ok(())
}

#[test]
fn unedited_structures_are_valid() {
    for public in publics() {
        Public::from_bytes(&public).unwrap();
    }
    for signature in signatures() {
        Signature::from_bytes(&signature).unwrap();
    }
    Quote::from_bytes(&quote()).unwrap();
    let fixture = enrollment_fixture();
    offer(&fixture.identity, &manufacturer_trust()).unwrap();
    let signer = Public::from_bytes(&publics()[2]).unwrap();
    AttestationSigner::new(signer).unwrap();
}

#[test]
fn offers_are_the_same_for_the_same_randomness() {
    let identity = &enrollment_fixture().identity;
    let (first, second) = (
        offer(identity, &manufacturer_trust()).unwrap(),
        offer(identity, &manufacturer_trust()).unwrap(),
    );
    assert_eq!(first.0, second.0);
}

#[test]
fn a_key_that_is_not_on_its_curve_gets_no_offer() {
    let public = Public::from_bytes(&publics()[1]).unwrap();
    let mut trust = EndorsementTrust::new();
    trust.pin(EkHash::of_key(&EndorsementKey::new(public.clone()).unwrap()));
    let identity = Identity {
        endorsement_key: public.to_sized(),
        ..enrollment_fixture().identity.clone()
    };
    assert_eq!(
        offer(&identity, &trust).unwrap_err(),
        EnrollError::EncryptionFailed(ProtectError::InvalidPublicKey)
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn edited_structures_are_refused_or_canonical(structure_index in 0..8usize, changes in edits()) {
        let structures = [&publics()[..], &signatures()[..], &[quote()][..]].concat();
        parse_all(&edited(&structures[structure_index], &changes))?;
    }

    #[test]
    fn any_bytes_are_refused_or_canonical(head_index in 0..6usize, tail in vec(any::<u8>(), 0..200)) {
        let heads = [
            &b"\0\x01\0\x0b\0\x03\0\xb2\0\0\0\x10\0\x10"[..],
            b"\0\x23\0\x0b\0\x05\x04\x72\0\0\0\x10\0\x18\0\x0b\0\x03\0\x10",
            b"\xff\x54\x43\x47\x80\x18",
            b"\0\x18\0\x0b",
            b"\0\x14\0\x0b",
            b"",
        ];
        parse_all(&[heads[head_index], &tail].concat())?;
    }

    /// The key has signed nothing: no bytes are a valid signature.
    #[test]
    fn edited_signatures_do_not_verify(changes in edits(), message in vec(any::<u8>(), 0..100)) {
        let key = Public::from_bytes(&publics()[2]).unwrap();
        if let Ok(signature) = Signature::from_bytes(&edited(&signatures()[2], &changes)) {
            prop_assert!(signature.verify(&key, &message).is_err());
        }
    }

    #[test]
    fn any_bytes_are_refused_as_certificates(head_index in 0..3usize, tail in vec(any::<u8>(), 0..200)) {
        let heads = [&b"\x30\x82\x01\x00\x30\x81\xf0\xa0\x03\x02\x01\x02"[..], b"-----BEGIN CERTIFICATE-----\n", b""];
        prop_assert!(EndorsementTrust::new().add_roots("any", &[heads[head_index], &tail].concat()).is_err());
    }

    /// An edited certificate is refused if the signed content changed.
    #[test]
    fn edited_certificates_are_refused_or_have_the_same_content(changes in edits()) {
        let fixture = enrollment_fixture();
        let bytes = edited(&fixture.certificate, &changes);
        if manufacturer_trust().check(&fixture.key, std::slice::from_ref(&bytes), NOW_S).is_ok() {
            let signed = |der: &[u8]| X509Certificate::from_der(der).unwrap().1.tbs_certificate.as_ref().to_vec();
            prop_assert_eq!(signed(&bytes), signed(&fixture.certificate));
        }
    }

    /// An edited identity is refused, or gets an offer for the same endorsement key.
    #[test]
    fn edited_identities_are_refused_or_have_the_same_endorsement_key(changes in edits()) {
        let valid = &enrollment_fixture().identity;
        let bytes = edited(&serde_json::to_vec(valid).unwrap(), &changes);
        if let Ok(identity) = from_json::<Identity>(&bytes) {
            prop_assert_eq!(from_json::<Identity>(&serde_json::to_vec(&identity).unwrap()).unwrap(), identity.clone());
            if offer(&identity, &manufacturer_trust()).is_ok() {
                prop_assert_eq!(&identity.endorsement_key, &valid.endorsement_key);
            }
        }
    }

    #[test]
    fn any_bytes_are_refused_as_messages(tail in vec(any::<u8>(), 0..200), head_index in 0..3usize) {
        let bytes = [&b"{\"version\":1,"[..], b"{\"version\":1,\"nonce\":\"00\",", b""][head_index].iter().copied();
        let bytes: Vec<u8> = bytes.chain(tail).collect();
        prop_assert!(from_json::<Identity>(&bytes).is_err());
        prop_assert!(from_json::<KeyOffer>(&bytes).is_err());
        prop_assert!(from_json::<OfferResponse>(&bytes).is_err());
        prop_assert!(from_json::<Enrollment>(&bytes).is_err());
    }
}
