//! The `host` data plane: threads on UDP sockets, on the same memory and with the same steps as `xdp`.
//!
//! This data plane runs without eBPF and is the baseline for comparisons with `xdp`. Each thread has its own sockets,
//! buffers, counters and event queue; no lock is taken and nothing is allocated per packet. A UDP socket does not see
//! whole frames: the backend has no gate and no VLANs, and takes MAC addresses from the kernel's neighbor table (see
//! ADR 4).
//!
//! *Panics*: lints forbid a panic on every path from a packet. If a panic occurs nevertheless, the session of the line
//! that the thread owned is closed, and the line is empty and not BUSY. [`crate::DataPlane::failure`] reports that the
//! thread ended. A crash of the process loses the memory and all sessions (LAP/1 1.4.10).

mod attest;
pub(crate) mod batch;
mod bindings;
mod engine;
mod lap;
mod message;
mod neighbor;
mod options;
mod origin;
mod process;
mod proof_batch;
mod proof_slice;
pub(crate) mod reply_handle;
mod sip;
mod slow_path;
pub(crate) mod socket;
pub(crate) mod stats;
pub(crate) mod worker;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use linewarden_forro::Backend;
use linewarden_protocol::attest::Round as AttestRound;
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::sources::DeviceSources;
use linewarden_protocol::verdict::Disposition;
use linewarden_protocol::wire::{AttestRequest, MESSAGE_BYTES};

pub use self::engine::{Engine, ThreadState};
use self::neighbor::Neighbors;
pub use self::options::HostOptions;
use self::slow_path::KnownMac;
use self::socket::Socket;
use self::stats::Stats;
use self::worker::Worker;
use crate::attest_request_sender::AttestRequestSender;
use crate::capability;
use crate::config::{Capabilities, Config, ConfigError, LiveSettings};
use crate::counters::Counters;
use crate::data_plane::{self, Admission, Attestation, DataPlane, Evidence, StoreBacked, Telemetry};
use crate::error::DataPlaneError;
use crate::event::Event;
use crate::handling_time::HandlingTimes;
use crate::miss::{self, Carrier, Miss};
use crate::provers::ProverSet;
use crate::store::provers::{ProverRegions, Provers};
use crate::store::{ClosedSession, Regions, Store};
pub use crate::timestamps::Timestamps;
use crate::timestamps::now;

/// The name in log messages and metrics.
const NAME: &str = "host";

/// The `host` data plane.
#[derive(Debug)]
pub struct Host {
    store: Store,
    provers: Option<Provers>,
    engine: Arc<Engine>,
    stats: Vec<Arc<Stats>>,
    stop: Arc<AtomicBool>,
    threads: Vec<RunningThread>,
    /// Number of packets that the kernel dropped at sockets that are closed now.
    closed_socket_drops: u64,
    /// ATTEST_REQUESTs leave from the receiving sockets, one for each address. `None`: not listening.
    attest_request_sender: Option<AttestRequestSender<Arc<Socket>>>,
    failure: Option<String>,
    /// Thread state for messages that are replayed.
    replay_state: ThreadState,
}

#[derive(Debug)]
struct RunningThread {
    socket: Arc<Socket>,
    thread: JoinHandle<io::Result<()>>,
}

impl Host {
    /// No gate: the sockets receive only traffic that is addressed to the gateway.
    const CAPABILITIES: Capabilities = Capabilities {
        gate: false,
        sealed: false,
        attest: true,
        inband_evidence: false,
    };

    /// Allocates the memory. No packet is received until [`Host::listen`].
    ///
    /// # Errors
    /// The configuration is invalid or needs a gate, which only `xdp` has; or no memory is available.
    pub fn new(config: &Config) -> Result<Self, DataPlaneError> {
        // Validated before the sizes are used.
        config.check()?;
        let regions = Regions::anonymous(&config.geometry)
            .map_err(|error| DataPlaneError::kernel("allocating memory for the lines", error))?;
        regions.initialize_settings(&config.live_settings());
        Self::with_store(config, Store::new(Arc::new(regions), config.geometry.clone()))
    }

    /// As [`Host::new`], with the vector code `lanes` for PROOFs instead of the widest that the CPU supports. Used to compare
    /// the speed of vector code.
    ///
    /// # Errors
    /// As [`Host::new`].
    pub fn with_lanes(config: &Config, lanes: Backend) -> Result<Self, DataPlaneError> {
        let mut host = Self::new(config)?;
        let engine = Arc::get_mut(&mut host.engine);
        if let Some(provers) = engine.and_then(|engine| engine.provers.as_mut()) {
            provers.backend = lanes;
        }
        Ok(host)
    }

    /// As [`Host::new`], with an existing store.
    ///
    /// # Errors
    /// The configuration is invalid, or no file descriptor is available.
    pub fn with_store(config: &Config, store: Store) -> Result<Self, DataPlaneError> {
        config.check()?;
        if let Some(feature) = Self::CAPABILITIES.first_missing(config) {
            let backend = NAME;
            return Err(DataPlaneError::Config(ConfigError::Unsupported {
                backend,
                feature,
            }));
        }
        let memory_error = |error| DataPlaneError::kernel("allocating memory for the provers", error);
        let provers = (config.provers > 0)
            .then(|| ProverRegions::anonymous(&config.prover_geometry()))
            .transpose()
            .map_err(memory_error)?
            .map(|regions| Provers::new(Arc::new(regions), config.prover_geometry()));
        let prover_regions = provers.as_ref().map(|provers| Arc::clone(provers.regions()));
        let engine = Engine::new(config, Arc::clone(store.regions()), prover_regions)
            .map_err(|error| DataPlaneError::kernel("creating the packet path", error))?;
        let engine = Arc::new(engine);
        let stats = Arc::new(Stats::new());
        Ok(Self {
            replay_state: ThreadState::new(Arc::clone(&stats)),
            engine,
            store,
            provers,
            stats: vec![stats],
            stop: Arc::new(AtomicBool::new(false)),
            threads: Vec::new(),
            closed_socket_drops: 0,
            attest_request_sender: None,
            failure: None,
        })
    }

    /// [`Host::new`], then [`Host::listen`].
    ///
    /// # Errors
    /// Errors of [`Host::new`] and of [`Host::listen`].
    pub fn start(config: &Config, options: &HostOptions) -> Result<Self, DataPlaneError> {
        let mut host = Self::new(config)?;
        host.listen(config, options)?;
        Ok(host)
    }

    /// Opens the sockets in the calling thread's network namespace and starts the threads. A configured address
    /// `0.0.0.0` or `::` means all addresses of the machine; replies leave from the address to which the message was
    /// sent.
    ///
    /// # Errors
    /// An operation of the kernel failed. The error of a socket names its address.
    pub fn listen(&mut self, config: &Config, options: &HostOptions) -> Result<(), DataPlaneError> {
        let workers = self.workers(config, options)?;
        self.attest_request_sender = Some(open_request_sender(&workers)?);
        self.stop.store(false, Ordering::Release);
        for (index, worker) in workers.into_iter().enumerate() {
            let socket = Arc::clone(&worker.socket);
            let cpu = options.cpus.get(index % options.cpus.len().max(1)).copied();
            let result = std::thread::Builder::new()
                .name(format!("lw-host-{index}"))
                .spawn(move || {
                    // The sockets are open; a thread that reads packets runs without privileges.
                    capability::keep_only(&[])?;
                    if let Some(cpu) = cpu {
                        pin(cpu);
                    }
                    worker.run()
                });
            match result {
                Ok(thread) => self.threads.push(RunningThread { socket, thread }),
                Err(error) => {
                    self.stop();
                    return Err(DataPlaneError::kernel("starting a thread", error));
                }
            }
        }
        Ok(())
    }

    fn workers(&mut self, config: &Config, options: &HostOptions) -> Result<Vec<Worker>, DataPlaneError> {
        let mut workers = Vec::new();
        for ip in &config.local {
            let address = SocketAddr::new(*ip, config.lap_port);
            let socket_error = |error| DataPlaneError::kernel("opening a socket", error);
            Socket::check_unused(address).map_err(socket_error)?;
            for _ in 0..options.threads.max(1) {
                let netlink_error = |error| DataPlaneError::kernel("opening a netlink socket", error);
                workers.push(Worker {
                    thread: self.thread_state(),
                    engine: Arc::clone(&self.engine),
                    neighbors: Neighbors::open(config.geometry.hash_seed).map_err(netlink_error)?,
                    socket: Arc::new(Socket::open(address, options).map_err(socket_error)?),
                    stop: Arc::clone(&self.stop),
                });
            }
        }
        Ok(workers)
    }

    /// Stops the threads and closes the sockets. Installed devices stay. Dropping the value does the same.
    pub fn stop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.attest_request_sender = None;
        for running in &self.threads {
            running.socket.shut_down();
        }
        self.closed_socket_drops = self.kernel_drops();
        for running in self.threads.drain(..) {
            let failure = match running.thread.join() {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => format!("receiving packets failed: {error}"),
                Err(_) => "a thread panicked".to_owned(),
            };
            self.failure.get_or_insert(failure);
        }
    }

    fn kernel_drops(&self) -> u64 {
        let drops = |running: &RunningThread| linewarden_socket::kernel_drops(running.socket.as_fd());
        let running = self
            .threads
            .iter()
            .map(|running| drops(running).unwrap_or_default());
        self.closed_socket_drops + running.sum::<u64>()
    }

    /// The packet path, for use without sockets.
    #[must_use]
    pub fn engine(&self) -> Arc<Engine> {
        Arc::clone(&self.engine)
    }

    /// State for another thread that runs [`Host::engine`]. This data plane also reports the counters and events of that
    /// thread.
    pub fn thread_state(&mut self) -> ThreadState {
        let stats = Arc::new(Stats::new());
        self.stats.push(Arc::clone(&stats));
        ThreadState::new(stats)
    }

    /// The store, for tests that compare its memory.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The provers' memory with current verdicts. `None`: PROOFs are not served.
    pub fn prover_store(&mut self) -> Option<&mut Provers> {
        self.provers.as_mut()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A sender that uses the first socket of each address.
fn open_request_sender(workers: &[Worker]) -> Result<AttestRequestSender<Arc<Socket>>, DataPlaneError> {
    let mut sockets: Vec<_> = workers
        .iter()
        .map(|worker| (worker.socket.ip(), Arc::clone(&worker.socket)))
        .collect();
    sockets.dedup_by_key(|(ip, _)| *ip);
    AttestRequestSender::new(sockets)
        .map_err(|error| DataPlaneError::kernel("opening a socket for route look-ups", error))
}

pub(crate) fn pin(cpu: usize) {
    // SAFETY: all zeros is an empty cpu_set_t.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if cpu < libc::CPU_SETSIZE as usize {
        // SAFETY: `cpu` is within the set.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: the set is valid for its size; 0 is the calling thread.
    let result = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    if result != 0 {
        tracing::warn!(cpu, error = %io::Error::last_os_error(), "host data plane: pinning a thread to its CPU failed; continuing unpinned");
    }
}

/// Sends a reply to a message of the slow path.
fn transmit(miss: &Miss, reply: &[u8; MESSAGE_BYTES]) {
    if let Carrier::Datagram(handle) = &miss.carrier
        && let Err(error) = handle.send(reply)
    {
        tracing::debug!(%error, "host data plane: sending a slow-path reply failed; the device will repeat its message");
    }
}

impl StoreBacked for Host {
    fn store(&self) -> &Store {
        &self.store
    }

    fn store_mut(&mut self) -> &mut Store {
        &mut self.store
    }
}

impl Admission for Host {
    fn reconfigure(&mut self, live: &LiveSettings, boot_s: u32) -> Result<(), DataPlaneError> {
        self.store.set_live(live, boot_s);
        Ok(())
    }

    fn set_sources(&mut self, sources: &DeviceSources) -> Vec<ClosedSession> {
        self.store.set_sources(sources)
    }

    fn set_fresh(&mut self, fresh: [u8; 8], now_ns: u64) {
        self.store.set_fresh(fresh, now_ns);
    }

    fn set_stopping(&mut self, stopping: bool) {
        self.store.set_stopping(stopping);
    }

    fn enroll(&mut self, device: DeviceId) {
        self.store.enroll(device);
    }

    fn set_enrollment_filter(&mut self, filtering: bool) {
        self.store.set_enrollment_filter(filtering);
    }

    fn drain_misses(&mut self, sink: &mut dyn FnMut(Miss)) -> Result<(), DataPlaneError> {
        self.engine.slow_path.take().into_iter().for_each(sink);
        Ok(())
    }

    fn send_reply(&mut self, miss: &Miss, reply: &[u8; MESSAGE_BYTES]) {
        if miss::is_challenge(reply) {
            self.expect_response(miss);
        }
        transmit(miss, reply);
    }

    fn expect_response(&mut self, miss: &Miss) {
        self.store.expect_response(miss.message());
    }

    fn replay(&mut self, miss: Miss) -> Result<(), DataPlaneError> {
        let Carrier::Datagram(handle) = &miss.carrier else {
            return Ok(());
        };
        let mut payload = *miss.message();
        let mut macs = KnownMac(handle.mac);
        let now = now();
        let verdict = self.engine.handle_lap(
            &mut self.replay_state,
            now,
            &handle.from,
            &mut macs,
            &mut payload,
            MESSAGE_BYTES,
        );
        if verdict.is_some_and(|verdict| verdict.disposition() == Disposition::Reply) {
            transmit(&miss, &payload);
        }
        Ok(())
    }
}

impl Attestation for Host {
    fn provers(&mut self) -> Option<&mut dyn ProverSet> {
        self.prover_store().map(|provers| provers as &mut dyn ProverSet)
    }

    fn session_requests(
        &self,
        devices: &[DeviceId],
        round: &AttestRound,
        now_s: u32,
    ) -> Vec<Option<(IpAddr, AttestRequest)>> {
        data_plane::session_requests(&self.store, devices, round, now_s)
    }

    fn send_attest_requests(
        &mut self,
        requests: &[(SocketAddr, AttestRequest)],
    ) -> Result<usize, DataPlaneError> {
        self.attest_request_sender
            .as_ref()
            .map_or(Ok(0), |sender| sender.send_requests(requests))
    }
}

impl Evidence for Host {}

impl Telemetry for Host {
    fn drain_events(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), DataPlaneError> {
        self.stats.iter().for_each(|stats| stats.drain(sink));
        Ok(())
    }

    fn counters(&self) -> Result<Counters, DataPlaneError> {
        let mut sum = Counters {
            kernel_drops: self.kernel_drops(),
            ..Counters::default()
        };
        self.stats.iter().for_each(|stats| sum.merge(&stats.counters()));
        Ok(sum)
    }

    fn handling_times(&self) -> Result<Option<HandlingTimes>, DataPlaneError> {
        let mut sum = HandlingTimes::default();
        self.stats
            .iter()
            .for_each(|stats| sum.merge(&stats.handling_histogram()));
        Ok(Some(sum))
    }
}

impl DataPlane for Host {
    fn name(&self) -> &'static str {
        NAME
    }

    fn set_owner(&mut self, owner: u64) {
        self.store.set_owner(owner);
    }

    fn arm_wake(&mut self) {
        self.engine.slow_path.reset_wake();
        self.store.arm_wake();
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.engine.slow_path.fd())
    }

    fn housekeep(&mut self) {
        data_plane::housekeep(&mut self.store, self.provers.as_mut());
    }

    fn failure(&mut self) -> Option<String> {
        let stopping = self.stop.load(Ordering::Acquire);
        if !stopping && self.threads.iter().any(|running| running.thread.is_finished()) {
            self.stop();
        }
        self.failure.clone()
    }
}
