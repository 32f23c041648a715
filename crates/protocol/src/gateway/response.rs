//! RESPONSE → ACK (LAP/1 1.4.3, 1.4.4), in three steps, each of which requires the proof from the previous step.
//!
//! [`Gateway::check_response`] takes the gateway by shared reference: before the tag verifies, nothing is created,
//! counted against a device, or spent.

use zerocopy::byteorder::big_endian::U32;

use super::bindings::{BindingKey, ClaimError};
use super::fresh::FreshVerified;
use super::line::{Line, Session, origin_of};
use super::{Gateway, ReplyMessage};
use crate::commit::CommitWord;
use crate::frame::Meta;
use crate::ids::{DeviceId, RowIndex, SessionId, Suite};
use crate::keys::SessionKey;
use crate::tag::{self, TagVerified};
use crate::time::Now;
use crate::verdict::Verdict;
use crate::window::Window;
use crate::wire::{Ack, FLAG_BOUND, Header, Response, message_type};

/// The result of checking a RESPONSE.
#[derive(Debug)]
pub enum ResponseCheck {
    /// The RESPONSE proves possession of the current row, which is not spent yet.
    Current(VerifiedResponse),
    /// The RESPONSE is a copy of the winning RESPONSE; the ACK is the same as before.
    Repeated(Ack),
}

/// A RESPONSE that verified under the row that was current at the check. Nothing is spent.
#[derive(Debug)]
pub struct VerifiedResponse {
    device: DeviceId,
    suite: Suite,
    /// The commit word loaded before the verification.
    loaded_word: CommitWord,
    tag: [u8; 16],
    session_key: SessionKey,
    bound: bool,
    origin: Meta,
    _fresh: FreshVerified,
    _tag: TagVerified,
}

/// Proof that this RESPONSE has spent the row, and that its handler owns the line.
#[derive(Debug)]
pub struct CommittedRow {
    verified: VerifiedResponse,
    session_id: SessionId,
    /// The row that was spent.
    idx: RowIndex,
    /// The commit word as it was swapped in.
    committed_word: CommitWord,
}

impl Gateway {
    pub(super) fn handle_response(
        &mut self,
        now: Now,
        meta: &Meta,
        response: &Response,
    ) -> Result<(Verdict, ReplyMessage), Verdict> {
        let check = self.check_response(now, meta, response);
        // Only a fresh RESPONSE may cause a query to the controller.
        if matches!(check, Err(Verdict::DropUnknownDevice)) && self.freshness.accept(response.fresh).is_some()
        {
            return Err(self.unknown_device(now));
        }
        match check? {
            ResponseCheck::Repeated(ack) => Ok((Verdict::ReplyAckRepeated, ReplyMessage::Ack(ack))),
            ResponseCheck::Current(verified) => {
                let committed = self.commit(verified)?;
                let ack = self.open_session(now, committed)?;
                Ok((Verdict::ReplyAck, ReplyMessage::Ack(ack)))
            }
        }
    }

    /// Checks a RESPONSE that parsing has accepted; writes nothing.
    ///
    /// # Errors
    /// The drop reason. The order of the checks is part of the protocol, so that the counters of all data planes
    /// agree.
    pub fn check_response(
        &self,
        now: Now,
        meta: &Meta,
        response: &Response,
    ) -> Result<ResponseCheck, Verdict> {
        self.freshness.current(now).ok_or(Verdict::DropStopped)?;
        self.check_source(meta)?;
        if response.gateway_id.get() != self.config.gateway_id.0 {
            return Err(Verdict::DropGateway);
        }
        let device = response.header.device();
        let suite = Suite::from_number(response.header.suite).ok_or(Verdict::DropSuite)?;
        let line = self.lines.get(&device).ok_or(Verdict::DropUnknownDevice)?;
        let word = line.commit;
        if word.is_revoked() {
            return Err(Verdict::DropRevoked);
        }
        if word.is_busy() {
            return Err(Verdict::DropBusy);
        }
        if response.idx.get().checked_add(1) == Some(word.idx().0) {
            return repeat_ack(line, now, meta, suite, response).map(ResponseCheck::Repeated);
        }
        if response.idx.get() != word.idx().0 {
            return Err(Verdict::DropIndex);
        }
        if !word.is_valid() {
            return Err(Verdict::DropNoRows);
        }
        let fresh = self.freshness.accept(response.fresh).ok_or(Verdict::DropFresh)?;
        let bound = response.header.flags & FLAG_BOUND != 0;
        self.check_address_owners(now, meta, bound, device)?;
        let tag_verified = verify_tag(&fresh, line, meta, bound, response)?;
        if !word.has_credit() {
            return Err(Verdict::DropMark);
        }
        Ok(ResponseCheck::Current(VerifiedResponse {
            device,
            suite,
            loaded_word: word,
            tag: response.tag,
            session_key: SessionKey::derive(&line.row.auth_key, suite, &response.tag),
            bound,
            origin: origin_of(meta),
            _fresh: fresh,
            _tag: tag_verified,
        }))
    }

    /// Checks that no session of another device owns the sender's address or, for a BOUND RESPONSE, MAC address, and
    /// that there is room for the binding. Otherwise, the row would be spent without a session.
    fn check_address_owners(
        &self,
        now: Now,
        meta: &Meta,
        bound: bool,
        device: DeviceId,
    ) -> Result<(), Verdict> {
        BindingKey::claimed_by(meta, bound).try_for_each(|key| {
            let bindings = &self.bindings;
            if bindings.is_owned_by_other(&self.lines, key, device, now.boot()) {
                Err(Verdict::DropAddressOwned)
            } else if !bindings.has_room(key, device) {
                Err(Verdict::DropTableFull)
            } else {
                Ok(())
            }
        })
    }

    /// Spends the row: compares-and-swaps the whole commit word, so that one of several verified RESPONSEs wins.
    ///
    /// # Errors
    /// The drop reason; nothing is written.
    pub fn commit(&mut self, verified: VerifiedResponse) -> Result<CommittedRow, Verdict> {
        let [id, _] = crate::keys::halves(&verified.tag);
        let session_id = SessionId::from_wire(id).ok_or(Verdict::DropSessionZero)?;
        let spent_word = verified.loaded_word.with_row_spent().ok_or(Verdict::DropNoRows)?;
        let line = self
            .lines
            .get_mut(&verified.device)
            .ok_or(Verdict::DropUnknownDevice)?;
        if !line.compare_and_swap(verified.loaded_word, spent_word) {
            return Err(Verdict::DropLostRace);
        }
        Ok(CommittedRow {
            idx: verified.loaded_word.idx(),
            verified,
            session_id,
            committed_word: spent_word,
        })
    }

    /// Opens the session of the winning RESPONSE, in the order of LAP/1 1.4.3: no other CPU sees a session id before
    /// all data of the session are written.
    ///
    /// # Errors
    /// Another session has claimed the addresses since the check, or there is no room for the claim: the row is spent
    /// and no session is opened. Or the line was removed since the check ([`Verdict::DropLostRace`],
    /// [`Verdict::DropUnknownDevice`]).
    pub fn open_session(&mut self, now: Now, committed: CommittedRow) -> Result<Ack, Verdict> {
        let CommittedRow {
            verified,
            session_id,
            idx,
            committed_word,
        } = committed;
        let device = verified.device;
        let line = self.lines.get_mut(&device).ok_or(Verdict::DropUnknownDevice)?;
        if line.commit != committed_word && line.commit != committed_word.with_revoked() {
            return Err(Verdict::DropLostRace);
        }
        for key in BindingKey::claimed_by(&line.session.origin, line.session.bound) {
            // Unused bindings are released, because a device that uses ever new addresses would fill the tables.
            if !BindingKey::claimed_by(&verified.origin, verified.bound).any(|claimed| claimed == key) {
                self.bindings.release(key, device);
            }
        }
        line.session_id = None;
        line.window = Window::new(committed_word.window_generation());
        line.session = Session {
            key: verified.session_key,
            tag: verified.tag,
            bound: verified.bound,
            session_lifetime_s: self.config.session_lifetime_s,
            origin: verified.origin,
        };
        line.session_expires_s = now
            .boot()
            .seconds()
            .saturating_add(self.config.session_lifetime_s);
        let has_row = committed_word.is_key_mode() || line.take_next_row();
        let claim = self.claim_addresses(now, device, &verified.origin, verified.bound);
        let line = self.lines.get_mut(&device).ok_or(Verdict::DropUnknownDevice)?;
        if claim.is_ok() {
            line.session_id = Some(session_id);
        }
        line.commit = line.commit.with_busy_cleared(has_row);
        claim?;
        Ok(make_ack(&line.session, verified.suite, device, idx))
    }

    fn claim_addresses(
        &mut self,
        now: Now,
        device: DeviceId,
        origin: &Meta,
        bound: bool,
    ) -> Result<(), Verdict> {
        BindingKey::claimed_by(origin, bound).try_for_each(|key| {
            self.bindings
                .claim(&self.lines, key, device, now.boot())
                .map_err(|error| match error {
                    ClaimError::OwnedByOtherDevice => Verdict::DropAddressOwned,
                    ClaimError::TableFull => Verdict::DropTableFull,
                })
        })
    }
}

/// Verifies the tag of a fresh RESPONSE; only fresh messages are hashed.
fn verify_tag(
    _: &FreshVerified,
    line: &Line,
    meta: &Meta,
    bound: bool,
    response: &Response,
) -> Result<TagVerified, Verdict> {
    let loc = tag::location(bound.then_some(meta.src_mac));
    let expected = tag::response(&line.row.auth_key, response, &loc);
    tag::verify(&expected, &response.tag).ok_or(Verdict::DropTag)
}

/// Repeats the ACK, which may have been lost: the same bytes, only for the same tag from the same origin (LAP/1 1.4.4).
/// The freshness value is not compared, because a device repeats its RESPONSE for 60 s (LAP/1 1.5).
fn repeat_ack(line: &Line, now: Now, meta: &Meta, suite: Suite, response: &Response) -> Result<Ack, Verdict> {
    let is_live = line.session_id.is_some() && !line.is_session_expired(now.boot());
    let is_winner = tag::verify(&line.session.tag, &response.tag).is_some();
    if !is_live || !is_winner || !line.session.is_from(meta) {
        return Err(Verdict::DropReplay);
    }
    let (device, idx) = (response.header.device(), RowIndex(response.idx.get()));
    Ok(make_ack(&line.session, suite, device, idx))
}

fn make_ack(session: &Session, suite: Suite, device: DeviceId, idx: RowIndex) -> Ack {
    let [session_id, _] = crate::keys::halves(&session.tag);
    let mut ack = Ack {
        header: Header::new(message_type::ACK, suite, 0, device),
        idx: U32::new(idx.0),
        session_lifetime_s: U32::new(session.session_lifetime_s),
        session_id,
        tag: [0; 16],
        seen_ip: session.origin.src_ip,
    };
    ack.tag = tag::ack(&session.key, &ack);
    ack
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::commit::{UNLIMITED, VALID};
    use crate::gateway::{FreshValue, GatewayConfig, Row};
    use crate::ids::GatewayId;

    /// Commits a RESPONSE with this tag as if the tag had verified: a RESPONSE whose valid tag has chosen bytes cannot
    /// be produced on purpose.
    pub(crate) fn commit_of_tag(tag: [u8; 16]) -> Verdict {
        let mut gateway = Gateway::new(GatewayConfig::new(GatewayId(1), &[]));
        let word = CommitWord::new(RowIndex(4), 2, VALID | UNLIMITED);
        let device = DeviceId(1);
        gateway.lines.insert(device, Line::new(word, Row::absent()));
        gateway.rotate_fresh_value(FreshValue::from_wire([1; 8]).unwrap(), Now::default());
        let verified = VerifiedResponse {
            device,
            suite: Suite::SipHash128,
            loaded_word: word,
            tag,
            session_key: SessionKey::from_bytes([0; 16]),
            bound: false,
            origin: Meta::default(),
            _fresh: gateway.freshness.accept([1; 8]).unwrap(),
            _tag: tag::verify(&tag, &tag).unwrap(),
        };
        let outcome = gateway.commit(verified);
        let line = gateway.line(device).unwrap();
        assert_eq!(line.commit == word, outcome.is_err(), "all or nothing");
        outcome.map_or_else(|reason| reason, |_| Verdict::ReplyAck)
    }

    #[test]
    fn only_the_first_eight_bytes_of_the_tag_name_the_session() {
        let mut tag = [0; 16];
        tag[8] = 1;
        assert_eq!(commit_of_tag(tag), Verdict::DropSessionZero);
        tag[7] = 1;
        assert_eq!(commit_of_tag(tag), Verdict::ReplyAck);
    }
}
