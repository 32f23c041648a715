//! Secret files of the operator: reads and creates them as `linewarden_files` does, with errors as [`Failure`].

use linewarden_cli::failure::Failure;
use std::io;
use std::path::Path;

use linewarden_controller::attest::Signer;
use linewarden_evidence::inband::MasterKey;
use linewarden_files::{PrivateFileError, create_private, read_private};
use zeroize::Zeroizing;

/// Maximum size of a packet key file, bytes: 32 hexadecimal digits and a line break.
const PACKET_KEY_BYTES_MAX: usize = 33;
/// Maximum size of a signing key file, bytes.
const SIGNING_KEY_BYTES_MAX: usize = 16_384;

/// Reads a secret file of at most `bytes_max` bytes.
///
/// # Errors
/// The file is missing or unreadable, or, with exit code 4, other users can read it.
pub fn read(path: &Path, bytes_max: usize) -> Result<Zeroizing<Vec<u8>>, Failure> {
    read_private(path, bytes_max).map_err(|error| match error {
        PrivateFileError::Unsafe { .. } => Failure::unsafe_(format!("{}: {error}", path.display())),
        PrivateFileError::Io(_) => Failure::input(format!("{}: cannot be read: {error}", path.display())),
    })
}

/// Reads the secret for the tags of in-packet evidence: 32 hexadecimal digits.
///
/// # Errors
/// As [`read()`], or the file has other content.
pub fn packet_key(path: &Path) -> Result<MasterKey, Failure> {
    let text = read(path, PACKET_KEY_BYTES_MAX)?;
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

/// Creates a secret file with mode 0600, durably.
///
/// # Errors
/// The file already exists, or cannot be written.
pub fn create(path: &Path, secret: &[u8]) -> Result<(), Failure> {
    create_private(path, secret).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => already_exists(path),
        _ => Failure::input(format!("{}: cannot be written: {error}", path.display())),
    })
}

/// Refuses a path that exists.
///
/// # Errors
/// The path exists.
pub fn check_absent(path: &Path) -> Result<(), Failure> {
    match path.symlink_metadata() {
        Ok(_) => Err(already_exists(path)),
        Err(_) => Ok(()),
    }
}

fn already_exists(path: &Path) -> Failure {
    Failure::input(format!(
        "{} already exists and is not overwritten: name another file",
        path.display()
    ))
}

/// Reads the key that signs attestation results.
///
/// # Errors
/// As [`read()`], or the file does not contain a P-256 private key.
pub fn signer(path: &Path) -> Result<Signer, Failure> {
    let bytes = read(path, SIGNING_KEY_BYTES_MAX)?;
    let invalid_key = |reason: &dyn std::fmt::Display| {
        Failure::input(format!(
            "{}: {reason}; create a key with `linewarden attest key --out FILE`",
            path.display()
        ))
    };
    let text = str::from_utf8(&bytes).map_err(|_| invalid_key(&"not a key in PEM format"))?;
    Signer::from_pem(text).map_err(|_| invalid_key(&"not a P-256 private key in PEM format"))
}
