//! Tests of signed messages: signers, receivers, lanes on CPU and GPU, files.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    missing_docs
)]

#[macro_use(test)]
extern crate linewarden_harness;

mod common;
mod files;
mod gpu;
mod lanes;
mod overload;
mod receiving;
mod signing;
mod tampering;
mod validity;

fn main() -> std::process::ExitCode {
    linewarden_harness::main()
}
