//! Conversion of the trust status of a gateway.

use linewarden_evidence::statement::Nonce;
use linewarden_types::{GatewayTrustState, TrustStatus};

use super::{Malformed, optional_bytes};
use crate::proto;

/// Encodes the trust status.
pub fn trust_to_wire(trust_status: &TrustStatus) -> proto::TrustStatus {
    use proto::trust_status::State as Wire;
    let (state, reason) = match &trust_status.state {
        GatewayTrustState::Unproven => (Wire::Unproven, ""),
        GatewayTrustState::Trusted => (Wire::Trusted, ""),
        GatewayTrustState::Untrusted { reason } => (Wire::Untrusted, reason.as_str()),
    };
    proto::TrustStatus {
        nonce: trust_status
            .nonce
            .map_or_else(Vec::new, |Nonce(nonce)| nonce.to_vec()),
        state: state.into(),
        reason: reason.to_owned(),
        fencing_token: trust_status.fencing_token.unwrap_or_default(),
    }
}

/// Decodes the trust status.
pub fn trust_from_wire(trust_status: proto::TrustStatus) -> Result<TrustStatus, Malformed> {
    use proto::trust_status::State as Wire;
    let state = match trust_status.state() {
        Wire::Unproven => GatewayTrustState::Unproven,
        Wire::Trusted => GatewayTrustState::Trusted,
        Wire::Untrusted => GatewayTrustState::Untrusted {
            reason: trust_status.reason.clone(),
        },
        Wire::Unspecified => return Err(Malformed("no trust state")),
    };
    Ok(TrustStatus {
        nonce: optional_bytes(&trust_status.nonce, "nonce of a wrong length")?.map(Nonce),
        state,
        fencing_token: Some(trust_status.fencing_token).filter(|fencing_token| *fencing_token != 0),
    })
}
