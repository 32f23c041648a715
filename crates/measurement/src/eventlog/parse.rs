//! Bytes of a log, read or refused: PFP 10.2 ("TCG_PCR_EVENT"), 10.2.2 ("TCG_PCR_EVENT2"), 10.4.5.1 ("Spec ID Event").

use std::collections::BTreeMap;

use super::{Event, EventLog, EventType, LogFormat};
use crate::digest::{Digest, HashAlgorithm};
use crate::fields::Fields;
use crate::pcr::PcrIndex;

/// The longest log that is read. Firmware reserves 64 to 256 KiB.
pub const LOG_BYTES_MAX: usize = 1 << 20;
/// The most entries that are read. A boot loader that measures its whole script makes some hundreds.
pub const ENTRIES_MAX: usize = 16_384;
/// The most banks that a log may have.
const BANKS_MAX: u32 = 16;

const SPEC_ID_AGILE: &[u8; 16] = b"Spec ID Event03\0";

/// Why bytes are no event log. Entries are counted from 0, as `tpm2_eventlog` does.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Longer than any firmware's.
    #[error("the event log has {0} bytes, more than {LOG_BYTES_MAX}")]
    TooLong(usize),
    /// One entry is wrong, and what follows cannot be told.
    #[error("event log, entry {entry} at byte {offset}: {problem}")]
    Entry {
        /// Its number.
        entry: usize,
        /// Where it begins.
        offset: usize,
        /// What is wrong.
        problem: EntryProblem,
    },
}

/// What is wrong with an entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryProblem {
    /// The log ends inside it.
    #[error("the log ends before its {0}: the file is cut off; copy it again from the kernel")]
    Truncated(&'static str),
    /// The data of the first entry end inside the list of algorithms.
    #[error("its data end before their {0}")]
    Short(&'static str),
    /// There are more than anybody makes.
    #[error("more than {ENTRIES_MAX} entries")]
    TooMany,
    /// No such register.
    #[error("it extends PCR {0}, which does not exist")]
    Pcr(u32),
    /// More algorithms than there are.
    #[error("it tells of {0} hash algorithms")]
    Algorithms(u32),
    /// The first entry lists this one twice, or with another size, or an entry has two digests of it.
    #[error("hash algorithm {0:#06x} is there twice or with a wrong size")]
    Algorithm(u16),
    /// A digest of an algorithm that the first entry does not list, so that its length is not known.
    #[error("a digest of algorithm {0:#06x}, which the first entry does not list")]
    Unlisted(u16),
    /// An entry of the agile format that extends a PCR and has no digest.
    #[error("it has no digest")]
    NoDigest,
}

type Read<T> = Result<T, EntryProblem>;

/// How long the digests of each algorithm of the log are.
type Sizes = BTreeMap<u16, usize>;

impl EventLog {
    /// Reads a log as Linux gives it in `/sys/kernel/security/tpm0/binary_bios_measurements`: the agile format, or the one
    /// for SHA-1 alone. All bytes must belong to entries, but for the unused rest of the log's memory: zeros, or 0xff as in the
    /// log of a confidential guest (ACPI CCEL), up to the end. A log without entries is empty: it has digests of no bank.
    ///
    /// # Errors
    /// [`ParseError`] with the number of the first entry that cannot be read.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        if bytes.len() > LOG_BYTES_MAX {
            return Err(ParseError::TooLong(bytes.len()));
        }
        let mut fields = Fields::new(bytes);
        let mut events = Vec::new();
        let mut sizes = None;
        let used = used_bytes(bytes);
        while bytes.len() - fields.rest().len() < used {
            let rest = fields.rest();
            let event = next(&mut fields, sizes.as_ref(), events.len()).and_then(|event| {
                if events.is_empty() {
                    sizes = spec_id(&event)?;
                }
                Ok(event)
            });
            events.push(event.map_err(|problem| ParseError::Entry {
                entry: events.len(),
                offset: bytes.len() - rest.len(),
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

/// Length of the log without the filling at its end. An entry may itself end in such bytes: the filling begins no earlier than
/// where an entry would.
fn used_bytes(bytes: &[u8]) -> usize {
    match bytes.last() {
        Some(fill @ (0 | 0xff)) => {
            let last_used = bytes.iter().rposition(|byte| byte != fill);
            last_used.map_or(0, |last_used| last_used + 1)
        }
        _ => bytes.len(),
    }
}

fn next(fields: &mut Fields<'_>, sizes: Option<&Sizes>, entry: usize) -> Read<Event> {
    if entry == ENTRIES_MAX {
        return Err(EntryProblem::TooMany);
    }
    let pcr = fields.u32_le().ok_or(EntryProblem::Truncated("PCR index"))?;
    let kind = EventType(fields.u32_le().ok_or(EntryProblem::Truncated("event type"))?);
    let pcr = match PcrIndex::try_from(pcr) {
        Ok(pcr) => Some(pcr),
        // A remark about no PCR in particular has all ones there.
        Err(_) if kind == EventType::EV_NO_ACTION => None,
        Err(_) => return Err(EntryProblem::Pcr(pcr)),
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

/// TPML_DIGEST_VALUES. Digests of algorithms that are not known here are passed over.
fn digests(fields: &mut Fields<'_>, sizes: &Sizes, kind: EventType) -> Read<Vec<Digest>> {
    let count = fields
        .u32_le()
        .ok_or(EntryProblem::Truncated("number of digests"))?;
    match count {
        0 if kind != EventType::EV_NO_ACTION => return Err(EntryProblem::NoDigest),
        0..=BANKS_MAX => {}
        _ => return Err(EntryProblem::Algorithms(count)),
    }
    let mut seen = Sizes::new();
    let mut digests = Vec::new();
    for _ in 0..count {
        let id = fields
            .u16_le()
            .ok_or(EntryProblem::Truncated("digest's algorithm"))?;
        let size = *sizes.get(&id).ok_or(EntryProblem::Unlisted(id))?;
        let bytes = fields.take(size).ok_or(EntryProblem::Truncated("digest"))?;
        if seen.insert(id, size).is_some() {
            return Err(EntryProblem::Algorithm(id));
        }
        if let Some(algorithm) = HashAlgorithm::from_tcg_id(id) {
            digests.push(Digest::new(algorithm, bytes).map_err(|_| EntryProblem::Algorithm(id))?);
        }
    }
    Ok(digests)
}

/// The algorithms that a first entry of the agile format lists, or nothing if it is of the format for SHA-1 alone
/// (TCG_EfiSpecIDEvent).
fn spec_id(event: &Event) -> Read<Option<Sizes>> {
    let mut fields = Fields::new(&event.data);
    if event.kind != EventType::EV_NO_ACTION || fields.take(SPEC_ID_AGILE.len()) != Some(SPEC_ID_AGILE) {
        return Ok(None);
    }
    // Platform class, version, erratum, and the size of UINTN: nothing below depends on them.
    fields.take(8).ok_or(EntryProblem::Short("version"))?;
    let count = fields
        .u32_le()
        .ok_or(EntryProblem::Short("number of algorithms"))?;
    if !(1..=BANKS_MAX).contains(&count) {
        return Err(EntryProblem::Algorithms(count));
    }
    let mut sizes = Sizes::new();
    for _ in 0..count {
        let id = fields.u16_le().ok_or(EntryProblem::Short("list of algorithms"))?;
        let size = usize::from(fields.u16_le().ok_or(EntryProblem::Short("list of algorithms"))?);
        let wrong = HashAlgorithm::from_tcg_id(id).is_some_and(|algorithm| algorithm.digest_bytes() != size);
        if wrong || size > 64 || sizes.insert(id, size).is_some() {
            return Err(EntryProblem::Algorithm(id));
        }
    }
    let vendor_bytes = fields.u8().ok_or(EntryProblem::Short("vendor's information"))?;
    fields
        .take(usize::from(vendor_bytes))
        .ok_or(EntryProblem::Short("vendor's information"))?;
    Ok(Some(sizes))
}
