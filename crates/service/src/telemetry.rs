//! OpenTelemetry traces of requests, exported to a collector with OTLP over gRPC ([ADR
//! 40](../../../docs/adr/0040-spans-are-created-explicitly.md)).
//!
//! Requests never wait for the collector. Ended spans are added to a bounded queue, from which one task exports spans.
//! Spans that do not fit into the queue are counted and dropped.

mod spans;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::http::Uri;
use linewarden_tls::{ClientTls, endpoint};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{WithExportConfig as _, WithTonicConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    Sampler, SdkTracer, SdkTracerProvider, Span, SpanData, SpanExporter as _, SpanProcessor,
};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::transport::Channel;

pub(crate) use self::spans::{TransactionTracer, trace_api_request, trace_gateway_request};
use crate::peer::is_local_host;

/// Capacity of the span queue: about 2 MB.
const QUEUE_SPANS: usize = 2_048;
/// Spans per export.
const BATCH_SPANS: usize = 512;
/// Maximum time to collect a batch after its first span.
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// Maximum time to connect, and until a response of the collector.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of HTTP/2 keepalive pings.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
/// Maximum duration of the export at shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);
/// Minimum interval of log messages about failed exports.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// Trace export options.
#[derive(Clone, Debug)]
pub struct TelemetryOptions {
    /// `http://HOST:PORT` or `https://HOST:PORT` of a collector for OTLP over gRPC.
    pub otlp: String,
    /// TLS configuration for `https`.
    pub tls: Option<ClientTls>,
    /// Permits `http` to other machines.
    pub plaintext: bool,
    /// Ratio of exported traces, from 0 to 1.
    pub sample: f64,
}

/// An invalid telemetry configuration.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// An invalid collector address.
    #[error(
        "invalid collector address {address:?}: {reason}; expected http://HOST:PORT or https://HOST:PORT"
    )]
    Address {
        /// The configured value.
        address: String,
        /// Why the address is invalid.
        reason: String,
    },
    /// A collector on another machine, without TLS.
    #[error(
        "{address:?} is on another machine and http is not encrypted: use https or set `plaintext = true`"
    )]
    Plaintext {
        /// The configured value.
        address: String,
    },
    /// `https` without a CA.
    #[error("https requires the CA of the collector: set `ca`")]
    MissingCa,
    /// A CA without `https`.
    #[error("a CA is not used with http: remove it or use https")]
    CaWithoutTls,
    /// An invalid sampling ratio.
    #[error("invalid sampling ratio {0}: expected 0 to 1")]
    Sample(f64),
    /// The exporter could not be created.
    #[error("failed to create trace exporter: {0}")]
    Exporter(String),
}

impl TelemetryError {
    /// The invalid field of [`TelemetryOptions`].
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            Self::Address { .. } | Self::Plaintext { .. } | Self::Exporter(_) => "otlp",
            Self::MissingCa | Self::CaWithoutTls => "ca",
            Self::Sample(_) => "sample",
        }
    }
}

impl TelemetryOptions {
    /// Validates the options without connecting.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn check(&self) -> Result<(), TelemetryError> {
        if !(0.0..=1.0).contains(&self.sample) {
            return Err(TelemetryError::Sample(self.sample));
        }
        self.authority().map(|_| ())
    }

    /// Validates the address; returns its host and port.
    fn authority(&self) -> Result<String, TelemetryError> {
        let invalid = |reason: &str| TelemetryError::Address {
            address: self.otlp.clone(),
            reason: reason.to_owned(),
        };
        let uri: Uri = self.otlp.parse().map_err(|_| invalid("not a URL"))?;
        let authority = uri.authority().ok_or_else(|| invalid("no host"))?;
        if authority.as_str().contains('@') {
            return Err(TelemetryError::Address {
                // The address is omitted, because it may contain a password.
                address: String::new(),
                reason: "it must not contain a user".to_owned(),
            });
        }
        if authority.host().is_empty() || authority.port_u16().is_none() {
            return Err(invalid("no port; the default of OTLP over gRPC is 4317"));
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(invalid("it must not contain a path or query"));
        }
        match (uri.scheme_str(), &self.tls) {
            (Some("https"), None) => Err(TelemetryError::MissingCa),
            (Some("http"), Some(_)) => Err(TelemetryError::CaWithoutTls),
            (Some("http"), None) if !self.plaintext && !is_local_host(authority.host()) => {
                Err(TelemetryError::Plaintext {
                    address: self.otlp.clone(),
                })
            }
            (Some("http" | "https"), _) => Ok(authority.to_string()),
            _ => Err(invalid("unsupported scheme")),
        }
    }

    fn channel(&self) -> Result<Channel, TelemetryError> {
        let endpoint = endpoint(&self.authority()?, self.tls.as_ref());
        let endpoint = endpoint.map_err(|error| TelemetryError::Exporter(error.to_string()))?;
        let endpoint = endpoint
            .connect_timeout(RESPONSE_TIMEOUT)
            .timeout(RESPONSE_TIMEOUT)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(RESPONSE_TIMEOUT);
        Ok(endpoint.connect_lazy())
    }
}

/// Counters of exported and dropped spans.
#[derive(Debug, Default)]
pub(crate) struct TraceCounts {
    /// Spans that the collector accepted.
    pub(crate) exported: AtomicU64,
    /// Spans that the collector did not accept or that exceeded the queue.
    pub(crate) dropped: AtomicU64,
}

/// Running trace export.
pub(crate) struct Telemetry {
    tracer: SdkTracer,
    counts: Arc<TraceCounts>,
    end_sender: oneshot::Sender<()>,
    sender_task: JoinHandle<()>,
}

impl Telemetry {
    /// Starts the export. The collector need not be reachable yet.
    pub(crate) fn start(options: &TelemetryOptions, name: &str) -> Result<Self, TelemetryError> {
        options.check()?;
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_tonic()
            .with_channel(options.channel()?)
            .with_timeout(RESPONSE_TIMEOUT)
            .build();
        let mut exporter = exporter.map_err(|error| TelemetryError::Exporter(error.to_string()))?;
        // The resource has only these attributes and none from environment variables.
        let resource = Resource::builder_empty()
            .with_service_name("linewarden-controller")
            .with_attributes([
                KeyValue::new("service.instance.id", name.to_owned()),
                KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            ])
            .build();
        exporter.set_resource(&resource);
        let counts = Arc::new(TraceCounts::default());
        let (queue, inbox) = Queue::new(QUEUE_SPANS, Arc::clone(&counts));
        let provider = SdkTracerProvider::builder()
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(
                options.sample,
            ))))
            .with_resource(resource)
            .with_span_processor(queue)
            .build();
        let (end_sender, end_receiver) = oneshot::channel();
        let sender = SpanSender {
            exporter,
            counts: Arc::clone(&counts),
            warned_at: None,
        };
        Ok(Self {
            tracer: provider.tracer("linewarden"),
            counts,
            end_sender,
            sender_task: tokio::spawn(sender.run(inbox, end_receiver)),
        })
    }

    /// The tracer.
    pub(crate) fn tracer(&self) -> SdkTracer {
        self.tracer.clone()
    }

    pub(crate) fn counts(&self) -> Arc<TraceCounts> {
        Arc::clone(&self.counts)
    }

    /// Exports the remaining spans, within [`FLUSH_TIMEOUT`].
    pub(crate) async fn end(mut self) {
        // Fails only if the task has ended.
        let _ = self.end_sender.send(());
        if tokio::time::timeout(FLUSH_TIMEOUT, &mut self.sender_task)
            .await
            .is_err()
        {
            tracing::warn!("trace export timed out at shutdown; remaining spans dropped");
            self.sender_task.abort();
        }
    }
}

/// Queue of ended spans.
#[derive(Debug)]
struct Queue {
    spans: Sender<SpanData>,
    counts: Arc<TraceCounts>,
}

impl Queue {
    fn new(length: usize, counts: Arc<TraceCounts>) -> (Self, Receiver<SpanData>) {
        let (spans, inbox) = channel(length);
        (Self { spans, counts }, inbox)
    }
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() && self.spans.try_send(span).is_err() {
            self.counts.dropped.fetch_add(1, Relaxed);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    // Nothing to do: the sender task exports the remaining spans and then ends.
    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Exports spans to the collector.
struct SpanSender {
    exporter: opentelemetry_otlp::SpanExporter,
    counts: Arc<TraceCounts>,
    /// Time of the last warning about a failed export.
    warned_at: Option<Instant>,
}

impl SpanSender {
    /// Exports batches of spans. After a message from `end_receiver`, exports the remaining spans and returns.
    async fn run(mut self, mut inbox: Receiver<SpanData>, mut end_receiver: oneshot::Receiver<()>) {
        let mut is_ending = false;
        let mut batch = Vec::new();
        loop {
            let collection = collect_batch(&mut inbox, &mut batch);
            tokio::select! {
                () = collection, if !is_ending => {}
                // `Telemetry::end` was called, or the `Telemetry` was dropped.
                _ = &mut end_receiver, if !is_ending => {
                    is_ending = true;
                    inbox.close();
                }
                else => {}
            }
            if is_ending {
                let room = BATCH_SPANS.saturating_sub(batch.len());
                if room > 0 {
                    inbox.recv_many(&mut batch, room).await;
                }
            }
            if batch.is_empty() {
                return;
            }
            self.send(std::mem::take(&mut batch)).await;
        }
    }

    async fn send(&mut self, batch: Vec<SpanData>) {
        let spans = batch.len() as u64;
        let result = tokio::time::timeout(RESPONSE_TIMEOUT, self.exporter.export(batch)).await;
        let error = match result {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("timed out".to_owned()),
        };
        let Some(error) = error else {
            self.counts.exported.fetch_add(spans, Relaxed);
            return;
        };
        let dropped = self.counts.dropped.fetch_add(spans, Relaxed) + spans;
        if self
            .warned_at
            .is_none_or(|warned_at| warned_at.elapsed() >= WARN_INTERVAL)
        {
            self.warned_at = Some(Instant::now());
            tracing::warn!(error, count = dropped, "trace export failed; spans dropped");
        }
    }
}

/// Waits for a span, then briefly for further spans. Spans are added to `batch` immediately, so that no span is lost if
/// the caller cancels the function.
async fn collect_batch(inbox: &mut Receiver<SpanData>, batch: &mut Vec<SpanData>) {
    if batch.is_empty() && inbox.recv_many(batch, BATCH_SPANS).await == 0 {
        return;
    }
    let further_spans = async {
        while batch.len() < BATCH_SPANS {
            let room = BATCH_SPANS.saturating_sub(batch.len());
            if inbox.recv_many(batch, room).await == 0 {
                return;
            }
        }
    };
    // Later spans go into the next batch.
    let _ = tokio::time::timeout(BATCH_DELAY, further_spans).await;
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::Tracer as _;

    use super::*;

    fn options(otlp: &str) -> TelemetryOptions {
        TelemetryOptions {
            otlp: otlp.to_owned(),
            tls: None,
            plaintext: false,
            sample: 1.0,
        }
    }

    #[test]
    fn invalid_options_are_detected_without_a_connection() {
        for valid in [
            "http://127.0.0.1:4317",
            "http://[::1]:4317/",
            "http://localhost:4317",
        ] {
            assert!(options(valid).check().is_ok(), "{valid}");
        }
        let field = |options: &TelemetryOptions| options.check().map_err(|error| error.field());
        for invalid in [
            "",
            "127.0.0.1:4317",
            "localhost",
            "http://127.0.0.1",
            "grpc://127.0.0.1:4317",
            "http://127.0.0.1:4317/v1/traces",
            "http://127.0.0.1:4317/?a=b",
            "http://192.0.2.1:4317",
            "http://localhost.example:4317",
        ] {
            assert_eq!(field(&options(invalid)), Err("otlp"), "{invalid}");
        }
        let with_password = options("http://user:secret@127.0.0.1:4317").check().unwrap_err();
        assert!(!with_password.to_string().contains("secret"), "{with_password}");
        let with_plaintext = TelemetryOptions {
            plaintext: true,
            ..options("http://192.0.2.1:4317")
        };
        assert!(with_plaintext.check().is_ok());
        assert_eq!(field(&options("https://otel.example:4317")), Err("ca"));
        for sample in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            let options = TelemetryOptions {
                sample,
                ..options("http://127.0.0.1:4317")
            };
            assert_eq!(field(&options), Err("sample"), "{sample}");
        }
    }

    #[test]
    fn spans_beyond_the_queue_are_counted_and_dropped() {
        let counts = Arc::new(TraceCounts::default());
        let (queue, mut inbox) = Queue::new(2, Arc::clone(&counts));
        let provider = SdkTracerProvider::builder().with_span_processor(queue).build();
        let tracer = provider.tracer("test");
        for _ in 0..5 {
            drop(tracer.start("span"));
        }
        assert_eq!(counts.dropped.load(Relaxed), 3);
        assert!(inbox.try_recv().is_ok() && inbox.try_recv().is_ok());
        drop(tracer.start("span"));
        assert_eq!(counts.dropped.load(Relaxed), 3, "the queue has room again");
    }
}
