//! Identifies a program's instructions: by this crate's digest and by the kernel's tag.

use std::collections::BTreeMap;

use libbpf_rs::libbpf_sys::bpf_insn;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

/// Prefix of the hash input.
const LABEL: &[u8] = b"linewarden eBPF instructions 1\0";
/// `BPF_LD | BPF_IMM | BPF_DW`: a constant of 64 bits, in this instruction and the next.
const LOAD_CONSTANT: u8 = 0x18;
/// Source register: the constant is the descriptor of a map.
const MAP_FD: u8 = 1;
/// Source register: the constant is the descriptor of a map with one value, and an offset in this value.
const MAP_VALUE: u8 = 2;

/// Bytes of a program's tag.
const TAG_BYTES: usize = 8;

fn refers_to_map(instruction: &bpf_insn) -> bool {
    instruction.code == LOAD_CONSTANT && matches!(instruction.src_reg(), MAP_FD | MAP_VALUE)
}

/// SHA-256 over the instructions as they were passed to the kernel, with map names instead of map descriptors, which
/// differ between loads. `None`: the instructions refer to an unknown map.
pub(super) fn digest(instructions: &[bpf_insn], maps: &BTreeMap<i32, String>) -> Option<[u8; 32]> {
    let mut hash = Sha256::new();
    hash.update(LABEL);
    for instruction in instructions {
        hash.update([instruction.code, instruction.dst_reg(), instruction.src_reg()]);
        hash.update(instruction.off.to_be_bytes());
        if !refers_to_map(instruction) {
            hash.update([0]);
            hash.update(instruction.imm.to_be_bytes());
            continue;
        }
        let name = maps.get(&instruction.imm)?.as_bytes();
        hash.update([1]);
        hash.update(u32::try_from(name.len()).unwrap_or(u32::MAX).to_be_bytes());
        hash.update(name);
    }
    Some(hash.finalize().into())
}

/// Whether this is the kernel's tag of these instructions: the beginning of a hash of the instructions without maps,
/// SHA-1 or, since Linux 6.18, SHA-256.
pub(super) fn is_tag(tag: [u8; TAG_BYTES], instructions: &[bpf_insn]) -> bool {
    let bytes = tag_input(instructions);
    Sha1::digest(&bytes).starts_with(&tag) || Sha256::digest(&bytes).starts_with(&tag)
}

/// The input of the kernel's hash (`bpf_prog_calc_tag`).
fn tag_input(instructions: &[bpf_insn]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_of_val(instructions));
    let mut is_second_half = false;
    for instruction in instructions {
        let is_map = !is_second_half && refers_to_map(instruction);
        let imm = if is_map || is_second_half {
            0
        } else {
            instruction.imm
        };
        is_second_half = is_map;
        let registers = match cfg!(target_endian = "little") {
            true => instruction.dst_reg() | instruction.src_reg() << 4,
            false => instruction.dst_reg() << 4 | instruction.src_reg(),
        };
        bytes.extend([instruction.code, registers]);
        bytes.extend(instruction.off.to_ne_bytes());
        bytes.extend(imm.to_ne_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instruction(code: u8, src: u8, imm: i32) -> bpf_insn {
        let mut instruction = bpf_insn {
            code,
            imm,
            ..bpf_insn::default()
        };
        instruction.set_src_reg(src);
        instruction
    }

    /// r0 = imm; exit.
    fn returns(imm: i32) -> Vec<bpf_insn> {
        vec![instruction(0xb7, 0, imm), instruction(0x95, 0, 0)]
    }

    fn of_map(fd: i32) -> Vec<bpf_insn> {
        let mut program = vec![instruction(LOAD_CONSTANT, MAP_FD, fd), instruction(0, 0, 0)];
        program.extend(returns(0));
        program
    }

    #[test]
    fn a_changed_instruction_changes_the_digest() {
        let none = BTreeMap::new();
        assert_eq!(digest(&returns(2), &none), digest(&returns(2), &none));
        assert_ne!(digest(&returns(2), &none), digest(&returns(1), &none));
    }

    #[test]
    fn maps_are_hashed_by_name_not_by_descriptor() {
        let named = |fd, name: &str| BTreeMap::from([(fd, name.to_owned())]);
        let lines = digest(&of_map(7), &named(7, "lines")).unwrap();
        assert_eq!(digest(&of_map(9), &named(9, "lines")), Some(lines));
        assert_ne!(digest(&of_map(7), &named(7, "rows")), Some(lines));
        assert_eq!(digest(&of_map(7), &named(8, "lines")), None);
    }

    #[test]
    fn the_kernels_tag_excludes_maps() {
        assert_eq!(tag_input(&of_map(7)), tag_input(&of_map(8)));
        assert_ne!(tag_input(&returns(1)), tag_input(&returns(2)));
        // `xdp { return XDP_PASS; }`, as bpftool shows it: r0 = 2; exit.
        assert_eq!(
            tag_input(&returns(2)),
            [0xb7, 0, 0, 0, 2, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0]
        );
        let sha1 = Sha1::digest(tag_input(&returns(2)));
        assert!(is_tag(*sha1.first_chunk().unwrap(), &returns(2)));
        assert!(!is_tag(*sha1.first_chunk().unwrap(), &returns(1)));
    }
}
