//! [`DataPlane`] of the switch.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use linewarden_p4runtime::entity::Entity;
use linewarden_p4runtime::translate::Read;
use linewarden_protocol::attest::Round;
use linewarden_protocol::gateway::{DroppedTypes, FRESH_MAX_AGE_MS, KNOWN_TYPES};
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, SessionId};
use linewarden_protocol::sources::DeviceSources;
use linewarden_protocol::wire::{AttestRequest, MESSAGE_BYTES};

use super::clock::Reading;
use super::options::NAME;
use super::{P4Runtime, SwitchError};
use crate::config::{ConfigError, Gate, Live};
use crate::counters::Counters;
use crate::event::Event;
use crate::miss::Miss;
use crate::store::adopt::Left;
use crate::store::{ClosedSession, KeyedSession, LineStatus, Row, SessionView, StoreError};
use crate::{DataPlane, DataPlaneError, ProverSet, Witness, host};

/// Between two looks through all devices: each reads a register of every one, and who wants room calls fifty times a second.
const LOOK_EVERY_NS: u64 = 1_000_000_000;

fn unsupported(what: &'static str) -> DataPlaneError {
    DataPlaneError::Config(ConfigError::Unsupported { backend: NAME, what })
}

impl P4Runtime {
    /// Both values, and until when they are taken.
    fn write_fresh(&mut self, fresh: u64, now_ns: u64) -> Result<(), SwitchError> {
        self.check()?;
        // Zero is none, whatever the time is: nothing has to be waited for.
        let until_us = match fresh {
            0 => 0,
            _ => {
                self.clock = Reading::take(&self.link, Some(&self.clock))?;
                let now = host::now();
                let age_us = now.monotonic_ns.saturating_sub(now_ns) / 1000;
                let until_us = self.clock.switch_us(now.boot_ns / 1000) + FRESH_MAX_AGE_MS * 1000;
                until_us.saturating_sub(age_us)
            }
        };
        let program = &self.link.program;
        let updates = [
            program.cell("fresh", 1, self.fresh.into())?,
            program.cell("fresh", 0, fresh.into())?,
            program.cell("fresh_until_us", 0, until_us.into())?,
        ];
        self.link.write(&updates)?;
        self.fresh = fresh;
        Ok(())
    }

    /// `before`: those that the switch has.
    fn write_settings(&self, before: &Live) -> Result<(), SwitchError> {
        self.check()?;
        self.write_sources(Some(&before.sources))?;
        let mut updates = self.limits()?;
        updates.push(self.gateway()?);
        self.link.write(&updates)
    }

    fn write_stopping(&self) -> Result<(), SwitchError> {
        self.check()?;
        let update = self.link.program.cell("stopping", 0, self.stopping.into())?;
        self.link.write(&[update])
    }

    /// Index and packets of each cell of a counter.
    fn read_counter(&self, name: &'static str) -> Result<impl Iterator<Item = (usize, u64)>, SwitchError> {
        self.check()?;
        let found = self.link.program.info().counters().named(name);
        let id = found.ok_or(SwitchError::Program(name))?.id;
        let read = self.link.read(&[Read::Counters {
            id: Some(id),
            index: None,
        }])?;
        Ok(read.into_iter().filter_map(|entity| match entity {
            Entity::Counter { index, data, .. } => Some((usize::try_from(index).ok()?, data.packets)),
            _ => None,
        }))
    }

    fn read_counters(&self) -> Result<Counters, SwitchError> {
        let mut counters = Counters {
            events_lost: self.link.messages_lost(),
            ..Counters::default()
        };
        for (index, packets) in self.read_counter("verdicts")? {
            if let Some(slot) = counters.by_verdict.get_mut(index) {
                *slot = packets;
            }
        }
        Ok(counters)
    }

    /// Of the known types; all others have one place, the first.
    fn read_dropped_types(&self) -> Result<DroppedTypes, SwitchError> {
        let mut packets = [0; KNOWN_TYPES.len() + 1];
        for (index, count) in self.read_counter("dropped_types")? {
            if let Some(slot) = packets.get_mut(index) {
                *slot = count;
            }
        }
        let [other, known @ ..] = packets;
        let types = KNOWN_TYPES
            .iter()
            .zip(known)
            .map(|((ether_type, _), count)| (*ether_type, count));
        Ok(DroppedTypes::of(types.collect(), other))
    }
}

impl DataPlane for P4Runtime {
    fn name(&self) -> &'static str {
        NAME
    }
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
        self.shut_out(device)
    }
    fn close_session(&mut self, device: DeviceId, session: SessionId) -> Result<bool, StoreError> {
        self.close(device, session)
    }
    fn wipe(&mut self, device: DeviceId) -> Result<(), StoreError> {
        self.remove(device)
    }
    fn note_epoch(&mut self, _device: DeviceId, _epoch: u32) {}
    fn take_left(&mut self) -> Option<Left> {
        None
    }
    fn set_owner(&mut self, _owner: u64) {}
    /// The switch goes on, without rows once their gateway has left in order; nobody takes over what is there.
    fn outlives_process(&self) -> bool {
        false
    }
    fn status(&self, device: DeviceId) -> Option<LineStatus> {
        self.statuses(&[device]).pop().flatten()
    }
    fn statuses(&self, devices: &[DeviceId]) -> Vec<Option<LineStatus>> {
        self.note(self.line_statuses(devices))
            .unwrap_or_else(|_| vec![None; devices.len()])
    }
    fn session(&self, device: DeviceId) -> Option<SessionView> {
        self.note(self.session_view(device)).ok().flatten()
    }
    fn keyed_sessions(&self, devices: &[DeviceId]) -> Vec<Option<KeyedSession>> {
        self.note(self.sessions_with_keys(devices))
            .unwrap_or_else(|_| vec![None; devices.len()])
    }
    fn note_tickets(&mut self, newest: &[(DeviceId, SessionId, u64)]) {
        for (device, session, serial) in newest {
            if let Some(held) = self.book.devices.get_mut(device) {
                held.ticket = Some((*session, *serial));
            }
        }
    }
    fn measure(&self) -> Result<Witness, DataPlaneError> {
        Ok(Witness::Engine)
    }
    fn reconfigure(&mut self, live: &Live, _boot_s: u32) -> Result<(), DataPlaneError> {
        if !live.forward_to.is_empty() {
            return Err(unsupported("forward_to: it bridges by itself"));
        }
        let before = std::mem::replace(&mut self.live, live.clone());
        // What the switch has taken of it nobody knows.
        if let Err(error) = self.note(self.write_settings(&before)) {
            self.live = before;
            return Err(error.into());
        }
        Ok(())
    }
    fn set_sources(&mut self, sources: &DeviceSources) -> Vec<ClosedSession> {
        let before = std::mem::replace(&mut self.live.sources, sources.clone());
        let written = self.check().and_then(|()| self.write_sources(Some(&before)));
        let closed = written.and_then(|()| self.close_sessions_at_own());
        self.note(closed).unwrap_or_else(|error| {
            tracing::error!(%error, "writing the device prefixes to the switch failed");
            Vec::new()
        })
    }
    fn set_fresh(&mut self, fresh: [u8; 8], now_ns: u64) {
        let written = self.write_fresh(u64::from_be_bytes(fresh), now_ns);
        if let Err(error) = self.note(written) {
            tracing::error!(%error, "the switch has no new fresh value");
        }
    }
    fn set_stopping(&mut self, stopping: bool) {
        self.stopping = stopping;
        if let Err(error) = self.note(self.write_stopping()) {
            tracing::error!(%error, "the switch was not told to stop");
        }
    }
    fn counters(&self) -> Result<Counters, DataPlaneError> {
        Ok(self.read_counters()?)
    }
    fn dropped_types(&self) -> Result<Option<DroppedTypes>, DataPlaneError> {
        match self.config.gate {
            Gate::Off => Ok(None),
            Gate::Open | Gate::Sealed => Ok(Some(self.read_dropped_types()?)),
        }
    }
    fn drain_events(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), DataPlaneError> {
        let taken = self.check().and_then(|()| self.take_events(sink));
        Ok(self.note(taken)?)
    }
    fn drain_misses(&mut self, sink: &mut dyn FnMut(Miss)) -> Result<(), DataPlaneError> {
        let taken = self.check().and_then(|()| self.take_misses(sink));
        Ok(self.note(taken)?)
    }
    fn enrol(&mut self, device: DeviceId) {
        self.note_enrolled(device);
    }
    fn set_filtering(&mut self, filtering: bool) {
        let written = self.filter(filtering);
        if let Err(error) = self.note(written) {
            tracing::error!(%error, "the switch was not told who is enrolled");
        }
    }
    fn send(&mut self, miss: &Miss, reply: &[u8; MESSAGE_BYTES]) {
        let sent = self.answer(miss, reply);
        if let Err(error) = self.note(sent) {
            tracing::error!(%error, "the switch has not sent an answer");
        }
    }
    fn expect(&mut self, miss: &Miss) {
        let expected = self.expect_response(miss.message());
        if let Err(error) = self.note(expected) {
            tracing::error!(%error, "the switch was not told what to expect");
        }
    }
    fn replay(&mut self, miss: Miss) -> Result<(), DataPlaneError> {
        let sent = self.send_through(miss);
        Ok(self.note(sent)?)
    }
    fn provers(&mut self) -> Option<&mut dyn ProverSet> {
        (self.config.provers != 0).then_some(self as &mut dyn ProverSet)
    }
    fn session_requests(
        &self,
        devices: &[DeviceId],
        round: &Round,
        now_s: u32,
    ) -> Vec<Option<(IpAddr, AttestRequest)>> {
        self.note(self.requests_in_sessions(devices, round, now_s))
            .unwrap_or_else(|_| vec![None; devices.len()])
    }
    fn ask(&mut self, requests: &[(SocketAddr, AttestRequest)]) -> Result<usize, DataPlaneError> {
        self.ask_devices(requests)
    }
    fn listen(&mut self) {
        self.link.listen();
    }
    fn bell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.link.bell())
    }
    fn housekeep(&mut self) {
        self.book.cells.reclaim();
        self.provers.reclaim();
        let now_ns = host::now().monotonic_ns;
        let is_recent = |looked_ns: u64| now_ns.saturating_sub(looked_ns) < LOOK_EVERY_NS;
        if self.looked_ns.is_some_and(is_recent) {
            return;
        }
        self.looked_ns = Some(now_ns);
        let looked = self.check().and_then(|()| self.look_through());
        if let Err(error) = self.note(looked) {
            tracing::debug!(%error, "the switch's devices were not looked through");
        }
    }
    fn failure(&mut self) -> Option<String> {
        self.failed().clone().or_else(|| self.link.ended())
    }
}
