//! Measurement of a data plane, for `linewarden_evidence`.

use linewarden_evidence::encoding::{BpfProgram, Entry};
use linewarden_evidence::statement::DataPlaneKind;

/// The source of a measurement. A process's statement about its own code proves nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeasurementSource {
    /// No trusted source exists.
    Unavailable,
    /// The kernel, from which the measurement was read.
    Kernel(Box<Measurement>),
    /// The data plane measures itself and signs its evidence.
    SelfSigned,
}

/// The state that was read from the data plane at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measurement {
    /// Kind of the data plane.
    pub kind: DataPlaneKind,
    /// The running programs.
    pub programs: Vec<BpfProgram>,
    /// Programs, attachments, maps and configuration.
    pub entries: Vec<Entry>,
    /// State and processing that the entries do not cover, as text for an operator.
    pub exclusions: Vec<String>,
}
