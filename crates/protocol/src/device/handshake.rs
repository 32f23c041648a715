//! The steps of one handshake and its retransmissions.

use crate::ids::{DeviceId, GatewayId, RowIndex, Suite};
use crate::keys::SessionKey;
use crate::ticket::TicketRoot;
use crate::wire::{self, MESSAGE_BYTES, message_type};
use zerocopy::IntoBytes as _;

use super::challenges::ChallengeQueue;

/// First interval between two equal messages, ms (LAP/1 1.5).
pub(super) const RETRANSMIT_FIRST_MS: u64 = 20;
/// Longest interval between two equal messages, ms (LAP/1 1.5).
pub(super) const RETRANSMIT_MAX_MS: u64 = 5_000;

/// The timer of a message that is repeated byte for byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retransmit {
    /// When the next copy is due, ms.
    pub(super) due_ms: u64,
    /// When the newest copy was sent, ms.
    pub(super) sent_ms: u64,
    interval_ms: u64,
    /// Copies sent.
    pub(super) copies_sent: u8,
}

impl Retransmit {
    /// Creates a timer; the first copy is due at `due_ms`.
    pub(super) fn starting(due_ms: u64) -> Self {
        Self {
            due_ms,
            sent_ms: due_ms,
            interval_ms: RETRANSMIT_FIRST_MS,
            copies_sent: 0,
        }
    }

    /// Records that a copy is sent now and doubles the interval.
    pub(super) fn note_sent(&mut self, now_ms: u64) {
        self.sent_ms = now_ms;
        self.due_ms = now_ms.saturating_add(self.interval_ms);
        self.interval_ms = (self.interval_ms * 2).min(RETRANSMIT_MAX_MS);
        self.copies_sent = self.copies_sent.saturating_add(1);
    }
}

/// A REQUEST without a CHALLENGE so far.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub(super) nonce: [u8; 16],
    pub(super) retransmit: Retransmit,
    pub(super) challenges: ChallengeQueue,
}

impl PendingRequest {
    /// The time from which the handshake allows a PUF reading for a queued CHALLENGE. The first reading is immediate;
    /// after a failure, the genuine gateway gets time to respond.
    pub(super) fn read_from_ms(&self) -> u64 {
        match self.challenges.had_failure {
            true => self.prompt_until_ms(),
            false => 0,
        }
    }

    /// The time by which the CHALLENGE of the gateway for the newest REQUEST copy has usually arrived.
    pub(super) fn prompt_until_ms(&self) -> u64 {
        self.retransmit.sent_ms.saturating_add(RETRANSMIT_FIRST_MS)
    }

    pub(super) fn nonce_echo(&self) -> [u8; 8] {
        let [low, _] = crate::keys::halves(&self.nonce);
        low
    }

    /// The REQUEST: the same bytes for each copy.
    pub(super) fn request(&self, suite: Suite, device: DeviceId) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0u8; MESSAGE_BYTES];
        let request = wire::Request {
            header: wire::Header::new(message_type::REQUEST, suite, 0, device),
            nonce: self.nonce,
            reserved: [0; 32],
        };
        bytes.copy_from_slice(request.as_bytes());
        bytes
    }
}

/// A RESPONSE without an ACK so far.
#[derive(Debug)]
pub(super) struct PendingResponse {
    pub(super) response: [u8; MESSAGE_BYTES],
    pub(super) tag: [u8; 16],
    pub(super) key: SessionKey,
    pub(super) ticket_root: TicketRoot,
    pub(super) gateway: GatewayId,
    pub(super) idx: RowIndex,
    pub(super) nonce: [u8; 16],
    pub(super) first_sent_ms: u64,
    pub(super) retransmit: Retransmit,
}

/// The current step of the machine.
#[derive(Debug)]
pub(super) enum Step {
    /// No handshake; `wake_at_ms` is when the machine requests a nonce, `None` if it has requested a nonce already, or
    /// if nothing is due.
    Idle {
        wake_at_ms: Option<u64>,
    },
    AwaitChallenge(PendingRequest),
    AwaitPuf {
        pending: PendingRequest,
        candidate: wire::Challenge,
    },
    AwaitAck(PendingResponse),
}
