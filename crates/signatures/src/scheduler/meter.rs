//! Recent arrival rate of jobs.

use super::time::{Span, Time};

/// A moving average of arrivals over about [`RateMeter::HORIZON`], or over the time since the first record if that time
/// is shorter.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RateMeter {
    per_s: f64,
    /// Time of the first record.
    first_at: Option<Time>,
    updated_at: Time,
}

impl RateMeter {
    /// Time over which arrivals are averaged. Vehicles that all send ten times a second then look like a stream, and
    /// not like ten bursts with pauses.
    pub(super) const HORIZON: Span = Span::from_millis(250);
    /// Minimum horizon: arrivals at the very start are a burst, and not a rate.
    const HORIZON_MIN: Span = Span::from_millis(10);

    fn horizon_s(&self) -> f64 {
        let observed = self
            .first_at
            .map_or(Span::ZERO, |first_at| self.updated_at.saturating_since(first_at));
        observed.clamp(Self::HORIZON_MIN, Self::HORIZON).as_secs_f64()
    }

    pub(super) fn record(&mut self, jobs: usize, now: Time) {
        let now = self.updated_at.max(now);
        let (horizon, passed) = (
            self.horizon_s(),
            now.saturating_since(self.first_at.map_or(now, |_| self.updated_at))
                .as_secs_f64(),
        );
        self.per_s = (self.per_s * horizon + jobs as f64) / (horizon + passed);
        self.first_at = self.first_at.or(Some(now));
        self.updated_at = now;
    }

    pub(super) fn per_s(&self, now: Time) -> f64 {
        let horizon = self.horizon_s();
        self.per_s * horizon / (horizon + now.saturating_since(self.updated_at).as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_stream_is_measured_and_fades() {
        let (mut meter, mut now) = (RateMeter::default(), Time::ZERO);
        for _ in 0..2_000 {
            now = now + Span::from_millis(1);
            meter.record(30, now);
        }
        assert!((29_900.0..30_100.0).contains(&meter.per_s(now)));
        let later = now + RateMeter::HORIZON;
        assert!((14_900.0..15_100.0).contains(&meter.per_s(later)));
    }

    #[test]
    fn a_rate_is_known_soon_after_the_start() {
        let (mut meter, mut now) = (RateMeter::default(), Time::from_nanos(77_000_000_000));
        for _ in 0..100 {
            now = now + Span::from_millis(1);
            meter.record(30, now);
        }
        assert!(
            (25_000.0..35_000.0).contains(&meter.per_s(now)),
            "{}",
            meter.per_s(now)
        );
    }

    #[test]
    fn a_burst_counts_as_its_share_of_the_horizon() {
        let mut meter = RateMeter::default();
        let now = Time::ZERO + RateMeter::HORIZON;
        meter.record(0, Time::ZERO);
        meter.record(0, now);
        meter.record(1_000, now);
        assert_eq!(meter.per_s(now), 4_000.0);
    }
}
