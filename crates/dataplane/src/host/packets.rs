//! Frames of one Ethernet type from one interface: a packet socket (packet(7)) and the thread on it.
//!
//! The kernel hands it what comes in, not what goes out, and takes VLAN tags off: a frame with one is another machine's.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::sync::Arc;

use linewarden_protocol::verdict::Disposition;

use super::HostOptions;
use super::engine::{Engine, ThreadState};
use super::p4dra::{FRAME_BYTES, FRAMES, P4draBatch};
use crate::ethtool;

/// So often a thread that nothing comes to looks whether its interface is still there, milliseconds: the kernel tells that it went
/// down, but not that it went away after that.
const LOOK_MS: libc::c_int = 1000;

/// A packet socket, and what wakes the thread that waits on it.
#[derive(Debug)]
pub(super) struct PacketSocket {
    fd: OwnedFd,
    stop: OwnedFd,
    ifindex: u32,
    /// The interface's name when this was opened.
    interface: String,
}

/// A descriptor that a system call has made.
fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn link_layer(ether_type: u16, ifindex: u32) -> libc::sockaddr_ll {
    // SAFETY: all zeros is a valid sockaddr_ll.
    let mut name: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    name.sll_family = libc::AF_PACKET as libc::sa_family_t;
    name.sll_protocol = ether_type.to_be();
    name.sll_ifindex = ifindex.cast_signed();
    name
}

impl PacketSocket {
    /// In the calling thread's network namespace; needs CAP_NET_RAW.
    pub(super) fn open(ether_type: u16, ifindex: u32, options: &HostOptions) -> io::Result<Self> {
        // Protocol 0: nothing is received before it is bound.
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: takes no pointer.
        let fd = owned(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: takes no pointer.
        let stop = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        let bytes = i32::try_from(options.receive_buffer_bytes).unwrap_or(i32::MAX);
        for name in [libc::SO_RCVBUF, libc::SO_RCVBUFFORCE] {
            // What is granted without CAP_NET_ADMIN is net.core.rmem_max at most; that is no error.
            // SAFETY: the value is an int, valid for its size during the call.
            unsafe {
                libc::setsockopt(
                    fd.as_raw_fd(),
                    libc::SOL_SOCKET,
                    name,
                    (&raw const bytes).cast(),
                    size_of::<i32>() as libc::socklen_t,
                )
            };
        }
        let name = link_layer(ether_type, ifindex);
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: `name` is a sockaddr_ll of that length.
        if unsafe { libc::bind(fd.as_raw_fd(), (&raw const name).cast(), length) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            fd,
            stop,
            ifindex,
            interface: ethtool::told_of(ifindex),
        })
    }

    /// Whether it is bound to its interface still, up or down: the kernel unbinds it, for good, from one that goes away, to another
    /// network namespace too.
    fn check_interface(&self) -> io::Result<()> {
        let mut name = link_layer(0, 0);
        let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: `name` is of that length, and both are borrowed mutably during the call.
        let result =
            unsafe { libc::getsockname(self.fd.as_raw_fd(), (&raw mut name).cast(), &raw mut length) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        match name.sll_ifindex.cast_unsigned() == self.ifindex {
            true => Ok(()),
            false => Err(io::Error::other(format!("interface {} is gone", self.interface))),
        }
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Wakes the thread that waits, for the last time.
    pub(super) fn shut_down(&self) {
        let one = 1u64;
        // SAFETY: eight bytes of `one` are read during the call.
        unsafe { libc::write(self.stop.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
    }

    /// Waits for a frame, [`LOOK_MS`] at most; `false`: it is over.
    fn wait(&self) -> io::Result<bool> {
        let waiting = |fd: &OwnedFd| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let mut both = [waiting(&self.fd), waiting(&self.stop)];
        // SAFETY: two pollfds, alive and borrowed mutably during the call.
        if unsafe { libc::poll(both.as_mut_ptr(), both.len() as libc::nfds_t, LOOK_MS) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let [_, stop] = both;
        Ok(stop.revents == 0)
    }
}

/// Headers of a batch, whose buffers are the frames of a [`P4draBatch`].
struct Headers {
    names: Box<[libc::sockaddr_ll]>,
    parts: Box<[libc::iovec]>,
    headers: Box<[libc::mmsghdr]>,
}

impl Headers {
    fn new() -> Self {
        let part = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        // SAFETY: all zeros is a valid mmsghdr: null pointers, zero lengths.
        let header: libc::mmsghdr = unsafe { std::mem::zeroed() };
        Self {
            names: vec![link_layer(0, 0); FRAMES].into_boxed_slice(),
            parts: vec![part; FRAMES].into_boxed_slice(),
            headers: vec![header; FRAMES].into_boxed_slice(),
        }
    }

    /// Takes the frames that are there; how many.
    fn receive(&mut self, fd: RawFd, frames: &mut [[u8; FRAME_BYTES]]) -> io::Result<usize> {
        let parts = self.parts.iter_mut().zip(frames);
        for ((header, name), (part, frame)) in self.headers.iter_mut().zip(&mut self.names).zip(parts) {
            part.iov_base = frame.as_mut_ptr().cast();
            part.iov_len = FRAME_BYTES;
            header.msg_hdr.msg_iov = part;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_name = (&raw mut *name).cast();
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: each header points to a name and a part with a frame of the lengths given, all alive and borrowed mutably
        // during the call.
        let count = unsafe {
            libc::recvmmsg(
                fd,
                self.headers.as_mut_ptr(),
                FRAMES as libc::c_uint,
                flags as _,
                std::ptr::null_mut(),
            )
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// Real lengths of the last ones; of those that are not for this machine's own address 0.
    fn lengths(&self, count: usize) -> impl Iterator<Item = usize> {
        let received = self.headers.iter().zip(&self.names).take(count);
        received.map(|(header, name)| match name.sll_pkttype {
            libc::PACKET_HOST => header.msg_len as usize,
            _ => 0,
        })
    }

    /// Sends replies by the interface. One that cannot be sent is left out: its controller asks again.
    fn send(&mut self, fd: RawFd, batch: &P4draBatch) {
        let replies = batch
            .judged()
            .filter(|(verdict, _)| verdict.disposition() == Disposition::Reply);
        let mut count = 0;
        for ((header, part), (_, frame)) in self.headers.iter_mut().zip(&mut self.parts).zip(replies) {
            part.iov_base = frame.as_ptr().cast_mut().cast();
            part.iov_len = frame.len();
            header.msg_hdr.msg_iov = part;
            header.msg_hdr.msg_name = std::ptr::null_mut();
            header.msg_hdr.msg_namelen = 0;
            count += 1;
        }
        let mut start = 0;
        while let Some(rest) = self.headers.get_mut(start..count).filter(|rest| !rest.is_empty()) {
            // SAFETY: each of these headers points to no name and to a part with a frame of the batch, which the call only
            // reads and which lives until it returns.
            let sent = unsafe { libc::sendmmsg(fd, rest.as_mut_ptr(), rest.len() as libc::c_uint, 0) };
            match usize::try_from(sent) {
                Ok(sent) if sent > 0 => start += sent,
                _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                _ => start += 1,
            }
        }
    }
}

/// What the thread works with.
pub(super) struct PacketWorker {
    pub(super) engine: Arc<Engine>,
    pub(super) thread: ThreadState,
    pub(super) socket: Arc<PacketSocket>,
}

impl PacketWorker {
    /// Serves until it is told to stop.
    ///
    /// # Errors
    /// The kernel's, when receiving failed for a reason that does not pass; that the interface is gone.
    pub(super) fn run(mut self) -> io::Result<()> {
        let (mut headers, mut batch) = (Headers::new(), P4draBatch::default());
        let fd = self.socket.fd.as_raw_fd();
        loop {
            match self.socket.wait() {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            let count = match headers.receive(fd, &mut batch.frames) {
                Ok(count) => count,
                Err(error) if passes(&error) => {
                    self.socket.check_interface()?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            batch.received(headers.lengths(count));
            self.engine.process_p4dra(&mut self.thread, &mut batch);
            headers.send(fd, &batch);
        }
    }
}

/// Errors of one moment; that the interface went down is told once, and it may come up again, unless it is gone.
fn passes(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINTR | libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::ENETDOWN)
    )
}
