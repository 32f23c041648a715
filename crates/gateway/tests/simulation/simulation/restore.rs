//! Restores of the registry, without notice to any component.

use std::path::Path;

use linewarden_protocol::ids::{DeviceId, Mode};
use rand::RngExt as _;

use super::controller_host::open;
use super::{GATEWAYS, RING, Simulation};

/// A backup of the registry.
pub(super) struct Backup {
    content: Vec<u8>,
    /// Devices with a confirmed revocation in this backup.
    revoked: Vec<DeviceId>,
}

impl Simulation {
    /// Makes or restores a backup. Does nothing with provers, because the invariants of attestation do not cover restores.
    pub(super) fn back_up_or_restore(&mut self) -> Result<(), String> {
        if self.attests || !self.controller_host.is_healthy() {
            return Ok(());
        }
        match self.controller_host.backup.is_some() && self.rng.random_ratio(1, 2) {
            true => self.restore(),
            false => {
                self.back_up();
                Ok(())
            }
        }
    }

    fn back_up(&mut self) {
        // The backup is made by the registry itself, or by copying the file while the registry is closed.
        let is_copy = self.rng.random_ratio(1, 2);
        let host = &mut self.controller_host;
        let content = match is_copy {
            true => {
                let directory = tempfile::tempdir().unwrap();
                let path = directory.path().join("copy");
                let copied = self.runtime.block_on(host.registry().copy_to(&*path, |_| ()));
                copied.unwrap();
                std::fs::read(path).unwrap()
            }
            false => {
                self.runtime.block_on(host.registry().clone().close());
                let content = std::fs::read(&host.path).unwrap();
                self.open_again();
                content
            }
        };
        self.controller_host.backup = Some(Backup {
            content,
            revoked: self.controller_host.revoked().to_vec(),
        });
        self.tally.backups += 1;
    }

    fn open_again(&mut self) {
        let host = &mut self.controller_host;
        let opened = open(&self.runtime, &host.path);
        host.replace_controller(opened.unwrap());
    }

    fn restore(&mut self) -> Result<(), String> {
        let Some(backup) = self.controller_host.backup.take() else {
            return Ok(());
        };
        self.tally.restores += 1;
        let before = self.floors();
        let host = &mut self.controller_host;
        self.runtime.block_on(host.registry().clone().close());
        let sibling = |ending: &str| {
            let mut name = host.path.as_os_str().to_owned();
            name.push(ending);
            name
        };
        for ending in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(Path::new(&sibling(ending)));
        }
        if self.rng.random_ratio(1, 2) {
            // The file is replaced by another file, as with `mv`. Otherwise it is overwritten, as with `cp`.
            std::fs::remove_file(&host.path).unwrap();
        }
        std::fs::write(&host.path, &backup.content).unwrap();
        host.restore(&backup.revoked);
        self.open_again();
        self.session_locations.forget();
        // All unspent rows below the rows that the lost state, the backup or the device records as used are stranded.
        for (simulated, (before, after)) in self.devices.iter().zip(before.into_iter().zip(self.floors())) {
            let end = before.max(after).max(simulated.unanswered_from());
            let lost_rows = (0..end).filter(|idx| self.ledger.spender(simulated.id, *idx).is_none());
            // The first lease after a restore skips twice `lease_rows` rows, or all rows if fewer are left.
            let margin = GATEWAYS as u32 * (RING + 1);
            *self.stranded_rows.entry(simulated.id).or_default() += lost_rows.count() as u32 + margin;
        }
        self.check_registry()
    }

    /// Returns, for each device, the lowest row above all leased rows.
    fn floors(&self) -> Vec<u32> {
        let floor = |simulated: &crate::simulated_device::SimulatedDevice| {
            let info = self
                .runtime
                .block_on(self.controller_host.registry().get(simulated.id));
            match simulated.mode {
                Mode::Pool => info.unwrap().idx_floor.0,
                Mode::Key => 0,
            }
        };
        self.devices.iter().map(floor).collect()
    }
}
