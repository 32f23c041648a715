//! Attestation policies of groups.

use std::borrow::Cow;

use axum::extract::State;
use linewarden_registry::{Group, NewGroup};
use linewarden_types::{GroupName, GroupPolicy, ReleaseMode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::devices::{new_event, run_action};
use super::lists::{List, PageQuery, Reason};
use crate::auth::{Admin, Operator, Viewer};
use crate::clock::now_s;
use crate::error::{ApiError, ErrorBody, Result};
use crate::extract::{Json, Path, Query};
use crate::state::App;

/// The attestation policy of a group.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Policy {
    /// The group name.
    pub name: String,
    /// Interval between rounds, seconds.
    pub every_s: u32,
    /// Maximum random deviation of the start of a round, seconds.
    pub jitter_s: u32,
    /// Time after which a proof is late, milliseconds.
    pub proof_timeout_ms: u32,
    /// Number of missed rounds, among the last `window_rounds` rounds of a device, that puts the device into quarantine.
    pub missed_limit: u32,
    /// Number of the last rounds of a device in which missed rounds are counted.
    pub window_rounds: u32,
    /// Whether a late proof counts as a missed round.
    pub late_is_missed: bool,
    /// How a device is released from quarantine: automatic or manual
    pub release_mode: Cow<'static, str>,
    /// Whether the group has a reference value.
    pub has_reference: bool,
    /// End of the roll-out, during which an alternate reference value is valid; null without a roll-out.
    pub roll_out_until_s: Option<u64>,
    /// Number of rounds that were requested manually.
    pub rounds_requested: u64,
}

impl From<Group> for Policy {
    fn from(group: Group) -> Self {
        Self {
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
}

/// Changes of a policy. Omitted fields keep their value. In a new group, omitted fields have the defaults of
/// `linewarden attest group`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyChange {
    /// Interval between rounds, seconds.
    pub every_s: Option<u32>,
    /// Maximum random deviation of the start of a round, seconds.
    pub jitter_s: Option<u32>,
    /// Time after which a proof is late, milliseconds.
    pub proof_timeout_ms: Option<u32>,
    /// Number of missed rounds, among the last `window_rounds` rounds of a device, that puts the device into quarantine.
    pub missed_limit: Option<u32>,
    /// Number of the last rounds of a device in which missed rounds are counted.
    pub window_rounds: Option<u32>,
    /// Whether a late proof counts as a missed round.
    pub late_is_missed: Option<bool>,
    /// How a device is released from quarantine: automatic or manual
    pub release_mode: Option<String>,
    /// The reason.
    pub reason: String,
}

impl PolicyChange {
    /// Returns the group after the change. `current` is the group before the change; `None` creates a group.
    ///
    /// # Errors
    /// The name of a field with an invalid value, and a text with the accepted values.
    pub fn apply(
        &self,
        name: &GroupName,
        current: Option<Group>,
    ) -> Result<NewGroup, (&'static str, &'static str)> {
        let policy = current
            .as_ref()
            .map_or_else(GroupPolicy::default, |group| group.policy);
        let release_mode = match self.release_mode.as_deref() {
            None => policy.release_mode,
            Some("automatic") => ReleaseMode::Automatic,
            Some("manual") => ReleaseMode::Manual,
            Some(_) => return Err(("release_mode", "automatic or manual")),
        };
        let (reference, roll_out) = current.map_or((None, None), |group| (group.reference, group.roll_out));
        Ok(NewGroup {
            name: name.clone(),
            policy: GroupPolicy {
                every_s: self.every_s.unwrap_or(policy.every_s),
                jitter_s: self.jitter_s.unwrap_or(policy.jitter_s),
                proof_timeout_ms: self.proof_timeout_ms.unwrap_or(policy.proof_timeout_ms),
                missed_limit: self.missed_limit.unwrap_or(policy.missed_limit),
                window_rounds: self.window_rounds.unwrap_or(policy.window_rounds),
                late_is_missed: self.late_is_missed.unwrap_or(policy.late_is_missed),
                release_mode,
            },
            reference,
            roll_out,
        })
    }
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
    let policies = groups.groups.into_iter().map(Policy::from).collect();
    page_query
        .paginate(policies, |policy: &Policy| policy.name.clone())
        .map(Json)
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
            change
                .apply(&group, before?)
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
    Ok(Json(stored.into()))
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
