//! Errors of single entities.

use std::error::Error as StdError;

use thiserror::Error;
pub use tonic::Code;
use tonic::Status;

/// Error of one update or one read request: a `p4.v1.Error` (specification 10).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct EntityError {
    /// Status code; the specification prescribes the code for most cases.
    pub code: Code,
    /// Message for a person: problem and remedy.
    pub message: String,
}

impl EntityError {
    /// Creates an error with this code.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// INVALID_ARGUMENT: the request contradicts the P4Info or itself.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    /// NOT_FOUND: the entity does not exist.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Code::NotFound, message)
    }

    /// ALREADY_EXISTS: the entity exists.
    pub fn already_exists(message: impl Into<String>) -> Self {
        Self::new(Code::AlreadyExists, message)
    }

    /// OUT_OF_RANGE: a value or index exceeds its type or array.
    pub fn out_of_range(message: impl Into<String>) -> Self {
        Self::new(Code::OutOfRange, message)
    }

    /// PERMISSION_DENIED: the program does not allow the operation.
    pub fn denied(message: impl Into<String>) -> Self {
        Self::new(Code::PermissionDenied, message)
    }

    /// RESOURCE_EXHAUSTED: no capacity is left.
    pub fn exhausted(message: impl Into<String>) -> Self {
        Self::new(Code::ResourceExhausted, message)
    }

    /// FAILED_PRECONDITION: another operation is required first.
    pub fn precondition(message: impl Into<String>) -> Self {
        Self::new(Code::FailedPrecondition, message)
    }

    /// UNIMPLEMENTED: the target does not support the operation.
    pub fn unimplemented(message: impl Into<String>) -> Self {
        Self::new(Code::Unimplemented, message)
    }

    /// Prefixes the message with the location of the error.
    pub fn at(mut self, location: impl std::fmt::Display) -> Self {
        self.message = format!("{location}: {}", self.message);
        self
    }
}

impl From<crate::bytes::BytesError> for EntityError {
    fn from(error: crate::bytes::BytesError) -> Self {
        Self::out_of_range(error.to_string())
    }
}

/// Joins the messages of all sources of an error, outermost first; returns the message of the error itself if it has no
/// source. tonic itself reports only "transport error" for most errors.
pub(crate) fn causes(error: &dyn StdError) -> String {
    let mut messages: Vec<String> = Vec::new();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        // Some errors repeat the text of their source.
        if message != "transport error" && !messages.iter().any(|earlier| earlier.contains(&message)) {
            messages.push(message);
        }
        cause = error.source();
    }
    match messages.is_empty() {
        true => error.to_string(),
        false => messages.join(": "),
    }
}

/// Whether the client created the status because the connection was lost. The server did not send this status.
pub(crate) fn is_connection_error(status: &Status) -> bool {
    status.source().is_some()
}
