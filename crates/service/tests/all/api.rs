//! Dashboard files, OpenAPI description, health, groups and signers.

use linewarden_registry::Role;
use linewarden_service::NatsOptions;
use reqwest::Method;
use serde_json::json;

use crate::controller::TestController;

#[test]
fn all_dashboard_files_are_served_and_foreign_scripts_are_blocked() {
    let controller = TestController::new();
    let viewer = controller.caller("vic", Role::Viewer);
    let get = |path: &str| {
        let request = viewer.request(Method::GET, path);
        controller.runtime.block_on(async {
            let response = request.send().await.unwrap();
            let headers = response.headers().clone();
            (response.status(), headers, response.text().await.unwrap())
        })
    };
    let (status, headers, page) = get("/");
    assert_eq!(status, 200);
    let policy = headers["content-security-policy"].to_str().unwrap();
    for directive in [
        "default-src 'none'",
        "script-src 'self'",
        "frame-ancestors 'none'",
    ] {
        assert!(policy.contains(directive), "{policy}");
    }
    assert!(!policy.contains("unsafe"));
    // Each file below `dashboard/assets` is served unchanged.
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboard");
    let mut paths = vec![root.join("assets")];
    let mut served_count = 0;
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            paths.extend(
                std::fs::read_dir(path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
            continue;
        }
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        let (status, headers, content) = get(&format!("/{name}"));
        assert_eq!(status, 200, "{name}");
        assert_eq!(content, std::fs::read_to_string(&path).unwrap());
        assert_eq!(headers["x-content-type-options"], "nosniff");
        served_count += 1;
    }
    assert!(served_count > 20, "{served_count}");
    assert!(page.contains("/assets/"), "{page}");
    for path in [
        "/assets/../Cargo.toml",
        "/assets/%2e%2e/Cargo.toml",
        "/assets/none.js",
    ] {
        assert_eq!(get(path).0, 404, "{path}");
    }
}

#[test]
fn the_openapi_document_contains_the_served_paths() {
    let controller = TestController::new();
    let viewer = controller.caller("vic", Role::Viewer);
    let api = viewer.get("/openapi.json").ok();
    let paths = api["paths"].as_object().unwrap();
    for path in [
        "/api/v1/devices",
        "/api/v1/devices/{id}/revoke",
        "/api/v1/devices/import",
        "/api/v1/gateways/{id}/revoke",
        "/api/v1/rounds",
        "/api/v1/results/{device}",
        "/api/v1/signers",
        "/api/v1/groups/{name}",
        "/api/v1/events",
        "/api/v1/audit",
        "/api/v1/users/{name}",
    ] {
        assert!(paths.contains_key(path), "{path}");
    }
    // Each path without parameters that the document describes for GET exists.
    for (path, verbs) in paths {
        if verbs.get("get").is_some() && !path.contains('{') && path != "/api/v1/events" {
            assert_ne!(viewer.get(path).status, 404, "{path}");
        }
    }
}

#[test]
fn groups_are_created_and_changed_and_a_round_is_requested() {
    let controller = TestController::new();
    let ada = controller.caller("ada", Role::Admin);
    let put = |body: serde_json::Value| {
        let request = ada
            .request(Method::PUT, "/api/v1/groups/pumps")
            .header("Idempotency-Key", crate::controller::unique_key());
        ada.send(request.json(&body))
    };
    // A reference value may be larger than the bodies of other writes, and needs a key like these.
    let reference = json!({"reference": "0x".repeat(1 << 20), "reason": "new"});
    put(reference.clone()).refused(422, "invalid");
    let without_key = ada.request(Method::PUT, "/api/v1/groups/pumps").json(&reference);
    ada.send(without_key).refused(422, "invalid");
    let created = put(json!({"every_s": 30, "missed_limit": 2, "window_rounds": 4, "reason": "new"})).ok();
    assert_eq!(
        (&created["every_s"], &created["missed_limit"]),
        (&json!(30), &json!(2))
    );
    let changed = put(json!({"release_mode": "manual", "reason": "by hand"})).ok();
    assert_eq!(
        (&changed["every_s"], &changed["release_mode"]),
        (&json!(30), &json!("manual"))
    );
    put(json!({"missed_limit": 9, "reason": "odd"})).refused(422, "invalid");
    put(json!({"every": 9, "reason": "odd"})).refused(422, "invalid");
    let group = ada
        .post("/api/v1/groups/pumps/round", &json!({"reason": "now"}))
        .ok();
    assert_eq!(group["rounds_requested"], 1);
    ada.post("/api/v1/groups/fans/round", &json!({"reason": "now"}))
        .refused(404, "not_found");
    assert_eq!(
        ada.get("/api/v1/groups").ok()["items"].as_array().unwrap().len(),
        1
    );
    assert_eq!(ada.get("/api/v1/rounds").ok()["items"], json!([]));
    ada.get("/api/v1/results/d1").refused(404, "unknown_device");
}

/// Alerts and the Grafana dashboard use existing metrics only.
#[test]
fn alerts_and_dashboards_use_existing_metrics() {
    // The metrics about publishing to NATS exist even without a NATS connection.
    let controller = TestController::new_with_nats(NatsOptions {
        servers: vec!["nats://127.0.0.1:1".to_owned()],
        tls: None,
        plaintext: false,
        credentials: None,
        stream: "FLEET".to_owned(),
        subject_prefix: "fleet".to_owned(),
    });
    let address = format!("http://{}/metrics", controller.metrics);
    let page = controller
        .runtime
        .block_on(async { reqwest::get(address).await.unwrap().text().await.unwrap() });
    let is_metric = |name: &str| {
        let name = name.trim_end_matches("_bucket");
        page.lines()
            .any(|line| line.starts_with(&format!("# TYPE {name} ")))
    };
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let mut metric_uses = 0;
    for file in [
        "prometheus/linewarden.rules.yml",
        "prometheus/linewarden.test.yml",
        "grafana/linewarden.json",
    ] {
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        let tokens = text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
        for name in tokens.filter(|word| word.starts_with("linewarden_")) {
            assert!(is_metric(name), "{file} uses {name}");
            metric_uses += 1;
        }
    }
    assert!(metric_uses > 30, "{metric_uses}");
}
