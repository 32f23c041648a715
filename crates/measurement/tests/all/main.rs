//! Tests of the configuration hash of a device.
#![allow(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

#[macro_use(test)]
extern crate linewarden_harness;

#[path = "../common/mod.rs"]
mod common;
mod configuration;
mod diff;
mod eventlog;
mod files;
mod firmware;
mod fuzz;

fn main() -> std::process::ExitCode {
    linewarden_harness::main()
}
