//! TCG event logs: records of firmware and boot loaders about the digests that they have extended into PCRs.
//!
//! Source: TCG PC Client Platform Firmware Profile (PFP) 1.06, section 10. A log is a claim. [`verify_replay`] and
//! `docs/measurement.md` define which parts the PCR values prove.

mod coverage;
mod describe;
mod event_type;
mod notice;
mod parse;
mod replay;
mod text;

pub use coverage::DigestCoverage;
pub use event_type::EventType;
pub use notice::{Notice, notices};
pub use parse::{ENTRIES_MAX, EntryProblem, LOG_BYTES_MAX, ParseError};
pub use replay::{ReplayError, ReplayedEvent, ReplayedLog, verify_replay};

use crate::digest::{Digest, HashAlgorithm};
use crate::pcr::PcrIndex;

/// The format of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// The format of TPM 1.2: each entry is a TCG_PCR_EVENT with one digest, of SHA-1.
    Sha1,
    /// One digest per bank in each entry: the first entry is a "Spec ID Event03", all other entries are TCG_PCR_EVENT2.
    Agile,
}

/// A log with only valid entries.
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
    /// The format.
    pub const fn format(&self) -> LogFormat {
        self.format
    }

    /// The banks with digests in the log, as far as their algorithms are supported.
    pub fn banks(&self) -> &[HashAlgorithm] {
        &self.banks
    }

    /// All entries. The number of an entry is its index.
    pub fn events(&self) -> &[Event] {
        &self.events
    }
}

impl Event {
    /// The PCR that the entry extends or refers to. Only an EV_NO_ACTION entry may have none.
    pub const fn pcr(&self) -> Option<PcrIndex> {
        self.pcr
    }

    /// The event type. No digest covers it, so it can be forged.
    pub const fn kind(&self) -> EventType {
        self.kind
    }

    /// The digest extended into the PCR of this bank.
    pub fn digest(&self, bank: HashAlgorithm) -> Option<&Digest> {
        self.digests.iter().find(|digest| digest.algorithm() == bank)
    }

    /// The data logged with the digest. [`DigestCoverage`] defines which part is proven.
    pub fn data(&self) -> &[u8] {
        &self.data
    }
}
