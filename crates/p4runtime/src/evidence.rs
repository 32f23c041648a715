//! Evidence of a switch, served beside P4Runtime: `proto/linewarden/evidence/v1.proto`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::Semaphore;
use tokio_stream::Stream;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::error::{causes, is_of_connection};
use crate::proto::linewarden::evidence::v1;
use linewarden_tls::{ClientTls, endpoint};
use v1::attest_response::Piece;
use v1::evidence_client::EvidenceClient;
use v1::evidence_server::{Evidence, EvidenceServer};

pub use v1::DigestsResponse as Digests;

/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 32;
/// Bytes of an inventory in one message: below gRPC's usual 4 MiB.
const PIECE_BYTES: usize = 1 << 20;
/// The longest inventory that a client takes, unless it says less.
const INVENTORY_BYTES_MAX: usize = 1 << 30;
/// The longest message that a client takes: a statement is one.
const ANSWER_BYTES_MAX: usize = 32 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a switch gives no evidence, for the one who asks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct NoEvidence(pub String);

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attested {
    /// COSE_Sign1 over EAT claims.
    pub statement: Vec<u8>,
    /// What names entries, where it was asked for.
    pub inventory: Option<Vec<u8>>,
}

/// Which entries an inventory names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Listing {
    /// None: no inventory is asked for.
    #[default]
    Nothing,
    /// Those of all objects but these, each as CLASS:NAME.
    AllBut(Vec<String>),
}

impl Listing {
    /// Every entry.
    pub const ALL: Self = Self::AllBut(Vec::new());
}

/// A switch that gives evidence. Both calls may block.
pub trait Source: Send + Sync + 'static {
    /// The digests as they are now.
    ///
    /// # Errors
    /// There is no evidence.
    fn digests(&self) -> Result<Digests, NoEvidence>;

    /// A signed statement.
    ///
    /// # Errors
    /// There is no evidence, or no key.
    fn attest(&self, nonce: [u8; NONCE_BYTES], listing: Listing) -> Result<Attested, NoEvidence>;
}

struct Server<S> {
    source: Arc<S>,
    /// One at a time: each costs a signature, and an inventory as much memory as the tables.
    turn: Arc<Semaphore>,
}

/// The gRPC service, for a server that serves P4Runtime too.
pub fn service<S: Source>(source: Arc<S>) -> EvidenceServer<impl Evidence> {
    let turn = Arc::new(Semaphore::new(1));
    EvidenceServer::new(Server { source, turn })
}

impl<S: Source> Server<S> {
    async fn ask<T: Send + 'static>(
        &self,
        what: impl FnOnce(&S) -> Result<T, NoEvidence> + Send + 'static,
    ) -> Result<T, Status> {
        let turn = Arc::clone(&self.turn).acquire_owned().await;
        let turn = turn.map_err(|_| Status::unavailable("the server ends"))?;
        let source = Arc::clone(&self.source);
        // The turn ends with the work, also where the one who asked has gone.
        let asked = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            what(&source)
        })
        .await;
        asked
            .map_err(|error| Status::internal(error.to_string()))?
            .map_err(|NoEvidence(why)| Status::failed_precondition(why))
    }
}

#[tonic::async_trait]
impl<S: Source> Evidence for Server<S> {
    type AttestStream = std::pin::Pin<Box<dyn Stream<Item = Result<v1::AttestResponse, Status>> + Send>>;

    async fn digests(&self, _: Request<v1::DigestsRequest>) -> Result<Response<Digests>, Status> {
        self.ask(S::digests).await.map(Response::new)
    }

    async fn attest(
        &self,
        request: Request<v1::AttestRequest>,
    ) -> Result<Response<Self::AttestStream>, Status> {
        let v1::AttestRequest {
            nonce,
            with_inventory,
            without,
        } = request.into_inner();
        let nonce = <[u8; NONCE_BYTES]>::try_from(nonce.as_slice()).map_err(|_| {
            Status::invalid_argument(format!("a nonce of {} bytes: it has {NONCE_BYTES}", nonce.len()))
        })?;
        let listing = match with_inventory {
            true => Listing::AllBut(without),
            false => Listing::Nothing,
        };
        let attested = self.ask(move |source| source.attest(nonce, listing)).await?;
        let inventory = attested.inventory.unwrap_or_default();
        let mut pieces = vec![Piece::Statement(attested.statement)];
        pieces.extend(
            inventory
                .chunks(PIECE_BYTES)
                .map(|piece| Piece::Inventory(piece.to_vec())),
        );
        let messages = pieces
            .into_iter()
            .map(|piece| Ok(v1::AttestResponse { piece: Some(piece) }));
        Ok(Response::new(Box::pin(tokio_stream::iter(messages))))
    }
}

/// Why a client got no evidence.
#[derive(Debug, Error)]
pub enum AskError {
    /// The switch cannot be reached.
    #[error("the switch cannot be reached: {}", causes(.0))]
    Unreachable(#[from] tonic::transport::Error),
    /// The connection broke, maybe before it was any use: a server with TLS turns clients away that have no certificate.
    #[error("the connection to the switch broke: {}", causes(.0))]
    Broken(Box<Status>),
    /// It refused.
    #[error("the switch gives no evidence: {}: {}", .0.code(), .0.message())]
    Refused(#[from] Box<Status>),
    /// Its answer is not one.
    #[error("the switch's answer {0}")]
    Answer(&'static str),
}

impl From<Status> for AskError {
    fn from(status: Status) -> Self {
        match is_of_connection(&status) {
            true => Self::Broken(Box::new(status)),
            false => Self::Refused(Box::new(status)),
        }
    }
}

/// Asks one switch for evidence.
#[derive(Clone, Debug)]
pub struct Client {
    rpc: EvidenceClient<Channel>,
    inventory_bytes_max: usize,
}

impl Client {
    /// Connects; without a TLS configuration in the clear.
    ///
    /// # Errors
    /// The switch cannot be reached, or shows no certificate that is believed.
    pub async fn connect(address: SocketAddr, tls: Option<&ClientTls>) -> Result<Self, AskError> {
        let endpoint = endpoint(&address.to_string(), tls)?;
        let channel = endpoint.connect_timeout(CONNECT_TIMEOUT).connect().await?;
        let client = EvidenceClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        Ok(Self {
            rpc: client,
            inventory_bytes_max: INVENTORY_BYTES_MAX,
        })
    }

    /// Takes no longer inventory.
    #[must_use]
    pub fn with_inventory_max(self, bytes: usize) -> Self {
        Self {
            inventory_bytes_max: bytes,
            ..self
        }
    }

    /// The digests as they are now; nothing proves them.
    ///
    /// # Errors
    /// The switch gives none.
    pub async fn digests(&mut self) -> Result<Digests, AskError> {
        Ok(self.rpc.digests(v1::DigestsRequest {}).await?.into_inner())
    }

    /// A statement with this nonce. Nothing of it is verified yet.
    ///
    /// # Errors
    /// The switch gives none.
    pub async fn attest(&mut self, nonce: [u8; NONCE_BYTES], listing: Listing) -> Result<Attested, AskError> {
        let (with_inventory, without) = match listing {
            Listing::Nothing => (false, Vec::new()),
            Listing::AllBut(without) => (true, without),
        };
        let request = v1::AttestRequest {
            nonce: nonce.to_vec(),
            with_inventory,
            without,
        };
        let mut pieces = self.rpc.attest(request).await?.into_inner();
        let first = pieces.message().await?.and_then(|message| message.piece);
        let Some(Piece::Statement(statement)) = first else {
            return Err(AskError::Answer("begins with no statement"));
        };
        let mut inventory = Vec::new();
        while let Some(message) = pieces.message().await? {
            let Some(Piece::Inventory(piece)) = message.piece else {
                return Err(AskError::Answer("has a second statement"));
            };
            if inventory.len() + piece.len() > self.inventory_bytes_max {
                return Err(AskError::Answer("has an inventory without an end"));
            }
            inventory.extend_from_slice(&piece);
        }
        Ok(Attested {
            statement,
            inventory: with_inventory.then_some(inventory),
        })
    }
}
