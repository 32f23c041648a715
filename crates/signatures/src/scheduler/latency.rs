//! Latencies by priority.

use hdrhistogram::{CreationError, Histogram};

use super::job::Priority;
use super::time::Span;

/// Longer latencies count as this: a minute.
const LONGEST_NS: u64 = 60_000_000_000;
/// Significant digits: values are exact to one per cent.
const DIGITS: u8 = 2;

/// A histogram of latencies for each priority, from arrival to result, in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyBook {
    histograms: Vec<Histogram<u64>>,
    late: Vec<u64>,
}

impl LatencyBook {
    /// An empty one; 30 KiB for each priority.
    ///
    /// # Errors
    /// There are none with these bounds; the histogram's constructor has the type.
    pub fn new() -> Result<Self, CreationError> {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, DIGITS)?;
        Ok(Self {
            histograms: vec![histogram; Priority::COUNT],
            late: vec![0; Priority::COUNT],
        })
    }

    /// Notes a result, and whether it came after its deadline.
    pub fn record(&mut self, priority: Priority, latency: Span, late: bool) {
        let at = usize::from(priority.number());
        if let (Some(histogram), Some(count)) = (self.histograms.get_mut(at), self.late.get_mut(at)) {
            histogram.saturating_record(latency.as_nanos());
            *count += u64::from(late);
        }
    }

    /// Adds all of another's.
    ///
    /// # Errors
    /// There are none: all books have the same bounds.
    pub fn add(&mut self, other: &Self) -> Result<(), hdrhistogram::AdditionError> {
        for (mine, others) in self.histograms.iter_mut().zip(&other.histograms) {
            mine.add(others)?;
        }
        self.late
            .iter_mut()
            .zip(&other.late)
            .for_each(|(mine, others)| *mine += others);
        Ok(())
    }

    /// Results of a priority.
    pub fn count(&self, priority: Priority) -> u64 {
        self.histogram(priority).map_or(0, Histogram::len)
    }

    /// Results of a priority that came after their deadline.
    pub fn late(&self, priority: Priority) -> u64 {
        self.late
            .get(usize::from(priority.number()))
            .copied()
            .unwrap_or(0)
    }

    /// The latency that this part of a priority's results does not exceed (0.99: the 99th percentile); zero
    /// if there are none.
    pub fn quantile(&self, priority: Priority, part: f64) -> Span {
        Span::from_nanos(
            self.histogram(priority)
                .map_or(0, |histogram| histogram.value_at_quantile(part)),
        )
    }

    /// The same over all priorities but the immediate one.
    ///
    /// # Errors
    /// There are none: all histograms have the same bounds.
    pub fn quantile_of_others(&self, part: f64) -> Result<Span, hdrhistogram::AdditionError> {
        let mut others = self.histograms.iter().skip(1);
        let Some(first) = others.next() else {
            return Ok(Span::ZERO);
        };
        let mut sum = first.clone();
        others.try_for_each(|histogram| sum.add(histogram))?;
        Ok(Span::from_nanos(sum.value_at_quantile(part)))
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
    fn it_counts_by_priority_and_adds_up() {
        let mut book = LatencyBook::new().unwrap();
        for micros in 1..=100 {
            book.record(Priority::new(3), Span::from_micros(micros), micros > 90);
            book.record(Priority::IMMEDIATE, Span::from_nanos(5), false);
        }
        let mut sum = LatencyBook::new().unwrap();
        sum.add(&book).unwrap();
        sum.add(&book).unwrap();
        assert_eq!(
            (sum.count(Priority::new(3)), sum.late(Priority::new(3))),
            (200, 20)
        );
        let p99 = sum.quantile(Priority::new(3), 0.99).as_nanos();
        assert!((98_500..100_000).contains(&p99), "{p99}");
        assert_eq!(
            sum.quantile_of_others(0.99).unwrap().as_nanos(),
            p99,
            "immediate ones are left out"
        );
        assert_eq!(sum.quantile(Priority::new(4), 0.5), Span::ZERO);
        assert_eq!(
            (sum.count(Priority::IMMEDIATE), sum.late(Priority::IMMEDIATE)),
            (200, 0)
        );
        sum.record(Priority::LEAST, Span::MAX, true);
        assert!(sum.quantile(Priority::LEAST, 1.0) >= Span::from_nanos(LONGEST_NS));
    }
}
