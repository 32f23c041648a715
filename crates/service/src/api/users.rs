//! API users.

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use linewarden_api::{CreatedUser, ErrorBody, List, NewUser, PageQuery, ReasonQuery, UserInfo};
use linewarden_registry::{Role, User};

use super::devices::{new_event, run_action};
use super::lists::{Records, paginate};
use super::login::role_name;
use crate::auth::{Admin, draw_secret};
use crate::clock::now_s;
use crate::error::{ApiError, Result};
use crate::extract::{Json, Path, Query};
use crate::idempotency::ContainsSecret;
use crate::state::App;

/// Converts a user of the registry.
fn user_info_from_record(user: User) -> UserInfo {
    UserInfo {
        name: user.name,
        role: role_name(user.role).into(),
        has_token: user.has_token,
        created_at_s: user.created_at_s,
        expires_at_s: user.expires_at_s,
    }
}

/// Lists users by name.
#[utoipa::path(get, path = "/api/v1/users", params(PageQuery), responses((status = 200, body = List<UserInfo>), (status = 422, body = ErrorBody)))]
pub(crate) async fn list(
    _: Admin,
    State(app): State<App>,
    Query(page_query): Query<PageQuery>,
) -> Result<Json<List<UserInfo>>> {
    let users = Records::read(app.registry.users().await?, user_info_from_record);
    paginate(&page_query, users, |user| user.name.clone()).map(Json)
}

/// The role with this name; `None` if no role has this name.
fn parse_role(name: &str) -> Option<Role> {
    let roles = [Role::Viewer, Role::Operator, Role::Admin];
    roles.into_iter().find(|role| role_name(*role) == name)
}

/// Creates a user.
#[utoipa::path(post, path = "/api/v1/users", request_body = NewUser, responses((status = 201, body = CreatedUser), (status = 422, body = ErrorBody)))]
pub(crate) async fn add(
    Admin(principal): Admin,
    State(app): State<App>,
    Json(new): Json<NewUser>,
) -> Result<(StatusCode, Extension<ContainsSecret>, Json<CreatedUser>)> {
    let role = parse_role(&new.role).ok_or_else(|| ApiError::invalid("role", "viewer, operator or admin"))?;
    let token = (!new.certificate).then(|| draw_secret("lw_")).transpose()?;
    let user = User {
        name: new.name,
        role,
        has_token: token.is_some(),
        created_at_s: now_s(),
        expires_at_s: new.expires_at_s,
    };
    let event = new_event(
        "user_changed",
        None,
        format!("added {} as {}", user.name, role_name(role)),
    );
    run_action(&app, &principal, &new.reason, event, async |registry| {
        Ok(registry.add_user(&user, token.as_deref()).await?)
    })
    .await?;
    let created = CreatedUser {
        name: user.name,
        token,
    };
    Ok((StatusCode::CREATED, Extension(ContainsSecret), Json(created)))
}

/// Deletes a user.
#[utoipa::path(delete, path = "/api/v1/users/{name}", params(ReasonQuery), responses((status = 204), (status = 404, body = ErrorBody)))]
pub(crate) async fn remove(
    Admin(principal): Admin,
    State(app): State<App>,
    Path(name): Path<String>,
    Query(ReasonQuery { reason }): Query<ReasonQuery>,
) -> Result<StatusCode> {
    let event = new_event("user_changed", None, format!("removed {name}"));
    run_action(
        &app,
        &principal,
        &reason,
        event,
        async |registry| match registry.remove_user(&name).await? {
            true => Ok(()),
            false => Err(ApiError::not_found(&format!("user {name:?}"))),
        },
    )
    .await?;
    app.login_cache.clear();
    Ok(StatusCode::NO_CONTENT)
}
