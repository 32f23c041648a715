//! The device's attestation key k, wherever it lies.

use std::fmt;

use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::kdf::hmac;

/// The most bytes that [`AttestationKey::hmac`] takes: what every TPM takes in one command.
pub const MESSAGE_BYTES_MAX: usize = 1_024;

/// k: 32 bytes that the controller and the device's key store share (LAP/1 3.2). Wiped when dropped; prints nothing.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttestationSecret(#[serde(with = "crate::encoding::hex_array")] [u8; 32]);

impl AttestationSecret {
    /// The key with these bytes.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub const fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// HMAC-SHA-256 under it.
    pub fn hmac(&self, message: &[u8]) -> [u8; 32] {
        hmac(&self.0, &[message])
    }
}

impl fmt::Debug for AttestationSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AttestationSecret(..)")
    }
}

/// Where k lies; part of the evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protection {
    /// In a TPM, bound to the measured start: software cannot copy it.
    Tpm,
    /// In a file of the device: whoever reads it has it.
    Software,
}

/// Whether it helps to try again what failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// Yes, after a while.
    Later,
    /// Yes, after the TPM was opened anew: it is gone, or was restarted.
    Reopened,
    /// No.
    Never,
}

/// Why there is no HMAC. There is never a wrong one in its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The PCRs are not in a state of the key's policy.
    #[error("the boot differs from what the key is bound to: the TPM refuses to use it ({0})")]
    BootDiffers(String),
    /// The message is longer than every TPM takes.
    #[error("a message of {0} bytes; a TPM takes at most {MESSAGE_BYTES_MAX}")]
    TooLong(usize),
    /// The TPM did not do it; the text names the command and the answer.
    #[error("{what}")]
    Tpm {
        /// What failed.
        what: String,
        /// Whether to try again.
        again: Again,
    },
}

/// The key k, in a TPM or in software: it makes HMACs and is not given out.
pub trait AttestationKey {
    /// HMAC-SHA-256 of a message of at most [`MESSAGE_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// The message is too long, the boot is another one, or the TPM failed.
    fn hmac(&mut self, message: &[u8]) -> Result<[u8; 32], KeyError>;

    /// Where it lies.
    fn protection(&self) -> Protection;
}

/// k held by the process itself, where there is no TPM.
#[derive(Clone, Debug)]
pub struct SoftwareKey(AttestationSecret);

impl SoftwareKey {
    /// Takes it over.
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
