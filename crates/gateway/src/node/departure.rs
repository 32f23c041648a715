//! How devices leave the data plane: evicted for others, replaced, revoked, or with the whole gateway.

use linewarden_dataplane::{LineStatus, StoreError};
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex};
use linewarden_registry::Settlement;

use super::Node;
use super::devices::{Held, State, uses};
use super::link::WANTS_PER_ASK;
use crate::audit::Happening;
use crate::time::Clock;

/// Devices that are evicted at a time.
pub(super) const EVICT_BATCH: usize = 64;

impl Node {
    /// Evicts devices so that those which wait find places, a moment later; how many leave, with those of before.
    pub(super) fn make_room(&mut self, clock: Clock) -> usize {
        let spare_live = self.settings.spare_live_sessions;
        let now_s = clock.boot_ns / 1_000_000_000;
        let leaving = self.leaving_soon();
        let wanted = self.no_room.len().saturating_sub(leaving).min(EVICT_BATCH);
        for evicted in 0..wanted {
            let (plane, devices) = (&self.plane, &self.devices);
            let victim = self.order.victim(&|device| {
                let held = devices
                    .get(&device)
                    .filter(|held| held.state == State::Installed)?;
                let line = plane.status(device)?;
                let is_live = line.has_session && u64::from(line.lease_until_s) > now_s;
                let is_needed = line.commit.is_busy() || spare_live && is_live || held.asking;
                (!is_needed).then(|| uses(&line))
            });
            let Some(victim) = victim else {
                return leaving + evicted;
            };
            self.status.evicted += 1;
            self.trail.note(Happening::Evicted { device: victim });
            self.dismiss(victim, true);
        }
        leaving + wanted
    }

    /// Takes a device out of the node.
    pub(super) fn dismiss(&mut self, device: DeviceId, settle: bool) {
        let Some(held) = self.devices.get_mut(&device) else {
            return;
        };
        match held.state {
            State::Installed => {
                held.state = State::Leaving { settle };
                self.status.devices -= 1;
                self.depart(device);
            }
            State::Waiting => {
                let first = held.pending.take().map(|pending| pending.first);
                self.part(device, first.filter(|_| settle));
            }
            State::Leaving { .. } | State::Settling | State::Revoked { .. } => {}
        }
    }

    pub(super) fn depart(&mut self, device: DeviceId) {
        let Some(held) = self.devices.get_mut(&device) else {
            return;
        };
        let State::Leaving { settle } = held.state else {
            return;
        };
        let (mode, stood) = (held.mode, held.stood.take());
        // Once REVOKED is in the word, no compare-and-swap on an older one succeeds: the number stands still.
        let line = match self.plane.revoke(device) {
            Ok(()) => self.plane.status(device),
            Err(_) => None,
        };
        let unused_from = line.map(|line| line.commit.idx()).or(stood).filter(|_| settle);
        if mode == Mode::Key && unused_from.is_some() {
            return self.part(device, unused_from);
        }
        match self.plane.wipe(device) {
            Err(StoreError::Busy(_)) => self.busy.push(device),
            _ => self.part(device, unused_from),
        }
    }

    /// The device can do nothing in the data plane any more. With something to settle it is known until that is done.
    pub(super) fn part(&mut self, device: DeviceId, unused_from: Option<RowIndex>) {
        self.unlist(device);
        let Some(held) = self.devices.get_mut(&device) else {
            return;
        };
        let Some(unused_from) = unused_from else {
            self.devices.remove(&device);
            return;
        };
        held.state = State::Settling;
        held.pending = None;
        self.settlements.push(Settlement {
            device,
            epoch: held.epoch,
            unused_from,
            keep: false,
        });
    }

    /// Nobody asks after it any more, evicts it or has room for it.
    fn unlist(&mut self, device: DeviceId) {
        self.stop_waiting(device);
        let Some(held) = self.devices.get_mut(&device) else {
            return;
        };
        if let Some(ticket) = held.ticket.take() {
            self.order.leave(ticket);
        }
        if std::mem::take(&mut held.exhausted) {
            self.status.exhausted -= 1;
        }
    }

    /// The controller knows where these stood.
    pub(super) fn settled(&mut self) {
        for settlement in std::mem::take(&mut self.settling) {
            let device = settlement.device;
            match self.devices.get_mut(&device) {
                Some(held) if held.state == State::Settling && held.mode == Mode::Key => {
                    held.state = State::Leaving { settle: false };
                    self.depart(device);
                }
                Some(held) if held.state == State::Settling => {
                    self.devices.remove(&device);
                }
                // It was revoked since, and is wiped as those are.
                _ => {}
            }
        }
    }

    /// Devices that have a place until the controller has heard where they stood.
    fn leaving_soon(&self) -> usize {
        let settlements = self.settlements.iter().chain(&self.settling);
        let held = settlements.filter_map(|settlement| self.devices.get(&settlement.device));
        held.filter(|held| held.state == State::Settling && held.mode == Mode::Key)
            .count()
    }

    pub(super) fn revoke(&mut self, device: DeviceId, now_ns: u64) {
        self.unlist(device);
        let Some(held) = self.devices.get_mut(&device) else {
            // Those of before its start are none of its business.
            if self.is_following() {
                self.status.revoked += 1;
                self.record_revoked(device, false);
            }
            if self.is_expecting() {
                // An answer that was given before may still bring it.
                self.devices
                    .insert(device, Held::blank(State::Revoked { at_ns: now_ns }));
            }
            return;
        };
        let was_installed = held.state == State::Installed;
        match held.state {
            State::Revoked { .. } => return,
            State::Installed => {
                if let Err(error) = self.plane.revoke(device) {
                    tracing::error!(%error, "a revoked device was not in the data plane");
                }
                self.status.devices -= 1;
            }
            State::Waiting | State::Leaving { .. } | State::Settling => {}
        }
        held.pending = None;
        held.state = State::Revoked { at_ns: now_ns };
        self.status.revoked += 1;
        self.record_revoked(device, was_installed);
        tracing::info!(%device, "revoked");
    }

    /// A device that was shut out may come again: what it holds here goes back, and it begins as one that is new here.
    pub(super) fn readmit(&mut self, device: DeviceId) {
        let Some(held) = self.devices.get_mut(&device) else {
            return;
        };
        if !matches!(held.state, State::Revoked { .. }) {
            return;
        }
        let mut told = self.settlements.iter().chain(&self.settling);
        if told.any(|settlement| settlement.device == device) {
            // It had left before it was shut out: it may come again once the controller knows where it stood.
            held.state = State::Settling;
            return;
        }
        held.state = State::Leaving { settle: true };
        self.depart(device);
    }

    /// Removes the keys of devices that were revoked some time ago. They are forgotten unless an answer may bring them, and once the
    /// controller knows where they stood: who was in quarantine may come again, and must not be given rows that it has spent.
    pub(super) fn wipe_revoked(&mut self, now_ns: u64) {
        let is_expecting = self.is_expecting();
        let wipe_after_ns = self.settings.wipe_after_ms.saturating_mul(1_000_000);
        let plane = &mut self.plane;
        let mut forgotten = Vec::new();
        for (device, held) in &mut self.devices {
            let State::Revoked { at_ns } = held.state else {
                continue;
            };
            if now_ns < at_ns.saturating_add(wipe_after_ns) {
                continue;
            }
            let line = plane.status(*device);
            if matches!(plane.wipe(*device), Err(StoreError::Busy(_))) {
                continue;
            }
            held.stood = line.map(|line| line.commit.idx()).or(held.stood);
            if !is_expecting {
                forgotten.push((*device, held.stood.take()));
            }
        }
        for (device, stood) in forgotten {
            self.part(device, stood);
        }
    }

    /// Shuts every device out, and returns where they stood: their rows stay this gateway's.
    pub(super) fn shut_out(&mut self) -> Vec<Settlement> {
        let mut stood = std::mem::take(&mut self.settlements);
        stood.append(&mut self.settling);
        for (device, held) in &self.devices {
            let first_pending = held.pending.as_ref().map(|pending| pending.first);
            let unused_from = match held.state {
                State::Waiting => first_pending,
                // A switch goes on without its gateway: also whose rows never end must be out.
                State::Installed | State::Leaving { .. } => match self.plane.revoke(*device) {
                    Ok(()) if held.mode == Mode::Pool => self
                        .plane
                        .status(*device)
                        .filter(|line| !line.commit.is_busy())
                        .map(|line| line.commit.idx()),
                    _ => None,
                },
                State::Settling | State::Revoked { .. } => None,
            };
            // The next process draws fresh values of its own: of key mode there is nothing to say.
            let unused_from = unused_from.filter(|_| held.mode == Mode::Pool);
            stood.extend(unused_from.map(|unused_from| Settlement {
                device: *device,
                epoch: held.epoch,
                unused_from,
                keep: true,
            }));
        }
        stood
    }

    /// Asks anew for some of the devices for which no row was left: others may have given some back. Those without a row
    /// and without a session leave: when they come again, the slow path asks.
    pub(super) fn retry_exhausted(&mut self, clock: Clock) {
        let now_s = clock.boot_ns / 1_000_000_000;
        let count = self.exhausted.len().min(WANTS_PER_ASK);
        let some: Vec<DeviceId> = self.exhausted.drain(..count).collect();
        for device in some {
            if !self.devices.get(&device).is_some_and(|held| held.exhausted) {
                continue;
            }
            let is_idle = |line: LineStatus| {
                let is_live = line.has_session && u64::from(line.lease_until_s) > now_s;
                line.rows_left == 0 && !is_live
            };
            match self.plane.status(device).is_some_and(is_idle) {
                true => self.dismiss(device, true),
                false => self.want_anew(device),
            }
        }
    }
}
