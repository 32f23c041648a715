//! What user space does, on the oracle and all data planes alike.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use linewarden_dataplane::store::Row as StoreRow;
use linewarden_dataplane::{DataPlane, StoreError};
use linewarden_protocol::commit::CommitWord;
use linewarden_protocol::frame::parse;
use linewarden_protocol::gateway::{Checked, DeviceInstall, FreshValue, Row};
use linewarden_protocol::ids::{Mode, RowIndex, SessionId};
use linewarden_protocol::wire::{self, Message};

use super::{INGRESS, Installed, World, read_clock, real_now};
use crate::support::device::Dev;
use crate::support::shape::RING;

impl World {
    pub(super) fn store_rows(device: Dev, mode: Mode, first: u32, count: u32) -> Vec<StoreRow> {
        let row = |idx| StoreRow {
            challenge: device.challenge(mode, RowIndex(idx)),
            auth_key: device.auth_key(mode, RowIndex(idx)),
        };
        (first..=u32::MAX).take(count as usize).map(row).collect()
    }

    fn oracle_rows(device: Dev, mode: Mode, first: u32, count: u32) -> Vec<Row> {
        let row = |idx| Row {
            challenge: device.challenge(mode, RowIndex(idx)),
            auth_key: device.auth_key(mode, RowIndex(idx)),
        };
        (first..=u32::MAX).take(count as usize).map(row).collect()
    }

    fn install(&mut self, device: Dev, mode: Mode, next: u32, rows: u32, mark: Option<RowIndex>) -> bool {
        let install = DeviceInstall {
            device: device.id(),
            mode,
            next_idx: RowIndex(next),
            rows: Self::oracle_rows(device, mode, next, rows),
            mark,
        };
        let is_ok = self.oracle.install(install).is_ok();
        let store_rows = Self::store_rows(device, mode, next, rows);
        let mut generations = [0; 3];
        self.each_plane(|plane, at| {
            let result = plane.install(device.id(), mode, RowIndex(next), &store_rows, mark);
            assert_eq!(result.is_ok(), is_ok, "{}: {result:?}", plane.name());
            if is_ok {
                generations[at] = plane.status(device.id()).unwrap().commit.generation();
            }
        });
        if is_ok {
            let installed = Installed {
                mode,
                generations,
                end: next.saturating_add(rows),
            };
            self.installed.insert(device, installed);
            self.forget_numbers(device);
            self.compare_line(device);
        }
        is_ok
    }

    /// A slot may have been another device's, in a generation of the same number: then numbers go on from there, which
    /// harms nobody and which the oracle, that has no slots, does not do.
    fn forget_numbers(&self, device: Dev) {
        if let Some(xdp) = &self.xdp {
            let (_, place) = xdp.xdp.store().line(device.id()).unwrap();
            if let Some(word) = xdp.xdp.down(place.slot) {
                word.store(0, Release);
            }
        }
    }

    /// Installs a device with consecutive rows.
    pub fn pool(&mut self, device: Dev, next: u32, rows: u32) {
        assert!(self.install(device, Mode::Pool, next, rows, None));
    }

    /// Likewise, but only the first `credit` of them may be spent.
    pub fn pool_on_credit(&mut self, device: Dev, next: u32, rows: u32, credit: u32) {
        let mark = RowIndex(next.saturating_add(credit).min(u32::MAX - 1));
        assert!(self.install(device, Mode::Pool, next, rows, Some(mark)));
    }

    /// Moves the mark to `ahead` of the current row.
    pub fn grant(&mut self, device: Dev, ahead: u32) {
        if !self.installed.contains_key(&device) {
            return;
        }
        let mark = RowIndex(
            self.commit(device)
                .idx()
                .0
                .saturating_add(ahead)
                .min(u32::MAX - 1),
        );
        self.oracle.grant(device.id(), mark).unwrap();
        self.each_plane(|plane, _| plane.grant(device.id(), mark).unwrap());
        self.compare_line(device);
    }

    /// Installs a key-mode device.
    pub fn key(&mut self, device: Dev, next: u32) {
        assert!(self.install(device, Mode::Key, next, 1, None));
    }

    pub fn is_installed(&self, device: Dev) -> bool {
        self.installed.contains_key(&device)
    }

    /// Gives a pool device the rows that follow those it was given, `skip` left out, `count` at most; whether it was
    /// accepted.
    pub fn refill(&mut self, device: Dev, skip: u32, count: u32) -> bool {
        let Some(installed) = self.installed.get(&device).copied() else {
            return false;
        };
        let commit = self.commit(device);
        // A winner that never finished leaves the ring as it was.
        let rows_ahead = self.oracle.line(device.id()).unwrap().rows_ahead;
        let (base, first) = if commit.is_empty() && rows_ahead == 0 {
            let first = installed.end.saturating_add(skip);
            (first, first)
        } else {
            (commit.idx().0, installed.end)
        };
        let room = (u64::from(base) + u64::from(RING) + 1).saturating_sub(u64::from(first));
        let count = count.min(u32::try_from(room).unwrap()).min(u32::MAX - first);
        if count == 0 || installed.mode == Mode::Key {
            return false;
        }
        let rows = Self::oracle_rows(device, Mode::Pool, first, count);
        let refilled = self.oracle.refill(device.id(), RowIndex(first), rows);
        let is_ok = refilled.is_ok();
        assert!(is_ok || commit.is_revoked(), "{refilled:?}");
        let rows = Self::store_rows(device, Mode::Pool, first, count);
        self.each_plane(|plane, _| {
            let result = plane.refill(device.id(), RowIndex(first), &rows);
            assert_eq!(result.is_ok(), is_ok, "{}: {result:?}", plane.name());
        });
        if let (true, Some(installed)) = (is_ok, self.installed.get_mut(&device)) {
            installed.end = first + count;
        }
        self.compare_line(device);
        is_ok
    }

    pub fn revoke(&mut self, device: Dev) {
        if self.installed.contains_key(&device) {
            self.oracle.revoke(device.id()).unwrap();
            self.each_plane(|plane, _| plane.revoke(device.id()).unwrap());
            self.compare_line(device);
        }
    }

    /// Closes the session that the device has, or another one, which changes nothing; whether there was one to close.
    pub fn close(&mut self, device: Dev, other: bool) -> bool {
        let Some(session) = self.last_held(device).map(|held| held.id) else {
            return false;
        };
        match other {
            true => self.close_one(
                device,
                SessionId::from_wire(session.to_wire().map(|byte| !byte)).unwrap(),
            ),
            false => self.close_one(device, session),
        }
    }

    /// Closes the session of that name, if the device has it.
    pub fn close_one(&mut self, device: Dev, named: SessionId) -> bool {
        let is_installed = self.installed.contains_key(&device);
        let closed = self.oracle.close_session(device.id(), named);
        assert_eq!(closed.is_ok(), is_installed);
        let expected = closed.map_err(|_| StoreError::NotInstalled(device.id()));
        self.each_plane(|plane, _| {
            assert_eq!(
                plane.close_session(device.id(), named),
                expected,
                "{}",
                plane.name()
            );
        });
        if is_installed {
            self.compare_line(device);
        }
        expected == Ok(true)
    }

    pub fn wipe(&mut self, device: Dev) {
        if self.installed.remove(&device).is_some() {
            self.oracle.wipe(device.id()).unwrap();
            self.each_plane(|plane, _| plane.wipe(device.id()).unwrap());
        }
    }

    /// What a gateway does every few seconds: forgets dead sessions' bindings, and reuses slots. The oracle keeps all
    /// that it ever had: an entry is a hint, and forgetting one may change nothing.
    pub fn sweep(&mut self) {
        self.each_plane(|plane, _| plane.housekeep());
    }

    pub fn rotate_fresh(&mut self) -> [u8; 8] {
        self.nonces += 1;
        self.fresh = (0xfe00_0000_0000_0000 | self.nonces).to_be_bytes();
        let (fresh, now) = (self.fresh, self.now());
        self.oracle.set_fresh(FreshValue::from_wire(fresh).unwrap(), now);
        if let Some(host) = &mut self.host {
            host.host.set_fresh(fresh, now.monotonic_ms * 1_000_000);
        }
        if let Some(xdp) = &mut self.xdp {
            xdp.xdp.set_fresh(fresh, read_clock(libc::CLOCK_MONOTONIC));
        }
        if let Some(switch) = &mut self.switch {
            switch.plane.set_fresh(fresh, read_clock(libc::CLOCK_MONOTONIC));
        }
        fresh
    }

    pub fn stopping(&mut self, stopping: bool) {
        self.oracle.set_stopping(stopping);
        self.each_plane(|plane, _| plane.set_stopping(stopping));
    }

    /// Whether the machine has been up for long enough to move the past back that far.
    pub fn can_advance(&self, seconds: u32) -> bool {
        let shifted_ms = self.shift_ms + u64::from(seconds) * 1000;
        real_now().monotonic_ms.saturating_sub(60_000) > shifted_ms
    }

    /// Lets time go by on both clocks. `xdp` reads the machine's: there the past moves back instead.
    pub fn advance(&mut self, seconds: u32) {
        self.shift_ms += u64::from(seconds) * 1000;
        self.leave_switch_behind();
        if let Some(xdp) = &self.xdp {
            let regions = xdp.xdp.store().regions();
            let at = &regions.control[0].fresh_at_ns;
            let moved = at
                .load(Acquire)
                .saturating_sub(u64::from(seconds) * 1_000_000_000);
            at.store(moved, Release);
            for line in regions.lines.iter() {
                let until = line.lease_until_s.load(Acquire);
                line.lease_until_s.store(until.saturating_sub(seconds), Release);
            }
            let from = &regions.control[0].live.lease_from_s;
            from.store(from.load(Acquire).saturating_sub(seconds), Release);
        }
    }

    /// Stops a winner between its compare-and-swap and everything else, as another CPU would see it.
    ///
    /// A BUSY line owns the addresses of its session, which may have been closed before: then it owns them only as long
    /// as no sweep has been there. Here one has, for the oracle too.
    pub fn half_win(&mut self, device: Dev, from: &[u8]) {
        self.leave_switch_behind();
        let now = self.now();
        if self.last_held(device).is_none() {
            self.oracle.sweep_bindings();
            self.sweep();
        }
        let parsed = parse(from).unwrap();
        let (_, udp) = parsed.datagram().unwrap();
        let Ok(Message::Response(response)) = wire::parse(&from[udp.payload()]) else {
            panic!("not a RESPONSE");
        };
        let meta = parsed.meta(INGRESS).unwrap();
        let Ok(Checked::Current(verified)) = self.oracle.check_response(now, &meta, response) else {
            panic!("not acceptable");
        };
        drop(self.oracle.commit(verified).unwrap());
        for (store, _) in self.stores() {
            let (line, _) = store.line(device.id()).unwrap();
            let won = |word| CommitWord(word).won().map(|won| won.0);
            line.commit.fetch_update(AcqRel, Acquire, won).unwrap();
        }
        self.compare_line(device);
    }

    /// Whether the oracle would spend a row for that RESPONSE.
    pub fn can_check(&self, frame: &[u8]) -> bool {
        let parsed = parse(frame).unwrap();
        let (_, udp) = parsed.datagram().unwrap();
        let Ok(Message::Response(response)) = wire::parse(&frame[udp.payload()]) else {
            return false;
        };
        let meta = parsed.meta(INGRESS).unwrap();
        let checked = self.oracle.check_response(self.now(), &meta, response);
        matches!(checked, Ok(Checked::Current(_)))
    }

    /// Clears up after winners that never finished.
    pub fn recover(&mut self) {
        self.oracle.recover();
        for (store, _) in self.stores() {
            let _ = store.recover();
        }
        self.compare_lines();
    }
}
