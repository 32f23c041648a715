//! Decides when the kernel filters a flood: reading a datagram takes a microsecond, even if it is dropped at once.

mod filter;
mod senders;
mod window;

use std::net::IpAddr;

use socket2::SockFilter;

use self::filter::Tags;
use self::senders::Senders;
use self::window::{Counts, WINDOW, Window};
use crate::message::KeyId;
use crate::reputation::{MEMORY, Newcomers};
use crate::scheduler::{Source, Span, Time};

/// Datagrams of a window from which on they are a flood: 50,000 a second.
const FLOOD: u64 = 5_000;
/// A flood ends with fewer: 25,000 a second. At a rate between the two, filters would be attached and detached in turn.
const FLOOD_CONTINUES: u64 = FLOOD / 2;
/// Datagrams of a flood that pass a filter in a window: 5,000 a second, which is what a receiver takes of new senders.
const SAMPLE: u64 = WINDOW.as_nanos() / Newcomers::INTERVAL.as_nanos();
const SAMPLE_ONE_IN_MAX: u64 = 1 << 16;
/// A filter is built again after this time, with senders that have become known. One that the kernel rejected, too.
const REBUILT_AFTER: Span = Span::from_millis(1_000);

/// A change to the socket's filter.
pub(crate) enum FilterChange {
    /// Attach this program in place of the current one.
    Attach(Vec<SockFilter>),
    /// Detach the current program.
    Detach,
    /// None, although there is a flood of messages: more senders are known than a filter has room for.
    TooManySenders,
}

/// What the socket's filter does with datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filtering {
    /// Of the datagrams that are sampled, one in this number passes.
    pub sample_one_in: u64,
    /// Senders whose messages pass. Without a number all messages pass, and only datagrams that are not messages are sampled.
    pub known_senders: Option<usize>,
}

/// A state machine, driven by the datagrams of one receiver.
pub(crate) struct Flood {
    tags: Tags,
    senders: Senders,
    window: Window,
    filter: Option<AttachedFilter>,
    /// The kernel has rejected a filter: none is built before.
    retry_at: Time,
    /// The kernel has rejected a filter of messages: all messages pass until then.
    messages_pass_until: Time,
}

struct AttachedFilter {
    /// Tags whose messages pass, sorted. `None`: all messages pass.
    tags: Option<Vec<u32>>,
    sample_one_in: u64,
    attached_at: Time,
}

impl AttachedFilter {
    /// How many datagrams of a kind one that has arrived stands for.
    fn weight(&self, is_sampled: bool, arrived: Time) -> u64 {
        if is_sampled && arrived >= self.attached_at {
            self.sample_one_in
        } else {
            1
        }
    }
}

/// A stranger's message that was counted.
#[derive(Clone, Copy)]
pub(crate) struct Stranger {
    tag: u32,
    weight: u64,
    arrived: Time,
}

/// Floods by kind.
#[derive(Clone, Copy)]
struct Floods {
    non_messages: bool,
    strangers: bool,
    /// Datagrams of a window, of these kinds.
    datagrams: u64,
    /// Whether there is one of strangers' messages, which pass since too many senders are known.
    too_many_senders: bool,
}

impl Floods {
    fn sample_one_in(self) -> u64 {
        (self.datagrams / SAMPLE).clamp(1, SAMPLE_ONE_IN_MAX)
    }
}

impl Flood {
    pub(crate) fn new(secret: &[u8; 16]) -> Self {
        Self {
            tags: Tags::new(secret),
            senders: Senders::default(),
            window: Window::new(),
            filter: None,
            retry_at: Time::ZERO,
            messages_pass_until: Time::ZERO,
        }
    }

    fn count(&mut self, arrived: Time, count: impl FnOnce(&mut Counts)) {
        if let Some(slot) = self.window.slot(arrived) {
            count(slot);
        }
    }

    /// Records a message of a known sender.
    pub(crate) fn record_known(&mut self, source: IpAddr, key: KeyId, arrived: Time) {
        self.senders.record_known(self.tags.of(source, key), arrived);
        self.count(arrived, |_| {});
    }

    /// Records a message of a stranger, and whether more of them wait than lanes verify.
    pub(crate) fn record_stranger(
        &mut self,
        source: IpAddr,
        key: KeyId,
        arrived: Time,
        is_crowded: bool,
    ) -> Stranger {
        let tag = self.tags.of(source, key);
        self.senders.forget(tag);
        let weight = self.filter.as_ref().map_or(1, |filter| {
            let passing = filter.tags.as_ref();
            filter.weight(
                passing.is_some_and(|tags| tags.binary_search(&tag).is_err()),
                arrived,
            )
        });
        self.count(arrived, |slot| {
            slot.strangers = slot.strangers.saturating_add(weight);
            slot.is_crowded |= is_crowded;
        });
        Stranger { tag, weight, arrived }
    }

    /// Records that a stranger's message was refused before its signature was verified.
    pub(crate) fn record_refusal(&mut self, stranger: Stranger) {
        self.count(stranger.arrived, |slot| {
            slot.refused = slot.refused.saturating_add(stranger.weight);
        });
    }

    /// Records that a stranger's message will be verified, so that the sender may become known.
    pub(crate) fn record_candidate(&mut self, stranger: Stranger, sender: Source) {
        self.senders.record_candidate(stranger.tag, sender);
    }

    /// Records a datagram that is not a message by its length and first bytes.
    pub(crate) fn record_non_message(&mut self, arrived: Time) {
        let weight = self
            .filter
            .as_ref()
            .map_or(1, |filter| filter.weight(true, arrived));
        self.count(arrived, |slot| {
            slot.non_messages = slot.non_messages.saturating_add(weight);
        });
    }

    /// What the socket's filter does. `None`: it should have none.
    pub(crate) fn filtering(&self) -> Option<Filtering> {
        self.filter.as_ref().map(|filter| Filtering {
            sample_one_in: filter.sample_one_in,
            known_senders: filter.tags.as_ref().map(Vec::len),
        })
    }

    /// Records that the kernel has rejected the filter.
    pub(crate) fn record_rejection(&mut self, now: Time) {
        if self.filter.take().is_some_and(|filter| filter.tags.is_some()) {
            // One of datagrams that are not messages is a hundred times smaller.
            self.messages_pass_until = now + MEMORY;
        } else {
            self.retry_at = now + REBUILT_AFTER;
        }
    }

    /// Records that the socket is a new one, which has no filter.
    pub(crate) fn record_new_socket(&mut self) {
        self.filter = None;
    }

    /// Returns the change to make to the filter. Call after every receive. `is_known` says whether a sender is known.
    pub(crate) fn update(&mut self, now: Time, is_known: impl Fn(Source) -> bool) -> Option<FilterChange> {
        if !self.window.advance(now) || now < self.retry_at {
            return None;
        }
        let floods = self.floods(now);
        let change = if self.is_out_of_date(floods, now) {
            let had_filter = self.filter.is_some();
            let program = self.build(floods, now, is_known).map(FilterChange::Attach);
            program.or(had_filter.then_some(FilterChange::Detach))
        } else {
            None
        };
        change.or(floods.too_many_senders.then_some(FilterChange::TooManySenders))
    }

    fn is_out_of_date(&self, floods: Floods, now: Time) -> bool {
        let Some(filter) = &self.filter else {
            return floods.datagrams > 0;
        };
        let samples = floods.sample_one_in();
        floods.datagrams == 0
            || now.since(filter.attached_at) >= REBUILT_AFTER
            || floods.strangers != filter.tags.is_some()
            || samples > 2 * filter.sample_one_in
            || 2 * samples < filter.sample_one_in
    }

    fn floods(&self, now: Time) -> Floods {
        let (total, projected) = (self.window.total(), self.window.projected());
        let samples_messages = self.filter.as_ref().map(|filter| filter.tags.is_some());
        let is_flood = |count: u64, continues: bool| count >= if continues { FLOOD_CONTINUES } else { FLOOD };
        let continues = samples_messages == Some(true);
        let is_cause = total.is_crowded || total.refused >= FLOOD || continues;
        let too_many_senders = self.senders.are_too_many(now);
        let messages_pass = now < self.messages_pass_until || too_many_senders;
        let non_messages = is_flood(total.non_messages, samples_messages.is_some());
        let of_strangers = is_cause && is_flood(total.strangers, continues);
        let strangers = of_strangers && !messages_pass;
        // A large flood is sampled as one before it has lasted for a window.
        let of = |is_flood: bool, total: u64, projected: u64| if is_flood { total.max(projected) } else { 0 };
        Floods {
            non_messages,
            strangers,
            too_many_senders: of_strangers && too_many_senders,
            datagrams: of(non_messages, total.non_messages, projected.non_messages).saturating_add(of(
                strangers,
                total.strangers,
                projected.strangers,
            )),
        }
    }

    /// Returns `None` if there is no flood, or one of strangers' messages alone while too many senders are known.
    fn build(
        &mut self,
        floods: Floods,
        now: Time,
        is_known: impl Fn(Source) -> bool,
    ) -> Option<Vec<SockFilter>> {
        self.filter = None;
        let mut tags = floods.strangers.then(|| self.senders.tags(now, is_known));
        if self.senders.are_too_many(now) {
            tags = None;
        }
        if tags.is_none() && !floods.non_messages {
            return None;
        }
        if let Some(tags) = &mut tags {
            tags.sort_unstable();
        }
        let sample_one_in = floods.sample_one_in();
        let program = self.tags.program(tags.as_deref(), sample_one_in);
        self.filter = Some(AttachedFilter {
            tags,
            sample_one_in,
            attached_at: now,
        });
        Some(program)
    }
}

#[cfg(test)]
mod tests {
    use super::filter::KNOWN_MAX;
    use super::*;

    const SOURCE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const STRANGER: KeyId = KeyId([9; 8]);

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    fn flood() -> Flood {
        Flood::new(&[4; 16])
    }

    /// Twice: the time of the second call counts, since no datagram came after the first one.
    fn update(flood: &mut Flood, ms: u64) -> Option<&'static str> {
        let update = |flood: &mut Flood| flood.update(at(ms), |sender| sender.0 == 7);
        update(flood)
            .or_else(|| update(flood))
            .map(|change| match change {
                FilterChange::Attach(_) => "attach",
                FilterChange::Detach => "detach",
                FilterChange::TooManySenders => "too many senders",
            })
    }

    /// In the 5 ms before.
    fn strangers(flood: &mut Flood, count: u64, is_crowded: bool, ms: u64) -> Option<&'static str> {
        for _ in 0..count {
            flood.record_stranger(SOURCE, STRANGER, at(ms - 1), is_crowded);
        }
        update(flood, ms)
    }

    fn non_messages(flood: &mut Flood, count: u64, ms: u64) {
        (0..count).for_each(|_| flood.record_non_message(at(ms - 1)));
    }

    /// So many are sent in each 5 ms of a time, and the filter drops most of them; the changes to the filter.
    fn steady(flood: &mut Flood, sent: u64, is_crowded: bool, ms: std::ops::Range<u64>) -> Vec<&'static str> {
        let mut changes = Vec::new();
        for ms in ms.step_by(5) {
            let samples = match flood.filtering() {
                Some(filtering) if filtering.known_senders.is_some() => filtering.sample_one_in,
                _ => 1,
            };
            changes.extend(strangers(flood, sent / samples, is_crowded, ms));
        }
        changes
    }

    /// Whether strangers' messages are sampled, and one in how many datagrams passes.
    fn sampling(flood: &Flood) -> (bool, u64) {
        let filtering = flood.filtering().unwrap();
        (filtering.known_senders.is_some(), filtering.sample_one_in)
    }

    #[test]
    fn strangers_are_filtered_while_lanes_are_behind_and_until_they_are_few() {
        let mut flood = flood();
        assert_eq!(
            steady(&mut flood, 300, false, 5..500),
            [""; 0],
            "lanes are not behind"
        );
        assert_eq!(steady(&mut flood, 240, true, 600..1_000), [""; 0], "not many");
        assert_eq!(steady(&mut flood, 2_500, true, 1_100..1_110), ["attach"]);
        assert_eq!(sampling(&flood), (true, 100), "as if it had lasted for a window");
        assert_eq!(
            steady(&mut flood, 2_500, false, 1_110..2_000),
            [""; 0],
            "lanes are not behind any more"
        );
        assert_eq!(
            steady(&mut flood, 2_500, true, 2_000..2_300),
            ["attach"],
            "a second later"
        );
        assert_eq!(
            steady(&mut flood, 250, true, 2_300..2_600),
            ["attach"; 3],
            "of a flood of a tenth"
        );
        assert_eq!(steady(&mut flood, 50, true, 2_600..2_800).last(), Some(&"detach"));
        assert_eq!(steady(&mut flood, 240, true, 2_800..4_000), [""; 0]);
    }

    /// 50,000 a second attach a filter, and 25,000 a second keep it.
    #[test]
    fn a_steady_rate_does_not_attach_and_detach_in_turn() {
        let mut flood = flood();
        assert_eq!(steady(&mut flood, 250, true, 5..110), ["attach"]);
        assert_eq!(sampling(&flood), (true, 10));
        let changes = steady(&mut flood, 150, true, 110..3_000);
        assert!(changes.len() < 5 && !changes.contains(&"detach"), "{changes:?}");
        assert_eq!(
            steady(&mut flood, 100, true, 3_000..3_300).last(),
            Some(&"detach")
        );
    }

    #[test]
    fn a_filter_is_detached_100_ms_after_a_burst() {
        let mut flood = flood();
        assert_eq!(
            strangers(&mut flood, FLOOD - 1, true, 5),
            None,
            "a receiver takes them"
        );
        assert_eq!(update(&mut flood, 105), None);
        assert_eq!(strangers(&mut flood, 100 * FLOOD, true, 110), Some("attach"));
        assert_eq!(sampling(&flood), (true, 10_000));
        assert_eq!(
            steady(&mut flood, 0, true, 115..210),
            ["attach"],
            "not at that rate"
        );
        assert_eq!(sampling(&flood), (true, 1_000));
        assert_eq!(update(&mut flood, 210), Some("detach"));
        let many = SAMPLE * (SAMPLE_ONE_IN_MAX + 1);
        flood.count(at(219), |slot| {
            slot.strangers = many;
            slot.is_crowded = true;
        });
        assert_eq!(update(&mut flood, 220), Some("attach"));
        assert_eq!(sampling(&flood), (true, SAMPLE_ONE_IN_MAX));
    }

    /// What is not a message is filtered whether or not lanes are behind.
    #[test]
    fn non_messages_are_filtered_without_strangers_messages() {
        let mut flood = flood();
        non_messages(&mut flood, FLOOD - 1, 5);
        assert_eq!(update(&mut flood, 5), None);
        non_messages(&mut flood, FLOOD + 1, 10);
        assert_eq!(strangers(&mut flood, FLOOD, false, 10), Some("attach"));
        assert_eq!(sampling(&flood), (false, 200));
        assert_eq!(
            strangers(&mut flood, FLOOD, true, 15),
            Some("attach"),
            "of both now"
        );
        assert_eq!(sampling(&flood), (true, 300));
        assert_eq!(update(&mut flood, 115), Some("detach"));
    }

    /// Old and repeated messages use no lane's time, but the receiving thread's.
    #[test]
    fn refused_messages_are_filtered_though_lanes_are_not_behind() {
        let mut flood = flood();
        for _ in 0..FLOOD {
            let stranger = flood.record_stranger(SOURCE, STRANGER, at(4), false);
            flood.record_refusal(stranger);
        }
        assert_eq!(update(&mut flood, 5), Some("attach"));
        assert_eq!(sampling(&flood), (true, 100));
    }

    /// Otherwise few datagrams would be taken for a flood.
    #[test]
    fn what_no_filter_sampled_counts_once() {
        let mut flood = flood();
        flood.record_known(SOURCE, KeyId([1; 8]), at(1));
        assert_eq!(strangers(&mut flood, 10 * FLOOD, true, 5), Some("attach"));
        let weight = |flood: &mut Flood, key, ms| flood.record_stranger(SOURCE, key, at(ms), true).weight;
        assert_eq!(weight(&mut flood, STRANGER, 4), 1, "arrived before the filter");
        assert_eq!(weight(&mut flood, STRANGER, 6), 1_000);
        assert_eq!(weight(&mut flood, KeyId([1; 8]), 6), 1, "passes the filter");
        non_messages(&mut flood, 1, 6);
        assert_eq!(flood.window.slot(at(6)).unwrap().non_messages, 1_000);
        // It was not known any more: the next filter samples it.
        assert_eq!(update(&mut flood, 10), None);
        assert_eq!(update(&mut flood, 1_010), Some("detach"));
        assert_eq!(strangers(&mut flood, FLOOD, true, 1_015), Some("attach"));
        assert_eq!(weight(&mut flood, KeyId([1; 8]), 1_016), 100);
        // All messages pass a filter of what is not a message.
        let mut flood = self::flood();
        non_messages(&mut flood, 10 * FLOOD, 5);
        assert_eq!(update(&mut flood, 5), Some("attach"));
        assert_eq!(weight(&mut flood, STRANGER, 6), 1);
    }

    #[test]
    fn a_new_known_sender_is_in_the_next_filter() {
        let mut flood = flood();
        for sender in [7, 8] {
            let stranger = flood.record_stranger(SOURCE, KeyId([sender; 8]), at(4), true);
            flood.record_candidate(stranger, Source(sender.into()));
        }
        assert_eq!(strangers(&mut flood, FLOOD, true, 5), Some("attach"));
        let tag = flood.tags.of(SOURCE, KeyId([7; 8]));
        assert_eq!(flood.filter.unwrap().tags, Some(vec![tag]));
    }

    /// What is not a message is still filtered then.
    #[test]
    fn more_than_1024_known_senders_disable_the_filter_of_messages() {
        let mut flood = flood();
        let all = |flood: &mut Flood, count: u64, ms| {
            for number in 0..count {
                flood.record_known(SOURCE, KeyId(number.to_be_bytes()), at(ms));
            }
        };
        all(&mut flood, KNOWN_MAX as u64, 1);
        assert_eq!(strangers(&mut flood, FLOOD, true, 20), Some("attach"));
        all(&mut flood, KNOWN_MAX as u64 + 1, 30);
        assert_eq!(strangers(&mut flood, FLOOD, true, 35), Some("detach"));
        assert_eq!(update(&mut flood, 40), Some("too many senders"));
        non_messages(&mut flood, FLOOD, 45);
        assert_eq!(update(&mut flood, 45), Some("attach"));
        assert_eq!(sampling(&flood), (false, 100));
        assert_eq!(update(&mut flood, 240), Some("detach"));
        // A minute later they are gone, but for one.
        all(&mut flood, 1, 60_100);
        assert_eq!(strangers(&mut flood, FLOOD, true, 61_100), Some("attach"));
        assert_eq!(flood.filter.unwrap().tags.unwrap().len(), 1);
    }

    #[test]
    fn a_filter_that_the_kernel_rejects_is_not_tried_again_at_once() {
        let mut flood = flood();
        non_messages(&mut flood, 10 * FLOOD, 5);
        assert_eq!(strangers(&mut flood, 10 * FLOOD, true, 5), Some("attach"));
        flood.record_rejection(at(5));
        assert!(flood.filtering().is_none());
        assert_eq!(update(&mut flood, 10), Some("attach"), "the small one");
        assert_eq!(sampling(&flood), (false, 1_000));
        flood.record_rejection(at(10));
        assert_eq!(steady(&mut flood, FLOOD, true, 15..1_005), [""; 0]);
        assert_eq!(
            strangers(&mut flood, FLOOD, true, 60_000),
            None,
            "messages pass for a minute"
        );
        assert_eq!(strangers(&mut flood, FLOOD, true, 60_010), Some("attach"));
    }

    #[test]
    fn a_new_socket_gets_a_filter_soon() {
        let mut flood = flood();
        assert_eq!(strangers(&mut flood, 10 * FLOOD, true, 5), Some("attach"));
        flood.record_new_socket();
        assert_eq!(strangers(&mut flood, 1, true, 10), Some("attach"));
        assert_eq!(sampling(&flood), (true, 1_000));
    }
}
