//! Traces: the order in which devices authenticate.

use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// A kind of access pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trace {
    /// Independent draws: the k-th most frequent device has a frequency proportional to 1/k.
    Zipf,
    /// All devices in order, repeatedly.
    Scan,
    /// [`Trace::Zipf`] and [`Trace::Scan`] alternately, each for two and a half accesses per slot.
    Mixed,
    /// [`Trace::Zipf`], with other frequent devices in the second half.
    Shift,
}

impl Trace {
    pub(super) const ALL: [Self; 4] = [Self::Zipf, Self::Scan, Self::Mixed, Self::Shift];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Zipf => "zipf",
            Self::Scan => "scan",
            Self::Mixed => "mixed",
            Self::Shift => "shift",
        }
    }

    /// Target ratio of the gateway's hit rate to LRU's. `None`: no ratio, because no policy has hits; `Some(None)`: no
    /// target.
    pub(super) fn target(self) -> Option<Option<f64>> {
        match self {
            Self::Zipf => Some(Some(1.02)),
            Self::Scan => None,
            Self::Mixed => Some(Some(1.2)),
            Self::Shift => Some(None),
        }
    }

    /// Returns the device number of each access, below `devices`.
    pub(super) fn accesses(self, devices: u32, slots: u32, count: u32) -> Vec<u32> {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let zipf = Zipf::new(devices, &mut rng);
        let shifted = Zipf::new(devices, &mut rng);
        let phase_len = u64::from(slots) * 5 / 2;
        let mut scanned = 0;
        let count = match self {
            // Three passes are enough.
            Self::Scan => count.min(3 * devices),
            _ => count,
        };
        (0..count)
            .map(|position| {
                let is_scan = match self {
                    Self::Zipf | Self::Shift => false,
                    Self::Scan => true,
                    Self::Mixed => u64::from(position) / phase_len.max(1) % 2 == 1,
                };
                if is_scan {
                    scanned += 1;
                    return (scanned - 1) % devices;
                }
                match self == Self::Shift && position >= count / 2 {
                    true => shifted.draw(&mut rng),
                    false => zipf.draw(&mut rng),
                }
            })
            .collect()
    }
}

/// Zipf's distribution with exponent 1.
struct Zipf {
    /// `sums[k]`: sum of the weights of the first k + 1 devices.
    sums: Vec<f64>,
    /// Devices by decreasing frequency.
    devices: Vec<u32>,
}

impl Zipf {
    fn new(devices: u32, rng: &mut ChaCha8Rng) -> Self {
        let mut order: Vec<u32> = (0..devices).collect();
        order.shuffle(rng);
        let mut sum = 0.0;
        let sums = (1..=devices).map(|rank| {
            sum += 1.0 / f64::from(rank);
            sum
        });
        Self {
            sums: sums.collect(),
            devices: order,
        }
    }

    fn draw(&self, rng: &mut ChaCha8Rng) -> u32 {
        let total = self.sums.last().copied().unwrap_or_default();
        let drawn = rng.random_range(0.0..total);
        let rank = self.sums.partition_point(|sum| *sum <= drawn);
        self.devices.get(rank).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_follow_the_zipf_distribution() {
        let accesses = Trace::Zipf.accesses(100, 10, 50_000);
        let mut counts = [0u32; 100];
        for device in accesses {
            counts[device as usize] += 1;
        }
        counts.sort_unstable_by_key(|count| std::cmp::Reverse(*count));
        let harmonic: f64 = (1..=100).map(|rank| 1.0 / f64::from(rank)).sum();
        for rank in [1, 2, 5] {
            let expected = 50_000.0 / harmonic / rank as f64;
            let found = f64::from(counts[rank - 1]);
            assert!((found / expected - 1.0).abs() < 0.1, "{rank}: {found} {expected}");
        }
    }

    #[test]
    fn scans_resume_at_their_last_device_and_the_frequent_devices_change() {
        let mixed = Trace::Mixed.accesses(1000, 10, 100);
        let expected: Vec<u32> = (0..50).collect();
        let scanned: Vec<u32> = mixed.chunks(25).skip(1).step_by(2).flatten().copied().collect();
        assert_eq!(scanned, expected);
        let shift = Trace::Shift.accesses(1000, 10, 20_000);
        let most = |part: &[u32]| {
            let count = |device: &u32| part.iter().filter(|other| *other == device).count();
            (0..1000).max_by_key(count)
        };
        assert_ne!(most(&shift[..10_000]), most(&shift[10_000..]));
    }
}
