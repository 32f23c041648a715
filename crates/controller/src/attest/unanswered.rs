//! Rounds that nobody in a group answers: evidence about the way to the devices, or about the gateway, rather than about each of them
//! (`docs/adr/0024-a-round-that-nobody-answers.md`).

use std::collections::HashMap;

use linewarden_registry::{GroupName, GroupPolicy};

use super::standing::Seen;

/// So many that were well must be silent at once before that says something of the way to them.
const DEVICES_MIN: u32 = 3;

/// A round that nobody in a group answered, though its devices did before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// How many were asked.
    pub asked: u32,
    /// How many such rounds there were since all answered, with this one.
    pub spared: u32,
    /// How many of them count for no quarantine.
    pub of: u32,
}

/// What a round of a group comes to as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// All have answered: whatever was in the way is gone.
    Whole,
    /// Nobody has, and it is nobody's silence.
    Unanswered(Unanswered),
    /// Each is judged by what it has shown.
    Usual,
}

/// Rounds of each group that nobody answered and that counted for no quarantine, since all answered. After so many as quarantine a
/// single device they count: who can silence a whole group must not hide a changed device in it for longer. When some answer and
/// others do not, nothing begins anew, or he would let one of them through now and then.
#[derive(Debug, Default)]
pub(super) struct Spared {
    rounds: HashMap<GroupName, u32>,
}

impl Spared {
    /// What a round has shown, of all that are not in quarantine: what was seen of each, and whether it was well before.
    pub(super) fn look(
        &self,
        group: &GroupName,
        policy: &GroupPolicy,
        shown: impl Iterator<Item = (Seen, bool)>,
    ) -> Sight {
        let (mut asked, mut answered, mut well) = (0u32, 0u32, 0u32);
        for (seen, was_well) in shown {
            asked += 1;
            answered += u32::from(seen != Seen::Silent);
            well += u32::from(was_well);
        }
        let before = self.rounds.get(group).copied().unwrap_or(0);
        let is_sudden = before > 0 || well >= DEVICES_MIN;
        if asked > 0 && answered == asked {
            Sight::Whole
        } else if answered == 0 && asked >= DEVICES_MIN && is_sudden && before < policy.silent {
            Sight::Unanswered(Unanswered {
                asked,
                spared: before + 1,
                of: policy.silent,
            })
        } else {
            Sight::Usual
        }
    }

    /// The round is on record.
    pub(super) fn keep(&mut self, group: &GroupName, sight: Sight) {
        match sight {
            Sight::Whole => drop(self.rounds.remove(group)),
            Sight::Unanswered(unanswered) => drop(self.rounds.insert(group.clone(), unanswered.spared)),
            Sight::Usual => {}
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may")]
mod tests {
    use linewarden_protocol::gateway::Configuration::Current;

    use super::*;

    const OK: Seen = Seen::Ok(Current);
    const SILENT: Seen = Seen::Silent;

    /// Whether each round is spared; its first word is what was seen of all, its second how many were well before.
    fn spared(rounds: &[(&[Seen], usize)]) -> Vec<bool> {
        let group = GroupName::new("pumps").unwrap();
        let policy = GroupPolicy {
            silent: 2,
            of: 3,
            ..GroupPolicy::default()
        };
        let mut spared = Spared::default();
        let mut all = Vec::new();
        for (seen, well) in rounds {
            let shown = seen.iter().enumerate().map(|(at, seen)| (*seen, at < *well));
            let sight = spared.look(&group, &policy, shown);
            spared.keep(&group, sight);
            all.push(matches!(sight, Sight::Unanswered(_)));
        }
        all
    }

    #[test]
    fn as_many_rounds_are_spared_as_quarantine_a_device() {
        let silence: (&[Seen], usize) = (&[SILENT; 3], 0);
        let rounds = [(&[SILENT; 3][..], 3), silence, silence, silence];
        assert_eq!(spared(&rounds), [true, true, false, false]);
    }

    #[test]
    fn two_devices_or_such_as_were_not_well_say_nothing_of_the_way() {
        assert_eq!(spared(&[(&[SILENT; 2], 2)]), [false]);
        assert_eq!(spared(&[(&[SILENT; 9], 2)]), [false]);
        assert_eq!(spared(&[(&[SILENT, SILENT, SILENT, OK], 4)]), [false]);
    }

    /// Who cuts all of them off now and then, to hide the one that is changed, wins no more rounds than once.
    #[test]
    fn only_when_all_have_answered_others_are_spared() {
        let cut: (&[Seen], usize) = (&[SILENT; 4], 3);
        let one_hidden: (&[Seen], usize) = (&[SILENT, OK, OK, OK], 3);
        let rounds = [cut, one_hidden, cut, one_hidden, cut, one_hidden, cut];
        assert_eq!(spared(&rounds), [true, false, true, false, false, false, false]);
        let all: (&[Seen], usize) = (&[OK; 4], 0);
        assert_eq!(
            spared(&[cut, cut, all, cut, cut, cut]),
            [true, true, false, true, true, false]
        );
    }
}
