//! What is measured, and the measurement: files, and PCRs to which the event log replays (LAP/1 3.3).

use std::io;
use std::path::{Path, PathBuf};

use linewarden_files::read_bounded;
use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::configuration::{Configuration, ConfigurationError};
use linewarden_measurement::eventlog::{
    EventLog, LOG_BYTES_MAX, Notice, ParseError, ReplayError, ReplayedLog, notices, verify_replay,
};
use linewarden_measurement::files::{self, FileEntry, FilePath, FilesError, Limits};
use linewarden_measurement::pcr::{PcrSelection, PcrValues};
use linewarden_tpm::KeyError;

#[cfg(feature = "tpm")]
use super::key::open;

/// Event log of the first TPM on Linux. Missing if the firmware provides none.
pub const EVENT_LOG: &str = "/sys/kernel/security/tpm0/binary_bios_measurements";

/// What the configuration of a device consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasurementScope {
    /// Paths; directories with their whole content.
    pub files: Vec<FilePath>,
    /// The TPM, if there is one.
    pub tpm: Option<TpmScope>,
}

/// A TPM, with the PCRs that are measured and their event log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TpmScope {
    /// TCTI of the TPM, such as `device:/dev/tpmrm0`.
    pub tcti: String,
    /// Hash algorithm of the PCR bank.
    pub bank: HashAlgorithm,
    /// The PCRs.
    pub pcrs: PcrSelection,
    /// The event log that must replay to the PCRs, if it covers them.
    pub event_log: PathBuf,
}

/// An event log with its replay to the PCRs, or the reason why the log does not cover the PCRs. Without a replay, only the PCR
/// values count.
pub type CheckedLog = Result<(Vec<u8>, ReplayedLog), ReplayError>;

/// A measurement.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The measured configuration.
    pub configuration: Configuration,
    /// The event log; `None` without PCRs.
    pub event_log: Option<CheckedLog>,
}

impl Measurement {
    /// The event log, if it replays to the PCRs.
    pub fn replayed(&self) -> Option<&(Vec<u8>, ReplayedLog)> {
        self.event_log.as_ref()?.as_ref().ok()
    }

    /// Notices about the PCRs for the operator.
    pub fn notices(&self) -> Vec<Notice> {
        let log = self.event_log.as_ref();
        log.map_or_else(Vec::new, |log| pcr_notices(self.configuration.pcrs(), log))
    }

    /// Listed paths that do not exist; their absence is measured.
    pub fn absent(&self) -> impl Iterator<Item = &FilePath> {
        let entries = self.configuration.files().iter();
        entries
            .filter(|(_, entry)| **entry == FileEntry::Absent)
            .map(|(path, _)| path)
    }
}

pub(super) fn pcr_notices(values: &PcrValues, log: &CheckedLog) -> Vec<Notice> {
    let reason = log.as_ref().err().map(ToString::to_string);
    let log = log.as_ref().map(|(_, replayed)| replayed);
    notices(
        values.selection(),
        log.map_err(|_| reason.as_deref().unwrap_or_default()),
    )
}

/// Why there is no measurement, or no key of the period. The device then sends no proof.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// Measuring the files failed.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// Files and PCRs do not form a configuration.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    /// The event log is unreadable.
    #[error("reading event log {} failed: {source}; name the right file in `event_log`, and permit the agent to read it", path.display())]
    LogUnreadable {
        /// Path of the event log.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file is not an event log.
    #[error("{}: {source}", path.display())]
    LogMalformed {
        /// Path of the event log.
        path: PathBuf,
        /// The first invalid entry.
        source: ParseError,
    },
    /// The event log contradicts the PCRs.
    #[error("event log {} does not replay to the PCRs: {source}", path.display())]
    Replay {
        /// Path of the event log.
        path: PathBuf,
        /// The contradicting entry or PCR.
        source: ReplayError,
    },
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The PCRs changed after the measurement.
    #[error("the PCRs have changed since they were measured")]
    PcrsChanged,
}

impl MeasureError {
    /// Whether another attempt in the same period would fail too.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::LogMalformed { .. } | Self::Replay { .. })
    }
}

impl MeasurementScope {
    /// Measures once, without a key and without a proof.
    ///
    /// # Errors
    /// [`MeasureError`].
    pub fn measure(&self) -> Result<Measurement, MeasureError> {
        self.measure_with(read_pcrs)
    }

    /// Measures; `read_pcrs` reads an open TPM.
    pub(crate) fn measure_with(
        &self,
        read_pcrs: impl FnOnce(&TpmScope) -> Result<PcrValues, KeyError>,
    ) -> Result<Measurement, MeasureError> {
        let mut pcrs = PcrValues::new(HashAlgorithm::Sha256);
        let mut event_log = None;
        if let Some(tpm) = self.tpm.as_ref().filter(|tpm| !tpm.pcrs.is_empty()) {
            pcrs = read_pcrs(tpm)?;
            let log = LogFile::read(&tpm.event_log)?;
            event_log = Some(log.check_against(&pcrs)?);
        }
        let files = files::measure(Path::new("/"), &self.files, Limits::default())?;
        Ok(Measurement {
            configuration: Configuration::new(pcrs, files)?,
            event_log,
        })
    }
}

#[cfg(feature = "tpm")]
fn read_pcrs(tpm: &TpmScope) -> Result<PcrValues, KeyError> {
    Ok(open(&tpm.tcti)?.pcrs(tpm.bank, tpm.pcrs)?)
}

#[cfg(not(feature = "tpm"))]
fn read_pcrs(tpm: &TpmScope) -> Result<PcrValues, KeyError> {
    // Without TPM support no TPM is configured.
    Ok(PcrValues::new(tpm.bank))
}

/// A parsed event log.
pub struct LogFile<'a> {
    path: &'a Path,
    bytes: Vec<u8>,
    log: EventLog,
}

impl<'a> LogFile<'a> {
    /// Reads the log. A missing log at the default path is an empty log: the TPM exists, but the firmware provides no log.
    ///
    /// # Errors
    /// The log is unreadable, or not an event log.
    pub fn read(path: &'a Path) -> Result<Self, MeasureError> {
        let bytes = match read_bounded(path, LOG_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && path == Path::new(EVENT_LOG) => {
                Vec::new()
            }
            result => result.map_err(|source| MeasureError::LogUnreadable {
                path: path.to_owned(),
                source,
            })?,
        };
        let log = EventLog::parse(&bytes).map_err(|source| MeasureError::LogMalformed {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self { path, bytes, log })
    }

    /// Replays the log and compares the result with the PCRs.
    ///
    /// # Errors
    /// The log contradicts the PCRs. A log that does not cover the PCRs is not an error.
    pub(crate) fn check_against(self, pcrs: &PcrValues) -> Result<CheckedLog, MeasureError> {
        match verify_replay(&self.log, pcrs) {
            Ok(replayed) => Ok(Ok((self.bytes, replayed))),
            Err(error) if error.has_no_statement() => Ok(Err(error)),
            Err(source) => Err(MeasureError::Replay {
                path: self.path.to_owned(),
                source,
            }),
        }
    }
}
