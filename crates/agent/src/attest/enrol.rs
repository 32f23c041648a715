//! The device's part in the enrolment of its TPM (LAP/1 3.2; the conversation is `linewarden_tpm::enrol`'s).
//!
//! What the TPM has encrypted for itself lies in the file of `[attest] key`: from the first message on the attestation key,
//! from the answer on k as well. Both are durable before the message that rests on them is handed out.

use std::io;
use std::path::{Path, PathBuf};

use linewarden_files::{PrivateFileError, replace_private};
use linewarden_measurement::eventlog::Notice;
use linewarden_tpm::device::{AcceptError, EndorsementKind, KeyBlobs, SignerKind, TpmError};
use linewarden_tpm::enrol::{Answer, Identity, Offer};

use super::key::{KeyFileError, open, read_blobs};
use super::subject::{LogFile, MeasureError, TpmSubject, notices_on};

/// Why the device's part was not done.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// The file of `[attest] key`.
    #[error("{}: {source}", path.display())]
    KeyFile {
        /// Where.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: KeyFileError,
    },
    /// There is no attestation key yet.
    #[error("{}: there is no attestation key; begin with `linewarden attest identity`", .0.display())]
    NotBegun(PathBuf),
    /// The event log cannot be read, is none, or contradicts the PCRs: the operator would refuse it.
    #[error(transparent)]
    EventLog(#[from] MeasureError),
    /// The key's file cannot be written.
    #[error("{}: cannot be written: {source}", path.display())]
    Write {
        /// Where.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// The TPM failed.
    #[error(transparent)]
    Tpm(#[from] TpmError),
    /// The offer is not taken.
    #[error(transparent)]
    Offer(#[from] AcceptError),
}

/// The device's first message, and what its operator should know of its PCRs. The attestation key is made if there is none; one
/// that is there, with a key k or without, stays. A log that says nothing about the PCRs is left out.
///
/// # Errors
/// The TPM's, the event log's or the file's.
pub fn identity(
    subject: &TpmSubject,
    endorsement: EndorsementKind,
    key_file: &Path,
) -> Result<(Identity, Vec<Notice>), EnrolError> {
    let log = match subject.pcrs.is_empty() {
        true => None,
        false => Some(LogFile::read(&subject.event_log)?),
    };
    let mut tpm = open(&subject.tcti)?;
    let blobs = match kept(key_file)? {
        Some(blobs) if blobs.endorsement == endorsement => blobs,
        _ => {
            let blobs = tpm.create_keys(endorsement, SignerKind::default())?;
            keep(key_file, &blobs)?;
            blobs
        }
    };
    let mut identity = tpm.identity(&blobs, subject.bank, subject.pcrs, None)?;
    let mut notices = Vec::new();
    if let Some(log) = log {
        let held = log.held_against(&identity.pcrs.0)?;
        notices = notices_on(&identity.pcrs.0, &held);
        identity.event_log = held.ok().map(|(bytes, _)| bytes);
    }
    Ok((identity, notices))
}

/// The answer to the controller's offer; k is in the key's file then.
///
/// # Errors
/// The offer is not what it should be, or the TPM's or the file's. After the TPM was gone it may be done again with the same offer.
pub fn answer(tcti: &str, offer: &Offer, key_file: &Path) -> Result<Answer, EnrolError> {
    let mut blobs = kept(key_file)?.ok_or_else(|| EnrolError::NotBegun(key_file.to_owned()))?;
    let (key, answer) = open(tcti)?.accept(&blobs, offer)?;
    blobs.key = Some(key);
    keep(key_file, &blobs)?;
    Ok(answer)
}

fn kept(path: &Path) -> Result<Option<KeyBlobs>, EnrolError> {
    match read_blobs(path) {
        Ok(blobs) => Ok(Some(blobs)),
        Err(KeyFileError::File(PrivateFileError::Io(error))) if error.kind() == io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(source) => Err(EnrolError::KeyFile {
            path: path.to_owned(),
            source,
        }),
    }
}

fn keep(path: &Path, blobs: &KeyBlobs) -> Result<(), EnrolError> {
    let written = serde_json::to_vec(blobs)
        .map_err(io::Error::from)
        .and_then(|bytes| replace_private(path, &bytes));
    written.map_err(|source| EnrolError::Write {
        path: path.to_owned(),
        source,
    })
}
