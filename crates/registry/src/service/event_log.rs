//! The event log: events and audit records, in their order.
//!
//! Numbers are consecutive, and the MAC of each event covers the MAC of the previous one: a modified event, or one
//! deleted in the middle, is detected. Deletion of the newest events is not detected.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use linewarden_protocol::ids::{DeviceId, GatewayId};

use super::users::Role;
use super::{check_text, text};
use crate::column::ColumnValue;
use crate::error::{RegistryError, Result};
use crate::record_mac::RecordMac;
use crate::row::{id_from_column, id_to_column};
use crate::sql::{self, Builder, Connection};
use crate::store::Registry;

const LABEL: &[u8] = b"linewarden registry table event_log v1";
/// Maximum length of a kind, a user name and an origin, bytes.
const NAME_BYTES_MAX: usize = 255;
/// Events per query in the search for the newest authentic event.
const NEWEST_PAGE_EVENTS: u32 = 1_000;

/// The API user that requested an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// The user name.
    pub name: String,
    /// The role.
    pub role: Role,
    /// The address that the request came from.
    pub origin: String,
}

/// An event to record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewEvent {
    /// The kind: `revoked`, `enrolled`, ..
    pub kind: String,
    /// The gateway, if the event concerns one.
    pub gateway: Option<GatewayId>,
    /// The device, if the event concerns one.
    pub device: Option<DeviceId>,
    /// Details, for display and for programs; may be JSON.
    pub detail: String,
}

/// An action of an API user, for the registry audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// Time, milliseconds since 1970-01-01 UTC.
    pub at_ms: u64,
    /// The user.
    pub actor: Actor,
    /// The reason.
    pub reason: String,
    /// The event.
    pub event: NewEvent,
}

/// An event in the event log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventLogEntry {
    /// The number, from 1.
    pub number: u64,
    /// Time, milliseconds since 1970-01-01 UTC.
    pub at_ms: u64,
    /// The event.
    pub event: NewEvent,
    /// The user whose action caused the event; `None`: no action.
    pub actor: Option<Actor>,
    /// The reason.
    pub reason: Option<String>,
    /// The action was refused.
    pub refused: bool,
    /// Whether the event authenticates and follows the previous one.
    pub authentic: bool,
}

/// Reads the event log as it grows. Events that do not authenticate do not advance the position: if a forged event is
/// deleted later, no event after it must be skipped.
#[derive(Clone, Copy, Debug)]
pub struct EventLogReader {
    /// The newest authentic event that was read.
    position: u64,
    /// The newest event that was returned and does not authenticate.
    reported: u64,
}

/// A filter for events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Only events of these kinds; all kinds if empty.
    pub kinds: Vec<String>,
    /// Only events of this device.
    pub device: Option<DeviceId>,
    /// Only events of this gateway.
    pub gateway: Option<GatewayId>,
    /// Only actions of this user.
    pub actor: Option<String>,
    /// Only actions of users.
    pub actions_only: bool,
    /// Without refused actions.
    pub exclude_refused: bool,
}

/// A page of the event log, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventLogPage {
    /// The events.
    pub entries: Vec<EventLogEntry>,
    /// The number to continue before; `None` at the end.
    pub next: Option<u64>,
}

/// A row: number, time, kind, gateway, device, detail, actor, role, origin, reason, refused, mac, and the previous
/// mac.
type EventRow = (
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<Vec<u8>>,
    ColumnValue<Option<i64>>,
    ColumnValue<Option<i64>>,
    ColumnValue<Vec<u8>>,
    ColumnValue<Option<Vec<u8>>>,
    ColumnValue<Option<i64>>,
    ColumnValue<Option<Vec<u8>>>,
    ColumnValue<Option<Vec<u8>>>,
    ColumnValue<i64>,
    ColumnValue<Vec<u8>>,
    ColumnValue<Option<Vec<u8>>>,
);

/// The columns of [`EventRow`], as a literal for `concat!`.
macro_rules! event_log_columns {
    () => {
        "event_log.number, event_log.at_ms, event_log.kind, event_log.gateway_id, event_log.device_id, event_log.detail, event_log.actor, \
         event_log.actor_role, event_log.origin, event_log.reason, event_log.refused, event_log.mac, \
         (SELECT before.mac FROM event_log AS before WHERE before.number = event_log.number - 1)"
    };
}

fn code(mac: &RecordMac, row: &EventRow) -> crate::record_mac::RowCode {
    let bytes = |value: &ColumnValue<Option<Vec<u8>>>| value.0.clone();
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

fn entry_from_row(mac: &RecordMac, row: EventRow) -> EventLogEntry {
    let authentic = code(mac, &row).matches(&row.11.0);
    let actor = row.6.0.map(|name| Actor {
        name: text(name),
        role: row.7.0.and_then(Role::from_number).unwrap_or(Role::Viewer),
        origin: text(row.8.0.unwrap_or_default()),
    });
    EventLogEntry {
        number: row.0.0.cast_unsigned(),
        at_ms: u64::try_from(row.1.0).unwrap_or_default(),
        event: NewEvent {
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

impl EventLogReader {
    /// Starts after this number.
    #[must_use]
    pub const fn after(number: u64) -> Self {
        Self {
            position: number,
            reported: 0,
        }
    }

    /// Continues after another number.
    pub const fn set_position(&mut self, number: u64) {
        self.position = number;
    }

    /// The number of the last authentic event that was read.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// The next events, at most `limit`, oldest first; empty at the end of the log. Events that do not authenticate
    /// are returned once. If the log ends before the position, because an older registry was restored, reading
    /// continues from its end.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn next(&mut self, registry: &Registry, limit: u32) -> Result<Vec<EventLogEntry>> {
        let mut at = self.position;
        loop {
            let mut page = registry.events_after(at, limit).await?;
            let Some(last) = page.last() else { break };
            at = last.number;
            page.retain(|entry| entry.authentic || entry.number > self.reported);
            if !page.is_empty() {
                self.advance(&page);
                return Ok(page);
            }
        }
        if at == self.position {
            self.position = registry.newest_event().await?.min(self.position);
        }
        Ok(Vec::new())
    }

    fn advance(&mut self, page: &[EventLogEntry]) {
        for entry in page {
            let newest = match entry.authentic {
                true => &mut self.position,
                false => &mut self.reported,
            };
            *newest = entry.number;
        }
    }
}

impl Registry {
    /// The same registry for an action of a user: each write also records the action in the event log, in the same
    /// transaction.
    ///
    /// # Errors
    /// An invalid text.
    pub fn with_action(&self, act: Action) -> Result<Self> {
        check_event(&act.event)?;
        check_text("reason", &act.reason, super::TEXT_BYTES_MAX)?;
        check_text("actor", &act.actor.name, NAME_BYTES_MAX)?;
        check_text("origin", &act.actor.origin, NAME_BYTES_MAX)?;
        Ok(self.acting_as(act))
    }

    /// Records events that no user action caused.
    ///
    /// # Errors
    /// An invalid text, or a failure of the database.
    pub async fn record_events(&self, notes: &[NewEvent], at_ms: u64) -> Result<()> {
        notes.iter().try_for_each(check_event)?;
        let mut transaction = self.write().await?;
        for note in notes {
            self.append(&mut transaction, note, at_ms, None, false).await?;
        }
        transaction.commit().await?;
        Ok(())
    }

    /// Records that this registry's [action](Registry::with_action) was refused; nothing else is written.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn record_refusal(&self, problem: &str) -> Result<()> {
        let Some(act) = self.action() else {
            return Ok(());
        };
        let mut note = act.event.clone();
        note.detail = match crate::device::check_text(problem, super::TEXT_BYTES_MAX, true) {
            Ok(()) => problem.to_owned(),
            Err(_) => "refused".to_owned(),
        };
        // Without the action itself, which was refused.
        let mut transaction = self.write_even_if_moved().await?;
        self.append(&mut transaction, &note, act.at_ms, Some(act), true)
            .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Records the action of this registry, if it has one.
    pub(crate) async fn record_action(&self, connection: &mut Connection) -> Result<()> {
        match self.action() {
            Some(act) => {
                self.append(connection, &act.event, act.at_ms, Some(act), false)
                    .await
            }
            None => Ok(()),
        }
    }

    async fn append(
        &self,
        connection: &mut Connection,
        note: &NewEvent,
        at_ms: u64,
        act: Option<&Action>,
        refused: bool,
    ) -> Result<()> {
        let newest: Option<(i64, Vec<u8>)> =
            sql::query("SELECT number, mac FROM event_log ORDER BY number DESC LIMIT 1")
                .fetch_optional(&mut *connection)
                .await?;
        let (before, mac_before) = newest.map_or((0, None), |(number, mac)| (number, Some(mac)));
        let bytes = |text: &str| ColumnValue(text.as_bytes().to_vec());
        let optional = |text: Option<&str>| ColumnValue(text.map(|text| text.as_bytes().to_vec()));
        let row: EventRow = (
            ColumnValue(before.saturating_add(1)),
            ColumnValue(i64::try_from(at_ms).unwrap_or(i64::MAX)),
            bytes(&note.kind),
            ColumnValue(note.gateway.map(|gateway| i64::from(gateway.0))),
            ColumnValue(note.device.map(id_to_column)),
            bytes(&note.detail),
            optional(act.map(|act| act.actor.name.as_str())),
            ColumnValue(act.map(|act| act.actor.role.number())),
            optional(act.map(|act| act.actor.origin.as_str())),
            optional(act.map(|act| act.reason.as_str())),
            ColumnValue(i64::from(refused)),
            ColumnValue(Vec::new()),
            ColumnValue(mac_before),
        );
        let code = code(self.record_mac(), &row).finish();
        sql::query(
            "INSERT INTO event_log (number, at_ms, kind, gateway_id, device_id, detail, actor, actor_role, origin, reason, refused, mac) \
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

    /// The number of the newest authentic event; 0 if there is none.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn newest_authentic_event(&self) -> Result<u64> {
        let (mut before, mut limit) = (None, 1);
        loop {
            let page = self.events(&EventFilter::default(), before, limit).await?;
            let own = page.entries.iter().find(|entry| entry.authentic);
            match (own, page.next) {
                (Some(own), _) => return Ok(own.number),
                (None, None) => return Ok(0),
                (None, next) => (before, limit) = (next, NEWEST_PAGE_EVENTS),
            }
        }
    }

    /// The number of the newest event, authentic or not.
    async fn newest_event(&self) -> Result<u64> {
        let newest: Option<(i64,)> = sql::query("SELECT number FROM event_log ORDER BY number DESC LIMIT 1")
            .fetch_optional(self.reader())
            .await?;
        Ok(newest.map_or(0, |(number,)| number.cast_unsigned()))
    }

    /// Up to `limit` events after a number, oldest first.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn events_after(&self, number: u64, limit: u32) -> Result<Vec<EventLogEntry>> {
        let rows: Vec<EventRow> = sql::query(concat!(
            "SELECT ",
            event_log_columns!(),
            " FROM event_log WHERE event_log.number > $1 ORDER BY event_log.number LIMIT $2"
        ))
        .bind(i64::try_from(number).unwrap_or(i64::MAX))
        .bind(i64::from(limit))
        .fetch_all(self.reader())
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| entry_from_row(self.record_mac(), row))
            .collect())
    }

    /// Events before a number, newest first. Start with `None` and continue with [`EventLogPage::next`] until that is
    /// `None`.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn events(
        &self,
        filter: &EventFilter,
        before: Option<u64>,
        limit: u32,
    ) -> Result<EventLogPage> {
        let limit = limit.max(1);
        let mut snapshot = self.reader().snapshot().await?;
        let most = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut rows: Vec<EventRow> = Vec::new();
        for part in kind_selections(filter) {
            // Events older than those found so far do not fit into the page.
            let floor = rows.get(most.saturating_sub(1)).map_or(0, |row| row.0.0);
            let query = event_query(filter, &part, floor, before, limit);
            let found: Vec<EventRow> = query.build().fetch_all(&mut *snapshot).await?;
            rows.extend(found);
            rows.sort_unstable_by_key(|row| Reverse(row.0.0));
            rows.truncate(most);
        }
        let entries: Vec<EventLogEntry> = rows
            .into_iter()
            .map(|row| entry_from_row(self.record_mac(), row))
            .collect();
        let is_full = u32::try_from(entries.len()).is_ok_and(|count| count >= limit);
        Ok(EventLogPage {
            next: entries.last().filter(|_| is_full).map(|entry| entry.number),
            entries,
        })
    }
}

/// The kinds that one query selects.
enum KindSelection<'a> {
    Any,
    /// One kind, read by the index over kinds.
    One(&'a str),
    /// Several kinds, compared for each event that another index finds.
    AnyOf(&'a [String]),
}

/// The queries whose results together match a filter. If the log has very many events, each kind is read separately
/// from its end: with one query both databases would scan all events, or sort all events of the kinds.
fn kind_selections(filter: &EventFilter) -> Vec<KindSelection<'_>> {
    let is_of_few = filter.device.is_some() || filter.gateway.is_some() || filter.actor.is_some();
    match (&*filter.kinds, is_of_few) {
        ([], _) => vec![KindSelection::Any],
        (kinds, true) => vec![KindSelection::AnyOf(kinds)],
        (kinds, false) => {
            let kinds: BTreeSet<&str> = kinds.iter().map(String::as_str).collect();
            kinds.into_iter().map(KindSelection::One).collect()
        }
    }
}

/// Events after `floor` and before `before`.
fn event_query(
    filter: &EventFilter,
    kinds: &KindSelection<'_>,
    floor: i64,
    before: Option<u64>,
    limit: u32,
) -> Builder {
    let mut query = Builder::new(concat!(
        "SELECT ",
        event_log_columns!(),
        " FROM event_log WHERE event_log.number > "
    ));
    query.push_bind(floor).push(" AND event_log.number < ");
    query.push_bind(
        before
            .and_then(|number| i64::try_from(number).ok())
            .unwrap_or(i64::MAX),
    );
    match kinds {
        KindSelection::Any => {}
        KindSelection::One(kind) => {
            query.push(" AND event_log.kind = ").push_bind(*kind);
        }
        KindSelection::AnyOf(kinds) => {
            query.push(" AND event_log.kind || '' IN ");
            query.push_list(kinds.iter().map(String::as_str));
        }
    }
    if let Some(device) = filter.device {
        query
            .push(" AND event_log.device_id = ")
            .push_bind(id_to_column(device));
    }
    if let Some(gateway) = filter.gateway {
        query
            .push(" AND event_log.gateway_id = ")
            .push_bind(i64::from(gateway.0));
    }
    if let Some(who) = &filter.actor {
        query.push(" AND event_log.actor = ").push_bind(who);
    }
    if filter.actions_only {
        query.push(" AND event_log.actor IS NOT NULL");
    }
    if filter.exclude_refused {
        query.push(" AND event_log.refused = 0");
    }
    query
        .push(" ORDER BY event_log.number DESC LIMIT ")
        .push_bind(i64::from(limit));
    query
}

fn check_event(note: &NewEvent) -> Result<()> {
    check_text("kind", &note.kind, NAME_BYTES_MAX)?;
    check_text("detail", &note.detail, super::TEXT_BYTES_MAX)
}

/// Events that do not authenticate or do not follow the previous one, for [`Registry::check`].
pub(crate) async fn damaged(registry: &Registry, connection: &mut Connection) -> Result<Vec<RegistryError>> {
    const PAGE_ROWS: i64 = 1_000;
    let (mut found, mut after) = (Vec::new(), 0_i64);
    loop {
        let rows: Vec<EventRow> = sql::query(concat!(
            "SELECT ",
            event_log_columns!(),
            " FROM event_log WHERE event_log.number > $1 AND event_log.number <= 9223372036854775807 \
             ORDER BY event_log.number LIMIT $2"
        ))
        .bind(after)
        .bind(PAGE_ROWS)
        .fetch_all(&mut *connection)
        .await?;
        for row in &rows {
            let follows = row.0.0 == after.saturating_add(1);
            if !follows || !code(registry.record_mac(), row).matches(&row.11.0) {
                found.push(RegistryError::DamagedEvent {
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
