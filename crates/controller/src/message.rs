//! Requests of a gateway, and their results.

use std::ops::Range;

use linewarden_protocol::gateway::Row;
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex};
use linewarden_protocol::wire::MESSAGE_BYTES;
use linewarden_registry::{Change, RegistryError, Revision};

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

/// The reason why a request of a gateway is rejected.
#[derive(Debug, thiserror::Error)]
pub enum Denial {
    /// A stale fencing token, a damaged record, or a failure of the database.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The gateway's evidence is missing or was not affirmed.
    #[error("gateway {gateway} gets no rows: its evidence is not trusted: {reason}")]
    Untrusted {
        /// The gateway.
        gateway: GatewayId,
        /// The reason.
        reason: String,
    },
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
}

/// A session that was opened at the gateway, with its proof (LAP/1 1.4.11).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionReport {
    /// The accepted RESPONSE.
    pub message: [u8; MESSAGE_BYTES],
    /// As in [`AdmissionRequest::loc`].
    pub loc: [u8; 8],
    /// The age of the session, ns.
    pub age_ns: u64,
}

/// The result of a [`SessionReport`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionReportResult {
    /// No newer session at another gateway is known.
    Newest,
    /// A newer session of the device exists at another gateway: this session must be closed.
    Superseded {
        /// The other gateway.
        by: GatewayId,
        /// The age of the newer session, ns.
        age_ns: u64,
    },
    /// The report proves no session and has no effect. The reporting gateway is faulty or compromised.
    Rejected(&'static str),
}

/// Changes since a gateway's previous request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// Devices whose records have changed: enrolled, replaced, revoked, quarantined or released; in the order of the
    /// changes.
    pub changes: Vec<Change>,
    /// Devices that have opened a session at another gateway. Older sessions at this gateway end.
    pub newer_sessions: Vec<NewerSession>,
    /// Continue from this revision.
    pub up_to_revision: Revision,
    /// Whether more changes are available now.
    pub has_more: bool,
}

/// A device's newest session, at another gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewerSession {
    /// The device.
    pub device: DeviceId,
    /// The other gateway.
    pub gateway: GatewayId,
    /// The age of the session, ns.
    pub age_ns: u64,
}
