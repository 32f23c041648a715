//! Table entries and default entries (9.1).

use super::{Translator, signed, unsigned};
use crate::entity::{
    Change, CounterData, DefaultEntry, DirectResources, Entity, EntryAction, MeterCounters, TableEntry,
    Update,
};
use crate::error::EntityError;
use crate::p4info::{ActionScope, Table};
use crate::proto::v1;
use v1::table_action::Type as ActionMessage;
use v1::update::Type as Kind;

use super::cells::{
    decode_counters, decode_meter_config, encode_counter, encode_counters, encode_meter_config,
};

impl Translator<'_> {
    pub(super) fn decode_table_update(
        &self,
        kind: Kind,
        entry: &v1::TableEntry,
    ) -> Result<Update, EntityError> {
        let table = self.table(entry.table_id)?;
        let at_table = |error: EntityError| error.at(format!("table \"{}\"", table.name));
        if entry.is_const {
            return Err(at_table(EntityError::invalid(
                "is_const is only allowed in read responses",
            )));
        }
        if entry.is_default_action {
            return self
                .decode_default_update(kind, table, entry)
                .map(|entry| Update::DefaultEntry(Box::new(entry)))
                .map_err(at_table);
        }
        let change = self.decode_entry_update(kind, table, entry).map_err(at_table)?;
        Ok(Update::TableEntry(Box::new(change)))
    }

    fn decode_entry_update(
        &self,
        kind: Kind,
        table: &Table,
        entry: &v1::TableEntry,
    ) -> Result<Change<TableEntry, crate::entity::EntryKey>, EntityError> {
        if table.fields.is_empty() {
            return Err(EntityError::invalid(
                "table has no key and no entries: only the default entry can be modified",
            ));
        }
        let changes_entry =
            entry.action.is_some() || !entry.metadata.is_empty() || entry.controller_metadata != 0;
        if table.is_const && (kind != Kind::Modify || changes_entry || entry.idle_timeout_ns != 0) {
            return Err(EntityError::denied(
                "table is constant: only counters and meters of its entries can be modified, without an action",
            ));
        }
        let key = self.decode_key(table, entry)?;
        if kind == Kind::Delete {
            return Ok(Change::Delete(key));
        }
        let action = entry
            .action
            .as_ref()
            .map(|action| self.decode_entry_action(table, action))
            .transpose()?;
        if kind == Kind::Insert && action.is_none() {
            return Err(EntityError::invalid("new entry requires an action"));
        }
        if entry.time_since_last_hit.is_some() {
            return Err(EntityError::invalid("time_since_last_hit is read-only"));
        }
        let decoded = TableEntry {
            key,
            action,
            controller_metadata: entry.controller_metadata,
            metadata: entry.metadata.clone(),
            idle_timeout_ns: decode_timeout(table, entry.idle_timeout_ns)?,
            resources: decode_written_resources(table, entry)?,
            since_hit_ns: None,
            is_const: false,
        };
        Ok(if kind == Kind::Insert {
            Change::Insert(decoded)
        } else {
            Change::Modify(decoded)
        })
    }

    fn decode_default_update(
        &self,
        kind: Kind,
        table: &Table,
        entry: &v1::TableEntry,
    ) -> Result<DefaultEntry, EntityError> {
        if kind != Kind::Modify {
            return Err(EntityError::invalid(
                "default entry always exists: it can only be modified",
            ));
        }
        if !entry.r#match.is_empty() || entry.priority != 0 {
            return Err(EntityError::invalid("default entry has no match and no priority"));
        }
        if entry.idle_timeout_ns != 0 || entry.time_since_last_hit.is_some() {
            return Err(EntityError::invalid("default entry has no idle timeout"));
        }
        if table.const_default.is_some() {
            return Err(EntityError::denied("default action is constant"));
        }
        if table.profile.is_some() {
            return Err(EntityError::denied(
                "default action of a table with an action profile cannot be changed: it is NoAction",
            ));
        }
        Ok(DefaultEntry {
            table: table.id,
            action: self.decode_default_action(table, entry.action.as_ref())?,
            controller_metadata: entry.controller_metadata,
            metadata: entry.metadata.clone(),
            resources: decode_written_resources(table, entry)?,
            is_const: false,
        })
    }

    fn decode_default_action(
        &self,
        table: &Table,
        action: Option<&v1::TableAction>,
    ) -> Result<Option<crate::entity::Action>, EntityError> {
        match action.map(|action| action.r#type.as_ref()) {
            None => Ok(None),
            Some(Some(ActionMessage::Action(action))) => self
                .decode_scoped_action(table, action, ActionScope::allows_default, "as the default")
                .map(Some),
            Some(_) => Err(EntityError::invalid("default entry requires an action")),
        }
    }

    /// Decodes an entry of a read response.
    pub(super) fn decode_read_entry(&self, entry: &v1::TableEntry) -> Result<Entity, EntityError> {
        let table = self.table(entry.table_id)?;
        let resources = decode_resources(table, entry)?;
        if entry.is_default_action {
            return Ok(Entity::DefaultEntry(Box::new(DefaultEntry {
                table: table.id,
                action: self.decode_default_action(table, entry.action.as_ref())?,
                controller_metadata: entry.controller_metadata,
                metadata: entry.metadata.clone(),
                resources,
                is_const: entry.is_const,
            })));
        }
        let since_hit = entry.time_since_last_hit.as_ref();
        Ok(Entity::TableEntry(Box::new(TableEntry {
            key: self.decode_key(table, entry)?,
            action: entry
                .action
                .as_ref()
                .map(|action| self.decode_entry_action(table, action))
                .transpose()?,
            controller_metadata: entry.controller_metadata,
            metadata: entry.metadata.clone(),
            idle_timeout_ns: unsigned(entry.idle_timeout_ns, "idle_timeout_ns")?,
            resources,
            since_hit_ns: since_hit
                .map(|since| unsigned(since.elapsed_ns, "elapsed_ns"))
                .transpose()?,
            is_const: entry.is_const,
        })))
    }

    /// Decodes an entry of an idle timeout notification.
    pub fn decode_idle_entry(&self, entry: &v1::TableEntry) -> Result<TableEntry, EntityError> {
        match self.decode_read_entry(entry)? {
            Entity::TableEntry(entry) => Ok(*entry),
            _ => Err(EntityError::invalid("default entry has no idle timeout")),
        }
    }

    /// Encodes an entry.
    pub fn encode_entry(&self, entry: &TableEntry) -> v1::TableEntry {
        v1::TableEntry {
            action: entry
                .action
                .as_ref()
                .map(|action: &EntryAction| self.encode_entry_action(action)),
            controller_metadata: entry.controller_metadata,
            metadata: entry.metadata.clone(),
            idle_timeout_ns: signed(entry.idle_timeout_ns),
            meter_config: entry.resources.meter.map(encode_meter_config),
            counter_data: entry.resources.counter.map(encode_counter),
            meter_counter_data: entry.resources.meter_counters.map(encode_counters),
            time_since_last_hit: entry.since_hit_ns.map(|elapsed_ns| v1::table_entry::IdleTimeout {
                elapsed_ns: signed(elapsed_ns),
            }),
            is_const: entry.is_const,
            ..self.encode_key(&entry.key)
        }
    }

    pub(super) fn encode_default(&self, entry: &DefaultEntry) -> v1::TableEntry {
        v1::TableEntry {
            table_id: entry.table.0,
            action: entry.action.as_ref().map(|action| v1::TableAction {
                r#type: Some(ActionMessage::Action(self.encode_action(action))),
            }),
            controller_metadata: entry.controller_metadata,
            metadata: entry.metadata.clone(),
            meter_config: entry.resources.meter.map(encode_meter_config),
            counter_data: entry.resources.counter.map(encode_counter),
            meter_counter_data: entry.resources.meter_counters.map(encode_counters),
            is_default_action: true,
            is_const: entry.is_const,
            ..Default::default()
        }
    }
}

fn decode_timeout(table: &Table, timeout_ns: i64) -> Result<u64, EntityError> {
    let timeout_ns = unsigned(timeout_ns, "idle_timeout_ns")?;
    if timeout_ns != 0 && !table.idle_timeout {
        return Err(EntityError::invalid("entries of the table have no idle timeout"));
    }
    Ok(timeout_ns)
}

/// Decodes the direct resources of a write. The table must have these resources; meter counters may only be reset.
fn decode_written_resources(table: &Table, entry: &v1::TableEntry) -> Result<DirectResources, EntityError> {
    let resources = decode_resources(table, entry)?;
    if resources
        .meter_counters
        .is_some_and(|counters| counters != MeterCounters::default())
    {
        return Err(EntityError::invalid(
            "meter_counter_data can only be reset: all values must be 0",
        ));
    }
    Ok(resources)
}

fn decode_resources(table: &Table, entry: &v1::TableEntry) -> Result<DirectResources, EntityError> {
    if entry.counter_data.is_some() && table.counter.is_none() {
        return Err(EntityError::invalid(
            "counter_data is not allowed: the table has no direct counter",
        ));
    }
    let meter = match &table.meter {
        None if entry.meter_config.is_some() || entry.meter_counter_data.is_some() => {
            return Err(EntityError::invalid(
                "meter_config and meter_counter_data are not allowed: the table has no direct meter",
            ));
        }
        None => None,
        Some(meter) => entry
            .meter_config
            .as_ref()
            .map(|config| decode_meter_config(meter.kind, config))
            .transpose()?,
    };
    let counter = entry
        .counter_data
        .as_ref()
        .map(CounterData::try_from)
        .transpose()?;
    let meter_counters = entry
        .meter_counter_data
        .as_ref()
        .map(decode_counters)
        .transpose()?;
    Ok(DirectResources {
        counter,
        meter,
        meter_counters,
    })
}
