//! Events: as they happen, and again for who was away.

use std::time::Duration;

use linewarden_registry::Role;
use reqwest::Method;
use serde_json::{Value, json};

use crate::office::{Caller, Office};

/// Reads events until there are so many with an id; their ids, kinds and data.
fn listen(
    caller: &Caller<'_>,
    last: Option<u64>,
    count: usize,
    meanwhile: impl FnOnce(),
) -> Vec<(u64, String, Value)> {
    let mut request = caller.request(Method::GET, "/api/v1/events");
    if let Some(last) = last {
        request = request.header("Last-Event-ID", last.to_string());
    }
    let runtime = &caller.office.runtime;
    let mut response = runtime.block_on(async { request.send().await.unwrap() });
    assert_eq!(response.status(), 200);
    let mut text = String::new();
    let parse = |text: &str| -> Vec<(u64, String, Value)> {
        let events = text.split("\n\n").filter(|event| event.contains("data:"));
        let field = |event: &str, name: &str| {
            let line = event.lines().find_map(|line| line.strip_prefix(name));
            line.map(|value| value.trim().to_owned())
        };
        let parsed = events.filter_map(|event| {
            let id = field(event, "id:")?.parse().ok()?;
            let data = serde_json::from_str(&field(event, "data:")?).ok()?;
            Some((id, field(event, "event:")?, data))
        });
        parsed.collect()
    };
    // The first word is how things stand: from then on nothing is missed.
    let next = |response: &mut reqwest::Response, text: &mut String| {
        let chunk = async { tokio::time::timeout(Duration::from_secs(20), response.chunk()).await };
        let chunk = runtime.block_on(chunk).unwrap().unwrap().unwrap();
        text.push_str(std::str::from_utf8(&chunk).unwrap());
    };
    while !text.contains("event: status") {
        next(&mut response, &mut text);
    }
    meanwhile();
    loop {
        let complete = text.rfind("\n\n").map_or("", |end| &text[..end + 2]);
        let events = parse(complete);
        if events.len() >= count {
            return events;
        }
        next(&mut response, &mut text);
    }
}

#[test]
fn what_happens_is_told_once_in_its_order_and_again_to_who_was_away() {
    let office = Office::new();
    let otto = office.caller("otto", Role::Operator);
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
    let told: Vec<_> = live.iter().map(|(id, kind, _)| (*id, kind.as_str())).collect();
    assert_eq!(
        told,
        [(1, "enrolled"), (3, "quarantined"), (4, "revoked")],
        "what was refused is for the audit"
    );
    assert_eq!(live[2].2["device"], "00000000000000d1");
    assert_eq!(
        (&live[2].2["by"], &live[2].2["reason"]),
        (&json!("otto"), &json!("stolen"))
    );
    let again = listen(&otto, Some(1), 2, || ());
    assert_eq!(again, live[1..]);
    let history = otto.get("/api/v1/events/history?kinds=revoked,enrolled").ok();
    let kinds: Vec<_> = history["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["kind"].clone())
        .collect();
    assert_eq!(kinds, ["revoked", "enrolled"]);
}
