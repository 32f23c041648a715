//! TCG event logs: what firmware and boot loaders say that they have extended into PCRs.
//!
//! Source: TCG PC Client Platform Firmware Profile (PFP) 1.06, section 10. A log is a claim. What of it is proven by the values
//! of the PCRs, and what is not, is said by [`replays`] and in `docs/measurement.md`.

mod binding;
mod describe;
mod kind;
mod notice;
mod parse;
mod replay;
mod text;

pub use binding::Binding;
pub use kind::EventType;
pub use notice::{Notice, notices};
pub use parse::{ENTRIES_MAX, EntryProblem, LOG_BYTES_MAX, ParseError};
pub use replay::{ReplayError, Replayed, ReplayedEvent, replays};

use crate::digest::{Digest, HashAlgorithm};
use crate::pcr::PcrIndex;

/// How a log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// SHA-1 alone: TCG_PCR_EVENT throughout, as of TPM 1.2.
    Sha1,
    /// A digest for each bank: "Spec ID Event03", then TCG_PCR_EVENT2.
    Agile,
}

/// A log whose entries could all be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventLog {
    format: LogFormat,
    banks: Vec<HashAlgorithm>,
    events: Vec<Event>,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pcr: Option<PcrIndex>,
    kind: EventType,
    digests: Vec<Digest>,
    data: Vec<u8>,
}

impl EventLog {
    /// How it is written.
    pub const fn format(&self) -> LogFormat {
        self.format
    }

    /// The banks that it says to have digests of, as far as their algorithms are known here.
    pub fn banks(&self) -> &[HashAlgorithm] {
        &self.banks
    }

    /// All entries. The number of an entry is its place here.
    pub fn events(&self) -> &[Event] {
        &self.events
    }
}

impl Event {
    /// The PCR that it extends, or that it is about. Only a remark may be about none.
    pub const fn pcr(&self) -> Option<PcrIndex> {
        self.pcr
    }

    /// Its type, which no digest covers: whoever has the log can change it.
    pub const fn kind(&self) -> EventType {
        self.kind
    }

    /// What was extended into the PCR of this bank.
    pub fn digest(&self, bank: HashAlgorithm) -> Option<&Digest> {
        self.digests.iter().find(|digest| digest.algorithm() == bank)
    }

    /// What the firmware wrote beside the digest. See [`Binding`] for what of it is proven.
    pub fn data(&self) -> &[u8] {
        &self.data
    }
}
