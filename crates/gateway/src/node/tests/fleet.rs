//! A registry in memory that answers the node's questions, or fails at random.

use std::collections::BTreeMap;

use linewarden_dataplane::Row;
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex};
use linewarden_protocol::keys::AuthKey;
use linewarden_registry::{Change, Changes, Revision};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::exchange::{Chunk, Provision, Refusal, Refused, Want};

/// Devices in one part of the walk.
const CHUNK: usize = 16;

pub(super) struct Fleet {
    rng: ChaCha8Rng,
    devices: BTreeMap<DeviceId, Record>,
    revision: u64,
    /// The walk: what is left of it, and the revision at its beginning.
    walk: Option<(Vec<DeviceId>, Revision)>,
    /// Left out of the check whether a device of the walk has changed since.
    stale: Vec<DeviceId>,
    pub(super) questions: u32,
    pub(super) row_questions: u32,
    pub(super) down: bool,
    pub(super) failing: bool,
}

#[derive(Clone, Copy)]
struct Record {
    mode: Mode,
    rows_total: u32,
    floor: u32,
    epoch: u32,
    active: bool,
    revision: u64,
}

impl Fleet {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed.rotate_left(32)),
            devices: BTreeMap::new(),
            revision: 0,
            walk: None,
            stale: Vec::new(),
            questions: 0,
            row_questions: 0,
            down: false,
            failing: false,
        }
    }

    /// Enrols a device, or replaces its credentials; a revoked one stays revoked.
    pub(super) fn enrol(&mut self, device: DeviceId, mode: Mode, rows_total: u32) {
        let old = self.devices.get(&device).copied();
        if old.is_some_and(|old| !old.active) {
            return;
        }
        self.revision += 1;
        let record = Record {
            mode,
            rows_total,
            floor: old.map_or(0, |old| old.floor),
            epoch: old.map_or(0, |old| old.epoch + 1),
            active: true,
            revision: self.revision,
        };
        self.devices.insert(device, record);
    }

    pub(super) fn revoke(&mut self, device: DeviceId) {
        let record = self.devices.get_mut(&device).unwrap();
        if record.active {
            self.revision += 1;
            record.active = false;
            record.revision = self.revision;
        }
    }

    /// The walk still brings this device, as if it had been read before the change.
    pub(super) fn keep_in_walk(&mut self, device: DeviceId) {
        self.stale.push(device);
    }

    pub(super) fn floor(&self, device: DeviceId) -> u32 {
        self.devices[&device].floor
    }

    /// As after a restored backup: the mark stands where it stood once.
    pub(super) fn forget_mark(&mut self, device: DeviceId) {
        self.devices.get_mut(&device).unwrap().floor = 0;
    }

    /// The first byte of the keys that the device's credentials give now.
    pub(super) fn key_of(&self, device: DeviceId) -> u8 {
        key_byte(self.devices[&device].epoch)
    }

    pub(super) fn is_used_up(&self, device: DeviceId) -> bool {
        let record = self.devices[&device];
        record.floor >= record.rows_total
    }

    pub(super) fn active(&self) -> Vec<DeviceId> {
        self.with(|record| record.active)
    }

    pub(super) fn revoked(&self) -> Vec<DeviceId> {
        self.with(|record| !record.active)
    }

    fn with(&self, wanted: impl Fn(&Record) -> bool) -> Vec<DeviceId> {
        let chosen = self.devices.iter().filter(|(_, record)| wanted(record));
        chosen.map(|(device, _)| *device).collect()
    }

    fn fail(&mut self) -> Result<(), String> {
        self.questions += 1;
        if self.down || self.failing && self.rng.random_bool(0.3) {
            return Err("the database is gone".to_owned());
        }
        Ok(())
    }

    pub(super) fn load(&mut self, block: u32) -> Result<Chunk, String> {
        self.fail()?;
        let revision = Revision(self.revision);
        let active = self.active();
        let (left, began_at) = self.walk.get_or_insert((active, revision));
        let began_at = *began_at;
        let part: Vec<DeviceId> = left.drain(..left.len().min(CHUNK)).collect();
        if part.is_empty() {
            return Ok(Chunk::end(began_at));
        }
        let unchanged =
            |device: &&DeviceId| self.stale.contains(device) || self.devices[*device].revision <= began_at.0;
        let part: Vec<DeviceId> = part.iter().filter(unchanged).copied().collect();
        let (mut provisions, mut refused) = (Vec::new(), Vec::new());
        for device in part {
            match self.take(device, RowIndex(0), block) {
                Ok(provision) => provisions.push(provision),
                Err(why) => refused.push(why),
            }
        }
        Ok(Chunk {
            provisions,
            refused,
            damaged: Vec::new(),
            feed_from: began_at,
            last: false,
        })
    }

    pub(super) fn rows(&mut self, wants: &[Want]) -> Result<(Vec<Provision>, Vec<Refused>), String> {
        self.row_questions += 1;
        self.fail()?;
        let (mut provisions, mut refused) = (Vec::new(), Vec::new());
        for want in wants {
            if !self.devices[&want.device].active {
                refused.push(Refused {
                    device: want.device,
                    epoch: 0,
                    why: Refusal::Gone,
                });
                continue;
            }
            match self.take(want.device, want.from, want.count) {
                Ok(provision) => provisions.push(provision),
                Err(why) => refused.push(why),
            }
        }
        Ok((provisions, refused))
    }

    fn take(&mut self, device: DeviceId, from: RowIndex, count: u32) -> Result<Provision, Refused> {
        let record = self.devices.get_mut(&device).unwrap();
        let (first, end) = match record.mode {
            Mode::Key => (record.floor, record.floor + 1),
            Mode::Pool => {
                let first = record.floor.max(from.0);
                let end = (first + count).min(record.rows_total);
                record.floor = record.floor.max(end);
                (first, end)
            }
        };
        if first >= end {
            return Err(Refused {
                device,
                epoch: record.epoch,
                why: Refusal::Exhausted,
            });
        }
        let row = |_| Row {
            challenge: [1; 8],
            auth_key: AuthKey::from_bytes([key_byte(record.epoch); 16]),
        };
        Ok(Provision {
            device,
            mode: record.mode,
            epoch: record.epoch,
            first: RowIndex(first),
            rows: (first..end).map(row).collect(),
        })
    }

    pub(super) fn changes(&mut self, since: Revision) -> Result<Changes, String> {
        self.fail()?;
        let mut changes: Vec<Change> = self
            .devices
            .iter()
            .filter(|(_, record)| record.revision > since.0)
            .map(|(device, record)| Change {
                device: *device,
                revision: Revision(record.revision),
                active: record.active,
                epoch: record.epoch,
            })
            .collect();
        changes.sort_by_key(|change| change.revision);
        let more = changes.len() > 5;
        changes.truncate(5);
        Ok(Changes {
            upto: changes.last().map_or(since, |change| change.revision),
            changes,
            more,
        })
    }
}

fn key_byte(epoch: u32) -> u8 {
    1 + epoch as u8
}
