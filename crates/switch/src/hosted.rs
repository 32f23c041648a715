//! A switch at work in this process: its worker on a thread of its own, and a server for its controllers.

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
use crate::control::{Attesting, Control};
use crate::ports::{PortError, PortId, PortSet, PortSetError, Waker};
use crate::serve::{ServeError, WorkerCounters, serve};
use crate::switch::{Settings, Slot};

/// Packet-ins, digests and notifications that wait for the server.
const EVENTS: usize = 4096;

/// Where controllers find a switch.
pub struct HostOptions {
    /// Where P4Runtime is served; port 0: any that is free.
    pub address: SocketAddr,
    /// The switch's number.
    pub device_id: u64,
    /// The port of packet-ins and packet-outs.
    pub cpu_port: PortId,
    /// Evidence of all programs.
    pub evidence: Option<Attesting>,
    /// How controllers reach it; in the clear if `None`.
    pub tls: Option<ServerTls>,
}

/// Why a switch does not work, or does no more.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The CPU port cannot be made.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The CPU port's number is taken.
    #[error(transparent)]
    Ports(#[from] PortSetError),
    /// Controllers are not served.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// No thread.
    #[error("cannot start the switch's worker: {0}")]
    Thread(#[source] std::io::Error),
    /// Packets are not served any more.
    #[error(transparent)]
    Worker(#[from] ServeError),
    /// The worker's thread ended early.
    #[error("the switch's worker panicked")]
    Panicked,
}

/// A switch at work, which drops everything until a controller sends a program. Dropping it stops it.
#[derive(Debug)]
pub struct Hosted {
    control: Arc<Control>,
    address: SocketAddr,
    server: Option<Server>,
    worker: Option<JoinHandle<Result<(), ServeError>>>,
    stop: Arc<AtomicBool>,
    waker: Waker,
}

impl Hosted {
    /// Serves these ports, and controllers in the calling thread's network namespace.
    ///
    /// # Errors
    /// An address or port number that is taken; no threads or descriptors left.
    pub fn start(mut ports: PortSet, options: HostOptions) -> Result<Self, HostError> {
        let (sender, receiver) = events(EVENTS);
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
        let (wire, stopped) = (Arc::clone(control.wire()), Arc::clone(&stop));
        let worker = std::thread::Builder::new()
            .name("p4-worker".to_owned())
            .spawn(move || {
                let (mut worker, counters) = (slot.worker(), WorkerCounters::default());
                let mut digests = |told| wire.digest(told);
                serve(&mut worker, &mut ports, &counters, &mut digests, clock, &stopped)
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

    /// What controllers program.
    #[must_use]
    pub fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Where P4Runtime is served until the server is stopped.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends the server, as a signal would; packets go on.
    ///
    /// # Errors
    /// When it had broken off before.
    pub fn stop_server(&mut self) -> Result<(), ServerError> {
        self.server.take().map_or(Ok(()), Server::stop)
    }

    /// Ends all of it.
    ///
    /// # Errors
    /// What had ended before, and why.
    pub fn stop(mut self) -> Result<(), HostError> {
        let served = self.stop_server();
        self.stop_packets()?;
        Ok(served?)
    }

    /// Takes no packets any more; controllers are served on.
    ///
    /// # Errors
    /// When no packets were taken already, and why.
    pub fn stop_packets(&mut self) -> Result<(), HostError> {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        match self.worker.take().map(JoinHandle::join) {
            Some(Ok(served)) => Ok(served?),
            Some(Err(_)) => Err(HostError::Panicked),
            None => Ok(()),
        }
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        // Whoever wants to know calls `stop`.
        let _ = self.stop_packets();
    }
}
