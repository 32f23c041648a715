//! Receives frames of one Ethernet type on one interface: a packet socket (packet(7)) and its thread.
//!
//! The socket receives incoming frames only. The kernel has stripped VLAN tags, and reports a frame in a VLAN as a
//! frame for another machine, so this thread does not handle frames in VLANs.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::sync::Arc;

use linewarden_protocol::verdict::Disposition;

use super::engine::{Engine, ThreadState};
use super::options::HostOptions;
use super::p4dra::{BATCH_FRAMES, FRAME_BYTES, P4draBatch};
use crate::ethtool;

/// Interval at which an idle thread checks that its interface still exists, milliseconds. The kernel reports that an
/// interface went down, but not that it was removed later.
const POLL_TIMEOUT_MS: libc::c_int = 1000;

/// A packet socket, and the descriptor that wakes its thread.
#[derive(Debug)]
pub(super) struct PacketSocket {
    fd: OwnedFd,
    stop: OwnedFd,
    ifindex: u32,
    /// Name of the interface when the socket was opened.
    interface: String,
}

/// The descriptor that a system call returned.
fn owned_fd(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened; no other owner exists.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn link_layer_address(ether_type: u16, ifindex: u32) -> libc::sockaddr_ll {
    // SAFETY: all zeros is a valid sockaddr_ll.
    let mut name: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    name.sll_family = libc::AF_PACKET as libc::sa_family_t;
    name.sll_protocol = ether_type.to_be();
    name.sll_ifindex = ifindex.cast_signed();
    name
}

impl PacketSocket {
    /// Opens the socket in the calling thread's network namespace. Needs CAP_NET_RAW.
    pub(super) fn open(ether_type: u16, ifindex: u32, options: &HostOptions) -> io::Result<Self> {
        // Protocol 0: nothing is received before the socket is bound.
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: takes no pointer.
        let fd = owned_fd(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: takes no pointer.
        let stop = owned_fd(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        let bytes = i32::try_from(options.receive_buffer_bytes).unwrap_or(i32::MAX);
        for name in [libc::SO_RCVBUF, libc::SO_RCVBUFFORCE] {
            // Without CAP_NET_ADMIN the kernel grants at most net.core.rmem_max; this is not an error.
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
        let name = link_layer_address(ether_type, ifindex);
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: `name` is a sockaddr_ll of that length.
        if unsafe { libc::bind(fd.as_raw_fd(), (&raw const name).cast(), length) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            fd,
            stop,
            ifindex,
            interface: ethtool::display_name(ifindex),
        })
    }

    /// Fails if the socket is no longer bound to its interface. The kernel permanently unbinds the socket when the
    /// interface is removed or moved to another network namespace, but not when the interface goes down.
    fn check_interface(&self) -> io::Result<()> {
        let mut name = link_layer_address(0, 0);
        let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: `name` is of that length, and both are borrowed mutably during the call.
        let result =
            unsafe { libc::getsockname(self.fd.as_raw_fd(), (&raw mut name).cast(), &raw mut length) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        match name.sll_ifindex.cast_unsigned() == self.ifindex {
            true => Ok(()),
            false => Err(io::Error::other(format!(
                "interface {} no longer exists",
                self.interface
            ))),
        }
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Wakes the waiting thread for shutdown.
    pub(super) fn shut_down(&self) {
        let one = 1u64;
        // SAFETY: eight bytes of `one` are read during the call.
        unsafe { libc::write(self.stop.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
    }

    /// Waits for a frame, at most [`POLL_TIMEOUT_MS`]. Returns `false` on shutdown.
    fn wait(&self) -> io::Result<bool> {
        let pollfd_of = |fd: &OwnedFd| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let mut fds = [pollfd_of(&self.fd), pollfd_of(&self.stop)];
        // SAFETY: two pollfds, alive and borrowed mutably during the call.
        if unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, POLL_TIMEOUT_MS) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let [_, stop] = fds;
        Ok(stop.revents == 0)
    }
}

/// Headers of a batch; their buffers are the frames of a [`P4draBatch`].
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
            names: vec![link_layer_address(0, 0); BATCH_FRAMES].into_boxed_slice(),
            parts: vec![part; BATCH_FRAMES].into_boxed_slice(),
            headers: vec![header; BATCH_FRAMES].into_boxed_slice(),
        }
    }

    /// Receives the frames that are ready. Returns their number.
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
        // SAFETY: each header points to a name and a part with a frame of the lengths given, all alive and borrowed
        // mutably during the call.
        let count = unsafe {
            libc::recvmmsg(
                fd,
                self.headers.as_mut_ptr(),
                BATCH_FRAMES as libc::c_uint,
                flags as _,
                std::ptr::null_mut(),
            )
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// Wire lengths of the frames of the most recent [`Self::receive`]; 0 for frames that are not addressed to this machine.
    fn lengths(&self, count: usize) -> impl Iterator<Item = usize> {
        let received = self.headers.iter().zip(&self.names).take(count);
        received.map(|(header, name)| match name.sll_pkttype {
            libc::PACKET_HOST => header.msg_len as usize,
            _ => 0,
        })
    }

    /// Sends the replies on the interface. A reply that cannot be sent is skipped: the controller repeats its
    /// request.
    fn send(&mut self, fd: RawFd, batch: &P4draBatch) {
        let replies = batch
            .results()
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
            // SAFETY: each of these headers points to no name and to a part with a frame of the batch, which the call
            // only reads and which lives until the call returns.
            let sent = unsafe { libc::sendmmsg(fd, rest.as_mut_ptr(), rest.len() as libc::c_uint, 0) };
            match usize::try_from(sent) {
                Ok(sent) if sent > 0 => start += sent,
                _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                _ => start += 1,
            }
        }
    }
}

/// The data of one thread.
pub(super) struct PacketWorker {
    pub(super) engine: Arc<Engine>,
    pub(super) thread: ThreadState,
    pub(super) socket: Arc<PacketSocket>,
}

impl PacketWorker {
    /// Serves until shutdown.
    ///
    /// # Errors
    /// Receiving failed permanently, or the interface no longer exists.
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
                Err(error) if is_temporary(&error) => {
                    self.socket.check_interface()?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            batch.set_received(headers.lengths(count));
            self.engine.process_p4dra(&mut self.thread, &mut batch);
            headers.send(fd, &batch);
        }
    }
}

/// Whether the error is temporary. The kernel reports ENETDOWN one time; if the interface was not removed, it may come up
/// again.
fn is_temporary(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINTR | libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::ENETDOWN)
    )
}
