//! The registry is put back to an earlier state, and nobody is told.

use std::path::Path;

use linewarden_protocol::ids::{DeviceId, Mode};
use rand::RngExt as _;

use super::office::open;
use super::{GATEWAYS, RING, World};

/// A state of the registry.
pub(super) struct Backup {
    content: Vec<u8>,
    revoked: Vec<DeviceId>,
}

impl World {
    /// Somebody makes a backup, or puts one back. With provers nobody does: what they have proven since would be a riddle to the judges.
    pub(super) fn back_up_or_restore(&mut self) -> Result<(), String> {
        if self.attests || !self.office.is_well() {
            return Ok(());
        }
        match self.office.backup.is_some() && self.rng.random_ratio(1, 2) {
            true => self.restore(),
            false => {
                self.back_up();
                Ok(())
            }
        }
    }

    fn back_up(&mut self) {
        // Made by the registry itself, or somebody copies the file while nobody has it open.
        let is_copy = self.rng.random_ratio(1, 2);
        let office = &mut self.office;
        let content = match is_copy {
            true => {
                let directory = tempfile::tempdir().unwrap();
                let path = directory.path().join("copy");
                let copied = self.runtime.block_on(office.registry().copy_to(&*path, |_| ()));
                copied.unwrap();
                std::fs::read(path).unwrap()
            }
            false => {
                self.runtime.block_on(office.registry().clone().close());
                let content = std::fs::read(&office.path).unwrap();
                self.open_again();
                content
            }
        };
        self.office.backup = Some(Backup {
            content,
            revoked: self.office.revoked().to_vec(),
        });
        self.tally.backups += 1;
    }

    fn open_again(&mut self) {
        let office = &mut self.office;
        let opened = open(&self.runtime, &office.path);
        office.take(opened.unwrap());
    }

    fn restore(&mut self) -> Result<(), String> {
        let Some(backup) = self.office.backup.take() else {
            return Ok(());
        };
        self.tally.restores += 1;
        let before = self.floors();
        let office = &mut self.office;
        self.runtime.block_on(office.registry().clone().close());
        let beside = |ending: &str| {
            let mut name = office.path.as_os_str().to_owned();
            name.push(ending);
            name
        };
        for ending in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(Path::new(&beside(ending)));
        }
        if self.rng.random_ratio(1, 2) {
            // Another file in its place, as `mv` makes it; else the content is written over the file, as `cp` does.
            std::fs::remove_file(&office.path).unwrap();
        }
        std::fs::write(&office.path, &backup.content).unwrap();
        office.put_back(&backup.revoked);
        self.open_again();
        self.whereabouts.forget();
        // Rows of the registry that is gone, whether or not they were used, are nobody's any more.
        for (station, (before, after)) in self.stations.iter().zip(before.into_iter().zip(self.floors())) {
            let above = before.max(after).max(station.unanswered_from());
            let lost = (0..above).filter(|idx| self.ledger.spender(station.id, *idx).is_none());
            // Where so few are left, that is all of them.
            let room = GATEWAYS as u32 * (RING + 1);
            *self.left_behind.entry(station.id).or_default() += lost.count() as u32 + room;
        }
        self.look_for_damage()
    }

    /// By station: above every row that was leased.
    fn floors(&self) -> Vec<u32> {
        let floor = |station: &crate::station::Station| {
            let info = self.runtime.block_on(self.office.registry().get(station.id));
            match station.mode {
                Mode::Pool => info.unwrap().idx_floor.0,
                Mode::Key => 0,
            }
        };
        self.stations.iter().map(floor).collect()
    }
}
