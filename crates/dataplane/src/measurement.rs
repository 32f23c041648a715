//! What a data plane is measured to run, for `linewarden_evidence`.

use linewarden_evidence::encoding::{BpfProgram, Entry};
use linewarden_evidence::statement::Kind;

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
