//! Devices: enrollment, bulk import, search, quarantine and release.

use linewarden_registry::Role;
use reqwest::Method;
use serde_json::{Value, json};

use crate::controller::{ApiClient, TestController};

fn pool(id: &str, name: &str) -> Value {
    json!({
        "id": id, "name": name,
        "credentials": {"rows": [["0101010101010101", "22".repeat(16)], ["0202020202020202", "33".repeat(16)]]},
    })
}

fn import(caller: &ApiClient<'_>, lines: String, query: &str) -> crate::controller::ApiResponse {
    let request = caller
        .request(Method::POST, &format!("/api/v1/devices/import{query}"))
        .header("Idempotency-Key", crate::controller::unique_key())
        .header("X-Reason", "first fleet");
    caller.send(request.body(lines))
}

#[test]
fn a_fleet_is_imported_listed_by_pages_and_filtered() {
    let controller = TestController::new();
    let otto = controller.caller("otto", Role::Operator);
    let line = |n: u32| format!("{}\n", pool(&format!("{n:x}"), &format!("pump {n:04}")));
    let lines: String = (1..=2500).map(line).collect();
    assert_eq!(import(&otto, lines, "").ok()["stored"], 2500);
    let (mut ids, mut after) = (Vec::new(), String::new());
    loop {
        let page = otto.get(&format!("/api/v1/devices?limit=700{after}")).ok();
        let items = page["items"].as_array().unwrap();
        ids.extend(items.iter().map(|item| item["id"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    let expected: Vec<String> = (1..=2500).map(|n| format!("{n:016x}")).collect();
    assert_eq!(ids, expected);
    let first_page = otto.get("/api/v1/devices?name_prefix=pump%20012&limit=4").ok();
    let names: Vec<_> = first_page["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["name"].clone())
        .collect();
    assert_eq!(names, ["pump 0120", "pump 0121", "pump 0122", "pump 0123"]);
    let second_page = otto
        .get(&format!(
            "/api/v1/devices?name_prefix=pump%20012&after={}",
            first_page["next"].as_str().unwrap()
        ))
        .ok();
    assert_eq!(second_page["items"].as_array().unwrap().len(), 6);
    for query in ["limit=0", "limit=1001", "after=zz", "status=odd", "mode=odd"] {
        otto.get(&format!("/api/v1/devices?{query}"))
            .refused(422, "invalid");
    }
    // A repeated import of the same device is refused by default, and replaces the device with `on_conflict=replace`.
    import(&otto, line(7), "").refused(409, "conflict");
    assert_eq!(import(&otto, line(7), "?on_conflict=replace").ok()["stored"], 1);
}

#[test]
fn import_errors_name_the_line_and_keep_stored_devices() {
    let controller = TestController::new();
    let otto = controller.caller("otto", Role::Operator);
    let valid = pool("1", "good").to_string();
    for (lines, expected) in [
        (format!("{valid}\nnonsense\n"), "line 2: invalid JSON"),
        (
            format!("\n\n{}\n", json!({"id": "2"})),
            "line 3: invalid field credentials (column 10)",
        ),
        (
            format!("{}\n", json!({"id": "2", "credential": {"key": "77"}})),
            "line 1: invalid field credential (column",
        ),
        (format!("{valid}{valid}\n"), "line 1: invalid JSON"),
        (
            format!("{}\n", json!({"id": "2", "credentials": {"key": "77"}})),
            "line 1: expected 32 hexadecimal digits",
        ),
        (
            format!(
                "{}\n",
                json!({"id": "0", "credentials": {"key": "77".repeat(16)}})
            ),
            "line 1: a device id",
        ),
    ] {
        let output = import(&otto, lines, "");
        let message = output.refused(422, "invalid");
        assert!(message.contains(expected), "{message}");
        assert!(!message.contains("7777"), "the message contains a key");
    }
    // The import stores devices in chunks of thousands. The chunks before the invalid line remain stored.
    let mut lines: String = (1..=10_500)
        .map(|n| format!("{}\n", pool(&format!("{n:x}"), "")))
        .collect();
    lines.push_str("nonsense\n");
    let output = import(&otto, lines, "");
    assert_eq!(output.body["error"]["stored"], 10_000, "{}", output.text);
    assert_eq!(otto.get("/api/v1/devices/2710").status, 200);
    assert_eq!(otto.get("/api/v1/devices/2711").status, 404);
}

#[test]
fn a_device_is_quarantined_released_and_revoked() {
    let controller = TestController::new();
    let otto = controller.caller("otto", Role::Operator);
    let hostile = "<img src=x onerror=alert(1)> \u{202e}gnp";
    let mut device = pool("d1", hostile);
    device["reason"] = "new".into();
    assert_eq!(otto.post("/api/v1/devices", &device).ok()["name"], hostile);
    let reason_body = |reason: &str| json!({"reason": reason});
    let status = |output: Value| output["status"].as_str().unwrap().to_owned();
    let path = |verb: &str| format!("/api/v1/devices/d1/{verb}");
    for empty in ["", "  \n"] {
        otto.post(&path("revoke"), &reason_body(empty))
            .refused(422, "invalid");
    }
    assert_eq!(
        status(otto.post(&path("quarantine"), &reason_body("odd traffic")).ok()),
        "quarantined"
    );
    assert_eq!(
        otto.get("/api/v1/devices?status=quarantined").ok()["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        status(otto.post(&path("release"), &reason_body("explained")).ok()),
        "active"
    );
    assert_eq!(
        status(otto.post(&path("revoke"), &reason_body("stolen")).ok()),
        "revoked"
    );
    otto.post(&path("release"), &reason_body("found"))
        .refused(409, "conflict");
    otto.post(&path("quarantine"), &reason_body("found"))
        .refused(409, "conflict");
    let device_detail = otto.get("/api/v1/devices/d1").ok();
    let history: Vec<_> = device_detail["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            (
                entry["kind"].as_str().unwrap(),
                entry["actor"].as_str().unwrap(),
                entry["reason"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        history,
        [
            ("revoked", "otto", "stolen"),
            ("released", "otto", "explained"),
            ("quarantined", "otto", "odd traffic"),
            ("enrolled", "otto", "new")
        ]
    );
    otto.post("/api/v1/devices/d9/revoke", &reason_body("stolen"))
        .refused(404, "unknown_device");
    otto.post(&path("revoke"), &json!({"reason": "\u{1b}[2J"}))
        .refused(422, "invalid");
}

#[test]
fn many_devices_are_revoked_in_one_request() {
    let controller = TestController::new();
    let otto = controller.caller("otto", Role::Operator);
    let lines: String = (1..=300)
        .map(|n| format!("{}\n", pool(&format!("{n:x}"), "")))
        .collect();
    import(&otto, lines, "").ok();
    let ids: Vec<String> = (1..=301).map(|n| format!("{n:x}")).collect();
    let result = otto
        .post("/api/v1/devices/revoke", &json!({"ids": ids, "reason": "recall"}))
        .ok();
    assert_eq!(
        (&result["revoked"], result["problems"].as_array().unwrap().len()),
        (&json!(300), 1)
    );
    let too_many: Vec<String> = (1..=10_001).map(|n| format!("{n:x}")).collect();
    otto.post(
        "/api/v1/devices/revoke",
        &json!({"ids": too_many, "reason": "recall"}),
    )
    .refused(422, "invalid");
}

/// The limits apply to a JSON body and to a line of an import.
#[test]
fn a_body_above_the_size_limit_is_refused() {
    let controller = TestController::new();
    let otto = controller.caller("otto", Role::Operator);
    let huge = json!({"id": "d1", "name": "x".repeat(2 << 20), "credentials": {"key": "11".repeat(16)}, "reason": "new"});
    otto.post("/api/v1/devices", &huge).refused(413, "too_large");
    let line = "x".repeat(20 << 20);
    let message = import(&otto, line, "").refused(422, "invalid");
    assert!(message.contains("longer than"), "{message}");
}

/// An enrollment request contains a fingerprint of the PUF. The controller compares it with those of the enrolled devices.
#[test]
fn the_puf_of_another_device_is_refused_by_the_api() {
    let controller = TestController::new();
    let otto = controller.caller("otto", Role::Operator);
    let fingerprint = |bits: u32| -> String {
        let band = |position: u32| {
            format!(
                "{position:04x}{:06x}",
                position.wrapping_mul(0x9e37_79b9).wrapping_add(bits) >> 12
            )
        };
        (0..128).map(band).collect()
    };
    let device = |id: &str, fingerprint: &str| {
        let mut device = pool(id, "pump");
        device["fingerprint"] = json!(fingerprint);
        device["reason"] = json!("new");
        device
    };
    otto.post("/api/v1/devices", &device("d1", &fingerprint(0))).ok();
    otto.post("/api/v1/devices", &device("d2", &fingerprint(1 << 30)))
        .ok();
    otto.post("/api/v1/devices", &device("d3", &fingerprint(0)))
        .refused(409, "duplicate_puf");
    let line = format!(
        "{}\n",
        json!({"id": "d3", "credentials": {"key": "44".repeat(16)}, "fingerprint": fingerprint(0)})
    );
    import(&otto, line, "").refused(409, "duplicate_puf");
    for invalid in ["", "00", "zz", &"00".repeat(10), &fingerprint(0)[..9]] {
        otto.post("/api/v1/devices", &device("d4", invalid))
            .refused(422, "invalid");
    }
}
