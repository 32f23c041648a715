//! TLS: accepted and rejected connections, and the errors of rejected clients.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::support::authority::{IssuedCertificate, TestAuthority};
use crate::support::{DEVICE, Server, pipeline};
use linewarden_p4runtime::arbitration::ArbitrationStatus;
use linewarden_p4runtime::client::{Client, ClientError, Session};
use linewarden_p4runtime::evidence::{
    self, Digests, EvidenceSource, EvidenceUnavailable, InventoryScope, SignedEvidence,
};
use linewarden_p4runtime::server::Routes;
use linewarden_tls::{ClientTls, Identity, ServerTls, TlsError, TlsPart, endpoint};

/// First error of a rejected client: connection lost, or the alert of the server, during or after the handshake.
const CONNECTION_CLOSED: [&str; 2] = ["connection to the switch was lost: ", UNREACHABLE[0]];
const UNREACHABLE: [&str; 1] = ["connection to the switch failed: "];

/// Evidence source with a fixed switch id.
struct FixedEvidence;

impl EvidenceSource for FixedEvidence {
    fn digests(&self) -> Result<Digests, EvidenceUnavailable> {
        Ok(Digests {
            switch_id: 7,
            ..Digests::default()
        })
    }

    fn attest(&self, nonce: [u8; 32], _: InventoryScope) -> Result<SignedEvidence, EvidenceUnavailable> {
        Ok(SignedEvidence {
            statement: nonce.to_vec(),
            inventory: None,
        })
    }
}

fn identity(issued: &IssuedCertificate) -> Identity {
    Identity::from_pem(issued.cert.as_bytes(), issued.key.as_bytes()).unwrap()
}

fn tls_trusting(authority: &TestAuthority) -> ClientTls {
    ClientTls::new(authority.pem.as_bytes()).unwrap()
}

/// Starts a server with a certificate for 127.0.0.1.
async fn start_server(authority: &TestAuthority, client_ca: Option<&TestAuthority>) -> Server {
    start_server_with(identity(&authority.issue("127.0.0.1")), client_ca).await
}

async fn start_server_with(identity: Identity, client_ca: Option<&TestAuthority>) -> Server {
    let ca = client_ca.map(|authority| authority.pem.as_bytes());
    let tls = ServerTls::new(identity, ca).unwrap();
    assert_eq!(tls.authenticates_clients(), client_ca.is_some());
    let others = Routes::new(evidence::service(Arc::new(FixedEvidence)));
    Server::start_with(None, others, Some(tls)).await
}

fn address(server: &Server) -> SocketAddr {
    let address = server.endpoint.uri().authority().unwrap().as_str();
    address.parse().unwrap()
}

/// Sets a program, and returns the arbitration status of this client.
async fn control(server: &Server, tls: Option<&ClientTls>) -> Result<ArbitrationStatus, ClientError> {
    let endpoint = endpoint(&address(server).to_string(), tls).unwrap();
    let session = Session {
        device_id: DEVICE,
        role: String::new(),
        election_id: 1,
    };
    let (mut client, _events, status) = Client::connect(endpoint, session).await?;
    client.set_pipeline(&pipeline()).await?;
    Ok(status)
}

async fn switch_id(server: &Server, tls: Option<&ClientTls>) -> Result<u64, evidence::EvidenceClientError> {
    let mut client = evidence::Client::connect(address(server), tls).await?;
    Ok(client.digests().await?.switch_id)
}

/// Checks that both services fail with one of these errors.
async fn is_shut(server: &Server, tls: Option<&ClientTls>, reasons: &[&str]) {
    let has_reason = |message: &str| reasons.iter().any(|reasons| message.contains(reasons));
    let refused = control(server, tls).await.unwrap_err().to_string();
    assert!(has_reason(&refused), "control: {refused}");
    let refused = switch_id(server, tls).await.unwrap_err().to_string();
    assert!(has_reason(&refused), "evidence: {refused}");
    assert!(!server.switch.has_program());
}

async fn is_open(server: &Server, tls: &ClientTls) {
    assert_eq!(
        control(server, Some(tls)).await.unwrap(),
        ArbitrationStatus::Primary
    );
    assert_eq!(switch_id(server, Some(tls)).await.unwrap(), 7);
}

#[tokio::test]
async fn client_that_trusts_the_ca_of_the_server_is_served() {
    let authority = TestAuthority::new("switches");
    let server = start_server(&authority, None).await;
    is_open(&server, &tls_trusting(&authority)).await;
}

#[tokio::test]
async fn unencrypted_connections_are_rejected() {
    let server = start_server(&TestAuthority::new("switches"), None).await;
    is_shut(&server, None, &CONNECTION_CLOSED).await;
}

#[tokio::test]
async fn server_of_another_ca_is_not_trusted() {
    let server = start_server(&TestAuthority::new("switches"), None).await;
    is_shut(
        &server,
        Some(&tls_trusting(&TestAuthority::new("others"))),
        &["UnknownIssuer"],
    )
    .await;
}

#[tokio::test]
async fn unencrypted_server_is_rejected_by_a_tls_client() {
    let server = Server::start(None).await;
    is_shut(
        &server,
        Some(&tls_trusting(&TestAuthority::new("switches"))),
        &UNREACHABLE,
    )
    .await;
}

#[tokio::test]
async fn certificate_for_another_name_requires_that_name() {
    let authority = TestAuthority::new("switches");
    let server = start_server_with(identity(&authority.issue("switch.example")), None).await;
    let tls = tls_trusting(&authority);
    is_shut(&server, Some(&tls), &["not valid for name"]).await;
    is_open(&server, &tls.with_domain("switch.example").unwrap()).await;
}

#[tokio::test]
async fn client_ca_requires_a_client_certificate() {
    let (authority, clients) = (TestAuthority::new("switches"), TestAuthority::new("controllers"));
    let server = start_server(&authority, Some(&clients)).await;
    let tls = tls_trusting(&authority);
    is_shut(&server, Some(&tls), &CONNECTION_CLOSED).await;
    // A certificate of the server's CA, which is not the client CA.
    let foreign_client = tls
        .clone()
        .with_identity(identity(&authority.issue("controller")));
    is_shut(&server, Some(&foreign_client), &CONNECTION_CLOSED).await;
    is_open(
        &server,
        &tls.with_identity(identity(&clients.issue("controller"))),
    )
    .await;
}

#[tokio::test]
async fn unfinished_handshake_blocks_no_other_client() {
    let authority = TestAuthority::new("switches");
    let server = start_server(&authority, None).await;
    let idle_connections: Vec<_> = (0..64)
        .map(|_| std::net::TcpStream::connect(address(&server)).unwrap())
        .collect();
    is_open(&server, &tls_trusting(&authority)).await;
    drop(idle_connections);
}

#[test]
fn configuration_errors_name_the_problem() {
    let authority = TestAuthority::new("switches");
    let (own, other) = (authority.issue("switch"), authority.issue("switch"));
    let of = |chain: &str, key: &str| Identity::from_pem(chain.as_bytes(), key.as_bytes()).unwrap_err();
    let damaged = own.cert.replacen("\nMII", "\nM!!", 1);
    assert_ne!(damaged, own.cert);
    let no_x509 = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let no_key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let chain = format!("{}{no_x509}", own.cert);
    for (error, part, reason) in [
        (of(&own.cert, &other.key), TlsPart::Key, "does not match"),
        (of(&own.key, &own.key), TlsPart::Certificate, "no certificate"),
        (of("", &own.key), TlsPart::Certificate, "no certificate"),
        (of(&damaged, &own.key), TlsPart::Certificate, "damaged"),
        (of(no_x509, &own.key), TlsPart::Certificate, "certificate 1"),
        (of(&chain, &own.key), TlsPart::Certificate, "certificate 2"),
        (
            of(&own.cert, &own.cert),
            TlsPart::Key,
            "no unencrypted private key",
        ),
        (
            of(&own.cert, encrypted),
            TlsPart::Key,
            "no unencrypted private key",
        ),
        (of(&own.cert, no_key), TlsPart::Key, "cannot be used"),
    ] {
        names(&error, part, reason);
    }
    let no_ca = ServerTls::new(identity(&own), Some(own.key.as_bytes())).unwrap_err();
    names(&no_ca, TlsPart::Ca, "no certificate");
    names(&ClientTls::new(b"").unwrap_err(), TlsPart::Ca, "no certificate");
    let no_name = tls_trusting(&authority).with_domain("two words").unwrap_err();
    names(&no_name, TlsPart::Domain, "\"two words\"");
}

fn names(error: &TlsError, part: TlsPart, reason: &str) {
    assert_eq!(error.part, part, "{error}");
    assert!(error.reason.contains(reason), "{error}");
}

#[test]
fn keys_are_not_printed() {
    let issued = TestAuthority::new("switches").issue("switch");
    let shown = format!("{:?}", ServerTls::new(identity(&issued), None).unwrap());
    assert_eq!(shown, "ServerTls { identity: Identity { .. }, client_ca: None }");
}
