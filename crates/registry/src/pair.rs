//! Pairs of devices that may communicate, and their current keys (LAP/1 1.7.5).
//!
//! A row of the table is the permission. Its key is created when one of the two devices requests it, and is valid for
//! a short time: a deleted pair, or one with a revoked device, gets no new key.

use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::pair::{Pairing, Role};
use zeroize::Zeroizing;

use crate::column::ColumnValue;
use crate::error::{RegistryError, Result};
use crate::lease::damage;
use crate::record_mac::{RecordMac, halves};
use crate::row::{id_from_column, id_to_column};
use crate::sql::{self, Connection};
use crate::store::Registry;

const LABEL: &[u8] = b"linewarden registry table pair v1";
/// Lifetime of the key of a pair, seconds.
pub const PAIR_LIFETIME_S: u64 = 300;
/// Remaining lifetime below which a new key is created, seconds.
const PAIR_RENEWAL_S: u64 = 75;
/// `id[16] | key[32] | made_at_s u64 | initiator u64`.
const CURRENT_BYTES: usize = 64;

/// The key of a pair, for one of its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairKey {
    /// Id and key.
    pub pairing: Pairing,
    /// The role of the requesting device.
    pub role: Role,
    /// Remaining lifetime, seconds.
    pub lifetime_s: u32,
}

/// The ids of a pair, the lower one first.
#[derive(Clone, Copy)]
struct PairIds {
    low: DeviceId,
    high: DeviceId,
}

impl PairIds {
    fn of(a: DeviceId, b: DeviceId) -> Result<Self> {
        if a == b {
            return Err(RegistryError::InvalidRecord {
                device: a,
                field: "pair",
                problem: "the two devices of a pair must differ".to_owned(),
            });
        }
        Ok(Self {
            low: a.min(b),
            high: a.max(b),
        })
    }

    fn aad(self) -> Vec<u8> {
        [LABEL, &self.low.0.to_be_bytes(), &self.high.0.to_be_bytes()].concat()
    }

    fn code(self, mac: &RecordMac) -> Vec<u8> {
        mac.code_of(LABEL, self.low, &halves(self.high.0)).to_vec()
    }
}

/// A row of `pair`: low, high, mac.
type PermissionRow = (ColumnValue<i64>, ColumnValue<i64>, ColumnValue<Vec<u8>>);

/// The key and the mac of a row.
type CurrentRow = (ColumnValue<Option<Vec<u8>>>, ColumnValue<Vec<u8>>);

fn permission(mac: &RecordMac, (low, high, code): &PermissionRow) -> Result<PairIds> {
    let both = PairIds {
        low: id_from_column(low.0),
        high: id_from_column(high.0),
    };
    match mac.verifies_of(LABEL, both.low, &halves(both.high.0), &code.0) {
        true => Ok(both),
        false => Err(damage(both.low, "permission for a pair")),
    }
}

impl Registry {
    /// Allows two devices to communicate; returns whether the permission is new.
    ///
    /// # Errors
    /// An unknown or revoked device, twice the same device, a damaged record, or a failure of the database.
    pub async fn allow_pair(&self, a: DeviceId, b: DeviceId) -> Result<bool> {
        let both = PairIds::of(a, b)?;
        let mut transaction = self.write().await?;
        for device in [a, b] {
            if !self.get_in(&mut transaction, device).await?.status.is_active() {
                return Err(RegistryError::Revoked { device });
            }
        }
        let done = sql::query(
            "INSERT INTO pair (low_id, high_id, mac) VALUES ($1, $2, $3) ON CONFLICT (low_id, high_id) DO NOTHING",
        )
        .bind(id_to_column(both.low))
        .bind(id_to_column(both.high))
        .bind(both.code(self.record_mac()))
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(done > 0)
    }

    /// Deletes the permission of a pair, which then gets no new key; returns whether it existed.
    ///
    /// # Errors
    /// Twice the same device, or a failure of the database.
    pub async fn disallow_pair(&self, a: DeviceId, b: DeviceId) -> Result<bool> {
        let both = PairIds::of(a, b)?;
        let mut transaction = self.write().await?;
        let done = sql::query("DELETE FROM pair WHERE low_id = $1 AND high_id = $2")
            .bind(id_to_column(both.low))
            .bind(id_to_column(both.high))
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(done > 0)
    }

    /// The devices with which a device may communicate, in the order of their ids; an error for each damaged record.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn pairs_of(&self, device: DeviceId) -> Result<Vec<Result<DeviceId>>> {
        let rows: Vec<PermissionRow> =
            sql::query("SELECT low_id, high_id, mac FROM pair WHERE low_id = $1 OR high_id = $1")
                .bind(id_to_column(device))
                .fetch_all(self.reader())
                .await?;
        let other = |both: PairIds| if both.low == device { both.high } else { both.low };
        let mut peers: Vec<Result<DeviceId>> = rows
            .iter()
            .map(|row| permission(self.record_mac(), row).map(other))
            .collect();
        peers.sort_by_key(|peer| peer.as_ref().ok().copied());
        Ok(peers)
    }

    /// The key of the pair of `device`, which requests it, and `peer`: the current key, or a new one that is durable
    /// before the function returns. `None` if the pair is not allowed, or one of the devices is unknown, revoked or
    /// in quarantine.
    ///
    /// # Errors
    /// A damaged record, or a failure of the database.
    pub async fn pair_key(&self, device: DeviceId, peer: DeviceId, now_s: u64) -> Result<Option<PairKey>> {
        let Ok(both) = PairIds::of(device, peer) else {
            return Ok(None);
        };
        // Most requests are served without the write lock, which leases of gateways wait for.
        let mut connection = self.reader().acquire().await?;
        match self.pair_state(&mut connection, both, now_s).await? {
            PairState::NoPair => return Ok(None),
            PairState::HasKey(current) => return Ok(Some(current.for_device(device, now_s))),
            PairState::NoKey => drop(connection),
        }
        let mut transaction = self.write().await?;
        // The other device may have requested a key in between.
        match self.pair_state(&mut transaction, both, now_s).await? {
            PairState::NoPair => return Ok(None),
            PairState::HasKey(current) => return Ok(Some(current.for_device(device, now_s))),
            PairState::NoKey => {}
        }
        let current = CurrentKey::new(device, now_s)?;
        let sealed = self
            .sealer()
            .seal(&both.aad(), CURRENT_BYTES, |out| current.encode(out))?;
        sql::query("UPDATE pair SET sealed = $1 WHERE low_id = $2 AND high_id = $3")
            .bind(sealed)
            .bind(id_to_column(both.low))
            .bind(id_to_column(both.high))
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(Some(current.for_device(device, now_s)))
    }

    async fn pair_state(&self, connection: &mut Connection, both: PairIds, now_s: u64) -> Result<PairState> {
        for one in [both.low, both.high] {
            match self.get_in(connection, one).await {
                Ok(info) if info.may_authenticate() => {}
                Ok(_) | Err(RegistryError::UnknownDevice { .. }) => return Ok(PairState::NoPair),
                Err(error) => return Err(error),
            }
        }
        let row: Option<CurrentRow> =
            sql::query("SELECT sealed, mac FROM pair WHERE low_id = $1 AND high_id = $2")
                .bind(id_to_column(both.low))
                .bind(id_to_column(both.high))
                .fetch_optional(connection)
                .await?;
        let Some((current, code)) = row else {
            return Ok(PairState::NoPair);
        };
        let columns = (
            ColumnValue(id_to_column(both.low)),
            ColumnValue(id_to_column(both.high)),
            code,
        );
        permission(self.record_mac(), &columns)?;
        let present = current
            .0
            .and_then(|sealed| self.open_current_key(both, &sealed, now_s));
        Ok(present.map_or(PairState::NoKey, PairState::HasKey))
    }

    /// The sealed key, if it is valid long enough. A key that does not open is replaced.
    fn open_current_key(&self, both: PairIds, sealed: &[u8], now_s: u64) -> Option<CurrentKey> {
        let plain = self.sealer().open(&both.aad(), sealed).ok()?;
        let current = CurrentKey::decode(&plain)?;
        // After the clock was set back a new key is created; an old key's lifetime is never extended.
        let age_s = now_s.checked_sub(current.made_at_s)?;
        (age_s + PAIR_RENEWAL_S < PAIR_LIFETIME_S).then_some(current)
    }
}

/// The state of a pair.
enum PairState {
    /// Not allowed, or one of the devices is unknown, revoked or in quarantine.
    NoPair,
    /// Allowed, without a key that is valid long enough.
    NoKey,
    HasKey(CurrentKey),
}

struct CurrentKey {
    pairing: Pairing,
    made_at_s: u64,
    initiator: DeviceId,
}

impl CurrentKey {
    fn new(initiator: DeviceId, now_s: u64) -> Result<Self> {
        let mut random = Zeroizing::new([0u8; 48]);
        getrandom::fill(&mut *random).map_err(RegistryError::NoRandomBytes)?;
        let (id, key) = random.split_at(16);
        let mut pairing = Pairing {
            id: [0; 16],
            key: [0; 32],
        };
        pairing.id.copy_from_slice(id);
        pairing.key.copy_from_slice(key);
        Ok(Self {
            pairing,
            made_at_s: now_s,
            initiator,
        })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.pairing.id);
        out.extend_from_slice(&self.pairing.key);
        out.extend_from_slice(&self.made_at_s.to_be_bytes());
        out.extend_from_slice(&self.initiator.0.to_be_bytes());
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (id, rest) = bytes.split_first_chunk::<16>()?;
        let (key, rest) = rest.split_first_chunk::<32>()?;
        let (made_at, rest) = rest.split_first_chunk::<8>()?;
        Some(Self {
            pairing: Pairing { id: *id, key: *key },
            made_at_s: u64::from_be_bytes(*made_at),
            initiator: DeviceId(u64::from_be_bytes(rest.try_into().ok()?)),
        })
    }

    fn for_device(&self, device: DeviceId, now_s: u64) -> PairKey {
        let age_s = now_s.saturating_sub(self.made_at_s);
        let left_s = PAIR_LIFETIME_S.saturating_sub(age_s);
        PairKey {
            pairing: self.pairing.clone(),
            role: match device == self.initiator {
                true => Role::Initiator,
                false => Role::Responder,
            },
            lifetime_s: u32::try_from(left_s).unwrap_or(u32::MAX),
        }
    }
}

/// Permissions that do not authenticate, for [`Registry::check`].
pub(crate) async fn damaged(connection: &mut Connection, mac: &RecordMac) -> Result<Vec<RegistryError>> {
    let rows: Vec<PermissionRow> = sql::query("SELECT low_id, high_id, mac FROM pair")
        .fetch_all(connection)
        .await?;
    Ok(rows.iter().filter_map(|row| permission(mac, row).err()).collect())
}
