//! Events from the packet path to the gateway.

use std::net::{IpAddr, Ipv6Addr};

use linewarden_protocol::ids::{DeviceId, RoundNumber, RowIndex, SessionId};
use linewarden_protocol::wire::MESSAGE_BYTES;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A session was opened, or has moved to another address; renewals are only counted.
    Session(Opening),
    /// Fewer rows than the low watermark are left, or few may be spent before the mark is moved, or none.
    RowsLow,
    /// The last row was spent.
    RowsOut,
    /// A wrong tag (rate-limited).
    WrongTag,
    /// A wrong proof in that round, of the device or of anybody else (rate-limited).
    WrongProof(RoundNumber),
}

/// How a session began, with what proves it to whoever knows the row's key (LAP/1 1.4.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Which session.
    pub session: SessionId,
    /// When it was opened, boot-time clock, ns.
    pub began_ns: u64,
    /// The winning RESPONSE.
    pub response: [u8; MESSAGE_BYTES],
    /// The word that its tag covers: the sender's MAC address and two zero bytes if it is BOUND, else zeros.
    pub loc: [u8; 8],
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// To which device.
    pub device: DeviceId,
    /// The row spent; for other kinds the current one; 0 of a wrong proof.
    pub idx: RowIndex,
    /// Sender's address.
    pub from: IpAddr,
    /// Interface it came in on.
    pub ingress: u32,
}

/// Size of `struct lw_event`, bytes.
pub(crate) const EVENT_BYTES: usize = 48;
/// Size of `struct lw_session_event`, bytes.
pub(crate) const SESSION_EVENT_BYTES: usize = EVENT_BYTES + 8 + MESSAGE_BYTES + 8;

impl Event {
    /// Reads `struct lw_event` or, of a session, `struct lw_session_event`; `None` for a length or kind that is not known.
    #[must_use]
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (event, proof) = bytes.split_first_chunk::<EVENT_BYTES>()?;
        let word = |at: usize| event.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
        let wire = |at: usize| -> Option<[u8; 8]> { event.get(at..at + 8)?.try_into().ok() };
        let addr: [u8; 16] = event.get(24..40)?.try_into().ok()?;
        let number = word(40)?;
        let (kind, idx) = match (word(0)?, proof.is_empty()) {
            (5, true) => (EventKind::WrongProof(RoundNumber(number)), 0),
            (1, false) => (EventKind::Session(Opening::from_bytes(wire(16)?, proof)?), number),
            (2, true) => (EventKind::RowsLow, number),
            (3, true) => (EventKind::RowsOut, number),
            (4, true) => (EventKind::WrongTag, number),
            _ => return None,
        };
        Some(Self {
            kind,
            device: DeviceId(u64::from_be_bytes(wire(8)?)),
            idx: RowIndex(idx),
            from: Ipv6Addr::from(addr).to_canonical(),
            ingress: word(44)?,
        })
    }
}

impl Opening {
    fn from_bytes(session: [u8; 8], proof: &[u8]) -> Option<Self> {
        let (began_ns, rest) = proof.split_first_chunk::<8>()?;
        let (response, rest) = rest.split_first_chunk::<MESSAGE_BYTES>()?;
        Some(Self {
            session: SessionId::from_wire(session)?,
            began_ns: u64::from_ne_bytes(*began_ns),
            response: *response,
            loc: rest.try_into().ok()?,
        })
    }
}
