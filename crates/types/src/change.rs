//! The change feed, which gateways follow.

use linewarden_protocol::ids::DeviceId;

use crate::session::NewerSession;

/// A counter of changes to devices; each change has a unique value, and later changes have higher values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// Before any change: `changes_since(Revision::ZERO)` returns all devices.
    pub const ZERO: Self = Self(0);
}

/// A changed device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The device.
    pub device: DeviceId,
    /// Revision of the newest change.
    pub revision: Revision,
    /// Whether the device may authenticate. `false`: the device is revoked or in quarantine, or its record does not
    /// authenticate.
    pub active: bool,
    /// Number of replacements of the credentials.
    pub epoch: u32,
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
