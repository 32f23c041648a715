//! Messages of devices that the data plane does not know: the beginning of the slow path (LAP/1 1.4.6).

use std::net::IpAddr;

use linewarden_protocol::frame::{self, Frame};
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::tag;
use linewarden_protocol::wire::{FLAG_BOUND, MESSAGE_BYTES, message_type};

use crate::host::Letter;

/// A REQUEST, or a RESPONSE with an accepted fresh value, of a device that is not here.
///
/// It can be answered by [`DataPlane::send`](crate::DataPlane::send), or, once the device is installed, be handed to the
/// packet path again by [`DataPlane::replay`](crate::DataPlane::replay): the session is then opened by the same code as
/// every other.
#[derive(Debug)]
pub struct Miss {
    message: [u8; MESSAGE_BYTES],
    source: IpAddr,
    loc: [u8; 8],
    pub(crate) carrier: Carrier,
}

/// How it came, and how the answer goes back.
#[derive(Debug)]
pub(crate) enum Carrier {
    /// A frame from an interface.
    Frame { frame: Vec<u8>, ingress: u32 },
    /// A datagram from a socket.
    Datagram(Letter),
    /// Neither: a data plane of some other crate.
    Other,
}

impl Miss {
    /// A message without a way back, for data planes that keep that themselves.
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
        letter: Letter,
    ) -> Self {
        Self {
            carrier: Carrier::Datagram(letter),
            ..Self::new(message, source, loc)
        }
    }

    /// `None` for a frame that holds no datagram of a message's length.
    pub(crate) fn of_frame(frame: &[u8], ingress: u32) -> Option<Self> {
        let (parsed, at) = datagram(frame)?;
        let message: [u8; MESSAGE_BYTES] = frame.get(at..at + MESSAGE_BYTES)?.try_into().ok()?;
        let (ip, _) = parsed.datagram()?;
        Some(Self {
            loc: tag::loc(is_bound(&message).then_some(parsed.src_mac)),
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

    /// The device that it says it is from.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        let id = self.message.get(8..16).and_then(|id| id.try_into().ok());
        DeviceId(u64::from_be_bytes(id.unwrap_or_default()))
    }

    /// Where it says it comes from.
    #[must_use]
    pub fn source(&self) -> IpAddr {
        self.source
    }

    /// The word that a RESPONSE's tag covers: the sender's MAC address if it is BOUND, else zeros.
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

/// Whether a RESPONSE follows it.
pub(crate) fn is_challenge(reply: &[u8; MESSAGE_BYTES]) -> bool {
    let [_, _, _, kind, ..] = reply;
    *kind == message_type::CHALLENGE
}

/// The frame's headers and where its message begins.
pub(crate) fn datagram(frame: &[u8]) -> Option<(Frame, usize)> {
    let parsed = frame::parse(frame).ok()?;
    let (_, udp) = parsed.datagram()?;
    let payload = udp.payload();
    (payload.len() == MESSAGE_BYTES).then_some((parsed, payload.start))
}

/// The frame as the reply to itself; `None` if it holds no message.
pub(crate) fn reply_to(frame: &[u8], message: &[u8; MESSAGE_BYTES]) -> Option<Vec<u8>> {
    let (parsed, at) = datagram(frame)?;
    let mut reply = frame.to_vec();
    reply.get_mut(at..at + MESSAGE_BYTES)?.copy_from_slice(message);
    frame::turn_round(&mut reply, &parsed)?;
    Some(reply)
}
