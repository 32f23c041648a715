//! Looking devices up: one, a page of a list, how many there are.

use std::collections::HashMap;

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
    // Bit-cast, the upper half of the ids is negative: the lower half is listed first, then the upper.
    let start = after.map_or(0, |id| id.0);
    for half in [0..=i64::MAX, i64::MIN..=-1] {
        let missing = i64::from(limit) - i64::try_from(rows.len()).unwrap_or(i64::MAX);
        if missing <= 0 || half.end().cast_unsigned() <= start {
            continue;
        }
        let floor = (*half.start()).cast_unsigned().max(start.saturating_add(1));
        let mut query = Builder::new(concat!(
            "SELECT ",
            device_columns!(),
            " FROM device WHERE device_id >= "
        ));
        query
            .push_bind(floor.cast_signed())
            .push(" AND device_id <= ")
            .push_bind(*half.end());
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
    filter.push_conditions(&mut query);
    query
        .push(" ORDER BY name, device_id LIMIT ")
        .push_bind(i64::from(limit));
    Ok(query.build().fetch_all(connection).await?)
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
