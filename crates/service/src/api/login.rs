//! Log-in and log-out of browsers.

use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use linewarden_api::{ErrorBody, Identity};
use linewarden_registry::Role;
use serde::Deserialize;
use utoipa::ToSchema;

use crate::auth::{COOKIE, RETRY_AFTER_S, Viewer, cookie, draw_secret, hash_of_cookie, hash_of_token};
use crate::clock::now_s;
use crate::error::{ApiError, Result};
use crate::extract::Json;
use crate::peer::Peer;
use crate::state::App;

/// Lifetime of a browser session, seconds.
const SESSION_LIFETIME_S: u64 = 12 * 3600;

/// A token.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Login {
    /// The token from `linewarden user create`.
    token: String,
}

pub(crate) fn role_name(role: Role) -> &'static str {
    match role {
        Role::Viewer => "viewer",
        Role::Operator => "operator",
        Role::Admin => "admin",
    }
}

/// Starts a browser session. The response sets the session cookie.
#[utoipa::path(post, path = "/api/v1/login", request_body = Login, responses((status = 200, body = Identity), (status = 401, body = ErrorBody)))]
pub(crate) async fn login(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    Json(Login { token }): Json<Login>,
) -> Result<Response> {
    let hash = hash_of_token(&token);
    if !app
        .login_cache
        .may_look_up(&hash, &app.limits, peer.address_owner())
    {
        return Err(ApiError::rate_limited(RETRY_AFTER_S));
    }
    let now_s = now_s();
    let secret = draw_secret("")?;
    let until_s = now_s.saturating_add(SESSION_LIFETIME_S);
    let session = app
        .registry
        .begin_session(&token, &secret, now_s, until_s)
        .await?;
    app.login_cache.record_lookup(hash, session.is_some());
    let (user, until_s) = match session {
        Some(session) => session,
        None if !app.limits.allow_attempt(peer.address_owner()) => {
            return Err(ApiError::rate_limited(RETRY_AFTER_S));
        }
        None => {
            return Err(ApiError::new(
                StatusCode::UNAUTHORIZED,
                "unauthenticated",
                "the token is invalid or has expired",
            ));
        }
    };
    app.login_cache.record_lookup(hash_of_cookie(&secret), true);
    let me = Identity {
        name: user.name,
        role: role_name(user.role).into(),
        expires_at_s: Some(until_s),
    };
    let lifetime_s = until_s.saturating_sub(now_s);
    set_cookie(&secret, lifetime_s, Json(me))
}

/// Ends the browser session.
#[utoipa::path(post, path = "/api/v1/logout", responses((status = 204)))]
pub(crate) async fn logout(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
) -> Result<Response> {
    // This path needs no authentication. Only a request with a session cookie causes a write.
    if let Some(secret) = cookie(&headers) {
        let hash = hash_of_cookie(secret);
        if !app
            .login_cache
            .may_look_up(&hash, &app.limits, peer.address_owner())
        {
            return Err(ApiError::rate_limited(RETRY_AFTER_S));
        }
        if !matches!(app.registry.user_by_session(secret, now_s()).await, Ok(None)) {
            app.registry.end_session(secret).await?;
            app.login_cache.clear();
        }
        app.login_cache.record_lookup(hash, false);
    }
    set_cookie("", 0, StatusCode::NO_CONTENT)
}

fn set_cookie(secret: &str, lifetime_s: u64, response: impl IntoResponse) -> Result<Response> {
    let text = format!("{COOKIE}={secret}; HttpOnly; Secure; SameSite=Strict; Path=/; Max-Age={lifetime_s}");
    let value = HeaderValue::from_str(&text).map_err(|_| ApiError::unauthenticated())?;
    let mut response = response.into_response();
    response.headers_mut().insert(header::SET_COOKIE, value);
    Ok(response)
}

/// The authenticated user.
#[utoipa::path(get, path = "/api/v1/me", responses((status = 200, body = Identity), (status = 401, body = ErrorBody)))]
pub(crate) async fn me(Viewer(principal): Viewer) -> Json<Identity> {
    Json(Identity {
        name: principal.name,
        role: role_name(principal.role).into(),
        expires_at_s: principal.expires_at_s,
    })
}
