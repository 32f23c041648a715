//! Health test of a readout: checks whether the readout can be a new reading of a PUF.
//!
//! The test detects a PUF that is dead, stuck, read at the wrong address or replayed by its driver. The test does not
//! estimate entropy; see [`crate::entropy`].

use serde::{Deserialize, Serialize};

use crate::{bits::Bits, code::binomial::upper_tail};

/// The limits of the health test.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HealthTest {
    /// The least share of ones.
    pub ones_min: f64,
    /// The largest share of ones.
    pub ones_max: f64,
    /// The probability that a healthy window or run is refused, as a negative power of two (40 means 2^-40).
    pub false_alarm_log2: u32,
    /// The largest share of positions that may agree with a copy shifted by 1 to 64 positions.
    pub periodic_max: f64,
    /// The largest share of bits in which two consecutive readouts may differ.
    pub distance_max: f64,
    /// Whether two identical readouts are refused.
    pub refuse_identical: bool,
}

impl Default for HealthTest {
    fn default() -> Self {
        Self {
            ones_min: 0.35,
            ones_max: 0.65,
            false_alarm_log2: 40,
            periodic_max: 0.9,
            distance_max: 0.3,
            refuse_identical: true,
        }
    }
}

/// A readout was refused.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HealthError {
    /// There are no bits.
    #[error("the readout is empty; check the PUF's driver")]
    Empty,
    /// All bits are equal.
    #[error("all {bits} bits are {value}; the PUF is not powered, or was read after initialization")]
    Constant {
        /// The value of all bits.
        value: u8,
        /// The number of bits.
        bits: usize,
    },
    /// Too few or too many ones.
    #[error("the share of ones is {share:.3}, allowed is {min} to {max}; the PUF is damaged or too biased")]
    Weight {
        /// The share of ones.
        share: f64,
        /// The lower limit.
        min: f64,
        /// The upper limit.
        max: f64,
    },
    /// The readout repeats itself, such as 0x55 or a counter pattern.
    #[error("the readout repeats itself every {period} bits; this is a fill pattern, not power-up state")]
    Periodic {
        /// The period in bits.
        period: usize,
    },
    /// A run of equal bits is too long (SP 800-90B, 4.4.1).
    #[error("{length} equal bits in a row at bit {position}, allowed are {limit}; part of the PUF is stuck")]
    Run {
        /// The first bit of the run, counted from 0.
        position: usize,
        /// The length of the run.
        length: usize,
        /// The maximum allowed length.
        limit: usize,
    },
    /// A window has too many equal bits (SP 800-90B, 4.4.2).
    #[error(
        "{count} of 1024 bits from bit {position} are equal, allowed are {limit}; part of the PUF is stuck"
    )]
    Proportion {
        /// The first bit of the window, counted from 0.
        position: usize,
        /// The count of the more frequent value.
        count: usize,
        /// The maximum allowed count.
        limit: usize,
    },
    /// Two consecutive readouts are the same.
    #[error(
        "two consecutive readouts agree in all {bits} bits; the second one is a copy, not a new power-up"
    )]
    Identical {
        /// The number of bits.
        bits: usize,
    },
    /// Two consecutive readouts are too different.
    #[error(
        "two consecutive readouts differ in {share:.3} of their bits, allowed is {max}; check that both are from the same device"
    )]
    TooFar {
        /// The share of differing bits.
        share: f64,
        /// The maximum allowed share.
        max: f64,
    },
    /// Two readouts have different lengths.
    #[error("consecutive readouts have {first} and {second} bits; read the same range each time")]
    Lengths {
        /// Bits of the first readout.
        first: usize,
        /// Bits of the second readout.
        second: usize,
    },
}

/// The window of the adaptive proportion test for binary sources (SP 800-90B, 4.4.2).
const WINDOW: usize = 1024;

impl HealthTest {
    /// Tests one readout.
    ///
    /// # Errors
    /// [`HealthError`] with the first limit that is exceeded.
    pub fn check(&self, readout: &Bits) -> Result<(), HealthError> {
        let (bits, ones) = (readout.len(), readout.count_ones());
        if bits == 0 {
            return Err(HealthError::Empty);
        }
        if ones == 0 || ones == bits {
            return Err(HealthError::Constant {
                value: u8::from(ones > 0),
                bits,
            });
        }
        let share = ones as f64 / bits as f64;
        if !(self.ones_min..=self.ones_max).contains(&share) {
            return Err(HealthError::Weight {
                share,
                min: self.ones_min,
                max: self.ones_max,
            });
        }
        self.check_period(readout)?;
        self.check_runs(readout)?;
        self.check_windows(readout)
    }

    /// Tests two consecutive readouts of one PUF and one challenge.
    ///
    /// # Errors
    /// [`HealthError`] if the readouts are identical, differ too much, or have different lengths.
    pub fn check_pair(&self, first: &Bits, second: &Bits) -> Result<(), HealthError> {
        if first.len() != second.len() {
            return Err(HealthError::Lengths {
                first: first.len(),
                second: second.len(),
            });
        }
        let differing = first.distance(second);
        if differing == 0 && self.refuse_identical {
            return Err(HealthError::Identical { bits: first.len() });
        }
        let share = differing as f64 / first.len().max(1) as f64;
        if share > self.distance_max {
            return Err(HealthError::TooFar {
                share,
                max: self.distance_max,
            });
        }
        Ok(())
    }

    /// The largest probability of one value that the limits allow.
    fn bias(&self) -> f64 {
        self.ones_max.max(1.0 - self.ones_min).clamp(0.5, 1.0)
    }

    fn check_period(&self, readout: &Bits) -> Result<(), HealthError> {
        // A shorter readout could agree by chance with its shifted copy.
        for period in (1..=64).filter(|period| readout.len() >= 256 + period) {
            let overlap = readout.len() - period;
            let differing: usize = (0..overlap.div_ceil(64))
                .map(|i| {
                    let bits_used = (overlap - 64 * i).min(64);
                    let mask = u64::MAX >> (64 - bits_used);
                    let difference = readout.word_at(64 * i) ^ readout.word_at(64 * i + period);
                    (difference & mask).count_ones() as usize
                })
                .sum();
            if 1.0 - differing as f64 / overlap as f64 > self.periodic_max {
                return Err(HealthError::Periodic { period });
            }
        }
        Ok(())
    }

    /// The repetition count test: cutoff `1 + ceil(-log2 α / H)`, with the false alarm probability `α` and the
    /// min-entropy `H` per bit.
    fn check_runs(&self, readout: &Bits) -> Result<(), HealthError> {
        let per_bit = -self.bias().log2();
        if per_bit <= 0.0 {
            return Ok(());
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, saturates"
        )]
        let limit = (f64::from(self.false_alarm_log2) / per_bit).ceil() as usize;
        if !has_run_above(readout, limit) {
            return Ok(());
        }
        let (mut value, mut start) = (None, 0);
        for (i, bit) in readout.iter().enumerate() {
            if value != Some(bit) {
                (value, start) = (Some(bit), i);
            }
            let length = i + 1 - start;
            if length > limit {
                return Err(HealthError::Run {
                    position: start,
                    length,
                    limit,
                });
            }
        }
        Ok(())
    }

    fn check_windows(&self, readout: &Bits) -> Result<(), HealthError> {
        let limit = self.count_limit(WINDOW);
        let windows = readout.len() / WINDOW;
        for (index, words) in readout
            .words()
            .chunks_exact(WINDOW / 64)
            .take(windows)
            .enumerate()
        {
            let ones: usize = words.iter().map(|w| w.count_ones() as usize).sum();
            let count = ones.max(WINDOW - ones);
            if count > limit {
                return Err(HealthError::Proportion {
                    position: index * WINDOW,
                    count,
                    limit,
                });
            }
        }
        Ok(())
    }

    /// The probability that a healthy window is refused.
    pub(crate) fn false_alarm(&self) -> f64 {
        (-f64::from(self.false_alarm_log2)).exp2()
    }

    /// The maximum number of bits with one value among `bits` bits: the smallest count that is exceeded with at most
    /// the false alarm probability, by bisection.
    pub(crate) fn count_limit(&self, bits: usize) -> usize {
        let (mut low, mut high) = (bits / 2, bits);
        while low < high {
            let middle = (low + high) / 2;
            if upper_tail(bits as u64, self.bias(), middle as u64) <= self.false_alarm() {
                high = middle
            } else {
                low = middle + 1
            }
        }
        low
    }
}

/// Whether more than `limit` consecutive bits are equal.
///
/// If bit `i` of `equal` is set, bits `i … i + reach` are equal; each step doubles the reach as far as needed.
fn has_run_above(readout: &Bits, limit: usize) -> bool {
    if limit == 0 || readout.len() <= limit {
        return limit == 0 && !readout.is_empty();
    }
    let words = readout.len().div_ceil(64);
    let same = (0..words).map(|i| !(readout.word_at(64 * i) ^ readout.word_at(64 * i + 1)));
    // The last bit has no successor.
    let mut equal = Bits::from_words(same.collect(), readout.len() - 1);
    let mut reach = 1;
    while reach < limit && equal.words().iter().any(|&w| w != 0) {
        let step = reach.min(limit - reach);
        let extended = (0..words).map(|i| equal.word_at(64 * i) & equal.word_at(64 * i + step));
        equal = Bits::from_words(extended.collect(), equal.len());
        reach += step;
    }
    equal.words().iter().any(|&w| w != 0)
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn random(len: usize, p: f64, seed: u64) -> Bits {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        Bits::from_bools((0..len).map(|_| rng.random_bool(p)))
    }

    #[test]
    fn healthy_readouts_pass() {
        let test = HealthTest::default();
        for seed in 0..50 {
            for len in [1785, 4590, 65_536] {
                for p in [0.42, 0.5, 0.58] {
                    test.check(&random(len, p, seed))
                        .unwrap_or_else(|e| panic!("seed {seed}, {len}, {p}: {e}"));
                }
            }
        }
    }

    #[test]
    fn each_fault_has_its_own_error() {
        let test = HealthTest::default();
        let fill = |byte: u8| Bits::from_bytes(&[byte; 512]);
        assert_eq!(test.check(&Bits::zeros(0)), Err(HealthError::Empty));
        assert_eq!(
            test.check(&fill(0x00)),
            Err(HealthError::Constant { value: 0, bits: 4096 })
        );
        assert_eq!(
            test.check(&fill(0xff)),
            Err(HealthError::Constant { value: 1, bits: 4096 })
        );
        assert_eq!(test.check(&fill(0x55)), Err(HealthError::Periodic { period: 2 }));
        assert_eq!(test.check(&fill(0xaa)), Err(HealthError::Periodic { period: 2 }));
        assert_eq!(test.check(&fill(0x69)), Err(HealthError::Periodic { period: 8 }));
        assert!(matches!(
            test.check(&random(4096, 0.7, 1)),
            Err(HealthError::Weight { .. })
        ));

        let stuck = |len: usize, from: usize, count: usize| {
            let mut bits = random(len, 0.5, 2);
            (from..from + count).for_each(|i| bits.set(i, true));
            bits
        };
        assert!(matches!(
            test.check(&stuck(4096, 1000, 100)),
            Err(HealthError::Run { .. })
        ));
        let half = Bits::from_bools(
            (0..16_384)
                .zip(random(16_384, 0.5, 3).iter())
                .map(|(i, b)| if i / 1024 == 5 { i % 7 != 0 } else { b }),
        );
        let position = 5 * 1024;
        assert!(
            matches!(test.check(&half), Err(HealthError::Proportion { position: p, .. }) if p == position)
        );
    }

    #[test]
    fn the_longest_allowed_run_is_exact() {
        for (limit, start) in [
            (1, 0),
            (2, 5),
            (63, 60),
            (64, 0),
            (65, 1),
            (66, 190),
            (66, 700 - 67),
        ] {
            let alternating = Bits::from_bools((0..700).map(|i| i % 2 == 0));
            for value in [false, true] {
                let mut bits = alternating.clone();
                (start..start + limit).for_each(|i| bits.set(i, value));
                // Neighbors of the run have the other value, for any parity.
                bits.set(start + limit, !value);
                if start > 0 {
                    bits.set(start - 1, !value);
                }
                let longest = {
                    let values: Vec<bool> = bits.iter().collect();
                    values.chunk_by(|a, b| a == b).map(<[bool]>::len).max().unwrap()
                };
                assert!(!has_run_above(&bits, longest), "limit {limit} from {start}");
                assert!(has_run_above(&bits, longest - 1), "limit {limit} from {start}");
            }
        }
    }

    #[test]
    fn pairs_must_be_close_but_not_equal() {
        let test = HealthTest::default();
        let first = random(2000, 0.5, 4);
        let mut noisy = first.clone();
        (0..2000).step_by(20).for_each(|i| noisy.set(i, !first.get(i)));
        assert_eq!(test.check_pair(&first, &noisy), Ok(()));
        assert_eq!(
            test.check_pair(&first, &first),
            Err(HealthError::Identical { bits: 2000 })
        );
        assert!(matches!(
            test.check_pair(&first, &random(2000, 0.5, 5)),
            Err(HealthError::TooFar { .. })
        ));
        assert!(matches!(
            test.check_pair(&first, &random(99, 0.5, 5)),
            Err(HealthError::Lengths { .. })
        ));
        let tolerant = HealthTest {
            refuse_identical: false,
            ..test
        };
        assert_eq!(tolerant.check_pair(&first, &first), Ok(()));
    }
}
