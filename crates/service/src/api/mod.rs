//! The API, version 1: what can be asked, by path.

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

use self::openapi::Conventions;
pub(crate) use self::results::Round;
pub(crate) use self::status::{LastCounted, counts, status_event};
use crate::auth::authenticate;
use crate::error::ApiError;
use crate::extract::without_null;
use crate::idempotency::once;
use crate::state::App;
use crate::{dashboard, health, telemetry};

/// What is asked and answered, as both ends have it.
pub mod wire {
    pub use super::audit::{Act, WhichActs};
    pub use super::details::{Attestation, DeviceDetails, Lease};
    pub use super::devices::{
        Device, NewCredentials, NewDevice, RevokeAll, RevokedAll, ShutOut, WhichDevices,
    };
    pub use super::events::History;
    pub use super::gateways::{Evidence, Gateway, GatewayEvidence, Latency, NewGateway};
    pub use super::groups::{Policy, PolicyChange};
    pub use super::import::{CHUNK_BYTES, CHUNK_DEVICES, How, Imported};
    pub use super::lists::{List, Part, Reason};
    pub use super::login::Me;
    pub use super::results::{Round, Standing, WhichResults, WhichRounds};
    pub use super::signers::{NewSigner, Signer};
    pub use super::users::{NewUser, Somebody, Welcome, Why};
    pub use crate::error::{ErrorBody, ErrorDetail};
    pub use crate::idempotency::GIVEN_UP_S;
    pub use crate::stream::Happening;
}

/// Longest time for an answer that is no stream.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Longest body of a stranger, bytes.
const LOGIN_BYTES_MAX: usize = 4096;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Linewarden controller",
        description = "Devices, gateways, attestation and what happens. Ids of devices are 16 hexadecimal digits; times are seconds (`_s`) or \
                       milliseconds (`_ms`) since 1970-01-01 UTC."
    ),
    modifiers(&Conventions),
    paths(
        login::login,
        login::logout,
        login::me,
        devices::list,
        details::show,
        devices::enrol,
        devices::revoke,
        devices::quarantine,
        devices::release,
        devices::revoke_all,
        import::import,
        gateways::list,
        gateways::show,
        gateways::evidence,
        gateways::enter,
        gateways::retire,
        results::rounds,
        results::results,
        results::result,
        groups::list,
        groups::set,
        groups::round,
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

/// What can be asked, as OpenAPI.
#[must_use]
pub fn openapi() -> String {
    Api::openapi().to_pretty_json().unwrap_or_default()
}

/// The same, made once: whoever reaches the controller may ask for it.
async fn described() -> impl IntoResponse {
    static TEXT: LazyLock<String> = LazyLock::new(|| Api::openapi().to_json().unwrap_or_default());
    ([(header::CONTENT_TYPE, "application/json")], TEXT.as_str())
}

/// Everything that is served over HTTP but to gateways.
pub(crate) fn router(app: &App) -> Router {
    let limited = |router: Router<App>| router.layer(middleware::from_fn(within_time));
    // Streams end when they end, and an import may be longer than what is kept for repeating.
    let streams = Router::new()
        .route("/events", get(events::stream))
        .route("/devices/import", post(import::import));
    let reads_and_writes = Router::new()
        .route("/me", get(login::me))
        .route("/devices", get(devices::list).post(devices::enrol))
        .route("/devices/revoke", post(devices::revoke_all))
        .route("/devices/{id}", get(details::show))
        .route("/devices/{id}/revoke", post(devices::revoke))
        .route("/devices/{id}/quarantine", post(devices::quarantine))
        .route("/devices/{id}/release", post(devices::release))
        .route("/gateways", get(gateways::list).post(gateways::enter))
        .route("/gateways/{id}", get(gateways::show))
        .route("/gateways/{id}/evidence", get(gateways::evidence))
        .route("/gateways/{id}/retire", post(gateways::retire))
        .route("/rounds", get(results::rounds))
        .route("/results", get(results::results))
        .route("/results/{device}", get(results::result))
        .route("/policies", get(groups::list))
        .route("/policies/{name}", put(groups::set))
        .route("/policies/{name}/round", post(groups::round))
        .route("/signers", get(signers::list).post(signers::add))
        .route("/signers/revoked", get(signers::revoked))
        .route("/signers/{id}/revoke", post(signers::revoke))
        .route("/status", get(status::status))
        .route("/events/history", get(events::history))
        .route("/audit", get(audit::list))
        .route("/users", get(users::list).post(users::add))
        .route("/users/{name}", delete(users::remove))
        .layer(middleware::from_fn_with_state(app.clone(), once));
    let known = limited(reads_and_writes)
        .merge(streams)
        .layer(middleware::from_fn_with_state(app.clone(), authenticate));
    let entrance = limited(
        Router::new()
            .route("/login", post(login::login))
            .route("/logout", post(login::logout))
            .layer(DefaultBodyLimit::max(LOGIN_BYTES_MAX)),
    );
    let api = known
        .merge(entrance)
        .fallback(async || ApiError::unknown_path())
        .method_not_allowed_fallback(async || ApiError::method_not_allowed())
        .layer(middleware::from_fn(without_null))
        .layer(middleware::from_fn_with_state(app.clone(), counted));
    let api = match &app.tracer {
        Some(tracer) => api.layer(middleware::from_fn_with_state(tracer.clone(), telemetry::of_api)),
        None => api,
    };
    Router::new()
        .nest("/api/v1", api)
        .route("/openapi.json", get(described))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/", get(dashboard::index))
        .route("/assets/{*path}", get(dashboard::file))
        .fallback(async || ApiError::not_found("such page"))
        .method_not_allowed_fallback(async || ApiError::method_not_allowed())
        .with_state(app.clone())
}

/// What is served where only metrics are: to whoever reaches it.
pub(crate) fn metrics_router(app: &App) -> Router {
    Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(health::metrics))
        .with_state(app.clone())
}

async fn within_time(request: Request, next: Next) -> Response {
    match tokio::time::timeout(ANSWER_MAX, next.run(request)).await {
        Ok(answer) => answer,
        Err(_) => ApiError::unavailable("no answer within 30 s").into_response(),
    }
}

async fn counted(
    State(app): State<App>,
    path: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Response {
    let is_write = !matches!(*request.method(), Method::GET | Method::HEAD);
    let is_stream = path.is_some_and(|path| path.as_str().ends_with("/events"));
    let began = Instant::now();
    let answer = next.run(request).await;
    if !is_stream {
        app.counts
            .answered(is_write, answer.status().as_u16(), began.elapsed());
    }
    answer
}
