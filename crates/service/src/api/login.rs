//! Coming in and going out.

use std::borrow::Cow;

use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use linewarden_registry::Role;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::auth::{COOKIE, TRY_AGAIN_S, Viewer, cookie, draw_secret, hash_of_cookie, hash_of_token};
use crate::clock::now_s;
use crate::error::{ApiError, ErrorBody, Result};
use crate::extract::Json;
use crate::peer::Peer;
use crate::state::App;

/// How long a browser stays logged in, seconds.
const SESSION_S: u64 = 12 * 3600;

/// A token.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Login {
    /// Of `linewarden user add`.
    token: String,
}

/// Who one is.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Me {
    /// The name.
    pub name: String,
    /// viewer, operator or admin
    pub role: Cow<'static, str>,
    /// When this way of coming in ends.
    pub expires_s: Option<u64>,
}

pub(crate) fn role_name(role: Role) -> &'static str {
    match role {
        Role::Viewer => "viewer",
        Role::Operator => "operator",
        Role::Admin => "admin",
    }
}

/// Begins a session of a browser: the answer sets its cookie.
#[utoipa::path(post, path = "/api/v1/login", request_body = Login, responses((status = 200, body = Me), (status = 401, body = ErrorBody)))]
pub(crate) async fn login(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    Json(Login { token }): Json<Login>,
) -> Result<Response> {
    let hash = hash_of_token(&token);
    if !app.known.may_look_up(&hash, &app.limits, peer.owner()) {
        return Err(ApiError::rate_limited(TRY_AGAIN_S));
    }
    let now_s = now_s();
    let secret = draw_secret("")?;
    let until_s = now_s.saturating_add(SESSION_S);
    let begun = app
        .registry
        .begin_session(&token, &secret, now_s, until_s)
        .await?;
    app.known.looked_up(hash, begun.is_some());
    let (user, until_s) = match begun {
        Some(begun) => begun,
        None if !app.limits.may_try(peer.owner()) => return Err(ApiError::rate_limited(TRY_AGAIN_S)),
        None => {
            return Err(ApiError::new(
                StatusCode::UNAUTHORIZED,
                "unauthenticated",
                "this token is nobody's, or is over",
            ));
        }
    };
    app.known.looked_up(hash_of_cookie(&secret), true);
    let me = Me {
        name: user.name,
        role: role_name(user.role).into(),
        expires_s: Some(until_s),
    };
    let age_s = until_s.saturating_sub(now_s);
    set_cookie(&secret, age_s, Json(me))
}

/// Ends it.
#[utoipa::path(post, path = "/api/v1/logout", responses((status = 204)))]
pub(crate) async fn logout(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
) -> Result<Response> {
    // Only who has one writes: anybody may ask for this.
    if let Some(secret) = cookie(&headers) {
        let hash = hash_of_cookie(secret);
        if !app.known.may_look_up(&hash, &app.limits, peer.owner()) {
            return Err(ApiError::rate_limited(TRY_AGAIN_S));
        }
        if !matches!(app.registry.user_of_session(secret, now_s()).await, Ok(None)) {
            app.registry.end_session(secret).await?;
            app.known.forget();
        }
        app.known.looked_up(hash, false);
    }
    set_cookie("", 0, StatusCode::NO_CONTENT)
}

fn set_cookie(secret: &str, age_s: u64, answer: impl IntoResponse) -> Result<Response> {
    let text = format!("{COOKIE}={secret}; HttpOnly; Secure; SameSite=Strict; Path=/; Max-Age={age_s}");
    let value = HeaderValue::from_str(&text).map_err(|_| ApiError::unauthenticated())?;
    let mut answer = answer.into_response();
    answer.headers_mut().insert(header::SET_COOKIE, value);
    Ok(answer)
}

/// Who one is.
#[utoipa::path(get, path = "/api/v1/me", responses((status = 200, body = Me), (status = 401, body = ErrorBody)))]
pub(crate) async fn me(Viewer(principal): Viewer) -> Json<Me> {
    Json(Me {
        name: principal.name,
        role: role_name(principal.role).into(),
        expires_s: principal.expires_s,
    })
}
