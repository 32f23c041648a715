//! Groups of provers: how often they are asked, and what they are to run.

use std::fmt;
use std::str::FromStr;

use linewarden_measurement::configuration::Configuration;

use super::{advance, seconds};
use crate::column::Stored;
use crate::error::{RegistryError, Result};
use crate::record_mac::{RecordMac, RowCode};
use crate::row::id_from_column;
use crate::sql::{self, Connection};
use crate::store::Registry;

const LABEL: &[u8] = b"linewarden registry table attest_group v1";
const NAME_BYTES_MAX: usize = 64;
/// Rounds that are looked back at, at most.
const OF_ROUNDS_MAX: u32 = 64;

/// The columns of [`GroupRow`], in its order, as a literal for `concat!`.
macro_rules! group_columns {
    () => {
        "name, every_s, jitter_s, answer_ms, silent, of_rounds, late_is_silent, reopen, reference, roll_out, \
         roll_out_until_s, rounds_wanted, revision, mac"
    };
}

/// The name of a group: 1 to 64 of a to z, 0 to 9, `-`, `_` and `.`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupName(String);

/// A text that is no group's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no name of a group; 1 to 64 of a to z, 0 to 9, '-', '_' and '.' are accepted")]
pub struct GroupNameError(String);

impl GroupName {
    /// Takes the name.
    ///
    /// # Errors
    /// Another length, or other characters.
    pub fn new(name: impl Into<String>) -> Result<Self, GroupNameError> {
        let name = name.into();
        let fits = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
        match (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(fits) {
            true => Ok(Self(name)),
            false => Err(GroupNameError(name)),
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// In place of a name that is lost.
    pub(super) fn unknown() -> Self {
        Self("unknown".to_owned())
    }

    pub(super) fn from_column(bytes: &[u8]) -> Option<Self> {
        Self::new(str::from_utf8(bytes).ok()?).ok()
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for GroupName {
    type Err = GroupNameError;

    fn from_str(name: &str) -> Result<Self, GroupNameError> {
        Self::new(name)
    }
}

/// How a device comes out of quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Reopen {
    /// By the next proof of what it is to run.
    #[default]
    Automatic,
    /// By the operator alone.
    ByCommand,
}

/// How the provers of a group are asked and judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupPolicy {
    /// From one round to the next, seconds.
    pub every_s: u32,
    /// A round begins up to so much earlier or later, at random, seconds.
    pub jitter_s: u32,
    /// A proof that takes longer is late, ms.
    pub answer_ms: u32,
    /// So many silences ..
    pub silent: u32,
    /// .. in the last so many rounds that asked it put a device into quarantine.
    pub of: u32,
    /// Whether a late proof counts as silence.
    pub late_is_silent: bool,
    /// How a device comes out again.
    pub reopen: Reopen,
}

impl Default for GroupPolicy {
    /// Every minute; out after three silences in five rounds.
    fn default() -> Self {
        Self {
            every_s: 60,
            jitter_s: 5,
            answer_ms: 2_000,
            silent: 3,
            of: 5,
            late_is_silent: false,
            reopen: Reopen::Automatic,
        }
    }
}

impl GroupPolicy {
    /// How long a verdict counts after its round has ended, seconds: two intervals and what a round takes. Nobody who looks
    /// at it later knows that the verifier still lives.
    #[must_use]
    pub fn good_for_s(&self) -> u64 {
        2 * u64::from(self.every_s) + u64::from(self.jitter_s) + u64::from(self.answer_ms) / 500 + 1
    }

    /// The field that is not acceptable, and what would be.
    fn problem(&self) -> Option<(&'static str, String)> {
        let Self {
            every_s,
            jitter_s,
            answer_ms,
            silent,
            of,
            ..
        } = *self;
        if every_s == 0 {
            return Some(("every_s", "0 s; at least 1 s is accepted".to_owned()));
        }
        if jitter_s > every_s / 2 {
            let problem = format!(
                "{jitter_s} s; at most half of every_s is accepted, {} s",
                every_s / 2
            );
            return Some(("jitter_s", problem));
        }
        if answer_ms == 0 || u64::from(answer_ms) >= u64::from(every_s) * 1_000 {
            let problem = format!("{answer_ms} ms; more than 0 and less than every_s are accepted");
            return Some(("answer_ms", problem));
        }
        if of == 0 || of > OF_ROUNDS_MAX {
            return Some(("of", format!("{of} rounds; 1 to {OF_ROUNDS_MAX} are accepted")));
        }
        (silent == 0 || silent > of).then(|| {
            (
                "silent",
                format!("{silent} of {of} rounds; 1 to {of} are accepted"),
            )
        })
    }
}

/// Another configuration that is valid for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RollOut {
    /// `Configuration::encode` of `linewarden-measurement`.
    pub reference: Vec<u8>,
    /// From then on it is not valid any more, seconds since 1970-01-01 UTC.
    pub until_s: u64,
}

/// A group to be made or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewGroup {
    /// Its name.
    pub name: GroupName,
    /// How its provers are asked and judged.
    pub policy: GroupPolicy,
    /// What they are to run: `Configuration::encode` of `linewarden-measurement`. Without it nobody is asked.
    pub reference: Option<Vec<u8>>,
    /// What they may run instead for a while.
    pub roll_out: Option<RollOut>,
}

/// A group as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: GroupName,
    /// How its provers are asked and judged.
    pub policy: GroupPolicy,
    /// What they are to run, encoded.
    pub reference: Option<Vec<u8>>,
    /// What they may run instead for a while.
    pub roll_out: Option<RollOut>,
    /// How many rounds were asked for by command; a gateway that sees a higher number begins one.
    pub rounds_wanted: u64,
    /// Of its last change.
    pub revision: u64,
}

/// All groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupList {
    /// By their names.
    pub groups: Vec<Group>,
    /// What is wrong with those that were left out.
    pub damaged: Vec<String>,
}

impl NewGroup {
    fn validate(&self) -> Result<()> {
        let refuse = |(field, problem)| {
            let group = self.name.clone();
            Err(RegistryError::InvalidGroup {
                group,
                field,
                problem,
            })
        };
        if let Some(problem) = self.policy.problem() {
            return refuse(problem);
        }
        let decodes = |bytes: &Vec<u8>| {
            Configuration::decode(bytes)
                .map(drop)
                .map_err(|error| error.to_string())
        };
        if let Some(Err(problem)) = self.reference.as_ref().map(decodes) {
            return refuse(("reference", problem));
        }
        let Some(roll_out) = &self.roll_out else {
            return Ok(());
        };
        if self.reference.is_none() {
            return refuse((
                "roll_out",
                "there is no reference beside which it could be valid".to_owned(),
            ));
        }
        match (decodes(&roll_out.reference), seconds(roll_out.until_s)) {
            (Err(problem), _) => refuse(("roll_out", problem)),
            (_, Err(problem)) => refuse(("roll_out", format!("its end is {problem}"))),
            _ => Ok(()),
        }
    }
}

impl Registry {
    /// Makes a group or changes one, and returns the revision under which gateways learn of it. A record that is damaged is
    /// overwritten.
    ///
    /// # Errors
    /// As [`Registry::change_group`].
    pub async fn set_group(&self, group: &NewGroup, now_s: u64) -> Result<u64> {
        self.change_group(&group.name, now_s, |_| Ok(group.clone())).await
    }

    /// Makes a group what `change` makes of what it is, `None` if there is none, in one transaction, and returns the revision
    /// under which gateways learn of it. Of a record that is damaged `change` gets [`RegistryError::DamagedGroup`]; what it
    /// gives in its place overwrites it.
    ///
    /// # Errors
    /// What `change` refuses; [`RegistryError::InvalidGroup`], also for a new roll-out that is over at `now_s`, for a new
    /// reference value or roll-out that the own entries of a prover cannot be laid over, and for another group's name; or a
    /// failure of the database. Nothing is changed then.
    pub async fn change_group<E: From<RegistryError>>(
        &self,
        name: &GroupName,
        now_s: u64,
        change: impl FnOnce(Result<Option<Group>>) -> Result<NewGroup, E>,
    ) -> Result<u64, E> {
        let mut transaction = self.write().await?;
        let before = match self.group_in(&mut transaction, name).await {
            Err(error) if !matches!(error, RegistryError::DamagedGroup { .. }) => return Err(error.into()),
            before => before,
        };
        let is_damaged = before.is_err();
        let known = before.as_ref().ok().cloned().flatten();
        let group = change(before)?;
        group.validate()?;
        self.check_change(&mut transaction, name, known.as_ref(), &group, now_s)
            .await?;
        let revision = advance(&mut transaction).await?;
        let stored = Group {
            name: group.name,
            policy: group.policy,
            reference: group.reference,
            roll_out: group.roll_out,
            rounds_wanted: match (known, is_damaged) {
                (Some(known), _) => known.rounds_wanted,
                // No count was ever higher, since each took a revision.
                (None, true) => revision.cast_unsigned(),
                (None, false) => 0,
            },
            revision: revision.cast_unsigned(),
        };
        self.write_group(&mut transaction, &stored).await?;
        transaction.commit().await.map_err(RegistryError::from)?;
        Ok(stored.revision)
    }

    /// Refuses what is not acceptable beside what was there before, and beside the group's provers.
    async fn check_change(
        &self,
        connection: &mut Connection,
        name: &GroupName,
        known: Option<&Group>,
        group: &NewGroup,
        now_s: u64,
    ) -> Result<()> {
        let invalid = |field, problem| RegistryError::InvalidGroup {
            group: name.clone(),
            field,
            problem,
        };
        if group.name != *name {
            return Err(invalid("name", "a group keeps its name".to_owned()));
        }
        let known_roll_out = known.and_then(|known| known.roll_out.as_ref());
        let roll_out = group
            .roll_out
            .as_ref()
            .filter(|roll_out| Some(*roll_out) != known_roll_out);
        if roll_out.is_some_and(|roll_out| roll_out.until_s <= now_s) {
            let problem = "it would be over already; choose a later end".to_owned();
            return Err(invalid("roll_out", problem));
        }
        let known_reference = known.and_then(|known| known.reference.as_ref());
        let reference = group
            .reference
            .as_ref()
            .filter(|reference| Some(*reference) != known_reference);
        let fresh = [
            ("reference", reference),
            ("roll_out", roll_out.map(|roll_out| &roll_out.reference)),
        ];
        for (field, encoding) in fresh {
            let Some(encoding) = encoding else {
                continue;
            };
            let base = Configuration::decode(encoding).map_err(|error| invalid(field, error.to_string()))?;
            if let Some((device, error)) = self.first_unfit(connection, name, &base).await? {
                let problem = format!(
                    "what device {device} has of its own cannot be laid over it: {error}; enrol that device with other entries, or into another group, or remove it first"
                );
                return Err(invalid(field, problem));
            }
        }
        Ok(())
    }

    /// A group; `None` if there is none of that name.
    ///
    /// # Errors
    /// [`RegistryError::DamagedGroup`], or a failure of the database.
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
    /// [`RegistryError::UnknownGroup`], [`RegistryError::GroupInUse`], or a failure of the database.
    pub async fn remove_group(&self, name: &GroupName) -> Result<()> {
        let mut transaction = self.write().await?;
        let prover: Option<(i64,)> =
            sql::query("SELECT device_id FROM prover WHERE group_name = $1 AND removed = 0 LIMIT 1")
                .bind(name.as_str())
                .fetch_optional(&mut *transaction)
                .await?;
        if let Some((device,)) = prover {
            return Err(RegistryError::GroupInUse {
                group: name.clone(),
                device: id_from_column(device),
            });
        }
        let done = sql::query("DELETE FROM attest_group WHERE name = $1")
            .bind(name.as_str())
            .execute(&mut *transaction)
            .await?;
        if done == 0 {
            return Err(RegistryError::UnknownGroup { group: name.clone() });
        }
        advance(&mut transaction).await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Asks for a round of a group at once; returns how many were asked for up to now. Gateways learn of it as of any other
    /// change to the group.
    ///
    /// # Errors
    /// [`RegistryError::UnknownGroup`], [`RegistryError::DamagedGroup`], or a failure of the database.
    pub async fn want_round(&self, name: &GroupName) -> Result<u64> {
        let mut transaction = self.write().await?;
        let mut group = self
            .group_in(&mut transaction, name)
            .await?
            .ok_or_else(|| RegistryError::UnknownGroup { group: name.clone() })?;
        group.rounds_wanted = group.rounds_wanted.saturating_add(1);
        group.revision = advance(&mut transaction).await?.cast_unsigned();
        self.write_group(&mut transaction, &group).await?;
        transaction.commit().await?;
        Ok(group.rounds_wanted)
    }

    pub(super) async fn group_in(
        &self,
        connection: &mut Connection,
        name: &GroupName,
    ) -> Result<Option<Group>> {
        let row: Option<GroupRow> = sql::query(concat!(
            "SELECT ",
            group_columns!(),
            " FROM attest_group WHERE name = $1"
        ))
        .bind(name.as_str())
        .fetch_optional(connection)
        .await?;
        row.map(|row| group_from_row(self.record_mac(), row)).transpose()
    }

    pub(super) async fn groups_in(&self, connection: &mut Connection) -> Result<Vec<Result<Group>>> {
        let rows: Vec<GroupRow> = sql::query(concat!(
            "SELECT ",
            group_columns!(),
            " FROM attest_group ORDER BY name"
        ))
        .fetch_all(connection)
        .await?;
        let mac = self.record_mac();
        Ok(rows.into_iter().map(|row| group_from_row(mac, row)).collect())
    }

    pub(super) async fn damaged_groups(&self, connection: &mut Connection) -> Result<Vec<RegistryError>> {
        let groups = self.groups_in(connection).await?;
        Ok(groups.into_iter().filter_map(Result::err).collect())
    }

    async fn write_group(&self, connection: &mut Connection, group: &Group) -> Result<()> {
        let row = row_of(group);
        let code = code(self.record_mac(), &row).finish();
        let policy = group.policy;
        sql::query(
            "INSERT INTO attest_group (name, every_s, jitter_s, answer_ms, silent, of_rounds, late_is_silent, reopen, \
             reference, roll_out, roll_out_until_s, rounds_wanted, revision, mac) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) \
             ON CONFLICT (name) DO UPDATE SET every_s = excluded.every_s, jitter_s = excluded.jitter_s, \
             answer_ms = excluded.answer_ms, silent = excluded.silent, of_rounds = excluded.of_rounds, \
             late_is_silent = excluded.late_is_silent, reopen = excluded.reopen, reference = excluded.reference, \
             roll_out = excluded.roll_out, roll_out_until_s = excluded.roll_out_until_s, \
             rounds_wanted = excluded.rounds_wanted, revision = excluded.revision, mac = excluded.mac",
        )
        .bind(group.name.as_str())
        .bind(i64::from(policy.every_s))
        .bind(i64::from(policy.jitter_s))
        .bind(i64::from(policy.answer_ms))
        .bind(i64::from(policy.silent))
        .bind(i64::from(policy.of))
        .bind(i64::from(policy.late_is_silent))
        .bind(reopen_to_column(policy.reopen))
        .bind(row.8.0)
        .bind(row.9.0)
        .bind(row.10.0)
        .bind(row.11.0)
        .bind(row.12.0)
        .bind(code)
        .execute(connection)
        .await?;
        Ok(())
    }
}

/// A row of `attest_group`.
type GroupRow = (
    Stored<Vec<u8>>,
    Stored<i64>,
    Stored<i64>,
    Stored<i64>,
    Stored<i64>,
    Stored<i64>,
    Stored<i64>,
    Stored<i64>,
    Stored<Option<Vec<u8>>>,
    Stored<Option<Vec<u8>>>,
    Stored<Option<i64>>,
    Stored<i64>,
    Stored<i64>,
    Stored<Vec<u8>>,
);

fn reopen_to_column(reopen: Reopen) -> i64 {
    match reopen {
        Reopen::Automatic => 1,
        Reopen::ByCommand => 2,
    }
}

/// Without its code.
fn row_of(group: &Group) -> GroupRow {
    let policy = group.policy;
    let number = |value: u32| Stored(i64::from(value));
    let roll_out = group.roll_out.as_ref();
    (
        Stored(group.name.as_str().as_bytes().to_vec()),
        number(policy.every_s),
        number(policy.jitter_s),
        number(policy.answer_ms),
        number(policy.silent),
        number(policy.of),
        number(u32::from(policy.late_is_silent)),
        Stored(reopen_to_column(policy.reopen)),
        Stored(group.reference.clone()),
        Stored(roll_out.map(|roll_out| roll_out.reference.clone())),
        Stored(roll_out.map(|roll_out| roll_out.until_s.cast_signed())),
        Stored(group.rounds_wanted.cast_signed()),
        Stored(group.revision.cast_signed()),
        Stored(Vec::new()),
    )
}

fn code(mac: &RecordMac, row: &GroupRow) -> RowCode {
    let (
        name,
        every,
        jitter,
        answer,
        silent,
        of,
        late,
        reopen,
        reference,
        roll_out,
        until,
        wanted,
        revision,
        _,
    ) = row;
    [every, jitter, answer, silent, of, late, reopen]
        .into_iter()
        .fold(mac.row(LABEL).bytes(&name.0), |code, number| {
            code.number(number.0)
        })
        .bytes_or_null(reference.0.as_deref())
        .bytes_or_null(roll_out.0.as_deref())
        .number_or_null(until.0)
        .number(wanted.0)
        .number(revision.0)
}

fn group_from_row(mac: &RecordMac, row: GroupRow) -> Result<Group> {
    let damaged = || RegistryError::DamagedGroup {
        group: String::from_utf8_lossy(&row.0.0).into_owned(),
    };
    if !code(mac, &row).is(&row.13.0) {
        return Err(damaged());
    }
    decoded(&row).ok_or_else(damaged)
}

/// Of a row that authenticates; `None` if another program's.
fn decoded(row: &GroupRow) -> Option<Group> {
    let (
        name,
        every,
        jitter,
        answer,
        silent,
        of,
        late,
        reopen,
        reference,
        roll_out,
        until,
        wanted,
        revision,
        _,
    ) = row;
    let number = |value: &Stored<i64>| u32::try_from(value.0).ok();
    Some(Group {
        name: GroupName::from_column(&name.0)?,
        policy: GroupPolicy {
            every_s: number(every)?,
            jitter_s: number(jitter)?,
            answer_ms: number(answer)?,
            silent: number(silent)?,
            of: number(of)?,
            late_is_silent: late.0 != 0,
            reopen: match reopen.0 {
                1 => Reopen::Automatic,
                2 => Reopen::ByCommand,
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
        rounds_wanted: u64::try_from(wanted.0).ok()?,
        revision: u64::try_from(revision.0).ok()?,
    })
}
