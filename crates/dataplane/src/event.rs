//! Events that the packet path reports to the gateway.

use std::net::{IpAddr, Ipv6Addr};

use linewarden_protocol::ids::{DeviceId, RoundNumber, RowIndex, SessionId};
use linewarden_protocol::wire::MESSAGE_BYTES;

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A session was opened, or moved to another address. Renewals are only counted.
    Session(SessionOpening),
    /// Fewer rows than the low watermark are left, or the mark allows few rows or none.
    RowsLow,
    /// The last row was spent.
    RowsExhausted,
    /// A RESPONSE or a DATA_UP had a wrong tag (rate-limited).
    WrongTag,
    /// A wrong proof in that round, from the device or from another sender (rate-limited).
    WrongProof(RoundNumber),
}

/// How a session began, with the RESPONSE that proves the session to a holder of the row's key (LAP/1 1.4.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOpening {
    /// Id of the session.
    pub session: SessionId,
    /// When the session was opened, boot-time clock, ns.
    pub opened_ns: u64,
    /// The winning RESPONSE.
    pub response: [u8; MESSAGE_BYTES],
    /// The word that the tag covers: the sender's MAC address and two zero bytes if the RESPONSE is BOUND, otherwise
    /// zeros.
    pub loc: [u8; 8],
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Kind of the event.
    pub kind: EventKind,
    /// Id of the device.
    pub device: DeviceId,
    /// For a session: the spent row. For a wrong proof: 0. For all other kinds: the current row.
    pub idx: RowIndex,
    /// Address of the sender.
    pub source: IpAddr,
    /// Interface on which the message arrived.
    pub ingress: u32,
}

/// Size of `struct lw_event`, bytes.
pub(crate) const EVENT_BYTES: usize = 48;
/// Size of `struct lw_session_event`, bytes.
pub(crate) const SESSION_EVENT_BYTES: usize = EVENT_BYTES + 8 + MESSAGE_BYTES + 8;

impl Event {
    /// Reads `struct lw_event` or, for a session, `struct lw_session_event`. `None` if the length or the kind is
    /// unknown.
    #[must_use]
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (event, session_fields) = bytes.split_first_chunk::<EVENT_BYTES>()?;
        let word = |at: usize| event.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
        let wire = |at: usize| -> Option<[u8; 8]> { event.get(at..at + 8)?.try_into().ok() };
        let addr: [u8; 16] = event.get(24..40)?.try_into().ok()?;
        let number = word(40)?;
        let (kind, idx) = match (word(0)?, session_fields.is_empty()) {
            (5, true) => (EventKind::WrongProof(RoundNumber(number)), 0),
            (1, false) => (
                EventKind::Session(SessionOpening::from_bytes(wire(16)?, session_fields)?),
                number,
            ),
            (2, true) => (EventKind::RowsLow, number),
            (3, true) => (EventKind::RowsExhausted, number),
            (4, true) => (EventKind::WrongTag, number),
            _ => return None,
        };
        Some(Self {
            kind,
            device: DeviceId(u64::from_be_bytes(wire(8)?)),
            idx: RowIndex(idx),
            source: Ipv6Addr::from(addr).to_canonical(),
            ingress: word(44)?,
        })
    }
}

impl SessionOpening {
    fn from_bytes(session: [u8; 8], session_fields: &[u8]) -> Option<Self> {
        let (opened_ns, rest) = session_fields.split_first_chunk::<8>()?;
        let (response, rest) = rest.split_first_chunk::<MESSAGE_BYTES>()?;
        Some(Self {
            session: SessionId::from_wire(session)?,
            opened_ns: u64::from_ne_bytes(*opened_ns),
            response: *response,
            loc: rest.try_into().ok()?,
        })
    }
}
