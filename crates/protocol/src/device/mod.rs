//! The device role: a state machine driven by messages, PUF readings, nonces and the time (LAP/1 1.5).
//!
//! The machine uses no socket, clock, random source or heap, and builds for targets without an operating system. The
//! caller provides sockets, clocks and random numbers, and acts on each [`Output`]. After every call the caller polls
//! until [`Output::None`] is returned, then waits for a datagram, a PUF reading or [`Device::next_deadline`].
//!
//! ```mermaid
//! stateDiagram-v2
//!     [*] --> Idle
//!     Idle --> AwaitChallenge: start(nonce)
//!     Authenticated --> AwaitChallenge: start(nonce), renewal due
//!     AwaitChallenge --> AwaitChallenge: REQUEST repeated, 8 in all
//!     AwaitChallenge --> AwaitPuf: CHALLENGE with the nonce's echo
//!     AwaitChallenge --> AwaitAck: CHALLENGE of a row that was read before verifies, RESPONSE
//!     AwaitPuf --> AwaitChallenge: reading failed or tag wrong
//!     AwaitPuf --> AwaitPuf: reading failed or tag wrong, another CHALLENGE is queued, a reading is allowed
//!     AwaitPuf --> AwaitAck: a tag verifies, RESPONSE
//!     AwaitAck --> AwaitAck: RESPONSE repeated, for 60 s
//!     AwaitAck --> Authenticated: ACK verifies
//!     AwaitChallenge --> HandshakeEnd: no CHALLENGE for 8 REQUESTs
//!     AwaitAck --> HandshakeEnd: 60 s passed, relayed, session expired
//!     state HandshakeEnd <<choice>>
//!     HandshakeEnd --> Idle: no session
//!     HandshakeEnd --> Authenticated: the previous session is still live
//!     Authenticated --> Idle: session expired
//! ```
//!
//! A session outlives the handshake that renews it: [`Device::session`] is `Some` from a verified ACK until the session
//! expires, in every phase. `abandon` leads from every state to Idle.
//!
//! Properties (LAP/1 1.5):
//! * *A bad message cancels nothing.* A sender that does not know the nonce cannot cause a PUF reading. A sender that
//!   has read the REQUEST can cause [`READINGS_AT_ONCE`] readings and then one per [`READING_INTERVAL_MS`], and ends no
//!   handshake.
//! * *A CHALLENGE verifies only with the key from its row's PUF response*, so the device reads the PUF first and
//!   responds afterwards. The key is kept for the handshake: further CHALLENGEs of that row, and in key mode all
//!   CHALLENGEs, need no reading. `challenges.rs` queues all other CHALLENGEs.
//! * *The same row offered again*: accepted until an ACK for the row verifies, since the RESPONSE may be lost; never
//!   afterwards (pool mode, per gateway, in memory). A caller with persistent storage reports earlier rows:
//!   [`Device::raise_first_unanswered_row`] at the start, [`Device::refuse_row`] instead of a reading.
//! * *Own address*: behind address translation `seen_ip` never equals the own address, so a device there gets no
//!   session. The device cannot distinguish a translator from an attacker who relays its RESPONSE from another address.

mod budget;
mod challenges;
mod handshake;
mod types;

use core::mem;
use core::time::Duration;

use zerocopy::IntoBytes as _;
use zerocopy::byteorder::big_endian::U32;

use crate::backoff::Backoff;
use crate::ids::{GatewayId, Mode, RowIndex, SessionId};
use crate::keys::{RowKey, SessionKey};
use crate::nonce::RowStatement;
use crate::tag;
use crate::ticket::{TicketRoot, TicketSession};
use crate::wire::{self, FLAG_BOUND, MESSAGE_BYTES, Message, message_type};

use budget::{HandshakeBudget, ReadingLimiter, RowFloors};
use challenges::{ChallengeCheck, ChallengeQueue, VerifiedChallenge, puf_query};
use handshake::{PendingRequest, PendingResponse, Retransmit, Step};

pub use budget::{READING_INTERVAL_MS, READINGS_AT_ONCE, UNPLANNED_INTERVAL_MS};
pub use types::*;

/// Maximum copies of one REQUEST (LAP/1 1.5).
pub const MAX_REQUESTS: u8 = 8;
/// How long one RESPONSE is repeated, ms (LAP/1 1.5).
pub const RESPONSE_LIFETIME_MS: u64 = 60_000;
/// While fewer copies of a RESPONSE than this were sent, its ACK is imminent: the fourth copy is sent after 140 ms.
pub const PROMPT_RESPONSES_MAX: u8 = 4;
/// How long messages of a replaced session are still opened, ms (LAP/1 1.5).
pub const PREVIOUS_SESSION_MS: u64 = 1_000;
/// Delay after a failed handshake, ms; doubles with each further failure.
pub const RETRY_FIRST_MS: u64 = 5_000;
/// Maximum delay after a failed handshake, ms.
pub const RETRY_MAX_MS: u64 = 60_000;

/// The device side of LAP/1.
///
/// `now_ms` in every call is milliseconds of one clock that continues during suspend (boot time), because session
/// lifetimes count on it. Its zero is arbitrary.
#[derive(Debug)]
pub struct Device {
    config: DeviceConfig,
    step: Step,
    session: Option<Session>,
    previous_session: Option<PreviousSession>,
    budget: HandshakeBudget,
    reading_limiter: ReadingLimiter,
    row_floors: RowFloors,
    /// Pool mode: the lowest row above all rows to which the device has responded.
    first_unanswered_row: RowIndex,
    /// Whether a row was offered, since the last session, to which the device had responded before.
    has_refused_row: bool,
    last_accepted_row: Option<(GatewayId, RowIndex)>,
    last_nonce: [u8; 16],
    last_nak: Option<ReceivedNak>,
    rejected_challenges: u32,
    retry: Backoff,
}

impl Device {
    /// An idle machine; [`start`](Self::start) begins a handshake.
    #[must_use]
    pub fn new(config: DeviceConfig) -> Self {
        Self {
            config,
            step: Step::Idle { wake_at_ms: None },
            session: None,
            previous_session: None,
            budget: HandshakeBudget::default(),
            reading_limiter: ReadingLimiter::default(),
            row_floors: RowFloors::default(),
            first_unanswered_row: RowIndex(0),
            has_refused_row: false,
            last_accepted_row: None,
            last_nonce: [0; 16],
            last_nak: None,
            rejected_challenges: 0,
            retry: Backoff::new(
                Duration::from_millis(RETRY_FIRST_MS),
                Duration::from_millis(RETRY_MAX_MS),
            ),
        }
    }

    /// The configuration of the device.
    #[must_use]
    pub fn config(&self) -> &DeviceConfig {
        &self.config
    }

    /// The current phase of the machine.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self.step {
            Step::Idle { .. } if self.session.is_some() => Phase::Authenticated,
            Step::Idle { .. } => Phase::Idle,
            Step::AwaitChallenge(_) => Phase::AwaitChallenge,
            Step::AwaitPuf { .. } => Phase::AwaitPuf,
            Step::AwaitAck(_) => Phase::AwaitAck,
        }
    }

    /// The session, from a verified ACK until `poll` finds it expired.
    #[must_use]
    pub fn session(&self) -> Option<&Session> {
        self.session.as_ref()
    }

    /// The session before the current one, until `poll` finds that [`PREVIOUS_SESSION_MS`] have passed since the ACK.
    /// Used only to open messages that its gateway has sealed.
    #[must_use]
    pub fn previous_session(&self) -> Option<&PreviousSession> {
        self.previous_session.as_ref()
    }

    /// Whether the ACK of a sent RESPONSE is expected at any moment: fewer than [`PROMPT_RESPONSES_MAX`] copies were
    /// sent.
    ///
    /// The gateway may have replaced the session by the session that the ACK opens. Callers should seal messages after
    /// the ACK.
    #[must_use]
    pub fn awaits_prompt_ack(&self) -> bool {
        matches!(&self.step, Step::AwaitAck(pending) if pending.retransmit.copies_sent < PROMPT_RESPONSES_MAX)
    }

    /// The last NAK since the handshake began, for display only.
    #[must_use]
    pub fn last_nak(&self) -> Option<ReceivedNak> {
        self.last_nak
    }

    /// PUF readings after which no CHALLENGE verified, since the machine was created.
    #[must_use]
    pub fn rejected_challenges(&self) -> u32 {
        self.rejected_challenges
    }

    /// The lowest row above all rows to which the device has responded. Each REQUEST of the pool mode states it; 0
    /// before the first RESPONSE.
    #[must_use]
    pub fn first_unanswered_row(&self) -> RowIndex {
        self.first_unanswered_row
    }

    /// The statement in the next REQUEST of the pool mode.
    #[must_use]
    pub fn row_statement(&self) -> RowStatement {
        RowStatement {
            first_unanswered_row: self.first_unanswered_row,
            has_refused_row: self.has_refused_row,
        }
    }

    /// Raises [`first_unanswered_row`](Self::first_unanswered_row) to a value from persistent storage. A lower value
    /// changes nothing.
    pub fn raise_first_unanswered_row(&mut self, row: RowIndex) {
        self.first_unanswered_row = self.first_unanswered_row.max(row);
    }

    /// The gateway and the row of the CHALLENGE for which the PUF is being read.
    #[must_use]
    pub fn offered_row(&self) -> Option<(GatewayId, RowIndex)> {
        match &self.step {
            Step::AwaitPuf { candidate, .. } => Some((
                GatewayId(candidate.gateway_id.get()),
                RowIndex(candidate.idx.get()),
            )),
            _ => None,
        }
    }

    /// The gateway and the row of the RESPONSE that awaits its ACK.
    #[must_use]
    pub fn responded_row(&self) -> Option<(GatewayId, RowIndex)> {
        match &self.step {
            Step::AwaitAck(pending) => Some((pending.gateway, pending.idx)),
            _ => None,
        }
    }

    /// The gateway and the row of the last RESPONSE whose ACK verified, including one that opened no session.
    #[must_use]
    pub fn last_accepted_row(&self) -> Option<(GatewayId, RowIndex)> {
        self.last_accepted_row
    }

    /// Begins a handshake with a nonce from a CSPRNG (or `F(boot secret, stored counter)`). In pool mode
    /// [`Device::row_statement`] replaces four of its bytes.
    ///
    /// A live session stays live during the handshake. Returns the REQUEST, or [`Output::Postponed`] if a pool-mode
    /// device has used up its unplanned re-authentication.
    ///
    /// # Errors
    /// A handshake is in progress, or the nonce is zero or equals the last nonce.
    pub fn start(&mut self, nonce: [u8; 16], now_ms: u64) -> Result<Output, StartError> {
        if !matches!(self.step, Step::Idle { .. }) {
            return Err(StartError::HandshakeInProgress);
        }
        if nonce == [0; 16] || nonce == self.last_nonce {
            return Err(StartError::BadNonce);
        }
        self.last_nonce = nonce;
        let nonce = match self.config.mode {
            Mode::Pool => self.row_statement().write_into(nonce),
            Mode::Key => nonce,
        };
        let due_ms = self.budget.earliest_start_ms(self.config.mode, now_ms);
        self.last_nak = None;
        self.step = Step::AwaitChallenge(PendingRequest {
            nonce,
            retransmit: Retransmit::starting(due_ms),
            challenges: ChallengeQueue::default(),
        });
        if due_ms > now_ms {
            return Ok(Output::Postponed { until_ms: due_ms });
        }
        Ok(self.poll_step(now_ms))
    }

    /// Ends the handshake and the session, for instance because the network changed. The caller must not report a PUF
    /// reading that is in progress. The limits of re-authentication are kept.
    pub fn abandon(&mut self) {
        self.step = Step::Idle { wake_at_ms: None };
        (self.session, self.previous_session) = (None, None);
    }

    /// Handles the payload of one UDP datagram from port 20550 of a gateway. The sender is not authenticated yet.
    ///
    /// `local_ip` is the device's own address as 16 bytes, IPv4 as `::ffff:a.b.c.d`.
    ///
    /// # Errors
    /// Why the message changed nothing.
    pub fn handle(
        &mut self,
        payload: &[u8],
        local_ip: &[u8; 16],
        now_ms: u64,
    ) -> Result<Output, IgnoredReason> {
        self.handle_with_enrolled_rows(payload, local_ip, now_ms, |_| true)
    }

    /// Like [`handle`](Self::handle), for a device with its helper data at hand: the PUF is not read for a row that
    /// `is_enrolled` does not accept with this challenge.
    ///
    /// # Errors
    /// Why the message changed nothing.
    pub fn handle_with_enrolled_rows(
        &mut self,
        payload: &[u8],
        local_ip: &[u8; 16],
        now_ms: u64,
        is_enrolled: impl FnOnce(&PufQuery) -> bool,
    ) -> Result<Output, IgnoredReason> {
        let message = wire::parse(payload).map_err(IgnoredReason::Malformed)?;
        let header = match message {
            Message::Challenge(challenge) => &challenge.header,
            Message::Ack(ack) => &ack.header,
            Message::Nak(nak) => &nak.header,
            Message::DataDown(..) | Message::AttestRequest(_) => return Err(IgnoredReason::UnsupportedType),
            Message::Request(_) | Message::Response(_) | Message::DataUp(..) | Message::Proof(_) => {
                return Err(IgnoredReason::Direction);
            }
        };
        if header.device() != self.config.device || header.suite != self.config.suite.number() {
            return Err(IgnoredReason::OtherDevice);
        }
        match message {
            Message::Challenge(challenge) => self.on_challenge(challenge, now_ms, is_enrolled),
            Message::Ack(ack) => self.on_ack(ack, local_ip, now_ms),
            Message::Nak(nak) => self.on_nak(nak),
            _ => Err(IgnoredReason::UnsupportedType),
        }
    }

    /// Takes the row key from the reading that the last [`Output::EvaluatePuf`] requested.
    ///
    /// Returns the RESPONSE, or the next reading, or nothing if the machine waits for a CHALLENGE or for its next
    /// reading.
    pub fn puf_result(&mut self, result: Result<RowKey, PufFailed>, now_ms: u64) -> Output {
        let step = mem::replace(&mut self.step, Step::Idle { wake_at_ms: None });
        let Step::AwaitPuf {
            mut pending,
            candidate,
        } = step
        else {
            self.step = step;
            return Output::None;
        };
        let is_read = result.is_ok();
        let verified = pending
            .challenges
            .add_reading(&self.config, candidate, result.ok(), &pending.nonce);
        if let Some(verified) = verified {
            return self.respond(&verified, &pending, now_ms);
        }
        self.rejected_challenges = self.rejected_challenges.saturating_add(u32::from(is_read));
        self.step = Step::AwaitChallenge(pending);
        self.read_for_next(now_ms)
    }

    /// Alternative to [`puf_result`](Self::puf_result): persistent storage shows that the device has responded to the
    /// [offered](Self::offered_row) row before. The CHALLENGE is dropped and does not count as a reading.
    pub fn refuse_row(&mut self, now_ms: u64) -> Output {
        let step = mem::replace(&mut self.step, Step::Idle { wake_at_ms: None });
        let Step::AwaitPuf { mut pending, .. } = step else {
            self.step = step;
            return Output::None;
        };
        self.has_refused_row = true;
        self.reading_limiter.refund();
        if let Some(verified) = pending.challenges.take_verified() {
            return self.respond(&verified, &pending, now_ms);
        }
        self.step = Step::AwaitChallenge(pending);
        self.read_for_next(now_ms)
    }

    /// Performs one action that is due at `now_ms`, and returns its output; [`Output::None`] if no action is due.
    pub fn poll(&mut self, now_ms: u64) -> Output {
        self.previous_session
            .take_if(|previous| previous.expires_at_ms <= now_ms);
        if self
            .session
            .as_ref()
            .is_some_and(|session| session.expires_at_ms <= now_ms)
        {
            self.session = None;
            return Output::SessionExpired;
        }
        self.poll_step(now_ms)
    }

    /// When [`poll`](Self::poll) must be called next; `None` if the machine waits only for a message, a PUF reading
    /// or a start.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let step_ms = match &self.step {
            Step::Idle { wake_at_ms } => *wake_at_ms,
            Step::AwaitChallenge(pending) if pending.challenges.is_waiting() => {
                let reading_ms = self.reading_limiter.next_allowed_ms().max(pending.read_from_ms());
                Some(pending.retransmit.due_ms.min(reading_ms))
            }
            Step::AwaitChallenge(pending) => Some(pending.retransmit.due_ms),
            Step::AwaitPuf { .. } => None,
            Step::AwaitAck(sent_response) => {
                Some(sent_response.retransmit.due_ms.min(sent_response.deadline_ms()))
            }
        };
        let expiry_ms = self.session.as_ref().map(|session| session.expires_at_ms);
        let previous_ms = self
            .previous_session
            .as_ref()
            .map(|previous| previous.expires_at_ms);
        [step_ms, expiry_ms, previous_ms].into_iter().flatten().min()
    }

    fn poll_step(&mut self, now_ms: u64) -> Output {
        match &mut self.step {
            Step::Idle { wake_at_ms } if wake_at_ms.is_some_and(|at| at <= now_ms) => {
                *wake_at_ms = None;
                Output::NeedNonce
            }
            Step::AwaitChallenge(pending)
                if pending.challenges.is_waiting()
                    && self.reading_limiter.next_allowed_ms().max(pending.read_from_ms()) <= now_ms =>
            {
                self.read_for_next(now_ms)
            }
            Step::AwaitChallenge(pending) if pending.retransmit.due_ms <= now_ms => {
                if pending.retransmit.copies_sent >= MAX_REQUESTS {
                    let nonce = pending.nonce;
                    let failure = match pending.challenges.had_failure || pending.challenges.is_waiting() {
                        true => Failure::ChallengesRejected,
                        false => Failure::NoChallenge,
                    };
                    return self.fail(failure, &nonce, now_ms);
                }
                pending.retransmit.note_sent(now_ms);
                Output::Transmit(pending.request(self.config.suite, self.config.device))
            }
            Step::AwaitAck(sent_response) if sent_response.deadline_ms() <= now_ms => {
                let nonce = sent_response.nonce;
                self.fail(Failure::NoAck, &nonce, now_ms)
            }
            Step::AwaitAck(sent_response) if sent_response.retransmit.due_ms <= now_ms => {
                sent_response.retransmit.note_sent(now_ms);
                Output::Transmit(sent_response.response)
            }
            _ => Output::None,
        }
    }

    fn on_challenge(
        &mut self,
        challenge: &wire::Challenge,
        now_ms: u64,
        is_enrolled: impl FnOnce(&PufQuery) -> bool,
    ) -> Result<Output, IgnoredReason> {
        let (pending, is_reading) = match &mut self.step {
            Step::AwaitChallenge(pending) if pending.retransmit.copies_sent > 0 => (pending, false),
            Step::AwaitPuf { pending, candidate } => {
                if *candidate == *challenge {
                    return Err(IgnoredReason::Duplicate);
                }
                (pending, true)
            }
            _ => return Err(IgnoredReason::Unexpected),
        };
        if challenge.nonce_echo != pending.nonce_echo() {
            return Err(IgnoredReason::NonceEcho);
        }
        let (gateway, idx) = (
            GatewayId(challenge.gateway_id.get()),
            RowIndex(challenge.idx.get()),
        );
        let mode = self.config.mode;
        if !self.config.gateways.allows(gateway) {
            return Err(IgnoredReason::Gateway);
        }
        match mode {
            Mode::Pool if !self.row_floors.allows(gateway, idx) => return Err(IgnoredReason::IndexSpent),
            Mode::Key if challenge.challenge != [0; 8] => return Err(IgnoredReason::ChallengeInKeyMode),
            _ => {}
        }
        match pending.challenges.check(&self.config, challenge, &pending.nonce) {
            ChallengeCheck::Rejected => return Err(IgnoredReason::ChallengeTag),
            ChallengeCheck::Verified(verified) if is_reading => {
                pending.challenges.keep_verified(verified);
                return Ok(Output::None);
            }
            ChallengeCheck::Verified(verified) => return Ok(self.respond_without_reading(&verified, now_ms)),
            ChallengeCheck::NeedsReading => {}
        }
        if !is_enrolled(&puf_query(mode, challenge)) {
            return Err(IgnoredReason::UnknownRow);
        }
        let ahead = match mode {
            Mode::Pool => self.row_floors.distance(gateway, idx),
            Mode::Key => None,
        };
        let newest_copy = (pending.retransmit.copies_sent, now_ms < pending.prompt_until_ms());
        if !pending
            .challenges
            .enqueue(challenge, ahead, newest_copy, &pending.nonce)
        {
            return Err(IgnoredReason::Duplicate);
        }
        match is_reading {
            true => Ok(Output::None),
            false => Ok(self.read_for_next(now_ms)),
        }
    }

    /// Reads the PUF for the next queued CHALLENGE, if there is one and a reading is allowed.
    fn read_for_next(&mut self, now_ms: u64) -> Output {
        if self.reading_limiter.next_allowed_ms() > now_ms {
            return Output::None;
        }
        let step = mem::replace(&mut self.step, Step::Idle { wake_at_ms: None });
        let Step::AwaitChallenge(mut pending) = step else {
            self.step = step;
            return Output::None;
        };
        let is_due = pending.read_from_ms() <= now_ms;
        let next = is_due.then(|| pending.challenges.take_next(&pending.nonce));
        let Some(candidate) = next.flatten() else {
            self.step = Step::AwaitChallenge(pending);
            return Output::None;
        };
        self.reading_limiter.spend(now_ms);
        self.step = Step::AwaitPuf { pending, candidate };
        Output::EvaluatePuf(puf_query(self.config.mode, &candidate))
    }

    /// Responds to a CHALLENGE that needed no reading.
    fn respond_without_reading(&mut self, verified: &VerifiedChallenge, now_ms: u64) -> Output {
        let step = mem::replace(&mut self.step, Step::Idle { wake_at_ms: None });
        match step {
            Step::AwaitChallenge(pending) => self.respond(verified, &pending, now_ms),
            step => {
                self.step = step;
                Output::None
            }
        }
    }

    /// Responds to a CHALLENGE that verified.
    fn respond(&mut self, verified: &VerifiedChallenge, pending: &PendingRequest, now_ms: u64) -> Output {
        let VerifiedChallenge {
            challenge,
            row_key,
            auth_key,
            ..
        } = verified;
        let config = &self.config;
        let flags = if config.bound_mac.is_some() { FLAG_BOUND } else { 0 };
        let mut message = wire::Response {
            header: wire::Header::new(message_type::RESPONSE, config.suite, flags, config.device),
            nonce: pending.nonce,
            idx: challenge.idx,
            gateway_id: challenge.gateway_id,
            fresh: challenge.fresh,
            tag: [0; 16],
        };
        message.tag = tag::response(auth_key, &message, &tag::location(config.bound_mac));
        let mut response = [0u8; MESSAGE_BYTES];
        response.copy_from_slice(message.as_bytes());

        let session = TicketSession {
            suite: config.suite,
            device: config.device,
            gateway: GatewayId(challenge.gateway_id.get()),
            idx: RowIndex(challenge.idx.get()),
            response_tag: message.tag,
        };
        self.budget.spend(now_ms);
        self.reading_limiter = ReadingLimiter::default();
        if config.mode == Mode::Pool {
            let next_row = RowIndex(session.idx.0.saturating_add(1));
            self.first_unanswered_row = self.first_unanswered_row.max(next_row);
        }
        self.step = Step::AwaitAck(PendingResponse {
            response,
            tag: message.tag,
            ticket_root: TicketRoot::derive(row_key, &session),
            key: SessionKey::derive(auth_key, config.suite, &message.tag),
            gateway: session.gateway,
            idx: session.idx,
            nonce: pending.nonce,
            first_sent_ms: now_ms,
            retransmit: Retransmit::starting(now_ms),
        });
        self.poll_step(now_ms)
    }

    fn on_ack(&mut self, ack: &wire::Ack, local_ip: &[u8; 16], now_ms: u64) -> Result<Output, IgnoredReason> {
        let Step::AwaitAck(pending) = &self.step else {
            return Err(IgnoredReason::Unexpected);
        };
        let [id_bytes, _] = crate::keys::halves(&pending.tag);
        let id = SessionId::from_wire(id_bytes).filter(|_| ack.session_id == id_bytes);
        let (Some(id), true) = (id, ack.idx == U32::new(pending.idx.0)) else {
            return Err(IgnoredReason::ResponseMismatch);
        };
        if tag::verify(&tag::ack(&pending.key, ack), &ack.tag).is_none() {
            return Err(IgnoredReason::AckTag);
        }
        let step = mem::replace(&mut self.step, Step::Idle { wake_at_ms: None });
        let Step::AwaitAck(pending) = step else {
            return Err(IgnoredReason::Unexpected);
        };
        // In every case below, the gateway has spent the row and replaced the previous session.
        self.row_floors.raise(pending.gateway, pending.idx);
        self.last_accepted_row = Some((pending.gateway, pending.idx));
        self.has_refused_row = false;
        self.previous_session = self.session.take().map(|session| PreviousSession {
            id: session.id,
            key: session.key,
            expires_at_ms: now_ms
                .saturating_add(PREVIOUS_SESSION_MS)
                .min(session.expires_at_ms),
        });
        if ack.seen_ip != *local_ip {
            return Ok(self.fail(Failure::AddressChanged, &pending.nonce, now_ms));
        }
        Ok(self.open_session(pending, id, ack.session_lifetime_s.get(), now_ms))
    }

    fn open_session(
        &mut self,
        pending: PendingResponse,
        id: SessionId,
        lifetime_s: u32,
        now_ms: u64,
    ) -> Output {
        let lifetime_ms = u64::from(lifetime_s) * 1_000;
        let expires_at_ms = pending.first_sent_ms.saturating_add(lifetime_ms);
        if expires_at_ms <= now_ms {
            return self.fail(Failure::SessionExpired, &pending.nonce, now_ms);
        }
        let renew_at_ms = pending
            .first_sent_ms
            .saturating_add(renewal_after_ms(lifetime_ms, &pending.nonce));
        self.retry.reset();
        self.budget.plan_renewal(renew_at_ms);
        self.step = Step::Idle {
            wake_at_ms: Some(renew_at_ms),
        };
        self.session = Some(Session {
            id,
            gateway: pending.gateway,
            idx: pending.idx,
            session_lifetime_s: lifetime_s,
            renew_at_ms,
            expires_at_ms,
            key: pending.key,
            ticket_root: pending.ticket_root,
            response_tag: pending.tag,
        });
        Output::Authenticated(id)
    }

    fn on_nak(&mut self, nak: &wire::Nak) -> Result<Output, IgnoredReason> {
        if !matches!(self.step, Step::AwaitChallenge(_)) {
            return Err(IgnoredReason::Unexpected);
        }
        self.last_nak = Some(ReceivedNak {
            reason: nak.reason,
            idx: RowIndex(nak.idx.get()),
        });
        Ok(Output::None)
    }

    /// Ends the handshake. After a RESPONSE without an ACK the retry is immediate, because 60 s have passed; after any
    /// other failure the device waits first. In both cases the limit of unplanned re-authentications can delay the
    /// retry.
    fn fail(&mut self, failure: Failure, nonce: &[u8; 16], now_ms: u64) -> Output {
        let delay_max = self.retry.next_max();
        let delay_ms = match failure {
            Failure::NoAck => 0,
            _ => retry_delay_ms(delay_max, nonce),
        };
        let earliest_ms = now_ms.saturating_add(delay_ms);
        let retry_at_ms = self.budget.earliest_start_ms(self.config.mode, earliest_ms);
        self.step = Step::Idle {
            wake_at_ms: Some(retry_at_ms),
        };
        Output::Failed { failure, retry_at_ms }
    }
}

impl PendingResponse {
    fn deadline_ms(&self) -> u64 {
        self.first_sent_ms.saturating_add(RESPONSE_LIFETIME_MS)
    }
}

/// Returns 3/4 of the session lifetime ± up to 1/16, selected by the nonce, so that devices started together do not
/// renew together.
fn renewal_after_ms(lifetime_ms: u64, nonce: &[u8; 16]) -> u64 {
    let spread = u64::from(u16::from_be_bytes([nonce[12], nonce[13]]));
    lifetime_ms * 11 / 16 + (lifetime_ms / 8) * spread / u64::from(u16::MAX)
}

/// Returns the longest delay (5, 10, 20, 40, 60 s), less up to a quarter, selected by the nonce (LAP/1 1.5).
fn retry_delay_ms(delay_max: Duration, nonce: &[u8; 16]) -> u64 {
    let full = u64::try_from(delay_max.as_millis()).unwrap_or(u64::MAX);
    full - full / 4 * u64::from(nonce[14]) / 255
}
