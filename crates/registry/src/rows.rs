//! Handing row numbers out, so that none is ever handed out twice.
//!
//! Each device has one durable mark, `idx_floor`: a reservation moves it past the rows it gives *before* they are
//! given (LAP/1 1.4.6, "marks reserved ahead"). A gateway that crashes loses at most what it held, and resumes at
//! the mark. The mark goes up and never down, but for one case: at a clean stop a gateway gives back the unused
//! tail of its reservation, and that counts only if nothing has moved the mark since.

use std::collections::HashSet;
use std::ops::Range;

use linewarden_protocol::ids::{DeviceId, RowIndex};
use sqlx::{QueryBuilder, Sqlite, SqliteConnection};

use crate::device::DeviceInfo;
use crate::enrol::IDS_PER_QUERY;
use crate::error::{RegistryError, Result};
use crate::row::id_to_column;
use crate::store::Registry;

/// A wish for rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReserveRequest {
    /// For which device.
    pub device: DeviceId,
    /// No row below this one, for a gateway that knows of more used rows than the registry; 0 if it does not.
    pub from_hint: RowIndex,
    /// How many rows, at least 1.
    pub count: u32,
}

/// Rows that were handed out to the holder of this value, and to nobody else.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the rows are marked as used already"]
pub struct Reservation {
    device: DeviceId,
    rows: Range<u32>,
    /// What the mark's version became by this reservation.
    floor_version: i64,
}

impl Reservation {
    /// The device whose rows these are.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// The row numbers; never empty, shorter than asked for where the pool ends.
    #[must_use]
    pub fn rows(&self) -> Range<u32> {
        self.rows.clone()
    }

    /// Makes one reservation of two, if nobody reserved in between; else gives both back unchanged.
    ///
    /// A gateway that reserves ahead holds one reservation that grows, so that it can give its whole tail back.
    ///
    /// # Errors
    /// The two reservations, if they are of different devices or do not follow each other directly.
    pub fn join(self, next: Self) -> Result<Self, (Self, Self)> {
        let follows = self.device == next.device
            && self.rows.end == next.rows.start
            && self.floor_version.checked_add(1) == Some(next.floor_version);
        if !follows {
            return Err((self, next));
        }
        Ok(Self {
            rows: self.rows.start..next.rows.end,
            ..next
        })
    }
}

impl Reservation {
    /// Whether nothing is left to give back from `unused_from` on.
    fn keeps_all(&self, unused_from: RowIndex) -> Result<bool> {
        if !(self.rows.start..=self.rows.end).contains(&unused_from.0) {
            return Err(RegistryError::NotReserved {
                device: self.device,
                unused_from: unused_from.0,
                rows_start: self.rows.start,
                rows_end: self.rows.end,
            });
        }
        Ok(unused_from.0 == self.rows.end)
    }

    /// Moves the mark back, if nothing has moved it since this reservation and the device is active.
    fn take_back(&self, info: &mut DeviceInfo, unused_from: RowIndex) -> bool {
        // The version, too: had another gateway reserved these rows after an earlier give-back, the mark alone
        // would look the same.
        let unmoved = info.idx_floor.0 == self.rows.end && info.floor_version == self.floor_version;
        if !unmoved || !info.status.is_active() {
            return false;
        }
        info.idx_floor = unused_from;
        info.floor_version = info.floor_version.saturating_add(1);
        true
    }
}

impl Registry {
    /// Hands out up to `count` rows of a device, none below `from_hint`; durable before it returns.
    ///
    /// In key mode the numbers only count and never run out.
    ///
    /// # Errors
    /// A device that is unknown, revoked or out of rows; `count` 0; a failure of the database (the mark may then
    /// have moved, but no row was handed out).
    pub async fn reserve(&self, device: DeviceId, from_hint: RowIndex, count: u32) -> Result<Reservation> {
        let request = ReserveRequest {
            device,
            from_hint,
            count,
        };
        let mut transaction = self.write().await?;
        let mut info = self.get_in(&mut transaction, device).await?;
        let reservation = take(&mut info, &request)?;
        self.write_marks(&mut transaction, &[&info]).await?;
        transaction.commit().await?;
        Ok(reservation)
    }

    /// [`Registry::reserve`] for many devices in one transaction, answers in the order of the requests.
    ///
    /// A device that cannot be served has its error in its place and does not disturb the others.
    ///
    /// # Errors
    /// A failure of the database; nothing is handed out then.
    pub async fn reserve_bulk(&self, requests: &[ReserveRequest]) -> Result<Vec<Result<Reservation>>> {
        let mut answers = Vec::with_capacity(requests.len());
        let mut transaction = self.write().await?;
        for batch in requests.chunks(IDS_PER_QUERY) {
            let mut devices = self
                .get_many_in(&mut transaction, batch.iter().map(|request| request.device))
                .await?;
            let mut moved = HashSet::with_capacity(batch.len());
            for request in batch {
                let answer = match devices.get_mut(&request.device) {
                    Some(Ok(info)) => take(info, request),
                    Some(Err(RegistryError::DamagedRecord { device, problem })) => {
                        Err(RegistryError::DamagedRecord {
                            device: *device,
                            problem: problem.clone(),
                        })
                    }
                    Some(Err(_)) | None => Err(RegistryError::UnknownDevice {
                        device: request.device,
                    }),
                };
                if answer.is_ok() {
                    moved.insert(request.device);
                }
                answers.push(answer);
            }
            let marks: Vec<&DeviceInfo> = devices
                .values()
                .filter_map(|info| info.as_ref().ok())
                .filter(|info| moved.contains(&info.device))
                .collect();
            self.write_marks(&mut transaction, &marks).await?;
        }
        transaction.commit().await?;
        Ok(answers)
    }

    /// Takes note that row `idx` was used: the mark goes up to `idx + 1` if it is below, and never down.
    ///
    /// Returns the mark.
    ///
    /// # Errors
    /// An unknown device, a row that it does not have, or a failure of the database.
    pub async fn report_used(&self, device: DeviceId, idx: RowIndex) -> Result<RowIndex> {
        let mut transaction = self.write().await?;
        let mut info = self.get_in(&mut transaction, device).await?;
        let indices = info.indices();
        if !indices.contains(&idx.0) {
            return Err(RegistryError::NoSuchRow {
                device,
                idx: idx.0,
                rows_start: indices.start,
                rows_end: indices.end,
            });
        }
        if idx >= info.idx_floor {
            // Within `indices`, whose end is a u32, so the sum is one too.
            move_mark(&mut info, idx.0.saturating_add(1));
            self.write_marks(&mut transaction, &[&info]).await?;
            transaction.commit().await?;
        }
        Ok(info.idx_floor)
    }

    /// Gives the rows from `unused_from` to the end of a reservation back, at a clean stop.
    ///
    /// Returns whether they were taken back: not if anything has moved the mark since, not if the device was
    /// revoked, and not if there are none. They are then spent unused, which is safe.
    ///
    /// The caller must be sure that it has used none of them and let no data plane see them any more.
    ///
    /// # Errors
    /// A row outside the reservation, or a failure of the database.
    pub async fn give_back(&self, reservation: Reservation, unused_from: RowIndex) -> Result<bool> {
        if reservation.keeps_all(unused_from)? {
            return Ok(false);
        }
        let mut transaction = self.write().await?;
        let mut info = self.get_in(&mut transaction, reservation.device).await?;
        if !reservation.take_back(&mut info, unused_from) {
            return Ok(false);
        }
        self.write_marks(&mut transaction, &[&info]).await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// [`Registry::give_back`] for many devices in one transaction; returns how many were taken back. A device that is
    /// gone or damaged does not disturb the others.
    ///
    /// # Errors
    /// A row outside its reservation, or a failure of the database. Nothing is taken back then.
    pub async fn give_back_bulk(&self, unused: Vec<(Reservation, RowIndex)>) -> Result<u64> {
        let mut taken_back = 0;
        let mut transaction = self.write().await?;
        for batch in unused.chunks(IDS_PER_QUERY) {
            let mut devices = self
                .get_many_in(
                    &mut transaction,
                    batch.iter().map(|(reservation, _)| reservation.device),
                )
                .await?;
            let mut moved = HashSet::with_capacity(batch.len());
            for (reservation, unused_from) in batch {
                if !reservation.keeps_all(*unused_from)?
                    && let Some(Ok(info)) = devices.get_mut(&reservation.device)
                    && reservation.take_back(info, *unused_from)
                {
                    moved.insert(reservation.device);
                    taken_back += 1;
                }
            }
            let marks: Vec<&DeviceInfo> = devices
                .values()
                .filter_map(|info| info.as_ref().ok())
                .filter(|info| moved.contains(&info.device))
                .collect();
            self.write_marks(&mut transaction, &marks).await?;
        }
        transaction.commit().await?;
        Ok(taken_back)
    }

    async fn write_marks(&self, connection: &mut SqliteConnection, devices: &[&DeviceInfo]) -> Result<()> {
        if devices.is_empty() {
            return Ok(());
        }
        let mut update =
            QueryBuilder::<Sqlite>::new("WITH moved (device_id, idx_floor, floor_version, mac) AS (");
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
}

/// Moves the mark of `info` past the rows that it hands out.
fn take(info: &mut DeviceInfo, request: &ReserveRequest) -> Result<Reservation> {
    let device = info.device;
    if request.count == 0 {
        return Err(RegistryError::EmptyReservation { device });
    }
    if !info.status.is_active() {
        return Err(RegistryError::Revoked { device });
    }
    let indices = info.indices();
    let start = indices.start.max(info.idx_floor.0).max(request.from_hint.0);
    let end = start.saturating_add(request.count).min(indices.end);
    if start >= end {
        return Err(RegistryError::RowsExhausted {
            device,
            rows_end: indices.end,
        });
    }
    move_mark(info, end);
    Ok(Reservation {
        device,
        rows: start..end,
        floor_version: info.floor_version,
    })
}

fn move_mark(info: &mut DeviceInfo, to: u32) {
    debug_assert!(to >= info.idx_floor.0);
    info.idx_floor = RowIndex(to);
    info.floor_version = info.floor_version.saturating_add(1);
}
