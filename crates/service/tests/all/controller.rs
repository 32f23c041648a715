//! A test controller with its own CA, and API clients.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use linewarden_controller::{Controller, Policy};
use linewarden_link::{Client, ClientOptions, Controllers, Identities, gateway_uri};
use linewarden_protocol::ids::GatewayId;
use linewarden_registry::{Location, MasterKey, Registry, Role, User};
use linewarden_service::{
    ApiOptions, NatsOptions, Service, ServiceOptions, SocketOptions, TelemetryOptions, user_uri,
};
use linewarden_tls::{ClientTls, Identity, ServerTls};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use reqwest::{Method, RequestBuilder, Response};
use serde_json::Value;
use tokio::runtime::Runtime;

/// Host name in the controller's certificate.
pub const NAME: &str = "ctl.example";

/// The test CA.
pub struct Ca {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Ca {
    pub fn new() -> Self {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = parameters.self_signed(&key).unwrap();
        Self {
            pem: certificate.pem(),
            issuer: Issuer::new(parameters, key),
        }
    }

    pub fn pem(&self) -> &[u8] {
        self.pem.as_bytes()
    }

    fn sign(&self, parameters: &CertificateParams) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    pub fn server(&self) -> ServerTls {
        let parameters = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
        let (chain, key) = self.sign(&parameters);
        let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes()).unwrap();
        ServerTls::new(identity, Some(self.pem())).unwrap()
    }

    /// A client certificate for this URI, changed by `change`, and the certificate's key. Both are PEM.
    pub fn client(&self, uri: &str, change: impl FnOnce(&mut CertificateParams)) -> (String, String) {
        let mut parameters = CertificateParams::default();
        parameters.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
        change(&mut parameters);
        self.sign(&parameters)
    }
}

struct FixedIdentity(ClientTls);

impl Identities for FixedIdentity {
    fn current(&self) -> Result<ClientTls, String> {
        Ok(self.0.clone())
    }
}

/// A running controller.
pub struct TestController {
    pub ca: Arc<Ca>,
    pub runtime: Arc<Runtime>,
    pub registry: Registry,
    pub service: Option<Service>,
    pub address: SocketAddr,
    pub metrics: SocketAddr,
    _directory: Option<tempfile::TempDir>,
}

pub fn master_key() -> MasterKey {
    MasterKey::from_bytes([7; 32])
}

/// Options of a service without listeners.
pub fn minimal_options(registry: &Registry) -> ServiceOptions {
    let policy = Policy {
        lease_rows: 9,
        mark_block: 4,
    };
    ServiceOptions {
        name: "ctl-a".to_owned(),
        api: None,
        socket: None,
        metrics: None,
        registry: registry.clone(),
        controller: Controller::new(registry.clone(), policy),
        nats: None,
        telemetry: None,
    }
}

impl TestController {
    /// Starts a controller with a registry in a file.
    pub fn new() -> Self {
        Self::new_with_change(|controller| controller)
    }

    /// Starts a controller with a registry in a file. `change` can change the `Controller` before the start.
    pub fn new_with_change(change: impl FnOnce(Controller) -> Controller) -> Self {
        Self::new_with_options(Arc::new(Ca::new()), |options| ServiceOptions {
            controller: change(options.controller),
            ..options
        })
    }

    /// Starts a controller with a registry in a file and NATS publishing.
    pub fn new_with_nats(nats: NatsOptions) -> Self {
        Self::new_with_options(Arc::new(Ca::new()), |options| ServiceOptions {
            nats: Some(nats),
            ..options
        })
    }

    /// Starts a controller with a registry in a file and trace export.
    pub fn new_with_traces(ca: Arc<Ca>, telemetry: TelemetryOptions) -> Self {
        Self::new_with_options(ca, |options| ServiceOptions {
            telemetry: Some(telemetry),
            ..options
        })
    }

    /// Starts a controller with a registry in a file, and a socket for gateways.
    pub fn new_with_socket(path: &Path) -> Self {
        Self::new_with_options(Arc::new(Ca::new()), |options| ServiceOptions {
            socket: Some(SocketOptions {
                path: path.to_owned(),
                group_id: None,
            }),
            ..options
        })
    }

    fn new_with_options(ca: Arc<Ca>, change: impl FnOnce(ServiceOptions) -> ServiceOptions) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let location = Location::Sqlite(directory.path().join("fleet.registry"));
        let runtime = Arc::new(Runtime::new().unwrap());
        let registry = runtime
            .block_on(Registry::create(&location, &master_key()))
            .unwrap();
        let mut controller = Self::start(ca, runtime, registry, "ctl-a", change);
        controller._directory = Some(directory);
        controller
    }

    /// Starts a controller with this registry.
    pub fn with_registry(ca: Arc<Ca>, runtime: Arc<Runtime>, registry: Registry, name: &str) -> Self {
        Self::with_nats(ca, runtime, registry, name, None)
    }

    /// Starts a controller with this registry and NATS publishing.
    pub fn with_nats(
        ca: Arc<Ca>,
        runtime: Arc<Runtime>,
        registry: Registry,
        name: &str,
        nats: Option<NatsOptions>,
    ) -> Self {
        Self::with_change(ca, runtime, registry, name, nats, |controller| controller)
    }

    /// Starts a controller with this registry. `change` can change the `Controller` before the start.
    pub fn with_change(
        ca: Arc<Ca>,
        runtime: Arc<Runtime>,
        registry: Registry,
        name: &str,
        nats: Option<NatsOptions>,
        change: impl FnOnce(Controller) -> Controller,
    ) -> Self {
        Self::start(ca, runtime, registry, name, |options| ServiceOptions {
            controller: change(options.controller),
            nats,
            ..options
        })
    }

    fn start(
        ca: Arc<Ca>,
        runtime: Arc<Runtime>,
        registry: Registry,
        name: &str,
        change: impl FnOnce(ServiceOptions) -> ServiceOptions,
    ) -> Self {
        let any_port: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let api = ApiOptions {
            listen: any_port,
            tls: ca.server(),
        };
        let options = change(ServiceOptions {
            name: name.to_owned(),
            api: Some(api),
            metrics: Some(any_port),
            ..minimal_options(&registry)
        });
        let service = runtime.block_on(Service::start(options)).unwrap();
        Self {
            ca,
            runtime,
            registry,
            address: service.address().unwrap(),
            metrics: service.metrics_address().unwrap(),
            service: Some(service),
            _directory: None,
        }
    }

    /// Stops the service.
    pub fn stop(&mut self) {
        if let Some(service) = self.service.take() {
            self.runtime.block_on(service.stop());
        }
    }

    fn builder(&self) -> reqwest::ClientBuilder {
        let root = reqwest::Certificate::from_pem(self.ca.pem()).unwrap();
        reqwest::Client::builder()
            .tls_certs_only([root])
            .resolve(NAME, self.address)
            .timeout(Duration::from_secs(20))
    }

    /// An HTTP client without a certificate.
    pub fn browser(&self) -> reqwest::Client {
        self.builder().build().unwrap()
    }

    /// An HTTP client with a certificate.
    pub fn with_certificate(&self, (chain, key): &(String, String)) -> reqwest::Client {
        let identity = reqwest::Identity::from_pem(format!("{chain}{key}").as_bytes()).unwrap();
        self.builder().identity(identity).build().unwrap()
    }

    /// Adds a user with this role and returns the user's token.
    pub fn token(&self, name: &str, role: Role) -> String {
        let token = format!("lw_token_of_{name}");
        let user = User {
            name: name.to_owned(),
            role,
            has_token: true,
            created_at_s: 0,
            expires_at_s: None,
        };
        self.runtime
            .block_on(self.registry.add_user(&user, Some(&token)))
            .unwrap();
        token
    }

    /// Adds a user with this role and returns an API client of this user.
    pub fn caller(&self, name: &str, role: Role) -> ApiClient<'_> {
        ApiClient {
            controller: self,
            client: self.browser(),
            token: Some(self.token(name, role)),
        }
    }

    /// A gateway's link to this controller, with other controllers as alternatives.
    pub fn link(&self, gateway: GatewayId, others: &[SocketAddr]) -> Client {
        let certificate = self.ca.client(&gateway_uri(gateway), |_| ());
        self.link_with(&certificate, others)
    }

    pub fn link_with(&self, (chain, key): &(String, String), others: &[SocketAddr]) -> Client {
        let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes()).unwrap();
        let tls = ClientTls::new(self.ca.pem()).unwrap();
        let tls = tls.with_domain(NAME).unwrap().with_identity(identity);
        let controllers = std::iter::once(&self.address).chain(others);
        Client::new(ClientOptions {
            controllers: Controllers::Remote {
                addresses: controllers.map(ToString::to_string).collect(),
                identities: Arc::new(FixedIdentity(tls)),
            },
            connect_timeout: Duration::from_secs(2),
            response_timeout: Duration::from_secs(5),
            version: "test".to_owned(),
        })
    }
}

impl Drop for TestController {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A user's certificate.
pub fn user_certificate(controller: &TestController, name: &str) -> (String, String) {
    controller.ca.client(&user_uri(name), |_| ())
}

/// An API client of one user.
pub struct ApiClient<'o> {
    pub controller: &'o TestController,
    pub client: reqwest::Client,
    pub token: Option<String>,
}

/// A response to an API request. `body` is null if the text is not JSON.
#[derive(Debug)]
pub struct ApiResponse {
    pub status: u16,
    pub body: Value,
    pub text: String,
}

impl ApiResponse {
    /// Asserts that the request succeeded; returns the body.
    #[track_caller]
    pub fn ok(self) -> Value {
        assert!((200..300).contains(&self.status), "{} {}", self.status, self.text);
        self.body
    }

    /// Asserts that the request was refused with this status and error code; returns the error message.
    #[track_caller]
    pub fn refused(self, status: u16, code: &str) -> String {
        assert_eq!(self.status, status, "{}", self.text);
        assert_eq!(self.body["error"]["code"], code, "{}", self.text);
        self.body["error"]["message"].as_str().unwrap().to_owned()
    }
}

impl ApiClient<'_> {
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let port = self.controller.address.port();
        let request = self
            .client
            .request(method, format!("https://{NAME}:{port}{path}"));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    pub fn send(&self, request: RequestBuilder) -> ApiResponse {
        self.controller.runtime.block_on(async {
            let response: Response = request.send().await.unwrap();
            let status = response.status().as_u16();
            let text = response.text().await.unwrap();
            ApiResponse {
                status,
                body: serde_json::from_str(&text).unwrap_or(Value::Null),
                text,
            }
        })
    }

    pub fn get(&self, path: &str) -> ApiResponse {
        self.send(self.request(Method::GET, path))
    }

    /// Sends a POST request with a new idempotency key.
    pub fn post(&self, path: &str, body: &Value) -> ApiResponse {
        self.post_with(path, body, &unique_key())
    }

    pub fn post_with(&self, path: &str, body: &Value, key: &str) -> ApiResponse {
        let request = self.request(Method::POST, path).header("Idempotency-Key", key);
        self.send(request.json(body))
    }
}

/// A new idempotency key.
pub fn unique_key() -> String {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("key-{}", NEXT.fetch_add(1, Relaxed))
}
