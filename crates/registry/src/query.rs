//! Looking devices up: one, a page of a list, how many there are.

use std::collections::HashMap;

use linewarden_protocol::ids::{DeviceId, Mode};
use sqlx::{QueryBuilder, Sqlite, SqliteConnection};

use crate::device::DeviceInfo;
use crate::enrol::PushIds as _;
use crate::error::{RegistryError, Result};
use crate::row::{
    ACTIVE, DeviceRow, REVOKED, device_columns, device_info, id_from_column, id_to_column, mode_to_column,
};
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
    /// The devices, by ascending id.
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
    pub(crate) async fn get_in(
        &self,
        connection: &mut SqliteConnection,
        device: DeviceId,
    ) -> Result<DeviceInfo> {
        let row: Option<DeviceRow> = sqlx::query_as(concat!(
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
        connection: &mut SqliteConnection,
        devices: impl Iterator<Item = DeviceId>,
    ) -> Result<HashMap<DeviceId, Result<DeviceInfo>>> {
        let mut query = QueryBuilder::<Sqlite>::new(concat!(
            "SELECT ",
            device_columns!(),
            " FROM device WHERE device_id IN "
        ));
        query.push_ids(devices);
        let rows: Vec<DeviceRow> = query.build_query_as().fetch_all(connection).await?;
        Ok(rows
            .into_iter()
            .map(|row| (id_from_column(row.id.0), device_info(self.record_mac(), row)))
            .collect())
    }

    /// The next `limit` devices after `after` that the filter lets through, by ascending id.
    ///
    /// Begin with `None` and go on with [`Page::next`] until that is `None`.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn list(&self, filter: &Filter, after: Option<DeviceId>, limit: u32) -> Result<Page> {
        let mut connection = self.reader().acquire().await?;
        let limit = limit.max(1);
        let mut rows: Vec<DeviceRow> = Vec::new();
        // Bit-cast, the upper half of the ids is negative: the lower half is listed first, then the upper.
        let start = after.map_or(0, |id| id.0);
        for half in [0..=i64::MAX, i64::MIN..=-1] {
            let missing = i64::from(limit) - i64::try_from(rows.len()).unwrap_or(i64::MAX);
            if missing <= 0 || half.end().cast_unsigned() <= start {
                continue;
            }
            let floor = (*half.start()).cast_unsigned().max(start.saturating_add(1));
            let mut query = QueryBuilder::<Sqlite>::new(concat!(
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
            rows.extend(
                query
                    .build_query_as::<DeviceRow>()
                    .fetch_all(&mut *connection)
                    .await?,
            );
        }
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
        let mut query = QueryBuilder::<Sqlite>::new("SELECT COUNT(*) FROM device WHERE 1 = 1");
        filter.push_conditions(&mut query);
        let (count,): (i64,) = query.build_query_as().fetch_one(self.reader()).await?;
        Ok(u64::try_from(count).unwrap_or(0))
    }
}

impl Filter {
    fn push_conditions(&self, query: &mut QueryBuilder<Sqlite>) {
        if let Some(prefix) = &self.name_prefix {
            // Not LIKE: what it makes of upper and lower case differs between databases.
            let length = i64::try_from(prefix.chars().count()).unwrap_or(i64::MAX);
            query
                .push(" AND substr(name, 1, ")
                .push_bind(length)
                .push(") = ")
                .push_bind(prefix.clone());
        }
        if let Some(mode) = self.mode {
            query.push(" AND mode = ").push_bind(mode_to_column(mode));
        }
        match self.active {
            Some(true) => drop(
                query
                    .push(" AND quarantined_at_s IS NULL AND status = ")
                    .push_bind(ACTIVE),
            ),
            Some(false) => drop(query.push(" AND status = ").push_bind(REVOKED)),
            None => {}
        }
        if self.quarantined {
            query
                .push(" AND quarantined_at_s IS NOT NULL AND status = ")
                .push_bind(ACTIVE);
        }
    }
}
