//! Appraisal of evidence in packets.

use std::collections::BTreeMap;

use subtle::ConstantTimeEq as _;

use super::Counter;
use super::content::fields;
use super::content::{CarriedEvidence, Content};
use super::tag::{MasterKey, Midstate};
use crate::ids::{BootCount, SwitchId};
use crate::state::{Digests, Snapshot};

/// Size of the replay window, in packets: a packet that is this many packets late, or more, is rejected.
pub const WINDOW: u64 = 1024;

/// Why evidence of a packet is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketEvidenceError {
    /// The digest prefixes differ. Without the full digests the tag cannot be verified: request a statement.
    #[error(
        "packet evidence rejected: unknown digests (program: {program}, tables: {tables}, registers: {registers}); \
         request a statement of the switch's current state"
    )]
    DigestMismatch {
        /// The program digest differs.
        program: bool,
        /// The tables digest differs.
        tables: bool,
        /// The registers digest differs.
        registers: bool,
    },
    /// The tag does not verify for this packet.
    #[error("packet evidence rejected: the tag does not verify for this switch and packet")]
    InvalidTag,
    /// The packet is from before the switch's most recent start.
    #[error(
        "packet evidence rejected: boot count {received} is lower than {known}; it is a replay from before the last start"
    )]
    OldBootCount {
        /// The boot count in the packet.
        received: BootCount,
        /// The highest proven boot count.
        known: BootCount,
    },
    /// The packet was received before, or is too late to decide.
    #[error("packet evidence rejected: packet {} was received before, or is more than {WINDOW} packets late", .0.0)]
    Replayed(Counter),
}

/// Verified evidence of a packet that was not received before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketEvidence {
    snapshot: Snapshot,
    counter: Counter,
}

impl PacketEvidence {
    /// The state of the switch when it sent the packet.
    #[must_use]
    pub const fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The number of the packet since the start.
    #[must_use]
    pub const fn counter(&self) -> Counter {
        self.counter
    }
}

/// Verifies packet evidence and keeps the replay state of each switch.
#[derive(Debug)]
pub struct Appraiser {
    master_key: MasterKey,
    switches: BTreeMap<SwitchId, SwitchState>,
}

#[derive(Debug)]
struct SwitchState {
    boot_count: BootCount,
    window: Window,
}

impl Appraiser {
    /// An appraiser without state.
    #[must_use]
    pub const fn new(master: MasterKey) -> Self {
        Self {
            master_key: master,
            switches: BTreeMap::new(),
        }
    }

    /// Verifies the evidence of a packet. `known_digests` are the full digests of the packet's switch, known from a
    /// statement or expected by reference values.
    ///
    /// # Errors
    /// The evidence is rejected; no state changes.
    pub fn appraise(
        &mut self,
        carried: &CarriedEvidence,
        known_digests: &Digests,
    ) -> Result<PacketEvidence, PacketEvidenceError> {
        let content = &carried.content;
        let &Content {
            switch,
            boot_count,
            sequence,
            counter,
            tag,
            ..
        } = content;
        let snapshot = Snapshot {
            switch,
            boot_count,
            sequence,
            digests: *known_digests,
        };
        check_digests(content, &snapshot)?;
        let key = self.master_key.key(switch, boot_count);
        let expected = Midstate::new(&key, &snapshot).tag(counter, &carried.invariants);
        if !bool::from(expected.ct_eq(&tag)) {
            return Err(PacketEvidenceError::InvalidTag);
        }
        let state = self.switches.entry(switch).or_insert_with(|| SwitchState {
            boot_count,
            window: Window::default(),
        });
        if boot_count < state.boot_count {
            let known = state.boot_count;
            return Err(PacketEvidenceError::OldBootCount {
                received: boot_count,
                known,
            });
        }
        if boot_count > state.boot_count {
            *state = SwitchState {
                boot_count,
                window: Window::default(),
            };
        }
        match state.window.accept(counter) {
            true => Ok(PacketEvidence { snapshot, counter }),
            false => Err(PacketEvidenceError::Replayed(counter)),
        }
    }
}

/// Compares the digest prefixes in the packet with the digests in the snapshot.
fn check_digests(content: &Content, known: &Snapshot) -> Result<(), PacketEvidenceError> {
    let expected = fields(known);
    let fields = content.fields.as_chunks::<16>().0.iter();
    let mut differs = fields.zip(expected.as_chunks::<16>().0).map(|(a, b)| a != b);
    let mut next = || differs.next().unwrap_or_default();
    let (registers, tables, program) = (next(), next(), next());
    match registers || tables || program {
        true => Err(PacketEvidenceError::DigestMismatch {
            program,
            tables,
            registers,
        }),
        false => Ok(()),
    }
}

/// The 1,024 counters that end with `top`, one bit for each counter.
#[derive(Clone, Debug, Default)]
struct Window {
    /// The highest accepted counter.
    top: u64,
    /// The bit `counter % WINDOW` is set if the counter was accepted.
    seen: [u64; (WINDOW / 64) as usize],
}

impl Window {
    /// Records the counter; returns whether it is new. Zero is not a counter.
    fn accept(&mut self, Counter(counter): Counter) -> bool {
        if counter > self.top {
            match counter - self.top >= WINDOW {
                true => self.seen.fill(0),
                false => (self.top + 1..=counter).for_each(|number| {
                    self.with_bit(number, |word, bit| *word &= !bit);
                }),
            }
            self.top = counter;
        }
        if counter == 0 || self.top - counter >= WINDOW {
            return false;
        }
        let mut is_new = false;
        self.with_bit(counter, |word, bit| {
            is_new = *word & bit == 0;
            *word |= bit;
        });
        is_new
    }

    /// Calls `change` with the word that contains the bit of a counter, and with the mask of the bit.
    fn with_bit(&mut self, number: u64, change: impl FnOnce(&mut u64, u64)) {
        let bit_index = number % WINDOW;
        let word = usize::try_from(bit_index / 64)
            .ok()
            .and_then(|word| self.seen.get_mut(word));
        if let Some(word) = word {
            change(word, 1 << (bit_index % 64));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_window_accepts_each_counter_once(steps in prop::collection::vec(prop_oneof![-40i64..60, -2_000i64..2_000], 1..300)) {
            let mut window = Window::default();
            let mut accepted = BTreeSet::new();
            let mut position = 0i64;
            for step in steps {
                position = (position + step).max(0);
                let counter = position as u64;
                let top = accepted.last().copied().unwrap_or(0);
                let is_in_window = counter > 0 && counter + WINDOW > top;
                prop_assert_eq!(window.accept(Counter(counter)), is_in_window && accepted.insert(counter), "{}", counter);
            }
        }
    }

    #[test]
    fn the_highest_counter_is_accepted() {
        let mut window = Window::default();
        assert!(window.accept(Counter(u64::MAX)));
        assert!(!window.accept(Counter(u64::MAX)));
        assert!(window.accept(Counter(u64::MAX - WINDOW + 1)));
        assert!(!window.accept(Counter(u64::MAX - WINDOW)));
        assert!(!window.accept(Counter(0)));
    }
}
