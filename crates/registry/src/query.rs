//! Looking devices up: one, a page of a list, or all active ones with their credentials.

use std::collections::HashSet;

use linewarden_protocol::ids::{DeviceId, Mode};
use sqlx::{QueryBuilder, Sqlite, SqliteConnection};

use crate::credentials::Credentials;
use crate::device::{DeviceInfo, Revision};
use crate::enrol::PushIds as _;
use crate::error::{RegistryError, Result};
use crate::place::Place;
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
    /// Only active (`true`) or only revoked (`false`) ones.
    pub active: Option<bool>,
}

/// A device that may authenticate, with what a gateway's rows are made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveDevice {
    /// Its record.
    pub info: DeviceInfo,
    /// Its credentials.
    pub credentials: Credentials,
}

/// A part of the active fleet.
#[derive(Debug)]
pub struct ActiveChunk {
    /// The devices.
    pub devices: Vec<ActiveDevice>,
    /// Records that could not be opened, each error with the device's id: report them and go on.
    pub damaged: Vec<RegistryError>,
    /// After the last chunk, [`Registry::changes_since`] this revision continues without a gap.
    pub upto: Revision,
}

/// A walk over all active devices; made by [`Registry::stream_active`].
#[derive(Debug)]
pub struct ActiveStream {
    registry: Registry,
    after: Revision,
    chunk_devices: u32,
}

impl Registry {
    /// The record of a device.
    ///
    /// # Errors
    /// [`RegistryError::UnknownDevice`], a damaged record, or a failure of the database.
    pub async fn get(&self, device: DeviceId) -> Result<DeviceInfo> {
        let row: Option<DeviceRow> = sqlx::query_as(concat!(
            "SELECT ",
            device_columns!(),
            " FROM device WHERE device_id = $1"
        ))
        .bind(id_to_column(device))
        .fetch_optional(self.reader())
        .await?;
        device_info(row.ok_or(RegistryError::UnknownDevice { device })?)
    }

    /// The next `limit` devices after `after` that the filter lets through, by ascending id.
    ///
    /// Begin with `None`, go on with the last id of the page before, end at an empty page.
    ///
    /// # Errors
    /// A damaged record, or a failure of the database.
    pub async fn list(
        &self,
        filter: &Filter,
        after: Option<DeviceId>,
        limit: u32,
    ) -> Result<Vec<DeviceInfo>> {
        let mut connection = self.reader().acquire().await?;
        let mut page = Vec::new();
        // Bit-cast, the upper half of the ids is negative: the lower half is listed first, then the upper.
        let start = after.map_or(0, |id| id.0);
        for half in [0..=i64::MAX, i64::MIN..=-1] {
            let missing = i64::from(limit) - i64::try_from(page.len()).unwrap_or(i64::MAX);
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
            let rows: Vec<DeviceRow> = query.build_query_as().fetch_all(&mut *connection).await?;
            for row in rows {
                page.push(device_info(row)?);
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

    /// Opens the credentials of an active device.
    ///
    /// # Errors
    /// An unknown or revoked device, a damaged record, or a failure of the database.
    pub async fn load_credentials(&self, device: DeviceId) -> Result<Credentials> {
        let ActiveDevice { info, credentials } = self.load(device).await?;
        if info.status.is_active() {
            Ok(credentials)
        } else {
            Err(RegistryError::Revoked { device })
        }
    }

    /// The record and the credentials of a device, active or revoked.
    pub(crate) async fn load(&self, device: DeviceId) -> Result<ActiveDevice> {
        let mut connection = self.reader().acquire().await?;
        let mut transaction = sqlx::Connection::begin(&mut *connection).await?;
        let row: Option<DeviceRow> = sqlx::query_as(concat!(
            "SELECT ",
            device_columns!(),
            " FROM device WHERE device_id = $1"
        ))
        .bind(id_to_column(device))
        .fetch_optional(&mut *transaction)
        .await?;
        let info = device_info(row.ok_or(RegistryError::UnknownDevice { device })?)?;
        let sealed: Option<(Vec<u8>,)> = sqlx::query_as("SELECT sealed FROM credential WHERE device_id = $1")
            .bind(id_to_column(device))
            .fetch_optional(&mut *transaction)
            .await?;
        let credentials = self.unseal(&info, sealed.as_ref().map(|(sealed,)| sealed.as_slice()))?;
        Ok(ActiveDevice { info, credentials })
    }

    /// Walks over all active devices with their credentials, `chunk_devices` at a time, as a gateway does at its
    /// start.
    ///
    /// The walk follows the revisions, which is also the order in which records lie in the file. A device that is
    /// changed meanwhile may come twice; the later one counts. No lock is held between chunks.
    #[must_use]
    pub fn stream_active(&self, chunk_devices: u32) -> ActiveStream {
        ActiveStream {
            registry: self.clone(),
            after: Revision::ZERO,
            chunk_devices: chunk_devices.max(1),
        }
    }

    pub(crate) fn unseal(&self, info: &DeviceInfo, sealed: Option<&[u8]>) -> Result<Credentials> {
        let damaged = |problem: String| RegistryError::DamagedRecord {
            device: info.device,
            problem,
        };
        let sealed = sealed.ok_or_else(|| damaged("its credentials are gone".to_owned()))?;
        let place = Place::of(info);
        let plaintext = self
            .sealer()
            .open(&place.aad(), sealed)
            .map_err(|_| damaged("its sealed credentials do not authenticate".to_owned()))?;
        Credentials::decode(place.mode, &place.indices, &plaintext).map_err(damaged)
    }

    /// Which of these devices are enrolled.
    pub(crate) async fn enrolled_among(&self, devices: &[DeviceId]) -> Result<HashSet<DeviceId>> {
        let mut query = QueryBuilder::<Sqlite>::new("SELECT device_id FROM device WHERE device_id IN ");
        query.push_ids(devices.iter().copied());
        let rows: Vec<(i64,)> = query.build_query_as().fetch_all(self.reader()).await?;
        Ok(rows.into_iter().map(|(id,)| id_from_column(id)).collect())
    }

    /// Opens every record, for [`Registry::check`].
    pub(crate) async fn damaged_records(&self) -> Result<Vec<RegistryError>> {
        let mut damaged = Vec::new();
        let mut after = Revision::ZERO;
        loop {
            let mut connection = self.reader().acquire().await?;
            let (records, upto) = records_after(&mut connection, after, CHECK_CHUNK_DEVICES, false).await?;
            if records.is_empty() {
                return Ok(damaged);
            }
            damaged.extend(
                records
                    .into_iter()
                    .filter_map(|record| self.open_record(record).err()),
            );
            after = upto;
        }
    }

    fn open_record(&self, record: Result<StoredDevice>) -> Result<ActiveDevice> {
        let StoredDevice { info, sealed } = record?;
        let credentials = self.unseal(&info, sealed.as_deref())?;
        Ok(ActiveDevice { info, credentials })
    }
}

const CHECK_CHUNK_DEVICES: u32 = 1000;

/// A device with its credentials still sealed.
pub(crate) struct StoredDevice {
    pub(crate) info: DeviceInfo,
    /// Absent if the credentials' row was lost.
    pub(crate) sealed: Option<Vec<u8>>,
}

/// The next records after a revision, and the revision reached.
pub(crate) async fn records_after(
    connection: &mut SqliteConnection,
    after: Revision,
    limit: u32,
    only_active: bool,
) -> Result<(Vec<Result<StoredDevice>>, Revision)> {
    let rows: Vec<StoredRow> = sqlx::query_as(concat!(
        "SELECT ",
        device_columns!(),
        ", credential.sealed FROM device LEFT JOIN credential ON credential.device_id = device.device_id \
         WHERE device.revision > $1 AND (device.status = 1 OR $2 = 0) ORDER BY device.revision LIMIT $3"
    ))
    .bind(i64::try_from(after.0).unwrap_or(i64::MAX))
    .bind(i64::from(only_active))
    .bind(i64::from(limit))
    .fetch_all(connection)
    .await?;
    let upto = rows
        .last()
        .and_then(|row| u64::try_from(row.revision).ok())
        .map_or(after, Revision);
    let records = rows
        .into_iter()
        .map(|StoredRow { device, sealed, .. }| {
            Ok(StoredDevice {
                info: device_info(device)?,
                sealed,
            })
        })
        .collect();
    Ok((records, upto))
}

/// A row of `device` joined with its sealed credentials.
struct StoredRow {
    device: DeviceRow,
    revision: i64,
    sealed: Option<Vec<u8>>,
}

impl sqlx::FromRow<'_, sqlx::sqlite::SqliteRow> for StoredRow {
    fn from_row(row: &sqlx::sqlite::SqliteRow) -> sqlx::Result<Self> {
        use sqlx::Row as _;
        Ok(Self {
            device: DeviceRow::from_row(row)?,
            revision: row.try_get("revision")?,
            sealed: row.try_get("sealed")?,
        })
    }
}

impl ActiveStream {
    /// The next chunk; `None` at the end.
    ///
    /// # Errors
    /// A failure of the database. The call may be repeated.
    pub async fn next_chunk(&mut self) -> Result<Option<ActiveChunk>> {
        let mut connection = self.registry.reader().acquire().await?;
        let (records, upto) = records_after(&mut connection, self.after, self.chunk_devices, true).await?;
        drop(connection);
        if records.is_empty() {
            return Ok(None);
        }
        self.after = upto;
        let mut chunk = ActiveChunk {
            devices: Vec::with_capacity(records.len()),
            damaged: Vec::new(),
            upto,
        };
        for record in records {
            match self.registry.open_record(record) {
                Ok(device) => chunk.devices.push(device),
                Err(error) => chunk.damaged.push(error),
            }
        }
        Ok(Some(chunk))
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
        if let Some(active) = self.active {
            query
                .push(" AND status = ")
                .push_bind(if active { ACTIVE } else { REVOKED });
        }
    }
}
