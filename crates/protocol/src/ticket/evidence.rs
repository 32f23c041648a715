//! Evidence on its way to the controller, a piece at a time (LAP/1 1.7.6).

use core::fmt;

use sha2::{Digest as _, Sha256};
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{BODY_BYTES_MAX, Bodies, Outcome, TicketError};

/// The longest document that is sent so, bytes.
pub const EVIDENCE_BYTES_MAX: u32 = 2 << 20;
/// Bytes in front of a piece: `report_id[16] | total u32 | offset u32`.
const PIECE_HEAD_BYTES: usize = 24;
/// The longest piece, bytes.
pub const PIECE_BYTES_MAX: usize = BODY_BYTES_MAX - PIECE_HEAD_BYTES;
/// Bytes of the answer to a piece.
pub const TAKEN_BYTES: usize = 8;

/// Which document: the first half of its SHA-256, so that pieces of two are never joined.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReportId(pub [u8; 16]);

impl ReportId {
    /// Of a whole document.
    #[must_use]
    pub fn of(document: &[u8]) -> Self {
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

/// A piece of a document: one byte at least, all of it within the document.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece<'a> {
    report: ReportId,
    total: u32,
    offset: u32,
    bytes: &'a [u8],
}

impl<'a> Piece<'a> {
    /// `bytes` at `offset` of the document of `total` bytes; `None` for one that must not be sent: empty, longer than
    /// [`PIECE_BYTES_MAX`], beyond the document's end, of a document above [`EVIDENCE_BYTES_MAX`].
    #[must_use]
    pub fn new(report: ReportId, total: u32, offset: u32, bytes: &'a [u8]) -> Option<Self> {
        let length = u32::try_from(bytes.len()).ok()?;
        let lies_within = offset.checked_add(length).is_some_and(|end| end <= total);
        let is_right =
            !bytes.is_empty() && bytes.len() <= PIECE_BYTES_MAX && total <= EVIDENCE_BYTES_MAX && lies_within;
        is_right.then_some(Self {
            report,
            total,
            offset,
            bytes,
        })
    }

    /// Reads the body of [`Kind::Evidence`](super::Kind::Evidence).
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
    pub fn write<'b>(&self, out: &'b mut Bodies) -> Option<&'b [u8]> {
        let length = PIECE_HEAD_BYTES + self.bytes.len();
        let (total, offset) = (self.total.to_be_bytes(), self.offset.to_be_bytes());
        let parts: [&[u8]; 4] = [&self.report.0, &total, &offset, self.bytes];
        let body = out.get_mut(..length)?;
        let bytes = parts.into_iter().flatten();
        body.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
        Some(body)
    }

    /// Which document it is of.
    #[must_use]
    pub fn report(&self) -> ReportId {
        self.report
    }

    /// Bytes of the whole document, at most [`EVIDENCE_BYTES_MAX`].
    #[must_use]
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Where it begins in the document.
    #[must_use]
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// What it brings.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// The answer to a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// `Done`: taken up to `received`, and complete if that is the whole. `Misplaced`: the piece does not follow; go on at
    /// `received`. `Refused`: this document is not wanted. Nothing else.
    pub outcome: Outcome,
    /// Bytes of the document, from its beginning, that the controller has.
    pub received: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WireTaken {
    outcome: u8,
    reserved: [u8; 3],
    received: U32,
}
const _: () = assert!(size_of::<WireTaken>() == TAKEN_BYTES);

impl Taken {
    /// Its bytes.
    #[must_use]
    pub fn to_wire(&self) -> [u8; TAKEN_BYTES] {
        let wire = WireTaken {
            outcome: self.outcome as u8,
            reserved: [0; 3],
            received: U32::new(self.received),
        };
        let mut bytes = [0; TAKEN_BYTES];
        bytes.copy_from_slice(wire.as_bytes());
        bytes
    }

    /// Reads the body of an answer.
    ///
    /// # Errors
    /// [`TicketError::Malformed`].
    pub fn parse(body: &[u8]) -> Result<Self, TicketError> {
        let read = || {
            let wire = WireTaken::ref_from_bytes(body).ok()?;
            let outcomes = [Outcome::Done, Outcome::Misplaced, Outcome::Refused];
            let outcome = outcomes
                .into_iter()
                .find(|outcome| *outcome as u8 == wire.outcome)?;
            let received = wire.received.get();
            (wire.reserved == [0; 3] && received <= EVIDENCE_BYTES_MAX).then_some(Self { outcome, received })
        };
        read().ok_or(TicketError::Malformed)
    }
}
