//! Memory that outlives the process: maps pinned in the BPF filesystem, which the next process takes up.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use libbpf_rs::{MapCore as _, MapHandle, OpenObject};

use super::attach::{Place, Purpose};
use super::secure;
use crate::DataPlaneError;
use crate::config::Config;
use crate::layout::Control;
use crate::store::Region;
use crate::store::adopt::seed_of;

/// The maps that are state, by name; all others are made anew from the configuration.
const KEPT: [&str; 16] = [
    "lines",
    "sessions",
    "rows",
    "device_index",
    "enrolled",
    "expected",
    "by_address",
    "by_mac",
    "notes",
    "control",
    "percpu",
    // For its counters, which go with those of `percpu`.
    "waiting",
    "sources",
    "down",
    "events",
    "misses",
];

/// Where a gateway's maps are pinned; nobody else gets at them while this lives.
#[derive(Debug)]
pub(super) struct Memory {
    path: PathBuf,
    owner: File,
}

impl Memory {
    /// In the calling thread's network namespace.
    pub(super) fn of(directory: &Path, gateway_id: u32, purpose: Purpose) -> Result<Self, DataPlaneError> {
        let place = Place::of_memory(directory, gateway_id)?;
        Ok(Self {
            owner: place.lock(purpose)?,
            path: place.path,
        })
    }

    /// The hash seed of what lies there, if a gateway of that configuration can take it up.
    pub(super) fn seed(&self, config: &Config) -> Option<[u64; 2]> {
        let control = MapHandle::from_pinned_path(self.path.join("control")).ok()?;
        if control.value_size() as usize != size_of::<Control>() {
            return None;
        }
        let region: Region<Control> = Region::of_bpf_array(control.as_fd(), 1).ok()?;
        seed_of(region.first()?, config)
    }

    /// Gives up what lies there: a program that still runs keeps its maps until another one takes its place.
    pub(super) fn forget(&self) -> Result<bool, DataPlaneError> {
        let mut found = false;
        // By the descriptor: another user's directory could be replaced meanwhile.
        let directory = secure::path_of(&self.owner);
        for name in KEPT {
            let pin = directory.join(name);
            if pin.symlink_metadata().is_ok() {
                found = true;
                std::fs::remove_file(&pin)
                    .map_err(|error| DataPlaneError::kernel(format!("removing {}", pin.display()), error))?;
            }
        }
        Ok(found)
    }

    /// Has the maps of an object that is about to be loaded taken from there, or put there.
    pub(super) fn pin(&self, object: &mut OpenObject) -> Result<(), DataPlaneError> {
        for mut map in object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if KEPT.contains(&name.as_str()) {
                map.set_pin_path(self.path.join(&name))
                    .map_err(|error| DataPlaneError::kernel(format!("pinning map {name}"), error))?;
            }
        }
        Ok(())
    }
}

/// Gives up the memory that a gateway which has ended left below `directory`; `false`: none did.
///
/// # Errors
/// The gateway lives; the system's.
pub fn release_memory(directory: &Path, gateway_id: u32) -> Result<bool, DataPlaneError> {
    if !Place::of_memory(directory, gateway_id)?.path.exists() {
        return Ok(false);
    }
    let memory = Memory::of(directory, gateway_id, Purpose::Remove)?;
    let found = memory.forget()?;
    std::fs::remove_dir(&memory.path)
        .map_err(|error| DataPlaneError::kernel(format!("removing {}", memory.path.display()), error))?;
    Ok(found)
}
