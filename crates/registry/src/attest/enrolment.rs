//! Enrolment: a device becomes a prover.

use std::fmt;

use linewarden_measurement::configuration::Configuration;
use linewarden_protocol::attest::AttestationKey;
use linewarden_protocol::ids::{DeviceId, Period};
use sqlx::SqliteConnection;

use super::State;
use super::groups::{Group, GroupName};
use super::provers::{Home, Protection, ProverRecord, aad, forget};
use super::{advance, seconds};
use crate::error::{RegistryError, Result};
use crate::store::Registry;

/// The longest text of what ties a key to its TPM, bytes.
pub const BINDING_BYTES_MAX: usize = 65_536;
/// The longest encoding of a device's own entries, bytes.
pub const OVERLAY_BYTES_MAX: usize = 65_536;

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
    /// Where it is asked at first.
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

/// Refuses what a device has of its own and what cannot be laid over the reference value of its group: nobody would know what to
/// ask it for. A roll-out is refused for such a device when it is accepted.
pub(super) fn check_fit(device: DeviceId, overlay: Option<&[u8]>, group: &Group) -> Result<()> {
    let (Some(overlay), Some(reference)) = (overlay, &group.reference) else {
        return Ok(());
    };
    let laid =
        Configuration::decode(reference).and_then(|base| base.overlaid(&Configuration::decode(overlay)?));
    laid.map(drop).map_err(|error| {
        let problem = format!(
            "it cannot be laid over what group {} is to run: {error}; measure only what is the device's own, with the same bank",
            group.name
        );
        invalid(device, "overlay", problem)
    })
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
    /// Makes a device a prover, in place of what it was as one before; how it stood then, and its evidence, are forgotten.
    /// Returns the revision under which gateways learn of it. A device in quarantine stays there; any other is
    /// [`State::Unproven`] until it proves something, unless it is a prover with that key already and has proven something by it.
    ///
    /// # Errors
    /// A device that is unknown or revoked, a group that is unknown, a field that is not acceptable, own entries that cannot be
    /// laid over what the group is to run, a damaged record, or a failure of the database; nothing is changed then.
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
        connection: &mut SqliteConnection,
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
        let record = ProverRecord {
            device,
            group: prover.group,
            key: prover.key,
            protection: prover.protection,
            binding: prover.binding,
            overlay: prover.overlay,
            home: prover.home,
            port: prover.port,
            enrolled_at_s: now_s,
            enrolled_period: prover.enrolled_period,
            revision: advance(connection).await?.cast_unsigned(),
            removed: false,
        };
        let begins = match info.quarantine.is_some() {
            // It has yet to get out: it gets no indulgence.
            true => State::Quarantined,
            false if self.has_proven_with(connection, &record).await? => State::Silent,
            false => State::Unproven,
        };
        forget(connection, device).await?;
        self.write_prover(connection, &record, Some(&sealed)).await?;
        self.write_enrolled(connection, &record, begins).await?;
        Ok(record.revision)
    }

    /// Whether a device that is enrolled anew has the key already, as one that is asked elsewhere from now on, and has proven by it,
    /// or nobody can tell.
    async fn has_proven_with(&self, connection: &mut SqliteConnection, anew: &ProverRecord) -> Result<bool> {
        let known = match self.prover_in(connection, anew.device).await {
            Ok(known) => known.map(|(record, _)| record),
            Err(RegistryError::DamagedRecord { .. }) => None,
            Err(error) => return Err(error),
        };
        let has_key =
            known.is_some_and(|known| !known.removed && known.key.as_bytes() == anew.key.as_bytes());
        Ok(has_key && !self.is_unproven_in(connection, anew.device).await?)
    }
}
