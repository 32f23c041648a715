//! A controller in the same process.

use linewarden_controller::attest::Verifier;
use linewarden_controller::trust::{TrustOutcome, TrustStatus};
use linewarden_controller::{
    Controller, Denial, LeaseChunk, LeaseReader, Link, SessionReport, SessionReportResult,
};
use linewarden_dataplane::{Measurement, SessionOpening};
use linewarden_evidence::statement::Nonce;
use linewarden_protocol::ids::GatewayId;
use linewarden_registry::{BootId, BootTimestamp, RegistryError};

use super::{ended_s, now_s, random_32, session_report, timestamps};
use crate::evidence_source::EvidenceSource;
use crate::gateway::random;
use crate::requests::{ControllerRequest, ControllerResponse, LinkError};
use crate::time::{Clock, boot_id};

/// State of a request queue: the lease reader and the verifier, each with the fencing token of its registration.
#[derive(Default)]
pub(super) struct QueueState {
    leases: Option<(u64, LeaseReader)>,
    verifier: Option<(u64, Verifier)>,
}

/// A controller in this process.
pub(super) struct LocalController {
    controller: Controller,
    gateway: GatewayId,
    boot: Option<BootId>,
    link: tokio::sync::Mutex<Option<Link>>,
    source: Option<EvidenceSource>,
}

impl LocalController {
    pub(super) fn new(controller: Controller, gateway: GatewayId, source: Option<EvidenceSource>) -> Self {
        Self {
            controller,
            gateway,
            boot: boot_id(),
            link: tokio::sync::Mutex::default(),
            source,
        }
    }

    /// Responds to a request. After a restore of the registry, the registration is discarded, and the next request
    /// registers again.
    pub(super) async fn respond(
        &self,
        request: ControllerRequest,
        queue_state: &mut QueueState,
    ) -> ControllerResponse {
        let token = self.link.lock().await.as_ref().map(Link::token_number);
        let response = self.respond_registered(request, queue_state).await;
        if matches!(response.error(), Some(LinkError::RegistryRestored(_))) {
            self.link
                .lock()
                .await
                .take_if(|link| Some(link.token_number()) == token);
        }
        response
    }

    async fn respond_registered(
        &self,
        request: ControllerRequest,
        queue_state: &mut QueueState,
    ) -> ControllerResponse {
        self.controller.advance_time(Clock::now().boot_ns);
        match request {
            ControllerRequest::Register => {
                let token = self.link().await.map(|link| link.token_number());
                ControllerResponse::Register(token.map_err(|error| self.link_error(error)))
            }
            ControllerRequest::ResumeLeases => {
                let chunk = self.resume_leases(&mut queue_state.leases).await;
                ControllerResponse::ResumeLeases(chunk.map_err(|error| self.link_error(error)))
            }
            ControllerRequest::SubmitEvidence { nonce, measurement } => {
                ControllerResponse::SubmitEvidence(self.submit_evidence(nonce, measurement).await)
            }
            ControllerRequest::ExtendLeases(requests) => ControllerResponse::ExtendLeases(
                async { self.link().await?.extend_leases(&requests).await }
                    .await
                    .map_err(|error| self.link_error(error)),
            ),
            ControllerRequest::AdmitDevices {
                requests: admissions,
                fresh,
            } => ControllerResponse::AdmitDevices(
                async { self.link().await?.admit_devices(&admissions, fresh).await }
                    .await
                    .map_err(|error| self.link_error(error)),
            ),
            ControllerRequest::ReportUnusedRows(unused_rows) => ControllerResponse::ReportUnusedRows(
                async { self.link().await?.record_unused_rows(&unused_rows).await }
                    .await
                    .map_err(|error| self.link_error(error)),
            ),
            ControllerRequest::ReportSessions(openings) => {
                let at_ns = Clock::now().boot_ns;
                let result = self.report_sessions(&openings, at_ns).await;
                ControllerResponse::ReportSessions {
                    result: result.map_err(|error| self.link_error(error)),
                    at_ns,
                }
            }
            ControllerRequest::GetPlan(plan_request) => {
                let plan = async {
                    let verifier = self.verifier(&mut queue_state.verifier).await?;
                    verifier.plan(plan_request, now_s(), &mut random).await
                };
                ControllerResponse::GetPlan(plan.await.map_err(|error| self.link_error(error)))
            }
            ControllerRequest::ListProvers { start, since } => {
                let provers = async {
                    let verifier = self
                        .verifier(&mut queue_state.verifier)
                        .await
                        .map_err(Denial::from)?;
                    verifier.provers(start, since).await
                };
                ControllerResponse::ListProvers(provers.await.map_err(|error| self.link_error(error)))
            }
            ControllerRequest::AppraiseRound(round) => {
                let appraisal = async {
                    let verifier = self.verifier(&mut queue_state.verifier).await?;
                    let now_s = now_s();
                    verifier
                        .appraise_round(&round, ended_s(&round, now_s), now_s)
                        .await
                };
                ControllerResponse::AppraiseRound(appraisal.await.map_err(|error| self.link_error(error)))
            }
            ControllerRequest::ListProverIds { since } => ControllerResponse::ListProverIds(
                async { self.link().await?.prover_ids(since).await }
                    .await
                    .map_err(|error| self.link_error(error)),
            ),
            ControllerRequest::ListChanges { since } => {
                let at_ns = Clock::now().boot_ns;
                let now = self.boot_timestamp(at_ns);
                // The trust status is read first: if this read causes a new fencing token, reading the changes with the
                // old token fails.
                let trust_status = self.poll_trust().await;
                let result = async { self.link().await?.changes_since(since, now).await }.await;
                ControllerResponse::ListChanges {
                    result: result.map_err(|error| self.link_error(error)),
                    at_ns,
                    trust: trust_status,
                }
            }
        }
    }

    /// Returns the boot-time clock as a timestamp. Gateway and controller have the same clock, so ages are exact.
    /// `None` if the boot id is unknown: without the boot id, sessions cannot be compared with sessions at other
    /// gateways.
    fn boot_timestamp(&self, boot_ns: u64) -> Option<BootTimestamp> {
        Some(BootTimestamp {
            boot_id: self.boot?,
            ns: i64::try_from(boot_ns).unwrap_or(i64::MAX),
        })
    }

    async fn report_sessions(
        &self,
        openings: &[SessionOpening],
        now_ns: u64,
    ) -> Result<Vec<SessionReportResult>, RegistryError> {
        let Some(now) = self.controller.session_clock(self.boot_timestamp(now_ns)).await? else {
            return Ok(vec![SessionReportResult::Newest; openings.len()]);
        };
        let reports: Vec<SessionReport> = openings
            .iter()
            .map(|opening| session_report(opening, now_ns))
            .collect();
        self.link().await?.report_sessions(&reports, now).await
    }

    async fn resume_leases(&self, entry: &mut Option<(u64, LeaseReader)>) -> Result<LeaseChunk, Denial> {
        let link = self.link().await?;
        let token = link.token_number();
        let (_, leases) = match entry {
            Some(leases) if leases.0 == token => leases,
            _ => entry.insert((token, link.leases())),
        };
        leases.next_chunk().await
    }

    /// Returns the verifier of this registration, which has loaded the provers' histories.
    async fn verifier<'a>(
        &self,
        entry: &'a mut Option<(u64, Verifier)>,
    ) -> Result<&'a mut Verifier, RegistryError> {
        let link = self.link().await?;
        let token = link.token_number();
        if entry.as_ref().is_none_or(|(owner, _)| *owner != token) {
            *entry = None;
        }
        let (_, verifier) = match entry {
            Some(verifier) => verifier,
            None => entry.insert((token, Verifier::open(link).await?)),
        };
        Ok(verifier)
    }

    /// Returns the registration. Only the first call registers this process: another registration would invalidate the
    /// fencing token.
    async fn link(&self) -> Result<Link, RegistryError> {
        let mut link = self.link.lock().await;
        match &*link {
            Some(link) => Ok(link.clone()),
            None => {
                let connected = self.controller.register(self.gateway, now_s()).await?;
                Ok(link.insert(connected).clone())
            }
        }
    }

    /// Returns the trust status of this gateway.
    async fn poll_trust(&self) -> Option<TrustStatus> {
        let result = async { self.link().await?.poll_trust(timestamps(), &mut random_32).await }.await;
        match result {
            Ok(outcome) => Some(self.adopt_trust(outcome?).await),
            Err(error) => {
                tracing::debug!(%error, "reading the trust status failed; retrying");
                None
            }
        }
    }

    /// Creates signed evidence, and submits it.
    async fn submit_evidence(
        &self,
        nonce: Nonce,
        measurement: Option<Box<Measurement>>,
    ) -> Result<TrustStatus, LinkError> {
        let failed = |error: &dyn std::fmt::Display| LinkError::Failed(error.to_string());
        let source = self.source.as_ref();
        let source = source.ok_or_else(|| failed(&"gateway has no evidence key"))?;
        let statement = source.statement(nonce, measurement).await;
        let statement = statement.map_err(|error| LinkError::NoEvidence(error.to_string()))?;
        let link = self.link().await.map_err(|error| self.link_error(error))?;
        let result = link
            .submit_evidence(statement.statement, Some(statement.inventory), timestamps())
            .await
            .map_err(|error| self.link_error(error))?;
        match result {
            Ok(outcome) => Ok(self.adopt_trust(outcome).await),
            Err(error) => Err(LinkError::Untrusted(error.to_string())),
        }
    }

    /// Stores the new registration if the controller has revoked this gateway's leases.
    async fn adopt_trust(
        &self,
        TrustOutcome {
            status: trust_status,
            link,
        }: TrustOutcome,
    ) -> TrustStatus {
        if let Some(link) = link {
            *self.link.lock().await = Some(link);
        }
        trust_status
    }

    /// Converts an error. A stale fencing token means that another process has registered, unless the controller has
    /// replaced the token because this gateway became untrusted.
    fn link_error(&self, error: impl Into<Denial>) -> LinkError {
        let denial = error.into();
        match &denial {
            Denial::Registry(error) if self.controller.is_stale_through_distrust(error) => {
                LinkError::Untrusted(error.to_string())
            }
            _ => denial.into(),
        }
    }
}
