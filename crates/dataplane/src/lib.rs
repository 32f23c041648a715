//! The [`DataPlane`] trait, the line store that its backends share, and the backends: `host` (UDP), `xdp` (eBPF) and
//! `p4runtime` (a P4 switch).
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
//! A switch has memory of its own; `p4runtime` writes there what the store holds for the others.
//!
//! A packet path never waits for anything: it reads and claims what lies in that memory. What it answers is compared
//! byte for byte with `linewarden_protocol::gateway`, the oracle.

mod ask;
mod bell;
pub mod capability;
pub mod classic;
pub mod config;
pub mod counters;
pub mod ethtool;
pub mod event;
mod frames;
pub mod handling;
pub mod host;
pub mod layout;
mod links;
mod measurement;
pub mod miss;
pub mod p4dra;
pub mod p4runtime;
mod provers;
mod rate;
mod stamp;
pub mod store;
pub mod xdp;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use linewarden_protocol::attest::Round;
use linewarden_protocol::classic::p4dra::Round as P4draRound;
use linewarden_protocol::gateway::DroppedTypes;
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, SessionId};
use linewarden_protocol::sources::DeviceSources;
use linewarden_protocol::wire::{AttestRequest, MESSAGE_BYTES};

pub use self::config::{Classic, ClassicProfile, Config, ConfigError, Gate, Live, P4dra, P4draProver};
pub use self::counters::Counters;
pub use self::event::{Event, EventKind, Opening};
pub use self::handling::Handling;
pub use self::links::Links;
pub use self::measurement::{Measurement, Witness};
pub use self::miss::Miss;
pub use self::p4dra::P4draControl;
pub use self::provers::ProverSet;
pub use self::stamp::{STAMP_LIFE_NS, Stamp, StampCounts};
pub use self::store::adopt::{Left, LeftDevice};
pub use self::store::provers::{ProverError, Provers};
pub use self::store::{
    ClosedSession, Geometry, KeyedSession, LineStatus, Row, SessionView, Store, StoreError,
};

/// What a backend that cannot do everything can; a configuration that asks for more is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether it sees, and can drop, traffic that is not addressed to it.
    pub gate: bool,
    /// Whether it opens and seals what goes through that gate.
    pub sealed: bool,
    /// Whether it judges PROOFs.
    pub attest: bool,
    /// Whether it judges the proofs of `p4dra-classic`.
    pub p4dra: bool,
    /// Whether it serves the classic profiles.
    pub classic: bool,
    /// Whether packets that pass its gate can carry evidence of itself.
    pub in_packets: bool,
}

impl Capabilities {
    /// The first thing that a configuration asks for and that is not among them.
    #[must_use]
    pub fn missing(&self, config: &Config) -> Option<&'static str> {
        let asked = [
            (config.gate != Gate::Off, self.gate, "gate"),
            (config.gate == Gate::Sealed, self.sealed, "sealed gate"),
            (config.provers != 0, self.attest, "PROOFs"),
            (config.p4dra.is_some(), self.p4dra, "p4dra-classic"),
            (config.classic.is_some(), self.classic, "classic profile"),
            (
                config.in_packets.is_some(),
                self.in_packets,
                "evidence in packets",
            ),
        ];
        let missing = asked
            .into_iter()
            .find(|(is_asked, is_there, _)| *is_asked && !is_there);
        missing.map(|(.., what)| what)
    }
}

/// Why a backend cannot do something.
#[derive(Debug, thiserror::Error)]
pub enum DataPlaneError {
    /// The store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The provers' memory refused.
    #[error(transparent)]
    Prover(#[from] ProverError),
    /// The configuration contradicts itself.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The P4 switch refused something, or is lost.
    #[error(transparent)]
    Switch(#[from] p4runtime::SwitchError),
    /// Only what a device sends tells where it is, and it has sent nothing.
    #[error(
        "device {device} has sent nothing from {address} through this switch: behind which port it is nobody knows"
    )]
    Unplaced {
        /// The device.
        device: DeviceId,
        /// Where it was to be asked.
        address: IpAddr,
    },
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
    /// See [`Store::close_session`].
    ///
    /// # Errors
    /// See [`StoreError`].
    fn close_session(&mut self, device: DeviceId, session: SessionId) -> Result<bool, StoreError>;
    /// See [`Store::wipe`].
    ///
    /// # Errors
    /// See [`StoreError`].
    fn wipe(&mut self, device: DeviceId) -> Result<(), StoreError>;
    /// Keeps the epoch of an installed device's credentials with its rows, for [`DataPlane::take_left`].
    fn note_epoch(&mut self, device: DeviceId, epoch: u32);
    /// What an earlier process left in memory that outlives processes, and that packets flow through; once. `None`: the
    /// memory is this process's own, or was empty.
    fn take_left(&mut self) -> Option<Left>;
    /// Says which process the memory belongs to, by the number of its registration.
    fn set_owner(&mut self, owner: u64);
    /// Whether memory and packet path go on when this process ends.
    fn outlives_process(&self) -> bool;
    /// What the device's line holds.
    fn status(&self, device: DeviceId) -> Option<LineStatus>;
    /// The same of several, in their order: one step where each by itself would be a call to another process.
    fn statuses(&self, devices: &[DeviceId]) -> Vec<Option<LineStatus>> {
        devices.iter().map(|device| self.status(*device)).collect()
    }
    /// What the device's session is bound to; `None` without one, and while it changes.
    fn session(&self, device: DeviceId) -> Option<SessionView>;
    /// The sessions of several devices with their keys, in their order; `None` as of [`DataPlane::session`].
    fn keyed_sessions(&self, devices: &[DeviceId]) -> Vec<Option<KeyedSession>>;
    /// Keeps the serial numbers of ticket requests with their sessions ([`Store::note_ticket`]).
    fn note_tickets(&mut self, newest: &[(DeviceId, SessionId, u64)]);
    /// Who can say what it runs now. In `xdp` the calling thread has to be in the network namespace of the interfaces.
    ///
    /// # Errors
    /// Those of the kernel; a program that is not the one that was loaded.
    fn measure(&self) -> Result<Witness, DataPlaneError> {
        Ok(Witness::Nobody)
    }
    /// Has packets that pass the gate carry evidence of a state, until its time is over; `None`: they carry nothing. Only where the
    /// [configuration](Config::in_packets) says that they carry any.
    fn stamp(&self, _stamp: Option<&Stamp>) {}
    /// What became of packets that pass the gate; `None`: they carry nothing by the configuration.
    ///
    /// # Errors
    /// Those of the kernel.
    fn stamped(&self) -> Result<Option<StampCounts>, DataPlaneError> {
        Ok(None)
    }
    /// Puts other settings into force: all, or after an error none; `boot_s` is the boot-time clock.
    ///
    /// # Errors
    /// Those of the kernel; then nothing has changed.
    fn reconfigure(&mut self, live: &Live, boot_s: u32) -> Result<(), DataPlaneError>;
    /// Replaces the sources that messages are accepted from, and closes the sessions at addresses that the machine has now. Returns the
    /// closed sessions. A RESPONSE that was checked against the former sources may still open a session: call this function twice, a
    /// second apart. In `xdp` the calling thread has to be in the network namespace of the interfaces.
    fn set_sources(&mut self, sources: &DeviceSources) -> Vec<ClosedSession>;
    /// A new freshness value, drawn at `now_ns` of CLOCK_MONOTONIC. Zero is none: nothing is answered until the next one.
    fn set_fresh(&mut self, fresh: [u8; 8], now_ns: u64);
    /// From now on REQUESTs are answered with a NAK.
    fn set_stopping(&mut self, stopping: bool);
    /// Verdicts so far, over all CPUs and threads.
    ///
    /// # Errors
    /// Those of the kernel.
    fn counters(&self) -> Result<Counters, DataPlaneError>;
    /// Frames other than IP that the gate has dropped so far, by Ethernet type; `None`: it does not count them.
    ///
    /// # Errors
    /// Those of the kernel.
    fn dropped_types(&self) -> Result<Option<DroppedTypes>, DataPlaneError> {
        Ok(None)
    }
    /// How long accepted RESPONSEs took so far, over all CPUs and threads; `None`: nobody measures it.
    ///
    /// # Errors
    /// Those of the kernel.
    fn handling(&self) -> Result<Option<Handling>, DataPlaneError> {
        Ok(None)
    }
    /// How many sessions live at `now_s` of the boot-time clock, see [`Store::count_sessions`]; `None`: nobody knows (yet).
    fn sessions(&mut self, _now_s: u32) -> Option<u64> {
        None
    }
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
    /// The device is enrolled: its messages may take the slow path.
    fn enrol(&mut self, device: DeviceId);
    /// Whether messages of devices that it was not told of are dropped; so it begins with `false`.
    fn set_filtering(&mut self, filtering: bool);
    /// Answers a REQUEST of an unknown device, and expects the RESPONSE that follows a CHALLENGE; an answer that cannot be sent is
    /// left out, for the device repeats.
    fn send(&mut self, miss: &Miss, reply: &[u8; MESSAGE_BYTES]);
    /// The RESPONSE, which nobody had time for, may come again.
    fn expect(&mut self, miss: &Miss);
    /// Hands a message to the packet path again, now that its device is here, and sends what that replies. In `xdp` the
    /// calling thread has to be in the network namespace of the interface by which the message came.
    ///
    /// # Errors
    /// Those of the kernel; an interface that is not there.
    fn replay(&mut self, miss: Miss) -> Result<(), DataPlaneError>;
    /// Provers, their keys and rounds; `None`: it attests nobody. Verdicts are those of now: ask anew before each look.
    fn provers(&mut self) -> Option<&mut dyn ProverSet> {
        None
    }
    /// What devices with a session here are asked in that round, each under its session key, and the address of its session, in their
    /// order. `None`: no session that lives at `now_s` of the boot-time clock, or one that changes just now.
    fn session_requests(
        &self,
        devices: &[DeviceId],
        round: &Round,
        now_s: u32,
    ) -> Vec<Option<(IpAddr, AttestRequest)>>;
    /// The same of one.
    fn session_request(
        &self,
        device: DeviceId,
        round: &Round,
        now_s: u32,
    ) -> Option<(IpAddr, AttestRequest)> {
        self.session_requests(&[device], round, now_s).pop().flatten()
    }
    /// Asks devices, in this order and without waiting, from the gateway's own address and LAP's port. Of several addresses
    /// of a family each request takes that which the kernel's route to its device begins at, and through a P4 switch the one to which
    /// the device sent its RESPONSE. Returns how many were sent, from the first on. The rest may be tried again.
    ///
    /// # Errors
    /// The first of them cannot be sent, and not for want of room: there is no route, or no address of its family, or
    /// ([`DataPlaneError::Unplaced`]) nobody knows where the device is. Go on behind it.
    fn ask(&mut self, requests: &[(SocketAddr, AttestRequest)]) -> Result<usize, DataPlaneError>;
    /// Rounds of `p4dra-classic`; `None`: it is off.
    fn p4dra(&mut self) -> Option<&mut P4draControl> {
        None
    }
    /// Asks the provers of `p4dra-classic`: a REQUEST of that round to everybody, out of each interface on their side. In the
    /// network namespace of these interfaces.
    ///
    /// # Errors
    /// The first interface that it could not be sent out of; it was tried on all.
    fn ask_p4dra(&mut self, _round: &P4draRound) -> Result<(), DataPlaneError> {
        Ok(())
    }
    /// From now on the bell rings, once, when something happens that must be acted on: call it before draining.
    fn listen(&mut self);
    /// Readable when it has rung; `None`: it never does.
    fn bell(&self) -> Option<BorrowedFd<'_>>;
    /// Frees what dead sessions hold, and devices that were wiped before the last call; call it every few seconds, not
    /// more often than every few milliseconds.
    fn housekeep(&mut self);
    /// Learns of MAC addresses of its interfaces that have changed; call it every few seconds. In the network namespace of these
    /// interfaces.
    fn follow_links(&mut self) {}
    /// Why packets are no longer handled although nobody stopped it; `None` while all is well.
    fn failure(&mut self) -> Option<String>;
}

/// A backend whose packet path works on a [`Store`]: all that distinguishes it from another one.
pub(crate) trait StoreBacked: Send {
    const NAME: &'static str;
    fn store(&self) -> &Store;
    fn store_mut(&mut self) -> &mut Store;
    fn provers(&mut self) -> Option<&mut Provers>;
    fn ask(&mut self, requests: &[(SocketAddr, AttestRequest)]) -> Result<usize, DataPlaneError>;
    fn p4dra(&mut self) -> Option<&mut P4draControl>;
    fn ask_p4dra(&mut self, round: &P4draRound) -> Result<(), DataPlaneError>;
    fn counters(&self) -> Result<Counters, DataPlaneError>;
    /// Only where there is a gate.
    fn dropped_types(&self) -> Result<Option<DroppedTypes>, DataPlaneError> {
        Ok(None)
    }
    fn handling(&self) -> Result<Handling, DataPlaneError>;
    fn drain_events(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), DataPlaneError>;
    fn drain_misses(&mut self, sink: &mut dyn FnMut(Miss)) -> Result<(), DataPlaneError>;
    fn send(&mut self, miss: &Miss, reply: &[u8; MESSAGE_BYTES]);
    fn replay(&mut self, miss: Miss) -> Result<(), DataPlaneError>;
    fn reconfigure(&mut self, live: &Live, boot_s: u32) -> Result<(), DataPlaneError> {
        self.store().set_live(live, boot_s);
        Ok(())
    }
    fn set_sources(&mut self, sources: &DeviceSources) -> Vec<ClosedSession> {
        self.store().set_sources(sources)
    }
    /// Only the kernel's word counts.
    fn measure(&self) -> Result<Witness, DataPlaneError> {
        Ok(Witness::Nobody)
    }
    /// Only what sees a gate's packets stamps them.
    fn stamp(&self, _stamp: Option<&Stamp>) {}
    fn stamped(&self) -> Result<Option<StampCounts>, DataPlaneError> {
        Ok(None)
    }
    /// Only memory in the kernel outlives a process.
    fn take_left(&mut self) -> Option<Left> {
        None
    }
    fn outlives_process(&self) -> bool {
        false
    }
    fn silence(&mut self);
    /// Learns of MAC addresses that have changed.
    fn follow_links(&mut self) {}
    fn bell(&self) -> Option<BorrowedFd<'_>>;
    fn failure(&mut self) -> Option<String>;
}

impl<T: StoreBacked> DataPlane for T {
    fn set_sources(&mut self, sources: &DeviceSources) -> Vec<ClosedSession> {
        StoreBacked::set_sources(self, sources)
    }
    fn name(&self) -> &'static str {
        T::NAME
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
    fn close_session(&mut self, device: DeviceId, session: SessionId) -> Result<bool, StoreError> {
        self.store().close_session(device, session)
    }
    fn wipe(&mut self, device: DeviceId) -> Result<(), StoreError> {
        self.store_mut().wipe(device)
    }
    fn note_epoch(&mut self, device: DeviceId, epoch: u32) {
        self.store().note_epoch(device, epoch);
    }
    fn take_left(&mut self) -> Option<Left> {
        StoreBacked::take_left(self)
    }
    fn set_owner(&mut self, owner: u64) {
        self.store().set_owner(owner);
    }
    fn outlives_process(&self) -> bool {
        StoreBacked::outlives_process(self)
    }
    fn status(&self, device: DeviceId) -> Option<LineStatus> {
        self.store().status(device)
    }
    fn session(&self, device: DeviceId) -> Option<SessionView> {
        self.store().session(device)
    }
    fn keyed_sessions(&self, devices: &[DeviceId]) -> Vec<Option<KeyedSession>> {
        let session = |device: &DeviceId| self.store().keyed_session(*device);
        devices.iter().map(session).collect()
    }
    fn note_tickets(&mut self, newest: &[(DeviceId, SessionId, u64)]) {
        for (device, session, serial) in newest {
            self.store().note_ticket(*device, *session, *serial);
        }
    }
    fn measure(&self) -> Result<Witness, DataPlaneError> {
        StoreBacked::measure(self)
    }
    fn stamp(&self, stamp: Option<&Stamp>) {
        StoreBacked::stamp(self, stamp);
    }
    fn stamped(&self) -> Result<Option<StampCounts>, DataPlaneError> {
        StoreBacked::stamped(self)
    }
    fn reconfigure(&mut self, live: &Live, boot_s: u32) -> Result<(), DataPlaneError> {
        StoreBacked::reconfigure(self, live, boot_s)
    }
    fn set_fresh(&mut self, fresh: [u8; 8], now_ns: u64) {
        self.store().set_fresh(fresh, now_ns);
    }
    fn set_stopping(&mut self, stopping: bool) {
        self.store().set_stopping(stopping);
    }
    fn handling(&self) -> Result<Option<Handling>, DataPlaneError> {
        StoreBacked::handling(self).map(Some)
    }
    fn sessions(&mut self, now_s: u32) -> Option<u64> {
        self.store_mut().count_sessions(now_s)
    }
    fn counters(&self) -> Result<Counters, DataPlaneError> {
        StoreBacked::counters(self)
    }
    fn dropped_types(&self) -> Result<Option<DroppedTypes>, DataPlaneError> {
        StoreBacked::dropped_types(self)
    }
    fn drain_events(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), DataPlaneError> {
        StoreBacked::drain_events(self, sink)
    }
    fn drain_misses(&mut self, sink: &mut dyn FnMut(Miss)) -> Result<(), DataPlaneError> {
        StoreBacked::drain_misses(self, sink)
    }
    fn enrol(&mut self, device: DeviceId) {
        self.store().enrol(device);
    }
    fn set_filtering(&mut self, filtering: bool) {
        self.store().set_filtering(filtering);
    }
    fn send(&mut self, miss: &Miss, reply: &[u8; MESSAGE_BYTES]) {
        if miss::is_challenge(reply) {
            self.store().expect(miss.message());
        }
        StoreBacked::send(self, miss, reply);
    }
    fn expect(&mut self, miss: &Miss) {
        self.store().expect(miss.message());
    }
    fn replay(&mut self, miss: Miss) -> Result<(), DataPlaneError> {
        StoreBacked::replay(self, miss)
    }
    fn provers(&mut self) -> Option<&mut dyn ProverSet> {
        StoreBacked::provers(self).map(|provers| provers as &mut dyn ProverSet)
    }
    fn session_requests(
        &self,
        devices: &[DeviceId],
        round: &Round,
        now_s: u32,
    ) -> Vec<Option<(IpAddr, AttestRequest)>> {
        let request = |device: &DeviceId| self.store().session_request(*device, round, now_s);
        devices.iter().map(request).collect()
    }
    fn ask(&mut self, requests: &[(SocketAddr, AttestRequest)]) -> Result<usize, DataPlaneError> {
        StoreBacked::ask(self, requests)
    }
    fn p4dra(&mut self) -> Option<&mut P4draControl> {
        StoreBacked::p4dra(self)
    }
    fn ask_p4dra(&mut self, round: &P4draRound) -> Result<(), DataPlaneError> {
        StoreBacked::ask_p4dra(self, round)
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
        if let Some(provers) = StoreBacked::provers(self) {
            provers.reclaim();
        }
        let removed = self.store_mut().sweep_bindings();
        if removed > 0 {
            tracing::debug!(removed, "swept bindings of dead sessions");
        }
    }
    fn follow_links(&mut self) {
        StoreBacked::follow_links(self);
    }
    fn failure(&mut self) -> Option<String> {
        StoreBacked::failure(self)
    }
}
