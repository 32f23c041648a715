//! Numbers of keys on the device.

use std::collections::HashMap;
use std::sync::Arc;

use crate::key::PublicKey;

/// Numbers below a capacity; when all are assigned, the least recently used key is replaced.
///
/// A key is identified by its address, which stays constant while the key is stored here. Two keys that were read from
/// the same bytes therefore count as different keys, but no bytes need to be compared.
pub(super) struct KeyNumbers {
    capacity: usize,
    number_of: HashMap<usize, u32>,
    keys: Vec<KeySlot>,
}

struct KeySlot {
    key: Arc<PublicKey>,
    /// Number of the latest batch that used the key.
    last_batch_number: u64,
}

/// Result of looking up a key's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NumberLookup {
    /// The key has this number.
    Present(u32),
    /// The key gets this number, and must be uploaded there.
    Assigned(u32),
    /// The keys of the current batch use all numbers.
    Full,
}

impl KeyNumbers {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            number_of: HashMap::new(),
            keys: Vec::new(),
        }
    }

    /// The number of a key. No other key gets this number in the same batch. Batch numbers must ascend.
    pub(super) fn look_up(&mut self, key: &Arc<PublicKey>, batch_number: u64) -> NumberLookup {
        let address = Arc::as_ptr(key).addr();
        if let Some(number) = self.number_of.get(&address) {
            if let Some(slot) = self.keys.get_mut(*number as usize) {
                slot.last_batch_number = batch_number;
            }
            return NumberLookup::Present(*number);
        }
        let new_slot = KeySlot {
            key: Arc::clone(key),
            last_batch_number: batch_number,
        };
        if self.keys.len() < self.capacity {
            // No device holds 2^32 keys.
            let number = self.keys.len() as u32;
            self.keys.push(new_slot);
            self.number_of.insert(address, number);
            return NumberLookup::Assigned(number);
        }
        let oldest = (0u32..)
            .zip(&mut self.keys)
            .min_by_key(|(_, slot)| slot.last_batch_number);
        let Some((number, slot)) = oldest.filter(|(_, slot)| slot.last_batch_number < batch_number) else {
            return NumberLookup::Full;
        };
        self.number_of.remove(&Arc::as_ptr(&slot.key).addr());
        *slot = new_slot;
        self.number_of.insert(address, number);
        NumberLookup::Assigned(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::PrivateKey;
    use crate::scheme::Scheme;

    fn keys() -> [Arc<PublicKey>; 3] {
        [(); 3].map(|()| {
            let key = PrivateKey::generate(Scheme::Ed25519, None).unwrap();
            Arc::clone(key.public())
        })
    }

    #[test]
    fn the_least_recently_used_key_is_replaced() {
        let [a, b, c] = keys();
        let mut numbers = KeyNumbers::new(2);
        assert_eq!(numbers.look_up(&a, 1), NumberLookup::Assigned(0));
        assert_eq!(numbers.look_up(&b, 1), NumberLookup::Assigned(1));
        assert_eq!(numbers.look_up(&c, 1), NumberLookup::Full, "both are in use");
        assert_eq!(numbers.look_up(&a, 2), NumberLookup::Present(0));
        assert_eq!(numbers.look_up(&c, 3), NumberLookup::Assigned(1));
        assert_eq!(
            (numbers.look_up(&c, 4), numbers.look_up(&b, 4)),
            (NumberLookup::Present(1), NumberLookup::Assigned(0))
        );
    }

    /// The address of a dropped key may be reused.
    #[test]
    fn a_key_with_a_number_is_not_replaced() {
        let mut numbers = KeyNumbers::new(8);
        for number in 0..8 {
            let key = PrivateKey::generate(Scheme::Ed25519, None).unwrap();
            assert_eq!(
                numbers.look_up(&Arc::clone(key.public()), 1),
                NumberLookup::Assigned(number)
            );
        }
    }
}
