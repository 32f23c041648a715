//! The schedule of rounds.

use linewarden_types::{GroupName, GroupPlan};

/// Minimum to which a short interval reduces a group's response time, ms.
const RESPONSE_MS_MIN: u64 = 1_000;

/// Returns the response time of a group, ms: the configured timeout, limited to a quarter of the interval or to
/// [`RESPONSE_MS_MIN`], whichever is longer. A round with a missing proof is open for twice the response time.
fn response_ms(plan: &GroupPlan) -> u64 {
    let quarter_ms = u64::from(plan.policy.every_s) * 250;
    u64::from(plan.policy.proof_timeout_ms).min(quarter_ms.max(RESPONSE_MS_MIN))
}

/// A group whose round starts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DueRound {
    /// The group's id among the members.
    pub(super) id: u32,
    pub(super) group: GroupPlan,
    /// The response time, ms.
    pub(super) response_ms: u64,
    /// Whether the round can be open so long that other groups must not wait for it.
    pub(super) is_long: bool,
}

/// A group with an open round. The group gets no second open round, because a device that has responded to a later
/// round rejects the challenges of an earlier round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenGroup {
    pub(super) id: u32,
    /// Whether the round is long: while it is open, only short rounds may start.
    pub(super) is_long: bool,
}

/// The next round of each group.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    groups: Vec<ScheduledGroup>,
    /// Ids are not reused: otherwise, members of a deleted group would become members of a new group.
    next_id: u32,
}

#[derive(Debug)]
struct ScheduledGroup {
    plan: GroupPlan,
    /// The group's id among the members, constant while the group exists.
    id: u32,
    due_ns: u64,
}

impl Schedule {
    /// Updates the groups. A new group is due at once: the gateway has just started, or the group is new in the plan.
    pub(super) fn update(&mut self, plans: &[GroupPlan], now_ns: u64) {
        let mut groups = Vec::with_capacity(plans.len());
        for plan in plans {
            let current = self.groups.iter().find(|group| group.plan.name == plan.name);
            let (id, due_ns) = match current {
                Some(current) if plan.rounds_requested > current.plan.rounds_requested => {
                    (current.id, now_ns)
                }
                // A shorter interval applies from now.
                Some(current) => (
                    current.id,
                    current.due_ns.min(now_ns.saturating_add(interval_ns(plan))),
                ),
                None => {
                    self.next_id += 1;
                    (self.next_id - 1, now_ns)
                }
            };
            groups.push(ScheduledGroup {
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

    /// Returns the group that has been due longest. Groups that may have no round besides the open rounds are skipped.
    /// The group's next round is due an interval later. `jitter` is a random number.
    pub(super) fn take_due(&mut self, now_ns: u64, jitter: u64, open: &[OpenGroup]) -> Option<DueRound> {
        let long_ms = self.long_ms();
        let group = self
            .groups
            .iter_mut()
            .filter(|group| group.due_ns <= now_ns && group.may_begin(long_ms, open))
            .min_by_key(|group| group.due_ns)?;
        let every_ns = interval_ns(&group.plan);
        let spread_ns = seconds_ns(group.plan.policy.jitter_s);
        // The next round is due from `spread_ns` before the end of the interval to `spread_ns` after the end.
        let shift_ns = jitter.checked_rem(2 * spread_ns).unwrap_or(0);
        group.due_ns = now_ns
            .saturating_add(every_ns)
            .saturating_add(shift_ns)
            .saturating_sub(spread_ns);
        Some(DueRound {
            id: group.id,
            group: group.plan.clone(),
            response_ms: response_ms(&group.plan),
            is_long: group.is_long(long_ms),
        })
    }

    /// Returns when the next group is due, monotonic clock. Groups that may have no round besides the open rounds are
    /// skipped.
    pub(super) fn due_ns(&self, open: &[OpenGroup]) -> Option<u64> {
        let long_ms = self.long_ms();
        let groups = self.groups.iter();
        groups
            .filter(|group| group.may_begin(long_ms, open))
            .map(|group| group.due_ns)
            .min()
    }

    /// Returns the duration above which an open round counts as long, ms: half of the shortest interval, and at least
    /// 2 s.
    fn long_ms(&self) -> u64 {
        let every_s = self.groups.iter().map(|group| group.plan.policy.every_s).min();
        (u64::from(every_s.unwrap_or_default()) * 500).max(2 * RESPONSE_MS_MIN)
    }
}

impl ScheduledGroup {
    fn is_long(&self, long_ms: u64) -> bool {
        2 * response_ms(&self.plan) > long_ms
    }

    fn may_begin(&self, long_ms: u64, open: &[OpenGroup]) -> bool {
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
    use linewarden_types::GroupPolicy;

    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;
    /// The open, long round of a group that the tests do not schedule.
    const LONG: OpenGroup = OpenGroup {
        id: u32::MAX,
        is_long: true,
    };

    fn plan(name: &str, every_s: u32, rounds_requested: u64) -> GroupPlan {
        GroupPlan {
            name: GroupName::new(name).unwrap(),
            policy: GroupPolicy {
                every_s,
                jitter_s: every_s / 10,
                ..GroupPolicy::default()
            },
            rounds_requested,
        }
    }

    #[test]
    fn groups_take_turns_and_are_due_again_within_the_jitter() {
        let mut schedule = Schedule::default();
        schedule.update(&[plan("a", 60, 0), plan("b", 60, 0)], 100);
        let first = schedule.take_due(100, 7 * SECOND_NS, &[]).unwrap();
        let second = schedule.take_due(100, 0, &[]).unwrap();
        assert_ne!(first.id, second.id);
        assert_eq!(schedule.take_due(100, 0, &[]), None);
        for jitter in [0, 5 * SECOND_NS, u64::MAX] {
            let mut schedule = Schedule::default();
            schedule.update(&[plan("a", 60, 0)], 0);
            schedule.take_due(0, jitter, &[]).unwrap();
            let due_ns = schedule.due_ns(&[]).unwrap();
            assert!((54 * SECOND_NS..66 * SECOND_NS).contains(&due_ns), "{due_ns}");
        }
    }

    #[test]
    fn a_requested_round_is_due_once() {
        let mut schedule = Schedule::default();
        schedule.update(&[plan("a", 60, 4)], 0);
        schedule.take_due(0, 0, &[]).unwrap();
        schedule.update(&[plan("a", 60, 4)], 10);
        assert_eq!(schedule.take_due(10, 0, &[]), None);
        schedule.update(&[plan("a", 60, 5)], 20);
        assert!(schedule.take_due(20, 0, &[]).is_some());
        schedule.update(&[plan("a", 60, 5)], 30);
        assert_eq!(schedule.take_due(30, 0, &[]), None);
    }

    #[test]
    fn a_shorter_interval_applies_at_once_and_group_ids_stay() {
        let mut schedule = Schedule::default();
        schedule.update(&[plan("a", 3_600, 0), plan("b", 60, 0)], 0);
        let id = schedule.id(&GroupName::new("b").unwrap());
        schedule.take_due(0, 0, &[]).unwrap();
        schedule.take_due(0, 0, &[]).unwrap();
        schedule.update(&[plan("b", 1, 0)], 5);
        assert_eq!(schedule.due_ns(&[]), Some(SECOND_NS + 5));
        assert_eq!(schedule.id(&GroupName::new("b").unwrap()), id);
    }

    #[test]
    fn a_group_has_one_round_at_a_time() {
        let mut schedule = Schedule::default();
        schedule.update(&[plan("a", 60, 0)], 0);
        let DueRound { id, is_long, .. } = schedule.take_due(0, 0, &[]).unwrap();
        // A round is requested while the first round is open.
        schedule.update(&[plan("a", 60, 1)], 10);
        let open = [OpenGroup { id, is_long }];
        assert_eq!(
            (schedule.due_ns(&open), schedule.take_due(10, 0, &open)),
            (None, None)
        );
        assert_eq!(schedule.take_due(10, 0, &[]).unwrap().id, id);
    }

    #[test]
    fn the_id_of_a_removed_group_is_not_reused() {
        let mut schedule = Schedule::default();
        let id = |schedule: &Schedule, name| schedule.id(&GroupName::new(name).unwrap()).unwrap();
        schedule.update(&[plan("a", 60, 0)], 0);
        let removed = id(&schedule, "a");
        schedule.update(&[], 10);
        schedule.update(&[plan("b", 60, 0)], 20);
        assert_ne!(id(&schedule, "b"), removed);
    }

    fn with_proof_timeout(name: &str, every_s: u32, timeout_ms: u32) -> GroupPlan {
        let mut plan = plan(name, every_s, 0);
        plan.policy.proof_timeout_ms = timeout_ms;
        plan
    }

    #[test]
    fn the_response_time_is_at_most_a_quarter_of_the_interval_but_at_least_a_second() {
        for (every_s, timeout_ms, expected_ms) in [
            (60, 2_000, 2_000),
            (60, 59_999, 15_000),
            (3, 2_000, 1_000),
            (1, 800, 800),
            (u32::MAX, u32::MAX, 1_073_741_823_750),
        ] {
            let expected_ms = expected_ms.min(u64::from(timeout_ms));
            assert_eq!(
                response_ms(&with_proof_timeout("a", every_s, timeout_ms)),
                expected_ms,
                "{every_s}"
            );
        }
    }

    #[test]
    fn only_short_rounds_are_due_while_a_long_round_is_open() {
        let mut schedule = Schedule::default();
        let groups = [
            with_proof_timeout("slow", 60, 15_000),
            with_proof_timeout("slower", 80, 20_000),
            with_proof_timeout("quick", 8, 2_000),
        ];
        schedule.update(&groups, 0);
        let first = schedule.take_due(0, 0, &[]).unwrap();
        assert!(first.is_long);
        let second = schedule.take_due(0, 0, &[LONG]).unwrap();
        assert_eq!((second.group.name.as_str(), second.is_long), ("quick", false));
        assert_eq!(schedule.take_due(0, 0, &[LONG]), None);
        assert!(schedule.due_ns(&[LONG]).unwrap() > 0);
        assert_eq!(schedule.due_ns(&[]), Some(0));
    }
}
