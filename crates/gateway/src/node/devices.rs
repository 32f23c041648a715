//! What the node holds of each device, and how it moves from state to state.

use std::collections::hash_map::Entry;

use linewarden_dataplane::StoreError;
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex};

use super::{Node, Status, WIPE_AFTER_NS};
use crate::exchange::{Provision, Refusal, Refused, Want};

/// Where a device stands; the diagram is in the [module above](super).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Not in the data plane.
    Wanted,
    /// In the data plane.
    Installed,
    /// In the data plane with credentials that were replaced: to be wiped, then wanted.
    Replaced,
    /// Shut out.
    Revoked {
        /// When, monotonic.
        at_ns: u64,
    },
}

/// What the node holds of one device.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) state: State,
    /// Epoch of the credentials.
    pub(super) epoch: u32,
    /// Known once rows were seen.
    pub(super) mode: Option<Mode>,
    /// In `wants`, or asked for.
    pub(super) asking: bool,
    /// The pool is used up.
    exhausted: bool,
    /// The data plane had no room.
    no_room: bool,
    /// The number after the last row that was reserved.
    end: RowIndex,
    /// Reserved rows that the data plane has not taken yet.
    pending: Option<Provision>,
}

impl Held {
    pub(super) fn wanted(epoch: u32) -> Self {
        Self {
            state: State::Wanted,
            epoch,
            mode: None,
            asking: false,
            exhausted: false,
            no_room: false,
            end: RowIndex(0),
            pending: None,
        }
    }

    /// The first row that was reserved and never reached the data plane, of a device that is not in it.
    pub(super) fn first_unused(&self) -> Option<RowIndex> {
        self.pending.as_ref().map(|pending| pending.first)
    }

    /// What was wrong with the credentials is so no more.
    fn forget_troubles(&mut self, status: &mut Status) {
        self.pending = None;
        if std::mem::take(&mut self.exhausted) {
            status.exhausted -= 1;
        }
        if std::mem::take(&mut self.no_room) {
            status.no_room -= 1;
        }
    }
}

/// Key-mode devices have one row that is kept.
pub(super) fn spends_rows(mode: Mode) -> bool {
    mode == Mode::Pool
}

impl Node {
    /// Takes note of a device; says whether it was unknown.
    pub(super) fn meet(&mut self, device: DeviceId, epoch: u32) -> bool {
        match self.devices.entry(device) {
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                place.insert(Held::wanted(epoch));
                true
            }
        }
    }

    /// Queues a device for rows, unless it is queued, needs none or can get none.
    pub(super) fn want(&mut self, device: DeviceId) {
        let Some(held) = self.devices.get_mut(&device) else {
            return;
        };
        let served = matches!(held.state, State::Wanted | State::Installed);
        if served && !held.asking && !held.exhausted && held.pending.is_none() {
            held.asking = true;
            self.wants.push_back(device);
        } else if held.pending.is_some() {
            // Rows in hand did not fit before; now there is room.
            self.offer(device);
        }
    }

    /// What to ask for; `None` if the device needs nothing any more.
    pub(super) fn want_of(&self, device: DeviceId) -> Option<Want> {
        let held = self.devices.get(&device)?;
        let block = self.settings.reserve_block;
        let count = match held.state {
            State::Wanted => block,
            State::Installed => {
                let line = self.plane.status(device)?;
                let room = self
                    .settings
                    .ring
                    .saturating_add(1)
                    .saturating_sub(line.rows_left);
                room.min(block)
            }
            State::Replaced | State::Revoked { .. } => 0,
        };
        (count > 0).then_some(Want {
            device,
            from: held.end,
            count,
        })
    }

    /// Takes reserved rows and offers them to the data plane.
    pub(super) fn provide(&mut self, provision: Provision) {
        let device = provision.device;
        let Some(held) = self.devices.get_mut(&device) else {
            return;
        };
        held.asking = false;
        let served = matches!(held.state, State::Wanted | State::Installed);
        if !served || held.epoch != provision.epoch {
            // Made from credentials that were replaced or revoked meanwhile. The rows stay spent.
            return self.want(device);
        }
        held.mode = Some(provision.mode);
        held.end = held.end.max(provision.end());
        held.pending = Some(provision);
        self.offer(device);
    }

    /// The registry has no rows for a device.
    pub(super) fn refuse(&mut self, refused: &Refused) {
        let Some(held) = self.devices.get_mut(&refused.device) else {
            return;
        };
        held.asking = false;
        match &refused.why {
            Refusal::Exhausted if held.epoch == refused.epoch && !held.exhausted => {
                held.exhausted = true;
                self.status.exhausted += 1;
                tracing::debug!(device = %refused.device, "the registry has no more rows for it");
            }
            // The feed tells what became of it.
            Refusal::Exhausted | Refusal::Gone => {}
            Refusal::Damaged(problem) => {
                self.status.damaged += 1;
                tracing::error!(device = %refused.device, problem, "left out");
            }
        }
    }

    /// After a failed question all devices that were in it are queued again, in front.
    pub(super) fn ask_again(&mut self) {
        for device in std::mem::take(&mut self.asked).into_iter().rev() {
            if self.devices.get(&device).is_some_and(|held| held.asking) {
                self.wants.push_front(device);
            }
        }
    }

    /// After an answer none of those it was asked for waits any more.
    pub(super) fn clear_asked(&mut self) {
        for device in std::mem::take(&mut self.asked) {
            if let Some(held) = self.devices.get_mut(&device) {
                held.asking = false;
            }
        }
    }

    /// Hands the rows in hand to the data plane.
    fn offer(&mut self, device: DeviceId) {
        let Some(held) = self.devices.get_mut(&device) else {
            return;
        };
        let Some(provision) = held.pending.take() else {
            return;
        };
        let given = provision.rows.len() as u64;
        let result = if held.state == State::Installed {
            self.plane.refill(device, provision.first, &provision.rows)
        } else {
            self.plane
                .install(device, provision.mode, provision.first, &provision.rows, None)
                .map(|()| provision.end())
        };
        match result {
            Ok(end) => {
                if held.state == State::Wanted {
                    held.state = State::Installed;
                    self.status.devices += 1;
                    if std::mem::take(&mut held.no_room) {
                        self.status.no_room -= 1;
                    }
                }
                // Rows that did not follow the last ones directly wait until the line is empty.
                let kept = provision.end().0.saturating_sub(end.0.max(provision.first.0));
                self.status.rows_given += given.saturating_sub(kept.into());
                if kept > 0 {
                    held.pending = Some(tail(provision, kept));
                } else if self.is_low(device) {
                    self.want(device);
                }
            }
            Err(StoreError::Busy(_)) => {
                held.pending = Some(provision);
                self.busy.push(device);
            }
            Err(error @ (StoreError::Full(_) | StoreError::IndexFull(_))) => {
                held.pending = Some(provision);
                if !std::mem::replace(&mut held.no_room, true) {
                    self.status.no_room += 1;
                    tracing::debug!(%error, "no room");
                }
            }
            // The feed brings the revocation, or has brought it.
            Err(StoreError::Revoked(_)) => {}
            Err(error) => {
                self.status.damaged += 1;
                tracing::error!(%error, "the data plane refuses the device's rows");
            }
        }
    }

    pub(super) fn revoke(&mut self, device: DeviceId, epoch: u32, now_ns: u64) {
        let loading = !self.load.done;
        let Some(held) = self.devices.get_mut(&device) else {
            if loading {
                // A part of the fleet that was read before may still bring it.
                let mut held = Held::wanted(epoch);
                held.state = State::Revoked { at_ns: now_ns };
                self.devices.insert(device, held);
            }
            return;
        };
        if matches!(held.state, State::Revoked { .. }) {
            return;
        }
        if held.state == State::Installed {
            // It is shut out before anything else is done. A replaced one is shut out already.
            if let Err(error) = self.plane.revoke(device) {
                tracing::error!(%error, "a revoked device was not in the data plane");
            }
            self.status.devices -= 1;
        }
        held.forget_troubles(&mut self.status);
        held.state = State::Revoked { at_ns: now_ns };
        self.status.revoked += 1;
        tracing::info!(%device, "revoked");
    }

    /// New credentials: the old ones and the session go at once, the new ones are fetched.
    pub(super) fn replace(&mut self, device: DeviceId, epoch: u32) {
        let Some(held) = self.devices.get_mut(&device) else {
            return;
        };
        held.epoch = epoch;
        held.forget_troubles(&mut self.status);
        if held.state == State::Installed {
            held.state = State::Replaced;
            self.status.devices -= 1;
        }
        self.wipe_replaced(device);
    }

    fn wipe_replaced(&mut self, device: DeviceId) {
        let Some(held) = self.devices.get_mut(&device) else {
            return;
        };
        if held.state == State::Replaced {
            if matches!(self.plane.wipe(device), Err(StoreError::Busy(_))) {
                self.busy.push(device);
                return;
            }
            held.state = State::Wanted;
        }
        self.want(device);
    }

    pub(super) fn retry_busy(&mut self) {
        for device in std::mem::take(&mut self.busy) {
            match self.devices.get(&device).map(|held| held.state) {
                Some(State::Replaced) => self.wipe_replaced(device),
                Some(_) => self.offer(device),
                None => {}
            }
        }
    }

    /// Rows that found no room may find some now.
    pub(super) fn retry_pending(&mut self) {
        let waiting: Vec<DeviceId> = self
            .devices
            .iter()
            .filter(|(_, held)| held.pending.is_some())
            .map(|(device, _)| *device)
            .collect();
        waiting.into_iter().for_each(|device| self.offer(device));
    }

    /// Queues every device that has no more rows than the low mark, whatever events said.
    pub(super) fn want_all_low(&mut self) {
        let low: Vec<DeviceId> = self
            .devices
            .keys()
            .filter(|device| self.is_low(**device))
            .copied()
            .collect();
        low.into_iter().for_each(|device| self.want(device));
    }

    fn is_low(&self, device: DeviceId) -> bool {
        let installed = |held: &&Held| held.state == State::Installed && held.mode.is_some_and(spends_rows);
        self.devices.get(&device).filter(installed).is_some()
            && self
                .plane
                .status(device)
                .is_some_and(|line| line.rows_left <= self.settings.low_rows)
    }

    /// Removes the keys of devices that were revoked some time ago.
    pub(super) fn wipe_revoked(&mut self, now_ns: u64) {
        let loading = !self.load.done;
        let plane = &mut self.plane;
        self.devices.retain(|device, held| {
            let State::Revoked { at_ns } = held.state else {
                return true;
            };
            if loading || now_ns < at_ns.saturating_add(WIPE_AFTER_NS) {
                return true;
            }
            matches!(plane.wipe(*device), Err(StoreError::Busy(_)))
        });
    }
}

/// The last `count` rows.
fn tail(provision: Provision, count: u32) -> Provision {
    let skipped = provision.rows.len().saturating_sub(count as usize);
    Provision {
        first: RowIndex(provision.end().0.saturating_sub(count)),
        rows: provision.rows.into_iter().skip(skipped).collect(),
        ..provision
    }
}
