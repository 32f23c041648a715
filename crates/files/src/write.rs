//! Atomic writes: after a crash the file has the old or the new content, never a mixture.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

/// Writes `bytes` to `path`, replacing its content. After a crash at any moment the file has the complete old content or
/// the complete new content.
///
/// # Errors
/// Errors of the operating system. The old content is unchanged, except after a failed sync of the directory, which
/// follows the rename: then the file already has the new content.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_with(path, bytes, 0o666)
}

/// [`replace`] for a public file: mode 0644, independent of the process umask.
///
/// # Errors
/// As [`replace`].
pub fn replace_public(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_via_draft(path, |draft| {
        let mut file = create_draft(draft, 0o644)?;
        file.set_permissions(fs::Permissions::from_mode(0o644))?;
        file.write_all(bytes)?;
        file.sync_all()
    })
}

/// [`replace`] for a file that belongs to `owner` (user and group id), or to the user of this process if `owner` is
/// `None`. The owner is set on the open draft file before its rename, so a symbolic link cannot redirect this change.
///
/// # Errors
/// As [`replace`]; a process without `CAP_CHOWN` cannot change the owner.
pub fn replace_owned(path: &Path, bytes: &[u8], owner: Option<(u32, u32)>) -> io::Result<()> {
    replace_via_draft(path, |draft| {
        let mut file = create_draft(draft, 0o666)?;
        if let Some((user, group)) = owner {
            fchown(&file, Some(user), Some(group))?;
        }
        file.write_all(bytes)?;
        file.sync_all()
    })
}

/// [`replace`] for a secret: mode 0600, independent of the mode of the replaced file.
///
/// # Errors
/// As [`replace`].
pub fn replace_private(path: &Path, secret: &[u8]) -> io::Result<()> {
    replace_with(path, secret, 0o600)
}

/// [`replace`] with a `mode`, which the process umask reduces.
fn replace_with(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    replace_via_draft(path, |draft| {
        let mut file = create_draft(draft, mode)?;
        file.write_all(bytes)?;
        file.sync_all()
    })
}

/// Creates a draft file with `write`, which receives the path of the draft, and renames the draft to `path`.
fn replace_via_draft(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let draft = draft_path(path);
    let result = write(&draft)
        .and_then(|()| fs::rename(&draft, path))
        .and_then(|()| sync_parent(path));
    if result.is_err() {
        // The first error is reported; a leftover draft is harmless.
        let _ = fs::remove_file(&draft);
    }
    result
}

/// Checks that [`replace`] could write to `path` now, by creating and removing the draft file. The function does not
/// check the owner of an existing file: in a sticky directory, only the owner may replace the file.
///
/// # Errors
/// Errors of the operating system.
pub fn can_replace(path: &Path) -> io::Result<()> {
    let draft = draft_path(path);
    create_draft(&draft, 0o666)?;
    fs::remove_file(&draft)
}

/// Removes a leftover draft file and creates a new draft file. Another user can guess the name and create a link with
/// this name, but the link is not followed.
fn create_draft(draft: &Path, mode: u32) -> io::Result<File> {
    let _ = fs::remove_file(draft);
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(draft)
}

fn draft_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    path.with_file_name(name)
}

/// Makes a created, renamed or removed directory entry durable.
///
/// # Errors
/// Errors of the operating system.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(parent_of(path))?.sync_all()
}

/// The directory of a file.
fn parent_of(path: &Path) -> &Path {
    path.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}
