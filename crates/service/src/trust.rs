//! Trust state of gateways with required attestation, as recorded for other controllers.

use linewarden_controller::trust::{TrustMemory, TrustReport};
use linewarden_evidence::{BootCount, Sequence};
use linewarden_registry::CLOCK_SKEW_MAX_MS;
use linewarden_types::GatewayTrustState;
use serde::{Deserialize, Serialize};

/// Maximum length of a stored reason, bytes.
const REASON_BYTES_MAX: usize = 1_024;
/// Maximum length of a stored name of reference values, bytes.
const NAME_BYTES_MAX: usize = 128;

/// Trust in a gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TrustState {
    /// The current controller has received no evidence.
    #[default]
    Unproven,
    /// The evidence matches the reference values.
    Trusted,
    /// The evidence does not match or is missing.
    Untrusted,
}

/// The last evidence that was signed with the gateway's evidence key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Evidence {
    /// Time of arrival, seconds since 1970-01-01 UTC.
    pub(crate) at_s: u64,
    /// Whether the evidence matches the reference values.
    pub(crate) is_affirmed: bool,
    pub(crate) boot_count: u64,
    pub(crate) sequence: u64,
    /// Digests in hexadecimal.
    pub(crate) program: String,
    pub(crate) tables: String,
    pub(crate) registers: String,
}

/// Recorded trust state. Fields missing in records of an older controller have default values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Trust {
    pub(crate) state: TrustState,
    /// Time of the last change of the state, ms since 1970-01-01 UTC.
    pub(crate) since_ms: u64,
    /// The reason if the gateway is untrusted; otherwise empty.
    pub(crate) reason: String,
    /// The name of the gateway's reference values.
    pub(crate) reference: String,
    /// Time for which evidence is valid after its arrival, seconds.
    pub(crate) validity_s: u64,
    pub(crate) evidence: Option<Evidence>,
    /// SHA-256 of the gateway's evidence key, hexadecimal.
    pub(crate) key: String,
    /// Boot count and sequence number of the newest data plane state that this key has signed.
    pub(crate) newest_state: Option<(u64, u64)>,
    /// The last decision of any controller, as recorded in the event log: whether the gateway is trusted.
    pub(crate) last_decision: Option<bool>,
}

impl Trust {
    /// The trust after a report; `previous` is the trust before the report.
    pub(crate) fn after_report(report: &TrustReport, previous: Option<&Self>, now_ms: u64) -> Self {
        let (state, reason) = match &report.state {
            GatewayTrustState::Unproven => (TrustState::Unproven, String::new()),
            GatewayTrustState::Trusted => (TrustState::Trusted, String::new()),
            GatewayTrustState::Untrusted { reason } => {
                (TrustState::Untrusted, to_short_line(reason, REASON_BYTES_MAX))
            }
        };
        let evidence = report.last_evidence.map(|(appraisal, at_s)| Evidence {
            at_s,
            is_affirmed: appraisal.is_affirmed,
            boot_count: appraisal.snapshot.boot_count.0,
            sequence: appraisal.snapshot.sequence.0,
            program: appraisal.snapshot.digests.program.to_string(),
            tables: appraisal.snapshot.digests.tables.to_string(),
            registers: appraisal.snapshot.digests.registers.to_string(),
        });
        let key = hex::encode(report.memory.key_fingerprint);
        let previous_of_key = previous.filter(|previous| previous.key == key);
        let with_same_state =
            previous.filter(|previous| previous.state == state && previous.reason == reason);
        let last_decision = match state {
            TrustState::Unproven => previous.and_then(|previous| previous.last_decision),
            TrustState::Trusted => Some(true),
            TrustState::Untrusted => Some(false),
        };
        Self {
            state,
            since_ms: with_same_state.map_or(now_ms, |previous| previous.since_ms),
            reason,
            reference: to_short_line(&report.reference, NAME_BYTES_MAX),
            validity_s: report.validity_ns / 1_000_000_000,
            // The newest evidence is kept, because the evidence of another controller may be newer than the report's.
            evidence: [
                evidence,
                previous_of_key.and_then(|previous| previous.evidence.clone()),
            ]
            .into_iter()
            .flatten()
            .filter(|evidence| !is_ahead(evidence, now_ms / 1000))
            .max_by_key(|evidence| evidence.at_s),
            // The highest state is kept, because another controller may have recorded a newer state.
            newest_state: report
                .memory
                .newest_state
                .map(|(boot_count, sequence)| (boot_count.0, sequence.0))
                .max(previous_of_key.and_then(|previous| previous.newest_state)),
            key,
            last_decision,
        }
    }

    /// The trust at a new controller, which has received no evidence yet.
    pub(crate) fn reset_for_new_controller(self, now_ms: u64) -> Self {
        Self {
            state: TrustState::Unproven,
            since_ms: now_ms,
            reason: String::new(),
            ..self
        }
    }

    /// Whether the state, the reason, the newest data plane state or the key differs from `previous`.
    pub(crate) fn differs(&self, previous: Option<&Self>) -> bool {
        let compared = |trust: &Self| {
            (
                trust.state,
                trust.reason.clone(),
                trust.newest_state,
                trust.key.clone(),
            )
        };
        previous.map(compared) != Some(compared(self))
    }

    /// The memory for another controller; `None` if the recorded key fingerprint cannot be parsed.
    pub(crate) fn memory(&self) -> Option<TrustMemory> {
        let key = hex::decode(&self.key).ok()?.try_into().ok()?;
        let newest_state = self
            .newest_state
            .map(|(boot_count, sequence)| (BootCount(boot_count), Sequence(sequence)));
        Some(TrustMemory {
            key_fingerprint: key,
            newest_state,
        })
    }

    /// The name of the state at this time, for the API. A trusted gateway becomes overdue when its evidence expires.
    pub(crate) fn label(&self, now_s: u64) -> &'static str {
        match self.state {
            TrustState::Unproven => "unproven",
            TrustState::Untrusted => "untrusted",
            TrustState::Trusted if self.is_valid(now_s) => "trusted",
            TrustState::Trusted => "overdue",
        }
    }

    fn is_valid(&self, now_s: u64) -> bool {
        let evidence = self.evidence.as_ref();
        evidence.is_some_and(|evidence| {
            !is_ahead(evidence, now_s) && now_s.saturating_sub(evidence.at_s) <= self.validity_s
        })
    }
}

/// Whether the time of the evidence is in the future: the clock of the receiving controller was ahead.
fn is_ahead(evidence: &Evidence, now_s: u64) -> bool {
    evidence.at_s > now_s.saturating_add(CLOCK_SKEW_MAX_MS / 1000)
}

/// Replaces control characters by spaces and truncates the text, because the text may come from a gateway.
fn to_short_line(text: &str, bytes_max: usize) -> String {
    let mut line: String = text
        .chars()
        .map(|character| if character.is_control() { ' ' } else { character })
        .collect();
    if line.len() > bytes_max {
        let end = line.floor_char_boundary(bytes_max - '…'.len_utf8());
        line.truncate(end);
        line.push('…');
    }
    line
}
