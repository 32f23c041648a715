//! Errors as gRPC carries them (specification 10).

use prost::Message;
use prost_types::Any;
use tonic::{Code, Status};

use crate::arbitration::{Refusal, WriteRefusal};
use crate::error::EntityError;
use crate::proto::{google, v1};

impl From<EntityError> for Status {
    fn from(error: EntityError) -> Self {
        Self::new(error.code, error.message)
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let code = match &refusal {
            Refusal::NoSuchDevice { .. } => Code::NotFound,
            Refusal::DeviceChanged { .. } | Refusal::RoleChanged { .. } => Code::FailedPrecondition,
            Refusal::ElectionIdTaken(_) => Code::InvalidArgument,
            Refusal::TooManyStreams(_) | Refusal::TooManyRoles(_) => Code::ResourceExhausted,
        };
        Self::new(code, refusal.to_string())
    }
}

impl From<WriteRefusal> for Status {
    fn from(refusal: WriteRefusal) -> Self {
        let code = match &refusal {
            WriteRefusal::NoSuchDevice { .. } | WriteRefusal::NoSuchRole(_) => Code::NotFound,
            WriteRefusal::NotPrimary { .. } => Code::PermissionDenied,
        };
        Self::new(code, refusal.to_string())
    }
}

/// The status of a batch: OK, or UNKNOWN with one `p4.v1.Error` for each part of it, in order.
pub(super) fn of_batch(results: &[Result<(), EntityError>], what: &str) -> Result<(), Status> {
    let failed = results.iter().filter(|result| result.is_err()).count();
    if failed == 0 {
        return Ok(());
    }
    let message = format!(
        "{failed} of {} {what} failed; see the details for each",
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

/// A thread of the server's has ended before its work was done.
pub(super) fn broken(error: &tokio::task::JoinError) -> Status {
    Status::internal(format!("the switch could not finish this request: {error}"))
}
