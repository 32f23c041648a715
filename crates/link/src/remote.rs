//! Controllers in other processes, as a gateway's controller.

use linewarden_protocol::attest::PeriodStart;
use linewarden_protocol::ids::DeviceId;
use linewarden_types::{
    AdmissionRequest, AdmissionResponse, Changes, ControllerLink, LeaseChunk, LeasedCursor, LinkError, Plan,
    PlanRequest, ProverIds, Provers, Provision, Revision, RoundAppraisal, RoundOutcome, RowRefusal,
    RowRequest, SessionReport, SessionReportResult, StatusReport, TrustStatus, UnusedRows,
};
use tokio::sync::Mutex;

use crate::client::Client;

/// Controllers in other processes, one at a time. Registers this process with the first request.
#[derive(Debug)]
pub struct RemoteController {
    client: Client,
    /// Fencing token of this process; `None` before the first request.
    fencing_token: Mutex<Option<u64>>,
    /// The cursor of the lease reader, with the fencing token of its registration.
    lease_cursor: Mutex<Option<(u64, LeasedCursor)>>,
}

impl From<Client> for RemoteController {
    fn from(client: Client) -> Self {
        Self {
            client,
            fencing_token: Mutex::default(),
            lease_cursor: Mutex::default(),
        }
    }
}

impl RemoteController {
    /// Returns the fencing token. Only the first call registers this process.
    async fn fencing_token(&self) -> Result<u64, LinkError> {
        let mut fencing_token = self.fencing_token.lock().await;
        match *fencing_token {
            Some(fencing_token) => Ok(fencing_token),
            None => Ok(*fencing_token.insert(self.client.register().await?)),
        }
    }

    /// Sends a request under the registration of this process. After a restore of the registry, the registration is
    /// discarded, and the next request registers again.
    async fn request<'a, T, F>(&'a self, send: impl FnOnce(&'a Client, u64) -> F) -> Result<T, LinkError>
    where
        F: Future<Output = Result<T, LinkError>>,
    {
        let fencing_token = self.fencing_token().await?;
        let result = send(&self.client, fencing_token).await;
        if matches!(result, Err(LinkError::RegistryRestored(_))) {
            self.fencing_token
                .lock()
                .await
                .take_if(|current| *current == fencing_token);
        }
        result
    }

    /// Stores the new fencing token if the controller has revoked this gateway's leases.
    async fn adopt_trust(&self, (trust_status, new_token): (TrustStatus, Option<u64>)) -> TrustStatus {
        if let Some(new_token) = new_token {
            // Responses to concurrent requests arrive in any order.
            let mut fencing_token = self.fencing_token.lock().await;
            let newest = fencing_token.map_or(new_token, |current| current.max(new_token));
            *fencing_token = Some(newest);
            self.client.set_fencing_token(newest);
        }
        trust_status
    }
}

#[tonic::async_trait(?Send)]
impl ControllerLink for RemoteController {
    async fn register(&self) -> Result<u64, LinkError> {
        self.fencing_token().await
    }

    async fn resume_leases(&self) -> Result<LeaseChunk, LinkError> {
        let mut lease_cursor = self.lease_cursor.lock().await;
        let (fencing_token, (chunk, cursor)) = self
            .request(|client, fencing_token| {
                let cursor = lease_cursor.filter(|(token, _)| *token == fencing_token);
                let cursor = cursor.map_or_else(LeasedCursor::default, |(_, cursor)| cursor);
                async move { Ok((fencing_token, client.resume_leases(fencing_token, cursor).await?)) }
            })
            .await?;
        *lease_cursor = Some((fencing_token, cursor));
        Ok(chunk)
    }

    async fn extend_leases(
        &self,
        requests: &[RowRequest],
    ) -> Result<(Vec<Provision>, Vec<RowRefusal>), LinkError> {
        self.request(|client, fencing_token| client.extend_leases(fencing_token, requests))
            .await
    }

    async fn admit_devices(
        &self,
        requests: &[AdmissionRequest],
        fresh: [u8; 8],
    ) -> Result<Vec<AdmissionResponse>, LinkError> {
        self.request(|client, fencing_token| client.admit_devices(fencing_token, requests, fresh))
            .await
    }

    async fn report_unused_rows(&self, unused_rows: &[UnusedRows]) -> Result<u64, LinkError> {
        self.request(|client, fencing_token| client.report_unused_rows(fencing_token, unused_rows))
            .await
    }

    async fn report_sessions(
        &self,
        reports: &[SessionReport],
    ) -> Result<Vec<SessionReportResult>, LinkError> {
        self.request(|client, fencing_token| client.report_sessions(fencing_token, reports))
            .await
    }

    async fn get_plan(&self, request: PlanRequest) -> Result<Option<Plan>, LinkError> {
        self.request(|client, fencing_token| client.get_plan(fencing_token, request))
            .await
    }

    async fn list_provers(&self, start: PeriodStart, since: u64) -> Result<Provers, LinkError> {
        self.request(|client, fencing_token| client.list_provers(fencing_token, start, since))
            .await
    }

    async fn appraise_round(&self, round: &RoundOutcome, age_ns: u64) -> Result<RoundAppraisal, LinkError> {
        self.request(|client, fencing_token| client.appraise_round(fencing_token, round, age_ns))
            .await
    }

    async fn list_prover_ids(&self, since: u64) -> Result<ProverIds, LinkError> {
        self.request(|client, fencing_token| client.list_prover_ids(fencing_token, since))
            .await
    }

    async fn list_changes(&self, since: Revision) -> (Result<Changes, LinkError>, Option<TrustStatus>) {
        let result = self.request(|client, fencing_token| client.list_changes(fencing_token, since));
        match result.await {
            Ok((changes, None)) => (Ok(changes), None),
            Ok((changes, Some(trust_status))) => (Ok(changes), Some(self.adopt_trust(trust_status).await)),
            Err(error) => (Err(error), None),
        }
    }

    async fn submit_evidence(
        &self,
        statement: Vec<u8>,
        inventory: Vec<u8>,
    ) -> Result<TrustStatus, LinkError> {
        let trust_status = self
            .request(|client, fencing_token| client.submit_evidence(fencing_token, &statement, &inventory))
            .await?;
        Ok(self.adopt_trust(trust_status).await)
    }

    async fn relay_ticket(
        &self,
        message: &[u8],
        locate: &(dyn Fn(DeviceId) -> Option<[u8; 16]> + Sync),
    ) -> Result<Option<Vec<u8>>, LinkError> {
        self.client.relay_ticket(message, locate).await
    }

    async fn report_status(&self, report: &StatusReport) -> Result<(), LinkError> {
        let fencing_token = *self.fencing_token.lock().await;
        match fencing_token {
            Some(fencing_token) => self.client.report_status(fencing_token, report).await,
            None => Ok(()),
        }
    }
}
