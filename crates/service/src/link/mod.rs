//! The controller's end of the link: connections, and errors on the wire.

mod methods;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linewarden_controller::trust::TrustMemory;
use linewarden_controller::{
    Controller, Denial, Environment, Link, RequestObserver, Serve, ServeContext, VerifierSlot,
};
use linewarden_link::convert::Malformed;
use linewarden_link::proto::link_server::LinkServer;
use linewarden_link::{
    CONNECTION_BYTES, DENIAL, FAILED, MESSAGE_BYTES_MAX, MessageCall, OUTDATED, PeerGateway, REPLACED,
    RESTORED, RegisteredMessage as _, UNTRUSTED,
};
use linewarden_protocol::ids::GatewayId;
use linewarden_registry::{DatabaseError, FencingError, FencingToken, RegistryError};
use tonic::{Code, Request, Response, Status};

/// Receives events about gateways.
#[tonic::async_trait]
pub trait GatewayObserver: RequestObserver {
    /// A gateway has registered and received this fencing token.
    fn gateway_registered(&self, gateway: GatewayId, fencing_token: u64, version: &str);
    /// The newest process of the gateway has sent a request.
    fn gateway_seen(&self, gateway: GatewayId);
    /// Returns the trust memory that the gateway's previous controller has stored.
    ///
    /// # Errors
    /// A failure of the database.
    async fn load_trust_memory(&self, gateway: GatewayId) -> Result<Option<TrustMemory>, RegistryError>;
}

/// Serves gateways. Cloning is cheap.
#[derive(Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

struct Inner {
    controller: Controller,
    environment: Box<dyn Environment>,
    observer: Box<dyn GatewayObserver>,
    connections: Mutex<HashMap<GatewayId, Connection>>,
}

/// State of a gateway's connection.
#[derive(Default)]
struct Connection {
    id: Vec<u8>,
    /// The highest position of a request that was served.
    highest_position: (u64, u64),
    /// The position whose number of abandoned requests is recorded in the registry.
    recorded_position: (u64, u64),
    verifier: VerifierSlot,
}

impl Server {
    /// Creates a server over this controller.
    pub fn new(
        controller: Controller,
        environment: impl Environment + 'static,
        observer: impl GatewayObserver + 'static,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                controller,
                environment: Box::new(environment),
                observer: Box::new(observer),
                connections: Mutex::default(),
            }),
        }
    }

    /// Returns the gRPC service, with this maximum message length. Each request must have a [`PeerGateway`] among its
    /// extensions.
    #[must_use]
    pub fn into_service(self, message_bytes_max: usize) -> LinkServer<Self> {
        LinkServer::new(self)
            .max_decoding_message_size(message_bytes_max)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<GatewayId, Connection>> {
        // The map is consistent at every moment, so a poisoned lock is usable.
        self.inner
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the connection of a request. A new connection discards the state of the previous connection, after the
    /// fencing token was verified: an unverified token must not discard the state of the newest process. A late request
    /// of an earlier connection does not replace the current connection.
    async fn accept_connection(&self, id: &[u8], fencing_token: FencingToken) -> Result<(), Status> {
        check_connection_id(id)?;
        let gateway = fencing_token.gateway();
        let is_new = |connection: &Connection| {
            connection.id != id && position(fencing_token) >= connection.highest_position
        };
        if !self.connections().get(&gateway).is_none_or(is_new) {
            return Ok(());
        }
        self.verify_registration(&self.inner.controller.link(fencing_token))
            .await?;
        // The trust memory is loaded before any request on this connection is served.
        let memory = match self.inner.controller.requires_evidence(gateway) {
            true => self.inner.observer.load_trust_memory(gateway).await,
            false => Ok(None),
        };
        let memory = memory.map_err(|error| self.denial_to_status(error))?;
        let mut connections = self.connections();
        let connection = connections.entry(gateway).or_default();
        if is_new(connection) {
            *connection = Connection {
                id: id.to_vec(),
                highest_position: connection.highest_position,
                recorded_position: connection.recorded_position,
                ..Connection::default()
            };
            // The trust state is restarted in the same critical section, so no request sees the new connection with the
            // trust state of the previous connection.
            self.inner.controller.restart_trust(gateway, memory);
        }
        Ok(())
    }

    /// Rejects a process that was replaced, and a gateway that was revoked. The check costs two queries, each of one
    /// database row. A process whose token is stale because its gateway became untrusted passes, so that the process can
    /// receive the new token.
    async fn verify_registration(&self, link: &Link) -> Result<(), Status> {
        match link.verify_registration().await {
            Err(error) if !self.inner.controller.is_stale_through_distrust(&error) => {
                Err(self.denial_to_status(error))
            }
            _ => Ok(()),
        }
    }

    /// Records the position of a request that was served.
    fn record_position(&self, fencing_token: FencingToken) {
        if let Some(connection) = self.connections().get_mut(&fencing_token.gateway()) {
            connection.highest_position = connection.highest_position.max(position(fencing_token));
        }
    }

    /// Records the number of abandoned requests of this request, unless the registry has it. A process whose token is stale
    /// because its gateway became untrusted passes, so that the process can receive the new token.
    async fn record_abandoned_requests(&self, link: &Link) -> Result<(), Status> {
        let fencing_token = *link.fencing_token();
        let recorded_position = self
            .connections()
            .get(&fencing_token.gateway())
            .map_or((0, 0), |connection| connection.recorded_position);
        if fencing_token.abandoned_requests() == 0 || position(fencing_token) == recorded_position {
            return Ok(());
        }
        match link.record_abandoned_requests().await {
            Ok(()) => {
                if let Some(connection) = self.connections().get_mut(&fencing_token.gateway()) {
                    connection.recorded_position = connection.recorded_position.max(position(fencing_token));
                }
                Ok(())
            }
            Err(error) if self.inner.controller.is_stale_through_distrust(&error) => Ok(()),
            Err(error) => Err(self.denial_to_status(error)),
        }
    }

    /// Serves a request under its registration. A replaced process and a revoked gateway do not count as seen.
    async fn serve<C: MessageCall + Serve>(
        &self,
        request: Request<C::RequestMessage>,
    ) -> Result<Response<C::ResponseMessage>, Status> {
        let gateway = peer_gateway(&request)?;
        let message = request.into_inner();
        let registration = message.registration().ok_or(Malformed("no registration"))?;
        // Ages in the request grow from here on.
        let now_ns = self.inner.environment.timestamps().now_ns;
        self.inner.controller.advance_time(now_ns);
        let fencing_token = FencingToken::presented(
            gateway,
            registration.fencing_token,
            registration.abandoned_requests,
        );
        self.accept_connection(&registration.connection_id, fencing_token)
            .await?;
        let link = self.inner.controller.link(fencing_token);
        if C::KIND.records_abandoned_requests() {
            self.record_abandoned_requests(&link).await?;
        }
        let result = self.respond::<C>(link, message, now_ns).await;
        if result.is_ok() {
            self.record_position(fencing_token);
        }
        // A malformed message is rejected before its registration is checked.
        let may_be_unregistered =
            |status: &Status| is_replaced(status) || status.code() == Code::InvalidArgument;
        if !result.as_ref().is_err_and(may_be_unregistered) {
            self.inner.observer.gateway_seen(gateway);
        }
        Ok(Response::new(result?))
    }

    /// Decodes and serves a request, and encodes the response.
    async fn respond<C: MessageCall + Serve>(
        &self,
        link: Link,
        message: C::RequestMessage,
        now_ns: u64,
    ) -> Result<C::ResponseMessage, Status> {
        let call = C::decode(message, now_ns)?;
        let gateway = link.gateway();
        let verifier = || match self.connections().get(&gateway) {
            Some(connection) => VerifierSlot::clone(&connection.verifier),
            None => VerifierSlot::default(),
        };
        let context = ServeContext {
            environment: &*self.inner.environment,
            observer: &*self.inner.observer,
            verifier: &verifier,
        };
        let response = call.serve(link, &context).await;
        let response = response.map_err(|denial| self.denial_to_status(denial))?;
        Ok(C::encode_response(&response))
    }

    fn denial_to_status(&self, error: impl Into<Denial>) -> Status {
        let denial = error.into();
        let (reason, code) = match &denial {
            Denial::Untrusted { .. } | Denial::EvidenceRejected(_) => (UNTRUSTED, Code::FailedPrecondition),
            Denial::NoRandomBytes | Denial::ConnectionReplaced => (FAILED, Code::Unavailable),
            Denial::Registry(error @ RegistryError::Fencing(FencingError::StaleFencingToken { .. })) => {
                match self.inner.controller.is_stale_through_distrust(error) {
                    true => (UNTRUSTED, Code::FailedPrecondition),
                    false => (REPLACED, Code::FailedPrecondition),
                }
            }
            Denial::Registry(RegistryError::Fencing(FencingError::RegistryRestored { .. })) => {
                (RESTORED, Code::FailedPrecondition)
            }
            Denial::Registry(RegistryError::Fencing(FencingError::GatewayRevoked { .. })) => {
                (REPLACED, Code::PermissionDenied)
            }
            Denial::Registry(RegistryError::Fencing(FencingError::OutdatedRequest { .. })) => {
                (OUTDATED, Code::Aborted)
            }
            Denial::Registry(RegistryError::Database(
                DatabaseError::Unreachable(_) | DatabaseError::Locked | DatabaseError::DiskFull,
            )) => (FAILED, Code::Unavailable),
            Denial::Registry(_) => (FAILED, Code::Internal),
        };
        denial_status(code, denial.to_string(), reason)
    }
}

/// The position of a request in the order of its gateway's requests: the number of the fencing token, and the number of
/// abandoned requests.
fn position(fencing_token: FencingToken) -> (u64, u64) {
    (fencing_token.number(), fencing_token.abandoned_requests())
}

fn check_connection_id(id: &[u8]) -> Result<(), Malformed> {
    match id.len() {
        CONNECTION_BYTES => Ok(()),
        _ => Err(Malformed("connection id of a wrong length")),
    }
}

fn peer_gateway<M>(request: &Request<M>) -> Result<GatewayId, Status> {
    match request.extensions().get::<PeerGateway>() {
        Some(PeerGateway(gateway)) => Ok(*gateway),
        None => Err(Status::unauthenticated(
            "certificate names no gateway: expected one urn:linewarden:gateway:N",
        )),
    }
}

fn is_replaced(status: &Status) -> bool {
    status
        .metadata()
        .get(DENIAL)
        .is_some_and(|reason| reason == REPLACED)
}

pub(crate) fn denial_status(code: Code, message: String, reason: &'static str) -> Status {
    let mut status = Status::new(code, message);
    status
        .metadata_mut()
        .insert(DENIAL, tonic::metadata::MetadataValue::from_static(reason));
    status
}
