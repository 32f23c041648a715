//! Opening a path below a directory that stands for `/`, one component after the other.
//!
//! `openat2` with RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS would do the same in one call. Sandboxes refuse that call, since a
//! seccomp filter cannot see its flags: `RestrictSUIDSGID=` of systemd 252 lets it fail with ENOSYS, and so do container runtimes.
//! `openat` is let through by all of them.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, PROC_SUPER_MAGIC, Stat, fstat, fstatfs, openat, readlinkat};
use rustix::io::{Errno, retry_on_intr};

/// The most symbolic links on the way, as the kernel has it (path_resolution(7)).
const LINKS_MAX: u32 = 40;
/// The most directories that are opened on the way. Links with many `..` begin at the root again for each.
const STEPS_MAX: u32 = 1 << 16;
/// Sticky, and writable by all: as of `/tmp`.
const SHARED: u32 = 0o1002;
/// Inode of the root directory of a proc filesystem (PROC_ROOT_INO).
const PROC_ROOT_INODE: u64 = 1;

/// The directory that stands for `/`.
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

    /// Opens what is at the path itself: never a link's target, nothing above the root. Symbolic links before the last component
    /// are followed, an absolute one from the root on; none of those of a process in `/proc`, which lead to its files whatever
    /// their text says, and none that another user than the directory's put into one that all may write to (fs.protected_symlinks).
    ///
    /// # Errors
    /// As `openat`'s; LOOP for more than 40 links, or one of a process; ACCESS for one that another user may have put there.
    pub(super) fn open_at(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let mut walk = Walk {
            root: self.0.as_fd(),
            left: Vec::new(),
            walked: Vec::new(),
            here: None,
            links: 0,
        };
        walk.prepend(path);
        for _ in 0..STEPS_MAX {
            let Some(name) = walk.left.pop() else {
                // The root itself.
                return step(walk.here(), b".", flags);
            };
            if walk.left.is_empty() {
                return step(walk.here(), &name, flags | OFlags::NOFOLLOW);
            }
            walk.enter(name)?;
        }
        Err(Errno::LOOP)
    }
}

/// A path of which a part is walked.
struct Walk<'a> {
    root: BorrowedFd<'a>,
    /// Components, the next one last. The first of them is the path's own last component: what links put here comes before it.
    left: Vec<Vec<u8>>,
    /// Names of the directories from the root to here, none of them a link.
    walked: Vec<Vec<u8>>,
    /// The last of them, or the root.
    here: Option<OwnedFd>,
    links: u32,
}

impl Walk<'_> {
    fn here(&self) -> BorrowedFd<'_> {
        self.here.as_ref().map_or(self.root, |here| here.as_fd())
    }

    /// Before what is left comes this.
    fn prepend(&mut self, path: &[u8]) {
        let names = path.split(|byte| *byte == b'/');
        let names = names.filter(|name| !matches!(*name, b"" | b"."));
        self.left.extend(names.rev().map(<[u8]>::to_vec));
    }

    /// One component that is not the last.
    fn enter(&mut self, name: Vec<u8>) -> Result<(), Errno> {
        if name == b".." {
            // Not by the kernel's `..`, which leads out of the root if a directory is moved meanwhile.
            self.walked.pop();
            self.left.extend(self.walked.drain(..).rev());
            self.here = None;
            return Ok(());
        }
        // With DIRECTORY, so that what is mounted on demand is mounted.
        match step(
            self.here(),
            &name,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW,
        ) {
            Err(Errno::NOTDIR | Errno::LOOP) => self.follow(&name),
            opened => {
                self.here = Some(opened?);
                self.walked.push(name);
                Ok(())
            }
        }
    }

    fn follow(&mut self, name: &[u8]) -> Result<(), Errno> {
        let link = step(self.here(), name, OFlags::PATH | OFlags::NOFOLLOW)?;
        let (found, directory) = (fstat(&link)?, fstat(self.here())?);
        if FileType::from_raw_mode(found.st_mode) != FileType::Symlink {
            return Err(Errno::NOTDIR);
        }
        if directory.st_mode & SHARED == SHARED && directory.st_uid != found.st_uid {
            return Err(Errno::ACCESS);
        }
        self.links += 1;
        if self.links > LINKS_MAX || is_of_process(&link, &directory)? {
            return Err(Errno::LOOP);
        }
        let text = readlinkat(&link, "", Vec::new())?.into_bytes();
        if text.is_empty() {
            return Err(Errno::NOENT);
        }
        if text.starts_with(b"/") {
            self.walked.clear();
            self.here = None;
        }
        self.prepend(&text);
        Ok(())
    }
}

/// Whether a link in this directory may lead elsewhere than its text says: those in `/proc` do, but for the ones in its root
/// (`self`, `mounts`, `net`).
fn is_of_process(link: &OwnedFd, directory: &Stat) -> Result<bool, Errno> {
    Ok(fstatfs(link)?.f_type == PROC_SUPER_MAGIC && directory.st_ino != PROC_ROOT_INODE)
}

fn step(directory: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    retry_on_intr(|| openat(directory, name, flags | OFlags::CLOEXEC, Mode::empty()))
}
