//! The ground truth of a run, which no participant knows, and the invariants checked against it.
//!
//! The checker records every RESPONSE of a legitimate device, every word written to a gateway's memory, and every
//! acceptance, ACK and datagram. The checker never influences a run. It keeps the first violation, with the writes before
//! this violation.

use std::collections::{HashMap, HashSet, VecDeque};

use linewarden_protocol::commit::CommitWord;
use linewarden_protocol::frame::{Mac, Meta};
use linewarden_protocol::gateway::Row;
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex};
use linewarden_protocol::keys::SessionKey;
use linewarden_protocol::tag;
use linewarden_protocol::window::Window;
use linewarden_protocol::wire::{Ack, Response};

use super::enrollment::{Enrollment, SUITE};
use super::memory::{Line, Word, mac_word, split, vlans_word};

/// The maximum age of an accepted RESPONSE: its freshness value is current for at most 16 s and
/// previous for at most 16 s more (LAP/1 1.4.1).
pub const RESPONSE_AGE_MAX_MS: u64 = 32_000;
const TRACE_ACCESSES: usize = 60;

/// A RESPONSE made by a device.
#[derive(Clone, Debug)]
pub struct SentResponse {
    pub gateway: GatewayId,
    pub idx: RowIndex,
    pub bound_mac: Option<Mac>,
    pub session_key: SessionKey,
    pub at_ms: u64,
}

/// A RESPONSE accepted by a gateway.
#[derive(Clone, Debug)]
pub struct AcceptedResponse {
    pub device: DeviceId,
    pub gateway: GatewayId,
    pub idx: RowIndex,
    pub tag: [u8; 16],
    pub session_key: SessionKey,
    pub origin: Meta,
    pub bound: bool,
    pub generation: u32,
}

/// One write to shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    pub actor: u32,
    pub gateway: GatewayId,
    pub line: usize,
    pub word: Word,
    pub before: u64,
    pub after: u64,
}

#[derive(Default)]
pub struct Invariants {
    /// By line number, which is the same at all gateways.
    pub enrollments: Vec<Enrollment>,
    pub responses: HashMap<(DeviceId, [u8; 16]), SentResponse>,
    /// By session id on the wire.
    pub accepted: HashMap<[u8; 8], AcceptedResponse>,
    /// Spent rows in pool mode.
    pub spent: HashSet<(DeviceId, RowIndex)>,
    /// By session key: the gateway that opened the session.
    key_holders: HashMap<[u8; 16], GatewayId>,
    /// The tick when REVOKED was set.
    revoked: HashMap<(GatewayId, DeviceId), u64>,
    /// Session id and sequence number of each datagram that a device has sealed.
    sealed: HashSet<([u8; 8], u64)>,
    /// Session id and sequence number of each datagram that a gateway has let pass.
    opened: HashSet<([u8; 8], u64)>,
    rows: HashMap<(GatewayId, DeviceId, RowIndex), Row>,
    /// Number of writes so far, to order events.
    pub tick: u64,
    pub violation: Option<String>,
    trace: VecDeque<Access>,
}

impl Invariants {
    pub fn new(enrollments: &[Enrollment]) -> Self {
        Self {
            enrollments: enrollments.to_vec(),
            ..Self::default()
        }
    }

    /// Records the first violation.
    pub fn violate(&mut self, message: String) {
        if self.violation.is_none() {
            let writes: Vec<String> = self
                .trace
                .iter()
                .map(|access| {
                    let Access {
                        actor,
                        gateway,
                        line,
                        word,
                        before,
                        after,
                    } = access;
                    format!(
                        "  gateway {gateway} line {line} actor {actor}: {word:?} {before:#x} -> {after:#x}"
                    )
                })
                .collect();
            self.violation = Some(format!("{message}; the last writes were\n{}", writes.join("\n")));
        }
    }

    fn require(&mut self, holds: bool, message: impl FnOnce() -> String) {
        if !holds {
            self.violate(message());
        }
    }

    pub fn enrollment(&self, device: DeviceId) -> Option<Enrollment> {
        self.enrollments
            .iter()
            .find(|enrollment| enrollment.device == device)
            .copied()
    }

    pub fn row(&mut self, gateway: GatewayId, enrollment: &Enrollment, idx: RowIndex) -> Row {
        let entry = self.rows.entry((gateway, enrollment.device, idx));
        entry.or_insert_with(|| enrollment.row(gateway, idx)).clone()
    }

    /// Records a RESPONSE of a legitimate device.
    pub fn record_response(&mut self, enrollment: &Enrollment, response: &Response, at_ms: u64) {
        let (gateway, idx) = (GatewayId(response.gateway_id.get()), RowIndex(response.idx.get()));
        let row = self.row(gateway, enrollment, idx);
        let sent_response = SentResponse {
            gateway,
            idx,
            bound_mac: enrollment.bound_mac(),
            session_key: SessionKey::derive(&row.auth_key, SUITE, &response.tag),
            at_ms,
        };
        self.responses
            .entry((enrollment.device, response.tag))
            .or_insert(sent_response);
    }

    /// Records that a gateway accepted this RESPONSE and spends a row for it now.
    pub fn record_accepted(
        &mut self,
        accepted: (DeviceId, GatewayId, RowIndex),
        tag: [u8; 16],
        from: Meta,
        bound: bool,
        generation: u32,
        now_ms: u64,
    ) {
        let (device, gateway, idx) = accepted;
        let Some(sent_response) = self.responses.get(&(device, tag)).cloned() else {
            return self.violate(format!(
                "gateway {gateway} accepted a RESPONSE that device {device} never made"
            ));
        };
        let is_pool_mode = self
            .enrollment(device)
            .is_some_and(|enrollment| enrollment.mode == Mode::Pool);
        self.require(
            sent_response.gateway == gateway && sent_response.idx == idx,
            || {
                format!(
                    "a RESPONSE for row {} at gateway {} spent row {idx} at gateway {gateway}",
                    sent_response.idx, sent_response.gateway
                )
            },
        );
        self.require(!bound || sent_response.bound_mac == Some(from.src_mac), || {
            format!(
                "device {device} was accepted from MAC address {:x?}, which is not its own",
                from.src_mac
            )
        });
        self.require(
            now_ms.saturating_sub(sent_response.at_ms) <= RESPONSE_AGE_MAX_MS,
            || {
                format!(
                    "a RESPONSE of device {device} was accepted {} ms after it was made",
                    now_ms - sent_response.at_ms
                )
            },
        );
        self.require(!self.revoked.contains_key(&(gateway, device)), || {
            format!("revoked device {device} was accepted")
        });
        let is_unspent = !is_pool_mode || self.spent.insert((device, idx));
        self.require(is_unspent, || {
            format!("row {idx} of device {device} was accepted twice")
        });
        let holder = *self
            .key_holders
            .entry(*sent_response.session_key.as_bytes())
            .or_insert(gateway);
        self.require(holder == gateway, || {
            format!("gateways {holder} and {gateway} hold the same session key of device {device}")
        });
        let [id, _] = linewarden_protocol::keys::halves(&tag);
        let session = AcceptedResponse {
            device,
            gateway,
            idx,
            tag,
            session_key: sent_response.session_key,
            origin: from,
            bound,
            generation,
        };
        let previous = self.accepted.insert(id, session);
        self.require(previous.is_none(), || {
            format!("one RESPONSE of device {device} was accepted twice")
        });
    }

    /// Records that a gateway replied to a RESPONSE with this ACK. For a repeated ACK, `loaded_tick` is the tick at
    /// which the gateway loaded the commit word.
    pub fn record_ack(
        &mut self,
        gateway: GatewayId,
        response: &Response,
        ack: &Ack,
        from: &Meta,
        loaded_tick: Option<u64>,
    ) {
        let device = response.header.device();
        let Some(session) = self.accepted.get(&ack.session_id).cloned() else {
            return self.violate(format!(
                "gateway {gateway} acknowledged a session of device {device} that does not exist"
            ));
        };
        self.require(
            session.gateway == gateway && session.device == device && session.tag == response.tag,
            || {
                format!(
                    "gateway {gateway} acknowledged to device {device} another RESPONSE than the accepted one"
                )
            },
        );
        self.require(
            session.origin == *from && ack.seen_ip == session.origin.src_ip,
            || {
                format!(
                    "the ACK for device {device} was sent to another origin than that of its accepted RESPONSE"
                )
            },
        );
        let tag = tag::ack(&session.session_key, ack);
        self.require(tag == ack.tag && ack.idx.get() == session.idx.0, || {
            format!("the ACK for device {device} mixes two sessions")
        });
        let revoked_at = self.revoked.get(&(gateway, device)).copied();
        let is_closed =
            matches!((revoked_at, loaded_tick), (Some(revoked), Some(loaded)) if revoked < loaded);
        self.require(!is_closed, || {
            format!("revoked device {device} got its ACK again")
        });
    }

    /// Records that a legitimate device sealed a datagram under this session.
    pub fn record_sealed(&mut self, session_id: [u8; 8], seq: u64) {
        self.sealed.insert((session_id, seq));
    }

    /// Records that a gateway let a datagram pass and marked its sequence number in a window of this generation.
    pub fn record_opened(
        &mut self,
        gateway: GatewayId,
        device: DeviceId,
        session_id: [u8; 8],
        seq: u64,
        generation: u8,
        loaded_tick: u64,
    ) {
        let is_sealed = self.sealed.contains(&(session_id, seq));
        self.require(is_sealed, || {
            format!("DATA that device {device} never sealed was accepted")
        });
        let is_new = self.opened.insert((session_id, seq));
        self.require(is_new, || {
            format!("DATA {seq} of device {device} was accepted twice")
        });
        let session = self.accepted.get(&session_id);
        let is_same_session = session.is_some_and(|session| {
            session.device == device
                && session.gateway == gateway
                && Window::new(generation) == Window::new(session.generation as u8)
        });
        self.require(is_same_session, || {
            format!("DATA of device {device} was marked in the window of another session")
        });
        let is_closed = self
            .revoked
            .get(&(gateway, device))
            .is_some_and(|revoked| *revoked < loaded_tick);
        self.require(!is_closed, || {
            format!("DATA of revoked device {device} was accepted")
        });
    }

    /// Records that a word of a line was written, with the resulting line.
    pub fn record_write(&mut self, access: Access, line: &Line) {
        self.tick += 1;
        self.trace.push_back(access);
        if self.trace.len() > TRACE_ACCESSES {
            self.trace.pop_front();
        }
        let Some(enrollment) = self.enrollments.get(access.line).copied() else {
            return self.violate(format!("line {} belongs to no device", access.line));
        };
        if access.word == Word::Commit {
            self.check_commit(access, enrollment.device);
        }
        self.check_row(access.gateway, &enrollment, line);
        self.check_session(access.gateway, &enrollment, line);
    }

    fn check_commit(&mut self, access: Access, device: DeviceId) {
        let (before, after) = (CommitWord(access.before), CommitWord(access.after));
        self.require(after.idx() >= before.idx(), || {
            format!("idx of device {device} went down: {before:?} -> {after:?}")
        });
        let advanced = after.generation().wrapping_sub(before.generation()) & 0xff_ffff;
        self.require(advanced <= 1, || {
            format!("gen of device {device} jumped: {before:?} -> {after:?}")
        });
        self.require(after.is_revoked() || !before.is_revoked(), || {
            format!("REVOKED of device {device} was lost")
        });
        if after.is_revoked() {
            let tick = self.tick;
            self.revoked.entry((access.gateway, device)).or_insert(tick);
        }
    }

    /// Checks that a VALID line contains the complete, unspent row of its idx.
    fn check_row(&mut self, gateway: GatewayId, enrollment: &Enrollment, line: &Line) {
        let commit = CommitWord(line.get(Word::Commit));
        if !commit.is_valid() || commit.is_busy() {
            return;
        }
        let device = enrollment.device;
        let is_current = self.row(gateway, enrollment, commit.idx()) == line.row();
        self.require(is_current, || {
            format!("device {device}: the current row at {commit:?} is wrong")
        });
        let is_unspent = enrollment.mode == Mode::Key || !self.spent.contains(&(device, commit.idx()));
        self.require(is_unspent, || {
            format!("device {device}: spent row {} became current", commit.idx())
        });
    }

    /// Checks that while a session id is present, all other words belong to that session.
    fn check_session(&mut self, gateway: GatewayId, enrollment: &Enrollment, line: &Line) {
        let id = line.get(Word::SessionId);
        if id == 0 {
            return;
        }
        let device = enrollment.device;
        let Some(session) = self.accepted.get(&id.to_be_bytes()).cloned() else {
            return self.violate(format!("device {device} has a session that was never accepted"));
        };
        let from = &session.origin;
        let is_valid = session.gateway == gateway
            && session.device == device
            && line.pair(Word::Tag) == session.tag
            && line.pair(Word::SessionKey) == *session.session_key.as_bytes()
            && [line.get(Word::Addr(0)), line.get(Word::Addr(1))] == split(&from.src_ip)
            && line.get(Word::Port) == u64::from(from.src_port)
            && line.get(Word::Mac) == mac_word(from.src_mac)
            && line.get(Word::Vlans) == vlans_word(from.vlans)
            && line.get(Word::Ingress) == u64::from(from.ingress)
            && line.get(Word::Bound) == u64::from(session.bound)
            && Window(line.get(Word::Window)).generation() == session.generation as u8;
        self.require(is_valid, || {
            format!("the session of device {device} is inconsistent: its id is combined with data of another session")
        });
    }
}
