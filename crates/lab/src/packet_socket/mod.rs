//! Sends and receives raw Ethernet frames on one interface, many per system call, without an allocation per frame.
//!
//! Frames are received from a memory ring that the kernel fills (`PACKET_RX_RING`) and sent in batches (`sendmmsg`). The
//! ring is `TPACKET_V2`, not V3: V3 delivers blocks and delays a single frame until the block's timer of at least 1 ms
//! expires, which would dominate every measured latency.

mod batch;
mod ring;

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::time::Duration;

pub use batch::{FRAME_BYTES_MAX, TxBatch};
pub use ring::Received;
use ring::RxRing;

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

/// Frame counters since the previous call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Frames for this socket, including dropped frames.
    pub received: u32,
    /// Frames that were dropped because the ring was full.
    pub dropped: u32,
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
        let fd = raw_socket().map_err(step_error("socket"))?;
        let set = |step, option, value: libc::c_int| {
            set_option(&fd, libc::SOL_PACKET, option, &value).map_err(step_error(step))
        };
        set(
            "PACKET_VERSION",
            libc::PACKET_VERSION,
            libc::tpacket_versions::TPACKET_V2 as libc::c_int,
        )?;
        if options.bypass_qdisc {
            set("PACKET_QDISC_BYPASS", libc::PACKET_QDISC_BYPASS, 1)?;
        }
        if !options.receive_outgoing {
            set("PACKET_IGNORE_OUTGOING", PACKET_IGNORE_OUTGOING, 1)?;
        }
        let send_buffer: libc::c_int = 4 << 20;
        set_option(&fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &send_buffer)
            .map_err(step_error("SO_SNDBUFFORCE"))?;
        let ring = RxRing::map(&fd, options.rx_frames).map_err(step_error("PACKET_RX_RING"))?;
        bind(&fd, interface.index).map_err(step_error("bind"))?;
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
        (0..limit).take_while(|_| self.ring.next(&mut on_frame)).count()
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
        let mut raw = libc::tpacket_stats {
            tp_packets: 0,
            tp_drops: 0,
        };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: the structure and its length live through the call and agree.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut raw).cast(),
                &raw mut length,
            )
        };
        if result != 0 {
            return Err(self.kernel("PACKET_STATISTICS", io::Error::last_os_error()));
        }
        Ok(Statistics {
            received: raw.tp_packets,
            dropped: raw.tp_drops,
        })
    }

    fn kernel(&self, step: &'static str, source: io::Error) -> PacketSocketError {
        PacketSocketError::Kernel {
            interface: self.interface.clone(),
            step,
            source,
        }
    }
}

/// `PACKET_IGNORE_OUTGOING` (include/uapi/linux/if_packet.h), since Linux 4.20.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
/// All Ethernet types, in network order.
const ALL_TYPES: u16 = (libc::ETH_P_ALL as u16).to_be();

/// Opens a socket with protocol 0, which receives nothing until [`bind`] sets a protocol.
fn raw_socket() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointer.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just created and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn bind(fd: &OwnedFd, interface: u32) -> io::Result<()> {
    // SAFETY: all fields are integers, for which zero is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = ALL_TYPES;
    address.sll_ifindex = interface.try_into().map_err(io::Error::other)?;
    // SAFETY: the address lives through the call and its size is given.
    let result = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    check(result)
}

/// Joins a fanout group whose classic BPF program distributes frames by destination MAC.
fn join_fanout(fd: &OwnedFd, fanout: Fanout) -> io::Result<()> {
    let kind = libc::PACKET_FANOUT_CBPF << 16;
    let argument = libc::c_uint::from(fanout.group) | kind;
    set_option(fd, libc::SOL_PACKET, libc::PACKET_FANOUT, &argument)?;
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
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    set_option(fd, libc::SOL_PACKET, libc::PACKET_FANOUT_DATA, &program)
}

/// Sets a socket option whose value is `T`.
fn set_option<T>(fd: &OwnedFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the value lives through the call and its size is given.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    check(result)
}

fn check(returned: libc::c_int) -> io::Result<()> {
    if returned == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
