//! Benchmarks of the eBPF programs, packet after packet on one CPU (`BPF_PROG_TEST_RUN`): the programs
//! `bpf/bench*.bpf.c` and their loaders.

pub mod cipher;
pub mod micro;
pub(crate) mod passes;
pub mod proof;
pub mod sealed;
pub mod stamp;
