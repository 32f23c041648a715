//! Start and stop of the service.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
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
use crate::listener::socket::{self, SocketOptions};
use crate::listener::{self, Tls};
use crate::nats::{NatsError, NatsOptions, Publisher};
use crate::state::App;
use crate::stream::EventStream;
use crate::telemetry::{Telemetry, TelemetryError, TelemetryOptions, TransactionTracer};

/// Interval of the periodic tasks.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum duration of a status refresh, so that disconnections are reported in time.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);
/// ALPN protocols. gRPC requires HTTP/2.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Parts and addresses of a service.
pub struct ServiceOptions {
    /// Name of this controller, unique among controllers.
    pub name: String,
    /// API, dashboard and gateways on other machines; `None`: only gateways on this machine.
    pub api: Option<ApiOptions>,
    /// Socket for gateways on this machine; `None`: only gateways on other machines.
    pub socket: Option<SocketOptions>,
    /// Address for metrics and health, without TLS; `None`: no metrics listener.
    pub metrics: Option<SocketAddr>,
    /// The registry.
    pub registry: Registry,
    /// The controller.
    pub controller: Controller,
    /// NATS publishing; `None`: no publishing.
    pub nats: Option<NatsOptions>,
    /// Trace export; `None`: no export.
    pub telemetry: Option<TelemetryOptions>,
}

/// The listener of API, dashboard and gateways on other machines.
pub struct ApiOptions {
    /// The address.
    pub listen: SocketAddr,
    /// Server certificate, and the CA of gateway and user certificates.
    pub tls: ServerTls,
}

/// A failed start.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// An address cannot be bound.
    #[error("failed to listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The socket cannot be bound.
    #[error("failed to listen on {}: {source}", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Invalid TLS configuration.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Invalid NATS configuration.
    #[error("[nats] {0}")]
    Nats(#[from] NatsError),
    /// Invalid telemetry configuration.
    #[error("[telemetry] {0}")]
    Telemetry(#[from] TelemetryError),
}

/// A running service.
pub struct Service {
    address: Option<SocketAddr>,
    metrics_address: Option<SocketAddr>,
    tls: Option<Tls>,
    stop: watch::Sender<bool>,
    listeners: Vec<JoinHandle<()>>,
    background_tasks: Vec<JoinHandle<()>>,
    telemetry: Option<Telemetry>,
}

impl Service {
    /// Starts the service.
    ///
    /// # Errors
    /// The address cannot be bound, or the configuration of TLS, NATS or telemetry is invalid. An unreachable NATS
    /// server or collector is not an error.
    pub async fn start(options: ServiceOptions) -> Result<Self, ServiceError> {
        let api_listener = match &options.api {
            Some(api) => Some((Tls::new(api.tls.to_rustls(&PROTOCOLS)?), bind(api.listen).await?)),
            None => None,
        };
        let socket_listener = match &options.socket {
            Some(socket_options) => Some(socket::bind(socket_options).map_err(|source| {
                let path = socket_options.path.clone();
                ServiceError::Socket { path, source }
            })?),
            None => None,
        };
        let metrics_listener = match options.metrics {
            Some(address) => Some(bind(address).await?),
            None => None,
        };
        let name: Arc<str> = options.name.into();
        let stream = EventStream::new();
        let (fleet, tasks) = Fleet::new(Arc::clone(&name), Arc::clone(&stream));
        // The recorded states are read before a gateway can connect. Otherwise a first report without fencing token and
        // version would overwrite a recorded state. After a failure, the first status refresh reads the states.
        let _ = tokio::time::timeout(STATUS_TIMEOUT, fleet.read_remote(&options.registry)).await;
        let (publisher, nats) = match options.nats {
            Some(nats) => {
                let registry = options.registry.clone();
                let newest = stream.subscribe_newest();
                let (publisher, counts) = Publisher::new(nats, &name, registry, newest).await?;
                (Some(publisher), Some(counts))
            }
            None => (None, None),
        };
        let telemetry = options.telemetry.as_ref();
        let telemetry = telemetry
            .map(|options| Telemetry::start(options, &name))
            .transpose()?;
        if let Some(telemetry) = &telemetry {
            options
                .registry
                .set_monitor(TransactionTracer(telemetry.tracer()));
        }
        let app = App {
            nats_counters: nats,
            tracer: telemetry.as_ref().map(Telemetry::tracer),
            trace_counters: telemetry.as_ref().map(Telemetry::counts),
            ..App::new(name, options.registry, options.controller, fleet, stream)
        };
        let gateway_router = gateways::router(&app);
        let (stop, stop_receiver) = watch::channel(false);
        let mut listeners = Vec::new();
        if let Some(listener) = socket_listener {
            let router = gateway_router.clone();
            listeners.push(tokio::spawn(socket::serve(
                listener,
                router,
                stop_receiver.clone(),
            )));
        }
        let (mut address, mut tls) = (None, None);
        if let Some((api_tls, listener)) = api_listener {
            address = listener.local_addr().ok();
            tls = Some(api_tls.clone());
            let router = api::router(&app).merge(gateway_router);
            listeners.push(tokio::spawn(listener::serve(
                listener,
                Some(api_tls),
                router,
                stop_receiver.clone(),
            )));
        }
        let metrics_address = metrics_listener
            .as_ref()
            .zip(options.metrics)
            .map(|(listener, configured)| self::local_address(listener, configured));
        if let Some(metrics_listener) = metrics_listener {
            let router = api::metrics_router(&app);
            listeners.push(tokio::spawn(listener::serve(
                metrics_listener,
                None,
                router,
                stop_receiver,
            )));
        }
        let mut background_tasks = vec![
            tokio::spawn(tasks.run(app.registry.clone())),
            tokio::spawn(Arc::clone(&app.stream).follow(app.registry.clone(), None)),
            tokio::spawn(run_periodic_tasks(app)),
        ];
        background_tasks.extend(publisher.map(|publisher| tokio::spawn(publisher.run())));
        Ok(Self {
            address,
            metrics_address,
            tls,
            stop,
            listeners,
            background_tasks,
            telemetry,
        })
    }

    /// The address of the API, if it is enabled.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The address of the metrics.
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// Replaces the certificate and CA for new connections, and ends all connections with a client certificate.
    ///
    /// # Errors
    /// Invalid TLS configuration. The current configuration then stays in use.
    pub fn replace_tls(&self, tls: &ServerTls) -> Result<(), TlsError> {
        if let Some(current) = &self.tls {
            current.replace(tls.to_rustls(&PROTOCOLS)?);
        }
        Ok(())
    }

    /// Stops accepting connections and waits for responses in progress.
    pub async fn stop(self) {
        // Fails only if all listeners have ended.
        let _ = self.stop.send(true);
        for task in self.listeners {
            let _ = task.await;
        }
        for task in self.background_tasks {
            task.abort();
            let _ = task.await;
        }
        if let Some(telemetry) = self.telemetry {
            telemetry.end().await;
        }
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, ServiceError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| ServiceError::Listen { address, source })
}

fn local_address(listener: &TcpListener, configured: SocketAddr) -> SocketAddr {
    listener.local_addr().unwrap_or(configured)
}

/// Reports disconnected gateways and refreshes the status each second; shrinks the limits each minute.
async fn run_periodic_tasks(app: App) {
    let mut clock = tokio::time::interval(STATUS_INTERVAL);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last_shrink = tokio::time::Instant::now();
    loop {
        clock.tick().await;
        app.fleet.report_disconnected();
        if tokio::time::timeout(STATUS_TIMEOUT, refresh_status(&app))
            .await
            .is_err()
        {
            tracing::debug!("status refresh timed out");
        }
        if last_shrink.elapsed() >= Limits::SHRINK_INTERVAL {
            app.limits.shrink();
            last_shrink = tokio::time::Instant::now();
        }
    }
}

/// Refreshes gateway states of other controllers, and sends the status to event subscribers.
async fn refresh_status(app: &App) {
    if let Err(error) = app.fleet.read_remote(&app.registry).await {
        tracing::debug!(%error, "failed to read gateway states of other controllers");
    }
    if app.stream.subscribers() > 0
        && let Some(event) = api::status_event(app).await
    {
        app.stream.send(event);
    }
}
