//! A client of the API that keeps its connection: HTTP/1.1 over TLS.

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

use super::contradiction;
use crate::bench::BenchError;

/// What the controller's certificate is for.
pub(super) const NAME: &str = "ctl.example";

pub(super) type Body = BoxBody<Bytes, Infallible>;

pub(super) fn full(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).boxed()
}

/// How to reach a controller.
#[derive(Clone)]
pub(super) struct Connector {
    address: SocketAddr,
    tls: TlsConnector,
}

impl Connector {
    /// By its CA, PEM.
    pub(super) fn new(address: SocketAddr, ca: &[u8]) -> Result<Self, BenchError> {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(ca).map_err(contradiction)?)
            .map_err(contradiction)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(contradiction)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            address,
            tls: TlsConnector::from(Arc::new(config)),
        })
    }

    async fn connect(&self) -> Result<SendRequest<Body>, BenchError> {
        let stream = TcpStream::connect(self.address).await.map_err(contradiction)?;
        stream.set_nodelay(true).map_err(contradiction)?;
        let name = ServerName::try_from(NAME).map_err(contradiction)?;
        let stream = self.tls.connect(name, stream).await.map_err(contradiction)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(contradiction)?;
        // It ends with its last sender; what breaks it is told by the question that it breaks.
        tokio::spawn(connection);
        Ok(sender)
    }
}

/// Somebody with a token.
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

    /// The whole answer to a question.
    pub(super) async fn get(&mut self, path: &str) -> Result<Bytes, BenchError> {
        let answer = self.send(Method::GET, path, &[], full("")).await?;
        whole(answer).await
    }

    /// The whole answer to a write, under a key of its own.
    pub(super) async fn post(&mut self, path: &str, body: Body) -> Result<Bytes, BenchError> {
        static WRITES: AtomicU64 = AtomicU64::new(0);
        let key = format!("bench-{}", WRITES.fetch_add(1, Relaxed));
        let headers = [
            ("idempotency-key", key.as_str()),
            ("content-type", "application/json"),
            ("x-reason", "bench"),
        ];
        let answer = self.send(Method::POST, path, &headers, body).await?;
        whole(answer).await
    }

    /// An answer that has begun.
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
        connection.ready().await.map_err(contradiction)?;
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, NAME)
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body).map_err(contradiction)?;
        let answer = connection.send_request(request).await.map_err(contradiction)?;
        match answer.status().is_success() {
            true => Ok(answer),
            false => {
                let (status, said) = (answer.status(), answer.into_body().collect().await);
                let said = said.map_or_else(|_| Bytes::new(), http_body_util::Collected::to_bytes);
                let said = String::from_utf8_lossy(&said);
                Err(contradiction(format_args!("{path}: {status} {said}")))
            }
        }
    }
}

async fn whole(answer: Response<Incoming>) -> Result<Bytes, BenchError> {
    let body = answer.into_body().collect().await.map_err(contradiction)?;
    Ok(body.to_bytes())
}
