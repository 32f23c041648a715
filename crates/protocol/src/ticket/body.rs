//! Bodies of tickets (LAP/1 1.7.3): requests of the device, and the enrollment state in the response.

use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ids::{DeviceId, Mode, RowIndex};
use crate::keys::RowKey;

use super::outcome::Outcome;
use super::{BODY_BYTES_MAX, BodyBuffer, EvidenceChunk, Kind, TicketError};

/// Length of a row: `challenge[8] | row_key[16]`.
pub const ROW_BYTES: usize = 24;
/// Bytes before the rows: `epoch u32 | first u32`.
const ROWS_HEAD_BYTES: usize = 8;
/// Maximum number of rows in one message.
pub const ROWS_PER_MESSAGE: usize = (BODY_BYTES_MAX - ROWS_HEAD_BYTES) / ROW_BYTES;
/// Length of the body of [`Kind::Key`]: `epoch u32 | row_key[16]`.
const KEY_BODY_BYTES: usize = 20;
/// Length of an enrollment state.
pub const STATE_BYTES: usize = 24;

/// A row that a device submits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewRow {
    /// Seed that the device expands to its PUF's challenge.
    pub challenge: [u8; 8],
    /// The row's key.
    pub row_key: RowKey,
}

/// A decrypted request.
#[derive(Debug)]
pub enum TicketRequest<'a> {
    /// [`Kind::Status`]; an empty body.
    Status,
    /// [`Kind::Rows`].
    Rows {
        /// Epoch of the credentials that the rows extend.
        epoch: u32,
        /// Number of the first row.
        first: RowIndex,
        /// `challenge | row_key` of each row, at least one.
        rows: &'a [[u8; ROW_BYTES]],
    },
    /// [`Kind::Key`].
    Key {
        /// Epoch of the key to replace.
        epoch: u32,
        /// The new key.
        key: RowKey,
    },
    /// [`Kind::Pair`].
    Pair {
        /// The other device.
        peer: DeviceId,
    },
    /// [`Kind::Evidence`].
    Evidence(EvidenceChunk<'a>),
}

impl<'a> TicketRequest<'a> {
    /// Parses the body of a request of this kind.
    ///
    /// # Errors
    /// [`TicketError::Malformed`].
    pub fn parse(kind: Kind, body: &'a [u8]) -> Result<Self, TicketError> {
        let read = || match kind {
            Kind::Status => body.is_empty().then_some(Self::Status),
            Kind::Rows => {
                let (epoch, rest) = body.split_first_chunk()?;
                let (first, rest) = rest.split_first_chunk()?;
                let (rows, rest) = rest.as_chunks::<ROW_BYTES>();
                (!rows.is_empty() && rest.is_empty()).then(|| Self::Rows {
                    epoch: u32::from_be_bytes(*epoch),
                    first: RowIndex(u32::from_be_bytes(*first)),
                    rows,
                })
            }
            Kind::Key => {
                let (epoch, rest) = body.split_first_chunk()?;
                let key = <[u8; 16]>::try_from(rest).ok()?;
                Some(Self::Key {
                    epoch: u32::from_be_bytes(*epoch),
                    key: RowKey::from_bytes(key),
                })
            }
            Kind::Pair => {
                let peer = u64::from_be_bytes(body.try_into().ok()?);
                (peer != 0).then_some(Self::Pair { peer: DeviceId(peer) })
            }
            Kind::Evidence => EvidenceChunk::parse(body).ok().map(Self::Evidence),
        };
        read().ok_or(TicketError::Malformed)
    }
}

impl NewRow {
    /// Reads `challenge[8] | row_key[16]`.
    #[must_use]
    pub fn from_wire(bytes: &[u8; ROW_BYTES]) -> Self {
        let mut challenge = [0; 8];
        let mut key = [0; 16];
        let (front, rest) = bytes.split_at(8);
        challenge.copy_from_slice(front);
        key.copy_from_slice(rest);
        let row_key = RowKey::from_bytes(key);
        zeroize::Zeroize::zeroize(&mut key);
        Self { challenge, row_key }
    }
}

/// Writes the body of [`Kind::Rows`]; `None` for no rows or more than [`ROWS_PER_MESSAGE`].
#[must_use]
pub fn write_rows<'b>(
    epoch: u32,
    first: RowIndex,
    rows: &[NewRow],
    out: &'b mut BodyBuffer,
) -> Option<&'b [u8]> {
    if rows.is_empty() || rows.len() > ROWS_PER_MESSAGE {
        return None;
    }
    let length = ROWS_HEAD_BYTES + rows.len() * ROW_BYTES;
    let (head, rest) = out
        .get_mut(..length)?
        .split_first_chunk_mut::<ROWS_HEAD_BYTES>()?;
    let (front, back) = head.split_at_mut(4);
    front.copy_from_slice(&epoch.to_be_bytes());
    back.copy_from_slice(&first.0.to_be_bytes());
    for (row, cell) in rows.iter().zip(rest.as_chunks_mut::<ROW_BYTES>().0) {
        let (challenge, key) = cell.split_at_mut(8);
        challenge.copy_from_slice(&row.challenge);
        key.copy_from_slice(row.row_key.as_bytes());
    }
    out.get(..length)
}

/// Writes the body of [`Kind::Key`].
#[must_use]
pub fn write_key<'b>(epoch: u32, key: &RowKey, out: &'b mut BodyBuffer) -> Option<&'b [u8]> {
    let body = out.get_mut(..KEY_BODY_BYTES)?;
    let (front, back) = body.split_at_mut(4);
    front.copy_from_slice(&epoch.to_be_bytes());
    back.copy_from_slice(key.as_bytes());
    out.get(..KEY_BODY_BYTES)
}

/// The enrollment state of the device after a request: the response to [`Kind::Status`], [`Kind::Rows`] and
/// [`Kind::Key`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EnrollmentState {
    /// The result of the request.
    pub outcome: Outcome,
    /// The kind of the credential.
    pub mode: Mode,
    /// How often the credentials were replaced.
    pub epoch: u32,
    /// Number of the last row plus 1; 0 in key mode.
    pub rows_end: RowIndex,
    /// Rows that are not leased to a gateway yet; 0 in key mode.
    pub rows_left: u32,
    /// The last number of a request that changed something.
    pub number: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WireEnrollmentState {
    outcome: u8,
    mode: u8,
    reserved: [u8; 2],
    epoch: U32,
    rows_end: U32,
    rows_left: U32,
    number: U64,
}
const _: () = assert!(size_of::<WireEnrollmentState>() == STATE_BYTES);

impl EnrollmentState {
    /// The state in wire format.
    #[must_use]
    pub fn to_wire(&self) -> [u8; STATE_BYTES] {
        let wire = WireEnrollmentState {
            outcome: self.outcome as u8,
            mode: match self.mode {
                Mode::Pool => 1,
                Mode::Key => 2,
            },
            reserved: [0; 2],
            epoch: U32::new(self.epoch),
            rows_end: U32::new(self.rows_end.0),
            rows_left: U32::new(self.rows_left),
            number: U64::new(self.number),
        };
        let mut bytes = [0; STATE_BYTES];
        bytes.copy_from_slice(wire.as_bytes());
        bytes
    }

    /// Parses the body of a response.
    ///
    /// # Errors
    /// [`TicketError::Malformed`].
    pub fn parse(body: &[u8]) -> Result<Self, TicketError> {
        let read = || {
            let wire = WireEnrollmentState::ref_from_bytes(body).ok()?;
            let outcomes = [
                Outcome::Done,
                Outcome::StaleNumber,
                Outcome::OutOfSequence,
                Outcome::Refused,
            ];
            Some(Self {
                outcome: outcomes
                    .into_iter()
                    .find(|outcome| *outcome as u8 == wire.outcome)?,
                mode: match (wire.mode, wire.reserved) {
                    (1, [0, 0]) => Mode::Pool,
                    (2, [0, 0]) => Mode::Key,
                    _ => return None,
                },
                epoch: wire.epoch.get(),
                rows_end: RowIndex(wire.rows_end.get()),
                rows_left: wire.rows_left.get(),
                number: wire.number.get(),
            })
        };
        read().ok_or(TicketError::Malformed)
    }
}
