//! Which messages were accepted lately.
//!
//! A message is refused when its stamp is older than the window, so that only those within it need to be remembered: by a hash of the
//! signer and of what makes the message one of its kind (the mask's name, or the hash of what was signed), under a random key, so
//! that nobody can choose messages that collide. Names are kept by the half window that their stamp is in, and dropped together.

use std::collections::{BTreeMap, HashSet};
use std::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher24};

use super::receiver::Window;
use crate::message::{KeyId, TimeMs};
use crate::refusal::Refusal;

/// Messages that are remembered at most, unless it is said otherwise: 64 MB.
pub const REPLAY_MEMORY_DEFAULT: usize = 1 << 21;

/// The name of a message among those of all signers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MessageName(u128);

/// Which messages were accepted lately.
pub struct ReplayMemory {
    key: [u8; 16],
    span_ms: u64,
    capacity: usize,
    length: usize,
    /// Nothing before is remembered.
    first: TimeMs,
    spans: BTreeMap<u64, HashSet<MessageName>>,
}

impl ReplayMemory {
    /// Remembers up to `capacity` messages of a window. The key is random and secret.
    #[must_use]
    pub fn new(window: Window, capacity: usize, key: [u8; 16]) -> Self {
        Self {
            key,
            span_ms: window.length_ms().div_ceil(2).max(1),
            capacity,
            length: 0,
            first: TimeMs::since_2020(0),
            spans: BTreeMap::new(),
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
        MessageName(hasher.finish128().as_u128())
    }

    /// Whether a message of this name was accepted, whatever its stamp was: a mask that was used twice is told by that.
    #[must_use]
    pub fn contains(&self, name: MessageName) -> bool {
        self.spans.values().any(|names| names.contains(&name))
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
        if self.length >= self.capacity {
            return Err(Refusal::ReplayMemoryFull);
        }
        self.spans.entry(self.span(time)).or_default().insert(name);
        self.length += 1;
        Ok(())
    }

    /// Forgets what is refused as too old from now on: stamps before `oldest`.
    pub fn forget_before(&mut self, oldest: TimeMs) {
        let first = self.span(oldest);
        while let Some(span) = self.spans.first_entry()
            && *span.key() < first
        {
            self.length -= span.remove().len();
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

    fn span(&self, time: TimeMs) -> u64 {
        time.ms() / self.span_ms
    }
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
