//! The trust states of all gateways that must submit evidence, and their effect on links.

use std::collections::BTreeMap;
use std::sync::Arc;

use linewarden_protocol::ids::GatewayId;
use linewarden_registry::{FencingToken, RegistryError};

use super::{
    EvidenceRejected, GatewayTrust, GatewayTrustState, TrustMemory, TrustPolicy, TrustReport, TrustStatus,
};
use crate::link::{Controller, Link};
use crate::message::Denial;

/// The current time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamps {
    /// A monotonic clock, ns.
    pub now_ns: u64,
    /// Seconds since 1970-01-01 UTC.
    pub now_s: u64,
}

/// The result of polling or appraising a gateway.
#[derive(Clone, Debug)]
pub struct TrustOutcome {
    /// The trust state, and the request for evidence.
    pub status: TrustStatus,
    /// The link with the renewed fencing token, if the gateway has lost its leases.
    pub link: Option<Link>,
}

/// A range of fencing tokens of one process: the controller renewed the token each time the gateway became untrusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RaisedToken {
    /// The first token.
    from: u64,
    /// The newest token.
    to: u64,
}

impl RaisedToken {
    /// Whether a stale token belongs to this process.
    fn covers(&self, error: &RegistryError) -> bool {
        let RegistryError::StaleFencingToken {
            presented, newest, ..
        } = error
        else {
            return false;
        };
        (self.from..self.to).contains(presented) && self.to == *newest
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
    /// The token of an untrusted gateway that has not been renewed yet.
    pending_raise: Option<u64>,
    /// The last renewal.
    raised: Option<RaisedToken>,
    /// Another controller may have leased rows to the gateway since the last renewal.
    may_hold_leases: bool,
    /// Locked during an appraisal: one at a time for each gateway.
    appraisal_lock: Arc<tokio::sync::Mutex<()>>,
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
    /// found to be untrusted again loses the leases that another controller may have granted.
    fn update<T>(&mut self, number: u64, change: impl FnOnce(&mut GatewayTrust) -> T) -> T {
        let was_distrusted = is_distrusted(&self.trust);
        let before = self.trust.distrust_count;
        let result = change(&mut self.trust);
        let is_found = self.trust.distrust_count > before;
        if is_found && (!was_distrusted || self.may_hold_leases) {
            self.pending_raise = Some(number);
        }
        result
    }
}

fn is_distrusted(trust: &GatewayTrust) -> bool {
    matches!(trust.state(), GatewayTrustState::Untrusted { .. })
}

impl TrustTable {
    /// The gateway has registered.
    pub(crate) fn restart(&mut self, gateway: GatewayId) {
        if let Some(entry) = self.gateways.get_mut(&gateway) {
            entry.trust.restart();
            // The registration has renewed the token.
            entry.pending_raise = None;
            entry.may_hold_leases = false;
        }
    }

    /// The gateway continues over another connection or from another controller, which has stored `memory`. A pending
    /// renewal stays pending.
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
            pending_raise: None,
            raised: None,
            may_hold_leases: true,
            appraisal_lock: Arc::default(),
            last_evidence_at_s: 0,
        };
        self.trust_table().gateways.insert(gateway, entry);
        self
    }

    /// Advances the clock, so that overdue evidence has effect. Call this function before each request.
    pub fn advance_time(&self, now_ns: u64) {
        let mut trust_table = self.trust_table();
        trust_table.now_ns = trust_table.now_ns.max(now_ns);
    }

    /// Whether a token is stale because the gateway lost its leases, and not because another process has registered.
    #[must_use]
    pub fn is_distrust_fencing(&self, error: &RegistryError) -> bool {
        let RegistryError::StaleFencingToken {
            gateway, presented, ..
        } = error
        else {
            return false;
        };
        let trust_table = self.trust_table();
        let entry = trust_table.gateways.get(gateway);
        entry.is_some_and(|entry| {
            entry.pending_raise == Some(*presented) || entry.raised.is_some_and(|raised| raised.covers(error))
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

    /// Returns the link with the newest token, if this process has lost its leases and does not know the new token.
    async fn raised_link(&self) -> Result<Option<Self>, RegistryError> {
        let error = match self.registry().verify_fencing_token(self.fencing_token()).await {
            Ok(()) => return Ok(None),
            Err(error) => error,
        };
        let mut trust_table = self.controller.trust_table();
        let Some(entry) = trust_table.gateways.get_mut(&self.gateway()) else {
            return Err(error);
        };
        match entry.raised.filter(|raised| raised.covers(&error)) {
            Some(RaisedToken { to, .. }) => Ok(Some(self.controller.link(self.gateway(), to))),
            None => {
                // This token cannot be renewed: the response to the renewal was lost, or another process has
                // registered. The gateway gets the error.
                entry.pending_raise = entry.pending_raise.filter(|due| *due != self.token_number());
                Err(error)
            }
        }
    }

    /// Returns the gateway's trust status now; `None` if the gateway need not submit evidence. `random` as in
    /// [`GatewayTrust::poll`].
    ///
    /// # Errors
    /// A stale fencing token, or a failure of the database; the request can be retried.
    pub async fn poll_trust(
        &self,
        times: Timestamps,
        random: &mut (dyn FnMut() -> Option<[u8; 32]> + Send),
    ) -> Result<Option<TrustOutcome>, RegistryError> {
        if !self.controller.requires_evidence(self.gateway()) {
            return Ok(None);
        }
        // No evidence is requested of a replaced process, and its timeout must not affect the newer process.
        let raised = self.raised_link().await?;
        let link = raised.as_ref().unwrap_or(self);
        let trust_status = {
            let mut trust_table = self.controller.trust_table();
            let Some(entry) = trust_table.gateways.get_mut(&self.gateway()) else {
                return Ok(None);
            };
            entry.update(link.token_number(), |trust| trust.poll(times.now_ns, random))
        };
        let verdict = link.fence_if_distrusted(trust_status, times).await?;
        Ok(Some(TrustOutcome {
            link: verdict.link.or(raised),
            ..verdict
        }))
    }

    /// Appraises a statement of this gateway, with its inventory if present.
    ///
    /// # Errors
    /// The statement is rejected, which changes nothing. A stale fencing token, or a failure of the database; the
    /// request can be retried.
    pub async fn submit_evidence(
        &self,
        statement: Vec<u8>,
        inventory: Option<Vec<u8>>,
        times: Timestamps,
    ) -> Result<Result<TrustOutcome, EvidenceRejected>, RegistryError> {
        // An earlier process has the same key, and must not submit evidence for this one.
        self.registry().verify_fencing_token(self.fencing_token()).await?;
        match self.appraise_statement(statement, inventory, times).await {
            Ok(trust_status) => Ok(Ok(self.fence_if_distrusted(trust_status, times).await?)),
            Err(error) => {
                tracing::error!(gateway_id = %self.gateway(), %error, "evidence rejected");
                Ok(Err(error))
            }
        }
    }

    /// The table is not locked during the appraisal, because every request reads the table.
    async fn appraise_statement(
        &self,
        statement: Vec<u8>,
        inventory: Option<Vec<u8>>,
        times: Timestamps,
    ) -> Result<TrustStatus, EvidenceRejected> {
        let judging = {
            let trust_table = self.controller.trust_table();
            let entry = trust_table
                .gateways
                .get(&self.gateway())
                .ok_or(EvidenceRejected::NotRequested)?;
            Arc::clone(&entry.appraisal_lock)
        };
        let turn = judging.lock_owned().await;
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
            let _turn = turn;
            input.appraise(&statement, inventory.as_deref())
        };
        let found = tokio::task::spawn_blocking(appraise).await;
        let found = found.unwrap_or(Err(EvidenceRejected::ControllerStopping));
        let mut trust_table = self.controller.trust_table();
        let entry = trust_table
            .gateways
            .get_mut(&self.gateway())
            .ok_or(EvidenceRejected::NotRequested)?;
        entry.update(self.token_number(), |trust| {
            trust.apply(nonce, found, times.now_ns)
        })?;
        entry.last_evidence_at_s = times.now_s;
        Ok(TrustStatus {
            nonce: None,
            state: entry.trust.state().clone(),
        })
    }

    /// Renews the fencing token of a gateway that has become untrusted: requests under the old token are rejected.
    async fn fence_if_distrusted(
        &self,
        trust_status: TrustStatus,
        times: Timestamps,
    ) -> Result<TrustOutcome, RegistryError> {
        let gateway = self.gateway();
        // A pending renewal of another process's token is not this link's.
        let is_due = |entry: &TrustEntry| entry.pending_raise == Some(self.token_number());
        if !self
            .controller
            .trust_table()
            .gateways
            .get(&gateway)
            .is_some_and(is_due)
        {
            return Ok(TrustOutcome {
                status: trust_status,
                link: None,
            });
        }
        let fencing_token = self.raise_fencing_token(times.now_s).await?;
        if let GatewayTrustState::Untrusted { reason } = &trust_status.state {
            tracing::error!(gateway_id = %gateway, reason, "gateway is untrusted; its leases are revoked");
        }
        Ok(TrustOutcome {
            status: trust_status,
            link: Some(Self {
                controller: self.controller.clone(),
                fencing_token,
            }),
        })
    }

    async fn raise_fencing_token(&self, now_s: u64) -> Result<FencingToken, RegistryError> {
        let raised = self
            .registry()
            .renew_fencing_token(self.fencing_token(), now_s)
            .await;
        let is_over = match &raised {
            Ok(_) => true,
            // A stale token has no leases any more, and the token of another process must stay.
            Err(error) => matches!(error, RegistryError::StaleFencingToken { .. }),
        };
        if let Some(entry) = self.controller.trust_table().gateways.get_mut(&self.gateway()) {
            entry.pending_raise = entry.pending_raise.filter(|_| !is_over);
            if let Ok(fencing_token) = &raised {
                entry.may_hold_leases = false;
                let before = entry.raised.filter(|before| before.to == self.token_number());
                entry.raised = Some(RaisedToken {
                    from: before.map_or(self.token_number(), |before| before.from),
                    to: fencing_token.number(),
                });
            }
        }
        raised
    }
}
