//! Malformed requests: all error responses have one format, which the OpenAPI document describes.

use linewarden_registry::{Location, Registry, Role};
use reqwest::Method;
use serde_json::{Value, json};

use crate::controller::{ApiClient, Ca, TestController, master_key, unique_key};
use crate::servers::require_postgres;

fn write_request(caller: &ApiClient<'_>, method: Method, path: &str) -> reqwest::RequestBuilder {
    caller
        .request(method, path)
        .header("Idempotency-Key", unique_key())
}

#[test]
fn every_refusal_is_json() {
    let controller = TestController::new();
    let ada = controller.caller("ada", Role::Admin);
    let devices = "/api/v1/devices";
    let json_body = |text: &str| {
        write_request(&ada, Method::POST, devices)
            .header("Content-Type", "application/json")
            .body(text.to_owned())
    };
    ada.send(json_body("{")).refused(400, "bad_request");
    ada.send(json_body("{\"id\":7}")).refused(422, "invalid");
    ada.send(json_body("{\"id\":\"d1\",\"unknown\":1}"))
        .refused(422, "invalid");
    let plain = write_request(&ada, Method::POST, devices).body("{}");
    ada.send(plain).refused(415, "unsupported_media_type");
    ada.get("/api/v1/devices?limit=many").refused(422, "invalid");
    ada.get("/api/v1/devices/%FF").refused(400, "bad_request");
    ada.get("/api/v1/nothing").refused(404, "unknown_path");
    ada.get("/nothing").refused(404, "not_found");
    ada.send(write_request(&ada, Method::DELETE, devices))
        .refused(405, "method_not_allowed");
    ada.send(ada.request(Method::POST, "/healthz"))
        .refused(405, "method_not_allowed");
    let huge = ada
        .request(Method::POST, "/api/v1/login")
        .json(&json!({"token": "x".repeat(8_192)}));
    ada.send(huge).refused(413, "too_large");
    let request = ada.request(Method::DELETE, "/api/v1/status");
    let response = controller
        .runtime
        .block_on(async { request.send().await.unwrap() });
    assert!(response.headers().contains_key("allow"), "{response:?}");
}

/// PostgreSQL fails with an internal error if a text contains the character NUL. The controller must therefore refuse this
/// character before PostgreSQL receives the text.
fn assert_nul_is_refused(controller: &TestController) {
    let ada = controller.caller("ada", Role::Admin);
    for path in [
        "/api/v1/devices?name_prefix=a%00b",
        "/api/v1/audit?actor=%00",
        "/api/v1/audit?action=%00",
        "/api/v1/events/history?kinds=%00",
        "/api/v1/rounds?group=%00",
        "/api/v1/results?state=%00",
        "/api/v1/devices/%00",
    ] {
        ada.get(path).refused(400, "bad_request");
    }
    let removed = write_request(&ada, Method::DELETE, "/api/v1/users/%00?reason=over");
    ada.send(removed).refused(400, "bad_request");
    let device =
        json!({"id": "d1", "name": "a\u{0}b", "credentials": {"key": "11".repeat(16)}, "reason": "new"});
    ada.post("/api/v1/devices", &device).refused(422, "invalid");
    let login = ada
        .request(Method::POST, "/api/v1/login")
        .json(&json!({"token": "\u{0}"}));
    ada.send(login).refused(401, "unauthenticated");
    let user = json!({"name": "a\u{0}", "role": "viewer", "reason": "new"});
    ada.post("/api/v1/users", &user).refused(422, "invalid");
}

#[test]
fn the_character_nul_is_refused() {
    assert_nul_is_refused(&TestController::new());
}

#[test]
fn the_character_nul_is_refused_with_postgresql() {
    let server = require_postgres();
    let location: Location = server.new_schema("nulls").unwrap().parse().unwrap();
    let runtime = std::sync::Arc::new(tokio::runtime::Runtime::new().unwrap());
    let registry = runtime
        .block_on(Registry::create(&location, &master_key()))
        .unwrap();
    assert_nul_is_refused(&TestController::with_registry(
        std::sync::Arc::new(Ca::new()),
        runtime,
        registry,
        "ctl-a",
    ));
}

#[test]
fn the_openapi_description_covers_authentication_and_errors() {
    let controller = TestController::new();
    let api = controller.caller("vera", Role::Viewer).get("/openapi.json").ok();
    let schemes = &api["components"]["securitySchemes"];
    assert_eq!(schemes["token"]["scheme"], "bearer");
    assert_eq!(schemes["session"]["in"], "cookie");
    assert_eq!(schemes["session"]["name"], "linewarden_session");
    assert_eq!(schemes["certificate"]["type"], "mutualTLS");
    assert_eq!(api["security"].as_array().unwrap().len(), 3);
    assert_eq!(api["paths"]["/api/v1/login"]["post"]["security"], json!([]));
    let has_header = |operation: &Value, header: &str| {
        let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
        parameters
            .iter()
            .any(|parameter| parameter["in"] == "header" && parameter["name"] == header)
    };
    let mut writes = 0;
    for (path, verbs) in api["paths"].as_object().unwrap() {
        for (verb, operation) in verbs.as_object().unwrap() {
            let responses = &operation["responses"];
            for status in ["401", "403", "429", "503"] {
                let reference = responses[status]["content"]["application/json"]["schema"]["$ref"].as_str();
                assert_eq!(
                    reference,
                    Some("#/components/schemas/ErrorBody"),
                    "{verb} {path} {status}"
                );
            }
            assert!(
                responses["429"]["headers"]["Retry-After"].is_object(),
                "{verb} {path}"
            );
            if verb != "get" && !path.contains("/log") {
                assert!(has_header(operation, "Idempotency-Key"), "{verb} {path}");
                writes += 1;
            }
        }
    }
    assert!(writes > 10, "{writes}");
    assert!(has_header(
        &api["paths"]["/api/v1/events"]["get"],
        "Last-Event-ID"
    ));
    assert!(has_header(
        &api["paths"]["/api/v1/devices/import"]["post"],
        "X-Reason"
    ));
    // Each reference resolves to a schema.
    let text = api.to_string();
    for reference in text.split("\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(api["components"]["schemas"][name].is_object(), "{name}");
    }
}

/// The methods and paths of the API with their descriptions. In the paths, `1` is the value of each parameter.
fn described_requests(caller: &ApiClient<'_>) -> (Value, Vec<(Method, String, Value)>) {
    let api = caller.get("/openapi.json").ok();
    let mut requests = Vec::new();
    for (path, verbs) in api["paths"].as_object().unwrap() {
        let segments = path.split('/').map(|segment| match segment.starts_with('{') {
            true => "1",
            false => segment,
        });
        let path = segments.collect::<Vec<_>>().join("/");
        for (verb, operation) in verbs.as_object().unwrap() {
            let method = Method::from_bytes(verb.to_uppercase().as_bytes()).unwrap();
            requests.push((method, path.clone(), operation.clone()));
        }
    }
    (api, requests)
}

#[test]
fn every_request_with_an_unknown_parameter_is_refused_with_the_name_of_the_parameter() {
    let controller = TestController::new();
    let ada = controller.caller("ada", Role::Admin);
    let (_, requests) = described_requests(&ada);
    assert!(requests.len() > 30, "{}", requests.len());
    for (method, path, operation) in requests {
        let known = operation["parameters"].as_array().cloned().unwrap_or_default();
        let known: Vec<String> = known
            .iter()
            .filter(|parameter| parameter["in"] == "query")
            .map(|parameter| format!("{}=1&", parameter["name"].as_str().unwrap()))
            .collect();
        let query = format!("{path}?{}odd%20name=1", known.concat());
        let response = ada.send(write_request(&ada, method.clone(), &query));
        assert_eq!(response.body["error"]["field"], "odd name", "{method} {query}");
        response.refused(422, "invalid");
    }
    // Reads without a description in the OpenAPI document do not exist.
    ada.get("/api/v1/nothing?odd=1").refused(404, "unknown_path");
    let head = ada.send(ada.request(Method::HEAD, "/api/v1/devices?odd=1"));
    assert_eq!(head.status, 422);
    // The value of a known parameter is also named.
    let many = ada.get("/api/v1/devices?limit=many");
    assert_eq!(many.body["error"]["field"], "limit", "{many:?}");
    let no_reason = ada.send(write_request(&ada, Method::DELETE, "/api/v1/users/ada"));
    assert_eq!(no_reason.body["error"]["field"], "reason", "{no_reason:?}");
}

#[test]
fn every_body_with_an_unknown_or_invalid_field_is_refused_with_the_name_of_the_field() {
    let controller = TestController::new();
    let ada = controller.caller("ada", Role::Admin);
    let (api, requests) = described_requests(&ada);
    let mut fields = 0;
    for (method, path, operation) in requests {
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"]["$ref"];
        let Some(schema) = schema.as_str().and_then(|reference| reference.strip_prefix('#')) else {
            continue;
        };
        let refused_field = |body: Value| {
            let response = ada.send(write_request(&ada, method.clone(), &path).json(&body));
            let field = response.body["error"]["field"].as_str().map(str::to_owned);
            response.refused(422, "invalid");
            field.unwrap_or_default()
        };
        assert_eq!(refused_field(json!({"odd": 1})), "odd", "{method} {path}");
        let properties = api.pointer(schema).unwrap()["properties"].as_object().unwrap();
        for property in properties.keys() {
            // No field is an object with this member.
            let field = refused_field(json!({property: {"odd": 1}}));
            assert!(field.starts_with(property), "{method} {path} {property}: {field}");
            fields += 1;
        }
        let missing = refused_field(json!({}));
        assert!(properties.contains_key(&missing), "{method} {path}: {missing}");
    }
    assert!(fields > 20, "{fields}");
}

/// A repeated import with the same idempotency key stores each device once, even if an earlier attempt was interrupted. The
/// controller refuses another body with the same key.
#[test]
fn an_interrupted_import_can_be_repeated() {
    let controller = TestController::new();
    let olga = controller.caller("olga", Role::Operator);
    let lines = |count: u32| -> String {
        let line = |n: u32| json!({"id": format!("{n:x}"), "credentials": {"key": format!("{n:032x}")}});
        (1..=count).map(|n| format!("{}\n", line(n))).collect()
    };
    let import = |body: String, key: &str| {
        let request = olga
            .request(Method::POST, "/api/v1/devices/import")
            .header("X-Reason", "neue Geräte".as_bytes());
        olga.send(request.header("Idempotency-Key", key).body(body))
    };
    // The body ends in the middle of a line, after a stored chunk.
    let broken = format!("{}{{", lines(10_500));
    let response = import(broken, "k1");
    assert_eq!(response.body["error"]["stored"], 10_000, "{}", response.text);
    let count = || {
        olga.get("/api/v1/devices?limit=1000&after=270f").ok()["items"]
            .as_array()
            .unwrap()
            .len()
    };
    assert_eq!(count(), 1, "the page starts at the last of 10,000 devices");
    assert_eq!(import(lines(10_500), "k1").ok()["stored"], 10_500);
    assert_eq!(count(), 501);
    assert_eq!(import(lines(10_500), "k1").ok()["stored"], 10_500);
    import(lines(10_500), "k2").refused(409, "conflict");
    import(lines(10_400), "k1").refused(409, "conflict");
    import(lines(10_500).replacen('{', "{ ", 1), "k1").refused(409, "conflict");
    import(lines(1), "k 1").refused(422, "invalid");
    let audit = controller.caller("ada", Role::Admin).get("/api/v1/audit").ok();
    assert_eq!(
        audit["items"][audit["items"].as_array().unwrap().len() - 1]["reason"],
        "neue Geräte"
    );
}

/// Some clients cannot send the header Last-Event-ID, for example `EventSource` of a browser in its first request.
#[test]
fn the_last_event_id_may_be_a_query_parameter() {
    let controller = TestController::new();
    let olga = controller.caller("olga", Role::Operator);
    for id in ["d1", "d2"] {
        let device = json!({"id": id, "credentials": {"key": "11".repeat(16)}, "reason": "new"});
        olga.post("/api/v1/devices", &device).ok();
    }
    let first_event_id = |path: &str| {
        let request = olga.request(Method::GET, path);
        controller.runtime.block_on(async {
            let mut response = request.send().await.unwrap();
            let mut text = String::new();
            while !text.contains("id:") {
                let chunk = tokio::time::timeout(std::time::Duration::from_secs(20), response.chunk()).await;
                text.push_str(std::str::from_utf8(&chunk.unwrap().unwrap().unwrap()).unwrap());
            }
            let line = text.lines().find_map(|line| line.strip_prefix("id:")).unwrap();
            line.trim().to_owned()
        })
    };
    assert_eq!(
        first_event_id("/api/v1/events?last_event_id=0&kinds=enrolled"),
        "1"
    );
    assert_eq!(
        first_event_id("/api/v1/events?last_event_id=1&kinds=enrolled"),
        "2"
    );
}
