//! Fields, cells and arguments, to and from where they lie in the arena.

use super::bits::{
    self, load1, load2, load4, load8, mask64, read64, store1, store2, store4, store8, write_number,
};
use crate::externs::Registers;
use crate::layout::Place;

/// Stores a number of at most 64 bits in a field, wherever it lies.
#[inline]
pub fn set(arena: &mut [u8], place: Place, value: u64) {
    if place.own {
        return store8(arena, place.end - 8, value & mask64(place.bits as u8));
    }
    if place.bits + u32::from(place.shift) <= 64 {
        let mask = mask64(place.bits as u8);
        let at = place.end - 8;
        let kept = load8(arena, at) & !(mask << place.shift);
        store8(arena, at, kept | ((value & mask) << place.shift));
    } else {
        let bit = place.end as usize * 8 - usize::from(place.shift) - place.bits as usize;
        bits::write(arena, bit, place.bits as usize, &value.to_be_bytes());
    }
}

/// The same where the program may not have or mention the field.
#[inline]
pub fn put(arena: &mut [u8], place: Option<Place>, value: u64) {
    if let Some(place) = place {
        set(arena, place, value);
    }
}

/// The low 64 bits of a field.
#[must_use]
#[inline]
pub fn get(arena: &[u8], place: Place) -> u64 {
    let bits = place.bits.min(64);
    if bits + u32::from(place.shift) <= 64 {
        return (load8(arena, place.end - 8) >> place.shift) & mask64(bits as u8);
    }
    let bit = place.end as usize * 8 - usize::from(place.shift) - bits as usize;
    read64(arena, bit, bits as usize)
}

/// Copies a cell of more than 64 bits to so many bits of the arena; whether there is one.
pub(super) fn read_wide(array: &Registers, index: u64, arena: &mut [u8], bit: usize, bits: usize) -> bool {
    let cell = array.wide(index);
    if let Some(cell) = cell {
        write_number(arena, bit, bits, cell);
    }
    cell.is_some()
}

/// Copies the low bytes of an argument; the sizes of addresses by themselves, for a copy of unknown length is a call.
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
            if let (Some(low), Some(to)) = (
                value.get(low..),
                arena.get_mut(at as usize..at as usize + value.len() - low),
            ) {
                to.copy_from_slice(low);
            }
        }
    }
}
