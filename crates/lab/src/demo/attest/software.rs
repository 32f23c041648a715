//! The measured software of the demonstration's provers: a few files per device, each device in its own directory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use linewarden_measurement::configuration::Configuration;
use linewarden_measurement::files::{FilePath, PathError};

use crate::demo::DemoError;
use crate::fleet::{MeasureError, measure};

const PROGRAM: &str = "usr/bin/sensord";
const SETTINGS: &str = "etc/sensord.conf";
/// A file that differs on every device.
const IDENTITY: &str = "etc/machine-id";
const PROGRAM_BYTES: usize = 4_096;

/// The measured paths on the device.
pub(super) fn paths() -> Result<Arc<[FilePath]>, PathError> {
    [PROGRAM, SETTINGS, IDENTITY]
        .map(|path| FilePath::new(format!("/{path}")))
        .into_iter()
        .collect()
}

fn program_content() -> Vec<u8> {
    (0..PROGRAM_BYTES).map(|at| (at % 251) as u8).collect()
}

/// A device's files.
#[derive(Clone, Debug)]
pub(super) struct Software {
    pub(super) root: PathBuf,
}

impl Software {
    /// Writes the files that all devices share, without the device-specific file.
    pub(super) fn image(root: PathBuf) -> io::Result<Self> {
        let put = |path: &str, content: &[u8]| {
            let path = root.join(path);
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(path, content)
        };
        put(PROGRAM, &program_content())?;
        put(SETTINGS, b"interval_s = 10\n")?;
        Ok(Self { root })
    }

    /// Writes a device's copy of the files, with the device-specific file.
    pub(super) fn install(root: PathBuf, index: u32) -> io::Result<Self> {
        let software = Self::image(root)?;
        fs::write(software.root.join(IDENTITY), format!("{index:032x}\n"))?;
        Ok(software)
    }

    /// The reference value of the group.
    pub(super) fn reference(&self, paths: &[FilePath]) -> Result<Configuration, MeasureError> {
        measure(&self.root, paths)
    }

    /// The device-specific overlay of the group's reference value.
    pub(super) fn overlay(&self) -> Result<Configuration, DemoError> {
        let own = FilePath::new(format!("/{IDENTITY}"))?;
        Ok(measure(&self.root, &[own])?)
    }

    /// Changes one byte of the program.
    pub(super) fn tamper(&self) -> io::Result<()> {
        let mut changed = program_content();
        if let Some(byte) = changed.first_mut() {
            *byte ^= 1;
        }
        fs::write(self.program_path(), changed)
    }

    /// Restores the program.
    pub(super) fn restore(&self) -> io::Result<()> {
        fs::write(self.program_path(), program_content())
    }

    fn program_path(&self) -> PathBuf {
        self.root.join(Path::new(PROGRAM))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_matches_the_group_reference_with_its_overlay_until_a_byte_changes() {
        let directory = tempfile::tempdir().unwrap();
        let paths = paths().unwrap();
        let image = Software::image(directory.path().join("image")).unwrap();
        let device = Software::install(directory.path().join("3"), 3).unwrap();
        let measured = || measure(&device.root, &paths).unwrap().hash();
        let reference = image.reference(&paths).unwrap();
        assert_ne!(measured(), reference.hash());
        let expected = reference.with_overlay(&device.overlay().unwrap()).unwrap().hash();
        assert_eq!(measured(), expected);
        device.tamper().unwrap();
        assert_ne!(measured(), expected);
        device.restore().unwrap();
        assert_eq!(measured(), expected);
    }
}
