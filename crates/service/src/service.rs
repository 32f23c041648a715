//! Starting and ending it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use linewarden_controller::Controller;
use linewarden_registry::Registry;
use linewarden_tls::{ServerTls, TlsError};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::api;
use crate::fleet::Fleet;
use crate::gateways;
use crate::limits::Limits;
use crate::listener::{self, Tls};
use crate::nats::{NatsError, NatsOptions, Publisher};
use crate::state::App;
use crate::stream::Stream;
use crate::telemetry::{Telemetry, TelemetryError, TelemetryOptions, Transactions};

/// From one look at everything to the next.
const STATUS_EVERY: Duration = Duration::from_secs(1);
/// Longest look: whoever was silent meanwhile is to be told of.
const STATUS_MAX: Duration = Duration::from_secs(10);
/// What a client may speak: gRPC wants the second version.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// What a service is made of.
pub struct ServiceOptions {
    /// Its name, for people: other controllers have other ones.
    pub name: String,
    /// Where it listens, for everybody.
    pub listen: SocketAddr,
    /// Where it listens for metrics and health, in the clear; nowhere if not given.
    pub metrics: Option<SocketAddr>,
    /// Its certificate, and the CA of gateways' and users' certificates.
    pub tls: ServerTls,
    /// What it knows.
    pub registry: Registry,
    /// What it decides by.
    pub controller: Controller,
    /// Where events are published; nowhere if not given.
    pub nats: Option<NatsOptions>,
    /// Where traces go; nowhere if not given.
    pub telemetry: Option<TelemetryOptions>,
}

/// Why it does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// An address is taken, or not this machine's.
    #[error("cannot listen at {at}: {source}")]
    Listen {
        /// The address.
        at: SocketAddr,
        /// The operating system's answer.
        source: io::Error,
    },
    /// Its certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Nothing can be published so.
    #[error("[nats] {0}")]
    Nats(#[from] NatsError),
    /// No trace can be told so.
    #[error("[telemetry] {0}")]
    Telemetry(#[from] TelemetryError),
}

/// A service at work.
pub struct Service {
    address: SocketAddr,
    metrics: Option<SocketAddr>,
    tls: Tls,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
    background: Vec<JoinHandle<()>>,
    telemetry: Option<Telemetry>,
}

impl Service {
    /// Begins to serve.
    ///
    /// # Errors
    /// An address that is taken, a certificate that cannot be used, no way to publish events or to tell traces. A NATS server or a
    /// collector that does not answer is none.
    pub async fn start(options: ServiceOptions) -> Result<Self, ServiceError> {
        let tls = Tls::new(options.tls.to_rustls(&PROTOCOLS)?);
        let listen = bind(options.listen).await?;
        let metrics = match options.metrics {
            Some(at) => Some(bind(at).await?),
            None => None,
        };
        let name: Arc<str> = options.name.into();
        let stream = Stream::new();
        let (fleet, tasks) = Fleet::new(Arc::clone(&name), Arc::clone(&stream));
        // What gateways have said is not noted over with less. Without that it is read with the first look.
        let _ = tokio::time::timeout(STATUS_MAX, fleet.read(&options.registry)).await;
        let (publisher, nats) = match options.nats {
            Some(nats) => {
                let registry = options.registry.clone();
                let (publisher, counts) = Publisher::new(nats, &name, registry, stream.newest()).await?;
                (Some(publisher), Some(counts))
            }
            None => (None, None),
        };
        let telemetry = options.telemetry.as_ref();
        let telemetry = telemetry
            .map(|options| Telemetry::start(options, &name))
            .transpose()?;
        if let Some(telemetry) = &telemetry {
            options.registry.watch(Transactions(telemetry.tracer()));
        }
        let app = App {
            name,
            registry: options.registry,
            controller: options.controller,
            fleet,
            stream,
            nats,
            tracer: telemetry.as_ref().map(Telemetry::tracer),
            traces: telemetry.as_ref().map(Telemetry::counts),
            limits: Limits::new(),
            known: Arc::default(),
            counts: Arc::default(),
            counted: Arc::default(),
            ready: Arc::default(),
        };
        let router = api::router(&app).merge(gateways::router(&app));
        let (stop, stopped) = watch::channel(false);
        let address = address(&listen, options.listen);
        let mut tasks_at_work = vec![tokio::spawn(listener::serve(
            listen,
            Some(tls.clone()),
            router,
            stopped.clone(),
        ))];
        let metrics_address = metrics
            .as_ref()
            .zip(options.metrics)
            .map(|(at, asked)| self::address(at, asked));
        if let Some(metrics) = metrics {
            let router = api::metrics_router(&app);
            tasks_at_work.push(tokio::spawn(listener::serve(metrics, None, router, stopped)));
        }
        let mut background = vec![
            tokio::spawn(tasks.run(app.registry.clone())),
            tokio::spawn(Arc::clone(&app.stream).follow(app.registry.clone())),
            tokio::spawn(watch_all(app)),
        ];
        background.extend(publisher.map(|publisher| tokio::spawn(publisher.run())));
        Ok(Self {
            address,
            metrics: metrics_address,
            tls,
            stop,
            tasks: tasks_at_work,
            background,
            telemetry,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it listens for metrics.
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// Another certificate or CA, for connections from now on.
    ///
    /// # Errors
    /// One that cannot be used: the old one stays.
    pub fn exchange_tls(&self, tls: &ServerTls) -> Result<(), TlsError> {
        self.tls.replace(tls.to_rustls(&PROTOCOLS)?);
        Ok(())
    }

    /// Takes no more connections, and lets answers under way end.
    pub async fn stop(self) {
        // Nobody listens any more: it has ended by itself.
        let _ = self.stop.send(true);
        for task in self.tasks {
            let _ = task.await;
        }
        for task in self.background {
            task.abort();
            let _ = task.await;
        }
        if let Some(telemetry) = self.telemetry {
            telemetry.end().await;
        }
    }
}

async fn bind(at: SocketAddr) -> Result<TcpListener, ServiceError> {
    TcpListener::bind(at)
        .await
        .map_err(|source| ServiceError::Listen { at, source })
}

fn address(listener: &TcpListener, asked: SocketAddr) -> SocketAddr {
    listener.local_addr().unwrap_or(asked)
}

/// What is looked at each second, whoever asks.
async fn watch_all(app: App) {
    let mut clock = tokio::time::interval(STATUS_EVERY);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut shrunk = tokio::time::Instant::now();
    loop {
        clock.tick().await;
        app.fleet.watch();
        if tokio::time::timeout(STATUS_MAX, look(&app)).await.is_err() {
            tracing::debug!("the registry has not said how everything stands");
        }
        if shrunk.elapsed() >= Limits::SHRINK_EVERY {
            app.limits.shrink();
            shrunk = tokio::time::Instant::now();
        }
    }
}

/// How other controllers' gateways stand, and what is told of all to who listens.
async fn look(app: &App) {
    if let Err(error) = app.fleet.read(&app.registry).await {
        tracing::debug!(%error, "how other controllers' gateways stand was not read");
    }
    if app.stream.listeners() > 0
        && let Some(event) = api::status_event(app).await
    {
        app.stream.send(event);
    }
}
