//! Which group's round is due.

use linewarden_controller::attest::GroupPlan;
use linewarden_registry::GroupName;

/// A group's time to answer counts in full up to this, however often it is asked, ms.
const ANSWER_MS_FLOOR: u64 = 1_000;

/// For how long a proof is in time, ms: a quarter of the interval at most. A round with a silent member is open for twice that.
fn answer_ms(plan: &GroupPlan) -> u64 {
    let quarter_ms = u64::from(plan.policy.every_s) * 250;
    u64::from(plan.policy.answer_ms).min(quarter_ms.max(ANSWER_MS_FLOOR))
}

/// A group whose round is to begin.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Due {
    /// Members refer to it by this.
    pub(super) id: u32,
    pub(super) group: GroupPlan,
    /// For how long a proof is in time, ms.
    pub(super) answer_ms: u64,
    /// Whether its round can be open for so long that others must not wait for it.
    pub(super) is_long: bool,
}

/// A group whose round is open: it gets no second one beside it, for who has answered the later of two refuses the earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Busy {
    pub(super) id: u32,
    /// While one is, the other place is for rounds that are not.
    pub(super) is_long: bool,
}

/// When each group is asked next.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    groups: Vec<Timed>,
    /// Never given twice, or members of a group that is gone would be those of another.
    next_id: u32,
}

#[derive(Debug)]
struct Timed {
    plan: GroupPlan,
    /// Members refer to it by this, which stays while the group is there.
    id: u32,
    due_ns: u64,
}

impl Schedule {
    /// Takes notice of how the groups are now. One that is new is asked at once: who attests it has just started.
    pub(super) fn follow(&mut self, plans: &[GroupPlan], now_ns: u64) {
        let mut groups = Vec::with_capacity(plans.len());
        for plan in plans {
            let known = self.groups.iter().find(|group| group.plan.name == plan.name);
            let (id, due_ns) = match known {
                Some(known) if plan.rounds_wanted > known.plan.rounds_wanted => (known.id, now_ns),
                // A shorter interval counts from now.
                Some(known) => (
                    known.id,
                    known.due_ns.min(now_ns.saturating_add(interval_ns(plan))),
                ),
                None => {
                    self.next_id += 1;
                    (self.next_id - 1, now_ns)
                }
            };
            groups.push(Timed {
                plan: plan.clone(),
                id,
                due_ns,
            });
        }
        self.groups = groups;
    }

    pub(super) fn id(&self, name: &GroupName) -> Option<u32> {
        let group = self.groups.iter().find(|group| group.plan.name == *name)?;
        Some(group.id)
    }

    /// The group that has waited longest, if one is due that may have a round beside these; it is due again an interval
    /// later. `jitter` is random.
    pub(super) fn take_due(&mut self, now_ns: u64, jitter: u64, open: &[Busy]) -> Option<Due> {
        let long_ms = self.long_ms();
        let group = self
            .groups
            .iter_mut()
            .filter(|group| group.due_ns <= now_ns && group.may_begin(long_ms, open))
            .min_by_key(|group| group.due_ns)?;
        let every_ns = interval_ns(&group.plan);
        let spread_ns = seconds_ns(group.plan.policy.jitter_s);
        // From `spread` before the interval's end to as much after it.
        let shift_ns = jitter.checked_rem(2 * spread_ns).unwrap_or(0);
        group.due_ns = now_ns
            .saturating_add(every_ns)
            .saturating_add(shift_ns)
            .saturating_sub(spread_ns);
        Some(Due {
            id: group.id,
            group: group.plan.clone(),
            answer_ms: answer_ms(&group.plan),
            is_long: group.is_long(long_ms),
        })
    }

    /// When the next group is due that may have a round beside these, monotonic clock.
    pub(super) fn due_ns(&self, open: &[Busy]) -> Option<u64> {
        let long_ms = self.long_ms();
        let groups = self.groups.iter();
        groups
            .filter(|group| group.may_begin(long_ms, open))
            .map(|group| group.due_ns)
            .min()
    }

    /// A round that may be open for longer than this, ms, is a long one: half of the shortest interval.
    fn long_ms(&self) -> u64 {
        let every_s = self.groups.iter().map(|group| group.plan.policy.every_s).min();
        (u64::from(every_s.unwrap_or_default()) * 500).max(2 * ANSWER_MS_FLOOR)
    }
}

impl Timed {
    fn is_long(&self, long_ms: u64) -> bool {
        2 * answer_ms(&self.plan) > long_ms
    }

    fn may_begin(&self, long_ms: u64, open: &[Busy]) -> bool {
        open.iter()
            .all(|open| open.id != self.id && !(open.is_long && self.is_long(long_ms)))
    }
}

fn seconds_ns(seconds: u32) -> u64 {
    u64::from(seconds) * 1_000_000_000
}

fn interval_ns(plan: &GroupPlan) -> u64 {
    seconds_ns(plan.policy.every_s)
}

#[cfg(test)]
mod tests {
    use linewarden_registry::GroupPolicy;

    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;
    /// Of a group that is none of the tests'.
    const LONG: Busy = Busy {
        id: u32::MAX,
        is_long: true,
    };

    fn plan(name: &str, every_s: u32, rounds_wanted: u64) -> GroupPlan {
        GroupPlan {
            name: GroupName::new(name).unwrap(),
            policy: GroupPolicy {
                every_s,
                jitter_s: every_s / 10,
                ..GroupPolicy::default()
            },
            rounds_wanted,
        }
    }

    #[test]
    fn groups_take_turns_and_come_again_within_the_jitter() {
        let mut schedule = Schedule::default();
        schedule.follow(&[plan("a", 60, 0), plan("b", 60, 0)], 100);
        let first = schedule.take_due(100, 7 * SECOND_NS, &[]).unwrap();
        let second = schedule.take_due(100, 0, &[]).unwrap();
        assert_ne!(first.id, second.id);
        assert_eq!(schedule.take_due(100, 0, &[]), None);
        for jitter in [0, 5 * SECOND_NS, u64::MAX] {
            let mut schedule = Schedule::default();
            schedule.follow(&[plan("a", 60, 0)], 0);
            schedule.take_due(0, jitter, &[]).unwrap();
            let due_ns = schedule.due_ns(&[]).unwrap();
            assert!((54 * SECOND_NS..66 * SECOND_NS).contains(&due_ns), "{due_ns}");
        }
    }

    #[test]
    fn a_round_that_is_ordered_is_due_once() {
        let mut schedule = Schedule::default();
        schedule.follow(&[plan("a", 60, 4)], 0);
        schedule.take_due(0, 0, &[]).unwrap();
        schedule.follow(&[plan("a", 60, 4)], 10);
        assert_eq!(schedule.take_due(10, 0, &[]), None);
        schedule.follow(&[plan("a", 60, 5)], 20);
        assert!(schedule.take_due(20, 0, &[]).is_some());
        schedule.follow(&[plan("a", 60, 5)], 30);
        assert_eq!(schedule.take_due(30, 0, &[]), None);
    }

    #[test]
    fn a_shorter_interval_counts_at_once_and_numbers_stay() {
        let mut schedule = Schedule::default();
        schedule.follow(&[plan("a", 3_600, 0), plan("b", 60, 0)], 0);
        let id = schedule.id(&GroupName::new("b").unwrap());
        schedule.take_due(0, 0, &[]).unwrap();
        schedule.take_due(0, 0, &[]).unwrap();
        schedule.follow(&[plan("b", 1, 0)], 5);
        assert_eq!(schedule.due_ns(&[]), Some(SECOND_NS + 5));
        assert_eq!(schedule.id(&GroupName::new("b").unwrap()), id);
    }

    #[test]
    fn a_group_gets_no_second_round_beside_its_own() {
        let mut schedule = Schedule::default();
        schedule.follow(&[plan("a", 60, 0)], 0);
        let Due { id, is_long, .. } = schedule.take_due(0, 0, &[]).unwrap();
        // Ordered while that one is open.
        schedule.follow(&[plan("a", 60, 1)], 10);
        let open = [Busy { id, is_long }];
        assert_eq!(
            (schedule.due_ns(&open), schedule.take_due(10, 0, &open)),
            (None, None)
        );
        assert_eq!(schedule.take_due(10, 0, &[]).unwrap().id, id);
    }

    #[test]
    fn no_group_gets_the_number_of_one_that_is_gone() {
        let mut schedule = Schedule::default();
        let id = |schedule: &Schedule, name| schedule.id(&GroupName::new(name).unwrap()).unwrap();
        schedule.follow(&[plan("a", 60, 0)], 0);
        let gone = id(&schedule, "a");
        schedule.follow(&[], 10);
        schedule.follow(&[plan("b", 60, 0)], 20);
        assert_ne!(id(&schedule, "b"), gone);
    }

    fn with_answer(name: &str, every_s: u32, answer_ms: u32) -> GroupPlan {
        let mut plan = plan(name, every_s, 0);
        plan.policy.answer_ms = answer_ms;
        plan
    }

    #[test]
    fn the_time_to_answer_is_a_quarter_of_the_interval_at_most_but_a_second_at_least() {
        for (every_s, answer, counts) in [
            (60, 2_000, 2_000),
            (60, 59_999, 15_000),
            (3, 2_000, 1_000),
            (1, 800, 800),
            (u32::MAX, u32::MAX, 1_073_741_823_750),
        ] {
            let counts = counts.min(u64::from(answer));
            assert_eq!(answer_ms(&with_answer("a", every_s, answer)), counts, "{every_s}");
        }
    }

    #[test]
    fn while_a_long_round_is_open_those_are_due_that_are_short() {
        let mut schedule = Schedule::default();
        let groups = [
            with_answer("slow", 60, 15_000),
            with_answer("slower", 80, 20_000),
            with_answer("quick", 8, 2_000),
        ];
        schedule.follow(&groups, 0);
        let first = schedule.take_due(0, 0, &[]).unwrap();
        assert!(first.is_long);
        let second = schedule.take_due(0, 0, &[LONG]).unwrap();
        assert_eq!((second.group.name.as_str(), second.is_long), ("quick", false));
        assert_eq!(schedule.take_due(0, 0, &[LONG]), None);
        assert!(schedule.due_ns(&[LONG]).unwrap() > 0);
        assert_eq!(schedule.due_ns(&[]), Some(0));
    }
}
