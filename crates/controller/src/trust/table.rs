//! The trust states of all gateways that must submit evidence. When a gateway becomes untrusted, the controller issues
//! a new fencing token for the gateway's registration ([`Link`]), so requests under the old token are rejected.

use std::collections::BTreeMap;
use std::sync::Arc;

use linewarden_protocol::ids::GatewayId;
use linewarden_registry::{FencingError, FencingToken, RegistryError};
use linewarden_types::{GatewayTrustState, TrustStatus};

use super::{EvidenceRejected, GatewayTrust, TrustMemory, TrustPolicy, TrustReport};
use crate::denial::Denial;
use crate::link::{Controller, Link};

/// The current time, of two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamps {
    /// A monotonic clock, ns.
    pub now_ns: u64,
    /// The time in seconds since 1970-01-01 UTC.
    pub now_s: u64,
}

/// The consecutive fencing tokens of one gateway process. The controller issued a new token each time the gateway
/// became untrusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcessTokens {
    /// The first token.
    first: u64,
    /// The newest token.
    newest: u64,
}

impl ProcessTokens {
    /// Whether `error` rejects an earlier token of this process, and no other process has registered since.
    fn covers(&self, error: &RegistryError) -> bool {
        let RegistryError::Fencing(FencingError::StaleFencingToken {
            presented, newest, ..
        }) = error
        else {
            return false;
        };
        (self.first..self.newest).contains(presented) && self.newest == *newest
    }
}

/// The trust states of all gateways.
#[derive(Debug, Default)]
pub(crate) struct TrustTable {
    gateways: BTreeMap<GatewayId, TrustEntry>,
    now_ns: u64,
}

#[derive(Debug)]
struct TrustEntry {
    trust: GatewayTrust,
    /// The token of an untrusted gateway, until the controller has issued a new token.
    token_to_replace: Option<u64>,
    /// The tokens of the process that most recently lost its leases.
    replaced_tokens: Option<ProcessTokens>,
    /// Whether another controller may have leased rows to the gateway since the last new token.
    may_hold_leases: bool,
    /// Locked during an appraisal: one appraisal at a time for each gateway.
    appraisal_lock: Arc<tokio::sync::Mutex<()>>,
    /// Held from the issue of a new token until the token is in this entry. Without the lock, a concurrent request under
    /// the old token would be rejected as the request of a replaced process, and the gateway would stop.
    token_lock: Arc<tokio::sync::Mutex<()>>,
    /// Time of the last evidence, seconds since 1970-01-01 UTC.
    last_evidence_at_s: u64,
}

impl TrustEntry {
    fn report(&self) -> TrustReport {
        let policy = self.trust.policy();
        TrustReport {
            state: self.trust.state().clone(),
            last_evidence: self
                .trust
                .last_evidence()
                .map(|evidence| (evidence, self.last_evidence_at_s)),
            memory: TrustMemory {
                key_fingerprint: policy.key.fingerprint(),
                newest_state: self.trust.newest_state(),
            },
            reference: policy.reference.name.clone(),
            validity_ns: policy.every_ns.saturating_add(policy.response_timeout_ns),
        }
    }

    /// Applies `change` to the trust state. A gateway that becomes untrusted loses its leases. A gateway that is
    /// already untrusted, and whose evidence once more does not match or is missing, loses the leases that another
    /// controller may have granted since. `token_number` is the gateway's fencing token.
    fn update<T>(&mut self, token_number: u64, change: impl FnOnce(&mut GatewayTrust) -> T) -> T {
        let was_distrusted = is_distrusted(&self.trust);
        let before = self.trust.distrust_count;
        let result = change(&mut self.trust);
        let is_found_untrusted = self.trust.distrust_count > before;
        if is_found_untrusted && (!was_distrusted || self.may_hold_leases) {
            self.token_to_replace = Some(token_number);
        }
        result
    }
}

fn is_distrusted(trust: &GatewayTrust) -> bool {
    matches!(trust.state(), GatewayTrustState::Untrusted { .. })
}

impl TrustTable {
    /// Resets the trust state of a gateway that has registered and has a new fencing token.
    pub(crate) fn restart(&mut self, gateway: GatewayId) {
        if let Some(entry) = self.gateways.get_mut(&gateway) {
            entry.trust.restart();
            entry.token_to_replace = None;
            entry.may_hold_leases = false;
        }
    }

    /// Resets the trust state of a gateway that continues its registration over another connection, or moves here from
    /// another controller, which has stored `memory`. A token that must be replaced must still be replaced.
    pub(crate) fn resume(&mut self, gateway: GatewayId, memory: Option<TrustMemory>) {
        if let Some(entry) = self.gateways.get_mut(&gateway) {
            entry.trust.restart();
            entry.may_hold_leases = true;
            if let Some(memory) = memory {
                entry.trust.restore(&memory);
            }
        }
    }
}

impl Controller {
    /// Returns the controller with a trust policy for a gateway: the gateway gets rows only while its evidence
    /// matches.
    #[must_use]
    pub fn with_trust_policy(self, gateway: GatewayId, policy: TrustPolicy) -> Self {
        let entry = TrustEntry {
            trust: GatewayTrust::new(policy),
            token_to_replace: None,
            replaced_tokens: None,
            may_hold_leases: true,
            appraisal_lock: Arc::default(),
            token_lock: Arc::default(),
            last_evidence_at_s: 0,
        };
        self.trust_table().gateways.insert(gateway, entry);
        self
    }

    /// Advances the clock. Call this function before each request: overdue evidence is detected with this clock.
    pub fn advance_time(&self, now_ns: u64) {
        let mut trust_table = self.trust_table();
        trust_table.now_ns = trust_table.now_ns.max(now_ns);
    }

    /// Whether `error` reports a token that is stale because the gateway lost its leases, and not because another
    /// process has registered.
    #[must_use]
    pub fn is_stale_through_distrust(&self, error: &RegistryError) -> bool {
        let RegistryError::Fencing(FencingError::StaleFencingToken {
            gateway, presented, ..
        }) = error
        else {
            return false;
        };
        let trust_table = self.trust_table();
        let entry = trust_table.gateways.get(gateway);
        entry.is_some_and(|entry| {
            entry.token_to_replace == Some(*presented)
                || entry.replaced_tokens.is_some_and(|tokens| tokens.covers(error))
        })
    }

    /// Whether a gateway must submit evidence.
    #[must_use]
    pub fn requires_evidence(&self, gateway: GatewayId) -> bool {
        self.trust_table().gateways.contains_key(&gateway)
    }

    /// The trust state of a gateway that must submit evidence, for storage and display.
    #[must_use]
    pub fn trust_report(&self, gateway: GatewayId) -> Option<TrustReport> {
        self.trust_table().gateways.get(&gateway).map(TrustEntry::report)
    }
}

impl Link {
    /// Rejects a gateway that must submit evidence and is not trusted.
    ///
    /// # Errors
    /// [`Denial::Untrusted`].
    pub(crate) fn check_trust(&self) -> Result<(), Denial> {
        let trust_table = self.controller.trust_table();
        let Some(entry) = trust_table.gateways.get(&self.gateway()) else {
            return Ok(());
        };
        if entry.trust.may_have_rows(trust_table.now_ns) {
            return Ok(());
        }
        Err(Denial::Untrusted {
            gateway: self.gateway(),
            reason: match entry.trust.state() {
                GatewayTrustState::Untrusted { reason } => reason.clone(),
                GatewayTrustState::Unproven => "no evidence submitted yet".to_owned(),
                GatewayTrustState::Trusted => "evidence is overdue".to_owned(),
            },
        })
    }

    /// Returns the registration with the newest token, if this process has lost its leases and does not know the new
    /// token; `None` if the token of `self` is the newest.
    async fn with_newest_token(&self) -> Result<Option<Self>, RegistryError> {
        let _token_guard = self.lock_token().await;
        let error = match self.registry().verify_fencing_token(self.fencing_token()).await {
            Ok(()) => return Ok(None),
            Err(error) => error,
        };
        let mut trust_table = self.controller.trust_table();
        let Some(entry) = trust_table.gateways.get_mut(&self.gateway()) else {
            return Err(error);
        };
        match entry.replaced_tokens.filter(|tokens| tokens.covers(&error)) {
            Some(ProcessTokens { newest, .. }) => Ok(Some(self.with_token_number(newest))),
            None => {
                if matches!(
                    error,
                    RegistryError::Fencing(FencingError::StaleFencingToken { .. })
                ) {
                    // The controller cannot replace this stale token: the registry replaced it before but its response
                    // was lost, or another process has registered. The gateway gets the error.
                    entry.token_to_replace = entry
                        .token_to_replace
                        .filter(|token| *token != self.token_number());
                }
                Err(error)
            }
        }
    }

    /// Returns the gateway's current trust status; `None` if the gateway need not submit evidence. [`GatewayTrust::poll`]
    /// describes `random`.
    ///
    /// # Errors
    /// A stale fencing token, or a failure of the database; the request can be retried.
    pub async fn poll_trust(
        &self,
        times: Timestamps,
        random: &mut (dyn FnMut() -> Option<[u8; 32]> + Send),
    ) -> Result<Option<TrustStatus>, RegistryError> {
        if !self.controller.requires_evidence(self.gateway()) {
            return Ok(None);
        }
        // The controller requests no evidence from a replaced process: a timeout of that process must not affect the
        // newer process.
        let newest = self.with_newest_token().await?;
        let link = newest.as_ref().unwrap_or(self);
        let trust_status = {
            let mut trust_table = self.controller.trust_table();
            let Some(entry) = trust_table.gateways.get_mut(&self.gateway()) else {
                return Ok(None);
            };
            entry.update(link.token_number(), |trust| trust.poll(times.now_ns, random))
        };
        let trust_status = link.replace_token_if_untrusted(trust_status, times).await?;
        let newest_token = newest.map(|newest| newest.token_number());
        Ok(Some(TrustStatus {
            fencing_token: trust_status.fencing_token.or(newest_token),
            ..trust_status
        }))
    }

    /// Appraises a statement of this gateway, with its inventory if present.
    ///
    /// # Errors
    /// The inner error: the statement is rejected, and the trust state does not change. The outer error: a stale
    /// fencing token, or a failure of the database; the request can be retried.
    pub async fn submit_evidence(
        &self,
        statement: Vec<u8>,
        inventory: Option<Vec<u8>>,
        times: Timestamps,
    ) -> Result<Result<TrustStatus, EvidenceRejected>, RegistryError> {
        // An earlier process has the same key, and must not submit evidence for the current process.
        self.registry().verify_fencing_token(self.fencing_token()).await?;
        match self.appraise_statement(statement, inventory, times).await {
            Ok(trust_status) => Ok(Ok(self.replace_token_if_untrusted(trust_status, times).await?)),
            Err(error) => {
                tracing::error!(gateway_id = %self.gateway(), %error, "evidence rejected");
                Ok(Err(error))
            }
        }
    }

    /// Appraises a statement and updates the trust state. The table is not locked during the appraisal, because every
    /// request reads the table.
    async fn appraise_statement(
        &self,
        statement: Vec<u8>,
        inventory: Option<Vec<u8>>,
        times: Timestamps,
    ) -> Result<TrustStatus, EvidenceRejected> {
        let appraisal_lock = {
            let trust_table = self.controller.trust_table();
            let entry = trust_table
                .gateways
                .get(&self.gateway())
                .ok_or(EvidenceRejected::NotRequested)?;
            Arc::clone(&entry.appraisal_lock)
        };
        let appraisal_guard = appraisal_lock.lock_owned().await;
        let input = {
            let trust_table = self.controller.trust_table();
            let entry = trust_table
                .gateways
                .get(&self.gateway())
                .ok_or(EvidenceRejected::NotRequested)?;
            entry.trust.appraisal_input(times.now_ns)?
        };
        let nonce = input.nonce();
        let appraise = move || {
            // The appraisal completes, even if the caller no longer waits.
            let _appraisal_guard = appraisal_guard;
            input.appraise(&statement, inventory.as_deref())
        };
        let finding = tokio::task::spawn_blocking(appraise).await;
        let finding = finding.unwrap_or(Err(EvidenceRejected::ControllerStopping));
        let mut trust_table = self.controller.trust_table();
        let entry = trust_table
            .gateways
            .get_mut(&self.gateway())
            .ok_or(EvidenceRejected::NotRequested)?;
        entry.update(self.token_number(), |trust| {
            trust.apply(nonce, finding, times.now_ns)
        })?;
        entry.last_evidence_at_s = times.now_s;
        Ok(TrustStatus {
            nonce: None,
            state: entry.trust.state().clone(),
            fencing_token: None,
        })
    }

    /// Issues a new fencing token for a gateway that has become untrusted: requests under the old token are rejected.
    async fn replace_token_if_untrusted(
        &self,
        trust_status: TrustStatus,
        times: Timestamps,
    ) -> Result<TrustStatus, RegistryError> {
        let gateway = self.gateway();
        let _token_guard = self.lock_token().await;
        // The token of another process is not replaced here: the next request of that process causes the replacement.
        let must_replace = |entry: &TrustEntry| entry.token_to_replace == Some(self.token_number());
        if !self
            .controller
            .trust_table()
            .gateways
            .get(&gateway)
            .is_some_and(must_replace)
        {
            return Ok(trust_status);
        }
        let fencing_token = self.issue_fencing_token(times.now_s).await?;
        if let GatewayTrustState::Untrusted { reason } = &trust_status.state {
            tracing::error!(gateway_id = %gateway, reason, "gateway is untrusted; its leases are revoked");
        }
        Ok(TrustStatus {
            fencing_token: Some(fencing_token.number()),
            ..trust_status
        })
    }

    /// Locks the gateway's tokens; `None` if the gateway need not submit evidence.
    async fn lock_token(&self) -> Option<tokio::sync::OwnedMutexGuard<()>> {
        let lock = {
            let trust_table = self.controller.trust_table();
            Arc::clone(&trust_table.gateways.get(&self.gateway())?.token_lock)
        };
        Some(lock.lock_owned().await)
    }

    /// Issues a new fencing token for this gateway, and records that the token of `self` is replaced.
    async fn issue_fencing_token(&self, now_s: u64) -> Result<FencingToken, RegistryError> {
        let issued = self
            .registry()
            .issue_fencing_token(self.fencing_token(), now_s)
            .await;
        let is_final = match &issued {
            Ok(_) => true,
            // A stale token has no leases any more, and the token of another process must stay valid.
            Err(error) => matches!(
                error,
                RegistryError::Fencing(FencingError::StaleFencingToken { .. })
            ),
        };
        if let Some(entry) = self.controller.trust_table().gateways.get_mut(&self.gateway()) {
            entry.token_to_replace = entry.token_to_replace.filter(|_| !is_final);
            if let Ok(fencing_token) = &issued {
                entry.may_hold_leases = false;
                let earlier = entry
                    .replaced_tokens
                    .filter(|tokens| tokens.newest == self.token_number());
                entry.replaced_tokens = Some(ProcessTokens {
                    first: earlier.map_or(self.token_number(), |tokens| tokens.first),
                    newest: fencing_token.number(),
                });
            }
        }
        issued
    }
}
