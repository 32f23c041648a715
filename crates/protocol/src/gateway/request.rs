//! REQUEST → CHALLENGE or NAK (LAP/1 1.4.2). The state of the device is only read.

use zerocopy::byteorder::big_endian::U32;

use super::{Gateway, ReplyMessage, Row};
use crate::frame::{Meta, ip_from_bytes};
use crate::ids::{DeviceId, GatewayId, RowIndex, Suite};
use crate::tag;
use crate::time::Now;
use crate::verdict::Verdict;
use crate::wire::{Challenge, Header, Nak, Request, message_type, nak_reason};

/// Counts events in the current second.
#[derive(Debug, Default)]
pub(super) struct RateLimit {
    second: u64,
    count: u32,
}

impl RateLimit {
    fn allow(&mut self, now: Now, per_s: u32) -> bool {
        let second = now.monotonic().second();
        if self.second != second {
            *self = Self { second, count: 0 };
        }
        let allowed = self.count < per_s;
        self.count += u32::from(allowed);
        allowed
    }
}

/// The CHALLENGE for a REQUEST with this row. A controller uses this function too, for a gateway that has no row of the
/// device (LAP/1 1.4.6).
#[must_use]
pub fn challenge(
    request: &Request,
    suite: Suite,
    idx: RowIndex,
    gateway: GatewayId,
    row: &Row,
    fresh: [u8; 8],
) -> Challenge {
    let [nonce_echo, _] = crate::keys::halves(&request.nonce);
    let mut challenge = Challenge {
        header: Header::new(message_type::CHALLENGE, suite, 0, request.header.device()),
        idx: U32::new(idx.0),
        gateway_id: U32::new(gateway.0),
        challenge: row.challenge,
        fresh,
        nonce_echo,
        tag: [0; 16],
    };
    challenge.tag = tag::challenge(&row.auth_key, &challenge, &request.nonce);
    challenge
}

impl Gateway {
    pub(super) fn handle_request(
        &mut self,
        now: Now,
        meta: &Meta,
        request: &Request,
    ) -> Result<(Verdict, ReplyMessage), Verdict> {
        let fresh = self.freshness.current(now).ok_or(Verdict::DropStopped)?;
        self.check_source(meta)?;
        let device = request.header.device();
        let Some(line) = self.lines.get(&device) else {
            return Err(self.unknown_device(now));
        };
        let commit = line.commit;
        if commit.is_revoked() {
            return Err(Verdict::DropRevoked);
        }
        if commit.is_busy() {
            return Err(Verdict::DropBusy);
        }
        let suite = Suite::from_number(request.header.suite).ok_or(Verdict::DropSuite)?;
        if self.is_stopping {
            return self.nak(now, suite, device, commit.idx(), nak_reason::STOPPING);
        }
        if !commit.is_valid() {
            return self.nak(now, suite, device, commit.idx(), nak_reason::NO_ROWS);
        }
        let challenge = challenge(
            request,
            suite,
            commit.idx(),
            self.config.gateway_id,
            &line.row,
            fresh.to_wire(),
        );
        Ok((Verdict::ReplyChallenge, ReplyMessage::Challenge(challenge)))
    }

    /// Only messages from a possible device address get a reply, a query to the controller or a session.
    pub(super) fn check_source(&self, meta: &Meta) -> Result<(), Verdict> {
        let source = ip_from_bytes(meta.src_ip);
        match &self.config.sources {
            Some(sources) if !sources.admits(source) => Err(Verdict::DropSourceNotDevice),
            _ => Ok(()),
        }
    }

    /// The verdict on a message of an unknown device: the slow path, or a drop.
    pub(super) fn unknown_device(&mut self, now: Now) -> Verdict {
        let per_s = self.config.miss_per_s;
        match per_s {
            0 => Verdict::DropUnknownDevice,
            _ if self.miss_limit.allow(now, per_s) => Verdict::SlowPath,
            _ => Verdict::DropShed,
        }
    }

    fn nak(
        &mut self,
        now: Now,
        suite: Suite,
        device: DeviceId,
        idx: RowIndex,
        reason: u8,
    ) -> Result<(Verdict, ReplyMessage), Verdict> {
        if !self.nak_limit.allow(now, self.config.nak_per_s) {
            return Err(Verdict::DropNakLimit);
        }
        let nak = Nak {
            header: Header::new(message_type::NAK, suite, 0, device),
            idx: U32::new(idx.0),
            reason,
            reserved: [0; 43],
        };
        Ok((Verdict::ReplyNak, ReplyMessage::Nak(nak)))
    }
}
