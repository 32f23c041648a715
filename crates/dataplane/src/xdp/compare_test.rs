//! Tests that the compiled programs compare tags in constant time: no branch depends on a part of a tag before
//! the whole tag was compared. The compiled code of `lw_tags_differ()` is located by the source lines in BTF.

use std::collections::BTreeMap;
use std::path::Path;

/// An instruction (`struct bpf_insn`).
#[derive(Clone, Copy, Debug)]
struct Instruction {
    code: u8,
    to: u8,
    from: u8,
    immediate: i32,
}

const XOR_REGISTER: u8 = 0xaf;
const XOR_IMMEDIATE: u8 = 0xa7;
const OR_REGISTER: u8 = 0x4f;
const MOVE_REGISTER: u8 = 0xbf;
const IS_ZERO: u8 = 0x15;
const IS_NOT_ZERO: u8 = 0x55;
const JUMP: u8 = 0x05;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// The constants that SipHash-2-4 mixes in before the halves of a 128-bit tag.
const FINALIZATION_CONSTANTS: [i32; 2] = [0xee, 0xdd];

impl Instruction {
    /// Jumps, calls and exits: the boundaries of straight-line code.
    fn is_jump(self) -> bool {
        matches!(self.code & 7, 5 | 6)
    }

    fn is_conditional(self) -> bool {
        self.is_jump() && ![JUMP, CALL, EXIT].contains(&self.code)
    }
}

/// Instructions of a section, each with file and line if known.
struct Code<'a> {
    instructions: Vec<Instruction>,
    lines: Vec<Option<(&'a str, u32)>>,
}

impl Code<'_> {
    fn instructions_at(&self, file: &str, line: u32) -> impl Iterator<Item = usize> + '_ {
        let file = format!("/{file}");
        let is_at_line = move |location: &Option<(&str, u32)>| {
            location.is_some_and(|(name, number)| name.ends_with(&file) && number == line)
        };
        (0..)
            .zip(&self.lines)
            .filter(move |(_, location)| is_at_line(location))
            .map(|(index, _)| index)
    }

    /// Comparisons of two tags: how many there are, and how many of them follow the computation of the tag without a
    /// jump.
    fn comparisons(&self) -> Result<[usize; 2], String> {
        let header = include_str!("bpf/lw_compare.h");
        let (halves_line, combined_line) =
            (line_of(header, "low = first[0]"), line_of(header, "low |= high"));
        let mut counts = [0, 0];
        for index in self.instructions_at("lw_compare.h", combined_line) {
            let Instruction { code, to, .. } = self.instructions[index];
            if code != OR_REGISTER {
                continue;
            }
            let is_straight = |index: &usize| !self.instructions[*index].is_jump();
            let preceding: Vec<usize> = (0..index).rev().take_while(is_straight).collect();
            let differences = self
                .instructions_at("lw_compare.h", halves_line)
                .filter(|difference| {
                    preceding.contains(difference) && self.instructions[*difference].code == XOR_REGISTER
                });
            if differences.count() != 2 {
                return Err(format!(
                    "instruction {index}: jump between the halves of a comparison"
                ));
            }
            self.check_single_decision(index, to)?;
            let has = |constant: &i32| {
                let mixes = |index: &usize| {
                    let Instruction { code, immediate, .. } = self.instructions[*index];
                    (code, immediate) == (XOR_IMMEDIATE, *constant)
                };
                preceding.iter().any(mixes)
            };
            counts[0] += 1;
            counts[1] += usize::from(FINALIZATION_CONSTANTS.iter().all(has));
        }
        Ok(counts)
    }

    /// Checks that the next jump depends on the register or on a register that was combined with it.
    fn check_single_decision(&self, index: usize, register: u8) -> Result<(), String> {
        let mut registers = vec![register];
        for (number, instruction) in (index + 1..).zip(&self.instructions[index + 1..]) {
            if instruction.is_jump() {
                let is_zero_test =
                    [IS_ZERO, IS_NOT_ZERO].contains(&instruction.code) && instruction.immediate == 0;
                return match is_zero_test && registers.contains(&instruction.to) {
                    true => Ok(()),
                    false => Err(format!(
                        "instruction {number}: jump does not depend on the whole difference"
                    )),
                };
            }
            match instruction.code {
                OR_REGISTER | MOVE_REGISTER if registers.contains(&instruction.from) => {
                    registers.push(instruction.to)
                }
                OR_REGISTER => {}
                // Stores change no register; every other instruction changes its target.
                code if code & 7 != 2 && code & 7 != 3 => registers.retain(|known| *known != instruction.to),
                _ => {}
            }
        }
        Err(format!("instruction {index}: no jump follows the comparison"))
    }

    /// Number of instructions of that line of the file. Fails if a conditional jump is between two of them within a function.
    fn count_without_branch(&self, file: &str, line: u32) -> Result<usize, String> {
        let indices: Vec<usize> = self.instructions_at(file, line).collect();
        for pair in indices.windows(2) {
            let between = &self.instructions[pair[0]..=pair[1]];
            let has_exit = between.iter().any(|instruction| instruction.code == EXIT);
            if !has_exit && between.iter().any(|instruction| instruction.is_conditional()) {
                return Err(format!("instructions {pair:?}: jump within a comparison"));
            }
        }
        Ok(indices.len())
    }
}

/// The number of the only line that contains that text.
fn line_of(source: &str, text: &str) -> u32 {
    let mut found = (1..).zip(source.lines()).filter(|(_, line)| line.contains(text));
    let (number, _) = found
        .next()
        .unwrap_or_else(|| panic!("no line contains {text:?}"));
    assert!(found.next().is_none(), "{text:?} occurs twice");
    number
}

pub(super) fn word(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

pub(super) fn text(bytes: &[u8], at: usize) -> &str {
    let rest = &bytes[at..];
    let end = rest.iter().position(|byte| *byte == 0).unwrap();
    std::str::from_utf8(&rest[..end]).unwrap()
}

/// Names and contents of the sections of a 64-bit ELF file, by number.
fn numbered_sections(elf: &[u8]) -> Vec<(&str, &[u8])> {
    let u64_at = |offset: usize| u64::from_le_bytes(elf[offset..offset + 8].try_into().unwrap()) as usize;
    let u16_at = |offset: usize| usize::from(u16::from_le_bytes(elf[offset..offset + 2].try_into().unwrap()));
    let (table, header_bytes, count, names) = (u64_at(0x28), u16_at(0x3a), u16_at(0x3c), u16_at(0x3e));
    let header = |number: usize| table + number * header_bytes;
    let names = u64_at(header(names) + 0x18);
    let section = |number: usize| {
        let offset = header(number);
        // A section without contents.
        let is_empty = word(elf, offset + 4) == 8;
        let size = if is_empty { 0 } else { u64_at(offset + 0x20) };
        let start = u64_at(offset + 0x18);
        (
            text(&elf[names..], word(elf, offset)),
            elf.get(start..start + size).unwrap_or_default(),
        )
    };
    (0..count).map(section).collect()
}

pub(super) fn section_names(elf: &[u8]) -> Vec<&str> {
    numbered_sections(elf).into_iter().map(|(name, _)| name).collect()
}

pub(super) fn sections(elf: &[u8]) -> BTreeMap<&str, &[u8]> {
    numbered_sections(elf).into_iter().collect()
}

/// The sections with code, and their line information from BTF (Documentation/bpf/btf.rst).
fn code_of(elf: &[u8]) -> BTreeMap<&str, Code<'_>> {
    let sections = sections(elf);
    let (types, extension) = (sections[".BTF"], sections[".BTF.ext"]);
    let strings = &types[word(types, 4) + word(types, 16)..];
    let start = word(extension, 4) + word(extension, 16);
    let lines = &extension[start..start + word(extension, 20)];
    let (record_bytes, mut offset) = (word(lines, 0), 4);
    let mut code_by_section = BTreeMap::new();
    while offset < lines.len() {
        let (name, count) = (text(strings, word(lines, offset)), word(lines, offset + 4));
        offset += 8;
        let bytes = sections[name];
        let mut code = Code {
            instructions: bytes.chunks_exact(8).map(instruction).collect(),
            lines: vec![None; bytes.len() / 8],
        };
        let mut records: Vec<_> = lines[offset..offset + count * record_bytes]
            .chunks_exact(record_bytes)
            .collect();
        records.sort_by_key(|record| word(record, 0));
        for record in records {
            let location = (text(strings, word(record, 4)), (word(record, 12) >> 10) as u32);
            code.lines[word(record, 0) / 8..].fill(Some(location));
        }
        offset += count * record_bytes;
        code_by_section.insert(name, code);
    }
    code_by_section
}

fn instruction(bytes: &[u8]) -> Instruction {
    Instruction {
        code: bytes[0],
        to: bytes[1] & 15,
        from: bytes[1] >> 4,
        immediate: i32::from_le_bytes(bytes[4..8].try_into().unwrap()),
    }
}

/// The object to which a skeleton of the build script refers.
pub(crate) fn object_of(skeleton: &str) -> Vec<u8> {
    let names = skeleton.split('"').filter(|text| text.ends_with(".o"));
    let name = names
        .map(|path| Path::new(path).file_name().unwrap())
        .next()
        .unwrap();
    std::fs::read(Path::new(env!("OUT_DIR")).join(name)).unwrap()
}

/// The object that gateways load.
pub(super) fn object() -> Vec<u8> {
    object_of(include_str!(concat!(env!("OUT_DIR"), "/gateway.skel.rs")))
}

/// Checks that the lines with this text compare a block without a branch.
pub(crate) fn assert_no_branch(elf: &[u8], file: &str, source: &str, text: &str) {
    let line = line_of(source, text);
    let code = code_of(elf);
    let count: Result<usize, String> = code
        .values()
        .map(|code| code.count_without_branch(file, line))
        .sum();
    // At least one exclusive or per word of the block.
    assert!(count.clone().is_ok_and(|count| count >= 8), "{file}: {count:?}");
}

#[test]
fn compiled_programs_branch_on_the_complete_difference_of_a_tag() {
    let elf = object();
    let code = code_of(&elf);
    // DATA: the tag is computed by a separate function.
    assert_eq!(code[".text"].comparisons(), Ok([1, 0]), "DATA");
    // RESPONSE, first and repeated, in the program with and without in-band evidence.
    assert_eq!(code["xdp"].comparisons(), Ok([4, 2]), "RESPONSE");
    assert_no_branch(
        &elf,
        "lw_attest.h",
        include_str!("bpf/lw_attest.h"),
        "differs |= ((__u64)high",
    );
}

/// All comparisons of tags use `lw_tags_differ()`.
#[test]
fn every_comparison_of_tags_uses_lw_tags_differ() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/xdp/bpf");
    for entry in std::fs::read_dir(sources).unwrap() {
        let path = entry.unwrap().path();
        let source = std::fs::read_to_string(&path).unwrap();
        for (number, line) in (1..).zip(source.lines()) {
            let patterns = [
                "tag[0] ^",
                "tag[1] ^",
                "^ m->tag",
                "tag[0] ==",
                "tag[1] ==",
                "tag[0] !=",
                "tag[1] !=",
            ];
            let compares_tags = patterns.iter().any(|text| line.contains(text));
            assert!(!compares_tags, "{}:{number}: {line}", path.display());
        }
    }
}

/// The check detects clang's output for the source without a barrier: one jump per half.
#[test]
fn an_early_exit_is_detected() {
    let header = include_str!("bpf/lw_compare.h");
    let (halves_line, combined_line) = (line_of(header, "low = first[0]"), line_of(header, "low |= high"));
    let instruction_of = |code, to, from| Instruction {
        code,
        to,
        from,
        immediate: 0,
    };
    let xor = |to, from| instruction_of(XOR_REGISTER, to, from);
    let location_of = |line| Some(("./lw_compare.h", line));
    let other_file = Some(("./lw_lap.h", 1));
    let code = |steps: &[(Instruction, Option<(&'static str, u32)>)]| Code {
        instructions: steps.iter().map(|(instruction, _)| *instruction).collect(),
        lines: steps.iter().map(|(_, line)| *line).collect(),
    };
    let or = (instruction_of(OR_REGISTER, 1, 2), location_of(combined_line));
    let (low, high) = (
        (xor(1, 8), location_of(halves_line)),
        (xor(2, 7), location_of(halves_line)),
    );
    let branch_high = (instruction_of(IS_NOT_ZERO, 1, 0), other_file);
    let early_branch = (instruction_of(IS_NOT_ZERO, 1, 0), location_of(halves_line));
    assert_eq!(code(&[low, high, or, branch_high]).comparisons(), Ok([1, 0]));
    code(&[low, early_branch, high, or, branch_high])
        .comparisons()
        .unwrap_err();
    code(&[low, high, or, (instruction_of(IS_NOT_ZERO, 3, 0), other_file)])
        .comparisons()
        .unwrap_err();
    code(&[low, high, or, (xor(1, 3), other_file), branch_high])
        .comparisons()
        .unwrap_err();
    code(&[low, high, early_branch, high])
        .count_without_branch("lw_compare.h", halves_line)
        .unwrap_err();
}
