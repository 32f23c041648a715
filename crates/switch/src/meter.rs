//! Meters: one or two rates, two or three colors (RFC 2698), with BMv2's arithmetic.
//!
//! A meter has a token bucket for each rate. The rates are processed from the highest to the lowest. A bucket with
//! fewer tokens than the cost of the packet determines the color and ends the processing, so a lower bucket is not
//! updated. A bucket with enough tokens is charged. A packet that all buckets accept is green. With two rates, a
//! packet that exceeds the peak rate is red (2) and a packet that exceeds the committed rate is yellow (1). With one
//! rate, a packet that exceeds the rate is yellow (1).
//!
//! A previous color of the packet (RFC 2698, color-aware mode) does not change the charges: the result is the worse of
//! the previous and the new color. An unconfigured or reset meter marks every packet green, regardless of the previous
//! color.
//!
//! # Differences to BMv2
//! Time is an argument, in microseconds since the start of the switch. As in BMv2, a bucket gains
//! `floor(time × rate)` tokens in double precision, minus the tokens that the bucket has already gained since the start
//! of the switch. So the colors equal those of BMv2 for the same times. Differences exist only where BMv2's behavior is
//! undefined or accidental: a timestamp that precedes the previous timestamp adds no tokens; sums saturate at 2^64 - 1
//! instead of wrapping; NaN and negative rates are rejected; a rejected configuration leaves the meter unchanged, while
//! BMv2 applies half of the configuration. A burst above 2^32 - 1 in a P4Runtime configuration is not truncated, while PI
//! truncates the burst.
//!
//! Sources: BMv2 1.15, `meters.h`, `meters.cpp`; its PI backend, `direct_res_spec.cpp`; P4Runtime 1.4, 9.3.

use thiserror::Error;

/// Maximum number of rates: meters of v1model have two rates, meters of older programs one or two.
pub const RATES_MAX: usize = 2;

const MICROSECONDS_PER_S: f64 = 1e6;

/// Unit of a meter; the same for all cells of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MeterKind {
    /// Each packet costs one token.
    Packets,
    /// Each packet costs its ingress length in bytes.
    Bytes,
}

/// Color of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Color {
    /// Within all rates: 0.
    #[default]
    Green,
    /// Above the committed rate: 1.
    Yellow,
    /// Above the peak rate: 2.
    Red,
}

impl Color {
    /// Value in the program.
    pub const fn value(self) -> u8 {
        match self {
            Self::Green => 0,
            Self::Yellow => 1,
            Self::Red => 2,
        }
    }

    /// Color of a program's value; values above 2 count as red.
    pub const fn from_value(value: u64) -> Self {
        match value {
            0 => Self::Green,
            1 => Self::Yellow,
            _ => Self::Red,
        }
    }
}

/// Rate in the units of BMv2's interfaces.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Tokens per microsecond: packets or bytes.
    pub units_per_us: f64,
    /// Capacity and initial fill of the bucket, tokens.
    pub burst: u64,
}

impl Rate {
    /// Tokens per second, rounded.
    #[must_use]
    pub fn per_s(self) -> u64 {
        // A rate is finite and not negative; the cast saturates.
        (self.units_per_us * MICROSECONDS_PER_S).round() as u64
    }
}

/// Rates and bursts of a meter in the form of P4Runtime's `MeterConfig`. A unit is a packet or a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MeterConfig {
    /// Committed information rate, units per second.
    pub cir: i64,
    /// Committed burst, units.
    pub cburst: i64,
    /// Peak information rate, units per second.
    pub pir: i64,
    /// Peak burst, units.
    pub pburst: i64,
}

/// Error of configuring a meter.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum MeterError {
    /// The configuration has a different number of rates than the meter.
    #[error(
        "wrong number of rates: expected {expected}, found {actual}; give one `rate:burst` for each rate, lowest first"
    )]
    RateCount {
        /// Number of rates in the configuration.
        actual: usize,
        /// Number of rates of the meter.
        expected: usize,
    },
    /// The rates are not in ascending order, as BMv2 requires.
    #[error("rates are not in ascending order: {lower} follows {higher}; give the lowest rate first")]
    RatesNotAscending {
        /// First rate, units per microsecond.
        higher: f64,
        /// Following rate, units per microsecond.
        lower: f64,
    },
    /// The rate is negative or not finite.
    #[error("invalid rate {0}: expected a finite number of units that is not negative")]
    InvalidRate(f64),
    /// A signed number of P4Runtime is negative.
    #[error("{name} is {value}: the value must not be negative")]
    Negative {
        /// Field of `MeterConfig`.
        name: &'static str,
        /// Value.
        value: i64,
    },
}

impl MeterConfig {
    /// Converts to rates as BMv2 does: per microsecond, committed rate first.
    ///
    /// With a configuration of zeros the buckets stay empty: every packet is red (except an empty packet if the unit is
    /// bytes). A configuration of zeros is not the default. An update **without** `config` sets the default: the
    /// update resets the meter ([`Meter::reset`]), so every packet is green.
    ///
    /// # Errors
    /// [`MeterError::Negative`]. [`Meter::set_rates`] checks that `pir` is at least `cir`.
    pub fn rates(&self) -> Result<[Rate; RATES_MAX], MeterError> {
        let unsigned =
            |name, value: i64| u64::try_from(value).map_err(|_| MeterError::Negative { name, value });
        let rate = |units_per_s: u64, burst| Rate {
            units_per_us: units_per_s as f64 / MICROSECONDS_PER_S,
            burst,
        };
        Ok([
            rate(unsigned("cir", self.cir)?, unsigned("cburst", self.cburst)?),
            rate(unsigned("pir", self.pir)?, unsigned("pburst", self.pburst)?),
        ])
    }

    /// Converts rates back to a configuration. The result equals the written values, while BMv2 truncates the
    /// fraction of its division.
    pub fn from_rates([committed, peak]: [Rate; RATES_MAX]) -> Self {
        // The conversion of a float saturates.
        let per_s = |rate: Rate| (rate.units_per_us * MICROSECONDS_PER_S).round() as i64;
        let burst = |rate: Rate| i64::try_from(rate.burst).unwrap_or(i64::MAX);
        Self {
            cir: per_s(committed),
            cburst: burst(committed),
            pir: per_s(peak),
            pburst: burst(peak),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    rate: Rate,
    tokens: u64,
    /// Number of tokens that the bucket has gained since the start of the switch, including tokens above its capacity.
    counted_tokens: u64,
}

impl Bucket {
    fn full(rate: Rate) -> Self {
        Self {
            rate,
            tokens: rate.burst,
            counted_tokens: 0,
        }
    }

    /// Refills the bucket up to `now_us` and takes the cost; false if the tokens do not suffice.
    fn take_tokens(&mut self, now_us: u64, cost: u64) -> bool {
        // `as` truncates toward zero and saturates at u64::MAX.
        let counted = (now_us as f64 * self.rate.units_per_us) as u64;
        let added = counted.saturating_sub(self.counted_tokens);
        self.counted_tokens = self.counted_tokens.max(counted);
        self.tokens = self.tokens.saturating_add(added).min(self.rate.burst);
        match self.tokens.checked_sub(cost) {
            Some(remaining) => {
                self.tokens = remaining;
                true
            }
            None => false,
        }
    }
}

/// Configured buckets from the lowest rate to the highest.
#[derive(Debug, Clone, Copy, Default)]
enum Buckets {
    #[default]
    None,
    One([Bucket; 1]),
    Two([Bucket; 2]),
}

/// One cell of a meter array, or a direct meter of one table entry. The owner must lock a shared meter.
#[derive(Debug, Clone, Copy, Default)]
pub struct Meter {
    buckets: Buckets,
}

impl Meter {
    /// Creates an unconfigured meter, which marks every packet green.
    pub const fn new() -> Self {
        Self {
            buckets: Buckets::None,
        }
    }

    /// Sets the rates, lowest first (committed, peak), and fills the buckets. `rate_count` is the number of rates
    /// that the program declares for the array.
    ///
    /// # Errors
    /// [`MeterError`]; the meter stays unchanged.
    pub fn set_rates(&mut self, rate_count: usize, rates: &[Rate]) -> Result<(), MeterError> {
        if rates.len() != rate_count {
            return Err(MeterError::RateCount {
                actual: rates.len(),
                expected: rate_count,
            });
        }
        if let Some(rate) = rates
            .iter()
            .find(|rate| !(rate.units_per_us.is_finite() && rate.units_per_us >= 0.0))
        {
            return Err(MeterError::InvalidRate(rate.units_per_us));
        }
        self.buckets = match *rates {
            [only] => Buckets::One([Bucket::full(only)]),
            [committed, peak] if committed.units_per_us > peak.units_per_us => {
                return Err(MeterError::RatesNotAscending {
                    higher: committed.units_per_us,
                    lower: peak.units_per_us,
                });
            }
            [committed, peak] => Buckets::Two([Bucket::full(committed), Bucket::full(peak)]),
            _ => {
                return Err(MeterError::RateCount {
                    actual: rates.len(),
                    expected: RATES_MAX,
                });
            }
        };
        Ok(())
    }

    /// Removes the rates: every packet is green again.
    pub fn reset(&mut self) {
        self.buckets = Buckets::None;
    }

    /// Rates, lowest first; empty if the meter is not configured.
    pub fn rates(&self) -> impl Iterator<Item = Rate> {
        let buckets: &[Bucket] = match &self.buckets {
            Buckets::None => &[],
            Buckets::One(buckets) => buckets,
            Buckets::Two(buckets) => buckets,
        };
        buckets.iter().map(|bucket| bucket.rate)
    }

    /// Meters one packet with ingress length `length_bytes` at `now_us` microseconds after the start of the switch.
    /// `previous` is the previous color ([`Color::Green`] if the program passes no color).
    pub fn execute(&mut self, kind: MeterKind, now_us: u64, length_bytes: u64, previous: Color) -> Color {
        let cost = match kind {
            MeterKind::Packets => 1,
            MeterKind::Bytes => length_bytes,
        };
        let color = match &mut self.buckets {
            Buckets::None => return Color::Green,
            Buckets::One([only]) => {
                if only.take_tokens(now_us, cost) {
                    Color::Green
                } else {
                    Color::Yellow
                }
            }
            Buckets::Two([committed, peak]) => {
                if !peak.take_tokens(now_us, cost) {
                    Color::Red
                } else if !committed.take_tokens(now_us, cost) {
                    Color::Yellow
                } else {
                    Color::Green
                }
            }
        };
        color.max(previous)
    }
}
