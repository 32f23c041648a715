//! What happened, in the order in which it did; and who had it done, and why.
//!
//! Numbers follow each other without gaps, and each entry's code covers the code of the one before: an entry that was changed or taken
//! out in the middle is noticed. That the newest were taken off is not.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use linewarden_protocol::ids::{DeviceId, GatewayId};

use super::users::Role;
use super::{check, text};
use crate::column::Stored;
use crate::error::{RegistryError, Result};
use crate::record_mac::RecordMac;
use crate::row::{id_from_column, id_to_column};
use crate::sql::{self, Builder, Connection};
use crate::store::Registry;

const LABEL: &[u8] = b"linewarden registry table journal v1";
/// Longest kind, name of somebody, and place that they came from, bytes.
const WORD_BYTES_MAX: usize = 255;
/// Entries looked at together for one that authenticates.
const END_PAGE_ENTRIES: u32 = 1_000;

/// Who had something done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// Their name.
    pub name: String,
    /// As what.
    pub role: Role,
    /// From where: an address.
    pub origin: String,
}

/// Something that happens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// Of which kind: `revoked`, `enrolled`, ..
    pub kind: String,
    /// Where, if it is about a gateway.
    pub gateway: Option<GatewayId>,
    /// To whom, if it is about a device.
    pub device: Option<DeviceId>,
    /// What, for people and programs; may be JSON.
    pub detail: String,
}

/// Something that somebody has done, for a reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Act {
    /// When, milliseconds since 1970-01-01 UTC.
    pub at_ms: u64,
    /// Who.
    pub actor: Actor,
    /// Why.
    pub reason: String,
    /// What.
    pub note: Note,
}

/// An entry of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number, from 1.
    pub number: u64,
    /// When, milliseconds since 1970-01-01 UTC.
    pub at_ms: u64,
    /// What happened.
    pub note: Note,
    /// Who had it done; `None`: it came about by itself.
    pub actor: Option<Actor>,
    /// Why.
    pub reason: Option<String>,
    /// It was asked for, and did not come about.
    pub refused: bool,
    /// It authenticates, and follows the one before it.
    pub authentic: bool,
}

/// Reads the journal as it grows. What somebody else has written moves it no further: taken out again, it would have what comes after it
/// passed over.
#[derive(Clone, Copy, Debug)]
pub struct Follower {
    /// The newest entry that was read, and authenticates.
    read: u64,
    /// The newest one that was among what was read, and does not.
    told: u64,
}

/// Which entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalFilter {
    /// Of one of these kinds; of all if there are none.
    pub kinds: Vec<String>,
    /// About this device.
    pub device: Option<DeviceId>,
    /// About this gateway.
    pub gateway: Option<GatewayId>,
    /// Which this one had done.
    pub who: Option<String>,
    /// Which somebody had done.
    pub acts_only: bool,
    /// Which came about.
    pub without_refused: bool,
}

/// A part of the journal, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalPage {
    /// The entries.
    pub entries: Vec<Entry>,
    /// Before which number it goes on; `None` at its end.
    pub next: Option<u64>,
}

/// A row: number, at, kind, gateway, device, detail, who, role, origin, reason, refused, mac, and the code before.
type JournalRow = (
    Stored<i64>,
    Stored<i64>,
    Stored<Vec<u8>>,
    Stored<Option<i64>>,
    Stored<Option<i64>>,
    Stored<Vec<u8>>,
    Stored<Option<Vec<u8>>>,
    Stored<Option<i64>>,
    Stored<Option<Vec<u8>>>,
    Stored<Option<Vec<u8>>>,
    Stored<i64>,
    Stored<Vec<u8>>,
    Stored<Option<Vec<u8>>>,
);

/// Its columns, as a literal for `concat!`.
macro_rules! journal_columns {
    () => {
        "journal.number, journal.at_ms, journal.kind, journal.gateway_id, journal.device_id, journal.detail, journal.who, \
         journal.who_role, journal.origin, journal.reason, journal.refused, journal.mac, \
         (SELECT before.mac FROM journal AS before WHERE before.number = journal.number - 1)"
    };
}

fn code(mac: &RecordMac, row: &JournalRow) -> crate::record_mac::RowCode {
    let bytes = |value: &Stored<Option<Vec<u8>>>| value.0.clone();
    mac.row(LABEL)
        .number(row.0.0)
        .number(row.1.0)
        .bytes(&row.2.0)
        .number_or_null(row.3.0)
        .number_or_null(row.4.0)
        .bytes(&row.5.0)
        .bytes_or_null(bytes(&row.6).as_deref())
        .number_or_null(row.7.0)
        .bytes_or_null(bytes(&row.8).as_deref())
        .bytes_or_null(bytes(&row.9).as_deref())
        .number(row.10.0)
        .bytes_or_null(bytes(&row.12).as_deref())
}

fn entry(mac: &RecordMac, row: JournalRow) -> Entry {
    let authentic = code(mac, &row).is(&row.11.0);
    let actor = row.6.0.map(|name| Actor {
        name: text(name),
        role: row.7.0.and_then(Role::from_number).unwrap_or(Role::Viewer),
        origin: text(row.8.0.unwrap_or_default()),
    });
    Entry {
        number: row.0.0.cast_unsigned(),
        at_ms: u64::try_from(row.1.0).unwrap_or_default(),
        note: Note {
            kind: text(row.2.0),
            gateway: row.3.0.and_then(|id| u32::try_from(id).ok()).map(GatewayId),
            device: row.4.0.map(id_from_column),
            detail: text(row.5.0),
        },
        actor,
        reason: row.9.0.map(text),
        refused: row.10.0 != 0,
        authentic,
    }
}

impl Follower {
    /// Goes on behind that number.
    #[must_use]
    pub const fn after(number: u64) -> Self {
        Self {
            read: number,
            told: 0,
        }
    }

    /// Goes on behind another number.
    pub const fn go_to(&mut self, number: u64) {
        self.read = number;
    }

    /// Behind which number it goes on.
    #[must_use]
    pub const fn read(&self) -> u64 {
        self.read
    }

    /// The next entries, at most so many, oldest first; none at the end of the journal. Those that do not authenticate are among them
    /// once. Where the journal ends before what was read, as an older one was put back, it goes on from that end.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn next(&mut self, registry: &Registry, limit: u32) -> Result<Vec<Entry>> {
        let mut at = self.read;
        loop {
            let mut page = registry.journal_after(at, limit).await?;
            let Some(last) = page.last() else { break };
            at = last.number;
            page.retain(|entry| entry.authentic || entry.number > self.told);
            if !page.is_empty() {
                self.note(&page);
                return Ok(page);
            }
        }
        if at == self.read {
            self.read = registry.newest_number().await?.min(self.read);
        }
        Ok(Vec::new())
    }

    fn note(&mut self, page: &[Entry]) {
        for entry in page {
            let newest = match entry.authentic {
                true => &mut self.read,
                false => &mut self.told,
            };
            *newest = entry.number;
        }
    }
}

impl Registry {
    /// The same registry, in the hands of somebody: what is written by it is written into the journal too, in the same transaction.
    ///
    /// # Errors
    /// A text that must not be stored.
    pub fn acting(&self, act: Act) -> Result<Self> {
        check_note(&act.note)?;
        check("reason", &act.reason, super::TEXT_BYTES_MAX)?;
        check("who", &act.actor.name, WORD_BYTES_MAX)?;
        check("origin", &act.actor.origin, WORD_BYTES_MAX)?;
        Ok(self.with_act(act))
    }

    /// Notes what came about by itself.
    ///
    /// # Errors
    /// A text that must not be stored, or a failure of the database.
    pub async fn note(&self, notes: &[Note], at_ms: u64) -> Result<()> {
        notes.iter().try_for_each(check_note)?;
        let mut transaction = self.write().await?;
        for note in notes {
            self.append(&mut transaction, note, at_ms, None, false).await?;
        }
        transaction.commit().await?;
        Ok(())
    }

    /// Notes that this registry's [act](Registry::acting) was refused; nothing else is written.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn note_refused(&self, problem: &str) -> Result<()> {
        let Some(act) = self.act() else {
            return Ok(());
        };
        let mut note = act.note.clone();
        note.detail = match crate::device::check_text(problem, super::TEXT_BYTES_MAX, true) {
            Ok(()) => problem.to_owned(),
            Err(_) => "refused".to_owned(),
        };
        // Without the act itself, which did not come about.
        let mut transaction = self.write_whatever().await?;
        self.append(&mut transaction, &note, act.at_ms, Some(act), true)
            .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Writes the act of this registry, if it has one.
    pub(crate) async fn journal_act(&self, connection: &mut Connection) -> Result<()> {
        match self.act() {
            Some(act) => {
                self.append(connection, &act.note, act.at_ms, Some(act), false)
                    .await
            }
            None => Ok(()),
        }
    }

    async fn append(
        &self,
        connection: &mut Connection,
        note: &Note,
        at_ms: u64,
        act: Option<&Act>,
        refused: bool,
    ) -> Result<()> {
        let newest: Option<(i64, Vec<u8>)> =
            sql::query("SELECT number, mac FROM journal ORDER BY number DESC LIMIT 1")
                .fetch_optional(&mut *connection)
                .await?;
        let (before, mac_before) = newest.map_or((0, None), |(number, mac)| (number, Some(mac)));
        let bytes = |text: &str| Stored(text.as_bytes().to_vec());
        let optional = |text: Option<&str>| Stored(text.map(|text| text.as_bytes().to_vec()));
        let row: JournalRow = (
            Stored(before.saturating_add(1)),
            Stored(i64::try_from(at_ms).unwrap_or(i64::MAX)),
            bytes(&note.kind),
            Stored(note.gateway.map(|gateway| i64::from(gateway.0))),
            Stored(note.device.map(id_to_column)),
            bytes(&note.detail),
            optional(act.map(|act| act.actor.name.as_str())),
            Stored(act.map(|act| act.actor.role.number())),
            optional(act.map(|act| act.actor.origin.as_str())),
            optional(act.map(|act| act.reason.as_str())),
            Stored(i64::from(refused)),
            Stored(Vec::new()),
            Stored(mac_before),
        );
        let code = code(self.record_mac(), &row).finish();
        sql::query(
            "INSERT INTO journal (number, at_ms, kind, gateway_id, device_id, detail, who, who_role, origin, reason, refused, mac) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
        )
        .bind(row.0.0)
        .bind(row.1.0)
        .bind(&note.kind)
        .bind(row.3.0)
        .bind(row.4.0)
        .bind(&note.detail)
        .bind(act.map(|act| act.actor.name.as_str()))
        .bind(row.7.0)
        .bind(act.map(|act| act.actor.origin.as_str()))
        .bind(act.map(|act| act.reason.as_str()))
        .bind(row.10.0)
        .bind(code)
        .execute(connection)
        .await?;
        Ok(())
    }

    /// The number of the newest entry that authenticates; 0 before the first.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn journal_end(&self) -> Result<u64> {
        let (mut before, mut limit) = (None, 1);
        loop {
            let page = self.journal(&JournalFilter::default(), before, limit).await?;
            let own = page.entries.iter().find(|entry| entry.authentic);
            match (own, page.next) {
                (Some(own), _) => return Ok(own.number),
                (None, None) => return Ok(0),
                (None, next) => (before, limit) = (next, END_PAGE_ENTRIES),
            }
        }
    }

    /// The number of the newest entry, whoever has written it.
    async fn newest_number(&self) -> Result<u64> {
        let newest: Option<(i64,)> = sql::query("SELECT number FROM journal ORDER BY number DESC LIMIT 1")
            .fetch_optional(self.reader())
            .await?;
        Ok(newest.map_or(0, |(number,)| number.cast_unsigned()))
    }

    /// Up to `limit` entries after a number, oldest first.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn journal_after(&self, number: u64, limit: u32) -> Result<Vec<Entry>> {
        let rows: Vec<JournalRow> = sql::query(concat!(
            "SELECT ",
            journal_columns!(),
            " FROM journal WHERE journal.number > $1 ORDER BY journal.number LIMIT $2"
        ))
        .bind(i64::try_from(number).unwrap_or(i64::MAX))
        .bind(i64::from(limit))
        .fetch_all(self.reader())
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| entry(self.record_mac(), row))
            .collect())
    }

    /// Entries before a number, newest first. Begin with `None` and go on with [`JournalPage::next`] until that is `None`.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn journal(
        &self,
        filter: &JournalFilter,
        before: Option<u64>,
        limit: u32,
    ) -> Result<JournalPage> {
        let limit = limit.max(1);
        let mut snapshot = self.reader().snapshot().await?;
        let most = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut rows: Vec<JournalRow> = Vec::new();
        for part in parts(filter) {
            // Older ones than those that are found already have no place.
            let floor = rows.get(most.saturating_sub(1)).map_or(0, |row| row.0.0);
            let query = question(filter, &part, floor, before, limit);
            let found: Vec<JournalRow> = query.build().fetch_all(&mut *snapshot).await?;
            rows.extend(found);
            rows.sort_unstable_by_key(|row| Reverse(row.0.0));
            rows.truncate(most);
        }
        let entries: Vec<Entry> = rows
            .into_iter()
            .map(|row| entry(self.record_mac(), row))
            .collect();
        let is_full = u32::try_from(entries.len()).is_ok_and(|count| count >= limit);
        Ok(JournalPage {
            next: entries.last().filter(|_| is_full).map(|entry| entry.number),
            entries,
        })
    }
}

/// What of a filter's kinds one statement asks for.
enum Kinds<'a> {
    Any,
    /// Read by the index over kinds.
    One(&'a str),
    /// Looked at in each entry that another index finds.
    These(&'a [String]),
}

/// The statements whose answers together are what a filter wants. Of a few kinds among very many entries each is read from its own end:
/// both databases would look through all entries, or sort all of the kinds.
fn parts(filter: &JournalFilter) -> Vec<Kinds<'_>> {
    let is_of_few = filter.device.is_some() || filter.gateway.is_some() || filter.who.is_some();
    match (&*filter.kinds, is_of_few) {
        ([], _) => vec![Kinds::Any],
        (kinds, true) => vec![Kinds::These(kinds)],
        (kinds, false) => {
            let kinds: BTreeSet<&str> = kinds.iter().map(String::as_str).collect();
            kinds.into_iter().map(Kinds::One).collect()
        }
    }
}

/// Entries behind `floor` and before `before`.
fn question(
    filter: &JournalFilter,
    kinds: &Kinds<'_>,
    floor: i64,
    before: Option<u64>,
    limit: u32,
) -> Builder {
    let mut query = Builder::new(concat!(
        "SELECT ",
        journal_columns!(),
        " FROM journal WHERE journal.number > "
    ));
    query.push_bind(floor).push(" AND journal.number < ");
    query.push_bind(
        before
            .and_then(|number| i64::try_from(number).ok())
            .unwrap_or(i64::MAX),
    );
    match kinds {
        Kinds::Any => {}
        Kinds::One(kind) => {
            query.push(" AND journal.kind = ").push_bind(*kind);
        }
        Kinds::These(kinds) => {
            query.push(" AND journal.kind || '' IN ");
            query.push_list(kinds.iter().map(String::as_str));
        }
    }
    if let Some(device) = filter.device {
        query
            .push(" AND journal.device_id = ")
            .push_bind(id_to_column(device));
    }
    if let Some(gateway) = filter.gateway {
        query
            .push(" AND journal.gateway_id = ")
            .push_bind(i64::from(gateway.0));
    }
    if let Some(who) = &filter.who {
        query.push(" AND journal.who = ").push_bind(who);
    }
    if filter.acts_only {
        query.push(" AND journal.who IS NOT NULL");
    }
    if filter.without_refused {
        query.push(" AND journal.refused = 0");
    }
    query
        .push(" ORDER BY journal.number DESC LIMIT ")
        .push_bind(i64::from(limit));
    query
}

fn check_note(note: &Note) -> Result<()> {
    check("kind", &note.kind, WORD_BYTES_MAX)?;
    check("detail", &note.detail, super::TEXT_BYTES_MAX)
}

/// Entries that do not authenticate or do not follow the one before, for [`Registry::check`].
pub(crate) async fn damaged(registry: &Registry, connection: &mut Connection) -> Result<Vec<RegistryError>> {
    const PAGE_ROWS: i64 = 1_000;
    let (mut found, mut after) = (Vec::new(), 0_i64);
    loop {
        let rows: Vec<JournalRow> = sql::query(concat!(
            "SELECT ",
            journal_columns!(),
            " FROM journal WHERE journal.number > $1 AND journal.number <= 9223372036854775807 \
             ORDER BY journal.number LIMIT $2"
        ))
        .bind(after)
        .bind(PAGE_ROWS)
        .fetch_all(&mut *connection)
        .await?;
        for row in &rows {
            let follows = row.0.0 == after.saturating_add(1);
            if !follows || !code(registry.record_mac(), row).is(&row.11.0) {
                found.push(RegistryError::DamagedEntry {
                    number: row.0.0.cast_unsigned(),
                });
            }
            after = row.0.0;
        }
        if i64::try_from(rows.len()).is_ok_and(|count| count < PAGE_ROWS) {
            return Ok(found);
        }
    }
}
