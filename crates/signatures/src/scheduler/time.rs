//! Instants and durations, in whole nanoseconds.

use std::ops::{Add, AddAssign};
use std::time::Duration;

const NANOS_PER_SECOND: f64 = 1e9;

/// An instant: nanoseconds since an epoch that the user of the scheduler selects. 64 bits last 584 years.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(u64);

impl Time {
    /// The epoch.
    pub const ZERO: Self = Self(0);
    /// Later than every event.
    pub const NEVER: Self = Self(u64::MAX);

    /// The instant this number of nanoseconds after the epoch.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The instant `span` earlier; the epoch at the earliest.
    pub const fn saturating_sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }

    /// Time since `earlier`; zero if `earlier` is in the future.
    pub const fn saturating_since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

/// Saturates at [`Time::NEVER`].
impl Add<Span> for Time {
    type Output = Self;

    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

/// A duration in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Span(u64);

impl Span {
    /// Zero.
    pub const ZERO: Self = Self(0);
    /// The maximum.
    pub const MAX: Self = Self(u64::MAX);

    /// A number of nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// A number of microseconds, at most [`Span::MAX`].
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// A number of milliseconds, at most [`Span::MAX`].
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// A number of seconds, rounded to nanoseconds; zero for negative numbers and NaN.
    pub fn from_secs_f64(seconds: f64) -> Self {
        // The cast saturates, and maps NaN to 0.
        Self((seconds * NANOS_PER_SECOND).round() as u64)
    }

    /// Nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Seconds; exact up to 104 days.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / NANOS_PER_SECOND
    }

    /// The duration times a factor, at most [`Span::MAX`].
    pub const fn times(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }

    /// The difference, at least zero.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// Saturates at [`Span::MAX`].
impl Add for Span {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Span {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        Self::from_nanos(span.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Time::NEVER + Span::from_nanos(1), Time::NEVER);
        assert_eq!(Time::ZERO.saturating_since(Time::from_nanos(5)), Span::ZERO);
        assert_eq!(Span::from_millis(u64::MAX), Span::MAX);
        assert_eq!(Span::MAX + Span::from_nanos(1), Span::MAX);
        assert_eq!(
            Span::from_nanos(3).saturating_sub(Span::from_nanos(4)),
            Span::ZERO
        );
    }

    #[test]
    fn seconds_become_nanoseconds() {
        assert_eq!(Span::from_secs_f64(1.5), Span::from_millis(1_500));
        assert_eq!(Span::from_secs_f64(-1.0), Span::ZERO);
        assert_eq!(Span::from_secs_f64(f64::NAN), Span::ZERO);
        assert_eq!(Span::from_secs_f64(f64::INFINITY), Span::MAX);
        assert_eq!(Span::from_micros(7).as_secs_f64(), 7e-6);
    }
}
