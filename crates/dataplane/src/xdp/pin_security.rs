//! Checks which users can write to the directories of pinned BPF objects. A pin is a name: a user who can write to its
//! directory can replace the gate's program or maps, and the next gateway would adopt them.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Write permission of a directory's group and of others. The sticky bit is not sufficient, because it
/// does not prevent the creation of files.
const OTHERS_WRITE: u32 = 0o022;

/// A directory in which another user could plant pins.
#[derive(Debug, thiserror::Error)]
pub enum InsecureDirectory {
    /// Another user owns the directory.
    #[error(
        "insecure pin directory {path}: user {uid} owns it and could plant BPF objects; use another directory, or run `chown root {path}`"
    )]
    Owner {
        /// The directory.
        path: PathBuf,
        /// Owner of the directory.
        uid: u32,
    },
    /// Other users can write to the directory.
    #[error(
        "insecure pin directory {path}: with mode {mode:04o} other users could plant BPF objects; run `chmod go-w {path}`, and mount this BPF filesystem with \
         the option `mode=0700`"
    )]
    Mode {
        /// The directory.
        path: PathBuf,
        /// Mode of the directory.
        mode: u32,
    },
    /// The directory cannot be inspected.
    #[error("checking pin directory {path} failed: {source}")]
    System {
        /// The directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// Whether a file is on the BPF filesystem.
pub(super) fn is_on_bpf_filesystem(file: &File) -> io::Result<bool> {
    // SAFETY: zero is a valid statfs.
    let mut status: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the pointer is to a statfs of ours.
    if unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut status) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(status.f_type == libc::BPF_FS_MAGIC)
}

/// Opens a directory itself; a symbolic link in its place is not followed.
pub(super) fn open_directory(path: &Path) -> io::Result<File> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Opens a pin itself; a symbolic link in its place is not followed.
pub(super) fn open_pin(path: &Path) -> io::Result<File> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    let pin = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    match pin.metadata()?.is_file() {
        true => Ok(pin),
        false => Err(io::Error::other("not a pin")),
    }
}

/// A path to the open file, even if its name has been reused (proc_pid_fd(5)).
pub(super) fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Refuses a directory if another user can write to it or to one of its ancestors on the BPF filesystem. Directories
/// may belong to root, to this user, and to the owner of the filesystem's root: root mounts it for a service without
/// privileges. Each parent is opened by the descriptor of its child, so that a renamed directory does not affect the check.
///
/// # Errors
/// The first insecure directory.
pub(super) fn check(directory: &File, path: &Path) -> Result<(), InsecureDirectory> {
    let ancestors = ancestors_on_bpf_filesystem(directory, path)?;
    // SAFETY: takes no pointer.
    let process_uid = unsafe { libc::geteuid() };
    let root_owner = ancestors.last().map_or(0, |(_, uid, _)| *uid);
    for (path, uid, mode) in ancestors {
        if ![0, process_uid, root_owner].contains(&uid) {
            return Err(InsecureDirectory::Owner { path, uid });
        }
        if mode & OTHERS_WRITE != 0 {
            return Err(InsecureDirectory::Mode { path, mode });
        }
    }
    Ok(())
}

/// The directory and its ancestors on the BPF filesystem, with owners and modes.
fn ancestors_on_bpf_filesystem(
    directory: &File,
    path: &Path,
) -> Result<Vec<(PathBuf, u32, u32)>, InsecureDirectory> {
    let mut path = path.to_owned();
    let mut ancestors = Vec::new();
    let to_error = |path: &Path| {
        let path = path.to_owned();
        move |source| InsecureDirectory::System { path, source }
    };
    let mut current = directory.try_clone().map_err(to_error(&path))?;
    while is_on_bpf_filesystem(&current).map_err(to_error(&path))? {
        let status = current.metadata().map_err(to_error(&path))?;
        ancestors.push((path.clone(), status.uid(), status.mode() & 0o7777));
        current = parent(&current).map_err(to_error(&path))?;
        path.pop();
    }
    Ok(ancestors)
}

/// The parent of a directory, also across a mount.
fn parent(directory: &File) -> io::Result<File> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the descriptor is open, and the name a literal that ends in 0.
    let fd = unsafe { libc::openat(directory.as_raw_fd(), c"..".as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened; no other owner exists.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// The reason why `directory`, which need not exist yet, is not secure for pins. `None`: owners and modes make it secure.
#[must_use]
pub fn pin_directory_problem(directory: &Path) -> Option<InsecureDirectory> {
    // The first part of a relative path may not exist yet; then the current directory is checked.
    let result = std::path::absolute(directory).and_then(|absolute| {
        let existing = absolute
            .ancestors()
            .find(|path| path.exists())
            .unwrap_or(&absolute);
        let path = existing.canonicalize()?;
        Ok((open_directory(&path)?, path))
    });
    match result {
        Ok((directory, path)) => check(&directory, &path).err(),
        Err(source) => Some(InsecureDirectory::System {
            path: directory.to_owned(),
            source,
        }),
    }
}
