//! The `p4runtime` data plane: the program `lap` on a P4 switch, controlled over P4Runtime.
//!
//! ```text
//!  gateway ── DataPlane ──► P4Runtime ── writes, reads ──► rows · keys · registers · meters ──► packets
//!                              ▲  └── packet-out ────────► clock_us                              │
//!                              └─ digests: sessions, wrong tags and proofs; packet-ins: unknown devices ◄───┘
//! ```
//!
//! The switch holds the data that the [`Store`](crate::Store) holds for other backends. The gateway records which rows the
//! switch has, but no keys. Features that the program lacks (docs/switch-programs.md) are refused when the data plane
//! starts.
//!
//! *Loss of the switch*: the switch restarts without rows, its stream breaks, or the switch refuses a request. It is
//! then unknown which rows are spent, and [`crate::DataPlane::failure`] reports the loss, as for any data plane that ends. A
//! gateway that restarts clears the switch and requests new rows. A switch that no gateway controls stops answering
//! once the fresh value is 16 s old.

mod attest_requests;
mod clock;
mod data_plane;
mod device;
mod device_table;
pub(crate) mod error;
mod events;
mod location;
mod options;
mod program;
mod prover_table;
mod provers;
mod setup;
mod slow_path;
mod slow_path_table;
mod sources;
mod switch_connection;

use std::sync::Mutex;

pub use self::error::SwitchError;
pub use self::options::{BridgeEntry, CAPABILITIES, P4Options, SwitchPort};
pub use self::program::{DEVICES, PROVERS};

use self::clock::ClockReading;
use self::device_table::DeviceTable;
use self::prover_table::ProverTable;
use self::slow_path_table::SlowPathTable;
use self::switch_connection::SwitchConnection;
use crate::config::{Config, LiveSettings};
use crate::error::DataPlaneError;
use crate::event::Event;
use crate::store::StoreError;
use linewarden_protocol::ids::DeviceId;

/// The `p4runtime` data plane.
#[derive(Debug)]
pub struct P4Runtime {
    connection: SwitchConnection,
    config: Config,
    live: LiveSettings,
    stopping: bool,
    table: DeviceTable,
    provers: ProverTable,
    clock: ClockReading,
    slow_path: SlowPathTable,
    /// Time of the most recent reconciliation, on the monotonic clock.
    reconciled_ns: Option<u64>,
    /// Devices that lack rows, to be reported as events.
    low_row_events: Vec<Event>,
    reported_wins: u64,
    /// The current fresh value, in wire order.
    fresh: u64,
    /// The first failure. After a failure the content of the switch is unknown.
    failure: Mutex<Option<String>>,
}

impl P4Runtime {
    /// Takes control of the switch: clears it and loads `lap` with this configuration. The switch answers no message
    /// until a fresh value is set.
    ///
    /// # Errors
    /// The configuration needs a feature that `lap` lacks; the switch is unreachable, has another primary P4Runtime
    /// controller, has no CPU port, or refuses a request.
    pub fn connect(config: &Config, options: &P4Options) -> Result<Self, DataPlaneError> {
        options.check(config)?;
        let connection = SwitchConnection::open(options)?;
        let clock = ClockReading::take(&connection, None)?;
        let data_plane = Self {
            table: DeviceTable::new(config.geometry.slots),
            provers: ProverTable::new(config.provers),
            live: config.live_settings(),
            config: config.clone(),
            stopping: false,
            clock,
            slow_path: SlowPathTable::default(),
            reconciled_ns: None,
            low_row_events: Vec::new(),
            reported_wins: 0,
            fresh: 0,
            failure: Mutex::default(),
            connection,
        };
        data_plane.set_up(options)?;
        Ok(data_plane)
    }

    /// Number of winning RESPONSEs that the switch has reported so far. A RESPONSE is counted when its report arrives,
    /// shortly after the session was opened. A lost report is never counted.
    #[must_use]
    pub fn reported_wins(&self) -> u64 {
        self.reported_wins
    }

    fn lock_failure(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.failure
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Records the first failure. After a failure the content of the switch is unknown.
    fn record_failure<T>(&self, result: Result<T, SwitchError>) -> Result<T, SwitchError> {
        if let Err(error) = &result {
            self.lock_failure().get_or_insert_with(|| match error {
                SwitchError::Lost(reason) => reason.clone(),
                error => error.to_string(),
            });
        }
        result
    }

    /// Fails if an earlier operation failed.
    fn check_usable(&self) -> Result<(), SwitchError> {
        let failure = self
            .lock_failure()
            .clone()
            .or_else(|| self.connection.end_reason());
        failure.map_or(Ok(()), |reason| Err(SwitchError::Lost(reason)))
    }

    /// Records a failure, and converts it to the error of a device.
    fn for_device<T>(&self, device: DeviceId, result: Result<T, SwitchError>) -> Result<T, StoreError> {
        self.record_failure(result).map_err(|error| {
            tracing::error!(device_id = %device, %error, "P4 switch operation failed; the data plane stops");
            StoreError::SwitchFailed(device)
        })
    }
}
