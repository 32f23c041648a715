//! Demonstrations in private networks. Most tests need root.
//!
//! A program of its own, because a demonstration pins high-priority threads to all CPUs: devices of other tests in the same
//! program would get no processor time for minutes.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    missing_docs
)]

#[macro_use(test)]
extern crate linewarden_harness;

mod command;
#[path = "../all/common.rs"]
#[allow(dead_code, reason = "the other program uses all items")]
mod common;
mod library;

fn main() -> std::process::ExitCode {
    linewarden_harness::main()
}
