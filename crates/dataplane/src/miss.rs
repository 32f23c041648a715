//! Messages of devices that the data plane does not know: the start of the slow path (LAP/1 1.4.6).

use std::net::IpAddr;

use linewarden_protocol::frame::{self, Frame};
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::tag;
use linewarden_protocol::wire::{FLAG_BOUND, MESSAGE_BYTES, message_type};

use crate::host::reply_handle::ReplyHandle;

/// A REQUEST, or a RESPONSE with an accepted fresh value, of a device that is not installed.
///
/// The gateway can reply with [`Admission::send_reply`](crate::Admission::send_reply). After the gateway has installed
/// the device, the gateway can pass the message to the packet path a second time with
/// [`Admission::replay`](crate::Admission::replay). The session is then opened by the same code as every other session.
#[derive(Debug)]
pub struct Miss {
    message: [u8; MESSAGE_BYTES],
    source: IpAddr,
    loc: [u8; 8],
    pub(crate) carrier: Carrier,
}

/// How the message arrived and how a reply is returned.
#[derive(Debug)]
pub(crate) enum Carrier {
    /// A frame from an interface.
    Frame { frame: Vec<u8>, ingress: u32 },
    /// A datagram from a socket.
    Datagram(ReplyHandle),
    /// For data planes of other crates.
    Other,
}

impl Miss {
    /// A message without a reply path, for data planes that store the reply path themselves.
    #[must_use]
    pub fn new(message: [u8; MESSAGE_BYTES], source: IpAddr, loc: [u8; 8]) -> Self {
        Self {
            message,
            source,
            loc,
            carrier: Carrier::Other,
        }
    }

    pub(crate) fn of_datagram(
        message: [u8; MESSAGE_BYTES],
        source: IpAddr,
        loc: [u8; 8],
        handle: ReplyHandle,
    ) -> Self {
        Self {
            carrier: Carrier::Datagram(handle),
            ..Self::new(message, source, loc)
        }
    }

    /// The message in a frame that arrived on the interface `ingress`. `None` if the frame contains no datagram with the
    /// length of a message.
    pub(crate) fn of_frame(frame: &[u8], ingress: u32) -> Option<Self> {
        let (parsed, payload_at) = parse_datagram(frame)?;
        let message: [u8; MESSAGE_BYTES] = frame
            .get(payload_at..payload_at + MESSAGE_BYTES)?
            .try_into()
            .ok()?;
        let (ip, _) = parsed.datagram()?;
        Some(Self {
            loc: tag::location(is_bound(&message).then_some(parsed.src_mac)),
            message,
            source: ip.src,
            carrier: Carrier::Frame {
                frame: frame.to_vec(),
                ingress,
            },
        })
    }

    /// The message.
    #[must_use]
    pub fn message(&self) -> &[u8; MESSAGE_BYTES] {
        &self.message
    }

    /// The device id in the message; unverified.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        let id = self.message.get(8..16).and_then(|id| id.try_into().ok());
        DeviceId(u64::from_be_bytes(id.unwrap_or_default()))
    }

    /// The source address of the message; unverified.
    #[must_use]
    pub fn source(&self) -> IpAddr {
        self.source
    }

    /// The word that the tag of a RESPONSE covers: the sender's MAC address if the RESPONSE is BOUND, otherwise
    /// zeros.
    #[must_use]
    pub fn loc(&self) -> &[u8; 8] {
        &self.loc
    }
}

/// Whether the flag BOUND is set.
pub(crate) fn is_bound(message: &[u8; MESSAGE_BYTES]) -> bool {
    let [_, _, _, _, _, flags, ..] = message;
    flags & FLAG_BOUND != 0
}

/// Whether the reply is a CHALLENGE, to which the device answers with a RESPONSE.
pub(crate) fn is_challenge(reply: &[u8; MESSAGE_BYTES]) -> bool {
    let [_, _, _, kind, ..] = reply;
    *kind == message_type::CHALLENGE
}

/// The parsed headers of the frame and the offset of its message. `None` if the frame contains no datagram with the
/// length of a message.
pub(crate) fn parse_datagram(frame: &[u8]) -> Option<(Frame, usize)> {
    let parsed = frame::parse(frame).ok()?;
    let (_, udp) = parsed.datagram()?;
    let payload = udp.payload();
    (payload.len() == MESSAGE_BYTES).then_some((parsed, payload.start))
}

/// The frame that returns a reply to the sender of `frame`. `None` if `frame` contains no message.
pub(crate) fn reply_frame(frame: &[u8], message: &[u8; MESSAGE_BYTES]) -> Option<Vec<u8>> {
    let (parsed, payload_at) = parse_datagram(frame)?;
    let mut reply = frame.to_vec();
    reply
        .get_mut(payload_at..payload_at + MESSAGE_BYTES)?
        .copy_from_slice(message);
    frame::reverse_frame(&mut reply, &parsed)?;
    Some(reply)
}
