//! An API client with a persistent connection: HTTP/1.1 over TLS.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, Response, header};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::invalid_measurement;
use crate::bench::BenchError;

/// Server name of the controller's certificate.
pub(super) const SERVER_NAME: &str = "ctl.example";

pub(super) type Body = BoxBody<Bytes, Infallible>;

pub(super) fn full_body(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).boxed()
}

/// The address and the TLS configuration for connections to a controller.
#[derive(Clone)]
pub(super) struct Connector {
    address: SocketAddr,
    tls: TlsConnector,
}

impl Connector {
    /// A connector that trusts this CA (PEM).
    pub(super) fn new(address: SocketAddr, ca: &[u8]) -> Result<Self, BenchError> {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(ca).map_err(invalid_measurement)?)
            .map_err(invalid_measurement)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(invalid_measurement)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            address,
            tls: TlsConnector::from(Arc::new(config)),
        })
    }

    async fn connect(&self) -> Result<SendRequest<Body>, BenchError> {
        let stream = TcpStream::connect(self.address)
            .await
            .map_err(invalid_measurement)?;
        stream.set_nodelay(true).map_err(invalid_measurement)?;
        let name = ServerName::try_from(SERVER_NAME).map_err(invalid_measurement)?;
        let stream = self
            .tls
            .connect(name, stream)
            .await
            .map_err(invalid_measurement)?;
        let (sender, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(invalid_measurement)?;
        // The task ends when the last sender is dropped; requests return the connection's errors.
        tokio::spawn(connection);
        Ok(sender)
    }
}

/// An API client with a token.
pub(super) struct Client {
    connector: Connector,
    token: Arc<str>,
    connection: Option<SendRequest<Body>>,
}

impl Client {
    pub(super) fn new(connector: Connector, token: Arc<str>) -> Self {
        Self {
            connector,
            token,
            connection: None,
        }
    }

    /// Sends a GET request and returns the response body.
    pub(super) async fn get(&mut self, path: &str) -> Result<Bytes, BenchError> {
        let response = self.send(Method::GET, path, &[], full_body("")).await?;
        read_body(response).await
    }

    /// Sends a POST request with a new idempotency key and returns the response body.
    pub(super) async fn post(&mut self, path: &str, body: Body) -> Result<Bytes, BenchError> {
        static WRITES: AtomicU64 = AtomicU64::new(0);
        let key = format!("bench-{}", WRITES.fetch_add(1, Relaxed));
        let headers = [
            ("idempotency-key", key.as_str()),
            ("content-type", "application/json"),
            ("x-reason", "bench"),
        ];
        let response = self.send(Method::POST, path, &headers, body).await?;
        read_body(response).await
    }

    /// Sends a request and returns the response before its body is read.
    pub(super) async fn send(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Body,
    ) -> Result<Response<Incoming>, BenchError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => self.connection.insert(self.connector.connect().await?),
        };
        connection.ready().await.map_err(invalid_measurement)?;
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, SERVER_NAME)
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body).map_err(invalid_measurement)?;
        let response = connection
            .send_request(request)
            .await
            .map_err(invalid_measurement)?;
        match response.status().is_success() {
            true => Ok(response),
            false => {
                let (status, body) = (response.status(), response.into_body().collect().await);
                let body = body.map_or_else(|_| Bytes::new(), http_body_util::Collected::to_bytes);
                let text = String::from_utf8_lossy(&body);
                Err(invalid_measurement(format_args!(
                    "request {path} failed: {status} {text}"
                )))
            }
        }
    }
}

async fn read_body(response: Response<Incoming>) -> Result<Bytes, BenchError> {
    let body = response
        .into_body()
        .collect()
        .await
        .map_err(invalid_measurement)?;
    Ok(body.to_bytes())
}
