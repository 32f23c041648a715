//! Reads files and directories. Only this module and `walk` access a file system.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, FileType, OFlags, Stat, fstat, readlinkat};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use super::walk::Root;
use super::{ContentHash, FileEntry, FilePath, LinkTarget, Mode};

/// Number of attempts to read a file or a directory that changes while it is read.
const ATTEMPTS_MAX: u32 = 4;

/// Limits of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of entries, including entries for absent files and for directories.
    pub entries_max: usize,
    /// Maximum total length of all files, bytes.
    pub bytes_max: u64,
}

impl Default for Limits {
    /// 16,384 entries, and 1 GiB, which takes seconds.
    fn default() -> Self {
        Self {
            entries_max: 16_384,
            bytes_max: 1 << 30,
        }
    }
}

/// Why a set of files cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The root directory of all paths cannot be opened.
    #[error("root directory {path} cannot be opened: {source}", path = path.display())]
    Root {
        /// The directory.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The path exists but cannot be read.
    #[error("{path} cannot be read: {source}; give the measuring process access")]
    Io {
        /// The path.
        path: FilePath,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The path changed during each attempt.
    #[error(
        "{path} changed during each of {ATTEMPTS_MAX} attempts to read it; exclude files that are written constantly"
    )]
    ChangedWhileRead {
        /// The path.
        path: FilePath,
    },
    /// Too many entries.
    #[error(
        "too many files and directories: the limit of {entries_max} was exceeded at {path}; list fewer, or raise the limit"
    )]
    TooManyEntries {
        /// The limit.
        entries_max: usize,
        /// The path at which the limit was exceeded.
        path: FilePath,
    },
    /// Too many bytes.
    #[error(
        "too many bytes: the limit of {bytes_max} for all files was exceeded at {path}; list fewer, or raise the limit"
    )]
    TooManyBytes {
        /// The limit.
        bytes_max: u64,
        /// The path at which the limit was exceeded.
        path: FilePath,
    },
    /// A name in this directory makes a path that is too long.
    #[error("path too long below {directory}")]
    PathTooLong {
        /// The directory.
        directory: FilePath,
    },
}

/// Measures the entries at these paths and, recursively, the contents of directories. `root` is the directory that
/// represents `/`.
///
/// Symbolic links before the end of a listed path are followed, without leaving `root`; a link at the end of a listed
/// path or inside a directory is measured itself. A file that changes during the read is read again a few times: size,
/// mode, times and inode show a change. Two writes of the same size within one tick of the kernel's clock (1 to 10 ms),
/// with a read between them, are not detected; the hash may then mix both contents, and the next measurement differs.
///
/// # Errors
/// [`FilesError`], with the path.
pub fn measure(
    root: &Path,
    paths: &[FilePath],
    limits: Limits,
) -> Result<BTreeMap<FilePath, FileEntry>, FilesError> {
    let root_directory = Root::open(root).map_err(|error| FilesError::Root {
        path: root.to_owned(),
        source: error.into(),
    })?;
    let mut reader = Reader {
        root: root_directory,
        limits,
        bytes_read: 0,
    };
    let mut entries = BTreeMap::new();
    let mut pending: BTreeSet<_> = paths.iter().cloned().collect();
    while let Some(path) = pending.pop_first() {
        if entries.len() + pending.len() >= limits.entries_max {
            let entries_max = limits.entries_max;
            return Err(FilesError::TooManyEntries { entries_max, path });
        }
        let (entry, children) = reader.observe_stable(&path)?;
        entries.insert(path, entry);
        pending.extend(children.into_iter().filter(|child| !entries.contains_key(child)));
    }
    Ok(entries)
}

/// One observation of a path: its entry and, for a directory, its contents.
type Observation = (FileEntry, Vec<FilePath>);

/// Why an observation failed.
enum ObservationError {
    /// The path changed during the observation.
    Changed,
    Final(FilesError),
}

struct Reader {
    root: Root,
    limits: Limits,
    /// Total length of the files that were read without a change.
    bytes_read: u64,
}

impl Reader {
    fn observe_stable(&mut self, path: &FilePath) -> Result<Observation, FilesError> {
        for _ in 0..ATTEMPTS_MAX {
            match self.observe(path) {
                Err(ObservationError::Changed) => {}
                Err(ObservationError::Final(error)) => return Err(error),
                Ok(observation) => return Ok(observation),
            }
        }
        Err(FilesError::ChangedWhileRead { path: path.clone() })
    }

    fn observe(&mut self, path: &FilePath) -> Result<Observation, ObservationError> {
        let failed = |errno: Errno| io_failure(path, errno.into());
        let file = match self.open(path, OFlags::PATH) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok((FileEntry::Absent, Vec::new())),
            file => file.map_err(failed)?,
        };
        let stat = fstat(&file).map_err(failed)?;
        let mode = mode_of(&stat);
        let device = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
        let entry = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => FileEntry::File {
                mode,
                content: self.hash(path, &stat)?,
            },
            FileType::Directory => return Ok((FileEntry::Directory { mode }, self.list(path, &stat)?)),
            FileType::Symlink => {
                let text = readlinkat(&file, "", Vec::new()).map_err(failed)?;
                let target = LinkTarget::new(text.into_bytes());
                FileEntry::Link {
                    target: target.ok_or_else(|| io_failure(path, io::ErrorKind::InvalidData.into()))?,
                }
            }
            FileType::Fifo => FileEntry::Fifo { mode },
            FileType::Socket => FileEntry::Socket { mode },
            FileType::CharacterDevice => FileEntry::CharacterDevice { mode, device },
            FileType::BlockDevice => FileEntry::BlockDevice { mode, device },
            FileType::Unknown => return Err(io_failure(path, io::ErrorKind::Unsupported.into())),
        };
        Ok((entry, Vec::new()))
    }

    /// Opens the path itself: never a link's target, and nothing outside the root.
    fn open(&self, path: &FilePath, flags: OFlags) -> Result<OwnedFd, Errno> {
        // NONBLOCK: a FIFO that replaced the file must not block. The kernel rejects other flags together with PATH.
        let flags = match flags.contains(OFlags::PATH) {
            true => flags,
            false => flags | OFlags::NONBLOCK | OFlags::NOCTTY,
        };
        self.root.open_at(path.as_bytes(), flags)
    }

    /// Opens an observed file for reading; a different file at the path is a change.
    fn open_observed(
        &self,
        path: &FilePath,
        observed: &Stat,
        flags: OFlags,
    ) -> Result<OwnedFd, ObservationError> {
        let opened = match self.open(path, OFlags::RDONLY | flags) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO) => {
                return Err(ObservationError::Changed);
            }
            opened => opened.map_err(|errno| io_failure(path, errno.into()))?,
        };
        self.check_unchanged(path, observed, &opened)?;
        Ok(opened)
    }

    fn check_unchanged(
        &self,
        path: &FilePath,
        before: &Stat,
        file: &OwnedFd,
    ) -> Result<(), ObservationError> {
        let after = fstat(file).map_err(|errno| io_failure(path, errno.into()))?;
        match version(before) == version(&after) {
            true => Ok(()),
            false => Err(ObservationError::Changed),
        }
    }

    fn hash(&mut self, path: &FilePath, observed: &Stat) -> Result<ContentHash, ObservationError> {
        let failed = |error| io_failure(path, error);
        let mut file = File::from(self.open_observed(path, observed, OFlags::empty())?);
        let remaining = self.limits.bytes_max - self.bytes_read;
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 1 << 16];
        let mut length = 0;
        loop {
            let count = match file.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                count => count.map_err(failed)?,
            };
            if count == 0 {
                break;
            }
            length += count as u64;
            if length > remaining {
                return Err(ObservationError::Final(FilesError::TooManyBytes {
                    bytes_max: self.limits.bytes_max,
                    path: path.clone(),
                }));
            }
            hash.update(buffer.get(..count).unwrap_or_default());
        }
        self.check_unchanged(path, observed, &file.into())?;
        self.bytes_read += length;
        Ok(ContentHash(hash.finalize().into()))
    }

    /// The contents of a directory.
    fn list(&self, path: &FilePath, observed: &Stat) -> Result<Vec<FilePath>, ObservationError> {
        let failed = |errno: Errno| io_failure(path, errno.into());
        let opened = self.open_observed(path, observed, OFlags::DIRECTORY)?;
        let mut children = Vec::new();
        for entry in Dir::read_from(&opened).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            children.push(path.join(name).map_err(|_| {
                ObservationError::Final(FilesError::PathTooLong {
                    directory: path.clone(),
                })
            })?);
            if children.len() > self.limits.entries_max {
                break;
            }
        }
        self.check_unchanged(path, observed, &opened)?;
        Ok(children)
    }
}

fn io_failure(path: &FilePath, source: io::Error) -> ObservationError {
    ObservationError::Final(FilesError::Io {
        path: path.clone(),
        source,
    })
}

fn mode_of(stat: &Stat) -> Mode {
    Mode((stat.st_mode & 0o7777) as u16)
}

/// Properties that change when a file is written, replaced, or gets another mode.
fn version(stat: &Stat) -> impl PartialEq + use<> {
    (
        (stat.st_dev, stat.st_ino, stat.st_mode, stat.st_size),
        (
            stat.st_mtime,
            stat.st_mtime_nsec,
            stat.st_ctime,
            stat.st_ctime_nsec,
        ),
    )
}
