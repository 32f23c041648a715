//! Meters: one or two rates, two or three colours (RFC 2698), with BMv2's arithmetic.
//!
//! A meter holds a bucket of tokens per rate. Its rates are looked at from the highest to the lowest: a bucket
//! that holds fewer tokens than the packet costs gives the packet its colour and ends the look, so that a
//! lower bucket is neither filled nor emptied; a bucket with enough of them pays. A packet that all buckets
//! pay for is green. With two rates, what the peak rate refuses is red (2) and what the committed rate refuses
//! is yellow (1); with one rate, what it refuses is yellow (1).
//!
//! A colour that the packet has already (RFC 2698's colour-aware mode) does not change what is paid: the worse
//! of the two colours comes out. A meter that nobody configured, or that was reset, says green to everything,
//! whatever the packet's colour was before.
//!
//! # Time and numbers
//! Time is microseconds since the switch started, as an argument. BMv2 counts tokens from that moment, not from
//! the last packet: `floor(time × rate)` in double precision, less what was counted before; so the colours here
//! are BMv2's, packet for packet, for the same times. It differs where BMv2's behaviour is undefined or an
//! accident: time that goes back gives no tokens; sums stop at 2^64 - 1 instead of starting again at 0; rates
//! that are not numbers or below zero are refused; and a refused configuration leaves the meter as it was, where
//! BMv2 keeps half of it. A burst above 2^32 - 1 in a P4Runtime configuration is kept, which PI cuts.
//!
//! Sources: BMv2 1.15, `meters.h`, `meters.cpp`; its PI backend, `direct_res_spec.cpp`; P4Runtime 1.4, 9.3.

use thiserror::Error;

/// Rates that a meter may have: v1model's meters have two, older programs one or two.
pub const RATES_MAX: usize = 2;

const MICROSECONDS_PER_S: f64 = 1e6;

/// What a meter counts; the same for all cells of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MeterKind {
    /// Each packet costs one token.
    Packets,
    /// Each packet costs its length at the ingress, bytes.
    Bytes,
}

/// What a meter says of a packet.
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
    /// The number that the program sees.
    pub const fn value(self) -> u8 {
        match self {
            Self::Green => 0,
            Self::Yellow => 1,
            Self::Red => 2,
        }
    }

    /// The colour that a program holds as a number; what lies above 2 is worse than red and taken for it.
    pub const fn from_value(value: u64) -> Self {
        match value {
            0 => Self::Green,
            1 => Self::Yellow,
            _ => Self::Red,
        }
    }
}

/// A rate in the units that BMv2's interfaces take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Tokens per microsecond: packets or bytes.
    pub units_per_us: f64,
    /// Tokens that a bucket holds at most, and from the start.
    pub burst: u64,
}

impl Rate {
    /// Tokens per second, to the nearest whole number.
    #[must_use]
    pub fn per_s(self) -> u64 {
        // Rates are finite and not below zero; the cast stops at the largest number.
        (self.units_per_us * MICROSECONDS_PER_S).round() as u64
    }
}

/// Rates of a meter as P4Runtime's `MeterConfig` writes them: units per second, and units.
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

/// Why a meter does not take its rates.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum MeterError {
    /// The meter has another number of rates.
    #[error("{given} rates for a meter of {wanted}; give one `rate:burst` for each, the lowest first")]
    RateCount {
        /// Rates that were given.
        given: usize,
        /// Rates that the meter has.
        wanted: usize,
    },
    /// BMv2 looks at rates from the last to the first and wants the last to be the highest.
    #[error("the rate {lower} stands behind the higher rate {higher}; give the lowest rate first")]
    RatesNotAscending {
        /// The rate that came first.
        higher: f64,
        /// The one behind it.
        lower: f64,
    },
    /// A rate that no clock can fill a bucket with.
    #[error("{0} is no rate; give a finite number of units that is not below zero")]
    NotARate(f64),
    /// P4Runtime has signed numbers, none of which may be below zero here.
    #[error("{name} is {value}; give a number that is not below zero")]
    Negative {
        /// Field of `MeterConfig`.
        name: &'static str,
        /// Its value.
        value: i64,
    },
}

impl MeterConfig {
    /// The rates that BMv2 makes of it: per microsecond, the committed rate first.
    ///
    /// A configuration of zeros is a meter whose buckets stay empty: every packet (but one of no bytes, where
    /// bytes count) is red. It is not the default: the default is an update **without** `config`, which resets
    /// the meter ([`Meter::reset`]) and makes every packet green.
    ///
    /// # Errors
    /// [`MeterError::Negative`]. That `pir` is at least `cir` is checked where the rates are set.
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

    /// What a reader is told of these rates: what was written, also where BMv2 cuts off the fraction that its
    /// division left.
    pub fn from_rates([committed, peak]: [Rate; RATES_MAX]) -> Self {
        // A conversion of a float stops at the limits of the integer.
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
    /// Tokens counted since the switch started.
    counted: u64,
}

impl Bucket {
    fn full(rate: Rate) -> Self {
        Self {
            rate,
            tokens: rate.burst,
            counted: 0,
        }
    }

    /// Fills the bucket up to `now_us` and pays; false if it holds too little.
    fn pay(&mut self, now_us: u64, cost: u64) -> bool {
        // Toward zero and at most u64::MAX, as `as` converts.
        let counted = (now_us as f64 * self.rate.units_per_us) as u64;
        let fresh = counted.saturating_sub(self.counted);
        self.counted = self.counted.max(counted);
        self.tokens = self.tokens.saturating_add(fresh).min(self.rate.burst);
        match self.tokens.checked_sub(cost) {
            Some(left) => {
                self.tokens = left;
                true
            }
            None => false,
        }
    }
}

/// What is configured: buckets from the lowest rate to the highest.
#[derive(Debug, Clone, Copy, Default)]
enum Buckets {
    #[default]
    None,
    One([Bucket; 1]),
    Two([Bucket; 2]),
}

/// One cell of a meter array, or a direct meter of one table entry. It has no lock: who shares it locks it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Meter {
    buckets: Buckets,
}

impl Meter {
    /// A meter that says green to everything until it has rates.
    pub const fn new() -> Self {
        Self {
            buckets: Buckets::None,
        }
    }

    /// Gives the meter rates, the lowest first (committed, peak), and full buckets. `rate_count` is the number
    /// of rates that the program declares for the array.
    ///
    /// # Errors
    /// [`MeterError`]; the meter stays as it was.
    pub fn set_rates(&mut self, rate_count: usize, rates: &[Rate]) -> Result<(), MeterError> {
        if rates.len() != rate_count {
            return Err(MeterError::RateCount {
                given: rates.len(),
                wanted: rate_count,
            });
        }
        if let Some(rate) = rates
            .iter()
            .find(|rate| !(rate.units_per_us.is_finite() && rate.units_per_us >= 0.0))
        {
            return Err(MeterError::NotARate(rate.units_per_us));
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
                    given: rates.len(),
                    wanted: RATES_MAX,
                });
            }
        };
        Ok(())
    }

    /// Takes the rates away: every packet is green again.
    pub fn reset(&mut self) {
        self.buckets = Buckets::None;
    }

    /// The rates, the lowest first; none if the meter is not configured.
    pub fn rates(&self) -> impl Iterator<Item = Rate> {
        let buckets: &[Bucket] = match &self.buckets {
            Buckets::None => &[],
            Buckets::One(buckets) => buckets,
            Buckets::Two(buckets) => buckets,
        };
        buckets.iter().map(|bucket| bucket.rate)
    }

    /// Meters one packet that came in with `length_bytes` at `now_us` microseconds after the switch started, and
    /// had `before` as its colour ([`Color::Green`] if the program gives none).
    pub fn execute(&mut self, kind: MeterKind, now_us: u64, length_bytes: u64, before: Color) -> Color {
        let cost = match kind {
            MeterKind::Packets => 1,
            MeterKind::Bytes => length_bytes,
        };
        let color = match &mut self.buckets {
            Buckets::None => return Color::Green,
            Buckets::One([only]) => {
                if only.pay(now_us, cost) {
                    Color::Green
                } else {
                    Color::Yellow
                }
            }
            Buckets::Two([committed, peak]) => {
                if !peak.pay(now_us, cost) {
                    Color::Red
                } else if !committed.pay(now_us, cost) {
                    Color::Yellow
                } else {
                    Color::Green
                }
            }
        };
        color.max(before)
    }
}
