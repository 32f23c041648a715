//! Programs that others end by calling (`bpf/lw_maps.h`): tables of them, and the pin of the table that outlives the process.
//!
//! The kernel empties a table of programs as soon as no process has it open and no pin holds it, even while a program that
//! calls into it stays attached. Each process makes tables of its own, and pins `kept_programs` beside the link of the interface before
//! its program takes the place of the one before. The table of the process before goes afterwards, so that at every moment the
//! program on the interface has a table that is whole.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};

use libbpf_rs::{MapCore, MapFlags, MapHandle, ProgramMut};

use super::skeleton::gateway::GatewaySkel;
use crate::DataPlaneError;

/// Numbers in `enum lw_program`.
pub(super) const PROOF: u32 = 0;
pub(super) const P4DRA: u32 = 1;
const STAMP: u32 = 2;
/// Number in `enum lw_kept_program`.
const KEPT_GATEWAY: u32 = 0;

/// Puts the programs that are loaded where others call them, before anything is attached.
pub(super) fn link_all(skeleton: &GatewaySkel<'_>) -> Result<(), DataPlaneError> {
    let (programs, progs) = (&skeleton.maps.programs, &skeleton.progs);
    let is_sealed = progs.linewarden_seal.autoload();
    for (is_called, table, number, program) in [
        (
            is_sealed,
            &skeleton.maps.kept_programs,
            KEPT_GATEWAY,
            &progs.linewarden_gateway,
        ),
        (
            progs.linewarden_proof.autoload(),
            programs,
            PROOF,
            &progs.linewarden_proof,
        ),
        (
            progs.linewarden_p4dra.autoload(),
            programs,
            P4DRA,
            &progs.linewarden_p4dra,
        ),
        (
            progs.linewarden_stamp.autoload(),
            programs,
            STAMP,
            &progs.linewarden_stamp,
        ),
    ] {
        if is_called {
            link(table, number, program)?;
        }
    }
    Ok(())
}

/// Puts a program where another one calls it by its number.
pub(super) fn link(
    programs: &dyn MapCore,
    number: u32,
    program: &ProgramMut<'_>,
) -> Result<(), DataPlaneError> {
    let fd = program.as_fd().as_raw_fd();
    programs
        .update(&number.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)
        .map_err(|error| DataPlaneError::kernel("linking the programs", error))
}

/// What a pin is called, with a number behind.
const NAME: &str = "programs-";

/// Pins a table in an interface's directory, beside those that are there.
pub(super) fn pin(table: &mut MapHandle, directory: &Path) -> Result<PathBuf, DataPlaneError> {
    let used = tables(directory)?;
    let mut paths = (0u32..).map(|number| directory.join(format!("{NAME}{number}")));
    let free = paths.find(|path| !used.contains(path)).unwrap_or_default();
    table
        .pin(&free)
        .map_err(|error| DataPlaneError::kernel(format!("pinning {}", free.display()), error))?;
    Ok(free)
}

/// Removes all pins of tables in an interface's directory but this one.
pub(super) fn remove_but(kept: Option<&Path>, directory: &Path) -> Result<(), DataPlaneError> {
    for path in tables(directory)? {
        if kept != Some(&path) {
            std::fs::remove_file(&path)
                .map_err(|error| DataPlaneError::kernel(format!("removing {}", path.display()), error))?;
        }
    }
    Ok(())
}

fn tables(directory: &Path) -> Result<Vec<PathBuf>, DataPlaneError> {
    let entries = std::fs::read_dir(directory)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| DataPlaneError::kernel(format!("reading {}", directory.display()), error))?;
    let is_table = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(NAME))
    };
    Ok(entries
        .iter()
        .map(std::fs::DirEntry::path)
        .filter(is_table)
        .collect())
}
