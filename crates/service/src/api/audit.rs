//! Audit log: actor, action and reason of each change.

use std::borrow::Cow;

use axum::extract::State;
use linewarden_registry::{EventFilter, EventLogEntry};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::lists::{List, PageQuery};
use super::login::role_name;
use crate::auth::Admin;
use crate::error::Result;
use crate::extract::{Json, Query};
use crate::state::App;

/// An audit record: an action of a user, carried out or refused.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct AuditRecord {
    /// The number in the event log.
    pub id: u64,
    /// Time, seconds since 1970-01-01 UTC.
    pub at_s: u64,
    /// The user.
    pub actor: String,
    /// The role of the user: viewer, operator or admin.
    pub role: Cow<'static, str>,
    /// The address that the request came from.
    pub origin: String,
    /// The action: `revoked`, `enrolled`, ..
    pub action: String,
    /// The target device.
    pub device: Option<String>,
    /// The target gateway.
    pub gateway: Option<u32>,
    /// The reason.
    pub reason: String,
    /// ok or refused
    pub outcome: Cow<'static, str>,
    /// Details.
    pub detail: String,
    /// Whether the record is unmodified and directly follows the previous record.
    pub authentic: bool,
}

impl AuditRecord {
    /// The audit record of an event; `None` if no user caused the event.
    #[must_use]
    pub fn from_entry(entry: EventLogEntry) -> Option<Self> {
        let actor = entry.actor?;
        Some(Self {
            id: entry.number,
            at_s: entry.at_ms / 1000,
            actor: actor.name,
            role: role_name(actor.role).into(),
            origin: actor.origin,
            action: entry.event.kind,
            device: entry.event.device.map(|device| device.to_string()),
            gateway: entry.event.gateway.map(|gateway| gateway.0),
            reason: entry.reason.unwrap_or_default(),
            outcome: match entry.refused {
                true => "refused",
                false => "ok",
            }
            .into(),
            detail: entry.event.detail,
            authentic: entry.authentic,
        })
    }
}

/// A query for audit records.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct AuditQuery {
    /// Only actions of this user.
    pub actor: Option<String>,
    /// Only this action: `revoked`, `enrolled`, ..
    pub action: Option<String>,
    /// Maximum number of items: 1 to 1000, default 100.
    pub limit: Option<u32>,
    /// The cursor: `next` of the previous page.
    pub after: Option<String>,
}

impl AuditQuery {
    /// The filter for the registry.
    #[must_use]
    pub fn filter(&self) -> EventFilter {
        EventFilter {
            kinds: self.action.iter().cloned().collect(),
            actor: self.actor.clone(),
            actions_only: true,
            ..EventFilter::default()
        }
    }
}

/// Lists audit records, newest first.
#[utoipa::path(get, path = "/api/v1/audit", params(AuditQuery), responses((status = 200, body = List<AuditRecord>)))]
pub(crate) async fn list(
    _: Admin,
    State(app): State<App>,
    Query(query): Query<AuditQuery>,
) -> Result<Json<List<AuditRecord>>> {
    let filter = query.filter();
    let page_query = PageQuery {
        limit: query.limit,
        after: query.after,
    };
    let page = app
        .registry
        .events(&filter, page_query.after_number()?, page_query.limit()?)
        .await?;
    Ok(Json(List {
        items: page
            .entries
            .into_iter()
            .filter_map(AuditRecord::from_entry)
            .collect(),
        next: page.next.map(|number| number.to_string()),
    }))
}
