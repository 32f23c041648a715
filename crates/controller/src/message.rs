//! What a gateway asks, and what it gets.

use std::ops::Range;

use linewarden_protocol::gateway::Row;
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex};
use linewarden_protocol::wire::MESSAGE_BYTES;
use linewarden_registry::{Change, RegistryError, Revision};

/// A message of a device that the gateway does not hold: a REQUEST, or a RESPONSE whose fresh value the gateway has
/// found to be one of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Knock {
    /// The message as it came.
    pub message: [u8; MESSAGE_BYTES],
    /// The word that a RESPONSE's tag covers: the sender's MAC address and two zero bytes if it is BOUND, else zeros.
    pub loc: [u8; 8],
}

/// What a [`Knock`] brings.
#[derive(Clone, Debug)]
pub enum Reception {
    /// To a REQUEST: the CHALLENGE to send. Nothing was written.
    Challenge(Box<[u8; MESSAGE_BYTES]>),
    /// To a RESPONSE that verified: the device's rows, from the one that it proved on. Handed to the packet path again,
    /// the same RESPONSE is then answered like any other.
    Admit(Provision),
    /// To a REQUEST of a device that no row is left for: the NAK to send.
    Nak(Box<[u8; MESSAGE_BYTES]>),
    /// Likewise, where rows are left, and the REQUEST states that the device has answered them. The statement is not authenticated.
    NakByStatement(Box<[u8; MESSAGE_BYTES]>),
    /// Nothing: not enrolled, revoked, or it did not verify.
    Silence,
}

/// Rows wanted for one device that the gateway holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// The device.
    pub device: DeviceId,
    /// The credentials that the gateway knows of.
    pub epoch: u32,
    /// Its current row there.
    pub from: RowIndex,
    /// The number after the last row that has come to the gateway.
    pub received: RowIndex,
    /// How many rows, from `from` on, there is room for.
    pub hold: u32,
    /// How many rows, from `from` on, are to lie below the mark.
    pub ahead: u32,
}

/// Rows of one device for one gateway: leased, durably, before they are here (LAP/1 1.4.6).
#[derive(Clone, Debug)]
pub struct Provision {
    /// The device.
    pub device: DeviceId,
    /// Its mode.
    pub mode: Mode,
    /// The epoch of the credentials that the keys come from.
    pub epoch: u32,
    /// Number of the first row.
    pub first: RowIndex,
    /// The rows with the keys of this gateway, perhaps none; one row in key mode.
    pub rows: Vec<Row>,
    /// Rows below it may be spent; without meaning in key mode.
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
pub struct Refused {
    /// The device.
    pub device: DeviceId,
    /// Why.
    pub why: Refusal,
}

/// Why a device got no rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No row is left that this gateway could use.
    Exhausted,
    /// It is revoked, or no longer enrolled.
    Gone,
    /// The gateway holds nothing of it, whatever it believes: the device is to authenticate there again. So after the registry was
    /// put back to a time before it came.
    NotHeld,
    /// Its record cannot be used.
    Damaged(String),
}

/// Why a gateway gets nothing at all.
#[derive(Debug, thiserror::Error)]
pub enum Denial {
    /// An old fence, a damaged record, or a failure of the database.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// Its data plane has not shown that it is what it should be, or has shown that it is not.
    #[error("gateway {gateway} is not trusted, and gets no rows: {why}")]
    Untrusted {
        /// Which.
        gateway: GatewayId,
        /// Why.
        why: String,
    },
}

/// A part of what a gateway held when it stopped.
#[derive(Debug)]
pub struct Chunk {
    /// Devices with their rows; none of them may be spent before the mark has been moved.
    pub provisions: Vec<Provision>,
    /// Records that could not be opened, in words.
    pub damaged: Vec<String>,
    /// How far the walk is, out of what.
    pub progress: (u64, u64),
    /// Nothing follows.
    pub last: bool,
}

/// A session that was opened at the gateway, with what proves it (LAP/1 1.4.11).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionReport {
    /// The winning RESPONSE.
    pub message: [u8; MESSAGE_BYTES],
    /// As in [`Knock::loc`].
    pub loc: [u8; 8],
    /// How long ago the session began, ns.
    pub age_ns: u64,
}

/// What a [`SessionReport`] brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    /// No newer session elsewhere is known.
    Newest,
    /// A newer one began at another gateway: this one is to be closed.
    Older {
        /// Where.
        at: GatewayId,
        /// How long ago that one began, ns.
        age_ns: u64,
    },
    /// It proves nothing, and nothing came of it; the gateway that sent it is broken, or lies.
    Refused(&'static str),
}

/// What has changed since a gateway asked last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// Devices enrolled, replaced or revoked, in the order of their changes.
    pub changes: Vec<Change>,
    /// Devices that have opened a session at another gateway: older ones here are over.
    pub elsewhere: Vec<Elsewhere>,
    /// Ask from here next.
    pub upto: Revision,
    /// Whether there is more to be had at once.
    pub more: bool,
}

/// A device's newest session, at another gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// Whose.
    pub device: DeviceId,
    /// Where.
    pub gateway: GatewayId,
    /// How long ago it began, ns.
    pub age_ns: u64,
}
