//! All interleavings of the steps by which producers and lanes ensure that no submission is forgotten: see
//! [`submission_queue`](super::super::submission_queue). A step is one atomic access, or the work under the lock; steps are
//! sequentially consistent, as the fences guarantee for the relevant accesses.

use std::collections::HashSet;

/// Jobs that each producer submits, and the number of jobs from which on each lane works.
#[derive(Clone, Copy)]
struct Setting {
    producers: [usize; 3],
    lanes: [usize; 2],
    rule: Option<Rule>,
}

/// A rule that is removed to show that it is necessary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rule {
    LookAfterPublishing,
    PushBeforeCalling,
    UnparkingIsRemembered,
    PublishWhatIsMissing,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Producer {
    Count,
    Push,
    Read,
    Take(Option<(usize, usize)>),
    Unpark(usize),
    Done,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Lane {
    /// Takes the lock when it is free, and empties the queue.
    Turn,
    /// Decides, publishes, and releases the lock.
    Publish,
    Look,
    Park,
    /// Parked in the kernel.
    Parked,
    Work,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    producers: [Producer; 3],
    lanes: [Lane; 2],
    tokens: [bool; 2],
    slots: [usize; 2],
    inbox: Vec<usize>,
    count: usize,
    call: Option<(usize, usize)>,
    waiting: usize,
    worked: usize,
    locked: bool,
}

impl State {
    fn new(setting: Setting) -> Self {
        let absent = |jobs: usize| {
            if jobs == 0 {
                Producer::Done
            } else {
                Producer::Count
            }
        };
        Self {
            producers: setting.producers.map(absent),
            lanes: setting
                .lanes
                .map(|from| if from == 0 { Lane::Parked } else { Lane::Turn }),
            tokens: [false; 2],
            slots: [0; 2],
            inbox: Vec::new(),
            count: 0,
            call: None,
            waiting: 0,
            worked: 0,
            locked: false,
        }
    }

    fn unpark(&mut self, lane: usize, setting: Setting) {
        if self.lanes[lane] == Lane::Parked {
            self.lanes[lane] = Lane::Turn;
        } else if setting.rule != Some(Rule::UnparkingIsRemembered) {
            self.tokens[lane] = true;
        }
    }

    /// The next step of a producer; false if there is none.
    fn produce(&mut self, at: usize, setting: Setting) -> bool {
        let jobs = setting.producers[at];
        let late_push = setting.rule == Some(Rule::PushBeforeCalling);
        self.producers[at] = match self.producers[at] {
            Producer::Count => {
                self.count += jobs;
                if late_push { Producer::Read } else { Producer::Push }
            }
            Producer::Push => {
                self.inbox.push(jobs);
                if late_push { Producer::Done } else { Producer::Read }
            }
            Producer::Read => Producer::Take(self.call.filter(|(_, more)| self.count >= *more)),
            Producer::Take(None) => {
                if late_push {
                    Producer::Push
                } else {
                    Producer::Done
                }
            }
            Producer::Take(call) => match call {
                Some((lane, _)) if self.call == call => {
                    self.call = None;
                    Producer::Unpark(lane)
                }
                _ => Producer::Done,
            },
            Producer::Unpark(lane) => {
                self.unpark(lane, setting);
                if late_push { Producer::Push } else { Producer::Done }
            }
            Producer::Done => return false,
        };
        true
    }

    fn idle(&self, lane: usize, setting: Setting) -> bool {
        setting.lanes[lane] > 0 && self.slots[lane] == 0 && self.lanes[lane] != Lane::Work
    }

    fn take_in(&mut self, me: usize) {
        self.locked = true;
        for jobs in std::mem::take(&mut self.inbox) {
            self.count -= jobs;
            self.waiting += jobs;
        }
        self.lanes[me] = Lane::Publish;
    }

    fn publish(&mut self, me: usize, setting: Setting) {
        self.locked = false;
        for lane in 0..2 {
            if self.idle(lane, setting) && self.waiting >= setting.lanes[lane] {
                self.slots[lane] = std::mem::take(&mut self.waiting);
                if lane != me {
                    self.unpark(lane, setting);
                }
            }
        }
        self.lanes[me] = if self.slots[me] > 0 {
            Lane::Work
        } else {
            Lane::Look
        };
        let missing = |from: usize| {
            if setting.rule == Some(Rule::PublishWhatIsMissing) {
                from
            } else {
                from - self.waiting
            }
        };
        let idle = (0..2).filter(|lane| self.idle(*lane, setting));
        self.call = idle
            .map(|lane| (lane, missing(setting.lanes[lane])))
            .min_by_key(|(lane, more)| (*more, *lane));
    }

    /// The next step of a lane; false if there is none.
    fn work(&mut self, me: usize, setting: Setting) -> bool {
        match self.lanes[me] {
            Lane::Turn if self.locked => return false,
            Lane::Turn => self.take_in(me),
            Lane::Publish => self.publish(me, setting),
            Lane::Look => {
                let look_after_publishing = setting.rule != Some(Rule::LookAfterPublishing);
                self.lanes[me] = if look_after_publishing && !self.inbox.is_empty() {
                    Lane::Turn
                } else {
                    Lane::Park
                };
            }
            Lane::Park => {
                self.lanes[me] = if std::mem::take(&mut self.tokens[me]) {
                    Lane::Turn
                } else {
                    Lane::Parked
                };
            }
            Lane::Work => {
                self.worked += std::mem::take(&mut self.slots[me]);
                self.lanes[me] = Lane::Turn;
            }
            Lane::Parked => return false,
        }
        true
    }

    /// The error in a final state, if there is one.
    fn end(&self, setting: Setting) -> Option<&'static str> {
        let smallest = setting.lanes.into_iter().filter(|from| *from > 0).min();
        if !self.inbox.is_empty() || self.slots != [0; 2] {
            let count: usize = self.inbox.iter().sum::<usize>() + self.waiting;
            // Too few jobs for a lane may stay here until its timer.
            return (self.slots != [0; 2] || Some(count) >= smallest)
                .then_some("queued jobs, and all lanes are parked");
        }
        (Some(self.waiting) >= smallest).then_some("waiting jobs, and all lanes are parked")
    }
}

/// Explores all interleavings. Returns the number of states, or the error of one.
fn explore(setting: Setting) -> Result<usize, String> {
    let mut seen = HashSet::new();
    let mut open = vec![State::new(setting)];
    while let Some(state) = open.pop() {
        if !seen.insert(state.clone()) {
            continue;
        }
        let mut moves = false;
        for at in 0..3 {
            let mut next = state.clone();
            if next.produce(at, setting) {
                open.push(next);
                moves = true;
            }
        }
        for lane in 0..2 {
            let mut next = state.clone();
            if next.work(lane, setting) {
                open.push(next);
                moves = true;
            }
        }
        if !moves {
            let problem = state.end(setting);
            if let Some(problem) = problem {
                return Err(format!("{problem}: {state:?}"));
            }
            let submitted: usize = setting.producers.iter().sum();
            let here = state.inbox.iter().sum::<usize>() + state.waiting + state.worked;
            assert_eq!(here, submitted, "{state:?}");
        }
    }
    Ok(seen.len())
}

const SETTINGS: [([usize; 3], [usize; 2]); 7] = [
    ([1, 0, 0], [1, 0]),
    ([1, 1, 1], [1, 0]),
    ([1, 1, 0], [1, 1]),
    ([1, 2, 0], [3, 0]),
    ([1, 1, 1], [3, 0]),
    ([2, 1, 0], [3, 1]),
    ([2, 2, 0], [3, 4]),
];

fn failures(rule: Option<Rule>) -> Vec<String> {
    let explored = SETTINGS.map(|(producers, lanes)| {
        explore(Setting {
            producers,
            lanes,
            rule,
        })
    });
    println!(
        "{rule:?}: {:?}",
        explored
            .iter()
            .map(|found| found.as_ref().ok())
            .collect::<Vec<_>>()
    );
    explored.into_iter().filter_map(Result::err).collect()
}

#[test]
fn no_interleaving_loses_a_submission() {
    assert_eq!(failures(None), Vec::<String>::new());
}

#[test]
fn every_rule_is_needed() {
    for rule in [
        Rule::LookAfterPublishing,
        Rule::PushBeforeCalling,
        Rule::UnparkingIsRemembered,
        Rule::PublishWhatIsMissing,
    ] {
        assert!(
            !failures(Some(rule)).is_empty(),
            "no submission is forgotten without {rule:?}"
        );
    }
}
