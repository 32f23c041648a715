//! Writing that a crash leaves done or undone, never half done.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

/// Puts `bytes` at `path`, over what is there; after a crash at any moment the old content or the new is there, whole.
///
/// # Errors
/// What the operating system says; the old content is there still.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_with(path, bytes, 0o666)
}

/// [`replace`] for what others read: what is at `path` then has mode 0644, whatever the process's mask.
///
/// # Errors
/// As [`replace`].
pub fn replace_public(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_by(path, |draft| {
        let mut file = create(draft, 0o644)?;
        file.set_permissions(fs::Permissions::from_mode(0o644))?;
        file.write_all(bytes)?;
        file.sync_all()
    })
}

/// [`replace`] for a file that is to belong to `owner` (user and group id); without one, to this process. No link is followed: the owner is
/// set on the open file before it gets its name.
///
/// # Errors
/// As [`replace`]; a process without `CAP_CHOWN` may not give files away.
pub fn replace_owned(path: &Path, bytes: &[u8], owner: Option<(u32, u32)>) -> io::Result<()> {
    replace_by(path, |draft| {
        let mut file = create(draft, 0o666)?;
        if let Some((user, group)) = owner {
            fchown(&file, Some(user), Some(group))?;
        }
        file.write_all(bytes)?;
        file.sync_all()
    })
}

/// [`replace`] for a secret: what is at `path` then has mode 0600, whatever was there.
///
/// # Errors
/// As [`replace`].
pub fn replace_private(path: &Path, secret: &[u8]) -> io::Result<()> {
    replace_with(path, secret, 0o600)
}

/// `mode` is less what the process's mask takes away.
fn replace_with(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    replace_by(path, |draft| {
        let mut file = create(draft, mode)?;
        file.write_all(bytes)?;
        file.sync_all()
    })
}

fn replace_by(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let draft = draft_of(path);
    let written = write(&draft)
        .and_then(|()| fs::rename(&draft, path))
        .and_then(|()| sync_parent(path));
    if written.is_err() {
        // The write error is what matters; a leftover draft does no harm.
        let _ = fs::remove_file(&draft);
    }
    written
}

/// Finds out whether [`replace`] could put something at `path` now, by making and removing what it would write first. Whether
/// a file that is there may be taken away, which in a sticky directory only its owner may, is not found out.
///
/// # Errors
/// What the operating system says.
pub fn can_replace(path: &Path) -> io::Result<()> {
    let draft = draft_of(path);
    create(&draft, 0o666)?;
    fs::remove_file(&draft)
}

/// A file that was not there, or was a leftover: never what somebody has made a link to, for its name can be guessed.
fn create(draft: &Path, mode: u32) -> io::Result<File> {
    let _ = fs::remove_file(draft);
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(draft)
}

fn draft_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    path.with_file_name(name)
}

/// Makes a directory entry that was made, renamed or removed last.
///
/// # Errors
/// What the operating system says.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(parent_of(path))?.sync_all()
}

/// The directory of a file.
fn parent_of(path: &Path) -> &Path {
    path.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}
