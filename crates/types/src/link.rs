//! The link of a gateway's process to its controller: registration, requests and their errors.

use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::call::{Call, ControllerRequest, ControllerResponse, Kind};

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

/// Identifies a process of a gateway: 16 random bytes that the process draws once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId(pub [u8; 16]);

/// The requests of one gateway process to its controller (LAP/1 1.4.6, 1.4.11). Each request may be repeated.
// The futures need not be Send: a gateway polls them on the thread that made the request.
#[async_trait(?Send)]
pub trait ControllerLink: Send + Sync {
    /// Sends a request. The response is of the request's kind.
    async fn send(&self, request: ControllerRequest) -> ControllerResponse;
}

impl dyn ControllerLink + '_ {
    /// Sends a request of a known kind.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn call<C: Call>(&self, call: C) -> Result<C::Response, LinkError> {
        let response = C::response(self.send(call.into()).await);
        response.unwrap_or_else(|| {
            Err(LinkError::failed(
                "controller",
                "response of another kind".to_owned(),
            ))
        })
    }
}

/// Sends requests under a registration that the caller provides.
#[async_trait(?Send)]
pub trait Transport: Send + Sync {
    /// Registers this process, unless it is registered, and returns its fencing token.
    async fn register(&self) -> Result<u64, LinkError>;

    /// Sends a request under the registration with this fencing token. The response is of the request's kind.
    async fn send(&self, fencing_token: u64, request: ControllerRequest) -> ControllerResponse;
}

/// Sends requests under the registration of this process.
///
/// The first request registers the process: later requests carry the fencing token of this registration, so a controller
/// rejects a process that was replaced. After [`LinkError::RegistryRestored`] the next request registers again.
#[derive(Debug)]
pub struct RegisteredLink<T> {
    transport: T,
    /// Fencing token of this process; `None` before the first request and after a restore of the registry.
    fencing_token: Mutex<Option<u64>>,
    /// Locked during a registration, so that concurrent requests wait for it instead of registering again.
    registering: tokio::sync::Mutex<()>,
}

impl<T: Transport> From<T> for RegisteredLink<T> {
    fn from(transport: T) -> Self {
        Self {
            transport,
            fencing_token: Mutex::default(),
            registering: tokio::sync::Mutex::default(),
        }
    }
}

impl<T: Transport> RegisteredLink<T> {
    fn fencing_token(&self) -> MutexGuard<'_, Option<u64>> {
        // The value is consistent at every moment, so a poisoned lock is usable.
        self.fencing_token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the fencing token; registers this process if it is not registered.
    async fn register(&self) -> Result<u64, LinkError> {
        let _registering = self.registering.lock().await;
        let current = *self.fencing_token();
        match current {
            Some(fencing_token) => Ok(fencing_token),
            None => {
                let fencing_token = self.transport.register().await?;
                Ok(*self.fencing_token().insert(fencing_token))
            }
        }
    }

    /// Returns the fencing token for a request of this kind.
    async fn token_for(&self, kind: Kind) -> Result<u64, LinkError> {
        let current = *self.fencing_token();
        match current {
            Some(fencing_token) => Ok(fencing_token),
            None if kind.registers() => self.register().await,
            None => Err(LinkError::failed(
                "controller",
                "gateway has not registered yet".to_owned(),
            )),
        }
    }
}

#[async_trait(?Send)]
impl<T: Transport> ControllerLink for RegisteredLink<T> {
    async fn send(&self, request: ControllerRequest) -> ControllerResponse {
        let kind = request.kind();
        let fencing_token = match (self.token_for(kind).await, kind) {
            (Ok(fencing_token), Kind::Register) => return ControllerResponse::Register(Ok(fencing_token)),
            (Ok(fencing_token), _) => fencing_token,
            (Err(error), _) => return kind.failed(error),
        };
        let response = self.transport.send(fencing_token, request).await;
        if matches!(response.error(), Some(LinkError::RegistryRestored(_))) {
            self.fencing_token().take_if(|current| *current == fencing_token);
        }
        if let Some(new_token) = response.new_fencing_token() {
            // Responses to concurrent requests arrive in any order.
            let mut current = self.fencing_token();
            *current = (*current).max(Some(new_token));
        }
        response
    }
}
