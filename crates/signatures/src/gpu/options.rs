//! Options for opening a device.

use std::path::PathBuf;
use std::time::Duration;

/// Options for opening a device.
#[derive(Debug, Clone)]
pub struct Options {
    /// Number of streams between which slices alternate: with two, copies overlap with computation.
    pub streams: usize,
    /// Cache directory for compiled kernels, which take seconds to compile. Only files that no other user can write are read.
    pub cache: Option<PathBuf>,
    /// Timeout of the work that the device processes at once, which takes some milliseconds; after a timeout the device counts as lost.
    pub timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            streams: 3,
            cache: None,
            timeout: Duration::from_secs(5),
        }
    }
}
