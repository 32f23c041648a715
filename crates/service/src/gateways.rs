//! The gRPC interface for gateways: authentication, and limits on message size and rate.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use linewarden_controller::MachineEnvironment;
use linewarden_link::{LIMITED, MESSAGE_BYTES_MAX, PeerGateway, SHORT_MESSAGE_BYTES_MAX};
use linewarden_protocol::ids::GatewayId;
use tokio::sync::Semaphore;
use tonic::{Code, Status};

use crate::fleet::FleetSink;
use crate::limits::Limits;
use crate::link::{Server, denial_status};
use crate::permits::{KeyedPermits, hold_until_sent};
use crate::state::App;
use crate::telemetry;

/// Route pattern for all methods of the gRPC service.
const METHOD_ROUTE: &str = "/linewarden.link.v1.Link/{method}";
const REGISTER_ROUTE: &str = "/linewarden.link.v1.Link/Register";
/// Methods with large messages: evidence with the inventory of a data plane, and a round with the results of all provers.
const LARGE_METHOD_ROUTES: [&str; 2] = [
    "/linewarden.link.v1.Link/SubmitEvidence",
    "/linewarden.link.v1.Link/AppraiseRound",
];
/// Maximum number of concurrent large requests of one gateway (one of each method) and of all gateways. These limits
/// bound the memory.
const LARGE_REQUESTS_PER_GATEWAY_MAX: usize = 2;
const LARGE_REQUESTS_MAX: usize = 16;
/// Maximum number of concurrent requests of one gateway in all its connections: enough for two requests of each method.
/// A request takes at most 14 MiB of memory, so that all requests of a gateway take at most half a GiB.
const REQUESTS_PER_GATEWAY_MAX: usize = 32;
/// Maximum time from the start of a request to its response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Routes for gateways.
pub(crate) fn router(app: &App) -> Router {
    // Separate connections for reading, so that API requests do not delay requests of gateways.
    let sink = FleetSink {
        fleet: Arc::clone(&app.fleet),
        registry: app.registry.with_separate_reader(),
    };
    let server = Server::new(
        app.controller.with_separate_reader(),
        MachineEnvironment::new(),
        sink,
    );
    let short_message_service = server.clone().into_service(SHORT_MESSAGE_BYTES_MAX);
    let large_message_service = server.into_service(MESSAGE_BYTES_MAX);
    let permits = LargeRequestPermits {
        per_gateway: KeyedPermits::new(LARGE_REQUESTS_PER_GATEWAY_MAX),
        total: Arc::new(Semaphore::new(LARGE_REQUESTS_MAX)),
    };
    let large_routes = LARGE_METHOD_ROUTES
        .iter()
        .fold(Router::new(), |router, path| {
            router.route_service(path, large_message_service.clone())
        })
        .layer(middleware::from_fn_with_state(permits, limit_large_requests));
    let routes = Router::new()
        .route_service(METHOD_ROUTE, short_message_service)
        .merge(large_routes)
        .layer(middleware::from_fn(with_timeout));
    let routes = match &app.tracer {
        Some(tracer) => routes.layer(middleware::from_fn_with_state(
            tracer.clone(),
            telemetry::trace_gateway_request,
        )),
        None => routes,
    };
    let gateway_limits = GatewayLimits {
        limits: app.limits.clone(),
        requests: KeyedPermits::new(REQUESTS_PER_GATEWAY_MAX),
    };
    routes.layer(middleware::from_fn_with_state(gateway_limits, gateways_only))
}

/// Limits of the rate and of the number of concurrent requests, per gateway.
#[derive(Clone)]
struct GatewayLimits {
    limits: Limits,
    requests: KeyedPermits<GatewayId>,
}

/// Refuses requests without a gateway certificate and requests that exceed a limit, before their body is read.
async fn gateways_only(State(limits): State<GatewayLimits>, request: Request, next: Next) -> Response {
    let Some(gateway) = peer_gateway(&request) else {
        return Status::unauthenticated(
            "certificate names no gateway: expected one urn:linewarden:gateway:N",
        )
        .into_http();
    };
    if request.uri().path() == REGISTER_ROUTE && !limits.limits.allow_registration(gateway) {
        return limited("too many registrations; retry in a few seconds");
    }
    let Some(permit) = limits.requests.take(gateway) else {
        return limited("too many concurrent requests");
    };
    hold_until_sent(next.run(request).await, permit)
}

/// Refuses a request before it is processed, because of a limit of this gateway.
fn limited(message: &str) -> Response {
    denial_status(Code::ResourceExhausted, message.to_owned(), LIMITED).into_http()
}

async fn with_timeout(request: Request, next: Next) -> Response {
    match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Status::deadline_exceeded("no response within a minute").into_http(),
    }
}

/// Permits for large requests.
#[derive(Clone)]
struct LargeRequestPermits {
    per_gateway: KeyedPermits<GatewayId>,
    total: Arc<Semaphore>,
}

async fn limit_large_requests(
    State(permits): State<LargeRequestPermits>,
    request: Request,
    next: Next,
) -> Response {
    let permit = peer_gateway(&request).and_then(|gateway| permits.per_gateway.take(gateway));
    let Some(_permit) = permit else {
        return limited("too many concurrent large requests");
    };
    // The semaphore is never closed.
    let _global_permit = permits.total.acquire().await;
    next.run(request).await
}

fn peer_gateway(request: &Request) -> Option<GatewayId> {
    let PeerGateway(gateway) = request.extensions().get::<PeerGateway>()?;
    Some(*gateway)
}
