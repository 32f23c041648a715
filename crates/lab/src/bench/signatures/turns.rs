//! Ways to do something, in turns.

use std::time::{Duration, Instant};

use super::Size;
use crate::bench::BenchError;

/// A way to do something.
pub(super) struct Way<'a> {
    /// Dotted, as rows name it.
    pub(super) name: String,
    once: Box<dyn FnMut() -> Result<Done, BenchError> + 'a>,
}

/// What was done in how long; what prepares it is not counted.
pub(super) struct Done {
    pub(super) times: usize,
    pub(super) took: Duration,
}

impl<'a> Way<'a> {
    /// `once` does it some times, and says how often and in how long.
    pub(super) fn new(name: impl Into<String>, once: impl FnMut() -> Result<Done, BenchError> + 'a) -> Self {
        Self {
            name: name.into(),
            once: Box::new(once),
        }
    }

    /// Does it for a round's length at least. Seconds for each.
    fn round(&mut self, size: &Size) -> Result<f64, BenchError> {
        let (mut times, mut took) = (0, Duration::ZERO);
        while took < Duration::from_millis(size.round_ms) {
            let done = (self.once)()?;
            times += done.times;
            took += done.took;
        }
        Ok(took.as_secs_f64() / times.max(1) as f64)
    }
}

/// Does `work`, which is so many times what is measured.
pub(super) fn timed<T>(times: usize, work: impl FnOnce() -> T) -> (T, Done) {
    let begin = Instant::now();
    let result = work();
    let took = begin.elapsed();
    (result, Done { times, took })
}

/// Seconds that each way takes, the best of all rounds.
pub(super) fn best(size: &Size, ways: &mut [Way<'_>]) -> Result<Vec<f64>, BenchError> {
    let mut best = vec![f64::MAX; ways.len()];
    for _ in 0..size.runs {
        for (best, way) in best.iter_mut().zip(&mut *ways) {
            *best = best.min(way.round(size)?);
        }
    }
    Ok(best)
}
