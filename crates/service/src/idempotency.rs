//! Writes that may be repeated: what was done once under a key is not done again.

use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use linewarden_registry::{Answered, Kept, Role};
use opentelemetry::Context;
use opentelemetry::trace::FutureExt as _;
use sha2::{Digest as _, Sha256};

use crate::auth::Principal;
use crate::clock::now_s;
use crate::error::{ApiError, Result};
use crate::state::App;

/// Longest body of a write, bytes.
pub(crate) const BODY_BYTES_MAX: usize = 1 << 20;
const KEY: &str = "idempotency-key";
/// After so long whoever took the key is gone, and who asks next does what was asked.
pub const GIVEN_UP_S: u64 = 120;
/// Until then what was asked for has come about, and its answer is kept, or never will.
const WORK_MAX: Duration = Duration::from_secs(60);
const KEEP_MAX: Duration = Duration::from_secs(20);

/// Among an answer's extensions: it is not kept, as there is a secret in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Secret;

/// Asks for a key, and answers the same question the same way.
pub(crate) async fn once(State(app): State<App>, request: Request, next: Next) -> Result<Response> {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(next.run(request).await);
    }
    let principal = request.extensions().get::<Principal>().cloned();
    let principal = principal.ok_or_else(ApiError::unauthenticated)?;
    let key = request
        .headers()
        .get(KEY)
        .map(|key| key.to_str().map(str::to_owned));
    if principal.role == Role::Viewer {
        // Nothing that a viewer may ask for writes: it is refused, and need not be kept.
        return Ok(next.run(request).await);
    }
    let Some(Ok(key)) = key else {
        return Err(ApiError::invalid(
            "Idempotency-Key",
            "send a key of your own, such as a UUID: repeated with it, nothing is done twice",
        ));
    };
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, BODY_BYTES_MAX).await.map_err(|_| too_large())?;
    let mut hash = Sha256::new();
    for part in [
        parts.method.as_str().as_bytes(),
        parts.uri.to_string().as_bytes(),
        &body,
    ] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let hash: [u8; 32] = hash.finalize().into();
    let name = &principal.name;
    match app
        .registry
        .begin_answer(name, &key, &hash, now_s(), GIVEN_UP_S)
        .await?
    {
        Answered::New => {}
        Answered::Again(kept) => return Ok(again(kept)),
        Answered::UnderWay => {
            return Err(ApiError::under_way());
        }
        Answered::Another => {
            return Err(ApiError::conflict(
                "this Idempotency-Key was used for something else",
            ));
        }
    }
    let request = Request::from_parts(parts, Body::from(body));
    // Whoever asked may be gone by then: what has been begun ends, and its answer is kept for when it asks again.
    let work = async move {
        match tokio::time::timeout(WORK_MAX, next.run(request)).await {
            Ok(answer) => keep(&app, &principal.name, &key, &hash, answer).await,
            // It may have come about all the same: for who asks again at once it is under way.
            Err(_) => ApiError::unavailable("no answer within a minute").into_response(),
        }
    };
    let work = tokio::spawn(work.with_context(Context::current()));
    work.await.map_err(|_| {
        ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "see the controller's log",
        )
    })
}

async fn keep(app: &App, name: &str, key: &str, request: &[u8; 32], answer: Response) -> Response {
    let (parts, body) = answer.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let is_kept = is_kept(parts.status) && parts.extensions.get::<Secret>().is_none();
    let kept = is_kept.then(|| Kept {
        status: parts.status.as_u16(),
        body: body.to_vec(),
    });
    // Not kept, it is done once more if it is asked for once more: what was done is in the registry.
    let kept = app.registry.end_answer(name, key, request, kept.as_ref());
    match tokio::time::timeout(KEEP_MAX, kept).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "an answer could not be kept for who asks again"),
        Err(_) => tracing::warn!("an answer was not kept in time for who asks again"),
    }
    Response::from_parts(parts, Body::from(body))
}

/// What may come out differently next time is not kept, nor what nothing came of.
fn is_kept(status: StatusCode) -> bool {
    status.is_success() || status == StatusCode::CONFLICT
}

fn again(kept: Kept) -> Response {
    let status = StatusCode::from_u16(kept.status).unwrap_or(StatusCode::OK);
    let mut response = (status, Bytes::from(kept.body)).into_response();
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Of a body that is longer than is read.
pub(crate) fn too_large() -> ApiError {
    ApiError::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "too_large",
        format!(
            "at most {BODY_BYTES_MAX} bytes are taken here; devices in numbers go to /api/v1/devices/import"
        ),
    )
}
