//! Who may use the API.

use std::borrow::Cow;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use linewarden_registry::{Role, User};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::devices::{act, note};
use super::lists::{List, Part};
use super::login::role_name;
use crate::auth::{Admin, draw_secret};
use crate::clock::now_s;
use crate::error::{ApiError, ErrorBody, Result};
use crate::extract::{Json, Path, Query};
use crate::idempotency::Secret;
use crate::state::App;

/// Somebody.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Somebody {
    /// Their name.
    pub name: String,
    /// viewer, operator or admin
    pub role: Cow<'static, str>,
    /// Else by a certificate of that name.
    pub has_token: bool,
    /// Since when.
    pub created_at_s: u64,
    /// Until when; for good if null.
    pub expires_at_s: Option<u64>,
}

impl From<User> for Somebody {
    fn from(user: User) -> Self {
        Self {
            name: user.name,
            role: role_name(user.role).into(),
            has_token: user.has_token,
            created_at_s: user.created_at_s,
            expires_at_s: user.expires_at_s,
        }
    }
}

/// Users, by name.
#[utoipa::path(get, path = "/api/v1/users", params(Part), responses((status = 200, body = List<Somebody>), (status = 422, body = ErrorBody)))]
pub(crate) async fn list(
    _: Admin,
    State(app): State<App>,
    Query(part): Query<Part>,
) -> Result<Json<List<Somebody>>> {
    let mut items: Vec<Somebody> = Vec::new();
    for user in app.registry.users().await? {
        match user {
            Ok(user) => items.push(user.into()),
            Err(error) => tracing::error!(%error, "left out of a list"),
        }
    }
    part.of(items, |user| user.name.clone()).map(Json)
}

/// Somebody who is to use the API.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewUser {
    /// Their name.
    pub name: String,
    /// viewer, operator or admin
    pub role: String,
    /// Until when; for good if not given.
    pub expires_at_s: Option<u64>,
    /// By a certificate of that name, without a token.
    #[serde(default)]
    pub certificate: bool,
    /// Why.
    pub reason: String,
}

impl NewUser {
    /// What they are to be, if there is such a role.
    #[must_use]
    pub fn parsed_role(&self) -> Option<Role> {
        let roles = [Role::Viewer, Role::Operator, Role::Admin];
        roles.into_iter().find(|role| role_name(*role) == self.role)
    }
}

/// Somebody, and the token that is never shown again.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Welcome {
    /// Their name.
    pub name: String,
    /// What they come in by.
    pub token: Option<String>,
}

/// Lets somebody use the API.
#[utoipa::path(post, path = "/api/v1/users", request_body = NewUser, responses((status = 201, body = Welcome), (status = 422, body = ErrorBody)))]
pub(crate) async fn add(
    Admin(principal): Admin,
    State(app): State<App>,
    Json(new): Json<NewUser>,
) -> Result<(StatusCode, Extension<Secret>, Json<Welcome>)> {
    let role = new
        .parsed_role()
        .ok_or_else(|| ApiError::invalid("role", "viewer, operator or admin"))?;
    let token = (!new.certificate).then(|| draw_secret("lw_")).transpose()?;
    let user = User {
        name: new.name,
        role,
        has_token: token.is_some(),
        created_at_s: now_s(),
        expires_at_s: new.expires_at_s,
    };
    let what = note(
        "user",
        None,
        format!("added {} as {}", user.name, role_name(role)),
    );
    act(&app, &principal, &new.reason, what, async |registry| {
        Ok(registry.add_user(&user, token.as_deref()).await?)
    })
    .await?;
    let welcome = Welcome {
        name: user.name,
        token,
    };
    Ok((StatusCode::CREATED, Extension(Secret), Json(welcome)))
}

/// Why.
#[derive(Clone, Debug, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Why {
    /// Why.
    pub reason: String,
}

/// Takes somebody's access away.
#[utoipa::path(delete, path = "/api/v1/users/{name}", params(Why), responses((status = 204), (status = 404, body = ErrorBody)))]
pub(crate) async fn remove(
    Admin(principal): Admin,
    State(app): State<App>,
    Path(name): Path<String>,
    Query(Why { reason }): Query<Why>,
) -> Result<StatusCode> {
    let what = note("user", None, format!("removed {name}"));
    act(&app, &principal, &reason, what, async |registry| {
        match registry.remove_user(&name).await? {
            true => Ok(()),
            false => Err(ApiError::not_found("such user")),
        }
    })
    .await?;
    app.known.forget();
    Ok(StatusCode::NO_CONTENT)
}
