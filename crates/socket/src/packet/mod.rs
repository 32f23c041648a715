//! Packet sockets (`AF_PACKET`, packet(7)) with rings of `TPACKET_V2`.
//!
//! V3 delivers whole blocks and delays a frame until its block is full or the block timer expires: the median delay of a
//! single frame is 0.5 ms on Linux 6.18 (V2: 25 µs), and several ms on older kernels with tick-based timers.

mod rx_ring;
mod tx_ring;

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};

pub use rx_ring::{RxRing, RxSlot};
pub use tx_ring::{PushResult, TxRing};

use crate::{Mapping, check};

/// Length of the `virtio_net_hdr` before each frame with `PACKET_VNET_HDR`, bytes.
pub const VNET_HEADER_BYTES: usize = 10;

/// Minimum size of a block of slots, bytes.
const BLOCK_BYTES: usize = 64 << 10;

/// VLAN tag that the kernel removed from a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VlanTag {
    /// Tag protocol identifier.
    pub tpid: u16,
    /// Tag control information.
    pub tci: u16,
}

impl VlanTag {
    /// Tag of a frame with this status; `None` if the kernel removed no tag.
    #[inline]
    fn of(status: u32, tci: u16, tpid: u16) -> Option<Self> {
        let tpid_known = status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
        (status & libc::TP_STATUS_VLAN_VALID != 0).then_some(Self {
            tpid: if tpid_known {
                tpid
            } else {
                libc::ETH_P_8021Q as u16
            },
            tci,
        })
    }
}

/// Counters of a packet socket since the previous query.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Frames for this socket, including dropped frames.
    pub received: u32,
    /// Frames that were dropped because the ring was full.
    pub dropped: u32,
}

/// Creates a packet socket with protocol 0, which receives nothing until [`bind`] sets a protocol.
///
/// # Errors
/// The process lacks `CAP_NET_RAW`, or has too many descriptors.
pub fn socket() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointer.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the kernel has just created this descriptor, so there is no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets a socket option whose value is a number.
///
/// # Errors
/// The kernel rejects the option or its value.
pub fn set_option(
    socket: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    number: libc::c_int,
) -> io::Result<()> {
    set(socket, level, option, &number)
}

/// Sets a socket option. The kernel reads the value only during the call and keeps no address in it.
fn set<T>(socket: impl AsFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the value lives through the call and its size is given.
    check(unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    })
    .map(drop)
}

/// Binds a packet socket to an interface; `protocol` is an EtherType in host byte order, 0 receives nothing.
///
/// # Errors
/// The interface does not exist or is down.
pub fn bind(socket: impl AsFd, interface: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: all fields are integers, for which zero is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as libc::sa_family_t;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = interface.try_into().map_err(io::Error::other)?;
    // SAFETY: the address lives through the call and its size is given.
    check(unsafe {
        libc::bind(
            socket.as_fd().as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    })
    .map(drop)
}

/// Puts an interface into promiscuous mode while the socket is open.
///
/// # Errors
/// The interface does not exist.
pub fn set_promiscuous(socket: impl AsFd, interface: u32) -> io::Result<()> {
    let membership = libc::packet_mreq {
        mr_ifindex: interface.try_into().map_err(io::Error::other)?,
        mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)
}

/// Adds a bound socket to a fanout group: the sockets of a group share the frames of their interface. `mode` is one of
/// `PACKET_FANOUT_*`.
///
/// # Errors
/// A socket of the group has another mode or protocol.
pub fn join_fanout(socket: impl AsFd, group: u16, mode: libc::c_uint) -> io::Result<()> {
    let value = libc::c_uint::from(group) | mode << 16;
    set(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, &value)
}

/// Sets the cBPF program that selects the socket of a frame in a fanout group with the mode `PACKET_FANOUT_CBPF`.
///
/// # Errors
/// The program is not valid, or the socket has not joined such a group.
pub fn set_fanout_program(socket: impl AsFd, program: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: program.len().try_into().map_err(io::Error::other)?,
        filter: program.as_mut_ptr(),
    };
    set(socket, libc::SOL_PACKET, libc::PACKET_FANOUT_DATA, &program)
}

/// Reads and resets the counters of a packet socket.
///
/// # Errors
/// The descriptor is not a packet socket.
pub fn statistics(socket: impl AsFd) -> io::Result<Statistics> {
    let mut raw = libc::tpacket_stats {
        tp_packets: 0,
        tp_drops: 0,
    };
    let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
    // SAFETY: the structure and its length live through the call and agree.
    check(unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            (&raw mut raw).cast(),
            &raw mut length,
        )
    })?;
    Ok(Statistics {
        received: raw.tp_packets,
        dropped: raw.tp_drops,
    })
}

/// Buffer for one control message with a `tpacket_auxdata`, aligned as the kernel requires.
#[repr(C, align(8))]
struct ControlBuffer([u8; 64]);

/// Reads one frame from a packet socket without blocking. Returns its full length, which exceeds the buffer if the frame was
/// truncated, and the VLAN tag that the kernel removed (`PACKET_AUXDATA`).
///
/// # Errors
/// No frame is available, or the interface is down.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Option<VlanTag>)> {
    let mut vector = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let mut control = ControlBuffer([0; 64]);
    // SAFETY: integers and pointers, for which zero is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<ControlBuffer>();
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    // SAFETY: the header points to one buffer and to a control message buffer, with their lengths; all live through the
    // call.
    let length = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, flags) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has filled the header and its control messages.
    let first = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    if first.is_null() {
        return Ok((length, None));
    }
    // SAFETY: CMSG_FIRSTHDR points to a complete header inside `control`.
    let header = unsafe { first.read() };
    let expected = (libc::SOL_PACKET, libc::PACKET_AUXDATA);
    // SAFETY: takes only a length.
    let is_complete =
        header.cmsg_len >= unsafe { libc::CMSG_LEN(size_of::<libc::tpacket_auxdata>() as u32) } as usize;
    if (header.cmsg_level, header.cmsg_type) != expected || !is_complete {
        return Ok((length, None));
    }
    // SAFETY: the type and length of the message show that it contains this structure of integers, at any alignment.
    let auxiliary = unsafe {
        libc::CMSG_DATA(first)
            .cast::<libc::tpacket_auxdata>()
            .read_unaligned()
    };
    let tag = VlanTag::of(auxiliary.tp_status, auxiliary.tp_vlan_tci, auxiliary.tp_vlan_tpid);
    Ok((length, tag))
}

/// Creates and maps the ring `option`, which is `PACKET_RX_RING` or `PACKET_TX_RING`. `slot_bytes` is a power of two, and the
/// slots fill whole blocks.
fn map_ring(socket: impl AsFd, option: libc::c_int, slots: usize, slot_bytes: usize) -> io::Result<Mapping> {
    let to_u32 = |n: usize| u32::try_from(n).map_err(io::Error::other);
    let bytes = slots * slot_bytes;
    let block_bytes = BLOCK_BYTES.max(slot_bytes);
    let request = libc::tpacket_req {
        tp_block_size: to_u32(block_bytes)?,
        tp_block_nr: to_u32(bytes / block_bytes)?,
        tp_frame_size: to_u32(slot_bytes)?,
        tp_frame_nr: to_u32(slots)?,
    };
    let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
    set_option(&socket, libc::SOL_PACKET, libc::PACKET_VERSION, version)?;
    set(&socket, libc::SOL_PACKET, option, &request)?;
    Mapping::of(socket, bytes, 0)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// Index of the loopback interface in each network namespace.
    const LOOPBACK: u32 = 1;
    /// EtherType for local experiments (IEEE 802), which the network stack ignores.
    const ETHER_TYPE: u16 = 0x88b5;

    #[test]
    fn frames_of_the_transmit_ring_arrive_in_the_receive_ring() {
        let Ok(receiver) = socket() else {
            linewarden_harness::skip!("packet sockets need CAP_NET_RAW");
        };
        let mut received = RxRing::map(&receiver, 0, 1_500, true).unwrap();
        bind(&receiver, LOOPBACK, ETHER_TYPE).unwrap();
        let sender = socket().unwrap();
        let mut ring = TxRing::map(&sender, 1_500).unwrap();
        bind(&sender, LOOPBACK, 0).unwrap();

        let frames: Vec<Vec<u8>> = (0..200u8)
            .map(|number| [[0; 12].as_slice(), &ETHER_TYPE.to_be_bytes(), &[number; 100]].concat())
            .collect();
        let mut arrived = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(10);
        // More frames than slots of the receive ring.
        for frame in &frames {
            let (headers, payload) = frame.split_at(14);
            assert_eq!(ring.push(headers, payload), PushResult::Done);
            rustix::net::send(&sender, &[], rustix::net::SendFlags::empty()).unwrap();
            assert_eq!(ring.reclaim(), (1, frame.len()));
            while arrived.last() != Some(frame) {
                assert!(Instant::now() < deadline);
                received.next(|slot| {
                    assert!(slot.is_complete && !slot.outgoing && slot.tag.is_none());
                    arrived.push(slot.buffer[VNET_HEADER_BYTES..].to_vec());
                });
            }
        }
        assert_eq!(arrived, frames);
        assert_eq!(statistics(&receiver).unwrap().dropped, 0);
        assert_eq!(ring.push(&[0; 14], &[0; 1_500]), PushResult::TooLong);
    }
}
