//! Memory that outlives the process: maps pinned in the BPF filesystem, which the next process adopts.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use libbpf_rs::{MapCore as _, MapHandle, OpenObject};

use super::attach::{PinDirectory, Purpose};
use super::pin_security;
use crate::config::Config;
use crate::error::DataPlaneError;
use crate::layout::Control;
use crate::store::Region;
use crate::store::adopt::hash_seed_of;

/// The maps that hold state, by name. All other maps are created from the configuration.
const PINNED: [&str; 16] = [
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
    // Pinned for its counters, which are added to the counters of `percpu`.
    "waiting",
    "sources",
    "down",
    "events",
    "misses",
];

/// The pin directory of a gateway's maps. No other process can use it while this value lives.
#[derive(Debug)]
pub(super) struct PinnedMaps {
    path: PathBuf,
    locked_directory: File,
}

impl PinnedMaps {
    /// Opens and locks the pin directory in the calling thread's network namespace.
    pub(super) fn of(directory: &Path, gateway_id: u32, purpose: Purpose) -> Result<Self, DataPlaneError> {
        let pin_directory = PinDirectory::of_memory(directory, gateway_id)?;
        Ok(Self {
            locked_directory: pin_directory.lock(purpose)?,
            path: pin_directory.path,
        })
    }

    /// The hash seed of the pinned maps, if a gateway with that configuration can adopt them.
    pub(super) fn hash_seed(&self, config: &Config) -> Option<[u64; 2]> {
        let control = MapHandle::from_pinned_path(self.path.join("control")).ok()?;
        if control.value_size() as usize != size_of::<Control>() {
            return None;
        }
        let region: Region<Control> = Region::of_bpf_array(control.as_fd(), 1).ok()?;
        hash_seed_of(region.first()?, config)
    }

    /// Removes the pins. A running program keeps its maps until another program replaces it. Returns whether there was
    /// a pin.
    pub(super) fn unpin(&self) -> Result<bool, DataPlaneError> {
        let mut had_pin = false;
        // Accessed by descriptor: if another user owns the directory, that user could replace it in the meantime.
        let directory = pin_security::path_of(&self.locked_directory);
        for name in PINNED {
            let pin = directory.join(name);
            if pin.symlink_metadata().is_ok() {
                had_pin = true;
                std::fs::remove_file(&pin)
                    .map_err(|error| DataPlaneError::kernel(format!("removing {}", pin.display()), error))?;
            }
        }
        Ok(had_pin)
    }

    /// Makes an object that is about to be loaded use the pinned maps, or pin its maps in this directory.
    pub(super) fn pin(&self, object: &mut OpenObject) -> Result<(), DataPlaneError> {
        for mut map in object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if PINNED.contains(&name.as_str()) {
                map.set_pin_path(self.path.join(&name))
                    .map_err(|error| DataPlaneError::kernel(format!("pinning map {name}"), error))?;
            }
        }
        Ok(())
    }
}

/// Removes the memory that an ended gateway left below `directory`. Returns `false` if there is none.
///
/// # Errors
/// The gateway still runs; errors of the system.
pub fn remove_memory(directory: &Path, gateway_id: u32) -> Result<bool, DataPlaneError> {
    if !PinDirectory::of_memory(directory, gateway_id)?.path.exists() {
        return Ok(false);
    }
    let memory = PinnedMaps::of(directory, gateway_id, Purpose::Remove)?;
    let had_pin = memory.unpin()?;
    std::fs::remove_dir(&memory.path)
        .map_err(|error| DataPlaneError::kernel(format!("removing {}", memory.path.display()), error))?;
    Ok(had_pin)
}
