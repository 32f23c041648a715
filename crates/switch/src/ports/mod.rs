//! Ports of the switch: network interfaces, capture files, memory.
//!
//! A [`Port`] has two independent halves, a receiver and a sender. So a frame can be sent to any port, including its
//! ingress port, while the frame is still in the receive ring. Reception needs no allocation and no copy: a receiver
//! passes slices of its ring. Transmission copies a frame once, from its two parts (new headers and payload) to the
//! sender's buffer.
//!
//! A [`PortSet`] serves all ports of a worker round-robin, in bursts.

#[forbid(unsafe_code)]
mod checksum;
#[forbid(unsafe_code)]
pub mod memory;
pub mod packet;
#[forbid(unsafe_code)]
pub mod pcap;
#[forbid(unsafe_code)]
mod send_backoff;
#[forbid(unsafe_code)]
mod set;
#[forbid(unsafe_code)]
mod spec;
mod sys;
pub mod xdp;

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;

pub use set::{BURST_FRAMES, PortSet, PortSetError, Senders, Waker};
pub use spec::{PortSpec, PortSpecError};

/// Port number as in the `standard_metadata` of v1model: 9 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortId(u16);

/// Number of port numbers: 0 to 511.
pub const PORT_IDS: usize = 512;

impl PortId {
    /// Creates a port number; `None` if it exceeds 9 bits.
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        if (number as usize) < PORT_IDS {
            Some(Self(number))
        } else {
            None
        }
    }

    /// Number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Error of opening or using a port. Single frames that cannot be received or sent are counted and are not an
/// error.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The interface does not exist in this network namespace.
    #[error("cannot find interface {interface}: {source}; list interfaces with `ip link`")]
    NoInterface {
        /// Interface name.
        interface: String,
        /// Error of the kernel.
        source: io::Error,
    },
    /// A system call failed.
    #[error("{step} failed on interface {interface}: {source}{}", permission_hint(.source))]
    Kernel {
        /// Interface name.
        interface: String,
        /// Failed step.
        step: &'static str,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The interface does not carry Ethernet frames.
    #[error(
        "interface {interface} is not an Ethernet interface: link type {link_type}; the switch requires Ethernet"
    )]
    NotEthernet {
        /// Interface name.
        interface: String,
        /// `ARPHRD_*` of linux/if_arp.h, for example 65534 for a tun device.
        link_type: u16,
    },
    /// The interface has several receive queues, but an XDP port serves only one.
    #[error(
        "interface {interface} has {queues} receive queues: an XDP port serves only one; \
         `ethtool -L {interface} combined 1`, or use AF_PACKET"
    )]
    Queues {
        /// Interface name.
        interface: String,
        /// Number of receive queues.
        queues: u32,
    },
    /// The MTU is too large for XDP, which requires each frame in one page.
    #[error(
        "interface {interface} has an MTU of {mtu} bytes: the maximum of an XDP port is {max}; \
         `ip link set {interface} mtu {max}`, or use AF_PACKET"
    )]
    Mtu {
        /// Interface name.
        interface: String,
        /// MTU of the interface, bytes.
        mtu: usize,
        /// Maximum MTU, bytes.
        max: usize,
    },
    /// Error of a capture file.
    #[error(transparent)]
    Pcap(#[from] pcap::PcapError),
    /// The event descriptor for waking the worker could not be created.
    #[error("cannot create an event descriptor: {0}; raise the limit of open files (`ulimit -n`)")]
    Event(#[source] io::Error),
}

/// Fails unless the interface carries Ethernet frames.
fn require_ethernet(any_socket: &OwnedFd, interface: &str) -> Result<(), PortError> {
    match sys::link_type(any_socket, interface) {
        // A loopback interface also has Ethernet headers.
        Ok(libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK) => Ok(()),
        Ok(link_type) => Err(PortError::NotEthernet {
            interface: interface.to_owned(),
            link_type,
        }),
        Err(source) => Err(PortError::Kernel {
            interface: interface.to_owned(),
            step: "SIOCGIFHWADDR",
            source,
        }),
    }
}

fn permission_hint(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "; CAP_NET_RAW and CAP_NET_ADMIN are required, for XDP also CAP_BPF"
        }
        Some(libc::ENOMEM | libc::ENOBUFS) => "; use a smaller ring",
        Some(libc::EBUSY) => "; the interface is in use: check `ip link` for an XDP program",
        _ => "",
    }
}

/// Condition under which a receiver may have received frames.
#[derive(Clone, Copy, Debug)]
pub enum Readiness<'a> {
    /// Poll this descriptor for input.
    Fd(BorrowedFd<'a>),
    /// Frames are available now.
    Now,
    /// Frames are available at this time.
    At(Instant),
    /// The input has ended.
    Never,
}

/// Counters of received and dropped frames since the port was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RxCounters {
    /// Frames passed to the switch.
    pub frames: u64,
    /// Bytes of these frames, from the destination MAC to the end of the payload.
    pub bytes: u64,
    /// Frames dropped because the ring was full.
    pub dropped_full: u64,
    /// Frames dropped because they exceeded the slot size of the ring and could not be read from the socket.
    pub dropped_truncated: u64,
    /// Frames dropped because a segmentation or checksum offload could not be done in software.
    pub dropped_offload: u64,
    /// Oversized frames of a segmentation offload that were segmented. The segments count in `frames`.
    pub segmented: u64,
    /// Partial checksums that were completed.
    pub checksums_completed: u64,
}

/// Counters of sent and dropped frames since the port was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TxCounters {
    /// Frames accepted by the kernel, the file or the peer.
    pub frames: u64,
    /// Bytes of these frames.
    pub bytes: u64,
    /// Frames dropped because the queue stayed full beyond the timeout.
    pub dropped_full: u64,
    /// Frames dropped because they exceeded the maximum length of the interface.
    pub dropped_long: u64,
    /// Frames dropped because they were shorter than an Ethernet header.
    pub dropped_short: u64,
    /// Frames dropped because the interface was down or removed.
    pub dropped_down: u64,
    /// Number of attempts to send that found the queue full.
    pub queue_full_retries: u64,
}

/// Counters of both halves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortCounters {
    /// Receive counters.
    pub rx: RxCounters,
    /// Transmit counters.
    pub tx: TxCounters,
}

/// Receiving half of a port.
pub trait Receive: Send + fmt::Debug {
    /// Passes up to about `limit` received frames to `take`, in order, without blocking. The segments of one oversized
    /// frame may exceed the limit. Returns the number of processed frames before segmentation, including dropped frames; 0 if
    /// no frame was available.
    ///
    /// # Errors
    /// The port can receive no more frames.
    fn receive(&mut self, limit: usize, take: &mut dyn FnMut(&[u8])) -> Result<usize, PortError>;

    /// Condition to wait for after [`Self::receive`] returned 0.
    fn readiness(&self) -> Readiness<'_>;

    /// Checks that the port still exists, and clears a pending error. The worker calls this method when the descriptor of
    /// [`Self::readiness`] reports an error, and periodically while no frames arrive.
    ///
    /// # Errors
    /// The port can receive no more frames.
    fn check(&mut self) -> Result<(), PortError> {
        Ok(())
    }

    /// Current counters.
    fn counters(&mut self) -> RxCounters;
}

/// Sending half of a port.
pub trait Transmit: Send + fmt::Debug {
    /// Queues a frame, given in two parts. The frame may be delayed until the next [`Self::flush`].
    ///
    /// # Errors
    /// The port can send no more frames.
    fn send(&mut self, headers: &[u8], payload: &[u8]) -> Result<(), PortError>;

    /// Sends all queued frames. Waits for a full queue for a limited time; frames that find no space are dropped and
    /// counted.
    ///
    /// # Errors
    /// The port can send no more frames.
    fn flush(&mut self) -> Result<(), PortError>;

    /// Current counters.
    fn counters(&self) -> TxCounters;
}

/// Port with its two halves.
#[derive(Debug)]
pub struct Port {
    /// Receiving half.
    pub receiver: Box<dyn Receive>,
    /// Sending half.
    pub sender: Box<dyn Transmit>,
}
