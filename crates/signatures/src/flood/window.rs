//! Datagrams of the last 100 ms, in slots of 5 ms by time of arrival.

use crate::scheduler::{Span, Time};

const SLOT: Span = Span::from_millis(5);
const SLOTS: usize = 20;
/// The time that a window covers.
pub(super) const WINDOW: Span = SLOT.times(SLOTS as u64);

/// Datagrams by kind. A sampled datagram counts for all datagrams that it represents.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub non_messages: u64,
    /// Messages of unknown senders.
    pub unknown_senders: u64,
    /// Messages of unknown senders that were refused before their signatures were verified.
    pub refused: u64,
    /// Whether the lanes were overloaded.
    pub is_overloaded: bool,
}

pub(super) struct Window {
    /// Completed slots, and the current one.
    slots: [Counts; SLOTS + 1],
    current: usize,
    /// When the current slot began.
    slot_start: Time,
    /// Whether a slot has ended since [`Window::advance`].
    has_ended: bool,
    /// Whether a datagram was counted since [`Window::advance`].
    has_counted: bool,
}

impl Window {
    pub(super) const fn new() -> Self {
        let empty = Counts {
            non_messages: 0,
            unknown_senders: 0,
            refused: 0,
            is_overloaded: false,
        };
        Self {
            slots: [empty; SLOTS + 1],
            current: 0,
            slot_start: Time::ZERO,
            has_ended: false,
            has_counted: false,
        }
    }

    /// The slot of a datagram that arrived at this time. Datagrams are counted in order of arrival.
    pub(super) fn slot(&mut self, arrived: Time) -> Option<&mut Counts> {
        self.end_slots(arrived);
        self.has_counted = true;
        self.slots.get_mut(self.current)
    }

    /// Whether a slot has ended since the last call. The arrival time of the latest datagram decides which slots have
    /// ended, since later datagrams may still wait in the socket's buffer. If no datagram was counted since the last
    /// call, `now` decides.
    pub(super) fn advance(&mut self, now: Time) -> bool {
        if !std::mem::take(&mut self.has_counted) {
            self.end_slots(now);
        }
        std::mem::take(&mut self.has_ended)
    }

    fn end_slots(&mut self, until: Time) {
        let ended = until.saturating_since(self.slot_start).as_nanos() / SLOT.as_nanos();
        self.slot_start = self.slot_start + SLOT.times(ended);
        self.has_ended |= ended > 0;
        for _ in 0..ended.min(self.slots.len() as u64) {
            self.current = (self.current + 1) % self.slots.len();
            if let Some(slot) = self.slots.get_mut(self.current) {
                *slot = Counts::default();
            }
        }
    }

    /// Datagrams of all completed slots.
    pub(super) fn total(&self) -> Counts {
        self.sum_of_latest(SLOTS)
    }

    /// Number of datagrams that a whole window would have at the rate of the last 10 ms.
    pub(super) fn projected(&self) -> Counts {
        const RECENT: usize = 2;
        let factor = (SLOTS / RECENT) as u64;
        let recent = self.sum_of_latest(RECENT);
        Counts {
            non_messages: recent.non_messages.saturating_mul(factor),
            unknown_senders: recent.unknown_senders.saturating_mul(factor),
            refused: recent.refused.saturating_mul(factor),
            ..recent
        }
    }

    /// The sum of the latest `count` completed slots.
    fn sum_of_latest(&self, count: usize) -> Counts {
        let (newer, older) = self.slots.split_at(self.current);
        let ended = newer.iter().rev().chain(older.iter().skip(1).rev());
        ended.take(count).fold(Counts::default(), |sum, slot| Counts {
            non_messages: sum.non_messages.saturating_add(slot.non_messages),
            unknown_senders: sum.unknown_senders.saturating_add(slot.unknown_senders),
            refused: sum.refused.saturating_add(slot.refused),
            is_overloaded: sum.is_overloaded | slot.is_overloaded,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    fn count_unknown(window: &mut Window, count: u64, ms: u64) {
        window.slot(at(ms)).unwrap().unknown_senders += count;
    }

    #[test]
    fn datagrams_count_for_the_length_of_a_window() {
        let mut window = Window::new();
        count_unknown(&mut window, 3, 4);
        assert!(!window.advance(at(4)));
        count_unknown(&mut window, 5, 12);
        assert!(window.advance(at(12)));
        count_unknown(&mut window, 7, 13);
        assert!(!window.advance(at(13)));
        assert_eq!(window.total().unknown_senders, 3);
        assert!(window.advance(at(104)));
        assert_eq!(window.total().unknown_senders, 15);
        assert_eq!(window.projected().unknown_senders, 0);
        assert!(window.advance(at(105)));
        assert_eq!(window.total().unknown_senders, 12);
        assert!(window.advance(at(115)));
        assert_eq!(window.total().unknown_senders, 0);
        count_unknown(&mut window, 9, 1_000);
        assert!(window.advance(at(1_000)));
        assert!(window.advance(at(1_005)));
        assert_eq!(window.total().unknown_senders, 9);
        count_unknown(&mut window, 2, 1_006);
        assert!(!window.advance(at(1_006)) && window.advance(at(1_010)));
        assert_eq!(window.total().unknown_senders, 11);
        assert_eq!(window.projected().unknown_senders, 110);
        assert!(window.advance(at(1_015)));
        assert_eq!(window.projected().unknown_senders, 20);
    }

    /// After a pause of the receiving thread, waiting datagrams count at their arrival.
    #[test]
    fn datagrams_that_waited_are_counted_by_arrival() {
        let mut window = Window::new();
        for ms in 1..=300 {
            count_unknown(&mut window, 10, ms);
            window.advance(at(400));
        }
        let total = window.total().unknown_senders;
        assert!((950..=1_050).contains(&total), "{total}");
    }
}
