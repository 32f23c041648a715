//! P4Runtime server of a switch on dedicated threads.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linewarden_p4runtime::evidence;
use linewarden_p4runtime::server::{Options, Routes, Service};
use linewarden_p4runtime::target::EventReceiver;
use linewarden_tls::ServerTls;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::Control;

/// Number of threads for requests; writes and long reads run on blocking threads.
const THREADS: usize = 2;
/// Interval of the scan for idle entries; longer if a scan takes more than a tenth of the interval.
const IDLE_SCAN_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum time for the streams to end during shutdown.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Error of the P4Runtime server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The threads could not be started.
    #[error("cannot start threads of the P4Runtime server: {0}")]
    Threads(#[source] std::io::Error),
    /// The address is in use or not local.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Address.
        address: SocketAddr,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The server has failed.
    #[error("P4Runtime server failed: {0}")]
    Ended(String),
}

/// Running P4Runtime server.
#[derive(Debug)]
pub struct Server {
    runtime: Runtime,
    address: SocketAddr,
    shutdown: oneshot::Sender<()>,
    task: JoinHandle<Result<(), String>>,
}

impl Server {
    /// Starts the server. Without TLS all clients have access. `events` is the receiver for the events of `control`.
    ///
    /// # Errors
    /// The threads cannot be started or the socket cannot listen.
    pub fn start(
        address: SocketAddr,
        tls: Option<ServerTls>,
        control: &Arc<Control>,
        events: EventReceiver,
        options: Options,
    ) -> Result<Self, ServerError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("p4runtime")
            .enable_all()
            .build()
            .map_err(ServerError::Threads)?;
        let listen_error = |source| ServerError::Listen { address, source };
        let listener = runtime
            .block_on(Service::<Control>::listen(address))
            .map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        let (shutdown, shutdown_receiver) = oneshot::channel::<()>();
        let task = {
            let control = Arc::clone(control);
            let evidence_routes = Routes::new(evidence::service(Arc::clone(&control)));
            runtime.spawn(async move {
                let service = Service::new(control, events, options);
                let shutdown = async {
                    // The receiver also completes when the sender is dropped.
                    let _ = shutdown_receiver.await;
                };
                let result = service
                    .serve(evidence_routes, listener, tls.as_ref(), shutdown)
                    .await;
                result.map_err(|error| error.to_string())
            })
        };
        runtime.spawn(notify_idle_entries(Arc::clone(control)));
        Ok(Self {
            runtime,
            address,
            shutdown,
            task,
        })
    }

    /// Address of the listening socket.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether the server has failed.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Ends all streams and stops the server.
    ///
    /// # Errors
    /// The server had failed before the call.
    pub fn stop(self) -> Result<(), ServerError> {
        drop(self.shutdown);
        let task = self.task;
        let result = self
            .runtime
            .block_on(async { tokio::time::timeout(STOP_TIMEOUT, task).await });
        self.runtime.shutdown_timeout(STOP_TIMEOUT);
        match result {
            // After the timeout the server stops although a controller still has an open stream.
            Err(_) | Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => Err(ServerError::Ended(error)),
            Ok(Err(error)) => Err(ServerError::Ended(error.to_string())),
        }
    }
}

async fn notify_idle_entries(control: Arc<Control>) {
    loop {
        let start = Instant::now();
        let control = Arc::clone(&control);
        if tokio::task::spawn_blocking(move || control.notify_idle_entries())
            .await
            .is_err()
        {
            return;
        }
        tokio::time::sleep(IDLE_SCAN_INTERVAL.max(start.elapsed() * 10)).await;
    }
}
