//! Which messages were accepted lately.
//!
//! A message is refused when its stamp is older than the window, so that only those within it need to be remembered: by a hash of the
//! signer and of what makes the message one of its kind (the mask's name, or the hash of what was signed), under a random key, so
//! that nobody can choose messages that collide. Names are kept by the half window that their stamp is in, and dropped together.
//!
//! Half of the memory is the signers' own, an even share of it each; the other half is whoever's comes first. So a valid key that signs
//! without end, or any number of them, shut nobody out who signs no more than his share.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher24};

use super::receiver::Window;
use crate::message::{KeyId, TimeMs};
use crate::refusal::Refusal;

/// Messages that are remembered at most, unless it is said otherwise: some 200 MB when there are so many. By the default window each is
/// remembered for up to 9 s, so that 460,000 a second can be accepted for ever.
pub const REPLAY_MEMORY_DEFAULT: usize = 1 << 22;

/// The name of a message among those of all signers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MessageName {
    signer: KeyId,
    /// Of the signer, too.
    hash: u128,
}

/// What was accepted with stamps of one half window.
#[derive(Default)]
struct Span {
    names: HashSet<u128>,
    of_signer: HashMap<KeyId, usize>,
}

/// Which messages were accepted lately.
pub struct ReplayMemory {
    key: [u8; 16],
    span_ms: u64,
    capacity: usize,
    length: usize,
    /// What each signer has for itself.
    share: usize,
    /// What is no signer's own.
    common: usize,
    /// What is taken of that.
    common_taken: usize,
    held: HashMap<KeyId, usize>,
    /// Nothing before is remembered.
    first: TimeMs,
    spans: BTreeMap<u64, Span>,
}

impl ReplayMemory {
    /// Remembers up to `capacity` messages of a window, of whichever signers. The key is random and secret.
    #[must_use]
    pub fn new(window: Window, capacity: usize, key: [u8; 16]) -> Self {
        Self {
            key,
            span_ms: window.length_ms().div_ceil(2).max(1),
            capacity,
            length: 0,
            share: 0,
            common: capacity,
            common_taken: 0,
            held: HashMap::new(),
            first: TimeMs::since_2020(0),
            spans: BTreeMap::new(),
        }
    }

    /// Gives so many signers shares of their own, before anything is remembered. There are no others.
    #[must_use]
    pub fn among(self, signers: usize) -> Self {
        let share = self.capacity / 2 / signers.max(1);
        Self {
            share,
            common: self.capacity - share * signers,
            ..self
        }
    }

    /// Stamps before this time are refused: what a receiver before this one has accepted, this one does not know.
    #[must_use]
    pub fn since(self, first: TimeMs) -> Self {
        Self { first, ..self }
    }

    /// Whether messages of this time are remembered. Those that are not are refused, even if a clock that was set back takes them for
    /// fresh again.
    ///
    /// # Errors
    /// [`Refusal::TooOld`]
    pub fn check(&self, time: TimeMs) -> Result<(), Refusal> {
        match time < self.first {
            true => Err(Refusal::TooOld),
            false => Ok(()),
        }
    }

    /// The name of the signer's message that has this identity.
    #[must_use]
    pub fn name(&self, signer: KeyId, identity: &[u8]) -> MessageName {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write(&signer.0);
        hasher.write(identity);
        let hash = hasher.finish128().as_u128();
        MessageName { signer, hash }
    }

    /// Whether a message of this name was accepted, whatever its stamp was: a mask that was used twice is told by that.
    #[must_use]
    pub fn contains(&self, name: MessageName) -> bool {
        self.spans.values().any(|span| span.names.contains(&name.hash))
    }

    /// Remembers a message that is accepted.
    ///
    /// # Errors
    /// [`Refusal::Replayed`] if it was, [`Refusal::ReplayMemoryFull`] if there is no room for it, [`Refusal::TooOld`] if its time is not
    /// remembered any more.
    pub fn insert(&mut self, time: TimeMs, name: MessageName) -> Result<(), Refusal> {
        self.check(time)?;
        if self.contains(name) {
            return Err(Refusal::Replayed);
        }
        let held = self.held.get(&name.signer).copied().unwrap_or(0);
        if held >= self.share {
            if self.common_taken >= self.common {
                return Err(Refusal::ReplayMemoryFull);
            }
            self.common_taken += 1;
        }
        self.held.insert(name.signer, held + 1);
        let span = self.spans.entry(time.ms() / self.span_ms).or_default();
        span.names.insert(name.hash);
        *span.of_signer.entry(name.signer).or_default() += 1;
        self.length += 1;
        Ok(())
    }

    /// Forgets what is refused as too old from now on: stamps before `oldest`.
    pub fn forget_before(&mut self, oldest: TimeMs) {
        let first = oldest.ms() / self.span_ms;
        while let Some(span) = self.spans.first_entry()
            && *span.key() < first
        {
            let span = span.remove();
            self.length -= span.names.len();
            for (signer, count) in span.of_signer {
                self.forget(signer, count);
            }
        }
        self.first = self.first.max(TimeMs::since_2020(first * self.span_ms));
    }

    /// How many messages are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Forgets so many of a signer's.
    fn forget(&mut self, signer: KeyId, count: usize) {
        let Some(held) = self.held.get_mut(&signer) else {
            return;
        };
        let beyond = |held: usize| held.saturating_sub(self.share);
        self.common_taken -= beyond(*held) - beyond(*held - count);
        *held -= count;
        if *held == 0 {
            self.held.remove(&signer);
        }
    }
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
