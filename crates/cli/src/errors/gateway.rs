//! Exit codes for the errors of gateways and data planes.

use linewarden_dataplane::DataPlaneError;
use linewarden_gateway::data_plane::RemoveGateError;
use linewarden_gateway::{GatewayError, TicketRelayError};

use crate::failure::Failure;

impl From<DataPlaneError> for Failure {
    fn from(error: DataPlaneError) -> Self {
        match error {
            DataPlaneError::Privilege { .. } => Self::privilege(error),
            DataPlaneError::Config(_) => Self::input(error),
            other => Self::failed(other),
        }
    }
}

impl From<RemoveGateError> for Failure {
    fn from(error: RemoveGateError) -> Self {
        match error {
            RemoveGateError::Interface(error) => Self::input(error),
            RemoveGateError::DataPlane(error) => error.into(),
        }
    }
}

impl From<GatewayError> for Failure {
    fn from(error: GatewayError) -> Self {
        Self::failed(error)
    }
}

impl From<TicketRelayError> for Failure {
    fn from(error: TicketRelayError) -> Self {
        Self::failed(error)
    }
}
