//! Exit codes for the errors of data planes.

use linewarden_dataplane::DataPlaneError;

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
