//! Ports that read and write capture files, as simple_switch's `--use-files` has them: port `N@NAME` reads `NAME_in.pcap`
//! and writes `NAME_out.pcap`.

mod file;
mod port;

use std::io;
use std::path::PathBuf;

pub use file::{CaptureReader, CaptureWriter, Packet};
pub use port::open;

/// What is wrong with a capture file.
#[derive(Debug, thiserror::Error)]
pub enum PcapError {
    /// It cannot be opened, read or written.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// It is no capture file, or a damaged one.
    #[error("{}, byte {offset}: {fault}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where in it, counted from 0.
        offset: u64,
        /// What is wrong there, and what to do if something can be done.
        fault: Fault,
    },
}

/// A fault in a capture file's content.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// The first four bytes are none of a capture file's.
    #[error("{0:#010x} is not how a pcap file begins (pcapng must be converted: `editcap -F pcap`)")]
    Magic(u32),
    /// Version other than 2.x.
    #[error("version {0} of the pcap format; only 2 is known")]
    Version(u16),
    /// The packets are not Ethernet frames.
    #[error("link type {0}, a switch takes Ethernet (1), or 0 as simple_switch writes it")]
    LinkType(u32),
    /// The file ends inside a header or a packet.
    #[error("the file ends after {found} of {wanted} bytes of {what}")]
    CutOff {
        /// Of what.
        what: &'static str,
        /// Bytes there are.
        found: usize,
        /// Bytes there should be.
        wanted: usize,
    },
    /// A length that no packet has.
    #[error("a packet of {0} bytes, more than the 262,144 that a capture may hold")]
    Length(u32),
    /// The capture has only the beginning of a packet.
    #[error("only {captured} of a packet's {original} bytes were captured: capture with `-s 0`")]
    Incomplete {
        /// Bytes in the file.
        captured: u32,
        /// Bytes of the packet.
        original: u32,
    },
}
