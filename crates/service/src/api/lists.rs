//! Pagination and parameters that all lists share.

use std::fmt::Display;
use std::str::FromStr;

use linewarden_api::{List, PageQuery};
use linewarden_protocol::ids::{DeviceId, GatewayId};

use crate::error::{ApiError, Result};

const LIMIT_DEFAULT: u32 = 100;
const LIMIT_MAX: u32 = 1_000;

/// Checks the maximum number of items of a page.
pub(crate) fn parse_limit(limit: Option<u32>) -> Result<u32> {
    match limit.unwrap_or(LIMIT_DEFAULT) {
        limit @ 1..=LIMIT_MAX => Ok(limit),
        _ => Err(ApiError::invalid("limit", "expected 1 to 1000")),
    }
}

/// Parses a cursor that is a device id.
pub(crate) fn parse_device_cursor(after: Option<&str>) -> Result<Option<DeviceId>> {
    after.map(|id| parse_device_id(id, "after")).transpose()
}

/// Parses a cursor.
pub(crate) fn parse_cursor<T: FromStr>(after: Option<&str>) -> Result<Option<T>> {
    let parse = |text: &str| {
        text.parse()
            .map_err(|_| ApiError::invalid("after", "invalid cursor; use `next` of the previous page"))
    };
    after.map(parse).transpose()
}

/// The readable records of a complete list.
pub(crate) struct Records<T> {
    pub(crate) items: Vec<T>,
    /// Number of damaged records.
    pub(crate) damaged: u64,
}

impl<T> Records<T> {
    /// Reads records, and logs damaged records.
    pub(crate) fn read<R, E: Display>(
        records: impl IntoIterator<Item = std::result::Result<R, E>>,
        convert: impl Fn(R) -> T,
    ) -> Self {
        let (mut items, mut errors) = (Vec::new(), Vec::new());
        for record in records {
            match record {
                Ok(record) => items.push(convert(record)),
                Err(error) => errors.push(error),
            }
        }
        Self {
            items,
            damaged: log_damaged(&errors),
        }
    }
}

/// Logs damaged records; returns their number.
pub(crate) fn log_damaged(errors: &[impl Display]) -> u64 {
    for error in errors {
        tracing::error!(
            %error,
            action = "run `linewarden registry check`",
            "registry record is damaged; skipped"
        );
    }
    errors.len() as u64
}

/// Returns a page of a complete list: the items with a key above the cursor, sorted by key. `key` returns the unique key of an
/// item. The first page contains the number of damaged records of the complete list.
///
/// # Errors
/// An invalid limit or cursor.
pub(crate) fn paginate<T, K>(
    page_query: &PageQuery,
    records: Records<T>,
    key: impl Fn(&T) -> K,
) -> Result<List<T>>
where
    K: Display + FromStr + Ord,
{
    let limit = parse_limit(page_query.limit)? as usize;
    let mut items = records.items;
    if let Some(after) = parse_cursor::<K>(page_query.after.as_deref())? {
        items.retain(|item| key(item) > after);
    }
    items.sort_by_cached_key(&key);
    let has_more = items.len() > limit;
    items.truncate(limit);
    let last = items.last().filter(|_| has_more);
    Ok(List {
        next: last.map(|last| key(last).to_string()),
        items,
        damaged_records: match page_query.after {
            None => records.damaged,
            Some(_) => 0,
        },
    })
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
