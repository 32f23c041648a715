//! Latency of messages, by priority.

use linewarden_signatures::scheduler::{LatencyHistograms, Priority};
use serde_json::{Map, Value};

/// Latencies of messages of one priority.
struct Latency {
    priority: Priority,
    count: u64,
    late: u64,
    /// Quantiles 0.5, 0.99 and 0.999.
    within_us: [u64; 3],
}

/// The priorities with messages.
fn used(histograms: &LatencyHistograms) -> impl Iterator<Item = Latency> {
    let used = Priority::all().filter(|priority| histograms.count(*priority) > 0);
    used.map(|priority| Latency {
        priority,
        count: histograms.count(priority),
        late: histograms.missed_deadlines(priority),
        within_us: [0.5, 0.99, 0.999].map(|part| histograms.quantile(priority, part).as_nanos() / 1000),
    })
}

/// The latencies as JSON, keyed by priority.
pub fn json(histograms: &LatencyHistograms) -> Map<String, Value> {
    let one = |latency: Latency| {
        let [p50_us, p99_us, p999_us] = latency.within_us;
        let value = serde_json::json!({
            "count": latency.count,
            "late": latency.late,
            "p50_us": p50_us,
            "p99_us": p99_us,
            "p999_us": p999_us,
        });
        (latency.priority.number().to_string(), value)
    };
    used(histograms).map(one).collect()
}

/// The latencies as text, one line per priority.
pub fn lines(histograms: &LatencyHistograms) -> impl Iterator<Item = String> {
    used(histograms).map(|latency| {
        let [half, most, _] = latency.within_us;
        format!(
            "priority {}: {} messages, median {half} us, 99 % within {most} us, {} late",
            latency.priority.number(),
            latency.count,
            latency.late
        )
    })
}
