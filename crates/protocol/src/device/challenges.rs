//! Which CHALLENGEs of one handshake are judged, with which row keys, and for which the PUF is read next (LAP/1 1.5).
//!
//! A CHALLENGE is verified with a key that only a reading of the PUF gives, and anybody who has seen the REQUEST can send
//! one that looks right. So each reading counts for all CHALLENGEs of its row: the key is kept for the handshake. What
//! needs another reading waits: the CHALLENGE whose row is closest to the one that its gateway offers next, and some drawn
//! from all others, without regard to which came first. They take turns. Of those drawn the first is whose row came again
//! after the most copies of the REQUEST: the gateway's always does.

use crate::ids::{GatewayId, Mode, RowIndex};
use crate::keys::{AuthKey, RowKey};
use crate::prf::f;
use crate::tag::{self, TagVerified};
use crate::wire;

use super::handshake::query;
use super::types::{DeviceConfig, PufQuery};

/// Row keys that are kept for one handshake; of more the oldest is dropped.
const KEYS_MAX: usize = 8;
/// CHALLENGEs that wait beside the expected one.
const WAITING_MAX: usize = 8;
/// A row so close to the next one of a gateway is expected. Gateways that lost their memory leave out blocks of 4.
const EXPECTED_ROWS: u64 = 8;

/// Row keys of one handshake, the newest first.
#[derive(Debug, Default)]
struct Keys {
    kept: [Option<(PufQuery, RowKey)>; KEYS_MAX],
    /// Key mode: a reading gave a key that was here already, so every set of helper data has had its turn.
    is_complete: bool,
}

impl Keys {
    fn of(&self, mode: Mode, query: &PufQuery) -> impl Iterator<Item = &RowKey> {
        let kept = self.kept.iter().flatten();
        kept.filter(move |(of, _)| mode == Mode::Key || of == query)
            .map(|(_, key)| key)
    }

    fn keep(&mut self, query: PufQuery, key: RowKey) {
        if self.kept.iter().flatten().any(|(_, kept)| *kept == key) {
            self.is_complete = true;
            return;
        }
        self.kept.rotate_right(1);
        self.kept[0] = Some((query, key));
    }
}

/// What the keys of a handshake say of a CHALLENGE.
pub(super) enum Judgement {
    Verified(Proven),
    Rejected,
    /// It takes a reading of the PUF to tell.
    Open,
}

/// A CHALLENGE that verified, and its keys.
#[derive(Debug)]
pub(super) struct Proven {
    pub(super) challenge: wire::Challenge,
    pub(super) row_key: RowKey,
    pub(super) auth_key: AuthKey,
    _verified: TagVerified,
}

/// A CHALLENGE that waits for a reading.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    challenge: wire::Challenge,
    /// After how many copies of the REQUEST one of its row came.
    copies: u8,
    /// The copy after which one came last.
    seen_after: u8,
}

/// CHALLENGEs of one handshake, and the row keys that it has.
#[derive(Debug, Default)]
pub(super) struct Challenges {
    keys: Keys,
    /// By its distance from the next row of its gateway.
    expected: Option<(u64, wire::Challenge)>,
    waiting: [Option<Waiting>; WAITING_MAX],
    /// Since the newest copy of the REQUEST.
    arrivals: u64,
    /// The number of that copy.
    request: u8,
    draws: u64,
    /// Whose turn it is.
    is_drawn_next: bool,
    /// One that verified while the PUF was read for another.
    proven: Option<Proven>,
    /// Something came that did not verify, or for which the PUF could not be read.
    pub(super) had_failure: bool,
}

impl Challenges {
    pub(super) fn judge(
        &self,
        config: &DeviceConfig,
        challenge: &wire::Challenge,
        nonce: &[u8; 16],
    ) -> Judgement {
        let mode = config.mode;
        let mut is_open = true;
        for row_key in self.keys.of(mode, &query(mode, challenge)) {
            is_open = mode == Mode::Key && !self.keys.is_complete;
            let auth_key = AuthKey::derive(
                row_key,
                config.suite,
                mode,
                RowIndex(challenge.idx.get()),
                GatewayId(challenge.gateway_id.get()),
            );
            let expected = tag::challenge(&auth_key, challenge, nonce);
            if let Some(verified) = tag::verify(&expected, &challenge.tag) {
                return Judgement::Verified(Proven {
                    challenge: *challenge,
                    row_key: row_key.clone(),
                    auth_key,
                    _verified: verified,
                });
            }
        }
        match is_open {
            true => Judgement::Open,
            false => Judgement::Rejected,
        }
    }

    /// Keeps one that verified until the reading under way is over.
    pub(super) fn keep_proven(&mut self, proven: Proven) {
        self.proven.get_or_insert(proven);
    }

    /// Takes the one that is kept.
    pub(super) fn take_proven(&mut self) -> Option<Proven> {
        self.proven.take()
    }

    /// Puts one in line that needs a reading, and says whether that changed anything. `ahead` is its distance from the next row
    /// of its gateway, if that is known; `request` numbers the newest copy of the REQUEST; one `is_prompt` that came soon after it.
    pub(super) fn wait(
        &mut self,
        challenge: &wire::Challenge,
        ahead: Option<u64>,
        (request, is_prompt): (u8, bool),
        nonce: &[u8; 16],
    ) -> bool {
        let mut other = *challenge;
        if let Some(ahead) = ahead.filter(|ahead| *ahead < EXPECTED_ROWS) {
            match &mut self.expected {
                Some((_, waiting)) if *waiting == other => return false,
                Some((distance, waiting)) if ahead < *distance => {
                    *distance = ahead;
                    other = core::mem::replace(waiting, other);
                }
                Some(_) => {}
                place @ None => {
                    *place = Some((ahead, other));
                    return true;
                }
            }
        }
        let is_same_row = |waiting: &&mut Waiting| {
            let known = &waiting.challenge;
            (known.idx, known.challenge) == (other.idx, other.challenge)
        };
        if let Some(known) = self.waiting.iter_mut().flatten().find(is_same_row) {
            let is_again = known.seen_after != request;
            known.copies += u8::from(is_again);
            known.seen_after = request;
            return is_again;
        }
        if self.request != request {
            (self.request, self.arrivals) = (request, 0);
        }
        self.arrivals = self.arrivals.saturating_add(1);
        let free = self.waiting.iter().position(Option::is_none);
        // Each of those that came so soon has the same chance to be kept.
        let drawn = free.is_none() && is_prompt;
        let drawn = drawn.then(|| self.draw(nonce) % self.arrivals);
        let place = free.or(drawn.and_then(|place| usize::try_from(place).ok()));
        let place = place.and_then(|place| self.waiting.get_mut(place));
        if let Some(place) = place.filter(|place| place.is_none_or(|waiting| waiting.copies == 1)) {
            *place = Some(Waiting {
                challenge: other,
                copies: 1,
                seen_after: request,
            });
        }
        true
    }

    /// Nobody else can foretell it once the PUF was read: the newest row key is a secret.
    fn draw(&mut self, nonce: &[u8; 16]) -> u64 {
        self.draws = self.draws.wrapping_add(1);
        let newest = self.keys.kept.first().and_then(Option::as_ref);
        let key = newest.map_or(nonce, |(_, key)| key.as_bytes());
        let [low, _] = crate::keys::halves(&f(key, &[[0xFF; 8], self.draws.to_be_bytes()]));
        u64::from_be_bytes(low)
    }

    /// Whether one waits.
    pub(super) fn is_waiting(&self) -> bool {
        self.expected.is_some() || self.waiting.iter().any(Option::is_some)
    }

    /// The one to read the PUF for next.
    pub(super) fn take_next(&mut self, nonce: &[u8; 16]) -> Option<wire::Challenge> {
        let is_drawn = self.expected.is_none() || self.is_drawn_next;
        self.is_drawn_next = !is_drawn;
        if !is_drawn {
            return self.expected.take().map(|(_, challenge)| challenge);
        }
        // Of those that came equally often, any.
        let first = self.draw(nonce) as usize % WAITING_MAX;
        let places = (0..WAITING_MAX).map(|place| (first + place) % WAITING_MAX);
        let copies = |place: &usize| {
            self.waiting
                .get(*place)
                .copied()
                .flatten()
                .map(|waiting| waiting.copies)
        };
        let place = places.max_by_key(copies)?;
        let drawn = self.waiting.get_mut(place).and_then(Option::take);
        let drawn = drawn.map(|waiting| waiting.challenge);
        drawn.or_else(|| self.expected.take().map(|(_, challenge)| challenge))
    }

    /// Takes what a reading gave for a CHALLENGE; one that verifies now, of all that are here.
    pub(super) fn read(
        &mut self,
        config: &DeviceConfig,
        candidate: wire::Challenge,
        row_key: Option<RowKey>,
        nonce: &[u8; 16],
    ) -> Option<Proven> {
        self.had_failure |= row_key.is_none();
        let is_read = row_key.is_some();
        if let Some(row_key) = row_key {
            self.keys.keep(query(config.mode, &candidate), row_key);
        }
        if let Some(proven) = self.take_proven() {
            return Some(proven);
        }
        if is_read {
            match self.judge(config, &candidate, nonce) {
                Judgement::Verified(proven) => return Some(proven),
                Judgement::Rejected => self.had_failure = true,
                // Key mode: other helper data may fit.
                Judgement::Open => {
                    self.wait(&candidate, None, (self.request, true), nonce);
                }
            }
            return self.judge_waiting(config, nonce);
        }
        None
    }

    /// Judges what waits by the keys that are here now.
    fn judge_waiting(&mut self, config: &DeviceConfig, nonce: &[u8; 16]) -> Option<Proven> {
        if let Some((_, challenge)) = &self.expected {
            match self.judge(config, challenge, nonce) {
                Judgement::Verified(proven) => return Some(proven),
                Judgement::Rejected => self.expected = None,
                Judgement::Open => {}
            }
        }
        for place in 0..WAITING_MAX {
            let Some(waiting) = self.waiting.get(place).copied().flatten() else {
                continue;
            };
            match self.judge(config, &waiting.challenge, nonce) {
                Judgement::Verified(proven) => return Some(proven),
                Judgement::Rejected => {
                    if let Some(place) = self.waiting.get_mut(place) {
                        *place = None;
                    }
                }
                Judgement::Open => {}
            }
        }
        None
    }
}
