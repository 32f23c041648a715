//! What is measured, and the measurement: files, and PCRs that the event log explains (LAP/1 3.3).

use std::io;
use std::path::{Path, PathBuf};

use linewarden_files::read_bounded;
use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::configuration::{Configuration, ConfigurationError};
use linewarden_measurement::eventlog::{
    EventLog, Explained, LOG_BYTES_MAX, ParseError, Unexplained, explains,
};
use linewarden_measurement::files::{self, FilePath, FilesError, Limits};
use linewarden_measurement::pcr::{PcrSelection, PcrValues};
use linewarden_tpm::KeyError;

#[cfg(feature = "tpm")]
use super::key::open;

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
    /// The log that must explain them.
    pub event_log: PathBuf,
}

/// A measurement.
#[derive(Clone, Debug)]
pub struct Measured {
    /// What the device runs.
    pub configuration: Configuration,
    /// The event log's bytes, and what it explains; `None` without PCRs.
    pub event_log: Option<(Vec<u8>, Explained)>,
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
    /// The event log does not say how the PCRs came about.
    #[error("{} does not explain the PCRs: {source}", path.display())]
    Unexplained {
        /// Where.
        path: PathBuf,
        /// The first entry that cannot be believed, or the PCR.
        source: Unexplained,
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
        matches!(self, Self::LogMalformed { .. } | Self::Unexplained { .. })
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
            let explained = log.explains(&pcrs)?;
            event_log = Some((log.bytes, explained));
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
    pub(crate) bytes: Vec<u8>,
    log: EventLog,
}

impl<'a> LogFile<'a> {
    pub(crate) fn read(path: &'a Path) -> Result<Self, MeasureError> {
        let bytes = read_bounded(path, LOG_BYTES_MAX).map_err(|source| MeasureError::LogUnreadable {
            path: path.to_owned(),
            source,
        })?;
        let log = EventLog::parse(&bytes).map_err(|source| MeasureError::LogMalformed {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self { path, bytes, log })
    }

    pub(crate) fn explains(&self, pcrs: &PcrValues) -> Result<Explained, MeasureError> {
        explains(&self.log, pcrs).map_err(|source| MeasureError::Unexplained {
            path: self.path.to_owned(),
            source,
        })
    }
}
