//! Keys of evidence in files: of data planes, which sign statements, and of those who sign reference values.

use std::path::Path;

use linewarden_evidence::keys::{Ed25519Signer, PublicKey, Signer};
use linewarden_files::read_text_bounded;

use crate::failure::Failure;
use crate::secret_file;

/// No key is longer, as PEM or encrypted by a TPM.
const KEY_BYTES_MAX: usize = 16_384;

/// Reads a public key.
///
/// # Errors
/// A file that cannot be read, or is none.
pub fn public(path: &Path) -> Result<PublicKey, Failure> {
    let wrong = |why: &dyn std::fmt::Display| Failure::input(format!("{}: {why}", path.display()));
    let text = read_text_bounded(path, KEY_BYTES_MAX).map_err(|error| wrong(&error))?;
    PublicKey::from_pem(&text).map_err(|error| wrong(&error))
}

/// Reads a private key; with `tpm` it is one that this TPM has encrypted.
///
/// # Errors
/// A file that cannot be read or that others can read, that is none, or another TPM's.
pub fn signer(path: &Path, tpm: Option<&str>) -> Result<Box<dyn Signer + Send>, Failure> {
    let bytes = secret_file::read(path, KEY_BYTES_MAX)?;
    if let Some(tcti) = tpm {
        return of_tpm(path, &bytes, tcti);
    }
    let wrong = |why: &dyn std::fmt::Display| {
        Failure::input(format!(
            "{}: {why}; `linewarden evidence key --out FILE` makes one",
            path.display()
        ))
    };
    let text = str::from_utf8(&bytes).map_err(|_| wrong(&"no text, and no key in PEM"))?;
    let signer = Ed25519Signer::from_pem(text).map_err(|error| wrong(&error))?;
    Ok(Box::new(signer))
}

#[cfg(feature = "tpm")]
mod tpm {
    use std::path::Path;

    use linewarden_evidence::keys::Signer;
    use linewarden_tpm::device::{EndorsementKind, Retries, SigningBlob, Tpm, TpmSigner};
    use zeroize::Zeroizing;

    use crate::failure::Failure;

    fn open(tcti: &str) -> Result<Tpm, Failure> {
        let wait = |attempt| std::thread::sleep(std::time::Duration::from_millis(50u64 << attempt));
        Tpm::open(tcti, Retries::new(3, wait)).map_err(Failure::failed)
    }

    pub fn of_tpm(path: &Path, blob: &[u8], tcti: &str) -> Result<Box<dyn Signer + Send>, Failure> {
        let blob: SigningBlob = serde_json::from_slice(blob).map_err(|error| {
            Failure::input(format!(
                "{}: {error}; `linewarden evidence key --tpm TCTI --out FILE` makes one",
                path.display()
            ))
        })?;
        let signer = TpmSigner::load(open(tcti)?, &blob)
            .map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
        Ok(Box::new(signer))
    }

    /// Has the TPM make a key; what it has encrypted of it.
    pub fn make(tcti: &str) -> Result<Zeroizing<Vec<u8>>, Failure> {
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

    pub fn of_tpm(_: &Path, _: &[u8], _: &str) -> Result<Box<dyn Signer + Send>, Failure> {
        Err(Failure::input("this program was built without TPMs"))
    }

    pub fn make(_: &str) -> Result<Zeroizing<Vec<u8>>, Failure> {
        Err(Failure::input("this program was built without TPMs"))
    }
}

pub use tpm::make as make_in_tpm;
use tpm::of_tpm;
