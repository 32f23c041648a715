//! The event log: events and audit records, in their order.
//!
//! Numbers are consecutive, and the tag of each event covers the tag of the previous event. So a modified event and a
//! missing event in the middle of the log are detected. Deletion of the newest events is not detected.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use linewarden_protocol::ids::{DeviceId, GatewayId};

use super::users::Role;
use super::{check_text, text};
use crate::column::ColumnValue;
use crate::conversion::{id_from_column, id_to_column};
use crate::error::{RegistryError, Result, ServiceError};
use crate::record_tag::RecordAuthenticator;
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
    /// Why the user requested the action.
    pub reason: String,
    /// The event that records the action.
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
    /// The reason of the user's action.
    pub reason: Option<String>,
    /// Whether the action was refused.
    pub refused: bool,
    /// Whether the event authenticates and follows the previous event.
    pub authentic: bool,
}

/// Reads the growing event log. Events that do not authenticate do not advance the position: a forged event may have a
/// high number, and must not make the reader skip real events.
#[derive(Clone, Copy, Debug)]
pub struct EventLogReader {
    /// The number of the newest authentic event that was read.
    position: u64,
    /// The number of the newest event that was returned although it does not authenticate.
    newest_damaged: u64,
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
    /// Omit refused actions.
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

/// The columns of `event_log`: number, time, kind, gateway, device, detail, actor, role, origin, reason, refused, tag, and
/// the tag of the previous event.
type EventColumns = (
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

/// The column names of [`EventColumns`], in the same order, as a literal for `concat!`.
macro_rules! event_log_columns {
    () => {
        "event_log.number, event_log.at_ms, event_log.kind, event_log.gateway_id, event_log.device_id, event_log.detail, event_log.actor, \
         event_log.actor_role, event_log.origin, event_log.reason, event_log.refused, event_log.tag, \
         (SELECT before.tag FROM event_log AS before WHERE before.number = event_log.number - 1)"
    };
}

fn tag(authenticator: &RecordAuthenticator, record: &EventColumns) -> crate::record_tag::TagBuilder {
    let bytes = |value: &ColumnValue<Option<Vec<u8>>>| value.0.clone();
    authenticator
        .begin(LABEL)
        .number(record.0.0)
        .number(record.1.0)
        .bytes(&record.2.0)
        .number_or_null(record.3.0)
        .number_or_null(record.4.0)
        .bytes(&record.5.0)
        .bytes_or_null(bytes(&record.6).as_deref())
        .number_or_null(record.7.0)
        .bytes_or_null(bytes(&record.8).as_deref())
        .bytes_or_null(bytes(&record.9).as_deref())
        .number(record.10.0)
        .bytes_or_null(bytes(&record.12).as_deref())
}

fn entry_from_record(authenticator: &RecordAuthenticator, record: EventColumns) -> EventLogEntry {
    let authentic = tag(authenticator, &record).matches(&record.11.0);
    let actor = record.6.0.map(|name| Actor {
        name: text(name),
        role: record.7.0.and_then(Role::from_number).unwrap_or(Role::Viewer),
        origin: text(record.8.0.unwrap_or_default()),
    });
    EventLogEntry {
        number: record.0.0.cast_unsigned(),
        at_ms: u64::try_from(record.1.0).unwrap_or_default(),
        event: NewEvent {
            kind: text(record.2.0),
            gateway: record.3.0.and_then(|id| u32::try_from(id).ok()).map(GatewayId),
            device: record.4.0.map(id_from_column),
            detail: text(record.5.0),
        },
        actor,
        reason: record.9.0.map(text),
        refused: record.10.0 != 0,
        authentic,
    }
}

impl EventLogReader {
    /// Creates a reader that starts after the event with this number.
    #[must_use]
    pub const fn after(number: u64) -> Self {
        Self {
            position: number,
            newest_damaged: 0,
        }
    }

    /// Makes the reader continue after the event with this number.
    pub const fn set_position(&mut self, number: u64) {
        self.position = number;
    }

    /// The number of the last authentic event that was read.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// The next events, at most `limit`, oldest first; empty at the end of the log. Events that do not authenticate
    /// are returned once. If the log ends before the position, because an older registry was restored, the reader
    /// continues from the end of the log.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn next(&mut self, registry: &Registry, limit: u32) -> Result<Vec<EventLogEntry>> {
        let mut last_number = self.position;
        loop {
            let mut page = registry.events_after(last_number, limit).await?;
            let Some(last) = page.last() else { break };
            last_number = last.number;
            page.retain(|entry| entry.authentic || entry.number > self.newest_damaged);
            if !page.is_empty() {
                self.advance(&page);
                return Ok(page);
            }
        }
        if last_number == self.position {
            self.position = registry.newest_event().await?.min(self.position);
        }
        Ok(Vec::new())
    }

    fn advance(&mut self, page: &[EventLogEntry]) {
        for entry in page {
            let position = match entry.authentic {
                true => &mut self.position,
                false => &mut self.newest_damaged,
            };
            *position = entry.number;
        }
    }
}

impl Registry {
    /// Returns this registry for an action of a user: the transaction of each write also records the action in the
    /// event log.
    ///
    /// # Errors
    /// An invalid text.
    pub fn with_action(&self, action: Action) -> Result<Self> {
        check_event(&action.event)?;
        check_text("reason", &action.reason, super::TEXT_BYTES_MAX)?;
        check_text("actor", &action.actor.name, NAME_BYTES_MAX)?;
        check_text("origin", &action.actor.origin, NAME_BYTES_MAX)?;
        Ok(self.acting_as(action))
    }

    /// Records events that no user action caused.
    ///
    /// # Errors
    /// An invalid text, or a failure of the database.
    pub async fn record_events(&self, events: &[NewEvent], at_ms: u64) -> Result<()> {
        events.iter().try_for_each(check_event)?;
        let mut transaction = self.write().await?;
        for event in events {
            self.append(&mut transaction, event, at_ms, None, false).await?;
        }
        transaction.commit().await?;
        Ok(())
    }

    /// Records that this registry's [action](Registry::with_action) was refused; nothing else is written.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn record_refusal(&self, problem: &str) -> Result<()> {
        let Some(action) = self.action() else {
            return Ok(());
        };
        let mut event = action.event.clone();
        event.detail = match crate::device::check_text(problem, super::TEXT_BYTES_MAX, true) {
            Ok(()) => problem.to_owned(),
            Err(_) => "refused".to_owned(),
        };
        // `write` would record the action as executed.
        let mut transaction = self.write_even_if_moved().await?;
        self.append(&mut transaction, &event, action.at_ms, Some(action), true)
            .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Records the action of this registry, if it has one.
    pub(crate) async fn record_action(&self, connection: &mut Connection) -> Result<()> {
        match self.action() {
            Some(action) => {
                self.append(connection, &action.event, action.at_ms, Some(action), false)
                    .await
            }
            None => Ok(()),
        }
    }

    async fn append(
        &self,
        connection: &mut Connection,
        event: &NewEvent,
        at_ms: u64,
        action: Option<&Action>,
        refused: bool,
    ) -> Result<()> {
        let newest: Option<(i64, Vec<u8>)> =
            sql::query("SELECT number, tag FROM event_log ORDER BY number DESC LIMIT 1")
                .fetch_optional(&mut *connection)
                .await?;
        let (previous_number, previous_tag) = newest.map_or((0, None), |(number, tag)| (number, Some(tag)));
        let bytes = |text: &str| ColumnValue(text.as_bytes().to_vec());
        let optional = |text: Option<&str>| ColumnValue(text.map(|text| text.as_bytes().to_vec()));
        let record: EventColumns = (
            ColumnValue(previous_number.saturating_add(1)),
            ColumnValue(i64::try_from(at_ms).unwrap_or(i64::MAX)),
            bytes(&event.kind),
            ColumnValue(event.gateway.map(|gateway| i64::from(gateway.0))),
            ColumnValue(event.device.map(id_to_column)),
            bytes(&event.detail),
            optional(action.map(|action| action.actor.name.as_str())),
            ColumnValue(action.map(|action| action.actor.role.number())),
            optional(action.map(|action| action.actor.origin.as_str())),
            optional(action.map(|action| action.reason.as_str())),
            ColumnValue(i64::from(refused)),
            ColumnValue(Vec::new()),
            ColumnValue(previous_tag),
        );
        let tag = tag(self.authenticator(), &record).finish();
        sql::query(
            "INSERT INTO event_log (number, at_ms, kind, gateway_id, device_id, detail, actor, actor_role, origin, reason, refused, tag) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
        )
        .bind(record.0.0)
        .bind(record.1.0)
        .bind(&event.kind)
        .bind(record.3.0)
        .bind(record.4.0)
        .bind(&event.detail)
        .bind(action.map(|action| action.actor.name.as_str()))
        .bind(record.7.0)
        .bind(action.map(|action| action.actor.origin.as_str()))
        .bind(action.map(|action| action.reason.as_str()))
        .bind(record.10.0)
        .bind(tag)
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
            let authentic = page.entries.iter().find(|entry| entry.authentic);
            match (authentic, page.next) {
                (Some(entry), _) => return Ok(entry.number),
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
        let records: Vec<EventColumns> = sql::query(concat!(
            "SELECT ",
            event_log_columns!(),
            " FROM event_log WHERE event_log.number > $1 ORDER BY event_log.number LIMIT $2"
        ))
        .bind(i64::try_from(number).unwrap_or(i64::MAX))
        .bind(i64::from(limit))
        .fetch_all(self.reader())
        .await?;
        Ok(records
            .into_iter()
            .map(|record| entry_from_record(self.authenticator(), record))
            .collect())
    }

    /// Events before a number, newest first. Start with `None`, and continue with [`EventLogPage::next`] until `next` is
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
        let page_entries = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut records: Vec<EventColumns> = Vec::new();
        for kinds in kind_selections(filter) {
            // A full page has no room for events that are older than its last event.
            let floor = records
                .get(page_entries.saturating_sub(1))
                .map_or(0, |record| record.0.0);
            let query = event_query(filter, &kinds, floor, before, limit);
            let kind_records: Vec<EventColumns> = query.build().fetch_all(&mut *snapshot).await?;
            records.extend(kind_records);
            records.sort_unstable_by_key(|record| Reverse(record.0.0));
            records.truncate(page_entries);
        }
        let entries: Vec<EventLogEntry> = records
            .into_iter()
            .map(|record| entry_from_record(self.authenticator(), record))
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

/// The selections of kinds for the queries whose results together match a filter. Each kind is read by a query of its
/// own, from the end of the log: in a long log, one query for several kinds would scan or sort very many events.
fn kind_selections(filter: &EventFilter) -> Vec<KindSelection<'_>> {
    let is_selective = filter.device.is_some() || filter.gateway.is_some() || filter.actor.is_some();
    match (&*filter.kinds, is_selective) {
        ([], _) => vec![KindSelection::Any],
        (kinds, true) => vec![KindSelection::AnyOf(kinds)],
        (kinds, false) => {
            let kinds: BTreeSet<&str> = kinds.iter().map(String::as_str).collect();
            kinds.into_iter().map(KindSelection::One).collect()
        }
    }
}

/// A query for at most `limit` events after `floor` and before `before`, newest first.
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
    if let Some(actor) = &filter.actor {
        query.push(" AND event_log.actor = ").push_bind(actor);
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

fn check_event(event: &NewEvent) -> Result<()> {
    check_text("kind", &event.kind, NAME_BYTES_MAX)?;
    check_text("detail", &event.detail, super::TEXT_BYTES_MAX)
}

/// Errors of events that do not authenticate or do not follow the previous event, for [`Registry::check`].
pub(crate) async fn damaged(registry: &Registry, connection: &mut Connection) -> Result<Vec<RegistryError>> {
    const PAGE_EVENTS: i64 = 1_000;
    let (mut damaged, mut last_number) = (Vec::new(), 0_i64);
    loop {
        let records: Vec<EventColumns> = sql::query(concat!(
            "SELECT ",
            event_log_columns!(),
            " FROM event_log WHERE event_log.number > $1 AND event_log.number <= 9223372036854775807 \
             ORDER BY event_log.number LIMIT $2"
        ))
        .bind(last_number)
        .bind(PAGE_EVENTS)
        .fetch_all(&mut *connection)
        .await?;
        for record in &records {
            let follows = record.0.0 == last_number.saturating_add(1);
            if !follows || !tag(registry.authenticator(), record).matches(&record.11.0) {
                damaged.push(RegistryError::Service(ServiceError::DamagedEvent {
                    number: record.0.0.cast_unsigned(),
                }));
            }
            last_number = record.0.0;
        }
        if i64::try_from(records.len()).is_ok_and(|count| count < PAGE_EVENTS) {
            return Ok(damaged);
        }
    }
}
