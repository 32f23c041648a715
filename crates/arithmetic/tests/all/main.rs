//! Compares the arithmetic on every backend with other libraries.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::needless_range_loop, // One lane number is the index in several lists.
    clippy::panic,
    clippy::unwrap_used,
    missing_docs
)]

#[macro_use(test)]
extern crate linewarden_harness;

mod backends;
mod edwards;
mod keys;
mod p256;
mod rsa;
#[allow(dead_code, reason = "unit tests use the other items")]
#[path = "../../src/testing.rs"]
mod testing;

fn main() -> std::process::ExitCode {
    linewarden_harness::main()
}
