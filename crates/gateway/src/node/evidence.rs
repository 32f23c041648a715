//! Submission of evidence, and the state of the gateway while it is not trusted.

use linewarden_dataplane::{Measurement, MeasurementSource};
use linewarden_evidence::statement::Nonce;
use linewarden_protocol::ids::{DeviceId, Mode};
use linewarden_types::{GatewayTrustState, LinkError, TrustStatus};

use super::Node;
use super::channel::Channel;
use super::devices::State;
use super::freshness::Freshness;
use super::status::TrustState;
use crate::audit::AuditEvent;
use crate::requests::ControllerRequest;
use crate::time::Clock;

/// State of the evidence requests.
#[derive(Default)]
pub(super) struct EvidenceExchange {
    /// The last nonce.
    nonce: Option<Nonce>,
    /// The measurement for the nonce, until the controller has received the evidence. `Some(None)`: the data plane
    /// signs its own measurement.
    measurement: Option<Option<Box<Measurement>>>,
    channel: Channel,
    /// Whether all devices are revoked until the gateway is trusted.
    is_closed: bool,
}

impl EvidenceExchange {
    /// Invalidates a request in flight after a restore of the registry.
    pub(super) fn invalidate(&mut self) {
        self.channel.invalidate();
    }
}

impl Node {
    /// Whether the controller grants rows: the gateway is trusted, or needs no evidence.
    pub(super) fn may_have_rows(&self) -> bool {
        matches!(self.status.trust, None | Some(TrustState::Trusted))
    }

    /// Handles the trust status in a response.
    pub(super) fn handle_trust_status(&mut self, trust_status: Option<TrustStatus>) {
        let Some(TrustStatus { nonce, state }) = trust_status else {
            return;
        };
        self.set_trust_state(state);
        if nonce.is_none() {
            // The controller has the evidence; its response was lost.
            self.evidence.measurement = None;
        }
        let Some(nonce) = nonce.filter(|nonce| self.evidence.nonce != Some(*nonce)) else {
            return;
        };
        self.evidence.nonce = Some(nonce);
        self.evidence.measurement = match self.data_plane.measure() {
            Ok(MeasurementSource::Kernel(measurement)) => Some(Some(measurement)),
            Ok(MeasurementSource::SelfSigned) => Some(None),
            Ok(MeasurementSource::Unavailable) => {
                let data_plane = self.data_plane.name();
                tracing::error!(
                    data_plane,
                    action = "use `dataplane = \"xdp\"`, or \"p4\" with a switch that measures itself; or remove [trust.N] of this gateway from the controller's configuration",
                    "controller requests evidence, but this data plane cannot be measured; the gateway gets no rows"
                );
                None
            }
            Err(error) => {
                tracing::error!(
                    %error,
                    action = "check the capabilities of the process (CAP_SYS_ADMIN) and the error",
                    "measuring the data plane for evidence failed; retrying at the next request of the controller"
                );
                None
            }
        };
        if self.evidence.measurement.is_none() {
            self.status.measurements_failed += 1;
        }
    }

    pub(super) fn evidence_request(&mut self, clock: Clock) -> Option<ControllerRequest> {
        let nonce = self.evidence.nonce?;
        let measurement = self.evidence.measurement.clone()?;
        self.evidence
            .channel
            .try_send(clock)
            .then_some(ControllerRequest::SubmitEvidence { nonce, measurement })
    }

    pub(super) fn handle_evidence_result(&mut self, result: Result<TrustStatus, LinkError>, now_ns: u64) {
        let trust_status = self.unwrap_response("submit evidence", result, now_ns, |node| {
            &mut node.evidence.channel
        });
        if let Some(trust_status) = trust_status {
            self.evidence.measurement = None;
            self.handle_trust_status(Some(trust_status));
        }
    }

    fn set_trust_state(&mut self, state: GatewayTrustState) {
        let next = match state {
            GatewayTrustState::Unproven => TrustState::Unproven,
            GatewayTrustState::Trusted => TrustState::Trusted,
            GatewayTrustState::Untrusted { reason } => TrustState::Untrusted { reason },
        };
        let previous = self.status.trust.replace(next.clone());
        if previous.as_ref() == Some(&next) {
            return;
        }
        match next {
            TrustState::Unproven => {}
            TrustState::Trusted => {
                tracing::info!("gateway is trusted by the controller");
                self.audit.record(AuditEvent::Trusted);
                // The previous trust state does not show whether all devices were revoked, because another controller
                // may have reported `Unproven` meanwhile. Only `is_closed` shows this.
                let was_closed = std::mem::take(&mut self.evidence.is_closed);
                if was_closed && !self.stopping && !self.status.replaced {
                    self.data_plane.set_stopping(false);
                }
            }
            TrustState::Untrusted { reason } => {
                tracing::error!(
                    reason,
                    action = "compare the reason with the last update or reload; create new reference values, or reinstall the gateway",
                    "gateway is not trusted by the controller; all rows and sessions are removed"
                );
                self.audit.record(AuditEvent::Untrusted { reason });
                if !std::mem::replace(&mut self.evidence.is_closed, true) {
                    self.data_plane.set_fresh([0; 8], 0);
                    self.data_plane.set_stopping(true);
                    self.drop_leases();
                }
            }
        }
    }

    /// Drops all leases: all devices are revoked, and no unused rows are reported, because the controller would
    /// reject the report. Afterwards, the gateway registers and resumes leases like a new process.
    pub(super) fn drop_leases(&mut self) {
        // The fresh value is cleared before all other changes: from here on, the data plane sends no reply. By the time
        // a fresh value is set again, all devices are revoked.
        self.data_plane.set_fresh([0; 8], 0);
        self.inherited = None;
        self.freshness = Freshness::default();
        self.fresh = None;
        self.unused_rows_pending.clear();
        self.unused_rows_in_flight.clear();
        let devices: Vec<DeviceId> = self.devices.keys().copied().collect();
        for device in devices {
            self.drop_device(device);
        }
        self.register_channel.done = false;
        // Responses in flight may contain rows of the dropped leases.
        for channel in [
            &mut self.resume_channel,
            &mut self.lease_channel,
            &mut self.admission_channel,
            &mut self.unused_rows_channel,
        ] {
            channel.invalidate();
        }
        // The controller may handle these RESPONSEs after it has read the first part of the leases.
        self.responded_while_resuming = self.admission_queue.responses_in_flight().collect();
    }

    fn drop_device(&mut self, device: DeviceId) {
        let Some(entry) = self.devices.get_mut(&device) else {
            return;
        };
        match entry.state {
            State::Waiting | State::Installed => self.remove_device(device, false),
            // A pool device is wiped already.
            State::ReportingUnusedRows if entry.mode == Mode::Key => {
                entry.state = State::Leaving {
                    reports_unused_rows: false,
                };
                self.remove_from_data_plane(device);
            }
            State::ReportingUnusedRows => {
                self.forget(device);
            }
            // The wipe is retried as soon as the line is not busy.
            State::Leaving { .. } => {
                entry.state = State::Leaving {
                    reports_unused_rows: false,
                }
            }
            State::Revoked { .. } => {}
        }
    }
}
