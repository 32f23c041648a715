//! Groups of provers: name and attestation policy.

use std::fmt;
use std::str::FromStr;

const NAME_BYTES_MAX: usize = 64;

/// Maximum number of rounds in the quarantine window.
const WINDOW_ROUNDS_MAX: u32 = 64;

/// The name of a group: 1 to 64 characters a to z, 0 to 9, `-`, `_` and `.`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupName(String);

impl GroupName {
    /// Validates the name.
    ///
    /// # Errors
    /// A name of another length or with other characters.
    pub fn new(name: impl Into<String>) -> Result<Self, GroupNameError> {
        let name = name.into();
        let fits = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
        match (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(fits) {
            true => Ok(Self(name)),
            false => Err(GroupNameError(name)),
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name in place of a name that was lost.
    #[must_use]
    pub fn unknown() -> Self {
        Self("unknown".to_owned())
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for GroupName {
    type Err = GroupNameError;

    fn from_str(name: &str) -> Result<Self, GroupNameError> {
        Self::new(name)
    }
}

/// An invalid group name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid group name {0:?}: accepted are 1 to 64 characters a to z, 0 to 9, '-', '_' and '.'")]
pub struct GroupNameError(String);

/// How a device is released from quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ReleaseMode {
    /// By its next valid proof.
    #[default]
    Automatic,
    /// By an operator only.
    Manual,
}

/// The attestation policy of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupPolicy {
    /// Interval between rounds, seconds.
    pub every_s: u32,
    /// Maximum random deviation of the start of a round, seconds.
    pub jitter_s: u32,
    /// Time after which a proof is late, ms.
    pub proof_timeout_ms: u32,
    /// A device that misses this number of its last `window_rounds` rounds is put into quarantine.
    pub missed_limit: u32,
    /// Number of the last rounds of a device in which missed rounds are counted.
    pub window_rounds: u32,
    /// Whether a late proof counts as a missed round.
    pub late_is_missed: bool,
    /// How a device is released from quarantine.
    pub release_mode: ReleaseMode,
}

impl Default for GroupPolicy {
    /// One round a minute; quarantine after three missed rounds of five.
    fn default() -> Self {
        Self {
            every_s: 60,
            jitter_s: 5,
            proof_timeout_ms: 2_000,
            missed_limit: 3,
            window_rounds: 5,
            late_is_missed: false,
            release_mode: ReleaseMode::Automatic,
        }
    }
}

impl GroupPolicy {
    /// Validity of a result after the end of its round, seconds: two intervals and the duration of a round. If no newer
    /// result follows within this time, the verifier may have stopped.
    #[must_use]
    pub fn validity_s(&self) -> u64 {
        2 * u64::from(self.every_s) + u64::from(self.jitter_s) + u64::from(self.proof_timeout_ms) / 500 + 1
    }

    /// The first invalid field and its accepted values; `None` if the policy is valid.
    #[must_use]
    pub fn problem(&self) -> Option<(&'static str, String)> {
        let Self {
            every_s,
            jitter_s,
            proof_timeout_ms,
            missed_limit,
            window_rounds,
            ..
        } = *self;
        if every_s == 0 {
            return Some(("every_s", "0 s; at least 1 s is accepted".to_owned()));
        }
        if jitter_s > every_s / 2 {
            let problem = format!(
                "{jitter_s} s; at most half of every_s is accepted, {} s",
                every_s / 2
            );
            return Some(("jitter_s", problem));
        }
        if proof_timeout_ms == 0 || u64::from(proof_timeout_ms) >= u64::from(every_s) * 1_000 {
            let problem = format!("{proof_timeout_ms} ms; more than 0 and less than every_s are accepted");
            return Some(("proof_timeout_ms", problem));
        }
        if window_rounds == 0 || window_rounds > WINDOW_ROUNDS_MAX {
            return Some((
                "window_rounds",
                format!("{window_rounds} rounds; 1 to {WINDOW_ROUNDS_MAX} are accepted"),
            ));
        }
        (missed_limit == 0 || missed_limit > window_rounds).then(|| {
            (
                "missed_limit",
                format!("{missed_limit} of {window_rounds} rounds; 1 to {window_rounds} are accepted"),
            )
        })
    }
}
