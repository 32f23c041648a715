//! Creates plans that list the bytes and bits of keys, hashes and checksums.

use super::builder::LowerError;
use crate::calculations::Algorithm;
use crate::executable::plan::{InputStep, KeyPlan, KeyStep, WordRange};
use crate::layout::Layout;
use crate::program::ids::FieldRef;
use crate::program::pipeline::{KeySource, Table};
use crate::program::{Calculation, Input, Program};

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
