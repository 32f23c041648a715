//! Plans that list the bytes and bits of keys, hashes and checksums.

use serde::Serialize;

use super::builder::LowerError;
use crate::calculations::Algorithm;
use crate::layout::Layout;
use crate::program::ids::FieldRef;
use crate::program::pipeline::{KeySource, Table};
use crate::program::{Calculation, Input, Program};

/// Step of a key plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum KeyStep {
    /// Whole bytes.
    Copy {
        /// Offset of the header's validity: fields of an invalid header count as zero. `None` for metadata and for a validity.
        valid: Option<u32>,
        /// Source offset.
        at: u32,
        /// Length.
        bytes: u32,
    },
    /// Bits, padded in front to whole bytes.
    Bits {
        /// Offset of the header's validity; `None` for metadata.
        valid: Option<u32>,
        /// First bit, counted from the most significant bit of the arena's first byte.
        bit: u32,
        /// Length.
        bits: u32,
    },
}

impl KeyStep {
    /// Length in the key, bytes.
    #[must_use]
    pub const fn bytes(&self) -> u32 {
        match self {
            Self::Copy { bytes, .. } => *bytes,
            Self::Bits { bits, .. } => bits.div_ceil(8),
        }
    }
}

/// Plan of a table key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KeyPlan {
    /// Steps.
    pub steps: Vec<KeyStep>,
    /// Mask to apply to the key, if any.
    pub mask: Option<Vec<u8>>,
    /// Length of the key, bytes.
    pub bytes: usize,
}

/// Creates the plan of a table's key.
pub fn key(layout: &Layout, table: &Table) -> Result<KeyPlan, LowerError> {
    let dangling = || LowerError::UnresolvedReference(format!("key of table {}", table.name));
    let mut plan = KeyPlan::default();
    let mut mask = Vec::new();
    let mut has_mask = false;
    for field in &table.key {
        let bytes = field.bits.div_ceil(8);
        let step = match field.source {
            KeySource::Valid(header) => {
                let header_layout = layout.header(header).ok_or_else(dangling)?;
                KeyStep::Copy {
                    valid: None,
                    at: header_layout.valid,
                    bytes: 1,
                }
            }
            KeySource::Field(source) => {
                let field_layout = layout.field(source).ok_or_else(dangling)?;
                let header = layout.header(source.header).ok_or_else(dangling)?;
                let metadata = header.metadata;
                let is_hidden = source.field as usize + 1 == header.fields.len();
                let valid = (!metadata && !is_hidden).then_some(header.valid);
                // The bits above a metadata field are always 0.
                if field_layout.whole_bytes() || metadata {
                    KeyStep::Copy {
                        valid,
                        at: field_layout.end - bytes,
                        bytes,
                    }
                } else {
                    let bit = field_layout.end * 8 - u32::from(field_layout.shift) - field_layout.bits;
                    KeyStep::Bits {
                        valid,
                        bit,
                        bits: field_layout.bits,
                    }
                }
            }
        };
        plan.steps.push(step);
        plan.bytes += bytes as usize;
        match &field.mask {
            Some(bits) => {
                has_mask = true;
                mask.extend_from_slice(bits);
            }
            None => mask.extend(std::iter::repeat_n(0xff, bytes as usize)),
        }
    }
    plan.mask = has_mask.then_some(mask);
    Ok(plan)
}

/// Input step of a calculation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum InputStep {
    /// Bits of a header; skipped if the header is invalid.
    Bits {
        /// Offset of the header's validity; `None` for metadata.
        valid: Option<u32>,
        /// First bit.
        bit: u32,
        /// Length.
        bits: u32,
    },
    /// Variable-length field of a header; skipped if the header is invalid.
    Variable {
        /// Offset of the header's validity.
        valid: u32,
        /// Offset of the length.
        length: u32,
        /// Offset of the bytes.
        bytes: u32,
    },
    /// Constant: bytes and width in bits; the calculation uses the last bits of the bytes.
    Constant(Vec<u8>, u32),
    /// Whole header; skipped if invalid.
    Header(crate::program::ids::HeaderId),
    /// Payload.
    Payload,
}

/// Creates the input steps of a calculation. Adjacent fields are merged into one step.
pub fn inputs(
    program: &Program,
    layout: &Layout,
    calculation: &Calculation,
) -> Result<Vec<InputStep>, LowerError> {
    let dangling = || LowerError::UnresolvedReference(format!("calculation {}", calculation.name));
    let mut steps: Vec<InputStep> = Vec::new();
    for input in &calculation.inputs {
        let step = match input {
            Input::Field(field) => field_step(layout, *field).ok_or_else(dangling)?,
            Input::Constant(bytes, bits) => InputStep::Constant(bytes.clone(), *bits),
            Input::Header(header) => {
                program.type_of(*header).ok_or_else(dangling)?;
                InputStep::Header(*header)
            }
            // BMv2 always appends the payload at the end.
            Input::Payload => continue,
        };
        if let (
            Some(InputStep::Bits {
                valid: previous_valid,
                bit,
                bits,
            }),
            InputStep::Bits {
                valid,
                bit: next_bit,
                bits: next_bits,
            },
        ) = (steps.last_mut(), &step)
            && previous_valid == valid
            && *bit + *bits == *next_bit
        {
            *bits += next_bits;
            continue;
        }
        steps.push(step);
    }
    if calculation.inputs.contains(&Input::Payload) {
        steps.push(InputStep::Payload);
    }
    Ok(steps)
}

/// Range of whole 16-bit words of a header; skipped if the header is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WordRange {
    /// Offset of the header's validity; `None` for metadata.
    pub valid: Option<u32>,
    /// First byte.
    pub start: u32,
    /// End (exclusive).
    pub end: u32,
}

/// Returns the word ranges to compute an Internet checksum without a copy; `None` for other algorithms, or if a part of the
/// input does not consist of whole words.
pub fn word_ranges(calculation: &Calculation, inputs: &[InputStep]) -> Option<Vec<WordRange>> {
    if Algorithm::from_name(&calculation.algorithm)? != Algorithm::Checksum16 {
        return None;
    }
    let word_range = |step: &InputStep| match *step {
        InputStep::Bits { valid, bit, bits } if bit.is_multiple_of(8) && bits.is_multiple_of(16) => {
            Some(WordRange {
                valid,
                start: bit / 8,
                end: (bit + bits) / 8,
            })
        }
        _ => None,
    };
    inputs.iter().map(word_range).collect()
}

fn field_step(layout: &Layout, field: FieldRef) -> Option<InputStep> {
    let header = layout.header(field.header)?;
    if let Some(variable) = header.variable
        && variable.field == field.field
    {
        return Some(InputStep::Variable {
            valid: header.valid,
            length: variable.length,
            bytes: variable.bytes,
        });
    }
    let field_layout = layout.field(field)?;
    Some(InputStep::Bits {
        valid: (!header.metadata).then_some(header.valid),
        bit: field_layout.end * 8 - u32::from(field_layout.shift) - field_layout.bits,
        bits: field_layout.bits,
    })
}
