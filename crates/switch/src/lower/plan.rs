//! What is copied from the arena for keys, hashes and checksums, decided once.

use serde::Serialize;

use super::builder::LowerError;
use crate::calculations::Algorithm;
use crate::layout::Layout;
use crate::program::ids::FieldRef;
use crate::program::pipeline::{KeySource, Table};
use crate::program::{Calculation, Input, Program};

/// A part of a table's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum KeyStep {
    /// Whole bytes.
    Copy {
        /// Where the header's validity stands: an invalid one counts as zeros. None for what always counts.
        valid: Option<u32>,
        /// Where from.
        at: u32,
        /// How many.
        bytes: u32,
    },
    /// Bits, padded to whole bytes at their front.
    Bits {
        /// As above.
        valid: Option<u32>,
        /// The first bit, counted from the arena's first byte's most significant.
        bit: u32,
        /// How many.
        bits: u32,
    },
}

impl KeyStep {
    /// Its length in the key.
    #[must_use]
    pub const fn bytes(&self) -> u32 {
        match self {
            Self::Copy { bytes, .. } => *bytes,
            Self::Bits { bits, .. } => bits.div_ceil(8),
        }
    }
}

/// How a table's key is made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KeyPlan {
    /// Its parts.
    pub steps: Vec<KeyStep>,
    /// What is masked afterwards, if anything.
    pub mask: Option<Vec<u8>>,
    /// Its length.
    pub bytes: usize,
}

/// The plan of a table's key.
pub fn key(layout: &Layout, table: &Table) -> Result<KeyPlan, LowerError> {
    let dangling = || LowerError::Dangling(format!("the key of table {}", table.name));
    let mut plan = KeyPlan::default();
    let mut mask = Vec::new();
    let mut masked = false;
    for field in &table.key {
        let bytes = field.bits.div_ceil(8);
        let step = match field.source {
            KeySource::Valid(header) => {
                let place = layout.header(header).ok_or_else(dangling)?;
                KeyStep::Copy {
                    valid: None,
                    at: place.valid,
                    bytes: 1,
                }
            }
            KeySource::Field(source) => {
                let place = layout.field(source).ok_or_else(dangling)?;
                let header = layout.header(source.header).ok_or_else(dangling)?;
                let metadata = header.metadata;
                let hidden = source.field as usize + 1 == header.fields.len();
                let valid = (!metadata && !hidden).then_some(header.valid);
                // The bits above a field of metadata are always 0.
                if place.whole_bytes() || metadata {
                    KeyStep::Copy {
                        valid,
                        at: place.end - bytes,
                        bytes,
                    }
                } else {
                    let bit = place.end * 8 - u32::from(place.shift) - place.bits;
                    KeyStep::Bits {
                        valid,
                        bit,
                        bits: place.bits,
                    }
                }
            }
        };
        plan.steps.push(step);
        plan.bytes += bytes as usize;
        match &field.mask {
            Some(bits) => {
                masked = true;
                mask.extend_from_slice(bits);
            }
            None => mask.extend(std::iter::repeat_n(0xff, bytes as usize)),
        }
    }
    plan.mask = masked.then_some(mask);
    Ok(plan)
}

/// A part of what a calculation is made over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum InputStep {
    /// Bits of a header, if it is valid.
    Bits {
        /// Where the header's validity stands; none for metadata.
        valid: Option<u32>,
        /// The first bit.
        bit: u32,
        /// How many.
        bits: u32,
    },
    /// A field of variable length, if its header is valid.
    Variable {
        /// Where the header's validity stands.
        valid: u32,
        /// Where its length stands.
        length: u32,
        /// Where its bytes begin.
        bytes: u32,
    },
    /// Bits of a constant, the last ones of its bytes.
    Constant(Vec<u8>, u32),
    /// A whole header, if it is valid.
    Header(crate::program::ids::HeaderId),
    /// What is behind the headers.
    Payload,
}

/// The plan of a calculation's input. Neighbours on the wire become one step.
pub fn inputs(
    program: &Program,
    layout: &Layout,
    calculation: &Calculation,
) -> Result<Vec<InputStep>, LowerError> {
    let dangling = || LowerError::Dangling(format!("calculation {}", calculation.name));
    let mut steps: Vec<InputStep> = Vec::new();
    for input in &calculation.inputs {
        let step = match input {
            Input::Field(field) => field_step(layout, *field).ok_or_else(dangling)?,
            Input::Constant(bytes, bits) => InputStep::Constant(bytes.clone(), *bits),
            Input::Header(header) => {
                program.type_of(*header).ok_or_else(dangling)?;
                InputStep::Header(*header)
            }
            // Wherever it stands, BMv2 appends it.
            Input::Payload => continue,
        };
        if let (
            Some(InputStep::Bits {
                valid: before,
                bit,
                bits,
            }),
            InputStep::Bits {
                valid,
                bit: next,
                bits: more,
            },
        ) = (steps.last_mut(), &step)
            && before == valid
            && *bit + *bits == *next
        {
            *bits += more;
            continue;
        }
        steps.push(step);
    }
    if calculation.inputs.contains(&Input::Payload) {
        steps.push(InputStep::Payload);
    }
    Ok(steps)
}

/// Whole words of 16 bits of a header, if it is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Stretch {
    /// Where the header's validity stands; none for metadata.
    pub valid: Option<u32>,
    /// The first byte.
    pub start: u32,
    /// The byte behind the last.
    pub end: u32,
}

/// What an Internet checksum is summed over where it lies; none if the input has anything but stretches of whole words.
pub fn stretches(calculation: &Calculation, inputs: &[InputStep]) -> Option<Vec<Stretch>> {
    if Algorithm::from_name(&calculation.algorithm)? != Algorithm::Checksum16 {
        return None;
    }
    let stretch = |step: &InputStep| match *step {
        InputStep::Bits { valid, bit, bits } if bit.is_multiple_of(8) && bits.is_multiple_of(16) => {
            Some(Stretch {
                valid,
                start: bit / 8,
                end: (bit + bits) / 8,
            })
        }
        _ => None,
    };
    inputs.iter().map(stretch).collect()
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
    let place = layout.field(field)?;
    Some(InputStep::Bits {
        valid: (!header.metadata).then_some(header.valid),
        bit: place.end * 8 - u32::from(place.shift) - place.bits,
        bits: place.bits,
    })
}
