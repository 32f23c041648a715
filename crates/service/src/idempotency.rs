//! Idempotent writes: a request that is repeated with the same key is carried out only once.

use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use linewarden_api::ABANDONED_AFTER_S;
use linewarden_registry::{IdempotencyState, Role, StoredResponse};
use opentelemetry::Context;
use opentelemetry::trace::FutureExt as _;
use sha2::{Digest as _, Sha256};

use crate::auth::Principal;
use crate::clock::now_s;
use crate::error::{ApiError, Result};
use crate::reference_limits::{self, is_upload};
use crate::state::App;

/// Maximum size of the body of a write without a reference value, bytes.
pub(crate) const BODY_BYTES_MAX: usize = 1 << 20;
/// Name of the header with the idempotency key.
pub(crate) const KEY: &str = "idempotency-key";
/// Maximum duration of a request. A response after this time is not stored.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time to store a response.
const STORE_TIMEOUT: Duration = Duration::from_secs(20);

/// Response extension: the response contains a secret and is not stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContainsSecret;

/// Requires an idempotency key for writes, and returns the stored response to a repeated request.
pub(crate) async fn idempotent(State(app): State<App>, request: Request, next: Next) -> Result<Response> {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(next.run(request).await);
    }
    let principal = request.extensions().get::<Principal>().cloned();
    let principal = principal.ok_or_else(ApiError::unauthenticated)?;
    let key = request
        .headers()
        .get(KEY)
        .map(|key| key.to_str().map(str::to_owned));
    let is_upload = is_upload(&request);
    // The handler refuses the request before it reads the body. The refusal is not stored.
    if principal.role == Role::Viewer || is_upload && principal.role != Role::Admin {
        return Ok(next.run(request).await);
    }
    let Some(Ok(key)) = key else {
        return Err(ApiError::invalid(
            "Idempotency-Key",
            "an idempotency key is required, such as a UUID; a request repeated with the same key is not performed twice",
        ));
    };
    let (parts, body) = request.into_parts();
    let (permit, bytes_max) = match is_upload {
        true => (
            Some(app.group_permits.upload().await),
            reference_limits::BODY_BYTES_MAX,
        ),
        false => (None, BODY_BYTES_MAX),
    };
    let body = to_bytes(body, bytes_max)
        .await
        .map_err(|_| too_large(bytes_max))?;
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
        .begin_request(name, &key, &hash, now_s(), ABANDONED_AFTER_S)
        .await?
    {
        IdempotencyState::New => {}
        IdempotencyState::Completed(stored) => return Ok(replay(stored)),
        IdempotencyState::InProgress => {
            return Err(ApiError::in_progress());
        }
        IdempotencyState::KeyReused => {
            return Err(ApiError::conflict(
                "the Idempotency-Key was used for a different request",
            ));
        }
    }
    let request = Request::from_parts(parts, Body::from(body));
    // The request is completed and its response stored even if the client disconnects.
    let completion = async move {
        let _permit = permit;
        match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
            Ok(response) => store_response(&app, &principal.name, &key, &hash, response).await,
            // The write may have succeeded nevertheless. Until the request counts as abandoned, a repeated request gets
            // the error `in_progress`.
            Err(_) => ApiError::unavailable("no response within a minute").into_response(),
        }
    };
    let completion = tokio::spawn(completion.with_context(Context::current()));
    completion.await.map_err(|_| {
        ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "internal error; see the controller log",
        )
    })
}

/// Stores the response to the request of the user `name`; returns the response unchanged.
async fn store_response(
    app: &App,
    name: &str,
    key: &str,
    request_hash: &[u8; 32],
    response: Response,
) -> Response {
    let (parts, body) = response.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let is_stored = is_storable(parts.status) && parts.extensions.get::<ContainsSecret>().is_none();
    let stored = is_stored.then(|| StoredResponse {
        status: parts.status.as_u16(),
        body: body.to_vec(),
    });
    // A repeated request is carried out again if the response is not stored.
    let storing = app
        .registry
        .finish_request(name, key, request_hash, stored.as_ref());
    match tokio::time::timeout(STORE_TIMEOUT, storing).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(%error, "failed to store response; a repetition performs the request again")
        }
        Err(_) => tracing::warn!("timed out storing response; a repetition performs the request again"),
    }
    Response::from_parts(parts, Body::from(body))
}

/// Whether a response with this status is stored: success or conflict. After any other status, a repeated request is
/// carried out again, because its result may differ.
fn is_storable(status: StatusCode) -> bool {
    status.is_success() || status == StatusCode::CONFLICT
}

fn replay(stored: StoredResponse) -> Response {
    let status = StatusCode::from_u16(stored.status).unwrap_or(StatusCode::OK);
    let mut response = (status, Bytes::from(stored.body)).into_response();
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The error for a body that is larger than `bytes_max`.
pub(crate) fn too_large(bytes_max: usize) -> ApiError {
    ApiError::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "too_large",
        match bytes_max {
            BODY_BYTES_MAX => {
                format!("body exceeds {bytes_max} bytes; import many devices with /api/v1/devices/import")
            }
            _ => format!("body exceeds {bytes_max} bytes"),
        },
    )
}
