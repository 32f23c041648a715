//! How long messages took, by priority.

use linewarden_signatures::scheduler::{LatencyBook, Priority};
use serde_json::{Map, Value};

/// Messages of one priority.
struct Latency {
    priority: Priority,
    count: u64,
    late: u64,
    /// Within which so many parts of a thousand were done: 500, 990, 999.
    within_us: [u64; 3],
}

/// Of those priorities that there were messages of.
fn used(book: &LatencyBook) -> impl Iterator<Item = Latency> {
    let used = Priority::all().filter(|priority| book.count(*priority) > 0);
    used.map(|priority| Latency {
        priority,
        count: book.count(priority),
        late: book.late(priority),
        within_us: [0.5, 0.99, 0.999].map(|part| book.quantile(priority, part).as_nanos() / 1000),
    })
}

/// For machines: by the priority's number.
pub fn json(book: &LatencyBook) -> Map<String, Value> {
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
    used(book).map(one).collect()
}

/// For people: a line for each.
pub fn lines(book: &LatencyBook) -> impl Iterator<Item = String> {
    used(book).map(|latency| {
        let [half, most, _] = latency.within_us;
        format!(
            "priority {}: {} done, half within {half} us, 99 % within {most} us, {} late",
            latency.priority.number(),
            latency.count,
            latency.late
        )
    })
}
