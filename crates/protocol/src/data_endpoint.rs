//! The device's end of a session's DATA: the numbers of sent messages and the window of received messages. No heap, no
//! I/O; the caller owns sockets and buffers.

use crate::data::{self, Channel, Direction, Route, SealError, Sequence};
use crate::ids::SessionId;
use crate::verdict::Verdict;
use crate::window::Window;
use crate::wire::{self, DATA_HEADER_BYTES, Message};

/// Re-authenticate when fewer numbers remain: a quarter of an hour at a million messages per second.
const NUMBERS_LEFT_MIN: u32 = 1 << 30;

/// Why a datagram was not sealed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DataEndpointError {
    /// All numbers of the session are used.
    #[error("message not sealed: the numbers of the session are used up; renew the session")]
    Exhausted,
    /// The message cannot be sealed.
    #[error(transparent)]
    Seal(#[from] SealError),
}

/// The contents of a DATA_DOWN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceivedDatagram<'a> {
    /// The device's UDP port to which the service sent the datagram.
    pub port: u16,
    /// The payload.
    pub payload: &'a [u8],
}

/// The message numbers of one session. Each session needs a new endpoint: a number is never used twice under one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DataEndpoint {
    session: SessionId,
    /// The next number to send; `None` if all numbers are used.
    next: Option<Sequence>,
    window: Window,
}

impl DataEndpoint {
    /// Bytes that sealing adds to a payload.
    pub const OVERHEAD_BYTES: usize = DATA_HEADER_BYTES;

    /// The endpoint of a session in which no message was sent.
    #[must_use]
    pub fn new(session: SessionId) -> Self {
        Self {
            session,
            next: Some(Sequence::FIRST),
            window: Window::new(0),
        }
    }

    /// The session of these numbers.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Whether the session should be renewed because few numbers remain.
    #[must_use]
    pub fn is_nearly_exhausted(&self) -> bool {
        self.next
            .is_none_or(|next| u32::MAX - next.0.get() < NUMBERS_LEFT_MIN)
    }

    /// Seals a datagram to `route.destination`, to be forwarded to `port` there; returns the length of the message.
    /// The number is used only on success.
    ///
    /// # Errors
    /// [`DataEndpointError`].
    pub fn seal(
        &mut self,
        channel: &Channel<'_>,
        route: &Route,
        port: u16,
        payload: &[u8],
        out: &mut [u8],
    ) -> Result<usize, DataEndpointError> {
        let seq = self.next.ok_or(DataEndpointError::Exhausted)?;
        let length = data::seal(channel, Direction::Up, seq, port, route, payload, out)?;
        self.next = seq.next();
        Ok(length)
    }

    /// Opens a message to one of the device's ports from UDP port `source_port` along `route`.
    ///
    /// # Errors
    /// The drop reason: not a DATA_DOWN of this session, altered, or received before.
    pub fn open<'a>(
        &mut self,
        channel: &Channel<'_>,
        route: &Route,
        source_port: u16,
        message: &'a [u8],
    ) -> Result<ReceivedDatagram<'a>, Verdict> {
        let Message::DataDown(message, payload) = wire::parse(message)? else {
            return Err(Verdict::DropDirection);
        };
        let opened = data::open(channel, Direction::Down { source_port }, route, message, payload)?;
        self.window = data::accept_number(self.window, self.window.generation(), &opened)?;
        Ok(ReceivedDatagram {
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
    fn numbers_increase_until_exhausted_and_failures_use_no_number() {
        with_channel(|channel| {
            let mut endpoint = DataEndpoint::new(channel.session);
            let mut out = [0; 60];
            assert!(endpoint.seal(channel, &UP, 80, &[0; 9], &mut out).is_err());
            for seq in 1..4u8 {
                assert_eq!(endpoint.seal(channel, &UP, 80, &[0; 4], &mut out), Ok(60));
                assert_eq!(out[24..32], [0, 0, 0, 0, 0, 0, 0, seq]);
            }
            assert!(!endpoint.is_nearly_exhausted());
            endpoint.next = Sequence::from_wire(u64::from(u32::MAX));
            assert!(endpoint.is_nearly_exhausted());
            assert!(endpoint.seal(channel, &UP, 80, b"", &mut out).is_ok());
            assert_eq!(
                endpoint.seal(channel, &UP, 80, b"", &mut out),
                Err(DataEndpointError::Exhausted)
            );
        });
    }

    #[test]
    fn a_message_is_delivered_once_and_only_along_its_route() {
        with_channel(|channel| {
            let mut endpoint = DataEndpoint::new(channel.session);
            let (direction, mut out) = (Direction::Down { source_port: 80 }, [0; 60]);
            let seq = Sequence::from_wire(5).unwrap();
            data::seal(channel, direction, seq, 4000, &DOWN, b"data", &mut out).unwrap();
            assert_eq!(endpoint.open(channel, &DOWN, 81, &out), Err(Verdict::DropTag));
            let other_route = Route {
                source: [4; 16],
                ..DOWN
            };
            assert_eq!(
                endpoint.open(channel, &other_route, 80, &out),
                Err(Verdict::DropTag)
            );
            let delivered = endpoint.open(channel, &DOWN, 80, &out).unwrap();
            assert_eq!((delivered.port, delivered.payload), (4000, &b"data"[..]));
            assert_eq!(
                endpoint.open(channel, &DOWN, 80, &out),
                Err(Verdict::DropSequence)
            );
            data::seal(channel, Direction::Up, seq, 80, &UP, b"data", &mut out).unwrap();
            assert_eq!(
                endpoint.open(channel, &DOWN, 80, &out),
                Err(Verdict::DropDirection)
            );
        });
    }
}
