//! Trust in gateways: a gateway is trusted while its evidence matches the reference values (RATS, RFC 9334).
//!
//! ```text
//!              registered            evidence that matches
//!   (unknown) ───────────► Unproven ──────────────────────────► Trusted
//!                              │                                 ▲    │ other content, an older state,
//!                              │ other content, an older state,  │    │ or timeout
//!                              │ or timeout                      │    ▼
//!                              └──────────────────────────────► Untrusted: the controller issues a new fencing token
//! ```
//!
//! A [`GatewayTrust`] requests evidence with a new nonce each time, and accepts one statement for each nonce. A statement
//! with a wrong signature or nonce changes nothing: an attacker who forges statements must not be able to make a gateway
//! untrusted. Only a statement with a valid signature and nonce is appraised. A gateway that is not trusted gets no rows
//! and no keys.

mod table;

use linewarden_types::{GatewayTrustState, TrustStatus};
use std::sync::Arc;

use linewarden_evidence::appraisal::{Appraisal, Reference, ReferenceError, appraise};
use linewarden_evidence::keys::PublicKey;
use linewarden_evidence::state::Snapshot;
use linewarden_evidence::statement::{
    Inventory, InventoryError, Nonce, StatementError, VerifiedStatement, verify,
};
use linewarden_evidence::{BootCount, Sequence};

pub use self::table::Timestamps;
pub(crate) use self::table::TrustTable;

/// Maximum number of lines in a reason; the text says how many lines are omitted.
const REASON_LINES_MAX: usize = 20;
/// Minimum interval between two nonces for one gateway, ns; it also applies to a gateway that registers more often.
const NONCE_INTERVAL_NS: u64 = 1_000_000_000;

/// The requirements for a gateway's evidence.
#[derive(Clone, Debug)]
pub struct TrustPolicy {
    /// The reference values of the data plane.
    pub reference: Reference,
    /// The public key of the gateway's evidence.
    pub key: PublicKey,
    /// Interval between two evidence requests, ns.
    pub every_ns: u64,
    /// Timeout of an evidence request, ns.
    pub response_timeout_ns: u64,
}

/// The last evidence of a gateway: the signed state, and its appraisal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastEvidence {
    /// The state.
    pub snapshot: Snapshot,
    /// Whether the state matched the reference values.
    pub is_affirmed: bool,
}

/// The trust state of a gateway, for storage and display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustReport {
    /// The trust state.
    pub state: GatewayTrustState,
    /// The last evidence submitted to this controller, and its time: seconds since 1970-01-01 UTC.
    pub last_evidence: Option<(LastEvidence, u64)>,
    /// State for the next controller of this gateway.
    pub memory: TrustMemory,
    /// The name of the reference values.
    pub reference: String,
    /// How long the gateway is trusted after its last evidence, ns.
    pub validity_ns: u64,
}

/// State that one controller stores for the next controller of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrustMemory {
    /// Fingerprint of the evidence key ([`PublicKey::fingerprint`]). States of another key are not compared.
    pub key_fingerprint: [u8; 32],
    /// The newest state that this key has signed.
    pub newest_state: Option<(BootCount, Sequence)>,
}

/// The reason why a statement is rejected. A rejected statement does not change the trust state.
#[derive(Debug, thiserror::Error)]
pub enum EvidenceRejected {
    /// No evidence is requested, or the request has timed out.
    #[error(
        "evidence rejected: no evidence is requested; the request has timed out, or was already answered"
    )]
    NotRequested,
    /// The statement is not signed by the gateway, or has another nonce.
    #[error(transparent)]
    Statement(#[from] StatementError),
    /// The reference values contradict each other.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// The controller is stopping.
    #[error("evidence rejected: the controller is stopping")]
    ControllerStopping,
}

/// A nonce that was sent to the gateway.
#[derive(Clone, Copy, Debug)]
struct PendingNonce {
    nonce: Nonce,
    requested_ns: u64,
}

/// A copy of the input of an appraisal: the trust table is not locked during an appraisal, which can take seconds.
#[derive(Clone, Debug)]
pub(crate) struct AppraisalInput {
    policy: Arc<TrustPolicy>,
    nonce: Nonce,
    newest_state: Option<(BootCount, Sequence)>,
}

/// The result of appraising a signed statement with the requested nonce.
#[derive(Debug)]
pub(crate) struct AppraisalFinding {
    snapshot: Snapshot,
    /// The reason why the gateway is not trusted; `None` if the evidence matches the reference values.
    reason: Option<String>,
}

/// The trust state of one gateway. All times are from the same monotonic clock.
#[derive(Debug)]
pub struct GatewayTrust {
    policy: Arc<TrustPolicy>,
    state: GatewayTrustState,
    /// How often the gateway was found to be untrusted.
    distrust_count: u64,
    pending: Option<PendingNonce>,
    /// Time of the last evidence request.
    last_request_ns: Option<u64>,
    /// Time of the next evidence request.
    due_ns: u64,
    /// The newest state that the gateway's key has signed.
    newest_state: Option<(BootCount, Sequence)>,
    /// The last evidence.
    last_evidence: Option<LastEvidence>,
    /// The last rejected statement since the nonce was sent.
    last_rejection: Option<String>,
}

impl GatewayTrust {
    /// Creates the state of a gateway that has submitted no evidence.
    #[must_use]
    pub fn new(policy: TrustPolicy) -> Self {
        Self {
            policy: Arc::new(policy),
            state: GatewayTrustState::Unproven,
            distrust_count: 0,
            pending: None,
            last_request_ns: None,
            due_ns: 0,
            newest_state: None,
            last_evidence: None,
            last_rejection: None,
        }
    }

    /// Resets the state after a new registration: the previous evidence came from another process. An untrusted
    /// gateway stays untrusted. The next evidence request is due immediately, but not before `NONCE_INTERVAL_NS` after
    /// the previous request.
    pub fn restart(&mut self) {
        if self.state == GatewayTrustState::Trusted {
            self.state = GatewayTrustState::Unproven;
        }
        self.pending = None;
        self.due_ns = self
            .last_request_ns
            .map_or(0, |requested_ns| requested_ns.saturating_add(NONCE_INTERVAL_NS));
    }

    /// Restores the memory that another controller has stored.
    pub fn restore(&mut self, memory: &TrustMemory) {
        if memory.key_fingerprint == self.policy.key.fingerprint() {
            self.newest_state = self.newest_state.max(memory.newest_state);
        }
    }

    /// The last evidence.
    #[must_use]
    pub const fn last_evidence(&self) -> Option<LastEvidence> {
        self.last_evidence
    }

    /// The newest state that the gateway's key has signed.
    #[must_use]
    pub const fn newest_state(&self) -> Option<(BootCount, Sequence)> {
        self.newest_state
    }

    /// The requirements for the gateway's evidence.
    #[must_use]
    pub fn policy(&self) -> &TrustPolicy {
        &self.policy
    }

    /// The trust state.
    #[must_use]
    pub const fn state(&self) -> &GatewayTrustState {
        &self.state
    }

    /// Whether the gateway may get rows at `now_ns`: the gateway is trusted, and neither its evidence nor its next poll
    /// for a nonce is overdue. A gateway that stops polling loses its rows as early as one that stops submitting
    /// evidence.
    #[must_use]
    pub fn may_have_rows(&self, now_ns: u64) -> bool {
        let is_poll_overdue =
            self.pending.is_none() && now_ns.saturating_sub(self.due_ns) >= self.policy.response_timeout_ns;
        self.state == GatewayTrustState::Trusted && self.overdue_nonce(now_ns).is_none() && !is_poll_overdue
    }

    fn overdue_nonce(&self, now_ns: u64) -> Option<PendingNonce> {
        self.pending
            .filter(|pending| now_ns.saturating_sub(pending.requested_ns) >= self.policy.response_timeout_ns)
    }

    /// Returns the trust status at `now_ns`. `random` returns 32 random bytes, or `None` if the random source fails. In
    /// that case a later call draws the nonce; meanwhile the evidence can become overdue.
    pub fn poll(&mut self, now_ns: u64, random: &mut dyn FnMut() -> Option<[u8; 32]>) -> TrustStatus {
        if self.overdue_nonce(now_ns).is_some() {
            self.pending = None;
            self.due_ns = now_ns;
            self.distrust(self.timeout_reason());
        }
        if self.pending.is_none() && self.due_ns <= now_ns {
            match random() {
                Some(nonce) => {
                    let nonce = Nonce(nonce);
                    self.pending = Some(PendingNonce {
                        nonce,
                        requested_ns: now_ns,
                    });
                    self.last_request_ns = Some(now_ns);
                    self.last_rejection = None;
                }
                None if now_ns.saturating_sub(self.due_ns) >= self.policy.response_timeout_ns => {
                    self.distrust("no nonce could be drawn: the random source failed".to_owned());
                }
                None => {}
            }
        }
        TrustStatus {
            nonce: self.pending.map(|pending| pending.nonce),
            state: self.state.clone(),
            fencing_token: None,
        }
    }

    fn timeout_reason(&self) -> String {
        let seconds = self.policy.response_timeout_ns / 1_000_000_000;
        match &self.last_rejection {
            None => format!("no evidence received for {seconds} s"),
            Some(rejection) => {
                format!("no valid evidence received for {seconds} s; the last was rejected: {rejection}")
            }
        }
    }

    /// Appraises a statement, with its inventory if present.
    ///
    /// # Errors
    /// The statement is rejected.
    pub fn appraise(
        &mut self,
        statement: &[u8],
        inventory: Option<&[u8]>,
        now_ns: u64,
    ) -> Result<(), EvidenceRejected> {
        let input = self.appraisal_input(now_ns)?;
        self.apply(input.nonce, input.appraise(statement, inventory), now_ns)
    }

    /// Returns the input for appraising a statement that was received now.
    ///
    /// # Errors
    /// No evidence is requested.
    pub(crate) fn appraisal_input(&self, now_ns: u64) -> Result<AppraisalInput, EvidenceRejected> {
        let pending = match self.overdue_nonce(now_ns) {
            None => self.pending.ok_or(EvidenceRejected::NotRequested)?,
            Some(_) => return Err(EvidenceRejected::NotRequested),
        };
        Ok(AppraisalInput {
            policy: Arc::clone(&self.policy),
            nonce: pending.nonce,
            newest_state: self.newest_state,
        })
    }

    /// Applies the result of appraising a statement that was received at `now_ns` for `nonce`.
    ///
    /// # Errors
    /// The statement is rejected, or another nonce has been sent since `nonce`.
    pub(crate) fn apply(
        &mut self,
        nonce: Nonce,
        finding: Result<AppraisalFinding, EvidenceRejected>,
        now_ns: u64,
    ) -> Result<(), EvidenceRejected> {
        if self.pending.is_none_or(|pending| pending.nonce != nonce) {
            return Err(EvidenceRejected::NotRequested);
        }
        let AppraisalFinding { snapshot, reason } =
            finding.inspect_err(|error| self.last_rejection = Some(error.to_string()))?;
        self.pending = None;
        self.due_ns = now_ns.saturating_add(self.policy.every_ns);
        self.last_evidence = Some(LastEvidence {
            snapshot,
            is_affirmed: reason.is_none(),
        });
        match reason {
            None => self.state = GatewayTrustState::Trusted,
            Some(reason) => self.distrust(reason),
        }
        self.newest_state = self
            .newest_state
            .max(Some((snapshot.boot_count, snapshot.sequence)));
        Ok(())
    }

    fn distrust(&mut self, reason: String) {
        self.distrust_count += 1;
        self.state = GatewayTrustState::Untrusted { reason };
    }
}

impl AppraisalInput {
    /// The nonce that the statement must contain.
    pub(crate) const fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// Appraises a statement, with its inventory if present. The appraisal of an inventory, of up to 32 MiB, can take
    /// seconds.
    ///
    /// # Errors
    /// The statement is rejected.
    pub(crate) fn appraise(
        &self,
        statement: &[u8],
        inventory: Option<&[u8]>,
    ) -> Result<AppraisalFinding, EvidenceRejected> {
        let evidence = verify(statement, &self.policy.key, self.nonce)?;
        Ok(AppraisalFinding {
            snapshot: *evidence.snapshot(),
            reason: self.distrust_reason(&evidence, inventory)?,
        })
    }

    /// Returns the reason why the gateway is not trusted; `None` if the evidence matches the reference values.
    fn distrust_reason(
        &self,
        evidence: &VerifiedStatement,
        inventory: Option<&[u8]>,
    ) -> Result<Option<String>, ReferenceError> {
        let snapshot = evidence.snapshot();
        if let Some((boot_count, sequence)) = self.newest_state
            && (snapshot.boot_count, snapshot.sequence) < (boot_count, sequence)
        {
            return Ok(Some(format!(
                "evidence is older than the previous evidence: state {} of data plane start {}, after state {sequence} \
                 of data plane start {boot_count}; the state directory was restored, or another machine has the key",
                snapshot.sequence, snapshot.boot_count
            )));
        }
        let proven = inventory
            .map(|bytes| Inventory::read(bytes)?.prove(evidence))
            .transpose();
        let (proven, problem) = match proven {
            Ok(proven) => (proven, None),
            Err(error) => (None, Some(error)),
        };
        let appraisal = appraise(evidence, &self.policy.reference, proven.as_ref())?;
        Ok((!appraisal.is_affirmed()).then(|| appraisal_reason(&appraisal, problem.as_ref())))
    }
}

/// Returns the differences, in at most [`REASON_LINES_MAX`] lines.
fn appraisal_reason(appraisal: &Appraisal, problem: Option<&InventoryError>) -> String {
    let text = appraisal.to_string();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut reason = lines
        .iter()
        .take(REASON_LINES_MAX)
        .copied()
        .collect::<Vec<_>>()
        .join("; ");
    if let Some(omitted) = lines
        .len()
        .checked_sub(REASON_LINES_MAX)
        .filter(|omitted| *omitted > 0)
    {
        reason.push_str(&format!("; and {omitted} more"));
    }
    if let Some(problem) = problem {
        reason.push_str(&format!("; {problem}"));
    }
    reason
}
