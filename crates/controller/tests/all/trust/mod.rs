//! Trust in gateways: what establishes it, what ends it, and which attacks have no effect.

mod attested_data_plane;
mod links;
mod state;

use linewarden_protocol::ids::GatewayId;
use linewarden_types::GatewayTrustState;

const SECOND_NS: u64 = 1_000_000_000;
const EVIDENCE_INTERVAL_NS: u64 = 60 * SECOND_NS;
const RESPONSE_TIMEOUT_NS: u64 = 10 * SECOND_NS;
const GATEWAY: GatewayId = GatewayId(5);

fn distrust_reason(state: &GatewayTrustState) -> &str {
    match state {
        GatewayTrustState::Untrusted { reason } => reason,
        other => panic!("{other:?}"),
    }
}
