//! Conversion of entry keys between P4Runtime (order of the P4Info) and the switch (order of the program).

use linewarden_p4runtime::bytes::Bits;
use linewarden_p4runtime::entity::{EntryKey, FieldMatch as P4rtMatch};
use linewarden_p4runtime::error::EntityError;
use linewarden_p4runtime::p4info::{self, Format, MatchKind as P4InfoMatchKind};
use num_bigint::BigUint;

use super::binding::TableBinding;
use super::values::bits;
use crate::tables::{FieldMatch, KeySpec, MatchKey, MatchKind, Priority};

impl TableBinding {
    /// Converts a P4Runtime key to a match key.
    pub(super) fn key(&self, spec: &KeySpec, key: &EntryKey) -> Result<MatchKey, EntityError> {
        let mut matches = Vec::with_capacity(self.field_positions.len());
        for (position, field) in self.field_positions.iter().zip(spec.fields()) {
            let p4rt_match = key.fields.get(*position);
            let p4rt_match = p4rt_match.ok_or_else(|| EntityError::invalid("key has too few fields"))?;
            matches.push(field_match(field.kind, p4rt_match));
        }
        let priority = if spec.has_priority() {
            Priority::from_p4runtime(key.priority)
        } else {
            Priority::default()
        };
        spec.key(&matches, priority)
            .map_err(|error| EntityError::invalid(error.to_string()))
    }

    /// Converts a match key to a P4Runtime key.
    pub(super) fn to_p4runtime_key(&self, table: &p4info::Table, spec: &KeySpec, key: &MatchKey) -> EntryKey {
        let matches = spec.matches(key);
        let field = |(index, field): (usize, &p4info::MatchField)| {
            let position = self
                .field_positions
                .iter()
                .position(|candidate| *candidate == index)?;
            Some(to_p4runtime_match(field, matches.get(position)?))
        };
        EntryKey {
            table: table.id,
            fields: table.fields.iter().enumerate().filter_map(field).collect(),
            priority: if spec.has_priority() {
                key.priority().to_p4runtime()
            } else {
                0
            },
        }
    }
}

fn bytes(bits: &Bits) -> Vec<u8> {
    bits.as_bytes().to_vec()
}

fn field_match(kind: MatchKind, p4rt_match: &P4rtMatch) -> FieldMatch {
    match p4rt_match {
        P4rtMatch::Exact(value) if kind == MatchKind::Valid => FieldMatch::Valid(!value.is_zero()),
        P4rtMatch::Exact(value) => FieldMatch::Exact(bytes(value)),
        P4rtMatch::Lpm { value, prefix_bits } => FieldMatch::Lpm {
            value: bytes(value),
            prefix_bits: *prefix_bits,
        },
        P4rtMatch::Ternary { value, mask } => FieldMatch::Ternary {
            value: bytes(value),
            mask: bytes(mask),
        },
        P4rtMatch::Range { low, high } => FieldMatch::Range {
            low: bytes(low),
            high: bytes(high),
        },
        P4rtMatch::Optional(value) => FieldMatch::Optional(value.as_ref().map(bytes)),
    }
}

fn to_p4runtime_match(field: &p4info::MatchField, key_match: &FieldMatch) -> P4rtMatch {
    let width = match field.format {
        Format::Bits(width) => width,
        Format::Unwritable => 1,
    };
    let value = |bytes: &[u8]| bits(width, &BigUint::from_bytes_be(bytes));
    match key_match {
        FieldMatch::Exact(exact) => P4rtMatch::Exact(value(exact)),
        FieldMatch::Valid(valid) => P4rtMatch::Exact(value(&[u8::from(*valid)])),
        FieldMatch::Lpm {
            value: prefix,
            prefix_bits,
        } => P4rtMatch::Lpm {
            value: value(prefix),
            prefix_bits: *prefix_bits,
        },
        // The JSON describes optional fields as ternary.
        FieldMatch::Ternary { value: exact, mask } if field.kind == P4InfoMatchKind::Optional => {
            P4rtMatch::Optional((!value(mask).is_zero()).then(|| value(exact)))
        }
        FieldMatch::Ternary { value: pattern, mask } => P4rtMatch::Ternary {
            value: value(pattern),
            mask: value(mask),
        },
        FieldMatch::Optional(exact) => P4rtMatch::Optional(exact.as_deref().map(value)),
        FieldMatch::Range { low, high } => P4rtMatch::Range {
            low: value(low),
            high: value(high),
        },
    }
}
