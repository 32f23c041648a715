//! The controller's end.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linewarden_controller::attest::{Appraised, Verifier};
use linewarden_controller::trust::{Memory, Report, Times, Verdict};
use linewarden_controller::{Carrier, Controller, Denial, Link, SessionReport};
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_registry::{Moment, RegistryError, Revision, RoundRecord};
use tonic::{Code, Request, Response, Status};

use crate::convert::{self, Malformed};
use crate::identity::PeerGateway;
use crate::proto;
use crate::proto::link_server::LinkServer;

/// Longest message, bytes: what a data plane runs, entry by entry.
pub const MESSAGE_BYTES_MAX: usize = 32 << 20;
/// Longest message of a gateway beside that and what came of a round, bytes: as many entries as there may be, each well below 256. All of
/// it is decoded before anything is known of a registration, and an entry without fields, of 2 bytes, takes 56 in memory: 14 MiB at most,
/// where its list was doubled just now. Long messages have no lists but of numbers of 8 bytes.
pub const SHORT_MESSAGE_BYTES_MAX: usize = 256 << 10;
/// Of the number that a gateway draws for a connection.
pub(crate) const CONNECTION_BYTES: usize = 16;
/// The trailer that says why.
pub(crate) const DENIAL: &str = "linewarden-denial";
/// Another process is this gateway now, or none is any more.
pub(crate) const REPLACED: &str = "replaced";

/// Clocks and randomness of who serves.
pub trait Surroundings: Send + Sync {
    /// Now.
    fn times(&self) -> Times;
    /// Now by the boot-time clock of this machine; `None` where nobody tells which start of it that counts from.
    fn moment(&self) -> Option<Moment>;
    /// Fills it with random bytes; `false` where there are none.
    fn random(&self, bytes: &mut [u8]) -> bool;
}

/// What a gateway says of itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    /// The kind of its data plane.
    pub dataplane: String,
    /// Devices that it holds.
    pub devices: u64,
    /// Devices that fit.
    pub slots: u64,
    /// Sessions that live, where that is counted.
    pub sessions: Option<u64>,
    /// Accepted RESPONSEs a second, since it was told before.
    pub authentications_per_s: Option<f64>,
    /// Latency of an authentication at the gateway, µs: from when an accepted RESPONSE was parsed until its ACK was written, in the
    /// data plane and over the last minute. The median.
    pub latency_us_p50: Option<f64>,
    /// Likewise, 99 of 100 are no longer.
    pub latency_us_p99: Option<f64>,
    /// Frames by verdict since its start.
    pub verdicts: BTreeMap<String, u64>,
    /// Frames that the gate has dropped since then, by the name of their Ethernet type.
    pub dropped_types: BTreeMap<String, u64>,
    /// Packets that the kernel has dropped since then before the gateway received them, by whose socket it was:
    /// [`Told::KERNEL_DROPS`].
    pub kernel_drops: BTreeMap<String, u64>,
    /// Tickets since then, by what became of them: [`Told::TICKETS`]. Empty where none are taken.
    pub tickets: BTreeMap<String, u64>,
}

impl Told {
    /// Names in [`Told::kernel_drops`]: the sockets of the data plane `host`, and those at which tickets are taken.
    pub const KERNEL_DROPS: [&'static str; 2] = ["dataplane", "tickets"];
    /// Names in [`Told::tickets`].
    pub const TICKETS: [&'static str; 5] = ["answered", "strange", "limited", "silent", "failed"];
}

/// Who is told how gateways stand.
#[tonic::async_trait]
pub trait TellSink: Send + Sync {
    /// A gateway has registered, with the fence that it got.
    fn entered(&self, gateway: GatewayId, fence: u64, version: &str);
    /// The newest process of it has asked something.
    fn heard(&self, gateway: GatewayId);
    /// It has said how it stands.
    fn told(&self, gateway: GatewayId, told: Told);
    /// A round has ended, and this has come of it; it may be told again.
    fn appraised(&self, round: &RoundRecord, appraised: &Appraised);
    /// How one stands that has to show what it runs; told again and again.
    fn stands(&self, gateway: GatewayId, report: &Report);
    /// What the controller that one of them was with before has left.
    ///
    /// # Errors
    /// A failure of the database.
    async fn recall(&self, gateway: GatewayId) -> Result<Option<Memory>, RegistryError>;
}

/// Serves gateways. Cheap to clone.
#[derive(Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

struct Inner {
    controller: Controller,
    surroundings: Box<dyn Surroundings>,
    sink: Box<dyn TellSink>,
    connections: Mutex<HashMap<GatewayId, Connection>>,
}

/// What is remembered of a gateway for as long as it stays.
#[derive(Default)]
struct Connection {
    id: Vec<u8>,
    /// The newest registration that was found to be so.
    fence: u64,
    verifier: Arc<tokio::sync::Mutex<Option<(u64, Verifier)>>>,
}

/// Questions that show a registration.
trait Asked {
    fn session(&self) -> Option<&proto::Session>;
}

macro_rules! asked {
    ($($kind:ident),+) => {
        $(impl Asked for proto::$kind {
            fn session(&self) -> Option<&proto::Session> {
                self.session.as_ref()
            }
        })+
    };
}

asked!(
    ResumeRequest,
    LeaseRequest,
    ReceiveRequest,
    SettleRequest,
    ReportRequest,
    ChangesRequest,
    ShowRequest,
    PlanRequest,
    ProversRequest,
    AppraiseRequest,
    ProverIdsRequest,
    TicketRequest,
    TellRequest
);

impl Server {
    /// Serves what this controller knows.
    pub fn new(
        controller: Controller,
        surroundings: impl Surroundings + 'static,
        sink: impl TellSink + 'static,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                controller,
                surroundings: Box::new(surroundings),
                sink: Box::new(sink),
                connections: Mutex::default(),
            }),
        }
    }

    /// As a service of gRPC that takes messages of so many bytes at most. Each request must have a [`PeerGateway`] among its extensions.
    #[must_use]
    pub fn into_service(self, message_bytes_max: usize) -> LinkServer<Self> {
        LinkServer::new(self)
            .max_decoding_message_size(message_bytes_max)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<GatewayId, Connection>> {
        // Whole at every moment, whoever panicked.
        self.inner
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of the connection; over another one than before, what is remembered is forgotten. Not for who only says that its fence
    /// is the newest: that would have forgotten what is the newest one's. `None` is of a process that is about to register.
    async fn follow(&self, gateway: GatewayId, id: &[u8], shown: Option<u64>) -> Result<(), Status> {
        if id.len() != CONNECTION_BYTES {
            return Err(Malformed("the id of a connection is not of 16 bytes").into());
        }
        let is_new = |connection: &Connection| {
            connection.id != id && shown.is_none_or(|fence| fence >= connection.fence)
        };
        if !self.connections().get(&gateway).is_none_or(is_new) {
            return Ok(());
        }
        if let Some(fence) = shown {
            self.check(&self.inner.controller.link(gateway, fence)).await?;
        }
        // Before anything is answered over it.
        let memory = match self.inner.controller.scrutinizes(gateway) {
            true => self.inner.sink.recall(gateway).await,
            false => Ok(None),
        };
        let memory = memory.map_err(|error| self.denied(error))?;
        let mut connections = self.connections();
        let connection = connections.entry(gateway).or_default();
        if is_new(connection) {
            *connection = Connection {
                id: id.to_vec(),
                fence: connection.fence,
                ..Connection::default()
            };
            // While nobody else can find that it is known already.
            self.inner.controller.begin_trust(gateway, memory);
        }
        Ok(())
    }

    /// Refuses who was replaced or is retired, by two small rows. Whose fence was raised because it is not trusted is to hear of it.
    async fn check(&self, link: &Link) -> Result<(), Status> {
        match link.check().await {
            Err(error) if !self.inner.controller.has_distrusted(&error) => Err(self.denied(error)),
            _ => Ok(()),
        }
    }

    /// The registration was the newest just now.
    fn confirm(&self, gateway: GatewayId, fence: u64) {
        if let Some(connection) = self.connections().get_mut(&gateway) {
            connection.fence = connection.fence.max(fence);
        }
    }

    /// Who asks, by which registration, and what.
    async fn enter<M: Asked>(&self, request: Request<M>) -> Result<(Link, M), Status> {
        let gateway = gateway(&request)?;
        let message = request.into_inner();
        let session = message.session().ok_or(Malformed("no session"))?;
        self.inner
            .controller
            .pass_time(self.inner.surroundings.times().now_ns);
        self.follow(gateway, &session.connection, Some(session.fence))
            .await?;
        Ok((self.inner.controller.link(gateway, session.fence), message))
    }

    /// Answers a question under the registration that it shows. Who has been replaced or is retired was not heard, however often it asks.
    async fn answer<M: Asked, T>(
        &self,
        request: Request<M>,
        answer: impl AsyncFnOnce(Link, M) -> Result<T, Status>,
    ) -> Result<Response<T>, Status> {
        let (link, message) = self.enter(request).await?;
        let (gateway, fence) = (link.gateway(), link.number());
        let answer = answer(link, message).await;
        if answer.is_ok() {
            self.confirm(gateway, fence);
        }
        // What is malformed is refused before the registration is looked at.
        let is_nobody = |status: &Status| is_replaced(status) || status.code() == Code::InvalidArgument;
        if !answer.as_ref().is_err_and(is_nobody) {
            self.inner.sink.heard(gateway);
        }
        Ok(Response::new(answer?))
    }

    fn denied(&self, error: impl Into<Denial>) -> Status {
        let denial = error.into();
        let (why, code) = match &denial {
            Denial::Untrusted { .. } => ("untrusted", Code::FailedPrecondition),
            Denial::Registry(error @ RegistryError::OldFence { .. }) => {
                match self.inner.controller.has_distrusted(error) {
                    true => ("untrusted", Code::FailedPrecondition),
                    false => (REPLACED, Code::FailedPrecondition),
                }
            }
            Denial::Registry(RegistryError::Restored { .. }) => ("restored", Code::FailedPrecondition),
            Denial::Registry(RegistryError::RetiredGateway { .. }) => (REPLACED, Code::PermissionDenied),
            Denial::Registry(
                RegistryError::Unreachable(_) | RegistryError::Locked | RegistryError::DiskFull,
            ) => ("failed", Code::Unavailable),
            Denial::Registry(_) => ("failed", Code::Internal),
        };
        denial_status(code, denial.to_string(), why)
    }

    /// Runs `ask` with the verifier of this registration, which knows how the provers stood once the registry has told it.
    async fn with_verifier<T>(
        &self,
        link: Link,
        ask: impl AsyncFnOnce(&mut Verifier) -> Result<T, Denial>,
    ) -> Result<T, Status> {
        let gateway = link.gateway();
        // Opened for nobody else: it reads how all provers of the fleet stand.
        link.check().await.map_err(|error| self.denied(error))?;
        let of_now = || {
            let connections = self.connections();
            connections
                .get(&gateway)
                .map(|connection| Arc::clone(&connection.verifier))
        };
        let verifier = of_now().unwrap_or_default();
        let mut place = verifier.lock().await;
        let number = link.number();
        if place.as_ref().is_none_or(|(of, _)| *of != number) {
            let opened = Verifier::open(link).await.map_err(|error| self.denied(error))?;
            *place = Some((number, opened));
        }
        let Some((_, opened)) = place.as_mut() else {
            return Err(Status::internal("no verifier"));
        };
        // What another connection shows meanwhile is not this one's.
        if of_now().is_none_or(|of_now| !Arc::ptr_eq(&of_now, &verifier)) {
            return Err(Status::unavailable(
                "another connection has taken this one's place",
            ));
        }
        ask(opened).await.map_err(|error| self.denied(error))
    }

    fn tell_trust(&self, gateway: GatewayId) {
        if let Some(report) = self.inner.controller.report(gateway) {
            self.inner.sink.stands(gateway, &report);
        }
    }

    /// What is wanted of the gateway, and what came of it.
    fn conclude(&self, gateway: GatewayId, Verdict { scrutiny, link }: &Verdict) -> proto::Scrutiny {
        self.tell_trust(gateway);
        convert::scrutiny_to_wire(scrutiny, link.as_ref().map(Link::number))
    }
}

fn gateway<M>(request: &Request<M>) -> Result<GatewayId, Status> {
    match request.extensions().get::<PeerGateway>() {
        Some(PeerGateway(gateway)) => Ok(*gateway),
        None => Err(Status::unauthenticated(
            "this certificate is no gateway's: it names no urn:linewarden:gateway:N",
        )),
    }
}

fn is_replaced(status: &Status) -> bool {
    status.metadata().get(DENIAL).is_some_and(|why| why == REPLACED)
}

fn denial_status(code: Code, message: String, why: &'static str) -> Status {
    let mut status = Status::new(code, message);
    status
        .metadata_mut()
        .insert(DENIAL, tonic::metadata::MetadataValue::from_static(why));
    status
}

impl From<Malformed> for Status {
    fn from(error: Malformed) -> Self {
        Status::invalid_argument(error.to_string())
    }
}

#[tonic::async_trait]
impl proto::link_server::Link for Server {
    async fn enter(
        &self,
        request: Request<proto::EnterRequest>,
    ) -> Result<Response<proto::EnterReply>, Status> {
        let gateway = gateway(&request)?;
        let proto::EnterRequest { connection, version } = request.into_inner();
        let times = self.inner.surroundings.times();
        self.inner.controller.pass_time(times.now_ns);
        self.follow(gateway, &connection, None).await?;
        let link = self.inner.controller.connect(gateway, times.now_s);
        let fence = link.await.map_err(|error| self.denied(error))?.number();
        self.confirm(gateway, fence);
        self.inner.sink.entered(gateway, fence, &version);
        self.tell_trust(gateway);
        Ok(Response::new(proto::EnterReply { fence }))
    }

    async fn resume(
        &self,
        request: Request<proto::ResumeRequest>,
    ) -> Result<Response<proto::ResumeReply>, Status> {
        self.answer(request, async |link, request| {
            let mut leases = link.held_from(convert::cursor_from_wire(&request.cursor)?);
            let chunk = leases.next_chunk().await.map_err(|error| self.denied(error))?;
            Ok(proto::ResumeReply {
                provisions: chunk.provisions.iter().map(convert::provision_to_wire).collect(),
                damaged: chunk.damaged,
                done: chunk.progress.0,
                of: chunk.progress.1,
                last: chunk.last,
                cursor: convert::cursor_to_wire(leases.place()),
            })
        })
        .await
    }

    async fn lease(
        &self,
        request: Request<proto::LeaseRequest>,
    ) -> Result<Response<proto::LeaseReply>, Status> {
        self.answer(request, async |link, request| {
            let wants: Vec<_> = convert::entries(&request.wants)?
                .map(convert::want_from_wire)
                .collect();
            let (provisions, refused) = link.lease(&wants).await.map_err(|error| self.denied(error))?;
            Ok(proto::LeaseReply {
                provisions: provisions.iter().map(convert::provision_to_wire).collect(),
                refused: refused.iter().map(convert::refused_to_wire).collect(),
            })
        })
        .await
    }

    async fn receive(
        &self,
        request: Request<proto::ReceiveRequest>,
    ) -> Result<Response<proto::ReceiveReply>, Status> {
        self.answer(request, async |link, request| {
            let knocks = convert::entries(&request.knocks)?.map(convert::knock_from_wire);
            let knocks: Vec<_> = knocks.collect::<Result<_, _>>()?;
            let fresh = convert::exactly(&request.fresh, "a fresh value")?;
            let receptions = link.receive(&knocks, fresh).await;
            let receptions = receptions.map_err(|error| self.denied(error))?;
            Ok(proto::ReceiveReply {
                receptions: receptions.iter().map(convert::reception_to_wire).collect(),
            })
        })
        .await
    }

    async fn settle(
        &self,
        request: Request<proto::SettleRequest>,
    ) -> Result<Response<proto::SettleReply>, Status> {
        self.answer(request, async |link, request| {
            let settlements = convert::entries(&request.settlements)?.map(convert::settlement_from_wire);
            let settlements: Vec<_> = settlements.collect();
            let back = link
                .settle(&settlements)
                .await
                .map_err(|error| self.denied(error))?;
            Ok(proto::SettleReply { back })
        })
        .await
    }

    async fn report(
        &self,
        request: Request<proto::ReportRequest>,
    ) -> Result<Response<proto::ReportReply>, Status> {
        self.answer(request, async |link, request| {
            let reports = convert::entries(&request.reports)?.map(convert::report_from_wire);
            let reports: Vec<SessionReport> = reports.collect::<Result<_, _>>()?;
            let now = self
                .inner
                .controller
                .moment(self.inner.surroundings.moment())
                .await;
            let Some(now) = now.map_err(|error| self.denied(error))? else {
                link.check().await.map_err(|error| self.denied(error))?;
                // Nothing can be compared: each is the newest that is known.
                let reported = vec![proto::Reported::default(); reports.len()];
                return Ok(proto::ReportReply { reported });
            };
            let reported = link
                .report(&reports, now)
                .await
                .map_err(|error| self.denied(error))?;
            Ok(proto::ReportReply {
                reported: reported.into_iter().map(convert::reported_to_wire).collect(),
            })
        })
        .await
    }

    async fn changes(
        &self,
        request: Request<proto::ChangesRequest>,
    ) -> Result<Response<proto::ChangesReply>, Status> {
        self.answer(request, async |link, request| {
            let surroundings = &self.inner.surroundings;
            let mut random = || {
                let mut bytes = [0; 32];
                surroundings.random(&mut bytes).then_some(bytes)
            };
            // Before what may fail because of it.
            let looked = link.look(surroundings.times(), &mut random).await;
            let looked = looked.map_err(|error| self.denied(error))?;
            let scrutiny = looked
                .as_ref()
                .map(|verdict| self.conclude(link.gateway(), verdict));
            let link = looked.and_then(|verdict| verdict.link).unwrap_or(link);
            let changes = link.changes(Revision(request.since), surroundings.moment()).await;
            let changes = changes.map_err(|error| self.denied(error))?;
            Ok(proto::ChangesReply {
                scrutiny,
                ..convert::changes_to_wire(&changes)
            })
        })
        .await
    }

    async fn show(&self, request: Request<proto::ShowRequest>) -> Result<Response<proto::ShowReply>, Status> {
        self.answer(request, async |link, request| {
            let times = self.inner.surroundings.times();
            let judged = link
                .judge(request.statement, Some(request.inventory), times)
                .await;
            match judged.map_err(|error| self.denied(error))? {
                Ok(verdict) => Ok(proto::ShowReply {
                    scrutiny: Some(self.conclude(link.gateway(), &verdict)),
                }),
                Err(error) => Err(denial_status(
                    Code::FailedPrecondition,
                    error.to_string(),
                    "untrusted",
                )),
            }
        })
        .await
    }

    async fn plan(&self, request: Request<proto::PlanRequest>) -> Result<Response<proto::PlanReply>, Status> {
        self.answer(request, async |link, request| {
            let surroundings = &self.inner.surroundings;
            let now_s = surroundings.times().now_s;
            let wish = convert::wish_from_wire(&request);
            let plan = self
                .with_verifier(link, async |verifier| {
                    let mut random = || {
                        let mut bytes = [0; 8];
                        surroundings.random(&mut bytes).then_some(bytes)
                    };
                    Ok(verifier.plan(wish, now_s, &mut random).await?)
                })
                .await?;
            Ok(convert::plan_to_wire(plan.as_ref()))
        })
        .await
    }

    async fn provers(
        &self,
        request: Request<proto::ProversRequest>,
    ) -> Result<Response<proto::ProversReply>, Status> {
        self.answer(request, async |link, request| {
            let start = convert::start_from_wire(request.start)?;
            let since = request.since;
            let provers = self
                .with_verifier(link, async |verifier| verifier.provers(start, since).await)
                .await?;
            Ok(convert::provers_to_wire(&provers))
        })
        .await
    }

    async fn appraise(
        &self,
        request: Request<proto::AppraiseRequest>,
    ) -> Result<Response<proto::AppraiseReply>, Status> {
        self.answer(request, async |link, request| {
            // Before each of its devices is looked up.
            link.check().await.map_err(|error| self.denied(error))?;
            let (mut round, age_ns) = convert::outcome_from_wire(&request)?;
            // Whoever has a gateway's key decides about no other gateway's devices.
            let devices: Vec<DeviceId> = round.verdicts.iter().map(|verdict| verdict.device).collect();
            let known = link.known(&devices).await;
            let known = known.map_err(|error| self.denied(error))?;
            round.verdicts.retain(|verdict| known.contains(&verdict.device));
            let now_s = self.inner.surroundings.times().now_s;
            let ended_s = now_s.saturating_sub(age_ns / 1_000_000_000);
            let gateway = link.gateway();
            let appraised = self
                .with_verifier(link, async |verifier| {
                    Ok(verifier.appraise(&round, ended_s, now_s).await?)
                })
                .await?;
            self.inner
                .sink
                .appraised(&round.record(gateway, ended_s), &appraised);
            Ok(convert::appraised_to_wire(&appraised))
        })
        .await
    }

    async fn prover_ids(
        &self,
        request: Request<proto::ProverIdsRequest>,
    ) -> Result<Response<proto::ProverIdsReply>, Status> {
        self.answer(request, async |link, request| {
            let ids = link.prover_ids(request.since).await;
            let ids = ids.map_err(|error| self.denied(error))?;
            Ok(convert::ids_to_wire(&ids))
        })
        .await
    }

    async fn ticket(
        &self,
        request: Request<proto::TicketRequest>,
    ) -> Result<Response<proto::TicketReply>, Status> {
        use proto::ticket_reply::Outcome;
        self.answer(request, async |link, request| {
            link.check().await.map_err(|error| self.denied(error))?;
            let address = convert::optional::<16>(&request.address, "where a device is")?;
            let located = request.located.map(|device| (DeviceId(device), address));
            let wanted = Mutex::new(None);
            let locate = |device: DeviceId| match located {
                Some((of, address)) if of == device => address,
                _ => {
                    *wanted.lock().unwrap_or_else(PoisonError::into_inner) = Some(device);
                    None
                }
            };
            let mut aead_nonce = [0; 24];
            if !self.inner.surroundings.random(&mut aead_nonce) {
                return Err(denial_status(
                    Code::Unavailable,
                    "no random bytes".to_owned(),
                    "failed",
                ));
            }
            let carrier = Carrier {
                aead_nonce,
                now_s: self.inner.surroundings.times().now_s,
                locate: &locate,
            };
            let answer = self
                .inner
                .controller
                .ticket(link.gateway(), &request.message, &carrier)
                .await;
            let answer = answer.map_err(|error| self.denied(error))?;
            // An answer that was made without what it should hold is thrown away: asked again, it is made once more.
            let wanted = wanted.into_inner().unwrap_or_else(PoisonError::into_inner);
            let outcome = match wanted {
                Some(device) => Some(Outcome::Locate(device.0)),
                None => answer.map(Outcome::Answer),
            };
            Ok(proto::TicketReply { outcome })
        })
        .await
    }

    async fn tell(&self, request: Request<proto::TellRequest>) -> Result<Response<proto::TellReply>, Status> {
        self.answer(request, async |link, request| {
            link.check().await.map_err(|error| self.denied(error))?;
            let told = Told {
                dataplane: request.dataplane,
                devices: request.devices,
                slots: request.slots,
                sessions: request.sessions,
                authentications_per_s: request.authentications_per_s,
                latency_us_p50: request.latency_us_p50,
                latency_us_p99: request.latency_us_p99,
                verdicts: request.verdicts,
                dropped_types: request.dropped_types,
                kernel_drops: request.kernel_drops,
                tickets: request.tickets,
            };
            self.inner.sink.told(link.gateway(), told);
            Ok(proto::TellReply {})
        })
        .await
    }
}
