//! Datagrams in batches, to one or to many.

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

/// Datagrams that one call of the kernel takes or gives.
pub const BATCH: usize = 64;
/// One byte more than any message: what fills it is too long, and refused as that.
const BUFFER_BYTES: usize = MESSAGE_BYTES_MAX + 1;
/// What the kernel keeps for a receiver that is busy, if it lets us: some ten thousand messages.
pub const RECEIVE_BUFFER_BYTES: usize = 8 << 20;
/// A datagram that waited in the kernel for longer than this did not: the clock was set.
pub(crate) const QUEUED_MAX: Duration = Duration::from_secs(10);

/// The kernel's count of drops has 32 bits, and must not begin again unseen.
const COUNTED_EVERY: Duration = Duration::from_secs(60);

/// A datagram that came in.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// What is in it; of one that is longer than any message, one byte more than the longest has.
    pub bytes: &'a [u8],
    /// Where it says it comes from.
    pub sender: SocketAddr,
    /// When the kernel received it.
    pub arrived: Instant,
}

/// How a filter was attached.
#[derive(Debug)]
pub(crate) enum Attachment {
    /// `replaced`: in place of another one, so that the socket always had one.
    Attached { replaced: bool },
    /// The kernel has rejected it.
    Rejected(io::Error),
}

/// Where messages come in.
pub struct Inbox {
    socket: UdpSocket,
    buffer_bytes: usize,
    /// What the kernel had dropped, modulo 2^32, when it was counted last.
    drops: u64,
    lost: u64,
    filtered: u64,
    has_filter: bool,
    counted_at: Instant,
    /// All that had arrived by then has been received.
    received_until: Instant,
    buffers: Vec<[u8; BUFFER_BYTES]>,
    headers: MultiHeaders<SockaddrStorage>,
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Inbox").field(&self.socket).finish()
    }
}

impl Inbox {
    /// Listens at this address; of a multicast group on the interface of this index alone, 0 for the one that the kernel chooses. A group of
    /// IPv6's that is one link's (`ff02::`) needs the index. [`Inbox::receive`] waits no longer than `wait`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(address: SocketAddr, interface: u32, wait: Duration) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        let group = address.ip();
        if group.is_multicast() {
            // Several receivers of one machine.
            socket.set_reuse_address(true)?;
        }
        let buffer_bytes = enlarge_buffer(&socket)?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
        socket.set_read_timeout(Some(wait))?;
        if group.is_multicast() && interface != 0 {
            // IPv6 does not ask by which interface a socket has joined.
            socket.bind_device(Some(if_indextoname(interface)?.to_bytes()))?;
        }
        socket.bind(&on_link(address, interface).into())?;
        // Not what comes to the group by an interface by which another program of the machine has joined it.
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
            lost: 0,
            filtered: 0,
            has_filter: false,
            counted_at: Instant::now(),
            received_until: Instant::now(),
            buffers: vec![[0; BUFFER_BYTES]; BATCH],
            headers: MultiHeaders::preallocate(BATCH, Some(cmsg_space!(TimeSpec))),
        })
    }

    /// What the kernel keeps for this receiver while it is busy, bytes: [`RECEIVE_BUFFER_BYTES`], or less if this process may not have more
    /// than `net.core.rmem_max`.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// Datagrams that the kernel has dropped since this was opened, for want of room in the buffer, or since their checksums were wrong;
    /// without those that it dropped while a filter was attached.
    ///
    /// # Errors
    /// The kernel's.
    pub fn lost(&mut self) -> io::Result<u64> {
        self.count()?;
        Ok(self.lost)
    }

    /// The kernel has one count for all reasons.
    fn count(&mut self) -> io::Result<()> {
        self.counted_at = Instant::now();
        let drops = linewarden_socket::kernel_drops(&self.socket)?;
        let more = drops.wrapping_sub(std::mem::replace(&mut self.drops, drops)) & u64::from(u32::MAX);
        *if self.has_filter {
            &mut self.filtered
        } else {
            &mut self.lost
        } += more;
        Ok(())
    }

    /// Attaches a filter in place of the current one. If the kernel rejects it, the socket has no filter.
    pub(crate) fn attach_filter(&mut self, program: &[SockFilter]) -> io::Result<Attachment> {
        self.count()?;
        let mut replaced = self.has_filter;
        let mut attached = SockRef::from(&self.socket).attach_filter(program);
        if attached.is_err() && self.has_filter {
            // The memory for filters is limited (`net.core.optmem_max`): one at a time may fit.
            self.detach_filter()?;
            replaced = false;
            attached = SockRef::from(&self.socket).attach_filter(program);
        }
        self.has_filter = attached.is_ok();
        Ok(attached.map_or_else(Attachment::Rejected, |()| Attachment::Attached { replaced }))
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

    /// All datagrams that had arrived by then have been received.
    pub(crate) fn received_until(&self) -> Instant {
        self.received_until
    }

    /// Returns and resets the number of datagrams that the kernel has dropped while a filter was attached: nearly all by the filter.
    pub(crate) fn take_filtered(&mut self) -> io::Result<u64> {
        self.count()?;
        Ok(std::mem::take(&mut self.filtered))
    }

    /// Replaces this inbox with another one, and keeps the drop counts of this one.
    ///
    /// # Errors
    /// The kernel's counters.
    pub fn replace(&mut self, other: Self) -> io::Result<()> {
        self.count()?;
        *self = Self {
            lost: self.lost,
            filtered: self.filtered,
            ..other
        };
        Ok(())
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The kernel's.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Waits for datagrams, and hands up to [`BATCH`] to `each`; how many there were, 0 if none came in time.
    ///
    /// # Errors
    /// The kernel's.
    pub fn receive(&mut self, mut each: impl FnMut(Datagram<'_>)) -> io::Result<usize> {
        let begun = Instant::now();
        if begun.duration_since(self.counted_at) >= COUNTED_EVERY {
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
                self.received_until = begun;
                return Ok(0);
            }
            Err(error) => return Err(error.into()),
        };
        // In this order: if the thread is interrupted in between, datagrams seem older, and not newer than they are.
        let (now, of_stamps) = (Instant::now(), SystemTime::now());
        let of_stamps = of_stamps
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let received: Vec<(usize, SocketAddr, Instant)> = received
            .map(|datagram| {
                let stamps = datagram.cmsgs().into_iter().flatten();
                let mut stamps = stamps.filter_map(|message| match message {
                    ControlMessageOwned::ScmTimestampns(stamp) => Some(Duration::from(stamp)),
                    _ => None,
                });
                let queued = stamps.next().and_then(|stamp| of_stamps.checked_sub(stamp));
                (
                    datagram.bytes,
                    datagram.address.map_or(NOWHERE, |address| plain(&address)),
                    queued
                        .filter(|queued| *queued <= QUEUED_MAX)
                        .and_then(|queued| now.checked_sub(queued))
                        .unwrap_or(now),
                )
            })
            .collect();
        for ((bytes, sender, arrived), buffer) in received.iter().zip(&self.buffers) {
            each(Datagram {
                bytes: buffer.get(..*bytes).unwrap_or_default(),
                sender: *sender,
                arrived: *arrived,
            });
        }
        Ok(received.len())
    }
}

/// Asks for [`RECEIVE_BUFFER_BYTES`], and says what the kernel gives: with `CAP_NET_ADMIN` all of it. Less is no reason not to listen.
fn enlarge_buffer(socket: &Socket) -> io::Result<usize> {
    if setsockopt(socket, sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES).is_err() {
        socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    }
    // The kernel doubles it, for what it needs besides.
    Ok(socket.recv_buffer_size()? / 2)
}

/// Lets the calling thread, which takes datagrams in, go before lanes where they share a processor: what it leaves in the kernel waits
/// without an order. It has the processor in slices of 100 us, the shortest there are (Linux 6.12 and later), so that a lane is not left
/// without it for some milliseconds either; and with `CAP_SYS_NICE`, niceness -5. A thread with a real-time policy keeps it.
pub fn receive_first() {
    const NICE: i32 = -5;
    let Some(before) = scheduling() else { return };
    if before.sched_policy != libc::SCHED_OTHER as u32 {
        return;
    }
    let short = libc::sched_attr {
        sched_runtime: 100_000,
        ..before
    };
    let first = libc::sched_attr {
        sched_nice: NICE.min(before.sched_nice),
        ..short
    };
    // If neither is allowed, try the niceness alone.
    if !set_scheduling(&first) && !set_scheduling(&short) {
        // Of Linux, for a thread: none is named, so it is the calling one.
        let _ = rustix::process::setpriority_process(None, NICE);
    }
}

const THIS_THREAD: libc::c_int = 0;
const NO_FLAGS: libc::c_uint = 0;

/// How the calling thread is scheduled.
fn scheduling() -> Option<libc::sched_attr> {
    // SAFETY: `sched_attr` has integers only, so that zeros are a valid value.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>() as libc::c_uint;
    let place = &raw mut attributes;
    // SAFETY: the kernel writes as many bytes as are said, which are the attributes' and live through the call.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, THIS_THREAD, place, size, NO_FLAGS) };
    (got == 0).then_some(attributes)
}

/// Whether the calling thread may be scheduled so, and is from now on.
fn set_scheduling(attributes: &libc::sched_attr) -> bool {
    let place = &raw const *attributes;
    // SAFETY: the kernel reads as many bytes of the attributes as they say themselves, which live through the call.
    unsafe { libc::syscall(libc::SYS_sched_setattr, THIS_THREAD, place, NO_FLAGS) == 0 }
}

/// The address, which for one link's group is of the interface's link.
fn on_link(address: SocketAddr, interface: u32) -> SocketAddr {
    match address {
        SocketAddr::V6(mut address) if address.ip().is_multicast() && address.scope_id() == 0 => {
            address.set_scope_id(interface);
            address.into()
        }
        address => address,
    }
}

/// Of a datagram whose sender the kernel does not tell: none is known.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

fn plain(address: &SockaddrStorage) -> SocketAddr {
    if let Some(address) = address.as_sockaddr_in() {
        return SocketAddr::new(address.ip().into(), address.port());
    }
    address.as_sockaddr_in6().map_or(NOWHERE, |address| {
        SocketAddr::new(address.ip().into(), address.port())
    })
}

/// Where messages go out.
#[derive(Debug)]
pub struct Outbox {
    socket: UdpSocket,
    address: SocketAddr,
}

impl Outbox {
    /// Sends to this address; to a multicast group by the interface of this index, 0 for the one that the kernel chooses, over so many
    /// routers.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(address: SocketAddr, interface: u32, hops: u8) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        match address.ip() {
            IpAddr::V4(group) if group.is_multicast() => {
                socket.set_multicast_ttl_v4(hops.into())?;
                if interface != 0 {
                    let any = Ipv4Addr::UNSPECIFIED;
                    set_ip_multicast_if_with_ifindex(&socket, &any, &any, interface)?;
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

    /// Sends these, in as few calls as can be.
    ///
    /// # Errors
    /// The kernel's; those before have been sent.
    pub fn send(&self, messages: &[Vec<u8>]) -> io::Result<()> {
        let address = SockaddrStorage::from(self.address);
        let mut headers = MultiHeaders::preallocate(BATCH.min(messages.len()), None);
        for batch in messages.chunks(BATCH) {
            let mut rest = batch;
            while !rest.is_empty() {
                let slices: Vec<[IoSlice<'_>; 1]> =
                    rest.iter().map(|message| [IoSlice::new(message)]).collect();
                let addresses = vec![Some(address); rest.len()];
                let socket = self.socket.as_raw_fd();
                let sent = sendmmsg(socket, &mut headers, &slices, &addresses, [], MsgFlags::empty());
                let sent = match sent {
                    Ok(sent) => sent.count(),
                    Err(nix::errno::Errno::EINTR) => 0,
                    Err(error) => return Err(error.into()),
                };
                rest = rest.get(sent..).unwrap_or_default();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(at: SocketAddr) {
        let wait = Duration::from_secs(10);
        let mut inbox = Inbox::open(at, 0, wait).unwrap();
        let outbox = Outbox::open(inbox.address().unwrap(), 0, 0).unwrap();
        let messages: Vec<Vec<u8>> = (0..150u8)
            .map(|number| vec![number; usize::from(number) + 1])
            .collect();
        outbox.send(&messages).unwrap();
        let mut seen = Vec::new();
        while seen.len() < messages.len() {
            let received = inbox
                .receive(|datagram| {
                    assert!(datagram.sender.ip().is_loopback() || at.ip().is_multicast());
                    seen.push(datagram.bytes.to_vec());
                })
                .unwrap();
            assert!(received > 0 && received <= BATCH);
        }
        assert_eq!(seen, messages);
    }

    #[test]
    fn batches_arrive_in_order_and_whole() {
        exchange("127.0.0.1:0".parse().unwrap());
    }

    #[test]
    fn nothing_in_time_is_no_error() {
        let wait = Duration::from_millis(1);
        let mut inbox = Inbox::open("127.0.0.1:0".parse().unwrap(), 0, wait).unwrap();
        assert_eq!(inbox.receive(|_| panic!("nothing was sent")).unwrap(), 0);
    }

    /// What is longer than any message arrives as one byte more than the longest, and so is refused.
    #[test]
    fn too_long_stays_too_long() {
        let at = "127.0.0.1:0".parse().unwrap();
        let mut inbox = Inbox::open(at, 0, Duration::from_secs(10)).unwrap();
        let outbox = Outbox::open(inbox.address().unwrap(), 0, 0).unwrap();
        outbox.send(&[vec![1; 9000]]).unwrap();
        let mut bytes = 0;
        inbox.receive(|datagram| bytes = datagram.bytes.len()).unwrap();
        assert_eq!(bytes, MESSAGE_BYTES_MAX + 1);
    }

    /// Short slices with any kernel that knows them, precedence with the right to it, and nothing of this for a real-time thread.
    #[test]
    fn a_receiving_thread_gets_short_slices_and_precedence() {
        let before = scheduling().unwrap();
        receive_first();
        let after = scheduling().unwrap();
        assert_eq!(after.sched_policy, before.sched_policy);
        assert!(after.sched_nice == -5 || after.sched_nice == before.sched_nice);
        assert!(after.sched_runtime == 100_000 || after.sched_runtime == before.sched_runtime);
        let real_time = libc::sched_param { sched_priority: 1 };
        // SAFETY: the structure lives through the call.
        if unsafe { libc::sched_setscheduler(THIS_THREAD, libc::SCHED_RR, &raw const real_time) } == 0 {
            receive_first();
            assert_eq!(scheduling().unwrap().sched_policy, libc::SCHED_RR as u32);
        }
    }

    /// More than the buffer holds: what the kernel drops is counted, and with what arrives it is all that was sent.
    #[test]
    fn what_the_kernel_drops_is_counted() {
        let wait = Duration::from_millis(1);
        let mut inbox = Inbox::open("127.0.0.1:0".parse().unwrap(), 0, wait).unwrap();
        assert_eq!(inbox.lost().unwrap(), 0);
        inbox.socket = {
            let socket = Socket::from(inbox.socket);
            socket.set_recv_buffer_size(1 << 16).unwrap();
            socket.into()
        };
        let outbox = Outbox::open(inbox.address().unwrap(), 0, 0).unwrap();
        outbox.send(&vec![vec![1; 400]; 1_000]).unwrap();
        let lost = inbox.lost().unwrap();
        let mut received = 0;
        while inbox.receive(|_| received += 1).unwrap() > 0 {}
        assert!(lost > 0 && received > 0, "{lost} lost, {received} received");
        assert_eq!(lost + received, 1_000);
        assert_eq!(inbox.lost().unwrap(), lost);
    }

    fn program(length: u32) -> Vec<SockFilter> {
        // That many loads of an immediate number, and a return that drops the datagram.
        let loads = (1..length).map(|_| SockFilter::new(0, 0, 0, 7));
        let end = SockFilter::new(libc::BPF_RET as u16, 0, 0, 0);
        loads.chain([end]).collect()
    }

    /// The counts are kept when the inbox is replaced.
    #[test]
    fn what_a_filter_drops_is_counted_apart() {
        let open = || Inbox::open("127.0.0.1:0".parse().unwrap(), 0, Duration::from_millis(1)).unwrap();
        let mut inbox = open();
        let send = |inbox: &Inbox| {
            let outbox = Outbox::open(inbox.address().unwrap(), 0, 0).unwrap();
            outbox.send(&vec![vec![1; 40]; 10]).unwrap();
        };
        assert!(matches!(
            inbox.attach_filter(&program(2)).unwrap(),
            Attachment::Attached { replaced: false }
        ));
        send(&inbox);
        inbox.detach_filter().unwrap();
        send(&inbox);
        assert!(matches!(
            inbox.attach_filter(&program(3)).unwrap(),
            Attachment::Attached { replaced: false }
        ));
        send(&inbox);
        inbox.replace(open()).unwrap();
        assert!(!inbox.has_filter());
        assert_eq!(inbox.take_filtered().unwrap(), 20);
        assert_eq!(inbox.take_filtered().unwrap(), 0);
        assert_eq!(inbox.lost().unwrap(), 0);
    }

    /// The one before is detached, too.
    #[test]
    fn a_filter_that_the_kernel_rejects_leaves_the_socket_without_one() {
        let mut inbox = Inbox::open("127.0.0.1:0".parse().unwrap(), 0, Duration::from_secs(10)).unwrap();
        assert!(matches!(
            inbox.attach_filter(&program(2)).unwrap(),
            Attachment::Attached { replaced: false }
        ));
        assert!(matches!(
            inbox.attach_filter(&program(5_000)).unwrap(),
            Attachment::Rejected(_)
        ));
        assert!(!inbox.has_filter());
        let outbox = Outbox::open(inbox.address().unwrap(), 0, 0).unwrap();
        outbox.send(&[vec![1; 40]]).unwrap();
        assert_eq!(inbox.receive(|_| {}).unwrap(), 1);
    }

    /// What waits in the kernel's queue has been here for as long as it waits.
    #[test]
    fn a_datagram_came_when_the_kernel_received_it() {
        let wait = Duration::from_secs(10);
        let mut inbox = Inbox::open("127.0.0.1:0".parse().unwrap(), 0, wait).unwrap();
        let outbox = Outbox::open(inbox.address().unwrap(), 0, 0).unwrap();
        // The kernel begins to stamp some time after it was asked. Twice: the second time, the headers are those that it has filled.
        let begin = Instant::now();
        let mut stamped = 0;
        while stamped < 2 {
            assert!(begin.elapsed() < wait, "no receive timestamps");
            let before = Instant::now();
            outbox.send(&vec![vec![1; 40]; 3]).unwrap();
            let sent = Instant::now();
            let mut arrived = Vec::new();
            inbox.receive(|datagram| arrived.push(datagram.arrived)).unwrap();
            let all = arrived.len() == 3 && arrived.iter().all(|arrived| (before..=sent).contains(arrived));
            stamped = if all { stamped + 1 } else { 0 };
        }
    }
}
