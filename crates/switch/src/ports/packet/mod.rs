//! A network interface through `AF_PACKET`: any interface, next to the system's own network stack, which sees the frames too.
//! (Give the interface no address, or the system answers beside the switch.)
//!
//! Frames are received from a memory ring that the kernel fills (`PACKET_RX_RING`) and sent from another
//! (`PACKET_TX_RING`). The rings are `TPACKET_V2`: V3 hands over whole blocks and keeps a frame back until its block is
//! full or the block's timer runs out, milliseconds later, which every lone packet and every TCP acknowledgement would pay
//! for; and what V3 spares, a look at each slot, is a fortieth of what a frame costs. Frames of
//! segmentation offloads, up to 64 KiB, do not fit into its slots; the kernel then queues them at the socket
//! (`PACKET_COPY_THRESH`), where they are fetched one by one and cut into segments.

mod offload;
mod ring;
mod tx;
mod tx_ring;

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use super::{Port, PortError, Readiness, Receive, RxCounters, sys};
use offload::VNET_BYTES;
use ring::{Arrived, RxRing};
use tx::PacketSender;
use tx_ring::TxRing;

/// Ethernet header and two VLAN tags.
const LINK_BYTES_MAX: usize = 14 + 2 * 4;
/// Slots are made for no longer frames; longer ones, on a loopback interface, come through the socket.
const SLOT_FRAME_BYTES_MAX: usize = 9216 + LINK_BYTES_MAX;
/// Ethernet header and one VLAN tag: what every driver sends on top of an IP packet, and many no more.
const LINK_BYTES_SENT_MAX: usize = 14 + 4;
/// What a segmentation offload may hand over at once: an IP packet of 64 KiB and its link header.
const OVERSIZED_BYTES_MAX: usize = (64 << 10) + LINK_BYTES_MAX;
/// Room at the socket for oversized frames: some 256 of them.
const OVERSIZED_QUEUE_BYTES: libc::c_int = 32 << 20;
/// `PACKET_QDISC_BYPASS` leaves no queue but the driver's, so this bounds what one port may have on its way.
const SEND_BUFFER_BYTES: libc::c_int = 4 << 20;

/// How to open an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketOptions {
    /// Size of the receive ring; rounded up to a power of two. A frame takes 2 KiB of it at an MTU of 1,500, 16 KiB at 9,000.
    /// By default it holds what comes in 20 ms at 800,000 frames a second, as long as a busy system may not let the worker
    /// run.
    pub ring_bytes: usize,
    /// Shares the interface's frames, by the hash of their flow, with other ports that have the same number here: one for
    /// each worker.
    pub fanout_group: Option<u16>,
    /// Sends past the queueing discipline, straight to the driver. Faster, but no traffic control applies, and other
    /// packet sockets on the interface (tcpdump) do not see such frames.
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

/// Opens an interface of the calling thread's network namespace. The port stays there whichever thread uses it. The
/// interface receives all frames, whatever their address (promiscuous mode), as long as the port is open.
///
/// # Errors
/// When there is no such interface, or the kernel refuses; the step is named.
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
    let rx = packet_socket().map_err(fail("socket"))?;
    let mtu = sys::mtu(&rx, interface).map_err(fail("SIOCGIFMTU"))?;
    let tx = packet_socket().map_err(fail("socket"))?;
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

/// Protocol 0: nothing is received until the socket is bound to one.
fn packet_socket() -> io::Result<OwnedFd> {
    sys::socket(libc::AF_PACKET, libc::SOCK_RAW)
}

type Step = (&'static str, io::Error);

fn set(fd: &OwnedFd, step: &'static str, option: libc::c_int, value: libc::c_int) -> Result<(), Step> {
    sys::set_option(fd, libc::SOL_PACKET, option, value).map_err(|error| (step, error))
}

/// Makes the socket receive everything that arrives at the interface; nothing is missed from its return on.
fn prepare_rx(fd: &OwnedFd, index: u32, frame_bytes: usize, options: &PacketOptions) -> Result<RxRing, Step> {
    let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
    set(fd, "PACKET_VERSION", libc::PACKET_VERSION, version)?;
    set(fd, "PACKET_VNET_HDR", libc::PACKET_VNET_HDR, 1)?;
    set(fd, "PACKET_AUXDATA", libc::PACKET_AUXDATA, 1)?;
    set(fd, "PACKET_COPY_THRESH", libc::PACKET_COPY_THRESH, 1)?;
    set(fd, "PACKET_IGNORE_OUTGOING", libc::PACKET_IGNORE_OUTGOING, 1)?;
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, OVERSIZED_QUEUE_BYTES)
        .map_err(|error| ("SO_RCVBUFFORCE", error))?;
    let ring = RxRing::map(fd, options.ring_bytes, frame_bytes).map_err(|error| ("PACKET_RX_RING", error))?;
    let membership = libc::packet_mreq {
        mr_ifindex: index.cast_signed(),
        mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, membership)
        .map_err(|error| ("promiscuous mode", error))?;
    sys::bind_packet(fd, index, libc::ETH_P_ALL as u16).map_err(|error| ("bind", error))?;
    if let Some(group) = options.fanout_group {
        let fanout = libc::c_uint::from(group) | (libc::PACKET_FANOUT_HASH << 16);
        set(fd, "PACKET_FANOUT", libc::PACKET_FANOUT, fanout.cast_signed())?;
    }
    Ok(ring)
}

/// A socket of its own, so that both halves are independent; bound to no protocol, it receives nothing.
fn prepare_tx(fd: &OwnedFd, index: u32, frame_bytes: usize, options: &PacketOptions) -> Result<TxRing, Step> {
    let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
    set(fd, "PACKET_VERSION", libc::PACKET_VERSION, version)?;
    set(fd, "PACKET_VNET_HDR", libc::PACKET_VNET_HDR, 1)?;
    // A frame that the kernel finds malformed is skipped and does not block the ring.
    set(fd, "PACKET_LOSS", libc::PACKET_LOSS, 1)?;
    if options.bypass_qdisc {
        set(fd, "PACKET_QDISC_BYPASS", libc::PACKET_QDISC_BYPASS, 1)?;
    }
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER_BYTES)
        .map_err(|error| ("SO_SNDBUFFORCE", error))?;
    let ring = TxRing::map(fd, frame_bytes).map_err(|error| ("PACKET_TX_RING", error))?;
    sys::bind_packet(fd, index, 0).map_err(|error| ("bind", error))?;
    Ok(ring)
}

/// The receiving half.
#[derive(Debug)]
struct PacketReceiver {
    ring: RxRing,
    fd: OwnedFd,
    interface: String,
    index: u32,
    /// Where segments are put together.
    scratch: Vec<u8>,
    /// Where oversized frames are read to; empty until the first one.
    oversized: Vec<u8>,
    counters: RxCounters,
}

impl PacketReceiver {
    /// The kernel's count of frames that found the ring full. It starts anew with each reading, and has 32 bits.
    fn read_losses(&mut self) {
        let read =
            sys::get_option::<libc::tpacket_stats>(&self.fd, libc::SOL_PACKET, libc::PACKET_STATISTICS);
        if let Ok(since_last) = read {
            self.counters.dropped_full += u64::from(since_last.tp_drops);
        }
    }
}

/// Fetches a frame that was too long for the ring. The kernel queues it before it fills the slot that tells of it.
fn fetch(fd: &OwnedFd, buffer: &mut Vec<u8>) -> Option<(usize, Option<offload::VlanTag>)> {
    buffer.resize(VNET_BYTES + OVERSIZED_BYTES_MAX, 0);
    let (length, auxiliary) = sys::receive_packet(fd, buffer).ok()?;
    let tag = auxiliary.and_then(|told| ring::tag(told.tp_status, told.tp_vlan_tci, told.tp_vlan_tpid));
    (length <= buffer.len()).then_some((length, tag))
}

impl Receive for PacketReceiver {
    fn receive(&mut self, limit: usize, take: &mut dyn FnMut(&[u8])) -> Result<usize, PortError> {
        let (scratch, counters) = (&mut self.scratch, &mut self.counters);
        let (fd, oversized) = (&self.fd, &mut self.oversized);
        let mut losing = false;
        let mut frames = 0;
        while frames < limit {
            let next = self.ring.next(|arrived| match arrived {
                Arrived::Whole { buffer, tag } => offload::finish(buffer, tag, scratch, counters, take),
                Arrived::AtSocket => match fetch(fd, oversized) {
                    Some((length, tag)) => {
                        let buffer = oversized.get_mut(..length).unwrap_or_default();
                        offload::finish(buffer, tag, scratch, counters, take);
                    }
                    None => counters.dropped_truncated += 1,
                },
                Arrived::Lost => counters.dropped_truncated += 1,
            });
            let Some(next) = next else {
                break;
            };
            losing |= next.losing;
            frames += 1;
        }
        if losing {
            self.read_losses();
        }
        Ok(frames)
    }

    fn readiness(&self) -> Readiness<'_> {
        Readiness::Fd(self.fd.as_fd())
    }

    /// An interface that goes down reports so once, and the socket works again when it comes up; one that is removed
    /// never comes back.
    fn check(&mut self) -> Result<(), PortError> {
        let waiting = sys::take_error(&self.fd);
        match sys::interface_exists(&self.fd, self.index) {
            Ok(true) => Ok(()),
            Ok(false) => Err(PortError::NoInterface {
                interface: self.interface.clone(),
                source: waiting.unwrap_or_else(|| io::Error::from_raw_os_error(libc::ENODEV)),
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
