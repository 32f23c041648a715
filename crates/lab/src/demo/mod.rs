//! The demonstration: a fleet authenticates over real packets while attacks run; all results are checked at the end.
//!
//! ```text
//!  devices namespace                 gateway namespace                  service namespace
//!  fleet (own PUF, MAC, IP each) ─┐
//!                                 ├─ veth ─ data plane ── gate ── veth ─ echo service
//!  attackers, listener ───────────┘            ▲                             │
//!                                              │ rows, revocations           │ datagrams by sender
//!                                           registry ──── lines ──► check ◄──┘
//! ```
//! A run has these steps: build the lab; enroll the fleet into a new registry; start a gateway with this registry; check that
//! the gate is closed; authenticate all devices while the attacks run; compare every line of the gateway with its device;
//! send a datagram from every device through the gate; attest some devices, modify one of them, and check that it is
//! quarantined until it is remediated; revoke one device and check that it has no access; measure latency on two data planes
//! with the same devices.
//!
//! All results come from the gateway's memory, the devices' state machines and the service's counters
//! ([`report::Report`]), never from an attacker's own view. This module prints nothing: the caller receives [`Event`]s.

mod attack_suite;
mod attest;
mod fleets;
mod gateway;
mod latency;
mod line_check;
mod loopback;
mod network;
mod participants;
pub mod picture;
mod registry_store;
pub mod report;
#[cfg(feature = "p4")]
mod switch;
#[cfg(not(feature = "p4"))]
#[path = "no_switch.rs"]
mod switch;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use linewarden_dataplane::DataPlaneError;
use linewarden_gateway::GatewayError;
use linewarden_measurement::files::PathError;
use linewarden_registry::RegistryError;

pub use self::report::{AttackOutcome, Report};
pub use self::switch::SwitchError;
use crate::attackers::AttackError;
use crate::capability::{self, FOR_LOAD_GENERATOR, FOR_NETWORK, MissingCapabilities};
use crate::fleet::{EnrollError, FleetError, MeasureError};
use crate::netns::NetNsError;
use crate::packet_socket::PacketSocketError;
use crate::service::ServiceError;
use crate::topology::LabError;

/// Devices whose handshakes are captured, and which are then attacked; one of them is revoked at the end.
pub const VICTIMS: u32 = 8;
/// Minimum number of devices of a demonstration.
pub const DEVICES_MIN: u32 = 2 * VICTIMS;
/// Maximum number of devices: absent devices and attackers use the following addresses.
pub const DEVICES_MAX: u32 = 60_000;
/// Messages of an attack in the standard demonstration.
pub const MESSAGES_PER_ATTACK: u32 = 2_000;

/// Minimum number of rows of a device: a device of the latency comparison authenticates four times, twice at each of the two
/// gateways.
pub const ROWS_MIN: u32 = 4;
/// Maximum number of rows of a device.
pub const ROWS_MAX: u32 = 64;

/// The data plane that verifies devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPlaneKind {
    /// eBPF in the kernel, on the interface.
    Xdp,
    /// Threads on UDP sockets.
    Host,
    /// The program `lap` on a P4 switch in this process, controlled by P4Runtime.
    P4,
}

impl DataPlaneKind {
    /// Name in tables and options.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::Host => "host",
            Self::P4 => "p4",
        }
    }

    /// The data plane whose latency is measured for comparison.
    #[must_use]
    pub fn compared_with(self) -> Self {
        match self {
            Self::Xdp => Self::Host,
            Self::Host | Self::P4 => Self::Xdp,
        }
    }

    /// Whether the data plane forwards between devices and service, and so receives complete frames.
    fn has_gate(self) -> bool {
        match self {
            Self::Xdp | Self::P4 => true,
            Self::Host => false,
        }
    }
}

/// Options of a demonstration.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Legitimate devices, [`DEVICES_MIN`] to [`DEVICES_MAX`].
    pub devices: u32,
    /// The data plane of the main run.
    pub data_plane: DataPlaneKind,
    /// Seed of every chip, its noise, its enrollment and the attackers' random numbers. The order of packets varies.
    pub seed: u64,
    /// Rows of each pool-mode device, at least [`ROWS_MIN`].
    pub rows: u32,
    /// Bit error rate of a PUF reading, 0 to 1.
    pub bit_error_rate: f64,
    /// Concurrent handshakes of each worker.
    pub window: usize,
    /// Number of messages of an attack that sends many messages.
    pub messages_per_attack: u32,
    /// Devices of the latency comparison; at most a quarter of all devices takes part.
    pub latency_devices: u32,
    /// A device without a session after this time counts as refused.
    pub timeout: Duration,
    /// Fault that is injected to test the checks.
    pub fault: Option<InjectedFault>,
}

impl Options {
    /// The standard demonstration with this number of devices.
    #[must_use]
    pub fn new(devices: u32, data_plane: DataPlaneKind, seed: u64) -> Self {
        Self {
            devices,
            data_plane,
            seed,
            rows: 4,
            bit_error_rate: 0.05,
            window: 48,
            messages_per_attack: MESSAGES_PER_ATTACK,
            latency_devices: 1_000,
            timeout: Duration::from_secs(120),
            fault: None,
        }
    }

    fn check(&self) -> Result<(), DemoError> {
        if !(DEVICES_MIN..=DEVICES_MAX).contains(&self.devices) {
            return Err(DemoError::DeviceCount(self.devices));
        }
        if !(ROWS_MIN..=ROWS_MAX).contains(&self.rows) {
            return Err(DemoError::RowCount(self.rows));
        }
        Ok(())
    }
}

/// Faults that the checks must detect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// The last device is revoked before it authenticates: a legitimate device is refused.
    RevokeBeforeAuthentication,
    /// The gate is disabled: every sender reaches the service.
    GateDisabled,
    /// The software is not changed: no device is quarantined.
    FileUnchanged,
    /// The software of a second device is changed, too: one device too many is quarantined.
    SecondFileChanged,
}

/// The stage of a demonstration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Building namespaces and links.
    Building,
    /// Creating and enrolling devices.
    Enrolling,
    /// Storing the devices in the registry.
    Registering,
    /// The gateway loads the fleet.
    Loading,
    /// Devices authenticate while attacks run.
    Authenticating,
    /// All devices have authenticated; attacks are still running.
    Attacking,
    /// Every device sends a datagram to the service behind the gate.
    AccessingService,
    /// Devices are attested; one of them is modified.
    Attesting,
    /// One device is revoked.
    Revoking,
    /// Devices authenticate one at a time, without attackers.
    Measuring(DataPlaneKind),
}

/// An event of a demonstration, for the caller.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A stage begins.
    Stage(Stage),
    /// Progress of the stage.
    Progress {
        /// Completed items.
        done: u64,
        /// All items.
        total: u64,
    },
    /// Progress of the fleet, ten times a second.
    Fleet {
        /// Devices with a session.
        authenticated: u64,
        /// All devices.
        devices: u64,
        /// Authentications per second so far.
        per_s: f64,
        /// Mean time on the network and in the gateway, µs.
        latency_us: f64,
    },
    /// An attack has ended.
    Attack(AttackOutcome),
}

/// Why a demonstration could not be carried out. A successful attack is not an error: the [`Report`] lists
/// successful attacks.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// Too few or too many devices.
    #[error("invalid number of devices {0}: the demonstration supports {DEVICES_MIN} to {DEVICES_MAX}")]
    DeviceCount(u32),
    /// Too few or too many rows per device.
    #[error("invalid number of rows per device {0}: the demonstration supports {ROWS_MIN} to {ROWS_MAX}")]
    RowCount(u32),
    /// Stopped by the user.
    #[error("demonstration interrupted; all temporary data is removed")]
    Interrupted,
    /// The gateway did not load the fleet in time.
    #[error("gateway loaded only {loaded} of {enrolled} devices within {timeout_s} s")]
    NotLoaded {
        /// Devices that the gateway has loaded.
        loaded: u64,
        /// Devices enrolled.
        enrolled: u64,
        /// The timeout, s.
        timeout_s: u64,
    },
    /// The attackers' capture missed handshakes.
    #[error(
        "capture incomplete: {captured} of {authenticated} handshakes; check that no other program captures on this link"
    )]
    IncompleteCapture {
        /// Completely captured handshakes.
        captured: usize,
        /// Devices that authenticated.
        authenticated: usize,
    },
    /// The revocation did not reach the gateway in time.
    #[error("revocation did not reach the gateway within {0} s")]
    RevocationTimeout(u64),
    /// The service does not respond.
    #[error("no echo from the service behind the gate within 10 s")]
    ServiceTimeout,
    /// The attack thread panicked.
    #[error("the attack thread panicked")]
    AttackThreadPanicked,
    /// A missing capability.
    #[error(transparent)]
    Capability(#[from] MissingCapabilities),
    /// The network of the lab could not be built.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A network namespace failed.
    #[error(transparent)]
    NetNs(#[from] NetNsError),
    /// The neighbor entries could not be set.
    #[error(transparent)]
    Ip(#[from] crate::iproute::IpError),
    /// Enrollment failed.
    #[error("enrollment failed: {0}")]
    Enroll(#[from] EnrollError),
    /// A registry operation failed.
    #[error("registry operation failed: {0}")]
    Registry(#[from] RegistryError),
    /// The gateway failed.
    #[error("gateway failed: {0}")]
    Gateway(#[from] GatewayError),
    /// The gateway's data plane failed.
    #[error(transparent)]
    DataPlane(#[from] DataPlaneError),
    /// The P4 switch failed, or could not be started.
    #[error("P4 switch: {0}")]
    Switch(#[from] SwitchError),
    /// The simulated fleet failed.
    #[error("simulated fleet failed: {0}")]
    Fleet(#[from] FleetError),
    /// A packet socket failed.
    #[error(transparent)]
    Socket(#[from] PacketSocketError),
    /// The capture of handshakes failed.
    #[error("capture failed: {0}")]
    Capture(#[from] AttackError),
    /// The service failed.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// An operation of the system failed.
    #[error("{operation} failed: {source}")]
    System {
        /// The failed operation.
        operation: &'static str,
        /// The error of the system.
        source: std::io::Error,
    },
    /// Attestation failed.
    #[error("attestation failed: {0}")]
    Attest(String),
    /// The measurement of a device's software failed.
    #[error("measurement of device software failed: {0}")]
    Measure(#[from] MeasureError),
    /// A path of the measured software is invalid.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The system returns no random bytes.
    #[error("no random bytes from the system: {0}")]
    Random(#[from] getrandom::Error),
}

impl DemoError {
    fn system(operation: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::System { operation, source }
    }
}

/// The observer of a run and the flag that stops it.
pub(crate) struct RunControl<'a> {
    stop: &'a AtomicBool,
    observer: &'a mut dyn FnMut(Event),
}

impl RunControl<'_> {
    fn emit(&mut self, event: Event) {
        (self.observer)(event);
    }

    /// Begins a stage, unless the stop flag is set.
    fn begin_stage(&mut self, stage: Stage) -> Result<(), DemoError> {
        self.check_stop()?;
        self.emit(Event::Stage(stage));
        Ok(())
    }

    fn report_progress(&mut self, done: u64, total: u64) {
        self.emit(Event::Progress { done, total });
    }

    fn check_stop(&self) -> Result<(), DemoError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(DemoError::Interrupted);
        }
        Ok(())
    }
}

/// Runs the demonstration in an isolated network of namespaces. Without the privileges for such a network, the `host`
/// data plane runs on the loopback interface with fewer checks; [`Report::skipped_checks`] lists the skipped checks.
///
/// # Errors
/// Why the demonstration could not be carried out; [`DemoError::Interrupted`] if `stop` was set;
/// [`DemoError::Capability`] if `xdp` or `p4` is selected without the privileges that they need.
pub fn run(
    options: &Options,
    stop: &AtomicBool,
    observer: &mut dyn FnMut(Event),
) -> Result<Report, DemoError> {
    options.check()?;
    let mut control = RunControl { stop, observer };
    match options.data_plane {
        DataPlaneKind::Xdp => capability::require(FOR_LOAD_GENERATOR)?,
        DataPlaneKind::P4 => capability::require(FOR_NETWORK)?,
        DataPlaneKind::Host => {
            if capability::require(FOR_NETWORK).is_err() {
                return loopback::run(options, &mut control);
            }
        }
    }
    network::run(options, &mut control)
}
