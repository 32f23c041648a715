//! The accepted signers.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use crate::key::{MemoryBudget, PublicKey};
use crate::message::KeyId;
use crate::ra::RaPublic;

/// Public keys by signer id.
#[derive(Debug, Default, Clone)]
pub struct Signers {
    keys: HashMap<KeyId, Arc<PublicKey>>,
    /// Memory budget for tables of points.
    table_memory: Arc<MemoryBudget>,
}

/// Why a key cannot be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignerError {
    /// A key with this id exists.
    #[error("duplicate signer {0}")]
    Duplicate(KeyId),
}

impl Signers {
    /// Adds a key.
    ///
    /// # Errors
    /// A key with this id exists: the same key, or a collision, which costs 2^32 attempts.
    pub fn add(&mut self, key: PublicKey) -> Result<(), SignerError> {
        match self.keys.entry(key.id()) {
            Entry::Occupied(entry) => Err(SignerError::Duplicate(*entry.key())),
            Entry::Vacant(entry) => {
                entry.insert(Arc::new(key));
                Ok(())
            }
        }
    }

    /// The key of this signer.
    #[must_use]
    pub fn get(&self, id: KeyId) -> Option<&Arc<PublicKey>> {
        self.keys.get(&id)
    }

    /// Divides the memory budget for precomputed data. Tables of points are small and are made on demand. If there are
    /// keys of RA, these tables get at most half of the budget; the hashed components of RA get the remaining budget in
    /// equal shares.
    pub(super) fn share_memory(&self, bytes: usize) {
        let rapid: Vec<&RaPublic> = self.iter().filter_map(|key| key.ra()).collect();
        let required = self.iter().filter_map(|key| key.table_bytes()).sum();
        let tables_max = if rapid.is_empty() { bytes } else { bytes / 2 };
        let tables = self.table_memory.set(tables_max.min(required));
        for key in self.iter() {
            key.set_table_budget(&self.table_memory);
        }
        for ra in &rapid {
            ra.set_cache_limit(bytes.saturating_sub(tables) / rapid.len());
        }
    }

    /// All keys, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<PublicKey>> {
        self.keys.values()
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}
