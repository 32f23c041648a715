//! How provers stand, as of the newest round that has changed it.

use std::collections::HashSet;
use std::net::IpAddr;

use linewarden_protocol::gateway::Configuration;
use linewarden_protocol::ids::{DeviceId, GatewayId};

use super::enrolment::EnrolledAt;
use super::provers::{Home, ProverRecord};
use super::{Pages, address_from_column, address_to_column, seconds};
use crate::column::Stored;
use crate::enrol::{IDS_PER_QUERY, PushIds as _};
use crate::error::{RegistryError, Result};
use crate::lease::damage;
use crate::record_mac::{RecordMac, RowCode};
use crate::row::{id_from_column, id_to_column};
use crate::sql::{self, Builder, Connection};
use crate::store::Registry;

const LABEL: &[u8] = b"linewarden registry table appraisal v1";
/// In place of the number of a round: the row is there since the prover was enrolled, and nobody has asked it yet. Without such a
/// row nobody could tell a prover that has never proven anything from one whose appraisal was deleted.
const NO_ROUND: u32 = 0;
/// Silences that are remembered of a prover, at most.
pub const SILENCES_MAX: usize = 64;

/// The columns of [`AppraisalRow`], in its order, as a literal for `concat!`.
macro_rules! appraisal_columns {
    () => {
        "device_id, gateway_id, address, state, since_s, since_round, configuration, silences, asked, mac"
    };
}

/// How a prover stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has proven nothing yet since it was enrolled: silence may be all that it can answer.
    Unproven,
    /// It has proven what it is to run.
    Ok,
    /// It has, too late.
    Late,
    /// It has proven nothing.
    Silent,
    /// It was silent too often.
    Quarantined,
}

impl State {
    /// The word for it in results, records and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unproven => "unproven",
            Self::Ok => "ok",
            Self::Late => "late",
            Self::Silent => "silent",
            Self::Quarantined => "quarantined",
        }
    }
}

/// How a prover stands since its newest change. What lies behind this is not told here: whether the verifier is alive is
/// told by its rounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appraisal {
    /// Which device.
    pub device: DeviceId,
    /// Who has asked it.
    pub gateway: GatewayId,
    /// Where it was then.
    pub address: Option<IpAddr>,
    /// How it stands.
    pub state: State,
    /// Since when, seconds since 1970-01-01 UTC.
    pub since_s: u64,
    /// Since which round of that gateway, from 1.
    pub since_round: u32,
    /// What it has proven last.
    pub configuration: Configuration,
    /// Which of the rounds that asked it met silence, by their count in `asked`, newest last, at most [`SILENCES_MAX`].
    pub silences: Vec<u32>,
    /// In how many rounds it was asked.
    pub asked: u64,
}

/// A part of all appraisals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppraisalPage {
    /// By ascending id of the device.
    pub appraisals: Vec<Appraisal>,
    /// What is wrong with those that were left out.
    pub damaged: Vec<String>,
    /// After which device it goes on; `None` at the end.
    pub next: Option<DeviceId>,
}

impl Appraisal {
    /// What keeps this gateway from storing it.
    pub(super) fn problem(&self, gateway: GatewayId) -> Option<String> {
        let device = self.device;
        if self.gateway != gateway {
            return Some(format!(
                "the appraisal of device {device} is said to be gateway {}'s",
                self.gateway
            ));
        }
        if self.since_round == NO_ROUND {
            return Some(format!("the appraisal of device {device} is of no round"));
        }
        if self.silences.len() > SILENCES_MAX {
            let count = self.silences.len();
            return Some(format!(
                "{count} silences of device {device}; at most {SILENCES_MAX} are kept"
            ));
        }
        let at = seconds(self.since_s).err();
        at.map(|problem| format!("the appraisal of device {device} is since a time that is {problem}"))
    }
}

impl Registry {
    /// How a prover stands; `None` if it was not asked yet.
    ///
    /// # Errors
    /// A damaged record, or a failure of the database.
    pub async fn appraisal(&self, device: DeviceId) -> Result<Option<Appraisal>> {
        let row: Option<AppraisalRow> = sql::query(concat!(
            "SELECT ",
            appraisal_columns!(),
            " FROM appraisal WHERE device_id = $1"
        ))
        .bind(id_to_column(device))
        .fetch_optional(self.reader())
        .await?;
        let appraisal = row.map(|row| appraisal_from_row(self.record_mac(), &row));
        Ok(appraisal.transpose()?.filter(Appraisal::was_asked))
    }

    /// Which of these provers have proven nothing since they were enrolled, and were not in quarantine then. What is gone or does
    /// not authenticate says so of nobody.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn unproven(&self, devices: &[DeviceId]) -> Result<HashSet<DeviceId>> {
        let mut found = HashSet::new();
        for batch in devices.chunks(IDS_PER_QUERY) {
            let mut query = Builder::new(concat!(
                "SELECT ",
                appraisal_columns!(),
                " FROM appraisal WHERE device_id IN "
            ));
            query.push_ids(batch.iter().copied());
            let rows: Vec<AppraisalRow> = query.build().fetch_all(self.reader()).await?;
            let appraisals = rows
                .iter()
                .filter_map(|row| appraisal_from_row(self.record_mac(), row).ok());
            let unproven = appraisals.filter(|appraisal| appraisal.state == State::Unproven);
            found.extend(unproven.map(|appraisal| appraisal.device));
        }
        Ok(found)
    }

    /// How many provers stand so, of those that were asked since they were enrolled; `None`: how many were not. Records are counted as
    /// they lie there; [`Registry::check`] names those that were changed. Revoked devices do not count.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn count_standing(&self, state: Option<State>) -> Result<u64> {
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

    /// Which of these devices were appraised at another gateway than this one last.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn appraised_elsewhere(
        &self,
        gateway: GatewayId,
        devices: &[DeviceId],
    ) -> Result<HashSet<DeviceId>> {
        let mut found = HashSet::new();
        for batch in devices.chunks(IDS_PER_QUERY) {
            let mut query = Builder::new("SELECT device_id FROM appraisal WHERE gateway_id <> ");
            query.push_bind(i64::from(gateway.0)).push(" AND device_id IN ");
            query.push_ids(batch.iter().copied());
            let rows: Vec<(i64,)> = query.build().fetch_all(self.reader()).await?;
            found.extend(rows.into_iter().map(|(device,)| id_from_column(device)));
        }
        Ok(found)
    }

    /// Of these devices, those that a gateway may say something of: they have proved themselves there, or were appraised there last.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn known_at(&self, gateway: GatewayId, devices: &[DeviceId]) -> Result<HashSet<DeviceId>> {
        let mut found = HashSet::new();
        for batch in devices.chunks(IDS_PER_QUERY) {
            for table in ["lease", "appraisal"] {
                let mut query = Builder::new("SELECT device_id FROM ");
                query.push(table).push(" WHERE gateway_id = ");
                query.push_bind(i64::from(gateway.0)).push(" AND device_id IN ");
                query.push_ids(batch.iter().copied());
                let rows: Vec<(i64,)> = query.build().fetch_all(self.reader()).await?;
                found.extend(rows.into_iter().map(|(device,)| id_from_column(device)));
            }
        }
        Ok(found)
    }

    /// The next `limit` appraisals after that of a device, by ascending id. Begin with `None` and go on with
    /// [`AppraisalPage::next`] until that is `None`.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn appraisals(&self, after: Option<DeviceId>, limit: u32) -> Result<AppraisalPage> {
        let mut connection = self.reader().acquire().await?;
        let limit = limit.max(1);
        let start = after.map_or(0, |id| id.0);
        let mut rows: Vec<AppraisalRow> = Vec::new();
        // Bit-cast, the upper half of the ids is negative: the lower half is listed first, then the upper.
        for half in [0..=i64::MAX, i64::MIN..=-1] {
            let missing = i64::from(limit) - i64::try_from(rows.len()).unwrap_or(i64::MAX);
            if missing <= 0 || half.end().cast_unsigned() <= start {
                continue;
            }
            let floor = (*half.start()).cast_unsigned().max(start.saturating_add(1));
            rows.extend(
                sql::query(concat!(
                    "SELECT ",
                    appraisal_columns!(),
                    " FROM appraisal WHERE device_id >= $1 AND device_id <= $2 ORDER BY device_id LIMIT $3"
                ))
                .bind(floor.cast_signed())
                .bind(*half.end())
                .bind(missing)
                .fetch_all(&mut connection)
                .await?,
            );
        }
        let full = u32::try_from(rows.len()).is_ok_and(|count| count >= limit);
        let mut page = AppraisalPage {
            next: rows.last().filter(|_| full).map(|row| id_from_column(row.0.0)),
            appraisals: Vec::with_capacity(rows.len()),
            damaged: Vec::new(),
        };
        for row in rows {
            match appraisal_from_row(self.record_mac(), &row) {
                Ok(appraisal) => page
                    .appraisals
                    .extend(Some(appraisal).filter(Appraisal::was_asked)),
                Err(error) => page.damaged.push(error.to_string()),
            }
        }
        Ok(page)
    }

    /// Whether a prover's record says that it has proven nothing since it was enrolled.
    pub(super) async fn is_unproven_in(&self, connection: &mut Connection, device: DeviceId) -> Result<bool> {
        let known = self.appraisal_in(connection, device).await?;
        Ok(known.is_some_and(|known| known.state == State::Unproven))
    }

    /// Where a prover was asked last; `None`: nowhere yet, or nobody can tell.
    pub(super) async fn last_asked_in(
        &self,
        connection: &mut Connection,
        device: DeviceId,
    ) -> Result<Option<Home>> {
        let known = self.appraisal_in(connection, device).await?;
        Ok(known.and_then(|known| {
            Some(Home {
                gateway: known.gateway,
                address: known.address?,
            })
        }))
    }

    /// Its row, if that authenticates.
    async fn appraisal_in(&self, connection: &mut Connection, device: DeviceId) -> Result<Option<Appraisal>> {
        let row: Option<AppraisalRow> = sql::query(concat!(
            "SELECT ",
            appraisal_columns!(),
            " FROM appraisal WHERE device_id = $1"
        ))
        .bind(id_to_column(device))
        .fetch_optional(connection)
        .await?;
        Ok(row.and_then(|row| appraisal_from_row(self.record_mac(), &row).ok()))
    }

    /// Where a prover begins that has just been enrolled.
    pub(super) async fn write_enrolled(
        &self,
        connection: &mut Connection,
        prover: &ProverRecord,
        state: State,
    ) -> Result<()> {
        let appraisal = Appraisal {
            device: prover.device,
            gateway: prover.home.map_or(GatewayId(0), |home| home.gateway),
            address: None,
            state,
            since_s: prover.enrolled_at_s,
            since_round: NO_ROUND,
            configuration: Configuration::Current,
            silences: Vec::new(),
            asked: 0,
        };
        let told = [(appraisal, prover.enrolled_at())];
        self.write_appraisals(connection, &told).await
    }

    /// Writes what a round has brought about for provers of these enrolments. It says nothing of who is no prover any more, or was
    /// enrolled anew since, and no gateway makes unproven whom another one has seen otherwise meanwhile.
    pub(super) async fn write_appraisals(
        &self,
        connection: &mut Connection,
        appraisals: &[(Appraisal, EnrolledAt)],
    ) -> Result<()> {
        for batch in appraisals.chunks(IDS_PER_QUERY) {
            let mut insert = Builder::new(concat!(
                "WITH told (",
                appraisal_columns!(),
                ", enrolled_at_s) AS ("
            ));
            insert.push_values(batch, |mut values, (appraisal, enrolled_at)| {
                let row = row_of(appraisal);
                values.push_bind(row.0.0);
                values.push_bind(row.1.0);
                values.push_bind(row.2.0.clone());
                values.push_bind(row.3.0);
                values.push_bind(row.4.0);
                values.push_bind(row.5.0);
                values.push_bind(row.6.0);
                values.push_bind(row.7.0.clone());
                values.push_bind(row.8.0);
                values.push_bind(code(self.record_mac(), &row).finish());
                values.push_bind(enrolled_at.0.cast_signed());
            });
            insert.push(
                ") INSERT INTO appraisal (device_id, gateway_id, address, state, since_s, since_round, \
                 configuration, silences, asked, mac) SELECT told.device_id, told.gateway_id, told.address, told.state, \
                 told.since_s, told.since_round, told.configuration, told.silences, told.asked, told.mac FROM told \
                 JOIN prover ON prover.device_id = told.device_id AND prover.enrolled_at_s = told.enrolled_at_s \
                 WHERE prover.removed = 0 AND NOT (told.state = ",
            );
            insert.push_bind(UNPROVEN);
            insert.push(
                " AND EXISTS (SELECT 1 FROM appraisal AS known WHERE known.device_id = told.device_id AND known.state <> ",
            );
            insert.push_bind(UNPROVEN).push(
                ")) ON CONFLICT (device_id) DO UPDATE SET gateway_id = excluded.gateway_id, address = excluded.address, \
                 state = excluded.state, since_s = excluded.since_s, since_round = excluded.since_round, \
                 configuration = excluded.configuration, silences = excluded.silences, asked = excluded.asked, \
                 mac = excluded.mac",
            );
            insert.build().execute(&mut *connection).await?;
        }
        Ok(())
    }

    pub(super) async fn damaged_appraisals(&self, connection: &mut Connection) -> Result<Vec<RegistryError>> {
        let mut found = Vec::new();
        let mut pages = Pages::new();
        while let Some(rows) = pages
            .next::<AppraisalRow>(
                connection,
                concat!(
                    "SELECT ",
                    appraisal_columns!(),
                    ", rowid AS place FROM appraisal WHERE rowid >= $1 ORDER BY rowid LIMIT $2"
                ),
            )
            .await?
        {
            let damaged = |row| appraisal_from_row(self.record_mac(), row).err();
            found.extend(rows.iter().filter_map(damaged));
        }
        Ok(found)
    }
}

impl Appraisal {
    fn was_asked(&self) -> bool {
        self.since_round != NO_ROUND
    }
}

/// [`State::Unproven`] as it is stored.
const UNPROVEN: i64 = 5;

/// A row of `appraisal`.
type AppraisalRow = (
    Stored<i64>,
    Stored<i64>,
    Stored<Option<Vec<u8>>>,
    Stored<i64>,
    Stored<i64>,
    Stored<i64>,
    Stored<i64>,
    Stored<Option<Vec<u8>>>,
    Stored<i64>,
    Stored<Vec<u8>>,
);

fn state_to_column(state: State) -> i64 {
    match state {
        State::Ok => 1,
        State::Late => 2,
        State::Silent => 3,
        State::Quarantined => 4,
        State::Unproven => UNPROVEN,
    }
}

/// Without its code.
fn row_of(appraisal: &Appraisal) -> AppraisalRow {
    let silences = appraisal.silences.iter().flat_map(|round| round.to_be_bytes());
    let silences: Vec<u8> = silences.collect();
    (
        Stored(id_to_column(appraisal.device)),
        Stored(i64::from(appraisal.gateway.0)),
        Stored(appraisal.address.map(address_to_column)),
        Stored(state_to_column(appraisal.state)),
        Stored(appraisal.since_s.cast_signed()),
        Stored(i64::from(appraisal.since_round)),
        Stored(match appraisal.configuration {
            Configuration::Current => 1,
            Configuration::Alternate => 2,
        }),
        Stored(Some(silences).filter(|silences| !silences.is_empty())),
        Stored(appraisal.asked.cast_signed()),
        Stored(Vec::new()),
    )
}

fn code(mac: &RecordMac, row: &AppraisalRow) -> RowCode {
    let (device, gateway, address, state, since, round, configuration, silences, asked, _) = row;
    [device, gateway, state, since, round, configuration, asked]
        .into_iter()
        .fold(mac.row(LABEL), |code, number| code.number(number.0))
        .bytes_or_null(address.0.as_deref())
        .bytes_or_null(silences.0.as_deref())
}

fn appraisal_from_row(mac: &RecordMac, row: &AppraisalRow) -> Result<Appraisal> {
    let damaged = || damage(id_from_column(row.0.0), "appraisal");
    if !code(mac, row).is(&row.9.0) {
        return Err(damaged());
    }
    decoded(row).ok_or_else(damaged)
}

/// Of a row that authenticates; `None` if another program's. What the schema calls numbers of rounds in `silences` are their counts
/// in `asked`.
fn decoded(row: &AppraisalRow) -> Option<Appraisal> {
    let (device, gateway, address, state, since, round, configuration, silences, asked, _) = row;
    let silences = silences.0.as_deref().unwrap_or_default().as_chunks::<4>().0;
    Some(Appraisal {
        device: id_from_column(device.0),
        gateway: GatewayId(u32::try_from(gateway.0).ok()?),
        address: match &address.0 {
            Some(address) => Some(address_from_column(address)?),
            None => None,
        },
        state: match state.0 {
            1 => State::Ok,
            2 => State::Late,
            3 => State::Silent,
            4 => State::Quarantined,
            UNPROVEN => State::Unproven,
            _ => return None,
        },
        since_s: u64::try_from(since.0).ok()?,
        since_round: u32::try_from(round.0).ok()?,
        configuration: match configuration.0 {
            1 => Configuration::Current,
            2 => Configuration::Alternate,
            _ => return None,
        },
        silences: silences.iter().map(|round| u32::from_be_bytes(*round)).collect(),
        asked: asked.0.cast_unsigned(),
    })
}
