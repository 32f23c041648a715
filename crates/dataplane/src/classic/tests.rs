//! Compares `layout.rs` with the types that libbpf generates from the BTF of the programs, and checks that the compiled
//! programs compare proofs in constant time and fit the stack.

use std::mem::{offset_of, size_of};

use super::layout::{ClassicCrp, ClassicState, P4DRA_PROBES, P4draProverCell, P4draRound, P4draRounds};
use crate::xdp::compare_test::{assert_no_branch, object_of};
use crate::xdp::skeleton::bench_papers::types;
use crate::xdp::stack_test::check_stack;

/// Lists every field of the C type: the pattern does not compile if one is missing.
macro_rules! same {
    ($rust:ty, $c:ident: $($field:ident),+ $(; only in C: $padding:ident)?) => {
        let _ = |all: types::$c| {
            let types::$c { $($field: _,)+ $($padding: _,)? } = all;
        };
        assert_eq!(size_of::<$rust>(), size_of::<types::$c>(), "size of {}", stringify!($c));
        $(assert_eq!(
            offset_of!($rust, $field),
            offset_of!(types::$c, $field),
            concat!(stringify!($c), ".", stringify!($field)),
        );)+
    };
}

#[test]
fn the_rust_layout_equals_the_c_layout() {
    same!(ClassicState, lw_classic_state: expected, next; only in C: pad);
    same!(ClassicCrp, lw_classic_crp: challenge, crc, response);
    same!(P4draProverCell, lw_p4dra_prover: used, id, proved, matrix; only in C: pad);
    same!(P4draRound, lw_p4dra_round: count, r, n; only in C: pad);
    same!(P4draRounds, lw_p4dra_rounds: lane);
    let header = include_str!("bpf/lw_classic_layout.h");
    let line = format!("#define LW_P4DRA_PROBES {P4DRA_PROBES}");
    assert!(header.lines().any(|text| text == line), "{line}");
}

fn object() -> Vec<u8> {
    object_of(include_str!(concat!(env!("OUT_DIR"), "/bench_papers.skel.rs")))
}

#[test]
fn compiled_programs_branch_on_the_complete_difference_of_a_proof() {
    let source = include_str!("bpf/lw_p4dra.h");
    assert_no_branch(&object(), "lw_p4dra.h", source, "differs |= (m[i] +");
}

#[test]
fn calls_need_no_more_stack_than_linux_6_1_has() {
    check_stack(&object());
}
