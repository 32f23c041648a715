//! An echo exchange: one datagram from each device to the service behind the gate, and its echo.

use std::time::Duration;

use hdrhistogram::Histogram;
use linewarden_protocol::frame::write::{self, Endpoint};

use super::DATA_PORT;
use super::report::{add, histogram};
use super::worker_devices::{SendStamp, WorkerDevices};
use crate::address::Family;
use crate::clock::boot_ms;

/// Options of an echo exchange. Payloads contain the device index and the attempt, so that each echo is matched to its device.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    /// The service's endpoint as the devices see it: the gateway's MAC address, the service's IP address and port.
    pub service: fn(Family) -> Endpoint,
    /// Bytes of payload, 16 to 1,024.
    pub payload_bytes: usize,
    /// Maximum number of attempts per device.
    pub attempts: u8,
    /// Timeout of each attempt.
    pub timeout: Duration,
}

impl Exchange {
    /// 64 bytes to that service, five attempts of 200 ms.
    #[must_use]
    pub fn to(service: fn(Family) -> Endpoint) -> Self {
        Self {
            service,
            payload_bytes: 64,
            attempts: 5,
            timeout: Duration::from_millis(200),
        }
    }
}

/// Result of an exchange.
#[derive(Clone, Debug)]
pub struct ExchangeReport {
    /// Devices that received their echo.
    pub echoed: u64,
    /// Devices that received no echo.
    pub not_echoed: u64,
    /// Datagrams sent.
    pub sent: u64,
    /// Time from the echoed attempt to the kernel's receive timestamp of the echo, ns.
    pub round_trip_ns: Histogram<u64>,
    /// Duration of the exchange.
    pub elapsed: Duration,
}

impl Default for ExchangeReport {
    fn default() -> Self {
        Self {
            echoed: 0,
            not_echoed: 0,
            sent: 0,
            round_trip_ns: histogram(),
            elapsed: Duration::ZERO,
        }
    }
}

impl ExchangeReport {
    pub(super) fn merge(mut self, other: Self) -> Self {
        self.echoed += other.echoed;
        self.not_echoed += other.not_echoed;
        self.sent += other.sent;
        add(&mut self.round_trip_ns, &other.round_trip_ns);
        self.elapsed = self.elapsed.max(other.elapsed);
        self
    }
}

/// Writes the payload of an attempt: device index, attempt, then a pattern.
fn write_payload(out: &mut [u8], index: u32, attempt: u8) {
    for (position, byte) in out.iter_mut().enumerate() {
        *byte = position as u8 ^ 0x5a;
    }
    let head = [&index.to_be_bytes()[..], &[attempt], b"lab"];
    for (to, from) in out.iter_mut().zip(head.into_iter().flatten()) {
        *to = *from;
    }
}

/// The device index and the attempt of a payload, if it was written by [`write_payload`] and is complete.
pub(super) fn read_payload(payload: &[u8]) -> Option<(u32, u8)> {
    let (index, rest) = payload.split_first_chunk::<4>()?;
    let (attempt, rest) = rest.split_first()?;
    let pattern = rest.strip_prefix(b"lab")?;
    let matches_pattern = pattern
        .iter()
        .enumerate()
        .all(|(position, byte)| *byte == (position + 8) as u8 ^ 0x5a);
    matches_pattern.then_some((u32::from_be_bytes(*index), *attempt))
}

impl WorkerDevices {
    /// Sends the next attempt of an exchange, or ends the exchange.
    pub(super) fn send_data(&mut self, slot_index: u32, exchange: &Exchange) {
        let Some(slot) = self.slots.get_mut(slot_index as usize) else {
            return;
        };
        if slot.echo.attempts >= exchange.attempts.max(1) {
            slot.echo.in_progress = false;
            self.timers.arm(slot_index, None);
            self.exchange_report.not_echoed += 1;
            self.in_progress = self.in_progress.saturating_sub(1);
            self.done += 1;
            return;
        }
        slot.echo.attempts += 1;
        let family = if slot.ip.is_ipv4() { Family::V4 } else { Family::V6 };
        let from = slot.address.endpoint(family, DATA_PORT);
        let to = (exchange.service)(family);
        write_payload(&mut self.payload, slot.address.index, slot.echo.attempts);
        self.exchange_report.sent += 1;
        let payload = std::mem::take(&mut self.payload);
        self.queue_frame(SendStamp::Data(slot_index), |out| {
            write::udp(out, &from, &to, [0; 2], &payload)
        });
        self.payload = payload;
        let timeout_ms = u64::try_from(exchange.timeout.as_millis()).unwrap_or(u64::MAX);
        self.timers
            .arm(slot_index, Some(boot_ms().saturating_add(timeout_ms)));
    }

    pub(super) fn on_echo(&mut self, slot_index: u32, payload: &[u8], received_ns: u64) {
        let Some(slot) = self.slots.get_mut(slot_index as usize) else {
            return;
        };
        let expected = Some((slot.address.index, slot.echo.attempts));
        if !slot.echo.in_progress || read_payload(payload) != expected {
            return;
        }
        slot.echo.in_progress = false;
        slot.echo.echoed = true;
        let round_trip = received_ns.saturating_sub(slot.echo.sent_ns);
        self.exchange_report
            .round_trip_ns
            .saturating_record(round_trip.max(1));
        self.exchange_report.echoed += 1;
        self.timers.arm(slot_index, slot.device.next_deadline());
        self.in_progress = self.in_progress.saturating_sub(1);
        self.done += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_complete_payload_is_recognized() {
        let mut payload = [0; 300];
        write_payload(&mut payload, 77, 3);
        assert_eq!(read_payload(&payload), Some((77, 3)));
        payload[299] ^= 1;
        assert_eq!(read_payload(&payload), None);
        assert_eq!(read_payload(&payload[..7]), None);
    }
}
