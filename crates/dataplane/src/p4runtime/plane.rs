//! [`DataPlane`] of the switch.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use linewarden_p4runtime::translate::Read;
use linewarden_protocol::attest::Round;
use linewarden_protocol::gateway::FRESH_MAX_AGE_MS;
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, SessionId};
use linewarden_protocol::wire::{AttestRequest, MESSAGE_BYTES};

use super::clock::Reading;
use super::options::NAME;
use super::{P4Runtime, SwitchError};
use crate::config::{ConfigError, Live};
use crate::counters::Counters;
use crate::event::Event;
use crate::miss::Miss;
use crate::store::adopt::Left;
use crate::store::{LineStatus, Row, SessionView, StoreError};
use crate::{Capabilities, DataPlane, DataPlaneError, SourceMac, host};

fn unsupported(what: &'static str) -> DataPlaneError {
    DataPlaneError::Config(ConfigError::Unsupported { backend: NAME, what })
}

impl P4Runtime {
    /// Both values, and until when they are taken.
    fn write_fresh(&mut self, fresh: u64, now_ns: u64) -> Result<(), SwitchError> {
        self.check()?;
        self.clock = Reading::take(&self.link)?;
        let now = host::now();
        let age_us = now.monotonic_ns.saturating_sub(now_ns) / 1000;
        let until_us =
            (self.clock.switch_us(now.boot_ns / 1000) + FRESH_MAX_AGE_MS * 1000).saturating_sub(age_us);
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

    fn write_settings(&self) -> Result<(), SwitchError> {
        self.check()?;
        let [naks, alarms] = self.limits()?;
        self.link.write(&[self.gateway()?, naks, alarms])
    }

    fn read_counters(&self) -> Result<Counters, SwitchError> {
        const NAME: &str = "verdicts";
        self.check()?;
        let found = self.link.program.info().counters().named(NAME);
        let id = found.ok_or(SwitchError::Program(NAME))?.id;
        let read = self.link.read(&[Read::Counters {
            id: Some(id),
            index: None,
        }])?;
        let mut counters = Counters {
            events_lost: self.link.lists_lost(),
            ..Counters::default()
        };
        for entity in read {
            if let linewarden_p4runtime::entity::Entity::Counter { index, data, .. } = entity
                && let Some(slot) = counters.by_verdict.get_mut(index as usize)
            {
                *slot = data.packets;
            }
        }
        Ok(counters)
    }
}

impl DataPlane for P4Runtime {
    fn name(&self) -> &'static str {
        NAME
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            source_mac: SourceMac::Frame,
            gate: true,
            classic: false,
            vlans: true,
            // The switch's own statements are asked for elsewhere (`linewarden switch evidence`).
            evidence: false,
        }
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
        self.note(self.line_status(device)).ok().flatten()
    }
    fn session(&self, device: DeviceId) -> Option<SessionView> {
        self.note(self.session_view(device)).ok().flatten()
    }
    fn reconfigure(&mut self, live: &Live, _boot_s: u32) -> Result<(), DataPlaneError> {
        if live.miss_per_s != 0 {
            return Err(unsupported("slow path (set miss_per_s to 0)"));
        }
        if !live.forward_to.is_empty() {
            return Err(unsupported("forward_to: it bridges by itself"));
        }
        let before = std::mem::replace(&mut self.live, live.clone());
        if let Err(error) = self.write_settings() {
            self.live = before;
            return Err(error.into());
        }
        Ok(())
    }
    fn set_fresh(&mut self, fresh: [u8; 8], now_ns: u64) {
        let written = self.write_fresh(u64::from_be_bytes(fresh), now_ns);
        if let Err(error) = self.note(written) {
            tracing::error!(%error, "the switch has no new fresh value");
        }
    }
    fn set_stopping(&mut self, stopping: bool) {
        self.stopping = stopping;
        if let Err(error) = self.note(self.write_settings()) {
            tracing::error!(%error, "the switch was not told to stop");
        }
    }
    fn counters(&self) -> Result<Counters, DataPlaneError> {
        Ok(self.read_counters()?)
    }
    fn drain_events(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), DataPlaneError> {
        let taken = self.check().and_then(|()| self.take_events(sink));
        Ok(self.note(taken)?)
    }
    fn drain_misses(&mut self, _sink: &mut dyn FnMut(Miss)) -> Result<(), DataPlaneError> {
        Ok(())
    }
    fn enrol(&mut self, _device: DeviceId) {}
    fn set_filtering(&mut self, _filtering: bool) {}
    fn send(&mut self, _miss: &Miss, _reply: &[u8; MESSAGE_BYTES]) {}
    fn expect(&mut self, _miss: &Miss) {}
    fn replay(&mut self, _miss: Miss) -> Result<(), DataPlaneError> {
        Ok(())
    }
    fn session_request(
        &self,
        _device: DeviceId,
        _round: &Round,
        _now_s: u32,
    ) -> Option<(IpAddr, AttestRequest)> {
        None
    }
    fn ask(&mut self, _requests: &[(SocketAddr, AttestRequest)]) -> Result<usize, DataPlaneError> {
        Err(unsupported("PROOFs"))
    }
    fn listen(&mut self) {}
    fn bell(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn housekeep(&mut self) {
        self.book.reclaim();
        let deleted = self.check().and_then(|()| self.delete_all_spent());
        if let Err(error) = self.note(deleted) {
            tracing::debug!(%error, "spent rows were not taken out of the switch");
        }
    }
    fn failure(&mut self) -> Option<String> {
        self.failed().clone().or_else(|| self.link.ended())
    }
}
