//! Attestation policies of groups.

use axum::extract::State;
use linewarden_api::{ErrorBody, List, PageQuery, Policy, PolicyChange, Reason};
use linewarden_registry::{Group, NewGroup};
use linewarden_types::{GroupName, GroupPolicy, ReleaseMode};

use super::devices::{new_event, run_action};
use super::lists::paginate;
use crate::auth::{Admin, Operator, Viewer};
use crate::clock::now_s;
use crate::error::{ApiError, Result};
use crate::extract::{Json, Path, Query};
use crate::state::App;

/// Converts a group of the registry.
#[must_use]
pub fn policy_from_group(group: Group) -> Policy {
    Policy {
        name: group.name.as_str().to_owned(),
        every_s: group.policy.every_s,
        jitter_s: group.policy.jitter_s,
        proof_timeout_ms: group.policy.proof_timeout_ms,
        missed_limit: group.policy.missed_limit,
        window_rounds: group.policy.window_rounds,
        late_is_missed: group.policy.late_is_missed,
        release_mode: match group.policy.release_mode {
            ReleaseMode::Automatic => "automatic",
            ReleaseMode::Manual => "manual",
        }
        .into(),
        has_reference: group.reference.is_some(),
        roll_out_until_s: group.roll_out.map(|roll_out| roll_out.until_s),
        rounds_requested: group.rounds_requested,
    }
}

/// Returns the group after a change. `current` is the group before the change; `None` creates a group.
///
/// # Errors
/// The name of a field with an invalid value, and a text with the accepted values.
pub fn changed_group(
    change: &PolicyChange,
    name: &GroupName,
    current: Option<Group>,
) -> Result<NewGroup, (&'static str, &'static str)> {
    let policy = current
        .as_ref()
        .map_or_else(GroupPolicy::default, |group| group.policy);
    let release_mode = match change.release_mode.as_deref() {
        None => policy.release_mode,
        Some("automatic") => ReleaseMode::Automatic,
        Some("manual") => ReleaseMode::Manual,
        Some(_) => return Err(("release_mode", "automatic or manual")),
    };
    let (reference, roll_out) = current.map_or((None, None), |group| (group.reference, group.roll_out));
    Ok(NewGroup {
        name: name.clone(),
        policy: GroupPolicy {
            every_s: change.every_s.unwrap_or(policy.every_s),
            jitter_s: change.jitter_s.unwrap_or(policy.jitter_s),
            proof_timeout_ms: change.proof_timeout_ms.unwrap_or(policy.proof_timeout_ms),
            missed_limit: change.missed_limit.unwrap_or(policy.missed_limit),
            window_rounds: change.window_rounds.unwrap_or(policy.window_rounds),
            late_is_missed: change.late_is_missed.unwrap_or(policy.late_is_missed),
            release_mode,
        },
        reference,
        roll_out,
    })
}

fn parse_group_name(text: String) -> Result<GroupName> {
    GroupName::new(text).map_err(|error| ApiError::invalid("name", error.to_string()))
}

/// Lists policies by group name.
#[utoipa::path(get, path = "/api/v1/policies", params(PageQuery), responses((status = 200, body = List<Policy>), (status = 422, body = ErrorBody)))]
pub(crate) async fn list(
    _: Viewer,
    State(app): State<App>,
    Query(page_query): Query<PageQuery>,
) -> Result<Json<List<Policy>>> {
    let groups = app.registry.groups().await?;
    for error in &groups.damaged {
        tracing::error!(error, "reading a group failed; group omitted from the list");
    }
    let policies = groups.groups.into_iter().map(policy_from_group).collect();
    paginate(&page_query, policies, |policy: &Policy| policy.name.clone()).map(Json)
}

/// Creates a group, or changes its policy.
#[utoipa::path(put, path = "/api/v1/policies/{name}", request_body = PolicyChange, responses((status = 200, body = Policy), (status = 422, body = ErrorBody)))]
pub(crate) async fn set(
    Admin(principal): Admin,
    State(app): State<App>,
    Path(group): Path<String>,
    Json(change): Json<PolicyChange>,
) -> Result<Json<Policy>> {
    let group = parse_group_name(group)?;
    let event = new_event("policy_changed", None, group.as_str());
    run_action(&app, &principal, &change.reason, event, async |registry| {
        let changing = registry.change_group(&group, now_s(), |before| -> Result<NewGroup> {
            changed_group(&change, &group, before?)
                .map_err(|(field, problem)| ApiError::invalid(field, problem))
        });
        changing.await
    })
    .await?;
    find(&app, &group).await
}

async fn find(app: &App, group: &GroupName) -> Result<Json<Policy>> {
    let stored = app.registry.group(group).await?;
    let stored = stored.ok_or_else(|| ApiError::not_found("group with this name"))?;
    Ok(Json(policy_from_group(stored)))
}

/// Requests an immediate round of a group.
#[utoipa::path(post, path = "/api/v1/policies/{name}/round", request_body = Reason, responses((status = 200, body = Policy), (status = 404, body = ErrorBody)))]
pub(crate) async fn request_round(
    Operator(principal): Operator,
    State(app): State<App>,
    Path(group): Path<String>,
    Json(Reason { reason }): Json<Reason>,
) -> Result<Json<Policy>> {
    let group = parse_group_name(group)?;
    let event = new_event("round_requested", None, group.as_str());
    run_action(&app, &principal, &reason, event, async |registry| {
        Ok(registry.request_round(&group).await?)
    })
    .await?;
    find(&app, &group).await
}
