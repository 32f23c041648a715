//! Sessions as user space sees them: their binding, their start, and their end.

use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use linewarden_protocol::attest::Round;
use linewarden_protocol::commit::CommitWord;
use linewarden_protocol::frame::ip_from_bytes;
use linewarden_protocol::ids::{DeviceId, SessionId};
use linewarden_protocol::keys::SessionKey;
use linewarden_protocol::wire::AttestRequest;

use super::{ActiveSettings, Store, StoreError, wire_word};
use crate::layout::{BOUND, Line, Session, VLAN_TAGGED};

/// Longest interval between two reads of a data plane's clock, ns (LAP/1 1.4.13).
const TICK_NS: u64 = 10_000_000;

/// A session's binding (LAP/1 1.4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// The session.
    pub id: SessionId,
    /// Address of the device, IPv4 as ::ffff:a.b.c.d.
    pub addr: [u8; 16],
    /// End of the session, boot-time seconds. The end may have passed.
    pub session_until_s: u32,
    /// Boot-time before which the device opened or renewed the session, ns. The value is at most 1.01 s too late, unless
    /// the session lifetime was changed during the session.
    pub proven_before_ns: u64,
    /// UDP port of the device.
    pub port: u16,
    /// MAC address of the device, if the data plane knows it. The session is bound to this address if `is_bound`.
    pub mac: [u8; 6],
    /// Whether the session is BOUND.
    pub is_bound: bool,
    /// VLAN ids, outermost first.
    pub vlans: [Option<u16>; 2],
}

/// A session and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyedSession {
    /// The binding of the session.
    pub view: SessionView,
    /// The key shared with the device.
    pub key: SessionKey,
    /// Serial number of the newest ticket request in the session ([`Store::record_ticket_serial`]); 0: none.
    pub ticket_serial: u64,
}

/// A session that was closed because its address now belongs to the gateway's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosedSession {
    /// The device.
    pub device: DeviceId,
    /// The session.
    pub session: SessionId,
    /// Address of the session.
    pub address: IpAddr,
}

/// Largest serial number that is stored; larger ones are stored as this number.
const STORED_SERIAL_MAX: u32 = (1 << 24) - 1;

impl Store {
    /// Closes `session` if it is still the device's current session: for each packet, the gate, the handling of DATA and
    /// the repetition of ACKs check the session id (LAP/1 1.4.11). The line and its rows stay. Returns whether this call
    /// closed the session.
    ///
    /// # Errors
    /// `NotInstalled`.
    pub fn close_session(&self, device: DeviceId, session: SessionId) -> Result<bool, StoreError> {
        let (line, _) = self.line(device)?;
        // A winner sets the id to 0 before it writes the id of its session, so this never closes a newer session.
        let closed = line
            .session_id
            .compare_exchange(wire_word(session.to_wire()), 0, AcqRel, Acquire);
        Ok(closed.is_ok())
    }

    /// Closes every session at an address for which `must_close` is true.
    pub(super) fn close_sessions_at(&self, must_close: impl Fn(IpAddr) -> bool) -> Vec<ClosedSession> {
        let is_at = |address: [u8; 16]| must_close(ip_from_bytes(address));
        let mut closed = Vec::new();
        for line in self.regions.lines.iter() {
            let session = self.regions.sessions.get(line.slot.load(Acquire) as usize);
            // Most addresses do not match; the whole session is read only for a matching address.
            if line.session_id.load(Acquire) == 0
                || !session.is_some_and(|session| is_at(bytes_of(&session.addr)))
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

    /// The device's session. `None` without a session, for a revoked device, and while a packet thread changes
    /// the session.
    #[must_use]
    pub fn session(&self, device: DeviceId) -> Option<SessionView> {
        self.read_consistently(device, |id, line, session| self.view(id, line, session))
    }

    /// As [`Store::session`], with the session key.
    #[must_use]
    pub fn keyed_session(&self, device: DeviceId) -> Option<KeyedSession> {
        self.read_consistently(device, |id, line, session| KeyedSession {
            view: self.view(id, line, session),
            key: SessionKey::from_bytes(bytes_of(&session.session_key)),
            ticket_serial: self.ticket_serial(line),
        })
    }

    fn ticket_serial(&self, line: &Line) -> u64 {
        let note = self.regions.notes.get(line.slot.load(Acquire) as usize);
        let word = note.map_or(0, |note| note.ticket.load(Acquire));
        match word >> 24 == window_generation(line) {
            true => u64::from(word & STORED_SERIAL_MAX),
            false => 0,
        }
    }

    /// Stores the serial number of an accepted ticket request with its session, if the session is still the device's
    /// current one. A process that adopts the memory then rejects older requests too (LAP/1 1.7.2). A new session
    /// does not inherit the number, with one exception: the generations of both sessions differ by a multiple of 256, and
    /// no session between them had a ticket request.
    pub fn record_ticket_serial(&self, device: DeviceId, session: SessionId, serial: u64) {
        let serial = u32::try_from(serial).unwrap_or(u32::MAX).min(STORED_SERIAL_MAX);
        let note_update = self.read_consistently(device, |id, line, _| {
            (id == session).then(|| (line.slot.load(Acquire), window_generation(line) << 24 | serial))
        });
        if let Some((slot, word)) = note_update.flatten()
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
        let until_s = line.session_until_s.load(Acquire);
        let control = self.regions.control.first();
        let lifetime_s = control.map_or(0, |control| {
            ActiveSettings::read(control).repeated_lifetime_s(until_s)
        });
        let proven_s = until_s.saturating_sub(lifetime_s);
        SessionView {
            id,
            addr: bytes_of(&session.addr),
            session_until_s: until_s,
            proven_before_ns: (u64::from(proven_s) + 1) * 1_000_000_000 + TICK_NS,
            port: u16::from_be(session.port.load(Acquire)),
            mac: [a, b, c, d, e, f],
            is_bound: first & BOUND != 0,
            vlans: [vlan(first), vlan(second)],
        }
    }

    /// The ATTEST_REQUEST of that round for the device, under its session key, and the address of the session.
    /// `None`: no session is live at `now_s` of the boot-time clock, the device is revoked, or a packet thread is
    /// changing the session.
    #[must_use]
    pub fn session_request(
        &self,
        device: DeviceId,
        round: &Round,
        now_s: u32,
    ) -> Option<(IpAddr, AttestRequest)> {
        let (key, addr, until_s) = self.read_consistently(device, |_, line, session| {
            let key = SessionKey::from_bytes(bytes_of(&session.session_key));
            let until_s = line.session_until_s.load(Acquire);
            (key, bytes_of(&session.addr), until_s)
        })?;
        (until_s > now_s).then(|| (ip_from_bytes(addr), round.request(device, &key)))
    }

    /// The result of `read` on a device's session, if all values belong to one session.
    fn read_consistently<T>(
        &self,
        device: DeviceId,
        read: impl FnOnce(SessionId, &Line, &Session) -> T,
    ) -> Option<T> {
        let (line, place) = self.line(device).ok()?;
        let session = self.regions.sessions.get(place.slot as usize)?;
        let commit = line.commit.load(Acquire);
        let id = line.session_id.load(Acquire);
        let value = read(SessionId::from_wire(id.to_ne_bytes())?, line, session);
        // The value is valid only if no winner changed the session during the read.
        let word = CommitWord(commit);
        let is_consistent = !word.is_busy()
            && !word.is_revoked()
            && line.commit.load(Acquire) == commit
            && line.session_id.load(Acquire) == id;
        is_consistent.then_some(value)
    }
}

fn window_generation(line: &Line) -> u32 {
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

    /// A store with one device that has a session.
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

    /// A change that a packet thread may make while a session is read.
    type ConcurrentChange = fn(&Line);

    #[test]
    fn a_read_that_a_winner_interrupts_returns_no_session() {
        let change_word = |line: &Line, change: fn(CommitWord) -> CommitWord| {
            let before = CommitWord(line.commit.load(Acquire));
            line.commit.store(change(before).0, Release);
        };
        assert_eq!(
            store().read_consistently(DEVICE, |id, _, _| id.to_wire()),
            Some(9u64.to_ne_bytes())
        );
        let changes_during_read: [ConcurrentChange; 3] = [
            |line| line.commit.store(line.commit.load(Acquire) + (1 << 8), Release),
            |line| line.session_id.store(0, Release),
            |line| line.session_id.store(10, Release),
        ];
        for interruption in changes_during_read {
            let result = store().read_consistently(DEVICE, |_, line, _| interruption(line));
            assert_eq!(result, None);
        }
        let changes_before_read: [fn(CommitWord) -> CommitWord; 2] =
            [|word| CommitWord(word.0 | commit::BUSY), CommitWord::with_revoked];
        for change in changes_before_read {
            let store = store();
            change_word(store.line(DEVICE).unwrap().0, change);
            assert_eq!(store.read_consistently(DEVICE, |_, _, _| ()), None);
        }
    }
}
