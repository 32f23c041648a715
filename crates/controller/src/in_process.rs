//! A controller in the process of the gateway.

use async_trait::async_trait;
use linewarden_protocol::attest::PeriodStart;
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_registry::RegistryError;
use linewarden_types::{
    AdmissionRequest, AdmissionResponse, Changes, ControllerLink, LeaseChunk, LinkError, Plan, PlanRequest,
    ProverIds, Provers, Provision, Revision, RoundAppraisal, RoundOutcome, RowRefusal, RowRequest,
    SessionReport, SessionReportResult, StatusReport, TrustStatus, UnusedRows,
};
use tokio::sync::Mutex;

use crate::attest::Verifier;
use crate::denial::Denial;
use crate::environment::{Environment as _, MachineEnvironment, random};
use crate::link::{Controller, LeaseReader, Link};
use crate::ticket::RelayContext;
use crate::trust::TrustOutcome;

/// A controller in the process of the gateway. Registers the gateway with the first request.
pub struct InProcessController {
    controller: Controller,
    gateway: GatewayId,
    environment: MachineEnvironment,
    link: Mutex<Option<Link>>,
    /// The lease reader, with the fencing token of its registration.
    leases: Mutex<Option<(u64, LeaseReader)>>,
    /// The verifier, with the fencing token of its registration.
    verifier: Mutex<Option<(u64, Verifier)>>,
}

impl InProcessController {
    /// Creates the controller of one gateway.
    #[must_use]
    pub fn new(controller: Controller, gateway: GatewayId) -> Self {
        Self {
            controller,
            gateway,
            environment: MachineEnvironment::new(),
            link: Mutex::default(),
            leases: Mutex::default(),
            verifier: Mutex::default(),
        }
    }

    /// Returns the registration. Only the first call registers this process: another registration would invalidate the
    /// fencing token.
    async fn link(&self) -> Result<Link, RegistryError> {
        let timestamps = self.environment.timestamps();
        self.controller.advance_time(timestamps.now_ns);
        let mut link = self.link.lock().await;
        match &*link {
            Some(link) => Ok(link.clone()),
            None => {
                let registration = self.controller.register(self.gateway, timestamps.now_s).await?;
                Ok(link.insert(registration).clone())
            }
        }
    }

    /// Runs a request under the registration of this process. After a restore of the registry, the registration is
    /// discarded, and the next request registers again.
    async fn request<T, E: Into<Denial>>(
        &self,
        run: impl AsyncFnOnce(Link) -> Result<T, E>,
    ) -> Result<T, LinkError> {
        let link = self.link().await.map_err(|error| self.link_error(error))?;
        let token = link.token_number();
        let result = run(link).await.map_err(|error| self.link_error(error));
        if matches!(result, Err(LinkError::RegistryRestored(_))) {
            self.link
                .lock()
                .await
                .take_if(|link| link.token_number() == token);
        }
        result
    }

    /// Runs a request with the verifier of this registration, which has loaded the provers' histories.
    async fn with_verifier<T, E: Into<Denial>>(
        &self,
        run: impl AsyncFnOnce(&mut Verifier) -> Result<T, E>,
    ) -> Result<T, LinkError> {
        let mut owned_verifier = self.verifier.lock().await;
        self.request(async |link| {
            let token = link.token_number();
            if owned_verifier.as_ref().is_none_or(|(owner, _)| *owner != token) {
                *owned_verifier = None;
            }
            let (_, verifier) = match &mut *owned_verifier {
                Some(verifier) => verifier,
                none => none.insert((token, Verifier::open(link).await?)),
            };
            run(verifier).await.map_err(Into::into)
        })
        .await
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

#[async_trait(?Send)]
impl ControllerLink for InProcessController {
    async fn register(&self) -> Result<u64, LinkError> {
        self.request(async |link| Ok::<_, Denial>(link.token_number()))
            .await
    }

    async fn resume_leases(&self) -> Result<LeaseChunk, LinkError> {
        let mut leases = self.leases.lock().await;
        self.request(async |link| {
            let token = link.token_number();
            let (_, reader) = match &mut *leases {
                Some(reader) if reader.0 == token => reader,
                other => other.insert((token, link.leases())),
            };
            reader.next_chunk().await
        })
        .await
    }

    async fn extend_leases(
        &self,
        requests: &[RowRequest],
    ) -> Result<(Vec<Provision>, Vec<RowRefusal>), LinkError> {
        self.request(async |link| link.extend_leases(requests).await)
            .await
    }

    async fn admit_devices(
        &self,
        requests: &[AdmissionRequest],
        fresh: [u8; 8],
    ) -> Result<Vec<AdmissionResponse>, LinkError> {
        self.request(async |link| link.admit_devices(requests, fresh).await)
            .await
    }

    async fn report_unused_rows(&self, unused_rows: &[UnusedRows]) -> Result<u64, LinkError> {
        self.request(async |link| link.record_unused_rows(unused_rows).await)
            .await
    }

    async fn report_sessions(
        &self,
        reports: &[SessionReport],
    ) -> Result<Vec<SessionReportResult>, LinkError> {
        let local_clock = self.environment.boot_timestamp();
        self.request(async |link| {
            match self.controller.session_clock(local_clock).await? {
                Some(now) => link.report_sessions(reports, now).await,
                // Without a boot id, sessions cannot be compared, so each counts as the newest.
                None => Ok(vec![SessionReportResult::Newest; reports.len()]),
            }
        })
        .await
    }

    async fn list_changes(&self, since: Revision) -> (Result<Changes, LinkError>, Option<TrustStatus>) {
        let local_clock = self.environment.boot_timestamp();
        // The trust status is read first: if this read causes a new fencing token, reading the changes with the old
        // token fails.
        let mut draw = || random(&self.environment);
        let outcome =
            self.request(async |link| link.poll_trust(self.environment.timestamps(), &mut draw).await);
        let trust_status = match outcome.await {
            Ok(Some(outcome)) => Some(self.adopt_trust(outcome).await),
            Ok(None) => None,
            Err(error) => {
                tracing::debug!(%error, "reading the trust status failed; retrying");
                None
            }
        };
        let changes = self.request(async |link| link.changes_since(since, local_clock).await);
        (changes.await, trust_status)
    }

    async fn submit_evidence(
        &self,
        statement: Vec<u8>,
        inventory: Vec<u8>,
    ) -> Result<TrustStatus, LinkError> {
        let timestamps = self.environment.timestamps();
        let result = self
            .request(async |link| link.submit_evidence(statement, Some(inventory), timestamps).await)
            .await?;
        match result {
            Ok(outcome) => Ok(self.adopt_trust(outcome).await),
            Err(error) => Err(LinkError::Untrusted(error.to_string())),
        }
    }

    async fn get_plan(&self, request: PlanRequest) -> Result<Option<Plan>, LinkError> {
        let now_s = self.environment.timestamps().now_s;
        let mut draw = || random(&self.environment);
        self.with_verifier(async |verifier| verifier.plan(request, now_s, &mut draw).await)
            .await
    }

    async fn list_provers(&self, start: PeriodStart, since: u64) -> Result<Provers, LinkError> {
        self.with_verifier(async |verifier| verifier.provers(start, since).await)
            .await
    }

    async fn appraise_round(&self, round: &RoundOutcome, age_ns: u64) -> Result<RoundAppraisal, LinkError> {
        let now_s = self.environment.timestamps().now_s;
        let ended_s = now_s.saturating_sub(age_ns / 1_000_000_000);
        self.with_verifier(async |verifier| verifier.appraise_round(round, ended_s, now_s).await)
            .await
    }

    async fn list_prover_ids(&self, since: u64) -> Result<ProverIds, LinkError> {
        self.request(async |link| link.prover_ids(since).await).await
    }

    async fn relay_ticket(
        &self,
        message: &[u8],
        locate: &(dyn Fn(DeviceId) -> Option<[u8; 16]> + Sync),
    ) -> Result<Option<Vec<u8>>, LinkError> {
        let Some(aead_nonce) = random(&self.environment) else {
            return Err(LinkError::failed("controller", "no random bytes".to_owned()));
        };
        let context = RelayContext {
            aead_nonce,
            now_s: self.environment.timestamps().now_s,
            locate,
        };
        let response = self
            .controller
            .handle_ticket(self.gateway, message, &context)
            .await;
        response.map_err(|error| self.link_error(error))
    }

    async fn report_status(&self, _report: &StatusReport) -> Result<(), LinkError> {
        Ok(())
    }
}
