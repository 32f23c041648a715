//! Audit log: actor, action and reason of each change.

use axum::extract::State;
use linewarden_api::{AuditQuery, AuditRecord, List};
use linewarden_registry::{EventFilter, EventLogEntry};

use super::lists::{parse_cursor, parse_limit};
use super::login::role_name;
use crate::auth::Admin;
use crate::error::Result;
use crate::extract::{Json, Query};
use crate::state::App;

/// Converts an entry of the event log to an audit record; `None` if no user caused the event.
fn audit_record_from_entry(entry: EventLogEntry) -> Option<AuditRecord> {
    let actor = entry.actor?;
    Some(AuditRecord {
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

/// Converts a query to a filter for the registry.
fn audit_filter(query: &AuditQuery) -> EventFilter {
    EventFilter {
        kinds: query.action.iter().cloned().collect(),
        actor: query.actor.clone(),
        actions_only: true,
        ..EventFilter::default()
    }
}

/// Lists audit records, newest first.
#[utoipa::path(get, path = "/api/v1/audit", params(AuditQuery), responses((status = 200, body = List<AuditRecord>)))]
pub(crate) async fn list(
    _: Admin,
    State(app): State<App>,
    Query(query): Query<AuditQuery>,
) -> Result<Json<List<AuditRecord>>> {
    let page = app
        .registry
        .events(
            &audit_filter(&query),
            parse_cursor(query.after.as_deref())?,
            parse_limit(query.limit)?,
        )
        .await?;
    Ok(Json(List {
        items: page
            .entries
            .into_iter()
            .filter_map(audit_record_from_entry)
            .collect(),
        next: page.next.map(|number| number.to_string()),
        damaged_records: 0,
    }))
}
