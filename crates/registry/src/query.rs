//! Queries for devices: one device, a page of a list, a count.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use linewarden_protocol::ids::{DeviceId, Mode};

use crate::conversion::{
    DeviceColumns, device_columns, device_info, id_from_column, id_to_column, mode_to_column,
};
use crate::device::DeviceInfo;
use crate::enroll::PushIds as _;
use crate::error::{DeviceError, RegistryError, Result};
use crate::sql::{self, Builder, Connection};
use crate::store::Registry;

/// The devices that a list or a count covers; the default is all devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceFilter {
    /// Only devices whose name starts with this prefix (case-sensitive).
    pub name_prefix: Option<String>,
    /// Only devices with an id in this range.
    pub ids: Option<RangeInclusive<DeviceId>>,
    /// Only devices of this mode.
    pub mode: Option<Mode>,
    /// Only devices that may authenticate (`true`), or only revoked devices (`false`).
    pub active: Option<bool>,
    /// Only devices in quarantine.
    pub quarantined: bool,
}

/// A page of a list.
#[derive(Debug)]
pub struct DevicePage {
    /// The devices, in the order of the list.
    pub devices: Vec<DeviceInfo>,
    /// Errors of records that could not be read, each with the device id.
    pub damaged: Vec<RegistryError>,
    /// The device id to continue after; `None` at the end.
    pub next: Option<DeviceId>,
}

impl Registry {
    /// The record of a device.
    ///
    /// # Errors
    /// [`DeviceError::UnknownDevice`], a damaged record, or a failure of the database.
    pub async fn get(&self, device: DeviceId) -> Result<DeviceInfo> {
        let mut connection = self.reader().acquire().await?;
        self.get_in(&mut connection, device).await
    }

    /// The record of a device, read in the caller's connection or transaction.
    pub(crate) async fn get_in(&self, connection: &mut Connection, device: DeviceId) -> Result<DeviceInfo> {
        let record: Option<DeviceColumns> = sql::query(concat!(
            "SELECT ",
            device_columns!(),
            " FROM device WHERE device_id = $1"
        ))
        .bind(id_to_column(device))
        .fetch_optional(connection)
        .await?;
        device_info(
            self.authenticator(),
            record.ok_or(RegistryError::Device(DeviceError::UnknownDevice { device }))?,
        )
    }

    /// The records of the given devices; an error for each damaged record. Devices that are not enrolled are absent.
    pub(crate) async fn get_many_in(
        &self,
        connection: &mut Connection,
        devices: impl Iterator<Item = DeviceId>,
    ) -> Result<HashMap<DeviceId, Result<DeviceInfo>>> {
        let mut query = Builder::new(concat!(
            "SELECT ",
            device_columns!(),
            " FROM device WHERE device_id IN "
        ));
        query.push_ids(devices);
        let records: Vec<DeviceColumns> = query.build().fetch_all(connection).await?;
        Ok(records
            .into_iter()
            .map(|record| {
                (
                    id_from_column(record.id.0),
                    device_info(self.authenticator(), record),
                )
            })
            .collect())
    }

    /// The next `limit` devices after `after` that match the filter: by ascending id, or by name and id if the filter
    /// has a name prefix.
    ///
    /// Start with `None`, and continue with [`DevicePage::next`] until `next` is `None`.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn list(
        &self,
        filter: &DeviceFilter,
        after: Option<DeviceId>,
        limit: u32,
    ) -> Result<DevicePage> {
        let mut connection = self.reader().acquire().await?;
        let limit = limit.max(1);
        let records = match filter.name_prefix {
            Some(_) => list_by_name(&mut connection, filter, after, limit).await?,
            None => list_by_id(&mut connection, filter, after, limit).await?,
        };
        let is_full = u32::try_from(records.len()).is_ok_and(|count| count >= limit);
        let mut page = DevicePage {
            next: records
                .last()
                .filter(|_| is_full)
                .map(|record| id_from_column(record.id.0)),
            devices: Vec::with_capacity(records.len()),
            damaged: Vec::new(),
        };
        for record in records {
            match device_info(self.authenticator(), record) {
                Ok(info) => page.devices.push(info),
                Err(error) => page.damaged.push(error),
            }
        }
        Ok(page)
    }

    /// The number of devices that match the filter.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn count(&self, filter: &DeviceFilter) -> Result<u64> {
        let mut query = Builder::new("SELECT COUNT(*) FROM device WHERE 1 = 1");
        filter.push_ids(&mut query);
        filter.push_conditions(&mut query);
        let (count,): (i64,) = query.build().fetch_one(self.reader()).await?;
        Ok(u64::try_from(count).unwrap_or(0))
    }
}

async fn list_by_id(
    connection: &mut Connection,
    filter: &DeviceFilter,
    after: Option<DeviceId>,
    limit: u32,
) -> Result<Vec<DeviceColumns>> {
    let mut records: Vec<DeviceColumns> = Vec::new();
    let (first, last) = filter
        .ids
        .as_ref()
        .map_or((0, u64::MAX), |ids| (ids.start().0, ids.end().0));
    let Some(first) = after
        .map_or(Some(0), |after| after.0.checked_add(1))
        .map(|next| next.max(first))
    else {
        return Ok(records);
    };
    // Ids are stored bit-cast to i64, so the upper half of the ids is negative. The lower half is listed first.
    for half in [0..=i64::MAX, i64::MIN..=-1] {
        let remaining = i64::from(limit) - i64::try_from(records.len()).unwrap_or(i64::MAX);
        let first = first.max(half.start().cast_unsigned());
        let last = last.min(half.end().cast_unsigned());
        if remaining <= 0 || first > last {
            continue;
        }
        let mut query = Builder::new(concat!(
            "SELECT ",
            device_columns!(),
            " FROM device WHERE device_id >= "
        ));
        query
            .push_bind(first.cast_signed())
            .push(" AND device_id <= ")
            .push_bind(last.cast_signed());
        filter.push_conditions(&mut query);
        query.push(" ORDER BY device_id LIMIT ").push_bind(remaining);
        records.extend(query.build().fetch_all::<DeviceColumns>(&mut *connection).await?);
    }
    Ok(records)
}

async fn list_by_name(
    connection: &mut Connection,
    filter: &DeviceFilter,
    after: Option<DeviceId>,
    limit: u32,
) -> Result<Vec<DeviceColumns>> {
    let mut query = Builder::new(concat!("SELECT ", device_columns!(), " FROM device WHERE "));
    match after.map(id_to_column) {
        Some(after) => query
            .push("(name, device_id) > ((SELECT last.name FROM device AS last WHERE last.device_id = ")
            .push_bind(after)
            .push("), ")
            .push_bind(after)
            .push(")"),
        None => query.push("1 = 1"),
    };
    filter.push_ids(&mut query);
    filter.push_conditions(&mut query);
    query
        .push(" ORDER BY name, device_id LIMIT ")
        .push_bind(i64::from(limit));
    Ok(query.build().fetch_all(connection).await?)
}

/// The range of ids whose 16 hexadecimal digits start with these 1 to 16 digits. `None` for any other text.
#[must_use]
pub fn ids_with_prefix(digits: &str) -> Option<RangeInclusive<DeviceId>> {
    if digits.is_empty() || digits.len() > 16 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let first = u64::from_str_radix(&format!("{digits:0<16}"), 16).ok()?;
    let last = u64::from_str_radix(&format!("{digits:f<16}"), 16).ok()?;
    Some(DeviceId(first)..=DeviceId(last))
}

/// The lowest text above all texts with this prefix; `None` if no text is above them.
fn upper_bound(prefix: &str) -> Option<String> {
    let mut characters: Vec<char> = prefix.chars().collect();
    while let Some(last) = characters.pop() {
        // No character exists between U+D7FF and U+E000.
        let next = match last {
            '\u{d7ff}' => Some('\u{e000}'),
            other => char::from_u32(u32::from(other).saturating_add(1)),
        };
        if let Some(next) = next {
            characters.push(next);
            return Some(characters.into_iter().collect());
        }
    }
    None
}

impl DeviceFilter {
    /// Appends the condition of [`DeviceFilter::ids`]. [`list_by_id`] does not use this function: its own bounds include
    /// the condition.
    fn push_ids(&self, query: &mut Builder) {
        if let Some(ids) = &self.ids {
            let (first, last) = (id_to_column(*ids.start()), id_to_column(*ids.end()));
            // Bit-cast to i64, a range that includes ids of both halves starts above its end: the range wraps around.
            let wraps_around =
                ids.start().0.cast_signed() > ids.end().0.cast_signed() && ids.start() <= ids.end();
            query.push(" AND (device_id >= ").push_bind(first);
            query.push(if wraps_around { " OR " } else { " AND " });
            query.push("device_id <= ").push_bind(last).push(")");
        }
    }

    /// Appends all conditions except the condition of [`DeviceFilter::ids`].
    fn push_conditions(&self, query: &mut Builder) {
        if let Some(prefix) = &self.name_prefix {
            // An index serves a range; both databases sort texts by characters.
            query.push(" AND name >= ").push_bind(prefix);
            if let Some(end) = upper_bound(prefix) {
                query.push(" AND name < ").push_bind(end);
            }
        }
        if let Some(mode) = self.mode {
            query.push(" AND mode = ").push_bind(mode_to_column(mode));
        }
        // The conditions contain literals and not parameters, because the databases use partial indexes only for
        // literals.
        match self.active {
            Some(true) => drop(query.push(" AND quarantined_at_s IS NULL AND status = 1")),
            Some(false) => drop(query.push(" AND status = 2")),
            None => {}
        }
        if self.quarantined {
            query.push(" AND quarantined_at_s IS NOT NULL AND status = 1");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_of_digits_selects_a_range_of_ids() {
        let cases = [
            ("0", 0..=0x0fff_ffff_ffff_ffff),
            ("f", 0xf000_0000_0000_0000..=u64::MAX),
            ("00000000000000d", 0xd0..=0xdf),
            ("00000000000000D1", 0xd1..=0xd1),
        ];
        for (digits, ids) in cases {
            assert_eq!(
                ids_with_prefix(digits),
                Some(DeviceId(*ids.start())..=DeviceId(*ids.end()))
            );
        }
        for digits in ["", "x", "+1", "0x1", "\u{ff11}", "00000000000000d1a"] {
            assert_eq!(ids_with_prefix(digits), None, "{digits:?}");
        }
    }

    #[test]
    fn texts_with_a_prefix_are_below_its_upper_bound() {
        for prefix in ["a", "pump 7", "z\u{10ffff}", "\u{d7ff}", "é"] {
            let end = upper_bound(prefix).unwrap();
            for tail in ["", "\0", "zz", "\u{10ffff}\u{10ffff}"] {
                let text = format!("{prefix}{tail}");
                assert!(*prefix <= *text && *text < *end, "{prefix:?} {tail:?}");
            }
            assert!(!end.starts_with(prefix));
        }
        assert_eq!(upper_bound("\u{10ffff}"), None);
        assert_eq!(upper_bound(""), None);
    }
}
