//! Tests that the compiled programs fit the stack of Linux 6.1: 512 bytes for functions that call each other, with
//! each function's stack rounded up to 32 bytes. Newer kernels round up less and accept more.

use std::collections::BTreeMap;

use super::compare_test::{object, section_names, sections, text, word};

const STACK_MAX: usize = 512;
const STACK_ROUNDING: usize = 32;

const FRAME_POINTER: u8 = 10;
const MOVE_REGISTER: u8 = 0xbf;
const ADD_IMMEDIATE: u8 = 0x07;
const CALL: u8 = 0x85;
/// Source register of a call to a function of the program, as opposed to a helper.
const PSEUDO_CALL: u8 = 1;
const FUNCTION_SYMBOL: u8 = 2;

/// A symbol of the ELF file: `Elf64_Sym`.
struct Symbol<'a> {
    name: &'a str,
    kind: u8,
    section: usize,
    offset: usize,
    size: usize,
}

/// A function of the object, and the symbols of the functions that it calls.
struct Function {
    name: String,
    stack: usize,
    calls: Vec<usize>,
}

fn symbols<'a>(sections: &BTreeMap<&str, &'a [u8]>) -> Vec<Symbol<'a>> {
    let (table, names) = (sections[".symtab"], sections[".strtab"]);
    let symbol = |entry: &'a [u8]| Symbol {
        name: text(names, word(entry, 0)),
        kind: entry[4] & 15,
        section: usize::from(u16::from_le_bytes([entry[6], entry[7]])),
        offset: word(entry, 8),
        size: word(entry, 16),
    };
    table.chunks_exact(24).map(symbol).collect()
}

/// The deepest stack access of a function's instructions, relative to its frame pointer.
fn stack(code: &[u8]) -> usize {
    let mut deepest = 0;
    let mut frame_pointer_copies = [false; 16];
    for bytes in code.chunks_exact(8) {
        let (code, to, from) = (bytes[0], bytes[1] & 15, bytes[1] >> 4);
        let offset = i16::from_le_bytes([bytes[2], bytes[3]]);
        let immediate = i32::from_le_bytes(bytes[4..8].try_into().unwrap());
        let base = match code & 7 {
            1 => Some(from),
            2 | 3 => Some(to),
            _ => None,
        };
        if base == Some(FRAME_POINTER) {
            deepest = deepest.max(usize::from(offset.unsigned_abs()));
        }
        let is_copy = frame_pointer_copies[usize::from(to)];
        if code == ADD_IMMEDIATE && is_copy && immediate < 0 {
            deepest = deepest.max(immediate.unsigned_abs() as usize);
        }
        if matches!(code & 7, 0 | 1 | 4 | 7) {
            frame_pointer_copies[usize::from(to)] = code == MOVE_REGISTER && from == FRAME_POINTER;
        }
    }
    deepest
}

/// The functions of the object, by symbol.
fn functions(elf: &[u8]) -> BTreeMap<usize, Function> {
    let (sections, names) = (sections(elf), section_names(elf));
    let symbols = symbols(&sections);
    let is_function = |symbol: &Symbol<'_>| symbol.kind == FUNCTION_SYMBOL;
    let function_at = |section: usize, offset: i64| {
        let is_callee = |symbol: &Symbol<'_>| {
            is_function(symbol) && symbol.section == section && symbol.offset as i64 == offset
        };
        symbols.iter().position(is_callee).expect("a function is called")
    };
    let function = |symbol: &Symbol<'_>| {
        let section = names[symbol.section];
        let code = &sections[section][symbol.offset..symbol.offset + symbol.size];
        let relocations = sections.get(format!(".rel{section}").as_str()).copied();
        let relocations = relocations.unwrap_or_default();
        let calls = (symbol.offset..).step_by(8).zip(code.chunks_exact(8));
        let calls = calls.filter(|(_, bytes)| bytes[0] == CALL && bytes[1] >> 4 == PSEUDO_CALL);
        let calls = calls.map(|(offset, bytes)| {
            let immediate = i64::from(i32::from_le_bytes(bytes[4..8].try_into().unwrap()));
            let relocation = relocations
                .chunks_exact(16)
                .find(|entry| word(entry, 0) == offset);
            match relocation.map(|entry| word(entry, 12)) {
                Some(number) if is_function(&symbols[number]) => number,
                // The symbol is that of the section; the immediate is the offset in it.
                Some(number) => function_at(symbols[number].section, (immediate + 1) * 8),
                None => function_at(symbol.section, offset as i64 + (immediate + 1) * 8),
            }
        });
        Function {
            name: symbol.name.to_owned(),
            stack: stack(code),
            calls: calls.collect(),
        }
    };
    let numbered = symbols
        .iter()
        .enumerate()
        .filter(|(_, symbol)| is_function(symbol));
    numbered
        .map(|(number, symbol)| (number, function(symbol)))
        .collect()
}

/// The stack of a function and its deepest call chain, with the names of the functions.
fn deepest(functions: &BTreeMap<usize, Function>, number: usize) -> (usize, String) {
    let function = &functions[&number];
    let called = function.calls.iter().map(|called| deepest(functions, *called));
    let (below, names) = called.max().unwrap_or_default();
    let own = function
        .stack
        .next_multiple_of(STACK_ROUNDING)
        .max(STACK_ROUNDING);
    (own + below, format!("{} ({own}) {names}", function.name))
}

/// Returns the largest stack that a program of the object needs.
pub(crate) fn check_stack(elf: &[u8]) -> usize {
    let functions = functions(elf);
    let mut deepest_of_all = 0;
    for number in functions.keys() {
        let (stack, names) = deepest(&functions, *number);
        assert!(stack <= STACK_MAX, "{stack} bytes: {names}");
        deepest_of_all = deepest_of_all.max(stack);
    }
    deepest_of_all
}

#[test]
fn calls_need_no_more_stack_than_linux_6_1_has() {
    let elf = object();
    let count = functions(&elf).len();
    assert!(count > 20, "{count}");
    assert!(check_stack(&elf) > 256, "the stack accesses are found");
}
