//! Event streams: new events, and events after a resumption.

use std::time::Duration;

use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_registry::Role;
use linewarden_signatures::key::PrivateKey;
use linewarden_signatures::scheme::Scheme;
use reqwest::Method;
use serde_json::{Value, json};

use crate::controller::{ApiClient, TestController};
use crate::fleet::{DeviceSpec, Fleet, make_group, start_gateway};
use crate::site::TIMEOUT;

/// An event: its id if it is in the event log, its kind and its data.
type Event = (Option<u64>, String, Value);

/// Subscribes after the event `last_id`, runs `action`, and reads until `count` events with an id have arrived. Returns their
/// ids, kinds and data.
fn listen(
    caller: &ApiClient<'_>,
    last_id: Option<u64>,
    count: usize,
    action: impl FnOnce(),
) -> Vec<(u64, String, Value)> {
    let recorded_count = |events: &[Event]| events.iter().filter(|(id, ..)| id.is_some()).count();
    let events = listen_until(caller, last_id, action, |events| recorded_count(events) >= count);
    let recorded = events
        .into_iter()
        .filter_map(|(id, kind, data)| Some((id?, kind, data)));
    recorded.collect()
}

/// Subscribes after the event `last_id`, runs `action`, and reads until `are_enough` returns true. Returns all events except
/// the status events.
fn listen_until(
    caller: &ApiClient<'_>,
    last_id: Option<u64>,
    action: impl FnOnce(),
    are_enough: impl Fn(&[Event]) -> bool,
) -> Vec<Event> {
    let mut request = caller.request(Method::GET, "/api/v1/events");
    if let Some(last_id) = last_id {
        request = request.header("Last-Event-ID", last_id.to_string());
    }
    let runtime = &caller.controller.runtime;
    let mut response = runtime.block_on(async { request.send().await.unwrap() });
    assert_eq!(response.status(), 200);
    let mut text = String::new();
    let parse = |text: &str| -> Vec<Event> {
        let events = text.split("\n\n").filter(|event| event.contains("data:"));
        let field = |event: &str, name: &str| {
            let line = event.lines().find_map(|line| line.strip_prefix(name));
            line.map(|value| value.trim().to_owned())
        };
        let parsed = events.filter_map(|event| {
            let id = field(event, "id:").map(|id| id.parse().unwrap());
            let data = serde_json::from_str(&field(event, "data:")?).ok()?;
            Some((id, field(event, "event:")?, data))
        });
        parsed.filter(|(_, kind, _)| kind != "status").collect()
    };
    // The first event is the status. The stream contains every event after the status.
    let read_chunk = |response: &mut reqwest::Response, text: &mut String| {
        let chunk = async { tokio::time::timeout(Duration::from_secs(20), response.chunk()).await };
        let chunk = runtime.block_on(chunk).unwrap().unwrap().unwrap();
        text.push_str(std::str::from_utf8(&chunk).unwrap());
    };
    while !text.contains("event: status") {
        read_chunk(&mut response, &mut text);
    }
    action();
    loop {
        let complete = text.rfind("\n\n").map_or("", |end| &text[..end + 2]);
        let events = parse(complete);
        if are_enough(&events) {
            return events;
        }
        read_chunk(&mut response, &mut text);
    }
}

#[test]
fn events_are_delivered_once_in_order_and_can_be_resumed() {
    let controller = TestController::new();
    let otto = controller.caller("otto", Role::Operator);
    let device = |id: &str| json!({"id": id, "credentials": {"key": "11".repeat(16)}, "reason": "new"});
    let live = listen(&otto, None, 3, || {
        otto.post("/api/v1/devices", &device("d1")).ok();
        otto.post("/api/v1/devices", &device("d1"))
            .refused(409, "conflict");
        otto.post("/api/v1/devices/d1/quarantine", &json!({"reason": "odd"}))
            .ok();
        otto.post("/api/v1/devices/d1/revoke", &json!({"reason": "stolen"}))
            .ok();
    });
    let result: Vec<_> = live.iter().map(|(id, kind, _)| (*id, kind.as_str())).collect();
    assert_eq!(
        result,
        [(1, "enrolled"), (3, "quarantined"), (4, "revoked")],
        "refused actions are in the audit log only"
    );
    assert_eq!(live[2].2["device"], "00000000000000d1");
    assert_eq!(
        (&live[2].2["actor"], &live[2].2["reason"]),
        (&json!("otto"), &json!("stolen"))
    );
    let resumed = listen(&otto, Some(1), 2, || ());
    assert_eq!(resumed, live[1..]);
    let history = otto.get("/api/v1/events/history?kinds=revoked,enrolled").ok();
    let kinds: Vec<_> = history["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["kind"].clone())
        .collect();
    assert_eq!(kinds, ["revoked", "enrolled"]);
}

/// Round events are sent to current subscribers and not stored. The quarantines and releases that result from rounds are
/// stored in the event log.
#[test]
fn rounds_and_their_quarantines_and_releases_are_events() {
    let controller = TestController::new();
    let vera = controller.caller("vera", Role::Viewer);
    make_group(&controller, "sensors", 1);
    let (gateway, address) = start_gateway(&controller, GatewayId(3));
    let specs = [0xd1, 0xd2, 0xd3].map(|id| DeviceSpec {
        device: DeviceId(id),
        name: String::new(),
        gateway: address,
        first_gateway: GatewayId(3),
        group: "sensors",
        is_changed: false,
    });
    let fleet = Fleet::start(&controller, &specs, Duration::from_millis(50));
    let unresponsive = DeviceId(0xd2);
    let data_of_kind = |events: &[Event], kind: &str| -> Vec<Value> {
        let of_kind = events.iter().filter(|(_, event_kind, _)| event_kind == kind);
        of_kind.map(|(_, _, data)| data.clone()).collect()
    };
    let all_ok = |events: &[Event]| {
        data_of_kind(events, "round")
            .iter()
            .any(|event| event["round"]["ok"] == 3)
    };
    let events = listen_until(&vera, None, || (), all_ok);
    let rounds = data_of_kind(&events, "round");
    let round = rounds.iter().find(|event| event["round"]["ok"] == 3).unwrap();
    assert_eq!((&round["gateway"], &round["id"]), (&json!(3), &Value::Null));
    assert_eq!(
        (&round["round"]["group"], &round["round"]["requested"]),
        (&json!("sensors"), &json!(3))
    );
    let listed_rounds = vera.get("/api/v1/rounds?gateway=3").ok();
    let listed_rounds = listed_rounds["items"].as_array().unwrap();
    assert!(
        listed_rounds.contains(&round["round"]),
        "the list does not contain the round of the event: {listed_rounds:?}"
    );

    let is_quarantined = |events: &[Event]| !data_of_kind(events, "quarantined").is_empty();
    let events = listen_until(
        &vera,
        None,
        || fleet.set_muted(unresponsive, true),
        is_quarantined,
    );
    let result = &data_of_kind(&events, "quarantined")[0];
    assert_eq!(
        (&result["device"], &result["gateway"]),
        (&json!(unresponsive.to_string()), &json!(3))
    );
    assert_eq!(
        (&result["actor"], result["id"].is_u64()),
        (&Value::Null, true),
        "the event has no actor: {result}"
    );
    assert!(
        result["detail"].as_str().unwrap().contains("of group sensors"),
        "{result}"
    );
    fleet.wait(unresponsive, |(_, refused)| refused > 0);
    // The counts can be some seconds old.
    let deadline = std::time::Instant::now() + TIMEOUT;
    loop {
        let status = vera.get("/api/v1/status").ok();
        if status["devices"]["quarantined"] == 1 {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{status}");
    }

    let is_released = |events: &[Event]| !data_of_kind(events, "released").is_empty();
    let events = listen_until(&vera, None, || fleet.set_muted(unresponsive, false), is_released);
    assert_eq!(
        data_of_kind(&events, "released")[0]["device"],
        json!(unresponsive.to_string())
    );
    let (accepted, _) = fleet.wait(unresponsive, |_| true);
    fleet.wait(unresponsive, |(now, _)| now > accepted);
    let history = vera.get("/api/v1/devices/d2").ok();
    let kinds: Vec<_> = history["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["kind"].clone())
        .collect();
    assert_eq!(kinds, ["released", "quarantined"], "{history}");
    drop(gateway);
}

/// The dashboard subscribes to each kind by name: an unknown kind would never be shown.
#[test]
fn the_dashboard_knows_each_kind_of_event_and_no_other() {
    let controller = TestController::new();
    let ada = controller.caller("ada", Role::Admin);
    let script = include_str!("../../dashboard/assets/core/events.js");
    let list = script
        .split_once("KINDS = [")
        .unwrap()
        .1
        .split_once(']')
        .unwrap()
        .0;
    let mut dashboard_kinds: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
    let reason = json!({"reason": "to see"});
    ada.post(
        "/api/v1/devices",
        &json!({"id": "d1", "credentials": {"key": "11".repeat(16)}, "reason": "new"}),
    )
    .ok();
    for action in ["quarantine", "release", "revoke"] {
        ada.post(&format!("/api/v1/devices/d1/{action}"), &reason).ok();
    }
    ada.post(
        "/api/v1/gateways",
        &json!({"id": 3, "name": "north", "reason": "new"}),
    )
    .ok();
    controller
        .runtime
        .block_on(controller.link(GatewayId(3), &[]).register())
        .unwrap();
    ada.post("/api/v1/gateways/3/revoke", &reason).ok();
    let delete = ada.request(reqwest::Method::DELETE, "/api/v1/devices/d1/pairs/d2?reason=over");
    ada.send(delete.header("Idempotency-Key", crate::controller::unique_key()))
        .ok();
    let put = ada.request(reqwest::Method::PUT, "/api/v1/groups/pumps");
    let put = put.header("Idempotency-Key", crate::controller::unique_key());
    ada.send(put.json(&json!({"every_s": 30, "reason": "new"}))).ok();
    ada.post("/api/v1/groups/pumps/round", &reason).ok();
    ada.post(
        "/api/v1/users",
        &json!({"name": "carl", "role": "viewer", "reason": "new"}),
    )
    .ok();
    let signer = PrivateKey::generate(Scheme::Ed25519, None).unwrap();
    let key = signer.public().to_json().unwrap();
    ada.post(
        "/api/v1/signers",
        &json!({"name": "beacon", "public_key": key, "reason": "new"}),
    )
    .ok();
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    let recorded_kinds = loop {
        let history = ada.get("/api/v1/events/history?limit=1000").ok();
        let kinds = history["items"].as_array().unwrap().iter();
        let mut kinds: Vec<String> = kinds
            .map(|item| item["kind"].as_str().unwrap().to_owned())
            .collect();
        kinds.sort_unstable();
        kinds.dedup();
        // Events of gateways are recorded by another task, slightly later.
        if kinds.iter().any(|kind| kind == "gateway_connected") {
            break kinds;
        }
        assert!(std::time::Instant::now() < deadline, "{kinds:?}");
    };
    // Other tests produce these kinds: a disconnection takes time, and the trust events need a data plane (see `trust.rs`).
    dashboard_kinds
        .retain(|kind| !["gateway_disconnected", "gateway_trusted", "gateway_untrusted"].contains(kind));
    dashboard_kinds.sort_unstable();
    assert_eq!(recorded_kinds, dashboard_kinds);
}
