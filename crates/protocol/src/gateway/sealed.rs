//! The sealed gate (LAP/1 1.4.7, 1.4.9): DATA_UP is opened on its way in, datagrams to a device are sealed as
//! DATA_DOWN on their way out, and nothing else passes but the list of what always does.

use alloc::vec::Vec;
use core::net::IpAddr;
use core::ops::Range;

use zerocopy::FromBytes as _;
use zerocopy::byteorder::big_endian::U16;

use super::always::{self, Way};
use super::bindings::Key;
use super::line::Line;
use super::{Gate, Gateway};
use crate::classic::p4dra;
use crate::data::{self, Channel, Direction, PAYLOAD_BYTES_MAX, Route};
use crate::frame::checksum::Sum;
use crate::frame::{self, Ip, Network, Transport, Udp, header, ip_bytes};
use crate::ids::{DeviceId, Suite};
use crate::time::Now;
use crate::verdict::Verdict;
use crate::wire::{self, DATA_HEADER_BYTES, MAGIC, Message, VERSION, message_type};

/// What became of a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Handled {
    /// The verdict.
    pub verdict: Verdict,
    /// Where in its buffer the frame lies now: all of it, but for [`Verdict::PassData`].
    pub frame: Range<usize>,
    /// Of [`Verdict::ReplyP4draVerified`]: what stands behind it.
    pub behind: Option<p4dra::Proof>,
}

impl Gateway {
    /// Judges a frame if it is a DATA_UP at a sealed gate.
    pub(super) fn sealed_frame(&mut self, now: Now, bytes: &mut [u8]) -> Option<Handled> {
        if self.config.gate != Gate::Sealed {
            return None;
        }
        let whole = 0..bytes.len();
        let parsed = frame::parse(bytes).ok()?;
        let (ip, udp) = parsed.datagram()?;
        let payload = bytes.get(udp.payload())?;
        if udp.dst_port != self.config.lap_port || !is_data_up(payload) {
            return None;
        }
        let opened = if parsed.is_answerable(&ip) {
            self.open_up(now, &ip, &udp, bytes)
        } else {
            Err(Verdict::DropUnanswerable)
        };
        let stripped = opened.and_then(|port| strip(bytes, &ip, &udp, port).ok_or(Verdict::DropTruncated));
        Some(match stripped {
            Ok(frame) => Handled {
                verdict: Verdict::PassData,
                frame,
                behind: None,
            },
            Err(verdict) => Handled {
                verdict,
                frame: whole,
                behind: None,
            },
        })
    }

    /// Verifies a DATA_UP and marks its number; returns the port that the datagram goes on to.
    fn open_up(&mut self, now: Now, ip: &Ip, udp: &Udp, bytes: &[u8]) -> Result<u16, Verdict> {
        let payload = bytes.get(udp.payload()).ok_or(Verdict::DropLength)?;
        let Message::DataUp(message, payload) = wire::parse(payload)? else {
            return Err(Verdict::DropDirection);
        };
        // What is behind the datagram inside the packet is under no tag.
        if udp.payload().end != packet_end(bytes, ip).ok_or(Verdict::DropTruncated)? {
            return Err(Verdict::DropLength);
        }
        let port = message.port.get();
        if always::is_for_dhcp_client(ip, port) {
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
        if line.lease_is_over(now.boot()) {
            return Err(Verdict::DropGateLease);
        }
        let route = route(ip);
        if route.source != channel.addr {
            return Err(Verdict::DropSource);
        }
        let seq = data::Sequence::from_wire(message.seq.get()).ok_or(Verdict::DropSequence)?;
        // A replay is not worth hashing.
        window.accept(seq.0.get()).ok_or(Verdict::DropSequence)?;
        let opened = data::open(&channel, Direction::Up, &route, message, payload)?;
        line.window = data::mark(window, window.generation(), &opened)?;
        Ok(port)
    }

    /// Handles a frame that leaves towards the devices, on a link whose IP packets have at most `mtu` bytes.
    /// `segments`: it is several datagrams in one, which the network card would cut up.
    ///
    /// When the verdict is [`Verdict::PassSealed`] the frame has become the sealed one, which is longer by
    /// [`DATA_HEADER_BYTES`], less what stood behind the packet. Otherwise it is unchanged.
    pub fn seal_frame(&mut self, now: Now, mtu: usize, segments: bool, frame: &mut Vec<u8>) -> Verdict {
        let verdict = match self.config.gate {
            Gate::Off | Gate::Open => Verdict::PassForeign,
            Gate::Sealed => match self.seal_down(now, mtu, segments, frame) {
                Ok(sealed) => {
                    *frame = sealed;
                    Verdict::PassSealed
                }
                Err(verdict) => verdict,
            },
        };
        self.count(verdict)
    }

    /// Sets how many numbers were taken in the session's present generation: tests cannot wait for 2^32.
    #[doc(hidden)]
    pub fn set_down(&mut self, device: DeviceId, count: u64) {
        if let Some(line) = self.lines.get_mut(&device) {
            line.down = data::DownWord(u64::from(line.commit.window_generation()) << 56 | count);
        }
    }

    fn seal_down(&mut self, now: Now, mtu: usize, segments: bool, bytes: &[u8]) -> Result<Vec<u8>, Verdict> {
        let (ip, udp) = self.sealable(bytes)?;
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
        let device = self.receiver(now, &ip)?;
        let payload = bytes.get(udp.payload()).ok_or(Verdict::DropTruncated)?;
        if payload.len() > PAYLOAD_BYTES_MAX || end - ip.at + DATA_HEADER_BYTES > mtu {
            return Err(Verdict::DropTooBig);
        }
        let line = self.lines.get_mut(&device).ok_or(Verdict::DropSession)?;
        let (down, seq) = line.down.take(line.commit.window_generation());
        line.down = down;
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
        insert(bytes, &ip, &udp, &message).ok_or(Verdict::DropTooBig)
    }

    /// The datagram of a frame towards a device, or what becomes of the frame if it is none.
    fn sealable(&self, bytes: &[u8]) -> Result<(Ip, Udp), Verdict> {
        let parsed = frame::parse(bytes).map_err(|_| Verdict::DropTruncated)?;
        if let Network::Ip(ip) = parsed.network {
            match ip.transport {
                Transport::UdpLength(_) => return Err(Verdict::DropTruncated),
                Transport::Fragment => return Err(Verdict::DropGateFragment),
                Transport::Extension | Transport::Membership => return Err(Verdict::DropGateExtension),
                _ => {}
            }
        }
        if always::passes(&self.config, Way::Down, bytes, &parsed) {
            return Err(Verdict::PassAlways);
        }
        parsed.datagram().ok_or(Verdict::DropUnsealed)
    }

    /// An ATTEST_REQUEST of the gateway's own has a tag of its own, and goes to devices without a session, too.
    fn is_own_request(&self, bytes: &[u8], ip: &Ip, udp: &Udp) -> bool {
        let from_here = udp.src_port == self.config.lap_port && self.config.local.contains(&ip.src);
        let payload = bytes.get(udp.payload()).unwrap_or_default();
        from_here && matches!(wire::parse(payload), Ok(wire::Message::AttestRequest(_)))
    }

    /// The device whose live session has the address that the packet goes to. A session whose lease is over is told
    /// apart for the counters.
    fn receiver(&self, now: Now, ip: &Ip) -> Result<DeviceId, Verdict> {
        let key = Key::Address(ip_bytes(ip.dst));
        let mut verdict = Verdict::DropSession;
        for device in self.bindings.claimants(key) {
            let Some(line) = self.lines.get(&device) else {
                continue;
            };
            let ready = line.session_id.is_some() && !line.commit.is_revoked() && !line.commit.is_busy();
            if !ready || !key.is_carried_by(line) {
                continue;
            }
            if !line.lease_is_over(now.boot()) {
                return Ok(device);
            }
            verdict = Verdict::DropGateLease;
        }
        Err(verdict)
    }
}

/// Magic, version and type say so; nothing else is looked at.
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

/// The line's session as [`data`] wants it; `None` without one.
fn channel(line: &Line, device: DeviceId) -> Option<Channel<'_>> {
    Some(Channel {
        suite: Suite::SipHash128,
        device,
        session: line.session_id?,
        addr: line.session.from.src_ip,
        key: &line.session.key,
    })
}

/// Where the IP packet ends in the frame, by its own length.
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

/// Takes the LAP header out: everything before it moves behind by its length. Returns where the frame lies then. What
/// stood behind the packet stays behind. Checksums are corrected for what has changed (RFC 1624), so that a wrong one
/// stays wrong.
fn strip(bytes: &mut [u8], ip: &Ip, udp: &Udp, port: u16) -> Option<Range<usize>> {
    let end = packet_end(bytes, ip)?;
    let message = bytes.get(udp.payload())?.get(..DATA_HEADER_BYTES)?;
    let taken = Sum::default().bytes(message);
    change_lengths(bytes, ip, udp, |length| {
        length.checked_sub(DATA_HEADER_BYTES as u16)
    })?;
    let (udp_header, _) = header::Udp::mut_from_prefix(bytes.get_mut(udp.at..)?).ok()?;
    let (old_port, new_length) = (udp_header.dst, udp_header.length);
    udp_header.dst = U16::new(port);
    if udp_header.checksum.get() != 0 || ip.src.is_ipv6() {
        let (old, new) = (new_length.get() + DATA_HEADER_BYTES as u16, new_length.get());
        // The length stands in the pseudo header, too.
        let sum = Sum::default()
            .word(!udp_header.checksum.get())
            .less(taken)
            .less(Sum::default().word(old).word(old).word(old_port.get()))
            .word(new)
            .word(new)
            .word(port);
        udp_header.checksum = U16::new(nonzero(sum.finish()));
    }
    let headers = udp.payload().start;
    bytes.copy_within(..headers, DATA_HEADER_BYTES);
    Some(DATA_HEADER_BYTES..end)
}

/// The frame with `message` for its payload: the LAP header put in, what stood behind the packet left out.
fn insert(bytes: &[u8], ip: &Ip, udp: &Udp, message: &[u8]) -> Option<Vec<u8>> {
    let start = udp.payload().start;
    let mut frame = bytes.get(..start)?.to_vec();
    frame.extend_from_slice(message);
    change_lengths(&mut frame, ip, udp, |length| {
        length.checked_add(DATA_HEADER_BYTES as u16)
    })?;
    let (udp_header, _) = header::Udp::mut_from_prefix(frame.get_mut(udp.at..)?).ok()?;
    if udp_header.checksum.get() != 0 || ip.src.is_ipv6() {
        let put = message.get(..DATA_HEADER_BYTES)?;
        let sum = Sum::default()
            .word(!udp_header.checksum.get())
            .bytes(put)
            .word(2 * DATA_HEADER_BYTES as u16);
        udp_header.checksum = U16::new(nonzero(sum.finish()));
    }
    Some(frame)
}

/// 0 would mean "none".
fn nonzero(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}

/// Changes the lengths in the IP and UDP headers, and the IPv4 checksum for it.
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
