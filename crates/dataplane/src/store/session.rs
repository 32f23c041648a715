//! Sessions, seen from user space: what one is bound to, since when it has been, and its end.

use std::sync::atomic::Ordering::{AcqRel, Acquire};

use linewarden_protocol::commit::CommitWord;
use linewarden_protocol::ids::{DeviceId, SessionId};

use super::{InForce, Store, StoreError, wire_word};
use crate::layout::{BOUND, VLAN_TAGGED};

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

    /// The device's session; `None` without one, of a revoked device, and while a packet thread changes it.
    #[must_use]
    pub fn session(&self, device: DeviceId) -> Option<SessionView> {
        let (line, place) = self.line(device).ok()?;
        let session = self.regions.sessions.get(place.slot as usize)?;
        let commit = line.commit.load(Acquire);
        let id = line.session_id.load(Acquire);
        let [first, second] = [&session.vlan[0], &session.vlan[1]].map(|vlan| vlan.load(Acquire));
        let [a, b, c] = [&session.mac[0], &session.mac[1], &session.mac[2]].map(|part| part.load(Acquire));
        let [[a, b], [c, d], [e, f]] = [a, b, c].map(u16::to_ne_bytes);
        let mut addr = [0; 16];
        for (bytes, word) in addr.as_chunks_mut::<8>().0.iter_mut().zip(&session.addr) {
            *bytes = word.load(Acquire).to_ne_bytes();
        }
        let vlan = |word: u16| (word & VLAN_TAGGED != 0).then_some(word & (VLAN_TAGGED - 1));
        let lease_until_s = line.lease_until_s.load(Acquire);
        let control = self.regions.control.first();
        let lease_s = control.map_or(0, |control| InForce::read(control).lease_again(lease_until_s));
        let proven_s = lease_until_s.saturating_sub(lease_s);
        let view = SessionView {
            id: SessionId::from_wire(id.to_ne_bytes())?,
            addr,
            lease_until_s,
            proven_before_ns: (u64::from(proven_s) + 1) * 1_000_000_000 + TICK_NS,
            port: u16::from_be(session.port.load(Acquire)),
            mac: [a, b, c, d, e, f],
            is_bound: first & BOUND != 0,
            vlans: [vlan(first), vlan(second)],
        };
        // All of the above is of one session only if no winner came in between.
        let word = CommitWord(commit);
        let is_whole = !word.is_busy()
            && !word.is_revoked()
            && line.commit.load(Acquire) == commit
            && line.session_id.load(Acquire) == id;
        is_whole.then_some(view)
    }
}
