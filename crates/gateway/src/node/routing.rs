//! Routes requests and responses between the components and the controller, and handles those that concern several components:
//! admissions, changes, decisions and the trust state.

use linewarden_dataplane::Miss;
use linewarden_protocol::ids::DeviceId;
use linewarden_types::{
    AdmissionResponse, Change, Changes, ControllerRequest, ControllerResponse, LeaseChunk, NewerSession,
    Provision, RoundAppraisal, TrustStatus,
};

use super::Node;
use super::trust::TrustChange;
use crate::audit::AuditEvent;
use crate::time::Clock;

impl Node {
    /// Returns the requests to send now.
    pub(super) fn next_requests(&mut self) -> Vec<ControllerRequest> {
        let mut requests = Vec::new();
        if self.has_ended() {
            return requests;
        }
        let context = &mut self.context;
        requests.extend(self.leases.register_request(context));
        if self.leases.is_registered() {
            requests.extend(self.feed.request(context));
            requests.extend(self.trust.request(context));
        }
        if !self.feed.has_been_read() || !self.trust.may_have_rows() {
            return requests;
        }
        let leases = self
            .leases
            .requests(&mut self.devices, self.fresh.current(), context);
        requests.extend(leases);
        requests.extend(self.sessions.request(context));
        if let Some(attestation) = &mut self.attestation {
            requests.extend(attestation.requests(context));
        }
        if let Some(unattested) = &mut self.unattested {
            requests.extend(unattested.request(context));
        }
        requests
    }

    /// Handles a response of the controller. If the response is a failure, `random` selects the delay of the retry, so
    /// that gateways do not retry at the same moment.
    pub fn handle_response(&mut self, response: ControllerResponse, clock: Clock, random: u64) {
        self.context.clock = clock;
        self.context.retry_random = random;
        self.route_response(response);
        if let Some(error) = self.context.connection.take_restored() {
            self.restart_after_restore(&error);
        }
        if !self.may_receive_devices() {
            self.feed.forget_epochs();
        }
    }

    fn route_response(&mut self, response: ControllerResponse) {
        let context = &mut self.context;
        match response {
            ControllerResponse::Register(result) => {
                if let Some(fencing_token) = self.leases.accept_registration(result, context) {
                    if let Some(adoption) = self.adoption.take() {
                        adoption.confirm(fencing_token, &mut self.devices, &mut self.fresh, context);
                    }
                    context.data_plane.set_owner(fencing_token);
                }
            }
            ControllerResponse::ResumeLeases(result) => {
                let is_trusted = self.trust.may_have_rows();
                if let Some(chunk) = self.leases.accept_leases(result, is_trusted, context) {
                    self.admit_leases(chunk);
                }
            }
            ControllerResponse::ExtendLeases(result) => {
                self.leases.accept_rows(result, &mut self.devices, context);
            }
            ControllerResponse::AdmitDevices(result) => {
                for (miss, admission) in self.leases.accept_admissions(result, context) {
                    self.handle_admission(miss, admission);
                }
            }
            ControllerResponse::ReportUnusedRows(result) => {
                self.leases.accept_unused_rows(result, &mut self.devices, context);
            }
            ControllerResponse::ReportSessions(result) => {
                let at_ns = self.sessions.sent_ns();
                for newer in self.sessions.accept(result, context) {
                    self.handle_newer_session(&newer, at_ns);
                }
            }
            ControllerResponse::GetPlan(result) => {
                if let Some(attestation) = &mut self.attestation {
                    attestation.accept_plan(result, context);
                }
            }
            ControllerResponse::ListProvers(result) => {
                if let Some(attestation) = &mut self.attestation {
                    attestation.accept_provers(result, context);
                }
            }
            ControllerResponse::AppraiseRound(result) => {
                let attestation = self.attestation.as_mut();
                let appraisal =
                    attestation.and_then(|attestation| attestation.accept_appraisal(result, context));
                if let Some(appraisal) = appraisal {
                    self.apply_decisions(appraisal);
                }
            }
            ControllerResponse::ListProverIds(result) => {
                if let Some(unattested) = &mut self.unattested {
                    unattested.accept(result, &self.devices, context);
                }
            }
            ControllerResponse::SubmitEvidence(result) => {
                if let Some(status) = self.trust.accept(result, context) {
                    self.handle_trust_status(status);
                }
            }
            ControllerResponse::ListChanges(result) => {
                let result = result.map(|(changes, trust_status)| {
                    if let Some(status) = trust_status {
                        self.handle_trust_status(status);
                    }
                    changes
                });
                if let Some(changes) = self.feed.accept(result, &mut self.context) {
                    self.handle_changes(&changes, self.feed.sent_ns());
                }
            }
            // The ticket relay and the status reports receive these responses themselves.
            ControllerResponse::RelayTicket(_) | ControllerResponse::ReportStatus(_) => {}
        }
    }

    fn admit_leases(&mut self, chunk: LeaseChunk) {
        for provision in chunk.provisions {
            self.admit(provision);
        }
        let count = self.devices.installed_count();
        if chunk.is_last && count > 0 {
            tracing::info!(count, "leases of the previous process resumed");
        }
    }

    /// Adds a new device with leased rows; returns whether the device is in the data plane.
    fn admit(&mut self, provision: Provision) -> bool {
        // The rows were leased before the leases were revoked, or the feed has reported newer credentials.
        if !self.trust.may_have_rows() || self.feed.has_newer_epoch(provision.device, provision.epoch) {
            return false;
        }
        self.devices.admit(provision, &mut self.context)
    }

    fn handle_admission(&mut self, miss: Miss, response: AdmissionResponse) {
        let context = &mut self.context;
        match response {
            AdmissionResponse::NoResponse => {}
            AdmissionResponse::Challenge(challenge) => context.data_plane.send_reply(&miss, &challenge),
            AdmissionResponse::Nak(nak) => {
                context.data_plane.send_reply(&miss, &nak);
                self.devices.log_unserved(miss.device(), context);
            }
            AdmissionResponse::NakForStatement(nak) => {
                context.data_plane.send_reply(&miss, &nak);
                self.devices.log_stated_exhausted(miss.device(), context.now_ns());
            }
            AdmissionResponse::Admit(provision) => {
                self.counts.admitted += 1;
                context.audit.record(AuditEvent::Admitted {
                    device: provision.device,
                    row: provision.first,
                    rows: provision.rows.len() as u64,
                    address: miss.source(),
                });
                if self.admit(provision) {
                    self.replay(miss);
                }
            }
        }
    }

    pub(super) fn replay(&mut self, miss: Miss) {
        if let Err(error) = self.context.data_plane.replay(miss) {
            self.counts.replays_failed += 1;
            tracing::debug!(%error, "handling a message again failed; the device retries the message");
        }
    }

    fn handle_changes(&mut self, changes: &Changes, at_ns: u64) {
        for change in &changes.changes {
            self.handle_change(*change);
        }
        for newer in &changes.newer_sessions {
            self.handle_newer_session(newer, at_ns);
        }
        self.feed.finish(changes, &mut self.context);
    }

    fn handle_change(&mut self, change: Change) {
        let device = change.device;
        if self.may_receive_devices() {
            self.feed.record_epoch(&change);
        }
        if !change.active {
            let is_new = self.feed.block(&change, &mut self.context);
            self.revoke(device, is_new);
            return;
        }
        let awaits_decisions = self
            .attestation
            .as_ref()
            .is_some_and(|attestation| attestation.awaits_decisions());
        let context = &mut self.context;
        self.feed.unblock(&change, awaits_decisions, context);
        context.data_plane.enroll(device);
        self.devices.release(device, context);
        self.devices.replace_credentials(device, change.epoch, context);
    }

    /// Revokes a device that is blocked; `is_new`: whether the block is new.
    fn revoke(&mut self, device: DeviceId, is_new: bool) {
        let context = &mut self.context;
        let is_known = self.devices.revoke(device, context);
        if is_known || !is_new {
            return;
        }
        // Revocations before the start of the gateway are not counted.
        if self.feed.has_been_read() {
            self.devices.record_blocked(device, false, context);
        }
        if self.may_receive_devices() {
            // A response in flight may still contain rows of the device.
            self.devices.insert_revoked(device, self.context.now_ns());
        }
    }

    /// Handles a session that a device has opened at another gateway. `newer.age_ns` is the age of the session at the time
    /// `at_ns` (boot-time clock).
    fn handle_newer_session(&mut self, newer: &NewerSession, at_ns: u64) {
        let last_recorded = self.devices.last_session(newer.device);
        let is_elsewhere = self
            .sessions
            .handle_newer_session(newer, at_ns, last_recorded, &mut self.context);
        if let Some(attestation) = self.attestation.as_mut().filter(|_| is_elsewhere) {
            attestation.stop(newer.device);
        }
    }

    /// Applies the decisions of the controller about the devices of a round.
    fn apply_decisions(&mut self, appraisal: RoundAppraisal) {
        for quarantined in appraisal.quarantined {
            let (device, reason) = (quarantined.device, quarantined.reason);
            tracing::warn!(
                device_id = %device,
                reason,
                action = "run `linewarden attest show DEVICE`",
                "device quarantined"
            );
            self.context
                .audit
                .record(AuditEvent::Quarantined { device, reason });
            // The feed reports the quarantine to all gateways. This gateway applies the quarantine at once, because the
            // registry may fail before. The slow path may have admitted the device after a release that the feed has not
            // reported yet.
            if let Some(is_new) = self.feed.quarantine(device, quarantined.revision) {
                self.revoke(device, is_new);
            }
        }
        for (device, revision) in appraisal.remediated {
            tracing::info!(device_id = %device, "device released after a valid proof");
            self.context.audit.record(AuditEvent::Remediated { device });
            self.feed.confirm_release(device, revision);
        }
        self.feed.record_released(None, &mut self.context);
        for token in appraisal.attestation_results {
            self.context.audit.record(AuditEvent::AttestationResult { token });
        }
    }

    fn handle_trust_status(&mut self, status: TrustStatus) {
        match self.trust.set_state(status.state, &mut self.context) {
            None => {}
            Some(TrustChange::Reopened) => {
                let has_ended = self.has_ended();
                self.context.data_plane.set_stopping(has_ended);
            }
            Some(TrustChange::Closed) => {
                self.fresh.clear(&mut self.context);
                self.context.data_plane.set_stopping(true);
                self.drop_leases();
            }
        }
        self.trust.set_nonce(status.nonce, &self.context);
    }

    /// Drops all leases: all devices are revoked, and no unused rows are reported, because the controller would
    /// reject the report. Afterwards, the gateway registers and resumes leases like a new process.
    fn drop_leases(&mut self) {
        // The fresh values are cleared before all other changes: from here on, the data plane sends no reply. By the time
        // a fresh value is set again, all devices are revoked.
        self.fresh.clear(&mut self.context);
        self.adoption = None;
        self.devices.drop_leases(&mut self.context);
        self.leases.restart();
    }

    /// Handles a restore of the registry, which may lease the rows of this gateway to other gateways. All devices
    /// authenticate again, as with a new process. Responses in flight from the earlier registry are void.
    fn restart_after_restore(&mut self, error: &str) {
        tracing::error!(
            error,
            count = self.devices.installed_count(),
            action = "repeat all revocations, quarantines and deletions of pairs since the backup",
            "registry was restored to an earlier state; devices must authenticate again"
        );
        self.context.audit.record(AuditEvent::RegistryRestored);
        self.drop_leases();
        self.leases.invalidate_registration();
        self.sessions.invalidate();
        self.feed.restart();
        self.trust.invalidate();
        if let Some(attestation) = &mut self.attestation {
            attestation.invalidate();
        }
        if let Some(unattested) = &mut self.unattested {
            unattested.invalidate();
        }
    }

    /// Whether a response that is still to come may contain rows of new devices.
    pub(super) fn may_receive_devices(&self) -> bool {
        self.leases.may_receive_devices(self.feed.has_been_read())
    }
}
