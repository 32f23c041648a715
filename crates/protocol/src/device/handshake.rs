//! The steps of one handshake, and when to send again.

use crate::ids::{DeviceId, GatewayId, Mode, RowIndex, Suite};
use crate::keys::SessionKey;
use crate::ticket::TicketRoot;
use crate::wire::{self, MESSAGE_BYTES, message_type};
use zerocopy::IntoBytes as _;

use super::challenges::Challenges;
use super::types::PufQuery;

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
    pub(super) sent: u8,
}

impl Retransmit {
    /// The first copy is due at `due_ms`.
    pub(super) fn starting(due_ms: u64) -> Self {
        Self {
            due_ms,
            sent_ms: due_ms,
            interval_ms: RETRANSMIT_FIRST_MS,
            sent: 0,
        }
    }

    /// Notes that a copy leaves now and doubles the interval.
    pub(super) fn note_sent(&mut self, now_ms: u64) {
        self.sent_ms = now_ms;
        self.due_ms = now_ms.saturating_add(self.interval_ms);
        self.interval_ms = (self.interval_ms * 2).min(RETRANSMIT_MAX_MS);
        self.sent = self.sent.saturating_add(1);
    }
}

/// A REQUEST that awaits its CHALLENGE.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) nonce: [u8; 16],
    pub(super) retransmit: Retransmit,
    pub(super) challenges: Challenges,
}

impl Pending {
    /// From when on the PUF may be read for a CHALLENGE that waits, as far as the handshake decides. The first one has not to wait;
    /// once one was in vain, the gateway's shall have had the time to come.
    pub(super) fn read_from_ms(&self) -> u64 {
        match self.challenges.had_failure {
            true => self.prompt_until_ms(),
            false => 0,
        }
    }

    /// Until when the gateway's CHALLENGE for the newest copy of the REQUEST mostly has come.
    pub(super) fn prompt_until_ms(&self) -> u64 {
        self.retransmit.sent_ms.saturating_add(RETRANSMIT_FIRST_MS)
    }

    pub(super) fn echo(&self) -> [u8; 8] {
        let [low, _] = crate::keys::halves(&self.nonce);
        low
    }

    /// The REQUEST; built anew for each copy, always the same bytes.
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

/// A RESPONSE that awaits its ACK.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) response: [u8; MESSAGE_BYTES],
    pub(super) tag: [u8; 16],
    pub(super) key: SessionKey,
    pub(super) ticket: TicketRoot,
    pub(super) gateway: GatewayId,
    pub(super) idx: RowIndex,
    pub(super) nonce: [u8; 16],
    pub(super) first_sent_ms: u64,
    pub(super) retransmit: Retransmit,
}

/// What the machine is doing.
#[derive(Debug)]
pub(super) enum Step {
    /// No handshake; `wake_at_ms` is when a nonce will be asked for, `None` when it was or nothing is due.
    Rest {
        wake_at_ms: Option<u64>,
    },
    AwaitChallenge(Pending),
    AwaitPuf {
        pending: Pending,
        candidate: wire::Challenge,
    },
    AwaitAck(Answered),
}

/// The PUF reading that a CHALLENGE asks for.
pub(super) fn query(mode: Mode, challenge: &wire::Challenge) -> PufQuery {
    PufQuery {
        mode,
        idx: RowIndex(challenge.idx.get()),
        challenge: challenge.challenge,
    }
}
