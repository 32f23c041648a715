//! Sealed files: each holds a secret of one signer, which cannot be read without the sealing key.
//!
//! `LWSF`, version 1, kind of content, two zeros, the signer's id, then a blob of [`linewarden_files::seal`], which is bound to
//! these first 16 bytes.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use linewarden_files::seal::{NotAuthentic, Sealer};
use linewarden_files::{PrivateFileError, create_private, read_private};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::message::{KEY_ID_BYTES, KeyId};

const MAGIC: &[u8; 4] = b"LWSF";
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 16;
const PURPOSE: &str = "linewarden signatures 1";

/// The key that seals a signer's secrets: 32 random bytes.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct SealingKey([u8; 32]);

impl SealingKey {
    /// A key of 32 random bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The sealer of one signer's secrets.
    pub(super) fn sealer(&self, key_id: KeyId) -> Sealer {
        Sealer::derive(&self.0, &key_id.0, PURPOSE)
    }
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealingKey(..)")
    }
}

/// Content of a sealed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SealedKind {
    /// A private key.
    Key = 1,
    /// The table of a key of RA.
    Table = 2,
}

impl SealedKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Key => "private key",
            Self::Table => "table",
        }
    }
}

/// Why a sealed file cannot be created or opened.
#[derive(Debug, thiserror::Error)]
pub enum SealedFileError {
    /// The operating system returned an error.
    #[error("{path}: {source}")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// Other users could read or write the file.
    #[error("{path}: {source}")]
    UnsafePermissions {
        /// Path of the file.
        path: PathBuf,
        /// The unsafe property.
        source: PrivateFileError,
    },
    /// The file has other content.
    #[error("not a {expected} of a signer: {path}; make one with `linewarden signed keygen`")]
    WrongKind {
        /// Path of the file.
        path: PathBuf,
        /// Expected content.
        expected: &'static str,
    },
    /// The file has an unsupported version.
    #[error("unsupported version {version} of sealed file {path}")]
    UnsupportedVersion {
        /// Path of the file.
        path: PathBuf,
        /// The version.
        version: u8,
    },
    /// Opening with the sealing key failed.
    #[error(
        "opening {path} with this sealing key failed: the file is damaged or was sealed with another key"
    )]
    NotAuthentic {
        /// Path of the file.
        path: PathBuf,
    },
    /// The system returned no random bytes for a nonce.
    #[error("getting random bytes failed: {0}")]
    Entropy(getrandom::Error),
}

fn header(kind: SealedKind, key_id: KeyId) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    let parts = [MAGIC.as_slice(), &[VERSION, kind as u8, 0, 0], &key_id.0];
    for (byte, source_byte) in header.iter_mut().zip(parts.concat()) {
        *byte = source_byte;
    }
    header
}

/// Creates a sealed file of mode 0600, durably.
///
/// # Errors
/// The file exists, or writing failed.
pub fn create_sealed(
    path: &Path,
    kind: SealedKind,
    key_id: KeyId,
    sealing_key: &SealingKey,
    secret: &[u8],
) -> Result<(), SealedFileError> {
    let header = header(kind, key_id);
    let blob = sealing_key
        .sealer(key_id)
        .seal(&header, secret.len(), |out| out.extend_from_slice(secret))
        .map_err(SealedFileError::Entropy)?;
    create_private(path, &[header.as_slice(), &blob].concat()).map_err(|source| SealedFileError::Io {
        path: path.to_owned(),
        source,
    })
}

/// Opens a sealed file. Returns its signer, and its content of at most `bytes_max` bytes.
///
/// # Errors
/// Reading failed, other users can read the file, the content is of another kind, or the sealing key does not match.
pub fn open_sealed(
    path: &Path,
    kind: SealedKind,
    sealing_key: &SealingKey,
    bytes_max: usize,
) -> Result<(KeyId, Zeroizing<Vec<u8>>), SealedFileError> {
    let bytes_max = bytes_max.saturating_add(HEADER_BYTES + linewarden_files::seal::SEAL_OVERHEAD_BYTES);
    let wrong_kind = || SealedFileError::WrongKind {
        path: path.to_owned(),
        expected: kind.name(),
    };
    let bytes = read_private(path, bytes_max).map_err(|error| match error {
        PrivateFileError::Io(error) if error.kind() == std::io::ErrorKind::FileTooLarge => wrong_kind(),
        PrivateFileError::Io(source) => SealedFileError::Io {
            path: path.to_owned(),
            source,
        },
        source @ PrivateFileError::Unsafe { .. } => SealedFileError::UnsafePermissions {
            path: path.to_owned(),
            source,
        },
    })?;
    let (head, blob) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or_else(wrong_kind)?;
    let [magic @ .., version, file_kind, _, _] = *head.first_chunk::<8>().ok_or_else(wrong_kind)?;
    if magic != *MAGIC {
        return Err(wrong_kind());
    }
    if version != VERSION {
        return Err(SealedFileError::UnsupportedVersion {
            path: path.to_owned(),
            version,
        });
    }
    if file_kind != kind as u8 {
        return Err(wrong_kind());
    }
    let key_id = KeyId(*head.last_chunk::<KEY_ID_BYTES>().ok_or_else(wrong_kind)?);
    let secret = sealing_key
        .sealer(key_id)
        .open(head, blob)
        .map_err(|NotAuthentic| SealedFileError::NotAuthentic {
            path: path.to_owned(),
        })?;
    Ok((key_id, secret))
}
