//! The operations by which a gateway drives a data plane.
//!
//! | trait | operations |
//! |---|---|
//! | [`Devices`] | rows, credentials and sessions of devices |
//! | [`Admission`] | which messages are answered, and the messages of unknown devices |
//! | [`Attestation`] | provers, and the rounds in which they are challenged |
//! | [`Evidence`] | measurement of the data plane, and evidence in packets |
//! | [`Telemetry`] | events and counters |
//! | [`DataPlane`] | all of these traits; inherited state, wake-up, housekeeping and failure |

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use linewarden_protocol::attest::Round;
use linewarden_protocol::gateway::DroppedTypes;
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, SessionId};
use linewarden_protocol::sources::DeviceSources;
use linewarden_protocol::wire::{AttestRequest, MESSAGE_BYTES};

use crate::config::LiveSettings;
use crate::counters::Counters;
use crate::error::DataPlaneError;
use crate::event::Event;
use crate::handling_time::HandlingTimes;
use crate::measurement::MeasurementSource;
use crate::miss::Miss;
use crate::provers::ProverSet;
use crate::stamp::{Stamp, StampCounts};
use crate::store::adopt::InheritedState;
use crate::store::provers::Provers;
use crate::store::{ClosedSession, KeyedSession, LineStatus, Row, SessionView, Store, StoreError};

/// A data plane.
pub trait DataPlane: Devices + Admission + Attestation + Evidence + Telemetry + Send {
    /// Name in log messages and metrics.
    fn name(&self) -> &'static str;
    /// The state that an earlier process left in memory that outlives the process. The state is returned only once.
    /// `None`: the memory is new or was empty.
    fn take_inherited_state(&mut self) -> Option<InheritedState> {
        None
    }
    /// Records which process owns the memory, by the number of its registration.
    fn set_owner(&mut self, owner: u64);
    /// Whether memory and packet path stay in use when this process ends.
    fn outlives_process(&self) -> bool {
        false
    }
    /// Arms the wake descriptor: the descriptor becomes readable at the next event that the gateway must handle, and
    /// must then be armed again. Call this method before draining.
    fn arm_wake(&mut self);
    /// Descriptor that becomes readable when the gateway must wake. `None`: the data plane never wakes the gateway.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>>;
    /// Frees the resources of dead sessions, and the resources of wiped devices that no packet can still use. Call this
    /// method every few seconds; two calls must be at least a few milliseconds apart.
    fn housekeep(&mut self);
    /// Reads changed MAC addresses of the data plane's interfaces. Call this method every few seconds, in the network
    /// namespace of these interfaces.
    fn refresh_links(&mut self) {}
    /// The reason why packets are no longer handled although the data plane was not stopped. `None`: packets are handled.
    fn failure(&mut self) -> Option<String>;
}

/// The devices in a data plane: their rows, credentials and sessions.
pub trait Devices {
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
    /// See [`Store::close_session`].
    ///
    /// # Errors
    /// See [`StoreError`].
    fn close_session(&mut self, device: DeviceId, session: SessionId) -> Result<bool, StoreError>;
    /// Records the epoch of an installed device's credentials. [`DataPlane::take_inherited_state`] of a later process
    /// returns this epoch.
    fn set_epoch(&mut self, device: DeviceId, epoch: u32);
    /// The content of the device's line. `None`: the device is not installed.
    fn status(&self, device: DeviceId) -> Option<LineStatus>;
    /// The statuses of several devices, in the order of `devices`. A data plane outside this process can read them all
    /// with one request.
    fn statuses(&self, devices: &[DeviceId]) -> Vec<Option<LineStatus>> {
        devices.iter().map(|device| self.status(*device)).collect()
    }
    /// The binding of the device's session. `None`: the device has no session or is revoked, or the session is changing.
    fn session(&self, device: DeviceId) -> Option<SessionView>;
    /// The sessions of several devices with their keys, in the order of `devices`. `None` as for [`Devices::session`].
    fn keyed_sessions(&self, devices: &[DeviceId]) -> Vec<Option<KeyedSession>>;
    /// Records the serial numbers of ticket requests with their sessions ([`Store::record_ticket_serial`]).
    fn record_ticket_serials(&mut self, newest: &[(DeviceId, SessionId, u64)]);
    /// Number of live sessions at `now_s` of the boot-time clock, see [`Store::count_sessions`]. `None`: unknown
    /// (yet).
    fn session_count(&mut self, _now_s: u32) -> Option<u64> {
        None
    }
}

/// Which messages are answered, and the messages that the gateway handles itself.
pub trait Admission {
    /// Activates new settings: all of them or, on an error, none. `boot_s` is the boot-time clock.
    ///
    /// # Errors
    /// The kernel refused an operation; no setting has changed.
    fn reconfigure(&mut self, live: &LiveSettings, boot_s: u32) -> Result<(), DataPlaneError>;
    /// Replaces the sources from which messages are accepted, and closes the sessions at addresses that the machine
    /// has now. Returns the closed sessions. A RESPONSE that was checked against the former sources may still open a
    /// session: call this function twice, a second apart. For `xdp`, the calling thread must be in the network
    /// namespace of the interfaces.
    fn set_sources(&mut self, sources: &DeviceSources) -> Vec<ClosedSession>;
    /// Sets a new freshness value, drawn at `now_ns` of CLOCK_MONOTONIC. Zero means no value: no message is answered
    /// until the next value is set.
    fn set_fresh(&mut self, fresh: [u8; 8], now_ns: u64);
    /// Sets whether REQUESTs are answered with a NAK.
    fn set_stopping(&mut self, stopping: bool);
    /// Marks the device as enrolled: its messages may take the slow path.
    fn enroll(&mut self, device: DeviceId);
    /// Sets whether messages of devices that were not passed to [`Admission::enroll`] are dropped. Initially `false`.
    fn set_enrollment_filter(&mut self, filtering: bool);
    /// Removes the queued messages of unknown devices and passes them to `sink`.
    ///
    /// # Errors
    /// Errors of the kernel.
    fn drain_misses(&mut self, sink: &mut dyn FnMut(Miss)) -> Result<(), DataPlaneError>;
    /// Sends the reply to a REQUEST of an unknown device. If the reply is a CHALLENGE, the device's RESPONSE will be
    /// accepted once, regardless of the load. A reply that cannot be sent is skipped, because the device repeats its
    /// message.
    fn send_reply(&mut self, miss: &Miss, reply: &[u8; MESSAGE_BYTES]);
    /// Makes the data plane accept one more copy of a RESPONSE that the gateway had no capacity to process. The device
    /// repeats its RESPONSE.
    fn expect_response(&mut self, miss: &Miss);
    /// Passes a message to the packet path a second time, after its device was installed, and sends the reply. For
    /// `xdp`, the calling thread must be in the network namespace of the interface on which the message arrived.
    ///
    /// # Errors
    /// The kernel refused an operation, or the interface does not exist.
    fn replay(&mut self, miss: Miss) -> Result<(), DataPlaneError>;
}

/// Provers, and the rounds in which they are challenged.
pub trait Attestation {
    /// Provers, their keys and rounds. `None`: the data plane does not verify PROOFs. The verdicts are current at the
    /// time of the call: call this function again before each query.
    fn provers(&mut self) -> Option<&mut dyn ProverSet> {
        None
    }
    /// For each device, in the order of `devices`: the ATTEST_REQUEST of `round` under the device's session key, and the
    /// address of the session. `None`: no session is live at `now_s` of the boot-time clock, or the
    /// session is changing.
    fn session_requests(
        &self,
        devices: &[DeviceId],
        round: &Round,
        now_s: u32,
    ) -> Vec<Option<(IpAddr, AttestRequest)>>;
    /// As [`Attestation::session_requests`], for one device.
    fn session_request(
        &self,
        device: DeviceId,
        round: &Round,
        now_s: u32,
    ) -> Option<(IpAddr, AttestRequest)> {
        self.session_requests(&[device], round, now_s).pop().flatten()
    }
    /// Sends ATTEST_REQUESTs in this order, without waiting, from the gateway's own address and the LAP port. If the
    /// gateway has several addresses of a family, each request uses the source address of the kernel's route to the
    /// device. Through a P4 switch, each request uses the address to which the device sent its RESPONSE. Returns how
    /// many were sent, starting with the first. The remaining requests may be sent again.
    ///
    /// # Errors
    /// The first request cannot be sent for a reason other than full buffers: no route exists, no address of the same
    /// family exists, or the location of the device is unknown ([`DataPlaneError::DeviceLocationUnknown`]). Continue
    /// with the next request.
    fn send_attest_requests(
        &mut self,
        requests: &[(SocketAddr, AttestRequest)],
    ) -> Result<usize, DataPlaneError>;
}

/// Evidence about the state of a data plane. By default, a data plane cannot be measured, and stamps no packet.
pub trait Evidence {
    /// Measures the programs and the state of the data plane now. For `xdp`, the calling thread must be in the network namespace of the
    /// interfaces.
    ///
    /// # Errors
    /// The kernel refused an operation, or a running program differs from the program that was loaded.
    fn measure(&self) -> Result<MeasurementSource, DataPlaneError> {
        Ok(MeasurementSource::Unavailable)
    }
    /// Adds evidence of a state to packets that pass the gate, until the stamp expires. `None`: packets carry no
    /// evidence. Has an effect only if the [configuration](crate::Config::inband_evidence) enables in-band evidence.
    fn set_stamp(&self, _stamp: Option<&Stamp>) {}
    /// Counts of packets that passed the gate. `None`: in-band evidence is not configured.
    ///
    /// # Errors
    /// Errors of the kernel.
    fn stamp_counts(&self) -> Result<Option<StampCounts>, DataPlaneError> {
        Ok(None)
    }
}

/// Events and counters.
pub trait Telemetry {
    /// Removes the queued events and passes them to `sink`.
    ///
    /// # Errors
    /// Errors of the kernel.
    fn drain_events(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), DataPlaneError>;
    /// Number of packets by verdict so far, over all CPUs and threads.
    ///
    /// # Errors
    /// Errors of the kernel.
    fn counters(&self) -> Result<Counters, DataPlaneError>;
    /// Non-IP frames that the gate dropped so far, by Ethernet type. `None`: the data plane does not count them.
    ///
    /// # Errors
    /// Errors of the kernel.
    fn dropped_types(&self) -> Result<Option<DroppedTypes>, DataPlaneError> {
        Ok(None)
    }
    /// Handling times of accepted RESPONSEs so far, over all CPUs and threads. `None`: not measured.
    ///
    /// # Errors
    /// Errors of the kernel.
    fn handling_times(&self) -> Result<Option<HandlingTimes>, DataPlaneError> {
        Ok(None)
    }
}

/// A data plane whose packet path works on a [`Store`].
pub(crate) trait StoreBacked {
    fn store(&self) -> &Store;
    fn store_mut(&mut self) -> &mut Store;
}

impl<T: StoreBacked> Devices for T {
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
    fn close_session(&mut self, device: DeviceId, session: SessionId) -> Result<bool, StoreError> {
        self.store().close_session(device, session)
    }
    fn set_epoch(&mut self, device: DeviceId, epoch: u32) {
        self.store().set_epoch(device, epoch);
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
    fn record_ticket_serials(&mut self, newest: &[(DeviceId, SessionId, u64)]) {
        for (device, session, serial) in newest {
            self.store().record_ticket_serial(*device, *session, *serial);
        }
    }
    fn session_count(&mut self, now_s: u32) -> Option<u64> {
        self.store_mut().count_sessions(now_s)
    }
}

/// Housekeeping of a data plane that works on a store.
pub(crate) fn housekeep(store: &mut Store, provers: Option<&mut Provers>) {
    store.reclaim();
    if let Some(provers) = provers {
        provers.reclaim();
    }
    let removed = store.sweep_bindings();
    if removed > 0 {
        tracing::debug!(count = removed, "data plane: removed bindings of dead sessions");
    }
}

/// The ATTEST_REQUESTs of a round in the sessions of devices in a store.
pub(crate) fn session_requests(
    store: &Store,
    devices: &[DeviceId],
    round: &Round,
    now_s: u32,
) -> Vec<Option<(IpAddr, AttestRequest)>> {
    let request = |device: &DeviceId| store.session_request(*device, round, now_s);
    devices.iter().map(request).collect()
}
