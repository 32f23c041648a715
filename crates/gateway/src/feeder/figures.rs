//! What is told of a gateway's authentications each second: how many there are, and how long the data plane takes for one.

use std::collections::VecDeque;

use linewarden_dataplane::Handling;
use linewarden_protocol::verdict::Verdict;

use super::Look;

/// Latencies are those of this long, ns: of fewer a percentile says little.
const WINDOW_NS: u64 = 60_000_000_000;

/// Looks so far.
#[derive(Debug, Default)]
pub(super) struct Figures {
    /// When, and how many RESPONSEs had been accepted.
    before: Option<(u64, u64)>,
    /// What had been measured, and when; the oldest first.
    past: VecDeque<(u64, Handling)>,
}

/// What comes of two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Live {
    /// Accepted RESPONSEs a second since the look before; `None` at the first.
    pub(super) authentications_per_s: Option<f64>,
    /// Handling time of accepted RESPONSEs of the last minute, µs; `None`: none was timed.
    pub(super) latency_us_p50: Option<f64>,
    /// Likewise.
    pub(super) latency_us_p99: Option<f64>,
}

impl Figures {
    pub(super) fn take(&mut self, look: &Look) -> Live {
        let now_ns = look.at_ns;
        let accepted = look.counters.get(Verdict::ReplyAck);
        let before = self.before.replace((now_ns, accepted));
        let authentications_per_s = before.and_then(|(at_ns, count)| {
            let ns = now_ns.checked_sub(at_ns).filter(|ns| *ns > 0)?;
            Some(accepted.saturating_sub(count) as f64 * 1e9 / ns as f64)
        });
        let measured = look
            .handling
            .as_ref()
            .map(|handling| self.measured(now_ns, handling));
        let us = |per_mille| {
            let ns = measured.as_ref()?.per_mille_ns(per_mille)?;
            Some(ns as f64 / 1000.0)
        };
        Live {
            authentications_per_s,
            latency_us_p50: us(500),
            latency_us_p99: us(990),
        }
    }

    /// What was measured in the window. When what the first look finds came about nobody knows: it counts as of then.
    fn measured(&mut self, now_ns: u64, handling: &Handling) -> Handling {
        let is_over = |at_ns: u64| now_ns.saturating_sub(at_ns) >= WINDOW_NS;
        // The newest one that is as old as the window stays: it is what the window begins at.
        while self.past.get(1).is_some_and(|(at_ns, _)| is_over(*at_ns)) {
            self.past.pop_front();
        }
        if self.past.is_empty() {
            self.past.push_back((now_ns, Handling::default()));
        }
        let measured = self
            .past
            .front()
            .map_or_else(|| handling.clone(), |(_, before)| handling.since(before));
        self.past.push_back((now_ns, handling.clone()));
        measured
    }
}

#[cfg(test)]
mod tests {
    use linewarden_dataplane::Counters;
    use linewarden_dataplane::handling::{bucket_of, end_ns};

    use super::*;
    use crate::node::Status;

    fn look(at_s: u64, accepted: u64, handling: Option<Handling>) -> Look {
        let mut counters = Counters::default();
        counters.add(Verdict::ReplyAck, accepted);
        Look {
            at_ns: at_s * 1_000_000_000,
            status: Status::default(),
            counters,
            handling,
            sessions: None,
        }
    }

    #[test]
    fn the_rate_is_of_two_looks_and_unknown_at_the_first() {
        let mut figures = Figures::default();
        assert_eq!(figures.take(&look(1, 500, None)), Live::default());
        let live = figures.take(&look(3, 700, None));
        assert_eq!(live.authentications_per_s, Some(100.0));
        assert_eq!(live.latency_us_p50, None, "nobody measures it");
        let live = figures.take(&look(4, 0, None));
        assert_eq!(live.authentications_per_s, Some(0.0), "counters that begin anew");
    }

    #[test]
    fn latencies_are_of_the_last_minute() {
        let mut figures = Figures::default();
        let mut handling = Handling::default();
        let us = |ns| end_ns(bucket_of(ns)) as f64 / 1000.0;
        handling.buckets[bucket_of(2000)] = 10;
        let live = figures.take(&look(0, 0, Some(handling.clone())));
        assert_eq!(live.latency_us_p50, Some(us(2000)));
        handling.buckets[bucket_of(50_000)] = 10;
        let live = figures.take(&look(30, 0, Some(handling.clone())));
        assert_eq!(
            (live.latency_us_p50, live.latency_us_p99),
            (Some(us(2000)), Some(us(50_000))),
            "what was there at first counts for a minute"
        );
        assert!(
            figures
                .take(&look(89, 0, Some(handling.clone())))
                .latency_us_p50
                .is_some()
        );
        let live = figures.take(&look(91, 0, Some(handling.clone())));
        assert_eq!(live.latency_us_p50, None, "a minute without any");
        for at_s in 92..1000 {
            figures.take(&look(at_s, 0, Some(handling.clone())));
        }
        assert!(figures.past.len() <= 62, "{}", figures.past.len());
    }
}
