//! Whether a log replays to the values of PCRs. What its entries' data mean is another question: [`Binding`].

use std::fmt;

use serde::Serialize;

use super::binding::{Binding, binding};
use super::{Event, EventLog, EventType};
use crate::digest::{Digest, HashAlgorithm};
use crate::pcr::{PcrIndex, PcrValues};

const STARTUP_LOCALITY: &[u8; 16] = b"StartupLocality\0";

/// Why a log does not replay to the values. Entries are counted from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// There are no digests of this bank in the log, so that it says nothing about the values: [`ReplayError::is_silence`].
    #[error("{}", no_digests(*bank, have))]
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

fn no_digests(bank: HashAlgorithm, have: &[HashAlgorithm]) -> String {
    if have.is_empty() {
        return "the event log is empty".to_owned();
    }
    let names: Vec<_> = have.iter().map(ToString::to_string).collect();
    format!(
        "the event log has no digests of the bank {bank}, only of {}",
        names.join(", ")
    )
}

impl ReplayError {
    /// Whether the log says nothing about the values, as an empty one beside a working TPM, or one in the format for SHA-1
    /// alone beside a bank of SHA-256: then the values can be appraised by themselves, without a word on how they came about.
    /// Any other error is a log that contradicts the values.
    pub const fn is_silence(&self) -> bool {
        matches!(self, Self::Bank { .. })
    }
}

fn last(entry: Option<usize>) -> String {
    match entry {
        Some(entry) => format!("the last entry for it is {entry}"),
        None => "no entry is for it".to_owned(),
    }
}

/// A log that replays to values of PCRs: its events for these PCRs, in order, each with what of its data is proven.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Replayed {
    events: Vec<ReplayedEvent>,
}

/// An event that a PCR's value proves to have been extended there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReplayedEvent {
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

/// One line for people; what nothing proves is marked, and an unexplained event has its digest, which alone counts.
impl fmt::Display for ReplayedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (entry, pcr, kind) = (self.entry, self.pcr, self.kind);
        write!(f, "entry {entry}, PCR {pcr}, {kind}: {}", self.description)?;
        match self.binding {
            Binding::All => Ok(()),
            Binding::Part(_) => f.write_str(" (in part claimed)"),
            Binding::Nothing => f.write_str(" (claimed)"),
            Binding::Unexplained => write!(f, " (unexplained, digest {})", self.digest),
        }
    }
}

impl Replayed {
    /// The events of the PCRs that were asked for, in the log's order.
    pub fn events(&self) -> &[ReplayedEvent] {
        &self.events
    }

    /// Those whose data are not what their digest is of, though their type says so.
    pub fn unexplained(&self) -> impl Iterator<Item = &ReplayedEvent> {
        let events = self.events.iter();
        events.filter(|event| event.binding == Binding::Unexplained)
    }
}

/// Shows that the log says how each of these values came about: replaying its entries gives them.
///
/// Only entries that extend one of these PCRs are judged: nothing vouches for the others, and they are left out of what is
/// returned. For each event, the PCR, the digest and the order within the PCR are proven by the value; the data as far as
/// [`Binding`] says; the type never. Data that prove nothing refuse no log.
///
/// # Errors
/// [`ReplayError`], for the first entry without a digest of the bank, else for the first PCR whose value is another.
pub fn replays(log: &EventLog, values: &PcrValues) -> Result<Replayed, ReplayError> {
    let bank = values.bank();
    if !log.banks.contains(&bank) {
        let have = log.banks.clone();
        return Err(ReplayError::Bank { bank, have });
    }
    let selection = values.selection();
    let mut events = Vec::new();
    for (entry, event, pcr) in extending(log).filter(|(_, _, pcr)| selection.contains(*pcr)) {
        let digest = *digest_of(event, entry, pcr, bank)?;
        events.push(ReplayedEvent {
            entry,
            pcr,
            digest,
            kind: event.kind,
            binding: binding(event, &digest),
            description: event.describe(),
        });
    }
    for (pcr, actual) in values.iter() {
        let of_pcr = || events.iter().filter(|event| event.pcr == pcr);
        let value_from = |start: Digest| of_pcr().fold(start, |value, event| value.extended(&event.digest));
        let mut starts = starts_of(log, pcr, bank).into_iter();
        let replayed = starts.next().map(value_from).unwrap_or(pcr.start_value(bank));
        if replayed != *actual && !starts.any(|start| value_from(start) == *actual) {
            return Err(ReplayError::Value {
                pcr,
                replayed: Box::new(replayed),
                actual: Box::new(*actual),
                last_entry: of_pcr().next_back().map(|event| event.entry),
            });
        }
    }
    Ok(Replayed { events })
}

impl EventLog {
    /// The values that this bank's PCRs have if the log is true, of those that it extends.
    ///
    /// # Errors
    /// [`ReplayError`] where the log has no digest of the bank.
    pub fn replay(&self, bank: HashAlgorithm) -> Result<PcrValues, ReplayError> {
        if !self.banks.contains(&bank) {
            let have = self.banks.clone();
            return Err(ReplayError::Bank { bank, have });
        }
        let mut values = PcrValues::new(bank);
        for (entry, event, pcr) in extending(self) {
            let before = match values.get(pcr) {
                Some(value) => *value,
                None => starts_of(self, pcr, bank)
                    .first()
                    .copied()
                    .unwrap_or(pcr.start_value(bank)),
            };
            // Both are of the bank.
            let _ = values.set(pcr, before.extended(digest_of(event, entry, pcr, bank)?));
        }
        Ok(values)
    }
}

/// The entries that extend something, with their numbers.
fn extending(log: &EventLog) -> impl Iterator<Item = (usize, &Event, PcrIndex)> {
    let entries = log.events.iter().enumerate();
    entries
        .filter(|(_, event)| event.kind != EventType::EV_NO_ACTION)
        .filter_map(|(entry, event)| Some((entry, event, event.pcr?)))
}

fn digest_of(
    event: &Event,
    entry: usize,
    pcr: PcrIndex,
    bank: HashAlgorithm,
) -> Result<&Digest, ReplayError> {
    event.digest(bank).ok_or(ReplayError::NoDigest {
        entry,
        kind: event.kind,
        pcr,
        bank,
    })
}

/// What a PCR may start with, what the log says first. Only PCR 0 has a choice: the locality of TPM2_Startup is in its last
/// byte (0 or 3), which a remark names if it is not 0 (PFP 10.4.5.3, "Startup Locality Event"), and 4 if the processor measured
/// something before (H-CRTM; TPM 2.0 Library, Part 1, "H-CRTM before TPM2_Startup"). Firmware leaves the remark out or writes it
/// late: nothing but the PCR's value decides which start was the true one.
fn starts_of(log: &EventLog, pcr: PcrIndex, bank: HashAlgorithm) -> Vec<Digest> {
    const LOCALITIES: [u8; 3] = [0, 3, 4];
    if pcr.get() != 0 {
        return Vec::from([pcr.start_value(bank)]);
    }
    let remark = log.events.iter().find_map(|event| {
        let is_remark = event.kind == EventType::EV_NO_ACTION;
        match event.data.strip_prefix(STARTUP_LOCALITY) {
            Some([locality]) if is_remark && LOCALITIES.contains(locality) => Some(*locality),
            _ => None,
        }
    });
    let first = extending(log).find(|(_, _, of)| *of == pcr);
    let is_hcrtm = first.is_some_and(|(_, event, _)| event.kind == EventType::EV_EFI_HCRTM_EVENT);
    let said = match is_hcrtm {
        true => 4,
        false => remark.unwrap_or(0),
    };
    let others = LOCALITIES.into_iter().filter(|locality| *locality != said);
    std::iter::once(said)
        .chain(others)
        .filter_map(|locality| {
            let mut bytes = vec![0; bank.digest_bytes()];
            *bytes.last_mut()? = locality;
            Digest::new(bank, &bytes).ok()
        })
        .collect()
}
