//! What the node holds of each device, and how it moves from state to state.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use linewarden_controller::{Provision, Refusal, Refused, Want};
use linewarden_dataplane::{LineStatus, StoreError};
use linewarden_protocol::commit;
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, SessionId};

use super::Node;
use super::departure::EVICT_BATCH;
use super::eviction::{Ticket, Uses};
use crate::audit::Happening;

/// A mark that is moved again within this time is moved further each time, ns.
const BUSY_DEVICE_NS: u64 = 60_000_000_000;

/// How often the log names a device that no row is left for, ns, and how many devices in that time.
const UNSERVED_LOG_NS: u64 = 600_000_000_000;
const UNSERVED_MAX: usize = 1024;

/// Devices that the log has named, and until when it does not name them again, monotonic, ns.
#[derive(Debug, Default)]
pub(super) struct Named(HashMap<DeviceId, u64>);

impl Named {
    /// Whether the log may name the device now.
    fn is_due(&mut self, device: DeviceId, now_ns: u64) -> bool {
        if self.0.len() >= UNSERVED_MAX {
            self.0.retain(|_, until_ns| *until_ns > now_ns);
        }
        let is_named = self.0.get(&device).is_some_and(|until_ns| *until_ns > now_ns);
        if is_named || self.0.len() >= UNSERVED_MAX {
            return false;
        }
        self.0.insert(device, now_ns.saturating_add(UNSERVED_LOG_NS));
        true
    }
}

/// Where a device stands; the diagram is in the [module above](super).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Its rows are here, and the data plane had no room for it yet.
    Waiting,
    /// In the data plane.
    Installed,
    /// To be wiped, because its place is needed, or its credentials were replaced.
    Leaving {
        /// Whether its rows go back; those of replaced credentials are void.
        settle: bool,
    },
    /// Shut out; the controller has not heard yet where it stood. A pool device is wiped already, for its mark keeps what
    /// was spent from being spent again. A key-mode device is wiped afterwards: if its number went with this process, its
    /// last RESPONSE would open a session once more.
    Settling,
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
    pub(super) mode: Mode,
    /// Epoch of the credentials.
    pub(super) epoch: u32,
    /// In `wants`, or asked for.
    pub(super) asking: bool,
    /// Something was wanted again while it was asked for.
    wanted_again: bool,
    /// No row is left for this gateway.
    pub(super) exhausted: bool,
    /// Its number among those that wait for a place.
    room_ticket: Option<u64>,
    /// How many rows the mark is moved ahead.
    ahead: u8,
    /// Where the mark stands.
    mark: RowIndex,
    /// The number after the last row that has come.
    received: RowIndex,
    /// The mark has been moved since it was asked for last.
    marked: bool,
    /// When it was asked for last, monotonic.
    marked_at_ns: u64,
    pub(super) ticket: Option<Ticket>,
    /// The last session that is known to have been opened, and when, boot-time clock, ns.
    pub(super) opened: Option<(SessionId, u64)>,
    /// Leased rows that the data plane has not taken yet.
    pub(super) pending: Option<Box<Provision>>,
    /// Its next row when it was wiped while it was shut out; the controller has not heard of it yet.
    pub(super) stood: Option<RowIndex>,
}

impl Held {
    fn new(provision: Provision, ahead: u32) -> Self {
        Self {
            mode: provision.mode,
            epoch: provision.epoch,
            ahead: u8::try_from(ahead).unwrap_or(u8::MAX),
            mark: provision.mark,
            received: provision.end(),
            pending: Some(Box::new(provision)),
            ..Self::blank(State::Waiting)
        }
    }

    /// Of a device that an earlier process left in the data plane.
    pub(super) fn taken_up(
        mode: Mode,
        epoch: u32,
        mark: RowIndex,
        received: RowIndex,
        ticket: Ticket,
        ahead: u32,
    ) -> Self {
        Self {
            mode,
            epoch,
            ahead: u8::try_from(ahead).unwrap_or(u8::MAX),
            mark,
            received,
            ticket: Some(ticket),
            ..Self::blank(State::Installed)
        }
    }

    /// Of one of which nothing is known but that it is to go, or is gone.
    pub(super) fn blank(state: State) -> Self {
        Self {
            state,
            mode: Mode::Key,
            epoch: u32::MAX,
            asking: false,
            wanted_again: false,
            exhausted: false,
            room_ticket: None,
            ahead: 0,
            mark: RowIndex(0),
            received: RowIndex(0),
            marked: false,
            marked_at_ns: 0,
            ticket: None,
            opened: None,
            pending: None,
            stood: None,
        }
    }
}

impl Node {
    /// Takes in a device that was not here, with what the controller leased; says whether it is in the data plane now.
    pub(super) fn admit(&mut self, provision: Provision) -> bool {
        let device = provision.device;
        // Leased before the leases were lost.
        if !self.may_have_rows() {
            return false;
        }
        // The feed may have told since of a change that the rows do not know.
        if self
            .meanwhile
            .get(&device)
            .is_some_and(|epoch| *epoch > provision.epoch)
        {
            return false;
        }
        match self.devices.entry(device) {
            Entry::Occupied(held) => return held.get().state == State::Installed,
            Entry::Vacant(place) => {
                place.insert(Held::new(provision, self.settings.mark_block));
            }
        }
        self.offer(device);
        self.devices
            .get(&device)
            .is_some_and(|held| held.state == State::Installed)
    }

    /// Queues a device for rows, unless it is queued, needs none or can get none.
    pub(super) fn want(&mut self, device: DeviceId) {
        let Some(held) = self.devices.get_mut(&device) else {
            return;
        };
        if held.pending.is_some() {
            // Rows in hand did not fit before; now there may be room.
            self.offer(device);
        }
        let Some(held) = self.devices.get_mut(&device) else {
            return;
        };
        if held.state == State::Installed && !held.exhausted {
            held.wanted_again = held.asking;
            if !std::mem::replace(&mut held.asking, true) {
                self.wants.push_back(device);
            }
        }
    }

    /// What to ask for; `None` if the device needs nothing any more.
    pub(super) fn want_of(&mut self, device: DeviceId, now_ns: u64) -> Option<Want> {
        let low_credit = self.settings.low_credit;
        let held = self.devices.get_mut(&device)?;
        if held.state != State::Installed || held.mode == Mode::Key {
            return None;
        }
        let line = self.plane.status(device)?;
        let from = line.commit.idx();
        let is_low = line.rows_left <= self.settings.low_rows;
        let allowed = held.mark.0.saturating_sub(from.0);
        if !is_low && allowed > low_credit {
            // The line holds less credit than the mark allows.
            return self.plane.grant(device, held.mark).err().and(None);
        }
        let block = u8::try_from(self.settings.mark_block).unwrap_or(u8::MAX);
        // A question that was not answered says nothing about the device.
        if std::mem::take(&mut held.marked) {
            let most = u8::try_from(commit::CREDIT_MAX).unwrap_or(u8::MAX);
            held.ahead = match now_ns.saturating_sub(held.marked_at_ns) < BUSY_DEVICE_NS {
                true => held.ahead.saturating_mul(2).min(most),
                false => (held.ahead / 2).max(block),
            };
        }
        held.marked_at_ns = now_ns;
        let room = self.settings.ring.saturating_add(1);
        Some(Want {
            device,
            epoch: held.epoch,
            from,
            received: held.received,
            hold: if is_low { room } else { line.rows_left },
            ahead: u32::from(held.ahead),
        })
    }

    /// Takes what was leased for a device that is here.
    pub(super) fn provide(&mut self, provision: Provision) {
        let device = provision.device;
        let Some(held) = self.devices.get_mut(&device) else {
            return;
        };
        held.asking = false;
        if held.state != State::Installed || held.epoch != provision.epoch {
            // It is leaving: where it stood is told then.
            return;
        }
        held.marked = provision.mark > held.mark;
        held.mark = held.mark.max(provision.mark);
        let mark = held.mark;
        let is_due = std::mem::take(&mut held.wanted_again) || held.marked || !provision.rows.is_empty();
        match &mut held.pending {
            _ if provision.rows.is_empty() => {}
            Some(pending) if pending.end() == provision.first => {
                held.received = provision.end();
                pending.rows.extend(provision.rows);
            }
            // A jump is only made when all before it may be spent; what waits is spent first, and these come again.
            Some(_) => {}
            None => {
                held.received = provision.end();
                held.pending = Some(Box::new(provision));
            }
        }
        if let Err(error) = self.plane.grant(device, mark) {
            tracing::error!(%error, "the mark of a device that is here could not be moved");
        }
        self.offer(device);
        // What it spent while the question was out may want another one. Not without any progress, or it would be asked
        // for without end: the device's next RESPONSE is an event again.
        let stuck = |line: LineStatus| line.rows_left == 0 || !line.commit.has_credit();
        if is_due && self.plane.status(device).is_some_and(stuck) {
            self.want(device);
        }
    }

    /// The controller has no rows for a device.
    pub(super) fn refuse(&mut self, refused: &Refused) {
        let Some(held) = self.devices.get_mut(&refused.device) else {
            return;
        };
        let was_asked = std::mem::take(&mut held.asking);
        match &refused.why {
            Refusal::Exhausted if held.state != State::Installed => {}
            Refusal::Exhausted => {
                if !std::mem::replace(&mut held.exhausted, true) {
                    self.status.exhausted += 1;
                    self.exhausted.push_back(refused.device);
                    self.trail.note(Happening::Exhausted {
                        device: refused.device,
                    });
                    tracing::debug!(device = %refused.device, "no row is left for it");
                }
            }
            // The feed tells what became of it.
            Refusal::Gone => {}
            // It came again since the question.
            Refusal::NotHeld if !was_asked => {}
            Refusal::NotHeld => {
                tracing::warn!(device = %refused.device, "the registry knows of no row here: the device begins anew");
                self.dismiss(refused.device, false);
            }
            Refusal::Damaged(problem) => {
                self.status.damaged += 1;
                tracing::error!(device = %refused.device, problem, "left out");
            }
        }
    }

    /// A REQUEST of a device that is not here was answered with a NAK: the registry can lease no row. Anybody can send the REQUEST.
    pub(super) fn note_unserved(&mut self, device: DeviceId) {
        self.status.unserved += 1;
        if self.unserved.is_due(device, self.now_ns) {
            self.trail.note(Happening::Exhausted { device });
            tracing::warn!(
                %device,
                action = "see `linewarden device show`; enroll the device again with --replace",
                "request refused: no row can be leased for the device"
            );
        }
    }

    /// As [`Node::note_unserved`], where rows are left, and the REQUEST states that the device has answered them. Anybody can forge that.
    pub(super) fn note_stated_beyond(&mut self, device: DeviceId) {
        self.status.unserved += 1;
        if self.stated_beyond.is_due(device, self.now_ns) {
            tracing::warn!(
                %device,
                action = "if the device does not authenticate, enroll it again with --replace; otherwise ignore the request, it may be forged",
                "request refused: it states that the device has answered all rows that are left"
            );
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
        let installed = match held.state {
            State::Waiting => false,
            State::Installed => true,
            State::Leaving { .. } | State::Settling | State::Revoked { .. } => return,
        };
        let Some(provision) = held.pending.take() else {
            return;
        };
        let result = if installed {
            self.plane.refill(device, provision.first, &provision.rows)
        } else {
            let most = self.settings.ring.saturating_add(1) as usize;
            let rows = provision.rows.get(..most).unwrap_or(&provision.rows);
            let mark = (provision.mode == Mode::Pool).then_some(provision.mark);
            let last = u32::try_from(rows.len()).unwrap_or(u32::MAX);
            self.plane
                .install(device, provision.mode, provision.first, rows, mark)
                .map(|()| RowIndex(provision.first.0.saturating_add(last)))
        };
        match result {
            Ok(end) => {
                if !installed {
                    self.plane.note_epoch(device, provision.epoch);
                }
                self.taken(device, *provision, end);
            }
            Err(StoreError::Busy(_)) => {
                held.pending = Some(provision);
                self.busy.push(device);
            }
            Err(error @ (StoreError::Full(_) | StoreError::IndexFull(_))) => {
                held.pending = Some(provision);
                tracing::debug!(%error, "no room");
                self.await_room(device);
            }
            // The feed brings the revocation, or has brought it.
            Err(StoreError::Revoked(_)) => {}
            Err(error) => {
                self.status.damaged += 1;
                tracing::error!(%error, "the data plane refuses the device's rows");
                if !installed {
                    self.part(device, None);
                }
            }
        }
    }

    /// The data plane has taken rows up to `end`; further ones wait until the line is empty, or has room.
    fn taken(&mut self, device: DeviceId, provision: Provision, end: RowIndex) {
        self.stop_waiting(device);
        let Some(held) = self.devices.get_mut(&device) else {
            return;
        };
        if held.state == State::Waiting {
            held.state = State::Installed;
            self.status.devices += 1;
            let uses = self.plane.status(device).map_or(Uses::NONE, |line| uses(&line));
            held.ticket = Some(self.order.enter(device, uses));
        }
        let kept = provision.end().0.saturating_sub(end.0.max(provision.first.0));
        self.status.rows_given += (provision.rows.len() as u64).saturating_sub(kept.into());
        if kept > 0 {
            held.pending = Some(Box::new(tail(provision, kept)));
        }
    }

    fn await_room(&mut self, device: DeviceId) {
        let Some(held) = self.devices.get_mut(&device) else {
            return;
        };
        if held.room_ticket.is_none() {
            held.room_ticket = Some(self.no_room_next);
            self.no_room.insert(self.no_room_next, device);
            self.no_room_next += 1;
        }
    }

    pub(super) fn stop_waiting(&mut self, device: DeviceId) {
        let held = self.devices.get_mut(&device);
        if let Some(ticket) = held.and_then(|held| held.room_ticket.take()) {
            self.no_room.remove(&ticket);
        }
    }

    /// New credentials: the old ones and the session go at once; the device comes again. Of the same credentials there
    /// may be more rows now.
    pub(super) fn renew(&mut self, device: DeviceId, epoch: u32) {
        match self.devices.get(&device) {
            Some(held) if held.epoch < epoch => {
                self.trail.note(Happening::CredentialsReplaced { device, epoch });
                self.dismiss(device, false);
            }
            Some(held) if held.exhausted => self.want_anew(device),
            _ => {}
        }
    }

    pub(super) fn want_anew(&mut self, device: DeviceId) {
        let held = self.devices.get_mut(&device);
        if held.is_some_and(|held| std::mem::take(&mut held.exhausted)) {
            self.status.exhausted -= 1;
            self.want(device);
        }
    }

    pub(super) fn retry_busy(&mut self) {
        for device in std::mem::take(&mut self.busy) {
            match self.devices.get(&device).map(|held| held.state) {
                Some(State::Leaving { .. }) => self.depart(device),
                Some(_) => self.offer(device),
                None => {}
            }
        }
    }

    /// Rows that found no room may find some now.
    pub(super) fn retry_no_room(&mut self) {
        let waiting: Vec<DeviceId> = self.no_room.values().take(EVICT_BATCH).copied().collect();
        waiting.into_iter().for_each(|device| self.offer(device));
    }

    /// Queues every device that needs something, whatever events said.
    pub(super) fn look_through(&mut self) {
        let (low_rows, low_credit) = (self.settings.low_rows, self.settings.low_credit);
        let is_low = |line: LineStatus| {
            let credit = line.commit.credit().unwrap_or(u32::MAX);
            line.rows_left <= low_rows || credit <= low_credit
        };
        let pools = self
            .devices
            .iter()
            .filter(|(_, held)| held.state == State::Installed && held.mode == Mode::Pool);
        let pools: Vec<DeviceId> = pools.map(|(device, _)| *device).collect();
        let lines = self.plane.statuses(&pools);
        for (device, line) in pools.into_iter().zip(lines) {
            if line.is_some_and(is_low) {
                self.want(device);
            }
        }
    }
}

pub(super) fn uses(line: &LineStatus) -> Uses {
    Uses {
        count: line.commit.generation(),
        until_s: line.lease_until_s,
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
