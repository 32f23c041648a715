//! Serving a switch's control on a socket, on threads of its own.

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

/// Threads that answer controllers; writes and long reads have others.
const THREADS: usize = 2;
/// How often entries are asked whether they are idle, if asking takes no longer than a tenth of it.
const AGE_EVERY: Duration = Duration::from_millis(50);
/// How long controllers are given to take the end of their streams.
const STOP_WAIT: Duration = Duration::from_secs(5);

/// Why a switch's control cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// No threads.
    #[error("cannot start the server's threads: {0}")]
    Threads(#[source] std::io::Error),
    /// The address is taken, or not one of this machine.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// The server broke off.
    #[error("the P4Runtime server has ended: {0}")]
    Served(String),
}

/// A server that runs.
#[derive(Debug)]
pub struct Server {
    runtime: Runtime,
    address: SocketAddr,
    until: oneshot::Sender<()>,
    served: JoinHandle<Result<(), String>>,
}

impl Server {
    /// Listens and answers; without TLS everybody. The events are those whose other end the control has.
    ///
    /// # Errors
    /// When it cannot listen.
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
        let listening = |source| ServerError::Listen { address, source };
        let listener = runtime
            .block_on(Service::<Control>::listen(address))
            .map_err(listening)?;
        let address = listener.local_addr().map_err(listening)?;
        let (until, ended) = oneshot::channel::<()>();
        let served = {
            let control = Arc::clone(control);
            let others = Routes::new(evidence::service(Arc::clone(&control)));
            runtime.spawn(async move {
                let service = Service::new(control, events, options);
                let ended = async {
                    // Also when the other end is gone.
                    let _ = ended.await;
                };
                let served = service.serve(others, listener, tls.as_ref(), ended).await;
                served.map_err(|error| error.to_string())
            })
        };
        runtime.spawn(age(Arc::clone(control)));
        Ok(Self {
            runtime,
            address,
            until,
            served,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether it has broken off.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.served.is_finished()
    }

    /// Ends all streams, and the server.
    ///
    /// # Errors
    /// When it had broken off before.
    pub fn stop(self) -> Result<(), ServerError> {
        drop(self.until);
        let served = self.served;
        let ended = self
            .runtime
            .block_on(async { tokio::time::timeout(STOP_WAIT, served).await });
        self.runtime.shutdown_timeout(STOP_WAIT);
        match ended {
            // Controllers that take nothing any more are left behind.
            Err(_) | Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => Err(ServerError::Served(error)),
            Ok(Err(error)) => Err(ServerError::Served(error.to_string())),
        }
    }
}

async fn age(control: Arc<Control>) {
    loop {
        let start = Instant::now();
        let control = Arc::clone(&control);
        if tokio::task::spawn_blocking(move || control.age()).await.is_err() {
            return;
        }
        tokio::time::sleep(AGE_EVERY.max(start.elapsed() * 10)).await;
    }
}
