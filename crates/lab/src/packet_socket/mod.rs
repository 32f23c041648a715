//! Sends and receives raw Ethernet frames on one interface, many per system call, without an allocation per frame.
//!
//! Frames are received from a memory ring that the kernel fills (`PACKET_RX_RING`) and sent in batches (`sendmmsg`). The
//! ring is `TPACKET_V2`: the delay of V3 would dominate every measured latency.

mod batch;

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

pub use batch::{FRAME_BYTES_MAX, TxBatch};
pub use linewarden_socket::packet::Statistics;
use linewarden_socket::packet::{self, RxRing, RxSlot};

use crate::capability::{self, Capability, MissingCapabilities};
use crate::netns::{NetNs, NetNsError};
use crate::topology::Interface;

/// Why a packet socket could not be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum PacketSocketError {
    /// A capability is missing.
    #[error(transparent)]
    Capability(#[from] MissingCapabilities),
    /// The namespace could not be entered.
    #[error(transparent)]
    NetNs(#[from] NetNsError),
    /// The kernel refused one step.
    #[error("packet socket on interface {interface}: {step} failed: {source}")]
    Kernel {
        /// The interface.
        interface: String,
        /// The failed step.
        step: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Distribution of an interface's incoming frames over several sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fanout {
    /// Number of the group: the same for all sockets of the group, and unique in their namespace.
    pub group: u16,
    /// Number of sockets in the group. A frame goes to the socket whose number in the group, by the order of opening, is
    /// the low 4 bytes of the destination MAC modulo this number.
    pub sockets: u32,
}

/// Options of a packet socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Frames that the receive ring holds; rounded up to a power of two of at least 32. Each frame takes 2 KiB.
    pub rx_frames: u32,
    /// Bypasses the queueing discipline: sends directly to the driver. Faster, but other packet sockets do not see such
    /// frames; must be off for captures.
    pub bypass_qdisc: bool,
    /// Also receives frames that other sockets send on this interface.
    pub receive_outgoing: bool,
    /// Distributes incoming frames over several sockets.
    pub fanout: Option<Fanout>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            rx_frames: 4096,
            bypass_qdisc: true,
            receive_outgoing: false,
            fanout: None,
        }
    }
}

/// Longest frame that is received completely, bytes.
const RX_FRAME_BYTES_MAX: usize = 1950;
/// Bytes of a slot for these frames.
const SLOT_BYTES: usize = 2048;

/// One received frame. The frame is valid until the closure that receives the frame returns.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The frame from the destination MAC on, cut off at about 1,950 bytes. The kernel has removed the outermost VLAN tag.
    pub frame: &'a [u8],
    /// The tag control information of the removed VLAN tag.
    pub vlan_tci: Option<u16>,
    /// The frame was sent by this host on this interface; otherwise it was received from the link.
    pub outgoing: bool,
    /// Time at which the kernel put the frame into the ring, ns of the real-time clock ([`crate::clock::real_ns`]).
    pub at_ns: u64,
}

impl<'a> From<RxSlot<'a>> for Received<'a> {
    fn from(slot: RxSlot<'a>) -> Self {
        Self {
            frame: slot.buffer,
            vlan_tci: slot.tag.map(|tag| tag.tci),
            outgoing: slot.outgoing,
            at_ns: slot.at_ns,
        }
    }
}

/// An `AF_PACKET` socket bound to one interface. The socket stays in the interface's namespace and can be used from
/// every thread.
#[derive(Debug)]
pub struct PacketSocket {
    ring: RxRing,
    fd: OwnedFd,
    interface: String,
}

impl PacketSocket {
    /// Opens a socket on an interface of that namespace. The socket receives frames only after all options are set.
    ///
    /// # Errors
    /// A capability is missing, or the kernel refuses a step.
    pub fn open(netns: &NetNs, interface: &Interface, options: &Options) -> Result<Self, PacketSocketError> {
        capability::require(&[Capability::NetRaw])?;
        netns.run(|| Self::open_here(interface, options))?
    }

    fn open_here(interface: &Interface, options: &Options) -> Result<Self, PacketSocketError> {
        let step_error = |step| {
            move |source| PacketSocketError::Kernel {
                interface: interface.name.clone(),
                step,
                source,
            }
        };
        let fd = packet::socket().map_err(step_error("socket"))?;
        let set = |step, level, option, value| {
            packet::set_option(&fd, level, option, value).map_err(step_error(step))
        };
        if options.bypass_qdisc {
            set(
                "PACKET_QDISC_BYPASS",
                libc::SOL_PACKET,
                libc::PACKET_QDISC_BYPASS,
                1,
            )?;
        }
        if !options.receive_outgoing {
            set(
                "PACKET_IGNORE_OUTGOING",
                libc::SOL_PACKET,
                libc::PACKET_IGNORE_OUTGOING,
                1,
            )?;
        }
        set("SO_SNDBUFFORCE", libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, 4 << 20)?;
        let ring_bytes = options.rx_frames as usize * SLOT_BYTES;
        let ring =
            RxRing::map(&fd, ring_bytes, RX_FRAME_BYTES_MAX, false).map_err(step_error("PACKET_RX_RING"))?;
        packet::bind(&fd, interface.index, libc::ETH_P_ALL as u16).map_err(step_error("bind"))?;
        if let Some(fanout) = options.fanout {
            join_fanout(&fd, fanout).map_err(step_error("PACKET_FANOUT"))?;
        }
        Ok(Self {
            ring,
            fd,
            interface: interface.name.clone(),
        })
    }

    /// Passes at most `limit` received frames to `on_frame` and returns their slots to the kernel. Never blocks.
    /// Returns the number of frames.
    pub fn receive(&mut self, limit: usize, mut on_frame: impl FnMut(Received<'_>)) -> usize {
        (0..limit)
            .map_while(|_| self.ring.next(|slot| on_frame(slot.into())))
            .count()
    }

    /// Waits for a frame until the timeout; returns whether a frame is available.
    ///
    /// # Errors
    /// The kernel's error, for instance that the interface is down. An interruption by a signal is not an error.
    pub fn wait(&self, timeout: Duration) -> Result<bool, PacketSocketError> {
        let mut poll = libc::pollfd {
            fd: self.fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let timeout = libc::timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // SAFETY: one pollfd is given, and both structures live through the call.
        let ready = unsafe { libc::ppoll(&raw mut poll, 1, &raw const timeout, std::ptr::null()) };
        match ready {
            0 => Ok(false),
            1.. => Ok(true),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
                error => Err(self.kernel("ppoll", error)),
            },
        }
    }

    /// Sends all frames of the batch in order and empties the batch. Returns how many frames the interface accepted;
    /// the other frames are lost, because the interface's queue was full.
    ///
    /// # Errors
    /// Any other error of the kernel; the batch is empty in this case, too.
    pub fn send(&self, batch: &mut TxBatch) -> Result<usize, PacketSocketError> {
        batch
            .send(&self.fd)
            .map_err(|error| self.kernel("sendmmsg", error))
    }

    /// Frames received and dropped at the ring since the previous call.
    ///
    /// # Errors
    /// The kernel refuses the query.
    pub fn statistics(&self) -> Result<Statistics, PacketSocketError> {
        packet::statistics(&self.fd).map_err(|error| self.kernel("PACKET_STATISTICS", error))
    }

    fn kernel(&self, step: &'static str, source: io::Error) -> PacketSocketError {
        PacketSocketError::Kernel {
            interface: self.interface.clone(),
            step,
            source,
        }
    }
}

/// Joins a fanout group whose classic BPF program distributes frames by destination MAC.
fn join_fanout(fd: &OwnedFd, fanout: Fanout) -> io::Result<()> {
    packet::join_fanout(fd, fanout.group, libc::PACKET_FANOUT_CBPF)?;
    // A fanout program sees the frame from its network header on; the link header is at SKF_LL_OFF.
    let instruction = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let mut program = [
        instruction(
            libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
            libc::SKF_LL_OFF as u32 + 2,
        ),
        instruction(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, fanout.sockets.max(1)),
        instruction(libc::BPF_RET | libc::BPF_A, 0),
    ];
    packet::set_fanout_program(fd, &mut program)
}
