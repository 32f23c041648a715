//! Shared parts of the random tests of scheduler and simulator.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable)
        .ok()
        .map(|value| value.parse().expect(variable))
}

/// Prints the seed of a run that panics.
struct SeedReporter(u64);

impl Drop for SeedReporter {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("LINEWARDEN_SEED={} reproduces this run", self.0);
        }
    }
}

/// Runs this number of seeds (or the number in `LINEWARDEN_SEEDS`), or only the seed in
/// `LINEWARDEN_SEED`.
pub fn seeds(count: u64, run: impl Fn(u64, &mut RandomChoices)) {
    let seeds = match number("LINEWARDEN_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("LINEWARDEN_SEEDS").unwrap_or(count),
    };
    for seed in seeds {
        let _running = SeedReporter(seed);
        run(seed, &mut RandomChoices(ChaCha8Rng::seed_from_u64(seed)));
    }
}

/// Random choices of one run.
pub struct RandomChoices(ChaCha8Rng);

impl RandomChoices {
    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.next_u64() % bound
    }

    /// True once in `times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}
