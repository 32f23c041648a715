//! Spans of requests. A span has the route or method of a request, never its content.

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt as _;
use linewarden_link::PeerGateway;
use linewarden_registry::{TransactionMonitor, TransactionObserver};
use opentelemetry::trace::{
    FutureExt as _, Span as _, SpanBuilder, SpanKind, Status, TraceContextExt as _, Tracer as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, Span};
use tonic::Code;

/// OpenTelemetry's value for unknown methods.
const OTHER: &str = "_OTHER";
/// gRPC status header and trailer.
const GRPC_STATUS: &str = "grpc-status";
/// The gRPC service of gateways.
const RPC_SERVICE: &str = "linewarden.link.v1.Link";

/// Starts a root span. Trace contexts in requests are ignored, because clients must not attach spans to other traces.
fn root_context(tracer: &SdkTracer, name: String, attributes: Vec<KeyValue>) -> Context {
    let span = SpanBuilder::from_name(name)
        .with_kind(SpanKind::Server)
        .with_attributes(attributes);
    Context::new().with_span(tracer.build_with_context(span, &Context::new()))
}

/// Records a span of an API request. The span ends when the response begins.
pub(crate) async fn trace_api_request(
    State(tracer): State<SdkTracer>,
    path: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Response {
    let method = method_name(request.method());
    let mut attributes = vec![KeyValue::new("http.request.method", method)];
    // The route template; `None` for an unknown path, for which axum reports an internal route.
    let route = path.filter(|path| !path.as_str().contains("__private"));
    let name = match &route {
        Some(route) => format!("{method} {}", route.as_str()),
        None => method.to_owned(),
    };
    attributes.extend(route.map(|route| KeyValue::new("http.route", route.as_str().to_owned())));
    let context = root_context(&tracer, name, attributes);
    let response = next.run(request).with_context(context.clone()).await;
    let status = response.status();
    let span = context.span();
    span.set_attribute(KeyValue::new(
        "http.response.status_code",
        i64::from(status.as_u16()),
    ));
    if status.is_server_error() {
        span.set_attribute(KeyValue::new("error.type", status.as_str().to_owned()));
        span.set_status(Status::error(""));
    }
    span.end();
    response
}

/// The method, or [`OTHER`]: clients may send any name.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => OTHER,
    }
}

/// Records a span of a gateway request. The span ends when the response ends.
pub(crate) async fn trace_gateway_request(
    State(tracer): State<SdkTracer>,
    request: Request,
    next: Next,
) -> Response {
    let mut attributes = vec![
        KeyValue::new("rpc.system", "grpc"),
        KeyValue::new("rpc.service", RPC_SERVICE),
    ];
    let gateway = request.extensions().get::<PeerGateway>();
    attributes.extend(gateway.map(|gateway| KeyValue::new("linewarden.gateway.id", i64::from(gateway.0.0))));
    let method = request.uri().path().rsplit('/').next();
    let traced_request = GatewayRequest {
        name: method.unwrap_or_default().to_owned(),
        context: root_context(&tracer, RPC_SERVICE.to_owned(), attributes),
    };
    let response = next
        .run(request)
        .with_context(traced_request.context.clone())
        .await;
    if let Some(code) = grpc_code(response.headers()) {
        traced_request.finish(code);
        return response;
    }
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            if let Some(code) = frame.trailers_ref().and_then(grpc_code) {
                traced_request.finish(code);
            }
            frame
        }))
    })
}

fn grpc_code(headers: &HeaderMap) -> Option<Code> {
    headers
        .get(GRPC_STATUS)
        .map(|code| Code::from_bytes(code.as_bytes()))
}

/// A gateway request, with its span.
struct GatewayRequest {
    name: String,
    context: Context,
}

impl GatewayRequest {
    fn finish(&self, code: Code) {
        // The name of an unimplemented method is not recorded, because a client may send any name.
        let name = match code {
            Code::Unimplemented => OTHER,
            _ => &self.name,
        };
        let span = self.context.span();
        span.update_name(format!("{RPC_SERVICE}/{name}"));
        span.set_attribute(KeyValue::new("rpc.method", name.to_owned()));
        span.set_attribute(KeyValue::new("rpc.grpc.status_code", i64::from(i32::from(code))));
        // Errors that the gateway has caused are not errors of the server.
        let is_server_error = matches!(
            code,
            Code::Unknown
                | Code::DeadlineExceeded
                | Code::Unimplemented
                | Code::Internal
                | Code::Unavailable
                | Code::DataLoss
        );
        if is_server_error {
            span.set_status(Status::error(""));
        }
        span.end();
    }
}

/// Records spans of registry transactions as children of request spans.
pub(crate) struct TransactionTracer(pub(crate) SdkTracer);

impl TransactionMonitor for TransactionTracer {
    fn observer(&self) -> Option<Box<dyn TransactionObserver>> {
        let context = Context::current();
        if !context.span().is_recording() {
            return None;
        }
        let span = SpanBuilder::from_name("registry transaction").with_kind(SpanKind::Internal);
        Some(Box::new(TracedTransaction(
            self.0.build_with_context(span, &context),
        )))
    }
}

/// A transaction, with its span.
struct TracedTransaction(Span);

impl TransactionObserver for TracedTransaction {
    fn started(&mut self) {
        self.0.add_event("begun", Vec::new());
    }

    fn committed(&mut self) {
        self.0.add_event("committed", Vec::new());
    }
}
