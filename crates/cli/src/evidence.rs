//! Files of evidence: keys, packet keys and reference values; nonces. Data planes sign statements with evidence keys; operators
//! sign reference values.

mod command;

use std::path::Path;

use linewarden_evidence::appraisal::{REFERENCE_BYTES_MAX, Reference};
use linewarden_evidence::inband::MasterKey;
use linewarden_evidence::keys::{Ed25519Signer, PublicKey, Signer};
use linewarden_evidence::statement::{NONCE_BYTES, Nonce};
use linewarden_files::{read_bounded, read_text_bounded};
use zeroize::Zeroizing;

pub use self::command::{KeyArgs, run as create_or_show_key};
use crate::failure::Failure;
use crate::secret_file;

/// Maximum size of a packet key file, bytes: 32 hexadecimal digits and a line break.
const PACKET_KEY_BYTES_MAX: usize = 33;

/// Maximum size of a key file, as PEM or encrypted by a TPM, bytes.
const KEY_BYTES_MAX: usize = 16_384;

/// Reads a public key.
///
/// # Errors
/// The file cannot be read, or is not a public key.
pub fn read_public_key(path: &Path) -> Result<PublicKey, Failure> {
    let invalid = |reason: &dyn std::fmt::Display| Failure::input(format!("{}: {reason}", path.display()));
    let text = read_text_bounded(path, KEY_BYTES_MAX).map_err(|error| invalid(&error))?;
    PublicKey::from_pem(&text).map_err(|error| invalid(&error))
}

/// Reads a private key. With `tpm` (a TCTI), the file contains a key that this TPM has encrypted; otherwise a key in PEM.
///
/// # Errors
/// The file cannot be read, other users can read the file, or the file is not a key of this format or TPM.
pub fn read_signer(path: &Path, tpm: Option<&str>) -> Result<Box<dyn Signer + Send>, Failure> {
    let bytes = secret_file::read(path, KEY_BYTES_MAX)?;
    if let Some(tcti) = tpm {
        return read_tpm_signer(path, &bytes, tcti);
    }
    let invalid = |reason: &dyn std::fmt::Display| {
        Failure::input(format!(
            "{}: {reason}; create a key with `evidence key --out FILE`",
            path.display()
        ))
    };
    let text = str::from_utf8(&bytes).map_err(|_| invalid(&"not a key in PEM format"))?;
    let signer = Ed25519Signer::from_pem(text).map_err(|error| invalid(&error))?;
    Ok(Box::new(signer))
}

/// Reads the secret for the tags of in-packet evidence: 32 hexadecimal digits.
///
/// # Errors
/// As [`secret_file::read`], or the file has other content.
pub fn packet_key(path: &Path) -> Result<MasterKey, Failure> {
    let text = secret_file::read(path, PACKET_KEY_BYTES_MAX)?;
    let digits = text.trim_ascii_end();
    let mut key = Zeroizing::new([0; 16]);
    hex::decode_to_slice(digits, &mut *key).map_err(|error| {
        Failure::input(format_args!(
            "{}: {error}; expected 32 hexadecimal digits",
            path.display()
        ))
    })?;
    Ok(MasterKey::new(*key))
}

/// Reads reference values.
///
/// # Errors
/// The file cannot be read, is damaged, or `key` is given and has not signed the reference values.
pub fn read_reference(path: &Path, key: Option<&PublicKey>) -> Result<Reference, Failure> {
    let bytes = read_bounded(path, REFERENCE_BYTES_MAX)
        .map_err(|error| Failure::input(format!("{}: {error}", path.display())))?;
    Reference::read(&bytes, key).map_err(|error| Failure::input(format!("{}: {error}", path.display())))
}

/// Parses a nonce of 64 hexadecimal digits.
///
/// # Errors
/// The text has another length or other characters.
pub fn parse_nonce(text: &str) -> Result<Nonce, String> {
    let mut nonce = [0; NONCE_BYTES];
    hex::decode_to_slice(text, &mut nonce)
        .map_err(|error| format!("{error}; expected 64 hexadecimal digits"))?;
    Ok(Nonce(nonce))
}

/// A random nonce.
///
/// # Errors
/// The kernel gives no random bytes.
pub fn random_nonce() -> Result<Nonce, Failure> {
    let mut bytes = [0; NONCE_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| crate::random_failure(&error))?;
    Ok(Nonce(bytes))
}

#[cfg(feature = "tpm")]
mod tpm {
    use std::path::Path;

    use linewarden_evidence::keys::Signer;
    use linewarden_tpm::device::{EndorsementKind, Retries, SigningBlob, Tpm, TpmSigner};
    use zeroize::Zeroizing;

    use crate::failure::Failure;

    fn open(tcti: &str) -> Result<Tpm, Failure> {
        let retries = Retries::with_backoff(|| getrandom::u64().unwrap_or_default());
        Tpm::open(tcti, retries).map_err(Failure::failed)
    }

    pub fn read_tpm_signer(path: &Path, blob: &[u8], tcti: &str) -> Result<Box<dyn Signer + Send>, Failure> {
        let blob: SigningBlob = serde_json::from_slice(blob).map_err(|error| {
            Failure::input(format!(
                "{}: {error}; create a key with `evidence key --tpm TCTI --out FILE`",
                path.display()
            ))
        })?;
        let signer = TpmSigner::load(open(tcti)?, &blob)
            .map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
        Ok(Box::new(signer))
    }

    /// Creates a key in the TPM; returns the key, encrypted by the TPM.
    pub fn create_key(tcti: &str) -> Result<Zeroizing<Vec<u8>>, Failure> {
        let blob = open(tcti)?
            .create_signing_key(EndorsementKind::Rsa2048)
            .map_err(Failure::failed)?;
        let mut bytes = serde_json::to_vec_pretty(&blob).map_err(Failure::failed)?;
        bytes.push(b'\n');
        Ok(Zeroizing::new(bytes))
    }
}

#[cfg(not(feature = "tpm"))]
mod tpm {
    use std::path::Path;

    use linewarden_evidence::keys::Signer;
    use zeroize::Zeroizing;

    use crate::failure::Failure;

    /// Refuses a key in a TPM.
    pub fn read_tpm_signer(_: &Path, _: &[u8], _: &str) -> Result<Box<dyn Signer + Send>, Failure> {
        Err(Failure::input(
            "TPM key not available: this program was built without the feature `tpm`",
        ))
    }

    /// Refuses to create a key in a TPM.
    pub fn create_key(_: &str) -> Result<Zeroizing<Vec<u8>>, Failure> {
        Err(Failure::input(
            "TPM key not available: this program was built without the feature `tpm`",
        ))
    }
}

pub use tpm::create_key as create_key_in_tpm;
use tpm::read_tpm_signer;
