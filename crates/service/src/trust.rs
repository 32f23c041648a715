//! Trust state of gateways with required attestation, as recorded for other controllers.

use linewarden_controller::trust::{GatewayTrustState, TrustMemory, TrustReport};
use linewarden_evidence::{BootCount, Sequence};
use linewarden_registry::CLOCK_SKEW_MAX_MS;
use serde::{Deserialize, Serialize};

/// Largest stored reason, bytes.
const REASON_BYTES_MAX: usize = 1_024;
/// Largest stored name of reference values, bytes.
const NAME_BYTES_MAX: usize = 128;

/// Trust in a gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TrustState {
    /// No evidence was shown to the current controller.
    #[default]
    Unproven,
    /// The evidence matches the reference values.
    Trusted,
    /// The evidence does not match or is missing.
    Untrusted,
}

/// The last evidence signed by its key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Evidence {
    pub(crate) at_s: u64,
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
    /// Start of the state.
    pub(crate) since_ms: u64,
    /// Reason of distrust.
    pub(crate) reason: String,
    /// Name of its reference values.
    pub(crate) reference: String,
    /// Validity of evidence.
    pub(crate) validity_s: u64,
    pub(crate) evidence: Option<Evidence>,
    /// SHA-256 of its key in hexadecimal.
    pub(crate) key: String,
    /// Boot count and sequence number of the newest state signed by this key.
    pub(crate) newest_state: Option<(u64, u64)>,
    /// The last decision of any controller, as recorded in the event log.
    pub(crate) last_decision: Option<bool>,
}

impl Trust {
    /// The state after a report, given the state before.
    pub(crate) fn after_report(report: &TrustReport, before: Option<&Self>, now_ms: u64) -> Self {
        let (state, reason) = match &report.state {
            GatewayTrustState::Unproven => (TrustState::Unproven, String::new()),
            GatewayTrustState::Trusted => (TrustState::Trusted, String::new()),
            GatewayTrustState::Untrusted { reason } => {
                (TrustState::Untrusted, bounded(reason, REASON_BYTES_MAX))
            }
        };
        let evidence = report.last_evidence.map(|(appraised, at_s)| Evidence {
            at_s,
            is_affirmed: appraised.is_affirmed,
            boot_count: appraised.snapshot.boot_count.0,
            sequence: appraised.snapshot.sequence.0,
            program: appraised.snapshot.digests.program.to_string(),
            tables: appraised.snapshot.digests.tables.to_string(),
            registers: appraised.snapshot.digests.registers.to_string(),
        });
        let key = hex::encode(report.memory.key_fingerprint);
        let of_key = before.filter(|before| before.key == key);
        let same_state = before.filter(|before| before.state == state && before.reason == reason);
        let last_decision = match state {
            TrustState::Unproven => before.and_then(|before| before.last_decision),
            TrustState::Trusted => Some(true),
            TrustState::Untrusted => Some(false),
        };
        Self {
            state,
            since_ms: same_state.map_or(now_ms, |before| before.since_ms),
            reason,
            reference: bounded(&report.reference, NAME_BYTES_MAX),
            validity_s: report.validity_ns / 1_000_000_000,
            // Evidence shown to another controller may be newer.
            evidence: [evidence, of_key.and_then(|before| before.evidence.clone())]
                .into_iter()
                .flatten()
                .filter(|evidence| !is_ahead(evidence, now_ms / 1000))
                .max_by_key(|evidence| evidence.at_s),
            // The newest state is kept regardless of which controller records last.
            newest_state: report
                .memory
                .newest_state
                .map(|(start, number)| (start.0, number.0))
                .max(of_key.and_then(|before| before.newest_state)),
            key,
            last_decision,
        }
    }

    /// The state at a new controller, to which no evidence was shown yet.
    pub(crate) fn reset_for_new_controller(self, now_ms: u64) -> Self {
        Self {
            state: TrustState::Unproven,
            since_ms: now_ms,
            reason: String::new(),
            ..self
        }
    }

    /// Whether the state must be recorded immediately: it does not only repeat the same evidence.
    pub(crate) fn differs(&self, before: Option<&Self>) -> bool {
        let of = |trust: &Self| {
            (
                trust.state,
                trust.reason.clone(),
                trust.newest_state,
                trust.key.clone(),
            )
        };
        before.map(of) != Some(of(self))
    }

    /// The memory for another controller; `None` if it cannot be parsed.
    pub(crate) fn memory(&self) -> Option<TrustMemory> {
        let key = hex::decode(&self.key).ok()?.try_into().ok()?;
        let seen = self
            .newest_state
            .map(|(start, number)| (BootCount(start), Sequence(number)));
        Some(TrustMemory {
            key_fingerprint: key,
            newest_state: seen,
        })
    }

    /// The state at this time. A trusted gateway becomes overdue when its evidence expires.
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

/// Whether the evidence was received by a clock that was ahead.
fn is_ahead(evidence: &Evidence, now_s: u64) -> bool {
    evidence.at_s > now_s.saturating_add(CLOCK_SKEW_MAX_MS / 1000)
}

/// Truncates the text and removes control characters, because it may contain text from a gateway.
fn bounded(text: &str, bytes_max: usize) -> String {
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
