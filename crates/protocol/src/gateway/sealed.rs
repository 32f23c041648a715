//! The sealed gate (LAP/1 1.4.7, 1.4.9): opens DATA_UP on the way in, seals datagrams to a device as DATA_DOWN on the
//! way out, and passes no other frames except exempt frames.

use alloc::vec::Vec;
use core::net::IpAddr;
use core::ops::Range;

use zerocopy::FromBytes as _;
use zerocopy::byteorder::big_endian::U16;

use super::bindings::BindingKey;
use super::gate_exemptions::{self, FrameDirection};
use super::line::Line;
use super::{Gate, Gateway};
use crate::data::{self, Channel, Direction, PAYLOAD_BYTES_MAX, Route};
use crate::frame::checksum::Sum;
use crate::frame::{self, Ip, Network, Transport, Udp, header, ip_bytes};
use crate::ids::{DeviceId, Suite};
use crate::time::Now;
use crate::verdict::Verdict;
use crate::wire::{self, DATA_HEADER_BYTES, MAGIC, Message, VERSION, message_type};

/// The result of handling a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HandledFrame {
    /// The verdict.
    pub verdict: Verdict,
    /// The range of the frame in its buffer: all of it, except for [`Verdict::PassData`].
    pub frame: Range<usize>,
}

impl Gateway {
    /// Handles a frame if it is a DATA_UP at a sealed gate.
    pub(super) fn handle_sealed_frame(&mut self, now: Now, bytes: &mut [u8]) -> Option<HandledFrame> {
        if self.config.gate != Gate::Sealed {
            return None;
        }
        let whole_frame = 0..bytes.len();
        let parsed = frame::parse(bytes).ok()?;
        let (ip, udp) = parsed.datagram()?;
        let payload = bytes.get(udp.payload())?;
        if udp.dst_port != self.config.lap_port || !is_data_up(payload) {
            return None;
        }
        let port = if parsed.is_answerable(&ip) {
            self.open_data_up(now, &ip, &udp, bytes)
        } else {
            Err(Verdict::DropUnanswerable)
        };
        let frame_range =
            port.and_then(|port| strip_header(bytes, &ip, &udp, port).ok_or(Verdict::DropTruncated));
        Some(match frame_range {
            Ok(frame) => HandledFrame {
                verdict: Verdict::PassData,
                frame,
            },
            Err(verdict) => HandledFrame {
                verdict,
                frame: whole_frame,
            },
        })
    }

    /// Verifies a DATA_UP and marks its number; returns the destination port of the datagram.
    fn open_data_up(&mut self, now: Now, ip: &Ip, udp: &Udp, bytes: &[u8]) -> Result<u16, Verdict> {
        let payload = bytes.get(udp.payload()).ok_or(Verdict::DropLength)?;
        let Message::DataUp(message, payload) = wire::parse(payload)? else {
            return Err(Verdict::DropDirection);
        };
        // No tag covers the bytes after the datagram inside the packet.
        if udp.payload().end != packet_end(bytes, ip).ok_or(Verdict::DropTruncated)? {
            return Err(Verdict::DropLength);
        }
        let port = message.port.get();
        if gate_exemptions::is_for_dhcp_client(ip, port) {
            return Err(Verdict::DropGateRole);
        }
        if port == 0 || port == self.config.lap_port {
            return Err(Verdict::DropGatePort);
        }
        let device = message.header.device();
        let line = self.lines.get_mut(&device).ok_or(Verdict::DropUnknownDevice)?;
        if line.commit.is_revoked() {
            return Err(Verdict::DropRevoked);
        }
        if line.commit.is_busy() {
            return Err(Verdict::DropBusy);
        }
        let window = line.window;
        let channel = channel(line, device).ok_or(Verdict::DropSession)?;
        if message.session_id != channel.session.to_wire() {
            return Err(Verdict::DropSession);
        }
        if line.is_session_expired(now.boot()) {
            return Err(Verdict::DropSessionExpired);
        }
        let route = route(ip);
        if route.source != channel.addr {
            return Err(Verdict::DropSource);
        }
        let seq = data::Sequence::from_wire(message.seq.get()).ok_or(Verdict::DropSequence)?;
        // The number is checked before the tag, so a replay is not hashed.
        window.accept(seq.0.get()).ok_or(Verdict::DropSequence)?;
        let verified = data::open(&channel, Direction::Up, &route, message, payload)?;
        line.window = data::accept_number(window, window.generation(), &verified)?;
        Ok(port)
    }

    /// Handles a frame towards the devices, on a link whose IP packets have at most `mtu` bytes. `segments`:
    /// whether the frame holds several datagrams that the network card would split (GSO).
    ///
    /// If the verdict is [`Verdict::PassSealed`], the sealed frame has replaced the frame. The sealed frame is longer
    /// by [`DATA_HEADER_BYTES`], less the bytes after the packet. Otherwise, the frame is unchanged.
    pub fn seal_frame(&mut self, now: Now, mtu: usize, segments: bool, frame: &mut Vec<u8>) -> Verdict {
        let verdict = match self.config.gate {
            Gate::Off | Gate::Bound => Verdict::PassForeign,
            Gate::Sealed => match self.seal_data_down(now, mtu, segments, frame) {
                Ok(sealed_frame) => {
                    *frame = sealed_frame;
                    Verdict::PassSealed
                }
                Err(verdict) => verdict,
            },
        };
        self.count(verdict)
    }

    /// Sets how many numbers the session's current generation has used, for tests, which cannot use 2^32 numbers.
    #[doc(hidden)]
    pub fn set_down_count(&mut self, device: DeviceId, count: u64) {
        if let Some(line) = self.lines.get_mut(&device) {
            line.down_counter = data::DownCounter(u64::from(line.commit.window_generation()) << 56 | count);
        }
    }

    fn seal_data_down(
        &mut self,
        now: Now,
        mtu: usize,
        segments: bool,
        bytes: &[u8],
    ) -> Result<Vec<u8>, Verdict> {
        let (ip, udp) = self.sealable_datagram(bytes)?;
        if self.is_own_request(bytes, &ip, &udp) {
            return Err(Verdict::PassAlways);
        }
        if segments {
            return Err(Verdict::DropSegments);
        }
        let end = packet_end(bytes, &ip).ok_or(Verdict::DropTruncated)?;
        if udp.payload().end != end {
            return Err(Verdict::DropLength);
        }
        let device = self.receiving_device(now, &ip)?;
        let payload = bytes.get(udp.payload()).ok_or(Verdict::DropTruncated)?;
        if payload.len() > PAYLOAD_BYTES_MAX || end - ip.at + DATA_HEADER_BYTES > mtu {
            return Err(Verdict::DropTooBig);
        }
        let line = self.lines.get_mut(&device).ok_or(Verdict::DropSession)?;
        let (next_counter, seq) = line.down_counter.take_number(line.commit.window_generation());
        line.down_counter = next_counter;
        let seq = seq.ok_or(Verdict::DropExhausted)?;
        let channel = channel(line, device).ok_or(Verdict::DropSession)?;
        let direction = Direction::Down {
            source_port: udp.src_port,
        };
        let mut message = alloc::vec![0; DATA_HEADER_BYTES + payload.len()];
        data::seal(
            &channel,
            direction,
            seq,
            udp.dst_port,
            &route(&ip),
            payload,
            &mut message,
        )
        .map_err(|_| Verdict::DropTooBig)?;
        insert_header(bytes, &ip, &udp, &message).ok_or(Verdict::DropTooBig)
    }

    /// Returns the datagram of a frame towards a device.
    ///
    /// # Errors
    /// The verdict on an exempt frame, or on a frame without a datagram that can be sealed.
    fn sealable_datagram(&self, bytes: &[u8]) -> Result<(Ip, Udp), Verdict> {
        let parsed = frame::parse(bytes).map_err(|_| Verdict::DropTruncated)?;
        if let Network::Ip(ip) = parsed.network {
            match ip.transport {
                Transport::UdpLength(_) => return Err(Verdict::DropTruncated),
                Transport::Fragment => return Err(Verdict::DropGateFragment),
                Transport::Extension | Transport::Membership => return Err(Verdict::DropGateExtension),
                _ => {}
            }
        }
        if gate_exemptions::is_exempt(&self.config, FrameDirection::Down, bytes, &parsed) {
            return Err(Verdict::PassAlways);
        }
        parsed.datagram().ok_or(Verdict::DropUnsealed)
    }

    /// Whether the frame is an ATTEST_REQUEST of the gateway. An ATTEST_REQUEST has its own tag, and is also sent to
    /// devices without a session.
    fn is_own_request(&self, bytes: &[u8], ip: &Ip, udp: &Udp) -> bool {
        let is_from_gateway =
            udp.src_port == self.config.lap_port && self.config.local_addresses.contains(&ip.src);
        let payload = bytes.get(udp.payload()).unwrap_or_default();
        is_from_gateway && matches!(wire::parse(payload), Ok(wire::Message::AttestRequest(_)))
    }

    /// The device whose live session has the destination address of the packet. An expired session has a drop reason of
    /// its own.
    fn receiving_device(&self, now: Now, ip: &Ip) -> Result<DeviceId, Verdict> {
        let key = BindingKey::Address(ip_bytes(ip.dst));
        let mut verdict = Verdict::DropSession;
        for device in self.bindings.claimants(key) {
            let Some(line) = self.lines.get(&device) else {
                continue;
            };
            let is_ready = line.session_id.is_some() && !line.commit.is_revoked() && !line.commit.is_busy();
            if !is_ready || !key.is_held_by(line) {
                continue;
            }
            if !line.is_session_expired(now.boot()) {
                return Ok(device);
            }
            verdict = Verdict::DropSessionExpired;
        }
        Err(verdict)
    }
}

/// Whether magic, version and type are those of a DATA_UP; nothing else is checked.
fn is_data_up(payload: &[u8]) -> bool {
    wire::Header::ref_from_prefix(payload).is_ok_and(|(header, _)| {
        header.magic.get() == MAGIC && header.version == VERSION && header.kind == message_type::DATA_UP
    })
}

fn route(ip: &Ip) -> Route {
    Route {
        source: ip_bytes(ip.src),
        destination: ip_bytes(ip.dst),
    }
}

/// The channel of the line's session; `None` without a session.
fn channel(line: &Line, device: DeviceId) -> Option<Channel<'_>> {
    Some(Channel {
        suite: Suite::SipHash128,
        device,
        session: line.session_id?,
        addr: line.session.origin.src_ip,
        key: &line.session.key,
    })
}

/// The end of the IP packet in the frame, by its own length.
pub(super) fn packet_end(bytes: &[u8], ip: &Ip) -> Option<usize> {
    let rest = bytes.get(ip.at..)?;
    let length = match ip.src {
        IpAddr::V4(_) => usize::from(header::Ipv4::ref_from_prefix(rest).ok()?.0.total_length.get()),
        IpAddr::V6(_) => {
            let (ip, _) = header::Ipv6::ref_from_prefix(rest).ok()?;
            size_of::<header::Ipv6>() + usize::from(ip.payload_length.get())
        }
    };
    Some(ip.at + length)
}

/// Removes the LAP header: the bytes before the header move by its length. Returns the resulting range of the frame,
/// which ends with the packet. Checksums are corrected for the change (RFC 1624), so that a wrong checksum stays wrong.
fn strip_header(bytes: &mut [u8], ip: &Ip, udp: &Udp, port: u16) -> Option<Range<usize>> {
    let end = packet_end(bytes, ip)?;
    let message = bytes.get(udp.payload())?.get(..DATA_HEADER_BYTES)?;
    let removed_sum = Sum::default().bytes(message);
    change_lengths(bytes, ip, udp, |length| {
        length.checked_sub(DATA_HEADER_BYTES as u16)
    })?;
    let (udp_header, _) = header::Udp::mut_from_prefix(bytes.get_mut(udp.at..)?).ok()?;
    let (old_port, new_length) = (udp_header.dst, udp_header.length);
    udp_header.dst = U16::new(port);
    if udp_header.checksum.get() != 0 || ip.src.is_ipv6() {
        let (old, new) = (new_length.get() + DATA_HEADER_BYTES as u16, new_length.get());
        // The pseudo header contains the length, too.
        let sum = Sum::default()
            .word(!udp_header.checksum.get())
            .subtract(removed_sum)
            .subtract(Sum::default().word(old).word(old).word(old_port.get()))
            .word(new)
            .word(new)
            .word(port);
        udp_header.checksum = U16::new(nonzero_checksum(sum.finish()));
    }
    let headers = udp.payload().start;
    bytes.copy_within(..headers, DATA_HEADER_BYTES);
    Some(DATA_HEADER_BYTES..end)
}

/// The frame with `message` as its payload: the LAP header inserted, the bytes after the packet removed.
fn insert_header(bytes: &[u8], ip: &Ip, udp: &Udp, message: &[u8]) -> Option<Vec<u8>> {
    let start = udp.payload().start;
    let mut frame = bytes.get(..start)?.to_vec();
    frame.extend_from_slice(message);
    change_lengths(&mut frame, ip, udp, |length| {
        length.checked_add(DATA_HEADER_BYTES as u16)
    })?;
    let (udp_header, _) = header::Udp::mut_from_prefix(frame.get_mut(udp.at..)?).ok()?;
    if udp_header.checksum.get() != 0 || ip.src.is_ipv6() {
        let inserted = message.get(..DATA_HEADER_BYTES)?;
        let sum = Sum::default()
            .word(!udp_header.checksum.get())
            .bytes(inserted)
            .word(2 * DATA_HEADER_BYTES as u16);
        udp_header.checksum = U16::new(nonzero_checksum(sum.finish()));
    }
    Some(frame)
}

/// Replaces 0, which would mean "no checksum".
fn nonzero_checksum(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}

/// Changes the lengths in the IP and UDP headers, and the IPv4 checksum accordingly.
fn change_lengths(bytes: &mut [u8], ip: &Ip, udp: &Udp, change: impl Fn(u16) -> Option<u16>) -> Option<()> {
    let rest = bytes.get_mut(ip.at..)?;
    match ip.src {
        IpAddr::V4(_) => {
            let (ip, _) = header::Ipv4::mut_from_prefix(rest).ok()?;
            let (old, new) = (ip.total_length.get(), change(ip.total_length.get())?);
            ip.total_length = U16::new(new);
            let sum = Sum::default().word(!ip.checksum.get()).word(!old).word(new);
            ip.checksum = U16::new(sum.finish());
        }
        IpAddr::V6(_) => {
            let (ip, _) = header::Ipv6::mut_from_prefix(rest).ok()?;
            ip.payload_length = U16::new(change(ip.payload_length.get())?);
        }
    }
    let (udp, _) = header::Udp::mut_from_prefix(bytes.get_mut(udp.at..)?).ok()?;
    udp.length = U16::new(change(udp.length.get())?);
    Some(())
}
