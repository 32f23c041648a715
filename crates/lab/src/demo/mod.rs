//! The demonstration: a fleet authenticates over real packets while attackers try everything, and a judge counts.
//!
//! ```text
//!  devices namespace                 gateway namespace                  service namespace
//!  fleet (own PUF, MAC, IP each) ─┐
//!                                 ├─ veth ─ data plane ── gate ── veth ─ echo service
//!  attackers, listener ───────────┘            ▲                             │
//!                                              │ rows, revocations           │ who reached it
//!                                           registry ──── lines ──► judge ◄──┘
//! ```
//! One run is: build the lab; enrol the fleet into a fresh registry; start a gateway that is fed from it; show that
//! the gate is closed; let all devices authenticate while the attackers work; compare every line of the gateway with
//! what its device holds; send a datagram from every device through the gate; let some devices prove what they run, change
//! one of them, and show that it is found and shut out until it is put right; revoke one device and show that it is out;
//! measure latency on two data planes with the same devices.
//!
//! What counts is read off the gateway's memory, the devices' state machines and the service's books
//! ([`report::Report`]), never off an attacker's own view. Nothing here prints: whoever runs it gets [`Event`]s.

mod attest;
mod cast;
mod fleets;
mod home;
mod judge;
mod latency;
mod loopback;
mod network;
pub mod picture;
pub mod report;
mod siege;
mod site;
mod switch;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use linewarden_dataplane::DataPlaneError;
use linewarden_gateway::GatewayError;
use linewarden_measurement::files::PathError;
use linewarden_registry::RegistryError;
use linewarden_switch::hosted::HostError;
use linewarden_switch::ports::{PortError, PortSetError};

pub use self::report::{AttackOutcome, Report};
use crate::attackers::AttackError;
use crate::capability::{self, FOR_LOAD_GENERATOR, FOR_NETWORK, Missing};
use crate::fleet::{EnrolError, FleetError, MeasureError};
use crate::netns::NetNsError;
use crate::packet_socket::PacketSocketError;
use crate::service::ServiceError;
use crate::topology::LabError;

/// Devices that are listened to, then attacked; one of them is revoked in the end.
pub const WITNESSES: u32 = 8;
/// Fewest devices that a demonstration makes sense with.
pub const DEVICES_MIN: u32 = 2 * WITNESSES;
/// Most devices: behind them lie the addresses of absent devices and attackers.
pub const DEVICES_MAX: u32 = 60_000;

/// Fewest rows of a device: it authenticates four times here, twice at each gateway.
pub const ROWS_MIN: u32 = 4;
/// Most rows.
pub const ROWS_MAX: u32 = 64;

/// The verifier's engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// eBPF in the kernel, on the interface.
    Xdp,
    /// Threads on UDP sockets.
    Host,
    /// The program `lap` on a P4 switch in this process, controlled by P4Runtime.
    P4,
}

impl Backend {
    /// Name in tables and options.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::Host => "host",
            Self::P4 => "p4",
        }
    }

    /// The one whose latency is measured beside it.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Xdp => Self::Host,
            Self::Host | Self::P4 => Self::Xdp,
        }
    }

    /// It stands between devices and service, and sees whole frames.
    fn has_gate(self) -> bool {
        match self {
            Self::Xdp | Self::P4 => true,
            Self::Host => false,
        }
    }
}

/// What to demonstrate.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Honest devices, [`DEVICES_MIN`] to [`DEVICES_MAX`].
    pub devices: u32,
    /// The data plane of the main run.
    pub backend: Backend,
    /// Decides every chip, its noise, its enrolment and what attackers draw. Not the order in which packets meet.
    pub seed: u64,
    /// Rows of each pool-mode device, at least [`ROWS_MIN`].
    pub rows: u32,
    /// Wrong bits of a PUF reading, as a share.
    pub bit_error_rate: f64,
    /// Devices of a worker in a handshake at once.
    pub window: usize,
    /// Messages per flood and per guess.
    pub effort: u32,
    /// Devices for the comparison of latencies, at most a quarter of all.
    pub latency_devices: u32,
    /// A device that has no session after so long counts as refused.
    pub limit: Duration,
    /// Spoils the run, to test the judge.
    pub sabotage: Option<Sabotage>,
}

impl Options {
    /// The standard demonstration of so many devices.
    #[must_use]
    pub fn new(devices: u32, backend: Backend, seed: u64) -> Self {
        Self {
            devices,
            backend,
            seed,
            rows: 4,
            bit_error_rate: 0.05,
            window: 48,
            effort: 2_000,
            latency_devices: 1_000,
            limit: Duration::from_secs(120),
            sabotage: None,
        }
    }

    fn check(&self) -> Result<(), DemoError> {
        if !(DEVICES_MIN..=DEVICES_MAX).contains(&self.devices) {
            return Err(DemoError::Devices(self.devices));
        }
        if !(ROWS_MIN..=ROWS_MAX).contains(&self.rows) {
            return Err(DemoError::Rows(self.rows));
        }
        Ok(())
    }
}

/// Ways to spoil a run: the judge must notice each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// The last device is revoked before its turn: an honest device is refused.
    RevokeBeforeTurn,
    /// The gate is left off: whoever wants reaches the service.
    GateLeftOff,
    /// The software that is to be changed is not: nothing is found.
    FileLeftAlone,
    /// Another device's software is changed as well: one too many is quarantined.
    SecondFile,
}

/// What the demonstration is busy with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Building namespaces and links.
    Building,
    /// Making devices and enrolling them.
    Enrolling,
    /// Storing them in the registry.
    Registering,
    /// The gateway takes up what it held before.
    Loading,
    /// Devices authenticate, attackers attack.
    Authenticating,
    /// All devices are through, attackers are not done yet.
    Attacking,
    /// Every device sends a datagram to the service behind the gate.
    Reaching,
    /// Devices prove what they run, and one of them is changed.
    Attesting,
    /// One device is revoked.
    Revoking,
    /// Devices authenticate one at a time, without attackers.
    Measuring(Backend),
}

/// What happens, for whoever watches.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A stage begins.
    Stage(Stage),
    /// How far it is.
    Progress {
        /// Done.
        done: u64,
        /// Of so many.
        total: u64,
    },
    /// How the fleet fares; ten times a second.
    Fleet {
        /// Devices with a session.
        authenticated: u64,
        /// Devices in all.
        devices: u64,
        /// Authentications per second so far.
        per_s: f64,
        /// Mean time on the network and in the gateway, µs.
        latency_us: f64,
    },
    /// An attack is over.
    Attack(AttackOutcome),
}

/// Why a demonstration could not be carried out. Whether it went well is in its [`Report`].
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// Too few or too many.
    #[error("{0} devices: from {DEVICES_MIN} to {DEVICES_MAX} can be shown")]
    Devices(u32),
    /// Too few for what a device does here, or more than a demonstration can use.
    #[error("{0} rows per device: from {ROWS_MIN} to {ROWS_MAX} can be used")]
    Rows(u32),
    /// Stopped by the user.
    #[error("interrupted; nothing was left behind")]
    Interrupted,
    /// The gateway does not take the fleet up.
    #[error("the gateway loaded {loaded} of {wanted} devices within {limit_s} s")]
    NotLoaded {
        /// Devices that it has.
        loaded: u64,
        /// Devices enrolled.
        wanted: u64,
        /// How long it had.
        limit_s: u64,
    },
    /// Devices that the attackers were to hear.
    #[error("only {heard} of {wanted} handshakes were overheard: is somebody else capturing on this link?")]
    NotOverheard {
        /// Whole conversations.
        heard: usize,
        /// Devices that authenticated.
        wanted: usize,
    },
    /// The revocation does not arrive.
    #[error("the gateway did not learn of a revocation within {0} s")]
    NotRevoked(u64),
    /// The service is gone.
    #[error("the echo service does not answer from behind the gate within 10 s")]
    ServiceSilent,
    /// A thread ended early.
    #[error("the attackers' thread panicked")]
    Panicked,
    /// A missing capability.
    #[error(transparent)]
    Capability(#[from] Missing),
    /// The network.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A namespace.
    #[error(transparent)]
    NetNs(#[from] NetNsError),
    /// Neighbour entries.
    #[error(transparent)]
    Ip(#[from] crate::iproute::IpError),
    /// Enrolment.
    #[error("enrolment: {0}")]
    Enrol(#[from] EnrolError),
    /// The registry.
    #[error("registry: {0}")]
    Registry(#[from] RegistryError),
    /// The gateway.
    #[error("gateway: {0}")]
    Gateway(#[from] GatewayError),
    /// Its data plane.
    #[error(transparent)]
    DataPlane(#[from] DataPlaneError),
    /// The P4 switch.
    #[error("switch: {0}")]
    Switch(#[from] HostError),
    /// Its ports.
    #[error("switch: {0}")]
    Port(#[from] PortError),
    /// Its ports' numbers.
    #[error("switch: {0}")]
    Ports(#[from] PortSetError),
    /// The fleet.
    #[error("fleet: {0}")]
    Fleet(#[from] FleetError),
    /// A socket.
    #[error(transparent)]
    Socket(#[from] PacketSocketError),
    /// The listener.
    #[error("listening in: {0}")]
    Listener(#[from] AttackError),
    /// The service.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// The system.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What it said.
        source: std::io::Error,
    },
    /// Attestation.
    #[error("attestation: {0}")]
    Attest(String),
    /// What devices run.
    #[error("measuring: {0}")]
    Measure(#[from] MeasureError),
    /// Its paths.
    #[error(transparent)]
    Path(#[from] PathError),
    /// No random bytes.
    #[error("no randomness from the system: {0}")]
    Random(#[from] getrandom::Error),
}

impl DemoError {
    fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}

/// Whoever watches, and whoever may stop the run.
pub(crate) struct Audience<'a> {
    stop: &'a AtomicBool,
    watch: &'a mut dyn FnMut(Event),
}

impl Audience<'_> {
    fn tell(&mut self, event: Event) {
        (self.watch)(event);
    }

    /// Begins a stage, unless the run is to stop.
    fn stage(&mut self, stage: Stage) -> Result<(), DemoError> {
        self.check()?;
        self.tell(Event::Stage(stage));
        Ok(())
    }

    fn progress(&mut self, done: u64, total: u64) {
        self.tell(Event::Progress { done, total });
    }

    fn check(&self) -> Result<(), DemoError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(DemoError::Interrupted);
        }
        Ok(())
    }
}

/// Runs the demonstration: in a private network where this thread may build one, else the `host` data plane over
/// loopback, which shows less ([`Report::left_out`] says what).
///
/// # Errors
/// What kept it from being carried out, [`DemoError::Interrupted`] when `stop` was set, and
/// [`DemoError::Capability`] when `xdp` or `p4` is wanted and not allowed.
pub fn run(options: &Options, stop: &AtomicBool, watch: &mut dyn FnMut(Event)) -> Result<Report, DemoError> {
    options.check()?;
    let mut audience = Audience { stop, watch };
    match options.backend {
        Backend::Xdp => capability::require(FOR_LOAD_GENERATOR)?,
        Backend::P4 => capability::require(FOR_NETWORK)?,
        Backend::Host => {
            if capability::require(FOR_NETWORK).is_err() {
                return loopback::run(options, &mut audience);
            }
        }
    }
    network::run(options, &mut audience)
}
