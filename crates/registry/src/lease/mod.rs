//! Leases of rows to gateways: no row is leased to two gateways at the same time, and no row is used twice (LAP/1
//! 1.4.6).
//!
//! From `idx_floor` on, no row of a device is leased or was used. A lease is a range of rows with a durable
//! *mark*: the gateway uses only rows below the mark, and moves the mark before it needs more rows. A gateway that lost
//! its memory continues at the mark and loses the rows below the mark. A gateway that stops normally reports its first
//! unused row and loses no rows. Returned rows can be leased again, but only to a gateway that never had a row with a
//! higher number.
//!
//! Every gateway presents its *fencing token* with each request: the number of its registration. The requests of a
//! replaced process are refused because its token is old. The replaced process may still use the rows below the mark of
//! its lease; the new process starts at the mark. The token also counts the requests that the process abandoned before: a
//! request with a lower count than an earlier request is refused.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | the transactions: lease, extension, return of unused rows |
//! | `state.rs` | the state transitions of one lease, without database and clock |
//! | `table.rs` | the tables `lease` and `unleased_range` |
//! | `walk.rs` | reads all leases of a gateway, in parts, at its start |

mod state;
mod table;
mod walk;

use linewarden_types::UnusedRows;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, Suite};
use linewarden_protocol::nonce::RowStatement;

pub use self::state::Lease;
use self::state::Pool;
pub(crate) use self::table::{damage, damaged};
pub use self::walk::{LeasedChunk, LeasedDevice, LeasedStream, SealedChunk};
use crate::conversion::id_to_column;
use crate::device::DeviceInfo;
use crate::enroll::IDS_PER_QUERY;
use crate::error::{DeviceError, RegistryError, Result};
use crate::gateway::FencingToken;
use crate::sql::{Builder, Connection};
use crate::store::Registry;

/// A request of a gateway for rows of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRequest {
    /// The device.
    pub device: DeviceId,
    /// The epoch of the credentials that the gateway knows; values for other epochs are ignored.
    pub epoch: u32,
    /// The current row at the gateway: all lower rows are used. 0 without a lease.
    pub from: RowIndex,
    /// The number after the last row that the gateway received; 0 without a lease. The response contains all later
    /// rows of the lease, also those of an earlier response that was lost.
    pub received: RowIndex,
    /// The number of rows from `from` on that the gateway requests to hold. While the last row of the lease is not yet
    /// below the mark, only rows that directly follow that row are added.
    pub hold_rows: u32,
    /// The number of rows from `from` on that the gateway requests to use: the position of the mark.
    pub spendable_rows: u32,
    /// The row statement of the device (LAP/1 1.3). For [`Registry::lease`], the device has proven a row, so the statement
    /// is authentic. If the device has answered a row above all rows that were ever leased, the registry has lost leases.
    pub statement: RowStatement,
}

/// The lease that a gateway received.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the rows are leased already"]
pub struct LeaseGrant {
    /// The device.
    pub device: DeviceId,
    /// The mode.
    pub mode: Mode,
    /// The suite.
    pub suite: Suite,
    /// The epoch of the rows.
    pub epoch: u32,
    /// The rows that the gateway has not yet received; in key mode the first value of the counter.
    pub rows: Range<u32>,
    /// All rows that this gateway process holds, from the first row that the process may report as unused. In key mode
    /// the same as `rows`.
    pub held_rows: Range<u32>,
    /// Rows below the mark may be used.
    pub mark: RowIndex,
}

impl Registry {
    /// Leases rows and moves marks in one transaction, durable before the function returns. Results are in the order
    /// of the requests.
    ///
    /// The result for a device that cannot be served is an error, which does not affect other devices. The caller
    /// guarantees that a device without a lease at the gateway has proven its identity to that gateway. For requests
    /// without such a proof use [`Registry::extend_leases`].
    ///
    /// # Errors
    /// As [`Registry::verify_fencing_token`]; nothing is leased then.
    pub async fn lease(
        &self,
        fencing_token: &FencingToken,
        requests: &[LeaseRequest],
    ) -> Result<Vec<Result<LeaseGrant>>> {
        self.change_leases(
            fencing_token,
            requests,
            |request| request.device,
            |entries, request| entries.lease.extend(&mut entries.pool, request),
        )
        .await
    }

    /// As [`Registry::lease`], but refuses a device without a lease at the gateway, because the device has not proven
    /// its identity to that gateway.
    ///
    /// # Errors
    /// As [`Registry::lease`]; for a device also [`DeviceError::NoLease`].
    pub async fn extend_leases(
        &self,
        fencing_token: &FencingToken,
        requests: &[LeaseRequest],
    ) -> Result<Vec<Result<LeaseGrant>>> {
        let extend = |entries: &mut LeaseEntries, request: &LeaseRequest| {
            if !entries.has_rows {
                return Err(RegistryError::Device(DeviceError::NoLease {
                    device: request.device,
                    gateway: fencing_token.gateway(),
                }));
            }
            entries.lease.extend(&mut entries.pool, request)
        };
        self.change_leases(fencing_token, requests, |request| request.device, extend)
            .await
    }

    /// The first row that [`Registry::lease`] would grant to a process without rows of the device. Nothing is
    /// written.
    ///
    /// # Errors
    /// As [`Registry::lease`], including errors of the device.
    pub async fn first_row(&self, fencing_token: &FencingToken, request: &LeaseRequest) -> Result<RowIndex> {
        let mut connection = self.reader().acquire().await?;
        self.check_fencing_token(&mut connection, fencing_token).await?;
        let device = request.device;
        let mut edits = self
            .lease_edits(&mut connection, fencing_token, &HashSet::from([device]))
            .await?;
        let edit = edits
            .get_mut(&device)
            .ok_or(RegistryError::Device(DeviceError::UnknownDevice { device }))?;
        let grant = edit.change(|entries| entries.lease.extend(&mut entries.pool, request))?;
        Ok(RowIndex(grant.held_rows.start))
    }

    /// Records the unused rows of a gateway in one transaction. Returns for each device the number of rows that returned
    /// to its pool. Reports on devices without a lease are ignored.
    ///
    /// # Errors
    /// As [`Registry::verify_fencing_token`]; nothing is changed then.
    pub async fn record_unused_rows(
        &self,
        fencing_token: &FencingToken,
        reports: &[UnusedRows],
    ) -> Result<Vec<Result<u32>>> {
        self.change_leases(
            fencing_token,
            reports,
            |unused_rows| unused_rows.device,
            |entries, unused_rows| match entries.has_rows {
                true => entries.lease.record_unused_rows(&mut entries.pool, unused_rows),
                false => Ok(0),
            },
        )
        .await
    }

    /// The leases of a device.
    ///
    /// # Errors
    /// A damaged record, or a failure of the database.
    pub async fn leases_of(&self, device: DeviceId) -> Result<Vec<Lease>> {
        let mut connection = self.reader().acquire().await?;
        table::leases_of(&mut connection, self.authenticator(), device).await
    }

    async fn change_leases<Change, Output>(
        &self,
        fencing_token: &FencingToken,
        changes: &[Change],
        device_of: impl Fn(&Change) -> DeviceId,
        apply: impl Fn(&mut LeaseEntries, &Change) -> Result<Output>,
    ) -> Result<Vec<Result<Output>>> {
        let mut results = Vec::with_capacity(changes.len());
        let mut transaction = self.write().await?;
        self.check_fencing_token(&mut transaction, fencing_token).await?;
        let advance = self.advance_for_lease(&mut transaction).await?;
        for batch in changes.chunks(IDS_PER_QUERY) {
            let ids: HashSet<DeviceId> = batch.iter().map(&device_of).collect();
            let mut edits = self.lease_edits(&mut transaction, fencing_token, &ids).await?;
            results.extend(batch.iter().map(|change| {
                let edit = edits.get_mut(&device_of(change));
                edit.ok_or(RegistryError::Device(DeviceError::UnknownDevice {
                    device: device_of(change),
                }))?
                .change(|entries| apply(entries, change))
            }));
            self.write_lease_edits(&mut transaction, &edits).await?;
        }
        // A commit without changes writes nothing.
        transaction.commit().await?;
        self.complete_lease_advance(advance);
        Ok(results)
    }

    async fn write_floors(&self, connection: &mut Connection, devices: &[&DeviceInfo]) -> Result<()> {
        if devices.is_empty() {
            return Ok(());
        }
        let mut update = Builder::new("WITH moved (device_id, idx_floor, floor_version, tag) AS (");
        update.push_values(devices, |mut values, info| {
            values
                .push_bind(id_to_column(info.device))
                .push_bind(i64::from(info.idx_floor.0))
                .push_bind(info.floor_version)
                .push_bind(self.authenticator().tag(info).to_vec());
        });
        update.push(
            ") UPDATE device SET idx_floor = moved.idx_floor, floor_version = moved.floor_version, tag = moved.tag \
             FROM moved WHERE device.device_id = moved.device_id",
        );
        update.build().execute(connection).await?;
        Ok(())
    }

    /// Reads leases and pools of devices. Devices that are not enrolled are absent.
    async fn lease_edits(
        &self,
        connection: &mut Connection,
        fencing_token: &FencingToken,
        devices: &HashSet<DeviceId>,
    ) -> Result<HashMap<DeviceId, LeaseEdit>> {
        let infos = self.get_many_in(connection, devices.iter().copied()).await?;
        let authenticator = self.authenticator();
        let mut leases = table::leases(connection, authenticator, fencing_token.gateway(), devices).await?;
        let mut unleased_ranges = table::unleased_ranges(connection, authenticator, devices).await?;
        let without_lease = devices
            .iter()
            .copied()
            .filter(|device| !leases.contains_key(device));
        let restored = self
            .unleased_since_restore(connection, without_lease.collect())
            .await?;
        let edits = infos.into_iter().map(|(device, info)| {
            let lease = leases.remove(&device).transpose();
            let unleased = unleased_ranges.remove(&device).unwrap_or(Ok(Vec::new()));
            let entries = || -> Result<LeaseEntries> {
                let info = info?;
                let lease = lease?;
                let has_rows = lease.as_ref().is_some_and(|lease| lease.is_current(&info));
                let lease = lease.map_or_else(
                    || Lease::empty(fencing_token, &info),
                    |lease| lease.visible_to(fencing_token, &info),
                );
                let unleased = unleased?
                    .into_iter()
                    .filter(|unleased| unleased.epoch == info.epoch);
                let unleased = unleased.map(|unleased| unleased.rows).collect();
                let is_restored = restored.contains(&device);
                let pool = Pool {
                    info,
                    unleased,
                    is_restored,
                };
                Ok(LeaseEntries {
                    lease,
                    pool,
                    has_rows,
                })
            };
            (device, LeaseEdit::new(entries()))
        });
        Ok(edits.collect())
    }

    /// Returns the devices among `devices` that were not leased to any gateway since the registry was restored to an
    /// earlier state. Empty if the registry was never restored.
    async fn unleased_since_restore(
        &self,
        connection: &mut Connection,
        mut devices: HashSet<DeviceId>,
    ) -> Result<HashSet<DeviceId>> {
        if devices.is_empty() || self.incarnation(connection).await?.1 == 0 {
            return Ok(HashSet::new());
        }
        for device in table::devices_with_lease(connection, &devices).await? {
            devices.remove(&device);
        }
        Ok(devices)
    }

    async fn write_lease_edits(
        &self,
        connection: &mut Connection,
        edits: &HashMap<DeviceId, LeaseEdit>,
    ) -> Result<()> {
        let authenticator = self.authenticator();
        let changed: Vec<(&LeaseEntries, &LeaseEntries)> =
            edits.values().filter_map(LeaseEdit::changed).collect();
        let has_moved_floor = |(before, after): &&(&LeaseEntries, &LeaseEntries)| {
            before.pool.info.idx_floor != after.pool.info.idx_floor
        };
        let infos: Vec<&DeviceInfo> = changed
            .iter()
            .filter(has_moved_floor)
            .map(|(_, after)| &after.pool.info)
            .collect();
        self.write_floors(connection, &infos).await?;
        let leases: Vec<&Lease> = changed.iter().map(|(_, after)| &after.lease).collect();
        table::write_leases(connection, authenticator, &leases).await?;
        for (before, after) in changed {
            if before.pool.unleased != after.pool.unleased {
                let epoch = after.pool.info.epoch;
                table::write_unleased(
                    connection,
                    authenticator,
                    after.lease.device,
                    epoch,
                    &after.pool.unleased,
                )
                .await?;
            }
        }
        Ok(())
    }
}

/// The lease data of one device in a transaction.
#[derive(Clone, PartialEq)]
struct LeaseEntries {
    lease: Lease,
    pool: Pool,
    /// Whether the gateway holds rows of the device. The lease that this process sees may be empty nevertheless: an earlier
    /// process may have used all rows below the mark.
    has_rows: bool,
}

/// A change to the lease data of one device.
struct LeaseEdit {
    /// The stored entries; `None` if a record is damaged.
    before: Option<LeaseEntries>,
    /// The changed entries; an error for a damaged record.
    current: Result<LeaseEntries>,
}

impl LeaseEdit {
    fn new(stored: Result<LeaseEntries>) -> Self {
        Self {
            before: stored.as_ref().ok().cloned(),
            current: stored,
        }
    }

    /// Changes the entries, or keeps them if the change fails.
    fn change<T>(&mut self, change: impl FnOnce(&mut LeaseEntries) -> Result<T>) -> Result<T> {
        let entries = match &mut self.current {
            Ok(entries) => entries,
            Err(error) => return Err(error.for_same_record()),
        };
        let mut draft = entries.clone();
        let result = change(&mut draft)?;
        // A later request in the same transaction applies to the result of this request.
        draft.has_rows = !draft.lease.rows.is_empty();
        *entries = draft;
        Ok(result)
    }

    /// The entries before and after the change, if they differ.
    fn changed(&self) -> Option<(&LeaseEntries, &LeaseEntries)> {
        let (before, after) = (self.before.as_ref()?, self.current.as_ref().ok()?);
        (before != after).then_some((before, after))
    }
}
