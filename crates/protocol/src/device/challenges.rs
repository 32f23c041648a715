//! Selects which CHALLENGEs of one handshake are checked, which row keys are kept for these checks, and for which
//! CHALLENGE the PUF is read next (LAP/1 1.5).
//!
//! A CHALLENGE verifies with a key that requires a PUF reading, and any sender that has seen the REQUEST can send a
//! plausible CHALLENGE. So each reading serves all CHALLENGEs of its row: the key is kept for the handshake. Of the
//! CHALLENGEs that need another reading, the queue keeps the one whose row is closest to the next expected row of its
//! gateway, and a random sample of all others, independent of their order. The readings alternate between the CHALLENGE
//! with this row and the sample. In the sample, the CHALLENGE whose row was repeated after the most copies of the
//! REQUEST comes first, because the genuine gateway always repeats its CHALLENGE.

use crate::ids::{GatewayId, Mode, RowIndex};
use crate::keys::{AuthKey, RowKey};
use crate::prf::f;
use crate::tag::{self, TagVerified};
use crate::wire;

use super::types::{DeviceConfig, PufQuery};

/// Row keys kept for one handshake; beyond this limit the oldest key is dropped.
const KEYS_MAX: usize = 8;
/// Maximum number of queued CHALLENGEs besides the expected CHALLENGE.
const WAITING_MAX: usize = 8;
/// A row within this distance of the next row of a gateway is expected. Gateways that lost their memory skip blocks
/// of 4 rows.
const EXPECTED_ROWS: u64 = 8;

/// Row keys of one handshake, newest first.
#[derive(Debug, Default)]
struct RowKeyCache {
    entries: [Option<(PufQuery, RowKey)>; KEYS_MAX],
    /// Key mode: whether a reading gave a key that was cached already, so that every set of helper data was tried.
    is_complete: bool,
}

impl RowKeyCache {
    fn candidates(&self, mode: Mode, query: &PufQuery) -> impl Iterator<Item = &RowKey> {
        let entries = self.entries.iter().flatten();
        entries
            .filter(move |(known_query, _)| mode == Mode::Key || known_query == query)
            .map(|(_, key)| key)
    }

    fn insert(&mut self, query: PufQuery, key: RowKey) {
        if self.entries.iter().flatten().any(|(_, cached)| *cached == key) {
            self.is_complete = true;
            return;
        }
        self.entries.rotate_right(1);
        self.entries[0] = Some((query, key));
    }
}

/// Result of checking a CHALLENGE with the cached keys.
pub(super) enum ChallengeCheck {
    Verified(VerifiedChallenge),
    Rejected,
    /// Only a PUF reading can decide.
    NeedsReading,
}

/// A CHALLENGE that verified, and its keys.
#[derive(Debug)]
pub(super) struct VerifiedChallenge {
    pub(super) challenge: wire::Challenge,
    pub(super) row_key: RowKey,
    pub(super) auth_key: AuthKey,
    _verified: TagVerified,
}

/// A CHALLENGE that is queued for a reading.
#[derive(Clone, Copy, Debug)]
struct WaitingChallenge {
    challenge: wire::Challenge,
    /// Number of REQUEST copies after which a CHALLENGE of this row arrived.
    copies: u8,
    /// The copy after which the last CHALLENGE of this row arrived.
    last_copy: u8,
}

/// The CHALLENGEs of one handshake, and its row keys.
#[derive(Debug, Default)]
pub(super) struct ChallengeQueue {
    keys: RowKeyCache,
    /// The expected CHALLENGE, with the distance of its row from the next row of its gateway.
    expected: Option<(u64, wire::Challenge)>,
    waiting: [Option<WaitingChallenge>; WAITING_MAX],
    /// Number of CHALLENGEs considered for the sample since the newest copy of the REQUEST.
    arrivals: u64,
    /// The number of the newest copy of the REQUEST.
    request_copy: u8,
    /// Number of random numbers drawn.
    draws: u64,
    /// Whether a sampled CHALLENGE is next.
    is_sample_next: bool,
    /// A CHALLENGE that verified while the PUF was read for another CHALLENGE.
    verified: Option<VerifiedChallenge>,
    /// Whether a CHALLENGE did not verify, or the PUF could not be read for it.
    pub(super) had_failure: bool,
}

impl ChallengeQueue {
    pub(super) fn check(
        &self,
        config: &DeviceConfig,
        challenge: &wire::Challenge,
        nonce: &[u8; 16],
    ) -> ChallengeCheck {
        let mode = config.mode;
        let mut is_undecided = true;
        for row_key in self.keys.candidates(mode, &puf_query(mode, challenge)) {
            is_undecided = mode == Mode::Key && !self.keys.is_complete;
            let auth_key = AuthKey::derive(
                row_key,
                config.suite,
                mode,
                RowIndex(challenge.idx.get()),
                GatewayId(challenge.gateway_id.get()),
            );
            let expected = tag::challenge(&auth_key, challenge, nonce);
            if let Some(verified) = tag::verify(&expected, &challenge.tag) {
                return ChallengeCheck::Verified(VerifiedChallenge {
                    challenge: *challenge,
                    row_key: row_key.clone(),
                    auth_key,
                    _verified: verified,
                });
            }
        }
        match is_undecided {
            true => ChallengeCheck::NeedsReading,
            false => ChallengeCheck::Rejected,
        }
    }

    /// Keeps a verified CHALLENGE until the current reading ends.
    pub(super) fn keep_verified(&mut self, verified: VerifiedChallenge) {
        self.verified.get_or_insert(verified);
    }

    /// Takes the kept CHALLENGE.
    pub(super) fn take_verified(&mut self) -> Option<VerifiedChallenge> {
        self.verified.take()
    }

    /// Queues a CHALLENGE that needs a reading. If the queue is full, drops this CHALLENGE or a random other CHALLENGE.
    /// Returns `false` if the queue already contains the CHALLENGE, or a CHALLENGE of the same row that arrived after
    /// the same copy of the REQUEST. `ahead` is the distance of the row from the next row of its gateway, if known.
    /// `copy` is the number of the newest REQUEST copy. `is_prompt` is whether the CHALLENGE arrived soon after that
    /// copy.
    pub(super) fn enqueue(
        &mut self,
        challenge: &wire::Challenge,
        ahead: Option<u64>,
        (copy, is_prompt): (u8, bool),
        nonce: &[u8; 16],
    ) -> bool {
        let mut candidate = *challenge;
        if let Some(ahead) = ahead.filter(|ahead| *ahead < EXPECTED_ROWS) {
            match &mut self.expected {
                Some((_, waiting)) if *waiting == candidate => return false,
                Some((distance, waiting)) if ahead < *distance => {
                    *distance = ahead;
                    candidate = core::mem::replace(waiting, candidate);
                }
                Some(_) => {}
                empty @ None => {
                    *empty = Some((ahead, candidate));
                    return true;
                }
            }
        }
        let is_same_row = |waiting: &&mut WaitingChallenge| {
            let known = &waiting.challenge;
            (known.idx, known.challenge) == (candidate.idx, candidate.challenge)
        };
        if let Some(known) = self.waiting.iter_mut().flatten().find(is_same_row) {
            let is_new_copy = known.last_copy != copy;
            known.copies += u8::from(is_new_copy);
            known.last_copy = copy;
            return is_new_copy;
        }
        if self.request_copy != copy {
            (self.request_copy, self.arrivals) = (copy, 0);
        }
        self.arrivals = self.arrivals.saturating_add(1);
        let free_index = self.waiting.iter().position(Option::is_none);
        // Each CHALLENGE that arrived promptly has the same chance to be kept.
        let must_draw = free_index.is_none() && is_prompt;
        let drawn_index = must_draw.then(|| self.draw_random(nonce) % self.arrivals);
        let index = free_index.or(drawn_index.and_then(|index| usize::try_from(index).ok()));
        let entry = index.and_then(|index| self.waiting.get_mut(index));
        if let Some(entry) = entry.filter(|entry| entry.is_none_or(|waiting| waiting.copies == 1)) {
            *entry = Some(WaitingChallenge {
                challenge: candidate,
                copies: 1,
                last_copy: copy,
            });
        }
        true
    }

    /// Draws a random number. After a PUF reading, no other party can predict the number, because the newest row key is
    /// secret.
    fn draw_random(&mut self, nonce: &[u8; 16]) -> u64 {
        self.draws = self.draws.wrapping_add(1);
        let newest = self.keys.entries.first().and_then(Option::as_ref);
        let key = newest.map_or(nonce, |(_, key)| key.as_bytes());
        let [low, _] = crate::keys::halves(&f(key, &[[0xFF; 8], self.draws.to_be_bytes()]));
        u64::from_be_bytes(low)
    }

    /// Whether a CHALLENGE is queued.
    pub(super) fn is_waiting(&self) -> bool {
        self.expected.is_some() || self.waiting.iter().any(Option::is_some)
    }

    /// The CHALLENGE for the next PUF reading.
    pub(super) fn take_next(&mut self, nonce: &[u8; 16]) -> Option<wire::Challenge> {
        let takes_sample = self.expected.is_none() || self.is_sample_next;
        self.is_sample_next = !takes_sample;
        if !takes_sample {
            return self.expected.take().map(|(_, challenge)| challenge);
        }
        // Of CHALLENGEs with equal counts, a random one comes first.
        let first = self.draw_random(nonce) as usize % WAITING_MAX;
        let indexes = (0..WAITING_MAX).map(|index| (first + index) % WAITING_MAX);
        let copies = |index: &usize| {
            self.waiting
                .get(*index)
                .copied()
                .flatten()
                .map(|waiting| waiting.copies)
        };
        let index = indexes.max_by_key(copies)?;
        let sampled = self.waiting.get_mut(index).and_then(Option::take);
        let sampled = sampled.map(|waiting| waiting.challenge);
        sampled.or_else(|| self.expected.take().map(|(_, challenge)| challenge))
    }

    /// Adds the result of a reading for a CHALLENGE (`candidate`). Returns a CHALLENGE that verifies now, if any: a kept
    /// CHALLENGE, the candidate, or a queued CHALLENGE.
    pub(super) fn add_reading(
        &mut self,
        config: &DeviceConfig,
        candidate: wire::Challenge,
        row_key: Option<RowKey>,
        nonce: &[u8; 16],
    ) -> Option<VerifiedChallenge> {
        self.had_failure |= row_key.is_none();
        let is_read = row_key.is_some();
        if let Some(row_key) = row_key {
            self.keys.insert(puf_query(config.mode, &candidate), row_key);
        }
        if let Some(verified) = self.take_verified() {
            return Some(verified);
        }
        if is_read {
            match self.check(config, &candidate, nonce) {
                ChallengeCheck::Verified(verified) => return Some(verified),
                ChallengeCheck::Rejected => self.had_failure = true,
                // Key mode: other helper data may match.
                ChallengeCheck::NeedsReading => {
                    self.enqueue(&candidate, None, (self.request_copy, true), nonce);
                }
            }
            return self.check_waiting(config, nonce);
        }
        None
    }

    /// Checks the queued CHALLENGEs with the cached keys.
    fn check_waiting(&mut self, config: &DeviceConfig, nonce: &[u8; 16]) -> Option<VerifiedChallenge> {
        if let Some((_, challenge)) = &self.expected {
            match self.check(config, challenge, nonce) {
                ChallengeCheck::Verified(verified) => return Some(verified),
                ChallengeCheck::Rejected => self.expected = None,
                ChallengeCheck::NeedsReading => {}
            }
        }
        for index in 0..WAITING_MAX {
            let Some(waiting) = self.waiting.get(index).copied().flatten() else {
                continue;
            };
            match self.check(config, &waiting.challenge, nonce) {
                ChallengeCheck::Verified(verified) => return Some(verified),
                ChallengeCheck::Rejected => {
                    if let Some(entry) = self.waiting.get_mut(index) {
                        *entry = None;
                    }
                }
                ChallengeCheck::NeedsReading => {}
            }
        }
        None
    }
}

/// The PUF reading that a CHALLENGE requires.
pub(super) fn puf_query(mode: Mode, challenge: &wire::Challenge) -> PufQuery {
    PufQuery {
        mode,
        idx: RowIndex(challenge.idx.get()),
        challenge: challenge.challenge,
    }
}
