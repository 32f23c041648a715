//! Export of traces to a real collector: contents, omitted data, and requests that do not depend on the collector.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use linewarden_protocol::ids::GatewayId;
use linewarden_registry::Role;
use linewarden_service::TelemetryOptions;
use linewarden_tls::ClientTls;
use linewarden_types::{LinkError, ReportStatus, StatusReport};
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

use crate::controller::{ApiClient, Ca, NAME, TestController};
use crate::site::TIMEOUT;

/// All received exports.
#[derive(Clone, Default)]
struct ReceivedExports(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

#[tonic::async_trait]
impl TraceService for ReceivedExports {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.lock().unwrap().push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl ReceivedExports {
    fn exports(&self) -> Vec<ExportTraceServiceRequest> {
        self.0.lock().unwrap().clone()
    }

    fn spans(&self) -> Vec<Span> {
        let resources = self
            .exports()
            .into_iter()
            .flat_map(|export| export.resource_spans);
        let scopes = resources.flat_map(|export| export.scope_spans);
        scopes.flat_map(|export| export.spans).collect()
    }
}

/// A collector that stops when this value is dropped.
struct Collector {
    received: ReceivedExports,
    address: SocketAddr,
    _runtime: Runtime,
}

impl Collector {
    fn start() -> Self {
        Self::start_on(bound_socket(), None)
    }

    fn start_on(socket: TcpSocket, ca: Option<&Ca>) -> Self {
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(async { socket.listen(128) }).unwrap();
        let address = listener.local_addr().unwrap();
        let received = ReceivedExports::default();
        let mut server = tonic::transport::Server::builder();
        if let Some(ca) = ca {
            server = server
                .tls_config(ca.server().to_tonic().client_auth_optional(true))
                .unwrap();
        }
        let router = server.add_service(TraceServiceServer::new(received.clone()));
        let incoming = TcpListenerStream::new(listener);
        runtime.spawn(async { router.serve_with_incoming(incoming).await.unwrap() });
        Self {
            received,
            address,
            _runtime: runtime,
        }
    }
}

/// A socket with a reserved port, which does not listen yet.
fn bound_socket() -> TcpSocket {
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

fn controller_with_traces(address: SocketAddr) -> TestController {
    TestController::new_with_traces(Arc::new(Ca::new()), options("http", address, None))
}

/// Reads a counter of a controller.
fn counter(controller: &TestController, name: &str) -> u64 {
    let address = format!("http://{}/metrics", controller.metrics);
    let page = controller
        .runtime
        .block_on(async { reqwest::get(address).await.unwrap().text().await.unwrap() });
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("{page}")).parse().unwrap()
}

/// Sends requests until the condition is true.
fn request_until(caller: &ApiClient<'_>, description: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {TIMEOUT:?}: {description}");
        caller.get("/api/v1/status").ok();
    }
}

fn attributes(key_values: &[KeyValue]) -> BTreeMap<String, Value> {
    let value = |attribute: &KeyValue| match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Any::StringValue(text)) => json!(text),
        Some(Any::IntValue(number)) => json!(number),
        other => panic!("{other:?}"),
    };
    key_values
        .iter()
        .map(|attribute| (attribute.key.clone(), value(attribute)))
        .collect()
}

fn expected_attributes(attributes: Value) -> BTreeMap<String, Value> {
    serde_json::from_value(attributes).unwrap()
}

#[track_caller]
fn span_named<'s>(spans: &'s [Span], name: &str) -> &'s Span {
    let names = || spans.iter().map(|span| &span.name).collect::<Vec<_>>();
    let found = spans.iter().find(|span| span.name == name);
    found.unwrap_or_else(|| panic!("no {name} among {:?}", names()))
}

/// A word in names, reasons, queries, paths and headers of the test. The exported traces must not contain this word.
const WORD: &str = "pump-in-hall-7";
/// Trace id in a request of an API client.
const CLIENT_TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";

#[test]
fn traces_contain_names_but_no_content_of_requests() {
    let collector = Collector::start();
    let mut controller = controller_with_traces(collector.address);
    let ada = controller.caller("ada", Role::Admin);
    let token = ada.token.clone().unwrap();
    let key = "1f".repeat(16);
    let device = json!({"id": "d1", "name": WORD, "credentials": {"key": key}, "reason": WORD});
    ada.post("/api/v1/devices", &device).ok();
    let device_read = ada
        .request(Method::GET, "/api/v1/devices/d1")
        .header("traceparent", format!("00-{CLIENT_TRACE_ID}-b7ad6b7169203331-01"))
        .header("X-Anything", WORD);
    ada.send(device_read).ok();
    ada.get(&format!("/api/v1/devices?name_prefix={WORD}")).ok();
    ada.get(&format!("/api/v1/{WORD}")).refused(404, "unknown_path");
    let method = Method::from_bytes(WORD.as_bytes()).unwrap();
    ada.send(ada.request(method, "/api/v1/status"))
        .refused(405, "method_not_allowed");
    let login = ada
        .request(Method::POST, "/api/v1/login")
        .json(&json!({"token": token}));
    let cookie = controller.runtime.block_on(async {
        let response = login.send().await.unwrap();
        let cookie = response.headers()["set-cookie"].to_str().unwrap().to_owned();
        let (_, value) = cookie.split_once('=').unwrap();
        value.split(';').next().unwrap().to_owned()
    });
    assert!(cookie.len() > 32, "{cookie}");
    let [older, newer] = [(); 2].map(|()| controller.link(GatewayId(3), &[]));
    let run = &controller.runtime;
    assert_eq!(
        (run.block_on(older.register()), run.block_on(newer.register())),
        (Ok(1), Ok(2))
    );
    run.block_on(newer.call(2, &ReportStatus(StatusReport::default())))
        .unwrap();
    let error = run
        .block_on(older.call(1, &ReportStatus(StatusReport::default())))
        .unwrap_err();
    assert!(matches!(error, LinkError::Replaced(_)), "{error:?}");
    drop((ada, older, newer));
    // Queued spans are exported at shutdown.
    controller.stop();

    let spans = collector.received.spans();
    let device_read = span_named(&spans, "GET /api/v1/devices/{id}");
    assert_eq!(
        attributes(&device_read.attributes),
        expected_attributes(json!({
            "http.request.method": "GET",
            "http.route": "/api/v1/devices/{id}",
            "http.response.status_code": 200,
        }))
    );
    assert!(
        device_read.parent_span_id.is_empty(),
        "the client's trace context is ignored"
    );
    assert_ne!(device_read.trace_id, hex(CLIENT_TRACE_ID));
    let enrollment_span = span_named(&spans, "POST /api/v1/devices");
    let transactions: Vec<_> = spans
        .iter()
        .filter(|span| span.parent_span_id == enrollment_span.span_id)
        .collect();
    assert!(
        transactions.len() > 2,
        "one transaction each for the idempotency key, the device and the response: {}",
        transactions.len()
    );
    for transaction in transactions {
        assert_eq!(transaction.name, "registry transaction");
        assert_eq!(transaction.trace_id, enrollment_span.trace_id);
        let events: Vec<_> = transaction.events.iter().map(|event| &*event.name).collect();
        assert_eq!(events, ["begun", "committed"]);
    }
    assert_eq!(
        attributes(&span_named(&spans, "GET").attributes),
        expected_attributes(json!({"http.request.method": "GET", "http.response.status_code": 404}))
    );
    assert_eq!(
        attributes(&span_named(&spans, "_OTHER /api/v1/status").attributes)["http.request.method"],
        "_OTHER"
    );
    span_named(&spans, "POST /api/v1/login");
    let assert_call_is_exported = |method: &str, code: i32| {
        let name = format!("linewarden.link.v1.Link/{method}");
        let expected = expected_attributes(json!({
            "rpc.system": "grpc",
            "rpc.service": "linewarden.link.v1.Link",
            "rpc.method": method,
            "rpc.grpc.status_code": code,
            "linewarden.gateway.id": 3,
        }));
        let is_expected = |span: &&Span| span.name == name && attributes(&span.attributes) == expected;
        assert!(
            spans.iter().any(|span| is_expected(&span)),
            "{method} {code}: {spans:#?}"
        );
    };
    assert_call_is_exported("Register", 0);
    assert_call_is_exported("ReportStatus", 0);
    assert_call_is_exported("ReportStatus", tonic::Code::FailedPrecondition.into());

    for request in collector.received.exports() {
        for resource in &request.resource_spans {
            let resource = resource.resource.as_ref().unwrap();
            assert_eq!(
                attributes(&resource.attributes),
                expected_attributes(json!({
                    "service.name": "linewarden-controller",
                    "service.instance.id": "ctl-a",
                    "service.version": env!("CARGO_PKG_VERSION"),
                }))
            );
        }
        let encoded = request.encode_to_vec();
        let has = |secret: &str| {
            encoded
                .windows(secret.len())
                .any(|window| window == secret.as_bytes())
        };
        assert!(has("linewarden-controller"), "the service name is exported");
        for secret in [&*token, &cookie, &key, WORD, "ada", "lw_", "00d1", "/d1"] {
            assert!(!has(secret), "{secret} was exported: {request:#?}");
        }
    }
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.as_bytes().chunks(2).collect();
    let byte = |digits: &&[u8]| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap();
    digits.iter().map(byte).collect()
}

#[test]
fn a_collector_is_trusted_only_with_its_ca() {
    let ca = Arc::new(Ca::new());
    let collector = Collector::start_on(bound_socket(), Some(&ca));
    let options_with_ca = |ca: &Ca| {
        let tls = ClientTls::new(ca.pem()).unwrap().with_domain(NAME).unwrap();
        options("https", collector.address, Some(tls))
    };
    let options_with_foreign_ca = options_with_ca(&Ca::new());
    let controller = TestController::new_with_traces(Arc::clone(&ca), options_with_foreign_ca);
    request_until(
        &controller.caller("vera", Role::Viewer),
        "spans are dropped",
        || counter(&controller, "linewarden_trace_spans_dropped_total") > 0,
    );
    assert_eq!(counter(&controller, "linewarden_trace_spans_exported_total"), 0);
    drop(controller);
    assert!(collector.received.exports().is_empty());

    let mut controller = TestController::new_with_traces(Arc::clone(&ca), options_with_ca(&ca));
    controller.caller("vera", Role::Viewer).get("/api/v1/status").ok();
    controller.stop();
    span_named(&collector.received.spans(), "GET /api/v1/status");
}

#[test]
fn with_a_sample_rate_of_zero_no_trace_is_exported() {
    let collector = Collector::start();
    let mut without_samples = options("http", collector.address, None);
    without_samples.sample = 0.0;
    let mut controller = TestController::new_with_traces(Arc::new(Ca::new()), without_samples);
    controller.caller("vera", Role::Viewer).get("/api/v1/status").ok();
    controller.stop();
    assert!(collector.received.exports().is_empty());
}

/// A collector that accepts the connection and never responds: requests are served, and shutdown completes.
#[test]
fn an_unresponsive_collector_delays_no_request() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let connection = std::thread::spawn(move || {
        let accepted = listener.incoming().next().unwrap();
        accepted.unwrap()
    });
    let mut controller = controller_with_traces(address);
    request_until(
        &controller.caller("vera", Role::Viewer),
        "spans are dropped",
        || counter(&controller, "linewarden_trace_spans_dropped_total") > 0,
    );
    assert_eq!(
        controller
            .runtime
            .block_on(controller.link(GatewayId(3), &[]).register()),
        Ok(1)
    );
    let service = controller.service.take().unwrap();
    let shutdown = async { tokio::time::timeout(TIMEOUT, service.stop()).await };
    controller.runtime.block_on(shutdown).unwrap();
    drop(connection.join().unwrap());
}

#[test]
fn a_collector_that_starts_late_receives_later_spans() {
    let socket = bound_socket();
    let controller = controller_with_traces(socket.local_addr().unwrap());
    let vera = controller.caller("vera", Role::Viewer);
    request_until(&vera, "spans are dropped", || {
        counter(&controller, "linewarden_trace_spans_dropped_total") > 0
    });
    let collector = Collector::start_on(socket, None);
    request_until(&vera, "spans are exported", || {
        counter(&controller, "linewarden_trace_spans_exported_total") > 0
    });
    assert!(!collector.received.exports().is_empty());
}
