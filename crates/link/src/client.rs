//! The gateway's end: one controller at a time, and the next one where that does not answer.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use linewarden_controller::attest::{Appraised, Plan, PlanWish, ProverIds, Provers, RoundOutcome};
use linewarden_controller::trust::Scrutiny;
use linewarden_controller::{
    Changes, Chunk, Knock, Provision, Reception, Refused, Reported, SessionReport, Want,
};
use linewarden_protocol::attest::PeriodStart;
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{LeasedPlace, Revision, Settlement};
use linewarden_tls::{ClientTls, endpoint};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::convert::{self, Malformed};
use crate::proto;
use crate::proto::link_client::LinkClient;
use crate::server::{DENIAL, Told};

/// Longest answer of a controller, bytes.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// A controller that does not answer is dead after two of these.
const KEEPALIVE: Duration = Duration::from_secs(2);

/// How controllers are reached.
#[derive(Clone)]
pub struct ClientOptions {
    /// `HOST:PORT` of each controller, in the order in which they are tried.
    pub controllers: Vec<String>,
    /// Whom to believe, and who this gateway is: asked for with each new connection, so that certificates are exchanged while it runs.
    pub identities: Arc<dyn Identities>,
    /// How long a connection may take.
    pub connect_timeout: Duration,
    /// How long an answer may take; one about a whole fleet, ten times as long.
    pub answer_timeout: Duration,
    /// The program's version, for people.
    pub version: String,
}

/// Where certificates and keys come from.
pub trait Identities: Send + Sync {
    /// The ones of now.
    ///
    /// # Errors
    /// What is wrong with them, in words.
    fn now(&self) -> Result<ClientTls, String>;
}

/// Why a question was not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Remote {
    /// No controller answered, or one could not.
    #[error("{0}")]
    Failed(String),
    /// The gateway has not shown what it runs.
    #[error("{0}")]
    Untrusted(String),
    /// Another process has registered as this gateway, or it is retired.
    #[error("{0}")]
    Replaced(String),
    /// The registry was put back to an earlier state: this process is to register anew, and holds nothing.
    #[error("{0}")]
    Restored(String),
}

impl From<Malformed> for Remote {
    fn from(error: Malformed) -> Self {
        Self::Failed(format!("the controller sent a {error}"))
    }
}

/// A link to any of several controllers. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    options: Arc<ClientOptions>,
    current: Arc<Mutex<Current>>,
    /// The newest registration of this process; 0 before the first, which is none.
    registered: Arc<AtomicU64>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("controllers", &self.options.controllers)
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Current {
    /// Which controller.
    at: usize,
    connected: Option<Connected>,
}

#[derive(Clone)]
struct Connected {
    channel: Channel,
    /// Drawn for this connection.
    id: Vec<u8>,
}

/// Which answer is waited for how long.
#[derive(Clone, Copy)]
enum Size {
    Usual,
    Fleet,
}

impl Client {
    /// To these controllers; nothing is connected before something is asked.
    #[must_use]
    pub fn new(options: ClientOptions) -> Self {
        Self {
            options: Arc::new(options),
            current: Arc::default(),
            registered: Arc::default(),
        }
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        // Whole at every moment, whoever panicked.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection of now, or a new one to the controller whose turn it is.
    async fn connected(&self) -> Result<Connected, Remote> {
        let at = {
            let current = self.current();
            if let Some(connected) = &current.connected {
                return Ok(connected.clone());
            }
            current.at
        };
        let count = self.options.controllers.len().max(1);
        let Some(address) = self.options.controllers.get(at % count) else {
            return Err(Remote::Failed("no controller is named".to_owned()));
        };
        let failed = |why: String| Remote::Failed(format!("controller {address}: {why}"));
        let tls = self.options.identities.now().map_err(failed)?;
        let endpoint = endpoint(address, Some(&tls))
            .map_err(|error| failed(said(&error)))?
            .connect_timeout(self.options.connect_timeout)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true);
        let mut id = vec![0; 16];
        getrandom::fill(&mut id).map_err(|error| failed(error.to_string()))?;
        let connecting = endpoint.connect();
        let channel = match tokio::time::timeout(self.options.connect_timeout, connecting).await {
            Ok(channel) => channel.map_err(|error| failed(said(&error)))?,
            Err(_) => return Err(failed("no connection in time".to_owned())),
        };
        let connected = Connected { channel, id };
        let mut current = self.current();
        // Another question may have connected meanwhile.
        Ok(current.connected.get_or_insert(connected).clone())
    }

    /// That connection, or that controller, is of no use: the next one has its turn.
    fn leave(&self, at: usize, id: Option<&[u8]>) {
        let mut current = self.current();
        let is_it = match (&current.connected, id) {
            (Some(connected), Some(id)) => connected.id == id,
            (None, None) => true,
            _ => false,
        };
        if is_it && current.at == at {
            current.connected = None;
            current.at = (at + 1) % self.options.controllers.len().max(1);
        }
    }

    /// Asks until a controller answers, each of them once. All questions may be repeated.
    async fn ask<T>(
        &self,
        size: Size,
        mut ask: impl AsyncFnMut(&mut LinkClient<Channel>, Vec<u8>) -> Result<tonic::Response<T>, Status>,
    ) -> Result<T, Remote> {
        let timeout = match size {
            Size::Usual => self.options.answer_timeout,
            Size::Fleet => self.options.answer_timeout.saturating_mul(10),
        };
        let mut last = None;
        for _ in 0..self.options.controllers.len().max(1) {
            let at = self.current().at;
            let connected = match self.connected().await {
                Ok(connected) => connected,
                Err(error) => {
                    self.leave(at, None);
                    last = Some(error);
                    continue;
                }
            };
            let mut client = LinkClient::new(connected.channel)
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX);
            let answer = tokio::time::timeout(timeout, ask(&mut client, connected.id.clone())).await;
            let status = match answer {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded("no answer in time"),
            };
            match denial(&status) {
                Ok(denial) => return Err(denial),
                // Of this gateway it has too much at the moment: what it remembers of the connection stays good.
                Err(failed) if status.code() == Code::ResourceExhausted => return Err(failed),
                Err(failed) => {
                    self.leave(at, Some(&connected.id));
                    last = Some(failed);
                }
            }
        }
        Err(last.unwrap_or_else(|| Remote::Failed("no controller is named".to_owned())))
    }

    /// Registers this process; whoever was registered before gets nothing from now on.
    ///
    /// # Errors
    /// [`Remote`].
    pub async fn enter(&self) -> Result<u64, Remote> {
        let version = &self.options.version;
        let reply = self.ask(Size::Usual, async |client, connection| {
            let version = version.clone();
            client.enter(proto::EnterRequest { connection, version }).await
        });
        let fence = reply.await?.fence;
        self.raised(fence);
        Ok(fence)
    }

    /// The controller has raised the fence of this process: what is carried for devices shows it from now on.
    pub fn raised(&self, fence: u64) {
        self.registered.store(fence, Relaxed);
    }

    /// The next part of what the gateway held when it stopped, and where the one after it begins.
    ///
    /// # Errors
    /// [`Remote`].
    pub async fn resume(&self, fence: u64, place: LeasedPlace) -> Result<(Chunk, LeasedPlace), Remote> {
        let reply = self.ask(Size::Fleet, async |client, connection| {
            let request = proto::ResumeRequest {
                session: session(fence, connection),
                cursor: convert::cursor_to_wire(place),
            };
            client.resume(request).await
        });
        let reply = reply.await?;
        let chunk = Chunk {
            provisions: convert::provisions_from_wire(reply.provisions)?,
            damaged: reply.damaged,
            progress: (reply.done, reply.of),
            last: reply.last,
        };
        Ok((chunk, convert::cursor_from_wire(&reply.cursor)?))
    }

    /// Rows for devices that the gateway holds.
    ///
    /// # Errors
    /// [`Remote`].
    pub async fn lease(&self, fence: u64, wants: &[Want]) -> Result<(Vec<Provision>, Vec<Refused>), Remote> {
        let reply = self.ask(Size::Usual, async |client, connection| {
            let request = proto::LeaseRequest {
                session: session(fence, connection),
                wants: wants.iter().map(convert::want_to_wire).collect(),
            };
            client.lease(request).await
        });
        let reply = reply.await?;
        let refused = reply.refused.into_iter().map(convert::refused_from_wire);
        Ok((
            convert::provisions_from_wire(reply.provisions)?,
            refused.collect::<Result<_, _>>()?,
        ))
    }

    /// Messages of devices that the gateway does not hold; answers in their order.
    ///
    /// # Errors
    /// [`Remote`].
    pub async fn receive(
        &self,
        fence: u64,
        knocks: &[Knock],
        fresh: [u8; 8],
    ) -> Result<Vec<Reception>, Remote> {
        let reply = self.ask(Size::Usual, async |client, connection| {
            let request = proto::ReceiveRequest {
                session: session(fence, connection),
                knocks: knocks.iter().map(convert::knock_to_wire).collect(),
                fresh: fresh.to_vec(),
            };
            client.receive(request).await
        });
        let receptions = reply.await?.receptions;
        if receptions.len() != knocks.len() {
            return Err(Malformed("number of answers to messages").into());
        }
        let receptions = receptions.into_iter().map(convert::reception_from_wire);
        Ok(receptions.collect::<Result<_, _>>()?)
    }

    /// Where the gateway stands with devices that left its data plane.
    ///
    /// # Errors
    /// [`Remote`].
    pub async fn settle(&self, fence: u64, settlements: &[Settlement]) -> Result<u64, Remote> {
        let mut back = 0u64;
        // A gateway that stops speaks of all that it holds.
        for part in settlements.chunks(convert::ENTRIES_MAX) {
            let reply = self.ask(Size::Usual, async |client, connection| {
                let request = proto::SettleRequest {
                    session: session(fence, connection),
                    settlements: part.iter().map(convert::settlement_to_wire).collect(),
                };
                client.settle(request).await
            });
            back = back.saturating_add(reply.await?.back);
        }
        Ok(back)
    }

    /// Sessions that were opened at the gateway; answers in their order.
    ///
    /// # Errors
    /// [`Remote`].
    pub async fn report(&self, fence: u64, reports: &[SessionReport]) -> Result<Vec<Reported>, Remote> {
        let reply = self.ask(Size::Usual, async |client, connection| {
            let request = proto::ReportRequest {
                session: session(fence, connection),
                reports: reports.iter().map(convert::report_to_wire).collect(),
            };
            client.report(request).await
        });
        let reported = reply.await?.reported;
        if reported.len() != reports.len() {
            return Err(Malformed("number of answers to reports").into());
        }
        Ok(reported.into_iter().map(convert::reported_from_wire).collect())
    }

    /// What has changed, and what is wanted of the gateway, with the fence from now on if it was raised.
    ///
    /// # Errors
    /// [`Remote`].
    pub async fn changes(
        &self,
        fence: u64,
        since: Revision,
    ) -> Result<(Changes, Option<(Scrutiny, Option<u64>)>), Remote> {
        let reply = self.ask(Size::Usual, async |client, connection| {
            let request = proto::ChangesRequest {
                session: session(fence, connection),
                since: since.0,
            };
            client.changes(request).await
        });
        let mut reply = reply.await?;
        let scrutiny = reply
            .scrutiny
            .take()
            .map(convert::scrutiny_from_wire)
            .transpose()?;
        Ok((convert::changes_from_wire(&reply), scrutiny))
    }

    /// What the data plane runs, and what comes of it.
    ///
    /// # Errors
    /// [`Remote`].
    pub async fn show(
        &self,
        fence: u64,
        statement: &[u8],
        inventory: &[u8],
    ) -> Result<(Scrutiny, Option<u64>), Remote> {
        let reply = self.ask(Size::Usual, async |client, connection| {
            let request = proto::ShowRequest {
                session: session(fence, connection),
                statement: statement.to_vec(),
                inventory: inventory.to_vec(),
            };
            client.show(request).await
        });
        let scrutiny = reply.await?.scrutiny.ok_or(Malformed("answer to evidence"))?;
        Ok(convert::scrutiny_from_wire(scrutiny)?)
    }

    /// What is to be attested.
    ///
    /// # Errors
    /// [`Remote`].
    pub async fn plan(&self, fence: u64, wish: PlanWish) -> Result<Option<Plan>, Remote> {
        let reply = self.ask(Size::Fleet, async |client, connection| {
            let request = proto::PlanRequest {
                session: session(fence, connection),
                begin: wish.begin.map(|period| period.0),
                period_s: wish.period_s,
                numbers: wish.numbers,
            };
            client.plan(request).await
        });
        Ok(convert::plan_from_wire(reply.await?)?)
    }

    /// Provers, with this gateway's keys of a period.
    ///
    /// # Errors
    /// [`Remote`].
    pub async fn provers(&self, fence: u64, start: PeriodStart, since: u64) -> Result<Provers, Remote> {
        let reply = self.ask(Size::Fleet, async |client, connection| {
            let request = proto::ProversRequest {
                session: session(fence, connection),
                start: Some(convert::start_to_wire(&start)),
                since,
            };
            client.provers(request).await
        });
        Ok(convert::provers_from_wire(reply.await?)?)
    }

    /// A round that ended so long ago.
    ///
    /// # Errors
    /// [`Remote`].
    pub async fn appraise(&self, fence: u64, round: &RoundOutcome, age_ns: u64) -> Result<Appraised, Remote> {
        let reply = self.ask(Size::Fleet, async |client, connection| {
            let request = proto::AppraiseRequest {
                session: session(fence, connection),
                ..convert::outcome_to_wire(round, age_ns)
            };
            client.appraise(request).await
        });
        Ok(convert::appraised_from_wire(reply.await?))
    }

    /// Who is to be attested.
    ///
    /// # Errors
    /// [`Remote`].
    pub async fn prover_ids(&self, fence: u64, since: u64) -> Result<ProverIds, Remote> {
        let reply = self.ask(Size::Usual, async |client, connection| {
            let request = proto::ProverIdsRequest {
                session: session(fence, connection),
                since,
            };
            client.prover_ids(request).await
        });
        Ok(convert::ids_from_wire(reply.await?))
    }

    /// Carries a device's ticket, under the registration of this process; `None` for one that is met with silence. `locate` says where a
    /// device's session at this gateway is.
    ///
    /// # Errors
    /// [`Remote`]; also before this process has registered.
    pub async fn ticket(
        &self,
        message: &[u8],
        locate: &(dyn Fn(DeviceId) -> Option<[u8; 16]> + Sync),
    ) -> Result<Option<Vec<u8>>, Remote> {
        use proto::ticket_reply::Outcome;
        let fence = self.registered.load(Relaxed);
        if fence == 0 {
            return Err(Remote::Failed("this gateway has not registered yet".to_owned()));
        }
        let mut located = None;
        // The second answer is to where the device is that the first one asked for.
        for _ in 0..2 {
            let reply = self.ask(Size::Usual, async |client, connection| {
                let request = proto::TicketRequest {
                    session: session(fence, connection),
                    message: message.to_vec(),
                    located: located.map(|(device, _): (u64, Option<[u8; 16]>)| device),
                    address: located
                        .and_then(|(_, address)| address)
                        .map_or_else(Vec::new, |address| address.to_vec()),
                };
                client.ticket(request).await
            });
            match reply.await?.outcome {
                None => return Ok(None),
                Some(Outcome::Answer(answer)) => return Ok(Some(answer)),
                Some(Outcome::Locate(device)) => located = Some((device, locate(DeviceId(device)))),
            }
        }
        Err(Malformed("answer to a ticket").into())
    }

    /// How the gateway stands.
    ///
    /// # Errors
    /// [`Remote`].
    pub async fn tell(&self, fence: u64, told: &Told) -> Result<(), Remote> {
        let reply = self.ask(Size::Usual, async |client, connection| {
            let request = proto::TellRequest {
                session: session(fence, connection),
                dataplane: told.dataplane.clone(),
                devices: told.devices,
                slots: told.slots,
                sessions: told.sessions,
                authentications_per_s: told.authentications_per_s,
                latency_us_p50: told.latency_us_p50,
                latency_us_p99: told.latency_us_p99,
                verdicts: told.verdicts.clone(),
                dropped_types: told.dropped_types.clone(),
                kernel_drops: told.kernel_drops.clone(),
                tickets: told.tickets.clone(),
            };
            client.tell(request).await
        });
        reply.await?;
        Ok(())
    }
}

fn session(fence: u64, connection: Vec<u8>) -> Option<proto::Session> {
    Some(proto::Session { fence, connection })
}

/// What a status means: a denial that another controller would repeat, or a failure that it may not have.
fn denial(status: &Status) -> Result<Remote, Remote> {
    let why = status.metadata().get(DENIAL).and_then(|why| why.to_str().ok());
    let message = || status.message().to_owned();
    match why {
        Some("replaced") => Ok(Remote::Replaced(message())),
        Some("restored") => Ok(Remote::Restored(message())),
        Some("untrusted") => Ok(Remote::Untrusted(message())),
        // About the question, or about who asks.
        _ if matches!(status.code(), Code::InvalidArgument | Code::Unauthenticated) => {
            Ok(Remote::Failed(message()))
        }
        // Its own: whatever is wrong with its database, another controller may stand before another one.
        Some(_) => Err(Remote::Failed(message())),
        None => Err(Remote::Failed(format!("{}: {}", status.code(), message()))),
    }
}

/// An error with its causes.
fn said(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !said.contains(&more) {
            said = format!("{said}: {more}");
        }
        cause = error.source();
    }
    said
}
