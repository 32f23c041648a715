//! One datagram from each device to the service behind the gate, and its echo.

use std::time::Duration;

use hdrhistogram::Histogram;
use linewarden_protocol::frame::write::{self, Endpoint};

use super::DATA_PORT;
use super::crew::{Crew, Stamp};
use super::report::{add, histogram};
use crate::address::Family;
use crate::clock::boot_ms;

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
fn write_payload(out: &mut [u8], index: u32, attempt: u8) {
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

impl Crew {
    /// The next attempt of an exchange, or its end.
    pub(super) fn send_data(&mut self, place: u32, exchange: &Exchange) {
        let Some(seat) = self.seats.get_mut(place as usize) else {
            return;
        };
        if seat.data.attempts >= exchange.attempts.max(1) {
            seat.data.under_way = false;
            self.timers.arm(place, None);
            self.exchange_report.unanswered += 1;
            self.under_way = self.under_way.saturating_sub(1);
            self.done += 1;
            return;
        }
        seat.data.attempts += 1;
        let family = if seat.ip.is_ipv4() { Family::V4 } else { Family::V6 };
        let from = seat.address.endpoint(family, DATA_PORT);
        let to = (exchange.service)(family);
        write_payload(&mut self.payload, seat.address.index, seat.data.attempts);
        self.exchange_report.sent += 1;
        let payload = std::mem::take(&mut self.payload);
        self.batch_with(Stamp::Data(place), |out| {
            write::udp(out, &from, &to, [0; 2], &payload)
        });
        self.payload = payload;
        let patience_ms = u64::try_from(exchange.patience.as_millis()).unwrap_or(u64::MAX);
        self.timers
            .arm(place, Some(boot_ms().saturating_add(patience_ms)));
    }

    pub(super) fn on_echo(&mut self, place: u32, payload: &[u8], at_ns: u64) {
        let Some(seat) = self.seats.get_mut(place as usize) else {
            return;
        };
        let mine = Some((seat.address.index, seat.data.attempts));
        if !seat.data.under_way || read_payload(payload) != mine {
            return;
        }
        seat.data.under_way = false;
        seat.data.answered = true;
        let round_trip = at_ns.saturating_sub(seat.data.sent_ns);
        self.exchange_report
            .round_trip_ns
            .saturating_record(round_trip.max(1));
        self.exchange_report.answered += 1;
        self.timers.arm(place, seat.device.next_deadline());
        self.under_way = self.under_way.saturating_sub(1);
        self.done += 1;
    }
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
