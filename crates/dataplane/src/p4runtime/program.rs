//! The program `lap` as it is built in, and its tables, registers and actions by name.

use std::sync::Arc;

use linewarden_p4runtime::bytes::Bits;
use linewarden_p4runtime::data::Data;
use linewarden_p4runtime::entity::{
    Action, Change, DefaultEntry, DirectResources, EntryAction, EntryKey, FieldMatch, TableEntry, Update,
};
use linewarden_p4runtime::ids::{DigestId, RegisterId};
use linewarden_p4runtime::p4info::{Format, P4Info, Type};
use linewarden_p4runtime::target::Pipeline;

use super::error::SwitchError;

/// What p4c made of p4/lap.p4; a test of the switch compares it with its sources.
const JSON: &[u8] = include_bytes!("../../../../p4/compiled/lap.json");
const INFO: &str = include_str!("../../../../p4/compiled/lap.p4info.txtpb");

/// Devices that the program has registers for (`DEVICES` in p4/include/lap_frame.p4).
pub const DEVICES: u32 = 65_536;

/// Provers that the program has registers for (`PROVERS` in p4/include/proof.p4).
pub const PROVERS: u32 = 65_536;

/// Rows that the program has room for (the size of `rows` in p4/include/lap_state.p4).
pub(super) const ROWS: u64 = 1_048_576;

/// Entries that come and go with devices, provers and periods.
const CHANGING_TABLES: [&str; 7] = [
    "devices",
    "rows",
    "keys",
    "enrolled",
    "expected",
    "provers",
    "proof_keys",
];

/// What changes all the time while a gateway serves, as `linewarden_evidence` names it: what devices bring along and spend, and what
/// the pipeline writes. No reference values have it.
#[must_use]
pub fn changing_objects() -> Vec<String> {
    // What cannot be read could not be run either.
    let Ok(info) = P4Info::from_text(INFO) else {
        return Vec::new();
    };
    let tables = CHANGING_TABLES.into_iter();
    let tables = tables.filter_map(|name| info.tables().named(name));
    let tables = tables.map(|table| format!("table:{}", table.name));
    let registers = info.registers().iter();
    let registers = registers.map(|register| format!("register:{}", register.name));
    tables.chain(registers).collect()
}

/// An action and its arguments.
type Does<'a> = (&'static str, &'a [u128]);

/// Updates in the program's own names.
#[derive(Debug)]
pub(super) struct Program {
    info: Arc<P4Info>,
}

impl Program {
    pub fn new() -> Result<Self, SwitchError> {
        Ok(Self {
            info: Arc::new(P4Info::from_text(INFO)?),
        })
    }

    pub fn pipeline(&self) -> Pipeline {
        Pipeline {
            info: self.info.clone(),
            device_config: JSON.into(),
            cookie: None,
        }
    }

    pub fn info(&self) -> &P4Info {
        &self.info
    }

    /// A cell's number and width.
    pub fn register(&self, name: &'static str) -> Result<(RegisterId, u32), SwitchError> {
        let register = self.info.registers().named(name);
        match register.map(|register| (register.id, &*register.data)) {
            Some((id, Type::Bits(width))) => Ok((id, *width)),
            _ => Err(SwitchError::Program(name)),
        }
    }

    /// Writes one cell.
    pub fn cell(&self, name: &'static str, index: u32, value: u128) -> Result<Update, SwitchError> {
        let (id, width) = self.register(name)?;
        Ok(Update::Register {
            id,
            index: Some(index.into()),
            data: Data::Bits(bits(name, width, value)?),
        })
    }

    pub fn digest(&self, name: &'static str) -> Result<DigestId, SwitchError> {
        let digest = self.info.digests().named(name);
        Ok(digest.ok_or(SwitchError::Program(name))?.id)
    }

    /// A key of exact fields.
    pub fn key(&self, table: &'static str, fields: &[u128]) -> Result<EntryKey, SwitchError> {
        let wrong = || SwitchError::Program(table);
        let found = self.info.tables().named(table).ok_or_else(wrong)?;
        if found.fields.len() != fields.len() {
            return Err(wrong());
        }
        let exact = found.fields.iter().zip(fields).map(|(field, value)| {
            let Format::Bits(width) = field.format else {
                return Err(wrong());
            };
            bits(table, width, *value).map(FieldMatch::Exact)
        });
        Ok(EntryKey {
            table: found.id,
            fields: exact.collect::<Result<_, _>>()?,
            priority: 0,
        })
    }

    fn action(&self, name: &'static str, values: &[u128]) -> Result<Action, SwitchError> {
        let wrong = || SwitchError::Program(name);
        let action = self.info.actions().named(name).ok_or_else(wrong)?;
        if action.params.len() != values.len() {
            return Err(wrong());
        }
        let params = action.params.iter().zip(values).map(|(param, value)| {
            let Format::Bits(width) = param.format else {
                return Err(wrong());
            };
            bits(name, width, *value)
        });
        Ok(Action {
            id: action.id,
            params: params.collect::<Result<_, _>>()?,
        })
    }

    /// A new entry of a table.
    pub fn insert(&self, key: (&'static str, &[u128]), does: Does<'_>) -> Result<Update, SwitchError> {
        let entry = self.entry(key, does)?;
        Ok(Update::TableEntry(Box::new(Change::Insert(entry))))
    }

    /// Another action for an entry that is there.
    pub fn modify(&self, key: (&'static str, &[u128]), does: Does<'_>) -> Result<Update, SwitchError> {
        let entry = self.entry(key, does)?;
        Ok(Update::TableEntry(Box::new(Change::Modify(entry))))
    }

    fn entry(
        &self,
        (table, fields): (&'static str, &[u128]),
        (action, values): Does<'_>,
    ) -> Result<TableEntry, SwitchError> {
        Ok(TableEntry::new(
            self.key(table, fields)?,
            EntryAction::Action(self.action(action, values)?),
        ))
    }

    /// An entry of a table whose one field is a prefix, value and length, from one action without arguments to another; `None`: it is
    /// not there. Nothing where both are the same.
    pub fn change_prefix(
        &self,
        table: &'static str,
        (value, prefix_bits): (u128, u32),
        actions: [Option<&'static str>; 2],
    ) -> Result<Option<Update>, SwitchError> {
        let wrong = || SwitchError::Program(table);
        let found = self.info.tables().named(table).ok_or_else(wrong)?;
        let [Format::Bits(width)] = found.fields.iter().map(|field| field.format).collect::<Vec<_>>()[..]
        else {
            return Err(wrong());
        };
        let key = EntryKey {
            table: found.id,
            fields: vec![FieldMatch::Lpm {
                value: bits(table, width, value)?,
                prefix_bits,
            }],
            priority: 0,
        };
        let change = match actions {
            [before, now] if before == now => return Ok(None),
            [_, None] => Change::Delete(key),
            [None, Some(action)] => Change::Insert(self.prefix_entry(key, action)?),
            [Some(_), Some(action)] => Change::Modify(self.prefix_entry(key, action)?),
        };
        Ok(Some(Update::TableEntry(Box::new(change))))
    }

    fn prefix_entry(&self, key: EntryKey, action: &'static str) -> Result<TableEntry, SwitchError> {
        let action = EntryAction::Action(self.action(action, &[])?);
        Ok(TableEntry::new(key, action))
    }

    pub fn delete(&self, table: &'static str, fields: &[u128]) -> Result<Update, SwitchError> {
        let key = self.key(table, fields)?;
        Ok(Update::TableEntry(Box::new(Change::Delete(key))))
    }

    /// What a table does with a packet that no entry is for.
    pub fn set_default(
        &self,
        table: &'static str,
        action: &'static str,
        values: &[u128],
    ) -> Result<Update, SwitchError> {
        let found = self.info.tables().named(table);
        Ok(Update::DefaultEntry(Box::new(DefaultEntry {
            table: found.ok_or(SwitchError::Program(table))?.id,
            action: Some(self.action(action, values)?),
            controller_metadata: 0,
            metadata: Vec::new(),
            resources: DirectResources::default(),
            is_const: false,
        })))
    }
}

fn bits(what: &'static str, width: u32, value: u128) -> Result<Bits, SwitchError> {
    Bits::from_u128(width, value).ok_or(SwitchError::Program(what))
}

/// The number that a value of at most 128 bits is.
pub(super) fn number(bits: &Bits) -> u128 {
    bits.as_bytes()
        .iter()
        .fold(0, |sum, byte| sum << 8 | u128::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_changes_is_in_the_program() {
        let changing = changing_objects();
        let registers = P4Info::from_text(INFO).unwrap().registers().iter().count();
        assert_eq!(changing.len(), CHANGING_TABLES.len() + registers);
        assert!(registers > 0 && changing.contains(&"table:LapIngress.expected".to_owned()));
    }
}
