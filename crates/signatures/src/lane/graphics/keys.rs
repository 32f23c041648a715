//! Which number each key has on the device.

use std::collections::HashMap;
use std::sync::Arc;

use crate::key::PublicKey;

/// Numbers below a capacity. While there are any left, a key that comes gets one. When all are given out, only a key of which a message
/// has held gets one, that of the key of which none has held for the longest time: who forges messages displaces nobody.
///
/// A key is known by its place in memory, which it keeps as long as it is kept here: the same bytes read twice are
/// two keys, and nothing has to be compared.
pub(super) struct Numbers {
    capacity: usize,
    number_of: HashMap<usize, u32>,
    keys: Vec<Numbered>,
    /// Keys without a number of which a message has held, by their places, and in which round; as many as have numbers at most.
    candidates: HashMap<usize, (Arc<PublicKey>, u64)>,
}

struct Numbered {
    key: Arc<PublicKey>,
    /// The round in which it was asked for last.
    used: u64,
    /// The round in which a message of it held last.
    held: u64,
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
    /// All are given out, and no message of it has held.
    Stranger,
}

impl Numbers {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            number_of: HashMap::new(),
            keys: Vec::new(),
            candidates: HashMap::new(),
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
        let newcomer = |held| Numbered {
            key: Arc::clone(key),
            used: round,
            held,
        };
        // Fewer than 2^32 fit any device.
        let number = self.keys.len() as u32;
        if self.keys.len() < self.capacity {
            self.keys.push(newcomer(0));
            self.number_of.insert(place, number);
            return Number::New(number);
        }
        if !self.candidates.contains_key(&place) {
            return Number::Stranger;
        }
        let oldest = (0u32..)
            .zip(&mut self.keys)
            .filter(|(_, numbered)| numbered.used < round)
            .min_by_key(|(_, numbered)| numbered.held);
        let Some((number, numbered)) = oldest else {
            return Number::None;
        };
        self.number_of.remove(&Arc::as_ptr(&numbered.key).addr());
        *numbered = newcomer(round);
        self.candidates.remove(&place);
        self.number_of.insert(place, number);
        Number::New(number)
    }

    /// Notes that a message of the key with this number has held in this round.
    pub(super) fn held(&mut self, number: u32, round: u64) {
        if let Some(numbered) = self.keys.get_mut(number as usize) {
            numbered.held = round;
        }
    }

    /// Notes that a message of a key has held that had no number.
    pub(super) fn wants(&mut self, key: &Arc<PublicKey>, round: u64) {
        let place = Arc::as_ptr(key).addr();
        if self.number_of.contains_key(&place) {
            return;
        }
        if self.candidates.len() >= self.capacity && !self.candidates.contains_key(&place) {
            // One that was not heard of for long may never come again.
            let oldest = self.candidates.iter().min_by_key(|(_, (_, round))| *round);
            if let Some(oldest) = oldest.map(|(place, _)| *place) {
                self.candidates.remove(&oldest);
            }
        }
        self.candidates.insert(place, (Arc::clone(key), round));
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
    fn the_key_of_which_no_message_held_for_longest_makes_room() {
        let [a, b, c] = keys();
        let mut numbers = Numbers::new(2);
        assert_eq!(numbers.of(&a, 1), Number::New(0));
        assert_eq!(numbers.of(&b, 1), Number::New(1));
        numbers.wants(&c, 1);
        assert_eq!(numbers.of(&c, 1), Number::None, "both are in use");
        numbers.held(0, 1);
        assert_eq!(numbers.of(&c, 2), Number::New(1));
        numbers.wants(&b, 2);
        assert_eq!(
            (numbers.of(&a, 3), numbers.of(&b, 3)),
            (Number::Known(0), Number::New(1))
        );
        assert_eq!(numbers.of(&c, 4), Number::Stranger, "it has to hold again");
    }

    #[test]
    fn the_candidate_that_was_not_heard_of_for_longest_makes_room_for_another() {
        let [a, b, c] = keys();
        let mut numbers = Numbers::new(1);
        assert_eq!(numbers.of(&a, 1), Number::New(0));
        numbers.wants(&b, 1);
        numbers.wants(&c, 2);
        assert_eq!(
            (numbers.of(&b, 3), numbers.of(&c, 3)),
            (Number::Stranger, Number::New(0))
        );
    }

    #[test]
    fn who_forges_displaces_nobody_and_keeps_no_place() {
        let [a, b, forged] = keys();
        let mut numbers = Numbers::new(2);
        assert_eq!(numbers.of(&forged, 1), Number::New(0), "room for everybody");
        assert_eq!(numbers.of(&a, 1), Number::New(1));
        numbers.held(1, 1);
        numbers.wants(&b, 1);
        for round in 2..9 {
            assert_eq!(numbers.of(&forged, round), Number::Known(0));
        }
        assert_eq!(numbers.of(&b, 9), Number::New(0));
        assert_eq!(numbers.of(&forged, 9), Number::Stranger);
        assert_eq!(numbers.of(&forged, 10), Number::Stranger);
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
