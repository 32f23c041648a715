//! The helper data of a device, from a file, and the keys that they give together with its PUF.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use linewarden_files::open_regular;
use linewarden_protocol::device::PufQuery;
use linewarden_protocol::ids::{DeviceId, Mode, Suite};
use linewarden_protocol::keys::RowKey;
use linewarden_puf::Puf;
use linewarden_puf::extractor::{ExtractorError, FileError, HelperData, PoolHelper, reproduce_puf};
use linewarden_puf::health::HealthTest;

use crate::spent::SpentError;

/// Why a file of helper data cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// It cannot be opened.
    #[error("{}: {source}; it is the helper data that enrolment wrote for this device", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It begins as neither kind of helper data does.
    #[error("{}: neither pool-mode (LWHP) nor key-mode (LWHK) helper data", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
    },
    /// Its content is wrong.
    #[error(transparent)]
    Content(#[from] FileError),
    /// What lies beside it.
    #[error(transparent)]
    Spent(#[from] SpentError),
}

/// The public helper data that a device stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// Of a strong PUF: rows.
    Pool(PoolHelper),
    /// Of a weak PUF: one key.
    Key(HelperData),
}

impl Credential {
    /// Reads a file that enrolment wrote.
    ///
    /// # Errors
    /// The file, and the byte and problem of a bad content (repeated cells and wrong counts among them, LAP/1 1.1).
    pub fn read_from(path: &Path) -> Result<Self, CredentialError> {
        let mut magic = [0; 4];
        let file = open_regular(path, OpenOptions::new().read(true));
        let opened = file.and_then(|mut file| file.read_exact(&mut magic));
        match (opened, &magic) {
            (Ok(()), b"LWHP") => Ok(Self::Pool(PoolHelper::read_from(path)?)),
            (Ok(()), b"LWHK") => Ok(Self::Key(HelperData::read_from(path)?)),
            (Err(source), _) if source.kind() != ErrorKind::UnexpectedEof => Err(CredentialError::Open {
                path: path.to_owned(),
                source,
            }),
            _ => Err(CredentialError::Kind {
                path: path.to_owned(),
            }),
        }
    }

    /// Their file's content.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Pool(helper) => helper.to_bytes(),
            Self::Key(helper) => helper.to_bytes(),
        }
    }

    /// The mode that they are for.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self {
            Self::Pool(_) => Mode::Pool,
            Self::Key(_) => Mode::Key,
        }
    }

    /// Whether they have that row, with that challenge.
    #[must_use]
    pub fn is_enrolled(&self, query: &PufQuery) -> bool {
        match self {
            Self::Pool(helper) => {
                let row = helper.row(query.idx.0);
                row.is_some_and(|row| row.challenge == query.challenge)
            }
            Self::Key(_) => true,
        }
    }

    /// Reads the PUF once and rebuilds the key of the row that a CHALLENGE offers.
    ///
    /// # Errors
    /// A reading that failed, that is unhealthy or has too many errors, or a row that was never enrolled.
    pub fn row_key(
        &self,
        puf: &mut dyn Puf,
        health: &HealthTest,
        suite: Suite,
        device: DeviceId,
        query: &PufQuery,
    ) -> Result<RowKey, ExtractorError> {
        match self {
            Self::Pool(helper) => {
                let secret = helper.reproduce(query.idx.0, query.challenge, puf, health)?;
                // The row is there, or the line above has failed.
                let digest = helper.digest(query.idx.0).ok_or(ExtractorError::Uncorrectable)?;
                Ok(RowKey::for_row(
                    secret.expose(),
                    &digest,
                    suite,
                    device,
                    query.idx,
                ))
            }
            Self::Key(helper) => {
                let secret = reproduce_puf(puf, helper, health)?;
                Ok(RowKey::for_device(
                    secret.expose(),
                    &helper.digest(),
                    suite,
                    device,
                ))
            }
        }
    }
}
