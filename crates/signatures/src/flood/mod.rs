//! When a receiver has the kernel drop datagrams that are no messages, or strangers' ones: reading each of them takes a microsecond, and
//! lanes may need the processor.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use socket2::SockFilter;

use crate::filter::{KNOWN_MAX, Tags};
use crate::message::KeyId;
use crate::reputation::Newcomers;
use crate::scheduler::{Source, Span, Time};

/// Datagrams are counted for so long at a time.
const WINDOW: Span = Span::from_millis(5);
/// A flood has so many of them in it: 50,000 a second.
const FLOOD: u64 = 250;
/// Of a flood, so many pass in it: 5,000 a second, which is what a receiver takes of new sources.
const PASSING: u64 = WINDOW.as_nanos() / Newcomers::INTERVAL.as_nanos();
/// Windows of the time for which they are counted while there is a filter, since few pass.
const WINDOWS: u64 = 20;
/// After so long a filter is made again, with those who have become known.
const RENEWED_AFTER: Span = Span::from_millis(1_000);
/// A sender of which nothing came for so long has no place in a filter.
const MEMORY: Span = Span::from_millis(60_000);
/// At least one of so many datagrams passes.
const SAMPLED_MAX: u64 = 1 << 16;
/// Strangers of whom a message was taken in last, and who may become known: more than pass a filter in a second.
const TAKEN_MAX: usize = 8_192;

/// What becomes of the filter of a receiver's socket.
pub(crate) enum Filter {
    /// It is put in the place of the one before.
    Set(Vec<SockFilter>),
    /// It is taken away.
    Remove,
}

/// A state machine, driven by the datagrams of one receiver.
pub(crate) struct Flood {
    tags: Tags,
    /// Known senders, and when they sent last.
    known: HashMap<u32, Time>,
    forgotten_at: Time,
    /// When a known sender had no place among these.
    too_many_at: Option<Time>,
    taken: VecDeque<(u32, Source)>,
    window_from: Time,
    seen: Seen,
    filter: Option<InForce>,
}

/// Datagrams of a window.
#[derive(Clone, Copy, Default)]
struct Seen {
    broken: u64,
    strangers: u64,
    /// Of these, messages that were refused at once.
    refused: u64,
    /// More of strangers' messages waited than lanes verify.
    crowded: bool,
}

/// Datagrams that came in a window, also those that a filter dropped.
#[derive(Clone, Copy)]
struct Came {
    /// What is no message, if that is a flood.
    broken: u64,
    /// Strangers' messages, if these are one.
    strangers: u64,
    windows: u64,
}

impl Came {
    /// Of so many one passes.
    fn sampled(self) -> u64 {
        let came = self.broken.saturating_add(self.strangers);
        (came / (PASSING * self.windows)).clamp(1, SAMPLED_MAX)
    }
}

/// The filter that a socket has.
#[derive(Clone, Copy)]
struct InForce {
    /// Whether strangers' messages are sampled, too, and not only what is no message.
    of_strangers: bool,
    sampled: u64,
    made_at: Time,
}

impl Flood {
    pub(crate) fn new(secret: &[u8; 16]) -> Self {
        Self {
            tags: Tags::new(secret),
            known: HashMap::new(),
            forgotten_at: Time::ZERO,
            too_many_at: None,
            taken: VecDeque::new(),
            window_from: Time::ZERO,
            seen: Seen::default(),
            filter: None,
        }
    }

    /// Notes a datagram of a known sender.
    pub(crate) fn known(&mut self, source: IpAddr, key: KeyId, now: Time) {
        self.has_become_known(self.tags.of(source, key), now);
    }

    fn has_become_known(&mut self, tag: u32, now: Time) {
        if self.known.len() >= KNOWN_MAX && !self.known.contains_key(&tag) {
            // Looking through all of them for each datagram would be a flood's work.
            if now.since(self.forgotten_at) >= RENEWED_AFTER {
                self.forget(now);
            }
            if self.known.len() >= KNOWN_MAX {
                self.too_many_at = Some(now);
                return;
            }
        }
        self.known.insert(tag, now);
    }

    fn forget(&mut self, now: Time) {
        self.forgotten_at = now;
        self.known.retain(|_, sent| now.since(*sent) < MEMORY);
    }

    /// Notes a message of a stranger, and whether more of them wait than lanes verify.
    pub(crate) fn stranger(&mut self, crowded: bool) {
        self.seen.strangers += 1;
        self.seen.crowded |= crowded;
    }

    /// Notes that a stranger's message was refused before its signature was computed.
    pub(crate) fn refused(&mut self) {
        self.seen.refused += 1;
    }

    /// Notes that a stranger's message was taken in. With it, the sender may become known.
    pub(crate) fn taken(&mut self, source: IpAddr, key: KeyId, sender: Source) {
        if self.taken.len() >= TAKEN_MAX {
            self.taken.pop_front();
        }
        self.taken.push_back((self.tags.of(source, key), sender));
    }

    /// Notes a datagram that is no message by its first bytes.
    pub(crate) fn broken(&mut self) {
        self.seen.broken += 1;
    }

    /// Whether the socket should have a filter.
    pub(crate) fn has_filter(&self) -> bool {
        self.filter.is_some()
    }

    /// The socket has none: the kernel did not take it, or it is another socket.
    pub(crate) fn has_lost_filter(&mut self) {
        self.filter = None;
    }

    /// What becomes of the filter, if anything. Call it after each few datagrams. `is_known` says whether a sender is known.
    pub(crate) fn next(&mut self, now: Time, is_known: impl Fn(Source) -> bool) -> Option<Filter> {
        let windows = if self.has_filter() { WINDOWS } else { 1 };
        // A window is longer when nothing came. It needs no more datagrams to count as a flood.
        if now.since(self.window_from) < WINDOW.times(windows) {
            return None;
        }
        self.window_from = now;
        let came = self.came(windows);
        let is_flood = came.broken + came.strangers > 0;
        let Some(filter) = self.filter else {
            return is_flood.then(|| self.make(came, now, is_known)).flatten();
        };
        if !is_flood {
            self.filter = None;
            return Some(Filter::Remove);
        }
        let is_old = now.since(filter.made_at) >= RENEWED_AFTER;
        let is_other = (came.strangers > 0) != filter.of_strangers
            || came.sampled() > 2 * filter.sampled
            || 2 * came.sampled() < filter.sampled;
        (is_old || is_other).then(|| self.make(came, now, is_known).unwrap_or(Filter::Remove))
    }

    /// What came in these windows, which end.
    fn came(&mut self, windows: u64) -> Came {
        let seen = std::mem::take(&mut self.seen);
        let of_strangers = self.filter.is_some_and(|filter| filter.of_strangers);
        let sampled = self.filter.map_or(1, |filter| filter.sampled);
        let of_messages = if of_strangers { sampled } else { 1 };
        let if_flood = |count: u64| if count >= FLOOD * windows { count } else { 0 };
        let refused = if_flood(seen.refused.saturating_mul(of_messages));
        let may_be = seen.crowded || refused > 0 || of_strangers;
        Came {
            broken: if_flood(seen.broken.saturating_mul(sampled)),
            strangers: if may_be {
                if_flood(seen.strangers.saturating_mul(of_messages))
            } else {
                0
            },
            windows,
        }
    }

    /// None of strangers' messages while there are too many known senders.
    fn make(&mut self, mut came: Came, now: Time, is_known: impl Fn(Source) -> bool) -> Option<Filter> {
        self.forget(now);
        for (tag, sender) in std::mem::take(&mut self.taken) {
            if is_known(sender) {
                self.has_become_known(tag, now);
            } else {
                self.taken.push_back((tag, sender));
            }
        }
        if self.too_many_at.is_some_and(|at| now.since(at) < MEMORY) {
            came.strangers = 0;
        }
        self.filter = None;
        if came.broken + came.strangers == 0 {
            return None;
        }
        let of_strangers = came.strangers > 0;
        self.filter = Some(InForce {
            of_strangers,
            sampled: came.sampled(),
            made_at: now,
        });
        let mut known: Vec<u32> = self.known.keys().copied().collect();
        let known = of_strangers.then_some(known.as_mut_slice());
        Some(Filter::Set(self.tags.filter(known, came.sampled())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    fn flood() -> Flood {
        Flood::new(&[4; 16])
    }

    fn next(flood: &mut Flood, ms: u64) -> Option<&'static str> {
        let filter = flood.next(at(ms), |sender| sender.0 == 7);
        filter.map(|filter| match filter {
            Filter::Set(_) => "set",
            Filter::Remove => "removed",
        })
    }

    /// In a window that ends then.
    fn strangers(flood: &mut Flood, count: u64, crowded: bool, ms: u64) -> Option<&'static str> {
        (0..count).for_each(|_| flood.stranger(crowded));
        next(flood, ms)
    }

    fn in_force(flood: &Flood) -> (bool, u64) {
        let filter = flood.filter.unwrap();
        (filter.of_strangers, filter.sampled)
    }

    #[test]
    fn many_strangers_are_filtered_while_lanes_are_behind_and_until_they_are_few() {
        let mut flood = flood();
        assert_eq!(
            strangers(&mut flood, FLOOD, false, 5),
            None,
            "lanes are not behind"
        );
        assert_eq!(strangers(&mut flood, FLOOD - 1, true, 10), None, "not many");
        assert_eq!(strangers(&mut flood, 10 * FLOOD, true, 14), None, "a window");
        assert_eq!(next(&mut flood, 15), Some("set"));
        assert_eq!(in_force(&flood), (true, 100));
        // What is counted is what the filter lets through, over longer times.
        let passing = PASSING * WINDOWS;
        assert_eq!(strangers(&mut flood, passing, false, 114), None);
        for ms in (115..=915).step_by(100) {
            assert_eq!(next(&mut flood, ms), None);
            (0..passing).for_each(|_| flood.stranger(false));
        }
        assert_eq!(next(&mut flood, 1_015), Some("set"), "a second later");
        assert_eq!(
            strangers(&mut flood, 50, true, 1_115),
            Some("set"),
            "of a flood of a tenth"
        );
        assert_eq!(in_force(&flood), (true, 10));
        assert_eq!(strangers(&mut flood, passing - 1, true, 1_215), Some("removed"));
        assert_eq!(strangers(&mut flood, FLOOD, true, 1_220), Some("set"));
    }

    /// The first 100 ms after a burst show that it is over.
    #[test]
    fn a_burst_is_no_flood() {
        let mut flood = flood();
        assert_eq!(strangers(&mut flood, 100 * FLOOD, true, 5), Some("set"));
        assert_eq!(in_force(&flood), (true, 1_000));
        assert_eq!(strangers(&mut flood, 4, true, 105), Some("removed"));
        assert_eq!(
            strangers(&mut flood, u64::from(u16::MAX) * 200, true, 110),
            Some("set")
        );
        assert_eq!(in_force(&flood), (true, SAMPLED_MAX));
    }

    /// What is no message is filtered whether or not lanes are behind, and strangers' messages are not.
    #[test]
    fn what_is_no_message_is_filtered_alone() {
        let mut flood = flood();
        let window = |flood: &mut Flood, broken: u64, of_strangers: u64, crowded, ms| {
            (0..broken).for_each(|_| flood.broken());
            strangers(flood, of_strangers, crowded, ms)
        };
        assert_eq!(window(&mut flood, FLOOD - 1, 0, true, 5), None);
        assert_eq!(window(&mut flood, 2 * FLOOD, 40, false, 10), Some("set"));
        assert_eq!(in_force(&flood), (false, 20));
        assert_eq!(window(&mut flood, 500, 20 * FLOOD, false, 110), None);
        assert_eq!(
            window(&mut flood, 500, 20 * FLOOD, true, 210),
            Some("set"),
            "of both"
        );
        assert_eq!(in_force(&flood), (true, 30));
        assert_eq!(window(&mut flood, 400, 0, true, 310), Some("set"));
        assert_eq!(in_force(&flood), (false, 24));
        assert_eq!(window(&mut flood, 0, 20 * FLOOD, false, 410), Some("removed"));
    }

    /// Old and repeated messages take no lane's time, but the receiving thread's.
    #[test]
    fn messages_that_are_refused_are_filtered_though_lanes_are_not_behind() {
        let mut flood = flood();
        (1..FLOOD).for_each(|_| flood.refused());
        assert_eq!(strangers(&mut flood, FLOOD, false, 5), None);
        (0..FLOOD).for_each(|_| flood.refused());
        assert_eq!(strangers(&mut flood, FLOOD, false, 10), Some("set"));
        assert_eq!(in_force(&flood), (true, 10));
    }

    #[test]
    fn who_has_become_known_is_in_the_next_filter() {
        let mut flood = flood();
        flood.taken(SOURCE, KeyId([7; 8]), Source(7));
        flood.taken(SOURCE, KeyId([8; 8]), Source(8));
        assert_eq!(strangers(&mut flood, FLOOD, true, 5), Some("set"));
        let tag = flood.tags.of(SOURCE, KeyId([7; 8]));
        assert_eq!(flood.known.keys().copied().collect::<Vec<_>>(), [tag]);
        assert_eq!(flood.taken.len(), 1, "the other may still be verified");
        for number in 0..2 * TAKEN_MAX as u64 {
            flood.taken(SOURCE, KeyId(number.to_be_bytes()), Source(number));
        }
        assert_eq!(flood.taken.len(), TAKEN_MAX);
    }

    /// What is no message is still filtered then.
    #[test]
    fn more_known_senders_than_a_filter_holds_have_none() {
        let mut flood = flood();
        let all = |flood: &mut Flood, count: u64, ms| {
            for number in 0..count {
                flood.known(SOURCE, KeyId(number.to_be_bytes()), at(ms));
            }
        };
        all(&mut flood, KNOWN_MAX as u64, 0);
        assert_eq!(strangers(&mut flood, FLOOD, true, 20), Some("set"));
        all(&mut flood, KNOWN_MAX as u64 + 1, 30);
        assert_eq!(strangers(&mut flood, 20 * FLOOD, true, 1_020), Some("removed"));
        (0..FLOOD).for_each(|_| flood.broken());
        assert_eq!(strangers(&mut flood, FLOOD, true, 1_025), Some("set"));
        assert_eq!(in_force(&flood), (false, 10));
        assert_eq!(next(&mut flood, 1_200), Some("removed"));
        // A minute later they are gone, but for one.
        all(&mut flood, 1, 60_100);
        assert_eq!(strangers(&mut flood, FLOOD, true, 61_100), Some("set"));
        assert_eq!(flood.known.len(), 1);
    }

    #[test]
    fn a_filter_that_was_not_taken_multiplies_nothing() {
        let mut flood = flood();
        assert_eq!(strangers(&mut flood, 10 * FLOOD, true, 5), Some("set"));
        assert!(flood.has_filter());
        flood.has_lost_filter();
        assert_eq!(strangers(&mut flood, 10 * FLOOD, true, 10), Some("set"));
        assert_eq!(in_force(&flood), (true, 100));
    }
}
