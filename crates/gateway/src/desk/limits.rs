//! How much a desk takes, of all and of each (LAP/1 1.7.2).

use std::collections::HashMap;
use std::net::IpAddr;

use linewarden_protocol::ids::DeviceId;

/// Tickets looked at, a second: each asks the control thread a question.
const LOOKS_PER_S: u32 = 2_000;
/// Tickets of one source address that are looked at, a second.
const LOOKS_PER_SOURCE_AND_S: u32 = 100;
/// Source addresses that are told apart within a second; further ones wait for the next.
const SOURCES_MAX: usize = 4_096;
/// Tickets handed on, a second: each asks the registry.
const HANDED_ON_PER_S: u32 = 500;
/// Of these for devices that have more than their share.
const BEYOND_SHARES_PER_S: u32 = 250;
/// Messages of one device that go to the controller, a second.
const HANDED_ON_PER_DEVICE_AND_S: u32 = 10;
/// A device's share is one a second, and so many may be saved up.
const SHARE_MAX: u64 = 5;
/// Whoever asks for more than his share, served or not, has his share again when he has been silent for so long, s, less
/// what may be saved up.
const ASKED_MAX: u64 = 15;
/// Devices whose shares are remembered. One that is forgotten has its whole share: that is no more than it would have.
const SHARES_MAX: usize = 8_192;

/// Counts within seconds of the monotonic clock, and shares across them.
#[derive(Debug, Default)]
pub(super) struct Limits {
    second: u64,
    looks: u32,
    by_source: HashMap<IpAddr, u32>,
    handed_on: u32,
    beyond_shares: u32,
    by_device: HashMap<DeviceId, u32>,
    /// From which second on a device has its whole share again.
    whole_at: HashMap<DeviceId, u64>,
}

impl Limits {
    /// Whether a ticket from there may be looked at.
    pub(super) fn may_look(&mut self, from: IpAddr, now_ns: u64) -> bool {
        self.turn_to(now_ns);
        if self.by_source.len() >= SOURCES_MAX && !self.by_source.contains_key(&from) {
            return false;
        }
        let of_source = self.by_source.entry(from).or_default();
        if *of_source >= LOOKS_PER_SOURCE_AND_S || self.looks >= LOOKS_PER_S {
            return false;
        }
        *of_source += 1;
        self.looks += 1;
        true
    }

    /// Whether a ticket of a session that is here may go to the controller. Devices that ask for more than their share, or
    /// did so a moment ago, may use half of what is handed on, however many they are: the other half is for those that do not.
    pub(super) fn may_hand_on(&mut self, device: DeviceId, now_ns: u64) -> bool {
        self.turn_to(now_ns);
        let second = self.second;
        let whole_at = self.whole_at.entry(device).or_default();
        let asked = whole_at.saturating_sub(second);
        *whole_at = second + (asked + 1).min(ASKED_MAX);
        let of_device = self.by_device.entry(device).or_default();
        if *of_device >= HANDED_ON_PER_DEVICE_AND_S || self.handed_on >= HANDED_ON_PER_S {
            return false;
        }
        if asked >= SHARE_MAX {
            if self.beyond_shares >= BEYOND_SHARES_PER_S {
                return false;
            }
            self.beyond_shares += 1;
        }
        *of_device += 1;
        self.handed_on += 1;
        true
    }

    fn turn_to(&mut self, now_ns: u64) {
        let second = now_ns / 1_000_000_000;
        if second == self.second {
            return;
        }
        let mut whole_at = std::mem::take(&mut self.whole_at);
        if whole_at.len() > SHARES_MAX {
            whole_at.retain(|_, whole_at| *whole_at > second);
        }
        *self = Self {
            second,
            whole_at,
            ..Self::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const NS: u64 = 1_000_000_000;

    #[test]
    fn a_source_does_not_take_the_others_turn_and_a_new_second_begins_anew() {
        let mut limits = Limits::default();
        let source = |n: u32| IpAddr::V4(Ipv4Addr::from_bits(n));
        let looks = |limits: &mut Limits, from, at| (0..1000).filter(|_| limits.may_look(from, at)).count();
        assert_eq!(looks(&mut limits, source(1), NS), 100);
        assert_eq!(looks(&mut limits, source(2), NS), 100);
        let all: usize = (3..1000).map(|n| looks(&mut limits, source(n), NS)).sum();
        assert_eq!(all, 2_000 - 200, "all of them together");
        assert_eq!(looks(&mut limits, source(1), 2 * NS), 100);
        let mut one = Limits::default();
        let of_one = (0..1000).filter(|_| one.may_hand_on(DeviceId(1), NS)).count();
        assert_eq!(of_one, 10);
        let devices = (0..100_000)
            .filter(|n| limits.may_hand_on(DeviceId(*n), 2 * NS))
            .count();
        assert_eq!(devices, 500);
    }

    /// A thousand devices ask as often as they are let, each second before all others.
    #[test]
    fn many_devices_that_ask_too_often_leave_half_to_the_others() {
        let mut limits = Limits::default();
        let mut honest = 0;
        for second in 1..=100 {
            let of_greedy = (0..1_000 * 20)
                .filter(|n| limits.may_hand_on(DeviceId(1 + n % 1_000), second * NS))
                .count();
            // Once the shares that were saved up are gone.
            assert!(second < 20 || of_greedy <= 250, "{of_greedy} in second {second}");
            // Each asks every 10 s.
            let asking = (0..50).map(|n| DeviceId(10_000 + 50 * (second % 10) + n));
            honest += asking
                .filter(|device| limits.may_hand_on(*device, second * NS))
                .count();
        }
        assert!(honest >= 50 * 80, "{honest} of 5000");
    }

    #[test]
    fn a_device_alone_may_have_more_than_its_share() {
        let mut limits = Limits::default();
        for second in 1..=20 {
            let got = (0..20)
                .filter(|_| limits.may_hand_on(DeviceId(1), second * NS))
                .count();
            assert_eq!(got, 10, "as its rows need that are renewed");
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut limits = Limits::default();
        for second in 1..=100 {
            for n in 0..500 {
                limits.may_hand_on(DeviceId(second * 500 + n), second * NS);
            }
            assert!(limits.whole_at.len() <= SHARES_MAX + 500);
        }
    }
}
