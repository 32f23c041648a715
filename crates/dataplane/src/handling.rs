//! How long a data plane takes for an authentication, measured on some of them.
//!
//! Handling begins when a RESPONSE has been parsed and ends when its ACK is written: it is what the data plane itself adds. What a
//! device sees has the network, its PUF and, at a gateway that is new to it, the wait for rows on top. Of all RESPONSEs every
//! [`TIMED_OF`]th is timed, for reading a clock costs more than a hash; of these, only those that are accepted count.

/// Of so many RESPONSEs one is timed, on each CPU or thread.
pub const TIMED_OF: u64 = 16;
/// Buckets of a histogram: four to each power of two, up to 4.3 s; what takes longer is in the last of these.
pub const HANDLING_BUCKETS: usize = 128;

/// A histogram of handling times, ns, since the data plane's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handling {
    /// How many took as long as the bucket says, see [`bucket_of`].
    pub buckets: [u64; HANDLING_BUCKETS],
}

impl Default for Handling {
    fn default() -> Self {
        Self {
            buckets: [0; HANDLING_BUCKETS],
        }
    }
}

/// The bucket of a time: below 4 ns its own, then by its highest bit and the two below that.
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

/// The first time, ns, that is beyond a bucket.
#[must_use]
pub fn end_ns(bucket: usize) -> u64 {
    match u64::try_from(bucket)
        .unwrap_or(u64::MAX)
        .min(HANDLING_BUCKETS as u64 - 1)
    {
        bucket @ 0..4 => bucket + 1,
        bucket => (4 + (bucket & 3) + 1) << ((bucket >> 2) - 1),
    }
}

impl Handling {
    /// Adds another one.
    pub fn merge(&mut self, other: &Self) {
        self.buckets
            .iter_mut()
            .zip(other.buckets)
            .for_each(|(sum, more)| *sum = sum.saturating_add(more));
    }

    /// What was measured since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut out = self.clone();
        out.buckets
            .iter_mut()
            .zip(before.buckets)
            .for_each(|(sum, less)| *sum = sum.saturating_sub(less));
        out
    }

    /// How many were measured.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets
            .iter()
            .fold(0, |sum, bucket| sum.saturating_add(*bucket))
    }

    /// So many in a thousand took no longer than this, ns: the end of a bucket, at most a quarter above the true value. `None`:
    /// nothing was measured.
    #[must_use]
    pub fn per_mille_ns(&self, per_mille: u64) -> Option<u64> {
        let rank = self.count().checked_mul(per_mille)?.div_ceil(1000).max(1);
        let mut below = 0_u64;
        let bucket = self.buckets.iter().position(|count| {
            below = below.saturating_add(*count);
            below >= rank
        });
        bucket.map(end_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_lies_in_its_bucket_and_buckets_follow_each_other() {
        let mut ends = 0;
        for bucket in 0..HANDLING_BUCKETS - 4 {
            let begins = ends;
            ends = end_ns(bucket);
            for ns in [begins, ends - 1] {
                assert_eq!(bucket_of(ns), bucket, "{ns} ns");
            }
            assert!(bucket < 4 || (ends - begins) * 4 <= begins, "{bucket}");
        }
        assert_eq!((ends, bucket_of(ends)), (1 << 32, HANDLING_BUCKETS - 5));
        assert_eq!(bucket_of(u64::MAX), HANDLING_BUCKETS - 5);
    }

    #[test]
    fn percentiles_are_of_what_was_measured_between_two_looks() {
        let mut before = Handling::default();
        assert_eq!(before.per_mille_ns(500), None);
        before.buckets[bucket_of(1_000_000)] = 50;
        let mut now = before.clone();
        now.buckets[bucket_of(1000)] += 98;
        now.buckets[bucket_of(9000)] += 2;
        let between = now.since(&before);
        assert_eq!(between.count(), 100);
        assert_eq!(between.per_mille_ns(500), Some(end_ns(bucket_of(1000))));
        assert_eq!(between.per_mille_ns(980), Some(end_ns(bucket_of(1000))));
        assert_eq!(between.per_mille_ns(990), Some(end_ns(bucket_of(9000))));
        assert_eq!(between.since(&now).per_mille_ns(990), None);
    }
}
