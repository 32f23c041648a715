//! The attestation history of a prover, and the rule for quarantine: m (`missed_limit`) missed proofs in the last N
//! (`window_rounds`) rounds (LAP/1 3.2).

use std::net::IpAddr;

use linewarden_protocol::gateway::Configuration;
use linewarden_registry::AttestationState;
use linewarden_types::{GroupPolicy, ProofOutcome, ReleaseMode};

/// The consequence for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The device is quarantined.
    Quarantine,
    /// The device has proved a valid configuration, and its group's policy releases it automatically.
    Release,
}

/// The attestation history of a prover at one gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProverHistory {
    /// The state after the most recent round.
    pub state: AttestationState,
    /// The time of the last state change, seconds since 1970-01-01 UTC.
    pub since_s: u64,
    /// The round of this gateway with the last state change.
    pub since_round: u32,
    /// The configuration that the prover proved last.
    pub configuration: Configuration,
    /// Number of rounds with this prover at this gateway. Exact while `missed_rounds` is not empty, because a change of
    /// this number alone is not stored ([`Self::differs`]).
    pub rounds_total: u64,
    /// The missed rounds among the last N rounds, oldest first. Each entry is the value of `rounds_total` in that round.
    pub missed_rounds: Vec<u32>,
    /// The address of the last challenge.
    pub address: Option<IpAddr>,
}

impl ProverHistory {
    /// Creates the history of a prover that has proven nothing since its enrollment.
    #[must_use]
    pub fn new(now_s: u64) -> Self {
        Self {
            state: AttestationState::Unproven,
            since_s: now_s,
            since_round: 0,
            configuration: Configuration::Current,
            rounds_total: 0,
            missed_rounds: Vec::new(),
            address: None,
        }
    }

    /// Returns the history after one more round, and the decision about the device. A missing proof does not count for a prover
    /// that has proven nothing since its enrollment: the prover may not have its key yet.
    #[must_use]
    pub fn after_round(
        &self,
        policy: &GroupPolicy,
        round: u32,
        outcome: ProofOutcome,
        now_s: u64,
    ) -> (Self, Option<Decision>) {
        let rounds_total = self.rounds_total.saturating_add(1);
        let is_unproven = self.state == AttestationState::Unproven && outcome == ProofOutcome::Missed;
        let outcome = match outcome {
            ProofOutcome::Late(_) if policy.late_is_missed => ProofOutcome::Missed,
            outcome => outcome,
        };
        let mut missed_rounds = self.missed_rounds.clone();
        if outcome == ProofOutcome::Missed && !is_unproven {
            missed_rounds.push(rounds_total as u32);
        }
        missed_rounds.retain(|missed| (rounds_total as u32).wrapping_sub(*missed) < policy.window_rounds);
        let was_quarantined = self.state == AttestationState::Quarantined;
        let is_limit_reached = missed_rounds.len() >= policy.missed_limit as usize;
        let (state, decision) = match outcome {
            ProofOutcome::Missed if is_unproven => (AttestationState::Unproven, None),
            ProofOutcome::Missed if was_quarantined => (AttestationState::Quarantined, None),
            ProofOutcome::Missed if is_limit_reached => {
                (AttestationState::Quarantined, Some(Decision::Quarantine))
            }
            ProofOutcome::Missed => (AttestationState::Missed, None),
            ProofOutcome::Ok(_) | ProofOutcome::Late(_)
                if was_quarantined && policy.release_mode == ReleaseMode::Manual =>
            {
                (AttestationState::Quarantined, None)
            }
            ProofOutcome::Ok(_) => (AttestationState::Ok, was_quarantined.then_some(Decision::Release)),
            ProofOutcome::Late(_) => (
                AttestationState::Late,
                was_quarantined.then_some(Decision::Release),
            ),
        };
        if decision == Some(Decision::Release) {
            // The missed rounds before the release do not count.
            missed_rounds.clear();
        }
        let is_state_new = state != self.state || self.since_round == 0;
        let after = Self {
            state,
            since_s: if is_state_new { now_s } else { self.since_s },
            since_round: if is_state_new { round } else { self.since_round },
            configuration: match outcome {
                ProofOutcome::Ok(configuration) | ProofOutcome::Late(configuration) => configuration,
                ProofOutcome::Missed => self.configuration,
            },
            rounds_total,
            missed_rounds,
            address: self.address,
        };
        (after, decision)
    }

    /// Returns the history of a device that the operator has released. The device has the state missed until its next
    /// proof, and its earlier missed rounds do not count.
    #[must_use]
    pub fn released(&self) -> Self {
        Self {
            state: AttestationState::Missed,
            missed_rounds: Vec::new(),
            ..self.clone()
        }
    }

    /// Whether a warning is due: the device has been challenged in `window_rounds` rounds and has proven nothing since
    /// its enrollment. True after exactly one round, so the warning is logged once.
    #[must_use]
    pub fn is_due_for_warning(&self, policy: &GroupPolicy) -> bool {
        self.state == AttestationState::Unproven && self.rounds_total == u64::from(policy.window_rounds)
    }

    /// Whether the device is not in quarantine, and its last round does not count as missed.
    #[must_use]
    pub fn is_responsive(&self) -> bool {
        self.state != AttestationState::Quarantined
            && self.missed_rounds.last() != Some(&(self.rounds_total as u32))
    }

    /// Whether the history must be written. Without missed rounds, no decision depends on the number of rounds, so a
    /// changed number is not written: a compliant fleet causes no writes.
    #[must_use]
    pub fn differs(&self, recorded: &Self) -> bool {
        let without_count = |history: &Self| Self {
            rounds_total: if history.missed_rounds.is_empty() {
                0
            } else {
                history.rounds_total
            },
            ..history.clone()
        };
        without_count(self) != without_count(recorded)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn policy(missed_limit: u32, window_rounds: u32, release_mode: ReleaseMode) -> GroupPolicy {
        GroupPolicy {
            missed_limit,
            window_rounds,
            release_mode,
            ..GroupPolicy::default()
        }
    }

    const OK: ProofOutcome = ProofOutcome::Ok(Configuration::Current);

    /// Returns the history of a prover with a valid proof and no missed rounds.
    fn proven() -> ProverHistory {
        ProverHistory {
            state: AttestationState::Ok,
            ..ProverHistory::new(0)
        }
    }

    /// Returns the decisions in a sequence of rounds, each with its round number from 1.
    fn decisions(policy: &GroupPolicy, outcomes: &[ProofOutcome]) -> Vec<(u32, Decision)> {
        decisions_of(proven(), policy, outcomes)
    }

    fn decisions_of(
        mut history: ProverHistory,
        policy: &GroupPolicy,
        outcomes: &[ProofOutcome],
    ) -> Vec<(u32, Decision)> {
        let mut decisions = Vec::new();
        for (number, outcome) in (1..).zip(outcomes) {
            let (after, decision) = history.after_round(policy, number, *outcome, u64::from(number));
            decisions.extend(decision.map(|decision| (number, decision)));
            history = after;
        }
        decisions
    }

    #[test]
    fn a_device_without_any_proof_causes_one_warning() {
        let policy = policy(3, 5, ReleaseMode::Automatic);
        let warning_rounds = |initial: ProverHistory, outcome: ProofOutcome| -> Vec<u32> {
            let mut history = initial;
            let rounds = (1..=20).filter(|round| {
                history = history.after_round(&policy, *round, outcome, u64::from(*round)).0;
                history.is_due_for_warning(&policy)
            });
            rounds.collect()
        };
        assert_eq!(warning_rounds(ProverHistory::new(0), ProofOutcome::Missed), [5]);
        assert_eq!(warning_rounds(ProverHistory::new(0), OK), [0; 0]);
        assert_eq!(warning_rounds(proven(), ProofOutcome::Missed), [0; 0]);
    }

    #[test]
    fn the_third_missed_proof_of_five_rounds_quarantines_and_a_proof_releases() {
        let policy = policy(3, 5, ReleaseMode::Automatic);
        let outcomes = [
            ProofOutcome::Missed,
            OK,
            ProofOutcome::Missed,
            OK,
            ProofOutcome::Missed,
            ProofOutcome::Missed,
            OK,
            OK,
        ];
        let expected = [(5, Decision::Quarantine), (7, Decision::Release)];
        assert_eq!(decisions(&policy, &outcomes), expected);
    }

    #[test]
    fn missed_proofs_outside_the_window_quarantine_no_device() {
        let policy = policy(2, 3, ReleaseMode::Automatic);
        let outcomes = [
            ProofOutcome::Missed,
            OK,
            OK,
            ProofOutcome::Missed,
            OK,
            OK,
            ProofOutcome::Missed,
        ];
        assert_eq!(decisions(&policy, &outcomes), []);
    }

    #[test]
    fn a_proof_does_not_release_if_the_release_mode_is_manual() {
        let policy = policy(1, 1, ReleaseMode::Manual);
        assert_eq!(
            decisions(&policy, &[ProofOutcome::Missed, OK, OK, ProofOutcome::Missed]),
            [(1, Decision::Quarantine)]
        );
    }

    #[test]
    fn missed_proofs_before_a_release_by_command_do_not_count() {
        for release_mode in [ReleaseMode::Automatic, ReleaseMode::Manual] {
            let policy = policy(2, 3, release_mode);
            let (first, _) = proven().after_round(&policy, 1, ProofOutcome::Missed, 1);
            let (quarantined, decision) = first.after_round(&policy, 2, ProofOutcome::Missed, 2);
            assert_eq!(decision, Some(Decision::Quarantine));
            let (third, decision) = quarantined
                .released()
                .after_round(&policy, 3, ProofOutcome::Missed, 3);
            assert_eq!((third.state, decision), (AttestationState::Missed, None));
            let (fourth, decision) = third.after_round(&policy, 4, ProofOutcome::Missed, 4);
            assert_eq!(
                (fourth.state, decision),
                (AttestationState::Quarantined, Some(Decision::Quarantine))
            );
            let (proven, decision) = quarantined.released().after_round(&policy, 3, OK, 3);
            assert_eq!((proven.state, decision), (AttestationState::Ok, None));
        }
    }

    #[test]
    fn missed_proofs_before_the_first_proof_do_not_count() {
        let policy = policy(2, 3, ReleaseMode::Automatic);
        let before = [ProofOutcome::Missed; 9];
        assert_eq!(decisions_of(ProverHistory::new(0), &policy, &before), []);
        let (after, _) = ProverHistory::new(0).after_round(&policy, 7, ProofOutcome::Missed, 70);
        assert_eq!((after.state, after.since_round), (AttestationState::Unproven, 7));
        // Missed proofs before the first proof do not count later either.
        let outcomes = [
            ProofOutcome::Missed,
            ProofOutcome::Missed,
            OK,
            ProofOutcome::Missed,
            ProofOutcome::Missed,
        ];
        assert_eq!(
            decisions_of(ProverHistory::new(0), &policy, &outcomes),
            [(5, Decision::Quarantine)]
        );
        // A late proof is a proof, even if the group counts it as missed.
        let strict = GroupPolicy {
            late_is_missed: true,
            ..policy
        };
        let outcomes = [
            ProofOutcome::Missed,
            ProofOutcome::Late(Configuration::Current),
            ProofOutcome::Missed,
        ];
        assert_eq!(
            decisions_of(ProverHistory::new(0), &strict, &outcomes),
            [(3, Decision::Quarantine)]
        );
    }

    #[test]
    fn late_proofs_count_as_missed_if_the_policy_requires_it() {
        let late = ProofOutcome::Late(Configuration::Alternate);
        let mut strict = policy(2, 2, ReleaseMode::Automatic);
        assert_eq!(decisions(&strict, &[late, late]), []);
        strict.late_is_missed = true;
        assert_eq!(decisions(&strict, &[late, late]), [(2, Decision::Quarantine)]);
    }

    #[test]
    fn an_unchanged_compliant_fleet_is_written_once() {
        let policy = policy(3, 5, ReleaseMode::Automatic);
        let new = ProverHistory::new(1);
        let (first, _) = new.after_round(&policy, 4, OK, 10);
        assert!(first.differs(&new));
        let (second, _) = first.after_round(&policy, 5, OK, 20);
        assert!(!second.differs(&first));
        assert_eq!((second.since_round, second.since_s), (4, 10));
    }

    proptest! {
        #[test]
        fn quarantine_is_exactly_m_of_the_last_n(
            m in 1..6u32,
            extra in 0..6u32,
            outcomes in proptest::collection::vec(any::<bool>(), 1..80),
        ) {
            let window_rounds = m + extra;
            let policy = policy(m, window_rounds, ReleaseMode::Manual);
            let outcomes: Vec<ProofOutcome> = outcomes.iter().map(|ok| if *ok { OK } else { ProofOutcome::Missed }).collect();
            let first = (0..outcomes.len()).find(|index| {
                let window = &outcomes[(index + 1).saturating_sub(window_rounds as usize)..=*index];
                let missed = window.iter().filter(|outcome| **outcome == ProofOutcome::Missed).count();
                missed >= m as usize && outcomes[*index] == ProofOutcome::Missed
            });
            let expected: Vec<_> = first
                .map(|index| (index as u32 + 1, Decision::Quarantine))
                .into_iter()
                .collect();
            prop_assert_eq!(decisions(&policy, &outcomes), expected);
        }
    }
}
