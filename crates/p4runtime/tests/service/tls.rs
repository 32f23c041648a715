//! Who gets through to a server with TLS, and what those hear who do not.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::support::authority::{Authority, Issued};
use crate::support::{DEVICE, Server, pipeline};
use linewarden_p4runtime::arbitration::Standing;
use linewarden_p4runtime::client::{Client, ClientError, Session};
use linewarden_p4runtime::evidence::{self, Attested, Digests, Listing, NoEvidence, Source};
use linewarden_p4runtime::server::Routes;
use linewarden_tls::{ClientTls, Identity, Part, ServerTls, TlsError, endpoint};

/// What who is hung up on sees first: that, or the server's alert; before or after the connection is whole.
const HUNG_UP: [&str; 2] = ["the connection to the switch broke: ", UNREACHABLE[0]];
const UNREACHABLE: [&str; 1] = ["the switch cannot be reached: "];

/// A switch that says its number.
struct Numbered;

impl Source for Numbered {
    fn digests(&self) -> Result<Digests, NoEvidence> {
        Ok(Digests {
            switch_id: 7,
            ..Digests::default()
        })
    }

    fn attest(&self, nonce: [u8; 32], _: Listing) -> Result<Attested, NoEvidence> {
        Ok(Attested {
            statement: nonce.to_vec(),
            inventory: None,
        })
    }
}

fn identity(issued: &Issued) -> Identity {
    Identity::from_pem(issued.cert.as_bytes(), issued.key.as_bytes()).unwrap()
}

fn believing(authority: &Authority) -> ClientTls {
    ClientTls::new(authority.pem.as_bytes()).unwrap()
}

/// A server with a certificate for 127.0.0.1.
async fn served(authority: &Authority, client_ca: Option<&Authority>) -> Server {
    serving(identity(&authority.issue("127.0.0.1")), client_ca).await
}

async fn serving(identity: Identity, client_ca: Option<&Authority>) -> Server {
    let ca = client_ca.map(|authority| authority.pem.as_bytes());
    let tls = ServerTls::new(identity, ca).unwrap();
    assert_eq!(tls.authenticates_clients(), client_ca.is_some());
    let others = Routes::new(evidence::service(Arc::new(Numbered)));
    Server::start_with(None, others, Some(tls)).await
}

fn address(server: &Server) -> SocketAddr {
    let address = server.endpoint.uri().authority().unwrap().as_str();
    address.parse().unwrap()
}

/// Has the server run a program, and returns how this client stands.
async fn control(server: &Server, tls: Option<&ClientTls>) -> Result<Standing, ClientError> {
    let endpoint = endpoint(&address(server).to_string(), tls).unwrap();
    let session = Session {
        device_id: DEVICE,
        role: String::new(),
        election_id: 1,
    };
    let (mut client, _events, standing) = Client::connect(endpoint, session).await?;
    client.set_pipeline(&pipeline()).await?;
    Ok(standing)
}

async fn switch_id(server: &Server, tls: Option<&ClientTls>) -> Result<u64, evidence::AskError> {
    let mut client = evidence::Client::connect(address(server), tls).await?;
    Ok(client.digests().await?.switch_id)
}

/// Neither service answers, and both say why in some such words.
async fn is_shut(server: &Server, tls: Option<&ClientTls>, why: &[&str]) {
    let says_why = |said: &str| why.iter().any(|why| said.contains(why));
    let refused = control(server, tls).await.unwrap_err().to_string();
    assert!(says_why(&refused), "control: {refused}");
    let refused = switch_id(server, tls).await.unwrap_err().to_string();
    assert!(says_why(&refused), "evidence: {refused}");
    assert!(!server.switch.has_program());
}

async fn is_open(server: &Server, tls: &ClientTls) {
    assert_eq!(control(server, Some(tls)).await.unwrap(), Standing::Primary);
    assert_eq!(switch_id(server, Some(tls)).await.unwrap(), 7);
}

#[tokio::test]
async fn who_believes_the_servers_ca_is_served() {
    let authority = Authority::new("switches");
    let server = served(&authority, None).await;
    is_open(&server, &believing(&authority)).await;
}

#[tokio::test]
async fn nothing_is_served_in_the_clear() {
    let server = served(&Authority::new("switches"), None).await;
    is_shut(&server, None, &HUNG_UP).await;
}

#[tokio::test]
async fn a_server_of_another_ca_is_not_believed() {
    let server = served(&Authority::new("switches"), None).await;
    is_shut(
        &server,
        Some(&believing(&Authority::new("others"))),
        &["UnknownIssuer"],
    )
    .await;
}

#[tokio::test]
async fn a_server_in_the_clear_is_not_taken_for_one_with_tls() {
    let server = Server::start(None).await;
    is_shut(
        &server,
        Some(&believing(&Authority::new("switches"))),
        &UNREACHABLE,
    )
    .await;
}

#[tokio::test]
async fn a_certificate_for_another_name_needs_that_name() {
    let authority = Authority::new("switches");
    let server = serving(identity(&authority.issue("switch.example")), None).await;
    let tls = believing(&authority);
    is_shut(&server, Some(&tls), &["not valid for name"]).await;
    is_open(&server, &tls.with_domain("switch.example").unwrap()).await;
}

#[tokio::test]
async fn with_a_ca_for_clients_none_goes_without_a_certificate_of_it() {
    let (authority, clients) = (Authority::new("switches"), Authority::new("controllers"));
    let server = served(&authority, Some(&clients)).await;
    let tls = believing(&authority);
    is_shut(&server, Some(&tls), &HUNG_UP).await;
    // Of the server's own CA, which issues no client's.
    let stranger = tls
        .clone()
        .with_identity(identity(&authority.issue("controller")));
    is_shut(&server, Some(&stranger), &HUNG_UP).await;
    is_open(
        &server,
        &tls.with_identity(identity(&clients.issue("controller"))),
    )
    .await;
}

#[tokio::test]
async fn who_never_ends_a_handshake_keeps_nobody_out() {
    let authority = Authority::new("switches");
    let server = served(&authority, None).await;
    let silent: Vec<_> = (0..64)
        .map(|_| std::net::TcpStream::connect(address(&server)).unwrap())
        .collect();
    is_open(&server, &believing(&authority)).await;
    drop(silent);
}

#[test]
fn what_is_wrong_with_a_configuration_is_named() {
    let authority = Authority::new("switches");
    let (own, other) = (authority.issue("switch"), authority.issue("switch"));
    let of = |chain: &str, key: &str| Identity::from_pem(chain.as_bytes(), key.as_bytes()).unwrap_err();
    let damaged = own.cert.replacen("\nMII", "\nM!!", 1);
    assert_ne!(damaged, own.cert);
    let no_x509 = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let no_key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let chain = format!("{}{no_x509}", own.cert);
    for (error, part, why) in [
        (of(&own.cert, &other.key), Part::Key, "another certificate"),
        (of(&own.key, &own.key), Part::Certificate, "no certificate"),
        (of("", &own.key), Part::Certificate, "no certificate"),
        (of(&damaged, &own.key), Part::Certificate, "damaged"),
        (of(no_x509, &own.key), Part::Certificate, "certificate 1"),
        (of(&chain, &own.key), Part::Certificate, "certificate 2"),
        (of(&own.cert, &own.cert), Part::Key, "no private key"),
        (of(&own.cert, encrypted), Part::Key, "not encrypted"),
        (of(&own.cert, no_key), Part::Key, "cannot be used"),
    ] {
        names(&error, part, why);
    }
    let no_ca = ServerTls::new(identity(&own), Some(own.key.as_bytes())).unwrap_err();
    names(&no_ca, Part::Ca, "no certificate");
    names(&ClientTls::new(b"").unwrap_err(), Part::Ca, "no certificate");
    let no_name = believing(&authority).with_domain("two words").unwrap_err();
    names(&no_name, Part::Domain, "\"two words\"");
}

fn names(error: &TlsError, part: Part, why: &str) {
    assert_eq!(error.part, part, "{error}");
    assert!(error.why.contains(why), "{error}");
}

#[test]
fn keys_are_not_shown() {
    let issued = Authority::new("switches").issue("switch");
    let shown = format!("{:?}", ServerTls::new(identity(&issued), None).unwrap());
    assert_eq!(shown, "ServerTls { identity: Identity { .. }, client_ca: None }");
}
