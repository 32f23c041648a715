//! REQUEST and RESPONSE, in the order of checks of docs/protocols.md 1.4.13.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::fence;

use linewarden_protocol::commit::{self, CommitWord};
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::{message_type, nak_reason};
use subtle::ConstantTimeEq as _;

use super::bindings::{BindingKey, session_mac};
use super::engine::{Engine, ThreadState};
use super::message::{H0_BOUND_BIT, Words, h0};
use super::origin::{MacSource, Origin};
use super::sip::{Pair, f};
use crate::event::{EVENT_BYTES, SESSION_EVENT_BYTES};
use crate::layout::{BOUND, Line, RingRow, Session};
use crate::store::load_shedder::UnknownSender;
use crate::store::{ActiveSettings, admission};
use crate::timestamps::Timestamps;

const H0_CHALLENGE: u64 = h0(message_type::CHALLENGE, 0);
const H0_ACK: u64 = h0(message_type::ACK, 0);
const H0_NAK: u64 = h0(message_type::NAK, 0);

/// `L(2)`: the session key is F(auth_key, L(2), RESPONSE.tag).
const LABEL_SESSION: u64 = u64::from_le_bytes([0, 0, 1, 2, 1, 0, 0, 0]);

/// Age of the current fresh value above which no message is answered, ns (LAP/1 1.4.1).
const FRESH_NS_MAX: u64 = linewarden_protocol::gateway::FRESH_MAX_AGE_MS * 1_000_000;

/// Packs two big-endian 32-bit fields into one word.
fn pack_fields(first: u32, second: u32) -> u64 {
    u64::from(second.to_be()) << 32 | u64::from(first.to_be())
}

fn load(words: &[std::sync::atomic::AtomicU64; 2]) -> Pair {
    [words[0].load(Acquire), words[1].load(Acquire)]
}

fn store(words: &[std::sync::atomic::AtomicU64; 2], [low, high]: Pair) {
    words[0].store(low, Relaxed);
    words[1].store(high, Relaxed);
}

/// A reply with its verdict, or the reason to drop.
pub(super) type Outcome = Result<(Verdict, Words), Verdict>;

/// The fields of a RESPONSE.
struct Response {
    device_id: u64,
    idx: u32,
    gateway_id: u32,
    fresh: u64,
    tag: Pair,
    is_bound: bool,
    words: Words,
}

impl Response {
    fn of(words: &Words) -> Self {
        let [h0, device_id, _, _, idx_gateway, fresh, low, high] = *words;
        Self {
            device_id,
            idx: u32::from_be(idx_gateway as u32),
            gateway_id: u32::from_be((idx_gateway >> 32) as u32),
            fresh,
            tag: [low, high],
            is_bound: h0 & H0_BOUND_BIT != 0,
            words: *words,
        }
    }

    fn nonce(&self) -> Pair {
        let [_, _, n0, n1, ..] = self.words;
        [n0, n1]
    }

    /// RESPONSE.tag = F(auth_key, H0, ID, N0, N1, IG, fresh, loc), compared in constant time: both halves are
    /// combined before the result is tested.
    fn verifies(&self, auth_key: Pair, loc: u64) -> bool {
        let [h0, id, n0, n1, ig, fresh, low, high] = self.words;
        let tag = f(auth_key, [h0, id, n0, n1, ig, fresh, loc]);
        ((tag[0] ^ low) | (tag[1] ^ high)).ct_eq(&0).into()
    }
}

impl Engine {
    /// Checks that a device can have the source address. A message from any other address is not answered and opens no
    /// session.
    fn check_source(&self, from: &Origin) -> Result<(), Verdict> {
        let control = self.regions.control.first();
        match control.is_some_and(|control| admission::admits(control, from.addr)) {
            true => Ok(()),
            false => Err(Verdict::DropSourceNotDevice),
        }
    }

    /// Whether no message is answered, because no fresh value is set or the fresh value is too old.
    fn is_stopped(&self, now: Timestamps) -> bool {
        self.regions.control.first().is_none_or(|control| {
            let age_ns = now.monotonic_ns.saturating_sub(control.fresh_at_ns.load(Acquire));
            control.fresh_current.load(Acquire) == 0 || age_ns > FRESH_NS_MAX
        })
    }

    pub(super) fn handle_request(
        &self,
        thread: &mut ThreadState,
        now: Timestamps,
        from: &Origin,
        message: &Words,
    ) -> Outcome {
        let [_, device_id, n0, n1, ..] = *message;
        let control = self.regions.control.first().ok_or(Verdict::DropStopped)?;
        if self.is_stopped(now) {
            return Err(Verdict::DropStopped);
        }
        self.check_source(from)?;
        let Some((line, _)) = self.find_device(device_id) else {
            let sender = UnknownSender {
                id: device_id,
                source: from.addr,
                nonce: None,
            };
            return Err(self.admit_unknown(thread, now, &sender));
        };
        let commit = CommitWord(line.commit.load(Acquire));
        if commit.is_revoked() {
            return Err(Verdict::DropRevoked);
        }
        if commit.is_busy() {
            return Err(Verdict::DropBusy);
        }
        if control.stopping.load(Acquire) != 0 {
            return self.nak(thread, now, device_id, commit, nak_reason::STOPPING);
        }
        if !commit.is_valid() {
            return self.nak(thread, now, device_id, commit, nak_reason::NO_ROWS);
        }
        let auth_key = load(&line.auth_key);
        let challenge = line.challenge.load(Acquire);
        // A winner on another thread may have installed the next row during the read. Key and challenge may then belong
        // to different rows.
        if line.commit.load(Acquire) != commit.0 {
            return Err(Verdict::DropBusy);
        }
        let fresh = control.fresh_current.load(Acquire);
        let ig = pack_fields(commit.idx().0, self.gateway_id);
        let [low, high] = f(auth_key, [H0_CHALLENGE, device_id, n0, n1, ig, challenge, fresh]);
        let reply = [H0_CHALLENGE, device_id, ig, challenge, fresh, n0, low, high];
        Ok((Verdict::ReplyChallenge, reply))
    }

    fn nak(
        &self,
        thread: &mut ThreadState,
        now: Timestamps,
        device_id: u64,
        commit: CommitWord,
        reason: u8,
    ) -> Outcome {
        if !thread.naks.allows(now.monotonic_ns, self.live().nak_per_s) {
            return Err(Verdict::DropNakLimit);
        }
        let idx_reason = u64::from(reason) << 32 | u64::from(commit.idx().0.to_be());
        Ok((Verdict::ReplyNak, [H0_NAK, device_id, idx_reason, 0, 0, 0, 0, 0]))
    }

    pub(super) fn handle_response(
        &self,
        thread: &mut ThreadState,
        now: Timestamps,
        from: &Origin,
        macs: &mut impl MacSource,
        message: &Words,
    ) -> Outcome {
        let m = Response::of(message);
        if self.is_stopped(now) {
            return Err(Verdict::DropStopped);
        }
        self.check_source(from)?;
        if m.gateway_id != self.gateway_id {
            return Err(Verdict::DropGateway);
        }
        let Some((line, place)) = self.find_device(m.device_id) else {
            let sender = UnknownSender {
                id: m.device_id,
                source: from.addr,
                nonce: Some(m.nonce()),
            };
            return Err(match self.is_fresh(m.fresh) {
                true => self.admit_unknown(thread, now, &sender),
                false => Verdict::DropUnknownDevice,
            });
        };
        let slot = line.slot.load(Acquire);
        let session = self.regions.sessions.get(slot as usize);
        let context = ResponseContext {
            commit: CommitWord(line.commit.load(Acquire)),
            session: session.ok_or(Verdict::DropUnknownDevice)?,
            response: &m,
            line,
            place,
            slot,
            now,
            from,
        };
        if context.commit.is_revoked() {
            return Err(Verdict::DropRevoked);
        }
        if context.commit.is_busy() {
            return Err(Verdict::DropBusy);
        }
        let idx = context.commit.idx().0;
        if m.idx.checked_add(1) == Some(idx) {
            return context.repeat_ack(&self.live(), macs);
        }
        if m.idx != idx {
            return Err(Verdict::DropIndex);
        }
        if !context.commit.is_valid() {
            return Err(Verdict::DropNoRows);
        }
        if !self.is_fresh(m.fresh) {
            return Err(Verdict::DropFresh);
        }
        let auth_key = load(&line.auth_key);
        let origin = self.verify(&context, auth_key, macs).inspect_err(|reason| {
            if *reason == Verdict::DropTag && thread.alarms.allows(now.monotonic_ns, self.live().alarm_per_s)
            {
                thread.stats.report(&context.event(EVENT_WRONG_TAG, idx));
            }
        })?;
        if !context.commit.has_credit() {
            // Only a verified message may request an advance of the mark, because rows below the mark are lost if the
            // memory is lost.
            self.report(thread, &context.event(EVENT_ROWS_LOW, idx));
            return Err(Verdict::DropMark);
        }
        if m.tag[0] == 0 {
            return Err(Verdict::DropSessionZero);
        }
        let session_key = f(auth_key, [LABEL_SESSION, m.tag[0], m.tag[1]]);
        self.accept_response(thread, &context, &origin, session_key)
    }

    fn is_fresh(&self, fresh: u64) -> bool {
        self.regions.control.first().is_some_and(|control| {
            fresh != 0
                && (fresh == control.fresh_current.load(Acquire)
                    || fresh == control.fresh_previous.load(Acquire))
        })
    }

    /// Checks the owners of the addresses, then the tag. A MAC address from a table may be stale: if the check fails,
    /// the table is queried again, and only a different MAC address leads to a second check.
    fn verify(
        &self,
        context: &ResponseContext<'_>,
        auth_key: Pair,
        macs: &mut impl MacSource,
    ) -> Result<VerifiedOrigin, Verdict> {
        let (m, from, line_place, boot_s) = (
            context.response,
            context.from,
            context.place,
            context.now.boot_s(),
        );
        let attempt = |mac: u64| {
            let is_renewal = context.is_renewal(mac);
            if !is_renewal {
                self.by_address()
                    .check(BindingKey::Address(from.addr), line_place, boot_s)?;
                if m.is_bound {
                    self.by_mac()
                        .check(BindingKey::mac(mac, from), line_place, boot_s)?;
                }
            }
            let origin = VerifiedOrigin { mac, is_renewal };
            m.verifies(auth_key, if m.is_bound { mac } else { 0 })
                .then_some(origin)
                .ok_or(Verdict::DropTag)
        };
        if !m.is_bound {
            return attempt(macs.unbound_mac());
        }
        let known_mac = macs.sender_mac(from, context.now).ok_or(Verdict::DropTag)?;
        attempt(known_mac)
            .or_else(|reason| attempt(macs.refreshed_mac(from, context.now, known_mac).ok_or(reason)?))
    }

    /// Spends the row and opens the session, in the order of LAP/1 1.4.3.
    fn accept_response(
        &self,
        thread: &mut ThreadState,
        context: &ResponseContext<'_>,
        origin: &VerifiedOrigin,
        session_key: Pair,
    ) -> Outcome {
        let &ResponseContext {
            response: m,
            line,
            session,
            ..
        } = context;
        let live = self.live();
        let new_word = context.commit.with_row_spent().ok_or(Verdict::DropNoRows)?;
        let (guard, previous_session) =
            LineGuard::acquire(line, context.commit, new_word).ok_or(Verdict::DropLostRace)?;
        // If user space closed the session after the session was read, another device may have claimed the addresses of
        // the session.
        let is_closed = origin.is_renewal && previous_session == 0;
        line.window
            .store(u64::from(new_word.window_generation()) << 56, Relaxed);
        store(&session.session_key, session_key);
        store(&session.tag, m.tag);
        line.session_until_s.store(
            context.now.boot_s().saturating_add(live.session_lifetime_s),
            Relaxed,
        );
        if !origin.is_renewal {
            self.release_old_bindings(context, origin.mac);
            context.bind(origin.mac);
        }
        let next = new_word.idx().0;
        let has_row = new_word.is_key_mode() || self.move_row_into_line(line, context.slot, next);
        let claim_result = match (origin.is_renewal, is_closed) {
            (true, true) => Err(Verdict::DropLostRace),
            (true, false) => Ok(()),
            (false, _) => self.claim(context, origin.mac),
        };
        if claim_result.is_ok() {
            line.session_id.swap(m.tag[0], AcqRel);
        }
        guard.release(has_row);

        if !has_row {
            self.report(thread, &context.event(EVENT_ROWS_OUT, next));
        } else if !new_word.is_key_mode()
            && (self.are_rows_low(context.slot, next, live.low_rows)
                || is_credit_low(new_word, live.low_credit))
        {
            self.report(thread, &context.event(EVENT_ROWS_LOW, next));
        }
        claim_result?;
        if !origin.is_renewal {
            thread.stats.report(&context.session_event(origin.mac));
        }
        Ok((
            Verdict::ReplyAck,
            ack(m, session_key, live.session_lifetime_s, context.from),
        ))
    }

    /// Removes the bindings of the line's previous session that the new session does not reuse. Otherwise a device with
    /// ever-changing addresses would fill the tables.
    fn release_old_bindings(&self, context: &ResponseContext<'_>, mac: u64) {
        let [address_key, mac_key] = BindingKey::of(context.session);
        if let Some(old) = address_key.filter(|old| *old != BindingKey::Address(context.from.addr)) {
            self.by_address().release(old, context.place);
        }
        if let Some(old) =
            mac_key.filter(|old| !context.response.is_bound || *old != BindingKey::mac(mac, context.from))
        {
            self.by_mac().release(old, context.place);
        }
    }

    fn claim(&self, context: &ResponseContext<'_>, mac: u64) -> Result<(), Verdict> {
        let (place, boot_s) = (context.place, context.now.boot_s());
        self.by_address()
            .claim(BindingKey::Address(context.from.addr), place, boot_s)?;
        if context.response.is_bound {
            self.by_mac()
                .claim(BindingKey::mac(mac, context.from), place, boot_s)?;
        }
        Ok(())
    }

    fn ring_row(&self, slot: u32, idx: u32) -> Option<&RingRow> {
        let place = slot
            .checked_mul(self.ring)?
            .checked_add(idx.checked_rem(self.ring)?)?;
        self.regions.rows.get(place as usize)
    }

    /// Moves the row `idx` into the line, or clears the line's row. Returns whether the row exists.
    fn move_row_into_line(&self, line: &Line, slot: u32, idx: u32) -> bool {
        let row = self.ring_row(slot, idx);
        let last = row.map_or(0, |row| row.auth_key[1].swap(0, AcqRel));
        let (Some(row), true) = (row, last != 0) else {
            line.challenge.store(0, Relaxed);
            store(&line.auth_key, [0, 0]);
            return false;
        };
        line.challenge.store(row.challenge.load(Acquire), Relaxed);
        store(&line.auth_key, [row.auth_key[0].load(Acquire), last]);
        row.challenge.store(0, Relaxed);
        row.auth_key[0].store(0, Relaxed);
        true
    }

    /// Whether the row `low_rows` after `idx` is missing, if this check is enabled.
    fn are_rows_low(&self, slot: u32, idx: u32, low_rows: u32) -> bool {
        low_rows > 0
            && self
                .ring_row(slot, idx.wrapping_add(low_rows))
                .is_none_or(|row| row.auth_key[1].load(Acquire) == 0)
    }
}

/// A RESPONSE and the line of its device.
struct ResponseContext<'a> {
    response: &'a Response,
    line: &'a Line,
    session: &'a Session,
    /// Place of the line.
    place: u32,
    slot: u32,
    /// Loaded before all other fields of the line.
    commit: CommitWord,
    now: Timestamps,
    from: &'a Origin,
}

/// The origin of a RESPONSE with a valid tag.
struct VerifiedOrigin {
    mac: u64,
    /// Whether the device's live session is already bound to this origin.
    is_renewal: bool,
}

impl ResponseContext<'_> {
    /// Whether a live session is renewed from the origin to which it is bound. Such a session owns its addresses: no
    /// other device can have claimed the addresses, and the tables need not be read. `false` in the last second of the
    /// session: another thread whose batch started a little later may already treat the session as expired and the
    /// addresses as free.
    fn is_renewal(&self, mac: u64) -> bool {
        let is_bound = self.session.vlan[0].load(Acquire) & BOUND != 0;
        self.line.session_id.load(Acquire) != 0
            && self.line.session_until_s.load(Acquire) > self.now.boot_s().saturating_add(1)
            && self.origin_difference() == 0
            && session_mac(self.session) == mac
            && is_bound == self.response.is_bound
    }

    /// 0 if the session is bound to this address, port, VLANs and interface. The MAC address is not compared.
    fn origin_difference(&self) -> u64 {
        let Self { session, from, .. } = self;
        let [low, high] = load(&session.addr);
        let vlan = session.vlan[0].load(Acquire) & !BOUND;
        (low ^ from.addr[0])
            | (high ^ from.addr[1])
            | u64::from(session.port.load(Acquire) ^ from.port)
            | u64::from(vlan ^ from.vlans[0])
            | u64::from(session.vlan[1].load(Acquire) ^ from.vlans[1])
            | u64::from(session.ingress.load(Acquire) ^ from.ingress)
    }

    fn bind(&self, mac: u64) {
        let Self { session, from, .. } = self;
        store(&session.addr, from.addr);
        session.port.store(from.port, Relaxed);
        for (part, shift) in session.mac.iter().zip([0, 16, 32]) {
            part.store((mac >> shift) as u16, Relaxed);
        }
        let flag = if self.response.is_bound { BOUND } else { 0 };
        session.vlan[0].store(from.vlans[0] | flag, Relaxed);
        session.vlan[1].store(from.vlans[1], Relaxed);
        session.ingress.store(from.ingress, Relaxed);
    }

    /// Repeats the ACK for a copy of the RESPONSE that opened the session: the first ACK was lost (LAP/1 1.4.4).
    fn repeat_ack(&self, live: &ActiveSettings, macs: &mut impl MacSource) -> Outcome {
        let Self {
            response: m,
            line,
            session,
            from,
            now,
            ..
        } = *self;
        let [tag_low, tag_high] = load(&session.tag);
        let differs = ((tag_low ^ m.tag[0]) | (tag_high ^ m.tag[1]) | self.origin_difference()).ct_ne(&0);
        let until_s = line.session_until_s.load(Acquire);
        let is_live = line.session_id.load(Acquire) != 0 && until_s > now.boot_s();
        if !is_live || bool::from(differs) {
            return Err(Verdict::DropReplay);
        }
        let stored_mac = session_mac(session);
        let is_bound = session.vlan[0].load(Acquire) & BOUND != 0;
        let mac = if is_bound {
            macs.sender_mac(from, now).ok_or(Verdict::DropReplay)?
        } else {
            macs.unbound_mac()
        };
        if mac != stored_mac && (!is_bound || macs.refreshed_mac(from, now, mac) != Some(stored_mac)) {
            return Err(Verdict::DropReplay);
        }
        let session_key = load(&session.session_key);
        // The values above belong to one session only if no winner changed them during the read.
        if line.commit.load(Acquire) != self.commit.0 || line.session_id.load(Acquire) != m.tag[0] {
            return Err(Verdict::DropReplay);
        }
        let lifetime_s = live.repeated_lifetime_s(until_s);
        Ok((Verdict::ReplyAckRepeated, ack(m, session_key, lifetime_s, from)))
    }

    /// `struct lw_session_event` as words.
    fn session_event(&self, mac: u64) -> [u64; SESSION_EVENT_BYTES / 8] {
        let mut words = [0; SESSION_EVENT_BYTES / 8];
        let [kind, id, _, low, high, ingress_idx] = self.event(EVENT_SESSION, self.response.idx);
        let loc = if self.response.is_bound { mac } else { 0 };
        let event = [
            kind,
            id,
            self.response.tag[0],
            low,
            high,
            ingress_idx,
            self.now.boot_ns,
        ];
        let values = event.into_iter().chain(self.response.words).chain([loc]);
        words.iter_mut().zip(values).for_each(|(cell, word)| *cell = word);
        words
    }

    /// `struct lw_event` as words, without a session.
    fn event(&self, kind: u32, idx: u32) -> [u64; EVENT_BYTES / 8] {
        [
            u64::from(kind),
            self.response.device_id,
            0,
            self.from.addr[0],
            self.from.addr[1],
            u64::from(self.from.ingress) << 32 | u64::from(idx),
        ]
    }
}

/// Ownership of a line that this thread has won. A guard that is dropped without a release, which only a panic can
/// cause, closes the session and clears BUSY. The line is then empty and can be filled again.
struct LineGuard<'a> {
    line: &'a Line,
}

impl<'a> LineGuard<'a> {
    /// Acquires the line. Returns the guard and the id of the line's previous session. `None`: the commit word is no longer
    /// `current`.
    fn acquire(line: &'a Line, current: CommitWord, new_word: CommitWord) -> Option<(Self, u64)> {
        line.commit
            .compare_exchange(current.0, new_word.0, AcqRel, Acquire)
            .ok()?;
        let previous_session = line.session_id.swap(0, Relaxed);
        // BUSY and the session id 0 must be visible before all later writes.
        fence(Release);
        Some((Self { line }, previous_session))
    }

    /// Clears BUSY, and sets VALID if a row is present. REVOKED, which user space may set concurrently, is kept.
    fn release(self, has_row: bool) {
        if has_row {
            self.line.commit.fetch_xor(commit::BUSY | commit::VALID, AcqRel);
        } else {
            self.line.commit.fetch_and(!commit::BUSY, AcqRel);
        }
        std::mem::forget(self);
    }
}

impl Drop for LineGuard<'_> {
    fn drop(&mut self) {
        self.line.session_id.store(0, Release);
        store(&self.line.auth_key, [0, 0]);
        self.line.commit.fetch_and(!commit::BUSY, AcqRel);
    }
}

fn is_credit_low(commit_word: CommitWord, low_credit: u32) -> bool {
    commit_word.credit().is_some_and(|credit| credit <= low_credit)
}

/// ACK.tag = F(session_key, H0, idx ‖ lifetime_s, session_id, seen_ip).
fn ack(m: &Response, session_key: Pair, lifetime_s: u32, from: &Origin) -> Words {
    let idx_lifetime = pack_fields(m.idx, lifetime_s);
    let session_id = m.tag[0];
    let [ip_low, ip_high] = from.addr;
    let [low, high] = f(session_key, [H0_ACK, idx_lifetime, session_id, ip_low, ip_high]);
    [
        H0_ACK,
        m.device_id,
        idx_lifetime,
        session_id,
        low,
        high,
        ip_low,
        ip_high,
    ]
}

const EVENT_SESSION: u32 = 1;
const EVENT_ROWS_LOW: u32 = 2;
const EVENT_ROWS_OUT: u32 = 3;
const EVENT_WRONG_TAG: u32 = 4;
