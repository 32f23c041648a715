//! The device's part of the enrollment of its TPM (LAP/1 3.2; the protocol is in `linewarden_tpm::enroll`).
//!
//! The file of `[attest] key` stores all data that the TPM encrypts for itself: the attestation key from the first message
//! on, and k from the answer on. Each function stores these keys durably before it returns the message that depends on
//! them.

use std::io;
use std::path::{Path, PathBuf};

use linewarden_files::{PrivateFileError, replace_private};
use linewarden_measurement::eventlog::Notice;
use linewarden_tpm::device::{AcceptError, EndorsementKind, KeyBlobs, SignerKind, TpmError};
use linewarden_tpm::enroll::{Identity, KeyOffer, OfferResponse};

use super::key::{KeyFileError, open, read_blobs};
use super::measurement::{LogFile, MeasureError, TpmScope, pcr_notices};

/// Why the device's part failed.
#[derive(Debug, thiserror::Error)]
pub enum EnrollError {
    /// The file of `[attest] key` cannot be used.
    #[error("{}: {source}", path.display())]
    KeyFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: KeyFileError,
    },
    /// There is no attestation key yet.
    #[error("{}: no attestation key; begin with `linewarden-agent identity`", .0.display())]
    NotBegun(PathBuf),
    /// The event log is unreadable, malformed, or contradicts the PCRs: the operator would refuse it.
    #[error(transparent)]
    EventLog(#[from] MeasureError),
    /// The key file cannot be written.
    #[error("{}: writing the key file failed: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A TPM operation failed.
    #[error(transparent)]
    Tpm(#[from] TpmError),
    /// The offer is invalid.
    #[error(transparent)]
    Offer(#[from] AcceptError),
}

/// Returns the device's first message, with notices about its PCRs. Creates an attestation key if there is none; an
/// existing attestation key stays, with or without k. An event log that does not cover the PCRs is omitted from the
/// message.
///
/// # Errors
/// An error of the TPM, the event log or the key file.
pub fn identity(
    scope: &TpmScope,
    endorsement: EndorsementKind,
    key_file: &Path,
) -> Result<(Identity, Vec<Notice>), EnrollError> {
    let log = match scope.pcrs.is_empty() {
        true => None,
        false => Some(LogFile::read(&scope.event_log)?),
    };
    let mut tpm = open(&scope.tcti)?;
    let blobs = match read_stored(key_file)? {
        Some(blobs) if blobs.endorsement == endorsement => blobs,
        _ => {
            let blobs = tpm.create_keys(endorsement, SignerKind::default())?;
            store(key_file, &blobs)?;
            blobs
        }
    };
    let mut identity = tpm.identity(&blobs, scope.bank, scope.pcrs, None)?;
    let mut notices = Vec::new();
    if let Some(log) = log {
        let checked_log = log.check_against(&identity.pcrs.0)?;
        notices = pcr_notices(&identity.pcrs.0, &checked_log);
        identity.event_log = checked_log.ok().map(|(bytes, _)| bytes);
    }
    Ok((identity, notices))
}

/// Imports the key of the controller's offer, stores k in the key file, and returns the answer.
///
/// # Errors
/// The offer is invalid, or an error of the TPM or the key file. After a TPM failure the same offer can be used again.
pub fn accept_offer(tcti: &str, offer: &KeyOffer, key_file: &Path) -> Result<OfferResponse, EnrollError> {
    let mut blobs = read_stored(key_file)?.ok_or_else(|| EnrollError::NotBegun(key_file.to_owned()))?;
    let (key, response) = open(tcti)?.accept(&blobs, offer)?;
    blobs.key = Some(key);
    store(key_file, &blobs)?;
    Ok(response)
}

fn read_stored(path: &Path) -> Result<Option<KeyBlobs>, EnrollError> {
    match read_blobs(path) {
        Ok(blobs) => Ok(Some(blobs)),
        Err(KeyFileError::File(PrivateFileError::Io(error))) if error.kind() == io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(source) => Err(EnrollError::KeyFile {
            path: path.to_owned(),
            source,
        }),
    }
}

fn store(path: &Path, blobs: &KeyBlobs) -> Result<(), EnrollError> {
    let write_result = serde_json::to_vec(blobs)
        .map_err(io::Error::from)
        .and_then(|bytes| replace_private(path, &bytes));
    write_result.map_err(|source| EnrollError::Write {
        path: path.to_owned(),
        source,
    })
}
