//! Rows of devices: admission of devices, leases, and unused rows.

use std::ops::Range;

use linewarden_protocol::gateway::Row;
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex};
use linewarden_protocol::wire::MESSAGE_BYTES;

use crate::change::Revision;

/// A message of a device that is not in the gateway's data plane: a REQUEST, or a RESPONSE whose fresh value the
/// gateway has accepted as its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionRequest {
    /// The message as received.
    pub message: [u8; MESSAGE_BYTES],
    /// The word that a RESPONSE's tag covers: the sender's MAC address and two zero bytes if the RESPONSE has the flag
    /// BOUND, else zeros.
    pub loc: [u8; 8],
}

/// The response to an [`AdmissionRequest`].
#[derive(Clone, Debug)]
pub enum AdmissionResponse {
    /// For a REQUEST: the CHALLENGE to send. Nothing was written.
    Challenge(Box<[u8; MESSAGE_BYTES]>),
    /// For a RESPONSE that verified: the device's rows, from the row that the device proved. The gateway handles this
    /// RESPONSE again after the rows are installed.
    Admit(Provision),
    /// For a REQUEST of a device that has no rows left: the NAK to send.
    Nak(Box<[u8; MESSAGE_BYTES]>),
    /// For a REQUEST that states that the device has responded with all remaining rows: the NAK to send. The statement
    /// is not authenticated.
    NakForStatement(Box<[u8; MESSAGE_BYTES]>),
    /// No reply: the device is not enrolled, is revoked or in quarantine, or its message did not verify.
    NoResponse,
}

/// A request for rows of one device in the gateway's data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowRequest {
    /// The device.
    pub device: DeviceId,
    /// The epoch of the credentials that the gateway has.
    pub epoch: u32,
    /// The device's current row at the gateway.
    pub from: RowIndex,
    /// The number after the last row that the gateway has received.
    pub received: RowIndex,
    /// Number of rows, from `from` on, for which the data plane has room.
    pub hold_rows: u32,
    /// Number of rows, from `from` on, that must be below the mark.
    pub spendable_rows: u32,
}

/// Rows of one device for one gateway. Their lease is durable before they are returned (LAP/1 1.4.6).
#[derive(Clone, Debug)]
pub struct Provision {
    /// The device.
    pub device: DeviceId,
    /// The device's mode.
    pub mode: Mode,
    /// The epoch of the credentials from which the keys are derived.
    pub epoch: u32,
    /// Number of the first row.
    pub first: RowIndex,
    /// The rows with this gateway's keys, possibly none; one row in key mode.
    pub rows: Vec<Row>,
    /// Rows below the mark may be spent. Without meaning in key mode.
    pub mark: RowIndex,
}

impl Provision {
    /// The number after the last row.
    #[must_use]
    pub fn end(&self) -> RowIndex {
        let count = u32::try_from(self.rows.len()).unwrap_or(u32::MAX);
        RowIndex(self.first.0.saturating_add(count))
    }

    /// The row numbers.
    #[must_use]
    pub fn indices(&self) -> Range<u32> {
        self.first.0..self.end().0
    }
}

/// A device that got no rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowRefusal {
    /// The device.
    pub device: DeviceId,
    /// The reason.
    pub reason: RefusalReason,
}

/// The reason why a device got no rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// No row is left that this gateway could use.
    Exhausted,
    /// The device is revoked, in quarantine, or no longer enrolled.
    Inactive,
    /// The gateway has no lease of the device, for example after a restore of the registry to a time before the
    /// lease. The device must authenticate at the gateway again.
    NotHeld,
    /// The device's record cannot be used; the text describes the damage.
    Damaged(String),
}

/// A part of the leases that a gateway had when it stopped.
#[derive(Debug)]
pub struct LeaseChunk {
    /// Devices with their rows. No row of a device may be spent before the device's mark has been moved.
    pub provisions: Vec<Provision>,
    /// Descriptions of records that could not be opened.
    pub damaged: Vec<String>,
    /// Progress: the registry revision reached, and the revision at which the reader ends.
    pub progress: (u64, u64),
    /// Whether this is the last part.
    pub is_last: bool,
    /// The position of the next part.
    pub cursor: LeasedCursor,
}

/// The unused rows of a gateway for one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnusedRows {
    /// The device.
    pub device: DeviceId,
    /// The epoch of the rows; values for other epochs are ignored.
    pub epoch: u32,
    /// The first unused row. The data plane must no longer hold this row or a later row.
    pub unused_from: RowIndex,
    /// Whether the rows stay leased to the gateway, which is about to stop; otherwise they return to the pool.
    pub keep_leased: bool,
}

/// A position in a stream; the default is the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeasedCursor {
    /// The last revision that was read.
    pub after: Option<Revision>,
    /// The registry's revision at the start of the stream.
    pub started_at: Option<Revision>,
}
