//! Who had what done, and why.

use std::borrow::Cow;

use axum::extract::State;
use linewarden_registry::{Entry, JournalFilter};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::lists::{List, Part};
use super::login::role_name;
use crate::auth::Admin;
use crate::error::Result;
use crate::extract::{Json, Query};
use crate::state::App;

/// Something that somebody had done, or wanted to.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Act {
    /// Its number in the journal.
    pub id: u64,
    /// When.
    pub at_s: u64,
    /// Who.
    pub by: String,
    /// As what: viewer, operator or admin.
    pub role: Cow<'static, str>,
    /// The address that it came from.
    pub from: String,
    /// What.
    pub what: String,
    /// To which device.
    pub device: Option<String>,
    /// To which gateway.
    pub gateway: Option<u32>,
    /// Why.
    pub reason: String,
    /// ok or refused
    pub outcome: Cow<'static, str>,
    /// More of what.
    pub detail: String,
    /// Whether this entry, and that one came before it, is as it was written.
    pub authentic: bool,
}

impl Act {
    /// Of an entry of the journal that somebody has had done.
    #[must_use]
    pub fn of(entry: Entry) -> Option<Self> {
        let actor = entry.actor?;
        Some(Self {
            id: entry.number,
            at_s: entry.at_ms / 1000,
            by: actor.name,
            role: role_name(actor.role).into(),
            from: actor.origin,
            what: entry.note.kind,
            device: entry.note.device.map(|device| device.to_string()),
            gateway: entry.note.gateway.map(|gateway| gateway.0),
            reason: entry.reason.unwrap_or_default(),
            outcome: match entry.refused {
                true => "refused",
                false => "ok",
            }
            .into(),
            detail: entry.note.detail,
            authentic: entry.authentic,
        })
    }
}

/// Which.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct WhichActs {
    /// By whom.
    pub by: Option<String>,
    /// What: `revoked`, `enrolled`, ..
    pub what: Option<String>,
    /// How many at most: 1 to 1000; 100 if not given.
    pub limit: Option<u32>,
    /// From the `next` of the part before.
    pub after: Option<String>,
}

impl WhichActs {
    /// As the registry is asked.
    #[must_use]
    pub fn filter(&self) -> JournalFilter {
        JournalFilter {
            kinds: self.what.iter().cloned().collect(),
            who: self.by.clone(),
            acts_only: true,
            ..JournalFilter::default()
        }
    }
}

/// Who had what done, newest first.
#[utoipa::path(get, path = "/api/v1/audit", params(WhichActs), responses((status = 200, body = List<Act>)))]
pub(crate) async fn list(
    _: Admin,
    State(app): State<App>,
    Query(which): Query<WhichActs>,
) -> Result<Json<List<Act>>> {
    let filter = which.filter();
    let part = Part {
        limit: which.limit,
        after: which.after,
    };
    let page = app
        .registry
        .journal(&filter, part.after_number()?, part.limit()?)
        .await?;
    Ok(Json(List {
        items: page.entries.into_iter().filter_map(Act::of).collect(),
        next: page.next.map(|number| number.to_string()),
    }))
}
