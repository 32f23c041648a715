//! Tests of the attesting P4 switch and of its packet tests.
#![allow(
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

#[macro_use(test)]
extern crate linewarden_harness;

mod calculations;
mod control;
mod deep;
mod differential;
mod evidence;
mod exchange;
mod features;
mod loading;
mod meter;
mod p4_artifacts;
mod p4c;
mod ports;
mod programs;
mod reference;
mod stf;
mod tables;

fn main() -> std::process::ExitCode {
    linewarden_harness::main()
}
