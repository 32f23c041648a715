//! The link of a gateway's process to its controller: registration and requests.

use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::call::{Call, ControllerRequest, ControllerResponse, Kind};
use crate::error::LinkError;

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
        // The senders of the other requests do not handle a restore. The registration stays, so that the next request of the
        // node also gets the error.
        if kind.registers() && matches!(response.error(), Some(LinkError::RegistryRestored(_))) {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;
    use crate::{
        Changes, GatewayTrustState, ListChanges, RelayTicket, ReportStatus, Revision, StatusReport,
        TrustStatus,
    };

    /// A registry that was restored after the registrations up to `restored_after`.
    #[derive(Default)]
    struct Registry {
        registrations: AtomicU64,
        restored_after: AtomicU64,
        new_token: Option<u64>,
    }

    #[async_trait(?Send)]
    impl Transport for Registry {
        async fn register(&self) -> Result<u64, LinkError> {
            Ok(self.registrations.fetch_add(1, SeqCst) + 1)
        }

        async fn send(&self, fencing_token: u64, request: ControllerRequest) -> ControllerResponse {
            if fencing_token <= self.restored_after.load(SeqCst) {
                return request
                    .kind()
                    .failed(LinkError::RegistryRestored("restored".to_owned()));
            }
            match request {
                ControllerRequest::ListChanges(_) => ControllerResponse::ListChanges(Ok((
                    Changes {
                        changes: Vec::new(),
                        newer_sessions: Vec::new(),
                        up_to_revision: Revision(fencing_token),
                        has_more: false,
                    },
                    self.new_token.map(|number| TrustStatus {
                        nonce: None,
                        state: GatewayTrustState::Unproven,
                        fencing_token: Some(number),
                    }),
                ))),
                request => request.kind().failed(LinkError::Failed("not served".to_owned())),
            }
        }
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(future)
    }

    const ALL: ListChanges = ListChanges {
        since: Revision::ZERO,
    };

    /// Reads the changes; returns the fencing token of the request.
    fn token_of_read(link: &dyn ControllerLink) -> Result<u64, LinkError> {
        run(link.call(ALL)).map(|(changes, _)| changes.up_to_revision.0)
    }

    fn reports(link: &dyn ControllerLink) -> [LinkError; 2] {
        let ticket = RelayTicket {
            message: Vec::new(),
            location: None,
        };
        [
            run(link.call(ReportStatus(StatusReport::default()))).unwrap_err(),
            run(link.call(ticket)).unwrap_err(),
        ]
    }

    /// Otherwise, the node would continue with leases that the registry does not have any more.
    #[test]
    fn only_a_request_of_the_node_ends_the_registration_after_a_restore() {
        let link = RegisteredLink::from(Registry::default());
        for error in reports(&link) {
            assert!(error.to_string().contains("not registered yet"), "{error}");
        }
        assert_eq!(token_of_read(&link), Ok(1));
        assert_eq!(token_of_read(&link), Ok(1), "the process registers once");
        link.transport.restored_after.store(1, SeqCst);
        for error in reports(&link) {
            assert!(matches!(error, LinkError::RegistryRestored(_)), "{error}");
        }
        let restored = token_of_read(&link).unwrap_err();
        assert!(matches!(restored, LinkError::RegistryRestored(_)), "{restored}");
        assert_eq!(token_of_read(&link), Ok(2), "registered again");
    }

    #[test]
    fn the_newest_fencing_token_is_used() {
        for (new_token, next) in [(None, 1), (Some(5), 5), (Some(0), 1)] {
            let link = RegisteredLink::from(Registry {
                new_token,
                ..Registry::default()
            });
            assert_eq!(token_of_read(&link), Ok(1));
            assert_eq!(token_of_read(&link), Ok(next), "{new_token:?}");
        }
    }
}
