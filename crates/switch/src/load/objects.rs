//! Loading of headers, externs and lists: everything except parsers, actions and pipelines.

use std::sync::Mutex;

use super::cursor::{LoadResult, Node};
use super::expression::{BITS_MAX, ExpressionReader, Locals};
use super::number;
use super::scope::{Scope, next_index};
use crate::externs::{Counter, Registers};
use crate::meter::Meter;
use crate::program::ids::{FieldRef, HeaderId, StackId, TypeId, UnionId, UnionStackId};
use crate::program::{
    Calculation, Checksum, ChecksumKind, CounterArray, Digest, Field, FieldList, Header, HeaderType, Input,
    MeterArray, MeterUnit, RegisterArray, Stack, Union, UnionStack,
};

/// Maximum number of cells of an array: 2^26 registers of 8 bytes are half a GiB.
const CELLS_MAX: u32 = 1 << 26;
/// Maximum memory of all registers, counters and meters of a program, bytes.
const ARRAYS_BYTES_MAX: u64 = 1 << 30;

/// Reads header types.
pub fn header_types(scope: &mut Scope, node: &Node<'_>) -> LoadResult<()> {
    for item in node.items()? {
        let name = item.str_at("name")?.to_owned();
        let list = item.field("fields")?;
        let max_bytes = match item.optional("max_length") {
            Some(max) => max.u32()?,
            None => 0,
        };
        let mut fields = list
            .items()?
            .map(|field| field_type(&field))
            .collect::<LoadResult<Vec<_>>>()?;
        let fixed_bits: u64 = fields.iter().map(|field| u64::from(field.bits)).sum();
        if fixed_bits > u64::from(BITS_MAX) * 8 {
            return Err(item.error("header type is too wide"));
        }
        if fields.iter().filter(|field| field.variable).count() > 1 {
            return Err(item.error("header type has more than one variable-length field"));
        }
        if let Some(variable) = fields.iter_mut().find(|field| field.variable) {
            variable.bits = variable_bits(max_bytes, fixed_bits);
        }
        let variable_bits = match item.optional("length_exp") {
            Some(length) => {
                let reader = ExpressionReader {
                    scope,
                    locals: Locals::Count(fields.len()),
                };
                Some(reader.data(&length)?)
            }
            None => None,
        };
        let id = TypeId(next_index(scope.types.len(), &item)?);
        if scope.type_names.insert(name.clone(), id).is_some() {
            return Err(item.error("duplicate header type name"));
        }
        scope.types.push(HeaderType {
            name,
            fields,
            variable_bits,
            max_bytes,
        });
    }
    Ok(())
}

/// Returns the maximum width of a variable-length field: the maximum length of the header less the fixed-width fields, or
/// 2048 bits if the header has no maximum length.
fn variable_bits(max_bytes: u32, fixed_bits: u64) -> u32 {
    let limit = u64::from(max_bytes) * 8;
    let budget = if max_bytes == 0 {
        2048
    } else {
        limit.saturating_sub(fixed_bits)
    };
    u32::try_from(budget.min(u64::from(BITS_MAX))).unwrap_or(BITS_MAX)
}

fn field_type(node: &Node<'_>) -> LoadResult<Field> {
    let flag = |index: usize| -> LoadResult<bool> {
        if node.len() <= index {
            return Ok(false);
        }
        let item = node.item(index)?;
        // Older compilers write 0 and 1.
        match item.value().as_u64() {
            Some(number) => Ok(number != 0),
            None => item.bool(),
        }
    };
    let name = node.item(0)?.str()?.to_owned();
    let width = node.item(1)?;
    let variable = width.value() == "*";
    let bits = if variable { 0 } else { width.u32()? };
    if !variable && (bits == 0 || bits > BITS_MAX) {
        return Err(width.error(format_args!(
            "has invalid width {bits}: expected 1 to {BITS_MAX} bits"
        )));
    }
    Ok(Field {
        name,
        bits,
        signed: flag(2)?,
        saturating: flag(3)?,
        variable,
    })
}

/// Reads header instances.
pub fn headers(scope: &mut Scope, node: &Node<'_>) -> LoadResult<()> {
    for item in node.items()? {
        let name = item.str_at("name")?.to_owned();
        let type_node = item.field("header_type")?;
        let header_type = scope.header_type(type_node.str()?, &type_node)?;
        let metadata = item.flag("metadata")?;
        let bits = scope
            .types
            .get(header_type.index())
            .map_or(0, HeaderType::fixed_bits);
        if !metadata && bits % 8 != 0 {
            return Err(item.error(format_args!("has invalid width {bits}: expected whole bytes")));
        }
        let id = HeaderId(next_index(scope.headers.len(), &item)?);
        if scope.headers_by_json_id.insert(item.u32_at("id")?, id).is_some() {
            return Err(item.error("duplicate header id"));
        }
        if scope.header_names.insert(name.clone(), id).is_some() {
            return Err(item.error("duplicate header name"));
        }
        scope.headers.push(Header {
            name,
            header_type,
            metadata,
        });
    }
    Ok(())
}

fn header_ids(scope: &Scope, node: &Node<'_>) -> LoadResult<Vec<HeaderId>> {
    let list = node.field("header_ids")?;
    list.items()?
        .map(|item| scope.header_by_id(item.u32()?, &item))
        .collect()
}

/// Reads header stacks.
pub fn stacks(scope: &mut Scope, node: &Node<'_>) -> LoadResult<()> {
    for item in node.items()? {
        let name = item.str_at("name")?.to_owned();
        let type_node = item.field("header_type")?;
        let header_type = scope.header_type(type_node.str()?, &type_node)?;
        let headers = header_ids(scope, &item)?;
        let has_type = |header: &HeaderId| {
            scope
                .headers
                .get(header.index())
                .is_some_and(|header| header.header_type == header_type)
        };
        // The element count has 16 bits.
        if headers.len() > usize::from(u16::MAX) {
            return Err(item.error("stack has more than 65535 headers"));
        }
        if headers.is_empty() || !headers.iter().all(has_type) {
            return Err(item.error("stack is empty or has headers of another type"));
        }
        let id = StackId(next_index(scope.stacks.len(), &item)?);
        scope.stack_names.insert(name.clone(), id);
        scope.stacks.push(Stack {
            name,
            header_type,
            headers,
        });
    }
    Ok(())
}

/// Reads header unions with the member names of their types.
pub fn unions(scope: &mut Scope, types: &Node<'_>, node: &Node<'_>) -> LoadResult<()> {
    for item in node.items()? {
        let name = item.str_at("name")?.to_owned();
        let type_name = item.str_at("union_type")?;
        let mut members = None;
        for union_type in types.items()? {
            if union_type.str_at("name")? == type_name {
                let list = union_type.field("headers")?;
                let names = list.items()?.map(|pair| Ok(pair.item(0)?.str()?.to_owned()));
                members = Some(names.collect::<LoadResult<Vec<_>>>()?);
            }
        }
        let members = members.ok_or_else(|| item.error(format_args!("unknown union type {type_name:?}")))?;
        let headers = header_ids(scope, &item)?;
        if headers.len() != members.len() {
            return Err(item.error(format_args!(
                "union has {} headers, its type has {}",
                headers.len(),
                members.len()
            )));
        }
        let id = UnionId(next_index(scope.unions.len(), &item)?);
        scope.unions_by_json_id.insert(item.u32_at("id")?, id);
        scope.union_names.insert(name.clone(), id);
        scope.unions.push(Union {
            name,
            members,
            headers,
        });
    }
    Ok(())
}

/// Reads header union stacks.
pub fn union_stacks(scope: &mut Scope, node: &Node<'_>) -> LoadResult<()> {
    for item in node.items()? {
        let name = item.str_at("name")?.to_owned();
        let list = item.field("header_union_ids")?;
        let unions = list
            .items()?
            .map(|union| {
                let json_id = union.u32()?;
                let id = scope.unions_by_json_id.get(&json_id).copied();
                id.ok_or_else(|| union.error(format_args!("unknown header union id {json_id}")))
            })
            .collect::<LoadResult<Vec<_>>>()?;
        if unions.len() > usize::from(u16::MAX) {
            return Err(item.error("stack has more than 65535 unions"));
        }
        if unions.is_empty() {
            return Err(item.error("stack is empty"));
        }
        let id = UnionStackId(next_index(scope.union_stacks.len(), &item)?);
        scope.union_stack_names.insert(name.clone(), id);
        scope.union_stacks.push(UnionStack { name, unions });
    }
    Ok(())
}

/// Reads a calculation or the selector of an action profile.
pub fn calculation(scope: &Scope, node: &Node<'_>, inputs: &str) -> LoadResult<Calculation> {
    let list = node.field(inputs)?;
    let mut calculation_inputs = Vec::new();
    for item in list.items()? {
        calculation_inputs.push(match item.str_at("type")? {
            "field" => Input::Field(scope.field(&item.field("value")?)?),
            "hexstr" => {
                let value = item.field("value")?;
                let bytes =
                    number::bytes(value.str()?).ok_or_else(|| value.error("is not a hexadecimal number"))?;
                let bits = item.u32_at("bitwidth")?;
                if bits > BITS_MAX || bits.div_ceil(8) as usize > bytes.len() {
                    Input::Constant(pad_constant(bytes, bits, &item)?, bits)
                } else {
                    Input::Constant(bytes, bits)
                }
            }
            "header" => {
                let value = item.field("value")?;
                Input::Header(scope.header(value.str()?, &value)?)
            }
            "payload" => Input::Payload,
            other => return Err(item.error(format_args!("unknown calculation input {other:?}"))),
        });
    }
    let name = node
        .optional("name")
        .map(|name| name.str().map(str::to_owned))
        .transpose()?;
    Ok(Calculation {
        name: name.unwrap_or_default(),
        algorithm: node.str_at("algo")?.to_owned(),
        inputs: calculation_inputs,
    })
}

fn pad_constant(bytes: Vec<u8>, bits: u32, node: &Node<'_>) -> LoadResult<Vec<u8>> {
    if bits > BITS_MAX {
        return Err(node.error(format_args!(
            "width of {bits} bits exceeds the maximum of {BITS_MAX}"
        )));
    }
    let mut padded = vec![0; bits.div_ceil(8) as usize - bytes.len()];
    padded.extend(bytes);
    Ok(padded)
}

/// Remaining memory budget for the arrays of a program.
pub struct CellBudget {
    remaining_bytes: u64,
}

impl Default for CellBudget {
    fn default() -> Self {
        Self {
            remaining_bytes: ARRAYS_BYTES_MAX,
        }
    }
}

impl CellBudget {
    /// Reads the number of cells of an array and reserves the memory.
    fn cells(&mut self, node: &Node<'_>, cell_bytes: usize) -> LoadResult<u32> {
        let size = node.u32_at("size")?;
        if size > CELLS_MAX {
            return Err(node.error(format_args!("array has {size} cells: the maximum is {CELLS_MAX}")));
        }
        let bytes = u64::from(size) * cell_bytes as u64;
        match self.remaining_bytes.checked_sub(bytes) {
            Some(remaining) => self.remaining_bytes = remaining,
            None => {
                return Err(node.error(format_args!(
                    "array needs {bytes} bytes: the limit for all arrays is {ARRAYS_BYTES_MAX}, {} are left",
                    self.remaining_bytes
                )));
            }
        }
        Ok(size)
    }
}

/// Reads a counter array.
pub fn counter(budget: &mut CellBudget, node: &Node<'_>) -> LoadResult<CounterArray> {
    let direct = node.flag("is_direct")?;
    Ok(CounterArray {
        name: node.str_at("name")?.to_owned(),
        size: match direct {
            true => 0,
            false => budget.cells(node, size_of::<Counter>())?,
        },
        direct: if direct {
            Some(node.str_at("binding")?.to_owned())
        } else {
            None
        },
    })
}

/// Reads a meter array.
pub fn meter(budget: &mut CellBudget, scope: &Scope, node: &Node<'_>) -> LoadResult<MeterArray> {
    let unit = match node.str_at("type")? {
        "packets" => MeterUnit::Packets,
        "bytes" => MeterUnit::Bytes,
        other => return Err(node.error(format_args!("unknown meter type {other:?}"))),
    };
    let direct = match node.flag("is_direct")? {
        true => Some(scope.field(&node.field("result_target")?)?),
        false => None,
    };
    let rates = node.u32_at("rate_count")?;
    if rates == 0 || rates > 2 {
        return Err(node.error(format_args!("meter has {rates} rates: expected 1 or 2")));
    }
    let size = match direct {
        Some(_) => 0,
        None => budget.cells(node, size_of::<Mutex<Meter>>())?,
    };
    Ok(MeterArray {
        name: node.str_at("name")?.to_owned(),
        unit,
        rates,
        size,
        direct,
    })
}

/// Reads a register array.
pub fn register(budget: &mut CellBudget, node: &Node<'_>) -> LoadResult<RegisterArray> {
    let bits = node.u32_at("bitwidth")?;
    if bits == 0 || bits > BITS_MAX {
        return Err(node.error(format_args!(
            "cell width is {bits}: expected 1 to {BITS_MAX} bits"
        )));
    }
    let size = budget.cells(node, Registers::cell_bytes(bits))?;
    Ok(RegisterArray {
        name: node.str_at("name")?.to_owned(),
        size,
        bits,
    })
}

/// Reads a checksum.
pub fn checksum(scope: &Scope, node: &Node<'_>) -> LoadResult<Checksum> {
    let kind = match node.str_at("type")? {
        "ipv4" => {
            let target = node.field("target")?;
            let header = target.item(0)?;
            scope.header(header.str()?, &header)?;
            ChecksumKind::Ipv4
        }
        "generic" => {
            let name = node.field("calculation")?;
            ChecksumKind::Calculation(scope.calculation(name.str()?, &name)?)
        }
        other => return Err(node.error(format_args!("unknown checksum type {other:?}"))),
    };
    let flag_or_true = |name: &str| -> LoadResult<bool> {
        match node.optional(name) {
            Some(flag) => flag.bool(),
            None => Ok(true),
        }
    };
    let condition = match node.optional("if_cond") {
        Some(condition) => Some(
            ExpressionReader {
                scope,
                locals: Locals::None,
            }
            .bool(&condition)?,
        ),
        None => None,
    };
    Ok(Checksum {
        name: node.str_at("name")?.to_owned(),
        target: scope.field(&node.field("target")?)?,
        kind,
        condition,
        verify: flag_or_true("verify")?,
        update: flag_or_true("update")?,
    })
}

fn fields(scope: &Scope, node: &Node<'_>) -> LoadResult<Vec<FieldRef>> {
    let list = node.field("elements")?;
    let mut fields = Vec::new();
    for item in list.items()? {
        match item.str_at("type")? {
            "field" => fields.push(scope.field(&item.field("value")?)?),
            // A constant needs no copy.
            "hexstr" => {}
            other => return Err(item.error(format_args!("unknown list element type {other:?}"))),
        }
    }
    Ok(fields)
}

/// Reads a digest.
pub fn digest(scope: &Scope, node: &Node<'_>) -> LoadResult<Digest> {
    Ok(Digest {
        name: node.str_at("name")?.to_owned(),
        json_id: node.u32_at("id")?,
        fields: fields(scope, node)?,
    })
}

/// Reads a field list.
pub fn field_list(scope: &Scope, node: &Node<'_>) -> LoadResult<FieldList> {
    Ok(FieldList {
        json_id: node.u32_at("id")?,
        fields: fields(scope, node)?,
    })
}
