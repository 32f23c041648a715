//! The association of a device with one peer: keys, handshakes, timeouts (LAP/1 1.7.5). No I/O, no clock, no heap.
//!
//! ```text
//!   key from the controller ──► initiator: HELLO until WELCOME ──► session ──► no DATA opened for 10 s: HELLO again
//!                               responder: WELCOME, offered ──► DATA opens under it ──► session
//! ```
//! Replays cannot disturb an association: a repeated HELLO gets the same WELCOME as before, the session that it offers
//! is kept besides the other offered sessions, and only a DATA of the initiator makes an offered session active.

use core::net::SocketAddr;

use crate::ids::DeviceId;

use super::{HANDSHAKE_BYTES, HEADER_BYTES, Pairing, Role, Session, Side, TAG_BYTES, is_hello};

/// First and longest interval between two copies of a HELLO, or of an empty DATA that requires a reply, ms.
const RETRY_INTERVAL_MS: (u64, u64) = (100, 2_000);
/// Minimum interval between two replies to one HELLO, ms.
const WELCOME_INTERVAL_MS: u64 = 50;
/// An initiator that has opened no message for this time requests a reply, ms.
const PROBE_AFTER_MS: u64 = 4_000;
/// An initiator that has opened no message for this time despite its requests starts a new handshake, ms.
const PEER_TIMEOUT_MS: u64 = 10_000;
/// Maximum number of HELLOs per key whose replies are kept: an initiator sends one HELLO, and another HELLO after a
/// restart or a timeout.
const OFFERS_MAX: usize = 8;

/// Source or destination of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// The address and the UDP port of the peer.
    pub address: SocketAddr,
    /// Whether the message is inside DATA (LAP/1 1.7.2).
    pub sealed: bool,
}

/// Returns 16 random bytes, if the operating system provides them.
pub type Random<'a> = &'a mut dyn FnMut() -> Option<[u8; 16]>;

/// The current key.
#[derive(Debug)]
struct CurrentKey {
    side: Side,
    /// When the key expires.
    until_ms: u64,
    /// The address of the peer, if known.
    address: Option<SocketAddr>,
}

/// The timer of a repeated message.
#[derive(Clone, Copy, Debug)]
struct RetryTimer {
    due_ms: u64,
    interval_ms: u64,
}

impl RetryTimer {
    fn starting_at(due_ms: u64) -> Self {
        Self {
            due_ms,
            interval_ms: RETRY_INTERVAL_MS.0,
        }
    }

    /// Whether the message is due; if so, schedules the next message.
    fn is_due(&mut self, now_ms: u64) -> bool {
        let is_due = self.due_ms <= now_ms;
        if is_due {
            self.due_ms = now_ms.saturating_add(self.interval_ms);
            self.interval_ms = (2 * self.interval_ms).min(RETRY_INTERVAL_MS.1);
        }
        is_due
    }
}

/// A HELLO that awaits its WELCOME.
#[derive(Debug)]
struct PendingHello {
    nonce: [u8; 16],
    retry: RetryTimer,
    /// Destination of the last copy of the HELLO.
    path: Option<Path>,
}

/// A session offered in reply to a HELLO.
#[derive(Debug)]
struct OfferedSession {
    hello: [u8; HANDSHAKE_BYTES],
    welcome: [u8; HANDSHAKE_BYTES],
    session: Session,
    created_ms: u64,
    /// Path of the last WELCOME, and the time from which it may be sent again on this path.
    retry_path: Path,
    retry_at_ms: u64,
}

/// A session that the peer is known to have, too.
#[derive(Debug)]
struct ActiveSession {
    id: [u8; 16],
    session: Session,
    until_ms: u64,
    path: Path,
    /// For a responder: the HELLO that opened the session.
    hello: Option<[u8; HANDSHAKE_BYTES]>,
    /// Time of the last opened message, or the start of the session.
    opened_ms: u64,
    /// For an initiator: the timer for requesting a reply.
    probe: Option<RetryTimer>,
}

/// One side of an association with one peer. Times are milliseconds of one clock that never goes back.
#[derive(Debug)]
pub struct Association {
    own: DeviceId,
    peer: DeviceId,
    current_key: Option<CurrentKey>,
    hello: Option<PendingHello>,
    offers: [Option<OfferedSession>; OFFERS_MAX],
    active: Option<ActiveSession>,
    /// A WELCOME to send.
    welcome: Option<(Path, [u8; HANDSHAKE_BYTES])>,
    /// Whether the initiator has requested a reply.
    is_reply_due: bool,
}

impl Association {
    /// An association without a key.
    #[must_use]
    pub fn new(own: DeviceId, peer: DeviceId) -> Self {
        Self {
            own,
            peer,
            current_key: None,
            hello: None,
            offers: Default::default(),
            active: None,
            welcome: None,
            is_reply_due: false,
        }
    }

    /// Sets the key from the controller, the time when the key expires, and the peer's address, if known. If the id of
    /// the pair is unchanged, only the address is set. A session under the previous key stays until it expires.
    pub fn set_key(&mut self, pairing: Pairing, role: Role, until_ms: u64, address: Option<SocketAddr>) {
        match &mut self.current_key {
            Some(current) if current.side.pairing.id == pairing.id => current.address = address,
            _ => {
                self.clear_handshakes();
                let side = Side {
                    pairing,
                    role,
                    own: self.own,
                    peer: self.peer,
                };
                self.current_key = Some(CurrentKey {
                    side,
                    until_ms,
                    address,
                });
            }
        }
    }

    /// Removes all keys at once, because the controller has no such pair.
    pub fn close(&mut self) {
        *self = Self::new(self.own, self.peer);
    }

    /// Whether there is an active session.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.active.is_some()
    }

    /// Whether a message with this pair id may belong to this association.
    #[must_use]
    pub fn accepts_pair_id(&self, id: &[u8; 16]) -> bool {
        let current = self.current_key.as_ref().map(|current| &current.side.pairing.id);
        let active = self.active.as_ref().map(|active| &active.id);
        current == Some(id) || active == Some(id)
    }

    /// Removes expired keys.
    pub fn expire(&mut self, now_ms: u64) {
        if self
            .current_key
            .take_if(|current| current.until_ms <= now_ms)
            .is_some()
        {
            self.clear_handshakes();
        }
        self.active.take_if(|active| active.until_ms <= now_ms);
    }

    fn clear_handshakes(&mut self) {
        (self.hello, self.welcome, self.offers) = (None, None, Default::default());
    }

    /// When [`Association::poll`] or [`Association::expire`] must be called if no message arrives.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        let key_ms = self.current_key.as_ref().map(|current| current.until_ms);
        let session_ms = self.active.as_ref().map(|active| active.until_ms);
        let probe_ms = self
            .active
            .as_ref()
            .and_then(|active| active.probe.map(|probe| probe.due_ms));
        let hello_ms = match (&self.hello, self.hello_from_ms()) {
            (Some(hello), Some(_)) => Some(hello.retry.due_ms),
            (_, from_ms) => from_ms,
        };
        [key_ms, session_ms, probe_ms, hello_ms]
            .into_iter()
            .flatten()
            .min()
    }

    /// The time from which an initiator that knows its peer's address sends HELLO.
    fn hello_from_ms(&self) -> Option<u64> {
        let current = self.current_key.as_ref()?;
        current.address.filter(|_| current.side.role == Role::Initiator)?;
        Some(match &self.active {
            Some(active) if active.id == current.side.pairing.id => {
                active.opened_ms.saturating_add(PEER_TIMEOUT_MS)
            }
            _ => 0,
        })
    }

    /// Writes the next message to `out` and returns its path and length. Call this function until the result is `None`.
    pub fn poll(&mut self, now_ms: u64, random: Random<'_>, out: &mut [u8]) -> Option<(Path, usize)> {
        self.expire(now_ms);
        let (path, message) = match self.welcome.take() {
            Some(welcome) => welcome,
            None => match self.send_hello(now_ms, random) {
                Some(hello) => hello,
                None => return self.send_empty_data(now_ms, out),
            },
        };
        out.get_mut(..HANDSHAKE_BYTES)?.copy_from_slice(&message);
        Some((path, HANDSHAKE_BYTES))
    }

    fn send_hello(&mut self, now_ms: u64, random: Random<'_>) -> Option<(Path, [u8; HANDSHAKE_BYTES])> {
        let is_time = self.hello_from_ms().is_some_and(|from_ms| from_ms <= now_ms);
        let current = self.current_key.as_ref().filter(|_| is_time)?;
        if self.hello.is_none() {
            self.hello = Some(PendingHello {
                nonce: random()?,
                retry: RetryTimer::starting_at(now_ms),
                path: None,
            });
        }
        let hello = self.hello.as_mut()?;
        if !hello.retry.is_due(now_ms) {
            return None;
        }
        let path = Path {
            address: current.address?,
            // Copies are sent alternately in plain UDP and inside DATA, because a gate drops messages on the wrong path.
            sealed: hello.path.is_some_and(|last| !last.sealed),
        };
        hello.path = Some(path);
        Some((path, current.side.hello(&hello.nonce)))
    }

    /// An empty DATA: a responder's reply, or an initiator's request for a reply.
    fn send_empty_data(&mut self, now_ms: u64, out: &mut [u8]) -> Option<(Path, usize)> {
        let active = self.active.as_mut()?;
        let is_probe_due = active.probe.as_mut().is_some_and(|probe| probe.is_due(now_ms));
        if !is_probe_due && !core::mem::take(&mut self.is_reply_due) {
            return None;
        }
        let length = active.session.seal(b"", out).ok()?;
        Some((active.path, length))
    }

    /// Seals a payload for the peer; returns the path and the length of the message in `out`. `None` without a
    /// session or room.
    pub fn seal(&mut self, payload: &[u8], now_ms: u64, out: &mut [u8]) -> Option<(Path, usize)> {
        self.expire(now_ms);
        let active = self.active.as_mut()?;
        let length = active.session.seal(payload, out).ok()?;
        Some((active.path, length))
    }

    /// Handles a message. If the message is a DATA of the peer, decrypts it in place and returns its payload, which may
    /// be empty.
    pub fn receive<'m>(
        &mut self,
        message: &'m mut [u8],
        path: Path,
        now_ms: u64,
        random: Random<'_>,
    ) -> Option<&'m [u8]> {
        self.expire(now_ms);
        if is_hello(message) {
            self.receive_hello(message, path, now_ms, random);
            return None;
        }
        if self.receive_welcome(message, path, now_ms) || !self.open(message, path, now_ms) {
            return None;
        }
        let payload = message.get(HEADER_BYTES..message.len().checked_sub(TAG_BYTES)?)?;
        // A responder replies to an empty DATA, which requests a reply. An initiator does not, because the exchange would
        // never end.
        let active = self.active.as_ref()?;
        self.is_reply_due |= payload.is_empty() && active.hello.is_some();
        Some(payload)
    }

    fn receive_hello(&mut self, message: &[u8], path: Path, now_ms: u64, random: Random<'_>) {
        let (Some(current), Ok(hello)) = (&self.current_key, <[u8; HANDSHAKE_BYTES]>::try_from(message))
        else {
            return;
        };
        // The session of this handshake is active, so the HELLO is a late copy.
        if self
            .active
            .as_ref()
            .is_some_and(|active| active.hello == Some(hello))
        {
            return;
        }
        let known_offer = self
            .offers
            .iter_mut()
            .flatten()
            .find(|offer| offer.hello == hello);
        if let Some(offer) = known_offer {
            // The rate is limited per path: a replayed copy must not suppress the reply to the initiator's own copy.
            if offer.retry_path != path || offer.retry_at_ms <= now_ms {
                (offer.retry_path, offer.retry_at_ms) = (path, now_ms.saturating_add(WELCOME_INTERVAL_MS));
                self.welcome = Some((path, offer.welcome));
            }
            return;
        }
        let Some(Ok((welcome, session))) = random().map(|nonce| current.side.welcome(&hello, &nonce)) else {
            return;
        };
        let oldest = self
            .offers
            .iter_mut()
            .min_by_key(|offer| offer.as_ref().map(|offer| offer.created_ms));
        if let Some(entry) = oldest {
            *entry = Some(OfferedSession {
                hello,
                welcome,
                session,
                created_ms: now_ms,
                retry_path: path,
                retry_at_ms: now_ms.saturating_add(WELCOME_INTERVAL_MS),
            });
        }
        self.welcome = Some((path, welcome));
    }

    /// Returns whether the message is the awaited WELCOME, which opens a session.
    fn receive_welcome(&mut self, message: &[u8], path: Path, now_ms: u64) -> bool {
        let (Some(current), Some(hello)) = (&self.current_key, &self.hello) else {
            return false;
        };
        let Ok(session) = current.side.accept_welcome(&hello.nonce, message) else {
            return false;
        };
        self.active = Some(ActiveSession {
            id: current.side.pairing.id,
            session,
            until_ms: current.until_ms,
            // The address is the address of the HELLO: a WELCOME that is replayed from another address does not move
            // the peer.
            path: Path {
                address: hello.path.map_or(path.address, |sent| sent.address),
                sealed: path.sealed,
            },
            hello: None,
            opened_ms: now_ms,
            // The first request is sent at once: it shows the responder that the initiator is active.
            probe: Some(RetryTimer::starting_at(now_ms)),
        });
        self.hello = None;
        true
    }

    /// Opens a DATA under the active session, or under an offered session, which then becomes the active session.
    /// Returns whether the message was opened. Otherwise, the message is unchanged: the AEAD verifies before it decrypts.
    fn open(&mut self, message: &mut [u8], path: Path, now_ms: u64) -> bool {
        if let Some(active) = &mut self.active
            && let Ok(is_newest) = active.session.open_in_place(message)
        {
            // The peer may have another path now. A late copy does not restore the previous path.
            if is_newest {
                active.path = path;
            }
            active.opened_ms = now_ms;
            if let Some(probe) = &mut active.probe {
                *probe = RetryTimer::starting_at(now_ms.saturating_add(PROBE_AFTER_MS));
            }
            // The peer is active, so a handshake is necessary only under a new key.
            if self
                .current_key
                .as_ref()
                .is_some_and(|current| current.side.pairing.id == active.id)
            {
                self.hello = None;
            }
            return true;
        }
        let Some(current) = &self.current_key else {
            return false;
        };
        let opened_offer = self.offers.iter_mut().find_map(|entry| {
            let offer = entry.as_mut()?;
            offer.session.open_in_place(message).ok()?;
            entry.take()
        });
        let Some(offer) = opened_offer else {
            return false;
        };
        self.active = Some(ActiveSession {
            id: current.side.pairing.id,
            session: offer.session,
            until_ms: current.until_ms,
            path,
            hello: Some(offer.hello),
            opened_ms: now_ms,
            probe: None,
        });
        // The other offers were for an earlier state of the initiator.
        self.offers = Default::default();
        true
    }
}

#[cfg(test)]
mod tests;
