//! Publishing to a real nats-server: each event is published once and in order, although processes are killed and stopped.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;

use async_nats::jetstream::stream::Stream;
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{Location, NewEvent, Registry, Role};
use linewarden_service::{NatsOptions, NatsTls};
use linewarden_testbed::Nats;
use rcgen::SanType;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::controller::{ApiClient, Ca, TestController, master_key};
use crate::servers::{require_nats, require_postgres};
use crate::site::TIMEOUT;

const STREAM: &str = "FLEET";

fn options(server: &Nats) -> NatsOptions {
    NatsOptions {
        servers: vec![server.address()],
        tls: None,
        plaintext: false,
        credentials: None,
        stream: STREAM.to_owned(),
        subject_prefix: "fleet.events".to_owned(),
    }
}

/// Waits until the stream contains the event with the number `last_event`. Returns the messages up to this event: ids,
/// subjects and bodies.
async fn published_messages(stream: &mut Stream, last_event: u64) -> Vec<(String, String, Value)> {
    let mut messages = Vec::new();
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let last_sequence = stream.info().await.unwrap().state.last_sequence;
        while (messages.len() as u64) < last_sequence {
            let message = stream.get_raw_message(messages.len() as u64 + 1).await.unwrap();
            let id = message.headers.get(async_nats::header::NATS_MESSAGE_ID).unwrap();
            let body: Value = serde_json::from_slice(&message.payload).unwrap();
            messages.push((id.to_string(), message.subject.to_string(), body));
        }
        let is_last = |(_, _, body): &(String, String, Value)| body["id"] == last_event;
        if messages.last().is_some_and(is_last) {
            return messages;
        }
        assert!(
            Instant::now() < deadline,
            "event {last_event} is missing: {messages:?}"
        );
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

async fn stream(server: &Nats) -> Stream {
    let client = async_nats::connect(server.address()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match context.get_stream(STREAM).await {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
}

/// Asserts that the stream contains the registry's events, each event once and in order; returns their number.
#[track_caller]
fn assert_stream_has_all_events(runtime: &Runtime, server: &Nats, registry: &Registry) -> usize {
    let mut entries = runtime.block_on(registry.events_after(0, 10_000)).unwrap();
    entries.retain(|entry| !entry.refused);
    let last_event = entries.last().unwrap().number;
    let messages =
        runtime.block_on(async { published_messages(&mut stream(server).await, last_event).await });
    let expected: Vec<_> = entries
        .iter()
        .map(|entry| {
            (
                format!("{}-{}", entry.number, entry.at_ms),
                format!("fleet.events.{}", entry.event.kind),
                json!(entry.number),
            )
        })
        .collect();
    let published_fields: Vec<_> = messages
        .iter()
        .map(|(id, subject, body)| (id.clone(), subject.clone(), body["id"].clone()))
        .collect();
    assert_eq!(published_fields, expected);
    expected.len()
}

fn enroll(caller: &ApiClient<'_>, ids: std::ops::Range<u64>) {
    for id in ids {
        let id = DeviceId(id);
        let body = json!({"id": id.to_string(), "credentials": {"key": "11".repeat(16)}, "reason": "new"});
        caller.post("/api/v1/devices", &body).ok();
    }
}

/// Reads a metric of a controller.
fn metric(controller: &TestController, name: &str) -> f64 {
    let address = format!("http://{}/metrics", controller.metrics);
    let page = controller
        .runtime
        .block_on(async { reqwest::get(address).await.unwrap().text().await.unwrap() });
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("no {name}: {page}"))
        .parse()
        .unwrap()
}

#[track_caller]
fn wait_for_metric(controller: &TestController, name: &str, value: f64) {
    let deadline = Instant::now() + TIMEOUT;
    while (metric(controller, name) - value).abs() > f64::EPSILON {
        assert!(
            Instant::now() < deadline,
            "{name} is {}",
            metric(controller, name)
        );
    }
}

#[test]
fn two_controllers_publish_each_event_once_across_restarts() {
    let (mut server, database) = (require_nats(&[]), require_postgres());
    let runtime = Arc::new(Runtime::new().unwrap());
    let location: Location = database.new_schema("fleet").unwrap().parse().unwrap();
    let registry = runtime
        .block_on(Registry::create(&location, &master_key()))
        .unwrap();
    let ca = Arc::new(Ca::new());
    let start = |name: &str, server: &Nats| {
        let registry = runtime
            .block_on(Registry::open(&location, &master_key()))
            .unwrap();
        let nats = Some(options(server));
        TestController::with_nats(Arc::clone(&ca), Arc::clone(&runtime), registry, name, nats)
    };
    let (a, b) = (start("ctl-a", &server), start("ctl-b", &server));
    let (otto, olga) = (a.caller("otto", Role::Operator), b.caller("olga", Role::Operator));
    // Both users enroll concurrently; refused actions are in the audit log only.
    std::thread::scope(|scope| {
        scope.spawn(|| enroll(&otto, 1..40));
        enroll(&olga, 100..140);
    });
    otto.post("/api/v1/devices/1/revoke", &json!({"reason": "stolen"}))
        .ok();
    olga.post("/api/v1/devices/777/revoke", &json!({"reason": "who?"}))
        .refused(404, "unknown_device");
    let count = assert_stream_has_all_events(&runtime, &server, &registry);
    assert_eq!(count, 39 + 40 + 1);
    let sum = metric(&a, "linewarden_nats_published_total") + metric(&b, "linewarden_nats_published_total");
    assert_eq!(sum as usize, count, "each event is published by one controller");

    // API requests do not wait for a stopped NATS server. After its restart, the server receives all events.
    server.kill().unwrap();
    wait_for_metric(&a, "linewarden_nats_connected", 0.0);
    enroll(&otto, 200..210);
    enroll(&olga, 210..220);
    server.restart().unwrap();
    assert_eq!(
        assert_stream_has_all_events(&runtime, &server, &registry),
        count + 20
    );
    wait_for_metric(&a, "linewarden_nats_lag_events", 0.0);
    wait_for_metric(&b, "linewarden_nats_lag_events", 0.0);

    // Events that were recorded without a running controller are published by the next controller.
    drop((otto, olga));
    drop((a, b));
    let event_of_kind = |kind: &str| NewEvent {
        kind: kind.to_owned(),
        ..NewEvent::default()
    };
    let events: Vec<NewEvent> = (0..500)
        .map(|number| event_of_kind(if number % 2 == 0 { "odd" } else { "even" }))
        .collect();
    runtime.block_on(registry.record_events(&events, 5)).unwrap();
    let a = start("ctl-a", &server);
    assert_eq!(
        assert_stream_has_all_events(&runtime, &server, &registry),
        count + 520
    );
    wait_for_metric(&a, "linewarden_nats_published_total", 500.0);

    // After a purge of the stream, publishing continues with the next event.
    runtime.block_on(async { stream(&server).await.purge().await.unwrap() });
    runtime
        .block_on(registry.record_events(&[event_of_kind("after")], 6))
        .unwrap();
    wait_for_metric(&a, "linewarden_nats_published_total", 501.0);
    wait_for_metric(&a, "linewarden_nats_lag_events", 0.0);
    let message_count =
        runtime.block_on(async { stream(&server).await.info().await.unwrap().state.messages });
    assert_eq!(message_count, 1, "no event is repeated");
}

#[test]
fn a_nats_server_is_trusted_only_with_its_ca() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let ca = Ca::new();
    let (chain, key) = ca.client("urn:linewarden:nats", |parameters| {
        parameters.subject_alt_names = vec![SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST))];
    });
    std::fs::write(path("server.pem"), chain).unwrap();
    std::fs::write(path("server.key"), key).unwrap();
    std::fs::write(path("ca.pem"), ca.pem()).unwrap();
    std::fs::write(path("other.pem"), Ca::new().pem()).unwrap();
    let (certificate, key) = (path("server.pem"), path("server.key"));
    let arguments = [
        "--tls",
        "--tlscert",
        certificate.to_str().unwrap(),
        "--tlskey",
        key.to_str().unwrap(),
    ];
    let server = require_nats(&arguments);
    let publish_with_ca = |ca: &str| {
        let tls = NatsTls {
            ca: path(ca),
            identity: None,
        };
        let directory = tempfile::tempdir().unwrap();
        let location = Location::Sqlite(directory.path().join("fleet.registry"));
        let runtime = Arc::new(Runtime::new().unwrap());
        let registry = runtime
            .block_on(Registry::create(&location, &crate::controller::master_key()))
            .unwrap();
        let nats = NatsOptions {
            tls: Some(tls),
            stream: format!("FLEET-{}", ca.len()),
            subject_prefix: format!("fleet{}", ca.len()),
            ..options(&server)
        };
        let controller = TestController::with_nats(Arc::new(Ca::new()), runtime, registry, "ctl", Some(nats));
        let otto = controller.caller("otto", Role::Operator);
        enroll(&otto, 1..3);
        let deadline = Instant::now() + TIMEOUT;
        // Waits until the events are published or publishing has failed.
        while metric(&controller, "linewarden_nats_published_total") < 2.0
            && metric(&controller, "linewarden_nats_failed_total") < 3.0
        {
            assert!(
                Instant::now() < deadline,
                "the events are neither published nor refused"
            );
        }
        metric(&controller, "linewarden_nats_published_total")
    };
    assert_eq!(publish_with_ca("ca.pem") as u64, 2);
    assert_eq!(
        publish_with_ca("other.pem") as u64,
        0,
        "an untrusted server receives no event"
    );
}
