//! Errors of gateways and their registrations.

use linewarden_protocol::ids::GatewayId;

/// Errors of gateways and their registrations.
#[derive(Debug, thiserror::Error)]
pub enum FencingError {
    /// A fencing token that is not the newest.
    #[error(
        "fencing token {presented} of gateway {gateway} is stale, the newest is {newest}: another process has registered with this id; stop this process, or configure another id"
    )]
    StaleFencingToken {
        /// The gateway.
        gateway: GatewayId,
        /// The presented token.
        presented: u64,
        /// The newest token; 0 for none.
        newest: u64,
    },
    /// A request that its gateway sent before it abandoned another request. A later request was recorded since.
    #[error(
        "request of gateway {gateway} refused: a later request with a higher number of abandoned requests was recorded; send the request again"
    )]
    OutdatedRequest {
        /// The gateway.
        gateway: GatewayId,
    },
    /// A gateway that registered before the registry was restored to an earlier state.
    #[error(
        "the registry was restored or copied since gateway {gateway} registered: its leases are void; the gateway registers again"
    )]
    RegistryRestored {
        /// The gateway.
        gateway: GatewayId,
    },
    /// A revoked gateway.
    #[error("gateway {gateway} is revoked, and its id is never used again; configure another id")]
    GatewayRevoked {
        /// The gateway.
        gateway: GatewayId,
    },
    /// A gateway's record does not authenticate.
    #[error(
        "the record of gateway {gateway} is damaged or was modified; restore a backup, or configure another id"
    )]
    DamagedGateway {
        /// The gateway.
        gateway: GatewayId,
    },
}
