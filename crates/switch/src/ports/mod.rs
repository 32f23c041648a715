//! Where packets come from and go to: network interfaces, capture files, memory.
//!
//! A [`Port`] has two halves that are independent of each other, one that receives and one that sends, so that a frame
//! can be sent anywhere, back to where it came from too, while it still lies in the ring that it was received in. Nobody
//! allocates or copies a frame on its way in: a receiver hands out slices of its ring. On its way out it is copied once,
//! from the two parts that a switch has in its hands (the new headers, the payload) into the sender's buffer.
//!
//! A [`PortSet`] serves all ports of a worker by turns, in bursts.

#[forbid(unsafe_code)]
mod checksum;
#[forbid(unsafe_code)]
pub mod memory;
pub mod packet;
#[forbid(unsafe_code)]
mod patience;
#[forbid(unsafe_code)]
pub mod pcap;
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

/// Number of a port, as `standard_metadata` of v1model has it: 9 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortId(u16);

/// Port numbers there are: 0 to 511.
pub const PORT_IDS: usize = 512;

impl PortId {
    /// `None` when the number does not fit into 9 bits.
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        if (number as usize) < PORT_IDS {
            Some(Self(number))
        } else {
            None
        }
    }

    /// The number.
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

/// Why a port could not be opened, or does not work any more. Single frames that cannot be received or sent are counted
/// and are no error.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// There is no such interface in this network namespace.
    #[error("interface {interface}: {source}; `ip link` lists those there are")]
    NoInterface {
        /// Its name.
        interface: String,
        /// What the kernel says.
        source: io::Error,
    },
    /// The kernel refused one step.
    #[error("interface {interface}: {step}: {source}{}", advice(.source))]
    Kernel {
        /// The interface.
        interface: String,
        /// What was tried.
        step: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The interface's frames are not Ethernet's.
    #[error(
        "interface {interface} is no Ethernet interface (link type {link_type}); a switch takes Ethernet frames only"
    )]
    NotEthernet {
        /// The interface.
        interface: String,
        /// `ARPHRD_*` of linux/if_arp.h, for instance 65534 for a tun device.
        link_type: u16,
    },
    /// The interface has more receive queues than one, and only one is served.
    #[error(
        "interface {interface} has {queues} receive queues, an XDP port serves one: \
         `ethtool -L {interface} combined 1`, or use AF_PACKET"
    )]
    Queues {
        /// The interface.
        interface: String,
        /// How many.
        queues: u32,
    },
    /// The interface's packets are too long for XDP, which wants each frame in one page.
    #[error(
        "interface {interface} has an MTU of {mtu}, an XDP port takes at most {max}: \
         `ip link set {interface} mtu {max}`, or use AF_PACKET"
    )]
    Mtu {
        /// The interface.
        interface: String,
        /// Its longest IP packet, bytes.
        mtu: usize,
        /// The longest that is possible, bytes.
        max: usize,
    },
    /// A capture file.
    #[error(transparent)]
    Pcap(#[from] pcap::PcapError),
    /// A descriptor to wake the worker with could not be made.
    #[error("cannot make an event descriptor: {0}; raise the limit of open files (`ulimit -n`)")]
    Event(#[source] io::Error),
}

/// Fails unless an interface has Ethernet frames.
fn require_ethernet(any_socket: &OwnedFd, interface: &str) -> Result<(), PortError> {
    match sys::link_type(any_socket, interface) {
        // A loopback interface has Ethernet headers too.
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

fn advice(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "; needs CAP_NET_RAW and CAP_NET_ADMIN, for XDP CAP_BPF too",
        Some(libc::ENOMEM | libc::ENOBUFS) => "; ask for a smaller ring",
        Some(libc::EBUSY) => "; somebody else has the interface: see `ip link` for an XDP program",
        _ => "",
    }
}

/// How to learn that there may be something to receive.
#[derive(Clone, Copy, Debug)]
pub enum Readiness<'a> {
    /// Poll this descriptor for reading.
    Fd(BorrowedFd<'a>),
    /// At once.
    Now,
    /// Not before this time.
    At(Instant),
    /// Never again: the input has ended.
    Never,
}

/// Frames that came in, and those that did not make it and why. All count since the port was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RxCounters {
    /// Frames handed to the switch.
    pub frames: u64,
    /// Their bytes, from the destination MAC to the end of the payload.
    pub bytes: u64,
    /// Lost because the ring was full: the switch was too slow.
    pub dropped_full: u64,
    /// Lost because a frame was longer than the ring's slots and could not be fetched otherwise.
    pub dropped_truncated: u64,
    /// Lost because the frame was a segmentation or checksum offload's work that could not be done in software.
    pub dropped_offload: u64,
    /// Oversized frames of a segmentation offload that were cut into segments. The segments are in `frames`.
    pub segmented: u64,
    /// Checksums that the sender had left to its hardware and that were completed here.
    pub checksums_completed: u64,
}

/// Frames that went out, and those that did not make it and why. All count since the port was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TxCounters {
    /// Frames that the kernel, the file or the reader took.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Lost because the queue stayed full for longer than the port waits.
    pub dropped_full: u64,
    /// Lost because the frame was longer than the interface takes.
    pub dropped_long: u64,
    /// Lost because the frame was shorter than an Ethernet header.
    pub dropped_short: u64,
    /// Lost because the interface was down or is gone.
    pub dropped_down: u64,
    /// How often the queue was found full.
    pub waited: u64,
}

/// Both halves' counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortCounters {
    /// What came in.
    pub rx: RxCounters,
    /// What went out.
    pub tx: TxCounters,
}

/// The receiving half of a port.
pub trait Receive: Send + fmt::Debug {
    /// Hands about `limit` frames that have arrived to `take`, in their order, and never blocks. It may be more by the
    /// segments of one oversized frame. Returns how many arrivals were dealt with, of which some may have been dropped; 0
    /// when there was nothing.
    ///
    /// # Errors
    /// When nothing will come from here any more.
    fn receive(&mut self, limit: usize, take: &mut dyn FnMut(&[u8])) -> Result<usize, PortError>;

    /// What to wait for when [`Self::receive`] found nothing.
    fn readiness(&self) -> Readiness<'_>;

    /// Asks whether the port is still there, and clears what error waits; when the descriptor of [`Self::readiness`] reports
    /// one, and now and then when nothing comes.
    ///
    /// # Errors
    /// When nothing will come from here any more.
    fn check(&mut self) -> Result<(), PortError> {
        Ok(())
    }

    /// Counters up to now.
    fn counters(&mut self) -> RxCounters;
}

/// The sending half of a port.
pub trait Transmit: Send + fmt::Debug {
    /// Takes a frame, given in two parts that are joined. It may leave only with the next [`Self::flush`].
    ///
    /// # Errors
    /// When nothing can be sent here any more.
    fn send(&mut self, headers: &[u8], payload: &[u8]) -> Result<(), PortError>;

    /// Has everything that was taken leave. A full queue is waited for, within bounds; what finds no place then is
    /// counted.
    ///
    /// # Errors
    /// When nothing can be sent here any more.
    fn flush(&mut self) -> Result<(), PortError>;

    /// Counters up to now.
    fn counters(&self) -> TxCounters;
}

/// A port: its two halves.
#[derive(Debug)]
pub struct Port {
    /// Where frames come from.
    pub receiver: Box<dyn Receive>,
    /// Where frames go to.
    pub sender: Box<dyn Transmit>,
}
