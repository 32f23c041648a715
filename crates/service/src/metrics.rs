//! Metrics in the text format of Prometheus: of this controller, and of the gateways that it hears.
//!
//! Labels are gateways, which an admin enters, and names of which there is one list each, as of verdicts: no device's name or id is
//! ever one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use linewarden_protocol::ids::GatewayId;

use crate::api::counts;
use crate::clock::{now_ms, now_s};
use crate::fleet::{Heard, SILENT_MS, Standing, age_ms};
use crate::nats::NatsCounts;
use crate::state::App;
use crate::telemetry::TraceCounts;

/// Upper bounds of the buckets of latencies, seconds.
const BOUNDS_S: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];
/// How long it may take to count devices.
const COUNT_MAX: Duration = Duration::from_secs(5);
/// Gateways told of at most, the first by number; how many are beyond is told as well.
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
pub(crate) async fn page(app: &App) -> String {
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
    attested(&mut page, app).await;
    fleet(&mut page, &app.fleet.all());
    page.0
}

/// Devices that have not proven what they run. Nothing is told of them while the registry does not answer.
async fn attested(page: &mut Page, app: &App) {
    let name = "linewarden_attested_devices";
    page.begin(
        name,
        "gauge",
        "Devices that are to be attested and have not proven what they run: never_asked and never_proved since they were enrolled, silent \
         in the last round (without those in quarantine for it).",
    );
    let Ok(Ok(counted)) = tokio::time::timeout(COUNT_MAX, counts(app)).await else {
        return;
    };
    for (state, count) in [
        ("never_asked", counted.never_asked),
        ("never_proved", counted.never_proved),
        ("silent", counted.silent),
    ] {
        page.value(name, &format!("{{state=\"{state}\"}}"), count);
    }
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

type Of = fn(&Heard) -> Option<f64>;

/// What is told of gateways that were heard lately.
const OF_GATEWAYS: [(&str, &str, Of); 8] = [
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

fn fleet(page: &mut Page, all: &BTreeMap<GatewayId, Heard>) {
    let now_ms = now_ms();
    let age_ms = |heard: &Heard| age_ms(now_ms, heard.at_ms);
    let is_up = |heard: &Heard| age_ms(heard) < SILENT_MS;
    let labels = |gateway: &GatewayId| format!("{{gateway=\"{}\"}}", gateway.0);
    let name = "linewarden_gateways_left_out";
    page.begin(
        name,
        "gauge",
        "Gateways beyond the first 1,000 by number: nothing else is told of them here.",
    );
    page.value(name, "", all.len().saturating_sub(GATEWAYS_MAX));
    let told: Vec<_> = all.iter().take(GATEWAYS_MAX).collect();
    let name = "linewarden_gateway_up";
    page.begin(name, "gauge", "Whether a gateway was heard within 10 s.");
    for (gateway, heard) in &told {
        page.value(name, &labels(gateway), u8::from(is_up(heard)));
    }
    let name = "linewarden_gateway_age_seconds";
    page.begin(name, "gauge", "How long ago a gateway was heard.");
    for (gateway, heard) in &told {
        let age_s = Duration::from_millis(age_ms(heard)).as_secs_f64();
        page.value(name, &labels(gateway), age_s);
    }
    // Of a gateway that is silent nothing else is told: what was is not what is.
    let up: Vec<_> = told.into_iter().filter(|(_, heard)| is_up(heard)).collect();
    for (name, help, value) in OF_GATEWAYS {
        page.begin(name, "gauge", help);
        for (gateway, heard) in &up {
            if let Some(value) = value(heard) {
                page.value(name, &labels(gateway), value);
            }
        }
    }
    for (name, help, label, counts) in BY_NAME {
        page.begin(name, "counter", help);
        for (gateway, heard) in &up {
            for (value, count) in counts(&heard.standing) {
                let labels = format!("{{gateway=\"{}\",{label}=\"{value}\"}}", gateway.0);
                page.value(name, &labels, count);
            }
        }
    }
}

type ByName = fn(&Standing) -> &BTreeMap<String, u64>;

/// What gateways count since their starts, and what its names are.
const BY_NAME: [(&str, &str, &str, ByName); 4] = [
    (
        "linewarden_gateway_frames_total",
        "Frames at a gateway since its start, by verdict; those of verdicts that this version does not know are other.",
        "verdict",
        |standing| &standing.verdicts,
    ),
    (
        "linewarden_gateway_dropped_frames_total",
        "Frames other than IP that a gateway's gate has dropped since its start, by the name of their Ethernet type; types without a \
         name are other.",
        "ethertype",
        |standing| &standing.dropped_types,
    ),
    (
        "linewarden_gateway_kernel_drops_total",
        "Packets that the kernel has dropped since a gateway's start before the gateway received them, by whose socket it was.",
        "socket",
        |standing| &standing.kernel_drops,
    ),
    (
        "linewarden_gateway_tickets_total",
        "Devices' tickets at a gateway since its start, by what became of them.",
        "outcome",
        |standing| &standing.tickets,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(at_ms: u64) -> Heard {
        let standing = Standing {
            verdicts: [("drop_tag".to_owned(), 3)].into(),
            dropped_types: [("profinet".to_owned(), 4)].into(),
            kernel_drops: [("tickets".to_owned(), 5)].into(),
            tickets: [("limited".to_owned(), 6)].into(),
            sessions: Some(2),
            ..Standing::default()
        };
        Heard {
            at_ms,
            controller: "a".to_owned(),
            standing,
        }
    }

    fn told(all: &BTreeMap<GatewayId, Heard>) -> String {
        let mut page = Page(String::new());
        fleet(&mut page, all);
        page.0
    }

    #[test]
    fn how_many_gateways_are_left_out_is_told() {
        for (count, left_out) in [(1_000, 0), (1_001, 1)] {
            let all = (1..=count).map(|id| (GatewayId(id), heard(now_ms()))).collect();
            let page = told(&all);
            let line = format!("linewarden_gateways_left_out {left_out}\n");
            assert!(page.contains(&line), "{line}");
            assert_eq!(page.matches("\nlinewarden_gateway_up{").count(), 1_000);
            assert_eq!(page.matches("gateway=\"1001\"").count(), 0);
        }
    }

    #[test]
    fn of_a_silent_gateway_only_its_silence_is_told() {
        let now_ms = now_ms();
        let all = [(1, now_ms), (2, now_ms - SILENT_MS)];
        let all = all.map(|(id, at_ms)| (GatewayId(id), heard(at_ms))).into();
        let page = told(&all);
        let of = |gateway: u32| -> Vec<&str> {
            let label = format!("{{gateway=\"{gateway}\"");
            let told = page.lines().filter_map(|line| line.split_once(&label));
            told.map(|(name, _)| name).collect()
        };
        assert_eq!(of(2), ["linewarden_gateway_up", "linewarden_gateway_age_seconds"]);
        assert!(
            page.contains("linewarden_gateway_up{gateway=\"2\"} 0\n"),
            "{page}"
        );
        for name in ["linewarden_gateway_sessions", "linewarden_gateway_frames_total"] {
            assert!(of(1).contains(&name), "{page}");
        }
        for line in [
            "linewarden_gateway_dropped_frames_total{gateway=\"1\",ethertype=\"profinet\"} 4\n",
            "linewarden_gateway_kernel_drops_total{gateway=\"1\",socket=\"tickets\"} 5\n",
            "linewarden_gateway_tickets_total{gateway=\"1\",outcome=\"limited\"} 6\n",
        ] {
            assert!(page.contains(line), "{line}: {page}");
        }
    }
}
