//! Who may come in, by which way, and what they may.

use linewarden_registry::{JournalFilter, Role, User};
use reqwest::Method;
use serde_json::json;

use crate::floods::browser_at;
use crate::office::{Caller, NAME, Office, unique, user_certificate};

#[test]
fn nobody_comes_in_without_a_token_that_is_somebodys() {
    let office = Office::new();
    let stranger = Caller {
        office: &office,
        client: office.browser(),
        token: None,
    };
    for path in [
        "/api/v1/devices",
        "/api/v1/status",
        "/api/v1/me",
        "/api/v1/events",
    ] {
        stranger.get(path).refused(401, "unauthenticated");
    }
    let guesser = Caller {
        token: Some("lw_guess".to_owned()),
        ..stranger
    };
    let refused = (0..60)
        .map(|_| guesser.get("/api/v1/me").status)
        .collect::<Vec<_>>();
    assert!(refused.contains(&429), "guessing is slowed down: {refused:?}");
    // Who is known is not kept out by who guesses from the same address.
    let alice = office.caller("alice", Role::Viewer);
    assert_eq!(alice.get("/api/v1/me").ok()["role"], "viewer");
    for path in ["/healthz", "/readyz", "/openapi.json", "/"] {
        assert_eq!(guesser.get(path).status, 200, "{path}");
    }
    assert_eq!(guesser.get("/metrics").status, 404, "that is another address");
}

/// What an operator may do, and a viewer not.
const OF_OPERATORS: [(&str, &str); 8] = [
    ("post", "/api/v1/devices"),
    ("post", "/api/v1/devices/import"),
    ("post", "/api/v1/devices/revoke"),
    ("post", "/api/v1/devices/{id}/quarantine"),
    ("post", "/api/v1/devices/{id}/release"),
    ("post", "/api/v1/devices/{id}/revoke"),
    ("post", "/api/v1/policies/{name}/round"),
    ("post", "/api/v1/signers/{id}/revoke"),
];
/// What nobody else may.
const OF_ADMINS: [(&str, &str); 8] = [
    ("get", "/api/v1/audit"),
    ("get", "/api/v1/users"),
    ("post", "/api/v1/users"),
    ("delete", "/api/v1/users/{name}"),
    ("post", "/api/v1/gateways"),
    ("post", "/api/v1/gateways/{id}/retire"),
    ("put", "/api/v1/policies/{name}"),
    ("post", "/api/v1/signers"),
];
/// Where nobody asks who it is.
const ENTRANCES: [&str; 2] = ["/api/v1/login", "/api/v1/logout"];

/// Nothing that is described is open to who may not: whoever adds a path says here whose it is.
#[test]
fn every_path_and_method_asks_for_its_role() {
    let office = Office::new();
    let callers =
        [Role::Viewer, Role::Operator, Role::Admin].map(|role| office.caller(&format!("{role:?}"), role));
    let api = callers[0].get("/openapi.json").ok();
    let mut seen = Vec::new();
    for (path, verbs) in api["paths"].as_object().unwrap() {
        let asked = path
            .replace("{device}", "d1")
            .replace("{id}", "11")
            .replace("{name}", "x");
        for verb in verbs.as_object().unwrap().keys() {
            let is_in = |list: &[(&str, &str)]| list.contains(&(verb.as_str(), path.as_str()));
            let (of_operators, of_admins) = (is_in(&OF_OPERATORS), is_in(&OF_ADMINS));
            seen.push(format!("{verb} {path}"));
            let method: Method = verb.to_uppercase().parse().unwrap();
            // Of a stream only whether it begins; each stranger from an address of its own, which has its share of tries.
            let status = |client: &reqwest::Client, token: Option<&String>| {
                let address = format!("https://{NAME}:{}{asked}", office.address.port());
                let request = client
                    .request(method.clone(), address)
                    .header("Idempotency-Key", unique());
                let request = token
                    .into_iter()
                    .fold(request, |request, token| request.bearer_auth(token));
                let answer = office.runtime.block_on(async { request.send().await.unwrap() });
                answer.status().as_u16()
            };
            let host = u8::try_from(seen.len()).unwrap() + 1;
            let stranger = status(&browser_at(&office, host), None);
            let said = callers
                .each_ref()
                .map(|caller| status(&caller.client, caller.token.as_ref()));
            let refused = said.map(|status| status == 403);
            let what = format!("{verb} {path}: {stranger}, {said:?}");
            assert!(!said.contains(&401), "{what}");
            if ENTRANCES.contains(&path.as_str()) {
                assert!(stranger != 401 && refused == [false; 3], "{what}");
                continue;
            }
            assert_eq!(stranger, 401, "{what}");
            assert!(
                verb == "get" || of_operators || of_admins,
                "nobody has said whose it is: {what}"
            );
            assert_eq!(refused, [of_operators || of_admins, of_admins, false], "{what}");
        }
    }
    assert!(seen.len() > 30, "{seen:?}");
}

#[test]
fn each_role_may_what_it_may() {
    let office = Office::new();
    let [viewer, operator, admin] = [
        office.caller("vera", Role::Viewer),
        office.caller("otto", Role::Operator),
        office.caller("ada", Role::Admin),
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
    let told = admin.get("/api/v1/audit").ok();
    let told: Vec<_> = told["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|act| {
            (
                act["by"].as_str().unwrap(),
                act["what"].as_str().unwrap(),
                act["reason"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        told,
        [("ada", "gateway_entered", "new"), ("otto", "enrolled", "new")]
    );

    let made = admin
        .post(
            "/api/v1/users",
            &json!({"name": "carl", "role": "viewer", "reason": "audit"}),
        )
        .ok();
    let carl = Caller {
        office: &office,
        client: office.browser(),
        token: Some(made["token"].as_str().unwrap().to_owned()),
    };
    assert_eq!(carl.get("/api/v1/me").ok()["name"], "carl");
    let removed = admin.request(Method::DELETE, "/api/v1/users/carl?reason=done");
    assert_eq!(admin.send(removed.header("Idempotency-Key", "k")).status, 204);
    carl.get("/api/v1/me").refused(401, "unauthenticated");
    // No token is to be read anywhere.
    let journal = office
        .runtime
        .block_on(office.registry.journal(&JournalFilter::default(), None, 100))
        .unwrap();
    assert!(!format!("{journal:?}").contains(made["token"].as_str().unwrap()));
    // Nor to be had once more.
    let dora = json!({"name": "dora", "role": "viewer", "reason": "night shift"});
    assert_eq!(admin.post_with("/api/v1/users", &dora, "dora").status, 201);
    admin
        .post_with("/api/v1/users", &dora, "dora")
        .refused(422, "invalid");
}

/// Messages of gateways are long: nothing of a stranger's is waited for.
#[test]
fn a_stranger_is_turned_away_from_the_gateways_service_before_it_has_sent_anything() {
    let office = Office::new();
    let otto = office.caller("otto", Role::Admin);
    let asked = otto
        .request(Method::POST, "/linewarden.link.v1.Link/Report")
        .header("Content-Type", "application/grpc")
        .body(reqwest::Body::wrap_stream(tokio_stream::pending::<
            Result<Vec<u8>, std::io::Error>,
        >()));
    let answer = office.runtime.block_on(async { asked.send().await }).unwrap();
    let unauthenticated = (tonic::Code::Unauthenticated as i32).to_string();
    assert_eq!(answer.headers()["grpc-status"], *unauthenticated);
}

#[test]
fn a_certificate_opens_for_whom_it_names_and_no_other_one_does() {
    let office = Office::new();
    let user = User {
        name: "build-server".to_owned(),
        role: Role::Operator,
        has_token: false,
        created_at_s: 0,
        expires_at_s: None,
    };
    office
        .runtime
        .block_on(office.registry.add_user(&user, None))
        .unwrap();
    let caller = |certificate: &(String, String)| Caller {
        office: &office,
        client: office.with_certificate(certificate),
        token: None,
    };
    let known = caller(&user_certificate(&office, "build-server"));
    assert_eq!(known.get("/api/v1/me").ok()["role"], "operator");
    caller(&user_certificate(&office, "somebody"))
        .get("/api/v1/me")
        .refused(401, "unauthenticated");
    // Nor is one a way in any more for who was added anew, with a token.
    office.token("nora", Role::Admin);
    caller(&user_certificate(&office, "nora"))
        .get("/api/v1/me")
        .refused(401, "unauthenticated");
    // A gateway is no user, whatever its number.
    let gateway = office.ca.client("urn:linewarden:gateway:1", |_| ());
    caller(&gateway).get("/api/v1/me").refused(401, "unauthenticated");

    let expired = office
        .ca
        .client("urn:linewarden:user:build-server", |parameters| {
            parameters.not_after = rcgen::date_time_ymd(2020, 1, 1);
            parameters.not_before = rcgen::date_time_ymd(2019, 1, 1);
        });
    let other_ca = crate::office::Ca::new();
    let foreign = other_ca.client("urn:linewarden:user:build-server", |_| ());
    for certificate in [expired, foreign] {
        let caller = caller(&certificate);
        let request = caller.request(Method::GET, "/api/v1/me");
        let answer = office.runtime.block_on(async { request.send().await });
        assert!(answer.is_err(), "the handshake fails");
    }
}

#[test]
fn a_browser_logs_in_and_out_and_no_other_site_writes_for_it() {
    let office = Office::new();
    let token = office.token("alice", Role::Operator);
    let browser = Caller {
        office: &office,
        client: office.browser(),
        token: None,
    };
    let wrong = browser
        .request(Method::POST, "/api/v1/login")
        .json(&json!({"token": "lw_wrong"}));
    browser.send(wrong).refused(401, "unauthenticated");
    let login = browser
        .request(Method::POST, "/api/v1/login")
        .json(&json!({"token": token}));
    let response = office.runtime.block_on(async { login.send().await.unwrap() });
    let cookie = response.headers()["set-cookie"].to_str().unwrap().to_owned();
    for word in ["HttpOnly", "Secure", "SameSite=Strict", "Path=/"] {
        assert!(cookie.contains(word), "{cookie}");
    }
    assert!(!cookie.contains(&token));
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let with = |method: Method, path: &str| browser.request(method, path).header("Cookie", &cookie);
    assert_eq!(
        browser.send(with(Method::GET, "/api/v1/me")).ok()["name"],
        "alice"
    );
    let device = json!({"id": "d1", "credentials": {"key": "11".repeat(16)}, "reason": "new"});
    let write = || {
        with(Method::POST, "/api/v1/devices")
            .header("Idempotency-Key", "k")
            .json(&device)
    };
    browser.send(write()).refused(403, "forbidden");
    browser.send(write().header("X-Linewarden", "1")).ok();
    let listen = with(Method::GET, "/api/v1/events");
    let mut stream = office.runtime.block_on(async { listen.send().await.unwrap() });
    assert_eq!(stream.status(), 200);
    assert_eq!(browser.send(with(Method::POST, "/api/v1/logout")).status, 204);
    // What was begun before ends as well.
    office
        .runtime
        .block_on(async { while stream.chunk().await.unwrap().is_some() {} });
    browser
        .send(with(Method::GET, "/api/v1/me"))
        .refused(401, "unauthenticated");
}

#[test]
fn nobody_has_streams_of_events_without_end() {
    let office = Office::new();
    let alice = office.caller("alice", Role::Viewer);
    let listen = || {
        let request = alice.request(Method::GET, "/api/v1/events");
        office.runtime.block_on(async { request.send().await.unwrap() })
    };
    let streams: Vec<_> = (0..100).map(|_| listen()).collect();
    assert!(streams.iter().all(|stream| stream.status() == 200));
    assert_eq!(listen().status(), 429);
    let bob = office.caller("bob", Role::Viewer);
    let request = bob.request(Method::GET, "/api/v1/events");
    let of_another = office.runtime.block_on(async { request.send().await.unwrap() });
    assert_eq!(of_another.status(), 200);
}

/// What is asked twice under one key is done once, whatever became of the first answer.
#[test]
fn a_key_makes_a_write_repeatable() {
    let office = Office::new();
    let otto = office.caller("otto", Role::Operator);
    let device = |id: &str| json!({"id": id, "credentials": {"key": "11".repeat(16)}, "reason": "new"});
    let without = otto.request(Method::POST, "/api/v1/devices").json(&device("d1"));
    let problem = otto.send(without).refused(422, "invalid");
    assert!(problem.contains("UUID"), "{problem}");
    let first = otto.post_with("/api/v1/devices", &device("d1"), "one");
    let again = otto.post_with("/api/v1/devices", &device("d1"), "one");
    assert_eq!((first.status, again.status), (201, 201));
    assert_eq!(first.text, again.text);
    otto.post_with("/api/v1/devices", &device("d2"), "one")
        .refused(409, "conflict");
    otto.post_with("/api/v1/devices", &device("d1"), "two")
        .refused(409, "conflict");
    let entries = office
        .runtime
        .block_on(office.registry.journal(&JournalFilter::default(), None, 10))
        .unwrap()
        .entries;
    let told: Vec<_> = entries
        .iter()
        .map(|entry| (entry.note.kind.as_str(), entry.refused))
        .collect();
    assert_eq!(told, [("enrolled", true), ("enrolled", false)]);
}
