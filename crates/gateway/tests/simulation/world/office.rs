//! The host of controller and registry: a process that is killed, a disk that is full or fails, power that goes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use linewarden_controller::{Controller, Provision};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode};
use linewarden_registry::{BootId, MasterKey, Moment, Options, Registry, RegistryError, Revision};
use rand::RngExt as _;
use rustix::fs::XattrFlags;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::restore::Backup;
use super::{Rule, World};
use crate::disk::{Disk, Trouble};

/// Pages of the database, B: with small ones the log is folded back many times in a run.
const PAGES: [u32; 2] = [512, 16_384];
/// Who was to die at a call that does not come dies after this, ms.
const LATEST_MS: u64 = 300;

/// How the controller's process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Killed,
    PowerLost,
}

/// What the controller has said and must stand by.
#[derive(Default)]
struct Promises {
    /// By gateway and device: rows below it may be spent. Forgotten when the gateway says where it stood.
    marks: BTreeMap<(GatewayId, DeviceId), u32>,
    revoked: Vec<DeviceId>,
}

pub(super) struct Office {
    registry: Registry,
    pub(super) controller: Controller,
    pub(super) path: PathBuf,
    pub(super) backup: Option<Backup>,
    disk: Disk,
    /// After the disk: it goes last.
    _directory: TempDir,
    /// How often the host has been started, and when it was last.
    boots: u8,
    booted_ms: u64,
    /// How often the controller has been started.
    pub(super) started: u64,
    pub(super) is_open: bool,
    /// When something that lasts is over, or whoever is to die dies.
    until_ms: u64,
    end: Option<End>,
    promises: Promises,
    /// Revoked by somebody who has had no answer yet.
    to_revoke: Vec<DeviceId>,
}

pub(super) fn key() -> MasterKey {
    MasterKey::from_bytes([1; 32])
}

/// Opens the registry. Leases raise the count of its storage once a process: the time of day is not the simulation's.
pub(super) fn open(runtime: &Runtime, path: &Path) -> Result<Registry, RegistryError> {
    let options = Options {
        storage_period: Duration::from_secs(24 * 3600),
        ..Options::default()
    };
    runtime.block_on(Registry::open_with(path, &key(), &options))
}

/// A registry and what names its storage.
struct Blank {
    content: Vec<u8>,
    record: Vec<u8>,
    attribute: Option<[u8; 16]>,
}

impl Blank {
    const ATTRIBUTE: &str = "user.linewarden.storage";

    fn read(path: &Path) -> Self {
        let mut id = [0; 16];
        let attribute = rustix::fs::getxattr(path, Self::ATTRIBUTE, &mut id);
        Self {
            content: std::fs::read(path).unwrap(),
            record: std::fs::read(path.with_extension("storage")).unwrap(),
            attribute: attribute.is_ok().then_some(id),
        }
    }

    fn write(&self, path: &Path) {
        std::fs::write(path, &self.content).unwrap();
        std::fs::write(path.with_extension("storage"), &self.record).unwrap();
        if let Some(id) = self.attribute {
            rustix::fs::setxattr(path, Self::ATTRIBUTE, &id, XattrFlags::empty()).unwrap();
        }
    }
}

/// Empty registries, made once.
fn blank(runtime: &Runtime, number: usize) -> &'static Blank {
    static BLANKS: [OnceLock<Blank>; PAGES.len()] = [const { OnceLock::new() }; PAGES.len()];
    BLANKS[number].get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("registry");
        let options = Options {
            page_size_bytes: PAGES[number],
            ..Options::default()
        };
        let made = runtime.block_on(Registry::create_with(&path, &key(), &options));
        runtime.block_on(made.unwrap().close());
        Blank::read(&path)
    })
}

impl Office {
    pub(super) fn new(runtime: &Runtime, seed: u64, without: Option<Rule>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("registry");
        blank(runtime, seed as usize % PAGES.len()).write(&path);
        let disk = Disk::new(directory.path(), seed);
        if without == Some(Rule::Sync) {
            disk.ignore_syncs();
        }
        let registry = open(runtime, &path).unwrap();
        Self {
            controller: Controller::new(registry.clone(), super::POLICY),
            registry,
            path,
            backup: None,
            disk,
            _directory: directory,
            boots: 1,
            booted_ms: 0,
            started: 1,
            is_open: true,
            until_ms: 0,
            end: None,
            promises: Promises::default(),
            to_revoke: Vec::new(),
        }
    }

    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The boot-time clock.
    pub(super) fn moment(&self, now_ms: u64) -> Moment {
        Moment {
            boot: BootId([self.boots; 16]),
            ns: (now_ms - self.booted_ms).cast_signed() * 1_000_000,
        }
    }

    /// For as long as nobody gives it back.
    pub(super) fn take_disk(&mut self) {
        self.disk.set_trouble(Some(Trouble::Gone));
        self.until_ms = u64::MAX;
    }

    pub(super) fn give_disk_back(&mut self) {
        self.until_ms = 0;
    }

    /// What a gateway was given.
    pub(super) fn promise<'a>(
        &mut self,
        gateway: GatewayId,
        provisions: impl IntoIterator<Item = &'a Provision>,
    ) {
        for provision in provisions.into_iter().filter(|given| given.mode == Mode::Pool) {
            let mark = self
                .promises
                .marks
                .entry((gateway, provision.device))
                .or_default();
            *mark = provision.mark.0.max(*mark);
        }
    }

    /// The gateway tells where it stood with the device.
    pub(super) fn release(&mut self, gateway: GatewayId, device: DeviceId) {
        self.promises.marks.remove(&(gateway, device));
    }

    /// Devices whose revocation was confirmed.
    pub(super) fn revoked(&self) -> &[DeviceId] {
        &self.promises.revoked
    }

    /// The registry is in an earlier state. Whoever has revoked a device since does so again.
    pub(super) fn put_back(&mut self, revoked: &[DeviceId]) {
        self.disk.put_back();
        let since = self.promises.revoked.iter();
        let since = since.filter(|device| !revoked.contains(device)).copied();
        self.to_revoke.extend(since);
        self.promises = Promises {
            revoked: revoked.to_vec(),
            ..Promises::default()
        };
    }

    /// A new process of the controller has opened the registry.
    pub(super) fn take(&mut self, registry: Registry) {
        self.controller = Controller::new(registry.clone(), super::POLICY);
        self.registry = registry;
        self.started += 1;
    }

    /// Whether it answers as it should.
    pub(super) fn is_well(&self) -> bool {
        self.is_open && self.end.is_none() && self.disk.trouble().is_none()
    }
}

impl World {
    /// Something befalls the controller.
    pub(super) fn trouble(&mut self) {
        if !self.office.is_open || self.office.end.is_some() {
            return;
        }
        let lasts_ms = self.rng.random_range(50..2_000);
        let calls = self.rng.random_range(0..24);
        let office = &mut self.office;
        // It may also end while its disk is full or fails.
        let fate = match office.is_well() {
            true => self.rng.random_range(0..8),
            false => self.rng.random_range(4..8),
        };
        let end = match fate {
            0..3 => return self.hinder(fate, lasts_ms),
            3 | 4 => End::Killed,
            _ => End::PowerLost,
        };
        office.end = Some(end);
        office.until_ms = self.now_ms + LATEST_MS;
        office.disk.end_after(calls);
    }

    /// For a while the disk is full or fails, or the controller is stopped in good order.
    fn hinder(&mut self, how: u32, lasts_ms: u64) {
        let office = &mut self.office;
        office.until_ms = self.now_ms + lasts_ms;
        match how {
            0 => {
                self.tally.full_disks += 1;
                office.disk.set_trouble(Some(Trouble::Full));
            }
            1 => {
                self.tally.failing_disks += 1;
                office.disk.set_trouble(Some(Trouble::Failing));
            }
            _ => {
                self.tally.controller_stops += 1;
                self.runtime.block_on(office.registry.clone().close());
                office.is_open = false;
            }
        }
    }

    /// The controller's side of a step.
    pub(super) fn attend(&mut self) -> Result<(), String> {
        let is_over = self.office.until_ms <= self.now_ms;
        let trouble = self.office.disk.trouble();
        if let (true, Some(end)) = (self.office.is_open, self.office.end) {
            if is_over || trouble == Some(Trouble::Gone) {
                self.end(end);
            }
        } else if !self.office.is_open && is_over {
            self.open()?;
        } else if is_over && trouble.is_some() {
            self.office.disk.set_trouble(None);
            self.look_for_damage()?;
        }
        self.revoke_all();
        Ok(())
    }

    fn end(&mut self, end: End) {
        let office = &mut self.office;
        office.disk.set_trouble(Some(Trouble::Gone));
        self.runtime.block_on(office.registry.clone().close());
        office.is_open = false;
        match end {
            End::Killed => {
                self.tally.controller_kills += 1;
                office.disk.set_trouble(None);
            }
            End::PowerLost => {
                self.tally.power_losses += 1;
                office.disk.lose_power();
                office.boots = office.boots.wrapping_add(1);
                office.booted_ms = self.now_ms;
            }
        }
        office.until_ms = self.now_ms + self.rng.random_range(0..500);
    }

    /// The controller is started, on what the disk holds.
    fn open(&mut self) -> Result<(), String> {
        let office = &mut self.office;
        let opened = open(&self.runtime, &office.path);
        let opened =
            opened.map_err(|error| format!("after {:?} the registry does not open: {error}", office.end))?;
        office.take(opened);
        office.is_open = true;
        office.end = None;
        self.look_for_damage()?;
        self.remind()
    }

    /// Nothing is half done.
    pub(super) fn look_for_damage(&self) -> Result<(), String> {
        match self.runtime.block_on(self.office.registry.check()) {
            Ok(damaged) if damaged.is_empty() => Ok(()),
            found => Err(format!("the registry is damaged: {found:?}")),
        }
    }

    /// What the controller has said, it must still know.
    fn remind(&self) -> Result<(), String> {
        let registry = &self.office.registry;
        for ((gateway, device), mark) in &self.office.promises.marks {
            let leases = self.runtime.block_on(registry.leases_of(*device)).unwrap();
            let lease = leases.iter().find(|lease| lease.gateway == *gateway);
            if lease.is_none_or(|lease| lease.mark.0 < *mark) {
                return Err(format!(
                    "device {device}: rows below {mark} were given to gateway {gateway} before the controller ended, \
                     now there is {lease:?}"
                ));
            }
        }
        for device in &self.office.promises.revoked {
            let info = self.runtime.block_on(registry.get(*device)).unwrap();
            if info.status.is_active() {
                return Err(format!(
                    "after a new start of the controller device {device} is no longer revoked"
                ));
            }
        }
        for device in self.fleet.book.out() {
            let info = self.runtime.block_on(registry.get(device)).unwrap();
            if info.status.is_active() && info.quarantine.is_none() {
                return Err(format!(
                    "after a new start of the controller device {device} is no longer in quarantine"
                ));
            }
        }
        for link in self.processes.iter().filter_map(|process| process.link.as_ref()) {
            let link = self.office.controller.reconnect(link);
            let now = self.office.moment(self.now_ms);
            let asked = self.runtime.block_on(link.changes(Revision(u64::MAX), Some(now)));
            if let Err(RegistryError::OldFence { shown, newest, .. }) = asked
                && newest < shown
            {
                return Err(format!(
                    "after a new start of the controller fence {shown} is unknown, the newest is {newest}"
                ));
            }
        }
        Ok(())
    }

    /// Nothing is wrong any more.
    pub(super) fn repair(&mut self) -> Result<(), String> {
        if self.office.end.is_some() && self.office.is_open {
            // Who was to die lives on.
            self.office.end = None;
        }
        self.office.disk.set_trouble(None);
        match self.office.is_open {
            true => self.look_for_damage(),
            false => self.open(),
        }
    }

    pub(super) fn revoke(&mut self, station: usize) {
        self.tally.revoked += 1;
        self.stations[station].revoked = true;
        self.office.to_revoke.push(self.stations[station].id);
    }

    /// Whoever revokes does so until it is confirmed.
    fn revoke_all(&mut self) {
        if !self.office.is_open {
            return;
        }
        let wall_s = self.wall_s();
        let office = &mut self.office;
        for device in std::mem::take(&mut office.to_revoke) {
            let revoked = self
                .runtime
                .block_on(office.registry.revoke(device, "lost", wall_s));
            match revoked {
                Ok(_) => office.promises.revoked.push(device),
                Err(_) => office.to_revoke.push(device),
            }
        }
    }
}
