//! Files with secrets of the operator's: read and made as `linewarden_files` does, with what is wrong as a [`Failure`].

use std::io;
use std::path::Path;

use linewarden_controller::attest::Signer;
use linewarden_evidence::inband::MasterKey;
use linewarden_files::{PrivateFileError, create_private, read_private};
use zeroize::Zeroizing;

use crate::failure::Failure;

/// Hexadecimal digits of the secret of packets' tags, and the line's end.
const PACKET_KEY_BYTES_MAX: usize = 33;
/// No signing key is read further.
const SIGNING_KEY_BYTES_MAX: usize = 16_384;

/// Reads a secret of at most `bytes_max` bytes.
///
/// # Errors
/// A file that is not there or cannot be read, or, for safety, one that others can read.
pub fn read(path: &Path, bytes_max: usize) -> Result<Zeroizing<Vec<u8>>, Failure> {
    read_private(path, bytes_max).map_err(|error| match error {
        PrivateFileError::Unsafe { .. } => Failure::unsafe_(format!("{}: {error}", path.display())),
        PrivateFileError::Io(_) => Failure::input(format!("{}: cannot be read: {error}", path.display())),
    })
}

/// Reads the secret of packets' tags: 32 hexadecimal digits.
///
/// # Errors
/// As [`read()`], or a file that holds something else.
pub fn packet_key(path: &Path) -> Result<MasterKey, Failure> {
    let text = read(path, PACKET_KEY_BYTES_MAX)?;
    let digits = text.trim_ascii_end();
    let mut key = Zeroizing::new([0; 16]);
    hex::decode_to_slice(digits, &mut *key).map_err(|error| {
        Failure::input(format_args!(
            "{}: {error}; 32 hexadecimal digits are wanted",
            path.display()
        ))
    })?;
    Ok(MasterKey::new(*key))
}

/// Makes a file of mode 0600 with a secret, durably.
///
/// # Errors
/// Something is there already, or it cannot be written.
pub fn create(path: &Path, secret: &[u8]) -> Result<(), Failure> {
    create_private(path, secret).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => exists(path),
        _ => Failure::input(format!("{}: cannot be written: {error}", path.display())),
    })
}

/// Refuses a path where something is.
///
/// # Errors
/// Something is there.
pub fn check_absent(path: &Path) -> Result<(), Failure> {
    match path.symlink_metadata() {
        Ok(_) => Err(exists(path)),
        Err(_) => Ok(()),
    }
}

fn exists(path: &Path) -> Failure {
    Failure::input(format!(
        "{} exists already and is not overwritten; name another file",
        path.display()
    ))
}

/// Reads the key that signs results.
///
/// # Errors
/// As [`read()`], or a file that holds no such key.
pub fn signer(path: &Path) -> Result<Signer, Failure> {
    let bytes = read(path, SIGNING_KEY_BYTES_MAX)?;
    let wrong = |why: &dyn std::fmt::Display| {
        Failure::input(format!(
            "{}: {why}; `linewarden attest key --out FILE` makes one",
            path.display()
        ))
    };
    let text = str::from_utf8(&bytes).map_err(|_| wrong(&"no text, and no key in PEM"))?;
    Signer::from_pem(text).map_err(|_| wrong(&"no P-256 private key in PEM: another file, or damaged"))
}
