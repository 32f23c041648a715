//! The built-in program `lap`, and its tables, registers and actions by name.

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

/// The output of p4c for p4/lap.p4. A test of the switch compares this output with the sources.
const JSON: &[u8] = include_bytes!("../../../../p4/compiled/lap.json");
const INFO: &str = include_str!("../../../../p4/compiled/lap.p4info.txtpb");

/// Maximum number of devices: the program has registers for this number (`DEVICES` in p4/include/lap_frame.p4).
pub const DEVICES: u32 = 65_536;

/// Maximum number of provers: the program has registers for this number (`PROVERS` in p4/include/proof.p4).
pub const PROVERS: u32 = 65_536;

/// Maximum number of rows in the program's table (the size of `rows` in p4/include/lap_state.p4).
pub(super) const ROWS: u64 = 1_048_576;

/// An action and its arguments.
type ActionCall<'a> = (&'static str, &'a [u128]);

/// Builds updates from the program's names.
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

    /// Id and width of a register.
    pub fn register(&self, name: &'static str) -> Result<(RegisterId, u32), SwitchError> {
        let register = self.info.registers().by_name_or_alias(name);
        match register.map(|register| (register.id, &*register.data)) {
            Some((id, Type::Bits(width))) => Ok((id, *width)),
            _ => Err(SwitchError::ProgramMismatch(name)),
        }
    }

    /// An update that writes one cell.
    pub fn set_cell(&self, name: &'static str, index: u32, value: u128) -> Result<Update, SwitchError> {
        let (id, width) = self.register(name)?;
        Ok(Update::Register {
            id,
            index: Some(index.into()),
            data: Data::Bits(bits(name, width, value)?),
        })
    }

    pub fn digest(&self, name: &'static str) -> Result<DigestId, SwitchError> {
        let digest = self.info.digests().by_name_or_alias(name);
        Ok(digest.ok_or(SwitchError::ProgramMismatch(name))?.id)
    }

    /// A table key of exact fields.
    pub fn key(&self, table: &'static str, fields: &[u128]) -> Result<EntryKey, SwitchError> {
        let mismatch = || SwitchError::ProgramMismatch(table);
        let table_info = self.info.tables().by_name_or_alias(table).ok_or_else(mismatch)?;
        if table_info.fields.len() != fields.len() {
            return Err(mismatch());
        }
        let exact = table_info.fields.iter().zip(fields).map(|(field, value)| {
            let Format::Bits(width) = field.format else {
                return Err(mismatch());
            };
            bits(table, width, *value).map(FieldMatch::Exact)
        });
        Ok(EntryKey {
            table: table_info.id,
            fields: exact.collect::<Result<_, _>>()?,
            priority: 0,
        })
    }

    fn action(&self, name: &'static str, values: &[u128]) -> Result<Action, SwitchError> {
        let mismatch = || SwitchError::ProgramMismatch(name);
        let action = self.info.actions().by_name_or_alias(name).ok_or_else(mismatch)?;
        if action.params.len() != values.len() {
            return Err(mismatch());
        }
        let params = action.params.iter().zip(values).map(|(param, value)| {
            let Format::Bits(width) = param.format else {
                return Err(mismatch());
            };
            bits(name, width, *value)
        });
        Ok(Action {
            id: action.id,
            params: params.collect::<Result<_, _>>()?,
        })
    }

    /// An update that inserts an entry.
    pub fn insert(&self, key: (&'static str, &[u128]), call: ActionCall<'_>) -> Result<Update, SwitchError> {
        let entry = self.entry(key, call)?;
        Ok(Update::TableEntry(Box::new(Change::Insert(entry))))
    }

    /// An update that changes the action of an entry.
    pub fn modify(&self, key: (&'static str, &[u128]), call: ActionCall<'_>) -> Result<Update, SwitchError> {
        let entry = self.entry(key, call)?;
        Ok(Update::TableEntry(Box::new(Change::Modify(entry))))
    }

    fn entry(
        &self,
        (table, fields): (&'static str, &[u128]),
        (action, values): ActionCall<'_>,
    ) -> Result<TableEntry, SwitchError> {
        Ok(TableEntry::new(
            self.key(table, fields)?,
            EntryAction::Action(self.action(action, values)?),
        ))
    }

    /// Changes an entry of a table with one prefix field, given by value and length, from one action without
    /// arguments to another. An action `None` means that there is no entry. Returns no update if both actions are
    /// equal.
    pub fn change_prefix(
        &self,
        table: &'static str,
        (value, prefix_bits): (u128, u32),
        actions: [Option<&'static str>; 2],
    ) -> Result<Option<Update>, SwitchError> {
        let mismatch = || SwitchError::ProgramMismatch(table);
        let table_info = self.info.tables().by_name_or_alias(table).ok_or_else(mismatch)?;
        let [Format::Bits(width)] = table_info
            .fields
            .iter()
            .map(|field| field.format)
            .collect::<Vec<_>>()[..]
        else {
            return Err(mismatch());
        };
        let key = EntryKey {
            table: table_info.id,
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

    /// Sets the action of a table for packets without an entry.
    pub fn set_default(
        &self,
        table: &'static str,
        action: &'static str,
        values: &[u128],
    ) -> Result<Update, SwitchError> {
        let table_info = self.info.tables().by_name_or_alias(table);
        Ok(Update::DefaultEntry(Box::new(DefaultEntry {
            table: table_info.ok_or(SwitchError::ProgramMismatch(table))?.id,
            action: Some(self.action(action, values)?),
            controller_metadata: 0,
            metadata: Vec::new(),
            resources: DirectResources::default(),
            is_const: false,
        })))
    }
}

fn bits(field: &'static str, width: u32, value: u128) -> Result<Bits, SwitchError> {
    Bits::from_u128(width, value).ok_or(SwitchError::ProgramMismatch(field))
}

/// A value of at most 128 bits as a number.
pub(super) fn number(bits: &Bits) -> u128 {
    bits.as_bytes()
        .iter()
        .fold(0, |sum, byte| sum << 8 | u128::from(*byte))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use linewarden_evidence::CHANGING_OBJECTS;

    use super::*;

    #[test]
    fn changing_objects_are_tables_and_all_registers_of_the_program() {
        let info = P4Info::from_text(INFO).unwrap();
        let names = |kind: &str| {
            let names = CHANGING_OBJECTS.iter().filter_map(|name| name.strip_prefix(kind));
            names.collect::<BTreeSet<_>>()
        };
        for table in names("table:LapIngress.") {
            assert!(info.tables().by_name_or_alias(table).is_some(), "{table}");
        }
        let registers: BTreeSet<&str> = info.registers().iter().map(|register| &*register.name).collect();
        assert_eq!(names("register:"), registers);
    }
}
