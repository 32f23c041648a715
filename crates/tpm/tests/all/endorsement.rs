//! Certificate paths from an endorsement key to a root: accepted paths, and rejected paths with the reasons. The tests
//! need no TPM.

use aws_lc_rs::rsa::{KeyPair as RsaKeyPair, KeySize};
use linewarden_measurement::HashAlgorithm;
use linewarden_tpm::endorsement::{EkHash, Endorsement, EndorsementError, EndorsementTrust};
use linewarden_tpm::public::{Attributes, Kind, Public, Scheme, Symmetric};
use linewarden_tpm::template::{AttestationSigner, ENDORSEMENT_POLICY, EndorsementKey, TemplateError};
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SignatureAlgorithm, SigningKey as _,
    date_time_ymd,
};
use x509_parser::prelude::{FromDer as _, X509Certificate};

const NOW_S: i64 = 1_800_000_000;

const ENDORSEMENT_ATTRIBUTES: Attributes = Attributes::FIXED_TPM
    .union(Attributes::FIXED_PARENT)
    .union(Attributes::SENSITIVE_DATA_ORIGIN)
    .union(Attributes::ADMIN_WITH_POLICY)
    .union(Attributes::RESTRICTED)
    .union(Attributes::DECRYPT);

fn public(kind: Kind) -> Public {
    let attributes = ENDORSEMENT_ATTRIBUTES.bits().to_be_bytes();
    // Attributes deliberately have no constructor from bits: they come from TPM structures.
    let header = [&[0, 1, 0, 11][..], &attributes, &[0, 32], &ENDORSEMENT_POLICY].concat();
    let parameters = [
        &[0, 6, 0, 128, 0, 0x43, 0, 0x10, 8, 0, 0, 0, 0, 0, 1, 0][..],
        &[0x80; 256],
    ]
    .concat();
    let template = Public::from_bytes(&[header, parameters].concat()).unwrap();
    Public { kind, ..template }
}

/// A P-256 endorsement key and its public part for certificates.
struct P256(KeyPair);

impl P256 {
    fn new() -> Self {
        Self(KeyPair::generate().unwrap())
    }

    fn key(&self) -> EndorsementKey {
        let point = self.0.der_bytes();
        EndorsementKey::new(public(Kind::EccP256 {
            symmetric: Symmetric::AesCfb(128),
            scheme: Scheme::Null,
            x: point[1..33].to_vec(),
            y: point[33..].to_vec(),
        }))
        .unwrap()
    }
}

/// A CA with its certificate in DER.
struct Ca {
    issuer: Issuer<'static, KeyPair>,
    der: Vec<u8>,
}

fn ca_params(name: &str, path_len: Option<u8>) -> CertificateParams {
    let mut params = params(name);
    params.is_ca = IsCa::Ca(path_len.map_or(BasicConstraints::Unconstrained, BasicConstraints::Constrained));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    if !name.is_empty() {
        params.distinguished_name.push(DnType::CommonName, name);
    }
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2040, 1, 1);
    params
}

fn root_of(params: CertificateParams) -> Ca {
    let key = KeyPair::generate().unwrap();
    let der = params.self_signed(&key).unwrap().der().to_vec();
    Ca {
        issuer: Issuer::new(params, key),
        der,
    }
}

fn root(name: &str) -> Ca {
    root_of(ca_params(name, None))
}

impl Ca {
    fn issue_ca(&self, params: CertificateParams) -> Self {
        let key = KeyPair::generate().unwrap();
        let der = params.signed_by(&key, &self.issuer).unwrap().der().to_vec();
        Self {
            issuer: Issuer::new(params, key),
            der,
        }
    }

    fn issue(&self, params: &CertificateParams, key: &impl PublicKeyData) -> Vec<u8> {
        params.signed_by(key, &self.issuer).unwrap().der().to_vec()
    }
}

/// Certificate parameters as TPM manufacturers use them: no subject, and the TPM's model in a critical alternative name.
fn leaf_params() -> CertificateParams {
    let mut params = params("");
    params.key_usages = vec![KeyUsagePurpose::KeyAgreement];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::Other(vec![2, 23, 133, 8, 1])];
    params.custom_extensions = vec![extension(&[2, 5, 29, 17], &MODEL, true)];
    params
}

fn extension(oid: &[u64], content: &[u8], critical: bool) -> CustomExtension {
    let mut extension = CustomExtension::from_oid_content(oid, content.to_vec());
    extension.set_criticality(critical);
    extension
}

/// GeneralNames with one directoryName: 2.23.133.2.1 = "id:1".
const MODEL: [u8; 23] = [
    0x30, 0x15, 0xa4, 0x13, 0x30, 0x11, 0x31, 0x0f, 0x30, 0x0d, 0x06, 0x05, 0x67, 0x81, 0x05, 0x02, 0x01,
    0x0c, 0x04, b'i', b'd', b':', b'1',
];

fn trust(roots: &[&Ca], intermediates: &[&Ca]) -> EndorsementTrust {
    let mut trust = EndorsementTrust::new();
    for root in roots {
        trust.add_roots("root", &root.der).unwrap();
    }
    for intermediate in intermediates {
        trust
            .add_intermediates("intermediate", &intermediate.der)
            .unwrap();
    }
    trust
}

fn issuers(endorsement: Endorsement) -> Vec<String> {
    match endorsement {
        Endorsement::Certificate { issuers, .. } => issuers,
        Endorsement::Pinned => panic!("pinned, without a certificate"),
    }
}

#[track_caller]
fn assert_wrong_use(result: Result<Endorsement, EndorsementError>, expected: &str) {
    match result {
        Err(EndorsementError::WrongUse { reason, .. }) => assert!(reason.contains(expected), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn paths_use_certificates_of_the_operator_and_the_device() {
    let key = P256::new();
    let root = root("root");
    let upper = root.issue_ca(ca_params("upper", Some(1)));
    let lower = upper.issue_ca(ca_params("lower", Some(0)));
    let leaf = lower.issue(&leaf_params(), &key.0);
    let expected = ["CN=lower", "CN=upper", "CN=root"];
    let with_intermediates = trust(&[&root], &[&upper, &lower]);
    assert_eq!(
        issuers(
            with_intermediates
                .check(&key.key(), std::slice::from_ref(&leaf), NOW_S)
                .unwrap()
        ),
        expected
    );
    // The device has the intermediates in its TPM.
    let sent = [leaf.clone(), lower.der.clone(), upper.der.clone()];
    let only_root = trust(&[&root], &[]);
    assert_eq!(
        issuers(only_root.check(&key.key(), &sent, NOW_S).unwrap()),
        expected
    );
    // Without the intermediates, and with a root that only the device sent, there is no path.
    assert!(matches!(
        only_root.check(&key.key(), std::slice::from_ref(&leaf), NOW_S),
        Err(EndorsementError::UntrustedIssuer { issuer, .. }) if issuer == "CN=lower"
    ));
    let sent = [leaf, lower.der.clone(), upper.der.clone(), root.der.clone()];
    assert!(matches!(
        EndorsementTrust::new().check(&key.key(), &sent, NOW_S),
        Err(EndorsementError::UntrustedIssuer { .. })
    ));
}

#[test]
fn certificates_that_issue_each_other_end_the_search() {
    let key = P256::new();
    let first = root("loop");
    let second = first.issue_ca(ca_params("loop", None));
    let leaf = second.issue(&leaf_params(), &key.0);
    let sent = [leaf, second.der.clone(), first.der.clone(), first.der.clone()];
    EndorsementTrust::new()
        .check(&key.key(), &sent, NOW_S)
        .unwrap_err();
}

#[test]
fn certificates_of_unauthorized_issuers_are_refused() {
    let key = P256::new();
    let root = root("root");
    let check = |issuer: &Ca| {
        let leaf = issuer.issue(&leaf_params(), &key.0);
        trust(&[&root], &[issuer]).check(&key.key(), &[leaf], NOW_S)
    };
    let mut not_a_ca = ca_params("ca", None);
    not_a_ca.is_ca = IsCa::ExplicitNoCa;
    assert_wrong_use(check(&root.issue_ca(not_a_ca)), "it is not a CA certificate");
    let mut without_certificate_signing = ca_params("ca", None);
    without_certificate_signing.key_usages = vec![KeyUsagePurpose::CrlSign];
    assert_wrong_use(
        check(&root.issue_ca(without_certificate_signing)),
        "may not sign certificates",
    );
    let mut with_unknown_extension = ca_params("ca", None);
    with_unknown_extension.custom_extensions = vec![extension(&[1, 2, 3, 4], &[5, 0], true)];
    assert_wrong_use(
        check(&root.issue_ca(with_unknown_extension)),
        "1.2.3.4 is unknown",
    );
    let mut name_constrained = ca_params("ca", None);
    name_constrained.name_constraints = Some(rcgen::NameConstraints {
        permitted_subtrees: vec![rcgen::GeneralSubtree::DnsName("example".to_owned())],
        excluded_subtrees: Vec::new(),
    });
    assert_wrong_use(check(&root.issue_ca(name_constrained)), "2.5.29.30 is unknown");
    let mut expired = ca_params("ca", None);
    expired.not_after = date_time_ymd(2021, 1, 1);
    assert!(matches!(
        check(&root.issue_ca(expired)),
        Err(EndorsementError::OutsideValidity { subject, .. }) if subject == "CN=ca"
    ));
    // A CA issued a CA certificate although its own certificate forbids this.
    let without_sub_cas = root.issue_ca(ca_params("short", Some(0)));
    let forbidden_ca = without_sub_cas.issue_ca(ca_params("under", None));
    let leaf = forbidden_ca.issue(&leaf_params(), &key.0);
    assert_wrong_use(
        trust(&[&root], &[&without_sub_cas, &forbidden_ca]).check(&key.key(), &[leaf], NOW_S),
        "path length constraint",
    );
    // A CA that has the name of the trusted root, and another key.
    let forged = self::root("root").issue(&leaf_params(), &key.0);
    assert_wrong_use(
        trust(&[&root], &[]).check(&key.key(), &[forged], NOW_S),
        "its signature by",
    );
}

#[test]
fn certificates_that_are_not_for_endorsement_keys_are_refused() {
    let key = P256::new();
    let root = root("root");
    let check = |change: &dyn Fn(&mut CertificateParams)| {
        let mut params = leaf_params();
        change(&mut params);
        trust(&[&root], &[]).check(&key.key(), &[root.issue(&params, &key.0)], NOW_S)
    };
    assert_eq!(issuers(check(&|_| {}).unwrap()), ["CN=root"]);
    // Older certificates lack one of the usage extensions.
    check(&|params| params.extended_key_usages.clear()).unwrap();
    check(&|params| params.key_usages.clear()).unwrap();
    let attributes = extension(&[2, 5, 29, 9], &[0x30, 0], true);
    check(&|params| params.custom_extensions.push(attributes.clone())).unwrap();
    assert_wrong_use(
        check(&|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]),
        "extendedKeyUsage",
    );
    assert_wrong_use(
        check(&|params| params.key_usages = vec![KeyUsagePurpose::DigitalSignature]),
        "keyUsage",
    );
    assert_wrong_use(
        check(&|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)),
        "it is a CA certificate",
    );
    let unknown_extension = extension(&[1, 2, 3], &[5, 0], true);
    assert_wrong_use(
        check(&|params| params.custom_extensions.push(unknown_extension.clone())),
        "1.2.3 is unknown",
    );
    let second_name = extension(&[2, 5, 29, 17], &MODEL, true);
    assert_wrong_use(
        check(&|params| params.custom_extensions.push(second_name.clone())),
        "duplicate extension",
    );
    for (from, to) in [(2010, 2011), (2039, 2040)] {
        let result = check(&|params| {
            params.not_before = date_time_ymd(from, 1, 1);
            params.not_after = date_time_ymd(to, 1, 1);
        });
        assert!(
            matches!(result, Err(EndorsementError::OutsideValidity { now: NOW_S, .. })),
            "{from}"
        );
    }
}

#[test]
fn a_certificate_is_valid_to_the_last_second_of_its_validity() {
    let key = P256::new();
    let root = root("root");
    let trust = trust(&[&root], &[]);
    let leaf = [root.issue(&leaf_params(), &key.0)];
    let (from, to) = (1_577_836_800, 2_208_988_800);
    for (now_s, valid) in [(from - 1, false), (from, true), (to, true), (to + 1, false)] {
        assert_eq!(trust.check(&key.key(), &leaf, now_s).is_ok(), valid, "{now_s}");
    }
}

/// The public part of an RSA key: RSAPublicKey.
struct Rsa {
    der: Vec<u8>,
}

impl PublicKeyData for Rsa {
    fn der_bytes(&self) -> &[u8] {
        &self.der
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_RSA_SHA256
    }
}

/// Returns the certificate with the key type RSAES-OAEP and a new signature. Some manufacturers write this key type.
fn with_rsaes_oaep_key_type(leaf: &[u8], issuer: &KeyPair) -> Vec<u8> {
    const RSA_ENCRYPTION_OID: [u8; 11] = [6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1];
    const ECDSA_SHA256: [u8; 12] = [0x30, 10, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
    let (_, certificate) = X509Certificate::from_der(leaf).unwrap();
    let mut signed = certificate.tbs_certificate.as_ref().to_vec();
    let start = signed
        .windows(RSA_ENCRYPTION_OID.len())
        .position(|bytes| bytes == RSA_ENCRYPTION_OID)
        .unwrap();
    signed[start + RSA_ENCRYPTION_OID.len() - 1] = 7;
    let signature = issuer.sign(&signed).unwrap();
    let bits = [
        &[3, u8::try_from(signature.len() + 1).unwrap(), 0][..],
        &signature,
    ]
    .concat();
    let content = [&signed[..], &ECDSA_SHA256, &bits].concat();
    let length = u16::try_from(content.len()).unwrap().to_be_bytes();
    [&[0x30, 0x82][..], &length, &content].concat()
}

#[test]
fn rsa_keys_are_found_in_their_certificates() {
    use aws_lc_rs::signature::KeyPair as _;

    let key_pair = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    let der = key_pair.public_key().as_ref().to_vec();
    // The DER is a SEQUENCE header, then an INTEGER with a zero in front of 256 bytes.
    let modulus = der[9..265].to_vec();
    let key = |modulus: Vec<u8>| {
        EndorsementKey::new(public(Kind::Rsa {
            symmetric: Symmetric::AesCfb(128),
            scheme: Scheme::Null,
            modulus,
            is_exponent_explicit: false,
        }))
        .unwrap()
    };
    let root = root("root");
    let mut params = leaf_params();
    params.key_usages = vec![KeyUsagePurpose::KeyEncipherment];
    let leaf = root.issue(&params, &Rsa { der });
    let trust = trust(&[&root], &[]);
    for leaf in [leaf.clone(), with_rsaes_oaep_key_type(&leaf, root.issuer.key())] {
        trust.check(&key(modulus.clone()), &[leaf], NOW_S).unwrap();
    }
    let mut other_modulus = modulus;
    other_modulus[100] ^= 1;
    assert_eq!(
        trust.check(&key(other_modulus), &[leaf], NOW_S),
        Err(EndorsementError::KeyMismatch)
    );
}

#[test]
fn invalid_certificates_are_refused_with_their_name() {
    let key = P256::new();
    let root = root("root");
    let mut trust = trust(&[&root], &[]);
    let leaf = root.issue(&leaf_params(), &key.0);
    for certificate in [
        Vec::new(),
        leaf[..leaf.len() - 1].to_vec(),
        [&leaf[..], &[0]].concat(),
        vec![0x30; 20_000],
    ] {
        assert!(matches!(
            trust.check(&key.key(), &[certificate], NOW_S),
            Err(EndorsementError::InvalidCertificate { .. })
        ));
    }
    for file in [
        &b""[..],
        b"-----BEGIN NOTHING-----\n-----END NOTHING-----\n",
        b"\x30\x00",
    ] {
        let error = trust.add_roots("roots.pem", file).unwrap_err();
        assert!(
            error.to_string().starts_with("roots.pem is not a certificate"),
            "{error}"
        );
    }
}

#[test]
fn a_pin_matches_one_key_only() {
    let (key, other_key) = (P256::new().key(), P256::new().key());
    let mut trust = EndorsementTrust::new();
    trust.pin(EkHash::of_key(&key));
    assert_eq!(trust.check(&key, &[], NOW_S), Ok(Endorsement::Pinned));
    assert_eq!(
        trust.check(&other_key, &[], NOW_S),
        Err(EndorsementError::NoEndorsement)
    );
}

#[test]
fn public_areas_that_match_no_template_are_refused() {
    let valid = P256::new().key().public().clone();
    let refusal_of = |change: &dyn Fn(&mut Public)| {
        let mut public = valid.clone();
        change(&mut public);
        EndorsementKey::new(public).unwrap_err()
    };
    assert!(matches!(
        refusal_of(&|key| key.attributes = key.attributes.union(Attributes::USER_WITH_AUTH)),
        TemplateError::WrongAttributes { .. }
    ));
    assert_eq!(
        refusal_of(&|key| key.auth_policy.clear()),
        TemplateError::WrongPolicy
    );
    assert_eq!(
        refusal_of(&|key| key.auth_policy[0] ^= 1),
        TemplateError::WrongPolicy
    );
    assert_eq!(
        refusal_of(&|key| key.name_alg = HashAlgorithm::Sha384),
        TemplateError::WrongPolicy
    );
    assert!(matches!(
        refusal_of(&|key| {
            if let Kind::EccP256 { symmetric, .. } = &mut key.kind {
                *symmetric = Symmetric::AesCfb(256);
            }
        }),
        TemplateError::WrongParameters { .. }
    ));
    // An endorsement key is rejected as an attestation key, too.
    assert!(matches!(
        AttestationSigner::new(valid),
        Err(TemplateError::WrongAttributes { .. })
    ));
}
