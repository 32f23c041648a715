//! Server address, trusted CAs and credentials of a client; clients of an API in this process.

use std::convert::Infallible;
use std::error::Error;
use std::time::Duration;

use http_body_util::BodyExt as _;

use linewarden_tls::{ClientTls, Identity, install_provider};
use reqwest::{RequestBuilder, Response, Url};
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt as _};
use zeroize::Zeroizing;

use crate::error::ClientError;

/// Connection timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Idle time of a connection before TCP keepalive probes start.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// The credentials of a client.
pub enum Credentials {
    /// A token from `linewarden user create`.
    Token(Zeroizing<String>),
    /// A client certificate and its private key. [`Client::new`] validates both.
    Certificate {
        /// The certificate chain, PEM.
        chain: Vec<u8>,
        /// The private key, PEM.
        key: Zeroizing<Vec<u8>>,
    },
}

/// Prints no secrets.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Token(_) => "Token",
            Self::Certificate { .. } => "Certificate",
        })
    }
}

/// Connection settings.
#[derive(Debug)]
pub struct ClientOptions {
    /// `https://HOST[:PORT]`.
    pub server: String,
    /// CA of the server certificate, PEM; the CAs of the operating system if `None`.
    pub ca: Option<Vec<u8>>,
    /// The credentials of the user.
    pub credentials: Credentials,
    /// How long requests are retried while the controller is unreachable or too busy.
    pub retry_timeout: Duration,
}

/// How requests reach the API.
#[derive(Clone)]
enum Transport {
    /// HTTPS to a controller.
    Tls,
    /// Calls of an API in this process.
    InProcess(BoxCloneSyncService<http::Request<reqwest::Body>, http::Response<reqwest::Body>, Infallible>),
}

/// Base URL of requests to an API in this process. Its host name never resolves (RFC 6761).
const IN_PROCESS_URL: &str = "https://in-process.invalid";

/// A client of one controller, or of an API in this process. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    transport: Transport,
    /// Builds all requests, and sends the requests to a controller.
    pub(crate) http: reqwest::Client,
    pub(crate) base_url: Url,
    pub(crate) token: Option<Zeroizing<String>>,
    pub(crate) retry_timeout: Duration,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("base", &self.base_url.as_str())
            .finish_non_exhaustive()
    }
}

/// Parses an address `https://HOST[:PORT]`. An address with a user name, path, query or fragment is an error.
fn parse_server_url(server: &str) -> Result<Url, ClientError> {
    // The part before `@` may contain a password, so messages omit this part.
    let without_user = server.rsplit_once('@').map_or(server, |(_, host)| host);
    let invalid_address = |reason: &str| ClientError::InvalidAddress {
        server: without_user.to_owned(),
        reason: reason.to_owned(),
    };
    let url = Url::parse(server).map_err(|error| invalid_address(&error.to_string()))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid_address(
            "it contains a user name; store the token in a file",
        ));
    }
    if url.scheme() != "https" {
        return Err(invalid_address(
            "only https:// is supported, because tokens must be encrypted",
        ));
    }
    if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
        return Err(invalid_address("give only the host and the port"));
    }
    Ok(url)
}

impl Client {
    /// Creates a client without connecting.
    ///
    /// # Errors
    /// The address or the certificates are invalid.
    pub fn new(options: ClientOptions) -> Result<Self, ClientError> {
        install_provider();
        let invalid_certificate =
            |error: reqwest::Error| ClientError::InvalidCertificate(crate::error::error_chain(&error));
        let mut builder = reqwest::Client::builder()
            .https_only(true)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            // With HTTP/2, the connection would close before the TLS alert about the client certificate arrives.
            .http1_only()
            .tcp_keepalive(KEEPALIVE)
            .user_agent(concat!("linewarden/", env!("CARGO_PKG_VERSION")));
        if let Some(ca) = &options.ca {
            ClientTls::new(ca).map_err(|error| ClientError::InvalidCertificate(error.to_string()))?;
            let roots = reqwest::Certificate::from_pem_bundle(ca).map_err(invalid_certificate)?;
            builder = builder.tls_certs_only(roots);
        }
        let token = match options.credentials {
            Credentials::Token(token) => Some(token),
            Credentials::Certificate { chain, key } => {
                Identity::from_pem(&chain, &key)
                    .map_err(|error| ClientError::InvalidCertificate(error.to_string()))?;
                let mut pem = Zeroizing::new(chain);
                pem.push(b'\n');
                pem.extend_from_slice(&key);
                builder = builder.identity(reqwest::Identity::from_pem(&pem).map_err(invalid_certificate)?);
                None
            }
        };
        Ok(Self {
            transport: Transport::Tls,
            http: builder.build().map_err(invalid_certificate)?,
            base_url: parse_server_url(&options.server)?,
            token,
            retry_timeout: options.retry_timeout,
        })
    }

    /// Creates a client of an API in this process. The service receives the requests that a controller would receive; it must
    /// not require credentials. A request is not retried.
    ///
    /// # Errors
    /// The HTTP library cannot be initialized.
    pub fn in_process<S, B>(service: S) -> Result<Self, ClientError>
    where
        S: Service<http::Request<reqwest::Body>, Response = http::Response<B>, Error = Infallible>
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
        B: http_body::Body<Data = bytes::Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        install_provider();
        let invalid = |error: reqwest::Error| ClientError::InvalidRequest(crate::error::error_chain(&error));
        // Without the CAs of the operating system, which take long to read.
        let http = reqwest::Client::builder().tls_certs_only([]).build();
        let service = service.map_response(|response: http::Response<B>| {
            response.map(|body| reqwest::Body::wrap_stream(body.into_data_stream()))
        });
        Ok(Self {
            transport: Transport::InProcess(BoxCloneSyncService::new(service)),
            http: http.map_err(invalid)?,
            base_url: parse_server_url(IN_PROCESS_URL)?,
            token: None,
            retry_timeout: Duration::ZERO,
        })
    }

    /// Whether the API is in this process.
    pub(crate) fn is_in_process(&self) -> bool {
        matches!(self.transport, Transport::InProcess(_))
    }

    /// Sends a request; returns the response as soon as its headers arrive.
    pub(crate) async fn execute(&self, request: RequestBuilder) -> Result<Response, ClientError> {
        let transport_error = |error: reqwest::Error| ClientError::from_transport(self.server(), &error);
        match &self.transport {
            Transport::Tls => request.send().await.map_err(transport_error),
            Transport::InProcess(service) => {
                let request = request.build().and_then(http::Request::try_from);
                match service.clone().oneshot(request.map_err(transport_error)?).await {
                    Ok(response) => Ok(response.into()),
                    Err(never) => match never {},
                }
            }
        }
    }

    /// The address of the controller.
    #[must_use]
    pub fn server(&self) -> &str {
        self.base_url.as_str().trim_end_matches('/')
    }
}

#[cfg(test)]
mod tests {
    use super::parse_server_url;

    #[test]
    fn only_https_addresses_without_path_are_accepted() {
        for server in [
            "https://ctl.example",
            "https://127.0.0.1:20560",
            "https://[::1]:7/",
        ] {
            assert!(parse_server_url(server).is_ok(), "{server}");
        }
        for server in [
            "ctl.example",
            "http://ctl.example",
            "https://ctl.example/api",
            "https://ctl.example?a",
            "https://",
        ] {
            assert!(parse_server_url(server).is_err(), "{server}");
        }
        for server in [
            "https://u:secret@ctl.example",
            "https://u:secret@",
            "https://u:secret@[",
            "u:secret@ctl.example",
        ] {
            let text = parse_server_url(server).unwrap_err().to_string();
            assert!(!text.contains("secret"), "{text}");
        }
    }
}
