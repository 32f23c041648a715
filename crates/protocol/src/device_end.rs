//! The device's end of a session's DATA: the numbers that it gives upwards and those that it has taken downwards. No
//! heap, no I/O; the caller owns sockets and buffers.

use crate::data::{self, Channel, Direction, Route, SealError, Sequence};
use crate::ids::SessionId;
use crate::verdict::Verdict;
use crate::window::Window;
use crate::wire::{self, DATA_HEADER_BYTES, Message};

/// Re-authenticate when fewer numbers than this are left: a quarter of an hour at a million messages a second.
const NUMBERS_LEFT_MIN: u32 = 1 << 30;

/// Why a datagram was not sealed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EndError {
    /// All numbers of the session are used.
    #[error("the session's numbers are used up; it must be renewed")]
    Exhausted,
    /// The message cannot be made.
    #[error(transparent)]
    Seal(#[from] SealError),
}

/// What a DATA_DOWN carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delivered<'a> {
    /// The UDP port of the device that the service sent it to.
    pub port: u16,
    /// The payload.
    pub payload: &'a [u8],
}

/// One session's numbers. A new session wants a new one: a number is never given twice under one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceEnd {
    session: SessionId,
    /// `None` when all are used.
    next: Option<Sequence>,
    window: Window,
}

impl DeviceEnd {
    /// Bytes that sealing adds to a payload.
    pub const OVERHEAD_BYTES: usize = DATA_HEADER_BYTES;

    /// The end of a session in which nothing was sent yet.
    #[must_use]
    pub fn new(session: SessionId) -> Self {
        Self {
            session,
            next: Some(Sequence::FIRST),
            window: Window::new(0),
        }
    }

    /// Whose numbers these are.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Whether the session should be renewed, because its numbers come to an end.
    #[must_use]
    pub fn is_nearly_exhausted(&self) -> bool {
        self.next
            .is_none_or(|next| u32::MAX - next.0.get() < NUMBERS_LEFT_MIN)
    }

    /// Seals a datagram to `route.destination`, to be sent on to `port` there; returns the message's length. The number
    /// is spent only if that worked.
    ///
    /// # Errors
    /// [`EndError`].
    pub fn seal(
        &mut self,
        channel: &Channel<'_>,
        route: &Route,
        port: u16,
        payload: &[u8],
        out: &mut [u8],
    ) -> Result<usize, EndError> {
        let seq = self.next.ok_or(EndError::Exhausted)?;
        let length = data::seal(channel, Direction::Up, seq, port, route, payload, out)?;
        self.next = seq.next();
        Ok(length)
    }

    /// Opens what came to one of the device's ports from UDP port `source_port` along `route`.
    ///
    /// # Errors
    /// The reason to drop it: not a DATA_DOWN of this session, altered, or seen before.
    pub fn open<'a>(
        &mut self,
        channel: &Channel<'_>,
        route: &Route,
        source_port: u16,
        message: &'a [u8],
    ) -> Result<Delivered<'a>, Verdict> {
        let Message::DataDown(message, payload) = wire::parse(message)? else {
            return Err(Verdict::DropDirection);
        };
        let opened = data::open(channel, Direction::Down { source_port }, route, message, payload)?;
        self.window = data::mark(self.window, self.window.generation(), &opened)?;
        Ok(Delivered {
            port: opened.port(),
            payload,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{DeviceId, Suite};
    use crate::keys::SessionKey;

    const DEVICE: [u8; 16] = [1; 16];
    const SERVICE: [u8; 16] = [2; 16];
    const UP: Route = Route {
        source: DEVICE,
        destination: SERVICE,
    };
    const DOWN: Route = Route {
        source: SERVICE,
        destination: DEVICE,
    };

    fn with_channel(run: impl FnOnce(&Channel<'_>)) {
        run(&Channel {
            suite: Suite::SipHash128,
            device: DeviceId(7),
            session: SessionId::from_wire([3; 8]).unwrap(),
            addr: DEVICE,
            key: &SessionKey::from_bytes([9; 16]),
        });
    }

    #[test]
    fn numbers_go_up_end_and_are_not_spent_in_vain() {
        with_channel(|channel| {
            let mut end = DeviceEnd::new(channel.session);
            let mut out = [0; 60];
            assert!(end.seal(channel, &UP, 80, &[0; 9], &mut out).is_err());
            for seq in 1..4u8 {
                assert_eq!(end.seal(channel, &UP, 80, &[0; 4], &mut out), Ok(60));
                assert_eq!(out[24..32], [0, 0, 0, 0, 0, 0, 0, seq]);
            }
            assert!(!end.is_nearly_exhausted());
            end.next = Sequence::from_wire(u64::from(u32::MAX));
            assert!(end.is_nearly_exhausted());
            assert!(end.seal(channel, &UP, 80, b"", &mut out).is_ok());
            assert_eq!(
                end.seal(channel, &UP, 80, b"", &mut out),
                Err(EndError::Exhausted)
            );
        });
    }

    #[test]
    fn a_message_is_delivered_once_and_only_from_where_it_was_sealed() {
        with_channel(|channel| {
            let mut end = DeviceEnd::new(channel.session);
            let (direction, mut out) = (Direction::Down { source_port: 80 }, [0; 60]);
            let seq = Sequence::from_wire(5).unwrap();
            data::seal(channel, direction, seq, 4000, &DOWN, b"data", &mut out).unwrap();
            assert_eq!(end.open(channel, &DOWN, 81, &out), Err(Verdict::DropTag));
            let elsewhere = Route {
                source: [4; 16],
                ..DOWN
            };
            assert_eq!(end.open(channel, &elsewhere, 80, &out), Err(Verdict::DropTag));
            let delivered = end.open(channel, &DOWN, 80, &out).unwrap();
            assert_eq!((delivered.port, delivered.payload), (4000, &b"data"[..]));
            assert_eq!(end.open(channel, &DOWN, 80, &out), Err(Verdict::DropSequence));
            data::seal(channel, Direction::Up, seq, 80, &UP, b"data", &mut out).unwrap();
            assert_eq!(end.open(channel, &DOWN, 80, &out), Err(Verdict::DropDirection));
        });
    }
}
