//! Judges what packets carry.

use std::collections::BTreeMap;

use subtle::ConstantTimeEq as _;

use super::Counter;
use super::carried::{Carried, Content, Tagged};
use super::stamper::fields;
use super::tag::{MasterKey, Midstate};
use crate::ids::{BootCount, SwitchId};
use crate::state::{Digests, Snapshot};

/// How far a packet may come late, packets.
pub const WINDOW: u64 = 1024;

/// Why evidence of a packet is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Anybody could have written it.
    #[error("classic content proves nothing: have the switch write the default content")]
    Classic,
    /// Its digests begin otherwise. Without the full digests the tag cannot be judged: ask for a statement.
    #[error(
        "the packet shows other digests than are known (program: {program}, tables: {tables}, registers: {registers}): \
         ask the switch for a statement of its present state"
    )]
    Differs {
        /// The program's.
        program: bool,
        /// The tables'.
        tables: bool,
        /// The registers'.
        registers: bool,
    },
    /// Nobody with the key wrote it, or not for this packet.
    #[error("the tag is not that of this switch for this packet")]
    Tag,
    /// It is from before the switch's last start.
    #[error("boot count {got}, and {known} was seen: a replay from before the last start")]
    OldBoot {
        /// What the packet says.
        got: BootCount,
        /// The highest that was proven.
        known: BootCount,
    },
    /// It was seen, or is too late to tell.
    #[error("packet {} was seen already, or comes more than {WINDOW} packets late", .0.0)]
    Replayed(Counter),
}

/// Evidence of a packet whose tag was checked and that was never shown before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketEvidence {
    snapshot: Snapshot,
    counter: Counter,
}

impl PacketEvidence {
    /// The state in which the switch has sent the packet.
    #[must_use]
    pub const fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Which packet since the start.
    #[must_use]
    pub const fn counter(&self) -> Counter {
        self.counter
    }
}

/// Remembers what each switch has shown.
#[derive(Debug)]
pub struct Appraiser {
    master: MasterKey,
    switches: BTreeMap<SwitchId, Switch>,
}

#[derive(Debug)]
struct Switch {
    boot_count: BootCount,
    window: Window,
}

impl Appraiser {
    /// One that has seen nothing.
    #[must_use]
    pub const fn new(master: MasterKey) -> Self {
        Self {
            master,
            switches: BTreeMap::new(),
        }
    }

    /// Judges what a packet carries; `known` are the full digests that its switch is known or supposed to have.
    ///
    /// # Errors
    /// It proves nothing; nothing is remembered of it.
    pub fn appraise(&mut self, carried: &Carried, known: &Digests) -> Result<PacketEvidence, Refused> {
        let Content::Default(content) = &carried.content else {
            return Err(Refused::Classic);
        };
        let &Tagged {
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
            digests: *known,
        };
        differs(content, &snapshot)?;
        let key = self.master.key(switch, boot_count);
        let expected = Midstate::new(&key, &snapshot).tag(counter, &carried.invariants);
        if !bool::from(expected.ct_eq(&tag)) {
            return Err(Refused::Tag);
        }
        let seen = self.switches.entry(switch).or_insert_with(|| Switch {
            boot_count,
            window: Window::default(),
        });
        if boot_count < seen.boot_count {
            let known = seen.boot_count;
            return Err(Refused::OldBoot {
                got: boot_count,
                known,
            });
        }
        if boot_count > seen.boot_count {
            *seen = Switch {
                boot_count,
                window: Window::default(),
            };
        }
        match seen.window.take(counter) {
            true => Ok(PacketEvidence { snapshot, counter }),
            false => Err(Refused::Replayed(counter)),
        }
    }
}

fn differs(content: &Tagged, known: &Snapshot) -> Result<(), Refused> {
    let expected = fields(known);
    let fields = content.fields.as_chunks::<16>().0.iter();
    let mut differs = fields.zip(expected.as_chunks::<16>().0).map(|(a, b)| a != b);
    let mut next = || differs.next().unwrap_or_default();
    let (registers, tables, program) = (next(), next(), next());
    match registers || tables || program {
        true => Err(Refused::Differs {
            program,
            tables,
            registers,
        }),
        false => Ok(()),
    }
}

/// The last 1,024 counters: those up to `top`, a bit for each.
#[derive(Clone, Debug, Default)]
struct Window {
    top: u64,
    seen: [u64; (WINDOW / 64) as usize],
}

impl Window {
    /// Whether it is new; then it is remembered. Zero is no counter.
    fn take(&mut self, Counter(counter): Counter) -> bool {
        if counter > self.top {
            match counter - self.top >= WINDOW {
                true => self.seen.fill(0),
                false => (self.top + 1..=counter).for_each(|number| {
                    self.word(number, |word, bit| *word &= !bit);
                }),
            }
            self.top = counter;
        }
        if counter == 0 || self.top - counter >= WINDOW {
            return false;
        }
        let mut is_new = false;
        self.word(counter, |word, bit| {
            is_new = *word & bit == 0;
            *word |= bit;
        });
        is_new
    }

    fn word(&mut self, number: u64, change: impl FnOnce(&mut u64, u64)) {
        let place = number % WINDOW;
        let word = usize::try_from(place / 64)
            .ok()
            .and_then(|word| self.seen.get_mut(word));
        if let Some(word) = word {
            change(word, 1 << (place % 64));
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
        fn the_window_takes_each_counter_once(steps in prop::collection::vec(prop_oneof![-40i64..60, -2_000i64..2_000], 1..300)) {
            let mut window = Window::default();
            let mut taken = BTreeSet::new();
            let mut at = 0i64;
            for step in steps {
                at = (at + step).max(0);
                let counter = at as u64;
                let top = taken.last().copied().unwrap_or(0);
                let is_in = counter > 0 && counter + WINDOW > top;
                prop_assert_eq!(window.take(Counter(counter)), is_in && taken.insert(counter), "{}", counter);
            }
        }
    }

    #[test]
    fn the_highest_counter_is_taken() {
        let mut window = Window::default();
        assert!(window.take(Counter(u64::MAX)));
        assert!(!window.take(Counter(u64::MAX)));
        assert!(window.take(Counter(u64::MAX - WINDOW + 1)));
        assert!(!window.take(Counter(u64::MAX - WINDOW)));
        assert!(!window.take(Counter(0)));
    }
}
