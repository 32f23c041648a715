//! What all lists have in common.

use std::fmt::Display;
use std::str::FromStr;

use linewarden_protocol::ids::{DeviceId, GatewayId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::error::{ApiError, Result};

const LIMIT_DEFAULT: u32 = 100;
const LIMIT_MAX: u32 = 1_000;

/// A part of a list.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct List<T> {
    /// What is in it.
    pub items: Vec<T>,
    /// Where it goes on, for `after`; null at its end.
    pub next: Option<String>,
}

/// Which part of a list.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Part {
    /// How many at most: 1 to 1000; 100 if not given.
    pub limit: Option<u32>,
    /// From the `next` of the part before.
    pub after: Option<String>,
}

impl Part {
    pub(crate) fn limit(&self) -> Result<u32> {
        match self.limit.unwrap_or(LIMIT_DEFAULT) {
            limit @ 1..=LIMIT_MAX => Ok(limit),
            _ => Err(ApiError::invalid("limit", "1 to 1000 are given at once")),
        }
    }

    pub(crate) fn after_device(&self) -> Result<Option<DeviceId>> {
        self.after.as_deref().map(|id| device(id, "after")).transpose()
    }

    pub(crate) fn after_number(&self) -> Result<Option<u64>> {
        self.after_parsed()
    }

    pub(crate) fn after_parsed<T: FromStr>(&self) -> Result<Option<T>> {
        let parsed = |text: &str| {
            text.parse()
                .map_err(|_| ApiError::invalid("after", "take it from `next` of the part before"))
        };
        self.after.as_deref().map(parsed).transpose()
    }

    /// Of a list that is read whole, as there are few of its kind: what stands behind `after`, in the order of `key`, which no two have.
    pub(crate) fn of<T, K>(&self, mut items: Vec<T>, key: impl Fn(&T) -> K) -> Result<List<T>>
    where
        K: Display + FromStr + Ord,
    {
        let limit = self.limit()? as usize;
        if let Some(after) = self.after_parsed::<K>()? {
            items.retain(|item| key(item) > after);
        }
        items.sort_by_cached_key(&key);
        let is_more = items.len() > limit;
        items.truncate(limit);
        let last = items.last().filter(|_| is_more);
        Ok(List {
            next: last.map(|last| key(last).to_string()),
            items,
        })
    }
}

/// A device's id: 1 to 16 hexadecimal digits.
pub(crate) fn device(id: &str, field: &str) -> Result<DeviceId> {
    let is_id = (1..=16).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u64::from_str_radix(id, 16)
        .ok()
        .filter(|number| is_id && *number != 0);
    number
        .map(DeviceId)
        .ok_or_else(|| ApiError::invalid(field, "a device's id is 1 to 16 hexadecimal digits, not all zero"))
}

/// A gateway's number.
pub(crate) fn gateway(id: &str) -> Result<GatewayId> {
    id.parse()
        .map(GatewayId)
        .map_err(|_| ApiError::invalid("gateway", "a gateway's id is a number from 0 to 4294967295"))
}

/// Why something is done: kept with what is done.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// For people.
    pub reason: String,
}
