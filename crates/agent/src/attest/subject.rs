//! What is measured, and the measurement: files, and PCRs to which the event log replays (LAP/1 3.3).

use std::io;
use std::path::{Path, PathBuf};

use linewarden_files::read_bounded;
use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::configuration::{Configuration, ConfigurationError};
use linewarden_measurement::eventlog::{
    EventLog, LOG_BYTES_MAX, Notice, ParseError, ReplayError, Replayed, notices, replays,
};
use linewarden_measurement::files::{self, FileEntry, FilePath, FilesError, Limits};
use linewarden_measurement::pcr::{PcrSelection, PcrValues};
use linewarden_tpm::KeyError;

#[cfg(feature = "tpm")]
use super::key::open;

/// Where Linux shows the log of the first TPM. It is not there if the firmware made none.
pub(super) const EVENT_LOG: &str = "/sys/kernel/security/tpm0/binary_bios_measurements";

/// All that a device's configuration is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Paths, directories with all that is in them.
    pub files: Vec<FilePath>,
    /// Its TPM, if it has one.
    pub tpm: Option<TpmSubject>,
}

/// A TPM and what of it is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TpmSubject {
    /// Where it is, as `device:/dev/tpmrm0`.
    pub tcti: String,
    /// The bank.
    pub bank: HashAlgorithm,
    /// The PCRs.
    pub pcrs: PcrSelection,
    /// The log that must replay to them, if it says anything about them.
    pub event_log: PathBuf,
}

/// A log's bytes and its replay to the values of PCRs, or why it says nothing about them: only the values speak then.
pub type HeldLog = Result<(Vec<u8>, Replayed), ReplayError>;

/// A measurement.
#[derive(Clone, Debug)]
pub struct Measured {
    /// What the device runs.
    pub configuration: Configuration,
    /// The event log; `None` without PCRs.
    pub event_log: Option<HeldLog>,
}

impl Measured {
    /// The log that replays to the PCRs, if there is one.
    pub fn replayed(&self) -> Option<&(Vec<u8>, Replayed)> {
        self.event_log.as_ref()?.as_ref().ok()
    }

    /// What an operator should know of the PCRs before relying on them.
    pub fn notices(&self) -> Vec<Notice> {
        let log = self.event_log.as_ref();
        log.map_or_else(Vec::new, |log| notices_on(self.configuration.pcrs(), log))
    }

    /// Listed paths where nothing is, which is what is measured of them.
    pub fn absent(&self) -> impl Iterator<Item = &FilePath> {
        let entries = self.configuration.files().iter();
        entries
            .filter(|(_, entry)| **entry == FileEntry::Absent)
            .map(|(path, _)| path)
    }
}

pub(super) fn notices_on(values: &PcrValues, log: &HeldLog) -> Vec<Notice> {
    let why = log.as_ref().err().map(ToString::to_string);
    let log = log.as_ref().map(|(_, replayed)| replayed);
    notices(
        values.selection(),
        log.map_err(|_| why.as_deref().unwrap_or_default()),
    )
}

/// Why there is no measurement, or no key of its period. Nothing is proven then.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The files.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// Files and PCRs make no configuration.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    /// The event log cannot be read.
    #[error("event log {}: {source}; name the right one in `event_log`, and run with the right to read it", path.display())]
    LogUnreadable {
        /// Where.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// The event log is none.
    #[error("{}: {source}", path.display())]
    LogMalformed {
        /// Where.
        path: PathBuf,
        /// The first entry that is wrong.
        source: ParseError,
    },
    /// The event log contradicts the PCRs.
    #[error("{} does not replay to the PCRs: {source}", path.display())]
    Replay {
        /// Where.
        path: PathBuf,
        /// The entry or the PCR.
        source: ReplayError,
    },
    /// The TPM, or what is in place of it.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The PCRs are no longer those that were measured.
    #[error("the PCRs have changed since they were measured")]
    PcrsChanged,
}

impl MeasureError {
    /// Whether another attempt in the same period would find the same.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::LogMalformed { .. } | Self::Replay { .. })
    }
}

impl Subject {
    /// Measures once. No key is needed for it, and nothing is proven by it.
    ///
    /// # Errors
    /// [`MeasureError`].
    pub fn measure(&self) -> Result<Measured, MeasureError> {
        self.measure_with(read_pcrs)
    }

    /// Measures; `read_pcrs` reads a TPM that is open.
    pub(crate) fn measure_with(
        &self,
        read_pcrs: impl FnOnce(&TpmSubject) -> Result<PcrValues, KeyError>,
    ) -> Result<Measured, MeasureError> {
        let mut pcrs = PcrValues::new(HashAlgorithm::Sha256);
        let mut event_log = None;
        if let Some(tpm) = self.tpm.as_ref().filter(|tpm| !tpm.pcrs.is_empty()) {
            pcrs = read_pcrs(tpm)?;
            let log = LogFile::read(&tpm.event_log)?;
            event_log = Some(log.held_against(&pcrs)?);
        }
        let files = files::measure(Path::new("/"), &self.files, Limits::default())?;
        Ok(Measured {
            configuration: Configuration::new(pcrs, files)?,
            event_log,
        })
    }
}

#[cfg(feature = "tpm")]
fn read_pcrs(tpm: &TpmSubject) -> Result<PcrValues, KeyError> {
    Ok(open(&tpm.tcti)?.pcrs(tpm.bank, tpm.pcrs)?)
}

#[cfg(not(feature = "tpm"))]
fn read_pcrs(tpm: &TpmSubject) -> Result<PcrValues, KeyError> {
    // Nobody has configured one.
    Ok(PcrValues::new(tpm.bank))
}

/// An event log that was read.
pub(crate) struct LogFile<'a> {
    path: &'a Path,
    bytes: Vec<u8>,
    log: EventLog,
}

impl<'a> LogFile<'a> {
    /// Reads it. A log that is not where Linux shows it is an empty one: there is a TPM, and firmware that made none.
    pub(crate) fn read(path: &'a Path) -> Result<Self, MeasureError> {
        let bytes = match read_bounded(path, LOG_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && path == Path::new(EVENT_LOG) => {
                Vec::new()
            }
            read => read.map_err(|source| MeasureError::LogUnreadable {
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

    pub(crate) fn held_against(self, pcrs: &PcrValues) -> Result<HeldLog, MeasureError> {
        match replays(&self.log, pcrs) {
            Ok(replayed) => Ok(Ok((self.bytes, replayed))),
            Err(silence) if silence.is_silence() => Ok(Err(silence)),
            Err(source) => Err(MeasureError::Replay {
                path: self.path.to_owned(),
                source,
            }),
        }
    }
}
