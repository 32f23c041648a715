//! Group outages: a round without any proof of a group is evidence about the network or the gateway, rather than
//! about each device (`docs/adr/0023-rounds-without-any-proof.md`).

use std::collections::HashMap;

use linewarden_registry::{GroupName, GroupPolicy};

use super::history::ProofOutcome;

/// Minimum number of compliant devices that must miss a round at once for an outage.
const OUTAGE_DEVICES_MIN: u32 = 3;

/// A round without any proof of a group whose devices were compliant before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupOutage {
    /// Number of challenged devices.
    pub requested: u32,
    /// Number of such rounds since the last complete round, including this one.
    pub excused: u32,
    /// Maximum number of such rounds that count for no quarantine.
    pub excused_max: u32,
}

/// The classification of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoundKind {
    /// All devices have sent a proof; a previous outage has ended.
    Complete,
    /// No device has sent a proof, and the round counts for no quarantine.
    Outage(GroupOutage),
    /// Each device is judged by its own outcome.
    Individual,
}

/// Excused rounds of each group since its last complete round. After as many rounds as quarantine a single device,
/// outages count: an attacker who blocks a whole group must not hide a changed device for longer. A partial round
/// does not reset the count, because the attacker could let one proof pass from time to time.
#[derive(Debug, Default)]
pub(super) struct OutageTracker {
    excused_rounds: HashMap<GroupName, u32>,
}

impl OutageTracker {
    /// Classifies a round by the outcomes of all devices that are not in quarantine, and whether each was compliant
    /// before.
    pub(super) fn classify(
        &self,
        group: &GroupName,
        policy: &GroupPolicy,
        observations: impl Iterator<Item = (ProofOutcome, bool)>,
    ) -> RoundKind {
        let (mut requested, mut responded, mut well) = (0u32, 0u32, 0u32);
        for (outcome, was_well) in observations {
            requested += 1;
            responded += u32::from(outcome != ProofOutcome::Missed);
            well += u32::from(was_well);
        }
        let before = self.excused_rounds.get(group).copied().unwrap_or(0);
        let is_sudden = before > 0 || well >= OUTAGE_DEVICES_MIN;
        if requested > 0 && responded == requested {
            RoundKind::Complete
        } else if responded == 0
            && requested >= OUTAGE_DEVICES_MIN
            && is_sudden
            && before < policy.missed_limit
        {
            RoundKind::Outage(GroupOutage {
                requested,
                excused: before + 1,
                excused_max: policy.missed_limit,
            })
        } else {
            RoundKind::Individual
        }
    }

    /// Stores the classification after the round is recorded.
    pub(super) fn record(&mut self, group: &GroupName, kind: RoundKind) {
        match kind {
            RoundKind::Complete => {
                self.excused_rounds.remove(group);
            }
            RoundKind::Outage(outage) => {
                self.excused_rounds.insert(group.clone(), outage.excused);
            }
            RoundKind::Individual => {}
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may")]
mod tests {
    use linewarden_protocol::gateway::Configuration::Current;

    use super::*;

    const OK: ProofOutcome = ProofOutcome::Ok(Current);
    const MISSED: ProofOutcome = ProofOutcome::Missed;

    /// Returns whether each round is excused. A round is given by the outcomes of all devices, and by how many were
    /// compliant before.
    fn excused(rounds: &[(&[ProofOutcome], usize)]) -> Vec<bool> {
        let group = GroupName::new("pumps").unwrap();
        let policy = GroupPolicy {
            missed_limit: 2,
            window_rounds: 3,
            ..GroupPolicy::default()
        };
        let mut tracker = OutageTracker::default();
        let mut all = Vec::new();
        for (outcomes, well) in rounds {
            let observations = outcomes
                .iter()
                .enumerate()
                .map(|(at, outcome)| (*outcome, at < *well));
            let kind = tracker.classify(&group, &policy, observations);
            tracker.record(&group, kind);
            all.push(matches!(kind, RoundKind::Outage(_)));
        }
        all
    }

    #[test]
    fn as_many_rounds_are_excused_as_quarantine_a_device() {
        let silence: (&[ProofOutcome], usize) = (&[MISSED; 3], 0);
        let rounds = [(&[MISSED; 3][..], 3), silence, silence, silence];
        assert_eq!(excused(&rounds), [true, true, false, false]);
    }

    #[test]
    fn missed_proofs_of_two_or_of_noncompliant_devices_are_no_outage() {
        assert_eq!(excused(&[(&[MISSED; 2], 2)]), [false]);
        assert_eq!(excused(&[(&[MISSED; 9], 2)]), [false]);
        assert_eq!(excused(&[(&[MISSED, MISSED, MISSED, OK], 4)]), [false]);
    }

    /// An attacker who blocks a group from time to time, to hide one changed device, gains no further excused rounds.
    #[test]
    fn only_a_complete_round_resets_the_excused_rounds() {
        let cut: (&[ProofOutcome], usize) = (&[MISSED; 4], 3);
        let one_hidden: (&[ProofOutcome], usize) = (&[MISSED, OK, OK, OK], 3);
        let rounds = [cut, one_hidden, cut, one_hidden, cut, one_hidden, cut];
        assert_eq!(excused(&rounds), [true, false, true, false, false, false, false]);
        let all: (&[ProofOutcome], usize) = (&[OK; 4], 0);
        assert_eq!(
            excused(&[cut, cut, all, cut, cut, cut]),
            [true, true, false, true, true, false]
        );
    }
}
