//! Excessive requests: idle connections, repeated registrations, unread event streams.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr};

use linewarden_link::gateway_uri;
use linewarden_protocol::ids::GatewayId;
use linewarden_registry::{EventFilter, Role};
use reqwest::Method;
use tokio::net::{TcpSocket, TcpStream};

use crate::controller::{ApiClient, NAME, TestController};

/// The maximum number of concurrent handshakes from one address.
const HANDSHAKES_MAX: usize = 64;

/// Opens a connection from the address 127.0.0.`host`.
async fn idle_connection(host: u8, controller: &TestController) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::new(127, 0, 0, host), 0).into()).unwrap();
    socket.connect(controller.address).await.unwrap()
}

#[test]
fn idle_connections_do_not_block_others() {
    let controller = TestController::new();
    let vera = controller.caller("vera", Role::Viewer);
    let flood = controller.runtime.block_on(async {
        let mut flood = Vec::new();
        for host in 2..6 {
            for _ in 0..HANDSHAKES_MAX {
                flood.push(idle_connection(host, &controller).await);
            }
        }
        // For a handshake above the limit, the server ends the oldest handshake from the same address.
        let _additional = idle_connection(2, &controller).await;
        flood[0].readable().await.unwrap();
        assert!(!matches!(flood[0].try_read(&mut [0; 1]), Ok(1..)));
        // Idle connections from 127.0.0.1 do not lock out the API client, which has the same address.
        for _ in 0..HANDSHAKES_MAX {
            flood.push(idle_connection(1, &controller).await);
        }
        flood
    });
    vera.get("/api/v1/me").ok();
    let is_kept = |stream: &&TcpStream| {
        let result = stream.try_read(&mut [0; 1]);
        result.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    assert!(
        flood.iter().any(|stream| is_kept(&stream)),
        "all idle connections were closed"
    );
}

#[test]
fn connections_of_one_gateway_are_limited() {
    let controller = TestController::new();
    let certificate = controller.ca.client(&gateway_uri(GatewayId(3)), |_| ());
    let connect = || {
        let client = controller.with_certificate(&certificate);
        let address = format!("https://{NAME}:{}/healthz", controller.address.port());
        let response = controller
            .runtime
            .block_on(async { client.get(address).send().await });
        (client, response)
    };
    let connections: Vec<_> = (0..16).map(|_| connect()).collect();
    assert!(connections.iter().all(|(_, response)| response.is_ok()));
    assert!(connect().1.is_err(), "the limit is 16 connections");
    let other_certificate = controller.ca.client(&gateway_uri(GatewayId(4)), |_| ());
    let caller = ApiClient {
        controller: &controller,
        client: controller.with_certificate(&other_certificate),
        token: None,
    };
    assert_eq!(caller.get("/healthz").status, 200, "another gateway can connect");
}

#[test]
fn repeated_registrations_are_limited() {
    const ATTEMPTS: usize = 200;
    let controller = TestController::new();
    let link = controller.link(GatewayId(3), &[]);
    let success_count = controller.runtime.block_on(async {
        let mut success_count = 0;
        for _ in 0..ATTEMPTS {
            success_count += usize::from(link.register().await.is_ok());
        }
        success_count
    });
    assert!((1..ATTEMPTS / 2).contains(&success_count), "{success_count}");
    let other_gateway = controller.link(GatewayId(4), &[]);
    controller.runtime.block_on(other_gateway.register()).unwrap();
    let filter = EventFilter::default();
    let log = controller.registry.events(&filter, None, 1_000);
    let log = controller.runtime.block_on(log).unwrap();
    assert!(log.entries.len() <= success_count + 1);
}

/// An HTTP client that connects from the address 127.0.0.`host`.
pub fn browser_at(controller: &TestController, host: u8) -> reqwest::Client {
    let root = reqwest::Certificate::from_pem(controller.ca.pem()).unwrap();
    reqwest::Client::builder()
        .tls_certs_only([root])
        .resolve(NAME, controller.address)
        .local_address(IpAddr::from([127, 0, 0, host]))
        .build()
        .unwrap()
}

/// Guessed tokens from one address cause at most some hundreds of registry look-ups per minute, and do not lock out users
/// who authenticated earlier from this address.
#[test]
fn guessing_is_limited_before_registry_lookups() {
    const LOOKUPS: usize = 300;
    let controller = TestController::new();
    let alice = controller.caller("alice", Role::Viewer);
    let admin = controller.caller("ada", Role::Admin);
    let client_at = |host: u8, token: String| ApiClient {
        controller: &controller,
        client: browser_at(&controller, host),
        token: Some(token),
    };
    let mut guesser = client_at(2, String::new());
    let known_user = ApiClient {
        client: guesser.client.clone(),
        controller: &controller,
        token: alice.token.clone(),
    };
    known_user.get("/api/v1/me").ok();
    for guess in 0..2 * LOOKUPS {
        guesser.token = Some(format!("lw_{guess}"));
        let status = guesser.get("/api/v1/me").status;
        assert!(status == 401 || status == 429, "{status}");
    }
    // The deletion of a user clears all cached authentications.
    controller.token("carl", Role::Viewer);
    let removed = admin.request(Method::DELETE, "/api/v1/users/carl?reason=done");
    assert_eq!(admin.send(removed.header("Idempotency-Key", "k")).status, 204);
    known_user.get("/api/v1/me").ok();
    let login = |caller: &ApiClient<'_>, token: &str| {
        let request = caller.request(Method::POST, "/api/v1/login");
        caller.send(request.json(&serde_json::json!({"token": token})))
    };
    let token = alice.token.clone().unwrap();
    login(&guesser, &token).ok();

    controller.runtime.block_on(controller.registry.clone().close());
    // The registry is closed, so a guess that caused a look-up would receive a status of at least 500.
    let refused_guesses = (0..LOOKUPS).filter(|guess| {
        let token = format!("lw_more_{guess}");
        guesser.token = Some(token.clone());
        guesser.get("/api/v1/me").status == 429 && login(&guesser, &token).status == 429
    });
    let refused_count = refused_guesses.count();
    assert!(refused_count > LOOKUPS / 2, "{refused_count}");
    let other_address = client_at(3, "lw_more".to_owned()).get("/api/v1/me").status;
    assert!(other_address >= 500, "{other_address}");
}

#[test]
fn guessing_at_the_login_is_limited_per_address() {
    let controller = TestController::new();
    let token = controller.token("alice", Role::Viewer);
    let anonymous = ApiClient {
        controller: &controller,
        client: controller.browser(),
        token: None,
    };
    let login = |token: &str| {
        let request = anonymous.request(Method::POST, "/api/v1/login");
        anonymous
            .send(request.json(&serde_json::json!({"token": token})))
            .status
    };
    let statuses: Vec<u16> = (0..60).map(|guess| login(&format!("lw_{guess}"))).collect();
    let count = |status| statuses.iter().filter(|received| **received == status).count();
    assert!(count(401) >= 30 && count(429) > 0, "{statuses:?}");
    assert_eq!(count(401) + count(429), statuses.len(), "{statuses:?}");
    assert_eq!(login(&token), 200);
}

/// The user has a new token then.
#[test]
fn an_event_stream_ends_when_its_token_is_revoked() {
    let controller = TestController::new();
    let alice = controller.caller("alice", Role::Viewer);
    let listen = alice.request(Method::GET, "/api/v1/events");
    let mut stream = controller
        .runtime
        .block_on(async { listen.send().await.unwrap() });
    assert_eq!(stream.status(), 200);
    let user = |has_token| linewarden_registry::User {
        name: "alice".to_owned(),
        role: Role::Viewer,
        has_token,
        created_at_s: 0,
        expires_at_s: None,
    };
    controller.runtime.block_on(async {
        controller.registry.remove_user("alice").await.unwrap();
        controller
            .registry
            .add_user(&user(true), Some("lw_another"))
            .await
            .unwrap();
        while stream.chunk().await.unwrap().is_some() {}
    });
}
