//! Messages between device and controller, as JSON: TPM structures in Base64, digests and nonces in hex.

use std::collections::BTreeMap;

use linewarden_measurement::pcr::{PcrIndex, PcrValues};
use linewarden_measurement::{Digest, HashAlgorithm};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::policy::PcrPolicy;

/// Maximum length of a message, bytes: enough for an event log of a mebibyte and all other fields.
pub const MESSAGE_BYTES_MAX: usize = 2 * 1_024 * 1_024;

/// The version of the message format; only version 1 is supported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Version;

impl Version {
    const NUMBER: u32 = 1;
}

impl From<Version> for u32 {
    fn from(_: Version) -> Self {
        Version::NUMBER
    }
}

impl TryFrom<u32> for Version {
    type Error = String;

    fn try_from(number: u32) -> Result<Self, String> {
        match number == Self::NUMBER {
            true => Ok(Self),
            false => Err(format!("unsupported version {number}, expected {}", Self::NUMBER)),
        }
    }
}

/// Identifies an enrollment; chosen by the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EnrollmentId(#[serde(with = "crate::encoding::hex_array")] pub(crate) [u8; 16]);

/// Values of PCRs of one bank, in message format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "PcrFields", into = "PcrFields")]
pub struct PcrReport(pub PcrValues);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PcrFields {
    bank: HashAlgorithm,
    values: BTreeMap<PcrIndex, String>,
}

impl TryFrom<PcrFields> for PcrReport {
    type Error = String;

    fn try_from(fields: PcrFields) -> Result<Self, String> {
        let mut values = PcrValues::new(fields.bank);
        for (index, text) in fields.values {
            let describe = |reason: &dyn std::fmt::Display| format!("PCR {index}: {reason}");
            let bytes = hex::decode(text).map_err(|error| describe(&error))?;
            let digest = Digest::new(fields.bank, &bytes).map_err(|error| describe(&error))?;
            values.set(index, digest).map_err(|error| describe(&error))?;
        }
        Ok(Self(values))
    }
}

impl From<PcrReport> for PcrFields {
    fn from(report: PcrReport) -> Self {
        Self {
            bank: report.0.bank(),
            values: report
                .0
                .iter()
                .map(|(index, value)| (index, value.to_string()))
                .collect(),
        }
    }
}

/// From the device: the identity of its TPM, and the measured boot state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The format version.
    pub version: Version,
    /// The endorsement key: TPM2B_PUBLIC.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub endorsement_key: Vec<u8>,
    /// The certificate of the endorsement key in DER, if the TPM has one, and further certificates of its path, if
    /// available.
    #[serde(default, with = "crate::encoding::base64_list")]
    pub certificates: Vec<Vec<u8>>,
    /// The attestation key: TPM2B_PUBLIC.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub attestation_key: Vec<u8>,
    /// The current values of the PCRs to which the device key k will be bound.
    pub pcrs: PcrReport,
    /// The event log of the PCRs, if the device has one. The enrollment does not check the log.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "crate::encoding::base64_option"
    )]
    pub event_log: Option<Vec<u8>>,
}

/// From the controller: the device key k for the TPM, and the challenge by which the TPM proves that it has k.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyOffer {
    /// The format version.
    pub version: Version,
    /// The enrollment.
    pub enrollment_id: EnrollmentId,
    /// For TPM2_ActivateCredential: the content of TPM2B_ID_OBJECT.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub credential: Vec<u8>,
    /// For TPM2_ActivateCredential: the content of TPM2B_ENCRYPTED_SECRET.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub credential_seed: Vec<u8>,
    /// For TPM2_Import: TPM2B_PUBLIC of the key.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub key: Vec<u8>,
    /// For TPM2_Import: the content of TPM2B_PRIVATE.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub key_duplicate: Vec<u8>,
    /// For TPM2_Import: the content of TPM2B_ENCRYPTED_SECRET.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub key_seed: Vec<u8>,
    /// The policy of the key.
    pub policy: PcrPolicy,
    /// The nonce for the quote and the proofs.
    #[serde(with = "crate::encoding::hex_array")]
    pub nonce: [u8; 32],
}

/// From the device: the TPM's proofs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfferResponse {
    /// The format version.
    pub version: Version,
    /// The enrollment.
    pub enrollment_id: EnrollmentId,
    /// Proof that the credential was decrypted: [`activation_proof`].
    #[serde(with = "crate::encoding::hex_array")]
    pub activation: [u8; 32],
    /// TPMS_ATTEST over the nonce.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub quote: Vec<u8>,
    /// TPMT_SIGNATURE of the attestation key over the quote.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub signature: Vec<u8>,
    /// Proof that the TPM can use the key: HMAC of [`key_proof_message`] under the key.
    #[serde(with = "crate::encoding::hex_array")]
    pub key_proof: [u8; 32],
}

/// Why bytes are not a message.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// The bytes are longer than a message may be.
    #[error("message too long: {0} bytes, the maximum is {MESSAGE_BYTES_MAX}")]
    TooLong(usize),
    /// The bytes end within the message.
    #[error("message empty or truncated")]
    Truncated,
    /// The bytes are a different message of the enrollment than the expected one.
    #[error("unexpected message: {0}")]
    UnexpectedMessage(&'static str),
    /// The format version is not supported.
    #[error("unsupported message version {0}, expected {number}", number = Version::NUMBER)]
    Version(u64),
    /// The bytes are not JSON, or not the expected message. The content is not printed, because it may be a secret.
    #[error("message damaged or of another type (line {line}, column {column})")]
    Malformed {
        /// The line at which parsing failed, from 1.
        line: usize,
        /// The column at which parsing failed, from 1, in bytes.
        column: usize,
    },
}

impl MessageError {
    fn of(bytes: &[u8], error: &serde_json::Error) -> Self {
        /// The field that messages of every version have.
        #[derive(Deserialize)]
        struct AnyMessage {
            version: u64,
        }
        if error.is_eof() {
            return Self::Truncated;
        }
        match serde_json::from_slice(bytes) {
            Ok(AnyMessage { version }) if version != u64::from(Version::NUMBER) => {
                return Self::Version(version);
            }
            _ => {}
        }
        if serde_json::from_slice::<Identity>(bytes).is_ok() {
            return Self::UnexpectedMessage("a device's identity, which `linewarden-agent identity` creates");
        }
        if serde_json::from_slice::<KeyOffer>(bytes).is_ok() {
            return Self::UnexpectedMessage(
                "an operator's offer, which `linewarden attest enroll --identity` creates",
            );
        }
        if serde_json::from_slice::<OfferResponse>(bytes).is_ok() {
            return Self::UnexpectedMessage("a device's answer, which `linewarden-agent answer` creates");
        }
        Self::Malformed {
            line: error.line(),
            column: error.column(),
        }
    }
}

/// Parses a message.
///
/// # Errors
/// The bytes are too long, or are not a message of this type and of the supported version.
pub fn from_json<M: DeserializeOwned>(bytes: &[u8]) -> Result<M, MessageError> {
    match bytes.len() {
        0..=MESSAGE_BYTES_MAX => {
            serde_json::from_slice(bytes).map_err(|error| MessageError::of(bytes, &error))
        }
        length => Err(MessageError::TooLong(length)),
    }
}

/// Proof that the device's TPM has decrypted the credential of the enrollment with this nonce. Only a TPM with both the
/// endorsement key and the attestation key can do this. The proof is an HMAC-SHA-256 over a label and the nonce, under the
/// secret from TPM2_ActivateCredential.
pub fn activation_proof(secret: &[u8; 32], nonce: &[u8; 32]) -> [u8; 32] {
    crate::kdf::hmac(secret, &[b"lap1 tpm activated", nonce])
}

/// The message whose HMAC under k proves that the TPM has k and that the policy of k is met.
pub fn key_proof_message(nonce: &[u8; 32]) -> [u8; 45] {
    let mut message = [0; 45];
    let parts = b"lap1 tpm key:".iter().chain(nonce);
    for (target, source) in message.iter_mut().zip(parts) {
        *target = *source;
    }
    message
}
