//! Files of evidence keys. Data planes sign statements with these keys; operators sign reference values.

use linewarden_cli::failure::Failure;
use std::path::Path;

use linewarden_evidence::keys::{Ed25519Signer, PublicKey, Signer};
use linewarden_files::read_text_bounded;

use crate::secret_file;

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
            "{}: {reason}; create a key with `linewarden evidence key --out FILE`",
            path.display()
        ))
    };
    let text = str::from_utf8(&bytes).map_err(|_| invalid(&"not a key in PEM format"))?;
    let signer = Ed25519Signer::from_pem(text).map_err(|error| invalid(&error))?;
    Ok(Box::new(signer))
}

#[cfg(feature = "tpm")]
mod tpm {
    use std::path::Path;

    use linewarden_evidence::keys::Signer;
    use linewarden_tpm::device::{EndorsementKind, Retries, SigningBlob, Tpm, TpmSigner};
    use zeroize::Zeroizing;

    use linewarden_cli::failure::Failure;

    fn open(tcti: &str) -> Result<Tpm, Failure> {
        let wait = |attempt| std::thread::sleep(std::time::Duration::from_millis(50u64 << attempt));
        Tpm::open(tcti, Retries::new(3, wait)).map_err(Failure::failed)
    }

    pub fn read_tpm_signer(path: &Path, blob: &[u8], tcti: &str) -> Result<Box<dyn Signer + Send>, Failure> {
        let blob: SigningBlob = serde_json::from_slice(blob).map_err(|error| {
            Failure::input(format!(
                "{}: {error}; create a key with `linewarden evidence key --tpm TCTI --out FILE`",
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

    use linewarden_cli::failure::Failure;

    pub fn read_tpm_signer(_: &Path, _: &[u8], _: &str) -> Result<Box<dyn Signer + Send>, Failure> {
        Err(Failure::input(
            "TPM key not available: this program was built without the feature `tpm`",
        ))
    }

    pub fn create_key(_: &str) -> Result<Zeroizing<Vec<u8>>, Failure> {
        Err(Failure::input(
            "TPM key not available: this program was built without the feature `tpm`",
        ))
    }
}

pub use tpm::create_key as create_key_in_tpm;
use tpm::read_tpm_signer;
