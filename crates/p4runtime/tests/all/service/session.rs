//! Streams over gRPC: arbitration, packets, digests, idle entries, errors.

use std::time::Duration;

use crate::service::support::{DEVICE, Server, id, info, pipeline, text};
use linewarden_p4runtime::arbitration::ArbitrationStatus;
use linewarden_p4runtime::bytes::Bits;
use linewarden_p4runtime::client::{Client, ClientError, ClientIdentity, Events, StreamEvent};
use linewarden_p4runtime::data::Data;
use linewarden_p4runtime::digest::DigestList;
use linewarden_p4runtime::entity::*;
use linewarden_p4runtime::error::Code;
use linewarden_p4runtime::ids::DigestId;
use linewarden_p4runtime::proto::v1;
use linewarden_p4runtime::target::{Atomicity, Event};
use tokio_stream::wrappers::ReceiverStream;
use v1::stream_message_response::Update as Incoming;

fn bits(width: u32, value: u128) -> Bits {
    Bits::from_u128(width, value).unwrap()
}

fn counter_write() -> Update {
    let id = info().counters().by_name_or_alias("seen_by_port").unwrap().id;
    Update::Counter {
        id,
        index: Some(0),
        data: Some(CounterData { bytes: 1, packets: 1 }),
    }
}

async fn arbitration_status(events: &mut Events) -> (ArbitrationStatus, Option<u128>) {
    match events.next().await.unwrap() {
        StreamEvent::Arbitration(status, highest) => (status, highest),
        other => panic!("{other:?}"),
    }
}

fn code(error: &ClientError) -> Code {
    match error {
        ClientError::Rejected(status) => status.code(),
        other => panic!("{other}"),
    }
}

async fn connect(
    server: &Server,
    role: &str,
    election_id: u128,
) -> Result<(Client, Events, ArbitrationStatus), ClientError> {
    let identity = ClientIdentity {
        device_id: DEVICE,
        role: role.to_owned(),
        election_id,
    };
    Client::connect(server.endpoint.clone(), identity).await
}

#[test]
async fn change_of_the_primary_is_notified_to_all_controllers() {
    let (server, mut first, mut first_events) = Server::controlled().await;
    let (mut second, mut second_events, status) = server.client(5).await;
    assert_eq!(status, ArbitrationStatus::Backup);
    second.pipeline().await.unwrap();
    let denied = second
        .write(&[counter_write()], Atomicity::ContinueOnError)
        .await
        .unwrap_err();
    assert_eq!(code(&denied), Code::PermissionDenied);
    second.set_election_id(11).await.unwrap();
    assert_eq!(
        arbitration_status(&mut second_events).await,
        (ArbitrationStatus::Primary, Some(11))
    );
    assert_eq!(
        arbitration_status(&mut first_events).await,
        (ArbitrationStatus::Backup, Some(11))
    );
    second
        .write(&[counter_write()], Atomicity::ContinueOnError)
        .await
        .unwrap();
    let denied = first
        .write(&[counter_write()], Atomicity::ContinueOnError)
        .await
        .unwrap_err();
    assert_eq!(code(&denied), Code::PermissionDenied);
    drop((second, second_events));
    assert_eq!(
        arbitration_status(&mut first_events).await,
        (ArbitrationStatus::NoPrimary, Some(11))
    );
    first.set_election_id(12).await.unwrap();
    assert_eq!(
        arbitration_status(&mut first_events).await,
        (ArbitrationStatus::Primary, Some(12))
    );
    first
        .write(&[counter_write()], Atomicity::ContinueOnError)
        .await
        .unwrap();
}

#[test]
async fn violation_of_arbitration_rules_ends_the_stream() {
    let (server, primary, mut primary_events) = Server::controlled().await;
    let duplicate_id = connect(&server, "", 10).await.unwrap_err();
    assert_eq!(code(&duplicate_id), Code::InvalidArgument);
    let other_device = ClientIdentity {
        device_id: 2,
        role: String::new(),
        election_id: 1,
    };
    let other_device = Client::connect(server.endpoint.clone(), other_device)
        .await
        .unwrap_err();
    assert_eq!(code(&other_device), Code::NotFound);
    let mut backups = Vec::new();
    for election_id in 1..10 {
        backups.push(connect(&server, "", election_id).await.unwrap());
    }
    assert_eq!(
        code(&connect(&server, "", 12).await.unwrap_err()),
        Code::ResourceExhausted
    );
    // A backup that requests the election id of the primary loses its stream.
    let (backup, backup_events, _) = &mut backups[0];
    backup.set_election_id(10).await.unwrap();
    assert_eq!(
        code(&backup_events.next().await.unwrap_err()),
        Code::InvalidArgument
    );
    // When the stream of the primary ends, the backups are notified.
    let (_, other_backup_events, _) = &mut backups[1];
    drop(primary);
    assert!(
        matches!(primary_events.next().await, Err(ClientError::StreamEnded)),
        "a client that is dropped ends its session"
    );
    assert_eq!(
        arbitration_status(other_backup_events).await,
        (ArbitrationStatus::NoPrimary, Some(10))
    );
}

/// Opens a stream and sends `messages`, which [`Client`] would not send. Returns the responses.
async fn raw_stream(server: &Server, messages: &[&str]) -> tonic::Streaming<v1::StreamMessageResponse> {
    let (sender, receiver) = tokio::sync::mpsc::channel(16);
    for message in messages {
        sender
            .send(text("p4.v1.StreamMessageRequest", message))
            .await
            .unwrap();
    }
    let incoming = server
        .raw()
        .await
        .stream_channel(ReceiverStream::new(receiver))
        .await
        .unwrap()
        .into_inner();
    // The sender must exist until the end of the test, because dropping the sender would end the stream.
    std::mem::forget(sender);
    incoming
}

async fn next(stream: &mut tonic::Streaming<v1::StreamMessageResponse>) -> Incoming {
    stream.message().await.unwrap().unwrap().update.unwrap()
}

#[test]
async fn role_and_device_of_a_stream_cannot_change() {
    let server = Server::start(None).await;
    for (second, expected) in [
        (
            "arbitration { device_id: 2 election_id { low: 1 } }",
            Code::FailedPrecondition,
        ),
        (
            "arbitration { device_id: 1 role { name: 'a' } election_id { low: 1 } }",
            Code::FailedPrecondition,
        ),
        (
            "arbitration { device_id: 1 role { id: 3 } election_id { low: 1 } }",
            Code::InvalidArgument,
        ),
    ] {
        let mut stream = raw_stream(
            &server,
            &["arbitration { device_id: 1 election_id { high: 1 } }", second],
        )
        .await;
        let Incoming::Arbitration(update) = next(&mut stream).await else {
            panic!()
        };
        assert_eq!(update.status.unwrap().code, 0);
        assert_eq!(
            (update.role, update.election_id),
            (None, Some(v1::Uint128 { high: 1, low: 0 }))
        );
        assert_eq!(stream.message().await.unwrap_err().code(), expected, "{second}");
    }
}

#[test]
async fn role_configuration_is_returned_and_client_without_election_id_stays_backup() {
    let server = Server::start(None).await;
    let config = "config { type_url: 'example.com/Role' value: 'x' }";
    let with_config =
        format!("arbitration {{ device_id: 1 role {{ name: 'a' {config} }} election_id {{ low: 3 }} }}");
    let mut primary = raw_stream(&server, &[&with_config]).await;
    let Incoming::Arbitration(update) = next(&mut primary).await else {
        panic!()
    };
    assert_eq!(update.role.unwrap().config.unwrap().value, b"x");
    let mut backup = raw_stream(&server, &["arbitration { device_id: 1 role { name: 'a' } }"]).await;
    let Incoming::Arbitration(update) = next(&mut backup).await else {
        panic!()
    };
    assert_eq!(update.status.unwrap().code, Code::AlreadyExists as i32);
    assert_eq!(update.role.unwrap().config.unwrap().type_url, "example.com/Role");
    assert_eq!(update.election_id, Some(v1::Uint128 { high: 0, low: 3 }));
}

/// The switch blocks the write, and the test waits until the write has reached the switch. So the test does not depend
/// on timing.
#[test(flavor = "multi_thread")]
async fn takeover_waits_for_writes_of_the_previous_primary() {
    let (server, mut first, mut first_events) = Server::controlled().await;
    let blocked = server.switch.write_blocker.block();
    let writing = tokio::spawn(async move {
        let result = first.write(&[counter_write()], Atomicity::ContinueOnError).await;
        (first, result)
    });
    server.switch.write_blocker.wait_for_write().await;
    let candidate = connect(&server, "", 11);
    tokio::pin!(candidate);
    let status = tokio::select! {
        status = arbitration_status(&mut first_events) => status,
        _ = &mut candidate => panic!("the second client is primary while the first client still writes"),
    };
    assert_eq!(
        status,
        (ArbitrationStatus::Backup, Some(11)),
        "the first client is notified at once"
    );
    let early = tokio::time::timeout(Duration::from_millis(50), &mut candidate).await;
    assert!(early.is_err(), "became primary during the write");
    assert!(!writing.is_finished());
    drop(blocked);
    let (mut first, result) = writing.await.unwrap();
    result.unwrap();
    assert_eq!(candidate.await.unwrap().2, ArbitrationStatus::Primary);
    assert!(
        first
            .write(&[counter_write()], Atomicity::ContinueOnError)
            .await
            .is_err()
    );
}

/// The switch may still process a write after the client has cancelled the write; no other client may write until then.
#[test(flavor = "multi_thread")]
async fn cancelled_write_still_excludes_other_writes() {
    let (server, mut first, _events) = Server::controlled().await;
    let blocked = server.switch.write_blocker.block();
    let writing =
        tokio::spawn(async move { first.write(&[counter_write()], Atomicity::ContinueOnError).await });
    server.switch.write_blocker.wait_for_write().await;
    writing.abort();
    let _ = writing.await;
    let (mut second, second_events) = {
        let candidate = connect(&server, "", 11);
        tokio::pin!(candidate);
        let early = tokio::time::timeout(Duration::from_millis(50), &mut candidate).await;
        assert!(early.is_err(), "became primary during the write");
        drop(blocked);
        let (second, events, status) = candidate.await.unwrap();
        assert_eq!(status, ArbitrationStatus::Primary);
        (second, events)
    };
    second.pipeline().await.unwrap();
    second
        .write(&[counter_write()], Atomicity::ContinueOnError)
        .await
        .unwrap();
    drop(second_events);
}

#[test]
async fn packet_out_and_packet_in_are_delivered() {
    let (_server, mut client, mut events) = Server::controlled().await;
    let metadata = [bits(9, 300), bits(1, 1), bits(6, 0)];
    client.packet_out(&metadata, b"frame".to_vec()).await.unwrap();
    let expected = StreamEvent::PacketIn {
        metadata: vec![bits(9, 300), bits(7, 0)],
        payload: b"frame".to_vec(),
    };
    assert_eq!(events.next().await.unwrap(), expected);
    client.packet_out(&metadata, vec![0; 2000]).await.unwrap();
    let StreamEvent::Error(error) = events.next().await.unwrap() else {
        panic!()
    };
    assert_eq!(
        (error.code, error.message.as_str()),
        (Code::InvalidArgument, "packet of 2000 bytes is too long")
    );
}

#[test]
async fn invalid_stream_messages_receive_error_responses() {
    let (server, _client, _events) = Server::controlled().await;
    let valid_metadata = "metadata { metadata_id: 1 value: '\\x01' } metadata { metadata_id: 2 value: '\\x01' } metadata { metadata_id: 3 value: '\\x00' }";
    let packet = |metadata: &str| format!("packet {{ payload: 'p' {metadata} }}");
    let primary =
        "arbitration { device_id: 1 role { name: 'a' } election_id { low: ELECTION_ID } }".to_owned();
    let backup = "arbitration { device_id: 1 role { name: 'a' } }".to_owned();
    let cases = [
        (
            &backup,
            packet(valid_metadata),
            Code::PermissionDenied,
            "this client is not the primary",
        ),
        (
            &backup,
            "digest_ack { digest_id: 1 }".into(),
            Code::PermissionDenied,
            "this client is not the primary",
        ),
        (
            &primary,
            packet(""),
            Code::InvalidArgument,
            "metadata \"egress_port\": value is missing",
        ),
        (
            &primary,
            packet(&format!(
                "{valid_metadata} metadata {{ metadata_id: 7 value: '1' }}"
            )),
            Code::InvalidArgument,
            "the program has none with id 7",
        ),
        (
            &primary,
            packet(&valid_metadata.replace("'\\x00'", "'\\x40'")),
            Code::OutOfRange,
            "metadata \"unused\": value does not fit: it needs 7 bits",
        ),
        (
            &primary,
            packet(&format!(
                "{valid_metadata} metadata {{ metadata_id: 1 value: '1' }}"
            )),
            Code::InvalidArgument,
            "value is given twice",
        ),
        (
            &primary,
            "digest_ack { digest_id: 1 }".into(),
            Code::InvalidArgument,
            "unknown digest 1",
        ),
        (
            &primary,
            "other { type_url: 'x' }".into(),
            Code::Unimplemented,
            "stream messages of the architecture",
        ),
        (
            &primary,
            String::new(),
            Code::Unimplemented,
            "unknown stream message",
        ),
    ];
    for (election_id, (arbitration, message, code, expected)) in (1..).zip(cases) {
        let arbitration = arbitration.replace("ELECTION_ID", &election_id.to_string());
        let mut stream = raw_stream(&server, &[&arbitration, &message]).await;
        assert!(matches!(next(&mut stream).await, Incoming::Arbitration(_)));
        let Incoming::Error(error) = next(&mut stream).await else {
            panic!("{message}")
        };
        assert_eq!(error.canonical_code, code as i32, "{message}: {}", error.message);
        assert!(error.message.contains(expected), "{message}: {}", error.message);
        match error.details.unwrap() {
            v1::stream_error::Details::PacketOut(packet) => {
                assert_eq!(packet.packet_out.unwrap().payload, b"p")
            }
            v1::stream_error::Details::DigestListAck(ack) => {
                assert_eq!(ack.digest_list_ack.unwrap().digest_id, 1)
            }
            v1::stream_error::Details::Other(other) => {
                assert_eq!(other.other.is_some(), message.contains("other"))
            }
        }
    }
}

fn learned(source: u128) -> Data {
    Data::Struct(vec![
        Data::Bits(bits(48, source)),
        Data::Bits(bits(9, 3)),
        Data::Bool(true),
    ])
}

fn digest(max_list_size: u32, max_timeout_ns: u64, ack_timeout_ns: u64) -> Digest {
    let config = DigestConfig {
        max_timeout_ns,
        max_list_size,
        ack_timeout_ns,
    };
    Digest {
        id: DigestId(id("learned_t")),
        config,
    }
}

const HOUR_NS: u64 = 3_600_000_000_000;

async fn next_list(events: &mut Events) -> DigestList {
    match events.next().await.unwrap() {
        StreamEvent::Digest(list) => list,
        other => panic!("{other:?}"),
    }
}

#[test]
async fn digests_are_buffered_and_sent_once_until_acknowledged() {
    let (server, mut client, mut events) = Server::controlled().await;
    let notify = |source| {
        server.switch.send_event(Event::Digest {
            id: DigestId(id("learned_t")),
            data: learned(source),
        })
    };
    // The digest is disabled: no controller receives a message.
    notify(1);
    let enable = Update::Digest(Change::Insert(digest(2, HOUR_NS, HOUR_NS)));
    client.write(&[enable], Atomicity::ContinueOnError).await.unwrap();
    notify(1);
    notify(1);
    notify(2);
    let first = next_list(&mut events).await;
    assert_eq!(first.data, [learned(1), learned(2)]);
    notify(1);
    notify(3);
    notify(4);
    let second = next_list(&mut events).await;
    assert_eq!(
        second.data,
        [learned(3), learned(4)],
        "unacknowledged messages are not sent again"
    );
    assert_ne!(first.list_id, second.list_id);
    client.acknowledge(first.id, first.list_id).await.unwrap();
    // Acknowledgment and packet are processed in order: the acknowledgment is processed when the packet returns.
    client
        .packet_out(&[bits(9, 1), bits(1, 0), bits(6, 0)], b"after".to_vec())
        .await
        .unwrap();
    assert!(matches!(
        events.next().await.unwrap(),
        StreamEvent::PacketIn { .. }
    ));
    notify(3);
    notify(2);
    notify(1);
    assert_eq!(next_list(&mut events).await.data, [learned(2), learned(1)]);
    // With timeout 0, the server sends each message without delay.
    let unbuffered = Update::Digest(Change::Modify(digest(0, 0, 0)));
    client
        .write(&[unbuffered], Atomicity::ContinueOnError)
        .await
        .unwrap();
    notify(9);
    assert_eq!(next_list(&mut events).await.data, [learned(9)]);
    notify(9);
    assert_eq!(
        next_list(&mut events).await.data,
        [learned(9)],
        "without an acknowledgment timeout, the same message is sent again"
    );
    let disable = Update::Digest(Change::Delete(DigestId(id("learned_t"))));
    client
        .write(&[disable], Atomicity::ContinueOnError)
        .await
        .unwrap();
    notify(10);
    client
        .packet_out(&[bits(9, 1), bits(1, 0), bits(6, 0)], b"last".to_vec())
        .await
        .unwrap();
    assert!(matches!(
        events.next().await.unwrap(),
        StreamEvent::PacketIn { .. }
    ));
}

/// The service task does not run until this test awaits, so the queue for 64 events overflows.
#[test]
async fn lost_digests_are_reported_to_slow_clients() {
    let (server, mut client, mut events) = Server::controlled().await;
    let enable = Update::Digest(Change::Insert(digest(0, 0, 0)));
    client.write(&[enable], Atomicity::ContinueOnError).await.unwrap();
    let digest_event = |source| Event::Digest {
        id: DigestId(id("learned_t")),
        data: learned(source),
    };
    let queued = (0..100).filter(|source| server.switch.events.send(digest_event(*source)));
    assert_eq!(queued.count(), 64);
    let packet = Event::PacketIn {
        metadata: Vec::new(),
        payload: Vec::new(),
    };
    assert!(server.switch.events.send(packet), "packets have a separate queue");
    let (mut lists, mut losses) = (0, Vec::new());
    while lists < 64 || losses.is_empty() {
        match events.next().await.unwrap() {
            StreamEvent::Digest(_) => lists += 1,
            StreamEvent::Lost(loss) => losses.push(loss),
            other => panic!("{other:?}"),
        }
    }
    assert!(losses.len() == 1 && losses[0].starts_with("36 "), "{losses:?}");
}

#[test]
async fn incomplete_list_is_sent_after_the_timeout() {
    let (server, mut client, mut events) = Server::controlled().await;
    let enable = Update::Digest(Change::Insert(digest(100, 1_000_000, HOUR_NS)));
    client.write(&[enable], Atomicity::ContinueOnError).await.unwrap();
    server.switch.send_event(Event::Digest {
        id: DigestId(id("learned_t")),
        data: learned(5),
    });
    assert_eq!(next_list(&mut events).await.data, [learned(5)]);
}

#[test]
async fn failed_batch_leaves_digests_unchanged() {
    let (server, mut client, mut events) = Server::controlled().await;
    let batch = [
        Update::Digest(Change::Insert(digest(1, HOUR_NS, HOUR_NS))),
        Update::Digest(Change::Insert(digest(1, HOUR_NS, HOUR_NS))),
    ];
    client
        .write(&batch, Atomicity::RollbackOnError)
        .await
        .unwrap_err();
    server.switch.send_event(Event::Digest {
        id: DigestId(id("learned_t")),
        data: learned(5),
    });
    client
        .packet_out(&[bits(9, 1), bits(1, 0), bits(6, 0)], b"only this".to_vec())
        .await
        .unwrap();
    assert!(matches!(
        events.next().await.unwrap(),
        StreamEvent::PacketIn { .. }
    ));
}

#[test]
async fn idle_entries_are_notified() {
    let (server, _client, mut events) = Server::controlled().await;
    let info = info();
    let mac = info.tables().by_name_or_alias("mac").unwrap().id;
    let fields = vec![FieldMatch::Exact(bits(48, 1)), FieldMatch::Exact(bits(9, 2))];
    let drop_action = drop_entry_action();
    let mut entry = TableEntry::new(
        EntryKey {
            table: mac,
            fields,
            priority: 0,
        },
        drop_action,
    );
    entry.idle_timeout_ns = 77;
    entry.metadata = b"mine".to_vec();
    server.switch.send_event(Event::IdleTimeout(Vec::new()));
    server.switch.send_event(Event::IdleTimeout(vec![entry.clone()]));
    assert_eq!(
        events.next().await.unwrap(),
        StreamEvent::IdleTimeout(vec![entry])
    );
}

fn drop_entry_action() -> EntryAction {
    let id = info().actions().by_name_or_alias("drop").unwrap().id;
    EntryAction::Action(Action {
        id,
        params: Vec::new(),
    })
}

#[test]
async fn client_that_does_not_read_is_disconnected() {
    let (server, mut client, mut events) = Server::controlled().await;
    let reader = tokio::spawn(async move { while events.next().await.is_ok() {} });
    let mut stream = raw_stream(&server, &["arbitration { device_id: 1 election_id { low: 1 } }"]).await;
    assert!(matches!(next(&mut stream).await, Incoming::Arbitration(_)));
    // Every change of the primary sends a message to the client that does not read. The stream window buffers many
    // messages before the queue is full.
    for election_id in 11..8_000 {
        client.set_election_id(election_id).await.unwrap();
    }
    let status = loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the stream ended without an error"),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::ResourceExhausted);
    reader.abort();
}

#[test]
async fn streams_end_with_the_server() {
    let mut server = Server::start(Some(pipeline())).await;
    let (_client, mut events, _) = server.client(1).await;
    server.stop();
    assert_eq!(code(&events.next().await.unwrap_err()), Code::Unavailable);
    drop((_client, events));
    (&mut server.task).await.unwrap();
}
