//! Which number each key has on the device.

use std::collections::HashMap;
use std::sync::Arc;

use crate::key::PublicKey;

/// Numbers below a capacity; when all are given out, the key that was used least lately makes room for another.
///
/// A key is known by its place in memory, which it keeps as long as it is kept here: the same bytes read twice are
/// two keys, and nothing has to be compared.
pub(super) struct Numbers {
    capacity: usize,
    number_of: HashMap<usize, u32>,
    keys: Vec<Numbered>,
}

struct Numbered {
    key: Arc<PublicKey>,
    /// The round in which it was asked for last.
    used: u64,
}

/// What a key's number is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Number {
    /// It has this one.
    Known(u32),
    /// It has this one from now on, and is to be put there.
    New(u32),
    /// All numbers are in use in this round.
    None,
}

impl Numbers {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            number_of: HashMap::new(),
            keys: Vec::new(),
        }
    }

    /// The number of a key, which no other gets in the same round. Rounds count up.
    pub(super) fn of(&mut self, key: &Arc<PublicKey>, round: u64) -> Number {
        let place = Arc::as_ptr(key).addr();
        if let Some(number) = self.number_of.get(&place) {
            if let Some(numbered) = self.keys.get_mut(*number as usize) {
                numbered.used = round;
            }
            return Number::Known(*number);
        }
        let newcomer = Numbered {
            key: Arc::clone(key),
            used: round,
        };
        if self.keys.len() < self.capacity {
            // Fewer than 2^32 fit any device.
            let number = self.keys.len() as u32;
            self.keys.push(newcomer);
            self.number_of.insert(place, number);
            return Number::New(number);
        }
        let oldest = (0u32..)
            .zip(&mut self.keys)
            .min_by_key(|(_, numbered)| numbered.used);
        let Some((number, numbered)) = oldest.filter(|(_, numbered)| numbered.used < round) else {
            return Number::None;
        };
        self.number_of.remove(&Arc::as_ptr(&numbered.key).addr());
        *numbered = newcomer;
        self.number_of.insert(place, number);
        Number::New(number)
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
    fn the_key_that_was_used_least_lately_makes_room() {
        let [a, b, c] = keys();
        let mut numbers = Numbers::new(2);
        assert_eq!(numbers.of(&a, 1), Number::New(0));
        assert_eq!(numbers.of(&b, 1), Number::New(1));
        assert_eq!(numbers.of(&c, 1), Number::None, "both are in use");
        assert_eq!(numbers.of(&a, 2), Number::Known(0));
        assert_eq!(numbers.of(&c, 3), Number::New(1));
        assert_eq!(
            (numbers.of(&c, 4), numbers.of(&b, 4)),
            (Number::Known(1), Number::New(0))
        );
    }

    /// An address is given out again when its owner is gone.
    #[test]
    fn a_key_is_kept_as_long_as_it_has_a_number() {
        let mut numbers = Numbers::new(8);
        for number in 0..8 {
            let key = PrivateKey::generate(Scheme::Ed25519, None).unwrap();
            assert_eq!(numbers.of(&Arc::clone(key.public()), 1), Number::New(number));
        }
    }
}
