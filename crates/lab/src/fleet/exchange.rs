//! One datagram from each device to the service behind the gate, and its echo.

use std::time::Duration;

use hdrhistogram::Histogram;
use linewarden_protocol::frame::write::Endpoint;

use super::report::{add, histogram};
use crate::address::Family;

/// What to exchange. Payloads name the device and the attempt, so an echo is known for whose it is.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    /// The service as it is reached from the devices: the gateway's MAC address, the service's IP address and port.
    pub service: fn(Family) -> Endpoint,
    /// Bytes of payload, 16 to 1,024.
    pub payload_bytes: usize,
    /// How often a device sends at most.
    pub attempts: u8,
    /// How long an echo is waited for each time.
    pub patience: Duration,
}

impl Exchange {
    /// 64 bytes to that service, five attempts of 200 ms.
    #[must_use]
    pub fn to(service: fn(Family) -> Endpoint) -> Self {
        Self {
            service,
            payload_bytes: 64,
            attempts: 5,
            patience: Duration::from_millis(200),
        }
    }
}

/// What came of it. Durations are nanoseconds.
#[derive(Clone, Debug)]
pub struct ExchangeReport {
    /// Devices whose echo came back.
    pub answered: u64,
    /// Devices whose echo did not.
    pub unanswered: u64,
    /// Datagrams sent.
    pub sent: u64,
    /// From the last attempt sent to its echo received, by the kernel's stamp.
    pub round_trip_ns: Histogram<u64>,
    /// How long it took.
    pub elapsed: Duration,
}

impl Default for ExchangeReport {
    fn default() -> Self {
        Self {
            answered: 0,
            unanswered: 0,
            sent: 0,
            round_trip_ns: histogram(),
            elapsed: Duration::ZERO,
        }
    }
}

impl ExchangeReport {
    pub(super) fn join(mut self, other: Self) -> Self {
        self.answered += other.answered;
        self.unanswered += other.unanswered;
        self.sent += other.sent;
        add(&mut self.round_trip_ns, &other.round_trip_ns);
        self.elapsed = self.elapsed.max(other.elapsed);
        self
    }
}

/// Writes the payload of an attempt: device's index, attempt, then a pattern.
pub(super) fn write_payload(out: &mut [u8], index: u32, attempt: u8) {
    for (at, byte) in out.iter_mut().enumerate() {
        *byte = at as u8 ^ 0x5a;
    }
    let head = [&index.to_be_bytes()[..], &[attempt], b"lab"];
    for (to, from) in out.iter_mut().zip(head.into_iter().flatten()) {
        *to = *from;
    }
}

/// The device and the attempt that a payload names, if it was written by [`write_payload`] and came back whole.
pub(super) fn read_payload(payload: &[u8]) -> Option<(u32, u8)> {
    let (index, rest) = payload.split_first_chunk::<4>()?;
    let (attempt, rest) = rest.split_first()?;
    let pattern = rest.strip_prefix(b"lab")?;
    let whole = pattern
        .iter()
        .enumerate()
        .all(|(at, byte)| *byte == (at + 8) as u8 ^ 0x5a);
    whole.then_some((u32::from_be_bytes(*index), *attempt))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_known_again_only_when_whole() {
        let mut payload = [0; 300];
        write_payload(&mut payload, 77, 3);
        assert_eq!(read_payload(&payload), Some((77, 3)));
        payload[299] ^= 1;
        assert_eq!(read_payload(&payload), None);
        assert_eq!(read_payload(&payload[..7]), None);
    }
}
