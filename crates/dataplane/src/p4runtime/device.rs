//! A device's rows and registers on the switch: the counterpart of [`Store`](crate::Store) in memory.
//!
//! The switch executes a batch completely and in order, before, between or after packets. Rows are written before the
//! register that makes them current, and the device's entry is written last.

use std::net::Ipv6Addr;

use linewarden_p4runtime::entity::Update;
use linewarden_protocol::commit::{self, CommitWord};
use linewarden_protocol::frame::{VLAN_TAGGED, ip_from_bytes};
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, SessionId};
use linewarden_protocol::keys::{SessionKey, halves};

use super::P4Runtime;
use super::device_table::Device;
use super::error::SwitchError;
use super::location::Origin;
use super::switch_connection::{DEVICES_PER_READ, UPDATES_PER_WRITE};
use crate::event::Event;
use crate::store::{ClosedSession, KeyedSession, LineStatus, Row, SessionView, StoreError};

/// The mark of a device without a limit: no row number reaches this value.
const NO_MARK: u64 = 1 << 32;

impl P4Runtime {
    pub(super) fn device(&self, device: DeviceId) -> Result<&Device, StoreError> {
        let entry = self.table.devices.get(&device);
        entry.ok_or(StoreError::NotInstalled(device))
    }

    fn check_rows(&self, device: DeviceId, mode: Mode, rows: &[Row]) -> Result<(), StoreError> {
        if device.0 == 0 {
            return Err(StoreError::DeviceZero);
        }
        if self.table.devices.contains_key(&device) {
            return Err(StoreError::AlreadyInstalled(device));
        }
        let max = match mode {
            Mode::Key => 1,
            Mode::Pool => self.config.geometry.ring as usize + 1,
        };
        if (1..=max).contains(&rows.len()) {
            return Ok(());
        }
        Err(StoreError::RowCount {
            device,
            count: rows.len(),
            min: 1,
            max,
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
        let entry = Device {
            cell,
            mode,
            mark: mark.filter(|_| mode == Mode::Pool).map(|mark| mark.0),
            rows: first..first + rows.len() as u64,
            is_revoked: false,
            last_session: None,
            rows_checked_at: next.0,
            ticket: None,
        };
        let result = self.check_usable().and_then(|()| {
            let updates = self.installation_updates(device, &entry, rows)?;
            self.connection.write(&updates)
        });
        self.for_device(device, result)?;
        self.table.devices.insert(device, entry);
        Ok(())
    }

    fn installation_updates(
        &self,
        device: DeviceId,
        entry: &Device,
        rows: &[Row],
    ) -> Result<Vec<Update>, SwitchError> {
        let program = &self.connection.program;
        let cell = entry.cell;
        let mut updates = vec![
            program.set_cell("next_idx", cell, entry.rows.start.into())?,
            program.set_cell("marks", cell, entry.mark.map_or(NO_MARK, u64::from).into())?,
            program.set_cell("session_ids", cell, 0)?,
            program.set_cell("revoked", cell, 0)?,
        ];
        for (idx, row) in entry.rows.clone().zip(rows) {
            updates.push(self.row_update(entry, idx, row)?);
        }
        let line = [cell.into(), u128::from(entry.mode == Mode::Key)];
        updates.push(program.insert(("devices", &[device.0.into()]), ("set_device", &line))?);
        Ok(updates)
    }

    fn row_update(&self, entry: &Device, idx: u64, row: &Row) -> Result<Update, SwitchError> {
        let word = |bytes| u128::from(u64::from_be_bytes(bytes));
        let [key0, key1] = halves(row.auth_key.as_bytes()).map(word);
        let cell = u128::from(entry.cell);
        match entry.mode {
            Mode::Key => self
                .connection
                .program
                .insert(("keys", &[cell]), ("set_key", &[key0, key1])),
            Mode::Pool => self.connection.program.insert(
                ("rows", &[cell, idx.into()]),
                ("set_row", &[word(row.challenge), key0, key1]),
            ),
        }
    }

    /// The row that the device spends next.
    fn next_row(&self, entry: &Device) -> Result<u32, SwitchError> {
        let [next] = self.connection.read_array([("next_idx", entry.cell)])?;
        Ok(next as u32)
    }

    pub(super) fn refill_rows(
        &mut self,
        device: DeviceId,
        first: RowIndex,
        rows: &[Row],
    ) -> Result<RowIndex, StoreError> {
        let entry = self.device(device)?.clone();
        if entry.is_revoked {
            return Err(StoreError::Revoked(device));
        }
        let idx_of = |end: u64| RowIndex(u32::try_from(end).unwrap_or(u32::MAX));
        if entry.mode == Mode::Key {
            return Ok(idx_of(entry.rows.end));
        }
        let result = self.check_usable().and_then(|()| {
            let next = self.next_row(&entry)?;
            self.refill_from(&entry, next, (first.0.into(), rows))
        });
        let rows = self.for_device(device, result)?;
        let end = idx_of(rows.end);
        if let Some(entry) = self.table.devices.get_mut(&device) {
            // The device has not spent rows that this refill skipped.
            entry.rows_checked_at = entry
                .rows_checked_at
                .max(u32::try_from(rows.start).unwrap_or(u32::MAX));
            entry.rows = rows;
        }
        Ok(end)
    }

    /// Adds the given rows that continue the range of rows on the switch, as many as fit. If the switch has no unspent
    /// rows, the range starts at the first unspent row that is given. Deletes spent rows. Returns the range of rows
    /// that the switch then holds.
    fn refill_from(
        &self,
        entry: &Device,
        next: u32,
        (first, rows): (u64, &[Row]),
    ) -> Result<std::ops::Range<u64>, SwitchError> {
        let next = u64::from(next);
        let is_empty = next >= entry.rows.end;
        let mut range = entry.rows.clone();
        let mut updates = Vec::new();
        let numbered_rows = || (first..).zip(rows);
        if is_empty && let Some((idx, _)) = numbered_rows().find(|(idx, _)| *idx >= next.max(entry.rows.end))
        {
            range = idx..idx;
        } else {
            range.start = range.start.max(next.min(range.end));
        }
        // Deletions precede insertions, so that a full table has room.
        for idx in entry.rows.start..entry.rows.end.min(next) {
            updates.push(
                self.connection
                    .program
                    .delete("rows", &[entry.cell.into(), idx.into()])?,
            );
        }
        let last = next.max(range.start) + u64::from(self.config.geometry.ring);
        for (idx, row) in numbered_rows() {
            if idx == range.end && idx <= last {
                updates.push(self.row_update(entry, idx, row)?);
                range.end += 1;
            }
        }
        if is_empty && range.start > next {
            // The pipeline does not write this register while the device has no row.
            let cell = self
                .connection
                .program
                .set_cell("next_idx", entry.cell, range.start.into())?;
            updates.push(cell);
        }
        self.connection.write(&updates)?;
        Ok(range)
    }

    /// Removes the rows below `next` from the device's entry. Returns the updates that delete these rows from the switch.
    pub(super) fn delete_spent_rows(
        &mut self,
        device: DeviceId,
        next: u32,
    ) -> Result<Vec<Update>, SwitchError> {
        let Some(entry) = self.table.devices.get_mut(&device) else {
            return Ok(Vec::new());
        };
        let spent = entry.rows.start..entry.rows.end.min(next.into());
        if entry.mode == Mode::Key || spent.is_empty() {
            return Ok(Vec::new());
        }
        entry.rows.start = spent.end;
        let cell = u128::from(entry.cell);
        let delete = |idx: u64| self.connection.program.delete("rows", &[cell, idx.into()]);
        spent.map(delete).collect()
    }

    /// Deletes the spent rows of all devices according to the registers, because digests can be lost. Reports devices
    /// that have spent rows since the previous call and need more rows. Marks are advanced on request (LAP/1 1.4.6); a device
    /// whose request has no effect repeats the request.
    pub(super) fn reconcile(&mut self) -> Result<(), SwitchError> {
        let low_rows = self.live.low_rows;
        let pools = self
            .table
            .devices
            .iter()
            .filter(|(_, entry)| entry.mode == Mode::Pool);
        let cells: Vec<(DeviceId, u32)> = pools.map(|(device, entry)| (*device, entry.cell)).collect();
        let mut nexts = Vec::with_capacity(cells.len());
        for batch in cells.chunks(DEVICES_PER_READ) {
            nexts.extend(
                self.connection
                    .read_column("next_idx", batch.iter().map(|(_, cell)| *cell))?,
            );
        }
        let mut updates = Vec::new();
        for ((device, _), next) in cells.into_iter().zip(nexts) {
            let next = next as u32;
            updates.extend(self.delete_spent_rows(device, next)?);
            if let Some(entry) = self.table.devices.get_mut(&device)
                && std::mem::replace(&mut entry.rows_checked_at, next) != next
                && let Some(kind) = entry.lacks_rows(next, low_rows)
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
            .try_for_each(|batch| self.connection.write(batch))
    }

    pub(super) fn move_mark(&mut self, device: DeviceId, mark: RowIndex) -> Result<(), StoreError> {
        let entry = self.device(device)?;
        let Some(before) = entry.mark else {
            return Ok(());
        };
        let (cell, mark) = (entry.cell, before.max(mark.0));
        let result = self.check_usable().and_then(|()| {
            let update = self.connection.program.set_cell("marks", cell, mark.into())?;
            self.connection.write(&[update])
        });
        self.for_device(device, result)?;
        if let Some(entry) = self.table.devices.get_mut(&device) {
            entry.mark = Some(mark);
        }
        Ok(())
    }

    pub(super) fn revoke_device(&mut self, device: DeviceId) -> Result<(), StoreError> {
        let cell = self.device(device)?.cell;
        let result = self.check_usable().and_then(|()| {
            let update = self.connection.program.set_cell("revoked", cell, 1)?;
            self.connection.write(&[update])
        });
        self.for_device(device, result)?;
        if let Some(entry) = self.table.devices.get_mut(&device) {
            entry.is_revoked = true;
        }
        Ok(())
    }

    /// Closes `session` if it is the device's current session. Returns whether this call closed the session. The operation
    /// is not atomic with respect to the pipeline: if the device opens a session at the same time, that session may be
    /// closed instead. The device then opens another session.
    pub(super) fn close_if_current(
        &mut self,
        device: DeviceId,
        session: SessionId,
    ) -> Result<bool, StoreError> {
        let cell = self.device(device)?.cell;
        let wire = u128::from(u64::from_be_bytes(session.to_wire()));
        let closed = self.check_usable().and_then(|()| {
            let [id] = self.connection.read_array([("session_ids", cell)])?;
            if id == wire {
                let update = self.connection.program.set_cell("session_ids", cell, 0)?;
                self.connection.write(&[update])?;
            }
            Ok(id == wire)
        });
        let closed = self.for_device(device, closed)?;
        if closed && let Some(entry) = self.table.devices.get_mut(&device) {
            entry.last_session = None;
        }
        Ok(closed)
    }

    /// Closes the sessions at addresses that the gateway's machine has now (LAP/1 1.4.13). Returns the closed
    /// sessions.
    pub(super) fn close_sessions_at_own(&mut self) -> Result<Vec<ClosedSession>, SwitchError> {
        let mut entries: Vec<(&DeviceId, &mut Device)> = self.table.devices.iter_mut().collect();
        let mut closed = Vec::new();
        for batch in entries.chunks_mut(DEVICES_PER_READ) {
            let cells = batch
                .iter()
                .flat_map(|(_, entry)| ["session_ids", "addresses"].map(|name| (name, entry.cell)));
            let registers = self.connection.read_cells(&cells.collect::<Vec<_>>())?;
            let mut updates = Vec::new();
            for ((device, entry), [id, address]) in batch.iter_mut().zip(registers.as_chunks().0) {
                let address = ip_from_bytes(address.to_be_bytes());
                let session = SessionId::from_wire((*id as u64).to_be_bytes());
                let Some(session) = session.filter(|_| self.live.sources.is_own_address(address)) else {
                    continue;
                };
                updates.push(self.connection.program.set_cell("session_ids", entry.cell, 0)?);
                entry.last_session = None;
                let device = **device;
                closed.push(ClosedSession {
                    device,
                    session,
                    address,
                });
            }
            if !updates.is_empty() {
                self.connection.write(&updates)?;
            }
        }
        Ok(closed)
    }

    pub(super) fn remove(&mut self, device: DeviceId) -> Result<(), StoreError> {
        let entry = self.device(device)?.clone();
        let result = self.check_usable().and_then(|()| {
            self.save_location(device)?;
            let updates = self.removal_updates(device, &entry)?;
            self.connection.write(&updates)
        });
        self.for_device(device, result)?;
        self.table.devices.remove(&device);
        self.table.cells.retire(entry.cell);
        Ok(())
    }

    fn removal_updates(&self, device: DeviceId, entry: &Device) -> Result<Vec<Update>, SwitchError> {
        let program = &self.connection.program;
        let cell = entry.cell;
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
        match entry.mode {
            Mode::Key => updates.push(program.delete("keys", &[cell.into()])?),
            Mode::Pool => {
                for idx in entry.rows.clone() {
                    updates.push(program.delete("rows", &[cell.into(), idx.into()])?);
                }
            }
        }
        Ok(updates)
    }

    pub(super) fn line_statuses(&self, devices: &[DeviceId]) -> Result<Vec<Option<LineStatus>>, SwitchError> {
        self.check_usable()?;
        let mut statuses = Vec::with_capacity(devices.len());
        for batch in devices.chunks(DEVICES_PER_READ) {
            let entries = || batch.iter().map(|device| self.table.devices.get(device));
            let names = ["next_idx", "session_ids", "session_ends"];
            let cells = entries()
                .flatten()
                .flat_map(|entry| names.map(|name| (name, entry.cell)));
            let registers = self.connection.read_cells(&cells.collect::<Vec<_>>())?;
            let mut registers = registers.as_chunks().0.iter();
            statuses.extend(entries().map(|entry| Some(self.line_status(entry?, registers.next()?))));
        }
        Ok(statuses)
    }

    /// Converts the registers of next row, session id and end of the session.
    fn line_status(&self, entry: &Device, [next, session, until_us]: &[u128; 3]) -> LineStatus {
        let (next, session, until_us) = (*next, *session, *until_us);
        let rows_left = entry.rows_left(next as u32);
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let flags = flag(rows_left > 0, commit::VALID)
            | flag(entry.is_revoked, commit::REVOKED)
            | flag(entry.mode == Mode::Key, commit::KEY);
        // Each winner advances one row, so the row number serves as the generation.
        let word = CommitWord::new(RowIndex(next as u32), next as u32, flags);
        LineStatus {
            commit: word.with_credit_up_to(entry.mark.map(RowIndex)),
            rows_left,
            has_session: session != 0,
            session_until_s: (self.clock.boot_us(until_us as u64) / 1_000_000) as u32,
        }
    }

    pub(super) fn session_view(&self, device: DeviceId) -> Result<Option<SessionView>, SwitchError> {
        let session = self.sessions_with_keys(&[device])?.pop().flatten();
        Ok(session.map(|session| session.view))
    }

    pub(super) fn sessions_with_keys(
        &self,
        devices: &[DeviceId],
    ) -> Result<Vec<Option<KeyedSession>>, SwitchError> {
        self.check_usable()?;
        let mut sessions = Vec::with_capacity(devices.len());
        for batch in devices.chunks(DEVICES_PER_READ) {
            let cells = || batch.iter().filter_map(|device| self.active_cell(*device));
            let names = [
                "session_ids",
                "addresses",
                "places",
                "session_ends",
                "session_lifetimes",
                "session_key0s",
                "session_key1s",
            ];
            let register_cells: Vec<_> = cells().flat_map(|cell| names.map(|name| (name, cell))).collect();
            let first_read = self.connection.read_cells(&register_cells)?;
            // The values are valid only if both reads return the same values.
            let second_read = self.connection.read_cells(&register_cells)?;
            let (mut first_read, mut second_read) =
                (first_read.as_chunks().0.iter(), second_read.as_chunks().0.iter());
            let session = |device: &DeviceId| {
                self.active_cell(*device)?;
                let (registers, registers_after) = (first_read.next()?, second_read.next()?);
                self.keyed_session(*device, registers)
                    .filter(|_| registers == registers_after)
            };
            sessions.extend(batch.iter().map(session));
        }
        Ok(sessions)
    }

    fn keyed_session(
        &self,
        device: DeviceId,
        &[id, address, place, until_us, lifetime_s, key0, key1]: &[u128; 7],
    ) -> Option<KeyedSession> {
        let began_us = (until_us as u64).saturating_sub(lifetime_s as u64 * 1_000_000);
        let origin = Origin::unpack(place);
        let vlan = |word: u16| (word & VLAN_TAGGED != 0).then_some(word & (VLAN_TAGGED - 1));
        let view = SessionView {
            id: SessionId::from_wire((id as u64).to_be_bytes())?,
            addr: address.to_be_bytes(),
            session_until_s: (self.clock.boot_us(until_us as u64) / 1_000_000) as u32,
            proven_before_ns: (self.clock.boot_us(began_us) + 1) * 1000,
            port: origin.port,
            mac: origin.mac,
            is_bound: origin.is_bound,
            vlans: origin.vlans.map(vlan),
        };
        let key = SessionKey::from_bytes((key0 << 64 | key1).to_be_bytes());
        let ticket = self.table.devices.get(&device).and_then(|entry| entry.ticket);
        let ticket = ticket.filter(|(session, _)| *session == view.id);
        Some(KeyedSession {
            view,
            key,
            ticket_serial: ticket.map_or(0, |(_, serial)| serial),
        })
    }
}
