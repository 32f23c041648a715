//! Reading: the only place of this crate that touches a file system.

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

/// How often a file or a directory that changes while it is read is read again before that is an error.
const ATTEMPTS_MAX: u32 = 4;

/// How much is read at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries, those for absent files and directories included.
    pub entries_max: usize,
    /// Bytes of all files together.
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
    /// The directory that all paths are below cannot be opened.
    #[error("{path}: {source}", path = path.display())]
    Root {
        /// The directory.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// Something is there and cannot be read.
    #[error("{path}: {source}; the measuring process must be able to read all that it measures")]
    Io {
        /// The path.
        path: FilePath,
        /// What the operating system says.
        source: io::Error,
    },
    /// It was another each time.
    #[error(
        "{path} has changed while it was read, {ATTEMPTS_MAX} times: leave out what is written all the time"
    )]
    Unsteady {
        /// The path.
        path: FilePath,
    },
    /// There are too many.
    #[error("more than {entries_max} files and directories, at {path}: list less, or raise the limit")]
    TooMany {
        /// The limit.
        entries_max: usize,
        /// The first that is too many.
        path: FilePath,
    },
    /// They are too long.
    #[error("more than {bytes_max} bytes in all files, at {path}: list less, or raise the limit")]
    TooLong {
        /// The limit.
        bytes_max: u64,
        /// The first that is too long.
        path: FilePath,
    },
    /// A name in this directory makes a path that is too long.
    #[error("a path below {directory} is too long")]
    Path {
        /// The directory.
        directory: FilePath,
    },
}

/// Measures what lies at these paths below `root`, which stands for `/`: directories with all that is in them.
///
/// Symbolic links on the way to a listed path are followed, without leaving `root`; one at its end or inside a directory is
/// measured itself. A file that changes while it is read is read again some times: change is seen by size, times and inode.
/// Two writes within one tick of the kernel's clock (4 ms) and of one size cannot be told apart by these; then the hash is
/// of neither, and the next measurement has another.
///
/// # Errors
/// [`FilesError`], with the path.
pub fn measure(
    root: &Path,
    paths: &[FilePath],
    limits: Limits,
) -> Result<BTreeMap<FilePath, FileEntry>, FilesError> {
    let opened = Root::open(root).map_err(|error| FilesError::Root {
        path: root.to_owned(),
        source: error.into(),
    })?;
    let mut reader = Reader {
        root: opened,
        limits,
        bytes: 0,
    };
    let mut entries = BTreeMap::new();
    let mut waiting: BTreeSet<_> = paths.iter().cloned().collect();
    while let Some(path) = waiting.pop_first() {
        if entries.len() + waiting.len() >= limits.entries_max {
            let entries_max = limits.entries_max;
            return Err(FilesError::TooMany { entries_max, path });
        }
        let (entry, children) = reader.settled(&path)?;
        entries.insert(path, entry);
        waiting.extend(children.into_iter().filter(|child| !entries.contains_key(child)));
    }
    Ok(entries)
}

/// One look at a path: what is there, and what is in it.
type Look = (FileEntry, Vec<FilePath>);

/// Why a look was in vain.
enum Failure {
    /// It changed meanwhile.
    Changed,
    Final(FilesError),
}

struct Reader {
    root: Root,
    limits: Limits,
    /// Read of files that are settled.
    bytes: u64,
}

impl Reader {
    fn settled(&mut self, path: &FilePath) -> Result<Look, FilesError> {
        for _ in 0..ATTEMPTS_MAX {
            match self.look(path) {
                Err(Failure::Changed) => {}
                Err(Failure::Final(error)) => return Err(error),
                Ok(look) => return Ok(look),
            }
        }
        Err(FilesError::Unsteady { path: path.clone() })
    }

    fn look(&mut self, path: &FilePath) -> Result<Look, Failure> {
        let failed = |errno: Errno| io_failure(path, errno.into());
        let found = match self.open(path, OFlags::PATH) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok((FileEntry::Absent, Vec::new())),
            found => found.map_err(failed)?,
        };
        let stat = fstat(&found).map_err(failed)?;
        let mode = mode_of(&stat);
        let device = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
        let entry = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => FileEntry::File {
                mode,
                content: self.hash(path, &stat)?,
            },
            FileType::Directory => return Ok((FileEntry::Directory { mode }, self.list(path, &stat)?)),
            FileType::Symlink => {
                let text = readlinkat(&found, "", Vec::new()).map_err(failed)?;
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

    /// Opens what is at the path itself: never a link's target, and nothing above the root.
    fn open(&self, path: &FilePath, flags: OFlags) -> Result<OwnedFd, Errno> {
        // NONBLOCK: a pipe put in the file's place must not hang us. The kernel takes no flags that mean nothing together with PATH.
        let flags = match flags.contains(OFlags::PATH) {
            true => flags,
            false => flags | OFlags::NONBLOCK | OFlags::NOCTTY,
        };
        self.root.open_at(path.as_bytes(), flags)
    }

    /// Opens what a look has found, for reading; another thing there by now is a change.
    fn open_found(&self, path: &FilePath, found: &Stat, flags: OFlags) -> Result<OwnedFd, Failure> {
        let opened = match self.open(path, OFlags::RDONLY | flags) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO) => return Err(Failure::Changed),
            opened => opened.map_err(|errno| io_failure(path, errno.into()))?,
        };
        self.check_same(path, found, &opened)?;
        Ok(opened)
    }

    fn check_same(&self, path: &FilePath, before: &Stat, file: &OwnedFd) -> Result<(), Failure> {
        let now = fstat(file).map_err(|errno| io_failure(path, errno.into()))?;
        match version(before) == version(&now) {
            true => Ok(()),
            false => Err(Failure::Changed),
        }
    }

    fn hash(&mut self, path: &FilePath, found: &Stat) -> Result<ContentHash, Failure> {
        let failed = |error| io_failure(path, error);
        let mut file = File::from(self.open_found(path, found, OFlags::empty())?);
        let left = self.limits.bytes_max - self.bytes;
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 1 << 16];
        let mut length = 0;
        loop {
            let read = match file.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read.map_err(failed)?,
            };
            if read == 0 {
                break;
            }
            length += read as u64;
            if length > left {
                return Err(Failure::Final(FilesError::TooLong {
                    bytes_max: self.limits.bytes_max,
                    path: path.clone(),
                }));
            }
            hash.update(buffer.get(..read).unwrap_or_default());
        }
        self.check_same(path, found, &file.into())?;
        self.bytes += length;
        Ok(ContentHash(hash.finalize().into()))
    }

    /// What is in a directory.
    fn list(&self, path: &FilePath, found: &Stat) -> Result<Vec<FilePath>, Failure> {
        let failed = |errno: Errno| io_failure(path, errno.into());
        let opened = self.open_found(path, found, OFlags::DIRECTORY)?;
        let mut children = Vec::new();
        for entry in Dir::read_from(&opened).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            children.push(path.join(name).map_err(|_| {
                Failure::Final(FilesError::Path {
                    directory: path.clone(),
                })
            })?);
            if children.len() > self.limits.entries_max {
                break;
            }
        }
        self.check_same(path, found, &opened)?;
        Ok(children)
    }
}

fn io_failure(path: &FilePath, source: io::Error) -> Failure {
    Failure::Final(FilesError::Io {
        path: path.clone(),
        source,
    })
}

fn mode_of(stat: &Stat) -> Mode {
    Mode((stat.st_mode & 0o7777) as u16)
}

/// What changes when a file is written, replaced, or given another mode.
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
