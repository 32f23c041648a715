//! Whether the process serves, and whether it can answer.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::metrics;
use crate::state::App;

/// The process serves.
pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

/// The registry answers.
pub(crate) async fn readyz(State(app): State<App>) -> Response {
    match app.registry.revision().await {
        Ok(_) => "ok\n".into_response(),
        Err(error) => {
            tracing::warn!(%error, "not ready");
            (StatusCode::SERVICE_UNAVAILABLE, "the registry does not answer\n").into_response()
        }
    }
}

/// For Prometheus.
pub(crate) async fn metrics(State(app): State<App>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    (kind, metrics::page(&app)).into_response()
}
