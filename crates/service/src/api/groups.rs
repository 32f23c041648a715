//! Policies: what groups of devices are to run, and how they are asked.

use std::borrow::Cow;

use axum::extract::State;
use linewarden_registry::{Group, GroupName, GroupPolicy, NewGroup, Reopen};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::devices::{act, note};
use super::lists::{List, Part, Reason};
use crate::auth::{Admin, Operator, Viewer};
use crate::clock::now_s;
use crate::error::{ApiError, ErrorBody, Result};
use crate::extract::{Json, Path, Query};
use crate::state::App;

/// A group's policy.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Policy {
    /// Its name.
    pub name: String,
    /// Seconds from one round to the next.
    pub every_s: u32,
    /// A round begins up to so many seconds earlier or later.
    pub jitter_s: u32,
    /// A proof that takes longer is late.
    pub answer_ms: u32,
    /// So many silences ..
    pub silent: u32,
    /// .. in so many rounds put a device into quarantine.
    pub of_rounds: u32,
    /// Whether a late proof counts as silence.
    pub late_is_silent: bool,
    /// automatic or command
    pub reopen: Cow<'static, str>,
    /// Whether it is said what its devices are to run.
    pub has_reference: bool,
    /// Until when devices may run something else as well.
    pub roll_out_until_s: Option<u64>,
    /// Rounds that were asked for by hand.
    pub rounds_wanted: u64,
}

impl From<Group> for Policy {
    fn from(group: Group) -> Self {
        Self {
            name: group.name.as_str().to_owned(),
            every_s: group.policy.every_s,
            jitter_s: group.policy.jitter_s,
            answer_ms: group.policy.answer_ms,
            silent: group.policy.silent,
            of_rounds: group.policy.of,
            late_is_silent: group.policy.late_is_silent,
            reopen: match group.policy.reopen {
                Reopen::Automatic => "automatic",
                Reopen::ByCommand => "command",
            }
            .into(),
            has_reference: group.reference.is_some(),
            roll_out_until_s: group.roll_out.map(|roll_out| roll_out.until_s),
            rounds_wanted: group.rounds_wanted,
        }
    }
}

/// What of a policy is to change; what is left out stays, or is as `linewarden attest group` has it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyChange {
    /// Seconds from one round to the next.
    pub every_s: Option<u32>,
    /// A round begins up to so many seconds earlier or later.
    pub jitter_s: Option<u32>,
    /// A proof that takes longer is late.
    pub answer_ms: Option<u32>,
    /// So many silences ..
    pub silent: Option<u32>,
    /// .. in so many rounds put a device into quarantine.
    pub of_rounds: Option<u32>,
    /// Whether a late proof counts as silence.
    pub late_is_silent: Option<bool>,
    /// automatic or command
    pub reopen: Option<String>,
    /// Why.
    pub reason: String,
}

impl PolicyChange {
    /// The group as it is to be.
    ///
    /// # Errors
    /// A field that holds none of what it may, and what that is.
    pub fn apply(
        &self,
        name: &GroupName,
        before: Option<Group>,
    ) -> Result<NewGroup, (&'static str, &'static str)> {
        let policy = before
            .as_ref()
            .map_or_else(GroupPolicy::default, |group| group.policy);
        let reopen = match self.reopen.as_deref() {
            None => policy.reopen,
            Some("automatic") => Reopen::Automatic,
            Some("command") => Reopen::ByCommand,
            Some(_) => return Err(("reopen", "automatic or command")),
        };
        let (reference, roll_out) = before.map_or((None, None), |group| (group.reference, group.roll_out));
        Ok(NewGroup {
            name: name.clone(),
            policy: GroupPolicy {
                every_s: self.every_s.unwrap_or(policy.every_s),
                jitter_s: self.jitter_s.unwrap_or(policy.jitter_s),
                answer_ms: self.answer_ms.unwrap_or(policy.answer_ms),
                silent: self.silent.unwrap_or(policy.silent),
                of: self.of_rounds.unwrap_or(policy.of),
                late_is_silent: self.late_is_silent.unwrap_or(policy.late_is_silent),
                reopen,
            },
            reference,
            roll_out,
        })
    }
}

fn name(text: String) -> Result<GroupName> {
    GroupName::new(text).map_err(|error| ApiError::invalid("name", error.to_string()))
}

/// Groups, by name.
#[utoipa::path(get, path = "/api/v1/policies", params(Part), responses((status = 200, body = List<Policy>), (status = 422, body = ErrorBody)))]
pub(crate) async fn list(
    _: Viewer,
    State(app): State<App>,
    Query(part): Query<Part>,
) -> Result<Json<List<Policy>>> {
    let groups = app.registry.groups().await?;
    for error in &groups.damaged {
        tracing::error!(error, "left out of a list");
    }
    let policies = groups.groups.into_iter().map(Policy::from).collect();
    part.of(policies, |policy: &Policy| policy.name.clone()).map(Json)
}

/// Makes a group, or changes how it is asked.
#[utoipa::path(put, path = "/api/v1/policies/{name}", request_body = PolicyChange, responses((status = 200, body = Policy), (status = 422, body = ErrorBody)))]
pub(crate) async fn set(
    Admin(principal): Admin,
    State(app): State<App>,
    Path(group): Path<String>,
    Json(change): Json<PolicyChange>,
) -> Result<Json<Policy>> {
    let group = name(group)?;
    let what = note("policy", None, group.as_str());
    act(&app, &principal, &change.reason, what, async |registry| {
        let set = registry.change_group(&group, now_s(), |before| -> Result<NewGroup> {
            change
                .apply(&group, before?)
                .map_err(|(field, problem)| ApiError::invalid(field, problem))
        });
        set.await
    })
    .await?;
    one(&app, &group).await
}

async fn one(app: &App, group: &GroupName) -> Result<Json<Policy>> {
    let found = app.registry.group(group).await?;
    let found = found.ok_or_else(|| ApiError::not_found("such group"))?;
    Ok(Json(found.into()))
}

/// Has a group asked now.
#[utoipa::path(post, path = "/api/v1/policies/{name}/round", request_body = Reason, responses((status = 200, body = Policy), (status = 404, body = ErrorBody)))]
pub(crate) async fn round(
    Operator(principal): Operator,
    State(app): State<App>,
    Path(group): Path<String>,
    Json(Reason { reason }): Json<Reason>,
) -> Result<Json<Policy>> {
    let group = name(group)?;
    let what = note("round_wanted", None, group.as_str());
    act(&app, &principal, &reason, what, async |registry| {
        Ok(registry.want_round(&group).await?)
    })
    .await?;
    one(&app, &group).await
}
