//! The link to the controller: requests and responses may be lost, and the controller may be down.

use linewarden_controller::{Denial, Link};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode};
use linewarden_registry::RegistryError;
use linewarden_types::{
    AdmissionRequest, AdmissionResponse, AdmitDevices, ControllerRequest, ControllerResponse, ExtendLeases,
    LinkError, ListChanges, ListProverIds, ReportUnusedRows, ResumeLeases, RowRequest, SessionReportResult,
};
use rand::RngExt as _;

use super::process::Process;
use super::{MARK_BLOCK, Mechanism, Simulation, session_locations};

fn lost_message() -> LinkError {
    LinkError::Failed("lost".to_owned())
}

pub(super) fn link_error(error: impl Into<Denial>) -> LinkError {
    error.into().into()
}

fn is_failure(response: &ControllerResponse) -> bool {
    matches!(response.error(), Some(LinkError::Failed(_)))
}

fn is_restored(response: &ControllerResponse) -> bool {
    matches!(response.error(), Some(LinkError::RegistryRestored(_)))
}

/// Devices that request admission.
fn devices_to_admit(request: &ControllerRequest) -> Vec<DeviceId> {
    match request {
        ControllerRequest::AdmitDevices(admission) => devices_of(&admission.requests),
        _ => Vec::new(),
    }
}

fn devices_of(requests: &[AdmissionRequest]) -> Vec<DeviceId> {
    let device = |request: &AdmissionRequest| request.message[8..16].try_into().map(u64::from_be_bytes);
    requests
        .iter()
        .map(|request| DeviceId(device(request).unwrap()))
        .collect()
}

/// Admitted devices, and how many of their rows may be spent: these are lost if the process ends before it gets the
/// response.
pub(super) fn admitted(response: &ControllerResponse) -> Vec<(DeviceId, u32)> {
    let ControllerResponse::AdmitDevices(Ok(responses)) = response else {
        return Vec::new();
    };
    responses
        .iter()
        .filter_map(|outcome| match outcome {
            AdmissionResponse::Admit(provision) => Some((
                provision.device,
                provision.mark.0.saturating_sub(provision.first.0),
            )),
            _ => None,
        })
        .collect()
}

impl Simulation {
    /// Records rows that may never be spent.
    pub(super) fn record_stranded_rows(&mut self, rows: impl IntoIterator<Item = (DeviceId, u32)>) {
        for (device, rows) in rows {
            *self.stranded_rows.entry(device).or_default() += rows;
        }
    }

    /// Serves the request, or loses the request or the response.
    pub(super) fn request(&mut self, process_index: usize, request: ControllerRequest) -> ControllerResponse {
        let outcome = match self.is_calm {
            true => 9,
            false => self.rng.random_range(0..12),
        };
        if outcome < 2 {
            self.tally.link_failures += 1;
        }
        if outcome == 0 || !self.controller_host.is_open {
            self.lose_request(process_index, &request);
            return request.kind().failed(lost_message());
        }
        let link = match self.link(process_index) {
            Ok(link) => link,
            Err(error) => return request.kind().failed(link_error(error)),
        };
        let loss = (outcome == 1).then(|| request.kind().failed(lost_message()));
        let response = self.serve(process_index, &link, request);
        if loss.is_none() && is_restored(&response) {
            // The next request registers again. A process that has not received the response uses the old
            // registration again.
            let process = &mut self.processes[process_index];
            (process.link, process.verifier) = (None, None);
        }
        if loss.is_some() || is_failure(&response) {
            self.count_abandoned(process_index);
        }
        match loss {
            Some(loss) => {
                self.record_stranded_rows(admitted(&response));
                loss
            }
            None => response,
        }
    }

    /// Serves a request that has reached the controller.
    pub(super) fn serve(
        &mut self,
        process_index: usize,
        link: &Link,
        request: ControllerRequest,
    ) -> ControllerResponse {
        if request.kind().records_abandoned_requests()
            && let Err(error) = self.runtime.block_on(link.record_abandoned_requests())
        {
            return request.kind().failed(link_error(error));
        }
        let devices = devices_to_admit(&request);
        let response = self.respond(process_index, link, request);
        if is_failure(&response) && !self.controller_host.is_healthy() {
            self.tally.failed_responses += 1;
            // The lease may be durable nevertheless.
            self.record_stranded_rows(devices.into_iter().map(|device| (device, MARK_BLOCK)));
        }
        response
    }

    /// Registers the process with its first request. A restarted controller knows the process by its fencing token.
    fn link(&mut self, process_index: usize) -> Result<Link, RegistryError> {
        let wall_s = self.wall_s();
        let (host, process) = (&self.controller_host, &mut self.processes[process_index]);
        let link = match &process.link {
            None => {
                let gateway = process.id();
                self.runtime.block_on(host.controller.register(gateway, wall_s))?
            }
            Some(link) if process.linked_to == host.started => link.clone(),
            Some(link) => {
                // The lease reader starts again with the first chunk.
                process.verifier = None;
                host.controller.reconnect(link)
            }
        };
        process.linked_to = host.started;
        let link = self.link_with_count(&self.processes[process_index], &link);
        self.processes[process_index].link = Some(link.clone());
        if self.without == Some(Mechanism::FencingToken) {
            return Ok(self.newest_link(process_index).unwrap_or(link));
        }
        Ok(link)
    }

    /// Without fencing tokens, an old process is served like the newest one.
    fn newest_link(&self, process_index: usize) -> Option<Link> {
        let gateway = self.processes[process_index].gateway;
        let links = self.processes.iter().filter(|other| other.gateway == gateway);
        let newest = links
            .filter_map(|other| other.link.as_ref())
            .max_by_key(|link| link.token_number())?;
        Some(self.controller_host.controller.reconnect(newest))
    }

    fn respond(
        &mut self,
        process_index: usize,
        link: &Link,
        request: ControllerRequest,
    ) -> ControllerResponse {
        let (runtime, host) = (&self.runtime, &mut self.controller_host);
        let process: &mut Process = &mut self.processes[process_index];
        let gateway: GatewayId = process.id();
        let (now, boot_ns) = (host.moment(self.now_ms), process.clock.clock(self.now_ms).boot_ns);
        match request {
            // Memory is adopted even if another process was the gateway in between.
            ControllerRequest::Register
                if self.without == Some(Mechanism::Owner) && process.adopted_from > 0 =>
            {
                ControllerResponse::Register(Ok(process.adopted_from + 1))
            }
            ControllerRequest::Register => ControllerResponse::Register(Ok(link.token_number())),
            ControllerRequest::GetPlan(_)
            | ControllerRequest::ListProvers(_)
            | ControllerRequest::AppraiseRound(_) => self.attest(process_index, link, request),
            ControllerRequest::ListProverIds(ListProverIds { since }) => ControllerResponse::ListProverIds(
                runtime.block_on(link.prover_ids(since)).map_err(link_error),
            ),
            ControllerRequest::ResumeLeases(ResumeLeases { cursor }) => {
                let chunk = runtime.block_on(link.leases_from(cursor).next_chunk());
                ControllerResponse::ResumeLeases(chunk.map_err(link_error))
            }
            ControllerRequest::ExtendLeases(ExtendLeases(requests)) => {
                let response = runtime.block_on(link.extend_leases(&requests));
                if let Ok((provisions, _)) = &response {
                    host.record_granted(gateway, provisions);
                }
                let has_gap = |request: &&RowRequest| match &response {
                    Ok((provisions, _)) => provisions
                        .iter()
                        .any(|granted| granted.device == request.device && granted.first > request.received),
                    // The lease may be durable nevertheless.
                    Err(_) => true,
                };
                let rows_left = |request: &RowRequest| request.received.0.saturating_sub(request.from.0);
                let rows_left: Vec<_> = requests
                    .iter()
                    .filter(has_gap)
                    .map(|request| (request.device, rows_left(request)))
                    .collect();
                let response = ControllerResponse::ExtendLeases(response.map_err(link_error));
                self.record_stranded_rows(rows_left);
                response
            }
            ControllerRequest::AdmitDevices(AdmitDevices {
                requests: admissions,
                fresh,
            }) => {
                let floor = |device: DeviceId| {
                    let info = runtime.block_on(host.registry().get(device));
                    info.map_or(0, |info| info.idx_floor.0)
                };
                let floors: Vec<u32> = devices_of(&admissions).into_iter().map(floor).collect();
                let response = runtime.block_on(link.admit_devices(&admissions, fresh));
                // Rows between the last leased row and the first row of the device's statement are skipped.
                let skipped_rows = response.iter().flatten().zip(floors);
                let skipped_rows: Vec<(DeviceId, u32)> = skipped_rows
                    .filter_map(|(outcome, floor)| match outcome {
                        AdmissionResponse::Admit(granted) if granted.mode == Mode::Pool => {
                            Some((granted.device, granted.first.0.saturating_sub(floor)))
                        }
                        _ => None,
                    })
                    .collect();
                let admitted = response.iter().flatten().filter_map(|outcome| match outcome {
                    AdmissionResponse::Admit(provision) => Some(provision),
                    _ => None,
                });
                host.record_granted(gateway, admitted);
                self.record_stranded_rows(skipped_rows);
                ControllerResponse::AdmitDevices(response.map_err(link_error))
            }
            ControllerRequest::ReportUnusedRows(_) if self.without == Some(Mechanism::UnusedRows) => {
                ControllerResponse::ReportUnusedRows(Ok(0))
            }
            ControllerRequest::ReportUnusedRows(ReportUnusedRows(unused_rows)) => {
                for unused in &unused_rows {
                    host.forget_mark(gateway, unused.device);
                }
                let response = runtime.block_on(link.record_unused_rows(&unused_rows));
                ControllerResponse::ReportUnusedRows(response.map_err(link_error))
            }
            ControllerRequest::ReportSessions(sessions) if self.without == Some(Mechanism::Report) => {
                let results = vec![SessionReportResult::Newest; sessions.reports.len()];
                ControllerResponse::ReportSessions(Ok(results))
            }
            ControllerRequest::ReportSessions(sessions) => {
                let reports = session_locations::reports(sessions, boot_ns, self.without);
                let response = runtime.block_on(link.report_sessions(&reports, now));
                ControllerResponse::ReportSessions(response.map_err(link_error))
            }
            ControllerRequest::ListChanges(ListChanges { since }) => {
                let changes = runtime.block_on(link.changes_since(since, Some(now)));
                ControllerResponse::ListChanges(changes.map(|changes| (changes, None)).map_err(link_error))
            }
            // The simulation requires no evidence, relays no tickets and reports no status.
            ControllerRequest::SubmitEvidence(_)
            | ControllerRequest::RelayTicket(_)
            | ControllerRequest::ReportStatus(_) => request.kind().failed(lost_message()),
        }
    }
}
