//! Errors of files of masks.

use std::io;
use std::path::PathBuf;

use super::BLOCK_MASKS;
use crate::message::KeyId;

/// Why a file of masks cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MaskFileError {
    /// The operating system refuses.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What it says.
        source: io::Error,
    },
    /// Others could have read it.
    #[error("{path}: {problem}; masks that others may have read forge messages: remove it and make new ones")]
    Unsafe {
        /// Which file.
        path: PathBuf,
        /// What is unsafe.
        problem: String,
    },
    /// Something else.
    #[error("{path}: no file of masks; `linewarden signed masks` makes one")]
    Foreign {
        /// Which file.
        path: PathBuf,
    },
    /// Another version wrote it.
    #[error(
        "{path}: written in version {version} of this format, which this program does not read: remove it and make new masks"
    )]
    Version {
        /// Which file.
        path: PathBuf,
        /// Its version.
        version: u8,
    },
    /// Of another signer.
    #[error("{path}: masks of the signer {found}, not of {wanted}")]
    OtherSigner {
        /// Which file.
        path: PathBuf,
        /// Whose they are.
        found: KeyId,
        /// Whose they should be.
        wanted: KeyId,
    },
    /// Made on another machine.
    #[error(
        "{path}: made on another machine, where its masks may be in use: remove it and make new ones here"
    )]
    OtherMachine {
        /// Which file.
        path: PathBuf,
    },
    /// Copied or restored.
    #[error(
        "{path}: a copy of the file that was made, whose masks may have been used: remove it and make new ones"
    )]
    Copied {
        /// Which file.
        path: PathBuf,
    },
    /// Earlier content was written back into it.
    #[error(
        "{path}: earlier content was written back into it: it tells of {content} blocks of masks that were taken out, its inode of {inode}; \
         its masks may have been used: remove it and make new ones"
    )]
    SetBack {
        /// Which file.
        path: PathBuf,
        /// Blocks that are reserved as the content says.
        content: u64,
        /// Blocks that are reserved as the attribute says.
        inode: u64,
    },
    /// The inode's count has been removed or replaced.
    #[error(
        "{path}: its attribute user.linewarden.masks is {what}, so that nobody knows which masks have been used: remove it and make new ones"
    )]
    Uncounted {
        /// Which file.
        path: PathBuf,
        /// What became of it.
        what: &'static str,
    },
    /// Two processes would use the same masks.
    #[error("{path}: in use by another process")]
    InUse {
        /// Which file.
        path: PathBuf,
    },
    /// It cannot be told which masks have been used, or a block does not open.
    #[error("{path}: damaged ({what}): remove it and make new masks")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What of it.
        what: &'static str,
    },
    /// No random bytes.
    #[error("no random bytes: {0}")]
    Entropy(getrandom::Error),
    /// Fewer masks than a block has, or of another size.
    #[error("masks are kept in blocks of {BLOCK_MASKS}, all over one modulus")]
    NotABlock,
}
