//! Whether the process serves, and whether it can answer.

use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::sync::Mutex;

use crate::metrics;
use crate::state::App;

/// The process serves.
pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

/// How long it is good to know whether the registry answers: whoever reaches the controller may ask as often as they like.
const READY_FOR: Duration = Duration::from_secs(1);

/// How long it may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Whether the registry answered a moment ago; who asks meanwhile waits for whoever asks it.
#[derive(Default)]
pub(crate) struct LastReady(Mutex<Option<(Instant, bool)>>);

/// The registry answers.
pub(crate) async fn readyz(State(app): State<App>) -> Response {
    let mut last = app.ready.0.lock().await;
    let is_ready = match *last {
        Some((at, is_ready)) if at.elapsed() < READY_FOR => is_ready,
        _ => {
            let answer = tokio::time::timeout(ANSWER_MAX, app.registry.is_in_place()).await;
            match &answer {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => tracing::warn!(%error, "not ready"),
                Err(_) => tracing::warn!("not ready: the registry has not answered within 5 s"),
            }
            let is_ready = matches!(answer, Ok(Ok(_)));
            *last = Some((Instant::now(), is_ready));
            is_ready
        }
    };
    match is_ready {
        true => "ok\n".into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, "the registry does not answer\n").into_response(),
    }
}

/// For Prometheus.
pub(crate) async fn metrics(State(app): State<App>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    (kind, metrics::page(&app).await).into_response()
}
