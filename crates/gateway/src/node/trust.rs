//! The trust state of this gateway at its controller, and the submission of evidence.
//!
//! ```text
//!                        evidence matches
//!  (none) ──► Unproven ───────────────────► Trusted ◄────────► Untrusted
//!    │ the controller requires no evidence             all leases dropped; REQUESTs get a NAK
//! ```
//!
//! The controller requests evidence by sending a nonce. The gateway measures the data plane after it has received the nonce, signs
//! the measurement, and submits the evidence until the controller confirms it:
//!
//! ```text
//!             nonce             signed             confirmed, or no nonce
//!  None ──────────────► Measured ────────► Signed ────────────────────────► None
//!                        ▲  ▲   │             │
//!                        │  └───┘             │
//!                        │  signing failed    │
//!                        └────────────────────┘ rejected
//! ```

use linewarden_dataplane::{DataPlaneError, Measurement, MeasurementSource};
use linewarden_evidence::statement::Nonce;
use linewarden_types::{ControllerRequest, GatewayTrustState, Kind, LinkError, SubmitEvidence, TrustStatus};

use super::channel::Channel;
use super::context::Context;
use super::retry::RetryTimer;
use super::status::{Status, TrustState};
use crate::attester::SignedEvidence;
use crate::audit::AuditEvent;

/// The trust state, and the exchange of evidence.
pub(super) struct Trust {
    /// `None` if the controller requires no evidence.
    state: Option<TrustState>,
    /// The last nonce.
    nonce: Option<Nonce>,
    /// The evidence for the nonce, until the controller has received it.
    evidence: Evidence,
    /// Whether evidence is being created.
    is_signing: bool,
    measuring_retry: RetryTimer,
    signing_retry: RetryTimer,
    channel: Channel,
    /// Whether all devices are revoked until the gateway is trusted. The previous trust state does not show this, because
    /// another controller may have reported `Unproven` meanwhile.
    is_closed: bool,
    measurements_failed: u64,
}

/// The evidence for the last nonce.
#[derive(Debug)]
enum Evidence {
    /// The controller has the evidence, or the data plane could not be measured.
    None,
    /// To be signed; without a measurement, the data plane measures itself and signs.
    Measured(Option<Box<Measurement>>),
    /// To be submitted; with the measurement, which is signed again if the controller rejects the evidence.
    Signed(SignedEvidence, Option<Box<Measurement>>),
}

/// A request for signed evidence about the data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvidenceRequest {
    /// The nonce of the evidence.
    pub nonce: Nonce,
    /// The measurement to sign, taken after the nonce was received; `None`: the switch measures itself and signs.
    pub measurement: Option<Box<Measurement>>,
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
            evidence: Evidence::None,
            is_signing: false,
            measuring_retry: RetryTimer::default(),
            signing_retry: RetryTimer::default(),
            channel: Channel::new(Kind::SubmitEvidence),
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

    /// Returns a request for signed evidence, if a measurement waits for its signature.
    pub(super) fn evidence_request(&mut self, context: &Context) -> Option<EvidenceRequest> {
        let (Some(nonce), Evidence::Measured(measurement)) = (self.nonce, &self.evidence) else {
            return None;
        };
        if self.is_signing || !self.signing_retry.is_due(context.now_ns()) {
            return None;
        }
        self.is_signing = true;
        Some(EvidenceRequest {
            nonce,
            measurement: measurement.clone(),
        })
    }

    /// Handles the evidence for this nonce, or the reason why no evidence could be created.
    pub(super) fn accept_evidence(
        &mut self,
        nonce: Nonce,
        result: Result<SignedEvidence, String>,
        context: &Context,
    ) {
        self.is_signing = false;
        match result {
            Ok(signed) => {
                self.signing_retry.succeed();
                // Another nonce may have been received meanwhile, or the controller needs no evidence any more.
                if let Evidence::Measured(measurement) = &mut self.evidence
                    && self.nonce == Some(nonce)
                {
                    self.evidence = Evidence::Signed(signed, measurement.take());
                }
            }
            Err(error) => {
                self.measurements_failed += 1;
                if self.signing_retry.fail(context.now_ns(), context.retry_random) {
                    tracing::error!(
                        error,
                        action = "check the evidence key or its TPM; with a P4 switch, check the switch",
                        "creating evidence failed; retrying"
                    );
                }
            }
        }
    }

    pub(super) fn request(&mut self, context: &Context) -> Option<ControllerRequest> {
        let Evidence::Signed(SignedEvidence { statement, inventory }, _) = &self.evidence else {
            return None;
        };
        let request = || SubmitEvidence {
            statement: statement.clone(),
            inventory: inventory.clone(),
        };
        self.channel.try_send(context.clock).then(|| request().into())
    }

    /// Handles the response to submitted evidence; returns the new trust status.
    pub(super) fn accept(
        &mut self,
        result: Result<TrustStatus, LinkError>,
        context: &mut Context,
    ) -> Option<TrustStatus> {
        if let (Err(LinkError::Untrusted(_)), Evidence::Signed(_, measurement)) =
            (&result, &mut self.evidence)
        {
            self.evidence = Evidence::Measured(measurement.take());
        }
        let trust_status = context.receive(&mut self.channel, result)?;
        self.evidence = Evidence::None;
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
            // A nonce that another controller has requested meanwhile arrives again with its next response.
            (self.nonce, self.evidence) = (None, Evidence::None);
        }
        let Some(nonce) = nonce.filter(|nonce| self.nonce != Some(*nonce)) else {
            return;
        };
        // The controller accepts no evidence for the earlier nonce any more.
        (self.nonce, self.evidence) = (None, Evidence::None);
        if !self.measuring_retry.is_due(context.now_ns()) {
            return;
        }
        match measure(context) {
            Ok(evidence) => {
                self.measuring_retry.succeed();
                self.measurements_failed += u64::from(matches!(evidence, Evidence::None));
                (self.nonce, self.evidence) = (Some(nonce), evidence);
            }
            // The nonce is not recorded, so that the data plane is measured again for it.
            Err(error) => {
                self.measurements_failed += 1;
                if self.measuring_retry.fail(context.now_ns(), context.retry_random) {
                    tracing::error!(
                        %error,
                        action = "check the capabilities of the process (CAP_SYS_ADMIN) and the error",
                        "measuring the data plane for evidence failed; retrying"
                    );
                }
            }
        }
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

/// Measures the data plane; [`Evidence::None`] if it cannot be measured.
fn measure(context: &Context) -> Result<Evidence, DataPlaneError> {
    Ok(match context.data_plane.measure()? {
        MeasurementSource::Kernel(measurement) => Evidence::Measured(Some(measurement)),
        MeasurementSource::SelfSigned => Evidence::Measured(None),
        MeasurementSource::Unavailable => {
            tracing::error!(
                data_plane = context.data_plane.name(),
                action = "use `dataplane = \"xdp\"`, or \"p4\" with a switch that measures itself; or remove [trust.N] of this gateway from the controller's configuration",
                "controller requests evidence, but this data plane cannot be measured; the gateway gets no rows"
            );
            Evidence::None
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::test_support::{context, set_time};

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

    fn status(nonce: Option<Nonce>) -> TrustStatus {
        TrustStatus {
            nonce,
            state: GatewayTrustState::Unproven,
            fencing_token: None,
        }
    }

    #[test]
    fn evidence_is_signed_once_and_submitted_until_the_controller_confirms_it() {
        let (mut trust, mut context) = (Trust::default(), context());
        let (first, second) = (Nonce([1; 32]), Nonce([2; 32]));
        let signed = |byte: u8| SignedEvidence {
            statement: vec![byte],
            inventory: Vec::new(),
        };
        let submitted = |byte: u8| {
            let SignedEvidence { statement, inventory } = signed(byte);
            Some(ControllerRequest::from(SubmitEvidence { statement, inventory }))
        };
        let ask = |trust: &mut Trust, nonce: Nonce| {
            (trust.nonce, trust.evidence) = (Some(nonce), Evidence::Measured(None));
        };
        ask(&mut trust, first);
        assert_eq!(trust.request(&context), None, "not signed");
        let request = trust.evidence_request(&context).unwrap();
        assert_eq!(request.nonce, first);
        assert_eq!(trust.evidence_request(&context), None, "being signed");
        trust.accept_evidence(first, Err("no TPM".to_owned()), &context);
        assert_eq!(trust.evidence_request(&context), None, "retried later");
        set_time(&mut context, 10_000);
        assert!(trust.evidence_request(&context).is_some());
        ask(&mut trust, second);
        assert_eq!(trust.evidence_request(&context), None, "being signed");
        trust.accept_evidence(first, Ok(signed(1)), &context);
        assert_eq!(trust.request(&context), None, "of an earlier nonce");
        assert_eq!(trust.evidence_request(&context).unwrap().nonce, second);
        trust.accept_evidence(second, Ok(signed(2)), &context);
        assert_eq!(trust.request(&context), submitted(2));
        assert_eq!(trust.request(&context), None, "in flight");
        let lost = Err(LinkError::Failed("lost".to_owned()));
        assert_eq!(trust.accept(lost, &mut context), None);
        assert_eq!(trust.evidence_request(&context), None, "signed already");
        set_time(&mut context, 20_000);
        assert_eq!(trust.request(&context), submitted(2));
        let rejected = Err(LinkError::Untrusted("rejected".to_owned()));
        assert_eq!(trust.accept(rejected, &mut context), None);
        set_time(&mut context, 30_000);
        assert_eq!(trust.request(&context), None, "to be signed again");
        assert!(trust.evidence_request(&context).is_some());
        trust.accept_evidence(second, Ok(signed(3)), &context);
        assert_eq!(trust.request(&context), submitted(3));
        assert_eq!(trust.accept(Ok(status(None)), &mut context), Some(status(None)));
        assert_eq!(trust.request(&context), None, "confirmed");
    }

    /// The response of one controller must not end the request of another.
    #[test]
    fn a_nonce_that_arrives_again_is_new_after_a_response_without_a_nonce() {
        let (mut trust, context) = (Trust::default(), context());
        let nonce = Nonce([1; 32]);
        for _ in 0..2 {
            let failed_before = trust.measurements_failed;
            // The data plane `host` cannot be measured.
            trust.set_nonce(Some(nonce), &context);
            assert_eq!(trust.measurements_failed, failed_before + 1);
            trust.set_nonce(Some(nonce), &context);
            assert_eq!(trust.measurements_failed, failed_before + 1, "measured once");
            trust.set_nonce(None, &context);
        }
    }
}
