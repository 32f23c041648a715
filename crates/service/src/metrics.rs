//! Metrics in the Prometheus text format: of this controller and of all gateways.
//!
//! Labels are gateways, which admins create, and names from fixed lists, such as verdicts. Device names and IDs are
//! never labels.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use linewarden_protocol::ids::GatewayId;

use crate::api::counts;
use crate::clock::{now_ms, now_s};
use crate::fleet::{DISCONNECTED_AFTER_MS, GatewaySnapshot, GatewayStatus, age_ms};
use crate::nats::NatsCounts;
use crate::state::App;
use crate::telemetry::TraceCounts;

/// Upper bounds of the latency buckets, seconds.
const BOUNDS_S: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];
/// Maximum time to count devices.
const COUNT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of gateways in the metrics, lowest ids first. `linewarden_gateways_omitted` counts the other gateways.
const GATEWAYS_MAX: usize = 1_000;

/// Requests by kind, status class and latency.
#[derive(Default)]
pub(crate) struct ApiCounters {
    /// By kind (read, write) and status class (2xx to 5xx).
    responses: [[AtomicU64; 4]; 2],
    /// By kind and latency bucket.
    buckets: [[AtomicU64; BOUNDS_S.len()]; 2],
    /// Sum of the latencies, by kind.
    sum_us: [AtomicU64; 2],
    /// Failed authentications.
    pub(crate) authentication_failures: AtomicU64,
}

impl ApiCounters {
    /// Records a response.
    pub(crate) fn record_response(&self, is_write: bool, status: u16, duration: Duration) {
        let kind = usize::from(is_write);
        let class = usize::from(status / 100).saturating_sub(2).min(3);
        if let Some(counter) = self.responses.get(kind).and_then(|classes| classes.get(class)) {
            counter.fetch_add(1, Relaxed);
        }
        if let Some(sum) = self.sum_us.get(kind) {
            sum.fetch_add(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX), Relaxed);
        }
        let seconds = duration.as_secs_f64();
        let index = BOUNDS_S.iter().position(|bound| seconds <= *bound);
        let bucket = index.and_then(|index| self.buckets.get(kind)?.get(index));
        if let Some(bucket) = bucket {
            bucket.fetch_add(1, Relaxed);
        }
        if status == 401 {
            self.authentication_failures.fetch_add(1, Relaxed);
        }
    }
}

/// A page in the Prometheus text format.
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

/// Renders the metrics.
pub(crate) async fn page(app: &App) -> String {
    let mut page = Page(String::with_capacity(16 << 10));
    page.begin("linewarden_build_info", "gauge", "Version of the program.");
    page.value(
        "linewarden_build_info",
        concat!("{version=\"", env!("CARGO_PKG_VERSION"), "\"}"),
        1,
    );
    controller_metrics(&mut page, app);
    if let Some(nats) = &app.nats_counters {
        nats_metrics(&mut page, nats);
    }
    if let Some(traces) = &app.trace_counters {
        trace_metrics(&mut page, traces);
    }
    attestation_metrics(&mut page, app).await;
    gateway_metrics(&mut page, &app.fleet.snapshots());
    page.0
}

/// Adds the number of devices without successful attestation. Adds no numbers while the registry is unavailable.
async fn attestation_metrics(page: &mut Page, app: &App) {
    let name = "linewarden_unattested_devices";
    page.begin(
        name,
        "gauge",
        "Devices with required attestation and without a valid result: awaiting_first_round and unproven since enrollment, missed in the last round \
         (without devices quarantined for it).",
    );
    let Ok(Ok(device_counts)) = tokio::time::timeout(COUNT_TIMEOUT, counts(app)).await else {
        return;
    };
    for (state, count) in [
        ("awaiting_first_round", device_counts.awaiting_first_round),
        ("unproven", device_counts.unproven),
        ("missed", device_counts.missed),
    ] {
        page.value(name, &format!("{{state=\"{state}\"}}"), count);
    }
}

fn controller_metrics(page: &mut Page, app: &App) {
    let counts = &app.api_counters;
    let name = "linewarden_api_requests_total";
    page.begin(name, "counter", "Requests to the API, by kind and status class.");
    for (kind, classes) in ["read", "write"].iter().zip(&counts.responses) {
        for (class, counter) in ["2xx", "3xx", "4xx", "5xx"].iter().zip(classes) {
            let labels = format!("{{kind=\"{kind}\",class=\"{class}\"}}");
            page.value(name, &labels, counter.load(Relaxed));
        }
    }
    let name = "linewarden_api_request_seconds";
    page.begin(name, "histogram", "Latency of API requests.");
    for (index, kind) in ["read", "write"].iter().enumerate() {
        let (Some(buckets), Some(sum), Some(classes)) = (
            counts.buckets.get(index),
            counts.sum_us.get(index),
            counts.responses.get(index),
        ) else {
            continue;
        };
        let mut cumulative = 0;
        for (bound, bucket) in BOUNDS_S.iter().zip(buckets) {
            cumulative += bucket.load(Relaxed);
            let labels = format!("{{kind=\"{kind}\",le=\"{bound}\"}}");
            page.value("linewarden_api_request_seconds_bucket", &labels, cumulative);
        }
        let total: u64 = classes.iter().map(|counter| counter.load(Relaxed)).sum();
        let labels = format!("{{kind=\"{kind}\",le=\"+Inf\"}}");
        page.value("linewarden_api_request_seconds_bucket", &labels, total);
        let labels = format!("{{kind=\"{kind}\"}}");
        let seconds = Duration::from_micros(sum.load(Relaxed)).as_secs_f64();
        page.value("linewarden_api_request_seconds_sum", &labels, seconds);
        page.value("linewarden_api_request_seconds_count", &labels, total);
    }
    let name = "linewarden_api_authentication_failures_total";
    page.begin(name, "counter", "Failed authentications at the API.");
    page.value(name, "", counts.authentication_failures.load(Relaxed));
    let name = "linewarden_event_subscribers";
    page.begin(name, "gauge", "Current subscribers to the event stream.");
    page.value(name, "", app.stream.subscribers());
}

fn nats_metrics(page: &mut Page, nats: &NatsCounts) {
    let values: [(&str, &str, &str, Option<u64>); 4] = [
        (
            "linewarden_nats_connected",
            "gauge",
            "Whether a connection to a NATS server exists.",
            Some(nats.is_connected().into()),
        ),
        (
            "linewarden_nats_published_total",
            "counter",
            "Events of this controller that the stream accepted.",
            Some(nats.published.load(Relaxed)),
        ),
        (
            "linewarden_nats_failed_total",
            "counter",
            "Failed attempts to publish events.",
            Some(nats.failed.load(Relaxed)),
        ),
        (
            "linewarden_nats_lag_events",
            "gauge",
            "Entries of the event log that are not yet in the stream, as far as this controller knows.",
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

fn trace_metrics(page: &mut Page, traces: &TraceCounts) {
    let name = "linewarden_trace_spans_exported_total";
    page.begin(name, "counter", "Spans that the trace collector accepted.");
    page.value(name, "", traces.exported.load(Relaxed));
    let name = "linewarden_trace_spans_dropped_total";
    page.begin(
        name,
        "counter",
        "Spans that the trace collector did not accept or that exceeded the queue.",
    );
    page.value(name, "", traces.dropped.load(Relaxed));
}

type GatewayValue = fn(&GatewaySnapshot) -> Option<f64>;

/// Gauges of connected gateways: metric name, help text, value.
const GATEWAY_GAUGES: [(&str, &str, GatewayValue); 8] = [
    (
        "linewarden_gateway_devices",
        "Devices leased to a gateway.",
        |snapshot| Some(snapshot.status.devices as f64),
    ),
    (
        "linewarden_gateway_slots",
        "Capacity of a gateway in devices.",
        |snapshot| Some(snapshot.status.slots as f64),
    ),
    (
        "linewarden_gateway_sessions",
        "Sessions at a gateway.",
        |snapshot| snapshot.status.sessions.map(|sessions| sessions as f64),
    ),
    (
        "linewarden_gateway_authentications_per_second",
        "Accepted RESPONSEs per second at a gateway.",
        |snapshot| snapshot.status.authentications_per_s,
    ),
    (
        "linewarden_gateway_latency_p50_seconds",
        "Median latency of a gateway's data plane from an accepted RESPONSE to its ACK, last minute.",
        |snapshot| snapshot.status.latency_us_p50.map(|us| us / 1e6),
    ),
    (
        "linewarden_gateway_latency_p99_seconds",
        "99th percentile of the latency of a gateway's data plane from an accepted RESPONSE to its ACK, last minute.",
        |snapshot| snapshot.status.latency_us_p99.map(|us| us / 1e6),
    ),
    (
        "linewarden_gateway_trusted",
        "Whether a gateway with required attestation is trusted.",
        |snapshot| {
            let label = snapshot.status.trust.as_ref()?.label(now_s());
            Some(f64::from(u8::from(label == "trusted")))
        },
    ),
    (
        "linewarden_gateway_evidence_age_seconds",
        "Age of the last evidence of a gateway.",
        |snapshot| {
            let evidence = snapshot.status.trust.as_ref()?.evidence.as_ref()?;
            Some(now_s().saturating_sub(evidence.at_s) as f64)
        },
    ),
];

fn gateway_metrics(page: &mut Page, gateways: &BTreeMap<GatewayId, GatewaySnapshot>) {
    let now_ms = now_ms();
    let age_ms = |snapshot: &GatewaySnapshot| age_ms(now_ms, snapshot.at_ms);
    let is_up = |snapshot: &GatewaySnapshot| age_ms(snapshot) < DISCONNECTED_AFTER_MS;
    let labels = |gateway: &GatewayId| format!("{{gateway=\"{}\"}}", gateway.0);
    let name = "linewarden_gateways_omitted";
    page.begin(
        name,
        "gauge",
        "Gateways beyond the first 1,000 by number, which have no metrics.",
    );
    page.value(name, "", gateways.len().saturating_sub(GATEWAYS_MAX));
    let first_gateways: Vec<_> = gateways.iter().take(GATEWAYS_MAX).collect();
    let name = "linewarden_gateway_up";
    page.begin(
        name,
        "gauge",
        "Whether a message of a gateway arrived within 10 s.",
    );
    for (gateway, snapshot) in &first_gateways {
        page.value(name, &labels(gateway), u8::from(is_up(snapshot)));
    }
    let name = "linewarden_gateway_last_seen_age_seconds";
    page.begin(name, "gauge", "Time since the last message of a gateway.");
    for (gateway, snapshot) in &first_gateways {
        let age_s = Duration::from_millis(age_ms(snapshot)).as_secs_f64();
        page.value(name, &labels(gateway), age_s);
    }
    // Disconnected gateways have no other metrics, because their values are outdated.
    let connected_gateways: Vec<_> = first_gateways
        .into_iter()
        .filter(|(_, snapshot)| is_up(snapshot))
        .collect();
    for (name, help, value) in GATEWAY_GAUGES {
        page.begin(name, "gauge", help);
        for (gateway, snapshot) in &connected_gateways {
            if let Some(value) = value(snapshot) {
                page.value(name, &labels(gateway), value);
            }
        }
    }
    for (name, help, label, counts) in GATEWAY_COUNTERS {
        page.begin(name, "counter", help);
        for (gateway, snapshot) in &connected_gateways {
            for (value, count) in counts(&snapshot.status) {
                let labels = format!("{{gateway=\"{}\",{label}=\"{value}\"}}", gateway.0);
                page.value(name, &labels, count);
            }
        }
    }
}

type CountsByName = fn(&GatewayStatus) -> &BTreeMap<String, u64>;

/// Counters since the start of a gateway: metric name, help text, label name, counts by label value.
const GATEWAY_COUNTERS: [(&str, &str, &str, CountsByName); 4] = [
    (
        "linewarden_gateway_frames_total",
        "Frames at a gateway since its start, by verdict; unknown verdicts are counted as other.",
        "verdict",
        |status| &status.verdicts,
    ),
    (
        "linewarden_gateway_dropped_frames_total",
        "Non-IP frames dropped by the gate of a gateway since its start, by EtherType name; types without a name are counted as \
         other.",
        "ethertype",
        |status| &status.dropped_types,
    ),
    (
        "linewarden_gateway_kernel_drops_total",
        "Packets that the kernel dropped before a gateway received them, since the gateway's start, by socket.",
        "socket",
        |status| &status.kernel_drops,
    ),
    (
        "linewarden_gateway_tickets_total",
        "Device tickets at a gateway since its start, by outcome.",
        "outcome",
        |status| &status.tickets,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway_snapshot(at_ms: u64) -> GatewaySnapshot {
        let status = GatewayStatus {
            verdicts: [("drop_tag".to_owned(), 3)].into(),
            dropped_types: [("profinet".to_owned(), 4)].into(),
            kernel_drops: [("tickets".to_owned(), 5)].into(),
            tickets: [("rate_limited".to_owned(), 6)].into(),
            sessions: Some(2),
            ..GatewayStatus::default()
        };
        GatewaySnapshot {
            at_ms,
            controller: "a".to_owned(),
            status,
        }
    }

    fn rendered(gateways: &BTreeMap<GatewayId, GatewaySnapshot>) -> String {
        let mut page = Page(String::new());
        gateway_metrics(&mut page, gateways);
        page.0
    }

    #[test]
    fn omitted_gateways_are_counted() {
        for (count, omitted) in [(1_000, 0), (1_001, 1)] {
            let gateways = (1..=count)
                .map(|id| (GatewayId(id), gateway_snapshot(now_ms())))
                .collect();
            let page = rendered(&gateways);
            let line = format!("linewarden_gateways_omitted {omitted}\n");
            assert!(page.contains(&line), "{line}");
            assert_eq!(page.matches("\nlinewarden_gateway_up{").count(), 1_000);
            assert_eq!(page.matches("gateway=\"1001\"").count(), 0);
        }
    }

    #[test]
    fn a_disconnected_gateway_has_only_liveness_metrics() {
        let now_ms = now_ms();
        let gateways = [(1, now_ms), (2, now_ms - DISCONNECTED_AFTER_MS)];
        let gateways = gateways
            .map(|(id, at_ms)| (GatewayId(id), gateway_snapshot(at_ms)))
            .into();
        let page = rendered(&gateways);
        let names_of = |gateway: u32| -> Vec<&str> {
            let label = format!("{{gateway=\"{gateway}\"");
            let names = page.lines().filter_map(|line| line.split_once(&label));
            names.map(|(name, _)| name).collect()
        };
        assert_eq!(
            names_of(2),
            [
                "linewarden_gateway_up",
                "linewarden_gateway_last_seen_age_seconds"
            ]
        );
        assert!(
            page.contains("linewarden_gateway_up{gateway=\"2\"} 0\n"),
            "{page}"
        );
        for name in ["linewarden_gateway_sessions", "linewarden_gateway_frames_total"] {
            assert!(names_of(1).contains(&name), "{page}");
        }
        for line in [
            "linewarden_gateway_dropped_frames_total{gateway=\"1\",ethertype=\"profinet\"} 4\n",
            "linewarden_gateway_kernel_drops_total{gateway=\"1\",socket=\"tickets\"} 5\n",
            "linewarden_gateway_tickets_total{gateway=\"1\",outcome=\"rate_limited\"} 6\n",
        ] {
            assert!(page.contains(line), "{line}: {page}");
        }
    }
}
