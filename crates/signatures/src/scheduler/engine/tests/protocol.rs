//! All interleavings of the steps by which producers and lanes ensure that no submission is forgotten: see
//! [`submission_queue`](super::super::submission_queue). A step is one atomic access, or the work under the lock; steps are
//! sequentially consistent, as the fences guarantee for the relevant accesses.

use std::collections::HashSet;

/// The number of jobs that each producer submits, the number of waiting jobs that each lane requires (0: the lane does
/// not exist), and the removed rule.
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
    /// Whether an unparking of the lane is remembered.
    tokens: [bool; 2],
    /// Number of jobs that are assigned to each lane.
    assigned: [usize; 2],
    /// The queued submissions, each with its number of jobs.
    inbox: Vec<usize>,
    /// Number of queued jobs, as counted by the producers.
    count: usize,
    /// The published lane to wake, and the number of queued jobs at which the lane is woken.
    call: Option<(usize, usize)>,
    /// Number of jobs that wait in the core.
    waiting: usize,
    /// Number of completed jobs.
    completed: usize,
    is_locked: bool,
}

impl State {
    fn new(setting: Setting) -> Self {
        let initial_step = |jobs: usize| {
            if jobs == 0 {
                Producer::Done
            } else {
                Producer::Count
            }
        };
        Self {
            producers: setting.producers.map(initial_step),
            lanes: setting
                .lanes
                .map(|required| if required == 0 { Lane::Parked } else { Lane::Turn }),
            tokens: [false; 2],
            assigned: [0; 2],
            inbox: Vec::new(),
            count: 0,
            call: None,
            waiting: 0,
            completed: 0,
            is_locked: false,
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
    fn produce(&mut self, producer: usize, setting: Setting) -> bool {
        let jobs = setting.producers[producer];
        let late_push = setting.rule == Some(Rule::PushBeforeCalling);
        self.producers[producer] = match self.producers[producer] {
            Producer::Count => {
                self.count += jobs;
                if late_push { Producer::Read } else { Producer::Push }
            }
            Producer::Push => {
                self.inbox.push(jobs);
                if late_push { Producer::Done } else { Producer::Read }
            }
            Producer::Read => Producer::Take(self.call.filter(|(_, missing)| self.count >= *missing)),
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

    fn is_idle(&self, lane: usize, setting: Setting) -> bool {
        setting.lanes[lane] > 0 && self.assigned[lane] == 0 && self.lanes[lane] != Lane::Work
    }

    fn empty_inbox(&mut self, lane: usize) {
        self.is_locked = true;
        for jobs in std::mem::take(&mut self.inbox) {
            self.count -= jobs;
            self.waiting += jobs;
        }
        self.lanes[lane] = Lane::Publish;
    }

    fn publish(&mut self, this_lane: usize, setting: Setting) {
        self.is_locked = false;
        for lane in 0..2 {
            if self.is_idle(lane, setting) && self.waiting >= setting.lanes[lane] {
                self.assigned[lane] = std::mem::take(&mut self.waiting);
                if lane != this_lane {
                    self.unpark(lane, setting);
                }
            }
        }
        self.lanes[this_lane] = if self.assigned[this_lane] > 0 {
            Lane::Work
        } else {
            Lane::Look
        };
        let missing = |required: usize| {
            if setting.rule == Some(Rule::PublishWhatIsMissing) {
                required
            } else {
                required - self.waiting
            }
        };
        let idle = (0..2).filter(|lane| self.is_idle(*lane, setting));
        self.call = idle
            .map(|lane| (lane, missing(setting.lanes[lane])))
            .min_by_key(|(lane, missing_jobs)| (*missing_jobs, *lane));
    }

    /// The next step of a lane; false if there is none.
    fn work(&mut self, lane: usize, setting: Setting) -> bool {
        match self.lanes[lane] {
            Lane::Turn if self.is_locked => return false,
            Lane::Turn => self.empty_inbox(lane),
            Lane::Publish => self.publish(lane, setting),
            Lane::Look => {
                let look_after_publishing = setting.rule != Some(Rule::LookAfterPublishing);
                self.lanes[lane] = if look_after_publishing && !self.inbox.is_empty() {
                    Lane::Turn
                } else {
                    Lane::Park
                };
            }
            Lane::Park => {
                self.lanes[lane] = if std::mem::take(&mut self.tokens[lane]) {
                    Lane::Turn
                } else {
                    Lane::Parked
                };
            }
            Lane::Work => {
                self.completed += std::mem::take(&mut self.assigned[lane]);
                self.lanes[lane] = Lane::Turn;
            }
            Lane::Parked => return false,
        }
        true
    }

    /// The error in a final state, if there is one.
    fn final_error(&self, setting: Setting) -> Option<&'static str> {
        let smallest = setting.lanes.into_iter().filter(|required| *required > 0).min();
        if !self.inbox.is_empty() || self.assigned != [0; 2] {
            let count: usize = self.inbox.iter().sum::<usize>() + self.waiting;
            // Too few jobs for a lane may stay here until its timer.
            return (self.assigned != [0; 2] || Some(count) >= smallest)
                .then_some("queued jobs, and all lanes are parked");
        }
        (Some(self.waiting) >= smallest).then_some("waiting jobs, and all lanes are parked")
    }
}

/// Explores all interleavings. Returns the number of states, or the error of one state.
fn explore(setting: Setting) -> Result<usize, String> {
    let mut seen = HashSet::new();
    let mut unexplored = vec![State::new(setting)];
    while let Some(state) = unexplored.pop() {
        if !seen.insert(state.clone()) {
            continue;
        }
        let mut has_step = false;
        for producer in 0..3 {
            let mut next = state.clone();
            if next.produce(producer, setting) {
                unexplored.push(next);
                has_step = true;
            }
        }
        for lane in 0..2 {
            let mut next = state.clone();
            if next.work(lane, setting) {
                unexplored.push(next);
                has_step = true;
            }
        }
        if !has_step {
            let problem = state.final_error(setting);
            if let Some(problem) = problem {
                return Err(format!("{problem}: {state:?}"));
            }
            let submitted: usize = setting.producers.iter().sum();
            let accounted = state.inbox.iter().sum::<usize>() + state.waiting + state.completed;
            assert_eq!(accounted, submitted, "{state:?}");
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
            .map(|result| result.as_ref().ok())
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
