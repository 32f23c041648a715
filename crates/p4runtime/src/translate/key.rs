//! Table keys and value set members (9.1.1).

use super::{Translator, unknown_id};
use crate::bytes::Bits;
use crate::entity::{EntryKey, FieldMatch};
use crate::error::EntityError;
use crate::ids::TableId;
use crate::p4info::{Format, MatchField, MatchKind, Table};
use crate::proto::v1;
use v1::field_match::{self, FieldMatchType};

impl<'a> Translator<'a> {
    /// Table of an update or read request.
    pub(super) fn table(&self, id: u32) -> Result<&'a Table, EntityError> {
        self.info
            .tables()
            .get(TableId(id))
            .ok_or_else(|| unknown_id("table", id))
    }

    /// Decodes the identity of a table entry.
    pub(super) fn decode_key(&self, table: &Table, entry: &v1::TableEntry) -> Result<EntryKey, EntityError> {
        let fields = decode_fields(&table.fields, &entry.r#match)?;
        match (table.needs_priority(), entry.priority) {
            (true, priority) if priority <= 0 => Err(EntityError::invalid(format!(
                "priority {priority} is invalid: a key with ternary, range or optional fields requires a priority of at least 1"
            ))),
            (false, priority) if priority != 0 => Err(EntityError::invalid(format!(
                "priority {priority} is not allowed: the key has no ternary, range or optional field"
            ))),
            (_, priority) => Ok(EntryKey {
                table: table.id,
                fields,
                priority,
            }),
        }
    }

    /// Encodes a message that has only the key of an entry.
    pub(super) fn encode_key(&self, key: &EntryKey) -> v1::TableEntry {
        let fields = self
            .info
            .tables()
            .get(key.table)
            .map(|table| table.fields.as_slice())
            .unwrap_or_default();
        v1::TableEntry {
            table_id: key.table.0,
            r#match: encode_fields(fields, &key.fields),
            priority: key.priority,
            ..Default::default()
        }
    }
}

/// Decodes one match for each field, in the order of the P4Info; an omitted field is don't care.
pub(super) fn decode_fields(
    fields: &[MatchField],
    matches: &[v1::FieldMatch],
) -> Result<Vec<FieldMatch>, EntityError> {
    for (index, message) in matches.iter().enumerate() {
        if !fields.iter().any(|field| field.id.0 == message.field_id) {
            return Err(unknown_id("match field", message.field_id));
        }
        if matches
            .iter()
            .take(index)
            .any(|earlier| earlier.field_id == message.field_id)
        {
            return Err(EntityError::invalid(format!(
                "duplicate match field {}",
                message.field_id
            )));
        }
    }
    let decode = |field: &MatchField| {
        let message = matches.iter().find(|message| message.field_id == field.id.0);
        decode_field(field, message)
            .map_err(|error| error.at(format!("match field \"{}\"", field_name(field))))
    };
    fields.iter().map(decode).collect()
}

fn decode_field(field: &MatchField, message: Option<&v1::FieldMatch>) -> Result<FieldMatch, EntityError> {
    let width = match field.format {
        Format::Bits(width) => width,
        Format::Unwritable => return Err(unwritable_error()),
    };
    let Some(message) = message else {
        return dont_care(field.kind, width);
    };
    let value = message
        .field_match_type
        .as_ref()
        .ok_or_else(|| EntityError::invalid("value is missing"))?;
    match (field.kind, value) {
        (MatchKind::Exact, FieldMatchType::Exact(exact)) => {
            Ok(FieldMatch::Exact(Bits::parse(width, &exact.value)?))
        }
        (MatchKind::Lpm, FieldMatchType::Lpm(lpm)) => decode_lpm(width, lpm),
        (MatchKind::Ternary, FieldMatchType::Ternary(ternary)) => decode_ternary(width, ternary),
        (MatchKind::Range, FieldMatchType::Range(range)) => decode_range(width, range),
        (MatchKind::Optional, FieldMatchType::Optional(optional)) => {
            Ok(FieldMatch::Optional(Some(Bits::parse(width, &optional.value)?)))
        }
        (kind, _) => Err(EntityError::invalid(format!(
            "match kind differs: expected {}",
            kind_name(kind)
        ))),
    }
}

fn dont_care(kind: MatchKind, width: u32) -> Result<FieldMatch, EntityError> {
    match kind {
        MatchKind::Exact => Err(EntityError::invalid("exact match field is missing")),
        MatchKind::Lpm => Ok(FieldMatch::Lpm {
            value: Bits::zero(width),
            prefix_bits: 0,
        }),
        MatchKind::Ternary => Ok(FieldMatch::Ternary {
            value: Bits::zero(width),
            mask: Bits::zero(width),
        }),
        MatchKind::Range => Ok(FieldMatch::Range {
            low: Bits::zero(width),
            high: Bits::ones(width),
        }),
        MatchKind::Optional => Ok(FieldMatch::Optional(None)),
        MatchKind::Other => Err(EntityError::unimplemented(
            "match kind is not supported by P4Runtime",
        )),
    }
}

fn decode_lpm(width: u32, lpm: &field_match::Lpm) -> Result<FieldMatch, EntityError> {
    let value = Bits::parse(width, &lpm.value)?;
    let prefix_bits = u32::try_from(lpm.prefix_len)
        .ok()
        .filter(|bits| (1..=width).contains(bits))
        .ok_or_else(|| {
            EntityError::invalid(match lpm.prefix_len {
                0 => "prefix length 0 matches any value: omit the field".to_owned(),
                bits => format!("prefix length {bits} is out of range: the field has {width} bits"),
            })
        })?;
    if !value.is_subset_of(&Bits::prefix(width, prefix_bits)) {
        return Err(EntityError::invalid(format!(
            "value {value} has bits set after its prefix of {prefix_bits} bits"
        )));
    }
    Ok(FieldMatch::Lpm { value, prefix_bits })
}

fn decode_ternary(width: u32, ternary: &field_match::Ternary) -> Result<FieldMatch, EntityError> {
    let value = Bits::parse(width, &ternary.value)?;
    let mask = Bits::parse(width, &ternary.mask)?;
    if mask.is_zero() {
        return Err(EntityError::invalid("mask 0 matches any value: omit the field"));
    }
    if !value.is_subset_of(&mask) {
        return Err(EntityError::invalid(format!(
            "value {value} has bits set outside its mask {mask}"
        )));
    }
    Ok(FieldMatch::Ternary { value, mask })
}

fn decode_range(width: u32, range: &field_match::Range) -> Result<FieldMatch, EntityError> {
    let (low, high) = (Bits::parse(width, &range.low)?, Bits::parse(width, &range.high)?);
    if low > high {
        return Err(EntityError::invalid(format!(
            "low bound {low} exceeds high bound {high}"
        )));
    }
    let decoded = FieldMatch::Range { low, high };
    if decoded.is_any() {
        return Err(EntityError::invalid(
            "the range matches any value: omit the field",
        ));
    }
    Ok(decoded)
}

/// Encodes matches in the order of the P4Info, without don't-care fields.
pub(super) fn encode_fields(fields: &[MatchField], matches: &[FieldMatch]) -> Vec<v1::FieldMatch> {
    let encode = |(field, key_match): (&MatchField, &FieldMatch)| {
        if key_match.is_any() {
            return None;
        }
        let bytes = |bits: &Bits| bits.canonical().to_vec();
        let encoded = match key_match {
            FieldMatch::Exact(value) => FieldMatchType::Exact(field_match::Exact { value: bytes(value) }),
            FieldMatch::Lpm { value, prefix_bits } => FieldMatchType::Lpm(field_match::Lpm {
                value: bytes(value),
                prefix_len: i32::try_from(*prefix_bits).unwrap_or(i32::MAX),
            }),
            FieldMatch::Ternary { value, mask } => FieldMatchType::Ternary(field_match::Ternary {
                value: bytes(value),
                mask: bytes(mask),
            }),
            FieldMatch::Range { low, high } => FieldMatchType::Range(field_match::Range {
                low: bytes(low),
                high: bytes(high),
            }),
            FieldMatch::Optional(value) => FieldMatchType::Optional(field_match::Optional {
                value: bytes(value.as_ref()?),
            }),
        };
        Some(v1::FieldMatch {
            field_id: field.id.0,
            field_match_type: Some(encoded),
        })
    };
    fields.iter().zip(matches).filter_map(encode).collect()
}

/// Error for a field that cannot be written.
pub(super) fn unwritable_error() -> EntityError {
    EntityError::unimplemented(
        "type has no bit<W> representation: translated types of kind sdn_string are not supported",
    )
}

fn field_name(field: &MatchField) -> String {
    if field.name.is_empty() {
        field.id.to_string()
    } else {
        field.name.clone()
    }
}

fn kind_name(kind: MatchKind) -> &'static str {
    match kind {
        MatchKind::Exact => "exact",
        MatchKind::Lpm => "LPM",
        MatchKind::Ternary => "ternary",
        MatchKind::Range => "range",
        MatchKind::Optional => "optional",
        MatchKind::Other => "a match kind that P4Runtime does not define",
    }
}
