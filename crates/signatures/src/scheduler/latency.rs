//! Latencies by priority.

use hdrhistogram::{CreationError, Histogram};

use super::job::Priority;
use super::time::Span;

/// Greatest recorded latency: longer latencies count as one minute.
const LONGEST_NS: u64 = 60_000_000_000;
/// Significant digits: values are exact to one percent.
const DIGITS: u8 = 2;

/// A histogram of latencies for each priority, from arrival to result, in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyHistograms {
    histograms: Vec<Histogram<u64>>,
    missed_deadlines: Vec<u64>,
}

impl LatencyHistograms {
    /// Empty histograms; 30 KiB for each priority.
    ///
    /// # Errors
    /// None: the constructor of the histogram accepts these bounds.
    pub fn new() -> Result<Self, CreationError> {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, DIGITS)?;
        Ok(Self {
            histograms: vec![histogram; Priority::COUNT],
            missed_deadlines: vec![0; Priority::COUNT],
        })
    }

    /// Records a result, and whether it missed its deadline.
    pub fn record(&mut self, priority: Priority, latency: Span, is_late: bool) {
        let index = usize::from(priority.number());
        if let (Some(histogram), Some(count)) = (
            self.histograms.get_mut(index),
            self.missed_deadlines.get_mut(index),
        ) {
            histogram.saturating_record(latency.as_nanos());
            *count += u64::from(is_late);
        }
    }

    /// Adds all entries of another value.
    ///
    /// # Errors
    /// None: all histograms have the same bounds.
    pub fn add(&mut self, other: &Self) -> Result<(), hdrhistogram::AdditionError> {
        for (sum, addend) in self.histograms.iter_mut().zip(&other.histograms) {
            sum.add(addend)?;
        }
        self.missed_deadlines
            .iter_mut()
            .zip(&other.missed_deadlines)
            .for_each(|(sum, addend)| *sum += addend);
        Ok(())
    }

    /// Results of a priority.
    pub fn count(&self, priority: Priority) -> u64 {
        self.histogram(priority).map_or(0, Histogram::len)
    }

    /// Results of a priority that missed their deadlines.
    pub fn missed_deadlines(&self, priority: Priority) -> u64 {
        self.missed_deadlines
            .get(usize::from(priority.number()))
            .copied()
            .unwrap_or(0)
    }

    /// The latency that this fraction of a priority's results does not exceed (0.99: the 99th percentile);
    /// zero without results.
    pub fn quantile(&self, priority: Priority, fraction: f64) -> Span {
        Span::from_nanos(
            self.histogram(priority)
                .map_or(0, |histogram| histogram.value_at_quantile(fraction)),
        )
    }

    /// Like [`LatencyHistograms::quantile`], over all priorities except immediate.
    ///
    /// # Errors
    /// None: all histograms have the same bounds.
    pub fn quantile_of_others(&self, fraction: f64) -> Result<Span, hdrhistogram::AdditionError> {
        let mut others = self.histograms.iter().skip(1);
        let Some(first) = others.next() else {
            return Ok(Span::ZERO);
        };
        let mut sum = first.clone();
        others.try_for_each(|histogram| sum.add(histogram))?;
        Ok(Span::from_nanos(sum.value_at_quantile(fraction)))
    }

    /// All latencies of a priority.
    pub fn histogram(&self, priority: Priority) -> Option<&Histogram<u64>> {
        self.histograms.get(usize::from(priority.number()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_counted_by_priority_and_added() {
        let mut latencies = LatencyHistograms::new().unwrap();
        for micros in 1..=100 {
            latencies.record(Priority::new(3), Span::from_micros(micros), micros > 90);
            latencies.record(Priority::IMMEDIATE, Span::from_nanos(5), false);
        }
        let mut sum = LatencyHistograms::new().unwrap();
        sum.add(&latencies).unwrap();
        sum.add(&latencies).unwrap();
        assert_eq!(
            (
                sum.count(Priority::new(3)),
                sum.missed_deadlines(Priority::new(3))
            ),
            (200, 20)
        );
        let p99 = sum.quantile(Priority::new(3), 0.99).as_nanos();
        assert!((98_500..100_000).contains(&p99), "{p99}");
        assert_eq!(
            sum.quantile_of_others(0.99).unwrap().as_nanos(),
            p99,
            "immediate results are excluded"
        );
        assert_eq!(sum.quantile(Priority::new(4), 0.5), Span::ZERO);
        assert_eq!(
            (
                sum.count(Priority::IMMEDIATE),
                sum.missed_deadlines(Priority::IMMEDIATE)
            ),
            (200, 0)
        );
        sum.record(Priority::LEAST, Span::MAX, true);
        assert!(sum.quantile(Priority::LEAST, 1.0) >= Span::from_nanos(LONGEST_NS));
    }
}
