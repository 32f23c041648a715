//! REQUEST → CHALLENGE or NAK (LAP/1 1.4.2). Nothing of a device is written.

use zerocopy::byteorder::big_endian::U32;

use super::{Answer, Gateway};
use crate::ids::{DeviceId, RowIndex, Suite};
use crate::tag;
use crate::time::Now;
use crate::verdict::Verdict;
use crate::wire::{Challenge, Header, Nak, Request, message_type, nak_reason};

/// How many NAKs left in the running second.
#[derive(Debug, Default)]
pub(super) struct NakLimit {
    second: u64,
    sent: u32,
}

impl NakLimit {
    fn allow(&mut self, now: Now, per_s: u32) -> bool {
        let second = now.monotonic().second();
        if self.second != second {
            *self = Self { second, sent: 0 };
        }
        let allowed = self.sent < per_s;
        self.sent += u32::from(allowed);
        allowed
    }
}

impl Gateway {
    pub(super) fn request(&mut self, now: Now, request: &Request) -> Result<(Verdict, Answer), Verdict> {
        let fresh = self.freshness.current(now).ok_or(Verdict::DropStopped)?;
        let device = request.header.device();
        let line = self.lines.get(&device).ok_or(Verdict::DropUnknownDevice)?;
        let commit = line.commit;
        if commit.is_revoked() {
            return Err(Verdict::DropRevoked);
        }
        if commit.is_busy() {
            return Err(Verdict::DropBusy);
        }
        let suite = Suite::from_number(request.header.suite).ok_or(Verdict::DropSuite)?;
        if self.stopping {
            return self.nak(now, suite, device, commit.idx(), nak_reason::STOPPING);
        }
        if !commit.is_valid() {
            return self.nak(now, suite, device, commit.idx(), nak_reason::NO_ROWS);
        }
        let [nonce_echo, _] = crate::keys::halves(&request.nonce);
        let mut challenge = Challenge {
            header: Header::new(message_type::CHALLENGE, suite, 0, device),
            idx: U32::new(commit.idx().0),
            gateway_id: U32::new(self.config.gateway_id.0),
            challenge: line.row.challenge,
            fresh: fresh.to_wire(),
            nonce_echo,
            tag: [0; 16],
        };
        challenge.tag = tag::challenge(&line.row.auth_key, &challenge, &request.nonce);
        Ok((Verdict::ReplyChallenge, Answer::Challenge(challenge)))
    }

    fn nak(
        &mut self,
        now: Now,
        suite: Suite,
        device: DeviceId,
        idx: RowIndex,
        reason: u8,
    ) -> Result<(Verdict, Answer), Verdict> {
        if !self.nak_limit.allow(now, self.config.nak_per_s) {
            return Err(Verdict::DropNakLimit);
        }
        let nak = Nak {
            header: Header::new(message_type::NAK, suite, 0, device),
            idx: U32::new(idx.0),
            reason,
            reserved: [0; 43],
        };
        Ok((Verdict::ReplyNak, Answer::Nak(nak)))
    }
}
