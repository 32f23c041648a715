//! Reads a device's helper data, and derives keys from them and the PUF.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read as _};
use std::path::Path;

use linewarden_files::open_regular;
use linewarden_protocol::device::PufQuery;
use linewarden_protocol::ids::{DeviceId, Mode, Suite};
use linewarden_protocol::keys::RowKey;
use linewarden_puf::Puf;
use linewarden_puf::extractor::{ExtractorError, HelperData, PoolHelper, reproduce_puf};
use linewarden_puf::health::HealthTest;

use crate::error::CredentialError;

/// Public helper data that a device stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// Helper data of a strong PUF: rows.
    Pool(PoolHelper),
    /// Helper data of a weak PUF: one key.
    Key(HelperData),
}

impl Credential {
    /// Reads a helper data file.
    ///
    /// # Errors
    /// The file cannot be read, or its content is invalid, for example with repeated cells or wrong counts (LAP/1 1.1). The
    /// error states the file, and the byte and problem of invalid content.
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

    /// Encodes the helper data for a file.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Pool(helper) => helper.to_bytes(),
            Self::Key(helper) => helper.to_bytes(),
        }
    }

    /// The mode of the helper data.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self {
            Self::Pool(_) => Mode::Pool,
            Self::Key(_) => Mode::Key,
        }
    }

    /// Whether the helper data contain this row with this challenge.
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

    /// Reads the PUF once and reconstructs the key of the row that a CHALLENGE offers.
    ///
    /// # Errors
    /// A readout fails, is unhealthy or has too many errors, or the row was never enrolled.
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
                // The row has a digest, because `reproduce` fails for a row that does not exist.
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
