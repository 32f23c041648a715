//! Where k lies: a TPM, or a file that only its owner can read.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use linewarden_files::{PrivateFileError, read_private};
use linewarden_measurement::pcr::PcrValues;
#[cfg(feature = "tpm")]
use linewarden_tpm::device::{KeyBlobs, Retries, Tpm, TpmError, TpmKey};
#[cfg(feature = "tpm")]
use linewarden_tpm::{Again, enrol};
use linewarden_tpm::{AttestationKey as _, AttestationSecret, KeyError, Protection, SoftwareKey};
use zeroize::Zeroizing;

use super::subject::TpmSubject;

/// Of a software key: 64 hexadecimal digits, and a little more for what editors add.
const SOFTWARE_KEY_BYTES_MAX: usize = 80;
#[cfg(feature = "tpm")]
const BLOBS_BYTES_MAX: usize = 64 * 1024;

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// It cannot be read, or others can.
    #[error(transparent)]
    File(#[from] PrivateFileError),
    /// It is no software key.
    #[error(
        "it does not hold exactly 64 hexadecimal digits, as a software key does; a key in a TPM needs `tpm`"
    )]
    Software,
    /// It is nothing that enrolment of a TPM leaves.
    #[cfg(feature = "tpm")]
    #[error("it is not what enrolment with a TPM leaves: {0}")]
    Blobs(enrol::MessageError),
    /// Enrolment has begun and not ended.
    #[cfg(feature = "tpm")]
    #[error("the TPM has no key of this device yet; end the enrolment with `linewarden attest answer`")]
    NotEnrolled,
}

/// The key, or what the TPM needs to load it.
#[derive(Clone, Debug)]
pub enum KeySource {
    /// It is in this process.
    Software(SoftwareKey),
    /// It is in a TPM.
    #[cfg(feature = "tpm")]
    Tpm {
        /// Where the TPM is.
        tcti: String,
        /// What enrolment has left.
        blobs: KeyBlobs,
    },
}

impl KeySource {
    /// Reads a software key's file.
    ///
    /// # Errors
    /// [`KeyFileError`].
    pub fn software(path: &Path) -> Result<Self, KeyFileError> {
        let text = read_private(path, SOFTWARE_KEY_BYTES_MAX)?;
        let mut key = Zeroizing::new([0; 32]);
        hex::decode_to_slice(text.trim_ascii(), &mut *key).map_err(|_| KeyFileError::Software)?;
        Ok(Self::Software(SoftwareKey::new(AttestationSecret::new(*key))))
    }

    /// Reads what enrolment with the TPM at `tcti` has left.
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
    pub(crate) fn in_software(&self) -> Option<&SoftwareKey> {
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

    pub(crate) fn open(&self) -> Result<OpenKey, KeyError> {
        match self {
            Self::Software(key) => Ok(OpenKey::Software(key.clone())),
            #[cfg(feature = "tpm")]
            Self::Tpm { tcti, blobs } => {
                let key = blobs.key.as_ref().ok_or(KeyError::Tpm {
                    what: KeyFileError::NotEnrolled.to_string(),
                    again: Again::Never,
                })?;
                let loaded = TpmKey::load(open(tcti)?, blobs.endorsement, key)?;
                Ok(OpenKey::Tpm(loaded))
            }
        }
    }
}

/// The file that a key was read from: another one may take its place while the agent runs, as when the device is enrolled anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFile {
    path: PathBuf,
    tcti: Option<String>,
    /// As it was before the key was read; `None`: no key was read yet.
    stamp: Option<Stamp>,
}

/// What tells one content of a file from another.
type Stamp = (u64, u64, u64, i64, i64);

impl KeyFile {
    /// A file of which nothing was read yet. `tcti` names the TPM that the key lies in; `None` of a software key.
    #[must_use]
    pub fn new(path: PathBuf, tcti: Option<String>) -> Self {
        Self {
            path,
            tcti,
            stamp: None,
        }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the key.
    ///
    /// # Errors
    /// [`KeyFileError`]; the file counts as unread then.
    pub fn read(&mut self) -> Result<KeySource, KeyFileError> {
        // Before it: a file that is replaced meanwhile is read again.
        let stamp = self.current_stamp();
        let key = match &self.tcti {
            #[cfg(feature = "tpm")]
            Some(tcti) => KeySource::in_tpm(tcti, &self.path),
            _ => KeySource::software(&self.path),
        }?;
        self.stamp = stamp;
        Ok(key)
    }

    /// Whether it is there, and not as it was when the key was read.
    pub(crate) fn is_replaced(&self) -> bool {
        let stamp = self.current_stamp();
        stamp.is_some() && stamp != self.stamp
    }

    /// Another one after each change; `None`: it is not there.
    fn current_stamp(&self) -> Option<Stamp> {
        let found = self.path.metadata().ok()?;
        Some((
            found.dev(),
            found.ino(),
            found.size(),
            found.ctime(),
            found.ctime_nsec(),
        ))
    }
}

/// What enrolment keeps in the key's file.
#[cfg(feature = "tpm")]
pub(crate) fn read_blobs(path: &Path) -> Result<KeyBlobs, KeyFileError> {
    let bytes = read_private(path, BLOBS_BYTES_MAX)?;
    enrol::from_json(&bytes).map_err(KeyFileError::Blobs)
}

/// Opens a TPM; what it says may succeed later is tried a few times within a second.
#[cfg(feature = "tpm")]
pub(crate) fn open(tcti: &str) -> Result<Tpm, TpmError> {
    let wait = |attempt| std::thread::sleep(std::time::Duration::from_millis(50u64 << attempt));
    Tpm::open(tcti, Retries::new(3, wait))
}

/// The key, ready for use.
#[derive(Debug)]
pub(crate) enum OpenKey {
    Software(SoftwareKey),
    #[cfg(feature = "tpm")]
    Tpm(TpmKey),
}

impl OpenKey {
    pub(crate) fn hmac(&mut self, message: &[u8]) -> Result<[u8; 32], KeyError> {
        match self {
            Self::Software(key) => key.hmac(message),
            #[cfg(feature = "tpm")]
            Self::Tpm(key) => key.hmac(message),
        }
    }

    pub(crate) fn pcrs(&mut self, subject: &TpmSubject) -> Result<PcrValues, KeyError> {
        match self {
            // Nobody has configured PCRs without a TPM.
            Self::Software(_) => Ok(PcrValues::new(subject.bank)),
            #[cfg(feature = "tpm")]
            Self::Tpm(key) => Ok(key.tpm().pcrs(subject.bank, subject.pcrs)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_key_is_read_again_when_its_file_was_replaced_or_could_not_be_read() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("attest.key");
        let write = |text: &str| {
            let next = home.path().join("next.key");
            std::fs::write(&next, text).unwrap();
            std::fs::set_permissions(&next, Permissions::from_mode(0o600)).unwrap();
            std::fs::rename(&next, &path).unwrap();
        };
        let mut file = KeyFile::new(path.clone(), None);
        assert!(!file.is_replaced(), "it is not there");
        write(&"42".repeat(32));
        assert!(file.is_replaced());
        file.read().unwrap();
        assert!(!file.is_replaced());
        write("half of a k");
        file.read().unwrap_err();
        assert!(file.is_replaced(), "the same content is tried again");
        write(&"43".repeat(32));
        file.read().unwrap();
        assert!(!file.is_replaced());
    }
}
