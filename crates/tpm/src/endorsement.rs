//! Verification that an endorsement key belongs to a real TPM: by the manufacturer's certificate, or because the operator
//! pinned the key.
//!
//! The operator provides the manufacturers' root and intermediate certificates. The path from the key's certificate to a
//! root is found and checked by the parts of RFC 5280 that endorsement certificates need: names, signatures (SHA-1 is
//! rejected), validity at a given time, permission to issue certificates, path length, and no unknown critical extension.
//! Known deviations of TPM manufacturers are accepted: an empty subject, with the TPM's manufacturer and model in a critical
//! subjectAltName; RSA keys under the identifier of RSAES-OAEP; no extendedKeyUsage in older certificates. Revocation
//! is not checked, because that needs I/O.

use std::fmt;

use serde::{Deserialize, Serialize};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{ParsedExtension, X509Extension};
use x509_parser::oid_registry::{Oid, asn1_rs::oid};
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::RSAPublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::kdf::sha256;
use crate::public::{Kind, sec1};
use crate::template::EndorsementKey;

/// Maximum number of certificates on a path, including the leaf and the root.
const PATH_MAX: usize = 6;
/// Maximum length of a certificate, bytes. Endorsement certificates have one to two thousand bytes.
const CERTIFICATE_BYTES_MAX: usize = 16 * 1_024;
/// Maximum number of certificates that a device may send in addition to the endorsement key's certificate.
pub const SENT_CERTIFICATES_MAX: usize = 5;

const EK_USAGE: Oid<'static> = oid!(2.23.133.8.1);
const RSA_ENCRYPTION: Oid<'static> = oid!(1.2.840.113549.1.1.1);
const RSAES_OAEP: Oid<'static> = oid!(1.2.840.113549.1.1.7);
const EC_PUBLIC_KEY: Oid<'static> = oid!(1.2.840.10045.2.1);
const P256: Oid<'static> = oid!(1.2.840.10045.3.1.7);
const SHA1_SIGNATURES: [Oid<'static>; 3] = [
    oid!(1.2.840.113549.1.1.5),
    oid!(1.3.14.3.2.29),
    oid!(1.2.840.10045.4.1),
];
/// Allowed critical extensions of certificates on a path. The first three are checked; the others are descriptive:
/// alternative names, policies, directory attributes (TPM specification).
const KNOWN_CRITICAL_EXTENSIONS: [Oid<'static>; 6] = [
    oid!(2.5.29.19),
    oid!(2.5.29.15),
    oid!(2.5.29.37),
    oid!(2.5.29.17),
    oid!(2.5.29.32),
    oid!(2.5.29.9),
];

/// SHA-256 over TPMT_PUBLIC of an endorsement key; operators pin this hash. `tpm2_createek -f tss` writes the structure
/// with two bytes of size in front, which are not part of the hash input.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EkHash(#[serde(with = "crate::encoding::hex_array")] [u8; 32]);

impl EkHash {
    /// The hash of this key.
    pub fn of_key(key: &EndorsementKey) -> Self {
        Self(sha256(&[&key.public().to_bytes()]))
    }
}

impl From<[u8; 32]> for EkHash {
    fn from(hash: [u8; 32]) -> Self {
        Self(hash)
    }
}

impl fmt::Display for EkHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for EkHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EkHash({self})")
    }
}

/// The endorsement of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "lowercase", deny_unknown_fields)]
pub enum Endorsement {
    /// A certificate with a path to one of the operator's roots.
    Certificate {
        /// SHA-256 of the certificate.
        #[serde(with = "crate::encoding::hex_array")]
        sha256: [u8; 32],
        /// The issuer of each certificate of the path, up to the root.
        issuers: Vec<String>,
    },
    /// The operator pinned the key by its hash; no certificate was checked.
    Pinned,
}

/// Why a key is not endorsed, or why an operator's certificates cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndorsementError {
    /// There is no certificate, and the key is not pinned.
    #[error("endorsement key not trusted: it has no certificate and is not pinned")]
    NoEndorsement,
    /// Not a certificate.
    #[error("{name} is not a certificate in DER or PEM: {reason}")]
    InvalidCertificate {
        /// The name of the input.
        name: String,
        /// The error of the parser.
        reason: String,
    },
    /// The certificate is for another key.
    #[error("the certificate is for another endorsement key")]
    KeyMismatch,
    /// The time is before or after the validity period.
    #[error(
        "certificate of {subject} rejected: the certificate is valid from {from} to {to} (Unix time), but the time is {now}"
    )]
    OutsideValidity {
        /// The subject of the certificate.
        subject: String,
        /// First second of the validity, Unix time.
        from: i64,
        /// Last second of the validity, Unix time.
        to: i64,
        /// The time of the check, Unix time.
        now: i64,
    },
    /// The certificate is not for an endorsement key, or may not be used in this position.
    #[error("certificate of {subject} rejected: {reason}")]
    WrongUse {
        /// The subject of the certificate.
        subject: String,
        /// What is wrong.
        reason: String,
    },
    /// No trusted certificate has the name of the issuer, or none with this name has signed the certificate.
    #[error("certificate of {subject} is not trusted: its issuer {issuer} is unknown or did not sign it")]
    UntrustedIssuer {
        /// The subject of the certificate.
        subject: String,
        /// The stated issuer.
        issuer: String,
    },
}

/// Trust anchors of the operator: manufacturers' certificates and pinned keys.
#[derive(Clone, Debug, Default)]
pub struct EndorsementTrust {
    roots: Vec<Vec<u8>>,
    intermediates: Vec<Vec<u8>>,
    pins: Vec<EkHash>,
}

impl EndorsementTrust {
    /// No trusted certificates and keys.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds root certificates: one in DER, or any number in PEM. `name` identifies the certificates in errors.
    ///
    /// # Errors
    /// There is no valid certificate.
    pub fn add_roots(&mut self, name: &str, bytes: &[u8]) -> Result<(), EndorsementError> {
        self.roots.extend(read_all(name, bytes)?);
        Ok(())
    }

    /// Adds intermediate certificates, which are trusted only under a root.
    ///
    /// # Errors
    /// There is no valid certificate.
    pub fn add_intermediates(&mut self, name: &str, bytes: &[u8]) -> Result<(), EndorsementError> {
        self.intermediates.extend(read_all(name, bytes)?);
        Ok(())
    }

    /// Trusts a key, with or without a certificate.
    pub fn pin(&mut self, key: EkHash) {
        self.pins.push(key);
    }

    /// Checks that `key` belongs to a TPM: the key is pinned, or its certificate has a path to a root at the time `now_s`
    /// (Unix time in seconds). `sent` has the certificates from the device: first the key's certificate, then further
    /// certificates of the path.
    ///
    /// # Errors
    /// The key is not pinned, and its certificate is missing, invalid, or without a valid path to a root.
    pub fn check(
        &self,
        key: &EndorsementKey,
        sent: &[Vec<u8>],
        now_s: i64,
    ) -> Result<Endorsement, EndorsementError> {
        if self.pins.contains(&EkHash::of_key(key)) {
            return Ok(Endorsement::Pinned);
        }
        let (leaf_der, others) = sent.split_first().ok_or(EndorsementError::NoEndorsement)?;
        let leaf = parse("the endorsement certificate", leaf_der)?;
        if !certifies_key(&leaf, key) {
            return Err(EndorsementError::KeyMismatch);
        }
        check_time(&leaf, now_s)?;
        check_leaf(&leaf, key)?;
        let roots = parse_all("a root", &self.roots)?;
        let mut intermediates = parse_all("an intermediate", &self.intermediates)?;
        // A certificate from the device is trusted only with a path to a root. Damaged certificates are skipped.
        intermediates.extend(
            others
                .iter()
                .take(SENT_CERTIFICATES_MAX)
                .filter_map(|der| parse("sent", der).ok()),
        );
        let path = PathBuilder {
            roots: &roots,
            intermediates: &intermediates,
            now_s,
        };
        let mut issuers = Vec::new();
        path.find_issuers(&leaf, 0, &mut issuers)?;
        Ok(Endorsement::Certificate {
            sha256: sha256(&[leaf_der]),
            issuers,
        })
    }
}

/// Searches these certificates for a path to a root.
struct PathBuilder<'a> {
    roots: &'a [X509Certificate<'a>],
    intermediates: &'a [X509Certificate<'a>],
    now_s: i64,
}

impl PathBuilder<'_> {
    /// Finds the issuers of `certificate` up to a root, and inserts them into `issuers`. `intermediate_count` is the number of
    /// intermediate certificates between the leaf and the issuer of `certificate`.
    fn find_issuers(
        &self,
        certificate: &X509Certificate<'_>,
        intermediate_count: usize,
        issuers: &mut Vec<String>,
    ) -> Result<(), EndorsementError> {
        let mut last_error = EndorsementError::UntrustedIssuer {
            subject: subject(certificate),
            issuer: certificate.issuer().to_string(),
        };
        if intermediate_count + 2 > PATH_MAX {
            return Err(last_error);
        }
        let has_issuer_name =
            |issuer: &&X509Certificate<'_>| issuer.subject().as_raw() == certificate.issuer().as_raw();
        for issuer in self.roots.iter().filter(has_issuer_name) {
            match self.check_issued_by(certificate, issuer, intermediate_count) {
                Ok(()) => {
                    issuers.insert(0, issuer.subject().to_string());
                    return Ok(());
                }
                Err(error) => last_error = error,
            }
        }
        for issuer in self.intermediates.iter().filter(has_issuer_name) {
            let result = self
                .check_issued_by(certificate, issuer, intermediate_count)
                .and_then(|()| self.find_issuers(issuer, intermediate_count + 1, issuers));
            match result {
                Ok(()) => {
                    issuers.insert(0, issuer.subject().to_string());
                    return Ok(());
                }
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }

    /// Checks that `issuer` has issued `certificate` and is permitted to issue certificates.
    fn check_issued_by(
        &self,
        certificate: &X509Certificate<'_>,
        issuer: &X509Certificate<'_>,
        intermediate_count: usize,
    ) -> Result<(), EndorsementError> {
        check_signature(certificate, issuer)?;
        check_time(issuer, self.now_s)?;
        check_issuer(issuer, intermediate_count)
    }
}

fn read_all(name: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, EndorsementError> {
    let invalid = |reason: String| EndorsementError::InvalidCertificate {
        name: name.to_owned(),
        reason,
    };
    if bytes.first() == Some(&0x30) {
        parse(name, bytes)?;
        return Ok(vec![bytes.to_vec()]);
    }
    let mut certificates = Vec::new();
    for pem in Pem::iter_from_buffer(bytes) {
        let pem = pem.map_err(|error| invalid(error.to_string()))?;
        if pem.label == "CERTIFICATE" {
            parse(name, &pem.contents)?;
            certificates.push(pem.contents);
        }
    }
    match certificates.is_empty() {
        true => Err(invalid("no certificate found".to_owned())),
        false => Ok(certificates),
    }
}

fn parse_all<'a>(name: &str, ders: &'a [Vec<u8>]) -> Result<Vec<X509Certificate<'a>>, EndorsementError> {
    ders.iter().map(|der| parse(name, der)).collect()
}

fn parse<'a>(name: &str, der: &'a [u8]) -> Result<X509Certificate<'a>, EndorsementError> {
    let invalid = |reason: String| EndorsementError::InvalidCertificate {
        name: name.to_owned(),
        reason,
    };
    if der.len() > CERTIFICATE_BYTES_MAX {
        return Err(invalid(format!(
            "too long: {} bytes, the maximum is {CERTIFICATE_BYTES_MAX}",
            der.len()
        )));
    }
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        Ok((rest, _)) => Err(invalid(format!("{} trailing bytes", rest.len()))),
        Err(error) => Err(invalid(error.to_string())),
    }
}

/// The subject, or a replacement text, because many endorsement certificates have no subject.
fn subject(certificate: &X509Certificate<'_>) -> String {
    match certificate.subject().to_string() {
        empty if empty.is_empty() => format!("a TPM (serial number {})", certificate.raw_serial_as_string()),
        subject => subject,
    }
}

fn wrong_use(certificate: &X509Certificate<'_>, reason: impl Into<String>) -> EndorsementError {
    EndorsementError::WrongUse {
        subject: subject(certificate),
        reason: reason.into(),
    }
}

fn certifies_key(certificate: &X509Certificate<'_>, key: &EndorsementKey) -> bool {
    match &key.public().kind {
        Kind::Rsa { modulus, .. } => {
            rsa_modulus(certificate.public_key()).is_some_and(|certified| certified == *modulus)
        }
        Kind::EccP256 { x, y, .. } => p256_point(certificate.public_key())
            .zip(sec1(x, y))
            .is_some_and(|(certified, point)| certified == point),
        Kind::KeyedHash { .. } => false,
    }
}

/// The modulus of an RSA key with the exponent 65,537.
fn rsa_modulus<'a>(info: &'a SubjectPublicKeyInfo<'_>) -> Option<&'a [u8]> {
    let algorithm = &info.algorithm.algorithm;
    if *algorithm != RSA_ENCRYPTION && *algorithm != RSAES_OAEP {
        return None;
    }
    let (rest, key) = RSAPublicKey::from_der(&info.subject_public_key.data).ok()?;
    let modulus = match key.modulus {
        [0, modulus @ ..] | modulus => modulus,
    };
    (rest.is_empty() && key.exponent == [1, 0, 1]).then_some(modulus)
}

fn p256_point<'a>(info: &'a SubjectPublicKeyInfo<'_>) -> Option<&'a [u8]> {
    let curve = info.algorithm.parameters.as_ref()?.as_oid().ok()?;
    (info.algorithm.algorithm == EC_PUBLIC_KEY && curve == P256).then_some(&info.subject_public_key.data)
}

fn check_time(certificate: &X509Certificate<'_>, now_s: i64) -> Result<(), EndorsementError> {
    let validity = certificate.validity();
    let (from, to) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    match (from..=to).contains(&now_s) {
        true => Ok(()),
        false => Err(EndorsementError::OutsideValidity {
            subject: subject(certificate),
            from,
            to,
            now: now_s,
        }),
    }
}

fn check_signature(
    certificate: &X509Certificate<'_>,
    issuer: &X509Certificate<'_>,
) -> Result<(), EndorsementError> {
    let algorithm = &certificate.signature_algorithm;
    if *algorithm != certificate.tbs_certificate.signature {
        return Err(wrong_use(certificate, "it names two signature algorithms"));
    }
    if SHA1_SIGNATURES.contains(&algorithm.algorithm) {
        return Err(wrong_use(
            certificate,
            "its signature uses SHA-1, which is broken",
        ));
    }
    certificate
        .verify_signature(Some(issuer.public_key()))
        .map_err(|error| {
            wrong_use(
                certificate,
                format!("its signature by {}: {error}", issuer.subject()),
            )
        })
}

/// Returns all extensions of the certificate, or an error for a duplicate or an unknown critical extension.
fn extensions<'a, 'c>(
    certificate: &'a X509Certificate<'c>,
) -> Result<&'a [X509Extension<'c>], EndorsementError> {
    certificate
        .extensions_map()
        .map_err(|_| wrong_use(certificate, "it has a duplicate extension"))?;
    for extension in certificate.extensions() {
        if extension.critical && !KNOWN_CRITICAL_EXTENSIONS.contains(&extension.oid) {
            let reason = format!("its critical extension {} is unknown", extension.oid);
            return Err(wrong_use(certificate, reason));
        }
    }
    Ok(certificate.extensions())
}

fn check_leaf(certificate: &X509Certificate<'_>, key: &EndorsementKey) -> Result<(), EndorsementError> {
    let is_rsa = matches!(key.public().kind, Kind::Rsa { .. });
    for extension in extensions(certificate)? {
        match extension.parsed_extension() {
            ParsedExtension::BasicConstraints(constraints) if constraints.ca => {
                return Err(wrong_use(
                    certificate,
                    "it is a CA certificate, not an endorsement key certificate",
                ));
            }
            ParsedExtension::KeyUsage(usage) => {
                let has_usage = match is_rsa {
                    true => usage.key_encipherment(),
                    false => usage.key_agreement(),
                };
                if !has_usage {
                    return Err(wrong_use(
                        certificate,
                        "its keyUsage is not that of an endorsement key",
                    ));
                }
            }
            ParsedExtension::ExtendedKeyUsage(usage) if !usage.any && !usage.other.contains(&EK_USAGE) => {
                return Err(wrong_use(
                    certificate,
                    "its extendedKeyUsage is not tcg-kp-EKCertificate",
                ));
            }
            ParsedExtension::ParseError { .. }
                if extension.critical && is_checked_extension(&extension.oid) =>
            {
                return Err(wrong_use(certificate, "a critical extension cannot be parsed"));
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_issuer(
    certificate: &X509Certificate<'_>,
    intermediate_count: usize,
) -> Result<(), EndorsementError> {
    let mut may_issue = false;
    for extension in extensions(certificate)? {
        match extension.parsed_extension() {
            ParsedExtension::BasicConstraints(constraints) => {
                may_issue = constraints.ca;
                let intermediates_max = constraints.path_len_constraint;
                if intermediates_max
                    .is_some_and(|max| intermediate_count > usize::try_from(max).unwrap_or(usize::MAX))
                {
                    return Err(wrong_use(certificate, "its path length constraint is exceeded"));
                }
            }
            ParsedExtension::KeyUsage(usage) if !usage.key_cert_sign() => {
                return Err(wrong_use(certificate, "its key may not sign certificates"));
            }
            ParsedExtension::ParseError { .. } if is_checked_extension(&extension.oid) => {
                return Err(wrong_use(certificate, "an extension cannot be parsed"));
            }
            _ => {}
        }
    }
    match may_issue {
        true => Ok(()),
        false => Err(wrong_use(certificate, "it is not a CA certificate")),
    }
}

/// Whether this extension is checked: basicConstraints, keyUsage or extendedKeyUsage.
fn is_checked_extension(extension: &Oid<'_>) -> bool {
    KNOWN_CRITICAL_EXTENSIONS
        .iter()
        .take(3)
        .any(|oid| oid == extension)
}
