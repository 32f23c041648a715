//! The data plane of a gateway: the engine that verifies devices and forwards or drops their packets.
//!
//! The crate defines the traits of a data plane ([`DataPlane`] and the traits that it requires), three backends, and the
//! [`Store`] that two of them share. A gateway process drives one backend from its control thread; packets do not pass through this thread.
//!
//! | module | contents |
//! |---|---|
//! | [`host`] | backend on UDP sockets; needs no privileges |
//! | [`xdp`] | backend in eBPF, attached to network interfaces; the only backend with a sealed gate |
//! | [`p4runtime`] | backend that controls a P4 switch over P4Runtime |
//! | [`store`] | devices, rows, sessions and provers in the memory that `host` and `xdp` work on |
//! | [`layout`] | this memory, field by field: the mirror of `xdp/bpf/lw_layout.h` |
//! | [`config`], [`capability`] | configuration and Linux capabilities |
//! | [`event`], [`miss`], [`counters`] | what a data plane reports to the gateway |
//!
//! ```text
//!  gateway (control thread)          packets
//!        │ DataPlane                    │
//!        ▼                              ▼
//!  ┌───────────┐  atomics  ┌─────────────────────────────┐
//!  │ Store     │──────────►│ lines · sessions · rows ·   │◄── xdp: eBPF on the interface
//!  │           │           │ index · bindings · control  │◄── host: threads on UDP sockets
//!  └───────────┘           └─────────────────────────────┘
//! ```
//!
//! A packet path never waits for the control thread: it reads this memory and claims rows in it by compare-and-swap. A
//! switch has its own memory; `p4runtime` writes to the switch the data that a store holds for the other backends. Tests
//! compare every reply byte for byte with the oracle, `linewarden_protocol::gateway`.
//!
//! The crate does not decide policy, does not store credentials on disk, and does not talk to the controller. The
//! gateway crate drives the data plane and talks to the controller.
//!
//! Put a device into a store and read its state:
//!
//! ```
//! use std::sync::Arc;
//!
//! use linewarden_dataplane::store::Regions;
//! use linewarden_dataplane::{Geometry, Row, Store};
//! use linewarden_protocol::ids::{DeviceId, Mode, RowIndex};
//! use linewarden_protocol::keys::AuthKey;
//!
//! let geometry = Geometry { slots: 16, ring: 4, hash_seed: [1, 2] };
//! let regions = Arc::new(Regions::anonymous(&geometry)?);
//! let mut store = Store::new(regions, geometry);
//! let row = Row { challenge: [7; 8], auth_key: AuthKey::from_bytes([9; 16]) };
//! store.install(DeviceId(1), Mode::Pool, RowIndex(0), &[row], None)?;
//! let status = store.status(DeviceId(1)).ok_or("not installed")?;
//! assert_eq!(status.rows_left, 1);
//! assert!(!status.has_session);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod attest_request_sender;
pub mod capability;
#[cfg(feature = "bench")]
pub mod classic;
pub mod config;
pub mod counters;
mod data_plane;
mod error;
pub mod ethtool;
pub mod event;
mod frames;
pub mod handling_time;
pub mod host;
pub mod layout;
mod links;
mod measurement;
pub mod miss;
#[cfg(feature = "p4")]
pub mod p4runtime;
mod provers;
mod rate;
mod stamp;
pub mod store;
mod timestamps;
mod wake_fd;
pub mod xdp;

pub use self::config::{Capabilities, Config, ConfigError, Gate, LiveSettings};
pub use self::counters::Counters;
pub use self::data_plane::{Admission, Attestation, DataPlane, Devices, Evidence, Telemetry};
pub use self::error::DataPlaneError;
pub use self::event::{Event, EventKind, SessionOpening};
pub use self::handling_time::HandlingTimes;
pub use self::links::Links;
pub use self::measurement::{Measurement, MeasurementSource};
pub use self::miss::Miss;
pub use self::provers::ProverSet;
pub use self::stamp::{STAMP_LIFETIME_NS, Stamp, StampCounts};
pub use self::store::adopt::{InheritedDevice, InheritedState};
pub use self::store::provers::{ProverError, Provers};
pub use self::store::{
    ClosedSession, Geometry, KeyedSession, LineStatus, Row, SessionView, Store, StoreError,
};
