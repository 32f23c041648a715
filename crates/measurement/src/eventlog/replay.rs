//! Whether a log explains the values of PCRs.

use std::fmt;

use serde::Serialize;

use super::binding::{Binding, Lie, binding};
use super::{Event, EventLog, EventType};
use crate::digest::{Digest, HashAlgorithm};
use crate::pcr::{PcrIndex, PcrSelection, PcrValues};

const STARTUP_LOCALITY: &[u8; 16] = b"StartupLocality\0";

/// Why a log does not explain the values. Entries are counted from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unexplained {
    /// There are no digests of this bank in the log.
    #[error("the event log has no digests of the bank {bank}, only of {}", names(have))]
    Bank {
        /// The bank that was asked for.
        bank: HashAlgorithm,
        /// Those that there are.
        have: Vec<HashAlgorithm>,
    },
    /// One entry has none, so that what it extended is not known.
    #[error("event log, entry {entry}: {kind} for PCR {pcr} has no digest of the bank {bank}")]
    NoDigest {
        /// The entry.
        entry: usize,
        /// Its type.
        kind: EventType,
        /// Its PCR.
        pcr: PcrIndex,
        /// The bank.
        bank: HashAlgorithm,
    },
    /// The digest of an entry is not that of its data, as its type demands: one of both was changed.
    #[error(
        "event log, entry {entry}: the data of {kind} for PCR {pcr} are not what its digest is of: the log lies"
    )]
    Lie {
        /// The entry.
        entry: usize,
        /// Its type.
        kind: EventType,
        /// Its PCR.
        pcr: PcrIndex,
    },
    /// The remark on the locality of the start is none that may be.
    #[error(
        "event log, entry {entry}: a StartupLocality that is not 0, 3 or 4, is the second, or comes after PCR 0 was extended"
    )]
    Locality {
        /// The entry.
        entry: usize,
    },
    /// Replaying gives another value than the PCR has.
    #[error(
        "PCR {pcr}: the event log gives {replayed}, the TPM has {actual}; {}; the log is cut off or of another boot, or \
         something extended this PCR without an entry",
        last(*last_entry)
    )]
    Value {
        /// The PCR.
        pcr: PcrIndex,
        /// What the log gives.
        replayed: Box<Digest>,
        /// What it should give.
        actual: Box<Digest>,
        /// The last entry that extends this PCR.
        last_entry: Option<usize>,
    },
}

fn names(banks: &[HashAlgorithm]) -> String {
    let names: Vec<_> = banks.iter().map(ToString::to_string).collect();
    names.join(", ")
}

fn last(entry: Option<usize>) -> String {
    match entry {
        Some(entry) => format!("the last entry for it is {entry}"),
        None => "no entry is for it".to_owned(),
    }
}

/// A log that explains values of PCRs: its events for these PCRs, in order, each with how far its data can be believed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explained {
    events: Vec<ExplainedEvent>,
}

/// An event that a PCR's value proves to have been extended there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedEvent {
    /// Its number in the log, from 0.
    pub entry: usize,
    /// The PCR. Proven.
    pub pcr: PcrIndex,
    /// What was extended. Proven, and so is its place among the PCR's events.
    pub digest: Digest,
    /// What the log says that it is. Not proven, whatever the type.
    pub kind: EventType,
    /// What of the data is proven.
    pub binding: Binding,
    /// The data, in words. See [`Self::binding`].
    pub description: String,
}

/// One line for people; what nothing proves is marked.
impl fmt::Display for ExplainedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.binding {
            Binding::All => "",
            Binding::Part(_) => " (in part claimed)",
            Binding::Nothing => " (claimed)",
        };
        let (entry, pcr, kind) = (self.entry, self.pcr, self.kind);
        write!(f, "entry {entry}, PCR {pcr}, {kind}: {}{mark}", self.description)
    }
}

impl Explained {
    /// The events of the PCRs that were asked for, in the log's order.
    pub fn events(&self) -> &[ExplainedEvent] {
        &self.events
    }
}

/// Shows that the log says how each of these values came about, and that it does not lie about the events that led to them.
///
/// Only entries that extend one of these PCRs are judged: nothing vouches for the others, and they are left out of what is
/// returned. For each event, the PCR, the digest and the order within the PCR are proven by the value; the data as far as
/// [`Binding`] says; the type never.
///
/// # Errors
/// [`Unexplained`], for the first entry that cannot be believed, else for the first PCR whose value is another.
pub fn explains(log: &EventLog, values: &PcrValues) -> Result<Explained, Unexplained> {
    let selection = values.selection();
    let mut events = Vec::new();
    for (entry, event, pcr) in extending(log).filter(|(_, _, pcr)| selection.contains(*pcr)) {
        let digest = *digest_of(event, entry, pcr, values.bank(), log)?;
        let kind = event.kind;
        let binding = binding(event, &digest).map_err(|Lie| Unexplained::Lie { entry, kind, pcr })?;
        events.push(ExplainedEvent {
            entry,
            pcr,
            digest,
            kind,
            binding,
            description: event.describe(),
        });
    }
    let replayed = replay_selected(log, values.bank(), selection)?;
    for (pcr, actual) in values.iter() {
        let replayed = replayed
            .get(pcr)
            .copied()
            .unwrap_or(pcr.start_value(values.bank()));
        if replayed != *actual {
            return Err(Unexplained::Value {
                pcr,
                replayed: Box::new(replayed),
                actual: Box::new(*actual),
                last_entry: events
                    .iter()
                    .rev()
                    .find(|event| event.pcr == pcr)
                    .map(|event| event.entry),
            });
        }
    }
    Ok(Explained { events })
}

impl EventLog {
    /// The values that this bank's PCRs have if the log is true, of those that it extends.
    ///
    /// # Errors
    /// [`Unexplained`] where the log has no digest of the bank, or a remark on the start that cannot be.
    pub fn replay(&self, bank: HashAlgorithm) -> Result<PcrValues, Unexplained> {
        replay_selected(self, bank, PcrSelection::from_bitmap([0xff; 3]))
    }
}

fn replay_selected(
    log: &EventLog,
    bank: HashAlgorithm,
    selection: PcrSelection,
) -> Result<PcrValues, Unexplained> {
    let mut values = PcrValues::new(bank);
    let first = start_of_pcr_0(log, bank)?;
    for (entry, event, pcr) in extending(log).filter(|(_, _, pcr)| selection.contains(*pcr)) {
        let start = match pcr.get() {
            0 => first,
            _ => pcr.start_value(bank),
        };
        let before = values.get(pcr).copied().unwrap_or(start);
        let after = before.extended(digest_of(event, entry, pcr, bank, log)?);
        // Both are of the bank.
        let _ = values.set(pcr, after);
    }
    Ok(values)
}

/// The entries that extend something, with their numbers.
fn extending(log: &EventLog) -> impl Iterator<Item = (usize, &Event, PcrIndex)> {
    let entries = log.events.iter().enumerate();
    entries
        .filter(|(_, event)| event.kind != EventType::EV_NO_ACTION)
        .filter_map(|(entry, event)| Some((entry, event, event.pcr?)))
}

fn digest_of<'a>(
    event: &'a Event,
    entry: usize,
    pcr: PcrIndex,
    bank: HashAlgorithm,
    log: &EventLog,
) -> Result<&'a Digest, Unexplained> {
    if !log.banks.contains(&bank) {
        return Err(Unexplained::Bank {
            bank,
            have: log.banks.clone(),
        });
    }
    event.digest(bank).ok_or(Unexplained::NoDigest {
        entry,
        kind: event.kind,
        pcr,
        bank,
    })
}

/// What PCR 0 starts with: the locality of TPM2_Startup in its last byte, which a remark tells if it is not 0 (PFP 10.4.5.3,
/// "Startup Locality Event"); 4 if the processor measured something before (H-CRTM; TPM 2.0 Library, Part 1, "H-CRTM before
/// TPM2_Startup").
fn start_of_pcr_0(log: &EventLog, bank: HashAlgorithm) -> Result<Digest, Unexplained> {
    let mut locality = None;
    let mut extended = false;
    for (entry, event) in log.events.iter().enumerate() {
        let is_remark = event.kind == EventType::EV_NO_ACTION;
        match event.data.strip_prefix(STARTUP_LOCALITY) {
            Some([told @ (0 | 3 | 4)]) if is_remark && !extended && locality.is_none() => {
                locality = Some(*told)
            }
            Some(_) if is_remark => return Err(Unexplained::Locality { entry }),
            _ => {}
        }
        if !is_remark && event.pcr.is_some_and(|pcr| pcr.get() == 0) {
            if !extended && event.kind == EventType::EV_EFI_HCRTM_EVENT {
                locality = Some(4);
            }
            extended = true;
        }
    }
    let mut bytes = vec![0; bank.digest_bytes()];
    if let (Some(last), Some(locality)) = (bytes.last_mut(), locality) {
        *last = locality;
    }
    Ok(Digest::new(bank, &bytes).unwrap_or(Digest::zero(bank)))
}
