//! Events and audit records.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// An event of the event log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventRecord {
    /// Number in the event log.
    pub id: u64,
    /// Time, milliseconds since 1970-01-01 UTC.
    pub at_ms: u64,
    /// Event kind: `revoked`, `enrolled`, ..
    pub kind: String,
    /// The gateway concerned.
    pub gateway: Option<u32>,
    /// The device concerned.
    pub device: Option<String>,
    /// Details.
    pub detail: String,
    /// The user whose action caused the event, if any.
    pub actor: Option<String>,
    /// Reason of the action.
    pub reason: Option<String>,
}

/// A query for past events.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct EventHistoryQuery {
    /// Only these kinds, separated by commas.
    pub kinds: Option<String>,
    /// Only events of this device.
    pub device: Option<String>,
    /// Only events of this gateway.
    pub gateway: Option<String>,
    /// Maximum number of items: 1 to 1000, default 100.
    pub limit: Option<u32>,
    /// The cursor: `next` of the previous page.
    pub after: Option<String>,
}

/// An audit record: an action of a user, carried out or refused.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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

/// A query for audit records.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
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
