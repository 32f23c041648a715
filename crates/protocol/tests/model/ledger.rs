//! What really happened, as nobody in the protocol can know it, and the invariants that are judged by it.
//!
//! The ledger hears of every RESPONSE that an honest device makes, of every word written to a gateway's memory, and
//! of every accept, ACK and datagram. It never influences a run. The first violation is kept, with the accesses that
//! led to it.

use std::collections::{HashMap, HashSet, VecDeque};

use linewarden_protocol::commit::CommitWord;
use linewarden_protocol::frame::{Mac, Meta};
use linewarden_protocol::gateway::Row;
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex};
use linewarden_protocol::keys::SessionKey;
use linewarden_protocol::tag;
use linewarden_protocol::window::Window;
use linewarden_protocol::wire::{Ack, Response};

use super::enrolment::{Enrolment, SUITE};
use super::memory::{Line, Word, mac_word, split, vlans_word};

/// A RESPONSE cannot be accepted later than this after it was made: its freshness value is current for at most 16 s
/// and previous for at most 16 s more (LAP/1 1.4.1).
pub const RESPONSE_AGE_MAX_MS: u64 = 32_000;
const TRACE_ACCESSES: usize = 60;

/// A RESPONSE as a device made it.
#[derive(Clone, Debug)]
pub struct Made {
    pub gateway: GatewayId,
    pub idx: RowIndex,
    pub bound_mac: Option<Mac>,
    pub session_key: SessionKey,
    pub at_ms: u64,
}

/// A RESPONSE as a gateway accepted it.
#[derive(Clone, Debug)]
pub struct Accepted {
    pub device: DeviceId,
    pub gateway: GatewayId,
    pub idx: RowIndex,
    pub tag: [u8; 16],
    pub session_key: SessionKey,
    pub from: Meta,
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
pub struct Ledger {
    /// By number of line, which is the same at all gateways.
    pub enrolments: Vec<Enrolment>,
    pub made: HashMap<(DeviceId, [u8; 16]), Made>,
    /// By session id on the wire.
    pub accepted: HashMap<[u8; 8], Accepted>,
    /// Pool mode.
    pub spent: HashSet<(DeviceId, RowIndex)>,
    key_at: HashMap<[u8; 16], GatewayId>,
    /// When REVOKED was set.
    revoked: HashMap<(GatewayId, DeviceId), u64>,
    sealed: HashSet<([u8; 8], u64)>,
    opened: HashSet<([u8; 8], u64)>,
    rows: HashMap<(GatewayId, DeviceId, RowIndex), Row>,
    /// Counts events, to tell before from after.
    pub tick: u64,
    pub violation: Option<String>,
    trace: VecDeque<Access>,
}

impl Ledger {
    pub fn new(enrolments: &[Enrolment]) -> Self {
        Self {
            enrolments: enrolments.to_vec(),
            ..Self::default()
        }
    }

    /// Keeps the first violation.
    pub fn violate(&mut self, what: String) {
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
            self.violation = Some(format!("{what}; the last writes were\n{}", writes.join("\n")));
        }
    }

    fn demand(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.violate(what());
        }
    }

    pub fn enrolment(&self, device: DeviceId) -> Option<Enrolment> {
        self.enrolments.iter().find(|one| one.device == device).copied()
    }

    pub fn row(&mut self, gateway: GatewayId, enrolment: &Enrolment, idx: RowIndex) -> Row {
        let entry = self.rows.entry((gateway, enrolment.device, idx));
        entry.or_insert_with(|| enrolment.row(gateway, idx)).clone()
    }

    /// An honest device made this RESPONSE.
    pub fn made(&mut self, enrolment: &Enrolment, response: &Response, at_ms: u64) {
        let (gateway, idx) = (GatewayId(response.gateway_id.get()), RowIndex(response.idx.get()));
        let row = self.row(gateway, enrolment, idx);
        let made = Made {
            gateway,
            idx,
            bound_mac: enrolment.bound_mac(),
            session_key: SessionKey::derive(&row.auth_key, SUITE, &response.tag),
            at_ms,
        };
        self.made.entry((enrolment.device, response.tag)).or_insert(made);
    }

    /// A gateway accepted this RESPONSE and spends a row for it, now.
    pub fn accepted(
        &mut self,
        accepted: (DeviceId, GatewayId, RowIndex),
        tag: [u8; 16],
        from: Meta,
        bound: bool,
        generation: u32,
        now_ms: u64,
    ) {
        let (device, gateway, idx) = accepted;
        let Some(made) = self.made.get(&(device, tag)).cloned() else {
            return self.violate(format!(
                "gateway {gateway} accepted a RESPONSE that device {device} never made"
            ));
        };
        let pool = self.enrolment(device).is_some_and(|one| one.mode == Mode::Pool);
        self.demand(made.gateway == gateway && made.idx == idx, || {
            format!(
                "a RESPONSE for row {} at gateway {} spent row {idx} at gateway {gateway}",
                made.idx, made.gateway
            )
        });
        self.demand(!bound || made.bound_mac == Some(from.src_mac), || {
            format!(
                "device {device} was accepted from MAC address {:x?}, which is not its own",
                from.src_mac
            )
        });
        self.demand(now_ms.saturating_sub(made.at_ms) <= RESPONSE_AGE_MAX_MS, || {
            format!(
                "a RESPONSE of device {device} was accepted {} ms after it was made",
                now_ms - made.at_ms
            )
        });
        self.demand(!self.revoked.contains_key(&(gateway, device)), || {
            format!("revoked device {device} was accepted")
        });
        let unspent = !pool || self.spent.insert((device, idx));
        self.demand(unspent, || {
            format!("row {idx} of device {device} was accepted twice")
        });
        let holder = *self.key_at.entry(*made.session_key.as_bytes()).or_insert(gateway);
        self.demand(holder == gateway, || {
            format!("gateways {holder} and {gateway} hold the same session key of device {device}")
        });
        let [id, _] = linewarden_protocol::keys::halves(&tag);
        let session = Accepted {
            device,
            gateway,
            idx,
            tag,
            session_key: made.session_key,
            from,
            bound,
            generation,
        };
        let again = self.accepted.insert(id, session);
        self.demand(again.is_none(), || {
            format!("one RESPONSE of device {device} was accepted twice")
        });
    }

    /// A gateway answered a RESPONSE with this ACK. `seen_at` is when it loaded the commit word, for a repeated ACK.
    pub fn acknowledged(
        &mut self,
        gateway: GatewayId,
        response: &Response,
        ack: &Ack,
        from: &Meta,
        seen_at: Option<u64>,
    ) {
        let device = response.header.device();
        let Some(session) = self.accepted.get(&ack.session_id).cloned() else {
            return self.violate(format!(
                "gateway {gateway} acknowledged a session of device {device} that is none"
            ));
        };
        self.demand(
            session.gateway == gateway && session.device == device && session.tag == response.tag,
            || {
                format!(
                    "gateway {gateway} acknowledged to device {device} another RESPONSE than the accepted one"
                )
            },
        );
        self.demand(
            session.from == *from && ack.seen_ip == session.from.src_ip,
            || {
                format!(
                    "the ACK for device {device} went elsewhere than to where its RESPONSE was accepted from"
                )
            },
        );
        let tag = tag::ack(&session.session_key, ack);
        self.demand(tag == ack.tag && ack.idx.get() == session.idx.0, || {
            format!("the ACK for device {device} is made of two sessions")
        });
        let revoked_at = self.revoked.get(&(gateway, device)).copied();
        let shut = matches!((revoked_at, seen_at), (Some(revoked), Some(seen)) if revoked < seen);
        self.demand(!shut, || format!("revoked device {device} got its ACK again"));
    }

    /// An honest device sealed a datagram under that session.
    pub fn sealed(&mut self, session_id: [u8; 8], seq: u64) {
        self.sealed.insert((session_id, seq));
    }

    /// A gateway let a datagram pass and marked it in a window of that generation.
    pub fn opened(
        &mut self,
        gateway: GatewayId,
        device: DeviceId,
        session_id: [u8; 8],
        seq: u64,
        generation: u8,
        seen_at: u64,
    ) {
        let sealed = self.sealed.contains(&(session_id, seq));
        self.demand(sealed, || {
            format!("DATA that device {device} never sealed was accepted")
        });
        let fresh = self.opened.insert((session_id, seq));
        self.demand(fresh, || {
            format!("DATA {seq} of device {device} was accepted twice")
        });
        let session = self.accepted.get(&session_id);
        let own = session.is_some_and(|session| {
            session.device == device
                && session.gateway == gateway
                && Window::new(generation) == Window::new(session.generation as u8)
        });
        self.demand(own, || {
            format!("DATA of device {device} was marked in the window of another session")
        });
        let shut = self
            .revoked
            .get(&(gateway, device))
            .is_some_and(|revoked| *revoked < seen_at);
        self.demand(!shut, || format!("DATA of revoked device {device} was accepted"));
    }

    /// A word of a line was written; the line is as it stands now.
    pub fn written(&mut self, access: Access, line: &Line) {
        self.tick += 1;
        self.trace.push_back(access);
        if self.trace.len() > TRACE_ACCESSES {
            self.trace.pop_front();
        }
        let Some(enrolment) = self.enrolments.get(access.line).copied() else {
            return self.violate(format!("line {} is no device's", access.line));
        };
        if access.word == Word::Commit {
            self.check_commit(access, enrolment.device);
        }
        self.check_row(access.gateway, &enrolment, line);
        self.check_session(access.gateway, &enrolment, line);
    }

    fn check_commit(&mut self, access: Access, device: DeviceId) {
        let (before, after) = (CommitWord(access.before), CommitWord(access.after));
        self.demand(after.idx() >= before.idx(), || {
            format!("idx of device {device} went down: {before:?} -> {after:?}")
        });
        let advanced = after.generation().wrapping_sub(before.generation()) & 0xff_ffff;
        self.demand(advanced <= 1, || {
            format!("gen of device {device} jumped: {before:?} -> {after:?}")
        });
        self.demand(after.is_revoked() || !before.is_revoked(), || {
            format!("REVOKED of device {device} was lost")
        });
        if after.is_revoked() {
            let tick = self.tick;
            self.revoked.entry((access.gateway, device)).or_insert(tick);
        }
    }

    /// What a VALID line holds is the whole, unspent row of its idx.
    fn check_row(&mut self, gateway: GatewayId, enrolment: &Enrolment, line: &Line) {
        let commit = CommitWord(line.get(Word::Commit));
        if !commit.is_valid() || commit.is_busy() {
            return;
        }
        let device = enrolment.device;
        let current = self.row(gateway, enrolment, commit.idx()) == line.row();
        self.demand(current, || {
            format!("device {device}: what is current at {commit:?} is not that row")
        });
        let unspent = enrolment.mode == Mode::Key || !self.spent.contains(&(device, commit.idx()));
        self.demand(unspent, || {
            format!("device {device}: spent row {} became current", commit.idx())
        });
    }

    /// As long as a session id stands there, everything else is that session's.
    fn check_session(&mut self, gateway: GatewayId, enrolment: &Enrolment, line: &Line) {
        let id = line.get(Word::SessionId);
        if id == 0 {
            return;
        }
        let device = enrolment.device;
        let Some(session) = self.accepted.get(&id.to_be_bytes()).cloned() else {
            return self.violate(format!("device {device} has a session that was never accepted"));
        };
        let from = &session.from;
        let whole = session.gateway == gateway
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
        self.demand(whole, || {
            format!("the session of device {device} is torn: its id stands beside what is another's")
        });
    }
}
