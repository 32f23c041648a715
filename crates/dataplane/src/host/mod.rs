//! The `host` data plane: threads on UDP sockets, over the same memory and by the same steps as `xdp`.
//!
//! It is what a user would run without eBPF, and so the baseline that `xdp` is compared with. Every thread has
//! sockets, buffers, counters and an event queue of its own; nothing is locked, and nothing is allocated for a packet.
//! What a UDP socket does not see is declared in its capabilities: it has no gate, no VLANs, and takes MAC addresses
//! from the kernel's neighbour table (see ADR 4).
//!
//! *Panics*: no path from a packet can panic, by lint. Should one do so nevertheless, the line that its thread owned
//! is closed and left empty, not BUSY, and [`crate::DataPlane::failure`] says that the thread has ended. After a crash of the
//! whole process the memory is gone, and all sessions with it (LAP/1 1.4.10).

mod attest;
mod batch;
mod bindings;
mod bulk;
mod classic;
mod engine;
mod lap;
mod neighbour;
mod p4dra;
mod packets;
mod sip;
mod slow;
mod socket;
mod stats;
mod worker;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use linewarden_forro::Backend;
use linewarden_protocol::classic::p4dra::Round;
use linewarden_protocol::verdict::Disposition;
use linewarden_protocol::wire::{AttestRequest, MESSAGE_BYTES};

pub use self::engine::{Engine, Moment, ThreadState};
use self::neighbour::Neighbours;
pub use self::p4dra::P4draBatch;
use self::packets::{PacketSocket, PacketWorker};
use self::slow::Known;
pub use self::slow::Letter;
use self::socket::Socket;
use self::stats::Stats;
use self::worker::{Service, Worker};
use crate::ask::Asker;
use crate::capability::{self, Capability};
use crate::config::{Config, ConfigError};
use crate::counters::Counters;
use crate::event::Event;
use crate::handling::Handling;
use crate::miss::{Carrier, Miss};
use crate::p4dra::{P4draAsker, P4draControl, P4draRegions};
use crate::store::provers::{ProverRegions, Provers};
use crate::store::{Regions, Store};
use crate::{Capabilities, DataPlaneError, StoreBacked, ethtool};

/// How the host data plane runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostOptions {
    /// Threads for each of the gateway's addresses (and for the classic port); at least 1.
    pub threads: usize,
    /// CPUs that the threads are pinned to, in turn; empty: the scheduler decides.
    pub cpus: Vec<usize>,
    /// SO_BUSY_POLL, microseconds; needs CAP_NET_ADMIN and a driver that can be polled.
    pub busy_poll_us: Option<u32>,
    /// Receive buffer of each socket, bytes; above net.core.rmem_max only with CAP_NET_ADMIN.
    pub receive_buffer_bytes: usize,
}

impl Default for HostOptions {
    /// One thread per CPU, 4 MiB.
    fn default() -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            cpus: Vec::new(),
            busy_poll_us: None,
            receive_buffer_bytes: 4 << 20,
        }
    }
}

/// The `host` data plane.
#[derive(Debug)]
pub struct Host {
    store: Store,
    provers: Option<Provers>,
    p4dra: Option<P4draControl>,
    engine: Arc<Engine>,
    stats: Vec<Arc<Stats>>,
    stop: Arc<AtomicBool>,
    running: Vec<Running>,
    /// What the kernel had dropped of sockets that are closed.
    dropped_before: u64,
    /// Of `p4dra-classic`, and the interfaces that it is on; `None`: nothing is heard.
    p4dra_asker: Option<(P4draAsker, Vec<u32>)>,
    /// Devices are asked from the sockets that they are heard by, one for each address; `None`: nothing is heard.
    asker: Option<Asker<Arc<Socket>>>,
    failure: Option<String>,
    /// For what is handed to the packet path again.
    control: ThreadState,
}

#[derive(Debug)]
struct Running {
    socket: Waking,
    thread: JoinHandle<io::Result<()>>,
}

/// What wakes a thread that waits on its socket.
#[derive(Debug)]
enum Waking {
    Datagrams(Arc<Socket>),
    Frames(Arc<PacketSocket>),
}

impl Waking {
    fn shut_down(&self) {
        match self {
            Self::Datagrams(socket) => socket.shut_down(),
            Self::Frames(socket) => socket.shut_down(),
        }
    }

    fn kernel_drops(&self) -> u64 {
        let drops = linewarden_socket::kernel_drops(match self {
            Self::Datagrams(socket) => socket.as_fd(),
            Self::Frames(socket) => socket.as_fd(),
        });
        drops.unwrap_or_default()
    }
}

impl Host {
    /// It sees only what is sent to it.
    const CAPABILITIES: Capabilities = Capabilities {
        gate: false,
        sealed: false,
        attest: true,
        p4dra: true,
        classic: true,
        in_packets: false,
    };

    /// Makes the memory; no packet is seen until [`Host::listen`].
    ///
    /// # Errors
    /// A configuration that cannot be used (a gate, which only `xdp` has), or no memory.
    pub fn new(config: &Config) -> Result<Self, DataPlaneError> {
        // Before the sizes are used.
        config.check()?;
        let regions = Regions::anonymous(&config.geometry)
            .map_err(|error| DataPlaneError::kernel("memory for the lines", error))?;
        regions.begin(&config.live());
        Self::over(config, Store::new(Arc::new(regions), config.geometry.clone()))
    }

    /// [`Host::new`] with other lanes for PROOFs than the widest, to compare them.
    ///
    /// # Errors
    /// As [`Host::new`].
    pub fn with_lanes(config: &Config, lanes: Backend) -> Result<Self, DataPlaneError> {
        let mut host = Self::new(config)?;
        let engine = Arc::get_mut(&mut host.engine);
        if let Some(provers) = engine.and_then(|engine| engine.provers.as_mut()) {
            provers.lanes = lanes;
        }
        let engine = Arc::get_mut(&mut host.engine);
        if let Some(p4dra) = engine.and_then(|engine| engine.p4dra.as_mut()) {
            p4dra.lanes = lanes;
        }
        Ok(host)
    }

    /// [`Host::new`] over a store that is there already.
    ///
    /// # Errors
    /// A configuration that cannot be used, or no descriptor for the bell.
    pub fn over(config: &Config, store: Store) -> Result<Self, DataPlaneError> {
        config.check()?;
        if let Some(what) = Self::CAPABILITIES.missing(config) {
            let backend = Self::NAME;
            return Err(DataPlaneError::Config(ConfigError::Unsupported { backend, what }));
        }
        let memory_error = |error| DataPlaneError::kernel("memory for the provers", error);
        let provers = (config.provers > 0)
            .then(|| ProverRegions::anonymous(&config.prover_geometry()))
            .transpose()
            .map_err(memory_error)?
            .map(|regions| Provers::new(Arc::new(regions), config.prover_geometry()));
        let proofs = provers.as_ref().map(|provers| Arc::clone(provers.regions()));
        let p4dra = P4draControl::new(config, P4draRegions::anonymous).map_err(memory_error)?;
        let served = p4dra.as_ref().map(|p4dra| Arc::clone(p4dra.regions()));
        let engine = Engine::new(config, Arc::clone(store.regions()), proofs, served)
            .map_err(|error| DataPlaneError::kernel("making the packet path", error))?;
        let engine = Arc::new(engine);
        let stats = Arc::new(Stats::new());
        Ok(Self {
            control: engine.thread_state(usize::MAX, Arc::clone(&stats)),
            engine,
            store,
            provers,
            p4dra,
            stats: vec![stats],
            stop: Arc::new(AtomicBool::new(false)),
            running: Vec::new(),
            dropped_before: 0,
            p4dra_asker: None,
            asker: None,
            failure: None,
        })
    }

    /// [`Host::new`], then [`Host::listen`].
    ///
    /// # Errors
    /// Those of both.
    pub fn start(config: &Config, options: &HostOptions) -> Result<Self, DataPlaneError> {
        let mut host = Self::new(config)?;
        host.listen(config, options)?;
        Ok(host)
    }

    /// Opens the sockets in the calling thread's network namespace and starts the threads. An address `0.0.0.0` or
    /// `::` among the configured ones means all addresses of the machine; replies leave from the one asked.
    ///
    /// # Errors
    /// The kernel's, with the address; nothing listens then.
    pub fn listen(&mut self, config: &Config, options: &HostOptions) -> Result<(), DataPlaneError> {
        let datagrams = self.workers(config, options)?;
        let frames = self.packet_workers(config, options)?;
        self.asker = Some(asker(&datagrams)?);
        self.p4dra_asker = match &config.p4dra {
            Some(p4dra) if !frames.is_empty() => Some((P4draAsker::open(p4dra)?, p4dra.interfaces.clone())),
            _ => None,
        };
        self.stop.store(false, Ordering::Release);
        let datagrams = datagrams.into_iter().map(|worker| {
            let socket = Waking::Datagrams(Arc::clone(&worker.socket));
            (socket, Box::new(|| worker.run()) as Serve)
        });
        let frames = frames.into_iter().map(|worker| {
            let socket = Waking::Frames(Arc::clone(&worker.socket));
            (socket, Box::new(|| worker.run()) as Serve)
        });
        for (index, (socket, serve)) in datagrams.chain(frames).enumerate() {
            let cpu = options.cpus.get(index % options.cpus.len().max(1)).copied();
            let spawned = std::thread::Builder::new()
                .name(format!("lw-host-{index}"))
                .spawn(move || {
                    // The sockets are open: whoever finds a way into a thread that reads packets finds nothing there.
                    capability::keep_only(&[])?;
                    if let Some(cpu) = cpu {
                        pin(cpu);
                    }
                    serve()
                });
            match spawned {
                Ok(thread) => self.running.push(Running { socket, thread }),
                Err(error) => {
                    self.stop();
                    return Err(DataPlaneError::kernel("starting a thread", error));
                }
            }
        }
        Ok(())
    }

    fn workers(&mut self, config: &Config, options: &HostOptions) -> Result<Vec<Worker>, DataPlaneError> {
        let classic_port = config.classic.as_ref().map(|classic| classic.port);
        let ports = [
            (Some(config.lap_port), Service::Lap),
            (classic_port, Service::Classic),
        ];
        let services = ports
            .iter()
            .filter_map(|(port, service)| Some(((*port)?, *service)));
        let addresses: Vec<(SocketAddr, Service)> = services
            .flat_map(|(port, service)| {
                let local = config.local.iter();
                local.map(move |ip: &IpAddr| (SocketAddr::new(*ip, port), service))
            })
            .collect();
        let mut workers = Vec::new();
        for (address, service) in addresses {
            let socket_error = |error| DataPlaneError::kernel("opening a socket", error);
            Socket::check_unused(address).map_err(socket_error)?;
            for _ in 0..options.threads.max(1) {
                let netlink_error = |error| DataPlaneError::kernel("opening a netlink socket", error);
                workers.push(Worker {
                    thread: self.thread_state(),
                    engine: Arc::clone(&self.engine),
                    neighbours: Neighbours::open(config.geometry.hash_seed).map_err(netlink_error)?,
                    socket: Arc::new(Socket::open(address, options).map_err(socket_error)?),
                    service,
                    stop: Arc::clone(&self.stop),
                });
            }
        }
        Ok(workers)
    }

    /// One for each interface of `p4dra-classic`.
    fn packet_workers(
        &mut self,
        config: &Config,
        options: &HostOptions,
    ) -> Result<Vec<PacketWorker>, DataPlaneError> {
        let Some(p4dra) = config.p4dra.as_ref().filter(|p4dra| !p4dra.interfaces.is_empty()) else {
            return Ok(Vec::new());
        };
        if let Some(needed) = capability::missing(&[Capability::NetRaw]).first() {
            return Err(DataPlaneError::Privilege {
                backend: Self::NAME,
                needed: needed.name(),
                hint: "p4dra-classic comes in raw frames; all else of this data plane needs none",
            });
        }
        let open = |ifindex: &u32| {
            let socket = PacketSocket::open(p4dra.ether_type, *ifindex, options).map_err(|error| {
                let name = ethtool::told_of(*ifindex);
                DataPlaneError::kernel(format!("opening a packet socket on interface {name}"), error)
            })?;
            Ok(PacketWorker {
                thread: self.thread_state(),
                engine: Arc::clone(&self.engine),
                socket: Arc::new(socket),
            })
        };
        p4dra.interfaces.iter().map(open).collect()
    }

    /// Ends the threads and closes the sockets; what is installed stays. Also done on drop.
    pub fn stop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.asker = None;
        self.p4dra_asker = None;
        for running in &self.running {
            running.socket.shut_down();
        }
        self.dropped_before = self.kernel_drops();
        for running in self.running.drain(..) {
            let ended = match running.thread.join() {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => format!("receiving failed: {error}"),
                Err(_) => "a thread panicked".to_owned(),
            };
            self.failure.get_or_insert(ended);
        }
    }

    fn kernel_drops(&self) -> u64 {
        let running = self.running.iter().map(|running| running.socket.kernel_drops());
        self.dropped_before + running.sum::<u64>()
    }

    /// The verifier, to run it without sockets.
    #[must_use]
    pub fn engine(&self) -> Arc<Engine> {
        Arc::clone(&self.engine)
    }

    /// State for one more thread that runs [`Host::engine`]; its counters and events are this data plane's.
    pub fn thread_state(&mut self) -> ThreadState {
        let stats = Arc::new(Stats::new());
        // The first one is the control thread's.
        let state = self.engine.thread_state(self.stats.len() - 1, Arc::clone(&stats));
        self.stats.push(stats);
        state
    }

    /// The store, for tests that compare its memory.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The provers' memory, with the verdicts of now; `None`: it attests nobody.
    pub fn prover_store(&mut self) -> Option<&mut Provers> {
        StoreBacked::provers(self)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Over the first of the sockets of each address.
fn asker(workers: &[Worker]) -> Result<Asker<Arc<Socket>>, DataPlaneError> {
    let heard = workers.iter().filter(|worker| worker.service == Service::Lap);
    let mut exits: Vec<_> = heard
        .map(|worker| (worker.socket.ip(), Arc::clone(&worker.socket)))
        .collect();
    exits.dedup_by_key(|(ip, _)| *ip);
    Asker::over(exits).map_err(|error| DataPlaneError::kernel("a socket to look routes up", error))
}

/// What a thread does.
type Serve = Box<dyn FnOnce() -> io::Result<()> + Send>;

fn pin(cpu: usize) {
    // SAFETY: all zeros is an empty cpu_set_t.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if cpu < libc::CPU_SETSIZE as usize {
        // SAFETY: `cpu` lies within the set.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: the set is valid for its size; 0 is the calling thread.
    let result = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    if result != 0 {
        tracing::warn!(cpu, error = %io::Error::last_os_error(), "not pinned to the CPU");
    }
}

/// The moment by the clocks of this machine.
pub(crate) fn now() -> Moment {
    worker::now()
}

impl StoreBacked for Host {
    const NAME: &'static str = "host";

    fn store(&self) -> &Store {
        &self.store
    }

    fn store_mut(&mut self) -> &mut Store {
        &mut self.store
    }

    fn provers(&mut self) -> Option<&mut Provers> {
        self.provers.as_mut()
    }

    fn ask(&mut self, requests: &[(SocketAddr, AttestRequest)]) -> Result<usize, DataPlaneError> {
        self.asker.as_ref().map_or(Ok(0), |asker| asker.ask(requests))
    }

    fn p4dra(&mut self) -> Option<&mut P4draControl> {
        self.p4dra.as_mut()
    }

    fn ask_p4dra(&mut self, round: &Round) -> Result<(), DataPlaneError> {
        self.p4dra_asker
            .as_ref()
            .map_or(Ok(()), |(asker, interfaces)| asker.ask(interfaces, round))
    }

    fn counters(&self) -> Result<Counters, DataPlaneError> {
        let mut sum = Counters {
            kernel_drops: self.kernel_drops(),
            ..Counters::default()
        };
        self.stats.iter().for_each(|stats| sum.merge(&stats.counters()));
        Ok(sum)
    }

    fn handling(&self) -> Result<Handling, DataPlaneError> {
        let mut sum = Handling::default();
        self.stats.iter().for_each(|stats| sum.merge(&stats.handling()));
        Ok(sum)
    }

    fn drain_events(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), DataPlaneError> {
        self.stats.iter().for_each(|stats| stats.drain(sink));
        Ok(())
    }

    fn drain_misses(&mut self, sink: &mut dyn FnMut(Miss)) -> Result<(), DataPlaneError> {
        self.engine.slow_path.take().into_iter().for_each(sink);
        Ok(())
    }

    fn send(&mut self, miss: &Miss, reply: &[u8; MESSAGE_BYTES]) {
        if let Carrier::Datagram(letter) = &miss.carrier
            && let Err(error) = letter.answer(reply)
        {
            tracing::debug!(%error, "an answer could not be sent; its device repeats");
        }
    }

    fn replay(&mut self, miss: Miss) -> Result<(), DataPlaneError> {
        let Carrier::Datagram(letter) = &miss.carrier else {
            return Ok(());
        };
        let mut payload = *miss.message();
        let mut macs = Known(letter.mac);
        let now = worker::now();
        let verdict = self.engine.lap(
            &mut self.control,
            now,
            &letter.from,
            &mut macs,
            &mut payload,
            MESSAGE_BYTES,
        );
        if verdict.is_some_and(|verdict| verdict.disposition() == Disposition::Reply) {
            StoreBacked::send(self, &miss, &payload);
        }
        Ok(())
    }

    fn silence(&mut self) {
        self.engine.slow_path.silence();
    }

    fn bell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.engine.slow_path.fd())
    }

    fn failure(&mut self) -> Option<String> {
        let stopping = self.stop.load(Ordering::Acquire);
        if !stopping && self.running.iter().any(|running| running.thread.is_finished()) {
            self.stop();
        }
        self.failure.clone()
    }
}
