//! Access to fields of the arena; copies of register cells and action arguments into the arena.

use super::bits::{
    self, load1, load2, load4, load8, mask64, read64, store1, store2, store4, store8, write_number,
};
use crate::externs::Registers;
use crate::layout::FieldLayout;

/// Stores a value of at most 64 bits in a field.
#[inline]
pub fn set(arena: &mut [u8], field: FieldLayout, value: u64) {
    if field.has_own_word {
        return store8(arena, field.end - 8, value & mask64(field.bits as u8));
    }
    if field.bits + u32::from(field.shift) <= 64 {
        let mask = mask64(field.bits as u8);
        let offset = field.end - 8;
        let other_bits = load8(arena, offset) & !(mask << field.shift);
        store8(arena, offset, other_bits | ((value & mask) << field.shift));
    } else {
        let bit = field.end as usize * 8 - usize::from(field.shift) - field.bits as usize;
        bits::write(arena, bit, field.bits as usize, &value.to_be_bytes());
    }
}

/// Same as [`set`]; does nothing for `None`, a field that the program does not have or does not reference.
#[inline]
pub fn set_optional(arena: &mut [u8], field: Option<FieldLayout>, value: u64) {
    if let Some(field) = field {
        set(arena, field, value);
    }
}

/// Reads the low 64 bits of a field.
#[must_use]
#[inline]
pub fn get(arena: &[u8], field: FieldLayout) -> u64 {
    let bits = field.bits.min(64);
    if bits + u32::from(field.shift) <= 64 {
        return (load8(arena, field.end - 8) >> field.shift) & mask64(bits as u8);
    }
    let bit = field.end as usize * 8 - usize::from(field.shift) - bits as usize;
    read64(arena, bit, bits as usize)
}

/// Copies a cell of more than 64 bits to bits of the arena. Returns false if the cell does not exist or if the array has
/// narrow cells.
pub(super) fn read_wide(array: &Registers, index: u64, arena: &mut [u8], bit: usize, bits: usize) -> bool {
    let cell = array.wide(index);
    if let Some(cell) = cell {
        write_number(arena, bit, bits, cell);
    }
    cell.is_some()
}

/// Copies the low `bytes` bytes of an argument. The usual lengths are special cases, because a copy of variable length
/// would be a function call.
#[inline]
pub(super) fn copy_arg(args: &[u8], arg: u32, arena: &mut [u8], at: u32, bytes: u8) {
    match bytes {
        1 => store1(arena, at, load1(args, arg + 7)),
        2 => store2(arena, at, load2(args, arg + 6)),
        4 => store4(arena, at, load4(args, arg + 4)),
        6 => {
            store2(arena, at, load2(args, arg + 2));
            store4(arena, at + 2, load4(args, arg + 4));
        }
        8 => store8(arena, at, load8(args, arg)),
        _ => {
            let value = load8(args, arg).to_be_bytes();
            let low = value.len() - usize::from(bytes).min(value.len());
            if let (Some(low), Some(target)) = (
                value.get(low..),
                arena.get_mut(at as usize..at as usize + value.len() - low),
            ) {
                target.copy_from_slice(low);
            }
        }
    }
}
