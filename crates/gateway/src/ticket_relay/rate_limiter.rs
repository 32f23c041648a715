//! Rate limits of the ticket relay, in total and for each device (LAP/1 1.7.2).

use std::collections::HashMap;

use linewarden_protocol::ids::{DeviceId, SessionId};

/// Maximum number of relayed tickets a second. Each causes registry queries.
const RELAYED_PER_S: u32 = 500;
/// Maximum number of relayed tickets a second for devices above their share.
const OVER_SHARE_PER_S: u32 = 250;
/// Maximum number of relayed tickets of one device a second.
const RELAYED_PER_DEVICE_PER_S: u32 = 10;
/// Maximum number of copies of one ticket that are relayed a second until the controller responds. An attacker who
/// has recorded a ticket can send copies, so copies must leave room for the device's next ticket.
const COPIES_PER_S: u32 = 2;
/// A device's share is one ticket a second; this many tickets may be saved up.
const SHARE_BURST_MAX: u64 = 5;
/// Maximum debt of a device above its share, s: after this time without tickets, the device has its full share again.
const SHARE_DEBT_MAX_S: u64 = 15;
/// Maximum number of devices with state. A device without state has its full share.
const DEVICES_MAX: usize = 8_192;

/// Counts in the current second of the monotonic clock, and shares across seconds.
#[derive(Debug, Default)]
pub(super) struct RateLimiter {
    second: u64,
    /// Number of tickets relayed in this second.
    relayed: u32,
    /// Number of tickets relayed in this second for devices above their share.
    over_share: u32,
    devices: HashMap<DeviceId, DeviceUsage>,
}

/// A ticket: its session, and its serial number in the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TicketId {
    pub(super) session: SessionId,
    pub(super) serial: u64,
}

/// The decision about a valid ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TicketDecision {
    /// The ticket is relayed, unless [`RateLimiter::cached_response`] has a response by then.
    Relay(TicketId),
    /// A copy of a ticket with a response, which is sent again.
    Cached(Vec<u8>),
    /// The ticket is older than another ticket of its session, or above a limit.
    Refused,
}

/// State of one device.
#[derive(Debug)]
struct DeviceUsage {
    session: SessionId,
    /// The newest serial number in the session.
    serial: u64,
    /// The response to the newest ticket.
    response: Option<Vec<u8>>,
    /// The second in which the newest ticket was relayed last, and the number of its copies relayed in that second.
    copies: (u64, u32),
    /// The second in which a ticket of the device was relayed last, and the number of tickets relayed in that second.
    relayed: (u64, u32),
    /// The second from which the device has its full share again.
    full_share_at_s: u64,
}

impl DeviceUsage {
    fn newest_ticket(&self) -> TicketId {
        TicketId {
            session: self.session,
            serial: self.serial,
        }
    }
}

/// Returns the count if it is of this second, else 0.
fn count_in_second((at, count): (u64, u32), second: u64) -> u32 {
    if at == second { count } else { 0 }
}

impl RateLimiter {
    /// Decides about a valid ticket. `recorded_serial` is the newest serial number in the data plane, 0 for none.
    /// Devices above their share use at most half of the relayed tickets, however many devices these are; the other
    /// half is for devices within their share. A ticket that is older than another ticket of its session is refused,
    /// because the device has completed or abandoned the older ticket. Copies of the newest ticket do not use the
    /// device's share.
    pub(super) fn admit(
        &mut self,
        device: DeviceId,
        (session, recorded_serial): (SessionId, u64),
        serial: u64,
        now_ns: u64,
    ) -> TicketDecision {
        self.start_second(now_ns);
        let second = self.second;
        let usage = self.devices.entry(device).or_insert(DeviceUsage {
            session,
            serial: recorded_serial,
            response: None,
            copies: (second, 0),
            relayed: (second, 0),
            full_share_at_s: second,
        });
        if usage.session != session {
            (usage.session, usage.serial, usage.response) = (session, recorded_serial, None);
        }
        if serial == 0 || serial < usage.serial {
            return TicketDecision::Refused;
        }
        let is_new = serial > usage.serial;
        let debt_s = usage.full_share_at_s.saturating_sub(second);
        if is_new {
            (usage.serial, usage.response, usage.copies) = (serial, None, (second, 0));
            usage.full_share_at_s = second + (debt_s + 1).min(SHARE_DEBT_MAX_S);
        }
        if let Some(response) = &usage.response {
            return TicketDecision::Cached(response.clone());
        }
        let copies = count_in_second(usage.copies, second);
        let relayed_of_device = count_in_second(usage.relayed, second);
        if copies >= COPIES_PER_S
            || relayed_of_device >= RELAYED_PER_DEVICE_PER_S
            || self.relayed >= RELAYED_PER_S
        {
            return TicketDecision::Refused;
        }
        if debt_s >= SHARE_BURST_MAX {
            if self.over_share >= OVER_SHARE_PER_S {
                return TicketDecision::Refused;
            }
            self.over_share += 1;
        }
        usage.copies = (second, copies + 1);
        usage.relayed = (second, relayed_of_device + 1);
        self.relayed += 1;
        TicketDecision::Relay(TicketId { session, serial })
    }

    /// Returns the response to this ticket, if the ticket is the device's newest ticket and has a response.
    pub(super) fn cached_response(&self, device: DeviceId, ticket_id: TicketId) -> Option<Vec<u8>> {
        let usage = self.devices.get(&device)?;
        usage
            .response
            .clone()
            .filter(|_| usage.newest_ticket() == ticket_id)
    }

    /// Caches the controller's response, if the ticket is still the device's newest ticket: a newer ticket may have
    /// been admitted meanwhile.
    pub(super) fn cache_response(&mut self, device: DeviceId, ticket_id: TicketId, response: &[u8]) {
        let usage = self.devices.get_mut(&device);
        if let Some(usage) = usage.filter(|usage| usage.newest_ticket() == ticket_id) {
            usage.response = Some(response.to_vec());
        }
    }

    fn start_second(&mut self, now_ns: u64) {
        let second = now_ns / 1_000_000_000;
        if second == self.second {
            return;
        }
        (self.second, self.relayed, self.over_share) = (second, 0, 0);
        if self.devices.len() > DEVICES_MAX {
            self.devices.retain(|_, usage| usage.full_share_at_s > second);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NS: u64 = 1_000_000_000;

    fn session(number: u8) -> SessionId {
        SessionId::from_wire([number; 8]).unwrap()
    }

    fn ticket_id(number: u8, serial: u64) -> TicketId {
        TicketId {
            session: session(number),
            serial,
        }
    }

    /// Assigns the next serial number to each ticket.
    #[derive(Default)]
    struct SerialSource {
        limits: RateLimiter,
        serial: u64,
    }

    impl SerialSource {
        fn is_relayed(&mut self, device: u64, at_ns: u64) -> bool {
            self.serial += 1;
            let decision = self
                .limits
                .admit(DeviceId(device), (session(1), 0), self.serial, at_ns);
            matches!(decision, TicketDecision::Relay(_))
        }
    }

    #[test]
    fn ten_tickets_a_second_are_relayed_for_a_device_and_five_hundred_in_total() {
        let mut source = SerialSource::default();
        let of_one_device = (0..1_000).filter(|_| source.is_relayed(1, NS)).count();
        assert_eq!(of_one_device, 10);
        let devices = (0..100_000).filter(|n| source.is_relayed(*n, 2 * NS)).count();
        assert_eq!(devices, 500);
    }

    /// A thousand devices send as many tickets as they can, each second before all other devices.
    #[test]
    fn devices_above_their_share_leave_half_of_the_total_to_other_devices() {
        let mut source = SerialSource::default();
        let mut within_share = 0;
        for second in 1..=100 {
            let of_greedy = (0..1_000 * 20)
                .filter(|n| source.is_relayed(1 + n % 1_000, second * NS))
                .count();
            // After the saved-up shares are used.
            assert!(second < 20 || of_greedy <= 250, "{of_greedy} in second {second}");
            // Each device sends a ticket every 10 s.
            let devices = (0..50).map(|n| 10_000 + 50 * (second % 10) + n);
            within_share += devices
                .filter(|device| source.is_relayed(*device, second * NS))
                .count();
        }
        assert!(within_share >= 50 * 80, "{within_share} of 5000");
    }

    #[test]
    fn a_single_device_may_exceed_its_share() {
        let mut source = SerialSource::default();
        for second in 1..=20 {
            let relayed = (0..20).filter(|_| source.is_relayed(1, second * NS)).count();
            assert_eq!(relayed, 10, "as many as a renewal of rows needs");
        }
    }

    /// An attacker on the device's segment has recorded all tickets of its session, and sends them repeatedly.
    #[test]
    fn copies_of_a_devices_tickets_leave_room_for_the_next_ticket() {
        let mut limits = RateLimiter::default();
        let admit = |limits: &mut RateLimiter, session: SessionId, serial, second: u64| {
            limits.admit(DeviceId(1), (session, 0), serial, second * NS)
        };
        for serial in 1..=100 {
            let mut count = |serial, expected: TicketDecision| {
                let copies = (0..1_000).filter(|_| admit(&mut limits, session(1), serial, 7) == expected);
                copies.count()
            };
            // Ten copies are relayed in a second: two copies of each of the first five tickets.
            let relayed = count(serial, TicketDecision::Relay(ticket_id(1, serial)));
            assert_eq!(relayed, if serial <= 5 { 2 } else { 0 }, "of ticket {serial}");
            assert_eq!(
                count(serial - 1, TicketDecision::Refused),
                1_000,
                "before ticket {serial}"
            );
        }
        for serial in 101..=200 {
            let new = ticket_id(1, serial);
            let first = admit(&mut limits, session(1), serial, serial);
            assert_eq!(first, TicketDecision::Relay(new));
            limits.cache_response(DeviceId(1), new, b"response");
            let copy = admit(&mut limits, session(1), serial, serial);
            assert_eq!(
                copy,
                TicketDecision::Cached(b"response".to_vec()),
                "copies use no share"
            );
        }
        let decision = admit(&mut limits, session(2), 1, 201);
        assert_eq!(
            decision,
            TicketDecision::Relay(ticket_id(2, 1)),
            "a new session has its own serial numbers"
        );
    }

    #[test]
    fn a_response_is_cached_only_for_the_newest_ticket() {
        let mut limits = RateLimiter::default();
        let admit = |limits: &mut RateLimiter, id: TicketId| {
            limits.admit(DeviceId(1), (id.session, 0), id.serial, NS)
        };
        let (first, second, renewed) = (ticket_id(1, 1), ticket_id(1, 2), ticket_id(2, 2));
        for (older, newer) in [(first, second), (second, renewed)] {
            assert_eq!(admit(&mut limits, older), TicketDecision::Relay(older));
            assert_eq!(admit(&mut limits, newer), TicketDecision::Relay(newer));
            limits.cache_response(DeviceId(1), older, b"older");
            assert_eq!(limits.cached_response(DeviceId(1), newer), None);
            assert_eq!(admit(&mut limits, newer), TicketDecision::Relay(newer));
            limits.cache_response(DeviceId(1), newer, b"newer");
            assert_eq!(
                limits.cached_response(DeviceId(1), newer),
                Some(b"newer".to_vec())
            );
            assert_eq!(limits.cached_response(DeviceId(1), older), None);
            limits = RateLimiter::default();
        }
    }

    #[test]
    fn the_number_of_devices_with_state_is_bounded() {
        let mut source = SerialSource::default();
        for second in 1..=100 {
            for n in 0..500 {
                source.is_relayed(second * 500 + n, second * NS);
            }
            assert!(source.limits.devices.len() <= DEVICES_MAX + 500);
        }
    }
}
