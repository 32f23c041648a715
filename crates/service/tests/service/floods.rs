//! Who asks for more than its due: connections without a word, registrations in a loop, a listener that was shut out.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr};

use linewarden_link::gateway_uri;
use linewarden_protocol::ids::GatewayId;
use linewarden_registry::{JournalFilter, Role};
use reqwest::Method;
use tokio::net::{TcpSocket, TcpStream};

use crate::office::{Caller, NAME, Office};

/// Handshakes of one address at once.
const SHARE: usize = 64;

/// A connection from that host of this machine's own network.
async fn silent(host: u8, office: &Office) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::new(127, 0, 0, host), 0).into()).unwrap();
    socket.connect(office.address).await.unwrap()
}

#[test]
fn who_says_nothing_keeps_nobody_else_out() {
    let office = Office::new();
    let vera = office.caller("vera", Role::Viewer);
    let flood = office.runtime.block_on(async {
        let mut flood = Vec::new();
        for host in 2..6 {
            for _ in 0..SHARE {
                flood.push(silent(host, &office).await);
            }
        }
        // Once its share is taken, the oldest of an address has to go.
        let _beyond = silent(2, &office).await;
        flood[0].readable().await.unwrap();
        assert!(!matches!(flood[0].try_read(&mut [0; 1]), Ok(1..)));
        // Nor does it keep others of its own address out.
        for _ in 0..SHARE {
            flood.push(silent(1, &office).await);
        }
        flood
    });
    vera.get("/api/v1/me").ok();
    let is_kept = |stream: &&TcpStream| {
        let read = stream.try_read(&mut [0; 1]);
        read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    assert!(
        flood.iter().any(|stream| is_kept(&stream)),
        "they are there still"
    );
}

#[test]
fn a_gateway_has_few_connections() {
    let office = Office::new();
    let certificate = office.ca.client(&gateway_uri(GatewayId(3)), |_| ());
    let ask = || {
        let client = office.with_certificate(&certificate);
        let address = format!("https://{NAME}:{}/healthz", office.address.port());
        let answer = office
            .runtime
            .block_on(async { client.get(address).send().await });
        (client, answer)
    };
    let kept: Vec<_> = (0..16).map(|_| ask()).collect();
    assert!(kept.iter().all(|(_, answer)| answer.is_ok()));
    assert!(ask().1.is_err(), "one more");
    let other = office.ca.client(&gateway_uri(GatewayId(4)), |_| ());
    let caller = Caller {
        office: &office,
        client: office.with_certificate(&other),
        token: None,
    };
    assert_eq!(caller.get("/healthz").status, 200, "another gateway");
}

#[test]
fn a_gateway_that_registers_in_a_loop_fills_no_journal() {
    const LOOPS: usize = 200;
    let office = Office::new();
    let link = office.link(GatewayId(3), &[]);
    let entered = office.runtime.block_on(async {
        let mut entered = 0;
        for _ in 0..LOOPS {
            entered += usize::from(link.enter().await.is_ok());
        }
        entered
    });
    assert!((1..LOOPS / 2).contains(&entered), "{entered}");
    let other = office.link(GatewayId(4), &[]);
    office.runtime.block_on(other.enter()).unwrap();
    let filter = JournalFilter::default();
    let journal = office.registry.journal(&filter, None, 1_000);
    let journal = office.runtime.block_on(journal).unwrap();
    assert!(journal.entries.len() <= entered + 1);
}

/// Somebody at that host of this machine's own network.
pub fn browser_at(office: &Office, host: u8) -> reqwest::Client {
    let root = reqwest::Certificate::from_pem(office.ca.pem()).unwrap();
    reqwest::Client::builder()
        .tls_certs_only([root])
        .resolve(NAME, office.address)
        .local_address(IpAddr::from([127, 0, 0, host]))
        .build()
        .unwrap()
}

/// Secrets that an address guesses cost the registry no more than some hundreds of look-ups a minute, and keep out nobody who has come
/// in before.
#[test]
fn who_guesses_is_refused_before_the_registry_is_asked_and_nobody_else() {
    const LOOK_UPS: usize = 300;
    let office = Office::new();
    let alice = office.caller("alice", Role::Viewer);
    let admin = office.caller("ada", Role::Admin);
    let at = |host: u8, token: String| Caller {
        office: &office,
        client: browser_at(&office, host),
        token: Some(token),
    };
    let mut guesser = at(2, String::new());
    let from_there = Caller {
        client: guesser.client.clone(),
        office: &office,
        token: alice.token.clone(),
    };
    from_there.get("/api/v1/me").ok();
    for guess in 0..2 * LOOK_UPS {
        guesser.token = Some(format!("lw_{guess}"));
        let status = guesser.get("/api/v1/me").status;
        assert!(status == 401 || status == 429, "{status}");
    }
    // Everybody is asked about anew.
    office.token("carl", Role::Viewer);
    let removed = admin.request(Method::DELETE, "/api/v1/users/carl?reason=done");
    assert_eq!(admin.send(removed.header("Idempotency-Key", "k")).status, 204);
    from_there.get("/api/v1/me").ok();
    let login = |caller: &Caller<'_>, token: &str| {
        let request = caller.request(Method::POST, "/api/v1/login");
        caller.send(request.json(&serde_json::json!({"token": token})))
    };
    let token = alice.token.clone().unwrap();
    login(&guesser, &token).ok();

    office.runtime.block_on(office.registry.clone().close());
    // The registry answers nobody any more, and is not asked by who guesses.
    let refused = (0..LOOK_UPS).filter(|guess| {
        let token = format!("lw_more_{guess}");
        guesser.token = Some(token.clone());
        guesser.get("/api/v1/me").status == 429 && login(&guesser, &token).status == 429
    });
    let refused = refused.count();
    assert!(refused > LOOK_UPS / 2, "{refused}");
    let elsewhere = at(3, "lw_more".to_owned()).get("/api/v1/me").status;
    assert!(elsewhere >= 500, "{elsewhere}");
}

#[test]
fn who_guesses_at_the_log_in_is_slowed_down_and_who_is_somebody_is_let_in() {
    let office = Office::new();
    let token = office.token("alice", Role::Viewer);
    let stranger = Caller {
        office: &office,
        client: office.browser(),
        token: None,
    };
    let login = |token: &str| {
        let request = stranger.request(Method::POST, "/api/v1/login");
        stranger
            .send(request.json(&serde_json::json!({"token": token})))
            .status
    };
    let said: Vec<u16> = (0..60).map(|guess| login(&format!("lw_{guess}"))).collect();
    let count = |status| said.iter().filter(|said| **said == status).count();
    assert!(count(401) >= 30 && count(429) > 0, "{said:?}");
    assert_eq!(count(401) + count(429), said.len(), "{said:?}");
    assert_eq!(login(&token), 200);
}

/// Whoever has got hold of a token listens no longer than it opens.
#[test]
fn a_stream_ends_with_the_token_that_began_it() {
    let office = Office::new();
    let alice = office.caller("alice", Role::Viewer);
    let listen = alice.request(Method::GET, "/api/v1/events");
    let mut stream = office.runtime.block_on(async { listen.send().await.unwrap() });
    assert_eq!(stream.status(), 200);
    let user = |has_token| linewarden_registry::User {
        name: "alice".to_owned(),
        role: Role::Viewer,
        has_token,
        created_at_s: 0,
        expires_at_s: None,
    };
    office.runtime.block_on(async {
        office.registry.remove_user("alice").await.unwrap();
        office
            .registry
            .add_user(&user(true), Some("lw_another"))
            .await
            .unwrap();
        while stream.chunk().await.unwrap().is_some() {}
    });
}
