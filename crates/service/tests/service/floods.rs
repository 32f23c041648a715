//! Who asks for more than its due: connections without a word, registrations in a loop, a listener that was shut out.

use std::io::ErrorKind;
use std::net::Ipv4Addr;

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
        // Once its share is taken, an address is turned away at once.
        let beyond = silent(2, &office).await;
        beyond.readable().await.unwrap();
        assert!(!matches!(beyond.try_read(&mut [0; 1]), Ok(1..)));
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
