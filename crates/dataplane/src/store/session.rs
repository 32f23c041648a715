//! Sessions, seen from user space: what one is bound to, since when it has been, and its end.

use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use linewarden_protocol::attest::Round;
use linewarden_protocol::commit::CommitWord;
use linewarden_protocol::frame::ip_from_bytes;
use linewarden_protocol::ids::{DeviceId, SessionId};
use linewarden_protocol::keys::SessionKey;
use linewarden_protocol::wire::AttestRequest;

use super::{InForce, Store, StoreError, wire_word};
use crate::layout::{BOUND, Line, Session, VLAN_TAGGED};

/// Data planes read their clocks at least so often, ns (LAP/1 1.4.13).
const TICK_NS: u64 = 10_000_000;

/// A session's binding (LAP/1 1.4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// Which session.
    pub id: SessionId,
    /// Where the device is, IPv4 as ::ffff:a.b.c.d.
    pub addr: [u8; 16],
    /// End of the lease, boot-time seconds; it may be over.
    pub lease_until_s: u32,
    /// The device opened it, or renewed it, before this moment of the boot-time clock, ns: by more than a second only if
    /// leases were shortened while it lived.
    pub proven_before_ns: u64,
    /// UDP port of the device.
    pub port: u16,
    /// Its MAC address, where the data plane knows it; the session is tied to it if `is_bound`.
    pub mac: [u8; 6],
    /// Whether the session is BOUND.
    pub is_bound: bool,
    /// VLAN ids, outermost first.
    pub vlans: [Option<u16>; 2],
}

/// A session and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyedSession {
    /// What it is bound to.
    pub view: SessionView,
    /// Shared with the device.
    pub key: SessionKey,
    /// The serial number of the newest ticket request in it ([`Store::note_ticket`]); 0: none is known.
    pub ticket_serial: u64,
}

/// A session that was closed because the gateway's machine has its address now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosedSession {
    /// Whose.
    pub device: DeviceId,
    /// Which.
    pub session: SessionId,
    /// Where.
    pub address: IpAddr,
}

/// Serial numbers as notes keep them; a larger one is kept as this one.
const NOTED_SERIAL_MAX: u32 = (1 << 24) - 1;

impl Store {
    /// Closes a session, if it is still the device's: gate, DATA and repeated ACKs read the id on each packet (LAP/1
    /// 1.4.11). The line and its rows stay. Says whether it was closed by this.
    ///
    /// # Errors
    /// `NotInstalled`.
    pub fn close_session(&self, device: DeviceId, session: SessionId) -> Result<bool, StoreError> {
        let (line, _) = self.line(device)?;
        // A winner sets the id to 0 before it writes its own: never a newer session's.
        let closed = line
            .session_id
            .compare_exchange(wire_word(session.to_wire()), 0, AcqRel, Acquire);
        Ok(closed.is_ok())
    }

    /// Closes every session at one of these addresses.
    pub(super) fn close_sessions_at(&self, is_there: impl Fn(IpAddr) -> bool) -> Vec<ClosedSession> {
        let is_at = |address: [u8; 16]| is_there(ip_from_bytes(address));
        let mut closed = Vec::new();
        for line in self.regions.lines.iter() {
            let session = self.regions.sessions.get(line.slot.load(Acquire) as usize);
            // Most sessions are elsewhere: only of the others the whole is read.
            if line.session_id.load(Acquire) == 0 || !session.is_some_and(|held| is_at(bytes_of(&held.addr)))
            {
                continue;
            }
            let device = DeviceId(u64::from_be_bytes(line.device_id.load(Acquire).to_ne_bytes()));
            let Some(view) = self.session(device).filter(|view| is_at(view.addr)) else {
                continue;
            };
            if self.close_session(device, view.id) == Ok(true) {
                closed.push(ClosedSession {
                    device,
                    session: view.id,
                    address: ip_from_bytes(view.addr),
                });
            }
        }
        closed
    }

    /// The device's session; `None` without one, of a revoked device, and while a packet thread changes it.
    #[must_use]
    pub fn session(&self, device: DeviceId) -> Option<SessionView> {
        self.of_one_session(device, |id, line, session| self.view(id, line, session))
    }

    /// As [`Store::session`], with its key.
    #[must_use]
    pub fn keyed_session(&self, device: DeviceId) -> Option<KeyedSession> {
        self.of_one_session(device, |id, line, session| KeyedSession {
            view: self.view(id, line, session),
            key: SessionKey::from_bytes(bytes_of(&session.session_key)),
            ticket_serial: self.ticket_serial(line),
        })
    }

    fn ticket_serial(&self, line: &Line) -> u64 {
        let note = self.regions.notes.get(line.slot.load(Acquire) as usize);
        let word = note.map_or(0, |note| note.ticket.load(Acquire));
        match word >> 24 == generation(line) {
            true => u64::from(word & NOTED_SERIAL_MAX),
            false => 0,
        }
    }

    /// Keeps the serial number of a ticket request that was accepted in that session, if it is still the device's, beside the
    /// session: for a later process, to which an older request is old as well (LAP/1 1.7.2). A session that begins does not inherit
    /// the number of an earlier one, unless exactly a multiple of 256 sessions without a request lies between the two.
    pub fn note_ticket(&self, device: DeviceId, session: SessionId, serial: u64) {
        let serial = u32::try_from(serial).unwrap_or(u32::MAX).min(NOTED_SERIAL_MAX);
        let noted = self.of_one_session(device, |id, line, _| {
            (id == session).then(|| (line.slot.load(Acquire), generation(line) << 24 | serial))
        });
        if let Some((slot, word)) = noted.flatten()
            && let Some(note) = self.regions.notes.get(slot as usize)
        {
            note.ticket.store(word, Release);
        }
    }

    fn view(&self, id: SessionId, line: &Line, session: &Session) -> SessionView {
        let [first, second] = [&session.vlan[0], &session.vlan[1]].map(|vlan| vlan.load(Acquire));
        let [a, b, c] = [&session.mac[0], &session.mac[1], &session.mac[2]].map(|part| part.load(Acquire));
        let [[a, b], [c, d], [e, f]] = [a, b, c].map(u16::to_ne_bytes);
        let vlan = |word: u16| (word & VLAN_TAGGED != 0).then_some(word & (VLAN_TAGGED - 1));
        let lease_until_s = line.lease_until_s.load(Acquire);
        let control = self.regions.control.first();
        let lease_s = control.map_or(0, |control| InForce::read(control).lease_again(lease_until_s));
        let proven_s = lease_until_s.saturating_sub(lease_s);
        SessionView {
            id,
            addr: bytes_of(&session.addr),
            lease_until_s,
            proven_before_ns: (u64::from(proven_s) + 1) * 1_000_000_000 + TICK_NS,
            port: u16::from_be(session.port.load(Acquire)),
            mac: [a, b, c, d, e, f],
            is_bound: first & BOUND != 0,
            vlans: [vlan(first), vlan(second)],
        }
    }

    /// What the device is asked in that round, under the key of its session, and where that session is. `None`: no session
    /// that lives at `now_s` of the boot-time clock, a revoked device, or a packet thread that changes it.
    #[must_use]
    pub fn session_request(
        &self,
        device: DeviceId,
        round: &Round,
        now_s: u32,
    ) -> Option<(IpAddr, AttestRequest)> {
        let (key, addr, lease_until_s) = self.of_one_session(device, |_, line, session| {
            let key = SessionKey::from_bytes(bytes_of(&session.session_key));
            let lease_until_s = line.lease_until_s.load(Acquire);
            (key, bytes_of(&session.addr), lease_until_s)
        })?;
        (lease_until_s > now_s).then(|| (ip_from_bytes(addr), round.request(device, &key)))
    }

    /// What `read` takes from a device's session, if all of it is of one.
    fn of_one_session<T>(
        &self,
        device: DeviceId,
        read: impl FnOnce(SessionId, &Line, &Session) -> T,
    ) -> Option<T> {
        let (line, place) = self.line(device).ok()?;
        let session = self.regions.sessions.get(place.slot as usize)?;
        let commit = line.commit.load(Acquire);
        let id = line.session_id.load(Acquire);
        let taken = read(SessionId::from_wire(id.to_ne_bytes())?, line, session);
        // Only if no winner came in between.
        let word = CommitWord(commit);
        let is_whole = !word.is_busy()
            && !word.is_revoked()
            && line.commit.load(Acquire) == commit
            && line.session_id.load(Acquire) == id;
        is_whole.then_some(taken)
    }
}

fn generation(line: &Line) -> u32 {
    u32::from(CommitWord(line.commit.load(Acquire)).window_generation())
}

fn bytes_of(words: &[AtomicU64; 2]) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *bytes = word.load(Acquire).to_ne_bytes();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Release;

    use linewarden_protocol::commit;
    use linewarden_protocol::ids::{Mode, RowIndex};
    use linewarden_protocol::keys::AuthKey;

    use super::super::{Geometry, Regions, Row};
    use super::*;

    const DEVICE: DeviceId = DeviceId(7);

    /// A store in which the device has a session.
    fn store() -> Store {
        let geometry = Geometry {
            slots: 4,
            ring: 1,
            hash_seed: [1, 2],
        };
        let regions = Arc::new(Regions::anonymous(&geometry).unwrap());
        let mut store = Store::new(regions, geometry);
        let row = Row {
            challenge: [0; 8],
            auth_key: AuthKey::from_bytes([3; 16]),
        };
        store
            .install(DEVICE, Mode::Key, RowIndex(0), &[row], None)
            .unwrap();
        store.line(DEVICE).unwrap().0.session_id.store(9, Release);
        store
    }

    /// What a packet thread may do between the first and the last look at a session.
    type Meanwhile = fn(&Line);

    #[test]
    fn what_a_winner_came_into_is_of_no_session() {
        let word = |line: &Line, change: fn(CommitWord) -> CommitWord| {
            let before = CommitWord(line.commit.load(Acquire));
            line.commit.store(change(before).0, Release);
        };
        assert_eq!(
            store().of_one_session(DEVICE, |id, _, _| id.to_wire()),
            Some(9u64.to_ne_bytes())
        );
        let between: [Meanwhile; 3] = [
            |line| line.commit.store(line.commit.load(Acquire) + (1 << 8), Release),
            |line| line.session_id.store(0, Release),
            |line| line.session_id.store(10, Release),
        ];
        for meanwhile in between {
            let taken = store().of_one_session(DEVICE, |_, line, _| meanwhile(line));
            assert_eq!(taken, None);
        }
        let before: [fn(CommitWord) -> CommitWord; 2] =
            [|word| CommitWord(word.0 | commit::BUSY), CommitWord::revoked];
        for change in before {
            let store = store();
            word(store.line(DEVICE).unwrap().0, change);
            assert_eq!(store.of_one_session(DEVICE, |_, _, _| ()), None);
        }
    }
}
