//! Errors of mask files.

use std::io;
use std::path::{Path, PathBuf};

use crate::message::KeyId;

/// Masks per block: the most that a crash can lose, and the most that one durable write reserves.
pub const BLOCK_MASKS: usize = 64;

/// Why a mask file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MaskFileError {
    /// The operating system returned an error.
    #[error("{path}: {source}")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// Other users could read or write the file.
    #[error(
        "unsafe mask file {path}: {problem}; a user who read its masks can forge messages: delete the file and make new masks"
    )]
    UnsafePermissions {
        /// Path of the file.
        path: PathBuf,
        /// The unsafe property.
        problem: String,
    },
    /// Not a mask file.
    #[error("not a mask file: {path}; make one with `linewarden signed masks`")]
    NotAMaskFile {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file has an unsupported version.
    #[error("unsupported version {version} of mask file {path}; delete the file and make new masks")]
    UnsupportedVersion {
        /// Path of the file.
        path: PathBuf,
        /// The version.
        version: u8,
    },
    /// The masks belong to another signer.
    #[error("mask file {path} belongs to signer {found}, expected {expected}")]
    OtherSigner {
        /// Path of the file.
        path: PathBuf,
        /// Signer of the masks.
        found: KeyId,
        /// Expected signer.
        expected: KeyId,
    },
    /// The file was made on another machine.
    #[error(
        "mask file {path} was made on another machine, where its masks may be in use; delete it and make new masks here"
    )]
    OtherMachine {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file was copied or restored.
    #[error("mask file {path} is a copy, and its masks may have been used; delete it and make new masks")]
    Copied {
        /// Path of the file.
        path: PathBuf,
    },
    /// Earlier content was written back into the file.
    #[error(
        "mask file {path} was rolled back: its content states {content} reserved blocks, its inode {inode}; \
         its masks may have been used: delete the file and make new masks"
    )]
    RolledBack {
        /// Path of the file.
        path: PathBuf,
        /// Number of reserved blocks that the content states.
        content: u64,
        /// Number of reserved blocks that the inode's attribute states.
        inode: u64,
    },
    /// The counter of the inode was removed or replaced.
    #[error(
        "attribute user.linewarden.masks of mask file {path} is {problem}, so the used masks are unknown; delete the file and make new masks"
    )]
    InvalidCounter {
        /// Path of the file.
        path: PathBuf,
        /// The state of the attribute.
        problem: &'static str,
    },
    /// Another process uses the file, and would use the same masks.
    #[error("mask file {path} is in use by another process")]
    InUse {
        /// Path of the file.
        path: PathBuf,
    },
    /// The used masks are unknown, or a block cannot be opened.
    #[error("mask file {path} is damaged: {problem}; delete it and make new masks")]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// The damage.
        problem: &'static str,
    },
    /// The system returned no random bytes.
    #[error("getting random bytes failed: {0}")]
    Entropy(getrandom::Error),
    /// The number of masks is not [`BLOCK_MASKS`], or a mask has another modulus size than the file.
    #[error("appending masks failed: a block has {BLOCK_MASKS} masks of one modulus")]
    InvalidBlock,
}

pub(super) fn in_file(path: &Path) -> impl Fn(io::Error) -> MaskFileError + use<> {
    let path = path.to_owned();
    move |source| MaskFileError::Io {
        path: path.clone(),
        source,
    }
}

/// Reports a truncated file as damaged, and other errors as errors of the operating system.
pub(super) fn unreadable(path: &Path, error: io::Error) -> MaskFileError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => MaskFileError::Damaged {
            path: path.to_owned(),
            problem: "truncated",
        },
        _ => in_file(path)(error),
    }
}
