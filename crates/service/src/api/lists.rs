//! Pagination and parameters that all lists share.

use std::fmt::Display;
use std::str::FromStr;

use linewarden_protocol::ids::{DeviceId, GatewayId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::error::{ApiError, Result};

const LIMIT_DEFAULT: u32 = 100;
const LIMIT_MAX: u32 = 1_000;

/// A page of a list.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct List<T> {
    /// The items.
    pub items: Vec<T>,
    /// The cursor of the next page, for `after`; null at the end.
    pub next: Option<String>,
}

/// Parameters of a page.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    /// Maximum number of items: 1 to 1000, default 100.
    pub limit: Option<u32>,
    /// The cursor: `next` of the previous page.
    pub after: Option<String>,
}

impl PageQuery {
    pub(crate) fn limit(&self) -> Result<u32> {
        match self.limit.unwrap_or(LIMIT_DEFAULT) {
            limit @ 1..=LIMIT_MAX => Ok(limit),
            _ => Err(ApiError::invalid("limit", "expected 1 to 1000")),
        }
    }

    pub(crate) fn after_device(&self) -> Result<Option<DeviceId>> {
        self.after
            .as_deref()
            .map(|id| parse_device_id(id, "after"))
            .transpose()
    }

    pub(crate) fn after_number(&self) -> Result<Option<u64>> {
        self.after_parsed()
    }

    pub(crate) fn after_parsed<T: FromStr>(&self) -> Result<Option<T>> {
        let parse = |text: &str| {
            text.parse()
                .map_err(|_| ApiError::invalid("after", "invalid cursor; use `next` of the previous page"))
        };
        self.after.as_deref().map(parse).transpose()
    }

    /// Returns a page of the complete list `items`: the items with a key above the cursor, sorted by key. `key` returns the
    /// unique key of an item.
    ///
    /// # Errors
    /// An invalid limit or cursor.
    pub(crate) fn paginate<T, K>(&self, mut items: Vec<T>, key: impl Fn(&T) -> K) -> Result<List<T>>
    where
        K: Display + FromStr + Ord,
    {
        let limit = self.limit()? as usize;
        if let Some(after) = self.after_parsed::<K>()? {
            items.retain(|item| key(item) > after);
        }
        items.sort_by_cached_key(&key);
        let has_more = items.len() > limit;
        items.truncate(limit);
        let last = items.last().filter(|_| has_more);
        Ok(List {
            next: last.map(|last| key(last).to_string()),
            items,
        })
    }
}

/// Parses a device id: 1 to 16 hexadecimal digits.
pub(crate) fn parse_device_id(id: &str, field: &str) -> Result<DeviceId> {
    let is_valid = (1..=16).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u64::from_str_radix(id, 16)
        .ok()
        .filter(|number| is_valid && *number != 0);
    number
        .map(DeviceId)
        .ok_or_else(|| ApiError::invalid(field, "a device id is 1 to 16 hexadecimal digits, not all zero"))
}

/// Parses a gateway id.
pub(crate) fn parse_gateway_id(id: &str) -> Result<GatewayId> {
    id.parse()
        .map(GatewayId)
        .map_err(|_| ApiError::invalid("gateway", "a gateway id is a number from 0 to 4294967295"))
}

/// The reason of an action, stored in the registry audit log.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// The reason, for display.
    pub reason: String,
}
