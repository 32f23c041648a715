//! Error of parsing a test.

use thiserror::Error;

/// Error of parsing a test.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{file}:{line}:{column}: expected {expected}, found {found}")]
pub struct StfError {
    /// File name from the caller.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// Found text.
    pub found: String,
    /// Expected element.
    pub expected: String,
}
