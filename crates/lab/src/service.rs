//! The service behind the gate: a UDP echo that remembers who reached it.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::decoy::Decoy;
use crate::netns::NetNsError;
use crate::topology::Lab;

/// How long the service waits for a datagram before it looks whether it shall stop.
const NAP: Duration = Duration::from_millis(20);

/// Why the service could not be run.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The namespace could not be entered.
    #[error(transparent)]
    NetNs(#[from] NetNsError),
    /// The socket.
    #[error("echo service on UDP port {port}: {source}")]
    Socket {
        /// The port.
        port: u16,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Its thread ended early.
    #[error("the echo service's thread panicked")]
    Panicked,
}

/// What reached the service.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reached {
    /// Datagrams by source address.
    pub sources: HashMap<IpAddr, u64>,
    /// Datagrams by UDP source port.
    pub ports: HashMap<u16, u64>,
    /// Datagrams in all.
    pub datagrams: u64,
}

/// An echo service in the service's namespace; ends when dropped.
#[derive(Debug)]
pub struct EchoService {
    stop: Arc<AtomicBool>,
    reached: Arc<Mutex<Reached>>,
    port: u16,
    /// In the service's namespace, for [`Self::fence`].
    neighbour: UdpSocket,
    decoy: Decoy,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl EchoService {
    /// Starts it on all addresses of the service.
    ///
    /// # Errors
    /// A port in use, or what the kernel says.
    pub fn start(lab: &Lab, port: u16) -> Result<Self, ServiceError> {
        let socket_error = |source| ServiceError::Socket { port, source };
        let socket = lab.service.run(|| bind(port))?.map_err(socket_error)?;
        socket.set_read_timeout(Some(NAP)).map_err(socket_error)?;
        let neighbour = lab
            .service
            .run(|| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)))?
            .map_err(socket_error)?;
        neighbour.set_read_timeout(Some(NAP)).map_err(socket_error)?;
        let decoy = lab.service.run(Decoy::open)?.map_err(socket_error)?;
        let stop = Arc::new(AtomicBool::new(false));
        let reached = Arc::new(Mutex::new(Reached::default()));
        let (stopped, noted) = (stop.clone(), reached.clone());
        let thread = std::thread::Builder::new()
            .name("echo".to_owned())
            .spawn(move || serve(&socket, &stopped, &noted))
            .map_err(socket_error)?;
        Ok(Self {
            stop,
            reached,
            port,
            neighbour,
            decoy,
            thread: Some(thread),
        })
    }

    /// What reached it so far.
    #[must_use]
    pub fn reached(&self) -> Reached {
        self.reached
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Waits until everything that lies in the service's queue now is counted: sends it a datagram from beside it, which
    /// is counted too, and waits for the echo. False when none comes within 10 s.
    #[must_use]
    pub fn fence(&self) -> bool {
        static FENCES: AtomicU64 = AtomicU64::new(0);
        let mark = FENCES.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let start = Instant::now();
        let mut buffer = [0u8; 16];
        while start.elapsed() < Duration::from_secs(10) {
            // Loopback loses nothing but when the queue is full; then the next one gets through.
            let _ = self.neighbour.send_to(&mark, (Ipv4Addr::LOCALHOST, self.port));
            while let Ok((length, _)) = self.neighbour.recv_from(&mut buffer) {
                if buffer.get(..length) == Some(&mark) {
                    return true;
                }
            }
        }
        false
    }

    /// Attackers' messages that have come since the last call as something that always passes a gate; `None` when none of one's own
    /// arrives there within 10 s.
    pub(crate) fn disguised(&self) -> Option<u64> {
        self.decoy.count(&self.neighbour)
    }

    /// Stops it and says what reached it.
    ///
    /// # Errors
    /// Its socket failed.
    pub fn finish(mut self) -> Result<Reached, ServiceError> {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let port = self.port;
            thread
                .join()
                .map_err(|_| ServiceError::Panicked)?
                .map_err(|source| ServiceError::Socket { port, source })?;
        }
        Ok(self.reached())
    }
}

impl Drop for EchoService {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One socket for both IP versions; without IPv6 in the kernel, for IPv4.
fn bind(port: u16) -> io::Result<UdpSocket> {
    UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)).or_else(|_| UdpSocket::bind(("0.0.0.0", port)))
}

fn serve(socket: &UdpSocket, stop: &AtomicBool, reached: &Mutex<Reached>) -> io::Result<()> {
    let mut buffer = [0u8; 2048];
    while !stop.load(Ordering::Relaxed) {
        let (length, from) = match socket.recv_from(&mut buffer) {
            Ok(received) => received,
            Err(error) if is_transient(&error) => continue,
            Err(error) => return Err(error),
        };
        {
            let mut reached = reached.lock().unwrap_or_else(PoisonError::into_inner);
            *reached.sources.entry(from.ip().to_canonical()).or_default() += 1;
            *reached.ports.entry(from.port()).or_default() += 1;
            reached.datagrams += 1;
        }
        match socket.send_to(buffer.get(..length).unwrap_or_default(), from) {
            Err(error) if !is_transient(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Nothing came in time, a signal, or an ICMP error about an echo sent before (its sender may have gone).
fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionRefused, HostUnreachable, Interrupted, NetworkUnreachable, TimedOut, WouldBlock,
    };
    matches!(
        error.kind(),
        WouldBlock | TimedOut | Interrupted | ConnectionRefused | HostUnreachable | NetworkUnreachable
    )
}
