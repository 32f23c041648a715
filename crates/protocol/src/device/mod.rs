//! The device role: a machine that is fed messages, PUF readings, nonces and the time (LAP/1 1.5).
//!
//! It holds no socket, clock, random source or heap, and builds for targets without an operating system. The caller
//! owns those and does what each [`Output`] says; after every call it polls until [`Output::None`] comes, then waits
//! for a datagram, a PUF reading or [`Device::next_deadline`].
//!
//! ```mermaid
//! stateDiagram-v2
//!     [*] --> Idle
//!     Idle --> AwaitChallenge: start(nonce)
//!     Authenticated --> AwaitChallenge: start(nonce), renewal due
//!     AwaitChallenge --> AwaitChallenge: REQUEST again, 8 in all
//!     AwaitChallenge --> AwaitPuf: CHALLENGE with the nonce's echo
//!     AwaitChallenge --> AwaitAck: CHALLENGE of a row that was read before verifies, RESPONSE
//!     AwaitPuf --> AwaitChallenge: reading failed or tag wrong
//!     AwaitPuf --> AwaitPuf: the same, another CHALLENGE waits, and a reading is allowed
//!     AwaitPuf --> AwaitAck: a tag verifies, RESPONSE
//!     AwaitAck --> AwaitAck: RESPONSE again, for 60 s
//!     AwaitAck --> Authenticated: ACK verifies
//!     AwaitChallenge --> Rest: 8 REQUESTs unanswered
//!     AwaitAck --> Rest: 60 s over, relayed, lease over
//!     state Rest <<choice>>
//!     Rest --> Idle: no session
//!     Rest --> Authenticated: the session before still lives
//!     Authenticated --> Idle: lease over
//! ```
//!
//! A session outlives the handshake that renews it: [`Device::session`] is `Some` from a verified ACK to the end of
//! its lease, whatever the phase. `abandon` leads from everywhere to Idle.
//!
//! What a reader of LAP/1 1.5 will ask:
//! * *A bad message cancels nothing.* Whoever does not know the nonce cannot even cause a PUF reading; whoever
//!   reads the REQUEST can cause [`READINGS_AT_ONCE`] and then one each [`READING_INTERVAL_MS`], and ends no handshake.
//! * *A CHALLENGE is verified with the key that only its row's response gives*, so the PUF is read first and the
//!   answer given afterwards. The key is kept for the handshake: further CHALLENGEs of that row, and in key mode all, cost
//!   no reading. Of those that need one, two wait: `challenges.rs`.
//! * *Asked for the same row again*: yes as long as no ACK verified for it, since the RESPONSE may be lost; never
//!   after (pool mode, per gateway, in memory). A caller whose memory outlives this machine says what it knows:
//!   [`Device::raise_unanswered_from`] at the start, [`Device::refuse_row`] in place of a reading.
//! * *Own address*: behind address translation `seen_ip` is never the own address, so a device there gets no session.
//!   It cannot tell a translator from somebody who relays its RESPONSE from an address of his own.

mod budget;
mod challenges;
mod handshake;
mod types;

use core::mem;

use zerocopy::IntoBytes as _;
use zerocopy::byteorder::big_endian::U32;

use crate::ids::{GatewayId, Mode, RowIndex, SessionId};
use crate::keys::{RowKey, SessionKey};
use crate::nonce::Statement;
use crate::tag;
use crate::ticket::{Opening, TicketRoot};
use crate::wire::{self, FLAG_BOUND, MESSAGE_BYTES, Message, message_type};

use budget::{Budget, Floors, Readings};
use challenges::{Challenges, Judgement, Proven};
use handshake::{Answered, Pending, Retransmit, Step, query};

pub use budget::{READING_INTERVAL_MS, READINGS_AT_ONCE, UNPLANNED_INTERVAL_MS};
pub use types::*;

/// Copies of one REQUEST (LAP/1 1.5).
pub const MAX_REQUESTS: u8 = 8;
/// How long one RESPONSE is repeated, ms (LAP/1 1.5).
pub const RESPONSE_LIFETIME_MS: u64 = 60_000;
/// Copies of a RESPONSE up to which its ACK is about to come: the fourth is sent after 140 ms.
pub const PROMPT_RESPONSES: u8 = 4;
/// How long messages of a session are opened after another one has replaced it, ms (LAP/1 1.5).
pub const PREVIOUS_MS: u64 = 1_000;
/// Rest after a failed handshake, ms; doubles with each further failure.
pub const RETRY_FIRST_MS: u64 = 5_000;
/// Longest rest after a failed handshake, ms.
pub const RETRY_MAX_MS: u64 = 60_000;

/// One device's side of LAP/1.
///
/// `now_ms` in every call is milliseconds on one clock that goes on through suspend (boot time), since leases count
/// on it; its zero is anywhere.
#[derive(Debug)]
pub struct Device {
    config: DeviceConfig,
    step: Step,
    session: Option<Session>,
    previous: Option<PreviousSession>,
    budget: Budget,
    readings: Readings,
    floors: Floors,
    /// Pool mode: above every row that was ever answered.
    unanswered_from: RowIndex,
    /// A row was offered since the last session that was answered before.
    has_refused: bool,
    last_accepted: Option<(GatewayId, RowIndex)>,
    last_nonce: [u8; 16],
    last_nak: Option<NakSeen>,
    rejected_challenges: u32,
    failures: u8,
}

impl Device {
    /// A machine at rest; [`start`](Self::start) sets it going.
    #[must_use]
    pub fn new(config: DeviceConfig) -> Self {
        Self {
            config,
            step: Step::Rest { wake_at_ms: None },
            session: None,
            previous: None,
            budget: Budget::default(),
            readings: Readings::default(),
            floors: Floors::default(),
            unanswered_from: RowIndex(0),
            has_refused: false,
            last_accepted: None,
            last_nonce: [0; 16],
            last_nak: None,
            rejected_challenges: 0,
            failures: 0,
        }
    }

    /// What the device is.
    #[must_use]
    pub fn config(&self) -> &DeviceConfig {
        &self.config
    }

    /// Where the machine stands.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self.step {
            Step::Rest { .. } if self.session.is_some() => Phase::Authenticated,
            Step::Rest { .. } => Phase::Idle,
            Step::AwaitChallenge(_) => Phase::AwaitChallenge,
            Step::AwaitPuf { .. } => Phase::AwaitPuf,
            Step::AwaitAck(_) => Phase::AwaitAck,
        }
    }

    /// The session, from a verified ACK until `poll` finds its lease over.
    #[must_use]
    pub fn session(&self) -> Option<&Session> {
        self.session.as_ref()
    }

    /// The session before it, until `poll` finds that [`PREVIOUS_MS`] have passed since the ACK: only to open what its gateway has
    /// sealed.
    #[must_use]
    pub fn previous(&self) -> Option<&PreviousSession> {
        self.previous.as_ref()
    }

    /// Whether a RESPONSE is out whose ACK should be here at any moment: [`PROMPT_RESPONSES`] copies have not been sent.
    ///
    /// The gateway may have replaced the session by the one that the ACK will open: messages should be sealed after the ACK.
    #[must_use]
    pub fn awaits_prompt_ack(&self) -> bool {
        matches!(&self.step, Step::AwaitAck(answered) if answered.retransmit.sent < PROMPT_RESPONSES)
    }

    /// The last NAK while a REQUEST was out, for display only.
    #[must_use]
    pub fn last_nak(&self) -> Option<NakSeen> {
        self.last_nak
    }

    /// Readings of the PUF after which no CHALLENGE verified, since the machine was made.
    #[must_use]
    pub fn rejected_challenges(&self) -> u32 {
        self.rejected_challenges
    }

    /// The lowest row from which on nothing was answered, which each REQUEST of the pool mode states; 0 before the
    /// first RESPONSE.
    #[must_use]
    pub fn unanswered_from(&self) -> RowIndex {
        self.unanswered_from
    }

    /// What the next REQUEST of the pool mode states.
    #[must_use]
    pub fn statement(&self) -> Statement {
        Statement {
            unanswered_from: self.unanswered_from,
            has_refused: self.has_refused,
        }
    }

    /// Takes that from a memory that outlives this machine. It never falls.
    pub fn raise_unanswered_from(&mut self, row: RowIndex) {
        self.unanswered_from = self.unanswered_from.max(row);
    }

    /// The gateway and the row of the CHALLENGE for which the PUF is being read.
    #[must_use]
    pub fn offered(&self) -> Option<(GatewayId, RowIndex)> {
        match &self.step {
            Step::AwaitPuf { candidate, .. } => Some((
                GatewayId(candidate.gateway_id.get()),
                RowIndex(candidate.idx.get()),
            )),
            _ => None,
        }
    }

    /// The gateway and the row of the RESPONSE that is out.
    #[must_use]
    pub fn answered(&self) -> Option<(GatewayId, RowIndex)> {
        match &self.step {
            Step::AwaitAck(answered) => Some((answered.gateway, answered.idx)),
            _ => None,
        }
    }

    /// The gateway and the row of the last RESPONSE whose ACK verified, also one that opened no session.
    #[must_use]
    pub fn last_accepted(&self) -> Option<(GatewayId, RowIndex)> {
        self.last_accepted
    }

    /// Begins a handshake with a nonce from a CSPRNG (or `F(boot secret, stored counter)`). In pool mode four of its
    /// bytes are replaced by [`Device::statement`].
    ///
    /// A session that lives goes on meanwhile. Returns the REQUEST, or [`Output::Postponed`] when a pool-mode device
    /// has used up its unplanned re-authentication.
    ///
    /// # Errors
    /// A handshake is under way, or the nonce is zero or the last one again.
    pub fn start(&mut self, nonce: [u8; 16], now_ms: u64) -> Result<Output, StartError> {
        if !matches!(self.step, Step::Rest { .. }) {
            return Err(StartError::UnderWay);
        }
        if nonce == [0; 16] || nonce == self.last_nonce {
            return Err(StartError::BadNonce);
        }
        self.last_nonce = nonce;
        let nonce = match self.config.mode {
            Mode::Pool => self.statement().within(nonce),
            Mode::Key => nonce,
        };
        let due_ms = self.budget.earliest_start_ms(self.config.mode, now_ms);
        self.last_nak = None;
        self.step = Step::AwaitChallenge(Pending {
            nonce,
            retransmit: Retransmit::starting(due_ms),
            challenges: Challenges::default(),
        });
        if due_ms > now_ms {
            return Ok(Output::Postponed { until_ms: due_ms });
        }
        Ok(self.poll_step(now_ms))
    }

    /// Gives up the handshake and the session, for instance because the network changed. A PUF reading that is
    /// under way must not be reported any more. What limits re-authentications is kept.
    pub fn abandon(&mut self) {
        self.step = Step::Rest { wake_at_ms: None };
        (self.session, self.previous) = (None, None);
    }

    /// Takes the payload of one UDP datagram from port 20550 of a gateway, whoever it really came from.
    ///
    /// `local_ip` is the device's own address as 16 bytes, IPv4 as `::ffff:a.b.c.d`.
    ///
    /// # Errors
    /// Why the message changed nothing.
    pub fn handle(&mut self, payload: &[u8], local_ip: &[u8; 16], now_ms: u64) -> Result<Output, Ignored> {
        self.handle_enrolled(payload, local_ip, now_ms, |_| true)
    }

    /// As [`handle`](Self::handle), of a device that has its helper data at hand: for a row that `is_enrolled` does not
    /// know, with that challenge, the PUF is not read.
    ///
    /// # Errors
    /// Why the message changed nothing.
    pub fn handle_enrolled(
        &mut self,
        payload: &[u8],
        local_ip: &[u8; 16],
        now_ms: u64,
        is_enrolled: impl FnOnce(&PufQuery) -> bool,
    ) -> Result<Output, Ignored> {
        let message = wire::parse(payload).map_err(Ignored::Malformed)?;
        let header = match message {
            Message::Challenge(challenge) => &challenge.header,
            Message::Ack(ack) => &ack.header,
            Message::Nak(nak) => &nak.header,
            Message::DataDown(..) | Message::AttestRequest(_) => return Err(Ignored::Unserved),
            Message::Request(_) | Message::Response(_) | Message::DataUp(..) | Message::Proof(_) => {
                return Err(Ignored::Direction);
            }
        };
        if header.device() != self.config.device || header.suite != self.config.suite.number() {
            return Err(Ignored::OtherDevice);
        }
        match message {
            Message::Challenge(challenge) => self.on_challenge(challenge, now_ms, is_enrolled),
            Message::Ack(ack) => self.on_ack(ack, local_ip, now_ms),
            Message::Nak(nak) => self.on_nak(nak),
            _ => Err(Ignored::Unserved),
        }
    }

    /// Takes the row key that the reading asked for by the last [`Output::EvaluatePuf`] gave.
    ///
    /// Returns the RESPONSE, or the next reading, or nothing when the machine waits for a CHALLENGE or until it may read
    /// again.
    pub fn puf_result(&mut self, result: Result<RowKey, PufFailed>, now_ms: u64) -> Output {
        let step = mem::replace(&mut self.step, Step::Rest { wake_at_ms: None });
        let Step::AwaitPuf {
            mut pending,
            candidate,
        } = step
        else {
            self.step = step;
            return Output::None;
        };
        let is_read = result.is_ok();
        let proven = pending
            .challenges
            .read(&self.config, candidate, result.ok(), &pending.nonce);
        if let Some(proven) = proven {
            return self.respond(&proven, &pending, now_ms);
        }
        self.rejected_challenges = self.rejected_challenges.saturating_add(u32::from(is_read));
        self.step = Step::AwaitChallenge(pending);
        self.read_for_next(now_ms)
    }

    /// Instead of [`puf_result`](Self::puf_result): the row that is [offered](Self::offered) was answered before, as a
    /// memory that outlives this machine knows. The CHALLENGE is dropped, and counts for no reading.
    pub fn refuse_row(&mut self, now_ms: u64) -> Output {
        let step = mem::replace(&mut self.step, Step::Rest { wake_at_ms: None });
        let Step::AwaitPuf { mut pending, .. } = step else {
            self.step = step;
            return Output::None;
        };
        self.has_refused = true;
        self.readings.give_back();
        if let Some(proven) = pending.challenges.take_proven() {
            return self.respond(&proven, &pending, now_ms);
        }
        self.step = Step::AwaitChallenge(pending);
        self.read_for_next(now_ms)
    }

    /// Does what is due by now, one thing per call.
    pub fn poll(&mut self, now_ms: u64) -> Output {
        self.previous.take_if(|previous| previous.until_ms <= now_ms);
        if self
            .session
            .as_ref()
            .is_some_and(|session| session.until_ms <= now_ms)
        {
            self.session = None;
            return Output::SessionExpired;
        }
        self.poll_step(now_ms)
    }

    /// When [`poll`](Self::poll) has to be called next; `None` when only a message, a PUF reading or a start helps.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let step_ms = match &self.step {
            Step::Rest { wake_at_ms } => *wake_at_ms,
            Step::AwaitChallenge(pending) if pending.challenges.is_waiting() => {
                let reading_ms = self.readings.due_ms().max(pending.read_from_ms());
                Some(pending.retransmit.due_ms.min(reading_ms))
            }
            Step::AwaitChallenge(pending) => Some(pending.retransmit.due_ms),
            Step::AwaitPuf { .. } => None,
            Step::AwaitAck(answered) => Some(answered.retransmit.due_ms.min(answered.gives_up_ms())),
        };
        let expiry_ms = self.session.as_ref().map(|session| session.until_ms);
        let previous_ms = self.previous.as_ref().map(|previous| previous.until_ms);
        [step_ms, expiry_ms, previous_ms].into_iter().flatten().min()
    }

    fn poll_step(&mut self, now_ms: u64) -> Output {
        match &mut self.step {
            Step::Rest { wake_at_ms } if wake_at_ms.is_some_and(|at| at <= now_ms) => {
                *wake_at_ms = None;
                Output::NeedNonce
            }
            Step::AwaitChallenge(pending)
                if pending.challenges.is_waiting()
                    && self.readings.due_ms().max(pending.read_from_ms()) <= now_ms =>
            {
                self.read_for_next(now_ms)
            }
            Step::AwaitChallenge(pending) if pending.retransmit.due_ms <= now_ms => {
                if pending.retransmit.sent >= MAX_REQUESTS {
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
            Step::AwaitAck(answered) if answered.gives_up_ms() <= now_ms => {
                let nonce = answered.nonce;
                self.fail(Failure::NoAck, &nonce, now_ms)
            }
            Step::AwaitAck(answered) if answered.retransmit.due_ms <= now_ms => {
                answered.retransmit.note_sent(now_ms);
                Output::Transmit(answered.response)
            }
            _ => Output::None,
        }
    }

    fn on_challenge(
        &mut self,
        challenge: &wire::Challenge,
        now_ms: u64,
        is_enrolled: impl FnOnce(&PufQuery) -> bool,
    ) -> Result<Output, Ignored> {
        let (pending, is_reading) = match &mut self.step {
            Step::AwaitChallenge(pending) if pending.retransmit.sent > 0 => (pending, false),
            Step::AwaitPuf { pending, candidate } => {
                if *candidate == *challenge {
                    return Err(Ignored::Duplicate);
                }
                (pending, true)
            }
            _ => return Err(Ignored::NotAwaited),
        };
        if challenge.nonce_echo != pending.echo() {
            return Err(Ignored::NonceEcho);
        }
        let (gateway, idx) = (
            GatewayId(challenge.gateway_id.get()),
            RowIndex(challenge.idx.get()),
        );
        let mode = self.config.mode;
        if !self.config.gateways.allows(gateway) {
            return Err(Ignored::Gateway);
        }
        match mode {
            Mode::Pool if !self.floors.allows(gateway, idx) => return Err(Ignored::IndexSpent),
            Mode::Key if challenge.challenge != [0; 8] => return Err(Ignored::ChallengeInKeyMode),
            _ => {}
        }
        match pending.challenges.judge(&self.config, challenge, &pending.nonce) {
            Judgement::Rejected => return Err(Ignored::ChallengeTag),
            Judgement::Verified(proven) if is_reading => {
                pending.challenges.keep_proven(proven);
                return Ok(Output::None);
            }
            Judgement::Verified(proven) => return Ok(self.answer(&proven, now_ms)),
            Judgement::Open => {}
        }
        if !is_enrolled(&query(mode, challenge)) {
            return Err(Ignored::UnknownRow);
        }
        let ahead = match mode {
            Mode::Pool => self.floors.ahead(gateway, idx),
            Mode::Key => None,
        };
        let request = (pending.retransmit.sent, now_ms < pending.prompt_until_ms());
        if !pending.challenges.wait(challenge, ahead, request, &pending.nonce) {
            return Err(Ignored::Duplicate);
        }
        match is_reading {
            true => Ok(Output::None),
            false => Ok(self.read_for_next(now_ms)),
        }
    }

    /// Reads the PUF for the next CHALLENGE that waits, if one does and a reading is allowed.
    fn read_for_next(&mut self, now_ms: u64) -> Output {
        if self.readings.due_ms() > now_ms {
            return Output::None;
        }
        let step = mem::replace(&mut self.step, Step::Rest { wake_at_ms: None });
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
        self.readings.spend(now_ms);
        self.step = Step::AwaitPuf { pending, candidate };
        Output::EvaluatePuf(query(self.config.mode, &candidate))
    }

    /// Answers a CHALLENGE that needed no reading.
    fn answer(&mut self, proven: &Proven, now_ms: u64) -> Output {
        let step = mem::replace(&mut self.step, Step::Rest { wake_at_ms: None });
        match step {
            Step::AwaitChallenge(pending) => self.respond(proven, &pending, now_ms),
            step => {
                self.step = step;
                Output::None
            }
        }
    }

    /// Answers a CHALLENGE that verified.
    fn respond(&mut self, proven: &Proven, pending: &Pending, now_ms: u64) -> Output {
        let Proven {
            challenge,
            row_key,
            auth_key,
            ..
        } = proven;
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
        message.tag = tag::response(auth_key, &message, &tag::loc(config.bound_mac));
        let mut response = [0u8; MESSAGE_BYTES];
        response.copy_from_slice(message.as_bytes());

        let opening = Opening {
            suite: config.suite,
            device: config.device,
            gateway: GatewayId(challenge.gateway_id.get()),
            idx: RowIndex(challenge.idx.get()),
            response_tag: message.tag,
        };
        self.budget.spend(now_ms);
        self.readings = Readings::default();
        if config.mode == Mode::Pool {
            let above = RowIndex(opening.idx.0.saturating_add(1));
            self.unanswered_from = self.unanswered_from.max(above);
        }
        self.step = Step::AwaitAck(Answered {
            response,
            tag: message.tag,
            ticket: TicketRoot::derive(row_key, &opening),
            key: SessionKey::derive(auth_key, config.suite, &message.tag),
            gateway: opening.gateway,
            idx: opening.idx,
            nonce: pending.nonce,
            first_sent_ms: now_ms,
            retransmit: Retransmit::starting(now_ms),
        });
        self.poll_step(now_ms)
    }

    fn on_ack(&mut self, ack: &wire::Ack, local_ip: &[u8; 16], now_ms: u64) -> Result<Output, Ignored> {
        let Step::AwaitAck(answered) = &self.step else {
            return Err(Ignored::NotAwaited);
        };
        let [id_bytes, _] = crate::keys::halves(&answered.tag);
        let id = SessionId::from_wire(id_bytes).filter(|_| ack.session_id == id_bytes);
        let (Some(id), true) = (id, ack.idx == U32::new(answered.idx.0)) else {
            return Err(Ignored::OtherResponse);
        };
        if tag::verify(&tag::ack(&answered.key, ack), &ack.tag).is_none() {
            return Err(Ignored::AckTag);
        }
        let step = mem::replace(&mut self.step, Step::Rest { wake_at_ms: None });
        let Step::AwaitAck(answered) = step else {
            return Err(Ignored::NotAwaited);
        };
        // Whatever follows, the gateway has spent the row and replaced the session before.
        self.floors.raise(answered.gateway, answered.idx);
        self.last_accepted = Some((answered.gateway, answered.idx));
        self.has_refused = false;
        self.previous = self.session.take().map(|session| PreviousSession {
            id: session.id,
            key: session.key,
            until_ms: now_ms.saturating_add(PREVIOUS_MS).min(session.until_ms),
        });
        if ack.seen_ip != *local_ip {
            return Ok(self.fail(Failure::AddressChanged, &answered.nonce, now_ms));
        }
        Ok(self.open_session(answered, id, ack.lease_s.get(), now_ms))
    }

    fn open_session(&mut self, answered: Answered, id: SessionId, lease_s: u32, now_ms: u64) -> Output {
        let lease_ms = u64::from(lease_s) * 1_000;
        let until_ms = answered.first_sent_ms.saturating_add(lease_ms);
        if until_ms <= now_ms {
            return self.fail(Failure::LeaseOver, &answered.nonce, now_ms);
        }
        let renew_at_ms = answered
            .first_sent_ms
            .saturating_add(renewal_after_ms(lease_ms, &answered.nonce));
        self.failures = 0;
        self.budget.entitle(renew_at_ms);
        self.step = Step::Rest {
            wake_at_ms: Some(renew_at_ms),
        };
        self.session = Some(Session {
            id,
            gateway: answered.gateway,
            idx: answered.idx,
            lease_s,
            renew_at_ms,
            until_ms,
            key: answered.key,
            ticket: answered.ticket,
            response_tag: answered.tag,
        });
        Output::Authenticated(id)
    }

    fn on_nak(&mut self, nak: &wire::Nak) -> Result<Output, Ignored> {
        if !matches!(self.step, Step::AwaitChallenge(_)) {
            return Err(Ignored::NotAwaited);
        }
        self.last_nak = Some(NakSeen {
            reason: nak.reason,
            idx: RowIndex(nak.idx.get()),
        });
        Ok(Output::None)
    }

    /// Ends the handshake. A RESPONSE that stayed unanswered has waited long enough; all else rests first.
    fn fail(&mut self, failure: Failure, nonce: &[u8; 16], now_ms: u64) -> Output {
        let rest_ms = match failure {
            Failure::NoAck => 0,
            _ => rest_after_ms(self.failures, nonce),
        };
        self.failures = self.failures.saturating_add(1);
        let rested_ms = now_ms.saturating_add(rest_ms);
        let retry_at_ms = self.budget.earliest_start_ms(self.config.mode, rested_ms);
        self.step = Step::Rest {
            wake_at_ms: Some(retry_at_ms),
        };
        Output::Failed { failure, retry_at_ms }
    }
}

impl Answered {
    fn gives_up_ms(&self) -> u64 {
        self.first_sent_ms.saturating_add(RESPONSE_LIFETIME_MS)
    }
}

/// 3/4 of the lease ± up to 1/16, by the nonce, so that a fleet started together does not renew together.
fn renewal_after_ms(lease_ms: u64, nonce: &[u8; 16]) -> u64 {
    let spread = u64::from(u16::from_be_bytes([nonce[12], nonce[13]]));
    lease_ms * 11 / 16 + (lease_ms / 8) * spread / u64::from(u16::MAX)
}

/// 5, 10, 20, 40, 60 s by the failures before, less up to a quarter, by the nonce.
fn rest_after_ms(failures: u8, nonce: &[u8; 16]) -> u64 {
    let full = (RETRY_FIRST_MS << failures.min(4)).min(RETRY_MAX_MS);
    full - full / 4 * u64::from(nonce[14]) / 255
}
