//! Rejected requests of gateways, and devices that get no rows.

use linewarden_protocol::ids::GatewayId;
use linewarden_registry::{DeviceError, FencingError, RegistryError};
use linewarden_types::{LinkError, RefusalReason};

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
}

impl From<Denial> for LinkError {
    fn from(denial: Denial) -> Self {
        match denial {
            Denial::Untrusted { .. } => Self::Untrusted(denial.to_string()),
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
