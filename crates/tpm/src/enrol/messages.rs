//! What device and controller say to each other, as JSON: structures of the TPM in Base64, digests and nonces in hex.

use std::collections::BTreeMap;

use linewarden_measurement::pcr::{PcrIndex, PcrValues};
use linewarden_measurement::{Digest, HashAlgorithm};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::policy::PcrPolicy;

/// The longest message that is read: an event log of a mebibyte and all else fits.
pub const MESSAGE_BYTES_MAX: usize = 2 * 1_024 * 1_024;

/// The form of the messages: a number, and only this one is spoken.
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
            false => Err(format!(
                "version {number} is not spoken here, only {}",
                Self::NUMBER
            )),
        }
    }
}

/// Which conversation: drawn by the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Conversation(#[serde(with = "crate::encoding::hex_array")] pub(crate) [u8; 16]);

/// Values of PCRs of one bank, as a message has them.
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
            let wrong = |why: &dyn std::fmt::Display| format!("PCR {index}: {why}");
            let bytes = hex::decode(text).map_err(|error| wrong(&error))?;
            let digest = Digest::new(fields.bank, &bytes).map_err(|error| wrong(&error))?;
            values.set(index, digest).map_err(|error| wrong(&error))?;
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

/// From the device: who its TPM says it is, and how the machine was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The form.
    pub version: Version,
    /// The endorsement key: TPM2B_PUBLIC.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub endorsement_key: Vec<u8>,
    /// Its certificate in DER, if the TPM has one, and others of its path, if it has those.
    #[serde(default, with = "crate::encoding::base64_list")]
    pub certificates: Vec<Vec<u8>>,
    /// The attestation key: TPM2B_PUBLIC.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub attestation_key: Vec<u8>,
    /// The PCRs to which the key is to be bound, as they are.
    pub pcrs: PcrReport,
    /// The log that explains them, if the device has one. Not looked at here.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "crate::encoding::base64_option"
    )]
    pub event_log: Option<Vec<u8>>,
}

/// From the controller: the key for the TPM, and what proves that it got there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// The form.
    pub version: Version,
    /// Which conversation.
    pub conversation: Conversation,
    /// For TPM2_ActivateCredential: the inside of TPM2B_ID_OBJECT.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub credential: Vec<u8>,
    /// The inside of its TPM2B_ENCRYPTED_SECRET.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub credential_seed: Vec<u8>,
    /// For TPM2_Import: TPM2B_PUBLIC of the key.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub key: Vec<u8>,
    /// The inside of its TPM2B_PRIVATE.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub key_duplicate: Vec<u8>,
    /// The inside of its TPM2B_ENCRYPTED_SECRET.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub key_seed: Vec<u8>,
    /// What the key is bound to.
    pub policy: PcrPolicy,
    /// For the quote and the proofs.
    #[serde(with = "crate::encoding::hex_array")]
    pub nonce: [u8; 32],
}

/// From the device: the TPM's proofs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// The form.
    pub version: Version,
    /// Which conversation.
    pub conversation: Conversation,
    /// That the credential was opened: [`activation_proof`].
    #[serde(with = "crate::encoding::hex_array")]
    pub activation: [u8; 32],
    /// TPMS_ATTEST over the nonce.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub quote: Vec<u8>,
    /// TPMT_SIGNATURE over it by the attestation key.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub signature: Vec<u8>,
    /// That the key works: HMAC of [`key_proof_message`] under it.
    #[serde(with = "crate::encoding::hex_array")]
    pub key_proof: [u8; 32],
}

/// Why bytes are no message.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// Longer than any.
    #[error("a message of {0} bytes; none has more than {MESSAGE_BYTES_MAX}")]
    TooLong(usize),
    /// The bytes end inside it.
    #[error("it is empty or cut off")]
    CutOff,
    /// Another one of the conversation.
    #[error("it is {0}")]
    OtherKind(&'static str),
    /// Of a form that is not spoken here.
    #[error("it is of version {0}; this program speaks {number} only", number = Version::NUMBER)]
    Version(u64),
    /// Not JSON, or not of this form. What stands there is not repeated: it may be a secret.
    #[error("it was damaged, or is something else (line {line}, column {column})")]
    Form {
        /// Where reading ended, from 1.
        line: usize,
        /// From 1, in bytes.
        column: usize,
    },
}

impl MessageError {
    fn of(bytes: &[u8], error: &serde_json::Error) -> Self {
        /// What all forms have.
        #[derive(Deserialize)]
        struct AnyForm {
            version: u64,
        }
        if error.is_eof() {
            return Self::CutOff;
        }
        match serde_json::from_slice(bytes) {
            Ok(AnyForm { version }) if version != u64::from(Version::NUMBER) => {
                return Self::Version(version);
            }
            _ => {}
        }
        if serde_json::from_slice::<Identity>(bytes).is_ok() {
            return Self::OtherKind("a device's identity, which `attest identity` makes");
        }
        if serde_json::from_slice::<Offer>(bytes).is_ok() {
            return Self::OtherKind("an operator's offer, which `attest enroll --identity` makes");
        }
        if serde_json::from_slice::<Answer>(bytes).is_ok() {
            return Self::OtherKind("a device's answer, which `attest answer` makes");
        }
        Self::Form {
            line: error.line(),
            column: error.column(),
        }
    }
}

/// Reads a message.
///
/// # Errors
/// Too long, or of another form.
pub fn from_json<M: DeserializeOwned>(bytes: &[u8]) -> Result<M, MessageError> {
    match bytes.len() {
        0..=MESSAGE_BYTES_MAX => {
            serde_json::from_slice(bytes).map_err(|error| MessageError::of(bytes, &error))
        }
        length => Err(MessageError::TooLong(length)),
    }
}

/// That the TPM with both keys opened the credential in the conversation of this nonce: HMAC-SHA-256 under the secret that
/// TPM2_ActivateCredential gave out.
pub fn activation_proof(secret: &[u8; 32], nonce: &[u8; 32]) -> [u8; 32] {
    crate::kdf::hmac(secret, &[b"lap1 tpm activated", nonce])
}

/// The message whose HMAC under k proves that the TPM has k, and that its policy is met.
pub fn key_proof_message(nonce: &[u8; 32]) -> [u8; 45] {
    let mut message = [0; 45];
    let parts = b"lap1 tpm key:".iter().chain(nonce);
    for (to, from) in message.iter_mut().zip(parts) {
        *to = *from;
    }
    message
}
