//! Files of commands: output files, and messages that operator and device exchange. A command checks before a long operation that it can write its files. A command creates
//! only a directory that the user has named, and not the parents of the directory.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Writes a file and replaces an existing one. The directory must exist.
pub fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<(), Failure> {
    let content = content.as_ref();
    // A pipe or terminal is opened and written; only a regular file is replaced.
    let result = match path.metadata() {
        Ok(metadata) if !metadata.is_file() => std::fs::write(path, content),
        _ => linewarden_files::replace(path, content),
    };
    result.map_err(|error| Failure::failed(error_text("be written", path, error)))
}

/// As [`write()`], for content that may include secrets: only the owner can read the file.
pub fn write_private(path: &Path, content: impl AsRef<[u8]>) -> Result<(), Failure> {
    let content = content.as_ref();
    let result = match path.metadata() {
        Ok(metadata) if !metadata.is_file() => std::fs::write(path, content),
        _ => linewarden_files::replace_private(path, content),
    };
    result.map_err(|error| Failure::failed(error_text("be written", path, error)))
}

/// Reads a message of at most `bytes_max` bytes; `expected` names the message in errors.
///
/// # Errors
/// The file cannot be read, is damaged, or is another message.
pub fn read_message<M, E: Display>(
    path: &Path,
    bytes_max: usize,
    expected: &str,
    parse: impl FnOnce(&[u8]) -> Result<M, E>,
) -> Result<M, Failure> {
    let bytes = linewarden_files::read_bounded(path, bytes_max)
        .map_err(|error| Failure::input(error_text("be read", path, error)))?;
    parse(&bytes).map_err(|error| {
        Failure::input(format!(
            "{}: expected {expected}: {error}; transfer the right file again",
            path.display()
        ))
    })
}

/// As [`check()`], but refuses to overwrite an existing file unless `force` is set.
pub fn check_new(path: &Path, force: bool) -> Result<(), Failure> {
    if !force && path.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err(Failure::input(format!(
            "{} already exists: name another file, or overwrite it with --force",
            path.display()
        )));
    }
    check(path)
}

/// Returns an error if [`write()`] could not write the file. An existing file is not changed.
pub fn check(path: &Path) -> Result<(), Failure> {
    match path.metadata() {
        Ok(metadata) if metadata.is_dir() => Err(Failure::input(error_text(
            "be written",
            path,
            "it is a directory",
        ))),
        // Opening a pipe would signal its reader too early.
        Ok(metadata) if !metadata.is_file() => Ok(()),
        _ => linewarden_files::can_replace(path)
            .map_err(|error| Failure::input(error_text("be written", path, error))),
    }
}

/// A directory for output files. On drop, the directory is removed if [`Directory::prepare`] created it and it is empty.
#[derive(Debug)]
pub struct Directory {
    /// `None` if the directory existed before.
    created_path: Option<PathBuf>,
}

impl Directory {
    /// Creates the directory, but not its parents. If the directory exists, checks that files can be written to it.
    pub fn prepare(path: &Path) -> Result<Self, Failure> {
        if path.is_dir() {
            linewarden_files::can_replace(&path.join("result"))
                .map_err(|error| Failure::input(error_text("be written into", path, error)))?;
            return Ok(Self { created_path: None });
        }
        std::fs::create_dir(path).map_err(|error| Failure::input(error_text("be created", path, error)))?;
        Ok(Self {
            created_path: Some(path.to_owned()),
        })
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Some(path) = &self.created_path {
            // The call fails if the directory is not empty.
            let _ = std::fs::remove_dir(path);
        }
    }
}

fn error_text(operation: &str, path: &Path, reason: impl Display) -> String {
    format!("{}: cannot {operation}: {reason}", path.display())
}
