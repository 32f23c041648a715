//! StreamChannel: arbitration, packets, notifications (5, 15).

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio_stream::Stream;
use tonic::{Code, Status, Streaming};

use super::{Clients, Shared, election_id_of, timestamp_ns};
use crate::arbitration::{ArbitrationNotice, ArbitrationRequest, ArbitrationStatus, StreamId};
use crate::digest::DigestList;
use crate::error::EntityError;
use crate::ids::DigestId;
use crate::proto::{google, v1};
use crate::target::{Event, EventReceiver, Target};
use crate::translate::Translator;
use v1::stream_error::Details;
use v1::stream_message_request::Update as Incoming;
use v1::stream_message_response::Update as Message;

/// Capacity of the message queue of a client.
const OUTBOX_MESSAGES: usize = 1024;
/// Number of messages of the queue that are reserved for arbitration messages, which report the status of the client.
/// Packets use at most half of the queue.
const OUTBOX_RESERVED: usize = 64;

/// Sender of messages to one client.
pub(super) struct Outbox {
    queue: mpsc::Sender<v1::StreamMessageResponse>,
    /// Messages other than packets that were dropped since the last report.
    lost: Arc<AtomicU64>,
    ending: Arc<Ending>,
}

/// Final status of a stream that the server ends, and the signal to end the stream.
#[derive(Default)]
struct Ending {
    status: OnceLock<Status>,
    notify: Notify,
}

impl Outbox {
    /// Ends the stream with this status after the client has received the queued messages.
    pub(super) fn end(&self, status: Status) {
        let _ = self.ending.status.set(status);
        self.ending.notify.notify_one();
    }

    /// Queues a message that may be dropped if the client is slow; packets are dropped first. The number of other
    /// dropped messages is reported to the client after the queued messages.
    fn offer_lossy(&self, message: Message) {
        let is_packet = matches!(message, Message::Packet(_));
        let reserved = if is_packet {
            OUTBOX_MESSAGES / 2
        } else {
            OUTBOX_RESERVED
        };
        if self.queue.capacity() > reserved {
            let _ = self.queue.try_send(v1::StreamMessageResponse {
                update: Some(message),
            });
        } else if !is_packet {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn report_lost(&self, lost: u64) {
        if self.queue.capacity() > OUTBOX_RESERVED {
            let update = Some(lost_message(lost));
            let _ = self.queue.try_send(v1::StreamMessageResponse { update });
        } else {
            self.lost.fetch_add(lost, Ordering::Relaxed);
        }
    }

    fn send_or_end(&self, message: Message) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.queue.try_send(v1::StreamMessageResponse {
            update: Some(message),
        }) {
            self.end(Status::resource_exhausted(
                "message queue of the client is full: the client reads too slowly",
            ));
        }
    }
}

/// Message that reports lost notifications (16.2: RESOURCE_EXHAUSTED without details, because the error refers to no
/// message of the client).
fn lost_message(lost: u64) -> Message {
    Message::Error(v1::StreamError {
        canonical_code: Code::ResourceExhausted.into(),
        message: format!("{lost} notifications lost: a queue of the server was full"),
        ..Default::default()
    })
}

/// Messages to one client, followed by the final status.
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
                    let update = Some(lost_message(lost));
                    Poll::Ready(Some(Ok(v1::StreamMessageResponse { update })))
                }
            },
            ready => ready.map(|message| message.map(Ok)),
        }
    }
}

/// Opens the stream of a new client.
pub(super) fn open<T: Target>(
    shared: Arc<Shared<T>>,
    incoming: Streaming<v1::StreamMessageRequest>,
) -> Outgoing {
    let (sender, queue) = mpsc::channel(OUTBOX_MESSAGES);
    let ending = Arc::new(Ending::default());
    let lost = Arc::<AtomicU64>::default();
    let id = {
        let mut clients = shared.clients();
        clients.last_stream_id += 1;
        let id = StreamId(clients.last_stream_id);
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
    tokio::spawn(receive_messages(shared, id, incoming, ending.clone()));
    Outgoing {
        queue,
        lost,
        ending,
        ended: false,
    }
}

/// Handles the messages of one client until the stream ends.
async fn receive_messages<T: Target>(
    shared: Arc<Shared<T>>,
    id: StreamId,
    mut incoming: Streaming<v1::StreamMessageRequest>,
    ending: Arc<Ending>,
) {
    loop {
        let message = tokio::select! {
            message = incoming.message() => message,
            () = ending.notify.notified() => break,
        };
        let Ok(Some(v1::StreamMessageRequest { update })) = message else {
            break;
        };
        if let Err(status) = handle_message(&shared, id, update).await {
            let _ = ending.status.set(status);
            break;
        }
    }
    let mut clients = shared.clients();
    clients.outboxes.remove(&id);
    let notices = clients.arbitration.close(id);
    clients.send_notices(notices, shared.device_id);
}

/// Handles one message; an error ends the stream.
async fn handle_message<T: Target>(
    shared: &Shared<T>,
    id: StreamId,
    message: Option<Incoming>,
) -> Result<(), Status> {
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
            let error = EntityError::unimplemented("stream messages of the architecture are not supported");
            shared.report(
                id,
                error,
                Details::Other(v1::StreamOtherError { other: Some(other) }),
            );
            Ok(())
        }
        None => {
            let error = EntityError::unimplemented("unknown stream message: not defined by P4Runtime 1.5");
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
    #[allow(deprecated, reason = "read only to reject the deprecated field")]
    if role.id != 0 && role.name.is_empty() {
        return Err(numeric_role_error(role.id));
    }
    let request = ArbitrationRequest {
        device_id: update.device_id,
        role: role.name,
        config: role.config,
        election_id: update.election_id.as_ref().map(election_id_of),
    };
    let takeover = {
        let mut clients = shared.clients();
        let outcome = clients.arbitration.update(id, request)?;
        clients.send_notices(outcome.notices, shared.device_id);
        outcome.takeover
    };
    if let Some(takeover) = takeover {
        // Acquiring this lock ensures that the writes of the previous primary have finished.
        drop(shared.programs.write().await);
        let mut clients = shared.clients();
        let notices = clients.arbitration.complete(takeover);
        clients.send_notices(notices, shared.device_id);
    }
    Ok(())
}

/// Error for a numeric role id (P4Runtime before 1.4): treating the role as the default role would grant full access.
pub(super) fn numeric_role_error(id: u64) -> Status {
    Status::invalid_argument(format!(
        "numeric role id {id} is not supported: P4Runtime 1.4 and later identify roles by name"
    ))
}

async fn packet_out<T: Target>(
    shared: &Shared<T>,
    id: StreamId,
    packet: &v1::PacketOut,
) -> Result<(), EntityError> {
    shared.check_stream(id, "packet")?;
    let programs = shared.programs.read().await;
    let running = programs
        .running
        .as_ref()
        .ok_or_else(|| EntityError::precondition("no program is running"))?;
    let metadata = Translator::new(&running.info).decode_packet_out(&packet.metadata)?;
    shared.target.packet_out(metadata, packet.payload.clone())
}

async fn digest_ack<T: Target>(
    shared: &Shared<T>,
    id: StreamId,
    ack: &v1::DigestListAck,
) -> Result<(), EntityError> {
    shared.check_stream(id, "acknowledgment")?;
    let digest = DigestId(ack.digest_id);
    let programs = shared.programs.read().await;
    if programs
        .running
        .as_ref()
        .is_none_or(|running| running.info.digests().get(digest).is_none())
    {
        return Err(EntityError::invalid(format!("unknown digest {digest}")));
    }
    shared.digests().acknowledge(digest, ack.list_id);
    Ok(())
}

impl<T> Shared<T> {
    fn check_stream(&self, id: StreamId, operation: &str) -> Result<(), EntityError> {
        if self.clients().arbitration.is_primary(id) {
            return Ok(());
        }
        Err(EntityError::denied(format!(
            "{operation} rejected: this client is not the primary"
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
            outbox.offer_lossy(Message::Error(message));
        }
    }

    /// Offers the message to all primaries; returns whether a primary is connected.
    fn offer_to_primaries(&self, message: &Message) -> bool {
        let clients = self.clients();
        let mut is_connected = false;
        for outbox in clients
            .arbitration
            .primaries()
            .filter_map(|id| clients.outboxes.get(&id))
        {
            outbox.offer_lossy(message.clone());
            is_connected = true;
        }
        is_connected
    }

    /// Reports to all primaries that events of the switch were lost before the service queued them as messages.
    fn report_lost_to_primaries(&self, lost: u64) {
        let clients = self.clients();
        let primaries = clients.arbitration.primaries();
        primaries
            .filter_map(|id| clients.outboxes.get(&id))
            .for_each(|outbox| outbox.report_lost(lost));
    }

    fn offer_list(&self, list: &DigestList, data: Vec<v1::P4Data>) {
        let message = Message::Digest(v1::DigestList {
            digest_id: list.id.0,
            list_id: list.list_id,
            data,
            timestamp: timestamp_ns(),
        });
        if !self.offer_to_primaries(&message) {
            // Without a primary no acknowledgment arrives: the list is removed, so that its messages may be sent again.
            self.digests().acknowledge(list.id, list.list_id);
        }
    }
}

impl Clients {
    fn send_notices(&mut self, notices: Vec<ArbitrationNotice>, device_id: u64) {
        for notice in notices {
            if let Some(outbox) = self.outboxes.get(&notice.stream) {
                outbox.send_or_end(Message::Arbitration(message_of(notice, device_id)));
            }
        }
    }
}

fn message_of(notice: ArbitrationNotice, device_id: u64) -> v1::MasterArbitrationUpdate {
    let (code, message) = match notice.status {
        ArbitrationStatus::Primary => (Code::Ok, "this client is the primary"),
        ArbitrationStatus::Backup => (Code::AlreadyExists, "another client is the primary"),
        ArbitrationStatus::NoPrimary => (Code::NotFound, "the role has no primary"),
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

/// Forwards the events of the switch until its queue closes or the service is dropped.
pub(super) async fn forward_events<T: Target>(shared: Weak<Shared<T>>, mut events: EventReceiver) {
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
            forward_event(&strong, event);
        }
        match events.take_lost() {
            0 => {}
            lost => strong.report_lost_to_primaries(lost),
        }
        let due_lists = strong.digests().take_due_lists(strong.now_ns());
        for list in due_lists {
            send_list(&strong, list);
        }
    }
}

/// Waits for this duration, or forever if `None`.
async fn wait_ns(wait: Option<u64>) {
    match wait {
        Some(ns) => tokio::time::sleep(Duration::from_nanos(ns)).await,
        None => std::future::pending().await,
    }
}

fn forward_event<T: Target>(shared: &Shared<T>, event: Event) {
    let Some(running) = shared.running().clone() else {
        return;
    };
    let translator = Translator::new(&running.info);
    match event {
        Event::PacketIn { metadata, payload } => {
            let fields = running.info.packet_in().map_or(0, |header| header.fields.len());
            // A packet of a previous program may have waited in the queue; its number of fields may differ.
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
    let running = shared.running().clone();
    let digest = running
        .as_ref()
        .and_then(|running| running.info.digests().get(list.id));
    if let Some(digest) = digest {
        let data = list.data.iter().map(|data| data.encode(&digest.data)).collect();
        shared.offer_list(&list, data);
    }
}
