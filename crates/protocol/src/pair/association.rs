//! One device's course with one peer: keys that come and go, handshakes, silence (LAP/1 1.7.5). No I/O, no clock, no heap.
//!
//! ```text
//!   key from the controller ──► initiator: HELLO until WELCOME ──► session ──► nothing opened for 10 s: HELLO again
//!                               responder: WELCOME, offered ──► DATA opens under it ──► session
//! ```
//! Nobody can disturb it by repeating what was sent: a HELLO that comes again gets the WELCOME that it got before, what it
//! offers is offered beside the others, and only a DATA of the initiator's makes an offer a session.

use core::net::SocketAddr;

use crate::ids::DeviceId;

use super::{HANDSHAKE_BYTES, HEAD_BYTES, Pairing, Role, Session, Side, TAG_BYTES, is_hello};

/// First and longest interval between two copies of a HELLO, or of an empty DATA that is to be answered, ms.
const REPEAT_MS: (u64, u64) = (100, 2_000);
/// Between two answers to one HELLO, ms.
const WELCOME_MS: u64 = 50;
/// An initiator that has opened nothing for so long asks for an answer, ms.
const QUIET_MS: u64 = 4_000;
/// An initiator that has opened nothing for so long, though it asked for an answer, begins anew, ms.
const SILENT_MS: u64 = 10_000;
/// HELLOs of one key whose answers are remembered: an initiator makes one, and another after a restart or a silence.
const OFFERS_MAX: usize = 8;

/// Where a message came from or goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// The peer's address and peer port.
    pub address: SocketAddr,
    /// Inside DATA (1.7.2).
    pub sealed: bool,
}

/// Gives 16 random bytes, if the operating system does.
pub type Random<'a> = &'a mut dyn FnMut() -> Option<[u8; 16]>;

/// The key that is good for the moment.
#[derive(Debug)]
struct Held {
    side: Side,
    until_ms: u64,
    address: Option<SocketAddr>,
}

/// When something is repeated.
#[derive(Clone, Copy, Debug)]
struct Repeat {
    due_ms: u64,
    interval_ms: u64,
}

impl Repeat {
    fn from(due_ms: u64) -> Self {
        Self {
            due_ms,
            interval_ms: REPEAT_MS.0,
        }
    }

    /// Whether it is due; the next time it is later.
    fn is_due(&mut self, now_ms: u64) -> bool {
        let is_due = self.due_ms <= now_ms;
        if is_due {
            self.due_ms = now_ms.saturating_add(self.interval_ms);
            self.interval_ms = (2 * self.interval_ms).min(REPEAT_MS.1);
        }
        is_due
    }
}

/// A HELLO that is out.
#[derive(Debug)]
struct Hello {
    nonce: [u8; 16],
    repeat: Repeat,
    /// Where its last copy went.
    path: Option<Path>,
}

/// A session that a HELLO was answered with.
#[derive(Debug)]
struct Offer {
    hello: [u8; HANDSHAKE_BYTES],
    welcome: [u8; HANDSHAKE_BYTES],
    session: Session,
    made_ms: u64,
    /// Which way the WELCOME went last, and from when on it goes there again.
    again: Path,
    again_at_ms: u64,
}

/// A session of which this side knows that the peer has it too.
#[derive(Debug)]
struct Live {
    id: [u8; 16],
    session: Session,
    until_ms: u64,
    path: Path,
    /// A responder's: the HELLO that it began with.
    hello: Option<[u8; HANDSHAKE_BYTES]>,
    /// When something was opened last, or the session began.
    opened_ms: u64,
    /// An initiator's: when it asks for an answer.
    probe: Option<Repeat>,
}

/// One side's course with one peer. Times are those of one clock that never goes back, ms.
#[derive(Debug)]
pub struct Association {
    own: DeviceId,
    peer: DeviceId,
    held: Option<Held>,
    hello: Option<Hello>,
    offers: [Option<Offer>; OFFERS_MAX],
    live: Option<Live>,
    /// A WELCOME that is to be sent.
    welcome: Option<(Path, [u8; HANDSHAKE_BYTES])>,
    /// The initiator has asked for an answer.
    echo: bool,
}

impl Association {
    /// Without a key.
    #[must_use]
    pub fn new(own: DeviceId, peer: DeviceId) -> Self {
        Self {
            own,
            peer,
            held: None,
            hello: None,
            offers: Default::default(),
            live: None,
            welcome: None,
            echo: false,
        }
    }

    /// Takes what the controller has told: the key, how long it is good, and where the peer is, if that is known. A session
    /// under the key before stays to its end.
    pub fn hold(&mut self, pairing: Pairing, role: Role, until_ms: u64, address: Option<SocketAddr>) {
        match &mut self.held {
            Some(held) if held.side.pairing.id == pairing.id => held.address = address,
            _ => {
                self.forget_handshakes();
                let side = Side {
                    pairing,
                    role,
                    own: self.own,
                    peer: self.peer,
                };
                self.held = Some(Held {
                    side,
                    until_ms,
                    address,
                });
            }
        }
    }

    /// The controller has told that there is no such pair: all keys go at once.
    pub fn close(&mut self) {
        *self = Self::new(self.own, self.peer);
    }

    /// Whether there is a session.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.live.is_some()
    }

    /// Whether a message that says that it is of this pair may be.
    #[must_use]
    pub fn knows(&self, id: &[u8; 16]) -> bool {
        let held = self.held.as_ref().map(|held| &held.side.pairing.id);
        let live = self.live.as_ref().map(|live| &live.id);
        held == Some(id) || live == Some(id)
    }

    /// Lets go of keys whose time is over.
    pub fn expire(&mut self, now_ms: u64) {
        if self.held.take_if(|held| held.until_ms <= now_ms).is_some() {
            self.forget_handshakes();
        }
        self.live.take_if(|live| live.until_ms <= now_ms);
    }

    fn forget_handshakes(&mut self) {
        (self.hello, self.welcome, self.offers) = (None, None, Default::default());
    }

    /// When [`Association::poll`] or [`Association::expire`] has something to do though nothing has come.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        let held_ms = self.held.as_ref().map(|held| held.until_ms);
        let live_ms = self.live.as_ref().map(|live| live.until_ms);
        let probe_ms = self
            .live
            .as_ref()
            .and_then(|live| live.probe.map(|probe| probe.due_ms));
        let greet_ms = match (&self.hello, self.greets_from_ms()) {
            (Some(hello), Some(_)) => Some(hello.repeat.due_ms),
            (_, from_ms) => from_ms,
        };
        [held_ms, live_ms, probe_ms, greet_ms].into_iter().flatten().min()
    }

    /// From when on an initiator that knows where its peer is sends HELLO.
    fn greets_from_ms(&self) -> Option<u64> {
        let held = self.held.as_ref()?;
        held.address.filter(|_| held.side.role == Role::Initiator)?;
        Some(match &self.live {
            Some(live) if live.id == held.side.pairing.id => live.opened_ms.saturating_add(SILENT_MS),
            _ => 0,
        })
    }

    /// The next message that is to be sent, in `out`: its way and its length. To be called until there is none.
    pub fn poll(&mut self, now_ms: u64, random: Random<'_>, out: &mut [u8]) -> Option<(Path, usize)> {
        self.expire(now_ms);
        let (path, message) = match self.welcome.take() {
            Some(welcome) => welcome,
            None => match self.greet(now_ms, random) {
                Some(hello) => hello,
                None => return self.answer_or_ask(now_ms, out),
            },
        };
        out.get_mut(..HANDSHAKE_BYTES)?.copy_from_slice(&message);
        Some((path, HANDSHAKE_BYTES))
    }

    fn greet(&mut self, now_ms: u64, random: Random<'_>) -> Option<(Path, [u8; HANDSHAKE_BYTES])> {
        let is_time = self.greets_from_ms().is_some_and(|from_ms| from_ms <= now_ms);
        let held = self.held.as_ref().filter(|_| is_time)?;
        if self.hello.is_none() {
            self.hello = Some(Hello {
                nonce: random()?,
                repeat: Repeat::from(now_ms),
                path: None,
            });
        }
        let hello = self.hello.as_mut()?;
        if !hello.repeat.is_due(now_ms) {
            return None;
        }
        let path = Path {
            address: held.address?,
            // Both ways in turn: the wrong one is dropped at a gate.
            sealed: hello.path.is_some_and(|last| !last.sealed),
        };
        hello.path = Some(path);
        Some((path, held.side.hello(&hello.nonce)))
    }

    /// An empty DATA: a responder's that was asked for, or an initiator's that asks for one.
    fn answer_or_ask(&mut self, now_ms: u64, out: &mut [u8]) -> Option<(Path, usize)> {
        let live = self.live.as_mut()?;
        let asks = live.probe.as_mut().is_some_and(|probe| probe.is_due(now_ms));
        if !asks && !core::mem::take(&mut self.echo) {
            return None;
        }
        let length = live.session.seal(b"", out).ok()?;
        Some((live.path, length))
    }

    /// Seals a payload for the peer: the way and the length of the message in `out`. `None`: there is no session, or no room.
    pub fn seal(&mut self, payload: &[u8], now_ms: u64, out: &mut [u8]) -> Option<(Path, usize)> {
        self.expire(now_ms);
        let live = self.live.as_mut()?;
        let length = live.session.seal(payload, out).ok()?;
        Some((live.path, length))
    }

    /// Takes a message; its payload, perhaps empty, if it is a DATA of the peer's, which is opened in its place.
    pub fn take<'m>(
        &mut self,
        message: &'m mut [u8],
        path: Path,
        now_ms: u64,
        random: Random<'_>,
    ) -> Option<&'m [u8]> {
        self.expire(now_ms);
        if is_hello(message) {
            self.take_hello(message, path, now_ms, random);
            return None;
        }
        if self.take_welcome(message, path, now_ms) || !self.open(message, path, now_ms) {
            return None;
        }
        let payload = message.get(HEAD_BYTES..message.len().checked_sub(TAG_BYTES)?)?;
        // Whoever asks with an empty one is answered; an answer is not, or there were no end.
        let live = self.live.as_ref()?;
        self.echo |= payload.is_empty() && live.hello.is_some();
        Some(payload)
    }

    fn take_hello(&mut self, message: &[u8], path: Path, now_ms: u64, random: Random<'_>) {
        let (Some(held), Ok(hello)) = (&self.held, <[u8; HANDSHAKE_BYTES]>::try_from(message)) else {
            return;
        };
        // The initiator has gone on from there.
        if self.live.as_ref().is_some_and(|live| live.hello == Some(hello)) {
            return;
        }
        let known = self
            .offers
            .iter_mut()
            .flatten()
            .find(|offer| offer.hello == hello);
        if let Some(offer) = known {
            // By the way it came: a copy that somebody else sends must not keep the initiator's own from its answer.
            if offer.again != path || offer.again_at_ms <= now_ms {
                (offer.again, offer.again_at_ms) = (path, now_ms.saturating_add(WELCOME_MS));
                self.welcome = Some((path, offer.welcome));
            }
            return;
        }
        let Some(Ok((welcome, session))) = random().map(|nonce| held.side.welcome(&hello, &nonce)) else {
            return;
        };
        let oldest = self
            .offers
            .iter_mut()
            .min_by_key(|offer| offer.as_ref().map(|offer| offer.made_ms));
        if let Some(place) = oldest {
            *place = Some(Offer {
                hello,
                welcome,
                session,
                made_ms: now_ms,
                again: path,
                again_at_ms: now_ms.saturating_add(WELCOME_MS),
            });
        }
        self.welcome = Some((path, welcome));
    }

    fn take_welcome(&mut self, message: &[u8], path: Path, now_ms: u64) -> bool {
        let (Some(held), Some(hello)) = (&self.held, &self.hello) else {
            return false;
        };
        let Ok(session) = held.side.welcomed(&hello.nonce, message) else {
            return false;
        };
        self.live = Some(Live {
            id: held.side.pairing.id,
            session,
            until_ms: held.until_ms,
            // To where the HELLO went: whoever repeats a WELCOME from elsewhere moves nobody.
            path: Path {
                address: hello.path.map_or(path.address, |sent| sent.address),
                sealed: path.sealed,
            },
            hello: None,
            opened_ms: now_ms,
            // At once: with it the responder knows that the initiator lives.
            probe: Some(Repeat::from(now_ms)),
        });
        self.hello = None;
        true
    }

    /// Opens a DATA under the session, or under one that was offered, which takes its place. What fails is left as it was:
    /// the AEAD verifies before it decrypts.
    fn open(&mut self, message: &mut [u8], path: Path, now_ms: u64) -> bool {
        if let Some(live) = &mut self.live
            && let Ok(is_newest) = live.session.open_in_place(message)
        {
            // The peer may have moved. A copy that comes late does not move it back.
            if is_newest {
                live.path = path;
            }
            live.opened_ms = now_ms;
            if let Some(probe) = &mut live.probe {
                *probe = Repeat::from(now_ms.saturating_add(QUIET_MS));
            }
            // It lives: there is nothing to begin anew, unless under a new key.
            if self
                .held
                .as_ref()
                .is_some_and(|held| held.side.pairing.id == live.id)
            {
                self.hello = None;
            }
            return true;
        }
        let Some(held) = &self.held else {
            return false;
        };
        let opened = self.offers.iter_mut().find_map(|place| {
            let offer = place.as_mut()?;
            offer.session.open_in_place(message).ok()?;
            place.take()
        });
        let Some(taken) = opened else {
            return false;
        };
        self.live = Some(Live {
            id: held.side.pairing.id,
            session: taken.session,
            until_ms: held.until_ms,
            path,
            hello: Some(taken.hello),
            opened_ms: now_ms,
            probe: None,
        });
        // The others were for an initiator that is no more.
        self.offers = Default::default();
        true
    }
}

#[cfg(test)]
mod tests;
