//! Errors of key files.

use std::io;
use std::path::PathBuf;

/// Errors of key files.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// A key file cannot be opened or read.
    #[error("reading the key file {path} failed: {source}; check the path, or create a key file")]
    FileUnreadable {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A key file that other users can read or could have written.
    #[error("key file {path} is unsafe: {problem}; {remedy}")]
    FileUnsafe {
        /// The file.
        path: PathBuf,
        /// Why the file is unsafe.
        problem: String,
        /// The remedy.
        remedy: String,
    },
    /// A key that is not 32 bytes in hexadecimal.
    #[error("malformed key in {origin}: {problem}; expected are exactly 64 hexadecimal digits (32 bytes)")]
    Malformed {
        /// The file or environment variable.
        origin: String,
        /// The problem, without the content.
        problem: String,
    },
    /// The environment variable for a key is not set.
    #[error(
        "environment variable {variable} is not set; set it to 64 hexadecimal digits, or specify a key file"
    )]
    VariableMissing {
        /// The name of the variable.
        variable: String,
    },
    /// A new key file would overwrite something.
    #[error(
        "{path} already exists, and keys are never overwritten; choose another path, or use the existing key"
    )]
    FileExists {
        /// The file.
        path: PathBuf,
    },
}
