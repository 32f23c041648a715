//! Decides when the kernel filters a flood. Without a filter, the receiving thread needs a microsecond to read each
//! datagram, even a datagram that it then drops.

mod filter;
mod senders;
mod window;

use std::net::IpAddr;

use socket2::SockFilter;

use self::filter::Tags;
use self::senders::Senders;
use self::window::{Counts, WINDOW, Window};
use crate::message::KeyId;
use crate::reputation::{ENTRY_LIFETIME, NewSenderLimit};
use crate::scheduler::{Source, Span, Time};

/// Minimum age of a filter that is replaced only to change its sample rate.
const FILTER_AGE_MIN: Span = Span::from_millis(50);
/// Number of datagrams in a window from which on the datagrams count as a flood: 50,000 a second.
const FLOOD_MIN: u64 = 5_000;
/// A flood ends below this number of datagrams in a window: 25,000 a second. With a single threshold, a rate near the
/// threshold would alternately attach and detach filters.
const FLOOD_CONTINUES_MIN: u64 = FLOOD_MIN / 2;
/// Number of datagrams of a flood that should pass a filter in a window: 5,000 a second, the receiver's rate limit of
/// new senders.
const SAMPLE_PER_WINDOW: u64 = WINDOW.as_nanos() / NewSenderLimit::INTERVAL.as_nanos();
/// Greatest sample ratio: at least one in this number of datagrams passes.
const SAMPLE_ONE_IN_MAX: u64 = 1 << 16;
/// A filter is rebuilt after this time, to include new known senders. A rejected filter of non-messages is retried after this time.
const REBUILD_INTERVAL: Span = Span::from_millis(1_000);

/// A change to the socket's filter.
pub(crate) enum FilterChange {
    /// Replace the current program, if there is one, with this program.
    Attach(Vec<SockFilter>),
    /// Detach the current program, if there is one. With `too_many_senders`, a flood of messages passes, because more
    /// senders are known than a filter can hold; otherwise the flood has ended.
    Detach { too_many_senders: bool },
}

/// What the socket's filter does with datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterStatus {
    /// One in this number of the sampled datagrams passes.
    pub sample_one_in: u64,
    /// Number of known senders whose messages pass. `None`: all messages pass, and only datagrams that are not messages are sampled.
    pub known_senders: Option<usize>,
}

/// State of the detection of floods and of the filter, driven by the datagrams of one receiver.
pub(crate) struct Flood {
    tags: Tags,
    senders: Senders,
    window: Window,
    filter: Option<Filter>,
    /// The previous filter, for datagrams that arrived before the current one was attached.
    previous: Option<Filter>,
    /// A flood passes without a filter, and its end has not been reported yet.
    is_unfiltered: bool,
    /// No filter is built before this time, since the kernel rejected one.
    retry_at: Time,
    /// No filter of messages is built before this time, since the kernel rejected one.
    messages_pass_until: Time,
}

/// A filter of the socket.
struct Filter {
    /// Tags whose messages pass, sorted. `None`: all messages pass.
    tags: Option<Vec<u32>>,
    sample_one_in: u64,
    /// The filter samples datagrams from this time on.
    attached_at: Time,
    /// The filter samples datagrams before this time.
    detached_at: Time,
}

impl Filter {
    fn samples_at(&self, time: Time) -> bool {
        self.attached_at <= time && time < self.detached_at
    }

    fn samples_messages_of(&self, tag: u32) -> bool {
        let passing = self.tags.as_ref();
        passing.is_some_and(|tags| tags.binary_search(&tag).is_err())
    }
}

/// A message of an unknown sender that has been counted.
#[derive(Clone, Copy)]
pub(crate) struct UnknownSenderMessage {
    tag: u32,
    sender: Source,
    /// Number of datagrams that the message represents, see [`Flood::weight`].
    weight: u64,
    arrived: Time,
}

/// Current floods by kind.
#[derive(Clone, Copy)]
struct ActiveFloods {
    non_messages: bool,
    unknown_senders: bool,
    /// Datagrams of these kinds in a window.
    datagrams: u64,
    /// Whether a flood of messages of unknown senders passes unfiltered; with `too_many_senders`, because too many senders are known.
    passes_unfiltered: bool,
    too_many_senders: bool,
}

impl ActiveFloods {
    fn sample_one_in(self) -> u64 {
        (self.datagrams / SAMPLE_PER_WINDOW).clamp(1, SAMPLE_ONE_IN_MAX)
    }
}

impl Flood {
    pub(crate) fn new(secret: &[u8; 16]) -> Self {
        Self {
            tags: Tags::new(secret),
            senders: Senders::default(),
            window: Window::new(),
            filter: None,
            previous: None,
            is_unfiltered: false,
            retry_at: Time::ZERO,
            messages_pass_until: Time::ZERO,
        }
    }

    fn count(&mut self, arrived: Time, update: impl FnOnce(&mut Counts)) {
        if let Some(slot) = self.window.slot(arrived) {
            update(slot);
        }
    }

    /// The number of datagrams that one received datagram represents. If the filter that was attached at the datagram's
    /// arrival samples datagrams of this kind, the number is the filter's sample ratio, otherwise 1.
    fn weight(&self, arrived: Time, is_sampled: impl Fn(&Filter) -> bool) -> u64 {
        let filters = [&self.filter, &self.previous].into_iter().flatten();
        let mut filters_at_arrival = filters.filter(|filter| filter.samples_at(arrived));
        filters_at_arrival
            .next()
            .filter(|filter| is_sampled(filter))
            .map_or(1, |filter| filter.sample_one_in)
    }

    /// Records a message of a known sender.
    pub(crate) fn record_known(&mut self, source: IpAddr, key: KeyId, sender: Source, arrived: Time) {
        self.senders
            .record_known(self.tags.of(source, key), sender, arrived);
        self.record_passing(arrived);
    }

    /// Records a datagram that no filter drops. Such a datagram only advances the time of the window.
    pub(crate) fn record_passing(&mut self, arrived: Time) {
        self.count(arrived, |_| {});
    }

    /// Records a message of an unknown sender, and whether the lanes are overloaded.
    pub(crate) fn record_unknown_sender(
        &mut self,
        source: IpAddr,
        key: KeyId,
        sender: Source,
        (arrived, is_overloaded): (Time, bool),
    ) -> UnknownSenderMessage {
        let tag = self.tags.of(source, key);
        self.senders.forget(tag, sender);
        let weight = self.weight(arrived, |filter| filter.samples_messages_of(tag));
        self.count(arrived, |slot| {
            slot.unknown_senders = slot.unknown_senders.saturating_add(weight);
            slot.is_overloaded |= is_overloaded;
        });
        UnknownSenderMessage {
            tag,
            sender,
            weight,
            arrived,
        }
    }

    /// Records that the message of an unknown sender was refused before its signature was verified.
    pub(crate) fn record_refusal(&mut self, message: UnknownSenderMessage) {
        self.count(message.arrived, |slot| {
            slot.refused = slot.refused.saturating_add(message.weight);
        });
    }

    /// Records that the message of an unknown sender will be verified, so that the sender may become known.
    pub(crate) fn record_candidate(&mut self, message: UnknownSenderMessage) {
        self.senders
            .record_candidate(message.tag, message.sender, message.arrived);
    }

    /// Records a datagram that is not a message by its length and first bytes.
    pub(crate) fn record_non_message(&mut self, arrived: Time) {
        let weight = self.weight(arrived, |_| true);
        self.count(arrived, |slot| {
            slot.non_messages = slot.non_messages.saturating_add(weight);
        });
    }

    /// What the socket's filter does. `None`: the socket should have no filter.
    pub(crate) fn filter_status(&self) -> Option<FilterStatus> {
        self.filter.as_ref().map(|filter| FilterStatus {
            sample_one_in: filter.sample_one_in,
            known_senders: filter.tags.as_ref().map(Vec::len),
        })
    }

    /// Records that the filter was attached. With `replaced`, the previous filter sampled datagrams until now.
    pub(crate) fn record_attached(&mut self, now: Time, replaced: bool) {
        if let Some(filter) = &mut self.filter {
            filter.attached_at = now;
        }
        if let Some(previous) = self.previous.as_mut().filter(|_| replaced) {
            previous.detached_at = now;
        }
    }

    /// Records that the kernel rejected the filter.
    pub(crate) fn record_rejection(&mut self, now: Time) {
        self.is_unfiltered = true;
        if self.filter.take().is_some_and(|filter| filter.tags.is_some()) {
            // A filter that samples only non-messages is a hundred times smaller, so the kernel may accept such a
            // filter.
            self.messages_pass_until = now + ENTRY_LIFETIME;
        } else {
            self.retry_at = now + REBUILD_INTERVAL;
        }
    }

    /// Records that the socket was replaced and has no filter.
    pub(crate) fn record_new_socket(&mut self, now: Time) {
        self.retire_filter(now);
    }

    /// The current filter becomes the previous one.
    fn retire_filter(&mut self, now: Time) {
        if let Some(filter) = self.filter.take() {
            self.previous = Some(Filter {
                detached_at: now,
                ..filter
            });
        }
    }

    /// Returns the change to make to the filter. Call after every receive, after recording all datagrams that had arrived at
    /// `received_until`. `is_known` returns whether a sender is known.
    pub(crate) fn update(
        &mut self,
        now: Time,
        received_until: Time,
        is_known: impl Fn(Source) -> bool,
    ) -> Option<FilterChange> {
        if !self.window.advance(received_until) || now < self.retry_at {
            return None;
        }
        let floods = self.active_floods(now);
        let ActiveFloods { too_many_senders, .. } = floods;
        if self.is_outdated(floods, now) {
            let had_filter = self.filter.is_some();
            if let Some(program) = self.build(floods, now, is_known) {
                self.is_unfiltered = false;
                return Some(FilterChange::Attach(program));
            }
            if had_filter {
                // No filter was built. If there is a flood of messages of unknown senders, too many senders have just become known.
                let too_many_senders = too_many_senders || floods.unknown_senders;
                self.is_unfiltered = too_many_senders;
                return Some(FilterChange::Detach { too_many_senders });
            }
        }
        if self.filter.is_none() && (too_many_senders || self.is_unfiltered && !floods.passes_unfiltered) {
            self.is_unfiltered = too_many_senders;
            return Some(FilterChange::Detach { too_many_senders });
        }
        None
    }

    /// Whether a filter must be attached, replaced or detached.
    fn is_outdated(&self, floods: ActiveFloods, now: Time) -> bool {
        let Some(filter) = &self.filter else {
            return floods.datagrams > 0;
        };
        let (samples, age) = (floods.sample_one_in(), now.saturating_since(filter.attached_at));
        floods.datagrams == 0
            || floods.unknown_senders != filter.tags.is_some()
            || age >= REBUILD_INTERVAL
            || age >= FILTER_AGE_MIN
                && (samples > 2 * filter.sample_one_in || 2 * samples < filter.sample_one_in)
    }

    fn active_floods(&self, now: Time) -> ActiveFloods {
        let (total, projected) = (self.window.total(), self.window.projected());
        let samples_messages = self.filter.as_ref().map(|filter| filter.tags.is_some());
        let is_flood =
            |count: u64, continues: bool| count >= if continues { FLOOD_CONTINUES_MIN } else { FLOOD_MIN };
        let is_sampling_messages = samples_messages == Some(true);
        let may_sample_messages = total.is_overloaded || total.refused >= FLOOD_MIN || is_sampling_messages;
        let too_many_senders = self.senders.is_overflowed(now);
        let messages_pass = now < self.messages_pass_until || too_many_senders;
        let non_messages = is_flood(total.non_messages, samples_messages.is_some());
        let has_message_flood = may_sample_messages && is_flood(total.unknown_senders, is_sampling_messages);
        let unknown_senders = has_message_flood && !messages_pass;
        // A large flood gets the sample ratio for its full rate even before the flood has lasted for a window.
        let count_of =
            |is_flood: bool, total: u64, projected: u64| if is_flood { total.max(projected) } else { 0 };
        ActiveFloods {
            non_messages,
            unknown_senders,
            passes_unfiltered: has_message_flood && messages_pass,
            too_many_senders: has_message_flood && too_many_senders,
            datagrams: count_of(non_messages, total.non_messages, projected.non_messages).saturating_add(
                count_of(unknown_senders, total.unknown_senders, projected.unknown_senders),
            ),
        }
    }

    /// Builds a filter for the current floods. Returns `None` if there is no flood, or if the only flood consists of
    /// messages of unknown senders and too many senders are known.
    fn build(
        &mut self,
        floods: ActiveFloods,
        now: Time,
        is_known: impl Fn(Source) -> bool,
    ) -> Option<Vec<SockFilter>> {
        self.retire_filter(now);
        let mut tags = floods.unknown_senders.then(|| self.senders.tags(now, is_known));
        if self.senders.is_overflowed(now) {
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
        self.filter = Some(Filter {
            tags,
            sample_one_in,
            attached_at: now,
            detached_at: Time::NEVER,
        });
        Some(program)
    }
}

#[cfg(test)]
mod tests {
    use super::filter::KNOWN_MAX;
    use super::*;

    const SOURCE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const UNKNOWN_KEY: KeyId = KeyId([9; 8]);
    const SENDER: Source = Source(1);

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    fn flood() -> Flood {
        Flood::new(&[4; 16])
    }

    /// Updates the filter, if necessary twice: the second call uses the current time, since no datagram arrived after
    /// the first call.
    fn update(flood: &mut Flood, ms: u64) -> Option<&'static str> {
        let update = |flood: &mut Flood| flood.update(at(ms), at(ms), |sender| sender.0 == 7);
        let replaced = flood.filter.is_some();
        let change = update(flood).or_else(|| update(flood))?;
        Some(match change {
            FilterChange::Attach(_) => {
                flood.record_attached(at(ms), replaced);
                "attach"
            }
            FilterChange::Detach {
                too_many_senders: false,
            } => "detach",
            FilterChange::Detach {
                too_many_senders: true,
            } => "too many senders",
        })
    }

    fn unknown_message(flood: &mut Flood, key: KeyId, ms: u64) -> UnknownSenderMessage {
        flood.record_unknown_sender(SOURCE, key, SENDER, (at(ms), true))
    }

    /// Records messages that an unknown sender sent in the previous 5 ms, and updates the filter.
    fn send_unknown(flood: &mut Flood, count: u64, is_overloaded: bool, ms: u64) -> Option<&'static str> {
        for _ in 0..count {
            flood.record_unknown_sender(SOURCE, UNKNOWN_KEY, SENDER, (at(ms - 1), is_overloaded));
        }
        update(flood, ms)
    }

    fn non_messages(flood: &mut Flood, count: u64, ms: u64) {
        (0..count).for_each(|_| flood.record_non_message(at(ms - 1)));
    }

    /// Sends `sent` datagrams in each 5 ms, of which the filter drops most; returns the changes to the filter.
    fn send_steadily(
        flood: &mut Flood,
        sent: u64,
        is_overloaded: bool,
        ms: std::ops::Range<u64>,
    ) -> Vec<&'static str> {
        let mut changes = Vec::new();
        for ms in ms.step_by(5) {
            let samples = match flood.filter_status() {
                Some(status) if status.known_senders.is_some() => status.sample_one_in,
                _ => 1,
            };
            changes.extend(send_unknown(flood, sent / samples, is_overloaded, ms));
        }
        changes
    }

    /// Whether messages of unknown senders are sampled, and the sample ratio.
    fn sampling(flood: &Flood) -> (bool, u64) {
        let status = flood.filter_status().unwrap();
        (status.known_senders.is_some(), status.sample_one_in)
    }

    #[test]
    fn unknown_senders_are_filtered_from_overload_until_the_flood_ends() {
        let mut flood = flood();
        assert_eq!(
            send_steadily(&mut flood, 300, false, 5..500),
            [""; 0],
            "lanes are not overloaded"
        );
        assert_eq!(
            send_steadily(&mut flood, 240, true, 600..1_000),
            [""; 0],
            "below the threshold"
        );
        assert_eq!(send_steadily(&mut flood, 2_500, true, 1_100..1_110), ["attach"]);
        assert_eq!(sampling(&flood), (true, 100), "as if it had lasted for a window");
        assert_eq!(
            send_steadily(&mut flood, 2_500, false, 1_110..2_000),
            [""; 0],
            "lanes are not overloaded any more"
        );
        assert_eq!(
            send_steadily(&mut flood, 2_500, true, 2_000..2_300),
            ["attach"],
            "a second later"
        );
        assert_eq!(
            send_steadily(&mut flood, 250, true, 2_300..2_600),
            ["attach"; 2],
            "a flood of a tenth"
        );
        assert_eq!(
            send_steadily(&mut flood, 50, true, 2_600..2_800).last(),
            Some(&"detach")
        );
        assert_eq!(send_steadily(&mut flood, 240, true, 2_800..4_000), [""; 0]);
    }

    /// 50,000 a second attach a filter, and 25,000 a second keep it.
    #[test]
    fn a_steady_rate_does_not_alternate_attach_and_detach() {
        let mut flood = flood();
        assert_eq!(send_steadily(&mut flood, 250, true, 5..110), ["attach"]);
        assert_eq!(sampling(&flood), (true, 10));
        let changes = send_steadily(&mut flood, 150, true, 110..3_000);
        assert!(changes.len() < 5 && !changes.contains(&"detach"), "{changes:?}");
        assert_eq!(
            send_steadily(&mut flood, 100, true, 3_000..3_300).last(),
            Some(&"detach")
        );
    }

    #[test]
    fn a_filter_is_detached_100_ms_after_a_burst() {
        let mut flood = flood();
        assert_eq!(
            send_unknown(&mut flood, FLOOD_MIN - 1, true, 5),
            None,
            "below the threshold of a flood"
        );
        assert_eq!(update(&mut flood, 105), None);
        assert_eq!(
            send_unknown(&mut flood, 100 * FLOOD_MIN, true, 110),
            Some("attach")
        );
        assert_eq!(sampling(&flood), (true, 10_000));
        assert_eq!(
            send_steadily(&mut flood, 0, true, 115..210),
            ["attach"],
            "the projected rate no longer counts"
        );
        assert_eq!(sampling(&flood), (true, 1_000));
        assert_eq!(update(&mut flood, 210), Some("detach"));
        let beyond_sample_max = SAMPLE_PER_WINDOW * (SAMPLE_ONE_IN_MAX + 1);
        flood.count(at(219), |slot| {
            slot.unknown_senders = beyond_sample_max;
            slot.is_overloaded = true;
        });
        assert_eq!(update(&mut flood, 220), Some("attach"));
        assert_eq!(sampling(&flood), (true, SAMPLE_ONE_IN_MAX));
    }

    /// Non-messages are filtered whether or not lanes are overloaded.
    #[test]
    fn non_messages_are_filtered_without_a_flood_of_messages() {
        let mut flood = flood();
        non_messages(&mut flood, FLOOD_MIN - 1, 5);
        assert_eq!(update(&mut flood, 5), None);
        non_messages(&mut flood, FLOOD_MIN + 1, 10);
        assert_eq!(send_unknown(&mut flood, FLOOD_MIN, false, 10), Some("attach"));
        assert_eq!(sampling(&flood), (false, 200));
        assert_eq!(
            send_unknown(&mut flood, FLOOD_MIN, true, 15),
            Some("attach"),
            "both kinds"
        );
        assert_eq!(sampling(&flood), (true, 300));
        assert_eq!(update(&mut flood, 115), Some("detach"));
    }

    /// Old and repeated messages use time of the receiving thread, but no time of lanes.
    #[test]
    fn refused_messages_are_filtered_without_overload() {
        let mut flood = flood();
        for _ in 0..FLOOD_MIN {
            let message = flood.record_unknown_sender(SOURCE, UNKNOWN_KEY, SENDER, (at(4), false));
            flood.record_refusal(message);
        }
        assert_eq!(update(&mut flood, 5), Some("attach"));
        assert_eq!(sampling(&flood), (true, 100));
    }

    /// With a weight greater than 1, a few datagrams would count as a flood.
    #[test]
    fn datagrams_that_no_filter_sampled_count_once() {
        let mut flood = flood();
        flood.record_known(SOURCE, KeyId([1; 8]), SENDER, at(1));
        assert_eq!(send_unknown(&mut flood, 10 * FLOOD_MIN, true, 5), Some("attach"));
        let weight = |flood: &mut Flood, key, ms| unknown_message(flood, key, ms).weight;
        assert_eq!(weight(&mut flood, UNKNOWN_KEY, 4), 1, "arrived before the filter");
        assert_eq!(weight(&mut flood, UNKNOWN_KEY, 6), 1_000);
        assert_eq!(weight(&mut flood, KeyId([1; 8]), 6), 1, "passes the filter");
        non_messages(&mut flood, 1, 6);
        assert_eq!(flood.window.slot(at(6)).unwrap().non_messages, 1_000);
        // The sender is not known any more: the next filter samples its messages.
        assert_eq!(update(&mut flood, 10), None);
        assert_eq!(update(&mut flood, 1_010), Some("detach"));
        assert_eq!(send_unknown(&mut flood, FLOOD_MIN, true, 1_015), Some("attach"));
        assert_eq!(weight(&mut flood, KeyId([1; 8]), 1_016), 100);
        // All messages pass a filter of non-messages.
        let mut flood = self::flood();
        non_messages(&mut flood, 10 * FLOOD_MIN, 5);
        assert_eq!(update(&mut flood, 5), Some("attach"));
        assert_eq!(weight(&mut flood, UNKNOWN_KEY, 6), 1);
    }

    /// A datagram also represents the datagrams that the filter attached at its arrival dropped. Without a filter, a
    /// datagram represents only itself.
    #[test]
    fn datagrams_are_weighted_by_the_filter_of_their_time() {
        let mut flood = flood();
        let weight = |flood: &mut Flood, ms| unknown_message(flood, UNKNOWN_KEY, ms).weight;
        assert_eq!(send_unknown(&mut flood, FLOOD_MIN, true, 5), Some("attach"));
        flood.record_attached(at(7), false);
        assert_eq!(weight(&mut flood, 6), 1, "built, and not attached yet");
        assert_eq!(weight(&mut flood, 7), 100);
        assert_eq!(
            send_steadily(&mut flood, 1_500, true, 10..1_015),
            ["attach"],
            "a smaller flood"
        );
        let (_, samples) = sampling(&flood);
        assert!(samples < 100, "{samples}");
        assert_eq!(weight(&mut flood, 1_009), 100, "sampled by the previous filter");
        assert_eq!(weight(&mut flood, 1_010), samples);
        // If the kernel has no memory for two filters, the socket has no filter for a moment.
        assert_eq!(send_steadily(&mut flood, 1_500, true, 1_015..2_015), ["attach"]);
        flood.previous.as_mut().unwrap().detached_at = at(2_010);
        flood.record_attached(at(2_013), false);
        assert_eq!(weight(&mut flood, 2_009), samples);
        assert_eq!(weight(&mut flood, 2_012), 1);
    }

    /// At most 20 programs a second are built, even if the rate changes often.
    #[test]
    fn a_filter_is_kept_for_a_minimum_time() {
        let mut flood = flood();
        assert_eq!(send_unknown(&mut flood, FLOOD_MIN, true, 5), Some("attach"));
        assert_eq!(send_steadily(&mut flood, 100 * FLOOD_MIN, true, 10..55), [""; 0]);
        assert_eq!(
            send_steadily(&mut flood, 100 * FLOOD_MIN, true, 55..100),
            ["attach"]
        );
    }

    #[test]
    fn a_new_known_sender_is_in_the_next_filter() {
        let mut flood = flood();
        for number in [7, 8] {
            let sender = Source(number.into());
            let message = flood.record_unknown_sender(SOURCE, KeyId([number; 8]), sender, (at(4), true));
            flood.record_candidate(message);
        }
        assert_eq!(send_unknown(&mut flood, FLOOD_MIN, true, 5), Some("attach"));
        let tag = flood.tags.of(SOURCE, KeyId([7; 8]));
        assert_eq!(flood.filter.unwrap().tags, Some(vec![tag]));
    }

    /// Non-messages are filtered even with too many known senders.
    #[test]
    fn more_than_1024_known_senders_disable_the_filter_of_messages() {
        let mut flood = flood();
        let record_known_senders = |flood: &mut Flood, count: u64, ms| {
            for number in 0..count {
                flood.record_known(SOURCE, KeyId(number.to_be_bytes()), SENDER, at(ms));
            }
        };
        record_known_senders(&mut flood, KNOWN_MAX as u64, 1);
        assert_eq!(send_unknown(&mut flood, FLOOD_MIN, true, 20), Some("attach"));
        record_known_senders(&mut flood, KNOWN_MAX as u64 + 1, 30);
        assert_eq!(
            send_unknown(&mut flood, FLOOD_MIN, true, 35),
            Some("too many senders")
        );
        assert!(flood.filter_status().is_none());
        assert_eq!(update(&mut flood, 40), Some("too many senders"));
        non_messages(&mut flood, FLOOD_MIN, 45);
        assert_eq!(update(&mut flood, 45), Some("attach"));
        assert_eq!(sampling(&flood), (false, 100));
        assert_eq!(update(&mut flood, 240), Some("detach"));
        // A minute later all but one are forgotten.
        record_known_senders(&mut flood, 1, 60_100);
        assert_eq!(send_unknown(&mut flood, FLOOD_MIN, true, 61_100), Some("attach"));
        assert_eq!(flood.filter.unwrap().tags.unwrap().len(), 1);
    }

    /// Candidates are evaluated when the filter is rebuilt.
    #[test]
    fn candidates_can_be_too_many_for_the_next_filter() {
        let mut flood = flood();
        assert_eq!(send_unknown(&mut flood, FLOOD_MIN, true, 5), Some("attach"));
        for number in 0..=KNOWN_MAX as u64 {
            let message =
                flood.record_unknown_sender(SOURCE, KeyId(number.to_be_bytes()), Source(7), (at(6), true));
            flood.record_candidate(message);
        }
        let changes = send_steadily(&mut flood, FLOOD_MIN, true, 10..1_015);
        assert!(
            changes.contains(&"too many senders") && !changes.contains(&"detach"),
            "{changes:?}"
        );
    }

    #[test]
    fn a_rejected_filter_is_not_retried_at_once() {
        let mut flood = flood();
        non_messages(&mut flood, 10 * FLOOD_MIN, 5);
        assert_eq!(send_unknown(&mut flood, 10 * FLOOD_MIN, true, 5), Some("attach"));
        flood.record_rejection(at(5));
        assert!(flood.filter_status().is_none());
        assert_eq!(
            update(&mut flood, 10),
            Some("attach"),
            "the filter of non-messages"
        );
        assert_eq!(sampling(&flood), (false, 1_000));
        flood.record_rejection(at(10));
        assert_eq!(send_steadily(&mut flood, FLOOD_MIN, true, 15..1_005), [""; 0]);
        assert_eq!(update(&mut flood, 2_000), Some("detach"), "the flood has ended");
        assert_eq!(
            send_unknown(&mut flood, FLOOD_MIN, true, 60_000),
            None,
            "messages pass for a minute"
        );
        assert_eq!(send_unknown(&mut flood, FLOOD_MIN, true, 60_010), Some("attach"));
    }

    #[test]
    fn a_new_socket_gets_a_filter_soon() {
        let mut flood = flood();
        assert_eq!(send_unknown(&mut flood, 10 * FLOOD_MIN, true, 5), Some("attach"));
        flood.record_new_socket(at(6));
        assert_eq!(send_unknown(&mut flood, 1, true, 10), Some("attach"));
        assert_eq!(sampling(&flood), (true, 1_000));
    }
}
