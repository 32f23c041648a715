//! Errors as gRPC statuses (specification 10).

use prost::Message;
use prost_types::Any;
use tonic::{Code, Status};

use crate::arbitration::{ArbitrationError, WriteError};
use crate::error::EntityError;
use crate::proto::{google, v1};

impl From<EntityError> for Status {
    fn from(error: EntityError) -> Self {
        Self::new(error.code, error.message)
    }
}

impl From<ArbitrationError> for Status {
    fn from(error: ArbitrationError) -> Self {
        let code = match &error {
            ArbitrationError::NoSuchDevice { .. } => Code::NotFound,
            ArbitrationError::DeviceChanged { .. } | ArbitrationError::RoleChanged { .. } => {
                Code::FailedPrecondition
            }
            ArbitrationError::ElectionIdTaken(_) => Code::InvalidArgument,
            ArbitrationError::TooManyStreams(_) | ArbitrationError::TooManyRoles(_) => {
                Code::ResourceExhausted
            }
        };
        Self::new(code, error.to_string())
    }
}

impl From<WriteError> for Status {
    fn from(error: WriteError) -> Self {
        let code = match &error {
            WriteError::NoSuchDevice { .. } | WriteError::NoSuchRole(_) => Code::NotFound,
            WriteError::NotPrimary { .. } => Code::PermissionDenied,
        };
        Self::new(code, error.to_string())
    }
}

/// Status of a batch: OK, or UNKNOWN with one `p4.v1.Error` for each item, in order.
pub(super) fn batch_status(results: &[Result<(), EntityError>], items: &str) -> Result<(), Status> {
    let failed = results.iter().filter(|result| result.is_err()).count();
    if failed == 0 {
        return Ok(());
    }
    let message = format!(
        "{failed} of {} {items} failed; the details list the result of each",
        results.len()
    );
    let status = google::rpc::Status {
        code: Code::Unknown.into(),
        message: message.clone(),
        details: results.iter().map(detail).collect(),
    };
    Err(Status::with_details(
        Code::Unknown,
        message,
        status.encode_to_vec().into(),
    ))
}

fn detail(result: &Result<(), EntityError>) -> Any {
    let error = match result {
        Ok(()) => v1::Error::default(),
        Err(error) => v1::Error {
            canonical_code: error.code.into(),
            message: error.message.clone(),
            ..Default::default()
        },
    };
    Any {
        type_url: "type.googleapis.com/p4.v1.Error".to_owned(),
        value: error.encode_to_vec(),
    }
}

/// Status for a blocking task that panicked.
pub(super) fn task_failed(error: &tokio::task::JoinError) -> Status {
    Status::internal(format!("request failed: task panicked: {error}"))
}
