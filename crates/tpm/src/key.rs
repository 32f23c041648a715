//! The device's attestation key k, in a TPM or in software.

use std::fmt;

use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::kdf::hmac;

/// Maximum length of a message for [`AttestationKey::hmac`]: the limit of every TPM for one command.
pub const MESSAGE_BYTES_MAX: usize = 1_024;

/// k: 32 bytes shared by the controller and the device's key store (LAP/1 3.2). Wiped on drop; never printed.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttestationSecret(#[serde(with = "crate::encoding::hex_array")] [u8; 32]);

impl AttestationSecret {
    /// Creates the key from its bytes.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub const fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// HMAC-SHA-256 under this key.
    pub fn hmac(&self, message: &[u8]) -> [u8; 32] {
        hmac(&self.0, &[message])
    }
}

impl fmt::Debug for AttestationSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AttestationSecret(..)")
    }
}

/// The place where k is stored; part of the evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protection {
    /// In a TPM, bound to the measured boot: software cannot copy it.
    Tpm,
    /// In a file of the device: every process that can read the file knows the key.
    Software,
}

/// Whether a retry may succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Yes, after a delay.
    Later,
    /// Yes, after the TPM is reopened: the connection was lost, or the TPM was restarted.
    AfterReopen,
    /// No.
    Never,
}

/// Why an HMAC was not computed. A wrong HMAC is never returned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The PCR values do not match the key's policy.
    #[error("PCR values do not match the policy of the key: the TPM refuses to use the key ({0})")]
    BootDiffers(String),
    /// The message is longer than the limit of TPMs.
    #[error("message too long: {0} bytes, the maximum of a TPM is {MESSAGE_BYTES_MAX}")]
    TooLong(usize),
    /// The TPM failed; the text names the command and the response.
    #[error("{message}")]
    Tpm {
        /// The error message.
        message: String,
        /// Whether a retry may succeed.
        retry: Retry,
    },
}

/// The key k, in a TPM or in software: computes HMACs and is not exported.
pub trait AttestationKey {
    /// HMAC-SHA-256 of a message of at most [`MESSAGE_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// The message is too long, the PCR values do not match the policy, or the TPM failed.
    fn hmac(&mut self, message: &[u8]) -> Result<[u8; 32], KeyError>;

    /// Where the key is stored.
    fn protection(&self) -> Protection;
}

/// k in the memory of the process, for devices without a TPM.
#[derive(Clone, Debug)]
pub struct SoftwareKey(AttestationSecret);

impl SoftwareKey {
    /// Creates a software key with this secret.
    pub const fn new(secret: AttestationSecret) -> Self {
        Self(secret)
    }
}

impl AttestationKey for SoftwareKey {
    fn hmac(&mut self, message: &[u8]) -> Result<[u8; 32], KeyError> {
        match message.len() {
            0..=MESSAGE_BYTES_MAX => Ok(self.0.hmac(message)),
            length => Err(KeyError::TooLong(length)),
        }
    }

    fn protection(&self) -> Protection {
        Protection::Software
    }
}
