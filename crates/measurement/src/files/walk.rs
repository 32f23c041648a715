//! Opens a path below a directory that represents `/`, one component after the other.
//!
//! `openat2` with RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS would do the same in one call. Sandboxes block that call,
//! because a seccomp filter cannot see its flags: `RestrictSUIDSGID=` of systemd 252 makes it fail with ENOSYS, and
//! so do container runtimes. All of them allow `openat`.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, PROC_SUPER_MAGIC, Stat, fstat, fstatfs, openat, readlinkat};
use rustix::io::{Errno, retry_on_intr};

/// Maximum number of symbolic links on a path, as in the kernel (path_resolution(7)).
const LINKS_MAX: u32 = 40;
/// Maximum number of directories opened on a path. For each `..`, the walk restarts at the root, so links can cause many
/// steps.
const STEPS_MAX: u32 = 1 << 16;
/// Mode bits of a directory that is sticky and writable by all users, such as `/tmp`.
const SHARED: u32 = 0o1002;
/// Inode of the root directory of a proc filesystem (PROC_ROOT_INO).
const PROC_ROOT_INODE: u64 = 1;

/// The directory that represents `/`.
pub(super) struct Root(OwnedFd);

impl Root {
    pub(super) fn open(path: &Path) -> Result<Self, Errno> {
        step(
            CWD,
            path.as_os_str().as_encoded_bytes(),
            OFlags::PATH | OFlags::DIRECTORY,
        )
        .map(Self)
    }

    /// Opens the path itself: never a link's target, and nothing outside the root. Symbolic links before the last
    /// component are followed, an absolute link from the root. Two kinds of links are not followed: links of a process
    /// in `/proc`, which lead to the files of the process whatever the text of the link is; and links in a sticky
    /// directory that all users can write, if link and directory belong to different users (fs.protected_symlinks).
    ///
    /// # Errors
    /// The errors of `openat`; LOOP for more than 40 links, or for a link of a process; ACCESS for a link that another
    /// user may have created.
    pub(super) fn open_at(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let mut walk = PathWalk {
            root: self.0.as_fd(),
            remaining: Vec::new(),
            directories: Vec::new(),
            current: None,
            links: 0,
        };
        walk.prepend(path);
        for _ in 0..STEPS_MAX {
            let Some(name) = walk.remaining.pop() else {
                // The root itself.
                return step(walk.current_directory(), b".", flags);
            };
            if walk.remaining.is_empty() {
                return step(walk.current_directory(), &name, flags | OFlags::NOFOLLOW);
            }
            walk.enter(name)?;
        }
        Err(Errno::LOOP)
    }
}

/// A path during resolution.
struct PathWalk<'a> {
    root: BorrowedFd<'a>,
    /// Remaining components in reverse order: the next component is the last element. The first element is the last
    /// component of the path itself.
    remaining: Vec<Vec<u8>>,
    /// Names of the directories from the root to the current directory; none is a link.
    directories: Vec<Vec<u8>>,
    /// The current directory; `None` for the root.
    current: Option<OwnedFd>,
    /// Number of links followed so far.
    links: u32,
}

impl PathWalk<'_> {
    fn current_directory(&self) -> BorrowedFd<'_> {
        self.current
            .as_ref()
            .map_or(self.root, |directory| directory.as_fd())
    }

    /// Inserts the components of a path before the remaining components.
    fn prepend(&mut self, path: &[u8]) {
        let names = path.split(|byte| *byte == b'/');
        let names = names.filter(|name| !matches!(*name, b"" | b"."));
        self.remaining.extend(names.rev().map(<[u8]>::to_vec));
    }

    /// Resolves one component that is not the last.
    fn enter(&mut self, name: Vec<u8>) -> Result<(), Errno> {
        if name == b".." {
            // The kernel's `..` is not used: it leaves the root if a directory is moved at the same time.
            self.directories.pop();
            self.remaining.extend(self.directories.drain(..).rev());
            self.current = None;
            return Ok(());
        }
        // The flag DIRECTORY triggers automounts.
        match step(
            self.current_directory(),
            &name,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW,
        ) {
            Err(Errno::NOTDIR | Errno::LOOP) => self.follow(&name),
            opened => {
                self.current = Some(opened?);
                self.directories.push(name);
                Ok(())
            }
        }
    }

    fn follow(&mut self, name: &[u8]) -> Result<(), Errno> {
        let link = step(self.current_directory(), name, OFlags::PATH | OFlags::NOFOLLOW)?;
        let (link_stat, directory_stat) = (fstat(&link)?, fstat(self.current_directory())?);
        if FileType::from_raw_mode(link_stat.st_mode) != FileType::Symlink {
            return Err(Errno::NOTDIR);
        }
        if directory_stat.st_mode & SHARED == SHARED && directory_stat.st_uid != link_stat.st_uid {
            return Err(Errno::ACCESS);
        }
        self.links += 1;
        if self.links > LINKS_MAX || is_process_link(&link, &directory_stat)? {
            return Err(Errno::LOOP);
        }
        let text = readlinkat(&link, "", Vec::new())?.into_bytes();
        if text.is_empty() {
            return Err(Errno::NOENT);
        }
        if text.starts_with(b"/") {
            self.directories.clear();
            self.current = None;
        }
        self.prepend(&text);
        Ok(())
    }
}

/// Whether the target of a link in this directory may differ from its text. This applies to all links in `/proc`, except
/// links in the root directory of `/proc` (`self`, `mounts`, `net`).
fn is_process_link(link: &OwnedFd, directory: &Stat) -> Result<bool, Errno> {
    Ok(fstatfs(link)?.f_type == PROC_SUPER_MAGIC && directory.st_ino != PROC_ROOT_INODE)
}

/// Opens one component in a directory.
fn step(directory: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    retry_on_intr(|| openat(directory, name, flags | OFlags::CLOEXEC, Mode::empty()))
}
