//! Receives and sends up to 64 datagrams per system call, in buffers that are allocated once.

use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::Arc;

use linewarden_protocol::wire::MESSAGE_BYTES;

use super::message::BUFFER_BYTES;
use super::origin::Origin;
use super::proof_batch::{BATCH_PROOFS, Messages};
use super::reply_handle::{CONTROL_WORDS, ReplyHandle};
use super::socket::Socket;

/// Datagrams per system call.
const BATCH: usize = BATCH_PROOFS;

/// Buffers and headers of a batch. The headers point into the buffers, which are boxed and never move.
pub(crate) struct Batch {
    buffers: Box<[[u8; BUFFER_BYTES]]>,
    names: Box<[libc::sockaddr_in6]>,
    controls: Box<[[u64; CONTROL_WORDS]]>,
    /// Only the headers in `received` point into this array; no other code reads it. The same holds for `reply_parts` and
    /// `replies`.
    received_parts: Box<[libc::iovec]>,
    received: Box<[libc::mmsghdr]>,
    reply_parts: Box<[libc::iovec]>,
    replies: Box<[libc::mmsghdr]>,
    reply_count: usize,
}

/// One datagram of a batch.
pub(crate) struct Datagram<'a> {
    pub(super) from: Origin,
    /// The first [`BUFFER_BYTES`] bytes of the datagram.
    pub(crate) payload: &'a mut [u8],
    /// The length of the datagram on the wire.
    pub(super) length: usize,
    /// Whether the datagram was sent to a unicast address of this machine.
    pub(crate) is_unicast: bool,
}

fn filled<T: Copy>(value: T) -> Box<[T]> {
    vec![value; BATCH].into_boxed_slice()
}

impl Batch {
    pub(crate) fn new() -> Self {
        let part = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        // SAFETY: all zeros is a valid mmsghdr (null pointers, zero lengths) and a valid sockaddr_in6.
        let (header, name): (libc::mmsghdr, libc::sockaddr_in6) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let mut batch = Self {
            buffers: filled([0; BUFFER_BYTES]),
            names: filled(name),
            controls: filled([0; CONTROL_WORDS]),
            received_parts: filled(part),
            received: filled(header),
            reply_parts: filled(part),
            replies: filled(header),
            reply_count: 0,
        };
        let receive_buffers = batch
            .buffers
            .iter_mut()
            .zip(&mut batch.names)
            .zip(&mut batch.controls);
        for (((buffer, name), control), (part, header)) in
            receive_buffers.zip(batch.received_parts.iter_mut().zip(&mut batch.received))
        {
            part.iov_base = buffer.as_mut_ptr().cast();
            part.iov_len = BUFFER_BYTES;
            header.msg_hdr.msg_iov = part;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_name = (&raw mut *name).cast();
            header.msg_hdr.msg_control = control.as_mut_ptr().cast();
        }
        for (part, header) in batch.reply_parts.iter_mut().zip(&mut batch.replies) {
            header.msg_hdr.msg_iov = part;
            header.msg_hdr.msg_iovlen = 1;
        }
        batch
    }

    /// Waits for a datagram and receives all datagrams that are ready. Returns their number.
    pub(crate) fn receive(&mut self, fd: RawFd) -> io::Result<usize> {
        for header in &mut self.received {
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            header.msg_hdr.msg_controllen = (CONTROL_WORDS * 8) as _;
        }
        self.reply_count = 0;
        // MSG_TRUNC: returns the wire length of a datagram that does not fit.
        let flags = libc::MSG_WAITFORONE | libc::MSG_TRUNC;
        // SAFETY: each header points to a name, a control buffer and a part with a buffer of the lengths given, all
        // alive and borrowed mutably during the call.
        let count = unsafe {
            libc::recvmmsg(
                fd,
                self.received.as_mut_ptr(),
                BATCH as libc::c_uint,
                flags as _,
                std::ptr::null_mut(),
            )
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// The datagram at `index` of the last [`receive`](Self::receive). `None` if its sender or interface is unknown.
    pub(crate) fn datagram(&mut self, index: usize) -> Option<Datagram<'_>> {
        let (from, is_unicast) = self.origin_of(index)?;
        let length = self.received.get(index)?.msg_len as usize;
        let payload = self.buffers.get_mut(index)?.get_mut(..length.min(BUFFER_BYTES))?;
        Some(Datagram {
            from,
            payload,
            length,
            is_unicast,
        })
    }

    /// The origin of the datagram at `index`, and whether it was unicast.
    fn origin_of(&self, index: usize) -> Option<(Origin, bool)> {
        let header = self.received.get(index)?;
        let (addr, port) = sender(self.names.get(index)?)?;
        let info = PacketInfo::of(self.controls.get(index)?, header.msg_hdr.msg_controllen)?;
        let from = Origin {
            ingress: info.ingress,
            vlans: [0; 2],
            port,
            addr,
        };
        Some((from, info.is_unicast))
    }

    /// The data needed to reply to the message at `index` later, and the message.
    pub(super) fn reply_handle(
        &mut self,
        index: usize,
        socket: &Arc<Socket>,
    ) -> Option<(ReplyHandle, [u8; MESSAGE_BYTES])> {
        let datagram = self.datagram(index)?;
        let (from, message) = (datagram.from, *datagram.payload.first_chunk()?);
        let header = self.received.get(index)?;
        let handle = ReplyHandle {
            socket: Arc::clone(socket),
            from,
            name: *self.names.get(index)?,
            name_bytes: header.msg_hdr.msg_namelen,
            control: *self.controls.get(index)?,
            control_bytes: header.msg_hdr.msg_controllen,
            mac: 0,
        };
        Some((handle, message))
    }

    /// The complete buffers of the last [`receive`](Self::receive). The bytes after a short payload are stale.
    pub(super) fn payloads(&self, range: Range<usize>) -> impl Iterator<Item = &[u8]> {
        let buffers = self.buffers.get(range).unwrap_or_default();
        buffers.iter().map(|buffer| &buffer[..])
    }

    /// Queues a reply to the sender of the message at `index`: the first `length` bytes of its buffer. The reply leaves from
    /// the destination address and interface of the message if `from_destination`, otherwise from the socket's own
    /// address.
    pub(crate) fn reply(&mut self, index: usize, length: usize, from_destination: bool) {
        let (Some(request), Some(reply), Some(part)) = (
            self.received.get(index),
            self.replies.get_mut(self.reply_count),
            self.reply_parts.get_mut(self.reply_count),
        ) else {
            return;
        };
        let Some(buffer) = self.buffers.get_mut(index) else {
            return;
        };
        part.iov_base = buffer.as_mut_ptr().cast();
        part.iov_len = length.min(BUFFER_BYTES);
        reply.msg_hdr.msg_name = request.msg_hdr.msg_name;
        reply.msg_hdr.msg_namelen = request.msg_hdr.msg_namelen;
        // IP_PKTINFO of the received message selects, on sending, the source address and the interface.
        (reply.msg_hdr.msg_control, reply.msg_hdr.msg_controllen) = if from_destination {
            (request.msg_hdr.msg_control, request.msg_hdr.msg_controllen)
        } else {
            (std::ptr::null_mut(), 0)
        };
        self.reply_count += 1;
    }

    /// Sends the queued replies. A reply that cannot be sent (no route, port 0) is skipped: its sender repeats the
    /// message.
    pub(crate) fn send(&mut self, fd: RawFd) {
        let mut start = 0;
        while start < self.reply_count {
            let Some(rest) = self.replies.get_mut(start..self.reply_count) else {
                return;
            };
            // SAFETY: each of these headers points to the name, the control buffer or nothing, and the part with the
            // buffer of a received datagram, all alive and borrowed mutably during the call.
            let sent = unsafe { libc::sendmmsg(fd, rest.as_mut_ptr(), rest.len() as libc::c_uint, 0) };
            match usize::try_from(sent) {
                Ok(count) if count > 0 => start += count,
                _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                _ => start += 1,
            }
        }
    }
}

impl Messages for Batch {
    fn payload(&self, index: usize) -> Option<&[u8]> {
        self.buffers.get(index).map(|buffer| &buffer[..])
    }
    fn origin(&self, index: usize) -> Option<Origin> {
        self.origin_of(index).map(|(from, _)| from)
    }
}

/// Address and port of a sender, in wire order.
fn sender(name: &libc::sockaddr_in6) -> Option<([u64; 2], u16)> {
    match i32::from(name.sin6_family) {
        libc::AF_INET6 => {
            let octets = name.sin6_addr.s6_addr;
            let words = linewarden_protocol::keys::halves(&octets).map(u64::from_ne_bytes);
            Some((words, name.sin6_port))
        }
        libc::AF_INET => {
            // SAFETY: the kernel wrote a sockaddr_in, which is shorter than sockaddr_in6 and aligned less strictly.
            let v4 = unsafe { &*(&raw const *name).cast::<libc::sockaddr_in>() };
            let [a, b, c, d] = v4.sin_addr.s_addr.to_ne_bytes();
            let mapped = u64::from_ne_bytes([0, 0, 0xff, 0xff, a, b, c, d]);
            Some(([0, mapped], v4.sin_port))
        }
        _ => None,
    }
}

/// `in_pktinfo` or `in6_pktinfo`.
struct PacketInfo {
    ingress: u32,
    is_unicast: bool,
}

impl PacketInfo {
    fn of(control: &[u64; CONTROL_WORDS], length: usize) -> Option<Self> {
        let mut bytes = [0u8; CONTROL_WORDS * 8];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(control) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        let bytes = bytes.get(..length)?;
        let header = size_of::<libc::cmsghdr>();
        let int = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(i32::from_ne_bytes);
        let (level, kind) = (int(header - 8)?, int(header - 4)?);
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => Some(Self {
                ingress: int(header)?.cast_unsigned(),
                // The local address for replies and the destination in the IP header: equal unless the destination is
                // a broadcast.
                is_unicast: int(header + 4)? == int(header + 8)?,
            }),
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => Some(Self {
                ingress: int(header + 16)?.cast_unsigned(),
                is_unicast: *bytes.get(header)? != 0xff,
            }),
            _ => None,
        }
    }
}
