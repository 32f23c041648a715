//! The rate and the latency of authentications, for the status report.

use std::collections::VecDeque;

use linewarden_dataplane::HandlingTimes;
use linewarden_protocol::verdict::Verdict;

use super::sample::StatusSample;

/// Window of latencies, ns. A shorter window would contain too few samples for percentiles.
const WINDOW_NS: u64 = 60_000_000_000;

/// The previous sample, and the samples of the window.
#[derive(Debug, Default)]
pub(super) struct RateMeter {
    /// Time of the previous sample, and its number of accepted RESPONSEs.
    last_accepted: Option<(u64, u64)>,
    /// Handling times and their sample times, oldest first.
    samples: VecDeque<(u64, HandlingTimes)>,
}

/// The rate of authentications and their latencies, at one sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    /// Accepted RESPONSEs a second since the previous sample; `None` for the first sample.
    pub(super) authentications_per_s: Option<f64>,
    /// Handling time of accepted RESPONSEs in the last minute, µs: median; `None` without a measurement.
    pub(super) latency_us_p50: Option<f64>,
    /// Handling time of accepted RESPONSEs in the last minute, µs: 99th percentile; `None` without a measurement.
    pub(super) latency_us_p99: Option<f64>,
}

impl RateMeter {
    pub(super) fn update(&mut self, sample: &StatusSample) -> Rates {
        let now_ns = sample.at_ns;
        let accepted = sample.counters.get(Verdict::ReplyAck);
        let previous = self.last_accepted.replace((now_ns, accepted));
        let authentications_per_s = previous.and_then(|(at_ns, count)| {
            let ns = now_ns.checked_sub(at_ns).filter(|ns| *ns > 0)?;
            Some(accepted.saturating_sub(count) as f64 * 1e9 / ns as f64)
        });
        let in_window = sample
            .handling
            .as_ref()
            .map(|handling| self.handling_in_window(now_ns, handling));
        let us = |per_mille| {
            let ns = in_window.as_ref()?.per_mille_ns(per_mille)?;
            Some(ns as f64 / 1000.0)
        };
        Rates {
            authentications_per_s,
            latency_us_p50: us(500),
            latency_us_p99: us(990),
        }
    }

    /// Returns the handling times in the window. Handling times before the first sample count at the time of that
    /// sample.
    fn handling_in_window(&mut self, now_ns: u64, handling: &HandlingTimes) -> HandlingTimes {
        let is_outside = |at_ns: u64| now_ns.saturating_sub(at_ns) >= WINDOW_NS;
        // The newest sample that is as old as the window stays as the start of the window.
        while self.samples.get(1).is_some_and(|(at_ns, _)| is_outside(*at_ns)) {
            self.samples.pop_front();
        }
        if self.samples.is_empty() {
            self.samples.push_back((now_ns, HandlingTimes::default()));
        }
        let in_window = self
            .samples
            .front()
            .map_or_else(|| handling.clone(), |(_, start)| handling.since(start));
        self.samples.push_back((now_ns, handling.clone()));
        in_window
    }
}

#[cfg(test)]
mod tests {
    use linewarden_dataplane::Counters;
    use linewarden_dataplane::handling_time::{bucket_end_ns, bucket_of};

    use super::*;
    use crate::node::Status;

    fn sample(at_s: u64, accepted: u64, handling: Option<HandlingTimes>) -> StatusSample {
        let mut counters = Counters::default();
        counters.add(Verdict::ReplyAck, accepted);
        StatusSample {
            at_ns: at_s * 1_000_000_000,
            status: Status::default(),
            counters,
            handling,
            sessions: None,
        }
    }

    #[test]
    fn the_rate_requires_two_samples() {
        let mut rates = RateMeter::default();
        assert_eq!(rates.update(&sample(1, 500, None)), Rates::default());
        let current = rates.update(&sample(3, 700, None));
        assert_eq!(current.authentications_per_s, Some(100.0));
        assert_eq!(current.latency_us_p50, None, "not measured");
        let current = rates.update(&sample(4, 0, None));
        assert_eq!(current.authentications_per_s, Some(0.0), "counters that restart");
    }

    #[test]
    fn latencies_are_of_the_last_minute() {
        let mut rates = RateMeter::default();
        let mut handling = HandlingTimes::default();
        let us = |ns| bucket_end_ns(bucket_of(ns)) as f64 / 1000.0;
        handling.buckets[bucket_of(2000)] = 10;
        let current = rates.update(&sample(0, 0, Some(handling.clone())));
        assert_eq!(current.latency_us_p50, Some(us(2000)));
        handling.buckets[bucket_of(50_000)] = 10;
        let current = rates.update(&sample(30, 0, Some(handling.clone())));
        assert_eq!(
            (current.latency_us_p50, current.latency_us_p99),
            (Some(us(2000)), Some(us(50_000))),
            "the first sample counts for a minute"
        );
        assert!(
            rates
                .update(&sample(89, 0, Some(handling.clone())))
                .latency_us_p50
                .is_some()
        );
        let current = rates.update(&sample(91, 0, Some(handling.clone())));
        assert_eq!(current.latency_us_p50, None, "a minute without RESPONSEs");
        for at_s in 92..1000 {
            rates.update(&sample(at_s, 0, Some(handling.clone())));
        }
        assert!(rates.samples.len() <= 62, "{}", rates.samples.len());
    }
}
