//! How a prover stands after each round that asked it, and when it is quarantined: m silences in the last N (LAP/1 3.2).

use std::net::IpAddr;

use linewarden_protocol::gateway::Configuration;
use linewarden_registry::{GroupPolicy, Reopen, State};

/// What a gateway saw of a prover in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It proved this configuration in time.
    Ok(Configuration),
    /// It proved it, but later than its group allows.
    Late(Configuration),
    /// It proved nothing. Wrong proofs are nothing: anybody can send them.
    Silent,
}

/// What follows for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The gate closes.
    Quarantine,
    /// It proves a valid configuration again, and its group's policy lets it in by itself.
    Readmit,
}

/// How a prover stands at one gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// After the last round that asked it.
    pub state: State,
    /// Since when, seconds since 1970-01-01 UTC.
    pub since_s: u64,
    /// Since which round of this gateway.
    pub since_round: u32,
    /// What it proved last.
    pub configuration: Configuration,
    /// How many rounds have asked it, as far as that was kept: exact while `silences` has any.
    pub asked: u64,
    /// Which of them met silence, by their count in `asked`, oldest first; of the last N only.
    pub silences: Vec<u32>,
    /// Where it was asked last.
    pub address: Option<IpAddr>,
}

impl Standing {
    /// Of a prover that has proven nothing since it was enrolled.
    #[must_use]
    pub fn new(now_s: u64) -> Self {
        Self {
            state: State::Unproven,
            since_s: now_s,
            since_round: 0,
            configuration: Configuration::Current,
            asked: 0,
            silences: Vec::new(),
            address: None,
        }
    }

    /// The standing after one more round, and what follows. Silence says nothing of who has proven nothing since it was enrolled: its
    /// key may not be on it yet.
    #[must_use]
    pub fn after(
        &self,
        policy: &GroupPolicy,
        round: u32,
        seen: Seen,
        now_s: u64,
    ) -> (Self, Option<Decision>) {
        let asked = self.asked.saturating_add(1);
        let is_unproven = self.state == State::Unproven && seen == Seen::Silent;
        let seen = match seen {
            Seen::Late(_) if policy.late_is_silent => Seen::Silent,
            seen => seen,
        };
        let mut silences = self.silences.clone();
        if seen == Seen::Silent && !is_unproven {
            silences.push(asked as u32);
        }
        silences.retain(|at| (asked as u32).wrapping_sub(*at) < policy.of);
        let was_quarantined = self.state == State::Quarantined;
        let is_too_silent = silences.len() >= policy.silent as usize;
        let (state, decision) = match seen {
            Seen::Silent if is_unproven => (State::Unproven, None),
            Seen::Silent if was_quarantined => (State::Quarantined, None),
            Seen::Silent if is_too_silent => (State::Quarantined, Some(Decision::Quarantine)),
            Seen::Silent => (State::Silent, None),
            Seen::Ok(_) | Seen::Late(_) if was_quarantined && policy.reopen == Reopen::ByCommand => {
                (State::Quarantined, None)
            }
            Seen::Ok(_) => (State::Ok, was_quarantined.then_some(Decision::Readmit)),
            Seen::Late(_) => (State::Late, was_quarantined.then_some(Decision::Readmit)),
        };
        if decision == Some(Decision::Readmit) {
            // It begins anew: the silences that led there are atoned for.
            silences.clear();
        }
        let is_new = state != self.state || self.since_round == 0;
        let after = Self {
            state,
            since_s: if is_new { now_s } else { self.since_s },
            since_round: if is_new { round } else { self.since_round },
            configuration: match seen {
                Seen::Ok(configuration) | Seen::Late(configuration) => configuration,
                Seen::Silent => self.configuration,
            },
            asked,
            silences,
            address: self.address,
        };
        (after, decision)
    }

    /// The standing of one that the operator has let in again: it has proven nothing yet, and its silences count anew.
    #[must_use]
    pub fn let_in(&self) -> Self {
        Self {
            state: State::Silent,
            silences: Vec::new(),
            ..self.clone()
        }
    }

    /// Whether the device has just been asked as often as would shut another one out, and has proved nothing since its
    /// enrollment: true after one round.
    #[must_use]
    pub fn is_due_for_warning(&self, policy: &GroupPolicy) -> bool {
        self.state == State::Unproven && self.asked == u64::from(policy.of)
    }

    /// Whether it was not silent the last time that it counted.
    #[must_use]
    pub fn is_answering(&self) -> bool {
        self.state != State::Quarantined && self.silences.last() != Some(&(self.asked as u32))
    }

    /// Whether what is on record of it has to be written anew. A count of rounds alone has not: without silences nothing
    /// depends on it, and a fleet that is well costs no writing.
    #[must_use]
    pub fn differs(&self, recorded: &Self) -> bool {
        let without_count = |standing: &Self| Self {
            asked: if standing.silences.is_empty() {
                0
            } else {
                standing.asked
            },
            ..standing.clone()
        };
        without_count(self) != without_count(recorded)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn policy(silent: u32, of: u32, reopen: Reopen) -> GroupPolicy {
        GroupPolicy {
            silent,
            of,
            reopen,
            ..GroupPolicy::default()
        }
    }

    const OK: Seen = Seen::Ok(Configuration::Current);

    /// Of one that has proven itself, and in no round that counts.
    fn proven() -> Standing {
        Standing {
            state: State::Ok,
            ..Standing::new(0)
        }
    }

    /// The decisions that follow a sequence of rounds, each with its number from 1.
    fn decisions(policy: &GroupPolicy, seen: &[Seen]) -> Vec<(u32, Decision)> {
        decisions_of(proven(), policy, seen)
    }

    fn decisions_of(mut standing: Standing, policy: &GroupPolicy, seen: &[Seen]) -> Vec<(u32, Decision)> {
        let mut decisions = Vec::new();
        for (number, seen) in (1..).zip(seen) {
            let (after, decision) = standing.after(policy, number, *seen, u64::from(number));
            decisions.extend(decision.map(|decision| (number, decision)));
            standing = after;
        }
        decisions
    }

    #[test]
    fn a_device_that_never_proves_anything_is_warned_of_once() {
        let policy = policy(3, 5, Reopen::Automatic);
        let warned_of = |first: Standing, seen: Seen| -> Vec<u32> {
            let mut standing = first;
            let rounds = (1..=20).filter(|round| {
                standing = standing.after(&policy, *round, seen, u64::from(*round)).0;
                standing.is_due_for_warning(&policy)
            });
            rounds.collect()
        };
        assert_eq!(warned_of(Standing::new(0), Seen::Silent), [5]);
        assert_eq!(warned_of(Standing::new(0), OK), [0; 0]);
        assert_eq!(warned_of(proven(), Seen::Silent), [0; 0]);
    }

    #[test]
    fn the_third_silence_of_five_rounds_quarantines_and_a_proof_reopens() {
        let policy = policy(3, 5, Reopen::Automatic);
        let seen = [
            Seen::Silent,
            OK,
            Seen::Silent,
            OK,
            Seen::Silent,
            Seen::Silent,
            OK,
            OK,
        ];
        let expected = [(5, Decision::Quarantine), (7, Decision::Readmit)];
        assert_eq!(decisions(&policy, &seen), expected);
    }

    #[test]
    fn silences_far_apart_quarantine_nobody() {
        let policy = policy(2, 3, Reopen::Automatic);
        let seen = [Seen::Silent, OK, OK, Seen::Silent, OK, OK, Seen::Silent];
        assert_eq!(decisions(&policy, &seen), []);
    }

    #[test]
    fn by_command_a_proof_does_not_reopen() {
        let policy = policy(1, 1, Reopen::ByCommand);
        assert_eq!(
            decisions(&policy, &[Seen::Silent, OK, OK, Seen::Silent]),
            [(1, Decision::Quarantine)]
        );
    }

    #[test]
    fn one_that_was_let_in_by_command_is_judged_anew() {
        for reopen in [Reopen::Automatic, Reopen::ByCommand] {
            let policy = policy(2, 3, reopen);
            let (first, _) = proven().after(&policy, 1, Seen::Silent, 1);
            let (out, decision) = first.after(&policy, 2, Seen::Silent, 2);
            assert_eq!(decision, Some(Decision::Quarantine));
            let (third, decision) = out.let_in().after(&policy, 3, Seen::Silent, 3);
            assert_eq!((third.state, decision), (State::Silent, None));
            let (fourth, decision) = third.after(&policy, 4, Seen::Silent, 4);
            assert_eq!(
                (fourth.state, decision),
                (State::Quarantined, Some(Decision::Quarantine))
            );
            let (proven, decision) = out.let_in().after(&policy, 3, OK, 3);
            assert_eq!((proven.state, decision), (State::Ok, None));
        }
    }

    #[test]
    fn silence_before_the_first_proof_counts_for_nothing() {
        let policy = policy(2, 3, Reopen::Automatic);
        let before = [Seen::Silent; 9];
        assert_eq!(decisions_of(Standing::new(0), &policy, &before), []);
        let (after, _) = Standing::new(0).after(&policy, 7, Seen::Silent, 70);
        assert_eq!((after.state, after.since_round), (State::Unproven, 7));
        // Nor afterwards.
        let seen = [Seen::Silent, Seen::Silent, OK, Seen::Silent, Seen::Silent];
        assert_eq!(
            decisions_of(Standing::new(0), &policy, &seen),
            [(5, Decision::Quarantine)]
        );
        // Too late for its group, but a proof.
        let strict = GroupPolicy {
            late_is_silent: true,
            ..policy
        };
        let seen = [Seen::Silent, Seen::Late(Configuration::Current), Seen::Silent];
        assert_eq!(
            decisions_of(Standing::new(0), &strict, &seen),
            [(3, Decision::Quarantine)]
        );
    }

    #[test]
    fn lateness_is_silence_where_the_policy_says_so() {
        let late = Seen::Late(Configuration::Alternate);
        let mut strict = policy(2, 2, Reopen::Automatic);
        assert_eq!(decisions(&strict, &[late, late]), []);
        strict.late_is_silent = true;
        assert_eq!(decisions(&strict, &[late, late]), [(2, Decision::Quarantine)]);
    }

    #[test]
    fn a_fleet_that_is_well_is_written_once() {
        let policy = policy(3, 5, Reopen::Automatic);
        let new = Standing::new(1);
        let (first, _) = new.after(&policy, 4, OK, 10);
        assert!(first.differs(&new));
        let (second, _) = first.after(&policy, 5, OK, 20);
        assert!(!second.differs(&first));
        assert_eq!((second.since_round, second.since_s), (4, 10));
    }

    proptest! {
        #[test]
        fn quarantine_is_exactly_m_of_the_last_n(
            m in 1..6u32,
            extra in 0..6u32,
            seen in proptest::collection::vec(any::<bool>(), 1..80),
        ) {
            let of = m + extra;
            let policy = policy(m, of, Reopen::ByCommand);
            let seen: Vec<Seen> = seen.iter().map(|ok| if *ok { OK } else { Seen::Silent }).collect();
            let first = (0..seen.len()).find(|at| {
                let window = &seen[(at + 1).saturating_sub(of as usize)..=*at];
                let silences = window.iter().filter(|seen| **seen == Seen::Silent).count();
                silences >= m as usize && seen[*at] == Seen::Silent
            });
            let expected: Vec<_> = first
                .map(|at| (at as u32 + 1, Decision::Quarantine))
                .into_iter()
                .collect();
            prop_assert_eq!(decisions(&policy, &seen), expected);
        }
    }
}
