//! Which group's round is due.

use linewarden_controller::attest::GroupPlan;
use linewarden_registry::GroupName;

/// When each group is asked next.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    groups: Vec<Timed>,
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
        let mut next_id = self.groups.iter().map(|group| group.id + 1).max().unwrap_or(0);
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
                    next_id += 1;
                    (next_id - 1, now_ns)
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

    /// The group that has waited longest, if one is due, and its number; it is due again an interval later. `jitter` is random.
    pub(super) fn take_due(&mut self, now_ns: u64, jitter: u64) -> Option<(u32, GroupPlan)> {
        let group = self
            .groups
            .iter_mut()
            .filter(|group| group.due_ns <= now_ns)
            .min_by_key(|group| group.due_ns)?;
        let every_ns = interval_ns(&group.plan);
        let spread_ns = seconds_ns(group.plan.policy.jitter_s);
        // From `spread` before the interval's end to as much after it.
        let shift_ns = jitter.checked_rem(2 * spread_ns).unwrap_or(0);
        group.due_ns = now_ns
            .saturating_add(every_ns)
            .saturating_add(shift_ns)
            .saturating_sub(spread_ns);
        Some((group.id, group.plan.clone()))
    }

    pub(super) fn due_ns(&self) -> Option<u64> {
        self.groups.iter().map(|group| group.due_ns).min()
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
        let first = schedule.take_due(100, 7 * SECOND_NS).unwrap();
        let second = schedule.take_due(100, 0).unwrap();
        assert_ne!(first.0, second.0);
        assert_eq!(schedule.take_due(100, 0), None);
        for jitter in [0, 5 * SECOND_NS, u64::MAX] {
            let mut schedule = Schedule::default();
            schedule.follow(&[plan("a", 60, 0)], 0);
            schedule.take_due(0, jitter).unwrap();
            let due_ns = schedule.due_ns().unwrap();
            assert!((54 * SECOND_NS..66 * SECOND_NS).contains(&due_ns), "{due_ns}");
        }
    }

    #[test]
    fn a_round_that_is_ordered_is_due_once() {
        let mut schedule = Schedule::default();
        schedule.follow(&[plan("a", 60, 4)], 0);
        schedule.take_due(0, 0).unwrap();
        schedule.follow(&[plan("a", 60, 4)], 10);
        assert_eq!(schedule.take_due(10, 0), None);
        schedule.follow(&[plan("a", 60, 5)], 20);
        assert!(schedule.take_due(20, 0).is_some());
        schedule.follow(&[plan("a", 60, 5)], 30);
        assert_eq!(schedule.take_due(30, 0), None);
    }

    #[test]
    fn a_shorter_interval_counts_at_once_and_numbers_stay() {
        let mut schedule = Schedule::default();
        schedule.follow(&[plan("a", 3_600, 0), plan("b", 60, 0)], 0);
        let id = schedule.id(&GroupName::new("b").unwrap());
        schedule.take_due(0, 0).unwrap();
        schedule.take_due(0, 0).unwrap();
        schedule.follow(&[plan("b", 1, 0)], 5);
        assert_eq!(schedule.due_ns(), Some(SECOND_NS + 5));
        assert_eq!(schedule.id(&GroupName::new("b").unwrap()), id);
    }
}
