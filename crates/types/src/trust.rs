//! Trust in a gateway: the appraisal of the evidence about its data plane.

use linewarden_evidence::statement::Nonce;

/// The trust state of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GatewayTrustState {
    /// The gateway has submitted no evidence since its registration.
    Unproven,
    /// The evidence matches the reference values.
    Trusted,
    /// The evidence does not match, or is missing.
    Untrusted {
        /// The differences, or the error.
        reason: String,
    },
}

/// The trust state of a gateway, and the request for evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustStatus {
    /// The nonce of the requested evidence; `None` if no evidence is requested. The nonce stays the same until the
    /// evidence has been received or the request has timed out.
    pub nonce: Option<Nonce>,
    /// The trust state.
    pub state: GatewayTrustState,
    /// The new fencing token of the gateway's process, if the controller has issued one because it has revoked the gateway's
    /// leases.
    pub fencing_token: Option<u64>,
}
