//! Pairs of devices that may communicate, and their current keys (LAP/1 1.7.5).
//!
//! A record of the table is the permission of two devices to communicate. The key of the pair is created when one of the
//! two devices requests it, and is valid for a short time. A deleted pair, or a pair with a revoked device, gets no new
//! key.

use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::pair::{Pairing, Role};
use zeroize::Zeroizing;

use crate::column::ColumnValue;
use crate::conversion::{id_from_column, id_to_column};
use crate::error::{DatabaseError, DeviceError, RegistryError, Result};
use crate::lease::damage;
use crate::record_tag::{RecordAuthenticator, halves};
use crate::sql::{self, Connection};
use crate::store::Registry;

const LABEL: &[u8] = b"linewarden registry table pair v1";
/// Lifetime of the key of a pair, seconds.
pub const PAIR_LIFETIME_S: u64 = 300;
/// Remaining lifetime of the current key at which the next request creates a new key, seconds.
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

/// The ids of a pair, the lower id first.
#[derive(Clone, Copy)]
struct PairIds {
    low: DeviceId,
    high: DeviceId,
}

impl PairIds {
    fn of(a: DeviceId, b: DeviceId) -> Result<Self> {
        if a == b {
            return Err(RegistryError::Device(DeviceError::InvalidRecord {
                device: a,
                field: "pair",
                problem: "the two devices of a pair must differ".to_owned(),
            }));
        }
        Ok(Self {
            low: a.min(b),
            high: a.max(b),
        })
    }

    fn aad(self) -> Vec<u8> {
        [LABEL, &self.low.0.to_be_bytes(), &self.high.0.to_be_bytes()].concat()
    }

    fn tag(self, authenticator: &RecordAuthenticator) -> Vec<u8> {
        authenticator
            .tag_of_fields(LABEL, self.low, &halves(self.high.0))
            .to_vec()
    }
}

/// The columns of `pair`: low, high, tag.
type PairColumns = (ColumnValue<i64>, ColumnValue<i64>, ColumnValue<Vec<u8>>);

/// Columns of `pair`: sealed key, tag.
type CurrentKeyColumns = (ColumnValue<Option<Vec<u8>>>, ColumnValue<Vec<u8>>);

/// Authenticates the permission of a pair.
fn permission(authenticator: &RecordAuthenticator, (low, high, tag): &PairColumns) -> Result<PairIds> {
    let pair = PairIds {
        low: id_from_column(low.0),
        high: id_from_column(high.0),
    };
    match authenticator.verifies_fields(LABEL, pair.low, &halves(pair.high.0), &tag.0) {
        true => Ok(pair),
        false => Err(damage(pair.low, "permission for a pair")),
    }
}

impl Registry {
    /// Allows two devices to communicate; returns whether the permission is new.
    ///
    /// # Errors
    /// An unknown or revoked device, the same device twice, a damaged record, or a failure of the database.
    pub async fn allow_pair(&self, a: DeviceId, b: DeviceId) -> Result<bool> {
        let pair = PairIds::of(a, b)?;
        let mut transaction = self.write().await?;
        for device in [a, b] {
            if !self.get_in(&mut transaction, device).await?.status.is_active() {
                return Err(RegistryError::Device(DeviceError::Revoked { device }));
            }
        }
        let inserted = sql::query(
            "INSERT INTO pair (low_id, high_id, tag) VALUES ($1, $2, $3) ON CONFLICT (low_id, high_id) DO NOTHING",
        )
        .bind(id_to_column(pair.low))
        .bind(id_to_column(pair.high))
        .bind(pair.tag(self.authenticator()))
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(inserted > 0)
    }

    /// Deletes the permission of a pair, so that the pair gets no new key; returns whether the permission existed.
    ///
    /// # Errors
    /// The same device twice, or a failure of the database.
    pub async fn disallow_pair(&self, a: DeviceId, b: DeviceId) -> Result<bool> {
        let pair = PairIds::of(a, b)?;
        let mut transaction = self.write().await?;
        let deleted = sql::query("DELETE FROM pair WHERE low_id = $1 AND high_id = $2")
            .bind(id_to_column(pair.low))
            .bind(id_to_column(pair.high))
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(deleted > 0)
    }

    /// The devices with which a device may communicate, in the order of their ids; an error for each damaged record.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn pairs_of(&self, device: DeviceId) -> Result<Vec<Result<DeviceId>>> {
        let records: Vec<PairColumns> =
            sql::query("SELECT low_id, high_id, tag FROM pair WHERE low_id = $1 OR high_id = $1")
                .bind(id_to_column(device))
                .fetch_all(self.reader())
                .await?;
        let peer = |pair: PairIds| if pair.low == device { pair.high } else { pair.low };
        let mut peers: Vec<Result<DeviceId>> = records
            .iter()
            .map(|record| permission(self.authenticator(), record).map(peer))
            .collect();
        peers.sort_by_key(|peer| peer.as_ref().ok().copied());
        Ok(peers)
    }

    /// The key of the pair of `device`, which requests the key, and `peer`: the current key, or a new key that is durable
    /// before the function returns. `None` if the pair is not allowed, or one of the devices is unknown, revoked or in
    /// quarantine.
    ///
    /// # Errors
    /// A damaged record, or a failure of the database.
    pub async fn pair_key(&self, device: DeviceId, peer: DeviceId, now_s: u64) -> Result<Option<PairKey>> {
        let Ok(pair) = PairIds::of(device, peer) else {
            return Ok(None);
        };
        // Most requests need no write lock, for which lease requests of gateways would have to wait.
        let mut connection = self.reader().acquire().await?;
        match self.pair_state(&mut connection, pair, now_s).await? {
            PairState::NoPair => return Ok(None),
            PairState::HasKey(current) => return Ok(Some(current.for_device(device, now_s))),
            PairState::NoKey => drop(connection),
        }
        let mut transaction = self.write().await?;
        // The other device may have requested a key in between.
        match self.pair_state(&mut transaction, pair, now_s).await? {
            PairState::NoPair => return Ok(None),
            PairState::HasKey(current) => return Ok(Some(current.for_device(device, now_s))),
            PairState::NoKey => {}
        }
        let current = CurrentKey::new(device, now_s)?;
        let sealed = self
            .sealer()
            .seal(&pair.aad(), CURRENT_BYTES, |out| current.encode(out))?;
        sql::query("UPDATE pair SET sealed = $1 WHERE low_id = $2 AND high_id = $3")
            .bind(sealed)
            .bind(id_to_column(pair.low))
            .bind(id_to_column(pair.high))
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(Some(current.for_device(device, now_s)))
    }

    async fn pair_state(&self, connection: &mut Connection, pair: PairIds, now_s: u64) -> Result<PairState> {
        for device in [pair.low, pair.high] {
            match self.get_in(connection, device).await {
                Ok(info) if info.may_authenticate() => {}
                Ok(_) | Err(RegistryError::Device(DeviceError::UnknownDevice { .. })) => {
                    return Ok(PairState::NoPair);
                }
                Err(error) => return Err(error),
            }
        }
        let record: Option<CurrentKeyColumns> =
            sql::query("SELECT sealed, tag FROM pair WHERE low_id = $1 AND high_id = $2")
                .bind(id_to_column(pair.low))
                .bind(id_to_column(pair.high))
                .fetch_optional(connection)
                .await?;
        let Some((sealed, tag)) = record else {
            return Ok(PairState::NoPair);
        };
        let columns = (
            ColumnValue(id_to_column(pair.low)),
            ColumnValue(id_to_column(pair.high)),
            tag,
        );
        permission(self.authenticator(), &columns)?;
        let current = sealed
            .0
            .and_then(|sealed| self.open_current_key(pair, &sealed, now_s));
        Ok(current.map_or(PairState::NoKey, PairState::HasKey))
    }

    /// Opens the sealed key. `None` if the key does not open or its remaining lifetime is too short; the caller then
    /// replaces the key.
    fn open_current_key(&self, pair: PairIds, sealed: &[u8], now_s: u64) -> Option<CurrentKey> {
        let plain = self.sealer().open(&pair.aad(), sealed).ok()?;
        let current = CurrentKey::decode(&plain)?;
        // If the clock was set back, a new key is created: the lifetime of an old key is never extended.
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
    /// Allowed, with a key that is valid long enough.
    HasKey(CurrentKey),
}

/// The current key of a pair, as sealed in the database.
struct CurrentKey {
    pairing: Pairing,
    made_at_s: u64,
    initiator: DeviceId,
}

impl CurrentKey {
    fn new(initiator: DeviceId, now_s: u64) -> Result<Self> {
        let mut random = Zeroizing::new([0u8; 48]);
        getrandom::fill(&mut *random).map_err(DatabaseError::NoRandomBytes)?;
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
        let remaining_s = PAIR_LIFETIME_S.saturating_sub(age_s);
        PairKey {
            pairing: self.pairing.clone(),
            role: match device == self.initiator {
                true => Role::Initiator,
                false => Role::Responder,
            },
            lifetime_s: u32::try_from(remaining_s).unwrap_or(u32::MAX),
        }
    }
}

/// Errors of permissions that do not authenticate, for [`Registry::check`].
pub(crate) async fn damaged(
    connection: &mut Connection,
    authenticator: &RecordAuthenticator,
) -> Result<Vec<RegistryError>> {
    let records: Vec<PairColumns> = sql::query("SELECT low_id, high_id, tag FROM pair")
        .fetch_all(connection)
        .await?;
    Ok(records
        .iter()
        .filter_map(|record| permission(authenticator, record).err())
        .collect())
}
