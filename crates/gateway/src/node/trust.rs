//! The trust state of this gateway at its controller, and the submission of evidence.
//!
//! ```text
//!                        evidence matches
//!  (none) ──► Unproven ───────────────────► Trusted ◄────────► Untrusted
//!    │ the controller requires no evidence             all leases dropped; REQUESTs get a NAK
//! ```
//!
//! The controller requests evidence by sending a nonce. The gateway measures the data plane after it has received the nonce,
//! and submits the evidence until the controller confirms it.

use linewarden_dataplane::{Measurement, MeasurementSource};
use linewarden_evidence::statement::Nonce;
use linewarden_types::{GatewayTrustState, LinkError, TrustStatus};

use super::channel::Channel;
use super::context::Context;
use super::status::{Status, TrustState};
use crate::audit::AuditEvent;
use crate::requests::ControllerRequest;

/// The trust state, and the exchange of evidence.
pub(super) struct Trust {
    /// `None` if the controller requires no evidence.
    state: Option<TrustState>,
    /// The last nonce.
    nonce: Option<Nonce>,
    /// The measurement for the nonce, until the controller has received the evidence. `Some(None)`: the data plane
    /// signs its own measurement.
    measurement: Option<Option<Box<Measurement>>>,
    channel: Channel,
    /// Whether all devices are revoked until the gateway is trusted. The previous trust state does not show this, because
    /// another controller may have reported `Unproven` meanwhile.
    is_closed: bool,
    measurements_failed: u64,
}

/// The effect of a change of the trust state on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrustChange {
    /// Devices may be served again.
    Reopened,
    /// All leases are to be dropped; REQUESTs then get a NAK.
    Closed,
}

impl Default for Trust {
    fn default() -> Self {
        Self {
            state: None,
            nonce: None,
            measurement: None,
            channel: Channel::new("submit evidence"),
            is_closed: false,
            measurements_failed: 0,
        }
    }
}

impl Trust {
    /// Whether the controller grants rows: the gateway is trusted, or needs no evidence.
    pub(super) fn may_have_rows(&self) -> bool {
        matches!(self.state, None | Some(TrustState::Trusted))
    }

    pub(super) fn request(&mut self, context: &Context) -> Option<ControllerRequest> {
        let nonce = self.nonce?;
        let measurement = self.measurement.clone()?;
        self.channel
            .try_send(context.clock)
            .then_some(ControllerRequest::SubmitEvidence { nonce, measurement })
    }

    /// Handles the response to submitted evidence; returns the new trust status.
    pub(super) fn accept(
        &mut self,
        result: Result<TrustStatus, LinkError>,
        context: &mut Context,
    ) -> Option<TrustStatus> {
        self.measurements_failed += u64::from(matches!(result, Err(LinkError::NoEvidence(_))));
        let trust_status = context.receive(&mut self.channel, result)?;
        self.measurement = None;
        Some(trust_status)
    }

    /// Changes the trust state.
    pub(super) fn set_state(
        &mut self,
        state: GatewayTrustState,
        context: &mut Context,
    ) -> Option<TrustChange> {
        let next = match state {
            GatewayTrustState::Unproven => TrustState::Unproven,
            GatewayTrustState::Trusted => TrustState::Trusted,
            GatewayTrustState::Untrusted { reason } => TrustState::Untrusted { reason },
        };
        let previous = self.state.replace(next.clone());
        if previous.as_ref() == Some(&next) {
            return None;
        }
        match next {
            TrustState::Unproven => None,
            TrustState::Trusted => {
                tracing::info!("gateway is trusted by the controller");
                context.audit.record(AuditEvent::Trusted);
                std::mem::take(&mut self.is_closed).then_some(TrustChange::Reopened)
            }
            TrustState::Untrusted { reason } => {
                tracing::error!(
                    reason,
                    action = "compare the reason with the last update or reload; create new reference values, or reinstall the gateway",
                    "gateway is not trusted by the controller; all rows and sessions are removed"
                );
                context.audit.record(AuditEvent::Untrusted { reason });
                (!std::mem::replace(&mut self.is_closed, true)).then_some(TrustChange::Closed)
            }
        }
    }

    /// Handles the nonce in a trust status: measures the data plane, if the nonce is new. Without a nonce, the controller has
    /// the evidence, even if its response was lost.
    pub(super) fn set_nonce(&mut self, nonce: Option<Nonce>, context: &Context) {
        if nonce.is_none() {
            self.measurement = None;
        }
        let Some(nonce) = nonce.filter(|nonce| self.nonce != Some(*nonce)) else {
            return;
        };
        self.nonce = Some(nonce);
        self.measurement = measure(context);
        self.measurements_failed += u64::from(self.measurement.is_none());
    }

    /// Invalidates a request in flight after a restore of the registry.
    pub(super) fn invalidate(&mut self) {
        self.channel.invalidate();
    }

    pub(super) fn report(&self, status: &mut Status) {
        status.trust.clone_from(&self.state);
        status.measurements_failed = self.measurements_failed;
    }
}

/// Measures the data plane; `Some(None)`: the data plane measures itself, and signs.
fn measure(context: &Context) -> Option<Option<Box<Measurement>>> {
    match context.data_plane.measure() {
        Ok(MeasurementSource::Kernel(measurement)) => Some(Some(measurement)),
        Ok(MeasurementSource::SelfSigned) => Some(None),
        Ok(MeasurementSource::Unavailable) => {
            tracing::error!(
                data_plane = context.data_plane.name(),
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::test_support::context;

    fn untrusted() -> GatewayTrustState {
        GatewayTrustState::Untrusted {
            reason: "map".to_owned(),
        }
    }

    #[test]
    fn a_change_closes_or_reopens_the_gateway_once() {
        use GatewayTrustState::{Trusted, Unproven};
        let (mut trust, mut context) = (Trust::default(), context());
        assert!(trust.may_have_rows(), "no evidence is required");
        for (state, change, may_have_rows) in [
            (Unproven, None, false),
            (Trusted, None, true),
            (untrusted(), Some(TrustChange::Closed), false),
            (untrusted(), None, false),
            // Another controller may not know the gateway's evidence yet.
            (Unproven, None, false),
            (untrusted(), None, false),
            (Unproven, None, false),
            (Trusted, Some(TrustChange::Reopened), true),
            (Trusted, None, true),
        ] {
            let case = format!("{state:?}");
            assert_eq!(trust.set_state(state, &mut context), change, "{case}");
            assert_eq!(trust.may_have_rows(), may_have_rows, "{case}");
        }
    }
}
