//! Handling times: how long a data plane takes for an authentication, measured on a sample.
//!
//! The handling time begins when a RESPONSE has been parsed and ends when its ACK is written. A device also waits for
//! the network, for its PUF and, at a gateway that does not hold its rows yet, for these rows. One in
//! [`SAMPLE_INTERVAL`] RESPONSEs is timed, because reading a clock costs more than a hash. Only accepted RESPONSEs
//! count.

/// One in this many RESPONSEs is timed, on each CPU or thread.
pub const SAMPLE_INTERVAL: u64 = 16;
/// Number of buckets of a histogram: four per power of two. Times above 4.3 s are counted in the bucket that ends at 4.3 s.
pub const HANDLING_BUCKETS: usize = 128;

/// Histogram of the handling times (ns) that were measured since the data plane started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlingTimes {
    /// Number of measurements per bucket, see [`bucket_of`].
    pub buckets: [u64; HANDLING_BUCKETS],
}

impl Default for HandlingTimes {
    fn default() -> Self {
        Self {
            buckets: [0; HANDLING_BUCKETS],
        }
    }
}

/// The bucket of a time. Below 4 ns each value has its own bucket; above, the highest bit and the two bits below it
/// select the bucket.
#[must_use]
pub fn bucket_of(ns: u64) -> usize {
    let ns = ns.min(u64::from(u32::MAX));
    let high = ns.max(1).ilog2();
    let bucket = match high {
        0 | 1 => ns,
        _ => u64::from(high - 1) << 2 | (ns >> (high - 2) & 3),
    };
    usize::try_from(bucket).unwrap_or(HANDLING_BUCKETS - 1)
}

/// The end of a bucket: the smallest time above it, ns.
#[must_use]
pub fn bucket_end_ns(bucket: usize) -> u64 {
    match u64::try_from(bucket)
        .unwrap_or(u64::MAX)
        .min(HANDLING_BUCKETS as u64 - 1)
    {
        bucket @ 0..4 => bucket + 1,
        bucket => (4 + (bucket & 3) + 1) << ((bucket >> 2) - 1),
    }
}

impl HandlingTimes {
    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        self.buckets
            .iter_mut()
            .zip(other.buckets)
            .for_each(|(sum, count)| *sum = sum.saturating_add(count));
    }

    /// The measurements since the earlier snapshot `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut out = self.clone();
        out.buckets
            .iter_mut()
            .zip(before.buckets)
            .for_each(|(count, earlier)| *count = count.saturating_sub(earlier));
        out
    }

    /// Number of measurements.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets
            .iter()
            .fold(0, |sum, bucket| sum.saturating_add(*bucket))
    }

    /// The time in ns that `per_mille` of each 1000 measurements do not exceed, rounded up to the end of its bucket: at
    /// most a quarter above the true value. `None` without measurements.
    #[must_use]
    pub fn per_mille_ns(&self, per_mille: u64) -> Option<u64> {
        let rank = self.count().checked_mul(per_mille)?.div_ceil(1000).max(1);
        let mut below = 0_u64;
        let bucket = self.buckets.iter().position(|count| {
            below = below.saturating_add(*count);
            below >= rank
        });
        bucket.map(bucket_end_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_in_its_bucket_and_buckets_are_contiguous() {
        let mut ends = 0;
        for bucket in 0..HANDLING_BUCKETS - 4 {
            let begins = ends;
            ends = bucket_end_ns(bucket);
            for ns in [begins, ends - 1] {
                assert_eq!(bucket_of(ns), bucket, "{ns} ns");
            }
            assert!(bucket < 4 || (ends - begins) * 4 <= begins, "{bucket}");
        }
        assert_eq!((ends, bucket_of(ends)), (1 << 32, HANDLING_BUCKETS - 5));
        assert_eq!(bucket_of(u64::MAX), HANDLING_BUCKETS - 5);
    }

    #[test]
    fn percentiles_cover_the_times_between_two_snapshots() {
        let mut before = HandlingTimes::default();
        assert_eq!(before.per_mille_ns(500), None);
        before.buckets[bucket_of(1_000_000)] = 50;
        let mut now = before.clone();
        now.buckets[bucket_of(1000)] += 98;
        now.buckets[bucket_of(9000)] += 2;
        let between = now.since(&before);
        assert_eq!(between.count(), 100);
        assert_eq!(between.per_mille_ns(500), Some(bucket_end_ns(bucket_of(1000))));
        assert_eq!(between.per_mille_ns(980), Some(bucket_end_ns(bucket_of(1000))));
        assert_eq!(between.per_mille_ns(990), Some(bucket_end_ns(bucket_of(9000))));
        assert_eq!(between.since(&now).per_mille_ns(990), None);
    }
}
