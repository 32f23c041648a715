//! Metrics in the text format of Prometheus: of this controller, and of the gateways that it hears.
//!
//! Labels are gateways, which an admin enters, and verdicts, of which there is one list: no device's name or id is ever one.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::clock::{now_ms, now_s};
use crate::fleet::{Heard, SILENT_MS};
use crate::nats::NatsCounts;
use crate::state::App;
use crate::telemetry::TraceCounts;

/// Upper bounds of the buckets of latencies, seconds.
const BOUNDS_S: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];
/// Gateways told of at most.
const GATEWAYS_MAX: usize = 1_000;

/// Questions by kind, status class and latency.
#[derive(Default)]
pub(crate) struct Counts {
    /// Reads and writes; 2xx to 5xx.
    answers: [[AtomicU64; 4]; 2],
    buckets: [[AtomicU64; BOUNDS_S.len()]; 2],
    sum_us: [AtomicU64; 2],
    /// Attempts to come in that were refused.
    pub(crate) refused: AtomicU64,
}

impl Counts {
    /// Takes note of an answer.
    pub(crate) fn answered(&self, is_write: bool, status: u16, took: Duration) {
        let kind = usize::from(is_write);
        let class = usize::from(status / 100).saturating_sub(2).min(3);
        if let Some(counter) = self.answers.get(kind).and_then(|classes| classes.get(class)) {
            counter.fetch_add(1, Relaxed);
        }
        if let Some(sum) = self.sum_us.get(kind) {
            sum.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
        }
        let seconds = took.as_secs_f64();
        let place = BOUNDS_S.iter().position(|bound| seconds <= *bound);
        let bucket = place.and_then(|place| self.buckets.get(kind)?.get(place));
        if let Some(bucket) = bucket {
            bucket.fetch_add(1, Relaxed);
        }
        if status == 401 {
            self.refused.fetch_add(1, Relaxed);
        }
    }
}

struct Page(String);

impl Page {
    fn begin(&mut self, name: &str, kind: &str, help: &str) {
        // Writing into a String does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn value(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }
}

/// The page.
pub(crate) fn page(app: &App) -> String {
    let mut page = Page(String::with_capacity(16 << 10));
    page.begin("linewarden_build_info", "gauge", "The program.");
    page.value(
        "linewarden_build_info",
        concat!("{version=\"", env!("CARGO_PKG_VERSION"), "\"}"),
        1,
    );
    own(&mut page, app);
    if let Some(nats) = &app.nats {
        published(&mut page, nats);
    }
    if let Some(traces) = &app.traces {
        traced(&mut page, traces);
    }
    let gateways = app.fleet.all();
    let gateways: Vec<(u32, Heard)> = gateways
        .into_iter()
        .take(GATEWAYS_MAX)
        .map(|(gateway, heard)| (gateway.0, heard))
        .collect();
    fleet(&mut page, &gateways);
    page.0
}

fn own(page: &mut Page, app: &App) {
    let counts = &app.counts;
    let name = "linewarden_api_requests_total";
    page.begin(
        name,
        "counter",
        "Questions to the API, by kind and class of status.",
    );
    for (kind, classes) in ["read", "write"].iter().zip(&counts.answers) {
        for (class, counter) in ["2xx", "3xx", "4xx", "5xx"].iter().zip(classes) {
            let labels = format!("{{kind=\"{kind}\",class=\"{class}\"}}");
            page.value(name, &labels, counter.load(Relaxed));
        }
    }
    let name = "linewarden_api_request_seconds";
    page.begin(name, "histogram", "How long answers of the API took.");
    for (place, kind) in ["read", "write"].iter().enumerate() {
        let (Some(buckets), Some(sum), Some(classes)) = (
            counts.buckets.get(place),
            counts.sum_us.get(place),
            counts.answers.get(place),
        ) else {
            continue;
        };
        let mut below = 0;
        for (bound, bucket) in BOUNDS_S.iter().zip(buckets) {
            below += bucket.load(Relaxed);
            let labels = format!("{{kind=\"{kind}\",le=\"{bound}\"}}");
            page.value("linewarden_api_request_seconds_bucket", &labels, below);
        }
        let all: u64 = classes.iter().map(|counter| counter.load(Relaxed)).sum();
        let labels = format!("{{kind=\"{kind}\",le=\"+Inf\"}}");
        page.value("linewarden_api_request_seconds_bucket", &labels, all);
        let labels = format!("{{kind=\"{kind}\"}}");
        let seconds = Duration::from_micros(sum.load(Relaxed)).as_secs_f64();
        page.value("linewarden_api_request_seconds_sum", &labels, seconds);
        page.value("linewarden_api_request_seconds_count", &labels, all);
    }
    let name = "linewarden_api_refused_total";
    page.begin(name, "counter", "Attempts to come in that were refused.");
    page.value(name, "", counts.refused.load(Relaxed));
    let name = "linewarden_event_listeners";
    page.begin(name, "gauge", "Who listens to events now.");
    page.value(name, "", app.stream.listeners());
}

fn published(page: &mut Page, nats: &NatsCounts) {
    let values: [(&str, &str, &str, Option<u64>); 4] = [
        (
            "linewarden_nats_connected",
            "gauge",
            "Whether there is a connection to a NATS server.",
            Some(nats.is_connected().into()),
        ),
        (
            "linewarden_nats_published_total",
            "counter",
            "Events that the stream took from this controller.",
            Some(nats.published.load(Relaxed)),
        ),
        (
            "linewarden_nats_failed_total",
            "counter",
            "Tries to publish events that failed.",
            Some(nats.failed.load(Relaxed)),
        ),
        (
            "linewarden_nats_lag_events",
            "gauge",
            "Entries of the journal that the stream does not have yet, as far as this controller knows.",
            nats.lag(),
        ),
    ];
    for (name, kind, help, value) in values {
        page.begin(name, kind, help);
        if let Some(value) = value {
            page.value(name, "", value);
        }
    }
}

fn traced(page: &mut Page, traces: &TraceCounts) {
    let name = "linewarden_trace_spans_exported_total";
    page.begin(name, "counter", "Spans that the collector of traces took.");
    page.value(name, "", traces.exported.load(Relaxed));
    let name = "linewarden_trace_spans_lost_total";
    page.begin(
        name,
        "counter",
        "Spans that the collector of traces did not take, or that found the queue full.",
    );
    page.value(name, "", traces.lost.load(Relaxed));
}

fn fleet(page: &mut Page, gateways: &[(u32, Heard)]) {
    let now_ms = now_ms();
    let age_s = |heard: &Heard| Duration::from_millis(now_ms.saturating_sub(heard.at_ms)).as_secs_f64();
    let is_up = |heard: &Heard| now_ms.saturating_sub(heard.at_ms) < SILENT_MS;
    type Of = fn(&Heard) -> Option<f64>;
    let name = "linewarden_gateway_up";
    page.begin(name, "gauge", "Whether a gateway was heard within 10 s.");
    for (gateway, heard) in gateways {
        page.value(
            name,
            &format!("{{gateway=\"{gateway}\"}}"),
            u8::from(is_up(heard)),
        );
    }
    let name = "linewarden_gateway_age_seconds";
    page.begin(name, "gauge", "How long ago a gateway was heard.");
    for (gateway, heard) in gateways {
        page.value(name, &format!("{{gateway=\"{gateway}\"}}"), age_s(heard));
    }
    let gauges: [(&str, &str, Of); 8] = [
        (
            "linewarden_gateway_devices",
            "Devices that a gateway holds.",
            |heard| Some(heard.standing.devices as f64),
        ),
        (
            "linewarden_gateway_slots",
            "Devices that fit into a gateway.",
            |heard| Some(heard.standing.slots as f64),
        ),
        (
            "linewarden_gateway_sessions",
            "Sessions that live at a gateway.",
            |heard| heard.standing.sessions.map(|sessions| sessions as f64),
        ),
        (
            "linewarden_gateway_authentications_per_second",
            "Accepted RESPONSEs a second at a gateway.",
            |heard| heard.standing.authentications_per_s,
        ),
        (
            "linewarden_gateway_latency_p50_seconds",
            "Median time that a gateway's data plane took from an accepted RESPONSE to its ACK, last minute.",
            |heard| heard.standing.latency_us_p50.map(|us| us / 1e6),
        ),
        (
            "linewarden_gateway_latency_p99_seconds",
            "99th percentile of the time that a gateway's data plane took from an accepted RESPONSE to its ACK, last minute.",
            |heard| heard.standing.latency_us_p99.map(|us| us / 1e6),
        ),
        (
            "linewarden_gateway_trusted",
            "Whether a gateway that has to show what it runs is trusted.",
            |heard| {
                let said = heard.standing.trust.as_ref()?.said(now_s());
                Some(f64::from(u8::from(said == "trusted")))
            },
        ),
        (
            "linewarden_gateway_evidence_age_seconds",
            "How long ago a gateway has shown what it runs.",
            |heard| {
                let evidence = heard.standing.trust.as_ref()?.evidence.as_ref()?;
                Some(now_s().saturating_sub(evidence.at_s) as f64)
            },
        ),
    ];
    for (name, help, value) in gauges {
        page.begin(name, "gauge", help);
        // Of a gateway that is silent nothing is told: what was is not what is.
        for (gateway, heard) in gateways.iter().filter(|(_, heard)| is_up(heard)) {
            if let Some(value) = value(heard) {
                page.value(name, &format!("{{gateway=\"{gateway}\"}}"), value);
            }
        }
    }
    let name = "linewarden_gateway_frames_total";
    page.begin(
        name,
        "counter",
        "Frames at a gateway since its start, by verdict.",
    );
    for (gateway, heard) in gateways {
        for (verdict, count) in &heard.standing.verdicts {
            // Whatever a gateway calls it, a label has no quotation mark.
            if verdict
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
            {
                page.value(
                    name,
                    &format!("{{gateway=\"{gateway}\",verdict=\"{verdict}\"}}"),
                    count,
                );
            }
        }
    }
}
