//! The key that signs attestation results.

use std::path::Path;

use linewarden_cli::failure::Failure;
use linewarden_cli::secret_file;
use linewarden_controller::attest::Signer;

/// Maximum size of a signing key file, bytes.
const SIGNING_KEY_BYTES_MAX: usize = 16_384;

/// Reads the key that signs attestation results.
///
/// # Errors
/// As [`secret_file::read`], or the file does not contain a P-256 private key.
pub fn read(path: &Path) -> Result<Signer, Failure> {
    let bytes = secret_file::read(path, SIGNING_KEY_BYTES_MAX)?;
    let invalid_key = |reason: &dyn std::fmt::Display| {
        Failure::input(format!(
            "{}: {reason}; create a key with `linewarden attest key --out FILE`",
            path.display()
        ))
    };
    let text = str::from_utf8(&bytes).map_err(|_| invalid_key(&"not a key in PEM format"))?;
    Signer::from_pem(text).map_err(|_| invalid_key(&"not a P-256 private key in PEM format"))
}
