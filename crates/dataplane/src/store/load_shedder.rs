//! Decides which messages of devices that are not installed reach user space (LAP/1 1.4.5, 1.4.6): the mirror of
//! `xdp/bpf/lw_shed.h`.
//!
//! The rules, in order: a message of a device that is not enrolled is dropped. A RESPONSE to a CHALLENGE of the slow
//! path is accepted once. REQUESTs share a limit per CPU or thread; all other RESPONSEs share a separate limit, an
//! eighth as large. Once half of a limit is used, a limit per source applies too: sources are not authenticated, so a
//! source limit must not block a device while there is capacity for all.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use linewarden_protocol::wire::MESSAGE_BYTES;

use super::{Geometry, Regions, table, wire_word};
use crate::layout::{ExpectedResponse, FILTER_WORDS, SOURCE_CELLS};

/// Limits are counted in windows of 2^26 ns (67 ms), so that the limit of a second is not used up in its first millisecond.
const WINDOW_SHIFT: u32 = 26;
const WINDOWS_PER_S: u32 = 15;
/// One source may use `1 / SOURCE_SHARE` of a thread's limit of REQUESTs.
const SOURCE_SHARE: u32 = 64;
/// The limit of unsolicited RESPONSEs is `1 / UNSOLICITED_SHARE` of the limit of REQUESTs.
const UNSOLICITED_SHARE: u32 = 8;

/// Block and bits of an id in the filter: a blocked Bloom filter (Putze et al., 2009) with one bit per word.
fn filter_place(geometry: &Geometry, id: u64) -> (usize, [u64; FILTER_WORDS]) {
    let hash = table::hash(geometry.hash_seed, id, 0);
    let bits = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let block = (hash >> 32) as u32 & geometry.filter_mask();
    let mut masks = [0; FILTER_WORDS];
    for (shift, mask) in (10..).step_by(6).zip(&mut masks) {
        *mask = 1 << (bits >> shift & 63);
    }
    (block as usize, masks)
}

/// Identifies a device and its nonce; never 0.
fn response_key(geometry: &Geometry, id: u64, nonce: [u64; 2]) -> u64 {
    let [first, second] = nonce;
    table::hash(geometry.hash_seed, id ^ first, second) | 1
}

/// Ids and nonces are in wire order, loaded natively.
impl Regions {
    /// Adds an id to the filter.
    pub fn enroll(&self, geometry: &Geometry, id: u64) {
        let (block, masks) = filter_place(geometry, id);
        let Some(block) = self.enrolled.get(block) else {
            return;
        };
        for (word, mask) in block.word.iter().zip(masks) {
            // All ids are enrolled again at every start; most bits are already set.
            if word.load(Relaxed) & mask == 0 {
                word.fetch_or(mask, Relaxed);
            }
        }
    }

    /// Whether the id is in the filter, or the filter is disabled. Some other ids pass too, see
    /// [`Geometry::filter_blocks`].
    #[must_use]
    pub fn may_be_enrolled(&self, geometry: &Geometry, id: u64) -> bool {
        let filtering = self
            .control
            .first()
            .map_or(0, |control| control.filtering.load(Acquire));
        let (block, masks) = filter_place(geometry, id);
        let has_all = |block: &crate::layout::FilterBlock| {
            let mut words = block.word.iter().zip(masks);
            words.all(|(word, mask)| word.load(Relaxed) & mask != 0)
        };
        filtering == 0 || self.enrolled.get(block).is_none_or(has_all)
    }

    fn expected_cell(&self, key: u64) -> Option<&ExpectedResponse> {
        self.expected
            .get((key >> 32) as usize & (self.expected.len() - 1))
    }

    /// Accepts the RESPONSE with the device and nonce of that message, once, regardless of the load.
    pub fn expect_response(&self, geometry: &Geometry, message: &[u8; MESSAGE_BYTES]) {
        let word = |at: usize| {
            let bytes = message.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            wire_word(bytes.unwrap_or_default())
        };
        // A REQUEST and a RESPONSE have id and nonce at the same offsets (LAP/1 1.3).
        let key = response_key(geometry, word(8), [word(16), word(24)]);
        if let Some(cell) = self.expected_cell(key) {
            cell.0.store(key, Release);
        }
    }

    fn take_expected(&self, geometry: &Geometry, id: u64, nonce: [u64; 2]) -> bool {
        let key = response_key(geometry, id, nonce);
        let take = |cell: &ExpectedResponse| cell.0.compare_exchange(key, 0, AcqRel, Acquire).is_ok();
        self.expected_cell(key).is_some_and(take)
    }
}

/// Counts messages in a window.
#[derive(Debug, Default)]
struct WindowCount {
    window: u64,
    count: u64,
}

impl WindowCount {
    fn allows(&mut self, window: u64, limit: u64) -> bool {
        if self.window != window {
            *self = Self { window, count: 0 };
        }
        let is_allowed = self.count < limit;
        self.count += u64::from(is_allowed);
        is_allowed
    }

    /// Whether half of the limit is used.
    fn is_half_used(&self, window: u64, limit: u64) -> bool {
        self.window == window && 2 * self.count >= limit
    }
}

/// The sender of a message whose device is not installed.
#[derive(Clone, Copy, Debug)]
pub struct UnknownSender {
    /// Device id.
    pub id: u64,
    /// Source address: IPv6, or IPv4 as ::ffff:a.b.c.d.
    pub source: [u64; 2],
    /// Nonce of a RESPONSE; `None` for a REQUEST.
    pub nonce: Option<[u64; 2]>,
}

/// Counts of the messages that one thread has accepted.
#[derive(Debug)]
pub struct LoadShedder {
    requests: WindowCount,
    unsolicited: WindowCount,
    /// Counts of the messages of each source, by hash of the source.
    sources: Vec<WindowCount>,
}

impl Default for LoadShedder {
    fn default() -> Self {
        let mut sources = Vec::new();
        sources.resize_with(SOURCE_CELLS, WindowCount::default);
        Self {
            requests: WindowCount::default(),
            unsolicited: WindowCount::default(),
            sources,
        }
    }
}

impl LoadShedder {
    /// Whether a message is accepted. `per_s` is the limit of REQUESTs per second, not 0.
    pub fn admits(
        &mut self,
        regions: &Regions,
        geometry: &Geometry,
        sender: &UnknownSender,
        now_ns: u64,
        per_s: u32,
    ) -> bool {
        let window = now_ns >> WINDOW_SHIFT;
        let window_limit = |per_s: u32| u64::from(per_s / WINDOWS_PER_S) + 1;
        let expected = |nonce| regions.take_expected(geometry, sender.id, nonce);
        if sender.nonce.is_some_and(expected) {
            return true;
        }
        let [high, low] = sender.source;
        let source = table::hash(geometry.hash_seed, high, low) as usize & (SOURCE_CELLS - 1);
        let has_share = |count: &mut WindowCount| count.allows(window, window_limit(per_s / SOURCE_SHARE));
        let has_share = self.sources.get_mut(source).is_some_and(has_share);
        let (total, limit) = match sender.nonce {
            Some(_) => (&mut self.unsolicited, window_limit(per_s / UNSOLICITED_SHARE)),
            None => (&mut self.requests, window_limit(per_s)),
        };
        (has_share || !total.is_half_used(window, limit)) && total.allows(window, limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry() -> Geometry {
        Geometry {
            slots: 1000,
            ring: 4,
            hash_seed: [0x1234, 0x5678],
        }
    }

    fn enable_filter(regions: &Regions) {
        regions.control[0].filtering.store(1, Release);
    }

    #[test]
    fn every_enrolled_device_passes_and_few_unknown_ones_do() {
        let geometry = geometry();
        let regions = Regions::anonymous(&geometry).unwrap();
        let ids = 1..=500_000u64;
        assert!(regions.may_be_enrolled(&geometry, 1), "filter disabled");
        enable_filter(&regions);
        assert!(!regions.may_be_enrolled(&geometry, 1));
        ids.clone().for_each(|id| regions.enroll(&geometry, id.to_be()));
        assert!(
            ids.clone()
                .all(|id| regions.may_be_enrolled(&geometry, id.to_be()))
        );
        let unknown = 1_000_000..1_100_000u64;
        let passed = unknown.filter(|id| regions.may_be_enrolled(&geometry, id.to_be()));
        // 6 in 10,000 of 100,000 are 60.
        let passed = passed.count();
        assert!(passed < 120, "{passed} of 100,000");
    }

    #[test]
    fn an_expected_response_passes_once_during_any_flood() {
        let geometry = geometry();
        let regions = Regions::anonymous(&geometry).unwrap();
        let mut shedder = LoadShedder::default();
        let sender = |id, nonce: Option<_>| UnknownSender {
            id,
            source: [u64::from(nonce.is_some()), id],
            nonce,
        };
        let mut passed =
            |id, nonce| shedder.admits(&regions, &geometry, &sender(id, nonce), 5 << WINDOW_SHIFT, 150);
        let requests = (0..1000).filter(|id| passed(*id, None)).count();
        assert_eq!(requests, 11, "150 per second are 10 per window, plus one");
        let unsolicited = (0..1000).filter(|id| passed(*id, Some([7, 7]))).count();
        assert_eq!(unsolicited, 2);
        let mut request = [0; MESSAGE_BYTES];
        for (at, word) in [(8, 9u64), (16, 1), (24, 2)] {
            request[at..at + 8].copy_from_slice(&word.to_ne_bytes());
        }
        regions.expect_response(&geometry, &request);
        assert!(!passed(9, Some([1, 3])), "another nonce");
        assert!(!passed(8, Some([1, 2])), "another device");
        assert!(passed(9, Some([1, 2])));
        assert!(!passed(9, Some([1, 2])), "once");
    }

    #[test]
    fn one_source_cannot_exhaust_the_limit_of_all() {
        let geometry = geometry();
        let regions = Regions::anonymous(&geometry).unwrap();
        let mut shedder = LoadShedder::default();
        let mut passed = |source| {
            let sender = UnknownSender {
                id: 1,
                source: [0, source],
                nonce: None,
            };
            shedder.admits(&regions, &geometry, &sender, 1 << WINDOW_SHIFT, 9600)
        };
        // The first source can use half of the limit of 641 messages; the limit of one source is 11.
        assert_eq!((0..1000).filter(|_| passed(1)).count(), 321);
        assert_eq!((0..1000).filter(|_| passed(2)).count(), 11);
        assert!(passed(3));
    }
}
