//! P4Runtime client of a controller: one role at one switch, with checked values.

use std::sync::{Arc, Mutex, PoisonError};

use prost::Message as _;
use thiserror::Error;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

use crate::arbitration::ArbitrationStatus;
use crate::bytes::Bits;
use crate::data::Data;
use crate::digest::DigestList;
use crate::entity::{Entity, TableEntry, Update};
use crate::error::{EntityError, causes, is_connection_error};
use crate::ids::DigestId;
use crate::p4info::{P4Info, P4InfoError};
use crate::proto::{google, v1};
use crate::target::{Atomicity, Pipeline};
use crate::translate::{Read, Translator};
use v1::p4_runtime_client::P4RuntimeClient;
use v1::set_forwarding_pipeline_config_request::Action;
use v1::stream_message_request::Update as Outgoing;
use v1::stream_message_response::Update as Incoming;

/// Maximum bytes of response headers. Responses with an error for each update of a large batch exceed gRPC's
/// default of 8 KiB (appendix, "Guidelines").
const HEADERS_BYTES_MAX: u32 = 16 << 20;
/// Maximum bytes of a response: a program with its P4Info.
const RESPONSE_BYTES_MAX: usize = 128 << 20;
/// Capacity of the queue of messages to the switch.
const OUTBOX_MESSAGES: usize = 1024;

/// Failure of a request to the switch.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The connection could not be established.
    #[error("connection to the switch failed: {}", causes(.0))]
    Unreachable(#[from] tonic::transport::Error),
    /// The connection was lost, possibly during the handshake: a TLS server closes connections of clients
    /// without a certificate.
    #[error("connection to the switch was lost: {}", causes(.0))]
    ConnectionLost(Box<Status>),
    /// The switch rejected the whole request.
    #[error("request rejected by the switch: {}: {}", .0.code(), .0.message())]
    Rejected(#[from] Box<Status>),
    /// Updates of a batch failed: one result for each update, in order.
    #[error("{}", describe_failures(.0))]
    BatchFailed(Vec<Result<(), EntityError>>),
    /// The switch closed the stream.
    #[error("stream closed by the switch")]
    StreamEnded,
    /// The client has no P4Info: set a pipeline, or request the pipeline of the switch.
    #[error("no forwarding pipeline: set one, or request the pipeline of the switch")]
    NoProgram,
    /// The P4Info of the switch is invalid.
    #[error("invalid P4Info received from the switch: {0}")]
    InvalidP4Info(#[from] P4InfoError),
    /// The response contradicts the P4Info.
    #[error("response of the switch contradicts its P4Info: {0}")]
    InvalidResponse(EntityError),
}

impl From<Status> for ClientError {
    fn from(status: Status) -> Self {
        match results_of(&status) {
            Some(results) => Self::BatchFailed(results),
            None if is_connection_error(&status) => Self::ConnectionLost(Box::new(status)),
            None => Self::Rejected(Box::new(status)),
        }
    }
}

/// Identity of this client at the switch.
#[derive(Clone, Debug)]
pub struct ClientIdentity {
    /// Device id of the switch.
    pub device_id: u64,
    /// Role; empty for the default role, which has full access.
    pub role: String,
    /// Election id: the client with the highest id of a role becomes primary.
    pub election_id: u128,
}

/// Message received on the stream from the switch.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamEvent {
    /// Arbitration status of this client, and the highest election id that the switch has received.
    Arbitration(ArbitrationStatus, Option<u128>),
    /// Packet-in, with a value for each metadata field of the program.
    PacketIn {
        /// Metadata values.
        metadata: Vec<Bits>,
        /// Packet.
        payload: Vec<u8>,
    },
    /// Digest messages to acknowledge with [`Client::acknowledge`].
    Digest(DigestList),
    /// Entries whose idle timeout has expired.
    IdleTimeout(Vec<TableEntry>),
    /// The switch rejected a packet or an acknowledgment of this client.
    Error(EntityError),
    /// Digests or notifications were lost because a queue of the switch was full. Contains the message of the switch.
    Lost(String),
}

/// P4Info of the current pipeline, shared by client and events.
type SharedP4Info = Arc<Mutex<Option<Arc<P4Info>>>>;

/// Client of a switch. The connection lasts while this value and its [`Events`] exist.
#[derive(Debug)]
pub struct Client {
    rpc: P4RuntimeClient<Channel>,
    identity: ClientIdentity,
    outbox: mpsc::Sender<v1::StreamMessageRequest>,
    p4info: SharedP4Info,
}

/// Stream messages of the switch.
#[derive(Debug)]
pub struct Events {
    incoming: Streaming<v1::StreamMessageResponse>,
    p4info: SharedP4Info,
}

impl Client {
    /// Connects, sends the arbitration request and waits for the arbitration status. [`linewarden_tls::endpoint`]
    /// creates endpoints for TLS.
    pub async fn connect(
        endpoint: Endpoint,
        identity: ClientIdentity,
    ) -> Result<(Self, Events, ArbitrationStatus), ClientError> {
        let channel = endpoint
            .http2_max_header_list_size(HEADERS_BYTES_MAX)
            .tcp_nodelay(true)
            .connect()
            .await?;
        let mut rpc = P4RuntimeClient::new(channel).max_decoding_message_size(RESPONSE_BYTES_MAX);
        let (outbox, outgoing) = mpsc::channel(OUTBOX_MESSAGES);
        let p4info = SharedP4Info::default();
        let client = Self {
            rpc: rpc.clone(),
            identity,
            outbox,
            p4info: p4info.clone(),
        };
        client
            .send(Outgoing::Arbitration(client.arbitration_update()))
            .await?;
        let incoming = rpc
            .stream_channel(ReceiverStream::new(outgoing))
            .await?
            .into_inner();
        let mut events = Events { incoming, p4info };
        match events.next().await? {
            StreamEvent::Arbitration(status, _) => Ok((client, events, status)),
            _ => Err(ClientError::InvalidResponse(EntityError::invalid(
                "the first stream message is not an arbitration update",
            ))),
        }
    }

    /// Sends an arbitration request with a new election id. The result arrives as an event.
    pub async fn set_election_id(&mut self, election_id: u128) -> Result<(), ClientError> {
        self.identity.election_id = election_id;
        self.send(Outgoing::Arbitration(self.arbitration_update())).await
    }

    /// P4Info of the pipeline that was last set or requested.
    pub fn info(&self) -> Option<Arc<P4Info>> {
        p4info_of(&self.p4info)
    }

    /// P4Runtime version of the switch.
    pub async fn api_version(&mut self) -> Result<String, ClientError> {
        let request = v1::CapabilitiesRequest {
            device_id: self.identity.device_id,
        };
        Ok(self
            .rpc
            .capabilities(request)
            .await?
            .into_inner()
            .p4runtime_api_version)
    }

    /// Installs a program with empty forwarding state (`VERIFY_AND_COMMIT`).
    pub async fn set_pipeline(&mut self, pipeline: &Pipeline) -> Result<(), ClientError> {
        self.configure(Action::VerifyAndCommit, pipeline).await
    }

    /// Installs a program and keeps the forwarding state (`RECONCILE_AND_COMMIT`).
    pub async fn reconcile_pipeline(&mut self, pipeline: &Pipeline) -> Result<(), ClientError> {
        self.configure(Action::ReconcileAndCommit, pipeline).await
    }

    async fn configure(&mut self, action: Action, pipeline: &Pipeline) -> Result<(), ClientError> {
        let config = v1::ForwardingPipelineConfig {
            p4info: Some(pipeline.info.message().clone()),
            p4_device_config: pipeline.device_config.to_vec(),
            cookie: pipeline
                .cookie
                .map(|cookie| v1::forwarding_pipeline_config::Cookie { cookie }),
        };
        let request = v1::SetForwardingPipelineConfigRequest {
            device_id: self.identity.device_id,
            role: self.identity.role.clone(),
            election_id: Some(uint128(self.identity.election_id)),
            action: action.into(),
            config: Some(config),
            ..Default::default()
        };
        self.rpc.set_forwarding_pipeline_config(request).await?;
        self.set_p4info(pipeline.info.clone());
        Ok(())
    }

    /// Reads the pipeline of the switch, if there is one, and uses its P4Info from now on.
    pub async fn pipeline(&mut self) -> Result<Option<Pipeline>, ClientError> {
        let request = v1::GetForwardingPipelineConfigRequest {
            device_id: self.identity.device_id,
            response_type: 0,
        };
        let response = self
            .rpc
            .get_forwarding_pipeline_config(request)
            .await?
            .into_inner();
        let Some(config) = response.config else {
            return Ok(None);
        };
        let info = Arc::new(P4Info::new(config.p4info.unwrap_or_default())?);
        self.set_p4info(info.clone());
        Ok(Some(Pipeline {
            info,
            device_config: config.p4_device_config.into(),
            cookie: config.cookie.map(|cookie| cookie.cookie),
        }))
    }

    /// Writes a batch in order. [`ClientError::BatchFailed`] carries the result of each update.
    pub async fn write(&mut self, updates: &[Update], atomicity: Atomicity) -> Result<(), ClientError> {
        use v1::write_request::Atomicity as Message;
        let info = self.info().ok_or(ClientError::NoProgram)?;
        let translator = Translator::new(&info);
        let atomicity = match atomicity {
            Atomicity::ContinueOnError => Message::ContinueOnError,
            Atomicity::RollbackOnError => Message::RollbackOnError,
            Atomicity::DataplaneAtomic => Message::DataplaneAtomic,
        };
        let request = v1::WriteRequest {
            device_id: self.identity.device_id,
            role: self.identity.role.clone(),
            election_id: Some(uint128(self.identity.election_id)),
            updates: updates
                .iter()
                .map(|update| translator.encode_update(update))
                .collect(),
            atomicity: atomicity.into(),
            ..Default::default()
        };
        self.rpc.write(request).await?;
        Ok(())
    }

    /// Reads all entities that match the requests.
    pub async fn read(&mut self, requests: &[Read]) -> Result<Vec<Entity>, ClientError> {
        let info = self.info().ok_or(ClientError::NoProgram)?;
        let translator = Translator::new(&info);
        let request = v1::ReadRequest {
            device_id: self.identity.device_id,
            role: self.identity.role.clone(),
            entities: requests
                .iter()
                .map(|request| translator.encode_read(request))
                .collect(),
        };
        let mut responses = self.rpc.read(request).await?.into_inner();
        let mut entities = Vec::new();
        while let Some(response) = responses.message().await? {
            for entity in &response.entities {
                entities.push(
                    translator
                        .decode_entity(entity)
                        .map_err(ClientError::InvalidResponse)?,
                );
            }
        }
        Ok(entities)
    }

    /// Sends a packet-out, with a value for each metadata field of the program.
    pub async fn packet_out(&mut self, metadata: &[Bits], payload: Vec<u8>) -> Result<(), ClientError> {
        let info = self.info().ok_or(ClientError::NoProgram)?;
        let metadata = Translator::new(&info).encode_packet_out(metadata);
        self.send(Outgoing::Packet(v1::PacketOut { payload, metadata }))
            .await
    }

    /// Acknowledges a digest list: the switch may send the same messages again.
    pub async fn acknowledge(&mut self, digest: DigestId, list_id: u64) -> Result<(), ClientError> {
        self.send(Outgoing::DigestAck(v1::DigestListAck {
            digest_id: digest.0,
            list_id,
        }))
        .await
    }

    async fn send(&self, message: Outgoing) -> Result<(), ClientError> {
        let message = v1::StreamMessageRequest {
            update: Some(message),
        };
        self.outbox
            .send(message)
            .await
            .map_err(|_| ClientError::StreamEnded)
    }

    fn arbitration_update(&self) -> v1::MasterArbitrationUpdate {
        let role = v1::Role {
            name: self.identity.role.clone(),
            ..Default::default()
        };
        v1::MasterArbitrationUpdate {
            device_id: self.identity.device_id,
            role: Some(role).filter(|role| !role.name.is_empty()),
            election_id: Some(uint128(self.identity.election_id)),
            status: None,
        }
    }

    fn set_p4info(&self, info: Arc<P4Info>) {
        *self.p4info.lock().unwrap_or_else(PoisonError::into_inner) = Some(info);
    }
}

impl Events {
    /// Waits for the next event. No event follows an error.
    pub async fn next(&mut self) -> Result<StreamEvent, ClientError> {
        loop {
            let message = self.incoming.message().await?.ok_or(ClientError::StreamEnded)?;
            if let Some(event) = message
                .update
                .map(|update| self.stream_event(update))
                .transpose()?
                .flatten()
            {
                return Ok(event);
            }
        }
    }

    /// Converts a stream message; `None` for architecture-specific messages and messages of an unknown
    /// program.
    fn stream_event(&self, message: Incoming) -> Result<Option<StreamEvent>, ClientError> {
        let info = p4info_of(&self.p4info);
        Ok(match (message, info) {
            (Incoming::Arbitration(update), _) => {
                let own_status = match update.status.map(|status| Code::from_i32(status.code)) {
                    None | Some(Code::Ok) => ArbitrationStatus::Primary,
                    Some(Code::AlreadyExists) => ArbitrationStatus::Backup,
                    Some(_) => ArbitrationStatus::NoPrimary,
                };
                Some(StreamEvent::Arbitration(
                    own_status,
                    update
                        .election_id
                        .map(|id| u128::from(id.high) << 64 | u128::from(id.low)),
                ))
            }
            // This error refers to no message of this client: the switch lost notifications.
            (Incoming::Error(error), _)
                if error.canonical_code == i32::from(Code::ResourceExhausted) && error.details.is_none() =>
            {
                Some(StreamEvent::Lost(error.message))
            }
            (Incoming::Error(error), _) => Some(StreamEvent::Error(EntityError::new(
                Code::from_i32(error.canonical_code),
                error.message,
            ))),
            (Incoming::Packet(packet), Some(info)) => {
                let metadata = Translator::new(&info)
                    .decode_packet_in(&packet.metadata)
                    .map_err(ClientError::InvalidResponse)?;
                Some(StreamEvent::PacketIn {
                    metadata,
                    payload: packet.payload,
                })
            }
            (Incoming::Digest(list), Some(info)) => Some(StreamEvent::Digest(
                decode_list(&info, &list).map_err(ClientError::InvalidResponse)?,
            )),
            (Incoming::IdleTimeoutNotification(notification), Some(info)) => {
                let translator = Translator::new(&info);
                let entries = notification
                    .table_entry
                    .iter()
                    .map(|entry| translator.decode_idle_entry(entry));
                Some(StreamEvent::IdleTimeout(
                    entries
                        .collect::<Result<_, _>>()
                        .map_err(ClientError::InvalidResponse)?,
                ))
            }
            (Incoming::Other(_), _) | (_, None) => None,
        })
    }
}

fn decode_list(info: &P4Info, list: &v1::DigestList) -> Result<DigestList, EntityError> {
    let id = DigestId(list.digest_id);
    let digest = info
        .digests()
        .get(id)
        .ok_or_else(|| EntityError::invalid(format!("unknown digest {id}")))?;
    let data = list
        .data
        .iter()
        .map(|data| Data::decode(&digest.data, data))
        .collect::<Result<_, _>>()?;
    Ok(DigestList {
        id,
        list_id: list.list_id,
        data,
    })
}

fn p4info_of(shared: &SharedP4Info) -> Option<Arc<P4Info>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn uint128(id: u128) -> v1::Uint128 {
    v1::Uint128 {
        high: (id >> 64) as u64,
        low: id as u64,
    }
}

/// Results in the details of a status, if there are any.
fn results_of(status: &Status) -> Option<Vec<Result<(), EntityError>>> {
    let details = google::rpc::Status::decode(status.details()).ok()?.details;
    if details.is_empty() {
        return None;
    }
    let result = |detail: &prost_types::Any| {
        let error = v1::Error::decode(&*detail.value).ok()?;
        let code = Code::from_i32(error.canonical_code);
        Some(if code == Code::Ok {
            Ok(())
        } else {
            Err(EntityError::new(code, error.message))
        })
    };
    details.iter().map(result).collect()
}

fn describe_failures(results: &[Result<(), EntityError>]) -> String {
    let failures = || {
        results
            .iter()
            .enumerate()
            .filter_map(|(index, result)| Some((index, result.as_ref().err()?)))
    };
    let first = failures()
        .next()
        .map(|(index, error)| format!("; update {index}: {:?}: {error}", error.code));
    format!(
        "{} of {} failed{}",
        failures().count(),
        results.len(),
        first.unwrap_or_default()
    )
}
