//! Tests of PUF models, enrollment, error correction and reports.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

#[macro_use(test)]
extern crate linewarden_harness;

mod extractor;
mod fuzz;
mod models;
mod power_up;
mod real_readouts;
mod report;
mod simulation;
mod support;

fn main() -> std::process::ExitCode {
    linewarden_harness::main()
}
