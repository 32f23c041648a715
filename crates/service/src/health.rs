//! Liveness and readiness.

use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::sync::Mutex;

use crate::metrics;
use crate::state::App;

/// Liveness: the process responds.
pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

/// Time for which a readiness result is cached. The cache limits the load by clients, which need no authentication.
const READINESS_CACHE_LIFETIME: Duration = Duration::from_secs(1);

/// Maximum duration of a readiness check.
const READINESS_TIMEOUT: Duration = Duration::from_secs(5);

/// The last readiness result. Concurrent requests share one check.
#[derive(Default)]
pub(crate) struct ReadinessCache(Mutex<Option<(Instant, bool)>>);

/// Readiness: the registry is available.
pub(crate) async fn readyz(State(app): State<App>) -> Response {
    let mut last_result = app.readiness.0.lock().await;
    let is_ready = match *last_result {
        Some((at, is_ready)) if at.elapsed() < READINESS_CACHE_LIFETIME => is_ready,
        _ => {
            let result = tokio::time::timeout(READINESS_TIMEOUT, app.registry.check_available()).await;
            match &result {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => tracing::warn!(%error, "registry unavailable; controller not ready"),
                Err(_) => tracing::warn!("no response from the registry within 5 s; controller not ready"),
            }
            let is_ready = matches!(result, Ok(Ok(_)));
            *last_result = Some((Instant::now(), is_ready));
            is_ready
        }
    };
    match is_ready {
        true => "ok\n".into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, "the registry is unavailable\n").into_response(),
    }
}

/// Serves metrics for Prometheus.
pub(crate) async fn metrics(State(app): State<App>) -> Response {
    let headers = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    (headers, metrics::page(&app).await).into_response()
}
