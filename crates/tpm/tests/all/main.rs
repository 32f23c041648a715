//! Tests of TPM structures, endorsement, and enrollment with a software TPM 2.0.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

#[macro_use(test)]
extern crate linewarden_harness;

mod emulator;
mod endorsement;
mod fuzz;

fn main() -> std::process::ExitCode {
    linewarden_harness::main()
}
