//! The attestation key k: in a TPM, or in a file that only its owner can read.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use linewarden_files::{PrivateFileError, read_private};
use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::pcr::{PcrSelection, PcrValues};
#[cfg(feature = "tpm")]
use linewarden_tpm::device::{KeyBlobs, Retries, Tpm, TpmError, TpmKey};
use linewarden_tpm::{AttestationKey as _, AttestationSecret, KeyError, Protection, SoftwareKey};
#[cfg(feature = "tpm")]
use linewarden_tpm::{Retry, enroll};
use zeroize::Zeroizing;

#[cfg(feature = "tpm")]
use crate::retry;

/// Maximum size of a software key file: 64 hexadecimal digits, and some white space that editors add.
const SOFTWARE_KEY_BYTES_MAX: usize = 80;
#[cfg(feature = "tpm")]
const BLOBS_BYTES_MAX: usize = 64 * 1024;

/// Why the key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file is unreadable, or other users can read it.
    #[error(transparent)]
    File(#[from] PrivateFileError),
    /// The file is not a software key.
    #[error(
        "not exactly 64 hexadecimal digits, as a software key has; for a key in a TPM, set `tpm` in `[attest]`"
    )]
    Software,
    /// The file was not written by an enrollment with a TPM.
    #[cfg(feature = "tpm")]
    #[error("not a key file of an enrollment with a TPM: {0}")]
    Blobs(enroll::MessageError),
    /// The enrollment is incomplete.
    #[cfg(feature = "tpm")]
    #[error("the TPM has no key of this device yet; complete the enrollment with `linewarden-agent answer`")]
    NotEnrolled,
}

/// The key, or the data that the TPM needs to load the key.
#[derive(Clone, Debug)]
pub enum KeySource {
    /// A key in this process.
    Software(SoftwareKey),
    /// A key in a TPM.
    #[cfg(feature = "tpm")]
    Tpm {
        /// TCTI of the TPM.
        tcti: String,
        /// The content of the key file.
        blobs: KeyBlobs,
    },
}

impl KeySource {
    /// Reads a software key file.
    ///
    /// # Errors
    /// [`KeyFileError`].
    pub fn software(path: &Path) -> Result<Self, KeyFileError> {
        let text = read_private(path, SOFTWARE_KEY_BYTES_MAX)?;
        let mut key = Zeroizing::new([0; 32]);
        hex::decode_to_slice(text.trim_ascii(), &mut *key).map_err(|_| KeyFileError::Software)?;
        Ok(Self::Software(SoftwareKey::new(AttestationSecret::new(*key))))
    }

    /// Reads the key file of an enrollment with the TPM at `tcti`.
    ///
    /// # Errors
    /// [`KeyFileError`].
    #[cfg(feature = "tpm")]
    pub fn in_tpm(tcti: &str, path: &Path) -> Result<Self, KeyFileError> {
        let blobs = read_blobs(path)?;
        match blobs.key {
            Some(_) => Ok(Self::Tpm {
                tcti: tcti.to_owned(),
                blobs,
            }),
            None => Err(KeyFileError::NotEnrolled),
        }
    }

    /// The key, if it is in this process.
    pub(crate) fn software_key(&self) -> Option<&SoftwareKey> {
        match self {
            Self::Software(key) => Some(key),
            #[cfg(feature = "tpm")]
            Self::Tpm { .. } => None,
        }
    }

    pub(crate) fn protection(&self) -> Protection {
        match self {
            Self::Software(key) => key.protection(),
            #[cfg(feature = "tpm")]
            Self::Tpm { .. } => Protection::Tpm,
        }
    }

    pub(crate) fn open(&self) -> Result<LoadedKey, KeyError> {
        match self {
            Self::Software(key) => Ok(LoadedKey::Software(key.clone())),
            #[cfg(feature = "tpm")]
            Self::Tpm { tcti, blobs } => {
                let key = blobs.key.as_ref().ok_or(KeyError::Tpm {
                    message: KeyFileError::NotEnrolled.to_string(),
                    retry: Retry::Never,
                })?;
                let loaded = TpmKey::load(open(tcti)?, blobs.endorsement, key)?;
                Ok(LoadedKey::Tpm(loaded))
            }
        }
    }
}

/// The file of a key, which may be replaced while the agent runs, for example by a new enrollment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFile {
    path: PathBuf,
    tcti: Option<String>,
    /// Identity of the file when the key was read; `None`: not read yet.
    read_identity: Option<FileIdentity>,
}

/// Distinguishes contents of a file: device, inode, size and change time.
type FileIdentity = (u64, u64, u64, i64, i64);

impl KeyFile {
    /// A key file that is not read yet. `tcti` names the TPM of the key; `None` for a software key.
    #[must_use]
    pub fn new(path: PathBuf, tcti: Option<String>) -> Self {
        Self {
            path,
            tcti,
            read_identity: None,
        }
    }

    /// Path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the key.
    ///
    /// # Errors
    /// [`KeyFileError`]; the recorded identity then stays unchanged, so the file still counts as new or
    /// replaced.
    pub fn read(&mut self) -> Result<KeySource, KeyFileError> {
        // The identity is determined before the key is read. A file that is replaced during the read then counts as
        // replaced, and is read again.
        let identity = self.current_identity();
        let key = match &self.tcti {
            #[cfg(feature = "tpm")]
            Some(tcti) => KeySource::in_tpm(tcti, &self.path),
            _ => KeySource::software(&self.path),
        }?;
        self.read_identity = identity;
        Ok(key)
    }

    /// Whether the file exists and has changed since the key was read.
    pub(crate) fn is_replaced(&self) -> bool {
        let identity = self.current_identity();
        identity.is_some() && identity != self.read_identity
    }

    /// The present identity; `None` if the file does not exist.
    fn current_identity(&self) -> Option<FileIdentity> {
        let metadata = self.path.metadata().ok()?;
        Some((
            metadata.dev(),
            metadata.ino(),
            metadata.size(),
            metadata.ctime(),
            metadata.ctime_nsec(),
        ))
    }
}

/// Reads the key file of an enrollment with a TPM.
#[cfg(feature = "tpm")]
pub(crate) fn read_blobs(path: &Path) -> Result<KeyBlobs, KeyFileError> {
    let bytes = read_private(path, BLOBS_BYTES_MAX)?;
    enroll::from_json(&bytes).map_err(KeyFileError::Blobs)
}

/// Opens a TPM; errors that may be temporary are retried a few times within a second.
#[cfg(feature = "tpm")]
pub(crate) fn open(tcti: &str) -> Result<Tpm, TpmError> {
    Tpm::open(tcti, Retries::with_backoff(retry::random))
}

/// A key that is ready for use.
#[derive(Debug)]
pub(crate) enum LoadedKey {
    Software(SoftwareKey),
    #[cfg(feature = "tpm")]
    Tpm(TpmKey),
}

impl LoadedKey {
    pub(crate) fn hmac(&mut self, message: &[u8]) -> Result<[u8; 32], KeyError> {
        match self {
            Self::Software(key) => key.hmac(message),
            #[cfg(feature = "tpm")]
            Self::Tpm(key) => key.hmac(message),
        }
    }

    #[cfg_attr(not(feature = "tpm"), allow(unused_variables, reason = "only a TPM has PCRs"))]
    pub(crate) fn pcrs(&mut self, bank: HashAlgorithm, pcrs: PcrSelection) -> Result<PcrValues, KeyError> {
        match self {
            // Without a TPM no PCRs are configured.
            Self::Software(_) => Ok(PcrValues::new(bank)),
            #[cfg(feature = "tpm")]
            Self::Tpm(key) => Ok(key.tpm().pcrs(bank, pcrs)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_replaced_or_unreadable_key_file_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("attest.key");
        let write = |text: &str| {
            let next = directory.path().join("next.key");
            std::fs::write(&next, text).unwrap();
            std::fs::set_permissions(&next, Permissions::from_mode(0o600)).unwrap();
            std::fs::rename(&next, &path).unwrap();
        };
        let mut file = KeyFile::new(path.clone(), None);
        assert!(!file.is_replaced(), "the file does not exist");
        write(&"42".repeat(32));
        assert!(file.is_replaced());
        file.read().unwrap();
        assert!(!file.is_replaced());
        write("half of a k");
        file.read().unwrap_err();
        assert!(file.is_replaced(), "the same content is read again");
        write(&"43".repeat(32));
        file.read().unwrap();
        assert!(!file.is_replaced());
    }
}
