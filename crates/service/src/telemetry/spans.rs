//! What is told of a question: how it is called, never what is in it.

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt as _;
use linewarden_link::PeerGateway;
use linewarden_registry::{Watch, Watched};
use opentelemetry::trace::{
    FutureExt as _, Span as _, SpanBuilder, SpanKind, Status, TraceContextExt as _, Tracer as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, Span};
use tonic::Code;

/// What has no name here, in OpenTelemetry's word for it.
const OTHER: &str = "_OTHER";
/// Header and trailer of gRPC's own status.
const GRPC_STATUS: &str = "grpc-status";
/// The service that gateways ask.
const RPC_SERVICE: &str = "linewarden.link.v1.Link";

/// A span that is nobody's child: whose traces ours would be parts of is not for whoever asks to say.
fn root(tracer: &SdkTracer, name: String, attributes: Vec<KeyValue>) -> Context {
    let span = SpanBuilder::from_name(name)
        .with_kind(SpanKind::Server)
        .with_attributes(attributes);
    Context::new().with_span(tracer.build_with_context(span, &Context::new()))
}

/// Makes a span of a question to the API, until its answer begins.
pub(crate) async fn of_api(
    State(tracer): State<SdkTracer>,
    path: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Response {
    let method = method(request.method());
    let mut attributes = vec![KeyValue::new("http.request.method", method)];
    // The route as it is written here, with names for what differs; none where there is no such path.
    let route = path.filter(|path| !path.as_str().contains("__private"));
    let name = match &route {
        Some(route) => format!("{method} {}", route.as_str()),
        None => method.to_owned(),
    };
    attributes.extend(route.map(|route| KeyValue::new("http.route", route.as_str().to_owned())));
    let context = root(&tracer, name, attributes);
    let answer = next.run(request).with_context(context.clone()).await;
    let status = answer.status();
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
    answer
}

/// Anybody may call theirs as they like.
fn method(method: &Method) -> &'static str {
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

/// Makes a span of a gateway's question, until its answer ends.
pub(crate) async fn of_gateway(State(tracer): State<SdkTracer>, request: Request, next: Next) -> Response {
    let mut attributes = vec![
        KeyValue::new("rpc.system", "grpc"),
        KeyValue::new("rpc.service", RPC_SERVICE),
    ];
    let gateway = request.extensions().get::<PeerGateway>();
    attributes.extend(gateway.map(|gateway| KeyValue::new("linewarden.gateway.id", i64::from(gateway.0.0))));
    let question = request.uri().path().rsplit('/').next();
    let question = Question {
        name: question.unwrap_or_default().to_owned(),
        context: root(&tracer, RPC_SERVICE.to_owned(), attributes),
    };
    let answer = next.run(request).with_context(question.context.clone()).await;
    if let Some(code) = code_in(answer.headers()) {
        question.answered(code);
        return answer;
    }
    answer.map(|body| {
        Body::new(body.map_frame(move |frame| {
            if let Some(code) = frame.trailers_ref().and_then(code_in) {
                question.answered(code);
            }
            frame
        }))
    })
}

fn code_in(headers: &HeaderMap) -> Option<Code> {
    headers
        .get(GRPC_STATUS)
        .map(|code| Code::from_bytes(code.as_bytes()))
}

/// A question of a gateway; its span ends with it.
struct Question {
    name: String,
    context: Context,
}

impl Question {
    fn answered(&self, code: Code) {
        // What there is not may be called as the gateway likes.
        let name = match code {
            Code::Unimplemented => OTHER,
            _ => &self.name,
        };
        let span = self.context.span();
        span.update_name(format!("{RPC_SERVICE}/{name}"));
        span.set_attribute(KeyValue::new("rpc.method", name.to_owned()));
        span.set_attribute(KeyValue::new("rpc.grpc.status_code", i64::from(i32::from(code))));
        // What the gateway has done wrong is none of ours.
        let is_ours = matches!(
            code,
            Code::Unknown
                | Code::DeadlineExceeded
                | Code::Unimplemented
                | Code::Internal
                | Code::Unavailable
                | Code::DataLoss
        );
        if is_ours {
            span.set_status(Status::error(""));
        }
        span.end();
    }
}

/// Makes spans of the registry's transactions, within those of questions.
pub(crate) struct Transactions(pub(crate) SdkTracer);

impl Watch for Transactions {
    fn wanted(&self) -> Option<Box<dyn Watched>> {
        let context = Context::current();
        if !context.span().is_recording() {
            return None;
        }
        let span = SpanBuilder::from_name("registry transaction").with_kind(SpanKind::Internal);
        Some(Box::new(Transaction(self.0.build_with_context(span, &context))))
    }
}

/// A transaction; its span ends with it.
struct Transaction(Span);

impl Watched for Transaction {
    fn begun(&mut self) {
        self.0.add_event("begun", Vec::new());
    }

    fn committed(&mut self) {
        self.0.add_event("committed", Vec::new());
    }
}
