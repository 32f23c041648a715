//! Programs that other programs tail-call (`bpf/lw_maps.h`): tables of programs, and the pin of the table that
//! outlives the process.
//!
//! The kernel empties a table of programs as soon as no process has it open and no pin holds it, even while a program
//! that calls into it stays attached. Each process creates its own tables, and pins `kept_programs` beside the link
//! of the interface before its program replaces the earlier one. The earlier process's table is removed afterwards,
//! so that the program on the interface always has a complete table.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};

use libbpf_rs::{MapCore, MapFlags, MapHandle, ProgramMut};

use super::skeleton::gateway::GatewaySkel;
use crate::error::DataPlaneError;

/// Numbers in `enum lw_program`.
pub(super) const PROOF: u32 = 0;
const STAMP: u32 = 1;
/// Number in `enum lw_pinned_program`.
const KEPT_GATEWAY: u32 = 0;

/// Puts the loaded programs into the tables from which others call them, before anything is attached.
pub(super) fn fill_tables(skeleton: &GatewaySkel<'_>) -> Result<(), DataPlaneError> {
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
            progs.linewarden_stamp.autoload(),
            programs,
            STAMP,
            &progs.linewarden_stamp,
        ),
    ] {
        if is_called {
            set_program(table, number, program)?;
        }
    }
    Ok(())
}

/// Puts a program into the table from which another program calls it by number.
pub(super) fn set_program(
    programs: &dyn MapCore,
    number: u32,
    program: &ProgramMut<'_>,
) -> Result<(), DataPlaneError> {
    let fd = program.as_fd().as_raw_fd();
    programs
        .update(&number.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)
        .map_err(|error| DataPlaneError::kernel("writing the table of programs", error))
}

/// Prefix of a pin's name; a number follows.
const PIN_PREFIX: &str = "programs-";

/// Pins a table in an interface's directory, in addition to existing pins.
pub(super) fn pin(table: &mut MapHandle, directory: &Path) -> Result<PathBuf, DataPlaneError> {
    let used = pinned_tables(directory)?;
    let mut paths = (0u32..).map(|number| directory.join(format!("{PIN_PREFIX}{number}")));
    let free_path = paths.find(|path| !used.contains(path)).unwrap_or_default();
    table
        .pin(&free_path)
        .map_err(|error| DataPlaneError::kernel(format!("pinning {}", free_path.display()), error))?;
    Ok(free_path)
}

/// Removes all pins of tables in an interface's directory except `kept`.
pub(super) fn remove_others(kept: Option<&Path>, directory: &Path) -> Result<(), DataPlaneError> {
    for path in pinned_tables(directory)? {
        if kept != Some(&path) {
            std::fs::remove_file(&path)
                .map_err(|error| DataPlaneError::kernel(format!("removing {}", path.display()), error))?;
        }
    }
    Ok(())
}

fn pinned_tables(directory: &Path) -> Result<Vec<PathBuf>, DataPlaneError> {
    let entries = std::fs::read_dir(directory)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| DataPlaneError::kernel(format!("reading {}", directory.display()), error))?;
    let is_table = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(PIN_PREFIX))
    };
    Ok(entries
        .iter()
        .map(std::fs::DirEntry::path)
        .filter(is_table)
        .collect())
}
