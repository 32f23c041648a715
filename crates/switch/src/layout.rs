//! Where a packet's headers and metadata lie while it is processed: one arena of bytes per packet.
//!
//! ```text
//! | guard | valid, one byte a header | stacks' counts | lengths | metadata | headers, as on the wire | guard |
//! ```
//!
//! A header keeps its wire format, so extracting and sending are copies; a field of metadata has bytes of its own.
//! Every field of up to 64 bits is within the 8 bytes that end where it ends, every one of up to 121 bits within
//! 16: one load, one shift, one mask. The guards let those loads reach before the first field.

use serde::Serialize;

use crate::program::ids::{FieldRef, HeaderId, StackId, UnionId, UnionStackId};
use crate::program::{HeaderType, Program};

/// Bytes before the first and behind the last that a load may touch.
const GUARD_BYTES: u32 = 16;

/// The greatest arena: programs of the field need a few KiB.
pub const ARENA_BYTES_MAX: u32 = 1 << 24;

/// Where a field lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The byte behind its last bit's byte.
    pub end: u32,
    /// Bits in that last byte below it.
    pub shift: u8,
    /// Its width.
    pub bits: u32,
    /// Whether its values are signed.
    pub signed: bool,
    /// Whether it takes the nearest value instead of wrapping.
    pub saturating: bool,
    /// Whether this is a field of variable length: then `end - bytes(bits)` is where its bytes begin.
    pub variable: bool,
    /// Whether the 8 bytes that end where it ends are its own, and 0 above it.
    pub own: bool,
}

impl Place {
    /// The first byte that it touches.
    #[must_use]
    pub const fn start(&self) -> u32 {
        self.end - (self.bits + self.shift as u32).div_ceil(8)
    }

    /// Whether it is made of whole bytes.
    #[must_use]
    pub const fn whole_bytes(&self) -> bool {
        self.shift == 0 && self.bits.is_multiple_of(8)
    }
}

/// A header's field of variable length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Variable {
    /// Its position among the fields.
    pub field: u32,
    /// Where its length in bits stands (4 bytes, most significant first).
    pub length: u32,
    /// Where its bytes begin.
    pub bytes: u32,
    /// Most bits that fit.
    pub bits_max: u32,
    /// Bits of the header before it.
    pub bits_before: u32,
}

/// A header's place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeaderPlace {
    /// Where its validity stands (1 byte).
    pub valid: u32,
    /// Where its fields of fixed width begin.
    pub start: u32,
    /// Bytes of them.
    pub bytes: u32,
    /// Whether it is metadata.
    pub metadata: bool,
    /// Its fields, the hidden one last.
    pub fields: Vec<Place>,
    /// Its field of variable length.
    pub variable: Option<Variable>,
    /// The union that it is a member of.
    pub union: Option<UnionId>,
}

/// Where everything lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Layout {
    /// Bytes of the arena.
    pub bytes: u32,
    /// The metadata, zeroed where metadata is reset.
    pub metadata: std::ops::Range<u32>,
    /// By header.
    pub headers: Vec<HeaderPlace>,
    /// Where a stack's number of elements stands (2 bytes), by stack.
    pub stacks: Vec<u32>,
    /// The same by stack of unions.
    pub union_stacks: Vec<u32>,
}

impl Layout {
    /// Lays out a program's headers; none if they need more than [`ARENA_BYTES_MAX`].
    #[must_use]
    pub fn of(program: &Program) -> Option<Self> {
        let mut at = GUARD_BYTES;
        let count = u32::try_from(program.headers.len()).ok()?;
        let valid = at;
        at += count;
        let stacks = program
            .stacks
            .iter()
            .map(|_| advance(&mut at, 2))
            .collect::<Option<Vec<_>>>()?;
        let union_stacks = program
            .union_stacks
            .iter()
            .map(|_| advance(&mut at, 2))
            .collect::<Option<Vec<_>>>()?;
        let mut lengths = Vec::new();
        for header in &program.headers {
            let header_type = program.types.get(header.header_type.index())?;
            lengths.push(match header_type.variable() {
                Some(_) => Some(advance(&mut at, 4)?),
                None => None,
            });
        }
        at = at.next_multiple_of(8);
        let mut headers: Vec<Option<HeaderPlace>> = vec![None; program.headers.len()];
        let metadata_start = at;
        for metadata in [true, false] {
            let metadata_end = at;
            for (index, header) in program.headers.iter().enumerate() {
                if header.metadata != metadata {
                    continue;
                }
                let header_type = program.types.get(header.header_type.index())?;
                let valid = valid + u32::try_from(index).ok()?;
                let length = lengths.get(index).copied().flatten();
                let place = if metadata {
                    lay_metadata(header_type, valid, length, &mut at)?
                } else {
                    lay_packet(header_type, valid, length, &mut at)?
                };
                *headers.get_mut(index)? = Some(place);
            }
            if metadata {
                continue;
            }
            let mut placed = headers.into_iter().collect::<Option<Vec<_>>>()?;
            join_unions(program, &mut placed);
            return Some(Self {
                bytes: at + GUARD_BYTES,
                metadata: metadata_start..metadata_end,
                headers: placed,
                stacks,
                union_stacks,
            });
        }
        None
    }

    /// A header's place.
    #[must_use]
    pub fn header(&self, header: HeaderId) -> Option<&HeaderPlace> {
        self.headers.get(header.index())
    }

    /// A field's place.
    #[must_use]
    pub fn field(&self, field: FieldRef) -> Option<Place> {
        self.header(field.header)?
            .fields
            .get(field.field as usize)
            .copied()
    }

    /// Where a stack's count stands.
    #[must_use]
    pub fn stack(&self, stack: StackId) -> Option<u32> {
        self.stacks.get(stack.index()).copied()
    }

    /// Where the count of a stack of unions stands.
    #[must_use]
    pub fn union_stack(&self, stack: UnionStackId) -> Option<u32> {
        self.union_stacks.get(stack.index()).copied()
    }
}

fn join_unions(program: &Program, headers: &mut [HeaderPlace]) {
    for (index, union) in (0u32..).zip(&program.unions) {
        for header in &union.headers {
            if let Some(place) = headers.get_mut(header.index()) {
                place.union = Some(UnionId(index));
            }
        }
    }
}

fn hidden(valid: u32) -> Place {
    Place {
        end: valid + 1,
        shift: 0,
        bits: 1,
        signed: false,
        saturating: false,
        variable: false,
        own: false,
    }
}

fn advance(at: &mut u32, bytes: u32) -> Option<u32> {
    let start = *at;
    *at = at
        .checked_add(bytes)
        .filter(|end| *end < ARENA_BYTES_MAX - GUARD_BYTES)?;
    Some(start)
}

/// Metadata: every field in bytes of its own, those of up to 64 bits in 8 aligned ones.
fn lay_metadata(
    header_type: &HeaderType,
    valid: u32,
    length: Option<u32>,
    at: &mut u32,
) -> Option<HeaderPlace> {
    let start = *at;
    let mut fields = Vec::new();
    let mut variable = None;
    for field in &header_type.fields {
        let bytes = if field.bits <= 64 {
            8
        } else {
            field.bits.div_ceil(8).next_multiple_of(8)
        };
        if field.variable {
            let begin = advance(at, bytes)?;
            variable = Some(Variable {
                field: u32::try_from(fields.len()).ok()?,
                length: length?,
                bytes: begin,
                bits_max: field.bits,
                bits_before: 0,
            });
            let room = field.bits.div_ceil(8);
            fields.push(Place {
                end: begin + room,
                shift: 0,
                bits: room * 8,
                signed: false,
                saturating: false,
                variable: true,
                own: false,
            });
            continue;
        }
        let end = advance(at, bytes)? + bytes;
        fields.push(Place {
            end,
            shift: 0,
            bits: field.bits,
            signed: field.signed,
            saturating: field.saturating,
            variable: false,
            own: field.bits <= 64,
        });
    }
    fields.push(hidden(valid));
    Some(HeaderPlace {
        valid,
        start,
        bytes: *at - start,
        metadata: true,
        fields,
        variable,
        union: None,
    })
}

/// A header of the packet: its fixed fields as on the wire, as if a field of variable length were empty; that one
/// beside them.
fn lay_packet(
    header_type: &HeaderType,
    valid: u32,
    length: Option<u32>,
    at: &mut u32,
) -> Option<HeaderPlace> {
    let bytes = header_type.fixed_bits().div_ceil(8);
    let start = advance(at, bytes)?;
    let mut bit = 0;
    let mut fields = Vec::new();
    let mut variable = None;
    for (index, field) in (0u32..).zip(&header_type.fields) {
        if field.variable {
            let room = field.bits.div_ceil(8);
            let begin = advance(at, room)?;
            variable = Some(Variable {
                field: index,
                length: length?,
                bytes: begin,
                bits_max: field.bits,
                bits_before: bit,
            });
            fields.push(Place {
                end: begin + room,
                shift: 0,
                bits: room * 8,
                signed: false,
                saturating: false,
                variable: true,
                own: false,
            });
            continue;
        }
        let last = bit + field.bits;
        fields.push(Place {
            end: start + last.div_ceil(8),
            shift: u8::try_from(last.next_multiple_of(8) - last).ok()?,
            bits: field.bits,
            signed: field.signed,
            saturating: field.saturating,
            variable: false,
            own: false,
        });
        bit = last;
    }
    fields.push(hidden(valid));
    // The next header begins at its own 8 bytes: no load of one waits for a store into the other.
    let next = at.next_multiple_of(8);
    *at = next;
    Some(HeaderPlace {
        valid,
        start,
        bytes,
        metadata: false,
        fields,
        variable,
        union: None,
    })
}
