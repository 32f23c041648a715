//! A sealed file: a secret of one signer, readable with the sealing key only.
//!
//! `LWSF`, version 1, what it holds, two zeros, the signer's id, then a blob as [`linewarden_files::seal`] has it, which is bound to
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

/// The key under which a signer's secrets are sealed: 32 random bytes.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct SealingKey([u8; 32]);

impl SealingKey {
    /// Takes over 32 random bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// What seals the secrets of one signer.
    pub(super) fn sealer(&self, key_id: KeyId) -> Sealer {
        Sealer::derive(&self.0, &key_id.0, PURPOSE)
    }
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealingKey(..)")
    }
}

/// What a sealed file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SealedKind {
    /// A private key.
    Key = 1,
    /// The table of a key for RA.
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

/// Why a sealed file cannot be made or opened.
#[derive(Debug, thiserror::Error)]
pub enum SealedFileError {
    /// The operating system refuses.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What it says.
        source: io::Error,
    },
    /// Others could have read or written it.
    #[error("{path}: {source}")]
    Unsafe {
        /// Which file.
        path: PathBuf,
        /// What is unsafe.
        source: PrivateFileError,
    },
    /// Not such a file.
    #[error("{path}: no {wanted} of a signer; `linewarden signed keygen` makes one")]
    Foreign {
        /// Which file.
        path: PathBuf,
        /// What was wanted.
        wanted: &'static str,
    },
    /// Another version wrote it.
    #[error("{path}: written in version {version} of this format, which this program does not read")]
    Version {
        /// Which file.
        path: PathBuf,
        /// Its version.
        version: u8,
    },
    /// It does not open.
    #[error("{path}: does not open with this sealing key: it is damaged, or was sealed with another")]
    NotAuthentic {
        /// Which file.
        path: PathBuf,
    },
    /// No random bytes for a nonce.
    #[error("no random bytes: {0}")]
    Entropy(getrandom::Error),
}

fn header(kind: SealedKind, key_id: KeyId) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    let parts = [MAGIC.as_slice(), &[VERSION, kind as u8, 0, 0], &key_id.0];
    for (byte, of_part) in header.iter_mut().zip(parts.concat()) {
        *byte = of_part;
    }
    header
}

/// Makes a sealed file of mode 0600, durably.
///
/// # Errors
/// Something is there already, or it cannot be written.
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

/// Opens a sealed file: whose it is, and what it holds, of at most `bytes_max` bytes.
///
/// # Errors
/// It cannot be read, others can, it is something else, or does not open with this key.
pub fn open_sealed(
    path: &Path,
    kind: SealedKind,
    sealing_key: &SealingKey,
    bytes_max: usize,
) -> Result<(KeyId, Zeroizing<Vec<u8>>), SealedFileError> {
    let bytes_max = bytes_max.saturating_add(HEADER_BYTES + linewarden_files::seal::SEAL_OVERHEAD_BYTES);
    let foreign = || SealedFileError::Foreign {
        path: path.to_owned(),
        wanted: kind.name(),
    };
    let bytes = read_private(path, bytes_max).map_err(|error| match error {
        PrivateFileError::Io(error) if error.kind() == std::io::ErrorKind::FileTooLarge => foreign(),
        PrivateFileError::Io(source) => SealedFileError::Io {
            path: path.to_owned(),
            source,
        },
        source @ PrivateFileError::Unsafe { .. } => SealedFileError::Unsafe {
            path: path.to_owned(),
            source,
        },
    })?;
    let (head, blob) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or_else(foreign)?;
    let [magic @ .., version, of_kind, _, _] = *head.first_chunk::<8>().ok_or_else(foreign)?;
    if magic != *MAGIC {
        return Err(foreign());
    }
    if version != VERSION {
        return Err(SealedFileError::Version {
            path: path.to_owned(),
            version,
        });
    }
    if of_kind != kind as u8 {
        return Err(foreign());
    }
    let key_id = KeyId(*head.last_chunk::<KEY_ID_BYTES>().ok_or_else(foreign)?);
    let secret = sealing_key
        .sealer(key_id)
        .open(head, blob)
        .map_err(|NotAuthentic| SealedFileError::NotAuthentic {
            path: path.to_owned(),
        })?;
    Ok((key_id, secret))
}
