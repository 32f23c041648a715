//! Parser of event logs: PFP 10.2 ("TCG_PCR_EVENT"), 10.2.2 ("TCG_PCR_EVENT2"), 10.4.5.1 ("Spec ID Event").

use std::collections::BTreeMap;

use super::{Event, EventLog, EventType, LogFormat};
use crate::byte_reader::ByteReader;
use crate::digest::{Digest, HashAlgorithm};
use crate::pcr::PcrIndex;

/// Maximum length of a log. Firmware reserves 64 to 256 KiB.
pub const LOG_BYTES_MAX: usize = 1 << 20;
/// Maximum number of entries. A boot loader that measures its whole script writes some hundreds.
pub const ENTRIES_MAX: usize = 16_384;
/// Maximum number of banks in a log.
const BANKS_MAX: u32 = 16;

const SPEC_ID_AGILE: &[u8; 16] = b"Spec ID Event03\0";

/// Why bytes are not an event log. Entries are counted from 0, as in `tpm2_eventlog`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The log is longer than the maximum.
    #[error("event log too long: {0} bytes, the maximum is {LOG_BYTES_MAX}")]
    TooLong(usize),
    /// An entry is invalid, so later entries cannot be located.
    #[error("invalid event log entry {entry} at byte {offset}: {problem}")]
    Entry {
        /// The number of the entry.
        entry: usize,
        /// The offset of the entry.
        offset: usize,
        /// The problem.
        problem: EntryProblem,
    },
}

/// Why an entry is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryProblem {
    /// The log ends within the entry.
    #[error("the log ends before the {0}; the file is truncated, copy it again from the kernel")]
    Truncated(&'static str),
    /// The data of the first entry end within the list of algorithms.
    #[error("the data of the first entry end before the {0}")]
    TruncatedList(&'static str),
    /// The log has more entries than the maximum.
    #[error("too many entries; the maximum is {ENTRIES_MAX}")]
    TooMany,
    /// The PCR does not exist.
    #[error("PCR {0} does not exist")]
    InvalidPcr(u32),
    /// An entry has too many digests, or the first entry lists too many algorithms, or the first entry lists none.
    #[error("invalid number of hash algorithms: {0}")]
    InvalidAlgorithmCount(u32),
    /// The first entry lists this algorithm twice, or with a wrong size, or an entry has two digests of this algorithm.
    #[error("hash algorithm {0:#06x} is listed twice or with a wrong size")]
    InvalidAlgorithm(u16),
    /// A digest of an algorithm that the first entry does not list, so its length is unknown.
    #[error("digest of algorithm {0:#06x}, which the first entry does not list")]
    UnlistedAlgorithm(u16),
    /// An entry of the agile format that extends a PCR and has no digest.
    #[error("no digest")]
    NoDigest,
}

type ParseResult<T> = Result<T, EntryProblem>;

/// Digest length of each algorithm of the log.
type Sizes = BTreeMap<u16, usize>;

impl EventLog {
    /// Parses a log as Linux provides it in `/sys/kernel/security/tpm0/binary_bios_measurements`: the agile format,
    /// or the SHA-1 format. All bytes must belong to entries, except the unused rest of the log area: zeros, or 0xff
    /// as in the log of a confidential guest (ACPI CCEL), up to the end. A log without entries is empty: it has
    /// digests of no bank.
    ///
    /// # Errors
    /// [`ParseError`] with the number of the first invalid entry.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        if bytes.len() > LOG_BYTES_MAX {
            return Err(ParseError::TooLong(bytes.len()));
        }
        let mut fields = ByteReader::new(bytes);
        let mut events = Vec::new();
        let mut sizes = None;
        let used_len = used_bytes(bytes);
        while bytes.len() - fields.rest().len() < used_len {
            let entry_bytes = fields.rest();
            let event = read_event(&mut fields, sizes.as_ref(), events.len()).and_then(|event| {
                if events.is_empty() {
                    sizes = spec_id(&event)?;
                }
                Ok(event)
            });
            events.push(event.map_err(|problem| ParseError::Entry {
                entry: events.len(),
                offset: bytes.len() - entry_bytes.len(),
                problem,
            })?);
        }
        let (format, banks) = match sizes {
            Some(sizes) => (
                LogFormat::Agile,
                sizes.into_keys().filter_map(HashAlgorithm::from_tcg_id).collect(),
            ),
            None if events.is_empty() => (LogFormat::Sha1, Vec::new()),
            None => (LogFormat::Sha1, vec![HashAlgorithm::Sha1]),
        };
        Ok(Self {
            format,
            banks,
            events,
        })
    }
}

/// Returns a lower bound of the length of all entries: the length of the log without equal bytes 0 or 0xff at its end.
/// The last entry may itself end in such bytes, so the padding starts at the end of the entry that contains this
/// position.
fn used_bytes(bytes: &[u8]) -> usize {
    match bytes.last() {
        Some(fill @ (0 | 0xff)) => {
            let last_used = bytes.iter().rposition(|byte| byte != fill);
            last_used.map_or(0, |last_used| last_used + 1)
        }
        _ => bytes.len(),
    }
}

fn read_event(fields: &mut ByteReader<'_>, sizes: Option<&Sizes>, entry: usize) -> ParseResult<Event> {
    if entry == ENTRIES_MAX {
        return Err(EntryProblem::TooMany);
    }
    let pcr = fields.u32_le().ok_or(EntryProblem::Truncated("PCR index"))?;
    let kind = EventType(fields.u32_le().ok_or(EntryProblem::Truncated("event type"))?);
    let pcr = match PcrIndex::try_from(pcr) {
        Ok(pcr) => Some(pcr),
        // An EV_NO_ACTION entry without a PCR has all ones in this field.
        Err(_) if kind == EventType::EV_NO_ACTION => None,
        Err(_) => return Err(EntryProblem::InvalidPcr(pcr)),
    };
    let digests = match sizes {
        Some(sizes) => digests(fields, sizes, kind)?,
        None => {
            let bytes = fields.take(20).ok_or(EntryProblem::Truncated("digest"))?;
            Digest::new(HashAlgorithm::Sha1, bytes).into_iter().collect()
        }
    };
    let data = fields
        .sized_u32_le()
        .ok_or(EntryProblem::Truncated("event data"))?;
    Ok(Event {
        pcr,
        kind,
        digests,
        data: data.to_vec(),
    })
}

/// Reads a TPML_DIGEST_VALUES. Digests of unknown algorithms are skipped.
fn digests(fields: &mut ByteReader<'_>, sizes: &Sizes, kind: EventType) -> ParseResult<Vec<Digest>> {
    let count = fields
        .u32_le()
        .ok_or(EntryProblem::Truncated("number of digests"))?;
    match count {
        0 if kind != EventType::EV_NO_ACTION => return Err(EntryProblem::NoDigest),
        0..=BANKS_MAX => {}
        _ => return Err(EntryProblem::InvalidAlgorithmCount(count)),
    }
    let mut listed_sizes = Sizes::new();
    let mut digests = Vec::new();
    for _ in 0..count {
        let id = fields
            .u16_le()
            .ok_or(EntryProblem::Truncated("digest's algorithm"))?;
        let size = *sizes.get(&id).ok_or(EntryProblem::UnlistedAlgorithm(id))?;
        let bytes = fields.take(size).ok_or(EntryProblem::Truncated("digest"))?;
        if listed_sizes.insert(id, size).is_some() {
            return Err(EntryProblem::InvalidAlgorithm(id));
        }
        if let Some(algorithm) = HashAlgorithm::from_tcg_id(id) {
            digests.push(Digest::new(algorithm, bytes).map_err(|_| EntryProblem::InvalidAlgorithm(id))?);
        }
    }
    Ok(digests)
}

/// The algorithms that the first entry of the agile format lists, or `None` for the SHA-1 format
/// (TCG_EfiSpecIDEvent).
fn spec_id(event: &Event) -> ParseResult<Option<Sizes>> {
    let mut fields = ByteReader::new(&event.data);
    if event.kind != EventType::EV_NO_ACTION || fields.take(SPEC_ID_AGILE.len()) != Some(SPEC_ID_AGILE) {
        return Ok(None);
    }
    // Platform class, version, erratum, and the size of UINTN are not used.
    fields.take(8).ok_or(EntryProblem::TruncatedList("version"))?;
    let count = fields
        .u32_le()
        .ok_or(EntryProblem::TruncatedList("number of algorithms"))?;
    if !(1..=BANKS_MAX).contains(&count) {
        return Err(EntryProblem::InvalidAlgorithmCount(count));
    }
    let mut sizes = Sizes::new();
    for _ in 0..count {
        let id = fields
            .u16_le()
            .ok_or(EntryProblem::TruncatedList("list of algorithms"))?;
        let size = usize::from(
            fields
                .u16_le()
                .ok_or(EntryProblem::TruncatedList("list of algorithms"))?,
        );
        let has_wrong_size =
            HashAlgorithm::from_tcg_id(id).is_some_and(|algorithm| algorithm.digest_bytes() != size);
        if has_wrong_size || size > 64 || sizes.insert(id, size).is_some() {
            return Err(EntryProblem::InvalidAlgorithm(id));
        }
    }
    let vendor_bytes = fields
        .u8()
        .ok_or(EntryProblem::TruncatedList("vendor's information"))?;
    fields
        .take(usize::from(vendor_bytes))
        .ok_or(EntryProblem::TruncatedList("vendor's information"))?;
    Ok(Some(sizes))
}
