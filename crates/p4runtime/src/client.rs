//! A controller's end of a connection: one role at one switch, in checked values.

use std::sync::{Arc, Mutex, PoisonError};

use prost::Message as _;
use thiserror::Error;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

use crate::arbitration::Standing;
use crate::bytes::Bits;
use crate::data::Data;
use crate::digest::DigestList;
use crate::entity::{Entity, TableEntry, Update};
use crate::error::{EntityError, causes, is_of_connection};
use crate::ids::DigestId;
use crate::p4info::{P4Info, P4InfoError};
use crate::proto::{google, v1};
use crate::target::{Atomicity, Pipeline};
use crate::translate::{Read, Translator};
use v1::p4_runtime_client::P4RuntimeClient;
use v1::set_forwarding_pipeline_config_request::Action;
use v1::stream_message_request::Update as Outgoing;
use v1::stream_message_response::Update as Incoming;

/// Answers with an error for each update of a large batch do not fit gRPC's usual 8 KiB (appendix,
/// "Guidelines").
const HEADERS_BYTES_MAX: u32 = 16 << 20;
/// The largest answer that is taken: a program with its P4Info.
const ANSWER_BYTES_MAX: usize = 128 << 20;
/// Messages to the switch that wait to be sent.
const OUTBOX_MESSAGES: usize = 1024;

/// Why the switch did not do what it was to.
#[derive(Debug, Error)]
pub enum ClientError {
    /// It cannot be reached.
    #[error("the switch cannot be reached: {}", causes(.0))]
    Unreachable(#[from] tonic::transport::Error),
    /// The connection broke, maybe before it was any use: a server with TLS turns clients away that have no certificate.
    #[error("the connection to the switch broke: {}", causes(.0))]
    Broken(Box<Status>),
    /// It refused the whole request.
    #[error("the switch refused: {}: {}", .0.code(), .0.message())]
    Refused(#[from] Box<Status>),
    /// Parts of a batch failed; a result for each, in order.
    #[error("{}", describe(.0))]
    Batch(Vec<Result<(), EntityError>>),
    /// The stream ended.
    #[error("the switch ended the stream")]
    Ended,
    /// It has no program, or none that this client knows: set one, or ask for it.
    #[error("no program is known: set one or ask the switch for its own")]
    NoProgram,
    /// Its P4Info contradicts itself.
    #[error("the switch's own {0}")]
    Info(#[from] P4InfoError),
    /// Its answer contradicts its P4Info.
    #[error("the switch answered what its P4Info does not allow: {0}")]
    Answer(EntityError),
}

impl From<Status> for ClientError {
    fn from(status: Status) -> Self {
        match results_of(&status) {
            Some(results) => Self::Batch(results),
            None if is_of_connection(&status) => Self::Broken(Box::new(status)),
            None => Self::Refused(Box::new(status)),
        }
    }
}

/// Whom this client is to the switch.
#[derive(Clone, Debug)]
pub struct Session {
    /// The switch's number.
    pub device_id: u64,
    /// The role; empty for the default role, which may do everything.
    pub role: String,
    /// The rank: the highest of a role's clients becomes primary.
    pub election_id: u128,
}

/// What the switch tells.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// How this client stands now, and the highest rank the switch has seen.
    Standing(Standing, Option<u128>),
    /// A packet, with a value for each field of the program's header.
    PacketIn {
        /// The values.
        metadata: Vec<Bits>,
        /// The packet.
        payload: Vec<u8>,
    },
    /// A digest's messages; [`Client::acknowledge`] them.
    Digest(DigestList),
    /// Entries that nothing has hit for their time to live.
    IdleTimeout(Vec<TableEntry>),
    /// A packet or an acknowledgement of this client was not taken.
    Error(EntityError),
    /// Digests or notices that this client did not take in time are lost; in the switch's words.
    Lost(String),
}

/// The P4Info that both ends mean, once known.
type Known = Arc<Mutex<Option<Arc<P4Info>>>>;

/// A session at a switch. It lasts as long as both this and its [`Events`] do.
#[derive(Debug)]
pub struct Client {
    rpc: P4RuntimeClient<Channel>,
    session: Session,
    outbox: mpsc::Sender<v1::StreamMessageRequest>,
    known: Known,
}

/// What the switch tells during a session.
#[derive(Debug)]
pub struct Events {
    incoming: Streaming<v1::StreamMessageResponse>,
    known: Known,
}

impl Client {
    /// Connects, says who it is, and waits until the switch has said how it stands. [`linewarden_tls::endpoint`] makes endpoints
    /// for TLS.
    pub async fn connect(
        endpoint: Endpoint,
        session: Session,
    ) -> Result<(Self, Events, Standing), ClientError> {
        let channel = endpoint
            .http2_max_header_list_size(HEADERS_BYTES_MAX)
            .tcp_nodelay(true)
            .connect()
            .await?;
        let mut rpc = P4RuntimeClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        let (outbox, outgoing) = mpsc::channel(OUTBOX_MESSAGES);
        let known = Known::default();
        let client = Self {
            rpc: rpc.clone(),
            session,
            outbox,
            known: known.clone(),
        };
        client.send(Outgoing::Arbitration(client.candidacy())).await?;
        let incoming = rpc
            .stream_channel(ReceiverStream::new(outgoing))
            .await?
            .into_inner();
        let mut events = Events { incoming, known };
        match events.next().await? {
            Told::Standing(standing, _) => Ok((client, events, standing)),
            _ => Err(ClientError::Answer(EntityError::invalid(
                "the stream begins without arbitration",
            ))),
        }
    }

    /// Stands for election with this rank from now on; the events tell what comes of it.
    pub async fn stand(&mut self, election_id: u128) -> Result<(), ClientError> {
        self.session.election_id = election_id;
        self.send(Outgoing::Arbitration(self.candidacy())).await
    }

    /// The P4Info of the program that was last set or asked for.
    pub fn info(&self) -> Option<Arc<P4Info>> {
        info_of(&self.known)
    }

    /// The version of P4Runtime that the switch speaks.
    pub async fn api_version(&mut self) -> Result<String, ClientError> {
        let request = v1::CapabilitiesRequest {
            device_id: self.session.device_id,
        };
        Ok(self
            .rpc
            .capabilities(request)
            .await?
            .into_inner()
            .p4runtime_api_version)
    }

    /// Has the switch run a program, with nothing in it.
    pub async fn set_pipeline(&mut self, pipeline: &Pipeline) -> Result<(), ClientError> {
        self.configure(Action::VerifyAndCommit, pipeline).await
    }

    /// Has the switch run a program and keep what was written to the one before.
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
            device_id: self.session.device_id,
            role: self.session.role.clone(),
            election_id: Some(uint128(self.session.election_id)),
            action: action.into(),
            config: Some(config),
            ..Default::default()
        };
        self.rpc.set_forwarding_pipeline_config(request).await?;
        self.know(pipeline.info.clone());
        Ok(())
    }

    /// The switch's program, if it has one; from now on this client means that one too.
    pub async fn pipeline(&mut self) -> Result<Option<Pipeline>, ClientError> {
        let request = v1::GetForwardingPipelineConfigRequest {
            device_id: self.session.device_id,
            response_type: 0,
        };
        let answer = self
            .rpc
            .get_forwarding_pipeline_config(request)
            .await?
            .into_inner();
        let Some(config) = answer.config else {
            return Ok(None);
        };
        let info = Arc::new(P4Info::new(config.p4info.unwrap_or_default())?);
        self.know(info.clone());
        Ok(Some(Pipeline {
            info,
            device_config: config.p4_device_config.into(),
            cookie: config.cookie.map(|cookie| cookie.cookie),
        }))
    }

    /// Writes a batch, in its order. [`ClientError::Batch`] says what became of each update.
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
            device_id: self.session.device_id,
            role: self.session.role.clone(),
            election_id: Some(uint128(self.session.election_id)),
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

    /// Reads all that answers these requests.
    pub async fn read(&mut self, requests: &[Read]) -> Result<Vec<Entity>, ClientError> {
        let info = self.info().ok_or(ClientError::NoProgram)?;
        let translator = Translator::new(&info);
        let request = v1::ReadRequest {
            device_id: self.session.device_id,
            role: self.session.role.clone(),
            entities: requests
                .iter()
                .map(|request| translator.encode_read(request))
                .collect(),
        };
        let mut answer = self.rpc.read(request).await?.into_inner();
        let mut entities = Vec::new();
        while let Some(response) = answer.message().await? {
            for entity in &response.entities {
                entities.push(translator.decode_entity(entity).map_err(ClientError::Answer)?);
            }
        }
        Ok(entities)
    }

    /// Sends a packet out of the switch, with a value for each field of the program's header.
    pub async fn packet_out(&mut self, metadata: &[Bits], payload: Vec<u8>) -> Result<(), ClientError> {
        let info = self.info().ok_or(ClientError::NoProgram)?;
        let metadata = Translator::new(&info).encode_packet_out(metadata);
        self.send(Outgoing::Packet(v1::PacketOut { payload, metadata }))
            .await
    }

    /// Says that a list of digests was acted on: the switch may send its messages again.
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
        self.outbox.send(message).await.map_err(|_| ClientError::Ended)
    }

    fn candidacy(&self) -> v1::MasterArbitrationUpdate {
        let role = v1::Role {
            name: self.session.role.clone(),
            ..Default::default()
        };
        v1::MasterArbitrationUpdate {
            device_id: self.session.device_id,
            role: Some(role).filter(|role| !role.name.is_empty()),
            election_id: Some(uint128(self.session.election_id)),
            status: None,
        }
    }

    fn know(&self, info: Arc<P4Info>) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(info);
    }
}

impl Events {
    /// The next event. After an error there are no more.
    pub async fn next(&mut self) -> Result<Told, ClientError> {
        loop {
            let message = self.incoming.message().await?.ok_or(ClientError::Ended)?;
            if let Some(told) = message
                .update
                .map(|update| self.told(update))
                .transpose()?
                .flatten()
            {
                return Ok(told);
            }
        }
    }

    /// What a message tells; nothing if it is of an architecture's own kind, or of a program that is not
    /// known.
    fn told(&self, message: Incoming) -> Result<Option<Told>, ClientError> {
        let info = info_of(&self.known);
        Ok(match (message, info) {
            (Incoming::Arbitration(update), _) => {
                let standing = match update.status.map(|status| Code::from_i32(status.code)) {
                    None | Some(Code::Ok) => Standing::Primary,
                    Some(Code::AlreadyExists) => Standing::Backup,
                    Some(_) => Standing::Leaderless,
                };
                Some(Told::Standing(
                    standing,
                    update
                        .election_id
                        .map(|id| u128::from(id.high) << 64 | u128::from(id.low)),
                ))
            }
            // About no message of this client's.
            (Incoming::Error(error), _)
                if error.canonical_code == i32::from(Code::ResourceExhausted) && error.details.is_none() =>
            {
                Some(Told::Lost(error.message))
            }
            (Incoming::Error(error), _) => Some(Told::Error(EntityError::new(
                Code::from_i32(error.canonical_code),
                error.message,
            ))),
            (Incoming::Packet(packet), Some(info)) => {
                let metadata = Translator::new(&info)
                    .decode_packet_in(&packet.metadata)
                    .map_err(ClientError::Answer)?;
                Some(Told::PacketIn {
                    metadata,
                    payload: packet.payload,
                })
            }
            (Incoming::Digest(list), Some(info)) => Some(Told::Digest(
                decode_list(&info, &list).map_err(ClientError::Answer)?,
            )),
            (Incoming::IdleTimeoutNotification(notification), Some(info)) => {
                let translator = Translator::new(&info);
                let entries = notification
                    .table_entry
                    .iter()
                    .map(|entry| translator.decode_idle_entry(entry));
                Some(Told::IdleTimeout(
                    entries.collect::<Result<_, _>>().map_err(ClientError::Answer)?,
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
        .ok_or_else(|| EntityError::invalid(format!("there is no digest {id}")))?;
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

fn info_of(known: &Known) -> Option<Arc<P4Info>> {
    known.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn uint128(id: u128) -> v1::Uint128 {
    v1::Uint128 {
        high: (id >> 64) as u64,
        low: id as u64,
    }
}

/// The results that a status carries in its details, if it carries any.
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

fn describe(results: &[Result<(), EntityError>]) -> String {
    let failed = || {
        results
            .iter()
            .enumerate()
            .filter_map(|(place, result)| Some((place, result.as_ref().err()?)))
    };
    let first = failed()
        .next()
        .map(|(place, error)| format!("; number {place}: {:?}: {error}", error.code));
    format!(
        "{} of {} failed{}",
        failed().count(),
        results.len(),
        first.unwrap_or_default()
    )
}
