//! The gRPC interface for gateways: authentication, and limits on message size and rate.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use linewarden_link::{MESSAGE_BYTES_MAX, PeerGateway, SHORT_MESSAGE_BYTES_MAX, Server};
use linewarden_protocol::ids::GatewayId;
use tokio::sync::Semaphore;
use tonic::Status;

use crate::clock::MachineClock;
use crate::fleet::FleetSink;
use crate::limits::Limits;
use crate::permits::{KeyedPermits, hold_until_sent};
use crate::state::App;
use crate::telemetry;

/// Routes of the gRPC service.
const METHOD_ROUTE: &str = "/linewarden.link.v1.Link/{method}";
const REGISTER_ROUTE: &str = "/linewarden.link.v1.Link/Register";
/// Methods with large messages: the entries of a data plane, and a round over all provers.
const LARGE_METHOD_ROUTES: [&str; 2] = [
    "/linewarden.link.v1.Link/SubmitEvidence",
    "/linewarden.link.v1.Link/AppraiseRound",
];
/// Largest number of concurrent large requests, of one gateway (one of each method) and of all. This bounds memory.
const LARGE_REQUESTS_PER_GATEWAY_MAX: usize = 2;
const LARGE_REQUESTS_MAX: usize = 16;
/// Largest number of concurrent requests of one gateway over all its connections: two of each method. If all take as
/// much memory as they can, 14 MiB each, they take half a GiB.
const REQUESTS_PER_GATEWAY_MAX: usize = 32;
/// Longest time from the start of a request to its response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Routes for gateways.
pub(crate) fn router(app: &App) -> Router {
    // A separate reader, so that API requests do not delay gateways.
    let sink = FleetSink {
        fleet: Arc::clone(&app.fleet),
        registry: app.registry.with_separate_reader(),
    };
    let server = Server::new(app.controller.with_separate_reader(), MachineClock::new(), sink);
    let short = server.clone().into_service(SHORT_MESSAGE_BYTES_MAX);
    let long = server.into_service(MESSAGE_BYTES_MAX);
    let permits = LargeRequestPermits {
        of_gateways: KeyedPermits::new(LARGE_REQUESTS_PER_GATEWAY_MAX),
        all: Arc::new(Semaphore::new(LARGE_REQUESTS_MAX)),
    };
    let long = LARGE_METHOD_ROUTES
        .iter()
        .fold(Router::new(), |router, path| {
            router.route_service(path, long.clone())
        })
        .layer(middleware::from_fn_with_state(permits, limit_large_requests));
    let known = Router::new()
        .route_service(METHOD_ROUTE, short)
        .merge(long)
        .layer(middleware::from_fn(with_timeout));
    let known = match &app.tracer {
        Some(tracer) => known.layer(middleware::from_fn_with_state(
            tracer.clone(),
            telemetry::trace_gateway_request,
        )),
        None => known,
    };
    let gateway_limits = GatewayLimits {
        limits: app.limits.clone(),
        requests: KeyedPermits::new(REQUESTS_PER_GATEWAY_MAX),
    };
    known.layer(middleware::from_fn_with_state(gateway_limits, gateways_only))
}

/// Rate limits of gateways.
#[derive(Clone)]
struct GatewayLimits {
    limits: Limits,
    requests: KeyedPermits<GatewayId>,
}

/// Refuses requests without a gateway certificate, and those over a limit, before their body is read.
async fn gateways_only(State(limits): State<GatewayLimits>, request: Request, next: Next) -> Response {
    let Some(gateway) = peer_gateway(&request) else {
        return Status::unauthenticated(
            "certificate names no gateway: expected one urn:linewarden:gateway:N",
        )
        .into_http();
    };
    if request.uri().path() == REGISTER_ROUTE && !limits.limits.allow_registration(gateway) {
        return Status::resource_exhausted("too many registrations; retry in a few seconds").into_http();
    }
    let Some(permit) = limits.requests.take(gateway) else {
        return Status::resource_exhausted("too many concurrent requests").into_http();
    };
    hold_until_sent(next.run(request).await, permit)
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
    of_gateways: KeyedPermits<GatewayId>,
    all: Arc<Semaphore>,
}

async fn limit_large_requests(
    State(permits): State<LargeRequestPermits>,
    request: Request,
    next: Next,
) -> Response {
    let permit = peer_gateway(&request).and_then(|gateway| permits.of_gateways.take(gateway));
    let Some(_permit) = permit else {
        return Status::resource_exhausted("too many concurrent large requests").into_http();
    };
    // The semaphore is never closed.
    let _global_permit = permits.all.acquire().await;
    next.run(request).await
}

fn peer_gateway(request: &Request) -> Option<GatewayId> {
    let PeerGateway(gateway) = request.extensions().get::<PeerGateway>()?;
    Some(*gateway)
}
