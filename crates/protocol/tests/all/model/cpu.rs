//! The data plane's handling of one message, access by access (LAP/1 1.4.2 to 1.4.4, 1.4.7).

use std::rc::Rc;

use linewarden_protocol::commit::{self, CommitWord};
use linewarden_protocol::frame::{Mac, Meta};
use linewarden_protocol::gateway::FRESH_MAX_AGE_MS;
use linewarden_protocol::ids::{DeviceId, GatewayId, SessionId};
use linewarden_protocol::keys::{AuthKey, SessionKey, halves};
use linewarden_protocol::tag;
use linewarden_protocol::time::{BootTime, Now};
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::window::Window;
use linewarden_protocol::wire::{
    self, Ack, Challenge, Data, FLAG_BOUND, Message, Request, Response, message_type,
};

use super::enrollment::SUITE;
use super::memory::{Memory, Word, mac_word, split, vlans_word};
use super::rules::{Rule, Rules};

/// Maximum number of tries to mark a sequence number (LAP/1 1.4.7).
const WINDOW_TRIES: usize = 4;

/// The fixed settings of a gateway.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    pub gateway: GatewayId,
    pub lifetime_s: u32,
    /// Rows in each line's ring.
    pub ring_rows: usize,
    pub rules: Rules,
    /// Whether DATA is served.
    pub sealed: bool,
}

/// The verdict on a message and the reply, if there is one.
pub type Outcome = (Verdict, Option<[u8; 64]>);

/// One CPU with one message.
pub struct Cpu {
    pub memory: Memory,
    pub config: Config,
    pub devices: Rc<[DeviceId]>,
    pub now: Now,
    /// The time of the invariant checker.
    pub true_ms: u64,
}

/// The part of [`Meta`] to which a session is bound.
pub fn origin(meta: &Meta) -> Meta {
    Meta {
        dst_mac: Mac::default(),
        dst_ip: [0; 16],
        dst_port: 0,
        ..*meta
    }
}

impl Cpu {
    pub async fn handle(self, meta: Meta, payload: Vec<u8>) -> Outcome {
        let reply = match wire::parse(&payload) {
            Err(reason) => Err(reason),
            Ok(Message::Request(request)) => self.request(request).await,
            Ok(Message::Response(response)) => self.response(&meta, response).await,
            Ok(Message::DataUp(data, body)) if self.config.sealed => self.data_up(&meta, data, body).await,
            Ok(Message::DataUp(..)) => Err(Verdict::DropGateNotSealed),
            Ok(_) => Err(Verdict::DropDirection),
        };
        match reply {
            Ok((verdict, reply)) => (verdict, reply),
            Err(reason) => (reason, None),
        }
    }

    /// The current freshness value, while it is recent enough.
    async fn fresh(&self) -> Result<[u8; 8], Verdict> {
        let control = self.memory.control().await;
        let age_ms = self
            .now
            .monotonic_ms
            .saturating_sub(control.drawn_at_monotonic_ms);
        if control.fresh_current == 0 || age_ms > FRESH_MAX_AGE_MS {
            return Err(Verdict::DropStopped);
        }
        Ok(control.fresh_current.to_be_bytes())
    }

    fn line_of(&self, device: DeviceId) -> Result<usize, Verdict> {
        let line = self.devices.iter().position(|installed| *installed == device);
        let is_installed = |line: &usize| self.memory.inspect(|state| state.installed[*line]);
        line.filter(is_installed).ok_or(Verdict::DropUnknownDevice)
    }

    /// Loads the commit word of an installed line; returns an error if the line is revoked or busy.
    async fn commit(&self, line: usize) -> Result<CommitWord, Verdict> {
        let commit = CommitWord(self.memory.load(line, Word::Commit).await);
        if commit.is_revoked() {
            return Err(Verdict::DropRevoked);
        }
        if commit.is_busy() && self.config.rules.contains(Rule::BusyOwnership) {
            return Err(Verdict::DropBusy);
        }
        Ok(commit)
    }

    async fn request(&self, request: &Request) -> Result<Outcome, Verdict> {
        let fresh = self.fresh().await?;
        let device = request.header.device();
        let line = self.line_of(device)?;
        let commit = self.commit(line).await?;
        if self.memory.control().await.stopping {
            return Ok(nak(device, commit, wire::nak_reason::STOPPING));
        }
        if !commit.is_valid() {
            return Ok(nak(device, commit, wire::nak_reason::NO_ROWS));
        }
        let mut challenge = Challenge {
            header: wire::Header::new(message_type::CHALLENGE, SUITE, 0, device),
            idx: commit.idx().0.into(),
            gateway_id: self.config.gateway.0.into(),
            challenge: self.memory.load(line, Word::Challenge).await.to_be_bytes(),
            fresh,
            nonce_echo: halves(&request.nonce)[0],
            tag: [0; 16],
        };
        let key = AuthKey::from_bytes(self.memory.load_pair(line, Word::Key).await);
        challenge.tag = tag::challenge(&key, &challenge, &request.nonce);
        Ok((Verdict::ReplyChallenge, bytes(&challenge)))
    }

    async fn response(&self, meta: &Meta, response: &Response) -> Result<Outcome, Verdict> {
        self.fresh().await?;
        if response.gateway_id.get() != self.config.gateway.0 {
            return Err(Verdict::DropGateway);
        }
        let line = self.line_of(response.header.device())?;
        let word = self.commit(line).await?;
        let loaded_tick = self.memory.invariants().borrow().tick;
        let (idx, current) = (response.idx.get(), word.idx().0);
        if idx.checked_add(1) == Some(current) {
            return self.repeat_ack(line, word, loaded_tick, meta, response).await;
        }
        if idx != current {
            return Err(Verdict::DropIndex);
        }
        if !word.is_valid() && self.config.rules.contains(Rule::Valid) {
            return Err(Verdict::DropNoRows);
        }
        let control = self.memory.control().await;
        let accepted = [control.fresh_current, control.fresh_previous];
        let fresh = u64::from_be_bytes(response.fresh);
        if self.config.rules.contains(Rule::Freshness) && (fresh == 0 || !accepted.contains(&fresh)) {
            return Err(Verdict::DropFresh);
        }
        let bound = response.header.flags & FLAG_BOUND != 0;
        if self.is_owned_by_other(line, meta, bound).await {
            return Err(Verdict::DropAddressOwned);
        }
        let auth_key = AuthKey::from_bytes(self.memory.load_pair(line, Word::Key).await);
        let loc = tag::location(bound.then_some(self.bound_mac(line, meta)));
        let expected = tag::response(&auth_key, response, &loc);
        tag::verify(&expected, &response.tag).ok_or(Verdict::DropTag)?;
        SessionId::from_wire(halves(&response.tag)[0]).ok_or(Verdict::DropSessionZero)?;
        let session_key = SessionKey::derive(&auth_key, SUITE, &response.tag);

        let spent_word = self.spend_row(word)?;
        self.swap(line, word, spent_word, meta, bound, response).await?;
        self.open_session(line, spent_word, meta, bound, response, &session_key)
            .await
    }

    /// The MAC address in `loc`: the source of the message or, with the binding rule removed, the address that verifies.
    fn bound_mac(&self, line: usize, meta: &Meta) -> Mac {
        if self.config.rules.contains(Rule::MacBinding) {
            return meta.src_mac;
        }
        self.memory.invariants().borrow().enrollments[line].endpoint.mac
    }

    /// The word that the winner swaps in.
    fn spend_row(&self, word: CommitWord) -> Result<CommitWord, Verdict> {
        let rules = self.config.rules;
        let mut base = word;
        if !rules.contains(Rule::Valid) {
            base = CommitWord(base.0 | commit::VALID);
        }
        if !rules.contains(Rule::BusyOwnership) {
            base = CommitWord(base.0 & !commit::BUSY);
        }
        let spent_word = base.with_row_spent().ok_or(Verdict::DropNoRows)?;
        Ok(if rules.contains(Rule::BusyOwnership) {
            spent_word
        } else {
            CommitWord(spent_word.0 & !commit::BUSY | commit::VALID)
        })
    }

    /// The one access by which a row is spent.
    async fn swap(
        &self,
        line: usize,
        word: CommitWord,
        spent_word: CommitWord,
        meta: &Meta,
        bound: bool,
        response: &Response,
    ) -> Result<(), Verdict> {
        let compare = self.config.rules.contains(Rule::CompareAndSwap);
        let change = |current: u64| (!compare || current == word.0).then_some(spent_word.0);
        let previous_word = self.memory.update(line, Word::Commit, change).await;
        if compare && previous_word != word.0 {
            return Err(Verdict::DropLostRace);
        }
        let accepted = (response.header.device(), self.config.gateway, word.idx());
        let invariants = self.memory.invariants();
        invariants.borrow_mut().record_accepted(
            accepted,
            response.tag,
            origin(meta),
            bound,
            spent_word.generation(),
            self.true_ms,
        );
        Ok(())
    }

    /// The winner's work, in the order of LAP/1 1.4.3.
    async fn open_session(
        &self,
        line: usize,
        spent_word: CommitWord,
        meta: &Meta,
        bound: bool,
        response: &Response,
        session_key: &SessionKey,
    ) -> Result<Outcome, Verdict> {
        let memory = &self.memory;
        if self.config.rules.contains(Rule::SessionIdZeroedFirst) {
            memory.store(line, Word::SessionId, 0).await;
        }
        let window = Window::new(spent_word.window_generation());
        memory.store(line, Word::Window, window.0).await;
        memory
            .store_pair(line, Word::SessionKey, session_key.as_bytes())
            .await;
        memory.store_pair(line, Word::Tag, &response.tag).await;
        memory
            .store(line, Word::SessionLifetime, u64::from(self.config.lifetime_s))
            .await;
        memory.store_pair(line, Word::Addr, &meta.src_ip).await;
        memory.store(line, Word::Port, u64::from(meta.src_port)).await;
        memory.store(line, Word::Vlans, vlans_word(meta.vlans)).await;
        memory.store(line, Word::Mac, mac_word(meta.src_mac)).await;
        memory.store(line, Word::Bound, u64::from(bound)).await;
        memory.store(line, Word::Ingress, u64::from(meta.ingress)).await;
        let until_s = self.now.boot().seconds().saturating_add(self.config.lifetime_s);
        memory.store(line, Word::SessionExpires, u64::from(until_s)).await;
        let has_row = spent_word.is_key_mode() || self.take_next_row(line, spent_word).await;
        // A winner claims addresses: it writes the addresses while its line is BUSY, and then checks for other claims.
        // Of two concurrent claims, at least one check finds the other claim.
        let is_claimed = !self.is_owned_by_other(line, meta, bound).await;
        let [id, _] = split(&response.tag);
        if is_claimed {
            memory.exchange(line, Word::SessionId, id).await;
        }
        self.release(line, spent_word, has_row).await;
        if !is_claimed {
            return Err(Verdict::DropAddressOwned);
        }
        let idx = response.idx.get();
        let ack = self.make_ack(
            response.header.device(),
            idx,
            self.config.lifetime_s,
            &response.tag,
            session_key,
            meta.src_ip,
        );
        let invariants = memory.invariants();
        invariants
            .borrow_mut()
            .record_ack(self.config.gateway, response, &ack, &origin(meta), None);
        Ok((Verdict::ReplyAck, bytes(&ack)))
    }

    /// Moves the next row from the ring to the line. If the ring has no next row, writes zeros and returns false.
    async fn take_next_row(&self, line: usize, spent_word: CommitWord) -> bool {
        let memory = &self.memory;
        let slot = spent_word.idx().0 as usize % self.config.ring_rows;
        let second = if self.config.rules.contains(Rule::RowTakenByExchange) {
            memory.exchange(line, Word::RingKey(slot, 1), 0).await
        } else {
            memory.load(line, Word::RingKey(slot, 1)).await
        };
        let (challenge, first) = if second == 0 {
            (0, 0)
        } else {
            (
                memory.load(line, Word::RingChallenge(slot)).await,
                memory.load(line, Word::RingKey(slot, 0)).await,
            )
        };
        memory.store(line, Word::Challenge, challenge).await;
        memory.store(line, Word::Key(0), first).await;
        memory.store(line, Word::Key(1), second).await;
        second != 0
    }

    async fn release(&self, line: usize, spent_word: CommitWord, has_row: bool) {
        let rules = self.config.rules;
        let change = |current: u64| {
            Some(if !rules.contains(Rule::ReleaseKeepsRevoked) {
                spent_word.with_busy_cleared(has_row).0
            } else if !rules.contains(Rule::BusyOwnership) {
                if has_row {
                    current
                } else {
                    current & !commit::VALID
                }
            } else {
                CommitWord(current).with_busy_cleared(has_row).0
            })
        };
        self.memory.update(line, Word::Commit, change).await;
    }

    /// Whether another device's live or starting session has this IP address, or, for a BOUND session, this MAC
    /// address.
    async fn is_owned_by_other(&self, line: usize, meta: &Meta, bound: bool) -> bool {
        for other in (0..self.devices.len()).filter(|other| *other != line) {
            let commit = CommitWord(self.memory.load(other, Word::Commit).await);
            let id = self.memory.load(other, Word::SessionId).await;
            if commit.is_revoked() || (id == 0 && !commit.is_busy()) {
                continue;
            }
            if self.is_session_expired(other).await {
                continue;
            }
            let is_same_address = self.memory.load_pair(other, Word::Addr).await == meta.src_ip;
            if is_same_address || (bound && self.is_bound_to(other, meta).await) {
                return true;
            }
        }
        false
    }

    /// Whether the session of this line is BOUND to this interface, these VLANs and this MAC address.
    async fn is_bound_to(&self, line: usize, meta: &Meta) -> bool {
        self.memory.load(line, Word::Bound).await != 0
            && self.memory.load(line, Word::Mac).await == mac_word(meta.src_mac)
            && self.memory.load(line, Word::Vlans).await == vlans_word(meta.vlans)
            && self.memory.load(line, Word::Ingress).await == u64::from(meta.ingress)
    }

    async fn is_session_expired(&self, line: usize) -> bool {
        let until_s = self.memory.load(line, Word::SessionExpires).await;
        let BootTime(now_ms) = self.now.boot();
        now_ms / 1_000 >= until_s
    }

    /// Repeats the ACK, which may have been lost, only for the winning RESPONSE from the same origin (LAP/1 1.4.4).
    async fn repeat_ack(
        &self,
        line: usize,
        word: CommitWord,
        loaded_tick: u64,
        meta: &Meta,
        response: &Response,
    ) -> Result<Outcome, Verdict> {
        let (memory, rules) = (&self.memory, self.config.rules);
        let id = memory.load(line, Word::SessionId).await;
        let stored_tag = memory.load_pair(line, Word::Tag).await;
        let is_winner = tag::verify(&stored_tag, &response.tag).is_some();
        if id == 0 || self.is_session_expired(line).await || (!is_winner && rules.contains(Rule::WinnerTag)) {
            return Err(Verdict::DropReplay);
        }
        let is_same_origin = memory.load_pair(line, Word::Addr).await == meta.src_ip
            && memory.load(line, Word::Port).await == u64::from(meta.src_port)
            && memory.load(line, Word::Vlans).await == vlans_word(meta.vlans)
            && memory.load(line, Word::Mac).await == mac_word(meta.src_mac)
            && memory.load(line, Word::Ingress).await == u64::from(meta.ingress);
        if !is_same_origin {
            return Err(Verdict::DropReplay);
        }
        let key = SessionKey::from_bytes(memory.load_pair(line, Word::SessionKey).await);
        let lifetime_s = memory.load(line, Word::SessionLifetime).await as u32;
        if rules.contains(Rule::RepeatedAckRecheck) && memory.load(line, Word::Commit).await != word.0 {
            return Err(Verdict::DropReplay);
        }
        let idx = response.idx.get();
        let ack = self.make_ack(
            response.header.device(),
            idx,
            lifetime_s,
            &stored_tag,
            &key,
            meta.src_ip,
        );
        let invariants = memory.invariants();
        invariants.borrow_mut().record_ack(
            self.config.gateway,
            response,
            &ack,
            &origin(meta),
            Some(loaded_tick),
        );
        Ok((Verdict::ReplyAckRepeated, bytes(&ack)))
    }

    fn make_ack(
        &self,
        device: DeviceId,
        idx: u32,
        lifetime_s: u32,
        response_tag: &[u8; 16],
        key: &SessionKey,
        seen_ip: [u8; 16],
    ) -> Ack {
        let mut ack = Ack {
            header: wire::Header::new(message_type::ACK, SUITE, 0, device),
            idx: idx.into(),
            session_lifetime_s: lifetime_s.into(),
            session_id: halves(response_tag)[0],
            tag: [0; 16],
            seen_ip,
        };
        ack.tag = tag::ack(key, &ack);
        ack
    }

    /// DATA upwards: window first, then session id, source and key; the window is marked after the tag verifies.
    async fn data_up(&self, meta: &Meta, data: &Data, body: &[u8]) -> Result<Outcome, Verdict> {
        let (memory, rules) = (&self.memory, self.config.rules);
        let device = data.header.device();
        let line = self.line_of(device)?;
        let mut window = Window(memory.load(line, Word::Window).await);
        let commit = CommitWord(memory.load(line, Word::Commit).await);
        let loaded_tick = memory.invariants().borrow().tick;
        if commit.is_revoked() {
            return Err(Verdict::DropRevoked);
        }
        let id = memory.load(line, Word::SessionId).await;
        if id == 0 || id.to_be_bytes() != data.session_id || self.is_session_expired(line).await {
            return Err(Verdict::DropSession);
        }
        if memory.load_pair(line, Word::Addr).await != meta.src_ip {
            return Err(Verdict::DropSource);
        }
        let key = SessionKey::from_bytes(memory.load_pair(line, Word::SessionKey).await);
        let expected = tag::data(&key, data, 0, &meta.dst_ip, body);
        tag::verify(&expected, &data.tag).ok_or(Verdict::DropTag)?;
        if !rules.contains(Rule::WindowBeforeKey) {
            window = Window(memory.load(line, Word::Window).await);
        }
        let generation = window.generation();
        let seq = u32::try_from(data.seq.get()).map_err(|_| Verdict::DropSequence)?;
        for _ in 0..WINDOW_TRIES {
            let marked = window.accept(seq).ok_or(Verdict::DropSequence)?;
            if memory
                .compare_and_swap(line, Word::Window, window.0, marked.0)
                .await
            {
                let invariants = memory.invariants();
                invariants.borrow_mut().record_opened(
                    self.config.gateway,
                    device,
                    data.session_id,
                    u64::from(seq),
                    generation,
                    loaded_tick,
                );
                return Ok((Verdict::PassSession, None));
            }
            window = Window(memory.load(line, Word::Window).await);
            if window.generation() != generation {
                return Err(Verdict::DropSession);
            }
        }
        Err(Verdict::DropSequence)
    }
}

fn nak(device: DeviceId, commit: CommitWord, reason: u8) -> Outcome {
    let nak = wire::Nak {
        header: wire::Header::new(message_type::NAK, SUITE, 0, device),
        idx: commit.idx().0.into(),
        reason,
        reserved: [0; 43],
    };
    (Verdict::ReplyNak, bytes(&nak))
}

fn bytes<T: zerocopy::IntoBytes + zerocopy::Immutable>(message: &T) -> Option<[u8; 64]> {
    message.as_bytes().try_into().ok()
}
