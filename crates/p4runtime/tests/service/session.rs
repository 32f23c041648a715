//! Streams over gRPC: sessions, packets, digests, idle entries, errors.

use std::time::Duration;

use crate::support::{DEVICE, Server, id, info, pipeline, text};
use linewarden_p4runtime::arbitration::Standing;
use linewarden_p4runtime::bytes::Bits;
use linewarden_p4runtime::client::{Client, ClientError, Events, Session, Told};
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
    let id = info().counters().named("seen_by_port").unwrap().id;
    Update::Counter {
        id,
        index: Some(0),
        data: Some(CounterData { bytes: 1, packets: 1 }),
    }
}

async fn standing(events: &mut Events) -> (Standing, Option<u128>) {
    match events.next().await.unwrap() {
        Told::Standing(standing, highest) => (standing, highest),
        other => panic!("{other:?}"),
    }
}

fn code(error: &ClientError) -> Code {
    match error {
        ClientError::Refused(status) => status.code(),
        other => panic!("{other}"),
    }
}

async fn session(
    server: &Server,
    role: &str,
    election_id: u128,
) -> Result<(Client, Events, Standing), ClientError> {
    let session = Session {
        device_id: DEVICE,
        role: role.to_owned(),
        election_id,
    };
    Client::connect(server.endpoint.clone(), session).await
}

#[tokio::test]
async fn the_primary_changes_and_everybody_hears_of_it() {
    let (server, mut first, mut first_events) = Server::controlled().await;
    let (mut second, mut second_events, stands) = server.client(5).await;
    assert_eq!(stands, Standing::Backup);
    second.pipeline().await.unwrap();
    let denied = second
        .write(&[counter_write()], Atomicity::ContinueOnError)
        .await
        .unwrap_err();
    assert_eq!(code(&denied), Code::PermissionDenied);
    second.stand(11).await.unwrap();
    assert_eq!(standing(&mut second_events).await, (Standing::Primary, Some(11)));
    assert_eq!(standing(&mut first_events).await, (Standing::Backup, Some(11)));
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
        standing(&mut first_events).await,
        (Standing::Leaderless, Some(11))
    );
    first.stand(12).await.unwrap();
    assert_eq!(standing(&mut first_events).await, (Standing::Primary, Some(12)));
    first
        .write(&[counter_write()], Atomicity::ContinueOnError)
        .await
        .unwrap();
}

#[tokio::test]
async fn what_breaks_the_rules_of_arbitration_ends_the_stream() {
    let (server, _first, mut first_events) = Server::controlled().await;
    let taken = session(&server, "", 10).await.unwrap_err();
    assert_eq!(code(&taken), Code::InvalidArgument);
    let elsewhere = Session {
        device_id: 2,
        role: String::new(),
        election_id: 1,
    };
    let elsewhere = Client::connect(server.endpoint.clone(), elsewhere)
        .await
        .unwrap_err();
    assert_eq!(code(&elsewhere), Code::NotFound);
    let mut others = Vec::new();
    for election_id in 1..10 {
        others.push(session(&server, "", election_id).await.unwrap());
    }
    assert_eq!(
        code(&session(&server, "", 12).await.unwrap_err()),
        Code::ResourceExhausted
    );
    // The primary itself: its stream ends, and the others hear that there is none.
    let (other, other_events, _) = &mut others[0];
    other.stand(10).await.unwrap();
    assert_eq!(
        code(&other_events.next().await.unwrap_err()),
        Code::InvalidArgument
    );
    let (_, next_events, _) = &mut others[1];
    drop(_first);
    assert!(
        matches!(first_events.next().await, Err(ClientError::Ended)),
        "who ends its side has ended the session"
    );
    assert_eq!(standing(next_events).await, (Standing::Leaderless, Some(10)));
}

/// A stream by hand, for messages that the client would not send.
async fn by_hand(server: &Server, messages: &[&str]) -> tonic::Streaming<v1::StreamMessageResponse> {
    let (sender, receiver) = tokio::sync::mpsc::channel(16);
    for message in messages {
        sender
            .send(text("p4.v1.StreamMessageRequest", message))
            .await
            .unwrap();
    }
    let answer = server
        .raw()
        .await
        .stream_channel(ReceiverStream::new(receiver))
        .await
        .unwrap()
        .into_inner();
    // The stream lasts as long as the sender; the test's end is its end.
    std::mem::forget(sender);
    answer
}

async fn next(stream: &mut tonic::Streaming<v1::StreamMessageResponse>) -> Incoming {
    stream.message().await.unwrap().unwrap().update.unwrap()
}

#[tokio::test]
async fn roles_and_devices_of_a_stream_stay() {
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
        let mut stream = by_hand(
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

#[tokio::test]
async fn a_roles_configuration_is_repeated_and_an_unset_id_stands_by() {
    let server = Server::start(None).await;
    let config = "config { type_url: 'example.com/Role' value: 'x' }";
    let with_config =
        format!("arbitration {{ device_id: 1 role {{ name: 'a' {config} }} election_id {{ low: 3 }} }}");
    let mut primary = by_hand(&server, &[&with_config]).await;
    let Incoming::Arbitration(update) = next(&mut primary).await else {
        panic!()
    };
    assert_eq!(update.role.unwrap().config.unwrap().value, b"x");
    let mut backup = by_hand(&server, &["arbitration { device_id: 1 role { name: 'a' } }"]).await;
    let Incoming::Arbitration(update) = next(&mut backup).await else {
        panic!()
    };
    assert_eq!(update.status.unwrap().code, Code::AlreadyExists as i32);
    assert_eq!(update.role.unwrap().config.unwrap().type_url, "example.com/Role");
    assert_eq!(update.election_id, Some(v1::Uint128 { high: 0, low: 3 }));
}

/// Waits until the write has reached the switch, which holds it up; whether it does is not a matter of time.
#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_waits_for_the_writes_of_the_primary_before() {
    let (server, mut first, mut first_events) = Server::controlled().await;
    let closed = server.switch.gate.close();
    let writing = tokio::spawn(async move {
        let result = first.write(&[counter_write()], Atomicity::ContinueOnError).await;
        (first, result)
    });
    server.switch.gate.reached().await;
    let candidate = session(&server, "", 11);
    tokio::pin!(candidate);
    let told = tokio::select! {
        told = standing(&mut first_events) => told,
        _ = &mut candidate => panic!("the second is primary while the first still writes"),
    };
    assert_eq!(
        told,
        (Standing::Backup, Some(11)),
        "the first hears of it at once"
    );
    let early = tokio::time::timeout(Duration::from_millis(50), &mut candidate).await;
    assert!(early.is_err(), "became primary beside the write");
    assert!(!writing.is_finished());
    drop(closed);
    let (mut first, result) = writing.await.unwrap();
    result.unwrap();
    assert_eq!(candidate.await.unwrap().2, Standing::Primary);
    assert!(
        first
            .write(&[counter_write()], Atomicity::ContinueOnError)
            .await
            .is_err()
    );
}

/// A client that gives up in the middle of its write does not let another one in beside it.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_nobody_waits_for_still_excludes_others() {
    let (server, mut first, _events) = Server::controlled().await;
    let closed = server.switch.gate.close();
    let writing =
        tokio::spawn(async move { first.write(&[counter_write()], Atomicity::ContinueOnError).await });
    server.switch.gate.reached().await;
    writing.abort();
    let _ = writing.await;
    let (mut second, second_events) = {
        let candidate = session(&server, "", 11);
        tokio::pin!(candidate);
        let early = tokio::time::timeout(Duration::from_millis(50), &mut candidate).await;
        assert!(early.is_err(), "became primary beside the write");
        drop(closed);
        let (second, events, standing) = candidate.await.unwrap();
        assert_eq!(standing, Standing::Primary);
        (second, events)
    };
    second.pipeline().await.unwrap();
    second
        .write(&[counter_write()], Atomicity::ContinueOnError)
        .await
        .unwrap();
    drop(second_events);
}

#[tokio::test]
async fn packets_go_out_and_come_in() {
    let (_server, mut client, mut events) = Server::controlled().await;
    let metadata = [bits(9, 300), bits(1, 1), bits(6, 0)];
    client.packet_out(&metadata, b"frame".to_vec()).await.unwrap();
    let expected = Told::PacketIn {
        metadata: vec![bits(9, 300), bits(7, 0)],
        payload: b"frame".to_vec(),
    };
    assert_eq!(events.next().await.unwrap(), expected);
    client.packet_out(&metadata, vec![0; 2000]).await.unwrap();
    let Told::Error(error) = events.next().await.unwrap() else {
        panic!()
    };
    assert_eq!(
        (error.code, error.message.as_str()),
        (Code::InvalidArgument, "a packet of 2000 bytes")
    );
}

#[tokio::test]
async fn stream_messages_that_are_wrong_are_answered_with_what_was_wrong() {
    let (server, _client, _events) = Server::controlled().await;
    let whole = "metadata { metadata_id: 1 value: '\\x01' } metadata { metadata_id: 2 value: '\\x01' } metadata { metadata_id: 3 value: '\\x00' }";
    let packet = |metadata: &str| format!("packet {{ payload: 'p' {metadata} }}");
    let primary = "arbitration { device_id: 1 role { name: 'a' } election_id { low: RANK } }".to_owned();
    let backup = "arbitration { device_id: 1 role { name: 'a' } }".to_owned();
    let cases = [
        (
            &backup,
            packet(whole),
            Code::PermissionDenied,
            "from primaries only",
        ),
        (
            &backup,
            "digest_ack { digest_id: 1 }".into(),
            Code::PermissionDenied,
            "from primaries only",
        ),
        (
            &primary,
            packet(""),
            Code::InvalidArgument,
            "metadata \"egress_port\": it is not given",
        ),
        (
            &primary,
            packet(&format!("{whole} metadata {{ metadata_id: 7 value: '1' }}")),
            Code::InvalidArgument,
            "no metadata with id 7",
        ),
        (
            &primary,
            packet(&whole.replace("'\\x00'", "'\\x40'")),
            Code::OutOfRange,
            "metadata \"unused\": the value needs 7 bits",
        ),
        (
            &primary,
            packet(&format!("{whole} metadata {{ metadata_id: 1 value: '1' }}")),
            Code::InvalidArgument,
            "it is given twice",
        ),
        (
            &primary,
            "digest_ack { digest_id: 1 }".into(),
            Code::InvalidArgument,
            "no digest with id 1",
        ),
        (
            &primary,
            "other { type_url: 'x' }".into(),
            Code::Unimplemented,
            "no stream messages of its own",
        ),
        (
            &primary,
            String::new(),
            Code::Unimplemented,
            "a stream message of a kind",
        ),
    ];
    for (rank, (first, message, code, says)) in (1..).zip(cases) {
        let first = first.replace("RANK", &rank.to_string());
        let mut stream = by_hand(&server, &[&first, &message]).await;
        assert!(matches!(next(&mut stream).await, Incoming::Arbitration(_)));
        let Incoming::Error(error) = next(&mut stream).await else {
            panic!("{message}")
        };
        assert_eq!(error.canonical_code, code as i32, "{message}: {}", error.message);
        assert!(error.message.contains(says), "{message}: {}", error.message);
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

async fn list(events: &mut Events) -> DigestList {
    match events.next().await.unwrap() {
        Told::Digest(list) => list,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn digests_are_gathered_and_sent_once_until_they_are_acknowledged() {
    let (server, mut client, mut events) = Server::controlled().await;
    let tell = |source| {
        server.switch.tell(Event::Digest {
            id: DigestId(id("learned_t")),
            data: learned(source),
        })
    };
    // Not enabled: nobody hears of it.
    tell(1);
    let enable = Update::Digest(Change::Insert(digest(2, HOUR_NS, HOUR_NS)));
    client.write(&[enable], Atomicity::ContinueOnError).await.unwrap();
    tell(1);
    tell(1);
    tell(2);
    let first = list(&mut events).await;
    assert_eq!(first.data, [learned(1), learned(2)]);
    tell(1);
    tell(3);
    tell(4);
    let second = list(&mut events).await;
    assert_eq!(
        second.data,
        [learned(3), learned(4)],
        "what is not acknowledged is not sent again"
    );
    assert_ne!(first.list_id, second.list_id);
    client.acknowledge(first.id, first.list_id).await.unwrap();
    // The acknowledgement and this packet go one after the other: it is taken once the packet is back.
    client
        .packet_out(&[bits(9, 1), bits(1, 0), bits(6, 0)], b"after".to_vec())
        .await
        .unwrap();
    assert!(matches!(events.next().await.unwrap(), Told::PacketIn { .. }));
    tell(3);
    tell(2);
    tell(1);
    assert_eq!(list(&mut events).await.data, [learned(2), learned(1)]);
    // One at a time and at once, with a timeout of nothing; then none at all.
    let at_once = Update::Digest(Change::Modify(digest(0, 0, 0)));
    client
        .write(&[at_once], Atomicity::ContinueOnError)
        .await
        .unwrap();
    tell(9);
    assert_eq!(list(&mut events).await.data, [learned(9)]);
    tell(9);
    assert_eq!(
        list(&mut events).await.data,
        [learned(9)],
        "nothing is remembered without a timeout"
    );
    let disable = Update::Digest(Change::Delete(DigestId(id("learned_t"))));
    client
        .write(&[disable], Atomicity::ContinueOnError)
        .await
        .unwrap();
    tell(10);
    client
        .packet_out(&[bits(9, 1), bits(1, 0), bits(6, 0)], b"last".to_vec())
        .await
        .unwrap();
    assert!(matches!(events.next().await.unwrap(), Told::PacketIn { .. }));
}

/// The service has no turn until this test waits.
#[tokio::test]
async fn digests_that_nobody_takes_in_time_are_told_to_be_lost() {
    let (server, mut client, mut events) = Server::controlled().await;
    let enable = Update::Digest(Change::Insert(digest(0, 0, 0)));
    client.write(&[enable], Atomicity::ContinueOnError).await.unwrap();
    let told = |source| Event::Digest {
        id: DigestId(id("learned_t")),
        data: learned(source),
    };
    let taken = (0..100).filter(|source| server.switch.events.send(told(*source)));
    assert_eq!(taken.count(), 64);
    let packet = Event::PacketIn {
        metadata: Vec::new(),
        payload: Vec::new(),
    };
    assert!(
        server.switch.events.send(packet),
        "packets have room of their own"
    );
    let (mut lists, mut losses) = (0, Vec::new());
    while lists < 64 || losses.is_empty() {
        match events.next().await.unwrap() {
            Told::Digest(_) => lists += 1,
            Told::Lost(what) => losses.push(what),
            other => panic!("{other:?}"),
        }
    }
    assert!(losses.len() == 1 && losses[0].starts_with("36 "), "{losses:?}");
}

#[tokio::test]
async fn a_list_that_is_not_full_is_sent_when_its_time_has_come() {
    let (server, mut client, mut events) = Server::controlled().await;
    let enable = Update::Digest(Change::Insert(digest(100, 1_000_000, HOUR_NS)));
    client.write(&[enable], Atomicity::ContinueOnError).await.unwrap();
    server.switch.tell(Event::Digest {
        id: DigestId(id("learned_t")),
        data: learned(5),
    });
    assert_eq!(list(&mut events).await.data, [learned(5)]);
}

#[tokio::test]
async fn a_failed_batch_leaves_digests_as_they_were() {
    let (server, mut client, mut events) = Server::controlled().await;
    let batch = [
        Update::Digest(Change::Insert(digest(1, HOUR_NS, HOUR_NS))),
        Update::Digest(Change::Insert(digest(1, HOUR_NS, HOUR_NS))),
    ];
    client
        .write(&batch, Atomicity::RollbackOnError)
        .await
        .unwrap_err();
    server.switch.tell(Event::Digest {
        id: DigestId(id("learned_t")),
        data: learned(5),
    });
    client
        .packet_out(&[bits(9, 1), bits(1, 0), bits(6, 0)], b"only this".to_vec())
        .await
        .unwrap();
    assert!(matches!(events.next().await.unwrap(), Told::PacketIn { .. }));
}

#[tokio::test]
async fn idle_entries_are_named() {
    let (server, _client, mut events) = Server::controlled().await;
    let info = info();
    let mac = info.tables().named("mac").unwrap().id;
    let fields = vec![FieldMatch::Exact(bits(48, 1)), FieldMatch::Exact(bits(9, 2))];
    let drop = entity_action();
    let mut entry = TableEntry::new(
        EntryKey {
            table: mac,
            fields,
            priority: 0,
        },
        drop,
    );
    entry.idle_timeout_ns = 77;
    entry.metadata = b"mine".to_vec();
    server.switch.tell(Event::IdleTimeout(Vec::new()));
    server.switch.tell(Event::IdleTimeout(vec![entry.clone()]));
    assert_eq!(events.next().await.unwrap(), Told::IdleTimeout(vec![entry]));
}

fn entity_action() -> EntryAction {
    let id = info().actions().named("drop").unwrap().id;
    EntryAction::Action(Action {
        id,
        params: Vec::new(),
    })
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_let_go() {
    let (server, mut client, mut events) = Server::controlled().await;
    let hearing = tokio::spawn(async move { while events.next().await.is_ok() {} });
    let mut deaf = by_hand(&server, &["arbitration { device_id: 1 election_id { low: 1 } }"]).await;
    assert!(matches!(next(&mut deaf).await, Incoming::Arbitration(_)));
    // Every change of the primary is a message to the deaf one; the stream's window takes many before the queue fills.
    for election_id in 11..8_000 {
        client.stand(election_id).await.unwrap();
    }
    let ended = loop {
        match deaf.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the stream ended well"),
            Err(status) => break status,
        }
    };
    assert_eq!(ended.code(), Code::ResourceExhausted);
    hearing.abort();
}

#[tokio::test]
async fn streams_end_with_the_server() {
    let mut server = Server::start(Some(pipeline())).await;
    let (_client, mut events, _) = server.client(1).await;
    server.stop();
    assert_eq!(code(&events.next().await.unwrap_err()), Code::Unavailable);
    drop((_client, events));
    (&mut server.served).await.unwrap();
}
