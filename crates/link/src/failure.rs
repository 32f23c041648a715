//! Errors of requests.

use linewarden_types::LinkError;
use tonic::{Code, Status};

use crate::{DENIAL, LIMITED, OUTDATED, REPLACED, RESTORED, UNTRUSTED};

/// A response that is not a success.
pub(crate) enum Rejection {
    /// Any controller would respond in this way.
    Final(LinkError),
    /// The gateway has exceeded a limit of this controller. The connection is still usable.
    Limited(LinkError),
    /// A request with a higher number of abandoned requests was recorded.
    Outdated,
    /// Another controller may succeed. This controller may still process the request.
    Failed(LinkError),
}

impl Rejection {
    pub(crate) fn of(status: &Status) -> Self {
        let reason = status
            .metadata()
            .get(DENIAL)
            .and_then(|reason| reason.to_str().ok());
        let message = || status.message().to_owned();
        match reason {
            Some(REPLACED) => Self::Final(LinkError::Replaced(message())),
            Some(RESTORED) => Self::Final(LinkError::RegistryRestored(message())),
            Some(UNTRUSTED) => Self::Final(LinkError::Untrusted(message())),
            Some(OUTDATED) => Self::Outdated,
            Some(LIMITED) => Self::Limited(LinkError::failed("controller", message())),
            // The request or the caller is at fault.
            _ if matches!(status.code(), Code::InvalidArgument | Code::Unauthenticated) => {
                Self::Final(LinkError::failed("controller", message()))
            }
            // This controller is at fault. Another controller may use another database server.
            Some(_) => Self::Failed(LinkError::failed("controller", message())),
            None => Self::Failed(LinkError::failed(
                "controller",
                format!("{}: {}", status.code(), message()),
            )),
        }
    }
}

/// The error of a request that failed at this controller.
pub(crate) fn failed_at(controller: &str, reason: &str) -> LinkError {
    LinkError::Failed(format!("controller {controller}: {reason}"))
}

/// As [`failed_at`], with the messages of an error and its causes.
pub(crate) fn failed_with(controller: &str, error: &dyn std::error::Error) -> LinkError {
    failed_at(controller, &error_with_causes(error))
}

/// Returns the message of an error with its causes.
fn error_with_causes(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let cause_message = error.to_string();
        if !message.contains(&cause_message) {
            message = format!("{message}: {cause_message}");
        }
        cause = error.source();
    }
    message
}
