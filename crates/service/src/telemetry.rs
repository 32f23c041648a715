//! Traces by OpenTelemetry: what becomes of each question, told to a collector by OTLP over gRPC
//! ([decision 43](../../../docs/adr/0043-spans-are-made-by-hand.md)).
//!
//! Nobody waits for the collector. Spans that have ended go into a queue of bounded length; one task sends them from there, and what does
//! not fit is counted and gone.

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

pub(crate) use self::spans::{Transactions, of_api, of_gateway};
use crate::peer::is_here;

/// Spans that wait for the collector, at most: some 2 MB.
const QUEUE_SPANS: usize = 2_048;
/// Spans in one message to it.
const BATCH_SPANS: usize = 512;
/// How long a span may wait for others to go with.
const GATHER: Duration = Duration::from_secs(1);
/// How long a connection, or an answer of the collector, may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// From one question to a silent collector whether it lives to the next.
const KEEPALIVE: Duration = Duration::from_secs(20);
/// How long the end waits for what is still to be sent.
const FLUSH_MAX: Duration = Duration::from_secs(3);
/// From one line of the log about a collector that does not take spans to the next.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// Where traces go.
#[derive(Clone, Debug)]
pub struct TelemetryOptions {
    /// `http://HOST:PORT` or `https://HOST:PORT` of a collector that speaks OTLP over gRPC.
    pub otlp: String,
    /// Whom to believe, by `https`.
    pub tls: Option<ClientTls>,
    /// Whether `http` may go to another machine.
    pub plaintext: bool,
    /// Which part of all traces is sent, from 0 to 1.
    pub sample: f64,
}

/// What of that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// No address.
    #[error("{address:?} is no address of a collector ({why}): http://HOST:PORT or https://HOST:PORT")]
    Address {
        /// What was given.
        address: String,
        /// What is wrong with it.
        why: String,
    },
    /// Everybody on the way could read it.
    #[error(
        "{address:?} is another machine, and http is read by whoever is on the way: use https, or say `plaintext = true`"
    )]
    Plaintext {
        /// What was given.
        address: String,
    },
    /// `https` without a CA.
    #[error("https needs the CA of the collector's certificate: name its file")]
    NoCa,
    /// A CA without `https`.
    #[error("there is no TLS by http: leave it out, or use https")]
    CaWithoutTls,
    /// No part.
    #[error("{0}: a part of all traces, from 0 to 1")]
    Sample(f64),
    /// What the exporter says.
    #[error("no exporter of traces: {0}")]
    Exporter(String),
}

impl TelemetryError {
    /// What of [`TelemetryOptions`] is wrong.
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            Self::Address { .. } | Self::Plaintext { .. } | Self::Exporter(_) => "otlp",
            Self::NoCa | Self::CaWithoutTls => "ca",
            Self::Sample(_) => "sample",
        }
    }
}

impl TelemetryOptions {
    /// Whether it can be used at all; nothing is connected.
    ///
    /// # Errors
    /// What of it is wrong.
    pub fn check(&self) -> Result<(), TelemetryError> {
        if !(0.0..=1.0).contains(&self.sample) {
            return Err(TelemetryError::Sample(self.sample));
        }
        self.authority().map(|_| ())
    }

    /// Host and port.
    fn authority(&self) -> Result<String, TelemetryError> {
        let wrong = |why: &str| TelemetryError::Address {
            address: self.otlp.clone(),
            why: why.to_owned(),
        };
        let uri: Uri = self.otlp.parse().map_err(|_| wrong("it is no URL"))?;
        let authority = uri.authority().ok_or_else(|| wrong("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(TelemetryError::Address {
                // Who put a password there does not want it in a log.
                address: String::new(),
                why: "it has a user".to_owned(),
            });
        }
        if authority.host().is_empty() || authority.port_u16().is_none() {
            return Err(wrong("it has no port; collectors listen at 4317"));
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(wrong("it has a path, which gRPC has not"));
        }
        match (uri.scheme_str(), &self.tls) {
            (Some("https"), None) => Err(TelemetryError::NoCa),
            (Some("http"), Some(_)) => Err(TelemetryError::CaWithoutTls),
            (Some("http"), None) if !self.plaintext && !is_here(authority.host()) => {
                Err(TelemetryError::Plaintext {
                    address: self.otlp.clone(),
                })
            }
            (Some("http" | "https"), _) => Ok(authority.to_string()),
            _ => Err(wrong("its scheme is neither http nor https")),
        }
    }

    fn channel(&self) -> Result<Channel, TelemetryError> {
        let endpoint = endpoint(&self.authority()?, self.tls.as_ref());
        let endpoint = endpoint.map_err(|error| TelemetryError::Exporter(error.to_string()))?;
        let endpoint = endpoint
            .connect_timeout(ANSWER_TIMEOUT)
            .timeout(ANSWER_TIMEOUT)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(ANSWER_TIMEOUT);
        Ok(endpoint.connect_lazy())
    }
}

/// How sending goes.
#[derive(Debug, Default)]
pub(crate) struct TraceCounts {
    /// Spans that the collector took.
    pub(crate) exported: AtomicU64,
    /// Spans that it did not take, or that found the queue full.
    pub(crate) lost: AtomicU64,
}

/// Traces at work.
pub(crate) struct Telemetry {
    tracer: SdkTracer,
    counts: Arc<TraceCounts>,
    end: oneshot::Sender<()>,
    sending: JoinHandle<()>,
}

impl Telemetry {
    /// Begins; a collector need not be there yet.
    pub(crate) fn start(options: &TelemetryOptions, name: &str) -> Result<Self, TelemetryError> {
        options.check()?;
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_tonic()
            .with_channel(options.channel()?)
            .with_timeout(ANSWER_TIMEOUT)
            .build();
        let mut exporter = exporter.map_err(|error| TelemetryError::Exporter(error.to_string()))?;
        // Only this: what the environment or the machine is called says nothing more.
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
        let (end, ended) = oneshot::channel();
        let courier = Courier {
            exporter,
            counts: Arc::clone(&counts),
            told: None,
        };
        Ok(Self {
            tracer: provider.tracer("linewarden"),
            counts,
            end,
            sending: tokio::spawn(courier.run(inbox, ended)),
        })
    }

    /// What makes spans.
    pub(crate) fn tracer(&self) -> SdkTracer {
        self.tracer.clone()
    }

    pub(crate) fn counts(&self) -> Arc<TraceCounts> {
        Arc::clone(&self.counts)
    }

    /// Sends what is there, unless that takes too long.
    pub(crate) async fn end(mut self) {
        // Its receiver is gone only where the task is.
        let _ = self.end.send(());
        if tokio::time::timeout(FLUSH_MAX, &mut self.sending).await.is_err() {
            tracing::warn!("the collector of traces did not take the last ones in time");
            self.sending.abort();
        }
    }
}

/// Where spans go that have ended.
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
            self.counts.lost.fetch_add(1, Relaxed);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    // What is in the queue is the courier's, who ends by himself.
    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Carries spans to the collector.
struct Courier {
    exporter: opentelemetry_otlp::SpanExporter,
    counts: Arc<TraceCounts>,
    /// When it was last told that the collector takes none.
    told: Option<Instant>,
}

impl Courier {
    async fn run(mut self, mut inbox: Receiver<SpanData>, mut ended: oneshot::Receiver<()>) {
        let mut is_last = false;
        let mut batch = Vec::new();
        loop {
            let gathered = gather(&mut inbox, &mut batch);
            tokio::select! {
                () = gathered, if !is_last => {}
                // Whoever began it has gone, or wants the end.
                _ = &mut ended, if !is_last => {
                    is_last = true;
                    inbox.close();
                }
                else => {}
            }
            if is_last {
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
        let sent = tokio::time::timeout(ANSWER_TIMEOUT, self.exporter.export(batch)).await;
        let problem = match sent {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("no answer in time".to_owned()),
        };
        let Some(problem) = problem else {
            self.counts.exported.fetch_add(spans, Relaxed);
            return;
        };
        let lost = self.counts.lost.fetch_add(spans, Relaxed) + spans;
        if self.told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            self.told = Some(Instant::now());
            tracing::warn!(problem, lost, "the collector does not take traces");
        }
    }
}

/// Waits for a span, and a moment for others to go with it. What has come so far is in `batch` at any time.
async fn gather(inbox: &mut Receiver<SpanData>, batch: &mut Vec<SpanData>) {
    if batch.is_empty() && inbox.recv_many(batch, BATCH_SPANS).await == 0 {
        return;
    }
    let more = async {
        while batch.len() < BATCH_SPANS {
            let room = BATCH_SPANS.saturating_sub(batch.len());
            if inbox.recv_many(batch, room).await == 0 {
                return;
            }
        }
    };
    // What comes later goes with the next ones.
    let _ = tokio::time::timeout(GATHER, more).await;
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
    fn what_cannot_be_used_is_said_before_anything_is_connected() {
        for right in [
            "http://127.0.0.1:4317",
            "http://[::1]:4317/",
            "http://localhost:4317",
        ] {
            assert!(options(right).check().is_ok(), "{right}");
        }
        let field = |options: &TelemetryOptions| options.check().map_err(|error| error.field());
        for wrong in [
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
            assert_eq!(field(&options(wrong)), Err("otlp"), "{wrong}");
        }
        let with_password = options("http://user:secret@127.0.0.1:4317").check().unwrap_err();
        assert!(!with_password.to_string().contains("secret"), "{with_password}");
        let stated = TelemetryOptions {
            plaintext: true,
            ..options("http://192.0.2.1:4317")
        };
        assert!(stated.check().is_ok());
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
    fn what_does_not_fit_is_counted_and_gone() {
        let counts = Arc::new(TraceCounts::default());
        let (queue, mut inbox) = Queue::new(2, Arc::clone(&counts));
        let provider = SdkTracerProvider::builder().with_span_processor(queue).build();
        let tracer = provider.tracer("test");
        for _ in 0..5 {
            drop(tracer.start("span"));
        }
        assert_eq!(counts.lost.load(Relaxed), 3);
        assert!(inbox.try_recv().is_ok() && inbox.try_recv().is_ok());
        drop(tracer.start("span"));
        assert_eq!(counts.lost.load(Relaxed), 3, "there is room again");
    }
}
