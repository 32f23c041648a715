//! Random choices that determine a case. They are recorded, so that smaller choices can minimize a failing case.

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// Source of choices: recorded choices first, then a generator or zeros.
pub struct Source {
    choices: Vec<u64>,
    position: usize,
    rng: Option<ChaCha8Rng>,
}

impl Source {
    /// Generates choices from this seed.
    pub fn seeded(seed: u64) -> Self {
        Self {
            choices: Vec::new(),
            position: 0,
            rng: Some(ChaCha8Rng::seed_from_u64(seed)),
        }
    }

    /// Replays these choices, then returns zeros.
    pub fn recorded(choices: Vec<u64>) -> Self {
        Self {
            choices,
            position: 0,
            rng: None,
        }
    }

    /// Returns the choices that were used.
    pub fn into_choices(mut self) -> Vec<u64> {
        self.choices.truncate(self.position);
        self.choices
    }

    /// Number below a bound; 0 is the simplest choice.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = bound.max(1) as u64;
        let choice = match (self.choices.get(self.position), &mut self.rng) {
            (Some(choice), _) => *choice % bound,
            (None, Some(rng)) => {
                let choice = rng.random_range(0..bound);
                self.choices.push(choice);
                choice
            }
            (None, None) => 0,
        };
        self.position += 1;
        choice as usize
    }

    /// True with this probability in percent.
    pub fn percent(&mut self, percent: usize) -> bool {
        self.below(100) >= 100 - percent
    }

    /// Number in an inclusive range.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// Item of the list, or `None` if the list is empty.
    pub fn pick<T: Clone>(&mut self, items: &[T]) -> Option<T> {
        match items.len() {
            0 => None,
            len => items.get(self.below(len)).cloned(),
        }
    }

    /// Random bytes, mostly with small values.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.byte()).collect()
    }

    fn byte(&mut self) -> u8 {
        match self.below(8) {
            0..=2 => 0,
            3..=5 => self.below(4) as u8,
            6 => 255,
            _ => self.below(256) as u8,
        }
    }
}
