//! Whose messages are accepted.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use crate::key::{PublicKey, Room};
use crate::message::KeyId;
use crate::ra::RaPublic;

/// Public keys by their signers' names.
#[derive(Debug, Default, Clone)]
pub struct Signers {
    keys: HashMap<KeyId, Arc<PublicKey>>,
    /// For the tables of points.
    room: Arc<Room>,
}

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
        match self.keys.entry(key.id()) {
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
        self.keys.get(&id)
    }

    /// Shares so many bytes for what is computed ahead. Tables of points, which are small, take theirs as their signers' messages come, up to half
    /// if there are keys of RA; what those leave is for the hashed components of the latter, equally.
    pub(super) fn share_memory(&self, bytes: usize) {
        let rapid: Vec<&RaPublic> = self.iter().filter_map(|key| key.ra()).collect();
        let wanted = self.iter().filter_map(|key| key.table_bytes()).sum();
        let most = if rapid.is_empty() { bytes } else { bytes / 2 };
        let tables = self.room.set(most.min(wanted));
        for key in self.iter() {
            key.draw_from(&self.room);
        }
        for ra in &rapid {
            ra.keep_at_most(bytes.saturating_sub(tables) / rapid.len());
        }
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<PublicKey>> {
        self.keys.values()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}
