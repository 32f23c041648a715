//! What the node holds of each device, and how it moves from state to state.

use std::collections::hash_map::Entry;

use linewarden_controller::{Provision, Refusal, Refused, Want};
use linewarden_dataplane::{LineStatus, StoreError};
use linewarden_protocol::commit;
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex};
use linewarden_registry::Settlement;

use super::sieve::Ticket;
use super::{Node, WIPE_AFTER_NS};
use crate::time::Clock;

/// Longer than a fresh value is accepted (LAP/1 1.4.1), ns.
const REST_NS: u64 = 17_000_000_000;
/// Devices that are evicted at a time.
const EVICT_BATCH: usize = 64;
/// A mark that is moved again within this time is moved further each time, ns.
const BUSY_DEVICE_NS: u64 = 60_000_000_000;

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
    /// Wiped; the controller has not heard yet where it stood.
    Settling,
    /// A key-mode device that was evicted: until no fresh value of its time is accepted, its last RESPONSE would open a
    /// session once more.
    Resting {
        /// Until when, monotonic.
        until_ns: u64,
    },
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
    /// No row is left for this gateway.
    exhausted: bool,
    /// How many rows the mark is moved ahead.
    ahead: u8,
    /// Where the mark stands.
    mark: RowIndex,
    /// It has been moved since it was asked for last.
    marked: bool,
    /// When it was asked for last, monotonic.
    marked_at_ns: u64,
    ticket: Option<Ticket>,
    /// Leased rows that the data plane has not taken yet.
    pending: Option<Box<Provision>>,
}

impl Held {
    fn new(provision: &Provision, ahead: u32) -> Self {
        Self {
            state: State::Waiting,
            mode: provision.mode,
            epoch: provision.epoch,
            asking: false,
            exhausted: false,
            ahead: u8::try_from(ahead).unwrap_or(u8::MAX),
            mark: provision.mark,
            marked: false,
            marked_at_ns: 0,
            ticket: None,
            pending: None,
        }
    }

    /// Only what is needed to know it when it comes.
    fn revoked(at_ns: u64) -> Self {
        Self {
            state: State::Revoked { at_ns },
            mode: Mode::Key,
            epoch: u32::MAX,
            asking: false,
            exhausted: false,
            ahead: 0,
            mark: RowIndex(0),
            marked: false,
            marked_at_ns: 0,
            ticket: None,
            pending: None,
        }
    }
}

impl Node {
    /// Takes in a device that was not here, with what the controller leased; says whether it is in the data plane now.
    pub(super) fn admit(&mut self, provision: Provision) -> bool {
        let device = provision.device;
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
                let mut held = Held::new(&provision, self.settings.mark_block);
                held.pending = Some(Box::new(provision));
                place.insert(held);
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
        if held.state == State::Installed && !held.asking && !held.exhausted {
            held.asking = true;
            self.wants.push_back(device);
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
        match &mut held.pending {
            _ if provision.rows.is_empty() => {}
            Some(pending) if pending.end() == provision.first => pending.rows.extend(provision.rows),
            // A jump is only made when all before it may be spent; what waits is spent first.
            Some(_) => tracing::debug!(%device, "rows behind a jump were not taken; they stay spent"),
            None => held.pending = Some(Box::new(provision)),
        }
        if let Err(error) = self.plane.grant(device, mark) {
            tracing::error!(%error, "the mark of a device that is here could not be moved");
        }
        self.offer(device);
        // What it spent while the question was out was reported to deaf ears.
        let stuck = |line: LineStatus| line.rows_left == 0 || !line.commit.has_credit();
        if self.plane.status(device).is_some_and(stuck) {
            self.want(device);
        }
    }

    /// The controller has no rows for a device.
    pub(super) fn refuse(&mut self, refused: &Refused) {
        let Some(held) = self.devices.get_mut(&refused.device) else {
            return;
        };
        held.asking = false;
        match &refused.why {
            Refusal::Exhausted if held.state != State::Installed => {}
            Refusal::Exhausted => {
                if !std::mem::replace(&mut held.exhausted, true) {
                    self.status.exhausted += 1;
                    tracing::debug!(device = %refused.device, "no row is left for it");
                }
            }
            // The feed tells what became of it.
            Refusal::Gone => {}
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
        let installed = match held.state {
            State::Waiting => false,
            State::Installed => true,
            State::Leaving { .. } | State::Settling | State::Resting { .. } | State::Revoked { .. } => return,
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
            Ok(end) => self.taken(device, *provision, end),
            Err(StoreError::Busy(_)) => {
                held.pending = Some(provision);
                self.busy.push(device);
            }
            Err(error @ (StoreError::Full(_) | StoreError::IndexFull(_))) => {
                held.pending = Some(provision);
                tracing::debug!(%error, "no room");
                self.no_room.insert(device);
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
        let Some(held) = self.devices.get_mut(&device) else {
            return;
        };
        if held.state == State::Waiting {
            held.state = State::Installed;
            self.status.devices += 1;
            self.no_room.remove(&device);
            let generation = self.plane.status(device).map_or(0, |line| generation(&line));
            held.ticket = Some(self.sieve.enter(device, generation));
        }
        let kept = provision.end().0.saturating_sub(end.0.max(provision.first.0));
        self.status.rows_given += (provision.rows.len() as u64).saturating_sub(kept.into());
        if kept > 0 {
            held.pending = Some(Box::new(tail(provision, kept)));
        }
    }

    /// Evicts devices so that those which wait find places, a moment later; how many.
    pub(super) fn make_room(&mut self, clock: Clock) -> usize {
        let spare_live = self.settings.spare_live_sessions;
        let now_s = clock.boot_ns / 1_000_000_000;
        let wanted = self.no_room.len().min(EVICT_BATCH);
        for evicted in 0..wanted {
            let (plane, devices) = (&self.plane, &self.devices);
            let victim = self.sieve.victim(|device| {
                let held = devices
                    .get(&device)
                    .filter(|held| held.state == State::Installed)?;
                let line = plane.status(device)?;
                let is_live = line.has_session && u64::from(line.lease_until_s) > now_s;
                let is_needed = line.commit.is_busy() || spare_live && is_live || held.asking;
                (!is_needed).then(|| generation(&line))
            });
            let Some(victim) = victim else {
                return evicted;
            };
            self.status.evicted += 1;
            self.dismiss(victim, true);
        }
        wanted
    }

    /// Takes a device out of the data plane.
    fn dismiss(&mut self, device: DeviceId, settle: bool) {
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
                held.state = State::Settling;
                let first = held.pending.take().map(|pending| pending.first);
                self.part(device, first.filter(|_| settle));
            }
            State::Leaving { .. } | State::Settling | State::Resting { .. } | State::Revoked { .. } => {}
        }
    }

    fn depart(&mut self, device: DeviceId) {
        let Some(Held {
            state: State::Leaving { settle },
            mode,
            ..
        }) = self.devices.get(&device)
        else {
            return;
        };
        let settle = *settle && *mode == Mode::Pool;
        // Once REVOKED is in the word, no compare-and-swap on an older one succeeds: the number stands still.
        let line = match self.plane.revoke(device) {
            Ok(()) => self.plane.status(device),
            Err(_) => None,
        };
        match self.plane.wipe(device) {
            Err(StoreError::Busy(_)) => self.busy.push(device),
            _ => {
                let unused_from = line.map(|line| line.commit.idx());
                self.part(device, unused_from.filter(|_| settle));
            }
        }
    }

    /// The device is in the data plane no more. With rows to give back it is kept until that is done.
    fn part(&mut self, device: DeviceId, unused_from: Option<RowIndex>) {
        let Some(held) = self.devices.get_mut(&device) else {
            return;
        };
        if let Some(ticket) = held.ticket.take() {
            self.sieve.leave(ticket);
        }
        if std::mem::take(&mut held.exhausted) {
            self.status.exhausted -= 1;
        }
        self.no_room.remove(&device);
        let Some(unused_from) = unused_from else {
            if held.mode == Mode::Key && held.state != State::Settling {
                let until_ns = self.now_ns.saturating_add(REST_NS);
                held.state = State::Resting { until_ns };
                held.pending = None;
            } else {
                self.devices.remove(&device);
            }
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

    /// The controller knows where these stood.
    pub(super) fn settled(&mut self) {
        for settlement in std::mem::take(&mut self.settling) {
            self.devices.remove(&settlement.device);
        }
    }

    pub(super) fn revoke(&mut self, device: DeviceId, now_ns: u64) {
        let Some(held) = self.devices.get_mut(&device) else {
            self.status.revoked += 1;
            if self.is_expecting() {
                // An answer that was given before may still bring it.
                self.devices.insert(device, Held::revoked(now_ns));
            }
            return;
        };
        match held.state {
            State::Revoked { .. } => return,
            State::Installed => {
                // It is shut out before anything else is done.
                if let Err(error) = self.plane.revoke(device) {
                    tracing::error!(%error, "a revoked device was not in the data plane");
                }
                self.status.devices -= 1;
            }
            State::Waiting | State::Leaving { .. } | State::Settling | State::Resting { .. } => {}
        }
        if let Some(ticket) = held.ticket.take() {
            self.sieve.leave(ticket);
        }
        if std::mem::take(&mut held.exhausted) {
            self.status.exhausted -= 1;
        }
        held.pending = None;
        held.state = State::Revoked { at_ns: now_ns };
        self.no_room.remove(&device);
        self.status.revoked += 1;
        tracing::info!(%device, "revoked");
    }

    /// New credentials: the old ones and the session go at once; the device comes again.
    pub(super) fn replace(&mut self, device: DeviceId, epoch: u32) {
        if self.devices.get(&device).is_some_and(|held| held.epoch < epoch) {
            self.dismiss(device, false);
            // Its last RESPONSE verifies under no key that may come now: there is nothing to rest from.
            if self
                .devices
                .get(&device)
                .is_some_and(|held| matches!(held.state, State::Resting { .. }))
            {
                self.devices.remove(&device);
            }
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
        let waiting: Vec<DeviceId> = self.no_room.iter().take(EVICT_BATCH).copied().collect();
        waiting.into_iter().for_each(|device| self.offer(device));
    }

    /// Queues every device that needs something, whatever events said. Of those for which no row was left, the ones
    /// without a session leave: when they come again, the slow path asks anew.
    pub(super) fn look_through(&mut self, clock: Clock) {
        let now_s = clock.boot_ns / 1_000_000_000;
        let mut low = Vec::new();
        let mut idle = Vec::new();
        for (device, held) in &mut self.devices {
            if held.state != State::Installed || held.mode == Mode::Key {
                continue;
            }
            let Some(line) = self.plane.status(*device) else {
                continue;
            };
            let credit = line.commit.credit().unwrap_or(u32::MAX);
            if line.rows_left <= self.settings.low_rows || credit <= self.settings.low_credit {
                let is_live = line.has_session && u64::from(line.lease_until_s) > now_s;
                match held.exhausted && line.rows_left == 0 && !is_live {
                    true => idle.push(*device),
                    false => low.push(*device),
                }
                if std::mem::take(&mut held.exhausted) {
                    self.status.exhausted -= 1;
                }
            }
        }
        low.into_iter().for_each(|device| self.want(device));
        idle.into_iter().for_each(|device| self.dismiss(device, true));
    }

    /// Forgets evicted key-mode devices whose last RESPONSE nobody accepts any more.
    pub(super) fn end_rests(&mut self) {
        let now_ns = self.now_ns;
        self.devices
            .retain(|_, held| !matches!(held.state, State::Resting { until_ns } if until_ns <= now_ns));
    }

    /// Removes the keys of devices that were revoked some time ago.
    pub(super) fn wipe_revoked(&mut self, now_ns: u64) {
        if self.is_expecting() {
            return;
        }
        let plane = &mut self.plane;
        self.devices.retain(|device, held| {
            let State::Revoked { at_ns } = held.state else {
                return true;
            };
            if now_ns < at_ns.saturating_add(WIPE_AFTER_NS) {
                return true;
            }
            matches!(plane.wipe(*device), Err(StoreError::Busy(_)))
        });
    }

    /// Shuts every device out, and returns where they stood: their rows stay this gateway's.
    pub(super) fn shut_out(&mut self) -> Vec<Settlement> {
        let mut stood = std::mem::take(&mut self.settlements);
        stood.append(&mut self.settling);
        for (device, held) in &self.devices {
            let first_pending = held.pending.as_ref().map(|pending| pending.first);
            let unused_from = match held.state {
                _ if held.mode == Mode::Key => None,
                State::Waiting => first_pending,
                State::Installed | State::Leaving { .. } => match self.plane.revoke(*device) {
                    Ok(()) => self
                        .plane
                        .status(*device)
                        .filter(|line| !line.commit.is_busy())
                        .map(|line| line.commit.idx()),
                    Err(_) => None,
                },
                State::Settling | State::Resting { .. } | State::Revoked { .. } => None,
            };
            stood.extend(unused_from.map(|unused_from| Settlement {
                device: *device,
                epoch: held.epoch,
                unused_from,
                keep: true,
            }));
        }
        stood
    }
}

fn generation(line: &LineStatus) -> u8 {
    line.commit.window_generation()
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
