//! Evidence service of a switch, next to P4Runtime: `proto/linewarden/evidence/v1.proto`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::Semaphore;
use tokio_stream::Stream;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::error::{causes, is_connection_error};
use crate::proto::linewarden::evidence::v1;
use linewarden_tls::{ClientTls, endpoint};
use v1::attest_response::Piece;
use v1::evidence_client::EvidenceClient;
use v1::evidence_server::{Evidence, EvidenceServer};

pub use v1::DigestsResponse as Digests;

/// Length of a nonce, bytes.
pub const NONCE_BYTES: usize = 32;
/// Maximum bytes of an inventory in one message: below gRPC's default limit of 4 MiB.
const INVENTORY_CHUNK_BYTES: usize = 1 << 20;
/// Default maximum length of an inventory that a client accepts, bytes.
const INVENTORY_BYTES_MAX: usize = 1 << 30;
/// Maximum length of a message that a client accepts, bytes; a statement is one message.
const RESPONSE_BYTES_MAX: usize = 32 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Reason why a switch provides no evidence, for the client.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct EvidenceUnavailable(pub String);

/// Evidence of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedEvidence {
    /// Statement: COSE_Sign1 over EAT claims.
    pub statement: Vec<u8>,
    /// Inventory of all entries, if the client requested one.
    pub inventory: Option<Vec<u8>>,
}

/// Entries to list in an inventory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum InventoryScope {
    /// No inventory.
    #[default]
    None,
    /// Entries of all objects except these, each as CLASS:NAME.
    AllExcept(Vec<String>),
}

impl InventoryScope {
    /// Entries of all objects.
    pub const ALL: Self = Self::AllExcept(Vec::new());
}

/// Source of evidence: a switch. Both methods may block.
pub trait EvidenceSource: Send + Sync + 'static {
    /// Returns the current digests.
    ///
    /// # Errors
    /// The switch provides no evidence.
    fn digests(&self) -> Result<Digests, EvidenceUnavailable>;

    /// Returns a signed statement.
    ///
    /// # Errors
    /// The switch provides no evidence, or has no signing key.
    fn attest(
        &self,
        nonce: [u8; NONCE_BYTES],
        inventory_scope: InventoryScope,
    ) -> Result<SignedEvidence, EvidenceUnavailable>;
}

struct Server<S> {
    source: Arc<S>,
    /// Runs requests one at a time: a statement costs a signature, and an inventory needs as much memory as the tables.
    permit: Arc<Semaphore>,
}

/// Creates the gRPC service for a server that also serves P4Runtime.
pub fn service<S: EvidenceSource>(source: Arc<S>) -> EvidenceServer<impl Evidence> {
    let permit = Arc::new(Semaphore::new(1));
    EvidenceServer::new(Server { source, permit })
}

impl<S: EvidenceSource> Server<S> {
    async fn run_blocking<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&S) -> Result<T, EvidenceUnavailable> + Send + 'static,
    ) -> Result<T, Status> {
        let permit = Arc::clone(&self.permit).acquire_owned().await;
        let permit = permit.map_err(|_| Status::unavailable("server is shutting down"))?;
        let source = Arc::clone(&self.source);
        // The task holds the permit until it finishes, even if the client has disconnected.
        let result = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            operation(&source)
        })
        .await;
        result
            .map_err(|error| Status::internal(error.to_string()))?
            .map_err(|EvidenceUnavailable(reason)| Status::failed_precondition(reason))
    }
}

#[tonic::async_trait]
impl<S: EvidenceSource> Evidence for Server<S> {
    type AttestStream = std::pin::Pin<Box<dyn Stream<Item = Result<v1::AttestResponse, Status>> + Send>>;

    async fn digests(&self, _: Request<v1::DigestsRequest>) -> Result<Response<Digests>, Status> {
        self.run_blocking(S::digests).await.map(Response::new)
    }

    async fn attest(
        &self,
        request: Request<v1::AttestRequest>,
    ) -> Result<Response<Self::AttestStream>, Status> {
        let v1::AttestRequest {
            nonce,
            with_inventory,
            excluded_objects,
        } = request.into_inner();
        let nonce = <[u8; NONCE_BYTES]>::try_from(nonce.as_slice()).map_err(|_| {
            Status::invalid_argument(format!("nonce has {} bytes: expected {NONCE_BYTES}", nonce.len()))
        })?;
        let inventory_scope = match with_inventory {
            true => InventoryScope::AllExcept(excluded_objects),
            false => InventoryScope::None,
        };
        let evidence = self
            .run_blocking(move |source| source.attest(nonce, inventory_scope))
            .await?;
        let inventory = evidence.inventory.unwrap_or_default();
        let mut pieces = vec![Piece::Statement(evidence.statement)];
        pieces.extend(
            inventory
                .chunks(INVENTORY_CHUNK_BYTES)
                .map(|piece| Piece::Inventory(piece.to_vec())),
        );
        let messages = pieces
            .into_iter()
            .map(|piece| Ok(v1::AttestResponse { piece: Some(piece) }));
        Ok(Response::new(Box::pin(tokio_stream::iter(messages))))
    }
}

/// Failure of a request for evidence.
#[derive(Debug, Error)]
pub enum EvidenceClientError {
    /// The connection could not be established.
    #[error("connection to the switch failed: {}", causes(.0))]
    Unreachable(#[from] tonic::transport::Error),
    /// The connection was lost, possibly during the handshake: a TLS server closes connections of clients
    /// without a certificate.
    #[error("connection to the switch was lost: {}", causes(.0))]
    ConnectionLost(Box<Status>),
    /// The switch rejected the request.
    #[error("evidence request rejected by the switch: {}: {}", .0.code(), .0.message())]
    Rejected(#[from] Box<Status>),
    /// The response is malformed.
    #[error("invalid response from the switch: {0}")]
    InvalidResponse(&'static str),
}

impl From<Status> for EvidenceClientError {
    fn from(status: Status) -> Self {
        match is_connection_error(&status) {
            true => Self::ConnectionLost(Box::new(status)),
            false => Self::Rejected(Box::new(status)),
        }
    }
}

/// Client of the evidence service of one switch.
#[derive(Clone, Debug)]
pub struct Client {
    rpc: EvidenceClient<Channel>,
    inventory_bytes_max: usize,
}

impl Client {
    /// Connects; without a TLS configuration the connection is unencrypted.
    ///
    /// # Errors
    /// The connection failed, or the certificate of the switch is not trusted.
    pub async fn connect(address: SocketAddr, tls: Option<&ClientTls>) -> Result<Self, EvidenceClientError> {
        let endpoint = endpoint(&address.to_string(), tls)?;
        let channel = endpoint.connect_timeout(CONNECT_TIMEOUT).connect().await?;
        let client = EvidenceClient::new(channel).max_decoding_message_size(RESPONSE_BYTES_MAX);
        Ok(Self {
            rpc: client,
            inventory_bytes_max: INVENTORY_BYTES_MAX,
        })
    }

    /// Limits the length of an accepted inventory.
    #[must_use]
    pub fn with_inventory_max(self, bytes: usize) -> Self {
        Self {
            inventory_bytes_max: bytes,
            ..self
        }
    }

    /// Requests the current digests. The digests are not signed.
    ///
    /// # Errors
    /// The switch provides no evidence.
    pub async fn digests(&mut self) -> Result<Digests, EvidenceClientError> {
        Ok(self.rpc.digests(v1::DigestsRequest {}).await?.into_inner())
    }

    /// Requests a statement with this nonce. The statement is not verified.
    ///
    /// # Errors
    /// The switch provides no evidence.
    pub async fn attest(
        &mut self,
        nonce: [u8; NONCE_BYTES],
        inventory_scope: InventoryScope,
    ) -> Result<SignedEvidence, EvidenceClientError> {
        let (with_inventory, excluded_objects) = match inventory_scope {
            InventoryScope::None => (false, Vec::new()),
            InventoryScope::AllExcept(excluded_objects) => (true, excluded_objects),
        };
        let request = v1::AttestRequest {
            nonce: nonce.to_vec(),
            with_inventory,
            excluded_objects,
        };
        let mut pieces = self.rpc.attest(request).await?.into_inner();
        let first = pieces.message().await?.and_then(|message| message.piece);
        let Some(Piece::Statement(statement)) = first else {
            return Err(EvidenceClientError::InvalidResponse(
                "first message is not a statement",
            ));
        };
        let mut inventory = Vec::new();
        while let Some(message) = pieces.message().await? {
            let Some(Piece::Inventory(piece)) = message.piece else {
                return Err(EvidenceClientError::InvalidResponse("more than one statement"));
            };
            if inventory.len() + piece.len() > self.inventory_bytes_max {
                return Err(EvidenceClientError::InvalidResponse(
                    "inventory exceeds the maximum length",
                ));
            }
            inventory.extend_from_slice(&piece);
        }
        Ok(SignedEvidence {
            statement,
            inventory: with_inventory.then_some(inventory),
        })
    }
}
