//! A signer's directory.
//!
//! | file | |
//! |---|---|
//! | `signer.json` | the public key, for receivers |
//! | `key` | the private key, sealed |
//! | `table` | with RA: signatures of all components' values, sealed |
//! | `masks` | with RA: [masks](super::MaskFile) made ahead |
//! | `seal.key` | what opens them, unless it is kept elsewhere: 64 hexadecimal digits |

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use linewarden_files::{PrivateFileError, create_private, read_private, read_text_bounded, replace};
use zeroize::Zeroizing;

use super::machine::MachineId;
use super::mask_file::{MaskFile, MaskFileError};
use super::sealed::{SealedFileError, SealedKind, SealingKey, create_sealed, open_sealed};
use crate::key::{PUBLIC_KEY_BYTES_MAX, PrivateKey, PrivateKeyError, PublicKey, PublicKeyTextError};
use crate::ra::{NotThisTable, ROWS_MAX, Table};

const PUBLIC: &str = "signer.json";
const KEY: &str = "key";
const TABLE: &str = "table";
const MASKS: &str = "masks";
const SEAL: &str = "seal.key";
/// A layout with sub-messages makes a private key as long as a public one.
const KEY_BYTES_MAX: usize = PUBLIC_KEY_BYTES_MAX;
const TABLE_BYTES_MAX: usize = ROWS_MAX * 384;
/// 64 digits and a line's end.
const SEAL_BYTES_MAX: usize = 66;

/// Why a signer's files cannot be made or read.
#[derive(Debug, thiserror::Error)]
pub enum SignerFileError {
    /// The operating system refuses.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What it says.
        source: io::Error,
    },
    /// A sealed file cannot be made or opened.
    #[error(transparent)]
    Sealed(#[from] SealedFileError),
    /// What the sealed file holds is no key.
    #[error("{path}: {source}")]
    Key {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        source: PrivateKeyError,
    },
    /// What the sealed file holds is no table of this key.
    #[error("{path}: {source}")]
    Table {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        source: NotThisTable,
    },
    /// The public key is none.
    #[error("{path}: {source}")]
    Public {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        source: PublicKeyTextError,
    },
    /// Files of two signers.
    #[error("{path}: of another signer than the key beside it")]
    Mixed {
        /// Which file.
        path: PathBuf,
    },
    /// Others could have read the sealing key.
    #[error("{path}: {source}")]
    UnsafeSeal {
        /// Which file.
        path: PathBuf,
        /// What is unsafe.
        source: PrivateFileError,
    },
    /// Not a sealing key.
    #[error("{path}: no sealing key: 64 hexadecimal digits are")]
    Seal {
        /// Which file.
        path: PathBuf,
    },
    /// No random bytes.
    #[error("no random bytes: {0}")]
    Entropy(getrandom::Error),
}

/// A signer's directory, by its path; what is in it is read when it is asked for.
#[derive(Debug, Clone)]
pub struct SignerDirectory(PathBuf);

impl SignerDirectory {
    /// The directory at this path, which may be to be made.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Where the sealing key is, unless it is kept elsewhere.
    #[must_use]
    pub fn seal_path(&self) -> PathBuf {
        self.0.join(SEAL)
    }

    /// Where the public key is.
    #[must_use]
    pub fn public_path(&self) -> PathBuf {
        self.0.join(PUBLIC)
    }

    /// Where masks are.
    #[must_use]
    pub fn masks_path(&self) -> PathBuf {
        self.0.join(MASKS)
    }

    /// Writes a key, with RA its table, and the public key. The public key comes last: a directory that has one is whole.
    ///
    /// # Errors
    /// Files are there already, or cannot be written.
    pub fn create(
        &self,
        key: &PrivateKey,
        table: Option<&Table>,
        sealing_key: &SealingKey,
    ) -> Result<(), SignerFileError> {
        let id = key.public().id();
        let secret = key.to_bytes().map_err(|error| self.io(KEY)(error.into()))?;
        create_sealed(&self.0.join(KEY), SealedKind::Key, id, sealing_key, &secret)?;
        if let Some(table) = table {
            let rows = table.to_bytes().map_err(|fault| SignerFileError::Key {
                path: self.0.join(TABLE),
                source: fault.into(),
            })?;
            create_sealed(&self.0.join(TABLE), SealedKind::Table, id, sealing_key, &rows)?;
        }
        let public = key
            .public()
            .to_json()
            .map_err(|error| self.io(PUBLIC)(error.into()))?;
        replace(&self.public_path(), public.as_bytes()).map_err(self.io(PUBLIC))
    }

    /// Reads the private key.
    ///
    /// # Errors
    /// It is not there, does not open with this sealing key, or is none.
    pub fn key(&self, sealing_key: &SealingKey) -> Result<PrivateKey, SignerFileError> {
        let path = self.0.join(KEY);
        let (id, secret) = open_sealed(&path, SealedKind::Key, sealing_key, KEY_BYTES_MAX)?;
        match PrivateKey::from_bytes(&secret) {
            Ok(key) if key.public().id() == id => Ok(key),
            Ok(_) => Err(SignerFileError::Mixed { path }),
            Err(source) => Err(SignerFileError::Key { path, source }),
        }
    }

    /// Reads the table of this key; `None` if it is of a plain scheme.
    ///
    /// # Errors
    /// It is not there, does not open, or is another's.
    pub fn table(
        &self,
        key: &PrivateKey,
        sealing_key: &SealingKey,
    ) -> Result<Option<Table>, SignerFileError> {
        let Some(ra) = key.ra() else {
            return Ok(None);
        };
        let path = self.0.join(TABLE);
        let (id, bytes) = open_sealed(&path, SealedKind::Table, sealing_key, TABLE_BYTES_MAX)?;
        if id != key.public().id() {
            return Err(SignerFileError::Mixed { path });
        }
        Table::from_bytes(Arc::clone(ra.public()), &bytes)
            .map(Some)
            .map_err(|source| SignerFileError::Table { path, source })
    }

    /// Opens the file of this key's masks, which is made if there is none.
    ///
    /// # Errors
    /// Those of the file of masks.
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
            opened => opened,
        }
    }

    /// Masks that are left in this key's file, if there is one.
    ///
    /// # Errors
    /// Those of the file of masks.
    pub fn masks_left(&self, key: &PublicKey, machine: &MachineId) -> Result<u64, MaskFileError> {
        match MaskFile::left(&self.masks_path(), key.scheme(), key.id(), machine) {
            Err(MaskFileError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(0),
            left => left,
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
/// A file that cannot be read, or holds none.
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
    /// Reads a key from a file that only its owner may read.
    ///
    /// # Errors
    /// It cannot be read, others can, or it holds something else.
    pub fn read(path: &Path) -> Result<Self, SignerFileError> {
        let text = read_private(path, SEAL_BYTES_MAX).map_err(|error| match error {
            PrivateFileError::Io(source) => SignerFileError::Io {
                path: path.to_owned(),
                source,
            },
            source @ PrivateFileError::Unsafe { .. } => SignerFileError::UnsafeSeal {
                path: path.to_owned(),
                source,
            },
        })?;
        let mut bytes = Zeroizing::new([0; 32]);
        hex::decode_to_slice(text.trim_ascii_end(), &mut *bytes).map_err(|_| SignerFileError::Seal {
            path: path.to_owned(),
        })?;
        Ok(Self::from_bytes(*bytes))
    }

    /// Makes a random key in a new file of mode 0600.
    ///
    /// # Errors
    /// Something is there, or it cannot be written.
    pub fn create(path: &Path) -> Result<Self, SignerFileError> {
        let mut bytes = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *bytes).map_err(SignerFileError::Entropy)?;
        let mut line = Zeroizing::new([b'\n'; 65]);
        let digits = line.first_chunk_mut::<64>();
        digits
            .map_or(Ok(()), |digits| hex::encode_to_slice(*bytes, digits))
            .map_err(io::Error::other)
            .and_then(|()| create_private(path, line.as_slice()))
            .map_err(|source| SignerFileError::Io {
                path: path.to_owned(),
                source,
            })?;
        Ok(Self::from_bytes(*bytes))
    }
}
