//! A service with a CA of its own, and who asks it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use linewarden_controller::{Controller, Policy};
use linewarden_link::{Client, ClientOptions, Identities, gateway_uri};
use linewarden_protocol::ids::GatewayId;
use linewarden_registry::{Location, MasterKey, Registry, Role, User};
use linewarden_service::{NatsOptions, Service, ServiceOptions, TelemetryOptions, user_uri};
use linewarden_tls::{ClientTls, Identity, ServerTls};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use reqwest::{Method, RequestBuilder, Response};
use serde_json::Value;
use tokio::runtime::Runtime;

pub const NAME: &str = "ctl.example";

/// Whom certificates are of.
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

    /// A certificate that names this, and its key.
    pub fn client(&self, uri: &str, change: impl FnOnce(&mut CertificateParams)) -> (String, String) {
        let mut parameters = CertificateParams::default();
        parameters.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
        change(&mut parameters);
        self.sign(&parameters)
    }
}

struct Fixed(ClientTls);

impl Identities for Fixed {
    fn now(&self) -> Result<ClientTls, String> {
        Ok(self.0.clone())
    }
}

/// A controller at work.
pub struct Office {
    pub ca: Arc<Ca>,
    pub runtime: Arc<Runtime>,
    pub registry: Registry,
    pub service: Option<Service>,
    pub address: SocketAddr,
    pub metrics: SocketAddr,
    _directory: Option<tempfile::TempDir>,
}

pub fn key() -> MasterKey {
    MasterKey::from_bytes([7; 32])
}

impl Office {
    /// Over a file.
    pub fn new() -> Self {
        Self::new_deciding(|controller| controller)
    }

    /// Over a file, with a controller that is changed before it serves.
    pub fn new_deciding(change: impl FnOnce(Controller) -> Controller) -> Self {
        Self::in_file(Arc::new(Ca::new()), None, None, change)
    }

    /// Over a file, and publishing events.
    pub fn new_publishing(nats: NatsOptions) -> Self {
        Self::in_file(Arc::new(Ca::new()), Some(nats), None, |controller| controller)
    }

    /// Over a file, and telling traces.
    pub fn new_traced(ca: Arc<Ca>, telemetry: TelemetryOptions) -> Self {
        Self::in_file(ca, None, Some(telemetry), |controller| controller)
    }

    fn in_file(
        ca: Arc<Ca>,
        nats: Option<NatsOptions>,
        telemetry: Option<TelemetryOptions>,
        change: impl FnOnce(Controller) -> Controller,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let location = Location::Sqlite(directory.path().join("fleet.registry"));
        let runtime = Arc::new(Runtime::new().unwrap());
        let registry = runtime.block_on(Registry::create(&location, &key())).unwrap();
        let mut office = Self::start(ca, runtime, registry, "ctl-a", nats, telemetry, change);
        office._directory = Some(directory);
        office
    }

    pub fn over(ca: Arc<Ca>, runtime: Arc<Runtime>, registry: Registry, name: &str) -> Self {
        Self::publishing(ca, runtime, registry, name, None)
    }

    /// One that publishes events.
    pub fn publishing(
        ca: Arc<Ca>,
        runtime: Arc<Runtime>,
        registry: Registry,
        name: &str,
        nats: Option<NatsOptions>,
    ) -> Self {
        Self::deciding(ca, runtime, registry, name, nats, |controller| controller)
    }

    /// One whose controller is changed before it serves.
    pub fn deciding(
        ca: Arc<Ca>,
        runtime: Arc<Runtime>,
        registry: Registry,
        name: &str,
        nats: Option<NatsOptions>,
        change: impl FnOnce(Controller) -> Controller,
    ) -> Self {
        Self::start(ca, runtime, registry, name, nats, None, change)
    }

    fn start(
        ca: Arc<Ca>,
        runtime: Arc<Runtime>,
        registry: Registry,
        name: &str,
        nats: Option<NatsOptions>,
        telemetry: Option<TelemetryOptions>,
        change: impl FnOnce(Controller) -> Controller,
    ) -> Self {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let policy = Policy {
            lease_rows: 9,
            mark_block: 4,
        };
        let service = runtime
            .block_on(Service::start(ServiceOptions {
                name: name.to_owned(),
                listen: any,
                metrics: Some(any),
                tls: ca.server(),
                controller: change(Controller::new(registry.clone(), policy)),
                registry: registry.clone(),
                nats,
                telemetry,
            }))
            .unwrap();
        Self {
            ca,
            runtime,
            registry,
            address: service.address(),
            metrics: service.metrics_address().unwrap(),
            service: Some(service),
            _directory: None,
        }
    }

    /// Ends the service; whoever asks gets nothing any more.
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

    /// Somebody who shows no certificate.
    pub fn browser(&self) -> reqwest::Client {
        self.builder().build().unwrap()
    }

    /// Somebody who shows one.
    pub fn with_certificate(&self, (chain, key): &(String, String)) -> reqwest::Client {
        let identity = reqwest::Identity::from_pem(format!("{chain}{key}").as_bytes()).unwrap();
        self.builder().identity(identity).build().unwrap()
    }

    /// Lets somebody in, and returns their token.
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

    /// Somebody with that role.
    pub fn caller(&self, name: &str, role: Role) -> Caller<'_> {
        Caller {
            office: self,
            client: self.browser(),
            token: Some(self.token(name, role)),
        }
    }

    /// A gateway's way to this controller, and to others if this one does not answer.
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
            controllers: controllers.map(ToString::to_string).collect(),
            identities: Arc::new(Fixed(tls)),
            connect_timeout: Duration::from_secs(2),
            answer_timeout: Duration::from_secs(5),
            version: "test".to_owned(),
        })
    }
}

impl Drop for Office {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A user's certificate.
pub fn user_certificate(office: &Office, name: &str) -> (String, String) {
    office.ca.client(&user_uri(name), |_| ())
}

/// Who asks.
pub struct Caller<'o> {
    pub office: &'o Office,
    pub client: reqwest::Client,
    pub token: Option<String>,
}

/// What came back.
#[derive(Debug)]
pub struct Said {
    pub status: u16,
    pub body: Value,
    pub text: String,
}

impl Said {
    #[track_caller]
    pub fn ok(self) -> Value {
        assert!((200..300).contains(&self.status), "{} {}", self.status, self.text);
        self.body
    }

    #[track_caller]
    pub fn refused(self, status: u16, code: &str) -> String {
        assert_eq!(self.status, status, "{}", self.text);
        assert_eq!(self.body["error"]["code"], code, "{}", self.text);
        self.body["error"]["message"].as_str().unwrap().to_owned()
    }
}

impl Caller<'_> {
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let port = self.office.address.port();
        let request = self
            .client
            .request(method, format!("https://{NAME}:{port}{path}"));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    pub fn send(&self, request: RequestBuilder) -> Said {
        self.office.runtime.block_on(async {
            let response: Response = request.send().await.unwrap();
            let status = response.status().as_u16();
            let text = response.text().await.unwrap();
            Said {
                status,
                body: serde_json::from_str(&text).unwrap_or(Value::Null),
                text,
            }
        })
    }

    pub fn get(&self, path: &str) -> Said {
        self.send(self.request(Method::GET, path))
    }

    /// A write with a key of its own.
    pub fn post(&self, path: &str, body: &Value) -> Said {
        self.post_with(path, body, &unique())
    }

    pub fn post_with(&self, path: &str, body: &Value, key: &str) -> Said {
        let request = self.request(Method::POST, path).header("Idempotency-Key", key);
        self.send(request.json(body))
    }
}

pub fn unique() -> String {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("key-{}", NEXT.fetch_add(1, Relaxed))
}
