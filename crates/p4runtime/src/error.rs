//! Why something about one entity was refused.

use std::error::Error as StdError;

use thiserror::Error;
pub use tonic::Code;
use tonic::Status;

/// What becomes of one update or one request that cannot be carried out: a `p4.v1.Error` (specification 10).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct EntityError {
    /// The kind of error, which the specification prescribes for most cases.
    pub code: Code,
    /// What is wrong and what to do, for a person.
    pub message: String,
}

impl EntityError {
    /// An error of this kind.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// The request contradicts P4Info or itself.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    /// There is no such entity.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Code::NotFound, message)
    }

    /// There is such an entity already.
    pub fn already_exists(message: impl Into<String>) -> Self {
        Self::new(Code::AlreadyExists, message)
    }

    /// A value or index is beyond what its type or array has.
    pub fn out_of_range(message: impl Into<String>) -> Self {
        Self::new(Code::OutOfRange, message)
    }

    /// The program does not allow it.
    pub fn denied(message: impl Into<String>) -> Self {
        Self::new(Code::PermissionDenied, message)
    }

    /// There is no room.
    pub fn exhausted(message: impl Into<String>) -> Self {
        Self::new(Code::ResourceExhausted, message)
    }

    /// Something else has to be done before.
    pub fn precondition(message: impl Into<String>) -> Self {
        Self::new(Code::FailedPrecondition, message)
    }

    /// The target cannot do it.
    pub fn unimplemented(message: impl Into<String>) -> Self {
        Self::new(Code::Unimplemented, message)
    }

    /// The same, with the place put before the message.
    pub fn at(mut self, place: impl std::fmt::Display) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }
}

impl From<crate::bytes::BytesError> for EntityError {
    fn from(error: crate::bytes::BytesError) -> Self {
        Self::out_of_range(error.to_string())
    }
}

/// What lies behind an error, from the outside in: "transport error" is all that tonic itself says of most.
pub(crate) fn causes(error: &dyn StdError) -> String {
    let mut said: Vec<String> = Vec::new();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        // Some repeat what is behind them.
        if words != "transport error" && !said.iter().any(|before| before.contains(&words)) {
            said.push(words);
        }
        cause = error.source();
    }
    match said.is_empty() {
        true => error.to_string(),
        false => said.join(": "),
    }
}

/// Whether a status was made at this end, because the connection broke, and not by the server.
pub(crate) fn is_of_connection(status: &Status) -> bool {
    status.source().is_some()
}
