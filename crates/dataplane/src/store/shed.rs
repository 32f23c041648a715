//! What of a device that is not here may go on to user space (LAP/1 1.4.5, 1.4.6): the mirror of `xdp/bpf/lw_shed.h`.
//!
//! In this order: who is not enrolled is dropped; a RESPONSE to a CHALLENGE that the slow path gave goes on, once; of the
//! rest each CPU or thread has its share, and when half of that is gone each source: a source is not known to be the
//! sender's, and must not be a way to shut him out while there is enough for all.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use linewarden_protocol::wire::MESSAGE_BYTES;

use super::{Geometry, Regions, table, wire_word};
use crate::layout::{Expected, FILTER_WORDS, SOURCES};

/// Shares are counted in windows of 67 ms: a second's share is not gone in its first millisecond.
const WINDOW_SHIFT: u32 = 26;
const WINDOWS_PER_S: u32 = 15;
/// A source's part of a thread's share.
const SOURCE_PART: u32 = 64;
/// The part of RESPONSEs that nobody asked for.
const UNASKED_PART: u32 = 8;

/// Block and bits of an id in the filter: a blocked Bloom filter (Putze et al., 2009) with one bit in each word.
fn place(geometry: &Geometry, id: u64) -> (usize, [u64; FILTER_WORDS]) {
    let hash = table::hash(geometry.hash_seed, id, 0);
    let bits = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let block = (hash >> 32) as u32 & geometry.filter_mask();
    let mut masks = [0; FILTER_WORDS];
    for (shift, mask) in (10..).step_by(6).zip(&mut masks) {
        *mask = 1 << (bits >> shift & 63);
    }
    (block as usize, masks)
}

/// Names a device and its nonce; never 0.
fn proof(geometry: &Geometry, id: u64, nonce: [u64; 2]) -> u64 {
    let [first, second] = nonce;
    table::hash(geometry.hash_seed, id ^ first, second) | 1
}

/// Ids and nonces are as loaded from the wire.
impl Regions {
    /// Adds an id to the filter.
    pub fn enrol(&self, geometry: &Geometry, id: u64) {
        let (block, masks) = place(geometry, id);
        let Some(block) = self.enrolled.get(block) else {
            return;
        };
        for (word, mask) in block.word.iter().zip(masks) {
            // Ids are enrolled anew with every start; most bits are there.
            if word.load(Relaxed) & mask == 0 {
                word.fetch_or(mask, Relaxed);
            }
        }
    }

    /// Whether the id is in the filter, or it is not in force. Of others a few pass, see [`Geometry::filter_blocks`].
    #[must_use]
    pub fn may_be_enrolled(&self, geometry: &Geometry, id: u64) -> bool {
        let filtering = self
            .control
            .first()
            .map_or(0, |control| control.filtering.load(Acquire));
        let (block, masks) = place(geometry, id);
        let has_all = |block: &crate::layout::FilterBlock| {
            let mut words = block.word.iter().zip(masks);
            words.all(|(word, mask)| word.load(Relaxed) & mask != 0)
        };
        filtering == 0 || self.enrolled.get(block).is_none_or(has_all)
    }

    fn cell(&self, proof: u64) -> Option<&Expected> {
        self.expected
            .get((proof >> 32) as usize & (self.expected.len() - 1))
    }

    /// The RESPONSE with the device and nonce of that message may go on, once, whatever the load.
    pub fn expect(&self, geometry: &Geometry, message: &[u8; MESSAGE_BYTES]) {
        let word = |at: usize| {
            let bytes = message.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            wire_word(bytes.unwrap_or_default())
        };
        // A REQUEST and a RESPONSE have id and nonce at the same places (LAP/1 1.3).
        let proof = proof(geometry, word(8), [word(16), word(24)]);
        if let Some(cell) = self.cell(proof) {
            cell.0.store(proof, Release);
        }
    }

    fn take_expected(&self, geometry: &Geometry, id: u64, nonce: [u64; 2]) -> bool {
        let proof = proof(geometry, id, nonce);
        let taken = |cell: &Expected| cell.0.compare_exchange(proof, 0, AcqRel, Acquire).is_ok();
        self.cell(proof).is_some_and(taken)
    }
}

/// So many in a window.
#[derive(Debug, Default)]
struct Count {
    window: u64,
    count: u64,
}

impl Count {
    fn allows(&mut self, window: u64, most: u64) -> bool {
        if self.window != window {
            *self = Self { window, count: 0 };
        }
        let is_allowed = self.count < most;
        self.count += u64::from(is_allowed);
        is_allowed
    }

    /// Whether half of the share is gone.
    fn is_scarce(&self, window: u64, most: u64) -> bool {
        self.window == window && 2 * self.count >= most
    }
}

/// A message of a device that is not here.
#[derive(Clone, Copy, Debug)]
pub struct Stranger {
    /// Its id.
    pub id: u64,
    /// Its source: IPv6, or IPv4 as ::ffff:a.b.c.d.
    pub source: [u64; 2],
    /// Of a RESPONSE.
    pub nonce: Option<[u64; 2]>,
}

/// What one thread has let through.
#[derive(Debug)]
pub struct Doorman {
    requests: Count,
    unasked: Count,
    /// By hash of the source.
    sources: Vec<Count>,
}

impl Default for Doorman {
    fn default() -> Self {
        let mut sources = Vec::new();
        sources.resize_with(SOURCES, Count::default);
        Self {
            requests: Count::default(),
            unasked: Count::default(),
            sources,
        }
    }
}

impl Doorman {
    /// Whether a message may go on; `per_s` is the share of REQUESTs a second, not 0.
    pub fn admits(
        &mut self,
        regions: &Regions,
        geometry: &Geometry,
        stranger: &Stranger,
        now_ns: u64,
        per_s: u32,
    ) -> bool {
        let window = now_ns >> WINDOW_SHIFT;
        let share = |per_s: u32| u64::from(per_s / WINDOWS_PER_S) + 1;
        let expected = |nonce| regions.take_expected(geometry, stranger.id, nonce);
        if stranger.nonce.is_some_and(expected) {
            return true;
        }
        let [high, low] = stranger.source;
        let source = table::hash(geometry.hash_seed, high, low) as usize & (SOURCES - 1);
        let has_share = |count: &mut Count| count.allows(window, share(per_s / SOURCE_PART));
        let has_share = self.sources.get_mut(source).is_some_and(has_share);
        let (of_all, most) = match stranger.nonce {
            Some(_) => (&mut self.unasked, share(per_s / UNASKED_PART)),
            None => (&mut self.requests, share(per_s)),
        };
        (has_share || !of_all.is_scarce(window, most)) && of_all.allows(window, most)
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

    fn filtering(regions: &Regions) {
        regions.control[0].filtering.store(1, Release);
    }

    #[test]
    fn everybody_enrolled_passes_and_few_strangers_do() {
        let geometry = geometry();
        let regions = Regions::anonymous(&geometry).unwrap();
        let ids = 1..=500_000u64;
        assert!(regions.may_be_enrolled(&geometry, 1), "not in force");
        filtering(&regions);
        assert!(!regions.may_be_enrolled(&geometry, 1));
        ids.clone().for_each(|id| regions.enrol(&geometry, id.to_be()));
        assert!(
            ids.clone()
                .all(|id| regions.may_be_enrolled(&geometry, id.to_be()))
        );
        let strangers = 1_000_000..1_100_000u64;
        let passed = strangers.filter(|id| regions.may_be_enrolled(&geometry, id.to_be()));
        // 6 in 10,000 of 100,000 are 60.
        let passed = passed.count();
        assert!(passed < 120, "{passed} of 100,000");
    }

    #[test]
    fn an_expected_response_passes_once_whatever_the_flood() {
        let geometry = geometry();
        let regions = Regions::anonymous(&geometry).unwrap();
        let mut door = Doorman::default();
        let message = |id, nonce: Option<_>| Stranger {
            id,
            source: [u64::from(nonce.is_some()), id],
            nonce,
        };
        let mut passed =
            |id, nonce| door.admits(&regions, &geometry, &message(id, nonce), 5 << WINDOW_SHIFT, 150);
        let requests = (0..1000).filter(|id| passed(*id, None)).count();
        assert_eq!(requests, 11, "150 a second are 10 in a window, and one");
        let unasked = (0..1000).filter(|id| passed(*id, Some([7, 7]))).count();
        assert_eq!(unasked, 2);
        let mut request = [0; MESSAGE_BYTES];
        for (at, word) in [(8, 9u64), (16, 1), (24, 2)] {
            request[at..at + 8].copy_from_slice(&word.to_ne_bytes());
        }
        regions.expect(&geometry, &request);
        assert!(!passed(9, Some([1, 3])), "another nonce");
        assert!(!passed(8, Some([1, 2])), "another device");
        assert!(passed(9, Some([1, 2])));
        assert!(!passed(9, Some([1, 2])), "once");
    }

    #[test]
    fn one_source_does_not_use_up_the_share_of_all() {
        let geometry = geometry();
        let regions = Regions::anonymous(&geometry).unwrap();
        let mut door = Doorman::default();
        let mut passed = |source| {
            let stranger = Stranger {
                id: 1,
                source: [0, source],
                nonce: None,
            };
            door.admits(&regions, &geometry, &stranger, 1 << WINDOW_SHIFT, 9600)
        };
        // Half of 641, of which its own part is 11.
        assert_eq!((0..1000).filter(|_| passed(1)).count(), 321);
        assert_eq!((0..1000).filter(|_| passed(2)).count(), 11);
        assert!(passed(3));
    }
}
