//! Latency of messages, by priority.

use linewarden_signatures::scheduler::{LatencyHistograms, Priority};
use serde_json::{Map, Value};

/// Latencies of messages of one priority.
struct Latency {
    priority: Priority,
    count: u64,
    /// Number of messages that missed their deadlines.
    late: u64,
    /// Quantiles 0.5, 0.99 and 0.999.
    quantiles_us: [u64; 3],
}

/// Latencies of all priorities that have messages.
fn latencies(histograms: &LatencyHistograms) -> impl Iterator<Item = Latency> {
    let priorities = Priority::all().filter(|priority| histograms.count(*priority) > 0);
    priorities.map(|priority| Latency {
        priority,
        count: histograms.count(priority),
        late: histograms.missed_deadlines(priority),
        quantiles_us: [0.5, 0.99, 0.999]
            .map(|quantile| histograms.quantile(priority, quantile).as_nanos() / 1000),
    })
}

/// The latencies as JSON, keyed by priority.
pub fn json(histograms: &LatencyHistograms) -> Map<String, Value> {
    let entry = |latency: Latency| {
        let [p50_us, p99_us, p999_us] = latency.quantiles_us;
        let value = serde_json::json!({
            "count": latency.count,
            "late": latency.late,
            "p50_us": p50_us,
            "p99_us": p99_us,
            "p999_us": p999_us,
        });
        (latency.priority.number().to_string(), value)
    };
    latencies(histograms).map(entry).collect()
}

/// The latencies as text, one line per priority.
pub fn lines(histograms: &LatencyHistograms) -> impl Iterator<Item = String> {
    latencies(histograms).map(|latency| {
        let [median_us, p99_us, _] = latency.quantiles_us;
        format!(
            "priority {}: {} messages, median {median_us} us, 99 % within {p99_us} us, {} late",
            latency.priority.number(),
            latency.count,
            latency.late
        )
    })
}
