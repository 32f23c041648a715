//! Whose the directories are that BPF objects are pinned in. A pin is a name: whoever may write there puts a program or
//! maps of his own in the place of the gate's, and the next gateway takes them up.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Writing, of a directory's group and of others. The sticky bit makes no difference: it keeps nobody from adding names.
const OTHERS_WRITE: u32 = 0o022;

/// A directory that somebody else could plant pins in.
#[derive(Debug, thiserror::Error)]
pub enum InsecureDirectory {
    /// It is another user's.
    #[error(
        "{path} belongs to user {uid}, who could plant BPF objects there; use another directory, or `chown root {path}`"
    )]
    Owner {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// Others may write there.
    #[error(
        "{path} has mode {mode:04o}: others could plant BPF objects there; `chmod go-w {path}`, and mount this BPF filesystem with \
         the option `mode=0700`"
    )]
    Mode {
        /// The directory.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It cannot be looked at.
    #[error("{path}: {source}")]
    System {
        /// The directory.
        path: PathBuf,
        /// The system's word.
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

/// Opens a directory itself, not what a symbolic link in its place names.
pub(super) fn open_directory(path: &Path) -> io::Result<File> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Opens a pin itself, not what a symbolic link in its place names.
pub(super) fn open_pin(path: &Path) -> io::Result<File> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    let pin = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    match pin.metadata()?.is_file() {
        true => Ok(pin),
        false => Err(io::Error::other("not a pin")),
    }
}

/// A path to what is open, whatever its name means by now (proc_pid_fd(5)).
pub(super) fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Refuses a directory of the BPF filesystem that another user could write to, or that lies in such a one: up to the root of the
/// filesystem. Directories may be root's, this user's, and the user's whom root has given the whole filesystem: root mounts it,
/// and a service without privileges owns it. By descriptors, so that nobody changes what a name means in between.
///
/// # Errors
/// The first directory that is not secure.
pub(super) fn check(directory: &File, path: &Path) -> Result<(), InsecureDirectory> {
    let found = up_to_the_root(directory, path)?;
    // SAFETY: takes no pointer.
    let own = unsafe { libc::geteuid() };
    let given_to = found.last().map_or(0, |(_, uid, _)| *uid);
    for (path, uid, mode) in found {
        if ![0, own, given_to].contains(&uid) {
            return Err(InsecureDirectory::Owner { path, uid });
        }
        if mode & OTHERS_WRITE != 0 {
            return Err(InsecureDirectory::Mode { path, mode });
        }
    }
    Ok(())
}

/// The directory and all that it lies in on the BPF filesystem, with owners and modes.
fn up_to_the_root(directory: &File, path: &Path) -> Result<Vec<(PathBuf, u32, u32)>, InsecureDirectory> {
    let mut path = path.to_owned();
    let mut found = Vec::new();
    let system = |path: &Path| {
        let path = path.to_owned();
        move |source| InsecureDirectory::System { path, source }
    };
    let mut at = directory.try_clone().map_err(system(&path))?;
    while is_on_bpf_filesystem(&at).map_err(system(&path))? {
        let status = at.metadata().map_err(system(&path))?;
        found.push((path.clone(), status.uid(), status.mode() & 0o7777));
        at = parent(&at).map_err(system(&path))?;
        path.pop();
    }
    Ok(found)
}

/// What a directory lies in, across a mount.
fn parent(directory: &File) -> io::Result<File> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the descriptor is open, and the name a literal that ends in 0.
    let fd = unsafe { libc::openat(directory.as_raw_fd(), c"..".as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened and owned by nobody else.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Why no gate may be kept below this directory, which need not be there yet; `None`: it may, as far as its owners and modes
/// go.
#[must_use]
pub fn insecure(directory: &Path) -> Option<InsecureDirectory> {
    // What a relative path begins with may not be there yet: then the current directory counts.
    let opened = std::path::absolute(directory).and_then(|whole| {
        let existing = whole.ancestors().find(|path| path.exists()).unwrap_or(&whole);
        let path = existing.canonicalize()?;
        Ok((open_directory(&path)?, path))
    });
    match opened {
        Ok((directory, path)) => check(&directory, &path).err(),
        Err(source) => Some(InsecureDirectory::System {
            path: directory.to_owned(),
            source,
        }),
    }
}
