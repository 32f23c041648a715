//! The methods of the gRPC service.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use linewarden_controller::attest::round_record;
use linewarden_controller::{RelayContext, random};
use linewarden_link::{FAILED, UNTRUSTED, convert, proto};
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::FencingToken;
use linewarden_types::{ProcessId, Revision, SessionReport, StatusReport};
use tonic::{Code, Request, Response, Status};

use super::{Server, check_connection_id, denial_status, peer_gateway};

#[tonic::async_trait]
impl proto::link_server::Link for Server {
    async fn register(
        &self,
        request: Request<proto::RegisterRequest>,
    ) -> Result<Response<proto::RegisterResponse>, Status> {
        let gateway = peer_gateway(&request)?;
        let proto::RegisterRequest {
            connection_id: connection,
            version,
            process_id,
            abandoned_requests,
        } = request.into_inner();
        check_connection_id(&connection)?;
        let process = convert::exact_bytes(&process_id, "process id of a wrong length")?;
        let timestamps = self.inner.environment.timestamps();
        self.inner.controller.advance_time(timestamps.now_ns);
        // A token that is not new: the process is registered already, and the request is repeated or late.
        let (registered, is_new) = self
            .inner
            .controller
            .register_process(gateway, ProcessId(process), timestamps.now_s)
            .await
            .map_err(|error| self.denial_to_status(error))?;
        let fencing_token = registered.number();
        let presented = FencingToken::presented(gateway, fencing_token, abandoned_requests);
        if is_new {
            self.inner
                .observer
                .gateway_registered(gateway, fencing_token, &version);
        }
        self.accept_connection(&connection, presented).await?;
        if is_new {
            self.inner.controller.begin_registration(gateway);
        }
        self.record_position(presented);
        self.report_trust(gateway);
        Ok(Response::new(proto::RegisterResponse { fencing_token }))
    }

    async fn resume_leases(
        &self,
        request: Request<proto::ResumeLeasesRequest>,
    ) -> Result<Response<proto::ResumeLeasesResponse>, Status> {
        self.serve_request(request, async |link, request| {
            let mut leases = link.leases_from(convert::cursor_from_wire(&request.cursor)?);
            let chunk = leases
                .next_chunk()
                .await
                .map_err(|error| self.denial_to_status(error))?;
            Ok(proto::ResumeLeasesResponse {
                provisions: chunk.provisions.iter().map(convert::provision_to_wire).collect(),
                damaged: chunk.damaged,
                done: chunk.progress.0,
                total: chunk.progress.1,
                is_last: chunk.is_last,
                cursor: convert::cursor_to_wire(leases.cursor()),
            })
        })
        .await
    }

    async fn extend_leases(
        &self,
        request: Request<proto::ExtendLeasesRequest>,
    ) -> Result<Response<proto::ExtendLeasesResponse>, Status> {
        self.serve_request(request, async |link, request| {
            let requests: Vec<_> = convert::entries(&request.requests)?
                .map(convert::row_request_from_wire)
                .collect();
            let (provisions, refusals) = link
                .extend_leases(&requests)
                .await
                .map_err(|error| self.denial_to_status(error))?;
            Ok(proto::ExtendLeasesResponse {
                provisions: provisions.iter().map(convert::provision_to_wire).collect(),
                refusals: refusals.iter().map(convert::refusal_to_wire).collect(),
            })
        })
        .await
    }

    async fn admit_devices(
        &self,
        request: Request<proto::AdmitDevicesRequest>,
    ) -> Result<Response<proto::AdmitDevicesResponse>, Status> {
        self.serve_request(request, async |link, request| {
            let requests = convert::entries(&request.requests)?.map(convert::admission_request_from_wire);
            let requests: Vec<_> = requests.collect::<Result<_, _>>()?;
            let fresh = convert::exact_bytes(&request.fresh, "fresh value of a wrong length")?;
            let responses = link.admit_devices(&requests, fresh).await;
            let responses = responses.map_err(|error| self.denial_to_status(error))?;
            Ok(proto::AdmitDevicesResponse {
                responses: responses
                    .iter()
                    .map(convert::admission_response_to_wire)
                    .collect(),
            })
        })
        .await
    }

    async fn report_unused_rows(
        &self,
        request: Request<proto::ReportUnusedRowsRequest>,
    ) -> Result<Response<proto::ReportUnusedRowsResponse>, Status> {
        self.serve_request(request, async |link, request| {
            let unused_rows = convert::entries(&request.unused)?.map(convert::unused_rows_from_wire);
            let unused_rows: Vec<_> = unused_rows.collect();
            let rows_returned = link
                .record_unused_rows(&unused_rows)
                .await
                .map_err(|error| self.denial_to_status(error))?;
            Ok(proto::ReportUnusedRowsResponse { rows_returned })
        })
        .await
    }

    async fn report_sessions(
        &self,
        request: Request<proto::ReportSessionsRequest>,
    ) -> Result<Response<proto::ReportSessionsResponse>, Status> {
        let arrived = Instant::now();
        self.serve_request(request, async |link, request| {
            let reports = convert::entries(&request.reports)?.map(convert::report_from_wire);
            let mut reports: Vec<SessionReport> = reports.collect::<Result<_, _>>()?;
            let now = self
                .inner
                .controller
                .session_clock(self.inner.environment.boot_timestamp())
                .await;
            let Some(now) = now.map_err(|error| self.denial_to_status(error))? else {
                link.verify_registration()
                    .await
                    .map_err(|error| self.denial_to_status(error))?;
                // Without a boot id, sessions cannot be compared, so each counts as the newest.
                let results = vec![proto::SessionReportResult::default(); reports.len()];
                return Ok(proto::ReportSessionsResponse { results });
            };
            for report in &mut reports {
                report.age_ns = report.age_ns.saturating_add(elapsed_ns(arrived));
            }
            let results = link
                .report_sessions(&reports, now)
                .await
                .map_err(|error| self.denial_to_status(error))?;
            Ok(proto::ReportSessionsResponse {
                results: results.into_iter().map(convert::report_result_to_wire).collect(),
            })
        })
        .await
    }

    async fn list_changes(
        &self,
        request: Request<proto::ListChangesRequest>,
    ) -> Result<Response<proto::ListChangesResponse>, Status> {
        self.serve_request(request, async |link, request| {
            let environment = &self.inner.environment;
            let mut draw = || random(&**environment);
            // The trust status is read first. If this read issues a new fencing token, the changes can only be read with
            // the new token.
            let result = link.poll_trust(environment.timestamps(), &mut draw).await;
            let result = result.map_err(|error| self.denial_to_status(error))?;
            let trust_status = result
                .as_ref()
                .map(|outcome| self.trust_response(link.gateway(), outcome));
            let link = result.and_then(|outcome| outcome.link).unwrap_or(link);
            let changes = link
                .changes_since(Revision(request.since), environment.boot_timestamp())
                .await;
            let changes = changes.map_err(|error| self.denial_to_status(error))?;
            Ok(proto::ListChangesResponse {
                trust: trust_status,
                ..convert::changes_to_wire(&changes)
            })
        })
        .await
    }

    async fn submit_evidence(
        &self,
        request: Request<proto::SubmitEvidenceRequest>,
    ) -> Result<Response<proto::SubmitEvidenceResponse>, Status> {
        self.serve_request(request, async |link, request| {
            let timestamps = self.inner.environment.timestamps();
            let result = link
                .submit_evidence(request.statement, Some(request.inventory), timestamps)
                .await;
            match result.map_err(|error| self.denial_to_status(error))? {
                Ok(outcome) => Ok(proto::SubmitEvidenceResponse {
                    trust: Some(self.trust_response(link.gateway(), &outcome)),
                }),
                Err(error) => Err(denial_status(
                    Code::FailedPrecondition,
                    error.to_string(),
                    UNTRUSTED,
                )),
            }
        })
        .await
    }

    async fn get_plan(
        &self,
        request: Request<proto::GetPlanRequest>,
    ) -> Result<Response<proto::GetPlanResponse>, Status> {
        self.serve_request(request, async |link, request| {
            let environment = &self.inner.environment;
            let now_s = environment.timestamps().now_s;
            let plan_request = convert::plan_request_from_wire(&request);
            let plan = self
                .with_verifier(link, async |verifier| {
                    let mut draw = || random(&**environment);
                    Ok(verifier.plan(plan_request, now_s, &mut draw).await?)
                })
                .await?;
            Ok(convert::plan_to_wire(plan.as_ref()))
        })
        .await
    }

    async fn list_provers(
        &self,
        request: Request<proto::ListProversRequest>,
    ) -> Result<Response<proto::ListProversResponse>, Status> {
        self.serve_request(request, async |link, request| {
            let start = convert::start_from_wire(request.start)?;
            let since = request.since;
            let provers = self
                .with_verifier(link, async |verifier| verifier.provers(start, since).await)
                .await?;
            Ok(convert::provers_to_wire(&provers))
        })
        .await
    }

    async fn appraise_round(
        &self,
        request: Request<proto::AppraiseRoundRequest>,
    ) -> Result<Response<proto::AppraiseRoundResponse>, Status> {
        let arrived = Instant::now();
        self.serve_request(request, async |link, request| {
            // The registration is verified before the devices are looked up.
            link.verify_registration()
                .await
                .map_err(|error| self.denial_to_status(error))?;
            let (mut round, age_ns) = convert::round_from_wire(&request)?;
            // A gateway, or an attacker who has its key, must not decide about devices of other gateways.
            let devices: Vec<DeviceId> = round
                .observations
                .iter()
                .map(|observation| observation.device)
                .collect();
            let known_devices = link.known_devices(&devices).await;
            let known_devices = known_devices.map_err(|error| self.denial_to_status(error))?;
            round
                .observations
                .retain(|observation| known_devices.contains(&observation.device));
            let now_s = self.inner.environment.timestamps().now_s;
            let age_ns = age_ns.saturating_add(elapsed_ns(arrived));
            let ended_s = now_s.saturating_sub(age_ns / 1_000_000_000);
            let gateway = link.gateway();
            let appraisal = self
                .with_verifier(link, async |verifier| {
                    Ok(verifier.appraise_round(&round, ended_s, now_s).await?)
                })
                .await?;
            self.inner
                .observer
                .round_appraised(&round_record(&round, gateway, ended_s), &appraisal);
            Ok(convert::appraisal_to_wire(&appraisal))
        })
        .await
    }

    async fn list_prover_ids(
        &self,
        request: Request<proto::ListProverIdsRequest>,
    ) -> Result<Response<proto::ListProverIdsResponse>, Status> {
        self.serve_request(request, async |link, request| {
            let ids = link.prover_ids(request.since).await;
            let ids = ids.map_err(|error| self.denial_to_status(error))?;
            Ok(convert::prover_ids_to_wire(&ids))
        })
        .await
    }

    async fn relay_ticket(
        &self,
        request: Request<proto::RelayTicketRequest>,
    ) -> Result<Response<proto::RelayTicketResponse>, Status> {
        use proto::relay_ticket_response::Outcome;
        self.serve_request(request, async |link, request| {
            link.verify_registration()
                .await
                .map_err(|error| self.denial_to_status(error))?;
            let address = convert::optional_bytes::<16>(&request.address, "address of a wrong length")?;
            let location = request.located_device.map(|device| (DeviceId(device), address));
            let requested_device = Mutex::new(None);
            let locate = |device: DeviceId| match location {
                Some((located_device, address)) if located_device == device => address,
                _ => {
                    *requested_device.lock().unwrap_or_else(PoisonError::into_inner) = Some(device);
                    None
                }
            };
            let Some(aead_nonce) = random(&*self.inner.environment) else {
                return Err(denial_status(
                    Code::Unavailable,
                    "no random bytes".to_owned(),
                    FAILED,
                ));
            };
            let context = RelayContext {
                aead_nonce,
                now_s: self.inner.environment.timestamps().now_s,
                locate: &locate,
            };
            let response = self
                .inner
                .controller
                .handle_ticket(link.gateway(), &request.message, &context)
                .await;
            let response = response.map_err(|error| self.denial_to_status(error))?;
            // A response without the requested address is discarded. The repeated request produces another response.
            let requested_device = requested_device
                .into_inner()
                .unwrap_or_else(PoisonError::into_inner);
            let outcome = match requested_device {
                Some(device) => Some(Outcome::Locate(device.0)),
                None => response.map(Outcome::Response),
            };
            Ok(proto::RelayTicketResponse { outcome })
        })
        .await
    }

    async fn report_status(
        &self,
        request: Request<proto::ReportStatusRequest>,
    ) -> Result<Response<proto::ReportStatusResponse>, Status> {
        self.serve_request(request, async |link, request| {
            link.verify_registration()
                .await
                .map_err(|error| self.denial_to_status(error))?;
            let report = StatusReport {
                data_plane: request.data_plane,
                devices: request.devices,
                slots: request.slots,
                sessions: request.sessions,
                authentications_per_s: request.authentications_per_s,
                latency_us_p50: request.latency_us_p50,
                latency_us_p99: request.latency_us_p99,
                verdicts: request.verdicts,
                dropped_types: request.dropped_types,
                kernel_drops: request.kernel_drops,
                tickets: request.tickets,
            };
            self.inner.observer.status_reported(link.gateway(), report);
            Ok(proto::ReportStatusResponse {})
        })
        .await
    }
}

/// Time since the arrival of a request. Ages in the request grow by this time, for example while the database is busy.
fn elapsed_ns(arrived: Instant) -> u64 {
    u64::try_from(arrived.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
