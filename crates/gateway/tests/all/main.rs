//! Gateways on the `host` data plane on loopback, with a real registry or step by step, and malformed input files.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

#[macro_use(test)]
extern crate linewarden_harness;

mod attestation;
mod loopback;
mod outdated_responses;
mod rounds;
mod site;
mod ticket_relay;

fn main() -> std::process::ExitCode {
    linewarden_harness::main()
}
