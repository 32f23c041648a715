//! What goes into the device machine and what comes out of it.

use core::fmt;

use crate::ids::{DeviceId, GatewayId, Mode, RowIndex, SessionId, Suite};
use crate::keys::SessionKey;
use crate::ticket::TicketRoot;
use crate::verdict::Verdict;
use crate::wire::MESSAGE_BYTES;

/// How many gateways a policy can pin, and for how many the machine remembers which rows were accepted.
pub const MAX_GATEWAYS: usize = 4;

/// What a device is, fixed at enrolment and by its network port.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// The device.
    pub device: DeviceId,
    /// Its one suite.
    pub suite: Suite,
    /// How its credential works.
    pub mode: Mode,
    /// Which gateways it answers.
    pub gateways: GatewayPolicy,
    /// The MAC address that RESPONSEs leave from, to bind the session to it (flag BOUND); the open gate refuses
    /// sessions that are not bound.
    pub bound_mac: Option<[u8; 6]>,
}

/// Which gateways a device answers. Every one of them must prove the device's enrolment in any case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GatewayPolicy {
    pinned: Option<[Option<GatewayId>; MAX_GATEWAYS]>,
}

impl GatewayPolicy {
    /// Every gateway that holds the device's enrolment.
    pub const ANY: Self = Self { pinned: None };

    /// Only these gateways; `None` when there is none or there are more than [`MAX_GATEWAYS`].
    #[must_use]
    pub fn pinned(gateways: &[GatewayId]) -> Option<Self> {
        if gateways.is_empty() || gateways.len() > MAX_GATEWAYS {
            return None;
        }
        let mut pinned = [None; MAX_GATEWAYS];
        for (slot, gateway) in pinned.iter_mut().zip(gateways) {
            *slot = Some(*gateway);
        }
        Some(Self { pinned: Some(pinned) })
    }

    /// Whether this gateway is answered.
    #[must_use]
    pub fn allows(&self, gateway: GatewayId) -> bool {
        self.pinned.is_none_or(|pinned| pinned.contains(&Some(gateway)))
    }
}

/// Where the machine stands; the diagram is in the [module's documentation](super).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// No handshake and no session.
    Idle,
    /// A REQUEST is out, or waits for its time.
    AwaitChallenge,
    /// The PUF is being read for a CHALLENGE that is not verified yet.
    AwaitPuf,
    /// A RESPONSE is out.
    AwaitAck,
    /// A session, and no handshake.
    Authenticated,
}

/// What the caller has to do. After every call, [`Device::poll`](super::Device::poll) until it returns `None`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "an output that is not acted on stalls the handshake"]
pub enum Output {
    /// Nothing.
    None,
    /// Send these bytes as one UDP datagram to the gateway's port 20550.
    Transmit([u8; MESSAGE_BYTES]),
    /// Read the PUF, then call [`Device::puf_result`](super::Device::puf_result) once.
    EvaluatePuf(PufQuery),
    /// A handshake is due: call [`Device::start`](super::Device::start) with a fresh nonce.
    NeedNonce,
    /// The first REQUEST waits, because unplanned re-authentications are limited (LAP/1 1.5).
    Postponed {
        /// When it will be sent.
        until_ms: u64,
    },
    /// An ACK was verified: [`Device::session`](super::Device::session) holds the session.
    Authenticated(SessionId),
    /// The session's lease is over.
    SessionExpired,
    /// The handshake ended without a session.
    Failed {
        /// Why.
        failure: Failure,
        /// When the machine will ask for a nonce to try again; a caller may start earlier.
        retry_at_ms: u64,
    },
}

/// A reading of the PUF that the machine asks for. In key mode every reading gives the same key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PufQuery {
    /// How the device's credential works.
    pub mode: Mode,
    /// The row offered.
    pub idx: RowIndex,
    /// The seed that is expanded to the PUF's challenge; zero in key mode.
    pub challenge: [u8; 8],
}

/// The PUF could not be read: its health test failed or its errors were too many to correct.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PufFailed;

/// Why a handshake ended without a session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Failure {
    /// No CHALLENGE for this device after all REQUESTs.
    NoChallenge,
    /// No CHALLENGE verified after all REQUESTs, though some came: forged ones, or helper data and PUF are not those of the
    /// enrolment, or the PUF could not be read.
    ChallengesRejected,
    /// No ACK for 60 s after the RESPONSE.
    NoAck,
    /// The verified ACK came after the lease's end.
    LeaseOver,
    /// The gateway accepted the RESPONSE from another address than this device's: somebody relays.
    AddressChanged,
}

/// Why a message changed nothing. Anyone can cause these; they are for counters and diagnosis.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ignored {
    /// Not a LAP/1 message: the parser's reason.
    Malformed(Verdict),
    /// A type that devices send, never receive.
    Direction,
    /// A type that this machine does not serve (DATA_DOWN, ATTEST_REQUEST).
    Unserved,
    /// For another device, or of another suite than this device's.
    OtherDevice,
    /// Nothing of this type is awaited.
    NotAwaited,
    /// The CHALLENGE echoes another nonce.
    NonceEcho,
    /// The gateway is not among those pinned.
    Gateway,
    /// The row was accepted by that gateway before.
    IndexSpent,
    /// A challenge that is not zero, in key mode.
    ChallengeInKeyMode,
    /// The same CHALLENGE, or another one of its row, is being looked at or waits.
    Duplicate,
    /// A CHALLENGE for a row that this device's helper data do not have.
    UnknownRow,
    /// The CHALLENGE's tag does not verify with the row key that an earlier reading gave.
    ChallengeTag,
    /// The ACK is for another RESPONSE.
    OtherResponse,
    /// The ACK's tag does not verify.
    AckTag,
}

/// Why a handshake could not be started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StartError {
    /// One is under way; [`Device::abandon`](super::Device::abandon) it first.
    UnderWay,
    /// The nonce is zero or the last one again: the caller's random source is broken.
    BadNonce,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnderWay => "a handshake is under way; abandon it before starting another",
            Self::BadNonce => "the nonce is zero or was used before; check the random source",
        })
    }
}

impl core::error::Error for StartError {}

impl fmt::Display for PufFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the PUF's reading failed its health test or could not be corrected")
    }
}

impl core::error::Error for PufFailed {}

/// The last NAK, for display only: it carries no tag, so nothing is ever done because of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NakSeen {
    /// One of [`nak_reason`](crate::wire::nak_reason).
    pub reason: u8,
    /// The row that could not be offered.
    pub idx: RowIndex,
}

/// A session that a gateway proved to hold as well.
#[derive(Debug)]
pub struct Session {
    /// Its identifier.
    pub id: SessionId,
    /// The gateway.
    pub gateway: GatewayId,
    /// The row it was opened with.
    pub idx: RowIndex,
    /// The lease granted, seconds, counted from the first RESPONSE.
    pub lease_s: u32,
    /// When the machine re-authenticates ahead of time.
    pub renew_at_ms: u64,
    /// When the lease is over.
    pub until_ms: u64,
    pub(super) key: SessionKey,
    pub(super) ticket: TicketRoot,
    pub(super) response_tag: [u8; 16],
}

/// The session that a renewal has replaced: messages that its gateway sealed before the renewal may still be on their way.
#[derive(Debug)]
pub struct PreviousSession {
    /// Its identifier.
    pub id: SessionId,
    pub(super) key: SessionKey,
    pub(super) until_ms: u64,
}

impl PreviousSession {
    /// The key shared with the gateway; do not log it, and seal nothing under it.
    #[must_use]
    pub fn key(&self) -> &SessionKey {
        &self.key
    }
}

impl Session {
    /// The key shared with the gateway; do not log it.
    #[must_use]
    pub fn key(&self) -> &SessionKey {
        &self.key
    }

    /// The key shared with the controller (LAP/1 1.7); do not log it.
    #[must_use]
    pub fn ticket(&self) -> &TicketRoot {
        &self.ticket
    }

    /// Tag of the RESPONSE that opened it.
    #[must_use]
    pub fn response_tag(&self) -> &[u8; 16] {
        &self.response_tag
    }
}
