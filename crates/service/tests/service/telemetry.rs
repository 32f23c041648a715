//! Traces at a real collector: what it hears of questions, what it never hears, and that nobody waits for it.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use linewarden_link::{Remote, Told};
use linewarden_protocol::ids::GatewayId;
use linewarden_registry::Role;
use linewarden_service::TelemetryOptions;
use linewarden_tls::ClientTls;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpSocket;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use crate::office::{Ca, Caller, NAME, Office};
use crate::site::LONG;

/// All that came.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

#[tonic::async_trait]
impl TraceService for Heard {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.lock().unwrap().push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Heard {
    fn all(&self) -> Vec<ExportTraceServiceRequest> {
        self.0.lock().unwrap().clone()
    }

    fn spans(&self) -> Vec<Span> {
        let resources = self.all().into_iter().flat_map(|one| one.resource_spans);
        let scopes = resources.flat_map(|one| one.scope_spans);
        scopes.flat_map(|one| one.spans).collect()
    }
}

/// A collector; gone when it is dropped.
struct Collector {
    heard: Heard,
    address: SocketAddr,
    _runtime: Runtime,
}

impl Collector {
    fn start() -> Self {
        Self::on(bound(), None)
    }

    fn on(socket: TcpSocket, ca: Option<&Ca>) -> Self {
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(async { socket.listen(128) }).unwrap();
        let address = listener.local_addr().unwrap();
        let heard = Heard::default();
        let mut server = tonic::transport::Server::builder();
        if let Some(ca) = ca {
            server = server
                .tls_config(ca.server().to_tonic().client_auth_optional(true))
                .unwrap();
        }
        let router = server.add_service(TraceServiceServer::new(heard.clone()));
        let incoming = TcpListenerStream::new(listener);
        runtime.spawn(async { router.serve_with_incoming(incoming).await.unwrap() });
        Self {
            heard,
            address,
            _runtime: runtime,
        }
    }
}

/// A port of its own where nobody listens yet.
fn bound() -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket
}

fn options(scheme: &str, address: SocketAddr, tls: Option<ClientTls>) -> TelemetryOptions {
    TelemetryOptions {
        otlp: format!("{scheme}://{address}"),
        tls,
        plaintext: false,
        sample: 1.0,
    }
}

fn traced(address: SocketAddr) -> Office {
    Office::new_traced(Arc::new(Ca::new()), options("http", address, None))
}

/// The value of a counter of a controller.
fn counter(office: &Office, name: &str) -> u64 {
    let address = format!("http://{}/metrics", office.metrics);
    let page = office
        .runtime
        .block_on(async { reqwest::get(address).await.unwrap().text().await.unwrap() });
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("{page}")).parse().unwrap()
}

/// Asks until it is so.
fn ask_until(caller: &Caller<'_>, what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < until, "not within {LONG:?}: {what}");
        caller.get("/api/v1/status").ok();
    }
}

fn attributes(all: &[KeyValue]) -> BTreeMap<String, Value> {
    let value = |one: &KeyValue| match one.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Any::StringValue(text)) => json!(text),
        Some(Any::IntValue(number)) => json!(number),
        other => panic!("{other:?}"),
    };
    all.iter().map(|one| (one.key.clone(), value(one))).collect()
}

fn wanted(all: Value) -> BTreeMap<String, Value> {
    serde_json::from_value(all).unwrap()
}

#[track_caller]
fn named<'s>(spans: &'s [Span], name: &str) -> &'s Span {
    let names = || spans.iter().map(|span| &span.name).collect::<Vec<_>>();
    let found = spans.iter().find(|span| span.name == name);
    found.unwrap_or_else(|| panic!("no {name} among {:?}", names()))
}

/// A word that is in names, reasons, queries, paths and headers, and must be nowhere else.
const WORD: &str = "pump-in-hall-7";
const STRANGE_TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

#[test]
fn questions_are_told_by_how_they_are_called_and_not_by_what_is_in_them() {
    let collector = Collector::start();
    let mut office = traced(collector.address);
    let ada = office.caller("ada", Role::Admin);
    let token = ada.token.clone().unwrap();
    let key = "1f".repeat(16);
    let device = json!({"id": "d1", "name": WORD, "credentials": {"key": key}, "reason": WORD});
    ada.post("/api/v1/devices", &device).ok();
    let shown = ada
        .request(Method::GET, "/api/v1/devices/d1")
        .header("traceparent", format!("00-{STRANGE_TRACE}-b7ad6b7169203331-01"))
        .header("X-Anything", WORD);
    ada.send(shown).ok();
    ada.get(&format!("/api/v1/devices?name_prefix={WORD}")).ok();
    ada.get(&format!("/api/v1/{WORD}")).refused(404, "unknown_path");
    let method = Method::from_bytes(WORD.as_bytes()).unwrap();
    ada.send(ada.request(method, "/api/v1/status"))
        .refused(405, "method_not_allowed");
    let login = ada
        .request(Method::POST, "/api/v1/login")
        .json(&json!({"token": token}));
    let cookie = office.runtime.block_on(async {
        let answer = login.send().await.unwrap();
        let cookie = answer.headers()["set-cookie"].to_str().unwrap().to_owned();
        let (_, value) = cookie.split_once('=').unwrap();
        value.split(';').next().unwrap().to_owned()
    });
    assert!(cookie.len() > 32, "{cookie}");
    let [older, newer] = [(); 2].map(|()| office.link(GatewayId(3), &[]));
    let run = &office.runtime;
    assert_eq!(
        (run.block_on(older.enter()), run.block_on(newer.enter())),
        (Ok(1), Ok(2))
    );
    run.block_on(newer.tell(2, &Told::default())).unwrap();
    let refused = run.block_on(older.tell(1, &Told::default())).unwrap_err();
    assert!(matches!(refused, Remote::Replaced(_)), "{refused:?}");
    drop((ada, older, newer));
    // What is on its way is told before the end.
    office.stop();

    let spans = collector.heard.spans();
    let shown = named(&spans, "GET /api/v1/devices/{id}");
    assert_eq!(
        attributes(&shown.attributes),
        wanted(json!({
            "http.request.method": "GET",
            "http.route": "/api/v1/devices/{id}",
            "http.response.status_code": 200,
        }))
    );
    assert!(shown.parent_span_id.is_empty(), "whoever asks is no parent");
    assert_ne!(shown.trace_id, hex(STRANGE_TRACE));
    let enrolled = named(&spans, "POST /api/v1/devices");
    let inside: Vec<_> = spans
        .iter()
        .filter(|span| span.parent_span_id == enrolled.span_id)
        .collect();
    assert!(inside.len() > 2, "its key, itself, its answer: {}", inside.len());
    for transaction in inside {
        assert_eq!(transaction.name, "registry transaction");
        assert_eq!(transaction.trace_id, enrolled.trace_id);
        let events: Vec<_> = transaction.events.iter().map(|event| &*event.name).collect();
        assert_eq!(events, ["begun", "committed"]);
    }
    assert_eq!(
        attributes(&named(&spans, "GET").attributes),
        wanted(json!({"http.request.method": "GET", "http.response.status_code": 404}))
    );
    assert_eq!(
        attributes(&named(&spans, "_OTHER /api/v1/status").attributes)["http.request.method"],
        "_OTHER"
    );
    named(&spans, "POST /api/v1/login");
    let question = |method: &str, code: i32| {
        let name = format!("linewarden.link.v1.Link/{method}");
        let wanted = wanted(json!({
            "rpc.system": "grpc",
            "rpc.service": "linewarden.link.v1.Link",
            "rpc.method": method,
            "rpc.grpc.status_code": code,
            "linewarden.gateway.id": 3,
        }));
        let is_so = |span: &&Span| span.name == name && attributes(&span.attributes) == wanted;
        assert!(
            spans.iter().any(|span| is_so(&span)),
            "{method} {code}: {spans:#?}"
        );
    };
    question("Enter", 0);
    question("Tell", 0);
    question("Tell", tonic::Code::FailedPrecondition.into());

    for request in collector.heard.all() {
        for resource in &request.resource_spans {
            let resource = resource.resource.as_ref().unwrap();
            assert_eq!(
                attributes(&resource.attributes),
                wanted(json!({
                    "service.name": "linewarden-controller",
                    "service.instance.id": "ctl-a",
                    "service.version": env!("CARGO_PKG_VERSION"),
                }))
            );
        }
        let told = request.encode_to_vec();
        let has = |secret: &str| told.windows(secret.len()).any(|part| part == secret.as_bytes());
        assert!(has("linewarden-controller"), "it can be found");
        for secret in [&*token, &cookie, &key, WORD, "ada", "lw_", "00d1", "/d1"] {
            assert!(!has(secret), "{secret} was told: {request:#?}");
        }
    }
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.as_bytes().chunks(2).collect();
    let byte = |digits: &&[u8]| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap();
    digits.iter().map(byte).collect()
}

#[test]
fn a_collector_is_believed_by_its_ca_only() {
    let ca = Arc::new(Ca::new());
    let collector = Collector::on(bound(), Some(&ca));
    let believing = |ca: &Ca| {
        let tls = ClientTls::new(ca.pem()).unwrap().with_domain(NAME).unwrap();
        options("https", collector.address, Some(tls))
    };
    let foreign = believing(&Ca::new());
    let office = Office::new_traced(Arc::clone(&ca), foreign);
    ask_until(&office.caller("vera", Role::Viewer), "nothing is told", || {
        counter(&office, "linewarden_trace_spans_lost_total") > 0
    });
    assert_eq!(counter(&office, "linewarden_trace_spans_exported_total"), 0);
    drop(office);
    assert!(collector.heard.all().is_empty());

    let mut office = Office::new_traced(Arc::clone(&ca), believing(&ca));
    office.caller("vera", Role::Viewer).get("/api/v1/status").ok();
    office.stop();
    named(&collector.heard.spans(), "GET /api/v1/status");
}

#[test]
fn a_part_of_all_traces_may_be_none() {
    let collector = Collector::start();
    let mut none = options("http", collector.address, None);
    none.sample = 0.0;
    let mut office = Office::new_traced(Arc::new(Ca::new()), none);
    office.caller("vera", Role::Viewer).get("/api/v1/status").ok();
    office.stop();
    assert!(collector.heard.all().is_empty());
}

/// One that takes the connection and is silent: questions are answered, and the end comes.
#[test]
fn a_collector_that_never_answers_holds_nobody_up() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let held = std::thread::spawn(move || {
        let taken = silent.incoming().next().unwrap();
        taken.unwrap()
    });
    let mut office = traced(address);
    ask_until(&office.caller("vera", Role::Viewer), "it is given up", || {
        counter(&office, "linewarden_trace_spans_lost_total") > 0
    });
    assert_eq!(
        office.runtime.block_on(office.link(GatewayId(3), &[]).enter()),
        Ok(1)
    );
    let service = office.service.take().unwrap();
    let ended = async { tokio::time::timeout(LONG, service.stop()).await };
    office.runtime.block_on(ended).unwrap();
    drop(held.join().unwrap());
}

#[test]
fn a_collector_that_comes_hears_what_happens_from_then_on() {
    let socket = bound();
    let office = traced(socket.local_addr().unwrap());
    let vera = office.caller("vera", Role::Viewer);
    ask_until(&vera, "nobody is there", || {
        counter(&office, "linewarden_trace_spans_lost_total") > 0
    });
    let collector = Collector::on(socket, None);
    ask_until(&vera, "it hears", || {
        counter(&office, "linewarden_trace_spans_exported_total") > 0
    });
    assert!(!collector.heard.all().is_empty());
}
