//! Files that a person asks a command for: known to be writable before minutes of work, and in no directory that nobody
//! asked for.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Writes a file, over what is there. Its directory must be there.
pub fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<(), Failure> {
    let content = content.as_ref();
    // A pipe or a terminal is written into; only a file can be replaced.
    let written = match path.metadata() {
        Ok(metadata) if !metadata.is_file() => std::fs::write(path, content),
        _ => linewarden_files::replace(path, content),
    };
    written.map_err(|error| Failure::failed(cannot("be written", path, error)))
}

/// As [`write()`], readable by nobody else: for what may have secrets in it.
pub fn write_private(path: &Path, content: impl AsRef<[u8]>) -> Result<(), Failure> {
    let content = content.as_ref();
    let written = match path.metadata() {
        Ok(metadata) if !metadata.is_file() => std::fs::write(path, content),
        _ => linewarden_files::replace_private(path, content),
    };
    written.map_err(|error| Failure::failed(cannot("be written", path, error)))
}

/// As [`check()`], and refuses to write over a file unless that is wanted.
pub fn check_new(path: &Path, force: bool) -> Result<(), Failure> {
    if !force && path.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err(Failure::input(format!(
            "{} exists already; name another file, or overwrite it with --force",
            path.display()
        )));
    }
    check(path)
}

/// Finds out whether [`write()`] could write a file now; leaves everything as it is.
pub fn check(path: &Path) -> Result<(), Failure> {
    match path.metadata() {
        Ok(metadata) if metadata.is_dir() => {
            Err(Failure::input(cannot("be written", path, "it is a directory")))
        }
        // What reads the pipe shall get nothing before its time.
        Ok(metadata) if !metadata.is_file() => Ok(()),
        _ => linewarden_files::can_replace(path)
            .map_err(|error| Failure::input(cannot("be written", path, error))),
    }
}

/// A directory for results. One that was made for them and got none is taken away again.
#[derive(Debug)]
pub struct Directory {
    made: Option<PathBuf>,
}

impl Directory {
    /// Makes it if it is not there, but none above it; files can be put into it.
    pub fn prepare(path: &Path) -> Result<Self, Failure> {
        if path.is_dir() {
            linewarden_files::can_replace(&path.join("result"))
                .map_err(|error| Failure::input(cannot("be written into", path, error)))?;
            return Ok(Self { made: None });
        }
        std::fs::create_dir(path).map_err(|error| Failure::input(cannot("be made", path, error)))?;
        Ok(Self {
            made: Some(path.to_owned()),
        })
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Some(path) = &self.made {
            // Refused where something is in it.
            let _ = std::fs::remove_dir(path);
        }
    }
}

fn cannot(what: &str, path: &Path, why: impl Display) -> String {
    format!("{}: cannot {what}: {why}", path.display())
}
