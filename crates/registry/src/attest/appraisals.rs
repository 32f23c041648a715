//! Attestation states of provers, as of the newest round that changed them.

use std::collections::HashSet;
use std::net::IpAddr;

use linewarden_protocol::gateway::Configuration;
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_types::EnrollmentTime;

use super::provers::{ProverLocation, ProverRecord};
use super::{Pages, address_from_column, address_to_column, seconds};
use crate::column::ColumnValue;
use crate::conversion::{id_from_column, id_to_column};
use crate::enroll::{IDS_PER_QUERY, PushIds as _};
use crate::error::{RegistryError, Result};
use crate::lease::damage;
use crate::record_tag::{RecordAuthenticator, TagBuilder};
use crate::sql::{self, Builder, Connection};
use crate::store::Registry;

const LABEL: &[u8] = b"linewarden registry table appraisal v1";
/// The round number of an appraisal that was written at enrollment, before any round. This appraisal distinguishes a
/// prover that was never attested from a prover whose appraisal was deleted.
const NO_ROUND: u32 = 0;
/// The maximum number of missed rounds that an appraisal records.
pub const MISSED_ROUNDS_MAX: usize = 64;

/// The column names of [`AppraisalColumns`], in the same order, as a literal for `concat!`.
macro_rules! appraisal_columns {
    () => {
        "device_id, gateway_id, address, state, since_s, since_round, configuration, missed_rounds, rounds_total, tag"
    };
}

/// The attestation state of a prover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttestationState {
    /// No valid proof since the enrollment. The device may be unable to prove its configuration.
    Unproven,
    /// A valid proof in time.
    Ok,
    /// A valid proof after the deadline.
    Late,
    /// No valid proof in the newest round.
    Missed,
    /// In quarantine.
    Quarantined,
}

impl AttestationState {
    /// The name of the state in results, records and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unproven => "unproven",
            Self::Ok => "ok",
            Self::Late => "late",
            Self::Missed => "missed",
            Self::Quarantined => "quarantined",
        }
    }
}

/// The attestation state of a prover since its newest change. An old state does not mean that the verifier has stopped;
/// only the rounds show whether the verifier still runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appraisal {
    /// The device.
    pub device: DeviceId,
    /// The gateway that attested the device.
    pub gateway: GatewayId,
    /// The device's address in the last round with a proof; before the first proof, its address in the first round.
    pub address: Option<IpAddr>,
    /// The state.
    pub state: AttestationState,
    /// Time of the last state change, seconds since 1970-01-01 UTC.
    pub since_s: u64,
    /// Number of the round of `gateway` that changed the state; the first round of a gateway has number 1.
    pub since_round: u32,
    /// The configuration of the last valid proof.
    pub configuration: Configuration,
    /// The missed rounds, as values of `rounds_total`, newest last, at most [`MISSED_ROUNDS_MAX`].
    pub missed_rounds: Vec<u32>,
    /// Number of rounds that attested the device.
    pub rounds_total: u64,
}

/// A page of the list of appraisals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppraisalPage {
    /// The appraisals, by ascending device id.
    pub appraisals: Vec<Appraisal>,
    /// Errors of the appraisals that were skipped.
    pub damaged: Vec<String>,
    /// The device id to continue after; `None` at the end.
    pub next: Option<DeviceId>,
}

impl Appraisal {
    /// The reason why `gateway` may not store the appraisal; `None` if the gateway may store the appraisal.
    pub(super) fn problem(&self, gateway: GatewayId) -> Option<String> {
        let device = self.device;
        if self.gateway != gateway {
            return Some(format!(
                "the appraisal of device {device} names gateway {}",
                self.gateway
            ));
        }
        if self.since_round == NO_ROUND {
            return Some(format!("the appraisal of device {device} has no round number"));
        }
        if self.missed_rounds.len() > MISSED_ROUNDS_MAX {
            let count = self.missed_rounds.len();
            return Some(format!(
                "{count} missed rounds of device {device}; the maximum is {MISSED_ROUNDS_MAX}"
            ));
        }
        let time_problem = seconds(self.since_s).err();
        time_problem
            .map(|problem| format!("the time of the appraisal of device {device} is invalid: {problem}"))
    }
}

impl Registry {
    /// The attestation state of a prover; `None` before its first round.
    ///
    /// # Errors
    /// A damaged record, or a failure of the database.
    pub async fn appraisal(&self, device: DeviceId) -> Result<Option<Appraisal>> {
        let record: Option<AppraisalColumns> = sql::query(concat!(
            "SELECT ",
            appraisal_columns!(),
            " FROM appraisal WHERE device_id = $1"
        ))
        .bind(id_to_column(device))
        .fetch_optional(self.reader())
        .await?;
        let appraisal = record.map(|record| appraisal_from_record(self.authenticator(), &record));
        Ok(appraisal.transpose()?.filter(Appraisal::has_round))
    }

    /// Returns the devices among `devices` that are [`AttestationState::Unproven`]. Missing and damaged records are skipped.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn unproven(&self, devices: &[DeviceId]) -> Result<HashSet<DeviceId>> {
        let mut unproven_devices = HashSet::new();
        for batch in devices.chunks(IDS_PER_QUERY) {
            let mut query = Builder::new(concat!(
                "SELECT ",
                appraisal_columns!(),
                " FROM appraisal WHERE device_id IN "
            ));
            query.push_ids(batch.iter().copied());
            let records: Vec<AppraisalColumns> = query.build().fetch_all(self.reader()).await?;
            let appraisals = records
                .iter()
                .filter_map(|record| appraisal_from_record(self.authenticator(), record).ok());
            let unproven = appraisals.filter(|appraisal| appraisal.state == AttestationState::Unproven);
            unproven_devices.extend(unproven.map(|appraisal| appraisal.device));
        }
        Ok(unproven_devices)
    }

    /// The number of provers in this state; `None`: provers without a round since their enrollment. Records are
    /// counted without authentication; [`Registry::check`] reports modified records. Revoked devices are not counted.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn count_by_state(&self, state: Option<AttestationState>) -> Result<u64> {
        let count = "SELECT COUNT(*) FROM appraisal JOIN prover ON prover.device_id = appraisal.device_id \
                     JOIN device ON device.device_id = appraisal.device_id \
                     WHERE prover.removed = 0 AND device.status = 1 AND appraisal.since_round ";
        let mut query = Builder::new(count);
        match state {
            Some(state) => query
                .push("<> ")
                .push_bind(i64::from(NO_ROUND))
                .push(" AND appraisal.state = ")
                .push_bind(state_to_column(state)),
            None => query.push("= ").push_bind(i64::from(NO_ROUND)),
        };
        let (count,): (i64,) = query.build().fetch_one(self.reader()).await?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// Returns the devices among `devices` whose last appraisal is from another gateway than `gateway`.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn appraised_elsewhere(
        &self,
        gateway: GatewayId,
        devices: &[DeviceId],
    ) -> Result<HashSet<DeviceId>> {
        let mut elsewhere = HashSet::new();
        for batch in devices.chunks(IDS_PER_QUERY) {
            let mut query = Builder::new("SELECT device_id FROM appraisal WHERE gateway_id <> ");
            query.push_bind(i64::from(gateway.0)).push(" AND device_id IN ");
            query.push_ids(batch.iter().copied());
            let records: Vec<(i64,)> = query.build().fetch_all(self.reader()).await?;
            elsewhere.extend(records.into_iter().map(|(device,)| id_from_column(device)));
        }
        Ok(elsewhere)
    }

    /// Returns the devices among `devices` that the gateway may report on: devices with a lease at this gateway, and devices
    /// whose last appraisal is from this gateway.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn reportable_devices(
        &self,
        gateway: GatewayId,
        devices: &[DeviceId],
    ) -> Result<HashSet<DeviceId>> {
        let mut reportable = HashSet::new();
        for batch in devices.chunks(IDS_PER_QUERY) {
            for table in ["lease", "appraisal"] {
                let mut query = Builder::new("SELECT device_id FROM ");
                query.push(table).push(" WHERE gateway_id = ");
                query.push_bind(i64::from(gateway.0)).push(" AND device_id IN ");
                query.push_ids(batch.iter().copied());
                let records: Vec<(i64,)> = query.build().fetch_all(self.reader()).await?;
                reportable.extend(records.into_iter().map(|(device,)| id_from_column(device)));
            }
        }
        Ok(reportable)
    }

    /// The next `limit` appraisals of devices with ids above `after`, by ascending id. Start with `None`, and continue with
    /// [`AppraisalPage::next`] until `next` is `None`.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn appraisals(&self, after: Option<DeviceId>, limit: u32) -> Result<AppraisalPage> {
        let mut connection = self.reader().acquire().await?;
        let limit = limit.max(1);
        let start = after.map_or(0, |id| id.0);
        let mut records: Vec<AppraisalColumns> = Vec::new();
        // Ids are stored bit-cast to i64, so the upper half of the ids is negative. The lower half is listed first.
        for half in [0..=i64::MAX, i64::MIN..=-1] {
            let remaining = i64::from(limit) - i64::try_from(records.len()).unwrap_or(i64::MAX);
            if remaining <= 0 || half.end().cast_unsigned() <= start {
                continue;
            }
            let floor = (*half.start()).cast_unsigned().max(start.saturating_add(1));
            records.extend(
                sql::query(concat!(
                    "SELECT ",
                    appraisal_columns!(),
                    " FROM appraisal WHERE device_id >= $1 AND device_id <= $2 ORDER BY device_id LIMIT $3"
                ))
                .bind(floor.cast_signed())
                .bind(*half.end())
                .bind(remaining)
                .fetch_all(&mut connection)
                .await?,
            );
        }
        let is_full = u32::try_from(records.len()).is_ok_and(|count| count >= limit);
        let mut page = AppraisalPage {
            next: records
                .last()
                .filter(|_| is_full)
                .map(|record| id_from_column(record.0.0)),
            appraisals: Vec::with_capacity(records.len()),
            damaged: Vec::new(),
        };
        for record in records {
            match appraisal_from_record(self.authenticator(), &record) {
                Ok(appraisal) => page
                    .appraisals
                    .extend(Some(appraisal).filter(Appraisal::has_round)),
                Err(error) => page.damaged.push(error.to_string()),
            }
        }
        Ok(page)
    }

    /// Whether the appraisal of a prover is [`AttestationState::Unproven`].
    pub(super) async fn is_unproven_in(&self, connection: &mut Connection, device: DeviceId) -> Result<bool> {
        let known = self.appraisal_in(connection, device).await?;
        Ok(known.is_some_and(|known| known.state == AttestationState::Unproven))
    }

    /// Gateway and address of the last round of a prover; `None` if there was none, or the record is damaged.
    pub(super) async fn last_location_in(
        &self,
        connection: &mut Connection,
        device: DeviceId,
    ) -> Result<Option<ProverLocation>> {
        let known = self.appraisal_in(connection, device).await?;
        Ok(known.and_then(|known| {
            Some(ProverLocation {
                gateway: known.gateway,
                address: known.address?,
            })
        }))
    }

    /// The appraisal, if its record authenticates.
    async fn appraisal_in(&self, connection: &mut Connection, device: DeviceId) -> Result<Option<Appraisal>> {
        let record: Option<AppraisalColumns> = sql::query(concat!(
            "SELECT ",
            appraisal_columns!(),
            " FROM appraisal WHERE device_id = $1"
        ))
        .bind(id_to_column(device))
        .fetch_optional(connection)
        .await?;
        Ok(record.and_then(|record| appraisal_from_record(self.authenticator(), &record).ok()))
    }

    /// Writes the first appraisal of a prover at its enrollment.
    pub(super) async fn write_initial_appraisal(
        &self,
        connection: &mut Connection,
        prover: &ProverRecord,
        state: AttestationState,
    ) -> Result<()> {
        let appraisal = Appraisal {
            device: prover.device,
            gateway: prover.location.map_or(GatewayId(0), |location| location.gateway),
            address: None,
            state,
            since_s: prover.enrolled_at_s,
            since_round: NO_ROUND,
            configuration: Configuration::Current,
            missed_rounds: Vec::new(),
            rounds_total: 0,
        };
        let initial = [(appraisal, prover.enrolled_at())];
        self.write_appraisals(connection, &initial).await
    }

    /// Writes appraisals with the enrollments that they are about. Appraisals of devices that are no longer provers, or
    /// were enrolled again since, are ignored. The state of a prover is not set back to unproven.
    pub(super) async fn write_appraisals(
        &self,
        connection: &mut Connection,
        appraisals: &[(Appraisal, EnrollmentTime)],
    ) -> Result<()> {
        for batch in appraisals.chunks(IDS_PER_QUERY) {
            let mut insert = Builder::new(concat!(
                "WITH input (",
                appraisal_columns!(),
                ", enrolled_at_s) AS ("
            ));
            insert.push_values(batch, |mut values, (appraisal, enrolled_at)| {
                let record = columns_from_appraisal(appraisal);
                values.push_bind(record.0.0);
                values.push_bind(record.1.0);
                values.push_bind(record.2.0.clone());
                values.push_bind(record.3.0);
                values.push_bind(record.4.0);
                values.push_bind(record.5.0);
                values.push_bind(record.6.0);
                values.push_bind(record.7.0.clone());
                values.push_bind(record.8.0);
                values.push_bind(tag(self.authenticator(), &record).finish());
                values.push_bind(enrolled_at.0.cast_signed());
            });
            insert.push(
                ") INSERT INTO appraisal (device_id, gateway_id, address, state, since_s, since_round, \
                 configuration, missed_rounds, rounds_total, tag) SELECT input.device_id, input.gateway_id, input.address, input.state, \
                 input.since_s, input.since_round, input.configuration, input.missed_rounds, input.rounds_total, input.tag FROM input \
                 JOIN prover ON prover.device_id = input.device_id AND prover.enrolled_at_s = input.enrolled_at_s \
                 WHERE prover.removed = 0 AND NOT (input.state = ",
            );
            insert.push_bind(UNPROVEN_COLUMN);
            insert.push(
                " AND EXISTS (SELECT 1 FROM appraisal AS existing WHERE existing.device_id = input.device_id AND existing.state <> ",
            );
            insert.push_bind(UNPROVEN_COLUMN).push(
                ")) ON CONFLICT (device_id) DO UPDATE SET gateway_id = excluded.gateway_id, address = excluded.address, \
                 state = excluded.state, since_s = excluded.since_s, since_round = excluded.since_round, \
                 configuration = excluded.configuration, missed_rounds = excluded.missed_rounds, rounds_total = excluded.rounds_total, \
                 tag = excluded.tag",
            );
            insert.build().execute(&mut *connection).await?;
        }
        Ok(())
    }

    pub(super) async fn damaged_appraisals(&self, connection: &mut Connection) -> Result<Vec<RegistryError>> {
        let mut errors = Vec::new();
        let mut pages = Pages::new();
        while let Some(records) = pages
            .next::<AppraisalColumns>(
                connection,
                concat!(
                    "SELECT ",
                    appraisal_columns!(),
                    ", rowid AS position FROM appraisal WHERE rowid >= $1 ORDER BY rowid LIMIT $2"
                ),
            )
            .await?
        {
            let damaged = |record| appraisal_from_record(self.authenticator(), record).err();
            errors.extend(records.iter().filter_map(damaged));
        }
        Ok(errors)
    }
}

impl Appraisal {
    fn has_round(&self) -> bool {
        self.since_round != NO_ROUND
    }
}

/// The stored value of [`AttestationState::Unproven`].
const UNPROVEN_COLUMN: i64 = 5;

/// The columns of `appraisal`.
type AppraisalColumns = (
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<Option<Vec<u8>>>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<Option<Vec<u8>>>,
    ColumnValue<i64>,
    ColumnValue<Vec<u8>>,
);

fn state_to_column(state: AttestationState) -> i64 {
    match state {
        AttestationState::Ok => 1,
        AttestationState::Late => 2,
        AttestationState::Missed => 3,
        AttestationState::Quarantined => 4,
        AttestationState::Unproven => UNPROVEN_COLUMN,
    }
}

/// The columns of an appraisal, with an empty tag.
fn columns_from_appraisal(appraisal: &Appraisal) -> AppraisalColumns {
    let missed_rounds = appraisal
        .missed_rounds
        .iter()
        .flat_map(|round| round.to_be_bytes());
    let missed_rounds: Vec<u8> = missed_rounds.collect();
    (
        ColumnValue(id_to_column(appraisal.device)),
        ColumnValue(i64::from(appraisal.gateway.0)),
        ColumnValue(appraisal.address.map(address_to_column)),
        ColumnValue(state_to_column(appraisal.state)),
        ColumnValue(appraisal.since_s.cast_signed()),
        ColumnValue(i64::from(appraisal.since_round)),
        ColumnValue(match appraisal.configuration {
            Configuration::Current => 1,
            Configuration::Alternate => 2,
        }),
        ColumnValue(Some(missed_rounds).filter(|missed_rounds| !missed_rounds.is_empty())),
        ColumnValue(appraisal.rounds_total.cast_signed()),
        ColumnValue(Vec::new()),
    )
}

fn tag(authenticator: &RecordAuthenticator, record: &AppraisalColumns) -> TagBuilder {
    let (device, gateway, address, state, since, round, configuration, missed_rounds, rounds_total, _) =
        record;
    [device, gateway, state, since, round, configuration, rounds_total]
        .into_iter()
        .fold(authenticator.begin(LABEL), |tag, number| tag.number(number.0))
        .bytes_or_null(address.0.as_deref())
        .bytes_or_null(missed_rounds.0.as_deref())
}

fn appraisal_from_record(
    authenticator: &RecordAuthenticator,
    record: &AppraisalColumns,
) -> Result<Appraisal> {
    let damaged = || damage(id_from_column(record.0.0), "appraisal");
    if !tag(authenticator, record).matches(&record.9.0) {
        return Err(damaged());
    }
    appraisal_from_columns(record).ok_or_else(damaged)
}

/// Decodes a record that authenticates; `None` for unknown values.
fn appraisal_from_columns(record: &AppraisalColumns) -> Option<Appraisal> {
    let (device, gateway, address, state, since, round, configuration, missed_rounds, rounds_total, _) =
        record;
    let missed_rounds = missed_rounds.0.as_deref().unwrap_or_default().as_chunks::<4>().0;
    Some(Appraisal {
        device: id_from_column(device.0),
        gateway: GatewayId(u32::try_from(gateway.0).ok()?),
        address: match &address.0 {
            Some(address) => Some(address_from_column(address)?),
            None => None,
        },
        state: match state.0 {
            1 => AttestationState::Ok,
            2 => AttestationState::Late,
            3 => AttestationState::Missed,
            4 => AttestationState::Quarantined,
            UNPROVEN_COLUMN => AttestationState::Unproven,
            _ => return None,
        },
        since_s: u64::try_from(since.0).ok()?,
        since_round: u32::try_from(round.0).ok()?,
        configuration: match configuration.0 {
            1 => Configuration::Current,
            2 => Configuration::Alternate,
            _ => return None,
        },
        missed_rounds: missed_rounds
            .iter()
            .map(|round| u32::from_be_bytes(*round))
            .collect(),
        rounds_total: rounds_total.0.cast_unsigned(),
    })
}
