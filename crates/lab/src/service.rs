//! The service behind the gate: a UDP echo that counts datagrams by sender.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::exempt_traffic::ExemptTrafficSockets;
use crate::netns::NetNsError;
use crate::topology::Lab;

/// Longest wait for a datagram between two checks of the stop flag.
const READ_TIMEOUT: Duration = Duration::from_millis(20);

/// Why the service could not be run.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The namespace could not be entered.
    #[error(transparent)]
    NetNs(#[from] NetNsError),
    /// A socket failed.
    #[error("echo service failed on UDP port {port}: {source}")]
    Socket {
        /// The port.
        port: u16,
        /// The kernel's error.
        source: io::Error,
    },
    /// The service thread panicked.
    #[error("the echo service thread panicked")]
    Panicked,
}

/// The datagrams that reached the service.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServiceTraffic {
    /// Datagrams by source address.
    pub sources: HashMap<IpAddr, u64>,
    /// Datagrams by UDP source port.
    pub ports: HashMap<u16, u64>,
    /// Number of all datagrams.
    pub datagrams: u64,
}

/// An echo service in the service's namespace; stops when dropped.
#[derive(Debug)]
pub struct EchoService {
    stop: Arc<AtomicBool>,
    traffic: Arc<Mutex<ServiceTraffic>>,
    port: u16,
    /// A socket in the service's namespace, for [`Self::drain_queue`].
    local_socket: UdpSocket,
    exempt_traffic: ExemptTrafficSockets,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl EchoService {
    /// Starts the service on all its addresses.
    ///
    /// # Errors
    /// The port is in use, or the kernel refuses a socket.
    pub fn start(lab: &Lab, port: u16) -> Result<Self, ServiceError> {
        let socket_error = |source| ServiceError::Socket { port, source };
        let socket = lab.service.run(|| bind(port))?.map_err(socket_error)?;
        socket
            .set_read_timeout(Some(READ_TIMEOUT))
            .map_err(socket_error)?;
        let local_socket = lab
            .service
            .run(|| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)))?
            .map_err(socket_error)?;
        local_socket
            .set_read_timeout(Some(READ_TIMEOUT))
            .map_err(socket_error)?;
        let exempt_traffic = lab
            .service
            .run(ExemptTrafficSockets::open)?
            .map_err(socket_error)?;
        let stop = Arc::new(AtomicBool::new(false));
        let traffic = Arc::new(Mutex::new(ServiceTraffic::default()));
        let (stop_flag, thread_traffic) = (stop.clone(), traffic.clone());
        let thread = std::thread::Builder::new()
            .name("echo".to_owned())
            .spawn(move || serve(&socket, &stop_flag, &thread_traffic))
            .map_err(socket_error)?;
        Ok(Self {
            stop,
            traffic,
            port,
            local_socket,
            exempt_traffic,
            thread: Some(thread),
        })
    }

    /// The datagrams that have reached the service.
    #[must_use]
    pub fn traffic(&self) -> ServiceTraffic {
        self.traffic
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Waits until all datagrams in the service's queue are counted: sends a datagram from the same namespace, which is
    /// counted, too, and waits for its echo. Returns false if no echo arrives within 10 s.
    #[must_use]
    pub fn drain_queue(&self) -> bool {
        static DRAINS: AtomicU64 = AtomicU64::new(0);
        let payload = DRAINS.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let start = Instant::now();
        let mut buffer = [0u8; 16];
        while start.elapsed() < Duration::from_secs(10) {
            // Loopback loses a datagram only if the queue is full; a retry then arrives.
            let _ = self
                .local_socket
                .send_to(&payload, (Ipv4Addr::LOCALHOST, self.port));
            while let Ok((length, _)) = self.local_socket.recv_from(&mut buffer) {
                if buffer.get(..length) == Some(&payload) {
                    return true;
                }
            }
        }
        false
    }

    /// Number of attack messages in exempt traffic since the previous call; `None` if the service's own datagram does
    /// not arrive within 10 s.
    pub(crate) fn count_attack_messages(&self) -> Option<u64> {
        self.exempt_traffic.count(&self.local_socket)
    }

    /// Stops the service and returns its datagrams.
    ///
    /// # Errors
    /// The service's socket failed.
    pub fn finish(mut self) -> Result<ServiceTraffic, ServiceError> {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let port = self.port;
            thread
                .join()
                .map_err(|_| ServiceError::Panicked)?
                .map_err(|source| ServiceError::Socket { port, source })?;
        }
        Ok(self.traffic())
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

fn serve(socket: &UdpSocket, stop: &AtomicBool, traffic: &Mutex<ServiceTraffic>) -> io::Result<()> {
    let mut buffer = [0u8; 2048];
    while !stop.load(Ordering::Relaxed) {
        let (length, from) = match socket.recv_from(&mut buffer) {
            Ok(received) => received,
            Err(error) if is_transient(&error) => continue,
            Err(error) => return Err(error),
        };
        {
            let mut traffic = traffic.lock().unwrap_or_else(PoisonError::into_inner);
            *traffic.sources.entry(from.ip().to_canonical()).or_default() += 1;
            *traffic.ports.entry(from.port()).or_default() += 1;
            traffic.datagrams += 1;
        }
        match socket.send_to(buffer.get(..length).unwrap_or_default(), from) {
            Err(error) if !is_transient(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Whether the error is a timeout, a signal, or an ICMP error about an earlier echo whose receiver is closed.
fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionRefused, HostUnreachable, Interrupted, NetworkUnreachable, TimedOut, WouldBlock,
    };
    matches!(
        error.kind(),
        WouldBlock | TimedOut | Interrupted | ConnectionRefused | HostUnreachable | NetworkUnreachable
    )
}
