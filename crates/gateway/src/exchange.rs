//! What the node asks the registry, and what comes back.

use linewarden_dataplane::Row;
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex};
use linewarden_registry::{Changes, Revision};

/// A question to the registry. At most one of each kind is out at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// The next part of the fleet, with rows reserved for each device. Asked again until nothing is left.
    Load,
    /// Rows for these devices.
    Rows(Vec<Want>),
    /// What has changed.
    Changes {
        /// Since when.
        since: Revision,
    },
}

/// Rows wanted for one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// The device.
    pub device: DeviceId,
    /// None below this one.
    pub from: RowIndex,
    /// How many, at least 1.
    pub count: u32,
}

/// Rows of one device, marked as used in the registry before they came here (LAP/1 1.4.6).
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
    /// The rows with the keys of this gateway; one row in key mode.
    pub rows: Vec<Row>,
}

impl Provision {
    /// The number after the last row.
    #[must_use]
    pub fn end(&self) -> RowIndex {
        let count = u32::try_from(self.rows.len()).unwrap_or(u32::MAX);
        RowIndex(self.first.0.saturating_add(count))
    }
}

/// A device that got no rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The device.
    pub device: DeviceId,
    /// The epoch of its credentials, where the registry still knows the device.
    pub epoch: u32,
    /// Why.
    pub why: Refusal,
}

/// Why a device got no rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its pool is used up.
    Exhausted,
    /// It is revoked, or no longer enrolled.
    Gone,
    /// Its record cannot be used.
    Damaged(String),
}

/// A part of the fleet.
#[derive(Debug)]
pub struct Chunk {
    /// Devices with their rows.
    pub provisions: Vec<Provision>,
    /// Devices without.
    pub refused: Vec<Refused>,
    /// Records that could not be opened, in words.
    pub damaged: Vec<String>,
    /// From where to follow the feed.
    pub feed_from: Revision,
    /// Nothing follows.
    pub last: bool,
}

impl Chunk {
    /// Nothing is left; the feed is followed from here.
    #[must_use]
    pub fn end(feed_from: Revision) -> Self {
        Self {
            provisions: Vec::new(),
            refused: Vec::new(),
            damaged: Vec::new(),
            feed_from,
            last: true,
        }
    }
}

/// An answer to an [`Ask`]. `Err` holds what failed, in words; the same may be asked again.
#[derive(Debug)]
pub enum Answer {
    /// To [`Ask::Load`].
    Chunk(Result<Chunk, String>),
    /// To [`Ask::Rows`].
    Rows(Result<(Vec<Provision>, Vec<Refused>), String>),
    /// To [`Ask::Changes`].
    Changes(Result<Changes, String>),
    /// At a clean stop, to what [`Node::close`](crate::Node::close) said was unused: how many devices' rows were taken
    /// back.
    GivenBack(Result<u64, String>),
}
