//! Enrollment of devices as provers.

use std::collections::{HashMap, HashSet};
use std::fmt;

use linewarden_measurement::configuration::Configuration;
use linewarden_protocol::attest::AttestationKey;
use linewarden_protocol::ids::{DeviceId, Period};
use linewarden_types::{EnrollmentTime, GroupName};

use super::AttestationState;
use super::groups::Group;
use super::provers::{
    Protection, ProverLocation, ProverRecord, UNKNOWN_TIME_S, aad, delete_attestation_data,
};
use super::{next_attest_revision, seconds};
use crate::column::ColumnValue;
use crate::conversion::id_from_column;
use crate::enroll::{IDS_PER_QUERY, PushIds as _};
use crate::error::{AttestationError, DeviceError, RegistryError, Result};
use crate::sql::{Builder, Connection};
use crate::store::Registry;

/// Maximum length of the TPM binding of a key, bytes.
pub const BINDING_BYTES_MAX: usize = 65_536;
/// Maximum length of an encoded overlay, bytes.
pub const OVERLAY_BYTES_MAX: usize = 65_536;

/// A device to be attested.
#[derive(Clone)]
pub struct NewProver {
    /// The device.
    pub device: DeviceId,
    /// The group: reference value and schedule.
    pub group: GroupName,
    /// The attestation key, shared with the controller; never all zero.
    pub key: AttestationKey,
    /// The protection of the key on the device.
    pub protection: Protection,
    /// JSON of `linewarden_tpm::enroll::Binding`, for a key in a TPM.
    pub binding: Option<Vec<u8>>,
    /// The overlay: the device's own entries, merged over the entries of its group (`Configuration::encode` of
    /// `linewarden-measurement`).
    pub overlay: Option<Vec<u8>>,
    /// The location to use until a session or a round shows another location. `None`: the gateway of the device's
    /// session, or for a device in quarantine the location of its last round.
    pub location: Option<ProverLocation>,
    /// The UDP port for attestation requests.
    pub port: u16,
    /// The newest period at the time of enrollment, which the device stores.
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
            return Err(invalid_field(self.device, "key", "all zero".to_owned()));
        }
        if let Some(binding) = &self.binding {
            check_length(self.device, "binding", binding, BINDING_BYTES_MAX)?;
        }
        if self.port == 0 {
            return Err(invalid_field(self.device, "port", "0 is not a port".to_owned()));
        }
        seconds(now_s).map_err(|problem| invalid_field(self.device, "enrolled_at_s", problem))?;
        check_overlay(self.device, self.overlay.as_deref())
    }
}

fn invalid_field(device: DeviceId, field: &'static str, problem: String) -> RegistryError {
    RegistryError::Device(DeviceError::InvalidRecord {
        device,
        field,
        problem,
    })
}

fn check_length(device: DeviceId, field: &'static str, bytes: &[u8], bytes_max: usize) -> Result<()> {
    match (1..=bytes_max).contains(&bytes.len()) {
        true => Ok(()),
        false => {
            let problem = format!("{} B; 1 to {bytes_max} B are accepted", bytes.len());
            Err(invalid_field(device, field, problem))
        }
    }
}

/// Refuses an overlay that cannot be merged with the reference value of the group or with its roll-out, because the
/// controller could not compute the expected proof. [`Registry::change_group`] refuses the opposite case, a new reference
/// value or roll-out that does not fit an existing overlay.
pub(super) fn check_overlay_fits(device: DeviceId, overlay: Option<&[u8]>, group: &Group) -> Result<()> {
    let Some(overlay) = overlay else {
        return Ok(());
    };
    let advice = "measure only the device's own entries, with the same PCR bank";
    let reference = group
        .reference
        .as_ref()
        .map(|reference| (reference, "has as its reference value", String::new()));
    let roll_out = group.roll_out.as_ref().map(|roll_out| {
        let alternative = format!(", or withdraw the roll-out of group {}", group.name);
        (&roll_out.reference, "is rolling out", alternative)
    });
    for (base, role, alternative) in reference.into_iter().chain(roll_out) {
        let merged =
            Configuration::decode(base).and_then(|base| base.with_overlay(&Configuration::decode(overlay)?));
        merged.map_err(|error| {
            let problem = format!(
                "cannot be merged with the configuration that group {} {role}: {error}; {advice}{alternative}",
                group.name
            );
            invalid_field(device, "overlay", problem)
        })?;
    }
    Ok(())
}

pub(super) fn check_overlay(device: DeviceId, overlay: Option<&[u8]>) -> Result<()> {
    let Some(overlay) = overlay else {
        return Ok(());
    };
    check_length(device, "overlay", overlay, OVERLAY_BYTES_MAX)?;
    Configuration::decode(overlay).map_err(|error| invalid_field(device, "overlay", error.to_string()))?;
    Ok(())
}

impl Registry {
    /// Enrolls a device as a prover and replaces an earlier enrollment. Returns the revision under which gateways learn
    /// of the change. The earlier state and evidence are deleted, except the location of the last round of a device in
    /// quarantine. The new [`EnrollmentTime`] always differs from the earlier one. A device in quarantine stays in
    /// quarantine. Any other device is [`AttestationState::Unproven`] until its first valid proof, unless it is already a
    /// prover with the same key and has sent a valid proof with that key.
    ///
    /// # Errors
    /// An unknown or revoked device, an unknown group, an invalid field, an overlay that does not fit the group, a
    /// damaged record, or a failure of the database. Nothing is changed then.
    pub async fn enroll_prover(&self, prover: NewProver, now_s: u64) -> Result<u64> {
        self.enroll_provers(vec![prover], now_s).await
    }

    /// Enrolls devices as [`Registry::enroll_prover`] does, in one transaction; returns the newest revision.
    ///
    /// # Errors
    /// As [`Registry::enroll_prover`], for the first device that is refused. Nothing is changed then.
    pub async fn enroll_provers(&self, provers: Vec<NewProver>, now_s: u64) -> Result<u64> {
        for prover in &provers {
            prover.validate(now_s)?;
        }
        let mut transaction = self.write().await?;
        let mut newest = None;
        for prover in provers {
            newest = Some(self.enroll_prover_in(&mut transaction, prover, now_s).await?);
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

    async fn enroll_prover_in(
        &self,
        connection: &mut Connection,
        prover: NewProver,
        now_s: u64,
    ) -> Result<u64> {
        let device = prover.device;
        let info = self.get_in(connection, device).await?;
        if !info.status.is_active() {
            return Err(RegistryError::Device(DeviceError::Revoked { device }));
        }
        let group = self.group_in(connection, &prover.group).await?;
        let group = group.ok_or_else(|| {
            RegistryError::Attestation(AttestationError::UnknownGroup {
                group: prover.group.clone(),
            })
        })?;
        check_overlay_fits(device, prover.overlay.as_deref(), &group)?;
        let sealed = self
            .sealer()
            .seal(&aad(device), prover.key.as_bytes().len(), |out| {
                out.extend_from_slice(prover.key.as_bytes());
            })?;
        let before = match self.prover_in(connection, device).await {
            Ok(stored) => stored.map(|(record, _)| record),
            Err(RegistryError::Device(DeviceError::DamagedRecord { .. })) => None,
            Err(error) => return Err(error),
        };
        // A device in quarantine has no session that would reveal its gateway. Any other device may have roamed.
        let location = match prover.location {
            None if info.quarantine.is_some() => {
                let last = self.last_location_in(connection, device).await?;
                last.or(before.as_ref().and_then(|before| before.location))
            }
            location => location,
        };
        // The column is a signed integer.
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
            location,
            port: prover.port,
            enrolled_at_s: now_s.max(next_s.cast_unsigned()),
            enrolled_period: prover.enrolled_period,
            revision: next_attest_revision(connection).await?.cast_unsigned(),
            removed: false,
        };
        let state = match info.quarantine.is_some() {
            // The device must prove its configuration to leave quarantine.
            true => AttestationState::Quarantined,
            false => self.initial_state(connection, &record, before.as_ref()).await?,
        };
        delete_attestation_data(connection, device).await?;
        self.write_prover(connection, &record, Some(&sealed)).await?;
        self.write_initial_appraisal(connection, &record, state).await?;
        Ok(record.revision)
    }

    /// The first state of an enrollment. A prover that is enrolled again with the same key, for example for another
    /// location, is not unproven if it has sent a valid proof with that key, or if its appraisal is damaged.
    async fn initial_state(
        &self,
        connection: &mut Connection,
        new: &ProverRecord,
        before: Option<&ProverRecord>,
    ) -> Result<AttestationState> {
        let has_same_key =
            before.is_some_and(|before| !before.removed && before.key.as_bytes() == new.key.as_bytes());
        let is_proven = has_same_key && !self.is_unproven_in(connection, new.device).await?;
        Ok(if is_proven {
            AttestationState::Missed
        } else {
            AttestationState::Unproven
        })
    }

    /// Returns the devices that were enrolled again after the given enrollment, or are no longer provers: results of the
    /// earlier enrollment do not apply to these devices. A device is not returned if its record does not authenticate, is
    /// missing, or shows an older enrollment: write access to the database must not excuse a missed round.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn superseded(&self, enrollments: &[(DeviceId, EnrollmentTime)]) -> Result<HashSet<DeviceId>> {
        let mut connection = self.reader().acquire().await?;
        let mut superseded = HashSet::new();
        for batch in enrollments.chunks(IDS_PER_QUERY) {
            let enrollment_times: HashMap<DeviceId, EnrollmentTime> = batch.iter().copied().collect();
            let mut query =
                Builder::new("SELECT device_id, enrolled_at_s, removed FROM prover WHERE device_id IN ");
            query.push_ids(batch.iter().map(|(device, _)| *device));
            let records: Vec<(i64, ColumnValue<i64>, ColumnValue<i64>)> =
                query.build().fetch_all(&mut connection).await?;
            // Only records that differ, which are few, are authenticated.
            for (device, at_s, removed) in records {
                let device = id_from_column(device);
                let Some(enrolled_at) = enrollment_times.get(&device) else {
                    continue;
                };
                let is_same = at_s.0.cast_unsigned() == enrolled_at.0 && removed.0 == 0;
                if !is_same && self.is_superseded(&mut connection, device, *enrolled_at).await? {
                    superseded.insert(device);
                }
            }
        }
        Ok(superseded)
    }

    /// Whether an authentic record shows this enrollment of the device. `false` for a record that does not authenticate,
    /// because such a record must not lead to a release from quarantine. (In contrast, [`Registry::superseded`] treats the
    /// enrollment of such a record as still valid.)
    pub(crate) async fn is_enrolled(
        &self,
        connection: &mut Connection,
        device: DeviceId,
        enrolled_at: EnrollmentTime,
    ) -> Result<bool> {
        match self.prover_in(connection, device).await {
            Ok(stored) => {
                Ok(stored.is_some_and(|(record, _)| !record.removed && record.enrolled_at() == enrolled_at))
            }
            Err(RegistryError::Device(DeviceError::DamagedRecord { .. })) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// As [`Registry::superseded`] for one device, in the caller's transaction.
    pub(crate) async fn is_superseded(
        &self,
        connection: &mut Connection,
        device: DeviceId,
        enrolled_at: EnrollmentTime,
    ) -> Result<bool> {
        match self.prover_in(connection, device).await {
            Ok(Some((record, _))) if record.removed => {
                Ok(record.enrolled_at() >= enrolled_at || record.enrolled_at_s == UNKNOWN_TIME_S)
            }
            Ok(stored) => Ok(stored.is_some_and(|(record, _)| record.enrolled_at() > enrolled_at)),
            Err(RegistryError::Device(DeviceError::DamagedRecord { .. })) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
