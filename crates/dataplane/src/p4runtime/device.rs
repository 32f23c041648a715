//! A device's rows and registers on the switch: what [`Store`](crate::Store) does in memory.
//!
//! The switch executes a batch completely and in order, before, between or after packets. Rows are written before the
//! register that makes them current, and the device's entry is written last.

use std::net::Ipv6Addr;

use linewarden_p4runtime::entity::Update;
use linewarden_protocol::commit::{self, CommitWord};
use linewarden_protocol::frame::{Mac, VLAN_TAGGED, ip_from_bytes};
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, SessionId};
use linewarden_protocol::keys::{SessionKey, halves};

use super::device_table::Device;
use super::{P4Runtime, SwitchError};
use crate::event::Event;
use crate::store::{ClosedSession, KeyedSession, LineStatus, Row, SessionView, StoreError};

/// Represents no mark: no row number reaches it.
const NO_MARK: u64 = 1 << 32;
/// Updates in one batch.
pub(super) const UPDATES_PER_WRITE: usize = 4096;
/// Devices in one read call.
pub(super) const DEVICES_PER_READ: usize = 4096;

impl P4Runtime {
    pub(super) fn device(&self, device: DeviceId) -> Result<&Device, StoreError> {
        let found = self.table.devices.get(&device);
        found.ok_or(StoreError::NotInstalled(device))
    }

    fn check_rows(&self, device: DeviceId, mode: Mode, rows: &[Row]) -> Result<(), StoreError> {
        if device.0 == 0 {
            return Err(StoreError::DeviceZero);
        }
        if self.table.devices.contains_key(&device) {
            return Err(StoreError::AlreadyInstalled(device));
        }
        let most = match mode {
            Mode::Key => 1,
            Mode::Pool => self.config.geometry.ring as usize + 1,
        };
        if (1..=most).contains(&rows.len()) {
            return Ok(());
        }
        Err(StoreError::RowCount {
            device,
            given: rows.len(),
            least: 1,
            most,
        })
    }

    pub(super) fn install_rows(
        &mut self,
        device: DeviceId,
        mode: Mode,
        next: RowIndex,
        rows: &[Row],
        mark: Option<RowIndex>,
    ) -> Result<(), StoreError> {
        self.check_rows(device, mode, rows)?;
        let cell = self.table.cells.take().ok_or(StoreError::NoFreeSlot(device))?;
        let first = u64::from(next.0);
        let held = Device {
            cell,
            mode,
            mark: mark.filter(|_| mode == Mode::Pool).map(|mark| mark.0),
            rows: first..first + rows.len() as u64,
            is_revoked: false,
            last_session: None,
            rows_reported_at: next.0,
            ticket: None,
        };
        let written = self.check_usable().and_then(|()| {
            let updates = self.installation(device, &held, rows)?;
            self.link.write(&updates)
        });
        self.for_device(device, written)?;
        self.table.devices.insert(device, held);
        Ok(())
    }

    fn installation(
        &self,
        device: DeviceId,
        held: &Device,
        rows: &[Row],
    ) -> Result<Vec<Update>, SwitchError> {
        let program = &self.link.program;
        let cell = held.cell;
        let mut updates = vec![
            program.set_cell("next_idx", cell, held.rows.start.into())?,
            program.set_cell("marks", cell, held.mark.map_or(NO_MARK, u64::from).into())?,
            program.set_cell("session_ids", cell, 0)?,
            program.set_cell("revoked", cell, 0)?,
        ];
        for (idx, row) in held.rows.clone().zip(rows) {
            updates.push(self.row_update(held, idx, row)?);
        }
        let line = [cell.into(), u128::from(held.mode == Mode::Key)];
        updates.push(program.insert(("devices", &[device.0.into()]), ("set_device", &line))?);
        Ok(updates)
    }

    fn row_update(&self, held: &Device, idx: u64, row: &Row) -> Result<Update, SwitchError> {
        let word = |bytes| u128::from(u64::from_be_bytes(bytes));
        let [key0, key1] = halves(row.auth_key.as_bytes()).map(word);
        let cell = u128::from(held.cell);
        match held.mode {
            Mode::Key => self
                .link
                .program
                .insert(("keys", &[cell]), ("set_key", &[key0, key1])),
            Mode::Pool => self.link.program.insert(
                ("rows", &[cell, idx.into()]),
                ("set_row", &[word(row.challenge), key0, key1]),
            ),
        }
    }

    /// The row that the device spends next.
    fn next_row(&self, held: &Device) -> Result<u32, SwitchError> {
        let [next] = self.link.read_array([("next_idx", held.cell)])?;
        Ok(next as u32)
    }

    pub(super) fn refill_rows(
        &mut self,
        device: DeviceId,
        first: RowIndex,
        rows: &[Row],
    ) -> Result<RowIndex, StoreError> {
        let held = self.device(device)?.clone();
        if held.is_revoked {
            return Err(StoreError::Revoked(device));
        }
        let idx_of = |end: u64| RowIndex(u32::try_from(end).unwrap_or(u32::MAX));
        if held.mode == Mode::Key {
            return Ok(idx_of(held.rows.end));
        }
        let refilled = self.check_usable().and_then(|()| {
            let next = self.next_row(&held)?;
            self.refill_from(&held, next, (first.0.into(), rows))
        });
        let rows = self.for_device(device, refilled)?;
        let end = idx_of(rows.end);
        if let Some(held) = self.table.devices.get_mut(&device) {
            // Rows that a refill skipped were not spent.
            held.rows_reported_at = held
                .rows_reported_at
                .max(u32::try_from(rows.start).unwrap_or(u32::MAX));
            held.rows = rows;
        }
        Ok(end)
    }

    /// Writes the rows that fit and follow those on the switch or, if none is left there, the rows from the first
    /// given one on. Spent rows are deleted. Returns the range of rows that the switch then holds.
    fn refill_from(
        &self,
        held: &Device,
        next: u32,
        (first, rows): (u64, &[Row]),
    ) -> Result<std::ops::Range<u64>, SwitchError> {
        let next = u64::from(next);
        let is_empty = next >= held.rows.end;
        let mut range = held.rows.clone();
        let mut updates = Vec::new();
        let given = || (first..).zip(rows);
        if is_empty && let Some((idx, _)) = given().find(|(idx, _)| *idx >= next.max(held.rows.end)) {
            range = idx..idx;
        } else {
            range.start = range.start.max(next.min(range.end));
        }
        // Deletions first, so that a full table has room.
        for idx in held.rows.start..held.rows.end.min(next) {
            updates.push(
                self.link
                    .program
                    .delete("rows", &[held.cell.into(), idx.into()])?,
            );
        }
        let last = next.max(range.start) + u64::from(self.config.geometry.ring);
        for (idx, row) in given() {
            if idx == range.end && idx <= last {
                updates.push(self.row_update(held, idx, row)?);
                range.end += 1;
            }
        }
        if is_empty && range.start > next {
            // The pipeline does not write this register while it has no row for it.
            let cell = self
                .link
                .program
                .set_cell("next_idx", held.cell, range.start.into())?;
            updates.push(cell);
        }
        self.link.write(&updates)?;
        Ok(range)
    }

    /// The updates that delete the rows below `next` from the switch. These rows count as deleted from here on.
    pub(super) fn delete_spent_rows(
        &mut self,
        device: DeviceId,
        next: u32,
    ) -> Result<Vec<Update>, SwitchError> {
        let Some(held) = self.table.devices.get_mut(&device) else {
            return Ok(Vec::new());
        };
        let spent = held.rows.start..held.rows.end.min(next.into());
        if held.mode == Mode::Key || spent.is_empty() {
            return Ok(Vec::new());
        }
        held.rows.start = spent.end;
        let cell = u128::from(held.cell);
        let delete = |idx: u64| self.link.program.delete("rows", &[cell, idx.into()]);
        spent.map(delete).collect()
    }

    /// Deletes the spent rows of all devices according to the registers, because digests can be lost. Reports devices
    /// that have spent rows since and lack more. Marks are advanced on request (LAP/1 1.4.6); a device whose request
    /// has no effect repeats it.
    pub(super) fn reconcile(&mut self) -> Result<(), SwitchError> {
        let low_rows = self.live.low_rows;
        let pools = self
            .table
            .devices
            .iter()
            .filter(|(_, held)| held.mode == Mode::Pool);
        let cells: Vec<(DeviceId, u32)> = pools.map(|(device, held)| (*device, held.cell)).collect();
        let mut nexts = Vec::with_capacity(cells.len());
        for some in cells.chunks(DEVICES_PER_READ) {
            nexts.extend(
                self.link
                    .read_column("next_idx", some.iter().map(|(_, cell)| *cell))?,
            );
        }
        let mut updates = Vec::new();
        for ((device, _), next) in cells.into_iter().zip(nexts) {
            let next = next as u32;
            updates.extend(self.delete_spent_rows(device, next)?);
            if let Some(held) = self.table.devices.get_mut(&device)
                && std::mem::replace(&mut held.rows_reported_at, next) != next
                && let Some(kind) = held.lacks_rows(next, low_rows)
            {
                self.low_row_events.push(Event {
                    kind,
                    device,
                    idx: RowIndex(next),
                    source: Ipv6Addr::UNSPECIFIED.into(),
                    ingress: 0,
                });
            }
        }
        updates
            .chunks(UPDATES_PER_WRITE)
            .try_for_each(|some| self.link.write(some))
    }

    pub(super) fn move_mark(&mut self, device: DeviceId, mark: RowIndex) -> Result<(), StoreError> {
        let held = self.device(device)?;
        let Some(before) = held.mark else {
            return Ok(());
        };
        let (cell, mark) = (held.cell, before.max(mark.0));
        let written = self.check_usable().and_then(|()| {
            let update = self.link.program.set_cell("marks", cell, mark.into())?;
            self.link.write(&[update])
        });
        self.for_device(device, written)?;
        if let Some(held) = self.table.devices.get_mut(&device) {
            held.mark = Some(mark);
        }
        Ok(())
    }

    pub(super) fn revoke_device(&mut self, device: DeviceId) -> Result<(), StoreError> {
        let cell = self.device(device)?.cell;
        let written = self.check_usable().and_then(|()| {
            let update = self.link.program.set_cell("revoked", cell, 1)?;
            self.link.write(&[update])
        });
        self.for_device(device, written)?;
        if let Some(held) = self.table.devices.get_mut(&device) {
            held.is_revoked = true;
        }
        Ok(())
    }

    /// Not atomic with respect to the pipeline: a session that the device opens at the same time may be closed
    /// instead, and the device opens another.
    pub(super) fn close(&mut self, device: DeviceId, session: SessionId) -> Result<bool, StoreError> {
        let cell = self.device(device)?.cell;
        let wire = u128::from(u64::from_be_bytes(session.to_wire()));
        let closed = self.check_usable().and_then(|()| {
            let [id] = self.link.read_array([("session_ids", cell)])?;
            if id == wire {
                let update = self.link.program.set_cell("session_ids", cell, 0)?;
                self.link.write(&[update])?;
            }
            Ok(id == wire)
        });
        let closed = self.for_device(device, closed)?;
        if closed && let Some(held) = self.table.devices.get_mut(&device) {
            held.last_session = None;
        }
        Ok(closed)
    }

    /// Closes the sessions at addresses that the gateway's machine has now (LAP/1 1.4.13). Returns the closed
    /// sessions.
    pub(super) fn close_sessions_at_own(&mut self) -> Result<Vec<ClosedSession>, SwitchError> {
        let mut held: Vec<(&DeviceId, &mut Device)> = self.table.devices.iter_mut().collect();
        let mut closed = Vec::new();
        for some in held.chunks_mut(DEVICES_PER_READ) {
            let cells = some
                .iter()
                .flat_map(|(_, held)| ["session_ids", "addresses"].map(|name| (name, held.cell)));
            let read = self.link.read_cells(&cells.collect::<Vec<_>>())?;
            let mut updates = Vec::new();
            for ((device, held), [id, address]) in some.iter_mut().zip(read.as_chunks().0) {
                let address = ip_from_bytes(address.to_be_bytes());
                let session = SessionId::from_wire((*id as u64).to_be_bytes());
                let Some(session) = session.filter(|_| self.live.sources.is_own_address(address)) else {
                    continue;
                };
                updates.push(self.link.program.set_cell("session_ids", held.cell, 0)?);
                held.last_session = None;
                let device = **device;
                closed.push(ClosedSession {
                    device,
                    session,
                    address,
                });
            }
            if !updates.is_empty() {
                self.link.write(&updates)?;
            }
        }
        Ok(closed)
    }

    pub(super) fn remove(&mut self, device: DeviceId) -> Result<(), StoreError> {
        let held = self.device(device)?.clone();
        let written = self.check_usable().and_then(|()| {
            self.save_location(device)?;
            let updates = self.removal(device, &held)?;
            self.link.write(&updates)
        });
        self.for_device(device, written)?;
        self.table.devices.remove(&device);
        self.table.cells.retire(held.cell);
        Ok(())
    }

    fn removal(&self, device: DeviceId, held: &Device) -> Result<Vec<Update>, SwitchError> {
        let program = &self.link.program;
        let cell = held.cell;
        let mut updates = vec![
            program.set_cell("revoked", cell, 1)?,
            program.delete("devices", &[device.0.into()])?,
        ];
        for name in [
            "session_ids",
            "session_key0s",
            "session_key1s",
            "tag1s",
            "addresses",
            "places",
            "gateway_macs",
            "gateway_addresses",
        ] {
            updates.push(program.set_cell(name, cell, 0)?);
        }
        match held.mode {
            Mode::Key => updates.push(program.delete("keys", &[cell.into()])?),
            Mode::Pool => {
                for idx in held.rows.clone() {
                    updates.push(program.delete("rows", &[cell.into(), idx.into()])?);
                }
            }
        }
        Ok(updates)
    }

    pub(super) fn line_statuses(&self, devices: &[DeviceId]) -> Result<Vec<Option<LineStatus>>, SwitchError> {
        self.check_usable()?;
        let mut found = Vec::with_capacity(devices.len());
        for some in devices.chunks(DEVICES_PER_READ) {
            let held = || some.iter().map(|device| self.table.devices.get(device));
            let names = ["next_idx", "session_ids", "session_ends"];
            let cells = held()
                .flatten()
                .flat_map(|held| names.map(|name| (name, held.cell)));
            let read = self.link.read_cells(&cells.collect::<Vec<_>>())?;
            let mut read = read.as_chunks().0.iter();
            found.extend(held().map(|held| Some(self.line_status(held?, read.next()?))));
        }
        Ok(found)
    }

    /// From the next row, the session id and the end of the session.
    fn line_status(&self, held: &Device, [next, session, until_us]: &[u128; 3]) -> LineStatus {
        let (next, session, until_us) = (*next, *session, *until_us);
        let rows_left = held.rows_left(next as u32);
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let flags = flag(rows_left > 0, commit::VALID)
            | flag(held.is_revoked, commit::REVOKED)
            | flag(held.mode == Mode::Key, commit::KEY);
        // Each win advances one row.
        let word = CommitWord::new(RowIndex(next as u32), next as u32, flags);
        LineStatus {
            commit: word.with_credit_up_to(held.mark.map(RowIndex)),
            rows_left,
            has_session: session != 0,
            session_until_s: (self.clock.boot_us(until_us as u64) / 1_000_000) as u32,
        }
    }

    pub(super) fn session_view(&self, device: DeviceId) -> Result<Option<SessionView>, SwitchError> {
        let found = self.sessions_with_keys(&[device])?.pop().flatten();
        Ok(found.map(|session| session.view))
    }

    pub(super) fn sessions_with_keys(
        &self,
        devices: &[DeviceId],
    ) -> Result<Vec<Option<KeyedSession>>, SwitchError> {
        self.check_usable()?;
        let mut found = Vec::with_capacity(devices.len());
        for some in devices.chunks(DEVICES_PER_READ) {
            let cells = || some.iter().filter_map(|device| self.active_cell(*device));
            let names = [
                "session_ids",
                "addresses",
                "places",
                "session_ends",
                "session_lifetimes",
                "session_key0s",
                "session_key1s",
            ];
            let all: Vec<_> = cells().flat_map(|cell| names.map(|name| (name, cell))).collect();
            let read = self.link.read_cells(&all)?;
            // Valid only if nothing was written in between.
            let again = self.link.read_cells(&all)?;
            let (mut read, mut again) = (read.as_chunks().0.iter(), again.as_chunks().0.iter());
            let session = |device: &DeviceId| {
                self.active_cell(*device)?;
                let (held, again) = (read.next()?, again.next()?);
                self.keyed_session(*device, held).filter(|_| held == again)
            };
            found.extend(some.iter().map(session));
        }
        Ok(found)
    }

    fn keyed_session(
        &self,
        device: DeviceId,
        &[id, address, place, until_us, lease_s, key0, key1]: &[u128; 7],
    ) -> Option<KeyedSession> {
        let began_us = (until_us as u64).saturating_sub(lease_s as u64 * 1_000_000);
        let from = Origin::unpack(place);
        let vlan = |word: u16| (word & VLAN_TAGGED != 0).then_some(word & (VLAN_TAGGED - 1));
        let view = SessionView {
            id: SessionId::from_wire((id as u64).to_be_bytes())?,
            addr: address.to_be_bytes(),
            session_until_s: (self.clock.boot_us(until_us as u64) / 1_000_000) as u32,
            proven_before_ns: (self.clock.boot_us(began_us) + 1) * 1000,
            port: from.port,
            mac: from.mac,
            is_bound: from.is_bound,
            vlans: from.vlans.map(vlan),
        };
        let key = SessionKey::from_bytes((key0 << 64 | key1).to_be_bytes());
        let ticket = self.table.devices.get(&device).and_then(|held| held.ticket);
        let ticket = ticket.filter(|(session, _)| *session == view.id);
        Some(KeyedSession {
            view,
            key,
            ticket_serial: ticket.map_or(0, |(_, serial)| serial),
        })
    }
}

/// `place` of lap.p4: the origin of a session's RESPONSE, without its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub is_bound: bool,
    /// UDP port.
    pub port: u16,
    /// Port of the switch, 9 bits.
    pub ingress: u16,
    /// Outer and inner tag, with `VLAN_TAGGED` set if present.
    pub vlans: [u16; 2],
    pub mac: Mac,
}

impl Origin {
    pub fn unpack(place: u128) -> Self {
        let [_, _, mac @ ..] = (place as u64 & 0xffff_ffff_ffff).to_be_bytes();
        Self {
            is_bound: place >> 105 & 1 == 1,
            port: (place >> 89) as u16,
            ingress: (place >> 80) as u16 & 0x1ff,
            vlans: [(place >> 64) as u16, (place >> 48) as u16],
            mac,
        }
    }
}
