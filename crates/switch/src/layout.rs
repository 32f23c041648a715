//! Memory layout of a packet's headers and metadata during processing: one byte arena per packet.
//!
//! ```text
//! | guard | valid, one byte a header | stacks' counts | lengths | metadata | headers, as on the wire | guard |
//! ```
//!
//! A header keeps its wire format, so extraction and emission are copies; a metadata field has bytes of its own. A field
//! of up to 57 bits is within the 8 bytes before its end, a field of up to 121 bits within the 16 bytes before its end,
//! so one load, one shift and one mask read such a field. These loads may start before the first field, in the guard.

use serde::Serialize;

use crate::program::ids::{FieldRef, HeaderId, StackId, UnionId, UnionStackId};
use crate::program::{HeaderType, Program};

/// Number of guard bytes before the first field and after the last field. A load may touch these bytes.
const GUARD_BYTES: u32 = 16;

/// Maximum size of an arena, bytes: typical programs need a few KiB.
pub const ARENA_BYTES_MAX: u32 = 1 << 24;

/// Location of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FieldLayout {
    /// Offset of the byte after the field's last byte.
    pub end: u32,
    /// Number of bits below the field in its last byte.
    pub shift: u8,
    /// Width, bits.
    pub bits: u32,
    /// Whether the values are signed.
    pub signed: bool,
    /// Whether values saturate instead of wrapping.
    pub saturating: bool,
    /// Whether the field has variable length: then its bytes start at `end - bytes(bits)`.
    pub variable: bool,
    /// Whether the 8 bytes before `end` belong to this field only and are 0 above the field.
    pub has_own_word: bool,
}

impl FieldLayout {
    /// Offset of the first byte.
    #[must_use]
    pub const fn start(&self) -> u32 {
        self.end - (self.bits + self.shift as u32).div_ceil(8)
    }

    /// Whether the field consists of whole bytes.
    #[must_use]
    pub const fn whole_bytes(&self) -> bool {
        self.shift == 0 && self.bits.is_multiple_of(8)
    }
}

/// Variable-length field of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct VariableField {
    /// Index of the field.
    pub field: u32,
    /// Offset of the field's length in bits (4 bytes, big-endian).
    pub length: u32,
    /// Offset of the field's bytes.
    pub bytes: u32,
    /// Maximum width, bits.
    pub bits_max: u32,
    /// Number of header bits before the field.
    pub bits_before: u32,
}

/// Location of a header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeaderLayout {
    /// Offset of the validity (1 byte).
    pub valid: u32,
    /// Offset of the fixed-width fields.
    pub start: u32,
    /// Length of the fixed-width fields, bytes.
    pub bytes: u32,
    /// Whether the header is metadata.
    pub metadata: bool,
    /// Fields; the hidden validity field is last.
    pub fields: Vec<FieldLayout>,
    /// Variable-length field.
    pub variable: Option<VariableField>,
    /// Union that the header is a member of.
    pub union: Option<UnionId>,
}

/// Layout of an arena.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Layout {
    /// Size of the arena, bytes.
    pub bytes: u32,
    /// Range of the metadata, zeroed on reset.
    pub metadata: std::ops::Range<u32>,
    /// Location of each header.
    pub headers: Vec<HeaderLayout>,
    /// Offset of the element count (2 bytes) of each stack.
    pub stacks: Vec<u32>,
    /// Offset of the element count (2 bytes) of each union stack.
    pub union_stacks: Vec<u32>,
}

impl Layout {
    /// Computes the layout of a program's headers; `None` if the headers exceed [`ARENA_BYTES_MAX`].
    #[must_use]
    pub fn of(program: &Program) -> Option<Self> {
        let mut offset = GUARD_BYTES;
        let count = u32::try_from(program.headers.len()).ok()?;
        let valid = offset;
        offset += count;
        let stacks = program
            .stacks
            .iter()
            .map(|_| advance(&mut offset, 2))
            .collect::<Option<Vec<_>>>()?;
        let union_stacks = program
            .union_stacks
            .iter()
            .map(|_| advance(&mut offset, 2))
            .collect::<Option<Vec<_>>>()?;
        let mut lengths = Vec::new();
        for header in &program.headers {
            let header_type = program.types.get(header.header_type.index())?;
            lengths.push(match header_type.variable() {
                Some(_) => Some(advance(&mut offset, 4)?),
                None => None,
            });
        }
        offset = offset.next_multiple_of(8);
        let mut headers: Vec<Option<HeaderLayout>> = vec![None; program.headers.len()];
        let metadata_start = offset;
        for metadata in [true, false] {
            let metadata_end = offset;
            for (index, header) in program.headers.iter().enumerate() {
                if header.metadata != metadata {
                    continue;
                }
                let header_type = program.types.get(header.header_type.index())?;
                let valid = valid + u32::try_from(index).ok()?;
                let length = lengths.get(index).copied().flatten();
                let layout = if metadata {
                    layout_metadata(header_type, valid, length, &mut offset)?
                } else {
                    layout_packet_header(header_type, valid, length, &mut offset)?
                };
                *headers.get_mut(index)? = Some(layout);
            }
            if metadata {
                continue;
            }
            let mut layouts = headers.into_iter().collect::<Option<Vec<_>>>()?;
            join_unions(program, &mut layouts);
            return Some(Self {
                bytes: offset + GUARD_BYTES,
                metadata: metadata_start..metadata_end,
                headers: layouts,
                stacks,
                union_stacks,
            });
        }
        None
    }

    /// Location of a header.
    #[must_use]
    pub fn header(&self, header: HeaderId) -> Option<&HeaderLayout> {
        self.headers.get(header.index())
    }

    /// Location of a field.
    #[must_use]
    pub fn field(&self, field: FieldRef) -> Option<FieldLayout> {
        self.header(field.header)?
            .fields
            .get(field.field as usize)
            .copied()
    }

    /// Offset of the count of a stack.
    #[must_use]
    pub fn stack(&self, stack: StackId) -> Option<u32> {
        self.stacks.get(stack.index()).copied()
    }

    /// Offset of the count of a union stack.
    #[must_use]
    pub fn union_stack(&self, stack: UnionStackId) -> Option<u32> {
        self.union_stacks.get(stack.index()).copied()
    }
}

fn join_unions(program: &Program, headers: &mut [HeaderLayout]) {
    for (index, union) in (0u32..).zip(&program.unions) {
        for header in &union.headers {
            if let Some(layout) = headers.get_mut(header.index()) {
                layout.union = Some(UnionId(index));
            }
        }
    }
}

fn validity_field(valid: u32) -> FieldLayout {
    FieldLayout {
        end: valid + 1,
        shift: 0,
        bits: 1,
        signed: false,
        saturating: false,
        variable: false,
        has_own_word: false,
    }
}

fn advance(offset: &mut u32, bytes: u32) -> Option<u32> {
    let start = *offset;
    *offset = offset
        .checked_add(bytes)
        .filter(|end| *end < ARENA_BYTES_MAX - GUARD_BYTES)?;
    Some(start)
}

/// Layout of metadata: every field has bytes of its own; fields of up to 64 bits have 8 aligned bytes.
fn layout_metadata(
    header_type: &HeaderType,
    valid: u32,
    length: Option<u32>,
    offset: &mut u32,
) -> Option<HeaderLayout> {
    let start = *offset;
    let mut fields = Vec::new();
    let mut variable = None;
    for field in &header_type.fields {
        let bytes = if field.bits <= 64 {
            8
        } else {
            field.bits.div_ceil(8).next_multiple_of(8)
        };
        if field.variable {
            let begin = advance(offset, bytes)?;
            variable = Some(VariableField {
                field: u32::try_from(fields.len()).ok()?,
                length: length?,
                bytes: begin,
                bits_max: field.bits,
                bits_before: 0,
            });
            let bytes_max = field.bits.div_ceil(8);
            fields.push(FieldLayout {
                end: begin + bytes_max,
                shift: 0,
                bits: bytes_max * 8,
                signed: false,
                saturating: false,
                variable: true,
                has_own_word: false,
            });
            continue;
        }
        let end = advance(offset, bytes)? + bytes;
        fields.push(FieldLayout {
            end,
            shift: 0,
            bits: field.bits,
            signed: field.signed,
            saturating: field.saturating,
            variable: false,
            has_own_word: field.bits <= 64,
        });
    }
    fields.push(validity_field(valid));
    Some(HeaderLayout {
        valid,
        start,
        bytes: *offset - start,
        metadata: true,
        fields,
        variable,
        union: None,
    })
}

/// Layout of a packet header: fixed fields in wire format as if the variable-length field were empty; the
/// variable-length field follows separately.
fn layout_packet_header(
    header_type: &HeaderType,
    valid: u32,
    length: Option<u32>,
    offset: &mut u32,
) -> Option<HeaderLayout> {
    let bytes = header_type.fixed_bits().div_ceil(8);
    let start = advance(offset, bytes)?;
    let mut bit = 0;
    let mut fields = Vec::new();
    let mut variable = None;
    for (index, field) in (0u32..).zip(&header_type.fields) {
        if field.variable {
            let bytes_max = field.bits.div_ceil(8);
            let begin = advance(offset, bytes_max)?;
            variable = Some(VariableField {
                field: index,
                length: length?,
                bytes: begin,
                bits_max: field.bits,
                bits_before: bit,
            });
            fields.push(FieldLayout {
                end: begin + bytes_max,
                shift: 0,
                bits: bytes_max * 8,
                signed: false,
                saturating: false,
                variable: true,
                has_own_word: false,
            });
            continue;
        }
        let last = bit + field.bits;
        fields.push(FieldLayout {
            end: start + last.div_ceil(8),
            shift: u8::try_from(last.next_multiple_of(8) - last).ok()?,
            bits: field.bits,
            signed: field.signed,
            saturating: field.saturating,
            variable: false,
            has_own_word: false,
        });
        bit = last;
    }
    fields.push(validity_field(valid));
    // The next header starts in a new 8-byte word, so fewer loads overlap a store to another header.
    let next = offset.next_multiple_of(8);
    *offset = next;
    Some(HeaderLayout {
        valid,
        start,
        bytes,
        metadata: false,
        fields,
        variable,
        union: None,
    })
}
