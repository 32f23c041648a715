//! Where gateways ask, over gRPC: who is let in, with how long a message and how often.

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

use crate::clock::Machine;
use crate::fleet::Sink;
use crate::limits::Limits;
use crate::shares::{Shares, until_sent};
use crate::state::App;
use crate::telemetry;

/// The service's name, and what of it.
const QUESTION: &str = "/linewarden.link.v1.Link/{question}";
const ENTER: &str = "/linewarden.link.v1.Link/Enter";
/// Those that may be long: what a data plane runs, entry by entry, and a round over all provers.
const LONG_QUESTIONS: [&str; 2] = [
    "/linewarden.link.v1.Link/Show",
    "/linewarden.link.v1.Link/Appraise",
];
/// Long questions of one gateway at once, one of each kind, and of all: so much memory at most.
const LONG_OF_GATEWAY_MAX: usize = 2;
const LONG_MAX: usize = 16;
/// Questions of one gateway at once, over all its connections: twice as many as there are kinds. Of 14 MiB each, where all are made to
/// take memory, they take half a GiB.
const QUESTIONS_OF_GATEWAY_MAX: usize = 32;
/// From when a question begins to come until its answer goes out.
const QUESTION_MAX: Duration = Duration::from_secs(60);

/// Serves gateways.
pub(crate) fn router(app: &App) -> Router {
    // Nobody who asks the API keeps a gateway from the registry.
    let sink = Sink {
        fleet: Arc::clone(&app.fleet),
        registry: app.registry.apart(),
    };
    let server = Server::new(app.controller.apart(), Machine::new(), sink);
    let short = server.clone().into_service(SHORT_MESSAGE_BYTES_MAX);
    let long = server.into_service(MESSAGE_BYTES_MAX);
    let places = LongPlaces {
        of_gateways: Shares::new(LONG_OF_GATEWAY_MAX),
        all: Arc::new(Semaphore::new(LONG_MAX)),
    };
    let long = LONG_QUESTIONS
        .iter()
        .fold(Router::new(), |router, path| {
            router.route_service(path, long.clone())
        })
        .layer(middleware::from_fn_with_state(places, take_a_place));
    let known = Router::new()
        .route_service(QUESTION, short)
        .merge(long)
        .layer(middleware::from_fn(within_time));
    let known = match &app.tracer {
        Some(tracer) => known.layer(middleware::from_fn_with_state(
            tracer.clone(),
            telemetry::of_gateway,
        )),
        None => known,
    };
    let turns = Turns {
        limits: app.limits.clone(),
        of_gateways: Shares::new(QUESTIONS_OF_GATEWAY_MAX),
    };
    known.layer(middleware::from_fn_with_state(turns, gateways_only))
}

/// How often gateways may ask.
#[derive(Clone)]
struct Turns {
    limits: Limits,
    of_gateways: Shares<GatewayId>,
}

/// Turns away who has no gateway's certificate before anything that it sends is read, and who asks for more than its due.
async fn gateways_only(State(turns): State<Turns>, request: Request, next: Next) -> Response {
    let Some(gateway) = asker(&request) else {
        return Status::unauthenticated(
            "this certificate is no gateway's: it names no urn:linewarden:gateway:N",
        )
        .into_http();
    };
    if request.uri().path() == ENTER && !turns.limits.may_register(gateway) {
        return Status::resource_exhausted("registered too often: wait a few seconds").into_http();
    }
    let Some(turn) = turns.of_gateways.take(gateway) else {
        return Status::resource_exhausted("too many questions at once").into_http();
    };
    until_sent(next.run(request).await, turn)
}

async fn within_time(request: Request, next: Next) -> Response {
    match tokio::time::timeout(QUESTION_MAX, next.run(request)).await {
        Ok(answer) => answer,
        Err(_) => Status::deadline_exceeded("no answer within a minute").into_http(),
    }
}

/// Memory for long messages.
#[derive(Clone)]
struct LongPlaces {
    of_gateways: Shares<GatewayId>,
    all: Arc<Semaphore>,
}

async fn take_a_place(State(places): State<LongPlaces>, request: Request, next: Next) -> Response {
    let share = asker(&request).and_then(|gateway| places.of_gateways.take(gateway));
    let Some(_share) = share else {
        return Status::resource_exhausted("too many long questions at once").into_http();
    };
    // It is never closed.
    let _place = places.all.acquire().await;
    next.run(request).await
}

fn asker(request: &Request) -> Option<GatewayId> {
    let PeerGateway(gateway) = request.extensions().get::<PeerGateway>()?;
    Some(*gateway)
}
