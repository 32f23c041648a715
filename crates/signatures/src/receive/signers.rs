//! Whose messages are accepted.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use crate::key::PublicKey;
use crate::message::KeyId;

/// Public keys by their signers' names.
#[derive(Debug, Default, Clone)]
pub struct Signers(HashMap<KeyId, Arc<PublicKey>>);

/// A key that cannot be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignerError {
    /// Its name is in use.
    #[error("the signer {0} is there already")]
    Twice(KeyId),
}

impl Signers {
    /// Adds a key.
    ///
    /// # Errors
    /// A key of this name is there: the same, or, which takes its owners 2^32 tries, another.
    pub fn add(&mut self, key: PublicKey) -> Result<(), SignerError> {
        match self.0.entry(key.id()) {
            Entry::Occupied(there) => Err(SignerError::Twice(*there.key())),
            Entry::Vacant(place) => {
                place.insert(Arc::new(key));
                Ok(())
            }
        }
    }

    /// The key of this name.
    #[must_use]
    pub fn get(&self, id: KeyId) -> Option<&Arc<PublicKey>> {
        self.0.get(&id)
    }

    /// Shares so many bytes for hashed components among the keys of RA, equally.
    pub(super) fn share_memory(&self, bytes: usize) {
        let rapid = || self.0.values().filter_map(|key| key.ra());
        let count = rapid().count();
        rapid().for_each(|ra| ra.keep_at_most(bytes / count));
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<PublicKey>> {
        self.0.values()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
