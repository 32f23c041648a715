//! Handles the requests of gateways, independent of the transport.

use std::sync::{Arc, Mutex, PoisonError};

use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_registry::RoundRecord;
use linewarden_types::{
    AdmissionResponse, AdmitDevices, AppraiseRound, Call, Changes, ExtendLeases, GetPlan, LeaseChunk,
    ListChanges, ListProverIds, ListProvers, Plan, ProverIds, Provers, Provision, RelayTicket,
    ReportSessions, ReportStatus, ReportUnusedRows, ResumeLeases, RoundAppraisal, RowRefusal,
    SessionReportResult, StatusReport, SubmitEvidence, TicketResponse, TrustStatus,
};

use crate::attest::{Verifier, round_record};
use crate::denial::Denial;
use crate::environment::{Environment, random};
use crate::link::{Controller, Link};
use crate::ticket::RelayContext;
use crate::trust::TrustReport;

/// Receives events about gateways; the default implementations ignore them.
pub trait RequestObserver: Send + Sync {
    /// The gateway has reported its status.
    fn status_reported(&self, _gateway: GatewayId, _report: StatusReport) {}
    /// A round has ended and was appraised. The same round may be reported twice.
    fn round_appraised(&self, _round: &RoundRecord, _appraisal: &RoundAppraisal) {}
    /// The trust state of a gateway that must submit evidence. The state is reported repeatedly.
    fn trust_reported(&self, _gateway: GatewayId, _report: &TrustReport) {}
}

/// The verifier of one gateway, with the fencing token of the registration that opened the verifier.
pub type VerifierSlot = Arc<tokio::sync::Mutex<Option<(u64, Verifier)>>>;

/// What a request needs besides its registration.
pub struct ServeContext<'a> {
    /// Clocks and random numbers.
    pub environment: &'a dyn Environment,
    /// Receives the events of the request.
    pub observer: &'a dyn RequestObserver,
    /// Returns the verifier of the gateway's current connection.
    pub verifier: &'a (dyn Fn() -> VerifierSlot + Sync),
}

impl ServeContext<'_> {
    /// Time since `at_ns` of the boot-time clock, ns. Ages in a request grow by this time, for example while the database is
    /// busy.
    fn elapsed_ns(&self, at_ns: u64) -> u64 {
        self.environment.timestamps().now_ns.saturating_sub(at_ns)
    }

    /// Runs `action` with the verifier of this registration. The verifier has loaded the provers' histories from the
    /// registry.
    async fn with_verifier<T>(
        &self,
        link: Link,
        action: impl AsyncFnOnce(&mut Verifier) -> Result<T, Denial>,
    ) -> Result<T, Denial> {
        // The registration is verified first, because opening a verifier reads the histories of all provers.
        link.verify_registration().await?;
        let slot = (self.verifier)();
        let mut owned_verifier = slot.lock().await;
        let token = link.token_number();
        owned_verifier.take_if(|(owner_token, _)| *owner_token != token);
        let (_, verifier) = match &mut *owned_verifier {
            Some(verifier) => verifier,
            none => none.insert((token, Verifier::open(link.clone()).await?)),
        };
        // The verifier belongs to the connection that opened it; a newer connection may have replaced this connection
        // meanwhile.
        if !Arc::ptr_eq(&(self.verifier)(), &slot) {
            return Err(Denial::ConnectionReplaced);
        }
        verifier.set_link(link);
        action(verifier).await
    }
}

impl Controller {
    /// Reports the trust state of a gateway that must submit evidence.
    pub fn report_trust(&self, gateway: GatewayId, observer: &dyn RequestObserver) {
        if let Some(report) = self.trust_report(gateway) {
            observer.trust_reported(gateway, &report);
        }
    }
}

/// A request that a controller serves.
pub trait Serve: Call {
    /// Serves the request under the registration of `link`.
    fn serve(
        self,
        link: Link,
        context: &ServeContext<'_>,
    ) -> impl Future<Output = Result<Self::Response, Denial>> + Send;
}

impl Serve for ResumeLeases {
    async fn serve(self, link: Link, _: &ServeContext<'_>) -> Result<LeaseChunk, Denial> {
        link.leases_from(self.cursor).next_chunk().await
    }
}

impl Serve for ExtendLeases {
    async fn serve(
        self,
        link: Link,
        _: &ServeContext<'_>,
    ) -> Result<(Vec<Provision>, Vec<RowRefusal>), Denial> {
        link.extend_leases(&self.0).await
    }
}

impl Serve for AdmitDevices {
    async fn serve(self, link: Link, _: &ServeContext<'_>) -> Result<Vec<AdmissionResponse>, Denial> {
        link.admit_devices(&self.requests, self.fresh).await
    }
}

impl Serve for ReportUnusedRows {
    async fn serve(self, link: Link, _: &ServeContext<'_>) -> Result<u64, Denial> {
        Ok(link.record_unused_rows(&self.0).await?)
    }
}

impl Serve for ReportSessions {
    async fn serve(
        mut self,
        link: Link,
        context: &ServeContext<'_>,
    ) -> Result<Vec<SessionReportResult>, Denial> {
        let local_clock = context.environment.boot_timestamp();
        let Some(now) = link.controller.session_clock(local_clock).await? else {
            link.verify_registration().await?;
            // Without a boot id, sessions cannot be compared, so each counts as the newest.
            return Ok(vec![SessionReportResult::Newest; self.reports.len()]);
        };
        for report in &mut self.reports {
            report.age_ns = report.age_ns.saturating_add(context.elapsed_ns(self.at_ns));
        }
        Ok(link.report_sessions(&self.reports, now).await?)
    }
}

impl Serve for ListChanges {
    async fn serve(
        self,
        link: Link,
        context: &ServeContext<'_>,
    ) -> Result<(Changes, Option<TrustStatus>), Denial> {
        let environment = context.environment;
        // The trust status is read first. If this read issues a new fencing token, the changes can only be read with the
        // new token.
        let mut draw = || random(environment);
        let trust_status = link.poll_trust(environment.timestamps(), &mut draw).await?;
        if trust_status.is_some() {
            link.controller.report_trust(link.gateway(), context.observer);
        }
        let new_token = trust_status.as_ref().and_then(|status| status.fencing_token);
        let link = new_token.map_or_else(|| link.clone(), |number| link.with_token_number(number));
        let changes = link
            .changes_since(self.since, environment.boot_timestamp())
            .await?;
        Ok((changes, trust_status))
    }
}

impl Serve for SubmitEvidence {
    async fn serve(self, link: Link, context: &ServeContext<'_>) -> Result<TrustStatus, Denial> {
        let timestamps = context.environment.timestamps();
        let result = link
            .submit_evidence(self.statement, Some(self.inventory), timestamps)
            .await?;
        let trust_status = result.map_err(Denial::EvidenceRejected)?;
        link.controller.report_trust(link.gateway(), context.observer);
        Ok(trust_status)
    }
}

impl Serve for GetPlan {
    async fn serve(self, link: Link, context: &ServeContext<'_>) -> Result<Option<Plan>, Denial> {
        let now_s = context.environment.timestamps().now_s;
        let mut draw = || random(context.environment);
        context
            .with_verifier(link, async |verifier| {
                Ok(verifier.plan(self.0, now_s, &mut draw).await?)
            })
            .await
    }
}

impl Serve for ListProvers {
    async fn serve(self, link: Link, context: &ServeContext<'_>) -> Result<Provers, Denial> {
        context
            .with_verifier(link, async |verifier| {
                verifier.provers(self.start, self.since).await
            })
            .await
    }
}

impl Serve for AppraiseRound {
    async fn serve(self, link: Link, context: &ServeContext<'_>) -> Result<RoundAppraisal, Denial> {
        // The registration is verified before the devices are looked up.
        link.verify_registration().await?;
        let (gateway, mut round) = (link.gateway(), self.round);
        // A gateway, or an attacker who has its key, must not decide about devices of other gateways.
        let devices: Vec<DeviceId> = round
            .observations
            .iter()
            .map(|observation| observation.device)
            .collect();
        let known_devices = link.known_devices(&devices).await?;
        round
            .observations
            .retain(|observation| known_devices.contains(&observation.device));
        let now_s = context.environment.timestamps().now_s;
        let age_ns = self.age_ns.saturating_add(context.elapsed_ns(self.at_ns));
        let ended_s = now_s.saturating_sub(age_ns / 1_000_000_000);
        let appraisal = context
            .with_verifier(link, async |verifier| {
                Ok(verifier.appraise_round(&round, ended_s, now_s).await?)
            })
            .await?;
        context
            .observer
            .round_appraised(&round_record(&round, gateway, ended_s), &appraisal);
        Ok(appraisal)
    }
}

impl Serve for ListProverIds {
    async fn serve(self, link: Link, _: &ServeContext<'_>) -> Result<ProverIds, Denial> {
        Ok(link.prover_ids(self.since).await?)
    }
}

impl Serve for RelayTicket {
    async fn serve(self, link: Link, context: &ServeContext<'_>) -> Result<TicketResponse, Denial> {
        link.verify_registration().await?;
        let requested_device = Mutex::new(None);
        let locate = |device: DeviceId| match self.location {
            Some((located_device, address)) if located_device == device => address,
            _ => {
                *requested_device.lock().unwrap_or_else(PoisonError::into_inner) = Some(device);
                None
            }
        };
        let relay = RelayContext {
            aead_nonce: random(context.environment).ok_or(Denial::NoRandomBytes)?,
            now_s: context.environment.timestamps().now_s,
            locate: &locate,
        };
        let controller = &link.controller;
        let response = controller
            .handle_ticket(link.gateway(), &self.message, &relay)
            .await?;
        // A response without the requested address is discarded. The repeated request produces another response.
        let requested_device = *requested_device.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(match (requested_device, response) {
            (Some(device), _) => TicketResponse::Locate(device),
            (None, Some(response)) => TicketResponse::Sealed(response),
            (None, None) => TicketResponse::None,
        })
    }
}

impl Serve for ReportStatus {
    async fn serve(self, link: Link, context: &ServeContext<'_>) -> Result<(), Denial> {
        link.verify_registration().await?;
        context.observer.status_reported(link.gateway(), self.0);
        Ok(())
    }
}
