//! Enrolment: a device becomes a prover.

use std::collections::{HashMap, HashSet};
use std::fmt;

use linewarden_measurement::configuration::Configuration;
use linewarden_protocol::attest::AttestationKey;
use linewarden_protocol::ids::{DeviceId, Period};

use super::State;
use super::groups::{Group, GroupName};
use super::provers::{Home, Protection, ProverRecord, UNKNOWN_S, aad, forget};
use super::{advance, seconds};
use crate::column::Stored;
use crate::enrol::{IDS_PER_QUERY, PushIds as _};
use crate::error::{RegistryError, Result};
use crate::row::id_from_column;
use crate::sql::{Builder, Connection};
use crate::store::Registry;

/// The longest text of what ties a key to its TPM, bytes.
pub const BINDING_BYTES_MAX: usize = 65_536;
/// The longest encoding of a device's own entries, bytes.
pub const OVERLAY_BYTES_MAX: usize = 65_536;

/// Which enrolment of a prover: what was seen of one says nothing of another. It is the time of the enrolment in seconds since
/// 1970-01-01 UTC, or a second after that of the enrolment before, if the clock has not gone so far: no device has one twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EnrolledAt(pub u64);

/// A device to be attested.
#[derive(Clone)]
pub struct NewProver {
    /// Which.
    pub device: DeviceId,
    /// What it is to run, and how often it is asked.
    pub group: GroupName,
    /// What it shares with the controller; never all zero.
    pub key: AttestationKey,
    /// What keeps the key.
    pub protection: Protection,
    /// JSON of `linewarden_tpm::enrol::Binding`, of a key in a TPM.
    pub binding: Option<Vec<u8>>,
    /// Its own entries, laid over those of its group: `Configuration::encode` of `linewarden-measurement`.
    pub overlay: Option<Vec<u8>>,
    /// Where it is asked at first; `None`: where its session is, or of a device in quarantine, where it was asked last.
    pub home: Option<Home>,
    /// The UDP port that it is asked at.
    pub port: u16,
    /// The newest period at enrolment, which the device keeps as the last that it knows of.
    pub enrolled_period: Period,
}

impl fmt::Debug for NewProver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewProver")
            .field("device", &self.device)
            .field("group", &self.group)
            .field("protection", &self.protection)
            .finish_non_exhaustive()
    }
}

impl NewProver {
    fn validate(&self, now_s: u64) -> Result<()> {
        if self.key.as_bytes() == &[0; 32] {
            return Err(invalid(self.device, "key", "it is all zero".to_owned()));
        }
        if let Some(binding) = &self.binding {
            check_length(self.device, "binding", binding, BINDING_BYTES_MAX)?;
        }
        if self.port == 0 {
            return Err(invalid(self.device, "port", "0 is none".to_owned()));
        }
        seconds(now_s).map_err(|problem| invalid(self.device, "enrolled_at_s", problem))?;
        check_overlay(self.device, self.overlay.as_deref())
    }
}

fn invalid(device: DeviceId, field: &'static str, problem: String) -> RegistryError {
    RegistryError::InvalidRecord {
        device,
        field,
        problem,
    }
}

fn check_length(device: DeviceId, field: &'static str, bytes: &[u8], bytes_max: usize) -> Result<()> {
    match (1..=bytes_max).contains(&bytes.len()) {
        true => Ok(()),
        false => {
            let problem = format!("{} B; 1 to {bytes_max} B are accepted", bytes.len());
            Err(invalid(device, field, problem))
        }
    }
}

/// Refuses what a device has of its own and what cannot be laid over the reference value of its group, or over the one that is being
/// rolled out: nobody would know what to ask it for, now or once that is accepted. Either is refused likewise for such a device when it
/// is set.
pub(super) fn check_fit(device: DeviceId, overlay: Option<&[u8]>, group: &Group) -> Result<()> {
    let Some(overlay) = overlay else {
        return Ok(());
    };
    let advice = "measure only what is the device's own, with the same bank";
    let reference = group
        .reference
        .as_ref()
        .map(|reference| (reference, "is to run", String::new()));
    let roll_out = group.roll_out.as_ref().map(|roll_out| {
        let withdraw = format!(", or withdraw the roll-out of group {}", group.name);
        (&roll_out.reference, "is being updated to", withdraw)
    });
    for (base, role, otherwise) in reference.into_iter().chain(roll_out) {
        let laid =
            Configuration::decode(base).and_then(|base| base.overlaid(&Configuration::decode(overlay)?));
        laid.map_err(|error| {
            let problem = format!(
                "it cannot be laid over what group {} {role}: {error}; {advice}{otherwise}",
                group.name
            );
            invalid(device, "overlay", problem)
        })?;
    }
    Ok(())
}

pub(super) fn check_overlay(device: DeviceId, overlay: Option<&[u8]>) -> Result<()> {
    let Some(overlay) = overlay else {
        return Ok(());
    };
    check_length(device, "overlay", overlay, OVERLAY_BYTES_MAX)?;
    Configuration::decode(overlay).map_err(|error| invalid(device, "overlay", error.to_string()))?;
    Ok(())
}

impl Registry {
    /// Makes a device a prover, in place of what it was as one before; how it stood then, and its evidence, are forgotten, but not
    /// where one in quarantine was asked last. Its
    /// [`EnrolledAt`] is another one, however the clock stands. Returns the revision under which gateways learn of it. A device in quarantine stays there; any other is
    /// [`State::Unproven`] until it proves something, unless it is a prover with that key already and has proven something by it.
    ///
    /// # Errors
    /// A device that is unknown or revoked, a group that is unknown, a field that is not acceptable, own entries that cannot be
    /// laid over what the group is to run or is being updated to, a damaged record, or a failure of the database; nothing is changed then.
    pub async fn enrol_prover(&self, prover: NewProver, now_s: u64) -> Result<u64> {
        self.enrol_provers(vec![prover], now_s).await
    }

    /// Makes devices provers as [`Registry::enrol_prover`] does, all in one transaction; returns the newest revision.
    ///
    /// # Errors
    /// As [`Registry::enrol_prover`], of the first that is refused; nothing is changed then.
    pub async fn enrol_provers(&self, provers: Vec<NewProver>, now_s: u64) -> Result<u64> {
        for prover in &provers {
            prover.validate(now_s)?;
        }
        let mut transaction = self.write().await?;
        let mut newest = None;
        for prover in provers {
            newest = Some(self.enrol_prover_in(&mut transaction, prover, now_s).await?);
        }
        match newest {
            Some(revision) => {
                transaction.commit().await?;
                Ok(revision)
            }
            None => {
                drop(transaction);
                self.attest_revision().await
            }
        }
    }

    async fn enrol_prover_in(
        &self,
        connection: &mut Connection,
        prover: NewProver,
        now_s: u64,
    ) -> Result<u64> {
        let device = prover.device;
        let info = self.get_in(connection, device).await?;
        if !info.status.is_active() {
            return Err(RegistryError::Revoked { device });
        }
        let group = self.group_in(connection, &prover.group).await?;
        let group = group.ok_or_else(|| RegistryError::UnknownGroup {
            group: prover.group.clone(),
        })?;
        check_fit(device, prover.overlay.as_deref(), &group)?;
        let sealed = self
            .sealer()
            .seal(&aad(device), prover.key.as_bytes().len(), |out| {
                out.extend_from_slice(prover.key.as_bytes());
            })?;
        let before = match self.prover_in(connection, device).await {
            Ok(found) => found.map(|(record, _)| record),
            Err(RegistryError::DamagedRecord { .. }) => None,
            Err(error) => return Err(error),
        };
        // One in quarantine gets no session, so that no gateway would find it by itself. Any other may be elsewhere by now.
        let home = match prover.home {
            None if info.quarantine.is_some() => {
                let last = self.last_asked_in(connection, device).await?;
                last.or(before.as_ref().and_then(|before| before.home))
            }
            home => home,
        };
        // The column is signed.
        let next_s = before
            .as_ref()
            .map_or(0, |before| before.enrolled_at_s.cast_signed().saturating_add(1));
        let record = ProverRecord {
            device,
            group: prover.group,
            key: prover.key,
            protection: prover.protection,
            binding: prover.binding,
            overlay: prover.overlay,
            home,
            port: prover.port,
            enrolled_at_s: now_s.max(next_s.cast_unsigned()),
            enrolled_period: prover.enrolled_period,
            revision: advance(connection).await?.cast_unsigned(),
            removed: false,
        };
        let begins = match info.quarantine.is_some() {
            // It has yet to get out: it gets no indulgence.
            true => State::Quarantined,
            false => self.begins(connection, &record, before.as_ref()).await?,
        };
        forget(connection, device).await?;
        self.write_prover(connection, &record, Some(&sealed)).await?;
        self.write_enrolled(connection, &record, begins).await?;
        Ok(record.revision)
    }

    /// How a prover begins. One that is enrolled anew with the key that it has, as when it is asked elsewhere from now on, is not new
    /// if it has proven by it, or nobody can tell.
    async fn begins(
        &self,
        connection: &mut Connection,
        anew: &ProverRecord,
        before: Option<&ProverRecord>,
    ) -> Result<State> {
        let has_key =
            before.is_some_and(|before| !before.removed && before.key.as_bytes() == anew.key.as_bytes());
        let is_known = has_key && !self.is_unproven_in(connection, anew.device).await?;
        Ok(if is_known { State::Silent } else { State::Unproven })
    }

    /// Who of these was enrolled anew since that enrolment, or is no prover any more: what was seen then is not its own. What does not
    /// authenticate, is gone, or was put back to an older enrolment, says so of nobody: who can write the file excuses no silence.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn overtaken(&self, seen: &[(DeviceId, EnrolledAt)]) -> Result<HashSet<DeviceId>> {
        let mut connection = self.reader().acquire().await?;
        let mut overtaken = HashSet::new();
        for batch in seen.chunks(IDS_PER_QUERY) {
            let of: HashMap<DeviceId, EnrolledAt> = batch.iter().copied().collect();
            let mut query =
                Builder::new("SELECT device_id, enrolled_at_s, removed FROM prover WHERE device_id IN ");
            query.push_ids(batch.iter().map(|(device, _)| *device));
            let rows: Vec<(i64, Stored<i64>, Stored<i64>)> = query.build().fetch_all(&mut connection).await?;
            // Hardly ever is one another's: only those records are read and authenticated.
            for (device, at_s, removed) in rows {
                let device = id_from_column(device);
                let Some(of) = of.get(&device) else {
                    continue;
                };
                let is_same = at_s.0.cast_unsigned() == of.0 && removed.0 == 0;
                if !is_same && self.is_overtaken(&mut connection, device, *of).await? {
                    overtaken.insert(device);
                }
            }
        }
        Ok(overtaken)
    }

    /// Whether a record that authenticates says that the device is a prover by that enrolment. Other than [`Registry::overtaken`] this
    /// is asked before somebody is let in: what does not authenticate lets in nobody.
    pub(crate) async fn is_enrolled(
        &self,
        connection: &mut Connection,
        device: DeviceId,
        enrolled_at: EnrolledAt,
    ) -> Result<bool> {
        match self.prover_in(connection, device).await {
            Ok(found) => {
                Ok(found.is_some_and(|(record, _)| !record.removed && record.enrolled_at() == enrolled_at))
            }
            Err(RegistryError::DamagedRecord { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// As [`Registry::overtaken`], of one within the caller's transaction.
    pub(crate) async fn is_overtaken(
        &self,
        connection: &mut Connection,
        device: DeviceId,
        seen: EnrolledAt,
    ) -> Result<bool> {
        match self.prover_in(connection, device).await {
            Ok(Some((record, _))) if record.removed => {
                Ok(record.enrolled_at() >= seen || record.enrolled_at_s == UNKNOWN_S)
            }
            Ok(found) => Ok(found.is_some_and(|(record, _)| record.enrolled_at() > seen)),
            Err(RegistryError::DamagedRecord { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
