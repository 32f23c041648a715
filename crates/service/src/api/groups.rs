//! Groups of attested devices: policies, reference values, roll-outs, requests of rounds.

use std::collections::HashMap;

use axum::extract::State;
use axum::http::StatusCode;
use linewarden_api::{
    ChangedGroup, ErrorBody, Group, GroupChange, GroupQuery, List, NewRollOut, PageQuery, Reason,
    ReasonQuery, RollOut,
};
use linewarden_measurement::configuration::Configuration;
use linewarden_registry::{self as registry, AttestationError, NewGroup, RegistryError};
use linewarden_types::{GroupName, GroupPolicy, ReleaseMode};

use super::devices::{new_event, run_action};
use super::lists::{Records, log_damaged, paginate};
use crate::auth::{Admin, Operator, Principal, Viewer};
use crate::clock::now_s;
use crate::error::{ApiError, Result};
use crate::extract::{Json, Path, Query};
use crate::state::App;

/// Number of attestation records per query.
const PAGE_RECORDS: u32 = 1_000;

/// Hash of a stored reference value; an error text if the value cannot be decoded, because a newer version stored it.
fn hash_of(reference: &[u8]) -> String {
    match Configuration::decode(reference) {
        Ok(configuration) => configuration.hash().to_string(),
        Err(error) => format!("unreadable: {error}"),
    }
}

fn group_from_record(group: registry::Group, devices: Option<u64>) -> Group {
    let policy = group.policy;
    Group {
        name: group.name.as_str().to_owned(),
        every_s: policy.every_s,
        jitter_s: policy.jitter_s,
        proof_timeout_ms: policy.proof_timeout_ms,
        missed_limit: policy.missed_limit,
        window_rounds: policy.window_rounds,
        late_is_missed: policy.late_is_missed,
        release_mode: match policy.release_mode {
            ReleaseMode::Automatic => "automatic",
            ReleaseMode::Manual => "manual",
        }
        .into(),
        reference: group.reference.as_deref().map(hash_of),
        roll_out: group.roll_out.map(|roll_out| RollOut {
            reference: hash_of(&roll_out.reference),
            until_s: roll_out.until_s,
        }),
        rounds_requested: group.rounds_requested,
        devices,
    }
}

fn new_group(group: registry::Group) -> NewGroup {
    NewGroup {
        name: group.name,
        policy: group.policy,
        reference: group.reference,
        roll_out: group.roll_out,
    }
}

/// The default policy for an interval.
fn default_policy(every_s: u32) -> GroupPolicy {
    let default = GroupPolicy::default();
    GroupPolicy {
        every_s,
        jitter_s: default.jitter_s.min(every_s / 2),
        proof_timeout_ms: default.proof_timeout_ms.min(every_s.saturating_mul(500)),
        ..default
    }
}

/// The policy after a change. A value that equals the default of the previous interval counts as not set by a user, and
/// becomes the default of the new interval.
fn changed_policy(change: &GroupChange, before: GroupPolicy) -> Result<GroupPolicy> {
    let every_s = change.every_s.unwrap_or(before.every_s);
    let (old_default, new_default) = (default_policy(before.every_s), default_policy(every_s));
    let follow = |value: u32, old: u32, new: u32| if value == old { new } else { value };
    let jitter_s = follow(before.jitter_s, old_default.jitter_s, new_default.jitter_s);
    let proof_timeout_ms = follow(
        before.proof_timeout_ms,
        old_default.proof_timeout_ms,
        new_default.proof_timeout_ms,
    );
    Ok(GroupPolicy {
        every_s,
        jitter_s: change.jitter_s.unwrap_or(jitter_s),
        proof_timeout_ms: change.proof_timeout_ms.unwrap_or(proof_timeout_ms),
        missed_limit: change.missed_limit.unwrap_or(before.missed_limit),
        window_rounds: change.window_rounds.unwrap_or(before.window_rounds),
        late_is_missed: change.late_is_missed.unwrap_or(before.late_is_missed),
        release_mode: match change.release_mode.as_deref() {
            None => before.release_mode,
            Some("automatic") => ReleaseMode::Automatic,
            Some("manual") => ReleaseMode::Manual,
            Some(_) => return Err(ApiError::invalid("release_mode", "automatic or manual")),
        },
    })
}

/// Decodes a reference value. Every device without measurements would prove an empty reference value.
fn parse_reference(digits: &str) -> Result<Vec<u8>> {
    let invalid = |problem: String| ApiError::invalid("reference", problem);
    let bytes = hex::decode(digits).map_err(|error| invalid(error.to_string()))?;
    let configuration = Configuration::decode(&bytes).map_err(|error| invalid(error.to_string()))?;
    match configuration.files().is_empty() && configuration.pcrs().selection().is_empty() {
        true => Err(invalid(
            "the reference value is an empty configuration".to_owned(),
        )),
        false => Ok(bytes),
    }
}

fn parse_group_name(text: String) -> Result<GroupName> {
    GroupName::new(text).map_err(|error| ApiError::invalid("name", error.to_string()))
}

fn unknown_group(group: &GroupName) -> RegistryError {
    RegistryError::Attestation(AttestationError::UnknownGroup { group: group.clone() })
}

/// Number of devices by group.
async fn count_devices(app: &App) -> Result<HashMap<GroupName, u64>> {
    let (mut devices, mut since): (HashMap<GroupName, u64>, u64) = (HashMap::new(), 0);
    loop {
        let page = app.registry.provers_since(since, PAGE_RECORDS).await?;
        for prover in page.provers.into_iter().filter(|prover| !prover.removed) {
            *devices.entry(prover.group).or_default() += 1;
        }
        since = page.up_to_revision;
        if !page.has_more {
            return Ok(devices);
        }
    }
}

/// Lists groups by name.
#[utoipa::path(get, path = "/api/v1/groups", params(GroupQuery), responses((status = 200, body = List<Group>), (status = 422, body = ErrorBody)))]
pub(crate) async fn list(
    _: Viewer,
    State(app): State<App>,
    Query(query): Query<GroupQuery>,
) -> Result<Json<List<Group>>> {
    let devices = match query.devices {
        Some(true) => Some(count_devices(&app).await?),
        _ => None,
    };
    let convert = |group: registry::Group| {
        let devices = devices
            .as_ref()
            .map(|devices| devices.get(&group.name).copied().unwrap_or_default());
        group_from_record(group, devices)
    };
    let _permit = app.group_permits.read().await;
    let groups = app.registry.groups().await?;
    let groups = Records {
        damaged: log_damaged(&groups.damaged),
        items: groups.groups.into_iter().map(convert).collect(),
    };
    let page_query = PageQuery {
        limit: query.limit,
        after: query.after,
    };
    paginate(&page_query, groups, |group: &Group| group.name.clone()).map(Json)
}

/// Shows a group, with the number of its devices.
#[utoipa::path(get, path = "/api/v1/groups/{name}", responses((status = 200, body = Group), (status = 404, body = ErrorBody)))]
pub(crate) async fn show(
    _: Viewer,
    State(app): State<App>,
    Path(group): Path<String>,
) -> Result<Json<Group>> {
    let name = parse_group_name(group)?;
    let mut group = find(&app, &name).await?;
    group.devices = Some(count_devices(&app).await?.remove(&name).unwrap_or_default());
    Ok(Json(group))
}

/// A group, without the number of its devices.
async fn find(app: &App, name: &GroupName) -> Result<Group> {
    let _permit = app.group_permits.read().await;
    let group = app.registry.group(name).await?;
    let group = group.ok_or_else(|| unknown_group(name))?;
    Ok(group_from_record(group, None))
}

/// Creates a group, or changes its policy or reference value. A local user creates a damaged group again.
#[utoipa::path(put, path = "/api/v1/groups/{name}", request_body = GroupChange, responses((status = 200, body = ChangedGroup), (status = 422, body = ErrorBody)))]
pub(crate) async fn set(
    Admin(principal): Admin,
    State(app): State<App>,
    Path(group): Path<String>,
    Json(change): Json<GroupChange>,
) -> Result<Json<ChangedGroup>> {
    let group = parse_group_name(group)?;
    let reference = change.reference.as_deref().map(parse_reference).transpose()?;
    let detail = match &reference {
        Some(reference) => format!("{group}: reference {}", hash_of(reference)),
        None => group.to_string(),
    };
    let event = new_event("group_changed", None, detail);
    let mut created = false;
    run_action(&app, &principal, &change.reason, event, async |registry| {
        let changing = registry.change_group(&group, now_s(), |before| -> Result<NewGroup> {
            let before = match before {
                Err(error) if principal.is_local() => {
                    tracing::warn!(%error, "group record is damaged; creating the group again");
                    None
                }
                before => before?,
            };
            created = before.is_none();
            let before = before.map_or_else(
                || NewGroup {
                    name: group.clone(),
                    policy: GroupPolicy::default(),
                    reference: None,
                    roll_out: None,
                },
                new_group,
            );
            Ok(NewGroup {
                policy: changed_policy(&change, before.policy)?,
                reference: reference.clone().or(before.reference),
                ..before
            })
        });
        changing.await
    })
    .await?;
    let group = find(&app, &group).await?;
    Ok(Json(ChangedGroup { group, created }))
}

/// Deletes a group without devices.
#[utoipa::path(delete, path = "/api/v1/groups/{name}", params(ReasonQuery), responses((status = 204), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(crate) async fn remove(
    Admin(principal): Admin,
    State(app): State<App>,
    Path(group): Path<String>,
    Query(ReasonQuery { reason }): Query<ReasonQuery>,
) -> Result<StatusCode> {
    let group = parse_group_name(group)?;
    let event = new_event("group_changed", None, format!("deleted {group}"));
    run_action(&app, &principal, &reason, event, async |registry| {
        Ok(registry.remove_group(&group).await?)
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Changes the roll-out or the reference value of an existing group; returns the group.
async fn change_roll_out(
    app: &App,
    principal: &Principal,
    (group, reason): (String, &str),
    detail: &str,
    change: impl Fn(&mut NewGroup) -> Result<()>,
) -> Result<Json<Group>> {
    let group = parse_group_name(group)?;
    let event = new_event("group_changed", None, format!("{group}: {detail}"));
    run_action(app, principal, reason, event, async |registry| {
        let changing = registry.change_group(&group, now_s(), |before| -> Result<NewGroup> {
            let mut changed = new_group(before?.ok_or_else(|| unknown_group(&group))?);
            change(&mut changed)?;
            Ok(changed)
        });
        changing.await
    })
    .await?;
    find(app, &group).await.map(Json)
}

fn end_roll_out(group: &mut NewGroup) -> Result<registry::RollOut> {
    let roll_out = group.roll_out.take();
    roll_out.ok_or_else(|| ApiError::invalid("roll_out", format!("group {} has no roll-out", group.name)))
}

/// Begins a roll-out: another reference value is also valid for a limited time. Replaces an earlier roll-out.
#[utoipa::path(post, path = "/api/v1/groups/{name}/roll-out", request_body = NewRollOut, responses((status = 200, body = Group), (status = 404, body = ErrorBody), (status = 422, body = ErrorBody)))]
pub(crate) async fn begin_roll_out(
    Admin(principal): Admin,
    State(app): State<App>,
    Path(group): Path<String>,
    Json(new): Json<NewRollOut>,
) -> Result<Json<Group>> {
    let reference = parse_reference(&new.reference)?;
    let until_s = now_s().saturating_add(new.for_s);
    let change = |group: &mut NewGroup| {
        group.roll_out = Some(registry::RollOut {
            reference: reference.clone(),
            until_s,
        });
        Ok(())
    };
    let detail = format!("roll-out of {} until {until_s} s", hash_of(&reference));
    change_roll_out(&app, &principal, (group, &new.reason), &detail, change).await
}

/// Ends a roll-out: its reference value replaces the old reference value.
#[utoipa::path(post, path = "/api/v1/groups/{name}/roll-out/approve", request_body = Reason, responses((status = 200, body = Group), (status = 404, body = ErrorBody), (status = 422, body = ErrorBody)))]
pub(crate) async fn approve_roll_out(
    Admin(principal): Admin,
    State(app): State<App>,
    Path(group): Path<String>,
    Json(Reason { reason }): Json<Reason>,
) -> Result<Json<Group>> {
    let change = |group: &mut NewGroup| {
        group.reference = Some(end_roll_out(group)?.reference);
        Ok(())
    };
    change_roll_out(&app, &principal, (group, &reason), "roll-out approved", change).await
}

/// Ends a roll-out: only the old reference value stays valid.
#[utoipa::path(delete, path = "/api/v1/groups/{name}/roll-out", params(ReasonQuery), responses((status = 200, body = Group), (status = 404, body = ErrorBody), (status = 422, body = ErrorBody)))]
pub(crate) async fn remove_roll_out(
    Admin(principal): Admin,
    State(app): State<App>,
    Path(group): Path<String>,
    Query(ReasonQuery { reason }): Query<ReasonQuery>,
) -> Result<Json<Group>> {
    let change = |group: &mut NewGroup| end_roll_out(group).map(drop);
    change_roll_out(&app, &principal, (group, &reason), "roll-out deleted", change).await
}

/// Requests an immediate round of a group.
#[utoipa::path(post, path = "/api/v1/groups/{name}/round", request_body = Reason, responses((status = 200, body = Group), (status = 404, body = ErrorBody)))]
pub(crate) async fn request_round(
    Operator(principal): Operator,
    State(app): State<App>,
    Path(group): Path<String>,
    Json(Reason { reason }): Json<Reason>,
) -> Result<Json<Group>> {
    let group = parse_group_name(group)?;
    let event = new_event("round_requested", None, group.as_str());
    run_action(&app, &principal, &reason, event, async |registry| {
        Ok(registry.request_round(&group).await?)
    })
    .await?;
    find(&app, &group).await.map(Json)
}
