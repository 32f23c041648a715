//! What a data plane is measured to run, for `linewarden_evidence`.

use linewarden_evidence::encoding::{BpfProgram, Entry};
use linewarden_evidence::statement::Kind;

/// Who can say what an engine runs. What a process says of its own code is worth nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Witness {
    /// Nobody.
    Nobody,
    /// The kernel, which was asked.
    Kernel(Box<Measurement>),
    /// The engine, which measures itself and signs what it says.
    Engine,
}

/// What was read back from the engine itself, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measurement {
    /// What kind of data plane that is.
    pub kind: Kind,
    /// The programs that run.
    pub programs: Vec<BpfProgram>,
    /// Programs, attachments, maps and configuration.
    pub entries: Vec<Entry>,
    /// What the entries leave out, for a person to read.
    pub left_out: Vec<String>,
}
