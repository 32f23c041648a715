//! [`DataPlane`] for the switch.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use linewarden_p4runtime::entity::Entity;
use linewarden_p4runtime::translate::Read;
use linewarden_protocol::attest::Round;
use linewarden_protocol::gateway::{DroppedTypes, FRESH_MAX_AGE_MS, KNOWN_TYPES};
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, SessionId};
use linewarden_protocol::sources::DeviceSources;
use linewarden_protocol::wire::{AttestRequest, MESSAGE_BYTES};

use super::clock::ClockReading;
use super::options::NAME;
use super::{P4Runtime, SwitchError};
use crate::config::{ConfigError, Gate, LiveSettings};
use crate::counters::Counters;
use crate::event::Event;
use crate::miss::Miss;
use crate::store::{ClosedSession, KeyedSession, LineStatus, Row, SessionView, StoreError};
use crate::{
    Admission, Attestation, DataPlane, DataPlaneError, Devices, Evidence, MeasurementSource, ProverSet,
    Telemetry, timestamps,
};

/// Interval between two reconciliations. Each reconciliation reads a register of every device, and the gateway may
/// call `housekeep` fifty times a second.
const RECONCILE_INTERVAL_NS: u64 = 1_000_000_000;

fn unsupported(feature: &'static str) -> DataPlaneError {
    DataPlaneError::Config(ConfigError::Unsupported {
        backend: NAME,
        feature,
    })
}

impl P4Runtime {
    /// Writes both fresh values and their expiry.
    fn write_fresh(&mut self, fresh: u64, now_ns: u64) -> Result<(), SwitchError> {
        self.check_usable()?;
        // Zero means no fresh value, at any time, so the clock need not be read.
        let until_us = match fresh {
            0 => 0,
            _ => {
                self.clock = ClockReading::take(&self.connection, Some(&self.clock))?;
                let now = timestamps::now();
                let age_us = now.monotonic_ns.saturating_sub(now_ns) / 1000;
                let until_us = self.clock.switch_us(now.boot_ns / 1000) + FRESH_MAX_AGE_MS * 1000;
                until_us.saturating_sub(age_us)
            }
        };
        let program = &self.connection.program;
        let updates = [
            program.set_cell("fresh", 1, self.fresh.into())?,
            program.set_cell("fresh", 0, fresh.into())?,
            program.set_cell("fresh_until_us", 0, until_us.into())?,
        ];
        self.connection.write(&updates)?;
        self.fresh = fresh;
        Ok(())
    }

    /// Writes the current settings. `before`: the settings that the switch has now.
    fn write_settings(&self, before: &LiveSettings) -> Result<(), SwitchError> {
        self.check_usable()?;
        self.write_sources(Some(&before.sources))?;
        let mut updates = self.limits()?;
        updates.push(self.gateway()?);
        self.connection.write(&updates)
    }

    fn write_stopping(&self) -> Result<(), SwitchError> {
        self.check_usable()?;
        let update = self
            .connection
            .program
            .set_cell("stopping", 0, self.stopping.into())?;
        self.connection.write(&[update])
    }

    /// Index and packet count of each cell of a counter.
    fn read_counter(&self, name: &'static str) -> Result<impl Iterator<Item = (usize, u64)>, SwitchError> {
        self.check_usable()?;
        let counter = self.connection.program.info().counters().by_name_or_alias(name);
        let id = counter.ok_or(SwitchError::ProgramMismatch(name))?.id;
        let entities = self.connection.read(&[Read::Counters {
            id: Some(id),
            index: None,
        }])?;
        Ok(entities.into_iter().filter_map(|entity| match entity {
            Entity::Counter { index, data, .. } => Some((usize::try_from(index).ok()?, data.packets)),
            _ => None,
        }))
    }

    fn read_counters(&self) -> Result<Counters, SwitchError> {
        let mut counters = Counters {
            events_lost: self.connection.messages_lost(),
            ..Counters::default()
        };
        for (index, packets) in self.read_counter("verdicts")? {
            if let Some(count) = counters.by_verdict.get_mut(index) {
                *count = packets;
            }
        }
        Ok(counters)
    }

    /// Counts by known Ethernet type; the first cell counts all other types.
    fn read_dropped_types(&self) -> Result<DroppedTypes, SwitchError> {
        let mut packets = [0; KNOWN_TYPES.len() + 1];
        for (index, count) in self.read_counter("dropped_types")? {
            if let Some(cell) = packets.get_mut(index) {
                *cell = count;
            }
        }
        let [other, known @ ..] = packets;
        let types = KNOWN_TYPES
            .iter()
            .zip(known)
            .map(|((ether_type, _), count)| (*ether_type, count));
        Ok(DroppedTypes::from_counts(types.collect(), other))
    }
}

impl Devices for P4Runtime {
    fn install(
        &mut self,
        device: DeviceId,
        mode: Mode,
        next: RowIndex,
        rows: &[Row],
        mark: Option<RowIndex>,
    ) -> Result<(), StoreError> {
        self.install_rows(device, mode, next, rows, mark)
    }

    fn grant(&mut self, device: DeviceId, mark: RowIndex) -> Result<(), StoreError> {
        self.move_mark(device, mark)
    }

    fn refill(&mut self, device: DeviceId, first: RowIndex, rows: &[Row]) -> Result<RowIndex, StoreError> {
        self.refill_rows(device, first, rows)
    }

    fn revoke(&mut self, device: DeviceId) -> Result<(), StoreError> {
        self.revoke_device(device)
    }

    fn wipe(&mut self, device: DeviceId) -> Result<(), StoreError> {
        self.remove(device)
    }

    fn close_session(&mut self, device: DeviceId, session: SessionId) -> Result<bool, StoreError> {
        self.close_if_current(device, session)
    }

    fn set_epoch(&mut self, _device: DeviceId, _epoch: u32) {}

    fn status(&self, device: DeviceId) -> Option<LineStatus> {
        self.statuses(&[device]).pop().flatten()
    }

    fn statuses(&self, devices: &[DeviceId]) -> Vec<Option<LineStatus>> {
        self.record_failure(self.line_statuses(devices))
            .unwrap_or_else(|_| vec![None; devices.len()])
    }

    fn session(&self, device: DeviceId) -> Option<SessionView> {
        self.record_failure(self.session_view(device)).ok().flatten()
    }

    fn keyed_sessions(&self, devices: &[DeviceId]) -> Vec<Option<KeyedSession>> {
        self.record_failure(self.sessions_with_keys(devices))
            .unwrap_or_else(|_| vec![None; devices.len()])
    }

    fn record_ticket_serials(&mut self, newest: &[(DeviceId, SessionId, u64)]) {
        for (device, session, serial) in newest {
            if let Some(entry) = self.table.devices.get_mut(device) {
                entry.ticket = Some((*session, *serial));
            }
        }
    }
}

impl Admission for P4Runtime {
    fn reconfigure(&mut self, live: &LiveSettings, _boot_s: u32) -> Result<(), DataPlaneError> {
        if !live.forward_to.is_empty() {
            return Err(unsupported("forward_to; the switch bridges by itself"));
        }
        let previous = std::mem::replace(&mut self.live, live.clone());
        // On an error it is unknown which settings the switch has accepted.
        if let Err(error) = self.record_failure(self.write_settings(&previous)) {
            self.live = previous;
            return Err(error.into());
        }
        Ok(())
    }

    fn set_sources(&mut self, sources: &DeviceSources) -> Vec<ClosedSession> {
        let previous = std::mem::replace(&mut self.live.sources, sources.clone());
        let result = self
            .check_usable()
            .and_then(|()| self.write_sources(Some(&previous)));
        let result = result.and_then(|()| self.close_sessions_at_own());
        self.record_failure(result).unwrap_or_else(|error| {
            tracing::error!(%error, "P4 data plane: writing the device prefixes failed");
            Vec::new()
        })
    }

    fn set_fresh(&mut self, fresh: [u8; 8], now_ns: u64) {
        let result = self.write_fresh(u64::from_be_bytes(fresh), now_ns);
        if let Err(error) = self.record_failure(result) {
            tracing::error!(%error, "P4 data plane: writing the fresh value failed");
        }
    }

    fn set_stopping(&mut self, stopping: bool) {
        self.stopping = stopping;
        if let Err(error) = self.record_failure(self.write_stopping()) {
            tracing::error!(%error, "P4 data plane: writing the stop flag failed");
        }
    }

    fn enroll(&mut self, device: DeviceId) {
        self.add_enrolled(device);
    }

    fn set_enrollment_filter(&mut self, filtering: bool) {
        let result = self.set_filter(filtering);
        if let Err(error) = self.record_failure(result) {
            tracing::error!(%error, "P4 data plane: writing the enrolled devices failed");
        }
    }

    fn drain_misses(&mut self, sink: &mut dyn FnMut(Miss)) -> Result<(), DataPlaneError> {
        let result = self.check_usable().and_then(|()| self.take_misses(sink));
        Ok(self.record_failure(result)?)
    }

    fn send_reply(&mut self, miss: &Miss, reply: &[u8; MESSAGE_BYTES]) {
        let result = self.send_reply_packet(miss, reply);
        if let Err(error) = self.record_failure(result) {
            tracing::error!(%error, "P4 data plane: sending a slow-path reply failed");
        }
    }

    fn expect_response(&mut self, miss: &Miss) {
        let result = self.expect_response(miss.message());
        if let Err(error) = self.record_failure(result) {
            tracing::error!(%error, "P4 data plane: writing an expected RESPONSE failed");
        }
    }

    fn replay(&mut self, miss: Miss) -> Result<(), DataPlaneError> {
        let result = self.replay_packet(miss);
        Ok(self.record_failure(result)?)
    }
}

impl Attestation for P4Runtime {
    fn provers(&mut self) -> Option<&mut dyn ProverSet> {
        (self.config.provers != 0).then_some(self as &mut dyn ProverSet)
    }

    fn session_requests(
        &self,
        devices: &[DeviceId],
        round: &Round,
        now_s: u32,
    ) -> Vec<Option<(IpAddr, AttestRequest)>> {
        self.record_failure(self.requests_in_sessions(devices, round, now_s))
            .unwrap_or_else(|_| vec![None; devices.len()])
    }

    fn send_attest_requests(
        &mut self,
        requests: &[(SocketAddr, AttestRequest)],
    ) -> Result<usize, DataPlaneError> {
        self.send_requests(requests)
    }
}

impl Evidence for P4Runtime {
    fn measure(&self) -> Result<MeasurementSource, DataPlaneError> {
        Ok(MeasurementSource::SelfSigned)
    }
}

impl Telemetry for P4Runtime {
    fn drain_events(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), DataPlaneError> {
        let result = self.check_usable().and_then(|()| self.take_events(sink));
        Ok(self.record_failure(result)?)
    }

    fn counters(&self) -> Result<Counters, DataPlaneError> {
        Ok(self.read_counters()?)
    }

    fn dropped_types(&self) -> Result<Option<DroppedTypes>, DataPlaneError> {
        match self.config.gate {
            Gate::Off => Ok(None),
            Gate::Bound | Gate::Sealed => Ok(Some(self.read_dropped_types()?)),
        }
    }
}

impl DataPlane for P4Runtime {
    fn name(&self) -> &'static str {
        NAME
    }

    fn set_owner(&mut self, _owner: u64) {}

    fn arm_wake(&mut self) {
        self.connection.arm_wake();
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.connection.wake_fd())
    }

    fn housekeep(&mut self) {
        self.table.cells.reclaim();
        self.provers.reclaim();
        let now_ns = timestamps::now().monotonic_ns;
        let is_recent = |reconciled_ns: u64| now_ns.saturating_sub(reconciled_ns) < RECONCILE_INTERVAL_NS;
        if self.reconciled_ns.is_some_and(is_recent) {
            return;
        }
        self.reconciled_ns = Some(now_ns);
        let result = self.check_usable().and_then(|()| self.reconcile());
        if let Err(error) = self.record_failure(result) {
            tracing::debug!(%error, "P4 data plane: reconciling the devices failed");
        }
    }

    fn failure(&mut self) -> Option<String> {
        self.lock_failure()
            .clone()
            .or_else(|| self.connection.end_reason())
    }
}
