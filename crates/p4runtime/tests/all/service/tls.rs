//! TLS: accepted and rejected connections, and the errors of rejected clients.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::service::support::authority::{IssuedCertificate, TestAuthority};
use crate::service::support::{DEVICE, Server, pipeline};
use linewarden_p4runtime::arbitration::ArbitrationStatus;
use linewarden_p4runtime::client::{Client, ClientError, ClientIdentity};
use linewarden_p4runtime::evidence::{
    self, Digests, EvidenceSource, EvidenceUnavailable, InventoryScope, SignedEvidence,
};
use linewarden_p4runtime::server::Routes;
use linewarden_tls::{ClientTls, Identity, ServerTls, TlsError, TlsPart, endpoint};

/// Possible errors of a client if the server closes the connection during or after the handshake.
const CONNECTION_CLOSED: [&str; 2] = ["connection to the switch was lost: ", UNREACHABLE[0]];
/// Error of a client that establishes no connection.
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
    let other_services = Routes::new(evidence::service(Arc::new(FixedEvidence)));
    Server::start_with(None, other_services, Some(tls)).await
}

fn address(server: &Server) -> SocketAddr {
    let address = server.endpoint.uri().authority().unwrap().as_str();
    address.parse().unwrap()
}

/// Connects a client, which sets a program; returns the arbitration status of this client.
async fn control(server: &Server, tls: Option<&ClientTls>) -> Result<ArbitrationStatus, ClientError> {
    let endpoint = endpoint(&address(server).to_string(), tls).unwrap();
    let identity = ClientIdentity {
        device_id: DEVICE,
        role: String::new(),
        election_id: 1,
    };
    let (mut client, _events, status) = Client::connect(endpoint, identity).await?;
    client.set_pipeline(&pipeline()).await?;
    Ok(status)
}

async fn switch_id(server: &Server, tls: Option<&ClientTls>) -> Result<u64, evidence::EvidenceClientError> {
    let mut client = evidence::Client::connect(address(server), tls).await?;
    Ok(client.digests().await?.switch_id)
}

/// Checks that the P4Runtime service and the evidence service fail with one of `reasons`.
async fn expect_rejection(server: &Server, tls: Option<&ClientTls>, reasons: &[&str]) {
    let has_reason = |message: &str| reasons.iter().any(|reason| message.contains(reason));
    let error = control(server, tls).await.unwrap_err().to_string();
    assert!(has_reason(&error), "control: {error}");
    let error = switch_id(server, tls).await.unwrap_err().to_string();
    assert!(has_reason(&error), "evidence: {error}");
    assert!(!server.switch.has_program());
}

async fn expect_access(server: &Server, tls: &ClientTls) {
    assert_eq!(
        control(server, Some(tls)).await.unwrap(),
        ArbitrationStatus::Primary
    );
    assert_eq!(switch_id(server, Some(tls)).await.unwrap(), 7);
}

#[test]
async fn client_that_trusts_the_ca_of_the_server_is_served() {
    let authority = TestAuthority::new("switches");
    let server = start_server(&authority, None).await;
    expect_access(&server, &tls_trusting(&authority)).await;
}

#[test]
async fn unencrypted_connections_are_rejected() {
    let server = start_server(&TestAuthority::new("switches"), None).await;
    expect_rejection(&server, None, &CONNECTION_CLOSED).await;
}

#[test]
async fn server_of_another_ca_is_not_trusted() {
    let server = start_server(&TestAuthority::new("switches"), None).await;
    expect_rejection(
        &server,
        Some(&tls_trusting(&TestAuthority::new("others"))),
        &["UnknownIssuer"],
    )
    .await;
}

#[test]
async fn unencrypted_server_is_rejected_by_a_tls_client() {
    let server = Server::start(None).await;
    expect_rejection(
        &server,
        Some(&tls_trusting(&TestAuthority::new("switches"))),
        &UNREACHABLE,
    )
    .await;
}

#[test]
async fn certificate_for_another_name_is_accepted_only_with_that_domain() {
    let authority = TestAuthority::new("switches");
    let server = start_server_with(identity(&authority.issue("switch.example")), None).await;
    let tls = tls_trusting(&authority);
    expect_rejection(&server, Some(&tls), &["not valid for name"]).await;
    expect_access(&server, &tls.with_domain("switch.example").unwrap()).await;
}

#[test]
async fn client_ca_requires_a_client_certificate() {
    let (authority, clients) = (TestAuthority::new("switches"), TestAuthority::new("controllers"));
    let server = start_server(&authority, Some(&clients)).await;
    let tls = tls_trusting(&authority);
    expect_rejection(&server, Some(&tls), &CONNECTION_CLOSED).await;
    // A client certificate of the server's CA is rejected, because this CA is not the client CA.
    let foreign_client = tls
        .clone()
        .with_identity(identity(&authority.issue("controller")));
    expect_rejection(&server, Some(&foreign_client), &CONNECTION_CLOSED).await;
    expect_access(
        &server,
        &tls.with_identity(identity(&clients.issue("controller"))),
    )
    .await;
}

#[test]
async fn unfinished_handshake_blocks_no_other_client() {
    let authority = TestAuthority::new("switches");
    let server = start_server(&authority, None).await;
    let idle_connections: Vec<_> = (0..64)
        .map(|_| std::net::TcpStream::connect(address(&server)).unwrap())
        .collect();
    expect_access(&server, &tls_trusting(&authority)).await;
    drop(idle_connections);
}

#[test]
fn configuration_errors_name_the_problem() {
    let authority = TestAuthority::new("switches");
    let (certificate, other_certificate) = (authority.issue("switch"), authority.issue("switch"));
    let identity_error =
        |chain: &str, key: &str| Identity::from_pem(chain.as_bytes(), key.as_bytes()).unwrap_err();
    let damaged = certificate.cert.replacen("\nMII", "\nM!!", 1);
    assert_ne!(damaged, certificate.cert);
    let invalid_certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let invalid_key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let chain = format!("{}{invalid_certificate}", certificate.cert);
    for (error, part, reason) in [
        (
            identity_error(&certificate.cert, &other_certificate.key),
            TlsPart::Key,
            "does not match",
        ),
        (
            identity_error(&certificate.key, &certificate.key),
            TlsPart::Certificate,
            "no certificate",
        ),
        (
            identity_error("", &certificate.key),
            TlsPart::Certificate,
            "no certificate",
        ),
        (
            identity_error(&damaged, &certificate.key),
            TlsPart::Certificate,
            "damaged",
        ),
        (
            identity_error(invalid_certificate, &certificate.key),
            TlsPart::Certificate,
            "certificate 1",
        ),
        (
            identity_error(&chain, &certificate.key),
            TlsPart::Certificate,
            "certificate 2",
        ),
        (
            identity_error(&certificate.cert, &certificate.cert),
            TlsPart::Key,
            "no unencrypted private key",
        ),
        (
            identity_error(&certificate.cert, encrypted),
            TlsPart::Key,
            "no unencrypted private key",
        ),
        (
            identity_error(&certificate.cert, invalid_key),
            TlsPart::Key,
            "cannot be used",
        ),
    ] {
        check_error(&error, part, reason);
    }
    let no_ca = ServerTls::new(identity(&certificate), Some(certificate.key.as_bytes())).unwrap_err();
    check_error(&no_ca, TlsPart::Ca, "no certificate");
    check_error(&ClientTls::new(b"").unwrap_err(), TlsPart::Ca, "no certificate");
    let invalid_name = tls_trusting(&authority).with_domain("two words").unwrap_err();
    check_error(&invalid_name, TlsPart::Domain, "\"two words\"");
}

fn check_error(error: &TlsError, part: TlsPart, reason: &str) {
    assert_eq!(error.part, part, "{error}");
    assert!(error.reason.contains(reason), "{error}");
}

#[test]
fn keys_are_not_printed() {
    let issued = TestAuthority::new("switches").issue("switch");
    let debug_text = format!("{:?}", ServerTls::new(identity(&issued), None).unwrap());
    assert_eq!(
        debug_text,
        "ServerTls { identity: Identity { .. }, client_ca: None }"
    );
}
