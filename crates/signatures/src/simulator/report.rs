//! Results of a run.

use std::fmt::Write as _;

use crate::scheduler::{Counters, LatencyHistograms, Priority, Span};

/// Results of a trace.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// Name of the policy.
    pub policy: &'static str,
    /// Messages in the trace.
    pub offered: u64,
    /// From the beginning of the trace to the last result.
    pub span: Span,
    /// The counters of the scheduler.
    pub counters: Counters,
    /// Latencies of valid messages, by claimed priority.
    pub valid: LatencyHistograms,
    /// Latencies of invalid messages.
    pub invalid: LatencyHistograms,
    /// Valid messages that met their deadlines.
    pub in_time: u64,
    /// Usage of the lanes.
    pub lanes: Vec<LaneUse>,
    /// Digest of all events; equal for equal runs.
    pub digest: u64,
}

/// Usage of a lane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaneUse {
    /// Name of the lane.
    pub name: String,
    /// Time spent on batches.
    pub busy: Span,
    /// Completed batches.
    pub batches: u64,
    /// Completed jobs.
    pub jobs: u64,
}

impl LaneUse {
    pub(super) fn new(name: String) -> Self {
        Self {
            name,
            busy: Span::ZERO,
            batches: 0,
            jobs: 0,
        }
    }

    pub(super) fn record(&mut self, jobs: usize, duration: Span) {
        self.busy += duration;
        self.batches += 1;
        self.jobs += jobs as u64;
    }
}

impl Report {
    /// Results per second, of valid and invalid messages.
    pub fn throughput(&self) -> f64 {
        self.per_s(self.counters.done())
    }

    /// Valid messages per second that met their deadlines.
    pub fn goodput(&self) -> f64 {
        self.per_s(self.in_time)
    }

    fn per_s(&self, count: u64) -> f64 {
        if self.span == Span::ZERO {
            0.0
        } else {
            count as f64 / self.span.as_secs_f64()
        }
    }

    /// Fraction of the completed valid messages that missed their deadlines.
    pub fn deadline_miss_ratio(&self) -> f64 {
        let (done, late) = Priority::all().fold((0, 0), |(done, late), priority| {
            (
                done + self.valid.count(priority),
                late + self.valid.missed_deadlines(priority),
            )
        });
        if done == 0 { 0.0 } else { late as f64 / done as f64 }
    }

    /// The report as text: a line for each priority that occurs, one for each lane, and the counters.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{}: {} offered, {:.0}/s done, {:.0}/s valid in time, {:.3} % late\n",
            self.policy,
            self.offered,
            self.throughput(),
            self.goodput(),
            self.deadline_miss_ratio() * 100.0
        );
        for (kind, latencies) in [("valid", &self.valid), ("invalid", &self.invalid)] {
            for priority in Priority::all().filter(|priority| latencies.count(*priority) > 0) {
                let [p50, p99, p999] =
                    [0.5, 0.99, 0.999].map(|fraction| micros(latencies.quantile(priority, fraction)));
                let (number, count, late) = (
                    priority.number(),
                    latencies.count(priority),
                    latencies.missed_deadlines(priority),
                );
                // Writing to a string cannot fail.
                let _ = writeln!(
                    text,
                    "  priority {number} {kind:7} {count:9}  p50 {p50:9.1} us  p99 {p99:9.1} us  p99.9 {p999:9.1} us  late {late}"
                );
            }
        }
        for LaneUse {
            name,
            busy,
            batches,
            jobs,
        } in &self.lanes
        {
            let percent = 100.0 * busy.as_secs_f64() / self.span.as_secs_f64().max(1e-9);
            let _ = writeln!(
                text,
                "  lane {name}: {jobs} jobs in {batches} batches, busy {percent:.1} %"
            );
        }
        let counters: Vec<_> = self.counters.named().filter(|(_, count)| *count > 0).collect();
        let counters: Vec<_> = counters
            .iter()
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        let _ = writeln!(text, "  {}", counters.join(", "));
        text
    }
}

/// Table of the runs of one trace under several policies.
pub fn table(reports: &[Report]) -> String {
    let mut text = format!(
        "{:14} {:>10} {:>10} {:>8} {:>10} {:>10} {:>10} {:>8}\n",
        "policy", "done/s", "good/s", "late %", "p0 p99 us", "p99 us", "p99.9 us", "shed"
    );
    for report in reports {
        let quantile_of_others_us = |fraction| report.valid.quantile_of_others(fraction).map_or(0.0, micros);
        let _ = writeln!(
            text,
            "{:14} {:10.0} {:10.0} {:8.3} {:10.1} {:10.1} {:10.1} {:8}",
            report.policy,
            report.throughput(),
            report.goodput(),
            report.deadline_miss_ratio() * 100.0,
            micros(report.valid.quantile(Priority::IMMEDIATE, 0.99)),
            quantile_of_others_us(0.99),
            quantile_of_others_us(0.999),
            report.counters.shed.total()
        );
    }
    text
}

fn micros(span: Span) -> f64 {
    span.as_nanos() as f64 / 1e3
}
