//! Ports on capture files, as with simple_switch's `--use-files`: port `N@NAME` reads `NAME_in.pcap` and writes
//! `NAME_out.pcap`.

mod file;
mod port;

use std::io;
use std::path::PathBuf;

pub use file::{CaptureReader, CaptureWriter, Packet};
pub use port::open;

/// Error of a capture file.
#[derive(Debug, thiserror::Error)]
pub enum PcapError {
    /// The file cannot be opened, read or written.
    #[error("cannot {action} capture file {}: {source}", path.display())]
    Io {
        /// File.
        path: PathBuf,
        /// Failed operation.
        action: &'static str,
        /// Error of the system.
        source: io::Error,
    },
    /// The file is malformed.
    #[error("malformed capture file {} at byte {offset}: {fault}", path.display())]
    Malformed {
        /// File.
        path: PathBuf,
        /// Offset in the file, counted from 0.
        offset: u64,
        /// Problem, with a remedy if possible.
        fault: FormatError,
    },
}

/// Problem in the content of a capture file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FormatError {
    /// The magic number is unknown.
    #[error("unknown magic number {0:#010x}; convert pcapng files with `editcap -F pcap`")]
    Magic(u32),
    /// The version is not 2.x.
    #[error("unsupported pcap version {0}: expected 2")]
    Version(u16),
    /// The packets are not Ethernet frames.
    #[error("unsupported link type {0}: expected Ethernet (1), or 0 as written by simple_switch")]
    LinkType(u32),
    /// The file ends inside of a header or packet.
    #[error("file ends after {actual_bytes} of {expected_bytes} bytes of {element}")]
    Truncated {
        /// Truncated element.
        element: &'static str,
        /// Available bytes.
        actual_bytes: usize,
        /// Expected bytes.
        expected_bytes: usize,
    },
    /// The packet length exceeds the maximum.
    #[error("packet length of {0} bytes exceeds the maximum of 262,144")]
    PacketTooLong(u32),
    /// The capture has only the start of a packet.
    #[error("packet is incomplete: {captured} of {original} bytes were captured; capture with `-s 0`")]
    Incomplete {
        /// Captured bytes.
        captured: u32,
        /// Original length, bytes.
        original: u32,
    },
}
