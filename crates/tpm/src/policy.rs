//! The measured states in which a key may be used: PolicyPCR for one state, PolicyOR for several states.

use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::pcr::{PcrSelection, PcrValues};
use serde::{Deserialize, Serialize};

use crate::attest::selection_list;
use crate::kdf::sha256;

const CC_POLICY_OR: u32 = 0x0000_0171;
const CC_POLICY_PCR: u32 = 0x0000_017f;
/// Maximum number of branches of one TPM2_PolicyOR.
pub const STATES_MAX: usize = 8;

/// Why a policy is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// No state, or states without PCRs: the key would not be bound.
    #[error("empty policy: at least one state is required, with at least one PCR")]
    Empty,
    /// PCR values of this bank can be forged.
    #[error("PCR bank sha1 rejected: its values can be forged; use sha256")]
    WeakBank,
    /// More states than one TPM2_PolicyOR supports.
    #[error("too many states in a policy; the maximum is {STATES_MAX}")]
    TooMany,
    /// The states differ in the bank or in the selected PCRs.
    #[error("states of a policy differ in their PCRs or bank; use the same PCRs of one bank")]
    MixedSelections,
}

/// The PCR states in which a key may be used. Each use compares the current PCRs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "PolicyFields", deny_unknown_fields)]
pub struct PcrPolicy {
    bank: HashAlgorithm,
    selection: PcrSelection,
    /// SHA-256 over the values of each state.
    #[serde(with = "crate::encoding::hex_list")]
    states: Vec<[u8; 32]>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFields {
    bank: HashAlgorithm,
    selection: PcrSelection,
    #[serde(with = "crate::encoding::hex_list")]
    states: Vec<[u8; 32]>,
}

impl TryFrom<PolicyFields> for PcrPolicy {
    type Error = PolicyError;

    fn try_from(fields: PolicyFields) -> Result<Self, PolicyError> {
        Self::of_digests(fields.bank, fields.selection, fields.states)
    }
}

impl PcrPolicy {
    /// Creates the policy that is met in exactly these states.
    ///
    /// # Errors
    /// No state, too many states, states of different PCRs, or a weak bank.
    pub fn new(states: &[PcrValues]) -> Result<Self, PolicyError> {
        let first = states.first().ok_or(PolicyError::Empty)?;
        let (bank, selection) = (first.bank(), first.selection());
        if states
            .iter()
            .any(|state| state.bank() != bank || state.selection() != selection)
        {
            return Err(PolicyError::MixedSelections);
        }
        let mut digests: Vec<_> = states.iter().map(digest).collect();
        digests.sort_unstable();
        digests.dedup();
        Self::of_digests(bank, selection, digests)
    }

    fn of_digests(
        bank: HashAlgorithm,
        selection: PcrSelection,
        states: Vec<[u8; 32]>,
    ) -> Result<Self, PolicyError> {
        match states.len() {
            _ if bank == HashAlgorithm::Sha1 => Err(PolicyError::WeakBank),
            _ if selection.is_empty() => Err(PolicyError::Empty),
            0 => Err(PolicyError::Empty),
            1..=STATES_MAX => Ok(Self {
                bank,
                selection,
                states,
            }),
            _ => Err(PolicyError::TooMany),
        }
    }

    /// The bank.
    pub const fn bank(&self) -> HashAlgorithm {
        self.bank
    }

    /// The PCRs.
    pub const fn selection(&self) -> PcrSelection {
        self.selection
    }

    /// Whether the policy is met in this state.
    pub fn accepts(&self, state: &PcrValues) -> bool {
        state.bank() == self.bank
            && state.selection() == self.selection
            && self.states.contains(&digest(state))
    }

    /// The digest of TPM2_PolicyPCR in each state: the branches of TPM2_PolicyOR, if there are several.
    pub fn branches(&self) -> Vec<[u8; 32]> {
        let selection = selection_list(self.bank, self.selection);
        self.states
            .iter()
            .map(|state| sha256(&[&[0; 32], &CC_POLICY_PCR.to_be_bytes(), &selection, state]))
            .collect()
    }

    /// The authPolicy: the branch, or PolicyOR of the branches (TPM 2.0 Library, Part 3, 23.6 and 23.7).
    pub fn digest(&self) -> [u8; 32] {
        let branches = self.branches();
        match &branches[..] {
            [branch] => *branch,
            branches => sha256(&[&[0; 32], &CC_POLICY_OR.to_be_bytes(), &branches.concat()]),
        }
    }
}

/// SHA-256 over the values in the order of their indices. TPM2_PolicyPCR compares this digest, and a quote of a SHA-256 key
/// contains it.
pub(crate) fn digest(values: &PcrValues) -> [u8; 32] {
    let values: Vec<&[u8]> = values.iter().map(|(_, value)| value.as_bytes()).collect();
    sha256(&values)
}

#[cfg(test)]
mod tests {
    use linewarden_measurement::Digest;
    use linewarden_measurement::pcr::PcrIndex;

    use super::*;

    fn state(bank: HashAlgorithm, indices: &[u32], measured: &[u8]) -> PcrValues {
        let mut values = PcrValues::new(bank);
        for index in indices {
            let index = PcrIndex::try_from(*index).unwrap();
            values.set(index, bank.digest(&[measured])).unwrap();
        }
        values
    }

    #[test]
    fn policies_that_bind_no_pcr_or_too_many_are_refused() {
        const SHA256: HashAlgorithm = HashAlgorithm::Sha256;
        let state_of_pcr7 = |measured: &[u8]| state(SHA256, &[7], measured);
        assert_eq!(PcrPolicy::new(&[]), Err(PolicyError::Empty));
        assert_eq!(PcrPolicy::new(&[PcrValues::new(SHA256)]), Err(PolicyError::Empty));
        assert_eq!(
            PcrPolicy::new(&[state(HashAlgorithm::Sha1, &[7], b"a")]),
            Err(PolicyError::WeakBank)
        );
        for different in [
            state(SHA256, &[7, 8], b"a"),
            state(HashAlgorithm::Sha384, &[7], b"a"),
        ] {
            assert_eq!(
                PcrPolicy::new(&[state_of_pcr7(b"a"), different]),
                Err(PolicyError::MixedSelections)
            );
        }
        let nine: Vec<_> = (0..9u8).map(|number| state_of_pcr7(&[number])).collect();
        assert_eq!(PcrPolicy::new(&nine), Err(PolicyError::TooMany));
        PcrPolicy::new(&nine[1..]).unwrap();
        // A duplicate state counts once.
        assert_eq!(
            PcrPolicy::new(&[state_of_pcr7(b"a"), state_of_pcr7(b"a")]),
            PcrPolicy::new(&[state_of_pcr7(b"a")])
        );
    }

    #[test]
    fn a_policy_is_met_in_its_states_only() {
        const SHA256: HashAlgorithm = HashAlgorithm::Sha256;
        let policy = PcrPolicy::new(&[state(SHA256, &[7], b"a"), state(SHA256, &[7], b"b")]).unwrap();
        assert!(policy.accepts(&state(SHA256, &[7], b"b")));
        assert!(!policy.accepts(&state(SHA256, &[7], b"c")));
        assert!(!policy.accepts(&state(SHA256, &[8], b"a")));
        let mut with_pcr8 = state(SHA256, &[7], b"a");
        with_pcr8
            .set(8.try_into().unwrap(), Digest::zero(SHA256))
            .unwrap();
        assert!(!policy.accepts(&with_pcr8));
    }

    #[test]
    fn a_policy_round_trips_through_json_and_is_checked() {
        let policy = PcrPolicy::new(&[state(HashAlgorithm::Sha256, &[7], b"a")]).unwrap();
        let text = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<PcrPolicy>(&text).unwrap(), policy);
        let empty = text.replace("\"7\"", "\"none\"");
        assert!(serde_json::from_str::<PcrPolicy>(&empty).is_err(), "{empty}");
        let weak = text.replace("sha256", "sha1");
        assert!(serde_json::from_str::<PcrPolicy>(&weak).is_err(), "{weak}");
    }
}
