//! Transfer of evidence to the controller in chunks (LAP/1 1.7.6).

use core::fmt;

use sha2::{Digest as _, Sha256};
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::outcome::Outcome;
use super::{BODY_BYTES_MAX, BodyBuffer, TicketError};

/// The longest document in bytes.
pub const EVIDENCE_BYTES_MAX: u32 = 2 << 20;
/// Bytes before the data of a chunk: `report_id[16] | total u32 | offset u32`.
const CHUNK_HEADER_BYTES: usize = 24;
/// The longest chunk, bytes.
pub const CHUNK_BYTES_MAX: usize = BODY_BYTES_MAX - CHUNK_HEADER_BYTES;
/// Length of the response to a chunk.
pub const CHUNK_ACK_BYTES: usize = 8;

/// Identifies the document: the first half of its SHA-256, so that chunks of two documents are never joined.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReportId(pub [u8; 16]);

impl ReportId {
    /// The id of a complete document.
    #[must_use]
    pub fn of_document(document: &[u8]) -> Self {
        let hash: [u8; 32] = Sha256::digest(document).into();
        let mut id = [0; 16];
        id.iter_mut().zip(hash).for_each(|(to, byte)| *to = byte);
        Self(id)
    }
}

impl fmt::Display for ReportId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ReportId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReportId({self})")
    }
}

/// A chunk of a document: at least one byte, all of it within the document.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EvidenceChunk<'a> {
    report: ReportId,
    total: u32,
    offset: u32,
    bytes: &'a [u8],
}

impl<'a> EvidenceChunk<'a> {
    /// `bytes` at `offset` of the document of `total` bytes; `None` for an invalid chunk: empty, longer than
    /// [`CHUNK_BYTES_MAX`], beyond the end of the document, or of a document above [`EVIDENCE_BYTES_MAX`].
    #[must_use]
    pub fn new(report: ReportId, total: u32, offset: u32, bytes: &'a [u8]) -> Option<Self> {
        let length = u32::try_from(bytes.len()).ok()?;
        let is_within = offset.checked_add(length).is_some_and(|end| end <= total);
        let is_valid =
            !bytes.is_empty() && bytes.len() <= CHUNK_BYTES_MAX && total <= EVIDENCE_BYTES_MAX && is_within;
        is_valid.then_some(Self {
            report,
            total,
            offset,
            bytes,
        })
    }

    /// Parses the body of [`Kind::Evidence`](super::Kind::Evidence).
    ///
    /// # Errors
    /// [`TicketError::Malformed`].
    pub fn parse(body: &'a [u8]) -> Result<Self, TicketError> {
        let read = || {
            let (report, rest) = body.split_first_chunk()?;
            let (total, rest) = rest.split_first_chunk()?;
            let (offset, bytes) = rest.split_first_chunk()?;
            let (total, offset) = (u32::from_be_bytes(*total), u32::from_be_bytes(*offset));
            Self::new(ReportId(*report), total, offset, bytes)
        };
        read().ok_or(TicketError::Malformed)
    }

    /// Writes the body.
    #[must_use]
    pub fn write<'b>(&self, out: &'b mut BodyBuffer) -> Option<&'b [u8]> {
        let length = CHUNK_HEADER_BYTES + self.bytes.len();
        let (total, offset) = (self.total.to_be_bytes(), self.offset.to_be_bytes());
        let parts: [&[u8]; 4] = [&self.report.0, &total, &offset, self.bytes];
        let body = out.get_mut(..length)?;
        let bytes = parts.into_iter().flatten();
        body.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
        Some(body)
    }

    /// The document of this chunk.
    #[must_use]
    pub fn report(&self) -> ReportId {
        self.report
    }

    /// Length of the document in bytes, at most [`EVIDENCE_BYTES_MAX`].
    #[must_use]
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Offset of the chunk in the document.
    #[must_use]
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// The bytes of the chunk.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// The response to a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkAck {
    /// `Done`: received up to `received`, and complete if that is the whole document. `OutOfSequence`: the chunk does
    /// not follow; continue at `received`. `Refused`: the controller does not accept this document. No other value.
    pub outcome: Outcome,
    /// Bytes that the controller has received from the start of the document.
    pub received: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WireChunkAck {
    outcome: u8,
    reserved: [u8; 3],
    received: U32,
}
const _: () = assert!(size_of::<WireChunkAck>() == CHUNK_ACK_BYTES);

impl ChunkAck {
    /// The response in wire format.
    #[must_use]
    pub fn to_wire(&self) -> [u8; CHUNK_ACK_BYTES] {
        let wire = WireChunkAck {
            outcome: self.outcome as u8,
            reserved: [0; 3],
            received: U32::new(self.received),
        };
        let mut bytes = [0; CHUNK_ACK_BYTES];
        bytes.copy_from_slice(wire.as_bytes());
        bytes
    }

    /// Parses the body of a response.
    ///
    /// # Errors
    /// [`TicketError::Malformed`].
    pub fn parse(body: &[u8]) -> Result<Self, TicketError> {
        let read = || {
            let wire = WireChunkAck::ref_from_bytes(body).ok()?;
            let outcomes = [Outcome::Done, Outcome::OutOfSequence, Outcome::Refused];
            let outcome = outcomes
                .into_iter()
                .find(|outcome| *outcome as u8 == wire.outcome)?;
            let received = wire.received.get();
            (wire.reserved == [0; 3] && received <= EVIDENCE_BYTES_MAX).then_some(Self { outcome, received })
        };
        read().ok_or(TicketError::Malformed)
    }
}
