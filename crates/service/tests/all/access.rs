//! Authentication methods and permissions.

use linewarden_registry::{EventFilter, Role, User};
use reqwest::Method;
use serde_json::json;

use crate::controller::{ApiClient, NAME, TestController, unique_key, user_certificate};
use crate::floods::browser_at;

#[test]
fn requests_require_a_valid_token() {
    let controller = TestController::new();
    let anonymous = ApiClient {
        controller: &controller,
        client: controller.browser(),
        token: None,
    };
    for path in [
        "/api/v1/devices",
        "/api/v1/status",
        "/api/v1/me",
        "/api/v1/events",
    ] {
        anonymous.get(path).refused(401, "unauthenticated");
    }
    let guesser = ApiClient {
        token: Some("lw_guess".to_owned()),
        ..anonymous
    };
    let statuses = (0..60)
        .map(|_| guesser.get("/api/v1/me").status)
        .collect::<Vec<_>>();
    assert!(statuses.contains(&429), "guessing is rate-limited: {statuses:?}");
    // Failed attempts do not lock out known users from the same address.
    let alice = controller.caller("alice", Role::Viewer);
    assert_eq!(alice.get("/api/v1/me").ok()["role"], "viewer");
    for path in ["/healthz", "/readyz", "/openapi.json", "/"] {
        assert_eq!(guesser.get(path).status, 200, "{path}");
    }
    assert_eq!(
        guesser.get("/metrics").status,
        404,
        "metrics have their own address"
    );
}

/// Requests allowed to operators and admins, but not to viewers.
const OPERATOR_REQUESTS: [(&str, &str); 10] = [
    ("post", "/api/v1/devices"),
    ("post", "/api/v1/devices/import"),
    ("post", "/api/v1/devices/revoke"),
    ("post", "/api/v1/devices/{id}/quarantine"),
    ("post", "/api/v1/devices/{id}/release"),
    ("post", "/api/v1/devices/{id}/revoke"),
    ("put", "/api/v1/devices/{id}/pairs/{peer}"),
    ("delete", "/api/v1/devices/{id}/pairs/{peer}"),
    ("post", "/api/v1/groups/{name}/round"),
    ("post", "/api/v1/signers/{id}/revoke"),
];
/// Requests allowed to admins only.
const ADMIN_REQUESTS: [(&str, &str); 12] = [
    ("get", "/api/v1/audit"),
    ("get", "/api/v1/users"),
    ("post", "/api/v1/users"),
    ("delete", "/api/v1/users/{name}"),
    ("post", "/api/v1/gateways"),
    ("post", "/api/v1/gateways/{id}/revoke"),
    ("put", "/api/v1/groups/{name}"),
    ("delete", "/api/v1/groups/{name}"),
    ("post", "/api/v1/groups/{name}/roll-out"),
    ("post", "/api/v1/groups/{name}/roll-out/approve"),
    ("delete", "/api/v1/groups/{name}/roll-out"),
    ("post", "/api/v1/signers"),
];
/// Paths without authentication.
const WITHOUT_AUTHENTICATION: [&str; 2] = ["/api/v1/login", "/api/v1/logout"];

/// Each request in the OpenAPI document, except GET, must be in one of the lists above.
#[test]
fn every_path_and_method_requires_its_role() {
    let controller = TestController::new();
    let callers =
        [Role::Viewer, Role::Operator, Role::Admin].map(|role| controller.caller(&format!("{role:?}"), role));
    let api = callers[0].get("/openapi.json").ok();
    let mut operations = Vec::new();
    for (path, verbs) in api["paths"].as_object().unwrap() {
        let concrete_path = path
            .replace("{device}", "d1")
            .replace("{peer}", "d2")
            .replace("{id}", "11")
            .replace("{name}", "x");
        for verb in verbs.as_object().unwrap().keys() {
            let is_in = |list: &[(&str, &str)]| list.contains(&(verb.as_str(), path.as_str()));
            let (of_operators, of_admins) = (is_in(&OPERATOR_REQUESTS), is_in(&ADMIN_REQUESTS));
            operations.push(format!("{verb} {path}"));
            let method: Method = verb.to_uppercase().parse().unwrap();
            // Only the header of a response is read, because a stream does not end. Each anonymous request comes
            // from its own address, with its own rate limit.
            let status = |client: &reqwest::Client, token: Option<&String>| {
                let address = format!("https://{NAME}:{}{concrete_path}", controller.address.port());
                let request = client
                    .request(method.clone(), address)
                    .header("Idempotency-Key", unique_key());
                let request = token
                    .into_iter()
                    .fold(request, |request, token| request.bearer_auth(token));
                let response = controller
                    .runtime
                    .block_on(async { request.send().await.unwrap() });
                response.status().as_u16()
            };
            let host = u8::try_from(operations.len()).unwrap() + 1;
            let anonymous_status = status(&browser_at(&controller, host), None);
            let statuses = callers
                .each_ref()
                .map(|caller| status(&caller.client, caller.token.as_ref()));
            let is_forbidden = statuses.map(|status| status == 403);
            let results = format!("{verb} {path}: {anonymous_status}, {statuses:?}");
            assert!(!statuses.contains(&401), "{results}");
            if WITHOUT_AUTHENTICATION.contains(&path.as_str()) {
                assert!(anonymous_status != 401 && is_forbidden == [false; 3], "{results}");
                continue;
            }
            assert_eq!(anonymous_status, 401, "{results}");
            assert!(
                verb == "get" || of_operators || of_admins,
                "no role is assigned: {results}"
            );
            assert_eq!(
                is_forbidden,
                [of_operators || of_admins, of_admins, false],
                "{results}"
            );
        }
    }
    assert!(operations.len() > 30, "{operations:?}");
}

#[test]
fn each_role_has_exactly_its_permissions() {
    let controller = TestController::new();
    let [viewer, operator, admin] = [
        controller.caller("vera", Role::Viewer),
        controller.caller("otto", Role::Operator),
        controller.caller("ada", Role::Admin),
    ];
    let device = json!({"id": "d1", "credentials": {"key": "11".repeat(16)}, "reason": "new"});
    viewer.post("/api/v1/devices", &device).refused(403, "forbidden");
    operator.post("/api/v1/devices", &device).ok();
    viewer.get("/api/v1/devices/d1").ok();
    operator.get("/api/v1/audit").refused(403, "forbidden");
    let gateway = json!({"id": 1, "name": "hall", "reason": "new"});
    operator
        .post("/api/v1/gateways", &gateway)
        .refused(403, "forbidden");
    admin.post("/api/v1/gateways", &gateway).ok();
    let result = admin.get("/api/v1/audit").ok();
    let result: Vec<_> = result["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|act| {
            (
                act["actor"].as_str().unwrap(),
                act["action"].as_str().unwrap(),
                act["reason"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        result,
        [("ada", "gateway_created", "new"), ("otto", "enrolled", "new")]
    );

    let created = admin
        .post(
            "/api/v1/users",
            &json!({"name": "carl", "role": "viewer", "reason": "audit"}),
        )
        .ok();
    let carl = ApiClient {
        controller: &controller,
        client: controller.browser(),
        token: Some(created["token"].as_str().unwrap().to_owned()),
    };
    assert_eq!(carl.get("/api/v1/me").ok()["name"], "carl");
    let removed = admin.request(Method::DELETE, "/api/v1/users/carl?reason=done");
    assert_eq!(admin.send(removed.header("Idempotency-Key", "k")).status, 204);
    carl.get("/api/v1/me").refused(401, "unauthenticated");
    // The events do not contain the token.
    let log = controller
        .runtime
        .block_on(controller.registry.events(&EventFilter::default(), None, 100))
        .unwrap();
    assert!(!format!("{log:?}").contains(created["token"].as_str().unwrap()));
    // A repeated request does not return the token again.
    let dora = json!({"name": "dora", "role": "viewer", "reason": "night shift"});
    assert_eq!(admin.post_with("/api/v1/users", &dora, "dora").status, 201);
    admin
        .post_with("/api/v1/users", &dora, "dora")
        .refused(422, "invalid");
}

/// Messages of gateways can be large. The server refuses an unknown peer without waiting for the peer's message.
#[test]
fn unknown_peers_of_the_gateway_link_are_refused_before_their_message() {
    let controller = TestController::new();
    let otto = controller.caller("otto", Role::Admin);
    let request = otto
        .request(Method::POST, "/linewarden.link.v1.Link/ReportSessions")
        .header("Content-Type", "application/grpc")
        .body(reqwest::Body::wrap_stream(tokio_stream::pending::<
            Result<Vec<u8>, std::io::Error>,
        >()));
    let response = controller
        .runtime
        .block_on(async { request.send().await })
        .unwrap();
    let unauthenticated = (tonic::Code::Unauthenticated as i32).to_string();
    assert_eq!(response.headers()["grpc-status"], *unauthenticated);
}

#[test]
fn a_certificate_is_valid_only_for_the_user_that_it_names() {
    let controller = TestController::new();
    let user = User {
        name: "build-server".to_owned(),
        role: Role::Operator,
        has_token: false,
        created_at_s: 0,
        expires_at_s: None,
    };
    controller
        .runtime
        .block_on(controller.registry.add_user(&user, None))
        .unwrap();
    let caller = |certificate: &(String, String)| ApiClient {
        controller: &controller,
        client: controller.with_certificate(certificate),
        token: None,
    };
    let known = caller(&user_certificate(&controller, "build-server"));
    assert_eq!(known.get("/api/v1/me").ok()["role"], "operator");
    caller(&user_certificate(&controller, "unknown"))
        .get("/api/v1/me")
        .refused(401, "unauthenticated");
    // A certificate does not authenticate a user that was created with a token.
    controller.token("nora", Role::Admin);
    caller(&user_certificate(&controller, "nora"))
        .get("/api/v1/me")
        .refused(401, "unauthenticated");
    // A gateway certificate does not authenticate a user.
    let gateway = controller.ca.client("urn:linewarden:gateway:1", |_| ());
    caller(&gateway).get("/api/v1/me").refused(401, "unauthenticated");

    let expired = controller
        .ca
        .client("urn:linewarden:user:build-server", |parameters| {
            parameters.not_after = rcgen::date_time_ymd(2020, 1, 1);
            parameters.not_before = rcgen::date_time_ymd(2019, 1, 1);
        });
    let other_ca = crate::controller::Ca::new();
    let foreign = other_ca.client("urn:linewarden:user:build-server", |_| ());
    for certificate in [expired, foreign] {
        let caller = caller(&certificate);
        let request = caller.request(Method::GET, "/api/v1/me");
        let response = controller.runtime.block_on(async { request.send().await });
        assert!(response.is_err(), "the handshake fails");
    }
}

#[test]
fn a_browser_logs_in_and_out_and_cross_site_writes_are_refused() {
    let controller = TestController::new();
    let token = controller.token("alice", Role::Operator);
    let browser = ApiClient {
        controller: &controller,
        client: controller.browser(),
        token: None,
    };
    let wrong_login = browser
        .request(Method::POST, "/api/v1/login")
        .json(&json!({"token": "lw_wrong"}));
    browser.send(wrong_login).refused(401, "unauthenticated");
    let login = browser
        .request(Method::POST, "/api/v1/login")
        .json(&json!({"token": token}));
    let response = controller.runtime.block_on(async { login.send().await.unwrap() });
    let cookie = response.headers()["set-cookie"].to_str().unwrap().to_owned();
    for attribute in ["HttpOnly", "Secure", "SameSite=Strict", "Path=/"] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    assert!(!cookie.contains(&token));
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let request_with_cookie =
        |method: Method, path: &str| browser.request(method, path).header("Cookie", &cookie);
    assert_eq!(
        browser.send(request_with_cookie(Method::GET, "/api/v1/me")).ok()["name"],
        "alice"
    );
    let device = json!({"id": "d1", "credentials": {"key": "11".repeat(16)}, "reason": "new"});
    let write = || {
        request_with_cookie(Method::POST, "/api/v1/devices")
            .header("Idempotency-Key", "k")
            .json(&device)
    };
    browser.send(write()).refused(403, "forbidden");
    browser.send(write().header("X-Linewarden", "1")).ok();
    let listen = request_with_cookie(Method::GET, "/api/v1/events");
    let mut stream = controller
        .runtime
        .block_on(async { listen.send().await.unwrap() });
    assert_eq!(stream.status(), 200);
    assert_eq!(
        browser
            .send(request_with_cookie(Method::POST, "/api/v1/logout"))
            .status,
        204
    );
    // Log-out also ends the event stream.
    controller
        .runtime
        .block_on(async { while stream.chunk().await.unwrap().is_some() {} });
    browser
        .send(request_with_cookie(Method::GET, "/api/v1/me"))
        .refused(401, "unauthenticated");
}

#[test]
fn event_streams_per_user_are_limited() {
    let controller = TestController::new();
    let alice = controller.caller("alice", Role::Viewer);
    let listen = || {
        let request = alice.request(Method::GET, "/api/v1/events");
        controller
            .runtime
            .block_on(async { request.send().await.unwrap() })
    };
    let streams: Vec<_> = (0..100).map(|_| listen()).collect();
    assert!(streams.iter().all(|stream| stream.status() == 200));
    assert_eq!(listen().status(), 429);
    let bob = controller.caller("bob", Role::Viewer);
    let request = bob.request(Method::GET, "/api/v1/events");
    let response = controller
        .runtime
        .block_on(async { request.send().await.unwrap() });
    assert_eq!(response.status(), 200);
}

/// A request that is repeated with the same Idempotency-Key is performed one time, even if the first response was lost.
#[test]
fn an_idempotency_key_makes_a_write_repeatable() {
    let controller = TestController::new();
    let otto = controller.caller("otto", Role::Operator);
    let device = |id: &str| json!({"id": id, "credentials": {"key": "11".repeat(16)}, "reason": "new"});
    let without_key = otto.request(Method::POST, "/api/v1/devices").json(&device("d1"));
    let problem = otto.send(without_key).refused(422, "invalid");
    assert!(problem.contains("UUID"), "{problem}");
    let first = otto.post_with("/api/v1/devices", &device("d1"), "one");
    let repeated = otto.post_with("/api/v1/devices", &device("d1"), "one");
    assert_eq!((first.status, repeated.status), (201, 201));
    assert_eq!(first.text, repeated.text);
    otto.post_with("/api/v1/devices", &device("d2"), "one")
        .refused(409, "conflict");
    otto.post_with("/api/v1/devices", &device("d1"), "two")
        .refused(409, "conflict");
    let entries = controller
        .runtime
        .block_on(controller.registry.events(&EventFilter::default(), None, 10))
        .unwrap()
        .entries;
    let result: Vec<_> = entries
        .iter()
        .map(|entry| (entry.event.kind.as_str(), entry.refused))
        .collect();
    assert_eq!(result, [("enrolled", true), ("enrolled", false)]);
}
