//! Memory that outlives the process: adopts the lines of an earlier process while packets flow through them.
//!
//! The earlier process may have been killed at any point. An incomplete change is either not visible to the packet
//! path (a device's id is written last, a row's key in halves) or visible and harmless (a line that is REVOKED but
//! not yet wiped). This module wipes changes of the first kind and reports lines of the second kind as they are.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use linewarden_protocol::commit;
use linewarden_protocol::ids::{DeviceId, RowIndex};

use super::place::Places;
use super::{Geometry, LineStatus, NO_MARK, Place, Regions, Store, table, zero_line_row};
use crate::config::{Config, Gate};
use crate::layout::{Control, Line};

/// Version of the layout and meaning of shared memory. Increment the version with each change; a test detects a changed
/// text of `lw_layout.h`.
pub(crate) const LAYOUT_VERSION: u32 = 8;

/// The state that an earlier process left.
#[derive(Clone, Debug, Default)]
pub struct InheritedState {
    /// Registration number of that process, see [`Store::set_owner`]; 0 if it had none.
    pub owner: u64,
    /// Devices of that process.
    pub devices: Vec<InheritedDevice>,
    /// The current fresh value in the memory.
    pub fresh: [u8; 8],
    /// CLOCK_MONOTONIC when that fresh value was drawn, ns.
    pub fresh_at_ns: u64,
}

/// A device in the memory of an earlier process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InheritedDevice {
    /// Id of the device.
    pub device: DeviceId,
    /// Content of the device's line.
    pub line: LineStatus,
    /// Epoch of the device's credentials; `None` if unknown ([`Store::set_epoch`]).
    pub epoch: Option<u32>,
    /// One above the highest idx that was ever installed.
    pub end: RowIndex,
    /// The mark: rows below it may be spent. `None`: no limit.
    pub mark: Option<RowIndex>,
}

/// The values that must be equal for memory to be adopted: layout, gate and gateway, sizes, hash seed.
fn identity(config: &Config, hash_seed: [u64; 2]) -> [u64; 4] {
    let geometry = &config.geometry;
    let [first, second] = hash_seed;
    let gate = match config.gate {
        Gate::Off => 0,
        Gate::Bound => 1,
        Gate::Sealed => 2,
    };
    [
        u64::from(LAYOUT_VERSION) << 40 | gate << 32 | u64::from(config.gateway_id.0),
        u64::from(geometry.slots) << 32 | u64::from(geometry.ring),
        first,
        second,
    ]
}

/// The hash seed of the memory, if a gateway with that configuration can adopt it.
#[must_use]
pub fn hash_seed_of(control: &Control, config: &Config) -> Option<[u64; 2]> {
    let [gateway, sizes, first, second] = [0, 1, 2, 3].map(|index: usize| {
        let word = control.identity.get(index);
        word.map_or(0, |word| word.load(Acquire))
    });
    let hash_seed = [first, second];
    (identity(config, hash_seed) == [gateway, sizes, first, second]).then_some(hash_seed)
}

impl Store {
    /// Records the identity of this memory, so that a later process can adopt it.
    pub fn write_identity(&self, config: &Config) {
        let Some(control) = self.regions.control.first() else {
            return;
        };
        for (word, value) in control
            .identity
            .iter()
            .zip(identity(config, self.geometry.hash_seed))
        {
            word.store(value, Release);
        }
    }

    /// Records the owning process, by its registration number at the controller.
    pub fn set_owner(&self, owner: u64) {
        if let Some(control) = self.regions.control.first() {
            control.owner.store(owner, Release);
        }
    }

    /// Records the epoch of a device's credentials.
    pub fn set_epoch(&self, device: DeviceId, epoch: u32) {
        let place = self.place(device);
        if let Some(note) = place.and_then(|place| self.regions.notes.get(place.slot as usize)) {
            note.epoch.store(epoch.saturating_add(1), Release);
        }
    }

    /// A store over regions that an earlier process with the same geometry left. Packets may flow during the call.
    #[must_use]
    pub fn adopt(regions: Arc<Regions>, geometry: Geometry) -> Self {
        let mut places = Places::new(geometry.home_layout());
        let mut devices = HashMap::new();
        let mut used_slots = vec![false; geometry.slots as usize];
        for (index, line) in (0u32..).zip(regions.lines.iter()) {
            let id = line.device_id.load(Acquire);
            if id == 0 {
                if line.auth_key.iter().any(|half| half.load(Acquire) != 0) {
                    zero_line_row(line);
                    line.commit.fetch_and(!commit::VALID, Release);
                }
                continue;
            }
            let place = Place {
                line: index,
                slot: line.slot.load(Relaxed),
            };
            let device = DeviceId(u64::from_be_bytes(id.to_ne_bytes()));
            // Valid: the slot exists, and no line before this one uses the slot.
            let slot = used_slots.get_mut(place.slot as usize);
            let is_slot_valid = slot.is_some_and(|is_used| !std::mem::replace(is_used, true));
            if is_slot_valid && devices.insert(device, place).is_none() {
                restore_index_entry(&regions, &geometry, id, index);
            } else {
                scrub_line(line);
            }
        }
        places.occupy(devices.values().copied());
        let store = Self {
            regions,
            geometry,
            devices,
            places,
            next_sweep_bucket: 0,
            session_counter: super::session_count::SessionCounter::default(),
        };
        for slot in store.places.free_slots() {
            store.clear_slot(*slot);
        }
        for (device, place) in &store.devices {
            store.advance_end(*device, *place);
        }
        store
    }

    /// Advances the recorded end to the last row in memory. A row is beyond the recorded end if the earlier process was
    /// killed after it wrote the row and before it recorded the new end. Without this step a refill would write the row
    /// to the ring a second time.
    fn advance_end(&self, device: DeviceId, place: Place) {
        let (Some(line), Some(note)) = (self.status(device), self.regions.notes.get(place.slot as usize))
        else {
            return;
        };
        if !line.commit.is_key_mode() {
            let end = line.commit.idx().0.saturating_add(line.rows_left);
            note.end.fetch_max(end, Release);
        }
    }

    /// The content of the store, as a later process needs it.
    #[must_use]
    pub fn inherited_state(&self) -> InheritedState {
        let Some(control) = self.regions.control.first() else {
            return InheritedState::default();
        };
        let device = |(device, place): (&DeviceId, &Place)| {
            let note = self.regions.notes.get(place.slot as usize)?;
            let line = self.status(*device)?;
            let mark = note.mark.load(Acquire);
            Some(InheritedDevice {
                device: *device,
                line,
                epoch: note.epoch.load(Acquire).checked_sub(1),
                end: RowIndex(note.end.load(Acquire)),
                mark: (mark != NO_MARK).then_some(RowIndex(mark)),
            })
        };
        InheritedState {
            owner: control.owner.load(Acquire),
            devices: self.devices.iter().filter_map(device).collect(),
            fresh: control.fresh_current.load(Acquire).to_ne_bytes(),
            fresh_at_ns: control.fresh_at_ns.load(Acquire),
        }
    }
}

/// Restores the index entry of a line outside its home. The earlier process may have been killed before it wrote the
/// entry; without the entry the line cannot be found.
fn restore_index_entry(regions: &Regions, geometry: &Geometry, id: u64, line: u32) {
    let hash = table::hash(geometry.hash_seed, id, 0);
    if geometry.is_at_home(hash, line) {
        return;
    }
    let mask = geometry.index_mask();
    let is_indexed = table::candidates(&regions.device_index, mask, hash).any(|place| place == line);
    if !is_indexed && !table::insert(&regions.device_index, mask, hash, line) {
        let device = DeviceId(u64::from_be_bytes(id.to_ne_bytes()));
        tracing::warn!(device_id = %device, "data plane: restoring a device's index entry failed, the index is full; the device cannot authenticate");
    }
}

fn scrub_line(line: &Line) {
    line.commit.fetch_and(!commit::VALID, Release);
    line.session_id.store(0, Release);
    zero_line_row(line);
    line.device_id.store(0, Release);
}

#[cfg(test)]
mod tests {
    use linewarden_protocol::commit::CommitWord;
    use linewarden_protocol::gateway::Row;
    use linewarden_protocol::ids::{GatewayId, Mode, SessionId};
    use linewarden_protocol::keys::AuthKey;

    use super::*;

    fn geometry() -> Geometry {
        Geometry {
            slots: 64,
            ring: 4,
            hash_seed: [3, 9],
        }
    }

    fn rows(device: u64, count: u8) -> Vec<Row> {
        (1..=count)
            .map(|number| Row {
                challenge: [number; 8],
                auth_key: AuthKey::from_bytes([number ^ device as u8 | 1; 16]),
            })
            .collect()
    }

    fn filled() -> Store {
        let regions = Arc::new(Regions::anonymous(&geometry()).unwrap());
        let mut store = Store::new(regions, geometry());
        for id in 1..=60 {
            let mark = Some(RowIndex(7));
            store
                .install(DeviceId(id), Mode::Pool, RowIndex(5), &rows(id, 4), mark)
                .unwrap();
            store.set_epoch(DeviceId(id), 2);
        }
        store
    }

    fn sorted(store: &Store) -> Vec<InheritedDevice> {
        let mut devices = store.inherited_state().devices;
        devices.sort_by_key(|entry| entry.device);
        devices
    }

    #[test]
    fn an_adopted_store_equals_the_original() {
        let before = filled();
        before.set_owner(7);
        before.set_fresh([4; 8], 99);
        let mut after = Store::adopt(Arc::clone(before.regions()), geometry());
        assert_eq!(sorted(&after), sorted(&before));
        let state = after.inherited_state();
        assert_eq!((state.owner, state.fresh, state.fresh_at_ns), (7, [4; 8], 99));
        let first = sorted(&after)[0];
        assert_eq!(
            (first.epoch, first.end, first.mark),
            (Some(2), RowIndex(9), Some(RowIndex(7)))
        );
        for id in 1..=60 {
            assert_eq!(after.place(DeviceId(id)), before.place(DeviceId(id)));
        }
        // The adopted store works: the remaining places, more rows, and the places of wiped devices.
        let second_install = after.install(DeviceId(5), Mode::Pool, RowIndex(0), &rows(5, 1), None);
        assert!(second_install.is_err());
        for id in 61..=64 {
            after
                .install(DeviceId(id), Mode::Pool, RowIndex(0), &rows(id, 5), None)
                .unwrap();
        }
        assert!(
            after
                .install(DeviceId(65), Mode::Pool, RowIndex(0), &rows(65, 1), None)
                .is_err()
        );
        assert_eq!(
            after.refill(DeviceId(1), RowIndex(9), &rows(1, 3)).unwrap(),
            RowIndex(10)
        );
        after.wipe(DeviceId(1)).unwrap();
        after.reclaim();
        after.reclaim();
        after
            .install(DeviceId(65), Mode::Key, RowIndex(0), &rows(65, 1), None)
            .unwrap();
    }

    /// A process that adopts the memory accepts no older ticket request. A new session has no serial yet.
    #[test]
    fn the_serial_of_the_newest_ticket_request_stays_with_its_session() {
        let before = filled();
        let device = DeviceId(3);
        let line = |store: &Store| store.place(device).unwrap().line as usize;
        let begin = |store: &Store, number: u8| {
            let line = &store.regions().lines[line(store)];
            let word = CommitWord(line.commit.load(Acquire));
            let won = CommitWord::new(RowIndex(word.idx().0 + 1), word.generation() + 1, commit::VALID);
            line.commit.store(won.0, Release);
            line.session_id.store(u64::from_ne_bytes([number; 8]), Release);
            SessionId::from_wire([number; 8]).unwrap()
        };
        let recorded_serial = |store: &Store| store.keyed_session(device).unwrap().ticket_serial;
        let first = begin(&before, 1);
        assert_eq!(recorded_serial(&before), 0);
        before.record_ticket_serial(device, first, 7);
        let after = Store::adopt(Arc::clone(before.regions()), geometry());
        assert_eq!(recorded_serial(&after), 7);
        let second = begin(&after, 2);
        assert_eq!(recorded_serial(&after), 0);
        after.record_ticket_serial(device, first, 9);
        assert_eq!(recorded_serial(&after), 0, "of a session that has ended");
        after.record_ticket_serial(device, second, u64::MAX);
        assert_eq!(recorded_serial(&after), (1 << 24) - 1);
    }

    #[test]
    fn incomplete_changes_of_a_killed_process_are_wiped() {
        let before = filled();
        let regions = before.regions();
        let place = before.place(DeviceId(9)).unwrap();
        // Killed inside a wipe and inside an install, before the last step of each.
        let line = &regions.lines[place.line as usize];
        line.device_id.store(0, Release);
        let occupied: Vec<u32> = (1..=60)
            .map(|id| before.place(DeviceId(id)).unwrap().line)
            .collect();
        let free_line = (0..regions.lines.len())
            .find(|index| !occupied.contains(&(*index as u32)))
            .unwrap();
        regions.lines[free_line].auth_key[0].store(5, Release);
        regions.lines[free_line]
            .commit
            .store(CommitWord::new(RowIndex(0), 1, commit::VALID).0, Release);
        let after = Store::adopt(Arc::clone(regions), geometry());
        assert_eq!(after.len(), 59);
        let free_lines = regions
            .lines
            .iter()
            .filter(|line| line.device_id.load(Acquire) == 0);
        assert!(
            free_lines
                .flat_map(|line| &line.auth_key)
                .all(|half| half.load(Acquire) == 0)
        );
        assert!(!CommitWord(regions.lines[free_line].commit.load(Acquire)).is_valid());
        let rows = &regions.rows[place.slot as usize * 4..][..4];
        assert!(rows.iter().all(|row| row.auth_key[1].load(Acquire) == 0));
    }

    #[test]
    fn a_row_beyond_the_recorded_end_is_not_installed_twice() {
        let before = filled();
        let place = before.place(DeviceId(3)).unwrap();
        before.regions().notes[place.slot as usize].end.store(8, Release);
        let after = Store::adopt(Arc::clone(before.regions()), geometry());
        assert_eq!(sorted(&after)[2].end, RowIndex(9));
    }

    #[test]
    fn only_the_same_gateway_with_the_same_sizes_adopts_memory() {
        let config = |slots| Config {
            gateway_id: GatewayId(77),
            session_lifetime_s: 1,
            lap_port: 20550,
            local: Vec::new(),
            device_prefixes: Vec::new(),
            follows_interfaces: false,
            other_addresses: Vec::new(),
            fragments: false,
            gate: Gate::Bound,
            nak_per_s: 1,
            alarm_per_s: 1,
            miss_per_s: 1,
            low_rows: 0,
            low_credit: 0,
            geometry: Geometry {
                slots,
                hash_seed: [0, 0],
                ..geometry()
            },
            provers: 0,
            inband_evidence: false,
            always_pass: Vec::new(),
            dhcp_servers: Vec::new(),
        };
        let store = filled();
        let control = &store.regions().control[0];
        assert_eq!(hash_seed_of(control, &config(64)), None);
        store.write_identity(&config(64));
        assert_eq!(hash_seed_of(control, &config(64)), Some([3, 9]));
        assert_eq!(hash_seed_of(control, &config(65)), None);
        for other in [
            Config {
                gateway_id: GatewayId(78),
                ..config(64)
            },
            Config {
                gate: Gate::Off,
                ..config(64)
            },
        ] {
            assert_eq!(hash_seed_of(control, &other), None);
        }
    }
}
