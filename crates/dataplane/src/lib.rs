//! The [`DataPlane`] trait, the line store that its backends share, and the backends: `host` (UDP) and `xdp` (eBPF).
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
//! A packet path never waits for anything: it reads and claims what lies in that memory. What it answers is compared
//! byte for byte with `linewarden_protocol::gateway`, the oracle.

pub mod capability;
pub mod classic;
pub mod config;
pub mod counters;
pub mod ethtool;
pub mod event;
pub mod host;
pub mod layout;
pub mod miss;
pub mod store;
pub mod xdp;

use std::os::fd::BorrowedFd;

use linewarden_protocol::ids::{DeviceId, Mode, RowIndex};
use linewarden_protocol::wire::MESSAGE_BYTES;

pub use self::config::{Classic, ClassicProfile, Config, ConfigError, Gate};
pub use self::counters::Counters;
pub use self::event::{Event, EventKind};
pub use self::miss::Miss;
pub use self::store::{Geometry, HeldSession, LineStatus, Row, Store, StoreError};

/// Where a backend learns a sender's MAC address, which a BOUND session is tied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceMac {
    /// From the frame itself.
    Frame,
    /// From the kernel's neighbour table, which is as good as ARP and ND are.
    NeighbourTable,
}

/// What a backend can do; the gateway refuses a configuration that asks for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Where MAC addresses come from.
    pub source_mac: SourceMac,
    /// Whether it sees, and can drop, traffic that is not addressed to it.
    pub gate: bool,
    /// Whether it serves the classic profiles.
    pub classic: bool,
    /// Whether it sees VLAN tags.
    pub vlans: bool,
}

/// Why a backend cannot do something.
#[derive(Debug, thiserror::Error)]
pub enum DataPlaneError {
    /// The store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The configuration contradicts itself.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A privilege is missing.
    #[error("the {backend} data plane needs {needed}: {hint}")]
    Privilege {
        /// The backend.
        backend: &'static str,
        /// The capability by its name in capabilities(7).
        needed: &'static str,
        /// What still works.
        hint: &'static str,
    },
    /// The kernel refused something.
    #[error("{what}: {source}")]
    Kernel {
        /// What was tried.
        what: String,
        /// The kernel's or libbpf's word.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl DataPlaneError {
    pub(crate) fn kernel(
        what: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Kernel {
            what: what.into(),
            source: source.into(),
        }
    }
}

/// A data plane as the gateway drives it. Times are the caller's.
pub trait DataPlane: Send {
    /// Name in messages and metrics.
    fn name(&self) -> &'static str;
    /// What it can do.
    fn capabilities(&self) -> Capabilities;
    /// See [`Store::install`].
    ///
    /// # Errors
    /// See [`StoreError`].
    fn install(
        &mut self,
        device: DeviceId,
        mode: Mode,
        next: RowIndex,
        rows: &[Row],
        mark: Option<RowIndex>,
    ) -> Result<(), StoreError>;
    /// See [`Store::grant`].
    ///
    /// # Errors
    /// See [`StoreError`].
    fn grant(&mut self, device: DeviceId, mark: RowIndex) -> Result<(), StoreError>;
    /// See [`Store::refill`].
    ///
    /// # Errors
    /// See [`StoreError`].
    fn refill(&mut self, device: DeviceId, first: RowIndex, rows: &[Row]) -> Result<RowIndex, StoreError>;
    /// See [`Store::revoke`].
    ///
    /// # Errors
    /// See [`StoreError`].
    fn revoke(&mut self, device: DeviceId) -> Result<(), StoreError>;
    /// See [`Store::wipe`].
    ///
    /// # Errors
    /// See [`StoreError`].
    fn wipe(&mut self, device: DeviceId) -> Result<(), StoreError>;
    /// What the device's line holds.
    fn status(&self, device: DeviceId) -> Option<LineStatus>;
    /// See [`Store::session`].
    fn session(&self, device: DeviceId) -> Option<HeldSession>;
    /// A new freshness value, drawn at `now_ns` of CLOCK_MONOTONIC; never zero.
    fn set_fresh(&mut self, fresh: [u8; 8], now_ns: u64);
    /// From now on REQUESTs are answered with a NAK.
    fn set_stopping(&mut self, stopping: bool);
    /// Verdicts so far, over all CPUs and threads.
    ///
    /// # Errors
    /// Those of the kernel.
    fn counters(&self) -> Result<Counters, DataPlaneError>;
    /// Hands the events so far to `sink`.
    ///
    /// # Errors
    /// Those of the kernel.
    fn drain_events(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), DataPlaneError>;
    /// Hands the messages of unknown devices so far to `sink`.
    ///
    /// # Errors
    /// Those of the kernel.
    fn drain_misses(&mut self, sink: &mut dyn FnMut(Miss)) -> Result<(), DataPlaneError>;
    /// Answers a message; one that cannot be sent is left out, for its sender repeats.
    fn send(&mut self, miss: &Miss, reply: &[u8; MESSAGE_BYTES]);
    /// Hands a message to the packet path again, now that its device is here, and sends what that replies.
    ///
    /// # Errors
    /// Those of the kernel.
    fn replay(&mut self, miss: Miss) -> Result<(), DataPlaneError>;
    /// From now on the bell rings, once, when something happens that must be acted on: call it before draining.
    fn listen(&mut self);
    /// Readable when it has rung; `None`: it never does.
    fn bell(&self) -> Option<BorrowedFd<'_>>;
    /// Frees what dead sessions and wiped devices hold; call it every few seconds.
    fn housekeep(&mut self);
    /// Why packets are no longer handled although nobody stopped it; `None` while all is well.
    fn failure(&mut self) -> Option<String>;
}

/// A backend whose packet path works on a [`Store`]: all that distinguishes it from another one.
pub(crate) trait StoreBacked: Send {
    const NAME: &'static str;
    const CAPABILITIES: Capabilities;
    fn store(&self) -> &Store;
    fn store_mut(&mut self) -> &mut Store;
    fn counters(&self) -> Result<Counters, DataPlaneError>;
    fn drain_events(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), DataPlaneError>;
    fn drain_misses(&mut self, sink: &mut dyn FnMut(Miss)) -> Result<(), DataPlaneError>;
    fn send(&mut self, miss: &Miss, reply: &[u8; MESSAGE_BYTES]);
    fn replay(&mut self, miss: Miss) -> Result<(), DataPlaneError>;
    fn silence(&mut self);
    fn bell(&self) -> Option<BorrowedFd<'_>>;
    fn failure(&mut self) -> Option<String>;
}

impl<T: StoreBacked> DataPlane for T {
    fn name(&self) -> &'static str {
        T::NAME
    }
    fn capabilities(&self) -> Capabilities {
        T::CAPABILITIES
    }
    fn install(
        &mut self,
        device: DeviceId,
        mode: Mode,
        next: RowIndex,
        rows: &[Row],
        mark: Option<RowIndex>,
    ) -> Result<(), StoreError> {
        self.store_mut().install(device, mode, next, rows, mark)
    }
    fn grant(&mut self, device: DeviceId, mark: RowIndex) -> Result<(), StoreError> {
        self.store_mut().grant(device, mark)
    }
    fn refill(&mut self, device: DeviceId, first: RowIndex, rows: &[Row]) -> Result<RowIndex, StoreError> {
        self.store_mut().refill(device, first, rows)
    }
    fn revoke(&mut self, device: DeviceId) -> Result<(), StoreError> {
        self.store().revoke(device)
    }
    fn wipe(&mut self, device: DeviceId) -> Result<(), StoreError> {
        self.store_mut().wipe(device)
    }
    fn status(&self, device: DeviceId) -> Option<LineStatus> {
        self.store().status(device)
    }
    fn session(&self, device: DeviceId) -> Option<HeldSession> {
        self.store().session(device)
    }
    fn set_fresh(&mut self, fresh: [u8; 8], now_ns: u64) {
        self.store().set_fresh(fresh, now_ns);
    }
    fn set_stopping(&mut self, stopping: bool) {
        self.store().set_stopping(stopping);
    }
    fn counters(&self) -> Result<Counters, DataPlaneError> {
        StoreBacked::counters(self)
    }
    fn drain_events(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), DataPlaneError> {
        StoreBacked::drain_events(self, sink)
    }
    fn drain_misses(&mut self, sink: &mut dyn FnMut(Miss)) -> Result<(), DataPlaneError> {
        StoreBacked::drain_misses(self, sink)
    }
    fn send(&mut self, miss: &Miss, reply: &[u8; MESSAGE_BYTES]) {
        StoreBacked::send(self, miss, reply);
    }
    fn replay(&mut self, miss: Miss) -> Result<(), DataPlaneError> {
        StoreBacked::replay(self, miss)
    }
    fn listen(&mut self) {
        self.silence();
        self.store().listen();
    }
    fn bell(&self) -> Option<BorrowedFd<'_>> {
        StoreBacked::bell(self)
    }
    fn housekeep(&mut self) {
        self.store_mut().reclaim();
        let removed = self.store_mut().sweep_bindings();
        if removed > 0 {
            tracing::debug!(removed, "swept bindings of dead sessions");
        }
    }
    fn failure(&mut self) -> Option<String> {
        StoreBacked::failure(self)
    }
}
