//! StreamChannel: sessions, packets, notifications (5, 15).

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio_stream::Stream;
use tonic::{Code, Status, Streaming};

use super::{Clients, Shared, election_id_of, timestamp_ns};
use crate::arbitration::{Candidacy, Notice, Standing, StreamId};
use crate::digest::DigestList;
use crate::error::EntityError;
use crate::ids::DigestId;
use crate::proto::{google, v1};
use crate::target::{Event, EventReceiver, Target};
use crate::translate::Translator;
use v1::stream_error::Details;
use v1::stream_message_request::Update as Incoming;
use v1::stream_message_response::Update as Message;

/// Messages that wait for a client to take them.
const OUTBOX_MESSAGES: usize = 1024;
/// Of which packets take half at most, and so many places are only for arbitration, without which a client does not know where it
/// stands.
const OUTBOX_RESERVED: usize = 64;

/// One client's end of the messages to it.
pub(super) struct Outbox {
    queue: mpsc::Sender<v1::StreamMessageResponse>,
    /// Messages but for packets that found no room since it was last said.
    lost: Arc<AtomicU64>,
    ending: Arc<Ending>,
}

/// How a stream ends, if not by its client.
#[derive(Default)]
struct Ending {
    status: OnceLock<Status>,
    said: Notify,
}

impl Outbox {
    /// Ends the stream with this status, once what waits was taken.
    pub(super) fn end(&self, status: Status) {
        let _ = self.ending.status.set(status);
        self.ending.said.notify_one();
    }

    /// What a client may miss is dropped where it is slow, packets first. What was no packet is told to be lost, once it has taken the
    /// rest.
    fn offer(&self, message: Message) {
        let is_packet = matches!(message, Message::Packet(_));
        let kept = if is_packet {
            OUTBOX_MESSAGES / 2
        } else {
            OUTBOX_RESERVED
        };
        if self.queue.capacity() > kept {
            let _ = self.queue.try_send(v1::StreamMessageResponse {
                update: Some(message),
            });
        } else if !is_packet {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn lose(&self, lost: u64) {
        if self.queue.capacity() > OUTBOX_RESERVED {
            let update = Some(loss(lost));
            let _ = self.queue.try_send(v1::StreamMessageResponse { update });
        } else {
            self.lost.fetch_add(lost, Ordering::Relaxed);
        }
    }

    fn tell(&self, message: Message) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.queue.try_send(v1::StreamMessageResponse {
            update: Some(message),
        }) {
            self.end(Status::resource_exhausted(
                "this client has not taken its messages for too long",
            ));
        }
    }
}

/// Says that so many notices were lost (16.2: RESOURCE_EXHAUSTED, and no details, for it is about none of the client's messages).
fn loss(lost: u64) -> Message {
    Message::Error(v1::StreamError {
        canonical_code: Code::ResourceExhausted.into(),
        message: format!("{lost} notices were lost, for nobody took them in time"),
        ..Default::default()
    })
}

/// The messages to one client, and at last how its stream ends.
pub struct Outgoing {
    queue: mpsc::Receiver<v1::StreamMessageResponse>,
    lost: Arc<AtomicU64>,
    ending: Arc<Ending>,
    ended: bool,
}

impl Stream for Outgoing {
    type Item = Result<v1::StreamMessageResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.queue.poll_recv(context) {
            Poll::Ready(None) if !self.ended => {
                self.ended = true;
                Poll::Ready(self.ending.status.get().cloned().map(Err))
            }
            Poll::Pending => match self.lost.swap(0, Ordering::Relaxed) {
                0 => Poll::Pending,
                lost => {
                    let update = Some(loss(lost));
                    Poll::Ready(Some(Ok(v1::StreamMessageResponse { update })))
                }
            },
            other => other.map(|message| message.map(Ok)),
        }
    }
}

/// A client has come.
pub(super) fn open<T: Target>(
    shared: Arc<Shared<T>>,
    incoming: Streaming<v1::StreamMessageRequest>,
) -> Outgoing {
    let (sender, queue) = mpsc::channel(OUTBOX_MESSAGES);
    let ending = Arc::new(Ending::default());
    let lost = Arc::<AtomicU64>::default();
    let id = {
        let mut clients = shared.clients();
        clients.streams += 1;
        let id = StreamId(clients.streams);
        clients.outboxes.insert(
            id,
            Outbox {
                queue: sender,
                lost: Arc::clone(&lost),
                ending: ending.clone(),
            },
        );
        id
    };
    tokio::spawn(listen(shared, id, incoming, ending.clone()));
    Outgoing {
        queue,
        lost,
        ending,
        ended: false,
    }
}

/// Takes one client's messages until it goes or has to.
async fn listen<T: Target>(
    shared: Arc<Shared<T>>,
    id: StreamId,
    mut incoming: Streaming<v1::StreamMessageRequest>,
    ending: Arc<Ending>,
) {
    loop {
        let message = tokio::select! {
            message = incoming.message() => message,
            () = ending.said.notified() => break,
        };
        let Ok(Some(v1::StreamMessageRequest { update })) = message else {
            break;
        };
        if let Err(status) = take(&shared, id, update).await {
            let _ = ending.status.set(status);
            break;
        }
    }
    let mut clients = shared.clients();
    clients.outboxes.remove(&id);
    let notices = clients.arbitration.close(id);
    clients.tell(notices, shared.device_id);
}

/// An error ends the stream.
async fn take<T: Target>(shared: &Shared<T>, id: StreamId, message: Option<Incoming>) -> Result<(), Status> {
    match message {
        Some(Incoming::Arbitration(update)) => arbitrate(shared, id, update).await,
        Some(Incoming::Packet(packet)) => {
            if let Err(error) = packet_out(shared, id, &packet).await {
                let details = Details::PacketOut(v1::PacketOutError {
                    packet_out: Some(packet),
                });
                shared.report(id, error, details);
            }
            Ok(())
        }
        Some(Incoming::DigestAck(ack)) => {
            if let Err(error) = digest_ack(shared, id, &ack).await {
                let details = Details::DigestListAck(v1::DigestListAckError {
                    digest_list_ack: Some(ack),
                });
                shared.report(id, error, details);
            }
            Ok(())
        }
        Some(Incoming::Other(other)) => {
            let error = EntityError::unimplemented("this architecture has no stream messages of its own");
            shared.report(
                id,
                error,
                Details::Other(v1::StreamOtherError { other: Some(other) }),
            );
            Ok(())
        }
        None => {
            let error = EntityError::unimplemented("a stream message of a kind that P4Runtime 1.5 has not");
            shared.report(id, error, Details::Other(v1::StreamOtherError { other: None }));
            Ok(())
        }
    }
}

async fn arbitrate<T: Target>(
    shared: &Shared<T>,
    id: StreamId,
    update: v1::MasterArbitrationUpdate,
) -> Result<(), Status> {
    let role = update.role.unwrap_or_default();
    #[allow(deprecated, reason = "only to say that it is not taken any more")]
    if role.id != 0 && role.name.is_empty() {
        return Err(old_role(role.id));
    }
    let candidacy = Candidacy {
        device_id: update.device_id,
        role: role.name,
        config: role.config,
        election_id: update.election_id.as_ref().map(election_id_of),
    };
    let takeover = {
        let mut clients = shared.clients();
        let outcome = clients.arbitration.update(id, candidacy)?;
        clients.tell(outcome.notices, shared.device_id);
        outcome.takeover
    };
    if let Some(takeover) = takeover {
        // What the primary before has begun is finished once this lock can be had.
        drop(shared.programs.write().await);
        let mut clients = shared.clients();
        let notices = clients.arbitration.complete(takeover);
        clients.tell(notices, shared.device_id);
    }
    Ok(())
}

/// A role by its number, as before P4Runtime 1.4: taking it for the default role would give it everything.
pub(super) fn old_role(id: u64) -> Status {
    Status::invalid_argument(format!(
        "role {id}: roles have names since P4Runtime 1.4; give the name"
    ))
}

async fn packet_out<T: Target>(
    shared: &Shared<T>,
    id: StreamId,
    packet: &v1::PacketOut,
) -> Result<(), EntityError> {
    shared.check_stream(id, "packets are taken")?;
    let programs = shared.programs.read().await;
    let live = programs
        .live
        .as_ref()
        .ok_or_else(|| EntityError::precondition("no program runs"))?;
    let metadata = Translator::new(&live.info).decode_packet_out(&packet.metadata)?;
    shared.target.packet_out(metadata, packet.payload.clone())
}

async fn digest_ack<T: Target>(
    shared: &Shared<T>,
    id: StreamId,
    ack: &v1::DigestListAck,
) -> Result<(), EntityError> {
    shared.check_stream(id, "acknowledgements are taken")?;
    let digest = DigestId(ack.digest_id);
    let programs = shared.programs.read().await;
    if programs
        .live
        .as_ref()
        .is_none_or(|live| live.info.digests().get(digest).is_none())
    {
        return Err(EntityError::invalid(format!(
            "the program has no digest with id {digest}"
        )));
    }
    shared.digests().acknowledge(digest, ack.list_id);
    Ok(())
}

impl<T> Shared<T> {
    fn check_stream(&self, id: StreamId, what: &str) -> Result<(), EntityError> {
        if self.clients().arbitration.is_primary(id) {
            return Ok(());
        }
        Err(EntityError::denied(format!(
            "{what} from primaries only, and this client is none"
        )))
    }

    fn report(&self, id: StreamId, error: EntityError, details: Details) {
        let message = v1::StreamError {
            canonical_code: error.code.into(),
            message: error.message,
            details: Some(details),
            ..Default::default()
        };
        if let Some(outbox) = self.clients().outboxes.get(&id) {
            outbox.offer(Message::Error(message));
        }
    }

    /// Returns whether there was a primary to offer it to.
    fn offer_to_primaries(&self, message: &Message) -> bool {
        let clients = self.clients();
        let mut any = false;
        for outbox in clients
            .arbitration
            .primaries()
            .filter_map(|id| clients.outboxes.get(&id))
        {
            outbox.offer(message.clone());
            any = true;
        }
        any
    }

    /// So many events were lost before they were messages.
    fn lose_for_primaries(&self, lost: u64) {
        let clients = self.clients();
        let primaries = clients.arbitration.primaries();
        primaries
            .filter_map(|id| clients.outboxes.get(&id))
            .for_each(|outbox| outbox.lose(lost));
    }

    fn offer_list(&self, list: &DigestList, data: Vec<v1::P4Data>) {
        let message = Message::Digest(v1::DigestList {
            digest_id: list.id.0,
            list_id: list.list_id,
            data,
            timestamp: timestamp_ns(),
        });
        if !self.offer_to_primaries(&message) {
            // Nobody will acknowledge what nobody gets: the next primary is to hear of it anew.
            self.digests().acknowledge(list.id, list.list_id);
        }
    }
}

impl Clients {
    fn tell(&mut self, notices: Vec<Notice>, device_id: u64) {
        for notice in notices {
            if let Some(outbox) = self.outboxes.get(&notice.stream) {
                outbox.tell(Message::Arbitration(message_of(notice, device_id)));
            }
        }
    }
}

fn message_of(notice: Notice, device_id: u64) -> v1::MasterArbitrationUpdate {
    let (code, message) = match notice.standing {
        Standing::Primary => (Code::Ok, "this client is the primary"),
        Standing::Backup => (Code::AlreadyExists, "another client is the primary"),
        Standing::Leaderless => (Code::NotFound, "there is no primary"),
    };
    let role = v1::Role {
        name: notice.role,
        config: notice.config,
        ..Default::default()
    };
    v1::MasterArbitrationUpdate {
        device_id,
        role: Some(role).filter(|role| *role != v1::Role::default()),
        election_id: notice.election_id.map(|id| v1::Uint128 {
            high: (id >> 64) as u64,
            low: id as u64,
        }),
        status: Some(google::rpc::Status {
            code: code.into(),
            message: message.to_owned(),
            details: Vec::new(),
        }),
    }
}

/// Passes on what the switch tells, until its queue or the service is gone.
pub(super) async fn pass_on_events<T: Target>(shared: Weak<Shared<T>>, mut events: EventReceiver) {
    loop {
        let Some(strong) = shared.upgrade() else { return };
        let wait = strong
            .digests()
            .next_due_ns()
            .map(|due| due.saturating_sub(strong.now_ns()));
        let changed = strong.digests_changed.clone();
        drop(strong);
        let event = tokio::select! {
            event = events.next() => match event {
                Some(event) => Some(event),
                None => return,
            },
            () = changed.notified() => None,
            () = wait_ns(wait) => None,
        };
        let Some(strong) = shared.upgrade() else { return };
        if let Some(event) = event {
            pass_on(&strong, event);
        }
        match events.take_lost() {
            0 => {}
            lost => strong.lose_for_primaries(lost),
        }
        let due = strong.digests().due(strong.now_ns());
        for list in due {
            send_list(&strong, list);
        }
    }
}

/// Waits so long; for ever without an end.
async fn wait_ns(wait: Option<u64>) {
    match wait {
        Some(ns) => tokio::time::sleep(Duration::from_nanos(ns)).await,
        None => std::future::pending().await,
    }
}

fn pass_on<T: Target>(shared: &Shared<T>, event: Event) {
    let Some(live) = shared.live().clone() else { return };
    let translator = Translator::new(&live.info);
    match event {
        Event::PacketIn { metadata, payload } => {
            let fields = live.info.packet_in().map_or(0, |header| header.fields.len());
            // Of a program that ran before, while the packet waited here.
            if metadata.len() == fields {
                let metadata = translator.encode_packet_in(&metadata);
                shared.offer_to_primaries(&Message::Packet(v1::PacketIn { payload, metadata }));
            }
        }
        Event::IdleTimeout(entries) if !entries.is_empty() => {
            let table_entry = entries
                .iter()
                .map(|entry| translator.encode_entry(entry))
                .collect();
            let message = v1::IdleTimeoutNotification {
                table_entry,
                timestamp: timestamp_ns(),
            };
            shared.offer_to_primaries(&Message::IdleTimeoutNotification(message));
        }
        Event::IdleTimeout(_) => {}
        Event::Digest { id, data } => {
            let list = shared.digests().push(shared.now_ns(), id, data);
            if let Some(list) = list {
                send_list(shared, list);
            }
        }
    }
}

fn send_list<T: Target>(shared: &Shared<T>, list: DigestList) {
    let live = shared.live().clone();
    let digest = live.as_ref().and_then(|live| live.info.digests().get(list.id));
    if let Some(digest) = digest {
        let data = list.data.iter().map(|data| data.encode(&digest.data)).collect();
        shared.offer_list(&list, data);
    }
}
