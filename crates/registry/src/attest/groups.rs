//! Groups of provers: attestation schedule, quarantine policy and reference value.

use linewarden_measurement::configuration::Configuration;
use linewarden_types::{GroupName, GroupPolicy, ReleaseMode};

use super::{next_attest_revision, seconds};
use crate::column::ColumnValue;
use crate::conversion::id_from_column;
use crate::error::{AttestationError, RegistryError, Result};
use crate::record_tag::{RecordAuthenticator, TagBuilder};
use crate::sql::{self, Connection};
use crate::store::Registry;

const LABEL: &[u8] = b"linewarden registry table attest_group v1";

/// The column names of [`GroupColumns`], in the same order, as a literal for `concat!`.
macro_rules! group_columns {
    () => {
        "name, every_s, jitter_s, proof_timeout_ms, missed_limit, window_rounds, late_is_missed, release_mode, reference, roll_out, \
         roll_out_until_s, rounds_requested, revision, tag"
    };
}

/// The group name in a column; `None` if it is invalid.
pub(super) fn group_name_from_column(bytes: &[u8]) -> Option<GroupName> {
    GroupName::new(str::from_utf8(bytes).ok()?).ok()
}

/// An alternate reference value during an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RollOut {
    /// `Configuration::encode` of `linewarden-measurement`.
    pub reference: Vec<u8>,
    /// End of the roll-out, seconds since 1970-01-01 UTC.
    pub until_s: u64,
}

/// A group to create or change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewGroup {
    /// The name of the group.
    pub name: GroupName,
    /// The attestation policy.
    pub policy: GroupPolicy,
    /// The reference value: `Configuration::encode` of `linewarden-measurement`. Without a reference value the group
    /// is not attested.
    pub reference: Option<Vec<u8>>,
    /// The alternate reference value during an update.
    pub roll_out: Option<RollOut>,
}

/// A group as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The name of the group.
    pub name: GroupName,
    /// The attestation policy.
    pub policy: GroupPolicy,
    /// The reference value, encoded.
    pub reference: Option<Vec<u8>>,
    /// The alternate reference value during an update.
    pub roll_out: Option<RollOut>,
    /// Number of rounds requested by a command; a gateway that sees a higher number starts a round.
    pub rounds_requested: u64,
    /// Revision of the last change.
    pub revision: u64,
}

/// All groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupList {
    /// The groups, sorted by name.
    pub groups: Vec<Group>,
    /// Errors of the groups that were skipped.
    pub damaged: Vec<String>,
}

impl NewGroup {
    fn validate(&self) -> Result<()> {
        let refuse = |(field, problem)| {
            let group = self.name.clone();
            Err(RegistryError::Attestation(AttestationError::InvalidGroup {
                group,
                field,
                problem,
            }))
        };
        if let Some(problem) = self.policy.problem() {
            return refuse(problem);
        }
        let check = |bytes: &Vec<u8>| {
            Configuration::decode(bytes)
                .map(drop)
                .map_err(|error| error.to_string())
        };
        if let Some(Err(problem)) = self.reference.as_ref().map(check) {
            return refuse(("reference", problem));
        }
        let Some(roll_out) = &self.roll_out else {
            return Ok(());
        };
        if self.reference.is_none() {
            return refuse((
                "roll_out",
                "the group has no reference value; set one first".to_owned(),
            ));
        }
        match (check(&roll_out.reference), seconds(roll_out.until_s)) {
            (Err(problem), _) => refuse(("roll_out", problem)),
            (_, Err(problem)) => refuse(("roll_out", format!("invalid end: {problem}"))),
            _ => Ok(()),
        }
    }
}

impl Registry {
    /// Creates or changes a group; returns the revision under which gateways learn of the change. A damaged record is
    /// overwritten.
    ///
    /// # Errors
    /// As [`Registry::change_group`].
    pub async fn set_group(&self, group: &NewGroup, now_s: u64) -> Result<u64> {
        self.change_group(&group.name, now_s, |_| Ok(group.clone())).await
    }

    /// Creates or changes a group in one transaction and returns the revision under which gateways learn of the
    /// change. `change` receives the existing group, `None` if there is none, or [`AttestationError::DamagedGroup`]; its
    /// result is stored.
    ///
    /// # Errors
    /// The error of `change`; [`AttestationError::InvalidGroup`], also for a new roll-out that has expired at `now_s`, for
    /// a new reference value or roll-out that does not fit the overlay of a prover, and if the name of the result is
    /// not `name`; or a failure of the database. Nothing is changed then.
    pub async fn change_group<E: From<RegistryError>>(
        &self,
        name: &GroupName,
        now_s: u64,
        change: impl FnOnce(Result<Option<Group>>) -> Result<NewGroup, E>,
    ) -> Result<u64, E> {
        let mut transaction = self.write().await?;
        let before = match self.group_in(&mut transaction, name).await {
            Err(error)
                if !matches!(
                    error,
                    RegistryError::Attestation(AttestationError::DamagedGroup { .. })
                ) =>
            {
                return Err(error.into());
            }
            before => before,
        };
        let is_damaged = before.is_err();
        let existing = before.as_ref().ok().cloned().flatten();
        let group = change(before)?;
        group.validate()?;
        self.check_change(&mut transaction, name, existing.as_ref(), &group, now_s)
            .await?;
        let revision = next_attest_revision(&mut transaction).await?;
        let stored = Group {
            name: group.name,
            policy: group.policy,
            reference: group.reference,
            roll_out: group.roll_out,
            rounds_requested: match (existing, is_damaged) {
                (Some(existing), _) => existing.rounds_requested,
                // The lost number of requests is not higher than the revision, because each request takes a revision.
                (None, true) => revision.cast_unsigned(),
                (None, false) => 0,
            },
            revision: revision.cast_unsigned(),
        };
        self.write_group(&mut transaction, &stored).await?;
        transaction.commit().await.map_err(RegistryError::from)?;
        Ok(stored.revision)
    }

    /// Validates a change against the existing group and its provers.
    async fn check_change(
        &self,
        connection: &mut Connection,
        name: &GroupName,
        existing: Option<&Group>,
        group: &NewGroup,
        now_s: u64,
    ) -> Result<()> {
        let invalid = |field, problem| {
            RegistryError::Attestation(AttestationError::InvalidGroup {
                group: name.clone(),
                field,
                problem,
            })
        };
        if group.name != *name {
            return Err(invalid(
                "name",
                "the name of a group cannot be changed".to_owned(),
            ));
        }
        let existing_roll_out = existing.and_then(|existing| existing.roll_out.as_ref());
        let roll_out = group
            .roll_out
            .as_ref()
            .filter(|roll_out| Some(*roll_out) != existing_roll_out);
        if roll_out.is_some_and(|roll_out| roll_out.until_s <= now_s) {
            let problem = "the end has passed; choose a later end".to_owned();
            return Err(invalid("roll_out", problem));
        }
        let existing_reference = existing.and_then(|existing| existing.reference.as_ref());
        let reference = group
            .reference
            .as_ref()
            .filter(|reference| Some(*reference) != existing_reference);
        let changes = [
            ("reference", reference),
            ("roll_out", roll_out.map(|roll_out| &roll_out.reference)),
        ];
        for (field, encoding) in changes {
            let Some(encoding) = encoding else {
                continue;
            };
            let base = Configuration::decode(encoding).map_err(|error| invalid(field, error.to_string()))?;
            if let Some((device, error)) = self.first_incompatible_overlay(connection, name, &base).await? {
                let problem = format!(
                    "the overlay of device {device} does not fit: {error}; enroll that device with another overlay or into another group, or remove it first"
                );
                return Err(invalid(field, problem));
            }
        }
        Ok(())
    }

    /// A group; `None` if it does not exist.
    ///
    /// # Errors
    /// [`AttestationError::DamagedGroup`], or a failure of the database.
    pub async fn group(&self, name: &GroupName) -> Result<Option<Group>> {
        let mut connection = self.reader().acquire().await?;
        self.group_in(&mut connection, name).await
    }

    /// All groups.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn groups(&self) -> Result<GroupList> {
        let mut connection = self.reader().acquire().await?;
        let mut list = GroupList {
            groups: Vec::new(),
            damaged: Vec::new(),
        };
        for group in self.groups_in(&mut connection).await? {
            match group {
                Ok(group) => list.groups.push(group),
                Err(error) => list.damaged.push(error.to_string()),
            }
        }
        Ok(list)
    }

    /// Removes a group.
    ///
    /// # Errors
    /// [`AttestationError::UnknownGroup`], [`AttestationError::GroupInUse`], or a failure of the database.
    pub async fn remove_group(&self, name: &GroupName) -> Result<()> {
        let mut transaction = self.write().await?;
        let prover: Option<(i64,)> =
            sql::query("SELECT device_id FROM prover WHERE group_name = $1 AND removed = 0 LIMIT 1")
                .bind(name.as_str())
                .fetch_optional(&mut *transaction)
                .await?;
        if let Some((device,)) = prover {
            return Err(RegistryError::Attestation(AttestationError::GroupInUse {
                group: name.clone(),
                device: id_from_column(device),
            }));
        }
        let deleted = sql::query("DELETE FROM attest_group WHERE name = $1")
            .bind(name.as_str())
            .execute(&mut *transaction)
            .await?;
        if deleted == 0 {
            return Err(RegistryError::Attestation(AttestationError::UnknownGroup {
                group: name.clone(),
            }));
        }
        next_attest_revision(&mut transaction).await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Requests an immediate round of a group; returns the number of rounds requested so far. Gateways receive the
    /// request as a change to the group.
    ///
    /// # Errors
    /// [`AttestationError::UnknownGroup`], [`AttestationError::DamagedGroup`], or a failure of the database.
    pub async fn request_round(&self, name: &GroupName) -> Result<u64> {
        let mut transaction = self.write().await?;
        let mut group = self.group_in(&mut transaction, name).await?.ok_or_else(|| {
            RegistryError::Attestation(AttestationError::UnknownGroup { group: name.clone() })
        })?;
        group.rounds_requested = group.rounds_requested.saturating_add(1);
        group.revision = next_attest_revision(&mut transaction).await?.cast_unsigned();
        self.write_group(&mut transaction, &group).await?;
        transaction.commit().await?;
        Ok(group.rounds_requested)
    }

    pub(super) async fn group_in(
        &self,
        connection: &mut Connection,
        name: &GroupName,
    ) -> Result<Option<Group>> {
        let record: Option<GroupColumns> = sql::query(concat!(
            "SELECT ",
            group_columns!(),
            " FROM attest_group WHERE name = $1"
        ))
        .bind(name.as_str())
        .fetch_optional(connection)
        .await?;
        record
            .map(|record| group_from_record(self.authenticator(), record))
            .transpose()
    }

    pub(super) async fn groups_in(&self, connection: &mut Connection) -> Result<Vec<Result<Group>>> {
        let records: Vec<GroupColumns> = sql::query(concat!(
            "SELECT ",
            group_columns!(),
            " FROM attest_group ORDER BY name"
        ))
        .fetch_all(connection)
        .await?;
        let authenticator = self.authenticator();
        Ok(records
            .into_iter()
            .map(|record| group_from_record(authenticator, record))
            .collect())
    }

    pub(super) async fn damaged_groups(&self, connection: &mut Connection) -> Result<Vec<RegistryError>> {
        let groups = self.groups_in(connection).await?;
        Ok(groups.into_iter().filter_map(Result::err).collect())
    }

    async fn write_group(&self, connection: &mut Connection, group: &Group) -> Result<()> {
        let record = columns_from_group(group);
        let tag = tag(self.authenticator(), &record).finish();
        let policy = group.policy;
        sql::query(
            "INSERT INTO attest_group (name, every_s, jitter_s, proof_timeout_ms, missed_limit, window_rounds, late_is_missed, release_mode, \
             reference, roll_out, roll_out_until_s, rounds_requested, revision, tag) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) \
             ON CONFLICT (name) DO UPDATE SET every_s = excluded.every_s, jitter_s = excluded.jitter_s, \
             proof_timeout_ms = excluded.proof_timeout_ms, missed_limit = excluded.missed_limit, window_rounds = excluded.window_rounds, \
             late_is_missed = excluded.late_is_missed, release_mode = excluded.release_mode, reference = excluded.reference, \
             roll_out = excluded.roll_out, roll_out_until_s = excluded.roll_out_until_s, \
             rounds_requested = excluded.rounds_requested, revision = excluded.revision, tag = excluded.tag",
        )
        .bind(group.name.as_str())
        .bind(i64::from(policy.every_s))
        .bind(i64::from(policy.jitter_s))
        .bind(i64::from(policy.proof_timeout_ms))
        .bind(i64::from(policy.missed_limit))
        .bind(i64::from(policy.window_rounds))
        .bind(i64::from(policy.late_is_missed))
        .bind(release_mode_to_column(policy.release_mode))
        .bind(record.8.0)
        .bind(record.9.0)
        .bind(record.10.0)
        .bind(record.11.0)
        .bind(record.12.0)
        .bind(tag)
        .execute(connection)
        .await?;
        Ok(())
    }
}

/// The columns of `attest_group`.
type GroupColumns = (
    ColumnValue<Vec<u8>>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<Option<Vec<u8>>>,
    ColumnValue<Option<Vec<u8>>>,
    ColumnValue<Option<i64>>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<Vec<u8>>,
);

fn release_mode_to_column(mode: ReleaseMode) -> i64 {
    match mode {
        ReleaseMode::Automatic => 1,
        ReleaseMode::Manual => 2,
    }
}

/// The columns of a group, with an empty tag.
fn columns_from_group(group: &Group) -> GroupColumns {
    let policy = group.policy;
    let number = |value: u32| ColumnValue(i64::from(value));
    let roll_out = group.roll_out.as_ref();
    (
        ColumnValue(group.name.as_str().as_bytes().to_vec()),
        number(policy.every_s),
        number(policy.jitter_s),
        number(policy.proof_timeout_ms),
        number(policy.missed_limit),
        number(policy.window_rounds),
        number(u32::from(policy.late_is_missed)),
        ColumnValue(release_mode_to_column(policy.release_mode)),
        ColumnValue(group.reference.clone()),
        ColumnValue(roll_out.map(|roll_out| roll_out.reference.clone())),
        ColumnValue(roll_out.map(|roll_out| roll_out.until_s.cast_signed())),
        ColumnValue(group.rounds_requested.cast_signed()),
        ColumnValue(group.revision.cast_signed()),
        ColumnValue(Vec::new()),
    )
}

fn tag(authenticator: &RecordAuthenticator, record: &GroupColumns) -> TagBuilder {
    let (
        name,
        every,
        jitter,
        proof_timeout,
        missed_limit,
        window_rounds,
        late,
        release_mode,
        reference,
        roll_out,
        until,
        requested,
        revision,
        _,
    ) = record;
    [
        every,
        jitter,
        proof_timeout,
        missed_limit,
        window_rounds,
        late,
        release_mode,
    ]
    .into_iter()
    .fold(authenticator.begin(LABEL).bytes(&name.0), |tag, number| {
        tag.number(number.0)
    })
    .bytes_or_null(reference.0.as_deref())
    .bytes_or_null(roll_out.0.as_deref())
    .number_or_null(until.0)
    .number(requested.0)
    .number(revision.0)
}

fn group_from_record(authenticator: &RecordAuthenticator, record: GroupColumns) -> Result<Group> {
    let damaged = || {
        RegistryError::Attestation(AttestationError::DamagedGroup {
            group: String::from_utf8_lossy(&record.0.0).into_owned(),
        })
    };
    if !tag(authenticator, &record).matches(&record.13.0) {
        return Err(damaged());
    }
    group_from_columns(&record).ok_or_else(damaged)
}

/// The group of an authentic record; `None` if its values are invalid.
fn group_from_columns(record: &GroupColumns) -> Option<Group> {
    let (
        name,
        every,
        jitter,
        proof_timeout,
        missed_limit,
        window_rounds,
        late,
        release_mode,
        reference,
        roll_out,
        until,
        requested,
        revision,
        _,
    ) = record;
    let number = |value: &ColumnValue<i64>| u32::try_from(value.0).ok();
    Some(Group {
        name: group_name_from_column(&name.0)?,
        policy: GroupPolicy {
            every_s: number(every)?,
            jitter_s: number(jitter)?,
            proof_timeout_ms: number(proof_timeout)?,
            missed_limit: number(missed_limit)?,
            window_rounds: number(window_rounds)?,
            late_is_missed: late.0 != 0,
            release_mode: match release_mode.0 {
                1 => ReleaseMode::Automatic,
                2 => ReleaseMode::Manual,
                _ => return None,
            },
        },
        reference: reference.0.clone(),
        roll_out: match (&roll_out.0, until.0) {
            (Some(reference), Some(until_s)) => Some(RollOut {
                reference: reference.clone(),
                until_s: u64::try_from(until_s).ok()?,
            }),
            _ => None,
        },
        rounds_requested: u64::try_from(requested.0).ok()?,
        revision: u64::try_from(revision.0).ok()?,
    })
}
