//! Group outages: if no device of a group sends a proof in a round, the network or the gateway is the likely cause, not
//! the devices (`docs/adr/0023-rounds-without-any-proof.md`).

use linewarden_types::{GroupName, GroupOutage, GroupPolicy, ProofOutcome};
use std::collections::HashMap;

/// Minimum number of devices of an outage: fewer devices that miss a round are no outage.
const OUTAGE_DEVICES_MIN: u32 = 3;

/// The classification of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoundKind {
    /// All devices have sent a proof; a previous outage has ended.
    Complete,
    /// No device has sent a proof, and the round does not count toward a quarantine.
    Outage(GroupOutage),
    /// Each device is judged by its own outcome.
    Individual,
}

/// Excused rounds of each group since its last complete round. After `missed_limit` excused rounds, further outages
/// count: an attacker who blocks a whole group must not hide a changed device for longer. A partial round does not
/// reset the count, because the attacker could let one proof pass from time to time.
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
        let (mut requested, mut responded, mut compliant) = (0u32, 0u32, 0u32);
        for (outcome, was_compliant) in observations {
            requested += 1;
            responded += u32::from(outcome != ProofOutcome::Missed);
            compliant += u32::from(was_compliant);
        }
        let excused_before = self.excused_rounds.get(group).copied().unwrap_or(0);
        let is_sudden = excused_before > 0 || compliant >= OUTAGE_DEVICES_MIN;
        if requested > 0 && responded == requested {
            RoundKind::Complete
        } else if responded == 0
            && requested >= OUTAGE_DEVICES_MIN
            && is_sudden
            && excused_before < policy.missed_limit
        {
            RoundKind::Outage(GroupOutage {
                requested,
                excused: excused_before + 1,
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

    /// Returns whether each round is excused. Each round consists of the outcomes of all devices, and of the number of
    /// devices that were compliant before.
    fn excused(rounds: &[(&[ProofOutcome], usize)]) -> Vec<bool> {
        let group = GroupName::new("pumps").unwrap();
        let policy = GroupPolicy {
            missed_limit: 2,
            window_rounds: 3,
            ..GroupPolicy::default()
        };
        let mut tracker = OutageTracker::default();
        let mut is_excused = Vec::new();
        for (outcomes, compliant) in rounds {
            let observations = outcomes
                .iter()
                .enumerate()
                .map(|(index, outcome)| (*outcome, index < *compliant));
            let kind = tracker.classify(&group, &policy, observations);
            tracker.record(&group, kind);
            is_excused.push(matches!(kind, RoundKind::Outage(_)));
        }
        is_excused
    }

    #[test]
    fn outage_rounds_up_to_the_missed_limit_are_excused() {
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
        let blocked: (&[ProofOutcome], usize) = (&[MISSED; 4], 3);
        let one_hidden: (&[ProofOutcome], usize) = (&[MISSED, OK, OK, OK], 3);
        let rounds = [
            blocked, one_hidden, blocked, one_hidden, blocked, one_hidden, blocked,
        ];
        assert_eq!(excused(&rounds), [true, false, true, false, false, false, false]);
        let complete: (&[ProofOutcome], usize) = (&[OK; 4], 0);
        assert_eq!(
            excused(&[blocked, blocked, complete, blocked, blocked, blocked]),
            [true, true, false, true, true, false]
        );
    }
}
