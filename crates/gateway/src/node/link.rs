//! Requests of the node to its controller, one of each kind at a time, and the handling of responses.

use std::collections::HashSet;

use linewarden_types::{Change, Changes, LeaseChunk, LinkError, Revision, RowRequest, UnusedRows};

use super::channel::Channel;
use super::{LinkState, Node};
use crate::audit::AuditEvent;
use crate::requests::{ControllerRequest, ControllerResponse};
use crate::time::Clock;

/// Maximum number of devices in a request for rows or a report of unused rows.
pub(super) const DEVICES_PER_REQUEST: usize = 256;

impl Node {
    /// Handles a response of the controller. If the response is a failure, `random` selects the delay of the retry, so
    /// that gateways do not retry at the same moment.
    pub fn handle_response(&mut self, response: ControllerResponse, clock: Clock, random: u64) {
        let now_ns = clock.monotonic_ns;
        self.retry_random = random;
        match response {
            ControllerResponse::Register(result) => {
                let fencing_token =
                    self.unwrap_response("register", result, now_ns, |node| &mut node.register_channel);
                if let Some(fencing_token) = fencing_token {
                    self.register_channel.done = true;
                    self.confirm_registration(fencing_token);
                }
            }
            ControllerResponse::ResumeLeases(result) => {
                let chunk =
                    self.unwrap_response("resume leases", result, now_ns, |node| &mut node.resume_channel);
                if let Some(chunk) = chunk {
                    self.handle_lease_chunk(chunk);
                }
            }
            ControllerResponse::ExtendLeases(result) => {
                let response =
                    self.unwrap_response("extend leases", result, now_ns, |node| &mut node.lease_channel);
                match response {
                    Some((provisions, refusals)) => {
                        let requesting = self.take_rows_in_flight();
                        for rows in provisions {
                            if requesting.contains(&rows.device) {
                                self.accept_rows(rows);
                            }
                        }
                        for refusal in &refusals {
                            if requesting.contains(&refusal.device) {
                                self.handle_refusal(refusal);
                            }
                        }
                    }
                    None => self.requeue_rows_in_flight(),
                }
            }
            ControllerResponse::AdmitDevices(result) => {
                let requested = self.admission_queue.take_in_flight();
                let response = self.unwrap_response("admit devices", result, now_ns, |node| {
                    &mut node.admission_channel
                });
                match response {
                    Some(admissions) => {
                        for (miss, admission) in requested.into_iter().zip(admissions) {
                            self.handle_admission(miss, admission);
                        }
                    }
                    None => requested.iter().for_each(|miss| self.drop_miss(miss)),
                }
            }
            ControllerResponse::ReportUnusedRows(result) => {
                let response = self.unwrap_response("report unused rows", result, now_ns, |node| {
                    &mut node.unused_rows_channel
                });
                match response {
                    Some(rows_returned) => {
                        self.status.rows_returned += rows_returned;
                        self.unused_rows_recorded();
                    }
                    None => self.unused_rows_pending.append(&mut self.unused_rows_in_flight),
                }
            }
            ControllerResponse::ReportSessions { result, at_ns } => {
                let responses =
                    self.unwrap_response("report sessions", result, now_ns, |node| &mut node.report_channel);
                self.handle_report_results(responses, at_ns);
            }
            ControllerResponse::GetPlan(result) => self.handle_plan(result, clock),
            ControllerResponse::ListProvers(result) => self.handle_provers(result, clock),
            ControllerResponse::AppraiseRound(result) => self.handle_appraisal(result, clock),
            ControllerResponse::ListProverIds(result) => self.handle_prover_ids(result, clock),
            ControllerResponse::SubmitEvidence(result) => self.handle_evidence_result(result, now_ns),
            ControllerResponse::ListChanges {
                result,
                at_ns,
                trust: trust_status,
            } => {
                self.handle_trust_status(trust_status);
                let changes =
                    self.unwrap_response("list changes", result, now_ns, |node| &mut node.feed_channel);
                if let Some(changes) = changes {
                    self.handle_changes(&changes, now_ns, at_ns);
                }
            }
        }
        if !self.may_receive_devices() {
            self.epochs_reported_meanwhile.clear();
        }
        self.status.waiting_for_rows = self.row_queue.len() as u64;
    }

    /// Returns the requests to send now.
    pub(super) fn next_requests(&mut self, clock: Clock) -> Vec<ControllerRequest> {
        let mut requests = Vec::new();
        if self.stopping || self.status.replaced {
            return requests;
        }
        requests.extend(self.register_request(clock));
        if self.register_channel.done {
            requests.extend(self.changes_request(clock));
            requests.extend(self.evidence_request(clock));
        }
        if !self.has_read_feed() || !self.may_have_rows() {
            return requests;
        }
        requests.extend(self.resume_request(clock));
        requests.extend(self.unused_rows_request(clock));
        requests.extend(self.session_report_request(clock));
        requests.extend(self.extend_leases_request(clock));
        requests.extend(self.admission_request(clock));
        requests.extend(self.attestation_requests(clock));
        requests.extend(self.prover_ids_request(clock));
        self.status.waiting_for_rows = self.row_queue.len() as u64;
        requests
    }

    fn register_request(&mut self, clock: Clock) -> Option<ControllerRequest> {
        self.register_channel
            .try_send(clock)
            .then_some(ControllerRequest::Register)
    }

    fn changes_request(&mut self, clock: Clock) -> Option<ControllerRequest> {
        let is_due = self.feed_due_ns <= clock.monotonic_ns;
        (is_due && self.feed_channel.try_send(clock)).then_some(ControllerRequest::ListChanges {
            since: self.feed_revision,
        })
    }

    fn resume_request(&mut self, clock: Clock) -> Option<ControllerRequest> {
        self.resume_channel
            .try_send(clock)
            .then_some(ControllerRequest::ResumeLeases)
    }

    /// Returns the next report of unused rows. No report is sent before all leases are resumed, or while an admission
    /// of the device is in flight: the response to the admission may contain rows of the device whose lease the report
    /// would end.
    fn unused_rows_request(&mut self, clock: Clock) -> Option<ControllerRequest> {
        if !self.resume_channel.done || !self.unused_rows_channel.is_free(clock.monotonic_ns) {
            return None;
        }
        let queue = &self.admission_queue;
        let may_report = |unused: &mut UnusedRows| !queue.is_in_flight(unused.device);
        // The number of devices in a report is limited: thousands of devices may be revoked and wiped together, and
        // one transaction for all of them would delay other requests.
        let batch = self
            .unused_rows_pending
            .extract_if(.., may_report)
            .take(DEVICES_PER_REQUEST);
        self.unused_rows_in_flight = batch.collect();
        (!self.unused_rows_in_flight.is_empty() && self.unused_rows_channel.try_send(clock))
            .then(|| ControllerRequest::ReportUnusedRows(self.unused_rows_in_flight.clone()))
    }

    fn session_report_request(&mut self, clock: Clock) -> Option<ControllerRequest> {
        (!self.session_reports.is_empty() && self.report_channel.try_send(clock))
            .then(|| ControllerRequest::ReportSessions(self.session_reports.next_request()))
    }

    fn extend_leases_request(&mut self, clock: Clock) -> Option<ControllerRequest> {
        if !self.lease_channel.is_free(clock.monotonic_ns) {
            return None;
        }
        let requests = self.next_row_requests(clock.monotonic_ns);
        self.rows_in_flight = requests.iter().map(|request| request.device).collect();
        (!requests.is_empty() && self.lease_channel.try_send(clock))
            .then_some(ControllerRequest::ExtendLeases(requests))
    }

    fn admission_request(&mut self, clock: Clock) -> Option<ControllerRequest> {
        let fresh = self.fresh?;
        if self.admission_queue.is_empty() || !self.admission_channel.is_free(clock.monotonic_ns) {
            return None;
        }
        let requests = self
            .admission_queue
            .next_requests(|device| self.devices.contains_key(&device));
        if requests.is_empty() || !self.admission_channel.try_send(clock) {
            return None;
        }
        if !self.resume_channel.done {
            self.responded_while_resuming
                .extend(self.admission_queue.responses_in_flight());
        }
        Some(ControllerRequest::AdmitDevices { requests, fresh })
    }

    fn next_row_requests(&mut self, now_ns: u64) -> Vec<RowRequest> {
        let mut requests = Vec::new();
        while requests.len() < DEVICES_PER_REQUEST
            && let Some(device) = self.row_queue.pop_front()
        {
            match self.row_request(device, now_ns) {
                Some(request) => requests.push(request),
                None => {
                    if let Some(entry) = self.devices.get_mut(&device) {
                        entry.is_requesting = false;
                    }
                }
            }
        }
        requests
    }

    fn handle_lease_chunk(&mut self, chunk: LeaseChunk) {
        if !self.may_have_rows() {
            // The controller has revoked these leases.
            return;
        }
        for damaged in &chunk.damaged {
            tracing::error!(
                error = damaged,
                action = "run `linewarden registry check`; restore a backup, or revoke the device and enroll the device under another ID",
                "damaged device record skipped; the device cannot authenticate"
            );
        }
        self.status.damaged += chunk.damaged.len() as u64;
        self.status.resumed = chunk.progress;
        for provision in chunk.provisions {
            // The controller may have handled the device's RESPONSE after it read this chunk, and moved the lease to other
            // rows. The rows in the chunk may then be leased to another gateway. The device's rows come with its admission.
            if !self.responded_while_resuming.contains(&provision.device) {
                self.admit(provision);
            }
        }
        if chunk.is_last {
            self.resume_channel.done = true;
            self.responded_while_resuming = HashSet::new();
            self.status.loaded = true;
            if self.status.devices > 0 {
                tracing::info!(
                    count = self.status.devices,
                    "leases of the previous process resumed"
                );
            }
        }
    }

    fn handle_changes(&mut self, changes: &Changes, now_ns: u64, at_ns: u64) {
        for change in &changes.changes {
            self.handle_change(*change, now_ns);
        }
        for newer in &changes.newer_sessions {
            self.handle_newer_session(newer, at_ns);
        }
        self.feed_revision = changes.up_to_revision;
        if changes.has_more {
            self.feed_due_ns = now_ns;
            return;
        }
        self.feed_due_ns = now_ns.saturating_add(self.settings.feed_poll_ms.saturating_mul(1_000_000));
        if !self.has_read_feed() {
            self.data_plane.set_enrollment_filter(true);
        }
        self.link_ok_ns = self.link_ok_ns.max(Some(self.feed_channel.sent_ns));
    }

    fn handle_change(&mut self, change: Change, now_ns: u64) {
        if self.may_receive_devices() {
            self.epochs_reported_meanwhile.insert(change.device, change.epoch);
        }
        if !change.active {
            self.record_released(Some(change.device));
            let is_new = self.blocked.block(&change);
            if is_new || self.devices.contains_key(&change.device) {
                self.revoke(change.device, now_ns);
            }
            return;
        }
        // Releases in the first complete read of the feed are not recorded: they may precede the start of the gateway.
        // While decisions of the controller are pending, the record of a release is deferred: if a decision caused the
        // release, only the decision is recorded.
        if self.blocked.unblock(&change) && self.has_read_feed() {
            self.blocked.defer_release(&change);
            if !self.attestation.awaits_decisions() {
                self.record_released(None);
            }
        }
        self.data_plane.enroll(change.device);
        self.release(change.device);
        self.replace_credentials(change.device, change.epoch);
    }

    /// Returns the content of the response to a request, or `None` after a failure; updates the time of the retry, the link state
    /// and the log.
    pub(super) fn unwrap_response<T>(
        &mut self,
        request: &'static str,
        result: Result<T, LinkError>,
        now_ns: u64,
        channel: impl Fn(&mut Self) -> &mut Channel,
    ) -> Option<T> {
        if !channel(self).accept_response() {
            return None;
        }
        let random = self.retry_random;
        match result {
            Ok(content) => {
                if channel(self).retry.succeed() {
                    tracing::info!(request, "request succeeds again");
                }
                self.status.link = LinkState::Reachable;
                Some(content)
            }
            Err(LinkError::Failed(error)) => {
                if channel(self).retry.fail(now_ns, random) {
                    tracing::error!(
                        request,
                        error,
                        action = "check the controller that the error names, its registry, and the network",
                        "request failed; retrying; the gateway uses its leases and sessions until the offline limit"
                    );
                }
                self.status.link = LinkState::Lost { error };
                None
            }
            Err(LinkError::NoEvidence(error)) => {
                if channel(self).retry.fail(now_ns, random) {
                    tracing::error!(
                        error,
                        action = "check the evidence key or its TPM; with a P4 switch, check the switch",
                        "creating evidence failed; retrying"
                    );
                }
                self.status.measurements_failed += 1;
                None
            }
            Err(LinkError::RegistryRestored(error)) => {
                self.reset_after_restore(&error);
                None
            }
            // The trust status contains the reason.
            Err(LinkError::Untrusted(_)) => {
                channel(self).retry.fail(now_ns, random);
                None
            }
            Err(LinkError::Replaced(error)) => {
                if !std::mem::replace(&mut self.status.replaced, true) {
                    self.audit.record(AuditEvent::Replaced);
                    tracing::error!(
                        error,
                        action = "give each gateway its own `id`; a gateway with a revoked ID needs a new `id` and certificate",
                        "registration of this gateway is no longer valid; the process stops serving"
                    );
                    self.data_plane.set_stopping(true);
                }
                self.status.link = LinkState::Lost { error };
                None
            }
        }
    }

    /// Handles a restore of the registry, which may lease the rows of this gateway to other gateways. All devices
    /// authenticate again, as with a new process. Responses in flight from the earlier registry are invalid.
    fn reset_after_restore(&mut self, error: &str) {
        tracing::error!(
            error,
            count = self.status.devices,
            action = "repeat all revocations, quarantines and deletions of pairs since the backup",
            "registry was restored to an earlier state; devices must authenticate again"
        );
        self.audit.record(AuditEvent::RegistryRestored);
        self.drop_leases();
        for channel in [
            &mut self.register_channel,
            &mut self.report_channel,
            &mut self.feed_channel,
        ] {
            channel.invalidate();
        }
        self.evidence.invalidate();
        self.attestation.invalidate();
        self.unattested.invalidate();
        self.feed_revision = Revision::ZERO;
        self.link_ok_ns = None;
    }

    /// Whether a response that is still to come may contain rows of new devices. The requests for such rows are sent
    /// only after the first complete read of the feed.
    pub(super) fn may_receive_devices(&self) -> bool {
        self.admission_channel.in_flight || self.has_read_feed() && !self.resume_channel.done
    }

    /// Whether the feed has been read completely at least once.
    pub(super) fn has_read_feed(&self) -> bool {
        self.link_ok_ns.is_some()
    }
}
