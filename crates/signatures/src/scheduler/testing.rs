//! What the random tests of scheduler and simulator share.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable)
        .ok()
        .map(|value| value.parse().expect(variable))
}

/// Tells the seed of a run that panics.
struct Running(u64);

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("LINEWARDEN_SEED={} repeats it", self.0);
        }
    }
}

/// Runs so many seeds (`LINEWARDEN_SEEDS`: as many), or the one that `LINEWARDEN_SEED` names.
pub fn seeds(count: u64, run: impl Fn(u64, &mut Dice)) {
    let seeds = match number("LINEWARDEN_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("LINEWARDEN_SEEDS").unwrap_or(count),
    };
    for seed in seeds {
        let _running = Running(seed);
        run(seed, &mut Dice(ChaCha8Rng::seed_from_u64(seed)));
    }
}

/// Random choices of one run.
pub struct Dice(ChaCha8Rng);

impl Dice {
    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.next_u64() % bound
    }

    /// Yes, once in `times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}
