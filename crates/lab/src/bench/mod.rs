//! The benchmarks. `docs/experiments.md` names the papers that the benchmarks cite: the *IoT paper*, the *UAV paper*, the *P4DRA
//! paper*, the *HAA thesis*, and the paper on the *attesting BMv2*.
//!
//! `linewarden-lab bench auth` measures the cost of authentication in one run on one machine and compares it with the figures
//! of the IoT and UAV papers. The other benchmarks: `linewarden-lab bench scale` ([`scale`]), `linewarden-lab bench attest`
//! ([`attest`]), `linewarden-lab bench switch` ([`switch`]), `linewarden-lab bench signatures` ([`signatures`]),
//! `linewarden-lab bench service` ([`service`]).
//!
//! | part | measurement |
//! |---|---|
//! | [`micro`] | the eBPF verifier per packet (`BPF_PROG_TEST_RUN`), with lower bounds for comparison |
//! | [`rate`] | complete authentications per second of verifier CPU time, both data planes saturated over veth |
//! | [`latency`] | complete authentications in sequence, through both data planes |
//! | [`figures`] | the charts |
//!
//! Timings are the minimum over several runs, because disturbances only add time.

pub mod attest;
pub mod figures;
mod freshness;
pub mod keys;
pub mod latency;
pub mod micro;
pub mod rate;
pub mod scale;
pub mod service;
pub mod signatures;
pub mod switch;

use std::path::PathBuf;

use serde::Serialize;

use linewarden_controller::Denial;
use linewarden_dataplane::DataPlaneError;
use linewarden_registry::RegistryError;

use crate::loadgen::LoadError;
use crate::napi::NapiError;
use crate::netns::NetNsError;
use crate::pace::PaceError;
use crate::packet_socket::PacketSocketError;
use crate::topology::LabError;
use linewarden_evidence::state::StateError;
use linewarden_switch::evidence::EvidenceError;
use linewarden_switch::ports::{PortError, PortSetError};
use linewarden_switch::serve::ServeError;
use linewarden_switch::stf::StfError;
use linewarden_switch::stf::run::RunError;

/// Why a benchmark could not be run.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A data plane failed.
    #[error(transparent)]
    DataPlane(#[from] DataPlaneError),
    /// A registry operation failed.
    #[error(transparent)]
    Registry(RegistryError),
    /// The network of the lab failed.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A network namespace failed.
    #[error(transparent)]
    NetNs(#[from] NetNsError),
    /// The load generator failed.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The frame sender failed.
    #[error(transparent)]
    Pace(#[from] PaceError),
    /// A packet socket failed.
    #[error(transparent)]
    Socket(#[from] PacketSocketError),
    /// Threaded NAPI failed.
    #[error(transparent)]
    Napi(#[from] NapiError),
    /// A socket or file operation failed.
    #[error("cannot {operation}: {source}")]
    Io {
        /// The failed operation.
        operation: &'static str,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A program is not installed in the directory of `linewarden-lab`.
    #[error("program {name} not found in {}; install the package {name}", .directory.display())]
    MissingProgram {
        /// The program.
        name: String,
        /// The directory.
        directory: std::path::PathBuf,
    },
    /// A port of the switch failed.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The switch's port set failed.
    #[error(transparent)]
    Ports(#[from] PortSetError),
    /// The switch's worker failed.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Evidence about registers failed.
    #[error("evidence failed: {0}")]
    Evidence(#[from] StateError),
    /// Evidence about a switch failed.
    #[error("evidence failed: {0}")]
    Attest(#[from] EvidenceError),
    /// A file of a P4 program cannot be read.
    #[error("P4 file {} could not be read: {source}; set --p4 to the directory with compiled/ and tests/", path.display())]
    P4File {
        /// The file or program.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A packet test cannot be read.
    #[error(transparent)]
    PacketTest(#[from] StfError),
    /// A P4 program or its packet test failed.
    #[error("P4 program {name} failed: {source}")]
    P4Program {
        /// The file or program.
        name: String,
        /// The cause.
        source: RunError,
    },
    /// A check of the measurement failed, so its result is invalid.
    #[error("benchmark result invalid: {0}")]
    InvalidMeasurement(String),
    /// A chart could not be drawn.
    #[error("chart {picture} could not be drawn: {reason}")]
    Picture {
        /// File name.
        picture: String,
        /// The error of the drawing library.
        reason: String,
    },
}

impl From<Denial> for BenchError {
    fn from(denial: Denial) -> Self {
        match denial {
            Denial::Registry(error) => error.into(),
            denial => Self::InvalidMeasurement(denial.to_string()),
        }
    }
}

pub(crate) fn io(operation: &'static str) -> impl FnOnce(std::io::Error) -> BenchError {
    move |source| BenchError::Io { operation, source }
}

/// Whether smaller or larger values are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Smaller.
    Lower,
    /// Larger.
    Higher,
    /// Not rated: a value for information.
    Neither,
}

/// One measured value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Dotted name.
    pub name: String,
    /// The measured value, in `unit`.
    pub value: f64,
    /// Unit.
    pub unit: &'static str,
    /// Whether smaller or larger values are better.
    pub better: Better,
    /// The target value, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<f64>,
}

impl Row {
    /// A value for information.
    #[must_use]
    pub fn fact(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self {
            name: name.into(),
            value,
            unit,
            better: Better::Neither,
            target: None,
        }
    }

    /// A value where smaller is better.
    #[must_use]
    pub fn lower(name: impl Into<String>, value: f64, unit: &'static str, target: Option<f64>) -> Self {
        Self {
            name: name.into(),
            value,
            unit,
            better: Better::Lower,
            target,
        }
    }

    /// A value where larger is better.
    #[must_use]
    pub fn higher(name: impl Into<String>, value: f64, unit: &'static str, target: Option<f64>) -> Self {
        Self {
            name: name.into(),
            value,
            unit,
            better: Better::Higher,
            target,
        }
    }

    /// Whether the target is met; `None` without a target.
    #[must_use]
    pub fn meets_target(&self) -> Option<bool> {
        let target = self.target?;
        match self.better {
            Better::Lower => Some(self.value <= target),
            Better::Higher => Some(self.value >= target),
            Better::Neither => None,
        }
    }
}

/// A value that cannot be measured on this machine, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pending {
    /// Dotted name.
    pub name: String,
    /// Always `pending`, in place of a number.
    value: &'static str,
    /// Unit.
    pub unit: &'static str,
    /// Whether smaller or larger values are better.
    pub better: Better,
    /// The target value, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<f64>,
    /// Why the value is pending.
    pub reason: String,
}

impl Pending {
    /// A pending value with its name, unit and reason.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        unit: &'static str,
        better: Better,
        target: Option<f64>,
        reason: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            value: "pending",
            unit,
            better,
            target,
            reason: reason.into(),
        }
    }
}

/// The size of a benchmark.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// Runs; the minimum of all runs is the result.
    pub runs: u32,
    /// Packets of a run.
    pub repeat: u32,
    /// Devices of the random-order measurement.
    pub random_devices: u32,
    /// Complete authentications of the latency measurement.
    pub handshakes: u32,
    /// Length of a saturated run, ms.
    pub saturate_ms: u64,
}

impl Scale {
    /// The size of the published figures.
    pub const FULL: Self = Self {
        runs: 20,
        repeat: 100_000,
        random_devices: 1_000_000,
        handshakes: 10_000,
        saturate_ms: 2_000,
    };
    /// A test run of a few seconds.
    pub const QUICK: Self = Self {
        runs: 2,
        repeat: 2_000,
        random_devices: 2_000,
        handshakes: 200,
        saturate_ms: 200,
    };
}

/// All rows and the data of the charts.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The measured values.
    pub rows: Vec<Row>,
    /// Values that could not be measured.
    pub pending: Vec<Pending>,
    /// Latencies, ns, by series.
    pub latencies: Vec<latency::Series>,
    /// The GPU that was measured.
    pub gpu: Option<String>,
}

/// All rows in one list, pending values last.
impl Serialize for Report {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(untagged)]
        enum MeasuredOrPending<'a> {
            Measured(&'a Row),
            Pending(&'a Pending),
        }
        #[derive(Serialize)]
        struct SerializedReport<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            gpu: Option<&'a str>,
            rows: Vec<MeasuredOrPending<'a>>,
        }
        let measured = self.rows.iter().map(MeasuredOrPending::Measured);
        let rows = measured
            .chain(self.pending.iter().map(MeasuredOrPending::Pending))
            .collect();
        let gpu = self.gpu.as_deref();
        SerializedReport { gpu, rows }.serialize(serializer)
    }
}

impl Report {
    /// The value of a row.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<f64> {
        self.rows.iter().find(|row| row.name == name).map(|row| row.value)
    }
}

/// Runs all parts of `linewarden-lab bench auth`. `progress` receives the name of each part at its start.
///
/// # Errors
/// The error of the first part that fails.
pub fn auth(scale: &Scale, progress: &mut dyn FnMut(&str)) -> Result<Report, BenchError> {
    let mut report = Report::default();
    progress("memory latency");
    report.rows.push(micro::memory::row());
    progress("verifier: one device");
    micro::hot::rows(scale, &mut report.rows)?;
    progress("verifier: classic profiles");
    micro::classic::rows(scale, &mut report.rows)?;
    progress("verifier: many devices in random order");
    micro::random::rows(scale, &mut report.rows)?;
    progress("rate over veth: load generator alone, xdp, host");
    rate::rows(scale, &mut report.rows)?;
    progress("CPU cost by response size, classic profile");
    latency::classic_costs(scale, &mut report.rows)?;
    progress("latency of complete authentications");
    latency::rows(scale, &mut report)?;
    Ok(report)
}
