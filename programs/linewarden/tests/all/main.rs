//! The programs as their users run them: command lines, configurations, processes and their output, in temporary directories and
//! in private network namespaces. Many tests need root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

#[macro_use(test)]
extern crate linewarden_harness;

mod appraise;
mod cli;
mod control_map;
mod emulator;
mod end_to_end;
mod gate;
mod in_packets;
mod kill;
mod moves;
mod p4_gateway;
mod pairs;
mod remote;
mod renewal;
mod roaming;
mod sealed_gate;
mod signed;
mod snapshots;
#[path = "../support/mod.rs"]
mod support;
mod switch;
mod trust;

fn main() -> std::process::ExitCode {
    linewarden_harness::main()
}
