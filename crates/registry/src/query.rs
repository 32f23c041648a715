//! Looking devices up: one, a page of a list, how many there are.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use linewarden_protocol::ids::{DeviceId, Mode};

use crate::device::DeviceInfo;
use crate::enrol::PushIds as _;
use crate::error::{RegistryError, Result};
use crate::row::{DeviceRow, device_columns, device_info, id_from_column, id_to_column, mode_to_column};
use crate::sql::{self, Builder, Connection};
use crate::store::Registry;

/// Which devices a list or a count covers; the default is all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only those whose name begins like this (upper and lower case differ).
    pub name_prefix: Option<String>,
    /// Only those with an id between these two, both included.
    pub ids: Option<RangeInclusive<DeviceId>>,
    /// Only those of this mode.
    pub mode: Option<Mode>,
    /// Only those that may authenticate (`true`), or only revoked ones (`false`).
    pub active: Option<bool>,
    /// Only those in quarantine.
    pub quarantined: bool,
}

/// A part of a list.
#[derive(Debug)]
pub struct Page {
    /// The devices, in the order of the list.
    pub devices: Vec<DeviceInfo>,
    /// Records that could not be read, each error with the device's id: report them and go on.
    pub damaged: Vec<RegistryError>,
    /// After which id the list goes on; `None` at its end.
    pub next: Option<DeviceId>,
}

impl Registry {
    /// The record of a device.
    ///
    /// # Errors
    /// [`RegistryError::UnknownDevice`], a damaged record, or a failure of the database.
    pub async fn get(&self, device: DeviceId) -> Result<DeviceInfo> {
        let mut connection = self.reader().acquire().await?;
        self.get_in(&mut connection, device).await
    }

    /// The record of a device as the caller's connection or transaction sees it.
    pub(crate) async fn get_in(&self, connection: &mut Connection, device: DeviceId) -> Result<DeviceInfo> {
        let row: Option<DeviceRow> = sql::query(concat!(
            "SELECT ",
            device_columns!(),
            " FROM device WHERE device_id = $1"
        ))
        .bind(id_to_column(device))
        .fetch_optional(connection)
        .await?;
        device_info(
            self.record_mac(),
            row.ok_or(RegistryError::UnknownDevice { device })?,
        )
    }

    /// The records of those of these devices that are enrolled, each or what is wrong with it.
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
        let rows: Vec<DeviceRow> = query.build().fetch_all(connection).await?;
        Ok(rows
            .into_iter()
            .map(|row| (id_from_column(row.id.0), device_info(self.record_mac(), row)))
            .collect())
    }

    /// The next `limit` devices after `after` that the filter lets through: by ascending id, or by name, and id where names are equal,
    /// if the filter asks for a beginning of names.
    ///
    /// Begin with `None` and go on with [`Page::next`] until that is `None`.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn list(&self, filter: &Filter, after: Option<DeviceId>, limit: u32) -> Result<Page> {
        let mut connection = self.reader().acquire().await?;
        let limit = limit.max(1);
        let rows = match filter.name_prefix {
            Some(_) => list_by_name(&mut connection, filter, after, limit).await?,
            None => list_by_id(&mut connection, filter, after, limit).await?,
        };
        let full = u32::try_from(rows.len()).is_ok_and(|count| count >= limit);
        let mut page = Page {
            next: rows.last().filter(|_| full).map(|row| id_from_column(row.id.0)),
            devices: Vec::with_capacity(rows.len()),
            damaged: Vec::new(),
        };
        for row in rows {
            match device_info(self.record_mac(), row) {
                Ok(info) => page.devices.push(info),
                Err(error) => page.damaged.push(error),
            }
        }
        Ok(page)
    }

    /// How many devices the filter lets through.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn count(&self, filter: &Filter) -> Result<u64> {
        let mut query = Builder::new("SELECT COUNT(*) FROM device WHERE 1 = 1");
        filter.push_ids(&mut query);
        filter.push_conditions(&mut query);
        let (count,): (i64,) = query.build().fetch_one(self.reader()).await?;
        Ok(u64::try_from(count).unwrap_or(0))
    }
}

async fn list_by_id(
    connection: &mut Connection,
    filter: &Filter,
    after: Option<DeviceId>,
    limit: u32,
) -> Result<Vec<DeviceRow>> {
    let mut rows: Vec<DeviceRow> = Vec::new();
    let (first, last) = filter
        .ids
        .as_ref()
        .map_or((0, u64::MAX), |ids| (ids.start().0, ids.end().0));
    let Some(first) = after
        .map_or(Some(0), |after| after.0.checked_add(1))
        .map(|next| next.max(first))
    else {
        return Ok(rows);
    };
    // Bit-cast, the upper half of the ids is negative: the lower half is listed first, then the upper.
    for half in [0..=i64::MAX, i64::MIN..=-1] {
        let missing = i64::from(limit) - i64::try_from(rows.len()).unwrap_or(i64::MAX);
        let first = first.max(half.start().cast_unsigned());
        let last = last.min(half.end().cast_unsigned());
        if missing <= 0 || first > last {
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
        query.push(" ORDER BY device_id LIMIT ").push_bind(missing);
        rows.extend(query.build().fetch_all::<DeviceRow>(&mut *connection).await?);
    }
    Ok(rows)
}

async fn list_by_name(
    connection: &mut Connection,
    filter: &Filter,
    after: Option<DeviceId>,
    limit: u32,
) -> Result<Vec<DeviceRow>> {
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

/// The ids that, written with all their 16 hexadecimal digits, begin with these: 1 to 16 of them. `None` if it is
/// anything else.
#[must_use]
pub fn ids_beginning(digits: &str) -> Option<RangeInclusive<DeviceId>> {
    if digits.is_empty() || digits.len() > 16 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let first = u64::from_str_radix(&format!("{digits:0<16}"), 16).ok()?;
    let last = u64::from_str_radix(&format!("{digits:f<16}"), 16).ok()?;
    Some(DeviceId(first)..=DeviceId(last))
}

/// The least text above all that begin with this one; `None` if there is none.
fn above(prefix: &str) -> Option<String> {
    let mut characters: Vec<char> = prefix.chars().collect();
    while let Some(last) = characters.pop() {
        // No text has a character between these two.
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

impl Filter {
    /// The condition of [`Filter::ids`], which a list by id has in its own bounds.
    fn push_ids(&self, query: &mut Builder) {
        if let Some(ids) = &self.ids {
            let (first, last) = (id_to_column(*ids.start()), id_to_column(*ids.end()));
            // Bit-cast, a range over both halves begins above where it ends, and goes around.
            let is_around =
                ids.start().0.cast_signed() > ids.end().0.cast_signed() && ids.start() <= ids.end();
            query.push(" AND (device_id >= ").push_bind(first);
            query.push(if is_around { " OR " } else { " AND " });
            query.push("device_id <= ").push_bind(last).push(")");
        }
    }

    fn push_conditions(&self, query: &mut Builder) {
        if let Some(prefix) = &self.name_prefix {
            // As a range, which an index answers: texts are in the order of their characters, with either database.
            query.push(" AND name >= ").push_bind(prefix);
            if let Some(above) = above(prefix) {
                query.push(" AND name < ").push_bind(above);
            }
        }
        if let Some(mode) = self.mode {
            query.push(" AND mode = ").push_bind(mode_to_column(mode));
        }
        // Written out, so that an index of just those is known to fit.
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
    fn digits_give_the_ids_that_begin_with_them() {
        let all = [
            ("0", 0..=0x0fff_ffff_ffff_ffff),
            ("f", 0xf000_0000_0000_0000..=u64::MAX),
            ("00000000000000d", 0xd0..=0xdf),
            ("00000000000000D1", 0xd1..=0xd1),
        ];
        for (digits, ids) in all {
            assert_eq!(
                ids_beginning(digits),
                Some(DeviceId(*ids.start())..=DeviceId(*ids.end()))
            );
        }
        for digits in ["", "x", "+1", "0x1", "\u{ff11}", "00000000000000d1a"] {
            assert_eq!(ids_beginning(digits), None, "{digits:?}");
        }
    }

    #[test]
    fn what_begins_with_a_prefix_lies_below_its_bound() {
        for prefix in ["a", "pump 7", "z\u{10ffff}", "\u{d7ff}", "é"] {
            let above = above(prefix).unwrap();
            for tail in ["", "\0", "zz", "\u{10ffff}\u{10ffff}"] {
                let text = format!("{prefix}{tail}");
                assert!(*prefix <= *text && *text < *above, "{prefix:?} {tail:?}");
            }
            assert!(!above.starts_with(prefix));
        }
        assert_eq!(above("\u{10ffff}"), None);
        assert_eq!(above(""), None);
    }
}
