//! DATA: datagrams sealed under a session key (LAP/1 1.2, 1.4.7). No heap; the caller owns the buffers.
//!
//! The types enforce the order of a receiver's steps: read the [`Window`], then the session id and key; [`open`] the
//! message, which returns the proof [`Opened`]; then [`accept_number`] its number in the window and compare-and-swap
//! the window. A window of another generation belongs to another session; the receiver drops the message.

use core::num::NonZeroU32;

use zerocopy::IntoBytes as _;
use zerocopy::byteorder::big_endian::{U16, U64};

use crate::ids::{DeviceId, SessionId, Suite};
use crate::keys::SessionKey;
use crate::tag::{self, TagVerified};
use crate::verdict::Verdict;
use crate::window::Window;
use crate::wire::{DATA_HEADER_BYTES, Data, Header, message_type};

/// The longest payload in bytes, limited by the largest UDP datagram. The MTU of a path allows less (LAP/1 1.4.7).
pub const PAYLOAD_BYTES_MAX: usize = 65_535 - 8 - DATA_HEADER_BYTES;

/// The number of a message in its session and direction, from 1. The device re-authenticates before the number wraps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Sequence(pub NonZeroU32);

impl Sequence {
    /// The first number of a session.
    pub const FIRST: Self = Self(NonZeroU32::MIN);

    /// The following number; `None` if the numbers of the session are used up.
    #[must_use]
    pub fn next(self) -> Option<Self> {
        self.0.checked_add(1).map(Self)
    }

    /// The number in a message; `None` if it is 0 or its high half is not zero.
    #[must_use]
    pub fn from_wire(seq: u64) -> Option<Self> {
        u32::try_from(seq).ok().and_then(NonZeroU32::new).map(Self)
    }
}

/// The counter of messages to a device: `gen u8 | 0 u24 | last u32`. The generation is the low 8 bits of the commit
/// word's generation, as in a [`Window`]; `last` is the last number taken (LAP/1 1.4.7).
///
/// On shared memory, a sender takes a number by one atomic addition of 1 to the whole counter word. The addition is void
/// if the counter has another generation than the session. In this case, the sender reads the commit word again. If the
/// commit word has not changed after the read of the key, the sender compares-and-swaps the counter word to the first
/// number of the session's generation. If the commit word has changed or the swap fails, the sender starts over. So the
/// counter never goes back: a sender with an older session key sees a newer generation only after the commit word has
/// changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DownCounter(pub u64);

impl DownCounter {
    const COUNT_MASK: u64 = u64::MAX >> 8;

    /// The generation.
    #[must_use]
    pub fn generation(self) -> u8 {
        let [generation, ..] = self.0.to_be_bytes();
        generation
    }

    /// Numbers taken; numbers above 2^32 - 1 are refused.
    #[must_use]
    pub fn count(self) -> u64 {
        self.0 & Self::COUNT_MASK
    }

    /// Takes a number for a session of `generation`. Returns the new counter word and the number; `None` instead of the
    /// number if all numbers are used.
    #[must_use]
    pub fn take_number(self, generation: u8) -> (Self, Option<Sequence>) {
        let next = if self.generation() == generation {
            Self(self.0 + 1)
        } else {
            Self(u64::from(generation) << 56 | 1)
        };
        (next, Sequence::from_wire(next.count()))
    }
}

/// The direction of a message, with the fields of that direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// DATA_UP: device to service.
    Up,
    /// DATA_DOWN: service to device.
    Down {
        /// UDP source port of the sealed datagram, from its UDP header.
        source_port: u16,
    },
}

impl Direction {
    fn message_type(self) -> u8 {
        match self {
            Self::Up => message_type::DATA_UP,
            Self::Down { .. } => message_type::DATA_DOWN,
        }
    }

    /// The source port that the tag covers: 0 upwards, because address translation may change the port.
    fn tagged_source_port(self) -> u16 {
        match self {
            Self::Up => 0,
            Self::Down { source_port } => source_port,
        }
    }
}

/// The identifiers and the key of a live session, to seal and open its messages.
#[derive(Clone, Copy, Debug)]
pub struct Channel<'a> {
    /// The suite of the device.
    pub suite: Suite,
    /// The device.
    pub device: DeviceId,
    /// The session's id.
    pub session: SessionId,
    /// The device's address, to which the session is bound.
    pub addr: [u8; 16],
    /// The session's key.
    pub key: &'a SessionKey,
}

/// The IP addresses of a sealed datagram as the receiver sees them; IPv4 as ::ffff:a.b.c.d.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Source address.
    pub source: [u8; 16],
    /// Destination address.
    pub destination: [u8; 16],
}

impl Route {
    /// The address of the device and the address of its peer.
    fn device_and_peer(&self, direction: Direction) -> (&[u8; 16], &[u8; 16]) {
        match direction {
            Direction::Up => (&self.source, &self.destination),
            Direction::Down { .. } => (&self.destination, &self.source),
        }
    }
}

/// Why a message cannot be sealed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SealError {
    /// The payload is longer than a datagram can carry.
    #[error("payload too long: {0} B; a DATA message carries at most {PAYLOAD_BYTES_MAX} B")]
    PayloadTooLong(usize),
    /// The buffer is too short.
    #[error("buffer too short: {have} B; the message needs {need} B")]
    BufferTooShort {
        /// Length of the buffer, bytes.
        have: usize,
        /// Length of the message, bytes.
        need: usize,
    },
}

/// Proof that a DATA message verified, with its fields.
#[derive(Debug)]
pub struct Opened {
    seq: Sequence,
    port: u16,
    _verified: TagVerified,
}

impl Opened {
    /// The message's number.
    #[must_use]
    pub fn seq(&self) -> Sequence {
        self.seq
    }

    /// The message's port field.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// Writes a sealed message (56 B + payload) to the front of `out` and returns its length.
///
/// `port` is the port field of the message. Of the route, the tag covers only the peer's address.
///
/// # Errors
/// [`SealError`]; nothing is written.
pub fn seal(
    channel: &Channel<'_>,
    direction: Direction,
    seq: Sequence,
    port: u16,
    route: &Route,
    payload: &[u8],
    out: &mut [u8],
) -> Result<usize, SealError> {
    let need = DATA_HEADER_BYTES + payload.len();
    let length = u16::try_from(need).map_err(|_| SealError::PayloadTooLong(payload.len()))?;
    if payload.len() > PAYLOAD_BYTES_MAX {
        return Err(SealError::PayloadTooLong(payload.len()));
    }
    let too_short = SealError::BufferTooShort {
        have: out.len(),
        need,
    };
    let kind = direction.message_type();
    let mut message = Data {
        header: Header::with_length(kind, channel.suite, 0, channel.device, length),
        session_id: channel.session.to_wire(),
        seq: U64::new(u64::from(seq.0.get())),
        port: U16::new(port),
        reserved: [0; 6],
        tag: [0; 16],
    };
    let source_port = direction.tagged_source_port();
    let (_, peer) = route.device_and_peer(direction);
    message.tag = tag::data(channel.key, &message, source_port, peer, payload);
    let (head, rest) = out
        .get_mut(..need)
        .and_then(|out| out.split_at_mut_checked(DATA_HEADER_BYTES))
        .ok_or(too_short)?;
    head.copy_from_slice(message.as_bytes());
    rest.copy_from_slice(payload);
    Ok(need)
}

/// Verifies a parsed message that arrived along `route`.
///
/// The tag does not cover the device id and the session id: they select the key. A message with other ids than the
/// channel's is dropped here.
///
/// # Errors
/// [`Verdict::DropDirection`], [`Verdict::DropSession`] for another device, suite or session, [`Verdict::DropSource`]
/// if the device address is not the address of the session, [`Verdict::DropSequence`] if the number is out of range,
/// [`Verdict::DropTag`].
pub fn open(
    channel: &Channel<'_>,
    direction: Direction,
    route: &Route,
    message: &Data,
    payload: &[u8],
) -> Result<Opened, Verdict> {
    if message.header.kind != direction.message_type() {
        return Err(Verdict::DropDirection);
    }
    let is_of_channel = message.header.device() == channel.device
        && message.header.suite == channel.suite.number()
        && message.session_id == channel.session.to_wire();
    if !is_of_channel {
        return Err(Verdict::DropSession);
    }
    let (device_address, peer) = route.device_and_peer(direction);
    if device_address != &channel.addr {
        return Err(Verdict::DropSource);
    }
    let seq = Sequence::from_wire(message.seq.get()).ok_or(Verdict::DropSequence)?;
    let source_port = direction.tagged_source_port();
    let expected = tag::data(channel.key, message, source_port, peer, payload);
    let tag = tag::verify(&expected, &message.tag).ok_or(Verdict::DropTag)?;
    Ok(Opened {
        seq,
        port: message.port.get(),
        _verified: tag,
    })
}

/// Marks the number of an opened message in the window. `generation` is the generation of the window that was read
/// before the key.
///
/// # Errors
/// [`Verdict::DropSequence`]: accepted before, too old, or the session was replaced after the window was read.
pub fn accept_number(window: Window, generation: u8, opened: &Opened) -> Result<Window, Verdict> {
    let current = Some(window).filter(|window| window.generation() == generation);
    current
        .and_then(|window| window.accept(opened.seq.0.get()))
        .ok_or(Verdict::DropSequence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{self, Message};
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const DEVICE: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 66, 0, 1];
    const SERVICE: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1];

    fn route(direction: Direction) -> Route {
        let (source, destination) = match direction {
            Direction::Up => (DEVICE, SERVICE),
            Direction::Down { .. } => (SERVICE, DEVICE),
        };
        Route { source, destination }
    }

    fn channel<R>(session: u8, run: impl FnOnce(&Channel<'_>) -> R) -> R {
        run(&Channel {
            suite: Suite::SipHash128,
            device: DeviceId(0xd1),
            session: SessionId::from_wire([session; 8]).unwrap(),
            addr: DEVICE,
            key: &SessionKey::from_bytes([0x5a; 16]),
        })
    }

    fn seal_to(direction: Direction, seq: u32, payload: &[u8], out: &mut [u8]) -> Result<usize, SealError> {
        let seq = Sequence::from_wire(u64::from(seq)).unwrap();
        channel(1, |channel| {
            seal(channel, direction, seq, 5683, &route(direction), payload, out)
        })
    }

    fn sealed(direction: Direction, seq: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![0xee; DATA_HEADER_BYTES + payload.len() + 3];
        let bytes = seal_to(direction, seq, payload, &mut out).unwrap();
        assert_eq!(
            out.split_off(bytes),
            [0xee; 3],
            "bytes after the message are unchanged"
        );
        out
    }

    fn open_bytes(direction: Direction, bytes: &[u8]) -> Result<Opened, Verdict> {
        match wire::parse(bytes)? {
            Message::DataUp(message, payload) | Message::DataDown(message, payload) => {
                channel(1, |channel| {
                    open(channel, direction, &route(direction), message, payload)
                })
            }
            other => panic!("not DATA: {other:?}"),
        }
    }

    proptest! {
        #[test]
        fn opens_sealed_messages_and_rejects_altered_ones(
            payload in prop::collection::vec(any::<u8>(), 0..80),
            seq in 1u32..,
            down: Option<u16>,
            at: prop::sample::Index,
            flip in 1u8..,
        ) {
            let direction = down.map_or(Direction::Up, |source_port| Direction::Down { source_port });
            let mut bytes = sealed(direction, seq, &payload);
            let opened = open_bytes(direction, &bytes).unwrap();
            prop_assert_eq!((opened.seq().0.get(), opened.port()), (seq, 5683));
            bytes[at.index(DATA_HEADER_BYTES + payload.len())] ^= flip;
            // A message with a payload of 8 bytes is as long as an ACK: with another type, it can be an ACK, not DATA.
            if let Ok(Message::DataUp(..) | Message::DataDown(..)) | Err(_) = wire::parse(&bytes) {
                prop_assert!(open_bytes(direction, &bytes).is_err());
            }
        }
    }

    #[test]
    fn directions_peers_and_padding_are_distinguished() {
        let up = sealed(Direction::Up, 1, &[7, 0]);
        let down = Direction::Down { source_port: 0 };
        assert_eq!(open_bytes(down, &up).unwrap_err(), Verdict::DropDirection);
        let Ok(Message::DataUp(message, payload)) = wire::parse(&up) else {
            panic!("parses");
        };
        let open_along = |session, route: Route| {
            channel(session, |channel| {
                open(channel, Direction::Up, &route, message, payload)
            })
            .unwrap_err()
        };
        let route_to_test = route(Direction::Up);
        assert_eq!(open_along(2, route_to_test), Verdict::DropSession);
        let other_peer = Route {
            destination: [0; 16],
            ..route_to_test
        };
        assert_eq!(open_along(1, other_peer), Verdict::DropTag);
        let other_source = Route {
            source: [0; 16],
            ..route_to_test
        };
        assert_eq!(open_along(1, other_source), Verdict::DropSource);
        // Zero padding must not let a longer payload of zeros verify: H0 contains the length.
        let mut longer = up.clone();
        longer.push(0);
        longer[6..8].copy_from_slice(&59u16.to_be_bytes());
        assert_eq!(open_bytes(Direction::Up, &longer).unwrap_err(), Verdict::DropTag);
    }

    /// LAP/1 1.2: peer is the destination upwards, the source downwards; sport is 0 upwards.
    #[test]
    fn the_tag_covers_the_peer_and_downwards_the_source_port() {
        let down = Direction::Down { source_port: 5683 };
        for (direction, source_port) in [(Direction::Up, 0), (down, 5683)] {
            let bytes = sealed(direction, 3, b"reading");
            let Ok(Message::DataUp(message, payload) | Message::DataDown(message, payload)) =
                wire::parse(&bytes)
            else {
                panic!("parses");
            };
            let key = SessionKey::from_bytes([0x5a; 16]);
            let expected = tag::data(&key, message, source_port, &SERVICE, payload);
            assert_eq!(message.tag, expected, "{direction:?}");
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused_before_hashing() {
        let mut bytes = sealed(Direction::Up, 1, b"x");
        for seq in [0u64, 1 << 32, u64::MAX] {
            bytes[24..32].copy_from_slice(&seq.to_be_bytes());
            assert_eq!(
                open_bytes(Direction::Up, &bytes).unwrap_err(),
                Verdict::DropSequence
            );
        }
        assert_eq!(Sequence::from_wire(u64::from(u32::MAX)).unwrap().next(), None);
    }

    #[test]
    fn a_number_is_marked_once_and_only_in_its_own_generation() {
        let opened = open_bytes(Direction::Up, &sealed(Direction::Up, 9, b"")).unwrap();
        let window = accept_number(Window::new(4), 4, &opened).unwrap();
        assert_eq!(accept_number(window, 4, &opened), Err(Verdict::DropSequence));
        assert_eq!(
            accept_number(Window::new(5), 4, &opened),
            Err(Verdict::DropSequence)
        );
    }

    #[test]
    fn rejects_payloads_and_buffers_of_wrong_length() {
        let payload = vec![0; PAYLOAD_BYTES_MAX + 1];
        let mut out = vec![0; 70_000];
        let too_long = seal_to(Direction::Up, 1, &payload, &mut out);
        assert_eq!(too_long, Err(SealError::PayloadTooLong(PAYLOAD_BYTES_MAX + 1)));
        let short = seal_to(Direction::Up, 1, b"abc", &mut [0; 58]);
        assert_eq!(short, Err(SealError::BufferTooShort { have: 58, need: 59 }));
    }
}
