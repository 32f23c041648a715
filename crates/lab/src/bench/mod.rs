//! The benches. `linewarden bench auth`: what authentication costs, in one run on one machine, beside the papers'
//! figures. `linewarden bench scale`: [`scale`]. `linewarden bench attest`: [`attest`]. `linewarden bench switch`: [`switch`].
//! `linewarden bench signatures`: [`signatures`]. `linewarden bench service`: [`service`].
//!
//! | part | what is measured |
//! |---|---|
//! | [`micro`] | the eBPF verifier packet after packet (`BPF_PROG_TEST_RUN`), beside floors of its own |
//! | [`rate`] | complete authentications per second of verifier CPU time, both data planes saturated over veth |
//! | [`latency`] | complete authentications one after another, through both data planes |
//! | [`figures`] | the pictures |
//!
//! Timings are the minimum over several runs: everything that disturbs a run only adds to it.

pub mod attest;
pub mod figures;
pub mod keys;
pub mod latency;
pub mod micro;
pub mod rate;
pub mod scale;
pub mod service;
pub mod signatures;
pub mod switch;
mod wait;

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

/// Why a bench could not be run.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A data plane.
    #[error(transparent)]
    DataPlane(#[from] DataPlaneError),
    /// The registry.
    #[error(transparent)]
    Registry(RegistryError),
    /// The network.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A namespace.
    #[error(transparent)]
    NetNs(#[from] NetNsError),
    /// The load generator.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The sender at a rate.
    #[error(transparent)]
    Pace(#[from] PaceError),
    /// A packet socket.
    #[error(transparent)]
    Socket(#[from] PacketSocketError),
    /// Threaded NAPI.
    #[error(transparent)]
    Napi(#[from] NapiError),
    /// A socket or a file.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The system's word.
        source: std::io::Error,
    },
    /// A port of the switch.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The switch's ports.
    #[error(transparent)]
    Ports(#[from] PortSetError),
    /// The switch's worker.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Evidence of registers.
    #[error("evidence: {0}")]
    Evidence(#[from] StateError),
    /// Evidence of a switch.
    #[error("evidence: {0}")]
    Attest(#[from] EvidenceError),
    /// A file of a P4 program.
    #[error("{}: {source}; --p4 names the directory with compiled/ and tests/", path.display())]
    P4File {
        /// Which.
        path: PathBuf,
        /// The system's word.
        source: std::io::Error,
    },
    /// A packet test cannot be read.
    #[error(transparent)]
    PacketTest(#[from] StfError),
    /// A P4 program, or a packet test for it.
    #[error("{name}: {source}")]
    P4Program {
        /// Which.
        name: String,
        /// What is wrong.
        source: RunError,
    },
    /// What was measured is not what was meant to be measured.
    #[error("the bench contradicts itself: {0}")]
    Contradiction(String),
    /// A picture could not be drawn.
    #[error("drawing {picture}: {reason}")]
    Picture {
        /// File name.
        picture: String,
        /// The plotter's word.
        reason: String,
    },
}

impl From<Denial> for BenchError {
    fn from(denial: Denial) -> Self {
        match denial {
            Denial::Registry(error) => error.into(),
            Denial::Untrusted { .. } => Self::Contradiction(denial.to_string()),
        }
    }
}

pub(crate) fn io(what: &'static str) -> impl FnOnce(std::io::Error) -> BenchError {
    move |source| BenchError::Io { what, source }
}

/// Which direction is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Smaller.
    Lower,
    /// Larger.
    Higher,
    /// Neither: a fact beside the others.
    Neither,
}

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Dotted name.
    pub name: String,
    /// Value.
    pub value: f64,
    /// Unit.
    pub unit: &'static str,
    /// Which direction is good.
    pub better: Better,
    /// The value that must be reached, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bar: Option<f64>,
}

impl Row {
    /// A fact.
    #[must_use]
    pub fn fact(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self {
            name: name.into(),
            value,
            unit,
            better: Better::Neither,
            bar: None,
        }
    }

    /// A figure where less is better.
    #[must_use]
    pub fn lower(name: impl Into<String>, value: f64, unit: &'static str, bar: Option<f64>) -> Self {
        Self {
            name: name.into(),
            value,
            unit,
            better: Better::Lower,
            bar,
        }
    }

    /// A figure where more is better.
    #[must_use]
    pub fn higher(name: impl Into<String>, value: f64, unit: &'static str, bar: Option<f64>) -> Self {
        Self {
            name: name.into(),
            value,
            unit,
            better: Better::Higher,
            bar,
        }
    }

    /// Whether the bar is reached; `None` without one.
    #[must_use]
    pub fn reached(&self) -> Option<bool> {
        let bar = self.bar?;
        match self.better {
            Better::Lower => Some(self.value <= bar),
            Better::Higher => Some(self.value >= bar),
            Better::Neither => None,
        }
    }
}

/// A figure that cannot be measured here, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pending {
    /// Dotted name.
    pub name: String,
    /// "pending"
    value: &'static str,
    /// Unit.
    pub unit: &'static str,
    /// Which direction is good.
    pub better: Better,
    /// The value that must be reached, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bar: Option<f64>,
    /// What is missing.
    pub why: String,
}

impl Pending {
    /// Of a name and unit, for a reason.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        unit: &'static str,
        better: Better,
        bar: Option<f64>,
        why: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            value: "pending",
            unit,
            better,
            bar,
            why: why.into(),
        }
    }
}

/// How large a bench is.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// Runs of which the minimum counts.
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
    /// What the figures in the documents are made with.
    pub const FULL: Self = Self {
        runs: 20,
        repeat: 100_000,
        random_devices: 1_000_000,
        handshakes: 10_000,
        saturate_ms: 2_000,
    };
    /// A few seconds, to see that it works.
    pub const QUICK: Self = Self {
        runs: 2,
        repeat: 2_000,
        random_devices: 2_000,
        handshakes: 200,
        saturate_ms: 200,
    };
}

/// All rows, and what the pictures are drawn from.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The figures.
    pub rows: Vec<Row>,
    /// Figures that could not be measured.
    pub pending: Vec<Pending>,
    /// Latencies, ns, by series.
    pub latencies: Vec<latency::Series>,
    /// The GPU that was measured.
    pub gpu: Option<String>,
}

/// All rows in one list, those that are pending last.
impl Serialize for Report {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(untagged)]
        enum Line<'a> {
            Measured(&'a Row),
            Pending(&'a Pending),
        }
        #[derive(Serialize)]
        struct Lines<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            gpu: Option<&'a str>,
            rows: Vec<Line<'a>>,
        }
        let measured = self.rows.iter().map(Line::Measured);
        let rows = measured.chain(self.pending.iter().map(Line::Pending)).collect();
        let gpu = self.gpu.as_deref();
        Lines { gpu, rows }.serialize(serializer)
    }
}

impl Report {
    /// The value of a row.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<f64> {
        self.rows.iter().find(|row| row.name == name).map(|row| row.value)
    }
}

/// Runs everything. `progress` is told what comes next.
///
/// # Errors
/// The first part that could not be run.
pub fn auth(scale: &Scale, progress: &mut dyn FnMut(&str)) -> Result<Report, BenchError> {
    let mut report = Report::default();
    progress("memory and empty program");
    report.rows.push(micro::memory::row());
    progress("verifier, one device");
    micro::hot::rows(scale, &mut report.rows)?;
    progress("verifier, classic profiles");
    micro::classic::rows(scale, &mut report.rows)?;
    progress("verifier, many devices in random order");
    micro::random::rows(scale, &mut report.rows)?;
    progress("rate over veth: load generator alone, xdp, host");
    rate::rows(scale, &mut report.rows)?;
    progress("rate by response size, classic profile");
    latency::classic_costs(scale, &mut report.rows)?;
    progress("latency of complete authentications");
    latency::rows(scale, &mut report)?;
    Ok(report)
}
