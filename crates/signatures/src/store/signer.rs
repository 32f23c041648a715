//! The directory with a signer's files.
//!
//! | file | |
//! |---|---|
//! | `signer.json` | the public key, for receivers |
//! | `key` | the private key, sealed |
//! | `table` | with RA: signatures of all component values, sealed |
//! | `masks` | with RA: [masks](super::MaskFile) made in advance |
//! | `seal.key` | the sealing key, unless stored elsewhere: 64 hexadecimal digits |

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use linewarden_files::{PrivateFileError, create_private, read_private, read_text_bounded, replace};
use zeroize::Zeroizing;

use super::machine::MachineId;
use super::mask_file::{MaskFile, MaskFileError};
use super::sealed::{SealedFileError, SealedKind, SealingKey, create_sealed, open_sealed};
use crate::key::{PUBLIC_KEY_BYTES_MAX, PrivateKey, PrivateKeyError, PublicKey, PublicKeyTextError};
use crate::ra::{ROWS_MAX, Table, TableMismatch};

const PUBLIC_KEY_FILE: &str = "signer.json";
const PRIVATE_KEY_FILE: &str = "key";
const TABLE_FILE: &str = "table";
const MASKS_FILE: &str = "masks";
const SEALING_KEY_FILE: &str = "seal.key";
/// Maximum length of a private key: with sub-messages in its layout, it is as long as a public key.
const KEY_BYTES_MAX: usize = PUBLIC_KEY_BYTES_MAX;
const TABLE_BYTES_MAX: usize = ROWS_MAX * 384;
/// Maximum length of the file of a sealing key: 64 digits and a line end.
const SEAL_BYTES_MAX: usize = 66;

/// Why a signer's files cannot be created or read.
#[derive(Debug, thiserror::Error)]
pub enum SignerFileError {
    /// The operating system returned an error.
    #[error("{path}: {source}")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// A sealed file cannot be created or opened.
    #[error(transparent)]
    Sealed(#[from] SealedFileError),
    /// The content of a sealed file is not a key.
    #[error("{path}: {source}")]
    Key {
        /// Path of the file.
        path: PathBuf,
        /// The error.
        source: PrivateKeyError,
    },
    /// The content of a sealed file is not a table of this key.
    #[error("{path}: {source}")]
    Table {
        /// Path of the file.
        path: PathBuf,
        /// The error.
        source: TableMismatch,
    },
    /// The public key is invalid.
    #[error("{path}: {source}")]
    Public {
        /// Path of the file.
        path: PathBuf,
        /// The error.
        source: PublicKeyTextError,
    },
    /// The directory has files of two signers.
    #[error("signer mismatch: {path} belongs to another signer than the key in the same directory")]
    SignerMismatch {
        /// Path of the file.
        path: PathBuf,
    },
    /// Other users could read the sealing key.
    #[error("{path}: {source}")]
    UnsafeSealingKey {
        /// Path of the file.
        path: PathBuf,
        /// The unsafe property.
        source: PrivateFileError,
    },
    /// The file is not a sealing key.
    #[error("invalid sealing key in {path}; expected 64 hexadecimal digits")]
    InvalidSealingKey {
        /// Path of the file.
        path: PathBuf,
    },
    /// The system returned no random bytes.
    #[error("getting random bytes failed: {0}")]
    Entropy(getrandom::Error),
}

/// Path of a signer's directory; files are read on demand.
#[derive(Debug, Clone)]
pub struct SignerDirectory(PathBuf);

impl SignerDirectory {
    /// The directory at this path, which need not exist yet.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Path of the sealing key, unless it is stored elsewhere.
    #[must_use]
    pub fn seal_path(&self) -> PathBuf {
        self.0.join(SEALING_KEY_FILE)
    }

    /// Path of the public key.
    #[must_use]
    pub fn public_path(&self) -> PathBuf {
        self.0.join(PUBLIC_KEY_FILE)
    }

    /// Path of the mask file.
    #[must_use]
    pub fn masks_path(&self) -> PathBuf {
        self.0.join(MASKS_FILE)
    }

    /// Writes the private key, the table if the scheme is RA, and the public key. The public key is written last, so a
    /// directory with a public key is complete.
    ///
    /// # Errors
    /// Files exist, or writing failed.
    pub fn create(
        &self,
        key: &PrivateKey,
        table: Option<&Table>,
        sealing_key: &SealingKey,
    ) -> Result<(), SignerFileError> {
        let id = key.public().id();
        let secret = key
            .to_bytes()
            .map_err(|error| self.io(PRIVATE_KEY_FILE)(error.into()))?;
        create_sealed(
            &self.0.join(PRIVATE_KEY_FILE),
            SealedKind::Key,
            id,
            sealing_key,
            &secret,
        )?;
        if let Some(table) = table {
            let rows = table.to_bytes().map_err(|fault| SignerFileError::Key {
                path: self.0.join(TABLE_FILE),
                source: fault.into(),
            })?;
            create_sealed(
                &self.0.join(TABLE_FILE),
                SealedKind::Table,
                id,
                sealing_key,
                &rows,
            )?;
        }
        let public = key
            .public()
            .to_json()
            .map_err(|error| self.io(PUBLIC_KEY_FILE)(error.into()))?;
        replace(&self.public_path(), public.as_bytes()).map_err(self.io(PUBLIC_KEY_FILE))
    }

    /// Reads the private key.
    ///
    /// # Errors
    /// The file is missing, cannot be opened with this sealing key, or is invalid.
    pub fn key(&self, sealing_key: &SealingKey) -> Result<PrivateKey, SignerFileError> {
        let path = self.0.join(PRIVATE_KEY_FILE);
        let (id, secret) = open_sealed(&path, SealedKind::Key, sealing_key, KEY_BYTES_MAX)?;
        match PrivateKey::from_bytes(&secret) {
            Ok(key) if key.public().id() == id => Ok(key),
            Ok(_) => Err(SignerFileError::SignerMismatch { path }),
            Err(source) => Err(SignerFileError::Key { path, source }),
        }
    }

    /// Reads the table of this key; `None` for a plain scheme.
    ///
    /// # Errors
    /// The file is missing, cannot be opened, or belongs to another key.
    pub fn table(
        &self,
        key: &PrivateKey,
        sealing_key: &SealingKey,
    ) -> Result<Option<Table>, SignerFileError> {
        let Some(ra) = key.ra() else {
            return Ok(None);
        };
        let path = self.0.join(TABLE_FILE);
        let (id, bytes) = open_sealed(&path, SealedKind::Table, sealing_key, TABLE_BYTES_MAX)?;
        if id != key.public().id() {
            return Err(SignerFileError::SignerMismatch { path });
        }
        Table::from_bytes(Arc::clone(ra.public()), &bytes)
            .map(Some)
            .map_err(|source| SignerFileError::Table { path, source })
    }

    /// Opens the mask file of this key; creates the file if it is missing.
    ///
    /// # Errors
    /// Errors of the mask file.
    pub fn masks(
        &self,
        key: &PrivateKey,
        machine: &MachineId,
        sealing_key: &SealingKey,
    ) -> Result<MaskFile, MaskFileError> {
        let (path, public) = (self.masks_path(), key.public());
        match MaskFile::open(&path, public.scheme(), public.id(), machine, sealing_key) {
            Err(MaskFileError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                MaskFile::create(&path, public.scheme(), public.id(), machine, sealing_key)
            }
            result => result,
        }
    }

    /// Number of masks that remain in this key's mask file; 0 without a file.
    ///
    /// # Errors
    /// Errors of the mask file.
    pub fn masks_left(&self, key: &PublicKey, machine: &MachineId) -> Result<u64, MaskFileError> {
        match MaskFile::masks_left(&self.masks_path(), key.scheme(), key.id(), machine) {
            Err(MaskFileError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(0),
            result => result,
        }
    }

    fn io(&self, file: &str) -> impl FnOnce(io::Error) -> SignerFileError + use<> {
        let path = self.0.join(file);
        move |source| SignerFileError::Io { path, source }
    }
}

/// Reads a public key.
///
/// # Errors
/// The file cannot be read, or is not a public key.
pub fn read_public(path: &Path) -> Result<PublicKey, SignerFileError> {
    let text = read_text_bounded(path, PUBLIC_KEY_BYTES_MAX).map_err(|source| SignerFileError::Io {
        path: path.to_owned(),
        source,
    })?;
    PublicKey::from_json(&text).map_err(|source| SignerFileError::Public {
        path: path.to_owned(),
        source,
    })
}

impl SealingKey {
    /// Reads a key from a file that only its owner can read.
    ///
    /// # Errors
    /// Reading failed, other users can read the file, or the content is invalid.
    pub fn read(path: &Path) -> Result<Self, SignerFileError> {
        let text = read_private(path, SEAL_BYTES_MAX).map_err(|error| match error {
            PrivateFileError::Io(source) => SignerFileError::Io {
                path: path.to_owned(),
                source,
            },
            source @ PrivateFileError::Unsafe { .. } => SignerFileError::UnsafeSealingKey {
                path: path.to_owned(),
                source,
            },
        })?;
        let mut bytes = Zeroizing::new([0; 32]);
        hex::decode_to_slice(text.trim_ascii_end(), &mut *bytes).map_err(|_| {
            SignerFileError::InvalidSealingKey {
                path: path.to_owned(),
            }
        })?;
        Ok(Self::from_bytes(*bytes))
    }

    /// Creates a random key in a new file of mode 0600.
    ///
    /// # Errors
    /// The file exists, or writing failed.
    pub fn create(path: &Path) -> Result<Self, SignerFileError> {
        let mut bytes = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *bytes).map_err(SignerFileError::Entropy)?;
        let mut text = Zeroizing::new([b'\n'; 65]);
        let digits = text.first_chunk_mut::<64>();
        digits
            .map_or(Ok(()), |digits| hex::encode_to_slice(*bytes, digits))
            .map_err(io::Error::other)
            .and_then(|()| create_private(path, text.as_slice()))
            .map_err(|source| SignerFileError::Io {
                path: path.to_owned(),
                source,
            })?;
        Ok(Self::from_bytes(*bytes))
    }
}
