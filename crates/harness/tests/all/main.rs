//! Runs the tests of the module `examples` in another process and checks the report.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    missing_docs
)]

#[macro_use(test)]
extern crate linewarden_harness;

mod examples;
mod report;

fn main() -> std::process::ExitCode {
    linewarden_harness::main()
}
