//! Numbers towards a device (LAP/1 1.4.16), one memory access at a time: every interleaving of three sealers and two
//! renewals. No number is given twice under one key; and each of the rules that see to it is missed when it is left out.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::collections::{BTreeSet, HashSet};

use linewarden_protocol::data::DownWord;

const SEALERS: usize = 3;
const RENEWALS: u8 = 2;
const TRIES: u8 = 2;
/// Datagrams that are begun.
const STARTS: u8 = 5;

/// A rule that can be left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Without {
    Nothing,
    /// The commit word is read again before another generation begins.
    SecondLook,
    /// Another generation begins by compare-and-swap, and not by a store.
    Compare,
    /// A number is taken by one addition, and not by a load and a store.
    Addition,
    /// The generation is that of the word which the addition gave, and not of one seen before.
    OwnWord,
}

/// Where a sealer stands. It holds the key of the generation `of`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Step {
    ReadCommit,
    Add { of: u8, tries: u8 },
    Store { of: u8, seen: u64, tries: u8 },
    LookAgain { of: u8, seen: u64, tries: u8 },
    Begin { of: u8, seen: u64, tries: u8 },
    AddBlindly { of: u8 },
    Done,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    /// The generation of the commit word.
    commit: u8,
    down: u64,
    sealers: [Step; SEALERS],
    /// Key and number, of all that was sealed.
    given: BTreeSet<(u8, u64)>,
    repeated: bool,
    starts: u8,
}

impl World {
    fn give(&mut self, of: u8, number: u64) -> Step {
        self.repeated |= !self.given.insert((of, number));
        Step::Done
    }

    /// The sealer's next access.
    fn step(&mut self, sealer: usize, without: Without) {
        self.sealers[sealer] = match self.sealers[sealer] {
            Step::ReadCommit => Step::Add {
                of: self.commit,
                tries: TRIES,
            },
            Step::Add { of, tries } if without == Without::Addition => {
                let seen = self.down;
                Step::Store { of, seen, tries }
            }
            Step::Add { of, tries } => {
                self.down += 1;
                self.after(of, self.down, tries)
            }
            Step::Store { of, seen, tries } => {
                self.down = seen + 1;
                self.after(of, seen + 1, tries)
            }
            Step::LookAgain { of, seen, tries } if self.commit == of || without == Without::SecondLook => {
                Step::Begin { of, seen, tries }
            }
            Step::LookAgain { .. } => Step::Done,
            Step::Begin { of, seen, tries } => {
                if self.down == seen || without == Without::Compare {
                    self.down = DownWord(self.down).take(of).0.0;
                    self.give(of, DownWord(self.down).count())
                } else if without == Without::OwnWord && DownWord(self.down).generation() == of {
                    Step::AddBlindly { of }
                } else if tries > 1 {
                    // From the beginning: the generation is looked at in the very word that an addition gave.
                    Step::Add { of, tries: tries - 1 }
                } else {
                    Step::Done
                }
            }
            Step::AddBlindly { of } => {
                self.down += 1;
                self.give(of, DownWord(self.down).count())
            }
            Step::Done => Step::Done,
        };
    }

    fn after(&mut self, of: u8, seen: u64, tries: u8) -> Step {
        if DownWord(seen).generation() == of {
            self.give(of, DownWord(seen).count())
        } else {
            Step::LookAgain { of, seen, tries }
        }
    }
}

/// Whether some interleaving gives a number twice; and how many states there are.
fn explore(without: Without) -> (bool, usize) {
    let start = World {
        commit: 1,
        down: 0,
        sealers: [Step::ReadCommit; SEALERS],
        given: BTreeSet::new(),
        repeated: false,
        starts: SEALERS as u8,
    };
    let mut seen = HashSet::from([start.clone()]);
    let mut open = vec![start];
    while let Some(world) = open.pop() {
        if world.repeated {
            return (true, seen.len());
        }
        let mut next = Vec::new();
        for sealer in 0..SEALERS {
            let mut world = world.clone();
            world.step(sealer, without);
            next.push(world);
        }
        if world.commit <= RENEWALS {
            let mut world = world.clone();
            world.commit += 1;
            next.push(world);
        }
        // Who is done seals again.
        for sealer in 0..SEALERS {
            if world.sealers[sealer] == Step::Done && world.starts < STARTS {
                let mut world = world.clone();
                world.sealers[sealer] = Step::ReadCommit;
                world.starts += 1;
                next.push(world);
            }
        }
        open.extend(next.into_iter().filter(|world| seen.insert(world.clone())));
    }
    (false, seen.len())
}

#[test]
fn no_interleaving_gives_a_number_twice_under_one_key() {
    let (repeats, states) = explore(Without::Nothing);
    assert!(!repeats);
    assert!(states > 10_000, "{states} states");
}

#[test]
fn every_rule_is_needed() {
    for without in [
        Without::SecondLook,
        Without::Compare,
        Without::Addition,
        Without::OwnWord,
    ] {
        assert!(explore(without).0, "{without:?}");
    }
}
