//! The agent with real sockets against the reference gateway: sessions, tunnels, attestation.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

#[macro_use(test)]
extern crate linewarden_harness;

mod against_oracle;
mod attest;
mod tunnel;

fn main() -> std::process::ExitCode {
    linewarden_harness::main()
}
