//! Rejected requests of gateways, and devices that get no rows.

use linewarden_protocol::ids::GatewayId;
use linewarden_registry::{DeviceError, FencingError, RegistryError};
use linewarden_types::{LinkError, RefusalReason};

use crate::trust::EvidenceRejected;

/// The reason why a request of a gateway is rejected.
#[derive(Debug, thiserror::Error)]
pub enum Denial {
    /// A stale fencing token, a damaged record, or a failure of the database.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The gateway's evidence is missing or was not affirmed.
    #[error("gateway {gateway} gets no rows: its evidence is not trusted: {reason}")]
    Untrusted {
        /// The gateway.
        gateway: GatewayId,
        /// The reason.
        reason: String,
    },
    /// The submitted evidence was rejected.
    #[error(transparent)]
    EvidenceRejected(EvidenceRejected),
    /// The source of random numbers has failed.
    #[error("no random bytes")]
    NoRandomBytes,
    /// A newer connection of the gateway has replaced the connection of the request.
    #[error("connection was replaced by a newer one of the same gateway")]
    ConnectionReplaced,
}

impl From<Denial> for LinkError {
    fn from(denial: Denial) -> Self {
        match denial {
            Denial::Untrusted { .. } | Denial::EvidenceRejected(_) => Self::Untrusted(denial.to_string()),
            Denial::NoRandomBytes | Denial::ConnectionReplaced => {
                Self::failed("controller", denial.to_string())
            }
            Denial::Registry(
                error @ RegistryError::Fencing(
                    FencingError::StaleFencingToken { .. } | FencingError::GatewayRevoked { .. },
                ),
            ) => Self::Replaced(error.to_string()),
            Denial::Registry(error @ RegistryError::Fencing(FencingError::RegistryRestored { .. })) => {
                Self::RegistryRestored(error.to_string())
            }
            Denial::Registry(error) => Self::failed("registry", error.to_string()),
        }
    }
}

/// Returns the reason for an error that concerns one device. Any other error fails the whole request.
pub(crate) fn refusal_reason(error: RegistryError) -> Result<RefusalReason, RegistryError> {
    match error {
        RegistryError::Device(DeviceError::RowsExhausted { .. }) => Ok(RefusalReason::Exhausted),
        RegistryError::Device(DeviceError::NoLease { .. }) => Ok(RefusalReason::NotHeld),
        RegistryError::Device(
            DeviceError::Revoked { .. } | DeviceError::Quarantined { .. } | DeviceError::UnknownDevice { .. },
        ) => Ok(RefusalReason::Inactive),
        RegistryError::Device(DeviceError::DamagedRecord { .. } | DeviceError::InvalidUnusedRows { .. }) => {
            Ok(RefusalReason::Damaged(error.to_string()))
        }
        other => Err(other),
    }
}
