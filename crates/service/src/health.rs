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

/// Time for which a readiness result is cached, because the path needs no authentication.
const READINESS_CACHED_FOR: Duration = Duration::from_secs(1);

/// Maximum duration of a readiness check.
const READINESS_TIMEOUT: Duration = Duration::from_secs(5);

/// The last readiness result. Concurrent requests share one check.
#[derive(Default)]
pub(crate) struct ReadinessCache(Mutex<Option<(Instant, bool)>>);

/// Readiness: the registry is available.
pub(crate) async fn readyz(State(app): State<App>) -> Response {
    let mut last = app.readiness.0.lock().await;
    let is_ready = match *last {
        Some((at, is_ready)) if at.elapsed() < READINESS_CACHED_FOR => is_ready,
        _ => {
            let result = tokio::time::timeout(READINESS_TIMEOUT, app.registry.check_available()).await;
            match &result {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => tracing::warn!(%error, "registry unavailable; controller not ready"),
                Err(_) => tracing::warn!("no response from the registry within 5 s; controller not ready"),
            }
            let is_ready = matches!(result, Ok(Ok(_)));
            *last = Some((Instant::now(), is_ready));
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
