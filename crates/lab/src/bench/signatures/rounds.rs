//! Alternating measurements of several implementations.

use std::time::{Duration, Instant};

use super::Size;
use crate::bench::BenchError;

/// An operation to measure.
pub(super) struct Measurement<'a> {
    /// Dotted name in rows.
    pub(super) name: String,
    run: Box<dyn FnMut() -> Result<Timing, BenchError> + 'a>,
}

/// Number of operations and their time, without preparation.
pub(super) struct Timing {
    pub(super) count: usize,
    pub(super) elapsed: Duration,
}

impl<'a> Measurement<'a> {
    /// `run` performs the operation one or more times; returns the number of operations and their time.
    pub(super) fn new(name: impl Into<String>, run: impl FnMut() -> Result<Timing, BenchError> + 'a) -> Self {
        Self {
            name: name.into(),
            run: Box::new(run),
        }
    }

    /// Repeats the operation for at least the length of a round; returns the seconds per operation.
    fn round(&mut self, size: &Size) -> Result<f64, BenchError> {
        let (mut count, mut elapsed) = (0, Duration::ZERO);
        while elapsed < Duration::from_millis(size.round_ms) {
            let timing = (self.run)()?;
            count += timing.count;
            elapsed += timing.elapsed;
        }
        Ok(elapsed.as_secs_f64() / count.max(1) as f64)
    }
}

/// Measures `work`, which performs the operation `count` times.
pub(super) fn timed<T>(count: usize, work: impl FnOnce() -> T) -> (T, Timing) {
    let begin = Instant::now();
    let result = work();
    let elapsed = begin.elapsed();
    (result, Timing { count, elapsed })
}

/// Seconds per operation of each measurement in its best round.
pub(super) fn best_of_rounds(
    size: &Size,
    measurements: &mut [Measurement<'_>],
) -> Result<Vec<f64>, BenchError> {
    let mut best = vec![f64::MAX; measurements.len()];
    for _ in 0..size.runs {
        for (best, measurement) in best.iter_mut().zip(&mut *measurements) {
            *best = best.min(measurement.round(size)?);
        }
    }
    Ok(best)
}
