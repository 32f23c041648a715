//! A data plane in memory that fails at random and checks what it is given.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use linewarden_dataplane::{
    Capabilities, Counters, DataPlane, DataPlaneError, Event, EventKind, LineStatus, Row, SourceMac,
    StoreError,
};
use linewarden_protocol::commit::{self, CommitWord};
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, SessionId};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

pub(super) type Shared = Arc<Mutex<Memory>>;

/// The memory that the test's packets and the data plane share.
pub(super) struct Memory {
    rng: ChaCha8Rng,
    ring: u32,
    low_rows: u32,
    lines: HashMap<DeviceId, Line>,
    /// By device: the number after the highest row ever taken in; it outlives wipes.
    highest: HashMap<DeviceId, u32>,
    pub(super) now_ns: u64,
    pub(super) slots: usize,
    pub(super) events: Vec<Event>,
    pub(super) fresh: Vec<([u8; 8], u64)>,
    pub(super) stopping: bool,
    /// Calls fail at random.
    pub(super) failing: bool,
    /// So many calls to `refill` and `wipe` find the line busy.
    pub(super) busy_for: u32,
    pub(super) lose_events: bool,
    events_lost: u64,
}

struct Line {
    mode: Mode,
    idx: u32,
    rows: VecDeque<Held>,
    end: u32,
    revoked: bool,
}

/// A row in the data plane: its number, and the first byte of its key.
type Held = (u32, u8);

/// The data plane.
pub(super) struct Chaos(Shared);

impl Chaos {
    pub(super) fn new(seed: u64, ring: u32, low_rows: u32) -> (Self, Shared) {
        let memory = Arc::new(Mutex::new(Memory {
            rng: ChaCha8Rng::seed_from_u64(!seed),
            ring,
            low_rows,
            lines: HashMap::new(),
            highest: HashMap::new(),
            now_ns: 0,
            slots: usize::MAX,
            events: Vec::new(),
            fresh: Vec::new(),
            stopping: false,
            failing: false,
            busy_for: 0,
            lose_events: false,
            events_lost: 0,
        }));
        (Self(Arc::clone(&memory)), memory)
    }
}

impl Memory {
    fn fails(&mut self) -> bool {
        self.failing && self.rng.random_bool(0.2)
    }

    fn is_busy(&mut self) -> bool {
        if self.busy_for > 0 {
            self.busy_for -= 1;
            return true;
        }
        self.fails()
    }

    fn emit(&mut self, kind: EventKind, device: DeviceId, idx: u32) {
        if self.lose_events || self.fails() {
            self.events_lost += 1;
            return;
        }
        self.events.push(Event {
            kind,
            device,
            idx: RowIndex(idx),
            from: "192.0.2.1".parse().unwrap(),
            ingress: 1,
        });
    }

    /// A device authenticates; says whether it could.
    pub(super) fn win(&mut self, device: DeviceId) -> bool {
        let Some(line) = self.lines.get_mut(&device) else {
            return false;
        };
        if line.revoked || line.rows.front().is_none_or(|(idx, _)| *idx != line.idx) {
            return false;
        }
        line.idx += 1;
        if line.mode == Mode::Key {
            line.rows[0].0 += 1;
        } else {
            line.rows.pop_front();
        }
        let (idx, left, mode) = (line.idx, line.rows.len() as u32, line.mode);
        let session = SessionId::from_wire([1; 8]).unwrap();
        self.emit(EventKind::Session(session), device, idx - 1);
        if left == 0 {
            self.emit(EventKind::RowsOut, device, idx);
        } else if mode == Mode::Pool && left <= self.low_rows {
            self.emit(EventKind::RowsLow, device, idx);
        }
        true
    }

    pub(super) fn is_revoked(&self, device: DeviceId) -> bool {
        self.lines.get(&device).is_some_and(|line| line.revoked)
    }

    /// The first byte of the key of the device's current row.
    pub(super) fn key_of(&self, device: DeviceId) -> Option<u8> {
        self.lines.get(&device)?.rows.front().map(|(_, key)| *key)
    }

    pub(super) fn longest_fresh_gap_ns(&self) -> u64 {
        let times = || self.fresh.iter().map(|(_, at_ns)| *at_ns);
        times().zip(times().skip(1)).map(|(a, b)| b - a).max().unwrap()
    }

    /// Every number is taken in once, however often the device is wiped and installed again.
    fn take_in(&mut self, device: DeviceId, mode: Mode, idx: u32) {
        if mode == Mode::Pool {
            let highest = self.highest.entry(device).or_default();
            assert!(idx >= *highest, "row {idx} of device {device} was given before");
            *highest = idx + 1;
        }
    }
}

impl DataPlane for Chaos {
    fn failure(&mut self) -> Option<String> {
        None
    }

    fn name(&self) -> &'static str {
        "chaos"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            source_mac: SourceMac::Frame,
            gate: true,
            classic: false,
            vlans: true,
        }
    }

    fn install(
        &mut self,
        device: DeviceId,
        mode: Mode,
        next: RowIndex,
        rows: &[Row],
        _mark: Option<RowIndex>,
    ) -> Result<(), StoreError> {
        let mut memory = self.0.lock().unwrap();
        if memory.lines.contains_key(&device) {
            return Err(StoreError::Installed(device));
        }
        if memory.lines.len() >= memory.slots || memory.fails() {
            return Err(StoreError::Full(device));
        }
        let end = next.0 + rows.len() as u32;
        assert!(!rows.is_empty() && rows.len() as u32 <= memory.ring + 1);
        assert!(mode == Mode::Pool || rows.len() == 1);
        (next.0..end).for_each(|idx| memory.take_in(device, mode, idx));
        let line = Line {
            mode,
            idx: next.0,
            rows: (next.0..end).zip(keys(rows)).collect(),
            end,
            revoked: false,
        };
        memory.lines.insert(device, line);
        Ok(())
    }

    fn refill(&mut self, device: DeviceId, first: RowIndex, rows: &[Row]) -> Result<RowIndex, StoreError> {
        let mut memory = self.0.lock().unwrap();
        if memory.is_busy() {
            return Err(StoreError::Busy(device));
        }
        let ring = memory.ring;
        let line = memory
            .lines
            .get_mut(&device)
            .ok_or(StoreError::NotInstalled(device))?;
        if line.revoked {
            return Err(StoreError::Revoked(device));
        }
        let mut taken = Vec::new();
        for (idx, key) in (first.0..).zip(keys(rows)) {
            if line.rows.is_empty() && idx >= line.idx.max(line.end) {
                line.idx = idx;
            } else if idx != line.end || idx > line.idx + ring {
                continue;
            }
            line.rows.push_back((idx, key));
            line.end = idx + 1;
            taken.push(idx);
        }
        let end = line.end;
        taken
            .into_iter()
            .for_each(|idx| memory.take_in(device, Mode::Pool, idx));
        Ok(RowIndex(end))
    }

    fn grant(&mut self, _device: DeviceId, _mark: RowIndex) -> Result<(), StoreError> {
        Ok(())
    }

    fn revoke(&mut self, device: DeviceId) -> Result<(), StoreError> {
        let mut memory = self.0.lock().unwrap();
        let line = memory
            .lines
            .get_mut(&device)
            .ok_or(StoreError::NotInstalled(device))?;
        line.revoked = true;
        Ok(())
    }

    fn wipe(&mut self, device: DeviceId) -> Result<(), StoreError> {
        self.revoke(device)?;
        let mut memory = self.0.lock().unwrap();
        if memory.is_busy() {
            return Err(StoreError::Busy(device));
        }
        memory.lines.remove(&device);
        Ok(())
    }

    fn status(&self, device: DeviceId) -> Option<LineStatus> {
        let memory = self.0.lock().unwrap();
        let line = memory.lines.get(&device)?;
        let flags = [
            (!line.rows.is_empty(), commit::VALID),
            (line.revoked, commit::REVOKED),
            (line.mode == Mode::Key, commit::KEY),
        ];
        let flags = flags
            .iter()
            .filter(|(set, _)| *set)
            .fold(0, |all, (_, flag)| all | flag);
        Some(LineStatus {
            commit: CommitWord::new(RowIndex(line.idx), 0, flags),
            rows_left: line.rows.len() as u32,
            has_session: false,
            lease_until_s: 0,
        })
    }

    fn set_fresh(&mut self, fresh: [u8; 8], now_ns: u64) {
        self.0.lock().unwrap().fresh.push((fresh, now_ns));
    }

    fn set_stopping(&mut self, stopping: bool) {
        self.0.lock().unwrap().stopping = stopping;
    }

    fn counters(&self) -> Result<Counters, DataPlaneError> {
        Ok(Counters {
            events_lost: self.0.lock().unwrap().events_lost,
            ..Counters::default()
        })
    }

    fn drain_events(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), DataPlaneError> {
        let mut memory = self.0.lock().unwrap();
        if memory.fails() {
            return Err(DataPlaneError::Kernel {
                what: "reading the event ring".to_owned(),
                source: "chaos".into(),
            });
        }
        std::mem::take(&mut memory.events).into_iter().for_each(sink);
        Ok(())
    }

    fn housekeep(&mut self) {}
}

fn keys(rows: &[Row]) -> impl Iterator<Item = u8> + '_ {
    rows.iter().map(|row| row.auth_key.as_bytes()[0])
}
