//! RESPONSE → ACK (LAP/1 1.4.3, 1.4.4), in three steps that demand each other's proofs.
//!
//! [`Gateway::check_response`] takes the gateway by shared reference: until a proof has succeeded nothing is
//! created, counted against anyone, or spent.

use zerocopy::byteorder::big_endian::U32;

use super::bindings::{ClaimError, Key};
use super::fresh::Fresh;
use super::line::{Line, Session, origin};
use super::{Answer, Gateway};
use crate::commit::CommitWord;
use crate::frame::Meta;
use crate::ids::{DeviceId, RowIndex, SessionId, Suite};
use crate::keys::SessionKey;
use crate::tag::{self, TagVerified};
use crate::time::Now;
use crate::verdict::Verdict;
use crate::window::Window;
use crate::wire::{Ack, FLAG_BOUND, Header, Response, message_type};

/// What checking a RESPONSE found.
#[derive(Debug)]
pub enum Checked {
    /// It proves possession of the current row, which is not spent yet.
    Current(Verified),
    /// It is the winning RESPONSE again; this is the same ACK again.
    Again(Ack),
}

/// A RESPONSE that verifies under the row that was current when it was checked. Nothing is spent.
#[derive(Debug)]
pub struct Verified {
    device: DeviceId,
    suite: Suite,
    /// The commit word that was loaded before verifying.
    seen: CommitWord,
    tag: [u8; 16],
    session_key: SessionKey,
    bound: bool,
    from: Meta,
    _fresh: Fresh,
    _tag: TagVerified,
}

/// Proof that the row was unspent and is now spent by this RESPONSE, whose handler owns the line.
#[derive(Debug)]
pub struct Unspent {
    verified: Verified,
    session_id: SessionId,
    /// The row that was spent.
    idx: RowIndex,
    /// The commit word as it was swapped in.
    won: CommitWord,
}

impl Gateway {
    pub(super) fn response(
        &mut self,
        now: Now,
        meta: &Meta,
        response: &Response,
    ) -> Result<(Verdict, Answer), Verdict> {
        let checked = self.check_response(now, meta, response);
        // Only what is fresh is worth a question to the controller.
        if matches!(checked, Err(Verdict::DropUnknownDevice))
            && self.freshness.accept(response.fresh).is_some()
        {
            return Err(self.unknown(now));
        }
        match checked? {
            Checked::Again(ack) => Ok((Verdict::ReplyAckAgain, Answer::Ack(ack))),
            Checked::Current(verified) => {
                let unspent = self.commit(verified)?;
                let ack = self.open_session(now, unspent)?;
                Ok((Verdict::ReplyAck, Answer::Ack(ack)))
            }
        }
    }

    /// Checks a RESPONSE that parsing has accepted; writes nothing.
    ///
    /// # Errors
    /// The drop reason. The order of the checks is part of the protocol, so that counters of all data planes agree.
    pub fn check_response(&self, now: Now, meta: &Meta, response: &Response) -> Result<Checked, Verdict> {
        self.freshness.current(now).ok_or(Verdict::DropStopped)?;
        self.check_source(meta)?;
        if response.gateway_id.get() != self.config.gateway_id.0 {
            return Err(Verdict::DropGateway);
        }
        let device = response.header.device();
        let suite = Suite::from_number(response.header.suite).ok_or(Verdict::DropSuite)?;
        let line = self.lines.get(&device).ok_or(Verdict::DropUnknownDevice)?;
        let seen = line.commit;
        if seen.is_revoked() {
            return Err(Verdict::DropRevoked);
        }
        if seen.is_busy() {
            return Err(Verdict::DropBusy);
        }
        if response.idx.get().checked_add(1) == Some(seen.idx().0) {
            return ack_again(line, now, meta, suite, response).map(Checked::Again);
        }
        if response.idx.get() != seen.idx().0 {
            return Err(Verdict::DropIndex);
        }
        if !seen.is_valid() {
            return Err(Verdict::DropNoRows);
        }
        let fresh = self.freshness.accept(response.fresh).ok_or(Verdict::DropFresh)?;
        let bound = response.header.flags & FLAG_BOUND != 0;
        self.check_owners(now, meta, bound, device)?;
        let tag_verified = verify_tag(&fresh, line, meta, bound, response)?;
        if !seen.has_credit() {
            return Err(Verdict::DropMark);
        }
        Ok(Checked::Current(Verified {
            device,
            suite,
            seen,
            tag: response.tag,
            session_key: SessionKey::derive(&line.row.auth_key, suite, &response.tag),
            bound,
            from: origin(meta),
            _fresh: fresh,
            _tag: tag_verified,
        }))
    }

    /// No other live session may own the sender's address, nor, for a BOUND one, its MAC address; and there must be
    /// room to remember who does, or the row would be spent for nothing.
    fn check_owners(&self, now: Now, meta: &Meta, bound: bool, device: DeviceId) -> Result<(), Verdict> {
        Key::of(meta, bound).try_for_each(|key| {
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

    /// Spends the row: compares-and-swaps the whole commit word, so that of several verified RESPONSEs one wins.
    ///
    /// # Errors
    /// The drop reason; nothing is written then.
    pub fn commit(&mut self, verified: Verified) -> Result<Unspent, Verdict> {
        let [id, _] = crate::keys::halves(&verified.tag);
        let session_id = SessionId::from_wire(id).ok_or(Verdict::DropSessionZero)?;
        let won = verified.seen.won().ok_or(Verdict::DropNoRows)?;
        let line = self
            .lines
            .get_mut(&verified.device)
            .ok_or(Verdict::DropUnknownDevice)?;
        if !line.compare_and_swap(verified.seen, won) {
            return Err(Verdict::DropLostRace);
        }
        Ok(Unspent {
            idx: verified.seen.idx(),
            verified,
            session_id,
            won,
        })
    }

    /// The winner's work, in the order of LAP/1 1.4.3: no other CPU sees a session id while anything that belongs
    /// to it is unwritten.
    ///
    /// # Errors
    /// The addresses were claimed meanwhile, or no room is left for the claim: the row is spent, and no session
    /// opened. The line was taken away meanwhile ([`Verdict::DropLostRace`], [`Verdict::DropUnknownDevice`]).
    pub fn open_session(&mut self, now: Now, unspent: Unspent) -> Result<Ack, Verdict> {
        let Unspent {
            verified,
            session_id,
            idx,
            won,
        } = unspent;
        let device = verified.device;
        let line = self.lines.get_mut(&device).ok_or(Verdict::DropUnknownDevice)?;
        if line.commit != won && line.commit != won.revoked() {
            return Err(Verdict::DropLostRace);
        }
        for key in Key::of(&line.session.from, line.session.bound) {
            // Without this a device that comes from ever new addresses would fill the tables.
            if !Key::of(&verified.from, verified.bound).any(|kept| kept == key) {
                self.bindings.leave(key, device);
            }
        }
        line.session_id = None;
        line.window = Window::new(won.window_generation());
        line.session = Session {
            key: verified.session_key,
            tag: verified.tag,
            bound: verified.bound,
            lease_s: self.config.lease_s,
            from: verified.from,
        };
        line.lease_until_s = now.boot().seconds().saturating_add(self.config.lease_s);
        let has_row = won.is_key_mode() || line.take_next_row();
        let claimed = self.claim_addresses(now, device, &verified.from, verified.bound);
        let line = self.lines.get_mut(&device).ok_or(Verdict::DropUnknownDevice)?;
        if claimed.is_ok() {
            line.session_id = Some(session_id);
        }
        line.commit = line.commit.released(has_row);
        claimed?;
        Ok(acknowledge(&line.session, verified.suite, device, idx))
    }

    fn claim_addresses(
        &mut self,
        now: Now,
        device: DeviceId,
        from: &Meta,
        bound: bool,
    ) -> Result<(), Verdict> {
        Key::of(from, bound).try_for_each(|key| {
            self.bindings
                .claim(&self.lines, key, device, now.boot())
                .map_err(|error| match error {
                    ClaimError::Owned => Verdict::DropAddressOwned,
                    ClaimError::Full => Verdict::DropTableFull,
                })
        })
    }
}

/// Only a fresh message is worth hashing.
fn verify_tag(
    _: &Fresh,
    line: &Line,
    meta: &Meta,
    bound: bool,
    response: &Response,
) -> Result<TagVerified, Verdict> {
    let loc = tag::loc(bound.then_some(meta.src_mac));
    let expected = tag::response(&line.row.auth_key, response, &loc);
    tag::verify(&expected, &response.tag).ok_or(Verdict::DropTag)
}

/// The first ACK was lost: the same bytes again, for the same tag from the same place only (LAP/1 1.4.4). The
/// freshness value is not compared, because a device repeats its RESPONSE for 60 s (LAP/1 1.5).
fn ack_again(line: &Line, now: Now, meta: &Meta, suite: Suite, response: &Response) -> Result<Ack, Verdict> {
    let is_live = line.session_id.is_some() && !line.lease_is_over(now.boot());
    let is_winner = tag::verify(&line.session.tag, &response.tag).is_some();
    if !is_live || !is_winner || !line.session.is_from(meta) {
        return Err(Verdict::DropReplay);
    }
    let (device, idx) = (response.header.device(), RowIndex(response.idx.get()));
    Ok(acknowledge(&line.session, suite, device, idx))
}

fn acknowledge(session: &Session, suite: Suite, device: DeviceId, idx: RowIndex) -> Ack {
    let [session_id, _] = crate::keys::halves(&session.tag);
    let mut ack = Ack {
        header: Header::new(message_type::ACK, suite, 0, device),
        idx: U32::new(idx.0),
        lease_s: U32::new(session.lease_s),
        session_id,
        tag: [0; 16],
        seen_ip: session.from.src_ip,
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

    /// Commits a RESPONSE of that tag as if it had verified: such tags cannot be made on purpose.
    pub(crate) fn commit_of_tag(tag: [u8; 16]) -> Verdict {
        let mut gateway = Gateway::new(GatewayConfig::new(GatewayId(1), &[]));
        let seen = CommitWord::new(RowIndex(4), 2, VALID | UNLIMITED);
        let device = DeviceId(1);
        gateway.lines.insert(device, Line::new(seen, Row::zero()));
        gateway.set_fresh(FreshValue::from_wire([1; 8]).unwrap(), Now::default());
        let verified = Verified {
            device,
            suite: Suite::SipHash128,
            seen,
            tag,
            session_key: SessionKey::from_bytes([0; 16]),
            bound: false,
            from: Meta::default(),
            _fresh: gateway.freshness.accept([1; 8]).unwrap(),
            _tag: tag::verify(&tag, &tag).unwrap(),
        };
        let outcome = gateway.commit(verified);
        let line = gateway.line(device).unwrap();
        assert_eq!(line.commit == seen, outcome.is_err(), "all or nothing");
        outcome.map_or_else(|reason| reason, |_| Verdict::ReplyAck)
    }

    #[test]
    fn only_the_first_eight_bytes_name_the_session() {
        let mut tag = [0; 16];
        tag[8] = 1;
        assert_eq!(commit_of_tag(tag), Verdict::DropSessionZero);
        tag[7] = 1;
        assert_eq!(commit_of_tag(tag), Verdict::ReplyAck);
    }
}
