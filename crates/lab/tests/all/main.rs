//! Simulated fleets and attacks in private networks. Most tests need root.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    missing_docs
)]

#[macro_use(test)]
extern crate linewarden_harness;

mod attackers;
mod benchmarks;
mod common;
mod fleet;
mod oracle;
mod private_network;
mod vulnerable;
mod xdp_gateway;

fn main() -> std::process::ExitCode {
    linewarden_harness::main()
}
