//! The host of controller and registry: the process is killed, the disk is full or fails, the power fails.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use linewarden_controller::Controller;
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode};
use linewarden_registry::{FencingError, MasterKey, Options, Registry, RegistryError};
use linewarden_types::{BootId, BootTimestamp, Provision, Revision};
use rand::RngExt as _;
use rustix::fs::XattrFlags;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::restore::Backup;
use super::{Mechanism, Simulation};
use crate::disk::{Disk, DiskFault};

/// Page sizes of the database, B: with small pages the log is checkpointed often.
const PAGE_SIZES_BYTES: [u32; 2] = [512, 16_384];
/// A controller process ends at the latest after this time in ms, even if its planned last system call does not occur.
const LATEST_MS: u64 = 300;

/// How the controller process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Killed,
    PowerLost,
}

/// State that the controller has confirmed.
#[derive(Default)]
struct ConfirmedState {
    /// By gateway and device: the mark, below which rows may be spent. A mark is removed when the gateway reports
    /// unused rows.
    marks: BTreeMap<(GatewayId, DeviceId), u32>,
    revoked: Vec<DeviceId>,
}

pub(super) struct ControllerHost {
    registry: Registry,
    pub(super) controller: Controller,
    pub(super) path: PathBuf,
    pub(super) backup: Option<Backup>,
    disk: Disk,
    /// Dropped after the disk.
    _directory: TempDir,
    /// Number of boots of the host.
    boots: u8,
    /// Time of the last boot of the host.
    booted_ms: u64,
    /// Number of starts of the controller.
    pub(super) started: u64,
    pub(super) is_open: bool,
    /// Time of the next change: the end of a temporary fault, the end of the process at the latest, or its next start.
    until_ms: u64,
    end: Option<End>,
    confirmed: ConfirmedState,
    /// Revocations without a confirmation.
    revocations_pending: Vec<DeviceId>,
}

pub(super) fn key() -> MasterKey {
    MasterKey::from_bytes([1; 32])
}

/// Opens the registry with a storage period of 24 h, so leases of a process advance the storage counter only once. With
/// a shorter period, the machine's clock would decide, which is not the simulation's clock.
pub(super) fn open(runtime: &Runtime, path: &Path) -> Result<Registry, RegistryError> {
    let options = Options {
        storage_period: Duration::from_secs(24 * 3600),
        ..Options::default()
    };
    runtime.block_on(Registry::open_with(path, &key(), &options))
}

/// A registry, and the files that identify its storage.
struct RegistryTemplate {
    content: Vec<u8>,
    record: Vec<u8>,
    attribute: Option<[u8; 16]>,
}

impl RegistryTemplate {
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

/// Returns an empty registry with the page size `PAGE_SIZES_BYTES[size_index]`, which is created once.
fn registry_template(runtime: &Runtime, size_index: usize) -> &'static RegistryTemplate {
    static TEMPLATES: [OnceLock<RegistryTemplate>; PAGE_SIZES_BYTES.len()] =
        [const { OnceLock::new() }; PAGE_SIZES_BYTES.len()];
    TEMPLATES[size_index].get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("registry");
        let options = Options {
            page_size_bytes: PAGE_SIZES_BYTES[size_index],
            ..Options::default()
        };
        let created = runtime.block_on(Registry::create_with(&path, &key(), &options));
        runtime.block_on(created.unwrap().close());
        RegistryTemplate::read(&path)
    })
}

impl ControllerHost {
    pub(super) fn new(runtime: &Runtime, seed: u64, without: Option<Mechanism>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("registry");
        registry_template(runtime, seed as usize % PAGE_SIZES_BYTES.len()).write(&path);
        let disk = Disk::new(directory.path(), seed);
        if without == Some(Mechanism::Sync) {
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
            confirmed: ConfirmedState::default(),
            revocations_pending: Vec::new(),
        }
    }

    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The boot-time clock.
    pub(super) fn moment(&self, now_ms: u64) -> BootTimestamp {
        BootTimestamp {
            boot_id: BootId([self.boots; 16]),
            ns: (now_ms - self.booted_ms).cast_signed() * 1_000_000,
        }
    }

    /// Removes the disk until it is reattached.
    pub(super) fn remove_disk(&mut self) {
        self.disk.set_fault(Some(DiskFault::Gone));
        self.until_ms = u64::MAX;
    }

    pub(super) fn reattach_disk(&mut self) {
        self.until_ms = 0;
    }

    /// Records the marks in rows that a gateway was granted.
    pub(super) fn record_granted<'a>(
        &mut self,
        gateway: GatewayId,
        provisions: impl IntoIterator<Item = &'a Provision>,
    ) {
        for provision in provisions
            .into_iter()
            .filter(|granted| granted.mode == Mode::Pool)
        {
            let mark = self
                .confirmed
                .marks
                .entry((gateway, provision.device))
                .or_default();
            *mark = provision.mark.0.max(*mark);
        }
    }

    /// Forgets the mark of a device, because the gateway reports the device's unused rows.
    pub(super) fn forget_mark(&mut self, gateway: GatewayId, device: DeviceId) {
        self.confirmed.marks.remove(&(gateway, device));
    }

    /// Devices with a confirmed revocation.
    pub(super) fn revoked(&self) -> &[DeviceId] {
        &self.confirmed.revoked
    }

    /// Records a restore of a backup that contains the revocations `revoked`. Devices that were revoked after the backup are
    /// revoked again.
    pub(super) fn restore(&mut self, revoked: &[DeviceId]) {
        self.disk.reread();
        let revoked_since = self.confirmed.revoked.iter();
        let revoked_since = revoked_since.filter(|device| !revoked.contains(device)).copied();
        self.revocations_pending.extend(revoked_since);
        self.confirmed = ConfirmedState {
            revoked: revoked.to_vec(),
            ..ConfirmedState::default()
        };
    }

    /// Records that a new controller process has opened the registry.
    pub(super) fn replace_controller(&mut self, registry: Registry) {
        self.controller = Controller::new(registry.clone(), super::POLICY);
        self.registry = registry;
        self.started += 1;
    }

    /// Whether the controller works without a fault.
    pub(super) fn is_healthy(&self) -> bool {
        self.is_open && self.end.is_none() && self.disk.fault().is_none()
    }
}

impl Simulation {
    /// Injects a fault of the controller.
    pub(super) fn inject_controller_fault(&mut self) {
        if !self.controller_host.is_open || self.controller_host.end.is_some() {
            return;
        }
        let duration_ms = self.rng.random_range(50..2_000);
        let calls = self.rng.random_range(0..24);
        let host = &mut self.controller_host;
        // The process may also end while its disk is full or fails.
        let outcome = match host.is_healthy() {
            true => self.rng.random_range(0..8),
            false => self.rng.random_range(4..8),
        };
        let end = match outcome {
            0..3 => return self.inject_temporary_fault(outcome, duration_ms),
            3 | 4 => End::Killed,
            _ => End::PowerLost,
        };
        host.end = Some(end);
        host.until_ms = self.now_ms + LATEST_MS;
        host.disk.end_after(calls);
    }

    /// Injects a temporary fault: the disk is full or fails, or the controller is stopped.
    fn inject_temporary_fault(&mut self, kind: u32, duration_ms: u64) {
        let host = &mut self.controller_host;
        host.until_ms = self.now_ms + duration_ms;
        match kind {
            0 => {
                self.tally.full_disks += 1;
                host.disk.set_fault(Some(DiskFault::Full));
            }
            1 => {
                self.tally.failing_disks += 1;
                host.disk.set_fault(Some(DiskFault::Failing));
            }
            _ => {
                self.tally.controller_stops += 1;
                self.runtime.block_on(host.registry.clone().close());
                host.is_open = false;
            }
        }
    }

    /// Does the controller's part of a step.
    pub(super) fn step_controller(&mut self) -> Result<(), String> {
        let has_ended = self.controller_host.until_ms <= self.now_ms;
        let fault = self.controller_host.disk.fault();
        if let (true, Some(end)) = (self.controller_host.is_open, self.controller_host.end) {
            if has_ended || fault == Some(DiskFault::Gone) {
                self.end_controller(end);
            }
        } else if !self.controller_host.is_open && has_ended {
            self.start_controller()?;
        } else if has_ended && fault.is_some() {
            self.controller_host.disk.set_fault(None);
            self.check_registry()?;
        }
        self.revoke_all();
        Ok(())
    }

    fn end_controller(&mut self, end: End) {
        let host = &mut self.controller_host;
        host.disk.set_fault(Some(DiskFault::Gone));
        self.runtime.block_on(host.registry.clone().close());
        host.is_open = false;
        match end {
            End::Killed => {
                self.tally.controller_kills += 1;
                host.disk.set_fault(None);
            }
            End::PowerLost => {
                self.tally.power_losses += 1;
                host.disk.lose_power();
                host.boots = host.boots.wrapping_add(1);
                host.booted_ms = self.now_ms;
            }
        }
        host.until_ms = self.now_ms + self.rng.random_range(0..500);
    }

    /// Starts the controller on the disk's content.
    fn start_controller(&mut self) -> Result<(), String> {
        let host = &mut self.controller_host;
        let registry = open(&self.runtime, &host.path);
        let registry =
            registry.map_err(|error| format!("after {:?} the registry does not open: {error}", host.end))?;
        host.replace_controller(registry);
        host.is_open = true;
        host.end = None;
        self.check_registry()?;
        self.check_confirmed_state()
    }

    /// Checks that no write is partial.
    pub(super) fn check_registry(&self) -> Result<(), String> {
        match self.runtime.block_on(self.controller_host.registry.check()) {
            Ok(damaged) if damaged.is_empty() => Ok(()),
            result => Err(format!("the registry is damaged: {result:?}")),
        }
    }

    /// Checks that the controller has everything that it has confirmed.
    fn check_confirmed_state(&self) -> Result<(), String> {
        let registry = &self.controller_host.registry;
        for ((gateway, device), mark) in &self.controller_host.confirmed.marks {
            let leases = self.runtime.block_on(registry.leases_of(*device)).unwrap();
            let lease = leases.iter().find(|lease| lease.gateway == *gateway);
            if lease.is_none_or(|lease| lease.mark.0 < *mark) {
                return Err(format!(
                    "device {device}: rows below {mark} were leased to gateway {gateway} before the controller ended, \
                     now there is {lease:?}"
                ));
            }
        }
        for device in &self.controller_host.confirmed.revoked {
            let info = self.runtime.block_on(registry.get(*device)).unwrap();
            if info.status.is_active() {
                return Err(format!(
                    "after a new start of the controller device {device} is no longer revoked"
                ));
            }
        }
        for device in self.fleet.rounds.quarantined() {
            let info = self.runtime.block_on(registry.get(device)).unwrap();
            if info.status.is_active() && info.quarantine.is_none() {
                return Err(format!(
                    "after a new start of the controller device {device} is no longer in quarantine"
                ));
            }
        }
        for link in self.processes.iter().filter_map(|process| process.link.as_ref()) {
            let link = self.controller_host.controller.reconnect(link);
            let now = self.controller_host.moment(self.now_ms);
            let result = self
                .runtime
                .block_on(link.changes_since(Revision(u64::MAX), Some(now)));
            if let Err(RegistryError::Fencing(FencingError::StaleFencingToken {
                presented, newest, ..
            })) = result
                && newest < presented
            {
                return Err(format!(
                    "after a restart of the controller the fencing token {presented} is unknown, the newest is {newest}"
                ));
            }
        }
        Ok(())
    }

    /// Ends all faults.
    pub(super) fn repair(&mut self) -> Result<(), String> {
        if self.controller_host.end.is_some() && self.controller_host.is_open {
            // A process with a planned end keeps running.
            self.controller_host.end = None;
        }
        self.controller_host.disk.set_fault(None);
        match self.controller_host.is_open {
            true => self.check_registry(),
            false => self.start_controller(),
        }
    }

    pub(super) fn revoke(&mut self, device_index: usize) {
        self.tally.revoked += 1;
        self.devices[device_index].revoked = true;
        self.controller_host
            .revocations_pending
            .push(self.devices[device_index].id);
    }

    /// Retries revocations until they are confirmed.
    fn revoke_all(&mut self) {
        if !self.controller_host.is_open {
            return;
        }
        let wall_s = self.wall_s();
        let host = &mut self.controller_host;
        for device in std::mem::take(&mut host.revocations_pending) {
            let revoked = self
                .runtime
                .block_on(host.registry.revoke(device, "lost", wall_s));
            match revoked {
                Ok(_) => host.confirmed.revoked.push(device),
                Err(_) => host.revocations_pending.push(device),
            }
        }
    }
}
