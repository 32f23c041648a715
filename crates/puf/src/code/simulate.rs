//! Complete rebuilds under random errors.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use super::Profile;
use crate::{
    bits::Bits,
    extractor::{self, ExtractorError},
};

/// Rebuilds per work item. Each item has its own random stream, so results do not depend on the number of threads.
const CHUNK: u64 = 4096;

/// The counts of [`simulate_failure`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FailureReport {
    /// The profile, as text.
    pub profile: String,
    /// The bit error rate of the readings.
    pub bit_error_rate: f64,
    /// Number of rebuilds; fewer than requested after an interruption.
    pub decodes: u64,
    /// Number of rebuilds that reported an uncorrectable block.
    pub uncorrectable: u64,
    /// Number of rebuilds that returned a wrong secret.
    pub wrong: u64,
    /// The failure probability by exact computation.
    pub computed: f64,
    /// The observed failure rate.
    pub observed: f64,
    /// The upper end of a one-sided 99 % confidence interval of the failure rate (Clopper and Pearson 1934).
    pub upper_99: f64,
}

impl FailureReport {
    /// Number of failed rebuilds: uncorrectable or wrong.
    pub fn failures(&self) -> u64 {
        self.uncorrectable + self.wrong
    }

    /// Whether the count is likely under the computed probability: both tail probabilities are at least
    /// `significance`.
    pub fn agrees(&self, significance: f64) -> bool {
        let failures = self.failures();
        let at_most = super::binomial::lower_tail(self.decodes, self.computed, failures);
        let at_least = match failures {
            0 => 1.0,
            f => super::binomial::upper_tail(self.decodes, self.computed, f - 1),
        };
        at_most >= significance && at_least >= significance
    }
}

/// Rebuilds a secret `decodes` times from readings with independent errors at `bit_error_rate`.
///
/// Every 4,096 rebuilds a new random response is enrolled; each rebuild reads it with fresh noise and runs
/// the whole device path: offset, vote, decode, secret. Results depend on `seed`, not on `threads`.
/// Each thread calls `progress` with the number of completed rebuilds; if `progress` returns false, the run stops.
///
/// # Errors
/// [`ExtractorError`] if the profile's code does not exist.
pub fn simulate_failure(
    profile: Profile,
    bit_error_rate: f64,
    decodes: u64,
    seed: u64,
    threads: usize,
    progress: &(dyn Fn(u64) -> bool + Sync),
) -> Result<FailureReport, ExtractorError> {
    let counts = Counts::default();
    let chunks = decodes.div_ceil(CHUNK);
    let work = || -> Result<(), ExtractorError> {
        loop {
            let chunk = counts.next_chunk.fetch_add(1, Ordering::Relaxed);
            if chunk >= chunks || counts.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let size = CHUNK.min(decodes - chunk * CHUNK);
            run_chunk(profile, bit_error_rate, size, seed, chunk, &counts)?;
            let done = counts.decodes.fetch_add(size, Ordering::Relaxed) + size;
            if !progress(done) {
                counts.stop.store(true, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (1..threads.max(1)).map(|_| scope.spawn(work)).collect();
        let own_result = work();
        let mut results = workers
            .into_iter()
            .map(|w| w.join().unwrap_or(Err(ExtractorError::Interrupted)));
        results.try_fold((), |(), result| result).and(own_result)
    })?;
    Ok(counts.report(profile, bit_error_rate))
}

#[derive(Default)]
struct Counts {
    next_chunk: AtomicU64,
    decodes: AtomicU64,
    uncorrectable: AtomicU64,
    wrong: AtomicU64,
    stop: AtomicBool,
}

impl Counts {
    fn report(&self, profile: Profile, bit_error_rate: f64) -> FailureReport {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (decodes, uncorrectable, wrong) =
            (load(&self.decodes), load(&self.uncorrectable), load(&self.wrong));
        let failures = uncorrectable + wrong;
        FailureReport {
            profile: profile.to_string(),
            bit_error_rate,
            decodes,
            uncorrectable,
            wrong,
            computed: profile.failure(bit_error_rate).rebuild,
            observed: failures as f64 / decodes.max(1) as f64,
            upper_99: upper_limit(decodes, failures, 0.01),
        }
    }
}

fn run_chunk(
    profile: Profile,
    bit_error_rate: f64,
    size: u64,
    seed: u64,
    chunk: u64,
    counts: &Counts,
) -> Result<(), ExtractorError> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(chunk);
    let response = Bits::from_words(
        (0..profile.response_bits().div_ceil(64))
            .map(|_| rng.next_u64())
            .collect(),
        profile.response_bits(),
    );
    let (secret, offset) = extractor::code_offset(profile, &response, &mut rng)?;
    for _ in 0..size {
        let mut reading = response.clone();
        reading.change_words(|words| {
            words
                .iter_mut()
                .for_each(|w| *w ^= error_bits(bit_error_rate, &mut rng))
        });
        match extractor::rebuild(profile, &reading, &offset) {
            Ok(rebuilt) if rebuilt == secret => {}
            Ok(_) => drop(counts.wrong.fetch_add(1, Ordering::Relaxed)),
            Err(ExtractorError::Uncorrectable) => drop(counts.uncorrectable.fetch_add(1, Ordering::Relaxed)),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// 64 independent bits; each bit is one with probability `p`.
///
/// Compares 64 uniform numbers with `p` bit by bit from the most significant bit, until all comparisons are decided.
fn error_bits<R: Rng + ?Sized>(p: f64, rng: &mut R) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates, as required for p = 1"
    )]
    let threshold = (p.clamp(0.0, 1.0) * 2.0_f64.powi(64)) as u64;
    let (mut ones, mut undecided) = (0, u64::MAX);
    for bit in (0..64).rev() {
        let uniform = rng.next_u64();
        if threshold >> bit & 1 == 1 {
            ones |= undecided & !uniform;
            undecided &= uniform;
        } else {
            undecided &= !uniform;
        }
        if undecided == 0 {
            break;
        }
    }
    ones
}

/// The failure probability at which `failures` or fewer failures occur with probability `alpha`.
fn upper_limit(decodes: u64, failures: u64, alpha: f64) -> f64 {
    if decodes == 0 {
        return 1.0;
    }
    let (mut low, mut high) = (failures as f64 / decodes as f64, 1.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if super::binomial::lower_tail(decodes, middle, failures) > alpha {
            low = middle
        } else {
            high = middle
        }
    }
    high
}

/// Rebuilds per second for a report's table.
pub fn rate_per_s(decodes: u64, elapsed: Duration) -> f64 {
    decodes as f64 / elapsed.as_secs_f64().max(1e-9)
}
