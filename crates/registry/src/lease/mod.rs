//! Leasing rows to gateways, so that no row is ever at two of them, or used twice at one (LAP/1 1.4.6).
//!
//! A device's rows below `idx_floor` have been leased at some time, each to one gateway. What a gateway holds is a
//! range with a durable *mark*: it spends rows below the mark only, and the mark is moved ahead of need. A gateway that
//! has lost its memory resumes at the mark and loses what lay between; one that stops in good order says where it
//! stood and loses nothing. Rows given back become spare and are leased again, to whom they are higher numbers than
//! any that he has had.
//!
//! Every gateway shows its *fence* with each question: the number of its registration. A process that has been replaced,
//! and does not know it, shows an old one and gets nothing. It may go on spending what it was allowed before, below the
//! mark; whoever comes after it begins at the mark.

mod state;
mod table;
mod walk;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, Suite};
use linewarden_protocol::nonce::Statement;

pub use self::state::Lease;
use self::state::Pool;
pub(crate) use self::table::{damage, damaged};
pub use self::walk::{LeasedChunk, LeasedDevice, LeasedPlace, LeasedStream, SealedChunk};
use crate::device::DeviceInfo;
use crate::enrol::IDS_PER_QUERY;
use crate::error::{RegistryError, Result};
use crate::gateway::Fence;
use crate::row::id_to_column;
use crate::sql::{Builder, Connection};
use crate::store::Registry;

/// A gateway's wish for one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRequest {
    /// The device.
    pub device: DeviceId,
    /// The credentials that the gateway knows of; what it says of others does not count.
    pub epoch: u32,
    /// The row that is current at the gateway: all below are used. 0 if it holds nothing.
    pub from: RowIndex,
    /// The number after the last row that has come to the gateway; 0 if it holds nothing. What was leased behind it by an
    /// answer that was lost is in the next one.
    pub received: RowIndex,
    /// How many rows, from `from` on, the gateway wants to hold. None is added where it would not follow the last one and
    /// that may not be spent yet.
    pub hold: u32,
    /// How many rows, from `from` on, the gateway wants to be able to spend: where the mark goes.
    pub ahead: u32,
    /// What the device itself states (LAP/1 1.3), if it has proven a row. Where it has answered rows above all that were ever leased,
    /// the registry has forgotten leases.
    pub stated: Statement,
}

/// What a gateway got.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the rows are leased already"]
pub struct Granted {
    /// The device.
    pub device: DeviceId,
    /// Its mode.
    pub mode: Mode,
    /// Its suite.
    pub suite: Suite,
    /// The epoch of the credentials that the rows belong to.
    pub epoch: u32,
    /// The rows that the gateway has not received yet; in key mode the number to count from.
    pub rows: Range<u32>,
    /// All that the process holds: from the first row that it may still speak for. In key mode as `rows`.
    pub held: Range<u32>,
    /// Rows below it may be spent.
    pub mark: RowIndex,
}

/// Where a gateway stands with one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The device.
    pub device: DeviceId,
    /// The credentials that the rows belong to; those of others are void.
    pub epoch: u32,
    /// The first row that was never used. No data plane may see it or a later one any more.
    pub unused_from: RowIndex,
    /// Whether the rows stay with the gateway, which is about to stop; otherwise they go back to the pool.
    pub keep: bool,
}

impl Registry {
    /// Leases rows and moves marks, all in one transaction, durable before it returns; answers in the order of the
    /// requests.
    ///
    /// A device that cannot be served has its error in its place and does not disturb the others. Whoever asks for a gateway that
    /// holds nothing of a device has had the device prove itself there; a gateway's own word is for [`Registry::extend_leases`].
    ///
    /// # Errors
    /// [`RegistryError::OldFence`], or a failure of the database; nothing is leased then.
    pub async fn lease(&self, fence: &Fence, requests: &[LeaseRequest]) -> Result<Vec<Result<Granted>>> {
        self.change_leases(
            fence,
            requests,
            |request| request.device,
            |entries, request| entries.lease.extend(&mut entries.pool, request),
        )
        .await
    }

    /// As [`Registry::lease`], but of a device of which the gateway holds nothing it gets nothing: that it is there nobody has shown.
    ///
    /// # Errors
    /// As [`Registry::lease`]; in a device's place also [`RegistryError::NotHeld`].
    pub async fn extend_leases(
        &self,
        fence: &Fence,
        requests: &[LeaseRequest],
    ) -> Result<Vec<Result<Granted>>> {
        let extend = |entries: &mut Entries, request: &LeaseRequest| {
            if !entries.is_held {
                return Err(RegistryError::NotHeld {
                    device: request.device,
                    gateway: fence.gateway(),
                });
            }
            entries.lease.extend(&mut entries.pool, request)
        };
        self.change_leases(fence, requests, |request| request.device, extend)
            .await
    }

    /// The first row that [`Registry::lease`] would let a process use that holds nothing of the device. Nothing is
    /// written.
    ///
    /// # Errors
    /// As [`Registry::lease`], the device's own among them.
    pub async fn first_row(&self, fence: &Fence, request: &LeaseRequest) -> Result<RowIndex> {
        let mut connection = self.reader().acquire().await?;
        self.check_fence(&mut connection, fence).await?;
        let device = request.device;
        let mut books = self
            .books(&mut connection, fence, &HashSet::from([device]))
            .await?;
        let book = books
            .get_mut(&device)
            .ok_or(RegistryError::UnknownDevice { device })?;
        let granted = book.change(|entries| entries.lease.extend(&mut entries.pool, request))?;
        Ok(RowIndex(granted.held.start))
    }

    /// Takes note of where a gateway stands, in one transaction; answers how many rows of each device went back to its
    /// pool. What it says of a device of which it holds nothing is void.
    ///
    /// # Errors
    /// [`RegistryError::OldFence`], or a failure of the database; nothing is changed then.
    pub async fn settle(&self, fence: &Fence, settlements: &[Settlement]) -> Result<Vec<Result<u32>>> {
        self.change_leases(
            fence,
            settlements,
            |settlement| settlement.device,
            |entries, settlement| match entries.is_held {
                true => entries.lease.settle(&mut entries.pool, settlement),
                false => Ok(0),
            },
        )
        .await
    }

    /// What gateways hold of a device.
    ///
    /// # Errors
    /// A damaged record, or a failure of the database.
    pub async fn leases_of(&self, device: DeviceId) -> Result<Vec<Lease>> {
        let mut connection = self.reader().acquire().await?;
        table::leases_of(&mut connection, self.record_mac(), device).await
    }

    async fn change_leases<Change, Answer>(
        &self,
        fence: &Fence,
        changes: &[Change],
        device_of: impl Fn(&Change) -> DeviceId,
        apply: impl Fn(&mut Entries, &Change) -> Result<Answer>,
    ) -> Result<Vec<Result<Answer>>> {
        let mut answers = Vec::with_capacity(changes.len());
        let mut transaction = self.write().await?;
        self.check_fence(&mut transaction, fence).await?;
        let advance = self.advance_with_leases(&mut transaction).await?;
        for batch in changes.chunks(IDS_PER_QUERY) {
            let ids: HashSet<DeviceId> = batch.iter().map(&device_of).collect();
            let mut books = self.books(&mut transaction, fence, &ids).await?;
            answers.extend(batch.iter().map(|change| {
                let book = books.get_mut(&device_of(change));
                book.ok_or(RegistryError::UnknownDevice {
                    device: device_of(change),
                })?
                .change(|entries| apply(entries, change))
            }));
            self.write_books(&mut transaction, &books).await?;
        }
        // Without a change this writes nothing.
        transaction.commit().await?;
        self.follow_leases(advance);
        Ok(answers)
    }

    async fn write_floors(&self, connection: &mut Connection, devices: &[&DeviceInfo]) -> Result<()> {
        if devices.is_empty() {
            return Ok(());
        }
        let mut update = Builder::new("WITH moved (device_id, idx_floor, floor_version, mac) AS (");
        update.push_values(devices, |mut values, info| {
            values
                .push_bind(id_to_column(info.device))
                .push_bind(i64::from(info.idx_floor.0))
                .push_bind(info.floor_version)
                .push_bind(self.record_mac().code(info).to_vec());
        });
        update.push(
            ") UPDATE device SET idx_floor = moved.idx_floor, floor_version = moved.floor_version, mac = moved.mac \
             FROM moved WHERE device.device_id = moved.device_id",
        );
        update.build().execute(connection).await?;
        Ok(())
    }

    /// The books of those of these devices that are enrolled.
    async fn books(
        &self,
        connection: &mut Connection,
        fence: &Fence,
        devices: &HashSet<DeviceId>,
    ) -> Result<HashMap<DeviceId, Book>> {
        let infos = self.get_many_in(connection, devices.iter().copied()).await?;
        let mac = self.record_mac();
        let mut leases = table::leases(connection, mac, fence.gateway(), devices).await?;
        let mut spares = table::spares(connection, mac, devices).await?;
        let strangers = devices
            .iter()
            .copied()
            .filter(|device| !leases.contains_key(device));
        let put_back = self
            .unleased_since_put_back(connection, strangers.collect())
            .await?;
        let books = infos.into_iter().map(|(device, info)| {
            let lease = leases.remove(&device).transpose();
            let spare = spares.remove(&device).unwrap_or(Ok(Vec::new()));
            let open = || -> Result<Entries> {
                let info = info?;
                let lease = lease?;
                let is_held = lease.as_ref().is_some_and(|lease| lease.is_of(&info));
                let lease =
                    lease.map_or_else(|| Lease::none(fence, &info), |lease| lease.found_by(fence, &info));
                let spare = spare?.into_iter().filter(|spare| spare.epoch == info.epoch);
                let spare = spare.map(|spare| spare.rows).collect();
                let is_put_back = put_back.contains(&device);
                let pool = Pool {
                    info,
                    spare,
                    is_put_back,
                };
                Ok(Entries { lease, pool, is_held })
            };
            (device, Book::new(open()))
        });
        Ok(books.collect())
    }

    /// Of these devices, those of which nobody has been leased anything since the registry was put back to an earlier state; none if it
    /// never was.
    async fn unleased_since_put_back(
        &self,
        connection: &mut Connection,
        mut devices: HashSet<DeviceId>,
    ) -> Result<HashSet<DeviceId>> {
        if devices.is_empty() || self.incarnation(connection).await?.1 == 0 {
            return Ok(HashSet::new());
        }
        for device in table::leased(connection, &devices).await? {
            devices.remove(&device);
        }
        Ok(devices)
    }

    async fn write_books(&self, connection: &mut Connection, books: &HashMap<DeviceId, Book>) -> Result<()> {
        let mac = self.record_mac();
        let changed: Vec<(&Entries, &Entries)> = books.values().filter_map(Book::changed).collect();
        let moved =
            |(before, now): &&(&Entries, &Entries)| before.pool.info.idx_floor != now.pool.info.idx_floor;
        let infos: Vec<&DeviceInfo> = changed
            .iter()
            .filter(moved)
            .map(|(_, now)| &now.pool.info)
            .collect();
        self.write_floors(connection, &infos).await?;
        let leases: Vec<&Lease> = changed.iter().map(|(_, now)| &now.lease).collect();
        table::write_leases(connection, mac, &leases).await?;
        for (before, now) in changed {
            if before.pool.spare != now.pool.spare {
                let epoch = now.pool.info.epoch;
                table::write_spares(connection, mac, now.lease.device, epoch, &now.pool.spare).await?;
            }
        }
        Ok(())
    }
}

/// What a transaction reads and writes of one device.
#[derive(Clone, PartialEq)]
struct Entries {
    lease: Lease,
    pool: Pool,
    /// Whether the gateway holds anything of the device. Not what it may use first: all of it may lie behind the mark.
    is_held: bool,
}

struct Book {
    before: Option<Entries>,
    /// Taken out by the error that names what is damaged, once.
    now: Result<Entries>,
}

impl Book {
    fn new(now: Result<Entries>) -> Self {
        Self {
            before: now.as_ref().ok().cloned(),
            now,
        }
    }

    /// Changes the entries, or leaves them as they were.
    fn change<T>(&mut self, change: impl FnOnce(&mut Entries) -> Result<T>) -> Result<T> {
        let entries = match &mut self.now {
            Ok(entries) => entries,
            Err(error) => return Err(error.of_one_record()),
        };
        let mut draft = entries.clone();
        let answer = change(&mut draft)?;
        // The next one in the same transaction speaks of what this one has left.
        draft.is_held = !draft.lease.rows.is_empty();
        *entries = draft;
        Ok(answer)
    }

    fn changed(&self) -> Option<(&Entries, &Entries)> {
        let (before, now) = (self.before.as_ref()?, self.now.as_ref().ok()?);
        (before != now).then_some((before, now))
    }
}
