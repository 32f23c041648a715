//! Controllers on other machines.

use std::collections::BTreeMap;
use std::time::Duration;

use linewarden_controller::trust::TrustStatus;
use linewarden_controller::{LeaseChunk, SessionReport};
use linewarden_dataplane::Measurement;
use linewarden_evidence::statement::Nonce;
use linewarden_link::{Client, ClientError, StatusReport};
use linewarden_protocol::verdict::Verdict;
use linewarden_registry::LeasedCursor;

use super::rates::RateMeter;
use super::{DataPlaneInfo, StatusSample, session_report};
use crate::evidence_source::EvidenceSource;
use crate::requests::{ControllerRequest, ControllerResponse, LinkError};
use crate::ticket_relay::TicketCounts;
use crate::time::Clock;

/// Interval of status reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// State of a request queue: the cursor of the lease reader, with its fencing token.
#[derive(Default)]
pub(super) struct QueueState {
    lease_cursor: Option<(u64, LeasedCursor)>,
}

/// Controllers on other machines, one at a time.
pub(super) struct RemoteController {
    client: Client,
    data_plane: DataPlaneInfo,
    /// Fencing token of this process; `None` before the first request.
    fencing_token: tokio::sync::Mutex<Option<u64>>,
    source: Option<EvidenceSource>,
}

impl From<ClientError> for LinkError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Failed(reason) => Self::failed("controller", reason),
            ClientError::Untrusted(reason) => Self::Untrusted(reason),
            ClientError::Replaced(reason) => Self::Replaced(reason),
            ClientError::RegistryRestored(reason) => Self::RegistryRestored(reason),
        }
    }
}

impl RemoteController {
    pub(super) fn new(client: Client, data_plane: DataPlaneInfo, source: Option<EvidenceSource>) -> Self {
        Self {
            client,
            data_plane,
            fencing_token: tokio::sync::Mutex::default(),
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
        // Every request needs a registration.
        let fencing_token = self.fencing_token().await;
        let token_used = fencing_token.as_ref().ok().copied();
        let response = self.respond_registered(fencing_token, request, queue_state).await;
        if matches!(response.error(), Some(LinkError::RegistryRestored(_))) {
            self.fencing_token
                .lock()
                .await
                .take_if(|current| Some(*current) == token_used);
        }
        response
    }

    async fn respond_registered(
        &self,
        fencing_token: Result<u64, LinkError>,
        request: ControllerRequest,
        queue_state: &mut QueueState,
    ) -> ControllerResponse {
        match request {
            ControllerRequest::Register => ControllerResponse::Register(fencing_token),
            ControllerRequest::ResumeLeases => ControllerResponse::ResumeLeases(
                async { self.resume_leases(fencing_token?, queue_state).await }.await,
            ),
            ControllerRequest::SubmitEvidence { nonce, measurement } => ControllerResponse::SubmitEvidence(
                async { self.submit_evidence(fencing_token?, nonce, measurement).await }.await,
            ),
            ControllerRequest::ExtendLeases(requests) => ControllerResponse::ExtendLeases(
                async { Ok(self.client.extend_leases(fencing_token?, &requests).await?) }.await,
            ),
            ControllerRequest::AdmitDevices {
                requests: admissions,
                fresh,
            } => ControllerResponse::AdmitDevices(
                async {
                    Ok(self
                        .client
                        .admit_devices(fencing_token?, &admissions, fresh)
                        .await?)
                }
                .await,
            ),
            ControllerRequest::ReportUnusedRows(unused_rows) => ControllerResponse::ReportUnusedRows(
                async {
                    Ok(self
                        .client
                        .report_unused_rows(fencing_token?, &unused_rows)
                        .await?)
                }
                .await,
            ),
            ControllerRequest::ReportSessions(openings) => {
                let at_ns = Clock::now().boot_ns;
                let reports: Vec<SessionReport> = openings
                    .iter()
                    .map(|opening| session_report(opening, at_ns))
                    .collect();
                let result = async { Ok(self.client.report_sessions(fencing_token?, &reports).await?) }.await;
                ControllerResponse::ReportSessions { result, at_ns }
            }
            ControllerRequest::GetPlan(plan_request) => ControllerResponse::GetPlan(
                async { Ok(self.client.get_plan(fencing_token?, plan_request).await?) }.await,
            ),
            ControllerRequest::ListProvers { start, since } => ControllerResponse::ListProvers(
                async { Ok(self.client.list_provers(fencing_token?, start, since).await?) }.await,
            ),
            ControllerRequest::AppraiseRound(round) => {
                let age_ns = Clock::now().boot_ns.saturating_sub(round.ended_ns);
                ControllerResponse::AppraiseRound(
                    async { Ok(self.client.appraise_round(fencing_token?, &round, age_ns).await?) }.await,
                )
            }
            ControllerRequest::ListProverIds { since } => ControllerResponse::ListProverIds(
                async { Ok(self.client.list_prover_ids(fencing_token?, since).await?) }.await,
            ),
            ControllerRequest::ListChanges { since } => {
                let at_ns = Clock::now().boot_ns;
                let changes_and_trust =
                    async { Ok(self.client.list_changes(fencing_token?, since).await?) }.await;
                let (result, trust_status) = match changes_and_trust {
                    Ok((changes, trust_status)) => (Ok(changes), trust_status),
                    Err(error) => (Err(error), None),
                };
                let trust_status = match trust_status {
                    Some(trust_status) => Some(self.adopt_trust(trust_status).await),
                    None => None,
                };
                ControllerResponse::ListChanges {
                    result,
                    at_ns,
                    trust: trust_status,
                }
            }
        }
    }

    /// Reports the status once a second.
    pub(super) async fn report_status(
        &self,
        sample_status: impl Fn() -> Option<StatusSample> + Clone + Send + 'static,
    ) {
        let mut clock = tokio::time::interval(REPORT_INTERVAL);
        clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut rates = RateMeter::default();
        loop {
            clock.tick().await;
            // A status report alone does not register the process.
            let Some(fencing_token) = *self.fencing_token.lock().await else {
                continue;
            };
            // The control thread provides the sample, and may be busy.
            let result = tokio::task::spawn_blocking(sample_status.clone()).await;
            let Ok(Some(sample)) = result else {
                continue;
            };
            let current = rates.update(&sample);
            let report = StatusReport {
                data_plane: self.data_plane.kind.clone(),
                devices: sample.status.devices,
                slots: self.data_plane.slots,
                sessions: sample.sessions,
                authentications_per_s: current.authentications_per_s,
                latency_us_p50: current.latency_us_p50,
                latency_us_p99: current.latency_us_p99,
                verdicts: Verdict::ALL
                    .iter()
                    .map(|verdict| (verdict.name().to_owned(), sample.counters.get(*verdict)))
                    .filter(|(_, count)| *count > 0)
                    .collect(),
                dropped_types: sample.status.dropped_types.clone(),
                kernel_drops: kernel_drops(&sample),
                tickets: sample
                    .status
                    .tickets
                    .as_ref()
                    .map(ticket_counts)
                    .unwrap_or_default(),
            };
            match self.client.report_status(fencing_token, &report).await {
                Ok(()) => {}
                // The newer process reports its status.
                Err(ClientError::Replaced(_)) => std::future::pending().await,
                // The next report follows in a second.
                Err(error) => tracing::debug!(%error, "status report failed"),
            }
        }
    }

    /// Returns the fencing token. Only the first call registers this process: another registration would invalidate the
    /// fencing token.
    async fn fencing_token(&self) -> Result<u64, LinkError> {
        let mut fencing_token = self.fencing_token.lock().await;
        match *fencing_token {
            Some(fencing_token) => Ok(fencing_token),
            None => Ok(*fencing_token.insert(self.client.register().await?)),
        }
    }

    async fn resume_leases(
        &self,
        fencing_token: u64,
        queue_state: &mut QueueState,
    ) -> Result<LeaseChunk, LinkError> {
        let cursor = queue_state
            .lease_cursor
            .filter(|(token, _)| *token == fencing_token);
        let cursor = cursor.map_or_else(LeasedCursor::default, |(_, cursor)| cursor);
        let (chunk, cursor) = self.client.resume_leases(fencing_token, cursor).await?;
        queue_state.lease_cursor = Some((fencing_token, cursor));
        Ok(chunk)
    }

    /// Creates signed evidence, and submits it.
    async fn submit_evidence(
        &self,
        fencing_token: u64,
        nonce: Nonce,
        measurement: Option<Box<Measurement>>,
    ) -> Result<TrustStatus, LinkError> {
        let source = self.source.as_ref();
        let source = source.ok_or_else(|| LinkError::Failed("gateway has no evidence key".to_owned()))?;
        let statement = source.statement(nonce, measurement).await;
        let statement = statement.map_err(|error| LinkError::NoEvidence(error.to_string()))?;
        let outcome = self
            .client
            .submit_evidence(fencing_token, &statement.statement, &statement.inventory)
            .await?;
        Ok(self.adopt_trust(outcome).await)
    }

    /// Stores the new fencing token if the controller has revoked this gateway's leases.
    async fn adopt_trust(&self, (trust_status, new_token): (TrustStatus, Option<u64>)) -> TrustStatus {
        if let Some(new_token) = new_token {
            *self.fencing_token.lock().await = Some(new_token);
            self.client.set_fencing_token(new_token);
        }
        trust_status
    }
}

fn kernel_drops(sample: &StatusSample) -> BTreeMap<String, u64> {
    let tickets = sample.status.tickets.map_or(0, |tickets| tickets.kernel_drops);
    counts_by_name(
        StatusReport::KERNEL_DROPS,
        [sample.counters.kernel_drops, tickets],
    )
}

fn ticket_counts(counts: &TicketCounts) -> BTreeMap<String, u64> {
    let TicketCounts {
        answered,
        unknown,
        rate_limited,
        rejected,
        failed,
        kernel_drops: _,
    } = *counts;
    counts_by_name(
        StatusReport::TICKETS,
        [answered, unknown, rate_limited, rejected, failed],
    )
}

fn counts_by_name<const N: usize>(names: [&str; N], counts: [u64; N]) -> BTreeMap<String, u64> {
    names.map(str::to_owned).into_iter().zip(counts).collect()
}
