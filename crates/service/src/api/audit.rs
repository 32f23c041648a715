//! Who had what done, and why.

use axum::Json;
use axum::extract::{Query, State};
use linewarden_registry::{Entry, JournalFilter};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::lists::{List, Part};
use super::login::role_name;
use crate::auth::Admin;
use crate::error::Result;
use crate::state::App;

/// Something that somebody had done, or wanted to.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Act {
    id: u64,
    at_s: u64,
    by: String,
    role: &'static str,
    /// The address that it came from.
    from: String,
    what: String,
    device: Option<String>,
    gateway: Option<u32>,
    reason: String,
    /// ok or refused
    outcome: &'static str,
    detail: String,
    /// Whether this entry, and that one came before it, is as it was written.
    authentic: bool,
}

fn act(entry: Entry) -> Option<Act> {
    let actor = entry.actor?;
    Some(Act {
        id: entry.number,
        at_s: entry.at_ms / 1000,
        by: actor.name,
        role: role_name(actor.role),
        from: actor.origin,
        what: entry.note.kind,
        device: entry.note.device.map(|device| device.to_string()),
        gateway: entry.note.gateway.map(|gateway| gateway.0),
        reason: entry.reason.unwrap_or_default(),
        outcome: match entry.refused {
            true => "refused",
            false => "ok",
        },
        detail: entry.note.detail,
        authentic: entry.authentic,
    })
}

/// Which.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Which {
    /// By whom.
    by: Option<String>,
    /// What: `revoked`, `enrolled`, ..
    what: Option<String>,
    /// How many at most: 1 to 1000; 100 if not given.
    limit: Option<u32>,
    /// From the `next` of the part before.
    after: Option<String>,
}

/// Who had what done, newest first.
#[utoipa::path(get, path = "/api/v1/audit", params(Which), responses((status = 200, body = List<Act>)))]
pub(crate) async fn list(
    _: Admin,
    State(app): State<App>,
    Query(which): Query<Which>,
) -> Result<Json<List<Act>>> {
    let part = Part {
        limit: which.limit,
        after: which.after,
    };
    let filter = JournalFilter {
        kinds: which.what.into_iter().collect(),
        who: which.by,
        acts_only: true,
        ..JournalFilter::default()
    };
    let page = app
        .registry
        .journal(&filter, part.after_number()?, part.limit()?)
        .await?;
    Ok(Json(List {
        items: page.entries.into_iter().filter_map(act).collect(),
        next: page.next.map(|number| number.to_string()),
    }))
}
