//! Sets of files: the entries at configured paths, without properties that differ between devices with the same
//! software.
//!
//! For a file, content and mode bits are measured; for a symbolic link its target text, and the target itself only if
//! it is listed; for a directory its mode and, recursively, its contents. An absent path is an entry of its own.
//! Owners, times, sizes on disk and extended attributes are not measured, because they differ between devices with
//! the same software.

mod read;
mod walk;

use std::fmt;

use serde::Serialize;

pub use read::{FilesError, Limits, measure};

/// Maximum length of a path and of a link target, as in Linux (PATH_MAX with its NUL).
pub const PATH_BYTES_MAX: usize = 4095;

/// An absolute path in its shortest form: no empty component, no `.` or `..`, no final `/` except for the root. A path
/// may contain any bytes except NUL, and paths are ordered bytewise.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilePath(Vec<u8>);

/// The path is not absolute, not in its shortest form, or too long.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid path {:?}: expected an absolute path without empty components, `.` and `..`, of at most {PATH_BYTES_MAX} bytes", String::from_utf8_lossy(&self.0))]
pub struct PathError(Vec<u8>);

impl FilePath {
    /// A path from its bytes.
    ///
    /// # Errors
    /// [`PathError`].
    pub fn new(path: impl Into<Vec<u8>>) -> Result<Self, PathError> {
        let path = path.into();
        let is_ordinary = |component: &[u8]| !matches!(component, b"" | b"." | b"..");
        let is_shortest = match path.split_first() {
            Some((b'/', [])) => true,
            Some((b'/', rest)) => rest.split(|byte| *byte == b'/').all(is_ordinary),
            _ => false,
        };
        match is_shortest && !path.contains(&0) && path.len() <= PATH_BYTES_MAX {
            true => Ok(Self(path)),
            false => Err(PathError(path)),
        }
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The path of the entry `name` in this directory.
    fn join(&self, name: &[u8]) -> Result<Self, PathError> {
        let separator: &[u8] = if self.0 == b"/" { b"" } else { b"/" };
        Self::new([&self.0, separator, name].concat())
    }
}

/// Escapes control characters and invalid UTF-8: file names are untrusted bytes.
impl fmt::Display for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        escape(&self.0, f)
    }
}

impl fmt::Debug for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for FilePath {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn escape(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for chunk in bytes.utf8_chunks() {
        f.write_str(&crate::text::escape_text(chunk.valid(), usize::MAX))?;
        write!(f, "{}", chunk.invalid().escape_ascii())?;
    }
    Ok(())
}

/// The SHA-256 of a file's content.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentHash(pub [u8; 32]);

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for ContentHash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The permission bits including set-user-id, set-group-id and sticky: the lowest twelve bits of `st_mode`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(into = "String")]
pub struct Mode(u16);

impl Mode {
    /// The mode, or `None` if other bits are set.
    pub const fn new(bits: u16) -> Option<Self> {
        match bits & !0o7777 {
            0 => Some(Self(bits)),
            _ => None,
        }
    }

    /// The bits.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl From<Mode> for String {
    fn from(mode: Mode) -> Self {
        mode.to_string()
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl fmt::Debug for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The target of a symbolic link: 1 to [`PATH_BYTES_MAX`] bytes without NUL.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkTarget(Vec<u8>);

impl LinkTarget {
    /// The target, or `None` if no link can have this target.
    pub fn new(text: impl Into<Vec<u8>>) -> Option<Self> {
        let text = text.into();
        ((1..=PATH_BYTES_MAX).contains(&text.len()) && !text.contains(&0)).then_some(Self(text))
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for LinkTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        escape(&self.0, f)
    }
}

impl fmt::Debug for LinkTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for LinkTarget {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The entry at a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FileEntry {
    /// Nothing exists at the path.
    Absent,
    /// A file.
    File {
        /// Its mode.
        mode: Mode,
        /// Hash of its content.
        content: ContentHash,
    },
    /// A symbolic link. Links have no mode.
    Link {
        /// Its target.
        target: LinkTarget,
    },
    /// A directory; its contents have entries of their own.
    Directory {
        /// Its mode.
        mode: Mode,
    },
    /// A named pipe.
    Fifo {
        /// Its mode.
        mode: Mode,
    },
    /// A socket.
    Socket {
        /// Its mode.
        mode: Mode,
    },
    /// A character device.
    CharacterDevice {
        /// Its mode.
        mode: Mode,
        /// Major and minor number.
        device: (u32, u32),
    },
    /// A block device.
    BlockDevice {
        /// Its mode.
        mode: Mode,
        /// Major and minor number.
        device: (u32, u32),
    },
}

impl FileEntry {
    /// The mode of the entry, if the entry has a mode.
    pub const fn mode(&self) -> Option<Mode> {
        match self {
            Self::Absent | Self::Link { .. } => None,
            Self::File { mode, .. }
            | Self::Directory { mode }
            | Self::Fifo { mode }
            | Self::Socket { mode }
            | Self::CharacterDevice { mode, .. }
            | Self::BlockDevice { mode, .. } => Some(*mode),
        }
    }

    /// Whether the contents are equal; modes are ignored. `None` if the types differ.
    pub(crate) fn same_content(&self, other: &Self) -> Option<bool> {
        match (self, other) {
            (Self::File { content: old, .. }, Self::File { content: new, .. }) => Some(old == new),
            (Self::Link { target: old }, Self::Link { target: new }) => Some(old == new),
            (Self::CharacterDevice { device: old, .. }, Self::CharacterDevice { device: new, .. })
            | (Self::BlockDevice { device: old, .. }, Self::BlockDevice { device: new, .. }) => {
                Some(old == new)
            }
            (Self::Absent, Self::Absent)
            | (Self::Directory { .. }, Self::Directory { .. })
            | (Self::Fifo { .. }, Self::Fifo { .. })
            | (Self::Socket { .. }, Self::Socket { .. }) => Some(true),
            _ => None,
        }
    }
}

/// A description for operators.
impl fmt::Display for FileEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("absent"),
            Self::File { mode, content } => write!(f, "file {mode} {content}"),
            Self::Link { target } => write!(f, "link to {target}"),
            Self::Directory { mode } => write!(f, "directory {mode}"),
            Self::Fifo { mode } => write!(f, "pipe {mode}"),
            Self::Socket { mode } => write!(f, "socket {mode}"),
            Self::CharacterDevice {
                mode,
                device: (major, minor),
            } => write!(f, "character device {major}:{minor} {mode}"),
            Self::BlockDevice {
                mode,
                device: (major, minor),
            } => write!(f, "block device {major}:{minor} {mode}"),
        }
    }
}
