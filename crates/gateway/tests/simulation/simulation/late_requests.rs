//! Requests that a process has abandoned, and that the controller processes later.

use linewarden_controller::Link;
use linewarden_registry::FencingToken;
use linewarden_types::ControllerRequest;
use rand::RngExt as _;

use super::process::Process;
use super::{Mechanism, Simulation};

/// Maximum delay of a late request, ms.
const LATE_MS: u64 = 4_000;

/// A request that a controller still holds.
pub(super) struct LateRequest {
    due_ms: u64,
    /// The number of the process that has sent the request.
    process: u64,
    link: Link,
    request: ControllerRequest,
}

impl Simulation {
    /// Counts a request without a response.
    pub(super) fn count_abandoned(&mut self, process_index: usize) {
        if self.without != Some(Mechanism::AbandonedCount) {
            self.processes[process_index].abandoned_requests += 1;
        }
    }

    /// The link for the next request of a process, which carries the count of requests that the process has abandoned.
    pub(super) fn link_with_count(&self, process: &Process, link: &Link) -> Link {
        let token = FencingToken::presented(link.gateway(), link.token_number(), process.abandoned_requests);
        self.controller_host.controller.link(token)
    }

    /// Loses a request. In some cases, the controller processes the request later.
    pub(super) fn lose_request(&mut self, process_index: usize, request: &ControllerRequest) {
        let changes_leases = matches!(
            request,
            ControllerRequest::ExtendLeases(_)
                | ControllerRequest::AdmitDevices(_)
                | ControllerRequest::ReportUnusedRows(_)
        );
        let process = &self.processes[process_index];
        if let Some(link) = &process.link
            && changes_leases
            && self.late_rng.random_ratio(1, 2)
        {
            self.late_requests.push(LateRequest {
                due_ms: self.now_ms + self.late_rng.random_range(10..LATE_MS),
                process: process.number,
                link: self.link_with_count(process, link),
                request: request.clone(),
            });
        }
        self.count_abandoned(process_index);
    }

    /// Processes the late requests that are due. Their responses reach no process.
    pub(super) fn serve_late_requests(&mut self) {
        if !self.controller_host.is_open {
            return;
        }
        let now_ms = self.now_ms;
        let due: Vec<LateRequest> = self
            .late_requests
            .extract_if(.., |late| late.due_ms <= now_ms)
            .collect();
        for late in due {
            let process = |process: &Process| process.number == late.process;
            if let Some(process_index) = self.processes.iter().position(process) {
                let link = self.controller_host.controller.reconnect(&late.link);
                let response = self.serve(process_index, &link, late.request);
                self.record_stranded_rows(super::controller::admitted(&response));
                match response.error() {
                    None => self.tally.late_requests += 1,
                    Some(_) => self.tally.late_requests_refused += 1,
                }
            }
        }
    }
}
