//! UDP datagrams in batches, unicast and multicast.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant, SystemTime};

use nix::cmsg_space;
use nix::libc;
use nix::net::if_::if_indextoname;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg, setsockopt, sockopt,
};
use nix::sys::time::TimeSpec;
use rustix::net::sockopt::set_ip_multicast_if_with_ifindex;
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, SockFilter, SockRef, Socket, Type};

use crate::message::MESSAGE_BYTES_MAX;

/// Datagrams per system call.
pub const BATCH: usize = 64;
/// One byte more than the longest message: a datagram that fills the buffer is too long, and is refused.
const BUFFER_BYTES: usize = MESSAGE_BYTES_MAX + 1;
/// Requested size of the kernel's receive buffer: some ten thousand messages.
pub const RECEIVE_BUFFER_BYTES: usize = 8 << 20;
/// Upper bound of the time in the kernel's queue. A longer time means that the clock was set.
pub(crate) const QUEUED_MAX: Duration = Duration::from_secs(10);

/// Interval of reading the kernel's drop counter, which has 32 bits and must not wrap unnoticed.
const COUNT_INTERVAL: Duration = Duration::from_secs(60);

/// A received datagram.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The content, truncated to one byte more than the longest message.
    pub bytes: &'a [u8],
    /// Claimed sender address.
    pub sender: SocketAddr,
    /// Time at which the kernel received the datagram.
    pub arrived: Instant,
}

/// Result of attaching a filter.
#[derive(Debug)]
pub(crate) enum FilterAttachment {
    /// `replaced`: whether the filter replaced another filter without a gap.
    Attached { replaced: bool },
    /// The kernel rejected the filter.
    Rejected(io::Error),
}

/// Receives messages on a UDP socket.
pub struct UdpReceiver {
    socket: UdpSocket,
    buffer_bytes: usize,
    /// The kernel's drop counter at the last reading, modulo 2^32.
    drops: u64,
    /// Datagrams that the kernel dropped while no filter was attached.
    dropped: u64,
    /// Datagrams that the kernel dropped while a filter was attached, since the last [`UdpReceiver::take_filtered`].
    filtered: u64,
    has_filter: bool,
    counted_at: Instant,
    /// All datagrams that arrived before this time have been received.
    received_until: Instant,
    buffers: Vec<[u8; BUFFER_BYTES]>,
    headers: MultiHeaders<SockaddrStorage>,
}

impl fmt::Debug for UdpReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UdpReceiver").field(&self.socket).finish()
    }
}

impl UdpReceiver {
    /// Binds this address. A multicast group is joined on the interface with this index, 0 for the kernel's choice; a link-local IPv6 group
    /// (`ff02::`) requires the index. [`UdpReceiver::receive`] waits at most `wait`.
    ///
    /// # Errors
    /// A system call failed.
    pub fn open(address: SocketAddr, interface: u32, wait: Duration) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        let group = address.ip();
        if group.is_multicast() {
            // Several receivers may run on one machine.
            socket.set_reuse_address(true)?;
        }
        let buffer_bytes = enlarge_buffer(&socket)?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
        socket.set_read_timeout(Some(wait))?;
        if group.is_multicast() && interface != 0 {
            // For IPv6, the kernel does not filter by the interface on which the socket joined.
            socket.bind_device(Some(if_indextoname(interface)?.to_bytes()))?;
        }
        socket.bind(&with_scope_id(address, interface).into())?;
        // Excludes datagrams to the group that arrive only because another program of the machine has joined the group
        // on another interface.
        match group {
            IpAddr::V4(group) if group.is_multicast() => {
                socket.set_multicast_all_v4(false)?;
                socket.join_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(interface))?;
            }
            IpAddr::V6(group) if group.is_multicast() => {
                socket.set_multicast_all_v6(false)?;
                socket.join_multicast_v6(&group, interface)?;
            }
            _ => {}
        }
        Ok(Self {
            socket: socket.into(),
            buffer_bytes,
            drops: 0,
            dropped: 0,
            filtered: 0,
            has_filter: false,
            counted_at: Instant::now(),
            received_until: Instant::now(),
            buffers: vec![[0; BUFFER_BYTES]; BATCH],
            headers: MultiHeaders::preallocate(BATCH, Some(cmsg_space!(TimeSpec))),
        })
    }

    /// Size of the kernel's receive buffer, bytes: [`RECEIVE_BUFFER_BYTES`], or less if `net.core.rmem_max` does not allow that size.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// Datagrams that the kernel dropped since the socket was opened because the buffer was full or a checksum was wrong. Drops while a
    /// filter was attached are not included.
    ///
    /// # Errors
    /// A system call failed.
    pub fn dropped(&mut self) -> io::Result<u64> {
        self.count()?;
        Ok(self.dropped)
    }

    /// Updates the counts from the kernel's counter, which does not distinguish reasons.
    fn count(&mut self) -> io::Result<()> {
        self.counted_at = Instant::now();
        let drops = linewarden_socket::kernel_drops(&self.socket)?;
        let new_drops = drops.wrapping_sub(std::mem::replace(&mut self.drops, drops)) & u64::from(u32::MAX);
        *if self.has_filter {
            &mut self.filtered
        } else {
            &mut self.dropped
        } += new_drops;
        Ok(())
    }

    /// Attaches a filter, which replaces the current filter. If the kernel rejects the new filter, the socket has no
    /// filter.
    pub(crate) fn attach_filter(&mut self, program: &[SockFilter]) -> io::Result<FilterAttachment> {
        self.count()?;
        let mut replaced = self.has_filter;
        let mut result = SockRef::from(&self.socket).attach_filter(program);
        if result.is_err() && self.has_filter {
            // The memory for filters is limited (`net.core.optmem_max`): one filter may fit where two do not.
            self.detach_filter()?;
            replaced = false;
            result = SockRef::from(&self.socket).attach_filter(program);
        }
        self.has_filter = result.is_ok();
        Ok(
            result.map_or_else(FilterAttachment::Rejected, |()| FilterAttachment::Attached {
                replaced,
            }),
        )
    }

    pub(crate) fn detach_filter(&mut self) -> io::Result<()> {
        if self.has_filter {
            SockRef::from(&self.socket).detach_filter()?;
            self.count()?;
            self.has_filter = false;
        }
        Ok(())
    }

    pub(crate) fn has_filter(&self) -> bool {
        self.has_filter
    }

    /// All datagrams that arrived before this time have been received.
    pub(crate) fn received_until(&self) -> Instant {
        self.received_until
    }

    /// Returns and resets the number of datagrams that the kernel dropped while a filter was attached. The filter
    /// itself dropped nearly all of them.
    pub(crate) fn take_filtered(&mut self) -> io::Result<u64> {
        self.count()?;
        Ok(std::mem::take(&mut self.filtered))
    }

    /// Replaces this receiver with another one, and keeps the drop counts.
    ///
    /// # Errors
    /// Reading the kernel's counters failed.
    pub fn replace(&mut self, replacement: Self) -> io::Result<()> {
        self.count()?;
        *self = Self {
            dropped: self.dropped,
            filtered: self.filtered,
            ..replacement
        };
        Ok(())
    }

    /// The local address.
    ///
    /// # Errors
    /// A system call failed.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Waits for datagrams, and passes up to [`BATCH`] datagrams to `on_datagram`. Returns their number, 0 after a
    /// timeout.
    ///
    /// # Errors
    /// A system call failed.
    pub fn receive(&mut self, mut on_datagram: impl FnMut(Datagram<'_>)) -> io::Result<usize> {
        let begin = Instant::now();
        if begin.duration_since(self.counted_at) >= COUNT_INTERVAL {
            self.count()?;
        }
        let mut slices: Vec<[IoSliceMut<'_>; 1]> = self
            .buffers
            .iter_mut()
            .map(|buffer| [IoSliceMut::new(buffer)])
            .collect();
        let socket = self.socket.as_raw_fd();
        let flags = MsgFlags::MSG_WAITFORONE;
        let received = match recvmmsg(socket, &mut self.headers, slices.iter_mut(), flags, None) {
            Ok(received) => received,
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => {
                self.received_until = begin;
                return Ok(0);
            }
            Err(error) => return Err(error.into()),
        };
        // The order matters: if the thread is interrupted between both calls, datagrams appear older than they are,
        // never newer.
        let (now, wall_clock) = (Instant::now(), SystemTime::now());
        let wall_clock = wall_clock
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let received: Vec<(usize, SocketAddr, Instant)> = received
            .map(|datagram| {
                let stamps = datagram.cmsgs().into_iter().flatten();
                let mut stamps = stamps.filter_map(|message| match message {
                    ControlMessageOwned::ScmTimestampns(stamp) => Some(Duration::from(stamp)),
                    _ => None,
                });
                let queue_time = stamps.next().and_then(|stamp| wall_clock.checked_sub(stamp));
                (
                    datagram.bytes,
                    datagram
                        .address
                        .map_or(UNKNOWN_SENDER, |address| socket_addr(&address)),
                    queue_time
                        .filter(|queue_time| *queue_time <= QUEUED_MAX)
                        .and_then(|queue_time| now.checked_sub(queue_time))
                        .unwrap_or(now),
                )
            })
            .collect();
        for ((bytes, sender, arrived), buffer) in received.iter().zip(&self.buffers) {
            on_datagram(Datagram {
                bytes: buffer.get(..*bytes).unwrap_or_default(),
                sender: *sender,
                arrived: *arrived,
            });
        }
        Ok(received.len())
    }
}

/// Requests [`RECEIVE_BUFFER_BYTES`], and returns the granted size: with `CAP_NET_ADMIN` all of it. A smaller buffer is not an error.
fn enlarge_buffer(socket: &Socket) -> io::Result<usize> {
    if setsockopt(socket, sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES).is_err() {
        socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    }
    // The kernel doubles the size for its own overhead.
    Ok(socket.recv_buffer_size()? / 2)
}

/// Gives the calling thread, which receives datagrams, precedence over lanes on a shared CPU: datagrams that wait in
/// the kernel are not ordered by priority. Sets time slices of 100 us, the shortest possible (Linux 6.12 and later), so
/// that a lane does not delay the thread by milliseconds; with `CAP_SYS_NICE` also niceness -5. A thread with a
/// real-time policy keeps its policy.
pub fn prioritize_receiving_thread() {
    const NICE: i32 = -5;
    let Some(current) = scheduling() else { return };
    if current.sched_policy != libc::SCHED_OTHER as u32 {
        return;
    }
    let short_slices = libc::sched_attr {
        sched_runtime: 100_000,
        ..current
    };
    let short_slices_and_nice = libc::sched_attr {
        sched_nice: NICE.min(current.sched_nice),
        ..short_slices
    };
    // Tries both settings, then the short time slices alone, then the niceness alone.
    if !set_scheduling(&short_slices_and_nice) && !set_scheduling(&short_slices) {
        // On Linux the call sets the niceness of the calling thread.
        let _ = rustix::process::setpriority_process(None, NICE);
    }
}

const THIS_THREAD: libc::c_int = 0;
const NO_FLAGS: libc::c_uint = 0;

/// Scheduling attributes of the calling thread.
fn scheduling() -> Option<libc::sched_attr> {
    // SAFETY: `sched_attr` has only integer fields, for which zeros are valid.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>() as libc::c_uint;
    let pointer = &raw mut attributes;
    // SAFETY: the kernel writes at most the given number of bytes, which is the size of the attributes; the attributes
    // outlive the call.
    let status = unsafe { libc::syscall(libc::SYS_sched_getattr, THIS_THREAD, pointer, size, NO_FLAGS) };
    (status == 0).then_some(attributes)
}

/// Sets the scheduling attributes of the calling thread; returns false if the kernel refuses.
fn set_scheduling(attributes: &libc::sched_attr) -> bool {
    let pointer = &raw const *attributes;
    // SAFETY: the kernel reads as many bytes as the attributes state; the attributes outlive the call.
    unsafe { libc::syscall(libc::SYS_sched_setattr, THIS_THREAD, pointer, NO_FLAGS) == 0 }
}

/// The address, with the interface as scope of a link-local group.
fn with_scope_id(address: SocketAddr, interface: u32) -> SocketAddr {
    match address {
        SocketAddr::V6(mut address) if address.ip().is_multicast() && address.scope_id() == 0 => {
            address.set_scope_id(interface);
            address.into()
        }
        address => address,
    }
}

/// Sender address of a datagram for which the kernel reports none.
const UNKNOWN_SENDER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

fn socket_addr(address: &SockaddrStorage) -> SocketAddr {
    if let Some(address) = address.as_sockaddr_in() {
        return SocketAddr::new(address.ip().into(), address.port());
    }
    address.as_sockaddr_in6().map_or(UNKNOWN_SENDER, |address| {
        SocketAddr::new(address.ip().into(), address.port())
    })
}

/// Sends messages on a UDP socket.
#[derive(Debug)]
pub struct UdpSender {
    socket: UdpSocket,
    address: SocketAddr,
}

impl UdpSender {
    /// Sends to this address; a multicast group is reached through the interface with this index (0: the kernel's choice), across at most
    /// `hops` routers.
    ///
    /// # Errors
    /// A system call failed.
    pub fn open(address: SocketAddr, interface: u32, hops: u8) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        match address.ip() {
            IpAddr::V4(group) if group.is_multicast() => {
                socket.set_multicast_ttl_v4(hops.into())?;
                if interface != 0 {
                    let unspecified = Ipv4Addr::UNSPECIFIED;
                    set_ip_multicast_if_with_ifindex(&socket, &unspecified, &unspecified, interface)?;
                }
            }
            IpAddr::V6(group) if group.is_multicast() => {
                socket.set_multicast_hops_v6(hops.into())?;
                socket.set_multicast_if_v6(interface)?;
            }
            _ => {}
        }
        Ok(Self {
            socket: socket.into(),
            address,
        })
    }

    /// Sends messages, in as few system calls as possible.
    ///
    /// # Errors
    /// A system call failed; earlier messages were sent.
    pub fn send(&self, messages: &[Vec<u8>]) -> io::Result<()> {
        let address = SockaddrStorage::from(self.address);
        let mut headers = MultiHeaders::preallocate(BATCH.min(messages.len()), None);
        for batch in messages.chunks(BATCH) {
            let mut remaining = batch;
            while !remaining.is_empty() {
                let slices: Vec<[IoSlice<'_>; 1]> =
                    remaining.iter().map(|message| [IoSlice::new(message)]).collect();
                let addresses = vec![Some(address); remaining.len()];
                let socket = self.socket.as_raw_fd();
                let sent = sendmmsg(socket, &mut headers, &slices, &addresses, [], MsgFlags::empty());
                let sent = match sent {
                    Ok(sent) => sent.count(),
                    Err(nix::errno::Errno::EINTR) => 0,
                    Err(error) => return Err(error.into()),
                };
                remaining = remaining.get(sent..).unwrap_or_default();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(address: SocketAddr) {
        let wait = Duration::from_secs(10);
        let mut inbox = UdpReceiver::open(address, 0, wait).unwrap();
        let outbox = UdpSender::open(inbox.address().unwrap(), 0, 0).unwrap();
        let messages: Vec<Vec<u8>> = (0..150u8)
            .map(|number| vec![number; usize::from(number) + 1])
            .collect();
        outbox.send(&messages).unwrap();
        let mut received = Vec::new();
        while received.len() < messages.len() {
            let received = inbox
                .receive(|datagram| {
                    assert!(datagram.sender.ip().is_loopback() || address.ip().is_multicast());
                    received.push(datagram.bytes.to_vec());
                })
                .unwrap();
            assert!(received > 0 && received <= BATCH);
        }
        assert_eq!(received, messages);
    }

    #[test]
    fn batches_arrive_complete_and_in_order() {
        exchange("127.0.0.1:0".parse().unwrap());
    }

    #[test]
    fn a_timeout_is_not_an_error() {
        let wait = Duration::from_millis(1);
        let mut inbox = UdpReceiver::open("127.0.0.1:0".parse().unwrap(), 0, wait).unwrap();
        assert_eq!(inbox.receive(|_| panic!("nothing was sent")).unwrap(), 0);
    }

    /// A datagram longer than any message arrives as one byte more than the longest message, and so is refused.
    #[test]
    fn an_oversized_datagram_stays_oversized() {
        let address = "127.0.0.1:0".parse().unwrap();
        let mut inbox = UdpReceiver::open(address, 0, Duration::from_secs(10)).unwrap();
        let outbox = UdpSender::open(inbox.address().unwrap(), 0, 0).unwrap();
        outbox.send(&[vec![1; 9000]]).unwrap();
        let mut bytes = 0;
        inbox.receive(|datagram| bytes = datagram.bytes.len()).unwrap();
        assert_eq!(bytes, MESSAGE_BYTES_MAX + 1);
    }

    /// Short slices on any kernel that supports them, precedence with the capability, and no change for a real-time thread.
    #[test]
    fn a_receiving_thread_gets_short_slices_and_precedence() {
        let before = scheduling().unwrap();
        prioritize_receiving_thread();
        let after = scheduling().unwrap();
        assert_eq!(after.sched_policy, before.sched_policy);
        assert!(after.sched_nice == -5 || after.sched_nice == before.sched_nice);
        assert!(after.sched_runtime == 100_000 || after.sched_runtime == before.sched_runtime);
        let real_time = libc::sched_param { sched_priority: 1 };
        // SAFETY: the structure outlives the call.
        if unsafe { libc::sched_setscheduler(THIS_THREAD, libc::SCHED_RR, &raw const real_time) } == 0 {
            prioritize_receiving_thread();
            assert_eq!(scheduling().unwrap().sched_policy, libc::SCHED_RR as u32);
        }
    }

    /// More datagrams than the buffer holds: drops and arrivals together are all datagrams sent.
    #[test]
    fn datagrams_dropped_by_the_kernel_are_counted() {
        let wait = Duration::from_millis(1);
        let mut inbox = UdpReceiver::open("127.0.0.1:0".parse().unwrap(), 0, wait).unwrap();
        assert_eq!(inbox.dropped().unwrap(), 0);
        inbox.socket = {
            let socket = Socket::from(inbox.socket);
            socket.set_recv_buffer_size(1 << 16).unwrap();
            socket.into()
        };
        let outbox = UdpSender::open(inbox.address().unwrap(), 0, 0).unwrap();
        outbox.send(&vec![vec![1; 400]; 1_000]).unwrap();
        let lost = inbox.dropped().unwrap();
        let mut received = 0;
        while inbox.receive(|_| received += 1).unwrap() > 0 {}
        assert!(lost > 0 && received > 0, "{lost} lost, {received} received");
        assert_eq!(lost + received, 1_000);
        assert_eq!(inbox.dropped().unwrap(), lost);
    }

    fn program(length: u32) -> Vec<SockFilter> {
        // `length` - 1 loads of an immediate number, and a return that drops the datagram.
        let loads = (1..length).map(|_| SockFilter::new(0, 0, 0, 7));
        let end = SockFilter::new(libc::BPF_RET as u16, 0, 0, 0);
        loads.chain([end]).collect()
    }

    /// The counts are kept when the receiver is replaced.
    #[test]
    fn datagrams_dropped_by_a_filter_are_counted_separately() {
        let open = || UdpReceiver::open("127.0.0.1:0".parse().unwrap(), 0, Duration::from_millis(1)).unwrap();
        let mut inbox = open();
        let send = |inbox: &UdpReceiver| {
            let outbox = UdpSender::open(inbox.address().unwrap(), 0, 0).unwrap();
            outbox.send(&vec![vec![1; 40]; 10]).unwrap();
        };
        assert!(matches!(
            inbox.attach_filter(&program(2)).unwrap(),
            FilterAttachment::Attached { replaced: false }
        ));
        send(&inbox);
        inbox.detach_filter().unwrap();
        send(&inbox);
        assert!(matches!(
            inbox.attach_filter(&program(3)).unwrap(),
            FilterAttachment::Attached { replaced: false }
        ));
        send(&inbox);
        inbox.replace(open()).unwrap();
        assert!(!inbox.has_filter());
        assert_eq!(inbox.take_filtered().unwrap(), 20);
        assert_eq!(inbox.take_filtered().unwrap(), 0);
        assert_eq!(inbox.dropped().unwrap(), 0);
    }

    /// The kernel's rejection also detaches the previous filter.
    #[test]
    fn a_filter_that_the_kernel_rejects_leaves_the_socket_without_a_filter() {
        let mut inbox =
            UdpReceiver::open("127.0.0.1:0".parse().unwrap(), 0, Duration::from_secs(10)).unwrap();
        assert!(matches!(
            inbox.attach_filter(&program(2)).unwrap(),
            FilterAttachment::Attached { replaced: false }
        ));
        assert!(matches!(
            inbox.attach_filter(&program(5_000)).unwrap(),
            FilterAttachment::Rejected(_)
        ));
        assert!(!inbox.has_filter());
        let outbox = UdpSender::open(inbox.address().unwrap(), 0, 0).unwrap();
        outbox.send(&[vec![1; 40]]).unwrap();
        assert_eq!(inbox.receive(|_| {}).unwrap(), 1);
    }

    /// Time in the kernel's queue counts as part of the latency.
    #[test]
    fn arrival_is_the_kernels_receive_time() {
        let wait = Duration::from_secs(10);
        let mut inbox = UdpReceiver::open("127.0.0.1:0".parse().unwrap(), 0, wait).unwrap();
        let outbox = UdpSender::open(inbox.address().unwrap(), 0, 0).unwrap();
        // The kernel starts time-stamping some time after the request. Two successful rounds: in the second, the
        // headers already contain values.
        let begin = Instant::now();
        let mut stamped = 0;
        while stamped < 2 {
            assert!(begin.elapsed() < wait, "no receive timestamps");
            let before = Instant::now();
            outbox.send(&vec![vec![1; 40]; 3]).unwrap();
            let sent = Instant::now();
            let mut arrived = Vec::new();
            inbox.receive(|datagram| arrived.push(datagram.arrived)).unwrap();
            let are_all_in_range =
                arrived.len() == 3 && arrived.iter().all(|arrived| (before..=sent).contains(arrived));
            stamped = if are_all_in_range { stamped + 1 } else { 0 };
        }
    }
}
