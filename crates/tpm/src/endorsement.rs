//! Whether an endorsement key is one of a real TPM: its maker's certificate, or the operator's word.
//!
//! The operator gives the makers' root and intermediate certificates. A path from the key's certificate to a root is
//! looked for as RFC 5280 has it, as far as endorsement certificates need it: names, signatures (SHA-1 is none), validity at a
//! given time, who may issue and how far, no critical extension that is not understood. What makers of TPMs do there is
//! known: a subject that is empty, with the TPM's maker and model in a critical subjectAltName; RSA keys under the
//! identifier of RSAES-OAEP; no extendedKeyUsage in older ones. Revocation is not asked for: that would be I/O.

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

/// Certificates on a path, the key's own and the root's included.
const PATH_MAX: usize = 6;
/// Endorsement certificates of TPMs have one to two thousand bytes.
const CERTIFICATE_BYTES_MAX: usize = 16 * 1_024;
/// How many certificates of its own chain a device may send.
pub const SENT_MAX: usize = 5;

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
/// Critical extensions that may stand in a certificate of a path: those that are looked at here, and those that only
/// describe: alternative names, policies, directory attributes (TPM's specification).
const UNDERSTOOD: [Oid<'static>; 6] = [
    oid!(2.5.29.19),
    oid!(2.5.29.15),
    oid!(2.5.29.37),
    oid!(2.5.29.17),
    oid!(2.5.29.32),
    oid!(2.5.29.9),
];

/// SHA-256 over TPMT_PUBLIC of an endorsement key: what an operator pins. `tpm2_createek -f tss` writes the area with two bytes
/// of size in front, which do not belong to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EkHash(#[serde(with = "crate::encoding::hex_array")] [u8; 32]);

impl EkHash {
    /// Of this key.
    pub fn of(key: &EndorsementKey) -> Self {
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

/// What shows that the key is a TPM's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "lowercase", deny_unknown_fields)]
pub enum Endorsement {
    /// A certificate, up to one of the operator's roots.
    Certificate {
        /// SHA-256 of the certificate.
        #[serde(with = "crate::encoding::hex_array")]
        sha256: [u8; 32],
        /// Who issued each certificate of the path, up to the root.
        issuers: Vec<String>,
    },
    /// The operator, who pinned the key by its hash; no maker vouches for it.
    Pinned,
}

/// Why a key does not count as a TPM's, or an operator's certificates cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndorsementError {
    /// No certificate came, and the key is not pinned.
    #[error("the endorsement key has no certificate and is not pinned")]
    Unknown,
    /// Not a certificate.
    #[error("{what} is no certificate in DER or PEM: {why}")]
    Form {
        /// Which one.
        what: String,
        /// What the parser says.
        why: String,
    },
    /// Of another key.
    #[error("the certificate is not of this endorsement key")]
    OtherKey,
    /// Too early, or too late.
    #[error("the certificate of {subject} is valid from {from} to {to} (Unix time), not at {now}")]
    Expired {
        /// Whose.
        subject: String,
        /// First second.
        from: i64,
        /// Last second.
        to: i64,
        /// The time asked for.
        now: i64,
    },
    /// Not for an endorsement key, or not for what it was used for.
    #[error("the certificate of {subject}: {why}")]
    Use {
        /// Whose.
        subject: String,
        /// What is wrong.
        why: String,
    },
    /// None of those who could have issued it did, or nobody is known by that name.
    #[error(
        "nobody who is trusted issued the certificate of {subject}: by its own account that was {issuer}"
    )]
    Issuer {
        /// Whose.
        subject: String,
        /// Who should have.
        issuer: String,
    },
}

/// What the operator believes: makers' certificates and pinned keys.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    roots: Vec<Vec<u8>>,
    intermediates: Vec<Vec<u8>>,
    pins: Vec<EkHash>,
}

impl Trust {
    /// Believes nobody yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds root certificates: one in DER, or any number in PEM. `what` names them in errors.
    ///
    /// # Errors
    /// No certificate in it.
    pub fn add_roots(&mut self, what: &str, bytes: &[u8]) -> Result<(), EndorsementError> {
        self.roots.extend(read_all(what, bytes)?);
        Ok(())
    }

    /// Adds intermediate certificates, which count only under a root.
    ///
    /// # Errors
    /// No certificate in it.
    pub fn add_intermediates(&mut self, what: &str, bytes: &[u8]) -> Result<(), EndorsementError> {
        self.intermediates.extend(read_all(what, bytes)?);
        Ok(())
    }

    /// Believes in a key without a certificate.
    pub fn pin(&mut self, key: EkHash) {
        self.pins.push(key);
    }

    /// Whether `key` is a TPM's: by `sent`, its certificate followed by others of its path as the TPM may hold them, at the time
    /// `now_s` (Unix, in seconds); or because it is pinned, in which case certificates are not looked at.
    ///
    /// # Errors
    /// What is wrong with the certificate or its path.
    pub fn check(
        &self,
        key: &EndorsementKey,
        sent: &[Vec<u8>],
        now_s: i64,
    ) -> Result<Endorsement, EndorsementError> {
        if self.pins.contains(&EkHash::of(key)) {
            return Ok(Endorsement::Pinned);
        }
        let (own, others) = sent.split_first().ok_or(EndorsementError::Unknown)?;
        let leaf = parse("the endorsement certificate", own)?;
        if !is_of(&leaf, key) {
            return Err(EndorsementError::OtherKey);
        }
        check_time(&leaf, now_s)?;
        check_leaf(&leaf, key)?;
        let roots = parse_all("a root", &self.roots)?;
        let mut between = parse_all("an intermediate", &self.intermediates)?;
        // What the device sends is believed no more than anything else without a root over it; what is damaged is left out.
        between.extend(
            others
                .iter()
                .take(SENT_MAX)
                .filter_map(|der| parse("sent", der).ok()),
        );
        let path = Path {
            roots: &roots,
            between: &between,
            now_s,
        };
        let mut issuers = Vec::new();
        path.up_from(&leaf, 0, &mut issuers)?;
        Ok(Endorsement::Certificate {
            sha256: sha256(&[own]),
            issuers,
        })
    }
}

/// The certificates among which a path is looked for.
struct Path<'a> {
    roots: &'a [X509Certificate<'a>],
    between: &'a [X509Certificate<'a>],
    now_s: i64,
}

impl Path<'_> {
    /// Finds issuers of `certificate` up to a root; `below` is the number of intermediates under it.
    fn up_from(
        &self,
        certificate: &X509Certificate<'_>,
        below: usize,
        issuers: &mut Vec<String>,
    ) -> Result<(), EndorsementError> {
        let mut why = EndorsementError::Issuer {
            subject: subject(certificate),
            issuer: certificate.issuer().to_string(),
        };
        if below + 2 > PATH_MAX {
            return Err(why);
        }
        let named =
            |issuer: &&X509Certificate<'_>| issuer.subject().as_raw() == certificate.issuer().as_raw();
        for issuer in self.roots.iter().filter(named) {
            match self.issued(certificate, issuer, below) {
                Ok(()) => {
                    issuers.insert(0, issuer.subject().to_string());
                    return Ok(());
                }
                Err(error) => why = error,
            }
        }
        for issuer in self.between.iter().filter(named) {
            let found = self
                .issued(certificate, issuer, below)
                .and_then(|()| self.up_from(issuer, below + 1, issuers));
            match found {
                Ok(()) => {
                    issuers.insert(0, issuer.subject().to_string());
                    return Ok(());
                }
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    fn issued(
        &self,
        certificate: &X509Certificate<'_>,
        issuer: &X509Certificate<'_>,
        below: usize,
    ) -> Result<(), EndorsementError> {
        check_signature(certificate, issuer)?;
        check_time(issuer, self.now_s)?;
        check_issuer(issuer, below)
    }
}

fn read_all(what: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, EndorsementError> {
    let wrong = |why: String| EndorsementError::Form {
        what: what.to_owned(),
        why,
    };
    if bytes.first() == Some(&0x30) {
        parse(what, bytes)?;
        return Ok(vec![bytes.to_vec()]);
    }
    let mut found = Vec::new();
    for pem in Pem::iter_from_buffer(bytes) {
        let pem = pem.map_err(|error| wrong(error.to_string()))?;
        if pem.label == "CERTIFICATE" {
            parse(what, &pem.contents)?;
            found.push(pem.contents);
        }
    }
    match found.is_empty() {
        true => Err(wrong("there is none in it".to_owned())),
        false => Ok(found),
    }
}

fn parse_all<'a>(what: &str, all: &'a [Vec<u8>]) -> Result<Vec<X509Certificate<'a>>, EndorsementError> {
    all.iter().map(|der| parse(what, der)).collect()
}

fn parse<'a>(what: &str, der: &'a [u8]) -> Result<X509Certificate<'a>, EndorsementError> {
    let wrong = |why: String| EndorsementError::Form {
        what: what.to_owned(),
        why,
    };
    if der.len() > CERTIFICATE_BYTES_MAX {
        return Err(wrong(format!(
            "{} bytes, more than {CERTIFICATE_BYTES_MAX}",
            der.len()
        )));
    }
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        Ok((rest, _)) => Err(wrong(format!("{} bytes behind its end", rest.len()))),
        Err(error) => Err(wrong(error.to_string())),
    }
}

/// The subject, or what there is in its place: many endorsement certificates have none.
fn subject(certificate: &X509Certificate<'_>) -> String {
    match certificate.subject().to_string() {
        empty if empty.is_empty() => format!("a TPM (serial number {})", certificate.raw_serial_as_string()),
        subject => subject,
    }
}

fn wrong_use(certificate: &X509Certificate<'_>, why: impl Into<String>) -> EndorsementError {
    EndorsementError::Use {
        subject: subject(certificate),
        why: why.into(),
    }
}

fn is_of(certificate: &X509Certificate<'_>, key: &EndorsementKey) -> bool {
    match &key.public().kind {
        Kind::Rsa { modulus, .. } => rsa_modulus(certificate.public_key()).is_some_and(|own| own == *modulus),
        Kind::EccP256 { x, y, .. } => p256_point(certificate.public_key())
            .zip(sec1(x, y))
            .is_some_and(|(own, point)| own == point),
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
        false => Err(EndorsementError::Expired {
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
    let outer = &certificate.signature_algorithm;
    if *outer != certificate.tbs_certificate.signature {
        return Err(wrong_use(
            certificate,
            "it names two algorithms for its signature",
        ));
    }
    if SHA1_SIGNATURES.contains(&outer.algorithm) {
        return Err(wrong_use(
            certificate,
            "its signature is over SHA-1, which proves nothing",
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

/// All extensions that it has, each once, the critical ones understood.
fn extensions<'a, 'c>(
    certificate: &'a X509Certificate<'c>,
) -> Result<&'a [X509Extension<'c>], EndorsementError> {
    certificate
        .extensions_map()
        .map_err(|_| wrong_use(certificate, "it has one extension twice"))?;
    for extension in certificate.extensions() {
        if extension.critical && !UNDERSTOOD.contains(&extension.oid) {
            let why = format!("its critical extension {} is not understood", extension.oid);
            return Err(wrong_use(certificate, why));
        }
    }
    Ok(certificate.extensions())
}

fn check_leaf(certificate: &X509Certificate<'_>, key: &EndorsementKey) -> Result<(), EndorsementError> {
    let encrypts = matches!(key.public().kind, Kind::Rsa { .. });
    for extension in extensions(certificate)? {
        match extension.parsed_extension() {
            ParsedExtension::BasicConstraints(constraints) if constraints.ca => {
                return Err(wrong_use(
                    certificate,
                    "it is an issuer's, not an endorsement key's",
                ));
            }
            ParsedExtension::KeyUsage(usage) => {
                let fits = match encrypts {
                    true => usage.key_encipherment(),
                    false => usage.key_agreement(),
                };
                if !fits {
                    return Err(wrong_use(certificate, "its keyUsage is not an endorsement key's"));
                }
            }
            ParsedExtension::ExtendedKeyUsage(usage) if !usage.any && !usage.other.contains(&EK_USAGE) => {
                return Err(wrong_use(
                    certificate,
                    "its extendedKeyUsage is not tcg-kp-EKCertificate",
                ));
            }
            ParsedExtension::ParseError { .. } if extension.critical && is_looked_at(&extension.oid) => {
                return Err(wrong_use(certificate, "a critical extension cannot be read"));
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_issuer(certificate: &X509Certificate<'_>, below: usize) -> Result<(), EndorsementError> {
    let mut may_issue = false;
    for extension in extensions(certificate)? {
        match extension.parsed_extension() {
            ParsedExtension::BasicConstraints(constraints) => {
                may_issue = constraints.ca;
                let longest = constraints.path_len_constraint;
                if longest.is_some_and(|longest| below > usize::try_from(longest).unwrap_or(usize::MAX)) {
                    return Err(wrong_use(certificate, "it stands higher on the path than it may"));
                }
            }
            ParsedExtension::KeyUsage(usage) if !usage.key_cert_sign() => {
                return Err(wrong_use(certificate, "its key may not sign certificates"));
            }
            ParsedExtension::ParseError { .. } if is_looked_at(&extension.oid) => {
                return Err(wrong_use(certificate, "an extension cannot be read"));
            }
            _ => {}
        }
    }
    match may_issue {
        true => Ok(()),
        false => Err(wrong_use(certificate, "it is no issuer's")),
    }
}

/// basicConstraints, keyUsage, extendedKeyUsage.
fn is_looked_at(extension: &Oid<'_>) -> bool {
    UNDERSTOOD.iter().take(3).any(|oid| oid == extension)
}
