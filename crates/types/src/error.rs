//! Errors of requests to a controller.

/// The reason why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// A failure, described by the text; the request can be retried.
    #[error("{0}")]
    Failed(String),
    /// The gateway's evidence is missing or was not affirmed.
    #[error("{0}")]
    Untrusted(String),
    /// Another process has registered as this gateway, or the gateway was revoked. This process must send no replies.
    #[error("{0}")]
    Replaced(String),
    /// The registry was restored to an earlier state after this process registered. The leases are void, and the
    /// process registers again.
    #[error("{0}")]
    RegistryRestored(String),
}

impl LinkError {
    /// Creates the error of a failed request. `party` could not complete the request: `controller` or `registry`.
    #[must_use]
    pub fn failed(party: &str, error: String) -> Self {
        match error.starts_with(party) {
            true => Self::Failed(error),
            false => Self::Failed(format!("{party}: {error}")),
        }
    }
}
