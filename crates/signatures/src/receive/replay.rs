//! Memory of recently accepted messages.
//!
//! A message with a stamp older than the window is refused, so only messages within the window are remembered. The
//! memory stores a keyed hash of the signer and of the message's identity (the mask name, or the hash of the signed
//! bytes). The key is random, so that attackers cannot choose colliding messages. Hashes are grouped by the half window
//! of their stamps, and each group is dropped as a whole.
//!
//! Half of the memory is divided evenly among the signers; the other half is shared, first come, first served. A signer that signs
//! without limit therefore cannot take the share of another signer.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher24};

use super::window::Window;
use crate::message::{KeyId, TimeMs};
use crate::refusal::Refusal;

/// Default limit of remembered messages: some 200 MB when full. With the default window a message is remembered for up to 9 s, so that
/// 460,000 messages a second can be accepted permanently.
pub const REPLAY_MEMORY_DEFAULT: usize = 1 << 22;

/// Identity of a message among the messages of all signers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MessageName {
    signer: KeyId,
    /// Keyed hash of the signer and the message's identity.
    hash: u128,
}

/// Messages accepted with stamps in one half window.
#[derive(Default)]
struct ReplaySpan {
    names: HashSet<u128>,
    count_by_signer: HashMap<KeyId, usize>,
}

/// Memory of recently accepted messages.
pub struct ReplayMemory {
    key: [u8; 16],
    span_ms: u64,
    capacity: usize,
    length: usize,
    /// Number of entries reserved for each signer.
    share: usize,
    /// Number of entries of the shared half.
    shared_capacity: usize,
    /// Number of used entries of the shared half.
    shared_used: usize,
    used_by_signer: HashMap<KeyId, usize>,
    /// Messages with a stamp before this time are not remembered, and are refused.
    oldest_accepted: TimeMs,
    spans: BTreeMap<u64, ReplaySpan>,
}

impl ReplayMemory {
    /// Stores up to `capacity` messages within a window, of any signer. The key is random and secret.
    #[must_use]
    pub fn new(window: Window, capacity: usize, key: [u8; 16]) -> Self {
        Self {
            key,
            span_ms: window.length_ms().div_ceil(2).max(1),
            capacity,
            length: 0,
            share: 0,
            shared_capacity: capacity,
            shared_used: 0,
            used_by_signer: HashMap::new(),
            oldest_accepted: TimeMs::since_2020(0),
            spans: BTreeMap::new(),
        }
    }

    /// Divides half of the memory among this number of signers. Call before any message is inserted. No other signer
    /// may insert messages.
    #[must_use]
    pub fn with_signers(self, signers: usize) -> Self {
        let share = self.capacity / 2 / signers.max(1);
        Self {
            share,
            shared_capacity: self.capacity - share * signers,
            ..self
        }
    }

    /// Refuses stamps before this time: this receiver does not know which messages an earlier receiver accepted.
    #[must_use]
    pub fn accept_since(self, first: TimeMs) -> Self {
        Self {
            oldest_accepted: first,
            ..self
        }
    }

    /// Checks that messages of this time are remembered. Other messages are refused, even if a clock that was set back makes them fresh
    /// again.
    ///
    /// # Errors
    /// [`Refusal::TooOld`]
    pub fn check(&self, time: TimeMs) -> Result<(), Refusal> {
        match time < self.oldest_accepted {
            true => Err(Refusal::TooOld),
            false => Ok(()),
        }
    }

    /// The identity of the signer's message with these identifying bytes.
    #[must_use]
    pub fn name(&self, signer: KeyId, identity: &[u8]) -> MessageName {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write(&signer.0);
        hasher.write(identity);
        let hash = hasher.finish128().as_u128();
        MessageName { signer, hash }
    }

    /// Whether a message of this identity was accepted with any stamp. The check detects a mask that was used twice.
    #[must_use]
    pub fn contains(&self, name: MessageName) -> bool {
        self.spans.values().any(|span| span.names.contains(&name.hash))
    }

    /// Stores an accepted message.
    ///
    /// # Errors
    /// [`Refusal::Replayed`] if the message was accepted before, [`Refusal::ReplayMemoryFull`] if the memory is full,
    /// [`Refusal::TooOld`] if its time is not remembered any more.
    pub fn insert(&mut self, time: TimeMs, name: MessageName) -> Result<(), Refusal> {
        self.check(time)?;
        if self.contains(name) {
            return Err(Refusal::Replayed);
        }
        let used = self.used_by_signer.get(&name.signer).copied().unwrap_or(0);
        if used >= self.share {
            if self.shared_used >= self.shared_capacity {
                return Err(Refusal::ReplayMemoryFull);
            }
            self.shared_used += 1;
        }
        self.used_by_signer.insert(name.signer, used + 1);
        let span = self.spans.entry(time.ms() / self.span_ms).or_default();
        span.names.insert(name.hash);
        *span.count_by_signer.entry(name.signer).or_default() += 1;
        self.length += 1;
        Ok(())
    }

    /// Drops messages that are refused as too old from now on: stamps before `oldest`.
    pub fn forget_before(&mut self, oldest: TimeMs) {
        let first = oldest.ms() / self.span_ms;
        while let Some(span) = self.spans.first_entry()
            && *span.key() < first
        {
            let span = span.remove();
            self.length -= span.names.len();
            for (signer, count) in span.count_by_signer {
                self.forget(signer, count);
            }
        }
        self.oldest_accepted = self.oldest_accepted.max(TimeMs::since_2020(first * self.span_ms));
    }

    /// Number of remembered messages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether no message is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Subtracts dropped messages from the count of a signer.
    fn forget(&mut self, signer: KeyId, count: usize) {
        let Some(used) = self.used_by_signer.get_mut(&signer) else {
            return;
        };
        let excess = |used: usize| used.saturating_sub(self.share);
        self.shared_used -= excess(*used) - excess(*used - count);
        *used -= count;
        if *used == 0 {
            self.used_by_signer.remove(&signer);
        }
    }
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
