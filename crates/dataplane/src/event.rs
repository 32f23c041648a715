//! Events from the packet path to the gateway.

use std::net::{IpAddr, Ipv6Addr};

use linewarden_protocol::ids::{DeviceId, RowIndex, SessionId};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A session was opened, or has moved to another address; renewals are only counted.
    Session(SessionId),
    /// Fewer rows than the low watermark are left, or few may be spent before the mark is moved, or none.
    RowsLow,
    /// The last row was spent.
    RowsOut,
    /// A wrong tag (rate-limited).
    WrongTag,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// To which device.
    pub device: DeviceId,
    /// The row spent; for other kinds the current one.
    pub idx: RowIndex,
    /// Sender's address.
    pub from: IpAddr,
    /// Interface it came in on.
    pub ingress: u32,
}

/// Size of `struct lw_event`, bytes.
pub(crate) const EVENT_BYTES: usize = 48;

impl Event {
    /// Reads `struct lw_event`; `None` for a length or kind that is not known.
    #[must_use]
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; EVENT_BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
        let wire = |at: usize| -> Option<[u8; 8]> { bytes.get(at..at + 8)?.try_into().ok() };
        let addr: [u8; 16] = bytes.get(24..40)?.try_into().ok()?;
        let kind = match word(0)? {
            1 => EventKind::Session(SessionId::from_wire(wire(16)?)?),
            2 => EventKind::RowsLow,
            3 => EventKind::RowsOut,
            4 => EventKind::WrongTag,
            _ => return None,
        };
        Some(Self {
            kind,
            device: DeviceId(u64::from_be_bytes(wire(8)?)),
            idx: RowIndex(word(40)?),
            from: Ipv6Addr::from(addr).to_canonical(),
            ingress: word(44)?,
        })
    }
}
