//! Switch hosted in this process: one worker thread and a P4Runtime server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use linewarden_p4runtime::arbitration::Limits;
use linewarden_p4runtime::server::Options;
use linewarden_p4runtime::target::events;
use linewarden_tls::ServerTls;

use crate::clock::Clock;
use crate::control::server::{Server, ServerError};
use crate::control::{AttestationConfig, Control};
use crate::ports::{PortError, PortId, PortSet, PortSetError, Waker};
use crate::serve::{ServeError, WorkerCounters, serve};
use crate::settings::Settings;
use crate::switch::Slot;

/// Capacity of the queue of packet-ins, and of the queue of digests and idle notifications.
const EVENT_QUEUE_LENGTH: usize = 4096;

/// Options of a hosted switch.
pub struct HostOptions {
    /// Listening address of P4Runtime; port 0 selects a free port.
    pub address: SocketAddr,
    /// Device id.
    pub device_id: u64,
    /// CPU port for packet-ins and packet-outs.
    pub cpu_port: PortId,
    /// Attestation configuration; `None` disables evidence.
    pub evidence: Option<AttestationConfig>,
    /// TLS configuration; unencrypted if `None`.
    pub tls: Option<ServerTls>,
}

/// Error of a hosted switch.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The CPU port cannot be created.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The number of the CPU port is in use.
    #[error(transparent)]
    Ports(#[from] PortSetError),
    /// The P4Runtime server failed.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The worker thread cannot be started.
    #[error("cannot start worker thread of the switch: {0}")]
    Thread(#[source] std::io::Error),
    /// The worker failed.
    #[error(transparent)]
    Worker(#[from] ServeError),
    /// The worker thread panicked.
    #[error("worker thread of the switch panicked")]
    Panicked,
}

/// Running switch. The switch drops all packets until a controller sets a program. Dropping the value stops the
/// switch.
#[derive(Debug)]
pub struct HostedSwitch {
    control: Arc<Control>,
    address: SocketAddr,
    server: Option<Server>,
    worker: Option<JoinHandle<Result<(), ServeError>>>,
    stop: Arc<AtomicBool>,
    waker: Waker,
}

impl HostedSwitch {
    /// Starts a worker for these ports, and a server in the calling thread's network namespace.
    ///
    /// # Errors
    /// The address or the number of the CPU port is in use, or no thread or file descriptor is available.
    pub fn start(mut ports: PortSet, options: HostOptions) -> Result<Self, HostError> {
        let (sender, receiver) = events(EVENT_QUEUE_LENGTH);
        let (slot, clock) = (Slot::default(), Clock::start());
        let settings = Settings::default();
        let mut control = Control::new(slot.clone(), settings, Box::new(move || clock.now_us()), sender);
        if let Some(evidence) = options.evidence {
            control = control.with_evidence(evidence);
        }
        let control = Arc::new(control);
        ports.add(options.cpu_port, control.cpu_port()?)?;
        let server_options = Options {
            device_id: options.device_id,
            limits: Limits::default(),
            pipeline: None,
        };
        let server = Server::start(options.address, options.tls, &control, receiver, server_options)?;
        let (waker, stop) = (ports.waker(), Arc::new(AtomicBool::new(false)));
        let (channel, worker_stop) = (Arc::clone(control.channel()), Arc::clone(&stop));
        let worker = std::thread::Builder::new()
            .name("p4-worker".to_owned())
            .spawn(move || {
                let (mut worker, counters) = (slot.worker(), WorkerCounters::default());
                let mut digests = |digest| channel.send_digest(digest);
                serve(
                    &mut worker,
                    &mut ports,
                    &counters,
                    &mut digests,
                    clock,
                    &worker_stop,
                )
            })
            .map_err(HostError::Thread)?;
        Ok(Self {
            control,
            address: server.address(),
            server: Some(server),
            worker: Some(worker),
            stop,
            waker,
        })
    }

    /// Control plane of the switch.
    #[must_use]
    pub fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Address of the P4Runtime server.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops the server; packet processing continues.
    ///
    /// # Errors
    /// The server had failed before the call.
    pub fn stop_server(&mut self) -> Result<(), ServerError> {
        self.server.take().map_or(Ok(()), Server::stop)
    }

    /// Stops worker and server.
    ///
    /// # Errors
    /// The worker or the server had failed before the call.
    pub fn stop(mut self) -> Result<(), HostError> {
        let server_result = self.stop_server();
        self.stop_worker()?;
        Ok(server_result?)
    }

    /// Stops packet processing; the server continues.
    ///
    /// # Errors
    /// The worker had failed before the call.
    pub fn stop_worker(&mut self) -> Result<(), HostError> {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        match self.worker.take().map(JoinHandle::join) {
            Some(Ok(result)) => Ok(result?),
            Some(Err(_)) => Err(HostError::Panicked),
            None => Ok(()),
        }
    }
}

impl Drop for HostedSwitch {
    fn drop(&mut self) {
        // Errors are ignored here; `stop` returns them.
        let _ = self.stop_worker();
    }
}
