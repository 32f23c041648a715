//! Message numbers towards a device (LAP/1 1.4.16), one memory access at a time: every interleaving of three sealers
//! and two renewals. No number is used twice under one key; if any of the rules that ensure this is removed, the test
//! detects a repetition.

use std::collections::{BTreeSet, HashSet};

use linewarden_protocol::data::DownCounter;

const SEALERS: usize = 3;
const RENEWALS: u8 = 2;
const TRIES: u8 = 2;
/// Datagrams started.
const STARTS: u8 = 5;

/// A rule that can be removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RemovedRule {
    Nothing,
    /// The commit word is read again before another generation begins.
    Reread,
    /// Another generation begins by compare-and-swap, and not by a store.
    Compare,
    /// A number is taken by one addition, and not by a load and a store.
    Addition,
    /// A sealer takes the generation from the word that its own addition returned, not from an earlier word.
    OwnWord,
}

/// The state of a sealer, which has the key of `generation`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Step {
    ReadCommit,
    Add { generation: u8, tries: u8 },
    Store { generation: u8, word: u64, tries: u8 },
    Reread { generation: u8, word: u64, tries: u8 },
    Begin { generation: u8, word: u64, tries: u8 },
    AddBlindly { generation: u8 },
    Done,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Model {
    /// The generation of the commit word.
    commit: u8,
    /// The word that counts messages towards the device, with its generation.
    down: u64,
    sealers: [Step; SEALERS],
    /// Key and number of all sealed messages.
    used: BTreeSet<(u8, u64)>,
    repeated: bool,
    starts: u8,
}

impl Model {
    fn use_number(&mut self, generation: u8, number: u64) -> Step {
        self.repeated |= !self.used.insert((generation, number));
        Step::Done
    }

    /// Performs the next access of the sealer.
    fn step(&mut self, sealer: usize, without: RemovedRule) {
        self.sealers[sealer] = match self.sealers[sealer] {
            Step::ReadCommit => Step::Add {
                generation: self.commit,
                tries: TRIES,
            },
            Step::Add { generation, tries } if without == RemovedRule::Addition => {
                let word = self.down;
                Step::Store {
                    generation,
                    word,
                    tries,
                }
            }
            Step::Add { generation, tries } => {
                self.down += 1;
                self.check_generation(generation, self.down, tries)
            }
            Step::Store {
                generation,
                word,
                tries,
            } => {
                self.down = word + 1;
                self.check_generation(generation, word + 1, tries)
            }
            Step::Reread {
                generation,
                word,
                tries,
            } if self.commit == generation || without == RemovedRule::Reread => Step::Begin {
                generation,
                word,
                tries,
            },
            Step::Reread { .. } => Step::Done,
            Step::Begin {
                generation,
                word,
                tries,
            } => {
                if self.down == word || without == RemovedRule::Compare {
                    self.down = DownCounter(self.down).take_number(generation).0.0;
                    self.use_number(generation, DownCounter(self.down).count())
                } else if without == RemovedRule::OwnWord && DownCounter(self.down).generation() == generation
                {
                    Step::AddBlindly { generation }
                } else if tries > 1 {
                    // Start over: the generation is checked in the word that an addition returned.
                    Step::Add {
                        generation,
                        tries: tries - 1,
                    }
                } else {
                    Step::Done
                }
            }
            Step::AddBlindly { generation } => {
                self.down += 1;
                self.use_number(generation, DownCounter(self.down).count())
            }
            Step::Done => Step::Done,
        };
    }

    /// Uses the number in the word that an addition returned, if this word has the sealer's generation.
    fn check_generation(&mut self, generation: u8, word: u64, tries: u8) -> Step {
        if DownCounter(word).generation() == generation {
            self.use_number(generation, DownCounter(word).count())
        } else {
            Step::Reread {
                generation,
                word,
                tries,
            }
        }
    }
}

/// Returns whether some interleaving uses a number twice, and the number of visited states.
fn explore(without: RemovedRule) -> (bool, usize) {
    let start = Model {
        commit: 1,
        down: 0,
        sealers: [Step::ReadCommit; SEALERS],
        used: BTreeSet::new(),
        repeated: false,
        starts: SEALERS as u8,
    };
    let mut visited = HashSet::from([start.clone()]);
    let mut unexplored = vec![start];
    while let Some(model) = unexplored.pop() {
        if model.repeated {
            return (true, visited.len());
        }
        let mut next = Vec::new();
        for sealer in 0..SEALERS {
            let mut model = model.clone();
            model.step(sealer, without);
            next.push(model);
        }
        if model.commit <= RENEWALS {
            let mut model = model.clone();
            model.commit += 1;
            next.push(model);
        }
        // A finished sealer seals again.
        for sealer in 0..SEALERS {
            if model.sealers[sealer] == Step::Done && model.starts < STARTS {
                let mut model = model.clone();
                model.sealers[sealer] = Step::ReadCommit;
                model.starts += 1;
                next.push(model);
            }
        }
        unexplored.extend(next.into_iter().filter(|model| visited.insert(model.clone())));
    }
    (false, visited.len())
}

#[test]
fn no_interleaving_uses_a_number_twice_under_one_key() {
    let (repeats, states) = explore(RemovedRule::Nothing);
    assert!(!repeats);
    assert!(states > 10_000, "{states} states");
}

#[test]
fn every_rule_is_needed() {
    for without in [
        RemovedRule::Reread,
        RemovedRule::Compare,
        RemovedRule::Addition,
        RemovedRule::OwnWord,
    ] {
        assert!(explore(without).0, "{without:?}");
    }
}
