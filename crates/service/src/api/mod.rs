//! The HTTP API, version 1: routes and OpenAPI description.

mod audit;
mod details;
mod devices;
mod events;
mod gateways;
mod groups;
mod import;
mod lists;
mod login;
mod openapi;
mod pairs;
mod results;
mod signers;
mod status;
mod users;

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{Method, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use utoipa::OpenApi;

use self::openapi::{Conventions, Parameters, described_parameters, refuse_unknown_parameters};
pub(crate) use self::results::round_from_record;
pub(crate) use self::status::{DeviceCountsCache, counts, status_event};
use crate::auth::authenticate;
use crate::error::{ApiError, log_failure};
use crate::extract::refuse_null;
use crate::idempotency::idempotent;
use crate::state::App;
use crate::{dashboard, health, reference_limits, telemetry};

/// Conversions between devices of a registry, of the API and of export files.
pub mod convert {
    pub use super::devices::{device_line, new_device_from_record};
}

/// Maximum duration of a request that is not a stream.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum size of the body of an unauthenticated request, bytes.
const LOGIN_BYTES_MAX: usize = 4096;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Linewarden controller",
        description = "Devices, gateways, attestation and events. Device ids are 16 hexadecimal digits; times are seconds (`_s`) or \
                       milliseconds (`_ms`) since 1970-01-01 UTC."
    ),
    modifiers(&Conventions),
    paths(
        login::login,
        login::logout,
        login::me,
        devices::list,
        details::show,
        devices::enroll,
        devices::revoke,
        devices::quarantine,
        devices::release,
        devices::revoke_all,
        pairs::list,
        pairs::add,
        pairs::remove,
        import::import,
        gateways::list,
        gateways::show,
        gateways::evidence,
        gateways::create,
        gateways::revoke,
        results::rounds,
        results::results,
        results::signed,
        results::result,
        groups::list,
        groups::show,
        groups::set,
        groups::remove,
        groups::begin_roll_out,
        groups::approve_roll_out,
        groups::remove_roll_out,
        groups::request_round,
        signers::list,
        signers::revoked,
        signers::add,
        signers::revoke,
        status::status,
        events::stream,
        events::history,
        audit::list,
        users::list,
        users::add,
        users::remove,
    )
)]
struct Api;

/// The OpenAPI description of the API.
#[must_use]
pub fn openapi() -> String {
    Api::openapi().to_pretty_json().unwrap_or_default()
}

/// Serves the OpenAPI description. The description is generated only once, because clients need no authentication and
/// could otherwise cause load.
async fn openapi_document() -> impl IntoResponse {
    static TEXT: LazyLock<String> = LazyLock::new(|| Api::openapi().to_json().unwrap_or_default());
    ([(header::CONTENT_TYPE, "application/json")], TEXT.as_str())
}

fn query_parameters() -> &'static Parameters {
    static PARAMETERS: LazyLock<Parameters> = LazyLock::new(|| described_parameters(Api::openapi()));
    &PARAMETERS
}

/// The routes without a time limit. They do not use the middleware `idempotent`, because the body of an import may be larger
/// than that middleware permits, and an event stream changes nothing.
fn streams() -> Router<App> {
    Router::new()
        .route("/events", get(events::stream))
        .route("/devices/import", post(import::import))
}

/// The routes with a reference value in the body.
fn uploads() -> Router<App> {
    Router::new()
        .route("/groups/{name}", put(groups::set))
        .route("/groups/{name}/roll-out", post(groups::begin_roll_out))
        .layer(DefaultBodyLimit::max(reference_limits::BODY_BYTES_MAX))
}

/// The routes of the resources.
fn resources() -> Router<App> {
    Router::new()
        .route("/me", get(login::me))
        .route("/devices", get(devices::list).post(devices::enroll))
        .route("/devices/revoke", post(devices::revoke_all))
        .route("/devices/{id}", get(details::show))
        .route("/devices/{id}/revoke", post(devices::revoke))
        .route("/devices/{id}/quarantine", post(devices::quarantine))
        .route("/devices/{id}/release", post(devices::release))
        .route("/devices/{id}/pairs", get(pairs::list))
        .route(
            "/devices/{id}/pairs/{peer}",
            put(pairs::add).delete(pairs::remove),
        )
        .route("/gateways", get(gateways::list).post(gateways::create))
        .route("/gateways/{id}", get(gateways::show))
        .route("/gateways/{id}/evidence", get(gateways::evidence))
        .route("/gateways/{id}/revoke", post(gateways::revoke))
        .route("/rounds", get(results::rounds))
        .route("/results", get(results::results))
        .route("/results/signed", get(results::signed))
        .route("/results/{device}", get(results::result))
        .route("/groups", get(groups::list))
        .route("/groups/{name}", get(groups::show).delete(groups::remove))
        .route("/groups/{name}/roll-out", delete(groups::remove_roll_out))
        .route("/groups/{name}/roll-out/approve", post(groups::approve_roll_out))
        .route("/groups/{name}/round", post(groups::request_round))
        .route("/signers", get(signers::list).post(signers::add))
        .route("/signers/revoked", get(signers::revoked))
        .route("/signers/{id}/revoke", post(signers::revoke))
        .route("/status", get(status::status))
        .route("/events/history", get(events::history))
        .route("/audit", get(audit::list))
        .route("/users", get(users::list).post(users::add))
        .route("/users/{name}", delete(users::remove))
}

/// Adds the responses for unknown paths and methods, and the checks of all requests.
fn checked(api: Router<App>) -> Router<App> {
    api.fallback(async || ApiError::unknown_path())
        .method_not_allowed_fallback(async || ApiError::method_not_allowed())
        .layer(middleware::from_fn_with_state(
            query_parameters(),
            refuse_unknown_parameters,
        ))
        .layer(middleware::from_fn(refuse_null))
}

/// The routes of the API for local administration: without log-in, limits and repeated requests. The caller adds the
/// [`Principal`](crate::auth::Principal) to each request.
pub(crate) fn local_router(app: &App) -> Router {
    Router::new()
        .nest("/api/v1", checked(resources().merge(uploads()).merge(streams())))
        .with_state(app.clone())
}

/// The routes of API and dashboard.
pub(crate) fn router(app: &App) -> Router {
    let with_time_limit = |router: Router<App>| router.layer(middleware::from_fn(with_timeout));
    let writes = middleware::from_fn_with_state(app.clone(), idempotent);
    let authenticated = with_time_limit(resources().merge(uploads()).layer(writes))
        .merge(streams())
        .layer(middleware::from_fn_with_state(app.clone(), authenticate));
    let unauthenticated = with_time_limit(
        Router::new()
            .route("/login", post(login::login))
            .route("/logout", post(login::logout))
            .layer(DefaultBodyLimit::max(LOGIN_BYTES_MAX)),
    );
    let api = checked(authenticated.merge(unauthenticated))
        .layer(middleware::from_fn_with_state(app.clone(), count_request));
    let api = match &app.tracer {
        Some(tracer) => api.layer(middleware::from_fn_with_state(
            tracer.clone(),
            telemetry::trace_api_request,
        )),
        None => api,
    };
    Router::new()
        .nest("/api/v1", api)
        .route("/openapi.json", get(openapi_document))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/", get(dashboard::index))
        .route("/assets/{*path}", get(dashboard::file))
        .fallback(async || ApiError::not_found("page at this address"))
        .method_not_allowed_fallback(async || ApiError::method_not_allowed())
        .with_state(app.clone())
}

/// The routes of the metrics address, without authentication.
pub(crate) fn metrics_router(app: &App) -> Router {
    Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(health::metrics))
        .with_state(app.clone())
}

async fn with_timeout(request: Request, next: Next) -> Response {
    match tokio::time::timeout(RESPONSE_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => ApiError::unavailable("no response within 30 s").into_response(),
    }
}

async fn count_request(
    State(app): State<App>,
    path: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Response {
    let is_write = !matches!(*request.method(), Method::GET | Method::HEAD);
    let is_stream = path.is_some_and(|path| path.as_str().ends_with("/events"));
    let started_at = Instant::now();
    let response = next.run(request).await;
    log_failure(&response);
    if !is_stream {
        app.api_counters
            .record_response(is_write, response.status().as_u16(), started_at.elapsed());
    }
    response
}
