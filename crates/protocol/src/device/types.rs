//! Inputs and outputs of the device machine.

use core::fmt;

use crate::ids::{DeviceId, GatewayId, Mode, RowIndex, SessionId, Suite};
use crate::keys::SessionKey;
use crate::ticket::TicketRoot;
use crate::verdict::Verdict;
use crate::wire::MESSAGE_BYTES;

/// Maximum number of gateways that a policy can pin, and for which the machine keeps accepted rows.
pub const MAX_GATEWAYS: usize = 4;

/// The properties of a device, fixed at enrollment and by its network port.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// The device.
    pub device: DeviceId,
    /// The only suite of the device.
    pub suite: Suite,
    /// The kind of its credential.
    pub mode: Mode,
    /// The gateways that the device responds to.
    pub gateways: GatewayPolicy,
    /// The source MAC address of RESPONSEs, to bind the session to it (flag BOUND). The bound gate refuses sessions
    /// that are not bound.
    pub bound_mac: Option<[u8; 6]>,
}

/// The gateways that a device responds to. In any case, each gateway must prove that it has the enrollment of the
/// device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GatewayPolicy {
    pinned: Option<[Option<GatewayId>; MAX_GATEWAYS]>,
}

impl GatewayPolicy {
    /// Every gateway that holds the enrollment of the device.
    pub const ANY: Self = Self { pinned: None };

    /// Only these gateways; `None` if the list is empty or longer than [`MAX_GATEWAYS`].
    #[must_use]
    pub fn pinned(gateways: &[GatewayId]) -> Option<Self> {
        if gateways.is_empty() || gateways.len() > MAX_GATEWAYS {
            return None;
        }
        let mut pinned = [None; MAX_GATEWAYS];
        for (entry, gateway) in pinned.iter_mut().zip(gateways) {
            *entry = Some(*gateway);
        }
        Some(Self { pinned: Some(pinned) })
    }

    /// Whether the device responds to this gateway.
    #[must_use]
    pub fn allows(&self, gateway: GatewayId) -> bool {
        self.pinned.is_none_or(|pinned| pinned.contains(&Some(gateway)))
    }
}

/// The state of the machine; the diagram is in the [module's documentation](super).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// No handshake and no session.
    Idle,
    /// A REQUEST was sent, or is postponed.
    AwaitChallenge,
    /// The PUF is being read for a CHALLENGE that is not verified yet.
    AwaitPuf,
    /// A RESPONSE was sent.
    AwaitAck,
    /// A session and no handshake.
    Authenticated,
}

/// The action of the caller. After every call, [`Device::poll`](super::Device::poll) until it returns `None`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "an output that is not acted on stalls the handshake"]
pub enum Output {
    /// Nothing.
    None,
    /// Send these bytes as one UDP datagram to the gateway's port 20550.
    Transmit([u8; MESSAGE_BYTES]),
    /// Read the PUF, then call [`Device::puf_result`](super::Device::puf_result) once.
    EvaluatePuf(PufQuery),
    /// A handshake is due: call [`Device::start`](super::Device::start) with a new nonce.
    NeedNonce,
    /// The first REQUEST is delayed, because unplanned re-authentications are limited (LAP/1 1.5).
    Postponed {
        /// When the REQUEST is sent.
        until_ms: u64,
    },
    /// An ACK was verified: [`Device::session`](super::Device::session) holds the session.
    Authenticated(SessionId),
    /// The session has expired.
    SessionExpired,
    /// The handshake ended without a session.
    Failed {
        /// The cause.
        failure: Failure,
        /// When the machine requests a nonce for the next handshake; a caller may start earlier.
        retry_at_ms: u64,
    },
}

/// A PUF reading that the machine requests. In key mode every reading gives the same key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PufQuery {
    /// The kind of the device's credential.
    pub mode: Mode,
    /// The offered row.
    pub idx: RowIndex,
    /// The seed that is expanded to the PUF's challenge; zero in key mode.
    pub challenge: [u8; 8],
}

/// The PUF could not be read: its health test failed, or it had too many errors to correct.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PufFailed;

/// Why a handshake ended without a session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Failure {
    /// No CHALLENGE for this device after all REQUESTs.
    NoChallenge,
    /// No CHALLENGE verified after all REQUESTs, though some arrived: they were forged, the helper data and the PUF
    /// are not those of the enrollment, or the PUF could not be read.
    ChallengesRejected,
    /// No ACK for 60 s after the RESPONSE.
    NoAck,
    /// The verified ACK came after the end of the session lifetime.
    SessionExpired,
    /// The gateway accepted the RESPONSE from another address than this device's: an address translator or an attacker
    /// has relayed it.
    AddressChanged,
}

/// Why a message changed nothing. Any host can send messages that change nothing, so the reasons are only for counters
/// and diagnosis.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IgnoredReason {
    /// Not a LAP/1 message: the parser's reason.
    Malformed(Verdict),
    /// A type that only devices send.
    Direction,
    /// A type that this machine does not handle (DATA_DOWN, ATTEST_REQUEST).
    UnsupportedType,
    /// For another device, or of another suite than this device's.
    OtherDevice,
    /// The machine expects no message of this type now.
    Unexpected,
    /// The CHALLENGE echoes another nonce.
    NonceEcho,
    /// The gateway is not one of the pinned gateways.
    Gateway,
    /// This gateway has accepted the row, or a later row, before.
    IndexSpent,
    /// A challenge that is not zero, in key mode.
    ChallengeInKeyMode,
    /// This CHALLENGE, or another CHALLENGE of its row, is being checked or queued already.
    Duplicate,
    /// A CHALLENGE for a row that is not in the device's helper data.
    UnknownRow,
    /// The CHALLENGE's tag does not verify with the row key of an earlier reading.
    ChallengeTag,
    /// The ACK is for another RESPONSE.
    ResponseMismatch,
    /// The ACK's tag does not verify.
    AckTag,
}

/// Why a handshake could not be started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StartError {
    /// A handshake is in progress; [`Device::abandon`](super::Device::abandon) it first.
    HandshakeInProgress,
    /// The nonce is zero or equals the last nonce: the caller's random source is broken.
    BadNonce,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HandshakeInProgress => "a handshake is in progress; abandon it before starting another",
            Self::BadNonce => "nonce rejected: zero or used before; check the random source",
        })
    }
}

impl core::error::Error for StartError {}

impl fmt::Display for PufFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PUF reading failed: the health test failed or there were too many errors to correct")
    }
}

impl core::error::Error for PufFailed {}

/// The last NAK, for display only: a NAK has no tag, so the machine never acts on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceivedNak {
    /// One of [`nak_reason`](crate::wire::nak_reason).
    pub reason: u8,
    /// The row that could not be offered.
    pub idx: RowIndex,
}

/// A session that the gateway has proven to hold as well.
#[derive(Debug)]
pub struct Session {
    /// The session id.
    pub id: SessionId,
    /// The gateway.
    pub gateway: GatewayId,
    /// The row with which it was opened.
    pub idx: RowIndex,
    /// The granted lifetime in seconds, counted from the first RESPONSE.
    pub session_lifetime_s: u32,
    /// When the machine requests a nonce for the renewal of the session.
    pub renew_at_ms: u64,
    /// When the session expires.
    pub expires_at_ms: u64,
    pub(super) key: SessionKey,
    pub(super) ticket_root: TicketRoot,
    pub(super) response_tag: [u8; 16],
}

/// The session that a renewal replaced. Messages that its gateway sealed before the renewal may still arrive.
#[derive(Debug)]
pub struct PreviousSession {
    /// The session id.
    pub id: SessionId,
    pub(super) key: SessionKey,
    pub(super) expires_at_ms: u64,
}

impl PreviousSession {
    /// The key shared with the gateway. Do not log it, and seal nothing under it.
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
    pub fn ticket_root(&self) -> &TicketRoot {
        &self.ticket_root
    }

    /// Tag of the RESPONSE that opened the session.
    #[must_use]
    pub fn response_tag(&self) -> &[u8; 16] {
        &self.response_tag
    }
}
