//! Tests of P4Runtime: messages, P4Info, arbitration, server and client.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

#[macro_use(test)]
extern crate linewarden_harness;

mod arbitration;
mod evidence;
mod p4info;
mod service;

fn main() -> std::process::ExitCode {
    linewarden_harness::main()
}
