//! Verification that a log replays to PCR values. [`DigestCoverage`] defines what is proven about the data.

use std::fmt;

use serde::Serialize;

use super::coverage::{DigestCoverage, digest_coverage};
use super::{Event, EventLog, EventType};
use crate::digest::{Digest, HashAlgorithm};
use crate::pcr::{PcrIndex, PcrValues};

const STARTUP_LOCALITY: &[u8; 16] = b"StartupLocality\0";

/// Why a log does not replay to the values. Entries are counted from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// The log has no digests of this bank, and so does not determine the values: [`ReplayError::has_no_statement`].
    #[error("{}", missing_bank_text(*bank, available))]
    MissingBank {
        /// The requested bank.
        bank: HashAlgorithm,
        /// The banks in the log.
        available: Vec<HashAlgorithm>,
    },
    /// One entry has no digest, so the extended value is unknown.
    #[error("event log entry {entry} ({kind}, PCR {pcr}) has no digest of the bank {bank}")]
    NoDigest {
        /// Number of the entry.
        entry: usize,
        /// Its type.
        kind: EventType,
        /// Its PCR.
        pcr: PcrIndex,
        /// The bank.
        bank: HashAlgorithm,
    },
    /// The replayed value differs from the value of the PCR.
    #[error(
        "PCR {pcr} does not match: the event log gives {replayed}, the TPM has {actual}; {}; the log is truncated or of \
         another boot, or an extend of this PCR was not logged",
        last_entry_text(*last_entry)
    )]
    ValueMismatch {
        /// The PCR.
        pcr: PcrIndex,
        /// The value from the log.
        replayed: Box<Digest>,
        /// The value of the PCR.
        actual: Box<Digest>,
        /// Number of the last entry that extends this PCR; `None` if there is none.
        last_entry: Option<usize>,
    },
}

fn missing_bank_text(bank: HashAlgorithm, available: &[HashAlgorithm]) -> String {
    if available.is_empty() {
        return "event log is empty".to_owned();
    }
    let names: Vec<_> = available.iter().map(ToString::to_string).collect();
    format!(
        "event log has no digests of the bank {bank}, only of {}",
        names.join(", ")
    )
}

impl ReplayError {
    /// Whether the log does not determine the values, because it has no digests of the bank: an empty log, a log in the
    /// SHA-1 format, or a log with other banks. Then the values can be appraised without a log. With any other error, the
    /// log is invalid or contradicts the values.
    pub const fn has_no_statement(&self) -> bool {
        matches!(self, Self::MissingBank { .. })
    }
}

fn last_entry_text(entry: Option<usize>) -> String {
    match entry {
        Some(entry) => format!("the last entry of this PCR is {entry}"),
        None => "no entry extends this PCR".to_owned(),
    }
}

/// A log that replays to PCR values: its events for these PCRs, in order, with the proven part of their data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReplayedLog {
    events: Vec<ReplayedEvent>,
}

/// An event that a PCR value proves to have been extended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReplayedEvent {
    /// The number in the log, from 0.
    pub entry: usize,
    /// The PCR. Proven.
    pub pcr: PcrIndex,
    /// The extended digest. Proven, as is its position among the events of the PCR.
    pub digest: Digest,
    /// The type in the log. Never proven.
    pub kind: EventType,
    /// The proven part of the data.
    pub coverage: DigestCoverage,
    /// The data as text. See [`Self::coverage`].
    pub description: String,
}

/// One line: unproven parts are marked, and an unexplained event is displayed with its digest, which alone counts.
impl fmt::Display for ReplayedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (entry, pcr, kind) = (self.entry, self.pcr, self.kind);
        write!(f, "entry {entry}, PCR {pcr}, {kind}: {}", self.description)?;
        match self.coverage {
            DigestCoverage::All => Ok(()),
            DigestCoverage::Part(_) => f.write_str(" (in part claimed)"),
            DigestCoverage::NotLogged => f.write_str(" (claimed)"),
            DigestCoverage::Unexplained => write!(f, " (unexplained, digest {})", self.digest),
        }
    }
}

impl ReplayedLog {
    /// The events of the requested PCRs, in the order of the log.
    pub fn events(&self) -> &[ReplayedEvent] {
        &self.events
    }

    /// The events whose type requires a digest of the data, but whose digest does not match.
    pub fn unexplained(&self) -> impl Iterator<Item = &ReplayedEvent> {
        let events = self.events.iter();
        events.filter(|event| event.coverage == DigestCoverage::Unexplained)
    }
}

/// Verifies that replaying the log gives these values.
///
/// Only entries that extend one of these PCRs are checked and returned; other entries are not proven. For each event,
/// the value proves the PCR, the digest and the order within the PCR; [`DigestCoverage`] defines the proven part of
/// the data; the type is never proven. Unexplained data do not invalidate a log.
///
/// # Errors
/// [`ReplayError`]: the log has no digests of the bank, or an entry that extends one of these PCRs has no such digest, or
/// the value of a PCR differs.
pub fn verify_replay(log: &EventLog, values: &PcrValues) -> Result<ReplayedLog, ReplayError> {
    let bank = values.bank();
    if !log.banks.contains(&bank) {
        let available = log.banks.clone();
        return Err(ReplayError::MissingBank { bank, available });
    }
    let selection = values.selection();
    let mut events = Vec::new();
    for (entry, event, pcr) in extending_events(log).filter(|(_, _, pcr)| selection.contains(*pcr)) {
        let digest = *digest_of(event, entry, pcr, bank)?;
        events.push(ReplayedEvent {
            entry,
            pcr,
            digest,
            kind: event.kind,
            coverage: digest_coverage(event, &digest),
            description: event.describe(),
        });
    }
    for (pcr, actual) in values.iter() {
        let events_of_pcr = || events.iter().filter(|event| event.pcr == pcr);
        let value_from =
            |start: Digest| events_of_pcr().fold(start, |value, event| value.extended(&event.digest));
        let mut starts = start_values(log, pcr, bank).into_iter();
        let replayed = starts.next().map(value_from).unwrap_or(pcr.start_value(bank));
        if replayed != *actual && !starts.any(|start| value_from(start) == *actual) {
            return Err(ReplayError::ValueMismatch {
                pcr,
                replayed: Box::new(replayed),
                actual: Box::new(*actual),
                last_entry: events_of_pcr().next_back().map(|event| event.entry),
            });
        }
    }
    Ok(ReplayedLog { events })
}

impl EventLog {
    /// The values of this bank's PCRs according to the log, for the PCRs that the log extends.
    ///
    /// # Errors
    /// [`ReplayError`] if the log, or an entry that extends a PCR, has no digest of the bank.
    pub fn replay(&self, bank: HashAlgorithm) -> Result<PcrValues, ReplayError> {
        if !self.banks.contains(&bank) {
            let available = self.banks.clone();
            return Err(ReplayError::MissingBank { bank, available });
        }
        let mut values = PcrValues::new(bank);
        for (entry, event, pcr) in extending_events(self) {
            let before = match values.get(pcr) {
                Some(value) => *value,
                None => start_values(self, pcr, bank)
                    .first()
                    .copied()
                    .unwrap_or(pcr.start_value(bank)),
            };
            // `set` cannot fail, because the digest is of the bank.
            let _ = values.set(pcr, before.extended(digest_of(event, entry, pcr, bank)?));
        }
        Ok(values)
    }
}

/// The entries that extend a PCR, with their numbers.
fn extending_events(log: &EventLog) -> impl Iterator<Item = (usize, &Event, PcrIndex)> {
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

/// The possible start values of a PCR, the value from the log first. Only PCR 0 has a choice: its last byte is the
/// locality of TPM2_Startup (0 or 3), which an EV_NO_ACTION event states if it is not 0 (PFP 10.4.5.3, "Startup
/// Locality Event"), or 4 if the processor measured before TPM2_Startup (H-CRTM; TPM 2.0 Library, Part 1, "H-CRTM
/// before TPM2_Startup"). Firmware omits the event or writes it late, so only the PCR value decides.
fn start_values(log: &EventLog, pcr: PcrIndex, bank: HashAlgorithm) -> Vec<Digest> {
    const LOCALITIES: [u8; 3] = [0, 3, 4];
    if pcr.get() != 0 {
        return Vec::from([pcr.start_value(bank)]);
    }
    let stated_locality = log.events.iter().find_map(|event| {
        let is_no_action = event.kind == EventType::EV_NO_ACTION;
        match event.data.strip_prefix(STARTUP_LOCALITY) {
            Some([locality]) if is_no_action && LOCALITIES.contains(locality) => Some(*locality),
            _ => None,
        }
    });
    let first = extending_events(log).find(|(_, _, extended)| *extended == pcr);
    let is_hcrtm = first.is_some_and(|(_, event, _)| event.kind == EventType::EV_EFI_HCRTM_EVENT);
    let event_locality = match is_hcrtm {
        true => 4,
        false => stated_locality.unwrap_or(0),
    };
    let other_localities = LOCALITIES
        .into_iter()
        .filter(|locality| *locality != event_locality);
    std::iter::once(event_locality)
        .chain(other_localities)
        .filter_map(|locality| {
            let mut bytes = vec![0; bank.digest_bytes()];
            *bytes.last_mut()? = locality;
            Digest::new(bank, &bytes).ok()
        })
        .collect()
}
