//! The registry's side of the exchange: questions in, answers out, on a thread of its own.
//!
//! Rows and changes are served by two tasks, so that a revocation does not wait behind a fleet that is being loaded.
//! Here row keys become the keys of this one gateway; nothing else leaves (LAP/1 1.1).

use std::collections::HashMap;

use linewarden_dataplane::Row;
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex};
use linewarden_protocol::keys::AuthKey;
use linewarden_registry::{
    ActiveChunk, ActiveStream, Changes, Credentials, DeviceInfo, Registry, RegistryError, Reservation,
    ReserveRequest, Revision,
};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::exchange::{Answer, Chunk, Provision, Refusal, Refused, Want};

/// Devices read from the registry at once.
const CHUNK_DEVICES: u32 = 500;
/// Changes read from the registry at once.
const CHANGES_MAX: u32 = 1000;

/// Serves the questions about rows, one after the other, until their sender is gone.
pub(crate) async fn serve_rows(
    mut keeper: RowKeeper,
    mut asks: UnboundedReceiver<RowsAsk>,
    answer: impl Fn(Answer),
) {
    while let Some(ask) = asks.recv().await {
        answer(match ask {
            RowsAsk::Load => Answer::Chunk(keeper.next_chunk().await.map_err(words)),
            RowsAsk::Rows(wants) => Answer::Rows(keeper.rows(&wants).await.map_err(words)),
            RowsAsk::GiveBack(unused) => Answer::GivenBack(keeper.give_back(unused).await.map_err(words)),
        });
    }
}

/// A question about rows.
pub(crate) enum RowsAsk {
    Load,
    Rows(Vec<Want>),
    GiveBack(Vec<(DeviceId, RowIndex)>),
}

/// Serves the questions about changes.
pub(crate) async fn serve_changes(
    registry: Registry,
    mut asks: UnboundedReceiver<Revision>,
    answer: impl Fn(Answer),
) {
    while let Some(since) = asks.recv().await {
        answer(Answer::Changes(
            changes_since(&registry, since).await.map_err(words),
        ));
    }
}

async fn changes_since(registry: &Registry, since: Revision) -> Result<Changes, RegistryError> {
    // One small row, most of the time.
    if registry.revision().await? <= since {
        return Ok(Changes {
            changes: Vec::new(),
            upto: since,
            more: false,
        });
    }
    registry.changes_since(since, CHANGES_MAX).await
}

/// Reserves rows, derives their keys, and remembers what was reserved.
pub(crate) struct RowKeeper {
    registry: Registry,
    gateway_id: GatewayId,
    block: u32,
    stream: ActiveStream,
    /// A part of the fleet that was read and for which no rows could be reserved yet.
    unfinished: Option<ActiveChunk>,
    reservations: HashMap<DeviceId, Reservation>,
}

impl RowKeeper {
    /// Reserves `block` rows for each device of the fleet.
    pub(crate) fn new(registry: Registry, gateway_id: GatewayId, block: u32) -> Self {
        let stream = registry.stream_active(CHUNK_DEVICES);
        Self {
            registry,
            gateway_id,
            block,
            stream,
            unfinished: None,
            reservations: HashMap::new(),
        }
    }

    async fn next_chunk(&mut self) -> Result<Chunk, RegistryError> {
        let active = match self.unfinished.take() {
            Some(active) => active,
            None => match self.stream.next_chunk().await? {
                Some(active) => active,
                None => return Ok(Chunk::end(self.stream.feed_from())),
            },
        };
        let wants: Vec<Want> = active
            .devices
            .iter()
            .map(|device| Want {
                device: device.info.device,
                from: RowIndex(0),
                count: self.block,
            })
            .collect();
        let devices: Vec<(DeviceInfo, &Credentials)> = active
            .devices
            .iter()
            .map(|device| (device.info.clone(), &device.credentials))
            .collect();
        let provided = self.provide(&wants, &devices).await;
        drop(devices);
        let (provisions, refused) = match provided {
            Ok(provided) => provided,
            Err(error) => {
                self.unfinished = Some(active);
                return Err(error);
            }
        };
        Ok(Chunk {
            provisions,
            refused,
            damaged: active.damaged.iter().map(ToString::to_string).collect(),
            feed_from: self.stream.feed_from(),
            last: false,
        })
    }

    async fn rows(&mut self, wants: &[Want]) -> Result<(Vec<Provision>, Vec<Refused>), RegistryError> {
        let mut known = Vec::with_capacity(wants.len());
        let mut refused = Vec::new();
        for want in wants {
            match self.credentials(want.device).await {
                Ok(found) => known.push((*want, found)),
                Err(error) => refused.push(refusal(want.device, 0, error)?),
            }
        }
        let wants: Vec<Want> = known.iter().map(|(want, _)| *want).collect();
        let devices: Vec<(DeviceInfo, &Credentials)> = known
            .iter()
            .map(|(_, (info, credentials))| (info.clone(), credentials))
            .collect();
        let (provisions, more) = self.provide(&wants, &devices).await?;
        refused.extend(more);
        Ok((provisions, refused))
    }

    async fn credentials(&self, device: DeviceId) -> Result<(DeviceInfo, Credentials), RegistryError> {
        let found = self.registry.load(device).await?;
        Ok((found.info, found.credentials))
    }

    /// Reserves rows for all in one transaction, and only then makes their keys. In key mode nothing is spent: every
    /// number will do there.
    async fn provide(
        &mut self,
        wants: &[Want],
        devices: &[(DeviceInfo, &Credentials)],
    ) -> Result<(Vec<Provision>, Vec<Refused>), RegistryError> {
        let requests: Vec<ReserveRequest> = wants
            .iter()
            .zip(devices)
            .filter(|(_, (info, _))| info.mode == Mode::Pool)
            .map(|(want, _)| ReserveRequest {
                device: want.device,
                from_hint: want.from,
                count: want.count,
            })
            .collect();
        let mut reserved = self.registry.reserve_bulk(&requests).await?.into_iter();
        let (mut provisions, mut refused) = (Vec::with_capacity(wants.len()), Vec::new());
        for (want, (info, credentials)) in wants.iter().zip(devices) {
            let rows = match info.mode {
                Mode::Key => Ok(info.idx_floor.0..info.idx_floor.0.saturating_add(1)),
                Mode::Pool => match reserved.next() {
                    Some(answer) => answer.map(|reservation| self.keep(reservation)),
                    None => Err(RegistryError::UnknownDevice { device: want.device }),
                },
            };
            match rows {
                Ok(rows) => provisions.push(Provision {
                    device: want.device,
                    mode: info.mode,
                    epoch: info.epoch,
                    first: RowIndex(rows.start),
                    rows: rows
                        .map_while(|idx| self.row(info, credentials, RowIndex(idx)))
                        .collect(),
                }),
                Err(error) => refused.push(refusal(want.device, info.epoch, error)?),
            }
        }
        Ok((provisions, refused))
    }

    fn row(&self, info: &DeviceInfo, credentials: &Credentials, idx: RowIndex) -> Option<Row> {
        let (challenge, row_key) = match credentials {
            Credentials::Key(key) => ([0; 8], key),
            Credentials::Pool { .. } => {
                let row = credentials.row(idx)?;
                (row.challenge, &row.row_key)
            }
        };
        Some(Row {
            challenge,
            auth_key: AuthKey::derive(row_key, info.suite, info.mode, idx, self.gateway_id),
        })
    }

    /// Remembers a reservation, joined to the one before where it follows directly.
    fn keep(&mut self, reservation: Reservation) -> std::ops::Range<u32> {
        let (device, rows) = (reservation.device(), reservation.rows());
        let joined = match self.reservations.remove(&device) {
            // Otherwise somebody else reserved in between; what was held before stays spent.
            Some(before) => before.join(reservation).unwrap_or_else(|(_, next)| next),
            None => reservation,
        };
        self.reservations.insert(device, joined);
        rows
    }

    async fn give_back(&mut self, unused: Vec<(DeviceId, RowIndex)>) -> Result<u64, RegistryError> {
        let reservations = unused.into_iter().filter_map(|(device, from)| {
            let reservation = self.reservations.remove(&device)?;
            let rows = reservation.rows();
            Some((reservation, RowIndex(from.0.clamp(rows.start, rows.end))))
        });
        let reservations = reservations.collect();
        self.registry.give_back_bulk(reservations).await
    }
}

/// What concerns one device only; everything else is the whole question's failure.
fn refusal(device: DeviceId, epoch: u32, error: RegistryError) -> Result<Refused, RegistryError> {
    let why = match error {
        RegistryError::RowsExhausted { .. } => Refusal::Exhausted,
        RegistryError::Revoked { .. } | RegistryError::UnknownDevice { .. } => Refusal::Gone,
        RegistryError::DamagedRecord { .. } => Refusal::Damaged(error.to_string()),
        other => return Err(other),
    };
    Ok(Refused { device, epoch, why })
}

#[expect(clippy::needless_pass_by_value, reason = "goes into map_err")]
fn words(error: RegistryError) -> String {
    error.to_string()
}
