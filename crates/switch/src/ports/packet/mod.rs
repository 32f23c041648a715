//! Port on a network interface through `AF_PACKET`. The port works with any interface. The system's network stack also
//! receives the frames. (Do not assign an address to the interface, otherwise the network stack responds, too.)
//!
//! Frames are received from a memory ring that the kernel fills (`PACKET_RX_RING`) and sent from another ring
//! (`PACKET_TX_RING`). Both rings use `TPACKET_V2`: every round trip would have the delay of V3 twice, while V3 saves only 7 ns
//! of about 850 ns per frame.
//!
//! Frames of segmentation offloads, up to 64 KiB, are too long for a slot. The kernel queues these frames at the socket
//! (`PACKET_COPY_THRESH`). The port reads these frames one by one from the socket and segments them.

#![forbid(unsafe_code)]

mod offload;
mod tx;

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use linewarden_socket::packet::{self, RxRing, TxRing, VNET_HEADER_BYTES, VlanTag};

use super::{Port, PortError, Readiness, Receive, RxCounters, sys};
use tx::PacketSender;

/// Ethernet header and two VLAN tags.
const LINK_BYTES_MAX: usize = 14 + 2 * 4;
/// Maximum frame length of a slot; longer frames (loopback interface) are read from the socket.
const SLOT_FRAME_BYTES_MAX: usize = 9216 + LINK_BYTES_MAX;
/// Ethernet header and one VLAN tag: every driver supports this overhead, and many drivers support no more.
const LINK_BYTES_SENT_MAX: usize = 14 + 4;
/// Maximum frame of a segmentation offload: an IP packet of 64 KiB and its link header.
const OVERSIZED_BYTES_MAX: usize = (64 << 10) + LINK_BYTES_MAX;
/// Socket buffer for oversized frames: about 256 frames.
const OVERSIZED_QUEUE_BYTES: libc::c_int = 32 << 20;
/// Size of the send buffer, bytes. With `PACKET_QDISC_BYPASS` frames wait only in the driver's queue, so this size limits
/// the frames in flight of a port.
const SEND_BUFFER_BYTES: libc::c_int = 4 << 20;

/// Options of an `AF_PACKET` port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketOptions {
    /// Size of the receive ring, bytes; rounded up to a power of two. A frame needs 2 KiB at an MTU of 1,500, 16 KiB at
    /// 9,000. The default buffers 20 ms at 800,000 frames/s, for times in which a busy system does not schedule the
    /// worker.
    pub ring_bytes: usize,
    /// Fanout group: ports with the same group share the frames of the interface by flow hash, one port for each
    /// worker.
    pub fanout_group: Option<u16>,
    /// Whether sent frames bypass the queueing discipline. The bypass is faster, but traffic control does not apply, and
    /// other packet sockets on the interface (tcpdump) do not see the sent frames.
    pub bypass_qdisc: bool,
}

impl Default for PacketOptions {
    fn default() -> Self {
        Self {
            ring_bytes: 32 << 20,
            fanout_group: None,
            bypass_qdisc: true,
        }
    }
}

/// Opens an interface in the calling thread's network namespace; other threads can use the port. The interface is in
/// promiscuous mode while the port is open.
///
/// # Errors
/// The interface does not exist, is not an Ethernet interface, or a system call failed; the error names the step.
pub fn open(interface: &str, options: &PacketOptions) -> Result<Port, PortError> {
    let index = sys::interface_index(interface).map_err(|source| PortError::NoInterface {
        interface: interface.to_owned(),
        source,
    })?;
    let fail = |step| {
        move |source| PortError::Kernel {
            interface: interface.to_owned(),
            step,
            source,
        }
    };
    let rx = packet::socket().map_err(fail("socket"))?;
    super::require_ethernet(&rx, interface)?;
    let mtu = sys::mtu(&rx, interface).map_err(fail("SIOCGIFMTU"))?;
    let tx = packet::socket().map_err(fail("socket"))?;
    let tx_ring = prepare_tx(&tx, index, mtu + LINK_BYTES_SENT_MAX, options)
        .map_err(|(step, source)| fail(step)(source))?;
    let slot_frame_bytes = (mtu + LINK_BYTES_MAX).min(SLOT_FRAME_BYTES_MAX);
    let ring =
        prepare_rx(&rx, index, slot_frame_bytes, options).map_err(|(step, source)| fail(step)(source))?;
    Ok(Port {
        receiver: Box::new(PacketReceiver {
            ring,
            fd: rx,
            interface: interface.to_owned(),
            index,
            scratch: Vec::new(),
            oversized: Vec::new(),
            counters: RxCounters::default(),
        }),
        sender: Box::new(PacketSender::new(tx, interface.to_owned(), tx_ring)),
    })
}

type StepError = (&'static str, io::Error);

fn set(fd: &OwnedFd, step: &'static str, option: libc::c_int, value: libc::c_int) -> Result<(), StepError> {
    packet::set_option(fd, libc::SOL_PACKET, option, value).map_err(|error| (step, error))
}

/// Configures the socket to receive all frames of the interface, starting when the function returns.
fn prepare_rx(
    fd: &OwnedFd,
    index: u32,
    frame_bytes: usize,
    options: &PacketOptions,
) -> Result<RxRing, StepError> {
    set(fd, "PACKET_AUXDATA", libc::PACKET_AUXDATA, 1)?;
    set(fd, "PACKET_COPY_THRESH", libc::PACKET_COPY_THRESH, 1)?;
    set(fd, "PACKET_IGNORE_OUTGOING", libc::PACKET_IGNORE_OUTGOING, 1)?;
    packet::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, OVERSIZED_QUEUE_BYTES)
        .map_err(|error| ("SO_RCVBUFFORCE", error))?;
    let ring =
        RxRing::map(fd, options.ring_bytes, frame_bytes, true).map_err(|error| ("PACKET_RX_RING", error))?;
    packet::set_promiscuous(fd, index).map_err(|error| ("promiscuous mode", error))?;
    packet::bind(fd, index, libc::ETH_P_ALL as u16).map_err(|error| ("bind", error))?;
    if let Some(group) = options.fanout_group {
        packet::join_fanout(fd, group, libc::PACKET_FANOUT_HASH).map_err(|error| ("PACKET_FANOUT", error))?;
    }
    Ok(ring)
}

/// Configures the sending socket, which receives nothing. The socket is separate, so the halves of the port are independent.
fn prepare_tx(
    fd: &OwnedFd,
    index: u32,
    frame_bytes: usize,
    options: &PacketOptions,
) -> Result<TxRing, StepError> {
    // With PACKET_LOSS the kernel skips malformed frames instead of blocking the ring.
    set(fd, "PACKET_LOSS", libc::PACKET_LOSS, 1)?;
    if options.bypass_qdisc {
        set(fd, "PACKET_QDISC_BYPASS", libc::PACKET_QDISC_BYPASS, 1)?;
    }
    packet::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER_BYTES)
        .map_err(|error| ("SO_SNDBUFFORCE", error))?;
    let ring = TxRing::map(fd, frame_bytes).map_err(|error| ("PACKET_TX_RING", error))?;
    packet::bind(fd, index, 0).map_err(|error| ("bind", error))?;
    Ok(ring)
}

/// Receiving half.
#[derive(Debug)]
struct PacketReceiver {
    ring: RxRing,
    fd: OwnedFd,
    interface: String,
    index: u32,
    /// Buffer for segments.
    scratch: Vec<u8>,
    /// Buffer for oversized frames; empty until the first oversized frame.
    oversized: Vec<u8>,
    counters: RxCounters,
}

impl PacketReceiver {
    /// Reads the kernel's 32-bit count of frames dropped because of a full ring. Reading resets the count.
    fn read_losses(&mut self) {
        if let Ok(statistics) = packet::statistics(&self.fd) {
            self.counters.dropped_full += u64::from(statistics.dropped);
        }
    }
}

/// Reads a frame that was too long for the ring. The kernel queues the frame before it fills the corresponding slot.
fn fetch(fd: &OwnedFd, buffer: &mut Vec<u8>) -> Option<(usize, Option<VlanTag>)> {
    buffer.resize(VNET_HEADER_BYTES + OVERSIZED_BYTES_MAX, 0);
    let (length, tag) = packet::receive(fd, buffer).ok()?;
    (length <= buffer.len()).then_some((length, tag))
}

impl Receive for PacketReceiver {
    fn receive(&mut self, limit: usize, take: &mut dyn FnMut(&[u8])) -> Result<usize, PortError> {
        let (scratch, counters) = (&mut self.scratch, &mut self.counters);
        let (fd, oversized) = (&self.fd, &mut self.oversized);
        let frames_max = counters.frames + limit as u64;
        let mut frames_lost = false;
        let mut slots = 0;
        // A slot may yield several frames or none.
        while slots < limit && counters.frames < frames_max {
            let slot_lost = self.ring.next(|slot| {
                if slot.is_complete {
                    offload::complete_offload(slot.buffer, slot.tag, scratch, counters, take);
                } else if slot.is_at_socket
                    && let Some((length, tag)) = fetch(fd, oversized)
                {
                    let buffer = oversized.get_mut(..length).unwrap_or_default();
                    offload::complete_offload(buffer, tag, scratch, counters, take);
                } else {
                    // The socket buffer was full, or the frame exceeds the largest offload.
                    counters.dropped_truncated += 1;
                }
                slot.frames_lost
            });
            let Some(slot_lost) = slot_lost else {
                break;
            };
            frames_lost |= slot_lost;
            slots += 1;
        }
        if frames_lost {
            self.read_losses();
        }
        Ok(slots)
    }

    fn readiness(&self) -> Readiness<'_> {
        Readiness::Fd(self.fd.as_fd())
    }

    /// An interface that is set down reports one error, and the socket works again after the interface comes up. A removed
    /// interface is a permanent error.
    fn check(&mut self) -> Result<(), PortError> {
        let pending_error = sys::take_error(&self.fd);
        match sys::interface_exists(&self.fd, self.index) {
            Ok(true) => Ok(()),
            Ok(false) => Err(PortError::NoInterface {
                interface: self.interface.clone(),
                source: pending_error.unwrap_or_else(|| io::Error::from_raw_os_error(libc::ENODEV)),
            }),
            Err(source) => Err(PortError::Kernel {
                interface: self.interface.clone(),
                step: "SIOCGIFNAME",
                source,
            }),
        }
    }

    fn counters(&mut self) -> RxCounters {
        self.read_losses();
        self.counters
    }
}
